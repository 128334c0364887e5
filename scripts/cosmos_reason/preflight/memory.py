"""Whether a run fits: memory of one GPU and of a node, steps, hours."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.estimate import gpu_memory, host_memory
from cosmos_reason.jobs import run_size
from cosmos_reason.jobs.platforms import gates
from cosmos_reason.jobs.platforms.gpus import Gpu
from cosmos_reason.jobs.platforms.preflight import SCHEDULED, Preflight
from cosmos_reason.jobs.platforms.slurm.partitions import megabytes
from cosmos_reason.jobs.run_size import OPTIONS, SAVE_MODE, Sample
from cosmos_reason.media import files, sampling
from cosmos_reason.rules import vision
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.lengths import fewer_batches
from cosmos_reason.spec import actions

QUESTION_TOKENS = 500  # of a record that nobody has seen
UNREADABLE_CLIP_TOKENS = 4096
USABLE = 0.9  # part of a machine's memory
KIB_PER_GIB = 2**20
RULE_OF_THUMB = "GPUs (rule of thumb for full fine-tuning of 8B models)"


def check(preflight: Preflight, gpus: list[Gpu]) -> Iterator[Finding]:
    """Compare the memory that one GPU needs with the chosen GPUs and every type that skill_info
    knows."""
    case = preflight.case
    has_records = case.facts and case.facts["records"]
    if has_records and not case.tokens:
        return  # impossible options of sampling: a rule of the spec says so
    sample = run_size.longest(case)
    if sample is None:  # a clip is assumed
        try:
            seen = assumed_vision_tokens(case)
        except sampling.ImpossibleOptions:
            return  # a rule of the spec says so
        total = seen + QUESTION_TOKENS + run_size.generated_tokens(case)
        sample = Sample(total, seen, QUESTION_TOKENS, measured=False)
    plan = run_size.of_sample(case, sample)
    if plan is None:
        message = f"got {case.model}, whose widths are not known here, so memory is not predicted"
        key = case.params["model"]
        yield findings.warning("PRE-MEMORY-UNKNOWN", key, message, Fix(flags={"--model": "DIR"}))
        return
    # What is predicted before the GPUs are compared with it.
    steps = case.steps if case.action == "train" else None
    types = bundle.skill_info()["gpu_types"]
    predicted = {
        "tokens": plan.tokens,
        "measured": sample.measured,
        "gib": round(gpu_memory.total(plan), 1),
        "terms": gpu_memory.terms(plan),
        # The embedded engine packs records and keeps activations while they fit.
        "most_share": None if case.cosmos or case.action != "train" else gpu_memory.TIGHT_ABOVE,
        "gpu_types": {name: gpu_memory.of_gpu(plan, gib) for name, gib in types.items()},
        "steps": steps,
        "hours": None,
    }
    if steps and preflight.options.seconds_per_step:
        predicted["hours"] = round(steps * preflight.options.seconds_per_step / 3600, 2)
    preflight.result["prediction"] = predicted
    fits_measured = False
    sizes = [gpu.gib for gpu in gpus if gpu.gib]
    if sizes:
        yield from _fit(preflight, plan, min(sizes), len(gpus))
        is_fit = preflight.result["prediction"]["verdict"] == gpu_memory.FITS
        fits_measured = is_fit and sample.measured
    elif preflight.wants_gpus:
        needed = gpu_memory.total(plan)
        message = f"needs {needed:.1f} GiB on each GPU, whose memory is not known, "
        message += "so this is not compared"
        fix = gates.missing_description(preflight.options)
        yield findings.warning("PRE-MEMORY-UNSEEN", "GPU memory", message, fix)
    if case.action == "train" and case.cosmos:
        # The rule of thumb about all GPUs together does not count for every model.
        billions = plan.geometry.parameters / 1e9
        set_aside = ""
        if plan.lora_rank:
            set_aside = "LoRA trains a small part of it"
        elif case.is_small:
            set_aside = f"the model has {billions:.1f} billion parameters"
        elif fits_measured:
            set_aside = "the memory prediction says that it fits"
        least = bundle.skill_info()["memory_minimums"]["full_sft_total_gb"]
        yield from gates.check_total(gpus, preflight.nodes, least, RULE_OF_THUMB, set_aside)
    yield from host_memory_findings(preflight, plan)


def assumed_vision_tokens(case: Case) -> int:
    """Return the vision tokens of a sample that nobody has seen: of the clip that inference looks
    at, else of ten seconds of 1920x1080 at 30 frames/s. Raises ImpossibleOptions."""
    height = 1080
    width = 1920
    total = 300
    fps = 30.0
    try:
        clip = case("media") if case.action == "inference" else ""
        if clip and Path(clip).is_file():
            facts = files.probe(clip)
            height = facts.height
            width = facts.width
            total = facts.frames
            fps = facts.fps
        options = sampling.VisionOptions.from_spec(case.full)
        if vision.lowers_floor(case) and vision.pixel_conflict(case):
            options = dataclasses.replace(
                options, min_pixels=options.min_pixels or options.max_pixels
            )
        patch = sampling.patch_size(case.model)
        if total == 1:
            return sampling.image_tokens(height, width, options, patch)
        frames = sampling.frame_count(total, fps, options)
        return sampling.video_tokens(height, width, frames, options, patch)
    except sampling.ImpossibleOptions:
        raise
    except Failure:
        return UNREADABLE_CLIP_TOKENS  # the path's check says what is wrong with the clip


def _fit(preflight: Preflight, plan: gpu_memory.Plan, gib: float, count: int) -> Iterator[Finding]:
    """Compare the prediction with the smallest of `count` GPUs, which has `gib`."""
    needed = gpu_memory.total(plan, gib)
    verdict = gpu_memory.of_gpu(plan, gib)
    by_name = gpu_memory.terms(plan, gib)
    preflight.result["prediction"] |= {
        "verdict": verdict, "gib": round(needed, 1), "terms": by_name,
    }  # fmt: skip
    terms = ", ".join(f"{name} {size:g}" for name, size in by_name.items())
    samples = f"{plan.tokens} tokens x {plan.batch}"
    message = f"{verdict}: {needed:.1f} GiB of {gib:.1f} at {samples} ({terms})"
    if plan.rollout_share:
        least, most = gpu_memory.shares(plan, gib)  # of the GPU, for vllm beside the policy
        words = f"{gpu_memory.SHARE} fits from {least:g} to {most:g}"
        if least > most:
            words = f"no {gpu_memory.SHARE} fits: vllm starts with {least:g}, "
            words += f"{max(most, 0):g} is left"
        message += f"; {words}"
    if verdict == gpu_memory.FITS:
        yield findings.info("PRE-MEMORY", "GPU memory", message)
        return
    fix = Fix()
    change = gpu_memory.cheapest_fix(plan, gib, count, _token_pixels(preflight.case))
    if change:
        fix, gib_then = change
        message += f"; with the fix {gib_then:.1f} GiB"
    else:
        message += "; no change of the spec is enough: take larger GPUs"
    without_samples = dataclasses.replace(plan, tokens=0, vision_tokens=0, loss_tokens=0)
    too_large_anyway = gpu_memory.of_gpu(without_samples, gib) == gpu_memory.DOES_NOT_FIT
    is_certain = preflight.result["prediction"]["measured"] or too_large_anyway
    is_error = verdict == gpu_memory.DOES_NOT_FIT and is_certain
    report = findings.error if is_error else findings.warning
    yield report("PRE-MEMORY", "GPU memory", message, fix)


def _token_pixels(case: Case) -> int:
    """Return the pixels that make one vision token, where a budget of them counts."""
    sizes = (vision.sampled(case, "resized_height"), vision.sampled(case, "resized_width"))
    return 0 if all(sizes) else case.token_side**2


# -- the host ---------------------------------------------------------------------------------


def host_memory_findings(preflight: Preflight, plan: gpu_memory.Plan) -> Iterator[Finding]:
    """Note in the result what a node needs; yield a finding where the machine that was asked has
    less."""
    case = preflight.case
    terms = {}
    if case.action in actions.TRAINING:
        node = run_size.node_of(case, preflight.gpus_per_node, preflight.platform, preflight.site)
        terms = host_memory.terms(plan, node)
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


def _memory_of_machine(preflight: Preflight) -> float | None:
    """Return GiB; None where no single machine is known, or it does not tell."""
    if preflight.platform == "local":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / gpu_memory.GIB
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
