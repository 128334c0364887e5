"""Whether gradients reach what is trained, and nothing else, before weights change: what a wrong
pattern or a detached part would cost shows otherwise when the money is spent."""

from __future__ import annotations

import torch

from cosmos_reason.base.families import ADAPTERS, TEXT, part_of
from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, error, say
from cosmos_reason.engine.train import shards
from cosmos_reason.engine.train.ranks import Ranks


class FirstUpdate:
    """Judges each part of a network once, after the first step whose records reach it: those
    without images and clips reach no tower. Adapters are one part: of each pair one matrix begins
    with zeros, and the other has no gradient then."""

    def __init__(self, network: torch.nn.Module):
        self.parts: dict[str, list[torch.nn.Parameter]] = {}
        self.reached_by_text = {TEXT}
        for name, parameter in network.named_parameters():
            part = part_of(name)
            self.parts.setdefault(part, []).append(parameter)
            if part == ADAPTERS and ".visual." not in name:
                self.reached_by_text.add(ADAPTERS)

    def judge(self, ranks: Ranks, have_media: bool, step: int) -> None:
        """Say and judge the gradients of the parts that this step reached; all ranks have to call
        it. Raises Failure for a part of which no trainable number has a gradient, or a frozen one
        has."""
        reached = [part for part in self.parts if have_media or part in self.reached_by_text]
        told, problems = [], []
        for part in reached:
            parameters = self.parts.pop(part)
            trained = [one for one in parameters if one.requires_grad]
            frozen = [one for one in parameters if not one.requires_grad]
            norm, stray = _norm(trained), _norm(frozen)
            numbers = sum(one.numel() for one in trained)
            words = f"{part} {numbers:,} trained, {sum(one.numel() for one in frozen):,} frozen"
            told.append(f"{words}, gradient {norm:.3g}" if trained else words)
            if trained and not norm:
                message = (
                    f"got no gradient for any of the {numbers:,} trained numbers of the {part}"
                )
                problems.append(error("ENGINE-NO-GRADIENT", f"step {step}", message))
            if stray:
                message = f"got a gradient ({stray:.3g}) for frozen numbers of the {part}"
                problems.append(error("ENGINE-FROZEN-GRADIENT", f"step {step}", message))
        if told:
            say(f"gradients of step {step}: {'; '.join(told)}")
        if problems:
            raise ranks.told_once(Failure(problems, EXIT_CHECKS_FAILED))


def _norm(parameters: list[torch.nn.Parameter]) -> float:
    """Return the norm of all gradients there are; 0 where there are none. NaN stays NaN."""
    found = [one.grad for one in parameters if one.grad is not None]
    norms = [shards.whole(torch.linalg.vector_norm(one.detach())).float() for one in found]
    return torch.linalg.vector_norm(torch.stack(norms)).item() if norms else 0.0
