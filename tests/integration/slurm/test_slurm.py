"""Jobs on a real SLURM cluster of two nodes: every ending, and words that are awkward."""

import collections
import json
import os
import shutil
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import run_demo
import ssh_server
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from launch_site import Site, change, ended
from slurm_site import HANG, is_running, request, seen, stand_in, submitted, waited
from support import run_script

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import launch, platforms
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.jobs.platforms.slurm import paths as slurm_paths
from cosmos_reason.jobs.platforms.slurm import script as slurm_script
from cosmos_reason.remote import s3
from cosmos_reason.remote.machine import Host
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration


@pytest.fixture
def site(tmp_path, monkeypatch, slurm):
    monkeypatch.setattr(slurm_cluster, "FRESH", 0.5)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return Site(tmp_path, monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def overdue(tmp_path_factory, slurm_cluster_of_the_session):
    """A job that runs into its limit of a minute while the other tests run."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("SLURM_CONF", str(slurm_cluster_of_the_session.conf))
        site = Site(tmp_path_factory.mktemp("overdue"), patches)
        site.does(steps=600, pause=1, total=600, model="")
        return submitted(site, time_limit="1")


# -- endings -----------------------------------------------------------------------------------


def test_a_job_that_does_what_it_should(site, slurm, monkeypatch):
    monkeypatch.setenv("SBATCH_TIMELIMIT", "5")
    monkeypatch.setenv("SBATCH_ARRAY_INX", "0-1")  # not handed on: it would be another job
    site.does()
    folder = submitted(site)
    job = ended(folder, HANG)
    assert (job.state, job.exit_code, job.reason) == ("COMPLETE", 0, "")
    assert job.platform_ref["slurm_job_id"].isdecimal()
    assert job.platform_ref["cluster"] == "tests"
    assert job.platform_ref["node_exit_codes"] in ({"n1": 0}, {"n2": 0})
    assert "step 3" in (folder / jobs.LOG).read_text()
    assert not (folder / slurm_script.ENVIRONMENT).exists()
    told = slurm.call("scontrol", "show", "job", job.platform_ref["slurm_job_id"]).stdout
    assert f"JobName={folder.name}" in told and "Requeue=0" in told
    assert "TimeLimit=00:05:00" in told


def test_a_job_that_fails(site):
    site.does(exit=3, model="")
    job = ended(submitted(site), HANG)
    assert (job.state, job.exit_code) == ("ERROR", 3), job.reason


def test_a_canceled_job_may_end_in_order(site):
    site.does(steps=600, pause=1, total=600, model="")
    folder = submitted(site)
    waited(folder, is_running)
    job = platforms.stop(folder, grace=20)
    assert job.state == "CANCELED" and job.exit_code == 143, job


def test_a_deaf_job_is_canceled_all_the_same(site):
    site.does(steps=600, pause=1, total=600, model="", deaf=True)
    folder = submitted(site)
    waited(folder, is_running)
    assert platforms.stop(folder, grace=1).state == "CANCELED"


def test_a_waiting_job_is_canceled_and_its_environment_goes(site, slurm, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-of-the-test")
    site.does()
    job, _ = held(site, slurm, monkeypatch)
    secret = job.folder / slurm_script.ENVIRONMENT
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert "secret-of-the-test" in secret.read_text()
    assert "secret-of-the-test" not in (job.folder / slurm_script.BATCH).read_text()
    assert platforms.refresh(job.folder).state == "PENDING"
    canceled = platforms.stop(job.folder, grace=1)
    assert canceled.state == "CANCELED" and "CANCELLED" in canceled.reason
    assert not secret.exists()


def held(site, slurm, monkeypatch):
    """A job that waits: the cluster is told to begin none for now."""
    inner = slurm_cluster.submit

    def held_back(where, words):
        return inner(where, [words[0], "--hold", *words[1:]])

    monkeypatch.setattr(slurm_cluster, "submit", held_back)
    job, found = launch.submit(request(site))
    assert job, found
    return job, found


@pytest.mark.parametrize("answered", [False, True])
def test_a_lost_answer_of_sbatch(site, slurm, monkeypatch, answered):
    """The job was taken, or not; its name tells."""
    site.does()
    real = shutil.which("sbatch")
    program = site.root / "bin" / "sbatch"
    program.parent.mkdir()
    taken = f'{real} "$@" >/dev/null\n' if answered else ""
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    program.write_text(f"#!/bin/sh\n{taken}echo '{lost}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    if answered:
        job = ended(submitted(site), HANG)
        assert job.state == "COMPLETE", job.reason
        return
    with pytest.raises(Failure) as raised:
        launch.submit(request(site))
    assert raised.value.exit_code == 3
    assert raised.value.findings[0].id == "JOB-SLURM-UNREACHABLE"
    (folder,) = jobs.folders(site.jobs)
    job = ended(folder, HANG)
    assert job.state == "ERROR" and "was not taken" in job.reason
    assert not (folder / slurm_script.ENVIRONMENT).exists()
    late = slurm.call(real, *job.command[1:]).stdout.strip()  # taken after all: it does nothing
    waited_for(slurm, late)
    assert (folder / slurm_script.ENDED).read_text() == "143\n"
    assert not (folder / jobs.METRICS).exists()


def waited_for(slurm, number):
    deadline = time.monotonic() + HANG
    while True:
        state = slurm.call(
            "squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T"
        )
        if state.stdout.strip() in slurm_cluster.ENDED:
            return
        assert time.monotonic() < deadline, state
        time.sleep(0.2)


def test_what_the_cluster_refuses_is_recorded(site, monkeypatch):
    site.does()
    with pytest.raises(Failure) as raised:
        launch.submit(request(site, qos="none-such", account="nobody", memory="900G"))
    (told, _) = raised.value.findings
    assert told.id == "JOB-SLURM-REFUSED"
    assert "Memory specification can not be satisfied" in told.message
    (folder,) = jobs.folders(site.jobs)
    job = jobs.Job.load(folder)
    assert job.state == "ERROR" and "SLURM refused the job" in job.reason


def test_paths_that_a_node_does_not_have_are_told_before_the_start(site, slurm, monkeypatch):
    monkeypatch.setattr(slurm_paths, "NODE_SECONDS", 60)
    monkeypatch.setattr(slurm_paths, "LIMIT", HANG)
    root = slurm.elsewhere / "it's $(odd)"
    root.mkdir()
    hidden = Site(root, monkeypatch)
    hidden.does()
    job, found = launch.submit(request(hidden, partition="second"))
    told = [one for one in found if one.severity == "error"]
    assert job is None and {one.id for one in told} == {"JOB-SLURM-PATHS"}, found
    assert {str(root / name) for name in ("a.json", "media", "model")} <= {
        one.where for one in told
    }
    assert not hidden.jobs.exists() and "node n2" in told[0].message
    job, _ = launch.plan(request(hidden))
    job = replace(job, resources=job.resources | {"nodes": 2})
    told = slurm_paths.check(Host(), job)
    assert told and all("on node n2," in one.message for one in told), told
    job, found = launch.submit(request(site, partition="second"))
    assert job and "JOB-SLURM-UNTRIED" not in {one.id for one in found}, found


def test_a_node_says_what_it_does_not_see_when_a_job_begins_there(site, slurm, monkeypatch):
    """Where none was free to look before."""
    monkeypatch.setattr(slurm_paths, "check", lambda *_: [])
    monkeypatch.setattr(slurm_script, "LOOK_SECONDS", 0)
    monkeypatch.setattr(platforms.module("slurm"), "NOTE_SECONDS", 0)
    root = slurm.elsewhere / "odd %s"
    root.mkdir()
    hidden = Site(root, monkeypatch)
    hidden.does()
    unseen = submitted(hidden, partition="second")
    medium = str(root / "media")
    change(hidden, "train", custom__train_dataset__media_path=medium)
    asked = {"jobs_dir": site.jobs, "working_dir": site.root}
    hidden_data = submitted(hidden, partition="second", **asked)
    job = ended(unseen, HANG)
    assert job.state == "ERROR" and f"n2 does not see {unseen}" in job.reason, job.reason
    job = ended(hidden_data, HANG)
    assert (job.state, job.exit_code) == ("ERROR", 1)
    assert [one["id"] for one in job.diagnosis] == ["JOB-SLURM-PATHS"], job.reason
    log = (hidden_data / jobs.LOG).read_text()
    assert f"JOB-SLURM-PATHS {root / 'media'}: not there" in log and "on node n2" in log


def test_200_queued_jobs_are_listed_with_one_question(site, slurm, monkeypatch):
    """All but one as sbatch takes them; three were canceled behind the records' backs."""
    site.does()
    job, _ = held(site, slurm, monkeypatch)
    ids = {job.job_id}
    try:
        for number in range(199):
            ids.add(queued(slurm, job, f"train-20260101-000000-{number:06x}"))
        gone = sorted(ids)[:3]
        for name in gone:
            assert not slurm.call("scancel", f"--name={name}").returncode
        note_calls(site, monkeypatch)
        done = run_script("launch_job.py", "list", "--last", "0", "--json", cwd=site.root)
        listed = json.loads(done.stdout)["result"]
        assert listed["states"] == {"PENDING": 197, "ERROR": 3}
        reasons = {row["job_id"]: row["reason"] for row in listed["jobs"]}
        assert set(reasons) == ids
        as_told = [name for name, reason in reasons.items() if "CANCELLED" in reason]
        assert sorted(as_told) == gone and "SLURM holds it" in reasons[job.job_id]
        asked = collections.Counter((site.root / "asked").read_text().split())
        # Besides, how each of the three ended, where squeue does not tell it any more.
        assert asked.keys() <= {"squeue", "scontrol"} and asked["squeue"] == 1
        assert asked["scontrol"] <= 3
    finally:
        slurm.call("scancel", "--me", "--state=PENDING")


def queued(slurm, job, job_id):
    """A job like `job` that waits in the queue; returns its id."""
    folder = job.folder.parent / job_id
    shutil.copytree(job.folder, folder)
    text = (job.folder / jobs.RECORD).read_text().replace(job.job_id, job_id)
    (folder / jobs.RECORD).write_text(text)
    words = [word.replace(job.job_id, job_id) for word in job.command]
    taken = slurm.call(words[0], "--hold", *words[1:])
    assert not taken.returncode, taken.stderr
    return job_id


def note_calls(site, monkeypatch):
    """From now on the questions to the cluster stand in the file `asked`."""
    folder = site.root / "noting"
    folder.mkdir()
    for name in ("squeue", "scontrol", "sacct", "sinfo"):
        real = shutil.which(name)
        text = f'#!/bin/sh\necho {name} >> "{site.root}/asked"\nexec {real} "$@"\n'
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


# -- what is asked of a node ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told", "gpus"),
    [
        ({}, "TresPerNode=gres:gpu:1", "1"),
        ({"gres": "gpus-per-node"}, "TresPerNode=gres:gpu:1", "1"),
        ({"gres": "none"}, "OverSubscribe=OK", None),
        ({"exclusive": True}, "NumCPUs=8", "1"),
        ({"cpus": 3, "memory": "100M"}, "CPUs/Task=3", "1"),
    ],
)
def test_a_node_gives_what_was_asked_for(site, slurm, fields, told, gpus):
    site.runs(stand_in(site, {}))
    job, found = launch.submit(site.request(platform="slurm", **fields))
    assert job, found
    record = ended(job.folder, HANG)
    assert record.exit_code == 0, record.reason
    assert seen(job.folder)["environment"].get("SLURM_GPUS_ON_NODE") == gpus
    shown = slurm.call("scontrol", "show", "job", record.platform_ref["slurm_job_id"]).stdout
    assert told in shown and ("OverSubscribe=NO" in shown) == ("exclusive" in fields), shown
    assert ("MinMemoryNode=100M" in shown) == ("memory" in fields)
    assert record.resources["gpus_per_node"] == 1


