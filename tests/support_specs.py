"""Shared by the tests of specs: hypothesis strategies for the values that a schema allows."""

from hypothesis import strategies as st


def legal(schema: dict):
    """A strategy for the values one key takes."""
    if "anyOf" in schema:
        return st.one_of(*map(legal, schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return st.sampled_from([schema["const"]] if "const" in schema else schema["enum"])
    return {"integer": _integer, "number": _number, "boolean": _boolean, "string": _string}.get(
        schema["type"], _array if schema["type"] == "array" else _object
    )(schema)


def legal_values(known: dict):
    """keys -> a strategy for a table of key -> legal value."""
    return lambda keys: st.fixed_dictionaries({key: legal(known[key]) for key in keys})


def _integer(schema):
    step = schema.get("multipleOf", 1)
    low, high = schema.get("minimum", -(2**31)), min(schema.get("maximum", 2**31), 2**53)
    near = st.integers(-(-low // step), min(high, low + 64) // step)
    return st.one_of(near, st.integers(-(-low // step), high // step)).map(lambda n: n * step)


def _number(schema):
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", 1e6)
    return st.floats(low, high, exclude_min="exclusiveMinimum" in schema, exclude_max="exclusiveMaximum" in schema)


def _boolean(_):
    return st.booleans()


def _string(schema):
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True).map(lambda text: text.strip("\n"))
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=schema.get("minLength", 0), max_size=30)


def _array(schema):
    most = schema.get("maxItems", 4)
    items = legal(schema["items"])
    return st.lists(items, min_size=schema.get("minItems", 0), max_size=most, unique=schema.get("uniqueItems", False))


def _object(schema):
    names = st.text("abcdef._", min_size=1, max_size=8)
    return st.dictionaries(
        names, legal(schema["additionalProperties"]), min_size=schema.get("minProperties", 0), max_size=3
    )
