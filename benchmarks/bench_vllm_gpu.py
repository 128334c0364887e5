"""The embedded engine beside a vLLM server on one CUDA GPU: 256 yes-or-no questions, each with a
clip of its own, to an 8B model with random weights. Prints one JSON line per case.

    python benchmarks/bench_vllm_gpu.py [FOLDER]

Needs vllm on PATH and PYTHONPATH (grpo_on_one_gpu.py installs it without a network). A clip is
1280x720, 4 s, H.264; 8 frames of 448x448 are shown; both sides begin with the clips on disk and
answer with 8 or 128 tokens, which random weights do not end by themselves. The server keeps neither
prefixes nor processed clips, is warm (`WARM_UP` other questions came before), and is asked through
`--endpoint` as an evaluation asks. The engine has loaded its model; its `seconds` end with the last
answer read. `ask = "likelihood"` beside 8 tokens is what weighing yes and no saves. The two never
run at the same time.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import bench_evaluation_gpu as bench
import torch
from bench_engine_gpu import write_data

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.evaluation import questions
from cosmos_reason.evaluation.endpoint import Endpoint

QUESTION, ANSWER = "Is a grey box in the clip? Answer yes or no.", "yes"
PORT, NAME = 18080, "cosmos"
READY = 420  # seconds
WARM_UP = 16
# (questions at a time, new tokens, how asked, questions)
ENGINE = [
    (1, 8, "generate", 24),
    (1, 8, "likelihood", 24),
    (64, 8, "generate", 256),
    (64, 8, "likelihood", 256),
    (128, 8, "generate", 256),
    (64, 128, "generate", 256),
    (128, 128, "generate", 256),
]
SERVER = [(64, 8), (128, 8), (64, 128), (128, 128)]


def write_questions(data: Path) -> None:
    """Write as many records as questions, each with a clip that has a name of its own."""
    records = files.read_json(data / "annotations.json")
    asked = []
    for number in range(bench.QUESTIONS):
        source = data / records[number % bench.CLIPS]["video"]
        name = f"videos/{number}-{number % bench.CLIPS}.mp4"
        shutil.copyfile(source, data / name)
        turns = [
            {"from": "human", "value": f"<video>\n{QUESTION}"},
            {"from": "gpt", "value": ANSWER},
        ]
        asked.append({"id": str(number), "video": name, "conversations": turns})
    files.write_json(data / "asked.json", asked)


def spec_of(root: Path, size: int, tokens: int, ask: str) -> dict:
    return bench.spec_of(
        root / bench.GEOMETRY,
        {
            "evaluation.batch_size": size,
            "generation.max_tokens": tokens,
            "evaluation.ask": ask,
            "custom.endpoint.concurrency": size,
            "custom.endpoint.frames": "video",
            "custom.endpoint.timeout": 600,
        },
    )


def ask_engine(root: Path, size: int, tokens: int, ask: str, limit: int) -> dict:
    spec = spec_of(root, size, tokens, ask)
    responder = bench.Timed(spec)
    asked = questions.read(spec["dataset"], -1)[:limit]
    started = time.perf_counter()
    given = [answer for answers in responder.answers(asked) for answer in answers]
    seconds = time.perf_counter() - started - responder.loading
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    row = {"who": "engine", "ask": ask, "loading": round(responder.loading, 2)}
    return row | {"peak_gib": round(peak, 1)} | told(given, size, tokens, seconds)


def ask_server(root: Path, size: int, tokens: int, limit: int | None = None) -> dict:
    spec = spec_of(root, size, tokens, "generate")
    asked = questions.read(spec["dataset"], -1)[:limit]
    endpoint = Endpoint(spec, f"http://127.0.0.1:{PORT}/v1", NAME)
    endpoint.settle()
    started = time.perf_counter()
    given = [answer for answers in endpoint.answers(asked) for answer in answers]
    seconds = time.perf_counter() - started
    return {"who": "vllm", "ask": "generate"} | told(given, size, tokens, seconds)


def told(given: list, size: int, tokens: int, seconds: float) -> dict:
    errors = [answer.error for answer in given if answer.error]
    said = sorted(answer.tokens or 0 for answer in given)
    return {
        "at_a_time": size,
        "max_tokens": tokens,
        "median_tokens": said[len(said) // 2],
        "answers": len(given),
        "errors": errors[:1],
        "seconds": round(seconds, 2),
        "per_answer": round(seconds / len(given), 4),
    }


class Server:
    """A vLLM server as context; its log is server.log beside the data."""

    def __init__(self, root: Path):
        self.root = root

    def __enter__(self):
        command = [shutil.which("vllm"), "serve", str(self.root / "8B")]
        command += ["--served-model-name", NAME, "--port", str(PORT), "--max-model-len", "4096"]
        command += ["--limit-mm-per-prompt", '{"video": 1, "image": 0}']
        command += ["--no-enable-prefix-caching", "--mm-processor-cache-gb", "0"]
        command += ["--max-num-seqs", "128", "--gpu-memory-utilization", "0.85"]
        # vLLM 0.20.0 ends at the first clip where a graph pads its tokens (vllm#41485, "Requested
        # more deepstack tokens than available in buffer"): graphs for decoding alone.
        command += ["--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY"}']
        command[:1] = [sys.executable, command[0]]
        self.log = open(self.root / "server.log", "w", encoding="utf-8")
        environment = os.environ | {"VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1"}
        started = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, env=environment
        )
        while time.monotonic() - started < READY and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=5):
                    print(json.dumps({"who": "vllm", "up": time.monotonic() - started}), flush=True)
                    return self
            except OSError:
                time.sleep(1)
        self.__exit__()
        raise SystemExit(f"vllm did not start: {self.root / 'server.log'}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    if not (root / "8B").is_dir():
        write_data(root / "data")
        write_questions(root / "data")
        bench.make_model(root, [QUESTION, "Yes. No. A grey box."])
    gc.collect()
    torch.cuda.empty_cache()
    for case in ENGINE:
        print(json.dumps(ask_engine(root, *case)), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    with Server(root):
        for size, tokens in [(WARM_UP, 8), *SERVER]:
            try:
                row = ask_server(root, size, tokens, WARM_UP if size == WARM_UP else None)
            except Failure as failure:
                row = {"who": "vllm", "problem": failure.findings[0].message}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("skipped: no CUDA GPU here; benchmarks/RESULTS.md holds the measured numbers")
