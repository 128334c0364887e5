"""Training configs of LLaMA-Factory and ms-swift: one flat table, whose names mean other keys here.
None is taken over name by name: what one leaves out (LoRA, a batch) would be trained otherwise."""

from __future__ import annotations

from dataclasses import replace

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec.keys import RATE

# Names that only those two have; a config has several.
SIGNS = {
    *("stage", "finetuning_type", "template", "cutoff_len", "lora_target", "dataset_dir"),
    *("train_type", "tuner_type", "sft_type", "freeze_vit", "split_dataset_ratio"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"),
}
FEWEST_SIGNS = 3
BUILD = "scripts/build_spec.py train --train-root DIR -o spec.toml"
KEYS = {
    "learning_rate": RATE,
    "num_train_epochs": "train.epoch",
    "max_steps": "train.max_num_steps",
    "weight_decay": "train.optm_weight_decay",
    "warmup_ratio": "train.optm_warmup_steps",
    "seed": "train.seed",
    "save_total_limit": "train.ckpt.max_keep",
    "cutoff_len": "policy.model_max_length",
    "max_length": "policy.model_max_length",
    "video_fps": "custom.vision.fps",
    "video_maxlen": "custom.vision.max_frames",
    "video_max_pixels": "custom.vision.max_pixels",
}
LORA_KEYS = {
    "lora_rank": "policy.lora.r",
    "lora_alpha": "policy.lora.lora_alpha",
    "lora_dropout": "policy.lora.lora_dropout",
}
TUNING = ("finetuning_type", "train_type", "tuner_type", "sft_type")
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def is_one(table: dict) -> bool:
    """Whether a spec is such a config."""
    is_flat = not any(isinstance(value, dict) for value in table.values())
    return is_flat and len(SIGNS & table.keys()) >= FEWEST_SIGNS


def refusal(where: str, table: dict, engine: str = "", given: str = "") -> Finding:
    """`given`: how build_spec's flag names the config, which makes way for what says the same; else
    the fix is a command of its own, for the `engine`."""
    message = "got a config of LLaMA-Factory or ms-swift, expected a spec; its batch is one of "
    message += "each GPU, and its data are named with --train-root or --set train_annotations"
    fix = _in_our_words(table)
    if given:
        fix = replace(fix, command=f"replace {given} with")
    else:
        fix = replace(fix, command=f"{BUILD} --engine {engine}" if engine else BUILD)
    return findings.error("SPEC-ACTION", where, message, fix)


def _in_our_words(table: dict) -> Fix:
    flags = {"--tuning": _tuning(table)}
    model = table.get("model_name_or_path") or table.get("model")
    if model:
        flags["--model"] = model
    sizes = [table[name] for name in BATCH if isinstance(table.get(name), int)]
    if len(sizes) == len(BATCH):
        flags["--global-batch"] = sizes[0] * sizes[1]
    return Fix(flags=flags, changes=_changes(table))


def _tuning(table: dict) -> str:
    """Both train adapters where nothing is said."""
    said = [table[name] for name in TUNING if name in table]
    return "full" if said[:1] == ["full"] else "lora"


def _changes(table: dict) -> dict[str, object]:
    known = KEYS if _tuning(table) == "full" else KEYS | LORA_KEYS
    changes = {ours: table[name] for name, ours in known.items() if name in table}
    if isinstance(changes.get("train.epoch"), float):
        changes["train.epoch"] = max(1, round(changes["train.epoch"]))
    return changes
