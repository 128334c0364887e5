"""Weights, gradients and moments of a full fine-tuning spread over ranks (FSDP2).

All ranks must compute the same passes, layer by layer, for each gathers a layer's weights first.
Which records are text alone differs from rank to rank, so the vision tower is gathered with what
belongs to no layer, whether a rank needs it or not, and its gradient counts as zeros where it did
not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from cosmos_reason.engine.encode import PIXELS_KEY
from cosmos_reason.engine.train.ranks import Ranks


def count(spec: dict) -> int:
    """Return over how many ranks each weight is spread: adapters and their base are on all of
    them."""
    policy = spec["policy"]
    return 1 if policy["lora"] else policy["parallelism"]["dp_shard_size"]


def are_in(network: torch.nn.Module) -> bool:
    return isinstance(network, FSDPModule)


def spread(
    network: torch.nn.Module,
    decoder: Sequence[torch.nn.Module],
    mesh: DeviceMesh,
    master: torch.dtype,
    compute: torch.dtype,
) -> None:
    """Shard each decoder layer, and all else together. Called is `network.answer_logits`. Weights
    that will be of another precision (`master`) than `compute` are gathered in that, and their
    gradients added in float32; what decoder layers pass on stays in `master`, as in one
    process."""
    policy = MixedPrecisionPolicy()
    if master != compute:
        policy = MixedPrecisionPolicy(
            param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        network.get_input_embeddings().register_forward_hook(
            lambda _module, _inputs, output: output.to(master)
        )
    for layer in decoder:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(network, mesh=mesh, mp_policy=policy)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            # Losses are parts of the mean of the whole batch already: gradients are sums.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    network.answer_logits = _reaching_the_tower(network, network.answer_logits)
    register_fsdp_forward_method(network, "answer_logits")
    embedding = network.get_input_embeddings()
    if not embedding.weight.requires_grad:
        embedding.register_forward_hook(_with_gradient)


def _reaching_the_tower(network: torch.nn.Module, logits_of: Callable) -> Callable:
    """Return `logits_of`, where the vision tower has a gradient, of zeros, also from records
    without media: all ranks must add up theirs."""

    def answer_logits(batch: dict, are_answers: torch.Tensor) -> torch.Tensor:
        logits = logits_of(batch, are_answers)
        if not torch.is_grad_enabled() or set(PIXELS_KEY.values()) & batch.keys():
            return logits
        tower = [part for part in tower_parameters(network) if part.requires_grad]
        if not tower:
            return logits
        return logits + 0 * torch.stack([part.flatten()[0] for part in tower]).sum()

    return answer_logits


def tower_parameters(network: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return those that only records with media reach: all of the model but its language model."""
    named = network.model.named_parameters()
    return [part for name, part in named if not name.startswith("language_model.")]


def add_up_gradients(
    network: torch.nn.Module,
    trained: Sequence[torch.nn.Parameter],
    ranks: Ranks,
    have_media: bool,
) -> None:
    """Leave the gradient of the batch of all ranks in each of them; `have_media` is said of this
    rank's records."""
    if not are_in(network):
        ranks.sum_gradients(trained)
    elif not ranks.largest(int(have_media)):  # shards have the gradient of the whole batch already
        # Shards of a vision tower that no record needed have gradients of zero, with which Adam
        # would still move them: in one process they have none.
        for part in tower_parameters(network):
            part.grad = None


def release(network: torch.nn.Module) -> None:
    """Give back what passes without a backward pass have gathered, which outlives them."""
    if are_in(network):
        network.reshard()


def _with_gradient(_module, _inputs, output: torch.Tensor) -> None:
    """Give the first layer's input a gradient: where the embedding is frozen, it has a backward
    pass of its own only on ranks whose records have media; all must have it."""
    if torch.is_grad_enabled():
        output.requires_grad_(True)


def mesh(device: torch.device, shards: int, replicas: int) -> DeviceMesh:
    """Return a mesh of shards within each of the replicas."""
    if replicas == 1:
        return init_device_mesh(device.type, (shards,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (replicas, shards), mesh_dim_names=("replicate", "shard"))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, put together; all ranks have to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part that is here."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor of a parameter, or of its moments, spread as the parameter is and in
    its precision."""
    tensor = tensor.to(parameter.device)
    if tensor.shape != parameter.shape:  # the count of steps
        return tensor
    tensor = tensor.to(parameter.dtype)
    if not isinstance(parameter, DTensor):
        return tensor
    placements = parameter.placements
    return distribute_tensor(tensor, parameter.device_mesh, placements, src_data_rank=None)
