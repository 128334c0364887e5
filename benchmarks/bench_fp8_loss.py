"""LoRA on a base in fp8 beside the same base in bfloat16: losses of 200 steps, and where the
adapters' gradients point. Prints one JSON line per measurement.

    python benchmarks/bench_fp8_loss.py FOLDER [--model 2B] [--steps 600] [--rate 1e-4]

The base has Qwen3-VL-2B's shape (Cosmos-Reason2-2B). Its weights begin random and learn the demo's
clips and questions by full fine-tuning; gradients are told before and after. The adapters train
on other clips of the same kind. `--model tiny` is the demo's own model, for a machine without GPU.
"""

import argparse
import gc
import json
import statistics
from pathlib import Path

import torch
from bench_engine_gpu import make_model
from peft import set_peft_model_state_dict
from safetensors.torch import load_file

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_omni
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import collate
from cosmos_reason.engine.train import run as train
from cosmos_reason.engine.train import setup
from cosmos_reason.spec import document
from cosmos_reason.spec.keys import BASE_PRECISION

LORA = {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj", "v_proj"]}
LORA_STEPS = 200
BATCH = 24
# name: (param_dtype, base_precision)
PRECISIONS = {
    "float32": ("float32", "param_dtype"),
    "bfloat16": ("bfloat16", "param_dtype"),
    "fp8": ("bfloat16", "fp8"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="2B")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rate", type=float, default=1e-4)
    asked = parser.parse_args()
    root = asked.folder.resolve()
    make_world(root)
    start = root / "tiny"
    if asked.model != "tiny":
        start = root / asked.model
        make_model(root / "tiny", start, asked.model)
    tell_gradients(root, start, None, "random weights")
    learned = fit(root, start, "base", "first", {
        "train.max_num_steps": asked.steps, "train.optm_lr": asked.rate,
        "train.optm_betas": [0.9, 0.95], "train.optm_warmup_steps": 50,
    })  # fmt: skip
    tell_gradients(root, learned, None, f"after {asked.steps} steps, new adapters")
    told, adapter = {}, None
    for name in ("bfloat16", "fp8"):
        param, base = PRECISIONS[name]
        made = fit(root, learned, name, "second", {
            "policy.lora": LORA, "train.param_dtype": param, BASE_PRECISION: base,
            "train.max_num_steps": LORA_STEPS, "train.optm_lr": 2e-4,
            "train.optm_warmup_steps": 10,
        })  # fmt: skip
        adapter = adapter or made
        told[name] = losses(root / "out" / name)
    plain, found = (statistics.mean(told[name]) for name in ("bfloat16", "fp8"))
    last = [statistics.mean(told[name][-50:]) for name in ("bfloat16", "fp8")]
    apart = max(abs(a - b) / a for a, b in zip(told["bfloat16"], told["fp8"], strict=True))
    row = {"lora_steps": LORA_STEPS, "mean_loss": [plain, found], "ratio": found / plain}
    row |= {"last_50": last, "ratio_of_last_50": last[1] / last[0], "largest_apart": apart}
    print(json.dumps(row), flush=True)
    tell_gradients(root, learned, adapter, f"adapters of {LORA_STEPS} steps")


def make_world(root: Path) -> None:
    """Two sets of small clips with questions, and the demo's model, whose tokenizer knows them."""
    for number, name in enumerate(("first", "second")):
        clips.write_split(root / "data", name, 400, number)
    records = files.read_json(root / "data" / "first" / "annotations.json")
    words = [turn["value"] for record in records for turn in record["conversations"]]
    tiny_omni.build(root / "omni", 0, words)
    source = omni.open_source(root / "omni")
    conversion.convert(source, root / "tiny", 10**9, force=False, jobs=1)


def spec_of(root: Path, model: Path, data: str, changes: dict) -> dict:
    table = document.template("train")
    folder = root / "data" / data
    changes = {
        "custom.train_dataset": {
            "annotation_path": str(folder / "annotations.json"),
            "media_path": str(folder),
        },
        "custom.vision": {"nframes": 8, "resized_height": 64, "resized_width": 64},
        "policy.model_name_or_path": str(model),
        "policy.model_gradient_checkpointing": False,
        "train.output_dir": str(root / "out"),
        "train.epoch": 1000,
        "train.seed": 3,
        "train.train_batch_per_replica": BATCH,
        "train.train_policy.dataloader_num_workers": 0,
        "validation.enable": False,
    } | changes
    document.set_values(table, changes)
    return document.with_defaults("train", table)


def fit(root: Path, model: Path, name: str, data: str, changes: dict) -> Path:
    """Train, and return the exported weights."""
    steps = changes["train.max_num_steps"]
    changes |= {"train.timestamp": name, "train.ckpt.save_freq": steps}
    changes["train.ckpt.save_freq_in_epoch"] = 0
    train.run(spec_of(root, model, data, changes), None)
    found = losses(root / "out" / name)
    row = {"trained": name, "first": found[0], "last_20": statistics.mean(found[-20:])}
    print(json.dumps(row), flush=True)
    gc.collect()
    return root / "out" / name / "safetensors" / f"step_{steps}"


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def tell_gradients(root: Path, model: Path, adapter: Path | None, when: str) -> None:
    """Cosines of adapters' gradients of one batch of clips that the base has not seen."""
    found = {name: gradients(root, model, adapter, name) for name in PRECISIONS}
    for first, second in (("bfloat16", "float32"), ("fp8", "float32"), ("fp8", "bfloat16")):
        alike = {
            name: torch.cosine_similarity(found[first][name], found[second][name], 0).item()
            for name in found[first]
        }
        worst = min(alike, key=alike.get)
        row = {"when": when, "gradients": f"{first} against {second}"}
        row |= {"median": statistics.median(alike.values()), "worst": alike[worst], "of": worst}
        print(json.dumps(row), flush=True)


def gradients(root: Path, model: Path, adapter: Path | None, name: str) -> dict:
    param, base = PRECISIONS[name]
    hardware = models.choose_hardware("auto", param)
    spec = spec_of(root, model, "second", {
        "policy.lora": LORA, "train.param_dtype": param, BASE_PRECISION: base,
    })  # fmt: skip
    torch.manual_seed(5)  # of new adapters
    network = setup.build_network(spec, model, hardware)
    if adapter:
        set_peft_model_state_dict(network, load_file(adapter / "adapter_model.safetensors"))
    samples, _ = setup.datasets(spec, model, models.load_tokenizer(model))
    batch = collate([samples[number] for number in range(BATCH)], 0, "right")
    batch = {key: value.to(hardware.device) for key, value in batch.items()}
    with torch.autocast(hardware.device.type, torch.bfloat16, enabled=param == "bfloat16"):
        loss = network(**batch, use_cache=False).loss
    loss.backward()
    grads = {
        name: part.grad.double().cpu().flatten()
        for name, part in network.named_parameters()
        if part.requires_grad and part.grad.any()
    }
    del network, loss
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return grads


if __name__ == "__main__":
    main()
