"""The batch script of a job on SLURM. Its arguments are the program and its arguments, so that no
value of a user is a part of a script; what is, is quoted.

It says what differs from job to job, and reads the rest (scripts/in_container/slurm_job.sh): on the
first node that reads the environment, which it then removes, and starts slurm_node.sh on each node
with srun, which runs the program and notes its exit code.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base.job_folder import MARK
from cosmos_reason.jobs import containers, engines, mounts
from cosmos_reason.jobs.record import Job

# In a job's folder, of which nobody starts it by hand; `carried` names that of its folder by START.
BATCH = "launch.sbatch"
ENVIRONMENT = "environment"
STARTED, ENDED = "slurm.started", "slurm.ended"
NODE_EXIT = "node.*.exit"
# Of this machine a job without a container gets these, besides what is asked for by name.
KEPT = re.compile(
    r"PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CUDA_HOME|LANG|(LC|CONDA|PYTHON|HF|TRANSFORMERS|TORCH|NCCL|"
    r"UCX|OMP|MKL|WANDB|COSMOS|PYTORCH)_\w+|PYTHONPATH|(?i:https?_proxy|no_proxy)",
    re.ASCII,
)
NOT_IN_MOUNTS = re.compile(r"[\s:,]|[^ -~]")
LOOK_SECONDS = 60  # until a node has to see what it needs: what was just made NFS may show late
# What every job does stands in slurm_job.sh of the bundle, which says what these are.
TEXT = """#!/bin/bash
{directives}# {title}
job={job} folder={folder} seen={seen}
environment={environment}
meet={meet} requeue={requeue} modules=({modules})
needed=({needed}) patience={patience}
srun=({srun})
action={action}
{carried}programs={programs}
unseen='error: JOB-SLURM-PATHS %s: not there on node %s: use storage that the nodes share\\n'
. "$programs/slurm_job.sh" || {{ printf "$unseen" "$programs" "$SLURMD_NODENAME" >&2; exit 1; }}
"""
CARRIED = """new=({new}) outputs=({outputs})
set -- {program}
"""


def program(job: Job) -> str:
    """Return what a job runs, the first word behind its batch script."""
    return job.command[job.command.index(str(job.folder / BATCH)) + 1]


def new_outputs(job: Job) -> list[str]:
    """Return the outputs that have to be empty when a carried run begins: those outside of the
    job's folder, unless it goes on where a first attempt wrote."""
    outside = [path for path in job.outputs.values() if job.folder not in Path(path).parents]
    return [] if job.retry_of else outside


def text(
    job: Job, spec: dict, needed: list[tuple[str, Path]], directives: list[str] | None = None
) -> str:
    """Return the batch script. `needed`: what each node has to have, each with the flag of `test`
    that says so. `directives` are the flags of sbatch of a script that is carried elsewhere, which
    gives the run its id when it starts."""
    meet = ""
    if job.resources["nodes"] > 1:
        meet = "cosmos-rl" if bundle.is_cosmos_rl(job.engine) else "torchrun"
    if job.image is not None:  # Pyxis mounts what it needs, or does not start
        needed = []
    title, carried = f"{job.job_id}, handed to sbatch with its program as the arguments", ""
    if directives is not None:
        title = f"{job.action} with {job.engine}: sbatch starts it, with the secrets of its shell"
        carried = CARRIED.format(
            new=shlex.join(new_outputs(job)),
            outputs=shlex.join(dict.fromkeys(job.outputs.values())),
            program=shlex.join(job.command[job.command.index(str(job.folder / BATCH)) + 1 :]),
        )

    def below_job(path: str | Path) -> str:
        """Return a path as the script writes it, by $job where that is its beginning."""
        if not Path(path).is_relative_to(job.folder):
            return shlex.quote(str(path))
        below = Path(path).relative_to(job.folder)
        return "$job" if below == Path() else f"$job/{shlex.quote(str(below))}"

    return TEXT.format(
        directives="".join(f"#SBATCH {shlex.quote(flag)}\n" for flag in directives or ()),
        title=title,
        job=shlex.quote(str(job.folder)),
        folder=below_job(job.folder if job.image is not None else job.working_dir),
        seen=below_job(mounts.inside(job.folder) if job.image is not None else job.folder),
        environment=below_job(job.folder / environment_of(job)),
        meet=meet,
        modules=shlex.join(job.options.get("modules", [])),
        requeue="yes" if "requeue" in job.options else "",
        needed=shlex.join(word for flag, path in needed for word in (flag, str(path))),
        patience=LOOK_SECONDS,
        srun=shlex.join(_srun_flags(job, spec)),
        action="" if directives is None else job.action,
        carried=carried,
        programs=below_job(engines.programs(job) / "scripts" / "in_container"),
    )


def _srun_flags(job: Job, spec: dict) -> list[str]:
    """Return the flags of srun that differ from job to job."""
    flags = []
    if "cpus" in job.options:
        flags.append(f"--cpus-per-task={job.options['cpus']}")
    if job.image is None:
        return flags
    bound = []
    for path, is_writable in mounts.places(job, spec):
        bound.append(f"{path}:{mounts.inside(path)}:{'rw' if is_writable else 'ro'}")
    return [
        *flags,
        f"--container-image={enroot_name(job.image)}",
        f"--container-mounts={','.join(bound)}",
        f"--container-workdir={mounts.inside(job.folder)}",
        "--no-container-mount-home",
    ]


def enroot_name(image: str) -> str:
    """Return an image as Enroot names it: a registry is told from the name by #; a file stays a
    path."""
    registry, slash, name = image.partition("/")
    is_registry = slash and registry and ("." in registry or ":" in registry)
    return f"{registry}#{name}" if is_registry else image


def environment_of(job: Job) -> str:
    """Return where the job's folder has its variables: carried elsewhere they are no secrets, and
    lie with what nobody has to read."""
    return f"skill/{ENVIRONMENT}" if job.is_carried else ENVIRONMENT


def environment(job: Job, spec: dict, values: dict[str, str]) -> bytes:
    """Return a file of the shell that sets the job's variables. `values` are those that every such
    job gets; of this machine's it gets what it needs, and what was asked for by name."""
    is_carried = job.is_carried
    names = containers.passed(job, spec)
    found = values
    if not is_carried:  # else secrets come with the submitting shell, by name
        found = values | {name: os.environ[name] for name in names}
        if job.image is None:
            kept = {name: os.environ[name] for name in filter(KEPT.fullmatch, os.environ)}
            found = kept | found
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(found.items())]
    if job.image is not None:
        given = {*values, *names, *([MARK] if is_carried else ())}
        lines.append(f"container_env={','.join(sorted(given))}\n")
        if is_carried:
            # Empty folders are lost on the way through git.
            homes = [str(job.folder / below) for below in containers.HOME_VARIABLES.values()]
            lines.append(f"mkdir -p {shlex.join(homes)}\n")
    elif is_carried:
        lines.append(engines.path_there(job))
    return "".join(lines).encode(errors="surrogateescape")


def write(
    folder: Path,
    job: Job,
    spec: dict,
    values: dict[str, str],
    needed: list[tuple[str, Path]],
    directives: list[str] | None = None,
) -> None:
    """Write the batch script and the environment, which nobody else may read."""
    written = text(job, spec, needed, directives)
    (folder / BATCH).write_bytes(written.encode(errors="surrogateescape"))
    descriptor = os.open(folder / environment_of(job), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as handle:
        handle.write(environment(job, spec, values))
