"""Several records in one forward pass, without padding: which go together, how they are joined, and
attention that stays within each record."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from cosmos_reason.engine.encode import IGNORED

# With "flash" in the name, transformers hands over a row of frames whole, not frame by frame.
ATTENTION = "packed_flash"
# From mm_token_type_ids the model would count positions: they are given.
NOT_OF_A_PASS = "mm_token_type_ids"


def plan(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return indices of the records of each pass, at most `budget` tokens in each; a longer record
    has a pass of its own. First-fit decreasing: few passes, and the same ones in every run."""
    passes: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        fitting = [number for number, left in enumerate(room) if lengths[index] <= left]
        if fitting:
            passes[fitting[0]].append(index)
            room[fitting[0]] -= lengths[index]
        else:
            passes.append([index])
            room.append(budget - lengths[index])
    return passes


def pack(samples: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor | int]:
    """Return one row of all records, with the positions that each has alone; media are joined.
    `record_starts`: int32 [records + 1], where each begins, and the end."""
    columns: dict[str, list[torch.Tensor]] = {}
    for sample in samples:
        for key, value in sample.items():
            columns.setdefault(key, []).append(value)
    batch = {key: torch.cat(rows) for key, rows in columns.items() if key != NOT_OF_A_PASS}
    lengths = torch.tensor([len(sample["input_ids"]) for sample in samples])
    starts = F.pad(lengths.cumsum(0), (1, 0))
    labels = batch["labels"].clone()
    labels[starts[:-1]] = IGNORED  # no record foretells the next
    batch["labels"] = labels[None]
    batch["input_ids"] = batch["input_ids"][None]
    batch["position_ids"] = batch["position_ids"].T[:, None]  # as models take them
    return batch | {"record_starts": starts.int(), "longest_record": int(lengths.max())}


def attend_within_records(network) -> None:
    """Let text and vision attend by `attend`."""
    AttentionInterface.register(ATTENTION, attend)
    network.set_attn_implementation({"text_config": ATTENTION, "vision_config": ATTENTION})


def embed_by_product(network) -> None:
    """Let patches, which do not overlap, be embedded by a matrix product: on a CPU a quarter of the
    time of the convolution with its gradient, on a GPU a thirtieth."""
    for part in network.modules():
        if type(part).__name__.endswith("VisionPatchEmbed"):
            # A method, as modules have: what unpacks compressed weights wraps its function.
            part.forward = MethodType(_embed, part)


def _embed(part, pixels: torch.Tensor) -> torch.Tensor:
    """Embed [patches, 3 * temporal_patch * patch * patch] -> [patches, width]: the convolution
    whose stride is its kernel."""
    weight = part.proj.weight
    return F.linear(pixels.to(weight.dtype), weight.flatten(1), part.proj.bias)


def attend(
    module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask=None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    record_starts: torch.Tensor | None = None,
    longest_record: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Attend: [1, heads, n, width] -> [1, n, heads, width]. Vision blocks say their frames or
    windows by `cu_seq_lens_q` and `max_length_q`, which come before the records of the text. Pieces
    of one length are a batch for torch's own attention, whose kernels are fastest; others take
    flash attention of variable length where GPU and precision allow it, else a call each."""
    starts, longest = record_starts, longest_record
    if cu_seq_lens_q is not None:
        starts, longest = cu_seq_lens_q, max_length_q
    causal = module.is_causal if is_causal is None else is_causal
    pieces = starts.shape[0] - 1
    tokens = query.shape[2]
    if pieces * longest == tokens:
        rows = [
            part[0].unflatten(1, (pieces, longest)).transpose(0, 1) for part in (query, key, value)
        ]
        batched, _ = sdpa_attention_forward(module, *rows, None, dropout, scaling, causal)
        return batched.reshape(1, tokens, *batched.shape[2:]), None
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.is_cuda and query.dtype.itemsize == 2 and has_flash_attention():
        return _varlen(query, key, value, starts, longest, scaling, causal), None
    lengths = starts.diff().tolist()
    parts = []
    for row in zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True):
        parts.append(sdpa_attention_forward(module, *row, None, dropout, scaling, causal)[0])
    return torch.cat(parts, dim=1), None


def has_flash_attention() -> bool:
    """Return whether torch's flash attention runs on this GPU (Ampere and later)."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


def _varlen(query, key, value, starts, longest, scaling, causal) -> torch.Tensor:
    window = (-1, 0) if causal else (-1, -1)
    rows = [part[0].transpose(0, 1) for part in (query, key, value)]
    grouped = {"enable_gqa": True} if "enable_gqa" in varlen_attn.__kwdefaults__ else {}
    out = varlen_attn(
        *rows, starts, starts, longest, longest, scale=scaling, window_size=window, **grouped
    )
    return out[None]