# -- inputs from elsewhere -----------------------------------------------------------------------

# Notes what the spec's clips hold, as the node reads them.
READER = """
import json, os, pathlib, tomllib
job = pathlib.Path(os.environ["COSMOS_REASON_JOB_ID"])
spec = tomllib.loads((job / "spec.toml").read_text())
data = spec["custom"]["train_dataset"]
records = json.loads(pathlib.Path(data["annotation_path"]).read_text())
media = pathlib.Path(data["media_path"])
held = {record["video"]: (media / record["video"]).read_text() for record in records}
(job / "read").write_text(json.dumps([os.environ["SLURMD_NODENAME"], held]))
"""


@pytest.fixture
def on_s3(site, bucket):
    """The spec names clips on S3."""
    s3.send(site.root / "a.json", f"{bucket}/data/annotations.json")
    for number in range(8):
        (site.root / "clip").write_text(f"clip {number}")
        s3.send(site.root / "clip", f"{bucket}/data/media/{number}.mp4")
    for table in ("train_dataset", "val_dataset"):
        places = {"annotation_path": "annotations.json", "media_path": "media"}
        keys = {f"custom__{table}__{key}": f"{bucket}/data/{at}" for key, at in places.items()}
        change(site, "train", **keys)
    program = site.root / "reader.py"
    program.write_text(READER.replace("Path(os.environ", f"Path({str(site.jobs)!r}, os.environ"))
    site.runs([sys.executable, str(program)])


