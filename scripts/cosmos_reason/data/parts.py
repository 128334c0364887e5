"""Parts of clips that the rows of a table name by their times: cut out where that is asked for
(`--column start=NAME --column end=NAME`). Enter at `of_rows`."""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.base import progress
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.column_words import LENGTHS, MINUTES, UNIT_WORDS, words_of
from cosmos_reason.data.items import UNNAMED, Named, Row, Table, by_row
from cosmos_reason.data.roles import Cells, Column
from cosmos_reason.data.source_files import Folder, Frames, Held, Medium
from cosmos_reason.media import cut
from cosmos_reason.media import files as media_files
from cosmos_reason.media.files import VIDEO_SUFFIXES

SECONDS = str | int | float | decimal.Decimal | datetime.time  # what a cell has them as
# How a message calls the units of times that a flag declares.
UNITS = {"": "seconds, or H:M:S", "ms": "milliseconds", "frame": "numbers of frames"}
MOST = 90000  # of the denominators that times have, as media.cut has them
MANY = 10  # rows of which some may lie within their clips in a wrong unit
MOST_MEASURED = 1000  # rows whose clips are looked at to prove a unit
PAST, OUTSIDE = "BUILD-SPAN-PAST", "BUILD-SPAN-OUTSIDE"
UNREAD, WHOLE, SHORT = "unread", "whole", "short"  # of rows: what they are told as
ROUNDING = Fraction(1, 20)  # s behind the end that nobody means: times have one decimal
DECIMAL_COMMA = re.compile(r"(\d+),(\d+)")
THOUSANDS = re.compile(r"-?[1-9]\d{0,2},\d{3}")


class Span(NamedTuple):
    """A part of a clip: from `begin` to before `end`, in seconds or, where `counts` says so, in
    frames."""

    begin: Fraction
    end: Fraction
    counts: str = "seconds"


def of_rows(
    table: Table,
    media: list[Named],
    files: Folder,
    is_skipping: bool,
    window: float,
    problems: list[f.Finding],
) -> list[Named]:
    """Return the media of rows with the parts of those whose columns of times are declared; None
    for a row without one. Of a `window` (seconds, 0 for none) each part is as long, around the
    middle of what its row names. Times that cannot be read or lie outside of their clip join the
    `problems`, a warning when such rows are left out (`is_skipping`)."""
    edges = _declared(table.columns)
    rows, unit = table.rows, edges[0].unit
    starts, ends = times_of(table.cells, edges[0].name, edges[1].name)
    wrong, other = _other_meaning(edges)
    if wrong and (other == unit or proved_unit(media, starts, ends) != unit):
        message = (
            f"got {wrong}, against the word of its name: a column that holds them needs another "
            "name, and --convert makes them of others"
        )
        fix = _replacing(edges, other) if other != unit else Fix()
        problems.append(f.error("BUILD-SPAN", edges[-1].name, message, fix))
    told: dict[str, list[tuple[Row, str]]] = defaultdict(list)
    cut_out: list[Named] = []
    named = zip(rows, starts, ends, media, strict=True)
    bar = progress.bar(len(rows), "look at times", unit="row", is_quick=True)
    for row, start, end, (kind, medium) in named:
        bar.update()
        part = medium
        if medium == UNNAMED or medium is None:
            pass
        elif start in (None, "") and end in (None, ""):
            told[WHOLE].append((row, "got no times, so the whole clip is taken"))
        else:
            part = _part(medium, start, end, unit, window, row, files, told)
        cut_out.append((kind, part))
    bar.close()
    fix = Fix()
    if told[OUTSIDE] and not is_skipping:
        if any(medium for _, medium in cut_out):
            fix = Fix(flags={"--skip-missing": True})
        # One row outside is a wrong row; where most of them are, the unit may be another. Of few
        # rows all have to be: nearly every time fits its clip as a number of frames.
        outside = len(told[OUTSIDE])
        are_most = outside == len(rows) or (2 * outside > len(rows) >= MANY)
        proved = proved_unit(media, starts, ends) if are_most else None
        if proved is not None and proved != unit:
            row, message = told[OUTSIDE][0]
            told[OUTSIDE][0] = row, f"{message}; all rows fit their clips as {UNITS[proved]} only"
            fix = _replacing(edges, proved)
    kinds = {
        UNREAD: ("BUILD-SPAN", f.ERROR, Fix()),
        WHOLE: ("BUILD-SPAN", f.WARNING, Fix()),
        SHORT: ("BUILD-SPAN", f.WARNING, Fix()),
        OUTSIDE: (OUTSIDE, f.WARNING if is_skipping else f.ERROR, fix),
        PAST: (PAST, f.WARNING, Fix()),
    }
    for kind, (id, severity, way_out) in kinds.items():
        if told[kind]:
            problems.append(by_row(id, severity, told[kind], way_out))
    return cut_out


