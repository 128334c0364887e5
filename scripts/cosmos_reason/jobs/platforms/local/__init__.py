"""Jobs on this machine: a supervisor in a session of its own runs the command and records how it
ends.

The work inherits the job's lock and writes log.txt itself: were the supervisor killed, the work
would go on unharmed and only its exit code would be lost.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Finding, error, has_errors
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.job_folder import MARK
from cosmos_reason.base.site import WAYS_OUT
from cosmos_reason.jobs import cosmos_environment, engines, nodes, record
from cosmos_reason.jobs.options import Launch
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote.machine import Host
from cosmos_reason.spec import actions

FOLLOWED = True
CHOOSES_GPUS = False
GPU_LINE = re.compile(r"^GPU (\d+): (.*) \(UUID: ([^)]*)\)", re.MULTILINE)
SECONDS_TO_DIE = 5  # after SIGKILL


def machine(launch: Launch) -> Host | None:
    return None if launch.carried else Host()


def check_words(launch: Launch) -> list[Finding]:
    """Return an error where GPUs that are asked for are not there."""
    if not launch.gpu_ids or launch.carried:
        return []
    listed = _listed_gpus()
    absent = []
    for gpu_id in launch.gpu_ids:
        if f"GPU {gpu_id}:" not in listed and f"UUID: {gpu_id})" not in listed:
            absent.append(gpu_id)
    if not absent:
        return []
    count, wanted = listed.count("UUID: GPU-"), len(launch.gpu_ids)
    has = f"{count} GPUs" if count else "no GPU that nvidia-smi lists"
    message = f"got {','.join(absent)}, this machine has {has}"
    if wanted > count:
        return [error("JOB-GPU-IDS", "--gpu-ids", f"{message}; {WAYS_OUT}")]
    usable = Fix(flags={"--gpu-ids": ",".join(map(str, range(wanted)))})
    return [error("JOB-GPU-IDS", "--gpu-ids", message, usable)]


def check(launch: Launch, acting: bool) -> tuple[None, list[Finding]]:
    """Return what cosmos-rl needs of this machine, and an error without a GPU for each rank."""
    on_cosmos = bundle.is_cosmos_rl(launch.engine)
    needed = launch.needed_gpus
    has_ranks = needed > 1 and launch.action in actions.TRAINING
    if launch.carried or not (on_cosmos or has_ranks):
        return None, []
    found = []
    if on_cosmos and "environment" not in (launch.place or {}):
        found += cosmos_environment.findings(launch.engine, launch.action)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    count, sizes = _listed_gpus().count("UUID: GPU-"), bundle.skill_info()["gpu_counts_per_node"]
    if shown is not None:
        count = len([gpu_id for gpu_id in shown.split(",") if gpu_id.strip()])
    if on_cosmos and not has_errors(found) and not launch.gpu_ids:
        # It counts all GPUs that it sees, whatever the spec uses of them.
        if count not in sizes or count < needed:
            message = f"got {count} GPUs, expected {', '.join(map(str, sizes))} visible ones, "
            message += f"{needed} or more"
            usable = Fix(flags={"--gpu-ids": ",".join(map(str, range(needed)))})
            fix = usable if count > needed else ""
            found.append(error("JOB-GPU-COUNT", "--gpu-ids", message, fix))
    elif not on_cosmos and launch.gpu_ids is None and 0 < count < needed:
        # Ranks of the embedded engine do not share a GPU; without any they train on the CPU.
        message = f"got {count} GPUs, the spec needs {needed}; or --gpu-ids none, on the CPU"
        fix = nodes.rebuilt(launch, max(size for size in sizes if size <= count))
        found.append(error("JOB-GPU-COUNT", "--gpu-ids", message, fix))
    return None, found


def gpu_names(gpu_ids: list[str] | None) -> list[str]:
    """Return what nvidia-smi calls the GPUs of this machine that a job uses: those with the numbers
    or UUIDs, or all."""
    if gpu_ids == []:
        return []
    found = []
    for number, name, uuid in GPU_LINE.findall(_listed_gpus()):
        if gpu_ids is None or {number, uuid} & set(gpu_ids):
            found.append(name)
    return found


def _listed_gpus() -> str:
    """Return what nvidia-smi lists, '' where it is missing or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def prepare(job: Job, spec: dict, told: None) -> Job:
    return replace(job, command=engines.words_on_host(job, spec))


