"""The job folder `jobs/<job_id>/`: its record (job.json, schemas/job.schema.json) and its lock.

Whoever holds the lock writes the record: first the launcher, then the supervisor, which inherits
the lock from it, and once nobody is left, whoever asks how the job ended. The kernel drops the lock
with the last process that carries it (work on this machine carries it too), so "is it still
running" needs no process id and cannot be fooled by a reused one. Work on a cluster carries none:
its platform is asked, by the supervisor or, of SLURM, by whoever wants to know.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import secrets
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from cosmos_reason.base import bundle, files, job_folder
from cosmos_reason.base.findings import Failure, Finding, bad_input, did_you_mean, outside, warning
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import actions, document

PENDING = "PENDING"
RUNNING = "RUNNING"
COMPLETE = "COMPLETE"
ERROR = "ERROR"
CANCELED = "CANCELED"
UNKNOWN = "UNKNOWN"  # an answer, never recorded
OUT_OF_REACH = "JOB-OUT-OF-REACH"
ENDED = {COMPLETE, ERROR, CANCELED}
JOBS_DIR_VARIABLE = "COSMOS_REASON_JOBS"
ID = job_folder.ID
TIME = "%Y-%m-%dT%H:%M:%SZ"

# Files of a job folder.
RECORD = job_folder.RECORD
LOCK = "job.lock"
CANCEL = "cancel.requested"
LOG = "log.txt"
METRICS = "metrics.jsonl"
LAUNCH = "launch.sh"
SPEC = "spec.toml"
CONTAINER_SPEC = "container.toml"  # the spec with a container's paths
BEFORE = "outputs.before.json"

# In `platform_ref`, of a job whose platform tells that it has ended: what it noted of its end is
# not seen here yet.
END_SEEN = "end_seen_at"


# -- the record --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is recorded of a job. schemas/job.schema.json says what each field means; a change is a
    new Job (`dataclasses.replace`), and `write` puts it in place of the old one."""

    folder: Path = field(compare=False)  # where the record lies; not a part of it
    # Where it lay when it was recorded, as the paths in the file have it; None before that.
    place: job_folder.Place | None = field(default=None, compare=False, repr=False)
    schema_version: int = 1
    job_id: str
    action: str
    engine: str
    platform: str
    state: str = PENDING
    reason: str = ""
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    spec: dict[str, str | None]
    command: list[str] = field(default_factory=list)
    working_dir: str
    image: str | None = None
    options: dict = field(default_factory=dict)
    resources: dict
    inputs: list[dict]
    outputs: dict[str, str]
    site: str | None = None
    platform_ref: dict
    parent_job: str | None = None
    retry_of: str | None = None
    exit_code: int | None = None
    evidence: dict = field(default_factory=dict)
    diagnosis: list[dict] = field(default_factory=list)
    # The record as it was read: the order of its keys, and those of newer versions.
    stored: dict = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, folder: Path) -> Job:
        """Return the record of the job in `folder`. Raises Failure (exit 2) when it is missing, not
        JSON, of another job, or not what submit writes."""
        job = cls.load_unchecked(folder)
        faults = list(dict.fromkeys(_faults(job.stored)))  # one field that lacks tells all
        if faults:
            message = f"got a record with {'; '.join(faults[:5])}, expected what submit writes: "
            message += "it was edited or is of another version"
            raise bad_input("JOB-RECORD-BROKEN", folder / RECORD, message)
        return job

    @classmethod
    def load_unchecked(cls, folder: Path) -> Job:
        """Return the record for those who can do with a part of it: a field may be None or have
        another form. Raises Failure (exit 2) when it is no record of this job at all."""
        record = files.read_json(folder / RECORD)
        is_record = isinstance(record, dict) and record.get("job_id") == folder.name
        if not is_record or record.get("state") == UNKNOWN:
            message = "got something else than the record of this job"
            raise bad_input("JOB-RECORD-BROKEN", folder / RECORD, message)
        return cls.from_json(folder, record)

    @classmethod
    def from_json(cls, folder: Path, record: dict) -> Job:
        """Return a record as it was read, unchecked: a field that it lacks is None. Its paths are
        those that are there now (base/job_folder.py)."""
        now = job_folder.relocated(folder, record)
        known = {name: now.get(name) for name in FIELDS}
        if "options" not in record:
            known["options"] = {}
        return cls(folder=folder, place=job_folder.place(folder, record), stored=record, **known)

    def to_json(self) -> dict:
        """Return what stands in job.json: what was read, with this version's fields as they are
        now."""
        known = {name: getattr(self, name) for name in FIELDS}
        if not self.options and self.stored and "options" not in self.stored:
            del known["options"]
        if not self.site:  # most have none, and those of earlier versions lack it
            del known["site"]
        return self.stored | known

    def write(self) -> None:
        """Put the record into its folder, whole or not at all, with the paths of the place where it
        was recorded: those of the results beside it are of that place, too."""
        record = self.to_json()
        if self.place and self.place.is_moved:
            record = self.place.recorded(record)
        files.write_json(self.folder / RECORD, record)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_ending(self) -> bool:
        """Return whether its end was told, and how it ended is awaited."""
        return not self.has_ended and END_SEEN in self.platform_ref

    @property
    def is_carried(self) -> bool:
        """Return whether it is written out for a place that is not asked from here: its options
        then tell of that place, as `carried`."""
        return "carried" in self.options

    @property
    def spec_path(self) -> Path:
        """Return the job's own copy of the spec."""
        return Path(self.spec["path"])

    def spec_edited(self) -> bool:
        """Return whether the job's own copy of the spec is no longer what was submitted."""
        return _sha256_or_none(self.spec_path) != self.spec["sha256"]

    def spec_changes(self) -> list[Finding]:
        """Return warnings about a spec that is no longer what was submitted."""
        own = self.spec_path
        source = Path(self.spec["source"])
        runs_as_read = "what runs is what was read at the start"
        runs_copy = "the job runs the copy it was submitted with"
        found = []
        if _sha256_or_none(own) != self.spec["sha256"]:
            found.append(self._edited("JOB-SPEC-EDITED", own, runs_as_read, submit=own))
        container = own.with_name(CONTAINER_SPEC)
        digest = self.spec.get("container_sha256")
        if digest and _sha256_or_none(container) != digest:
            found.append(self._edited("JOB-SPEC-EDITED", container, runs_as_read, submit=own))
        if source.exists() and _sha256_or_none(source) != self.spec["source_sha256"]:
            found.append(self._edited("JOB-SOURCE-EDITED", source, runs_copy, submit=source))
        return found

    def _edited(self, id: str, path: Path, consequence: str, submit: Path) -> Finding:
        message = f"got a spec that was edited after submit; {consequence}"
        flags = ["--platform", self.platform, "--engine", self.engine, "--spec", str(submit)]
        fix = shlex.join(["scripts/launch_job.py", "submit", self.action, *flags])
        return warning(id, path, message, fix)

    def wrote(self, paths: Iterable[Path]) -> list[Path]:
        """Return the paths that the job wrote: an output folder may hold results of earlier
        runs."""
        before = self.folder / BEFORE
        stamps_before = files.read_json(before) if before.is_file() else {}
        if self.place and self.place.is_moved:
            stamps_before = {self.place.here(path): at for path, at in stamps_before.items()}
        return [path for path in paths if stamps_before.get(str(path)) != path.lstat().st_mtime_ns]

    def newest_resume(self) -> str | None:
        """Return the newest complete resume folder that a training wrote, of a retry else the one
        that it went on from."""
        output_dir = (self.outputs or {}).get("output_dir")
        if self.action not in actions.TRAINING or not output_dir:
            return None
        # It reads headers of safetensors and of DCP, which few who look at a record need.
        from cosmos_reason.checkpoints import run_outputs

        written = []
        if self.started_at:
            written = self.wrote(run_outputs.resume_folders(Path(output_dir)))
        if written:
            return str(written[-1])
        if not self.retry_of:
            return None
        try:
            spec = document.load(self.spec_path)
        except (Failure, OSError, TypeError):
            return None
        folder = document.get(job_folder.here(self.folder, spec), "train.resume")
        is_there = isinstance(folder, str) and run_outputs.is_complete_resume(Path(folder))
        return folder if is_there else None

    def unknown(self, reason: str, fix: Fix | str = "", cause: str = OUT_OF_REACH) -> Failure:
        """Return a failure (exit 3): nobody can say now how the job is. Its finding carries the
        record with the state UNKNOWN, and the id of the finding that is the cause."""
        record = self.to_json() | {"state": UNKNOWN, "reason": reason}
        return outside(OUT_OF_REACH, self.job_id, reason, fix, job=record, cause=cause)


