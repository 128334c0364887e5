"""Ask every question of an annotation file: one row per question, whatever happens to it.

Who answers is an object with `identity()` (changes with whatever could change an answer), `where` (in words) and
`answers(questions)`, which yields lists of Answer in any order: a model on this machine (model.py, which imports
torch), or a server (endpoint.py).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import annotations, checkpoints, media, results, spec_values, storage, vision_tokens
from cosmos_reason import spec as specs
from cosmos_reason.annotations import Question, Turn
from cosmos_reason.findings import EXIT_BAD_INPUT, Failure, Finding, bad_input, has_errors, info, outside, warning
from cosmos_reason.json_stream import JsonRecords
from cosmos_reason.record_formats import THINK
from cosmos_reason.transformers_engine.frames import with_system
from cosmos_reason.transformers_engine.progress import MetricsLog
from cosmos_reason.vision_tokens import VisionOptions

COLUMNS = ("id", "video_id", "media", "question", "gt", "response", "answer", "type", "correct", "error", "is_cut")

CLIPS = 9  # read for what a clip costs
PROMPT = ("train.train_policy.system_prompt", "dataset.system_prompt")


class Answer(NamedTuple):
    """What became of a question: exactly one of `response` and `error` is None. `vision_tokens` when it is known;
    `is_cut` when the tokens ran out before the answer ended."""

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
    suffix = THINK if spec["evaluation"]["answer_type"] == "reasoning" else ""
    return with_system([*earlier, asked._replace(text=asked.text + suffix)], spec["dataset"]["system_prompt"])


def run(spec: dict, job_dir: Path | None, who=None, shard: Shard = ALL, spec_sha256: str | None = None) -> dict:
    """Evaluate as the complete spec says; the process that answers the last question of all shards writes results.json
    and evaluation.json into `results_dir`. Answers reach a file as they come, so that a killed run, or one with
    questions that failed, continues where it stopped."""
    started = time.monotonic()
    if not spec["results_dir"]:
        raise bad_input("ENGINE-NO-OUTPUT", "results_dir", "got nothing", "--set results_dir=results")
    if who is None:
        from cosmos_reason.transformers_engine.model import Responder

        who = Responder(spec)
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

    def cut(questions: list[Question]) -> int:
        return sum(bool(known[question.id].get("is_cut")) for question in questions if question.id in known)

    if whole := all(question.id in known for question in questions):
        record = _record(spec, questions, who.where) | {"cut_short": cut(questions), "identity": saved.identity}
        record |= {"spec_sha256": spec_sha256}
        saved.finish(_rows(questions, known, spec["task"]["type"]), record)
    merged = whole or (missing and not saved.path.exists())  # by another shard, in the meantime
    return {
        "results": str(saved.folder / "results.json") if merged else None,
        "rows": len(mine),
        "failed": len(failed),
        "cut_short": cut(mine),
        "seconds": round(time.monotonic() - started, 1),
    }


class Saved:
    """Answers on disk, a line each, in one file per shard. Those of another identity are never reused."""

    def __init__(self, folder: Path, identity: str, shard: Shard):
        self.folder, self.identity, self.pattern = folder, identity, f".rows-{identity}-*.jsonl"
        self.path = folder / f".rows-{identity}-{shard.index}-{shard.count}.jsonl"

    def read(self) -> dict[str, dict]:
        """By question id, of all shards; an answer wins over an error. A line cut short by a kill is left out."""
        rows, lines = {}, []
        for path in sorted(self.folder.glob(self.pattern)):
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
            for row in rows:
                kept = {key: row.get(key) for key in ("id", "response", "error", "vision_tokens", "is_cut")}
                file.write(json.dumps(kept).encode() + b"\n")

    def take_over_results(self) -> None:
        """Reuse the answers of a finished run of the same identity."""
        done = self.folder / "results.json"
        if not self.path.exists() and done.is_file() and results.evaluation(done).get("identity") == self.identity:
            self._append(storage.read_json(done))

    def finish(self, rows: list[dict], record: dict) -> None:
        """Write the results. The answers' files stay while some questions failed: the next run asks only those."""
        storage.write_json(self.folder / "results.json", rows)
        storage.write_json(self.folder / "evaluation.json", record)
        if all(row["error"] is None for row in rows):
            for path in self.folder.glob(self.pattern):
                path.unlink(missing_ok=True)


