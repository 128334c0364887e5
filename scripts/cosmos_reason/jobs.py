"""The job folder `jobs/<job_id>/`: its record (job.json, schemas/job.schema.json), its lock and its metrics.

Whoever holds the lock writes the record: first the launcher, then the supervisor, which inherits the lock from it, and
once nobody is left, whoever asks how the job ended. The kernel drops the lock with the last process that carries it
(the work itself carries it too), so "is it still running" needs no process id and cannot be fooled by a reused one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cosmos_reason import bundle, storage
from cosmos_reason.findings import Finding, bad_input, did_you_mean, outside, warning

PENDING, RUNNING, COMPLETE = "PENDING", "RUNNING", "COMPLETE"
ERROR, CANCELED, UNKNOWN = "ERROR", "CANCELED", "UNKNOWN"  # UNKNOWN is an answer, never recorded
ENDED = {COMPLETE, ERROR, CANCELED}
JOBS_DIR_VARIABLE = "COSMOS_REASON_JOBS"
ID = re.compile(rf"({'|'.join(bundle.ACTIONS)})-\d{{8}}-\d{{6}}-[0-9a-f]{{6}}")
LOCK, CANCEL, LOG, METRICS = "job.lock", "cancel.requested", "log.txt", "metrics.jsonl"
CLOCK_GRAIN_SECONDS = 1  # file times come from a coarser clock than the one that stamps a record
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
    return Path(jobs_dir or os.environ.get(JOBS_DIR_VARIABLE) or "jobs").absolute()


def folder(jobs_dir: Path, job_id: str) -> Path:
    """The folder of a recorded job. Raises Failure (exit 2) for an id that is malformed or not there."""
    if not ID.fullmatch(job_id):
        expected = "<action>-<YYYYMMDD>-<HHMMSS>-<6 hex>"
        raise bad_input(
            "JOB-ID-MALFORMED", job_id, f"got {job_id!r}, expected {expected}", "scripts/launch_job.py list"
        )
    found = jobs_dir / job_id
    if not (found / "job.json").is_file():
        hint = did_you_mean(job_id, (path.name for path in folders(jobs_dir)))
        raise bad_input("JOB-UNKNOWN", job_id, f"got no such job in {jobs_dir}.{hint}", "scripts/launch_job.py list")
    return found


def folders(jobs_dir: Path) -> list[Path]:
    """Folders of all recorded jobs, newest first."""
    names = os.listdir(jobs_dir) if jobs_dir.is_dir() else []
    made = sorted((name for name in names if ID.fullmatch(name)), key=lambda name: name[-22:], reverse=True)
    return [jobs_dir / name for name in made]


def owner(paths: Iterable[str]) -> str | None:
    """The job in whose folder one of the paths lies."""
    return next((part for path in paths for part in Path(path).parts if ID.fullmatch(part)), None)


def read(folder: Path) -> dict:
    """Raises Failure (exit 2) when the record is missing, not JSON, or of another job."""
    record = storage.read_json(folder / "job.json")
    if (
        not isinstance(record, dict)
        or record.get("job_id") != folder.name
        or record.get("state") not in {PENDING, RUNNING, *ENDED}
    ):
        raise bad_input("JOB-RECORD-BROKEN", folder / "job.json", "got something else than the record of this job")
    return record


def write(folder: Path, record: dict) -> None:
    storage.write_json(folder / "job.json", record)


# -- the lock ----------------------------------------------------------------------------------------------------------


def take_lock(folder: Path) -> int:
    """Open and lock the lock file of a new job; the descriptor is to be inherited by what runs the job."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(descriptor)
        fix = "--jobs-dir on a local disk"
        raise outside("JOB-LOCK", folder.parent, f"got {problem.strerror} when locking a file", fix) from None
    return descriptor


@contextmanager
def when_idle(folder: Path) -> Iterator[bool]:
    """Yields True when no process of the job is left: inside the block the record is then ours to end. The lock is
    taken shared, so that two who ask at once both learn the truth (and would write the same)."""
    with open(folder / LOCK, "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


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
    words = ["scripts/launch_job.py", "submit", record["action"], "--platform", record["platform"], "--spec"]
    if spec_edited(record):
        message = "got a spec that was edited after submit; what runs is what was read at the start"
        found.append(warning("JOB-SPEC-EDITED", spec["path"], message, shlex.join([*words, spec["path"]])))
    if _sha256_or_none(Path(spec["source"])) not in (spec["source_sha256"], None):
        message = "got a spec that was edited after submit; the job runs the copy it was submitted with"
        found.append(warning("JOB-SOURCE-EDITED", spec["source"], message, shlex.join([*words, spec["source"]])))
    return found


def _sha256_or_none(path: Path) -> str | None:
    try:
        return storage.sha256(path)
    except OSError:
        return None


def made_since_start(record: dict, path: Path) -> bool:
    """Whether `path` was written since the job started: an output folder may hold the results of earlier runs."""
    return path.stat().st_mtime >= seconds(record["started_at"]) - CLOCK_GRAIN_SECONDS


# -- metrics.jsonl and log.txt -----------------------------------------------------------------------------------------


def read_metrics(folder: Path, offset: int = 0) -> tuple[list[dict], int]:
    """Whole lines of metrics.jsonl from byte `offset` on, and where the next call continues. A line that is still
    being written, or was cut short by a kill, is left out."""
    try:
        with open(folder / METRICS, "rb") as handle:
            handle.seek(offset)
            data = handle.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return list(_json_lines(whole)), offset + len(whole)


def progress(folder: Path) -> dict:
    """The newest value of every metric, {} before the first line: step, total_steps, train/loss, val/avg_loss ..."""
    path = folder / METRICS
    size = path.stat().st_size if path.is_file() else 0
    lines, _ = read_metrics(folder, max(0, size - TAIL_BYTES))
    merged: dict = {}
    for line in lines:
        merged |= line
    return merged


def _json_lines(data: bytes) -> Iterator[dict]:
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def log_tail(folder: Path, lines: int) -> list[str]:
    """The last `lines` lines of log.txt; a progress bar's overwritten states are left out."""
    try:
        with open(folder / LOG, "rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\n").split("\n")][-lines:]