# What of a Job stands in job.json.
FIELDS = tuple(
    entry.name for entry in fields(Job) if entry.name not in ("folder", "place", "stored")
)


def _faults(record: dict) -> Iterator[str]:
    """Yield where a record departs from its schema; further fields are those of newer versions."""
    for problem in _schema().iter_errors(record):
        place = ".".join(map(str, problem.absolute_path))
        if problem.validator == "required":
            missing = [name for name in problem.validator_value if name not in problem.instance]
            yield f"no {', '.join(missing)} in {place}" if place else f"no {', '.join(missing)}"
        elif problem.validator != "additionalProperties":
            yield f"{json.dumps(problem.instance)[:60]} as {place}"


@functools.cache
def _schema():
    import jsonschema

    return jsonschema.Draft202012Validator(bundle.schema("job"))


def _sha256_or_none(path: Path) -> str | None:
    try:
        return files.sha256(path)
    except OSError:
        return None


def stamps(folders: Iterable[str]) -> dict[str, int]:
    """Return everything in the folders, and when it was last changed: to be written as BEFORE by
    who records a job."""
    return {
        str(path): path.lstat().st_mtime_ns
        for folder in folders
        for path in Path(folder).rglob("*")
    }


# -- times, ids and folders --------------------------------------------------------------------


