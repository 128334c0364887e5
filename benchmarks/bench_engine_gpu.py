"""The embedded engine on one CUDA GPU, Qwen3-VL models with random weights: peak memory, tokens/s
and step time. Prints one JSON line per case.

    python benchmarks/bench_engine_gpu.py models [FOLDER]   2B and 8B, LoRA and full
    python benchmarks/bench_engine_gpu.py rows [FOLDER]     8B LoRA beside a plain loop, by length
    python benchmarks/bench_engine_gpu.py beside FOLDER LENGTH...    and beside cosmos-rl
    python benchmarks/bench_engine_gpu.py fp8 FOLDER [PART...]       and on a base in fp8

`beside` needs an environment like that of `make setup-cosmos-rl`, with its programs on PATH.

Geometries are those of Qwen3-VL-2B and -8B (Cosmos3-Nano's reasoner). `models` needs about 25 GB of
disk in FOLDER, and a large GPU. In `rows` every case has its median step; `loss` and `norm` are
those of its first step, which cases of one length share: the same records, weights and order.
Parts of `fp8`: `products` (each product alone), and HOW:LENGTH (8B, packed and compiled, with the
GPU's time by kind of kernel of one step), where HOW is `param_dtype`, `fp8` or `fp8-exact` (sums in
float32); one base serves all, which FP8 changes for good: `param_dtype` comes first. What it costs
in loss and gradients is measured by bench_fp8_loss.py.
"""

import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import av
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import collate
from cosmos_reason.engine.train import fp8, setup
from cosmos_reason.engine.train import run as train
from cosmos_reason.engine.train.trainer import Trainer
from cosmos_reason.spec import document

ROOT = Path(__file__).resolve().parents[1]
ROPE = {
    "rope_theta": 5000000,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}
HEADS = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936} | ROPE
GEOMETRIES = {
    "2B": (
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
        },
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "depth": 24,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    ),
    "4B": (
        {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
        },
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "depth": 24,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    ),
    "8B": (
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
        },
        {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "depth": 27,
            "deepstack_visual_indexes": [8, 16, 24],
        },
    ),
}
CASES = [  # geometry, LoRA, master dtype, frames, pixels per frame
    ("2B", False, "float32", 8, 360_000),
    ("2B", False, "bfloat16", 8, 360_000),
    ("2B", True, "float32", 8, 360_000),
    ("8B", True, "float32", 4, 260_000),
    ("8B", True, "float32", 8, 480_000),
    ("8B", True, "float32", 16, 480_000),
    ("8B", False, "bfloat16", 8, 480_000),
]


def write_data(folder: Path) -> None:
    (folder / "videos").mkdir(parents=True)
    records = []
    for number in range(32):
        with av.open(str(folder / f"videos/{number}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=10, options={"preset": "ultrafast"})
            stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
            for index in range(40):
                picture = np.full((720, 1280, 3), index * 6, np.uint8)
                picture[100:300, 20 * index : 20 * index + 200] = 8 * number
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        turns = [
            {"from": "human", "value": "<video>\nWhat is in the clip?"},
            {"from": "gpt", "value": "A grey box."},
        ]
        records.append({"id": str(number), "video": f"videos/{number}.mp4", "conversations": turns})
    files.write_json(folder / "annotations.json", records)


def set_up_geometry(tiny: Path, folder: Path, name: str) -> dict:
    """A model folder of the geometry, with the tiny model's tokenizer and no weights."""
    text, vision = GEOMETRIES[name]
    shutil.copytree(
        tiny, folder, ignore=shutil.ignore_patterns("*.safetensors*", "provenance.json")
    )
    config = files.read_json(folder / "config.json")
    config["text_config"] |= HEADS | text
    config["vision_config"] |= vision | {"num_heads": 16, "num_position_embeddings": 2304}
    config["vision_config"]["out_hidden_size"] = text["hidden_size"]
    config["tie_word_embeddings"] = name != "8B"
    files.write_json(folder / "config.json", config)
    return config


def make_model(tiny: Path, folder: Path, name: str) -> None:
    config = set_up_geometry(tiny, folder, name)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_pretrained(folder))
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="5GB")
    files.write_json(folder / "config.json", config)


