"""How jobs on SLURM wait and end, of what the cluster and the job's folder tell."""

import os
import shlex
import shutil
import time
from dataclasses import replace

import pytest
from launch_site import Site, change, write_state
from slurm_answers import Cluster

from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import evidence, launch, listing, platforms, watch
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import slurm
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.jobs.platforms.slurm import script as slurm_script
from cosmos_reason.remote.machine import Answer


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_PARTITION", raising=False)
    return Site(tmp_path, monkeypatch)


def submitted(site, monkeypatch, nodes=1):
    """(its record, the cluster)."""
    if nodes > 1:
        change(site, "train", policy__parallelism__dp_replicate_size=nodes)
    cluster = Cluster(monkeypatch, sbatch=Answer(0, "3\n"))
    job, found = launch.submit(site.request(platform="slurm", nodes=nodes))
    assert job, found
    return job, cluster


def tells(cluster, job, state, reason="None", nodes="n1"):
    cluster.answers["squeue"] = Answer(0, f"3|{job.job_id}|{state}|{reason}|{nodes}\n")
    slurm_cluster._queues.clear()


def note(job, name, text):
    (job.folder / name).write_text(text)


# -- several nodes -------------------------------------------------------------------------------


def ended_by_srun(site, monkeypatch, *codes):
    job, cluster = submitted(site, monkeypatch, nodes=2)
    note(job, slurm_script.STARTED, "1700000000 3\n")
    for number, (name, code) in enumerate(codes):
        note(job, f"node.{number}.exit", f"{name} {code}\n")
        os.utime(job.folder / f"node.{number}.exit", (number, number))
    note(job, slurm_script.ENDED, "137\n")
    tells(cluster, job, "FAILED", "NonZeroExitCode")
    return slurm.judged(jobs.Job.load(job.folder))


def test_a_node_that_srun_killed_for_another_is_not_the_cause(site, monkeypatch):
    job = ended_by_srun(site, monkeypatch, ("n1", 1))
    assert job.exit_code == 1 and "SIGKILL" not in job.reason
    assert "exit codes of nodes: n1 1; ended before they noted one: 1" in job.reason


@pytest.mark.parametrize("codes", [(), [("n2", 137), ("n1", 143)]])
def test_work_that_was_killed_first_is_told_as_killed(site, monkeypatch, codes):
    job = ended_by_srun(site, monkeypatch, *codes)
    assert job.exit_code == 137 and "out of memory" in job.reason


def test_a_script_that_fails_when_its_nodes_have_ended_well_is_no_success(site, monkeypatch):
    job = ended_by_srun(site, monkeypatch, ("n1", 0), ("n2", 0))
    assert (job.state, job.exit_code) == ("ERROR", 137)


def test_the_last_line_is_not_what_srun_says_of_the_end(site, monkeypatch):
    job, _ = submitted(site, monkeypatch)
    cause = "error: ENGINE-STOPPED run: got SIGUSR1"
    said = [
        "srun: launch/slurm: _step_signal: Terminating StepId=13.0",
        "slurmstepd: error: *** STEP 13.0 ON n1 CANCELLED AT 2026-11-23T07:00:00 ***",
        "srun: error: n1: task 0: Exited with exit code 1",
    ]
    note(job, jobs.LOG, "\n".join([cause, *said]))
    assert evidence._last_line(job) == f"log ends: {cause}"
    other = "srun: error: couldn't chdir to `/x': No such file or directory"
    note(job, jobs.LOG, "\n".join([cause, other, *said]))
    assert evidence._last_line(job) == f"log ends: {other}"


@pytest.mark.parametrize(
    ("code", "told"),
    [(255, "exit code 255"), (139, "ended by SIGSEGV"), (128, "exit code 128"),
     (129, "ended by SIGHUP")],
)  # fmt: skip
def test_only_numbers_of_signals_are_signals(code, told):
    assert evidence.describe_exit(code) == told


# -- notes that arrive late ----------------------------------------------------------------------


