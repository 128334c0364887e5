"""The other processes of a training on this machine. One that is gone must end the rest, also where
they wait for it inside a kernel of NCCL, which runs on and lets no signal handler of Python in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cosmos_reason.base.findings import EXIT_OUTSIDE, say

PATIENCE = 45  # seconds in which a process may end by itself, and say why
PAUSE = 1


class Watch:
    """While it is open, this process ends when one of the others has been gone for `patience`
    seconds."""

    def __init__(self, others: Sequence[int], patience: float = PATIENCE):
        self.others, self.patience = others, patience
        self.is_over = threading.Event()

    def __enter__(self) -> Watch:
        if self.others:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.is_over.set()

    def _look(self) -> None:
        gone_since = None
        while not self.is_over.wait(PAUSE):
            if all(is_alive(other) for other in self.others):
                continue
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > self.patience:
                say("error: ENGINE-RANK-LOST: another process of the training has ended")
                os._exit(EXIT_OUTSIDE)


def end_with(parent: int) -> None:
    """Let this process end when the one that forked it does, also where it would wait for somebody
    to take what it sends: forks of one process hold each other's pipes open."""
    threading.Thread(target=_outlast, args=(parent,), daemon=True).start()


def _outlast(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PAUSE)
    os._exit(EXIT_OUTSIDE)


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody asked about does not."""
    try:
        os.kill(process, 0)
        facts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except ProcessLookupError:
        return False
    except OSError:  # a system without /proc, where one that nobody asked about counts as alive
        return True
    return facts.rpartition(")")[2].split()[0] not in ("Z", "X")
