"""A real SLURM cluster that keeps accounts: nodes that fail, jobs begun anew, jobs it forgot, jobs
that give way to others or take too much memory."""

import sys
import time
from functools import partial

import pytest
from launch_site import Site, ended
from slurm_cluster import limits_memory
from slurm_site import HANG, is_running, request, submitted, waited

from cosmos_reason.jobs import launch, platforms
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.jobs.platforms.slurm import script as slurm_script
from cosmos_reason.remote.machine import Host
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration


@pytest.fixture
def site(tmp_path, monkeypatch, accounting_cluster):
    monkeypatch.setenv("SLURM_CONF", str(accounting_cluster.conf))
    monkeypatch.setattr(slurm_cluster, "FRESH", 0.5)
    slurm_cluster._queues.clear()
    return Site(tmp_path, monkeypatch)


def take_down_its_node(cluster, folder):
    """Returns the node, which has to be brought back."""
    reference = platforms.refresh(folder).platform_ref
    found = cluster.call("squeue", "--noheader", f"--jobs={reference['slurm_job_id']}", "-o%N")
    node = found.stdout.strip()
    done = cluster.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    assert node and not done.returncode, done.stderr
    return node


def begun_anew(cluster, folder):
    """A job that was requeued waits for two minutes, if it is not told otherwise. It is held where
    the node, which was down in name only, still has processes of the first start."""
    slurm_id = jobs.Job.load(folder).platform_ref["slurm_job_id"]
    cluster.call("scontrol", "release", slurm_id)
    cluster.call("scontrol", "update", f"JobId={slurm_id}", "StartTime=now")
    return (folder / "start.1").exists()


def bring_back(cluster, node):
    cluster.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def until(told, wanted):
    deadline = time.monotonic() + HANG
    while told() != wanted:
        assert time.monotonic() < deadline, (told(), wanted)
        time.sleep(0.2)


# What runs, with flags of sbatch; its state in the accounts and its exit code.
ENDINGS = {
    "well": ("exit 0", (), ("COMPLETED", None)),
    "badly": ("exit 3", (), ("FAILED", 3)),
    "killed": ("kill -9 $$", (), ("FAILED", 137)),
    "runs": ("sleep 600", ("--nodelist=n1",), ("RUNNING", None)),
    "canceled": ("sleep 600", ("--nodelist=n1",), ("CANCELLED", None)),
    "down": ("sleep 600", ("--nodelist=n2", "--no-requeue"), ("NODE_FAIL", None)),
}
HOARD = "import time; held = [bytes([1]) * 10**7 for _ in range(60)]; time.sleep(600)"
needs_limits = pytest.mark.skipif(
    not limits_memory(), reason="the kernel's groups for memory (version 1) cannot be had"
)


def test_states_of_the_accounts(site, accounting_cluster):
    """Of jobs that the controller may have forgotten."""
    since, started = jobs.now(), {}
    for name, (program, flags, _) in ENDINGS.items():
        words = ["sbatch", "--parsable", f"--job-name={name}", "--output=/dev/null", *flags]
        started[name] = accounting_cluster.call(*words, f"--wrap={program}").stdout.strip()

    def state(name):
        found = slurm_cluster._accounted(Host(), name, since)
        return (found.state, found.exit_code) if found else None

    for name in ("canceled", "down", "runs"):
        assert started[name].isdecimal(), started
        until(partial(state, name), ("RUNNING", None))
    accounting_cluster.call("scancel", started["canceled"])
    accounting_cluster.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    try:
        for name, (_, _, told) in ENDINGS.items():
            until(partial(state, name), told)
        found = slurm_cluster._accounted(Host(), "down", since)
        assert found.slurm_id == started["down"] and found.nodes == "n2"
        assert "SLURM: NODE_FAIL" in found.note
    finally:
        bring_back(accounting_cluster, "n2")
        accounting_cluster.call("scancel", started["runs"])


@needs_limits
def test_a_batch_script_that_takes_too_much_memory_is_out_of_memory(site, accounting_cluster):
    since = jobs.now()
    words = ["sbatch", "--parsable", "--job-name=hoard", "--mem=60M", "--output=/dev/null"]
    program = f"exec {sys.executable} -c '{HOARD}'"
    assert not accounting_cluster.call(*words, f"--wrap={program}").returncode

    def state():
        found = slurm_cluster._accounted(Host(), "hoard", since)
        return found.state if found else None

    until(state, "OUT_OF_MEMORY")


@needs_limits
def test_a_job_that_takes_too_much_memory_is_told_to_ask_for_more(site):
    site.runs([sys.executable, "-c", HOARD])
    folder = submitted(site, memory="60M")
    job = ended(folder, HANG)
    assert (job.state, job.exit_code) == ("ERROR", 137), job.reason
    assert "SIGKILL (often: out of memory)" in job.reason
    told = {one["id"]: one for one in job.diagnosis}
    assert list(told) == ["JOB-SLURM-MEMORY", "LOG-HOST-MEMORY"]
    assert "got 60M" in told["JOB-SLURM-MEMORY"]["message"]
    assert told["JOB-SLURM-MEMORY"]["fix"].endswith("--memory 120M")


# -- jobs that give way to others ----------------------------------------------------------------

# Saves a state when it is asked to end, as the embedded engine does.
YIELDING = r"""#!{python}
import os, pathlib, signal, sys, time
sys.path[:0] = {path!r}
from launch_site import write_state
job = pathlib.Path({jobs!r}) / os.environ["COSMOS_REASON_JOB_ID"]
def save(*_):
    write_state(job / "results/20260101000000/checkpoints/step_2/policy", 2, 9)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
(job / "metrics.jsonl").write_text('{{"step": 2, "total_steps": 9}}\n')
time.sleep(600)
"""


