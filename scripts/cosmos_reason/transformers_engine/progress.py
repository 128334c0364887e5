"""metrics.jsonl, and the same for people on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

SECONDS_BETWEEN_LINES = 5


class MetricsLog:
    """One line per step, validation or batch of answers; `done` of `total` steps were finished by an earlier run."""

    def __init__(self, path: Path, name: str, total: int, done: int):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a" if done else "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        self.name, self.total, self.first, self.bar = name, total, done, None
        self.started = self.printed = time.monotonic()
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, initial=done, desc=name)

    def write(self, line: dict) -> None:
        self.file.write(json.dumps({"time": round(time.time(), 3)} | line) + "\n")
        self.file.flush()
        if "val/avg_loss" in line:
            self._say(f"validation at step {line['step']}: loss {line['val/avg_loss']:.5f}")
        else:
            loss = "train/loss" in line
            text = f"loss {line['train/loss']:.5f}, {line['train/tokens_per_second']:.0f} tokens/s" if loss else ""
            self._advance(line["step"], text)

    def _advance(self, done: int, text: str) -> None:
        now = time.monotonic()
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(done - self.bar.n)
        elif done == self.total or now - self.printed >= SECONDS_BETWEEN_LINES:
            left = (now - self.started) / max(done - self.first, 1) * (self.total - done)
            self.printed, text = now, f", {text}" if text else ""
            self._say(f"{self.name}: {done}/{self.total}{text}, ETA: {int(left // 60)}m{int(left % 60):02d}s")

    def _say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.file.close()