def proved_unit(media: list[Named], starts: Sequence, ends: Sequence) -> str | None:
    """Return the one unit in which every part lies within its clip and shows a frame or more; None
    where several units fit, or none, or a clip is not here to be measured."""
    fitting = set(UNITS)
    for (_, medium), start, end in list(zip(media, starts, ends, strict=True))[:MOST_MEASURED]:
        if start in (None, "") and end in (None, ""):
            continue
        if not isinstance(medium, Path) or not medium.is_file():
            return None
        try:
            facts, _ = media_files.probe_video(medium)
        except f.Failure:  # told as one that does not open
            return None
        for unit in list(fitting):
            try:
                begin, stop, counts = read_span(start, end, unit)
            except ValueError:
                fitting.remove(unit)
                continue
            if counts == "frames":
                is_within = stop <= facts.frames
            else:
                is_within = stop <= Fraction(facts.seconds) + ROUNDING
                is_within &= (stop - begin) * Fraction(facts.fps or 1) >= 1
            if not is_within:
                fitting.remove(unit)
    return fitting.pop() if len(fitting) == 1 else None


def _replacing(edges: tuple[Column, Column], unit: str) -> Fix:
    """Return how the flags say another unit; nothing where no flag said the columns."""
    if any(edge.source != "--column" for edge in edges):
        return Fix()
    written = [f"--column {shlex.quote(f'{edge.written}={edge.name}')}" for edge in edges]
    others = [edge._replace(unit=unit) for edge in edges]
    new = [f"--column {shlex.quote(f'{edge.written}={edge.name}')}" for edge in others]
    return Fix(command=f"replace {' '.join(written)} with {' '.join(new)}")


def _declared(chosen: list[Column]) -> tuple[Column, Column]:
    """Return the columns of the begin and of the end. Raises Failure for one alone, and for two
    units."""
    given = [one for role in ("start", "end") for one in chosen if one.role == role and one.name]
    if len(given) != 2 or given[0].unit != given[1].unit:
        names = " and ".join(f"{one.written}={one.name}" for one in given)
        message = (
            f"got {names}, expected the columns of the begin and of the end in one unit: start and "
            "end (seconds), start_ms and end_ms, or start_frame and end_frame"
        )
        raise f.bad_input("USAGE", "--column", message)
    return given[0], given[1]


def _other_meaning(edges: tuple[Column, Column]) -> tuple[str, str]:
    """Return (what columns are declared to be against the words of their names, the unit that these
    say); "" where they agree."""
    first, last = edges
    for one in edges:
        if MINUTES & words_of(one.name):
            return f"{one.name} as {UNITS[first.unit]}, and no minutes or hours", first.unit
    if LENGTHS & words_of(last.name):
        return f"{last.name} as the times at which parts end, and no lengths", first.unit
    for unit, words in UNIT_WORDS.items():
        named = [one.name for one in edges if words & words_of(one.name)]
        if named and unit != first.unit:
            return f"{' and '.join(named)} as {UNITS[first.unit]}", unit
    return "", first.unit


