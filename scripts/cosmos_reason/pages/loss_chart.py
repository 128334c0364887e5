"""The loss of trainings as lines in a box of 100 x 100, for the report of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from cosmos_reason.base import files, findings, metrics_log

LOSSES = ("train/loss", "val/avg_loss")
CURVE_POINTS = 240
MAX_TICKS = 5  # steps on an axis

Point = tuple[float, float]  # optimizer step, loss
Curve = dict[str, list[Point]]  # by key of metrics.jsonl


def read_curve(path: Path) -> Curve:
    """The finite losses of a metrics.jsonl; its last line may still be being written."""
    curve = {key: [] for key in LOSSES}
    lines = files.read_text(path).splitlines()
    for number, line in enumerate(lines, 1):
        row = metrics_log.numbers(line)
        if "step" not in row:
            if number == len(lines):
                break
            message = "got a line without a step, expected an object with step and losses"
            raise findings.bad_input("EVAL-CURVE-LINE", f"{path}#{number}", message)
        for key in LOSSES:
            if key in row and math.isfinite(row[key]):
                curve[key].append((row["step"], row[key]))
    return curve


@dataclass(frozen=True)
class Scale:
    """Where a point of the curves lies in the box."""

    last_step: float
    highest_loss: float

    def across(self, step: float) -> float:
        return round(100 * step / self.last_step, 2)

    def down(self, loss: float) -> float:
        return round(100 - 100 * loss / self.highest_loss, 2)


def chart(curves: Sequence[Curve]) -> dict | None:
    """Lines and ticks, y downwards from the highest loss; None without points."""
    lines = []
    for curve in curves:
        for key, points in curve.items():
            if points:
                lines.append({"key": key, "points": thinned(points), "end": points[-1][1]})
    if not lines:
        return None
    scale = _scale([point for line in lines for point in line["points"]])
    for line in lines:
        line["points"] = [(scale.across(step), scale.down(loss)) for step, loss in line["points"]]
    return {
        "lines": lines,
        "x": [(scale.across(step), f"{step:g}") for step in ticks(scale.last_step)],
        "y": [(scale.down(loss), f"{loss:g}") for loss in ticks(scale.highest_loss)],
        "steps": f"{scale.last_step:g}",
    }


def _scale(points: list[Point]) -> Scale:
    """One that starts at 0 and holds all points; a box is never empty."""
    last_step = max(step for step, _ in points)
    highest_loss = max(loss for _, loss in points)
    return Scale(last_step or 1.0, highest_loss or 1.0)


def ticks(highest: float) -> list[float]:
    """Round values from 0, about four steps of 1, 2 or 5 times a power of ten, the last one not
    above `highest`."""
    power = 10 ** math.floor(math.log10(highest / 4))
    for factor in (1, 2, 5, 10):
        step = factor * power
        if step >= highest / MAX_TICKS:
            break
    count = math.floor(highest / step * (1 + 1e-9))
    return [step * number for number in range(count + 1)]


def thinned(points: list[Point]) -> list[Point]:
    """At most CURVE_POINTS points: means of neighbours."""
    size = math.ceil(len(points) / CURVE_POINTS)
    means = []
    for first in range(0, len(points), size):
        neighbours = points[first : first + size]
        step = fmean(step for step, _ in neighbours)
        loss = fmean(loss for _, loss in neighbours)
        means.append((step, loss))
    return means
