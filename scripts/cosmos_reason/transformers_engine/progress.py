"""Progress for people on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

SECONDS_BETWEEN_LINES = 5


class Progress:
    """Counts `total` units of work of which `done` were finished by an earlier run."""

    def __init__(self, name: str, total: int, done: int = 0):
        self.name, self.total, self.done, self.first = name, total, done, done
        self.started = self.printed = time.monotonic()
        self.bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, initial=done, desc=name)

    def eta(self) -> str:
        """Time left at the mean speed so far, as 1m05s."""
        left = (time.monotonic() - self.started) / max(self.done - self.first, 1) * (self.total - self.done)
        return f"{int(left // 60)}m{int(left % 60):02d}s"

    def advance(self, done: int, text: str = "") -> None:
        """`done` units are done by now; `text` tells more (loss, speed)."""
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(done - self.done)
        self.done = done
        if self.bar is not None:
            return
        if self.done == self.total or time.monotonic() - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = time.monotonic()
            text = f", {text}" if text else ""
            self.say(f"{self.name}: {self.done}/{self.total}{text}, ETA: {self.eta()}")

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class MetricsLog:
    """metrics.jsonl, one line per step, validation or batch of answers, and the same for people on stderr."""

    def __init__(self, path: Path, name: str, total: int, done: int):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a" if done else "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        self.progress = Progress(name, total, done)

    def write(self, line: dict) -> None:
        self.file.write(json.dumps({"time": round(time.time(), 3)} | line) + "\n")
        self.file.flush()
        if "val/avg_loss" in line:
            self.progress.say(f"validation at step {line['step']}: loss {line['val/avg_loss']:.5f}")
            return
        loss = f"loss {line['train/loss']:.5f}, " if "train/loss" in line else ""
        speed = f"{line['train/tokens_per_second']:.0f} tokens/s" if loss else ""
        self.progress.advance(line["step"], loss + speed)

    def close(self) -> None:
        self.progress.close()
        self.file.close()