def _rows(questions: list[Question], known: dict[str, dict], task: str) -> list[dict]:
    """The rows of results.json, in the order of the questions, judged as score_predictions judges them."""
    judged = []
    for question in questions:
        sample, said = question.sample, known[question.id]
        shown = sample.media[0].path if sample.media else None
        texts = question.id, sample.id, shown, question.text, question.gt, said["response"], said["error"]
        judged.append(results.Row(*texts, tags=sample.tags, is_cut=bool(said.get("is_cut"))))
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


def of_checkpoints(spec: dict, folders: Sequence[Path]) -> tuple[list[dict], list[Finding]]:
    """The spec once per checkpoint, each with a results folder of its own below `results_dir`; a training output stands
    for all its models. Damaged ones are named in a warning. Raises Failure when nothing is left."""
    models, found = [], []
    for folder in folders:
        alone = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
        listed = [] if alone else [c for c in checkpoints.find(folder) if c.kind != checkpoints.RESUME]
        models += [folder] if alone else [c.path for c in listed if c.complete]
        found += [warning("EVAL-CHECKPOINT-SKIPPED", c.path, "got a damaged checkpoint, which is left out",
                          f"scripts/select_checkpoint.py {folder}") for c in listed if not c.complete]  # fmt: skip
        if not alone and not any(c.complete for c in listed):
            raise bad_input("EVAL-NO-CHECKPOINT", folder, "got no undamaged model, expected one or an output folder")
    specs = {run_name(path): _with_model(spec, path) for path in models}
    if len(specs) < len(models):
        raise bad_input("EVAL-CHECKPOINT-TWICE", "--checkpoint", "got two of one name, expected different names")
    return list(specs.values()), found


def run_name(checkpoint: Path) -> str:
    """step_10 of run 20260101120000 is 20260101120000-step_10; any other folder has its own name."""
    checkpoint = checkpoint.resolve()  # best/ is a link
    in_run = checkpoint.parent.name in ("safetensors", "merged")
    return f"{checkpoint.parts[-3]}-{checkpoint.name}" if in_run else checkpoint.name


def _with_model(spec: dict, path: Path) -> dict:
    spec = copy.deepcopy(spec)
    adapter = checkpoints.kind(path) == checkpoints.ADAPTER
    base = spec["model"]["base_model_path"] if adapter else ""
    spec["model"] |= {"model_name": str(path), "enable_lora": adapter, "base_model_path": base}
    if spec["results_dir"]:
        spec["results_dir"] = str(Path(spec["results_dir"], run_name(path)))
    return spec


def on_every_gpu(command: Sequence[str], count: int, results_dirs: Sequence[str]) -> list[dict]:
    """Run `command --shard i/count` once per GPU and wait; the last to finish merges the rows. One result per folder.
    Raises Failure (exit 3) when one fails: the others end, and the next run continues with the answers there are."""
    started = time.monotonic()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [gpu for gpu in visible.split(",") if gpu] if visible is not None else [str(n) for n in range(count)]
    if len(gpus) < count:
        message = f"got {len(gpus)} visible GPUs ({visible}), expected num_gpus={count}"
        raise bad_input("EVAL-GPUS", "num_gpus", message, f"--set num_gpus={max(len(gpus), 1)}")
    running = []
    for number, gpu in enumerate(gpus[:count], 1):
        shard, env = [*command, "--shard", f"{number}/{count}"], os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
        running.append(subprocess.Popen(shard, env=env, stdout=subprocess.DEVNULL))
    try:
        while any(child.poll() is None for child in running) and not any(child.returncode for child in running):
            time.sleep(0.2)
    finally:
        for child in running:
            child.terminate()
        codes = [child.wait() for child in running]
    if any(codes):
        raise outside("EVAL-SHARD-FAILED", "num_gpus", f"got exit codes {codes} of the {count} processes, expected 0")
    seconds = round(time.monotonic() - started, 1)
    return [_result(Path(folder) / "results.json") | {"seconds": seconds} for folder in results_dirs]


def _result(path: Path) -> dict:
    rows = storage.read_json(path)
    counts = {"failed": sum(row["error"] is not None for row in rows), "cut_short": sum(row["is_cut"] for row in rows)}
    return {"results": str(path), "rows": len(rows), **counts}


