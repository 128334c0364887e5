"""What is wrong with a spec by its schema alone, one finding per key."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import actions, document, flat_configs, images, legal, names
from cosmos_reason.spec.keys import TRAIN_ANNOTATIONS
from cosmos_reason.spec.values import expected, shown

LONGEST_NAME, LONGEST_PATH = 255, 4095  # bytes, on Linux
UNFILLED = 3  # so many empty values are a template's, not mistakes
# The flag that puts several annotation files together, where one file was expected.
SEVERAL_FILES = {
    TRAIN_ANNOTATIONS: "--train-root",
    "custom.val_dataset.annotation_path": "--eval-root",
}


def validate(action: str, spec: dict) -> list[findings.Finding]:
    """Return every way in which `spec` departs from the action's schema, one finding per key.

    What only the trainer's own configuration class knows is passed on and told in one info.
    """
    if flat_configs.is_flat_config(spec):
        return [flat_configs.refusal("spec", spec)]
    other = actions.other_than(action, spec)
    if other:
        message = f"got {actions.a_spec(other)}, expected {actions.a_spec(action)}"
        return [findings.error("SPEC-ACTION", "spec", message)]
    found: dict[str, findings.Finding] = {}
    # What has been told is taken out of this copy, so that the schema does not tell it again.
    rest = copy.deepcopy(spec)
    for key, problem in legal.unportable(spec):
        # null says no value: the template's takes its place. No other value can be guessed.
        fix = restored(action, key) if document.get(spec, key) is None else Fix()
        found[key] = findings.error("SPEC-VALUE", key, f"got {problem}", fix)
        document.delete(rest, key)
    for key, schema in document.keys(action).items():
        path = document.get(rest, key)
        if "x-path" not in schema or not isinstance(path, str) or "://" in path:
            continue
        written = path.encode("utf-8", "replace")
        longest = max(map(len, written.split(b"/")))
        if longest > LONGEST_NAME or len(written) > LONGEST_PATH:  # asking for it raises OSError
            message = f"got a path of {len(written)} bytes with a name of {longest}; file systems "
            message += f"take names of {LONGEST_NAME} and paths of {LONGEST_PATH}"
            found[key] = findings.error("SPEC-VALUE", key, message)
            document.delete(rest, key)
    settings = images.settings(action)
    for key, schema in settings.items():
        value = document.get(rest, key, document.MISSING)
        if value is not document.MISSING and not legal.takes(action, schema, value):
            message = f"got {shown(value)}, expected {expected(schema)} for NVIDIA's image"
            found[key] = findings.error("SPEC-VALUE", key, message)
            document.delete(rest, key)
    unchecked = trainers_own(action, rest)
    for key in unchecked:
        document.delete(rest, key)
    for key in document.extra_keys(rest):
        if "." in key and key not in document.keys(action) and document.delete(rest, key):
            message = "passed on as --allow-extra-key asked; cosmos-rl 0.4.7 does not read it"
            found[key] = findings.warning("SPEC-KEY-EXTRA", key, message)
    # jsonschema is imported only where something is wrong: it takes longer than all else here.
    is_legal = legal.fits(bundle.schema(action), rest)
    for problem in () if is_legal else legal.validator(action).iter_errors(rest):
        for finding in _explained(action, rest, problem):
            found.setdefault(finding.where, finding)
    found |= names.below_custom(action, rest)
    # Of keys that no schema here describes those that the trainer reads are told as one, and each
    # that it no longer reads.
    passed_on = [key for key in unchecked if key not in settings]
    told: dict[str, findings.Finding] = {}
    former = document.former_keys().intersection(passed_on) if passed_on else set()
    for key in sorted(former):
        message = "got what cosmos-rl read before 0.4.7, which ignores it"
        told[key] = findings.info("SPEC-KEY-EXTRA", key, message)
    read = [key for key in passed_on if key not in former]
    if read:
        where = read[0] if len(read) == 1 else "spec"
        message = f"got what the trainer reads and nothing here checks: {', '.join(read)}"
        told[where] = findings.info("SPEC-KEY-EXTRA", where, message)
    found = told | found
    # A missing key or table is not reported when the fix of an unknown one sets it.
    renamed = brought_by_renamings(found.values())
    kept = []
    for key, finding in found.items():
        is_brought = any(f"{name}.".startswith(f"{key}.") for name in renamed)
        if finding.id != "SPEC-KEY-MISSING" or not is_brought:
            kept.append(finding)
    return kept


def by_cause(action: str, spec: dict, found: list[findings.Finding]) -> list[findings.Finding]:
    """Return what `validate` found in a spec, those with one cause as one finding: former names
    that had to go for one reason, empty texts and zeros of a template that nobody filled in."""
    causes: dict[str, list[findings.Finding]] = {}
    for finding in found:
        is_former = finding.id == "SPEC-KEY-FORMER"
        cause = finding.data["note"] if is_former else f"{finding.id} {finding.where}"
        causes.setdefault(cause, []).append(finding)
    joined = []
    for cause, alike in causes.items():
        one = alike[0]
        if len(alike) > 1:
            fix = Fix()
            for finding in alike:
                fix |= finding.fix
            places = ", ".join(finding.where for finding in alike)
            current = ", ".join(filter(None, dict.fromkeys(each.data["key"] for each in alike)))
            use = f"use {current}: " if current else ""
            message = f"got {places}, names no trainer here reads; {use}{cause}"
            one = replace(one, message=message, fix=fix)
        joined.append(one)
    empty = []
    for finding in joined:
        value = document.get(spec, finding.where)
        is_zero = type(value) is int and value == 0
        if finding.id == "SPEC-VALUE" and (value == "" or is_zero):
            empty.append(finding)
    if len(empty) < UNFILLED:
        return joined
    fix = Fix()
    for finding in empty:
        fix |= restored(action, finding.where)
    keys = ", ".join(finding.where for finding in empty)
    message = f"got empty texts and zeros, expected values: {keys}; the fix writes our defaults"
    one = findings.error("SPEC-VALUE", empty[0].where, message, replace(fix, sure=False))
    return [one, *(finding for finding in joined if finding not in empty)]


def trainers_own(action: str, spec: dict) -> list[str]:
    """Return the keys of a spec that cosmos-rl takes, by name or by value, and no schema here
    describes."""
    known = document.keys(action)
    own = []
    for key, value in document.items(action, spec):
        is_ours = key in known and key not in legal.TAKES_MORE and value != {}
        if not is_ours and legal.is_trainers_own(action, key, value):
            own.append(key)
    return own


def brought_by_renamings(found: Iterable[findings.Finding]) -> set[str]:
    """Return the keys that the fixes of unknown ones set."""
    brought = set()
    for finding in found:
        if finding.id in ("SPEC-KEY-UNKNOWN", "SPEC-KEY-FORMER"):
            brought |= {key for key, value in finding.fix.changes.items() if value is not None}
    return brought


def _explained(action: str, spec: dict, problem) -> Iterator[findings.Finding]:
    """Yield the findings about one error of jsonschema."""
    where = ".".join(part for part in problem.absolute_path if isinstance(part, str))
    prefix = f"{where}." if where else ""
    if problem.validator == "additionalProperties" and "properties" in problem.schema:
        for name, value in problem.instance.items():
            if name not in problem.schema["properties"]:
                yield from names.unknown_keys(action, f"{prefix}{name}", value)
    elif problem.validator == "required":
        for name in problem.validator_value:
            if name not in problem.instance:
                key = f"{prefix}{name}"
                fix = restored(action, key)
                if where == "policy.lora":  # half a table of adapters: the flag writes the rest
                    fix = Fix(flags={"--tuning": "lora"})
                message = "got no value, expected the key to be written"
                yield findings.error("SPEC-KEY-MISSING", key, message, fix)
    else:
        yield _wrong_value(action, spec, where, problem)


def _wrong_value(action: str, spec: dict, where: str, problem) -> findings.Finding:
    got = problem.instance
    meant = legal.meant(action, where, document.get(spec, where))
    hint = ""
    if isinstance(got, str) and type(meant) is float:
        hint = " YAML reads 1e-5 as text and 1.0e-5 as a number."
    elif isinstance(meant, str | bool):
        hint = f" Did you mean {shown(meant)}?"
    fix = Fix(changes={where: meant})
    if meant is document.MISSING:  # the legal values are told; which one was meant is not known
        fix = restored(action, where) if got == "" else Fix()
        schema = document.keys(action).get(where, {})
        is_number = schema.get("type") in ("integer", "number")
        if got == 0 and type(got) is not bool and is_number and schema.get("default") is None:
            fix = Fix(changes={where: None})  # which says nothing when absent, as 0 does elsewhere
        flag = SEVERAL_FILES.get(where) if isinstance(got, list) else None
        folders = {str(file).rpartition("/")[0] or "." for file in got} if flag else ()
        if flag and len(folders) == len(got):  # those of several folders: the flag joins them
            fix = Fix(flags={flag: sorted(folders)})
        fix = replace(fix, sure=False)
    wanted = expected(document.keys(action).get(where) or problem.schema)
    message = f"got {shown(got)}, expected {wanted}.{hint}"
    return findings.error("SPEC-VALUE", where or "spec", message, fix)


def restored(action: str, key: str) -> Fix:
    """Return the fix that gives a key, or each key of a table, the template's value back, or takes
    a key away."""
    if not key:
        return Fix()
    ours = {}
    for name, value in document.items(action, document.template(action)):
        if f"{name}.".startswith(f"{key}."):
            ours[name] = value
    return Fix(changes=ours or {key: document.keys(action).get(key, {}).get("default")})
