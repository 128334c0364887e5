"""Checks of a SLURM cluster (here or over ssh) and of a Kubernetes one, by what their own tools print."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

from cosmos_reason import findings as f
from cosmos_reason.preflight.gates import fewer_gpus
from cosmos_reason.preflight.host import NO_ANSWER, NO_COMMAND, Host

UNLIMITED = 10**9  # minutes
# A node that runs jobs or will: what %t prints, and after it that it powers up or is planned for another job.
USABLE = re.compile(r"(?:idle|mix|alloc|comp|plnd|resv)[~#-]?")


def slurm(launch) -> Iterator[f.Finding]:
    """commands, partition, time limit, GRES, nodes, Pyxis, shared paths"""
    if (host := launch.machine) is None:
        return  # its name is none: said before
    script = "for t in sbatch srun sinfo squeue scontrol; do command -v $t >/dev/null || echo $t; done"
    answer = host.call("sh", "-c", script)
    if answer.code:
        fix = f"ssh {host.name} true" if host.ssh else ""
        yield f.error("PRE-SLURM-UNREACHABLE", host.name, f"got {answer.said}, expected a login node", fix)
        return
    if lost := answer.out.split():
        message = f"got no {', '.join(lost)} on {host.name}, expected SLURM's commands"
        yield f.error("PRE-TOOL-MISSING", host.name, message, "export SLURM_HOSTNAME=LOGIN_NODE")
        return
    answer = host.call("sinfo", "--noheader", "--format=%P|%a|%l|%D|%G|%t")
    if answer.code:
        message = f"got {answer.said}, expected a running scheduler"
        yield f.error("PRE-SLURM-UNREACHABLE", host.name, message, "scontrol ping")
        return
    yield from partition(parse_partitions(answer.out), launch)
    yield from _containers(launch, host)
    yield from _shared_paths(launch, host)


def parse_partitions(text: str) -> list[dict]:
    """Rows of `sinfo %P|%a|%l|%D|%G|%t`: name, default, up, minutes, nodes, gpus (of one node), state."""
    rows = []
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) != 6 or not cells[3].isdigit():
            continue
        counts = re.findall(r"(?:^|,)gpu(?::[^:,]+)*:(\d+)(?=,|$)", re.sub(r"\(.*?\)", "", cells[4]))
        rows.append({"name": cells[0].rstrip("*"), "default": cells[0].endswith("*"), "up": cells[1] == "up",
                     "minutes": minutes(cells[2]), "nodes": int(cells[3]), "gpus": sum(map(int, counts)),
                     "state": cells[5]})  # fmt: skip
    return rows


def minutes(written: str) -> int | None:
    """Minutes of a SLURM time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, infinite; None for anything else."""
    if written.lower() in ("infinite", "unlimited", "n/a"):
        return UNLIMITED
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", written):
        return None
    days, _, rest = written.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, mins, seconds = (*parts, 0, 0)[:3]
    else:
        hours, mins, seconds = {1: (0, *parts, 0), 2: (0, *parts), 3: parts}[len(parts)]
    return int(days or 0) * 1440 + hours * 60 + mins + (seconds > 0)


def partition(rows: list[dict], launch) -> Iterator[f.Finding]:
    """Whether the partition asked for (or the default one) is there, up, long enough, and has the nodes and GPUs."""
    args, names = launch.args, sorted({row["name"] for row in rows})
    wanted = args.partition or os.environ.get("SLURM_PARTITION") or next((r["name"] for r in rows if r["default"]), "")
    mine = [row for row in rows if row["name"] == wanted]
    launch.result["slurm"] = {"partition": wanted, "partitions": names}
    if not mine:
        near = f.nearest(wanted, names) or names
        message = f"got {wanted!r}, expected one of {', '.join(names) or 'none there'}"
        yield f.error("PRE-SLURM-PARTITION", "--partition", message, f"--partition {near[0]}" if near else "")
        return
    if not mine[0]["up"]:
        yield f.error("PRE-SLURM-DOWN", wanted, "got a partition that is down, expected it up", "sinfo --summarize")
    asked, most = minutes(args.time_limit or "0"), mine[0]["minutes"] or UNLIMITED
    if asked is None or asked > most:
        message = f"got {args.time_limit}, expected a time of at most {most} minutes (the partition's own limit)"
        yield f.error("PRE-SLURM-TIME", "--time-limit", message, f"--time-limit {most}")
    fit = [row for row in mine if row["gpus"] >= launch.gpus_per_node]
    if not fit:
        most = max(row["gpus"] for row in mine)
        message = f"got nodes with up to {most} GPUs (GRES) in {wanted}, expected {launch.gpus_per_node}"
        yield f.error("PRE-SLURM-GRES", wanted, message, fewer_gpus(launch, most))
    usable = sum(row["nodes"] for row in fit or mine if USABLE.fullmatch(row["state"]))
    if usable < args.nodes:
        states = ", ".join(f"{row['nodes']} {row['state']}" for row in mine)
        message = f"got {usable} usable nodes in {wanted} ({states}), expected {args.nodes}"
        yield f.error("PRE-SLURM-NODES", wanted, message, f"sinfo --partition={wanted} --list-reasons")


def _containers(launch, host: Host) -> Iterator[f.Finding]:
    if "--container-image" in host.call("srun", "--help").out:
        return
    if launch.engine == "tao" or launch.args.container_image:
        message = "got an srun without --container-image, expected Pyxis and Enroot for containers"
        yield f.error("PRE-SLURM-PYXIS", host.name, message, "--engine cosmos-rl")


def _shared_paths(launch, host: Host) -> Iterator[f.Finding]:
    """Paths as a compute node sees them; as the login node does when no node is free at once."""
    paths = {label: path for label, path in launch.paths.items() if "://" not in path}
    if not paths:
        return
    script = 'for p; do test -e "$p" || echo "$p"; done; echo end'
    part = launch.result["slurm"]["partition"]
    srun = ["srun", "--quiet", "--immediate=10", "--time=1", "--nodes=1", "--ntasks=1"]
    srun += [f"--partition={part}"] if part else []
    there = [str(path) for path in paths.values()]
    answer = host.call(*srun, "sh", "-c", script, "sh", *there, limit=20)
    where = "a compute node"
    if "end" not in answer.out.split("\n"):
        message = f"no compute node could be asked ({answer.said}); the login node was"
        yield f.warning("PRE-SLURM-NODE-BUSY", host.name, message, "squeue --start")
        answer, where = host.call("sh", "-c", script, "sh", *there), host.name
    lost = answer.out.splitlines()
    if "end" not in lost:
        yield f.error("PRE-PATHS-UNSEEN", host.name, f"got {answer.said}, so no path could be looked at")
    for label, path in paths.items():
        if path in lost:
            fix = "copy it to a shared folder, or name the path as the cluster sees it"
            yield f.error("PRE-PATH-MISSING", f"{label}={path}", f"got no such path on {where}, expected it there", fix)


# ---- Kubernetes ------------------------------------------------------------------------------------------------------


def kubernetes(launch) -> Iterator[f.Finding]:
    """rights, namespace, pull secret, storage class, allocatable GPUs"""
    host, args = Host(), launch.args
    base = ["kubectl", "--request-timeout=10s"]
    answer = host.call("kubectl", "config", "current-context")
    if answer.code == NO_COMMAND:
        yield f.error("PRE-TOOL-MISSING", "kubectl", "got no kubectl here", "https://kubernetes.io/docs/tasks/tools/")
        return
    if answer.code:
        message = f"got {answer.said}, expected a kubectl that knows a cluster"
        yield f.error("PRE-K8S-UNCONFIGURED", "kubectl", message, "export KUBECONFIG=FILE")
        return
    namespace = args.namespace or os.environ.get("K8S_NAMESPACE") or "default"
    inside = [*base, "--namespace", namespace]
    answer = host.call(*inside, "auth", "can-i", "create", "jobs.batch")
    said = answer.out.partition(" ")[0].strip()  # 'no - no RBAC policy matched'
    if answer.code == NO_ANSWER or said not in ("yes", "no"):
        fix = "kubectl cluster-info"
        yield f.error("PRE-K8S-UNREACHABLE", "kubectl", f"got {answer.said}, expected an answer of the cluster", fix)
        return
    if said == "no":
        message = "got no right to create jobs, expected it"
        yield f.error("PRE-K8S-RIGHTS", namespace, message, f"kubectl --namespace {namespace} auth can-i --list")
    for kind, name, flag in (
        ("namespace", namespace, "--namespace"),
        ("secret", args.pull_secret, "--pull-secret"),
        ("storageclass", args.storage_class, "--storage-class"),
    ):
        if name and (answer := host.call(*inside, "get", kind, name, "--output=name")).code:
            known = host.call(*inside, "get", kind, "--output=name").out.split()
            near = f.did_you_mean(name, [item.rpartition("/")[2] for item in known])
            denied = "Forbidden" in answer.err
            report = f.warning if denied else f.error
            message = f"got {answer.said}, expected {kind} {name}.{near}"
            yield report("PRE-K8S-UNKNOWN" if denied else "PRE-K8S-MISSING", flag, message, f"kubectl get {kind}")
    yield from nodes(host.call(*base, "get", "nodes", "--output=json"), launch)


def nodes(answer, launch) -> Iterator[f.Finding]:
    """Allocatable GPUs of ready nodes against what the launch asks of each."""
    try:
        items = json.loads(answer.out)["items"]
        counts = [int(item["status"].get("allocatable", {}).get("nvidia.com/gpu", 0)) for item in items if _ready(item)]
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"got {answer.said[:200]}, so the nodes' GPUs are not known"
        yield f.warning("PRE-K8S-NODES-UNKNOWN", "nodes", message, "kubectl auth can-i list nodes")
        return
    launch.result["kubernetes"] = {"nodes": len(counts), "gpus": counts}
    fit = sum(count >= launch.gpus_per_node for count in counts)
    if fit < launch.args.nodes:
        message = f"got {fit} ready nodes with {launch.gpus_per_node} allocatable GPUs, expected {launch.args.nodes}"
        fix = "kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu"
        yield f.error("PRE-K8S-GPUS", "nodes", message, fix)


def _ready(node: dict) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node.get("spec", {}).get("unschedulable")
