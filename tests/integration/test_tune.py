"""Studies of real jobs with the embedded engine: killed, shared, failing, reported. A trial is two training steps."""

import itertools
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys

import jsonschema
import pytest
import study_world
from support import ROOT, run_script

from cosmos_reason import bundle, jobs, spec, storage
from cosmos_reason.search import study

pytestmark = pytest.mark.integration

SCRIPT = ROOT / "scripts" / "tune_hyperparameters.py"
SPACE = ["--spec", "train.toml", "--eval-spec", "eval.toml", "--range", "lr=1e-5..1e-3", "--pruner", "none"]
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
    assert {trial["state"] for trial in records} == {study.COMPLETE}, [trial["reason"] for trial in records]
    assert len({json.dumps(trial["values"]) for trial in records}) == trials + 1
    for trial in records:
        jsonschema.validate(trial, bundle.schema("trial"))
        found = [jobs.read(path) for path in jobs.folders(made.trial_folder(trial["number"]) / "jobs")]
        ran = [job["action"] for job in found if job["started_at"]]
        assert sorted(ran) == (["evaluate"] if trial["kind"] == study.BASE else ["evaluate", "train"])
    return records


def test_killed_ten_times_every_trial_is_accounted_for_once(world):
    rng = random.Random(0)
    for _ in range(10):
        process = begin(world, "killed", *SPACE, *BUDGET, "--gpu-ids", "none")
        try:
            process.wait(timeout=rng.uniform(0.5, 5))
        except subprocess.TimeoutExpired:
            if rng.random() < 0.5:
                os.killpg(process.pid, signal.SIGKILL)  # a submit on its way dies too
            process.kill()
            process.wait()
    finish(begin(world, "killed", *SPACE, *BUDGET, "--gpu-ids", "none"))
    check_accounts(world / "killed", 2)


def test_two_runs_share_a_study_from_plan_to_a_winning_spec(world):
    done = run_script("tune_hyperparameters.py", "plan", "--study", "whole", *SPACE, *BUDGET, "--json", cwd=world)
    planned = json.loads(done.stdout)["result"]
    assert done.returncode == 0 and not (world / "whole").exists()
    assert planned["left"] == 2 and planned["space"][0]["default"] == 1e-4
    words = shlex.split(json.loads(done.stdout)["next"])[1:]
    assert words[:3] == ["run", "--study", "whole"]
    both = [begin(world, *words[2:]) for _ in range(2)]
    for process in both:
        finish(process)
    records = check_accounts(world / "whole", 2)
    spans = sorted((jobs.seconds(trial["started_at"]), jobs.seconds(trial["ended_at"])) for trial in records)
    assert any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans)), "at the same time"
    assert records[2]["values"]["train.optm_lr"] == planned["space"][0]["next"]
    best = study.open_or_begin(world / "whole").ranked(records)[0]
    left = [path.parts[-4] for path in (world / "whole").glob("trials/*/jobs/train-*/results")]
    assert left == [f"{best['number']:04}"], "only the winner's checkpoint stays"
    found = json.loads(
        study_world.succeed("tune_hyperparameters.py", "status", "--study", "whole", "--json", cwd=world)
    )
    for verb in ("report", "best", "plan"):  # what each one says comes next
        words = [*shlex.split(found["next"]), "--json"]
        assert words[1] == verb
        last, done = found, subprocess.run([sys.executable, *words], cwd=world, check=True, capture_output=True)
        found = json.loads(done.stdout)
    found = last
    checked = ["--spec", found["result"]["spec"], "-o", "winner.toml", "--engine", "transformers"]
    study_world.succeed("build_spec.py", "train", *checked, cwd=world)
    assert spec.load(world / "winner.toml")["train"]["optm_lr"] == best["values"]["train.optm_lr"]
    study_world.succeed("select_checkpoint.py", found["result"]["checkpoint"].rsplit("/", 3)[0], cwd=world)
    again = run_script("tune_hyperparameters.py", "plan", "--study", "whole", "--trials", 14, *BUDGET[2:], cwd=world)
    assert "0.0 GPU-hours" in again.stdout and "2 trials of this study" in again.stdout, again.stderr


def test_a_trial_of_another_host_is_left_to_it(world):
    shutil.copytree(world / "whole", world / "elsewhere")
    made = study.open_or_begin(world / "elsewhere")
    (job,) = [p for p in jobs.folders(made.trial_folder(2) / "jobs") if p.name.startswith("train")]
    jobs.write(
        job, jobs.read(job) | {"state": jobs.RUNNING, "ended_at": None, "platform_ref": {"pid": 1, "host": "other"}}
    )
    made.write(made.trial(2) | {"state": study.RUNNING, "objective": None, "ended_at": None, "host": "other"})
    finish(begin(world, "elsewhere", *BUDGET))
    assert made.trial(2)["state"] == study.RUNNING and len(jobs.folders(job.parent)) == 2


def test_failing_trials_are_recorded_and_end_a_hopeless_study(world):
    (world / "broken.mp4").write_bytes(b"no video")
    records = storage.read_json(world / "data/train/annotations.json")
    storage.write_json(world / "broken.json", [record | {"video": "broken.mp4"} for record in records])
    table = spec.load(world / "train.toml")
    spec.set_value(table, "custom.train_dataset", {"annotation_path": "broken.json", "media_path": "."})
    spec.dump(table, world / "broken.toml")
    words = ["--spec", "broken.toml", "--eval-spec", "eval.toml", "--range", "lr=1e-5..1e-3", *BUDGET[2:]]
    process = begin(world, "failing", *words, "--trials", "8")
    document = json.loads(process.communicate(timeout=300)[0])
    assert process.returncode == 3 and document["findings"][0]["id"] == "TUNE-ALL-FAILED"
    records = study.open_or_begin(world / "failing").trials()
    assert [trial["state"] for trial in records] == ["COMPLETE", "FAILED", "FAILED", "FAILED"]
    assert all("broken.mp4" in trial["reason"] for trial in records[1:])


def test_validation_loss_as_objective_prunes_and_needs_no_evaluation(world):
    words = ["--spec", "train.toml", "--range", "lr=1e-7..1e-2", "--objective", "val_loss"]
    done = run_script("tune_hyperparameters.py", "run", "--study", "proxy", *words, *BUDGET, cwd=world, timeout=300)
    assert done.returncode == 0 and "TUNE-PROXY" in done.stderr, done.stderr
    records = study.open_or_begin(world / "proxy").trials()
    assert [trial["number"] for trial in records] == [1, 2]
    losses = [trial["objective"] for trial in records if trial["state"] == study.COMPLETE]
    assert losses and all(0 < loss < 10 for loss in losses)
    assert not list((world / "proxy").glob("trials/*/jobs/evaluate-*"))


def test_the_page_opens_in_a_browser(world, tmp_path):
    from test_report_in_browser import Browser

    study_world.succeed("tune_hyperparameters.py", "report", "--study", "whole", cwd=world)
    browser = Browser(tmp_path / "profile")
    for width in (1200, 400):
        browser.open(world / "whole" / "report.html", width)
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
        assert browser.ask("document.querySelectorAll('svg polyline').length") >= 3
    assert browser.problems == []
    assert all(url.startswith("file:") for url in browser.requests)
