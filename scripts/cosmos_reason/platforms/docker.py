"""Jobs in containers of a Docker engine: on this machine, rootless, or over ssh where paths are the same there.

The launcher starts the container, which is named after the job and kept after its end; a supervisor copies its log and
waits for its end. Whatever dies, the container goes on, and whoever asks next finds it by its name.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from cosmos_reason import bundle, jobs, secret, storage
from cosmos_reason import spec as specs
from cosmos_reason.docker_client import PATIENCE, RUNTIME, docker, engine_facts, engine_host, has_nvidia, is_rootless
from cosmos_reason.findings import EXIT_BAD_INPUT, Failure, Finding, error, outside, warning
from cosmos_reason.platforms import engines, evidence
from cosmos_reason.platforms import mounts as m
from cosmos_reason.platforms.engines import launch_text

ENGINES = ("transformers", "tao")
LABEL = "tao-job"
IMAGE_NAME = re.compile(r"[A-Za-z0-9][\w.:/@-]*", re.ASCII)
QUICK = 5  # seconds for an answer about a job's state
FOLLOWED = 600  # seconds after which a log is asked for anew: a lost connection says nothing
DEFAULT_HOST = "unix:///var/run/docker.sock"  # written into plans where no docker client says better
NAMED = (*secret.SECRETS, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HF_ENDPOINT")
# What needs a place to write for a user that the image does not know, in the job's folder.
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR")
HOME_VARIABLES = {"HOME": "home"} | {name: f"home/.cache/{name.lower()}" for name in CACHES}


# -- before the start --------------------------------------------------------------------------------------------------


def check(request, needed: int, acting: bool) -> list[Finding]:
    """Whether there is an image to run, and an engine that answers (a plan may do without)."""
    found, named = [], request.image or _usual_image(request.engine)
    if not named:
        message = f"got none, and engine {request.engine} has no image of its own"
        fix = "--image NAME, one with Python 3.11, torch, transformers and what requirements-engine.txt names"
        found.append(error("JOB-IMAGE", "--image", message, fix))
    elif not IMAGE_NAME.fullmatch(named):
        found.append(error("JOB-IMAGE", "--image", f"got {named!r}, expected a name such as REGISTRY/NAME:TAG"))
    elif issue := bundle.image_issue(named):
        found.append(warning("JOB-IMAGE-ISSUE", named, issue[0], f"--image {issue[1]}"))
    try:
        facts = engine_facts(engine_host(request.docker_host))
    except Failure as failure:
        if acting or failure.exit_code == EXIT_BAD_INPUT:
            raise
        lost = failure.findings[0]
        message = f"{lost.message}; the plan assumes one that root started"
        found.append(warning(lost.id, lost.where, message, lost.fix))
        if request.gpu_ids is None and not request.endpoint:
            fix = f"--gpu-ids {','.join(map(str, range(needed)))}"
            found.append(warning("JOB-DOCKER-GPUS", "--gpu-ids", "this plan has no --gpus", fix))
        return found
    if request.gpu_ids is None and not has_nvidia(facts):
        message = "the engine lists no NVIDIA runtime, so the container gets no GPU"
        fix = "--gpu-ids none" if request.engine == "transformers" else RUNTIME
        found.append(warning("JOB-DOCKER-GPUS", "--gpu-ids", message, fix))
    if os.getuid() == 0 and not is_rootless(facts):
        message = "the work runs as root in the container, and its results belong to root"
        found.append(warning("JOB-DOCKER-ROOT", "--platform docker", message, "submit it as an ordinary user"))
    return found


def _usual_image(engine: str) -> str | None:
    return bundle.skill_info()["engines"][engine].get("default_image")


def prepare(record: dict, spec: dict) -> None:
    """The docker command. All paths are the host's, except where that would hide a folder of the image."""
    folder, options, usual = Path(record["spec"]["path"]).parent, record["options"], _usual_image(record["engine"])
    host, facts = options.get("docker_host") or DEFAULT_HOST, {}
    with contextlib.suppress(Failure):  # while planning; to act, check() has asked already
        host = engine_host(options.get("docker_host"))
        facts = engine_facts(host)
    record["image"] = record["image"] or usual
    record["options"] = options | {"docker_host": host}
    images = bundle.skill_info()["images"]
    known = images.get(record["image"]) or images.get(usual, {})
    places = {"config": folder / jobs.CONTAINER_SPEC, "job": folder, "scripts": bundle.ROOT / "scripts"}
    words = engines.words(
        record,
        in_container(record, spec),
        inside=m.inside,
        python=known.get("python", "python3"),
        entry_script=known.get("entry_script"),
        **{name: m.inside(path) for name, path in places.items()},
    )
    flags = ["--detach", "--name", record["job_id"], "--label", f"{LABEL}={record['job_id']}", "--init", "--pull=never"]
    flags += ["--ipc=host", *_user(facts), *_gpus(record["resources"]["gpu_ids"], facts)]
    flags += ["--network", options["network"]] if options.get("network") else []
    flags += ["--workdir", m.inside(folder), *m.flags(record, spec, folder), *_environment(folder, spec)]
    record["command"] = ["docker", "--host", host, "run", *flags, record["image"], *words]


