"""Spans of time and boxes."""

from __future__ import annotations

import re
from collections.abc import Callable

from cosmos_reason.answers.commitment import Reading
from cosmos_reason.answers.response import marked, outside_thinking, plain, shortened

_NUMBER = r"-?\d+(?:\.\d+)?"
_UNIT = r"(?:seconds?|sekunden?|secondes?|segundos?|secs?|s|minutes?|mins?|秒|分钟?)(?![a-z])"
_TIME = (
    r"(?:(?:\d{1,3}:)?\d{1,3}:\d{2}(?:[.,]\d{1,3})?"
    r"|\d+(?:\.\d+)? ?m(?:in(?:ute)?s?)?(?:,? (?:and )?|(?=\d))\d+(?:\.\d+)? ?s(?:ec(?:ond)?s?)?\b"
    rf"|第?(?:\d+,\d+(?= ?[sS])|\d+(?:\.\d+)?)(?: ?{_UNIT})?)"
)
_KEY = r"(?:start|begin|from|end|stop|to|finish)(?:_?(?:time|sec(?:ond)?s?|timestamp|s))?"
_SPAN = re.compile(
    rf"(?<![\d.:])(?<!frame )(?<!frames )(?P<first>{_TIME})[\]\"')>]*"
    r"(?: ?(?:-+>?|–|—|~|to|until|till|through|and|bis|und|à|et|a|y|al|e|hasta|至|到|,|→|\.\.) ?"
    r"|(?=[<\[(])|,? (?:and |it )?(?:then )?(?:(?:ends|stops|finishes|lasts until)(?: at| by)? ?)?)"
    rf"[\[\"'(<]*(?:(?:at|about|around|second|{_KEY}) ?)?(?:{_KEY}[\"']? ?[:=] ?[\"']?)?"
    rf"(?P<last>{_TIME})",
    re.I,
)
_NAMED_TIME = re.compile(
    r"\b(?:(?P<start>start|begin|onset)|end|stop|finish)(?:s|ning|ing|ed|es)?"
    r"(?:[ _]?(?:time|sec(?:ond)?s?|timestamp))?[\"']?"
    rf" ?(?:[:=>]|is|at|around|about|on|near|the| )+ ?[\"']?(?P<time>{_TIME})",
    re.I,
)
_FOUR = re.compile(rf"[\[(<] ?{', ?'.join([f'({_NUMBER})'] * 4)} ?[\])>]")
_PLAIN_NUMBER = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w.]\d)")
_FACTORS = {"h": 3600, "m": 60, "分": 60}

Place = tuple[float, ...]


def seconds(written: str) -> float:
    """A time as a person writes it: 12.5s, 01:02:03.5, 1 minute 20 seconds."""
    written = re.sub(r"(?<=\d),(?=\d)", ".", written)
    if ":" in written:
        total = 0.0
        for part in written.split(":"):
            total = total * 60 + float(part)
        return total
    parts = re.findall(r"(\d+(?:\.\d+)?) ?([a-z秒分]?)", written.lower())
    return sum(float(value) * _FACTORS.get(unit, 1) for value, unit in parts)


def spans(text: str) -> list[Place]:
    """The spans of time in a text, each once."""
    named = [(match["start"], seconds(match["time"])) for match in _NAMED_TIME.finditer(text)]
    starts = [time for is_start, time in named if is_start]
    ends = [time for is_start, time in named if not is_start]
    if starts and len(starts) == len(ends):
        found = zip(starts, ends, strict=True)
    else:
        found = [
            (seconds(match["first"]), seconds(match["last"])) for match in _SPAN.finditer(text)
        ]
    return list(dict.fromkeys((start, end) for start, end in found if start < end))


def boxes(text: str) -> list[Place]:
    """The boxes (x1, y1, x2, y2) in a text, each once."""
    found = _FOUR.findall(text)
    numbers = [] if found else _PLAIN_NUMBER.findall(text[:400])
    if len(numbers) == 4:
        found = [numbers]
    found = [tuple(map(float, box)) for box in found]
    return list(dict.fromkeys(filter(_has_area, found)))


def _has_area(box: Place) -> bool:
    x1, y1, x2, y2 = box
    return x1 < x2 and y1 < y2


def read_place(response: str, find: Callable[[str], list[Place]]) -> Reading:
    """The one span or box after the last marker that is followed by one, else the only one there
    is."""
    said = shortened(outside_thinking(response))
    for marker, content, is_enclosing in marked(said):
        found = find(plain(content))
        if len(found) == 1:
            return Reading(as_text(found[0]), f"marker {marker}", content)
        if found:
            return Reading(None, "several answers", content)
        if is_enclosing and marker != "field":
            return Reading(None, "marker without an answer", content)
    text = plain(said)
    found = find(text)
    if len(found) == 1:
        return Reading(as_text(found[0]), "only mention", text)
    return Reading(None, "several answers" if found else "no answer", text)


def as_text(place: Place) -> str:
    return "[" + ", ".join(f"{number:g}" for number in place) + "]"


def overlap(answer: str, expected: str) -> float:
    """Intersection over union of two spans or two boxes."""
    one, other = (tuple(map(float, text.strip("[]").split(", "))) for text in (answer, expected))
    half = len(one) // 2
    shared, first, second = 1.0, 1.0, 1.0
    for axis in range(half):
        shared *= max(0.0, min(one[axis + half], other[axis + half]) - max(one[axis], other[axis]))
        first *= one[axis + half] - one[axis]
        second *= other[axis + half] - other[axis]
    return shared / (first + second - shared)
