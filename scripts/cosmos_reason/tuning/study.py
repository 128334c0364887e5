"""The study folder: study.json (what is searched, fixed when it begins), a folder per trial, and
the lock that one process at a time holds.

A trial is one small file that a person can read, and that appears and changes whole or not at all;
Optuna's study is put together from these files for each suggestion. Optuna's own storages do not
carry what a trial of jobs needs. Its journal is lost when a kill or a full disk cuts a line short
(version 5 then fails with an AttributeError); SQLite must not lie on NFS or Lustre, where studies
of a cluster do; and one damaged file would take all trials with it instead of one.
"""

from __future__ import annotations

import copy
import fcntl
import functools
import math
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.jobs import record
from cosmos_reason.spec import document
from cosmos_reason.tuning import space
from cosmos_reason.tuning.space import Dimension

VERSION = 1
BASE, DEFAULT, SEARCH = "base", "default", "search"
RUNNING = "RUNNING"
COMPLETE = "COMPLETE"
PRUNED = "PRUNED"
FAILED = "FAILED"
VAL_LOSS = "val_loss"
GUARD_ACCURACY = "guard_accuracy"  # among a trial's metrics, where general questions are asked too
MODEL = "policy.model_name_or_path"
# What a spec says of its results; a trial keeps them in its own job folder and publishes nothing.
OUTPUTS = ("train.output_dir", "train.timestamp", "train.ckpt.upload_hf", "train.ckpt.upload_s3")
# Keys of study.json that stay as they were when the study began: trials compare only then.
FIXED = {"spec", "evaluate", "dimensions", "objective", "metric_file", "sampler", "pruner",
         "seed", "engine", "facts"}  # fmt: skip
# Keys that a later run may set anew.
FREE = {"schema_version", "created_at", "fingerprints", "platform", "launch", "keep"}
# How long the study goes on, on which GPUs, on how many nodes (None: as few as hold them), and for
# how long its runs have worked. A later run may set them anew too; older studies lack them.
BUDGET = {
    "trials": 12,
    "hours": None,
    "target": None,
    "groups": [None],
    "nodes": None,
    "site": None,
    "worked_seconds": 0.0,
}
# Locked by the commands of a run, which outlive it when it is killed.
COMMANDS_LOCK = "commands.lock"


