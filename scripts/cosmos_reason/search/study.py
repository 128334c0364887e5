"""The study folder: study.json (what is searched, fixed when it begins) and one folder per trial.

Every trial is a file that appears and changes whole or not at all, and Optuna's study is put together from these files
for each suggestion: it depends on the seed, on its number and on the trials that have ended. So a study survives a kill
or a full disk (Optuna's journal does not survive a line cut short).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import os
import random
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason import bundle, findings, jobs, rules, spec, spec_sources, storage
from cosmos_reason.search import space
from cosmos_reason.search.space import Dimension

VERSION = 1
BASE, DEFAULT, SEARCH = "base", "default", "search"
RUNNING, COMPLETE, PRUNED, FAILED = "RUNNING", "COMPLETE", "PRUNED", "FAILED"
LOCK_SECONDS = 60
ATTEMPTS = 8  # of the sampler at a suggestion that is legal and has not run yet
POINTS = 200  # looked at by chance after that; a smaller grid is looked through
STARTUP = 4  # random suggestions before TPE begins; Optuna's 10 are most of a small budget
RUNGS = {"min_resource": 25, "reduction_factor": 2}  # percent of the run at which the worse half of the trials ends
VAL_LOSS = "val_loss"
OUTPUTS = ("train.output_dir", "train.timestamp", "train.ckpt.upload_hf", "train.ckpt.upload_s3")
FIXED = {"spec", "evaluate", "dimensions", "objective", "metric_file", "sampler", "pruner", "seed", "engine", "facts"}
FREE = {"schema_version", "created_at", "fingerprints", "platform", "launch", "keep"}  # a later run may say otherwise


@dataclass
class Study:
    """An existing study folder. `plan` is study.json."""

    folder: Path
    plan: dict

    @property
    def dimensions(self) -> list[Dimension]:
        return [Dimension(**row) for row in self.plan["dimensions"]]

    @property
    def sign(self) -> int:
        """What makes a smaller objective a better one."""
        return 1 if self.plan["objective"] == VAL_LOSS else -1

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04}"

    def trials(self) -> list[dict]:
        """All records, by number."""
        return [self.trial(int(path.name)) for path in sorted(self.folder.glob("trials/[0-9]*"))]

    def trial(self, number: int) -> dict:
        """Raises Failure (exit 2) for a record that is gone or broken."""
        path = self.trial_folder(number) / "trial.json"
        row = storage.read_json(path)
        if not isinstance(row, dict) or not row.keys() >= set(bundle.schema("trial")["required"]):
            raise findings.bad_input("TUNE-TRIAL-BROKEN", path, "got something else than the record of a trial")
        return row

    def save(self) -> None:
        storage.write_json(self.folder / "study.json", self.plan)

    def write(self, trial: dict) -> None:
        storage.write_json(self.trial_folder(trial["number"]) / "trial.json", trial)

    def ranked(self, trials: list[dict]) -> list[dict]:
        """Trainings that ended well, best first; of equals the earlier one."""
        done = [trial for trial in trials if trial["state"] == COMPLETE and trial["kind"] != BASE]
        return sorted(done, key=lambda trial: self.sign * trial["objective"])

    def reached(self, trials: list[dict], target: float | None) -> bool:
        best = self.ranked(trials)[:1]
        return target is not None and any(self.sign * (trial["objective"] - target) <= 0 for trial in best)

    def params(self, values: dict) -> dict:
        """Key -> the sampler's coordinate of each value that this study's ranges can express."""
        known = {d.key: d.coordinate(values[d.key]) for d in self.dimensions if d.key in values}
        return {key: coordinate for key, coordinate in known.items() if coordinate is not None}

    def points(self) -> float:
        """How many different trainings there can be at most."""
        sizes = math.prod(len(dimension.points()) or math.inf for dimension in self.dimensions)
        return sizes + (len(self.params(searched(self, self.plan["spec"]))) < len(self.dimensions))


def open_or_begin(folder: Path, described: dict | None = None) -> Study:
    """The study in `folder`, or the one that `described` begins there once it is saved. Raises Failure (exit 2) when
    there is none, or another one."""
    folder = folder.absolute()  # jobs run elsewhere
    path = folder / "study.json"
    if folder.exists() and not folder.is_dir():
        raise findings.bad_input("TUNE-STUDY", folder, "got a file, expected the name of a folder", "--study DIR")
    if described and not path.is_file():
        return Study(folder, described)
    plan = storage.read_json(path)
    if not isinstance(plan, dict) or plan.get("schema_version") != VERSION or not plan.keys() >= FIXED | FREE:
        got = plan.get("schema_version") if isinstance(plan, dict) else type(plan).__name__
        message = f"got something else, or of version {got}, expected a study of version {VERSION}"
        raise findings.bad_input("TUNE-STUDY-VERSION", folder, message, "a new --study folder")
    changed = [name for name in sorted(FIXED) if described and described[name] != plan[name]]
    if changed:
        was, now = (spec.get(one["spec"], "policy.model_name_or_path") for one in (plan, described))
        what = f"of model {was}, expected {now}" if was != now else f"that began with another {', '.join(changed)}"
        fix = "leave out --spec to go on with it, or name a new --study folder"
        raise findings.bad_input("TUNE-STUDY-OTHER", "--study", f"got a study {what}", fix)
    return Study(folder, plan)


@contextmanager
def locked(folder: Path, patience: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the study, for the moment in which a trial is added. Raises Failure (exit 3) when it stays held."""
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    while (lock := drive(folder)) is None:
        if time.monotonic() > deadline:
            message = f"got it locked for {patience:g} s, expected another process to let go within a second"
            raise findings.outside("TUNE-STUDY-LOCKED", folder, message, f"fuser {folder / jobs.LOCK}")
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(lock)


