"""A training that ends before its last step: asked to by SIGTERM (a canceled job, a machine that is
taken away), SIGUSR1 (a scheduler's warning) or SIGINT (Ctrl-C), for which the step at work ends
first, or with numbers that are none."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from cosmos_reason.base.findings import Failure, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.engine.train.ranks import ALONE, Ranks
from cosmos_reason.spec.keys import RATE

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAME_KEY = 1.0  # seconds in which torchrun passes on a Ctrl-C that the terminal has sent, too


class Stopped(Exception):
    """Raised where a training can end: a signal has come."""


class Stop:
    """While it is open, the signals are noted. `asked_by` names the first that came to this
    process, after a check to any. A second Ctrl-C is a KeyboardInterrupt."""

    def __init__(self, ranks: Ranks = ALONE):
        self.ranks = ranks
        self.asked_by = ""
        self.interrupted = 0.0  # when Ctrl-C came first
        self._before = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _) -> None:
        if number == signal.SIGINT:
            if self.interrupted and time.monotonic() - self.interrupted > SAME_KEY:
                raise KeyboardInterrupt
            if not self.interrupted and self.ranks.is_first:
                # A stream may be in use where a signal comes, and may be gone.
                with suppress(OSError):
                    os.write(2, b"\nthe step at work ends and is saved; Ctrl-C again ends now\n")
            self.interrupted = self.interrupted or time.monotonic()
        self.asked_by = self.asked_by or signal.Signals(number).name

    def check(self) -> None:
        """Raise Stopped on all ranks when a signal came to one; all have to call it."""
        own = signal.Signals[self.asked_by] if self.asked_by else 0
        number = self.ranks.largest(int(own))
        if number:
            self.asked_by = signal.Signals(number).name
            raise Stopped


def leave_signals_to_the_trainer() -> None:
    """Ignore signals in the processes of a loader: who ends a job often signals all of its
    processes, and the step at work still needs its records. They end with their loader, and with
    its process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def not_finite(message: str, step: int, rate: float, output_dir: Path) -> Failure:
    """Return what to say of a training whose numbers got lost at a learning rate. Nothing of that
    is ever saved, so that the newest checkpoint is a good one."""
    if step == 1:  # measured before the first change of the weights
        message += (
            ", with weights that no step had changed: the model itself gives it, or a record, and "
            "no learning rate mends it"
        )
        fix = Fix(command="scripts/ask_model.py MODEL CLIP QUESTION  # does the model answer?")
        return outside("ENGINE-LOSS-NOT-FINITE", f"step {step}", message, fix)
    fix = Fix(changes={RATE: float(f"{rate / 10:g}")})
    good = run_outputs.newest_resume(output_dir)
    if good is None:
        message += "; no checkpoint was saved before"
    else:
        message += f"; the last good checkpoint is {good}"
        fix |= Fix(changes={"train.resume": str(good)})
    return outside("ENGINE-LOSS-NOT-FINITE", f"step {step}", message, fix)
