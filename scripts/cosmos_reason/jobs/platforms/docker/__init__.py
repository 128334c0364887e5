"""Jobs in containers of a Docker engine: on this machine, rootless, or over ssh where paths are the
same there.

The launcher starts the container, which is named after the job and kept after its end; a supervisor
copies its log and waits for its end. Whatever dies, the container goes on, and whoever asks next
finds it by its name.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from cosmos_reason.base import files
from cosmos_reason.base.findings import (
    EXIT_BAD_INPUT,
    Failure,
    Finding,
    outside,
    say,
    warning,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import containers, evidence, more_memory, mounts, record
from cosmos_reason.jobs.engines import launch_text
from cosmos_reason.jobs.options import Launch
from cosmos_reason.jobs.platforms.docker import client as client
from cosmos_reason.jobs.platforms.docker.client import (
    PATIENCE,
    RUNTIME,
    docker,
    engine_facts,
    engine_host,
    has_nvidia,
    is_rootless,
)
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote.machine import Host

FOLLOWED = True
CHOOSES_GPUS = False
LABEL = "tao-job"
QUICK = 5  # seconds for an answer about a job's state
LOG_SECONDS = 600  # after which a log is asked for anew: a lost connection says nothing
# Written into plans where no docker client says better.
DEFAULT_HOST = "unix:///var/run/docker.sock"
# What is assumed of the engine that a plan is carried to.
CARRIED_TO = {"Runtimes": {"nvidia": {}}, "SecurityOptions": []}


# -- before the start --------------------------------------------------------------------------


def machine(launch: Launch) -> Host | None:
    """Return the engine's. Raises Failure (exit 2) for an address that is none."""
    if launch.carried:
        return None
    try:
        return client.machine(engine_host(launch.docker_host))
    except Failure as failure:
        if failure.exit_code == EXIT_BAD_INPUT:
            raise
        return client.machine_without_client(launch.docker_host)  # check() says the rest


def check(launch: Launch, acting: bool) -> tuple[tuple[str, dict], list[Finding]]:
    """Return the engine's address with what it says about itself, and whether it answers (a plan
    may do without)."""
    needed = launch.needed_gpus
    host, facts = launch.docker_host or DEFAULT_HOST, CARRIED_TO
    if launch.carried:
        return (host, facts), _no_gpus_chosen(launch, needed)
    found = []
    try:
        host, facts = engine_host(launch.docker_host), {}
        facts = engine_facts(host)
    except Failure as failure:
        if acting or failure.exit_code == EXIT_BAD_INPUT:
            raise
        unreachable = failure.findings[0]
        message = f"{unreachable.message}; the plan assumes one that root started"
        found = [warning(unreachable.id, unreachable.where, message, unreachable.fix)]
        return (host, {}), found + _no_gpus_chosen(launch, needed)
    if launch.gpu_ids is None and not has_nvidia(facts):
        message = "the engine lists no NVIDIA runtime, so the container gets no GPU"
        if launch.engine == "transformers":
            message += "; --gpu-ids none says that it should work on the CPU"
        found.append(warning("JOB-DOCKER-GPUS", "--gpu-ids", message, RUNTIME))
    if os.getuid() == 0 and not is_rootless(facts):
        message = "the work runs as root in the container, and its results belong to root; "
        message += "an ordinary user's belong to that user"
        found.append(warning("JOB-DOCKER-ROOT", "--platform docker", message))
    return (host, facts), found


def check_words(launch: Launch) -> list[Finding]:
    return containers.check_image(launch)


def _no_gpus_chosen(launch: Launch, needed: int) -> list[Finding]:
    if launch.gpu_ids is not None or launch.endpoint:
        return []
    if launch.site and launch.site.get("gpus.count") == needed:
        return []  # all of them are meant
    fix = Fix(flags={"--gpu-ids": ",".join(map(str, range(needed)))})
    what = "this plan takes all GPUs" if launch.carried else "this plan has no --gpus"
    return [warning("JOB-DOCKER-GPUS", "--gpu-ids", what, fix)]