def _part(
    medium: Medium,
    start: object,
    end: object,
    unit: str,
    window: float,
    row: Row,
    files: Folder,
    told: dict[str, list[tuple[Row, str]]],
) -> Medium | None:
    """Return the part of a clip that a row is about; None where what is told says why not."""
    try:
        span = read_span(start, end, unit, may_be_moment=bool(window))
    except ValueError as problem:
        told[UNREAD].append((row, str(problem)))
        return None
    if isinstance(medium, Frames) or medium.suffix.lower() not in VIDEO_SUFFIXES:
        what = "pictures" if isinstance(medium, Frames) else f"a file {medium.suffix}"
        message = (
            f"got a part of {what}, expected one of a video file ({', '.join(VIDEO_SUFFIXES)}; "
            "--transcode DIR writes others anew)"
        )
        told[UNREAD].append((row, message))
        return None
    shown = span  # what the name of the part says
    if isinstance(medium, Path):
        try:
            if not medium.is_file():  # told as one that is missing
                return medium
            times, verdict, message = _within(medium, span)
        except f.Failure:  # told as one that does not open
            return medium
        if message:
            told[verdict].append((row, message))
        if verdict in (OUTSIDE, UNREAD):
            return None
        if window:
            length = Fraction(cut.length_of(medium, "seconds")).limit_denominator(MOST)
            if window > length + ROUNDING:
                message = f"got {medium.name}, which is {float(length):.4g} s long"
                told[OUTSIDE].append((row, f"{message}, expected {window:g} s or more (--window)"))
                return None
            if 0 < (seconds_named := float(times[1] - times[0])) < window - ROUNDING:
                message = f"got {seconds_named:.3g} s for parts of {window:g} s"
                told[SHORT].append((row, f"{message}: what is around it is shown too"))
            times = around(times, window, length)
            shown = Span(*times)
    elif span.counts == "frames":
        message = "got frames of a clip that is packed or on the Hub, expected seconds, or the file"
        told[UNREAD].append((row, message))
        return None
    elif window:
        message = "got a window for a clip that is packed or on the Hub, expected the file"
        told[UNREAD].append((row, message))
        return None
    else:
        times = shown.begin, shown.end
    # Milliseconds tell the parts of the longest recording apart.
    edges = "-".join(f"{round(float(edge), 3):.12g}" for edge in (shown.begin, shown.end))
    counted = "frame" if shown.counts == "frames" else ""  # else seconds, whatever the table has
    name = f"{medium.stem}_{edges}{counted}.mp4"
    if isinstance(medium, Path):
        whole, load = str(medium), functools.partial(cut.cut_out, medium, name, times, "seconds")
    else:
        whole, load = medium.key, functools.partial(_cut, medium, name, shown, row, files)
    return Held(f"{whole}/{name}", ".mp4", load, medium, (float(times[0]), float(times[1])))


def around(
    times: tuple[Fraction, Fraction], window: float, length: Fraction
) -> tuple[Fraction, Fraction]:
    """Return the `window` seconds around the middle of a part, moved to where a clip of this length
    has all of them."""
    begin, end = times
    wide = Fraction(window).limit_denominator(1000)
    begin = max(min((begin + end - wide) / 2, length - wide), Fraction(0))
    return begin, begin + wide


def read_span(start: object, end: object, unit: str, may_be_moment: bool = False) -> Span:
    """Raises ValueError for times that cannot be read, or that are none; a moment ends as it
    begins."""
    try:
        if unit == "":
            span = Span(seconds(start), seconds(end))
        elif unit == "ms":
            span = Span(_number(start) / 1000, _number(end) / 1000)
        else:
            span = Span(_number(start), _number(end), "frames")
            if not span.begin.denominator == span.end.denominator == 1:
                raise ValueError
    except ValueError:
        message = f"got {start!r} and {end!r}, expected {UNITS[unit]}"
        if any(THOUSANDS.fullmatch(str(edge).strip()) for edge in (start, end)):
            message += (
                "; the comma may part the thousands: write a point where it is a decimal one, or "
                "let --convert FILE.py do so (text.replace(',', '.'))"
            )
        raise ValueError(message) from None
    is_part = span.begin < span.end or (may_be_moment and span.begin == span.end)
    if not (span.begin >= 0 and is_part):
        message = f"got a part from {start} to {end}, expected one that ends after it begins"
        if 0 <= span.begin == span.end:
            message += " (--window SECONDS takes what is around a moment)"
        raise ValueError(message)
    return span


