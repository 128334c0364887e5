"""A fold is a dataset like any other: it trains, is evaluated and searched on, by the commands."""

import json

import pytest
import tiny_world
from support import run_script

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("folds")
    tiny_world.make_data(root, train=9)
    tiny_world.convert_model(root)
    words = ("data/train", "-o", "folded", "--folds", "3")
    tiny_world.succeed("build_dataset.py", *words, cwd=root)
    for fold in (1, 2, 3):
        sides = [f"folded/fold-{fold}/{side}" for side in ("train", "eval")]
        words = ["--train-root", sides[0], "--eval-root", sides[1], "--tuning", "full"]
        words += ["--gpus-per-node", 1, "--set", "train.epoch=1", "-o", f"train{fold}.toml"]
        tiny_world.succeed("build_spec.py", "train", *tiny_world.ENGINE, *words, cwd=root)
    return root


def finished(root, action, spec):
    """The record of a job that was submitted and watched to its end."""
    words = (action, "--platform", "local", "--spec", spec, "--jobs-dir", "jobs", "--json")
    submitted = json.loads(tiny_world.succeed("launch_job.py", "submit", *words, cwd=root))
    id = submitted["result"]["job_id"]
    watched = ("watch", id, "--jobs-dir", "jobs", "--every", 1)
    run_script("launch_job.py", *watched, cwd=root, timeout=900)
    return json.loads((root / "jobs" / id / "job.json").read_text())


def test_a_fold_trains_and_its_held_out_records_are_all_answered(world):
    assert finished(world, "train", "train1.toml")["state"] == "COMPLETE"
    words = ["--engine", "transformers", "--model", "model", "--eval-root", "folded/fold-1/eval"]
    tiny_world.succeed("build_spec.py", "evaluate", *words, "-o", "evaluate.toml", cwd=world)
    record = finished(world, "evaluate", "evaluate.toml")
    assert record["state"] == "COMPLETE"
    (results,) = (world / "jobs" / record["job_id"]).rglob("results.json")
    held_out = json.loads((world / "folded/fold-1/eval/annotations.json").read_text())
    answered = {row["video_id"] for row in json.loads(results.read_text())}
    assert answered == {one["id"] for one in held_out} and len(held_out) == 9


@pytest.mark.parametrize("fold", [1, 2, 3])
def test_a_search_plans_on_each_fold(world, fold):
    words = ("plan", "--study", f"study{fold}", "--spec", f"train{fold}.toml", "--trials", 2)
    planned = run_script("tune_hyperparameters.py", *words, "--gpu-ids", "none", cwd=world)
    assert planned.returncode == 0, planned.stderr
    held_out = (world / f"folded/fold-{fold}/eval/annotations.json").read_text()
    trained = (world / f"folded/fold-{fold}/train/annotations.json").read_text()
    ids = [{one["id"] for one in json.loads(text)} for text in (held_out, trained)]
    assert ids[0].isdisjoint(ids[1])
