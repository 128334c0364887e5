"""A SLURM cluster, asked with its own commands: here, or on a login node over ssh."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cosmos_reason.base.findings import Failure, Finding, error, outside
from cosmos_reason.remote.machine import NO_ANSWER, Answer, Host, over_ssh

ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
         "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"}  # fmt: skip
BY_ITSELF = {"COMPLETED", "FAILED"}  # the batch script came to its end
WAITING = {"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
           "RESV_DEL_HOLD", "SPECIAL_EXIT"}  # fmt: skip
HELD = {"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"COMPLETING", "POWER_UP_NODE", "RESIZING", "RUNNING", "SIGNALING",
           "STAGE_OUT", "STOPPED", "SUSPENDED"}  # fmt: skip
QUEUE_FORMAT = "%i|%j|%T|%r|%N"
ACCOUNT_FORMAT = "JobIDRaw,JobName,State,ExitCode,NodeList"
NO_ACCOUNTS = "accounting storage is disabled"
FRESH = 10  # seconds for which an answer about the queue serves
SUBMIT_SECONDS = 90
SSH_FAILED = 255
# After these words of sbatch nobody knows whether the job was taken.
UNCERTAIN = re.compile(r"timed out|unable to contact|connection|communication|not respond", re.I)
# Nobody looked at what these say on a login node, but an account of its own may be needed there.
WITHOUT_VARIABLES = r"""for name in $(env | sed -n 's/^\(SBATCH_[A-Z_]*\)=.*/\1/p'); do
  case $name in SBATCH_ACCOUNT|SBATCH_QOS) ;; *) unset "$name" ;; esac
