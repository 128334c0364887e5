"""The job record, its lock and its metrics."""

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import record as jobs

JOB = "train-20260101-120000-0a1b2c"


def job_folder(tmp_path, job_id=JOB, **fields):
    folder = tmp_path / job_id
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"job_id": job_id, "state": "RUNNING"} | fields))
    return folder


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        "..",
        f"../{JOB}",
        f"{JOB}/",
        f"{JOB}\n",
        "train-2026-1-0",
        "Train-20260101-120000-0a1b2c",
        f"x{JOB}",
        "a b",
    ],
)
def test_a_malformed_id_is_refused_before_the_disk_is_asked(tmp_path, job_id):
    with pytest.raises(Failure) as caught:
        jobs.folder(tmp_path, job_id)
    assert (caught.value.findings[0].id, caught.value.exit_code) == ("JOB-ID-MALFORMED", 2)


def test_a_job_is_meant_by_its_path_too(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    folder = job_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert jobs.folder(tmp_path / "jobs", f"mine/{folder.name}/") == folder


def test_an_unknown_id_names_the_nearest(tmp_path):
    job_folder(tmp_path)
    with pytest.raises(Failure, match=f"Did you mean {JOB}"):
        jobs.folder(tmp_path, JOB[:-1] + "d")


def test_new_ids_are_well_formed_and_differ(tmp_path):
    made = {jobs.new_id("evaluate") for _ in range(200)}
    assert len(made) == 200 and all(jobs.ID.fullmatch(one) for one in made)


def test_folders_are_listed_newest_first_and_work_in_progress_is_not(tmp_path):
    old, new = "train-20260101-000000-ffffff", "evaluate-20260102-000000-000000"
    for name in (old, new, f".{old}.incomplete-12345678", "notes"):
        (tmp_path / name).mkdir()
    assert [path.name for path in jobs.folders(tmp_path)] == [new, old]
    assert jobs.folders(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"job_id": "train-20260101-120000-ffffff", "state": "RUNNING"}']
)
def test_a_broken_record_is_a_finding(tmp_path, text):
    folder = job_folder(tmp_path)
    (folder / "job.json").write_text(text)
    with pytest.raises(Failure) as caught:
        jobs.Job.load(folder)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("action", ["train", "grpo", "evaluate"])
def test_every_training_is_taken_up_again_where_it_saved(tmp_path, action):
    """A run of reinforcement learning, too: days of rollouts would be paid for twice."""
    output = tmp_path / "out"
    policy = output / "20260101000000" / "checkpoints" / "step_4" / "policy"
    policy.mkdir(parents=True)
    for part in ("model", "optimizer", "scheduler", "extra_info"):
        (policy / f"{part}_rank_0.pth").touch()
    (policy / ".rank_0_complete").touch()
    (policy / "cosmos_config").write_text("{}")
    job_id = JOB.replace("train", action)
    fields = {"action": action, "started_at": jobs.now(), "outputs": {"output_dir": str(output)}}
    job = jobs.Job.load_unchecked(job_folder(tmp_path, job_id, **fields))
    assert job.newest_resume() == (None if action == "evaluate" else str(policy))


def test_times_round_trip():
    assert jobs.seconds(jobs.time_text(1_700_000_000)) == 1_700_000_000


# -- the record of a job -----------------------------------------------------------------------

RECORD = {
    "schema_version": 1,
    "job_id": JOB,
    "action": "train",
    "engine": "transformers",
    "platform": "local",
    "state": "RUNNING",
    "reason": "",
    "created_at": "2026-01-01T12:00:00Z",
    "started_at": "2026-01-01T12:00:01Z",
    "ended_at": None,
    "spec": {"path": "/s", "sha256": "0" * 64, "source": "/t", "source_sha256": "1" * 64},
    "command": ["é", "x"],
    "working_dir": "/",
    "image": None,
    "options": {},
    "resources": {"nodes": 1, "gpus_per_node": None, "gpu_ids": None},
    "inputs": [],
    "outputs": {"output_dir": "/out"},
    "site": "there",
    "platform_ref": {"host": "here"},
    "parent_job": None,
    "retry_of": None,
    "exit_code": None,
    "evidence": {},
    "diagnosis": [],
}


def test_a_job_has_the_fields_of_its_schema_in_their_order():
    assert list(jobs.FIELDS) == list(bundle.schema("job")["properties"])
    job = jobs.Job(folder=None, **{name: RECORD[name] for name in jobs.FIELDS})
    assert list(job.to_json()) == list(jobs.FIELDS)


@pytest.mark.parametrize("record", [
    RECORD,
    dict(sorted(RECORD.items())),
    {key: value for key, value in RECORD.items() if key != "options"},
    {"of a newer version": {"deep": [1]}} | RECORD | {"another": None},
], ids=["as written", "in another order", "without options", "of a newer version"])  # fmt: skip
def test_a_record_that_is_read_and_written_again_is_the_same_file(tmp_path, record):
    folder = tmp_path / JOB
    folder.mkdir()
    files.write_json(folder / "job.json", record)
    before = (folder / "job.json").read_bytes()
    jobs.Job.load(folder).write()
    assert (folder / "job.json").read_bytes() == before
    replace(jobs.Job.load(folder), state="COMPLETE").write()
    after = json.loads((folder / "job.json").read_text())
    assert after == record | {"state": "COMPLETE"} and list(after) == list(record)


# -- the lock ----------------------------------------------------------------------------------


def test_the_lock_is_held_until_the_last_process_that_inherited_it_is_gone(tmp_path):
    folder = job_folder(tmp_path)
    lock = jobs.take_lock(folder)
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]
    )
    os.close(lock)
    assert not jobs.is_idle(folder)
    sleeper.kill()
    deadline = time.monotonic() + 300
    while not jobs.is_idle(folder):  # the kernel lets go when the process dies, reaped or not
        assert time.monotonic() < deadline
        time.sleep(0.01)
    sleeper.wait()


def test_a_filesystem_without_locks_is_an_outside_failure(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(Failure) as caught:
        jobs.take_lock(job_folder(tmp_path))
    assert (caught.value.findings[0].id, caught.value.exit_code) == ("JOB-LOCK", 3)
