"""A training that ends before its last step: asked to by SIGTERM (a canceled job, a machine that is
taken away) or SIGUSR1 (a scheduler's warning), for which the step at work ends first, or with
numbers that are none."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from cosmos_reason.base.findings import Failure, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.engine.train.ranks import ALONE, Ranks
from cosmos_reason.spec.keys import RATE

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopped(Exception):
    """Raised where a training can end: a signal has come."""


class Stop:
    """While it is open, the signals are noted. `asked_by` names the first that came to this
    process, after a check to any."""

    def __init__(self, ranks: Ranks = ALONE):
        self.ranks = ranks
        self.asked_by = ""
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
