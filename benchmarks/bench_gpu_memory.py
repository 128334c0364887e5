#!/usr/bin/env python3
"""Peak memory of an 8B Qwen3-VL with random weights on one large GPU: forward only, and LoRA
training (r=8, q and v, gradient checkpointing, logits of every position), at three lengths; and the
prediction of gpu_memory.py beside them.

    python benchmarks/bench_gpu_memory.py

Needs torch, transformers, peft, and about 40 GiB of GPU memory.

Prints one JSON document: {device, torch, rows:
[{case, tokens, vision_tokens, peak_gib, predicted_gib, ratio}]}.
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


def network():
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151936,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0,
                                "mrope_interleaved": True,
                                "mrope_section": [24, 20, 20]}}  # fmt: skip
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "depth": 27, "num_heads": 16,
              "out_hidden_size": 4096, "num_position_embeddings": 2304,
              "deepstack_visual_indexes": [8, 16, 24]}  # fmt: skip
    tokens = {"image_token_id": IMAGE_PAD, "video_token_id": VIDEO_PAD,
              "vision_start_token_id": VISION_START, "vision_end_token_id": VISION_END}  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False, **tokens
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
    if torch.cuda.is_available():
        main()
    else:
        print("skipped: no CUDA GPU here; benchmarks/RESULTS.md holds the measured numbers")
