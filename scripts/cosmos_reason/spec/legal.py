"""Which values a key may have: those its schema takes, and that every trainer's TOML reader keeps
as they are."""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Iterator

from cosmos_reason.base import bundle
from cosmos_reason.spec import actions, document, images, values
from cosmos_reason.spec.keys import RATE

PER_PART = (RATE, "train.optm_impl")
# Of torchao; cosmos-rl takes them, and its choices do not name them.
OTHER_VALUES = {"train.optm_name": ("Adam8bit", "AdamW8bit")}
TAKES_MORE = {*PER_PART, *OTHER_VALUES}  # keys of ours whose other values a trainer may take


@functools.cache
def validator(action: str):
    """Return jsonschema's validator, for which 3.0 is no whole number: a trainer would not take it
    as a count."""
    import jsonschema

    base = jsonschema.Draft202012Validator
    integers = base.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return jsonschema.validators.extend(base, type_checker=integers)(bundle.schema(action))


# ---- in a moment ---------------------------------------------------------------------------------


def fits(schema: dict, value) -> bool:
    """Return whether a schema of ours surely takes a value. Where it is false, jsonschema says what
    is wrong, if anything is: importing it takes longer than all else that makes most specs."""
    for keyword, limit in schema.items():
        if keyword in _CHECKS and not _CHECKS[keyword](limit, value):
            return False
    others = schema.get("additionalProperties", True)
    names = value.keys() - schema.get("properties", {}).keys() if isinstance(value, dict) else ()
    return others is True or not names or (
        isinstance(others, dict) and all(fits(others, value[name]) for name in names)
    )  # fmt: skip


_KINDS = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
    "array": (list,), "object": (dict,),
}  # fmt: skip
_NUMBERS = (int, float)
# keyword -> whether (what the schema says, a value) go together; of a value of another kind than
# the keyword is about, no.
_CHECKS = {
    "type": lambda kind, value: type(value) in _KINDS[kind],
    # Of equal values one may be of another kind, as True and 1 are.
    "enum": lambda choices, value: any(
        type(choice) is type(value) and choice == value for choice in choices
    ),
    "const": lambda choice, value: type(choice) is type(value) and choice == value,
    "anyOf": lambda options, value: any(fits(option, value) for option in options),
    "minimum": lambda least, value: type(value) in _NUMBERS and value >= least,
    "exclusiveMinimum": lambda least, value: type(value) in _NUMBERS and value > least,
    "maximum": lambda most, value: type(value) in _NUMBERS and value <= most,
    "exclusiveMaximum": lambda most, value: type(value) in _NUMBERS and value < most,
    "multipleOf": lambda step, value: type(value) is type(step) is int and value % step == 0,
    "minLength": lambda least, value: type(value) is str and len(value) >= least,
    "pattern": lambda pattern, value: type(value) is str and bool(re.search(pattern, value)),
    "minItems": lambda least, value: type(value) is list and len(value) >= least,
    "maxItems": lambda most, value: type(value) is list and len(value) <= most,
    "uniqueItems": lambda _, value: type(value) is list and len(set(map(str, value))) == len(value),
    "items": lambda schema, value: (
        type(value) is list and all(fits(schema, entry) for entry in value)
    ),
    "required": lambda names, value: type(value) is dict and all(name in value for name in names),
    "minProperties": lambda least, value: type(value) is dict and len(value) >= least,
    "properties": lambda known, value: (
        type(value) is dict
        and all(fits(schema, value[name]) for name, schema in known.items() if name in value)
    ),
    "additionalProperties": lambda _, value: type(value) is dict,  # `fits` looks at the names
}


# ---- exactly -------------------------------------------------------------------------------------


def meant(action: str, key: str, value):
    """Return `value` itself when the key takes it, else a legal one that it may have meant, or
    MISSING."""
    if key not in document.keys(action):
        return document.MISSING
    schema = document.keys(action)[key]
    is_valid = validator(action).evolve(schema=schema).is_valid
    for candidate in (value, *values.near(schema, value)):
        if is_valid(candidate) and not any(unportable(candidate, key)):
            return candidate
    return document.MISSING


def takes(action: str, schema: dict, value) -> bool:
    """Return whether a value is legal by a schema that is not the action's own."""
    return validator(action).evolve(schema=schema).is_valid(value)


def is_trainers_own(action: str, key: str, value) -> bool:
    """Return whether cosmos-rl 0.4.7, a version before it, or an image of NVIDIA's has what no
    schema here describes: a key, an empty table, a value, or one for each part of the model."""
    if key in PER_PART and isinstance(value, list | dict) and value:
        # One rate for each part of the model, 0 for a part that is not trained.
        is_valid = validator(action).evolve(schema=document.keys(action)[key]).is_valid
        entries = value.values() if isinstance(value, dict) else value
        trained = [entry for entry in entries if entry != 0]
        return bool(trained) and all(is_valid(entry) for entry in trained)
    if key in OTHER_VALUES and value in OTHER_VALUES[key]:
        return True
    if value == {}:
        return any(name.startswith(f"{key}.") for name in document.extra_keys_of(action))
    if key in document.keys(action):
        return False
    if key in images.settings(action):
        return True
    if action in actions.TRAINING and key in document.former_keys():
        return True
    known = document.extra_keys_of(action)
    while key and key not in known:  # the class may have a table around it
        key = key.rpartition(".")[0]
    return bool(key)


def unportable(value, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, problem) of what the schema cannot refuse but no trainer's TOML can hold, or
    cosmos-rl's reader of it (toml 0.10.2) loses."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from unportable(inner, f"{key}.{name}" if key else str(name))
        return
    if isinstance(value, list):
        for entry in value:
            yield from unportable(entry, key)
            if isinstance(entry, str) and entry.lstrip().startswith(","):
                reason = "the trainer's TOML reader cuts it"
                yield key, f"an entry that begins with a comma, expected other text: {reason}"
        return
    if isinstance(value, str):
        if "\x00" in value or value.encode("utf-8", "replace").decode() != value:
            yield key, "text with a NUL or with bytes that are not UTF-8, expected valid text"
        elif value == '"' or value.startswith('""'):
            reason = "the trainer's TOML reader loses it"
            yield key, f"quotation marks at the beginning, expected other text: {reason}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield key, f"{value}, expected a finite number"
    elif isinstance(value, float):
        try:
            in_trainer = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            in_trainer = math.copysign(math.inf, value)
        if math.isinf(in_trainer) or (value and not in_trainer):
            held = f"which is {in_trainer:g} in float32, expected what trainers can hold"
            yield key, f"{value}, {held}"
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            yield key, "a number beyond 64 bits, expected a smaller one"
    else:
        kind = "null" if value is None else type(value).__name__
        yield key, f"{kind}, expected text, a number, true/false or a list"
