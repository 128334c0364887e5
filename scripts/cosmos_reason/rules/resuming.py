"""Whether a training can continue from the checkpoint that it is to continue from."""

from __future__ import annotations

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case
from cosmos_reason.rules.keys import POLICY_GPUS
from cosmos_reason.spec import document
from cosmos_reason.spec import values as spec_values

LAYERS = "policy.lora.target_modules"


def resumed_otherwise(case: Case) -> list[f.Finding]:
    """Errors about a checkpoint of another engine, or of a run that was laid out otherwise."""
    by_embedded_engine = (case.resumed / "trainer_state.json").is_file()
    if by_embedded_engine == case.cosmos:
        other = "the embedded engine" if by_embedded_engine else "cosmos-rl"
        message = f"got a folder saved by {other}, expected one that engine {case.engine} saved"
        fix = Fix(changes={"train.resume": False})
        if by_embedded_engine:
            fix = Fix(flags={"--engine": "transformers"})
        return [f.error("SPEC-RESUME-OTHER", "train.resume", message, fix)]
    saved = model_names.read_table(case.resumed / "cosmos_config")
    return differences(case.full, saved, case.cosmos)


def differences(now: dict, saved: dict, cosmos: bool) -> list[f.Finding]:
    """Return an error for adapters, and on cosmos-rl for sizes of the layout, that are not those of
    the run to resume."""
    found = []
    ours, theirs = _tuning(now), _tuning(saved)
    if ours != theirs:
        message = f"got {ours}, but the run to resume has {theirs}"
        found.append(
            f.error("SPEC-RESUME-OTHER", "policy.lora", message, Fix(flags={"--tuning": theirs}))
        )
    keys = []
    if ours == theirs == "lora":
        keys.append("policy.lora.r")
        found += _other_layers(now, saved)
    if cosmos:
        keys += POLICY_GPUS
    for key in keys:
        before, value = document.get(saved, key), document.get(now, key)
        if type(before) is int and before > 0 and before != value:
            message = f"got {spec_values.shown(value)}, but the run to resume has {before}"
            fix = Fix(changes={key: before})
            found.append(f.error("SPEC-RESUME-OTHER", key, message, fix))
    return found


def _other_layers(now: dict, saved: dict) -> list[f.Finding]:
    """Return an error for adapters on other layers: the state has none for them."""
    value, before = document.get(now, LAYERS), document.get(saved, LAYERS)
    if not before or _as_set(value) == _as_set(before):
        return []
    got = f"got {spec_values.shown(value)}"
    message = f"{got}, but the run to resume has {spec_values.shown(before)}"
    return [f.error("SPEC-RESUME-OTHER", LAYERS, message, Fix(changes={LAYERS: before}))]


def _as_set(layers: list[str] | str | None) -> set[str]:
    return {layers} if isinstance(layers, str) else set(layers or ())


def _tuning(table: dict) -> str:
    return "lora" if document.get(table, "policy.lora") else "full"
