"""One evaluation on several GPUs: a process for each, which answers its shard of the questions."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.fix import Fix

SECONDS_BETWEEN_LOOKS = 0.2


def run(command: Sequence[str], count: int, results: Sequence[Path]) -> list[dict]:
    """Run `command --shard i/count` once per GPU and wait; the last to finish merges the rows into
    the files `results`. One result per file. Raises Failure (exit 3) when one fails: the others
    end, and the next run continues with the answers there are."""
    started = time.monotonic()
    running = []
    for number, gpu in enumerate(_visible_gpus(count), 1):
        shard = [*command, "--shard", f"{number}/{count}"]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
        running.append(subprocess.Popen(shard, env=environment, stdout=subprocess.DEVNULL))
    codes = _wait(running)
    if any(codes):
        message = f"the {count} processes ended with exit codes {codes}"
        raise findings.outside("EVAL-SHARD-FAILED", "num_gpus", message)
    seconds = round(time.monotonic() - started, 1)
    found = []
    for path in results:
        rows = files.read_json(path)
        failed = sum(row["error"] is not None for row in rows)
        cut_short = sum(row["is_cut"] for row in rows)
        result = {"results": str(path), "rows": len(rows), "failed": failed}
        found.append(result | {"cut_short": cut_short, "seconds": seconds})
    return found


def _visible_gpus(count: int) -> list[str]:
    """Return the first `count` GPUs that this process may use. Raises Failure when there are
    fewer."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(count)]
    # A scheduler may have given this process some GPUs of the machine: names, not always numbers.
    gpus = [gpu for gpu in visible.split(",") if gpu]
    if len(gpus) < count:
        message = f"num_gpus={count}, and {len(gpus)} GPUs are visible ({visible})"
        fix = Fix(changes={"num_gpus": max(len(gpus), 1)})
        raise findings.bad_input("EVAL-GPUS", "num_gpus", message, fix)
    return gpus[:count]


def _wait(running: list[subprocess.Popen]) -> list[int]:
    """Return the exit codes of all; when one fails, or this process is interrupted, the others are
    ended."""
    try:
        codes = [process.poll() for process in running]
        while None in codes and not any(codes):
            time.sleep(SECONDS_BETWEEN_LOOKS)
            codes = [process.poll() for process in running]
    finally:
        for process in running:
            process.terminate()
        codes = [process.wait() for process in running]
    return codes
