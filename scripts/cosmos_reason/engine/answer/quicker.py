"""The parts of a network that answers on a GPU, in fewer kernels than transformers takes."""

from __future__ import annotations

import sys
from types import MethodType

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from cosmos_reason.engine.packing import ATTENTION, attend, embed_by_product


def quicken(network) -> None:
    """Let frames of all clips attend at once, not one after the other; norms are one kernel each,
    which rounds once where transformers rounds twice; patches are embedded by a matrix product; and
    positions are turned in half of the passes through memory."""
    AttentionInterface.register(ATTENTION, attend)
    network.set_attn_implementation({"vision_config": ATTENTION})
    embed_by_product(network)
    for part in network.modules():
        kind = type(part).__name__
        if kind.endswith("RMSNorm") and hasattr(part, "variance_epsilon"):
            part.forward = MethodType(_norm, part)
    # transformers looks these functions up in the module of the architecture.
    architecture = sys.modules[type(network).__module__]
    architecture.apply_rotary_pos_emb_vision = turn_patches
    if hasattr(architecture, "apply_rotary_pos_emb"):
        architecture.apply_rotary_pos_emb = turn_tokens


def _norm(part, hidden: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(hidden, part.weight.shape, part.weight, part.variance_epsilon)


def turn_patches(query, key, cos, sin) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn rotary positions of vision blocks, in float32: [patches, heads, width], [patches,
    width]."""
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    return _turn(query, cos, sin), _turn(key, cos, sin)


def turn_tokens(query, key, cos, sin, unsqueeze_dim: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn rotary positions of text layers: [batch, heads, tokens, width], [batch, tokens,
    width]."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _turn(query, cos, sin), _turn(key, cos, sin)


def _turn(part: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return part * cos + rotate_half(part) * sin, the second product added in place."""
    half = part.shape[-1] // 2
    turned = part * cos
    first, second = part[..., :half].to(turned.dtype), part[..., half:].to(turned.dtype)
    turned[..., :half].addcmul_(second, sin[..., :half], value=-1)
    turned[..., half:].addcmul_(first, sin[..., half:])
    return turned.to(part.dtype)
