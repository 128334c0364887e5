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
from cosmos_reason.findings import Finding, error
from cosmos_reason.platforms import MARK, engines, evidence

ENGINES = ("transformers",)


def check(request, needed: int, acting: bool) -> list[Finding]:
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
    there = listed.count("UUID: GPU-")
    has = f"{there} GPUs" if there else "no GPU that nvidia-smi lists"
    usable = ",".join(map(str, range(min(len(request.gpu_ids), there)))) or "none"
    return [error("JOB-GPU-IDS", "--gpu-ids", f"got {','.join(absent)}, this machine has {has}", f"--gpu-ids {usable}")]


def prepare(record: dict, spec: dict) -> None:
    folder = Path(record["spec"]["path"]).parent
    places = {"config": folder / "spec.toml", "job": folder, "scripts": bundle.ROOT / "scripts"}
    record["command"] = engines.words(record, spec, python=sys.executable, **places)


def environment(record: dict) -> dict[str, str]:
    """What the command's environment gets on top of the caller's. GPU ids count as in nvidia-smi."""
    gpu_ids, added = record["resources"]["gpu_ids"], {"PYTHONUNBUFFERED": "1"}
    if gpu_ids is not None:
        added |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids)}
    return added


def launch_text(record: dict) -> str:
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in environment(record).items())
    return engines.launch_text(record, f"cd {shlex.quote(record['working_dir'])} || exit 1\n{''.join(exports)}")


def write(folder: Path, record: dict, spec: dict) -> None:
    storage.write_text(folder / jobs.LAUNCH, launch_text(record))


def start(folder: Path, lock: int) -> None:
    """Nothing: the supervisor does it all."""


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


def judged(folder: Path, record: dict) -> dict:
    """No process of the job is left: this is an end that its supervisor did not live to record."""
    if (host := record["platform_ref"]["host"]) != socket.gethostname():
        raise jobs.unknown(record, f"it was started on {host}; ask there")
    return evidence.ended(folder, record, None)


def end(folder: Path, record: dict, grace: float) -> None:
    """The supervisor is spared at first, so that it can record the end."""
    supervisor = record["platform_ref"].get("pid")
    for number, patience, spared in (
        (signal.SIGTERM, grace, supervisor),
        (signal.SIGKILL, 5, supervisor),
        (signal.SIGKILL, 5, None),
    ):
        send(number, folder.name, but=spared)
        deadline = time.monotonic() + patience
        while not (gone := jobs.is_idle(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if gone:
            return


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