done
exec "$@"
"""
EXIT_CODE = re.compile(r" ExitCode=(\d+):(\d+) ")
PREEMPTED = re.compile(r" PreemptTime=\d")
_queues: dict[Host, tuple[float, dict]] = {}


@dataclass(frozen=True)
class Seen:
    """A job as the cluster tells of it. `state` is SLURM's own word; `exit_code` 128 + N for signal
    N, None where it is not said."""

    slurm_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    exit_code: int | None = None

    @property
    def note(self) -> str:
        """Return what a record says of an end, '' for a plain one."""
        if self.state in ("COMPLETED", "FAILED", *WAITING, *RUNNING):
            return ""
        reason = "" if self.reason in ("None", "", "Unknown") else f" ({self.reason})"
        return f"SLURM: {self.state}{reason}"


def host(recorded: str | None = None) -> Host:
    """Return the login node: the one of a record, else $SLURM_HOSTNAME, else this machine. Raises
    Failure (exit 2) for a name that is none."""
    user, name = os.environ.get("SLURM_USER", ""), os.environ.get("SLURM_HOSTNAME", "")
    target = recorded or (f"{user}@{name}" if user and name else name)
    return over_ssh(target, key=os.environ.get("SSH_KEY_PATH", "")) if target else Host()


def has_commands(where: Host) -> bool:
    return not where.is_here or shutil.which("sbatch") is not None


def check_pyxis(where: Host) -> list[Finding]:
    """Return an error where srun starts no containers."""
    if "--container-image" in where.call("srun", "--help").out:
        return []
    message = "got an srun without --container-image, expected Pyxis and Enroot, installed on "
    message += "the cluster, for containers"
    return [error("PRE-SLURM-PYXIS", where.name, message)]


def look(where: Host, command: str) -> str:
    """Return a command to be pasted that tells more."""
    return shlex.join([*where.ssh, command]) if where.ssh else command


def unreachable(where: Host, answer: Answer) -> Failure:
    message = f"got {answer.last_words or 'no answer'}, expected SLURM's controller to answer"
    return outside("JOB-SLURM-UNREACHABLE", where.name, message, look(where, "scontrol ping"))


def submit(where: Host, words: list[str]) -> str | None:
    """Hand a job to the cluster; returns its id, None when nobody knows whether it was taken.
    Raises Failure (exit 3) when it was refused."""
    answer = where.call("sh", "-c", WITHOUT_VARIABLES, "sh", *words, limit=SUBMIT_SECONDS)
    # A login shell may print something first; behind the number stands a cluster's name, if any.
    number = answer.out.strip().splitlines()[-1:] or [""]
    slurm_id = number[0].partition(";")[0]
    if slurm_id.isdecimal():
        return slurm_id
    is_uncertain = answer.code in (0, NO_ANSWER, SSH_FAILED) or UNCERTAIN.search(answer.err)
    if is_uncertain:
        return None
    raise outside("JOB-SLURM-REFUSED", where.name, f"got {answer.last_words}", "sinfo --summarize")


def find(where: Host, name: str, since: str, fresh: bool = False) -> Seen | None:
    """Return the job of that name, also when it has ended; None when the cluster knows no such job.
    `since`: a time of a record, before its submission. Raises Failure (exit 3)."""
    found = _queue(where, fresh).get(name)
    if found is None and not fresh:  # the answer at hand may be older than the job
        found = _queue(where, fresh=True).get(name)
    if found is None:  # the controller forgets a job minutes after its end
        return _accounted(where, name, since)
    if found.state != "FAILED":
        return found
    # The queue does not tell the exit code, and calls a preempted job failed.
    answer = where.call("scontrol", "show", "job", "--oneliner", found.slurm_id)
    told = EXIT_CODE.search(answer.out)
    if not told:
        return found
    code = _exit_code(*told.groups())
    if PREEMPTED.search(answer.out):
        return replace(found, state="PREEMPTED", reason="", exit_code=code)
    return replace(found, exit_code=code)


def _queue(where: Host, fresh: bool) -> dict[str, Seen]:
    """Return our jobs by name, those that ended lately too: one question serves many jobs."""
    asked_at, jobs = _queues.get(where, (0.0, {}))
    if not fresh and asked_at and time.monotonic() - asked_at < FRESH:
        return jobs
    answer = where.call("squeue", "--noheader", "--me", "--states=all", f"--format={QUEUE_FORMAT}")
    if answer.code:
        raise unreachable(where, answer)
    jobs = {}
    for line in answer.out.splitlines():
        cells = line.split("|")
        if len(cells) == 5:
            slurm_id, name, state, reason, nodes = (cell.strip() for cell in cells)
            jobs[name] = Seen(slurm_id, state, reason, nodes)
    _queues[where] = (time.monotonic(), jobs)
    return jobs


def _exit_code(code: str, number: str) -> int:
    return 128 + int(number) if number != "0" else int(code)


def _accounted(where: Host, name: str, since: str) -> Seen | None:
    """Return what the accounts say of a job that the controller has forgotten; None where there are
    none."""
    words = ["sacct", "--allocations", "--noheader", "--parsable2", f"--name={name}"]
    # The cluster has its own clock and time zone, in which it may have been the day before.
    earlier = datetime.fromisoformat(since) - timedelta(days=1)
    words += [f"--starttime={earlier.date()}", f"--format={ACCOUNT_FORMAT}"]
    answer = where.call(*words)
    if answer.code and NO_ACCOUNTS not in answer.err:
        raise unreachable(where, answer)
    for line in reversed(answer.out.splitlines()):
        cells = line.split("|")
        if len(cells) == 5 and cells[1] == name:
            code, _, number = cells[3].partition(":")
            is_known = cells[2] == "FAILED" and code.isdecimal() and number.isdecimal()
            exit_code = _exit_code(code, number) if is_known else None
            return Seen(cells[0], cells[2].split()[0], "", cells[4], exit_code)
    return None


def cluster_name(where: Host) -> str:
    """Return the cluster's name, '' when the controller does not answer."""
    told = re.search(
        r"^ClusterName\s*=\s*(\S+)", where.call("scontrol", "show", "config").out, re.M
    )
    return told[1] if told else ""


def signal(where: Host, slurm_id: str, *flags: str) -> None:
    """Signal a job by scancel; one that has ended is no error. Raises Failure (exit 3)."""
    answer = where.call("scancel", *flags, slurm_id)
    _queues.pop(where, None)
    if answer.code and not re.search(r"already|invalid job id", answer.err, re.I):
        raise unreachable(where, answer)
