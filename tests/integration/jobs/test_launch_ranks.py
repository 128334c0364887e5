"""Trainings of the embedded engine that launch_job starts on several ranks: on this machine, and on
the nodes of a real SLURM cluster (gloo, on the CPU)."""

import copy
import os
import signal
import time

import launch_site
import psutil
import pytest
import tiny_world
from tiny_world import succeed

from cosmos_reason.jobs import platforms, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration
HANG = 300  # seconds after which a test gives up
# Float32 sums in another order, after 4 steps.
NUMBERS = 1e-4
SETTINGS = [
    *(
        "custom.vision.nframes=2",
        "custom.vision.resized_height=32",
        "custom.vision.resized_width=32",
    ),
    *("train.max_num_steps=4", "batch_size=4", "train.train_policy.mini_batch=1", "train.seed=1"),
    *("train.train_policy.dataloader_num_workers=0", "train.ckpt.save_freq=2", "validation.freq=2"),
    *("learning_rate=1e-3", "policy.model_max_length=1024"),
]


@pytest.fixture(scope="module")
def patches():
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("OMP_NUM_THREADS", "1")
        patches.setattr(slurm_cluster, "FRESH", 0.5)
        yield patches


@pytest.fixture(scope="module")
def world(tmp_path_factory, patches):
    """A tiny model and data; one.toml for one rank, two.toml for two with the same global batch,
    sharded.toml for two that share the weights, endless.toml for two until they are ended."""
    root = tmp_path_factory.mktemp("world")
    tiny_world.make_data(root, train=8, eval=4)
    tiny_world.convert_model(root)
    tiny_world.write_train_spec(root, SETTINGS, "eval")
    spec = document.load(root / "train.toml")
    document.dump(spec, root / "one.toml")
    document.set_value(spec, "policy.parallelism.dp_replicate_size", 2)
    document.set_value(spec, "train.train_batch_per_replica", 2)
    document.dump(spec, root / "two.toml")
    sharded = copy.deepcopy(spec)
    sharded["policy"]["parallelism"] |= {"dp_shard_size": 2, "dp_replicate_size": 1}
    document.dump(sharded, root / "sharded.toml")
    spec["train"] |= {"epoch": 10_000, "max_num_steps": 20_000}
    for key in ("train.ckpt.save_freq", "validation.freq"):
        document.set_value(spec, key, 10_000)
    document.dump(spec, root / "endless.toml")
    return root


@pytest.fixture
def cluster(slurm, patches):
    patches.setenv("SLURM_CONF", os.environ["SLURM_CONF"])


def submitted(world, name, *words):
    common = ["train", "--spec", f"{name}.toml", "--engine", "transformers", "--gpu-ids", "none"]
    return world / "jobs" / succeed("launch_job.py", "submit", *common, *words, cwd=world)


ON_NODES = ("--platform", "slurm", "--nodes", "2", "--partition", "gpu", "--cpus", "1")


def curve(folder):
    job = launch_site.ended(folder, HANG)
    assert job.state == "COMPLETE", (job.reason, progress.log_tail(folder, 40))
    lines, _ = progress.read_metrics(folder)
    numbers = {}
    for line in lines:
        for key in ("train/loss", "train/grad_norm", "val/avg_loss"):
            if key in line:
                numbers[key, line["step"]] = line[key]
    assert {step for key, step in numbers if key == "train/loss"} == {1, 2, 3, 4}
    return numbers


@pytest.fixture(scope="module")
def alone(world):
    return curve(submitted(world, "one", "--platform", "local"))


@pytest.mark.promise
def test_two_ranks_of_this_machine_train_as_one(world, alone):
    folder = submitted(world, "two", "--platform", "local")
    assert curve(folder) == pytest.approx(alone, rel=NUMBERS)
    command = jobs.Job.load(folder).command
    assert "--nproc-per-node=2" in command and "--standalone" in command


@pytest.mark.parametrize("name", [pytest.param("two", marks=pytest.mark.promise), "sharded"])
def test_two_nodes_train_as_one_process(world, alone, cluster, name):
    folder = submitted(world, name, *ON_NODES)
    assert curve(folder) == pytest.approx(alone, rel=NUMBERS)
    job = jobs.Job.load(folder)
    assert job.platform_ref["node_exit_codes"] == {"n1": 0, "n2": 0}
    assert job.resources == {"nodes": 2, "gpus_per_node": 0, "gpu_ids": []}
    printed = succeed("launch_job.py", "logs", folder.name, "--lines", "0", cwd=world)
    assert "4/4" in printed, printed
    check_answers_of(world, name, folder)


