"""Rules about the frames and pixels that a model sees."""

from __future__ import annotations

import math

from cosmos_reason.base.findings import ERROR, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.media import sampling
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import ANY, Case, Rule
from cosmos_reason.spec import document

PIXEL_SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width")


def sampled(case: Case, name: str):
    """Return the value of one of the action's sampling keys."""
    return case(case.vision + name)


def removed(case: Case, *names: str) -> Fix:
    """Return the fix that takes some of the action's sampling keys away."""
    return Fix(changes={case.vision + name: None for name in names})


def lowers_floor(case: Case) -> bool:
    """Return whether the engine reads max_pixels and no min_pixels: its own reader lowers the
    floor."""
    known = document.keys(case.action)
    engines = [known[case.vision + name]["x-engines"] for name in ("max_pixels", "min_pixels")]
    return case.engine in engines[0] and case.engine not in engines[1]


def pixel_conflict(case: Case) -> tuple[int, dict] | None:
    """Return the floor that max_pixels is below, and the changes that repair it; media of unknown
    kind count as clips."""
    sizes = {name: sampled(case, name) for name in PIXEL_SIZES}
    options = sampling.VisionOptions(**sizes, family=model_names.known_family(case.model))
    # Facts of images alone have no frames at all.
    only_images = document.get(case.facts or {}, "media.frames.max", 1) is None
    is_image = only_images or case("type") == "image"
    kind = "image" if is_image else "video"
    conflict = sampling.pixel_conflict(options, case.token_side // 2, 2, kind)
    if not conflict:
        return None
    floor, changes = conflict
    return floor, {case.vision + name: value for name, value in changes.items()}


def floor_of_frame(case: Case) -> int:
    return sampled(case, "min_pixels") or sampling.FRAME_MIN_TOKENS * case.token_side**2


def frames_in_budget(case: Case) -> Fix:
    """Return as many frames as the budget holds; where it holds none, the budget that they take."""
    fewest = {"nframes": 2, "max_frames": sampled(case, "min_frames") or sampling.MIN_FRAMES}
    counted = "nframes" if sampled(case, "nframes") else "max_frames"
    floor = 1.05 * floor_of_frame(case)
    most = int(sampled(case, "total_pixels") / floor) * 2
    if most >= fewest[counted]:
        return Fix(changes={case.vision + counted: most})
    needed = math.ceil(sampled(case, counted) * floor / 2)
    return Fix(changes={case.vision + "total_pixels": needed})


def floor_beyond_budget(case: Case):
    if all([sampled(case, "resized_height"), sampled(case, "resized_width")]):
        return None  # a size that is given has neither floor nor budget
    total = sampled(case, "total_pixels")
    frames = sampled(case, "nframes") or sampled(case, "max_frames")
    floor = floor_of_frame(case)
    if total and frames and frames > 2 * total / (1.05 * floor):
        return f"{frames} frames of at least {floor} pixels"
    return None


def fewer_frames(case: Case) -> int | None:
    """Return the most frames, below those asked for, that every clip has; none where a clip cannot
    be sampled at all."""
    # Frames come in pairs.
    asked = sampled(case, "nframes") or 0
    for frames in range(asked - 2, 0, -2):
        records = case.tokens_with({case.vision + "nframes": frames})
        if not any(record.problem for record in records):
            return frames
    return None


def clips_too_short(case: Case):
    failing = [record for record in case.tokens if record.problem]
    if not failing:
        return None
    words = f"{len(failing)} of {len(case.tokens)} records, the first is {failing[0].id}: "
    return words + failing[0].problem.message, [record.id for record in failing]


def videos_of_pictures(case: Case):
    """Return the records that engine tao's evaluation cannot read."""
    if case.engine != "tao" or not case.facts:
        return None
    from cosmos_reason.estimate import record_tokens

    names = record_tokens.records_of_pictures(case.facts_path)
    words = f"{len(names)} of {case.facts['records']} records have a video of pictures"
    return names and (words, names)


def records_without_rate(case: Case):
    """Return the records that the loader of engine tao ends at."""
    by_fps = case.has(case.vision + "fps") and not case.has(case.vision + "nframes")
    if not by_fps or case.engine != "tao" or not case.facts:
        return None
    from cosmos_reason.estimate import record_tokens

    unrated = record_tokens.records_without_rate(case.facts_path)
    words = f"{len(unrated)} of {case.facts['records']} records give no video_fps"
    return unrated and (words, list(unrated.values()))


RULES = (
    # qwen-vl-utils: "Only accept either `fps` or `nframes`".
    Rule(
        "SPEC-FRAMES-ONE", ERROR, ANY, "{vision}.fps",
        "nframes is written too; exactly one of them",
        lambda case: case.has(case.vision + "fps") and case.has(case.vision + "nframes"),
        fix=lambda case: removed(case, "nframes"),
    ),
    # The processor's own default is 2 frames for each second of a clip, however long it is.
    Rule(
        "SPEC-FRAMES-NONE", ERROR, ANY, "{vision}.nframes", "expected nframes or fps",
        lambda case: case.reads_frames and not case.has(case.vision + "fps")
        and not case.has(case.vision + "nframes"),
        fix=8,
    ),
    Rule(
        "SPEC-FRAMES-BOUNDS", WARNING, ANY, "{vision}.max_frames",
        "min_frames and max_frames belong to fps, not to nframes",
        lambda case: case.has(case.vision + "nframes")
        and any(case.has(case.vision + name) for name in ("min_frames", "max_frames")),
        fix=lambda case: removed(case, "min_frames", "max_frames"),
    ),
    Rule(
        "SPEC-FRAMES-ORDER", ERROR, ANY, "{vision}.min_frames", "must not exceed max_frames",
        lambda case: (most := sampled(case, "max_frames"))
        and (sampled(case, "min_frames") or 0) > most and f"max_frames is {most}",
        fix=lambda case: sampled(case, "max_frames"),
    ),
    Rule(
        "SPEC-VISION-PIXELS", ERROR, ANY, "{vision}.max_pixels",
        "below min_pixels, which when absent is 128 tokens for a frame of a clip and 4 for an "
        "image; every record would fail",
        lambda case: not lowers_floor(case) and (conflict := pixel_conflict(case))
        and f"min_pixels is {conflict[0]}",
        fix=lambda case: Fix(changes=pixel_conflict(case)[1]),
    ),
    # A frame gets max(min(ceiling, 2 total_pixels / frames), 1.05 min_pixels): the budget gives
    # way to the floor without a word.
    Rule(
        "SPEC-PIXELS-BUDGET", WARNING, ANY, "{vision}.total_pixels",
        "the floor per frame wins: more tokens than budgeted",
        floor_beyond_budget, fix=frames_in_budget,
    ),
    # qwen-vl-utils takes the size only where it has both, and says nothing of one alone.
    Rule(
        "SPEC-RESIZE-PAIR", ERROR, ANY, "{vision}.resized_height",
        "resized_height and resized_width go together",
        lambda case: case.has(case.vision + "resized_height")
        != case.has(case.vision + "resized_width"),
        fix=lambda case: 448
        if case.has(case.vision + "resized_width")
        else Fix(changes={case.vision + "resized_width": 448}),
    ),
    # The sampler raises unless 2 <= frames <= those of the clip.
    Rule(
        "SPEC-FRAMES-CLIP", ERROR, ANY, "{vision}.nframes",
        "these clips cannot be sampled so; check_dataset.py --spec names their records",
        clips_too_short, fix=fewer_frames,
    ),
    Rule(
        "SPEC-PICTURES", ERROR, "evaluate", "dataset.annotation_path",
        "engine tao evaluates clips only; engine transformers takes pictures too",
        videos_of_pictures, fix=Fix(flags={"--engine": "transformers"}),
    ),
    Rule(
        "SPEC-FPS-RATES", ERROR, "train", "{vision}.fps",
        "engine tao samples by fps only where records give video_fps; rebuild the data with "
        "build_dataset, which writes the rates, or take a number of frames",
        records_without_rate,
        fix=lambda case: Fix(changes={case.vision + "nframes": 8})
        | removed(case, "fps", "min_frames", "max_frames"),
    ),
)  # fmt: skip
