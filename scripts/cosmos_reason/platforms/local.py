"""Jobs on this machine: a supervisor in a session of its own (supervisor.py) that runs the command."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cosmos_reason import bundle, jobs
from cosmos_reason.findings import Finding, bad_input, outside, warning
from cosmos_reason.platforms import evidence

LAUNCH_FILE = "launch.sh"
RUNNABLE = ("train", "evaluate")
MARK = "COSMOS_REASON_JOB_ID"  # in the environment of every process of a job


def command(engine: str, action: str, folder: Path) -> list[str]:
    """The program and arguments that run `action` from `folder`/spec.toml."""
    if engine != "transformers":
        raise bad_input("JOB-ENGINE", "--engine", f"got {engine}, expected transformers on platform local")
    if action not in RUNNABLE:
        message = f"got {action}, expected {' or '.join(RUNNABLE)}: the embedded engine of this version runs no other"
        raise bad_input("JOB-ACTION", action, message)
    script, *words = bundle.skill_info()["engines"][engine]["actions"][action]["command"]
    words = [word.format(action=action, config=folder / "spec.toml") for word in words]
    return [sys.executable, str(bundle.ROOT / "scripts" / script), *words, "--job-dir", str(folder)]


def environment(record: dict) -> dict[str, str]:
    """What the command's environment gets on top of the caller's. GPU ids count as in nvidia-smi."""
    added = {MARK: record["job_id"], "PYTHONUNBUFFERED": "1"}
    if (gpu_ids := record["resources"]["gpu_ids"]) is not None:
        added |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids)}
    return added


def launch_text(record: dict) -> str:
    """A script that shows people what runs, and runs the same by hand."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment(record).items() if name != MARK]
    lines = [
        "#!/bin/sh",
        f"# {record['job_id']}: what the supervisor runs, in the environment of the shell that submitted it",
        f"cd {shlex.quote(record['working_dir'])} || exit 1",
        *exports,
        f"exec {shlex.join(record['command'])}",
    ]
    return "\n".join(lines) + "\n"


def start(folder: Path, lock: int) -> None:
    """Start the supervisor of a recorded job; it inherits the job's `lock`."""
    with open(folder / jobs.LOG, "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "cosmos_reason.platforms.supervisor", str(folder), str(lock)],
            cwd=bundle.ROOT / "scripts",
            env=os.environ | {MARK: folder.name},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock],
        )


def refresh(folder: Path) -> tuple[dict, list[Finding]]:
    """The job's record as it is true now. An end that the supervisor did not live to record is recorded here."""
    record = jobs.read(folder)
    if record["state"] in jobs.ENDED:
        return record, []
    try:
        with jobs.when_idle(folder) as idle:
            return _reconciled(folder) if idle else (record, [])
    except OSError as problem:
        return record | {"state": jobs.UNKNOWN, "reason": f"its lock cannot be asked: {problem}"}, []


def _reconciled(folder: Path) -> tuple[dict, list[Finding]]:
    record = jobs.read(folder)  # the supervisor may have ended it since it was read last
    host = record["platform_ref"]["host"]
    if record["state"] in jobs.ENDED:
        return record, []
    if host != socket.gethostname():
        return record | {"state": jobs.UNKNOWN, "reason": f"it was started on {host}; ask there"}, []
    record = evidence.ended(folder, record, None)
    try:
        jobs.write(folder, record)
    except OSError as problem:
        return record, [warning("JOB-RECORD-UNSAVED", folder, f"got {problem}, so this answer could not be recorded")]
    return record, []


def stop(folder: Path, grace: float) -> None:
    """End a job: SIGTERM to its processes, SIGKILL after `grace` seconds. Its supervisor is spared so that it can
    record the end. Raises Failure (exit 3) when something cannot be killed."""
    jobs.request_cancel(folder)
    supervisor = jobs.read(folder)["platform_ref"].get("pid")
    for number, patience, spared in (
        (signal.SIGTERM, grace, supervisor),
        (signal.SIGKILL, 5, supervisor),
        (signal.SIGKILL, 5, None),
    ):
        send(number, folder.name, but=spared)
        if _wait_until_idle(folder, patience):
            return
    raise outside(
        "JOB-NOT-KILLED", folder.name, "got a process that SIGKILL does not end", f"ps aux | grep {folder.name}"
    )


def send(number: signal.Signals, job_id: str, but: int | None) -> None:
    """Signal every process of the job except process `but`. They are known by their environment: this also finds the
    ones that left the process group or lost their parent, and never one that got a reused process id."""
    import psutil

    for process in psutil.process_iter():
        try:
            if process.pid != but and process.environ().get(MARK) == job_id:
                process.send_signal(number)
        except psutil.Error:  # gone meanwhile, a zombie, or somebody else's
            continue


def _wait_until_idle(folder: Path, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        with jobs.when_idle(folder) as idle:
            if idle:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
