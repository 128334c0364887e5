"""Whether a SLURM cluster can run the job: its commands, a partition that fits, Pyxis, the paths on
its nodes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import cosmos_environment
from cosmos_reason.jobs.platforms.gates import other_nodes
from cosmos_reason.jobs.platforms.machines import unseen_paths
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.jobs.platforms.slurm import cluster, modules, partitions, paths
from cosmos_reason.remote.machine import Host

ABSENT_COMMANDS = (
    "for t in sbatch srun sinfo squeue scontrol; do command -v $t >/dev/null || echo $t; done"
)
SHARED = "expected it in a folder that the cluster shares"
# Arguments: -r or -w, each with a path, of which the nearest folder that is there is to be written.
# Prints the numbers of those that are not there so, then a last line.
LOOK = """number=0
while [ $# -gt 1 ]; do
  place=$2
  if [ "$1" = -w ]; then
    until [ -d "$place" ]; do place=$(dirname -- "$place"); done
  fi
  test "$1" "$place" || echo "$number"
  number=$((number + 1))
  shift 2
done
echo end
"""


def check(preflight: Preflight) -> Iterator[Finding]:
    """commands, cosmos-rl, partition, time limit, GRES, nodes, Pyxis, shared paths"""
    host = preflight.machine
    if host is None:
        return  # its name is none, or there is none: said before
    absent = host.call("sh", "-c", ABSENT_COMMANDS)
    names, answer = absent.out.split(), absent
    if not names and not absent.code:
        answer = host.call(*partitions.SINFO)
    if names or answer.code:
        if names:
            message = f"got no {', '.join(names)} on {host.name}, expected SLURM's commands"
            fix = "export SLURM_HOSTNAME=LOGIN_NODE"
            yield findings.error("PRE-TOOL-MISSING", host.name, message, fix)
        else:
            message = f"got {answer.last_words}, expected a login node and a running scheduler"
            fix = f"ssh {host.name} scontrol ping" if host.ssh else "scontrol ping"
            yield findings.error("PRE-SLURM-UNREACHABLE", host.name, message, fix)
        if _read(preflight):
            yield unseen_paths(_read(preflight), "a compute node")
        return
    if not preflight.image:
        action = preflight.case.action if preflight.case else "train"
        yield from cosmos_environment.findings(preflight.engine, action)
    rows = partitions.parse_partitions(answer.out)
    yield from check_partition(rows, preflight)
    if preflight.case:
        name = preflight.result["slurm"]["partition"]
        yield from partitions.check_cpus(rows, name, _wish(preflight))
    if preflight.image:
        yield from cluster.check_pyxis(host)
    yield from unseen_nodes(preflight)
    yield from _shared_paths(preflight, host)


def unseen_nodes(preflight: Preflight) -> Iterator[Finding]:
    """Yield a warning about what only the nodes could tell."""
    if not preflight.image:
        return
    unseen = "driver, CUDA and container toolkit of the nodes"
    fix = shlex.join(["docker", "manifest", "inspect", preflight.image])
    if is_a_file(preflight.image):
        fix = shlex.join(["srun", f"--container-image={preflight.image}", "nvidia-smi"])
    else:
        unseen += ", and the image,"
    message = f"{unseen} were not looked at"
    yield findings.warning("PRE-HOST-UNSEEN", preflight.platform, message, fix)


def is_a_file(image: str) -> bool:
    """Return whether an image is a file of Enroot, rather than a name in a registry."""
    return image.startswith("/")


def check_partition(rows: list[partitions.Nodes], preflight: Preflight) -> Iterator[Finding]:
    """Yield whether the partition asked for (or the default one) fits the launch."""
    name = partitions.wanted(rows, preflight.options.partition)
    names = sorted({row.partition for row in rows})
    preflight.result["slurm"] = {"partition": name, "partitions": names}
    wish = _wish(preflight)
    others = other_nodes(preflight, partitions.gpus_of_nodes(rows, name, wish.kind))
    yield from partitions.check(rows, name, wish, others)


def _wish(preflight: Preflight) -> partitions.Wish:
    gpus = 0 if preflight.on_cpu else preflight.gpus_per_node
    return partitions.wish(preflight.options, preflight.nodes, gpus)


# ---- paths -------------------------------------------------------------------------------------


def _read(preflight: Preflight) -> dict[str, str]:
    """Return what the job reads, by label; a node works in another folder than this one."""
    named = preflight.plain_paths()
    if is_a_file(preflight.image):
        named["--image"] = preflight.image
    return {label: os.path.abspath(os.path.expanduser(path)) for label, path in named.items()}


def _shared_paths(preflight: Preflight, host: Host) -> Iterator[Finding]:
    """Look at paths as a compute node sees them; as the login node does when no node is free at
    once."""
    read = _read(preflight)
    written = list(dict.fromkeys(map(os.path.abspath, preflight.outputs)))
    if not (read or written or preflight.options.modules):
        return
    words = [word for path in read.values() for word in ("-r", path)]
    words += [word for path in written for word in ("-w", path)]
    # The modules that the nodes load, as the options of a job have them.
    loaded = preflight.options.modules or []
    if modules.check_words(loaded, in_container=False):
        loaded = []
    loading = {"modules": loaded, "env": preflight.options.env or []}
    program = modules.PYTHON if preflight.engine == "transformers" else ""
    load, look = modules.look(loading, program), ["sh", "-c", LOOK, "sh", *words]
    chosen = preflight.options
    asked = {"partition": preflight.result["slurm"]["partition"]}
    asked |= {"account": chosen.account, "qos": chosen.qos}
    asked = {name: value for name, value in asked.items() if value}
    asked_of_node = ["bash", "-c", load + LOOK, "bash", *words] if load else look
    answer = host.call("srun", *paths.flags(asked), *asked_of_node)
    answered, where = answer.out.splitlines(), "a compute node"
    if "end" not in answered:
        refused = paths.refusal(host, asked, answer.err)
        if refused:
            yield refused
            return
        message = f"no compute node could be asked ({answer.last_words}); the login node was asked "
        fix = "squeue --start"
        yield findings.warning("PRE-SLURM-NODE-BUSY", host.name, f"{message}instead", fix)
        answer = host.call(*look)
        answered, where = answer.out.splitlines(), host.name
        if "end" not in answered:
            message = f"got {answer.last_words}, so no path could be looked at"
            yield findings.error("PRE-PATHS-UNSEEN", host.name, message)
    yield from modules.complaints(answered, where, loading, host)
    for number, (label, path) in enumerate(read.items()):
        if str(number) in answered:
            message = f"got no such path that can be read on {where}, {SHARED}"
            look = shlex.join(["ls", "-d", path])
            yield findings.error("PRE-PATH-MISSING", f"{label}={path}", message, look)
    for number, path in enumerate(written, len(read)):
        place = host.place(path) if str(number) in answered else None
        # Where the login node may not write either, the check of disks says so.
        if str(number) in answered and (place is None or place.takes_files):
            message = f"got a place that may not be written on {where}, {SHARED}"
            yield findings.error("PRE-OUTPUT", path, message, shlex.join(["ls", "-ld", path]))
