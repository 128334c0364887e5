"""The launch that a preflight proposes, and what launch_job would refuse in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import launch as jobs_launch
from cosmos_reason.jobs import platforms, record
from cosmos_reason.preflight import access
from cosmos_reason.preflight.options import Launch

# What a plan says in its own words, and what this preflight says of the same.
NO_SUCH_GPUS = {"PRE-GPU-NONE", "PRE-GPU-INDEX", "PRE-GPU-COUNT"}
ASKED = ("docker", "kubernetes")  # what these platforms' checks leave in the result
SAID = {
    "JOB-INPUT-MISSING": {"PRE-PATH-MISSING"},
    "JOB-IMAGE": {"PRE-IMAGE"},
    "JOB-GPU-IDS": NO_SUCH_GPUS,
    "JOB-GPU-COUNT": NO_SUCH_GPUS,
    "JOB-K8S-FORBIDDEN": {"PRE-K8S-RIGHTS"},
    "JOB-K8S-GPUS": {"PRE-K8S-GPUS"},
    "JOB-K8S-MISSING": {"PRE-K8S-MISSING"},
}


def check(launch: Launch) -> Iterator[Finding]:
    """what launch_job.py plan refuses of the launch that will be proposed"""
    if launch.case is None or launch.platform not in platforms.PLATFORMS:
        return
    if _is_asked(launch) or is_carried(launch):
        _, found = jobs_launch.plan(request(launch))
    else:
        found = jobs_launch.objections(request(launch))
    yield from (finding for finding in found if finding.severity == findings.ERROR)


def _is_asked(launch: Launch) -> bool:
    """Whether the platform is there to be asked once more."""
    if launch.options.skip_platform_access:
        return False
    return launch.platform == "local" or not launch.result.keys().isdisjoint(ASKED)


def is_carried(launch: Launch) -> bool:
    """Whether the plan is for a machine that nothing here asks, and that has what is not here."""
    if launch.platform != "docker" or not launch.options.skip_platform_access:
        return False
    address = launch.options.docker_host or os.environ.get("DOCKER_HOST", "")
    if address.startswith("ssh://"):
        return False  # which submit asks
    paths = access.plain_paths(launch).values()
    return not all(os.path.exists(os.path.expanduser(path)) for path in paths)


def not_said(planned: list[Finding], found: list[Finding]) -> list[Finding]:
    """What a plan refuses and nothing here has said yet."""
    errors = {finding.id for finding in found if finding.severity == findings.ERROR}
    return [finding for finding in planned if not errors & SAID.get(finding.id, set())]


def request(launch: Launch) -> jobs_launch.Request:
    on_docker = launch.platform == "docker"
    takes = platforms.module(launch.platform).TAKES
    return jobs_launch.Request(
        action=launch.case.action,
        spec_path=Path(launch.options.spec).absolute(),
        platform=launch.platform,
        engine=launch.engine,
        jobs_dir=record.root(None),
        working_dir=Path.cwd(),
        nodes=launch.nodes,
        gpu_ids=gpu_ids(launch),
        image=launch.options.image if "image" in takes else None,
        image_version=launch.options.image_version,
        entry_script=launch.options.entry_script,
        docker_host=launch.options.docker_host if on_docker else None,
        carried=is_carried(launch),
        partition=launch.options.partition if "partition" in takes else None,
        account=launch.options.account if "account" in takes else None,
        qos=launch.options.qos if "qos" in takes else None,
        time_limit=launch.options.time_limit if "time_limit" in takes else None,
        gres=launch.options.gres if "gres" in takes else None,
        kubernetes=launch.options.kubernetes if launch.platform == "kubernetes" else {},
    )


def gpu_ids(launch: Launch) -> list[str] | None:
    """As many as the spec needs of the GPUs that were found, else those that were named, else the
    first ones; none where the embedded engine finds none, and None where nobody was asked or
    somebody else chooses."""
    if launch.nodes > 1 or launch.platform not in ("local", "docker"):
        return None
    needed = launch.gpus_per_node
    found = [gpu["index"] for gpu in launch.result.get("gpus", ())]
    if not found and not launch.wants_gpus:
        asked = launch.machine is not None and not launch.options.skip_platform_access
        return [] if asked else None
    chosen = launch.options.target_gpu_index or list(range(needed))
    if len(found) >= needed:
        chosen = found
    return [str(index) for index in chosen[:needed]]
