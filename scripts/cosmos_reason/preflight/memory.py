"""What a run will take: memory of one GPU, steps, hours, checkpoints on the disk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.jobs.platforms import gates
from cosmos_reason.jobs.platforms.gpus import Gpu
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.media import files, sampling
from cosmos_reason.preflight import host_memory
from cosmos_reason.rules import vision
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import actions

SMALL_MODEL = 3  # billion parameters
QUESTION_TOKENS = 500  # of a record that nobody has seen
UNREADABLE_CLIP_TOKENS = 4096
SPARE = 1.2  # of a checkpoint's size
RULE_OF_THUMB = "GPUs (rule of thumb for full fine-tuning of 8B models)"


@dataclasses.dataclass(frozen=True)
class Sample:
    """Tokens of the longest sample, `total` with what is generated for it. `measured`: of the data,
    else of a clip that was assumed."""

    total: int
    vision: int
    longest_text: int
    measured: bool


def check(preflight: Preflight, gpus: list[Gpu]) -> Iterator[Finding]:
    """Compare the memory that one GPU needs with the chosen GPUs and every type that skill_info
    knows."""
    case = preflight.case
    has_records = case.facts and case.facts["records"]
    if has_records and not case.tokens:
        return  # impossible vision settings: said before
    generated = case("rollout.max_response_length") if case.action == "grpo" else 0
    if case.tokens:
        longest = max(case.tokens, key=lambda one: one.total)
        longest_text = max(one.text for one in case.tokens)
        total = longest.total + generated
        sample = Sample(total, longest.vision, longest_text, measured=True)
    else:  # a clip is assumed
        seen = assumed_vision_tokens(case)
        total = seen + QUESTION_TOKENS + generated
        sample = Sample(total, seen, QUESTION_TOKENS, measured=False)
    plan = gpu_memory.of_spec(case, sample.total, sample.vision, sample.longest_text)
    if plan is None:
        message = f"got {case.model}, whose widths are not known here, so memory is not predicted"
        key = case.params["model"]
        yield findings.warning("PRE-MEMORY-UNKNOWN", key, message, Fix(flags={"--model": "DIR"}))
        return
    preflight.result["prediction"] = prediction(preflight, plan, sample.measured)
    fits_measured = False
    sizes = [gpu.gib for gpu in gpus if gpu.gib]
    if sizes:
        yield from _fit(preflight, plan, min(sizes), len(gpus))
        is_fit = preflight.result["prediction"]["verdict"] == gpu_memory.FITS
        fits_measured = is_fit and sample.measured
    elif preflight.wants_gpus:
        needed = gpu_memory.total(plan)
        message = (
            f"needs {needed:.1f} GiB on each GPU, whose memory is not known, "
            "so this is not compared"
        )
        fix = gates.missing_description(preflight.options)
        yield findings.warning("PRE-MEMORY-UNSEEN", "GPU memory", message, fix)
    if case.action == "train" and case.cosmos:
        # The rule of thumb about all GPUs together does not count for every model.
        billions = plan.geometry.parameters / 1e9
        set_aside = ""
        if plan.lora_rank:
            set_aside = "LoRA trains a small part of it"
        elif billions < SMALL_MODEL:
            set_aside = f"the model has {billions:.1f} billion parameters"
        elif fits_measured:
            set_aside = "the memory prediction says that it fits"
        least = bundle.skill_info()["memory_minimums"]["full_sft_total_gb"]
        yield from gates.check_total(gpus, preflight.nodes, least, RULE_OF_THUMB, set_aside)
    yield from host_memory.check(preflight, plan)


def assumed_vision_tokens(case: Case) -> int:
    """Return the vision tokens of a sample that nobody has seen: of the clip that inference looks
    at, else of ten seconds of 1920x1080 at 30 frames/s. Raises Failure for impossible vision
    settings."""
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
    except Failure as failure:
        if failure.findings[0].id.startswith("SPEC-"):
            raise
        return UNREADABLE_CLIP_TOKENS  # the path's check says what is wrong with the clip


def prediction(preflight: Preflight, plan: gpu_memory.Plan, measured: bool) -> dict:
    """Return what is predicted before the GPUs are compared with it."""
    case = preflight.case
    needed = gpu_memory.total(plan)
    types = bundle.skill_info()["gpu_types"]
    steps = case.steps if case.action == "train" else None
    hours = None
    if steps and preflight.options.seconds_per_step:
        hours = round(steps * preflight.options.seconds_per_step / 3600, 2)
    return {
        "tokens": plan.tokens,
        "measured": measured,
        "gib": round(needed, 1),
        "terms": gpu_memory.terms(plan),
        "gpu_types": {name: gpu_memory.of_gpu(plan, gib) for name, gib in types.items()},
        "steps": steps,
        "hours": hours,
    }


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
