"""How many frames are sampled from a clip, to what size they are resized, and how many tokens they cost.

The arithmetic is that of qwen-vl-utils 0.0.14 (`smart_nframes`, `fetch_video`, `fetch_image`), the pre-processor of
every engine this project drives. A token covers `patch_size * merge_size` pixels square and two frames.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.findings import Failure, Finding, bad_input, did_you_mean
from cosmos_reason.record_formats import THINK
from cosmos_reason.storage import read_json

FRAME_FACTOR = 2
DEFAULT_FPS, MIN_FRAMES, MAX_FRAMES = 2.0, 4, 768
IMAGE_MIN_TOKENS, IMAGE_MAX_TOKENS = 4, 16384
FRAME_MIN_TOKENS, FRAME_MAX_TOKENS = 128, 768
SEQUENCE_TOKENS, SEQUENCE_SHARE = 128000, 0.9  # the video budget when `total_pixels` is not given
MAX_ASPECT_RATIO = 200
TURN_OVERHEAD = 5  # <|im_start|> role \n ... <|im_end|> \n


@dataclass(frozen=True)
class VisionOptions:
    """A spec's `custom.vision` or `vision` table, whose name is `table`. Pixels are per frame, `total_pixels` per
    clip."""

    nframes: int | None = None
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None
    table: str = field(default="custom.vision", repr=False, compare=False)

    @classmethod
    def from_spec(cls, spec: dict) -> VisionOptions:
        """Those of a training (`custom.vision`) or an evaluation (`vision`) spec; raises Failure as `from_table`."""
        name = "vision" if "vision" in spec else "custom.vision"
        return cls.from_table(spec.get("vision") or spec.get("custom", {}).get("vision") or {}, name)

    @classmethod
    def from_table(cls, table: dict, name: str = "custom.vision") -> VisionOptions:
        """Raises Failure for an unknown key, a value that is not a positive number, or `fps` beside `nframes`."""
        known = {option.name for option in fields(cls)} - {"table"}
        for key, value in table.items():
            if key not in known:
                raise bad_input("SPEC-VISION-KEY", key, f"got an unknown vision option.{did_you_mean(key, known)}")
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value < math.inf):
                raise bad_input("SPEC-VISION-VALUE", key, f"got {value!r}, expected a positive number")
        options = cls(**table, table=name)
        if options.nframes is not None and options.fps is not None:
            message = "got both fps and nframes, expected exactly one of them"
            raise bad_input("SPEC-VISION-FPS-NFRAMES", name, message, f"--unset {name}.nframes")
        return options


def frame_count(total_frames: int, video_fps: float, options: VisionOptions) -> int:
    """Frames sampled from a clip: even, at least 2. Raises Failure when the clip is too short for the options."""
    if total_frames < 1 or not video_fps > 0:
        message = f"got {total_frames} frames at {video_fps} fps, expected a clip with frames and a frame rate"
        raise bad_input("DATA-CLIP-EMPTY", "clip", message)
    if options.nframes is not None:
        count = round(options.nframes / FRAME_FACTOR) * FRAME_FACTOR
    else:
        lowest = math.ceil(_given(options.min_frames, MIN_FRAMES) / FRAME_FACTOR) * FRAME_FACTOR
        highest = _given(options.max_frames, min(MAX_FRAMES, total_frames)) // FRAME_FACTOR * FRAME_FACTOR
        wanted = total_frames / video_fps * _given(options.fps, DEFAULT_FPS)
        count = math.floor(min(max(wanted, lowest), highest, total_frames) / FRAME_FACTOR) * FRAME_FACTOR
    if not FRAME_FACTOR <= count <= total_frames:
        message = f"got {count} frames to sample from {total_frames}, expected {FRAME_FACTOR}..{total_frames}"
        fix = f"--set {options.table}.nframes={max(total_frames // 2 * 2, 2)}"
        raise bad_input("DATA-CLIP-TOO-SHORT", "clip", message, fix)
    return int(count)


def frame_indices(total_frames: int, video_fps: float, options: VisionOptions) -> list[int]:
    """Indices of the sampled frames, evenly spread from the first to the last; raises Failure as `frame_count`."""
    import numpy as np

    count = frame_count(total_frames, video_fps, options)
    # torch.linspace works in float32 from both ends; half-way positions would round differently in float64.
    last = np.float32(total_frames - 1)
    offsets = np.arange(count, dtype=np.float32)
    rising = last / np.float32(count - 1) * offsets
    positions = np.where(offsets < count // 2, rising, last - rising[::-1])
    return np.rint(positions).astype(int).tolist()


def frame_size(
    height: int, width: int, nframes: int, options: VisionOptions, patch: int, merge: int = 2
) -> tuple[int, int]:
    """(height, width) in pixels of each of `nframes` sampled frames after the official resize."""
    _refuse_conflict(options, patch, merge, "video")
    factor = patch * merge
    token = factor * factor
    min_pixels = _given(options.min_pixels, FRAME_MIN_TOKENS * token)
    total_pixels = _given(options.total_pixels, SEQUENCE_TOKENS * token * SEQUENCE_SHARE)
    # The floor wins over the budget: many frames can exceed `total_pixels`.
    cap = max(min(FRAME_MAX_TOKENS * token, total_pixels / nframes * FRAME_FACTOR), int(min_pixels * 1.05))
    return _fitted(height, width, factor, min_pixels, min(_given(options.max_pixels, cap), cap), options)


def image_size(height: int, width: int, options: VisionOptions, patch: int, merge: int = 2) -> tuple[int, int]:
    """(height, width) in pixels of a still image after the official resize."""
    _refuse_conflict(options, patch, merge, "image")
    factor = patch * merge
    low = _given(options.min_pixels, IMAGE_MIN_TOKENS * factor**2)
    high = _given(options.max_pixels, IMAGE_MAX_TOKENS * factor**2)
    return _fitted(height, width, factor, low, high, options)


def pixel_conflict(options: VisionOptions, patch: int, merge: int, kind: str) -> tuple[int, dict[str, int]] | None:
    """The floor that `max_pixels` is below, which the official resize refuses, and the option that repairs it. A given
    `min_pixels` is the floor, else 128 tokens for each frame of a "video" and 4 for an "image"."""
    token = (patch * merge) ** 2
    least, most = IMAGE_MIN_TOKENS * token, IMAGE_MAX_TOKENS * token if kind == "image" else math.inf
    floor = _given(options.min_pixels, least if kind == "image" else FRAME_MIN_TOKENS * token)
    high = _given(options.max_pixels, most)
    if high >= floor or None not in (options.resized_height, options.resized_width):
        return None
    return math.ceil(floor), {"min_pixels": least} if high >= least else {"max_pixels": math.ceil(floor)}


def _refuse_conflict(options: VisionOptions, patch: int, merge: int, kind: str) -> None:
    if conflict := pixel_conflict(options, patch, merge, kind):
        floor, ((name, value),) = conflict[0], conflict[1].items()
        message = f"got max_pixels {options.max_pixels} below min_pixels {floor}, expected it at or above"
        fix = f"--set {options.table}.{name}={value}"
        raise bad_input("SPEC-VISION-PIXELS", f"{options.table}.max_pixels", message, fix)


def video_tokens(height: int, width: int, nframes: int, options: VisionOptions, patch: int) -> int:
    """Vision tokens of a clip sampled at `nframes` frames (timestamps and vision markers not included)."""
    resized = frame_size(height, width, nframes, options, patch)
    return math.ceil(nframes / FRAME_FACTOR) * math.prod(resized) // (2 * patch) ** 2


def image_tokens(height: int, width: int, options: VisionOptions, patch: int) -> int:
    """Vision tokens of a still image (vision markers not included)."""
    return math.prod(image_size(height, width, options, patch)) // (2 * patch) ** 2


def _fitted(height: int, width: int, factor: int, low: float, high: float, options: VisionOptions) -> tuple[int, int]:
    if options.resized_height is not None and options.resized_width is not None:
        height, width = options.resized_height, options.resized_width
        low, high = IMAGE_MIN_TOKENS * factor**2, IMAGE_MAX_TOKENS * factor**2
    return smart_resize(height, width, factor, low, high)


def smart_resize(height: int, width: int, factor: int, min_pixels: float, max_pixels: float) -> tuple[int, int]:
    """Nearest size with sides divisible by `factor` and area within the bounds, keeping the aspect ratio."""
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        message = f"got {width}x{height}, expected an aspect ratio of at most {MAX_ASPECT_RATIO}"
        raise bad_input("DATA-MEDIA-RATIO", "media", message)
    resized = tuple(max(factor, round(side / factor) * factor) for side in (height, width))
    if math.prod(resized) > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        resized = tuple(math.floor(side / shrink / factor) * factor for side in (height, width))
    elif math.prod(resized) < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        resized = tuple(math.ceil(side * grow / factor) * factor for side in (height, width))
    if 0 in resized:
        message = f"got {width}x{height}, too narrow for max_pixels {max_pixels:.0f}: a side would become 0"
        raise bad_input("DATA-MEDIA-RATIO", "media", message)
    return resized


def _given(value, default):
    return default if value is None else value


class RecordTokens(NamedTuple):
    """Tokens one record costs under a spec; `problem` is set, and `vision` 0, when its media cannot be sampled so."""

    id: str
    text: int
    vision: int
    frames: int
    problem: Finding | None = None

    @property
    def total(self) -> int:
        return self.text + self.vision


def tokens_for_spec(facts, spec: dict) -> list[RecordTokens]:
    """Tokens of every record of a dataset under a training or evaluation spec, in record order: with the spec's system
    prompt; reasoning counts when its response_mode trains on it, and the last answer unless it is to be generated.

    `facts` is the path of a dataset_facts.json, or its two tables (clips, records) in memory. Clips that could not be
    read count nothing: the dataset check reported them. Raises Failure for bad vision options.
    """
    clips, records = facts if isinstance(facts, tuple) else _read_tables(Path(facts))
    options = VisionOptions.from_spec(spec)
    named = model_of(spec)
    patch = patch_size(named)
    cost_of = functools.cache(functools.partial(_clip_cost, options, patch))
    columns = [clips.column(name).to_pylist() for name in ("kind", "height", "width", "frames", "fps")]
    costs = [cost_of(*clip) for clip in zip(*columns, strict=True)]
    rows = zip(*(records.column(name).to_pylist() for name in ("id", "text_tokens", "clips")), strict=True)
    return [
        _record_cost(name, text + more, [costs[clip] for clip in used])
        for (name, text, used), more in zip(rows, _more_text(records, spec, named), strict=False)
    ]


def model_of(spec: dict) -> str:
    """The model that a spec of any action names; "" when it names none."""
    model = spec.get("model", {})
    named = spec.get("policy", {}).get("model_name_or_path") or model.get("model_name") or model.get("model_path")
    return named or spec.get("model_path") or ""


def _more_text(records, spec: dict, model: str) -> Iterable[int]:
    """What each record's text costs more, or less, than its turns."""

    def column(name: str) -> list:  # facts of an earlier version have fewer
        return records.column(name).to_pylist() if name in records.column_names else [0] * len(records)

    changes, count_text = [], text_counter(model)[0]
    if spec.get("evaluation", {}).get("answer_type") == "reasoning":
        changes.append([count_text(THINK)] * len(records))
    mode = spec.get("custom", {}).get("train_dataset", {}).get("response_mode", "answer")
    if mode != "answer":
        changes.append(column("reasoning_tokens"))
    if "generation" in spec:
        changes.append([-count for count in column("answer_tokens")])
    prompt = spec.get("train", {}).get("train_policy", {}).get("system_prompt")
    if prompt := prompt or spec.get("dataset", {}).get("system_prompt"):
        cost = count_text(prompt) + TURN_OVERHEAD
        changes.append([0 if own else cost for own in column("has_system")])
    return map(sum, zip(*changes, strict=True)) if changes else itertools.repeat(0)


