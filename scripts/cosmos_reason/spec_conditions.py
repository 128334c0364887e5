"""What the rules of spec_rules.py look at and propose, where it does not fit on a line of their table.

Functions take the `Case` of rules.py: `c(key)` is a value with defaults, `c.has(key)` whether it is written. Conditions
are falsy when all is well, else true, a few words with the numbers, or those and record ids.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable

from cosmos_reason import schedule, spec, vision_tokens

DEFAULT_LENGTH = 40960
FEW_STEPS = 20
LOADER_GIB = 32  # host memory of decoded frames on one rank that is still ordinary
PIXEL_BYTES = 24576  # of one vision token in the loader: 2 frames x 32 x 32 pixels x 3 colours, as float32

BATCH, RATE, WARMUP = "train.train_batch_per_replica", "train.optm_lr", "train.optm_warmup_steps"
CKPT, GRID, LORA, POLICY = "train.ckpt.", "policy.parallelism.", "policy.lora.", "train.train_policy."
MINI, DROP, SHARD = POLICY + "mini_batch", POLICY + "dataloader_drop_last", GRID + "dp_shard_size"
WARMUP_EPOCHS = "train.optm_warmup_epochs"
LOADERS, AHEAD = POLICY + "dataloader_num_workers", POLICY + "dataloader_prefetch_factor"
ROLLOUT = "rollout.parallelism."
POLICY_SIZES = ("n_init_replicas", "tp_size", "cp_size", "pp_size", "dp_shard_size", "dp_replicate_size")
ROLLOUT_SIZES = ("n_init_replicas", "tp_size", "pp_size", "dp_shard_size")
LAYERS = "lm_head " + " ".join(  # where an adapter can be, in the Qwen3-VL and Qwen2.5-VL models
    f"model.{table}.{name}"
    for table, names in {
        "language_model.layers.0.self_attn": "q_proj k_proj v_proj o_proj",
        "language_model.layers.0.mlp": "gate_proj up_proj down_proj",
        "visual.blocks.0.attn": "qkv proj",
        "visual.blocks.0.mlp": "linear_fc1 linear_fc2 gate_proj up_proj down_proj",
        "visual.merger": "linear_fc1 linear_fc2 mlp.0 mlp.2",
        "visual.deepstack_merger_list.0": "linear_fc1 linear_fc2",
    }.items()
    for name in names.split()
)


# ---- layouts -------------------------------------------------------------------------------------------------------


def standard_layout(action: str, per_node: int, nodes: int, mode: str = "") -> dict[str, int]:
    """Shards over the GPUs of a node, replicas over nodes; GRPO gives half of the GPUs to the rollouts, or has replicas
    of up to 4 GPUs that policy and rollouts share."""
    if action == "train":
        return {SHARD: per_node, GRID + "dp_replicate_size": nodes}
    if action != "grpo":
        return {"num_gpus": per_node}
    if "colocated" in mode:
        shared = min(per_node, 4)
        replicas = {prefix + "n_init_replicas": per_node * nodes // shared for prefix in (GRID, ROLLOUT)}
        return {SHARD: shared, GRID + "dp_replicate_size": 1, ROLLOUT + "tp_size": shared} | replicas
    shard, groups = max(1, per_node // 2), nodes if per_node > 1 else max(1, nodes // 2)
    policy = {SHARD: shard, GRID + "dp_replicate_size": groups}
    return policy | {ROLLOUT + "tp_size": shard, ROLLOUT + "n_init_replicas": groups}


def usual(c) -> dict | str:
    if c.action == "grpo" and c.gpus < 2:
        return "--gpus-per-node 4"
    ones = {GRID + size: 1 for size in POLICY_SIZES}
    ones |= {ROLLOUT + size: 1 for size in ROLLOUT_SIZES if c.action == "grpo"}
    return ones | standard_layout(c.action, c.gpus_per_node, c.nodes, c("mode") or "")


def use_all(c) -> dict | int:
    """The shards that fill the GPUs beside the other sizes, or the usual layout when those do not divide them."""
    rest = c.policy_gpus // c(SHARD)
    return usual(c) if c.gpus % rest else c.gpus // rest


def as_shards(size: str) -> Callable:
    """A size that must be 1, with those that Qwen3-VL models have not, on as many GPUs as before."""

    def fix(c) -> dict:
        sizes = {GRID + name: 1 for name in {size, *(("cp_size", "pp_size") if c.qwen3 else ())}}
        return sizes | {SHARD: c(SHARD) * math.prod(map(c, sizes))}

    return fix


def uneven(c):
    """In the one mode that asks for it, replicas of the policy and of the rollout must match in number and GPUs."""
    policy, rollout = (c.layout(prefix, "n_init_replicas") for prefix in (GRID, ROLLOUT))
    sizes = c.policy_gpus // policy, c.rollout_gpus // rollout
    differs = c("mode") == "colocated" and (policy != rollout or sizes[0] != sizes[1])
    return differs and f"{policy} policy replicas of {sizes[0]} GPUs, {rollout} rollout replicas of {sizes[1]}"


def even(c) -> dict:
    replicas = c(GRID + "n_init_replicas")
    ones = {ROLLOUT + size: 1 for size in ROLLOUT_SIZES}
    return ones | {ROLLOUT + "n_init_replicas": replicas, ROLLOUT + "tp_size": c.policy_gpus // replicas}


# ---- models, steps, checkpoints ------------------------------------------------------------------------------------


def convert(c) -> str:
    return f"scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path {shlex.quote(c.model)} --output-path DIR"


def unmatched(c) -> list[str]:
    """Entries of target_modules that are part of no layer's name."""
    targets = c("policy.lora") and c(LORA + "target_modules")
    entries = targets if isinstance(targets, list) else []
    return [one for one in entries if " " in one or re.sub(r"\d+", "0", one) not in LAYERS]


