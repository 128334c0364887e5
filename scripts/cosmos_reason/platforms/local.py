"""Jobs on this machine: a supervisor in a session of its own runs the command and records how it ends.

The work inherits the job's lock and writes log.txt itself: were the supervisor killed, the work would go on unharmed
and only its exit code would be lost.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cosmos_reason import bundle, jobs, storage
from cosmos_reason.findings import Finding, error, outside
from cosmos_reason.platforms import engines, evidence, supervisor

ENGINES = ("transformers",)
LAUNCH_FILE = "launch.sh"
MARK = "COSMOS_REASON_JOB_ID"  # in the environment of every process of a job


def check(request, acting: bool) -> list[Finding]:
    """Whether the GPUs that are asked for are there."""
    if not request.gpu_ids:
        return []
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
        listed = done.stdout if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        listed = ""
    absent = [one for one in request.gpu_ids if f"GPU {one}:" not in listed and f"UUID: {one})" not in listed]
    if not absent:
        return []
    has = f"{listed.count('UUID: GPU-')} GPUs" if listed else "no GPU that nvidia-smi lists"
    return [error("JOB-GPU-IDS", "--gpu-ids", f"got {','.join(absent)}, this machine has {has}", "--gpu-ids none")]


def prepare(record: dict, spec: dict) -> None:
    folder = Path(record["spec"]["path"]).parent
    places = {"config": folder / "spec.toml", "job": folder, "scripts": bundle.ROOT / "scripts"}
    record["command"] = engines.words(record, spec, python=sys.executable, **places)


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


def write(folder: Path, record: dict, spec: dict) -> None:
    storage.write_text(folder / LAUNCH_FILE, launch_text(record))


def start(folder: Path, lock: int) -> None:
    supervisor.spawn(folder, lock, **{MARK: folder.name})


def supervise(folder: Path, lock: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: send(signal.SIGTERM, folder.name, but=os.getpid()))
    record = jobs.read(folder)
    exit_code, problem = None, ""
    if jobs.spec_edited(record):
        problem = "the spec was edited between submit and start"
    elif not jobs.cancel_requested(folder):
        record |= {"state": jobs.RUNNING, "started_at": jobs.now()}
        record["platform_ref"] = {"pid": os.getpid(), "host": socket.gethostname()}
        jobs.write(folder, record)
        try:
            exit_code = run(folder, record, lock)
        except OSError as failure:
            problem = f"the command could not be started: {failure.filename}: {failure.strerror}"
    jobs.write(folder, evidence.ended(folder, record, exit_code, problem))


def run(folder: Path, record: dict, lock: int) -> int:
    """Run the command to its end, and end what it leaves behind. Returns its exit code, 128 + N for signal N."""
    with open(folder / jobs.LOG, "ab") as log:
        work = subprocess.Popen(
            record["command"],
            env=os.environ | environment(record),
            cwd=record["working_dir"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock],
        )
    if jobs.cancel_requested(folder):  # it came while the work was being started, and may have missed it
        work.terminate()
    exit_code = work.wait()
    send(signal.SIGKILL, folder.name, but=os.getpid())
    return exit_code if exit_code >= 0 else 128 - exit_code


def refresh(folder: Path) -> dict:
    """The job's record as it is true now. An end that the supervisor did not live to record is recorded here. Raises
    Failure (exit 3)."""
    try:
        with jobs.when_idle(folder) as idle:
            record = jobs.read(folder)
            if not idle or record["state"] in jobs.ENDED:
                return record
            if (host := record["platform_ref"]["host"]) != socket.gethostname():
                raise jobs.unknown(record, f"it was started on {host}; ask there")
            record = evidence.ended(folder, record, None)
            jobs.write(folder, record)
            return record
    except OSError as problem:
        raise jobs.unknown(jobs.read(folder), f"its record cannot be brought up to date: {problem}") from None


def stop(folder: Path, grace: float) -> None:
    """End a job: SIGTERM to its processes, SIGKILL after `grace` seconds. Its supervisor is spared so that it can
    record the end. Raises Failure (exit 3) when something cannot be killed."""
    jobs.request_cancel(folder)
    supervisor_pid = jobs.read(folder)["platform_ref"].get("pid")
    for number, patience, spared in (
        (signal.SIGTERM, grace, supervisor_pid),
        (signal.SIGKILL, 5, supervisor_pid),
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
