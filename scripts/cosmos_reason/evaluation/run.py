"""Ask every question of an annotation file, or of an inference: one row per question, whatever
happens to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files, findings
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation import (
    evaluation_record,
    grading,
    inference,
    questions,
    reason1_layout,
    retries,
)
from cosmos_reason.evaluation.questions import Answer, Responder
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.evaluation.saved_answers import (
    EVALUATION,
    INFERENCE,
    Names,
    SavedAnswers,
    Shard,
)

ALL = Shard(0, 1)


class Others(NamedTuple):
    """How many questions a job asks `before` and `after` those of one spec, for other specs."""

    before: int = 0
    after: int = 0


ALONE = Others()
NOT_FINITE = "ENGINE-LOGITS-NOT-FINITE"
COLUMNS = (
    "id",
    "video_id",
    "media",
    "question",
    "gt",
    "response",
    "answer",
    "rule",
    "type",
    "correct",
    "error",
    "is_cut",
)


def run(
    spec: dict,
    job_dir: Path | None,
    who: Responder,
    shard: Shard = ALL,
    spec_sha256: str | None = None,
    others: Others = ALONE,
) -> dict:
    """Evaluate as the complete spec says, or infer as `inference.as_evaluation` does. The process
    that answers the last question of all shards writes results.json and evaluation.json (of an
    inference predictions.json and inference.json) into `results_dir`. Answers reach a file as they
    come, so that a killed run, or one with questions that failed, continues where it stopped.
    Raises Failure, also where a model turns out to be broken while it answers: all its rows are
    errors then."""
    started = time.monotonic()
    findings.say(who.where)
    asked = questions.read(spec["dataset"], spec["evaluation"]["limit"])
    mine = _part(asked, shard)
    job_id = job_dir.name if job_dir else None
    saved = _saved(spec, who, shard, job_id)
    missing = saved.missing(mine)
    done = len(mine) - len(missing)
    failed = len(missing)
    path = _metrics_path(job_dir or saved.folder, shard)
    before, after = others if job_dir else ALONE  # without a job each spec has a log of its own
    total = before + len(mine) + after
    log = MetricsLog(path, questions.action(spec), total, before + done, unit="question")
    with contextlib.closing(log):
        asking = retries.answers(who, missing, spec["generation"]["max_retries"])
        for batch in _while_sound(asking, saved, mine, broken := []):
            saved.add(batch)
            failed -= sum(answer.error is None for answer in batch)
            done += len(batch)
            log.write({"step": before + done, "total_steps": total})

    by_id = saved.read()
    is_whole = all(question.id in by_id for question in asked)
    if is_whole:
        record = evaluation_record.compose(spec, len(asked), who)
        record["cut_short"] = _cut_short(asked, by_id)
        record["identity"] = saved.identity
        record["spec_sha256"] = spec_sha256
        record["job_id"] = job_id
        record["results_dir"] = str(saved.folder.absolute())
        _write(spec, saved, asked, _rows(spec, asked, by_id), record)
    if broken:
        raise broken[0]
    # Another shard may have merged all answers in the meantime, with those of this one.
    is_merged = is_whole or (bool(missing) and not saved.path.exists())
    return {
        "results": str(saved.folder / saved.names.rows) if is_merged else None,
        "rows": len(mine),
        "failed": failed,
        "cut_short": _cut_short(mine, by_id),
        "seconds": round(time.monotonic() - started, 1),
    }


def _while_sound(
    batches: Iterator[list[Answer]],
    saved: SavedAnswers,
    mine: list[Question],
    broken: list[findings.Failure],
) -> Iterator[list[Answer]]:
    """The batches, until one shows that the model is broken: `broken` says so then, and all that
    was saved are errors."""
    try:
        yield from batches
    except findings.Failure as failure:
        if failure.findings[0].id != NOT_FINITE:
            raise
        broken.append(failure)
        saved.void(mine, str(failure))


def _saved(spec: dict, who: Responder, shard: Shard, job_id: str | None) -> SavedAnswers:
    """The answers that are there already, with those of finished results where they count: the
    spec wants it, or the job wrote them before something ended it. Raises Failure."""
    if not spec["results_dir"]:
        fix = Fix(changes={"results_dir": "results"})
        raise findings.bad_input("ENGINE-NO-OUTPUT", "results_dir", "got nothing", fix)
    saved = SavedAnswers(Path(spec["results_dir"]), identity(spec, who), shard, names_of(spec))
    if spec["evaluation"]["skip_saved"] or saved.are_of_job(job_id):
        saved.take_over_results()
    return saved


def others(specs: Sequence[dict], shard: Shard) -> list[Others]:
    """What a job asks besides, for each of its specs. Raises Failure for data of any that cannot
    be read."""
    if len(specs) == 1:
        return [ALONE]
    counts = []
    for spec in specs:
        asked = questions.read(spec["dataset"], spec["evaluation"]["limit"])
        counts.append(len(_part(asked, shard)))
    return [Others(sum(counts[:place]), sum(counts[place + 1 :])) for place in range(len(counts))]


def _part(asked: list[Question], shard: Shard) -> list[Question]:
    return asked[shard.index :: shard.count]


def names_of(spec: dict) -> Names:
    return INFERENCE if questions.is_inference(spec) else EVALUATION


def identity(spec: dict, who: Responder) -> str:
    """Changes with the spec, the annotations and who answers: rows of one are never reused for
    another. What an inference asks is not part of it: each of its questions has a key of its
    own."""
    unrelated = ("num_gpus", "results", "results_dir", "metrics", "guard")
    asked = {key: value for key, value in spec.items() if key not in unrelated}
    same = {"skip_saved": None, "batch_size": None, "limit": None}
    asked["evaluation"] = spec["evaluation"] | same
    asked["custom"] = spec["custom"] | {"endpoint": None}
    if questions.is_inference(spec):
        asked["dataset"] = {"system_prompt": spec["dataset"]["system_prompt"]}
        annotations = ""
    else:
        annotations = files.sha256(Path(spec["dataset"]["annotation_path"]))
    facts = json.dumps([asked, annotations, who.identity()], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _metrics_path(folder: Path, shard: Shard) -> Path:
    """A file per shard: two processes never write to one."""
    if shard.index == 0:
        return folder / "metrics.jsonl"
    return folder / f"metrics-{shard.index + 1}-{shard.count}.jsonl"


def _cut_short(asked: list[Question], by_id: dict[str, dict]) -> int:
    """How many of the questions got a response that max_tokens ended."""
    saved = [by_id[question.id] for question in asked if question.id in by_id]
    return sum(bool(line["is_cut"]) for line in saved)


def _write(
    spec: dict, saved: SavedAnswers, asked: list[Question], rows: list[dict], record: dict
) -> None:
    """The files that a run leaves."""
    if spec.get("results", {}).get("layout") == reason1_layout.NAME:
        reason1_layout.write(saved.folder, spec, asked, rows)
    saved.finish(rows, record)


def _rows(spec: dict, asked: list[Question], by_id: dict[str, dict]) -> list[dict]:
    """The rows of results.json or predictions.json, in the order of the questions."""
    if questions.is_inference(spec):
        return inference.rows(asked, by_id)
    return _graded_rows(asked, by_id, spec["task"]["type"])


def _graded_rows(asked: list[Question], by_id: dict[str, dict], task: str) -> list[dict]:
    """Graded as score_predictions grades them."""
    graded = []
    for question in asked:
        sample = question.sample
        saved = by_id[question.id]
        row = Row(
            id=question.id,
            video_id=sample.id,
            media=sample.media[0].path if sample.media else None,
            question=question.text,
            gt=question.gt,
            response=saved["response"],
            error=saved["error"],
            tags=sample.tags,
            is_cut=bool(saved["is_cut"]),
        )
        graded.append(row)
    grading.grade(graded, grading.TASK_TYPES[task])
    rows = []
    for row in graded:
        columns = {name: getattr(row, name) for name in COLUMNS}
        columns["vision_tokens"] = by_id[row.id]["vision_tokens"]
        if row.error is not None:
            columns["correct"] = None
        attempts = by_id[row.id].get("attempts") or 1
        if attempts > 1:
            columns["attempts"] = attempts
        if row.tags:
            columns["tags"] = list(row.tags)
        rows.append(columns)
    return rows
