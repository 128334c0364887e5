"""How well a set of places matches the expected one: overlaps, distances, order, and the score
that is paid and counted. References/cosmos-reason-scoring.md lists the measures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from cosmos_reason.answers.places import intersection_over_union
from cosmos_reason.answers.structures import BOX3D, EVENTS, POINTS, TRAJECTORIES, Item, items_of

OVERLAPS = (0.3, 0.5, 0.7)
RIGHT_OVERLAP = 0.5
AP_OVERLAPS = tuple(number / 100 for number in range(50, 100, 5))
WHOLE = 1000  # a side of the picture in the unit of points and trajectories (NVIDIA's guide)
NEAR = 0.05  # of a side: a point that hits another
NEAR_PATH = 0.1  # of a side: a trajectory that follows another (Frechet distance)
STEPS = 50  # of a trajectory, equally long, in which it is compared

Point = tuple[float, float]


def compare(answer: str, expected: str, type: str) -> tuple[float, dict[str, float]]:
    """Return the score of a set against the expected one, from 0 to 1, and its parts. The score is
    an F1 (Dice) of the elements that match each other: those of the same label that overlap by
    RIGHT_OVERLAP, lie within NEAR, or run within NEAR_PATH. A match of events counts as much as its
    caption has the words expected."""
    said, meant = items_of(answer), items_of(expected)
    if type in (POINTS, TRAJECTORIES):
        return _compare_distances(said, meant, type)
    overlaps = [[_overlap(one, other, type) for other in meant] for one in said]
    parts, pairs = {}, []
    for limit in AP_OVERLAPS if type == BOX3D else OVERLAPS:
        found = assigned([[float(value >= limit) for value in row] for row in overlaps])
        parts[f"f1@{limit:g}"] = _dice(len(found), said, meant)
        if limit == RIGHT_OVERLAP:
            pairs = found
    worth = [caption_f1(said[one], meant[other]) for one, other in pairs]
    score = _dice(sum(worth), said, meant)
    if type == BOX3D:
        parts = _average_precision(said, meant) | {"f1@0.5": parts["f1@0.5"]}
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


def _dice(hits: float, said: Sequence, meant: Sequence) -> float:
    return 2 * hits / (len(said) + len(meant)) if said or meant else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _alike(one: Item, other: Item) -> bool:
    """Return whether an element has the label expected; boxes in space without their number
    ("car_1")."""
    return not _kind(other) or _kind(one) == _kind(other)


def _kind(box: Item) -> str:
    return box.label.partition("_")[0]


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
    """Return AP3D as the cookbook's evaluator has it: the share of a label's boxes that match at an
    overlap, mean over the labels expected, then over AP_OVERLAPS."""
    at = {}
    for limit in AP_OVERLAPS:
        precisions = []
        for label in {_kind(item) for item in meant}:
            ours = [item for item in said if _kind(item) == label]
            theirs = [item for item in meant if _kind(item) == label]
            hit = [[float(_overlap(one, two, BOX3D) >= limit) for two in theirs] for one in ours]
            precisions.append(len(assigned(hit)) / len(ours) if ours else 0.0)
        at[limit] = _mean(precisions) if precisions else 0.0
    return {"ap3d": _mean([*at.values()]), "ap3d@0.5": at[0.5], "ap3d@0.75": at[0.75]}


def _order_and_captions(said, meant, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return how much of the order of matched events is right (pairs of neighbours of Kendall's
    tau), and how many words of their captions are the expected ones (F1)."""
    parts = {}
    places = sorted(pairs, key=lambda pair: said[pair[0]].at)
    ranks = [meant[other].at for _, other in places]
    couples = [(a, b) for number, a in enumerate(ranks) for b in ranks[number + 1 :]]
    if couples:
        parts["order"] = _mean([float(a <= b) for a, b in couples])
    named = [(said[one], meant[other]) for one, other in pairs if meant[other].caption]
    if named:
        parts["caption_f1"] = _mean([caption_f1(one, other) for one, other in named])
    return parts


def caption_f1(one: Item, other: Item) -> float:
    """Return how many words of a caption are the expected ones (F1); 1 where none is expected."""
    if not other.caption:
        return 1.0
    ours, theirs = Counter(one.caption.split()), Counter(other.caption.split())
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def _compare_distances(said, meant, type: str) -> tuple[float, dict[str, float]]:
    """Compare trajectories, or points with points or the boxes that they must lie in, by distances
    in sides of the picture."""
    is_path = type == TRAJECTORIES
    ours = [_steps(item) for item in said] if is_path else said
    theirs = [_steps(item) for item in meant] if is_path else meant
    apart, hits, near = [], [], []
    for i, one in enumerate(said):
        row, hit, close = [], [], []
        for j, other in enumerate(meant):
            if is_path:
                far, limit = frechet(ours[i], theirs[j]), NEAR_PATH
            else:
                # A box is as far as its nearest place.
                (x, y), (left, top), (right, bottom) = one.at[:2], other.at[:2], other.at[-2:]
                across, down = max(left - x, 0, x - right), max(top - y, 0, y - bottom)
                far = math.hypot(across / WHOLE, down / WHOLE)
                limit = 0.0 if len(other.at) == 4 else NEAR
            # A box that a response names is no point.
            is_alike = other.label in ("", one.label) and (is_path or len(one.at) == 2)
            row.append(far)
            hit.append(float(is_alike and far <= limit))
            close.append(1 / (1 + far) if is_alike else 0.0)
        apart.append(row)
        hits.append(hit)
        near.append(close)
    hit_count = len(assigned(hits))
    score = _dice(hit_count, said, meant)
    parts = {"f1": score}
    if not is_path:
        parts["hit_rate"] = hit_count / len(meant) if meant else 1.0
    pairs = assigned(near)
    if pairs:
        parts["frechet" if is_path else "distance"] = _mean([apart[i][j] for i, j in pairs])
    return score, {name: round(value, 6) for name, value in parts.items()}


def _steps(item: Item) -> list[Point]:
    """Return STEPS points at equal lengths along a trajectory, in sides of the picture: how densely
    one is written does not count."""
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
    row: list[float] = []
    for point in one:
        line: list[float] = []
        for place, target in enumerate(other):
            here = math.dist(point, target)
            before = [*row[max(0, place - 1) : place + 1], *line[-1:]]
            line.append(max(here, min(before, default=0.0)))
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
