"""Questions encoded ahead of the model, their clips decoded by other processes.

Processes, not threads: resizing, patches and tokens take Python's lock often enough to hold up the
thread that starts the GPU's work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from cosmos_reason.base.findings import EXIT_OUTSIDE, Failure
from cosmos_reason.data.samples import Question
from cosmos_reason.engine.loader import Dead, Loader, Stuck, failure
from cosmos_reason.engine.samples import Inputs, for_a_pipe, from_a_pipe

MOST_WORKERS = 16
FEWEST_GROUPS = 4  # for each worker, or starting it takes longer than it saves
SHARED = 2 << 30  # bytes of shared memory, through which clips come from workers
LARGEST_GROUP = 8
AGAIN = "the same command again: it goes on behind the answers that there are"


class Prompts(torch.utils.data.Dataset):
    """Item n: of each question of group n its inputs, or what kept it from having any."""

    def __init__(self, groups: Sequence[Sequence[Question]], encode: Callable[[Question], Inputs]):
        self.groups, self.encode = groups, encode

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> list[dict | Failure | OSError]:
        tried: list[dict | Failure | OSError] = []
        for question in self.groups[number]:
            try:
                tried.append(for_a_pipe(self.encode(question)))
            except (Failure, OSError) as problem:
                tried.append(problem)
        return tried


def groups_of(questions: Sequence[Question]) -> list[list[Question]]:
    """Return the questions in groups: those about the same media, one after the other, stay
    together, since their worker decodes those once."""
    groups = []
    for _, same in groupby(questions, key=lambda question: question.sample.media):
        members = list(same)
        for first in range(0, len(members), LARGEST_GROUP):
            groups.append(members[first : first + LARGEST_GROUP])
    return groups


def workers_for(groups: int, processes: int) -> tuple[int, str]:
    """Return how many workers a process with a GPU gets, of as many that share this machine; and
    why."""
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
) -> Arriving:
    """Return each question in order with its inputs or its problem, up to `ahead` questions
    prepared before they are taken, from now on. `pins` has a thread take them over into memory from
    which a GPU copies. Raises a Failure that is no question's own (exit 3)."""
    prefetch = max(2, -(-ahead // max(1, workers)))
    prompts = Prompts(groups, encode)
    # Without a function of its own torch makes tensors of all arrays, each with a handle.
    ways = {"batch_size": None, "collate_fn": list, "pin_memory": pins}
    return Arriving(groups, Loader(prompts, workers, prefetch, **ways))


class Arriving:
    """The questions of all groups, as `encoded` says. Whoever has enough closes it."""

    def __init__(self, groups: list[list[Question]], loader: Loader):
        self.loader = loader
        self.questions = self._all(groups)

    def __iter__(self) -> Arriving:
        return self

    def __next__(self) -> tuple[Question, Inputs | Failure | OSError]:
        return next(self.questions)

    def _all(self, groups: list[list[Question]]):
        for group in groups:
            try:
                results = next(self.loader)
            except (Dead, Stuck) as problem:
                awaited = f"the clip of question {group[0].id}"
                found = failure(problem, "reading", awaited, AGAIN)
                raise Failure(found, EXIT_OUTSIDE) from None
            for question, result in zip(group, results, strict=True):
                if isinstance(result, Failure) and result.exit_code == EXIT_OUTSIDE:
                    raise result
                yield question, result if isinstance(result, Exception) else from_a_pipe(result)

    def close(self) -> None:
        """End the processes that read."""
        self.loader.close()
