"""The processes that read records or questions ahead, and how they end: asked to, with the process
that they read for, or before it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection

from torch.utils.data import DataLoader, Dataset

from cosmos_reason.base.findings import Finding, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.engine import neighbours
from cosmos_reason.engine.train import stopping

PATIENCE = 3600  # seconds for a batch; longer than the slowest disk needs, shorter than for ever
GRACE = 5  # seconds in which they may end by themselves
DYING = 1  # seconds from a connection that breaks to the end of the process behind it
TIMED_OUT = "DataLoader timed out"  # how torch begins to say so


class Dead(Exception):
    """One of the processes has ended."""


class Stuck(Exception):
    """None of them has sent anything for PATIENCE seconds."""


def failure(problem: Dead | Stuck, where: str, awaited: str, fix: Fix | str) -> Finding:
    """Return the error for processes that read no more; `awaited` is what was to come next."""
    if isinstance(problem, Dead):
        message = f"a process that reads ahead is gone, often for want of host memory ({problem})"
        return error("ENGINE-LOADER-DIED", where, message, fix)
    message = (
        f"got nothing for {PATIENCE // 60} minutes from the processes that read ahead; waited for "
        f"{awaited}"
    )
    return error("ENGINE-LOADER-STUCK", where, message, fix)


class Loader:
    """An iterator over the items of a dataset, in batches as DataLoader is told (`batching`), read
    by so many processes (0: by this one), of which each is `prefetch` batches ahead. They are
    forked here, before Python has other threads, so that a fork has no lock that one of them held
    (W&B has threads already; no reader calls it)."""

    def __init__(
        self,
        dataset: Dataset,
        workers: int,
        prefetch: int,
        ignores_signals: bool = False,
        **batching,
    ):
        is_main = threading.current_thread() is threading.main_thread()
        others = multiprocessing.active_children()
        self.batches = iter(
            DataLoader(
                dataset,
                num_workers=workers,
                prefetch_factor=prefetch if workers else None,
                worker_init_fn=partial(_begin, os.getpid(), ignores_signals),
                multiprocessing_context="fork" if workers else None,
                # In other threads no signal tells of a death, and torch looks for it without this.
                timeout=PATIENCE if workers and is_main else 0,
                **batching,
            )
        )
        self.processes = [one for one in multiprocessing.active_children() if one not in others]
        self.is_told_of_deaths = bool(self.processes) and is_main
        if self.is_told_of_deaths:
            # torch raises wherever the main thread is when a reader dies: also between the weights
            # and the number of a step. Here it is told where records are waited for.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def __iter__(self) -> Loader:
        return self

    def __next__(self):
        """Return the next batch. Raises Dead or Stuck, and what reading raised."""
        if not self.processes:
            return next(self.batches)
        try:
            with self._deaths_raised():
                return next(self.batches)
        except (RuntimeError, OSError, EOFError) as problem:
            # The connection to a process that dies may break before it is gone.
            self._raise_for_dead(DYING)
            if str(problem).startswith(TIMED_OUT):
                raise Stuck from None
            raise

    @contextmanager
    def _deaths_raised(self) -> Iterator[None]:
        """Raise Dead while it is open where a process dies, also where this one waits for the rest
        of a message: the pipe stays open in the other processes."""
        if not self.is_told_of_deaths:
            yield
            return
        signal.signal(signal.SIGCHLD, lambda *_: self._raise_for_dead())
        try:
            self._raise_for_dead()
            yield
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _raise_for_dead(self, seconds: float = 0) -> None:
        """Raise Dead when one of the processes is gone, or is in so many seconds, and was not asked
        to."""
        sentinels = {process.sentinel: process for process in self.processes}
        for sentinel in connection.wait(list(sentinels), seconds):
            process = sentinels[sentinel]
            process.join(DYING)
            if process.exitcode:
                raise Dead(f"process {process.pid}, exit code {process.exitcode}")

    def close(self) -> None:
        """End the processes, those that hang after GRACE seconds. A training's ignore the signal by
        which multiprocessing would end them with this one, which would wait for them without an
        end."""
        batches, self.batches = self.batches, None
        if not self.processes:
            return
        # torch may wait without end here: for a lock that a dead process held, and for its own
        # thread where that waits for the rest of a dead one's message.
        batches._worker_result_queue.cancel_join_thread()
        ending = threading.Thread(target=_end, args=(batches,), daemon=True)
        ending.start()
        ending.join(GRACE)
        for process in self.processes:
            process.kill()
        ending.join(GRACE)


def _end(batches) -> None:
    """End the processes as torch does. Of one that was killed meanwhile a pipe may be closed."""
    with contextlib.suppress(OSError):
        batches._shutdown_workers()


def _begin(parent: int, ignores_signals: bool, _worker: int) -> None:
    if ignores_signals:
        stopping.leave_signals_to_the_trainer()
    neighbours.end_with(parent)
