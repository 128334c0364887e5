"""What a study has found, as numbers and as text, and what the rest of it will cost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import value_text
from cosmos_reason.evaluation import guard
from cosmos_reason.evaluation.comparison import LEAST_LEAD
from cosmos_reason.jobs import record
from cosmos_reason.jobs.run_time import MEASURED, Cost
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document
from cosmos_reason.tuning import space
from cosmos_reason.tuning.study import (
    BASE,
    COMPLETE,
    DEFAULT,
    FAILED,
    RUNNING,
    Study,
    is_owned,
)

FAILURES_SHOWN = 5
VISION = "custom.vision."
KEEP_THE_BASE = "the untouched model reaches {:.4g}: no training is better"


def summary(study: Study, trials: list[dict]) -> dict:
    """Return counts, baseline, the spec as it was given, the best trial, and why the study ended
    (empty while it goes on)."""
    ranked = study.ranked(trials)
    best = ranked[0] if ranked else None
    first = {}
    for trial in trials:
        first.setdefault(trial["kind"], trial)
    base, default = first.get(BASE), first.get(DEFAULT)
    states = Counter(trial["state"] for trial in trials)
    failures = [trial for trial in trials if trial["state"] == FAILED]
    trained = sum(trial["kind"] != BASE for trial in trials)
    ended = ""
    if trials and not states[RUNNING]:
        # A study that is older than the note of it has ended when nothing runs.
        ended = study.plan.get("ended", f"{trained} trainings")
    # None where the trial is not there, or its metrics have no interval.
    intervals = [trial and trial["metrics"].get("interval") for trial in (base, best)]
    shown = None
    if best:
        shown = {name: best[name] for name in ("number", "objective", "values")}
        shown["repairs"] = [repair["fix"] for repair in best["repairs"]]
        # It was not kept, or was removed by hand.
        is_there = best["checkpoint"] and (study.folder / best["checkpoint"]).exists()
        shown["checkpoint"] = str(study.folder / best["checkpoint"]) if is_there else None
    # General questions, paired with those of the untouched model, where the answers are there.
    answered = results_of(study, best)
    general = None
    if answered:
        general, _ = guard.read(answered, results_of(study, base), "trial 0")
    lost = {}
    for trial in trials:
        if trial["state"] == COMPLETE and trial["metrics"].get("failed"):
            lost[trial["number"]] = [trial["metrics"][name] for name in ("failed", "rows")]
    told = []
    for trial in failures[:FAILURES_SHOWN]:
        told.append({"number": trial["number"], "reason": trial["reason"]})
    return {
        "study": str(study.folder),
        "objective": study.plan["objective"],
        "states": dict(states),
        "left_behind": 0 if is_owned(study.folder) else states[RUNNING],
        "to_repeat": sum(trial["outside"] for trial in failures),
        "ended": ended,
        "trained": trained,
        "compared": len(ranked),
        "baseline": base["objective"] if base else None,
        "intervals": intervals,
        "default": default["objective"] if default else None,
        "best": shown,
        "guard": general.to_json() if general else None,
        "repairs": sum(len(trial["repairs"]) for trial in trials),
        "failed": told,
        "failed_rows": lost,
    }


def results_of(study: Study, trial: dict | None) -> Path | None:
    """Return where the answers of a trial that ended well lie."""
    if trial is None or trial["state"] != COMPLETE:
        return None
    evaluations = study.jobs_of(trial, "evaluate")
    return evaluations[0] / "results" if evaluations else None


def text(study: Study, found: dict) -> str:
    """Return what a summary found, for people."""
    states = [f"{count} {state}" for state, count in sorted(found["states"].items())]
    lines = [f"{study.folder}: {found['objective']}; {', '.join(states) or 'no trial yet'}"]
    for name in ("baseline", "default"):
        if found[name] is not None:
            lines.append(f"  {name}: {found[name]:.4g}")
    best = found["best"]
    if best:
        tried = [f"{key}={value_text(value)}" for key, value in best["values"].items()]
        tried += [f"repaired with {fix}" for fix in best["repairs"]]
        number = best["number"]
        lines.append(f"  best: {best['objective']:.4g} (trial {number}: {', '.join(tried)})")
        if base_leads(study, found):
            lines.append(f"  {KEEP_THE_BASE.format(found['baseline'])}")
    if found["guard"]:
        lines.append(f"  {guard.in_words(found['guard'])} (trial {best['number']})")
    for failure in found["failed"]:
        lines.append(f"  trial {failure['number']} failed: {failure['reason'][:200]}")
    lines.append(f"  {standing(study, found)}")
    return "\n".join(lines)


def base_leads(study: Study, found: dict) -> bool:
    """Return whether no training is better than the untouched model."""
    if found["baseline"] is None or found["best"] is None:
        return False
    return study.is_at_least(found["baseline"], found["best"]["objective"])


def standing(study: Study, found: dict) -> str:
    """Return why the study ended, or how it stands while it goes on."""
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
    """Return what is to be known before the winner is used: that it forgot, that it is no better
    than the model as it came, that the two saw other frames and pixels, or that
    questions failed."""
    doubts = []
    base, best = found["baseline"], found["best"] and found["best"]["objective"]
    before, after = found["intervals"]
    if not found["ended"] or base is None or best is None:
        pass  # the study goes on, or compares nothing
    elif base_leads(study, found):
        message = f"no training is better than the untouched model ({base:.4g}); the best reached "
        message += f"{best:.4g}. Try other --range values or more data, or keep the model"
        doubts.append(findings.warning("TUNE-BASE-WINS", study.folder, message))
    # Intervals are those of accuracy, and say nothing about other objectives.
    elif found["objective"] == "accuracy" and before and after and after[0] <= before[1]:
        message = f"the gain over the untouched model ({base:.4g} to {best:.4g}) may be noise: "
        message += "the 95 % intervals overlap; judge both on more questions"
        doubts.append(findings.warning("TUNE-NOISE", study.folder, message))
    values = found["best"]["values"] if base is not None and best is not None else {}
    seen = {key: value for key, value in values.items() if key.startswith(VISION)}
    given = {key: document.get(study.plan["spec"], key) for key in seen}
    if seen != given:
        message = (
            f"the best sees its clips with {_in_words(seen)}, and the untouched model was asked "
            f"with {_in_words(given)}: what lies between them is not the training alone; evaluate "
            "the untouched model as the best sees before a gain is claimed"
        )
        doubts.append(findings.warning("TUNE-EVAL-VIEW", study.folder, message))
    if found["failed_rows"]:
        lost = [
            f"{failed} of {rows} of trial {number}"
            for number, (failed, rows) in found["failed_rows"].items()
        ]
        message = (
            f"questions that failed count as wrong: {', '.join(lost[:FAILURES_SHOWN])}; these "
            "trials may be better than they rank"
        )
        doubts.append(findings.warning("EVAL-ROW-FAILED", study.folder, message))
    if found["guard"]:
        doubts.append(guard.verdict(found["guard"], f"trial {found['best']['number']}"))
    return doubts


def _in_words(values: dict) -> str:
    words = []
    for key, value in values.items():
        told = "unset" if value is None else value_text(value)
        words.append(f"{key.rpartition('.')[2]} {told}")
    return ", ".join(words)


# -- before a run --------------------------------------------------------------------------------


def plan_text(plan: dict, cost: Cost, asked: Cost | None) -> str:
    """Return what `plan` found, for people; `asked` is what its evaluations cost."""
    left = plan["left"]
    budget = [f"budget: {plan['trials']} trainings"]
    if plan["hours"] is not None:
        budget.append(f"{plan['hours']:g} hours")
    target = "no target"
    if plan["target"] is not None:
        target = f"target {plan['target']:g}"
        if plan["objective"] == "accuracy" and plan["questions"]:
            # Less an error of floats: 0.7 of 10 questions are 7.
            least = math.ceil(plan["target"] * plan["questions"] - 1e-9)
            target += f" ({least:,} of {plan['questions']:,})"
        if plan["evaluations"]:
            target += ", which a training must reach: trial 0 ends no search"
    devices = []
    for gpu_ids in plan["gpu_ids"]:
        if gpu_ids is None:
            devices.append("any GPU")
        else:
            devices.append(f"GPUs {','.join(gpu_ids)}" if gpu_ids else "the CPU")
    trials = "trial 1 is the spec as given, the others are suggestions"
    if plan["evaluations"]:
        trials = f"trial 0 is the untouched model, evaluated and not trained; {trials}"
    lines = [
        f"{left} trainings to go, {plan['parallel']} at a time, judged by "
        f"{judged_by(plan['objective'], plan['questions'])}",
        f"{trials}; --trials and --hours count trainings"
        f"{', evaluations included in the hours' if plan['evaluations'] else ''}",
        f"{', '.join(budget)}; {target}; on {plan['site'] or plan['platform']}, "
        f"{' and '.join(devices)}",
    ]
    for row in plan["space"]:
        example = f"as given {value_text(row['default'])}"
        if not row["default_in_range"]:
            example += " in trial 1, outside the range"
        if left:
            example += f", next {value_text(row['next'])}"
        lines.append(f"  {row['key']}: {row['range']} ({example})")
    if plan["alpha"]:
        lines.append(f"  {space.ALPHA}: {plan['alpha']}")
    for repair in plan["repairs"]:
        lines.append(f"  repaired: {repair['message']} ({repair['fix']})")
    if left and cost.steps is None:  # of trials that ended, with their evaluations
        lines.append(cost.text())
    elif left:
        alone = replace(cost, steps=None).text()
        lines.append(f"{cost.steps} steps a training as given; all of them: {alone}")
        if asked:
            lines.append(f"{plan['evaluations']} evaluations besides: {asked.text()}")
        elif plan["evaluations"]:
            lines.append(
                f"{plan['evaluations']} evaluations besides, whose time is not known before the "
                "first has ended"
            )
    return "\n".join(lines)


def judged_by(objective: str, questions: int | None) -> str:
    """Return the objective with the number of questions behind it, and of an accuracy the smallest
    lead that is more than chance; of a metric of the user's own which end of it is the best."""
    if objective.startswith("custom."):
        objective += " (the highest is best)"
    if questions is None:
        return objective
    if objective != "accuracy":
        return f"{objective} on {questions:,} questions"
    words = f"accuracy on {questions:,} questions: each is {1 / questions:.2g}, and "
    if questions < LEAST_LEAD:
        return words + f"with fewer than {LEAST_LEAD} no lead is more than chance"
    least = f"{LEAST_LEAD} of them ({LEAST_LEAD / questions:.2g})"
    return words + f"a lead of fewer than {least} is never more than chance"


def alpha_words(study: Study) -> str:
    """Return what becomes of lora_alpha while its rank is searched; '' where no rank is searched,
    or alpha has a range itself."""
    searched = {dimension.key for dimension in study.dimensions}
    alpha = document.get(study.plan["spec"], space.ALPHA)
    if space.RANK not in searched or space.ALPHA in searched or alpha is None:
        return ""
    per_rank = study.plan.get("alpha_per_rank")
    if per_rank:
        return f"follows the rank, {per_rank:g} times it"
    return f"stays {alpha:g} as it was given: the scale of the update, {alpha:g} / r, varies too"


def estimate(study: Study, left: int) -> Cost | None:
    """Return the time of what is left, from this study's own trials; None before one has ended."""
    took = []
    for trial in study.ranked(study.trials()):
        if trial["ended_at"]:
            took.append(record.seconds(trial["ended_at"]) - record.seconds(trial["started_at"]))
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
    """Return how many trainings follow each other on each group of GPUs, at most."""
    return -(-left // len(groups))
