"""What will happen: the data and the spec by their own checks, GPU memory, host memory, disk, steps and hours."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from cosmos_reason import bundle, clip_checks, dataset_checks, gpu_memory, media, models, rules, s3, survey
from cosmos_reason import findings as f
from cosmos_reason import spec as specs
from cosmos_reason import vision_tokens as vt
from cosmos_reason.annotations import locate
from cosmos_reason.preflight import gates
from cosmos_reason.spec_conditions import AHEAD, LOADERS, batch_gib

CLIPS_LOOKED_AT = 64  # headers read when there are no dataset facts; the whole is check_dataset's work
DATA = {"train": "custom.train_dataset", "grpo": "custom.train_dataset", "evaluate": "dataset", "quantize": "dataset"}
SMALL_MODEL = 3  # billion parameters
VALIDATION = "custom.val_dataset"


def read_spec(path: str) -> tuple[dict, str]:
    """(a spec, the action that knows most of its keys). Raises Failure (exit 2)."""
    try:
        table = specs.load(Path(path))
    except f.Failure as failure:
        fix = f"scripts/build_spec.py train --train-root DIR -o {shlex.quote(path)}"
        raise f.Failure([dataclasses.replace(one, fix=one.fix or fix) for one in failure.findings], 2) from None
    known = {name: sum(key in specs.keys(name) for key, _ in specs.items(name, table)) for name in bundle.ACTIONS}
    kind, best = specs.get(table, "train.train_policy.type"), max(known, key=known.get)
    return table, {"sft": "train", "grpo": "grpo"}.get(kind, best) if best in ("train", "grpo") else best


def take_spec(launch, table: dict, action: str) -> None:
    """What the spec says of paths, outputs, GPUs and sizes. What is invalid in it counts as the template's."""
    launch.written = table
    invalid = [finding.where for finding in specs.validate(action, table)]
    case = launch.case = rules.Case(action, launch.engine, rules.sound(action, table, invalid))
    for key, schema in specs.keys(action).items():
        value, kind = case(key), schema.get("x-path")
        if kind == "input" and isinstance(value, str) and value:
            launch.paths.setdefault(key, value)
        elif kind == "output" and isinstance(value, str):
            launch.outputs.append(value or ".")
    for key in filter(None, (case.params["model"], case.params.get("base"))):
        if written := case(key):
            name = written if written.startswith(s3.SCHEME) else models.canonical(written, key)
            launch.models.append(name)
            if name.startswith("/"):
                launch.paths.setdefault(key, name)
    launch.args.nodes = launch.args.nodes or math.ceil(case.needed_gpus / 8)
    launch.gpus_per_node = math.ceil(case.needed_gpus / launch.args.nodes)


def data_and_spec(launch) -> Iterator[f.Finding]:
    """every rule of build_spec and every check of check_dataset that can be made here"""
    case = launch.case
    with tempfile.TemporaryDirectory() as folder:
        facts = launch.args.dataset_facts and Path(launch.args.dataset_facts)
        if facts is None and (prefix := DATA.get(case.action)):
            facts, found = survey_of(case, prefix, Path(folder))
            yield from found
        if case.action in ("train", "grpo") and case("validation.enable"):
            yield from survey_of(case, VALIDATION, Path(folder) / "validation")[1]
        per_node = launch.gpus_per_node if case.cosmos and case.action in ("train", "grpo") else None
        asked = (case.action, case.engine, launch.written, facts, per_node, launch.args.nodes)
        yield from rules.check(*asked, launch=True)
        case = launch.case = dataclasses.replace(case, facts_path=facts)
        if case.facts and case.facts["records"] and not case.tokens:  # read while their tables are there
            vt.tokens_for_spec(facts, case.full)  # raises what is wrong with the sampling table


