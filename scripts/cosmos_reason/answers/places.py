"""Spans of time and boxes: which ground truths are one, and those that a response names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from cosmos_reason.answers.commitment import Reading
from cosmos_reason.answers.response import marked, outside_thinking, plain, shortened
from cosmos_reason.answers.words import composed, fold

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
_FENCE = re.compile(r"\A```(?:json)?\s*|\s*```\Z")
_BOX_KEYS = {"bbox", "bbox_2d", "bbox2d", "box", "box_2d", "box2d", "bounding_box"}
_LABEL_KEYS = {"label", "class", "category"}
_TIME_KEY = re.compile(_KEY, re.I)
_BOX_MARK = re.compile(r"<box>(.*)</box>|<\|box_start\|>(.*)<\|box_end\|>", re.S)
_FOUR_NUMBERS = re.compile(rf"[\[(<]*{'[ ,)(]+'.join([_NUMBER] * 4)}[\])>]*")
_SAYS_TIME = re.compile(rf":|m|\d ?{_UNIT}|秒|分", re.I)
_BETWEEN = re.compile(r"\b(?:from|between|start|end|time)\b", re.I)
_LABEL = re.compile(rf"\b(?:{'|'.join(sorted(_LABEL_KEYS))}) ?: ?([^,}}\]\n]+)", re.I)
BARE = "bare"  # numbers that may be a place, and of which only the question tells

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


def form_of(gt: str) -> str:
    """ "box" or "temporal" for a ground truth that is one and nothing else, as its keys, marks or
    units say; with BARE before it for numbers alone; else empty."""
    written = _FENCE.sub("", composed(gt).strip())
    if written[:1] in ("[", "{"):
        try:
            return _form_of_json(json.loads(written))
        except (ValueError, RecursionError):
            if "{" in written:
                return ""
    mark = _BOX_MARK.fullmatch(written)
    said = plain(next(filter(None, mark.groups()), "") if mark else written).strip(" .")
    if _FOUR_NUMBERS.fullmatch(said) and len(boxes(said)) == 1:
        return "box" if mark else f"{BARE} box"
    return "" if mark else _form_of_span(said)


def _form_of_json(value: object) -> str:
    """A list of one stands for what it holds."""
    if isinstance(value, list):
        return _form_of_json(value[0]) if len(value) == 1 else _form_of_list(value)
    if not isinstance(value, dict):
        return ""
    by_key = {str(key).lower(): held for key, held in value.items()}
    box = by_key.keys() & _BOX_KEYS
    if len(box) == 1 and by_key.keys() - box <= _LABEL_KEYS:
        return "box" if _form_of_json(by_key[box.pop()]) == f"{BARE} box" else ""
    if len(by_key) == 2 and all(map(_TIME_KEY.fullmatch, by_key)):
        return "temporal" if len(spans(plain(json.dumps(value)))) == 1 else ""
    return ""


def _form_of_list(value: list) -> str:
    if all(type(number) in (int, float) for number in value):
        kind = {2: "temporal", 4: "box"}.get(len(value))
        return f"{BARE} {kind}" if kind and _is_place(value) else ""
    return _form_of_span(", ".join(map(str, value))) if len(value) == 2 else ""


def _is_place(numbers: list[float]) -> bool:
    half = len(numbers) // 2
    return all(first < last for first, last in zip(numbers[:half], numbers[half:], strict=True))


def _form_of_span(said: str) -> str:
    """A label beside the times makes it an event, which is no span."""
    found = spans(said) if len(said) <= 80 else []
    if len(found) != 1:
        return ""
    pattern = _NAMED_TIME if len(_NAMED_TIME.findall(said)) == 2 else _SPAN
    rest = _BETWEEN.sub("", pattern.sub("", said))
    if re.search(r"\w", rest):
        return ""
    times = "".join(match.group("time") for match in _NAMED_TIME.finditer(said))
    if pattern is _SPAN:
        times = " ".join(match["first"] + " " + match["last"] for match in _SPAN.finditer(said))
    return "temporal" if _SAYS_TIME.search(times) or pattern is _NAMED_TIME else f"{BARE} temporal"


def read_box(response: str) -> Reading:
    """A box, with the label that stands in its JSON."""
    reading = read_place(response, boxes)
    label = _LABEL.search(plain(reading.words)) if reading.answer else None
    if label is None:
        return reading
    return reading._replace(answer=f"{reading.answer} {fold(label[1])}")


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
    """Intersection over union of two spans or two boxes; 0 for a box without the label expected."""
    (one, said), (other, label) = map(_parts, (answer, expected))
    if label and said != label:
        return 0.0
    half = len(one) // 2
    shared, first, second = 1.0, 1.0, 1.0
    for axis in range(half):
        shared *= max(0.0, min(one[axis + half], other[axis + half]) - max(one[axis], other[axis]))
        first *= one[axis + half] - one[axis]
        second *= other[axis + half] - other[axis]
    return shared / (first + second - shared)


def _parts(place: str) -> tuple[Place, str]:
    numbers, _, label = place.partition("]")
    return tuple(map(float, numbers.strip("[").split(", "))), label.strip()
