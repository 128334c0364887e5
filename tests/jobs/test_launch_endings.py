"""How local jobs end, and what is believed of it."""

import json
import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from launch_site import Site, change, ended, is_running, marked, running
from support import files_up_to, run_script

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import error
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.jobs import evidence, launch, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import local


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def test_a_whole_training_is_complete(site):
    folder = site.submit()
    record = ended(folder)
    assert (record.state, record.exit_code, record.reason) == ("COMPLETE", 0, "")
    assert record.evidence["last_step"] == record.evidence["total_steps"] == 3
    assert Path(record.evidence["checkpoint"]).name == "step_3"
    for line in progress.read_metrics(folder)[0]:
        Draft202012Validator(bundle.schema("metrics_line")).validate(line)


def test_an_end_that_nobody_saw_is_judged_by_what_the_job_left(site):
    record = ended(site.submit())
    unseen = evidence.ended(record, None)
    assert (unseen.state, unseen.exit_code) == ("COMPLETE", None)
    assert "no exit code is known" in unseen.reason
    assert evidence.ended(record, 1).state == "ERROR", "an end that was seen counts"


def test_a_training_whose_upload_failed_is_not_complete(site):
    """Its model is whole and recorded; the command that the record names sends what is missing."""
    missing = {"s3://b/20260101000000/safetensors/step_3": "S3-UNREACHABLE", "s3://b/x": ""}
    folder = site.submit(uploads=missing)
    record = ended(folder)
    assert (record.state, record.exit_code) == ("ERROR", 0)
    assert record.evidence["not_uploaded"] == ["s3://b/20260101000000/safetensors/step_3"]
    assert Path(record.evidence["checkpoint"]).name == "step_3"
    assert f"upload {folder.name} --jobs-dir {folder.parent} sends them again" in record.reason
    where = ["--jobs-dir", site.jobs, "--json"]
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    done = run_script("launch_job.py", "upload", folder.name, *where, env=nobody)
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["id"]) == (
        3,
        "JOB-NOT-UPLOADED",
    )
    done = run_script("launch_job.py", "watch", folder.name, *where)
    fixes = [json.loads(line) for line in done.stdout.splitlines()][-1]["findings"][0]["fix"]
    assert done.returncode == 3 and f"upload {folder.name}" in fixes
    whole = ended(site.submit())
    done = run_script("launch_job.py", "upload", whole.job_id, *where)
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["id"]) == (2, "JOB-UPLOADED")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"steps": 2}, "stopped at step 2 of 3"),
        ({"steps": 0, "model": False}, "no step was recorded"),
        ({"model": False}, "results"),
        ({"model": "cut"}, "the last model is damaged"),
        ({"exit": 3}, "exit code 3; log ends: step 3"),
        ({"signal": 9}, "SIGKILL (often: out of memory)"),
        ({"signal": 11}, "SIGSEGV"),
    ],
)
def test_a_training_without_evidence_is_an_error_whatever_its_exit_code(site, what, reason):
    record = ended(site.submit(**what))
    assert record.state == "ERROR" and reason in record.reason
    assert record.exit_code == what.get("exit", 128 + what["signal"] if "signal" in what else 0)


@pytest.mark.parametrize(
    ("rows", "questions", "state", "reason"),
    [
        (["a", "b"], 2, "COMPLETE", ""),
        (["a"], 2, "ERROR", "1 rows for 2 questions"),
        (["a", "a"], 2, "ERROR", "two rows with the same id"),
    ],
)
def test_an_evaluation_is_complete_when_every_question_has_its_row(
    site, rows, questions, state, reason
):
    record = ended(site.submit("evaluate", steps=0, model=False, rows=rows, questions=questions))
    assert record.state == state and reason in record.reason


def test_results_of_an_earlier_run_prove_nothing(site):
    site.does(steps=0, model=False)
    old = site.root / "old"
    old.mkdir()
    for name, text in (("results.json", "[]"), ("evaluation.json", '{"questions": 0}')):
        (old / name).write_text(text)
        os.utime(old / name, (1, 1))
    change(site, "evaluate", results_dir="old")
    record, _ = launch.submit(site.request("evaluate"))
    assert "no results.json was written" in ended(site.jobs / record.job_id).reason


def test_the_reason_ends_with_what_was_wrong_and_the_diagnosis_names_it(site):
    said = (
        "error: ENGINE-NO-CUDA device: got cuda, this machine offers no CUDA GPU\n"
        "  fix: --set device=cpu"
    )
    site.runs([sys.executable, "-c", f"import sys; print({said!r}); sys.exit(2)"])
    record, _ = launch.submit(site.request())
    folder = site.jobs / record.job_id
    record = ended(folder)
    assert record.reason.endswith(
        "log ends: error: ENGINE-NO-CUDA device: got cuda, this machine offers no CUDA GPU"
    )
    assert [finding["id"] for finding in record.diagnosis] == ["ENGINE-NO-CUDA"]
    for verb in ("status", "watch"):
        done = run_script("launch_job.py", verb, folder.name, "--jobs-dir", site.jobs)
        assert "ENGINE-NO-CUDA" in done.stdout + done.stderr


