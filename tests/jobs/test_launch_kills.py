"""Kills of all that takes part in a local job, its cancellation, and its retry."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import run_demo
from launch_site import Site, ended, marked, running, write_annotations, write_state
from support import ROOT

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine import neighbours
from cosmos_reason.jobs import launch, platforms
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def kill_all(folder):
    """Kill a job's processes, and wait until none is left."""
    # All are halted first: a supervisor that saw its work die could still write how it ended.
    for halt in (psutil.Process.suspend, psutil.Process.kill):
        for process in marked(folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                halt(process)
    # Who dies gives its memory back, where its mark stands, before its files: the lock is last.
    while marked(folder) or not jobs.is_idle(folder):
        time.sleep(0.01)


def test_the_work_outlives_its_supervisor_and_can_still_complete(site):
    folder = site.submit(held=True)
    supervisor = psutil.Process(running(folder).platform_ref["pid"])
    supervisor.kill()
    while neighbours.is_alive(supervisor.pid):
        time.sleep(0.01)
    assert platforms.refresh(folder).state == "RUNNING"
    (folder / "go").touch()
    record = ended(folder)
    assert record.state == "COMPLETE" and record.exit_code is None and "exit code" in record.reason


def test_supervisor_and_work_killed(site):
    folder = site.submit(held=True)
    running(folder)
    kill_all(folder)
    record = ended(folder)
    assert record.state == "ERROR" and "of 3" in record.reason and record.exit_code is None


def test_kills_at_random_moments_leave_a_truthful_record(site):
    chance = random.Random(5)
    for _ in range(8):
        folder = site.submit(pause=0.05)
        time.sleep(chance.uniform(0, 0.6))
        victims = marked(folder)
        for process in chance.sample(victims, chance.randint(0, len(victims))):
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself
                process.kill()
        record = ended(folder)
        whole = (
            folder / "results" / "20260101000000" / "safetensors" / "step_3" / "chat_template.json"
        ).exists()
        assert record.state == (
            "COMPLETE" if whole and record.exit_code in (0, None) else "ERROR"
        ), record


LAUNCHER = """
import sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from cosmos_reason.jobs import engines, launch
from cosmos_reason.jobs.platforms import local
root = Path({root!r})
program = [sys.executable, str(root / "program.py"), str(root / "jobs"), "{{}}"]
engines.words = lambda *_, **__: program
{extra}
spec = root / "train.toml"
launch.submit(launch.read(spec, "local", root / "jobs", root, "train", "transformers"))
"""


def launcher(site, extra=""):
    text = LAUNCHER.format(scripts=str(ROOT / "scripts"), root=str(site.root), extra=extra)
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.DEVNULL)


def test_a_launcher_killed_between_record_and_start(site):
    process = launcher(site, "import os; local.start = lambda *_: os.kill(os.getpid(), 9)")
    assert process.wait(300) == -signal.SIGKILL
    (folder,) = jobs.folders(site.jobs)
    assert jobs.Job.load(folder).state == "PENDING"
    record = ended(folder)
    assert (
        record.state == "ERROR" and "interrupted before" in record.reason and not record.started_at
    )


def test_a_launcher_killed_at_random_moments(site):
    chance = random.Random(7)
    for _ in range(8):
        process = launcher(site)
        time.sleep(chance.uniform(0.1, 0.45))
        process.kill()
        process.wait()
    for folder in jobs.folders(site.jobs):
        record = ended(folder)
        assert record.state == ("COMPLETE" if record.started_at else "ERROR"), record


def test_two_launches_at_once_are_two_jobs(site):
    site.does()
    found = site.submitted_at_once(4)
    assert {ended(site.jobs / record.job_id).state for record in found} == {"COMPLETE"}


def test_a_full_disk_cannot_make_the_answer_untrue(site, monkeypatch):
    folder = site.submit(held=True)
    running(folder)
    kill_all(folder)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs.Job, "write", refuse)
    with pytest.raises(Failure, match="No space left"):
        platforms.refresh(folder)
    assert jobs.Job.load(folder).state == "RUNNING"


