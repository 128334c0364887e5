"""Parts of clips that the rows of a table name by their times: cut out where that is asked for
(`--column start=NAME --column end=NAME`), told where it is not."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from cosmos_reason import answers
from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import raw_clips
from cosmos_reason.data.columns import PART_ROLES, Cells
from cosmos_reason.data.source_files import Frames, Held, Medium
from cosmos_reason.media import cut
from cosmos_reason.media.files import VIDEO_SUFFIXES

# What the columns of the first and of the last second are called.
PAIRS = (
    ("start", "end"),
    ("start_time", "end_time"),
    ("time_start", "time_end"),
    ("start_timestamp", "stop_timestamp"),
    ("start_timestamp", "end_timestamp"),
    ("start_sec", "end_sec"),
    ("start_second", "end_second"),
    ("clip_start", "clip_end"),
    ("video_start", "video_end"),
    ("begin", "end"),
)
# What a column of both is called, a list of two.
BOTH = ("timestamp", "timestamps", "segment", "time_span", "span", "clip_span")
# (kind, medium) of a row
Named = tuple[str, Medium | None]


def of_rows(
    media: list[Named], cells: Cells, columns: dict[str, str], problems: list[f.Finding]
) -> list[Named]:
    """The media of rows with the parts of those whose columns of times are given. Times that nobody
    gave join the `problems`, and so do those that cannot be read."""
    given = [columns[role] for role in PART_ROLES if role in columns]
    if not given:
        problems += _left_whole(media, cells, columns)
        return media
    if len(given) == 1:
        message = f"got {given[0]} alone, expected the columns of the first and the last second"
        raise f.bad_input("USAGE", "--column", message, "--column start=NAME --column end=NAME")
    starts, ends = _times(cells, *given)
    refused: list[f.Finding] = []
    cut_out = []
    for number, (kind, medium) in enumerate(media):
        times = (starts[number], ends[number], f"{given[0]}#{number}")
        part = f.attempt(refused, _part, medium, *times) if medium else medium
        cut_out.append((kind, part))
    problems += refused[:1]
    return cut_out


def _part(medium: Medium, start: object, end: object, where: str) -> Medium:
    """The part of a clip, or the whole of it where a row has no times."""
    if start in (None, "") and end in (None, ""):
        return medium
    try:
        begins, ends = seconds(start), seconds(end)
    except ValueError:
        message = f"got {start!r} and {end!r}, expected seconds, or H:M:S"
        raise f.bad_input("BUILD-SPAN", where, message) from None
    if not 0 <= begins < ends:
        message = f"got a part from {start} to {end}, expected one that ends after it begins"
        raise f.bad_input("BUILD-SPAN", where, message)
    if isinstance(medium, Frames) or medium.suffix.lower() not in VIDEO_SUFFIXES:
        message = "got a part of pictures, expected one of a video file"
        raise f.bad_input("BUILD-SPAN", where, message)
    if isinstance(medium, Path):
        length = _length(medium)
        if not length:  # told as a clip that is missing, or does not open
            return medium
        if begins >= length:  # told as one that is missing
            return medium.with_name(
                f"{medium.name} ({length:g} seconds long) from {float(begins):g}"
            )
    name = f"{medium.stem}_{float(begins):g}-{float(ends):g}.mp4"
    whole = medium.key if isinstance(medium, Held) else str(medium)
    load = functools.partial(_cut, medium, name, begins, ends)
    return Held(f"{whole}/{name}", ".mp4", load, medium, (float(begins), float(ends)))


def _length(clip: Path) -> float:
    """Seconds of a clip; 0 for one that is not there or does not open."""
    try:
        return raw_clips.length_of(clip, "seconds") if clip.is_file() else 0
    except f.Failure:
        return 0


def _cut(medium: Path | Held, name: str, start: Fraction, end: Fraction) -> Path:
    loaded = medium.load() if isinstance(medium, Held) else medium
    if isinstance(loaded, bytes):
        key = hashlib.sha256(loaded).hexdigest()
        whole = raw_clips.place(key, f"whole{medium.suffix}")
        if not whole.is_file():
            with storage.whole_file(whole, "wb") as file:
                file.write(loaded)
        loaded = whole
    return raw_clips.cut_out(loaded, name, (start, end), "seconds")


def seconds(written: object) -> Fraction:
    """Seconds as a number, or as text: 83.5, "83.5", "1:23.5", "00:01:23.5". Raises ValueError."""
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise ValueError(written)
    total = Fraction(0)
    for part in str(written).split(":"):
        number = float(part)
        if not math.isfinite(number):
            raise ValueError(written)
        total = 60 * total + Fraction(number)
    return total.limit_denominator(cut.MOST)


def _left_whole(media: list[Named], cells: Cells, columns: dict[str, str]) -> list[f.Finding]:
    """What is said of rows with times: their clips are taken whole, which is an error where one
    clip has other labels at other times."""
    start, end = of_times(cells)
    if not start or columns["answer"] not in cells:
        return []
    starts, ends = _times(cells, start, end)
    rows = [row for row, value in enumerate(starts) if _are_times(value, ends[row])]
    rows = [row for row in rows if not _asks_times(row, cells, columns)]
    if not rows:
        return []
    first = rows[0]
    times = f"{start} {starts[first]}, {end} {ends[first]}"
    severity, wrong = f.WARNING, "clips are taken whole: cut them, unless that is done already"
    if "question" not in columns and _contradict(rows, media, cells, columns):
        severity, wrong = f.ERROR, "one clip has other labels at other times: cut the parts out"
    message = f"got rows about parts of clips ({times}), and {wrong}"
    fix = Fix(flags={"--column": [f"start={start}", f"end={end}"]})
    return [f.Finding("BUILD-SPAN", severity, start, message, fix, {"count": len(rows)})]


def of_times(names: Iterable[str]) -> tuple[str, str]:
    """The columns of the first and of the last second; "" without such a pair."""
    lowered = {name.lower(): name for name in names}
    for start, end in PAIRS:
        if {start, end} <= lowered.keys():
            return lowered[start], lowered[end]
    both = next((lowered[name] for name in BOTH if name in lowered), "")
    return both, both


def _times(cells: Cells, start: str, end: str) -> tuple[list, list]:
    """The first and the last second of every row, which may stand in one column as a list."""
    starts, ends = cells[start], cells[end]
    if start != end:
        return starts, ends
    pairs = [value if _is_pair(value) else (value, value) for value in ends]
    return [first for first, _ in pairs], [last for _, last in pairs]


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def _are_times(start: object, end: object) -> bool:
    try:
        return 0 <= seconds(start) < seconds(end)
    except ValueError:
        return False


def _asks_times(row: int, cells: Cells, columns: dict[str, str]) -> bool:
    """Whether the times of a row are what it is asked for."""
    question = cells[columns["question"]][row] if "question" in columns else ""
    answer = str(cells[columns["answer"]][row])
    return answers.question_type(str(question), answer) == "temporal"


def _contradict(rows: list[int], media: list[Named], cells: Cells, columns: dict[str, str]) -> bool:
    """Whether one clip has different labels."""
    given: dict[Medium | None, set[str]] = defaultdict(set)
    for row in rows:
        given[media[row][1]].add(str(cells[columns["answer"]][row]))
    return any(len(labels) > 1 for labels in given.values())
