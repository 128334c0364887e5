"""The processes that read records for a training, and how they end: asked to, with the training's
process, or before it."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection

from torch.utils.data import DataLoader, Dataset

from cosmos_reason.engine import neighbours, stopping

PATIENCE = 3600  # seconds for a batch; longer than the slowest disk needs, shorter than for ever
GRACE = 5  # seconds in which they may end by themselves
DYING = 1  # seconds from a connection that breaks to the end of the process behind it
TIMED_OUT = "DataLoader timed out"  # how torch begins to say so


class Dead(Exception):
    """One of the processes has ended."""


class Stuck(Exception):
    """None of them has sent anything for PATIENCE seconds."""


class Loader:
    """An iterator over batches of a dataset in the order of `batches`, read by so many processes
    (0: by this one). They are forked here, where the only thread of Python is the main one: no
    lock of another can be held in a fork."""

    def __init__(self, dataset: Dataset, batches: Iterable, workers: int, prefetch: int):
        others = multiprocessing.active_children()
        before = signal.getsignal(signal.SIGCHLD)
        self.batches = iter(
            DataLoader(
                dataset,
                batch_sampler=batches,
                collate_fn=list,
                num_workers=workers,
                prefetch_factor=prefetch if workers else None,
                worker_init_fn=partial(_begin, multiprocessing.current_process().pid),
                multiprocessing_context="fork" if workers else None,
                timeout=PATIENCE if workers else 0,
            )
        )
        self.processes = [one for one in multiprocessing.active_children() if one not in others]
        if self.processes and _is_main_thread():
            # torch raises wherever the main thread is when a reader dies: also between the weights
            # and the number of a step. Here it is told where records are waited for.
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)

    def __next__(self) -> list:
        """Raises Dead or Stuck, and what reading raised."""
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
        """While it is open a process that dies raises Dead, also where this one waits for the rest
        of a message: the pipe stays open in the other processes."""
        if not _is_main_thread():
            yield
            return
        before = signal.signal(signal.SIGCHLD, lambda *_: self._raise_for_dead())
        try:
            self._raise_for_dead()
            yield
        finally:
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)

    def _raise_for_dead(self, seconds: float = 0) -> None:
        """Raise Dead when one of the processes is gone, or is in so many seconds."""
        sentinels = {process.sentinel: process for process in self.processes}
        for sentinel in connection.wait(list(sentinels), seconds):
            process = sentinels[sentinel]
            raise Dead(f"process {process.pid}, exit code {process.exitcode}")

    def close(self) -> None:
        """End the processes, within GRACE seconds. They ignore the signal by which multiprocessing
        would end them with this one, which would wait for them without an end."""
        batches, self.batches = self.batches, None
        if not self.processes:
            return
        # A lock that they share may have been held by one that died: it is not waited for here.
        ending = threading.Thread(target=batches._shutdown_workers, daemon=True)
        ending.start()
        ending.join(GRACE)
        for process in self.processes:
            process.kill()
        ending.join(GRACE)


def _begin(parent: int, _worker: int) -> None:
    stopping.leave_signals_to_the_trainer()
    neighbours.end_with(parent)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
