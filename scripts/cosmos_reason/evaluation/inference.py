"""An inference as an evaluation that has no answers to compare with: every question about every
medium, and what becomes of the responses."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason.answers import final_answer
from cosmos_reason.answers.response import reasoning
from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import some
from cosmos_reason.data.samples import Media, Question, Sample, Turn
from cosmos_reason.media import archives
from cosmos_reason.media import files as media
from cosmos_reason.remote import model_names
from cosmos_reason.spec import document

PRECISIONS = ("bfloat16", "float16", "float32")
NAMED = 3  # of the files that are left out


# ---- what is asked -------------------------------------------------------------------------------


def as_evaluation(
    spec: dict, shown: Sequence[Media] | None = None, texts: Sequence[str] | None = None
) -> dict:
    """Return the complete evaluate spec that asks as a complete inference spec says. Its dataset
    has `media` and `questions` in place of annotations: those given, else what the spec names.
    Raises Failure."""
    if shown is None:
        shown, _ = media_at(spec["media"])
    generation = dict(spec["generation"])
    written = {
        "model": {
            "model_name": spec["model_path"],
            "enable_lora": spec["enable_lora"],
            "base_model_path": spec["base_model_path"],
            "dtype": _precision(spec),
        },
        "evaluation": {
            "answer_type": "reasoning" if spec["reasoning"] else "freeform",
            "seed": generation.pop("seed"),
            "batch_size": spec["batch_size"],
            "skip_saved": True,
        },
        "vision": spec["vision"],
        "generation": generation,
        "num_gpus": spec["num_gpus"],
        "results_dir": spec["results_dir"],
        "custom": spec["custom"],
    }
    complete = document.with_defaults("evaluate", written)
    complete["dataset"] = {
        "media_dir": "",
        "system_prompt": spec["system_prompt"],
        "media": list(shown),
        "questions": list(texts or texts_of(spec)),
    }
    return complete


def _precision(spec: dict) -> str:
    """Return what the arithmetic runs in: as the spec says, or as the checkpoint was saved."""
    if spec["torch_dtype"] != "auto":
        return spec["torch_dtype"]
    config = model_names.read_table(
        Path(spec["base_model_path"] or spec["model_path"], "config.json")
    )
    text = config.get("text_config")
    for table in (config, text if isinstance(text, dict) else {}):
        saved = table.get("dtype") or table.get("torch_dtype")
        if saved in PRECISIONS:
            return saved
    return "bfloat16"


def texts_of(spec: dict) -> list[str]:
    """Return the prompt of a spec, then the lines of its file of questions. Raises Failure."""
    texts = [spec["prompt"]] if spec["prompt"].strip() else []
    if spec["questions_file"]:
        texts += lines_of(Path(spec["questions_file"]))
    if not texts:
        message = "there is no question to ask"
        raise findings.bad_input(
            "EVAL-PROMPT-EMPTY", "prompt", message, Fix(changes={"prompt": "TEXT"})
        )
    return list(dict.fromkeys(texts))


def lines_of(path: Path) -> list[str]:
    """Return a question per line of a text file. Raises Failure when there is none."""
    lines = [line.strip() for line in files.read_text(path).splitlines()]
    texts = [line for line in lines if line]
    if not texts:
        message = "the file has no line of text; write a question per line"
        raise findings.bad_input("EVAL-PROMPT-EMPTY", path, message)
    return texts


def media_at(name: str) -> tuple[list[Media], list[Finding]]:
    """Return the clip or image of this name, or every one that lies directly in the folder or
    archive, and a word about what else is there. A broken file of a folder becomes a row of its
    own. Raises Failure."""
    place = Path(archives.media_folder(name))
    if not place.is_dir():
        return [Media(media.probe(place).kind, str(place))], []
    shown, others = [], []
    for path in sorted(place.iterdir()):
        if path.name.startswith(".") or path.is_dir():
            continue
        suffix = path.suffix.lower()
        if suffix not in media.IMAGE_SUFFIXES + media.VIDEO_SUFFIXES:
            others.append(path.name)
            continue
        try:
            is_image = media.is_image(path)
        except Failure:  # it cannot be read, as its row tells: its name decides
            is_image = suffix in media.IMAGE_SUFFIXES
        shown.append(Media("image" if is_image else "video", str(path)))
    if not shown:
        message = "no clip or image lies directly in it"
        if others:
            message += f" (other files: {len(others)}, {some(others, NAMED)})"
        inner = [path for path in sorted(place.iterdir()) if path.is_dir()]
        if inner:
            message += f"; name the folder that has them, such as {inner[0]}"
        raise findings.bad_input("EVAL-NO-MEDIA", place, message)
    if not others:
        return shown, []
    message = f"{len(others)} files here are no clips or images: {some(others, NAMED)}"
    return shown, [findings.info("EVAL-MEDIA-OTHERS", place, message)]


def questions(dataset: dict) -> list[Question]:
    """Return every question about every medium, medium by medium. The sample's id is that of the
    row: the file's name, or its path where two have one name, and `NAME#2` for the second of
    several questions. The question's id changes with the file, so that an answer about an earlier
    one is never taken for it."""
    shown = [Media(*item) for item in dataset["media"]]
    texts = dataset["questions"]
    named = Counter(Path(item.path).name for item in shown)
    asked = []
    for index, item in enumerate(shown):
        name = Path(item.path).name
        if named[name] > 1:
            name = item.path
        try:
            facts = os.stat(item.path)
            stamp = [facts.st_size, facts.st_mtime_ns]
        except OSError:  # a link that leads nowhere, which its row will tell
            stamp = []
        for number, text in enumerate(texts, 1):
            row_id = name if len(texts) == 1 else f"{name}#{number}"
            sample = Sample(index, row_id, (), (item,), None)
            identity = json.dumps([item.path, *stamp, text])
            key = hashlib.sha256(identity.encode()).hexdigest()[:16]
            asked.append(Question(key, sample, (Turn("user", text),), text, ""))
    return asked


# ---- what becomes of it --------------------------------------------------------------------------


def rows(asked: Sequence[Question], by_id: dict[str, dict]) -> list[dict]:
    """Return the rows of predictions.json, in the order of the questions; thinking and answer are
    told apart as the scorer does."""
    found = []
    for question in asked:
        saved = by_id[question.id]
        response = saved["response"]
        row = {
            "id": question.sample.id,
            "media": question.sample.media[0].path,
            "question": question.text,
            "response": response,
            "answer": None if response is None else final_answer(response),
            "reasoning": None if response is None else reasoning(response),
            "error": saved["error"],
            "tokens": saved.get("tokens"),
            "seconds": saved.get("seconds"),
            "vision_tokens": saved["vision_tokens"],
            "is_cut": bool(saved["is_cut"]),
            "key": question.id,
        }
        found.append(row)
    return found
