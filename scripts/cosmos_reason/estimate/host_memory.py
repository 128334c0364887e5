"""How much memory of its host a training takes on one node, as a sum of named terms.

The embedded engine reads weights from their files, mapped: a whole copy of the model is made where
they are stored in another precision than they are wanted in, by each process at a time when nothing
else is there yet. An export gathers the model on the host of the first process; the state beside it
is written tensor by tensor. The constants are rough: memory that processes have besides (measured
on a CPU without tensors: 0.3 GiB; CUDA and NCCL take more).
"""

from __future__ import annotations

from dataclasses import dataclass

from cosmos_reason.estimate import gpu_memory
from cosmos_reason.estimate.gpu_memory import ACTIVATION, ADAPTER, GIB, Plan

PROCESS_GIB = 2.0  # of one that trains, with CUDA
READER_GIB = 0.3  # of one that reads records, beside the records


@dataclass(frozen=True)
class Node:
    """What runs on one node: processes that train, the readers of each, and GiB for all of them
    together: `ready` (records that wait), `frames` and `features` (kept). `is_copied`: weights are
    stored in a precision of which a copy has to be made. `saves`: states and models;
    `in_background`: states, while training goes on."""

    processes: int
    readers: int = 0
    ready: float = 0.0
    frames: float = 0.0
    features: float = 0.0
    is_copied: bool = False
    saves: bool = True
    in_background: bool = False


def terms(plan: Plan, node: Node) -> dict[str, float]:
    """Return GiB by name, those that show, at the moment that takes most."""
    processes = node.processes * (PROCESS_GIB + node.readers * READER_GIB)
    states = gpu_memory.host_states(plan) * node.processes
    running = {
        "records read ahead": node.ready,
        "frames kept": node.frames,
        "features kept": node.features,
        "offloaded states": states,
        "reference model": referred(plan, node) / GIB,
    }
    if node.in_background:
        running["a copy of the state to be saved"] = copied(plan, node) / GIB
    if not plan.sharded_engine and node.saves:
        running["the model while it is exported"] = exported(plan) / GIB
    most = running
    if not plan.sharded_engine:
        loading = {"weights while they are loaded": loaded(plan, node) / GIB}
        most = max(running, loading, key=lambda found: sum(found.values()))
    found = {"processes": processes, **most}
    return {name: gib for name, size in found.items() if (gib := round(size, 1))}


def loaded(plan: Plan, node: Node) -> float:
    """Return bytes on the host while the processes load: shards wait there, in bfloat16, until they
    are on their GPU."""
    weights = plan.geometry.parameters
    if node.is_copied:
        precision = ACTIVATION if plan.lora_rank else plan.master
        return node.processes * weights * precision
    return node.processes * weights * ACTIVATION / plan.shards if plan.shards > 1 else 0.0


def copied(plan: Plan, node: Node) -> float:
    """Return bytes that cosmos-rl copies to the host before its `save_mode = async` writes them:
    the processes of one replica copy their shards."""
    return gpu_memory.saved_state(plan) * min(node.processes, plan.shards) / plan.shards


def referred(plan: Plan, node: Node) -> float:
    """Return bytes of the weights before training, which cosmos-rl's GRPO exchanges with those of
    the GPU in each step."""
    weights = plan.geometry.parameters * plan.master * plan.reference
    return weights * min(node.processes, plan.shards) / plan.shards


def exported(plan: Plan) -> float:
    """Return bytes that the first process gathers of the model or the adapters that it exports."""
    if plan.lora_rank:
        return plan.adapter_parameters * ADAPTER
    return plan.trained * ACTIVATION
