#!/usr/bin/env python3
"""Peak memory of Qwen3-VL models with random weights on one large GPU, and the prediction of
gpu_memory.py beside it.

    python benchmarks/bench_gpu_memory.py           8B: forward only, and LoRA (r=8, q and v,
                                                    gradient checkpointing, logits of every
                                                    position), at three lengths; about 40 GiB
    python benchmarks/bench_gpu_memory.py passes    passes as the embedded engine computes them,
                                                    LoRA and full, by layers kept; about 130 GiB

Prints one JSON document: {device, torch, rows:
[{case, tokens, vision_tokens, peak_gib, predicted_gib, ratio}]}, or a line for each pass: `first`
is the peak of a step's first pass, `later` that of one that finds gradients.
"""

import gc
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import torch

GRIDS = (
    (4, 16, 16),
    (8, 42, 42),
    (16, 42, 42),
)  # (time, height, width) in patches: 256, 3,528 and 7,056 vision tokens
TEXT = 120  # tokens around the frames
IMAGE_PAD, VIDEO_PAD, VISION_START, VISION_END = 151655, 151656, 151652, 151653


def network(name: str = "8B"):
    from bench_engine_gpu import GEOMETRIES
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text, vision = GEOMETRIES[name]
    rope = {"rope_type": "default", "rope_theta": 5000000.0,
            "mrope_interleaved": True, "mrope_section": [24, 20, 20]}  # fmt: skip
    heads = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    text = text | heads | {"rope_parameters": rope}
    vision = vision | {"num_heads": 16, "num_position_embeddings": 2304}
    vision["out_hidden_size"] = text["hidden_size"]
    tokens = {"image_token_id": IMAGE_PAD, "video_token_id": VIDEO_PAD,
              "vision_start_token_id": VISION_START, "vision_end_token_id": VISION_END}  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=name != "8B", **tokens
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    model.config._attn_implementation = "sdpa"
    return model


