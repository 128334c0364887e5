"""Values of keys: how a command line writes them, what a key accepts, and what a wrong value may
have meant."""

from __future__ import annotations

import re
import tomllib

from cosmos_reason.base.fix import value_text
from cosmos_reason.base.texts import shortened

MAX_DEPTH = 32
# tomllib needs time and memory that grow with the square of a dotted key's length.
LONG_KEY = re.compile(rf"""(?:(?>[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MAX_DEPTH}}}""")
CLOSING = {"(": ")", "[": "]", "{": "}"}
BOUNDS = {
    "divisible by": "multipleOf",
    "from": "minimum",
    "above": "exclusiveMinimum",
    "to": "maximum",
    "below": "exclusiveMaximum",
}
# What other trainers call a choice of ours, each plain.
SAME_VALUES = {
    **dict.fromkeys(("bf16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "half", "torch.float16"), "float16"),
    **dict.fromkeys(("fp32", "float", "torch.float32"), "float32"),
    "adamwtorch": "AdamW",
}
YES_OR_NO = {"yes": [True], "on": [True], "no": [False], "off": [False]}
KINDS = {
    "boolean": "true or false",
    "string": "text",
    "object": "a table of keys",
    "integer": "a whole number",
    "number": "a number",
}


# ---- as they are written -------------------------------------------------------------------------


def parse(schema: dict, written: str):
    """Return the value of `--set key=written`: TOML where the key takes more than text, plain text
    otherwise.

    `a,b` for a list is two entries. Text that does not read as the key's kind stays text, for
    `validate` to refuse.
    """
    if schema.get("type") == "string":
        # In brackets stand several, which are no name of a file; a name with them can be quoted.
        if schema.get("x-path") and written.startswith("[") and written.endswith("]"):
            inside = written[1:-1].strip()
            return _list({"items": {"type": "string"}}, inside) if inside else []
        value = _toml(written) if written.startswith(('"', "'")) else written
        return value if isinstance(value, str) else written
    value = _toml(written)
    for option in _options(schema):  # what is legal as it stands is no list with one entry
        is_text = option.get("type") == "string" and "," not in written
        if is_text or option.get("const") == written:
            return value
    if not isinstance(value, str):
        return value
    lists = [option for option in _options(schema) if option.get("type") == "array"]
    return _list(lists[0], written) if lists else value


def _list(schema: dict, written: str) -> list:
    """Return the entries of `a,b`, each perhaps quoted."""
    quoted = _toml(f"[{written}]")
    if isinstance(quoted, list) and quoted and all(isinstance(entry, str) for entry in quoted):
        return quoted
    return [parse(schema["items"], entry) for entry in _entries(written)]


def _entries(written: str) -> list[str]:
    """Return the entries of a list, cut at commas; those inside brackets belong to a regular
    expression."""
    if re.fullmatch(r"\[[\w\s.,/-]*\]", written):
        written = written[1:-1]
    entries = [""]
    to_close = ""  # the brackets that are open, by the sign that closes each
    for sign in written:
        if sign == "," and not to_close:
            entries.append("")
            continue
        entries[-1] += sign
        if to_close and sign == to_close[-1]:
            to_close = to_close[:-1]
        else:
            to_close += CLOSING.get(sign, "")
    if to_close:  # no brackets of an expression after all
        entries = written.split(",")
    return [entry.strip() for entry in entries]


def _toml(written: str):
    """Return the value that the text is in TOML, else the text."""
    if LONG_KEY.search(written):
        return written
    try:
        read = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):  # ValueError: bad TOML, or a number of thousands of digits
        return written
    return read["value"] if len(read) == 1 else written


def _options(schema: dict) -> list[dict]:
    return schema.get("anyOf", [schema])


# ---- as they are told ----------------------------------------------------------------------------


def shown(value, limit: int = 80) -> str:
    """Return a value as it appears in a message, cut when long."""
    return shortened(repr(value), limit)


def expected(schema: dict) -> str:
    """Return what a key accepts, in words: 'a whole number from 1 to 64', 'one of sft'."""
    if "anyOf" in schema:
        return " or ".join(expected(option) for option in schema["anyOf"])
    if "const" in schema:
        return _choices([schema["const"]])
    if "enum" in schema:
        return _choices(schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        least = schema.get("minItems", 0)
        count = f"{least}: " if least == schema.get("maxItems") else ""
        unique = ", each once" if schema.get("uniqueItems") else ""
        return f"a list of {count}{expected(schema['items'])}{unique}"
    if schema.get("pattern") == ".*/.*":
        return "a path"
    if kind == "string" and schema.get("minLength"):
        return "non-empty text"
    bounds = [f" {word} {schema[name]}" for word, name in BOUNDS.items() if name in schema]
    return KINDS[kind] + "".join(bounds)


def _choices(options: list) -> str:
    texts = [value_text(option) or '""' for option in options]
    prefix = "one of " if len(texts) > 1 else ""
    return prefix + ", ".join(texts)


# ---- what was meant ------------------------------------------------------------------------------


def near(schema: dict, value) -> list:
    """Return other ways to write what a value says that `schema` refuses, legal or not: text as the
    number or the choice that it says, a whole number, one entry of a list. Never another value,
    however alike: INT4 is no FP8, float64 no float16."""
    if isinstance(value, float) and value.is_integer():
        return [int(value)]
    if isinstance(value, list):
        if len(value) == 1:
            return value
        ours = {_plain(choice): choice for choice in schema.get("items", {}).get("enum", ())}
        return [list(dict.fromkeys(ours.get(_plain(entry), str(entry)) for entry in value))]
    if not isinstance(value, str):
        return []
    choices = {}
    for option in _options(schema):
        for choice in option.get("enum", [option.get("const")]):
            if choice is not None:
                choices[_plain(choice)] = choice
    plain = _plain(value)
    meant = [plain, *([_plain(SAME_VALUES[plain])] if plain in SAME_VALUES else [])]
    same = [choices[name] for name in meant if name in choices]
    return [parse(schema, value), parse(schema, value.lower()), *same, *YES_OR_NO.get(plain, [])]


def _plain(value: object) -> str:
    """Return a choice without what people write in many ways: case, blanks, - and _."""
    return re.sub(r"[\s_-]", "", str(value)).lower()
