"""Moments without an event. Rows of labelled events become questions whether an event happens; all
of them would be answered yes without moments at which it does not."""

from __future__ import annotations

import contextlib
import math
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base.texts import some
from cosmos_reason.data import column_words, parts, proposals
from cosmos_reason.data.formats import RATES
from cosmos_reason.data.items import UNNAMED, Reading, Row, Table
from cosmos_reason.data.roles import ABSENT, Column, cell_text
from cosmos_reason.data.turns import alike
from cosmos_reason.media import files as media

HAPPENS = "(happens)"  # stands for a column: whether the event of a row happens in its moment
MOST_NAMED = 3  # clips of one event
MOST_SHOWN = 12  # moments
MOST_TRIED = 2000  # rows for which a window is looked for
PER_SECOND = {"": 1, "ms": 1000}  # of frames the rate of the clip


Moment = tuple[Path, Fraction, Fraction]  # clip, begin, end (seconds)


class Clips(NamedTuple):
    """The seconds of clips and of a frame of each; whether their times count frames."""

    lengths: dict[Path, Fraction]
    frame: dict[Path, Fraction]
    counts_frames: bool


def asked(table: Table, reading: Reading, problems: list[f.Finding]) -> tuple[list[Row], Reading]:
    """Return the rows with HAPPENS and, behind them, rows of moments without an event: as many for
    each row as the flag says, each as long (as the window, where one is asked for), in a part of
    its clip that no row labels with its event, or of another clip where it has no room; and how to
    read them. The labels of a clip are taken to be all that happens in it: the flag declares that.

    Raises Failure where columns or question cannot be asked so.
    """
    rows, chosen, named = table.rows, table.columns, table.media[0]
    of_role = {one.role: one for one in reversed(chosen)}
    lacking = [role for role in ("start", "end", "answer") if role not in of_role]
    if lacking or "question" in of_role:
        flags = " ".join(f"--column {role}=COLUMN" for role in lacking)
        if not reading.question:
            name = of_role["answer"].name if "answer" in of_role else ""
            flags += f" --question 'Does this happen: {{{name or 'COLUMN'}}}?'"
        there = ", ".join(dict.fromkeys(str(name) for row in rows[:1] for name in row.values))
        message = "expected columns of events (answer) and of their begin and end, declared by "
        message += f"{flags} (there are {there}; start_ms, start_frame for other units)"
        if not lacking:
            column = of_role["question"].name
            message = f"got a column of questions, {column}, expected events to ask about"
        raise f.bad_input("USAGE", ABSENT, message)
    start, end, event = of_role["start"], of_role["end"], of_role["answer"]
    likely = event.name  # the column that a question can name
    if event.source == proposals.PROPOSED and f"{{{event.name}}}" not in reading.question:
        # Without a column of events every row is one event: then none may tell two apart, but for
        # those that a saved mapping leaves out.
        free = {
            name: set(map(cell_text, cells))
            for name, cells in table.cells.items()
            if reading.saved is None
            if name == event.name or name not in {one.name for one in chosen}
            if not (column_words.OF_ROWS.search(name) or column_words.meaning(name))
            if not (name in RATES or column_words.words_of(name) & column_words.LENGTHS)
        }
        told = [name for name, texts in free.items() if any(texts) and not _are_measured(texts)]
        kinds = [name for name in told if len(free[name]) > 1]
        if kinds:
            message = (
                f"got no column of events, and {', '.join(kinds)}, which may tell one from "
                "another, expected --column answer=NAME with the one that names them, or --column "
                "ignore=NAME of each where all rows are one event"
            )
            named = [name for name in kinds if f"{{{name}}}" in reading.question]
            fix = f.Fix(flags={"--column": f"answer={named[0]}"}) if len(named) == 1 else ""
            raise f.bad_input("BUILD-COLUMN", "answer", message, fix)
        likely = told[0] if len(told) == 1 else ""
        event = event._replace(name="")
        table.columns = [event if one.role == "answer" else one for one in chosen]
    if not reading.question:
        message, fix = "got no question about the events, expected one", f.Fix()
        if likely:
            declared = {"--column": f"answer={likely}"} if likely != event.name else {}
            fix = f.Fix(flags=declared | {"--question": f"Does this happen: {{{likely}}}?"})
        raise f.bad_input("BUILD-QUESTION", "--question", message, fix)
    events = {alike(cell_text(row.values.get(event.name))) for row in rows}
    if f"{{{event.name}}}" not in reading.question and len(events) > 1:
        message = (
            f"got a question without {{{event.name}}} about {len(events)} events, expected the "
            f"event to be named in it, as in 'Does this happen: {{{event.name}}}?'"
        )
        raise f.bad_input("USAGE", "--question", message)
    # What is packed, on the Hub or given as pictures has no length before it is fetched: to pass it
    # over would leave its events without moments of the other answer.
    elsewhere = [
        row
        for row, (_, medium) in zip(rows, named, strict=True)
        if medium and not isinstance(medium, Path)
    ]
    if elsewhere:
        message = (
            f"got {len(elsewhere)} of {len(rows)} rows whose clips are packed, on the Hub or given "
            "as pictures, expected clips as files beside the table: unpack or download them"
        )
        raise f.bad_input("USAGE", ABSENT, message)
    brief = []  # rows of events that last no time
    first: dict[Path, int] = {}  # clip -> its first row
    lengths: dict[Path, Fraction] = {}  # in seconds, of the clips that open
    frame: dict[Path, Fraction] = {}  # the seconds of one: what is cut has whole ones
    per_second: dict[Path, Fraction] = {}  # how many units of the times a second has
    spans: dict[str, list[tuple[Path, Fraction, Fraction]]] = defaultdict(list)
    written: dict[str, str] = {}  # the event as its first row has it
    for place, (row, (_, medium)) in enumerate(zip(rows, named, strict=True)):
        if not isinstance(medium, Path) or medium == UNNAMED or not medium.is_file():
            continue
        if medium not in first:
            first[medium] = place
            with contextlib.suppress(f.Failure):  # told where it is written
                facts = media.probe(medium)
                lengths[medium] = Fraction(facts.seconds).limit_denominator(1000)
                frames = Fraction(facts.fps or 1).limit_denominator(parts.MOST)
                frame[medium] = 1 / frames
                per_second[medium] = Fraction(PER_SECOND.get(start.unit, frames))
        edges = row.values.get(start.name), row.values.get(end.name)
        if start.name == end.name and isinstance(edges[0], list) and len(edges[0]) == 2:
            edges = tuple(edges[0])
        try:
            begin, stop = (parts.seconds(edge) / per_second[medium] for edge in edges)
        except (ValueError, KeyError):  # told where the parts are cut
            continue
        if begin == stop:
            brief.append(row)
        text = cell_text(row.values.get(event.name))
        written.setdefault(alike(text), text)
        spans[alike(text)].append((medium, begin, stop))
    if brief:
        message = (
            f"got {len(brief)} rows that begin and end at one moment, expected where each begins "
            "and ends: how long its event is seen tells which moments are without it"
        )
        raise f.bad_input("BUILD-SPAN", brief[0].where, message)
    left_out = {one.name for one in chosen if one.role in ("id", "reasoning", "tag")}
    made: list[Row] = []
    listed: list[str] = []  # the moments
    touches = 0  # of them that begin where the event ends, or end where it begins
    few = []  # (event, its moments, the clips of rows without room for one)
    least = reading.also_ask_absent  # of moments for each row that all events have
    clips = Clips(lengths, frame, start.unit == "frame")
    window = Fraction(reading.window).limit_denominator(1000)
    for key, of_event in sorted(spans.items()):
        moments = _moments(key, of_event, clips, window, reading)
        without_room = {}  # row -> its clip
        for number, (moment, (clip, *_)) in enumerate(zip(moments, cycle(of_event))):
            if moment is None:
                without_room.setdefault(number % len(of_event), clip)
        if without_room:
            least = min(least, moments.index(None) / len(of_event))
            few.append((written[key], moments, list(without_room.values())))
        for clip, begin, stop in filter(None, moments):
            like = rows[first[clip]]
            values = {name: one for name, one in like.values.items() if name not in left_out}
            edges = [float(edge * per_second[clip]) for edge in (begin, stop)]
            if start.unit == "frame":
                edges = [round(edges[0]), round(edges[0]) + max(round(edges[1] - edges[0]), 1)]
            values |= {start.name: edges[0], end.name: edges[1]}
            if start.name == end.name:
                values[start.name] = edges
            values |= {event.name: written[key], HAPPENS: "no"}
            made.append(like._replace(values=values, where=f"{like.where} without {written[key]}"))
            which = f" ({written[key]})" if len(spans) > 1 else ""
            listed.append(f"{clip.stem} {float(begin):.6g}-{float(stop):.6g}{which}")
            touches += any(
                clip == one and (stop == its_begin or begin == its_end)
                for one, its_begin, its_end in of_event
            )
    narrow = _narrower(spans, clips, reading) if few and not window else 0.0
    for name, moments, without_room in few:
        names = list(dict.fromkeys(clip.name for clip in without_room))
        made_of_it = len(moments) - moments.count(None)
        message = (
            f"got {made_of_it} moments without it, expected {len(moments)}: {len(without_room)} of "
            f"its rows have no room for another as long, in their clip "
            f"({some(names, MOST_NAMED)}) or in another"
        )
        fix = f.Fix()
        # So few that every event has all of its moments, in the order in which they are sought.
        if least >= 0.001:
            share = f"{math.floor(least * 1000) / 1000:g}"
            fix = f.Fix(flags={ABSENT: share})
        if narrow:
            message += f"; parts of {narrow:g} s, all of them, leave room for as many"
            message += f", or ask less often ({ABSENT} {share})" if fix else ""
            fix = f.Fix(flags={"--window": f"{narrow:g}"})
        elif not fix:
            message += "; add clips in which it does not happen all the time"
        problems.append(f.warning("BUILD-ABSENT-FEW", name, message, fix, clips=names))
    if made:
        near = f" ({touches} begin as it ends, or end as it begins)" if touches else ""
        message = (
            f"{len(made)} moments (s) that no row labels with the event asked about are asked, "
            f"too{near}: {some(listed, MOST_SHOWN)}"
        )
        problems.append(f.info("BUILD-ABSENT", ABSENT, message))
    happening = [row._replace(values={**row.values, HAPPENS: "yes"}) for row in rows]
    columns = tuple(one for one in reading.column if one.role != "answer")
    columns += (Column(HAPPENS, "answer", source=ABSENT),)
    if event.name and f"{{{event.name}}}" not in reading.question:
        columns += (Column(event.name, "ignore", source=ABSENT),)
    saved = reading.saved and tuple(one for one in reading.saved if one.role != "answer")
    return [*happening, *made], replace(reading, column=columns, saved=saved, also_ask_absent=0.0)


