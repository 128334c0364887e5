"""Many records at once: whole lines of an annotation file as a table, where each of them is a
conversation about one medium. Enter at `read`.

Large files say the same of thousands of records, one a line. Arrow reads such lines several times
as fast as Python does, and `records.parse` looks at every conversation once, whatever number of
records have it. What Arrow refuses (text that is no JSON, a key that stands twice, half of a
surrogate pair) and what only single records can be wrong in (ids, names of files, rates) is left
to the reader of single records, which says what it is and where.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.records import MOST_FPS, medium_of_file, parse, times_among
from cosmos_reason.data.samples import Media, Sample

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as arrow

# Arrow calls itself once for each level of a value, until its stack ends; Python's decoder refuses
# a thousand levels. A line of fewer characters or brackets than this has less.
MOST_LEVELS = 500
SEVERAL_MEDIA = {"videos", "images"}


@dataclass(frozen=True)
class RecordTable:
    """Records in the order of the file, in which the first of them is number `index`. `media` and
    `talks` hold each once, in order of appearance; the arrays say of each record which it has, and
    its video_fps (0: not given)."""

    index: int
    ids: list[str]
    media: list[Media]
    medium_numbers: np.ndarray
    video_fps: np.ndarray
    # The first record that has these turns and this reasoning, and what is wrong with them:
    # check -> message.
    talks: list[tuple[Sample, dict[str, str]]]
    talk_numbers: np.ndarray | None

    def __len__(self) -> int:
        return len(self.ids)


def read(lines: str, comma: str, index: int, reads_talks: bool = True) -> RecordTable | None:
    """Return the records of whole lines, which all begin with a brace and end with another, `comma`
    ("" but in arrays) and a line break; None where they are not alike. Who asks for ids and media
    alone is spared the conversations (`reads_talks`)."""
    columns = _columns(lines, comma)
    if columns is None or times_among(tuple(columns)) or SEVERAL_MEDIA & columns.keys():
        return None
    ids = columns["id"].to_pylist()
    kinds = [kind for kind in ("video", "image") if columns[kind].null_count < len(ids)]
    rates = columns["video_fps"].drop_null().to_numpy()
    # Comparisons are false for NaN, which Arrow reads as Python does.
    if not all(ids) or len(kinds) != 1 or not ((rates > 0) & (rates < MOST_FPS)).all():
        return None
    files = columns[kinds[0]].dictionary_encode()
    media = [medium_of_file(kinds[0], name) for name in files.dictionary.to_pylist()]
    if files.null_count or any(medium is None or is_folder for medium, is_folder in media):
        return None
    talks, talk_numbers = [], None
    if reads_talks:
        reasoning = columns["reasoning"]
        conversations, talk_numbers, firsts = _conversations(columns["conversations"], reasoning)
        for row, conversation in zip(firsts, conversations, strict=True):
            record = {"id": ids[row], kinds[0]: media[0][0].path, "conversations": conversation}
            if reasoning[row].is_valid:
                record["reasoning"] = reasoning[row].as_py()
            tally = Tally()
            sample = parse(index + row, record, tally)
            if sample is None:
                return None
            talks.append((sample, {check: message for check, (_, message) in tally.first.items()}))
    return RecordTable(
        index,
        ids,
        [medium for medium, _ in media],
        files.indices.to_numpy(),
        columns["video_fps"].fill_null(0.0).to_numpy(),
        talks,
        talk_numbers,
    )


def _columns(lines: str, comma: str) -> dict[str, arrow.Array] | None:
    """Return the columns of the lines by name; None where a line is not one record with turns that
    name who speaks, or holds what the decoder of single records would note."""
    import pyarrow as arrow
    from pyarrow import compute

    text = arrow.string()
    turn = arrow.struct([("from", text), ("value", text)])
    known = {"id": text, "video": text, "image": text, "reasoning": text}
    known |= {"video_fps": arrow.float64(), "conversations": arrow.list_(turn)}
    columns = columns_of(lines, comma, known)
    if columns is None:
        return None
    turns = columns["conversations"]
    said = turns.flatten()
    if turns.null_count or compute.min(compute.list_value_length(turns)).as_py() == 0:
        return None
    if any(column.null_count for column in (said, said.field("from"), said.field("value"))):
        return None
    return columns


def columns_of(
    lines: str, comma: str, known: dict[str, arrow.DataType]
) -> dict[str, arrow.Array] | None:
    """Return the columns of whole lines by name, of those that are `known` also where no line has
    one; None where a line is not one record, or holds what the decoder of single records would
    note."""
    import pyarrow as arrow
    from pyarrow import json

    # Without the commas, JSON has a line break behind a brace and before another only where a
    # record ends: where all breaks are such, and as many as the records, each line is one record.
    count = lines.count("\n")
    end = f"}}{comma}\n"
    between = re.search(rf"{end}[ \t]*{{", lines)
    breaks = lines.count(between.group()) if between else 0
    if not (lines.startswith("{") and lines.endswith(end)) or breaks != count - 1:
        return None
    single = lines.split("\n")
    if max(map(len, single)) > MOST_LEVELS and any(
        line.count("[") + line.count("{") > MOST_LEVELS for line in single
    ):
        return None
    # A blank for each comma: texts of one length are replaced in a third less time.
    data = lines.replace(end, f"}}{' ' * len(comma)}\n").encode()
    try:
        table = json.read_json(
            io.BytesIO(data),
            json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            json.ParseOptions(explicit_schema=arrow.schema(known.items())),
        )
    except arrow.ArrowInvalid:
        return None
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    is_whole = len(table) == count and not any(map(_holds_a_constant, columns.values()))
    return columns if is_whole else None


def _holds_a_constant(column: arrow.Array) -> bool:
    """Return whether a number in it, however deep, is NaN or infinite."""
    from pyarrow import compute, types

    if types.is_struct(column.type):
        return any(map(_holds_a_constant, column.flatten()))
    if types.is_list(column.type):
        return _holds_a_constant(column.flatten())
    return (
        types.is_floating(column.type) and compute.all(compute.is_finite(column)).as_py() is False
    )


def _conversations(
    turns: arrow.Array, reasoning: arrow.Array
) -> tuple[list[list[dict[str, str]]], np.ndarray, list[int]]:
    """Return (the conversations that differ, or whose reasoning does, in order of appearance; for
    each record, the place of its own in that list; for each in the list, its first record)."""
    import numpy as np

    said = turns.flatten()
    speakers = said.field("from").dictionary_encode()
    texts = said.field("value").dictionary_encode()
    # One number per turn, 0 being none, and one per conversation, made of those of its turns.
    spoken = texts.indices.to_numpy().astype(np.int64) * len(speakers.dictionary)
    spoken += speakers.indices.to_numpy() + 1
    most = len(texts.dictionary) * len(speakers.dictionary) + 1
    counts = turns.value_lengths().to_numpy()
    begins = np.cumsum(counts) - counts
    numbers = reasoning.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64) + 1
    for place in range(counts.max()):
        has_turn = counts > place
        turn = np.zeros(len(counts), np.int64)
        turn[has_turn] = spoken[begins[has_turn] + place]
        _, firsts, numbers = np.unique(
            numbers * most + turn, return_index=True, return_inverse=True
        )
    order = np.argsort(firsts)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    firsts = firsts[order]
    written = []
    names, words = speakers.dictionary.to_pylist(), texts.dictionary.to_pylist()
    of_speaker, of_text = speakers.indices.to_pylist(), texts.indices.to_pylist()
    for begin, count in zip(begins[firsts].tolist(), counts[firsts].tolist(), strict=True):
        places = range(begin, begin + count)
        written.append([{"from": names[of_speaker[n]], "value": words[of_text[n]]} for n in places])
    return written, ranks[numbers], firsts.tolist()
