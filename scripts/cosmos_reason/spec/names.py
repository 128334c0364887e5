"""Names that are no keys of an action, and what they may have meant."""

from __future__ import annotations

from dataclasses import replace

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import actions, document, legal
from cosmos_reason.spec.keys import OF_GUIDES, TRAIN_ANNOTATIONS

CLOSE = 0.8  # of difflib: one letter more, less or other in a name of usual length
FLAG_WORDS = {
    "gpus": "--gpus-per-node",
    "num_gpus": "--gpus-per-node",
    "nodes": "--nodes",
    "num_nodes": "--nodes",
}


def full_name(action: str, name: str) -> str:
    """The key that is meant by a short name, or by the last part of one key only; other names, and
    keys, stay."""
    known = document.keys(action)
    short = bundle.skill_info()["shorthand"][action]
    if name in known or name in short:
        return short.get(name, name)
    if "." in name:
        return name
    ends = [key for key in known if key.endswith(f".{name}")]
    return ends[0] if len(ends) == 1 else name


def suggestions(action: str, key: str) -> list[str]:
    """Legal names that `key` may have meant: its last part in another table, or a key, table or
    short name like it."""
    known = document.keys(action)
    short = bundle.skill_info()["shorthand"][action]
    tables = {name.rpartition(".")[0] for name in known} - {""}
    for table in list(tables):
        while "." in table:
            table = table.rpartition(".")[0]
            tables.add(table)
    leaf = document.last_part(key)
    by_leaf = short | {document.last_part(name): name for name in known}
    same = [name for name in known if document.last_part(name) == leaf]
    alike = [by_leaf[name] for name in findings.nearest(leaf, by_leaf)]
    return list(dict.fromkeys([*same, *findings.nearest(key, [*known, *tables]), *alike]))[:3]


def unknown_key(action: str, key: str, value) -> findings.Finding:
    """The finding about a key that the action does not have, with the names it may have meant."""
    for recognized in (_former, _word_for_flag, _table, _key_of_other_action):
        finding = recognized(action, key, value)
        if finding:
            return finding
    near = suggestions(action, key)
    fix = renaming(action, key, near, value)
    if not near or not is_misspelling(key, near[0]):
        fix = replace(fix, sure=False)
    return _unknown(action, key, "an unknown key", near, fix)


def is_misspelling(key: str, name: str) -> bool:
    """Whether the two differ by little more than a letter in one of their parts."""
    ours = name.split(".")
    theirs = key.split(".")
    if len(ours) != len(theirs):
        return False
    pairs = zip(ours, theirs, strict=True)
    return all(findings.nearest(wrong, [right], cutoff=CLOSE) for right, wrong in pairs)


def below_custom(action: str, spec: dict) -> dict[str, findings.Finding]:
    """By place: an error about each name below `custom` that looks like a misspelling of ours, and
    one info about all others, which somebody's own dataset script may read."""
    found = {}
    others = []
    for key, value in _strangers(action, spec):
        near = near_in_custom(action, key)
        if near:
            message = f"got an unknown name, expected {near[0]}. Did you mean that?"
            fix = renaming(action, key, near, value)
            found[key] = findings.error("SPEC-KEY-UNKNOWN", key, message, fix)
        else:
            others.append(key)
    if others:
        where = others[0] if len(others) == 1 else "custom"
        message = f"got {', '.join(others)}, passed on as it is; nothing here reads it"
        if OF_GUIDES in others and document.get(spec, TRAIN_ANNOTATIONS):
            message += f": training reads {TRAIN_ANNOTATIONS}"
        found[where] = findings.info("SPEC-CUSTOM-TABLE", where, message)
    return found


def _strangers(action: str, spec: dict) -> list[tuple[str, object]]:
    """(key, value) of the names below `custom` that no schema has, but for those of tables that
    refuse them."""
    tables = document.custom_tables(action)
    custom = spec.get("custom")
    strangers = []
    for name, value in custom.items() if isinstance(custom, dict) else ():
        if name not in tables:
            strangers.append((f"custom.{name}", value))
        elif tables[name].get("additionalProperties") is True and isinstance(value, dict):
            for inner in value.keys() - tables[name]["properties"].keys():
                strangers.append((f"custom.{name}.{inner}", value[inner]))
    return sorted(strangers, key=lambda stranger: stranger[0])


