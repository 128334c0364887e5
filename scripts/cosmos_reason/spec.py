"""One action's spec: a nested table of keys, read from TOML or YAML, checked against schemas/<action>.schema.json.

In a schema a property's `default` is what the trainer assumes when the key is absent (null: the feature is off);
the schema's own top-level `default` is our template, a complete starting spec.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason import bundle, storage
from cosmos_reason import findings as f

MISSING = object()
MAX_BYTES = 1 << 20
MAX_DEPTH = 32


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


def unapplied(action: str, engine: str, spec: dict) -> list[str]:
    """Keys that ask `engine` for something it does not do.

    A key counts when the engine does not honour it and its value is not the neutral one: the template's, or, for a
    key the template leaves out, the trainer's default. Takes a spec as written, before `with_defaults`.
    """
    base = bundle.schema(action)["default"]
    known = keys(action)
    return [
        key
        for key, value in items(action, spec)
        if key in known
        and engine not in known[key]["x-engines"]
        and value != get(base, key, known[key].get("default", MISSING))
    ]


def expected(schema: dict) -> str:
    """What a key accepts, in words: 'a whole number from 1 to 64', 'one of sft'."""
    if "anyOf" in schema:
        return " or ".join(expected(option) for option in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        options = [schema["const"]] if "const" in schema else schema["enum"]
        return ("one of " if len(options) > 1 else "") + ", ".join(text(option) or '""' for option in options)
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return f"{'a whole number' if kind == 'integer' else 'a number'}{_bounds(schema)}"
    if kind == "array":
        return f"a list of {_count(schema)}{expected(schema['items'])}"
    words = {"boolean": "true or false", "string": "text", "object": "a table of keys"}
    return "non-empty text" if kind == "string" and schema.get("minLength") else words[kind]


def _bounds(schema: dict) -> str:
    parts = []
    if schema.get("multipleOf"):
        parts.append(f"divisible by {schema['multipleOf']}")
    limits = {"from": "minimum", "above": "exclusiveMinimum", "to": "maximum", "below": "exclusiveMaximum"}
    for word, name in limits.items():
        if name in schema:
            parts.append(f"{word} {schema[name]}")
    return " " + " ".join(parts) if parts else ""


def _count(schema: dict) -> str:
    fixed = schema.get("minItems") is not None and schema.get("minItems") == schema.get("maxItems")
    return f"{schema['minItems']}: " if fixed else ""


# ---- values as text ------------------------------------------------------------------------------------------------


def text(value) -> str:
    """A value as it is written after `--set key=`: text as it is, all else as TOML."""
    return value if isinstance(value, str) else _inline(value)


def _inline(value) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline(name)} = {_inline(sub)}" for name, sub in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON is TOML but for this


def set_flag(key: str, value) -> str:
    """A pasteable `--set key=value`, quoted for a POSIX shell."""
    return f"--set {shlex.quote(f'{key}={text(value)}')}"


def parse(schema: dict, written: str):
    """The value of `--set key=written`: TOML where the key takes more than text, plain text otherwise.

    `a,b` for a list is two entries. Text that does not read as the key's kind stays text, for `validate` to refuse.
    """
    if schema.get("type") == "string":
        quoted = written.startswith(('"', "'")) and _toml(written)
        return quoted if isinstance(quoted, str) else written
    value = _toml(written)
    if isinstance(value, str) and _takes(schema, "array") and not _is_choice(schema, written):
        item = next(option for option in _options(schema) if option.get("type") == "array")["items"]
        return [parse(item, part.strip()) for part in written.split(",")]
    return value


def _toml(written: str):
    import tomllib

    try:
        read = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):  # ValueError: bad TOML, or a number of thousands of digits
        return written
    return read["value"] if len(read) == 1 else written


def _options(schema: dict) -> list[dict]:
    return schema.get("anyOf", [schema])


def _takes(schema: dict, kind: str) -> bool:
    return any(option.get("type") == kind for option in _options(schema))


def _is_choice(schema: dict, written: str) -> bool:
    """Whether the text is legal as it stands, so that it is not taken for a list with one entry."""
    return any(
        option.get("const") == written or (option.get("type") == "string" and "," not in written)
        for option in _options(schema)
    )


# ---- files ---------------------------------------------------------------------------------------------------------


def load(path: Path) -> dict:
    """Read a .toml or .yaml spec. Raises Failure (exit 2) on anything that is not one plain table of keys."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise f.bad_input("SPEC-FILE", path, "got something that is not a file, expected a .toml or .yaml spec")
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise f.bad_input("SPEC-FILE", path, f"got {path.stat().st_size} bytes, expected a spec of at most {MAX_BYTES}")
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise f.bad_input("SPEC-FILE", path, f"got the ending {path.suffix!r}, expected .toml, .yaml or .yml")
    spec = storage.read_toml(path) if path.suffix == ".toml" else _read_yaml(path)
    _refuse_dots_and_depth(path, spec)
    return spec