@pytest.mark.promise
def test_what_s3_has_is_staged_where_the_nodes_read_it(site, on_s3):
    folder = submitted(site, partition="second")
    record = ended(folder, HANG)
    assert record.exit_code == 0, (record.reason, (folder / jobs.LOG).read_text())
    node, held = json.loads((folder / "read").read_text())
    assert node == "n2" and held == {f"{n}.mp4": f"clip {n}" for n in range(8)}
    staged = {entry["role"]: entry for entry in record.inputs}
    media = staged["custom.train_dataset.media_path"]
    assert media["source"].startswith("s3://") and media["path"].startswith(str(site.root))


def test_a_cache_that_a_node_does_not_see_is_told_before_anything_is_fetched(
    site, slurm, on_s3, monkeypatch
):
    hidden = slurm.elsewhere / "cache"
    monkeypatch.setenv("COSMOS_CACHE", str(hidden))
    monkeypatch.setattr(slurm_paths, "NODE_SECONDS", 60)
    job, found = launch.submit(request(site, partition="second"))
    (told,) = [one for one in found if one.severity == "error"]
    assert job is None and (told.id, told.where) == ("JOB-SLURM-PATHS", str(hidden))
    assert "fetched into" in told.message and "COSMOS_CACHE" in str(told.fix)
    assert not list(hidden.iterdir()) and not site.jobs.exists()


