"""Spans of time and boxes: which ground truths are one, and those that a response names."""

from __future__ import annotations

import re

from cosmos_reason.answers.choices import BOUNDARY, Vocabulary
from cosmos_reason.answers.commitment import Reading, read
from cosmos_reason.answers.response import outside_thinking, plain
from cosmos_reason.answers.words import fold

_NUMBER = r"-?\d+(?:\.\d+)?"
_UNIT = r"(?:seconds?|sekunden?|secondes?|segundos?|secs?|s|minutes?|mins?|秒|分钟?)(?![a-z])"
# 01:02:03.5, 1 minute 20 seconds, 12.5s, 第3秒
_TIME = (
    r"(?:(?:\d{1,3}:)?\d{1,3}:\d{2}(?:[.,]\d{1,3})?"
    r"|\d+(?:\.\d+)? ?m(?:in(?:ute)?s?)?(?:,? (?:and )?|(?=\d))\d+(?:\.\d+)? ?s(?:ec(?:ond)?s?)?\b"
    rf"|第?(?:\d+,\d+(?= ?[sS])|\d+(?:\.\d+)?)(?: ?{_UNIT})?)"
)
_KEY = r"(?:start|begin|from|end|stop|to|finish)(?:_?(?:time|sec(?:ond)?s?|timestamp|s))?"
# 12.5s - 15s, [3, 7], from 3 to 7, 3 s and ends at 7 s; no numbers of frames
_SPAN = re.compile(
    rf"(?<![\d.:])(?<!frame )(?<!frames )(?P<first>{_TIME})[\]\"')>]*"
    r"(?: ?(?:-+>?|–|—|~|to|until|till|through|and|bis|und|à|et|a|y|al|e|hasta|至|到|,|→|\.\.) ?"
    r"|(?=[<\[(])|,? (?:and |it )?(?:then )?(?:(?:ends|stops|finishes|lasts until)(?: at| by)? ?)?)"
    rf"[\[\"'(<]*(?:(?:at|about|around|second|{_KEY}) ?)?(?:{_KEY}[\"']? ?[:=] ?[\"']?)?"
    rf"(?P<last>{_TIME})",
    re.I,
)
# start: 3 s, "end_time": 7, ends at about 00:07: the two ends in fields, lines or sentences
_NAMED_TIME = re.compile(
    r"\b(?:(?P<start>start|begin|onset)|end|stop|finish)(?:s|ning|ing|ed|es)?"
    r"(?:[ _]?(?:time|sec(?:ond)?s?|timestamp))?[\"']?"
    rf" ?(?:[:=>]|is|at|around|about|on|near|the| )+ ?[\"']?(?P<time>{_TIME})",
    re.I,
)
_FOUR = re.compile(rf"[\[(<] ?{', ?'.join([f'({_NUMBER})'] * 4)} ?[\])>]")
_PLAIN_NUMBER = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w.]\d)")
_FACTORS = {"h": 3600, "m": 60, "分": 60}
BOX_KEYS = ("bbox_2d", "bbox", "box_2d", "box", "bounding_box", "bbox2d", "box2d")
_LABEL_KEYS = ("label", "class", "category")
# What makes times of numbers that could be anything.
_SAYS_TIME = re.compile(rf"\d:\d|\dm|\d ?{_UNIT}|\b{_KEY} ?:|秒|分", re.I)
_LABEL = re.compile(rf"\b(?:{'|'.join(_LABEL_KEYS)}) ?: ?([^,}}\]\n]+)", re.I)
BARE = "bare"  # numbers that may be a place, and of which only the question tells

Place = tuple[float, ...]


def seconds(written: str) -> float:
    """Return a time as a person writes it: 12.5s, 01:02:03.5, 1 minute 20 seconds."""
    written = re.sub(r"(?<=\d),(?=\d)", ".", written)
    if ":" in written:
        total = 0.0
        for part in written.split(":"):
            total = total * 60 + float(part)
        return total
    parts = re.findall(r"(\d+(?:\.\d+)?) ?([a-z秒分]?)", written.lower())
    return sum(float(value) * _FACTORS.get(unit, 1) for value, unit in parts)


def is_time(written: str) -> bool:
    """Return whether a text is a time and nothing else: "00:05.70", "12.5s"."""
    return re.fullmatch(_TIME, written.strip(), re.I) is not None


def spans(text: str) -> list[Place]:
    """Return the spans of time in a text, each once."""
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


