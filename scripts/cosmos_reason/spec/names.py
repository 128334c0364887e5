"""Names that are no keys of an action, and what they mean: by the table of other trainers' words,
by the part a key plays in another action, by its place. What only looks alike is named, and moved
only where one letter was typed wrong."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import bundle, findings
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import actions, document, legal
from cosmos_reason.spec.keys import OF_GUIDES, TRAIN_ANNOTATIONS

# What plays one part in every action that has it.
SHARED_PARTS = ("model", "adapter", "base", "system_prompt")
DOTTED = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+)+")
LONG_ENOUGH = 5  # letters of a name of which one may be wrong


class Word(NamedTuple):
    """A name of other trainers. `key` or `flag`: what means exactly the same here; "" where nothing
    does. `note` says what is done here. `fraction`: only a float means it."""

    key: str
    flag: str
    note: str
    fraction: bool

    def takes(self, value) -> bool:
        """Return whether the value means there what it means here."""
        return type(value) is float or value == 0 or not self.fraction


@functools.cache
def other_trainers() -> dict[str, dict]:
    """Read their words in other_trainers.yaml."""
    import yaml

    path = Path(__file__).with_name("other_trainers.yaml")
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


def word(action: str, name: str) -> Word | None:
    """Return what other trainers, or older guides, mean by a key, of which the last parts count."""
    parts = name.lower().split(".")
    for start in range(len(parts)):
        facts = other_trainers().get(".".join(parts[start:]))
        if facts and action in facts.get("only", bundle.ACTIONS):
            key = facts.get("key", "")
            key = _counterpart("train", action, key) or key
            note = _note(action, facts["note"])
            return Word(key, facts.get("flag", ""), note, facts.get("fraction", False))
    return None


def _note(action: str, note: str) -> str:
    """Return a note with the action's own keys in the place of training's; with the action that it
    is about, where this one has none of them."""
    note = DOTTED.sub(lambda key: _counterpart("train", action, key[0]) or key[0], note)
    named = set(DOTTED.findall(note))
    for other in (action, "train", "grpo"):
        if named & document.keys(other).keys():
            return note if other == action else f"in {actions.a_spec(other)} {note}"
    return note


def full_name(action: str, name: str) -> str:
    """Return the key that is meant by a short name, or by the last part of one key only; other
    names, and keys, stay. So does a word by which another trainer means something else."""
    known = document.keys(action)
    short = bundle.skill_info()["shorthand"][action]
    if name in known or name in short:
        return short.get(name, name)
    if "." in name or word(action, name):
        return name
    ends = [key for key in known if key.endswith(f".{name}")]
    return ends[0] if len(ends) == 1 else name


def same_elsewhere(action: str, key: str) -> str:
    """Return the key that another action has under another name, that its table has under a short
    name, or that stands in another table around or below that of `key`; "" where there is none, or
    several."""
    for other in bundle.ACTIONS:
        found = _counterpart(other, action, key) if other != action else ""
        if found:
            return found
    table, _, leaf = key.rpartition(".")
    short = full_name(action, leaf)
    if short in document.keys(action) and short.rpartition(".")[0] == table:
        return short
    ends = []
    for known in document.keys(action):
        place, _, last = known.rpartition(".")
        if table and place and last == leaf and document.overlap(place, table):
            ends.append(known)
    return ends[0] if len(ends) == 1 else ""


def _counterpart(other: str, action: str, key: str) -> str:
    """Return the key of `action` that is what `key` is in the `other` one; "" when nothing is."""
    theirs, ours = actions.places(other), actions.places(action)
    found = key
    table, _, leaf = key.rpartition(".")
    if table == theirs["vision"]:
        found = f"{ours['vision']}.{leaf}"
    for part in SHARED_PARTS:
        if theirs.get(part) == key and part in ours:
            found = ours[part]
    lengths = actions.LENGTHS
    if other in lengths and action in lengths and key == lengths[other][0]:
        found = lengths[action][0]
    return found if found in document.keys(action) and found != key else ""


def misspelt(action: str, key: str) -> list[str]:
    """Return the key, table or short name that differs from `key` by one letter of one part; empty
    where several do."""
    names = set()  # keys, and the tables around them
    for name in document.keys(action):
        while name:
            names.add(name)
            name = name.rpartition(".")[0]
    found = [name for name in names if _is_misspelling(key, name)]
    if "." not in key:
        short = {document.last_part(name) for name in document.keys(action)}
        short |= bundle.skill_info()["shorthand"][action].keys()
        meant = [full_name(action, name) for name in short if _is_misspelling(key, name)]
        found += [name for name in meant if name in document.keys(action)]
    return found[:1] if len(set(found)) == 1 else []


def _is_misspelling(key: str, name: str) -> bool:
    """Return whether one part of a key has one wrong letter. One that is a name in any action has
    none."""
    written, parts = key.split("."), name.split(".")
    wrong = [pair for pair in zip(written, parts, strict=False) if pair[0] != pair[1]]
    if len(written) != len(parts) or len(wrong) != 1:
        return False
    ((theirs, ours),) = wrong
    return bool(findings.misspelt(theirs, [ours])) and theirs not in _names_of_all()


@functools.cache
def _names_of_all() -> frozenset[str]:
    """Return the parts of the keys of all actions."""
    keys = (name for action in bundle.ACTIONS for name in document.keys(action))
    return frozenset(part for name in keys for part in name.split("."))


def unknown_keys(action: str, key: str, value) -> Iterator[findings.Finding]:
    """Yield the findings about a key that the action does not have, with what it means here; one
    for each key in a table that is not ours."""
    told = word(action, key)
    if told and not isinstance(value, dict):
        yield _of_other_trainer(action, key, value, told)
        return
    same = same_elsewhere(action, key)  # means the same
    close = misspelt(action, key)  # is written much the same
    if isinstance(value, dict) and value and not close:
        for name, inner in value.items():
            yield from unknown_keys(action, f"{key}.{name}", inner)
        return
    others = []
    for other in bundle.ACTIONS:
        name = full_name(other, key)
        if other != action and name in document.keys(other):
            others.append(f"a key of the {other} spec" + ("" if name == key else f", {name}"))
    inside = [name for name in document.keys(action) if name.startswith(f"{key}.")]
    got, near, fix = "an unknown key", close, Fix()
    if inside and not others and not isinstance(value, dict):
        got, near = "a table", inside[:3]
    elif others or same:
        got, near = (others or [got])[0], [same] if same else []
        fix = _renaming(action, key, same, value)
    elif close and len(document.last_part(key)) >= LONG_ENOUGH:
        fix = _renaming(action, key, close[0], value)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    message = f"got {got}, expected a key that {actions.a_spec(action)} has.{hint}"
    yield findings.error("SPEC-KEY-UNKNOWN", key, message, fix)


def below_custom(action: str, spec: dict) -> dict[str, findings.Finding]:
    """Return by place: an error about each name below `custom` that looks like a misspelling of
    ours, and one info about all others, which somebody's own dataset script may read."""
    found = {}
    others = []
    tables = document.custom_tables(action)
    custom = spec.get("custom")
    strangers = {}  # names that no schema has, but for those of tables that refuse them
    for name, value in custom.items() if isinstance(custom, dict) else ():
        if name not in tables:
            strangers[f"custom.{name}"] = value
        elif tables[name].get("additionalProperties") is True and isinstance(value, dict):
            for inner in value.keys() - tables[name]["properties"].keys():
                strangers[f"custom.{name}.{inner}"] = value[inner]
    for key, value in sorted(strangers.items(), key=lambda stranger: stranger[0]):
        near = near_in_custom(action, key)
        if near:
            message = f"got an unknown name, expected {near[0]}. Did you mean that?"
            fix = _renaming(action, key, near[0], value) if len(near) == 1 else Fix()
            found[key] = findings.error("SPEC-KEY-UNKNOWN", key, message, fix)
        else:
            others.append(key)
    if others:
        where = others[0] if len(others) == 1 else "custom"
        message = f"got {', '.join(others)}, passed on as it is; nothing here checks it"
        if OF_GUIDES in others and document.get(spec, TRAIN_ANNOTATIONS):
            message += f": training reads {TRAIN_ANNOTATIONS}"
        found[where] = findings.info("SPEC-CUSTOM-TABLE", where, message)
    return found