def near_in_custom(action: str, key: str) -> list[str]:
    """Our name that one below `custom` misspells; empty when it is nothing like ours."""
    table, _, leaf = key.rpartition(".")
    known = document.custom_tables(action)
    if table != "custom":
        known = known[table.removeprefix("custom.")]["properties"]
    return [f"{table}.{name}" for name in findings.nearest(leaf, known, 1, cutoff=CLOSE)]


def is_free(action: str, key: str) -> bool:
    """Whether a name below `custom` is somebody else's: in a table of theirs, or like none of
    ours."""
    top, *inner = key.split(".")
    if top != "custom" or not inner:
        return False
    table = document.custom_tables(action).get(inner[0])
    if table is None:
        return len(inner) > 1 or not near_in_custom(action, key)
    if len(inner) != 2 or table.get("additionalProperties") is not True:
        return False
    return inner[1] not in table["properties"] and not near_in_custom(action, key)


def _former(action: str, key: str, value) -> findings.Finding | None:
    """A name of other guides that no current trainer reads."""
    former = bundle.skill_info()["former_keys"].get(document.last_part(key))
    if not former:
        return None
    here = [former["key"]] if former["key"] in document.keys(action) else []
    message = f"got a name no trainer reads; use {former['key']}: {former['note']}"
    return findings.error("SPEC-KEY-FORMER", key, message, renaming(action, key, here, value))


def former_by_cause(found: list[findings.Finding]) -> list[findings.Finding]:
    """The findings, those about former names that had to go for one reason as one, where the first
    of them stands."""
    causes: dict[str, list[findings.Finding]] = {}
    for finding in found:
        causes.setdefault(_cause(finding), []).append(finding)
    joined = []
    for alike in causes.values():
        joined.append(_as_one(alike) if len(alike) > 1 else alike[0])
    return joined


def _cause(finding: findings.Finding) -> str:
    if finding.id != "SPEC-KEY-FORMER":
        return f"{finding.id} {finding.where}"
    return bundle.skill_info()["former_keys"][document.last_part(finding.where)]["note"]


def _as_one(alike: list[findings.Finding]) -> findings.Finding:
    former = bundle.skill_info()["former_keys"]
    fix = Fix()
    for finding in alike:
        fix |= finding.fix
    places = [finding.where for finding in alike]
    current = [former[document.last_part(place)]["key"] for place in places]
    message = (
        f"got {', '.join(places)}, names no trainer reads; use {', '.join(current)}: "
        f"{_cause(alike[0])}"
    )
    return replace(alike[0], message=message, fix=fix)


def _word_for_flag(action: str, key: str, value) -> findings.Finding | None:
    flag = FLAG_WORDS.get(key)
    if not flag or action == "quantize":
        return None
    flags = {flag: value} if type(value) is int else {}
    return _unknown(action, key, f"a word for {flag}", [], Fix(changes={key: None}, flags=flags))


def _table(action: str, key: str, value) -> findings.Finding | None:
    inside = [name for name in document.keys(action) if name.startswith(f"{key}.")]
    if not inside:
        return None
    return _unknown(action, key, "a table", inside[:3], Fix(changes={key: None}))


def _key_of_other_action(action: str, key: str, value) -> findings.Finding | None:
    for other in bundle.ACTIONS:
        name = full_name(other, key)
        if other == action or name not in document.keys(other):
            continue
        got = f"a key of the {other} spec"
        if name != key:
            got += f", {name}"
        same = [
            known
            for known in document.keys(action)
            if document.last_part(known) == document.last_part(name)
        ]
        return _unknown(action, key, got, same, renaming(action, key, same, value))
    return None


def _unknown(action: str, key: str, got: str, near: list[str], fix: Fix) -> findings.Finding:
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    message = f"got {got}, expected a key that {actions.a_spec(action)} has.{hint}"
    return findings.error("SPEC-KEY-UNKNOWN", key, message, fix)


def renaming(action: str, key: str, names: list[str], value) -> Fix:
    """The fix that takes `key` away and gives its value, or each value of the table, to the first
    of `names`.

    Empty when a value is not legal there: another value would not be the user's.
    """
    moved = {key: None}
    if not names:
        return Fix(changes=moved)
    name = names[0]
    if isinstance(value, dict) and name not in document.keys(action):
        for full, inner in document.items(action, value, f"{name}."):
            near = [full, *suggestions(action, full)]
            known = next((one for one in near if one in document.keys(action)), full)
            moved[known] = legal.meant(action, known, inner)
    else:
        moved[name] = legal.meant(action, name, value)
    return Fix() if document.MISSING in moved.values() else Fix(changes=moved)
