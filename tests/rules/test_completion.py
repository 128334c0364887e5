"""Specs from elsewhere: what they leave out is written and told; the file itself stays as it is."""

import copy
import tomllib

import pytest
import support_specs
from foreign_specs import CLEAN, GRPO, GUIDE, ROTATED, VALIDATION_WITHOUT_DATA

from cosmos_reason.base import findings as f
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import completion
from cosmos_reason.spec import actions, document
from cosmos_reason.spec.actions import HUB_DATA


def severities(found):
    return {one.where: one.severity for one in found if one.id.startswith("SPEC-COMPLETED")}


@pytest.mark.parametrize("name", CLEAN)
def test_what_the_trainer_reads_whole_passes(here, name):
    (here / "guide.toml").write_text(CLEAN[name])
    code, found, _ = support_specs.run("train --engine cosmos-rl --spec guide.toml")
    assert code == 0, found
    told = [(one.id, one.where) for one in found]
    assert len(told) == len(set(told))


@pytest.mark.parametrize("engine", ["cosmos-rl", "tao"])
def test_a_spec_of_a_guide_becomes_one_that_runs(here, engine):
    (here / "guide.toml").write_text(GUIDE)
    code, found, made = support_specs.run(f"train --engine {engine} --spec guide.toml")
    assert code == 0, found
    assert (here / "guide.toml").read_text() == GUIDE
    assert severities(found) == {
        "spec": f.INFO,
        "policy.parallelism.tp_size": f.WARNING,
        "train.compile": f.WARNING,
        "train.ckpt.enable_checkpoint": f.WARNING,
        "custom.vision.fps": f.WARNING,
    }
    assert made["policy"]["parallelism"] == {
        "dp_shard_size": 4,
        "tp_size": 1,
        "n_init_replicas": 1,
        "cp_size": 1,
        "ep_size": 1,
        "pp_size": 1,
        "dp_replicate_size": 1,
    }
    assert (made["train"]["compile"], made["train"]["ckpt"]) == (False, {"enable_checkpoint": True})
    assert made["train"]["optm_lr"] == [1e-5, 2e-5]
    assert made["custom"]["dataset"] == {
        "annotation_path": "sft/annotations.json",
        "media_path": "sft/clips",
    }


def test_what_is_empty_and_needless_is_left_out(here):
    spec = {"results_dir": "", "custom_script": "", "train": {"output_dir": ""}}
    whole, _ = completion.completed("train", spec)
    assert whole.keys().isdisjoint({"results_dir", "custom_script"})
    assert whole["train"]["output_dir"] == ""
    (here / "tao.toml").write_text('results_dir = ""\n' + GUIDE)
    code, found, made = support_specs.run("train --engine tao --spec tao.toml")
    assert code == 0 and "results_dir" not in made, found


def test_what_the_command_line_says_is_not_told_again(here):
    (here / "guide.toml").write_text(GUIDE)
    line = "train --engine cosmos-rl --spec guide.toml --set policy.parallelism.tp_size=2"
    code, found, made = support_specs.run(f"{line} --set nframes=4")
    assert code == 0, found
    assert made["policy"]["parallelism"]["tp_size"] == 2
    assert not {"policy.parallelism.tp_size", "custom.vision.nframes"} & severities(found).keys()
    code, found, _ = support_specs.run(
        "train --spec guide.toml --unset train.compile", "other.toml"
    )
    assert "SPEC-UNSET" in {one.id for one in found}  # the file has no such key


def test_our_own_templates_have_nothing_to_complete():
    for action in ("train", "grpo", "evaluate", "inference", "quantize"):
        template = document.template(action)
        assert completion.completed(action, template) == (template, [])


def test_a_training_without_a_policy_table_is_sft_and_a_table_without_type_is_an_error():
    spec = tomllib.loads(GUIDE)
    del spec["train"]["train_policy"]
    whole, found = completion.completed("train", spec)
    assert whole["train"]["train_policy"] == {"type": "sft", "mini_batch": 2}
    assert severities(found)["train.train_policy.type"] == f.WARNING
    spec["train"]["train_policy"] = {"mini_batch": 1}
    whole, _ = completion.completed("train", spec)
    (error,) = [one for one in rules.check("train", "cosmos-rl", whole) if one.severity == f.ERROR]
    assert (error.id, error.where) == ("SPEC-KEY-MISSING", "train.train_policy.type")
    assert error.fix.changes == {"train.train_policy.type": "sft"}


