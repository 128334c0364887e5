"""Sets of places that a response lists as JSON: events, spans of time, boxes, points, trajectories
and boxes in space. Which ground truths are one, what a response lists, and how well it matches.

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
from itertools import pairwise
from typing import NamedTuple

from cosmos_reason.answers.commitment import Reading, takes_back
from cosmos_reason.answers.places import intersection_over_union, is_time, seconds
from cosmos_reason.answers.response import final_answer
from cosmos_reason.answers.words import fold

EVENTS, SPANS, BOXES, POINTS = "events", "spans", "boxes", "points"
TRAJECTORIES, BOX3D = "trajectories", "box3d"
SET_TYPES = (EVENTS, SPANS, BOXES, POINTS, TRAJECTORIES, BOX3D)
PLANE_TYPES = (BOXES, POINTS, TRAJECTORIES)  # measured in the picture
OVERLAPS = (0.3, 0.5, 0.7)
RIGHT_OVERLAP = 0.5
AP_OVERLAPS = tuple(number / 100 for number in range(50, 100, 5))
WHOLE = 1000  # a side of the picture in the unit of points and trajectories (NVIDIA's guide)
NEAR = 0.05  # of a side: a point that hits another
NEAR_PATH = 0.1  # of a side: a trajectory that follows another (Frechet distance)
STEPS = 50  # of a trajectory, equally long, in which it is compared

# How NVIDIA's prompt guide, Qwen and label tools name the parts of an element.
START = ("start", "start_time", "t_start", "begin", "from", "start_s", "start_sec")
END = ("end", "end_time", "t_end", "stop", "to", "end_s", "end_sec")
RANGE = ("timestamps", "timestamp", "time", "interval", "span", "segment")
BOX = ("bbox_2d", "bbox", "box_2d", "box", "bounding_box", "bbox2d")
POINT = ("point_2d", "point", "coordinates", "position")
PATH = ("trajectory", "path", "waypoints")
SPACE = ("bbox_3d", "box_3d", "bbox3d", "box3d")
LABEL = ("label", "class", "category", "event", "action", "name")
CAPTION = ("caption", "description", "text")

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
    """Return the type of a ground truth that lists elements whose keys say what they are; else
    ''. Numbers alone say nothing."""
    if "{" not in gt:
        return ""
    documents, _ = _documents(gt)
    if not documents or len(documents) > 1:
        return ""
    listed = _elements(documents[0])
    first = listed[0] if listed else None
    if not isinstance(first, dict):
        return ""
    kind = ""
    if _has(first, SPACE):
        kind = BOX3D
    elif _has(first, PATH):
        kind = TRAJECTORIES
    elif _has(first, BOX):
        kind = BOXES
    elif _has(first, POINT):
        is_path = re.search(r"trajector|waypoint|\bpath\b", f"{question} {first}", re.I)
        kind = TRAJECTORIES if is_path else POINTS
    elif (_has(first, START) and _has(first, END)) or _has(first, RANGE):
        kind = EVENTS if _has(first, LABEL) or _has(first, CAPTION) else SPANS
    return kind if kind and _items(documents[0], kind) else ""


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


# -- reading ------------------------------------------------------------------------------------


def _documents(text: str) -> tuple[list | None, str]:
    """The JSON documents of a text and the words beside them; None and why, where one is cut off
    or no parser takes it. Objects behind one another are a list."""
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
    """The elements that a document lists: it is the list, an object with one list, or the only
    element. None for anything else."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    if any(_has(document, keys) for keys in (START, BOX, POINT, PATH, SPACE)) or _span(document):
        return [document]
    lists = [value for value in document.values() if isinstance(value, list)]
    return lists[0] if len(lists) == 1 else None


def _items(document: object, type: str) -> list[Item] | None:
    """The elements of a document as `type` has them; None where one of them is none."""
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
    """Finite numbers, as many as one of `counts`."""
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
    """A point, or the box that it must lie in."""
    if not isinstance(one, dict):
        return _numbers(one, 2)
    if _has(one, POINT):
        return _numbers(_value(one, POINT), 2)
    if _has(one, BOX):
        return _box(one)
    return _numbers([one.get("x"), one.get("y")], 2)


