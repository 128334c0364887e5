"""Questions that stand below their clip, as rows: by the clip's name (Perception Test, TempCompass,
HourVideo), or in a list of the object that names it; and the events of ActivityNet's files."""

from __future__ import annotations

from cosmos_reason.data.roles import NAMES

ASKING = set(NAMES["question"])
OF_EACH = {name for role in ("question", "answer", "options", "id") for name in NAMES[role]}
OF_MEDIA = {*NAMES["video"], *NAMES["image"]}


def expanded(rows: list) -> list:
    """A row for each question of objects that hold several; other rows as they are."""
    if len(rows) == 1 and is_by_clip(rows[0]):
        found = []
        for name, value in rows[0].items():
            found += [_of_clip(name, question) for question in _below(value)]
        return found
    if len(rows) == 1 and _is_database(rows[0]):
        return _events(rows[0]["database"])
    return [asked for row in rows for asked in _of_row(row)]


def _is_database(record: object) -> bool:
    """Whether it is an object of ActivityNet's shape: clips, each with its events (YouCook2, HACS,
    THUMOS)."""
    clips = record.get("database") if isinstance(record, dict) else None
    return isinstance(clips, dict) and bool(clips) and all(map(_has_events, clips.values()))


def _has_events(clip: object) -> bool:
    events = clip.get("annotations") if isinstance(clip, dict) else None
    return isinstance(events, list) and all(
        isinstance(event, dict) and "segment" in event for event in events
    )


def _events(clips: dict[str, dict]) -> list[dict]:
    """A row for each event, with its clip's part of the set."""
    rows = []
    for name, clip in clips.items():
        for event in clip["annotations"]:
            known = {key: value for key, value in event.items() if key != "id"}
            rows.append({"video": name, "subset": clip.get("subset"), **known})
    return rows


def holds_rows(record: dict) -> bool:
    """Whether an object stands for several rows."""
    return is_by_clip(record) or holds_questions(record) or _is_database(record)


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
