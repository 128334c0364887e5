"""Questions encoded ahead of the model, their clips decoded by other processes.

Processes, not threads: resizing, patches and tokens take Python's lock often enough to hold up the
thread that starts the GPU's work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import groupby

import torch
from torch.utils.data import DataLoader

from cosmos_reason.base.findings import EXIT_OUTSIDE, Failure
from cosmos_reason.data.samples import Question
from cosmos_reason.engine import neighbours
from cosmos_reason.engine.encode import PIXELS_KEY

Inputs = dict[str, torch.Tensor]
MOST_WORKERS = 16
FEWEST_GROUPS = 4  # for each worker, or starting it takes longer than it saves
SHARED = 2 << 30  # bytes of shared memory, through which clips come from workers
LARGEST_GROUP = 8


class Prompts(torch.utils.data.Dataset):
    """Item n: of each question of group n its inputs, or what kept it from having any."""

    def __init__(self, groups: Sequence[Sequence[Question]], encode: Callable[[Question], Inputs]):
        self.groups, self.encode = groups, encode

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> list[dict | Failure | OSError]:
        return [self._tried(question) for question in self.groups[number]]

    def _tried(self, question: Question) -> dict | Failure | OSError:
        """Pixels come through shared memory; the rest, as arrays, through the pipe: a handle for
        each tensor would cost more."""
        try:
            inputs = self.encode(question)
        except (Failure, OSError) as problem:
            return problem
        pixels = PIXELS_KEY.values()
        return {key: part if key in pixels else part.numpy() for key, part in inputs.items()}


def groups_of(questions: Sequence[Question]) -> list[list[Question]]:
    """Questions about the same media, one after the other, stay together: their worker decodes
    those once."""
    groups = []
    for _, same in groupby(questions, key=lambda question: question.sample.media):
        members = list(same)
        for first in range(0, len(members), LARGEST_GROUP):
            groups.append(members[first : first + LARGEST_GROUP])
    return groups


def workers_for(groups: int, processes: int) -> tuple[int, str]:
    """How many workers a process with a GPU gets, of as many that share this machine; and why."""
    cores = len(os.sched_getaffinity(0)) // processes
    shared = os.statvfs("/dev/shm")
    if shared.f_bavail * shared.f_frsize < SHARED:
        return 0, "there is little shared memory (/dev/shm)"
    return min(MOST_WORKERS, cores, groups // FEWEST_GROUPS), f"{cores} cores, {groups} clips"


def encoded(
    groups: list[list[Question]],
    encode: Callable[[Question], Inputs],
    workers: int,
    ahead: int,
    pins: bool = False,
) -> Generator[tuple[Question, Inputs | Failure | OSError]]:
    """Each question in order with its inputs or its problem, up to `ahead` questions prepared
    before they are taken, from now on. `pins` has a thread take them over into memory from which a
    GPU copies. Raises a Failure that is no question's own (exit 3)."""
    prefetch = None
    if workers:
        prefetch = max(2, -(-ahead // workers))
    loader = DataLoader(
        Prompts(groups, encode),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=prefetch,
        worker_init_fn=partial(_begin, os.getpid()),
        multiprocessing_context="fork" if workers else None,
        pin_memory=pins,
    )
    # Its processes start here, before the first question is asked for.
    return _arriving(groups, iter(loader))


def _begin(parent: int, _worker: int) -> None:
    neighbours.end_with(parent)


def _arriving(groups: list[list[Question]], loader: Iterator[list]):
    for group, results in zip(groups, loader, strict=True):
        for question, result in zip(group, results, strict=True):
            if isinstance(result, Failure) and result.exit_code == EXIT_OUTSIDE:
                raise result
            yield question, result if isinstance(result, Exception) else _as_tensors(result)


def _as_tensors(inputs: dict) -> Inputs:
    return {key: torch.as_tensor(part) for key, part in inputs.items()}
