"""The study folder: study.json (what is searched, fixed when it begins) and one folder per trial.

Every trial is a file that appears and changes whole or not at all, and Optuna's study is put
together from these files for each suggestion: so a study survives a kill or a full disk (Optuna's
journal does not survive a line cut short).
"""

from __future__ import annotations

import copy
import functools
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import record as jobs
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
# What a spec says of its results; a trial keeps them in its own job folder and publishes nothing.
OUTPUTS = ("train.output_dir", "train.timestamp", "train.ckpt.upload_hf", "train.ckpt.upload_s3")
# Keys of study.json that stay as they were when the study began.
FIXED = {
    "spec",
    "evaluate",
    "dimensions",
    "objective",
    "metric_file",
    "sampler",
    "pruner",
    "seed",
    "engine",
    "facts",
}
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
    "worked_seconds": 0.0,
}


@dataclass
class Study:
    """An existing study folder. `plan` is study.json."""

    folder: Path
    plan: dict

    @property
    def dimensions(self) -> list[Dimension]:
        return [Dimension(**row) for row in self.plan["dimensions"]]

    @property
    def minimizes(self) -> bool:
        """Whether a smaller objective is a better one."""
        return self.plan["objective"] == VAL_LOSS

    # -- trials on disk

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04}"

    def jobs_dir(self, trial: dict) -> Path:
        return self.trial_folder(trial["number"]) / "jobs"

    def jobs_of(self, trial: dict, action: str) -> list[Path]:
        """Folders of the trial's jobs of one action that were not set aside, newest first."""
        folders = jobs.folders(self.jobs_dir(trial))
        of_action = [path for path in folders if path.name.startswith(f"{action}-")]
        return [path for path in of_action if path.name not in trial["set_aside"]]

    def numbers(self) -> list[int]:
        """The numbers of all trials that have begun, whether their records can be read or not."""
        return sorted(int(path.name) for path in self.folder.glob("trials/[0-9][0-9][0-9][0-9]"))

    def trials(self) -> list[dict]:
        """All records that can be read, by number."""
        return self.read()[0]

    def read(self) -> tuple[list[dict], list[Finding]]:
        """(all records that can be read, by number; a warning for each one that cannot)."""
        trials, found = [], []
        for number in self.numbers():
            try:
                trials.append(self.trial(number))
            except Failure as failure:
                for finding in failure.findings:
                    found.append(replace(finding, severity=findings.WARNING))
        return trials, found

    def trial(self, number: int) -> dict:
        """Raises Failure (exit 2) for a record that is gone or broken."""
        folder = self.trial_folder(number)
        path = folder / "trial.json"
        try:
            row = _known_fields(files.read_json(path))
            problem = _problem_of(row, number)
        except Failure as failure:
            problem = failure.findings[0].message.removeprefix("got ")
        if problem:
            set_aside = folder.with_name(f"broken-{folder.name}")
            fix = shlex.join(["mv", str(folder), str(set_aside)])
            message = f"got {problem}, expected the record of a trial; the study goes on without it"
            raise findings.bad_input("TUNE-TRIAL-BROKEN", path, message, fix)
        return row

    def save(self) -> None:
        files.write_json(self.folder / "study.json", self.plan)

    def write(self, trial: dict) -> None:
        files.write_json(self.trial_folder(trial["number"]) / "trial.json", trial)

    def add(self, trial: dict, table: dict) -> None:
        """Put a proposed trial, and the spec that it trains with, on disk."""
        with files.whole_folder(self.trial_folder(trial["number"])) as partial:
            document.dump(trial_spec(table), partial / "train.toml", "train")
            files.write_json(partial / "trial.json", trial)

    # -- what they reached

    def ranked(self, trials: list[dict]) -> list[dict]:
        """Trainings that ended well, best first; of equals the earlier one."""
        searched = [trial for trial in trials if trial["kind"] != BASE]
        done = [trial for trial in searched if trial["state"] == COMPLETE]
        # sorted keeps the order of equals, also when it is reversed
        return sorted(done, key=lambda trial: trial["objective"], reverse=not self.minimizes)

    def is_at_least(self, objective: float, other: float) -> bool:
        """Whether an objective is as good as another."""
        return objective <= other if self.minimizes else objective >= other

    def trained(self) -> int:
        """How many trainings were begun, whatever became of them; trial 0 is the untouched
        model."""
        return sum(number > 0 for number in self.numbers())

    def reached(self, trials: list[dict]) -> bool:
        """Whether the best trial is as good as the target."""
        target = self.plan["target"]
        ranked = self.ranked(trials)
        if target is None or not ranked:
            return False
        return self.is_at_least(ranked[0]["objective"], target)

    # -- the space

    def searched(self, table: dict) -> dict:
        """The values that a spec has for the study's keys, without those that are off or absent
        in it."""
        values = {}
        for dimension in self.dimensions:
            value = document.get(table, dimension.key)
            if value is not None and space.active(dimension, table):
                values[dimension.key] = value
        return values

    def params(self, values: dict) -> dict:
        """Key -> the sampler's coordinate of each value that this study's ranges can express."""
        params = {}
        for dimension in self.dimensions:
            if dimension.key in values:
                coordinate = dimension.coordinate(values[dimension.key])
                if coordinate is not None:
                    params[dimension.key] = coordinate
        return params

    def points(self) -> float:
        """How many different trainings there can be at most."""
        in_ranges = math.prod(len(each.points()) or math.inf for each in self.dimensions)
        default = self.params(self.searched(self.plan["spec"]))
        default_is_beyond = len(default) < len(self.dimensions)
        return in_ranges + (1 if default_is_beyond else 0)