def _refuse_dots_and_depth(path: Path, spec: dict) -> None:
    """Names that would be read as a path of tables (`"train.epoch" = 3`), and nesting no trainer has."""
    waiting = [(spec, 1, True)]
    while waiting:
        node, depth, ours = waiting.pop()
        if depth > MAX_DEPTH:
            raise f.bad_input("SPEC-FILE", path, f"got more than {MAX_DEPTH} nested tables or lists, expected fewer")
        dotted = [name for name in node if "." in name] if ours and isinstance(node, dict) else []
        if dotted:
            raise f.bad_input("SPEC-FILE", path, f"got the key {dotted[0]!r}, expected nested tables")
        for name, sub in node.items() if isinstance(node, dict) else ((None, sub) for sub in node):
            if isinstance(sub, dict | list):
                waiting.append((sub, depth + 1, ours and name not in ("alpha_pattern", "r_pattern", "reward_function")))


def _read_yaml(path: Path) -> dict:
    import yaml

    written = storage.read_text(path)
    loader = yaml.CSafeLoader(written)
    try:
        depth = 0
        for event in yaml.parse(written, Loader=yaml.CSafeLoader):  # composing deep nesting overruns the C stack
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise f.bad_input("SPEC-FILE", path, f"got more than {MAX_DEPTH} nested tables or lists")
        node = loader.get_single_node()
        _refuse_tricks(path, node)
        spec = loader.construct_document(node) if node else None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        message = " ".join(str(problem).split())
        raise f.bad_input("SPEC-FILE", path, f"got {message}, expected valid YAML") from None
    finally:
        loader.dispose()
    if not isinstance(spec, dict):
        raise f.bad_input("SPEC-FILE", path, f"got {type(spec).__name__}, expected a table of keys")
    return spec


def _refuse_tricks(path: Path, root) -> None:
    """Aliases (a few lines can unfold to gigabytes), keys given twice, and keys that are not text."""
    import yaml

    seen, waiting = set(), [root] if root else []
    while waiting:
        node = waiting.pop()
        line = node.start_mark.line + 1
        if id(node) in seen:
            raise f.bad_input("SPEC-FILE", f"{path}:{line}", "got a YAML alias (&/*), expected plain values")
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value]
            if any(key.tag != "tag:yaml.org,2002:str" for key, _ in node.value):
                raise f.bad_input("SPEC-FILE", f"{path}:{line}", f"got keys {names}, expected keys that are plain text")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise f.bad_input("SPEC-KEY-TWICE", f"{path}:{line}", f"got {', '.join(twice)} twice, expected it once")
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def dump(spec: dict, path: Path) -> None:
    """Write `spec` as TOML; the file appears whole or not at all."""
    import tomli_w

    storage.write_text(Path(path), tomli_w.dumps(spec))


# ---- validation ----------------------------------------------------------------------------------------------------


