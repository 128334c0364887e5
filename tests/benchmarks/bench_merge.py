#!/usr/bin/env python3
"""Speed and memory of merging a LoRA adapter (rank 16, all linear layers of the text model) against `cp` of its base.

tests/benchmarks/bench_merge.py --layers 9 --rounds 3
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_conversion import ROOT, evict, seconds_of_conversion, seconds_of_cp
from omni_layouts import NANO, write_layout

from cosmos_reason import adapters, qwen3_vl, safetensors_files

RANK = 16


def write_adapter(run: Path, config: dict, base: Path) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    folder = run / "safetensors" / "step_1"
    folder.mkdir(parents=True)
    tensors = {}
    for name, shape in qwen3_vl.expected_tensors(config).items():
        if "language_model.layers" in name and len(shape) == 2:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            for part, size in (("A", (RANK, shape[1])), ("B", (shape[0], RANK))):
                values = random.normal(0, 0.01, size).astype(np.float32)
                tensors[f"{module}.lora_{part}.weight"] = ("F32", size, values.tobytes())
    safetensors_files.write_tensors(folder / adapters.WEIGHTS, tensors)
    facts = {"r": RANK, "lora_alpha": 16, "base_model_name_or_path": str(base), "target_modules": "all-linear"}
    (folder / adapters.CONFIG).write_text(json.dumps(facts))


def seconds_of_merge(output_dir: Path, base: Path, target: Path) -> tuple[float, float]:
    """Wall seconds, and the peak resident memory in MB."""
    evict(base.parent)
    start = time.monotonic()
    script = ROOT / "scripts" / "select_checkpoint.py"
    process = subprocess.Popen([sys.executable, script, output_dir, "--by", "step_1", "--merge", target])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("the merge failed")
    subprocess.run(["sync", "-f", target], check=True)
    return time.monotonic() - start, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to work (default: temp)"
    )
    parser.add_argument("--layers", type=int, default=9, help="text layers of 36 (default: 9, about 7 GB)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of cp and merge (default: 3)")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench_merge_", dir=args.folder))
    try:
        config = NANO | {"text_config": NANO["text_config"] | {"num_hidden_layers": args.layers}}
        write_layout(work / "omni", config, random_bytes=True)
        seconds_of_conversion(work / "omni", work / "base", [])
        shutil.rmtree(work / "omni")
        write_adapter(work / "out" / "20260101000000", config, work / "base")
        cp, ours, memory = [], [], []
        for number in range(args.rounds):
            for turn in ("cp", "merge") if number % 2 else ("merge", "cp"):
                if turn == "cp":
                    cp.append(seconds_of_cp(work / "base", work / "target"))
                else:
                    taken, peak = seconds_of_merge(work / "out", work / "base", work / "target")
                    ours.append(taken)
                    memory.append(peak)
                shutil.rmtree(work / "target")
                subprocess.run(["sync", "-f", work], check=True)
        result = {
            "cp_seconds": [round(value, 2) for value in cp],
            "merge_seconds": [round(value, 2) for value in ours],
            "ratio_of_medians": round(statistics.median(ours) / statistics.median(cp), 3),
            "peak_memory_mb": round(max(memory), 1),
        }
        print(json.dumps(result))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
