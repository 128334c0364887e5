"""The job record, its lock and its metrics."""

import fcntl
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason import jobs
from cosmos_reason.findings import Failure

JOB = "train-20260101-120000-0a1b2c"


def job_folder(tmp_path, job_id=JOB, **fields):
    folder = tmp_path / job_id
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"job_id": job_id, "state": "RUNNING"} | fields))
    return folder


@pytest.mark.parametrize(
    "job_id",
    ["", "..", f"../{JOB}", f"{JOB}/", f"{JOB}\n", "train-2026-1-0", "Train-20260101-120000-0a1b2c", f"x{JOB}", "a b"],
)
def test_a_malformed_id_is_refused_before_the_disk_is_asked(tmp_path, job_id):
    with pytest.raises(Failure) as caught:
        jobs.folder(tmp_path, job_id)
    assert (caught.value.findings[0].id, caught.value.exit_code) == ("JOB-ID-MALFORMED", 2)


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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job_id": "train-20260101-120000-ffffff", "state": "RUNNING"}'])
def test_a_broken_record_is_a_finding(tmp_path, text):
    folder = job_folder(tmp_path)
    (folder / "job.json").write_text(text)
    with pytest.raises(Failure) as caught:
        jobs.read(folder)
    assert caught.value.exit_code == 2


def test_times_round_trip():
    assert jobs.seconds(jobs.time_text(1_700_000_000)) == 1_700_000_000


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_the_lock_is_held_until_the_last_process_that_inherited_it_is_gone(tmp_path):
    folder = job_folder(tmp_path)
    lock = jobs.take_lock(folder)
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])
    os.close(lock)
    assert not jobs.is_idle(folder)
    sleeper.kill()
    deadline = time.monotonic() + 5
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


# -- metrics and log ---------------------------------------------------------------------------------------------------

LINES = st.lists(st.dictionaries(st.sampled_from(["step", "train/loss"]), st.integers(0, 9), min_size=1), max_size=8)


@given(lines=LINES, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_metrics_read_in_pieces_equal_metrics_read_at_once(tmp_path_factory, lines, cuts):
    folder = tmp_path_factory.mktemp("job")
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    seen, offset = [], ("", 0)
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        (folder / jobs.METRICS).write_bytes(data[:cut])
        new, offset = jobs.read_metrics(folder, offset)
        seen += new
    assert seen == lines


def test_progress_is_the_newest_of_each_and_survives_a_cut_line(tmp_path):
    folder = job_folder(tmp_path)
    assert jobs.progress(folder) == {}
    lines = [{"step": n, "total_steps": 5000, "train/loss": 1 / (n + 1)} for n in range(5000)]
    lines.insert(4990, {"step": 4989, "val/avg_loss": 0.5})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / jobs.METRICS).write_text(text + '{"step": 5000, "total_st')
    assert jobs.progress(folder) == {
        "step": 4999,
        "total_steps": 5000,
        "train/loss": 1 / 5000,
        "val/avg_loss": 0.5,
    }


def test_a_reused_job_folder_holds_the_metrics_of_one_run_and_a_resumed_run_goes_on(tmp_path):
    from cosmos_reason.transformers_engine.progress import MetricsLog

    for done, steps in ((0, [1, 2]), (0, [1]), (1, [2])):
        log = MetricsLog(tmp_path / jobs.METRICS, "train", 2, done)
        for step in steps:
            log.write({"step": step, "total_steps": 2, "train/loss": 1.0, "train/tokens_per_second": 1.0})
        log.close()
        if done == 0 and steps == [1]:
            assert [line["step"] for line in jobs.read_metrics(tmp_path)[0]] == [1]
    assert [line["step"] for line in jobs.read_metrics(tmp_path)[0]] == [1, 2]


def test_log_tail_shows_what_a_terminal_would(tmp_path):
    folder = job_folder(tmp_path)
    assert jobs.log_tail(folder, 3) == []
    (folder / jobs.LOG).write_bytes(b"first\n10%\r50%\r100%\n\xff\nlast\n")
    assert jobs.log_tail(folder, 3) == ["100%", "\ufffd", "last"]
