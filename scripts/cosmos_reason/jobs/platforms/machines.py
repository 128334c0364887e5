"""Which machine a platform's jobs run on, and what its GPUs are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.site import WAYS_OUT
from cosmos_reason.jobs.platforms.docker import client as docker_client
from cosmos_reason.jobs.platforms.gates import missing_description
from cosmos_reason.jobs.platforms.gpus import Driver, driver
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.remote.machine import Host

FROM_ELSEWHERE = (
    f"; {WAYS_OUT}; flags say what they are, too (an H100: 80, sm_90; an L40S: 44, sm_89)"
)


def locate(preflight: Preflight) -> Iterator[Finding]:
    """where the job's paths lie: this machine, the Docker engine's or the cluster's"""
    if preflight.platform == "local":
        preflight.machine = Host()
    elif preflight.platform == "docker":
        # That of the engine launch_job would take; behind an address of tcp none can be asked.
        given = preflight.options.docker_host
        try:
            address = docker_client.engine_host(given)
        except Failure as failure:
            # Docker is to be installed here: what else is wrong here is said in the same run.
            preflight.machine = docker_client.machine_without_client(given)
            yield from failure.findings
            return
        preflight.docker = docker_client.variables(address)
        preflight.machine = docker_client.machine(address)
    elif preflight.platform == "slurm":
        where = slurm_cluster.host()  # $SLURM_HOSTNAME, else this machine
        if not where.is_here or shutil.which("sinfo"):
            preflight.machine = where
        else:
            message = "got no SLURM commands here and no $SLURM_HOSTNAME, expected a login node"
            fix = "export SLURM_HOSTNAME=LOGIN_NODE"
            yield findings.error("PRE-TOOL-MISSING", "sinfo", message, fix)


def ask_for_gpus(preflight: Preflight, machine: Host | None) -> Iterator[Finding]:
    """Note the GPUs of the machine in `launch.driver`; they are checked when everything else is
    known."""
    if machine is None:
        preflight.driver = Driver(problem="an engine over tcp cannot be asked")
    else:
        preflight.driver = driver(machine)
    if preflight.driver.gpus:
        return
    where = machine.name if machine else "docker"
    reason = preflight.driver.problem or "it names none"
    message = f"looked for GPUs with nvidia-smi on {where} and found none ({reason})"
    if not preflight.wants_gpus:
        if not preflight.options.describes_gpus:
            message += "; the embedded engine runs on the CPU then"
        if not preflight.on_cpu:  # else none was asked for
            yield findings.info("PRE-GPU-NONE", "nvidia-smi", message)
        return
    report = findings.warning if preflight.options.describes_gpus else findings.error
    fix = missing_description(preflight.options)
    if fix:
        message += FROM_ELSEWHERE
    yield report("PRE-GPU-NONE", "nvidia-smi", message, fix)


def unseen_paths(paths: dict[str, str], place: str) -> Finding:
    """Return one warning about all that could not be looked for."""
    named = ", ".join(f"{label}={path}" for label, path in paths.items())
    message = f"not looked at, expected on {place}: {named}"
    return findings.warning(
        "PRE-PATH-UNSEEN", "paths", message, f"ls -d {' '.join(paths.values())}"
    )
