"""Rows of JSON that keeps things in one another: sets whose way to their rows is published, clips
below the trips of a vehicle, questions, captions or labels below a clip. Enter at `rows`."""

from __future__ import annotations

from cosmos_reason.base import findings as f
from cosmos_reason.data.published_sets import WAYS
from cosmos_reason.data.roles import NAMES, OF_CLIPS, OF_TEXTS
from cosmos_reason.media.files import names_medium

# What is said of each clip, and never of all that lie below one object.
OF_A_CLIP = {
    name for role, names in NAMES.items() if role not in ("group", "tag") for name in names
}
ASKING = set(NAMES["question"])
OF_A_QUESTION = {name for role in ("question", "answer", "options", "id") for name in NAMES[role]}
OF_A_QUESTION -= {*NAMES["video"], *NAMES["image"]}
SHORT = {"q": "question", "a": "answer"}
DEEPEST = 32  # objects around a clip: no published set has more than a few
WHOLE = "-1"  # the caption of ShareGPT4Video that is about the whole clip
TIMED = "Describe each event in the video, with its start and end in seconds."


def rows(records: list, declared: set[str], where: object) -> list:
    """Return a row for each clip, question or caption below the `records`, with the plain values
    around it: {"trip": 1, "clips": [{"file": "a.mp4"}]} is {"trip": 1, "file": "a.mp4"}; other
    records as they are. `declared` are columns of questions and answers. Raises Failure for clips
    in two lists of an object, and for more than DEEPEST objects around one."""
    if len(records) == 1:
        listed = _of_published_set(records[0])
        if listed:
            return listed
    asked = {*ASKING, *NAMES["answer"], *declared}
    # A record without clips stays as it is, and one whose clips are asked about together.
    clips = [clip for one in records for clip in _named_below(one, asked, where, 0) or [one]]
    return by_clip([row for clip in clips for row in _of_clip(clip)])


def told(record: dict) -> str:
    """Return what a record that stands for several rows holds; "" for any other."""
    if _is_timed(record) or (record and all(map(names_medium, record))):
        return "labels by clip"
    is_list = _of_published_set(record) or _lists_of_questions(record)
    return "questions or events in lists" if is_list else ""


def _of_published_set(record: object) -> list[dict]:
    """Return the rows of a document of `published_sets.WAYS`; [] for any other."""
    if _is_timed(record):
        rows = []
        for name, said in record.items():
            timed = zip(said["timestamps"], said["sentences"], strict=True)
            lines = [f"{start}s - {end}s: {sentence.strip()}" for (start, end), sentence in timed]
            rows.append({"video": name, "question": TIMED, "answer": "\n".join(lines)})
        return rows
    for way, columns in WAYS.values():
        found = _along(way.split(), columns, record, {})
        for row in found or ():
            if "{video}" in way and "id" in row:  # other clips may have the same numbers
                row["id"] = f"{row['video']}-{row['id']}"
        if found:
            return found
    return []


def _along(way: list[str], columns: set[str], value: object, around: dict) -> list[dict] | None:
    """Return the rows at the end of a way, None where a value is not as it says."""
    if not way:
        return (
            [{**around, **value}] if isinstance(value, dict) and columns <= value.keys() else None
        )
    step, rest = way[0], way[1:]
    if step == "[]":
        inner = [(part, around) for part in value] if isinstance(value, list) else None
    elif not isinstance(value, dict):
        inner = None
    elif step == "{video}":
        inner = [(part, {"video": name}) for name, part in value.items()]
    else:
        around = {**around, **_plain(value, OF_A_QUESTION)}
        if step != "*":
            return _along(rest, columns, value.get(step), around)
        below = [_along(rest, columns, part, around) for part in value.values()]
        return [row for rows in below for row in rows or ()] or None
    found = []
    for part, beside in inner or ():
        rows = _along(rest, columns, part, beside)
        if rows is None:
            return None
        found += rows
    return None if inner is None else found


