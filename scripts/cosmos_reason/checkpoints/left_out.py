"""left_out.json in the folder of a run: the records that its training left out, because their media
could not be read."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.checkpoints import safetensors_files

FILE = "left_out.json"
TRAINING, VALIDATION = "training", "validation"

# Data by name: {"records": of all, "left_out": [{record, id, check, where, message}]}.
Table = dict[str, dict]


def write(run_dir: Path, table: Table) -> None:
    """Replace what stands there; without records that were left out there is no file."""
    path = run_dir / FILE
    if not any(part["left_out"] for part in table.values()):
        path.unlink(missing_ok=True)
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    files.write_json(path, table)


def counts(run_dir: Path) -> dict[str, tuple[int, int]]:
    """Return data by name -> (records that were left out, of all)."""
    path = run_dir / FILE
    if not path.is_file():
        return {}
    table = safetensors_files.read_object(path)
    return {name: (len(part["left_out"]), part["records"]) for name, part in table.items()}