def survey_of(case, prefix: str, folder: Path) -> tuple[Path | None, list[f.Finding]]:
    """(dataset facts written into `folder`, findings) of the data under a key; None for data that is not here."""
    written = case(f"{prefix}.annotation_path")
    media = case(f"{prefix}.media_dir" if prefix == "dataset" else f"{prefix}.media_path")
    if not written:
        return None, []  # a rule of the spec says so
    annotations = locate(written)
    archive = "://" in (media or "") and media.endswith(clip_checks.ARCHIVES)
    if archive or "://" in written or not annotations.is_file():
        message = f"got {written}, which cannot be read here: lengths are not known"
        fix = f"scripts/check_dataset.py {written} --facts dataset_facts.json"
        return None, [f.warning("PRE-DATA-UNREAD", prefix, message, fix)]
    found = survey.take(annotations, "", case.model)
    found.media_path = dataset_checks.media_path(found, media or None)
    notes = look_at_clips(found)
    dataset_checks.check_clips(found)
    folder.mkdir(exist_ok=True)
    facts = folder / "dataset_facts.json"
    dataset_checks.write_facts(found, facts)
    return facts, [*notes, *dataset_checks.findings(found, evaluation=case.action == "evaluate")]


def look_at_clips(found: survey.Survey) -> list[f.Finding]:
    """Reports of the clips: missing ones of all, headers of the first few (and of those looked at before)."""
    archive, there = Path(found.media_path).is_file(), {}
    missing = clip_checks.ClipReport(check="DATA-MEDIA-MISSING", message="got no such file, expected one")
    for number, path in dataset_checks.files(found).items():
        if archive or "://" in str(path) or os.path.exists(path):
            there[number] = path
        else:
            found.reports[number] = missing
    local = ((number, path) for number, path in there.items() if not archive and "://" not in str(path))
    first = dict(islice(local, CLIPS_LOOKED_AT))
    how = ("none", vt.VisionOptions(nframes=8), 10.0, clip_checks.Cache())
    found.reports |= dict(clip_checks.examine_all(first, *how))
    largest = {}
    for facts in (report.facts for report in found.reports.values() if report.facts):
        largest[facts.kind] = max(facts, largest.get(facts.kind, facts), key=_size)
    for medium, number in found.clips.items():  # one that was not looked at is taken to be like the largest of its kind
        found.reports.setdefault(number, clip_checks.ClipReport(facts=largest.get(medium.kind)))
    if len(there) == len(first):
        return []
    message = f"looked at {len(first)} of {len(there)} clips; the others are taken to be like the largest of them"
    fix = f"scripts/check_dataset.py {found.annotations} --facts dataset_facts.json"
    return [f.info("PRE-DATA-SAMPLED", found.annotations, message, fix)]


def _size(facts) -> int:
    return facts.frames * facts.width * facts.height


def memory(launch, gpus: list) -> Iterator[f.Finding]:
    """The memory of one GPU under the spec, on the chosen GPUs and on every type that skill_info knows."""
    case = launch.case
    longest = max(case.tokens, key=lambda record: record.total, default=None)
    if not longest and case.facts and case.facts["records"]:
        return  # impossible vision settings: said before
    vision, text = (longest.vision, longest.text) if longest else assumed(case)
    tokens = vision + text + (case("rollout.max_response_length") if case.action == "grpo" else 0)
    plan = gpu_memory.of_spec(case, tokens, vision, max((record.text for record in case.tokens), default=text))
    if plan is None:
        message = f"got {case.model}, whose widths are not known here, so memory is not predicted"
        yield f.warning("PRE-MEMORY-UNKNOWN", case.params["model"], message, "--model DIR")
        return
    needed, types = gpu_memory.total(plan), bundle.skill_info()["gpu_types"]
    steps, speed = case.steps if case.action == "train" else None, launch.args.seconds_per_step
    launch.result["prediction"] = {
        "tokens": tokens,
        "measured": bool(longest),
        "gib": round(needed, 1),
        "terms": gpu_memory.terms(plan),
        "gpu_types": {name: gpu_memory.verdict(needed, gib) for name, gib in types.items()},
        "steps": steps,
        "hours": round(steps * speed / 3600, 2) if steps and speed else None,
    }
    smallest, aside = min((gpu.gib for gpu in gpus if gpu.gib), default=None), ""
    if smallest:
        yield from _fit(launch, plan, needed, smallest, len(gpus))
        if longest and gpu_memory.verdict(needed, smallest) == gpu_memory.FITS:
            aside = "the memory prediction says that it fits"
    else:
        message = f"needs {needed:.1f} GiB on each GPU, whose memory is not known, so this is not compared"
        if launch.wants_gpus:
            yield f.warning("PRE-MEMORY-UNSEEN", "GPU memory", message, gates.describe(launch.args))
    if case.action == "train" and case.cosmos:
        billions = plan.geometry.parameters / 1e9
        aside = f"the model has {billions:.1f} billion parameters" if billions < SMALL_MODEL else aside
        aside = "LoRA trains a small part of it" if plan.lora_rank else aside
        least = bundle.skill_info()["memory_minimums"]["full_sft_total_gb"]
        rule = "GPUs (rule of thumb for full fine-tuning of 8B models)"
        yield from gates.check_total(gpus, launch.args.nodes, least, rule, aside)
    yield from _host_memory(launch, plan)