def mismatches(spec: dict) -> list[Finding]:
    """Warnings about a complete evaluate spec whose model is a checkpoint with its training spec beside it."""
    folder = Path(spec["model"]["model_name"]).resolve()  # best/ is a link
    if folder.parent.name not in ("safetensors", "merged"):
        return []
    try:
        if trained := training_spec(folder):
            return [*_prompt(trained, spec), *_vision(trained, spec)]
        why = "got no training spec beside the checkpoint"
    except Failure as failure:
        why = failure.findings[0].message
    message = f"{why}; prompt, frames and pixels were not compared with those of training"
    return [info("EVAL-TRAINING-UNKNOWN", folder, message)]


def training_spec(folder: Path) -> dict | None:
    """What the checkpoint `<output_dir>/<run>/safetensors/<step>` was trained with: its resume folder's cosmos_config,
    else config.toml of the run or the output, else spec.toml of the job whose results it lies in."""
    run = folder.parents[1]
    saved = run / "checkpoints" / folder.name / "policy" / "cosmos_config"
    if saved.is_file():
        return storage.read_json(saved)
    names = [run / "config.toml", run.parent / "config.toml", *(above / "spec.toml" for above in run.parents[1:3])]
    found = next((name for name in names if name.is_file()), None)
    return found and storage.read_toml(found)


def _prompt(trained: dict, spec: dict) -> list[Finding]:
    then, now = specs.get(trained, PROMPT[0], ""), specs.get(spec, PROMPT[1], "")
    if then == now:
        return []
    message = f"got {now[:80]!r}, expected the system prompt of training: {then[:80]!r}"
    data = {"training": then, "evaluation": now}
    return [warning("EVAL-MISMATCH-PROMPT", PROMPT[1], message, spec_values.set_flag(PROMPT[1], then), **data)]


def _vision(trained: dict, spec: dict) -> list[Finding]:
    then, now = VisionOptions.from_spec(trained), VisionOptions.from_table(spec["vision"])
    if then == now:
        return []
    tokens = {"training": None, "evaluation": None}
    if clips := _clips(spec["dataset"]):
        patch = vision_tokens.patch_size(spec["model"]["model_name"])
        tokens = {name: _typical(clips, options, patch) for name, options in zip(tokens, (then, now), strict=True)}
    then, now = ({key: value for key, value in asdict(table).items() if value is not None} for table in (then, now))
    message = f"got {_words(now)} ({_tokens(tokens['evaluation'])}), "
    message += f"expected what training had: {_words(then)} ({_tokens(tokens['training'])})"
    flags = [f"--unset vision.{key}" for key in sorted(now.keys() - then.keys())]
    flags += [spec_values.set_flag(f"vision.{key}", value) for key, value in then.items() if now.get(key) != value]
    data = {"tokens": tokens, "training": then, "evaluation": now}
    return [warning("EVAL-MISMATCH-VISION", "vision", message, " ".join(flags), **data)]


def _clips(dataset: dict) -> list[media.MediaFacts]:
    """A few clips of the annotations, as far as they are here and can be read."""
    if "://" in dataset["media_dir"]:
        return []
    found = []
    for sample in annotations.stream(JsonRecords(dataset["annotation_path"]), annotations.Tally()):
        for item in sample.media:
            try:
                found.append(media.probe(media.resolve(dataset["media_dir"], item.path)))
            except Failure:  # evaluation makes an error row of it
                continue
        if len(found) >= CLIPS:
            break
    return found


def _typical(clips: list[media.MediaFacts], options: VisionOptions, patch: int) -> int | None:
    """Median of the vision tokens of the clips that can be sampled so."""
    counts = []
    for clip in clips:
        size = clip.height, clip.width
        with contextlib.suppress(Failure):
            if clip.kind == "image":
                counts.append(vision_tokens.image_tokens(*size, options, patch))
            else:
                frames = vision_tokens.frame_count(clip.frames, clip.fps, options)
                counts.append(vision_tokens.video_tokens(*size, frames, options, patch))
    return int(statistics.median(counts)) if counts else None


def _words(table: dict) -> str:
    return ", ".join(f"{key}={value}" for key, value in table.items()) or "no vision options"


def _tokens(count: int | None) -> str:
    return "vision tokens unknown" if count is None else f"{count} vision tokens for a typical clip"