def _number(written: object) -> Fraction:
    if ":" in str(written):
        raise ValueError(written)
    return seconds(written)


def _within(clip: Path, span: Span) -> tuple[tuple[Fraction, Fraction], str, str]:
    """Return ((first, last second), verdict, what is to be said) of a part: "" where it is in its
    clip, PAST where it ends behind it, OUTSIDE where that is no part of this clip, UNREAD where it
    shows no frame. Raises Failure for a file that is no clip.

    It is none where less than half of it is there (the label would be about what is not shown), or
    where it is longer than the whole clip by more than a second (the clip would be taken whole)."""
    length = Fraction(cut.length_of(clip, "seconds")).limit_denominator(MOST)
    frames = cut.length_of(clip, "frames")
    begin, end = span.begin, span.end
    if span.counts == "frames":
        _, shown = media_files.probe_video(clip)
        begin, end = (shown.at(min(int(edge), 2 * frames)) for edge in (begin, end))
    elif begin < end and 2 * (end - begin) * frames < length:
        message = (
            f"got {float(begin):.6g} to {float(end):.6g} s of {clip.name}, less than half a frame "
            f"of {float(length / frames):.3g} s, expected seconds (spreadsheets write times as "
            "parts of a day: format the column as text)"
        )
        return (begin, end), UNREAD, message
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
    """Return the part of a clip whose length is known when it is had. Raises Failure."""
    loaded = medium.load()
    if isinstance(loaded, bytes):
        key = hashlib.sha256(loaded).hexdigest()
        whole = cut.place(key, f"whole{medium.suffix}")
        if not whole.is_file():
            with storage.whole_file(whole, "wb") as file:
                file.write(loaded)
        loaded = whole
    times, verdict, message = _within(loaded, span)
    if verdict in (OUTSIDE, UNREAD):
        raise f.bad_input(OUTSIDE if verdict == OUTSIDE else "BUILD-SPAN", row.where, message)
    if verdict == PAST:
        files.past.append((row, message))
    return cut.cut_out(loaded, name, times, "seconds")


def cut_at_the_end(files: Folder) -> list[f.Finding]:
    """Return what is to be said of the parts that were cut while the dataset was written."""
    past = sorted(files.past, key=lambda one: one[0].number)  # several were cut at once
    return [by_row(PAST, f.WARNING, past)] if past else []


def seconds(written: object) -> Fraction:
    """Return seconds as a number, a typed time of a table, or as text: 83.5, "83.5", "83,5",
    "1:23.5", "00:01:23,500". Raises ValueError, also for timecodes that end in frames or
    milliseconds, and for 1,234, whose comma may part the thousands."""
    if isinstance(written, datetime.timedelta):
        written = written.total_seconds()
    if isinstance(written, bool) or not isinstance(written, SECONDS):
        raise ValueError(written)
    total = Fraction(0)
    fields = str(written).strip().split(":")
    # -0:05 is no 5 s; Python reads 1_30 as 130.
    if (fields[1:] and fields[0].startswith("-")) or "_" in str(written):
        raise ValueError(written)
    if fields[1:] or not THOUSANDS.fullmatch(fields[0]):
        fields[-1] = DECIMAL_COMMA.sub(r"\1.\2", fields[-1])
    for place, text in enumerate(fields):
        number = float(text)
        # A fourth field counts frames, and one of 60 or more milliseconds: neither is H:M:S.
        is_whole = place == len(fields) - 1 or number.is_integer()
        is_clock = len(fields) <= 3 and (place == 0 or 0 <= number < 60)
        if not (math.isfinite(number) and is_whole and is_clock):
            raise ValueError(written)
        total = 60 * total + Fraction(number)
    return total.limit_denominator(MOST)


def times_of(cells: Cells, start: str, end: str) -> tuple[list, list]:
    """Return the first and the last second of every row, which may stand in one column as a
    list."""
    starts, ends = cells[start], cells[end]
    if start != end:
        return starts, ends
    pairs = [
        value if isinstance(value, list) and len(value) == 2 else (value, value) for value in ends
    ]
    return [first for first, _ in pairs], [last for _, last in pairs]
