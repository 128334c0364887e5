"""A launch that is rendered for a SLURM cluster, started from its folder alone, and adopted."""

import json
import time

import pytest
from elsewhere_world import ENVIRONMENT, HANG, World, awaited
from support import run_script

pytestmark = pytest.mark.integration


@pytest.fixture
def world(tmp_path, slurm, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return World(tmp_path)


def submitted(world, *words, **more):
    """The number of the job that the folder alone starts."""
    world.render("slurm", *words, environment=ENVIRONMENT, **more)
    return world.start("bash", str(world.out / "submit.sh")).strip()


def test_the_cluster_is_described(tmp_path, slurm):
    done = run_script("launch_job.py", "describe", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)["result"]["site"]
    assert (facts["platform"], facts["nodes"], facts["gpus"]) == ("slurm", 2, {"count": 2})
    assert facts["slurm"] == {"partition": "gpu"}
    printed = run_script("launch_job.py", "describe", cwd=tmp_path).stdout
    assert "# further partitions: second\n" in printed, "a third one is down"


def test_a_training_is_started_by_the_folder_alone_and_goes_on_here(world, slurm):
    number = submitted(world)
    assert awaited(world.out / "slurm.ended") == ["0"], (world.out / "log.txt").read_text()
    told = slurm.call("scontrol", "show", "job", number).stdout
    assert "JobName=out" in told
    again = world.start("sbatch", "--parsable", "--wait", "job.sbatch", cwd=world.out, code=2)
    assert again.strip().isdecimal()
    record = world.adopted()
    assert (record["state"], record["reason"]) == ("COMPLETE", ""), record
    assert record["platform_ref"]["slurm_job_id"] == number
    world.goes_on(record)


def test_a_training_on_two_nodes_is_whole(world, slurm):
    """Two slurmd, a rank on each, as the file says."""
    text = (world.here / "train.toml").read_text()
    text = text.replace("dp_replicate_size = 1", "dp_replicate_size = 2")
    text = text.replace("train_batch_per_replica = 4", "train_batch_per_replica = 2")
    (world.here / "train.toml").write_text(text)
    submitted(world, "--nodes", "2", nodes=2)
    assert awaited(world.out / "slurm.ended") == ["0"], (world.out / "log.txt").read_text()
    record = world.adopted()
    assert record["state"] == "COMPLETE", record
    assert set(record["platform_ref"]["node_exit_codes"].values()) == {0}
    assert record["resources"]["nodes"] == 2


def test_a_job_that_is_begun_anew_goes_on_from_its_checkpoint(world, slurm):
    text = (world.here / "train.toml").read_text()
    text = text.replace("max_num_steps = 2", "max_num_steps = 60").replace(
        "epoch = 1\n", "epoch = 60\n"
    )
    text = text.replace("save_freq = ", "save_freq = 2 # ", 1)
    (world.here / "train.toml").write_text(text)
    number = submitted(world, "--requeue")
    awaited(world.out / "metrics.jsonl")
    job_id = awaited(world.out / "run.id")
    assert slurm.call("scontrol", "requeue", number).returncode == 0
    deadline = time.monotonic() + HANG
    while "JobState=COMPLETED" not in slurm.call("scontrol", "show", "job", number).stdout:
        assert time.monotonic() < deadline, (world.out / "log.txt").read_text()
        # A job that was requeued waits for two minutes, if it is not told otherwise.
        slurm.call("scontrol", "update", f"JobId={number}", "StartTime=now")
        time.sleep(0.5)
    assert "resume: " in (world.out / "log.txt").read_text()
    record = world.adopted()
    assert (record["state"], [record["job_id"]]) == ("COMPLETE", job_id), record
