"""Rows of exports that keep things in one another: clips below the trips of a vehicle, questions or
labels below a clip."""

from __future__ import annotations

from collections.abc import Iterator

from cosmos_reason.base import findings as f
from cosmos_reason.data.formats import are_pairs
from cosmos_reason.data.roles import NAMES, OF_CLIPS, OF_TEXTS, names_medium

# What is said of each clip, and never of all that lie below one object.
KNOWN = {name for role, names in NAMES.items() if role not in ("group", "tag") for name in names}
SHORT = {"q": "question", "a": "answer"}
ASKED = {*NAMES["question"], *NAMES["answer"]}


def flattened(rows: list, given: set[str], where: object) -> list:
    """A row for each object with a clip in a list below `rows`, with the plain values around it:
    {"trip": 1, "clips": [{"file": "a.mp4"}]} is {"trip": 1, "file": "a.mp4"}; a row for each
    question of a clip that has a list of them; other rows as they are. `given`: the columns of
    questions and answers that are declared. Raises Failure for clips in two lists of an object, and
    for objects nested without end.
    """
    asked = ASKED | given
    try:
        clips = [inner for row in rows for inner in _below(row, asked, where) or [row]]
    except RecursionError:
        message = "got objects nested too deep, expected rows"
        raise f.bad_input("BUILD-TABLE", where, message) from None
    return [one for row in clips for one in _each_question(row)]


def by_clip(rows: list) -> list:
    """{"a.mp4": "rain", ...} as rows, or as records with their questions; other rows as they
    are."""
    if len(rows) != 1 or not isinstance(rows[0], dict) or not all(map(names_medium, rows[0])):
        return rows
    return [_of_clip(name, value) for name, value in rows[0].items()]


def _of_clip(name: str, value: object) -> dict:
    if are_pairs(value):
        return {"video": name, "qa_pairs": value}
    if isinstance(value, dict) and {"q", "a"} <= value.keys():
        return {"video": name, "qa_pairs": [value]}
    if isinstance(value, dict) and OF_TEXTS & value.keys():
        return {"video": name, **value}
    return {"video": name, "answer": value}


def each_caption(rows: list) -> Iterator:
    """A row for each text of those that have several captions; other rows as they are."""
    for row in rows:
        captions = row.get("captions") if isinstance(row, dict) else None
        if isinstance(captions, list) and all(isinstance(text, str) for text in captions):
            others = {name: value for name, value in row.items() if name != "captions"}
            yield from ({**others, "caption": text} for text in captions)
        else:
            yield row


def _each_question(row: object) -> list:
    """{"file": "a.mp4", "questions": [{"q": "Rain?", "a": "no"}]} as rows of one question."""
    if not isinstance(row, dict) or not _names_clip(row):
        return [row]
    lists = [name for name, value in row.items() if _are_questions(value)]
    if len(lists) != 1:
        return [row]
    around = {name: value for name, value in row.items() if name not in (*lists, *ASKED)}
    return [{**around, **_in_full(pair)} for pair in row[lists[0]]]


def _are_questions(value: object) -> bool:
    if not are_pairs(value):
        return False
    keys = ({"question", "answer"}, {"q", "a"})
    return all(isinstance(pair, dict) and any(two <= pair.keys() for two in keys) for pair in value)


def _in_full(pair: dict) -> dict:
    """A pair with the keys that columns are known by."""
    return {SHORT.get(name, name): value for name, value in pair.items()}


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
    """Those of a list of objects, or of an object of clips by their names."""
    if isinstance(value, dict):
        value = by_clip([value])
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


def with_fields(rows: list[dict], fields: tuple[str, ...]) -> tuple[list[dict], str]:
    """The rows with `fields` of the object that holds their labels, and the column of these: one
    field becomes a column of its own. Raises Failure where a row has no such object, or several."""
    chosen = []
    column = fields[0]
    for number, row in enumerate(rows):
        objects = {name: value for name, value in row.items() if isinstance(value, dict)}
        holding = [name for name, value in objects.items() if set(fields) <= value.keys()]
        if len(holding) != 1:
            raise _without_fields(fields, number, objects)
        others = {name: value for name, value in row.items() if name != holding[0]}
        kept = {name: row[holding[0]][name] for name in fields}
        if len(fields) > 1:
            column = holding[0]
            kept = {column: kept}
        chosen.append({**others, **kept})
    return chosen, column


def _without_fields(fields: tuple[str, ...], number: int, objects: dict[str, dict]) -> f.Failure:
    known = list(dict.fromkeys(name for value in objects.values() for name in value))
    if not known:
        message = f"got it for rows of plain columns (row {number}), which have no use for it"
        return f.bad_input("USAGE", "--fields", message, f"drop --fields {','.join(fields)}")
    hint = "".join(f.did_you_mean(field, known) for field in fields if field not in known)
    wanted = ", ".join(fields)
    message = f"got {', '.join(known)} in row {number}, expected one object with {wanted}.{hint}"
    return f.bad_input("BUILD-FIELD", "--fields", message)
