"""Checks of one machine: the local one, and a Docker engine with its image and a container that sees the GPUs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator

from cosmos_reason import bundle, docker_client
from cosmos_reason import findings as f
from cosmos_reason.preflight import gates
from cosmos_reason.preflight.host import LIMIT, NO_COMMAND, Answer, Driver, Host, architecture, call, driver, over_ssh

DENIED = ("denied", "unauthorized", "authentication required", "403 Forbidden", "401 Unauthorized")
ABSENT = ("manifest unknown", "no such manifest", "not found", "name unknown")
SMOKE_SECONDS = 60


def locate(launch) -> Iterator[f.Finding]:
    """where the job's paths lie: this machine, the Docker engine's or the cluster's"""
    name, user = os.environ.get("SLURM_HOSTNAME", ""), os.environ.get("SLURM_USER", "")
    if launch.platform == "local":
        launch.machine = Host()
    elif launch.platform == "docker":
        launch.machine = _engine(launch)
    elif launch.platform == "slurm":
        target = f"{user}@{name}" if user else name
        launch.machine = over_ssh(target, "", os.environ.get("SSH_KEY_PATH", "")) if name else Host()
    yield from ()


def gpus(launch, host: Host | None) -> Iterator[f.Finding]:
    """Ask the host for its GPUs; they are checked when everything else is known."""
    launch.driver = driver(host) if host else Driver(problem="no way to ask an engine over tcp")
    if not launch.driver.gpus:
        message = f"got {launch.driver.problem or 'no GPU'} when asking nvidia-smi, expected GPUs"
        kind = f.warning if launch.args.target_gpu_count or not launch.wants_gpus else f.error
        where = host.name if host else "docker"
        yield kind("PRE-GPU-NONE", where, message, "--target-gpu-count N --target-gpu-memory-gb GIB")


def local(launch) -> Iterator[f.Finding]:
    """torch or cosmos-rl, CUDA, GPUs"""
    yield from gpus(launch, Host())
    if launch.engine == "transformers":
        yield from _torch(launch)
    elif launch.engine == "cosmos-rl":
        fixes = {"redis-server": "apt-get install --yes redis-server", "cosmos-rl": "pip install cosmos-rl==0.4.7"}
        for name in filter(lambda name: not shutil.which(name), fixes):
            message = f"got no {name} here, which engine cosmos-rl needs"
            yield f.error("PRE-TOOL-MISSING", name, message, fixes[name])
    else:
        message = "engine tao lives in a container, expected platform docker, slurm or kubernetes"
        yield f.error("PRE-ENGINE-PLATFORM", "--platform", message, "--engine transformers")


def _torch(launch) -> Iterator[f.Finding]:
    lost = [name for name in ("torch", "transformers", "peft") if not importlib.util.find_spec(name)]
    if lost:
        fix = f"{sys.executable} -m pip install -r {bundle.ROOT / 'requirements-engine.txt'}"
        yield f.error("PRE-TORCH", sys.executable, f"got no {', '.join(lost)}, expected the embedded engine's", fix)
        return
    launch.result["torch"] = importlib.metadata.version("torch")
    if not launch.driver.gpus:
        return
    code = "import json,torch;c=torch.cuda;print(json.dumps([c.is_available(),c.get_arch_list()]))"
    answer = call([sys.executable, "-c", code], 60)
    if answer.code or not answer.out.startswith("["):
        yield f.error("PRE-TORCH", sys.executable, f"got {answer.said}, expected a torch that can be imported")
        return
    usable, built = json.loads(answer.out)
    if not usable:
        message = f"got torch {launch.result['torch']} that sees no GPU, though nvidia-smi does"
        fix = f"{sys.executable} -m pip install --force-reinstall"  # the package index has the CUDA build for Linux
        yield f.error("PRE-TORCH-CUDA", sys.executable, message, f"{fix} torch=={launch.result['torch'].split('+')[0]}")
    mine = {gpu.arch for gpu in gates.chosen(launch.driver, launch.args)[0] if gpu.arch}
    if usable and (lost := sorted(mine - {architecture(name) for name in built})):
        message = f"got GPUs of {', '.join(lost)}, torch was built for {', '.join(built)}"
        yield f.warning("PRE-TORCH-ARCH", sys.executable, message)


# ---- Docker ----------------------------------------------------------------------------------------------------------


def _engine(launch) -> Host | None:
    """The machine of the Docker engine; None for one over tcp. Its address is handed on in the environment, as it may
    hold a password. Raises Failure for an address that Docker does not know."""
    given = launch.args.docker_host or os.environ.get("DOCKER_HOST") or ""
    limit = min(5, launch.left() / 2)
    inspect = ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
    context = "" if given else call(inspect, limit).out.strip()
    address = given or (context if "://" in context else "unix://")
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in ("unix", "ssh", "tcp", "npipe"):
        near = f.did_you_mean(scheme, ("unix", "ssh", "tcp"))
        message = f"got {address}, expected unix://SOCKET, ssh://USER@HOST or tcp://HOST:PORT.{near}"
        raise f.bad_input("PRE-DOCKER-HOST", "--docker-host", message, f"--docker-host ssh://{rest or 'USER@HOST'}")
    launch.docker = {"DOCKER_HOST": given, "DOCKER_CONTEXT": ""} if given else {}
    if scheme == "ssh":
        target, _, port = rest.partition("/")[0].partition(":")
        return over_ssh(target, port)
    return Host() if scheme == "unix" else None


