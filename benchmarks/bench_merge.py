#!/usr/bin/env python3
"""Speed and memory of merging a LoRA adapter (rank 16, all linear layers of the text model) against
`cp` of its base.

benchmarks/bench_merge.py --layers 9 --rounds 3
"""

import json
import shutil
import sys
from pathlib import Path

from bench_conversion import ROOT, against_cp, arguments, layout
from omni_layouts import write_tensors

from cosmos_reason.base.families import qwen3_vl
from cosmos_reason.checkpoints import adapters

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
    write_tensors(folder / adapters.WEIGHTS, tensors)
    facts = {
        "r": RANK,
        "lora_alpha": 16,
        "base_model_name_or_path": str(base),
        "target_modules": "all-linear",
    }
    (folder / adapters.CONFIG).write_text(json.dumps(facts))


def main() -> None:
    args = arguments(__doc__)
    with layout(args) as (work, config):
        shutil.rmtree(work / "omni")
        write_adapter(work / "out" / "20260101000000", config, work / "kept")
        script = ROOT / "scripts" / "select_checkpoint.py"
        command = [
            sys.executable,
            script,
            work / "out",
            "--by",
            "step_1",
            "--merge",
            work / "target",
        ]
        print(json.dumps(against_cp(command, work / "kept", work / "target", args.rounds)))


if __name__ == "__main__":
    main()
