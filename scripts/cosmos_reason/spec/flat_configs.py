"""Training configs of LLaMA-Factory and ms-swift: one flat table, whose names mean other keys here.
None is taken over name by name: what one leaves out (LoRA, a batch) would be trained otherwise."""

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

# Names that only those two have; a config has several.
SIGNS = {
    *("stage", "finetuning_type", "template", "cutoff_len", "lora_target", "dataset_dir"),
    *("train_type", "tuner_type", "sft_type", "freeze_vit", "split_dataset_ratio"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"),
}
FEWEST_SIGNS = 3
BUILD = "scripts/build_spec.py train --train-root DIR -o spec.toml"
TUNING = ("finetuning_type", "train_type", "tuner_type", "sft_type")
MODEL = ("model_name_or_path", "model")
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
SILENT = {"stage": "sft", "do_train": True}  # what every training here is


def is_one(table: dict) -> bool:
    """Whether a spec is such a config."""
    is_flat = not any(isinstance(value, dict) for value in table.values())
    return is_flat and len(SIGNS & table.keys()) >= FEWEST_SIGNS


def refusal(
    where: str,
    table: dict,
    engine: str = "",
    given: str = "",
    said: Mapping[str, str] = MappingProxyType({}),
) -> Finding:
    """`given`: how build_spec's flag names the config, which makes way for what says the same; else
    the fix is a command of its own, for the `engine`. `said`: flags and keys of the command line,
    which win over the config. What nothing here says is listed by name."""
    message = "got a config of LLaMA-Factory or ms-swift, expected a spec; its batch is one of "
    message += "each GPU, and its data are named with --train-root or --set train_annotations"
    other = table.get("rlhf_type") or table.get("stage", "sft")
    if other != "sft":
        message += f"; it is for {other}, and train specs are for sft"
        return findings.error("SPEC-ACTION", where, message)
    fix, left = _in_our_words(table, said)
    if left:
        message += f"; the fix leaves out {', '.join(left)}"
    if given:
        fix = replace(fix, command=f"replace {given} with")
    else:
        fix = replace(fix, command=f"{BUILD} --engine {engine}" if engine else BUILD)
    return findings.error("SPEC-ACTION", where, message, fix, left_out=left)


def _in_our_words(table: dict, said: Mapping[str, str]) -> tuple[Fix, list[str]]:
    """The flags and changes that say the same, but for what is `said`, and the names that have
    none."""
    flags = {"--tuning": "full" if _is_full(table) else "lora"}
    for name in MODEL:
        flags |= {"--model": table[name]} if table.get(name) else {}
    changes, left = _changes(table, lora="full" not in said.get("--tuning", flags["--tuning"]))
    if "--global-batch" in said:
        changes.pop(BATCH, None)
    flags = {flag: value for flag, value in flags.items() if flag not in said}
    changes = {key: value for key, value in changes.items() if key not in said}
    return Fix(changes=changes, flags=flags), left


def _is_full(table: dict) -> bool:
    """Both train adapters where nothing is said."""
    return [table[name] for name in TUNING if name in table][:1] == ["full"]


def _changes(table: dict, lora: bool) -> tuple[dict[str, object], list[str]]:
    """(the keys that mean the same, with their values; the names that mean none). `lora`: whether
    adapters are trained."""
    changes = {}
    left = []
    for name, value in table.items():
        key, meant = _moved(name, value)
        if meant is not MISSING and (lora or not key.startswith("policy.lora.")):
            changes[key] = meant
        elif name not in (*TUNING, *MODEL) and SILENT.get(name) != value:
            left.append(name)
    if _batch(table):
        changes[BATCH] = _batch(table)
        left = [name for name in left if name not in SIZES]
    return changes, left


def _batch(table: dict) -> int:
    """The records of a step on each GPU; 0 where the config does not say both its factors."""
    sizes = [table.get(name) for name in SIZES]
    is_told = all(type(size) is int and size > 0 for size in sizes)
    return math.prod(sizes) if is_told else 0


def _moved(name: str, value) -> tuple[str, object]:
    """The key that means the same, and the value there; MISSING where nothing does."""
    told = names.word("train", name)
    if name in MODEL or (told and not told.takes(value)):
        return "", MISSING
    key = told.key if told else names.full_name("train", name)
    return key, legal.meant("train", key, value)
