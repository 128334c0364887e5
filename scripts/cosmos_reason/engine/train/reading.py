"""All that a training reads, in the order in which it needs it: the records of its steps and, where
a validation is due between them, those of the validation and the questions that are answered.

One set of processes reads them ahead, so validation clips are decoded while the steps before it
still run, no process is started in the middle of a training, and decoded frames are held once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence

from torch.utils.data import Dataset

from cosmos_reason.base.findings import EXIT_OUTSIDE, Failure
from cosmos_reason.base.fix import Fix
from cosmos_reason.engine import loader
from cosmos_reason.engine.loader import Loader
from cosmos_reason.engine.samples import Inputs, for_a_pipe, from_a_pipe
from cosmos_reason.engine.train.ranks import Ranks
from cosmos_reason.engine.train.schedule import Schedule

TRAINING, VALIDATION, QUESTIONS = range(3)
NAMES = ("training record", "validation record", "held-out question")
NAMED = 3
LESS_MEMORY = {
    "train.train_policy.dataloader_num_workers": 1,
    "train.train_policy.dataloader_prefetch_factor": 1,
}
Item = tuple[int, int]  # (kind, number)
Numbered = list[tuple[int, Inputs | Failure]]


def workers(policy: dict, on_node: int) -> int:
    """Return how many processes read for each rank. More than cores would only share the cores."""
    cores = max(1, len(os.sched_getaffinity(0)) // on_node)
    return min(policy["dataloader_num_workers"], cores)


class Unread(Failure):
    """What is to come next will not come. Nothing that was read is lost."""


class Sources(Dataset):
    """Item (kind, number): that one of the data of a kind."""

    def __init__(self, *kinds: Sequence[Inputs | Failure]):
        self.kinds = kinds

    def __getitem__(self, item: Item) -> dict | Failure:
        kind, number = item
        found = self.kinds[kind][number]
        return found if isinstance(found, Failure) else for_a_pipe(found)


class Reader:
    """Reads for one rank from the step `first` on. `questions` are all that this rank is to answer,
    by the numbers `asked`. What is read has to be taken in its order: a batch for each step, the
    whole of a validation where the schedule has one. `pins` has a thread take pixels over into
    memory from which a GPU copies while it computes."""

    def __init__(
        self,
        schedule: Schedule,
        ranks: Ranks,
        first: int,
        training: Sequence,
        validation: Sequence,
        questions: Sequence,
        asked: Sequence[int],
        pins: bool = False,
    ):
        train = schedule.spec["train"]
        self.schedule = schedule
        self.ranks = ranks
        self.kinds = (training, validation, questions)
        self.size = train["train_batch_per_replica"]
        self.validated = ranks.share(range(len(validation)))
        self.asked = asked
        self.on_their_way: deque[list[Item]] = deque()
        policy = train["train_policy"]
        count = workers(policy, ranks.on_node)
        self.loader = Loader(
            Sources(*self.kinds),
            count,
            policy["dataloader_prefetch_factor"],
            ignores_signals=True,
            batch_sampler=self._noted(self._order(first)),
            collate_fn=list,
            pin_memory=pins,
        )

    def _noted(self, order: Iterator[list[Item]]) -> Iterator[list[Item]]:
        for items in order:
            # What is sent for comes back in this order, without its numbers.
            self.on_their_way.append(items)
            yield items

    def _order(self, first: int) -> Iterator[list[Item]]:
        if not first and self.schedule.validates(0):
            yield from self._validation()
        batches = self.schedule.batches(len(self.kinds[TRAINING]), self.ranks.world, first)
        for step, batch in enumerate(batches, first + 1):
            yield [(TRAINING, number) for number in self.ranks.share(batch)]
            if self.schedule.validates(step):
                yield from self._validation()

    def _validation(self) -> Iterator[list[Item]]:
        for kind, numbers in ((VALIDATION, self.validated), (QUESTIONS, self.asked)):
            for start in range(0, len(numbers), self.size):
                yield [(kind, number) for number in numbers[start : start + self.size]]

    def batch(self) -> Numbered:
        """Return the records of the next step."""
        return self._next(TRAINING)

    def _next(self, kind: int) -> Numbered:
        items = [
            item if isinstance(item, Failure) else from_a_pipe(item) for item in self._received()
        ]
        numbers = []
        for its_kind, number in self.on_their_way.popleft():
            assert its_kind == kind, "taken out of its order"
            numbers.append(number)
        return list(zip(numbers, items, strict=True))

    def _received(self) -> list[dict | Failure]:
        """Return what comes next. Raises Unread where nothing will come."""
        try:
            return next(self.loader)
        except (loader.Dead, loader.Stuck) as problem:
            items = self.on_their_way[0]
            awaited = ", ".join(f"{NAMES[kind]} {number}" for kind, number in items[:NAMED])
            awaited += " ..." if len(items) > NAMED else ""
            where = f"reading for rank {self.ranks.rank}" if self.ranks.are_several else "reading"
            changes = LESS_MEMORY if isinstance(problem, loader.Dead) else {}
            fix = Fix(changes={"train.resume": True} | changes)
            found = loader.failure(problem, where, awaited, fix)
            raise Unread(found, EXIT_OUTSIDE) from None

    def validation(self) -> Iterator[tuple[int, Inputs | Failure]]:
        """Yield this rank's records of a validation that is due."""
        for _ in range(0, len(self.validated), self.size):
            yield from self._next(VALIDATION)

    def questions(self) -> Iterator[tuple[int, Inputs | Failure]]:
        """Yield the questions that this rank answers after those."""
        for _ in range(0, len(self.asked), self.size):
            yield from self._next(QUESTIONS)

    def close(self) -> None:
        """End the processes that read."""
        self.loader.close()
