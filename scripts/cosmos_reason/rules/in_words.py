"""What a spec amounts to, in the words in which people ask for it: it spares opening the file."""

from __future__ import annotations

import math

from cosmos_reason.base import files
from cosmos_reason.base.texts import shortened
from cosmos_reason.estimate import steps as schedule
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.keys import SAVE, VALIDATE, WARMUP, WARMUP_EPOCHS
from cosmos_reason.rules.steps import warms_up_by_epochs, warmup_is_a_share
from cosmos_reason.spec import actions, values
from cosmos_reason.spec.keys import BATCH, DROP_LAST, RATE

SHOWN_OF_A_VALUE = 120  # characters


def table(case: Case, uses_gpus: bool = True, held: str = "") -> str:
    """Return all that will hold, a line per subject: nobody has to open the spec to agree to it.
    What is not known yet is its last line. `held`: of which GPUs, where the place has more."""
    model = f"{files.from_here(case.model)} for {case.engine}"
    if "adapter" in case.params and case(case.params["adapter"]):
        model += f", an adapter of {files.from_here(case(case.params['base']) or 'its base')}"
    rows = {"model": model, "data": _data(case)}
    unknown = []
    if case.action in actions.TRAINING:
        rows["tuning"] = "all weights"
        if case.has("policy.lora"):
            layers = case("policy.lora.target_modules")
            named = layers if isinstance(layers, str) else " ".join(layers or ())
            alpha, dropout = case("policy.lora.lora_alpha"), case("policy.lora.lora_dropout")
            rows["tuning"] = (
                f"LoRA of rank {case('policy.lora.r')}, alpha {values.shown(alpha)}, dropout "
                f"{values.shown(dropout)}, on {shortened(named, SHOWN_OF_A_VALUE)}"
            )
        warmup = case(WARMUP)
        rise = f"{warmup:.0%} of the steps" if isinstance(warmup, float) else f"{warmup} steps"
        if warms_up_by_epochs(case):
            rise = f"{case(WARMUP_EPOCHS):g} epochs"
        elif case.steps:
            share = f" ({warmup:.0%})" if warmup_is_a_share(case) else ""
            rise = f"{schedule.warmup_steps(warmup, case.steps)} steps{share}"
        rows["length"] = (
            f"{', '.join(_length(case))}; learning rate {values.shown(case(RATE))}, "
            f"{case('train.optm_decay_type') or 'no'} decay, warm-up {rise}"
        )
        rows["saves"] = "nothing"
        if case("train.ckpt.enable_checkpoint"):
            kept = case("train.ckpt.max_keep")
            number = kept if kept and kept > 0 else "all"
            rows["saves"] = f"{_interval(case, SAVE)} and at the last step, keeps {number}"
        if case("validation.enable"):
            # Every trainer ends with a validation; the embedded engine also scores what it saves.
            scores_saves = case("train.ckpt.enable_checkpoint") and not case.cosmos
            also = "wherever it saves" if scores_saves else "at the last step"
            rows["saves"] += f"; validates {_interval(case, VALIDATE)} and {also}"
        if case.action == "grpo":
            rewards = case("train.train_policy.reward_function")
            rows["rollouts"] = (
                f"{case('rollout.n_generation')} a prompt, "
                f"up to {case('rollout.max_response_length')} tokens, "
                f"KL {values.shown(case('train.train_policy.kl_beta'))}; "
                f"rewards {rewards if isinstance(rewards, str) else ', '.join(rewards or ())}; "
                f"{case('mode')}"
            )
        longest = case("policy.model_max_length")
        if case.action == "train" and not case.steps:
            unknown.append("steps")
    elif case.action == "quantize":
        rows["scheme"] = f"{_scheme(case)}, smoothing {case('quantize.smoothing_strength'):g}"
        longest = case("quantize.max_sequence_length")
    else:
        rows["answers"] = (
            f"up to {case('generation.max_tokens')} tokens, "
            f"temperature {case('generation.temperature'):g}"
        )
        if case("evaluation.answer_type"):
            rows["answers"] += f", {case('evaluation.answer_type')}"
        longest = case("model.max_length")
    clips = [*_sampling(case), *([f"up to {longest} tokens a record"] if longest else [])]
    rows["clips"] = ", ".join(clips)
    if case.tokens:
        measured = max(record.total for record in case.tokens)
        # Which of the two it was decides how far the number can be trusted.
        method = (case.facts.get("text_tokens") or {}).get("method", "")
        counted = "counted with the tokenizer" if method.startswith("tokenizer") else "estimated"
        rows["clips"] += f"; the longest has {measured} (text {counted})"
    elif actions.data_keys(case.action):
        unknown.append("lengths of the records")
    if uses_gpus:
        rows["GPUs"] = f"{case.needed_gpus}{held}"
    if unknown:
        rows["unknown"] = f"{' and '.join(unknown)}: --dataset-facts FILE tells"
    return "\n".join(f"  {name:8} {text}" for name, text in rows.items() if text)


