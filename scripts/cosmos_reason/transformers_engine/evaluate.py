"""Ask every question of an annotation file: one row per question, whatever happens to it.

Who answers is an object with `identity()` (changes with whatever could change an answer), `where` (in words) and
`answers(questions)`, which yields lists of Answer in any order: a model on this machine (responder.py, which imports
torch), or a server (endpoint.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import annotations, results, storage
from cosmos_reason.annotations import Question, Turn
from cosmos_reason.findings import EXIT_BAD_INPUT, Failure, bad_input, has_errors
from cosmos_reason.transformers_engine.frames import with_system
from cosmos_reason.transformers_engine.progress import MetricsLog

REASONING = "\n\nThink first, between <think> and </think>. Put the final answer right after </think>."

COLUMNS = ("id", "video_id", "media", "question", "gt", "response", "answer", "type", "correct", "error")


class Answer(NamedTuple):
    """What became of a question: exactly one of `response` and `error` is None. `vision_tokens` when it is known;
    `is_cut` when a server says that the tokens ran out."""

    question: Question
    response: str | None
    error: str | None = None
    vision_tokens: int | None = None
    is_cut: bool = False


class Shard(NamedTuple):
    """This process's part of the questions: number `index` (from 0) of `count`."""

    index: int
    count: int


ALL = Shard(0, 1)


def read_questions(dataset: dict, limit: int) -> list[Question]:
    """Every question of the annotation file in file order, the first `limit` of them when that is positive."""
    samples, found = annotations.read(Path(dataset["annotation_path"]))
    if has_errors(found):
        raise Failure(found, EXIT_BAD_INPUT)
    questions = [question for sample in samples for question in annotations.questions(sample)]
    if not questions:
        raise bad_input("EVAL-NO-QUESTIONS", dataset["annotation_path"], "got no question with an answer")
    counts = Counter(question.id for question in questions)
    if twice := [name for name, count in counts.items() if count > 1]:
        message = f"got {len(twice)} ids more than once ({', '.join(twice[:3])}), expected unique ids: rows carry them"
        raise bad_input("EVAL-ID-DUPLICATE", dataset["annotation_path"], message, record_ids=twice[:1000])
    return questions[:limit] if limit > 0 else questions


def conversation(question: Question, spec: dict) -> list[Turn]:
    """The turns a model is given: system prompt, earlier turns, the question and what the answer type adds to it."""
    *earlier, asked = question.context
    suffix = REASONING if spec["evaluation"]["answer_type"] == "reasoning" else ""
    return with_system([*earlier, asked._replace(text=asked.text + suffix)], spec["dataset"]["system_prompt"])


def run(spec: dict, job_dir: Path | None, who=None, shard: Shard = ALL, spec_sha256: str | None = None) -> dict:
    """Evaluate as the complete spec says; the process that answers the last question of all shards writes results.json
    and evaluation.json into `results_dir`. Answers reach a file as they come, so that a killed run, or one with
    questions that failed, continues where it stopped."""
    started = time.monotonic()
    if not spec["results_dir"]:
        raise bad_input("ENGINE-NO-OUTPUT", "results_dir", "got nothing", "--set results_dir=results")
    who = who or _model(spec)
    print(who.where, file=sys.stderr)
    questions = read_questions(spec["dataset"], spec["evaluation"]["limit"])
    mine = questions[shard.index :: shard.count]
    saved = Saved(Path(spec["results_dir"]), _identity(spec, who), shard)
    if spec["evaluation"]["skip_saved"]:
        saved.take_over_results()
    known = saved.read()
    missing = [question for question in mine if known.get(question.id, {"error": "not asked"})["error"]]
    failed, done = {question.id for question in missing}, len(mine) - len(missing)
    name = "metrics.jsonl" if shard.index == 0 else f"metrics-{shard.index + 1}-{shard.count}.jsonl"
    metrics = MetricsLog((job_dir or saved.folder) / name, "evaluate", len(mine), done)
    for answers in who.answers(missing):
        saved.add(answers)
        failed -= {answer.question.id for answer in answers if answer.error is None}
        done += len(answers)
        metrics.write({"step": done, "total_steps": len(mine)})
    metrics.close()
    known = saved.read()
    if whole := all(question.id in known for question in questions):
        record = _record(spec, questions, who.where) | {
            "cut_short": cut(known, questions),
            "identity": saved.identity,
            "spec_sha256": spec_sha256,
        }
        saved.finish(_rows(questions, known, spec["task"]["type"]), record)
    merged = whole or (missing and not saved.path.exists())  # by another shard, in the meantime
    return {
        "results": str(saved.folder / "results.json") if merged else None,
        "rows": len(mine),
        "failed": len(failed),
        "cut_short": cut(known, mine),
        "seconds": round(time.monotonic() - started, 1),
    }


