"""The job folder `jobs/<job_id>/`: its record (job.json, schemas/job.schema.json), its lock and its metrics.

Whoever holds the lock writes the record: first the launcher, then the supervisor, which inherits the lock from it, and
once nobody is left, whoever asks how the job ended. The kernel drops the lock with the last process that carries it
(the work itself carries it too), so "is it still running" needs no process id and cannot be fooled by a reused one.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import secrets
import shlex
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cosmos_reason import bundle, storage, trainer_log
from cosmos_reason.findings import Failure, Finding, bad_input, did_you_mean, outside, warning

PENDING, RUNNING, COMPLETE = "PENDING", "RUNNING", "COMPLETE"
ERROR, CANCELED, UNKNOWN = "ERROR", "CANCELED", "UNKNOWN"  # UNKNOWN is an answer, never recorded
ENDED = {COMPLETE, ERROR, CANCELED}
JOBS_DIR_VARIABLE = "COSMOS_REASON_JOBS"
ID = re.compile(rf"({'|'.join(bundle.ACTIONS)})-\d{{8}}-\d{{6}}-[0-9a-f]{{6}}")
LOCK, CANCEL, LOG, METRICS, LAUNCH = "job.lock", "cancel.requested", "log.txt", "metrics.jsonl", "launch.sh"
CONTAINER_SPEC = "container.toml"  # the spec with a container's paths
BEFORE = "outputs.before.json"
TIME = "%Y-%m-%dT%H:%M:%SZ"
TAIL_BYTES = 256 * 1024  # hundreds of metrics lines; a record's end is found without reading a long file


def time_text(seconds: float) -> str:
    """A time as records hold it (UTC), from seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME)


def seconds(text: str) -> float:
    return datetime.strptime(text, TIME).replace(tzinfo=UTC).timestamp()


def now() -> str:
    return datetime.now(UTC).strftime(TIME)


def new_id(action: str) -> str:
    return f"{action}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def root(jobs_dir: str | None) -> Path:
    return Path(os.path.abspath(jobs_dir or os.environ.get(JOBS_DIR_VARIABLE) or "jobs"))


def folder(jobs_dir: Path, job_id: str) -> Path:
    """The folder of a recorded job. Raises Failure (exit 2) for an id that is malformed or not there."""
    fix = "scripts/launch_job.py list"
    if not ID.fullmatch(job_id):
        message = f"got {job_id!r}, expected <action>-<YYYYMMDD>-<HHMMSS>-<6 hex>"
        raise bad_input("JOB-ID-MALFORMED", job_id, message, fix)
    found = jobs_dir / job_id
    if not (found / "job.json").is_file():
        hint = did_you_mean(job_id, (path.name for path in folders(jobs_dir)))
        raise bad_input("JOB-UNKNOWN", job_id, f"got no such job in {jobs_dir}.{hint}", fix)
    return found


def folders(jobs_dir: Path) -> list[Path]:
    """Folders of all recorded jobs, newest first. Raises OSError for what is no folder."""
    names = os.listdir(jobs_dir) if jobs_dir.exists() else []
    made = sorted((name for name in names if ID.fullmatch(name)), key=lambda name: name[-22:], reverse=True)
    return [jobs_dir / name for name in made]


def owner(paths: Iterable[str]) -> str | None:
    """The job in whose folder one of the paths lies."""
    return next((part for path in paths for part in Path(path).parts if ID.fullmatch(part)), None)


def read(folder: Path) -> dict:
    """Raises Failure (exit 2) when the record is missing, not JSON, or of another job."""
    record = storage.read_json(folder / "job.json")
    own = isinstance(record, dict) and record.get("job_id") == folder.name
    if not own or record.get("state") not in {PENDING, RUNNING, *ENDED}:
        raise bad_input("JOB-RECORD-BROKEN", folder / "job.json", "got something else than the record of this job")
    return record


def write(folder: Path, record: dict) -> None:
    storage.write_json(folder / "job.json", record)


def unknown(record: dict, reason: str, fix: str = "") -> Failure:
    """Exit 3: nobody can say now how a recorded job is. The finding carries the record with the state UNKNOWN."""
    job = record | {"state": UNKNOWN, "reason": reason}
    return outside("JOB-OUT-OF-REACH", record["job_id"], reason, fix, job=job)


def words(verb: str, folder: Path) -> tuple[str, ...]:
    """The command line that does something with a job: launch_job.py and its arguments."""
    where = () if folder.parent == root(None) else ("--jobs-dir", str(folder.parent))
    return ("launch_job.py", verb, folder.name, *where)


def command(verb: str, folder: Path) -> str:
    """The same, to be pasted."""
    return f"scripts/{shlex.join(words(verb, folder))}"


# -- the lock ----------------------------------------------------------------------------------------------------------


