"""What a spec may hold that no schema can refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.base import bundle
from cosmos_reason.spec import document, legal, validation


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_a_path_that_no_file_system_takes_is_a_finding(action):
    """To ask whether it exists raises OSError, wherever that is asked."""
    for key in (key for key, schema in document.keys(action).items() if "x-path" in schema):
        for path, is_legal in (("/" + "n" * 255, True), ("a/" + "n" * 256, False)):
            spec = document.template(action)
            document.set_value(spec, key, path)
            found = {one.where for one in validation.validate(action, spec)}
            assert (key not in found) == is_legal


@pytest.mark.parametrize("largest", [2**63 - 1, -(2**63), 3.4e38])
def test_a_number_that_a_trainer_can_just_hold_passes(largest):
    beyond = largest * 2 if type(largest) is float else largest + (1 if largest > 0 else -1)
    assert not list(legal.unportable(largest)) and list(legal.unportable(beyond))


# ---- a quick look --------------------------------------------------------------------------------


def keywords(schema):
    """Every keyword of a schema, those of its parts included."""
    yield from schema
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    parts += [schema[name] for name in ("items", "additionalProperties") if name in schema]
    for part in parts:
        if isinstance(part, dict):
            yield from keywords(part)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.floats(allow_nan=True)
    | st.sampled_from(["", "AdamW", "bfloat16", "all", "s3", "a/b", "console", 1.0, 0.5, 1e-6]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["r", "nframes", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_a_quick_look_knows_each_keyword_of_a_schema(action):
    used = set(keywords(bundle.schema(action)))
    known_to_jsonschema = legal.validator(action).VALIDATORS.keys()
    assert used & known_to_jsonschema <= legal._CHECKS.keys()
    assert legal.fits(bundle.schema(action), document.template(action))


@given(action=st.sampled_from(bundle.ACTIONS), data=st.data())
def test_what_a_quick_look_takes_jsonschema_takes(action, data):
    key = data.draw(st.sampled_from(sorted(document.keys(action))))
    spec = document.template(action)
    document.set_value(spec, key, data.draw(VALUES))
    if data.draw(st.booleans()):
        document.delete(spec, data.draw(st.sampled_from(sorted(document.keys(action)))))
    if legal.fits(bundle.schema(action), spec):
        assert list(legal.validator(action).iter_errors(spec)) == []
