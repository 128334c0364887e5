"""The embedded engine on two CUDA GPUs of one host beside one of them, as a job starts it: torchrun
over scripts/run_with_transformers.py. Qwen3-VL models with random weights. Prints one JSON line per
training.

    python benchmarks/bench_ranks_gpu.py lora FOLDER    8B LoRA: tokens/s of one and of two GPUs
    python benchmarks/bench_ranks_gpu.py same FOLDER    2B, all weights: losses of one, of shards
    python benchmarks/bench_ranks_gpu.py full FOLDER [4B]   8B, all weights: memory, a kill, its
                                                        resume, the export in plain transformers
    python benchmarks/bench_ranks_gpu.py features FOLDER    one GPU, 8B LoRA: features kept or not

FOLDER holds the models (20 GB); OUT in the environment names another folder for what trainings
write (`full`: 70 GB). Where there is one GPU alone, `same` and `full` have two processes share it,
as if each were on a host of its own: for numbers and memory, not for speed.
"""

import json
import os
import runpy
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
from cosmos_reason.engine.train import passes
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.jobs import engines
from cosmos_reason.spec import document

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "scripts" / "run_with_transformers.py"
RANK = "--as-rank"  # before the words of the engine: one of two processes of one GPU
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
        if self.ranks > torch.cuda.device_count():
            words += [__file__, RANK]
        else:
            words += [str(ENGINE)]
        self.started = time.monotonic()
        self.log = root / f"{name}.log"
        words += ["train", "--config", str(path)]
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
        spec = f"{self.name}.toml"
        subprocess.run(["pkill", "-KILL", "-f", spec])

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
        plan = replace(plan, kept_layers=0, accumulates=False, **sizes)
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


def full(root: Path, model: str) -> None:
    """Float32 masters for memory and speed, bfloat16 ones for what is written (8B: 48 GB a
    state)."""
    unbroken = {}
    for name, masters in (("float32", FLOAT32), ("bfloat16", BFLOAT16)):
        training = Training(root, f"full-{name}", "3650", all_weights(root / model) | masters)
        unbroken = training.end()
        if unbroken["exit_code"] == 0:
            unbroken["foreseen_gib"] = training.foreseen_gib(unbroken)
        tell(unbroken)
    interrupted(root, model, unbroken)


def all_weights(model: Path) -> dict:
    changes = SHARDED | {"custom.transformers_engine.recompute_layers": 100}
    changes |= {"policy.model_name_or_path": str(model), "train.optm_lr": 1e-5}
    return changes | {"train.train_batch_per_replica": 2, "train.max_num_steps": 6}


def interrupted(root: Path, model: str, unbroken: dict) -> None:
    """A training that is killed after step 4 and goes on from the state of step 3."""
    saves = {"enable_checkpoint": True, "export_safetensors": False, "save_freq": 3}
    saves = {f"train.ckpt.{key}": value for key, value in saves.items()}
    changes = all_weights(root / model) | BFLOAT16 | saves
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
        tell(loads(root / model, went_on.run / "safetensors" / "step_6"))


def loads(base: Path, folder: Path) -> dict:
    """Whether plain transformers loads the export, and what became of the weights."""
    started = time.monotonic()
    network, report = Qwen3VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True, device_map="cuda:0"
    )
    name = "model.language_model.layers.3.self_attn.q_proj.weight"
    trained = network.get_parameter(name).detach().cpu()
    index = files.read_json(base / "model.safetensors.index.json")
    with safe_open(base / index["weight_map"][name], "pt") as stored:
        changed = (stored.get_tensor(name) != trained).float().mean().item()
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


def features(root: Path) -> None:
    """The same clips in every step; without features, frames are decoded each time."""
    for gib in (0, 8):
        options = {"feature_cache_gib": gib, "frame_cache_gib": 0, "compile": False}
        changes = {f"custom.transformers_engine.{key}": value for key, value in options.items()}
        changes |= {"train.max_num_steps": 12}
        tell(Training(root, f"features-{gib}", "850", changes).end())


def as_rank() -> None:
    """Run the engine as one of two processes that share a GPU. NCCL wants a GPU for each process of
    a host, and connects processes of two hosts by sockets."""
    os.environ |= {"NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo"}
    torch.cuda.init()  # which looks at every device
    torch.cuda.device_count = lambda: 2
    take = torch.cuda.set_device
    torch.cuda.set_device = lambda _: take(0)
    sys.argv = [str(ENGINE), *sys.argv[2:]]
    runpy.run_path(str(ENGINE), run_name="__main__")


def main() -> None:
    case, root = sys.argv[1], Path(sys.argv[2]).resolve()
    one_gpu.set_up(root)
    model = "2B" if case == "same" else [*sys.argv[3:], "8B"][0]
    if not (root / model).is_dir():
        one_gpu.make_model(root / "tiny", root / model, model)
        torch.cuda.empty_cache()
    if case == "full":
        full(root, model)
    else:
        {"lora": lora, "same": same, "features": features}[case](root)


if __name__ == "__main__":
    count = torch.cuda.device_count()
    if sys.argv[1] == RANK:
        as_rank()
    elif count > 1 or (count and sys.argv[1] != "lora"):
        main()
    else:
        print("skipped: not enough CUDA GPUs here; benchmarks/RESULTS.md has the measured numbers")
