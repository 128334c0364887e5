"""Results in the layout of Cosmos-Reason1's own evaluator, read and written: a folder
MODEL/ANSWER_TYPE/DATASET with a JSON file per clip, a list with an entry per question."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.answers.response import reasoning
from cosmos_reason.base import files, findings
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation import questions

OUR_FILES = ("metrics.json", "evaluation.json", "checkpoint_metrics.json")
LAYOUT = "reason1"  # the value of results.layout, ...
FOLDER = "reason1_layout"  # ... and the folder in results_dir
BENCHMARK = re.compile(r"(.+)_benchmark_qa_pairs\.json")


# -- reading ---------------------------------------------------------------------------------------


def items(folder: Path) -> Iterator[object]:
    """Yield the questions of all files, one at a time, with ids of our own.

    What is in a list and looks like no result is yielded as it is, so that it can be named.
    """
    for path in sorted(folder.rglob("*.json")):
        if path.name in OUR_FILES:
            continue
        content = files.read_json(path)
        is_list = isinstance(content, list)
        for number, item in enumerate(content if is_list else [content], 1):
            if isinstance(item, dict) and ("full_response" in item or "is_correct" in item):
                item_id = f"{path.relative_to(folder).with_suffix('')}#{number}"
                question = _last_user_text(item.get("prompt"))
                yield item | {"id": item_id, "question": question}
            elif is_list:
                yield item


def stored_accuracy(folder: Path, dataset: str = "") -> tuple[int, int]:
    """Return (samples, correct) as Reason1's calculate_accuracy counts them.

    It counts items of all lists in all JSON files below, of one dataset when it is named (a folder
    has its name); any true value of the stored `is_correct`, also the text "false"; what it cannot
    read it leaves out. Raises Failure when there is no JSON file.
    """
    verdicts = []
    for path in _files(folder, dataset):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(content, list):
            continue
        for item in content:
            if isinstance(item, dict) and "is_correct" in item:
                verdicts.append(bool(item["is_correct"]))
    return len(verdicts), sum(verdicts)


def _files(folder: Path, dataset: str) -> list[Path]:
    every = sorted(folder.rglob("*.json"))
    paths = [path for path in every if dataset in ("", path.parent.name)]
    if paths:
        return paths
    of_dataset = f" of {dataset}" if dataset else ""
    message = f"it holds no JSON file{of_dataset}; name a folder of Reason1 results."
    message += findings.did_you_mean(dataset, sorted({path.parent.name for path in every}))
    raise findings.bad_input("EVAL-NO-RESULTS", folder, message)


def _last_user_text(prompt: object) -> str:
    """Return the text of the last user message of a chat; empty for anything else."""
    for message in reversed(prompt if isinstance(prompt, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")  # a text or a list of parts
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            return "\n".join(text for text in texts if isinstance(text, str))
    return ""


# -- writing ---------------------------------------------------------------------------------------


def write(folder: Path, spec: dict, asked: list[Question], rows: list[dict]) -> None:
    """Write the files of all rows, those of results.json in the order of the questions, and delete
    files of earlier rows. They are an addition to results.json, which scores are read from. Two
    shards that end at once write the same, each file whole."""
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
    """Return the name of the benchmark's dataset that the question is of: in the name of the file,
    else the first tag, which says it where several datasets are asked at once."""
    path = Path(spec["dataset"]["annotation_path"])
    named = BENCHMARK.fullmatch(path.name)
    if named:
        return named[1]
    tags = question.sample.tags
    return tags[0] if tags else path.absolute().parent.name


def _prompt(spec: dict, question: Question) -> list[dict]:
    """Return the chat as it was asked, media before the text of the first user turn."""
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
    """Return the text as the name of one file or folder."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".")[:200] or "_"
