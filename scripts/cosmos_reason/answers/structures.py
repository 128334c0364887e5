"""Sets of places that a response lists as JSON: events, spans of time, boxes, points, trajectories
and boxes in space. Which ground truths are one, and what a response lists.

A response commits to its only JSON document, whole: one that is cut off, that no parser takes, or
of which an element lacks its numbers commits to nothing. References/cosmos-reason-scoring.md says
the forms and the measures.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cosmos_reason.answers.commitment import Reading, takes_back
from cosmos_reason.answers.places import BOX_KEYS as BOX
from cosmos_reason.answers.places import is_time, seconds
from cosmos_reason.answers.response import final_answer
from cosmos_reason.answers.words import fold

EVENTS, SPANS, BOXES, POINTS = "events", "spans", "boxes", "points"
TRAJECTORIES, BOX3D = "trajectories", "box3d"
SET_TYPES = (EVENTS, SPANS, BOXES, POINTS, TRAJECTORIES, BOX3D)
PLANE_TYPES = (BOXES, POINTS, TRAJECTORIES)  # measured in the picture

# How NVIDIA's prompt guide, Qwen and label tools name the parts of an element.
START = ("start", "start_time", "t_start", "begin", "from", "start_s", "start_sec")
END = ("end", "end_time", "t_end", "stop", "to", "end_s", "end_sec")
RANGE = ("timestamps", "timestamp", "time", "interval", "span", "segment")
POINT = ("point_2d", "point", "coordinates", "position")
PATH = ("trajectory", "path", "waypoints")
SPACE = ("bbox_3d", "box_3d", "bbox3d", "box3d")
LABEL = ("label", "class", "category", "event", "action", "name")
CAPTION = ("caption", "description", "text")
BESIDE = ("id", "confidence", "score", "camera_params")  # what no measure looks at

_FENCE = re.compile(r"```\w*[ \t]*\n?(.*?)(?:```|\Z)", re.S)
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)
_LAST_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*[\]}])')
_OPENS = re.compile(r"[\[{]")
_DECODER = json.JSONDecoder()


class Item(NamedTuple):
    """One element: its numbers (start and end in seconds; corners; x and y; x, y, z and sizes; of
    a trajectory x, y, x, y, ...), its label, and a caption, which no comparison asks for."""

    at: tuple[float, ...]
    label: str = ""
    caption: str = ""


def form_of(gt: str, question: str) -> str:
    """Return the type of a ground truth that lists elements whose keys say what they are, and say
    nothing besides that no measure looks at; else ''. Numbers alone say nothing."""
    if "{" not in gt:
        return ""
    documents, _ = _documents(gt)
    if not documents or len(documents) > 1:
        return ""
    listed = _elements(documents[0])
    if not listed or not all(isinstance(one, dict) for one in listed):
        return ""
    kind, keys = "", ()
    first = listed[0]
    if _has(first, SPACE):
        kind, keys = BOX3D, SPACE
    elif _has(first, PATH):
        kind, keys = TRAJECTORIES, PATH
    elif _has(first, BOX):
        kind, keys = BOXES, BOX
    elif _has(first, POINT):
        is_path = re.search(r"trajector|waypoint|\bpath\b", f"{question} {first}", re.I)
        kind, keys = (TRAJECTORIES if is_path else POINTS), POINT
    elif (_has(first, START) and _has(first, END)) or _has(first, RANGE):
        is_named = _has(first, LABEL) or _has(first, CAPTION)
        kind, keys = (EVENTS if is_named else SPANS), (*START, *END, *RANGE)
    about = {*documents[0]} - {*BESIDE} if documents[0] not in (listed, first) else {""}
    is_known = len(about) == 1 and all(
        {*one} <= {*keys, *LABEL, *CAPTION, *BESIDE} and len({*one} & {*LABEL}) <= 1
        for one in listed
    )
    return kind if kind and is_known and _items(documents[0], kind) else ""


def read_set(response: str, type: str) -> Reading:
    """Return the set that a response commits to, as JSON that `items_of` reads."""
    said = final_answer(response)
    if not said:
        return Reading(None, "no response", "")
    documents, beside = _documents(said)
    if documents is None:
        return Reading(None, beside, said)
    if not documents:
        return Reading(None, "unread", said)
    if takes_back(beside):
        return Reading(None, "taken back", said)
    sets = [_items(document, type) for document in documents]
    if None in sets:
        return Reading(None, "malformed", said)
    if any(found != sets[0] for found in sets):
        return Reading(None, "several answers", said)
    return Reading(as_json(sets[0]), "JSON", said)


def as_json(items: Sequence[Item]) -> str:
    listed = []
    for item in items:
        names = {"label": item.label, "caption": item.caption}
        listed.append({"at": item.at} | {name: said for name, said in names.items() if said})
    return json.dumps(listed, ensure_ascii=False)


def items_of(written: str) -> list[Item]:
    """Return the elements that `as_json` wrote."""
    return [
        Item(tuple(one["at"]), one.get("label", ""), one.get("caption", ""))
        for one in json.loads(written)
    ]


def scaled(written: str, type: str, across: float, down: float) -> str:
    """Return a set in another measure of the picture."""
    if type not in PLANE_TYPES:
        return written
    factors = (across, down)
    moved = []
    for item in items_of(written):
        at = tuple(value * factors[place % 2] for place, value in enumerate(item.at))
        moved.append(item._replace(at=at))
    return as_json(moved)


def _documents(text: str) -> tuple[list | None, str]:
    """Return the JSON documents of a text and the words beside them; None and why, where one is cut
    off or no parser takes it. Objects behind one another are a list."""
    fences = [match for match in _FENCE.finditer(text) if _OPENS.match(match[1].lstrip())]
    if fences and text.count("```") % 2:
        return None, "cut off"
    if fences:
        beside = _FENCE.sub(" ", text)
        if _OPENS.search(beside):
            return None, "unparsable"
        text = "\n\n".join(match[1] for match in fences)
    else:
        beside = ""
    text = _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    text = _LAST_COMMA.sub(lambda found: found[0] if found[0][0] == '"' else "", text)
    documents, gaps = [], []
    at = 0
    while opened := _OPENS.search(text, at):
        gaps.append(text[at : opened.start()])
        try:
            document, at = _DECODER.raw_decode(text, opened.start())
        except json.JSONDecodeError as problem:
            is_cut = problem.pos >= len(text.rstrip()) - 1 or problem.msg.startswith("Untermin")
            return None, "cut off" if is_cut else "unparsable"
        except RecursionError:
            return None, "unparsable"
        documents.append(document)
    gaps.append(text[at:])
    are_lines = all(isinstance(one, dict) for one in documents) and len(documents) > 1
    if are_lines and not any(gap.strip(" \n\t,") for gap in gaps[1:-1]):
        documents = [documents]
    return documents, " ".join([beside, *gaps]).strip()


def _elements(document: object) -> list | None:
    """Return the elements that a document lists: it is the list, an object with one list, or the
    only element. None for anything else."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    if any(_has(document, keys) for keys in (START, BOX, POINT, PATH, SPACE)) or _span(document):
        return [document]
    lists = [value for value in document.values() if isinstance(value, list)]
    return lists[0] if len(lists) == 1 else None


