"""evaluation.json beside the results: what was asked of which model, and how."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import files, findings, job_folder
from cosmos_reason.checkpoints import made_of, run_outputs
from cosmos_reason.evaluation.questions import GENERATE, Responder
from cosmos_reason.evaluation.rows import Row, folder_of
from cosmos_reason.remote import model_names

FILE = "evaluation.json"
TEXTS = ("model", "checkpoint", "annotations", "media_dir", "task", "results_dir")


def read(path: Path, name: str = FILE) -> dict:
    """Return the record beside the results at `path`, with the paths that are there now when the
    results lie in a job that was moved or copied; {} when there is none. Raises Failure (exit
    2)."""
    file = folder_of(path) / name
    if not file.is_file():
        return {}
    record = files.read_json(file)
    is_record = isinstance(record, dict)
    if is_record:
        is_record = all(isinstance(record.get(name), str | None) for name in TEXTS)
    if not is_record:
        message = f"it is no object with {', '.join(TEXTS)} as strings"
        raise findings.bad_input("EVAL-RECORD", file, message)
    home = job_folder.home_of(file)
    if home is None:
        return record
    paths = job_folder.here(home, {name: record[name] for name in TEXTS if name in record})
    return record | paths


def is_of_another_place(path: Path, record: dict) -> bool:
    """Return whether the results at `path` were moved or copied and the checkpoint of their record,
    as `read` gives it, is not beside them: who scores them writes nothing there."""
    folder = folder_of(path).absolute()
    home = job_folder.home_of(folder)
    if home:
        at = job_folder.place_of(home)
        return at.is_moved and not at.is_beside(record.get("checkpoint") or "")
    written = record.get("results_dir")
    if written is None:  # a job of an earlier version, whose results lay in its folder or a claim
        return bool(record.get("job_id")) and not (folder / run_outputs.CLAIM).is_file()
    return not (Path(written).is_dir() and folder.samefile(written))


def compose(spec: dict, questions: int, who: Responder) -> dict:
    """Return the record of an evaluation, or of an inference, as a complete spec asks `who` for
    it."""
    model, dataset = spec["model"], spec["dataset"]
    folder = Path(model["model_name"])
    record = {
        "schema_version": 1,
        "model": model["model_name"],
        "checkpoint": str(folder.resolve()) if folder.is_dir() else None,
        "base_model": model["base_model_path"] or None,
        "weights": _weights(model),
        "questions": questions,
        "prompt": {
            "system": dataset["system_prompt"],
            "answer_type": spec["evaluation"]["answer_type"],
        },
        # Only what counted for the answers is told.
        "sampling": {
            key: value
            for key, value in spec["generation"].items()
            if value is not None and key not in who.ignores
        },
        "vision": {key: value for key, value in spec["vision"].items() if value is not None}
        | who.shown_as,
        "hardware": who.where,
    }
    if spec["evaluation"]["ask"] != GENERATE:  # which records of before do not say
        record["prompt"]["ask"] = spec["evaluation"]["ask"]
    if "annotation_path" in dataset:
        record["annotations"] = dataset["annotation_path"]
        record["media_dir"] = dataset["media_dir"]
        record["task"] = spec["task"]["type"]
    return record


def _weights(model: dict) -> dict | None:
    """Return {model, base}: the digests of the weights that are asked, as far as they are here, by
    which their numbers are told from those of others later; None where the model is not."""
    own = made_of.digest(Path(model["model_name"]))
    if own is None:
        return None
    base = model["base_model_path"] or model_names.adapter_base(model["model_name"])
    return {"model": own, "base": made_of.digest(Path(base)) if base else None}


def max_tokens(record: dict) -> int | None:
    """Return the longest answer that the record allows, when it tells."""
    sampling = record.get("sampling")
    limit = sampling.get("max_tokens") if isinstance(sampling, dict) else None
    return limit if type(limit) is int else None


def cut_answers(rows: list[Row], record: dict) -> str:
    """Return what there is to say of responses that max_tokens ended; empty when none is known."""
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
