"""Notes the score of an evaluated checkpoint in the training output it belongs to
(checkpoints/checkpoint_metrics.py reads)."""

from __future__ import annotations

import fcntl
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import checkpoint_metrics, run_outputs
from cosmos_reason.evaluation.rows import Row, digest

KEPT = (*checkpoint_metrics.TASK_METRICS, "rows", "failed")
READING_FLAGS = {  # name of a setting and of its flag in score_predictions -> default
    "type": "auto",
    "tolerance": 0,
    "boxes": None,
    "judge": None,
    "judge-model": None,
    "threshold": None,
}
_TIMESTAMP = re.compile(r"\d{14}")


def evaluation_of(rows: Sequence[Row], record: dict, path: Path, **reading: object) -> dict:
    """Return {results, questions (a digest of them), settings {name: value}} of rows read from
    `path`, with the evaluation.json beside it as `record`; `reading` is how the answers were
    read."""
    settings = {"task": record.get("task") or "", "annotations": record.get("annotations")}
    settings |= reading
    for table in ("prompt", "sampling", "vision"):
        values = record.get(table)
        if isinstance(values, dict):
            settings |= {f"{table}.{key}": value for key, value in values.items()}
    return {"results": str(path.absolute()), "questions": digest(rows), "settings": settings}


def record(
    scored: dict, measured: dict, anyway: bool = False, is_elsewhere: bool = False
) -> tuple[dict | None, list[Finding]]:
    """Note metrics.json's numbers (`scored`) when the evaluated model is a checkpoint of a training
    output that is here: {file, checkpoint, recorded, earlier} and what to say of it; nothing for
    another model. A score of more answered rows stays, unless the new one is wanted `anyway`.
    `is_elsewhere`: the results were moved or copied without that training, which stays as it is."""
    output_dir = _output_dir(Path(scored["checkpoint"] or ""))
    if output_dir is None:
        return None, []
    if is_elsewhere:
        message = (
            f"not recorded for {scored['checkpoint']}: these results were moved or copied, "
            "and that training is not beside them"
        )
        return None, [findings.warning("EVAL-SCORE-ELSEWHERE", scored["results"], message)]
    # Relative, so that the table stays true when the output is moved.
    name = str(Path(scored["checkpoint"]).relative_to(output_dir))
    row = {key: scored[key] for key in KEPT if scored[key] is not None}
    row["evaluation"] = measured
    if scored.get("guard"):
        row["guard"] = scored["guard"]
    # A short try must not take the place of the whole evaluation: it would choose the checkpoint.
    with open(output_dir / ".checkpoint_metrics.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several evaluations may end at once
        table = checkpoint_metrics.read(output_dir)
        earlier = table.get(name)
        # Failed rows count as wrong, so that the rows that were answered are what a score rests on.
        is_recorded = anyway or _answered_rows(row) >= _answered_rows(earlier or {})
        if is_recorded:
            table[name] = row
            files.write_json(output_dir / checkpoint_metrics.FILE, table)
    file = output_dir / checkpoint_metrics.FILE
    outcome = {"file": str(file), "checkpoint": name, "recorded": is_recorded, "earlier": earlier}
    where = f"{file}#{name}"
    if earlier is None:
        return outcome, [findings.info("EVAL-SCORE-RECORDED", where, f"recorded {_in_words(row)}")]
    if not is_recorded:
        message = (
            f"did not record {_in_words(row)}: "
            f"it has fewer answered rows than the one there, {_in_words(earlier)}"
        )
        fix = _scoring_again(measured, anyway=True)
        return outcome, [findings.warning("EVAL-SCORE-KEPT", where, message, fix)]
    return outcome, [_replaced(where, row, earlier)]


def _output_dir(checkpoint: Path) -> Path | None:
    """Return the training output of a checkpoint
    `<output_dir>/<YYYYmmddHHMMSS>/safetensors/<name>`."""
    if len(checkpoint.parts) < 4 or not checkpoint.is_dir():
        return None
    is_run = _TIMESTAMP.fullmatch(checkpoint.parents[1].name)
    if not is_run or not run_outputs.is_in_run(checkpoint):
        return None
    return checkpoint.parents[2]


def _answered_rows(row: dict) -> float:
    """Return how many rows did not fail."""
    numbers = checkpoint_metrics.numbers(row)
    return numbers.get("rows", 0) - numbers.get("failed", 0)


def _in_words(row: dict) -> str:
    text = f"accuracy {row.get('accuracy')} of {row.get('rows')} rows"
    if row.get("failed"):
        text += f", of which {row['failed']} failed"
    return text


def _replaced(where: str, row: dict, earlier: dict) -> Finding:
    """Return the finding that a score took the place of another: a warning when that one was
    measured otherwise, with the command that leads back."""
    message = f"recorded {_in_words(row)}, which replaces {_in_words(earlier)}"
    before = checkpoint_metrics.evaluation(earlier)
    differences = ["settings that were not recorded"]
    if before:
        differences = checkpoint_metrics.differences(before, row["evaluation"])
    has_more_rows = row["rows"] > checkpoint_metrics.numbers(earlier).get("rows", 0)
    if differences[:1] == [checkpoint_metrics.OTHER_QUESTIONS] and has_more_rows:
        differences = differences[1:]  # from a try with a `limit` to the whole
    has_same_numbers = checkpoint_metrics.numbers(earlier) == checkpoint_metrics.numbers(row)
    if not differences or has_same_numbers:
        return findings.info("EVAL-SCORE-RECORDED", where, message)
    message += f"; they do not compare: that one had {', '.join(differences[:4])}"
    back = Fix()
    if before and Path(before["results"]).exists():
        had_fewer = _answered_rows(earlier) < _answered_rows(row)
        back = _scoring_again(before, anyway=had_fewer)
    return findings.warning("EVAL-SCORE-REPLACED", where, message, back)


def _scoring_again(measured: dict, anyway: bool) -> Fix:
    """Return the command that scores as `measured` was."""
    flags = {}
    if anyway:
        flags["--record"] = True
    for name, default in READING_FLAGS.items():
        value = measured["settings"].get(name, default)
        if value != default:
            flags[f"--{name}"] = value
    command = shlex.join(["scripts/score_predictions.py", measured["results"]])
    return Fix(command=command, flags=flags)
