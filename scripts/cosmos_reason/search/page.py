"""The report of a study: one HTML file that opens offline, its charts as inline SVG."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason import spec, spec_values, storage
from cosmos_reason.search import study as studies
from cosmos_reason.search import summary
from cosmos_reason.search.study import BASE, COMPLETE, DEFAULT, Study

HERE = Path(__file__).parent
TICKS = 4


def write(study: Study) -> Path:
    """Write STUDY/report.html from the trials as they are now."""
    import jinja2
    import tomli_w

    loader = jinja2.FileSystemLoader(HERE)
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    pages.filters |= {"value": spec_values.text, "leaf": lambda key: key.rpartition(".")[2]}
    trials = study.trials()
    found = summary.summary(study)
    ranked = study.ranked(trials)
    page = pages.get_template("page.html.j2").render(
        style=(HERE.parent / "report.css").read_text(encoding="utf-8"),
        name=study.folder.name,
        model=spec.get(study.plan["spec"], "policy.model_name_or_path"),
        plan=study.plan,
        found=found,
        trials=trials,
        best=ranked[0] | found["best"] if ranked else None,
        base_wins=bool(summary.base_wins(study, found)),
        dimensions=study.dimensions,
        history=history(study, trials),
        importance=importance(study, trials),
        lines=coordinates(study, trials),
        slices=slices(study, trials),
        command=summary.build_words(study),
        winner=tomli_w.dumps(studies.winning_spec(study, ranked[0])) if ranked else "",
    )
    path = study.folder / "report.html"
    storage.write_text(path, page)
    return path


class Axis:
    """Places numbers in 0 (lowest) to 100."""

    def __init__(self, numbers: list[float]):
        self.low, self.high = min(numbers), max(numbers)
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def place(self, number: float) -> float:
        return round(100 * (number - self.low) / (self.high - self.low), 2)

    def ticks(self) -> list[tuple[float, str]]:
        steps = [self.low + (self.high - self.low) * n / TICKS for n in range(TICKS + 1)]
        return [(self.place(step), f"{step:.3g}") for step in steps]


def done(trials: list[dict]) -> list[dict]:
    return [trial for trial in trials if trial["state"] == COMPLETE]


def history(study: Study, trials: list[dict]) -> dict | None:
    """Points by trial, the best so far, and the levels of base model and default; None before anything ended."""
    ended = done(trials)
    if not ended:
        return None
    axis, last = Axis([trial["objective"] for trial in ended]), max(1, trials[-1]["number"])
    points, steps = [], []
    for number, trial in enumerate(trials, 1):
        x = round(100 * trial["number"] / last, 2)
        y = 100 - axis.place(trial["objective"]) if trial["state"] == COMPLETE else 100
        points.append({"x": x, "y": y, "trial": trial})
        if ranked := study.ranked(trials[:number]):
            level = 100 - axis.place(ranked[0]["objective"])
            steps += [(x, steps[-1][1] if steps else level), (x, level)]
    levels = [(t["kind"], 100 - axis.place(t["objective"])) for t in ended if t["kind"] in (BASE, DEFAULT)]
    ticks = [(100 - y, label) for y, label in axis.ticks()]
    steps += [(100, steps[-1][1])] if steps else []
    return {"points": points, "steps": steps, "levels": levels, "y": ticks, "last": last}


def importance(study: Study, trials: list[dict]) -> list[tuple[str, float]]:
    """(key, share) by PED-ANOVA, largest first; empty with fewer than four comparable trials."""
    import warnings

    import optuna

    sizes = {trial["number"]: len(study.params(trial["values"])) for trial in trials}
    compared = [trial for trial in done(trials) if sizes[trial["number"]] == max(sizes.values()) > 0]
    if len(compared) < 4 or len({trial["objective"] for trial in compared}) < 2:
        return []
    with warnings.catch_warnings(action="ignore"):
        shares = optuna.importance.get_param_importances(studies.as_optuna(study, compared))
    return sorted(shares.items(), key=lambda pair: -pair[1])


def coordinates(study: Study, trials: list[dict]) -> list[dict]:
    """One line per trial over all keys and the objective; `share` of the objective's range colours it."""
    rows = [trial for trial in done(trials) if len(study.params(trial["values"])) == len(study.dimensions)]
    if len(rows) < 2:
        return []
    axis, lines = Axis([trial["objective"] for trial in rows]), []
    for trial in sorted(rows, key=lambda trial: trial["objective"], reverse=study.sign > 0):
        shares = [d.share(trial["values"][d.key]) for d in study.dimensions] + [axis.place(trial["objective"]) / 100]
        step = 100 / (len(shares) - 1)
        points = [(round(n * step, 2), round(100 - 100 * share, 2)) for n, share in enumerate(shares)]
        good = 1 - shares[-1] if study.sign > 0 else shares[-1]
        lines.append({"number": trial["number"], "points": points, "share": round(good, 3), "ticks": axis.ticks()})
    return lines


def slices(study: Study, trials: list[dict]) -> list[dict]:
    """The objective over each key alone."""
    rows = [trial for trial in done(trials) if trial["kind"] != BASE]
    if not rows:
        return []
    axis, charts = Axis([trial["objective"] for trial in rows]), []
    for dimension in study.dimensions:
        shares = [(trial, dimension.share(trial["values"].get(dimension.key))) for trial in rows]
        points = [
            {"x": round(100 * share, 2), "y": 100 - axis.place(trial["objective"]), "trial": trial}
            for trial, share in shares if share is not None
        ]  # fmt: skip
        charts.append({"key": dimension.key, "points": points, "x": dimension.marks(), "y": axis.ticks()})
    return charts
