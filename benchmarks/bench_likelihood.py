"""Asking by likelihood beside decoding a letter and its end, of the same multiple-choice questions.
Prints one JSON line per number of questions that a clip has.

    python benchmarks/bench_likelihood.py [FOLDER]

On a GPU an 8B model with random weights and clips of 8 frames of 448x448, else the demo's miniature
and 8 frames of 192x192. Processor seconds (on a GPU seconds) of the model alone, inputs encoded
beforehand, the better of two turns each.
"""

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import bench_evaluation_gpu as bench
import torch
from bench_engine_gpu import synchronize, write_data

from cosmos_reason.base import files
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.evaluation import questions

ON_GPU = torch.cuda.is_available()
QUESTIONS, AT_A_TIME = (96, 32) if ON_GPU else (32, 16)
PER_CLIP = (1, 3, 8)
SIDE = bench.SIDE if ON_GPU else 192
ASKED = "What does part {n} of the machine do?\n(A) turns\n(B) stops\n(C) falls\n(D) rises\n{tail}"
TAIL = "Answer with the option's letter from the given choices directly."


def write_questions(data: Path, per_clip: int) -> None:
    records = files.read_json(data / "annotations.json")
    asked = []
    for number in range(QUESTIONS):
        record = records[number // per_clip % len(records)]
        text = ASKED.format(n=number, tail=TAIL)
        turns = [{"from": "human", "value": f"<video>\n{text}"}, {"from": "gpt", "value": "A"}]
        asked.append(record | {"id": str(number), "conversations": turns})
    files.write_json(data / "asked.json", asked)


def seconds(act, ready: list) -> float:
    clock = time.perf_counter if ON_GPU else time.process_time
    best = float("inf")
    for _ in range(3 if ON_GPU else 2):  # kernels are chosen at the first call
        synchronize()
        started = clock()
        for first in range(0, len(ready), AT_A_TIME):
            act(ready[first : first + AT_A_TIME])
        synchronize()
        best = min(best, clock() - started)
    return best


def decode(responder: Responder, ready: list) -> None:
    responder.generate([inputs for _, inputs in ready])


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    write_data(root / "data")
    model = bench.make_model(root, [ASKED.format(n="0123456789", tail=TAIL)])
    view = {"nframes": bench.FRAMES, "resized_height": SIDE, "resized_width": SIDE}
    for per_clip in PER_CLIP:
        write_questions(root / "data", per_clip)
        spec = bench.spec_of(model, {"vision": view, "generation.max_tokens": 2})
        responder = Responder(spec)
        responder.load()
        ready = [(one, responder.encode(one)) for one in questions.read(spec["dataset"], -1)]
        decoding = seconds(partial(decode, responder), ready)
        weighing = seconds(responder.weigh, ready)
        row = {"questions_per_clip": per_clip, "tokens": len(ready[0][1]["input_ids"])}
        row |= {"decoding": round(decoding, 3), "likelihood": round(weighing, 3)}
        row["ratio"] = round(weighing / decoding, 2)
        print(json.dumps(row), flush=True)
        del responder


if __name__ == "__main__":
    main()
