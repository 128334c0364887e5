"""Whether gradients reach what is trained, and nothing else, before weights change: what a wrong
pattern or a detached part would cost shows otherwise when the money is spent. Our own trainer asks
it, and cosmos-rl's, whose environment has another torch."""

from __future__ import annotations

import torch
import torch.distributed as dist

from cosmos_reason.base.families import ADAPTERS, TEXT, part_of
from cosmos_reason.base.findings import Finding, error, say


class FirstUpdate:
    """Judges each part of a network once, after the backward passes of the first step whose records
    reach it: those without images and clips reach no tower. Adapters are one part: of each pair one
    matrix begins with zeros, and the other has no gradient then.

    `may_be_flat`: a step may teach nothing at all, as one of reinforcement learning does whose
    completions all earn the same; it is not judged then.
    """

    def __init__(self, network: torch.nn.Module, may_be_flat: bool = False):
        self.may_be_flat = may_be_flat
        self.parts: dict[str, list[torch.nn.Parameter]] = {}
        self.reached_by_text = {TEXT}
        for name, parameter in network.named_parameters():
            part = part_of(name)
            self.parts.setdefault(part, []).append(parameter)
            if part == ADAPTERS and ".visual." not in name:
                self.reached_by_text.add(ADAPTERS)

    @property
    def is_done(self) -> bool:
        return not self.parts

    def judge(self, have_media: bool, step: int) -> list[Finding]:
        """Say the gradients of the parts that the records of any rank reached in this step, and
        return what is wrong with them; `have_media` is said of this rank's records. All ranks have
        to call it, and get the same."""
        norms, media = self._measured(have_media)
        if self.may_be_flat and not any(trained for trained, _ in norms.values()):
            return []
        judged = [part for part in self.parts if media or part in self.reached_by_text]
        told, problems = [], []
        for part in judged:
            numbers = {True: 0, False: 0}  # by whether they are trained
            for parameter in self.parts.pop(part):
                numbers[parameter.requires_grad] += parameter.numel()
            norm, stray = norms[part]
            words = f"{part} {numbers[True]:,} trained, {numbers[False]:,} frozen"
            told.append(f"{words}, gradient {norm:.3g}" if numbers[True] else words)
            if numbers[True] and not norm:
                message = (
                    f"got no gradient for any of the {numbers[True]:,} trained numbers of the "
                    f"{part}"
                )
                problems.append(error("ENGINE-NO-GRADIENT", f"step {step}", message))
            if stray:
                message = f"got a gradient ({stray:.3g}) for frozen numbers of the {part}"
                problems.append(error("ENGINE-FROZEN-GRADIENT", f"step {step}", message))
        if told and (not dist.is_initialized() or dist.get_rank() == 0):
            say(f"gradients of step {step}: {'; '.join(told)}")
        return problems

    def _measured(self, have_media: bool) -> tuple[dict[str, tuple[float, float]], bool]:
        """Return the norms over all ranks of the gradients of each part that is not judged yet
        (those of its trained parameters, those of its frozen ones; NaN stays NaN), and whether the
        records of any rank have media.

        Each rank sums what it holds and one reduction adds the sums, so that a rank without a
        gradient that others have waits for nobody.
        """
        sums = torch.zeros(len(self.parts) + 1, 2, dtype=torch.float64)
        sums[-1] = float(have_media)
        for row, parameters in zip(sums, self.parts.values(), strict=False):
            for parameter in parameters:
                if parameter.grad is not None:
                    here, copies = _held_here(parameter.grad.detach())
                    norm = torch.linalg.vector_norm(here, dtype=torch.float32).double().cpu()
                    row[0 if parameter.requires_grad else 1] += norm**2 / copies
        if dist.is_initialized():
            # NCCL takes only what lies on a GPU.
            on_gpu = "nccl" in dist.get_backend()
            sums = sums.to(torch.cuda.current_device() if on_gpu else "cpu")
            dist.all_reduce(sums)
        *norms, (media, _) = map(tuple, sums.sqrt().tolist())
        return dict(zip(self.parts, norms, strict=True)), bool(media)


def _held_here(gradient: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the part of a gradient that this rank holds, and how many ranks hold the same: all,
    unless its placements say over how many it is sharded."""
    copies = dist.get_world_size() if dist.is_initialized() else 1
    if not hasattr(gradient, "to_local"):
        return gradient, copies
    for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True):
        if placement.is_shard():
            copies //= size
    return gradient.to_local(), max(copies, 1)