def drive(folder: Path) -> int | None:
    """The lock of one trial, for whoever starts and watches its jobs; None when somebody does."""
    try:
        return jobs.take_lock(folder)
    except BlockingIOError:
        return None


def left_behind(study: Study, trials: list[dict]) -> int:
    """How many running trials nobody drives, as far as this host knows. One without a host waits for GPUs: as long as
    a run drives another one, or a host that cannot be asked may, it is not left."""
    running = [trial for trial in trials if trial["state"] == RUNNING]
    left = [t for t in running if t["host"] == socket.gethostname() and not driven(study.trial_folder(t["number"]))]
    alone = all(trial in left or trial["host"] is None for trial in running)
    return len(running if alone else left)


def driven(folder: Path) -> bool:
    """Whether somebody holds the lock of a trial; asks without writing, and several may ask at a time."""
    return (folder / jobs.LOCK).exists() and not jobs.is_idle(folder)


# -- the next trial ----------------------------------------------------------------------------------------------------


def add(study: Study, place) -> tuple[dict | None, int | None]:
    """The next trial, already on disk, and its lock; no lock when nothing is left to try, and no record either when
    `place(trials)`, which says where it may run, is None."""
    with locked(study.folder):
        trials = study.trials()
        if (where := place(trials)) is None:
            return None, None
        trial, table = propose(study, trials)
        trial |= where
        if table is None:
            return trial, None
        with storage.whole_folder(study.trial_folder(trial["number"])) as partial:
            lock = drive(partial)
            spec.dump(trial_spec(table), partial / "train.toml")
            storage.write_json(partial / "trial.json", trial)
    return trial, lock


def trial_spec(table: dict) -> dict:
    """The spec as a trial runs it: into its own job folder, and nothing is published."""
    table = copy.deepcopy(table)
    for key in OUTPUTS:
        spec.delete(table, key)
    spec.set_value(table, "train.output_dir", "")
    return table


