"""Results of Reason1's own evaluation: a folder with a JSON file of answers per video."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import files, findings

OUR_FILES = ("metrics.json", "evaluation.json", "checkpoint_metrics.json")


def items(folder: Path) -> Iterator[object]:
    """The questions of all files, one at a time, with ids of our own. What is in a list and looks
    like no result is yielded as it is, so that it can be named."""
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
    """(samples, correct) as Reason1's calculate_accuracy counts them: items of all lists in all
    JSON files below, of one dataset when it is named (a folder has its name); any true value of the
    stored `is_correct`, also the text "false"; what it cannot read it leaves out.

    Raises Failure when there is no JSON file."""
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
    message = f"got no JSON file{of_dataset}, expected a folder of Reason1 results."
    message += findings.did_you_mean(dataset, sorted({path.parent.name for path in every}))
    raise findings.bad_input("EVAL-NO-RESULTS", folder, message)


def _last_user_text(prompt: object) -> str:
    """The text of the last user message of a chat; empty for anything else."""
    if not isinstance(prompt, list):
        return ""
    for message in reversed(prompt):
        if isinstance(message, dict) and message.get("role") == "user":
            return _content_text(message.get("content"))
    return ""


def _content_text(content: object) -> str:
    """The text of a message, which is a text or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