def _box3d(one: object) -> tuple[float, ...] | None:
    """Centre and sizes; turns are left out, as the cookbook's evaluator does."""
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
    """The points of a list, one behind the other."""
    points = [_point(one) for one in value] if isinstance(value, list) else [None]
    if not points or any(point is None or len(point) != 2 for point in points):
        return None
    return tuple(number for point in points for number in point)


def _trajectories(listed: list) -> list[Item] | None:
    """A list of points is one trajectory, of which each label names another."""
    if any(isinstance(one, dict) and _has(one, PATH) for one in listed):
        found = []
        for one in listed:
            at = _path(_value(one, PATH)) if isinstance(one, dict) else None
            if at is None:
                return None
            found.append(Item(at, _names(one)[0]))
        return found
    paths = [_path(one) for one in listed]
    if listed and all(paths):
        return [Item(at) for at in paths]
    by_label = defaultdict(list)
    for one in listed:
        by_label[_names(one)[0]].append(one)
    found = []
    for label, points in by_label.items():
        at = _path(points)
        if at is None:
            return None
        found.append(Item(at, label))
    return found


# -- how well a set matches ---------------------------------------------------------------------


def compare(answer: str, expected: str, type: str) -> tuple[float, dict[str, float]]:
    """Return the score of a set against the expected one, from 0 to 1, and its parts. The score is
    an F1 (Dice) of the elements that match each other: those of the same label that overlap by
    RIGHT_OVERLAP, lie within NEAR, or run within NEAR_PATH."""
    said, meant = items_of(answer), items_of(expected)
    if type == POINTS:
        return _compare_points(said, meant)
    if type == TRAJECTORIES:
        return _compare_paths(said, meant)
    overlaps = [[_overlap(one, other, type) for other in meant] for one in said]
    parts = {}
    for limit in AP_OVERLAPS if type == BOX3D else OVERLAPS:
        hits = len(assigned([[float(value >= limit) for value in row] for row in overlaps]))
        parts[f"f1@{limit:g}"] = _dice(hits, said, meant)
    score = parts[f"f1@{RIGHT_OVERLAP:g}"]
    if type == BOX3D:
        parts = _average_precision(said, meant) | {"f1@0.5": score}
        close = [
            [1 / (1 + _apart(one, other)) if _alike(one, other) else 0.0 for other in meant]
            for one in said
        ]
        pairs = assigned(close)
        if pairs:
            apart = [_apart(said[one], meant[other]) for one, other in pairs]
            parts["centre_distance"] = _mean(apart)
    pairs = assigned(overlaps)
    shared = sum(overlaps[one][other] for one, other in pairs)
    parts["mean_iou"] = shared / max(len(said), len(meant), 1) if said or meant else 1.0
    if type == EVENTS:
        parts |= _order_and_captions(said, meant, pairs)
    return score, {name: round(value, 6) for name, value in parts.items()}


def _dice(hits: int, said: Sequence, meant: Sequence) -> float:
    return 2 * hits / (len(said) + len(meant)) if said or meant else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _alike(one: Item, other: Item) -> bool:
    """Whether an element has the label expected; boxes in space without their number ("car_1")."""
    said, meant = one.label.partition("_")[0], other.label.partition("_")[0]
    return not meant or said == meant


def _overlap(one: Item, other: Item, type: str) -> float:
    if type == BOX3D:
        return intersection_over_union(_corners(one), _corners(other)) if _alike(one, other) else 0
    if other.label and one.label != other.label:
        return 0.0
    return intersection_over_union(one.at, other.at)


def _corners(box: Item) -> tuple[float, ...]:
    middle, sizes = box.at[:3], box.at[3:]
    low = tuple(place - size / 2 for place, size in zip(middle, sizes, strict=True))
    return low + tuple(place + size / 2 for place, size in zip(middle, sizes, strict=True))


