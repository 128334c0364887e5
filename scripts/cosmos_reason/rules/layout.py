"""Rules about GPUs and how a run is laid out over them."""

from __future__ import annotations

import math
from collections.abc import Callable

from cosmos_reason.base.families import DEFAULT
from cosmos_reason.base.findings import ERROR, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.estimate.gpu_memory import geometry
from cosmos_reason.rules.case import TRAINING, Case, Rule
from cosmos_reason.rules.keys import GRID, POLICY_GPUS, POLICY_SIZES, ROLLOUT, ROLLOUT_GPUS, SHARD
from cosmos_reason.spec.keys import BATCH, SHARED

STAGES, TENSOR, REPLICATED = (GRID + size for size in ("pp_size", "tp_size", "dp_replicate_size"))
PRODUCT = " x ".join(POLICY_SIZES)
LARGE = 20e9  # parameters of a model whose states no node of 8 GPUs holds well
# Of the GPU's memory, for rollouts beside a policy; on GPUs of their own the template's 0.7.
SHARED_MEMORY = 0.3


def needs_all_gpus(model: object, lora: object) -> bool:
    """Return whether a full fine-tuning has to be sharded over the GPUs of all nodes: the states of
    one node's share of the model (16 bytes a parameter) would leave too little of 80 GB."""
    widths = geometry(model) if isinstance(model, str) and not lora else None
    return widths is not None and widths.parameters > LARGE


