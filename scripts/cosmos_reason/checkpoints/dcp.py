"""Checkpoints of cosmos-framework, which it saves in torch's distributed format and alone reads.

A run leaves RUN/config.yaml and RUN/checkpoints/iter_N/{model, optim, scheduler, trainer}, where
model holds .metadata and *.distcp; its own script exports them to safetensors.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from cosmos_reason.base.findings import Failure, bad_input
from cosmos_reason.base.fix import Fix

NEWEST = "latest_checkpoint.txt"
EXPORT = "python -m cosmos_framework.scripts.export_model"


def find(folder: Path) -> Path | None:
    """Return the checkpoint (RUN/checkpoints/iter_N) that a folder is, is part of, or has as its
    newest; None for anything else, and for what may not be read, which others tell."""
    try:
        if any(folder.glob("*.distcp")):
            return folder.parent if folder.name == "model" else folder
        if any((folder / "model").glob("*.distcp")):
            return folder
        for home in (folder, folder / "checkpoints"):
            named = home / NEWEST
            newest = home / named.read_text(encoding="utf-8").strip() if named.is_file() else None
            found = [path for path in home.glob("iter_*") if any((path / "model").glob("*.distcp"))]
            if newest in found:
                return newest
            if found:
                return max(found, key=lambda path: path.name)
        return None
    except OSError:
        return None


def refuse(folder: Path, flag: str) -> None:
    """Raise Failure (exit 2), with the command that exports it, for a folder of that kind."""
    checkpoint = find(folder)
    if checkpoint is None:
        return
    raise refusal(folder, checkpoint, flag)


def refusal(folder: Path, checkpoint: Path, flag: str) -> Failure:
    message = (
        f"it is a checkpoint of cosmos-framework ({checkpoint.name}, DCP shards), which it alone "
        f"reads; export it there, then give the result as {flag}"
    )
    config = checkpoint.parent.parent / "config.yaml"
    words = [*EXPORT.split(), "--checkpoint-path", str(checkpoint)]
    words += ["--config-file", str(config) if config.is_file() else "RUN/config.yaml"]
    fix = Fix(command=shlex.join([*words, "-o", f"{checkpoint}-safetensors"]))
    return bad_input("CKPT-DCP", folder, message, fix)