def check_answers_of(world, name, trained):
    """What two nodes trained answers on one."""
    words = ["--engine", "transformers", "--parent-job", trained.name, "--eval-root", "data/eval"]
    settings = ["generation.max_tokens=2", "evaluation.batch_size=12"]
    spec = f"evaluate-{name}.toml"
    succeed("build_spec.py", "evaluate", *words, *tiny_world.flags(settings), "-o", spec, cwd=world)
    asked = ["evaluate", "--spec", spec, "--gpu-ids", "none", "--platform", "slurm", "--cpus", "1"]
    folder = world / "jobs" / succeed("launch_job.py", "submit", *asked, cwd=world)
    job = launch_site.ended(folder, HANG)
    assert job.evidence == {"rows": 12, "questions": 12, "failed": 0}, job.reason
    assert job.parent_job == trained.name and job.resources["nodes"] == 1
    assert len(job.platform_ref["node_exit_codes"]) == 1
    model = next(entry["path"] for entry in job.inputs if entry["role"] == "model.model_name")
    assert model.startswith(str(trained)), model


def trains(folder):
    """Waits until steps are done."""
    deadline = time.monotonic() + HANG
    while progress.newest(folder).get("step", 0) < 3:
        job = platforms.refresh(folder)
        assert not job.has_ended, (job.reason, progress.log_tail(folder, 40))
        assert time.monotonic() < deadline, progress.log_tail(folder, 40)
        time.sleep(0.2)


def process_of_rank(folder, rank):
    for process in launch_site.marked(folder):
        if process.environ().get("RANK") == str(rank):
            return process
    raise AssertionError([process.cmdline() for process in psutil.process_iter()])


@pytest.mark.parametrize("where", [("--platform", "local"), ON_NODES])
def test_a_rank_that_dies_ends_the_job_with_the_cause(world, cluster, where):
    folder = submitted(world, "endless", *where)
    trains(folder)
    process_of_rank(folder, 1).send_signal(signal.SIGKILL)
    job = launch_site.ended(folder, HANG)
    log = (folder / jobs.LOG).read_text()
    assert job.state == "ERROR" and job.exit_code, (job.reason, log)
    deadline = time.monotonic() + HANG
    while left := launch_site.marked(folder):  # who wrote the record ends after it
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert "exitcode" in log and "stopped at step" in job.reason, job.reason
    assert "=====" not in job.reason and "torch/distributed" not in job.reason, job.reason
    assert job.diagnosis[0]["id"] == "ENGINE-RANK-LOST", log


def test_nodes_save_before_their_time_limit(world, cluster):
    folder = submitted(world, "endless", *ON_NODES, "--time-limit", "1")
    job = launch_site.ended(folder, HANG)
    log = (folder / jobs.LOG).read_text()
    assert job.state == "ERROR" and "TIMEOUT" not in job.reason, (job.reason, log)
    assert "SIGKILL" not in job.reason, job.reason
    assert job.diagnosis[0]["id"] == "ENGINE-STOPPED" and "SIGUSR1" in log, log
    assert f"goes on from step {progress.newest(folder)['step']}" in job.reason, job.reason


@pytest.mark.parametrize("where", [("--platform", "local"), ON_NODES])
def test_a_canceled_training_is_saved_once_and_goes_on(world, cluster, where):
    folder = submitted(world, "endless", *where)
    trains(folder)
    job = platforms.stop(folder, grace=60)
    log = (folder / jobs.LOG).read_text()
    assert job.state == "CANCELED" and "goes on from step" in job.reason, (job.reason, log)
    assert log.count("ENGINE-STOPPED") == 1, log
    last = progress.newest(folder)["step"]
    again = world / "jobs" / succeed("launch_job.py", "retry", folder.name, cwd=world)
    trains(again)
    assert progress.read_metrics(again)[0][0]["step"] == last + 1
    assert platforms.stop(again, grace=60).state == "CANCELED"