def _apart(one: Item, other: Item) -> float:
    return math.dist(one.at[:3], other.at[:3])


def _average_precision(said: Sequence[Item], meant: Sequence[Item]) -> dict[str, float]:
    """AP3D as the cookbook's evaluator has it: the share of a label's boxes that match at an
    overlap, mean over the labels expected, then over AP_OVERLAPS."""
    labels = {item.label.partition("_")[0] for item in meant}
    at = {}
    for limit in AP_OVERLAPS:
        precisions = []
        for label in labels:
            ours = [item for item in said if item.label.partition("_")[0] == label]
            theirs = [item for item in meant if item.label.partition("_")[0] == label]
            hit = [[float(_overlap(one, two, BOX3D) >= limit) for two in theirs] for one in ours]
            precisions.append(len(assigned(hit)) / len(ours) if ours else 0.0)
        at[limit] = _mean(precisions) if precisions else 0.0
    return {"ap3d": _mean([*at.values()]), "ap3d@0.5": at[0.5], "ap3d@0.75": at[0.75]}


def _order_and_captions(said, meant, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    """How much of the order of matched events is right (pairs of neighbours of Kendall's tau), and
    how many words of their captions are the expected ones (F1)."""
    parts = {}
    places = sorted(pairs, key=lambda pair: said[pair[0]].at)
    ranks = [meant[other].at for _, other in places]
    couples = [(a, b) for number, a in enumerate(ranks) for b in ranks[number + 1 :]]
    if couples:
        parts["order"] = _mean([float(a <= b) for a, b in couples])
    alike = []
    for one, other in pairs:
        if meant[other].caption:
            ours = said[one].caption.split()
            theirs = meant[other].caption.split()
            shared = sum(min(ours.count(word), theirs.count(word)) for word in set(ours))
            alike.append(2 * shared / (len(ours) + len(theirs)))
    if alike:
        parts["caption_f1"] = _mean(alike)
    return parts


def _compare_points(said, meant) -> tuple[float, dict[str, float]]:
    """Points against points, or against the boxes that they must lie in."""

    def distance(one: Item, other: Item) -> float:
        """In sides of the picture; to a box it is that to the nearest place in it."""
        (x, y), (left, top), (right, bottom) = one.at[:2], other.at[:2], other.at[-2:]
        return math.hypot(max(left - x, 0, x - right) / WHOLE, max(top - y, 0, y - bottom) / WHOLE)

    apart = [[distance(one, other) for other in meant] for one in said]
    hits, near = [], []
    for one, row in zip(said, apart, strict=True):
        # A box is no point.
        alike = [len(one.at) == 2 and other.label in ("", one.label) for other in meant]
        limits = [0.0 if len(other.at) == 4 else NEAR for other in meant]
        hits.append(
            [float(ok and far <= most) for ok, far, most in zip(alike, row, limits, strict=True)]
        )
        near.append([1 / (1 + far) if ok else 0.0 for ok, far in zip(alike, row, strict=True)])
    hit = len(assigned(hits))
    score = _dice(hit, said, meant)
    parts = {"f1": score, "hit_rate": hit / len(meant) if meant else 1.0}
    pairs = assigned(near)
    if pairs:
        parts["distance"] = _mean([apart[one][other] for one, other in pairs])
    return score, {name: round(value, 6) for name, value in parts.items()}


def _compare_paths(said, meant) -> tuple[float, dict[str, float]]:
    ours = [_steps(item) for item in said]
    theirs = [_steps(item) for item in meant]
    apart = [[frechet(one, other) for other in theirs] for one in ours]
    hits, near = [], []
    for one, row in zip(said, apart, strict=True):
        alike = [other.label in ("", one.label) for other in meant]
        hits.append([float(ok and far <= NEAR_PATH) for ok, far in zip(alike, row, strict=True)])
        near.append([1 / (1 + far) if ok else 0.0 for ok, far in zip(alike, row, strict=True)])
    score = _dice(len(assigned(hits)), said, meant)
    parts = {"f1": score}
    pairs = assigned(near)
    if pairs:
        parts["frechet"] = _mean([apart[one][other] for one, other in pairs])
        parts["dtw"] = _mean([warped(ours[one], theirs[other]) for one, other in pairs])
        ends = [math.dist(ours[one][-1], theirs[other][-1]) for one, other in pairs]
        parts["end_distance"] = _mean(ends)
    return score, {name: round(value, 6) for name, value in parts.items()}


Point = tuple[float, float]


def _steps(item: Item) -> list[Point]:
    """STEPS points at equal lengths along a trajectory, in sides of the picture: how densely one
    is written does not count."""
    points = [(x / WHOLE, y / WHOLE) for x, y in zip(item.at[::2], item.at[1::2], strict=True)]
    lengths = [math.dist(one, other) for one, other in pairwise(points)]
    total = sum(lengths)
    if not total:
        return points[:1] * STEPS
    found = []
    passed, place = 0.0, 0
    for step in range(STEPS):
        wanted = total * step / (STEPS - 1)
        while place < len(lengths) - 1 and passed + lengths[place] < wanted:
            passed += lengths[place]
            place += 1
        share = min(1.0, (wanted - passed) / lengths[place]) if lengths[place] else 0.0
        (x1, y1), (x2, y2) = points[place], points[place + 1]
        found.append((x1 + share * (x2 - x1), y1 + share * (y2 - y1)))
    return found


def frechet(one: Sequence[Point], other: Sequence[Point]) -> float:
    """Return the discrete Frechet distance (Eiter and Mannila 1994)."""
    return _along(one, other, max)[0]


def warped(one: Sequence[Point], other: Sequence[Point]) -> float:
    """Return the mean distance along the best warping of one onto the other (DTW, Sakoe and Chiba
    1978, over the number of its steps)."""
    total, steps = _along(one, other, lambda before, here: before + here)
    return total / steps


def _along(one, other, joined: Callable[[float, float], float]) -> tuple[float, int]:
    """The least value of a walk along both, and its steps."""
    row: list[tuple[float, int]] = []
    for number, point in enumerate(one):
        line: list[tuple[float, int]] = []
        for place, target in enumerate(other):
            here = math.dist(point, target)
            before = [*row[max(0, place - 1) : place + 1], *line[-1:]]
            if not number and not place:
                line.append((here, 1))
            else:
                value, steps = min(before)
                line.append((joined(value, here), steps + 1))
        row = line
    return row[-1]


def assigned(weights: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Return the pairs (row, column) of the largest sum of weights, each row and column once at
    most and only where the weight is above 0: Hungarian method by shortest augmenting paths
    (Jonker and Volgenant 1987)."""
    if not weights or not weights[0]:
        return []
    if len(weights) > len(weights[0]):
        turned = assigned([list(column) for column in zip(*weights, strict=True)])
        return sorted((row, column) for column, row in turned)
    rows, columns = len(weights), len(weights[0])
    of_row, of_column = [0.0] * (rows + 1), [0.0] * (columns + 1)
    taken = [0] * (columns + 1)  # column -> its row, from 1; column 0 holds the row to place
    for row in range(1, rows + 1):
        taken[0], column = row, 0
        least, came = [math.inf] * (columns + 1), [0] * (columns + 1)
        done = [False] * (columns + 1)
        while taken[column]:
            done[column] = True
            here, step, following = taken[column], math.inf, 0
            for other in range(1, columns + 1):
                if done[other]:
                    continue
                cost = -weights[here - 1][other - 1] - of_row[here] - of_column[other]
                if cost < least[other]:
                    least[other], came[other] = cost, column
                if least[other] < step:
                    step, following = least[other], other
            for other in range(columns + 1):
                if done[other]:
                    of_row[taken[other]] += step
                    of_column[other] -= step
                else:
                    least[other] -= step
            column = following
        while column:
            taken[column] = taken[came[column]]
            column = came[column]
    pairs = [(taken[column] - 1, column - 1) for column in range(1, columns + 1) if taken[column]]
    return sorted((row, column) for row, column in pairs if weights[row][column] > 0)
