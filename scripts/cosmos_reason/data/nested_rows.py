"""Rows of exports that keep clips below something else, such as the trips of a vehicle."""

from __future__ import annotations

from cosmos_reason.base import findings as f
from cosmos_reason.data.columns import COLUMNS, OF_CLIPS, names_medium

KNOWN = {name for names in COLUMNS.values() for name in names}
ASKED = {*COLUMNS["question"], *COLUMNS["answer"]}


def flattened(rows: list, given: dict[str, str], where: object) -> list:
    """A row for each object with a clip in a list below `rows`, with the plain values around it:
    {"trip": 1, "clips": [{"file": "a.mp4"}]} is {"trip": 1, "file": "a.mp4"}; other rows as they
    are. `given`: {role: column} by the user. Raises Failure for clips in two lists of an object.
    """
    asked = ASKED | {given[role] for role in ("question", "answer") if role in given}
    return [inner for row in rows for inner in _below(row, asked, where) or [row]]


def _below(row: object, asked: set[str], where: object) -> list[dict]:
    """The rows that an object stands for; none where no clip is named in it."""
    if not isinstance(row, dict):
        return []
    if _names_clip(row):
        return [row]
    if asked & row.keys():  # several clips that are asked about together
        return []
    found = {}
    for name, value in row.items():
        inner = _in_list(value, asked, where)
        if inner:
            found[name] = inner
    if len(found) > 1:
        message = f"got clips in several lists of one object: {', '.join(found)}, expected one"
        raise f.bad_input("BUILD-TABLE", where, message, "write each list to a file of its own")
    around = {name: value for name, value in row.items() if _is_plain(name, value)}
    # What is said of a clip comes first, and counts.
    return [{**inner, **around, **inner} for rows in found.values() for inner in rows]


def _in_list(value: object, asked: set[str], where: object) -> list[dict]:
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        return []
    return [inner for part in value for inner in _below(part, asked, where)]


def _names_clip(row: dict) -> bool:
    """Whether one of its values is a clip's name, or stands where such names do."""
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    return bool(OF_CLIPS & texts.keys()) or any(map(names_medium, texts.values()))


def _is_plain(name: str, value: object) -> bool:
    """Whether it may stand in a row of its clips: the id or path of a trip is none of a clip."""
    return isinstance(value, str | int | float) and name.lower() not in KNOWN