def standard_layout(
    action: str, per_node: int, nodes: int, mode: str = "", replicates: bool = True
) -> dict[str, int]:
    """Return shards over the GPUs of a node and replicas over nodes, or shards over all GPUs; GRPO
    gives half of the GPUs to the rollouts, or has replicas of up to 4 GPUs that policy and rollouts
    share. Replicas of its policy are whole ones: its trainer refuses dp_replicate_size."""
    if action == "train" and not replicates:
        return {SHARD: per_node * nodes, GRID + "dp_replicate_size": 1}
    if action == "train":
        return {SHARD: per_node, GRID + "dp_replicate_size": nodes}
    if action != "grpo":
        return {"num_gpus": per_node}
    if mode == SHARED:
        shared = min(per_node, 4)
        replicas = per_node * nodes // shared
        return {
            SHARD: shared,
            GRID + "dp_replicate_size": 1,
            ROLLOUT + "tp_size": shared,
            GRID + "n_init_replicas": replicas,
            ROLLOUT + "n_init_replicas": replicas,
        }
    half = max(1, per_node // 2)
    groups = nodes if per_node > 1 else max(1, nodes // 2)
    return {
        SHARD: half,
        GRID + "dp_replicate_size": 1,
        GRID + "n_init_replicas": groups,
        ROLLOUT + "tp_size": half,
        ROLLOUT + "n_init_replicas": groups,
    }


def layout_for_gpus(case: Case) -> Fix:
    """Return the standard layout, with 1 for every other size."""
    # One GPU cannot be divided between policy and rollouts: no layout is a fix.
    if case.action == "grpo" and case("mode") == "disaggregated" and case.gpus < 2:
        return Fix()
    keys = [*POLICY_GPUS, *ROLLOUT_GPUS] if case.action == "grpo" else POLICY_GPUS
    replicates = not case.cosmos or not needs_all_gpus(case.model, case("policy.lora"))
    standard = standard_layout(
        case.action, case.gpus_per_node, case.nodes, case("mode") or "", replicates
    )
    return Fix(changes=dict.fromkeys(keys, 1) | standard)


def shards_for_gpus(case: Case) -> Fix | int:
    """Return the shards that fill the GPUs beside the other sizes, or the standard layout when
    those do not divide them."""
    others = case.policy_gpus // case(SHARD)
    if case.gpus % others:
        return layout_for_gpus(case)
    return case.gpus // others


def moved_to_shards(size: str) -> Callable:
    """Return a fix: 1 for a size, and for those that wrapped models have not, on as many GPUs as
    before."""

    def fix(case: Case) -> Fix:
        names = {size}
        if case.is_wrapped:
            names |= {"cp_size", "pp_size"}
        keys = [GRID + name for name in POLICY_SIZES if name in names]
        shards = case(SHARD) * math.prod(case(key) for key in keys)
        return Fix(changes=dict.fromkeys(keys, 1) | {SHARD: shards})

    return fix


def moved(case: Case, table: str, first: str, second: str) -> Fix:
    """Return the fix that gives the ranks of one size to another of the same table."""
    sizes = case(table + first) * case(table + second)
    return Fix(changes={table + first: 1, table + second: sizes})


RULES = (
    # ParallelDims of cosmos-rl: the product of the sizes has to be the world size.
    Rule(
        "SPEC-GPUS", ERROR, "train", SHARD, f"{PRODUCT} must be the number of GPUs",
        lambda case: case.gpus and case.policy_gpus != case.gpus
        and f"layout of {case.policy_gpus}, {case.gpus} GPUs",
        fix=shards_for_gpus,
    ),
    Rule(
        "SPEC-GPUS-GRPO", ERROR, "grpo", SHARD,
        f"{PRODUCT}, and those of rollout.parallelism unless colocated, "
        "must not exceed the number of GPUs",
        lambda case: case.gpus and case.needed_gpus > case.gpus
        and f"{case.needed_gpus} needed, {case.gpus} GPUs",
        fix=layout_for_gpus,
    ),
    Rule(
        "SPEC-GPUS-IDLE", WARNING, "grpo", SHARD, "some GPUs stay idle",
        lambda case: case.gpus and case.needed_gpus < case.gpus
        and f"{case.needed_gpus} of {case.gpus} GPUs in use",
    ),
    Rule(
        "SPEC-COLOCATED", ERROR, "grpo", "mode",
        "colocated hands the policy's own module to the rollouts, which no backend of cosmos-rl "
        "0.4.7 takes (set_underlying_model is not implemented): colocated_separated shares the "
        "GPUs",
        lambda case: case("mode") == "colocated", fix=SHARED,
    ),
    Rule(
        "SPEC-ROLLOUT-SHARD", ERROR, "grpo", ROLLOUT + "dp_shard_size",
        "rollout engines have no shards: tp_size x pp_size must be their GPUs",
        lambda case: case(ROLLOUT + "dp_shard_size") > 1,
        fix=lambda case: moved(case, ROLLOUT, "dp_shard_size", "tp_size"),
    ),
    # In float32 weights, gradients and both moments of Adam are 16 bytes a parameter.
    Rule(
        "SPEC-GPUS-FEW", WARNING, "train", SHARD,
        "full fine-tuning of the 7B and 8B models needs at least 2 GPUs, better 4 of 80 GB",
        lambda case: case.cosmos and case.gpus == 1 and not case("policy.lora")
        and not case.is_small,
        fix=Fix(flags={"--tuning": "lora"}),
    ),
    Rule(
        "SPEC-GPUS-FEW-GRPO", WARNING, "grpo", SHARD,
        "published runs of disaggregated have at least 4 GPUs, 2 for the policy and 2 for the "
        "rollouts; with one each only a miniature was seen to run; colocated_separated shares "
        "one GPU",
        lambda case: case("mode") == "disaggregated" and case.gpus and case.gpus < 4,
    ),
    # cosmos-rl's wrapper around a model of transformers asserts cp_size 1, pp_size 1 and no
    # compile, whose default there is true.
    Rule(
        "SPEC-QWEN3-COMPILE", ERROR, TRAINING, "train.compile",
        f"cosmos-rl runs {DEFAULT.title} as a plain Hugging Face model",
        lambda case: case("train.compile") and case.is_wrapped, fix=False,
    ),
    Rule(
        "SPEC-QWEN3-CONTEXT", ERROR, TRAINING, GRID + "cp_size",
        f"context parallelism does not exist for {DEFAULT.title} models",
        lambda case: case("policy.parallelism.cp_size") > 1 and case.is_wrapped,
        fix=moved_to_shards("cp_size"),
    ),
    Rule(
        "SPEC-QWEN3-PIPELINE", ERROR, TRAINING, GRID + "pp_size",
        f"pipeline stages do not exist for {DEFAULT.title} models",
        lambda case: case(STAGES) > 1 and case.is_wrapped,
        fix=moved_to_shards("pp_size"),
    ),
    Rule(
        "SPEC-REPLICATE-GRPO", ERROR, "grpo", GRID + "dp_replicate_size",
        "cosmos-rl ends a grpo run with more than 1; n_init_replicas gives as many",
        lambda case: case(REPLICATED) > 1,
        fix=lambda case: moved(case, GRID, "dp_replicate_size", "n_init_replicas"),
    ),
    # The trainer's words for it are "DDP has not supported > 1D parallelism".
    Rule(
        "SPEC-REPLICATE-1D", ERROR, "train", SHARD,
        "replicas with tp_size above 1 need sharding too",
        lambda case: case(SHARD) <= 1 and case(REPLICATED) > 1 and case(TENSOR) > 1
        and case.is_wrapped,
        fix=moved_to_shards("tp_size"),
    ),
    # ParallelDims forbids the two together, as it does ep_size with tp_size below.
    Rule(
        "SPEC-PIPELINE-REPLICATE", ERROR, "train", GRID + "dp_replicate_size",
        "excludes pp_size above 1",
        lambda case: case(STAGES) > 1 and case(REPLICATED) > 1,
        fix=moved_to_shards("dp_replicate_size"),
    ),
    # The trainer checks this and the offload below only where there are stages.
    Rule(
        "SPEC-PIPELINE-MICRO", ERROR, TRAINING, GRID + "pp_micro_batch_size",
        "must divide train_batch_per_replica",
        lambda case: case(STAGES) > 1
        and case(BATCH) % case("policy.parallelism.pp_micro_batch_size"),
        fix=1,
    ),
    Rule(
        "SPEC-PIPELINE-OFFLOAD", ERROR, TRAINING, "train.fsdp_offload",
        "offload and pp_size above 1 exclude each other",
        lambda case: case(STAGES) > 1 and case("train.fsdp_offload"),
        fix=False,
    ),
    Rule(
        "SPEC-PIPELINE-LORA", ERROR, TRAINING, GRID + "pp_size",
        "LoRA models with pipeline stages cannot be exported",
        lambda case: case(STAGES) > 1 and case("policy.lora"),
        fix=moved_to_shards("pp_size"),
    ),
    Rule(
        "SPEC-EXPERT-TENSOR", ERROR, TRAINING, GRID + "ep_size",
        "ep_size and tp_size exclude each other",
        lambda case: case("policy.parallelism.ep_size") > 1 and case(TENSOR) > 1,
        fix=1,
    ),
    Rule(
        "SPEC-ASYNC-TP", ERROR, TRAINING, "train.async_tp_enabled", "needs train.compile",
        lambda case: case("train.async_tp_enabled") and not case("train.compile"),
        fix=False,
    ),
)  # fmt: skip
