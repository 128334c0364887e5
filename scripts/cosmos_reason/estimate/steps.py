"""How many optimizer steps a run takes, and the learning rate at each of them. Pure arithmetic, no
torch."""

from __future__ import annotations

import math


def trained_records(records: int, reasoned: int, mode: str) -> int:
    """Return how many samples are trained of so many records, `reasoned` of them with reasoning
    beside the answer: `hybrid` (custom.train_dataset.response_mode) trains each record twice."""
    is_doubled = mode == "hybrid" and reasoned > 0
    return 2 * records if is_doubled else records


def steps_per_epoch(records: int, batch: int, ranks: int = 1, drop_last: bool = True) -> int:
    """Return optimizer steps of one epoch: `records` are dealt to `ranks` data-parallel ranks (the
    last ones padded by repeating, as DistributedSampler does), each rank takes `batch` records per
    step."""
    per_rank = math.ceil(records / ranks)
    return per_rank // batch if drop_last else math.ceil(per_rank / batch)


def ranks(replicas: int, ranks_of_replica: int, is_grpo: bool = False) -> int:
    """Return how many take a batch of their own in a training: data-parallel ranks, but in GRPO,
    and where cosmos-rl trains several replicas, whole replicas, which deal it to their ranks."""
    return replicas if is_grpo or replicas > 1 else ranks_of_replica


def total_steps(records: int, train: dict, ranks: int = 1) -> int:
    """Return optimizer steps of the whole run described by the spec's `train` table."""
    policy = train["train_policy"]
    one = steps_per_epoch(
        records, train["train_batch_per_replica"], ranks, policy["dataloader_drop_last"]
    )
    steps = one * train["epoch"]
    limit = train["max_num_steps"]
    return min(steps, limit) if limit else steps


def warmup_steps(value: int | float, total: int) -> int:
    """Return the steps of `train.optm_warmup_steps`: an integer is steps, a float up to 1.0 is a
    fraction of the run (cosmos-rl)."""
    if isinstance(value, float) and value <= 1.0:
        return int(value * total)
    return int(value)


def learning_rate_factor(step: int, total: int, train: dict) -> float:
    """Return the multiplier of the learning rate at the zero-based optimizer `step`, exactly as
    cosmos-rl 0.4.7 has it: from `optm_warmup_start_factor` at the first warm-up step to 1 at the
    last one, a constant stretch of at least one step, then decay towards `optm_min_lr_factor`.

    The decay takes the last `optm_decay_ratio` of the run, or everything after the warm-up when
    that is None, and would arrive at its end one step after the run.
    """
    warmup = min(warmup_steps(train["optm_warmup_steps"], total), total)
    if step < warmup:
        if warmup == 1:
            return 1.0
        start = train["optm_warmup_start_factor"]
        return start + (1.0 - start) * step / (warmup - 1)
    ratio = train["optm_decay_ratio"]
    decay = total - warmup
    if ratio is not None:
        decay = min(round(total * ratio), decay)
    passed = step - (total - decay)
    if passed <= 0:
        return 1.0
    floor = train["optm_min_lr_factor"]
    return floor + (1.0 - floor) * _decayed(train["optm_decay_type"], passed / decay)


def _decayed(kind: str | None, progress: float) -> float:
    """Return what is left of 1 at `progress` of the decay."""
    if kind == "linear":
        return 1.0 - progress
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if kind == "sqrt":
        return 1.0 - math.sqrt(progress)
    return 1.0
