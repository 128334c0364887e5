"""What this version launches: each action with which engine on which platform, on how many nodes
(`launched`, `several_nodes` and `gpu_counts_per_node` in skill_info.yaml)."""

from __future__ import annotations

import math

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Finding, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import actions

BY_HAND = "; the spec is one for `cosmos-rl --config SPEC DATASET_SCRIPT`, where that is installed"


def ways(action: str | None = None) -> list[tuple[str, str]]:
    """Return (engine, platform) of all that is launched, or of what is launched of one action."""
    found = []
    for engine, facts in bundle.skill_info()["engines"].items():
        for platform, able in facts["launched"].items():
            if action is None or action in able:
                found.append((engine, platform))
    return found


def nodes(asked: int | None, needed: int) -> int:
    """Return the nodes that were asked for, else as few as hold `needed` GPUs."""
    most = max(bundle.skill_info()["gpu_counts_per_node"])
    return asked or max(1, math.ceil(needed / most))


def platforms_of_several(action: str, engine: str) -> list[str]:
    """Return the platforms that launch a training of the engine on several nodes."""
    if action not in actions.TRAINING:
        return []
    return list(bundle.skill_info()["engines"][engine].get("several_nodes", {}))


def check(platform: str, engine: str, action: str, is_site: bool = False) -> list[Finding]:
    """Return an error, with the nearest way out, for an action that is not launched with the engine
    on the platform; of a site the platform stands."""
    able = ways(action)
    if (engine, platform) in able:
        return []
    got = f"got {action} with {engine} on {platform}"
    if not able:
        message = f"{got}, which this version launches with no engine{BY_HAND}"
        return [error("JOB-ACTION", action, message)]
    expected = " or ".join(f"{name} on {place}" for name, place in able)
    message = f"{got}, which this version does not launch; expected {expected}"
    if engine == "cosmos-rl":
        message += BY_HAND
    if is_site:
        able = [way for way in able if way[1] == platform] or [(engine, platform)]
    # The engine is kept before the platform: the spec was written for it.
    near_engine, near_platform = max(able, key=lambda way: (way[0] == engine, way[1] == platform))
    flags = {}
    if near_engine != engine:
        flags["--engine"] = near_engine
        build = f"scripts/build_spec.py {action} --spec SPEC --engine {near_engine} -o NEW"
        message += f"; {build} fits the spec to it"
    if near_platform != platform:
        flags["--platform"] = near_platform
    where = "--engine" if near_engine != engine else "--platform"
    return [error("JOB-ENGINE", where, message, Fix(flags=flags))]
