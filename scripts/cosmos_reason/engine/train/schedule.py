"""When a training validates and saves, and which records each of its steps takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Schedule:
    """Of a complete spec."""

    spec: dict
    steps_per_epoch: int
    total_steps: int

    def epoch(self, step: int) -> int:
        """Return the epoch that a step belongs to, from 1."""
        return math.ceil(step / self.steps_per_epoch)

    def saves(self, step: int) -> bool:
        """Return whether the spec wants the state after a step saved."""
        ckpt = self.spec["train"]["ckpt"]
        if not ckpt["enable_checkpoint"] or not step:
            return False
        return self._is_due(step, ckpt["save_freq_in_epoch"], ckpt["save_freq"])

    def validates(self, step: int) -> bool:
        """Return whether there is a validation after a step: also wherever the state is saved."""
        validation = self.spec["validation"]
        if not validation["enable"]:
            return False
        if not step:
            return validation["val_before_train"]
        is_due = self._is_due(step, validation["freq_in_epoch"], validation["freq"])
        return is_due or self.saves(step)

    def _is_due(self, step: int, in_epochs: int, in_steps: int) -> bool:
        """Return whether something that happens every so many epochs (else steps) happens now."""
        interval = in_epochs * self.steps_per_epoch if in_epochs else in_steps
        return step == self.total_steps or step % interval == 0

    def batches(self, records: int, world: int, first: int) -> Iterator[list[int]]:
        """Yield the records of each step after the step `first`, for all ranks together. Their
        order depends on `dataloader_seed` and the epoch alone."""
        train = self.spec["train"]
        policy = train["train_policy"]
        size = train["train_batch_per_replica"] * world
        for epoch in range(first // self.steps_per_epoch, self.epoch(self.total_steps)):
            # Anew for each epoch, from its number alone: a run that is resumed deals the same
            # records.
            order = list(range(records))
            if policy["dataloader_shuffle"]:
                generator = torch.Generator().manual_seed(policy["dataloader_seed"] + epoch)
                order = torch.randperm(records, generator=generator).tolist()
            before = epoch * self.steps_per_epoch
            last = min(before + self.steps_per_epoch, self.total_steps)
            for step in range(max(first, before), last):
                place = (step - before) * size
                yield order[place : place + size]
