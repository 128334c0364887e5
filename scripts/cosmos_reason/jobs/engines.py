"""What an engine runs for an action: the argument lists of skill_info.yaml, filled in, and started
once for each rank where the embedded engine trains on several. Here is also what a job gets that
runs in no container, on this machine or a node of SLURM; `containers` has the same for the others.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.jobs import cosmos_environment, record
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import actions, document

# Starts and watches the ranks of a node. -P: files of the working directory are no modules. Signals
# are handed on: the ranks are in sessions of their own, where a scheduler may not reach them. When
# one has failed or the job is to end, the others have as many seconds to save what they have as
# skill_info.yaml says; a torch before that variable gives them 30.
TORCHRUN = (
    *("-P", "-m", "torch.distributed.run"),
    "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
)
# On one node: they meet where no name of the machine has to be known.
ALONE = ("--standalone", "--local-addr=127.0.0.1")


def place(job: Job) -> dict:
    """Return what a site says of where the job runs: skill, environment, offline; {} without."""
    return job.options.get("carried") or job.options.get("place") or {}


def programs(job: Job) -> Path:
    """Return the folder of this skill where the job runs: this one, the one that a site names, or
    of a launch that is written out for elsewhere the one that the folder brings."""
    return Path(place(job).get("skill") or bundle.ROOT)


def dataset_script(job: Job) -> str:
    """Return what reads the data of a training: ours, or the one that was asked for."""
    ours = programs(job) / "scripts" / "train_with_cosmos_rl.py"
    return job.options.get("entry_script") or str(ours)


def own_program(engine: str) -> str | None:
    """Return the program of an engine that stands in an environment of its own."""
    return bundle.skill_info()["engines"][engine].get("program")


def environment(job: Job) -> dict[str, str]:
    """Return what skill_info.yaml says of the environment of the engine's processes."""
    facts = bundle.skill_info()["engines"][job.engine]
    found = dict(facts.get("environment", {}))
    if job.resources["nodes"] == 1:
        found |= facts.get("one_node_environment", {})
    if place(job).get("offline"):
        found["HF_HUB_OFFLINE"] = "1"
    return found


def words(
    job: Job, spec: dict, /, inside: Callable[[str], str] = str, **values: object
) -> list[str]:
    """Return the program of a job and its arguments.

    `values` are python, config (the spec to read), job (the job's folder), scripts (the bundle's),
    entry_script (what reads the data of cosmos-rl), and of an engine in an environment of its own
    its program. Keys that the program reads from flags are those of the spec; empty ones get no
    flag, and one whose flag takes no value (it does not end in =) gets it when it is true.
    """
    entry = bundle.skill_info()["engines"][job.engine]["actions"][job.action]
    found = [word.format(action=job.action, **values) for word in entry["command"]]
    # Some programs of NVIDIA's read the spec, others take its values as flags.
    full = document.with_defaults(job.action, spec)
    for key, flag in entry.get("flags", {}).items():
        value = document.get(full, key)
        takes_value = flag.endswith("=")
        if value is None or value == "" or (value is False and not takes_value):
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found.append(flag + text if takes_value else flag)
    if "endpoint" in job.options:
        found.append(f"--endpoint={job.options['endpoint']}")
    if "served_model" in job.options:
        found.append(f"--served-model={job.options['served_model']}")
    if "checkpoints" in job.options:
        found += ["--checkpoint", *map(inside, job.options["checkpoints"])]
    if job.engine != "transformers" or job.action not in actions.TRAINING:
        return found
    from cosmos_reason.rules.keys import RANKS_OF_REPLICA  # supervisors need no rules

    ranks = math.prod(document.get(full, key) for key in RANKS_OF_REPLICA)
    if ranks == 1:
        return found
    # Every rank of a node starts the program of Python. What differs from node to node the platform
    # adds, behind TORCHRUN.
    python, *words = found
    nodes = job.resources["nodes"]
    where = ALONE if nodes == 1 else (f"--nnodes={nodes}",)
    return [python, *TORCHRUN, *where, f"--nproc-per-node={ranks // nodes}", *words]


def words_on_host(job: Job, spec: dict) -> list[str]:
    """Return the program and arguments of a job without a container: with the interpreter that runs
    this, or with that of the environment that a site names."""
    python, program = sys.executable, own_program(job.engine)
    there = place(job).get("environment")
    if there or job.is_carried:
        before = f"{there}/bin/" if there else ""
        python, program = f"{before}python3", f"{before}{program}"
    elif program:
        program = cosmos_environment.folder() / program
    return words(
        job,
        spec,
        config=job.folder / record.SPEC,
        job=job.folder,
        scripts=programs(job) / "scripts",
        entry_script=dataset_script(job),
        python=python,
        program=program,
    )


def environment_on_host(job: Job, program: str) -> dict[str, str]:
    """Return what the environment of a job without a container, whose first word is `program`, gets
    on top of the caller's."""
    added = {"PYTHONUNBUFFERED": "1"} | environment(job)
    gpu_ids = job.resources["gpu_ids"]
    if gpu_ids is not None:  # they count as in nvidia-smi, and CUDA by itself counts otherwise
        added |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids)}
    if own_program(job.engine) and not job.is_carried and os.path.isabs(program):
        added |= cosmos_environment.added(Path(program).parent)
    return added


def path_there(job: Job) -> str:
    """Return the line of the shell that a carried job needs to begin with, '' for most: an engine
    in an environment of its own starts its processes as `python` and finds its server on PATH."""
    there = place(job).get("environment")
    if not (there and own_program(job.engine)):
        return ""
    return f"PATH={shlex.quote(f'{there}/bin')}:$PATH\n"


def launch_text(job: Job, before: str = "") -> str:
    """Return a script that shows people what runs, a flag per line; `before` is what the command
    needs."""
    lines = []
    for word in job.command:
        quoted = shlex.quote(word)
        lines.append(f"\\\n  {quoted}" if quoted.startswith("--") else quoted)
    return f"#!/bin/sh\n# {job.job_id}\n{before}exec {' '.join(lines)}\n"


def image_there(job: Job) -> str:
    """Return the image of a job, and what an engine of this skill needs of it: nobody has looked
    into it, where it is planned."""
    needs = bundle.skill_info()["engines"][job.engine].get("image_needs")
    return f"{job.image}, {needs}" if needs else str(job.image)
