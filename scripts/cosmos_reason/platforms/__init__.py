"""Where jobs run: one module per platform, each with the same parts.

ENGINES                            what it starts
check(request, needed, acting)     findings: what stands against a request for a spec that needs so many GPUs, before
                                   its inputs are fetched; when the platform is out of reach: Failure (exit 3) to act,
                                   a warning to plan
prepare(record, spec)              fill in the record's command, image and options
launch_text(record) -> text        the same, as a script for people
write(folder, record, spec)        the files of the job folder that the work needs
start(folder, lock)                begin what the supervisor does not begin; the record stays PENDING
supervise(folder, lock)            see the job to its end, and record that
judged(folder, record) -> record   as it is true now, of a job that nobody follows; Failure (exit 3) when none can say
end(folder, record, grace)         SIGTERM, and SIGKILL after `grace` seconds

A supervisor lives in a session of its own, so that a closed terminal does not reach it, and inherits the job's lock.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from cosmos_reason import bundle, jobs
from cosmos_reason.findings import Failure, bad_input, outside

PLATFORMS = ("local", "docker")
MARK = "COSMOS_REASON_JOB_ID"  # in the environment of every process of a job on this machine
PATIENCE = 10  # seconds until an end that was brought about is recorded


def module(platform: str) -> ModuleType:
    return importlib.import_module(f"cosmos_reason.platforms.{platform}")


def spawn(folder: Path, lock: int) -> None:
    """Start the supervisor of a recorded job; it inherits the job's `lock`."""
    with open(folder / jobs.LOG, "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "cosmos_reason.platforms", str(folder), str(lock)],
            cwd=bundle.ROOT / "scripts",
            env=os.environ | {MARK: folder.name},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock],
        )


def refresh(folder: Path) -> dict:
    """The record of a job as it is true now. When nobody follows the job any more, its platform is asked; while it
    still runs it gets a new supervisor. Raises Failure: exit 2 for a file that is no record, exit 3 when nobody can say
    now."""
    record = jobs.read(folder)
    lacking = [key for key in bundle.schema("job")["required"] if key not in record]
    if lacking or record["platform"] not in PLATFORMS:
        message = f"got a record without {', '.join(lacking) or 'a known platform'}, expected what submit writes"
        raise bad_input("JOB-RECORD-BROKEN", folder / "job.json", message)
    if record["state"] in jobs.ENDED:
        return record
    lock = None
    try:
        lock = jobs.take_lock(folder) if jobs.is_idle(folder) else None
        stood = jobs.read(folder)
        if lock is None or stood["state"] in jobs.ENDED:  # since it was read
            return stood
        record = module(stood["platform"]).judged(folder, stood)
        if record != stood:
            jobs.write(folder, record)
        if record["state"] not in jobs.ENDED:
            spawn(folder, lock)
        return record
    except BlockingIOError:  # somebody else asks
        return jobs.read(folder)
    except Failure as failure:
        raise jobs.unknown(record, failure.findings[0].message, failure.findings[0].fix) from None
    except OSError as problem:
        raise jobs.unknown(record, f"its record cannot be brought up to date: {problem}") from None
    finally:
        if lock is not None:
            os.close(lock)


def stop(folder: Path, grace: float) -> dict:
    """Cancel a job; returns its last record. Raises Failure (exit 3), also when something of it cannot be ended."""
    jobs.request_cancel(folder)
    record = jobs.read(folder)
    module(record["platform"]).end(folder, record, grace)
    deadline = time.monotonic() + PATIENCE
    while (record := refresh(folder))["state"] not in jobs.ENDED:
        if time.monotonic() > deadline:
            message, fix = "got a job that does not end", jobs.command("status", folder)
            raise outside("JOB-NOT-KILLED", folder.name, message, fix)
        time.sleep(0.1)
    return record