def _known_fields(row) -> dict:
    """Raises Failure for a record that is no table."""
    if not isinstance(row, dict):
        raise findings.bad_input("TUNE-TRIAL-BROKEN", "", "got something else than a table")
    known = {"outside": False}  # studies that began before it was noted lack it
    for name in bundle.schema("trial")["properties"]:
        if name in row:
            known[name] = row[name]
    return known


@functools.cache
def _validator():
    import jsonschema

    return jsonschema.Draft202012Validator(bundle.schema("trial"))


def _problem_of(row: dict, number: int) -> str:
    """What is wrong with a record, '' when nothing is."""
    problem = next(_validator().iter_errors(row), None)
    if problem is not None:
        return f"{problem.json_path}: {problem.message}"
    if row["number"] != number:
        return f"the record of trial {row['number']}"
    for name in ("started_at", "ended_at"):
        if row[name] is not None and not _is_time(row[name]):
            return f"{name} {row[name]!r}"
    objective = row["objective"]
    if objective is not None and not math.isfinite(objective):
        return f"an objective of {objective}"
    return ""


def _is_time(text: str) -> bool:
    try:
        jobs.seconds(text)
    except ValueError:
        return False
    return True


def open_or_begin(folder: Path, described: dict | None = None) -> Study:
    """The study in `folder`, or the one that `described` begins there once it is saved. Raises
    Failure (exit 2) when there is none, or another one."""
    folder = folder.absolute()  # jobs run elsewhere
    path = folder / "study.json"
    if folder.exists() and not folder.is_dir():
        message = "got a file, expected the name of a folder"
        fix = Fix(flags={"--study": "DIR"})
        raise findings.bad_input("TUNE-STUDY", folder, message, fix)
    if described and not path.is_file():
        return Study(folder, BUDGET | described)
    plan = files.read_json(path)
    _refuse_other_version(plan, folder)
    if described:
        _refuse_other_study(plan, described)
    return Study(folder, BUDGET | plan)


def _refuse_other_version(plan, folder: Path) -> None:
    if not isinstance(plan, dict):
        version = type(plan).__name__
    elif plan.get("schema_version") == VERSION and plan.keys() >= FIXED | FREE:
        return
    else:
        version = plan.get("schema_version")
    message = f"got something else, or of version {version}, expected a study of version {VERSION}"
    raise findings.bad_input("TUNE-STUDY-VERSION", folder, message, "a new --study folder")


def _refuse_other_study(plan: dict, described: dict) -> None:
    changed = [name for name in sorted(FIXED) if described[name] != plan[name]]
    if not changed:
        return
    model_then = document.get(plan["spec"], "policy.model_name_or_path")
    model_now = document.get(described["spec"], "policy.model_name_or_path")
    got = f"got a study that began with another {', '.join(changed)}"
    if model_then != model_now:
        got = f"got a study of model {model_then}, expected {model_now}"
    fix = "leave out --spec to go on with it, or name a new --study folder"
    raise findings.bad_input("TUNE-STUDY-OTHER", "--study", got, fix)


def trial_spec(table: dict) -> dict:
    """The spec as a trial runs it: into its own job folder, and nothing is published."""
    table = copy.deepcopy(table)
    for key in OUTPUTS:
        document.delete(table, key)
    document.set_value(table, "train.output_dir", "")
    return table


def winning_spec(study: Study, trial: dict) -> dict:
    """The spec that the trial ran with; outputs and uploads are as the user had them."""
    table = document.load(study.trial_folder(trial["number"]) / "train.toml")
    for key in OUTPUTS:
        document.delete(table, key)
        value = document.get(study.plan["spec"], key)
        if value is not None:
            document.set_value(table, key, value)
    return table
