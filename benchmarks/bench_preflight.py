#!/usr/bin/env python3
"""Seconds of check_tao_launch_preflight.py with a spec and 10,000 records on this machine (goal:
below 1.5), cold start included, and of diagnose_log.py per gigabyte."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_omni

ROOT = Path(__file__).resolve().parents[1]
RECORDS, RUNS, LOG_LINES = 10_000, 5, 500_000
LINE = (
    "[cosmos] 2026-01-01 10:00:00 - cosmos - INFO - Step: {}/900, Loss: 1.205, "
    "Grad norm: 2.1, Iteration time: 3.1s\n"
)


def make(root: Path) -> None:
    """A dataset of 10,000 records over 100 clips, a tiny model, and a spec of them."""
    clips.write_split(root, "train", 100, seed=1)
    annotations = root / "train" / "annotations.json"
    some = files.read_json(annotations)
    records = [some[n % len(some)] | {"id": f"r{n}"} for n in range(RECORDS)]
    files.write_json(annotations, records)
    tiny_omni.build(root / "omni", 7, ["What moves? left right"])
    conversion.convert(omni.open_source(root / "omni"), root / "model", 10**9, force=False, jobs=1)
    words = [
        "--engine",
        "transformers",
        "--model",
        "model",
        "--train-root",
        "train",
        "-o",
        "spec.toml",
    ]
    run("build_spec.py", root, "train", *words)


def run(script: str, root: Path, *words: str) -> tuple[float, str]:
    started = time.perf_counter()
    command = [sys.executable, str(ROOT / "scripts" / script), *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return time.perf_counter() - started, done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root)
        words = ["--platform", "local", "--spec", "spec.toml", "--json"]
        times, before = [], os.times()
        for _ in range(RUNS):
            taken, out = run("check_tao_launch_preflight.py", root, *words)
            times.append(taken)
        after = os.times()
        busy = sum(after[2:4]) - sum(before[2:4])
        checks = json.loads(out)["result"]["checks"]
        print(
            f"preflight of {RECORDS} records: {statistics.median(times):.2f} s (median of {RUNS}), "
            f"on the processor {busy / RUNS:.2f} s; {checks}"
        )
        with open(root / "log.txt", "w") as log:
            log.writelines(LINE.format(number) for number in range(LOG_LINES))
        taken, _ = run("diagnose_log.py", root, "log.txt")
        gigabytes = (root / "log.txt").stat().st_size / 1e9
        print(f"diagnose_log.py: {taken / gigabytes:.0f} s per GB")


if __name__ == "__main__":
    main()