def measure(root: Path, case: tuple) -> dict:
    name, lora, master, frames, pixels = case
    table = document.template("train")
    data = {
        "annotation_path": str(root / "data" / "annotations.json"),
        "media_path": str(root / "data"),
    }
    changes = {
        "custom.train_dataset": data,
        "custom.vision": {"nframes": frames, "max_pixels": pixels, "min_pixels": 4096},
        "policy.model_name_or_path": str(root / name),
        "train.output_dir": str(root / "out"),
        "train.master_dtype": master,
        "train.max_num_steps": 6,
        "train.epoch": 10,
        "train.train_batch_per_replica": 2,
        "train.ckpt.enable_checkpoint": False,
    }
    if lora:
        changes["policy.lora"] = {
            "r": 8,
            "lora_alpha": 16.0,
            "target_modules": ["q_proj", "v_proj"],
        }
    document.set_values(table, changes)
    torch.cuda.reset_peak_memory_stats()
    job = Path(tempfile.mkdtemp(dir=root))
    train.run(document.with_defaults("train", table), job)
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    gc.collect()
    torch.cuda.empty_cache()
    last = lines[-1]
    seconds, speed = last["train/step_seconds"], last["train/tokens_per_second"]
    return {
        "model": name,
        "tuning": "lora" if lora else f"full, {master} master weights",
        "tokens_per_record": round(speed * seconds / 2),
        "tokens_per_second": round(speed),
        "step_seconds": round(seconds, 3),
        "peak_gib": round(last["gpu/memory_gib"], 1),
    }


# -- 8B LoRA by length, beside a plain loop ------------------------------------------------------

