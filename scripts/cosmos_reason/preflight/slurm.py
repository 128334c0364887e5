"""Whether a SLURM cluster can run the job: its commands, a partition that fits, Pyxis, the paths on
its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import cosmos_environment, slurm_cluster
from cosmos_reason.jobs import slurm_partitions as partitions
from cosmos_reason.preflight.access import plain_paths, unseen_paths
from cosmos_reason.preflight.gates import other_nodes
from cosmos_reason.preflight.options import Launch
from cosmos_reason.remote.machine import Host

ABSENT_COMMANDS = (
    "for t in sbatch srun sinfo squeue scontrol; do command -v $t >/dev/null || echo $t; done"
)
ABSENT_PATHS = 'for p; do test -e "$p" || echo "$p"; done; echo end'


def check(launch: Launch) -> Iterator[Finding]:
    """commands, cosmos-rl, partition, time limit, GRES, nodes, Pyxis, shared paths"""
    host = launch.machine
    if host is None:
        return  # its name is none, or there is none: said before
    problem, printed = _ask(host)
    if problem:
        yield problem
        if plain_paths(launch):
            yield unseen_paths(plain_paths(launch), "a compute node")
        return
    if launch.engine == "cosmos-rl" and not launch.options.image:
        yield from cosmos_environment.findings(launch.case.action if launch.case else "train")
    yield from check_partition(partitions.parse_partitions(printed), launch)
    uses_container = launch.engine == "tao" or launch.options.image
    if uses_container:
        yield from slurm_cluster.check_pyxis(host)
    yield from unseen_nodes(launch)
    yield from _shared_paths(launch, host)


def _ask(host: Host) -> tuple[Finding | None, str]:
    """(why the cluster cannot be asked, else None; its partitions as sinfo prints them)."""
    absent = host.call("sh", "-c", ABSENT_COMMANDS)
    names = absent.out.split()
    if names:
        message = f"got no {', '.join(names)} on {host.name}, expected SLURM's commands"
        fix = "export SLURM_HOSTNAME=LOGIN_NODE"
        return findings.error("PRE-TOOL-MISSING", host.name, message, fix), ""
    answer = absent
    if not absent.code:
        answer = host.call(*partitions.SINFO)
    if not answer.code:
        return None, answer.out
    message = f"got {answer.last_words}, expected a login node and a running scheduler"
    fix = f"ssh {host.name} scontrol ping" if host.ssh else "scontrol ping"
    return findings.error("PRE-SLURM-UNREACHABLE", host.name, message, fix), ""


def unseen_nodes(launch: Launch) -> Iterator[Finding]:
    """A warning about what only the nodes could tell."""
    if launch.image:
        message = (
            "driver, CUDA and container toolkit of the nodes, and the image, were not looked at"
        )
        fix = f"docker manifest inspect {launch.image}"
        yield findings.warning("PRE-HOST-UNSEEN", launch.platform, message, fix)


def check_partition(rows: list[partitions.Nodes], launch: Launch) -> Iterator[Finding]:
    """Whether the partition asked for (or the default one) fits the launch."""
    name = partitions.wanted(rows, launch.options.partition)
    names = sorted({row.partition for row in rows})
    launch.result["slurm"] = {"partition": name, "partitions": names}
    asked = launch.options
    limit = asked.time_limit or partitions.from_variables("time_limit")
    wish = partitions.Wish(launch.nodes, launch.gpus_per_node, asked.gres, limit)
    others = other_nodes(launch, partitions.gpus_of_nodes(rows, name, wish.kind))
    yield from partitions.check(rows, name, wish, others)


# ---- paths -------------------------------------------------------------------------------------


def _shared_paths(launch: Launch, host: Host) -> Iterator[Finding]:
    """Paths as a compute node sees them; as the login node does when no node is free at once."""
    paths = plain_paths(launch)
    if not paths:
        return
    look = ["sh", "-c", ABSENT_PATHS, "sh", *paths.values()]
    srun = ["srun", "--quiet", "--immediate=10", "--time=1", "--nodes=1", "--ntasks=1"]
    partition = launch.result["slurm"]["partition"]
    if partition:
        srun.append(f"--partition={partition}")
    answer = host.call(*srun, *look)
    where = "a compute node"
    if "end" not in answer.out.splitlines():
        message = f"no compute node could be asked ({answer.last_words}); the login node was"
        yield findings.warning("PRE-SLURM-NODE-BUSY", host.name, message, "squeue --start")
        answer = host.call(*look)
        where = host.name
    lines = answer.out.splitlines()
    if "end" not in lines:
        message = f"got {answer.last_words}, so no path could be looked at"
        yield findings.error("PRE-PATHS-UNSEEN", host.name, message)
    for label, path in paths.items():
        if path in lines:
            message = (
                f"got no such path on {where}, expected it in a folder that the cluster shares"
            )
            yield findings.error("PRE-PATH-MISSING", f"{label}={path}", message, f"ls -d {path}")
