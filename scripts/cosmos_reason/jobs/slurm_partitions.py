"""What a SLURM cluster's partitions offer, and what stands against a job in one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cosmos_reason.base.findings import Finding, error, nearest
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote.machine import Host

UNLIMITED = 10**9  # minutes
COLUMNS = "%P|%a|%l|%D|%G|%t"
# A node that runs jobs or will: what %t prints, and after it that it powers up or is planned for
# another job.
USABLE = re.compile(r"(?:idle|mix|alloc|comp|plnd|resv)[~#-]?")
GPU_COUNT = re.compile(r"(?:^|,)gpu(?::[^:,]+)*:(\d+)(?=,|$)")
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


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
    """The rows of `sinfo --format=COLUMNS`."""
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


def wanted(rows: list[Nodes], asked: str | None) -> str:
    """The partition that was asked for, else the default one; '' without one."""
    named = asked or os.environ.get("SLURM_PARTITION")
    defaults = [row.partition for row in rows if row.is_default]
    return named or next(iter(defaults), "")


def check(
    rows: list[Nodes], name: str, time_limit: str | None, nodes: int, gpus: int, fewer: Fix | str
) -> Iterator[Finding]:
    """Whether the partition `name` is there, up, long enough, and has so many nodes of so many
    GPUs; `fewer` is the fix where none has them."""
    mine = [row for row in rows if row.partition == name]
    if not mine:
        yield _no_partition(name, sorted({row.partition for row in rows}))
        return
    if not mine[0].is_up:
        message = "got a partition that is down, expected it up"
        yield error("PRE-SLURM-DOWN", name, message, "sinfo --summarize")
    most = mine[0].minutes or UNLIMITED
    if time_limit is not None:
        yield from _check_time(time_limit, most)
    yield from _check_nodes(mine, nodes, gpus, fewer)


def most_gpus(rows: list[Nodes], name: str) -> int:
    """GPUs of the largest node of a partition."""
    return max((row.gpus for row in rows if row.partition == name), default=0)


def _check_nodes(mine: list[Nodes], nodes: int, gpus: int, fewer: Fix | str) -> Iterator[Finding]:
    name = mine[0].partition
    fitting = [row for row in mine if row.gpus >= gpus]
    if not fitting:
        most = most_gpus(mine, name)
        message = f"got nodes with up to {most} GPUs (GRES) in {name}, expected {gpus}"
        yield error("PRE-SLURM-GRES", name, message, fewer)
    candidates = fitting or mine
    usable = sum(row.count for row in candidates if USABLE.fullmatch(row.state))
    if usable < nodes:
        states = ", ".join(f"{row.count} {row.state}" for row in mine)
        message = f"got {usable} usable nodes in {name} ({states}), expected {nodes}"
        yield error("PRE-SLURM-NODES", name, message, f"sinfo --partition={name} --list-reasons")


def _no_partition(name: str, names: list[str]) -> Finding:
    message = f"got {name!r}, expected one of {', '.join(names) or 'none there'}"
    near = nearest(name, names) or names
    fix = Fix(flags={"--partition": near[0]} if near else {})
    return error("PRE-SLURM-PARTITION", "--partition", message, fix)


def _check_time(written: str, most: int) -> Iterator[Finding]:
    asked = minutes(written)
    if asked is None or asked > most:
        message = f"got {written}, expected at most {most} minutes (the partition's own limit)"
        fix = Fix(flags={"--time-limit": most})
        yield error("PRE-SLURM-TIME", "--time-limit", message, fix)


def ask(host: Host) -> list[Nodes] | str:
    """The partitions, or in words why the cluster cannot be asked."""
    answer = host.call("sinfo", "--noheader", f"--format={COLUMNS}")
    return answer.last_words or "no answer" if answer.code else parse_partitions(answer.out)