def prepare(job: Job, spec: dict, told: tuple[str, dict]) -> Job:
    """Return the docker command. All paths are the host's, except where that would hide a folder of
    the image."""
    host, facts = told
    job = replace(job, options=job.options | {"docker_host": host})
    command = ["docker", "--host", host, "run", *_run_flags(job, spec, facts), job.image]
    command += containers.command(job, spec)
    return replace(job, command=command)


def _run_flags(job: Job, spec: dict, facts: dict) -> list[str]:
    """Return the flags of `docker run`. `facts`: what the engine says about itself."""
    flags = ["--detach", "--name", job.job_id, "--label", f"{LABEL}={job.job_id}"]
    flags += ["--init", "--pull=never", "--ipc=host"]
    # The root of a rootless engine's container is its user, who may raise no limits. Elsewhere the
    # results are to belong to who launches.
    if not is_rootless(facts):
        flags += ["--user", f"{os.getuid()}:{os.getgid()}"]
        for group in os.getgroups():
            if group != os.getgid():
                flags += ["--group-add", str(group)]
        for limit in ("memlock=-1", "stack=67108864", "nofile=65536:65536"):
            flags += ["--ulimit", limit]
    # By id, since docker counts from the first GPU otherwise. The double quotes are docker's own.
    gpu_ids = job.resources["gpu_ids"]
    if gpu_ids is None and has_nvidia(facts):
        flags += ["--gpus", "all"]
    elif gpu_ids:
        flags += ["--gpus", f'"device={",".join(gpu_ids)}"']
    if job.options.get("network"):
        flags += ["--network", job.options["network"]]
    flags += ["--workdir", mounts.inside(job.folder), *mounts.flags(job, spec)]
    # Of secrets the names alone: docker takes their values from the environment of its caller.
    for name, value in containers.written_down(job, spec).items():
        flags += ["--env", f"{name}={value}"]
    for name in containers.passed(job, spec):
        flags += ["--env", name]
    return flags


def unseen(job: Job, spec: dict) -> list[Finding]:
    return []  # the inputs were looked for on the engine's machine


def write(folder: Path, job: Job, spec: dict) -> Job:
    files.write_text(folder / record.LAUNCH, launch_text(job))
    return containers.write(folder, job, spec)


# -- the container -----------------------------------------------------------------------------


def start(job: Job, lock: int) -> Job:
    """Pull the image when it is not there, and start the container; return the job with what the
    engine calls it. Raises Failure (exit 3) when the engine refuses; the record then says why."""
    for path in job.outputs.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    try:
        # Pulled here, where its progress is seen and a login is at hand: `docker run` has
        # --pull=never.
        _pull(job)
        if not record.cancel_requested(job.folder):  # while the image was pulled
            docker(*job.command[2:], timeout=None, pass_fds=[lock])  # it may outlive us
    except Failure as failure:
        refusal = failure.findings[0]
        # An engine that did not answer may run it all the same, which the next to ask will see.
        may_run = True
        if refusal.id != "JOB-DOCKER-UNREACHABLE":
            with contextlib.suppress(Failure):  # nobody can say
                begun = inspect(job)
                may_run = bool(begun) and begun["State"]["Status"] not in ("created", "dead")
        if not may_run:
            reason = f"the container could not be started: {refusal.message}"
            evidence.ended(job, None, reason).write()
        raise
    if record.cancel_requested(job.folder):  # while it was being started
        end(job, grace=0)
    with contextlib.suppress(Failure):  # what cannot be asked now, its supervisor will ask
        job = _as_inspected(job, inspect(job))
        job.write()
    return job


def _pull(job: Job) -> None:
    host = job.options["docker_host"]
    image = job.image
    try:
        docker(host, "image", "inspect", "--format", "{{.Id}}", image)
        return
    except Failure as failure:
        if failure.findings[0].id != "JOB-DOCKER-FAILED":
            raise
    say(f"pulling {image}")
    pulled = subprocess.run(
        ["docker", "--host", host, "pull", image], stdout=sys.stderr.fileno(), check=False
    )
    if pulled.returncode:
        first_part = image.split("/")[0]
        registry = first_part if "." in first_part else "docker.io"
        message = "got no such image here, and none that may be pulled"
        raise outside("JOB-IMAGE-MISSING", image, message, f"docker login {registry}")


