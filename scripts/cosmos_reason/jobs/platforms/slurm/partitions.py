"""What a SLURM cluster's partitions offer, and what stands against a job in one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cosmos_reason.base.findings import Finding, error, warning
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs.options import Options
from cosmos_reason.remote.machine import Host

UNLIMITED = 10**9  # minutes
COLUMNS = "%P|%a|%l|%D|%G|%t|%c|%L"
# Without --exact a row may stand for nodes of several sizes.
SINFO = ("sinfo", "--noheader", "--exact", f"--format={COLUMNS}")
# A node that runs jobs or will: what %t prints, and after it that it powers up or is planned for
# another job.
USABLE = re.compile(r"(?:idle|mix|alloc|comp|plnd|resv)[~#-]?")
GPU_COUNT = re.compile(r"(?:^|,)gpu(?::(?P<type>[^:,]+))?(?::[^:,]+)*:(?P<count>\d+)(?=,|$)")
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike: a row of `sinfo`. `minutes` is the partition's time
    limit, None for one that cannot be read, `default_minutes` that of a job which names none;
    `gpus_by_type` are those of one node, '' for a type that is not said, as `cpus` are of one."""

    partition: str
    is_default: bool
    is_up: bool
    minutes: int | None
    count: int
    gpus_by_type: dict[str, int]
    state: str
    cpus: int
    default_minutes: int | None

    def gpus(self, kind: str = "") -> int:
        """Return the GPUs of type `kind`, or of any type."""
        if not kind:
            return sum(self.gpus_by_type.values())
        # sinfo may print it in other letters than what was configured and is asked for.
        named = [name for name in self.gpus_by_type if name.lower() == kind.lower()]
        return sum(self.gpus_by_type[name] for name in named)


@dataclass(frozen=True)
class Wish:
    """What a job wants of a partition: nodes, GPUs of each, how it asks for them (--gres), a time
    limit, CPUs of each node, or all of its nodes."""

    nodes: int
    gpus: int
    gres: str | None
    time_limit: str | None
    cpus: int | None
    exclusive: bool

    @property
    def kind(self) -> str:
        """Return the type of the GPUs, '' for any."""
        return (self.gres or "").partition(":")[2]

    @property
    def counted_gpus(self) -> int:
        """Return how many GPUs SLURM is asked for."""
        return 0 if self.gres == "none" else self.gpus


def wish(asked: Options, nodes: int, gpus: int) -> Wish:
    """Return what a launch, or a preflight of the platform alone, wants of a partition."""
    return Wish(nodes, gpus, asked.gres, asked.time_limit, asked.cpus, asked.exclusive)


def parse_partitions(text: str) -> list[Nodes]:
    """Return the rows of `sinfo --format=COLUMNS`."""
    rows = []
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) != 8 or not (cells[3].isdecimal() and cells[6].isdecimal()):
            continue
        name, up, limit, count, resources, state, cpus, default = cells
        without_sockets = re.sub(r"\(.*?\)", "", resources)
        gpus: dict[str, int] = {}
        for kind, number in GPU_COUNT.findall(without_sockets):
            gpus[kind] = gpus.get(kind, 0) + int(number)
        row = Nodes(
            partition=name.rstrip("*"),
            is_default=name.endswith("*"),
            is_up=up == "up",
            minutes=minutes(limit),
            count=int(count),
            gpus_by_type=gpus,
            state=state,
            cpus=int(cpus),
            default_minutes=minutes(limit if default == "n/a" else default),
        )
        rows.append(row)
    return rows


def minutes(written: str) -> int | None:
    """Return the minutes of a SLURM time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, infinite, which
    0 means too; None for anything else."""
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
    return days * 1440 + hours * 60 + mins + rounded_up or UNLIMITED