# What may stand beside a span or a box in any writing: another word makes it part of a statement.
_SPAN_WORDS = re.compile(
    rf"\b(?:{_KEY}|timestamps?|time|interval|segment|span|window|event|range|about|around|approximately"
    r"|roughly|between|and|the|is|at|in|seconds?|s)\b",
    re.I,
)
_BOX_WORDS = re.compile(
    rf"\b(?:{'|'.join((*BOX_KEYS, *_LABEL_KEYS))}|json|ref|confidence|score"
    r"|[xy]_?(?:[12]|min|max))\b",
    re.I,
)
_LEAD_OF_SPAN = re.compile(
    r"(?:(?:is|at|from the|de|von|in|from|between|during|about|around|approximately) |从)*[\[(]*",
    re.I,
)
_END_OF_SPAN = re.compile(r"[)\]]*")
_EVENT = re.compile(r"\b(?:event|label|query|description|caption) ?: ?[^,}\n]+", re.I)
# An object with the keys of a place, alone or in a list.
_OBJECT = re.compile(
    r"(?:\[\s*)?\{[^{}]{0,400}\b(?:bbox|box|start|end|timestamps?)\w*[\"'][^{}]{0,400}\}"
    r"(?:\s*,\s*\{[^{}]{0,400}\}){0,50}(?:\s*\])?|<box>.{0,400}?</box>",
    re.S,
)


class Spans(Vocabulary):
    """One span of time, "[start, end]" in seconds."""

    def inside(self, text: str, at: int) -> tuple[str, int] | None:
        found = _SPAN.match(text, _LEAD_OF_SPAN.match(text, at).end())
        if found is None:
            return None
        first, last = seconds(found["first"]), seconds(found["last"])
        end = _END_OF_SPAN.match(text, found.end()).end()
        return (as_text((first, last)), end) if first < last else None

    def whole(self, text: str) -> str | None:
        """Return a span in any writing, start and end in lines or fields too."""
        text = _EVENT.sub("", text[:400]) if "{" in text else text
        found = spans(text) if len(text) <= 400 else []
        if len(found) != 1:
            return None
        named = len(_NAMED_TIME.findall(text)) == 2
        rest = (_NAMED_TIME if named else _SPAN).sub("", text)
        return None if re.search(r"\w", _SPAN_WORDS.sub("", rest)) else as_text(found[0])


class Boxes(Vocabulary):
    """One box, "[x1, y1, x2, y2]" as written, then its label where it has one."""

    def begin(self, text: str) -> tuple[str, int] | None:
        text = re.sub(r"\A\[(?=\[)", "", text)
        found = _FOUR.match(text)
        if found is None or not BOUNDARY.match(text, found.end()):
            return None
        box = tuple(map(float, found.groups()))
        return (as_text(box), found.end()) if _has_area(box) else None

    def whole(self, text: str) -> str | None:
        """Return a box in any writing: corners in brackets, or four numbers in marks or fields."""
        text = re.sub(r"</?\w+>", " ", text) if len(text) <= 4000 else ""
        written = _FOUR.findall(text)
        numbers = [] if written else _PLAIN_NUMBER.findall(text[:400])
        if len(numbers) == 4:
            written = [numbers]
        found = {box for one in written if _has_area(box := tuple(map(float, one)))}
        if len(found) != 1:
            return None
        label = _LABEL.search(text)
        rest = _BOX_WORDS.sub("", _LABEL.sub("", text))
        rest = _PLAIN_NUMBER.sub("", _FOUR.sub("", rest))
        if re.search(r"\w", rest):
            return None
        return as_text(found.pop()) + (f" {fold(label[1])}" if label else "")


def _has_area(box: Place) -> bool:
    x1, y1, x2, y2 = box
    return x1 < x2 and y1 < y2


SPANS, BOXES = Spans(), Boxes()


def form_of(gt: str) -> str:
    """Return "box" or "temporal" for a ground truth that is one and nothing else, as its keys,
    marks or units say; with BARE before it for numbers alone; else an empty string. A label beside
    times makes an event, which is no span."""
    if len(gt) > 400 or not any(sign.isdigit() for sign in gt):
        return ""
    written = plain(gt).strip(" .")
    if BOXES.whole(written):
        return "box" if re.search("[a-z]", gt, re.I) else f"{BARE} box"
    if SPANS.whole(written) is None or _EVENT.search(written):
        return ""
    return "temporal" if _SAYS_TIME.search(written) else f"{BARE} temporal"


def read_place(response: str, vocabulary: Vocabulary, question: str = "") -> Reading:
    """Read a span or a box. An object with their keys counts as enclosed."""
    if "{" in response or "<box>" in response:
        said = outside_thinking(response)
        if vocabulary.whole(plain(said)) is None and not re.search(r"<answer>|\\boxed", said):
            response = _OBJECT.sub(lambda found: f"<answer>{found[0]}</answer>", said)
    return read(response, vocabulary, question)


def as_text(place: Place) -> str:
    return "[" + ", ".join(f"{number:g}" for number in place) + "]"


def overlap(answer: str, expected: str) -> float:
    """Return the intersection over union of two spans or two boxes, 0 for a box without the label
    expected."""
    (one, said), (other, label) = map(_parts, (answer, expected))
    return 0.0 if label and said != label else intersection_over_union(one, other)


def intersection_over_union(one: Place, other: Place) -> float:
    """Return the overlap of two boxes of any dimension, which are their lowest corner and their
    highest: a span is (start, end), a box (x1, y1, x2, y2)."""
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
