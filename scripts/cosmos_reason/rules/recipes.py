"""What published recipes do, in a train spec where nobody chose otherwise and the data allow it:
their batch, their forward passes, saves and validations by epoch."""

from __future__ import annotations

import math
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.estimate import steps as schedule
from cosmos_reason.rules.case import Case, of_sound_values
from cosmos_reason.rules.draft import Draft
from cosmos_reason.rules.engine_switch import SAVE, SAVE_EPOCHS, VALIDATE, VALIDATE_EPOCHS
from cosmos_reason.rules.keys import MINI_BATCH
from cosmos_reason.spec import document
from cosmos_reason.spec.keys import BATCH, DROP_LAST

ORIGIN = "as published recipes: "  # where such a value comes from
RECORDS = 32  # of an optimizer step, over all ranks
IN_ONE_PASS = 4
CADENCE = (SAVE, SAVE_EPOCHS, VALIDATE, VALIDATE_EPOCHS)
LEAST_STEPS = 100  # a run with fewer learns more from the template's small batches
EPOCH_STEPS = range(20, 501)  # of an epoch that is worth a save, and not too much to lose
LONGEST = 4096  # tokens of a record, of which recipes put so many through at once


def take(draft: Draft, facts: Path | None, is_new: bool) -> Case:
    """Take a batch and a cadence where nobody chose them, and return the case of what the draft is
    then.

    `is_new`: the spec begins with the template, so that nobody has seen what stands in it. What was
    taken here before is taken anew, for other data or GPUs. Raises Failure for dataset facts that
    cannot be read."""
    case = _case(draft, facts)
    taken = []
    if _are_free(draft, (BATCH, MINI_BATCH), is_new):
        taken += _take_batch(draft, case)
        if any(document.get(draft.spec, key) != case(key) for key in (BATCH, MINI_BATCH)):
            case = _case(draft, facts)  # an epoch has other steps now
    by_epoch = []
    is_free = _are_free(draft, CADENCE, is_new)
    if is_free:
        by_epoch = _take_cadence(draft, case)
    if is_new and not by_epoch:
        _by_steps(draft)
    if is_new and is_free and not by_epoch:
        every, an_epoch = document.get(draft.spec, SAVE), case.steps_per_epoch
        told = f"an epoch has {an_epoch} steps" if an_epoch else "steps of an epoch are not known"
        message = f"got 1, the template's, wrote 0: saves every {every} steps, since {told} "
        message += "or the run is shorter than two"
        draft.findings.append(findings.info("SPEC-CADENCE", SAVE_EPOCHS, message))
    taken += by_epoch
    if taken:
        message = f"{', '.join(taken)}: as published recipes have it, since nobody chose"
        draft.findings.append(findings.info("SPEC-USUAL", BATCH, message))
    return case


def _are_free(draft: Draft, keys: tuple[str, ...], is_new: bool) -> bool:
    origins = [draft.origins[key] for key in keys if key in draft.origins]
    if not is_new and not any(origin.startswith(ORIGIN) for origin in origins):
        return False
    return all(origin.startswith(("template", ORIGIN)) for origin in origins)


def _case(draft: Draft, facts: Path | None) -> Case:
    return of_sound_values(draft.action, draft.engine, draft.spec, facts, draft.files)


def _take_batch(draft: Draft, case: Case) -> list[str]:
    each = _records_of_a_rank(case)
    if each is None:
        _put_back(draft, (BATCH, MINI_BATCH))
        return []
    in_one_pass = _records_of_a_pass(case, each)
    taken = []
    if each != case(BATCH):
        taken.append(f"{RECORDS} records a step")
    if in_one_pass > 1:
        taken.append(f"{in_one_pass} in a forward pass")
    draft.put(BATCH, each, f"{ORIGIN}{RECORDS} records over {case.ranks} ranks")
    draft.put(MINI_BATCH, in_one_pass, f"{ORIGIN}{in_one_pass} in a forward pass")
    return taken


def _records_of_a_rank(case: Case) -> int | None:
    """Return the records of a rank; None where the records are not known, cannot be dealt, or would
    be too few steps."""
    if case.trained_records is None or RECORDS % case.ranks or case("train.max_num_steps"):
        return None
    each = RECORDS // case.ranks
    an_epoch = schedule.steps_per_epoch(case.trained_records, each, case.ranks, case(DROP_LAST))
    return each if an_epoch * case("train.epoch") >= LEAST_STEPS else None


def _records_of_a_pass(case: Case, each: int) -> int:
    """Return the records of a pass: one where lengths are not known or a record is longer than
    those of the recipes: memory must hold the pass. The embedded engine counts tokens instead."""
    longest = max((record.total for record in case.tokens), default=None)
    is_read = case.engine in document.keys(case.action)[MINI_BATCH]["x-engines"]
    if not is_read or longest is None or longest > LONGEST:
        return 1
    return math.gcd(each, IN_ONE_PASS)


def _take_cadence(draft: Draft, case: Case) -> list[str]:
    an_epoch = case.steps_per_epoch
    is_limited = case("train.max_num_steps") or case("train.epoch") < 2
    if an_epoch not in EPOCH_STEPS or is_limited or not case("train.ckpt.enable_checkpoint"):
        _put_back(draft, (SAVE_EPOCHS, VALIDATE, VALIDATE_EPOCHS))
        return []
    verbs = "saves"
    draft.put(SAVE_EPOCHS, 1, f"{ORIGIN}each epoch")
    if not case("validation.enable"):
        document.delete(draft.spec, VALIDATE_EPOCHS)
    else:
        verbs = "saves and validates"
        if draft.engine == "cosmos-rl":  # which counts steps only
            draft.put(VALIDATE, an_epoch, f"{ORIGIN}each epoch")
            document.delete(draft.spec, VALIDATE_EPOCHS)
        else:
            draft.put(VALIDATE_EPOCHS, 1, f"{ORIGIN}each epoch")
    return [f"{verbs} each epoch"]


def _by_steps(draft: Draft) -> None:
    """Save and validate by steps, where the template's epochs are all that speaks against it."""
    if draft.origins.get(SAVE_EPOCHS, "").startswith("template"):
        draft.put(SAVE_EPOCHS, 0, "template, by steps")
    if draft.origins.get(VALIDATE_EPOCHS, "").startswith("template"):
        document.delete(draft.spec, VALIDATE_EPOCHS)


def _put_back(draft: Draft, keys: tuple[str, ...]) -> None:
    """Put the template's values back where they were replaced here for other data or GPUs."""
    template = document.template(draft.action)
    for key in keys:
        if not draft.origins.get(key, "").startswith(ORIGIN):
            continue
        value = document.get(template, key)
        if value is None:
            document.delete(draft.spec, key)
        else:
            draft.put(key, value, "template")
