"""The frozen base of adapters in 8-bit floating point (e4m3): half the memory of its layers, and
matrix products at up to twice the speed of bfloat16. Enter at `freeze`.

One copy of a weight serves both directions. Forward, each row of the weight and each row of what
comes in is scaled by its largest number. Seen from the gradient the weight's scales lie along the
sum, so they go into the gradient before that is scaled row by row. Tensor cores want the weight
transposed there: it is, for each product, which reads and writes a byte per weight.

What is exported is the adapter; merged, it goes into the base as that is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from cosmos_reason.base.findings import bad_input, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec.keys import BASE_PRECISION

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
SMALLEST = 1e-30  # scale of a row of zeros
OLDEST = (8, 9)  # compute capability (sm_89) whose tensor cores take it
# Tensor cores add 8-bit products up in fewer bits than float32 has, unless told to stop for more.
# What e4m3 has rounded before is larger.
FAST = True
MULTIPLE = 16  # of which the widths of a layer have to be for them


def check(config: dict, is_adapter: bool, device: torch.device) -> None:
    """Raise Failure (ENGINE-FP8) for a training, a model (its config.json) or a GPU that it cannot
    be."""
    fix = Fix(changes={BASE_PRECISION: None})
    if not is_adapter:
        message = "got fp8 for weights that are trained, expected LoRA, whose base is frozen"
        raise bad_input("ENGINE-FP8", BASE_PRECISION, message, fix)
    if config.get("quantization_config"):
        message = "got fp8 for a base that is quantized already"
        raise bad_input("ENGINE-FP8", BASE_PRECISION, message, fix)
    if device.type == "cuda" and torch.cuda.get_device_capability() < OLDEST:
        number = "".join(map(str, torch.cuda.get_device_capability()))
        message = (
            f"got fp8 on {torch.cuda.get_device_name()} (sm_{number}), expected sm_89 or later"
        )
        raise outside("ENGINE-FP8", BASE_PRECISION, message, fix)


def freeze(layers: Iterable[nn.Module], device: torch.device) -> None:
    """Bring the frozen linear layers in `layers` to the device as e4m3, one by one: it never holds
    the whole model as it is stored. Adapters stay as they are."""
    torch.compiler.allow_in_graph(Product)  # dynamo itself fails to trace it for sizes that vary
    for layer in layers:
        for part in layer.modules():
            if type(part) is nn.Linear and not part.weight.requires_grad:
                if part.in_features % MULTIPLE or part.out_features % MULTIPLE:
                    message = f"got fp8 for a layer of {part.in_features} x {part.out_features}"
                    message += f", expected multiples of {MULTIPLE}"
                    fix = Fix(changes={BASE_PRECISION: None})
                    raise bad_input("ENGINE-FP8", BASE_PRECISION, message, fix)
                weight, scale = by_rows(part.weight.detach().to(device))
                part.__class__ = FrozenLinear
                part.weight = nn.Parameter(weight, requires_grad=False)
                part.register_buffer("scale", scale.squeeze(-1), persistent=False)


class FrozenLinear(nn.Linear):
    """A linear layer of e4m3 `weight` [out, in], float32 `scale` [out]; a bias is as it was."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., in] -> [..., out] in the precision of the inputs, or of autocast."""
        device = inputs.device.type
        dtype = inputs.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        rows = inputs.to(dtype).flatten(0, -2)
        out = Product.apply(rows, self.weight, self.scale).unflatten(0, inputs.shape[:-1])
        return out if self.bias is None else out + self.bias.to(dtype)


class Product(torch.autograd.Function):
    """rows [n, in] times the transposed weight [out, in] with its scale [out]. Saves no activation:
    the weight has no gradient."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor):
        ctx.save_for_backward(weight, scale)
        return product(rows, weight.t(), scale, rows.dtype)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        weight, scale = ctx.saved_tensors
        columns = weight.t().contiguous().t()
        ones = torch.ones(columns.shape[1], device=columns.device)
        return product(gradient.float() * scale, columns, ones, gradient.dtype), None, None


def product(
    rows: torch.Tensor, columns: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return rows [n, k] times e4m3 columns [k, m], scaled by `scale` [m]. `columns` is the
    transpose of a matrix in memory, as tensor cores want it."""
    quantized, own = by_rows(rows)
    made = torch.float32 if dtype == torch.float32 else torch.bfloat16
    return torch._scaled_mm(
        quantized, columns, own, scale[None], out_dtype=made, use_fast_accum=FAST
    ).to(dtype)


def by_rows(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers [n, k] as e4m3 and the float32 scales [n, 1] by which they are multiplied."""
    numbers = numbers.float()
    scale = numbers.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / LARGEST
    return (numbers / scale).to(DTYPE), scale
