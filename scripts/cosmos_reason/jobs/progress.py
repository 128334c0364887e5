"""What a job has told of itself so far: the numbers in metrics.jsonl, and the end of log.txt."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from cosmos_reason.base import metrics_log
from cosmos_reason.checkpoints import trainer_log
from cosmos_reason.jobs.record import LOG, METRICS

# Of the processes of an evaluation, the first writes METRICS.
METRICS_OF_OTHERS = "metrics-*-*.jsonl"
# Hundreds of metrics lines; the end of a long file is found without reading all of it.
TAIL_BYTES = 256 * 1024
# tqdm's, as it is and as base/progress.py writes it: "comparing layers:   8% 3/36 [00:05<..."
BAR = re.compile(r"(?P<name>[^\r]+?):\s+\d+%(?:\|[^|]*\|)?\s+(?P<count>\S+/\S+) \[")


def read_metrics(
    folder: Path, position: tuple[str, int] = ("", 0)
) -> tuple[list[dict], tuple[str, int]]:
    """Return metrics from a position (file, byte) on, and where the next call continues: the whole
    lines of metrics.jsonl, or until there is one what the log says. A line that is still being
    written, or was cut short by a kill, is left out."""
    name = METRICS if (folder / METRICS).is_file() else LOG
    start = position[1] if position[0] == name else 0
    parse = metrics_log.numbers if name == METRICS else trainer_log.metrics
    rows, end = metrics_log.read_on(folder / name, start, parse)
    return rows, (name, end)


def newest(folder: Path, whole: bool = False) -> dict:
    """Return the newest value of every metric, {} before the first line: step, total_steps,
    train/loss, val/avg_loss ... Looks at the end of the file, or at all of it: a log may go on for
    long after the last step."""
    path = folder / METRICS
    if not path.is_file():
        path = folder / LOG
    if not path.is_file():
        return {}
    start = 0 if whole else max(0, path.stat().st_size - TAIL_BYTES)
    lines, _ = read_metrics(folder, (path.name, start))
    # Not every line has every metric: a validation writes lines of its own.
    latest: dict = {}
    for line in lines:
        latest |= line
    return latest


def unit(folder: Path) -> str:
    """Return what `step` and `total_steps` of a job count."""
    action = folder.name.partition("-")[0]
    return "question" if action in ("evaluate", "inference") else "step"


def position(folder: Path, metrics: dict) -> str:
    """Return how far a job is: its steps, or the questions that have an answer or an error."""
    done, total = metrics.get("step"), metrics.get("total_steps")
    if unit(folder) == "step":
        return f"step {done}/{total}"
    parts = len(list(folder.glob(METRICS_OF_OTHERS))) + 1
    of_part = f" of the first of {parts} processes" if parts > 1 else ""
    return f"{done}/{total} questions{of_part}"


def stage(folder: Path) -> str:
    """Return what the newest progress bar in the log of a job says ("comparing layers 3/36"): all
    that a job without metrics, as a quantization, tells of how far it is. "" without a bar."""
    found = ""
    for line in log_tail(folder, 0):
        bar = BAR.match(line)
        if bar:
            found = f"{bar['name'].strip()} {bar['count']}"
    return found


def plain(metrics: dict) -> dict:
    """Return the metrics as JSON can hold them: null for nan and infinite."""
    return {key: value if math.isfinite(value) else None for key, value in metrics.items()}


def log_tail(folder: Path, lines: int) -> list[str]:
    """Return the last `lines` lines of log.txt, all at hand for 0; a progress bar's overwritten
    states are left out."""
    try:
        with open(folder / LOG, "rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    last = text.rstrip("\n").split("\n")[-lines:]
    return [line.rstrip("\r").rpartition("\r")[2] for line in last]
