"""Fits a draft to its engine: what it calls otherwise is translated, what has no equivalent is left
to the rules."""

from __future__ import annotations

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.fix import value_text
from cosmos_reason.remote import model_names
from cosmos_reason.rules.draft import Draft
from cosmos_reason.rules.keys import WARMUP, WARMUP_EPOCHS
from cosmos_reason.spec import document

ORIGIN = "steps of the run:"  # where an interval comes from that was fitted to the run
NOT_ASKED_FOR = ("template", "training of ", "parent job ")
SAVE, VALIDATE = "train.ckpt.save_freq", "validation.freq"
SAVE_EPOCHS, VALIDATE_EPOCHS = "train.ckpt.save_freq_in_epoch", "validation.freq_in_epoch"
SWITCHES = {SAVE: "train.ckpt.enable_checkpoint", VALIDATE: "validation.enable"}


def fit(draft: Draft, steps_per_epoch: int | None, steps: int | None) -> None:
    """Say in the engine's own names what has a true equivalent there; what has none stays, for the
    rules to refuse. `steps`: those of the whole run."""
    _validate_at_saves(draft, steps_per_epoch)
    _fit_length(draft)
    if steps:
        _fit_interval(draft, SAVE, VALIDATE, steps)
        _fit_interval(draft, VALIDATE, SAVE, steps)
    _leave_out_unread(draft)
    if draft.engine == "tao":
        return
    if draft.engine == "cosmos-rl":
        _leave_out_former(draft)
    for key in (draft.params["model"], draft.params.get("base")):  # only TAO reads hf_model://
        value = key and document.get(draft.spec, key)
        if isinstance(value, str) and value.startswith(model_names.HUB):
            document.set_value(draft.spec, key, value.removeprefix(model_names.HUB))
    if draft.action == "train":
        _translate(draft, WARMUP_EPOCHS, WARMUP, _warmup(draft, steps_per_epoch))
        output = document.get(draft.spec, "results_dir")
        _translate(draft, "results_dir", "train.output_dir", output)
        every = document.get(draft.spec, VALIDATE_EPOCHS)
        if draft.engine == "cosmos-rl" and type(every) is int and steps_per_epoch:
            _translate(draft, VALIDATE_EPOCHS, VALIDATE, every * steps_per_epoch)


def _fit_length(draft: Draft) -> None:
    """Take the model's positions where the template's length is more than it has."""
    key = "policy.model_max_length"
    limit, model = document.get(draft.spec, key), document.get(draft.spec, draft.params["model"])
    if not draft.origins.get(key, "").startswith("template") or not isinstance(model, str):
        return
    positions = model_names.positions(model)
    if not positions or type(limit) is not int or limit <= positions:
        return
    draft.put(key, positions, "positions of the model")
    message = f"{limit} became {positions}: the model has no more positions"
    answer = "rollout.max_response_length"
    is_ours = draft.origins.get(answer, "").startswith("template")
    if is_ours and document.get(draft.spec, answer) >= positions:
        draft.put(answer, positions // 2, "positions of the model")
        message += f"; {answer} became {positions // 2}"
    draft.findings.append(findings.info("SPEC-LENGTH-FITTED", key, message))


def _leave_out_unread(draft: Draft) -> None:
    """Leave out keys that a program which gets flags alone never sees: they are no part of the
    spec, unless somebody asked for one, which is warned of."""
    program = bundle.skill_info()["engines"][draft.engine]["actions"].get(draft.action, {})
    if "flags" not in program:
        return
    for key, schema in document.keys(draft.action).items():
        is_ours = draft.origins.get(key, "").startswith(NOT_ASKED_FOR)
        if is_ours and draft.engine not in schema["x-engines"]:
            document.delete(draft.spec, key)


def _leave_out_former(draft: Draft) -> None:
    """Leave out a key that the trainer read before 0.4.7; one that the command line sets is left to
    the rules."""
    for key in sorted(document.former_keys()):
        value = document.get(draft.spec, key)
        if value is None or key in draft.named:
            continue
        document.delete(draft.spec, key)
        message = f"got {value_text(value)}, left out: cosmos-rl ignores it from 0.4.7 on"
        draft.findings.append(findings.warning("SPEC-KEY-LEFT-OUT", key, message))


def _validate_at_saves(draft: Draft, steps_per_epoch: int | None) -> None:
    """Let validation follow epochs where saves do, unless it was said otherwise: else no save would
    be the best."""
    every = document.get(draft.spec, SAVE_EPOCHS)
    if type(every) is not int or every < 1:
        return
    if document.get(draft.spec, "validation.enable") is not True:
        return
    is_chosen = draft.origins.get(VALIDATE) not in ("template", None)
    if is_chosen or document.get(draft.spec, VALIDATE_EPOCHS) is not None:
        return
    if draft.engine == "tao":
        draft.put(VALIDATE_EPOCHS, every, SAVE_EPOCHS)
    elif draft.engine == "cosmos-rl" and steps_per_epoch:
        draft.put(VALIDATE, every * steps_per_epoch, f"{SAVE_EPOCHS} and dataset facts")


def _fit_interval(draft: Draft, key: str, other: str, steps: int) -> None:
    """Let a run too short for an interval that nobody asked for save and validate half-way, or
    where the other does."""
    every = _steps_between(draft, key)
    is_ours = draft.origins.get(key, "").startswith(("template", "profile", ORIGIN))
    is_on = document.get(draft.spec, SWITCHES[key]) is True
    if not is_ours or not is_on or type(every) is not int or every <= steps:
        return
    beside = _steps_between(draft, other)
    fitting = max(1, steps // 2)
    if type(beside) is int and 1 <= beside <= steps:
        fitting = beside
    draft.put(key, fitting, f"{ORIGIN} {steps}")
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
