"""Fits a draft to its data and its engine where nobody chose: batch and cadence of the published
recipes, intervals and lengths that the run has room for, the names that the engine has for things.
"""

from __future__ import annotations

import math
from pathlib import Path

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.fix import value_text
from cosmos_reason.estimate import steps as schedule
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case, of_sound_values
from cosmos_reason.rules.draft import PROFILE, TEMPLATE, Draft
from cosmos_reason.rules.keys import (
    MINI_BATCH,
    SAVE,
    SAVE_EPOCHS,
    VALIDATE,
    VALIDATE_EPOCHS,
    WARMUP,
    WARMUP_EPOCHS,
)
from cosmos_reason.spec import document
from cosmos_reason.spec.keys import BATCH, DROP_LAST

RECIPES = "as published recipes: "  # where such a value comes from
RECORDS = 32  # of an optimizer step, over all ranks
IN_ONE_PASS = 4
CADENCE = (SAVE, SAVE_EPOCHS, VALIDATE, VALIDATE_EPOCHS)
LEAST_STEPS = 100  # a run with fewer learns more from the template's small batches
EPOCH_STEPS = range(20, 501)  # of an epoch that is worth a save, and not too much to lose
LONGEST = 4096  # tokens of a record, of which recipes put so many through at once
RUN_LENGTH = "steps of the run:"  # where an interval comes from that was fitted to the run
NOT_ASKED_FOR = (TEMPLATE, "training of ", "parent job ")
SWITCHES = {SAVE: "train.ckpt.enable_checkpoint", VALIDATE: "validation.enable"}


# ---- as published recipes do ---------------------------------------------------------------------


def take_recipe(draft: Draft, facts: Path | None, is_new: bool) -> Case:
    """Take a batch and a cadence where nobody chose them, and return the case of what the draft is
    then.

    `is_new`: the spec begins with the template, so that nobody has seen what stands in it. What was
    taken here before is taken anew, for other data or GPUs. Raises Failure for dataset facts that
    cannot be read."""

    def case_now() -> Case:
        return of_sound_values(draft.action, draft.engine, draft.spec, facts, draft.files)

    case = case_now()
    taken = []
    if _are_free(draft, (BATCH, MINI_BATCH), is_new):
        taken += _take_batch(draft, case)
        if any(document.get(draft.spec, key) != case(key) for key in (BATCH, MINI_BATCH)):
            case = case_now()  # an epoch has other steps now
    # The cadence comes after the batch: an epoch has as many steps as the batch leaves.
    by_epoch = []
    is_free = _are_free(draft, CADENCE, is_new)
    if is_free:
        by_epoch = _take_cadence(draft, case)
    if is_new and not by_epoch:
        if draft.is_from(SAVE_EPOCHS, TEMPLATE):
            draft.put(SAVE_EPOCHS, 0, f"{TEMPLATE}, by steps")
        if draft.is_from(VALIDATE_EPOCHS, TEMPLATE):
            document.delete(draft.spec, VALIDATE_EPOCHS)
    if is_new and is_free and not by_epoch:
        every, an_epoch = document.get(draft.spec, SAVE), case.steps_per_epoch
        told = f"an epoch has {an_epoch} steps" if an_epoch else "steps of an epoch are not known"
        message = f"got 1, the template's, wrote 0: saves every {every} steps and at the last one, "
        message += f"since {told} or the run is shorter than two"
        draft.findings.append(findings.info("SPEC-CADENCE", SAVE_EPOCHS, message))
    taken += by_epoch
    if taken:
        message = f"{', '.join(taken)}: as published recipes have it, since nobody chose"
        draft.findings.append(findings.info("SPEC-USUAL", BATCH, message))
    return case


def _are_free(draft: Draft, keys: tuple[str, ...], is_new: bool) -> bool:
    if not is_new and not any(draft.is_from(key, RECIPES) for key in keys):
        return False
    there = [key for key in keys if key in draft.origins]
    return all(draft.is_from(key, TEMPLATE, RECIPES) for key in there)


