"""One process at a time owns a study: it holds the study's lock, the one that a job folder has."""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import record as jobs

COMMANDS = "commands.lock"


@contextmanager
def owned(folder: Path) -> Iterator[int]:
    """Own the study until the block ends. Raises Failure (exit 3) when another process owns it.

    Gives a descriptor that the commands of its trials are to inherit: what a killed run has started
    is waited for here, so that no job is submitted twice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = jobs.take_lock(folder)
    except BlockingIOError:
        raise _busy(folder) from None
    try:
        owner = f"process {os.getpid()} on {socket.gethostname()} since {jobs.now()}"
        os.ftruncate(lock, 0)
        os.pwrite(lock, owner.encode(), 0)
        with open(folder / COMMANDS, "a") as commands:
            _wait_for(commands)
            yield commands.fileno()
    finally:
        os.close(lock)


def _wait_for(commands) -> None:
    try:
        fcntl.flock(commands, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        findings.say("waiting for what a killed run of this study has started")
        fcntl.flock(commands, fcntl.LOCK_EX)


def is_owned(folder: Path) -> bool:
    """Asks without being in the way of others that ask, or of a run that begins."""
    return (folder / jobs.LOCK).exists() and not jobs.is_idle(folder)


def _busy(folder: Path) -> Failure:
    owner = (folder / jobs.LOCK).read_text(errors="replace")
    who = owner or "another process"
    message = f"got a study that {who} runs, expected one run at a time"
    fix = shlex.join(["scripts/tune_hyperparameters.py", "status", "--study", str(folder)])
    return findings.outside("TUNE-STUDY-LOCKED", folder, message, fix)