def test_known_errors_in_the_log_are_diagnosed_with_their_fix(site):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "GPU 0 has a total capacity of 79 GiB"
    )
    site.runs([sys.executable, "-c", f"import sys; print({text!r}, file=sys.stderr); sys.exit(1)"])
    record, _ = launch.submit(site.request())
    (finding,) = ended(site.jobs / record.job_id).diagnosis
    assert finding["fix"] and finding["severity"] == "error" and finding["id"] != "LOG-UNKNOWN"


def test_an_evaluation_with_failed_rows_says_how_many_and_one_with_nothing_else_is_an_error(site):
    what = {"steps": 0, "model": False, "rows": ["a", "b"], "questions": 2}
    record = ended(site.submit("evaluate", **what, bad=["b"]))
    assert record.state == "COMPLETE" and record.evidence["failed"] == 1
    assert record.reason.startswith("1 of 2 rows are errors")
    again = launch.next_attempt(record.folder, site.jobs)
    assert again.retry_of == record.job_id, "what failed is asked again"
    record = ended(site.submit("evaluate", **what, bad=["a", "b"]))
    assert record.state == "ERROR" and "every row" in record.reason


def test_a_program_that_is_not_there_is_an_error(site):
    site.runs(["/no/such/program"])
    record, _ = launch.submit(site.request())
    record = ended(site.jobs / record.job_id)
    assert "could not be started: /no/such/program: No such file" in record.reason
    assert record.exit_code is None


def test_a_spec_edited_before_the_start_is_not_run(site):
    start = local.start

    def edited(job, lock):
        (job.folder / "spec.toml").write_text("")
        return start(job, lock)

    site.monkeypatch.setattr(local, "start", edited)
    folder = site.submit()
    record = ended(folder)
    assert record.state == "ERROR" and "edited between" in record.reason
    assert not progress.newest(folder)


def test_a_closed_terminal_does_not_reach_the_job(site):
    folder = site.submit(pause=0.2)
    pid = running(folder).platform_ref["pid"]
    assert {os.getsid(process.pid) for process in marked(folder)} == {pid} != {os.getsid(0)}
    assert ended(folder).state == "COMPLETE"


def test_what_the_work_leaves_running_is_ended(site):
    folder = site.submit(child=True)
    assert ended(folder).state == "COMPLETE"
    child = int((folder / "child").read_text())
    patience = time.monotonic() + 300  # it may take a moment to die
    while is_running(child) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_retry_without_room_says_where_and_what_to_do(site):
    failed = site.submit(steps=2)
    ended(failed)
    with files_up_to(20):
        done = run_script("launch_job.py", "retry", failed.name, "--jobs-dir", site.jobs)
    assert done.returncode == 3 and "JOB-FOLDER" in done.stderr, done.stderr
    claim = failed / "results" / run_outputs.CLAIM  # the first that is written
    assert f"error: JOB-FOLDER {claim}: got File too large" in done.stderr
    assert f"du -xhd 3 {claim.parent} " in done.stderr
    elsewhere = ["retry", failed, "--jobs-dir", site.root / "other"]
    assert " ".join(map(str, elsewhere[:-1])) in done.stderr
    assert [folder.name for folder in site.jobs.iterdir()] == [failed.name]
    done = run_script("launch_job.py", *elsewhere, cwd=site.root)
    assert done.returncode == 0, done.stderr
    (again,) = (site.root / "other").iterdir()
    assert ended(again).retry_of == failed.name


def test_the_fixes_that_a_status_prints_run_from_any_folder(site):
    folder = site.submit(steps=2)
    record = ended(folder)
    told = error("JOB-K8S-EVICTED", "pod", "got Evicted", jobs.command("retry", folder))
    replace(record, diagnosis=[told.to_json()]).write()
    done = run_script("launch_job.py", "status", folder.name, "--jobs-dir", site.jobs)
    (line,) = [line for line in done.stdout.splitlines() if "fix: " in line]
    program, *words = shlex.split(line.partition("fix: ")[2])
    assert Path(program).is_absolute() and Path(program).is_file()
    again = run_script(Path(program).name, *words, cwd="/")
    assert again.returncode == 0, again.stderr
    assert ended(site.jobs / again.stdout.strip()).retry_of == folder.name
