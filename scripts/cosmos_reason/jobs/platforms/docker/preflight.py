"""Whether the Docker engine can run the job: the engine, its NVIDIA runtime, the image, a container
with GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.site import WAYS_OUT
from cosmos_reason.jobs import cosmos_environment
from cosmos_reason.jobs.platforms.docker import client as client
from cosmos_reason.jobs.platforms.gates import check_driver
from cosmos_reason.jobs.platforms.machines import ask_for_gpus
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.remote.machine import COMMAND_SECONDS, NO_COMMAND, Answer, call
from cosmos_reason.spec import images

DENIED = ("denied", "unauthorized", "authentication required", "403 Forbidden", "401 Unauthorized")
ABSENT = ("manifest unknown", "no such manifest", "not found", "name unknown")
REGISTRY_SECONDS = 30
SMOKE_SECONDS = 60
SCRIPT_NEEDS = ("av", "numpy", "PIL")
ASK_MODULES = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None), sep=", ")
"""
MAY_USE_DOCKER = "sudo usermod -aG docker $USER && newgrp docker"
START_DOCKER = "sudo systemctl start docker"


def check(preflight: Preflight) -> Iterator[Finding]:
    """engine, NVIDIA runtime, driver, toolkit, image, GPUs, a container that sees them"""
    if preflight.docker is None and preflight.machine is None:
        return  # no such engine: said before
    yield from ask_for_gpus(preflight, preflight.machine)
    if preflight.docker is None:
        return  # no docker command: said before
    answer = _docker(preflight, *client.INFO)
    problem = unreachable(answer)
    if problem:
        yield problem
        return
    facts = client.parse_info(answer.out)
    preflight.result["docker"] = {
        "version": facts["ServerVersion"],
        "rootless": client.is_rootless(facts),
    }
    has_gpu_devices = bool(facts.get("DiscoveredDevices"))  # CDI, which needs no runtime
    runtime = client.has_nvidia(facts) or has_gpu_devices
    if not runtime:
        report = findings.error if preflight.wants_gpus else findings.warning
        message = "got an engine without the NVIDIA runtime, expected one"
        yield report("PRE-DOCKER-RUNTIME", "docker", message, client.RUNTIME)
    if preflight.engine == "tao" or "tao-toolkit" in preflight.image:
        toolkit = None
        if preflight.machine:
            printed = preflight.machine.call("nvidia-ctk", "--version").out
            toolkit = re.search(r"version ([\d.]+)", printed)
        yield from check_driver(preflight.driver, toolkit[1] if toolkit else "")
    yield from _image(preflight)
    yield from _entry_script(preflight)
    yield from _cosmos_rl(preflight)
    if runtime:
        yield from _smoke(preflight)


def _docker(preflight: Preflight, *words: str, limit: float = COMMAND_SECONDS) -> Answer:
    return call(["docker", *words], limit, preflight.docker)


def unreachable(answer: Answer) -> Finding | None:
    """Return why the client got no answer from an engine, though it may exit with 0."""
    if answer.code == NO_COMMAND and "no command docker" in answer.err:
        message = f"got no docker command here; {WAYS_OUT}"
        fix = "apt-get install --yes docker.io"
        return findings.error("PRE-TOOL-MISSING", "docker", message, fix)
    facts = client.parse_info(answer.out)
    errors = facts.get("ServerErrors")
    if not answer.code and facts.get("ServerVersion") and not errors:
        return None
    reason = answer.last_words or "no answer"
    if errors:
        reason = "; ".join(map(str, errors))
    fix = MAY_USE_DOCKER if "permission denied" in reason else START_DOCKER
    message = f"got {reason}, expected a running engine"
    return findings.error("PRE-DOCKER-UNREACHABLE", "docker", message, fix)


def _image(preflight: Preflight) -> Iterator[Finding]:
    """Yield whether the image is here, or can be pulled."""
    image = preflight.image
    if not image:
        if preflight.launch:
            return  # which the plan refuses
        message = f"got none, and engine {preflight.engine} has no image of its own"
        yield findings.error("PRE-IMAGE", "--image", message, Fix(flags={"--image": "NAME"}))
        return
    inspected = _docker(preflight, "image", "inspect", "--format", "{{.Architecture}}", image)
    preflight.result["image"] = {
        "name": image,
        "present": not inspected.code,
        "architecture": inspected.out.strip(),
    }
    if not inspected.code:
        return
    # The registry is asked, and nothing is pulled: that is tens of gigabytes.
    answer = _docker(preflight, "manifest", "inspect", image, limit=REGISTRY_SECONDS)
    if answer.code == 0:
        message = "not here yet; it can be pulled"
        yield findings.info("PRE-IMAGE-PULL", image, message, f"docker pull {image}")
        return
    reason = answer.last_words
    message = f"got {reason}; expected it here, or in a registry that lets it be pulled."
    if any(word in reason for word in DENIED):
        fix = "docker login nvcr.io --username '$oauthtoken'"
        yield findings.error("PRE-IMAGE-DENIED", image, message, fix)
    elif any(word in reason for word in ABSENT):
        known = bundle.skill_info()["images"]
        message += findings.did_you_mean(image, known)
        fix = Fix(flags={"--image": next(iter(known))})
        yield findings.error("PRE-IMAGE-MISSING", image, message, fix)
    else:
        yield findings.error("PRE-IMAGE-UNREACHABLE", image, message, f"docker pull {image}")


