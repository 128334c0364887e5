"""What a study has found, as numbers, as text and as a page that opens offline, and what the rest of it will cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

from cosmos_reason import jobs, rules, spec, spec_values, storage
from cosmos_reason.findings import Finding, warning
from cosmos_reason.search import study as studies
from cosmos_reason.search.study import BASE, COMPLETE, DEFAULT, FAILED, RUNNING, SEARCH, Study

HERE = Path(__file__).parent
TICKS = 4  # between the marks of an axis


def summary(study: Study) -> dict:
    """Counts, baseline, the spec as it was given, the best trial, and why the study ended (empty while it goes on; a
    study older than that note ended when nothing runs)."""
    trials = study.trials()
    ranked = study.ranked(trials)
    first = {kind: next((trial for trial in trials if trial["kind"] == kind), None) for kind in (BASE, DEFAULT)}
    best = ranked[0] if ranked else None
    made = best and best["checkpoint"] and study.folder / best["checkpoint"]
    checkpoint = str(made) if made and made.exists() else None  # it may have been removed by hand
    states, trained = Counter(trial["state"] for trial in trials), sum(trial["kind"] != BASE for trial in trials)
    return {
        "study": str(study.folder),
        "objective": study.plan["objective"],
        "states": dict(states),
        "left_behind": studies.left_behind(study, trials),
        "ended": "" if states[RUNNING] or not trials else study.plan.get("ended", f"{trained} trainings"),
        "trained": trained,
        "compared": len(ranked),
        "baseline": first[BASE] and first[BASE]["objective"],
        "intervals": [trial and trial["metrics"].get("interval") for trial in (first[BASE], best)],
        "default": first[DEFAULT] and first[DEFAULT]["objective"],
        "best": best and {name: best[name] for name in ("number", "objective", "values")} | {"checkpoint": checkpoint},
        "repairs": sum(len(trial["repairs"]) for trial in trials),
        "failed": [{"number": t["number"], "reason": t["reason"]} for t in trials if t["state"] == FAILED][:5],
    }


def text(study: Study, found: dict) -> str:
    states = ", ".join(f"{count} {state}" for state, count in sorted(found["states"].items())) or "no trial yet"
    lines = [f"{study.folder}: {found['objective']}; {states}"]
    lines += [f"  {name}: {found[name]:.4g}" for name in ("baseline", "default") if found[name] is not None]
    if best := found["best"]:
        values = ", ".join(f"{key}={spec_values.text(value)}" for key, value in best["values"].items())
        lines.append(f"  best: {best['objective']:.4g} (trial {best['number']}: {values})")
    lines += [f"  trial {row['number']} failed: {row['reason'][:200]}" for row in found["failed"]]
    lines.append(f"  {standing(study, found)}")
    return "\n".join(lines)


def base_leads(study: Study, found: dict) -> bool:
    base, best = found["baseline"], found["best"]
    return base is not None and best is not None and study.sign * (best["objective"] - base) >= 0


def standing(study: Study, found: dict) -> str:
    """Why the study ended, or how it stands while it goes on."""
    if found["ended"]:
        return f"ended: {found['ended']}"
    best = found["best"] and f"trial {found['best']['number']} is the best"
    lead = "none is better" if base_leads(study, found) else best or "no training has ended well"
    left = found["left_behind"]
    running = found["states"].get(RUNNING, 0) - left
    now = [f"{running} running"] if running else []
    now += [f"{left} left by a run that ended: `run` continues it"] if left else []
    return f"so far {lead}; " + (", ".join(now) or "none running: `run` continues it")


def verdict(study: Study, found: dict) -> list[Finding]:
    """A warning when no training is better than the model as it came, or not surely so; none while the study goes on.

    Intervals are those of accuracy, and say nothing about other objectives."""
    if not found["ended"] or found["baseline"] is None or not found["best"]:
        return []
    base, best, (before, after) = found["baseline"], found["best"]["objective"], found["intervals"]
    if base_leads(study, found):
        message = f"no training is better than the untouched model ({base:.4g}); the best reached {best:.4g}"
        fix = "other --range values or more data, or keep the model"
        return [warning("TUNE-BASE-WINS", study.folder, message, fix)]
    if found["objective"] != "accuracy" or not before or not after or after[0] > before[1]:
        return []
    gain = f"the gain over the untouched model ({base:.4g} to {best:.4g})"
    message = f"{gain} may be noise: the 95 % intervals overlap"
    return [warning("TUNE-NOISE", study.folder, message, "judge both on more questions")]


def plan_text(plan: dict) -> str:
    """What `plan` found, for people."""
    lines = [f"{plan['left']} trainings to go, {plan['parallel']} at a time, judged by {plan['objective']}"]
    lines[0] += f", ending at {plan['target']}" if plan["target"] is not None else ""
    for row in plan["space"]:
        given, then = (spec_values.text(row[name]) for name in ("default", "next"))
        lines.append(f"  {row['key']}: {row['range']} (as given {given}" + (f", next {then})" if plan["left"] else ")"))
    lines += [f"  repaired: {repair['message']} ({repair['fix']})" for repair in plan["repairs"]]
    cost = plan["estimate"]
    if plan["left"]:
        known = cost["seconds"] is not None
        time = f"about {cost['seconds'] / 60:.0f} minutes, {cost['gpu_hours']} GPU-hours" if known else "not known"
        lines.append(f"time: {time} ({cost['source']})")
    return "\n".join(lines)


def estimate(study: Study, left: int, groups: list) -> dict:
    """{source, seconds, gpu_hours} of what is left, from this study's own trials; no numbers before one has ended."""
    took = [jobs.seconds(t["ended_at"]) - jobs.seconds(t["started_at"]) for t in study.trials()
            if t["state"] == COMPLETE and t["kind"] != BASE]  # fmt: skip
    if not took:
        return {"source": "the first trial will tell", "seconds": None, "gpu_hours": None}
    one, engine = median(took), study.plan["engine"]
    gpus = rules.Case("train", engine, study.plan["spec"]).needed_gpus
    gpus = len(groups[0]) if groups[0] is not None else gpus
    return {
        "source": f"{len(took)} trials of this study",
        "seconds": round(one * -(-left // len(groups))),
        "gpu_hours": round(one * left * gpus / 3600, 2),
    }


# -- the page ----------------------------------------------------------------------------------------------------------


def write_page(study: Study) -> Path:
    """Write STUDY/report.html from the trials as they are now."""
    import jinja2
    import tomli_w

    loader = jinja2.FileSystemLoader(HERE)
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    pages.filters |= {"value": spec_values.text, "leaf": lambda key: key.rpartition(".")[2]}
    trials, found = study.trials(), summary(study)
    ranked = study.ranked(trials)
    place, marks = scale([trial["objective"] for trial in ranked])  # without the untouched model, often far below
    page = pages.get_template("page.html.j2").render(
        style=(HERE.parent / "report.css").read_text(encoding="utf-8"),
        name=study.folder.name,
        model=spec.get(study.plan["spec"], "policy.model_name_or_path"),
        plan=study.plan,
        found=found,
        trials=trials,
        best=ranked[0] | found["best"] if ranked else None,
        base_wins=base_leads(study, found),
        standing=standing(study, found),
        noise=[told.message for told in verdict(study, found) if told.id == "TUNE-NOISE"],
        dimensions=study.dimensions,
        marks=marks,
        history=history(study, trials),
        importance=importance(study, ranked),
        lines=coordinates(study, ranked, place),
        slices=slices(study, ranked, place),
        winner=tomli_w.dumps(studies.winning_spec(study, ranked[0])) if ranked else "",
    )
    path = study.folder / "report.html"
    storage.write_text(path, page)
    return path


def scale(numbers: list[float]) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """(what gives the percent from the top of a chart at which a number lies, the marks of the axis)."""
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5

    def place(number: float) -> float:
        return round(100 * (high - number) / (high - low), 2)

    steps = [low + (high - low) * n / TICKS for n in range(TICKS + 1)]
    return place, [(place(step), f"{step:.3g}") for step in steps]


def history(study: Study, trials: list[dict]) -> dict | None:
    """(x, y, trial) of each, the best so far, and the levels of base model and default; None before one has ended."""
    done = [trial["objective"] for trial in trials if trial["state"] == COMPLETE]
    if not done:
        return None
    place, marks = scale(done)
    last, points, steps = max(1, trials[-1]["number"]), [], []
    for count, trial in enumerate(trials, 1):
        x = round(100 * trial["number"] / last, 2)
        points.append((x, place(trial["objective"]) if trial["state"] == COMPLETE else 100, trial))
        if ranked := study.ranked(trials[:count]):
            level = place(ranked[0]["objective"])
            steps += [(x, steps[-1][1] if steps else level), (x, level)]
    steps += [(100, y) for _, y in steps[-1:]]
    levels = [(trial["kind"], y) for _, y, trial in points if trial["kind"] != SEARCH and trial["state"] == COMPLETE]
    return {"points": points, "steps": steps, "levels": levels, "last": last, "marks": marks}


def importance(study: Study, ranked: list[dict]) -> list[tuple[str, float]]:
    """(key, share) by PED-ANOVA, largest first; empty with fewer than four comparable trials."""
    import warnings

    import optuna

    sizes = [len(study.params(trial["values"])) for trial in ranked]
    compared = [trial for trial, size in zip(ranked, sizes, strict=True) if size == max(sizes) > 0]
    if len(compared) < 4 or len({trial["objective"] for trial in compared}) < 2:
        return []
    with warnings.catch_warnings(action="ignore"):
        shares = optuna.importance.get_param_importances(studies.as_optuna(study, compared))
    return sorted(shares.items(), key=lambda pair: -pair[1])


def coordinates(study: Study, ranked: list[dict], place) -> list[dict]:
    """One line per trial over all keys and the objective, the best ones on top; `good`, 0 to 1, colours it."""
    rows = [trial for trial in ranked if len(study.params(trial["values"])) == len(study.dimensions)]
    lines = []
    for trial in reversed(rows):
        y = place(trial["objective"])
        heights = [100 - 100 * d.share(trial["values"][d.key]) for d in study.dimensions] + [y]
        points = [(round(100 * n / len(study.dimensions), 2), round(height, 2)) for n, height in enumerate(heights)]
        good = y / 100 if study.sign > 0 else 1 - y / 100
        lines.append({"number": trial["number"], "points": points, "good": round(good, 3)})
    return lines if len(lines) > 1 else []


def slices(study: Study, ranked: list[dict], place) -> list[tuple]:
    """(dimension, (x, y, trial) of each training): the objective over each key alone."""
    charts = []
    for dimension in study.dimensions:
        shares = [(dimension.share(trial["values"].get(dimension.key)), trial) for trial in ranked]
        points = [(round(100 * x, 2), place(trial["objective"]), trial) for x, trial in shares if x is not None]
        charts += [(dimension, points)] if points else []
    return charts
