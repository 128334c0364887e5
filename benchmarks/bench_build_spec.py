#!/usr/bin/env python3
"""Cold start of build_spec.py as a multiple of `python -c pass` on the
same machine (goal: at most 20)."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = 15
SCRIPT = str(ROOT / "scripts" / "build_spec.py")
LINES = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import jsonschema'": ["-c", "import jsonschema"],
    "build_spec.py --help": [SCRIPT, "--help"],
    "build_spec.py train ...": [
        SCRIPT,
        "train",
        "--tuning",
        "lora",
        "--train-root",
        "data",
        "--gpus-per-node",
        "8",
    ],
    "build_spec.py --explain lr": [SCRIPT, "--explain", "lr"],
}


def seconds(arguments: list[str], folder: str) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return time.perf_counter() - start


def main() -> None:
    times = {name: [] for name in LINES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(RUNS):  # in turns, so that a busy moment hits all of them
            for name, arguments in LINES.items():
                output = ["-o", "spec.toml"] if "train" in arguments else []
                times[name].append(seconds([*arguments, *output], folder))
    base = statistics.median(times["python -c pass"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:32} {median * 1000:7.1f} ms  {median / base:5.1f} x")


if __name__ == "__main__":
    main()
