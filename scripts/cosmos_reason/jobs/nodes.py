"""How many nodes a launch takes, and which platforms can give it several."""

from __future__ import annotations

import math

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Finding, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import actions


def count(asked: int | None, needed: int) -> int:
    """The nodes that were asked for, else as few as hold `needed` GPUs."""
    most = max(bundle.skill_info()["gpu_counts_per_node"])
    return asked or max(1, math.ceil(needed / most))


def platforms(action: str, engine: str) -> list[str]:
    """Those that launch a training of the engine on several nodes."""
    if action not in actions.TRAINING:
        return []
    return list(bundle.skill_info()["engines"][engine].get("several_nodes", {}))


def check(request, needed: int) -> list[Finding]:
    """An error for several nodes where a job has one, and for GPUs that do not fill the nodes."""
    if request.endpoint:
        return []
    nodes = count(request.nodes, needed)
    most = max(bundle.skill_info()["gpu_counts_per_node"])
    able = platforms(request.action, request.engine)
    if request.platform not in able and (nodes > 1 or needed > most):
        return [_one_node(request, needed, able)]
    return _uneven(needed, nodes)


def _one_node(request, needed: int, able: list[str]) -> Finding:
    most = max(bundle.skill_info()["gpu_counts_per_node"])
    has = f"{request.action} with {request.engine} on {request.platform} has one of up to {most}"
    asked = f"{request.nodes} nodes" if request.nodes else f"{count(None, needed)} nodes"
    message = f"got {asked} for the {needed} GPUs of the spec, {has}"
    one_is_enough = needed <= most and _uneven(needed, count(request.nodes, needed))
    if able and not one_is_enough:
        message += f"; several: {', '.join(able)}"
        fix = Fix(flags={"--platform": able[0]})
    elif needed > most:
        fix = Fix(flags={"--gpus-per-node": most})
    else:
        fix = Fix(flags={"--nodes": 1})
    return error("JOB-NODES", "--nodes", message, fix)


def _uneven(needed: int, nodes: int) -> list[Finding]:
    """Trainings are laid out over nodes that are alike, and full."""
    sizes = bundle.skill_info()["gpu_counts_per_node"]
    if needed <= max(sizes) and nodes == 1:
        return []
    if needed % nodes == 0 and needed // nodes in sizes:
        return []
    fitting = [needed // size for size in sizes if needed % size == 0]
    near = min(sorted(fitting), key=lambda candidate: abs(candidate - nodes))
    what = f"nodes of {', '.join(map(str, sizes))} GPUs"
    message = f"got {needed} GPUs on {nodes} nodes, expected {what}"
    return [error("JOB-NODES", "--nodes", message, Fix(flags={"--nodes": near}))]
