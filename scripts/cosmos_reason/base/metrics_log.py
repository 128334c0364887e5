"""metrics.jsonl, written and read: one line per step, validation or batch of answers."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from cosmos_reason.base import findings, progress

LARGEST_INTEGER = 1 << 63


class MetricsLog:
    """Writes the lines, and the same for people on stderr. `done` of `total` steps were finished
    by an earlier run, whose lines stay. `kept` is what the state of a training says of its log."""

    kept: ClassVar[dict] = {}

    def __init__(self, path: Path, name: str, total: int, done: int, unit: str = "step"):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a" if done else "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        self.bar = progress.bar(total, name, done, unit)

    def write(self, line: dict) -> None:
        self.file.write(json.dumps({"time": round(time.time(), 3)} | line) + "\n")
        self.file.flush()
        if "val/avg_loss" in line:
            text = f"validation at step {line['step']}: loss {line['val/avg_loss']:.5f}"
            if "val/accuracy" in line:
                text += f", {line['val/accuracy']:.1%} of {line['val/answers']} answers right"
            self.bar.write(findings.printable(text), file=sys.stderr)
            return
        if "train/loss" in line:
            speed = f"{line['train/tokens_per_second']:.0f} tokens/s"
            self.bar.set_postfix_str(f"loss {line['train/loss']:.5f}, {speed}", refresh=False)
        self.bar.update(line["step"] - self.bar.n)

    def close(self) -> None:
        self.bar.close()
        self.file.close()


def numbers(line: str) -> dict[str, float]:
    """Return the numbers of one line, {} when it has none: a killed run leaves half a line."""
    try:
        written = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(written, dict):
        return {}
    return {name: value for name, value in written.items() if is_number(name, value)}


def is_number(name: str, value: object) -> bool:
    """Return whether a value is a number that its name may have: a loss may be nan or infinite, a
    step or a time may not."""
    if type(value) is int:
        return abs(value) < LARGEST_INTEGER
    if type(value) is not float or name in ("step", "total_steps"):
        return False
    return name != "time" or math.isfinite(value)


def read(path: Path, parse: Callable[[str], dict | None] = numbers) -> list[dict]:
    """Return the rows of all lines. `parse` tells the numbers of one line, of a log in another form
    too."""
    with open(path, "rb") as lines:
        rows = [parse(line.decode("utf-8", errors="replace")) for line in lines]
    return [row for row in rows if row]


def course(
    paths: Iterable[Path], parse: Callable[[str], dict | None] = numbers
) -> list[tuple[Path, dict]]:
    """Return the rows of one training, with the file of each, from the logs of its attempts, the
    oldest first. An attempt that resumes at an earlier step supersedes the rows after that step, in
    its own log (of a job that was requeued) or in an earlier one."""
    rows: list[tuple[Path, dict]] = []
    for path in paths:
        for row in read(path, parse) if path.is_file() else ():
            if "step" not in row:
                continue
            if "train/loss" in row:  # a validation may be told after the next step
                while rows and rows[-1][1]["step"] > row["step"]:
                    rows.pop()
            rows.append((path, row))
    return rows


def read_on(
    path: Path, start: int, parse: Callable[[str], dict | None] = numbers
) -> tuple[list[dict], int]:
    """Return the rows of the whole lines from byte `start` on, and where the next call continues. A
    line that is still being written is left out; so is a file that is not there yet."""
    rows = []
    end = start
    with suppress(FileNotFoundError), open(path, "rb") as lines:
        lines.seek(start)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            row = parse(line.decode("utf-8", errors="replace"))
            if row:
                rows.append(row)
    return rows, end