def docker(launch) -> Iterator[f.Finding]:
    """engine, NVIDIA runtime, driver, toolkit, image, GPUs, a container that sees them"""
    machine = launch.machine
    if launch.docker is None:
        return  # no such engine: said before
    yield from gpus(launch, machine)
    answer = _docker(launch, "info", "--format", "{{json .}}")
    facts = _info(answer)
    if facts is None:
        yield unreachable(answer)
        return
    launch.result["docker"] = {"version": facts["ServerVersion"], "rootless": docker_client.is_rootless(facts)}
    runtime = docker_client.has_nvidia(facts) or bool(facts.get("DiscoveredDevices"))  # the latter: CDI
    if not runtime:
        kind = f.error if launch.wants_gpus else f.warning
        message = "got a Docker engine without the NVIDIA runtime, expected one"
        fix = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
        yield kind("PRE-DOCKER-RUNTIME", "docker", message, fix)
    if launch.engine == "tao" or "tao-toolkit" in launch.image:
        said = machine.call("nvidia-ctk", "--version").out if machine else ""
        toolkit = re.search(r"version ([\d.]+)", said)
        yield from gates.check_driver(launch.driver, toolkit[1] if toolkit else "")
    yield from _image(launch)
    yield from _smoke(launch, runtime)


def _docker(launch, *words: str, limit: float = LIMIT) -> Answer:
    return call(["docker", *words], limit, launch.docker)


def _info(answer: Answer) -> dict | None:
    """What `docker info` says; None when the client got no answer from an engine (it may exit with 0 all the same)."""
    try:
        facts = json.loads(answer.out)
    except ValueError:
        return None
    usable = isinstance(facts, dict) and not facts.get("ServerErrors") and facts.get("ServerVersion")
    return facts if usable and not answer.code else None


def unreachable(answer: Answer) -> f.Finding:
    if answer.code == NO_COMMAND and "no command docker" in answer.err:
        fix = "apt-get install --yes docker.io"
        return f.error("PRE-TOOL-MISSING", "docker", "got no docker command here", fix)
    try:
        errors = "; ".join(json.loads(answer.out)["ServerErrors"])
    except (ValueError, KeyError, TypeError):
        errors = answer.said
    denied = "permission denied" in errors
    fix = "sudo usermod -aG docker $USER && newgrp docker" if denied else "sudo systemctl start docker"
    return f.error("PRE-DOCKER-UNREACHABLE", "docker", f"got {errors or 'no answer'}, expected a running engine", fix)


def _image(launch) -> Iterator[f.Finding]:
    image = launch.image
    if not image:
        message = f"got none, and engine {launch.engine} has no image of its own"
        yield f.error("PRE-IMAGE", "--container-image", message, "--container-image NAME")
        return
    present = _docker(launch, "image", "inspect", "--format", "{{.Architecture}}", image)
    launch.result["image"] = {"name": image, "present": not present.code, "architecture": present.out.strip()}
    if not present.code:
        return
    answer = _docker(launch, "manifest", "inspect", image, limit=30)
    if answer.code == 0:
        yield f.info("PRE-IMAGE-PULL", image, "not here yet; it can be pulled", f"docker pull {image}")
    elif any(word in answer.said for word in DENIED):
        fix = "docker login nvcr.io --username '$oauthtoken'"
        yield f.error("PRE-IMAGE-DENIED", image, f"got {answer.said}; expected credentials that may pull it", fix)
    elif any(word in answer.said for word in ABSENT):
        near = f.did_you_mean(image, bundle.skill_info()["images"])
        fix = f"--container-image {next(iter(bundle.skill_info()['images']))}"
        yield f.error("PRE-IMAGE-MISSING", image, f"got no such image here or in its registry.{near}", fix)
    else:
        message = f"got {answer.said}: it is not here, and its registry gave no answer"
        yield f.error("PRE-IMAGE-UNREACHABLE", image, message, f"docker pull {image}")


def _smoke(launch, runtime: bool) -> Iterator[f.Finding]:
    """A container that lists its GPUs. Pulling comes before and has the rest of the run's time, not the container's."""
    image = launch.args.gpu_smoke_image or launch.image
    if not runtime or not image:
        return  # said before
    if _docker(launch, "image", "inspect", "--format", "{{.Id}}", image).code:
        if not (launch.args.pull_smoke_image and launch.args.gpu_smoke_image):
            message = "not here, so no container was tried with the GPUs"
            yield f.warning("PRE-SMOKE", image, message, f"--gpu-smoke-image {image} --pull-smoke-image")
            return
        answer = _docker(launch, "pull", "--quiet", image, limit=launch.left())
        if answer.code:
            yield f.error("PRE-SMOKE", image, f"got {answer.said}; expected to pull it", f"docker pull {image}")
            return
    chosen = launch.args.target_gpu_index
    which = "all" if chosen is None else f'"device={",".join(map(str, chosen))}"'
    words = ["run", "--rm", "--network", "none", "--gpus", which, "--entrypoint", "nvidia-smi", image, "-L"]
    answer = _docker(launch, *words, limit=SMOKE_SECONDS)
    seen = len(re.findall(r"^GPU \d+", answer.out, re.M))
    launch.result["smoke"] = {"image": image, "gpus": seen}
    needed = max(launch.gpus_per_node, len(chosen or ()))
    if answer.code or seen < needed:
        message = f"got {answer.said if answer.code else seen} in a container, expected {needed} GPUs"
        fix = "sudo nvidia-ctk runtime configure --runtime=docker" if answer.code or not seen else "nvidia-smi -L"
        yield f.error("PRE-SMOKE", image, message, fix)
