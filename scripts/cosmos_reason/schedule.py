"""How many optimizer steps a run takes, and the learning rate at each of them. Pure arithmetic, no torch."""

from __future__ import annotations

import math


def steps_per_epoch(records: int, batch: int, ranks: int = 1, drop_last: bool = True) -> int:
    """Optimizer steps of one epoch: `records` are dealt to `ranks` data-parallel ranks (the last ones padded by
    repeating, as DistributedSampler does), each rank takes `batch` records per step."""
    per_rank = math.ceil(records / ranks)
    return per_rank // batch if drop_last else math.ceil(per_rank / batch)


def total_steps(records: int, train: dict, ranks: int = 1) -> int:
    """Optimizer steps of the whole run described by the spec's `train` table."""
    policy = train["train_policy"]
    one = steps_per_epoch(records, train["train_batch_per_replica"], ranks, policy["dataloader_drop_last"])
    steps = one * train["epoch"]
    limit = train["max_num_steps"]
    return min(steps, limit) if limit else steps


def warmup_steps(value: int | float, total: int) -> int:
    """`train.optm_warmup_steps`: an integer is steps, a float up to 1.0 is a fraction of the run (cosmos-rl)."""
    if isinstance(value, float) and value <= 1.0:
        return int(value * total)
    return int(value)


def learning_rate_factor(step: int, total: int, train: dict) -> float:
    """Multiplier of the learning rate at the zero-based optimizer `step`: linear warm-up from
    `optm_warmup_start_factor`, a constant stretch, then decay to `optm_min_lr_factor`.

    The decay takes the last `optm_decay_ratio` of the run, or everything after the warm-up when that is None
    (the warm-up / stable / decay schedule of torchtitan, which cosmos-rl follows)."""
    warmup = warmup_steps(train["optm_warmup_steps"], total)
    if step < warmup:
        start = train["optm_warmup_start_factor"]
        return start + (1.0 - start) * (step + 1) / warmup
    kind, ratio, floor = train["optm_decay_type"], train["optm_decay_ratio"], train["optm_min_lr_factor"]
    if kind in (None, "none"):
        return 1.0
    decay = total - warmup if ratio is None else min(round(total * ratio), total - warmup)
    first = total - decay
    if step < first or decay == 0:
        return 1.0
    progress = (step - first + 1) / (decay + 1)
    curve = {
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        "sqrt": 1.0 - math.sqrt(progress),
    }[kind]
    return floor + (1.0 - floor) * curve
