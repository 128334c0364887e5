"""Commands and paths of this machine, or of another one over ssh; each command has a time limit."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from dataclasses import dataclass

from cosmos_reason.base import findings, secrets

COMMAND_SECONDS = 20.0
NO_ANSWER, NO_COMMAND = 124, 127  # exit codes, as of `timeout` and of a shell
SSH_TARGET = re.compile(r"(?:[\w.+-]+@)?[A-Za-z0-9][\w.:-]*")
# Prints whether the place takes new files (of the nearest folder that exists), and its file system.
PLACE = """p=$1
while [ ! -e "$p" ] && [ "$p" != / ] && [ "$p" != . ]; do p=$(dirname "$p"); done
if [ ! -d "$p" ]; then echo file; elif [ -w "$p" ]; then echo yes; else echo no; fi
df -Pk "$p"
"""
RUNNING: set[subprocess.Popen] = set()
OVER = threading.Event()  # the run's time is up: no further command is started


@dataclass(frozen=True)
class Answer:
    """What a command returned; `code` is NO_ANSWER when it was ended at its limit, NO_COMMAND when
    there is none."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def last_words(self) -> str:
        """Return the end of what it printed on one line, without secrets."""
        text = self.err.strip() or self.out.strip()
        return secrets.hidden(" ".join(text.split())[-300:])


def call(words: list[str], limit: float = COMMAND_SECONDS, variables: dict | None = None) -> Answer:
    """Run a command with nothing on its standard input, `variables` added to its environment; its
    whole process group is killed at `limit` seconds, or when the run's time is up."""
    if OVER.is_set():
        return Answer(NO_ANSWER, err="no time left to ask")
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(variables or {})},
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError):
        return Answer(NO_COMMAND, err=f"no command {words[0]}")
    except OSError as problem:
        return Answer(NO_COMMAND, err=f"{words[0]}: {problem.strerror}")
    RUNNING.add(process)
    try:
        # The time may have run out since the command was started.
        out, err = process.communicate(timeout=0 if OVER.is_set() else max(limit, 0.1))
    except subprocess.TimeoutExpired:
        kill(process)
        return Answer(NO_ANSWER, err=f"no answer within {limit:.0f} s")
    finally:
        RUNNING.discard(process)
    return Answer(process.returncode, out, err)


def stop() -> None:
    """End every command that runs, and start no other."""
    OVER.set()
    for process in list(RUNNING):
        kill(process)


def kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(1)
    except (OSError, subprocess.TimeoutExpired):
        pass


@dataclass(frozen=True)
class Place:
    """Where a path lies or would be made."""

    file_system: str
    free_gib: float
    takes_files: bool
    is_file: bool


@dataclass(frozen=True)
class Host:
    """This machine, or another one by the words that reach it with ssh."""

    name: str = "this machine"
    ssh: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        return not self.ssh

    def call(self, *words: str, limit: float = COMMAND_SECONDS) -> Answer:
        if self.ssh:
            return call([*self.ssh, shlex.join(words)], limit)
        return call(list(words), limit)

    def has(self, path: str) -> bool | None:
        """Return whether the path is there; None when the host does not say."""
        if not self.ssh:
            return os.path.exists(path)
        code = self.call("test", "-e", path).code
        return {0: True, 1: False}.get(code)

    def place(self, path: str) -> Place | None:
        """Return None when the host does not say."""
        lines = self.call("sh", "-c", PLACE, "sh", path).out.splitlines()
        if len(lines) < 3:
            return None
        columns = lines[-1].split(maxsplit=5)
        if len(columns) != 6 or not columns[3].isdigit():
            return None
        free_gib = int(columns[3]) / 2**20
        return Place(columns[5], free_gib, lines[0] == "yes", lines[0] == "file")


def over_ssh(target: str, port: str = "", key: str = "") -> Host:
    """Return the host behind `target`, HOST or USER@HOST. Raises Failure for one that ssh would
    take for a flag."""
    if target.startswith("-") or not SSH_TARGET.fullmatch(target):
        message = "got no host name, expected HOST or USER@HOST"
        raise findings.bad_input("PRE-HOST-NAME", target, message)
    words = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    if port:
        words += ["-p", port]
    if key:
        words += ["-i", key]
    return Host(target, (*words, target))
