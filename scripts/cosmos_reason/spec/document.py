"""One action's spec: a nested table of keys, read from TOML or YAML, and what its schema knows of
them.

In a schema a property's `default` is what the trainer assumes when the key is absent (null: the
feature is off); the schema's own top-level `default` is our template, a complete starting spec.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import bad_input
from cosmos_reason.spec.values import LONG_KEY, MAX_DEPTH

MISSING = object()
IS_OFF = (None, False, 0, "", "none")  # values of a key with which what depends on it is off
MAX_BYTES = 1 << 18
FREE_NAMES = ("alpha_pattern", "r_pattern", "reward_function")  # tables whose names are not ours


# ---- nested tables -------------------------------------------------------------------------------


SUFFIXES = (".toml", ".yaml", ".yml")
ENGINE_NOTE = "# made for --engine "  # in one of the first lines


def get(spec: dict, key: str, default=None):
    """Return the value at a dotted key, or `default` when any part of the path is absent."""
    node = spec
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return default
        node = node[part]
    return node


def set_value(spec: dict, key: str, value) -> None:
    """Set a dotted key, making the tables on the way (a value in their place is replaced by a
    table)."""
    *tables, last = key.split(".")
    node = spec
    for part in tables:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value


def set_values(spec: dict, values: dict[str, object]) -> None:
    """Set several dotted keys."""
    for key, value in values.items():
        set_value(spec, key, value)


def delete(spec: dict, key: str) -> bool:
    """Remove a key or a whole table, and the tables it leaves empty. False when it was not
    there."""
    head, _, rest = key.partition(".")
    if not isinstance(spec, dict) or head not in spec:
        return False
    if not rest:
        del spec[head]
        return True
    removed = delete(spec[head], rest)
    if removed and not spec[head]:
        del spec[head]
    return removed


def items(action: str, spec: dict, prefix: str = "") -> list[tuple[str, object]]:
    """Return (dotted key, value) of every leaf; a table that the schema treats as one value is not
    taken apart, and an empty one stays, to be refused."""
    known = keys(action)
    found = []
    for name, value in spec.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and key not in known:
            found += items(action, value, f"{key}.")
        else:
            found.append((key, value))
    return found


def by_key(spec: dict, prefix: str = "") -> dict[str, object]:
    """Return every value of a spec by its dotted key, tables included."""
    found = {}
    for name, value in spec.items():
        found[f"{prefix}{name}"] = value
        if isinstance(value, dict):
            found |= by_key(value, f"{prefix}{name}.")
    return found


def overlap(key: str, other: str) -> bool:
    """Return whether one is the other, or a table around it."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def last_part(key: str) -> str:
    """Return the last part of a key: `optm_lr` of `train.optm_lr`."""
    return key.rpartition(".")[2]


# ---- what the schema says ------------------------------------------------------------------------


@functools.cache
def keys(action: str) -> dict[str, dict]:
    """Return dotted key -> its schema, for every value the action knows."""
    return dict(_walk(bundle.schema(action), ""))


