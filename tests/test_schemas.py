"""The packaged schemas, templates and skill_info:
valid, in agreement with each other, generated files up to date."""

import importlib.util

import jsonschema
import pytest
import yaml
from support import ROOT

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import value_text
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import spec_rules
from cosmos_reason.spec import document, validation
from cosmos_reason.spec import values as spec_values

ACTIONS = bundle.ACTIONS


def make_templates():
    found = importlib.util.spec_from_file_location(
        "make_templates", ROOT / "tools" / "make_templates.py"
    )
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("action", ACTIONS)
def test_schema_is_valid_2020_12(action):
    schema = bundle.schema(action)
    assert schema["$schema"].endswith("2020-12/schema")
    jsonschema.Draft202012Validator.check_schema(schema)


OPEN = ("custom", "custom.train_dataset", "custom.val_dataset", "custom.vision")


@pytest.mark.parametrize("action", ACTIONS)
def test_every_table_is_closed_but_custom(action):
    def walk(node, key):
        if "properties" in node:
            open_table = key in OPEN
            assert (node["additionalProperties"] is False) != open_table, key
            for name, sub in node["properties"].items():
                walk(sub, f"{key}.{name}" if key else name)

    walk(bundle.schema(action), "")


@pytest.mark.parametrize("action", ACTIONS)
def test_every_key_says_what_it_is_and_who_honours_it(action):
    engines = {
        name for name, facts in bundle.skill_info()["engines"].items() if action in facts["actions"]
    }
    for key, leaf in document.keys(action).items():
        assert 10 < len(leaf["description"]) < 140, key
        assert leaf["description"].endswith("."), key
        assert leaf["x-engines"], key
        assert set(leaf["x-engines"]) <= engines, key
        assert spec_values.expected(leaf), key
        if leaf.get("type") in ("integer", "number"):
            assert {"minimum", "exclusiveMinimum"} & leaf.keys(), f"{key} has no lower bound"
            assert {"maximum", "exclusiveMaximum"} & leaf.keys(), f"{key} has no upper bound"


@pytest.mark.parametrize("action", ACTIONS)
def test_defaults_and_popular_values_are_legal(action):
    for key, leaf in document.keys(action).items():
        offered = leaf.get("popular", [])
        if leaf.get("default") is not None:
            offered = [*offered, leaf["default"]]
        for value in offered:
            if value != "":  # the empty default of a text that must not be written empty
                jsonschema.Draft202012Validator(leaf).validate(value)
                assert spec_values.parse(leaf, value_text(value)) == value, key


@pytest.mark.parametrize("action", ACTIONS)
def test_parameters_searched_by_default_are_known_and_enabled(action):
    schema, known = bundle.schema(action), document.keys(action)
    enabled = {key for key, leaf in known.items() if leaf.get("automl_enabled")}
    wanted = set(schema.get("automl_default_parameters", []))
    fixed = set(schema.get("automl_disabled_parameters", []))
    assert not wanted & fixed
    assert wanted | fixed <= known.keys()
    assert wanted <= enabled


@pytest.mark.parametrize("action", ACTIONS)
def test_what_can_be_searched_has_weights_or_a_range_of_legal_values(action):
    for key, leaf in document.keys(action).items():
        if not leaf.get("automl_enabled"):
            continue
        if "enum" in leaf:
            assert len(leaf["option_weights"]) == len(leaf["enum"])
            continue
        low, high = leaf["automl_range"]
        assert low < high, key
        for end in (low, high):
            jsonschema.Draft202012Validator(leaf).validate(end)
        assert leaf.get("automl_scale") != "log" or low > 0, key


@pytest.mark.parametrize("action", ACTIONS)
def test_conditions_of_a_search_name_known_keys(action):
    known = document.keys(action)
    for key, leaf in known.items():
        assert leaf.get("depends_on", key) in known, key
        assert leaf.get("math_cond", "^ 2") in ("^ 2", "/ 2"), key


@pytest.mark.parametrize("action", ACTIONS)
def test_template_has_no_errors_and_asks_no_engine_for_what_it_cannot_do(action):
    template = document.template(action)
    assert validation.validate(action, template) == []
    for engine, facts in bundle.skill_info()["engines"].items():
        if action in facts["actions"]:
            found = rules.check(action, engine, template)
            assert not f.has_errors(found), found
            assert "SPEC-ENGINE-KEY" not in {finding.id for finding in found}


def test_shared_keys_mean_the_same_in_train_and_grpo():
    train, grpo = document.keys("train"), document.keys("grpo")
    same = ("type", "default", "enum", "minimum", "maximum", "exclusiveMinimum", "anyOf", "items")
    for key in train.keys() & grpo.keys() - {"train.train_policy.type"}:
        assert {name: train[key].get(name) for name in same} == {
            name: grpo[key].get(name) for name in same
        }, key


def test_templates_and_manifest_are_what_the_schemas_give():
    for path, text in make_templates().outputs().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is stale: make templates"


@pytest.mark.parametrize("action", ACTIONS)
def test_template_yaml_reads_as_the_template(action):
    written, template = bundle.template_path(action), document.template(action)
    assert yaml.safe_load(written.read_text(encoding="utf-8")) == template
    assert document.load(written) == template


@pytest.mark.parametrize("action", ACTIONS)
def test_skill_info_names_keys_that_exist(action):
    info, known = bundle.skill_info(), document.keys(action)
    assert set(info["shorthand"][action].values()) <= known.keys()
    assert not info["shorthand"][action].keys() & known.keys()
    params = info["spec_params"][action]
    named = [
        value
        for value in params.values()
        for value in (value if isinstance(value, list) else [value])
    ]
    assert all(name in known or any(key.startswith(f"{name}.") for key in known) for name in named)
    for facts in info["engines"].values():
        if action in facts["actions"]:
            contract = facts["actions"][action]
            assert (
                set(contract["inputs"]) | set(contract["outputs"]) | set(contract.get("flags", {}))
                <= known.keys()
            )


def test_every_rule_points_at_keys_and_is_the_only_one_of_its_id_there():
    ids = [(rule.id, rule.key) for rule in spec_rules.RULES]
    assert len(ids) == len(set(ids))
    for rule in spec_rules.RULES:
        for action in rule.actions.split():
            key = rule.key.format(**bundle.skill_info()["spec_params"][action])
            assert key in document.keys(action) or key.startswith("--"), (rule.id, key)
