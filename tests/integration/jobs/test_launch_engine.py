"""Real jobs with the embedded engine and a tiny model: killed, retried, evaluated."""

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import tiny_world
from docker_engine import IMAGE
from jsonschema import Draft202012Validator
from launch_site import met_at_work, running
from support import run_script
from tiny_world import ENGINE, flags, succeed

from cosmos_reason.base import bundle, files
from cosmos_reason.demo import clips
from cosmos_reason.jobs import progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import local
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

SAMPLING = ["nframes=4", "resized_height=64", "resized_width=64"]
TRAINING = [
    *(f"custom.vision.{option}" for option in SAMPLING),
    "num_epochs=4",
    "batch_size=12",
    "train.train_policy.dataloader_num_workers=0",
    "train.seed=1",
    "train.ckpt.save_freq=2",
    "learning_rate=1e-3",
    "policy.model_max_length=1024",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with an awkward name that holds data, a tiny model,
    and specs with relative paths."""
    root = tmp_path_factory.mktemp("world") / "it's $(odd); é"
    tiny_world.make_data(root, train=12, val=4)
    tiny_world.convert_model(root)
    tiny_world.write_train_spec(root, TRAINING, "val")
    asked = [*(f"vision.{option}" for option in SAMPLING), "generation.max_tokens=4"]
    tiny_world.write_evaluate_spec(root, asked, "train", "evaluate.toml")
    return root


def submit(root, action, *more, platform="local", name=None):
    where = ["--spec", f"{name or action}.toml", "--platform", platform]
    return succeed("launch_job.py", "submit", action, *where, *more, cwd=root)


def watched(root, job_id):
    done = run_script("launch_job.py", "watch", job_id, "--json", cwd=root)
    return done.returncode, jobs.Job.load(root / "jobs" / job_id)


def begun(root, action):
    return root / "jobs" / submit(root, action)


def has_steps(count):
    return lambda folder: progress.newest(folder).get("step", 0) >= count


def kill(folder):
    os.killpg(jobs.Job.load(folder).platform_ref["pid"], signal.SIGKILL)


@pytest.mark.promise
def test_a_killed_training_is_retried_to_the_same_weights(world):
    code, whole = watched(world, submit(world, "train"))
    assert code == 0 and whole.state == "COMPLETE", whole.reason
    killed = met_at_work(lambda: begun(world, "train"), has_steps(4), kill)
    code, status = watched(world, killed.name)
    assert (code, status.state) == (3, "ERROR") and "stopped at step" in status.reason
    code, again = watched(world, succeed("launch_job.py", "retry", killed.name, cwd=world))
    assert code == 0 and again.state == "COMPLETE" and again.retry_of == killed.name, again.reason
    for line in progress.read_metrics(killed)[0]:
        Draft202012Validator(bundle.schema("metrics_line")).validate(line)
    first_line = progress.read_metrics(world / "jobs" / again.job_id)[0][0]
    assert first_line["step"] > 1
    weights = [Path(job.evidence["checkpoint"]) / "model.safetensors" for job in (whole, again)]
    assert files.sha256(weights[0]) == files.sha256(weights[1])


def test_a_training_that_lost_a_clip_says_so_wherever_people_look(world):
    job = world / "jobs" / submit(world, "train")
    clip = sorted((world / "data" / "train" / "videos").iterdir())[0]
    content = clip.read_bytes()
    try:
        clip.write_bytes(b"")
        code, status = watched(world, job.name)
    finally:
        clip.write_bytes(content)
    assert code == 0 and status.state == "COMPLETE", status.reason
    lost = status.evidence["skipped_records"]
    assert f"{lost} of 36 records were left out: their media could not be read" in status.reason
    assert f"{lost} records left out" in succeed("launch_job.py", "status", job.name, cwd=world)
    for line in progress.read_metrics(job)[0]:
        Draft202012Validator(bundle.schema("metrics_line")).validate(line)
    entries = files.read_json(Path(status.evidence["left_out"]))["training"]["left_out"]
    assert len(entries) == lost > 0 and {entry["where"] for entry in entries} == {str(clip)}


@pytest.mark.parametrize("how", ["cancel", "SIGUSR1"])
def test_a_training_that_is_asked_to_end_saves_and_is_retried_to_the_same_weights(world, how):
    code, whole = watched(world, submit(world, "train"))
    assert code == 0 and whole.state == "COMPLETE", whole.reason

    def ask_to_end(folder):
        if how == "cancel":
            run_script("launch_job.py", "cancel", folder.name, cwd=world)
        else:
            local.send(signal.SIGUSR1, folder.name, jobs.Job.load(folder).platform_ref["pid"])

    ended = met_at_work(lambda: begun(world, "train"), has_steps(1), ask_to_end)
    code, status = watched(world, ended.name)
    assert (code, status.state) == (3, "CANCELED" if how == "cancel" else "ERROR")
    last, total = progress.newest(ended)["step"], progress.newest(ended)["total_steps"]
    assert last < total and f"stopped at step {last} of {total}" in status.reason
    assert f"retry {ended.name}" in status.reason and f"goes on from step {last}" in status.reason
    code, again = watched(world, succeed("launch_job.py", "retry", ended.name, cwd=world))
    assert code == 0 and again.state == "COMPLETE", again.reason
    assert progress.read_metrics(world / "jobs" / again.job_id)[0][0]["step"] >= last
    weights = [Path(job.evidence["checkpoint"]) / "model.safetensors" for job in (whole, again)]
    assert files.sha256(weights[0]) == files.sha256(weights[1])


def test_a_training_whose_only_export_found_the_disk_full_is_completed_by_a_retry(world):
    train = document.load(world / "train.toml")
    train["train"]["ckpt"]["save_freq"] = 12  # at the last step only
    document.set_value(
        train, "policy.trainable_pattern", ["lm_head"]
    )  # a state that is smaller than the model
    document.dump(train, world / "once.toml")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        job_id = submit(world, "train", name="once")
        code, full = watched(world, job_id)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, full.state) == (3, "ERROR"), full.reason
    assert "ENGINE-SAVE-FAILED" in full.reason
    code, again = watched(world, succeed("launch_job.py", "retry", job_id, cwd=world))
    assert code == 0 and again.state == "COMPLETE" and again.evidence["last_step"] == 12, (
        again.reason
    )
    done = run_script("launch_job.py", "retry", again.job_id, cwd=world)
    assert done.returncode == 2 and "JOB-NOT-FAILED" in done.stderr
    line = f"--parent-job jobs/{again.job_id} --engine transformers -o more.toml".split()
    done = run_script("build_spec.py", "train", *line, cwd=world)
    assert done.returncode == 1 and "SPEC-RESUME-DONE" in done.stderr


@pytest.mark.promise
def test_twenty_steps_in_a_container_give_the_same_weights(world, dockerd, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # sums of as many threads as inside
    train = document.load(world / "train.toml")
    train["train"] |= {"epoch": 10, "max_num_steps": 20}
    document.dump(train, world / "twenty.toml")
    outside, inside = (
        watched(world, submit(world, "train", *more, platform=platform, name="twenty"))
        for platform, more in (
            ("local", []),
            ("docker", ["--engine", "transformers", "--image", IMAGE, "--network", "host"]),
        )
    )
    for code, record in (outside, inside):
        assert code == 0 and record.evidence["last_step"] == 20, record.reason
    weights = [
        Path(record.evidence["checkpoint"]) / "model.safetensors" for _, record in (outside, inside)
    ]
    assert files.sha256(weights[0]) == files.sha256(weights[1])


def test_an_evaluation_is_complete_with_a_row_per_question(world):
    rows_of_an_evaluation(world)


def test_an_evaluation_in_a_container_too(world, dockerd):
    words = ["--engine", "transformers", "--image", IMAGE, "--network", "host"]
    rows_of_an_evaluation(world, *words, platform="docker")


def rows_of_an_evaluation(world, *words, **where):
    code, record = watched(world, submit(world, "evaluate", *words, **where))
    questions = len(files.read_json(world / "data/train/annotations.json"))
    assert code == 0
    assert record.evidence == {"rows": questions, "questions": questions, "failed": 0}


def test_general_questions_are_asked_and_paired_with_those_of_the_base_model(world):
    """From the training to the choice: base model and checkpoint are asked both sets."""
    asked = [*(f"vision.{option}" for option in SAMPLING), "generation.max_tokens=4"]
    clips.write_split(world / "data", "general", 3, 5)
    words = ["--eval-root", "data/train", "--guard-root", "data/general", *flags(asked)]
    succeed("build_spec.py", "evaluate", *ENGINE, *words, "-o", "guarded.toml", cwd=world)
    code, before = watched(world, submit(world, "evaluate", name="guarded"))
    assert code == 0 and before.evidence["rows"] == 36 + 9, before.reason
    train = world / "jobs" / submit(world, "train", "--gpu-ids", "none")
    assert watched(world, train.name)[0] == 0
    words = ["--checkpoint", str(jobs.Job.load(train).outputs["output_dir"])]
    code, after = watched(world, submit(world, "evaluate", *words, name="guarded"))
    models = len(after.options["checkpoints"])
    assert code == 0 and models > 1 and after.evidence["rows"] == models * (36 + 9), after.reason
    compared = ["--compare", before.outputs["results_dir"]]
    succeed("score_predictions.py", after.outputs["results_dir"], *compared, cwd=world)
    listed = run_script("select_checkpoint.py", train, "--by", "accuracy", "--json", cwd=world)
    chosen = json.loads(listed.stdout)
    pair = chosen["result"]["selected"]["guard"]["comparison"]
    assert pair["paired"] == 9 and Path(pair["before"]).is_relative_to(before.folder)
    told = {finding["id"] for finding in chosen["findings"]}
    assert told & {"EVAL-GUARD", "EVAL-FORGOT"}


def test_an_inference_is_complete_with_a_row_per_medium_and_question(world):
    """Killed as soon as the first answers are there, then retried: the rest is asked."""
    (world / "q.txt").write_text("Is it red?\n")
    sets = [f"vision.{option}" for option in SAMPLING] + ["max_tokens=4", "batch_size=2"]
    sets += ["media=data/train/videos", "prompt=Which way?", "questions_file=q.txt"]
    words = [*ENGINE, *flags(sets), "-o", "inference.toml"]
    succeed("build_spec.py", "inference", *words, cwd=world)
    killed = met_at_work(
        lambda: begun(world, "inference"), lambda folder: [*folder.glob("results/.rows*")], kill
    )
    code, status = watched(world, killed.name)
    assert (code, status.state) == (3, "ERROR") and "no predictions.json" in status.reason
    code, again = watched(world, succeed("launch_job.py", "retry", killed.name, cwd=world))
    assert code == 0 and again.state == "COMPLETE", again.reason
    assert again.evidence == {"rows": 24, "questions": 24, "failed": 0}
    rows = files.read_json(Path(again.outputs["results_dir"]) / "predictions.json")
    Draft202012Validator(bundle.schema("predictions")).validate(rows)
    assert len({row["id"] for row in rows}) == 24
    assert not list(Path(again.outputs["results_dir"]).glob(".rows*"))


def test_an_evaluation_with_unreadable_clips_says_how_many_rows_failed(world):
    lame = world / "lame"
    shutil.copytree(world / "data" / "train", lame)
    records = files.read_json(lame / "annotations.json")
    clips_named = sorted({record["video"] for record in records})
    for name in clips_named[: len(clips_named) // 2]:
        (lame / name).write_bytes(b"no clip")
    evaluate = document.load(world / "evaluate.toml")
    evaluate["dataset"] |= {"annotation_path": "lame/annotations.json", "media_dir": "lame"}
    document.dump(evaluate, world / "lame.toml")
    code, record = watched(world, submit(world, "evaluate", name="lame"))
    failed = record.evidence["failed"]
    assert code == 0 and failed == len(records) // 2
    assert f"{failed} of {len(records)} rows are errors" in record.reason
    assert record.reason in run_script("launch_job.py", "status", record.job_id, cwd=world).stdout


def test_a_canceled_training_says_so(world):
    train = document.load(world / "train.toml")
    train["train"] |= {"epoch": 10_000, "max_num_steps": 20_000}
    document.dump(train, world / "endless.toml")
    job_id = submit(world, "train", name="endless")
    running(world / "jobs" / job_id)
    done = run_script("launch_job.py", "cancel", job_id, "--json", cwd=world)
    result = json.loads(done.stdout)["result"]
    assert (
        done.returncode == 0
        and result["state"] == "CANCELED"
        and result["exit_code"] == 3  # asked to end, it saved its state and said so
    )
    assert run_script("launch_job.py", "cancel", job_id, cwd=world).returncode == 2