def assumed(case) -> tuple[int, int]:
    """(vision, text) tokens of a sample nobody has seen: a question about the clip that is to be looked at, else about
    ten seconds of 1920x1080 at 30 frames/s. Raises Failure for impossible vision settings."""
    height, width, total, fps = 1080, 1920, 300, 30.0
    try:
        clip = case("media") if case.action == "inference" else ""
        if clip and Path(clip).is_file():
            facts = media.probe(clip)
            height, width, total, fps = facts.height, facts.width, facts.frames, facts.fps
        options, patch = vt.VisionOptions.from_spec(case.full), vt.patch_size(case.model)
        if total == 1:
            return vt.image_tokens(height, width, options, patch), 500
        frames = vt.frame_count(total, fps, options)
        return vt.video_tokens(height, width, frames, options, patch), 500
    except f.Failure as failure:
        if failure.findings[0].id.startswith("SPEC-"):
            raise
        return 4096, 500  # the path's check says what is wrong with the clip


def _host_memory(launch, plan) -> Iterator[f.Finding]:
    """What is offloaded, and the frames that loaders hold ready, against this machine's memory."""
    case = launch.case
    loaders = case(LOADERS) * (case(AHEAD) or 2) * batch_gib(case) if case.action == "train" else 0.0
    needed = (gpu_memory.host_states(plan) + loaders) * launch.gpus_per_node
    launch.result["prediction"]["host_gib"] = round(needed, 1)
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / gpu_memory.GIB
    if launch.platform == "local" and needed > 0.9 * host:
        message = f"got {host:.0f} GiB, expected {needed:.0f} (loaders {loaders * launch.gpus_per_node:.0f})"
        fix = "--set train.train_policy.dataloader_prefetch_factor=1" if loaders else "--set train.fsdp_offload=false"
        yield f.error("PRE-HOST-MEMORY", "host memory", message, fix)


def _fit(launch, plan, needed: float, gib: float, count: int) -> Iterator[f.Finding]:
    terms = ", ".join(f"{name} {size:g}" for name, size in gpu_memory.terms(plan).items())
    verdict = gpu_memory.verdict(needed, gib)
    launch.result["prediction"]["verdict"] = verdict
    message = f"{verdict}: {needed:.1f} GiB of {gib:.1f} at {plan.tokens} tokens x {plan.batch} ({terms})"
    if verdict == gpu_memory.FITS:
        yield f.info("PRE-MEMORY", "GPU memory", message)
        return
    change = gpu_memory.cheapest_fix(plan, gib, count, launch.case.token_side**2)
    least = gpu_memory.total(dataclasses.replace(plan, tokens=0, vision_tokens=0, loss_tokens=0))
    certain = launch.result["prediction"]["measured"] or least > gib
    kind = f.error if verdict == gpu_memory.DOES_NOT_FIT and certain else f.warning
    then = f"; with the fix {change[1]:.1f} GiB" if change else "; no change of the spec is enough: take larger GPUs"
    yield kind("PRE-MEMORY", "GPU memory", message + then, change[0] if change else "")


def checkpoint_gib(case) -> tuple[int, float]:
    """(how many checkpoints are kept, GiB of one): what is resumed from and the exported model, a fifth to spare."""
    plan = gpu_memory.of_spec(case, 1, 1, 1) if case.action in ("train", "grpo") else None
    if plan is None or not case("train.ckpt.enable_checkpoint"):
        return 0, 0.0
    made = max(1, math.ceil(case.steps / case.save_interval)) if case.steps and case.save_interval else math.inf
    exported = plan.trained * (4 if plan.lora_rank else 2)
    kept = min(made, case("train.ckpt.max_keep") or 1)
    return kept, (4 * plan.master * plan.trained + exported) * 1.2 / gpu_memory.GIB