def unseen(job: Job, spec: dict) -> list[Finding]:
    return []  # the inputs were looked for here


def write(folder: Path, job: Job, spec: dict) -> Job:
    before = f"cd {shlex.quote(job.working_dir)} || exit 1\n"
    for name, value in engines.environment_on_host(job, job.command[0]).items():
        before += f"export {name}={shlex.quote(value)}\n"
    files.write_text(folder / record.LAUNCH, engines.launch_text(job, before))
    return job


def start(job: Job, lock: int) -> Job:
    """Return the job as it is: the supervisor does it all."""
    return job


def supervise(job: Job, lock: int) -> None:
    """Run the work and record how it ended. A SIGTERM to the supervisor is passed on to the
    work."""
    # Before the work begins: hours later the files of this bundle may be those of another version.
    from cosmos_reason.jobs import evidence

    supervisor = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: send(signal.SIGTERM, job.job_id, spared=supervisor))
    exit_code = None
    problem = ""
    if job.spec_edited():  # the record's hash would vouch for another spec than the one that runs
        problem = "the spec was edited between submit and start"
    elif not record.cancel_requested(job.folder):
        reference = {"pid": supervisor, "host": socket.gethostname()}
        job = replace(job, state=record.RUNNING, started_at=record.now(), platform_ref=reference)
        job.write()
        try:
            exit_code = run(job, lock)
        except OSError as failure:
            problem = f"the command could not be started: {failure.filename}: {failure.strerror}"
    evidence.ended(job, exit_code, problem).write()


def run(job: Job, lock: int) -> int:
    """Run the command to its end, and end what it leaves behind. Returns its exit code, 128 + N for
    signal N."""
    with open(job.folder / record.LOG, "ab") as log:
        work = subprocess.Popen(
            job.command,
            env=os.environ | engines.environment_on_host(job, job.command[0]),
            cwd=job.working_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock],  # taken as long as any process of the work lives
        )
    if record.cancel_requested(job.folder):
        # The request came while the work was being started, and may have missed it.
        work.terminate()
    exit_code = work.wait()
    # Loaders and servers that it left behind would hold its GPUs.
    send(signal.SIGKILL, job.job_id, spared=os.getpid())
    return exit_code if exit_code >= 0 else 128 - exit_code


def judged(job: Job) -> Job:
    """Return the job as ended: no process of it is left, and its supervisor did not live to record
    the end."""
    from cosmos_reason.jobs import evidence

    host = job.platform_ref["host"]
    if host != socket.gethostname():
        raise job.unknown(f"it was started on {host}; ask there")
    return evidence.ended(job, None)


def end(job: Job, grace: float) -> None:
    """End the job's processes; the supervisor is spared at first, so that it can record the end."""
    # The supervisor comes last: as long as it lives it records how the work ended.
    supervisor = job.platform_ref.get("pid")
    for number, patience, spared in (
        (signal.SIGTERM, grace, supervisor),
        (signal.SIGKILL, SECONDS_TO_DIE, supervisor),
        (signal.SIGKILL, SECONDS_TO_DIE, None),
    ):
        send(number, job.job_id, spared)
        deadline = time.monotonic() + patience
        while True:
            if record.is_idle(job.folder):  # the kernel drops its lock with the last process
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(0.1)


def send(number: signal.Signals, job_id: str, spared: int | None) -> None:
    """Signal every process of the job except the process `spared`. They are known by their
    environment: this also finds the ones that left the process group or lost their parent, and
    never one that got a reused process id."""
    import psutil

    for process in psutil.process_iter():
        try:
            if process.pid != spared and process.environ().get(MARK) == job_id:
                process.send_signal(number)
        except psutil.Error:  # gone meanwhile, a zombie, or somebody else's
            continue
