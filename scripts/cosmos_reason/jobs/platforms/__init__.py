"""Where jobs run: one module per platform, each with the same parts.

Whoever asks for a job's state (`status`, `watch`, `list`) comes by `settled`, which waits a moment
for an end, and `refresh`, which has the platform judge a job that nobody follows.

FOLLOWED                         whether a supervisor of ours follows its jobs
CHOOSES_GPUS                     whether it is asked for a number of GPUs, not for certain ones
machine(launch)                  where the paths of a launch lie, None where that cannot be asked
check_words(launch)              findings: what stands against its words alone
check(launch, acting)            what the platform told that `prepare` needs, and findings: what
                                 stands against a launch before its inputs are fetched; when the
                                 platform is out of reach: Failure (exit 3) to act, a warning to
                                 plan
prepare(job, spec, told) -> job  with its command and options; asks nobody for more than `check`
                                 was told, and makes nothing: a plan needs it, and submit again
                                 once inputs are fetched
unseen(job, spec)                findings: what the machine that will run a prepared job lacks of
                                 it, asked before inputs are fetched
write(folder, job, spec) -> job  write the files that the work needs into the folder, which is not
                                 the job's yet, and record them
start(job, lock) -> job          begin what the supervisor does not begin, and record what the
                                 platform calls it; the job stays PENDING
supervise(job, lock)             of a platform that is FOLLOWED: see the job to its end, record that
judged(job) -> job               as it is true now, of a job that nobody follows; Failure (exit 3)
                                 when nobody can say
end(job, grace)                  SIGTERM, and SIGKILL after `grace` seconds

A supervisor, which all but SLURM have, lives in a session of its own, so that a closed terminal
does not reach it, and inherits the job's lock.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Failure, outside
from cosmos_reason.base.job_folder import MARK
from cosmos_reason.jobs import options, record
from cosmos_reason.jobs.record import Job

PLATFORMS = options.ANYWHERE
PATIENCE = 10  # seconds until an end that was brought about is recorded
BRIEFLY = 2  # seconds for which status and list wait in all where jobs are ending
SETTLED = 100  # seconds until it is known how a job has ended whose end was told


def module(platform: str) -> ModuleType:
    return importlib.import_module(f"cosmos_reason.jobs.platforms.{platform}")


def spawn(job: Job, lock: int) -> None:
    """Start the supervisor of a recorded job, where it has one; it inherits the job's `lock`."""
    if not module(job.platform).FOLLOWED:
        return
    folder = job.folder
    with open(folder / record.LOG, "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "cosmos_reason.jobs.platforms", str(folder), str(lock)],
            cwd=bundle.ROOT / "scripts",
            env=os.environ | {MARK: folder.name},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock],
        )


def refresh(folder: Path) -> Job:
    """Return the record of a job as it is true now. When nobody follows the job any more, its
    platform is asked; while it still runs it gets a new supervisor. Raises Failure: exit 2 for a
    file that is no record, exit 3 when nobody can say now."""
    job = Job.load(folder)
    if job.has_ended:
        return job
    lock = None
    # Its lock is taken while it is judged: two who ask at once would both record an end, or start
    # two supervisors.
    try:
        if record.is_idle(folder):
            lock = record.take_lock(folder)
        recorded = Job.load(folder)
        if lock is None or recorded.has_ended:  # it ended since it was read
            return recorded
        job = module(recorded.platform).judged(recorded)
        if job != recorded:
            job.write()
        if not job.has_ended:  # its supervisor was killed, or this machine began anew
            spawn(job, lock)
        return job
    except BlockingIOError:  # somebody else asks
        return Job.load(folder)
    except Failure as failure:
        finding = failure.findings[0]
        cause = finding.data.get("cause", finding.id)
        raise job.unknown(finding.message, finding.fix, cause) from None
    except OSError as problem:
        raise job.unknown(f"its record cannot be brought up to date: {problem}") from None
    finally:
        if lock is not None:
            os.close(lock)


def settled(folder: Path, deadline: float | None = None) -> Job:
    """Refresh the record, and wait for the final state of a job that is ending: until `deadline` of
    time.monotonic(), or as long as it may take."""
    if deadline is None:
        deadline = time.monotonic() + SETTLED
    job = refresh(folder)
    while job.is_ending and time.monotonic() < deadline:
        time.sleep(0.2)
        job = refresh(folder)
    return job


def stop(folder: Path, grace: float) -> Job:
    """Cancel a job; returns its last record. Raises Failure (exit 3), also when something of it
    cannot be ended."""
    record.request_cancel(folder)
    job = Job.load(folder)
    module(job.platform).end(job, grace)
    # Who follows the job records its end a moment after the work has gone.
    deadline = time.monotonic() + PATIENCE
    while True:
        job = refresh(folder)
        if job.has_ended:
            return job
        if time.monotonic() > deadline and not job.is_ending:
            message = "got a job that does not end"
            fix = record.command("status", folder)
            raise outside("JOB-NOT-KILLED", folder.name, message, fix)
        time.sleep(0.1)
