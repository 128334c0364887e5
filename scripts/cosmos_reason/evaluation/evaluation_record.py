"""evaluation.json beside the results: what was asked of which model, and how."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.evaluation.questions import Responder
from cosmos_reason.evaluation.rows import Row, folder_of

FILE = "evaluation.json"
TEXTS = ("model", "checkpoint", "annotations", "media_dir", "task")


def read(path: Path, name: str = FILE) -> dict:
    """The record beside the results at `path`; {} when there is none. Raises Failure (exit 2)."""
    file = folder_of(path) / name
    if not file.is_file():
        return {}
    record = files.read_json(file)
    is_record = isinstance(record, dict)
    if is_record:
        is_record = all(isinstance(record.get(name), str | None) for name in TEXTS)
    if not is_record:
        message = f"got other values, expected an object with {', '.join(TEXTS)} as texts"
        raise findings.bad_input("EVAL-RECORD", file, message)
    return record


def compose(spec: dict, questions: int, who: Responder) -> dict:
    """The record of an evaluation, or of an inference, as a complete spec asks `who` for it."""
    model, dataset = spec["model"], spec["dataset"]
    folder = Path(model["model_name"])
    record = {
        "schema_version": 1,
        "model": model["model_name"],
        "checkpoint": str(folder.resolve()) if folder.is_dir() else None,
        "base_model": model["base_model_path"] or None,
        "questions": questions,
        "prompt": {
            "system": dataset["system_prompt"],
            "answer_type": spec["evaluation"]["answer_type"],
        },
        "sampling": _applied(spec["generation"], who),
        "vision": {key: value for key, value in spec["vision"].items() if value is not None},
        "hardware": who.where,
    }
    if "annotation_path" in dataset:
        record["annotations"] = dataset["annotation_path"]
        record["media_dir"] = dataset["media_dir"]
        record["task"] = spec["task"]["type"]
    return record


def _applied(generation: dict, who: Responder) -> dict:
    """What of the table counted for the answers."""
    applied = {}
    for key, value in generation.items():
        if value is not None and key not in who.ignores:
            applied[key] = value
    return applied


def max_tokens(record: dict) -> int | None:
    """The longest answer that the record allows, when it tells."""
    sampling = record.get("sampling")
    limit = sampling.get("max_tokens") if isinstance(sampling, dict) else None
    return limit if type(limit) is int else None


def cut_answers(rows: list[Row], record: dict) -> str:
    """What there is to say of responses that max_tokens ended; empty when none is known."""
    cut = [row for row in rows if row.is_cut]
    if not cut:
        return ""
    limit = max_tokens(record)
    at = "at max_tokens" if limit is None else f"at max_tokens={limit}"
    unparseable = sum(row.outcome == "unparseable" for row in rows)
    unparseable_cut = sum(row.outcome == "unparseable" for row in cut)
    if not unparseable_cut:
        return f"{len(cut)} of {len(rows)} answers were cut {at}: raise it"
    text = (
        f"{unparseable} of {len(rows)} answers are unparseable, "
        f"of which {unparseable_cut} were cut {at}"
    )
    if len(cut) > unparseable_cut:
        text += f", as {len(cut) - unparseable_cut} others were"
    return f"{text}: raise it"