def test_another_machine_cannot_tell(site):
    folder = site.submit(held=True)
    running(folder)
    kill_all(folder)
    record = jobs.Job.load(folder)
    replace(record, platform_ref=record.platform_ref | {"host": "elsewhere"}).write()
    with pytest.raises(Failure, match="elsewhere"):
        platforms.refresh(folder)
    assert jobs.Job.load(folder).state == "RUNNING"
    (folder / jobs.LOCK).unlink()
    with pytest.raises(Failure, match="JOB-OUT-OF-REACH"):
        platforms.refresh(folder)


# -- cancel and retry --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deaf", "exit_code"), [(False, 128 + signal.SIGTERM), (True, 128 + signal.SIGKILL)]
)
def test_cancel_asks_then_insists(site, deaf, exit_code):
    folder = site.submit(pause=0.1, steps=500, total=500, deaf=deaf, child=True)
    running(folder)
    platforms.stop(folder, grace=1)
    record = ended(folder)
    assert (record.state, record.exit_code) == ("CANCELED", exit_code) and "of 500" in record.reason
    assert not marked(folder)


def test_cancel_without_a_supervisor(site):
    folder = site.submit(pause=0.1, steps=500, total=500)
    os.kill(running(folder).platform_ref["pid"], signal.SIGKILL)
    platforms.stop(folder, grace=5)
    assert ended(folder).state == "CANCELED" and not marked(folder)


def test_cancel_at_random_moments(site):
    chance = random.Random(3)
    for _ in range(5):
        folder = site.submit(pause=0.05, steps=500, total=500)
        time.sleep(chance.uniform(0, 0.5))
        started = time.monotonic()
        platforms.stop(folder, grace=1000)
        assert ended(folder).state == "CANCELED" and not marked(folder)
        assert time.monotonic() - started < 300


