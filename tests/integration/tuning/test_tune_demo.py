"""The demo task tuned for real: twelve short trainings have to beat the
spec that was written by hand."""

import json

import pytest
import run_demo
import study_world
import tiny_world
from support import run_script

from cosmos_reason.tuning import study

pytestmark = pytest.mark.release

EPOCHS = 2
OWN = [f"num_epochs={EPOCHS}", "train.optm_warmup_steps=0.06", "validation.freq_in_epoch=1"]
RANGES = ["lr=1e-4..1e-2", "batch_size=[8,16,24,32]", "warmup=0.0..0.3"]


def make(root):
    """The demo's world and its train and evaluate specs,
    for a quarter of an hour of twelve trainings on two cores."""
    run_demo.make_world(root, "cosmos3", 0)
    tiny_world.convert_model(root)
    named = {setting.partition("=")[0] for setting in OWN}
    settings = [
        setting for setting in run_demo.TRAINING if setting.partition("=")[0] not in named
    ] + OWN
    settings += [f"custom.vision.{option}" for option in run_demo.VISION["cosmos3"]]
    tiny_world.write_train_spec(root, settings, "validation", *study_world.NO_PREFETCH)
    asked = ["generation.max_tokens=8", "evaluation.batch_size=60"]
    tiny_world.write_evaluate_spec(root, asked, "eval", "eval.toml")


def test_twelve_trials_beat_the_spec_written_by_hand(tmp_path):
    make(tmp_path)
    words = [word for given in RANGES for word in ("--range", given)]
    words += [
        "--spec",
        "train.toml",
        "--eval-spec",
        "eval.toml",
        "--trials",
        12,
        *["--gpu-ids", "none"] * 2,
    ]
    done = run_script(
        "tune_hyperparameters.py run --study s", *words, "--json", cwd=tmp_path, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["result"]
    print(json.dumps(found, indent=1), done.stderr)
    assert found["trained"] == 12
    assert found["best"]["objective"] > found["default"] > found["baseline"]
    assert len(study.open_or_begin(tmp_path / "s").trials()) == 13
    run_script("tune_hyperparameters.py", "report", "--study", "s", cwd=tmp_path)
    assert "The winning spec" in (tmp_path / "s" / "report.html").read_text()
