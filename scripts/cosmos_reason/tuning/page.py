"""A study as a page that opens offline: what each trial reached, what mattered, the winner."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.fix import value_text
from cosmos_reason.pages.render import render
from cosmos_reason.spec import document
from cosmos_reason.tuning import suggest, summary
from cosmos_reason.tuning.study import COMPLETE, GUARD_ACCURACY, SEARCH, Study, winning_spec

INTERVALS = 4  # between the marks of an axis
DOUBTS = ("TUNE-NOISE", "TUNE-EVAL-VIEW", "EVAL-ROW-FAILED")  # told beside the best
LEAST_COMPARED = 4  # trials that tell what mattered


def write(study: Study, trials: list[dict], every: float | None = None) -> Path:
    """Write STUDY/report.html from the trials as they are now; with `every` a browser reads it
    again after so many seconds."""
    import tomli_w

    found = summary.summary(study, trials)
    ranked = study.ranked(trials)
    # The untouched model is often far below: with it, the trials would lie on one line.
    axis = Axis.over([trial["objective"] for trial in ranked])
    best = None
    winner = ""
    if ranked:
        best = ranked[0] | found["best"]
        winner = tomli_w.dumps(winning_spec(study, ranked[0]))
    notes = summary.verdict(study, found)
    page = render(
        "study.html.j2",
        value_text=value_text,
        name=study.folder.name,
        every=every and round(every),
        model=document.get(study.plan["spec"], "policy.model_name_or_path"),
        plan=study.plan,
        found=found,
        trials=trials,
        best=best,
        base_wins=summary.base_leads(study, found),
        standing=summary.standing(study, found),
        doubts=[note.message for note in notes if note.id in DOUBTS],
        guard=next((note for note in notes if note.id in ("EVAL-GUARD", "EVAL-FORGOT")), None),
        has_guard=any(GUARD_ACCURACY in trial["metrics"] for trial in trials),
        dimensions=study.dimensions,
        marks=axis.marks(),
        history=history(study, trials),
        importance=importance(study, ranked),
        lines=coordinates(study, ranked, axis),
        winner=winner,
    )
    path = study.folder / "report.html"
    files.write_text(path, page)
    return path


@dataclass(frozen=True)
class Axis:
    """A vertical axis. Places are percent from the top of a chart."""

    low: float
    high: float

    @classmethod
    def over(cls, numbers: list[float]) -> Axis:
        low = min(numbers, default=0.0)
        high = max(numbers, default=0.0)
        if low == high:
            return cls(low - 0.5, high + 0.5)
        return cls(low, high)

    def place(self, number: float) -> float:
        return round(100 * (self.high - number) / (self.high - self.low), 2)

    def marks(self) -> list[tuple[float, str]]:
        """Return (place, label) of each mark."""
        marks = []
        for step in range(INTERVALS + 1):
            number = self.low + (self.high - self.low) * step / INTERVALS
            marks.append((self.place(number), f"{number:.3g}"))
        return marks


def history(study: Study, trials: list[dict]) -> dict | None:
    """Return (x, y, trial) of each, the best so far, and the levels of base model and default; None
    before one has ended."""
    done = [trial["objective"] for trial in trials if trial["state"] == COMPLETE]
    if not done:
        return None
    axis = Axis.over(done)
    last = max(1, trials[-1]["number"])
    points, steps, levels = [], [], []
    for count, trial in enumerate(trials, 1):
        x = round(100 * trial["number"] / last, 2)
        y = 100
        if trial["state"] == COMPLETE:
            y = axis.place(trial["objective"])
            if trial["kind"] != SEARCH:
                levels.append((trial["kind"], y))
        points.append((x, y, trial))
        ranked = study.ranked(trials[:count])
        if ranked:
            level = axis.place(ranked[0]["objective"])
            before = steps[-1][1] if steps else level
            steps += [(x, before), (x, level)]
    if steps:
        steps.append((100, steps[-1][1]))
    return {
        "points": points,
        "steps": steps,
        "levels": levels,
        "last": last,
        "marks": axis.marks(),
    }


def importance(study: Study, ranked: list[dict]) -> list[tuple[str, float]]:
    """Return (key, share) by PED-ANOVA, largest first; empty with too few comparable trials."""
    import optuna

    # Trials that lack a key (it was off, or out of its range) do not compare with the others.
    compared = []
    sizes = [len(study.params(trial["values"])) for trial in ranked]
    for trial, size in zip(ranked, sizes, strict=True):
        if size == max(sizes) and size > 0:
            compared.append(trial)
    objectives = {trial["objective"] for trial in compared}
    if len(compared) < LEAST_COMPARED or len(objectives) < 2:
        return []
    with warnings.catch_warnings(action="ignore"):
        optimizer = suggest.as_optuna(study, compared)
        shares = optuna.importance.get_param_importances(optimizer)
    return sorted(shares.items(), key=lambda pair: pair[1], reverse=True)


def coordinates(study: Study, ranked: list[dict], axis: Axis) -> list[dict]:
    """Return one line per trial over all keys and the objective, the best ones on top; `good`, 0 to
    1, colours it."""
    dimensions = study.dimensions
    lines = []
    for trial in reversed(ranked):
        if len(study.params(trial["values"])) < len(dimensions):
            continue
        points = []
        for column, dimension in enumerate(dimensions):
            share = dimension.share(trial["values"][dimension.key])
            points.append((round(100 * column / len(dimensions), 2), round(100 - 100 * share, 2)))
        place = axis.place(trial["objective"])
        points.append((100.0, place))
        good = place / 100 if study.minimizes else 1 - place / 100
        lines.append({"number": trial["number"], "points": points, "good": round(good, 3)})
    return lines if len(lines) > 1 else []
