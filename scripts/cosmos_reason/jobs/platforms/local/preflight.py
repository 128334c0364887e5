"""Whether this machine has what the embedded engine or cosmos-rl needs to run here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterator

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import cosmos_environment
from cosmos_reason.jobs.platforms.gates import chosen
from cosmos_reason.jobs.platforms.gpus import architecture
from cosmos_reason.jobs.platforms.machines import ask_for_gpus
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.remote.machine import Host, call
from cosmos_reason.spec import actions

EMBEDDED_ENGINE_NEEDS = ("torch", "transformers", "peft")
IMPORT_SECONDS = 60
PIP = f"{sys.executable} -m pip install"
ASK_TORCH = "import json,torch;c=torch.cuda;print(json.dumps([c.is_available(),c.get_arch_list()]))"


def check(preflight: Preflight) -> Iterator[Finding]:
    """torch or cosmos-rl, wandb, CUDA, GPUs"""
    yield from ask_for_gpus(preflight, Host())
    if preflight.engine == "transformers":
        yield from check_torch(preflight)
        case = preflight.case
        trains = case is not None and case.action in actions.TRAINING
        # No setup of ours installs the package that this logger needs.
        if trains and "wandb" in case("logging.logger") and not importlib.util.find_spec("wandb"):
            message = "got wandb among the loggers, expected the package of that name here"
            yield findings.error(
                "PRE-WANDB-PACKAGE", "logging.logger", message, f"{PIP} {bundle.WANDB}"
            )
    action = preflight.case.action if preflight.case else "train"
    yield from cosmos_environment.findings(preflight.engine, action)


def check_torch(preflight: Preflight) -> Iterator[Finding]:
    """Yield whether torch is here, and was built for the chosen GPUs."""
    absent = [name for name in EMBEDDED_ENGINE_NEEDS if not importlib.util.find_spec(name)]
    if absent:
        message = f"got no {', '.join(absent)}, expected the embedded engine's"
        fix = f"{PIP} -r {bundle.ROOT / bundle.ENGINE_PACKAGES}"
        yield findings.error("PRE-TORCH", sys.executable, message, fix)
        return
    version = importlib.metadata.version("torch")
    preflight.result["torch"] = version
    if not preflight.driver.gpus or preflight.on_cpu:
        return
    answer = call([sys.executable, "-c", ASK_TORCH], IMPORT_SECONDS)
    if answer.code or not answer.out.startswith("["):
        message = f"got {answer.last_words}, expected a torch that can be imported"
        yield findings.error("PRE-TORCH", sys.executable, message)
        return
    sees_gpus, built_for = json.loads(answer.out)
    if not sees_gpus:
        message = f"got torch {version} that sees no GPU, though nvidia-smi does"
        # The package index has the CUDA build for Linux, and pip takes a CPU build for the same
        # version.
        fix = f"{PIP} --force-reinstall torch=={version.partition('+')[0]}"
        yield findings.error("PRE-TORCH-CUDA", sys.executable, message, fix)
        return
    gpus, _ = chosen(preflight.driver, preflight.options)
    architectures = {gpu.arch for gpu in gpus if gpu.arch}
    missing = sorted(architectures - {architecture(name) for name in built_for})
    if missing:
        message = f"got GPUs of {', '.join(missing)}, torch was built for {', '.join(built_for)}"
        yield findings.warning("PRE-TORCH-ARCH", sys.executable, message)