def propose(study: Study, trials: list[dict]) -> tuple[dict, dict | None]:
    """(record, spec) of the next trial: the untouched model, the spec as it was given, then suggestions.

    A suggestion that a rule refuses is repaired by the rule's own fix, and thrown away when that does not help; so is
    one that has run already. The spec is None when nothing new was found; `reason` then says what was refused last."""
    first = int(study.sign > 0)  # validation loss says nothing about the untouched model
    number = trials[-1]["number"] + 1 if trials else first
    kind, base = (BASE, DEFAULT, SEARCH)[min(number, 2)], study.plan["spec"]
    fields = bundle.schema("trial")["properties"].items()
    trial = copy.deepcopy({name: field["default"] for name, field in fields if "default" in field})
    trial |= {"number": number, "kind": kind, "started_at": jobs.now()}
    if kind != SEARCH:
        return trial | {"values": searched(study, base) if kind == DEFAULT else {}}, base
    tried, looked_at = [row["values"] for row in trials if row["kind"] != BASE], []
    for suggested in suggestions(study, trials, number):
        if suggested in looked_at:
            continue
        looked_at.append(suggested)
        table, repairs, refused = assemble(study, suggested)
        values = searched(study, table)
        if refused:
            trial["reason"] = refused
        elif values not in tried:
            return trial | {"suggested": suggested, "values": values, "repairs": repairs, "reason": ""}, table
    return trial, None


def suggestions(study: Study, trials: list[dict], number: int) -> Iterator[dict]:
    """Key -> value: first as the sampler says, then by chance, of a small grid every point. The same for the same seed,
    number and trials."""
    word, points = f"{study.plan['seed']} {number}", {d.key: d.points() for d in study.dimensions}
    for attempt in range(ATTEMPTS):
        yield _suggest(study, trials, f"{word} {attempt}", study.plan["sampler"])
    if 0 < math.prod(map(len, points.values())) <= POINTS:
        grid = list(itertools.product(*points.values()))
        random.Random(word).shuffle(grid)
        yield from (dict(zip(points, point, strict=True)) for point in grid)
    else:
        for attempt in range(POINTS):
            yield _suggest(study, [], f"{word} chance {attempt}", "random")


def outlook(study: Study, most: int, target: float | None) -> tuple[int, dict | None, list[findings.Finding]]:
    """(trainings to go of `most`, record of the next suggestion as if all before it had run, why there is none)."""
    trials = known = study.trials()
    trained = sum(trial["kind"] != BASE for trial in trials)
    left = max(0, min(most, study.points()) - trained) if not study.reached(trials, target) else 0
    while left > (not any(trial["kind"] == DEFAULT for trial in trials)):
        trial, table = propose(study, known)
        if table is None:
            return 0, None, [used_up(trials, trial)]
        if trial["kind"] == SEARCH:
            return left, trial, []
        known = [*known, trial]
    return left, None, []


def used_up(trials: list[dict], trial: dict) -> findings.Finding:
    """Why a trial could not be proposed: an error when no suggestion has ever run."""
    why = f"; the last one that was refused: {trial['reason']}" if trial["reason"] else ""
    message = f"got no point of the ranges that is legal and has not run, after {len(trials)} trials{why}"
    make = findings.warning if any(row["kind"] == SEARCH for row in trials) else findings.error
    return make("TUNE-SPACE-USED", "--range", message, "wider --range values, with a new --study folder")


def searched(study: Study, table: dict) -> dict:
    """The values that a spec has for the study's keys, without those that are off or absent in it."""
    keys = [dimension.key for dimension in study.dimensions if space.active(dimension, table)]
    return {key: value for key in keys if (value := spec.get(table, key)) is not None}


def _suggest(study: Study, trials: list[dict], word: str, name: str) -> dict:
    import optuna

    seed, samplers = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]), optuna.samplers
    tpe = samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    optimizer = as_optuna(study, trials, samplers.RandomSampler(seed) if name == "random" else tpe)
    asked = optimizer.ask({dimension.key: dimension.distribution() for dimension in study.dimensions})
    return {d.key: d.value(asked.params[d.key]) for d in study.dimensions}


