"""The parts of a network that answers on a GPU, in fewer kernels than transformers takes."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from cosmos_reason.engine.packing import ATTENTION, attend


def quicken(network) -> None:
    """Frames of all clips attend at once, not one after the other; norms are one kernel each, which
    rounds once where transformers rounds twice."""
    AttentionInterface.register(ATTENTION, attend)
    network.set_attn_implementation({"vision_config": ATTENTION})
    for part in network.modules():
        if type(part).__name__.endswith("RMSNorm") and hasattr(part, "variance_epsilon"):
            part.forward = partial(_norm, part)


def _norm(part, hidden: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(hidden, part.weight.shape, part.weight, part.variance_epsilon)
