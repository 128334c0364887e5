"""What training or evaluating on a dataset with a spec will meet: tokens, frames, steps, host
memory. Enter at `predict`."""

from __future__ import annotations

import os
import shlex
from functools import partial

from cosmos_reason.base.fix import Fix
from cosmos_reason.data.facts import spread, tables
from cosmos_reason.data.survey import Survey
from cosmos_reason.estimate import record_tokens, steps
from cosmos_reason.media import archives, sampling
from cosmos_reason.remote import model_names, s3
from cosmos_reason.spec import document
from cosmos_reason.spec.keys import RESPONSE_MODE


def predict(dataset: Survey, action: str, spec: dict, engine: str, is_trained: bool = True) -> dict:
    """Return what `action` with `spec` (defaults filled in) will meet: tokens and frames per
    sample; for training optimizer steps and memory of loading, when the data are those it trains
    on.

    Samples that do not fit or cannot be sampled become problems of `dataset`, with the override
    that mends them.
    """
    room = record_tokens.room(action, partial(document.get, spec))
    costs = record_tokens.tokens_for_spec(tables(dataset), spec)
    too_long = room.too_long(costs)
    if too_long:
        _tell_lengths(dataset, costs, too_long, room, spec)
    _check_sampling(dataset, costs, spec)
    if sampling.VisionOptions.from_spec(spec).fps:
        check_rates(dataset, is_gate=action == "train" and engine == "tao")
    totals = [cost.total for cost in costs]
    vision_totals = [cost.vision for cost in costs]
    prediction = {
        "limit": room.most,
        "tokens": spread(totals, ("p50", "p95", "max")),
        "vision_tokens": spread(vision_totals, ("p50", "p95", "max")),
        "frames": spread(cost.frames for cost in costs if cost.frames),
        "too_long": len(too_long),
    }
    if action == "train" and is_trained:
        prediction |= _loading(dataset, spec, engine, max(vision_totals, default=0))
    return prediction


def _tell_lengths(
    dataset: Survey,
    costs: list[record_tokens.RecordTokens],
    too_long: list[int],
    room: record_tokens.Room,
    spec: dict,
) -> None:
    """Report the rows with more tokens than there is room for, and what makes room: fewer frames
    where some number of them fits all, else a longer sequence."""
    needed = room.limit_for(costs)
    advice = f"fewer pixels cost less, and {room.key}={needed} takes all"
    dataset.tally.fixes["DATA-TOKENS"] = Fix(changes={room.key: needed})
    name, frames = record_tokens.frames_that_fit(tables(dataset), too_long, spec, room.most)
    if frames:
        dataset.tally.fixes["DATA-TOKENS"] = Fix(changes={name: frames})
        advice = f"at most {name.rpartition('.')[2]}={frames} fits"
        advice += f", {room.key}={needed} takes all frames"
    for row in too_long:
        message = f"got {costs[row].total} tokens, expected at most {room.most} ({advice})"
        dataset.tally.add("DATA-TOKENS", dataset.indices[row], costs[row].id, message)


def _check_sampling(dataset: Survey, costs: list[record_tokens.RecordTokens], spec: dict) -> None:
    """Report clips that cannot be sampled as `spec` says, and lists of more pictures than it
    samples, all of which are shown; propose the number of frames that every clip has."""
    for index, cost in zip(dataset.indices, costs, strict=True):
        if cost.problem:
            dataset.tally.add(cost.problem.id, index, cost.id, cost.problem.message)
    options = sampling.VisionOptions.from_spec(spec)
    most = options.nframes or options.max_frames or sampling.MAX_FRAMES
    longer = {}
    lengths = []  # of clips; one of a single frame has none to offer
    for number, report in dataset.reports.items():
        if not report.facts or report.facts.kind != "video":
            continue
        if not report.facts.shows_all:
            lengths.append(report.facts.frames)
        elif report.facts.frames > most:
            longer[number] = report.facts.frames
    for row, used in enumerate(dataset.used()):
        frames = [longer[number] for number in used if number in longer]
        if frames:
            message = f"got a list of {frames[0]} pictures, expected at most {most} frames"
            dataset.tally.add("DATA-FRAMES-ALL", dataset.indices[row], dataset.ids[row], message)
    shortest = min((length for length in lengths if length > 1), default=0)
    if options.nframes and 1 < shortest < options.nframes:
        even = {f"{options.table}.nframes": shortest // 2 * 2}
        dataset.tally.fixes["DATA-CLIP-TOO-SHORT"] = Fix(changes=even)


def check_rates(dataset: Survey, is_gate: bool) -> None:
    """Find records without the rate of their clips, for a spec that samples by fps: errors when
    `is_gate`, as in training with engine tao, whose loader ends there. build_dataset writes the
    rates it measures."""
    for row, name in record_tokens.records_without_rate(tables(dataset)).items():
        message = "got no video_fps, which sampling by fps needs"
        dataset.tally.add("DATA-FPS-MISSING", dataset.indices[row], name, message)
    if is_gate:
        dataset.tally.errors.add("DATA-FPS-MISSING")
    folder = str(dataset.annotations.parent)
    media_path = str(dataset.media_path)
    beside = os.path.dirname(media_path) if archives.is_archive(media_path) else media_path
    if not s3.is_uri(dataset.source) and beside == folder:
        output = f"{os.path.abspath(folder)}-with-rates"
        command = ["scripts/build_dataset.py", str(dataset.annotations), "-o", output]
        dataset.tally.fixes["DATA-FPS-MISSING"] = Fix(command=shlex.join(command))


def _loading(dataset: Survey, spec: dict, engine: str, vision_tokens: int) -> dict:
    """Return optimizer steps per epoch by number of GPUs, and the host memory of the batches one
    rank loads ahead when every sample has so many vision tokens."""
    mode = document.get(spec, RESPONSE_MODE)
    reasoned = [row for row, count in enumerate(dataset.reasoning_tokens) if count]
    if mode == "answer":
        for row in reasoned:
            message = "got reasoning beside the answer, which response_mode answer leaves out"
            dataset.tally.add("DATA-REASONING", dataset.indices[row], dataset.ids[row], message)
    records = steps.trained_records(len(dataset.ids), len(reasoned), mode)
    parallel = spec["policy"]["parallelism"]
    of_replica = max(parallel["dp_shard_size"], 1) * max(parallel["dp_replicate_size"], 1)
    # The embedded engine reads the mesh of one replica; how many start is cosmos-rl's own key.
    replicas = 1 if engine == "transformers" else parallel["n_init_replicas"]
    ranks = steps.ranks(replicas, of_replica)
    batch = spec["train"]["train_batch_per_replica"]
    drop_last = spec["train"]["train_policy"]["dataloader_drop_last"]
    if records and not steps.steps_per_epoch(records, batch, ranks, drop_last):
        message = (
            f"got {records} records for {ranks} ranks x batch {batch}, "
            "expected at least one full batch"
        )
        dataset.tally.add("DATA-STEPS-NONE", 0, "-", message)
    by_gpus = {}
    for gpus in (1, 2, 4, 8):
        by_gpus[str(gpus)] = steps.steps_per_epoch(records, batch, gpus, drop_last)
    model = spec["policy"]["model_name_or_path"]
    patch = sampling.patch_size(model)
    frames = model_names.known_family(model).frames_per_token
    value = partial(document.get, spec)
    ready = record_tokens.loader_bytes(value, vision_tokens, patch, frames)
    return {
        "steps_per_epoch": by_gpus,
        "prefetch_bytes_per_rank": ready,
    }
