"""The next trial of a study: what the sampler suggests, repaired where rules refuse it.

A suggestion depends on the seed, on its number and on the trials that have ended, so that it is the
same whenever it is asked for.
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
from cosmos_reason.jobs import record as jobs
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import command_line
from cosmos_reason.rules.draft import Draft
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
# Percent of the run at which the worse half of the trials ends, for the first time.
RUNGS = {"min_resource": 25, "reduction_factor": 2}


def propose(study: Study, trials: list[dict]) -> tuple[dict, dict | None]:
    """(record, spec) of the next trial: the untouched model, the spec as it was given, then
    suggestions.

    A suggestion that a rule refuses is repaired by the rule's own fix, and thrown away when that
    does not help; so is one that has run already. The spec is None when nothing new was found;
    `reason` then says what was refused last.
    """
    number = _next_number(study, trials)
    kind = (BASE, DEFAULT, SEARCH)[min(number, 2)]
    trial = _new_record() | {"number": number, "kind": kind, "started_at": jobs.now()}
    spec = study.plan["spec"]
    if kind == BASE:
        return trial | {"values": {}}, spec
    if kind == DEFAULT:
        return trial | {"values": study.searched(spec)}, spec
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
    return trial, None


def _next_number(study: Study, trials: list[dict]) -> int:
    """The untouched model and the default are begun first, also when their folders were moved away
    later. Validation loss says nothing about the untouched model: then there is no trial 0."""
    begun = {*study.numbers(), *(row["number"] for row in trials)}
    for number in (1,) if study.minimizes else (0, 1):
        if number not in begun:
            return number
    return max(begun) + 1


def _new_record() -> dict:
    record = {}
    for name, field in bundle.schema("trial")["properties"].items():
        if "default" in field:
            record[name] = copy.deepcopy(field["default"])
    return record


def suggestions(study: Study, trials: list[dict], number: int) -> Iterator[dict]:
    """Key -> value: first as the sampler says, then by chance, of a small grid every point."""
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
    """(trainings to go, record of the next suggestion as if all before it had run, why there is
    none)."""
    trials = study.trials()
    if study.reached(trials):
        return 0, None, []
    left = max(0, min(study.plan["trials"], study.points()) - study.trained())
    known = trials
    # The next suggestion is one of those to go, unless only the default is.
    is_default_to_come = not any(trial["kind"] == DEFAULT for trial in trials)
    if left <= (1 if is_default_to_come else 0):
        return left, None, []
    while True:
        trial, table = propose(study, known)
        if table is None:
            return 0, None, [used_up(trials, trial)]
        if trial["kind"] == SEARCH:
            return left, trial, []
        known = [*known, trial]


def used_up(trials: list[dict], trial: dict) -> Finding:
    """Why a trial could not be proposed: an error when no suggestion has ever run."""
    message = (
        f"got no point of the ranges that is legal and has not run, after {len(trials)} trials"
    )
    if trial["reason"]:
        message += f"; the last one that was refused: {trial['reason']}"
    has_searched = any(row["kind"] == SEARCH for row in trials)
    report = findings.warning if has_searched else findings.error
    fix = "wider --range values, with a new --study folder"
    return report("TUNE-SPACE-USED", "--range", message, fix)


# -- the sampler ---------------------------------------------------------------------------------


def _suggest(study: Study, trials: list[dict], word: str, sampler: str) -> dict:
    import optuna

    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])
    if sampler == "random":
        drawn_by = optuna.samplers.RandomSampler(seed)
    else:
        drawn_by = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    optimizer = as_optuna(study, trials, drawn_by)
    dimensions = study.dimensions
    asked = optimizer.ask({each.key: each.distribution() for each in dimensions})
    return {each.key: each.value(asked.params[each.key]) for each in dimensions}


def as_optuna(study: Study, trials: list[dict], sampler=None):
    """The trials as an Optuna study in memory.

    One that failed by its values counts as pruned before its first validation, so that the sampler
    learns to stay away; of other failures, as a full disk or an evaluation that could not be made,
    it learns nothing. Validation losses count negative where the objective is maximized.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    state = optuna.trial.TrialState
    states = {
        RUNNING: state.RUNNING,
        COMPLETE: state.COMPLETE,
        PRUNED: state.PRUNED,
        FAILED: state.PRUNED,
    }
    optimizer = optuna.create_study(
        direction="minimize" if study.minimizes else "maximize",
        sampler=sampler or optuna.samplers.RandomSampler(0),
    )
    distributions = {each.key: each.distribution() for each in study.dimensions}
    for trial in trials:
        params = study.params(trial["values"])
        if not params or _says_nothing_of_values(trial):
            continue
        validations = {}
        if trial["state"] != FAILED:
            validations = {int(at): loss for at, loss in trial["intermediate"].items()}
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


def _says_nothing_of_values(trial: dict) -> bool:
    """Whether it failed for another reason, or was trained and could not be judged."""
    return trial["state"] == FAILED and bool(trial["outside"] or trial["checkpoint"])


def prunes(study: Study, trials: list[dict], trial: dict) -> bool:
    """Whether successive halving ends this trial now; notes in it the rungs it has passed."""
    import optuna

    others = [row for row in trials if row["number"] != trial["number"]]
    optimizer = as_optuna(study, [*others, trial])
    pruner = optuna.pruners.SuccessiveHalvingPruner(**RUNGS)
    ends = pruner.prune(optimizer, optimizer.trials[-1])
    trial["rungs"] = optimizer.trials[-1].system_attrs
    return ends


# -- the spec of a suggestion --------------------------------------------------------------------


def assemble(study: Study, suggested: dict) -> tuple[dict, list[dict], str]:
    """(spec, repairs, why it is refused or '') of suggested values."""
    table = copy.deepcopy(study.plan["spec"])
    for dimension in study.dimensions:
        if space.active(dimension, table):
            space.put(table, dimension, suggested[dimension.key])
    table, repairs, refused = repaired(table, study.plan["engine"], study.plan["facts"])
    if repairs and not refused:
        values = study.searched(table)
        changed = {key for key, value in values.items() if value != suggested[key]}
        beyond = changed - study.params(values).keys()
        if beyond:
            refused = f"{min(beyond)}: {repairs[-1]['fix']} is outside of its range"
    return table, repairs, refused


def repaired(table: dict, engine: str, facts: str | None) -> tuple[dict, list[dict], str]:
    """(spec, what was changed, the error that is left or ''): each error's fix is applied as
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
