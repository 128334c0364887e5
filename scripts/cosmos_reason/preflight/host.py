"""Commands on this machine or over ssh, each with a time limit; and the GPUs that nvidia-smi names there."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from dataclasses import dataclass, field

from cosmos_reason import findings as f
from cosmos_reason import secret

LIMIT = 20.0  # seconds for one command
NO_ANSWER, NO_COMMAND = 124, 127
ARCHITECTURE = re.compile(r"(?:sm_?|compute_?)?(?:(\d+)\.(\d)|(\d{2,3}))[af]?", re.IGNORECASE)
PLACE = """p=$1
while [ ! -e "$p" ] && [ "$p" != / ] && [ "$p" != . ]; do p=$(dirname "$p"); done
if [ ! -d "$p" ]; then echo file; elif [ -w "$p" ]; then echo yes; else echo no; fi
df -Pk "$p"
"""
RUNNING: set[subprocess.Popen] = set()
OVER = threading.Event()  # the run's time is up: no further command is started


@dataclass(frozen=True)
class Answer:
    """What a command returned; `code` is 124 when it was ended at its limit, 127 when there is no such command."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def said(self) -> str:
        """Its last words on one line, without secrets."""
        return secret.hidden(" ".join((self.err.strip() or self.out.strip()).split())[-300:])


def call(words: list[str], limit: float = LIMIT, variables: dict | None = None) -> Answer:
    """Run a command with nothing on its standard input, `variables` added to its environment; its whole process group
    is killed at `limit` seconds, or when the run's time is up."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, **(variables or {})}
    if OVER.is_set():
        return Answer(NO_ANSWER, err="no time left to ask")
    try:
        process = subprocess.Popen(words, **pipes, env=environment, text=True, errors="replace", start_new_session=True)
    except (FileNotFoundError, NotADirectoryError):
        return Answer(NO_COMMAND, err=f"no command {words[0]}")
    except OSError as problem:
        return Answer(NO_COMMAND, err=f"{words[0]}: {problem.strerror}")
    RUNNING.add(process)
    try:
        out, err = process.communicate(timeout=0 if OVER.is_set() else max(limit, 0.1))
        return Answer(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        kill(process)
        return Answer(NO_ANSWER, err=f"no answer within {limit:.0f} s")
    finally:
        RUNNING.discard(process)


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
class Host:
    """This machine, or another one by the words that reach it with ssh."""

    name: str = "this machine"
    ssh: tuple[str, ...] = ()

    def call(self, *words: str, limit: float = LIMIT) -> Answer:
        return call([*self.ssh, shlex.join(words)] if self.ssh else list(words), limit)

    def has(self, path: str) -> bool | None:
        """Whether the path is there; None when the host does not say."""
        if not self.ssh:
            return os.path.exists(path)
        code = self.call("test", "-e", path).code
        return {0: True, 1: False}.get(code)

    def place(self, path: str) -> tuple[str, float, str] | None:
        """(file system, GiB free there, whether it takes new files: 'yes', 'no', or 'file' for a path that is one) of
        where the path lies or would be made; None when the host does not say."""
        lines = self.call("sh", "-c", PLACE, "sh", path).out.splitlines()
        fields = lines[-1].split(maxsplit=5) if len(lines) > 2 else []
        known = len(fields) == 6 and fields[3].isdigit()
        return (fields[5], int(fields[3]) / 2**20, lines[0]) if known else None


def over_ssh(target: str, port: str = "", key: str = "") -> Host:
    """`target` is HOST or USER@HOST. Raises Failure for one that ssh would take for a flag."""
    if not re.fullmatch(r"(?:[\w.+-]+@)?[A-Za-z0-9][\w.:-]*", target) or target.startswith("-"):
        raise f.bad_input("PRE-HOST-NAME", target, "got no host name, expected HOST or USER@HOST")
    words = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    words += ["-p", port] if port else []
    words += ["-i", key] if key else []
    return Host(target, (*words, target))


# ---- GPUs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """One GPU. `gib` is None for one that shares the machine's memory or does not tell; `arch` as in 'sm_90', or ''."""

    index: int
    name: str
    gib: float | None
    arch: str = ""


@dataclass
class Driver:
    """What nvidia-smi says of a host: its GPUs, and the versions as written ('' when not told)."""

    gpus: list[Gpu] = field(default_factory=list)
    version: str = ""
    cuda: str = ""
    problem: str = ""


def architecture(written: str) -> str | None:
    """'sm_103' for sm_103, sm_103a, 103f, 10.3 or compute_103a; None for anything else. The letters a and f belong to
    the same family."""
    found = ARCHITECTURE.fullmatch(written.strip())
    return found and f"sm_{found[1] + found[2] if found[1] else found[3]}"


def driver(host: Host) -> Driver:
    """Ask nvidia-smi on the host."""
    fields = "index,name,memory.total,driver_version"
    answer = host.call("nvidia-smi", f"--query-gpu={fields},compute_cap", "--format=csv,noheader,nounits")
    if "compute_cap" in answer.out + answer.err and answer.code:  # an older nvidia-smi
        answer = host.call("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    if answer.code:
        return Driver(problem=answer.said or f"nvidia-smi ended with {answer.code}")
    found = parse_gpus(answer.out)
    if found.gpus and (cuda := re.search(r"CUDA Version\s*:\s*([\d.]+)", host.call("nvidia-smi").out)):
        found.cuda = cuda[1]
    return found


def parse_gpus(text: str) -> Driver:
    """The CSV of nvidia-smi: index, name, MiB, driver version and, where it is known, compute capability."""
    found = Driver()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 4 or not cells[0].isdigit():
            continue
        mib = re.fullmatch(r"(\d+)(?: MiB)?", cells[2])
        arch = architecture(cells[4]) if len(cells) > 4 else None
        found.gpus.append(Gpu(int(cells[0]), cells[1], int(mib[1]) / 1024 if mib else None, arch or ""))
        found.version = cells[3] if re.fullmatch(r"[\d.]+", cells[3]) else found.version
    return found


def older(version: str, least: str) -> bool:
    """Whether a dotted version is below another; an unknown one is not."""
    numbers = [[int(part) for part in re.findall(r"\d+", text)] for text in (version, str(least))]
    return bool(numbers[0]) and numbers[0] < numbers[1]