def _walk(schema: dict, prefix: str) -> Iterator[tuple[str, dict]]:
    for name, sub in schema["properties"].items():
        if "properties" in sub:
            yield from _walk(sub, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", sub


def custom_tables(action: str) -> dict[str, dict]:
    """Return the tables under `custom` that are known here."""
    return bundle.schema(action)["properties"]["custom"]["properties"]


@functools.cache
def extra_keys_of(action: str) -> frozenset[str]:
    """Return the keys of cosmos-rl's own configuration class that the action's schema lacks."""
    tables = _trainer_keys()
    if action not in tables:
        return frozenset()
    found = _dotted(tables["both"]) | _dotted(tables[action])
    for other in ("train", "grpo"):  # all but train.train_policy is the same for both
        for key, schema in keys(other).items():
            is_own = key.startswith(("custom.", "train.train_policy."))
            if "cosmos-rl" in schema["x-engines"] and not is_own:
                found.add(key)
    return frozenset(found - keys(action).keys())


@functools.cache
def former_keys() -> frozenset[str]:
    """Return the keys that the class had before 0.4.7, which ignores them."""
    return frozenset(_dotted(_trainer_keys()["former"]))


@functools.cache
def _trainer_keys() -> dict:
    import yaml

    path = Path(__file__).with_name("cosmos_rl_keys.yaml")
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


def _dotted(tables: dict) -> set[str]:
    return {f"{table}.{name}".lstrip(".") for table, names in tables.items() for name in names}


def extra_keys(spec: dict) -> list[str]:
    """Return the keys that a spec itself says may be unknown here (`--allow-extra-key`)."""
    named = get(spec, "custom.extra_keys", [])
    if not isinstance(named, list):
        return []
    return [key for key in named if isinstance(key, str)]


def template(action: str) -> dict:
    return copy.deepcopy(bundle.schema(action)["default"])


def with_defaults(action: str, spec: dict) -> dict:
    """Return a deep copy of `spec` in which every known key is present (None where the trainer has
    no default).

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


# ---- files ---------------------------------------------------------------------------------------


def load(path: Path) -> dict:
    """Read a .toml or .yaml spec. Raises Failure (exit 2) on anything that is not one plain table
    of keys."""
    path = Path(path)
    is_file = os.path.isfile(path)  # no error for a name that is too long
    if os.path.lexists(path) and not is_file:
        message = "got something that is not a file, expected a .toml or .yaml spec"
        raise bad_input("SPEC-FILE", path, message)
    if is_file and path.stat().st_size > MAX_BYTES:
        message = f"got {path.stat().st_size} bytes, expected a spec of at most {MAX_BYTES}"
        raise bad_input("SPEC-FILE", path, message)
    if path.suffix not in SUFFIXES:
        message = f"got the ending {path.suffix!r}, expected .toml, .yaml or .yml"
        raise bad_input("SPEC-FILE", path, message)
    if path.suffix == ".toml":
        if LONG_KEY.search(files.read_text(path)):
            message = f"got a dotted key of more than {MAX_DEPTH} parts, expected fewer"
            raise bad_input("SPEC-FILE", path, message)
        spec = files.read_toml(path)
    else:
        spec = _read_yaml(path)
    if not spec:
        raise bad_input("SPEC-FILE", path, "got an empty file, expected a table of keys")
    _refuse_dots_and_depth(path, spec)
    return spec


def dump(spec: dict, path: Path, edited_as: str = "", schema: str = "", engine: str = "") -> None:
    """Write `spec` as TOML; the file appears whole or not at all. `edited_as` is the action whose
    schema the first line names, for editors that know taplo; `schema` its address where that is not
    the one in this bundle. `engine` is the one that it was made for, which a copy tells too."""
    import tomli_w

    text = tomli_w.dumps(spec)
    if engine:
        text = f"{ENGINE_NOTE}{engine}\n{text}"
    if edited_as and not schema:
        # Relative in a spec of the project that the skill is installed in, so that both may move
        # together; for any other spec the place on this machine.
        there = bundle.schema_path(edited_as)
        folder = Path(os.path.realpath(path)).parent
        schema = there.as_uri()
        if folder.is_relative_to(bundle.project()):
            schema = Path(os.path.relpath(there, folder)).as_posix()
    if edited_as:
        text = f"#:schema {schema}\n{text}"
    files.write_text(Path(path), text)


def _refuse_dots_and_depth(
    path: Path, node: dict | list, depth: int = 1, is_free: bool = False
) -> None:
    """Refuse names that would be read as a path of tables (`"train.epoch" = 3`), and nesting no
    trainer has."""
    if depth > MAX_DEPTH:
        message = f"got more than {MAX_DEPTH} nested tables or lists, expected fewer"
        raise bad_input("SPEC-FILE", path, message)
    named = node.items() if isinstance(node, dict) else [("", entry) for entry in node]
    for name, inner in named:
        if "." in name and not is_free:
            raise bad_input("SPEC-FILE", path, f"got the key {name!r}, expected nested tables")
        if isinstance(inner, dict | list):
            _refuse_dots_and_depth(path, inner, depth + 1, is_free or name in FREE_NAMES)


def _read_yaml(path: Path) -> dict:
    import yaml

    class Plain(yaml.CSafeLoader):
        def construct_mapping(self, node, deep=False):
            where = f"{path}:{node.start_mark.line + 1}"
            names = [name.value for name, _ in node.value]
            if any(name.tag != "tag:yaml.org,2002:str" for name, _ in node.value):
                message = f"got keys {names}, expected keys that are plain text"
                raise bad_input("SPEC-FILE", where, message)
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:  # of which YAML keeps the last
                message = f"got {', '.join(twice)} twice, expected it once"
                raise bad_input("SPEC-KEY-TWICE", where, message)
            return super().construct_mapping(node, deep)

    written = files.read_text(path)
    try:
        _refuse_aliases_and_depth(path, written)
        spec = yaml.load(written, Loader=Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        message = " ".join(str(problem).split())
        raise bad_input("SPEC-FILE", path, f"got {message}, expected valid YAML") from None
    if not isinstance(spec, dict):
        raise bad_input("SPEC-FILE", path, f"got {type(spec).__name__}, expected a table of keys")
    return spec


def _refuse_aliases_and_depth(path: Path, written: str) -> None:
    """Refuse what has to be refused before YAML is composed: a few lines of aliases unfold to
    gigabytes, and deep nesting overruns the C stack."""
    import yaml

    depth = 0
    for event in yaml.parse(written, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):
            message = f"got an alias (&/*) or more than {MAX_DEPTH} nested tables or lists"
            where = f"{path}:{event.start_mark.line + 1}"
            raise bad_input("SPEC-FILE", where, f"{message}, expected plain values")
