"""What a study has found, as numbers and as text, and what the rest of it will cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import value_text
from cosmos_reason.evaluation import guard
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.run_time import MEASURED, Cost
from cosmos_reason.rules.case import Case
from cosmos_reason.tuning import lock
from cosmos_reason.tuning.study import BASE, COMPLETE, DEFAULT, FAILED, RUNNING, Study

FAILURES_SHOWN = 5


def summary(study: Study) -> dict:
    """Counts, baseline, the spec as it was given, the best trial, and why the study ended (empty
    while it goes on)."""
    trials = study.trials()
    ranked = study.ranked(trials)
    best = ranked[0] if ranked else None
    base = first_of(BASE, trials)
    default = first_of(DEFAULT, trials)
    states = Counter(trial["state"] for trial in trials)
    running = states[RUNNING]
    failures = [trial for trial in trials if trial["state"] == FAILED]
    return {
        "study": str(study.folder),
        "objective": study.plan["objective"],
        "states": dict(states),
        "left_behind": 0 if lock.is_owned(study.folder) else running,
        "to_repeat": sum(trial["outside"] for trial in failures),
        "ended": why_ended(study, trials),
        "trained": count_trained(trials),
        "compared": len(ranked),
        "baseline": base["objective"] if base else None,
        "intervals": [interval(base), interval(best)],
        "default": default["objective"] if default else None,
        "best": best_of(study, best) if best else None,
        "guard": guard_of(study, base, best),
        "repairs": sum(len(trial["repairs"]) for trial in trials),
        "failed": reasons(failures[:FAILURES_SHOWN]),
    }


def reasons(failures: list[dict]) -> list[dict]:
    return [{"number": trial["number"], "reason": trial["reason"]} for trial in failures]


def first_of(kind: str, trials: list[dict]) -> dict | None:
    return next((trial for trial in trials if trial["kind"] == kind), None)


def count_trained(trials: list[dict]) -> int:
    return sum(trial["kind"] != BASE for trial in trials)


def interval(trial: dict | None) -> list[float] | None:
    return trial["metrics"].get("interval") if trial else None


def why_ended(study: Study, trials: list[dict]) -> str:
    """Empty while the study goes on. One that is older than the note of it has ended when nothing
    runs."""
    if not trials or any(trial["state"] == RUNNING for trial in trials):
        return ""
    return study.plan.get("ended", f"{count_trained(trials)} trainings")


def best_of(study: Study, best: dict) -> dict:
    """The checkpoint is None when it was not kept, or was removed by hand."""
    shown = {name: best[name] for name in ("number", "objective", "values")}
    shown["checkpoint"] = None
    if best["checkpoint"]:
        checkpoint = study.folder / best["checkpoint"]
        if checkpoint.exists():
            shown["checkpoint"] = str(checkpoint)
    return shown


def guard_of(study: Study, base: dict | None, best: dict | None) -> dict | None:
    """How the best trial answered general questions, paired with the untouched model; None where
    none were asked, or the answers are gone."""
    after = results_of(study, best)
    if after is None:
        return None
    general, _ = guard.read(after, results_of(study, base), "trial 0")
    return general.to_json() if general else None


def results_of(study: Study, trial: dict | None) -> Path | None:
    """Where the answers of a trial that ended well lie."""
    if trial is None or trial["state"] != COMPLETE:
        return None
    evaluations = study.jobs_of(trial, "evaluate")
    return evaluations[0] / "results" if evaluations else None


def text(study: Study, found: dict) -> str:
    states = [f"{count} {state}" for state, count in sorted(found["states"].items())]
    lines = [f"{study.folder}: {found['objective']}; {', '.join(states) or 'no trial yet'}"]
    for name in ("baseline", "default"):
        if found[name] is not None:
            lines.append(f"  {name}: {found[name]:.4g}")
    best = found["best"]
    if best:
        tried = [f"{key}={value_text(value)}" for key, value in best["values"].items()]
        number = best["number"]
        lines.append(f"  best: {best['objective']:.4g} (trial {number}: {', '.join(tried)})")
    if found["guard"]:
        lines.append(f"  {guard.in_words(found['guard'])} (trial {best['number']})")
    for failure in found["failed"]:
        lines.append(f"  trial {failure['number']} failed: {failure['reason'][:200]}")
    lines.append(f"  {standing(study, found)}")
    return "\n".join(lines)


def base_leads(study: Study, found: dict) -> bool:
    """Whether no training is better than the untouched model."""
    if found["baseline"] is None or found["best"] is None:
        return False
    return study.is_at_least(found["baseline"], found["best"]["objective"])


def standing(study: Study, found: dict) -> str:
    """Why the study ended, or how it stands while it goes on."""
    if found["ended"]:
        return f"ended: {found['ended']}"
    if base_leads(study, found):
        lead = "none is better"
    elif found["best"]:
        lead = f"trial {found['best']['number']} is the best"
    else:
        lead = "no training has ended well"
    parts = []
    left_behind = found["left_behind"]
    running = found["states"].get(RUNNING, 0) - left_behind
    if running:
        parts.append(f"{running} running")
    if left_behind:
        parts.append(f"{left_behind} left by a run that ended: `run` continues it")
    if found["to_repeat"]:
        parts.append(
            f"{found['to_repeat']} failed by no fault of the values: "
            "mend the cause, `run` repeats them"
        )
    if not parts:
        parts.append("none running: `run` continues it")
    return f"so far {lead}; {', '.join(parts)}"


def verdict(study: Study, found: dict) -> list[Finding]:
    """What is to be known before the winner is used: that it forgot, or that it is no better than
    the model as it came."""
    doubts = gain_doubts(study, found)
    if found["guard"]:
        doubts.append(guard.verdict(found["guard"], f"trial {found['best']['number']}"))
    return doubts


def gain_doubts(study: Study, found: dict) -> list[Finding]:
    """A warning when no training is better than the model as it came, or not surely so; none while
    the study goes on.

    Intervals are those of accuracy, and say nothing about other objectives.
    """
    if not found["ended"] or found["baseline"] is None or not found["best"]:
        return []
    base, best = found["baseline"], found["best"]["objective"]
    if base_leads(study, found):
        message = (
            f"no training is better than the untouched model ({base:.4g}); "
            f"the best reached {best:.4g}"
        )
        fix = "other --range values or more data, or keep the model"
        return [findings.warning("TUNE-BASE-WINS", study.folder, message, fix)]
    before, after = found["intervals"]
    is_compared = found["objective"] == "accuracy" and before and after
    if not is_compared or after[0] > before[1]:
        return []
    message = (
        f"the gain over the untouched model ({base:.4g} to {best:.4g}) may be noise: "
        "the 95 % intervals overlap"
    )
    return [findings.warning("TUNE-NOISE", study.folder, message, "judge both on more questions")]


# -- before a run --------------------------------------------------------------------------------


def plan_text(plan: dict, cost: Cost) -> str:
    """What `plan` found, for people."""
    left = plan["left"]
    lines = [
        f"{left} trainings to go, {plan['parallel']} at a time, judged by {plan['objective']}",
        budget_text(plan),
    ]
    for row in plan["space"]:
        example = f"as given {value_text(row['default'])}"
        if left:
            example += f", next {value_text(row['next'])}"
        lines.append(f"  {row['key']}: {row['range']} ({example})")
    for repair in plan["repairs"]:
        lines.append(f"  repaired: {repair['message']} ({repair['fix']})")
    if left:
        lines.append(cost_text(cost))
    return "\n".join(lines)


def cost_text(cost: Cost) -> str:
    """What all trainings cost; only the time of trials that ended holds their evaluations."""
    if cost.steps is None:
        return cost.text()
    alone = replace(cost, steps=None).text()
    return (
        f"{cost.steps} steps a training as given; all of them: {alone}; evaluations are not counted"
    )


def budget_text(plan: dict) -> str:
    """What ends the study, and where its trials run."""
    parts = [f"budget: {plan['trials']} trainings"]
    if plan["hours"] is not None:
        parts.append(f"{plan['hours']:g} hours")
    target = "no target" if plan["target"] is None else f"target {plan['target']:g}"
    devices = " and ".join(device(gpu_ids) for gpu_ids in plan["gpu_ids"])
    return f"{', '.join(parts)}; {target}; on {plan['platform']}, {devices}"


def device(gpu_ids: list[str] | None) -> str:
    if gpu_ids is None:
        return "any GPU"
    return f"GPUs {','.join(gpu_ids)}" if gpu_ids else "the CPU"


def estimate(study: Study, left: int) -> Cost | None:
    """The time of what is left, from this study's own trials; None before one has ended."""
    took = []
    for trial in study.ranked(study.trials()):
        if trial["ended_at"]:
            took.append(jobs.seconds(trial["ended_at"]) - jobs.seconds(trial["started_at"]))
    if not took:
        return None
    groups = study.plan["groups"]
    if groups[0] is None:
        gpus = Case("train", study.plan["engine"], study.plan["spec"]).needed_gpus
    else:
        gpus = len(groups[0])
    source = f"{len(took)} trials of this study"
    hours = median(took) * gpus / 3600
    one = Cost(source, MEASURED, seconds=median(took), gpu_hours=hours if gpus else None)
    return one.times(rounds(left, groups), left)


def rounds(left: int, groups: list) -> int:
    """How many trainings follow each other on each group of GPUs, at most."""
    return -(-left // len(groups))
