"""A job in words: what a planned one would do, and how a recorded one is."""

from __future__ import annotations

import csv
import math
import re
import shlex
from itertools import takewhile
from pathlib import Path

from cosmos_reason.base import bundle, job_folder
from cosmos_reason.jobs import containers, engines, mounts, record
from cosmos_reason.jobs.options import Launch
from cosmos_reason.jobs.record import Job
from cosmos_reason.rules import in_words as spec_in_words
from cosmos_reason.spec import origins

# Flags of sbatch that say nothing of what a job gets; all others are told.
NOT_ASKED_OF_SLURM = ("--parsable", "--job-name=", "--ntasks-per-node=", "--export=", "--chdir=",
                      "--open-mode=", "--output=", "--error=", "--requeue", "--no-requeue",
                      "--signal=")  # fmt: skip


def of_plan(job: Job, launch: Launch) -> str:
    """Return what a planned job is, reads, writes and runs, as a person wants to know it. $PWD
    stands for the folder it is launched in, $JOB for its own and $SKILL for this bundle's, as a
    shell there reads them."""
    gpus = _gpus_in_words(job.resources)
    where = f"{job.platform} at {job.site}" if job.site else job.platform
    lines = [f"{job.action} of {launch.spec_path} with {job.engine} on {where}, {gpus}"]
    if launch.action == "train":
        lines.append(f"  batch    {spec_in_words.size_of_training(launch.case)}")
    lines.append(spec_in_words.table(launch.case, launch.gpu_ids != [] and not launch.endpoint))
    if job.image:
        lines.append(f"image {job.image}")
    if "modules" in job.options:
        lines.append(f"loads modules {', '.join(job.options['modules'])}")
    if "--mount" not in job.command:  # of which _seen_in_docker tells what is read
        reads = dict.fromkeys(entry["path"] for entry in job.inputs)
        lines.append(f"reads {', '.join(reads)}")
    outputs = ", ".join(dict.fromkeys(job.outputs.values()))
    lines.append(f"results in {_named('JOB', job.folder, outputs)}")
    in_docker = "--mount" in job.command
    words = job.command[job.command.index(job.image) + 1 :] if in_docker else job.command
    command = _named("JOB", job.folder, shlex.join(words))
    names = f"JOB={job.folder}"
    if command.count(str(bundle.ROOT)) > 1:
        command = _named("SKILL", bundle.ROOT, command)
        names += f" SKILL={bundle.ROOT}"
    lines += [f"runs, with {names}:", f"  {command}"]
    if in_docker:
        lines += [_named("SKILL", bundle.ROOT, _named("JOB", job.folder, _seen_in_docker(job)))]
    text, place = "\n".join(lines), str(launch.working_dir)
    if place != "/":
        text = re.sub(rf"(?<![\w./-]){re.escape(place)}/(?=[\w.])", "$PWD/", text)
    return f"in {place}:\n{text}"


def of_rendered(job: Job, launch: Launch) -> str:
    """Return all that decides what a job that is written out does there, so that nobody opens its
    files."""
    from cosmos_reason.jobs import run_size  # which only a launch that is written out needs

    asked = _gpus_in_words(job.resources).replace("GPUs not chosen", "all GPUs")
    gib, of_node, seen, unset = run_size.node_gib(launch), [], "", []
    names = [re.sub("^AWS_.*", "AWS_*", name) for name in containers.passed(job, {})]
    given = f"of the shell that starts it {', '.join(dict.fromkeys(names))}, where set"
    if gib:
        of_node.append(f"needs about {gib} GiB of memory")
    if job.platform == "slurm":
        flags = list(takewhile(lambda word: word.startswith("--"), job.command[1:]))
        told = [flag for flag in flags if not flag.startswith(NOT_ASKED_OF_SLURM)]
        asked = " ".join(told)
        if not any(flag.startswith(("--cpus-per-task=", "--exclusive")) for flag in told):
            unset.append("--cpus")
        if not any(flag.startswith("--mem=") for flag in told):
            unset.append("--memory")
        if job.image:
            seen = "by Pyxis: this folder, its inputs and outputs"
            named = [str(job.folder), *(entry["path"] for entry in job.inputs)]
            if all(mounts.inside(path) == path for path in named):
                seen += ", at their own paths"
    elif job.platform == "kubernetes":
        count, pods = job.resources["gpus_per_node"], job.resources["nodes"]
        asked = f"{pods} pod{'s' if pods > 1 else ''} of {count or 'no'} GPUs"
        unset = [flag for flag in ("--cpus", "--memory") if flag[2:] not in job.options]
        volumes = job.options["kubernetes"]["volume"]
        seen = ", ".join("claim {} at {}".format(*volume.split(":", 1)) for volume in volumes)
        given = f"what a Secret {job.job_id} holds, where there is one"
    elif job.platform == "local":
        given = "all of the shell that starts it"
    if unset:
        at_work = run_size.node_processes(launch) if "--cpus" in unset else ""
        told = ", ".join(unset).replace("--cpus", f"--cpus ({at_work})" if at_work else "--cpus")
        if gib:  # which ends the job where it is reached: a quarter more than is foreseen
            told = told.replace("--memory", f"--memory {math.ceil(1.25 * gib)}G")
        of_node.append(f"unset, so the cluster's default: {told}")
    variables = ["HF_HUB_OFFLINE=1"] if job.options["carried"].get("offline") else []
    shows_it = job.platform == "local"  # the file that starts it, which a person may look into
    if job.platform == "kubernetes":
        shows_it = not engines.programs(job).is_relative_to(job.folder)
    if variables and not shows_it:
        variables = ["HF_HUB_OFFLINE=1 by skill/environment"]
    written = dict.fromkeys([str(job.folder), *job.outputs.values()])
    apart = [path for path in written if not Path(path).is_relative_to(job.folder)]
    program = f"{job.action} with {job.engine}"
    if engines.TORCHRUN[-1] in job.command:
        program += " by torchrun"
        program += " on each node, which find each other" if job.resources["nodes"] > 1 else ""
    told = f": {spec_in_words.with_batch(launch.case, uses_gpus=False)}"
    if origins.of_values(launch.spec_path):
        told = f", as build_spec told of {launch.spec_path.name}"
        told += f", with the paths of {job.site}" if job.site else ""
    rows = {
        "asks for": asked,
        "a node": "; ".join(of_node),
        "image": engines.image_there(job) if job.image and job.platform != "docker" else "",
        "mounts": seen,
        "runs": program + told,
        "gets": "; ".join([*variables, given]),
        "writes": ", ".join(apart),
    }
    return "\n".join(f"  {name:8} {text}" for name, text in rows.items() if text)


