"""checkpoint_metrics.json in the output folder of a train job: what each checkpoint scored, and on
what.

Scores compare only where questions and settings are the same, so each row keeps both
(`evaluation`); rows written by hand or by earlier versions have none. evaluation/scores.py writes
them.
"""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import bad_input

FILE = "checkpoint_metrics.json"
OTHER_QUESTIONS = "other questions"
LARGEST = 1e300
# Numbers of a comparison of general questions before and after.
PAIRED = {"paired", "fixed", "broken", "unchanged_right", "unchanged_wrong", "p_value"}
# Metrics of a task, the best evidence first.
TASK_METRICS = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "soft_accuracy")
# Of these, and of accuracy/TYPE, the highest is best as well; who writes rows by hand takes them
# from metrics.json.
HIGHER_IS_BETTER = {*TASK_METRICS, "mean_iou", "macro_f1", "reward", "hit_rate", "ap3d"}


def read(output_dir: Path) -> dict[str, dict]:
    """Return a checkpoint's name -> its row. Raises Failure (exit 2)."""
    path = output_dir / FILE
    table = files.read_json(path) if path.is_file() else {}
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        message = "it is not of the form {checkpoint: {metric: number}}"
        raise bad_input("CKPT-METRICS-BAD", path, message)
    return table


def numbers(row: dict) -> dict[str, float]:
    """Return the finite metrics of a row."""
    return {name: value for name, value in row.items() if is_finite(value)}


def best_end(metric: str) -> str:
    """Return which end of a metric is the better one, "min" or "max"; "" where only who measured it
    knows."""
    if metric.endswith("loss"):
        return "min"
    is_higher = metric in HIGHER_IS_BETTER or metric.partition("/")[0] in TASK_METRICS
    return "max" if is_higher else ""


def is_finite(value: object) -> bool:
    """Return whether it is a number that is neither nan nor infinite."""
    return type(value) in (int, float) and abs(value) < LARGEST


def evaluation(row: dict | None) -> dict | None:
    """Return what a row was measured on, when that was recorded."""
    found = row.get("evaluation") if row else None
    if not isinstance(found, dict):
        return None
    for name, kind in {"settings": dict, "results": str, "questions": str}.items():
        if not isinstance(found.get(name), kind):
            return None
    return found


def guard(row: dict | None) -> dict | None:
    """Return what a row says of general questions (evaluation/guard.py writes it), when it says so
    whole."""
    found = row.get("guard") if row else None
    if not isinstance(found, dict) or not {"rows", "accuracy"} <= numbers(found).keys():
        return None
    pair = found.get("comparison")
    if pair is None:
        return found
    is_whole = isinstance(pair, dict) and numbers(pair).keys() >= PAIRED
    if is_whole and pair["paired"] > 0:
        return found
    return None


def differences(one: dict, other: dict) -> list[str]:
    """Return in words what two evaluations do not have in common: questions first, then settings
    as `one` has them."""
    settings = other_settings(one, other)
    if one["questions"] != other["questions"]:
        return [OTHER_QUESTIONS, *settings]
    return settings


def other_settings(one: dict, other: dict) -> list[str]:
    """Return the settings that differ, each with its value in `one` and in `other`."""
    differing = []
    for name in {**one["settings"], **other["settings"]}:
        value = one["settings"].get(name)
        other_value = other["settings"].get(name)
        if value != other_value:
            differing.append(f"{name} {_short(value)} (not {_short(other_value)})")
    return differing


def _short(value: object) -> str:
    if value is None:
        return "unset"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:12]}…{text[-27:]}"  # paths differ near their ends
