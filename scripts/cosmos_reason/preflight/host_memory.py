"""The memory of a node that a training takes, against what the machine has."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import safetensors_files
from cosmos_reason.estimate import host_memory, record_tokens
from cosmos_reason.estimate.gpu_memory import GIB, Plan
from cosmos_reason.estimate.host_memory import Node
from cosmos_reason.jobs.platforms.preflight import SCHEDULED, Preflight
from cosmos_reason.jobs.platforms.slurm.partitions import megabytes
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.keys import LOADERS
from cosmos_reason.rules.lengths import fewer_batches, loader_gib
from cosmos_reason.spec import actions

USABLE = 0.9  # part of a machine's memory
SAVE_MODE = "train.ckpt.save_mode"
OPTIONS = "custom.transformers_engine."
KIB_PER_GIB = 2**20


def check(preflight: Preflight, plan: Plan) -> Iterator[Finding]:
    """Note in the result what a node needs; yield a finding where the machine that was asked has
    less."""
    case = preflight.case
    terms = {}
    if case.action in actions.TRAINING:
        terms = host_memory.terms(plan, node_of(preflight))
    needed = sum(terms.values())
    host = {"host_gib": round(needed, 1), "host_terms": terms}
    preflight.result["prediction"] = preflight.result["prediction"] | host
    parts = ", ".join(f"{name} {gib:g}" for name, gib in terms.items())
    asked = 0  # GiB that a scheduler is asked for; 0: all of a node, or nothing said
    if preflight.platform in SCHEDULED and preflight.options.memory:
        asked = megabytes(preflight.options.memory) / 1024
    if asked and needed > asked:
        message = f"got {preflight.options.memory}, expected about {needed:.0f} GiB ({parts})"
        fix = Fix(flags={"--memory": f"{math.ceil(needed / USABLE)}G"})
        yield findings.warning("PRE-HOST-MEMORY", "--memory", message, fix)
    if preflight.site:
        there = preflight.site.get("memory_gib")
        if there is None and needed:
            yield from preflight.site.unknown(["memory_gib: GIB"])
    else:
        # Flags may describe the GPUs of a machine that is not the one asked here.
        is_described = preflight.options.describes_gpus and not preflight.driver.gpus
        is_elsewhere = is_described and not preflight.on_cpu
        there = None if is_elsewhere else _memory_of_machine(preflight)
    if there is None or needed <= USABLE * there:
        return
    message = f"got {there:.0f} GiB, expected {needed / USABLE:.0f}, to use {needed:.0f} ({parts})"
    report = findings.error if needed > there else findings.warning
    fix = smaller(case, terms, needed - USABLE * there)
    if not fix and terms.get("the model while it is exported") and not plan.lora_rank:
        message += "; adapters (--tuning lora) are exported without the model"
    yield report("PRE-HOST-MEMORY", "host memory", message, fix)


def node_of(preflight: Preflight) -> Node:
    """Return what the training of a launch runs on each of its nodes."""
    case, processes = preflight.case, preflight.gpus_per_node
    saves = case("train.ckpt.enable_checkpoint")
    in_background = case.cosmos and saves and case(SAVE_MODE) == "async"
    if case.action != "train":
        return Node(processes, in_background=in_background)
    if case.cosmos:
        ready = loader_gib(case) * processes
        return Node(processes, case(LOADERS), ready, in_background=in_background)
    readers, ready = case(LOADERS), loader_gib(case)
    site = preflight.site
    count = site.get("cpus") if site else os.cpu_count() or 1
    if preflight.platform == "local" and count:
        cores = max(1, count // processes)
        ready *= min(1, cores / max(1, readers))
        readers = min(readers, cores)
    frames_gib = math.inf  # of all records, decoded; those of a validation are not known
    if case.tokens and not case("validation.enable"):
        tokens = sum(one.vision for one in case.tokens)
        frames = model_names.known_family(case.model).frames_per_token
        frames_gib = tokens * record_tokens.frame_bytes(case.token_side // 2, frames) / GIB
    # Weights that are stored in another precision than the training wants are copied once, but for
    # bfloat16, from which the embedded engine widens them on the GPU.
    wanted = "BF16" if case("policy.lora") or case("train.master_dtype") == "bfloat16" else "F32"
    stored = {}
    if Path(case.model).is_dir():
        stored, _ = safetensors_files.read_folder(Path(case.model))
    return Node(
        processes,
        readers,
        ready=ready * processes,
        frames=min(case(OPTIONS + "frame_cache_gib"), frames_gib),
        features=case(OPTIONS + "feature_cache_gib"),
        is_copied=not {tensor.dtype for tensor in stored.values()} <= {"BF16", wanted},
        saves=saves,
    )


def _memory_of_machine(preflight: Preflight) -> float | None:
    """Return GiB; None where no single machine is known, or it does not tell."""
    if preflight.platform == "local":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if preflight.platform != "docker" or preflight.machine is None:
        return None
    told = re.search(r"MemTotal:\s*(\d+) kB", preflight.machine.call("cat", "/proc/meminfo").out)
    return int(told[1]) / KIB_PER_GIB if told else None


def smaller(case: Case, terms: dict[str, float], excess: float) -> Fix:
    """Return the changes that save at least `excess` GiB, of what takes most first; nothing where
    all of them do not, or only what would train otherwise."""
    changes = {
        "records read ahead": fewer_batches(case) if terms.get("records read ahead") else Fix(),
        "frames kept": Fix(changes={OPTIONS + "frame_cache_gib": 0}),
        "features kept": Fix(changes={OPTIONS + "feature_cache_gib": 0}),
        "a copy of the state to be saved": Fix(changes={SAVE_MODE: "sync"}),
        "offloaded states": Fix(changes={"train.fsdp_offload": False}),
    }
    together = Fix()
    for name, gib in sorted(terms.items(), key=lambda term: -term[1]):
        if excess > 0 and changes.get(name):
            together |= changes[name]
            excess -= gib
    return together if excess <= 0 else Fix()
