"""Rules about the data of a run: validation sets, loaders, loggers, and what is trained of each
record."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from cosmos_reason.base.findings import ERROR, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules import steps
from cosmos_reason.rules.case import LATER, TRAINING, Case, Rule
from cosmos_reason.rules.keys import (
    LOADERS,
    PREFETCH,
    SAVE,
    SAVE_EPOCHS,
    VALIDATE,
    VALIDATE_EPOCHS,
)
from cosmos_reason.spec.keys import DROP_LAST, OF_GUIDES, RESPONSE_MODE, TRAIN_ANNOTATIONS

NAME_OF_GUIDES = "train.train_policy.dataset.name"
ANSWERED = "custom.transformers_engine.validate_answers"
BEST_BY = "custom.transformers_engine.best_by"
SPLIT = "train.train_policy.dataset.test_size"
VALIDATION_DATA = ("custom.val_dataset.annotation_path", "validation.dataset.name")


def has_validation_data(case: Case) -> bool:
    return any(case(key) for key in VALIDATION_DATA)


def validation_without_data(case: Case):
    if not case("validation.enable") or case(VALIDATION_DATA[0]) or case.has_own_data:
        return False
    if case(TRAIN_ANNOTATIONS):
        return True  # our dataset script reads no other, and splits nothing
    is_split = case.cosmos and case(SPLIT)  # as was asked for
    return not case(VALIDATION_DATA[1]) and not is_split


def is_best_by_answers(case: Case) -> bool:
    return case(BEST_BY) == "val_accuracy"


def validate_or_ask_nothing(case: Case) -> Fix:
    if has_validation_data(case):
        return Fix(changes={"validation.enable": True})
    if is_best_by_answers(case):  # which only answers can tell
        return Fix(flags={"--eval-root": "DIR"})
    return Fix(changes={ANSWERED: 0})


def validate_at_saves(case: Case) -> Fix:
    """Return the fix that validates when saving; it changes how often is saved only where both
    count steps."""
    epochs = case(SAVE_EPOCHS)
    if not epochs:
        return Fix(changes={SAVE: case(VALIDATE)})
    if case.engine == "tao":
        return Fix(changes={VALIDATE_EPOCHS: epochs})
    return Fix(changes={VALIDATE: case.save_interval} if case.save_interval else {})


def saves_between_validations(case: Case):
    both = case("validation.enable") and case("train.ckpt.enable_checkpoint")
    if not both or not case.cosmos or case.has(VALIDATE_EPOCHS):
        return False
    if case.action == "train" and steps.first_validation_beyond_run(case):
        return False  # SPEC-VALIDATION-NEVER says it, and saving as late would save nothing
    if not case.save_interval:
        return "steps of an epoch are not known without --dataset-facts of check_dataset.py"
    if case.save_interval % case(VALIDATE):
        return f"saves every {case.save_interval} steps"
    return None


def loggers_with_effect(case: Case) -> list[str]:
    """Return console and what else was asked for and has an effect."""
    without = {"console"} if case.engine == "tao" else {"console", "tao"}
    return ["console", *(name for name in case("logging.logger") if name not in without)]


def saved_on_disk(theirs) -> str | None:
    """Return the folder that hf_sft.py loads, where it is one that the datasets library saved."""
    path = theirs.get("path") if isinstance(theirs, dict) else None
    is_saved = isinstance(path, str) and os.path.isfile(os.path.join(path, "state.json"))
    return path if is_saved else None


def without_training_data(case: Case):
    """Return words where a dataset is named that has to be built first."""
    if case(TRAIN_ANNOTATIONS) or case.has_own_data:
        return None
    saved = saved_on_disk(case(OF_GUIDES))
    if not saved:
        return True
    output = f"{Path(saved).resolve().name}-data"
    command = f"build_dataset.py {shlex.quote(saved)} -o {shlex.quote(output)}"
    return f"{command} makes {output}/train, for --train-root, of the dataset that is named"


def data_of_guides(case: Case) -> Fix:
    """Name the data where this project reads them, when NVIDIA's guides named them in their own
    table."""
    theirs = case(OF_GUIDES)
    name = case(NAME_OF_GUIDES)
    if saved_on_disk(theirs):
        return Fix()
    annotations = theirs.get("annotation_path") if isinstance(theirs, dict) else None
    if not annotations or not isinstance(annotations, str):
        is_named = name and not case.has(TRAIN_ANNOTATIONS)
        if case.cosmos and (theirs or is_named):
            return Fix()  # the script that reads them is named when it is launched
        return Fix(flags={"--train-root": "DIR"})
    changes = {TRAIN_ANNOTATIONS: annotations}
    if isinstance(theirs.get("media_path"), str):
        changes["custom.train_dataset.media_path"] = theirs["media_path"]
    if theirs.get("system_prompt") and isinstance(theirs["system_prompt"], str):
        changes["train.train_policy.system_prompt"] = theirs["system_prompt"]
    return Fix(changes=changes)


RULES = (
    Rule(
        "SPEC-VALIDATION-DATA", ERROR, TRAINING, "custom.val_dataset.annotation_path",
        "validation is on without data; "
        "a trainer would split off a tenth of the training data by itself",
        validation_without_data,
        # Where the trainer's own reader would split a share off, the fix says which.
        fix=lambda case: Fix(changes={SPLIT: 0.1})
        if case.cosmos and case(NAME_OF_GUIDES) and not case(TRAIN_ANNOTATIONS)
        else Fix(flags={"--eval-root": "DIR"}),
    ),
    Rule(
        "SPEC-VALIDATION-OFF", WARNING, TRAINING, "validation.enable",
        "validation data is given but not used",
        lambda case: has_validation_data(case) and not case("validation.enable"),
        fix=True,
    ),
    Rule(
        "SPEC-VALIDATION-LOSS", WARNING, "train", DROP_LAST,
        "the validation loss leaves out the last batch and is too low",
        lambda case: case.cosmos and case("validation.enable") and case(DROP_LAST)
        and case("validation.batch_size") != 1,
        fix=False,
    ),
    Rule(
        "SPEC-ANSWERS-OFF", WARNING, "train", ANSWERED,
        "held-out questions are answered only where validation.enable is true",
        lambda case: case(ANSWERED) and not case("validation.enable"),
        fix=validate_or_ask_nothing,
    ),
    Rule(
        "SPEC-BEST-ANSWERS", ERROR, "train", BEST_BY,
        f"val_accuracy is known only where {ANSWERED} asks for answers",
        lambda case: is_best_by_answers(case) and not case(ANSWERED),
        fix=Fix(changes={ANSWERED: 64}),
    ),
    # cosmos-rl ranks a save only when a validation ran at that very step.
    Rule(
        "SPEC-BEST", WARNING, TRAINING, VALIDATE,
        "best is found only when every save (save_freq, save_freq_in_epoch) falls on a validation",
        saves_between_validations, fix=validate_at_saves,
    ),
    # Its key is a hash of train.train_policy alone, and its entries are numbered: another dataset
    # under the same settings is answered with records of the first.
    Rule(
        "SPEC-CACHE", WARNING, TRAINING, "train.train_policy.enable_dataset_cache",
        "the cache does not notice changed annotations, frames, pixels or model",
        lambda case: case("train.train_policy.enable_dataset_cache"), fix=False,
    ),
    Rule(
        "SPEC-PREFETCH", WARNING, TRAINING, PREFETCH, "needs dataloader_num_workers above 0",
        lambda case: case(PREFETCH) and not case(LOADERS),
        fix=Fix(changes={PREFETCH: None}),
    ),
    Rule(
        "SPEC-LOGGER", WARNING, TRAINING, "logging.logger",
        "console reports the steps; tao means nothing outside NVIDIA's container",
        lambda case: set(case("logging.logger")) != set(loggers_with_effect(case))
        if case.cosmos else "tao" in case("logging.logger"),
        fix=loggers_with_effect,
    ),
    *(
        Rule(
            "SPEC-KEY-IDLE", WARNING, TRAINING, key,
            "has no effect while logging.logger does not name wandb",
            lambda case, key=key: case(key) and "wandb" not in case("logging.logger"),
            fix=lambda case: Fix(changes={"logging.logger": [*case("logging.logger"), "wandb"]}),
        )
        for key in ("logging.wandb_run_name", "logging.wandb_run_id")
    ),
    Rule(
        "SPEC-DATA-TRAIN", LATER, TRAINING, TRAIN_ANNOTATIONS,
        "must be known before a launch, unless a dataset script of your own reads other data "
        "(launch_job.py --entry-script FILE)",
        without_training_data, fix=data_of_guides,
    ),
    Rule(
        "SPEC-REASONING", WARNING, "train", RESPONSE_MODE,
        "reasoning beside the answers is not trained; think trains it, hybrid both forms",
        lambda case: (reasoned := (case.facts or {}).get("reasoning_beside"))
        and case(RESPONSE_MODE) == "answer" and not case.has_other_facts
        and f"{reasoned} of {case.facts['records']} records have it",
        # cosmos-rl does not apply the key: there the answers of the data have to hold it.
        fix=lambda case: "think"
        if case.engine != "cosmos-rl"
        else Fix(command=shlex.join([
            "scripts/build_dataset.py", case(TRAIN_ANNOTATIONS) or "DIR", "-o", "data-thinking",
        ])),
    ),
    Rule(
        "SPEC-REASONING-NONE", WARNING, "train", RESPONSE_MODE,
        "no record has reasoning beside its answer, so that the answers alone are trained",
        lambda case: case(RESPONSE_MODE) != "answer" and not case.has_other_facts
        and (case.facts or {}).get("reasoning_beside") == 0,
        fix="answer",
    ),
)  # fmt: skip