def test_a_demo_ends_the_jobs_of_one_that_was_interrupted(site, monkeypatch):
    """They would write into the folder that the new one makes."""
    demo = site.root / "demo"
    site.jobs = demo / "jobs"
    args = run_demo.parser().parse_args(["--output", str(demo)])
    folders = []

    def begun():
        folders.append(site.submit(pause=0.1, steps=500, total=500))
        running(folders[-1])

    def begun_and_interrupted(*_):
        begun()
        raise KeyboardInterrupt

    monkeypatch.setattr(run_demo, "make_world", lambda *_: None)
    monkeypatch.setattr(run_demo, "loop", begun_and_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo.main(args)
    assert ended(folders[0]).state == "CANCELED" and not marked(folders[0])
    begun()  # of a demo that was killed
    with pytest.raises(KeyboardInterrupt):
        run_demo.main(args)
    assert not folders[1].exists() and not marked(folders[1])


@pytest.mark.parametrize("content", ["{}", "[]", "{"])
def test_a_demo_starts_over_one_whose_record_is_broken(tmp_path, monkeypatch, capsys, content):
    """It was refused without a way out, every time."""
    record = tmp_path / "demo" / "jobs" / "train-1" / "job.json"
    record.parent.mkdir(parents=True)
    record.write_text(content)
    (tmp_path / "demo" / run_demo.MARK).touch()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_demo, "make_world", lambda *_: None)
    monkeypatch.setattr(run_demo, "loop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo.main(run_demo.parser().parse_args(["--output", str(tmp_path / "demo")]))
    assert not record.exists() and str(record) in capsys.readouterr().err


def test_a_signal_to_the_supervisor_reaches_the_work(site):
    folder = site.submit(pause=0.1, steps=500, total=500)
    os.kill(running(folder).platform_ref["pid"], signal.SIGTERM)
    record = ended(folder)
    assert record.state == "ERROR" and "SIGTERM" in record.reason


def test_retry_is_a_new_job_that_resumes_from_the_newest_complete_checkpoint(site):
    folder = site.submit(steps=2)
    first = ended(folder)
    for step, files in ((1, ("trainer_state.json",)), (2, ("trainer_state.json",)), (3, ())):
        policy = folder / "results" / "20260101000000" / "checkpoints" / f"step_{step}" / "policy"
        policy.mkdir(parents=True)
        for name in (
            "cosmos_config",
            ".rank_0_complete",
            "model.safetensors",
            "optimizer.safetensors",
            *files,
        ):
            (policy / name).write_bytes(
                b"\2" + bytes(7) + b"{}" if name.endswith("tensors") else b"{}"
            )
        os.utime(policy, (time.time() + step,) * 2)
    (policy / "model.safetensors").unlink()  # step 3 is not whole
    again, _ = launch.submit(launch.next_attempt(folder, site.jobs))
    assert again.retry_of == again.parent_job == first.job_id != again.job_id
    written = document.load(Path(again.spec["path"]))
    assert written["train"]["resume"] == str(policy.parents[1] / "step_2" / "policy")
    assert again.outputs == first.outputs
    ended(site.jobs / again.job_id)


def test_a_retry_that_goes_on_tells_what_it_reads_otherwise(site):
    folder = site.submit(steps=2)
    ended(folder)
    again, found = launch.submit(launch.next_attempt(folder, site.jobs))
    told = {ended(site.jobs / again.job_id).job_id, *(one.id for one in found)}
    assert "JOB-INPUT-CHANGED" not in told
    write_annotations(site.root / "a.json", 12)  # begun anew, a run reads nothing but these
    again, found = launch.submit(launch.next_attempt(folder, site.jobs))
    told = {ended(site.jobs / again.job_id).job_id, *(one.id for one in found)}
    assert "JOB-INPUT-CHANGED" not in told
    write_state(folder / "results" / "20260101000000" / "checkpoints" / "step_1" / "policy", 1, 3)
    (site.root / "model" / "generation_config.json").write_text("{}")
    again, found = launch.submit(launch.next_attempt(folder, site.jobs))
    ended(site.jobs / again.job_id)
    told = {one.where: one.message for one in found if one.id == "JOB-INPUT-CHANGED"}
    assert told.keys() == {str(site.root / "a.json"), str(site.root / "model")}
    assert told[str(site.root / "a.json")].startswith("it changed since")
    assert told[str(site.root / "model")].startswith("names or sizes of files in it changed since")


def test_a_canceled_job_goes_on_and_a_failed_one_that_had_finished_does_not(site):
    folder = site.submit(pause=0.1, steps=500, total=500)
    running(folder)
    policy = folder / "results" / "20260101000000" / "checkpoints" / "step_1" / "policy"
    write_state(policy, 1, 500)
    platforms.stop(folder, grace=5)
    assert ended(folder).state == "CANCELED"
    site.does()
    again, found = launch.submit(launch.next_attempt(folder, site.jobs))
    assert document.load(Path(again.spec["path"]))["train"]["resume"] == str(policy), found
    ended(site.jobs / again.job_id)
    folder = site.submit(exit=1)
    ended(folder)
    write_state(folder / "results" / "20260101000000" / "checkpoints" / "step_3" / "policy", 3, 3)
    before = jobs.folders(site.jobs)
    _, found = launch.submit(launch.next_attempt(folder, site.jobs))
    assert "SPEC-RESUME-DONE" in [one.id for one in found if one.severity == "error"]
    assert jobs.folders(site.jobs) == before, "nothing was started"


def test_retry_refuses_what_is_not_a_failed_job_of_the_submitted_spec(site):
    whole, failed = site.submit(), site.submit(steps=1)
    ended(whole), ended(failed)
    with pytest.raises(Failure, match="JOB-NOT-FAILED"):
        launch.submit(launch.next_attempt(whole, site.jobs))
    with open(failed / "spec.toml", "a") as handle:
        handle.write("# edited\n")
    with pytest.raises(Failure, match="JOB-SPEC-EDITED") as edited:
        launch.submit(launch.next_attempt(failed, site.jobs))
    fix = str(edited.value.findings[0].fix)
    assert fix.startswith(f"scripts/launch_job.py plan train --spec {failed / 'spec.toml'}")