def in_container(record: dict, spec: dict) -> dict:
    """The spec with the container's paths."""
    mapped = copy.deepcopy(spec)
    for entry in record["inputs"]:
        specs.set_value(mapped, entry["role"], m.inside(entry["path"]))
    for key, schema in specs.keys(record["action"]).items():
        value = specs.get(mapped, key)
        if schema.get("x-path") == "output" and isinstance(value, str) and value:
            specs.set_value(mapped, key, m.inside(value))
    return mapped


def _user(facts: dict) -> list[str]:
    if is_rootless(facts):
        return []  # and no limits, which a rootless engine may not raise
    limits = ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--ulimit", "nofile=65536:65536"]
    groups = [word for group in os.getgroups() if group != os.getgid() for word in ("--group-add", str(group))]
    return ["--user", f"{os.getuid()}:{os.getgid()}", *groups, *limits]


def _gpus(gpu_ids: list[str] | None, facts: dict) -> list[str]:
    """By id, since docker counts from the first GPU otherwise. The double quotes are docker's own."""
    if gpu_ids is None:
        return ["--gpus", "all"] if has_nvidia(facts) else []
    return ["--gpus", f'"device={",".join(gpu_ids)}"'] if gpu_ids else []


def _environment(folder: Path, spec: dict) -> list[str]:
    """Values that are no secrets, and the names of those that are set here: docker takes their values from the
    environment of its caller."""
    user = os.environ.get("USER") or f"uid{os.getuid()}"
    values = {"USER": user, "LOGNAME": user, "PYTHONUNBUFFERED": "1"}
    values |= {name: m.inside(folder / below) for name, below in HOME_VARIABLES.items()}
    key = specs.get(spec, "custom.endpoint.api_key_variable")
    named = [name for name in dict.fromkeys([*NAMED, *([key] if key else [])]) if os.environ.get(name)]
    return [word for one in [*(f"{k}={v}" for k, v in values.items()), *named] for word in ("--env", one)]


def write(folder: Path, record: dict, spec: dict) -> None:
    storage.write_text(folder / jobs.LAUNCH, launch_text(record))
    specs.dump(in_container(record, spec), folder / jobs.CONTAINER_SPEC)
    record["spec"]["container_sha256"] = storage.sha256(folder / jobs.CONTAINER_SPEC)
    for below in HOME_VARIABLES.values():
        (folder / below).mkdir(parents=True, exist_ok=True)


# -- the container -----------------------------------------------------------------------------------------------------


def start(folder: Path, lock: int) -> None:
    """Pull the image when it is not there, and start the container. Raises Failure (exit 3) when the engine refuses;
    the record then says why."""
    record = jobs.read(folder)
    for path in record["outputs"].values():
        Path(path).mkdir(parents=True, exist_ok=True)
    try:
        _pull(record)
        if not jobs.cancel_requested(folder):  # while the image was pulled
            docker(*record["command"][2:], timeout=None, pass_fds=[lock])  # it may outlive us
    except Failure as failure:
        lost = failure.findings[0]
        if lost.id != "JOB-DOCKER-UNREACHABLE":  # else it may run all the same, which the next to ask will see
            reason = f"the container could not be started: {lost.message}"
            jobs.write(folder, evidence.ended(folder, record, None, reason))
        raise
    if jobs.cancel_requested(folder):  # while it was being started
        end(folder, record, grace=0)
    with contextlib.suppress(Failure):  # what cannot be asked now, its supervisor will ask
        jobs.write(folder, _as_inspected(folder, record, inspect(record)))