def _model(spec: dict):
    from cosmos_reason.transformers_engine.responder import Responder

    return Responder(spec)


class Saved:
    """Answers on disk, a line each, in one file per shard. Those of another identity are never reused."""

    def __init__(self, folder: Path, identity: str, shard: Shard):
        self.folder, self.identity = folder, identity
        self.path = folder / f".rows-{identity}-{shard.index}-{shard.count}.jsonl"

    def read(self) -> dict[str, dict]:
        """By question id, of all shards; an answer wins over an error. A line cut short by a kill is left out."""
        rows, lines = {}, []
        for path in sorted(self.folder.glob(f".rows-{self.identity}-*.jsonl")):
            with contextlib.suppress(FileNotFoundError):  # merged by another shard
                lines += path.read_bytes().splitlines()
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # also zeros that a crash left
                row = json.loads(line.decode())
                if row["error"] is None or row["id"] not in rows:
                    rows[row["id"]] = row
        return rows

    def add(self, answers: list[Answer]) -> None:
        self._append({"id": a.question.id, **a._asdict()} for a in answers)

    def _append(self, rows) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            if file.tell() and file.seek(-1, 2) and file.read() != b"\n":
                file.write(b"\n")  # after a line cut short
            keys = ("id", "response", "error", "vision_tokens", "is_cut")
            for row in rows:
                file.write(json.dumps({key: row.get(key) for key in keys}).encode() + b"\n")

    def take_over_results(self) -> None:
        """Reuse the answers of a finished run of the same identity."""
        names = self.folder / "evaluation.json", self.folder / "results.json"
        if not self.path.exists() and all(name.is_file() for name in names):
            record = results.evaluation(names[1])
            if record.get("identity") == self.identity:
                self._append(storage.read_json(names[1]))

    def finish(self, rows: list[dict], record: dict) -> None:
        """Write the results. The answers' files stay while some questions failed: the next run asks only those."""
        storage.write_json(self.folder / "results.json", rows)
        storage.write_json(self.folder / "evaluation.json", record)
        if all(row["error"] is None for row in rows):
            for path in self.folder.glob(f".rows-{self.identity}-*.jsonl"):
                path.unlink(missing_ok=True)


def cut(known: dict[str, dict], questions: list[Question]) -> int:
    """How many answers ended because the tokens ran out."""
    return sum(bool(known[question.id].get("is_cut")) for question in questions if question.id in known)


def _rows(questions: list[Question], known: dict[str, dict], task: str) -> list[dict]:
    """The rows of results.json, in the order of the questions, judged as score_predictions judges them."""
    judged = []
    for question in questions:
        sample, said = question.sample, known[question.id]
        media = sample.media[0].path if sample.media else None
        texts = question.id, sample.id, media, question.text, question.gt, said["response"], said["error"]
        judged.append(results.Row(*texts, tags=sample.tags))
    results.judge(judged, results.TASK_TYPES[task])
    rows = []
    for row in judged:
        made = {name: getattr(row, name) for name in COLUMNS} | {"vision_tokens": known[row.id]["vision_tokens"]}
        made["correct"] = row.correct if row.error is None else None
        rows.append(made | ({"tags": list(row.tags)} if row.tags else {}))
    return rows


def _identity(spec: dict, who) -> str:
    """Changes with the spec, the annotations and who answers: rows of one are never reused for another."""
    asked = {key: value for key, value in spec.items() if key not in ("num_gpus", "results_dir", "metrics")}
    asked["evaluation"] = spec["evaluation"] | {"skip_saved": None, "batch_size": None, "limit": None}
    asked["custom"] = spec["custom"] | {"endpoint": None}
    facts = [asked, storage.sha256(Path(spec["dataset"]["annotation_path"])), who.identity()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _record(spec: dict, questions: list[Question], where: str) -> dict:
    """evaluation.json: what was asked of which model, and how."""
    model = spec["model"]
    return {
        "schema_version": 1,
        "model": model["model_name"],
        "checkpoint": str(Path(model["model_name"]).resolve()) if Path(model["model_name"]).is_dir() else None,
        "base_model": model["base_model_path"] or None,
        "annotations": spec["dataset"]["annotation_path"],
        "media_dir": spec["dataset"]["media_dir"],
        "questions": len(questions),
        "task": spec["task"]["type"],
        "prompt": {"system": spec["dataset"]["system_prompt"], "answer_type": spec["evaluation"]["answer_type"]},
        "sampling": spec["generation"],
        "vision": {key: value for key, value in spec["vision"].items() if value is not None},
        "hardware": where,
    }
