"""Training configs of other trainers: one table, whose names mean other keys here.

None is taken over name by name: what one leaves out (LoRA, a batch) would be trained otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import legal, names
from cosmos_reason.spec.document import MISSING
from cosmos_reason.spec.keys import BATCH

TRAINERS = {
    "hf": "Hugging Face's Trainer or TRL",
    "llama-factory": "LLaMA-Factory",
    "ms-swift": "ms-swift",
    "axolotl": "axolotl",
}
# No training spec is without the first two; the others are tables of specs of other actions.
TABLES_OF_SPECS = ("train", "policy", "rollout", "custom", "model", "evaluation", "vision")
FEWEST_WORDS = 2  # one may be a slip in a spec of ours
# A config of these names its dataset so, and trains adapters where it does not say how it trains;
# Hugging Face's Trainer and axolotl then train all weights.
NAMES_A_DATASET = ("llama-factory", "ms-swift")
TUNING = ("finetuning_type", "train_type", "tuner_type", "sft_type", "adapter", "use_peft")
TUNINGS = {"full": "full", "lora": "lora", True: "lora", False: "full", None: "full", "": "full"}
MODEL = ("model_name_or_path", "model", "base_model")
PASSES, PASSES_OF_STEP = (
    ("per_device_train_batch_size", "micro_batch_size"),
    "gradient_accumulation_steps",
)
# What every training here is, or does by default.
SILENT = {"stage": "sft", "do_train": True, "bf16": True}
# These count steps only under the strategy "steps".
STRATEGIES = {"save_steps": "save_strategy", "eval_steps": "eval_strategy"}
OTHER_MEANING = ("batch_size",)  # a short name of ours, and a step on all GPUs elsewhere
KINDS = ("rlhf_type", "rl", "stage")
BUILD = "scripts/build_spec.py train --train-root DIR -o spec.toml"


def is_flat_config(table: dict) -> bool:
    """Return whether a spec is a config of another trainer."""
    is_spec = any(isinstance(table.get(name), dict) for name in TABLES_OF_SPECS)
    return not is_spec and len(_words(table)) >= FEWEST_WORDS


def refusal(
    where: str,
    table: dict,
    engine: str = "",
    given: str = "",
    said: Mapping[str, str] = MappingProxyType({}),
    action: str = "train",
) -> Finding:
    """Return the error about a config of another trainer, with what it says in our words as fix.

    `given`: how build_spec's flags name the config, which make way for what says the same; else
    the fix is a command of its own, for the `engine`. `said`: flags and keys of the command line,
    which win over the config. What nothing here says is listed by name.
    """
    counts = dict.fromkeys(TRAINERS, 0)
    for whose in _words(table).values():
        for name in whose:
            counts[name] += 1
    if "dataset" not in table:
        counts = {name: count for name, count in counts.items() if name not in NAMES_A_DATASET}
    most = max(counts.values())
    trainers = [name for name, count in counts.items() if count == most]
    message = f"got a config of {' or '.join(TRAINERS[name] for name in trainers)}, expected a spec"
    message += "; its batch is one of each GPU, its data are named with --train-root or "
    message += "--set train_annotations, and what it does not say is this skill's default"
    if "--fix" in said:
        message += "; --fix takes over none"
    kinds = [table[name] for name in KINDS if table.get(name)]
    kind = kinds[0] if kinds else "sft"
    if kind == "sft" and {"reward_funcs", "num_generations"} & table.keys():
        kind = "grpo"
    if kind != "sft" or action != "train":  # no supervised training: there is no fix
        why = f"it is for {kind}, and train specs are for sft"
        if kind == "sft":
            why = f"it is for sft, and a {action} spec is not"
        return findings.error("SPEC-ACTION", where, f"{message}; {why}")
    tuning = _tuning(table, trainers)
    if tuning not in TUNINGS.values():
        message += f"; it trains by {tuning}, and here are --tuning full and --tuning lora"
        return findings.error("SPEC-ACTION", where, message)
    if tuning == "full" and not any(name in table for name in TUNING):
        message += "; it names no adapters, so that all weights are trained (--tuning full)"
    # What says the same in our words, but for what is `said`.
    flags = {"--tuning": tuning}
    for name in MODEL:
        if isinstance(table.get(name), str) and table[name]:
            flags["--model"] = table[name]
    changes, left = _changes(table, lora="full" not in said.get("--tuning", tuning))
    if "--global-batch" in said:
        changes.pop(BATCH, None)
    fix = Fix(
        changes={key: value for key, value in changes.items() if key not in said},
        flags={flag: value for flag, value in flags.items() if flag not in said},
    )
    if left:
        message += f"; the fix leaves out {', '.join(left)}"
    if given:
        fix = replace(fix, command=f"replace {given} with")
    else:
        fix = replace(fix, command=f"{BUILD} --engine {engine}" if engine else BUILD)
    return findings.error("SPEC-ACTION", where, message, fix, left_out=left)


def _words(table: dict) -> dict[str, set[str]]:
    """Return each name that is a word of other trainers, and whose."""
    known = names.other_trainers()
    found = {}
    for name in table:
        whose = TRAINERS.keys() & set(known.get(name.lower(), {}).get("of", ()))
        if whose:
            found[name] = whose
    return found


def _tuning(table: dict, trainers: list[str]) -> str:
    """Return `full`, `lora`, or the config's own word for what is neither."""
    for name in TUNING:
        if name in table:
            value = table[name]
            is_known = isinstance(value, str | bool) or value is None
            return TUNINGS.get(value, str(value)) if is_known else str(value)
    return "lora" if set(trainers) <= set(NAMES_A_DATASET) else "full"


def _changes(table: dict, lora: bool) -> tuple[dict[str, object], list[str]]:
    """Return the keys that mean the same, with their values, and the names that mean none.

    `lora`: whether adapters are trained.
    """
    changes = {}
    named_by = {}
    left = []
    for name, value in table.items():
        if name in (*TUNING, *MODEL) or (name in SILENT and SILENT[name] == value):
            continue
        key, meant = _moved(table, name, value)
        if meant is MISSING or (key.startswith("policy.lora.") and not lora):
            left.append(name)
        elif key in changes and changes[key] != meant:  # two names for one key: which one counts?
            left += [named_by[key], name]
            del changes[key]
        else:
            changes[key] = meant
            named_by[key] = name
    sizes = [table[name] for name in PASSES if name in table][:1]
    # ms-swift alone takes another number of passes than one where it is not told.
    sizes.append(table.get(PASSES_OF_STEP, None if "dataset" in table else 1))
    is_told = len(sizes) > 1 and all(type(size) is int and size > 0 for size in sizes)
    if batch := (math.prod(sizes) if is_told else 0):
        changes[BATCH] = batch
        left = [name for name in left if name not in (*PASSES, PASSES_OF_STEP)]
    return changes, left


def _moved(table: dict, name: str, value) -> tuple[str, object]:
    """Return the key that means the same, and the value there; MISSING where nothing does."""
    told = names.word("train", name)
    is_off = table.get(STRATEGIES.get(name), "steps") != "steps"
    if is_off or name in OTHER_MEANING or (told and not told.takes(value)):
        return "", MISSING
    key = told.key if told else names.full_name("train", name)
    return key, legal.meant("train", key, value)
