#!/usr/bin/env python3
"""Speed and memory of the Omni conversion against `cp` of the bytes it keeps, on the disk of
--folder.

The layout is Cosmos3-Nano's own (names, shapes, bfloat16) with --layers of its 36 layers; the kept
tensors hold random bytes, the dropped ones are holes. Each round reads from the disk, not from the
page cache, and both sides sync.

  benchmarks/bench_conversion.py --layers 9 --rounds 3
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/fixtures")]

from omni_layouts import NANO, write_layout  # noqa: E402


def evict(folder: Path) -> None:
    """Put the files on the disk and out of the page cache, and wait until the disk has nothing left
    to write."""
    subprocess.run(["sync"], check=True)
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measured(command: list, reads: Path, target: Path) -> tuple[float, float]:
    """Wall seconds from a cold cache until `target` is on the disk, and the peak resident memory in
    MB."""
    evict(reads)
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[1]} failed")
    subprocess.run(["sync", "-f", target], check=True)
    return time.monotonic() - start, usage.ru_maxrss * 1024 / 1e6


def against_cp(ours: list, kept: Path, target: Path, rounds: int) -> dict:
    """Alternate `ours` (which writes `target`) with `cp` of `kept`, and compare the medians."""
    commands = {"cp": ["cp", "-r", kept, target], "ours": ours}
    seconds = {"cp": [], "ours": []}
    memory = {"cp": [], "ours": []}
    for number in range(rounds):
        for turn in ("cp", "ours") if number % 2 else ("ours", "cp"):
            taken, peak = measured(commands[turn], target.parent, target)
            seconds[turn].append(round(taken, 2))
            memory[turn].append(peak)
            shutil.rmtree(target)
            subprocess.run(["sync", "-f", target.parent], check=True)
    ratio = statistics.median(seconds["ours"]) / statistics.median(seconds["cp"])
    kept_bytes = sum(path.stat().st_size for path in kept.iterdir())
    return {
        "kept_gb": round(kept_bytes / 1e9, 2),
        "cp_seconds": seconds["cp"],
        "our_seconds": seconds["ours"],
        "ratio_of_medians": round(ratio, 3),
        "peak_memory_mb": round(max(memory["ours"]), 1),
    }


def conversion(source: Path, target: Path) -> list:
    script = ROOT / "scripts" / "prepare_cosmos3_vlm_checkpoint.py"
    return [sys.executable, script, "--checkpoint-path", source, "--output-path", target]


def arguments(purpose: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", default=tempfile.gettempdir(), help="where to work (default: temp)"
    )
    parser.add_argument(
        "--layers", type=int, default=9, help="text layers of 36 (default: 9, about 6 GB kept)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of cp and ours (default: 3)")
    return parser.parse_args()


@contextmanager
def layout(args: argparse.Namespace) -> Iterator[tuple[Path, dict]]:
    """A folder that is deleted in the end, with `omni` and its conversion `kept` in it; and the
    layout's config."""
    with tempfile.TemporaryDirectory(prefix="bench_", dir=args.folder) as name:
        work = Path(name)
        text_config = NANO["text_config"] | {"num_hidden_layers": args.layers}
        config = NANO | {"text_config": text_config}
        write_layout(work / "omni", config, random_bytes=True)
        subprocess.run(
            conversion(work / "omni", work / "kept"), check=True, stdout=subprocess.DEVNULL
        )
        yield work, config


def main() -> None:
    args = arguments(__doc__)
    with layout(args) as (work, _):
        command = conversion(work / "omni", work / "target")
        print(json.dumps(against_cp(command, work / "kept", work / "target", args.rounds)))


if __name__ == "__main__":
    main()
