"""Whether the nodes of a SLURM partition see what a job reads, may write where it writes, and can
load its modules."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cosmos_reason.base.findings import Finding, bad_input, error, warning
from cosmos_reason.jobs import engines, mounts
from cosmos_reason.jobs.platforms.slurm import cluster, modules, script
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote.machine import Answer, Host

NODE_SECONDS = 10  # until a node is free to look, or nobody looks
LIMIT = 60
NEW_CACHE = "export COSMOS_CACHE=DIR HF_HOME=DIR, on storage that the nodes share"
WHO_AND_WHERE = ("partition", "account", "qos")
# Of srun, which SLURM would say of the job too.
REFUSED = re.compile(r"Invalid (account|qos|partition)[^\n]*|[^\n:]*not permitted to use[^\n]*")
# Arguments: flags of `test`, each with its path. Prints the numbers of those that do not hold.
LOOK = """number=0
while [ $# -gt 1 ]; do
  test "$1" "$2" || echo "$number"
  number=$((number + 1))
  shift 2
done
echo "node $SLURMD_NODENAME"
"""


def check(where: Host, job: Job) -> list[Finding]:
    """Return an error for each path that a node does not have, and for modules that it cannot load;
    a warning where not as many nodes can look now as the job is to have."""
    from cosmos_reason.jobs import fetching  # a plan needs no client of the Hub or of S3

    count = job.resources["nodes"]
    # The folders that inputs are to be fetched or unpacked into are made, so that a node sees them.
    folders = [fetching.cache_of(entry["path"]) for entry in job.inputs]
    caches = list(dict.fromkeys(filter(None, folders)))
    for folder in caches:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            message = f"got {problem.strerror}, expected a folder that can be made"
            raise bad_input("CACHE-FOLDER", folder, message, NEW_CACHE) from None
    # As `needed` says it of a job that is there: what it will make has no folder yet, and what is
    # to be fetched has the cache for a place.
    written = [job.folder, *map(Path, job.outputs.values()), *_hub_cache(job)]
    there = []
    for path in written:
        there.append(next(folder for folder in (path, *path.parents) if folder.is_dir()))
    wanted = _tested([*_read(job), *map(str, caches)], there)
    answer = _asked(where, job, wanted, count)
    nodes_by_line = _nodes_by_line(answer, count)
    found = []
    # A cluster at work rarely has all nodes free for a moment. One that looks is better than none.
    if nodes_by_line is None and count > 1 and not refusal(where, job.options, answer.err):
        answer = _asked(where, job, wanted, 1)
        nodes_by_line = _nodes_by_line(answer, 1)
        found = [_untried(where, f"only one of {count} nodes", "the others were not free")]
    if nodes_by_line is None:
        refused = refusal(where, job.options, answer.err)
        return [refused or _untried(where, "no node", answer.last_words or "no answer of srun")]
    for line, names in nodes_by_line.items():
        if line.startswith(modules.TOLD):
            found += modules.complaints([line], f"node {', '.join(names)}", job.options, where)
    for line, names in nodes_by_line.items():
        if line.isdecimal():
            flag, path = wanted[int(line)]
            what = "that may be written to" if flag == "-w" else "that can be read"
            message = f"got nothing {what} on node {', '.join(names)}, expected "
            fix = ""
            if path in caches:
                message += "the folder that inputs are fetched into"
                fix = NEW_CACHE
            else:
                message += "what this machine has there; use storage that the nodes share"
            found.append(error("JOB-SLURM-PATHS", path, message, fix))
    return found


def _asked(where: Host, job: Job, wanted: list[tuple[str, Path]], count: int) -> Answer:
    words = [word for flag, path in wanted for word in (flag, str(path))]
    look = modules.look(job.options, script.program(job)) + LOOK
    asked = flags(job.options, count)
    return where.call("srun", *asked, "bash", "-c", look, "bash", *words, limit=LIMIT)


def _nodes_by_line(answer: Answer, count: int) -> dict[str, list[str]] | None:
    """Return what so many nodes told, with the names of those that told it; None where they did
    not."""
    lines_by_task: dict[str, list[str]] = {}
    for line in answer.out.splitlines():
        task, _, told = line.partition(": ") if count > 1 else ("0", "", line)
        lines_by_task.setdefault(task.strip(), []).append(told)
    found: dict[str, list[str]] = {}
    for *lines, last in lines_by_task.values():
        numbers = [line for line in lines if not line.startswith(modules.TOLD)]
        if not last.startswith("node ") or not all(map(str.isdecimal, numbers)):
            return None
        for line in lines:
            found.setdefault(line, []).append(last.removeprefix("node "))
    is_whole = not answer.code and len(lines_by_task) == count
    return found if is_whole else None


def _untried(where: Host, who: str, why: str) -> Finding:
    message = f"{who} looked for the paths of the job ({why}): it fails there if one is "
    message += "not on storage that the nodes share"
    return warning("JOB-SLURM-UNTRIED", where.name, message)


def refusal(where: Host, options: dict, said: str) -> Finding | None:
    """Return what srun said that SLURM would say of the job too, None where it is something
    else."""
    refused = REFUSED.search(said)
    if not refused:
        return None
    named = [f"--{name} {options[name]}" for name in WHO_AND_WHERE if name in options]
    message = f"got {refused[0]}, expected what the accounts of the cluster allow"
    show = "sacctmgr show associations user=$USER format=account,qos"
    if refused[1] == "partition":
        message, show = f"SLURM refuses it: {refused[0]}", "sinfo --summarize"
    fix = cluster.look(where, show)
    return error("JOB-SLURM-REFUSED", " ".join(named) or where.name, message, fix)


def needed(job: Job) -> list[tuple[str, Path]]:
    """Return what a node has to have when the job begins there, each with the flag of `test` that
    says so."""
    written = [job.folder, *map(Path, job.outputs.values()), *_hub_cache(job)]
    return _tested(_read(job), written)


def _hub_cache(job: Job) -> list[Path]:
    """Return the cache that containers mount; other work finds it by its environment."""
    cache = mounts.hub_cache(job) if job.image else None
    return [cache] if cache else []


def _tested(read: list[str], written: list[Path]) -> list[tuple[str, Path]]:
    found = [("-r", Path(path)) for path in read] + [("-w", path) for path in written]
    return list(dict.fromkeys(found))


def _read(job: Job) -> list[str]:
    from cosmos_reason.jobs import fetching

    read = [entry["path"] for entry in job.inputs if not fetching.cache_of(entry["path"])]
    read += [*job.options.get("checkpoints", []), str(engines.programs(job))]
    if job.image is None:
        program = script.program(job)
        read += [job.working_dir, *([program] if os.path.isabs(program) else [])]
    elif job.image.startswith("/"):
        read.append(job.image)
    return read


def flags(options: dict, count: int = 1) -> list[str]:
    """Return the flags of srun for a moment of so many nodes, without GPUs. Of several each line
    begins with the number of its node."""
    words = ["--quiet", "--job-name=look-for-paths", f"--nodes={count}", f"--ntasks={count}"]
    words += ["--ntasks-per-node=1", "--time=1", *(["--label"] if count > 1 else [])]
    words += [f"--immediate={NODE_SECONDS}", "--mem=64M", "--input=none", "--chdir=/"]
    for name in WHO_AND_WHERE:
        if name in options:
            words.append(f"--{name}={options[name]}")
    return words
