"""Jobs that were moved or copied: the folder that is named wins over the paths in its record, and
nothing is written elsewhere."""

import json
import shutil
from pathlib import Path

import pytest
from job_folders import EVALUATE, RUNS, TRAIN, write_evaluation, write_run, write_training
from launch_site import Site, change, ended
from support import run_script

from cosmos_reason.jobs import evidence, launch
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document


def said(script, *args, **env):
    done = run_script(script, *args, "--json", **env)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def files_in(folder):
    """Every file with its content, to see that nothing changes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def original(tmp_path):
    """A training and the evaluation of its first checkpoint."""
    place = tmp_path / "original" / "jobs"
    train = write_training(place)
    write_evaluation(place, train / "results" / RUNS[0] / "safetensors" / "step_10")
    return place


def scored(results):
    code, document = said("score_predictions.py", results)
    assert code == 0, document
    return document, [finding["id"] for finding in document["findings"]]


def test_a_copy_is_scored_into_the_training_beside_it(original, tmp_path):
    before = files_in(original)
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    document, ids = scored(copy / EVALUATE / "results")
    table = copy / TRAIN / "results" / "checkpoint_metrics.json"
    assert files_in(original) == before
    assert json.loads(table.read_text())[f"{RUNS[0]}/safetensors/step_10"]["accuracy"] == 1.0
    (run,) = document["result"]["runs"]
    assert run["recorded"]["file"] == str(table) and "EVAL-SCORE-RECORDED" in ids
    assert run["checkpoint"].startswith(str(copy / TRAIN))
    assert (copy / EVALUATE / "results" / "metrics.json").is_file()


@pytest.mark.parametrize("what", [EVALUATE, f"{EVALUATE}/results"])
def test_a_copy_without_its_training_leaves_the_original_alone(original, tmp_path, what):
    before = files_in(original)
    copy = tmp_path / "elsewhere" / what
    shutil.copytree(original / what, copy)
    document, ids = scored(copy)
    (run,) = document["result"]["runs"]
    assert files_in(original) == before
    assert run["recorded"] is None and "EVAL-SCORE-ELSEWHERE" in ids
    assert list(copy.rglob("metrics.json"))


def test_results_of_no_job_are_noted_only_where_they_were_written(original, tmp_path):
    model = original / TRAIN / "results" / RUNS[0] / "safetensors" / "step_20"
    results = write_evaluation(None, model, tmp_path / "results")
    _, ids = scored(results)
    assert "EVAL-SCORE-RECORDED" in ids
    before = files_in(original)
    shutil.copytree(results, tmp_path / "copied")
    _, ids = scored(tmp_path / "copied")
    assert "EVAL-SCORE-ELSEWHERE" in ids and files_in(original) == before


def test_a_job_seen_by_another_path_is_no_copy(original, tmp_path):
    (tmp_path / "link").symlink_to(original)
    _, ids = scored(tmp_path / "link" / EVALUATE / "results")
    assert "EVAL-SCORE-RECORDED" in ids
    assert (original / TRAIN / "results" / "checkpoint_metrics.json").is_file()


@pytest.fixture(params=["copied", "moved"])
def job(original, tmp_path, request):
    """The training in another place, where it has a step that the original has not."""
    named = tmp_path / "named"
    shutil.copytree(original, named)
    if request.param == "moved":
        shutil.rmtree(original)
    write_run(named / TRAIN / "results", RUNS[0], (40,), TRAIN)
    return named / TRAIN


def test_a_checkpoint_of_the_named_folder_is_chosen_and_published(job):
    step = str(job / "results" / RUNS[0] / "safetensors" / "step_40")
    words = [{"id": id, "content": f"<{kind}>"} for id, kind in ((1, "image"), (2, "video"))]
    whole = {"tokenizer": {"model": {}, "added_tokens": words}}
    whole["chat_template"] = {"chat_template": "<image><video>"}
    for model in (job / "results").glob("*/safetensors/*"):
        for name, table in whole.items():  # a model of another's tokenizer is refused
            (model / f"{name}.json").write_text(json.dumps(table))
    code, document = said("select_checkpoint.py", job, "--by", "step_40")
    assert (code, document["result"]["selected"]["path"]) == (0, step)
    code, document = said("select_checkpoint.py", job, "--by", "val_loss")
    assert Path(document["result"]["selected"]["path"]).is_relative_to(job)
    uri = ["--s3", "s3://bucket-that-nobody-asks/m"]
    env = {"env": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}}
    code, document = said("publish_checkpoint.py", job, "--by", "step_40", *uri, **env)
    assert code == 0 and document["result"]["files"], document


def test_status_and_specs_tell_the_paths_of_the_named_folder(job, original, tmp_path):
    code, document = said("launch_job.py", "status", job)
    assert code == 0
    assert document["result"]["outputs"]["output_dir"] == str(job / "results")
    assert document["result"]["evidence"]["checkpoint"].startswith(str(job))
    code, document = said(
        "build_spec.py", "evaluate", "--parent-job", job, "-o", tmp_path / "made.toml"
    )
    (last,) = [one for one in document["findings"] if one["id"] == "SPEC-PARENT-LAST"]
    assert str(job / "results") in last["message"]
    assert str(original) not in json.dumps(document)
    assert json.loads((job / "job.json").read_text())["outputs"]["output_dir"].startswith(
        str(original)
    ), "a look changes no record"


def test_a_retry_of_a_copy_writes_into_the_copy(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    change(site, "train", train__seed=3)
    failed = site.submit(exit=1, steps=1, model="")
    assert ended(failed).state == "ERROR"
    before = files_in(failed)
    copy = tmp_path / "copies" / failed.name
    shutil.copytree(failed, copy)
    site.jobs = copy.parent
    site.does(output=str(copy / "results"))
    again, found = launch.submit(launch.next_attempt(copy, copy.parent))
    assert not [finding for finding in found if finding.severity == "error"], found
    done = ended(again.folder)
    assert (done.state, done.outputs["output_dir"]) == ("COMPLETE", str(copy / "results"))
    spec = document.load(again.folder / "spec.toml")
    assert spec["train"]["output_dir"] == str(copy / "results")
    assert files_in(failed) == before


def test_the_record_of_a_moved_job_keeps_the_paths_of_its_place(original, tmp_path):
    """Results beside it have them too: a second move finds them all the same."""
    record = json.loads((original / TRAIN / "job.json").read_text())
    moved = tmp_path / "moved"
    shutil.move(original, moved)
    job = jobs.Job.load(moved / TRAIN)
    assert job.outputs["output_dir"] == str(moved / TRAIN / "results")
    job.write()
    assert json.loads((moved / TRAIN / "job.json").read_text()) == record


def test_a_project_that_was_moved_is_linked_by_one_fix(tmp_path, monkeypatch):
    """Each of its inputs was told alone, with `ls` of the folder above it."""
    (tmp_path / "old").mkdir()
    site = Site(tmp_path / "old", monkeypatch)
    failed = site.submit(exit=1, steps=1, model="")
    assert ended(failed).state == "ERROR"
    (tmp_path / "old").rename(tmp_path / "new")
    moved = tmp_path / "new" / "jobs"
    _, found = launch.submit(launch.next_attempt(moved / failed.name, moved))
    (missing,) = [one for one in found if one.id == "JOB-INPUT-MISSING"]
    assert str(missing.fix) == f"ln -s {tmp_path}/new {tmp_path}/old"
    (tmp_path / "old").symlink_to(tmp_path / "new")
    site.does(output=str(failed / "results"))
    again, found = launch.submit(launch.next_attempt(moved / failed.name, moved))
    assert not [one for one in found if one.severity == "error"], found
    assert ended(again.folder).state == "COMPLETE"


def test_a_job_whose_folder_was_moved_as_it_ran_is_not_said_to_be_killed(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    site = Site(tmp_path / "old", monkeypatch)
    failed = site.submit(exit=1, steps=1, model="")
    job = ended(failed)
    (tmp_path / "old").rename(tmp_path / "new")
    record = json.loads((tmp_path / "new/jobs" / failed.name / "job.json").read_text())
    moved = jobs.Job.from_json(tmp_path / "new/jobs" / failed.name, record)
    assert "or its folder was moved as it ran" in evidence.ended(moved, None).reason
    assert "moved" not in evidence.ended(job, None).reason