LORA = {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj", "v_proj"]}
LENGTHS = {  # frames, height and width, records in a step, steps
    "850": (8, 448, 32, 7),
    "3650": (16, 672, 8, 7),
    "7200": (32, 672, 4, 8),
    "mixed": (16, None, 16, 8),
}
PACKED, ALONE = {}, {"tokens_per_pass": 1}
RECOMPUTED = {"recompute_layers": 100}
EAGER, COMPILED = {"compile": False}, {"compile": True}
ROWS = [
    ("850", None),
    ("850", ALONE | RECOMPUTED | EAGER),
    ("850", PACKED | EAGER),
    ("850", PACKED | COMPILED),
    ("3650", None),
    ("3650", PACKED | COMPILED),
    ("7200", None),
    ("7200", ALONE | RECOMPUTED | EAGER),
    ("7200", PACKED | EAGER),
    ("7200", PACKED | COMPILED),
    ("7200", ALONE | RECOMPUTED | COMPILED),
    ("7200", ALONE | {"recompute_layers": 18} | EAGER),
    ("mixed", ALONE | EAGER),
    ("mixed", PACKED | EAGER),
    ("mixed", PACKED | COMPILED),
]


def write_mixed(folder: Path) -> None:
    """Clips of four sizes, so that records differ in length."""
    (folder / "videos").mkdir(parents=True)
    records = []
    for number in range(16):
        width, height = ((1280, 720), (640, 384), (448, 448), (320, 192))[number % 4]
        with av.open(str(folder / f"videos/{number}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=10, options={"preset": "ultrafast"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for index in range(20):
                picture = np.full((height, width, 3), index * 6 + number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        turns = [
            {"from": "human", "value": "<video>\nWhat is in the clip?"},
            {"from": "gpt", "value": "A grey box." * (1 + number % 3)},
        ]
        records.append({"id": str(number), "video": f"videos/{number}.mp4", "conversations": turns})
    files.write_json(folder / "annotations.json", records)


def spec_of(root: Path, length: str, options: dict) -> dict:
    return document.with_defaults("train", table_of(root, length, options))


def table_of(root: Path, length: str, options: dict) -> dict:
    frames, side, batch, steps = LENGTHS[length]
    data = root / ("mixed" if length == "mixed" else "data")
    vision = {"nframes": frames, "max_pixels": 460_000, "min_pixels": 4096}
    if side:
        vision = {"nframes": frames, "resized_height": side, "resized_width": side}
    table = document.template("train")
    changes = {
        "custom.train_dataset": {
            "annotation_path": str(data / "annotations.json"),
            "media_path": str(data),
        },
        "custom.vision": vision,
        "custom.transformers_engine": {"frame_cache_gib": 8.0} | options,
        "policy.model_name_or_path": str(root / "8B"),
        "policy.lora": LORA,
        "train.output_dir": str(root / "out"),
        "train.max_num_steps": steps,
        "train.epoch": 1000,
        "train.train_batch_per_replica": batch,
        "train.train_policy.dataloader_num_workers": 8,
        "train.seed": 1,
        "train.ckpt.enable_checkpoint": False,
    }
    document.set_values(table, changes)
    return table


class Kept:
    """One base network for all cases: loaded once, without the adapters of the case before."""

    def __init__(self, folder: Path):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            self.base = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_pretrained(folder))
        torch.set_default_dtype(torch.float32)
        self.wrapped = None
        self.resets = True
        self.add_lora = models.add_lora
        models.load_model = lambda *_: self.fresh()
        models.add_lora = self.wrap

    def wrap(self, *args):
        self.wrapped = self.add_lora(*args)
        return self.wrapped

    def fresh(self):
        if self.wrapped is not None:
            self.base = self.wrapped.unload()
            self.wrapped = None
        for part in self.base.modules():
            part._compiled_call_impl = None
        self.base.gradient_checkpointing_disable()
        self.base.set_attn_implementation("sdpa")
        if self.resets:
            torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        return self.base


def plain_loop(kept: Kept, root: Path, length: str) -> dict:
    """Train as people write it: peft, one record at a time, all logits, recomputation."""
    spec = spec_of(root, length, {})
    folder = root / "8B"
    samples, _ = setup.datasets(spec, folder, models.load_tokenizer(folder))
    network = kept.fresh()
    network.gradient_checkpointing_enable({"use_reentrant": False})
    network = models.add_lora(network, spec["policy"]["lora"], "x").train()
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-6)
    device = network.device
    encoded = [collate([samples[number]], 0, "right") for number in range(4)]
    seconds = []
    for number in range(8):
        synchronize()
        started = time.perf_counter()
        batch = {key: value.to(device) for key, value in encoded[number % 4].items()}
        with torch.autocast(device.type, torch.bfloat16):
            loss = network(**batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        seconds.append(time.perf_counter() - started)
    tokens = batch["input_ids"].shape[1]
    return told(length, "plain loop", tokens, tokens / statistics.median(seconds[3:]))


def engine(root: Path, length: str, options: dict, timed: slice = slice(3, None)) -> dict:
    job = Path(tempfile.mkdtemp(dir=root))
    train.run(spec_of(root, length, options), job)
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "train/loss" in line]
    speed = statistics.median(line["train/tokens_per_second"] for line in lines[timed])
    tokens = lines[-1]["train/step_seconds"] * lines[-1]["train/tokens_per_second"]
    row = told(length, options, tokens / LENGTHS[length][2], speed)
    row |= {"loss": lines[0]["train/loss"], "norm": lines[0]["train/grad_norm"]}
    return row | {"last_loss": lines[-1]["train/loss"], "last_norm": lines[-1]["train/grad_norm"]}


def told(length: str, how, tokens: float, speed: float) -> dict:
    gpu = torch.cuda.is_available()
    row = {"records": length, "how": how, "tokens": round(tokens), "tokens_per_second": speed}
    return row | {"peak_gib": torch.cuda.max_memory_allocated() / 2**30 if gpu else 0}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def rows(root: Path) -> None:
    write_mixed(root / "mixed")
    set_up_geometry(root / "tiny", root / "8B", "8B")
    kept = Kept(root / "8B")
    for length, options in ROWS:
        try:
            row = (
                plain_loop(kept, root, length) if options is None else engine(root, length, options)
            )
        except torch.OutOfMemoryError as problem:
            row = {"records": length, "how": options, "problem": str(problem).partition("\n")[0]}
        print(json.dumps(row), flush=True)


# -- on a base in fp8 ----------------------------------------------------------------------------

PARTS = ["products"]
PARTS += [f"{how}:{length}" for how in ("param_dtype", "fp8") for length in ("850", "3650", "7200")]
SHAPES = [(4096, 4096), (4096, 1024), (4096, 12288), (12288, 4096)]  # in, out of 8B's layers
ROWS_OF_A_PASS = 7875
KINDS = (  # words in a kernel's name; the first that is found counts
    ("attention", ("flash", "fmha", "attention")),
    ("fp8 products", ("e4m3", "nvjet_qq", "nvjet_sm90_qq", "fp8")),
    ("16-bit products", ("nvjet", "gemm", "cutlass", "xmma")),
    ("fused by the compiler", ("triton",)),
    ("copies", ("memcpy", "memset", "copy")),
)


def fp8_base(root: Path) -> None:
    parts = sys.argv[3:] or PARTS
    if "products" in parts:
        products()
    set_up_geometry(root / "tiny", root / "8B", "8B")
    kept = Kept(root / "8B")
    before = None
    for part in parts:
        if part == "products":
            continue
        how, length = part.split(":")
        fp8.FAST = how != "fp8-exact"
        kept.resets = how != before  # what is compiled for one length holds for the next
        before = how
        started = time.perf_counter()
        options = COMPILED | {"base_precision": how.removesuffix("-exact")}
        kinds: dict = {}
        with profiled(LENGTHS[length][3], kinds):
            row = engine(root, length, options, slice(3, -1))
        row |= {"how": how, "seconds_in_all": time.perf_counter() - started}
        print(json.dumps(row | kinds), flush=True)


@contextmanager
def profiled(step: int, kinds: dict):
    """Add up the kernels of a step, by kind."""
    accumulate = Trainer.accumulate

    def measured(trainer, samples, tokens):
        if trainer.step != step - 1:
            return accumulate(trainer, samples, tokens)
        synchronize()
        started = time.perf_counter()
        activity = torch.profiler.ProfilerActivity
        where = activity.CUDA if torch.cuda.is_available() else activity.CPU
        with torch.profiler.profile(activities=[where]) as profile:
            loss = accumulate(trainer, samples, tokens)
            synchronize()
        kinds["profiled_ms"] = 1e3 * (time.perf_counter() - started)
        found = [(one.key, one.self_device_time_total / 1e3, one.count)
                 for one in profile.key_averages()]  # fmt: skip
        kinds["kinds_ms"] = by_kind(found)
        found.sort(key=lambda one: -one[1])
        kinds["kernels"] = [(name[:60], round(ms, 1), count) for name, ms, count in found[:14]]
        return loss

    Trainer.accumulate = measured
    try:
        yield
    finally:
        Trainer.accumulate = accumulate


def by_kind(found: list[tuple[str, float, int]]) -> dict:
    sums: dict = {}
    for name, ms, _ in found:
        kind = "other kernels"
        for one, words in KINDS:
            if any(word in name.lower() for word in words):
                kind = one
                break
        sums[kind] = round(sums.get(kind, 0.0) + ms, 1)
    return sums


def median_ms(call) -> float:
    for _ in range(3):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
    for mark in marks:
        call()
        mark.record()
    synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def products() -> None:
    by_rows = torch.compile(fp8.by_rows, dynamic=True)
    turned = torch.compile(lambda weight: weight.t().contiguous(), dynamic=True)
    for wide, high in SHAPES:
        row = product_times(wide, high, by_rows, turned)
        print(json.dumps({key: float(f"{value:.4g}") for key, value in row.items()}), flush=True)


def product_times(wide: int, high: int, by_rows, turned) -> dict:
    """Milliseconds of one product by its ways, and of what fp8 needs beside it."""
    x = torch.randn(ROWS_OF_A_PASS, wide, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(high, wide, device="cuda", dtype=torch.bfloat16)
    (a, own), (b, scale) = fp8.by_rows(x), fp8.by_rows(weight)
    as_int8 = b.view(torch.int8)
    one = torch.ones((), device="cuda")
    dequantized = (a.double() * own) @ (b.double() * scale).t()

    def product(scale_a, scale_b, fast):
        return torch._scaled_mm(
            a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    row = {"in": wide, "out": high, "bfloat16": median_ms(lambda: x @ weight.t())}
    for name, fast in (("exact", False), ("fast", True)):
        row[f"rows, {name}"] = median_ms(partial(product, own, scale.t(), fast))
        row[f"one scale, {name}"] = median_ms(partial(product, one, one, fast))
        error = product(own, scale.t(), fast) - dequantized
        row[f"error, {name}"] = (error.norm() / dequantized.norm()).item()
    row["quantize"] = median_ms(lambda: fp8.by_rows(x))
    row["quantize, compiled"] = median_ms(lambda: by_rows(x))
    row["transpose"] = median_ms(lambda: b.t().contiguous())
    row["transpose, compiled"] = median_ms(lambda: turned(b))
    row["transpose as int8"] = median_ms(lambda: as_int8.t().contiguous())
    row["transpose as int8, compiled"] = median_ms(lambda: turned(as_int8))
    return row


# -- and beside cosmos-rl ------------------------------------------------------------------------

BESIDE = {  # records of a mini-batch of cosmos-rl, the engine's cases
    "850": (8, [PACKED | COMPILED]),
    "3650": (2, [PACKED | COMPILED]),
    "7200": (1, [PACKED | COMPILED, ALONE | RECOMPUTED | COMPILED]),
}
ITERATION = re.compile(r"Step: (\d+)/\d+, Loss: ([\d.]+).*?Iteration time: ([\d.]+)s")


def cosmos_rl(root: Path, length: str, tokens: int) -> dict:
    """`peak_gib` is what the GPU lost of free memory meanwhile."""
    _, side, batch, steps = LENGTHS[length]
    mini_batch, _ = BESIDE[length]
    spec, logs = root / f"{length}.toml", root / f"logs-{length}"
    settings = {
        "policy.model_max_length": 16384,
        "policy.lora.r": 8,
        "policy.lora.target_modules": '["q_proj","v_proj"]',
        "custom.vision.nframes": LENGTHS[length][0],
        "custom.vision.resized_height": side,
        "custom.vision.resized_width": side,
        "train.max_num_steps": steps,
        "train.epoch": 1000,
        "train.train_batch_per_replica": batch,
        "train.train_policy.mini_batch": mini_batch,
        "train.train_policy.dataloader_num_workers": 8,
        "train.ckpt.enable_checkpoint": "false",
        "train.output_dir": root / f"out-{length}",
        "validation.enable": "false",
    }
    words = [sys.executable, "scripts/build_spec.py", "train", "--engine", "cosmos-rl"]
    words += ["--tuning", "lora", "--gpus-per-node", "1", "--model", str(root / "8B")]
    words += ["--train-root", str(root / "data"), "-o", str(spec)]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "COSMOS_REDIS_NO_TLS": "1"}
    subprocess.run(words, cwd=ROOT, env=environment, check=True)
    words = ["cosmos-rl", "--config", str(spec), "--log-dir", str(logs)]
    words.append("scripts/train_with_cosmos_rl.py")
    free = least = torch.cuda.mem_get_info()[0]
    environment["COSMOS_REASON_ONE_NODE"] = "1"
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as trainer:
        while trainer.poll() is None:
            least = min(least, torch.cuda.mem_get_info()[0])
            time.sleep(0.1)
    text = ""
    for path in sorted(logs.glob("*/policy_0.log")):
        text = path.read_text(errors="replace")
    found = ITERATION.findall(text)
    if not found:
        print(text[-4000:], flush=True)
        return {"records": length, "how": "cosmos-rl", "problem": "no step in its log"}
    seconds = statistics.median(float(one) for _, _, one in found[3:])
    row = told(length, f"cosmos-rl, mini-batch {mini_batch}", tokens, batch * tokens / seconds)
    return row | {"peak_gib": (free - least) / 2**30, "loss": float(found[0][1])}


def beside(root: Path) -> None:
    if not (root / "8B").is_dir():
        make_model(root / "tiny", root / "8B", "8B")
    kept = Kept(root / "8B")
    for length in sys.argv[3:]:
        plain = plain_loop(kept, root, length)
        print(json.dumps(plain), flush=True)
        for options in BESIDE[length][1]:
            print(json.dumps(engine(root, length, options)), flush=True)
        kept.fresh()
        print(json.dumps(cosmos_rl(root, length, plain["tokens"])), flush=True)


def every_model(root: Path) -> None:
    for name in GEOMETRIES:
        make_model(root / "tiny", root / name, name)
        torch.cuda.empty_cache()
        for case in CASES:
            if case[0] == name:
                print(json.dumps(measure(root, case)), flush=True)


def set_up(root: Path) -> None:
    """Clips and a tiny model, which lends its tokenizer to the large ones."""
    if not (root / "tiny").is_dir():
        write_data(root / "data")
        tiny_omni.build(root / "omni", 1, ["What is in the clip? A grey box."])
        source = omni.open_source(root / "omni")
        conversion.convert(source, root / "tiny", 10**9, force=False, jobs=1)


def main() -> None:
    root = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()).resolve()
    set_up(root)
    {"models": every_model, "rows": rows, "beside": beside, "fp8": fp8_base}[sys.argv[1]](root)


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("skipped: no CUDA GPU here; benchmarks/RESULTS.md holds the measured numbers")
