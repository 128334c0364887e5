"""Fits a draft to its engine: what it calls otherwise is translated, what has no equivalent is left to the rules."""

from __future__ import annotations

from cosmos_reason import findings as f
from cosmos_reason import models, spec, spec_values
from cosmos_reason.spec_sources import Draft

STEPS = "steps of the run:"  # where an interval comes from


def fit(draft: Draft, steps_per_epoch: int | None, steps: int | None) -> None:
    """Say in the engine's own names what has a true equivalent there; what has none stays, for the rules to refuse.
    `steps`: those of the whole run."""
    _validate_at_saves(draft, steps_per_epoch)
    if steps:
        _save_and_validate_within(draft, steps)
    if draft.engine == "tao":
        return
    for key in (draft.params["model"], draft.params.get("base")):  # only TAO reads hf_model://
        value = key and spec.get(draft.spec, key)
        if isinstance(value, str) and value.startswith(models.HUB):
            spec.set_value(draft.spec, key, value.removeprefix(models.HUB))
    if draft.action == "train":
        _translate(draft, "train.optm_warmup_epochs", "train.optm_warmup_steps", _warmup(draft, steps_per_epoch))
        _translate(draft, "results_dir", "train.output_dir", spec.get(draft.spec, "results_dir"))
        every = spec.get(draft.spec, "validation.freq_in_epoch")
        if draft.engine == "cosmos-rl" and type(every) is int and steps_per_epoch:
            _translate(draft, "validation.freq_in_epoch", "validation.freq", every * steps_per_epoch)


def _validate_at_saves(draft: Draft, steps_per_epoch: int | None) -> None:
    """Where saves follow epochs, so does validation, unless it was said otherwise: else no save would be the best."""
    every, ours = spec.get(draft.spec, "train.ckpt.save_freq_in_epoch"), draft.origins.get("validation.freq")
    if type(every) is not int or every < 1 or spec.get(draft.spec, "validation.enable") is not True:
        return
    if ours in ("template", None) and spec.get(draft.spec, "validation.freq_in_epoch") is None:
        if draft.engine == "tao":
            draft.put("validation.freq_in_epoch", every, "train.ckpt.save_freq_in_epoch")
        elif draft.engine == "cosmos-rl" and steps_per_epoch:
            draft.put("validation.freq", every * steps_per_epoch, "train.ckpt.save_freq_in_epoch and dataset facts")


def _save_and_validate_within(draft: Draft, steps: int) -> None:
    """A run too short for an interval that nobody asked for saves and validates half-way, or where the other does."""
    switches = {"train.ckpt.save_freq": "train.ckpt.enable_checkpoint", "validation.freq": "validation.enable"}
    for key, other in zip(switches, [*switches][::-1], strict=True):
        every, beside = (  # in steps
            0 if spec.get(draft.spec, f"{name}_in_epoch") else spec.get(draft.spec, name) for name in (key, other)
        )
        ours = draft.origins.get(key, "").startswith(("template", "profile", STEPS))
        if ours and spec.get(draft.spec, switches[key]) is True and type(every) is int and every > steps:
            fits = type(beside) is int and 1 <= beside <= steps
            draft.put(key, beside if fits else max(1, steps // 2), f"{STEPS} {steps}")
            message = f"{every} became {spec.get(draft.spec, key)}: the run has {steps} steps"
            draft.findings.append(f.info("SPEC-INTERVAL", key, message))


def _warmup(draft: Draft, steps_per_epoch: int | None) -> int | float | None:
    """Warm-up epochs in steps, or as a fraction of the run unless max_num_steps ends it earlier."""
    warm, epochs = spec.get(draft.spec, "train.optm_warmup_epochs"), spec.get(draft.spec, "train.epoch", 1)
    if type(warm) not in (int, float) or type(epochs) is not int or epochs < 1:
        return None
    if spec.get(draft.spec, "train.max_num_steps") is None:
        return min(1.0, warm / epochs) if warm else 0
    return steps_per_epoch and round(warm * steps_per_epoch)


def _translate(draft: Draft, old: str, new: str, value) -> None:
    if value is None or spec.get(draft.spec, old) is None or new in draft.named:
        return
    spec.delete(draft.spec, old)
    if old in draft.named:
        draft.named[new] = draft.named.pop(old)
    draft.put(new, value, f"{old} ({draft.origins.get(old)}), translated for {draft.engine}")
    message = f"{old} is {new} = {spec_values.text(value)} on {draft.engine}"
    draft.findings.append(f.info("SPEC-TRANSLATED", new, message))
