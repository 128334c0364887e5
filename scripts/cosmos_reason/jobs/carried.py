"""A plan as a folder to carry to the machine that runs it: spec.toml as the trainer reads it,
run.sh as it is started there, and the programs of this skill that the container runs. Enter at
`write`."""

from __future__ import annotations

import csv
import shlex
import shutil
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.jobs import containers, mounts, reward_files
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import docker
from cosmos_reason.jobs.record import Job

JOB = Path("/job")  # where the container has the job's folder, whatever its name is outside
SKILL = "skill"  # the folder with the programs
CREDENTIALS = ("HF_TOKEN", "WANDB_API_KEY", "NGC_API_KEY", "AWS_ACCESS_KEY_ID",
               "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION")  # fmt: skip
RUN = """#!/usr/bin/env bash
# {title}: starts the job in a container, with spec.toml beside this file.
# Each run has an id and a folder of its own below ./jobs (or ${jobs_variable}).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
id={action}-$(date -u +%Y%m%d-%H%M%S)-$(od -An -N3 -tx1 /dev/urandom | tr -d ' \\n')
user={user}

for path in {inputs}; do
  [ -e "$path" ] || {{ echo "got no $path on this machine, expected it there" >&2; exit 2; }}
done
docker image inspect {image} >/dev/null 2>&1 || docker pull {image}
jobs=${{{jobs_variable}:-jobs}}
mkdir -p "$jobs"
job=$(cd "$jobs" && pwd -P)/$id
mkdir -p {folders}
grep -v '^#:schema ' "$here/{spec}" >"$job/{container_spec}"

{command}
echo "job $id is in $job; follow it with: docker logs -f $id"
"""
README = """{title}, planned for another machine.
1. Copy this folder there. The inputs must be at these paths: {inputs}.
2. There, in the folder that is to hold jobs/: bash {folder}/run.sh
3. It pulls {image}, makes jobs/ID and starts the container; `docker logs -f ID` follows it.
4. Results: {results}. This plan was rendered and never run.
"""


def write(job: Job, spec: dict, output: Path, host_user: str | None) -> None:
    """Fill the folder `output`. `spec` has the container's paths; `host_user` is UID:GID, else that
    of whoever runs run.sh."""
    inputs = list(dict.fromkeys(entry["path"] for entry in job.inputs))
    script = job.options.get("entry_script", "")
    if Path(script).is_absolute():
        inputs.append(script)
    inputs += map(str, reward_files.files(spec))
    outside = [path for path in job.outputs.values() if JOB not in Path(path).parents]
    homes = [f'"$job/{below}"' for below in containers.HOME_VARIABLES.values()]
    outputs = dict.fromkeys(job.outputs.values())
    results = ", ".join(path.replace(str(JOB), "jobs/ID", 1) for path in outputs)
    facts = {
        "title": f"{job.action} with {job.engine}",
        "action": job.action,
        "jobs_variable": jobs.JOBS_DIR_VARIABLE,
        "user": shlex.quote(host_user) if host_user else '"$(id -u):$(id -g)"',
        "inputs": " ".join(map(shlex.quote, inputs)),
        "image": shlex.quote(job.image),
        "folders": " ".join([*homes, *map(shlex.quote, outside)]),
        "spec": jobs.SPEC,
        "container_spec": jobs.CONTAINER_SPEC,
        "command": _command(job),
        "results": results,
    }
    with files.only_run(output), files.whole_folder(output) as work:
        containers.write_spec(work / jobs.SPEC, job, spec)
        files.write_text(work / "run.sh", RUN.format(**facts))
        (work / "run.sh").chmod(0o755)
        said = facts | {"folder": output.name}
        files.write_text(work / "README", README.format(**said))
        copy_programs(work / SKILL)


def copy_programs(skill: Path) -> None:
    """Copy what the container runs of this bundle, with what that reads."""
    without_caches = shutil.ignore_patterns("__pycache__")
    for part in ("scripts", "schemas"):
        shutil.copytree(bundle.ROOT / part, skill / part, ignore=without_caches)
    for name in ("skill_info.yaml", bundle.ENGINE_PACKAGES):
        shutil.copyfile(bundle.ROOT / name, skill / name)


def _command(job: Job) -> str:
    """Return the `docker run` of the plan, a flag per line, with what differs from run to run as
    variables of the shell."""
    words = job.command[job.command.index("run") + 1 :]
    after_image = words.index(job.image)
    lines = ["docker run --detach"]
    flags = iter(words[1:after_image])
    for flag in flags:
        if not flag.startswith("--") or "=" in flag or flag == "--init":
            lines.append(shlex.quote(flag))
            continue
        value = _value(flag, next(flags))
        if value:
            lines.append(f"{flag} {value}")
    lines.append(f'--mount "type=bind,source=$here/{SKILL},target=/{SKILL},readonly"')
    asked = [*CREDENTIALS, *job.options.get("env", [])]
    lines += [f"--env {name}" for name in dict.fromkeys(asked)]
    program = [_moved(job, word) for word in words[after_image + 1 :]]
    lines.append(f"{shlex.quote(job.image)} {shlex.join(program)}")
    return " \\\n  ".join(lines)


def _value(flag: str, value: str) -> str:
    """Return the value of a flag as run.sh has it; empty for flags that tell of the planner's
    machine."""
    if flag == "--name":
        return '"$id"'
    if flag == "--label":
        return f'"{docker.LABEL}=$id"'
    if flag == "--user":
        return '"$user"'
    if flag == "--group-add" or (flag == "--env" and "=" not in value):
        return ""
    if flag == "--env" and value.startswith(("USER=", "LOGNAME=")):
        return f"{value.partition('=')[0]}=user"
    if flag == "--env" and value.partition("=")[2] == JOB.name:
        return f'"{value.partition("=")[0]}=$id"'
    if flag == "--mount":
        return _mount(value)
    return shlex.quote(value)


def _mount(value: str) -> str:
    fields = next(csv.reader([value]))
    if fields[1] != f"source={JOB}":
        return shlex.quote(value)
    return f'"type=bind,source=$job,target={JOB}"'


def _moved(job: Job, word: str) -> str:
    """Return a word of the command: for a program of this bundle, where run.sh mounts it. A dataset
    script of somebody's own stays where it is."""
    programs = mounts.inside(bundle.ROOT)
    script = job.options.get("entry_script", "")
    is_own_script = Path(script).is_absolute() and word == mounts.inside(script)
    if is_own_script or not word.startswith(f"{programs}/"):
        return word
    return f"/{SKILL}{word.removeprefix(programs)}"
