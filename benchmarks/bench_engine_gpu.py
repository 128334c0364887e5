"""The embedded engine on one CUDA GPU: peak memory, tokens/s and step time of Qwen3-VL models with
random weights.

    python benchmarks/bench_engine_gpu.py [FOLDER]

It needs about 25 GB of disk in FOLDER, and a large GPU.
Geometries are those of Qwen3-VL-2B and -8B (Cosmos3-Nano's reasoner). Prints one JSON line per
case.
"""

import gc
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import av
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import tiny_omni
from cosmos_reason.engine import train
from cosmos_reason.spec import document

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
    for number in range(16):
        with av.open(str(folder / f"videos/{number}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=10, options={"preset": "ultrafast"})
            stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
            for index in range(40):
                picture = np.full((720, 1280, 3), index * 6, np.uint8)
                picture[100:300, 20 * index : 20 * index + 200] = 16 * number
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        turns = [
            {"from": "human", "value": "<video>\nWhat is in the clip?"},
            {"from": "gpt", "value": "A grey box."},
        ]
        records.append({"id": str(number), "video": f"videos/{number}.mp4", "conversations": turns})
    files.write_json(folder / "annotations.json", records)


def make_model(tiny: Path, folder: Path, name: str) -> None:
    """A model of the geometry with random weights and the tiny model's tokenizer."""
    text, vision = GEOMETRIES[name]
    shutil.copytree(
        tiny, folder, ignore=shutil.ignore_patterns("*.safetensors*", "provenance.json")
    )
    config = files.read_json(folder / "config.json")
    config["text_config"] |= HEADS | text
    config["vision_config"] |= vision | {"num_heads": 16, "num_position_embeddings": 2304}
    config["vision_config"]["out_hidden_size"] = text["hidden_size"]
    config["tie_word_embeddings"] = name == "2B"
    files.write_json(folder / "config.json", config)
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
    for key, value in changes.items():
        document.set_value(table, key, value)
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


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    write_data(root / "data")
    tiny_omni.build(root / "omni", 1, ["What is in the clip? A grey box."])
    conversion.convert(omni.open_source(root / "omni"), root / "tiny", 10**9, force=False, jobs=1)
    for name in GEOMETRIES:
        make_model(root / "tiny", root / name, name)
        torch.cuda.empty_cache()
        for case in CASES:
            if case[0] == name:
                print(json.dumps(measure(root, case)), flush=True)


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("skipped: no CUDA GPU here; benchmarks/RESULTS.md holds the measured numbers")