def _pull(record: dict) -> None:
    host, name = record["options"]["docker_host"], record["image"]
    try:
        docker(host, "image", "inspect", "--format", "{{.Id}}", name)
    except Failure as failure:
        if failure.findings[0].id != "JOB-DOCKER-FAILED":
            raise
        print(f"pulling {name}", file=sys.stderr, flush=True)
        pulled = subprocess.run(["docker", "--host", host, "pull", name], stdout=sys.stderr.fileno(), check=False)
        if pulled.returncode:
            registry = name.split("/")[0] if "." in name.split("/")[0] else "docker.io"
            message = "got no such image here, and none that may be pulled"
            raise outside("JOB-IMAGE-MISSING", name, message, f"docker login {registry}") from None


def inspect(record: dict, patience: float = PATIENCE) -> dict | None:
    """The container of a job, None when there is none. Raises Failure (exit 3)."""
    words = ("container", "inspect", record["job_id"])
    try:
        return json.loads(docker(record["options"]["docker_host"], *words, timeout=patience))[0]
    except Failure as failure:
        if "no such container" in failure.findings[0].message.lower():
            return None
        raise


def supervise(folder: Path, lock: int) -> None:
    """Copy the container's log until it ends, then record how. Gives up when the engine cannot be asked; whoever asks
    for the job's state next goes on from there."""
    record = jobs.read(folder)
    try:
        while record["state"] not in jobs.ENDED:
            stood, record = record, _as_inspected(folder, record, inspect(record))
            if record != stood:
                jobs.write(folder, record)
            if record["state"] == jobs.RUNNING:
                with contextlib.suppress(subprocess.SubprocessError), open(folder / jobs.LOG, "wb") as log:
                    _logs(record, log, FOLLOWED, "--follow")
                time.sleep(0.2)
    except Failure as failure:
        print(failure, file=sys.stderr)


def _logs(record: dict, log, patience: float, *flags: str) -> None:
    """All that the container prints, into the open file `log`. Raises SubprocessError when it cannot be had."""
    words = ["docker", "--host", record["options"]["docker_host"], "logs", *flags, record["job_id"]]
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=patience, check=True)


def judged(folder: Path, record: dict) -> dict:
    host = record["platform_ref"]["host"]
    if record["options"]["docker_host"].startswith("unix:") and host != socket.gethostname():
        raise jobs.unknown(record, f"it was started on {host}; ask there")
    return _as_inspected(folder, record, inspect(record, QUICK))


def _as_inspected(folder: Path, record: dict, found: dict | None) -> dict:
    if found is None:
        gone = "its container is gone" if record["started_at"] else ""
        return evidence.ended(folder, record, None, note=gone)
    state = found["State"]
    if not record["started_at"] and not state["StartedAt"].startswith("0001"):
        began = min(jobs.seconds(state["StartedAt"][:19] + "Z"), time.time())  # another machine has its own clock
        reference = record["platform_ref"] | {"container_id": found["Id"], "image_id": found["Image"]}
        started = {"state": jobs.RUNNING, "started_at": jobs.time_text(began), "platform_ref": reference}
        record = record | started
    if state["Status"] in ("running", "paused", "restarting"):
        return record
    if state["Status"] == "created" or state["Error"]:
        return evidence.ended(folder, record, None, f"the container could not be started: {state['Error']}")
    with contextlib.suppress(subprocess.SubprocessError), storage.whole_file(folder / jobs.LOG, "wb") as log:
        _logs(record, log, 10 * PATIENCE)  # else what the supervisor copied stays
    killed = "the kernel ended a process of the container, out of memory" if state["OOMKilled"] else ""
    record = evidence.ended(folder, record, state["ExitCode"], note=killed)
    return record | {"ended_at": state["FinishedAt"][:19] + "Z"}  # without nanoseconds


def end(folder: Path, record: dict, grace: float) -> None:
    if inspect(record) is not None:
        seconds = str(math.ceil(grace))
        docker(record["options"]["docker_host"], "stop", "--time", seconds, folder.name, timeout=grace + PATIENCE)