def time_text(seconds: float) -> str:
    """Return a time as records hold it (UTC), from seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME)


def seconds(text: str) -> float:
    """Return seconds since the epoch, from a time as records hold it."""
    return datetime.strptime(text, TIME).replace(tzinfo=UTC).timestamp()


def now() -> str:
    return datetime.now(UTC).strftime(TIME)


def new_id(action: str) -> str:
    return f"{action}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def root(jobs_dir: str | None) -> Path:
    """Return the folder of all jobs: the one given, else that of the environment, else ./jobs.
    Raises Failure (exit 2) for what is no folder."""
    path = path_of_root(jobs_dir)
    if path.exists() and not path.is_dir():
        message = "got a file, expected the folder of all jobs, or the name of a new one"
        raise bad_input("JOB-JOBS-DIR", path, message, Fix(flags={"--jobs-dir": "DIR"}))
    return path


def path_of_root(jobs_dir: str | None) -> Path:
    """Return the path of `root`, whatever is there."""
    return Path(os.path.abspath(jobs_dir or os.environ.get(JOBS_DIR_VARIABLE) or "jobs"))


def folder(jobs_dir: Path, job_id: str) -> Path:
    """Return the folder of a recorded job, of which the id is given or the path. Raises Failure
    (exit 2) for an id that is malformed or not there."""
    if is_path(job_id):
        return Path(os.path.abspath(job_id))
    fix = "scripts/launch_job.py list"
    if not ID.fullmatch(job_id):
        message = f"got {job_id!r}, expected <action>-<YYYYMMDD>-<HHMMSS>-<6 hex>"
        raise bad_input("JOB-ID-MALFORMED", job_id, message, fix)
    found = jobs_dir / job_id
    if not (found / RECORD).is_file():
        hint = did_you_mean(job_id, (path.name for path in folders(jobs_dir)))
        message = f"got no such job in {jobs_dir}; --jobs-dir names the folder of others.{hint}"
        raise bad_input("JOB-UNKNOWN", job_id, message, fix)
    return found


def is_path(given: str) -> bool:
    """Return whether it is the path of a recorded job's folder."""
    path = Path(os.path.abspath(given))
    return os.sep in given and bool(ID.fullmatch(path.name)) and (path / RECORD).is_file()


def folders(jobs_dir: Path) -> list[Path]:
    """Return the folders of all recorded jobs, newest first. Raises OSError where they cannot be
    listed."""
    if not jobs_dir.exists():
        return []
    ids = [name for name in os.listdir(jobs_dir) if ID.fullmatch(name)]
    ids.sort(key=lambda job_id: job_id[-len("YYYYMMDD-HHMMSS-xxxxxx") :], reverse=True)
    return [jobs_dir / job_id for job_id in ids]


def owner(paths: Iterable[str]) -> str | None:
    """Return the job that wrote one of the paths: the one that the run says, which may be a retry,
    else the one in whose folder it lies."""
    from cosmos_reason.checkpoints import run_outputs

    for path in paths:
        if run_outputs.is_in_run(Path(path)):
            mark = run_outputs.run_marked_by(Path(path).parents[1])
            if mark and ID.fullmatch(mark):
                return mark
        for part in Path(path).parts:
            if ID.fullmatch(part):
                return part
    return None


def words(verb: str, folder: Path) -> tuple[str, ...]:
    """Return the command line that does something with a job: launch_job.py and its arguments."""
    if folder.parent == path_of_root(None):
        return ("launch_job.py", verb, folder.name)
    return ("launch_job.py", verb, folder.name, "--jobs-dir", str(folder.parent))


def command(verb: str, folder: Path) -> str:
    """Return the command line of `words`, to be pasted."""
    return f"scripts/{shlex.join(words(verb, folder))}"


# -- the lock ----------------------------------------------------------------------------------


def take_lock(folder: Path) -> int:
    """Open and lock the lock file of a job; the descriptor is to be inherited by what runs the job.
    Raises BlockingIOError when somebody else has it."""
    # Open for writing, which an exclusive lock needs on NFS.
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError as problem:
        os.close(descriptor)
        message = f"got {problem.strerror} when locking a file"
        fix = "--jobs-dir on a local disk"
        raise outside("JOB-LOCK", folder.parent, message, fix) from None
    return descriptor


def is_idle(folder: Path) -> bool:
    """Return whether no process holds the lock of the job: its supervisor, and what that started
    here. It tells nothing of work on a cluster that nobody follows."""
    with open(folder / LOCK, "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so as not to be in the way
        except BlockingIOError:
            return False
        return True


def request_cancel(folder: Path) -> None:
    """Ask for an end by a file of its own, because the record belongs to the holder of the lock."""
    (folder / CANCEL).touch()


def cancel_requested(folder: Path) -> bool:
    return (folder / CANCEL).exists()
