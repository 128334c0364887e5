"""What a spec amounts to, in the words in which people ask for it: it spares opening the file."""

from __future__ import annotations

from cosmos_reason.rules.case import Case
from cosmos_reason.spec import actions, values
from cosmos_reason.spec.keys import BATCH, RATE


def of_spec(case: Case, uses_gpus: bool = True) -> str:
    """The values that decide what a run gives and costs, on one line."""
    if case.action in actions.TRAINING:
        tuning = (
            f"LoRA of rank {case('policy.lora.r')}" if case.has("policy.lora") else "all weights"
        )
        parts = [*_length(case), tuning, f"learning rate {values.shown(case(RATE))}"]
        longest = case("policy.model_max_length")
    elif case.action == "quantize":
        wanted = case("quantize.num_calibration_samples")
        samples = min(wanted, case.records or wanted)  # each record counts once at most
        parts = [case("quantize.quantization_scheme"), f"{samples} calibration samples"]
        longest = case("quantize.max_sequence_length")
    else:
        parts = [f"answers up to {case('generation.max_tokens')} tokens"]
        longest = None
    parts += _sampling(case)
    if longest:
        parts.append(f"up to {longest} tokens a record")
    if uses_gpus:
        gpus = case.needed_gpus
        parts.append(f"{gpus} GPU{'s' if gpus > 1 else ''}")
    return ", ".join(parts)


def with_batch(case: Case, uses_gpus: bool = True) -> str:
    """The text of `of_spec`, for a training with its global batch in front."""
    text = of_spec(case, uses_gpus)
    return f"{_batch(case)}, {text}" if case.action == "train" else text


def _batch(case: Case) -> str:
    return f"global batch {case.global_batch} ({case(BATCH)} x {case.ranks} data-parallel ranks)"


def _length(case: Case) -> list[str]:
    limit, epochs = case("train.max_num_steps"), case("train.epoch")
    parts = [f"{epochs} epoch{'s' if epochs != 1 else ''}"]
    if limit:
        parts.append(f"at most {limit} steps")
    return parts


def _sampling(case: Case) -> list[str]:
    """Frames and size of a clip, where the engine can be told of them."""
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
    """The global batch and the steps of a training."""
    if case.steps is None:
        return f"{_batch(case)}, steps unknown without --dataset-facts"
    epochs = f"{case.steps_per_epoch} an epoch" if case.steps_per_epoch else "the limit that is set"
    if case.incomplete_batch:
        epochs += f"; {case.incomplete_batch}"
    text = f"{_batch(case)}, {case.steps} steps ({epochs})"
    late = _done_only_at_the_end(case)
    return f"{text}; {' and '.join(late)} at the last step only" if late else text


def _done_only_at_the_end(case: Case) -> list[str]:
    """What a training of known steps does at no step before its last."""
    saves, validates = case("train.ckpt.enable_checkpoint"), case("validation.enable")
    words = {"saves": ("train.ckpt.save_freq", saves), "validates": ("validation.freq", validates)}
    found = []
    for word, (key, is_done) in words.items():
        interval = case(key)
        epochs = case(f"{key}_in_epoch")
        if epochs and case.steps_per_epoch:
            interval = epochs * case.steps_per_epoch
        if is_done and interval and interval >= case.steps:
            found.append(word)
    return found
