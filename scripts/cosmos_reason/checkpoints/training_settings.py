"""cosmos_training.json beside the weights of a model that was made from a trained one: the frames,
pixels and system prompt of that training, which nothing around the folder tells any more."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.checkpoints import safetensors_files

FILE = "cosmos_training.json"


def write(folder: Path, trained: dict) -> None:
    """Write the part of a training spec that says how to ask its model."""
    custom = trained.get("custom") or {}
    policy = (trained.get("train") or {}).get("train_policy") or {}
    prompt = policy.get("system_prompt") or custom.get("system_prompt") or ""
    kept = {
        "custom": {"vision": custom.get("vision") or {}},
        "train": {"train_policy": {"system_prompt": prompt}},
    }
    files.write_json(folder / FILE, kept)


def read(folder: Path) -> dict | None:
    """Return a training spec of these keys, None where there is no such file. Raises Failure."""
    path = folder / FILE
    return safetensors_files.read_object(path) if path.is_file() else None
