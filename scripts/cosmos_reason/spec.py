"""One action's spec: a nested table of keys, read from TOML or YAML, checked against schemas/<action>.schema.json.

In a schema a property's `default` is what the trainer assumes when the key is absent (null: the feature is off);
the schema's own top-level `default` is our template, a complete starting spec.
"""

from __future__ import annotations

import copy
import functools
import math
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason import bundle, storage
from cosmos_reason import findings as f
from cosmos_reason.spec_values import LONG_KEY, MAX_DEPTH, as_flags, expected, near, shown

MISSING = object()
MAX_BYTES = 1 << 18
FREE_NAMES = ("alpha_pattern", "r_pattern", "reward_function")  # tables whose names are not ours
FLAG_WORDS = {"gpus": "--gpus-per-node", "num_gpus": "--gpus-per-node", "nodes": "--nodes", "num_nodes": "--nodes"}


# ---- nested tables -------------------------------------------------------------------------------------------------


def get(spec: dict, key: str, default=None):
    """The value at a dotted key, or `default` when any part of the path is absent."""
    node = spec
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return default
        node = node[part]
    return node


def set_value(spec: dict, key: str, value) -> None:
    """Set a dotted key, making the tables on the way (a value in their place is replaced by a table)."""
    *tables, last = key.split(".")
    node = spec
    for part in tables:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value


def delete(spec: dict, key: str) -> bool:
    """Remove a key or a whole table, and the tables it leaves empty. False when it was not there."""
    head, _, rest = key.partition(".")
    if not isinstance(spec, dict) or head not in spec:
        return False
    removed = delete(spec[head], rest) if rest else spec.pop(head, MISSING) is not MISSING
    if removed and rest and not spec[head]:
        del spec[head]
    return removed


def items(action: str, spec: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted key, value) of every leaf; a table that the schema treats as one value is not taken apart."""
    known = keys(action)
    for name, value in spec.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and key not in known:  # an empty table stays, to be refused
            yield from items(action, value, f"{key}.")
        else:
            yield key, value


def overlap(key: str, other: str) -> bool:
    """Whether one is the other, or a table around it."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


# ---- what the schema says ------------------------------------------------------------------------------------------


@functools.cache
def keys(action: str) -> dict[str, dict]:
    """Dotted key -> its schema, for every value the action knows."""
    return dict(_walk(bundle.schema(action), ""))