def _take_batch(draft: Draft, case: Case) -> list[str]:
    # Records that are not known, cannot be dealt, or would be too few steps are left as they are.
    each = None
    if case.trained_records and not RECORDS % case.ranks and not case("train.max_num_steps"):
        each = RECORDS // case.ranks
        ranks, drop_last = case.ranks, case(DROP_LAST)
        an_epoch = schedule.steps_per_epoch(case.trained_records, each, ranks, drop_last)
    if each is None or an_epoch * case("train.epoch") < LEAST_STEPS:
        _put_back(draft, (BATCH, MINI_BATCH))
        return []
    # A pass takes one record where lengths are not known, or one is longer than those of the
    # recipes: memory must hold it. The embedded engine counts tokens instead.
    longest = max((record.total for record in case.tokens), default=LONGEST + 1)
    in_one_pass = 1
    if case.is_read(MINI_BATCH) and longest <= LONGEST:
        in_one_pass = math.gcd(each, IN_ONE_PASS)
    taken = []
    if each != case(BATCH):
        taken.append(f"{RECORDS} records a step")
    if in_one_pass > 1:
        taken.append(f"{in_one_pass} in a forward pass")
    draft.put(BATCH, each, f"{RECIPES}{RECORDS} records over {case.ranks} ranks")
    draft.put(MINI_BATCH, in_one_pass, f"{RECIPES}{in_one_pass} in a forward pass")
    return taken


def _take_cadence(draft: Draft, case: Case) -> list[str]:
    an_epoch = case.steps_per_epoch
    is_limited = case("train.max_num_steps") or case("train.epoch") < 2
    if an_epoch not in EPOCH_STEPS or is_limited or not case("train.ckpt.enable_checkpoint"):
        _put_back(draft, (SAVE_EPOCHS, VALIDATE, VALIDATE_EPOCHS))
        return []
    verbs = "saves"
    draft.put(SAVE_EPOCHS, 1, f"{RECIPES}each epoch")
    if not case("validation.enable"):
        document.delete(draft.spec, VALIDATE_EPOCHS)
    else:
        verbs = "saves and validates"
        if case.is_read(VALIDATE_EPOCHS):
            draft.put(VALIDATE_EPOCHS, 1, f"{RECIPES}each epoch")
        else:
            draft.put(VALIDATE, an_epoch, f"{RECIPES}each epoch")
            document.delete(draft.spec, VALIDATE_EPOCHS)
    return [f"{verbs} each epoch"]


def _put_back(draft: Draft, keys: tuple[str, ...]) -> None:
    """Put the template's values back where they were replaced here for other data or GPUs."""
    template = document.template(draft.action)
    for key in keys:
        if not draft.is_from(key, RECIPES):
            continue
        value = document.get(template, key)
        if value is None:
            document.delete(draft.spec, key)
        else:
            draft.put(key, value, TEMPLATE)


# ---- for the engine and the length of the run ----------------------------------------------------


def fit_to_engine(draft: Draft, steps_per_epoch: int | None, steps: int | None) -> None:
    """Say in the engine's own names what has a true equivalent there; what has none stays, for the
    rules to refuse. What nobody chose is settled first: a key that is translated has its last
    value. `steps`: those of the whole run."""
    # Some engines count steps between validations, where they count epochs between saves.
    schema = document.keys(draft.action).get(VALIDATE_EPOCHS, {})
    counts_epochs = draft.engine in schema.get("x-engines", ())
    # Validation follows epochs where saves do, unless it was said otherwise: else no save would be
    # the best.
    every = document.get(draft.spec, SAVE_EPOCHS)
    if (
        type(every) is int
        and every >= 1
        and document.get(draft.spec, "validation.enable") is True
        and draft.origins.get(VALIDATE) in (TEMPLATE, None)
        and document.get(draft.spec, VALIDATE_EPOCHS) is None
    ):
        if not bundle.is_cosmos_rl(draft.engine):
            pass  # the embedded engine validates wherever it saves
        elif counts_epochs:
            draft.put(VALIDATE_EPOCHS, every, SAVE_EPOCHS)
        elif steps_per_epoch:
            draft.put(VALIDATE, every * steps_per_epoch, f"{SAVE_EPOCHS} and dataset facts")
    _fit_length(draft)
    if steps:
        _fit_interval(draft, SAVE, VALIDATE, steps)
        _fit_interval(draft, VALIDATE, SAVE, steps)
    # A program that gets flags alone never sees other keys: they are no part of its spec, unless
    # somebody asked for one, which is warned of.
    program = bundle.skill_info()["engines"][draft.engine]["actions"].get(draft.action, {})
    for key, schema in document.keys(draft.action).items() if "flags" in program else ():
        if draft.is_from(key, *NOT_ASKED_FOR) and draft.engine not in schema["x-engines"]:
            document.delete(draft.spec, key)
    if draft.engine == "tao":
        return
    if draft.engine == "cosmos-rl":
        # The trainer reads these no longer since 0.4.7; one that the command line sets is left
        # to the rules.
        for key in sorted(document.former_keys()):
            value = document.get(draft.spec, key)
            if value is None or key in draft.named:
                continue
            document.delete(draft.spec, key)
            message = f"got {value_text(value)}, left out: cosmos-rl ignores it from 0.4.7 on"
            draft.findings.append(findings.warning("SPEC-KEY-LEFT-OUT", key, message))
    for key in (draft.params["model"], draft.params.get("base")):  # only TAO reads hf_model://
        value = key and document.get(draft.spec, key)
        if isinstance(value, str) and value.startswith(model_names.HUB):
            document.set_value(draft.spec, key, value.removeprefix(model_names.HUB))
    if draft.action == "train":
        _translate(draft, WARMUP_EPOCHS, WARMUP, _warmup(draft, steps_per_epoch))
        output = document.get(draft.spec, "results_dir")
        _translate(draft, "results_dir", "train.output_dir", output)
        every = document.get(draft.spec, VALIDATE_EPOCHS)
        if not counts_epochs and type(every) is int and steps_per_epoch:
            _translate(draft, VALIDATE_EPOCHS, VALIDATE, every * steps_per_epoch)


