"""Rows of JSON that keeps things in one another: sets whose way to their rows is published, and
questions, captions or labels below a clip. What lies deeper has rows by `--convert`. Enter at
`rows`."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.data import split_names
from cosmos_reason.data.published_sets import WAYS
from cosmos_reason.data.roles import NAMES, OF_TEXTS
from cosmos_reason.media.files import names_medium

ASKING = set(NAMES["question"])
OF_A_QUESTION = {name for role in ("question", "answer", "options", "id") for name in NAMES[role]}
OF_A_QUESTION -= {*NAMES["video"], *NAMES["image"]}
SHOWING = {*NAMES["video"], *NAMES["image"]}
# Names that tell a record from an object of another kind, as a category has an id and a name.
OF_RECORDS = ASKING | SHOWING | {"q", "qa_pairs", "conversations", "messages", "videos", "images"}
SHORT = {"q": "question", "a": "answer"}
WHOLE = "-1"  # the caption of ShareGPT4Video that is about the whole clip
TIMED = "Describe each event in the video, with its start and end in seconds."


def rows(records: list, problems: list[f.Finding]) -> list:
    """Return a row for each question or caption below the `records`, with the plain values around
    it; other records as they are. Those in lists called train, test, ... are of these splits; lists
    beside them that hold no records join the `problems`. Raises Failure for records beside them
    whose split nobody knows."""
    of_splits = [_of_splits(one) for one in records]
    if any(of_splits):
        made = []
        passed: dict[str, None] = {}
        for record, lists in zip(records, of_splits, strict=True):
            if not lists:
                made += rows([record], problems)
                continue
            beside = (name for name, value in record.items() if _are_objects(value))
            passed |= dict.fromkeys(name for name in beside if name not in lists)
            around = {
                name: value
                for name, value in record.items()
                if name.lower() in SHOWING and names_medium(str(value))
            }
            for name, listed in lists.items():
                made += [{**around, **_in_split(row, name)} for row in rows(listed, problems)]
        if passed:
            message = f"passed over lists that hold no records: {', '.join(passed)}"
            problems.append(f.info("BUILD-SPLIT-NAMED", next(iter(passed)), message))
        return made
    listed = _of_published_set(records[0]) if len(records) == 1 else []
    return listed or by_clip([row for one in records for row in _of_clip(one)])


def media_of(row: dict) -> list[str]:
    """Return the texts in a row, or in the lists and objects in it, that name a medium, and those
    in its columns of media, whose names may have no suffix."""
    found = []
    inner = [(name.lower() in SHOWING, value) for name, value in row.items()]
    for is_shown, value in inner:  # which grows
        if isinstance(value, dict | list):
            parts = value.values() if isinstance(value, dict) else value
            inner += [(is_shown, part) for part in parts]
        elif isinstance(value, str) and value and (is_shown or names_medium(value)):
            found.append(value)
    return found


def with_clip(records: list, header: dict, path: Path) -> list:
    """Return the records of a document about one clip, which its `header` names as a row would,
    with that clip; others as they are. Raises Failure for a clip that it names otherwise."""
    rows = [one for one in records if isinstance(one, dict)]
    if not header or any(map(media_of, rows)):
        return records
    named = {
        name: value
        for name, value in header.items()
        if name.lower() in SHOWING and isinstance(value, str) and names_medium(value)
    }
    if len(named) == 1:
        return [{**named, **one} if isinstance(one, dict) else one for one in records]
    below = [((name,), value) for name, value in header.items()]
    for way, value in below:  # which grows
        if isinstance(value, dict):
            below += [((*way, key), one) for key, one in value.items()]
        elif isinstance(value, str) and names_medium(value):
            keys = "".join(f"[{key!r}]" for key in way)
            message = (
                f"got records that name no clip, and {value!r} beside them: --convert FILE.py "
                f'with convert(row, around) that returns {{"video": around{keys}, **row}}'
            )
            raise f.bad_input("BUILD-COLUMN", path, message)
    return records


def _in_split(row: dict, name: str) -> dict:
    """Return a row of a list called `name` with its split. Raises Failure where it has none, or
    names another one itself."""
    called, own = split_names.exact(name), split_names.exact(str(row.get("split", "")))
    if not called and not own:
        message = (
            f"got records in {name!r} beside lists that are called like splits: remove it, or call "
            "it train or test"
        )
        raise f.bad_input("BUILD-SPLIT-NAME", name, message)
    if called and own and split_names.NAMES[called] != split_names.NAMES[own]:
        message = f"got the split {row['split']!r} in a record below {name!r}: remove one of them"
        raise f.bad_input("BUILD-SPLIT-NAME", name, message)
    return {"split": name, **row} | {"split": name} if called else row


def told(record: dict) -> str:
    """Return what a record that stands for several rows holds; "" for any other."""
    if _is_timed(record) or (record and all(map(names_medium, record))):
        return "labels by clip"
    if _of_splits(record):
        return "splits in lists"
    is_list = _of_published_set(record) or _lists_of_questions(record)
    return "questions or events in lists" if is_list else ""


def _of_splits(record: object) -> dict[str, list]:
    """Return the lists of records of a document, or of the objects in it, of which one or more
    are called like splits, and whose records may be clips by their names, too; {} of any other,
    also of a record with a question of its own: a "validation" in it may say who looked at it."""
    lists, is_of_splits = _lists_of_records(record)
    if is_of_splits:
        return lists
    inner = record.values() if isinstance(record, dict) and not ASKING & record.keys() else ()
    found = [below for below, is_of_splits in map(_lists_of_records, inner) if is_of_splits]
    if not found:
        return {}
    for below in found:  # {"camera 1": {"train": [...], "test": [...]}, "camera 2": ...}
        for name, listed in below.items():
            lists[name] = [*lists.get(name, []), *listed]
    return lists


def _lists_of_records(record: object) -> tuple[dict[str, list], bool]:
    """Return (the lists that hold records or are called like splits, whether one does both)."""
    lists: dict[str, list] = {}
    has_records = False
    is_document = isinstance(record, dict) and not ASKING & record.keys()
    for name, value in record.items() if is_document else ():
        if not isinstance(value, dict) and not _are_objects(value):
            continue
        is_split = bool(split_names.exact(name))
        holds = holds_records(value)
        if is_split or holds:
            lists[name] = [value] if isinstance(value, dict) else value
        has_records |= is_split and holds
    return lists, has_records


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def holds_records(value: object) -> bool:
    """Return whether it is a list of objects, one or more of which ask something or show a clip; or
    an object of clips by their names."""
    if isinstance(value, dict):
        return bool(value) and all(map(names_medium, value))
    return _are_objects(value) and any(
        OF_RECORDS & set(map(str.lower, one))
        or any(map(names_medium, one))
        or any(isinstance(said, str) and names_medium(said) for said in one.values())
        for one in value
    )


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
        if found:  # a document that keeps to one way keeps to no other
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
        plain = {
            name: said
            for name, said in value.items()
            if isinstance(said, str | int | float) and name.lower() not in OF_A_QUESTION
        }
        around = {**around, **plain}
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


def _is_timed(record: object) -> bool:
    """Return whether it is ActivityNet Captions: for each clip its sentences and their times."""
    clips = list(record.values()) if isinstance(record, dict) else []
    for said in clips:
        times, sentences = (
            said.get(key) if isinstance(said, dict) else None for key in ("timestamps", "sentences")
        )
        if not isinstance(times, list) or not isinstance(sentences, list):
            return False
        are_spans = all(isinstance(span, list) and len(span) == 2 for span in times)
        are_texts = all(isinstance(one, str) for one in sentences)
        if len(times) != len(sentences) or not (are_spans and are_texts):
            return False
    return bool(clips)


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
            known = list(dict.fromkeys(name for value in objects.values() for name in value))
            if not known:
                message = f"got it for rows of plain columns (row {number}), which have no use for"
                fix = f"drop --fields {','.join(fields)}"
                raise f.bad_input("USAGE", "--fields", f"{message} it", fix)
            hint = "".join(f.did_you_mean(field, known) for field in fields if field not in known)
            message = f"got {', '.join(known)} in row {number}, expected one object with "
            message += f"{', '.join(fields)}.{hint}"
            raise f.bad_input("BUILD-FIELD", "--fields", message)
        others = {name: value for name, value in row.items() if name != holding[0]}
        kept = {name: row[holding[0]][name] for name in fields}
        if len(fields) > 1:
            column = holding[0]
            kept = {column: kept}
        chosen.append({**others, **kept})
    return chosen, column
