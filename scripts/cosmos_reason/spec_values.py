"""Values of keys: how they are written on a command line, what a key accepts, and what a wrong value may have meant."""

from __future__ import annotations

import json
import re
import shlex

from cosmos_reason import findings as f

MAX_DEPTH = 32
# tomllib needs time and memory that grow with the square of a dotted key's length
LONG_KEY = re.compile(rf"""(?:(?>[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MAX_DEPTH}}}""")
CLOSING = {"(": ")", "[": "]", "{": "}"}


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


def as_flags(changes: dict) -> str:
    """Changes to a spec, key -> value, as pasteable flags; None takes a key away."""
    unset = {key: f"--unset {shlex.quote(key)}" for key, value in changes.items() if value is None}
    return " ".join(unset.get(key) or set_flag(key, value) for key, value in changes.items())


def parse(schema: dict, written: str):
    """The value of `--set key=written`: TOML where the key takes more than text, plain text otherwise.

    `a,b` for a list is two entries. Text that does not read as the key's kind stays text, for `validate` to refuse.
    """
    if schema.get("type") == "string":
        quoted = written.startswith(('"', "'")) and _toml(written)
        return quoted if isinstance(quoted, str) else written
    value = _toml(written)
    lists = [option for option in _options(schema) if option.get("type") == "array"]
    if isinstance(value, str) and lists and not _is_choice(schema, written):
        quoted = _toml(f"[{written}]")
        if isinstance(quoted, list) and quoted and all(isinstance(part, str) for part in quoted):
            return quoted
        return [parse(lists[0]["items"], part) for part in _parts(written)]
    return value


def _parts(written: str) -> list[str]:
    """The entries of a list, cut at commas; those inside brackets belong to a regular expression."""
    if re.fullmatch(r"\[[\w\s.,/-]*\]", written):
        written = written[1:-1]
    parts, closing = [""], ""
    for sign in written:
        if sign == "," and not closing:
            parts.append("")
            continue
        parts[-1] += sign
        closing = closing[:-1] if closing and sign == closing[-1] else closing + CLOSING.get(sign, "")
    return [part.strip() for part in (written.split(",") if closing else parts)]


def _toml(written: str):
    import tomllib

    if LONG_KEY.search(written):
        return written
    try:
        read = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):  # ValueError: bad TOML, or a number of thousands of digits
        return written
    return read["value"] if len(read) == 1 else written


def _options(schema: dict) -> list[dict]:
    return schema.get("anyOf", [schema])


def _is_choice(schema: dict, written: str) -> bool:
    """Whether the text is legal as it stands, so that it is not taken for a list with one entry."""
    return any(
        option.get("const") == written or (option.get("type") == "string" and "," not in written)
        for option in _options(schema)
    )


def shown(value, limit: int = 80) -> str:
    """A value as it appears in a message, cut when long."""
    written = repr(value)
    return written if len(written) <= limit else f"{written[:limit]}... ({len(written)} characters)"


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
        count = f"{schema['minItems']}: " if schema.get("minItems", 0) == schema.get("maxItems") else ""
        return f"a list of {count}{expected(schema['items'])}{', each once' if schema.get('uniqueItems') else ''}"
    words = {"boolean": "true or false", "string": "text", "object": "a table of keys"}
    if schema.get("pattern") == ".*/.*":
        return "a path"
    return "non-empty text" if kind == "string" and schema.get("minLength") else words[kind]


def _bounds(schema: dict) -> str:
    limits = {"from": "minimum", "above": "exclusiveMinimum", "to": "maximum", "below": "exclusiveMaximum"}
    limits = {"divisible by": "multipleOf"} | limits
    return "".join(f" {word} {schema[name]}" for word, name in limits.items() if name in schema)


def near(schema: dict, value) -> list:
    """What a value that `schema` refuses may have meant, legal or not: text as what it says or the nearest choice, a
    whole number. Never another number: that would not be the user's."""
    if isinstance(value, float) and value.is_integer():
        return [int(value)]
    if not isinstance(value, str):
        return []
    options = [choice for option in _options(schema) for choice in option.get("enum", [option.get("const")])]
    choices = {str(choice).lower(): choice for choice in options if choice is not None}
    named = (choices[name] for name in f.nearest(value.lower(), choices))
    return [parse(schema, value), parse(schema, value.lower()), *named]
