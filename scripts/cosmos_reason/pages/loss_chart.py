"""The course of trainings as lines in a box of 100 x 100, for the report of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from cosmos_reason.base import files, findings, job_folder, metrics_log

LOSSES = ("train/loss", "val/avg_loss")
ACCURACIES = ("val/accuracy",)
CURVE_POINTS = 240
MAX_TICKS = 5  # steps on an axis

Point = tuple[float, float]  # optimizer step, loss or accuracy
Curve = dict[str, list[Point]]  # by key of metrics.jsonl


def read_curve(path: Path) -> Curve:
    """Return the finite numbers of a metrics.jsonl, of a retried job those of all attempts: what a
    later one came to again takes the place of what was before. The last line may still be being
    written."""
    lines = files.read_text(path).splitlines()
    for number, line in enumerate(lines[:-1], 1):
        if "step" not in metrics_log.numbers(line):
            message = "a line is no object with step and losses"
            raise findings.bad_input("EVAL-CURVE-LINE", f"{path}#{number}", message)
    curve: dict[str, dict] = {key: {} for key in LOSSES + ACCURACIES}
    for _, row in metrics_log.course(job_folder.files_of_attempts(path)):
        for key, points in curve.items():
            if key in row and math.isfinite(row[key]):
                points[row["step"]] = row[key]
    return {key: list(points.items()) for key, points in curve.items()}


def not_finite(rows: Sequence[dict], keys: Iterable[str]) -> list[str]:
    """Return a sentence for each key with values that no chart can show: without it, the line
    between their neighbours looks like a training that went well."""
    told = []
    for key in keys:
        steps = [row["step"] for row in rows if key in row and not math.isfinite(row[key])]
        if steps:
            count = sum(key in row for row in rows)
            told.append(
                f"{key} is NaN or infinite in {len(steps):,} of {count:,} values, the first at "
                f"step {steps[0]}; the chart leaves them out"
            )
    return told


@dataclass(frozen=True)
class Scale:
    """Where a point of the curves lies in the box."""

    last_step: float
    highest: float

    def across(self, step: float) -> float:
        return round(100 * step / self.last_step, 2)

    def down(self, value: float) -> float:
        return round(100 - 100 * value / self.highest, 2)


def chart(curves: Sequence[Curve], keys: Sequence[str] = LOSSES) -> dict | None:
    """Return lines of these keys and ticks, y downwards from the highest value, of accuracies from
    1; None without points."""
    lines = []
    for curve in curves:
        for key in keys:
            points = curve[key]
            if points:
                lines.append({"key": key, "points": thinned(points), "end": points[-1][1]})
    if not lines:
        return None
    points = [point for line in lines for point in line["points"]]
    last_step = max(step for step, _ in points)
    highest = max(1.0 if keys == ACCURACIES else 0.0, *(value for _, value in points))
    scale = Scale(last_step or 1.0, highest or 1.0)  # its box is never empty
    for line in lines:
        line["points"] = [(scale.across(step), scale.down(value)) for step, value in line["points"]]
    return {
        "lines": lines,
        "x": [(scale.across(step), f"{step:g}") for step in ticks(scale.last_step)],
        "y": [(scale.down(value), f"{value:g}") for value in ticks(scale.highest)],
        "steps": f"{scale.last_step:g}",
    }


def ticks(highest: float) -> list[float]:
    """Return round values from 0, about four steps of 1, 2 or 5 times a power of ten, the last one
    not above `highest`."""
    power = 10 ** math.floor(math.log10(highest / 4))
    for factor in (1, 2, 5, 10):
        step = factor * power
        if step >= highest / MAX_TICKS:
            break
    count = math.floor(highest / step * (1 + 1e-9))
    return [step * number for number in range(count + 1)]


def thinned(points: list[Point]) -> list[Point]:
    """Return at most CURVE_POINTS points: means of neighbours."""
    size = math.ceil(len(points) / CURVE_POINTS)
    means = []
    for first in range(0, len(points), size):
        neighbours = points[first : first + size]
        step = fmean(step for step, _ in neighbours)
        value = fmean(value for _, value in neighbours)
        means.append((step, value))
    return means
