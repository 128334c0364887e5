"""Exports of Label Studio as rows: JSON (tasks with their annotations) in the columns that its own
JSON-MIN has, whose roles are a row of `published_sets`.

https://labelstud.io/guide/export and https://labelstud.io/guide/task_format
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cosmos_reason.base import findings as f

OF_MIN = {"annotator", "annotation_id", "lead_time"}  # columns of every row of JSON-MIN
TEXTS = ("choices", "text", "taxonomy", "rating", "number", "datetime")  # results about the whole
TIMELINE = "timelinelabels"  # labels of ranges of frames, counted from 1, the last one included
UPLOADS, LOCAL_FILES = "/data/upload/", "/data/local-files/"


def rows(records: list, where: Path, problems: list[f.Finding]) -> list:
    """The rows of an export; records of anything else as they are. Tasks that nobody annotated join
    the `problems`. Raises Failure for results that say nothing that a row can hold."""
    are_tasks = bool(records) and all(map(_is_task, records))
    if not are_tasks and not all(isinstance(one, dict) and one.keys() >= OF_MIN for one in records):
        return records
    made = []
    unanswered = []
    for number, record in enumerate(records):
        given = record["annotations"] if are_tasks else [record]
        given = [one for one in given if not one.get("was_cancelled")]  # the annotator skipped it
        if not given or (not are_tasks and record["annotation_id"] is None):
            unanswered.append(number)
        elif not are_tasks:
            made += _with_times(record, {}, f"{where}#{number}")
        for annotation in given if are_tasks else ():  # of JSON-MIN a record is one annotation
            by = annotation.get("completed_by")
            row = {
                **record["data"],
                "id": record.get("id"),
                "annotator": by.get("email", by.get("id")) if isinstance(by, dict) else by,
                "annotation_id": annotation.get("id"),
                "lead_time": annotation.get("lead_time"),
            }
            made += _with_times(row, _results(annotation, f"{where}#{number}"), f"{where}#{number}")
    if unanswered:
        message = f"passed over tasks that nobody annotated: {len(unanswered)}"
        data = {"rows": unanswered[: f.MAX_RECORD_IDS], "count": len(unanswered)}
        problems.append(f.info("BUILD-ROWS-BLANK", f"{where}#{unanswered[0]}", message, **data))
    return made


def _is_task(record: object) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict):
        return False
    given = record.get("annotations")
    return isinstance(given, list) and all(
        isinstance(one, dict) and isinstance(one.get("result"), list) for one in given
    )


def _results(annotation: dict, where: str) -> dict[str, object]:
    """What an annotation says, by the name of each control: as JSON-MIN writes it."""
    found: dict[str, list] = {}
    for result in annotation["result"]:
        kind, value = result.get("type"), result.get("value")
        if "from_name" not in result or not isinstance(value, dict):  # a relation between results
            continue
        if kind == TIMELINE:
            found.setdefault(result["from_name"], []).append(value)
            continue
        key = "text" if kind == "textarea" else kind
        if key not in TEXTS or key not in value:
            message = (
                f"got a result of type {kind}, expected choices, textarea, taxonomy, rating, "
                f"number, datetime or {TIMELINE}: others are made into rows by --convert"
            )
            raise f.bad_input("BUILD-TABLE", where, message)
        said = value[key] if isinstance(value[key], list) else [value[key]]
        found.setdefault(result["from_name"], []).extend(said)
    return {
        name: said if isinstance(said[0], dict) or len(said) > 1 else said[0]
        for name, said in found.items()
        if said
    }


def _with_times(row: dict, results: dict, where: str) -> list[dict]:
    """A row, or one of each range of frames, with names of files as they are outside of the
    program."""
    whole = {name: _file(value) for name, value in {**row, **results}.items()}
    timelines = {name: value for name, value in whole.items() if _is_timeline(value)}
    if not timelines:
        return [{name: _text(value) for name, value in whole.items()}]
    others = {name: value for name, value in whole.items() if name not in timelines}
    said = sorted(results.keys() - timelines.keys())
    if len(timelines) > 1 or said:
        message = (
            f"got ranges of frames in {', '.join([*timelines, *said])} together, expected one "
            "control of them and no other: which answers belong to which, --convert says"
        )
        raise f.bad_input("BUILD-TABLE", where, message)
    ((name, values),) = timelines.items()
    found = []
    for value in values:
        for span in value["ranges"]:
            for label in value[TIMELINE]:
                times = {"start_frame": span["start"] - 1, "end_frame": span["end"]}
                found.append({**others, name: label, **times})
    return found


def _is_timeline(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and {"ranges", TIMELINE} <= one.keys() for one in value)
    )


def _text(value: object) -> object:
    """Several choices as one text; JSON-MIN writes them as {"choices": [...]}."""
    if isinstance(value, dict) and value.keys() == {"choices"}:
        value = value["choices"]
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return value


def _file(value: object) -> object:
    """The name of a file that Label Studio serves: one that was uploaded, by its last part; one of
    its local storage, below the root of that."""
    if not isinstance(value, str):
        return value
    if value.startswith(UPLOADS):
        return posixpath.basename(value)
    if value.startswith(LOCAL_FILES):
        return (parse_qs(urlsplit(value).query).get("d") or [value])[0]
    return value
