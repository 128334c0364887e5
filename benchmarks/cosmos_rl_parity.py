#!/usr/bin/env python3
"""Twenty steps of full fine-tuning from the same weights, records and order, by cosmos-rl and by
the embedded engine, and every loss side by side. Needs a GPU and the environment of
`make setup-cosmos-rl`:

    python benchmarks/cosmos_rl_parity.py FOLDER
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_omni

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = [
    "policy.model_max_length=4096",
    "custom.vision.nframes=8",
    "custom.vision.resized_height=64",
    "custom.vision.resized_width=64",
    "train.max_num_steps=20",
    "train.optm_lr=1e-3",
    "train.optm_warmup_steps=5",
    "train.train_batch_per_replica=24",
    "train.train_policy.mini_batch=24",
    "train.train_policy.dataloader_shuffle=false",
    "train.ckpt.save_freq=20",
    "train.ckpt.save_mode=sync",
    "train.ckpt.export_safetensors=true",
    "validation.enable=false",
]
STEP = re.compile(r"Step: (\d+)/\d+, Loss: ([\d.]+)")


def build_world(root: Path) -> None:
    """Real small MP4s with records, and the demo's tiny model."""
    clips.write_split(root / "data", "train", 400, 0)
    records = files.read_json(root / "data" / "train" / "annotations.json")
    texts = [turn["value"] for record in records for turn in record["conversations"]]
    tiny_omni.build(root / "omni", 0, texts)
    source = omni.open_source(root / "omni")
    conversion.convert(source, root / "model", 10**9, force=False, jobs=1)


def build_spec(root: Path, name: str) -> Path:
    spec = root / f"{name}.toml"
    words = ["train", "--engine", "cosmos-rl", "--tuning", "full", "--gpus-per-node", "1"]
    words += ["--model", str(root / "model"), "--train-root", str(root / "data" / "train")]
    for setting in [*SETTINGS, f"train.output_dir={root / name}"]:
        words += ["--set", setting]
    run([sys.executable, "scripts/build_spec.py", *words, "-o", str(spec)])
    return spec


def losses_of_cosmos_rl(root: Path) -> dict[int, float]:
    spec = build_spec(root, "cosmos-rl")
    script = "scripts/train_with_cosmos_rl.py"
    logs = root / "logs"
    run(
        ["cosmos-rl", "--config", str(spec), "--log-dir", str(logs), script],
        COSMOS_REDIS_NO_TLS="1",
        COSMOS_REASON_ONE_NODE="1",
    )
    text = (logs / "logs_latest" / "policy_0.log").read_text(errors="replace")
    return {int(step): float(loss) for step, loss in STEP.findall(text)}


def losses_of_the_embedded_engine(root: Path) -> dict[int, float]:
    spec = build_spec(root, "embedded")
    job = root / "embedded-job"
    job.mkdir()
    words = ["train", "--config", str(spec), "--job-dir", str(job)]
    run([sys.executable, "scripts/run_with_transformers.py", *words])
    rows = map(json.loads, (job / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


def run(words: list[str], **environment: str) -> None:
    full = os.environ | {"HF_HUB_OFFLINE": "1"} | environment
    subprocess.run(words, cwd=ROOT, env=full, check=True)


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    build_world(root)
    theirs = losses_of_cosmos_rl(root)
    ours = losses_of_the_embedded_engine(root)
    for step, loss in ours.items():
        apart = abs(theirs[step] - loss) / loss
        print(f"{step:4d} cosmos-rl {theirs[step]:.5f} embedded {loss:.5f} {apart:.2%}")


if __name__ == "__main__":
    main()
