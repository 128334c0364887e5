"""A training of the embedded engine on several GPUs and nodes: the words that start it, and what is
refused."""

import json
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
from launch_site import Site, change
from support import ROOT, run_script

from cosmos_reason.base import bundle
from cosmos_reason.jobs import engines, in_words, launch
from cosmos_reason.jobs.platforms import local
from cosmos_reason.jobs.platforms.slurm import script as slurm_script
from cosmos_reason.jobs.platforms.slurm.partitions import Nodes
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document, origins

RUN = str(bundle.ROOT / "scripts" / "run_with_transformers.py")
SEVERAL = {"platform": "docker", "docker_host": "unix:///none", "image": "x"}


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return site


def ranks(site, shards, replicas=1):
    change(
        site,
        "train",
        policy__parallelism__dp_shard_size=shards,
        policy__parallelism__dp_replicate_size=replicas,
    )


def planned(site, **fields):
    job, found = launch.plan(site.request(**fields))
    assert job, found
    return job


def errors(site, **fields):
    job, found = launch.plan(site.request(**fields))
    wrong = [one for one in found if one.severity == "error"]
    assert bool(job) == (not wrong)
    return wrong


def test_one_rank_is_started_as_it_is(site):
    command = planned(site, gpu_ids=[]).command
    assert command[1:3] == [RUN, "train"] and "--standalone" not in command


@pytest.mark.parametrize(("shards", "replicas"), [(2, 1), (1, 2), (2, 2)])
def test_several_ranks_are_started_on_the_node(site, shards, replicas):
    ranks(site, shards, replicas)
    command = planned(site, gpu_ids=[]).command
    place = command.index(RUN)
    assert command[1:place] == [
        *engines.TORCHRUN,
        *("--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={shards * replicas}"),
    ]
    assert command[place + 1 : place + 3] == ["train", "--config"]


def test_in_a_container_it_is_the_same(site):
    ranks(site, 4)
    job = planned(site, **SEVERAL, gpu_ids=["0", "1", "2", "3"])
    assert "--nproc-per-node=4" in job.command and "python3" in job.command
    assert job.command.index("torch.distributed.run") < job.command.index("train")
    assert "GPUs 0,1,2,3" in in_words.of_plan(job, site.request())


def test_an_evaluation_is_one_process_for_the_launcher(site):
    change(site, "evaluate", num_gpus=2)
    job = planned(site, action="evaluate", **SEVERAL, gpu_ids=["0", "1"])
    assert "torch.distributed.run" not in job.command


@pytest.mark.parametrize(
    ("shards", "given", "fix"),
    [(2, "0", "--gpu-ids 0,1"), (1, "4,5,6", "--gpu-ids 4"), (2, "0,1,2", "--gpu-ids 0,1")],
)
def test_as_many_gpus_as_ranks(site, shards, given, fix):
    """Where they are fewer, or a number that no node has."""
    ranks(site, shards)
    (wrong,) = errors(site, **SEVERAL, gpu_ids=given.split(","))
    assert wrong.id == "JOB-GPU-COUNT" and str(wrong.fix) == fix
    mended = str(wrong.fix).split()[1].split(",")
    assert planned(site, **SEVERAL, gpu_ids=mended).resources["gpu_ids"] == mended


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.parametrize(("shards", "given", "fewer"), [(1, "6,7", "6"), (2, "0,1,2,3", "0,1")])
def test_who_names_more_gpus_wants_them_used(site, shards, given, fewer, is_edited):
    """The fix is a command, after which the same launch has what it needs; a spec that somebody
    edited stays as it is."""
    ranks(site, shards)
    spec = site.root / "train.toml"
    named = given.split(",")
    if not is_edited:
        origins.write(spec, "train", "transformers", {"train.epoch": "template"})
    before = spec.read_text()
    (wrong,) = errors(site, **SEVERAL, gpu_ids=named)
    assert wrong.id == "JOB-GPU-COUNT" and f", --gpu-ids {fewer} so many" in wrong.message
    words = shlex.split(str(wrong.fix))
    done = run_script(words[0].removeprefix("scripts/"), *words[1:], cwd=site.root)
    assert done.returncode == 0, done.stderr
    assert (spec.read_text() == before) == is_edited
    there = {"spec_path": Path(words[words.index("-o") + 1])}
    assert planned(site, **SEVERAL, **there, gpu_ids=named).resources["gpu_ids"] == named


