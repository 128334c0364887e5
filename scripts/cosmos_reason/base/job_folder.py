"""Where the files of a recorded job are. Its record holds the absolute paths of the place where it
was submitted; a job that was moved or copied holds its own files, so the folder that is named wins.

`here` turns a recorded path into the one that is there now:
  <job as it was recorded>/X   -> <the folder that is named>/X
  <another job beside it>/X    -> <that job beside the named folder>/X, when it is there
  any other path               -> as it is
A job that was retried and its retries are one training: `attempts`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure, bad_input

RECORD = "job.json"
MARK = "COSMOS_REASON_JOB_ID"  # in the environment of every process of a job
RESULTS = "results"  # in the folder of a job: its outputs, unless the spec names others
ID = re.compile(rf"({'|'.join(bundle.ACTIONS)})-\d{{8}}-\d{{6}}-[0-9a-f]{{6}}")
MOST_ABOVE = 6  # folders between a file of a job and the job: results/RUN/safetensors/STEP/FILE
# Of a record, what holds paths; the command stays what ran.
HOLD_PATHS = ("spec", "working_dir", "inputs", "outputs", "options", "evidence")


def id_of(folder: Path) -> str:
    """Return the id of the job that this process works for in `folder`: a rendered launch gets its
    id when it starts, in a folder of any name; else the folder has the name of its job."""
    named = os.environ.get(MARK, "")
    return named if ID.fullmatch(named) else folder.name


@dataclass(frozen=True)
class Place:
    """The folder of a job now, and the one it had when it was recorded."""

    now: Path
    then: Path

    @property
    def is_moved(self) -> bool:
        """Return whether the folder is not the recorded one: it was moved, or is a copy."""
        if self.now == self.then:
            return False
        try:
            return not os.path.samefile(self.now, self.then)
        except OSError:
            return True

    def here(self, path: str) -> str:
        """Return where a recorded path is now."""
        for then in (self.then, Path(os.path.realpath(self.then))):
            found = _replaced(path, then, self.now)
            if found is None and then.parent != self.now.parent:
                found = _replaced(path, then.parent, self.now.parent)
                if found and not self.is_beside(found):
                    found = None
            if found is not None:
                return found
        return path

    def is_beside(self, path: str) -> bool:
        """Return whether a path lies in this job, or in another job of the same folder of jobs."""
        if not Path(path).is_relative_to(self.now.parent):
            return False
        name, *_ = Path(path).relative_to(self.now.parent).parts or ("",)
        return name == self.now.name or (
            bool(ID.fullmatch(name)) and (self.now.parent / name).is_dir()
        )

    def recorded(self, value):
        """Return the inverse of `here` for all paths in a value: what a record of the old place
        says."""

        def back(path: str) -> str:
            own = _replaced(path, self.now, self.then)
            if own is None and self.is_beside(path):
                own = _replaced(path, self.now.parent, self.then.parent)
            return path if own is None else own

        return walked(value, back)


def _replaced(path: str, old: Path, new: Path) -> str | None:
    """Return the path with another beginning; None where it does not begin so."""
    if not Path(path).is_relative_to(old):
        return None
    return str(new / Path(path).relative_to(old))


def walked(value, change):
    """Return a value of JSON or TOML with each absolute path in it changed."""
    if isinstance(value, dict):
        return {key: walked(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [walked(part, change) for part in value]
    return change(value) if isinstance(value, str) and value.startswith("/") else value


def place(folder: Path, record: dict) -> Place:
    """Return where a job is and was: its copy of the spec was recorded with its path. A record that
    does not say so is taken to be where it was written."""
    now = Path(os.path.abspath(folder))
    spec = record.get("spec")
    path = spec.get("path") if isinstance(spec, dict) else None
    is_path = isinstance(path, str) and path.startswith("/")
    return Place(now, Path(path).parent if is_path else now)


def place_of(folder: Path) -> Place:
    """Return `place` by the record in the folder; a broken one says nothing of another place."""
    try:
        record = files.read_json(folder / RECORD)
    except Failure:
        record = {}
    return place(folder, record if isinstance(record, dict) else {})


def relocated(folder: Path, record: dict) -> dict:
    """Return a record with the paths that are there now. `results/` in the folder wins over an
    output that is gone."""
    at = place(folder, record)
    if not at.is_moved:
        return record
    found = dict(record)
    for name in HOLD_PATHS:
        found[name] = walked(record.get(name), at.here)
    outputs = found["outputs"]
    own = at.now / RESULTS
    if isinstance(outputs, dict) and own.is_dir():
        for name, path in outputs.items():
            if isinstance(path, str) and not os.path.isdir(path):
                outputs[name] = str(own)
    return {name: value for name, value in found.items() if name in record}


def read(folder: Path) -> dict:
    """Return the record of the job in `folder`, unchecked, with the paths that are there now.
    Raises Failure (exit 2) for what is no JSON object."""
    record = files.read_json(folder / RECORD)
    if not isinstance(record, dict):
        message = "got something else than the record of a job"
        raise bad_input("JOB-RECORD-BROKEN", folder / RECORD, message)
    return relocated(folder, record)


def here(folder: Path, table: dict) -> dict:
    """Return a table of the job in `folder`, such as its spec, with the paths that are there
    now."""
    at = place_of(folder)
    return walked(table, at.here) if at.is_moved else table


def home_of(path: Path) -> Path | None:
    """Return the folder of the job that a path is or lies in; None where it is of no job."""
    whole = Path(os.path.abspath(path))
    for folder in (whole, *whole.parents[:MOST_ABOVE]):
        if (folder / RECORD).is_file():
            return folder
    return None


def attempts(folder: Path) -> list[Path]:
    """Return the jobs that are one training or one evaluation, the oldest first: the job in
    `folder`, what it is a retry of as far as that is here, and the retries beside them."""
    folder = Path(os.path.abspath(folder))
    found = [folder]
    while (earlier := _retried(found[0])) and earlier not in found:
        found.insert(0, earlier)
    ids = {attempt.name for attempt in found}
    for beside in sorted(_retries(folder), key=lambda path: path.name):
        if _record(beside).get("retry_of") in ids and beside not in found:
            found.append(beside)
            ids.add(beside.name)
    return found


def files_of_attempts(path: Path) -> list[Path]:
    """Return a file of a job, after those of the same name of the jobs that it is a retry of; of no
    job the file alone."""
    path = Path(os.path.abspath(path))
    if not (path.parent / RECORD).is_file():
        return [path]
    found = []
    for attempt in attempts(path.parent):
        found.append(attempt / path.name)
        if attempt == path.parent:
            break
    return found


def _retried(folder: Path) -> Path | None:
    """Return the job that a job is a retry of: beside it, or where its spec was taken from."""
    record = _record(folder)
    job_id = record.get("retry_of")
    if not isinstance(job_id, str) or not ID.fullmatch(job_id):
        return None
    spec = record.get("spec")
    source = spec.get("source") if isinstance(spec, dict) else None
    homes = [folder.parent / job_id]
    if isinstance(source, str) and Path(source).parent.name == job_id:
        homes.append(Path(source).parent)
    return next((home for home in homes if (home / RECORD).is_file()), None)


def _retries(folder: Path) -> list[Path]:
    """Return the jobs of the same action beside a job that are newer, among which its retries
    are."""
    action = folder.name.partition("-")[0]
    try:
        names = os.listdir(folder.parent)
    except OSError:
        return []
    newer = [name for name in names if ID.fullmatch(name) and name > folder.name]
    return [folder.parent / name for name in newer if name.partition("-")[0] == action]


def _record(folder: Path) -> dict:
    try:
        return read(folder)
    except Failure:  # a broken record says nothing of other jobs
        return {}