def validate(action: str, spec: dict) -> list[f.Finding]:
    """Every way in which `spec` departs from the action's schema, one finding per key.

    Unknown keys that `custom.extra_keys` names are warnings: they are passed on and nobody here checks them.
    """
    found: dict[str, f.Finding] = {}
    portable = copy.deepcopy(spec)
    for key, problem in _unportable(spec, ""):
        found[key] = f.error("SPEC-VALUE", key, f"got {problem}", f"--unset {shlex.quote(key)}")
        delete(portable, key)
    for key in extra_keys(portable):
        if key not in keys(action) and delete(portable, key):
            found[key] = f.warning("SPEC-KEY-EXTRA", key, "passed on unchecked, as --allow-extra-key asked")
    for problem in _validator(action).iter_errors(portable):
        for finding in _explain(action, problem):
            found.setdefault(finding.where, finding)
    return list(found.values())


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
    """What the schema cannot refuse but no trainer's TOML can hold."""
    if isinstance(value, dict):
        for name, sub in value.items():
            yield from _unportable(sub, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for sub in value:
            yield from _unportable(sub, key)
    elif isinstance(value, float) and not math.isfinite(value):
        yield key, f"{value}, expected a finite number"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield key, "a number beyond 64 bits, expected a smaller one"
    elif isinstance(value, str) and not value.isascii() and value.encode("utf-8", "replace").decode() != value:
        yield key, "text with bytes that are not UTF-8, expected valid text"
    elif not isinstance(value, bool | int | float | str):
        yield key, f"{'null' if value is None else type(value).__name__}, expected text, a number, true/false or a list"


def _explain(action: str, problem) -> Iterator[f.Finding]:
    where = ".".join(part for part in problem.absolute_path if isinstance(part, str))
    prefix = f"{where}." if where else ""
    if problem.validator == "additionalProperties" and "properties" in problem.schema:
        for name in problem.instance.keys() - problem.schema["properties"].keys():
            yield unknown_key(action, f"{prefix}{name}")
    elif problem.validator == "required":
        for name in problem.validator_value:
            if name not in problem.instance:
                yield _missing(action, f"{prefix}{name}")
    else:
        schema = keys(action).get(where) or problem.schema
        hint = f.did_you_mean(str(problem.instance), [str(option) for option in schema.get("enum", [])])
        message = f"got {shown(problem.instance)}, expected {expected(schema)}.{hint}"
        yield f.error("SPEC-VALUE", where or "spec", message)


def shown(value, limit: int = 80) -> str:
    """A value as it appears in a message, cut when long."""
    written = repr(value)
    return written if len(written) <= limit else f"{written[:limit]}... ({len(written)} characters)"


def _missing(action: str, key: str) -> f.Finding:
    if key.startswith("policy.lora."):
        return f.error("SPEC-KEY-MISSING", key, "got no value, expected the key to be written", "--tuning lora")
    value = get(bundle.schema(action)["default"], key, keys(action).get(key, {}).get("default", ""))
    fix = "" if isinstance(value, dict) or value is None else set_flag(key, value)
    return f.error("SPEC-KEY-MISSING", key, "got no value, expected the key to be written", fix)


def unknown_key(action: str, key: str) -> f.Finding:
    """The finding about a key that the action does not have, with the names it may have meant."""
    former = bundle.skill_info()["former_keys"].get(key.rsplit(".", 1)[-1])
    if former:
        fix = f"--set {former['key']}=..." if former["key"] in keys(action) else ""
        return f.error("SPEC-KEY-FORMER", key, f"got a name no trainer reads; {former['note']}", fix)
    near = suggestions(action, key)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    fix = f"--allow-extra-key {shlex.quote(key)}"
    if near:
        fix = f"--set {near[0]}=..." if near[0] in keys(action) else ""
    return f.error("SPEC-KEY-UNKNOWN", key, f"got an unknown key, expected one the {action} spec has.{hint}", fix)


def suggestions(action: str, key: str) -> list[str]:
    """Legal names that `key` may have meant: its last part in another table, or a key or table spelt nearly so."""
    known = keys(action)
    leaf = key.rsplit(".", 1)[-1]
    tables = {name.rsplit(".", depth)[0] for name in known for depth in range(1, name.count(".") + 1)}
    by_leaf = {name.rsplit(".", 1)[-1]: name for name in known}
    same = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    near_leaf = [by_leaf[name] for name in f.nearest(leaf, by_leaf)]
    return list(dict.fromkeys([*same, *f.nearest(key, [*known, *tables]), *near_leaf]))[:3]
