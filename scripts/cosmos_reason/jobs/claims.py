"""An output folder belongs to one job at a time, by whatever path and from whatever folder or
--jobs-dir it is submitted.

A file in the output folder, the claim, names the job that writes there. It is locked while a job is
being recorded; after that the job's own record tells whether it is still at work.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure, Finding, error
from cosmos_reason.checkpoints.run_outputs import CLAIM
from cosmos_reason.jobs import platforms, record


@contextmanager
def held(job: Path, outputs: Iterable[str]) -> Iterator[list[Finding]]:
    """Claim the outputs of a job that is about to be recorded in the folder `job`, and keep others
    from claiming them until the block ends. Yields errors for those that another job is still
    writing; then nothing is to be recorded."""
    # In one order: of two submits that claim the same folders one gets them all.
    folders = {Path(os.path.realpath(path)) for path in outputs}
    with ExitStack() as locks:
        found = []
        for folder in sorted(folders):
            if not folder.is_relative_to(os.path.realpath(job)):
                found += _claim(folder, job, locks)
        yield found


def _claim(folder: Path, job: Path, locks: ExitStack) -> list[Finding]:
    busy = _at_work(folder)
    if busy:
        return busy  # and nothing is made there
    folder.mkdir(parents=True, exist_ok=True)
    handle = locks.enter_context(open(folder / CLAIM, "a+"))  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return [_busy(folder, "a job that is being submitted")]
    except OSError:
        # A file system without locks: two submits at the very same time are not told apart there.
        pass
    busy = _at_work(folder, locked=folder)  # another job may have begun before the lock was taken
    if busy:
        return busy
    claim = json.dumps({"job": str(job), "host": socket.gethostname()})
    try:
        (folder / CLAIM).write_text(claim)
    except OSError as problem:
        files.name_path(problem, folder / CLAIM)
        raise
    return []


def owner(folder: Path | str) -> str | None:
    """Return the id of the job that claimed an output folder last."""
    job, _ = _read(Path(folder))
    return job.name if job else None


def _read(folder: Path) -> tuple[Path | None, str]:
    """Return (folder of the job, name of its launcher's machine) that a claim names; (None, '')
    where there is none."""
    try:
        claim = json.loads((folder / CLAIM).read_text())
        return Path(claim["job"]), str(claim["host"])
    except (OSError, ValueError, TypeError, KeyError):
        return None, ""  # none, or one whose job was never recorded


def _at_work(folder: Path, locked: Path | None = None) -> list[Finding]:
    """Return an error when a job is being submitted or at work in the folder, in one that holds it,
    or in one below it. `locked`: the folder whose claim this process has locked."""
    below = (Path(place) for place, _, _ in os.walk(folder) if Path(place) != folder)
    for place in (folder, *folder.parents, *below):
        if record.ID.fullmatch(place.name) and (place / record.RECORD).is_file():
            job, host = place, ""
        elif (place / CLAIM).is_file():
            if place != locked:
                # Of a file system without locks nothing more is known here.
                with open(place / CLAIM) as handle, suppress(OSError):
                    try:
                        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except BlockingIOError:
                        return [_busy(folder, "a job that is being submitted")]
            job, host = _read(place)
            if job is None:
                continue
        else:
            continue
        if host not in ("", socket.gethostname()) and not (job / record.RECORD).is_file():
            who = f"{job.name} of {host}, of which nothing can be known here,"
            busy = _busy(folder, who)
            message = f"{busy.message}; once that job has ended, delete {place / CLAIM}"
            return [replace(busy, message=message)]
        try:
            is_running = not platforms.refresh(job).has_ended
        except Failure as failure:
            # Where nobody can say, it may be. Without a sound record its lock tells.
            nobody_can_say = "job" in failure.findings[0].data
            is_held = (job / record.LOCK).is_file() and not record.is_idle(job)
            is_running = nobody_can_say or is_held
        if is_running:
            return [_busy(folder, job.name, record.command("watch", job))]
    return []


def _busy(folder: Path, who: str, fix: str = "") -> Finding:
    message = f"got a folder that {who} is writing, expected one of its own"
    return error("JOB-OUTPUT-BUSY", folder, message, fix)