def as_optuna(study: Study, trials: list[dict], sampler=None):
    """The trials as an Optuna study in memory. A failed one counts as pruned before its first validation, so that the
    sampler learns to stay away; validation losses count negative where the objective is maximized."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    state = optuna.trial.TrialState
    states = {RUNNING: state.RUNNING, COMPLETE: state.COMPLETE, PRUNED: state.PRUNED, FAILED: state.PRUNED}
    direction = "minimize" if study.sign > 0 else "maximize"
    optimizer = optuna.create_study(direction=direction, sampler=sampler or optuna.samplers.RandomSampler(0))
    dimensions = {dimension.key: dimension.distribution() for dimension in study.dimensions}
    for trial in trials:
        if not (params := study.params(trial["values"])):
            continue
        seen = {int(at): value for at, value in trial["intermediate"].items()}
        made = optuna.trial.create_trial(
            state=states[trial["state"]],
            value=trial["objective"],
            params=params,
            distributions={key: dimensions[key] for key in params},
            intermediate_values={} if trial["state"] == FAILED else seen,
            system_attrs=trial["rungs"],
        )
        optimizer.add_trial(made)
    return optimizer


def assemble(study: Study, suggested: dict) -> tuple[dict, list[dict], str]:
    """(spec, repairs, why it is refused or '') of suggested values."""
    table = copy.deepcopy(study.plan["spec"])
    for dimension in study.dimensions:
        if space.active(dimension, table):
            space.put(table, dimension, suggested[dimension.key])
    table, repairs, refused = repaired(table, study.plan["engine"], study.plan["facts"])
    values = searched(study, table)
    changed = {key for key, value in values.items() if value != suggested[key]} - study.params(values).keys()
    if repairs and changed:
        refused = refused or f"{min(changed)}: {repairs[-1]['fix']} is outside of its range"
    return table, repairs, refused


def repaired(table: dict, engine: str, facts: str | None) -> tuple[dict, list[dict], str]:
    """(spec, what was changed, the error that is left or ''): each error's fix is applied as build_spec would."""
    repairs: list[dict] = []
    while True:
        found = rules.check("train", engine, table, Path(facts) if facts else None, launch=True)
        wrong = next((finding for finding in found if finding.severity == findings.ERROR), None)
        if wrong is None:
            return table, repairs, ""
        words = shlex.split(wrong.fix) if wrong.fix.startswith("--") else []
        pairs = list(zip(words[::2], words[1::2], strict=False))
        sets, unsets = ([value for flag, value in pairs if flag == wanted] for wanted in ("--set", "--unset"))
        draft = spec_sources.Draft("train", engine, copy.deepcopy(table))
        spec_sources.take_settings(draft, sets, unsets, [])
        if draft.spec == table or draft.findings or len(repairs) == 8:
            return table, repairs, f"{wrong.id} {wrong.where}: {wrong.message}"
        table = draft.spec
        repairs.append({"id": wrong.id, "message": wrong.message, "fix": wrong.fix})


def prunes(study: Study, trials: list[dict], trial: dict) -> bool:
    """Whether successive halving ends this trial now; notes in it the rungs it has passed."""
    import optuna

    optimizer = as_optuna(study, [row for row in trials if row["number"] != trial["number"]] + [trial])
    ended = optuna.pruners.SuccessiveHalvingPruner(**RUNGS).prune(optimizer, optimizer.trials[-1])
    trial["rungs"] = optimizer.trials[-1].system_attrs
    return ended


def winning_spec(study: Study, trial: dict) -> dict:
    """The spec that the trial ran with; outputs and uploads are as the user had them."""
    table = spec.load(study.trial_folder(trial["number"]) / "train.toml")
    for key in OUTPUTS:
        spec.delete(table, key)
        if (value := spec.get(study.plan["spec"], key)) is not None:
            spec.set_value(table, key, value)
    return table