def test_defaults_that_hurt_are_told_one_by_one():
    spec = tomllib.loads(GUIDE)
    spec["policy"]["parallelism"]["dp_shard_size"] = -1
    spec["custom"]["vision"] = {"fps": 1, "max_pixels": 40960}
    before = copy.deepcopy(spec)
    whole, found = completion.completed("train", spec)
    assert spec == before
    assert whole["policy"]["parallelism"]["dp_shard_size"] == 1
    assert whole["custom"]["vision"] == {"fps": 1, "max_pixels": 40960, "min_pixels": 4096}
    told = {one.where: one.message for one in found}
    assert "got -1, wrote 1" in told["policy.parallelism.dp_shard_size"]
    assert "131072" in told["custom.vision.min_pixels"]
    assert not f.has_errors(rules.check("train", "cosmos-rl", whole))


@pytest.mark.parametrize(
    ("named", "is_mended"),
    [
        (["custom.train_dataset.annotation_path"], True),  # a guide's spec, data of ours
        (["custom.train_dataset.annotation_path", "custom.vision.max_pixels"], False),
        ([], False),  # the spec had data of ours
    ],
)
def test_pixels_below_the_floor_are_mended_where_a_guide_named_them(named, is_mended):
    spec = tomllib.loads(GUIDE)
    spec["custom"]["vision"] = {"fps": 1, "max_pixels": 81920}
    spec["custom"]["train_dataset"] = {"annotation_path": "a.json", "media_path": "clips"}
    whole, _ = completion.completed("train", spec, named)
    assert ("min_pixels" in whole["custom"]["vision"]) == is_mended
    errors = {one.where for one in rules.check("train", "cosmos-rl", whole) if f.has_errors([one])}
    assert ("custom.vision.max_pixels" in errors) != is_mended


@pytest.mark.parametrize("wrong", [{"train": 3}, {"policy": {"parallelism": []}}, {"custom": 1}])
def test_values_in_the_place_of_tables_stay(wrong):
    whole, _ = completion.completed("train", wrong)
    (name, value) = next(iter(wrong.items()))
    assert whole[name] == value or whole[name]["parallelism"] == []


def test_a_grpo_spec_is_completed_with_its_rollouts():
    spec = tomllib.loads(GUIDE)
    spec["train"]["train_policy"] = {"type": "grpo", "mini_batch": 2}
    spec["rollout"] = {"n_generation": 4, "max_response_length": 512}
    whole, found = completion.completed("grpo", spec)
    assert whole["rollout"]["parallelism"] == {
        "n_init_replicas": 1,
        "tp_size": 2,
        "dp_shard_size": 1,
        "pp_size": 1,
    }
    assert "rollout.parallelism.tp_size = 2" in found[0].message


def test_the_action_of_an_incomplete_spec_is_recognised(here):
    (here / "guide.toml").write_text(GUIDE)
    (here / "asks.toml").write_text(
        '[model]\nmodel_name = "nvidia/Cosmos-Reason2-2B"\n[vision]\nnframes = 8\n'
        "[evaluation]\nbatch_size = 1\n[generation]\nmax_tokens = 64\n"
    )
    for line, expected in (
        ("evaluate --spec guide.toml", "got a train spec, expected an evaluate spec"),
        ("grpo --engine cosmos-rl --spec guide.toml", "got a train spec, expected a grpo spec"),
        ("train --spec asks.toml", "got an evaluate spec, expected a train spec"),
    ):
        _, found, _ = support_specs.run(line)
        assert [one.message for one in found if one.severity == f.ERROR] == [expected]


SPLIT = "train.train_policy.dataset.test_size"


def test_validation_without_data_gets_the_trainers_own_share(here):
    (here / "guide.toml").write_text(VALIDATION_WITHOUT_DATA)
    code, found, made = support_specs.run("train --spec guide.toml")
    assert code == 0, found
    assert severities(found)[SPLIT] == f.WARNING
    assert document.get(made, SPLIT) == 0.1 and made["validation"]["enable"]
    (here / "guide.toml").write_text(VALIDATION_WITHOUT_DATA.replace('clips"', 'a", test_size = 5'))
    code, found, made = support_specs.run("train --spec guide.toml", "five.toml")
    assert (code, document.get(made, SPLIT)) == (0, 5) and SPLIT not in severities(found)


