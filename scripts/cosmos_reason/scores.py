"""checkpoint_metrics.json in the output folder of a train job: what each checkpoint scored, and on what.

Scores compare only where questions and settings are the same, so each row keeps both (`evaluation`); rows written by
hand or by earlier versions have none.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason import storage
from cosmos_reason.findings import Finding, bad_input, info, warning
from cosmos_reason.results import Row

FILE = "checkpoint_metrics.json"
KEPT = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "soft_accuracy", "rows", "failed")
OTHER_QUESTIONS = "other questions"
_TIMESTAMP = re.compile(r"\d{14}")


def read(output_dir: Path) -> dict[str, dict]:
    """Checkpoint's name -> its row. Raises Failure (exit 2)."""
    path = output_dir / FILE
    table = storage.read_json(path) if path.is_file() else {}
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise bad_input("CKPT-METRICS-BAD", path, "got other values, expected {checkpoint: {metric: number}}")
    return table


def numbers(row: dict) -> dict[str, float]:
    """The finite metrics of a row."""
    return {name: v for name, v in row.items() if type(v) in (int, float) and abs(v) < 1e300}  # NaN is not


def evaluation(row: dict | None) -> dict | None:
    """What a row was measured on, when that was recorded."""
    found = row.get("evaluation") if row else None
    parts = {"settings": dict, "results": str, "questions": str}
    whole = isinstance(found, dict) and all(isinstance(found.get(name), type) for name, type in parts.items())
    return found if whole else None


def evaluation_of(rows: Sequence[Row], record: dict, path: Path, **reading: object) -> dict:
    """{results, questions (a digest of them), settings {name: value}} of rows read from `path`, with the
    evaluation.json beside it as `record`; `reading` is how the answers were read."""
    settings = {"task": record.get("task") or "", "annotations": record.get("annotations")} | reading
    for table in ("prompt", "sampling", "vision"):
        values = record.get(table)
        settings |= {f"{table}.{key}": value for key, value in values.items()} if isinstance(values, dict) else {}
    asked = hashlib.sha256()
    for row in sorted(rows, key=lambda row: row.id):
        asked.update(repr((row.id, row.question, row.gt)).encode())
    return {"results": str(path.absolute()), "questions": asked.hexdigest()[:16], "settings": settings}


def differences(one: dict, other: dict) -> list[str]:
    """In words, what two evaluations do not have in common: questions first, then settings as `one` has them."""
    told = [OTHER_QUESTIONS] if one["questions"] != other["questions"] else []
    return told + other_settings(one, other)


def other_settings(one: dict, other: dict) -> list[str]:
    first, second = one["settings"], other["settings"]
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return [f"{name} {_short(first.get(name))} (not {_short(second.get(name))})" for name in names]


def _short(value: object) -> str:
    text = "unset" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:12]}…{text[-27:]}"  # paths differ near their ends


def record(scored: dict, measured: dict, anyway: bool = False) -> tuple[dict | None, list[Finding]]:
    """Note metrics.json's numbers (`scored`) when the evaluated model is a checkpoint of a training output
    (`<output_dir>/<YYYYmmddHHMMSS>/safetensors/<name>`) that is here: {file, checkpoint, recorded, earlier} and what to
    say of it; nothing for another model. A score of more answered rows stays, unless the new one is wanted `anyway`."""
    folder = Path(scored["checkpoint"] or "")
    run, kind = folder.parts[-3:-1] if len(folder.parts) > 3 else ("", "")
    if not (folder.is_dir() and kind in ("safetensors", "merged") and _TIMESTAMP.fullmatch(run)):
        return None, []
    output_dir = folder.parents[2]
    name = str(folder.relative_to(output_dir))
    with open(output_dir / ".checkpoint_metrics.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several evaluations may end at once
        table = read(output_dir)
        earlier = table.get(name)
        row = {key: scored[key] for key in KEPT if scored[key] is not None} | {"evaluation": measured}
        fewer = not anyway and _answered(row) < _answered(earlier or {})
        if not fewer:
            storage.write_json(output_dir / FILE, table | {name: row})
    said = {"file": str(output_dir / FILE), "checkpoint": name, "recorded": not fewer, "earlier": earlier}
    return said, [_told(f"{output_dir / FILE}#{name}", row, earlier, fewer)]


def _answered(row: dict) -> float:
    """Rows that did not fail."""
    known = numbers(row)
    return known.get("rows", 0) - known.get("failed", 0)


def _counted(row: dict) -> str:
    failed = f", of which {row['failed']} failed" if row.get("failed") else ""
    return f"accuracy {row.get('accuracy')} of {row.get('rows')} rows{failed}"


def _again(measured: dict, anyway: bool) -> str:
    """The command that scores as `measured` was."""
    flags = ["--record"] * anyway
    for name, default in (("type", "auto"), ("tolerance", 0)):
        value = measured["settings"].get(name, default)
        flags += [f"--{name}", str(value)] if value != default else []
    return shlex.join(["scripts/score_predictions.py", measured["results"], *flags])


def _told(where: str, row: dict, earlier: dict | None, fewer: bool) -> Finding:
    """A warning where the score was not recorded, or took the place of one that was measured otherwise."""
    new = _counted(row)
    if earlier is None:
        return info("EVAL-SCORE-RECORDED", where, f"recorded {new}")
    old = _counted(earlier)
    if fewer:
        message = f"did not record {new}: it has fewer answered rows than the one there, {old}"
        return warning("EVAL-SCORE-KEPT", where, message, _again(row["evaluation"], anyway=True))
    before = evaluation(earlier)
    other = differences(before, row["evaluation"]) if before else ["settings that were not recorded"]
    grown = row["rows"] > numbers(earlier).get("rows", 0)
    if other[:1] == [OTHER_QUESTIONS] and grown:
        other = other[1:]  # from a try with a `limit` to the whole
    message = f"recorded {new}, which replaces {old}"
    if not other or numbers(earlier) == numbers(row):
        return info("EVAL-SCORE-RECORDED", where, message)
    back = ""
    if before and Path(before["results"]).exists():
        back = _again(before, anyway=_answered(earlier) < _answered(row))
    message += f"; they do not compare: that one had {', '.join(other[:4])}"
    return warning("EVAL-SCORE-REPLACED", where, message, back)