def _fit_length(draft: Draft) -> None:
    """Take the model's positions where the template's length is more than it has."""
    key = "policy.model_max_length"
    limit, model = document.get(draft.spec, key), document.get(draft.spec, draft.params["model"])
    if not draft.is_from(key, TEMPLATE) or not isinstance(model, str):
        return
    positions = model_names.positions(model)
    if not positions or type(limit) is not int or limit <= positions:
        return
    draft.put(key, positions, "positions of the model")
    message = f"{limit} became {positions}: the model has no more positions"
    answer = "rollout.max_response_length"
    if draft.is_from(answer, TEMPLATE) and document.get(draft.spec, answer) >= positions:
        draft.put(answer, positions // 2, "positions of the model")
        message += f"; {answer} became {positions // 2}"
    draft.findings.append(findings.info("SPEC-LENGTH-FITTED", key, message))


def _fit_interval(draft: Draft, key: str, other: str, steps: int) -> None:
    """Let a run too short for an interval that nobody asked for save and validate half-way, or
    where the other does."""
    every = _steps_between(draft, key)
    is_ours = draft.is_from(key, TEMPLATE, PROFILE, RUN_LENGTH)
    is_on = document.get(draft.spec, SWITCHES[key]) is True
    if not is_ours or not is_on or type(every) is not int or every <= steps:
        return
    beside = _steps_between(draft, other)
    # Half-way, so that a run has a checkpoint before its last.
    fitting = max(1, steps // 2)
    if type(beside) is int and 1 <= beside <= steps:
        fitting = beside
    draft.put(key, fitting, f"{RUN_LENGTH} {steps}")
    message = f"{every} became {fitting}: the run has {steps} steps"
    draft.findings.append(findings.info("SPEC-INTERVAL", key, message))


def _steps_between(draft: Draft, key: str) -> object:
    """Return the value of an interval in steps; 0 where epochs decide."""
    if document.get(draft.spec, f"{key}_in_epoch"):
        return 0
    return document.get(draft.spec, key)


def _warmup(draft: Draft, steps_per_epoch: int | None) -> int | float | None:
    """Return the warm-up epochs in steps, or as a fraction of the run unless max_num_steps ends it
    earlier."""
    warm = document.get(draft.spec, WARMUP_EPOCHS)
    epochs = document.get(draft.spec, "train.epoch", 1)
    if type(warm) not in (int, float) or type(epochs) is not int or epochs < 1:
        return None
    # A share of the run is exact where epochs decide its length; where steps do, only they are.
    if document.get(draft.spec, "train.max_num_steps") is None:
        return min(1.0, warm / epochs) if warm else 0
    return round(warm * steps_per_epoch) if steps_per_epoch else None


def _translate(draft: Draft, old: str, new: str, value) -> None:
    if value is None or document.get(draft.spec, old) is None or new in draft.named:
        return
    document.delete(draft.spec, old)
    if old in draft.named:
        draft.named[new] = draft.named.pop(old)
    draft.put(new, value, f"{old} ({draft.origins.get(old)}), translated for {draft.engine}")
    message = f"{old} is {new} = {value_text(value)} on {draft.engine}"
    draft.findings.append(findings.info("SPEC-TRANSLATED", new, message))