def inspect(job: Job, patience: float = PATIENCE) -> dict | None:
    """Return the container of a job, None when there is none. Raises Failure (exit 3)."""
    words = ("container", "inspect", job.job_id)
    try:
        return json.loads(docker(job.options["docker_host"], *words, timeout=patience))[0]
    except Failure as failure:
        if "no such container" in failure.findings[0].message.lower():
            return None
        raise


def supervise(job: Job, lock: int) -> None:
    """Copy the container's log until it ends, then record how. Gives up when the engine cannot be
    asked; whoever asks for the job's state next goes on from there."""
    try:
        # The record belongs to the holder of the lock, which this process inherited.
        while not job.has_ended:
            seen = _as_inspected(job, inspect(job))
            if seen != job:
                seen.write()
            job = seen
            if job.state == record.RUNNING:
                lost = contextlib.suppress(subprocess.SubprocessError)
                with lost, open(job.folder / record.LOG, "wb") as log:
                    _logs(job, log, LOG_SECONDS, "--follow")
                time.sleep(0.2)
    except Failure as failure:
        say(str(failure))


def _logs(job: Job, log: BinaryIO, patience: float, *flags: str) -> None:
    """Write all that the container prints into the open file `log`. Raises SubprocessError when it
    cannot be had."""
    words = ["docker", "--host", job.options["docker_host"], "logs", *flags, job.job_id]
    subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=patience, check=True
    )


def judged(job: Job) -> Job:
    host = job.platform_ref["host"]
    if job.options["docker_host"].startswith("unix:") and host != socket.gethostname():
        reason = f"it was started on {host}; ask there"
        raise job.unknown(reason, cause="JOB-DOCKER-UNREACHABLE")
    return _as_inspected(job, inspect(job, QUICK))


def _as_inspected(job: Job, container: dict | None) -> Job:
    """Return the record of a job as its container is now."""
    if container is None:
        note = "its container is gone" if job.started_at else ""
        return evidence.ended(job, None, note=note)
    state = container["State"]
    if not job.started_at and not state["StartedAt"].startswith("0001"):
        # The engine's machine has its own clock, which may be ahead of this one.
        began = min(record.seconds(_without_fraction(state["StartedAt"])), time.time())
        reference = {"container_id": container["Id"], "image_id": container["Image"]}
        job = replace(
            job,
            state=record.RUNNING,
            started_at=record.time_text(began),
            platform_ref=job.platform_ref | reference,
        )
    if state["Status"] in ("running", "paused", "restarting"):
        return job
    if state["Status"] == "created" or state["Error"]:
        problem = f"the container could not be started: {state['Error']}"
        return evidence.ended(job, None, problem)
    # Where the log cannot be had any more, what the supervisor copied stays.
    lost = contextlib.suppress(subprocess.SubprocessError)
    with lost, files.whole_file(job.folder / record.LOG, "wb") as log:
        _logs(job, log, 10 * PATIENCE)
    note = ""
    if state["OOMKilled"]:
        note = "the kernel ended a process of the container, out of memory"
    job = evidence.ended(job, state["ExitCode"], note=note)
    if state["OOMKilled"]:
        job = replace(job, diagnosis=[*more_memory.causes(job), *job.diagnosis])
    return replace(job, ended_at=_without_fraction(state["FinishedAt"]))


def _without_fraction(time_text: str) -> str:
    """Return a time of the engine, which has nanoseconds, as records hold it."""
    return time_text[: len("YYYY-MM-DDTHH:MM:SS")] + "Z"


def end(job: Job, grace: float) -> None:
    if inspect(job) is None:
        return
    words = ("stop", "--time", str(math.ceil(grace)), job.job_id)
    docker(job.options["docker_host"], *words, timeout=grace + PATIENCE)
