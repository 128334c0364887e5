"""The environment of open-source cosmos-rl: on this machine where it is and what a job adds to it,
and here or in an image what is wrong with it before anything is launched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Finding, error, info

PROGRAM = "cosmos-rl"  # and the name of the engine
OWN = bundle.ROOT / ".venv-cosmos-rl" / "bin"  # made by make setup-cosmos-rl
SETUP = f"make -C {bundle.ROOT} setup-cosmos-rl"
SERVER = "redis-server"
# What the interpreter that cosmos-rl starts has installed; nothing is imported.
ASK = """
import importlib.metadata as metadata, json, shutil, sys
versions = {"redis-server": shutil.which("redis-server")}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        versions[name] = None
if versions.get("vllm"):
    needed = metadata.requires("vllm") or ()
    versions["torch of vllm"] = next((one[7:] for one in needed if one.startswith("torch==")), None)
print(json.dumps(versions))
"""
# Without these nothing starts: cosmos-rl imports boto3 whether it uploads or not.
NEEDED = ("torch", "transformers", "qwen-vl-utils", "av", "boto3")
PACKAGES = (PROGRAM, *NEEDED, "vllm", "flash-attn")
ASK_SECONDS = 60


def folder() -> Path | None:
    """Return the folder of the program: the one on PATH, else the one that make setup-cosmos-rl
    made."""
    found = shutil.which(PROGRAM)
    if found:
        return Path(found).absolute().parent
    return OWN if (OWN / PROGRAM).is_file() else None


def added(place: Path) -> dict[str, str]:
    """Return what a job's environment gets: the program's own folder first on PATH, because
    cosmos-rl starts its processes as `python`."""
    return {"PATH": f"{place}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def findings(engine: str, action: str) -> Iterator[Finding]:
    """Yield what stands against training with an engine on this machine: nothing here for one that
    does not stand in this environment."""
    if engine != PROGRAM:
        return
    place = folder()
    if place is None:
        message = f"got no {PROGRAM} on PATH, expected open-source cosmos-rl"
        yield error("PRE-COSMOS-MISSING", PROGRAM, message, SETUP)
        return
    environment = added(place)
    python = shutil.which("python", path=environment["PATH"])
    answer = ""  # where it cannot be asked
    asked = {"capture_output": True, "text": True, "check": True, "timeout": ASK_SECONDS}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if python:
            command = [python, "-c", ASK, *PACKAGES]
            answer = subprocess.run(command, env=os.environ | environment, **asked).stdout
    yield from answered(python or str(place), answer, action, SETUP)


def answered(where: str, answer: str, action: str, setup: str) -> Iterator[Finding]:
    """Return what stands against training in an environment that answered ASK; `setup` mends it."""
    try:
        versions = json.loads(answer)
    except ValueError:
        message = f"got no answer of its python, which {PROGRAM} starts its processes with"
        yield error("PRE-COSMOS-MISSING", where, message, setup)
        return
    if not versions[SERVER]:
        message = f"got no {SERVER} on the PATH of {where}, which {PROGRAM} starts"
        yield error("PRE-TOOL-MISSING", SERVER, message, setup)
    facts = bundle.skill_info()["engines"][PROGRAM]
    wanted = facts["package"].partition("==")[2]
    if versions[PROGRAM] != wanted:
        message = f"got {versions[PROGRAM] or 'none'}, expected {wanted}: keys and logs differ"
        yield error("PRE-COSMOS-VERSION", where, message, setup)
    missing = [name for name in NEEDED if not versions[name]]
    if missing:
        message = f"got no {', '.join(missing)}, expected what {PROGRAM} and its records need"
        yield error("PRE-COSMOS-MISSING", where, message, setup)
    torch, newest = versions["torch"], facts["newest_torch"]
    if torch and _number(torch) > _number(newest):
        message = f"got torch {torch}, expected {newest} at most: {PROGRAM} patches a name it lost"
        yield error("PRE-COSMOS-TORCH", where, message, setup)
    version, oldest, message = versions["vllm"], facts["oldest_vllm"], ""
    built_for, here = versions.get("torch of vllm"), (torch or "").partition("+")[0]
    # It generates the completions. One that is built for another torch than the one here fails as
    # it is imported, or brings a torch of its own.
    if not version:
        message = "got no vllm, which generates the completions that are rewarded"
    elif _number(version) < _number(oldest):
        message = f"got vllm {version}, expected {oldest} or newer"
    elif here and built_for and here != built_for:
        message = f"got vllm {version} for torch {built_for} beside torch {here}, expected one for "
        message += "it"
    if message and action == "grpo":
        python = where if os.path.isabs(where) else "python"
        fix = f"{python} -m pip install {facts['vllm']}"
        yield error("PRE-COSMOS-VLLM", where, message, fix)
    if not versions["flash-attn"]:
        message = "got no flash-attn: attention is torch's own (sdpa)"
        yield info("PRE-COSMOS-ATTENTION", where, message)


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
