"""Rules about batches, steps, saves and validations within a run, warm-up and the learning rate."""

from __future__ import annotations

import math

from cosmos_reason.base.findings import ERROR, INFO, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.estimate import steps as schedule
from cosmos_reason.rules.case import TRAINING, Case, Rule
from cosmos_reason.rules.keys import (
    GRID,
    MINI_BATCH,
    REPLICAS,
    SAVE,
    SAVE_EPOCHS,
    SHARD,
    VALIDATE,
    VALIDATE_EPOCHS,
    WARMUP,
    WARMUP_EPOCHS,
)
from cosmos_reason.spec.keys import BATCH, DROP_LAST, RATE

FEW_STEPS = 20
LOST_SHARE = 0.1  # of the records, in each epoch, that is worth a word
LEAST_BATCH = 8  # records of a step that is offered; gradients of fewer are noise


def largest_multiple(batch: int, of: int) -> int:
    """Return the largest multiple that is not above the batch, and at least one."""
    return max(1, batch // of) * of


def mini_batches_of_all_ranks(case: Case) -> int:
    return case(MINI_BATCH) * case(SHARD) * case(GRID + "dp_replicate_size")


def ranks_left_over(case: Case, batch: int) -> str:
    """Return words where a replica, of several, cannot deal a batch to its ranks evenly."""
    if not case.cosmos or case(REPLICAS) == 1 or batch % case.ranks_of_replica == 0:
        return ""
    return f"a replica has {case.ranks_of_replica} ranks"


def no_step(case: Case):
    if case.steps_per_epoch != 0:
        return None
    records = case.records
    if not records:
        return "no records"
    share = math.ceil(records / case.ranks)
    return (
        f"{records} records over {case.ranks} ranks are {share} each; "
        "dataloader_drop_last leaves out incomplete batches"
    )


def few_steps(case: Case):
    # A limit says that so few are wanted; what goes on from an earlier run had more before.
    if case("train.max_num_steps") or case("train.resume"):
        return None
    if not case.steps or case.steps >= FEW_STEPS:
        return None
    batch = batch_of_enough_steps(case)
    ways = f"train.epoch={enough_epochs(case)}"
    if batch:
        ways = f"--global-batch {batch * case.ranks}, or {ways}, is enough"
        return f"{case.steps} steps in all, of {case.global_batch} records each; {ways}"
    return f"{case.steps} steps in all; {ways} is enough"


def epochs_end_before_limit(case: Case):
    limit, an_epoch = case("train.max_num_steps"), case.steps_per_epoch
    if not limit or not an_epoch or an_epoch * case("train.epoch") >= limit:
        return None
    return f"train.epoch={case('train.epoch')} is {an_epoch * case('train.epoch')} steps"


def left_out_of_epochs(case: Case):
    """Return how many records each epoch leaves out, where they are a tenth of all or more."""
    if not case(DROP_LAST) or not case.steps_per_epoch:
        return None
    seen = case.steps_per_epoch * case.global_batch
    lost = case.trained_records - seen
    return lost >= LOST_SHARE * case.trained_records and f"{lost} of {case.trained_records}"


def enough_epochs(case: Case) -> int:
    return math.ceil(FEW_STEPS / case.steps_per_epoch)


def batch_of_enough_steps(case: Case) -> int | None:
    """Return a batch of a rank that deals an epoch evenly to enough steps, None where that would be
    less than LEAST_BATCH records of all ranks."""
    # Steps of an epoch that make enough of the whole run.
    steps = math.ceil(FEW_STEPS / case("train.epoch"))
    batch = math.ceil(case.trained_records / case.ranks) // steps
    if ranks_left_over(case, batch):
        batch = largest_multiple(batch, case.ranks_of_replica)
    is_offered = batch * case.ranks >= LEAST_BATCH and batch < case(BATCH)
    return batch if is_offered else None


def more_steps(case: Case) -> Fix:
    """Return a smaller batch before more epochs: the same records are seen as often."""
    batch = batch_of_enough_steps(case)
    if batch is None:
        return Fix(changes={"train.epoch": enough_epochs(case)})
    in_one_pass = math.gcd(batch, case(MINI_BATCH))
    changes = {BATCH: batch}
    if in_one_pass != case(MINI_BATCH):
        changes[MINI_BATCH] = in_one_pass
    return Fix(changes=changes)


def warms_up_by_epochs(case: Case) -> bool:
    """Return whether epochs of warm-up count, which engine tao alone reads."""
    return case.engine == "tao" and case.has(WARMUP_EPOCHS) and not case.has(WARMUP)


def warmup_is_a_share(case: Case) -> bool:
    return isinstance(case(WARMUP), float) and case(WARMUP) <= 1


def length_of_warmup(case: Case):
    # It is told when the spec is built; at each launch it would be noise.
    if case.launch or not case.steps or warms_up_by_epochs(case):
        return None
    steps = schedule.warmup_steps(case(WARMUP), case.steps)
    if warmup_is_a_share(case):
        percent = 100 * case(WARMUP)
        return f"a warm-up of {percent:g} % of {case.steps} steps is {steps} steps"
    return f"a warm-up of {steps} of {case.steps} steps"


def interval_beyond_run(case: Case, steps_key: str, epochs_key: str) -> str | None:
    """Return an interval of more epochs than the run has, or of more steps."""
    steps, run_epochs = case(steps_key), case("train.epoch")
    epochs = case(epochs_key) if case.is_read(epochs_key) else 0
    if epochs and epochs > run_epochs:
        return f"{epochs} epochs by {epochs_key}, of {run_epochs}"
    by_epochs = f"{epochs} epochs by {epochs_key}, of " if epochs else ""
    if epochs:
        steps = epochs * (case.steps_per_epoch or 0)
    if case.steps and steps > case.steps:
        return f"{by_epochs}{case.steps} steps"
    return None


def save_beyond_run(case: Case) -> str | None:
    return interval_beyond_run(case, SAVE, SAVE_EPOCHS)


def save_half_way(case: Case) -> Fix:
    if not case.steps:
        return Fix(changes={SAVE_EPOCHS: 1})
    return Fix(changes={SAVE_EPOCHS: 0, SAVE: max(1, case.steps // 2)})


def validate_within_run(case: Case) -> Fix | int:
    """Return the fix that validates half-way, or each epoch where the steps are not known."""
    if not case.steps:
        return Fix(changes={VALIDATE_EPOCHS: 1})
    half = max(1, case.steps // 2)
    if case(VALIDATE_EPOCHS):
        return Fix(changes={VALIDATE_EPOCHS: None, VALIDATE: half})
    return half


def first_validation_beyond_run(case: Case):
    if not case("validation.enable"):
        return None
    # All trainers validate at the end of a run, the embedded engine also where it saves.
    saves = case("train.ckpt.enable_checkpoint") and not save_beyond_run(case)
    if saves and not case.cosmos:
        return None
    return interval_beyond_run(case, VALIDATE, VALIDATE_EPOCHS)


def warmup_share(case: Case) -> float:
    """Return the part of the run that warms up; 0 when it is not known."""
    if warms_up_by_epochs(case):
        return case(WARMUP_EPOCHS) / case("train.epoch")
    if warmup_is_a_share(case):
        return case(WARMUP)
    return case(WARMUP) / case.steps if case.steps else 0.0


def short_warmup(case: Case) -> Fix:
    if warms_up_by_epochs(case):
        return Fix(changes={WARMUP_EPOCHS: 0.03 * case("train.epoch")})
    return Fix(changes={WARMUP: 0.03})


def long_warmup(case: Case):
    share = warmup_share(case)
    by_epochs = f"optm_warmup_epochs {case(WARMUP_EPOCHS):g}, " if warms_up_by_epochs(case) else ""
    return 0.2 < share < 1 and f"{by_epochs}{share:.0%}"


# Adam moves a weight by about the rate, and what is less than 2**-9 of a bfloat16 is rounded away.
# Weights of such models lie around 0.02.
RATE_OF_BFLOAT16 = 0.02 * 2**-9


RULES = (
    # In supervised training the batch is that of a data-parallel rank, in GRPO that of the mesh.
    Rule(
        "SPEC-BATCH-MULTIPLE", ERROR, "train", BATCH, "must be a multiple of mini_batch",
        lambda case: case(BATCH) % case(MINI_BATCH) and f"mini_batch is {case(MINI_BATCH)}",
        fix=lambda case: largest_multiple(case(BATCH), case(MINI_BATCH)),
    ),
    Rule(
        "SPEC-BATCH-MESH", ERROR, "grpo", BATCH,
        "must be a multiple of dp_shard_size x dp_replicate_size x mini_batch",
        lambda case: case(BATCH) % mini_batches_of_all_ranks(case)
        and f"that is {mini_batches_of_all_ranks(case)}",
        fix=lambda case: largest_multiple(case(BATCH), mini_batches_of_all_ranks(case)),
    ),
    # Each replica takes the whole batch and splits it, so that a rest would have no rank.
    Rule(
        "SPEC-BATCH-REPLICAS", ERROR, "train", BATCH,
        "with n_init_replicas above 1 each replica deals its batch to its ranks evenly",
        lambda case: ranks_left_over(case, case(BATCH)),
        fix=lambda case: largest_multiple(
            case(BATCH), math.lcm(case(MINI_BATCH), case.ranks_of_replica)
        ),
    ),
    Rule(
        "SPEC-BATCH-REPLICAS", ERROR, "train", "validation.batch_size",
        "with n_init_replicas above 1 each replica deals its batch to its ranks evenly",
        lambda case: case("validation.enable") and case("validation.batch_size")
        and ranks_left_over(case, case("validation.batch_size")),
        fix=lambda case: case.ranks_of_replica,
    ),
    # With dataloader_drop_last, the trainer's default, a batch that is not full is left out: such a
    # run ends well and has trained nothing.
    Rule(
        "SPEC-STEPS-ZERO", ERROR, "train", BATCH, "no step would run",
        no_step,
        fix=lambda case: Fix(changes={DROP_LAST: False}) if case.records else None,
    ),
    Rule(
        "SPEC-STEPS-FEW", WARNING, "train", "train.epoch",
        f"below {FEW_STEPS} a run hardly trains; take a smaller batch, more epochs or data",
        few_steps, fix=more_steps,
    ),
    Rule(
        "SPEC-STEPS-LIMIT", WARNING, "train", "train.max_num_steps",
        "the epochs end before, and the run with them",
        epochs_end_before_limit,
        fix=lambda case: Fix(changes={
            "train.epoch": math.ceil(case("train.max_num_steps") / case.steps_per_epoch)
        }),
    ),
    Rule(
        "SPEC-RECORDS-DROPPED", WARNING, "train", DROP_LAST,
        "so many records of each epoch are not trained on, in the batch that is not full",
        left_out_of_epochs, fix=False,
    ),
    Rule(
        "SPEC-STEPS", INFO, "train", WARMUP, "how long the learning rate rises",
        length_of_warmup,
    ),
    Rule(
        "SPEC-SAVE-NEVER", WARNING, "train", SAVE,
        "the run ends before the first save: nothing is saved but its end",
        lambda case: case("train.ckpt.enable_checkpoint") and save_beyond_run(case),
        fix=save_half_way,
    ),
    Rule(
        "SPEC-VALIDATION-NEVER", WARNING, "train", VALIDATE,
        "the run ends before the first validation: nothing is validated but its end",
        first_validation_beyond_run, fix=validate_within_run,
    ),
    Rule(
        "SPEC-WARMUP-TWICE", ERROR, "train", WARMUP_EPOCHS,
        "optm_warmup_steps is written too; keep one",
        # On engines other than tao the epochs themselves are refused, once their steps are written.
        lambda case: case.has(WARMUP_EPOCHS) and case.has(WARMUP),
        fix=Fix(changes={WARMUP: None}),
    ),
    # 1.0 is the whole run and 2.0 two steps: whoever writes 2.5 meant neither.
    Rule(
        "SPEC-WARMUP-FLOAT", ERROR, TRAINING, WARMUP,
        "a float counts as a fraction up to 1.0; steps are whole numbers",
        lambda case: isinstance(case(WARMUP), float) and case(WARMUP) > 1,
        fix=lambda case: 0.03
        if case.steps and math.ceil(case(WARMUP)) >= case.steps
        else math.ceil(case(WARMUP)),
    ),
    Rule(
        "SPEC-WARMUP-ALL", ERROR, TRAINING, WARMUP,
        "warm-up fills the run: the learning rate never peaks",
        lambda case: warmup_share(case) >= 1, fix=short_warmup,
    ),
    Rule(
        "SPEC-WARMUP-LONG", WARNING, TRAINING, WARMUP, "warm-up takes more than a fifth of the run",
        long_warmup, fix=short_warmup,
    ),
    Rule(
        "SPEC-DECAY", ERROR, TRAINING, "train.optm_decay_ratio", "needs an optm_decay_type",
        lambda case: case("train.optm_decay_type") in (None, "none")
        and case("train.optm_decay_ratio") is not None,
        fix=Fix(changes={"train.optm_decay_type": "cosine"}),
    ),
    Rule(
        "SPEC-RATE-HIGH", WARNING, TRAINING, RATE,
        "published recipes stay under 1e-4 (1e-3 with LoRA); expect instability",
        lambda case: case(RATE) >= (1e-3 if case("policy.lora") else 1e-4),
        fix=lambda case: 1e-4 if case("policy.lora") else 1e-5,
    ),
    Rule(
        "SPEC-RATE-LOW", WARNING, "train", RATE,
        "published recipes stay above 1e-7 (1e-5 with LoRA); hardly anything would be learned",
        lambda case: case(RATE) < (1e-5 if case("policy.lora") else 1e-7),
        fix=lambda case: 1e-4 if case("policy.lora") else 1e-6,
    ),
    Rule(
        "SPEC-BETAS", WARNING, TRAINING, "train.optm_betas",
        "the first, of the gradients, is above the second, of their squares: they look swapped",
        lambda case: case("train.optm_betas")[0] > case("train.optm_betas")[1],
        fix=lambda case: sorted(case("train.optm_betas")),
    ),
    Rule(
        "SPEC-RATE-BFLOAT16", WARNING, TRAINING, RATE,
        "weights above 512 times the rate, which are most, hardly move: their steps are rounded "
        "away",
        lambda case: case("train.master_dtype") == "bfloat16" and not case("policy.lora")
        and case(RATE) < RATE_OF_BFLOAT16 and f"{case(RATE):g} for bfloat16 weights",
        fix=Fix(changes={"train.master_dtype": "float32"}),
    ),
    Rule(
        "SPEC-SEED", WARNING, TRAINING, "train.seed",
        "cosmos-rl takes 42 when train.deterministic is true",
        lambda case: case.cosmos and case("train.deterministic")
        and case("train.seed") not in (None, 42),
        fix=42,
    ),
)  # fmt: skip
