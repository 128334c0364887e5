"""Keys that several rules read together, and the sizes that make up a layout."""

from __future__ import annotations

from cosmos_reason.spec import actions

GRID, ROLLOUT = "policy.parallelism.", "rollout.parallelism."
SHARD = GRID + "dp_shard_size"
POLICY_SIZES = (
    "n_init_replicas",
    "tp_size",
    "cp_size",
    "pp_size",
    "dp_shard_size",
    "dp_replicate_size",
)
ROLLOUT_SIZES = ("n_init_replicas", "tp_size", "pp_size", "dp_shard_size")

WARMUP, WARMUP_EPOCHS = "train.optm_warmup_steps", "train.optm_warmup_epochs"
# Intervals in steps, and in epochs, which win where both are written.
SAVE, VALIDATE = "train.ckpt.save_freq", "validation.freq"
SAVE_EPOCHS, VALIDATE_EPOCHS = f"{SAVE}_in_epoch", f"{VALIDATE}_in_epoch"
MINI_BATCH = "train.train_policy.mini_batch"
LOADERS = "train.train_policy.dataloader_num_workers"
PREFETCH = "train.train_policy.dataloader_prefetch_factor"

# What the properties of a case read.
POLICY_GPUS = tuple(GRID + size for size in POLICY_SIZES)
ROLLOUT_GPUS = tuple(ROLLOUT + size for size in ROLLOUT_SIZES)
REPLICAS = GRID + "n_init_replicas"
RANKS_OF_REPLICA = (SHARD, GRID + "dp_replicate_size")  # the sizes that the embedded engine has


def exclusive(action: str) -> dict[str, str]:
    """Return each key beside which another has no meaning, with that one: qwen-vl-utils takes one
    of nframes and fps, cosmos-rl one count of the warm-up."""
    vision = actions.places(action)["vision"]
    pairs = [(f"{vision}.nframes", f"{vision}.fps"), (WARMUP, WARMUP_EPOCHS)]
    return dict(pairs) | {second: first for first, second in pairs}
