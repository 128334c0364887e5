"""What an engine runs for an action: the argument lists of skill_info.yaml, filled in."""

from __future__ import annotations

import csv
import itertools
import shlex
from collections.abc import Callable
from pathlib import Path

from cosmos_reason import bundle, platforms
from cosmos_reason import spec as specs
from cosmos_reason.findings import Finding, error

LONG = ("--mount", "--env")  # flags of docker that a summary leaves out
BY_HAND = "; the spec is one for `cosmos-rl --config SPEC DATASET_SCRIPT`, where that is installed"


def check(platform: str, engine: str, action: str) -> list[Finding]:
    """Whether this version starts the action with the engine on the platform."""
    facts = bundle.skill_info()["engines"]
    able = [(e, p) for p in platforms.PLATFORMS for e in platforms.module(p).ENGINES
            if action in facts[e].get("runs", facts[e]["actions"])]  # fmt: skip
    if (engine, platform) in able:
        return []
    if not able:
        return [error("JOB-ACTION", action, f"got {action}, which this version launches with no engine{BY_HAND}")]
    near = max(able, key=lambda one: (one[0] == engine, one[1] == platform))
    flags = [f"--engine {near[0]}"] * (near[0] != engine) + [f"--platform {near[1]}"] * (near[1] != platform)
    message = f"got {action} with {engine} on {platform}, expected {' or '.join(' on '.join(one) for one in able)}"
    message += BY_HAND if engine == "cosmos-rl" else ""
    if near[0] != engine:
        message += f"; scripts/build_spec.py {action} --spec SPEC --engine {near[0]} -o NEW fits the spec to it"
    return [error("JOB-ENGINE", "--engine", message, " ".join(flags))]


def words(record: dict, spec: dict, inside: Callable[[str], str] = str, **values: object) -> list[str]:
    """The program of a job and its arguments. `values` are python, config (the spec to read), job (the job's folder),
    scripts (the bundle's), and for the container entry_script. Keys that the program reads from flags are those of the
    spec; empty ones get no flag, and one whose flag takes no value (it does not end in =) gets it when it is true."""
    action, options = record["action"], record.get("options", {})
    entry = bundle.skill_info()["engines"][record["engine"]]["actions"][action]
    found = [word.format(action=action, **values) for word in entry["command"]]
    full = specs.with_defaults(action, spec)
    for key, flag in entry.get("flags", {}).items():
        value = specs.get(full, key)
        if value in (None, "") or (value is False and not flag.endswith("=")):
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found.append(flag + text if flag.endswith("=") else flag)
    found += [f"--endpoint={options['endpoint']}"] if "endpoint" in options else []
    return found + (["--checkpoint", *map(inside, options["checkpoints"])] if "checkpoints" in options else [])


def summary(record: dict) -> str:
    """What a planned job is, reads, writes and runs, as a person wants to know it; $JOB is its folder."""
    command, outputs = record["command"], list(dict.fromkeys(record["outputs"].values()))
    mounts = [next(csv.reader([value])) for flag, value in itertools.pairwise(command) if flag == "--mount"]
    reads = [fields[1].removeprefix("source=") for fields in mounts if "readonly" in fields]
    reads = reads or list(dict.fromkeys(entry["path"] for entry in record["inputs"]))
    hidden = {place + 1 for place, word in enumerate(command) if word in LONG} if mounts else set()
    shown = [word for place, word in enumerate(command) if not {place, place + 1} & hidden]
    ids, job = record["resources"]["gpu_ids"], str(Path(record["spec"]["path"]).parent)
    gpus = "GPUs not chosen" if ids is None else f"GPUs {','.join(ids)}" if ids else "no GPU"
    lines = [
        f"{record['action']} of {record['spec']['source']} with {record['engine']} on {record['platform']}, {gpus}",
        *([f"image {record['image']}"] if record["image"] else []),
        f"reads {', '.join(reads)}",
        f"results in {', '.join(outputs)}",
        f"runs, with JOB={job}{' (without ' + ', '.join(LONG) + ')' if mounts else ''}:",
    ]
    return "\n".join([*lines, f"  {shlex.join(shown).replace(job, '$JOB')}"])


def launch_text(record: dict, before: str = "") -> str:
    """A script that shows people what runs, a flag per line; `before` is what the command needs."""
    lines = (f"\\\n  {word}" if word.startswith("--") else word for word in map(shlex.quote, record["command"]))
    return f"#!/bin/sh\n# {record['job_id']}\n{before}exec {' '.join(lines)}\n"
