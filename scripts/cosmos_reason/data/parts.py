"""Parts of clips that the rows of a table name by their times: cut out where that is asked for
(`--column start=NAME --column end=NAME`), told where it is not. Enter at `of_rows`."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import answers
from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import answer_forms, raw_clips
from cosmos_reason.data.columns import PART_ROLES, TIME, Cells, cell_text, meaning, unused
from cosmos_reason.data.items import UNNAMED, Row, by_row
from cosmos_reason.data.source_files import Folder, Frames, Held, Medium
from cosmos_reason.media import cut
from cosmos_reason.media import files as media
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
PAST, OUTSIDE = "BUILD-SPAN-PAST", "BUILD-SPAN-OUTSIDE"
UNREAD, WHOLE = "unread", "whole"  # of rows: what they are told as
ROUNDING = Fraction(1, 20)  # s behind the end that nobody means: times have one decimal
# (kind, medium) of a row
Named = tuple[str, Medium | None]


class Span(NamedTuple):
    """A part of a clip: from `begin` to before `end`, in seconds or, where `counts` says so, in
    frames."""

    begin: Fraction
    end: Fraction
    counts: str = "seconds"


def of_rows(
    rows: list[Row],
    media: list[Named],
    cells: Cells,
    columns: dict[str, str],
    files: Folder,
    is_skipping: bool,
    problems: list[f.Finding],
) -> list[Named]:
    """The media of rows with the parts of those whose columns of times are given; None for a row
    without one. Times that nobody gave join the `problems`, and so do those that cannot be read or
    lie outside of their clip, which is a warning when such rows are left out (`is_skipping`).
    """
    unit, given = _declared(columns)
    if not given:
        problems += _left_whole(rows, media, cells, columns)
        return media
    starts, ends = _times(cells, *given)
    told: dict[str, list[tuple[Row, str]]] = defaultdict(list)
    cut_out: list[Named] = []
    for row, start, end, (kind, medium) in zip(rows, starts, ends, media, strict=True):
        part = medium
        if medium == UNNAMED or medium is None:
            pass
        elif start in (None, "") and end in (None, ""):
            told[WHOLE].append((row, "got no times, so the whole clip is taken"))
        else:
            part = _part(medium, start, end, unit, row, files, told)
        cut_out.append((kind, part))
    some_stay = any(medium for _, medium in cut_out)
    problems += _told(told, is_skipping, some_stay)
    return cut_out


def _declared(columns: dict[str, str]) -> tuple[str, list[str]]:
    """(unit, the columns of the begin and the end); none without any. Raises Failure for one
    alone, and for two units."""
    given = {role: columns[role] for role in PART_ROLES if columns.get(role)}
    units = {role.partition("_")[2] for role in given}
    if given and (len(given) != 2 or len(units) > 1):
        names = " and ".join(f"{role}={name}" for role, name in given.items())
        message = (
            f"got {names}, expected the columns of the begin and of the end in one unit: start and "
            "end (seconds), start_ms and end_ms, or start_frame and end_frame"
        )
        raise f.bad_input("USAGE", "--column", message)
    return "".join(units), [*given.values()]


def _told(
    told: dict[str, list[tuple[Row, str]]], is_skipping: bool, some_stay: bool
) -> list[f.Finding]:
    """What is said of rows as findings."""
    fix = Fix(flags={"--skip-missing": True}) if some_stay and not is_skipping else Fix()
    kinds = {
        UNREAD: ("BUILD-SPAN", f.ERROR, Fix()),
        WHOLE: ("BUILD-SPAN", f.WARNING, Fix()),
        OUTSIDE: (OUTSIDE, f.WARNING if is_skipping else f.ERROR, fix),
        PAST: (PAST, f.WARNING, Fix()),
    }
    return [
        by_row(id, severity, told[kind], fix)
        for kind, (id, severity, fix) in kinds.items()
        if told[kind]
    ]


def _part(
    medium: Medium,
    start: object,
    end: object,
    unit: str,
    row: Row,
    files: Folder,
    told: dict[str, list[tuple[Row, str]]],
) -> Medium | None:
    """The part of a clip that a row is about; None where what is told says why not."""
    try:
        span = _span(start, end, unit)
    except ValueError as problem:
        told[UNREAD].append((row, str(problem)))
        return None
    if isinstance(medium, Frames) or medium.suffix.lower() not in VIDEO_SUFFIXES:
        told[UNREAD].append((row, "got a part of pictures, expected one of a video file"))
        return None
    name = f"{medium.stem}_{float(span.begin):g}-{float(span.end):g}{unit}.mp4"
    whole = medium.key if isinstance(medium, Held) else str(medium)
    if isinstance(medium, Path):
        try:
            if not medium.is_file():  # told as one that is missing
                return medium
            times, verdict, message = _within(medium, span)
        except f.Failure:  # told as one that does not open
            return medium
        if message:
            told[verdict].append((row, message))
        if verdict == OUTSIDE:
            return None
        load = functools.partial(raw_clips.cut_out, medium, name, times, "seconds")
    elif span.counts == "frames":
        message = "got frames of a clip that is packed or on the Hub, expected seconds, or the file"
        told[UNREAD].append((row, message))
        return None
    else:
        times = span.begin, span.end
        load = functools.partial(_cut, medium, name, span, row, files)
    return Held(f"{whole}/{name}", ".mp4", load, medium, (float(times[0]), float(times[1])))


def _span(start: object, end: object, unit: str) -> Span:
    """Raises ValueError for times that cannot be read, or that are none."""
    try:
        if unit == "":
            span = Span(seconds(start), seconds(end))
        elif unit == "ms":
            span = Span(_number(start) / 1000, _number(end) / 1000)
        else:
            span = Span(_number(start), _number(end), "frames")
    except ValueError:
        kinds = {"": "seconds, or H:M:S", "ms": "milliseconds", "frame": "numbers of frames"}
        raise ValueError(f"got {start!r} and {end!r}, expected {kinds[unit]}") from None
    if not 0 <= span.begin < span.end:
        message = f"got a part from {start} to {end}, expected one that ends after it begins"
        raise ValueError(message)
    return span


def _number(written: object) -> Fraction:
    if ":" in str(written):
        raise ValueError(written)
    return seconds(written)


def _within(clip: Path, span: Span) -> tuple[tuple[Fraction, Fraction], str, str]:
    """((first, last second), verdict, what is to be said) of a part: "" where it is in its clip,
    PAST where it ends behind it, OUTSIDE where that is no part of this clip. Raises Failure for a
    file that is no clip.

    It is none where less than half of it is there (the label would be about what is not shown), or
    where it is longer than the whole clip by more than a second (the clip would be taken whole)."""
    facts, shown = media.probe_video(clip) if span.counts == "frames" else (None, None)
    length = Fraction(raw_clips.length_of(clip, "seconds")).limit_denominator(cut.MOST)
    begin, end = span.begin, span.end
    if shown is not None:
        begin, end = (shown.at(min(int(edge), 2 * facts.frames)) for edge in (begin, end))
    inside = min(end, length) - begin
    if end <= length + ROUNDING:
        return (begin, end), "", ""
    written = f"{float(span.begin):g} to {float(span.end):g}"
    unit = "s" if span.counts == "seconds" else span.counts
    message = f"got {written} {unit} of {clip.name}, which is {float(length):.4g} s long"
    if 2 * inside < end - begin or end - begin > length + 1:
        message += f", expected a part of it: {max(float(inside), 0):.3g} s of it are there"
        return (begin, end), OUTSIDE, message
    return (begin, end), PAST, f"{message}: cut at its end, after {float(inside):.3g} s"


def _cut(medium: Held, name: str, span: Span, row: Row, files: Folder) -> Path:
    """The part of a clip whose length is known when it is had. Raises Failure."""
    loaded = medium.load()
    if isinstance(loaded, bytes):
        key = hashlib.sha256(loaded).hexdigest()
        whole = raw_clips.place(key, f"whole{medium.suffix}")
        if not whole.is_file():
            with storage.whole_file(whole, "wb") as file:
                file.write(loaded)
        loaded = whole
    times, verdict, message = _within(loaded, span)
    if verdict == OUTSIDE:
        raise f.bad_input(OUTSIDE, row.where, message)
    if verdict == PAST:
        files.past.append((row, message))
    return raw_clips.cut_out(loaded, name, times, "seconds")


def cut_at_the_end(files: Folder) -> list[f.Finding]:
    """What is to be said of the parts that were cut while the dataset was written."""
    return [by_row(PAST, f.WARNING, files.past)] if files.past else []


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


def _left_whole(
    rows: list[Row], media: list[Named], cells: Cells, columns: dict[str, str]
) -> list[f.Finding]:
    """What is said of rows with times: their clips are taken whole, which is an error where one
    clip has other labels at other times."""
    start, end = of_times(cells)
    if columns["answer"] not in cells:
        return []
    if not start:
        return _contradictions(rows, media, cells, columns)
    starts, ends = _times(cells, start, end)
    timed = [place for place, value in enumerate(starts) if _are_times(value, ends[place])]
    timed = [place for place in timed if not _asks_times(place, cells, columns)]
    if not timed:
        return []
    times = f"{start} {starts[timed[0]]}, {end} {ends[timed[0]]}"
    severity, wrong = f.WARNING, "clips are taken whole: cut them, unless that is done already"
    if _contradict(timed, media, cells, columns):
        severity, wrong = f.ERROR, "one clip has other labels at other times: cut the parts out"
    message = f"got rows about parts of clips ({times}), and {wrong}"
    fix = Fix(flags={"--column": [f"start={start}", f"end={end}"]})
    return [f.Finding("BUILD-SPAN", severity, start, message, fix, {"count": len(timed)})]


def _contradictions(
    rows: list[Row], media: list[Named], cells: Cells, columns: dict[str, str]
) -> list[f.Finding]:
    """An error where one clip has several answers to one question, and columns without a role that
    may be the times of each."""
    times = [name for name in unused(cells, columns) if meaning(name, cells[name]) == TIME]
    if not times or not _contradict(range(len(rows)), media, cells, columns):
        return []
    listed = " and ".join(times)
    message = (
        f"got one clip with several answers to one question, and {listed}, which no role uses: cut "
        "the parts out (--column start=NAME --column end=NAME in seconds, start_ms and end_ms, "
        f"start_frame and end_frame), or build a table without {listed}"
    )
    return [f.error("BUILD-SPAN", times[0], message, columns=times)]


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


def _contradict(
    rows: Iterable[int], media: list[Named], cells: Cells, columns: dict[str, str]
) -> bool:
    """Whether one clip has different answers to one question."""
    asked = cells.get(columns.get("question", ""))
    given: dict[tuple, set[str]] = defaultdict(set)
    for row in rows:
        question = cell_text(asked[row]) if asked else ""
        answer = cell_text(cells[columns["answer"]][row])
        given[media[row][1], question].add(answer_forms.alike(answer))
    return any(len(labels) > 1 for labels in given.values())