def megabytes(written: str) -> int:
    """Return the MiB of what --memory takes: 0 for all of a node, or a size such as 200G; 0 for
    what is none."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)|.*", written, re.DOTALL).groups("")
    if not number:
        return 0
    factor = {"K": 1 / 1024, "G": 1024, "T": 1024**2}.get(unit, 1)
    return math.ceil(int(number) * factor)


def wanted(rows: list[Nodes], asked: str | None) -> str:
    """Return the partition that was asked for, else the default one; '' without one."""
    defaults = (row.partition for row in rows if row.is_default)
    return asked or next(defaults, "")


def default_minutes(rows: list[Nodes], name: str) -> int:
    """Return the time limit of a job in the partition that names none."""
    mine = [row.default_minutes for row in rows if row.partition == name]
    return next(filter(None, mine), UNLIMITED)


def check(rows: list[Nodes], name: str, wish: Wish, others: Fix) -> Iterator[Finding]:
    """Yield what the partition `name` is not: up, long enough, with nodes that have the GPUs that
    are wanted; `others` is the fix where its nodes have fewer. Of one that is not there, and of
    several with commas, SLURM itself says what is wrong when it is asked for a node."""
    mine = [row for row in rows if row.partition == name]
    if not mine:
        return
    if not mine[0].is_up:
        message = "got a partition that is down, expected it up"
        yield error("PRE-SLURM-DOWN", name, message, "sinfo --summarize")
    most = mine[0].minutes or UNLIMITED
    default = default_minutes(mine, name)
    asked = minutes(wish.time_limit) if wish.time_limit is not None else None
    if wish.time_limit is None and default < most:
        message = f"got none: SLURM ends the job after {default} minutes, the default of {name}"
        longest = Fix(flags={"--time-limit": most})
        fix = longest if most < UNLIMITED else "--time-limit D-HH:MM:SS"
        yield warning("PRE-SLURM-DEFAULT-TIME", "--time-limit", message, fix)
    elif wish.time_limit is not None and (asked is None or asked > most):
        means = ", which is no limit" if asked == UNLIMITED else ""
        message = f"got {wish.time_limit}{means}, expected at most {most} minutes (the partition's "
        fix = Fix(flags={"--time-limit": most})
        yield error("PRE-SLURM-TIME", "--time-limit", f"{message}limit)", fix)
    gpus = wish.counted_gpus
    kind = wish.kind if gpus else ""
    if gpus and not most_gpus(mine, name):
        message = f"got no node with GPUs (GRES) in {name}, expected {gpus} on each"
        having = [row for row in rows if row.is_up and row.gpus()]
        fix = Fix()
        if having:  # another partition has some
            fix = Fix(flags={"--partition": max(having, key=Nodes.gpus).partition})
        else:
            message += "; where SLURM does not count GPUs, --gres none does not ask for them"
        yield error("PRE-SLURM-GRES", name, message, fix)
        return
    fitting = [row for row in mine if row.gpus(kind) >= gpus]
    if not fitting:
        largest, what = most_gpus(mine, name, kind), f"{kind} GPUs" if kind else "GPUs"
        message = f"got nodes with up to {largest} {what} (GRES) in {name}, "
        message += f"expected {gpus}"
        if kind:
            types = sorted({one for row in mine for one in row.gpus_by_type if one})
            message += f"; types there: {', '.join(types) or 'none is named'}"
        # A GPU of another type is another run, which is the user's to choose.
        yield error("PRE-SLURM-GRES", name, message, others if largest else "")
    candidates = fitting or mine
    cpus = max(row.cpus for row in candidates)
    if wish.cpus and wish.cpus > cpus:  # such a job SLURM takes, and lets it wait without end
        message = f"got {wish.cpus}, expected at most {cpus}, the CPUs of a node in {name}"
        yield error("PRE-SLURM-CPUS", "--cpus", message, Fix(flags={"--cpus": cpus}))
    usable = sum(row.count for row in candidates if USABLE.fullmatch(row.state))
    if usable < wish.nodes:
        states = ", ".join(f"{row.count} {row.state}" for row in mine)
        message = f"got {usable} usable nodes in {name} ({states}), expected {wish.nodes}"
        yield error("PRE-SLURM-NODES", name, message, f"sinfo --partition={name} --list-reasons")


def check_cpus(rows: list[Nodes], name: str, wish: Wish) -> Iterator[Finding]:
    """Yield a warning where the CPUs of a job with GPUs are left to the cluster."""
    if wish.gpus and not wish.exclusive and not wish.cpus:
        message = "got neither, and many clusters then give a job one CPU, which starves its GPUs"
        mine = [row for row in rows if row.partition == name]
        fitting = [row for row in mine if row.gpus() >= wish.gpus]
        most = max((row.cpus for row in fitting or mine), default=UNLIMITED)
        fix = Fix(flags={"--cpus": min(8 * wish.gpus, most)})
        yield warning("JOB-SLURM-CPUS", "--cpus, --exclusive", message, fix)


def gpus_of_nodes(rows: list[Nodes], name: str, kind: str = "") -> list[int]:
    """Return the GPUs of each node of a partition that runs jobs; of all its nodes where none
    does."""
    mine = [row for row in rows if row.partition == name]
    usable = [row for row in mine if USABLE.fullmatch(row.state)]
    return [row.gpus(kind) for row in usable or mine for _ in range(row.count)]


def most_gpus(rows: list[Nodes], name: str, kind: str = "") -> int:
    """Return the GPUs of the largest node of a partition, of a type or of any."""
    return max((row.gpus(kind) for row in rows if row.partition == name), default=0)


def ask(host: Host) -> list[Nodes] | str:
    """Return the partitions, or in words why the cluster cannot be asked."""
    answer = host.call(*SINFO)
    return answer.last_words or "no answer" if answer.code else parse_partitions(answer.out)
