"""Tokens that each record of a dataset costs under a spec, and what follows from them."""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import math
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cosmos_reason.base.files import read_json
from cosmos_reason.base.findings import Failure, Finding, bad_input
from cosmos_reason.estimate import text_tokens
from cosmos_reason.estimate.text_tokens import VISION_BLOCK
from cosmos_reason.media.files import LIST
from cosmos_reason.media.sampling import (
    FRAME_FACTOR,
    MIN_FRAMES,
    ImpossibleOptions,
    VisionOptions,
    frame_indices,
    image_tokens,
    patch_size,
    video_tokens,
)
from cosmos_reason.remote import model_names
from cosmos_reason.spec import actions
from cosmos_reason.spec.document import get, set_value
from cosmos_reason.spec.keys import BATCH, RESPONSE_MODE
from cosmos_reason.spec.prompts import ADDED, THINK_OF_LETTER

if TYPE_CHECKING:
    import pyarrow as arrow

Counts = text_tokens.Estimate | text_tokens.Tokenizer
Tables = tuple["arrow.Table", "arrow.Table"]  # clips, records
PIXEL_BYTES = 4 * 3  # float32 RGB, as media wait in host memory
FRAME_PIXEL_BYTES = 3  # as decoded frames are kept
TORCH_PREFETCH = 2  # batches ahead of each worker, when the spec does not say
# Of the tables beside the facts; those of an earlier version may have no others.
COLUMNS = {
    "clips_table": {"kind", "width", "height", "frames"},
    "records_table": {"id", "clips", "text_tokens"},
}


class RecordTokens(NamedTuple):
    """Tokens one record costs under a spec; `problem` is set, and `vision` 0, when its media cannot
    be sampled so."""

    id: str
    text: int
    vision: int
    frames: int
    problem: Finding | None = None

    @property
    def total(self) -> int:
        return self.text + self.vision


def tokens_for_spec(facts: Path | str | Tables, spec: dict) -> list[RecordTokens]:
    """Return tokens of every record of a dataset under a training or evaluation spec, in record
    order: with the spec's system prompt; reasoning counts when its response_mode trains on it, and
    the last answer unless it is to be generated. With the tokenizer that the facts were counted
    with, the number is the one that the embedded engine encodes.

    `facts` is the path of a dataset_facts.json, or its two tables (clips, records) in memory. Clips
    that could not be read count nothing: the dataset check reported them. Raises
    ImpossibleOptions.
    """
    clips, records = facts if isinstance(facts, tuple) else _read_tables(Path(facts))
    options = VisionOptions.from_spec(spec)
    named = actions.model_of(spec)
    patch = patch_size(named)
    counts = text_tokens.of_model(named)
    writes_times = model_names.known_family(named).writes_times
    cost_of = functools.cache(functools.partial(_clip_cost, options, patch, counts, writes_times))
    names = ("kind", "height", "width", "frames", "fps", "pictures")
    columns = [_column(clips, name) for name in names]
    costs = [cost_of(*clip) for clip in zip(*columns, strict=True)]
    rows = zip(
        *(records.column(name).to_pylist() for name in ("id", "text_tokens", "clips")), strict=True
    )
    found = []
    for (name, text, used), more in zip(rows, _more_text(records, spec, counts), strict=False):
        of_clips = [costs[clip] for clip in used]
        problem = next((cost for cost in of_clips if isinstance(cost, Finding)), None)
        vision = frames = 0
        if problem is None:
            vision = sum(tokens for tokens, _ in of_clips)
            frames = sum(sampled for _, sampled in of_clips)
        found.append(RecordTokens(name, text + more, vision, frames, problem))
    return found


def frames_that_fit(facts: Tables, rows: list[int], spec: dict, limit: int) -> tuple[str, int]:
    """Return (key, most frames) with which these rows of a dataset's two tables cost at most
    `limit` tokens; 0 when no number of frames does."""
    clips, records = facts
    options = VisionOptions.from_spec(spec)
    name = "nframes" if options.nframes else "max_frames"
    key = f"{options.table}.{name}"
    chosen = clips, records.take(rows)
    fewest = MIN_FRAMES // FRAME_FACTOR
    most = max(cost.frames for cost in tokens_for_spec(chosen, spec)) // FRAME_FACTOR
    tried = copy.deepcopy(spec)

    def is_too_long(pairs: int) -> bool:
        set_value(tried, key, pairs * FRAME_FACTOR)
        return any(cost.total > limit for cost in tokens_for_spec(chosen, tried))

    # Frames fit up to a number: the first that is too long lies behind the last that fits.
    first = bisect.bisect_left(range(fewest, most), True, key=is_too_long) + fewest
    return key, (first - 1) * FRAME_FACTOR if first > fewest else 0


def records_without_rate(facts: Path | str | Tables) -> dict[int, str]:
    """Return {row: id} of the records that have a clip and no video_fps; `facts` as for
    tokens_for_spec. None in facts of a version that did not note it."""
    clips, records = facts if isinstance(facts, tuple) else _read_tables(Path(facts))
    if "video_fps" not in records.column_names:
        return {}
    kinds = zip(_column(clips, "kind"), _column(clips, "pictures"), strict=True)
    # Of pictures another check says that they have no rate.
    are_clips = [kind != "image" and not pictures for kind, pictures in kinds]
    columns = (records.column(name).to_pylist() for name in ("id", "clips", "video_fps"))
    found = {}
    for row, (name, used, fps) in enumerate(zip(*columns, strict=True)):
        if not fps and any(are_clips[clip] for clip in used):
            found[row] = name
    return found


