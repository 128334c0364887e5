"""Our specs and schemas against the configuration class of cosmos-rl 0.4.7,
which runs in a process of its own."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import build_spec
import cosmos_rl_packages
import pytest
import tomli_w
from foreign_specs import CLEAN, GRPO, LOSING, NO_TYPE, ROTATED
from hypothesis import given, settings
from hypothesis import strategies as st
from support_specs import legal_values

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.rules import checking as rules
from cosmos_reason.spec import document, legal

pytestmark = pytest.mark.integration

POLICY = {"train": "sft", "grpo": "grpo"}

# Where our schema says something else than the class: in what, and why.
INTENDED = {
    "train.optm_lr": (
        "type",
        "one rate for all parts; cosmos-rl takes lists and tables per module too",
    ),
    "train.optm_impl": ("type", "one implementation for all parts"),
    "train.optm_warmup_steps": (
        "type",
        "JSON Schema's number covers whole numbers; the rules tell 1 from 1.0",
    ),
    "train.train_policy.dataset.test_size": ("type", "JSON Schema's number covers whole numbers"),
    "validation.dataset.test_size": ("type", "JSON Schema's number covers whole numbers"),
    "train.fa_version": ("choices", "the choices 2 and 3 are our bounds"),
    "train.ckpt.upload_s3": (
        "choices",
        "the validator behind the type takes only false, final and all",
    ),
    "train.train_policy.type": (
        "default choices",
        "always written here, so it has no default and one choice",
    ),
    "policy.parallelism.dp_replicate_size": (
        "choices",
        "the class lists only 1; the trainer replicates over nodes",
    ),
    "train.train_policy.reward_function": (
        "default",
        "the class turns its default name into a table of weights",
    ),
}


class Oracle:
    """Questions to cosmos_rl_oracle.py, one JSON line each."""

    def __init__(self, folder: Path):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cosmos_rl_oracle.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(folder)},
            text=True,
        )

    def ask(self, question: dict) -> dict:
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def load(self, table: dict) -> dict:
        return self.ask({"toml": tomli_w.dumps(table)})


@pytest.fixture(scope="module")
def oracle():
    asked = Oracle(cosmos_rl_packages.folder())
    yield asked
    asked.process.stdin.close()
    asked.process.wait(timeout=300)


def built(*arguments):
    """(spec, errors) of a build_spec command line."""
    words = ["--engine", "cosmos-rl", "-o", "unused.toml", *arguments]
    args = build_spec.parser().parse_args(words)
    draft = build_spec.build(args)
    _, found = build_spec.check(args, draft)
    return draft.spec, [finding for finding in found if finding.severity == f.ERROR]


def keys_of_the_class(action):
    """(key, its schema) of those that the class has too."""
    for key, leaf in document.keys(action).items():
        if "cosmos-rl" in leaf["x-engines"] and not key.startswith("custom."):
            yield key, leaf


def test_the_oracle_drops_what_it_does_not_know(oracle):
    read = oracle.load({"train": {"output_dir": "o", "train_batch_per_replcia": 3}})
    assert read["ignored"] == ["train.train_batch_per_replcia"]
    assert "optm_lr" in oracle.load({"train": {"output_dir": "o", "optm_lr": "fast"}})["error"]


@pytest.mark.promise
@pytest.mark.parametrize("action", POLICY)
def test_every_profile_tuning_and_layout_loads_with_no_key_ignored(oracle, action):
    known = bundle.skill_info()["profiles"].items()
    profiles = [[], *(["--profile", name] for name, facts in known if facts["action"] == action)]
    layouts = [(gpus, nodes) for gpus in (1, 2, 4, 8) for nodes in (1, 2, 4)]
    for profile, tuning, (gpus, nodes) in itertools.product(profiles, ("full", "lora"), layouts):
        if action == "grpo" and gpus * nodes < 2:
            continue
        words = f"{action} --tuning {tuning} --gpus-per-node {gpus} --nodes {nodes}"
        arguments = [*words.split(), *profile]
        table, errors = built(*arguments, "--train-root", "data", "--eval-root", "held_out")
        assert not errors, (arguments, errors)
        assert oracle.load(table) == {"error": None, "ignored": []}, arguments


def test_translated_tao_keys_load_with_no_key_ignored(oracle):
    table, errors = built(
        "train", "--set", "train.optm_warmup_epochs=0.5", "--set", "results_dir=/results"
    )
    assert not errors
    assert table["train"]["optm_warmup_steps"] == 0.25  # half an epoch of two
    assert table["train"]["output_dir"] == "/results"
    assert oracle.load(table) == {"error": None, "ignored": []}


@pytest.mark.parametrize("action", POLICY)
def test_what_the_rules_let_pass_the_trainer_loads(oracle, action):
    mine = dict(keys_of_the_class(action))
    some = st.lists(st.sampled_from(sorted(mine)), min_size=1, max_size=5, unique=True)
    loaded = 0

    @settings(max_examples=150)
    @given(some.flatmap(legal_values(mine)))
    def holds(overrides):
        nonlocal loaded
        table = document.template(action)
        document.delete(table, "validation.freq_in_epoch")  # as a build for this engine does
        document.set_values(table, overrides)
        if f.has_errors(rules.check(action, "cosmos-rl", table)):
            return
        loaded += 1
        assert oracle.load(table) == {"error": None, "ignored": []}, overrides

    holds()
    assert loaded > 20


@pytest.mark.promise
@pytest.mark.parametrize("action", POLICY)
def test_keys_agree_with_the_class_but_for_stated_reasons(oracle, action):
    real = oracle.ask({"fields": POLICY[action]})
    different = {}
    for key, leaf in keys_of_the_class(action):
        assert key in real, f"{key} is no key of the class"
        types = set(real[key]["types"]) - {"null"}
        ours = kinds(leaf), leaf.get("default"), choices(leaf.get("enum"))
        theirs = types, real[key]["default"], choices(real[key]["choices"])
        parts = zip(("type", "default", "choices"), ours, theirs, strict=True)
        if differs := {part for part, mine, real_one in parts if mine != real_one}:
            different[key] = differs
    known = document.keys(action)
    intended = {key: set(parts.split()) for key, (parts, _) in INTENDED.items() if key in known}
    assert different == intended


@pytest.mark.parametrize("action", POLICY)
def test_keys_of_other_engines_are_no_keys_of_the_class(oracle, action):
    real = oracle.ask({"fields": POLICY[action]})
    for key, leaf in document.keys(action).items():
        # A key of the class that its LoRA code does not read.
        ignored = key == "policy.lora.init_lora_weights"
        if "cosmos-rl" not in leaf["x-engines"] and not key.startswith("custom.") and not ignored:
            assert key not in real, f"{key} is a key of the class"


@pytest.mark.parametrize("action", POLICY)
def test_extra_keys_are_those_of_the_class_that_no_schema_has(oracle, action):
    """What cosmos_rl_keys.yaml must say;
    a key inside a table of the class is one too, another is not."""
    real = oracle.ask({"fields": POLICY[action]}).keys()
    assert document.extra_keys_of(action) == real - document.keys(action).keys() - {"custom"}
    for key in document.extra_keys_of(action):
        is_known = legal.is_trainers_own(action, key, 1)
        assert is_known and not legal.is_trainers_own(action, f"{key}x", 1)


@pytest.mark.parametrize("name", [*CLEAN, *LOSING])
def test_specs_from_elsewhere_pass_exactly_when_the_class_reads_them_whole(oracle, tmp_path, name):
    text = (CLEAN | LOSING)[name]
    file = tmp_path / "guide.toml"
    file.write_text(text)
    read = oracle.ask({"toml": text})
    table, errors = built("train", "--spec", str(file))
    assert bool(errors) == bool(read["error"] or read["ignored"]), (read, errors)
    if not errors:
        assert oracle.load(table) == {"error": None, "ignored": []}


@pytest.mark.parametrize(("action", "text"), [("train", ROTATED), ("grpo", GRPO)])
def test_what_the_class_ignores_since_0_4_7_is_left_out(oracle, tmp_path, action, text):
    file = tmp_path / "guide.toml"
    file.write_text(text)
    read = oracle.ask({"toml": text})
    assert read == {"error": None, "ignored": ["policy.parallelism.cp_rotate_method"]}
    table, errors = built(action, "--spec", str(file))
    assert not errors
    assert oracle.load(table) == {"error": None, "ignored": []}


def test_a_policy_table_without_type_loads_once_it_is_mended(oracle, tmp_path):
    """0.4.7 guesses what is meant; versions before it refuse the table."""
    file = tmp_path / "guide.toml"
    file.write_text(NO_TYPE)
    _, errors = built("train", "--spec", str(file))
    told = [(one.id, one.where) for one in errors]
    assert told == [("SPEC-KEY-MISSING", "train.train_policy.type")]
    table, errors = built("train", "--spec", str(file), "--fix")
    assert not errors and table["train"]["train_policy"]["type"] == "sft"
    assert oracle.load(table) == {"error": None, "ignored": []}


def kinds(leaf: dict) -> set[str]:
    names = {"bool": "boolean", "int": "integer", "str": "string"}
    options = leaf.get("anyOf", [leaf])
    given_types = {option["type"] for option in options if "type" in option}
    values = []
    for option in options:
        if "type" not in option:
            values += option.get("enum", [option.get("const")])
    return given_types | {names[type(value).__name__] for value in values}


def choices(values) -> set[str] | None:
    return set(map(str, values)) if values else None
