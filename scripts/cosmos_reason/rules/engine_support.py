"""What an engine cannot do of what a spec asks for."""

from __future__ import annotations

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules import models
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import actions, document, names, validation
from cosmos_reason.spec import values as spec_values

CLIP_TIMES = ("video_start", "video_end")  # of qwen-vl-utils, seconds


def engine_findings(action: str, engine: str) -> list[f.Finding]:
    """Return an error when the engine does not have the action."""
    engines = bundle.skill_info()["engines"]
    able = [name for name, facts in engines.items() if action in facts["actions"]]
    if engine in able:
        return []
    message = f"got {action} on engine {engine}, expected an engine that has it: {', '.join(able)}"
    return [f.error("SPEC-ENGINE-ACTION", "--engine", message, Fix(flags={"--engine": able[0]}))]


def trainers_own_elsewhere(case: Case, written: dict) -> list[f.Finding]:
    """Return an error about what only cosmos-rl or NVIDIA's images read, for another engine."""
    theirs = validation.trainers_own(case.action, written)
    if not theirs:
        return []
    readers = "cosmos-rl" if case.action in actions.TRAINING else "tao"
    message = f"got {', '.join(theirs)}, which engine {case.engine} does not apply: only {readers}"
    fix = Fix(changes=dict.fromkeys(theirs))
    return [f.error("SPEC-ENGINE-KEY", theirs[0], message, fix)]


def unapplied_findings(case: Case) -> list[f.Finding]:
    """Return a finding for each key that asks the engine for something it does not do.

    A value asks for nothing when it is the template's, or, for a key the template leaves out, the
    trainer's default.
    """
    found = []
    schemas = document.keys(case.action)
    template = document.template(case.action)
    for key, value in document.items(case.action, case.written):
        schema = schemas.get(key)
        if schema is None or case.engine in schema["x-engines"]:
            continue
        ours = document.get(template, key, document.MISSING)
        # No value of it counts steps: the template's own would be refused as well.
        if key == "validation.freq_in_epoch" and case("validation.enable"):
            nothing = document.MISSING
            fix = Fix(changes={key: None})
        elif ours is document.MISSING:
            nothing = schema.get("default", document.MISSING)
            fix = Fix(changes={key: None})
        else:
            nothing = ours
            fix = Fix(changes={key: ours})
        if value == nothing:
            continue
        able = schema.get("x-instead") or f"only {', '.join(schema['x-engines'])}"
        got = spec_values.shown(value)
        message = f"got {got}, which engine {case.engine} does not apply: {able}"
        severity = f.ERROR if schema.get("x-ignoring") == "error" else f.WARNING
        found.append(f.Finding("SPEC-ENGINE-KEY", severity, key, message, fix))
    return found


def unread_vision(case: Case) -> list[f.Finding]:
    """Return errors about keys of frames that nothing reads, for a training whose frames are
    sampled here: the embedded engine, and cosmos-rl with our dataset script."""
    if case.action not in actions.TRAINING or case.engine == "tao" or case.has_own_data:
        return []
    if models.has_script_of_guides(case.action, case.engine, case):
        return []
    table = case(case.vision.removesuffix(".")) or {}
    unread = table.keys() - document.custom_tables(case.action)["vision"]["properties"].keys()
    found = []
    # The part of a clip that qwen-vl-utils would cut out: all of it would be trained on.
    times = [name for name in CLIP_TIMES if name in unread]
    if times:
        message = "got a part of each clip, which only TAO's hook and scripts of your own cut out; "
        message += "here the whole clip is trained on. build_dataset.py cuts by columns of times"
        found.append(f.error("SPEC-ENGINE-KEY", f"{case.vision}{times[0]}", message))
    for name in sorted(unread.difference(CLIP_TIMES)):
        if names.near_in_custom(case.action, f"{case.vision}{name}"):
            continue  # a misspelling, which is told as one
        message = f"engine {case.engine} does not read it: frames are sampled here, by PyAV"
        fix = Fix(changes={f"{case.vision}{name}": None})
        found.append(f.error("SPEC-ENGINE-KEY", f"{case.vision}{name}", message, fix))
    return found


def unread_keys(case: Case) -> set[str]:
    """Return the keys of the action's schema that the engine does not apply."""
    return {key for key in document.keys(case.action) if not case.is_read(key)}
