"""Whether a SLURM cluster can run the job: its commands, a partition that fits, Pyxis, the paths on
its nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.preflight.access import plain_paths, unseen_paths
from cosmos_reason.preflight.gates import fewer_gpus
from cosmos_reason.preflight.options import Launch
from cosmos_reason.remote.machine import Host

UNLIMITED = 10**9  # minutes
ABSENT_COMMANDS = (
    "for t in sbatch srun sinfo squeue scontrol; do command -v $t >/dev/null || echo $t; done"
)
ABSENT_PATHS = 'for p; do test -e "$p" || echo "$p"; done; echo end'
PARTITION_COLUMNS = "%P|%a|%l|%D|%G|%t"
# A node that runs jobs or will: what %t prints, and after it that it powers up or is planned for
# another job.
USABLE = re.compile(r"(?:idle|mix|alloc|comp|plnd|resv)[~#-]?")
GPU_COUNT = re.compile(r"(?:^|,)gpu(?::[^:,]+)*:(\d+)(?=,|$)")
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


def check(launch: Launch) -> Iterator[Finding]:
    """commands, partition, time limit, GRES, nodes, Pyxis, shared paths"""
    host = launch.machine
    if host is None:
        return  # its name is none, or there is none: said before
    problem, partitions = _ask(host)
    if problem:
        yield problem
        if plain_paths(launch):
            yield unseen_paths(plain_paths(launch), "a compute node")
        return
    yield from check_partition(parse_partitions(partitions), launch)
    uses_container = launch.engine == "tao" or launch.options.image
    if uses_container and not _has_pyxis(host):
        message = "got an srun without --container-image, expected Pyxis and Enroot for containers"
        fix = "install Pyxis and Enroot on the cluster"
        yield findings.error("PRE-SLURM-PYXIS", host.name, message, fix)
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
        answer = host.call("sinfo", "--noheader", f"--format={PARTITION_COLUMNS}")
    if not answer.code:
        return None, answer.out
    message = f"got {answer.last_words}, expected a login node and a running scheduler"
    fix = f"ssh {host.name} scontrol ping" if host.ssh else "scontrol ping"
    return findings.error("PRE-SLURM-UNREACHABLE", host.name, message, fix), ""


def _has_pyxis(host: Host) -> bool:
    return "--container-image" in host.call("srun", "--help").out


def unseen_nodes(launch: Launch) -> Iterator[Finding]:
    """A warning about what only the nodes could tell."""
    if launch.image:
        message = (
            "driver, CUDA and container toolkit of the nodes, and the image, were not looked at"
        )
        fix = f"docker manifest inspect {launch.image}"
        yield findings.warning("PRE-HOST-UNSEEN", launch.platform, message, fix)


# ---- partitions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike: a row of `sinfo`. `minutes` is the partition's time
    limit, None for one that cannot be read; `gpus` are those of one node."""

    partition: str
    is_default: bool
    is_up: bool
    minutes: int | None
    count: int
    gpus: int
    state: str


def parse_partitions(text: str) -> list[Nodes]:
    """The rows of `sinfo --format=PARTITION_COLUMNS`."""
    rows = []
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) != 6 or not cells[3].isdigit():
            continue
        name, up, limit, count, resources, state = cells
        without_sockets = re.sub(r"\(.*?\)", "", resources)
        gpus = sum(int(number) for number in GPU_COUNT.findall(without_sockets))
        row = Nodes(
            partition=name.rstrip("*"),
            is_default=name.endswith("*"),
            is_up=up == "up",
            minutes=minutes(limit),
            count=int(count),
            gpus=gpus,
            state=state,
        )
        rows.append(row)
    return rows


def minutes(written: str) -> int | None:
    """Minutes of a SLURM time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, infinite; None for
    anything else."""
    if written.lower() in ("infinite", "unlimited", "n/a"):
        return UNLIMITED
    found = TIME.fullmatch(written)
    if not found:
        return None
    parts = [int(part) for part in found["parts"].split(":")]
    if found["days"]:
        hours, mins, seconds = parts + [0] * (3 - len(parts))
    elif len(parts) == 1:
        hours, mins, seconds = 0, parts[0], 0
    else:
        hours, mins, seconds = [0] * (3 - len(parts)) + parts
    days = int(found["days"] or 0)
    rounded_up = 1 if seconds else 0
    return days * 1440 + hours * 60 + mins + rounded_up


def check_partition(rows: list[Nodes], launch: Launch) -> Iterator[Finding]:
    """Whether the partition asked for (or the default one) is there, up, long enough, and has the
    nodes and GPUs."""
    names = sorted({row.partition for row in rows})
    wanted = _wanted_partition(rows, launch)
    launch.result["slurm"] = {"partition": wanted, "partitions": names}
    mine = [row for row in rows if row.partition == wanted]
    if not mine:
        yield _no_partition(wanted, names)
        return
    if not mine[0].is_up:
        message = "got a partition that is down, expected it up"
        yield findings.error("PRE-SLURM-DOWN", wanted, message, "sinfo --summarize")
    yield from _check_time(launch.options.time_limit, mine[0].minutes or UNLIMITED)
    yield from _check_nodes(mine, launch)


def _check_nodes(mine: list[Nodes], launch: Launch) -> Iterator[Finding]:
    """GPUs and number of a partition's nodes."""
    wanted = mine[0].partition
    fitting = [row for row in mine if row.gpus >= launch.gpus_per_node]
    if not fitting:
        most = max(row.gpus for row in mine)
        needed = launch.gpus_per_node
        message = f"got nodes with up to {most} GPUs (GRES) in {wanted}, expected {needed}"
        yield findings.error("PRE-SLURM-GRES", wanted, message, fewer_gpus(launch, most))
    candidates = fitting or mine
    usable = sum(row.count for row in candidates if USABLE.fullmatch(row.state))
    if usable < launch.nodes:
        states = ", ".join(f"{row.count} {row.state}" for row in mine)
        message = f"got {usable} usable nodes in {wanted} ({states}), expected {launch.nodes}"
        fix = f"sinfo --partition={wanted} --list-reasons"
        yield findings.error("PRE-SLURM-NODES", wanted, message, fix)


def _wanted_partition(rows: list[Nodes], launch: Launch) -> str:
    named = launch.options.partition or os.environ.get("SLURM_PARTITION")
    defaults = [row.partition for row in rows if row.is_default]
    return named or next(iter(defaults), "")


def _no_partition(wanted: str, names: list[str]) -> Finding:
    message = f"got {wanted!r}, expected one of {', '.join(names) or 'none there'}"
    near = findings.nearest(wanted, names) or names
    fix = Fix(flags={"--partition": near[0]} if near else {})
    return findings.error("PRE-SLURM-PARTITION", "--partition", message, fix)


def _check_time(written: str | None, most: int) -> Iterator[Finding]:
    if written is None:
        return
    asked = minutes(written)
    if asked is None or asked > most:
        message = f"got {written}, expected at most {most} minutes (the partition's own limit)"
        fix = Fix(flags={"--time-limit": most})
        yield findings.error("PRE-SLURM-TIME", "--time-limit", message, fix)


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
