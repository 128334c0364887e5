"""The processes of one training. torchrun starts them and tells each its rank; each takes a share
of every batch. What they must do alike is agreed here: numbers are summed, rank 0 alone writes and
speaks. In a single process every method is a no-op, or returns what it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding, bad_input, outside
from cosmos_reason.base.fix import Fix

T = TypeVar("T")
SHARDS = "policy.parallelism.dp_shard_size"
REPLICAS = "policy.parallelism.dp_replicate_size"
BUCKET = 1 << 25  # gradients that are summed together
# Rank 0 may send a model of many GB somewhere while the others wait. That a process has died shows
# by itself, and much sooner.
PATIENCE = timedelta(hours=6)
# In the seed of a rank, so that no step of one has the dropout of a step of another.
SEEDS_APART = 1_000_003


@dataclass(frozen=True)
class Ranks:
    """This process among the `world` processes of a training: `local` is its number on its machine,
    which has `on_node` of them. `control`: the group in which they agree, None of one process.
    `neighbours`: process numbers of the others on this machine."""

    rank: int = 0
    world: int = 1
    local: int = 0
    on_node: int = 1
    control: dist.ProcessGroup | None = None
    neighbours: tuple[int, ...] = ()

    @classmethod
    def from_environment(cls) -> Ranks:
        """Return the ranks as torchrun tells them; one process without it."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        values = [os.environ.get(name) for name in names]
        return cls(*map(int, values)) if all(values) else cls()

    @property
    def are_several(self) -> bool:
        return self.world > 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def check(self, spec: dict) -> None:
        """Raise Failure unless there are as many processes as the spec wants."""
        grid = spec["policy"]["parallelism"]
        wanted = grid["dp_shard_size"] * grid["dp_replicate_size"]
        if wanted == self.world:
            return
        message = (
            f"got {self.world} processes, expected dp_shard_size x dp_replicate_size = {wanted}"
        )
        fix = Fix(changes={SHARDS: self.world, REPLICAS: 1})
        raise self.for_rank0(bad_input("ENGINE-WORLD-SIZE", SHARDS, message, fix))

    def take_gpu(self, device: torch.device) -> None:
        """Let "cuda" mean the GPU of this process. Raises Failure where there are too few."""
        if not self.are_several or device.type != "cuda":
            return
        count = torch.cuda.device_count()
        if self.on_node > count:
            message = f"got {self.on_node} processes on a machine with {count} visible GPUs"
            fix = f"python -m torch.distributed.run --nproc-per-node {count} ..."
            raise self.for_rank0(outside("ENGINE-GPU-COUNT", SHARDS, message, fix))
        torch.cuda.set_device(self.local)

    def joined(self, device: torch.device) -> Ranks:
        """Return the ranks joined in a group. Gradients go from GPU to GPU, all else from host to
        host."""
        if not self.are_several:
            return self
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        # What the ranks agree on goes over the host: it works while the GPUs are busy or full.
        control = dist.new_group(backend="gloo", timeout=PATIENCE)
        numbers = [0] * self.world
        dist.all_gather_object(numbers, os.getpid(), group=control)
        first = self.rank - self.local  # of this machine
        others = numbers[first : first + self.on_node]
        others.remove(os.getpid())
        return replace(self, control=control, neighbours=tuple(others))

    def leave(self) -> None:
        """Leave the group when the work is done; a process that fails just ends."""
        if self.are_several:
            dist.destroy_process_group()

    # -- shares ------------------------------------------------------------------------------------

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return what this rank takes of the items."""
        return items[self.rank :: self.world]

    def rounds(self, parts: Iterator[T]) -> Iterator[T | None]:
        """Yield the parts of this rank, and None as long as another still has some. What raises
        Failure on one rank raises it on all."""
        if not self.are_several:
            yield from parts
            return
        while True:
            part = self.agreed(next, parts, None)
            if not self.largest(int(part is not None)):
                return
            yield part

    # -- numbers -----------------------------------------------------------------------------------

    def sum(self, number: T) -> T:
        return self._reduced(number, dist.ReduceOp.SUM)

    def largest(self, number: T) -> T:
        return self._reduced(number, dist.ReduceOp.MAX)

    def smallest(self, number: T) -> T:
        return self._reduced(number, dist.ReduceOp.MIN)

    def _reduced(self, number: T, how: dist.ReduceOp) -> T:
        if not self.are_several:
            return number
        # float64 adds counts of tokens exactly, of which float32 loses some beyond 16 million.
        shared = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(shared, how, group=self.control)
        return type(number)(shared.item())

    def merged(self, table: dict) -> dict:
        """Return the entries of all ranks."""
        if not self.are_several:
            return table
        tables: list[dict] = [{}] * self.world
        dist.all_gather_object(tables, table, group=self.control)
        return {key: value for one in tables for key, value in one.items()}

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Add up the gradients of all ranks, in place. A parameter that no rank has a gradient of
        keeps none, so that the optimizer leaves it alone, as it does in one process."""
        if not self.are_several:
            return
        has_some = torch.tensor([part.grad is not None for part in parameters], dtype=torch.uint8)
        dist.all_reduce(has_some, dist.ReduceOp.MAX, group=self.control)
        reached = [parameters[index] for index in has_some.nonzero().flatten().tolist()]
        for parameter in reached:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        # Adapters are thousands of small tensors: one reduction each would wait more than it sums.
        for bucket in _buckets([parameter.grad for parameter in reached]):
            whole = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(whole)
            sizes = [gradient.numel() for gradient in bucket]
            for gradient, part in zip(bucket, whole.split(sizes), strict=True):
                gradient.copy_(part.view_as(gradient))

    def same_start(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Give all ranks the parameters of rank 0."""
        if self.are_several:
            for parameter in parameters:
                dist.broadcast(parameter.detach(), 0)

    # -- doing and failing together ----------------------------------------------------------------

    def by_first(self, call: Callable[..., T], *args) -> T:
        """Return what `call` returns on rank 0, on every rank. What it raises there ends all of
        them."""
        if not self.are_several:
            return call(*args)
        result, problem = None, None
        if self.is_first:
            try:
                result = call(*args)
            except (Failure, OSError) as raised:
                problem = raised
        outcome = [result, getattr(problem, "exit_code", findings.EXIT_OUTSIDE) if problem else 0]
        dist.broadcast_object_list(outcome, group=self.control)
        if problem:
            raise problem
        if outcome[1]:
            raise Failure([], outcome[1])
        return outcome[0]

    def agreed(self, call: Callable[..., T], *args) -> T:
        """Return what `call` returns here. A Failure on any rank is one on all, of the same kind;
        rank 0 tells it."""
        if not self.are_several:
            return call(*args)
        result, raised = None, None
        try:
            result = call(*args)
        except Failure as failure:
            raised = failure
        all_raised: list[Failure | None] = [None] * self.world
        dist.all_gather_object(all_raised, raised, group=self.control)
        failures = [failure for failure in all_raised if failure]
        if not failures:
            return result
        found: list[Finding] = []
        for failure in failures:
            found += [finding for finding in failure.findings if finding not in found]
        kind = type(failures[0])
        raise self.for_rank0(kind(found, max(failure.exit_code for failure in failures)))

    def first_of_node_first(self, call: Callable[..., T], *args) -> T:
        """Return what `call` returns. One process of each machine does it before the others, which
        find what it downloaded."""
        result = self.agreed(lambda: None if self.local else call(*args))
        return self.agreed(lambda: call(*args) if self.local else result)

    def for_rank0(self, failure: Failure) -> Failure:
        """Return what to raise here for a failure that all ranks have: rank 0 alone says it."""
        return failure if self.is_first else type(failure)([], failure.exit_code)

    def place(self, step: int) -> str:
        """Return a step of this process, for a finding."""
        return f"step {step}, rank {self.rank}" if self.are_several else f"step {step}"

    def lost(self, problem: RuntimeError) -> Failure | None:
        """Return what to say of a problem that means that another process is gone; None for any
        other."""
        text = str(problem)
        is_lost = isinstance(problem, dist.DistError) or "gloo" in text or "NCCL" in text
        if not self.are_several or not is_lost:
            return None
        first_line = text.strip().partition("\n")[0]
        message = (
            "another process of the training has ended; its own lines, or torchrun's below, tell "
            f"why ({first_line})"
        )
        fix = Fix(changes={"train.resume": True})
        return self.for_rank0(outside("ENGINE-RANK-LOST", f"rank {self.rank}", message, fix))


ALONE = Ranks()


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the gradients in their order, as many of one type together as a bucket holds."""
    bucket: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        is_other = bool(bucket) and gradient.dtype != bucket[0].dtype
        if bucket and (is_other or size + gradient.numel() > BUCKET):
            yield bucket
            bucket = []
            size = 0
        bucket.append(gradient)
        size += gradient.numel()
    if bucket:
        yield bucket