# -- from another machine ------------------------------------------------------------------------


@pytest.fixture
def login_node(site, slurm, monkeypatch, free_port):
    """This machine knows no cluster; one that ssh reaches does."""
    if why := ssh_server.missing():
        pytest.skip(why)
    with ssh_server.running(site.root, free_port, monkeypatch, f"SetEnv SLURM_CONF={slurm.conf}"):
        monkeypatch.delenv("SLURM_CONF")
        monkeypatch.setenv("SLURM_HOSTNAME", "127.0.0.1")
        monkeypatch.setenv("SLURM_USER", "root")
        yield


def test_a_login_node_is_asked_over_ssh(site, login_node, tmp_path, monkeypatch):
    odd = tmp_path / "it's %j $(odd); é\nnew"
    odd.mkdir()
    site.runs([*stand_in(site, {}, odd), ODD])
    asked = replace(request(site), jobs_dir=odd)
    job, found = launch.submit(asked)
    assert job, found
    monkeypatch.setenv("SLURM_HOSTNAME", "elsewhere.invalid")  # the record knows where it is
    record = ended(job.folder, HANG)
    assert record.exit_code == 0 and record.options["slurm_host"] == "root@127.0.0.1"
    assert record.platform_ref["cluster"] == "tests" and seen(job.folder)["arguments"][3:] == [ODD]


