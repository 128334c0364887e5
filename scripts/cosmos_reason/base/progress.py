"""Progress of long work on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable

from cosmos_reason.base import findings

SECONDS_BETWEEN_LINES = 5
UP = "\x1b[A"  # with which tqdm leaves the line of a bar below another one


class _Lines(io.TextIOBase):
    """Where nothing can be written over: what a bar shows becomes a line of its own."""

    def write(self, text: str) -> int:
        told = text.replace(UP, "").strip()
        if told:
            findings.say(told)
        return len(text)


def bar(total: int, name: str, done: int = 0, unit: str = "step", is_quick: bool = False, **look):
    """Return a tqdm bar of `total` steps, of which an earlier run finished `done`. Of work that
    `is_quick` nothing is told for some seconds, but on a terminal."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread of its own: loader workers are forked
    if not sys.stderr.isatty():
        look = {"file": _Lines(), "mininterval": SECONDS_BETWEEN_LINES, "ncols": 0} | look
        look["delay"] = SECONDS_BETWEEN_LINES if is_quick else 0
    return tqdm(total=total, initial=done, desc=name, unit=unit, miniters=1, **look)


def of_bytes(total: int, name: str) -> Callable[[int], None]:
    """Return what to call with each number of bytes that was copied or sent, from any thread. Work
    of a few seconds is told on a terminal only, and work that is not begun not at all."""
    lock = threading.Lock()
    shown = None

    def advance(count: int) -> None:
        nonlocal shown
        with lock:
            if shown is None:
                shown = bar(total, name, unit="B", unit_scale=True, is_quick=True)
            shown.update(count)
            if shown.n >= total:
                shown.close()

    return advance
