#!/usr/bin/env python3
"""Speed and memory of the Omni conversion against `cp` of the bytes it keeps, on the disk of --folder.

The layout is Cosmos3-Nano's own (names, shapes, bfloat16) with --layers of its 36 layers; the kept tensors hold random
bytes, the dropped ones are holes. Each round reads from the disk, not from the page cache, and both sides sync.

  tests/benchmarks/bench_conversion.py --layers 9 --rounds 3
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

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from omni_layouts import NANO, write_layout  # noqa: E402

from cosmos_reason import conversion  # noqa: E402


def evict(folder: Path) -> None:
    """Put the files on the disk and out of the page cache, and wait until the disk has nothing left to write."""
    subprocess.run(["sync"], check=True)
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_of_cp(kept: Path, target: Path) -> float:
    evict(kept.parent)
    start = time.monotonic()
    subprocess.run(["cp", "-r", kept, target], check=True)
    subprocess.run(["sync", "-f", target], check=True)
    return time.monotonic() - start


def seconds_of_conversion(source: Path, target: Path, jobs: list[str]) -> tuple[float, float]:
    """Wall seconds, and the peak resident memory in MB."""
    evict(source.parent)
    start = time.monotonic()
    script = ROOT / "scripts" / "prepare_cosmos3_vlm_checkpoint.py"
    command = [sys.executable, script, "--checkpoint-path", source, "--output-path", target, *jobs]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("the conversion failed")
    subprocess.run(["sync", "-f", target], check=True)
    return time.monotonic() - start, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to work (default: temp)"
    )
    parser.add_argument("--layers", type=int, default=9, help="text layers of 36 (default: 9, about 6 GB kept)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of cp and conversion (default: 3)")
    parser.add_argument("--jobs", help="passed on (default: the script's own)")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench_conversion_", dir=args.folder))
    jobs = ["--jobs", args.jobs] if args.jobs else []
    try:
        config = NANO | {"text_config": NANO["text_config"] | {"num_hidden_layers": args.layers}}
        write_layout(work / "omni", config, random_bytes=True)
        seconds_of_conversion(work / "omni", work / "kept", jobs)
        cp, ours, memory = [], [], []
        for number in range(args.rounds):
            for turn in ("cp", "conversion") if number % 2 else ("conversion", "cp"):
                if turn == "cp":
                    cp.append(seconds_of_cp(work / "kept", work / "target"))
                else:
                    taken, peak = seconds_of_conversion(work / "omni", work / "target", jobs)
                    ours.append(taken)
                    memory.append(peak)
                shutil.rmtree(work / "target")
                subprocess.run(["sync", "-f", work], check=True)
        kept = json.loads((work / "kept" / conversion.PROVENANCE).read_text())["total_size"]
        result = {
            "kept_gb": round(kept / 1e9, 2),
            "cp_seconds": [round(value, 2) for value in cp],
            "conversion_seconds": [round(value, 2) for value in ours],
            "ratio_of_medians": round(statistics.median(ours) / statistics.median(cp), 3),
            "peak_memory_mb": round(max(memory), 1),
        }
        print(json.dumps(result))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