def batch(grid: tuple[int, int, int]) -> dict:
    """One video of the grid with a frame mark before every pair of frames,
    as the processor writes it."""
    time, height, width = grid
    per_pair = height * width // 4
    one = [VISION_START, *[VIDEO_PAD] * per_pair, VISION_END]
    ids = [*range(1000, 1000 + TEXT // 2),
           *(token for _ in range(time) for token in [2000, 2001, *one]),
           *range(3000, 3000 + TEXT // 2)]  # fmt: skip
    patches = torch.randn(
        time * height * width, 3 * 2 * 16 * 16, device="cuda", dtype=torch.bfloat16
    )
    ids = torch.tensor([ids], device="cuda")
    kinds = torch.where(ids == VIDEO_PAD, 2, 0)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values_videos": patches,
        "video_grid_thw": torch.tensor([grid], device="cuda"),
        "mm_token_type_ids": kinds,
    }


def peak(run) -> float:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def forward_only(model, inputs: dict) -> None:
    with torch.no_grad():
        model(**inputs, logits_to_keep=1)


def train_step(model, inputs: dict) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**inputs, labels=inputs["input_ids"], use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def row(case: str, grid: tuple[int, int, int], inputs: dict, measured: float) -> dict:
    from cosmos_reason.estimate import gpu_memory

    tokens, vision = inputs["input_ids"].shape[1], grid[0] * grid[1] * grid[2] // 4
    plan = gpu_memory.Plan(
        gpu_memory.geometry("nvidia/Cosmos-Reason2-8B"),
        tokens,
        vision,
        tokens,
        sharded_engine=False,
    )
    change = (
        {"train": False}
        if case == "forward"
        else {"lora_rank": 8, "lora_targets": ("q_proj", "v_proj")}
    )
    plan = replace(plan, **change)
    predicted = gpu_memory.total(plan) - gpu_memory.CONTEXT_GIB
    return {
        "case": case,
        "tokens": tokens,
        "vision_tokens": vision,
        "peak_gib": round(measured, 2),
        "predicted_gib": round(predicted, 2),
        "ratio": round(predicted / measured, 3),
    }


# -- passes of the embedded engine -----------------------------------------------------------------

QV = ["q_proj", "v_proj"]
TRAININGS = [  # model, bytes of a master weight, LoRA rank and targets
    ("2B", 4, 0, None),
    ("2B", 2, 0, None),
    ("8B", 2, 8, QV),
    ("8B", 2, 16, "all-linear"),
    ("8B", 2, 64, "all-linear"),
    ("8B", 2, 16, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    ("8B", 2, 0, None),
]
CLIPS = {"875": ((4, 28, 28),) * 4, "3680": ((8, 42, 42),), "7360": ((8, 42, 42),) * 2}
ANSWER = 16  # tokens with loss of each record


def records(grids) -> dict:
    """A packed batch of clips, a record each."""
    from cosmos_reason.engine import packing

    samples = []
    for grid in grids:
        table = batch(grid)
        ids = table["input_ids"][0]
        labels = torch.full_like(ids, -100)
        labels[-ANSWER:] = ids[-ANSWER:]
        positions = torch.arange(len(ids), device="cuda")[:, None].expand(-1, 3)
        media = {key: table[key] for key in ("pixel_values_videos", "video_grid_thw")}
        samples.append(media | {"input_ids": ids, "labels": labels, "position_ids": positions})
    packed = packing.pack(samples)
    packed["record_starts"] = packed["record_starts"].cuda()
    return packed


class Trained:
    """A network as the embedded engine trains it, after one step."""

    def __init__(self, case: tuple):
        from types import MethodType

        from cosmos_reason.engine import model as models
        from cosmos_reason.engine import packing

        name, master, rank, targets = self.case = case
        self.base = network(name)
        if master == 4:
            self.base.float()
        self.base.answer_logits = MethodType(models.answer_logits, self.base)
        self.base.gradient_checkpointing_enable({"use_reentrant": False})
        self.network = self.base
        if rank:
            lora = {"target_modules": targets, "r": rank, "lora_alpha": rank, "lora_dropout": 0.0}
            lora |= {"modules_to_save": None, "use_rslora": False, "init_lora_weights": True}
            self.network = models.add_lora(self.base, lora, name)
            self.base.disable_input_require_grads()
        packing.attend_within_records(self.base)
        self.network.train()
        self.layers = self.base.model.language_model.layers
        trained = [part for part in self.network.parameters() if part.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, fused=True, lr=1e-6)
        self.run(records(CLIPS["875"]), 0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, packed: dict, kept: int) -> tuple[float, float]:
        """GiB at most until the loss is there, and until the gradients are."""
        for number, layer in enumerate(self.layers):
            layer.gradient_checkpointing = number < len(self.layers) - kept
        packed = dict(packed)
        labels = packed.pop("labels")[:, 1:]
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16):
            logits = self.base.answer_logits(packed, labels != -100)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels[labels != -100])
        forward = torch.cuda.max_memory_allocated() / 2**30
        loss.backward()
        return forward, torch.cuda.max_memory_allocated() / 2**30

    def rows(self):
        for length, grids in CLIPS.items():
            packed = records(grids)
            for part in (0, 2, 1):
                kept = len(self.layers) * part // 2
                row = {"case": self.case, "length": length, "kept": kept}
                row["tokens"] = packed["input_ids"].shape[1]
                row["vision_tokens"] = sum(t * h * w // 4 for t, h, w in grids)
                gc.collect()
                torch.cuda.empty_cache()
                row["before"] = torch.cuda.memory_allocated() / 2**30
                try:
                    row["forward"], row["first"] = self.run(packed, kept)
                    row["with_gradients"] = torch.cuda.memory_allocated() / 2**30
                    row["later"] = self.run(packed, kept)[1]
                except torch.OutOfMemoryError:
                    row["full"] = True
                self.optimizer.zero_grad(set_to_none=True)
                yield {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}


def passes() -> None:
    for case in TRAININGS:
        trained = Trained(case)
        for row in trained.rows():
            print(json.dumps(row), flush=True)
        del trained
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    from peft import LoraConfig, get_peft_model

    model, rows = network(), []
    batches = [batch(grid) for grid in GRIDS]
    for grid, inputs in zip(GRIDS, batches, strict=True):
        rows.append(
            row("forward", grid, inputs, peak(lambda inputs=inputs: forward_only(model, inputs)))
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    targets = r".*language_model.*\.(q_proj|v_proj)"
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    model.train()
    for grid, inputs in zip(GRIDS, batches, strict=True):
        rows.append(
            row("lora", grid, inputs, peak(lambda inputs=inputs: train_step(model, inputs)))
        )
    print(
        json.dumps(
            {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows},
            indent=1,
        )
    )


if __name__ == "__main__":
    if torch.cuda.is_available() and sys.argv[1:] == ["passes"]:
        passes()
    elif torch.cuda.is_available():
        main()
    else:
        print("skipped: no CUDA GPU here; benchmarks/RESULTS.md holds the measured numbers")
