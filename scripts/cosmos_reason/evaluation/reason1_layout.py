"""Answers once more as files of Cosmos-Reason1's evaluator: MODEL/ANSWER_TYPE/DATASET/CLIP.json,
a list with an entry per question. An addition to results.json, which scores are read from."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from cosmos_reason.answers.response import reasoning
from cosmos_reason.base import files
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation import questions

NAME = "reason1"  # the value of results.layout, ...
FOLDER = "reason1_layout"  # ... and the folder in results_dir
BENCHMARK = re.compile(r"(.+)_benchmark_qa_pairs\.json")


def write(folder: Path, spec: dict, asked: list[Question], rows: list[dict]) -> None:
    """The files of all rows, those of results.json in the order of the questions; files of earlier
    rows go. Two shards that end at once write the same, each file whole."""
    model = _file_name(Path(spec["model"]["model_name"]).name)
    by_clip = defaultdict(list)
    for question, row in zip(asked, rows, strict=True):
        entry = _entry(spec, question, row)
        clip = _file_name(entry["datasource"]), _file_name(entry["video_id"])
        by_clip[clip].append(entry)
    written = set()
    for (dataset, clip), entries in by_clip.items():
        place = folder / FOLDER / model / spec["evaluation"]["answer_type"] / dataset
        files.write_json(place / f"{clip}.json", entries)
        written.add(place / f"{clip}.json")
    for path in (folder / FOLDER).rglob("*.json"):
        if path not in written:
            path.unlink(missing_ok=True)


def _entry(spec: dict, question: Question, row: dict) -> dict:
    sample = question.sample
    response = row["response"] or ""
    return {
        "datasource": _dataset(spec, question),
        "video_id": Path(sample.media[0].path).stem if sample.media else sample.id,
        "prompt": _prompt(spec, question),
        "correct_answer": question.gt,
        "reasoning": reasoning(response) or "",
        "answer": row["answer"] or "",
        "full_response": response,
        "is_correct": bool(row["correct"]),
    }


def _dataset(spec: dict, question: Question) -> str:
    """The name of the benchmark's dataset that the question is of: in the name of the file, else
    the first tag, which says it where several datasets are asked at once."""
    path = Path(spec["dataset"]["annotation_path"])
    named = BENCHMARK.fullmatch(path.name)
    if named:
        return named[1]
    tags = question.sample.tags
    return tags[0] if tags else path.absolute().parent.name


def _prompt(spec: dict, question: Question) -> list[dict]:
    """The chat as it was asked, media before the text of the first user turn."""
    media = [{"type": medium.kind, medium.kind: medium.path} for medium in question.sample.media]
    chat = []
    for turn in questions.conversation(question, spec):
        content = turn.text
        if turn.role == "user":
            content = [*media, {"type": "text", "text": turn.text}]
            media = []
        chat.append({"role": turn.role, "content": content})
    return chat


def _file_name(text: str) -> str:
    """The text as the name of one file or folder."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".")[:200] or "_"
