"""An evaluation is compared with the training of its checkpoint."""

import shutil

from support import run_script

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


def test_other_frames_are_a_warning_with_the_tokens_of_both_and_a_fix_that_works(
    evaluate_spec, checkpoint, tmp_path
):
    evaluate_spec["vision"] = {"fps": 4.0}
    (warning,) = as_trained.check(evaluate_spec)
    assert warning.id == "EVAL-MISMATCH-VISION"
    assert warning.data["tokens"]["training"] == 2 * 2 * 2
    assert warning.data["tokens"]["evaluation"] > 8
    assert "8 vision tokens" in warning.message and "nframes=4" in warning.message
    folder = tmp_path / "eval"
    flags = [
        "--eval-root",
        folder,
        "--model",
        checkpoint,
        "-o",
        tmp_path / "e.toml",
        "--set",
        "vision.fps=4",
    ]
    made = run_script("build_spec.py", "evaluate", *flags, "--unset", "vision.nframes")
    assert made.returncode == 0, made.stderr
    flags = [
        "--spec",
        tmp_path / "e.toml",
        *str(warning.fix).split(),
        "-o",
        tmp_path / "mended.toml",
    ]
    mended = run_script(
        "build_spec.py", "evaluate", *flags, "--eval-root", folder, "--model", checkpoint
    )
    assert mended.returncode == 0, mended.stderr
    assert (
        as_trained.check(spec.with_defaults("evaluate", spec.load(tmp_path / "mended.toml"))) == []
    )


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
