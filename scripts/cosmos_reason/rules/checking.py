"""Checks a whole spec: its schema, its engine, its paths, the run that it continues, all rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules import models, placeholders, resuming, shared_data
from cosmos_reason.rules.case import ASKED, JUDGED, LATER, Case, sound
from cosmos_reason.rules.keys import VALIDATE_EPOCHS
from cosmos_reason.rules.spec_rules import RULES
from cosmos_reason.spec import actions, document, legal, names, validation
from cosmos_reason.spec import values as spec_values

CLIP_TIMES = ("video_start", "video_end")  # of qwen-vl-utils, seconds


def check(action: str, engine: str, written: dict, *args, **known) -> list[f.Finding]:
    """Return every finding about a spec: what `examined` says."""
    _, found = examined(action, engine, written, *args, **known)
    return found


def examined(
    action: str,
    engine: str,
    written: dict,
    facts: Path | None = None,
    gpus_per_node: int | None = None,
    nodes: int = 1,
    launch: bool = False,
    has_own_data: bool = False,
    drafted: Mapping[str, list] | None = None,
) -> tuple[Case | None, list[f.Finding]]:
    """Return the case of a spec, its invalid values replaced, and every finding about it: the
    schema's, the engine's, and of all rules whose keys are valid. There is no case of a spec of
    another action.

    `facts` is the path of dataset_facts.json; `launch` makes errors of what may still be missing in
    a draft; `drafted` holds the records of annotation files that are yet to be written.
    """
    unfilled = placeholders.keys(action, written, engine)
    found = validation.validate(action, written)
    # A word that stands for a value is told as that (SPEC-PLACEHOLDER), not as a wrong value, too.
    refused_below = {("SPEC-VALUE", key) for key in unfilled}
    found = [one for one in found if (one.id, one.where) not in refused_below]
    # What no rule may look at: what is refused, what a renaming will bring, which is told and not
    # yet written, and of one rate for each part of the model none is the one to look at.
    invalid = [finding.where for finding in found if finding.severity == f.ERROR]
    invalid += validation.brought_by_renamings(found)
    own = validation.trainers_own(action, written)
    invalid += [key for key in legal.PER_PART if key in own]
    invalid += unfilled
    found = validation.by_cause(action, written, found)
    if unfilled:
        found.append(placeholders.check(action, written, unfilled))
    # Every rule would have something to say of another action's spec, and nothing of use.
    of_another = [finding for finding in found if finding.id == "SPEC-ACTION"]
    if of_another:
        return None, of_another
    spec = sound(action, written, invalid)
    case = Case(
        action, engine, spec, facts, gpus_per_node, nodes, launch, has_own_data, drafted or {}
    )
    if own and not case.cosmos:
        readers = "cosmos-rl" if action in actions.TRAINING else "tao"
        message = f"got {', '.join(own)}, which engine {engine} does not apply: only {readers}"
        fix = Fix(changes=dict.fromkeys(own))
        found.append(f.error("SPEC-ENGINE-KEY", own[0], message, fix))
    engines = bundle.skill_info()["engines"]
    able = [name for name, has in engines.items() if action in has["actions"]]
    unread = set()
    if engine not in able:  # it reads no key at all
        message = f"got {action} on engine {engine}, expected an engine that has it: "
        message += ", ".join(able)
        fix = Fix(flags={"--engine": able[0]})
        found.append(f.error("SPEC-ENGINE-ACTION", "--engine", message, fix))
    else:
        found += unapplied_findings(case)
        found += unread_vision(case)
        unread = {key for key in document.keys(case.action) if not case.is_read(key)}
    found += placeholders.unknown_uris(case)
    found += shared_data.of_spec(case)
    if action in actions.TRAINING and case.resumed:
        found += resuming.resumed_otherwise(case)
    found += broken_rules(case, invalid, unread)
    return case, found + idle_findings(case, {finding.where for finding in found})


def broken_rules(case: Case, invalid: list[str], unread: set[str]) -> list[f.Finding]:
    """Return the findings of the action's rules, but for rules that look at an invalid key, and for
    those about a key that the engine does not read, which cannot harm."""
    found = []
    for rule in RULES:
        if case.action not in rule.actions.split():
            continue
        key = rule.key.format_map(case.params)
        if key in unread:
            continue
        # Condition and fix note here what they look at: no rule has to list its keys.
        case.keys_read = {key}
        detail = rule.broken(case)
        if not detail:
            continue
        # Words with the numbers, or those and record ids.
        words, record_ids = detail if isinstance(detail, tuple) else (detail, [])
        value = case(key)
        if key.startswith("--") and isinstance(words, str):  # no key: a spec has no value for it
            got = words
        else:
            got = "no value"
            if value not in (None, ""):
                shown = spec_values.shown(value)
                got = shown if case.has(key) else f"no value (then {shown})"
            if isinstance(words, str):
                got += f" ({words})"
        severity = rule.severity
        if severity == LATER:
            severity = f.ERROR if case.launch else f.WARNING
        elif severity == ASKED:
            severity = f.WARNING if case.action in JUDGED else f.INFO
        fix = rule.fix(case) if callable(rule.fix) else rule.fix
        if fix is None:
            fix = Fix()
        if not isinstance(fix, Fix):
            fix = Fix(changes={key: fix})
        # A change that writes what is there already would be pasted for nothing. 20 is none to
        # 20.0.
        changes = {}
        for changed, new in fix.changes.items():
            now = case(changed)
            if type(now) is not type(new) or now != new:
                changes[changed] = new
        # What follows from a value that is refused is not worth telling.
        read = case.keys_read if invalid else ()
        if any(document.overlap(name, wrong) for name in read for wrong in invalid):
            continue
        data = {"record_ids": record_ids[: f.MAX_RECORD_IDS]} if record_ids else {}
        message = f"got {got}: {rule.reason}"
        fix = replace(fix, changes=changes)
        found.append(f.Finding(rule.id, severity, key, message, fix, data))
    return found


# ---- what an engine cannot do of what a spec asks for --------------------------------------------


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
        if key == VALIDATE_EPOCHS and case("validation.enable"):
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


def idle_findings(case: Case, told: set[str]) -> list[f.Finding]:
    """Return a warning for each value of a training that asks for something while what it depends
    on is off; of keys of which something was `told`, that is enough."""
    found = []
    schemas = document.keys(case.action)
    template = document.template(case.action)
    for key, value in document.items(case.action, case.written):
        schema = schemas.get(key, {})
        switch = schema.get("depends_on")
        if switch is None or key in told or case.action not in actions.TRAINING:
            continue
        usual = (schema.get("default"), document.get(template, key))
        if value in usual or case(switch) not in document.IS_OFF or not case.is_read(key):
            continue
        state = spec_values.shown(case(switch))
        message = f"got {spec_values.shown(value)}, which has no effect while {switch} is {state}"
        found.append(f.warning("SPEC-KEY-IDLE", key, message))
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
