"""Docker's command line: asking an engine, and what it says about itself."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess

from cosmos_reason.findings import Failure, bad_input, outside

PATIENCE = 60  # seconds for an answer of the engine
ADDRESS = re.compile(r"(unix|tcp|npipe|fd)://[^@]*|ssh://([^:@/]+@)?[^@/:]+(:\d+)?(/.*)?")
RUNTIME = "nvidia-ctk runtime configure --runtime=docker"
CONTEXT = "the docker context"  # what stands for an address where none was given


def docker(host: str, *words: str, timeout: float | None = PATIENCE, **options) -> str:
    """What a docker command prints. Raises Failure (exit 3); the finding is JOB-DOCKER-UNREACHABLE when the engine did
    not answer, and JOB-DOCKER-FAILED when it refused."""
    env, options["stdin"] = os.environ | ({} if host == CONTEXT else {"DOCKER_HOST": host}), subprocess.DEVNULL
    try:
        done = subprocess.run(
            ["docker", *words], env=env, capture_output=True, text=True, timeout=timeout, check=False, **options
        )
    except FileNotFoundError:
        message = "got no docker command, expected Docker's client"
        raise outside("JOB-DOCKER-UNREACHABLE", host, message, "apt-get install docker.io") from None
    except subprocess.TimeoutExpired:
        raise _unreachable(host, f"got no answer within {timeout} s") from None
    if done.returncode == 0:
        return done.stdout
    lines = (line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING:"))
    said = " ".join(line for line in lines if "--help" not in line)[-600:]
    lost = ("Cannot connect", "error during connect", "connect to the docker API", "permission denied while trying")
    if any(words in said for words in lost):
        raise _unreachable(host, f"got {said}")
    fix = ""
    if "bind source path does not exist" in said:
        said += "; expected every file and folder at the same path on the engine's machine (a shared file system)"
    if "could not select device driver" in said:
        fix = f"--gpu-ids none, or on the engine's machine: {RUNTIME}"
    raise outside("JOB-DOCKER-FAILED", host, f"got {said}", fix)


def engine_host(given: str | None) -> str:
    """The engine that is meant: the one given, that of $DOCKER_HOST, or that of the docker context ($DOCKER_CONTEXT or
    the current one). Raises Failure: exit 2 for no address, and for one with a password, since records keep it."""
    where = "--docker-host" if given else "$DOCKER_HOST"
    if not (host := given or os.environ.get("DOCKER_HOST")):
        where, host = CONTEXT, docker(CONTEXT, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}").strip()
    if not ADDRESS.fullmatch(host):
        message = "got another address, expected unix://SOCKET, tcp://HOST:PORT or ssh://USER@HOST, and no password"
        raise bad_input("JOB-DOCKER-HOST", where, message)
    return host


@functools.cache
def engine_facts(host: str) -> dict:
    """What `docker info` says. Raises Failure (exit 3)."""
    facts = json.loads(docker(host, "info", "--format", "{{json .}}"))
    if lost := facts.get("ServerErrors"):  # which clients up to 20.10 do not call a failure
        raise _unreachable(host, f"got {lost[0]}")
    return facts


def _unreachable(host: str, message: str) -> Failure:
    fix = f"docker --host {shlex.quote(host)} info"
    return outside("JOB-DOCKER-UNREACHABLE", host, f"{message}; expected a running engine", fix)


def is_rootless(facts: dict) -> bool:
    """In a rootless engine the container's root is the user who started the engine."""
    return any("rootless" in option for option in facts.get("SecurityOptions") or [])


def has_nvidia(facts: dict) -> bool:
    return "nvidia" in (facts.get("Runtimes") or {})