@dataclass
class Study:
    """An existing study folder. `plan` is study.json."""

    folder: Path
    plan: dict

    @functools.cached_property
    def dimensions(self) -> list[Dimension]:
        return [Dimension(**row) for row in self.plan["dimensions"]]

    @property
    def minimizes(self) -> bool:
        """Return whether a smaller objective is a better one."""
        return self.plan["objective"] == VAL_LOSS

    def save(self) -> None:
        files.write_json(self.folder / "study.json", self.plan)

    # -- trials on disk

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04}"

    def jobs_dir(self, trial: dict) -> Path:
        return self.trial_folder(trial["number"]) / "jobs"

    def jobs_of(self, trial: dict, action: str) -> list[Path]:
        """Return the folders of a trial's jobs of one action that were not set aside, newest
        first."""
        found = []
        for path in record.folders(self.jobs_dir(trial)):
            if path.name.startswith(f"{action}-") and path.name not in trial["set_aside"]:
                found.append(path)
        return found

    def numbers(self) -> list[int]:
        """Return the numbers of all trials that have begun, readable or not."""
        return sorted(int(path.name) for path in self.folder.glob("trials/[0-9][0-9][0-9][0-9]"))

    def trained(self) -> int:
        """Return how many trainings were begun, whatever became of them; trial 0 is the untouched
        model."""
        return sum(number > 0 for number in self.numbers())

    def trials(self) -> list[dict]:
        """Return all records that can be read, by number."""
        return self.read()[0]

    def read(self) -> tuple[list[dict], list[Finding]]:
        """Return all records that can be read, by number, and a warning for each that cannot."""
        trials, found = [], []
        for number in self.numbers():
            try:
                trials.append(self.trial(number))
            except Failure as failure:
                for finding in failure.findings:
                    found.append(replace(finding, severity=findings.WARNING))
        return trials, found

    def trial(self, number: int) -> dict:
        """Read one record. Raises Failure (exit 2) when it is gone or broken."""
        folder = self.trial_folder(number)
        path = folder / "trial.json"
        try:
            row = files.read_json(path)
            problem = _problem_of(row, number)
        except Failure as failure:
            problem = failure.findings[0].message
        if problem:
            message = f"the record of trial {number} is broken ({problem}); the study goes on "
            message += "without it"
            set_aside = folder.with_name(f"broken-{folder.name}")
            fix = shlex.join(["mv", str(folder), str(set_aside)])
            raise findings.bad_input("TUNE-TRIAL-BROKEN", path, message, fix)
        # Studies that began before `outside` was noted lack it; what newer ones add is left out.
        known = bundle.schema("trial")["properties"]
        return {"outside": False} | {name: row[name] for name in known if name in row}

    def write(self, trial: dict) -> None:
        files.write_json(self.trial_folder(trial["number"]) / "trial.json", trial)

    def add(self, trial: dict, table: dict) -> None:
        """Put a proposed trial, and the spec that it trains with, on disk."""
        with files.whole_folder(self.trial_folder(trial["number"])) as partial:
            document.dump(trial_spec(table), partial / "train.toml", "train")
            files.write_json(partial / "trial.json", trial)

    # -- what they reached

    def ranked(self, trials: list[dict]) -> list[dict]:
        """Return the trainings that ended well, best first; of equals the earlier one."""
        done = []
        for trial in trials:
            if trial["kind"] != BASE and trial["state"] == COMPLETE:
                done.append(trial)
        # sorted keeps the order of equals, also when it is reversed
        return sorted(done, key=lambda trial: trial["objective"], reverse=not self.minimizes)

    def is_at_least(self, objective: float, other: float) -> bool:
        """Return whether an objective is as good as another."""
        return objective <= other if self.minimizes else objective >= other

    def reached(self, trials: list[dict]) -> bool:
        """Return whether the best trial is as good as the target."""
        target = self.plan["target"]
        ranked = self.ranked(trials)
        if target is None or not ranked:
            return False
        return self.is_at_least(ranked[0]["objective"], target)

    # -- the space

    def searched(self, table: dict) -> dict:
        """Return the values that a spec has for the study's keys, without those that are off or
        absent in it."""
        values = {}
        for dimension in self.dimensions:
            value = document.get(table, dimension.key)
            if value is not None and not space.idle(dimension, table):
                values[dimension.key] = value
        return values

    def params(self, values: dict) -> dict:
        """Return key -> the sampler's coordinate of each value that the ranges can express."""
        params = {}
        for dimension in self.dimensions:
            coordinate = dimension.coordinate(values.get(dimension.key))
            if coordinate is not None:
                params[dimension.key] = coordinate
        return params

    def points(self) -> float:
        """Return how many different trainings there can be at most."""
        in_ranges = math.prod(len(each.points()) or math.inf for each in self.dimensions)
        # The spec as it was given is one more where the ranges do not hold it.
        default = self.params(self.searched(self.plan["spec"]))
        return in_ranges + (len(default) < len(self.dimensions))


def _problem_of(row: dict, number: int) -> str:
    """Return what is wrong with a record, '' when nothing is."""
    import jsonschema

    # A newer version may add fields; the ones known here must be right.
    schema = bundle.schema("trial") | {"additionalProperties": True}
    problem = next(jsonschema.Draft202012Validator(schema).iter_errors(row), None)
    if problem is not None:
        return f"{problem.json_path}: {problem.message}"
    if row["number"] != number:
        return f"it is of trial {row['number']}"
    # What no JSON schema can say: that a time is one, and a number finite.
    for name in ("started_at", "ended_at"):
        try:
            if row[name] is not None:
                record.seconds(row[name])
        except ValueError:
            return f"{name} is {row[name]!r}"
    if row["objective"] is not None and not math.isfinite(row["objective"]):
        return f"its objective is {row['objective']}"
    return ""


