"""Answers on disk, so that a killed run, or one with questions that failed, continues where it
stopped."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation import evaluation_record, line_log
from cosmos_reason.evaluation.questions import Answer

RESULTS = "results.json"
PREDICTIONS = "predictions.json"
KEPT = ("id", "response", "error", "vision_tokens", "is_cut")
MEASURED = ("tokens", "seconds", "attempts", "choice")


class Shard(NamedTuple):
    """This process's part of the questions: number `index` (from 0) of `count`."""

    index: int
    count: int


class Names(NamedTuple):
    """The files that a run leaves, and the column that holds the ids of its questions."""

    rows: str
    record: str
    id: str


EVALUATION = Names(RESULTS, evaluation_record.FILE, "id")
INFERENCE = Names(PREDICTIONS, "inference.json", "key")


class SavedAnswers:
    """A line per answer, in one file per shard. Those of another identity are never reused."""

    def __init__(self, folder: Path, identity: str, shard: Shard, names: Names = EVALUATION):
        self.folder = folder
        self.names = names
        self.identity = identity
        self.pattern = f".rows-{identity}-*.jsonl"
        self.path = folder / f".rows-{identity}-{shard.index}-{shard.count}.jsonl"

    def read(self) -> dict[str, dict]:
        """Return the lines of all shards by question id; an answer wins over an error."""
        by_id = {}
        for path in sorted(self.folder.glob(self.pattern)):
            for line in line_log.read(path):
                if any(name not in line for name in KEPT):
                    continue
                # The same question may stand there twice: it failed first, and was asked again.
                if line["error"] is None or line["id"] not in by_id:
                    by_id[line["id"]] = line
        return by_id

    def missing(self, questions: list[Question]) -> list[Question]:
        """Return the questions that were not asked yet, or whose answer is an error."""
        lines = self.read().values()
        answered = {line["id"] for line in lines if line["error"] is None}
        return [question for question in questions if question.id not in answered]

    def add(self, answers: Iterable[Answer]) -> None:
        lines = []
        for answer in answers:
            line = {"id": answer.question.id} | answer._asdict()
            lines.append({name: line[name] for name in KEPT + MEASURED})
        line_log.append(self.path, lines)

    def void(self, questions: Iterable[Question], reason: str) -> None:
        """Make errors of all that this process was to ask, answered or not."""
        # Else the next run would take the answers of a broken model for good ones.
        self.path.unlink(missing_ok=True)
        self.add(Answer(question, None, reason) for question in questions)

    def are_of_job(self, job_id: str | None) -> bool:
        """Return whether the results here were written by this job, before something ended it."""
        results = self.folder / self.names.rows
        if job_id is None or not results.is_file():
            return False
        return evaluation_record.read(results, self.names.record).get("job_id") == job_id

    def take_over_results(self) -> None:
        """Reuse the answers of a finished run of the same identity."""
        results = self.folder / self.names.rows
        if self.path.exists() or not results.is_file():
            return
        if evaluation_record.read(results, self.names.record).get("identity") != self.identity:
            return
        lines = []
        for row in files.read_json(results):
            line = {name: row.get(name) for name in KEPT + MEASURED}
            lines.append(line | {"id": row.get(self.names.id)})
        line_log.append(self.path, lines)

    def finish(self, rows: list[dict], record: dict) -> None:
        """Write the results. The answers' files stay while some questions failed: the next run asks
        only those."""
        files.write_json(self.folder / self.names.rows, rows)
        files.write_json(self.folder / self.names.record, record)
        if all(row["error"] is None for row in rows):
            for path in self.folder.glob(self.pattern):
                path.unlink(missing_ok=True)
