"""The next trial of a study: what the sampler suggests, repaired where rules refuse it.

A suggestion depends on the seed, on its number and on the trials that have ended, so that it is the
same whenever it is asked for. Samplers and successive halving are Optuna's own; what Optuna does
not know is that a rule may change a suggestion before it runs, and that a trial may fail for
reasons that say nothing about its values.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import record
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import command_line
from cosmos_reason.rules.draft import Draft
from cosmos_reason.spec import document
from cosmos_reason.tuning import space
from cosmos_reason.tuning.study import (
    BASE,
    COMPLETE,
    DEFAULT,
    FAILED,
    PRUNED,
    RUNNING,
    SEARCH,
    Study,
)

ATTEMPTS = 8  # of the sampler at a suggestion that is legal and has not run yet
POINTS = 200  # looked at by chance after that; a smaller grid is looked through
STARTUP = 4  # random suggestions before TPE begins; Optuna's 10 are most of a small budget
MOST_REPAIRS = 8  # of one suggestion
# Successive halving: the worse half ends at 25 % of the run, and again at each doubling.
RUNGS = {"min_resource": 25, "reduction_factor": 2}


def propose(study: Study, trials: list[dict]) -> tuple[dict, dict | None]:
    """Return (record, spec) of the next trial: the untouched model, the spec as it was given, then
    suggestions.

    A suggestion that a rule refuses is repaired by the rule's own fix, and thrown away when that
    does not help; so is one that has run already. The spec is None when nothing new was found;
    `reason` then says what was refused last.
    """
    # The untouched model and the default come first, also when their folders were moved away
    # later. Validation loss says nothing about the untouched model: then there is no trial 0.
    begun = {*study.numbers(), *(row["number"] for row in trials)}
    first = (1,) if study.minimizes else (0, 1)
    left = [number for number in first if number not in begun]
    number = left[0] if left else max(begun) + 1

    trial = {"number": number, "started_at": record.now()}
    for name, field in bundle.schema("trial")["properties"].items():
        if "default" in field:
            trial[name] = copy.deepcopy(field["default"])
    spec = study.plan["spec"]
    if number == 0:
        return trial | {"kind": BASE}, spec
    if number == 1:
        return trial | {"kind": DEFAULT, "values": study.searched(spec)}, spec

    trial["kind"] = SEARCH
    tried = [row["values"] for row in trials if row["kind"] != BASE]
    looked_at = []
    for suggested in suggestions(study, trials, number):
        if suggested in looked_at:
            continue
        looked_at.append(suggested)
        table, repairs, refused = assemble(study, suggested)
        values = study.searched(table)
        if refused:
            trial["reason"] = refused
        elif values not in tried:
            ran = {"suggested": suggested, "values": values, "repairs": repairs, "reason": ""}
            return trial | ran, table
        else:
            idle = [space.idle(dimension, table) for dimension in study.dimensions]
            trial["reason"] = "; ".join(filter(None, idle)) or trial["reason"]
    return trial, None


def suggestions(study: Study, trials: list[dict], number: int) -> Iterator[dict]:
    """Yield key -> value: first as the sampler says, then by chance, of a small grid every
    point."""
    # The trial's number is part of the seed: a run that was killed asks for the same again.
    word = f"{study.plan['seed']} {number}"
    for attempt in range(ATTEMPTS):
        yield _suggest(study, trials, f"{word} {attempt}", study.plan["sampler"])
    points = {dimension.key: dimension.points() for dimension in study.dimensions}
    if 0 < math.prod(len(values) for values in points.values()) <= POINTS:
        grid = list(itertools.product(*points.values()))
        random.Random(word).shuffle(grid)
        for point in grid:
            yield dict(zip(points, point, strict=True))
    else:
        for attempt in range(POINTS):
            yield _suggest(study, [], f"{word} chance {attempt}", "random")


def outlook(study: Study) -> tuple[int, dict | None, list[Finding]]:
    """Return (trainings to go, record of the next suggestion as if all before it had run, why there
    is none)."""
    trials = study.trials()
    if study.reached(trials):
        return 0, None, []
    left = max(0, min(study.plan["trials"], study.points()) - study.trained())
    # The next suggestion is one of those to go, unless only the default is.
    is_default_to_come = not any(trial["kind"] == DEFAULT for trial in trials)
    if left <= is_default_to_come:
        return left, None, []
    known = trials
    while True:
        trial, table = propose(study, known)
        if table is None:
            return 0, None, [used_up(trials, trial)]
        if trial["kind"] == SEARCH:
            return left, trial, []
        known = [*known, trial]


def used_up(trials: list[dict], trial: dict) -> Finding:
    """Return why a trial could not be proposed: an error when no suggestion has ever run."""
    message = f"no point of the ranges is legal and untried, after {len(trials)} trials; "
    message += "begin a new --study folder with wider --range values"
    if trial["reason"]:
        message += f". The last one was refused: {trial['reason']}"
    has_searched = any(row["kind"] == SEARCH for row in trials)
    report = findings.warning if has_searched else findings.error
    return report("TUNE-SPACE-USED", "--range", message)


# -- the sampler ---------------------------------------------------------------------------------


def _suggest(study: Study, trials: list[dict], word: str, sampler: str) -> dict:
    import optuna

    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])
    if sampler == "random":
        drawn_by = optuna.samplers.RandomSampler(seed)
    else:
        drawn_by = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    optimizer = as_optuna(study, trials, drawn_by)
    asked = optimizer.ask({each.key: each.distribution() for each in study.dimensions})
    return {each.key: each.value(asked.params[each.key]) for each in study.dimensions}


def as_optuna(study: Study, trials: list[dict], sampler=None):
    """Return the trials as an Optuna study in memory."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optimizer = optuna.create_study(
        direction="minimize" if study.minimizes else "maximize",
        sampler=sampler or optuna.samplers.RandomSampler(0),
    )
    state = optuna.trial.TrialState
    states = {
        RUNNING: state.RUNNING,
        COMPLETE: state.COMPLETE,
        PRUNED: state.PRUNED,
        # One that failed by its values counts as pruned before its first validation, so that the
        # sampler learns to stay away: Optuna itself forgets failed trials.
        FAILED: state.PRUNED,
    }
    distributions = {each.key: each.distribution() for each in study.dimensions}
    for trial in trials:
        params = study.params(trial["values"])
        has_failed = trial["state"] == FAILED
        # A full disk, or an evaluation that could not be made, says nothing about the values.
        if not params or (has_failed and (trial["outside"] or trial["checkpoint"])):
            continue
        validations = {}
        if not has_failed:
            validations = {int(percent): loss for percent, loss in trial["intermediate"].items()}
        optimizer.add_trial(
            optuna.trial.create_trial(
                state=states[trial["state"]],
                value=trial["objective"],
                params=params,
                distributions={key: distributions[key] for key in params},
                intermediate_values=validations,
                system_attrs=trial["rungs"],
            )
        )
    return optimizer


