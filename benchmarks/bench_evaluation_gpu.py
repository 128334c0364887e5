"""Evaluation on one CUDA GPU: 256 short answers of an 8B model with random weights, one at a time
as transformers is used alone, and as the engine asks. Prints one JSON line per case.

    python benchmarks/bench_evaluation_gpu.py [FOLDER]

A clip of its own for each question (1280x720, 4 s, H.264; 8 frames of 448x448 are shown), 8 new
tokens. `seconds` are those from the model loaded to the last answer read, `loading` those of
loading it from a warm disk, meanwhile clips may be decoded. `same`: answers that are those of one
at a time, token for token; in bfloat16 another batch rounds otherwise, and random weights decide by
little. `parts`: seconds of a batch of encoded questions through the model, and of encoding a
question on one core.
"""

import gc
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch
from bench_engine_gpu import set_up_geometry, synchronize, write_data
from transformers import AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni
from cosmos_reason.engine.answer import quicker
from cosmos_reason.engine.answer import responder as responders
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.engine.model import Hardware
from cosmos_reason.evaluation import questions
from cosmos_reason.spec import document

GEOMETRY = "8B"
QUESTIONS, CLIPS, TOKENS, SIDE, FRAMES = 256, 32, 8, 448, 8
# questions at a time, processes that decode (None: chosen), quicker, questions. What is not quicker
# is transformers as it comes, under autocast.
CASES = [
    (1, 0, False, 48),
    (1, 0, True, 48),
    (16, None, True, QUESTIONS),
    (32, None, True, QUESTIONS),
    (64, None, True, QUESTIONS),
    (64, None, True, QUESTIONS),
]


def write_questions(data: Path) -> None:
    """As many records as questions, each with a clip that has a name of its own."""
    records = files.read_json(data / "annotations.json")
    asked = []
    for number in range(QUESTIONS):
        record = records[number % CLIPS]
        name = f"videos/{number}-{number % CLIPS}.mp4"
        if not (data / name).exists():
            shutil.copyfile(data / record["video"], data / name)
        asked.append(record | {"id": str(number), "video": name})
    files.write_json(data / "asked.json", asked)


def spec_of(model: Path, changes: dict) -> dict:
    """Return the evaluate spec that all benchmarks of answers share: the questions beside the
    model, and `changes` by key."""
    root = model.parent
    table = document.template("evaluate")
    same = {
        "dataset.annotation_path": str(root / "data" / "asked.json"),
        "dataset.media_dir": str(root / "data"),
        "model.model_name": str(model),
        "vision": {"nframes": FRAMES, "resized_height": SIDE, "resized_width": SIDE},
        "generation.max_tokens": TOKENS,
        "results_dir": str(root / "results"),
    }
    document.set_values(table, same | changes)
    return document.with_defaults("evaluate", table)


def make_model(root: Path, texts: list[str]) -> Path:
    """Write an 8B model with random weights, whose tokenizer knows the texts, beside a miniature
    (`tiny`). Where there is no GPU, the miniature alone."""
    tiny_omni.build(root / "omni", 1, texts)
    conversion.convert(omni.open_source(root / "omni"), root / "tiny", 10**9, force=False, jobs=1)
    if not torch.cuda.is_available():
        return root / "tiny"
    folder = root / GEOMETRY
    set_up_geometry(root / "tiny", folder, GEOMETRY)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        network = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_pretrained(folder))
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():  # the likeliest token always has a text
        network.lm_head.weight[len(AutoTokenizer.from_pretrained(folder)) :] = 0
    network.save_pretrained(folder, max_shard_size="5GB")
    # Once for kernels that are chosen at the first call.
    tokens = torch.zeros((2, 600), dtype=torch.long, device=network.device)
    network.generate(input_ids=tokens, max_new_tokens=2)
    return folder


class Timed(Responder):
    """Says how long loading took. What is not quicker stays as transformers has it."""

    is_quick = True

    def load(self) -> None:
        if self.network is not None:
            return
        self.prepare()
        started = time.perf_counter()
        quicken, responders.quicken = responders.quicken, self.quicken
        super().load()
        responders.quicken = quicken
        synchronize()
        self.loading = time.perf_counter() - started

    def quicken(self, network) -> None:
        if self.is_quick:
            quicker.quicken(network)
        else:
            self.hardware = Casting(self.hardware)


class Casting(Hardware):
    def __init__(self, hardware: Hardware):
        super().__init__(hardware.device, hardware.compute, hardware.reason)

    def autocast_for(self, _):
        return self.autocast()


def ask(root: Path, size: int, workers: int | None, is_quick: bool, limit: int):
    """Return the row of a case, and the response to each question."""
    spec = spec_of(root / GEOMETRY, {"evaluation.batch_size": size})
    responder = Timed(spec)
    responder.workers, responder.is_quick = workers, is_quick
    asked = questions.read(spec["dataset"], -1)[:limit]
    started = time.perf_counter()
    found = {}
    for answers in responder.answers(asked):
        for answer in answers:
            found[answer.question.id] = answer.response if answer.error is None else answer.error
    seconds = time.perf_counter() - started - responder.loading
    row = {"at_a_time": size, "workers": workers, "quicker": is_quick}
    row |= {"loading": round(responder.loading, 2), "seconds": round(seconds, 2)}
    row |= {"per_answer": round(seconds / len(asked), 4), "answers": len(found)}
    row["parts"] = parts(responder, asked, size)
    if torch.cuda.is_available():
        row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        torch.cuda.reset_peak_memory_stats()
    return row, found


def parts(responder: Responder, asked: list, size: int) -> dict:
    encoded = []
    started = time.perf_counter()
    for question in asked[-4:]:
        encoded.append(responder.encode(question))
    encoding = (time.perf_counter() - started) / len(encoded)
    batch = [encoded[number % 4] for number in range(size)]
    synchronize()
    started = time.perf_counter()
    responder.generate(batch)
    synchronize()
    return {
        "encode_one": round(encoding, 4),
        "answer_batch": round(time.perf_counter() - started, 3),
        "tokens": len(encoded[0]["input_ids"]),
    }


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    write_data(root / "data")
    write_questions(root / "data")
    make_model(root, ["What is in the clip? A grey box."])
    first = None
    for size, workers, is_quick, limit in CASES:
        row, found = ask(root, size, workers, is_quick, limit)
        first = first or (row, found)
        row["times_faster"] = round(first[0]["per_answer"] / row["per_answer"], 2)
        row["same"] = sum(found[name] == response for name, response in first[1].items())
        print(json.dumps(row), flush=True)
        gc.collect()


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("skipped: no CUDA GPU here; benchmarks/RESULTS.md holds the measured numbers")
