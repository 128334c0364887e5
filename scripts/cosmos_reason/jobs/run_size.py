"""What a run takes of its place besides time: memory of a node, and checkpoints on the disk."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.base.findings import Failure
from cosmos_reason.base.site import Site
from cosmos_reason.checkpoints import safetensors_files
from cosmos_reason.estimate import gpu_memory, host_memory, record_tokens
from cosmos_reason.estimate.host_memory import Node
from cosmos_reason.jobs import nodes
from cosmos_reason.jobs.options import Launch
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.keys import LOADERS
from cosmos_reason.rules.lengths import loader_gib
from cosmos_reason.spec import actions

SPARE = 1.2  # of a checkpoint's size
SAVE_MODE = "train.ckpt.save_mode"
OPTIONS = "custom.transformers_engine."


@dataclass(frozen=True)
class Sample:
    """Tokens of the longest sample, `total` with what is generated for it. `measured`: of the data,
    else of a clip that was assumed."""

    total: int
    vision: int
    longest_text: int
    measured: bool = True


def longest(case: Case) -> Sample | None:
    """Return the longest sample of the data; None where nobody has read them."""
    if not case.tokens:
        return None
    most = max(case.tokens, key=lambda one: one.total)
    longest_text = max(one.text for one in case.tokens)
    return Sample(most.total + generated_tokens(case), most.vision, longest_text)


def generated_tokens(case: Case) -> int:
    """Return the tokens that a step generates for a record, before it trains with them."""
    return case("rollout.max_response_length") if case.action == "grpo" else 0


def of_sample(case: Case, sample: Sample) -> gpu_memory.Plan | None:
    """Return what a GPU holds at a sample; None where the widths of the model are not known."""
    return gpu_memory.of_spec(case, sample.total, sample.vision, sample.longest_text)


def node_gib(launch: Launch) -> int | None:
    """Return the GiB of a node's memory that a training takes; None where its data or the widths of
    its model are not known."""
    case = launch.case
    if case.action not in actions.TRAINING:
        return None
    try:
        sample = longest(case)
    except Failure:
        return None  # what is wrong with the facts or the sampling the rules of the spec say
    plan = of_sample(case, sample) if sample else None
    if plan is None:
        return None
    processes = math.ceil(launch.needed_gpus / nodes.layout(launch)[0])
    terms = host_memory.terms(plan, node_of(case, processes, launch.platform, launch.site))
    return math.ceil(sum(terms.values()))


def node_processes(launch: Launch) -> str:
    """Return what works on a node's CPUs, in words; "" where no training does."""
    case = launch.case
    if case.action != "train":
        return ""
    processes = math.ceil(launch.needed_gpus / nodes.layout(launch)[0])
    return f"{processes} processes with {case(LOADERS)} readers each"


def node_of(case: Case, processes: int, platform: str, site: Site | None) -> Node:
    """Return what a training runs on each of its nodes."""
    saves = case("train.ckpt.enable_checkpoint")
    in_background = case.cosmos and saves and case(SAVE_MODE) == "async"
    if case.action != "train":
        return Node(processes, in_background=in_background)
    if case.cosmos:
        ready = loader_gib(case) * processes
        return Node(processes, case(LOADERS), ready, in_background=in_background)
    readers, ready = case(LOADERS), loader_gib(case)
    count = site.get("cpus") if site else os.cpu_count() or 1
    if platform == "local" and count:
        cores = max(1, count // processes)
        ready *= min(1, cores / max(1, readers))
        readers = min(readers, cores)
    frames_gib = math.inf  # of all records, decoded; those of a validation are not known
    if case.tokens and not case("validation.enable"):
        tokens = sum(one.vision for one in case.tokens)
        frames = model_names.known_family(case.model).frames_per_token
        frames_gib = (
            tokens * record_tokens.frame_bytes(case.token_side // 2, frames) / gpu_memory.GIB
        )
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


def kept_checkpoints(case: Case) -> tuple[int, float]:
    """Return (how many checkpoints are there at a time, GiB of one): what is resumed from and the
    exported model, with some to spare. The best is kept, and a new one is whole before the oldest
    goes."""
    if case.action not in actions.TRAINING or not case("train.ckpt.enable_checkpoint"):
        return 0, 0.0
    plan = gpu_memory.of_spec(case, 1, 1, 1)
    if plan is None:
        return 0, 0.0
    kept = case("train.ckpt.max_keep")
    least = 2 if case("validation.enable") else 1
    most = max(kept, least) + 1 if kept > 0 else math.inf
    if case.steps and case.save_interval:
        most = min(most, max(1, math.ceil(case.steps / case.save_interval)))
    elif most == math.inf:
        most = least + 1
    exported = plan.trained * (4 if plan.lora_rank else 2)
    return most, (gpu_memory.saved_state(plan) + exported) * SPARE / gpu_memory.GIB