def _data(case: Case) -> str:
    """Return the annotations that are read, with their records where those can be counted."""
    if case.action == "inference":
        return files.from_here(case("media") or "")
    keys, held_out = actions.data_keys(case.action), actions.validation_keys(case.action)
    read = [case(keys.annotations), case(held_out.annotations) if held_out else None]
    first, second = (
        files.from_here(path or "none").removesuffix("/annotations.json") for path in read
    )
    if case.records is not None:
        first += f" ({case.records:,} records)"
    if not read[1]:
        return first
    if case.action == "quantize":
        return f"{first}, measured by {second}"
    return f"{first}, {'' if case('validation.enable') else 'not '}validated on {second}"


def _interval(case: Case, key: str) -> str:
    """Return how often something is done; the last step comes besides."""
    epochs = case(f"{key}_in_epoch")
    if not epochs:
        return f"every {case(key)} steps"
    return "every epoch" if epochs == 1 else f"every {epochs} epochs"


def _scheme(case: Case) -> str:
    wanted = case("quantize.num_calibration_samples")
    samples = min(wanted, case.records or wanted)  # each record counts once at most
    return f"{case('quantize.quantization_scheme')}, {samples} calibration samples"


def with_batch(case: Case, uses_gpus: bool = True) -> str:
    """Return the values that decide what a run gives and costs, on one line."""
    parts = [_batch(case)] if case.action == "train" else []
    if case.action in actions.TRAINING:
        tuning = (
            f"LoRA of rank {case('policy.lora.r')}" if case.has("policy.lora") else "all weights"
        )
        parts += [*_length(case), tuning, f"learning rate {values.shown(case(RATE))}"]
        longest = case("policy.model_max_length")
    elif case.action == "quantize":
        parts += [_scheme(case)]
        longest = case("quantize.max_sequence_length")
    else:
        parts += [f"answers up to {case('generation.max_tokens')} tokens"]
        longest = None
    parts += _sampling(case)
    if longest:
        parts.append(f"up to {longest} tokens a record")
    if uses_gpus:
        gpus = case.needed_gpus
        parts.append(f"{gpus} GPU{'s' if gpus > 1 else ''}")
    return ", ".join(parts)


def _batch(case: Case) -> str:
    return f"global batch {case.global_batch} ({case(BATCH)} x {case.ranks} data-parallel ranks)"


def _length(case: Case) -> list[str]:
    limit, epochs = case("train.max_num_steps"), case("train.epoch")
    parts = [f"{epochs} epoch{'s' if epochs != 1 else ''}"]
    if limit:
        parts.append(f"at most {limit} steps")
    return parts


def _sampling(case: Case) -> list[str]:
    """Return frames and size of a clip, where the engine can be told of them."""
    if not case.reads_frames:
        return []
    vision = case(case.params["vision"]) or {}
    parts = []
    if vision.get("nframes"):
        parts.append(f"{vision['nframes']} frames a clip")
    elif vision.get("fps"):
        parts.append(f"{vision['fps']:g} frames a second")
        if vision.get("max_frames"):
            parts.append(f"at most {vision['max_frames']} frames")
    if vision.get("resized_height") and vision.get("resized_width"):
        parts.append(f"{vision['resized_width']} x {vision['resized_height']} pixels")
    elif vision.get("max_pixels"):
        parts.append(f"at most {vision['max_pixels']} pixels a frame")
    return parts


def size_of_training(case: Case) -> str:
    """Return the global batch and the steps of a training."""
    if case.steps is None:
        return f"{_batch(case)}, steps unknown without --dataset-facts"
    epochs = f"{case.steps_per_epoch} an epoch" if case.steps_per_epoch else "the limit that is set"
    # The records of an epoch that fill no batch.
    of_rank = math.ceil((case.trained_records or 0) / case.ranks)
    left = of_rank % case(BATCH)
    where = f"{left} records of each rank" if case.ranks > 1 else f"{left} records"
    if left and case(DROP_LAST):
        epochs += f"; dataloader_drop_last leaves out {where}, a step less"
    elif left:
        epochs += f"; the last of each with {where}, which dataloader_drop_last would leave out"
    # Where ranks would have unlike counts, the sampler of cosmos-rl deals some records twice.
    again = of_rank * case.ranks - (case.trained_records or 0)
    is_told = 20 * again > (case.trained_records or 0)  # of many records hardly any
    if is_told and not left:
        short = f"the last of each lacks {again} records"
        twice = f"{again} records are dealt twice in each, so that all ranks have as many"
        epochs += f"; {short if case.engine == 'transformers' else twice}"
    text = f"{_batch(case)}, {case.steps} steps ({epochs})"
    late = []  # what is done at no step before the last
    saves, validates = case("train.ckpt.enable_checkpoint"), case("validation.enable")
    for word, key, is_done in (("saves", SAVE, saves), ("validates", VALIDATE, validates)):
        interval = case(key)
        epochs = case(f"{key}_in_epoch")
        if epochs and case.steps_per_epoch:
            interval = epochs * case.steps_per_epoch
        if is_done and interval and interval >= case.steps:
            late.append(word)
    return f"{text}; {' and '.join(late)} at the last step only" if late else text
