"""The packaged schemas, templates and skill_info: valid, in agreement with each other, generated files up to date."""

import importlib.util
import json

import jsonschema
import pytest
import yaml
from support import ROOT

from cosmos_reason import bundle, models, rules, spec, spec_rules, spec_values
from cosmos_reason import findings as f

ACTIONS = bundle.ACTIONS


def make_templates():
    found = importlib.util.spec_from_file_location("make_templates", ROOT / "tools" / "make_templates.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("action", ACTIONS)
def test_schema_is_valid_2020_12(action):
    schema = bundle.schema(action)
    assert schema["$schema"].endswith("2020-12/schema")
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_table_is_closed_but_custom(action):
    def walk(node, key):
        if "properties" in node:
            open_table = key == "custom"
            assert (node["additionalProperties"] is False) != open_table, key
            for name, sub in node["properties"].items():
                walk(sub, f"{key}.{name}" if key else name)

    walk(bundle.schema(action), "")


@pytest.mark.parametrize("action", ACTIONS)
def test_every_key_says_what_it_is_and_who_honours_it(action):
    engines = {name for name, facts in bundle.skill_info()["engines"].items() if action in facts["actions"]}
    for key, leaf in spec.keys(action).items():
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
    for key, leaf in spec.keys(action).items():
        offered = leaf.get("popular", [])
        if leaf.get("default") is not None:
            offered = [*offered, leaf["default"]]
        for value in offered:
            if value != "":  # the empty default of a text that must not be written empty
                jsonschema.Draft202012Validator(leaf).validate(value)
                assert spec_values.parse(leaf, spec_values.text(value)) == value, key


@pytest.mark.parametrize("action", ACTIONS)
def test_automl_annotations_are_consistent(action):
    schema, known = bundle.schema(action), spec.keys(action)
    enabled = {key for key, leaf in known.items() if leaf.get("automl_enabled")}
    wanted, fixed = (set(schema.get(f"automl_{kind}_parameters", [])) for kind in ("default", "disabled"))
    assert not wanted & fixed
    assert wanted | fixed <= known.keys()
    assert wanted <= enabled
    for key in enabled:
        leaf = known[key]
        if "enum" in leaf:
            assert len(leaf["option_weights"]) == len(leaf["enum"])
            continue
        low, high = leaf["automl_range"]
        assert low < high, key
        for end in (low, high):
            jsonschema.Draft202012Validator(leaf).validate(end)
        assert leaf.get("automl_scale") != "log" or low > 0, key
    for key, leaf in known.items():
        assert leaf.get("depends_on", key) in known, key
        assert leaf.get("math_cond", "^ 2") in ("^ 2", "/ 2"), key


@pytest.mark.parametrize("action", ACTIONS)
def test_template_has_no_errors_and_asks_no_engine_for_what_it_cannot_do(action):
    template = spec.template(action)
    assert spec.validate(action, template) == []
    for engine, facts in bundle.skill_info()["engines"].items():
        if action in facts["actions"]:
            found = rules.check(action, engine, template)
            assert not f.has_errors(found), found
            assert "SPEC-ENGINE-KEY" not in {finding.id for finding in found}


def test_shared_keys_mean_the_same_in_train_and_grpo():
    train, grpo = spec.keys("train"), spec.keys("grpo")
    same = ("type", "default", "enum", "minimum", "maximum", "exclusiveMinimum", "anyOf", "items")
    for key in train.keys() & grpo.keys() - {"train.train_policy.type"}:
        assert {name: train[key].get(name) for name in same} == {name: grpo[key].get(name) for name in same}, key


def test_templates_and_manifest_are_what_the_schemas_give():
    for path, text in make_templates().outputs().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is stale: make templates"


@pytest.mark.parametrize("action", ACTIONS)
def test_template_yaml_reads_as_the_template(action):
    written = bundle.template_path(action)
    assert yaml.safe_load(written.read_text(encoding="utf-8")) == spec.template(action)
    assert spec.load(written) == spec.template(action)


@pytest.mark.parametrize("action", ACTIONS)
def test_skill_info_names_keys_that_exist(action):
    info, known = bundle.skill_info(), spec.keys(action)
    assert set(info["shorthand"][action].values()) <= known.keys()
    assert not info["shorthand"][action].keys() & known.keys()
    params = info["spec_params"][action]
    named = [value for value in params.values() for value in (value if isinstance(value, list) else [value])]
    assert all(name in known or any(key.startswith(f"{name}.") for key in known) for name in named)
    for facts in info["engines"].values():
        if action in facts["actions"]:
            contract = facts["actions"][action]
            assert set(contract["inputs"]) | set(contract["outputs"]) | set(contract.get("flags", {})) <= known.keys()


def test_every_rule_points_at_keys_and_has_an_id_of_its_own():
    ids = [rule.id for rule in spec_rules.RULES]
    assert len(ids) == len(set(ids))
    for rule in spec_rules.RULES:
        for action in rule.actions.split():
            key = rule.key.format(**bundle.skill_info()["spec_params"][action])
            assert key in spec.keys(action) or key.startswith("--"), (rule.id, key)


def test_spoken_model_names_mean_what_people_mean():
    for written in ("Cosmos Reason 3", "Cosmos3 Nano Reasoner", "Cosmos3-Nano", "cosmos3_nano", "nvidia/Cosmos3-Nano"):
        assert models.canonical(written) == "hf_model://nvidia/Cosmos3-Nano"
    assert models.canonical("reason2-8b") == "hf_model://nvidia/Cosmos-Reason2-8B"
    assert models.canonical("hf_model://Qwen/Qwen3-VL-2B-Instruct") == "hf_model://Qwen/Qwen3-VL-2B-Instruct"


@pytest.mark.parametrize(
    "written", ["cosmos-reasn2", "s3://bucket/model", "http://host/m", "a/b/c", "hf_model://x", ""]
)
def test_model_names_that_cannot_be_resolved_are_refused(written):
    with pytest.raises(f.Failure) as failure:
        models.canonical(written)
    assert failure.value.exit_code == f.EXIT_BAD_INPUT


def test_a_folder_is_a_model_and_tells_its_architecture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert models.canonical("mine") == str(tmp_path / "mine")
    assert models.family(str(tmp_path / "mine")) == (None, False)
    for model_type, expected in (("cosmos3_omni", ("qwen3_vl", True)), ("qwen2_5_vl", ("qwen2_5_vl", False))):
        (tmp_path / "mine" / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert models.family(str(tmp_path / "mine")) == expected
    (tmp_path / "mine" / "config.json").write_text("[broken")
    assert models.family(str(tmp_path / "mine")) == (None, False)
