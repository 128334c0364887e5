"""What is looked at before the first optimizer step: how many parameters of each part of a model
are trained and frozen, and which of them have gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from cosmos_reason.base.families import ADAPTERS, PARTS, TEXT, part_of
from cosmos_reason.base.findings import Finding, error, say

NONE, STRAY = "ENGINE-NO-GRADIENT", "ENGINE-FROZEN-GRADIENT"


@dataclass
class Part:
    """`norm`: of the gradients of its trained parameters; `leaked`: of those of its frozen ones."""

    trained: int = 0
    frozen: int = 0
    norm: float = 0.0
    leaked: float = 0.0


@dataclass
class FirstUpdate:
    """Judge each part once: after the backward passes of the first step whose records reach it.

    Adapters count as a whole: while B is zero, A has no gradient. The tower and the merger are
    reached by records with clips or images. `may_be_flat`: a step may teach nothing at all, as one
    of reinforcement learning does whose completions all earn the same; it is not judged then.
    """

    models: Iterable[nn.Module]
    may_be_flat: bool = False
    tell: Callable[[str], None] = say
    waiting: set[str] = field(default_factory=set)

    def __post_init__(self):
        self.models = [model for model in self.models if model is not None]
        self.parts = {name: Part() for name in PARTS}
        for name, parameter in self._parameters():
            part = self.parts[part_of(name)]
            if parameter.requires_grad:
                part.trained += parameter.numel()
            else:
                part.frozen += parameter.numel()
        self.waiting = {name for name, part in self.parts.items() if part.trained or part.frozen}
        names = [name for name, _ in self._parameters()]
        adapts_text = any("lora_" in name and "visual." not in name for name in names)
        self.reached = {TEXT, ADAPTERS} if adapts_text else {TEXT}
        self.hooks = []
        for model in self.models:
            for name, module in model.named_modules():
                if name.rpartition(".")[2] == "visual":
                    self.hooks.append(module.register_forward_pre_hook(self._reach_all))

    def _parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        return (pair for model in self.models for pair in model.named_parameters())

    def _reach_all(self, *_) -> None:
        self.reached = set(PARTS)

    @property
    def is_done(self) -> bool:
        return not self.waiting

    def check(self) -> list[Finding]:
        """Return what is wrong with the gradients of the parts that are judged now, and tell their
        numbers. All ranks call it together, and get the same."""
        self._measure()
        judged = self.waiting & self._reached_anywhere()
        if self.may_be_flat and not any(part.norm for part in self.parts.values()):
            return []
        found = []
        for name in sorted(judged, key=PARTS.index):
            part = self.parts[name]
            if _is_first():
                self.tell(
                    f"first update: {name}: {part.trained:,} parameters trained, gradient norm "
                    f"{part.norm:.4g}; {part.frozen:,} frozen"
                )
            if part.trained and part.norm == 0:
                message = (
                    f"got no gradient for the {part.trained:,} parameters of the {name} that are "
                    "trained: the run would leave them as they are"
                )
                found.append(error(NONE, name, message))
            if part.leaked:
                message = (
                    f"got a gradient norm of {part.leaked:.4g} for parameters of the {name} that "
                    "are frozen, expected none"
                )
                found.append(error(STRAY, name, message))
        self.waiting -= judged
        if self.is_done:
            for hook in self.hooks:
                hook.remove()
        return found

    def _measure(self) -> None:
        """Sum the squares of the gradients over all ranks. What several ranks hold alike counts
        once."""
        sums = torch.zeros(len(PARTS), 2, dtype=torch.float64)
        for name, parameter in self._parameters():
            if parameter.grad is not None:
                gradient, copies = _local(parameter.grad)
                square = gradient.detach().float().pow(2).sum().double().cpu() / copies
                sums[PARTS.index(part_of(name)), 0 if parameter.requires_grad else 1] += square
        for name, (norm, leaked) in zip(PARTS, _summed(sums).sqrt().tolist(), strict=True):
            self.parts[name].norm, self.parts[name].leaked = norm, leaked

    def _reached_anywhere(self) -> set[str]:
        """Return the parts that the records of any rank have reached."""
        flags = torch.tensor([float(name in self.reached) for name in PARTS], dtype=torch.float64)
        return {name for name, count in zip(PARTS, _summed(flags).tolist(), strict=True) if count}


def _local(gradient: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the part of a gradient that this rank holds, and how many ranks hold the same."""
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if not hasattr(gradient, "to_local"):
        return gradient, world
    shards = 1
    for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True):
        shards *= size if placement.is_shard() else 1
    return gradient.to_local(), max(world // shards, 1)


def _summed(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of each value over all ranks."""
    if not torch.distributed.is_initialized():
        return values
    backend = torch.distributed.get_backend()
    device = torch.cuda.current_device() if "nccl" in backend else "cpu"
    there = values.to(device)
    torch.distributed.all_reduce(there)
    return there.cpu()


def _is_first() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
