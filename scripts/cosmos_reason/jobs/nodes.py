"""How many nodes a launch takes, and which platforms can give it several."""

from __future__ import annotations

import shlex
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Finding, error, warning
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import record
from cosmos_reason.jobs.options import Launch
from cosmos_reason.rules.launchable import nodes as count
from cosmos_reason.rules.launchable import platforms_of_several as platforms
from cosmos_reason.spec import actions, document, origins


def layout(launch: Launch) -> tuple[int, int]:
    """Return (nodes, GPUs of each) that a launch takes; 0 GPUs on the CPU, and where a server
    answers."""
    if launch.endpoint:
        return 1, 0
    there = count(launch.nodes, launch.needed_gpus)
    return there, 0 if launch.gpu_ids == [] else max(1, launch.needed_gpus // there)


def of_job(folder: Path, needed: int) -> int | None:
    """Return the nodes of a job whose training of `needed` GPUs is to go on; None where none is
    recorded."""
    kept = files.read_json(folder / record.RECORD) if (folder / record.RECORD).is_file() else {}
    # A record that was edited may hold anything, and another layout of GPUs needs other nodes.
    count = document.get(kept, "resources.nodes")
    is_count = type(count) is int and count > 0
    return count if is_count and needed % count == 0 else None


def remarks(launch: Launch) -> list[Finding]:
    """Return a warning for another number of nodes than the spec was laid out for: weights are then
    sharded between nodes, or replicas share one."""
    said, needed = launch.nodes, launch.needed_gpus
    if not said or launch.action not in actions.TRAINING or needed % said:
        return []
    meant = origins.nodes_of(launch.spec_path, needed)
    if not meant or said == meant:
        return []
    message = f"got {said}, and the spec was laid out for {meant} of {needed // meant} GPUs: "
    message += "shards may be spread over nodes"
    words = ["scripts/build_spec.py", launch.action, "--spec", str(launch.spec_path)]
    flags = {"--gpus-per-node": needed // said, "--nodes": said, "-o": "spec.toml"}
    fix = Fix(command=shlex.join(words), flags=flags)
    return [warning("JOB-NODES-LAYOUT", "--nodes", message, fix)]


def rebuilt(launch: Launch, gpus: int) -> Fix:
    """Return the command that lays the spec of a launch out over so many GPUs of one node: in its
    place, so that the launch can be given again; in a file of its own where somebody edited the
    spec, or where it is a job's."""
    output = launch.spec_path
    if launch.retry_of:
        output = Path("spec.toml")
    elif not origins.of_values(output):
        output = output.with_name(f"{output.stem}-{gpus}-gpus.toml")
    words = ["scripts/build_spec.py", launch.action, "--spec", str(launch.spec_path)]
    words += ["--engine", launch.engine]
    flags = {"--gpus-per-node": gpus, "--nodes": 1, "-o": str(output)}
    return Fix(command=shlex.join(words), flags=flags)


def check(launch: Launch) -> list[Finding]:
    """Return an error for several nodes where a job has one, and for GPUs that do not fill the
    nodes."""
    if launch.endpoint:
        return []
    needed = launch.needed_gpus
    asked_for = count(launch.nodes, needed)
    sizes = bundle.skill_info()["gpu_counts_per_node"]
    most = max(sizes)
    able = platforms(launch.action, launch.engine)
    if asked_for == 1 and needed <= most:  # which every engine and platform can
        return []
    # Trainings are laid out over nodes that are alike, and full.
    fills_nodes = needed % asked_for == 0 and needed // asked_for in sizes
    if launch.platform in able and fills_nodes:
        return []
    if launch.platform in able:
        fitting = [needed // size for size in sizes if needed % size == 0]
        near = min(sorted(fitting), key=lambda candidate: abs(candidate - asked_for))
        what = f"nodes of {', '.join(map(str, sizes))} GPUs"
        message = f"got {needed} GPUs on {asked_for} nodes, expected {what}"
        return [error("JOB-NODES", "--nodes", message, Fix(flags={"--nodes": near}))]
    way = f"{launch.action} with {launch.engine} on {launch.platform}"
    message = f"got {asked_for} nodes for the {needed} GPUs of the spec, "
    message += f"{way} takes one node of up to {most}"
    fix = Fix(flags={"--nodes": 1})
    if able and (needed > most or fills_nodes):
        message += f"; several nodes: {', '.join(able)}"
        if needed <= most:
            message += "; or --nodes 1"
        fix = Fix(flags={"--platform": able[0]})
    elif needed > most:
        # No platform gives this engine several nodes: another engine may have some.
        ways = {engine: platforms(launch.action, engine) for engine in bundle.ENGINES}
        ways = {engine: places for engine, places in ways.items() if places}
        fix = Fix(flags={"--gpus-per-node": most})
        if ways:
            named = [f"{engine} on {', '.join(places)}" for engine, places in ways.items()]
            message += f"; several nodes: {'; '.join(named)}"
            engine, places = next(iter(ways.items()))
            fix = Fix(flags={"--engine": engine, "--platform": places[0]})
    return [error("JOB-NODES", "--nodes", message, fix)]


def others(way: tuple[str, str, str], needed: int, there: list[int]) -> Fix:
    """Return what to write where nodes are too small or too few for a launch. `there` has the GPUs
    of each node; `way` is (action, engine, platform). Other nodes for the same training where it
    can have them, else fewer GPUs; nothing where no node has any."""
    action, engine, platform = way
    sizes = sorted(bundle.skill_info()["gpu_counts_per_node"], reverse=True)
    for size in sizes:
        count = needed // size
        can_have = count == 1 or platform in platforms(action, engine)
        if needed % size == 0 and can_have and 1 <= count <= _as_large(there, size):
            return Fix(flags={"--nodes": count})
    size = next((size for size in sizes if _as_large(there, size)), 0)
    if not size:
        return Fix()
    if platform not in platforms(action, engine):
        return Fix(flags={"--gpus-per-node": size})
    count = min(_as_large(there, size), max(1, needed // size))
    return Fix(flags={"--gpus-per-node": size, "--nodes": count})


def _as_large(there: list[int], size: int) -> int:
    """Count the nodes with so many GPUs or more."""
    return sum(gpus >= size for gpus in there)
