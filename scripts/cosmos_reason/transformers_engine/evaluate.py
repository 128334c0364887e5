"""Ask a model every question of an annotation file: one row per question, whatever happens to it."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from cosmos_reason import annotations, answers, storage
from cosmos_reason.annotations import Question
from cosmos_reason.findings import Failure, bad_input, has_errors
from cosmos_reason.transformers_engine import model as models
from cosmos_reason.transformers_engine.inputs import Encoder, collate, with_system
from cosmos_reason.transformers_engine.progress import MetricsLog
from cosmos_reason.vision_tokens import VisionOptions

REASONING = "\n\nThink first, between <think> and </think>. Put the final answer right after </think>."


class Responder:
    """A loaded model that answers batches of questions greedily or by sampling, as `generation` says."""

    def __init__(self, spec: dict, hardware: models.Hardware):
        table, dataset = spec["model"], spec["dataset"]
        self.spec, self.hardware = spec, hardware
        self.network, self.folder = models.load_for_evaluation(table, hardware.compute, hardware.device)
        self.tokenizer = models.load_tokenizer(self.folder)
        options = VisionOptions.from_table(spec["vision"])
        self.encoder = Encoder(self.tokenizer, self.folder, dataset["media_dir"], options, table["max_length"])
        self.suffix = REASONING if spec["evaluation"]["answer_type"] == "reasoning" else ""

    def encode(self, question: Question) -> dict[str, torch.Tensor]:
        *earlier, asked = question.context
        turns = [*earlier, asked._replace(text=asked.text + self.suffix)]
        turns = with_system(turns, self.spec["dataset"]["system_prompt"])
        return self.encoder.encode_prompt(turns, question.sample.media)

    @torch.inference_mode()
    def answer(self, encoded: list[dict[str, torch.Tensor]]) -> list[str]:
        generation = self.spec["generation"]
        batch = collate(encoded, self.tokenizer.pad_token_id, "left")
        batch = {key: value.to(self.hardware.device) for key, value in batch.items()}
        sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if generation["temperature"] > 0:
            sampling = {"do_sample": True} | {key: generation[key] for key in ("temperature", "top_p", "top_k")}
        with self.hardware.autocast():
            tokens = self.network.generate(
                **batch,
                **sampling,
                max_new_tokens=generation["max_tokens"],
                repetition_penalty=generation["repetition_penalty"],
                eos_token_id=self.tokenizer.eos_token_id,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        return self.tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def read_questions(dataset: dict, limit: int) -> list[Question]:
    """Every question of the annotation file in file order, the first `limit` of them when that is positive."""
    samples, found = annotations.read(Path(dataset["annotation_path"]))
    if has_errors(found):
        raise Failure(found, 2)
    questions = [question for sample in samples for question in annotations.questions(sample)]
    if not questions:
        raise bad_input("EVAL-NO-QUESTIONS", dataset["annotation_path"], "got no question with an answer")
    counts = Counter(question.id for question in questions)
    if twice := [name for name, count in counts.items() if count > 1]:
        message = f"got {len(twice)} ids more than once ({', '.join(twice[:3])}), expected unique ids: rows carry them"
        raise bad_input("EVAL-ID-DUPLICATE", dataset["annotation_path"], message, record_ids=twice[:1000])
    return questions[:limit] if limit > 0 else questions


def row(question: Question, kind: str, response: str | None, error: str | None, vision_tokens: int | None) -> dict:
    answer = None if response is None else answers.parse_answer(response, kind, question.text)
    correct = None if response is None else answers.matches(answer, question.gt, kind, question.text)
    return {
        "id": question.id,
        "video_id": question.sample.id,
        "media": question.sample.media[0].path if question.sample.media else None,
        "question": question.text,
        "gt": question.gt,
        "response": response,
        "answer": answer,
        "type": kind,
        "correct": correct,
        "error": error,
        "vision_tokens": vision_tokens,
    }


def ask(responder: Responder, questions: list[Question], kinds: dict[str, str]) -> Iterator[list[dict]]:
    """The rows of `evaluation.batch_size` questions at a time. What cannot be read becomes an error row."""
    size = responder.spec["evaluation"]["batch_size"]
    for first in range(0, len(questions), size):
        ready, rows = [], []
        for question in questions[first : first + size]:
            try:
                ready.append((question, responder.encode(question)))
            except (Failure, OSError) as problem:
                rows.append(row(question, kinds[question.id], None, str(problem), None))
        responses = responder.answer([encoded for _, encoded in ready]) if ready else []
        for (question, encoded), response in zip(ready, responses, strict=True):
            tokens = int((encoded["mm_token_type_ids"] > 0).sum())
            rows.append(row(question, kinds[question.id], response, None, tokens))
        yield rows


def run(spec: dict, job_dir: Path | None) -> dict:
    """Evaluate as the complete spec says; writes results.json and evaluation.json into `results_dir`. Rows reach a
    partial file as they are made, so that a killed run continues where it stopped."""
    started = time.monotonic()
    if not spec["results_dir"]:
        raise bad_input("ENGINE-NO-OUTPUT", "results_dir", "got nothing", "--set results_dir=results")
    results_dir = Path(spec["results_dir"])
    hardware = models.choose_hardware(spec["custom"]["transformers_engine"]["device"], spec["model"]["dtype"])
    print(hardware.reason, file=sys.stderr)
    torch.manual_seed(spec["evaluation"]["seed"])
    questions = read_questions(spec["dataset"], spec["evaluation"]["limit"])
    kinds = {question.id: answers.question_type(question.text, question.gt) for question in questions}
    partial = results_dir / f".rows-{_identity(spec)}.jsonl"
    rows = _read_partial(partial)
    missing = [question for question in questions if question.id not in rows]
    metrics = MetricsLog((job_dir or results_dir) / "metrics.jsonl", "evaluate", len(questions), len(rows))
    if missing:
        results_dir.mkdir(parents=True, exist_ok=True)
        with open(partial, "a", encoding="utf-8") as file:
            for made in ask(Responder(spec, hardware), missing, kinds):
                rows |= {each["id"]: each for each in made}
                file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in made)
                file.flush()
                metrics.write({"step": len(rows), "total_steps": len(questions)})
    metrics.close()
    storage.write_json(results_dir / "results.json", [rows[question.id] for question in questions])
    storage.write_json(results_dir / "evaluation.json", _record(spec, questions, hardware))
    partial.unlink(missing_ok=True)
    return {
        "results": str(results_dir / "results.json"),
        "rows": len(questions),
        "failed": sum(made["error"] is not None for made in rows.values()),
        "seconds": round(time.monotonic() - started, 1),
    }


def _identity(spec: dict) -> str:
    """Changes with the spec, the annotations and the model folder: rows of one are never reused for another."""
    folder = models.model_folder(spec["model"]["model_name"])
    weights = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.glob("*.safetensors"))]
    facts = [spec, storage.sha256(Path(spec["dataset"]["annotation_path"])), weights]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _read_partial(path: Path) -> dict[str, dict]:
    """Rows by id; a last line cut short by a kill is left out."""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            made = json.loads(line)
        except json.JSONDecodeError:
            break
        rows[made["id"]] = made
    return rows


def _record(spec: dict, questions: list[Question], hardware: models.Hardware) -> dict:
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
        "prompt": {"system": spec["dataset"]["system_prompt"], "answer_type": spec["evaluation"]["answer_type"]},
        "sampling": spec["generation"],
        "vision": spec["vision"],
        "hardware": hardware.reason,
    }