def merge_needed(c):
    targets = c("policy.lora") and c(LORA + "target_modules")
    parts = [targets] if isinstance(targets, str) else targets or []
    wide = ("visual", "lm_head", "embed", "all-linear", "qkv")
    return "proj" in parts or any(word in part for part in parts for word in wide)


def bad_patterns(c, key: str) -> list[str]:
    """Entries that Python's re refuses, as the trainer would."""
    wrong = []
    for pattern in c(key) or []:
        try:
            re.compile(pattern)
        except re.error:
            wrong.append(pattern)
    return wrong


def mesh(c) -> int:
    return c(MINI) * c(SHARD) * c(GRID + "dp_replicate_size")


def zero_steps(c):
    if c.steps_per_epoch != 0:
        return False
    records = c.facts["records"]
    each = f"{records} records over {c.ranks} ranks are {math.ceil(records / c.ranks)} each"
    return f"{each}; dataloader_drop_last leaves out incomplete batches" if records else "no records"


def few_steps(c):
    """Too few to train anything, unless a limit says that so few are wanted, or an earlier run goes on."""
    wanted = c("train.max_num_steps") or c("train.resume")
    return c.steps and c.steps < FEW_STEPS and not wanted and f"{c.steps} steps in all"


def by_epochs(c) -> bool:
    return c.has(WARMUP_EPOCHS) and not c.has(WARMUP)


def warmup_share(c) -> float:
    """Part of the run; 0 when it is not known."""
    if by_epochs(c):
        return c(WARMUP_EPOCHS) / c("train.epoch")
    if isinstance(c(WARMUP), float) and c(WARMUP) <= 1:
        return c(WARMUP)
    return c(WARMUP) / c.steps if c.steps else 0.0


def warmup_words(c) -> str:
    steps = schedule.warmup_steps(c(WARMUP), c.steps)
    if isinstance(c(WARMUP), float) and c(WARMUP) <= 1:
        return f"a warm-up of {100 * c(WARMUP):g} % of {c.steps} steps is {steps} steps"
    return f"a warm-up of {steps} of {c.steps} steps"


def short_warmup(c) -> dict:
    return {WARMUP_EPOCHS: 0.03 * c("train.epoch")} if by_epochs(c) else {WARMUP: 0.03}


def never(c, epochs: str, interval: int):
    """More epochs, by the key `epochs`, than the run has, or else more steps."""
    if c(epochs):
        return c(epochs) > c("train.epoch") and f"{c('train.epoch')} epochs"
    return c.steps and interval > c.steps and f"{c.steps} steps"


def validation_data(c) -> str:
    return c("custom.val_dataset.annotation_path") or c("validation.dataset.name")


def misaligned_best(c):
    if not (c("validation.enable") and c(CKPT + "enable_checkpoint") and c.cosmos) or c.has("validation.freq_in_epoch"):
        return False
    return not c.save_interval or (c.save_interval % c("validation.freq") and f"saves every {c.save_interval} steps")


def aligned_best(c) -> dict | str:
    """Validate when saving; a change of how often is saved only where both count steps."""
    epochs = c(CKPT + "save_freq_in_epoch")
    if epochs and c.engine != "tao" and not c.save_interval:
        return "scripts/check_dataset.py ROOT --facts dataset_facts.json, then --dataset-facts dataset_facts.json"
    if not epochs:
        return {CKPT + "save_freq": c("validation.freq")}
    return {"validation.freq_in_epoch": epochs} if c.engine == "tao" else {"validation.freq": c.save_interval}