def records_of_pictures(facts: Path | str | Tables) -> list[str]:
    """Return ids of the records with a video that is given as pictures; `facts` as for
    tokens_for_spec."""
    clips, records = facts if isinstance(facts, tuple) else _read_tables(Path(facts))
    pictures = _column(clips, "pictures")
    rows = zip(_column(records, "id"), _column(records, "clips"), strict=True)
    return [name for name, used in rows if any(pictures[clip] for clip in used)]


def _column(table: arrow.Table, name: str) -> list:
    """Return a column of facts, of which those of an earlier version have fewer."""
    return table.column(name).to_pylist() if name in table.column_names else [0] * len(table)


def _more_text(records: arrow.Table, spec: dict, counts: Counts) -> Iterable[int]:
    """Return what each record's text costs more, or less, than its turns."""
    column = functools.partial(_column, records)
    changes = []
    # What the answer type adds to a question at most.
    answer_type = get(spec, "evaluation.answer_type")
    added = ADDED.get(answer_type, "")
    tags_answers = model_names.known_family(actions.model_of(spec)).tags_answers
    if answer_type == "reasoning" and tags_answers:
        added = ADDED["letter"] + THINK_OF_LETTER
    if added:
        changes.append([counts.text(added)] * len(records))
    if (get(spec, RESPONSE_MODE) or "answer") != "answer":
        changes.append(column("reasoning_tokens"))
    if "generation" in spec or get(spec, "train.train_policy.type") == "grpo":
        changes.append([-count for count in column("answer_tokens")])
    if prompt := get(spec, "train.train_policy.system_prompt") or get(
        spec, "dataset.system_prompt"
    ):
        cost = counts.system(prompt)
        changes.append([0 if own else cost for own in column("has_system")])
    return map(sum, zip(*changes, strict=True)) if changes else itertools.repeat(0)


def timestamp_tokens(indices: list[int], clip_fps: float, counts: Counts, frames: int = 2) -> int:
    """Return tokens of frame markers: per so many `frames` `<T seconds>` and two marks."""
    blocks = zip(indices[::frames], indices[frames - 1 :: frames], strict=True)
    return sum(counts.marker((first / clip_fps + last / clip_fps) / 2) for first, last in blocks)


class Room(NamedTuple):
    """What a sequence may hold: `limit` tokens, as `key` says, `generated` of which are kept for
    what a model writes."""

    key: str
    limit: int
    generated: int

    @property
    def most(self) -> int:
        """Return the most tokens of a prompt or a training sample."""
        return self.limit - self.generated

    def too_long(self, records: list[RecordTokens]) -> list[int]:
        """Return the rows of the records that do not fit."""
        return [row for row, record in enumerate(records) if record.total > self.most]

    def limit_for(self, records: list[RecordTokens]) -> int:
        """Return the limit with which the longest of the records fits, a multiple of 1024."""
        longest = max(record.total for record in records)
        return math.ceil((longest + self.generated) / 1024) * 1024


def room(action: str, value: Callable[[str], Any]) -> Room:
    """Return what a sequence may hold under a spec of `action`, whose keys have these values."""
    key, generated = actions.LENGTHS[action]
    return Room(key, value(key), value(generated) if generated else 0)


def loader_bytes(
    value: Callable[[str], Any], vision_tokens: int, patch: int, frames: int = FRAME_FACTOR
) -> int:
    """Return host memory of the batches that the loaders of one rank hold ready, when every sample
    has so many vision tokens, each of `frames` frames. `value` gives those of a spec's keys."""
    ahead = value("train.train_policy.dataloader_prefetch_factor") or TORCH_PREFETCH
    batches = value("train.train_policy.dataloader_num_workers") * ahead
    per_token = frames * (2 * patch) ** 2 * PIXEL_BYTES
    return batches * value(BATCH) * vision_tokens * per_token


def frame_bytes(patch: int, frames: int = FRAME_FACTOR) -> int:
    """Return host memory of the decoded frames behind one vision token of a clip."""
    return frames * (2 * patch) ** 2 * FRAME_PIXEL_BYTES


def _clip_cost(
    options: VisionOptions,
    patch: int,
    counts: Counts,
    writes_times: bool,
    kind: str | None,
    height: int,
    width: int,
    frames: int,
    fps: float,
    pictures: str,
) -> tuple[int, int] | Finding:
    """Return (tokens with their markers, frames), or the finding that says why the clip cannot be
    sampled."""
    if kind is None:
        return 0, 0
    try:
        if kind == "image":
            return image_tokens(height, width, options, patch) + VISION_BLOCK, 1
        indices = frame_indices(frames, fps, options, pictures == LIST)
        markers = VISION_BLOCK
        if writes_times:
            markers = timestamp_tokens(indices, fps, counts, options.family.frames_per_token)
        return video_tokens(height, width, len(indices), options, patch) + markers, len(indices)
    except ImpossibleOptions:
        raise
    except Failure as failure:
        return failure.findings[0]


def _read_tables(path: Path) -> Tables:
    import pyarrow.parquet as parquet

    facts = read_json(path)
    tables = []
    for key, columns in COLUMNS.items():
        try:
            table = parquet.read_table(path.parent / facts[key])
        except (OSError, KeyError, TypeError, ValueError) as problem:
            raise _other_facts(path, problem) from None
        missing = columns.difference(table.column_names)
        if missing:
            raise _other_facts(path, f"a {key} without {', '.join(sorted(missing))}")
        tables.append(table)
    return tuple(tables)


def _other_facts(path: Path, got: object) -> Failure:
    message = f"got {got}, expected the facts that check_dataset wrote"
    again = f"scripts/check_dataset.py ROOT --facts {shlex.quote(str(path))}"
    return bad_input("DATA-FACTS", path, message, again)
