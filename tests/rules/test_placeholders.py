"""Words that stand for values nobody filled in are one error in each script, before anything is
started; a recipe that has them is mended by flags."""

import pytest
import support_specs
from foreign_specs import GUIDE, POLICY

from cosmos_reason.base import findings as f
from cosmos_reason.rules import checking, placeholders
from cosmos_reason.spec import document

RECIPE = (
    POLICY.replace("nvidia/Cosmos-Reason2-2B", "<PATH_TO_MODEL>")
    + """
[train]
output_dir = "/path/to/output"
train_policy = {type = "sft"}
optm_lr = "???"
[logging]
experiment_name = "<YOUR EXPERIMENT>"
[custom.train_dataset]
annotation_path = "/path/to/annotations.json"
media_path = "${DATA}/clips"
"""
)
FILLED = (
    "--model nvidia/Cosmos-Reason2-2B --train-root data --set train.output_dir=out "
    "--set train.optm_lr=1e-5 --set logging.experiment_name=mine"
)


def errors(found):
    return [one for one in found if one.severity == f.ERROR]


@pytest.mark.parametrize(
    ("value", "in_path", "anywhere"),
    [
        ("<PATH_TO_DATASET>", True, True),
        ("<your model here>", True, True),
        ("???", True, True),
        ("TODO", True, True),
        ("change-me", True, True),
        ("...", True, True),
        ("__TRAIN_ANNOTATION_PATH__", True, True),
        ("/data/__SPLIT__/clips", True, False),
        ("/data/__pycache__/__init__.py", False, False),
        ("/data/<USER>/clips", True, False),
        ("/path/to/clips", True, False),
        ("path_to_clips", True, False),
        ("s3://YOUR_BUCKET/clips", True, False),
        ("hf_model://your-org/your-model", True, False),
        ("${results_dir}/train", True, False),
        ("$DATA/clips", True, False),
        ("PATH", True, False),
        ("DIR/annotations.json", True, False),
        (["q_proj", "<LAYERS>"], True, True),
        ("/data/paths/to_do/clips", False, False),
        ("/data/yours/1.mp4", False, False),
        ("hf_model://nvidia/Cosmos3-Nano", False, False),
        ("<image>", True, False),
        ("<think>", True, False),
        ("</answer>", True, False),
        ("<|im_end|>", True, False),
        ("Answer in <answer> tags, what is on the path to the exit?", True, False),
        ("", False, False),
        (3, False, False),
    ],
)
def test_what_stands_for_a_value(value, in_path, anywhere):
    assert placeholders.is_placeholder(value, is_path=True) == in_path
    assert placeholders.is_placeholder(value, is_path=False) == anywhere


def test_a_path_that_is_here_is_no_placeholder(here):
    assert placeholders.is_placeholder("DIR/annotations.json", is_path=True)
    (here / "DIR").mkdir()
    (here / "DIR" / "annotations.json").write_text("[]")
    assert not placeholders.is_placeholder("DIR/annotations.json", is_path=True)


def test_all_of_a_recipe_are_one_error_and_flags_fill_them_in(here):
    (here / "recipe.toml").write_text(RECIPE)
    line = "train --engine cosmos-rl --spec recipe.toml"
    for fix in ("", " --fix"):
        code, found, _ = support_specs.run(line + fix)
        (error,) = errors(found)
        assert (code, error.id) == (1, "SPEC-PLACEHOLDER")
        assert set(error.where.split(", ")) == set(error.fix.changes)
        keys = "policy.model_name_or_path train.output_dir train.optm_lr logging.experiment_name"
        keys += " custom.train_dataset.annotation_path custom.train_dataset.media_path"
        assert set(error.fix.changes) == set(keys.split())
        assert not [one for one in found if one.id in ("SPEC-PATH-NOT-HERE", "SPEC-MODEL-ASSUMED")]
        code, found, made = support_specs.run(f"{line}{fix} {FILLED}")
        assert code == 0, errors(found)
        assert made["train"]["output_dir"] == str(here / "out")
        assert made["train"]["optm_lr"] == 1e-5


def test_a_fix_that_is_pasted_as_it_stands_is_told_again(here):
    (here / "recipe.toml").write_text(RECIPE)
    line = "train --engine cosmos-rl --spec recipe.toml"
    fix = errors(support_specs.run(line)[1])[0].fix
    code, found, _ = support_specs.run(f"{line} {fix}")
    assert code == 1 and "SPEC-PLACEHOLDER" in {one.id for one in errors(found)}


@pytest.mark.parametrize(
    "action, changes, key",
    [
        ("train", {"train.ckpt.upload_s3": "final"}, "train.ckpt.s3_bucket"),
        ("train", {"train.ckpt.upload_hf": True}, "train.ckpt.hf_repo_name"),
        ("inference", {}, "prompt"),
        ("inference", {}, "media"),
        ("train", {"logging.experiment_name": "<YOUR EXPERIMENT>"}, "logging.experiment_name"),
    ],
)
def test_the_words_of_our_own_fixes_are_no_values(action, changes, key):
    table = support_specs.changed(action, changes)
    (wanted,) = [one for one in checking.check(action, "tao", table) if one.where == key]
    mended = support_specs.changed(action, changes | wanted.fix.changes)
    told = [one for one in checking.check(action, "tao", mended) if one.where == key]
    assert [one.id for one in told] == ["SPEC-PLACEHOLDER"]


def test_a_column_may_have_any_name():
    column = "train.train_policy.conversation_column_name"
    assert not placeholders.keys("train", support_specs.changed("train", {column: "TEXT"}))


def test_flags_that_stand_for_values_are_told_too(here):
    code, found, _ = support_specs.run(
        "train --engine cosmos-rl --model /path/to/model --train-root '<DATA>'"
    )
    (error,) = errors(found)
    assert (code, error.id) == (1, "SPEC-PLACEHOLDER")
    assert str(error.fix).startswith("replace --train-root '<DATA>' --model /path/to/model with")


def test_data_of_a_guide_are_left_when_ours_are_given(here):
    text = GUIDE.replace("sft/annotations.json", "/path/to/annotations.json")
    (here / "guide.toml").write_text(text.replace("sft/clips", "/path/to/clips"))
    line = "train --engine cosmos-rl --spec guide.toml"
    (error,) = errors(support_specs.run(line)[1])
    assert error.where == "custom.dataset.annotation_path, custom.dataset.media_path"
    code, found, _ = support_specs.run(f"{line} --train-root data")
    assert code == 0, errors(found)


def test_a_key_that_the_engine_does_not_read_may_stay():
    spec = {"train": {"train_policy": {"dataset": {"subset": "<YOUR_SUBSET>"}}}}
    key = "train.train_policy.dataset.subset"
    assert placeholders.keys("train", spec, "cosmos-rl") == [key]
    assert not placeholders.keys("train", spec, "transformers")


@pytest.mark.parametrize("action", ["train", "grpo", "evaluate", "inference", "quantize"])
def test_no_template_has_any(action):
    assert not placeholders.keys(action, document.template(action))


def test_a_spec_of_another_action_is_that_and_nothing_else(here):
    (here / "recipe.toml").write_text(RECIPE)
    _, found, _ = support_specs.run("evaluate --engine tao --spec recipe.toml")
    assert [one.id for one in errors(found)] == ["SPEC-ACTION"]