def yielding(site, partition, **fields):
    """The folder of a training that runs, and gives way to one of partition `urgent`."""
    program = site.root / "yielding"
    there = {"path": sys.path, "jobs": str(site.jobs), "python": sys.executable}
    program.write_text(YIELDING.format(**there))
    program.chmod(0o755)
    site.runs([str(program)])
    folder = submitted(site, partition=partition, memory="300M", **fields)
    waited(folder, is_running)
    return folder


def urge(cluster):
    """A job that wants the whole node at once; returns its number, to be canceled."""
    words = ["--parsable", "--partition=urgent", "--exclusive", "--output=/dev/null"]
    done = cluster.call("sbatch", *words, "--wrap=sleep 600")
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("partition", ["spot", "grace"])
def test_a_job_that_gave_way_is_told_as_preempted_and_how_it_goes_on(
    site, accounting_cluster, partition
):
    """Of one that ended in its time of grace SLURM says only that it failed."""
    folder = yielding(site, partition)
    urgent = urge(accounting_cluster)
    try:
        job = ended(folder, HANG)
        assert job.state == "ERROR" and job.exit_code in (3, 143), job.reason
        assert "SLURM: PREEMPTED" in job.reason and "SIGCONT" not in job.reason
        assert f"retry {folder.name} --jobs-dir {site.jobs} goes on from step 2" in job.reason
    finally:
        accounting_cluster.call("scancel", urgent)


def test_a_job_that_gave_way_is_begun_anew_where_that_was_asked_for(site, accounting_cluster):
    folder = yielding(site, "spot", requeue=True)
    urgent = urge(accounting_cluster)
    try:
        waited(folder, lambda job: job.state == "PENDING" and "anew" in job.reason)
    finally:
        accounting_cluster.call("scancel", urgent)
    (folder / jobs.METRICS).unlink()

    def runs_again(job):
        accounting_cluster.call(
            "scontrol", "update", f"JobId={job.platform_ref['slurm_job_id']}", "StartTime=now"
        )
        return is_running(job)

    waited(folder, runs_again)
    assert platforms.stop(folder, grace=20).state == "CANCELED"


def test_a_node_that_goes_down_is_told_and_the_job_retried(site, accounting_cluster):
    site.does(steps=600, pause=1, total=600, model="")
    folder = submitted(site)
    waited(folder, is_running)
    node = take_down_its_node(accounting_cluster, folder)
    try:
        job = ended(folder, HANG)
        assert job.state == "ERROR" and "SLURM: NODE_FAIL" in job.reason, job.reason
        site.does(output=job.outputs["output_dir"])
        again, found = launch.submit(launch.next_attempt(folder, site.jobs))
        assert again, found
        job = ended(again.folder, HANG)
        assert job.state == "COMPLETE" and job.retry_of == folder.name, job.reason
    finally:
        bring_back(accounting_cluster, node)


# Runs until it is told to end; notes the environment of each start.
ANEW = """#!{python}
import os, pathlib, time
job = pathlib.Path({jobs!r}) / os.environ["COSMOS_REASON_JOB_ID"]
start = len(list(job.glob("start.*")))
(job / f"start.{{start}}").write_text(os.environ["HF_TOKEN"])
while not start:
    time.sleep(0.1)
"""


def test_a_job_is_begun_anew_only_where_that_was_asked_for(site, accounting_cluster):
    site.monkeypatch.setenv("HF_TOKEN", "secret-of-the-test")
    program = site.root / "anew"
    program.write_text(ANEW.format(python=sys.executable, jobs=str(site.jobs)))
    program.chmod(0o755)
    site.runs([str(program)])
    folder = submitted(site, requeue=True)
    assert document.load(folder / jobs.SPEC)["train"]["resume"] is True
    waited(folder, lambda _: (folder / "start.0").exists())
    node = take_down_its_node(accounting_cluster, folder)
    try:
        waited(folder, lambda job: job.state == "PENDING" and "anew" in job.reason)
    finally:
        bring_back(accounting_cluster, node)
    waited(folder, lambda _: begun_anew(accounting_cluster, folder), 3 * HANG)
    job = ended(folder, HANG)
    assert job.exit_code == 0 and "no step was recorded" in job.reason
    assert (folder / "start.1").read_text() == "secret-of-the-test"
    assert not (folder / slurm_script.ENVIRONMENT).exists()


def test_an_accepted_account_and_quality_of_service_are_accounted(site, accounting_cluster):
    site.does()
    job = ended(submitted(site, account="team", qos="high"), HANG)
    assert job.state == "COMPLETE", job.reason
    slurm_id = job.platform_ref["slurm_job_id"]
    words = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={slurm_id}"]
    words.append("--format=JobName,Account,QOS,State")
    told = f"{job.job_id}|team|high|COMPLETED"
    until(lambda: accounting_cluster.call(*words).stdout.strip(), told)


@pytest.mark.parametrize("fields", [{"account": "others"}, {"qos": "none-such"}])
def test_one_that_is_not_ours_is_told_before_anything_is_recorded(site, fields):
    site.does()
    job, found = launch.submit(request(site, **fields))
    (told,) = [one for one in found if one.severity == "error"]
    assert job is None and told.id == "JOB-SLURM-REFUSED" and "Invalid" in told.message
    assert not site.jobs.exists()