def test_validation_is_off_where_our_dataset_script_would_split_nothing(here):
    (here / "guide.toml").write_text(VALIDATION_WITHOUT_DATA)
    line = "train --engine cosmos-rl --spec guide.toml --train-root data/train"
    code, found, made = support_specs.run(line)
    assert code == 0, found
    assert severities(found)["validation.enable"] == f.WARNING
    assert made["validation"]["enable"] is False and document.get(made, SPLIT) is None
    code, found, made = support_specs.run(f"{line} --eval-root data/eval", "eval.toml")
    assert code == 0 and made["validation"]["enable"], found
    code, found, _ = support_specs.run(f"{line} --set validation.enable=true", "asked.toml")
    assert code == 1 and "SPEC-VALIDATION-DATA" in {one.id for one in found}
    ours = VALIDATION_WITHOUT_DATA + '[custom.train_dataset]\nannotation_path = "a.json"\n'
    whole, _ = completion.completed("train", tomllib.loads(ours))
    assert whole["validation"]["enable"] and document.get(whole, SPLIT) is None


@pytest.mark.parametrize(("action", "text"), [("train", ROTATED), ("grpo", GRPO)])
def test_what_the_trainer_ignores_since_0_4_7_is_not_written(here, action, text):
    (here / "guide.toml").write_text(text)
    code, found, made = support_specs.run(f"{action} --engine cosmos-rl --spec guide.toml")
    assert code == 0, found
    key = "policy.parallelism.cp_rotate_method"
    assert document.get(made, key) is None
    assert {one.severity for one in found if one.where == key} == {f.WARNING}
    assert actions.engine_by_keys(tomllib.loads(ROTATED)) == ("cosmos-rl", HUB_DATA)


def test_a_folder_that_the_datasets_library_saved_is_built_first(here):
    (here / "my data").mkdir()
    text = CLEAN["own dataset script"].replace('"clips"', '"my data"')
    (here / "guide.toml").write_text(text)
    _, found, _ = support_specs.run("train --spec guide.toml")
    (lost,) = [one for one in found if one.id == "SPEC-DATA-TRAIN"]
    assert "--entry-script FILE" in lost.message and not lost.fix
    (here / "my data" / "state.json").write_text("{}")
    _, found, _ = support_specs.run("train --spec guide.toml")
    (lost,) = [one for one in found if one.id == "SPEC-DATA-TRAIN"]
    built = f"build_dataset.py '{here / 'my data'}' -o 'my data-data'"
    assert built in lost.message and not lost.fix


def test_paths_of_somebody_elses_dataset_script_become_absolute(here):
    (here / "sft" / "clips").mkdir(parents=True)
    (here / "sft" / "clips" / "meta.json").write_text("[]")
    more = 'split = "sft"\nmeta_file = "meta.json"'
    text = GUIDE.replace('"sft/clips"', f'"sft/clips"\n{more}')
    (here / "guide.toml").write_text(text)
    code, found, made = support_specs.run("train --spec guide.toml")
    assert code == 0, found
    assert made["custom"]["dataset"] == {
        "annotation_path": "sft/annotations.json",
        "media_path": str(here / "sft" / "clips"),
        "split": "sft",
        "meta_file": "meta.json",
    }
    absent = {one.where: one.severity for one in found if one.id == "SPEC-PATH-NOT-HERE"}
    assert absent == {"custom.dataset.annotation_path": f.WARNING}
    code, found, made = support_specs.run("train --spec guide.toml --train-root ours", "ours.toml")
    assert "custom.dataset.annotation_path" not in {one.where for one in found}
    assert made["custom"]["dataset"]["media_path"] == "sft/clips"


@pytest.mark.parametrize(
    "model, pixels", [("Cosmos-Reason1-7B", 81920), ("Cosmos-Reason2-2B", None)]
)
def test_a_guides_spec_samples_as_the_guides_scripts_do(here, model, pixels):
    (here / "guide.toml").write_text(GUIDE)
    spec = document.load(here / "guide.toml")
    spec["policy"]["model_name_or_path"] = f"nvidia/{model}"
    document.dump(spec, here / "guide.toml")
    code, found, made = support_specs.run("train --engine cosmos-rl --spec guide.toml")
    assert code == 0, found
    assert made["custom"]["vision"]["fps"] == 1 and "nframes" not in made["custom"]["vision"]
    assert made["custom"]["vision"].get("max_pixels") == pixels
