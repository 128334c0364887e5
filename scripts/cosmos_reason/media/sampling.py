"""How many frames are sampled from a clip, to what size they are resized, and how many tokens they
cost.

The arithmetic is that of qwen-vl-utils 0.0.14 (`smart_nframes`, `fetch_video`, `fetch_image`), the
pre-processor of every engine this project drives, and for Cosmos3-Edge that of its own processor.
A token covers `patch_size * merge_size` pixels square and `frames_per_token` frames of the family:
two, of Edge one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from cosmos_reason.base.families import DEFAULT, Family
from cosmos_reason.base.findings import EXIT_BAD_INPUT, Failure, bad_input, did_you_mean, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.spec import actions, images, names

FRAME_FACTOR = 2
DEFAULT_FPS = 2.0
MIN_FRAMES = 4
MAX_FRAMES = 768
IMAGE_MIN_TOKENS, IMAGE_MAX_TOKENS = 4, 16384
FRAME_MIN_TOKENS, FRAME_MAX_TOKENS = 128, 768
SEQUENCE_TOKENS, SEQUENCE_SHARE = 128000, 0.9  # the video budget when `total_pixels` is not given
MAX_ASPECT_RATIO = 200
CLIP, MEDIUM = UNNAMED = ("clip", "media")  # what findings are about, whose name is not known here


class ImpossibleOptions(Failure):
    """The options of a spec suit no clip: what is wrong is the spec, not the medium looked at."""


def _impossible(id: str, where: str, message: str, fix: Fix | str = "") -> ImpossibleOptions:
    return ImpossibleOptions(error(id, where, message, fix), EXIT_BAD_INPUT)


@dataclass(frozen=True)
class VisionOptions:
    """A spec's `custom.vision` or `vision` table, whose name is `table`. Pixels are per frame,
    `total_pixels` per clip."""

    nframes: int | None = None
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None
    burn_timestamps: bool | None = None  # None: the frames stay as they are
    table: str = field(default="custom.vision", repr=False, compare=False)
    family: Family = field(default=DEFAULT, repr=False, compare=False)  # which samples and bounds

    @classmethod
    def from_spec(cls, spec: dict) -> VisionOptions:
        """Return the options of a training (`custom.vision`) or an evaluation (`vision`) spec;
        raises as `from_table`. Names that only an image of NVIDIA's reads are passed over,
        and below `custom` those that are not like ours, which are somebody else's."""
        if "vision" in spec:
            theirs = images.settings("evaluate")
            table = spec["vision"] or {}
            ours = {key: value for key, value in table.items() if f"vision.{key}" not in theirs}
            return replace(cls.from_table(ours, "vision"), family=_family_of(spec))
        table = spec.get("custom", {}).get("vision") or {}
        ours = {
            key: value
            for key, value in table.items()
            if not names.is_free("train", f"custom.vision.{key}")
        }
        return replace(cls.from_table(ours, "custom.vision"), family=_family_of(spec))

    @classmethod
    def from_table(cls, table: dict, name: str = "custom.vision") -> VisionOptions:
        """Raises ImpossibleOptions for an unknown key, a value that is not a positive number, or
        `fps` beside `nframes`."""
        known = {option.name for option in fields(cls)} - {"table", "family"}
        table = dict(table)
        burns = table.pop("burn_timestamps", None)
        if burns not in (None, False, True):
            message = f"got {burns!r}, expected true or false"
            raise _impossible("SPEC-VISION-VALUE", "burn_timestamps", message)
        for key, value in table.items():
            if key not in known:
                raise _impossible(
                    "SPEC-VISION-KEY",
                    key,
                    f"got an unknown vision option.{did_you_mean(key, known)}",
                )
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value < math.inf):
                raise _impossible(
                    "SPEC-VISION-VALUE", key, f"got {value!r}, expected a positive number"
                )
        options = cls(**table, burn_timestamps=burns or None, table=name)
        if options.nframes is not None and options.fps is not None:
            message = "got both fps and nframes, expected exactly one of them"
            raise _impossible(
                "SPEC-VISION-FPS-NFRAMES", name, message, Fix(changes={f"{name}.nframes": None})
            )
        return options


def _family_of(spec: dict) -> Family:
    named = actions.model_of(spec)
    return model_names.known_family(named) if isinstance(named, str) else DEFAULT