def test_a_job_is_canceled_over_ssh(site, login_node):
    site.does(steps=600, pause=1, total=600, model="")
    folder = submitted(site)
    waited(folder, is_running)
    assert platforms.stop(folder, grace=20).state == "CANCELED"


# -- a training ---------------------------------------------------------------------------------


class SpecOnly(run_demo.Shell):
    """The demo's shell, which starts no job."""

    def job(self, action, spec, jobs):
        return {}


def test_the_demos_training_gives_the_weights_of_this_machine(tmp_path, monkeypatch, slurm):
    """The demo's own model, data and spec, with fewer clips and steps."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_demo, "CLIPS", {"train": 48, "validation": 4, "eval": 4})
    run_demo.make_world(tmp_path, "cosmos3", 0)
    convert = ["--checkpoint-path", "omni", "--output-path", "model"]
    succeed("prepare_cosmos3_vlm_checkpoint.py", *convert)
    run_demo.train(SpecOnly(run_demo.VISION["cosmos3"]), tmp_path, tmp_path / "model", 0)
    spec = document.load(tmp_path / "train.toml")
    spec["train"] |= {"max_num_steps": 3, "optm_warmup_steps": 1}
    document.dump(spec, tmp_path / "train.toml")
    weights, job_ids = [], []
    for platform in ("slurm", "local"):
        words = ["train", "--spec", "train.toml", "--gpu-ids", "none", "--platform", platform]
        job_ids.append(succeed("launch_job.py", "submit", *words))
    for job_id in job_ids:
        succeed("launch_job.py", "watch", job_id)
        job = jobs.Job.load(tmp_path / "jobs" / job_id)
        assert job.state == "COMPLETE" and job.evidence["last_step"] == 3, job.reason
        weights.append(files.sha256(Path(job.evidence["checkpoint"]) / "model.safetensors"))
    assert weights[0] == weights[1]
    listed = succeed("launch_job.py", "list")
    assert listed.count("COMPLETE") == 2
    assert "next: " in run_script("launch_job.py", "status", job_id, cwd=tmp_path).stderr
    printed = [succeed("launch_job.py", "logs", job_id) for job_id in job_ids]
    assert "3/3" in printed[0] and "3/3" in printed[1], printed


def succeed(name, *words):
    done = run_script(name, *words, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.strip()


# -- several nodes -----------------------------------------------------------------------------


def two_nodes(site, monkeypatch, codes):
    """A job of cosmos-rl on two nodes, the stand-in as its program."""
    change(
        site,
        "train",
        policy__parallelism__dp_shard_size=2,
        policy__parallelism__dp_replicate_size=2,
    )
    monkeypatch.setattr(platforms.module("local").cosmos_environment, "findings", lambda *_: [])
    bin_folder = site.root / "stand-in-bin"
    monkeypatch.setattr(platforms.module("local").cosmos_environment, "folder", lambda: bin_folder)
    monkeypatch.setenv("ODD", "a'b\n$(c)")
    site.runs(stand_in(site, codes))
    asked = site.request(
        platform="slurm", engine="cosmos-rl", nodes=2, partition="gpu", cpus=1, env=["ODD"]
    )
    job, found = launch.submit(asked)
    assert job, found
    return job


def test_cosmos_rl_on_two_nodes_gets_what_differs_from_node_to_node(site, monkeypatch):
    job = two_nodes(site, monkeypatch, {})
    record = ended(job.folder, HANG)
    assert record.platform_ref["node_exit_codes"] == {"n1": 0, "n2": 0}, record.reason
    assert record.resources == {"nodes": 2, "gpus_per_node": 2, "gpu_ids": None}
    first, second = seen(job.folder, 0), seen(job.folder, 1)
    port = first["environment"]["COSMOS_REASON_CONTROLLER_PORT"]
    rendezvous = first["environment"]["COSMOS_REASON_RENDEZVOUS_PORT"]
    assert 20000 <= int(port) < int(rendezvous) < 65536
    for node, words in enumerate((["--port", port], ["--url", f"127.0.0.1:{port}"])):
        assert (first, second)[node]["arguments"] == [
            *("--num-workers", "2", "--worker-idx", str(node)),
            *("--node-ip-list", "127.0.0.1;127.0.0.1", *words),
            *("--rdzv-port", rendezvous, "--config", "spec.toml", "entry.py"),
        ]
    check_environment(first["environment"], site)
    check_environment(second["environment"], site)
    assert first["folder"] == second["folder"] == str(site.root)
    told = (job.folder / jobs.LOG).read_text()
    assert "node 0" in told and "node 1" in told


def check_environment(environment, site):
    assert environment["ODD"] == "a'b\n$(c)"
    assert environment["COSMOS_REDIS_NO_TLS"] == "1"
    assert environment["PATH"].startswith(f"{site.root}:")
    assert environment["SLURM_GPUS_ON_NODE"] == "2"
    assert not environment.keys() & {"MASTER_ADDR", "WORLD_SIZE", "COSMOS_REASON_ONE_NODE"}


def test_one_of_two_nodes_fails(site, monkeypatch):
    record = ended(two_nodes(site, monkeypatch, {"1": 7}).folder, HANG)
    assert (record.state, record.exit_code) == ("ERROR", 7)
    codes = record.platform_ref["node_exit_codes"]
    assert codes["n2"] == 7 and "exit codes of nodes: " in record.reason, record.reason


# -- words that are awkward ----------------------------------------------------------------------

ODD = "a b'\"$(touch x);`y`|&*?<>%j %% \\ é -rf\n\tz"


def test_awkward_names_reach_the_program_as_data(site, tmp_path, monkeypatch):
    odd = tmp_path / "it's %j $(odd); é\nnew"
    odd.mkdir()
    monkeypatch.setenv("ODD", ODD)
    site.runs([*stand_in(site, {}, odd), ODD, "--flag=" + "x" * 4000, ""])
    asked = request(site, env=["ODD"])
    job, found = launch.submit(replace(asked, jobs_dir=odd))
    assert job, found
    record = ended(job.folder, HANG)
    assert record.exit_code == 0, record.reason
    told = seen(job.folder)
    assert told["arguments"][3:] == [ODD, "--flag=" + "x" * 4000, ""]
    assert told["environment"]["ODD"] == ODD
    assert "node 0" in (job.folder / jobs.LOG).read_text()


VALUES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=60)


NAMES = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0/"), min_size=1, max_size=60
).filter(lambda name: name not in (".", ".."))


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(NAMES, VALUES)
@example("plain", "team-1")
@example("-rf %j \\ \\\\% \n{ü}", "-x")
@example("é" * 100, "x" * 4000)
def test_any_folder_and_account_are_data_or_refused(site, slurm, name, account):
    """The job's name in the cluster is its id."""
    folder = site.root / name
    folder.mkdir(exist_ok=True)
    site.runs([*stand_in(site, {}, folder), name, account, "x" * 4000])
    asked = replace(request(site, account=account), jobs_dir=folder)
    job, found = launch.submit(asked)
    if job is None:
        wrong = [one.id for one in found if one.severity == "error"]
        assert account != "team-1" and wrong == ["JOB-SLURM-WORD"] and not jobs.folders(folder)
        job, _ = launch.submit(replace(asked, account=None))
        account = "(null)"
    record = ended(job.folder, HANG)
    assert record.exit_code == 0, record.reason
    assert seen(job.folder)["arguments"][3] == name
    assert "node 0" in (job.folder / jobs.LOG).read_text()
    told = slurm.call("scontrol", "show", "job", record.platform_ref["slurm_job_id"]).stdout
    assert f" Account={account} " in told and f"JobName={job.job_id}\n" in told


def test_the_time_limit(site, overdue):
    """The cluster's own limit ends it: nothing here counts seconds."""
    job = ended(overdue, HANG)
    assert job.state == "ERROR" and "SLURM: TIMEOUT" in job.reason, job.reason
