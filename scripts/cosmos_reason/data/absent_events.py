"""Moments without an event. Rows of labelled events become questions whether an event happens; all
of them would be answered yes without moments at which it does not."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.data import parts
from cosmos_reason.data.items import UNNAMED, Reading, Row
from cosmos_reason.data.roles import Column, cell_text
from cosmos_reason.data.samples import alike
from cosmos_reason.media import files as media

FLAG = "--also-ask-absent"
HAPPENS = "(happens)"  # stands for a column: whether the event of a row happens in its moment
PER_SECOND = {"": 1, "ms": 1000}


def asked(
    rows: list[Row],
    splits: list[str],
    named: list[parts.Named],
    chosen: list[Column],
    reading: Reading,
    problems: list[f.Finding],
) -> tuple[list[Row], list[str], Reading]:
    """The rows with HAPPENS and, behind them, rows of moments without an event: for each event
    `reading.absent` times as many as it has rows, each as long as one of those, in a part of some
    clip that no row labels with it; what their splits are called; and how to read them. The labels
    of a clip are taken to be all that happens in it: the flag declares that.

    `named`: the medium of each row. Raises Failure where columns or question cannot be asked so.
    """
    of_role = {one.role: one for one in reversed(chosen)}
    lacking = [role for role in ("start", "end", "answer") if role not in of_role]
    if lacking or of_role["start"].unit not in PER_SECOND or "question" in of_role:
        message = (
            "got rows that it cannot ask about, expected columns of events (answer) and of their "
            "begin and end in seconds or milliseconds, and none of questions"
        )
        raise f.bad_input("USAGE", FLAG, message)
    start, end, event = of_role["start"], of_role["end"], of_role["answer"]
    if f"{{{event.name}}}" not in reading.question:
        message = f"got a question without {{{event.name}}}, expected the event to be named in it"
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
        raise f.bad_input("USAGE", FLAG, message)
    scale = PER_SECOND[start.unit]
    first: dict[Path, int] = {}  # clip -> its first row
    spans: dict[str, list[tuple[Path, Fraction, Fraction]]] = defaultdict(list)
    written: dict[str, str] = {}  # the event as its first row has it
    for place, (row, (_, medium)) in enumerate(zip(rows, named, strict=True)):
        if not isinstance(medium, Path) or medium == UNNAMED or not medium.is_file():
            continue
        first.setdefault(medium, place)
        edges = row.values.get(start.name), row.values.get(end.name)
        if start.name == end.name and isinstance(edges[0], list) and len(edges[0]) == 2:
            edges = tuple(edges[0])
        try:
            begin, stop = (parts.seconds(edge) / scale for edge in edges)
        except ValueError:  # told where the parts are cut
            continue
        text = cell_text(row.values.get(event.name))
        written.setdefault(alike(text), text)
        spans[alike(text)].append((medium, begin, stop))
    lengths = {clip: seconds for clip in first if (seconds := _length(clip)) is not None}
    left_out = {one.name for one in chosen if one.role in ("id", "reasoning", "tag")}
    made: list[Row] = []
    splits = list(splits)
    for key, of_event in sorted(spans.items()):
        wanted = round(reading.absent * len(of_event))
        moments = _moments(key, of_event, lengths, wanted, reading.seed)
        if len(moments) < wanted:
            message = f"got {len(moments)} moments without it, expected {wanted}"
            problems.append(f.warning("BUILD-ABSENT-FEW", written[key], message))
        for clip, begin, stop in moments:
            like = rows[first[clip]]
            values = {name: one for name, one in like.values.items() if name not in left_out}
            values |= {start.name: float(begin * scale), end.name: float(stop * scale)}
            if start.name == end.name:
                values[start.name] = [float(begin * scale), float(stop * scale)]
            values |= {event.name: written[key], HAPPENS: "no"}
            made.append(like._replace(values=values, where=f"{like.where} without {written[key]}"))
            splits.append(splits[first[clip]])
    happening = [row._replace(values={**row.values, HAPPENS: "yes"}) for row in rows]
    columns = tuple(one for one in reading.columns if one.role != "answer")
    columns += (Column(HAPPENS, "answer", source=FLAG),)
    saved = reading.saved and tuple(one for one in reading.saved if one.role != "answer")
    return [*happening, *made], splits, replace(reading, columns=columns, saved=saved, absent=0.0)


def _length(clip: Path) -> Fraction | None:
    """Seconds; None for a clip that does not open, which is told where it is written."""
    try:
        return Fraction(media.probe(clip).seconds).limit_denominator(1000)
    except f.Failure:
        return None


def _moments(
    key: str,
    of_event: list[tuple[Path, Fraction, Fraction]],
    lengths: dict[Path, Fraction],
    wanted: int,
    seed: int,
) -> list[tuple[Path, Fraction, Fraction]]:
    """Moments that overlap neither the event nor each other, at most `wanted`."""
    draw = random.Random(f"{seed} {key}")
    taken: dict[Path, list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for clip, begin, stop in of_event:
        taken[clip].append((begin, stop))
    found = []
    for number in range(wanted):
        _, begin, stop = of_event[number % len(of_event)]
        fitting = []
        for clip in sorted(lengths):
            here = Fraction(0)
            for busy_from, busy_to in [*sorted(taken[clip]), (lengths[clip], lengths[clip])]:
                if busy_from - here >= stop - begin > 0:
                    fitting.append((clip, here, busy_from - (stop - begin)))
                here = max(here, busy_to)
        if not fitting:
            break
        clip, earliest, latest = draw.choice(fitting)
        moment = earliest + (latest - earliest) * draw.randrange(101) / 100
        found.append((clip, moment, moment + stop - begin))
        taken[clip].append((moment, moment + stop - begin))
    return found
