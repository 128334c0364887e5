"""Docker's command line: which engine is meant, asking it, and what it says about itself."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess

from cosmos_reason.base.findings import Failure, bad_input, outside
from cosmos_reason.base.site import WAYS_OUT
from cosmos_reason.remote.machine import Host, over_ssh

PATIENCE = 60  # seconds for an answer of the engine
ADDRESS = re.compile(r"(unix|tcp|npipe|fd)://[^@]*|ssh://([^:@/]+@)?[^@/:]+(:\d+)?(/.*)?")
CONTEXT = "the docker context"  # what stands for an address where none was given
RUNTIME = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
INFO = ("info", "--format", "{{json .}}")  # read what it prints with `parse_info`
# What the client prints when no engine answered it.
NO_ENGINE = (
    "Cannot connect",
    "error during connect",
    "connect to the docker API",
    "permission denied while trying",
)


def docker(host: str, *words: str, timeout: float | None = PATIENCE, **options) -> str:
    """Return what a docker command prints. Raises Failure (exit 3); the finding is
    JOB-DOCKER-UNREACHABLE when the engine did not answer, and JOB-DOCKER-FAILED when it refused."""
    try:
        done = subprocess.run(
            ["docker", *words],
            env=os.environ | variables(host),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,
        )
    except FileNotFoundError:
        message = f"got no docker command, expected Docker's client; {WAYS_OUT}"
        fix = "apt-get install docker.io"
        raise outside("JOB-DOCKER-UNREACHABLE", host, message, fix) from None
    except subprocess.TimeoutExpired:
        raise _unreachable(host, f"got no answer within {timeout} s") from None
    if done.returncode == 0:
        return done.stdout
    # The client adds warnings, and hints to ask it for help.
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("WARNING:") and "--help" not in line]
    printed = " ".join(said)[-600:]
    message = f"got {printed}"
    if any(words in printed for words in NO_ENGINE):
        raise _unreachable(host, message)
    if "bind source path does not exist" in printed:
        message += (
            "; expected every file and folder at the same path on the engine's machine "
            "(a shared file system)"
        )
    fix = RUNTIME if "could not select device driver" in printed else ""
    raise outside("JOB-DOCKER-FAILED", host, message, fix)


def variables(host: str) -> dict[str, str]:
    """Return what the client's environment gets so that it asks this engine."""
    if host == CONTEXT:
        return {}
    return {"DOCKER_HOST": host}


def _unreachable(host: str, message: str) -> Failure:
    fix = f"docker --host {shlex.quote(host)} info"
    return outside("JOB-DOCKER-UNREACHABLE", host, f"{message}; expected a running engine", fix)


def engine_host(given: str | None) -> str:
    """Return the engine that is meant: the one given, that of $DOCKER_HOST, or that of the docker
    context ($DOCKER_CONTEXT or the current one). Raises Failure: exit 2 for no address, and for one
    with a password, since records keep it."""
    where = "--docker-host"
    host = given
    if not host:
        where = "$DOCKER_HOST"
        host = os.environ.get("DOCKER_HOST")
    if not host:
        where = CONTEXT
        inspect = ("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
        host = docker(CONTEXT, *inspect).strip()
    if not ADDRESS.fullmatch(host):
        message = (
            "got another address, expected unix://SOCKET, tcp://HOST:PORT or ssh://USER@HOST, "
            "and no password"
        )
        raise bad_input("JOB-DOCKER-HOST", where, message)
    return host


def machine(address: str) -> Host | None:
    """Return the machine of an engine, whose paths its containers see; None for one over tcp, which
    cannot be asked. Raises Failure (exit 2) for a name that is none."""
    scheme, _, rest = address.partition("://")
    if scheme == "ssh":
        target, _, port = rest.partition("/")[0].partition(":")
        return over_ssh(target, port)
    return Host() if scheme == "unix" else None


def machine_without_client(given: str | None) -> Host | None:
    """Return this machine, where neither a docker command nor an address is there: Docker is to be
    installed here. A docker context may be of any machine."""
    named = given or os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT")
    if named or shutil.which("docker"):
        return None
    return Host()


@functools.cache
def engine_facts(host: str) -> dict:
    """Return what `docker info` says. Raises Failure (exit 3)."""
    facts = parse_info(docker(host, *INFO))
    errors = facts.get("ServerErrors")
    if errors:  # which clients up to 20.10 do not call a failure
        raise _unreachable(host, f"got {errors[0]}")
    return facts


def parse_info(printed: str) -> dict:
    """Return the facts that `docker info` printed; {} when that is nothing."""
    try:
        facts = json.loads(printed)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def is_rootless(facts: dict) -> bool:
    """Return whether the engine is rootless: the container's root is then the user who started
    it."""
    return any("rootless" in option for option in facts.get("SecurityOptions") or [])


def has_nvidia(facts: dict) -> bool:
    return "nvidia" in (facts.get("Runtimes") or {})