def frame_count(
    total_frames: int, video_fps: float, options: VisionOptions, shows_all: bool = False
) -> int:
    """Return the frames sampled from a clip: a multiple of those of a token, and no fewer. Raises
    Failure when the clip is too short for the options. Of frames that were sampled before all are
    taken, the last twice to be a multiple."""
    factor = options.family.frames_per_token
    if total_frames < 1 or not video_fps > 0:
        message = (
            f"got {total_frames} frames at {video_fps} fps, "
            "expected a clip with frames and a frame rate"
        )
        raise bad_input("DATA-CLIP-EMPTY", CLIP, message)
    if shows_all:
        return math.ceil(total_frames / factor) * factor
    if options.nframes is not None:
        count = round(options.nframes / factor) * factor
    else:
        lowest = math.ceil(_given(options.min_frames, MIN_FRAMES) / factor) * factor
        highest = _given(options.max_frames, min(MAX_FRAMES, total_frames)) // factor * factor
        wanted = total_frames / video_fps * _given(options.fps, DEFAULT_FPS)
        count = math.floor(min(max(wanted, lowest), highest, total_frames) / factor) * factor
    if not factor <= count <= total_frames:
        message = f"got {total_frames} frames, expected {max(count, factor)} or more to sample"
        fix = Fix()
        if total_frames < factor:
            message += "; remove its records"
        else:
            fewer = total_frames // factor * factor
            fix = Fix(changes={f"{options.table}.nframes": fewer})
        raise bad_input("DATA-CLIP-TOO-SHORT", CLIP, message, fix)
    return int(count)


def frame_indices(
    total_frames: int, video_fps: float, options: VisionOptions, shows_all: bool = False
) -> list[int]:
    """Return indices of the sampled frames, evenly spread from the first to the last; raises
    Failure as `frame_count`. Of frames that were sampled before all, with one behind the last to be
    even."""
    import numpy as np

    count = frame_count(total_frames, video_fps, options, shows_all)
    if shows_all:
        return list(range(count))
    if options.family.clip_pixels:  # whose processor is numpy's linspace
        return np.linspace(0, total_frames - 1, count).round().astype(int).tolist()
    # torch.linspace works in float32 from both ends; half-way positions would round differently in
    # float64.
    last = np.float32(total_frames - 1)
    offsets = np.arange(count, dtype=np.float32)
    rising = last / np.float32(count - 1) * offsets
    positions = np.where(offsets < count // 2, rising, last - rising[::-1])
    return np.rint(positions).astype(int).tolist()


def frame_size(
    height: int, width: int, nframes: int, options: VisionOptions, patch: int, merge: int = 2
) -> tuple[int, int]:
    """Return (height, width) in pixels of each of `nframes` sampled frames after the official
    resize."""
    if options.family.clip_pixels:
        return _within(height, width, nframes, options, patch * merge, options.family.clip_pixels)
    _refuse_conflict(options, patch, merge, "video")
    factor = patch * merge
    token = factor * factor
    min_pixels = _given(options.min_pixels, FRAME_MIN_TOKENS * token)
    total_pixels = _given(options.total_pixels, SEQUENCE_TOKENS * token * SEQUENCE_SHARE)
    # The floor wins over the budget: many frames can exceed `total_pixels`.
    cap = max(
        min(FRAME_MAX_TOKENS * token, total_pixels / nframes * FRAME_FACTOR), int(min_pixels * 1.05)
    )
    return _fitted(
        height, width, factor, min_pixels, min(_given(options.max_pixels, cap), cap), options
    )


def image_size(
    height: int, width: int, options: VisionOptions, patch: int, merge: int = 2
) -> tuple[int, int]:
    """Return (height, width) in pixels of a still image after the official resize."""
    if options.family.image_pixels:
        return _within(height, width, 1, options, patch * merge, options.family.image_pixels)
    _refuse_conflict(options, patch, merge, "image")
    factor = patch * merge
    low = _given(options.min_pixels, IMAGE_MIN_TOKENS * factor**2)
    high = _given(options.max_pixels, IMAGE_MAX_TOKENS * factor**2)
    return _fitted(height, width, factor, low, high, options)


def pixel_conflict(
    options: VisionOptions, patch: int, merge: int, kind: str
) -> tuple[int, dict[str, int]] | None:
    """Return the floor that `max_pixels` is below, which the official resize refuses, and the
    option that repairs it. A given `min_pixels` is the floor, else 128 tokens for each frame of a
    "video" and 4 for an "image"."""
    if options.family.clip_pixels:
        return None  # its processor takes any bounds
    token = (patch * merge) ** 2
    least = IMAGE_MIN_TOKENS * token
    most = IMAGE_MAX_TOKENS * token if kind == "image" else math.inf
    floor = _given(options.min_pixels, least if kind == "image" else FRAME_MIN_TOKENS * token)
    high = _given(options.max_pixels, most)
    if high >= floor or None not in (options.resized_height, options.resized_width):
        return None
    if high >= least:
        return math.ceil(floor), {"min_pixels": least}
    return math.ceil(floor), {"max_pixels": math.ceil(floor)}


def _refuse_conflict(options: VisionOptions, patch: int, merge: int, kind: str) -> None:
    conflict = pixel_conflict(options, patch, merge, kind)
    if not conflict:
        return
    floor, changes = conflict
    message = (
        f"got max_pixels {options.max_pixels} below min_pixels {floor}, expected it at or above"
    )
    fix = Fix(changes={f"{options.table}.{name}": value for name, value in changes.items()})
    raise _impossible("SPEC-VISION-PIXELS", f"{options.table}.max_pixels", message, fix)


def video_tokens(height: int, width: int, nframes: int, options: VisionOptions, patch: int) -> int:
    """Return the vision tokens of a clip sampled at `nframes` frames (timestamps and vision markers
    not included)."""
    resized = frame_size(height, width, nframes, options, patch)
    frames = options.family.frames_per_token
    return math.ceil(nframes / frames) * math.prod(resized) // (2 * patch) ** 2


def image_tokens(height: int, width: int, options: VisionOptions, patch: int) -> int:
    """Return the vision tokens of a still image (vision markers not included)."""
    return math.prod(image_size(height, width, options, patch)) // (2 * patch) ** 2


def _within(
    height: int,
    width: int,
    nframes: int,
    options: VisionOptions,
    factor: int,
    bounds: tuple[int, int],
) -> tuple[int, int]:
    """Return the size where the processor bounds all frames together, as transformers' Cosmos3 Edge
    and GLM-4V do: `total_pixels` is the most of all frames, `min_pixels` and `max_pixels` are of
    each."""
    if options.resized_height is not None and options.resized_width is not None:
        height, width = options.resized_height, options.resized_width
    if min(height, width) < factor:  # it grows first
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    least = _given(options.min_pixels and options.min_pixels * nframes, bounds[0])
    most = _given(options.total_pixels, bounds[1])
    if options.max_pixels is not None:
        most = min(most, options.max_pixels * nframes)
    _refuse_ratio(height, width)
    resized = [round(side / factor) * factor for side in (height, width)]
    if nframes * math.prod(resized) > most:
        shrink = math.sqrt(nframes * height * width / most)
        resized = [
            max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)
        ]
    elif nframes * math.prod(resized) < least:
        grow = math.sqrt(least / (nframes * height * width))
        resized = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return resized[0], resized[1]


