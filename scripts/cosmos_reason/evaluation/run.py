"""Ask every question of an annotation file, or of an inference: one row per question, whatever
happens to it. Enter at `run`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.answers import final_answer
from cosmos_reason.base import files, findings, job_folder
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.metrics_log import MetricsLog
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation import evaluation_record, grading, inference, questions, reason1
from cosmos_reason.evaluation.questions import Answer, Responder
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.evaluation.saved_answers import EVALUATION, INFERENCE, Names, SavedAnswers, Shard

ALL = Shard(0, 1)


class Others(NamedTuple):
    """How many questions a job asks `before` and `after` those of one spec, for other specs."""

    before: int = 0
    after: int = 0


ALONE = Others()
NOT_FINITE = "ENGINE-LOGITS-NOT-FINITE"
# Each new attempt at an empty answer gets so many more tokens and is so much warmer.
MORE_TOKENS = 256
WARMER = 0.05
WARMEST = 0.9
COLUMNS = (
    "id", "video_id", "media", "question", "gt", "response", "answer", "rule", "read", "type",
    "correct", "error", "is_cut",
)  # fmt: skip


def run(
    spec: dict,
    job_dir: Path | None,
    who: Responder,
    shard: Shard = ALL,
    spec_sha256: str | None = None,
    others: Others = ALONE,
) -> dict:
    """Evaluate as the complete spec says, or infer as `inference.as_evaluation` does.

    The process that answers the last question of all shards writes results.json and evaluation.json
    (of an inference predictions.json and inference.json) into `results_dir`. Answers reach a file
    as they come, so that a killed run, or one with questions that failed, continues where it
    stopped. Raises Failure, also where a model turns out to be broken while it answers: all its
    rows are errors then.
    """
    started = time.monotonic()
    findings.say(who.where)
    if not spec["results_dir"]:
        fix = Fix(changes={"results_dir": "results"})
        raise findings.bad_input("ENGINE-NO-OUTPUT", "results_dir", "it is empty", fix)
    asked = questions.read(spec["dataset"], spec["evaluation"]["limit"])
    # Every n-th question, not a block: long clips often stand together.
    mine = asked[shard.index :: shard.count]
    job_id = job_folder.id_of(job_dir) if job_dir else None

    # Finished results count where the spec wants it, or where this job wrote them before something
    # ended it.
    folder = Path(spec["results_dir"])
    saved = SavedAnswers(folder, identity(spec, who), shard, names_of(spec))
    if spec["evaluation"]["skip_saved"] or saved.are_of_job(job_id):
        saved.take_over_results()
    missing = saved.missing(mine)

    done = len(mine) - len(missing)
    failed = len(missing)
    before, after = others if job_dir else ALONE  # without a job each spec has a log of its own
    total = before + len(mine) + after
    name = "metrics.jsonl"
    if shard.index:  # two processes never write to one file
        name = f"metrics-{shard.index + 1}-{shard.count}.jsonl"
    action = questions.action(spec)
    log = MetricsLog((job_dir or folder) / name, action, total, before + done, unit="question")
    broken = None
    with contextlib.closing(log):
        try:
            if missing:  # how many there are is known before the first answer
                log.write({"step": before + done, "total_steps": total})
            for batch in answers(who, missing, spec["generation"]["max_retries"]):
                saved.add(batch)
                failed -= sum(answer.error is None for answer in batch)
                done += len(batch)
                log.write({"step": before + done, "total_steps": total})
        except findings.Failure as failure:
            if failure.findings[0].id != NOT_FINITE:
                raise
            # The model is broken: what it answered before counts no more.
            broken = failure
            saved.void(mine, str(failure))

    by_id = saved.read()
    # Whichever process finds the answers of all shards writes the results.
    is_whole = all(question.id in by_id for question in asked)
    if is_whole:
        rows = _rows(spec, asked, by_id)
        record = evaluation_record.compose(spec, len(asked), who)
        record["cut_short"] = _cut_short(asked, by_id)
        record["identity"] = saved.identity
        record["spec_sha256"] = spec_sha256
        record["job_id"] = job_id
        record["results_dir"] = str(folder.absolute())
        if spec.get("results", {}).get("layout") == reason1.LAYOUT:
            reason1.write(folder, spec, asked, rows)
        saved.finish(rows, record)
    if broken:
        raise broken
    # Another shard may have merged all answers in the meantime, with those of this one.
    is_merged = is_whole or (bool(missing) and not saved.path.exists())
    return {
        "results": str(folder / saved.names.rows) if is_merged else None,
        "rows": len(mine),
        "failed": failed,
        "cut_short": _cut_short(mine, by_id),
        "seconds": round(time.monotonic() - started, 1),
    }


def answers(
    who: Responder, questions: list[Question], retries: int | None
) -> Iterator[list[Answer]]:
    """Yield the answers of `who`, each with the number of its attempts. Raises Failure as
    `who.answers` does.

    A response in which nothing but thinking stands is asked for again up to `retries` times (None:
    0), with more tokens and a higher temperature, as Cosmos-Reason1's evaluator does; it is given
    only where no attempt brought another.
    """
    retries = retries or 0
    first = who.generation
    left = questions
    for attempt in range(retries + 1):
        if attempt and not left:
            break
        if attempt:
            warmer = min(first["temperature"] + WARMER * attempt, WARMEST)
            who.generation = first | {
                "max_tokens": first["max_tokens"] + MORE_TOKENS * attempt,
                "temperature": max(first["temperature"], warmer),
            }
        empty = []
        for batch in who.answers(left):
            kept = []
            for answer in batch:
                is_empty = answer.response is not None and final_answer(answer.response) is None
                if is_empty and attempt < retries:
                    empty.append(answer.question)
                else:
                    kept.append(answer._replace(attempts=attempt + 1))
            yield kept
        left = empty
    who.generation = first


def others(specs: Sequence[dict], shard: Shard) -> list[Others]:
    """Return what a job asks besides, for each of its specs. Raises Failure for data of any that
    cannot be read."""
    if len(specs) == 1:
        return [ALONE]
    counts = []
    for spec in specs:
        asked = questions.read(spec["dataset"], spec["evaluation"]["limit"])
        counts.append(len(asked[shard.index :: shard.count]))
    return [Others(sum(counts[:place]), sum(counts[place + 1 :])) for place in range(len(counts))]


def names_of(spec: dict) -> Names:
    return INFERENCE if questions.is_inference(spec) else EVALUATION


def identity(spec: dict, who: Responder) -> str:
    """Return what changes with the spec, the annotations and who answers: rows of one are never
    reused for another. What an inference asks is not part of it: each of its questions has a key of
    its own."""
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


def _cut_short(asked: list[Question], by_id: dict[str, dict]) -> int:
    """Return how many of the questions got a response that max_tokens ended."""
    return sum(bool(by_id[one.id]["is_cut"]) for one in asked if one.id in by_id)


def _rows(spec: dict, asked: list[Question], by_id: dict[str, dict]) -> list[dict]:
    """Return the rows of results.json, graded as score_predictions grades them, or of
    predictions.json, in the order of the questions."""
    if questions.is_inference(spec):
        return inference.rows(asked, by_id)
    graded = []
    for question in asked:
        saved = by_id[question.id]
        row = Row.of(question, saved["response"], saved["error"])
        row.is_cut = bool(saved["is_cut"])
        graded.append(row)
    # All rows at once: which labels there are, only the whole set tells.
    grading.grade(graded, grading.TASK_TYPES[spec["task"]["type"]])
    rows = []
    for row in graded:
        columns = {name: getattr(row, name) for name in COLUMNS}
        columns["vision_tokens"] = by_id[row.id]["vision_tokens"]
        if row.error is not None:
            columns["correct"] = None
        attempts = by_id[row.id].get("attempts") or 1
        if attempts > 1:
            columns["attempts"] = attempts
        if by_id[row.id].get("choice"):
            columns["choice"] = by_id[row.id]["choice"]
        if row.parts:
            columns["parts"] = row.parts
        for name in ("tags", "groups"):
            if getattr(row, name):
                columns[name] = list(getattr(row, name))
        rows.append(columns)
    return rows