def prunes(study: Study, trials: list[dict], trial: dict) -> bool:
    """Return whether successive halving ends this trial now; note in it the rungs it has
    passed."""
    import optuna

    others = [row for row in trials if row["number"] != trial["number"]]
    optimizer = as_optuna(study, [*others, trial])
    pruner = optuna.pruners.SuccessiveHalvingPruner(**RUNGS)
    ends = pruner.prune(optimizer, optimizer.trials[-1])
    trial["rungs"] = optimizer.trials[-1].system_attrs
    return ends


# -- the spec of a suggestion --------------------------------------------------------------------


def assemble(study: Study, suggested: dict) -> tuple[dict, list[dict], str]:
    """Return (spec, repairs, why it is refused or '') of suggested values."""
    table = copy.deepcopy(study.plan["spec"])
    for dimension in study.dimensions:
        if not space.idle(dimension, table):
            space.put(table, dimension, suggested[dimension.key])
    space.follow_rank(table, study.plan.get("alpha_per_rank"))
    asked = table
    table, repairs, refused = repaired(asked, study.plan["engine"], study.plan["facts"])
    if refused:
        return table, repairs, refused
    for key in study.plan.get("given", ()):  # studies of before do not say
        if document.get(table, key) != document.get(asked, key):
            return table, repairs, f"{repairs[-1]['fix']} would change {key}, which was given"
    # A repaired value is searched on only if the sampler can be told of it.
    values = study.searched(table)
    expressed = study.params(values)
    for key in sorted(values):
        if repairs and values[key] != suggested[key] and key not in expressed:
            return table, repairs, f"{key}: {repairs[-1]['fix']} is outside of its range"
    return table, repairs, ""


def repaired(table: dict, engine: str, facts: str | None) -> tuple[dict, list[dict], str]:
    """Return (spec, what was changed, the error that is left or ''): each error's fix is applied as
    build_spec would."""
    facts_path = Path(facts) if facts else None
    repairs: list[dict] = []
    while True:
        found = rules.check("train", engine, table, facts_path, launch=True)
        errors = [finding for finding in found if finding.severity == findings.ERROR]
        if not errors:
            return table, repairs, ""
        error = errors[0]
        draft = Draft("train", engine, copy.deepcopy(table))
        command_line.take_changes(draft, error.fix.changes)
        if draft.findings or draft.spec == table or len(repairs) == MOST_REPAIRS:
            return table, repairs, f"{error.id} {error.where}: {error.message}"
        table = draft.spec
        repairs.append({"id": error.id, "message": error.message, "fix": str(error.fix)})
