"""Checks a whole spec: its schema, its engine, its paths, the run that it continues, all rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules import engine_support, paths, placeholders, resuming, shared_data
from cosmos_reason.rules.case import Case, sound
from cosmos_reason.rules.rule import ASKED, JUDGED, LATER, Rule, named
from cosmos_reason.rules.spec_rules import RULES
from cosmos_reason.spec import actions, document, legal, validation
from cosmos_reason.spec import values as spec_values


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
    found, invalid = of_each_value(action, engine, written)
    of_another = [finding for finding in found if finding.id == "SPEC-ACTION"]
    if of_another:
        return None, of_another
    spec = sound(action, written, invalid)
    case = Case(
        action, engine, spec, facts, gpus_per_node, nodes, launch, has_own_data, drafted or {}
    )
    if not case.cosmos:
        found += engine_support.trainers_own_elsewhere(case, written)
    without_engine = engine_support.engine_findings(action, engine)
    found += without_engine
    unread = set()
    if not without_engine:
        found += engine_support.unapplied_findings(case)
        found += engine_support.unread_vision(case)
        unread = engine_support.unread_keys(case)
    found += paths.unknown_uris(case)
    found += shared_data.of_spec(case)
    if action in actions.TRAINING and case.resumed:
        found += resuming.resumed_otherwise(case)
    return case, found + broken_rules(case, invalid, unread)


def broken_rules(case: Case, invalid: list[str], unread: set[str]) -> list[f.Finding]:
    """Return the findings of the action's rules, but for rules that look at an invalid key, and for
    those about a key that the engine does not read, which cannot harm."""
    found = []
    names = named(case.params)
    for rule in RULES:
        if case.action not in rule.actions.split() or rule.key.format_map(names) in unread:
            continue
        # What follows from a value that is refused is not worth telling.
        if invalid and any(
            document.overlap(key, wrong) for key in rule.keys(case.params) for wrong in invalid
        ):
            continue
        if detail := rule.broken(case):
            found.append(told(rule, case, detail))
    return found


def of_each_value(action: str, engine: str, written: dict) -> tuple[list[f.Finding], list[str]]:
    """Return what is wrong with single keys and values, and the keys that no rule may look at."""
    unfilled = placeholders.keys(action, written, engine)
    found = validation.validate(action, written)
    refused_below = {("SPEC-VALUE", key) for key in unfilled}
    found = [one for one in found if (one.id, one.where) not in refused_below]
    invalid = [finding.where for finding in found if finding.severity == f.ERROR]
    invalid += validation.brought_by_renamings(found)  # whose values are told, not yet written
    # of one rate for each part of the model, no rule knows which to look at
    own = validation.trainers_own(action, written)
    invalid += [key for key in legal.PER_PART if key in own]
    found = validation.by_cause(action, written, found)
    if unfilled:
        found.append(placeholders.check(action, written, unfilled))
    return found, invalid + unfilled


def told(rule: Rule, case: Case, detail: object) -> f.Finding:
    """Return the finding of a rule that a case breaks; `detail` is what the rule said of it."""
    words, record_ids = detail if isinstance(detail, tuple) else (detail, [])
    key = rule.key.format_map(named(case.params))
    message = f"got {_got(case, key, words)}: {rule.reason}"
    severity = rule.severity
    if severity == LATER:
        severity = f.ERROR if case.launch else f.WARNING
    elif severity == ASKED:
        severity = f.WARNING if case.action in JUDGED else f.INFO
    data = {"record_ids": record_ids[: f.MAX_RECORD_IDS]} if record_ids else {}
    return f.Finding(rule.id, severity, key, message, _remedy(rule, case, key), data)


def _got(case: Case, key: str, words: str | bool) -> str:
    """Return the value that a message begins with, and the numbers that a rule gave, if it did."""
    if key.startswith("--") and isinstance(words, str):
        return words
    value = case(key)
    if value in (None, ""):
        got = "no value"
    elif case.has(key):
        got = spec_values.shown(value)
    else:
        got = f"no value (then {spec_values.shown(value)})"
    return f"{got} ({words})" if isinstance(words, str) else got


def _remedy(rule: Rule, case: Case, key: str) -> Fix:
    """Return the rule's fix, without changes to values that the spec has already. 20 is none to
    20.0."""
    fix = rule.fix(case) if callable(rule.fix) else rule.fix
    if fix is None:
        return Fix()
    if not isinstance(fix, Fix):
        fix = Fix(changes={key: fix})
    # A fix that writes what is there already would be pasted for nothing.
    changes = {}
    for changed, value in fix.changes.items():
        now = case(changed)
        if type(now) is not type(value) or now != value:
            changes[changed] = value
    return replace(fix, changes=changes)