def patch_size(model: str) -> int:
    """Pixels per side of a vision patch: what the model folder says, else 14 for the Qwen2 families, else 16."""
    config = Path(model) / "config.json"
    if model and os.path.isfile(config):
        return read_json(config).get("vision_config", {}).get("patch_size", 16)
    return 14 if any(name in model.lower() for name in ("reason1", "qwen2")) else 16


@functools.lru_cache(maxsize=2)
def text_counter(model: str) -> tuple[Callable[[str], int], str]:
    """A function from text to its number of tokens, and its name: the tokenizer in the model's folder when there is
    one, else an estimate that leans high for English prose (4.3 bytes per token with the Qwen tokenizers)."""
    tokenizer = Path(model) / "tokenizer.json"
    if not (model and tokenizer.is_file()):
        return (lambda text: -(-len(text.encode()) // 3)), "estimate: UTF-8 bytes / 3"
    from tokenizers import Tokenizer

    try:
        encoder = Tokenizer.from_file(str(tokenizer))
    except Exception as problem:  # the library raises no narrower one
        raise bad_input("CKPT-TOKENIZER", tokenizer, f"got {problem}, expected a fast tokenizer's file") from None
    return (lambda text: len(encoder.encode(text, add_special_tokens=False).ids)), f"tokenizer: {tokenizer}"


def timestamp_tokens(indices: list[int], video_fps: float) -> int:
    """Tokens of Qwen3-VL's frame markers: per two frames `<T seconds>` (one token per character of T) and two marks."""
    pairs = zip(indices[::2], indices[1::2], strict=True)
    return sum(len(f"{(first + second) / 2 / video_fps:.1f}") + 3 + 2 for first, second in pairs)


def _clip_cost(options: VisionOptions, patch: int, kind, height, width, frames, fps) -> tuple[int, int] | Finding:
    """(tokens with their markers, frames), or the finding that says why the clip cannot be sampled."""
    if kind is None:
        return 0, 0
    try:
        if kind == "image":
            return image_tokens(height, width, options, patch) + 2, 1
        indices = frame_indices(frames, fps, options)
        markers = timestamp_tokens(indices, fps) if patch == 16 else 2
        return video_tokens(height, width, len(indices), options, patch) + markers, len(indices)
    except Failure as failure:
        if failure.findings[0].id.startswith("SPEC-"):
            raise
        return failure.findings[0]


def _record_cost(name: str, text: int, costs: list) -> RecordTokens:
    for cost in costs:
        if isinstance(cost, Finding):
            return RecordTokens(name, text, 0, 0, cost)
    return RecordTokens(name, text, sum(tokens for tokens, _ in costs), sum(frames for _, frames in costs))


def _read_tables(path: Path):
    import pyarrow.parquet as parquet

    facts = read_json(path)
    try:
        return tuple(parquet.read_table(path.parent / facts[key]) for key in ("clips_table", "records_table"))
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise bad_input("DATA-FACTS", path, f"got {problem}, expected the facts that check_dataset wrote") from None
