"""Studies of real jobs with the embedded engine: killed, parallel, failing, reported.
A trial is two training steps."""

import dataclasses
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jsonschema
import pytest
import study_world
from support import ROOT, run_script

from cosmos_reason.base import bundle, files
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document as spec
from cosmos_reason.tuning import study

pytestmark = pytest.mark.integration

SCRIPT = ROOT / "scripts" / "tune_hyperparameters.py"
SPACE = "--spec train.toml --eval-spec eval.toml --range lr=1e-5..1e-3 --pruner none".split()
BUDGET = ["--trials", "2", "--gpu-ids", "none", "--every", "0.4"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return study_world.make(tmp_path_factory.mktemp("world"))


def begin(world, name, *words):
    """A `run` in a process group of its own."""
    command = [sys.executable, str(SCRIPT), "run", "--study", name, *words, "--json"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen(command, cwd=world, start_new_session=True, **streams)


def finish(process):
    result = json.loads(process.communicate(timeout=300)[0])
    assert process.returncode == 0, result
    return result["result"]


def check_accounts(folder, trials):
    """Every trial is there once and ended well, and no job was run twice."""
    made = study.open_or_begin(folder)
    records = made.trials()
    assert [trial["number"] for trial in records] == list(range(trials + 1))
    assert {trial["state"] for trial in records} == {study.COMPLETE}, [
        trial["reason"] for trial in records
    ]
    assert len({json.dumps(trial["values"]) for trial in records}) == trials + 1
    for trial in records:
        jsonschema.validate(trial, bundle.schema("trial"))
        found = [
            jobs.Job.load(path)
            for path in jobs.folders(made.trial_folder(trial["number"]) / "jobs")
        ]
        ran = [job.action for job in found if job.started_at]
        assert sorted(ran) == (
            ["evaluate"] if trial["kind"] == study.BASE else ["evaluate", "train"]
        )
    return records


def test_killed_ten_times_every_trial_is_accounted_for_once(world):
    """Continued by what `status` prints as next, it keeps its budget and its GPUs."""
    rng, words = random.Random(0), [*SPACE, *BUDGET, "--gpu-ids", "none"]
    for _ in range(10):
        process = begin(world, "killed", *words)
        try:
            process.wait(timeout=rng.uniform(0.5, 5))
        except subprocess.TimeoutExpired:
            if rng.random() < 0.5:
                os.killpg(process.pid, signal.SIGKILL)  # a submit on its way dies too
            process.kill()
            process.wait()
        if (world / "killed/study.json").is_file():
            said = study_world.succeed(
                "tune_hyperparameters.py", "status", "--study", "killed", "--json", cwd=world
            )
            words = shlex.split(json.loads(said)["next"])[2:]
            assert words == ["--study", "killed"]
            words = ["--every", "0.4"]
    finish(begin(world, "killed", *words))
    check_accounts(world / "killed", 2)


def planned_study(world, budget):
    """The plan, and the words after `run --study whole` of the command that it says comes next."""
    done = run_script(
        "tune_hyperparameters.py plan --study whole", *SPACE, *budget, "--json", cwd=world
    )
    planned = json.loads(done.stdout)["result"]
    assert done.returncode == 0 and not (world / "whole").exists()
    assert planned["left"] == 2 and planned["space"][0]["default"] == 1e-4
    words = shlex.split(json.loads(done.stdout)["next"])[1:]
    assert words[:3] == ["run", "--study", "whole"]
    return planned, words[3:]


def check_that_a_second_run_is_refused(world, first):
    second = begin(world, "whole")
    refused = json.loads(second.communicate(timeout=300)[0])
    assert second.returncode == 3
    assert f"process {first.pid} on " in refused["findings"][0]["message"]


def check_that_trials_overlap(records):
    spans = sorted(
        (jobs.seconds(trial["started_at"]), jobs.seconds(trial["ended_at"])) for trial in records
    )
    assert any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


def check_that_only_the_winner_is_kept(world, best):
    left = [path.parts[-4] for path in (world / "whole").glob("trials/*/jobs/train-*/results")]
    assert left == [f"{best['number']:04}"]


def followed(world):
    """What `best` prints, reached by what each verb says comes next: report, best, the scores."""
    said = study_world.succeed(
        "tune_hyperparameters.py", "status", "--study", "whole", "--json", cwd=world
    )
    printed = {}
    for verb in ("report", "best", "--compare"):
        words = [*shlex.split(json.loads(said)["next"]), "--json"]
        assert verb in words[:3]
        said = subprocess.run(
            [sys.executable, *words], cwd=world, check=True, capture_output=True
        ).stdout
        printed[verb] = json.loads(said)
    return printed["best"]["result"]


@pytest.fixture(scope="module")
def planned(world):
    """The plan of study `whole`, which has run; a second run beside it was refused."""
    plan, words = planned_study(world, [*BUDGET, "--gpu-ids", "none"])
    process = begin(world, "whole", *words)
    while not (world / "whole/trials/0000").is_dir():
        assert process.poll() is None
        time.sleep(0.05)
    check_that_a_second_run_is_refused(world, process)
    finish(process)
    return plan


@pytest.mark.promise
def test_two_trials_at_a_time_from_plan_to_a_winning_spec(world, planned):
    records = check_accounts(world / "whole", 2)
    check_that_trials_overlap(records)
    assert records[2]["values"]["train.optm_lr"] == planned["space"][0]["next"]
    best = study.open_or_begin(world / "whole").ranked(records)[0]
    check_that_only_the_winner_is_kept(world, best)
    winner = followed(world)
    checked = ["--spec", winner["spec"], "-o", "winner.toml", "--engine", "transformers"]
    study_world.succeed("build_spec.py", "train", *checked, cwd=world)
    assert spec.load(world / "winner.toml")["train"]["optm_lr"] == best["values"]["train.optm_lr"]
    output = winner["checkpoint"].rsplit("/", 3)[0]
    study_world.succeed("select_checkpoint.py", output, cwd=world)
    more = ["plan", "--study", "whole", "--trials", 14, *BUDGET[2:]]
    again = run_script("tune_hyperparameters.py", *more, cwd=world)
    assert "(2 trials of this study)" in again.stdout, again.stderr
    assert "2 trials of this study" in again.stdout, again.stderr


def test_trials_are_asked_general_questions_too(world):
    words = [*SPACE, *BUDGET, "--gpu-ids", "none", "--guard-root", "data/validation"]
    found = finish(begin(world, "guarded", *words))
    records = check_accounts(world / "guarded", 2)
    assert all("guard_accuracy" in trial["metrics"] for trial in records)
    assert found["guard"]["comparison"]["paired"] == found["guard"]["rows"] == 6


def test_a_job_of_another_host_is_asked_about_there(world, planned):
    shutil.copytree(world / "whole", world / "elsewhere")
    made = study.open_or_begin(world / "elsewhere")
    (job,) = [p for p in jobs.folders(made.trial_folder(2) / "jobs") if p.name.startswith("train")]
    elsewhere = {"pid": 1, "host": "other"}
    dataclasses.replace(
        jobs.Job.load(job), state=jobs.RUNNING, ended_at=None, platform_ref=elsewhere
    ).write()
    made.write(made.trial(2) | {"state": study.RUNNING, "objective": None, "ended_at": None})
    process = begin(world, "elsewhere", *BUDGET)
    document = json.loads(process.communicate(timeout=300)[0])
    assert process.returncode == 3
    assert "started on other; ask there" in document["findings"][0]["message"]
    assert made.trial(2)["state"] == study.RUNNING and len(jobs.folders(job.parent)) == 2


def test_a_full_disk_ends_a_run_and_the_next_one_makes_it_good(world):
    """The checkpoints of all trials go to a file system of 1 MB until it is mended."""
    small = world / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=False
    ).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        process = begin(world, "small/s", *SPACE, *BUDGET[2:], "--trials", "3")
        document = json.loads(process.communicate(timeout=300)[0])
        assert process.returncode == 3, document
        subprocess.run(["mount", "-o", "remount,size=200m", small], check=True)
        finish(begin(world, "small/s", "--every", "0.4"))
        records = study.open_or_begin(small / "s").trials()
        assert [trial["state"] for trial in records] == [study.COMPLETE] * 4, [
            trial["reason"] for trial in records
        ]
    finally:
        subprocess.run(["umount", small], check=False)


def test_failing_trials_are_recorded_and_end_a_hopeless_study(world):
    (world / "broken.mp4").write_bytes(b"no video")
    records = files.read_json(world / "data/train/annotations.json")
    files.write_json(
        world / "broken.json", [record | {"video": "broken.mp4"} for record in records]
    )
    table = spec.load(world / "train.toml")
    spec.set_value(
        table, "custom.train_dataset", {"annotation_path": "broken.json", "media_path": "."}
    )
    spec.dump(table, world / "broken.toml")
    words = [
        "--spec",
        "broken.toml",
        "--eval-spec",
        "eval.toml",
        "--range",
        "lr=1e-5..1e-3",
        *BUDGET[2:],
    ]
    process = begin(world, "failing", *words, "--trials", "8")
    document = json.loads(process.communicate(timeout=300)[0])
    assert process.returncode == 3 and document["findings"][0]["id"] == "TUNE-ALL-FAILED"
    records = study.open_or_begin(world / "failing").trials()
    assert [trial["state"] for trial in records] == ["COMPLETE", "FAILED", "FAILED", "FAILED"]
    assert all("broken.mp4" in trial["reason"] and trial["outside"] for trial in records[1:])
    records = files.read_json(world / "data/train/annotations.json")
    shutil.copy(world / "data/train" / records[0]["video"], world / "broken.mp4")
    finish(begin(world, "failing", "--trials", "3", "--every", "0.4"))
    assert [trial["state"] for trial in study.open_or_begin(world / "failing").trials()] == [
        "COMPLETE"
    ] * 4


def test_validation_loss_as_objective_prunes_and_needs_no_evaluation(world):
    words = ["--spec", "train.toml", "--range", "lr=1e-7..1e-2", "--objective", "val_loss"]
    done = run_script(
        "tune_hyperparameters.py run --study proxy", *words, *BUDGET, cwd=world, timeout=300
    )
    assert done.returncode == 0 and "TUNE-PROXY" in done.stderr, done.stderr
    records = study.open_or_begin(world / "proxy").trials()
    assert [trial["number"] for trial in records] == [1, 2]
    losses = [trial["objective"] for trial in records if trial["state"] == study.COMPLETE]
    assert losses and all(0 < loss < 10 for loss in losses)
    assert not list((world / "proxy").glob("trials/*/jobs/evaluate-*"))


def test_the_page_opens_in_a_browser(world, planned, tmp_path):
    from browser import Browser

    study_world.succeed("tune_hyperparameters.py", "report", "--study", "whole", cwd=world)
    browser = Browser(tmp_path / "profile")
    for width in (1200, 400):
        browser.open(world / "whole" / "report.html", width)
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
        assert browser.ask("document.querySelectorAll('svg polyline').length") >= 3
    assert browser.problems == []
    assert all(url.startswith("file:") for url in browser.requests)