def complete_without_notes(site, monkeypatch, *absent):
    """A training of this machine that is complete, told as one of SLURM whose notes of the given
    names are not here; (its record, the cluster, what brings them)."""
    site.does()
    done = jobs.Job.load(site.submit())
    while not done.has_ended:
        done = platforms.refresh(done.folder)
    cluster = Cluster(monkeypatch)
    job = replace(done, platform="slurm", state="PENDING", started_at=None, ended_at=None)
    job = replace(job, exit_code=None, evidence={}, platform_ref={"slurm_job_id": "3"})
    job = replace(job, resources={"nodes": 1, "gpus_per_node": 0, "gpu_ids": []})
    tells(cluster, job, "COMPLETED")
    notes = {slurm_script.STARTED: "1700000000 3\n", slurm_script.ENDED: "0\n"}

    def arrive(names):
        for name in names:
            note(job, name, notes[name])

    arrive(notes.keys() - {*absent})
    return job, cluster, lambda: arrive(absent)


@pytest.mark.parametrize(
    "absent", [(slurm_script.ENDED,), (slurm_script.STARTED, slurm_script.ENDED)]
)
@pytest.mark.parametrize("is_known", [True, False])
def test_notes_that_are_seen_later_than_the_queue(site, monkeypatch, absent, is_known):
    job, cluster, arrive = complete_without_notes(site, monkeypatch, *absent)
    if not is_known:
        cluster.answers["squeue"] = Answer(0, "")
    awaited = slurm.judged(job)
    assert not awaited.has_ended and awaited.is_ending
    assert "what its nodes noted is awaited" in awaited.reason
    cluster.asked.clear()
    assert slurm.judged(awaited) == awaited and not cluster.asked
    arrive()
    judged = slurm.judged(awaited)
    assert not judged.is_ending and "end_seen_at" not in judged.platform_ref
    assert (judged.state, judged.exit_code, judged.reason) == ("COMPLETE", 0, "")


def test_a_job_that_is_called_running_after_its_end_has_a_moment_more(site, monkeypatch):
    """SLURM then says why it ended it."""
    job, cluster = submitted(site, monkeypatch)
    note(job, slurm_script.STARTED, "1700000000 3\n")
    note(job, slurm_script.ENDED, "143\n")
    tells(cluster, job, "RUNNING")
    awaited = slurm.judged(jobs.Job.load(job.folder))
    assert awaited.is_ending and awaited.reason == "its script ended; SLURM: RUNNING"
    tells(cluster, job, "TIMEOUT", "TimeLimit")
    judged = slurm.judged(awaited)
    assert judged.state == "ERROR" and "SLURM: TIMEOUT" in judged.reason and judged.exit_code == 143
    tells(cluster, job, "RUNNING")
    monkeypatch.setattr(slurm, "PATIENCE", 0)
    assert slurm.judged(awaited).state == "ERROR"


def test_a_job_that_is_begun_anew_after_its_end_is_no_longer_ending(site, monkeypatch):
    job, cluster = submitted(site, monkeypatch)
    job = replace(jobs.Job.load(job.folder), options=job.options | {"requeue": True})
    tells(cluster, job, "COMPLETED")
    awaited = slurm.judged(job)
    assert awaited.is_ending
    monkeypatch.setattr(slurm, "NOTE_SECONDS", 0)
    tells(cluster, job, "PENDING", "BeginTime")
    anew = slurm.judged(awaited)
    assert anew.state == "PENDING" and not anew.is_ending


def test_what_a_script_of_requeue_noted_is_no_end_while_the_cluster_runs_it(site, monkeypatch):
    job, cluster = submitted(site, monkeypatch)
    note(job, slurm_script.STARTED, "1700000000 3\n")
    note(job, slurm_script.ENDED, "143\n")
    job = jobs.Job.load(job.folder)
    tells(cluster, job, "RUNNING")
    assert slurm.judged(job).is_ending, "its script ended, and nothing begins it again"
    anew = slurm.judged(replace(job, options=job.options | {"requeue": True}))
    assert anew.state == "RUNNING" and not anew.is_ending


