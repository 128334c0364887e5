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
from cosmos_reason.preflight.options import KUBERNETES, Launch, PreflightOptions

# What a plan says in its own words, and what this preflight says of the same.
NO_SUCH_GPUS = {"PRE-GPU-NONE", "PRE-GPU-INDEX", "PRE-GPU-COUNT"}
# Flags of a launch that only some platforms take, beside those of Kubernetes, as options here.
# Where a plan is written is nothing to a preflight.
PASSED = tuple(
    flag.removeprefix("--").replace("-", "_")
    for flag in jobs_launch.PLATFORM_FLAGS
    if flag != "--output"
)
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
    taken = flags_of_platform(launch)
    if launch.options.image and is_taken("image", launch.platform):
        taken["image"] = launch.options.image
    return jobs_launch.Request(
        action=launch.case.action,
        spec_path=Path(launch.options.spec).absolute(),
        platform=launch.platform,
        engine=launch.engine,
        jobs_dir=record.root(launch.options.jobs_dir),
        working_dir=Path.cwd(),
        nodes=launch.nodes,
        gpu_ids=gpu_ids(launch),
        image_version=launch.options.image_version,
        entry_script=launch.options.entry_script,
        carried=is_carried(launch),
        modules=taken.pop("module", None),
        kubernetes={name: taken.pop(name) for name in KUBERNETES if name in taken},
        **taken,
    )


def is_taken(name: str, platform: str) -> bool:
    """Whether a launch on the platform has a use for a flag."""
    takes = platforms.module(platform).TAKES
    if name in KUBERNETES:
        return "kubernetes" in takes
    return {"module": "modules"}.get(name, name) in takes


def useless(options: PreflightOptions, platform: str) -> list[str]:
    """The flags that were given and that the platform has no use for."""
    given = [name for name in (*PASSED, *KUBERNETES) if getattr(options, name)]
    return [name for name in given if not is_taken(name, platform)]


def flags_of_platform(launch: Launch) -> dict[str, object]:
    """The flags that were given and that the platform takes, but for the image."""
    found = {}
    for name in (*PASSED, *KUBERNETES):
        value = getattr(launch.options, name)
        if value and name != "image" and is_taken(name, launch.platform):
            found[name] = value
    return found


def gpu_ids(launch: Launch) -> list[str] | None:
    """As many as the spec needs of the GPUs that were found, else those that were named, else the
    first ones; none where the embedded engine finds none, and None where nobody was asked or
    somebody else chooses."""
    if launch.on_cpu:
        return []
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