# -- opening one ---------------------------------------------------------------------------------


def open_or_begin(folder: Path, described: dict | None = None) -> Study:
    """Open the study in `folder`, or the one that `described` begins there once it is saved.

    Raises Failure (exit 2) when there is none, or another one."""
    folder = folder.absolute()  # jobs run elsewhere
    path = folder / "study.json"
    if folder.exists() and not folder.is_dir():
        message = "--study names a file; it must name a folder"
        raise findings.bad_input("TUNE-STUDY", folder, message)
    if described and not path.is_file():
        return Study(folder, BUDGET | described)
    plan = files.read_json(path)
    is_one = isinstance(plan, dict) and plan.keys() >= FIXED | FREE
    if not is_one or plan["schema_version"] != VERSION:
        version = plan.get("schema_version") if isinstance(plan, dict) else None
        message = f"study.json is no study of version {VERSION} (its version: {version}); "
        message += "name a new --study folder"
        raise findings.bad_input("TUNE-STUDY-VERSION", folder, message)
    changed = []
    if described:
        changed = [name for name in sorted(FIXED) if described[name] != plan[name]]
    if changed:
        model_then = document.get(plan["spec"], MODEL)
        model_now = document.get(described["spec"], MODEL)
        message = f"the study began with another {', '.join(changed)}"
        if model_then != model_now:
            message = f"the study is one of model {model_then}, not of {model_now}"
        message += "; leave out --spec to go on with it, or name a new --study folder"
        raise findings.bad_input("TUNE-STUDY-OTHER", "--study", message, changed=changed)
    return Study(folder, BUDGET | plan)


@contextmanager
def owned(folder: Path) -> Iterator[int]:
    """Own the study until the block ends. Raises Failure (exit 3) when another process owns it.

    Yields a descriptor that the commands of its trials are to inherit: what a killed run has
    started is waited for here, so that no job is submitted twice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = record.take_lock(folder)  # the lock that a job folder has
    except BlockingIOError:
        owner = (folder / record.LOCK).read_text(errors="replace") or "another process"
        message = f"{owner} runs this study, and one run at a time may"
        fix = shlex.join(["scripts/tune_hyperparameters.py", "status", "--study", str(folder)])
        raise findings.outside("TUNE-STUDY-LOCKED", folder, message, fix) from None
    try:
        owner = f"process {os.getpid()} on {socket.gethostname()} since {record.now()}"
        os.ftruncate(lock, 0)
        os.pwrite(lock, owner.encode(), 0)
        with open(folder / COMMANDS_LOCK, "a") as commands:
            try:
                fcntl.flock(commands, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                findings.say("waiting for what a killed run of this study has started")
                fcntl.flock(commands, fcntl.LOCK_EX)
            yield commands.fileno()
    finally:
        os.close(lock)


def is_owned(folder: Path) -> bool:
    """Return whether a run owns the study, without standing in the way of one that begins."""
    return (folder / record.LOCK).exists() and not record.is_idle(folder)


# -- specs ---------------------------------------------------------------------------------------


def trial_spec(table: dict) -> dict:
    """Return the spec as a trial runs it: into its own job folder, and nothing is published."""
    table = copy.deepcopy(table)
    for key in OUTPUTS:
        document.delete(table, key)
    document.set_value(table, "train.output_dir", "")
    return table


def winning_spec(study: Study, trial: dict) -> dict:
    """Return the spec that the trial ran with; outputs and uploads are as the user had them."""
    table = document.load(study.trial_folder(trial["number"]) / "train.toml")
    for key in OUTPUTS:
        document.delete(table, key)
        value = document.get(study.plan["spec"], key)
        if value is not None:
            document.set_value(table, key, value)
    return table