def _plain(row: dict, without: set[str]) -> dict:
    """Return the texts and numbers of an object that may stand in the rows below it."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, str | int | float) and name.lower() not in without
    }


def _is_timed(record: object) -> bool:
    """Return whether it is ActivityNet Captions: for each clip its sentences and their times."""
    if not isinstance(record, dict) or not record:
        return False
    for said in record.values():
        if not isinstance(said, dict):
            return False
        times, sentences = said.get("timestamps"), said.get("sentences")
        if not isinstance(times, list) or not isinstance(sentences, list):
            return False
        if len(times) != len(sentences) or not all(isinstance(one, str) for one in sentences):
            return False
        if not all(isinstance(span, list) and len(span) == 2 for span in times):
            return False
    return True


def _named_below(row: object, asked: set[str], where: object, depth: int) -> list[dict]:
    """Return the objects below a row that name clips, with the plain values around them."""
    if not isinstance(row, dict):
        return []
    if depth > DEEPEST:
        message = f"got objects in more than {DEEPEST} others, expected rows"
        raise f.bad_input("BUILD-TABLE", where, message)
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    if OF_CLIPS & texts.keys() or any(map(names_medium, texts.values())):
        return [row]
    if asked & row.keys():
        return []
    found = {}
    for name, value in row.items():
        parts = by_clip([value]) if isinstance(value, dict) else value
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            continue
        inner = [clip for part in parts for clip in _named_below(part, asked, where, depth + 1)]
        if inner:
            found[name] = inner
    if len(found) > 1:
        message = f"got clips in several lists of one object: {', '.join(found)}, "
        message += "expected one: write each list to a file of its own"
        raise f.bad_input("BUILD-TABLE", where, message)
    around = _plain(row, OF_A_CLIP)
    # What is said of a clip comes first, and counts.
    return [{**inner, **around, **inner} for clips in found.values() for inner in clips]


def by_clip(records: list) -> list:
    """Return {"a.mp4": "rain", ...} as rows, or as records with their questions; others as they
    are."""
    if len(records) != 1 or not isinstance(records[0], dict):
        return records
    if not records[0] or not all(map(names_medium, records[0])):
        return records
    made = []
    for name, value in records[0].items():
        if are_pairs(value):
            made.append({"video": name, "qa_pairs": value})
        elif isinstance(value, dict) and {"q", "a"} <= value.keys():
            made.append({"video": name, "qa_pairs": [value]})
        elif isinstance(value, dict) and OF_TEXTS & value.keys():
            made.append({"video": name, **value})
        else:
            made.append({"video": name, "answer": value})
    return made


def are_pairs(value: object) -> bool:
    """Return whether it is a list of questions with their answers."""
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    if isinstance(first, dict):
        return {"question", "answer"} <= first.keys() or {"q", "a"} <= first.keys()
    return isinstance(first, list) and len(first) == 2


def _of_clip(row: object) -> list:
    """Return a row for each question, or each caption, of a clip."""
    if not isinstance(row, dict):
        return [row]
    lists = _lists_of_questions(row)
    if lists:
        around = {
            name: value
            for name, value in row.items()
            if name not in lists and name.lower() not in OF_A_QUESTION
        }
        asked = [question for name in lists for question in row[name]]
        return [
            {**around, **{SHORT.get(name, name): value for name, value in question.items()}}
            for question in asked
        ]
    captions = row.get("captions")
    if not isinstance(captions, list):
        return [row]
    if all(isinstance(text, str) for text in captions):
        others = {name: value for name, value in row.items() if name != "captions"}
        return [{**others, "caption": text} for text in captions]
    are_numbered = all(
        isinstance(one, dict) and {"idx", "content"} <= one.keys() for one in captions
    )
    if not are_numbered or "video_path" not in row:
        return [row]
    whole = [one["content"] for one in captions if str(one["idx"]) == WHOLE]
    texts = whole or [one["content"] for one in captions]
    return [{"video": row["video_path"], "caption": " ".join(map(str, texts))}]


def _lists_of_questions(row: dict) -> list[str]:
    """Return the names of the lists of questions of an object that asks nothing itself."""
    if ASKING & row.keys():
        return []
    found = []
    for name, value in row.items():
        objects = value if isinstance(value, list) else []
        if not objects or not all(isinstance(one, dict) for one in objects):
            continue
        if all(ASKING & one.keys() or {"q", "a"} <= one.keys() for one in objects):
            found.append(name)
    return found


def with_fields(rows: list[dict], fields: tuple[str, ...]) -> tuple[list[dict], str]:
    """Return the rows with `fields` of the object that holds their labels, and the column of these:
    one field becomes a column of its own. Raises Failure where a row has no such object, or
    several."""
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