@pytest.mark.parametrize(("noted", "is_over"), [(("n1",), False), (("n1", "n2"), True)])
def test_a_job_is_over_when_each_node_has_noted_its_end(site, monkeypatch, noted, is_over):
    job, cluster = submitted(site, monkeypatch, nodes=2)
    note(job, slurm_script.STARTED, "1700000000 3\n")
    note(job, slurm_script.ENDED, "0\n")
    for number, name in enumerate(noted):
        note(job, f"node.{number}.exit", f"{name} 0\n")
    tells(cluster, job, "RUNNING")
    judged = slurm.judged(jobs.Job.load(job.folder))
    assert judged.is_ending != is_over


@pytest.mark.parametrize(("ago", "is_awaited"), [(50, True), (70, False)])
def test_an_end_is_awaited_for_the_patience_that_is_named(site, monkeypatch, ago, is_awaited):
    job, _ = submitted(site, monkeypatch)
    seen = jobs.time_text(time.time() - ago)
    job = replace(job, platform_ref=job.platform_ref | {jobs.END_SEEN: seen})
    assert slurm._is_awaited(job, 60) == is_awaited


class Clock:
    """In place of the module `time`: sleeping takes none."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_list_waits_for_all_that_are_ending_together(site, monkeypatch):
    """Many of them would keep it for minutes; status and list say what is not known yet."""
    job, cluster = submitted(site, monkeypatch)
    shutil.copytree(job.folder, other := job.folder.with_name(f"{job.job_id[:-6]}abcdef"))
    text = (other / jobs.RECORD).read_text()
    (other / jobs.RECORD).write_text(text.replace(job.job_id, other.name))
    lines = [f"3|{name}|FAILED|NonZeroExitCode|n1\n" for name in (job.job_id, other.name)]
    cluster.answers["squeue"] = Answer(0, "".join(lines))
    clock = Clock()
    for module in (platforms, listing):
        monkeypatch.setattr(module, "time", clock)
    rows, _ = listing.current(site.jobs)
    assert [job.state for job in rows] == ["PENDING", "PENDING"]
    assert all("SLURM: FAILED; what its nodes noted" in job.reason for job in rows)
    assert clock.now < platforms.BRIEFLY + 1


def test_without_its_notes_the_evidence_tells(site, monkeypatch):
    monkeypatch.setattr(slurm, "NOTE_SECONDS", 0)
    absent = slurm_script.STARTED, slurm_script.ENDED
    job, _, _ = complete_without_notes(site, monkeypatch, *absent)
    judged = slurm.judged(job)
    assert (judged.state, judged.exit_code) == ("COMPLETE", 0), judged.reason


# -- a submission that does not come to its end ----------------------------------------------------


def test_ctrl_c_while_a_job_is_handed_over_says_that_it_is_recorded(site, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    Cluster(monkeypatch)
    monkeypatch.setattr(slurm_cluster, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch.submit(site.request(platform="slurm"))
    (folder,) = jobs.folders(site.jobs)
    said = capsys.readouterr().err
    assert f"{folder.name} was recorded" in said and "launch_job.py status" in said


def test_a_folder_of_jobs_that_cannot_be_made_is_named(site):
    (site.root / "file").touch()
    with pytest.raises(Failure) as raised:
        launch.submit(site.request(jobs_dir=site.root / "file" / "jobs"))
    (told,) = raised.value.findings
    assert raised.value.exit_code == 3 and told.id == "JOB-FOLDER"
    assert str(site.root / "file") in told.where and "Not a directory" in told.message


# -- a controller that is away -------------------------------------------------------------------


def test_a_watch_goes_on_when_the_controller_is_back(site, monkeypatch):
    for name in ("PAUSE_SECONDS", "AWAY_PAUSE"):
        monkeypatch.setattr(watch, name, 0)
    monkeypatch.setattr(slurm_cluster, "FRESH", 0)
    job, cluster = submitted(site, monkeypatch)
    away = Answer(1, err="slurm_load_jobs error: Unable to contact slurm controller")
    cluster.answers["squeue"] = away
    with pytest.raises(Failure, match="JOB-OUT-OF-REACH"):
        next(watch.follow(job.folder))  # it was never there
    tells(cluster, job, "RUNNING")
    following = watch.follow(job.folder)
    assert next(following)[0].state == "RUNNING"
    cluster.answers["squeue"] = away
    told, _ = next(following)
    assert told.state == "UNKNOWN" and "Unable to contact" in told.reason
    assert jobs.Job.load(job.folder).state == "RUNNING"
    tells(cluster, job, "TIMEOUT")
    assert [told.state for told, _ in following] == ["ERROR"]


def test_a_watch_gives_a_controller_up_that_stays_away(site, monkeypatch):
    monkeypatch.setattr(watch, "AWAY_SECONDS", -1)
    monkeypatch.setattr(watch, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(slurm_cluster, "FRESH", 0)
    job, cluster = submitted(site, monkeypatch)
    tells(cluster, job, "RUNNING")
    following = watch.follow(job.folder)
    next(following)
    cluster.answers["squeue"] = Answer(1, err="Unable to contact slurm controller")
    with pytest.raises(Failure, match="JOB-OUT-OF-REACH"):
        next(following)


# -- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("Priority", "SLURM: Priority"),
        ("QOSMaxGRESPerUser", "SLURM: QOSMaxGRESPerUser"),
        ("None", ""),
    ],
)
def test_a_waiting_job_tells_why(site, monkeypatch, reason, told):
    job, cluster = submitted(site, monkeypatch)
    tells(cluster, job, "PENDING", reason)
    job = jobs.Job.load(job.folder)
    assert slurm.judged(job).reason == told
    job = replace(job, options=job.options | {"requeue": True})
    anew = slurm.judged(replace(job, started_at="2026-01-01T00:00:00Z")).reason
    assert anew == "; ".join(filter(None, ["SLURM: begins it anew", told.removeprefix("SLURM: ")]))


@pytest.mark.parametrize("state", sorted(slurm_cluster.ENDED - slurm_cluster.BY_ITSELF))
def test_whatever_else_ended_a_job_is_told_with_the_way_on(site, monkeypatch, state):
    job, cluster = submitted(site, monkeypatch)
    note(job, slurm_script.STARTED, "1700000000 3\n")
    (job.folder / "results").mkdir(exist_ok=True)
    write_state(job.folder / "results/20260101000000/checkpoints/step_2/policy", 2, 3)
    tells(cluster, job, state)
    judged = slurm.judged(jobs.Job.load(job.folder))
    assert judged.state == "ERROR" and f"SLURM: {state}" in judged.reason
    tried_again = {"BOOT_FAIL", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT"}
    assert ("goes on from step 2" in judged.reason) == (state in tried_again)


@pytest.mark.parametrize("when", ["None", "2026-11-23T10:50:21"])
def test_a_job_that_ended_in_its_time_of_grace_gave_way(site, monkeypatch, when):
    job, cluster = submitted(site, monkeypatch)
    note(job, slurm_script.STARTED, "1700000000 3\n")
    note(job, slurm_script.ENDED, "3\n")
    tells(cluster, job, "FAILED", "NonZeroExitCode")
    line = f"JobId=3 Requeue=0 ExitCode=3:0 RunTime=00:00:05 PreemptTime={when} Suspend=None"
    cluster.answers["scontrol"] = Answer(0, line)
    judged = slurm.judged(jobs.Job.load(job.folder))
    assert judged.exit_code == 3 and ("SLURM: PREEMPTED" in judged.reason) == (when != "None")


def test_an_answer_of_the_queue_that_is_older_than_the_start(site, monkeypatch):
    job, cluster = submitted(site, monkeypatch)
    tells(cluster, job, "PENDING", "Priority")
    waiting = slurm.judged(jobs.Job.load(job.folder))
    note(job, slurm_script.STARTED, "1700000000 3\n")
    cluster.answers["squeue"] = Answer(0, f"3|{job.job_id}|RUNNING|None|n1\n")
    began = slurm.judged(waiting)
    assert (waiting.state, began.state, began.reason) == ("PENDING", "RUNNING", "")
    tells(cluster, job, "PENDING", "Priority")
    assert slurm.judged(began).state == "RUNNING"


def test_srun_says_1_where_memory_did_not_suffice(site, monkeypatch):
    job, cluster = submitted(site, monkeypatch)
    note(job, slurm_script.STARTED, "1700000000 3\n")
    note(job, "node.0.exit", "n1 137\n")
    note(job, slurm_script.ENDED, "1\n")
    note(job, jobs.LOG, "slurmstepd: error: Detected 1 oom_kill event in StepId=3.0.\n")
    tells(cluster, job, "FAILED", "NonZeroExitCode")
    judged = slurm.judged(jobs.Job.load(job.folder))
    assert judged.exit_code == 137
    first = judged.diagnosis[0]
    assert first["id"] == "JOB-SLURM-MEMORY" and "the partition gives" in first["message"]


@pytest.mark.parametrize(
    ("had", "asked"),
    [(None, "0"), ("60M", "120M"), ("3G", "6G"), ("1500", "3000M"), ("512M", "1G"), ("0", None)],
)
def test_a_retry_after_a_want_of_memory_asks_for_more(site, monkeypatch, had, asked):
    cluster = Cluster(monkeypatch, sbatch=Answer(0, "3\n"))
    job, found = launch.submit(site.request(platform="slurm", memory=had))
    assert job, found
    note(job, slurm_script.STARTED, "1700000000 3\n")
    note(job, "node.0.exit", "n1 137\n")
    note(job, slurm_script.ENDED, "137\n")
    note(job, jobs.LOG, "slurmstepd: error: Detected 1 oom_kill event in StepId=3.0.\n")
    tells(cluster, job, "OUT_OF_MEMORY")
    judged = slurm.judged(jobs.Job.load(job.folder))
    judged.write()
    told, *others = judged.diagnosis
    assert told["id"] == "JOB-SLURM-MEMORY"
    if asked is None:
        assert told["fix"] == "" and "all of a node" in told["message"]
        assert "build_spec.py" in others[0]["fix"]
        return
    words = shlex.split(told["fix"])
    assert words[-2:] == ["--memory", asked]
    assert words[:-2] == shlex.split(jobs.command("retry", job.folder))
    again, found = launch.submit(launch.next_attempt(job.folder, site.jobs, words[-1]))
    assert again, found
    assert (again.options["memory"], again.retry_of) == (asked, job.job_id)
    assert f"--mem={asked}" in again.command


@pytest.mark.parametrize("was_seen_running", [False, True])
def test_a_job_whose_folder_a_node_does_not_see(site, monkeypatch, was_seen_running):
    monkeypatch.setattr(slurm, "NOTE_SECONDS", 0)
    job, cluster = submitted(site, monkeypatch)
    job = jobs.Job.load(job.folder)
    if was_seen_running:
        tells(cluster, job, "RUNNING")
        job = slurm.judged(job)
    tells(cluster, job, "FAILED", "NonZeroExitCode", "n7")
    judged = slurm.judged(job)
    assert judged.state == "ERROR" and f"n7 does not see {job.folder}" in judged.reason


def test_a_job_that_was_taken_and_is_forgotten(site, monkeypatch):
    monkeypatch.setattr(slurm, "NOTE_SECONDS", 0)
    job, _ = submitted(site, monkeypatch)
    slurm_cluster._queues.clear()
    judged = slurm.judged(jobs.Job.load(job.folder))
    assert judged.state == "ERROR" and "knows job 3 no more" in judged.reason
