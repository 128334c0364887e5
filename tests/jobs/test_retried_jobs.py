"""A retry is one training with its history: every command sees the checkpoints and metrics of all
attempts, and of a step that the retry came to again the retry's."""

import json
import shutil

import pytest
from job_folders import (
    EVALUATE,
    RETRY,
    RUNS,
    TRAIN,
    write_evaluation,
    write_retried_training,
    write_run,
)
from launch_site import Site
from support import run_script

from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.jobs import launch
from cosmos_reason.jobs import record as jobs
from cosmos_reason.pages import loss_chart


def said(script, *args, **env):
    done = run_script(script, *args, "--json", **env)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def chosen(folder, by):
    code, document = said("select_checkpoint.py", folder, "--by", by)
    return document["result"]["selected"]["name"] if code == 0 else document["findings"][0]["id"]


@pytest.fixture
def place(tmp_path):
    write_retried_training(tmp_path / "jobs")
    return tmp_path / "jobs"


@pytest.mark.parametrize("named", [RETRY, TRAIN, f"{TRAIN}/results"])
def test_the_loss_of_every_attempt_chooses(place, named):
    """Of step 30 the retry's loss counts, not the lower one that it superseded."""
    assert chosen(place / named, "val_loss") == f"{RUNS[1]}/safetensors/step_30"
    retry = place / RETRY / "metrics.jsonl"
    retry.write_text(retry.read_text().replace("0.4", "0.9"))
    assert chosen(place / named, "val_loss") == f"{RUNS[0]}/safetensors/step_20"


def test_the_losses_of_attempts_in_logs_choose(place):
    """cosmos-rl's runs say not who wrote them; those in the first job's folder are of it."""
    line = "[cosmos] 2026-01-01 12:00:00,000 - cosmos - INFO - {}\n"
    for attempt, run, steps in (
        (TRAIN, RUNS[0], {10: 0.6, 20: 0.5}),
        (RETRY, RUNS[1], {30: 0.3, 40: 0.8}),
    ):
        (place / attempt / "metrics.jsonl").unlink()
        (place / TRAIN / "results" / run / ".job_id").unlink()
        text = ""
        for step, loss in steps.items():
            folder = place / TRAIN / "results" / run / "safetensors" / f"step_{step}"
            text += line.format(f"[SFT] Validation loss: {loss} for train step {step}/40, epoch 1")
            text += line.format(f"Saving huggingface checkpoint at step {step} to {folder}...")
            text += line.format(f"Exported safetensors to {folder}")
        (place / attempt / "log.txt").write_text(text)
    assert chosen(place / RETRY, "val_loss") == f"{RUNS[1]}/safetensors/step_30"
    assert chosen(place / RETRY, "step_30") == f"{RUNS[1]}/safetensors/step_30"


def test_a_superseded_step_is_meant_by_its_full_name_alone(place):
    code, document = said("select_checkpoint.py", place / RETRY)
    told = {row["name"]: row["superseded_by"] for row in document["result"]["checkpoints"]}
    assert code == 0 and [name for name, by in told.items() if by] == [
        f"{RUNS[0]}/safetensors/step_30"
    ]
    assert told[f"{RUNS[0]}/safetensors/step_30"] == RUNS[1]
    assert chosen(place / RETRY, "step_30") == f"{RUNS[1]}/safetensors/step_30"
    earlier = f"{RUNS[0]}/safetensors/step_30"
    assert chosen(place / RETRY, earlier) == earlier


def test_runs_of_other_trainings_supersede_nothing(place, tmp_path):
    """Two trainings in one folder of the user's own have steps of the same name."""
    output = tmp_path / "output"
    write_run(output, RUNS[0], (10,), "train-20250101-120000-0a1b2c")
    write_run(output, RUNS[1], (10,), "train-20250101-130000-0a1b2c")
    assert not [one for one in run_outputs.find(output) if one.superseded_by]
    assert chosen(output, "step_10") == "CKPT-NOT-FOUND"


@pytest.mark.parametrize("named", [RETRY, TRAIN])
def test_every_step_of_a_retried_training_is_evaluated(place, tmp_path, monkeypatch, named):
    site = Site(tmp_path, monkeypatch)
    site.does(rows=["a"], questions=1)
    request = site.request("evaluate", checkpoints=[str(place / named)])
    job, found = launch.plan(request)
    assert job, found
    steps = [(path.split("/")[-3], path.split("/")[-1]) for path in job.options["checkpoints"]]
    assert steps == [
        (RUNS[0], "step_10"),
        (RUNS[0], "step_20"),
        (RUNS[1], "step_30"),
        (RUNS[1], "step_40"),
    ]
    assert job.parent_job == RETRY


