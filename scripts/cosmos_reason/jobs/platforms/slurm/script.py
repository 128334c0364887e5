"""The batch script of a job on SLURM. Its arguments are the program and its arguments, so that no
value of a user is a part of a script; what is, is quoted.

On the first node it reads the environment, which it then removes, and starts one launcher on each
node with srun. A launcher runs the program and notes its exit code; of several nodes it adds what
differs from node to node.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base.job_folder import MARK
from cosmos_reason.jobs import containers, engines, mounts, record
from cosmos_reason.jobs.platforms.slurm import modules
from cosmos_reason.jobs.record import Job

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
TEXT = """#!/bin/bash
# {job_id}: {nodes} nodes, one launcher on each. Handed to sbatch with the program as its arguments.
job={job}
trap : TERM
note() {{ printf '%s\\n' "$2" > "$job/.$1" && mv "$job/.$1" "$job/$1"; }}
if [ -e "$job/{cancel}" ]; then note {ended} 143; exit 143; fi
folder={folder}
cd "$folder" || {{ {unseen} "$folder" "$SLURMD_NODENAME" >&2; note {ended} 1; exit 1; }}
{profile}set -a
. "$job/{environment}" || {{ note {ended} 1; exit 1; }}
set +a
{begin}note {started} "$(date +%s) $SLURM_JOB_ID"
{modules}{several}srun {flags} sh -c {launcher} launcher "$@"
code=$?
{finish}note {ended} "$code"
exit "$code"
"""
# The file with secrets goes when it was read. A job that may be begun anew needs it then, and
# forgets how its start before went.
ONCE = 'rm -f "$job/{environment}"\n'
ANEW = 'rm -f "$job/{ended}" "$job"/{node_exit}\n'
NAMED = f'export {MARK}=$(cat "$job/run.id")\n'
ANEW_END = """set -- "$job"/{node_exit}  # of work that was lost with its node srun says 0
if [ "$code$#" = 0{nodes} ] && [ -e "$1" ] && ! grep -qv ' 0$' "$@"; then
  rm -f "$job/{environment}"