def _entry_script(preflight: Preflight) -> Iterator[Finding]:
    """Yield whether the image has what our dataset script imports; only one that is here is
    asked."""
    if preflight.options.entry_script:
        return
    if preflight.engine != "tao" or not preflight.result.get("image", {}).get("present"):
        return
    if preflight.case and preflight.case.action != "train":
        return
    python = images.facts(preflight.image, preflight.options.image_version)["python"]
    # An image is somebody else's program: to say what it has it gets neither network nor mounts.
    container = ["run", "--rm", "--network", "none", "--entrypoint", python]
    program = [preflight.image, "-c", ASK_MODULES, *SCRIPT_NEEDS]
    answer = _docker(preflight, *container, *program, limit=SMOKE_SECONDS)
    if answer.code == 0 and not answer.out.strip():
        return
    got = f"no {answer.out.strip()}" if answer.code == 0 else answer.last_words
    message = f"got {got} in the image, expected {', '.join(SCRIPT_NEEDS)} for our dataset script; "
    message += "launch_job.py submit --entry-script image takes the image's own"
    yield findings.warning("PRE-ENTRY-SCRIPT", preflight.image, message)


def _cosmos_rl(preflight: Preflight) -> Iterator[Finding]:
    """Yield whether an image of one's own has what cosmos-rl and our dataset script need; only one
    that is here is asked."""
    is_here = preflight.result.get("image", {}).get("present")
    if preflight.engine != cosmos_environment.PROGRAM or not is_here:
        return
    container = ["run", "--rm", "--network", "none", "--entrypoint", "python", preflight.image]
    program = ["-c", cosmos_environment.ASK, *cosmos_environment.PACKAGES]
    answer = _docker(preflight, *container, *program, limit=SMOKE_SECONDS)
    action = preflight.case.action if preflight.case else "train"
    out = answer.out if answer.code == 0 else ""
    needs = bundle.skill_info()["engines"][preflight.engine]["image_needs"]
    setup = f"--image NAME, {needs}"
    yield from cosmos_environment.answered(preflight.image, out, action, setup)


def _smoke(preflight: Preflight) -> Iterator[Finding]:
    """Start a container that lists its GPUs. A pull before it has the rest of the run's time, not
    the container's."""
    image = preflight.options.gpu_smoke_image or preflight.image
    if not image or preflight.on_cpu:
        return  # that there is no image is said before
    if _docker(preflight, "image", "inspect", "--format", "{{.Id}}", image).code:
        if not (preflight.options.pull_smoke_image and preflight.options.gpu_smoke_image):
            message = "not here, so no container was tried with the GPUs"
            fix = Fix(flags={"--gpu-smoke-image": image, "--pull-smoke-image": True})
            yield findings.warning("PRE-SMOKE", image, message, fix)
            return
        pulled = _docker(preflight, "pull", "--quiet", image, limit=preflight.seconds_left())
        if pulled.code:
            message = f"got {pulled.last_words}; expected to pull it"
            yield findings.error("PRE-SMOKE", image, message, f"docker pull {image}")
            return
    indices = preflight.options.target_gpu_index
    devices = f'"device={",".join(map(str, indices))}"' if indices else "all"
    container = ["run", "--rm", "--network", "none", "--gpus", devices]
    # The toolkit puts the driver's nvidia-smi into every container that gets a GPU.
    program = ["--entrypoint", "nvidia-smi", image, "-L"]
    answer = _docker(preflight, *container, *program, limit=SMOKE_SECONDS)
    seen = len(re.findall(r"^GPU \d+", answer.out, re.M))
    preflight.result["smoke"] = {"image": image, "gpus": seen}
    needed = max(preflight.gpus_per_node, len(indices or ()))
    if answer.code == 0 and seen >= needed:
        return
    got = answer.last_words if answer.code else seen
    message = f"got {got} in a container, expected {needed} GPUs"
    fix = "nvidia-smi -L"
    if answer.code or not seen:
        fix = client.RUNTIME
    yield findings.error("PRE-SMOKE", image, message, fix)