def take_lock(folder: Path, wait: bool = False) -> int:
    """Open and lock the lock file of a job; the descriptor is to be inherited by what runs the job. Raises
    BlockingIOError when somebody else has it. With `wait` that of all jobs, so that launchers record one by one."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError as problem:
        os.close(descriptor)
        fix = "--jobs-dir on a local disk"
        raise outside("JOB-LOCK", folder.parent, f"got {problem.strerror} when locking a file", fix) from None
    return descriptor


def is_idle(folder: Path) -> bool:
    """Whether no process of the job is left."""
    with open(folder / LOCK, "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so as not to be in the way
        except BlockingIOError:
            return False
        return True


def request_cancel(folder: Path) -> None:
    """A file of its own, because the record belongs to the holder of the lock."""
    (folder / CANCEL).touch()


def cancel_requested(folder: Path) -> bool:
    return (folder / CANCEL).exists()


# -- what the job was given --------------------------------------------------------------------------------------------


def spec_edited(record: dict) -> bool:
    """Whether the job's own copy of the spec is no longer what was submitted."""
    return _sha256_or_none(Path(record["spec"]["path"])) != record["spec"]["sha256"]


def spec_changes(record: dict) -> list[Finding]:
    """Warnings about a spec that is no longer what was submitted."""
    spec, found = record["spec"], []
    own, source = Path(spec["path"]), Path(spec["source"])
    flags = ["--platform", record["platform"], "--engine", record["engine"]]
    for path, digest, meant in (
        (own, spec["sha256"], own),
        (own.with_name(CONTAINER_SPEC), spec.get("container_sha256"), own),
        (source, spec["source_sha256"] if source.exists() else None, source),
    ):
        if digest and _sha256_or_none(path) != digest:
            id, runs = "JOB-SPEC-EDITED", "what runs is what was read at the start"
            if path == source:
                id, runs = "JOB-SOURCE-EDITED", "the job runs the copy it was submitted with"
            fix = shlex.join(["scripts/launch_job.py", "submit", record["action"], *flags, "--spec", str(meant)])
            found.append(warning(id, path, f"got a spec that was edited after submit; {runs}", fix))
    return found


def _sha256_or_none(path: Path) -> str | None:
    try:
        return storage.sha256(path)
    except OSError:
        return None


def stamps(folders: Iterable[str]) -> dict[str, int]:
    """Everything in the folders, and when it was last changed: to be written as BEFORE by who records a job."""
    return {str(path): path.lstat().st_mtime_ns for folder in folders for path in Path(folder).rglob("*")}


def made_by(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Those of the paths that the job wrote: an output folder may hold the results of earlier runs."""
    stood = storage.read_json(folder / BEFORE) if (folder / BEFORE).is_file() else {}
    return [path for path in paths if stood.get(str(path)) != path.lstat().st_mtime_ns]


# -- metrics.jsonl and log.txt -----------------------------------------------------------------------------------------


def read_metrics(folder: Path, position: tuple[str, int] = ("", 0)) -> tuple[list[dict], tuple[str, int]]:
    """Metrics from a position (file, byte) on, and where the next call continues: the whole lines of metrics.jsonl, or
    until there is one what the log says. A line that is still being written, or was cut short by a kill, is left out.
    """
    name = METRICS if (folder / METRICS).is_file() else LOG
    found, end = [], position[1] if position[0] == name else 0
    with suppress(FileNotFoundError), open(folder / name, "rb") as handle:
        handle.seek(end)
        for line in handle:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            if numbers := _metrics(name, line):
                found.append(numbers)
    return found, (name, end)


def progress(folder: Path, whole: bool = False) -> dict:
    """The newest value of every metric, {} before the first line: step, total_steps, train/loss, val/avg_loss ... Looks
    at the end of the file, or at all of it: a log may go on for long after the last step."""
    path = next((folder / name for name in (METRICS, LOG) if (folder / name).is_file()), folder)
    start = 0 if whole else max(0, path.stat().st_size - TAIL_BYTES)
    return {key: value for line in read_metrics(folder, (path.name, start))[0] for key, value in line.items()}


def _metrics(name: str, line: bytes) -> dict:
    """The numbers of a line, {} when it has none. A loss may be nan."""
    text = line.decode("utf-8", errors="replace")
    try:
        found = json.loads(text) if name == METRICS else trainer_log.metrics(text)
    except (ValueError, RecursionError):
        return {}
    rows = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in rows if _is_number(key, value)}


def _is_number(key: str, value) -> bool:
    if type(value) is float:
        return key not in ("step", "total_steps") and (key != "time" or math.isfinite(value))
    return type(value) is int and abs(value) < 1 << 63


def plain(metrics: dict) -> dict:
    """As JSON can hold them: null for nan and infinite."""
    return {key: value if math.isfinite(value) else None for key, value in metrics.items()}


def log_tail(folder: Path, lines: int) -> list[str]:
    """The last `lines` lines of log.txt; a progress bar's overwritten states are left out."""
    try:
        with open(folder / LOG, "rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\n").split("\n")][-lines:]
