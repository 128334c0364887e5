"""Questions that stand below their clip, as rows: by the clip's name (Perception Test, TempCompass,
HourVideo), or in a list of the object that names it."""

from __future__ import annotations

from cosmos_reason.data.columns import COLUMNS

ASKING = set(COLUMNS["question"])
OF_EACH = {name for role in ("question", "answer", "options", "id") for name in COLUMNS[role]}
OF_MEDIA = {*COLUMNS["video"], *COLUMNS["image"]}


def expanded(rows: list) -> list:
    """A row for each question of objects that hold several; other rows as they are."""
    if len(rows) == 1 and is_by_clip(rows[0]):
        found = []
        for name, value in rows[0].items():
            found += [_of_clip(name, question) for question in _below(value)]
        return found
    return [asked for row in rows for asked in _of_row(row)]


def _of_clip(name: str, question: dict) -> dict:
    """The row of a question, whose own id may be that of questions of other clips, too."""
    row = {"video": name, **question}
    if "id" in question:
        row["id"] = f"{name}-{question['id']}"
    return row


def is_by_clip(record: object) -> bool:
    """Whether an object holds the questions of each clip under its name."""
    return isinstance(record, dict) and bool(record) and all(map(_below, record.values()))


def holds_questions(record: dict) -> bool:
    """Whether an object has a list of questions, and none of its own."""
    return not ASKING & record.keys() and any(map(_are_questions, record.values()))


def _of_row(row: object) -> list:
    if not isinstance(row, dict) or not holds_questions(row):
        return [row]
    around = {}
    for name, value in row.items():
        is_shared = name.lower() not in OF_EACH or name.lower() in OF_MEDIA
        if isinstance(value, str | int | float) and is_shared:
            around[name] = value
    lists = [value for value in row.values() if _are_questions(value)]
    return [{**around, **question} for questions in lists for question in questions]


def _below(value: object) -> list[dict]:
    """The questions in a list, or in the lists of an object."""
    if _are_questions(value):
        return value
    if not isinstance(value, dict):
        return []
    return [question for part in value.values() for question in _below(part)]


def _are_questions(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(part, dict) and ASKING & part.keys() for part in value)
