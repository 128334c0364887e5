"""An evaluation is compared with the training of its checkpoint."""

import shutil

from cosmos_reason.base import files
from cosmos_reason.evaluation import as_trained, per_checkpoint
from cosmos_reason.spec import document as spec


def trained_with(checkpoint, key, value):
    path = checkpoint.parents[1] / "checkpoints" / checkpoint.name / "policy" / "cosmos_config"
    table = files.read_json(path)
    spec.set_value(table, key, value)
    files.write_json(path, table)


def test_an_evaluation_like_the_training_has_no_warning(evaluate_spec, checkpoint):
    assert as_trained.check(evaluate_spec) == []


def test_other_frames_are_a_warning_with_a_fix_that_works(evaluate_spec, checkpoint, tmp_path):
    evaluate_spec["vision"] = {"fps": 4.0}
    (warning,) = as_trained.check(evaluate_spec)
    assert warning.id == "EVAL-MISMATCH-VISION"
    assert warning.data["training"]["nframes"] == 4 and warning.data["evaluation"]["fps"] == 4.0
    for key, value in warning.fix.changes.items():
        spec.set_value(evaluate_spec, key, value)
    assert as_trained.check(evaluate_spec) == []


def test_the_best_link_is_compared_as_the_checkpoint_it_means(evaluate_spec, checkpoint):
    evaluate_spec["vision"] = {"nframes": 2}
    link = checkpoint.parents[2] / "best"
    link.mkdir()
    (link / "safetensors").symlink_to(checkpoint)
    evaluate_spec["model"]["model_name"] = str(link / "safetensors")
    assert [finding.id for finding in as_trained.check(evaluate_spec)] == ["EVAL-MISMATCH-VISION"]
    assert per_checkpoint.run_name(link / "safetensors") == "20260101120000-step_10"


def test_another_system_prompt_is_a_warning(evaluate_spec, checkpoint):
    trained_with(checkpoint, "train.train_policy.system_prompt", "Look closely.")
    (warning,) = as_trained.check(evaluate_spec)
    assert (warning.id, warning.data) == (
        "EVAL-MISMATCH-PROMPT",
        {"training": "Look closely.", "evaluation": ""},
    )


def test_without_a_training_spec_it_says_that_nothing_was_compared(evaluate_spec, checkpoint):
    shutil.rmtree(checkpoint.parents[1] / "checkpoints")
    assert [finding.id for finding in as_trained.check(evaluate_spec)] == ["EVAL-TRAINING-UNKNOWN"]
    path = checkpoint.parents[2] / "config.toml"
    path.write_text(
        "[custom.vision]\nnframes = 8\nresized_height = 64\nresized_width = 64\n", encoding="utf-8"
    )
    assert [finding.id for finding in as_trained.check(evaluate_spec)] == ["EVAL-MISMATCH-VISION"]
    path.write_text("[custom.vision]\nnframe = 8\n", encoding="utf-8")
    assert [finding.id for finding in as_trained.check(evaluate_spec)] == ["EVAL-TRAINING-UNKNOWN"]