def _are_measured(texts: set[str]) -> bool:
    """Return whether texts are numbers, some with a fraction: whole ones may stand for events."""
    try:
        numbers = [float(text) for text in texts if text]
    except ValueError:
        return False
    return not all(number.is_integer() for number in numbers)


def _narrower(spans: dict[str, list[Moment]], clips: Clips, reading: Reading) -> float:
    """Return the longest window (seconds, in tenths) that leaves room for all moments of all
    events and is no longer than the shortest of them; 0 where there is none of half a second, and
    of a table too long to try."""
    every = [one for of_event in spans.values() for one in of_event]
    if len(every) > MOST_TRIED:
        return 0.0
    fits, too_long = 4, math.floor(10 * min(stop - begin for _, begin, stop in every)) + 1
    while too_long - fits > 1:
        tenths = (fits + too_long) // 2
        window = Fraction(tenths, 10)
        tried = (_moments(key, one, clips, window, reading) for key, one in spans.items())
        if any(None in moments for moments in tried):
            too_long = tenths
        else:
            fits = tenths
    return fits / 10 if fits > 4 else 0.0


def _moments(
    key: str, of_event: list[Moment], clips: Clips, window: Fraction, reading: Reading
) -> list[Moment | None]:
    """Return the moments that are asked for, which overlap neither each other nor the event, None
    for each that has no room. Those of one row are of its clip where that has room, else the clip
    alone would tell the answer; and a frame away from the event where that leaves room, as always
    where frames are counted."""
    lengths, frame, counts_frames = clips
    wanted = round(reading.also_ask_absent * len(of_event))
    draw = random.Random(f"{reading.seed} {key}")
    busy: dict[Path, list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for clip, begin, stop in of_event:
        busy[clip].append((begin, stop))
    taken: dict[Path, list[tuple[Fraction, Fraction]]] = defaultdict(list)
    apart = (1,) if counts_frames else (1, 0)  # frames between a moment and the event

    def rooms(places: Iterable[Path], span: Fraction, frames: int) -> list[tuple]:
        """Return (clip, begin, end) of all stretches in which a moment has room."""
        found = []
        for clip in places:
            free = frames * frame[clip]
            around = [(begin - free, stop + free) for begin, stop in busy[clip]]
            here = Fraction(0)
            for busy_from, busy_to in [*sorted(around + taken[clip]), (lengths[clip],) * 2]:
                if busy_from - here >= span:
                    found.append((clip, here, busy_from))
                here = max(here, busy_to)
        return found

    found: list[Moment | None] = []
    for number in range(wanted):
        own, begin, stop = of_event[number % len(of_event)]
        span = window or stop - begin
        if stop <= begin:  # told where the parts are cut
            found.append(None)
            continue
        places = ([own] if own in lengths else [], sorted(lengths))
        ways = (rooms(one, span, frames) for one in places for frames in apart)
        fitting = next(filter(None, ways), None)
        if fitting is None:
            found.append(None)
            continue
        clip, earliest, latest = draw.choice(fitting)
        # One of the moments that lie side by side in the room, so that it leaves the others whole.
        count = (latest - earliest) // span
        slack = latest - earliest - count * span
        at = earliest + draw.randrange(int(count)) * span + slack * draw.randrange(101) / 100
        found.append((clip, at, at + span))
        taken[clip].append((at, at + span))
    return found
