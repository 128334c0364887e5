"""Environment modules (of Environment Modules or Lmod) that the nodes load for a job: its program
is then the python3 that stands first on PATH."""

from __future__ import annotations

import os
import re
import shlex
import sys

from cosmos_reason.base.findings import Finding, error
from cosmos_reason.jobs.platforms.slurm import cluster
from cosmos_reason.remote.machine import Host

NAME = re.compile(r"[A-Za-z0-9/][\w./+@=-]{0,199}", re.ASCII)
PYTHON = "python3"
NEEDED = ("torch", "transformers", "peft")
# What stands against the Python of the modules, on one line.
ASK = """import importlib.util, sys
absent = [name for name in sys.argv[1:] if not importlib.util.find_spec(name)]
if absent or sys.version_info < (3, 11):
    without = f" without {', '.join(absent)}" if absent else ""
    print("python", sys.executable, "%d.%d" % sys.version_info[:2] + without)
"""
TOLD = ("module ", "python ")  # before what the lines of a node say of its modules
LOOK = """said=$({load} 2>&1) || printf 'module %s\\n' "$(printf %s "$said" | tr '\\n' ' ')"
{load} >/dev/null 2>&1 && {{ {ask} 2>/dev/null || echo 'python none'; }}
"""


def check_words(names: list[str], in_container: bool) -> list[Finding]:
    found = []
    if names and in_container:
        message = "got it for a job in a container, which loads no modules"
        return [error("JOB-FLAG", "--module", message)]
    for name in names:
        if not NAME.fullmatch(name):
            message = f"got {name!r}, expected a module such as python/3.11"
            found.append(error("JOB-SLURM-WORD", "--module", message))
    return found


def load(options: dict) -> str:
    """Return the command of a shell that loads those of a job's options, '' without any."""
    names = options.get("modules")
    return shlex.join(["module", "load", *names]) if names else ""


def path() -> str:
    """Return PATH before the modules are loaded: where none brings a python3, it is this one."""
    return f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def look(options: dict, program: str) -> str:
    """Return commands of a shell that print what stands against the modules of a job on a node."""
    if not load(options):
        return ""
    values = {"PATH": path()}
    if "MODULEPATH" in options.get("env", []):
        values["MODULEPATH"] = os.environ.get("MODULEPATH", "")
    text = ". /etc/profile >/dev/null 2>&1\n"
    for name, value in values.items():
        text += f"export {name}={shlex.quote(value)}\n"
    ask = shlex.join([PYTHON, "-c", ASK, *NEEDED]) if program == PYTHON else "true"
    return text + LOOK.format(load=load(options), ask=ask)


def complaints(lines: list[str], node: str, options: dict, where: Host) -> list[Finding]:
    """Return errors for what `look` printed on a node; other lines are none."""
    names = " ".join(options.get("modules", []))
    found = []
    for line in lines:
        kind, _, what = line.partition(" ")
        if kind == "module":
            said = what.strip()[:200]
            message = f"got {said!r} on {node}, expected modules that it can load"
            fix = cluster.look(where, "module avail")
            found.append(error("JOB-SLURM-MODULE", f"--module {names}", message, fix))
        elif kind == "python":
            message = f"got {what} on {node}, expected Python 3.11 with {', '.join(NEEDED)}; "
            message += "name a --module that has them, or none, and this Python is taken"
            found.append(error("JOB-SLURM-MODULE", f"{PYTHON} of {names}", message))
    return found