def near_in_custom(action: str, key: str) -> list[str]:
    """Return our name that one below `custom` misspells or means in other words; empty when it is
    nothing like ours."""
    table, _, leaf = key.rpartition(".")
    known = document.custom_tables(action)
    if table != "custom":
        known = known[table.removeprefix("custom.")]["properties"]
    told = word(action, leaf)
    meant = told.key if told else full_name(action, leaf.lower())
    if meant in document.keys(action) and meant.rpartition(".")[0] == table:
        return [meant]
    return [f"{table}.{name}" for name in findings.misspelt(leaf, known)]


def is_free(action: str, key: str) -> bool:
    """Return whether a name below `custom` is somebody else's: in a table of theirs, or like none
    of ours."""
    top, *inner = key.split(".")
    if top != "custom" or not inner:
        return False
    table = document.custom_tables(action).get(inner[0])
    if table is None:
        return len(inner) > 1 or not near_in_custom(action, key)
    if len(inner) != 2 or table.get("additionalProperties") is not True:
        return False
    return inner[1] not in table["properties"] and not near_in_custom(action, key)


def _of_other_trainer(action: str, key: str, value, told: Word) -> findings.Finding:
    """Report a name of another trainer, or of other guides, that no trainer here reads."""
    fix = Fix()
    if told.flag and action != "quantize" and type(value) is int:
        fix = Fix(changes={key: None}, flags={told.flag: value})
    if told.key in document.keys(action) and told.takes(value):
        fix = _renaming(action, key, told.key, value)
    if fix and told.key.startswith("policy.lora."):  # the table has other keys, which it needs
        fix |= Fix(flags={"--tuning": "lora"})
    ours = told.key if told.key in document.keys(action) else ""
    use = f"use {ours}: " if ours else ""
    message = f"got a name no trainer here reads; {use}{told.note}"
    return findings.error("SPEC-KEY-FORMER", key, message, fix, key=ours, note=told.note)


def _renaming(action: str, key: str, name: str, value) -> Fix:
    """Return the fix that takes `key` away and gives its value, or each value of the table, to
    `name`.

    Empty when a value is not legal there: another value would not be the user's.
    """
    if not name:
        return Fix()
    moved = {key: None}
    if isinstance(value, dict) and name not in document.keys(action):
        for full, inner in document.items(action, value, f"{name}."):
            moved[full] = legal.meant(action, full, inner)
    else:
        moved[name] = legal.meant(action, name, value)
    return Fix() if document.MISSING in moved.values() else Fix(changes=moved)