def _items(document: object, type: str) -> list[Item] | None:
    """Return the elements of a document as `type` has them; None where one of them is none."""
    listed = _elements(document)
    if listed is None:
        return None
    numbers = [one for one in listed if isinstance(one, int | float) and not isinstance(one, bool)]
    if listed and len(numbers) == len(listed):
        listed = [listed]  # one element without a list around it
    if type == TRAJECTORIES:
        return _trajectories(listed)
    found = []
    for one in listed:
        at = _READERS[type](one)
        if at is None:
            return None
        label, caption = _names(one)
        found.append(Item(at, label, caption))
    return found


def _names(one: object) -> tuple[str, str]:
    if not isinstance(one, dict):
        return "", ""
    label, caption = _value(one, LABEL), _value(one, CAPTION)
    return (
        fold(label) if isinstance(label, str) else "",
        fold(caption) if isinstance(caption, str) else "",
    )


def _value(one: dict, keys: Sequence[str]) -> object:
    return next((one[key] for key in keys if key in one), None)


def _has(one: dict, keys: Sequence[str]) -> bool:
    return any(key in one for key in keys)


def _numbers(value: object, *counts: int) -> tuple[float, ...] | None:
    """Return finite numbers, as many as one of `counts` says."""
    if not isinstance(value, list) or len(value) not in counts:
        return None
    for one in value:
        if type(one) not in (int, float) or not math.isfinite(one):
            return None
    return tuple(map(float, value))


def _time(value: object) -> float | None:
    if type(value) in (int, float):
        return float(value) if math.isfinite(value) else None
    return seconds(value) if isinstance(value, str) and is_time(value) else None


def _span(one: object) -> tuple[float, ...] | None:
    if isinstance(one, dict):
        pair = _value(one, RANGE)
        if _has(one, START) and _has(one, END):
            pair = [_value(one, START), _value(one, END)]
    else:
        pair = one
    if isinstance(pair, str):
        pair = re.split(r"\s*(?:-|–|to|~)\s*", pair.strip("[]() "))
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    start, end = map(_time, pair)
    return (start, end) if start is not None and end is not None and start < end else None


def _box(one: object) -> tuple[float, ...] | None:
    at = _numbers(_value(one, BOX) if isinstance(one, dict) else one, 4)
    return at if at and at[0] < at[2] and at[1] < at[3] else None


def _point(one: object) -> tuple[float, ...] | None:
    """Return a point, or the box that it must lie in."""
    if not isinstance(one, dict):
        return _numbers(one, 2)
    if _has(one, POINT):
        return _numbers(_value(one, POINT), 2)
    if _has(one, BOX):
        return _box(one)
    return _numbers([one.get("x"), one.get("y")], 2)


def _box3d(one: object) -> tuple[float, ...] | None:
    """Return centre and sizes; turns are left out, as by the cookbook's evaluator."""
    at = _numbers(_value(one, SPACE) if isinstance(one, dict) else one, 6, 7, 9)
    return at[:6] if at and min(at[3:6]) > 0 else None


_READERS: dict[str, Callable[[object], tuple[float, ...] | None]] = {
    EVENTS: _span,
    SPANS: _span,
    BOXES: _box,
    POINTS: _point,
    BOX3D: _box3d,
}


def _path(value: object) -> tuple[float, ...] | None:
    """Return the points of a list, one behind the other."""
    points = [_point(one) for one in value] if isinstance(value, list) else [None]
    if not points or any(point is None or len(point) != 2 for point in points):
        return None
    return tuple(number for point in points for number in point)


def _trajectories(listed: list) -> list[Item] | None:
    """Return the trajectories of a list: each element is one, or all are points, of which each
    label names another trajectory."""
    if any(isinstance(one, dict) and _has(one, PATH) for one in listed):
        named = [
            (_names(one)[0], _value(one, PATH) if isinstance(one, dict) else None) for one in listed
        ]
    elif listed and all(map(_path, listed)):
        named = [("", one) for one in listed]
    else:
        by_label = defaultdict(list)
        for one in listed:
            by_label[_names(one)[0]].append(one)
        named = list(by_label.items())
    found = [Item(at, label) for label, points in named if (at := _path(points))]
    return found if len(found) == len(named) else None
