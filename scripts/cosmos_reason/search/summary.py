"""What a study has found, and what the rest of it will cost."""

from __future__ import annotations

import shlex
from collections import Counter
from statistics import median

from cosmos_reason import jobs, metrics, results, rules, spec_values
from cosmos_reason.findings import Finding, warning
from cosmos_reason.search.study import BASE, COMPLETE, DEFAULT, Study


def summary(study: Study) -> dict:
    """Counts, baseline, packaged default and best trial, with a paired test between the last two."""
    trials = study.trials()
    ranked = study.ranked(trials)
    first = {kind: next((trial for trial in trials if trial["kind"] == kind), None) for kind in (BASE, DEFAULT)}
    best = ranked[0] if ranked else None
    return {
        "study": str(study.folder),
        "objective": study.plan["objective"],
        "states": dict(Counter(trial["state"] for trial in trials)),
        "trained": sum(trial["kind"] != BASE for trial in trials),
        "compared": len(ranked),
        "baseline": first[BASE] and first[BASE]["objective"],
        "default": first[DEFAULT] and first[DEFAULT]["objective"],
        "best": best and brief(study, best),
        "against_default": paired(study, first[DEFAULT], best) if best and best is not first[DEFAULT] else None,
        "repairs": sum(len(trial["repairs"]) for trial in trials),
        "failed": [{"number": t["number"], "reason": t["reason"]} for t in trials if t["state"] == "FAILED"][:5],
    }


def brief(study: Study, trial: dict) -> dict:
    """With the place of its checkpoint now; None when that was removed."""
    made = study.folder / trial["checkpoint"] if trial["checkpoint"] else None
    checkpoint = str(made) if made and made.exists() else None
    return {name: trial[name] for name in ("number", "objective", "values")} | {"checkpoint": checkpoint}


def paired(study: Study, before: dict | None, after: dict) -> dict | None:
    """McNemar's test between the answers of two trials; None when either left none."""
    if before is None:
        return None
    folders = (study.trial_folder(trial["number"]) for trial in (before, after))
    found = [max(folder.glob("jobs/evaluate-*/results/results.json"), default=None) for folder in folders]
    return metrics.compare(*(results.judged(path)[0] for path in found))[0] if all(found) else None


def text(study: Study, found: dict) -> str:
    """The same for people."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(found["states"].items())) or "no trial yet"
    lines = [f"{study.folder}: {found['objective']}; {states}"]
    for name in ("baseline", "default"):
        if found[name] is not None:
            lines.append(f"  {name}: {found[name]:.4g}")
    if best := found["best"]:
        values = ", ".join(f"{key}={spec_values.text(value)}" for key, value in best["values"].items())
        lines.append(f"  best: {best['objective']:.4g} (trial {best['number']}: {values})")
    if pair := found["against_default"]:
        changed = f"{pair['fixed']} fixed, {pair['broken']} broken"
        lines.append(f"  against the default: {changed}, p = {pair['p_value']:.3g}")
    lines += [f"  trial {row['number']} failed: {row['reason'][:200]}" for row in found["failed"]]
    return "\n".join(lines)


def build_words(study: Study) -> str:
    """The command that makes a checked spec of best.toml."""
    words = ["scripts/build_spec.py", "train", "--engine", study.plan["engine"]]
    return shlex.join([*words, "--spec", str(study.folder / "best.toml"), "-o", str(study.folder / "winner.toml")])


def base_wins(study: Study, found: dict) -> list[Finding]:
    """A warning when no training is better than the model as it came."""
    base, best = found["baseline"], found["best"] and found["best"]["objective"]
    if base is None or best is None or study.sign * (best - base) < 0:
        return []
    message = f"no training is better than the untouched model ({base:.4g}); the best reached {best:.4g}"
    return [warning("TUNE-BASE-WINS", study.folder, message, "other --range values or more data, or keep the model")]


def plan_text(plan: dict) -> str:
    """What `plan` found, for people."""
    lines = [f"{plan['left']} trainings to go, {plan['parallel']} at a time, judged by {plan['objective']}"]
    for row in plan["space"]:
        given, then = (spec_values.text(row[name]) for name in ("default", "next"))
        lines.append(f"  {row['key']}: {row['range']} (as given {given}" + (f", next {then})" if plan["left"] else ")"))
    lines += [f"  repaired: {repair['message']} ({repair['fix']})" for repair in plan["repairs"]]
    cost = plan["estimate"]
    if cost["seconds"] is None:
        lines.append(f"time: not known: {cost['source']}")
    else:
        lines.append(
            f"time: about {cost['seconds'] / 60:.0f} minutes, {cost['gpu_hours']} GPU-hours ({cost['source']})"
        )
    return "\n".join([*lines, *([f"start it: {plan['command']}"] if plan["left"] else [])])


def estimate(study: Study, records: list[dict], left: int, groups: list) -> dict:
    """{source, trial_seconds, seconds, gpu_hours} of what is left, from this study's own trials; the numbers are None
    before the first one has ended."""
    took = [jobs.seconds(t["ended_at"]) - jobs.seconds(t["started_at"]) for t in records
            if t["state"] == COMPLETE and t["kind"] != BASE]  # fmt: skip
    if not took:
        source = "the first trial will tell"
        return {"source": source, "trial_seconds": None, "seconds": None, "gpu_hours": None}
    one, engine = median(took), study.plan["engine"]
    gpus = rules.Case("train", engine, study.plan["spec"]).needed_gpus if engine in rules.COSMOS else 1
    gpus = len(groups[0]) if groups[0] is not None else gpus
    return {
        "source": f"{len(took)} trials of this study",
        "trial_seconds": one,
        "seconds": round(one * -(-left // len(groups))),
        "gpu_hours": round(one * left * gpus / 3600, 2),
    }