fi
"""
# What the launchers of several nodes are told. Ports that nobody listens on, on the first node,
# which this script runs on; another job there begins to look elsewhere.
SEVERAL = """addresses=
for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  address=$(scontrol show node "$name" --oneliner | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
  addresses=$addresses${addresses:+;}${address:-$name}
done
port=$((20000 + SLURM_JOB_ID * 16 % 20000))
# The kernel's tables of sockets have ports in hexadecimal digits; the state 0A is listening.
free_port() {
  while grep -qs ":$(printf %04X "$port") [0-9A-F]*:[0-9A-F]* 0A" /proc/net/tcp /proc/net/tcp6
  do port=$((port + 1)); done
}
free_port
export COSMOS_REASON_CONTROLLER_PORT=$port
port=$((port + 1))
free_port
export COSMOS_REASON_RENDEZVOUS_PORT=$port
export COSMOS_REASON_NODE_ADDRESSES=$addresses
"""
# Before the time limit SLURM sends USR1 to every process: the trainer alone takes it.
LAUNCHER = """trap : TERM
trap '' USR1
{look}{several}"$@"
code=$?
note "$code"
exit "$code"
"""
NOTE = """note() {{
  end={job}/node.$SLURM_NODEID.exit
  {{
    printf '%s %s\\n' "$SLURMD_NODENAME" "$1" > "$end.part" && mv "$end.part" "$end"
  }} 2>/dev/null
}}
"""
# Each node looks for what it needs, which none may have done before. `look` gets flags of `test`,
# each with its path. What was made a moment ago NFS may show late.
LOOK_SECONDS = 60
LOOK = """look() {{
  say=$1
  absent=
  shift
  while [ $# -gt 1 ]; do
    if ! test "$1" "$2"; then
      absent=$2
      ls "${{2%/*}}/" >/dev/null 2>&1  # NFS then asks its server
      if [ "$say" ]; then {unseen} "$2" "$SLURMD_NODENAME" >&2; fi
    fi
    shift 2
  done
  [ -z "$absent" ]
}}
seconds={seconds}
until look "" {needed}; do
  if [ "$seconds" -le 0 ]; then look say {needed}; note 1; exit 1; fi
  seconds=$((seconds - 2))
  sleep 2
done
"""
UNSEEN = (
    "printf 'error: JOB-SLURM-PATHS %s: got nothing there for this job on node %s, expected what "
    "the login node has there: use storage that the nodes share\\n'"
)
FIRST = "first=${COSMOS_REASON_NODE_ADDRESSES%%;*}\n"
SEVERAL_OF_COSMOS_RL = """program=$1
shift
where="--url $first:$COSMOS_REASON_CONTROLLER_PORT"
if [ "$SLURM_NODEID" = 0 ]; then where="--port $COSMOS_REASON_CONTROLLER_PORT"; fi
set -- "$program" --num-workers "$SLURM_JOB_NUM_NODES" --worker-idx "$SLURM_NODEID" \\
  --node-ip-list "$COSMOS_REASON_NODE_ADDRESSES" $where \\
  --rdzv-port "$COSMOS_REASON_RENDEZVOUS_PORT" "$@"
"""
# The words of TORCHRUN stand behind the program; which node this is goes behind them.
SEVERAL_OF_TORCHRUN = """program=$1
shift {count}
set -- "$program" {torchrun} --node-rank="$SLURM_NODEID" --rdzv-backend=static \\
  --rdzv-endpoint="$first:$COSMOS_REASON_RENDEZVOUS_PORT" "$@"
"""


def program(job: Job) -> str:
    """Return what a job runs, the first word behind its batch script."""
    return job.command[job.command.index(str(job.folder / BATCH)) + 1]


def text(job: Job, spec: dict, needed: list[tuple[str, Path]]) -> str:
    """Return the batch script. `needed`: what each node has to have, each with the flag of `test`
    that says so."""
    several = job.resources["nodes"] > 1
    names = {"environment": ENVIRONMENT, "ended": ENDED, "node_exit": NODE_EXIT}
    names["nodes"] = job.resources["nodes"]
    is_requeued, is_carried = "requeue" in job.options, "carried" in job.options
    in_container = job.image is not None
    folder = mounts.inside(job.folder) if in_container else str(job.folder)
    load = modules.load(job.options)
    begin = ANEW if is_requeued else ONCE
    if is_carried:  # its environment has no secrets and stays; job.sbatch has given the run its id
        begin = NAMED + (ANEW if is_requeued else "")
    if in_container:  # Pyxis mounts it there, or does not start
        needed = []
    return TEXT.format(
        job_id=job.job_id,
        nodes=job.resources["nodes"],
        job=shlex.quote(str(job.folder)),
        folder=shlex.quote(str(job.folder) if in_container else job.working_dir),
        unseen=UNSEEN,
        cancel=record.CANCEL,
        environment=ENVIRONMENT,
        started=STARTED,
        ended=ENDED,
        begin=begin.format(**names),
        finish=ANEW_END.format(**names) if is_requeued and not is_carried else "",
        profile=modules.PROFILE if load else "",
        modules=f"{load} || {{ note {ENDED} 1; exit 1; }}\n" if load else "",
        several=SEVERAL if several else "",
        flags=shlex.join(_srun_flags(job, spec)),
        launcher=shlex.quote(launcher(job, folder, needed)),
    )


def launcher(job: Job, folder: str, needed: list[tuple[str, Path]]) -> str:
    """Return the script of each node, which finds the job in `folder`."""
    words = shlex.join(word for flag, path in needed for word in (flag, str(path)))
    look = LOOK.format(unseen=UNSEEN, seconds=LOOK_SECONDS, needed=words) if needed else ""
    several = ""
    if job.resources["nodes"] > 1 and bundle.is_cosmos_rl(job.engine):
        several = FIRST + SEVERAL_OF_COSMOS_RL
    elif job.resources["nodes"] > 1:
        torchrun = shlex.join(engines.TORCHRUN)
        count = 1 + len(engines.TORCHRUN)
        several = FIRST + SEVERAL_OF_TORCHRUN.format(count=count, torchrun=torchrun)
    return NOTE.format(job=shlex.quote(folder)) + LAUNCHER.format(look=look, several=several)


def _srun_flags(job: Job, spec: dict) -> list[str]:
    nodes = job.resources["nodes"]
    flags = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    # sbatch was told to export nothing; the step is to have what this script has.
    flags += ["--export=ALL", "--kill-on-bad-exit=1", "--input=none"]
    if nodes == 1:  # the log is to show progress at once; lines of several nodes stay whole
        flags.append("--unbuffered")
    if "cpus" in job.options:
        flags.append(f"--cpus-per-task={job.options['cpus']}")
    if job.image is None:
        return flags
    bound = []
    for path, is_writable in mounts.places(job, spec):
        bound.append(f"{path}:{mounts.inside(path)}:{'rw' if is_writable else 'ro'}")
    names = sorted({*containers.values(job), *containers.passed(job, spec)})
    if "carried" in job.options:
        names.append(MARK)
    return [
        *flags,
        f"--container-image={enroot_name(job.image)}",
        f"--container-mounts={','.join(bound)}",
        f"--container-workdir={mounts.inside(job.folder)}",
        "--no-container-mount-home",
        f"--container-env={','.join(names)}",
    ]


def enroot_name(image: str) -> str:
    """Return an image as Enroot names it: a registry is told from the name by #; a file stays a
    path."""
    registry, slash, name = image.partition("/")
    is_registry = slash and registry and ("." in registry or ":" in registry)
    return f"{registry}#{name}" if is_registry else image


def environment(job: Job, spec: dict, values: dict[str, str]) -> bytes:
    """Return a file of the shell that sets the job's variables. `values` are those that every such
    job gets; of this machine's it gets what it needs, and what was asked for by name."""
    if "carried" in job.options:  # secrets come with the submitting shell, by name
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(values.items())]
        return "".join(lines).encode()
    names = containers.passed(job, spec)
    found = values | {name: os.environ[name] for name in names}
    if job.image is None:
        found = {name: os.environ[name] for name in filter(KEPT.fullmatch, os.environ)} | found
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in sorted(found.items())]
    return "".join(lines).encode(errors="surrogateescape")


def write(
    folder: Path, job: Job, spec: dict, values: dict[str, str], needed: list[tuple[str, Path]]
) -> None:
    """Write the batch script and the environment, which nobody else may read."""
    (folder / BATCH).write_bytes(text(job, spec, needed).encode(errors="surrogateescape"))
    descriptor = os.open(folder / ENVIRONMENT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as handle:
        handle.write(environment(job, spec, values))