def loggers(c) -> list[str]:
    """Console and what else was asked for and has an effect."""
    others = [name for name in c("logging.logger") if name not in ("console", "tao" if c.engine == "cosmos-rl" else "")]
    return ["console", *others]


def resume_folder(c):
    value = c("train.resume")
    return c.cosmos and isinstance(value, str) and not value.rstrip("/").endswith("/policy")


def resume_broken(c):
    value = c("train.resume")
    return isinstance(value, str) and os.path.isdir(value) and not resume_folder(c) and c.resumed is None


# ---- frames, tokens, loaders ---------------------------------------------------------------------------------------


def pixel_floor(c):
    total, frames = c(c.vision + "total_pixels"), c(c.vision + "nframes") or c(c.vision + "max_frames")
    least = c(c.vision + "min_pixels") or vision_tokens.FRAME_MIN_TOKENS * c.token_side**2
    return total and frames and frames > 2 * total / (1.05 * least) and f"{frames} frames of at least {least} pixels"


def pixel_conflict(c) -> tuple[int, dict] | None:
    """The floor that max_pixels is below, and the changes that repair it; media of unknown kind count as clips."""
    names = ("min_pixels", "max_pixels", "resized_height", "resized_width")
    options = vision_tokens.VisionOptions(**{name: c(c.vision + name) for name in names})
    stills = c("type") == "image" or spec.get(c.facts or {}, "media.frames.max", 1) is None
    found = vision_tokens.pixel_conflict(options, c.token_side // 2, 2, "image" if stills else "video")
    return found and (found[0], {c.vision + name: value for name, value in found[1].items()})


def few_frames(c):
    least, most = c(c.vision + "min_frames"), c(c.vision + "max_frames")
    return least and most and least > most and f"max_frames is {most}"


def unsampled(c):
    c.read.add(c.vision)
    bad = [record for record in c.tokens if record.problem]
    return bad and (f"{len(bad)} of {len(c.tokens)} records: {bad[0].problem.message}", [record.id for record in bad])


def fewer_frames(c) -> int | None:
    """The most frames, below those asked for, that every clip has; None when a clip cannot be sampled at all."""
    counts = range((c(c.vision + "nframes") or 0) - 2, 0, -2)
    return next((n for n in counts if not any(r.problem for r in c.tokens_with({c.vision + "nframes": n}))), None)


def too_long(c, limit: str, room: str = ""):
    """Records whose tokens, with `room` for the answer, exceed the key `limit`."""
    c.read.add(c.vision)
    most = c(limit) - ((room and c(room)) or 0)
    long = [record for record in c.tokens if record.total > most]
    worst = max((record.total for record in long), default=0)
    return long and (f"{len(long)} of {len(c.tokens)} records have up to {worst} tokens", [r.id for r in long])


def longer(c, limit: str, room: str = "") -> int | dict | None:
    """A length in which every record fits, or, when that is beyond the default, a pixel budget that makes them fit."""
    extra = (room and c(room)) or 0
    needed = math.ceil((max(record.total for record in c.tokens) + extra) / 1024) * 1024
    if needed <= max(c(limit), DEFAULT_LENGTH):
        return needed
    left = c(limit) - extra - max(record.total - record.vision for record in c.tokens)
    budget = {c.vision + "total_pixels": max(1, int(0.9 * left)) * c.token_side**2}
    for changes in (budget, budget | {c.vision + "min_pixels": None}):
        records = c.tokens_with(changes)  # none where the changes make no sense
        if records and all(record.total <= c(limit) - extra for record in records):
            return changes
    return None


def batch_gib(c) -> float:
    """Decoded frames of one batch on one rank: records x vision tokens of the largest x bytes."""
    return c(BATCH) * max((record.vision for record in c.tokens), default=0) * PIXEL_BYTES / 2**30


def loader_memory(c):
    gib = c(LOADERS) * (c(AHEAD) or 2) * batch_gib(c)
    return gib > LOADER_GIB and f"up to {gib:.0f} GiB of decoded frames on each rank"


def fewer_batches(c) -> dict:
    return {LOADERS: 1, AHEAD: 1} if batch_gib(c) <= LOADER_GIB else {LOADERS: 0, AHEAD: None}


def other_data(c):
    key = "dataset.annotation_path" if c.action in ("evaluate", "quantize") else "custom.train_dataset.annotation_path"
    return c.facts and c(key) and c.facts.get("annotations") != c(key) and f"facts are of {c.facts.get('annotations')}"
