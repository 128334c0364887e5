#!/usr/bin/env python3
"""Processor time of a start of build_spec.py as a multiple of that of `python -c pass` in the same
run (goal: at most 12), with the bytecode that a first run leaves, and without any."""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = 15
SCRIPT = str(ROOT / "scripts" / "build_spec.py")
TRAIN = ["train", "--tuning", "lora", "--train-root", "data", "--gpus-per-node", "8"]
LINES = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import yaml, jsonschema'": ["-c", "import yaml, jsonschema"],
    "build_spec.py --help": [SCRIPT, "--help"],
    "build_spec.py train ...": [SCRIPT, *TRAIN, "-o", "spec.toml"],
    "build_spec.py train ... --set epochs=0": [
        SCRIPT,
        *TRAIN,
        "-o",
        "spec.toml",
        "--set",
        "epochs=0",
    ],
    "build_spec.py --explain lr": [SCRIPT, "--explain", "lr"],
}


def used() -> float:
    """Return the seconds of processor time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def seconds(arguments: list[str], folder: str, environment: dict[str, str]) -> float:
    before = used()
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return used() - before


def measure(folder: str, environment: dict[str, str]) -> None:
    times = {name: [] for name in LINES}
    for run in range(RUNS + 1):  # in turns, so that a busy moment hits all of them
        for name, arguments in LINES.items():
            taken = seconds(arguments, folder, environment)
            if run:  # the first leaves the bytecode
                times[name].append(taken)
    base = statistics.median(times["python -c pass"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:40} {median * 1000:7.1f} ms  {median / base:5.1f} x")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        print("with bytecode")
        measure(folder, plain | {"PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode"))})
        print("without")
        nothing = {"PYTHONPYCACHEPREFIX": str(Path(folder, "none")), "PYTHONDONTWRITEBYTECODE": "1"}
        measure(folder, plain | nothing)


if __name__ == "__main__":
    main()
