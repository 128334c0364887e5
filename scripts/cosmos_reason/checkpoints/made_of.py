"""Which weights are meant, wherever their folder lies and however it is cut into shards: a digest
of them, and cosmos_weights.json beside those of an adapter (the base that it was trained on) or of
a merged model (the adapter and the base that it was made of).

Paths prove nothing: a folder is converted anew or moved, and models of one architecture take one
another's adapters and numbers without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import safetensors_files, tensor_numbers
from cosmos_reason.checkpoints.safetensors_files import Tensor
from cosmos_reason.remote import model_names

FILE = "cosmos_weights.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def digest(folder: Path) -> str | None:
    """Return the digest of the weights in a model or adapter folder; None where they cannot be
    read."""
    with suppress(Failure, OSError):
        if (folder / ADAPTER_WEIGHTS).is_file():
            return digest_of(safetensors_files.read_header(folder / ADAPTER_WEIGHTS))
        tensors, problems = safetensors_files.read_folder(folder)
        return None if problems else digest_of(tensors)
    return None


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return a SHA-256 over names, dtypes, shapes, and 4 kB at 5 places of each tensor: whole
    weights would be read for minutes, and a training changes all of a tensor."""
    told = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        told.update(repr((name, tensor.dtype, tensor.shape)).encode())
        for sample in tensor_numbers.samples(tensor):
            told.update(sample)
    return f"samples:{told.hexdigest()}"


def note_base(folder: Path, base: Path) -> None:
    """Write beside a new adapter which weights it was trained on, where they can be read."""
    if trained_on := digest(base):
        files.write_json(folder / FILE, {"trained_on": trained_on})


def note_merge(folder: Path, adapter: Path, base: Path) -> None:
    """Write beside a merged model what it was made of."""
    made = {"weights": digest(folder), "adapter": digest(adapter), "base": digest(base)}
    files.write_json(folder / FILE, made)


def trained_on(adapter: Path) -> str | None:
    """Return the digest of the base that an adapter was trained on, where that was noted."""
    told = model_names.read_table(adapter / FILE).get("trained_on")
    return told if isinstance(told, str) else None


def merged_from(folder: Path) -> dict | None:
    """Return {adapter, base}: the digests of what a merged model was made of. None where it was not
    noted, or beside other weights."""
    made = model_names.read_table(folder / FILE)
    if not made.get("adapter") or made.get("weights") != digest(folder):
        return None
    return {"adapter": made["adapter"], "base": made.get("base")}
