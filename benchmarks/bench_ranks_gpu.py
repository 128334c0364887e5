"""The embedded engine on two CUDA GPUs of one host beside one of them, as a job starts it: torchrun
over scripts/run_with_transformers.py. Qwen3-VL models with random weights. Prints one JSON line per
training.

    python benchmarks/bench_ranks_gpu.py lora FOLDER    8B LoRA: tokens/s of one and of two GPUs
    python benchmarks/bench_ranks_gpu.py same FOLDER    2B, all weights: losses of one, of shards
    python benchmarks/bench_ranks_gpu.py full FOLDER    8B, all weights: memory, a kill, its resume,
                                                        and the export in plain transformers

FOLDER holds the models (20 GB); OUT in the environment names another folder for what trainings
write (`full`: 70 GB).
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_engine_gpu as one_gpu
import torch
from safetensors import safe_open
from transformers import Qwen3VLForConditionalGeneration

from cosmos_reason.base import files
from cosmos_reason.engine import passes
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.jobs import engines
from cosmos_reason.spec import document

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "scripts" / "run_with_transformers.py"
WARM = 4  # steps before the ones that count: compiling comes after two
GRID = "policy.parallelism."
ALONE = {}
REPLICATED = {GRID + "dp_replicate_size": 2}
SHARDED = {GRID + "dp_shard_size": 2}
# All weights are trained, so many bytes each.
FLOAT32 = {"train.master_dtype": "float32", "custom.transformers_engine.compile": False}
BFLOAT16 = FLOAT32 | {"train.master_dtype": "bfloat16"}


class Training:
    """One training, started with as many processes as its spec has ranks."""

    def __init__(self, root: Path, name: str, length: str, changes: dict):
        table = one_gpu.table_of(root, length, {})
        self.name = name
        self.run = Path(os.environ.get("OUT", root)) / "runs" / name
        fixed = {"train.output_dir": str(self.run.parent), "train.timestamp": name}
        for key, value in (fixed | changes).items():
            document.set_value(table, key, value)
        if "train.master_dtype" in changes:
            del table["policy"]["lora"]
        self.spec = document.with_defaults("train", table)
        grid = self.spec["policy"]["parallelism"]
        self.ranks = grid["dp_shard_size"] * grid["dp_replicate_size"]
        path = root / f"{name}.toml"
        document.dump(table, path)
        words = [sys.executable]
        if self.ranks > 1:
            words += [*engines.TORCHRUN, *engines.ALONE, f"--nproc-per-node={self.ranks}"]
        self.started = time.monotonic()
        self.log = root / f"{name}.log"
        words += [str(ENGINE), "train", "--config", str(path)]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

    def lines(self) -> list[dict]:
        """What it has told of its steps."""
        path = self.run / "metrics.jsonl"
        text = path.read_text() if path.is_file() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in lines if "train/loss" in line]

    def wait_for(self, step: int) -> None:
        while self.process.poll() is None:
            lines = self.lines()
            if lines and lines[-1]["step"] >= step:
                return
            time.sleep(0.05)

    def kill(self) -> None:
        """All its processes, which are in sessions of their own."""
        subprocess.run(["pkill", "-KILL", "-f", f"{self.name}.toml"])

    def end(self) -> dict:
        code = self.process.wait()
        row = {"training": self.name, "gpus": self.ranks, "exit_code": code}
        row["seconds"] = round(time.monotonic() - self.started, 1)
        if code:
            row["log"] = self.log.read_text()[-3000:]
        lines = self.lines()
        if not lines:
            return row
        counted = lines[min(WARM, len(lines) - 1) :]
        for key in ("tokens_per_second", "step_seconds", "waiting_seconds"):
            row[key] = round(statistics.median(line[f"train/{key}"] for line in counted), 3)
        row["steps"] = [line["step"] for line in lines]
        row["losses"] = [round(line["train/loss"], 5) for line in lines]
        row["norms"] = [round(line["train/grad_norm"], 4) for line in lines]
        row["peak_gib"] = round(lines[-1].get("gpu/memory_gib", 0), 1)
        return row

    def foreseen_gib(self, row: dict) -> float:
        """The prediction for its passes: all records of a step in one, all layers recomputed."""
        batch = self.spec["train"]["train_batch_per_replica"]
        tokens = round(row["tokens_per_second"] * row["step_seconds"] / self.ranks)
        folder = Path(self.spec["policy"]["model_name_or_path"])
        plan = passes.plan_of(self.spec, folder)
        sizes = {"tokens": tokens, "vision_tokens": tokens, "loss_tokens": 16 * batch}
        plan = replace(plan, kept_layers=0, **sizes)
        return round(gpu_memory.total(plan) - gpu_memory.CONTEXT_GIB, 1)


def tell(row: dict) -> dict:
    print(json.dumps(row), flush=True)
    return row


def lora(root: Path) -> None:
    """The same work for each GPU: the batch of two is twice that of one."""
    for length in ("3650", "850"):
        speeds = []
        for gpus, layout in ((1, ALONE), (2, REPLICATED)):
            changes = layout | {"train.max_num_steps": 12}
            training = Training(root, f"lora-{length}-{gpus}", length, changes)
            speeds.append(tell(training.end()).get("tokens_per_second", 0))
        ratio = round(speeds[1] / (speeds[0] or 1), 3)
        tell({"records": length, "two_gpus_against_one": ratio})


def same(root: Path) -> None:
    """Eight records a step in all, float32 master weights."""
    for name, layout in (("one", ALONE), ("sharded", SHARDED), ("replicated", REPLICATED)):
        changes = FLOAT32 | layout
        changes |= {"policy.model_name_or_path": str(root / "2B"), "train.max_num_steps": 8}
        batch = 8 // (2 if layout else 1)
        changes |= {"train.train_batch_per_replica": batch, "train.optm_lr": 1e-5}
        tell(Training(root, f"same-{name}", "850", changes).end())


def full(root: Path) -> None:
    """Float32 masters for memory and speed, bfloat16 ones for what is written (48 GB a state)."""
    changes = SHARDED | {"custom.transformers_engine.recompute_layers": 100}
    changes |= {"train.train_batch_per_replica": 2, "train.max_num_steps": 6}
    changes |= {"train.optm_lr": 1e-5}
    unbroken = {}
    for name, masters in (("float32", FLOAT32), ("bfloat16", BFLOAT16)):
        training = Training(root, f"full-{name}", "3650", changes | masters)
        unbroken = training.end()
        if unbroken["exit_code"] == 0:
            unbroken["foreseen_gib"] = training.foreseen_gib(unbroken)
        tell(unbroken)
    saves = {"enable_checkpoint": True, "export_safetensors": False, "save_freq": 3}
    changes |= BFLOAT16 | {f"train.ckpt.{key}": value for key, value in saves.items()}
    killed = Training(root, "full-killed", "3650", changes)
    killed.wait_for(4)
    killed.kill()
    tell(killed.end())
    state = killed.run / "checkpoints" / "step_3" / "policy"
    went_on = Training(root, "full-resumed", "3650", changes | {"train.resume": str(state)})
    went_on.wait_for(4)
    shutil.rmtree(killed.run)  # a disk need not hold three states
    resumed = tell(went_on.end())
    losses = dict(zip(unbroken.get("steps", []), unbroken.get("losses", []), strict=True))
    for step, loss in zip(resumed.get("steps", []), resumed.get("losses", []), strict=True):
        tell({"step": step, "resumed_loss": loss, "unbroken_loss": losses.get(step)})
    if resumed["exit_code"] == 0:
        tell(loads(root, went_on.run / "safetensors" / "step_6"))


def loads(root: Path, folder: Path) -> dict:
    """Whether plain transformers loads the export, and what became of the weights."""
    started = time.monotonic()
    network, report = Qwen3VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True, device_map="cuda:0"
    )
    name = "model.language_model.layers.3.self_attn.q_proj.weight"
    trained = network.get_parameter(name).detach().cpu()
    index = files.read_json(root / "8B" / "model.safetensors.index.json")
    with safe_open(root / "8B" / index["weight_map"][name], "pt") as base:
        changed = (base.get_tensor(name) != trained).float().mean().item()
    tokens = torch.arange(1000, 1064, device="cuda:0")[None]
    with torch.no_grad():
        logits = network(input_ids=tokens).logits
    return {
        "loaded": str(folder.name),
        "seconds": round(time.monotonic() - started, 1),
        "missing": len(report["missing_keys"]),
        "unexpected": len(report["unexpected_keys"]),
        "changed_share_of_q_proj": round(changed, 4),
        "logits_are_finite": bool(logits.isfinite().all()),
    }


def main() -> None:
    root = Path(sys.argv[2]).resolve()
    one_gpu.set_up(root)
    name = "2B" if sys.argv[1] == "same" else "8B"
    if not (root / name).is_dir():
        one_gpu.make_model(root / "tiny", root / name, name)
        torch.cuda.empty_cache()
    {"lora": lora, "same": same, "full": full}[sys.argv[1]](root)


if __name__ == "__main__":
    if torch.cuda.device_count() > 1:
        main()
    else:
        print("skipped: no two CUDA GPUs here; benchmarks/RESULTS.md holds the measured numbers")