def test_status_and_report_tell_the_history(place, tmp_path):
    code, document = said("launch_job.py", "status", place / RETRY)
    assert code == 0 and document["result"]["attempts"] == [
        {"job_id": TRAIN, "state": "ERROR", "last_step": 30},
        {"job_id": RETRY, "state": "COMPLETE", "last_step": 40},
    ]
    done = run_script("launch_job.py", "status", place / RETRY)
    assert f"retry of {TRAIN}, which ended as ERROR at step 30" in done.stdout
    curve = loss_chart.read_curve(place / RETRY / "metrics.jsonl")
    assert curve["val/avg_loss"] == [(10, 0.6), (20, 0.5), (30, 0.4), (40, 0.45)]
    assert [step for step, _ in curve["train/loss"]] == list(range(1, 41))
    first = loss_chart.read_curve(place / TRAIN / "metrics.jsonl")
    assert first["val/avg_loss"] == [(10, 0.6), (20, 0.5), (30, 0.1)]


@pytest.mark.parametrize("is_moved", [False, True])
def test_scores_of_all_attempts_are_in_one_table(place, tmp_path, is_moved):
    for step, run in ((20, RUNS[0]), (40, RUNS[1])):
        results = place / TRAIN / "results" / run / "safetensors" / f"step_{step}"
        write_evaluation(place, results)
        if is_moved:
            shutil.move(place, tmp_path / "moved")
        home = tmp_path / "moved" if is_moved else place
        assert said("score_predictions.py", home / EVALUATE / "results")[0] == 0
        shutil.rmtree(home / EVALUATE)
        if is_moved:
            shutil.move(home, place)
    assert chosen(place / RETRY, "accuracy") == f"{RUNS[0]}/safetensors/step_20"
    table = json.loads((place / TRAIN / "results" / "checkpoint_metrics.json").read_text())
    assert len(table) == 2


def test_a_retry_in_another_folder_of_jobs_knows_its_history(place, tmp_path):
    elsewhere = tmp_path / "other" / RETRY
    shutil.copytree(place / RETRY, elsewhere)
    shutil.rmtree(place / RETRY)
    record = json.loads((elsewhere / "job.json").read_text())
    record["spec"]["path"] = str(elsewhere / "spec.toml")
    (elsewhere / "job.json").write_text(json.dumps(record))
    assert chosen(elsewhere, "val_loss") == f"{RUNS[1]}/safetensors/step_30"


def test_a_retry_that_saved_nothing_goes_on_from_where_it_began(place):
    """Its own outputs are as they were before it began."""
    record = json.loads((place / RETRY / "job.json").read_text()) | {"state": "ERROR"}
    (place / RETRY / "job.json").write_text(json.dumps(record))
    results = place / TRAIN / "results"
    shutil.rmtree(results / RUNS[1])
    stamps = {str(path): path.lstat().st_mtime_ns for path in results.rglob("*")}
    (place / RETRY / jobs.BEFORE).write_text(json.dumps(stamps))
    begun_from = str(results / RUNS[0] / "checkpoints" / "step_20" / "policy")
    assert jobs.Job.load(place / RETRY).newest_resume() == begun_from


def test_a_requeued_job_is_one_training_too(place, tmp_path, monkeypatch):
    """SLURM begins the same job anew: one log, in which steps come again, and two runs."""
    shutil.rmtree(place / RETRY)
    results = place / TRAIN / "results"
    for run in RUNS:
        (results / run / ".job_id").write_text(TRAIN)
    first = (place / TRAIN / "metrics.jsonl").read_text()
    again = [json.dumps({"step": n, "total_steps": 40, "train/loss": 1.0}) for n in range(21, 41)]
    validated = json.dumps({"step": 40, "total_steps": 40, "val/avg_loss": 0.45})
    (place / TRAIN / "metrics.jsonl").write_text(first + "\n".join([*again, validated]) + "\n")
    assert chosen(place / TRAIN, "val_loss") == f"{RUNS[1]}/safetensors/step_40"
    assert chosen(place / TRAIN, "step_30") == f"{RUNS[1]}/safetensors/step_30"


def test_a_folder_that_is_no_training_gets_no_advice_about_one(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "annotations.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    off = tmp_path / "off"
    off.mkdir()
    (off / "config.toml").write_text("[train.ckpt]\nenable_checkpoint = false\n")
    for folder, fix in ((data, ""), (tmp_path / "empty", ""), (off, "enable_checkpoint=true")):
        for flags in ([], ["--by", "accuracy"]):
            code, document = said("select_checkpoint.py", folder, *flags)
            (found,) = document["findings"]
            assert (code, found["id"], fix in found["fix"]) == (1, "CKPT-NONE", True)
            assert bool(found["fix"]) == bool(fix)