def test_a_retry_leaves_the_spec_of_its_job_alone(site):
    ranks(site, 1)
    (wrong,) = errors(site, **SEVERAL, gpu_ids=["0", "1"], retry_of="train-1")
    assert str(wrong.fix).endswith("--gpus-per-node 2 --nodes 1 -o spec.toml")


@pytest.mark.parametrize(
    ("visible", "count", "is_refused"),
    [(None, 1, True), ("3", 4, True), (None, 2, False), ("", 4, False), (None, 0, False)],
)
def test_ranks_do_not_share_a_gpu(site, monkeypatch, visible, count, is_refused):
    """Where there is none at all they train on the CPU."""
    ranks(site, 2)
    listed = "".join(f"GPU {n}: H100 (UUID: GPU-{n})\n" for n in range(count))
    monkeypatch.setattr(local, "_listed_gpus", lambda: listed)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    wrong = errors(site)
    assert [one.id for one in wrong] == ["JOB-GPU-COUNT"] * is_refused
    if is_refused:
        assert "or --gpu-ids none, on the CPU" in wrong[0].message
        assert "--gpus-per-node 1 --nodes 1 -o" in str(wrong[0].fix)
        assert not errors(site, gpu_ids=[])


def on_slurm(site, monkeypatch, **fields):
    slurm = launch.platforms.module("slurm")
    monkeypatch.setattr(slurm.cluster, "has_commands", lambda _: True)
    rows = [Nodes("gpu", True, True, None, 4, {"": 8}, "idle", 64, None)]
    monkeypatch.setattr(slurm.partitions, "ask", lambda _: rows)
    monkeypatch.setattr(slurm.partitions, "check", lambda *_: [])
    return planned(site, platform="slurm", **fields)


def test_on_nodes_of_slurm(site, monkeypatch):
    ranks(site, 4, 2)
    job = on_slurm(site, monkeypatch, nodes=2)
    assert {"--nnodes=2", "--nproc-per-node=4"} < set(job.command)
    assert "--standalone" not in job.command
    assert {"--nodes=2", "--gres=gpu:4"} < set(job.command)
    assert "2 nodes of 4 GPUs" in in_words.of_plan(job, site.request())
    # What each node adds behind the words of TORCHRUN.
    node = ["sh", str(ROOT / "scripts/in_container/slurm_node.sh"), str(site.root), "", "torchrun"]
    program = job.command[job.command.index(str(job.folder / slurm_script.BATCH)) + 1 :]
    variables = {"COSMOS_REASON_NODE_ADDRESSES": "10.0.0.1;10.0.0.2", "SLURM_NODEID": "1"}
    variables |= {"COSMOS_REASON_RENDEZVOUS_PORT": "8000", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*node, "0", "0", "echo", *program[1:]], env=variables, capture_output=True, text=True
    )
    assert "meet=torchrun" in slurm_script.text(job, {}, [])
    assert done.stdout.split() == [
        *("-P", "-m", "torch.distributed.run"),
        *("--node-rank=1", "--rdzv-backend=static", "--rdzv-endpoint=10.0.0.1:8000"),
        *program[4:],
    ]
    job = on_slurm(site, monkeypatch, nodes=2, gpu_ids=[])
    assert "gres" not in " ".join(job.command) and "--nproc-per-node=4" in job.command
    assert "2 nodes without GPUs" in in_words.of_plan(job, site.request())


def test_on_nodes_of_kubernetes(tmp_path):
    start = runpy.run_path(str(ROOT / "scripts/in_container/start_node.py"))["command"]
    words = ["python3", *engines.TORCHRUN, "--nnodes=2", "--nproc-per-node=4", "run.py", "train"]
    assert start(words, 1, ["10.0.0.1", "10.0.0.2"]) == [
        *("python3", "-P", "-m", "torch.distributed.run"),
        *("--node-rank=1", "--rdzv-backend=static", "--rdzv-endpoint=10.0.0.1:8000"),
        *words[4:],
    ]
    assert start(["cosmos-rl", "--config", "x"], 0, ["a", "b"])[:3] == [
        *("cosmos-rl", "--num-workers", "2"),
    ]


def test_the_spec_says_how_many(site):
    ranks(site, 4, 2)
    spec = document.load(site.root / "train.toml")
    case = Case("train", "transformers", spec, gpus_per_node=4, nodes=2)
    assert (case.ranks, case.needed_gpus, case.gpus) == (8, 8, 8)
    assert case.global_batch == 4 * 8
    assert Case("evaluate", "transformers", {"num_gpus": 3}).needed_gpus == 3
    json.dumps(planned(site, gpu_ids=[]).to_json())