def _seen_in_docker(job: Job) -> str:
    """Return what the container sees of the machine; its many flags are for programs (--json), and
    for whoever starts it by hand (--output)."""
    pairs = list(zip(job.command, job.command[1:], strict=False))
    mounts = [next(csv.reader([value])) for flag, value in pairs if flag == "--mount"]
    named = {True: [], False: []}
    for _, source, target, *more in mounts:
        path, inside = source.partition("=")[2], target.partition("=")[2]
        named["readonly" in more].append(path if path == inside else f"{path} as {inside}")
    seen = f"there it reads {', '.join(named[True])} and writes {', '.join(named[False])}"
    passed = [value for flag, value in pairs if flag == "--env" and "=" not in value]
    seen += f"; it gets {', '.join(passed)} of this shell" if passed else ""
    return f"{seen} (the whole docker command: --json)"


def _named(name: str, folder: Path, text: str) -> str:
    """Return a text in which a variable stands for the folder."""
    return re.sub(rf"(?<![\w./-]){re.escape(str(folder))}(?![\w.-])", f"${name}", text)


def _gpus_in_words(resources: dict) -> str:
    if resources["nodes"] > 1:
        each = resources["gpus_per_node"]
        equipped = f"of {each} GPUs" if each else "without GPUs"
        return f"{resources['nodes']} nodes {equipped}"
    gpu_ids = resources["gpu_ids"]
    if gpu_ids is None:
        return "GPUs not chosen"
    return f"GPUs {','.join(gpu_ids)}" if gpu_ids else "no GPU"


def history(job: Job) -> list[str]:
    """Return the earlier attempts of a retried job, and how far each came."""
    lines = []
    for attempt in attempts(job)[:-1]:
        far = f" at step {attempt['last_step']}" if attempt["last_step"] is not None else ""
        lines.append(f"retry of {attempt['job_id']}, which ended as {attempt['state']}{far}")
    return lines


def attempts(job: Job) -> list[dict]:
    """Return the jobs of one training up to this one, the oldest first: job_id, state,
    last_step."""
    from cosmos_reason.jobs import progress

    found = []
    for log in job_folder.files_of_attempts(job.folder / record.METRICS):
        known = job.to_json() if log.parent == job.folder else job_folder.read(log.parent)
        step = progress.newest(log.parent).get("step")
        found.append({"job_id": log.parent.name, "state": known.get("state"), "last_step": step})
    return found


def of_job(job: Job) -> str:
    """Describe a recorded job: its state, its newest numbers, why it failed, and what it left."""
    from cosmos_reason.jobs import progress, watch  # a plan has no numbers to tell

    metrics = progress.newest(job.folder)
    facts = watch.facts(metrics)
    if "total_steps" in metrics:
        facts = [progress.position(job.folder, metrics), *facts]
    elif not job.has_ended and progress.stage(job.folder):
        facts = [progress.stage(job.folder), *facts]
    lines = [f"{job.job_id} {job.state} {', '.join(facts)}".strip()]
    times = [
        ("site", job.site),
        ("started", job.started_at),
        ("ended", job.ended_at),
        ("log", job.folder / record.LOG),
    ]
    lines.append(f"  {', '.join(f'{name} {told}' for name, told in times if told)}")
    if job.reason:
        lines.append(f"  {job.reason}")
    lines += [f"  {line}" for line in history(job)]
    for finding in job.diagnosis:
        lines.append(f"  cause: {finding['message']}")
        if finding["fix"]:
            lines.append(f"  fix: {finding['fix']}")
    for name, value in (job.outputs | job.evidence).items():
        lines.append(f"  {name}: {value}")
    return "\n".join(lines)