def _fitted(
    height: int, width: int, factor: int, low: float, high: float, options: VisionOptions
) -> tuple[int, int]:
    if options.resized_height is not None and options.resized_width is not None:
        height, width = options.resized_height, options.resized_width
        low, high = IMAGE_MIN_TOKENS * factor**2, IMAGE_MAX_TOKENS * factor**2
    return smart_resize(height, width, factor, low, high)


def _refuse_ratio(height: int, width: int) -> None:
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        message = f"got {width}x{height}, expected an aspect ratio of at most {MAX_ASPECT_RATIO}"
        raise bad_input("DATA-MEDIA-RATIO", MEDIUM, message)


def smart_resize(
    height: int, width: int, factor: int, min_pixels: float, max_pixels: float
) -> tuple[int, int]:
    """Return the nearest size with sides divisible by `factor` and area within the bounds, keeping
    the aspect ratio."""
    _refuse_ratio(height, width)
    resized = tuple(max(factor, round(side / factor) * factor) for side in (height, width))
    if math.prod(resized) > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        resized = tuple(math.floor(side / shrink / factor) * factor for side in (height, width))
    elif math.prod(resized) < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        resized = tuple(math.ceil(side * grow / factor) * factor for side in (height, width))
    if 0 in resized:
        message = (
            f"got {width}x{height}, too narrow for max_pixels {max_pixels:.0f}: "
            "a side would become 0"
        )
        raise bad_input("DATA-MEDIA-RATIO", MEDIUM, message)
    return resized


def _given(value, default):
    return default if value is None else value


def patch_size(model: str) -> int:
    """Return the pixels per side of a vision patch: what the model folder says, else that of its
    family."""
    known = model_names.known_family(model).patch
    config = model_names.read_table(Path(model) / "config.json") if model else {}
    vision = config.get("vision_config")
    written = vision.get("patch_size") if isinstance(vision, dict) else None
    return written if isinstance(written, int) and written > 0 else known