def _walk(schema: dict, prefix: str) -> Iterator[tuple[str, dict]]:
    for name, sub in schema["properties"].items():
        if "properties" in sub:
            yield from _walk(sub, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", sub


def custom_tables(action: str) -> dict[str, dict]:
    """The tables under `custom` that are known here."""
    return bundle.schema(action)["properties"]["custom"]["properties"]


@functools.cache
def extra_keys_of(action: str) -> frozenset[str]:
    """Keys of cosmos-rl's own configuration class that no schema here has."""
    import yaml

    tables = yaml.load(Path(__file__).with_name("cosmos_rl_keys.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    parts = (tables["both"], tables[action]) if action in tables else ()
    return frozenset(f"{table}.{name}".lstrip(".") for part in parts for table in part for name in part[table])


def is_extra(action: str, key: str) -> bool:
    """Whether the trainer's own configuration class has this key, which no schema here has."""
    return key in extra_keys_of(action) or any(key.startswith(f"{name}.") for name in extra_keys_of(action))


def template(action: str) -> dict:
    return copy.deepcopy(bundle.schema(action)["default"])


def with_defaults(action: str, spec: dict) -> dict:
    """A deep copy of `spec` in which every known key is present (None where the trainer has no default).

    An optional table that is absent, as `policy.lora` in full fine-tuning, becomes None.
    """
    return _filled(bundle.schema(action), copy.deepcopy(spec))


def _filled(schema: dict, table: dict) -> dict:
    for name, sub in schema["properties"].items():
        if "properties" in sub and (name in table or "default" not in sub):
            table[name] = _filled(sub, table.get(name, {}))
        elif name not in table:
            table[name] = copy.deepcopy(sub.get("default"))
    return table


# ---- files ---------------------------------------------------------------------------------------------------------


def load(path: Path) -> dict:
    """Read a .toml or .yaml spec. Raises Failure (exit 2) on anything that is not one plain table of keys."""
    path = Path(path)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise f.bad_input("SPEC-FILE", path, "got something that is not a file, expected a .toml or .yaml spec")
    if os.path.isfile(path) and path.stat().st_size > MAX_BYTES:
        raise f.bad_input("SPEC-FILE", path, f"got {path.stat().st_size} bytes, expected a spec of at most {MAX_BYTES}")
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise f.bad_input("SPEC-FILE", path, f"got the ending {path.suffix!r}, expected .toml, .yaml or .yml")
    if path.suffix == ".toml" and LONG_KEY.search(storage.read_text(path)):
        raise f.bad_input("SPEC-FILE", path, f"got a dotted key of more than {MAX_DEPTH} parts, expected fewer")
    spec = storage.read_toml(path) if path.suffix == ".toml" else _read_yaml(path)
    if not spec:
        raise f.bad_input("SPEC-FILE", path, "got an empty file, expected a table of keys")
    _refuse_dots_and_depth(path, spec)
    return spec


def _refuse_dots_and_depth(path: Path, node, depth: int = 1, free: bool = False) -> None:
    """Names that would be read as a path of tables (`"train.epoch" = 3`), and nesting no trainer has."""
    if depth > MAX_DEPTH:
        raise f.bad_input("SPEC-FILE", path, f"got more than {MAX_DEPTH} nested tables or lists, expected fewer")
    for name, sub in node.items() if isinstance(node, dict) else (("", sub) for sub in node):
        if "." in name and not free:
            raise f.bad_input("SPEC-FILE", path, f"got the key {name!r}, expected nested tables")
        if isinstance(sub, dict | list):
            _refuse_dots_and_depth(path, sub, depth + 1, free or name in FREE_NAMES)


def engine_of(path: str | Path | None, platform: str = "docker", action: str | None = None) -> str:
    """The engine that build_spec made a spec for (one of `action`, when given), as it noted beside it: a spec that was
    edited since is still meant for it. Without a note, the usual engine of the platform."""
    beside = Path(path).with_suffix(".origins.json") if path and os.path.isfile(path) else None
    record = storage.read_json(beside) if beside and os.path.isfile(beside) else None
    noted = isinstance(record, dict) and record.get("engine") in bundle.ENGINES
    if noted and action in (None, record.get("action")):
        return record["engine"]
    return "transformers" if platform == "local" else "tao"


def _read_yaml(path: Path) -> dict:
    import yaml

    class Plain(yaml.CSafeLoader):
        def construct_mapping(self, node, deep=False):
            _refuse_names(f"{path}:{node.start_mark.line + 1}", [key for key, _ in node.value])
            return super().construct_mapping(node, deep)

    written, depth = storage.read_text(path), 0
    try:
        for event in yaml.parse(written, Loader=yaml.CSafeLoader):  # composing deep nesting overruns the C stack
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):  # a few lines can unfold to gigabytes
                message = f"got an alias (&/*) or more than {MAX_DEPTH} nested tables or lists, expected plain values"
                raise f.bad_input("SPEC-FILE", f"{path}:{event.start_mark.line + 1}", message)
        spec = yaml.load(written, Loader=Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        message = " ".join(str(problem).split())
        raise f.bad_input("SPEC-FILE", path, f"got {message}, expected valid YAML") from None
    if not isinstance(spec, dict):
        raise f.bad_input("SPEC-FILE", path, f"got {type(spec).__name__}, expected a table of keys")
    return spec


def _refuse_names(where: str, names: list) -> None:
    """Keys given twice, of which YAML keeps the last, and keys that are not text."""
    values = [name.value for name in names]
    if any(name.tag != "tag:yaml.org,2002:str" for name in names):
        raise f.bad_input("SPEC-FILE", where, f"got keys {values}, expected keys that are plain text")
    if twice := sorted({value for value in values if values.count(value) > 1}):
        raise f.bad_input("SPEC-KEY-TWICE", where, f"got {', '.join(twice)} twice, expected it once")


def dump(spec: dict, path: Path) -> None:
    """Write `spec` as TOML; the file appears whole or not at all."""
    import tomli_w

    storage.write_text(Path(path), tomli_w.dumps(spec))


# ---- validation ----------------------------------------------------------------------------------------------------


def validate(action: str, spec: dict) -> list[f.Finding]:
    """Every way in which `spec` departs from the action's schema, one finding per key.

    Keys of the trainer that `custom.extra_keys` names are warnings: they are passed on and nobody here checks them.
    """
    if other := of_other_action(action, spec):
        return [f.error("SPEC-ACTION", "spec", f"got {a_spec(other)}, expected {a_spec(action)}")]
    found: dict[str, f.Finding] = {}
    portable = copy.deepcopy(spec)
    for key, problem in _unportable(spec, ""):
        found[key] = f.error("SPEC-VALUE", key, f"got {problem}", _restored(action, key))
        delete(portable, key)
    for key in extra_keys(portable):
        if is_extra(action, key) and delete(portable, key):
            found[key] = f.warning("SPEC-KEY-EXTRA", key, "passed on unchecked, as --allow-extra-key asked")
    for problem in _validator(action).iter_errors(portable):
        for finding in _explain(action, portable, problem):
            found.setdefault(finding.where, finding)
    moved = " ".join(finding.fix for finding in found.values() if finding.id == "SPEC-KEY-UNKNOWN")
    there = [key for key, one in found.items() if one.id == "SPEC-KEY-MISSING" and f"--set {key}" in moved]
    return [finding for key, finding in found.items() if key not in there]


def a_spec(action: str) -> str:
    return f"{'an' if action[0] in 'aei' else 'a'} {action} spec"


def of_other_action(action: str, spec: dict) -> str | None:
    """The action whose tables these are, when they are not those of `action`."""
    policy = {"sft": "train", "grpo": "grpo"}.get(str(get(spec, "train.train_policy.type")))
    schemas = {name: bundle.schema(name) for name in bundle.ACTIONS if policy in (None, name)}
    fits = [name for name, one in schemas.items() if set(one["required"]) <= spec.keys() <= one["properties"].keys()]
    return fits[0] if fits and action not in fits else None


def extra_keys(spec: dict) -> list[str]:
    named = get(spec, "custom.extra_keys", [])
    return [key for key in named if isinstance(key, str)] if isinstance(named, list) else []


@functools.cache
def _validator(action: str):
    import jsonschema

    base = jsonschema.Draft202012Validator
    types = base.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # 3.0 is not a count
    return jsonschema.validators.extend(base, type_checker=types)(bundle.schema(action))


def _unportable(value, key: str) -> Iterator[tuple[str, str]]:
    """What the schema cannot refuse but no trainer's TOML can hold, or cosmos-rl's reader of it (toml 0.10.2) loses."""
    if isinstance(value, dict):
        for name, sub in value.items():
            yield from _unportable(sub, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for sub in value:
            yield from _unportable(sub, key)
            if isinstance(sub, str) and sub.lstrip().startswith(","):
                yield key, "an entry that begins with a comma, expected other text: the trainer's TOML reader cuts it"
    elif problem := _lost(value):
        yield key, problem


def _lost(value) -> str:
    if isinstance(value, str):
        if "\x00" in value or value.encode("utf-8", "replace").decode() != value:
            return "text with a NUL or with bytes that are not UTF-8, expected valid text"
        lost = value == '"' or value.startswith('""')
        return "quotation marks at the beginning, expected other text: the trainer's TOML reader loses it" * lost
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}, expected a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a number beyond 64 bits, expected a smaller one"
    given = "null" if value is None else type(value).__name__
    return "" if isinstance(value, int | float) else f"{given}, expected text, a number, true/false or a list"


def _explain(action: str, spec: dict, problem) -> Iterator[f.Finding]:
    where = ".".join(part for part in problem.absolute_path if isinstance(part, str))
    prefix = f"{where}." if where else ""
    if problem.validator == "additionalProperties" and "properties" in problem.schema:
        for name in problem.instance.keys() - problem.schema["properties"].keys():
            yield unknown_key(action, f"{prefix}{name}", problem.instance[name])
    elif problem.validator == "required":
        for name in [name for name in problem.validator_value if name not in problem.instance]:
            fix = "--tuning lora" if where == "policy.lora" else _restored(action, f"{prefix}{name}")
            yield f.error("SPEC-KEY-MISSING", prefix + name, "got no value, expected the key to be written", fix)
    else:
        meant = _repaired(action, where, get(spec, where))
        hint = f" Did you mean {shown(meant)}?" if isinstance(meant, str | bool) else ""
        if isinstance(problem.instance, str) and type(meant) is float:
            hint = " YAML reads 1e-5 as text and 1.0e-5 as a number."
        wanted = expected(keys(action).get(where) or problem.schema)
        fix = _restored(action, where) if meant is MISSING else as_flags({where: meant})
        if fix.startswith("--unset") and type(problem.instance) in (int, float):
            fix = ""  # the range is told; which number was meant is not known
        yield f.error("SPEC-VALUE", where or "spec", f"got {shown(problem.instance)}, expected {wanted}.{hint}", fix)


def _restored(action: str, key: str) -> str:
    """The fix that gives a key, or each key of a table, the template's value back, or takes a key away."""
    ours = {name: value for name, value in items(action, template(action)) if f"{name}.".startswith(f"{key}.")}
    return as_flags(ours or {key: keys(action).get(key, {}).get("default")}) if key else ""


def _repaired(action: str, key: str, value):
    """`value` itself when the key takes it, else a legal one that it may have meant, or MISSING."""
    if key not in keys(action):
        return MISSING
    schema = keys(action)[key]
    legal = _validator(action).evolve(schema=schema).is_valid
    options = (one for one in (value, *near(schema, value)) if legal(one) and not any(_unportable(one, key)))
    return next(options, MISSING)


def unknown_key(action: str, key: str, value) -> f.Finding:
    """The finding about a key that the action does not have, with the names it may have meant."""

    def unknown(got: str, names: list[str], fix: str | None = None) -> f.Finding:
        hint = f" Did you mean {', '.join(names)}?" if names else ""
        fix = renaming(action, key, names, value) if fix is None else fix
        message = f"got {got}, expected a key that {a_spec(action)} has.{hint}"
        return f.error("SPEC-KEY-UNKNOWN", key, message, fix)

    if former := bundle.skill_info()["former_keys"].get(key.rsplit(".", 1)[-1]):
        message = f"got a name no trainer reads; use {former['key']}: {former['note']}"
        here = [former["key"]] if former["key"] in keys(action) else []
        return f.error("SPEC-KEY-FORMER", key, message, renaming(action, key, here, value))
    if key in FLAG_WORDS and action != "quantize":
        flag = f" {FLAG_WORDS[key]} {value}" if type(value) is int else ""
        return unknown(f"a word for {FLAG_WORDS[key]}", [], f"--unset {key}{flag}")
    if inside := [name for name in keys(action) if name.startswith(f"{key}.")]:
        return unknown("a table", inside[:3], as_flags({key: None}))
    for other in [one for one in bundle.ACTIONS if one != action]:
        full = full_name(other, key)
        if full in keys(other):
            names = [name for name in keys(action) if name.rsplit(".", 1)[-1] == full.rsplit(".", 1)[-1]]
            return unknown(f"a key of the {other} spec" + f", {full}" * (full != key), names)
    leaves = (isinstance(value, dict) and [leaf for leaf, _ in items(action, value, f"{key}.")]) or [key]
    if all(is_extra(action, leaf) for leaf in leaves):
        fix = " ".join(f"--allow-extra-key {shlex.quote(leaf)}" for leaf in leaves)
        return unknown("a key of the trainer that is not checked here", [], fix)
    return unknown("an unknown key", suggestions(action, key))


def full_name(action: str, name: str) -> str:
    """The key that is meant by a short name, or by the last part of one key only; other names, and keys, stay."""
    known, short = keys(action), bundle.skill_info()["shorthand"][action]
    if name in known or name in short:
        return short.get(name, name)
    ends = [key for key in known if key.endswith(f".{name}")] if "." not in name else []
    return ends[0] if len(ends) == 1 else name


def renaming(action: str, key: str, names: list[str], value) -> str:
    """The fix that takes `key` away and gives its value, or each value of the table, to the first of `names`.

    Empty when a value is not legal there: another value would not be the user's.
    """
    if not names:
        return as_flags({key: None})
    name, moved = names[0], {key: None}
    table = isinstance(value, dict) and name not in keys(action)
    for full, sub in items(action, value, f"{name}.") if table else [(name, value)]:
        near_it = [full, *suggestions(action, full)] if table else [full]
        meant = next((one for one in near_it if one in keys(action)), full)
        moved[meant] = _repaired(action, meant, sub)
    return "" if MISSING in moved.values() else as_flags(moved)


def suggestions(action: str, key: str) -> list[str]:
    """Legal names that `key` may have meant: its last part in another table, or a key, table or short name like it."""
    known, short = keys(action), bundle.skill_info()["shorthand"][action]
    leaf = key.rsplit(".", 1)[-1]
    tables = {name.rsplit(".", depth)[0] for name in known for depth in range(1, name.count(".") + 1)}
    by_leaf = short | {name.rsplit(".", 1)[-1]: name for name in known}
    same = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    near_leaf = [by_leaf[name] for name in f.nearest(leaf, by_leaf)]
    return list(dict.fromkeys([*same, *f.nearest(key, [*known, *tables]), *near_leaf]))[:3]
