"""Host memory of a node against that of the machine."""

import os

import pytest
from support_specs import changed, write_facts

from cosmos_reason.checkpoints import safetensors_files
from cosmos_reason.estimate import gpu_memory, host_memory
from cosmos_reason.jobs import run_size
from cosmos_reason.jobs.platforms.gpus import Gpu
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.preflight import PreflightOptions
from cosmos_reason.preflight import memory as check
from cosmos_reason.remote.machine import Answer
from cosmos_reason.rules.case import Case

OPTIONS = "custom__transformers_engine__"
LORA = {"policy__lora__r": 8, "policy__lora__target_modules": ["q_proj"]}


class Machine:
    """One with so much memory, as /proc tells."""

    def __init__(self, gib):
        self.gib = gib

    def call(self, *words):
        assert words == ("cat", "/proc/meminfo")
        kib = round(self.gib * 2**20)
        return Answer(0, f"MemTotal:       {kib} kB\nMemFree: 1 kB\n") if self.gib else Answer(1)


def launch(gpus=1, gib=128, engine="transformers", facts=None, **changes):
    model = {"policy__model_name_or_path": "nvidia/Cosmos-Reason2-8B"}
    table = changed("train", {k.replace("__", "."): v for k, v in (model | changes).items()})
    case = Case("train", engine, table, facts)
    made = Preflight("docker", PreflightOptions(), 0, engine, "", case, gpus_per_node=gpus)
    made.machine = Machine(gib)
    made.result["prediction"] = {}
    return made


def checked(made):
    plan = gpu_memory.of_spec(made.case, 1000, 900, 100)
    return list(check.host_memory_findings(made, plan)), made.result["prediction"]


def test_ranks_that_fill_a_host_are_told_before_the_launch():
    """8 processes, and the model that the first of them exports."""
    sharded = {"policy__parallelism__dp_shard_size": 8}
    (told,), prediction = checked(launch(8, 40, **sharded))
    assert (told.id, told.severity) == ("PRE-HOST-MEMORY", "error")
    assert "the model while it is exported 16.3" in told.message and "got 40 GiB" in told.message
    assert not told.fix and "--tuning lora" in told.message, "which trains otherwise is a choice"
    assert prediction["host_gib"] == pytest.approx(sum(prediction["host_terms"].values()), abs=0.1)
    needed = prediction["host_gib"]
    (told,), _ = checked(launch(8, needed * 1.05, **sharded))
    assert told.severity == "warning", "little is left"
    assert not checked(launch(8, needed * 1.2, **sharded))[0]
    assert not checked(launch(8, 40, **LORA))[0]


def node_of(made):
    return run_size.node_of(made.case, made.gpus_per_node, made.platform, made.site)


def test_the_memory_of_this_machine_is_no_matter_where_flags_describe_another():
    made = launch(8, 40, policy__parallelism__dp_shard_size=8)
    made.options = PreflightOptions(target_gpu_count=8, target_gpu_memory_gb=80)
    found, prediction = checked(made)
    assert not found and prediction["host_gib"] > 40
    made.driver.gpus.append(Gpu(0, "A100 80GB", 80.0))  # the machine is the one described
    assert [one.id for one in checked(made)[0]] == ["PRE-HOST-MEMORY"]


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({OPTIONS + "frame_cache_gib": 300.0}, "frame_cache_gib=0"),
        ({OPTIONS + "feature_cache_gib": 300.0}, "feature_cache_gib=0"),
    ],
)
def test_caches_count_once_for_all_processes(changes, fix):
    for gpus in (1, 8):
        (told,), prediction = checked(launch(gpus, 128, **LORA, **changes))
        assert 300 <= prediction["host_gib"] < 330 and str(told.fix).endswith(fix)


def test_frames_take_no_more_than_there_are(tmp_path):
    facts = write_facts(tmp_path, 40)
    made = launch(facts=facts, **{OPTIONS + "frame_cache_gib": 300.0}, **LORA)
    (size,) = {record.vision for record in made.case.tokens}
    frames = 40 * size * 2 * 32 * 32 * 3 / 2**30
    assert node_of(made).frames == pytest.approx(frames)
    small = launch(facts=facts, **{OPTIONS + "frame_cache_gib": frames / 2}, **LORA)
    assert node_of(small).frames == pytest.approx(frames / 2)


def test_readers_are_no_more_than_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    facts = write_facts(tmp_path, 40)
    made = launch(2, facts=facts, train__train_policy__dataloader_num_workers=16)
    elsewhere = node_of(made)
    made.platform = "local"
    here = node_of(made)
    assert (elsewhere.readers, here.readers) == (16, 4)
    assert here.ready == pytest.approx(elsewhere.ready / 4) and here.ready > 0


@pytest.mark.parametrize(
    ("platform", "gib"), [("docker", 0), ("slurm", 8), ("kubernetes", 8), ("local", 8)]
)
def test_of_a_machine_that_is_not_known_nothing_is_said(platform, gib):
    """The number is in the result for whoever asks a scheduler for it."""
    made = launch(8, gib)
    made.platform = platform
    found, prediction = checked(made)
    assert prediction["host_gib"] > 30
    is_known = platform == "local" and prediction["host_gib"] > 0.9 * check._memory_of_machine(made)
    assert bool(found) == is_known


@pytest.mark.parametrize("platform", ["slurm", "kubernetes"])
@pytest.mark.parametrize(
    ("memory", "is_enough"), [(None, True), ("0", True), ("40G", False), ("1T", True), ("9", False)]
)
def test_what_a_scheduler_is_asked_for(platform, memory, is_enough):
    made = launch(8)
    made.platform, made.options = platform, PreflightOptions(memory=memory)
    found, prediction = checked(made)
    assert [one.where for one in found] == ["--memory"] * (not is_enough)
    for told in found:
        assert told.severity == "warning" and f"got {memory}, " in told.message
        made.options = PreflightOptions(memory=told.fix.flags["--memory"])
        assert int(made.options.memory.removesuffix("G")) > prediction["host_gib"]
        assert not checked(made)[0]


@pytest.mark.parametrize(
    ("stored", "lora", "is_copied"),
    [("BF16", True, False), ("BF16", False, False), ("F32", False, False), ("F32", True, True)],
)
def test_a_model_in_another_precision_is_copied(tmp_path, stored, lora, is_copied):
    size = 4 * safetensors_files.BITS[stored] // 8
    header = safetensors_files.header_bytes([("w", stored, (2, 2), size)])
    (tmp_path / safetensors_files.SINGLE).write_bytes(header + bytes(size))
    tuning = LORA if lora else {}
    made = launch(policy__model_name_or_path=str(tmp_path), **tuning)
    assert node_of(made).is_copied is is_copied


def test_what_cosmos_rl_offloads_counts():
    offloaded = {"train__fsdp_offload": True, "policy__parallelism__dp_shard_size": 8}
    (told,), prediction = checked(launch(8, 128, "cosmos-rl", **offloaded))
    plan = gpu_memory.of_spec(launch(8, engine="cosmos-rl", **offloaded).case, 1000, 900, 100)
    states = 8 * gpu_memory.host_states(plan)
    assert prediction["host_terms"]["offloaded states"] == pytest.approx(states, abs=0.1)
    assert told.fix.changes["train.fsdp_offload"] is False
    assert set(prediction["host_terms"]) <= {
        "offloaded states", "processes", "records read ahead", "a copy of the state to be saved"
    }  # fmt: skip
    assert prediction["host_terms"]["processes"] >= 8 * host_memory.PROCESS_GIB


@pytest.mark.parametrize(
    ("shards", "gpus", "gib"), [(1, 1, 98), (8, 8, 98), (16, 8, 49), (2, 8, 98)]
)
def test_cosmos_rl_copies_what_it_saves_in_the_background(shards, gpus, gib):
    """Weights and two moments of 8.8e9 parameters in float32, of one replica."""
    name = "a copy of the state to be saved"
    sharded = {"policy__parallelism__dp_shard_size": shards}
    (told,), prediction = checked(launch(gpus, 40, "cosmos-rl", **sharded))
    assert prediction["host_terms"][name] == pytest.approx(gib, abs=1.5)
    assert told.fix.changes == {"train.ckpt.save_mode": "sync"}
    for changes in ({"train__ckpt__save_mode": "sync"}, {"train__ckpt__enable_checkpoint": False}):
        assert (
            name
            not in checked(launch(gpus, 40, "cosmos-rl", **sharded, **changes))[1]["host_terms"]
        )
    assert name not in checked(launch(gpus, 400, **sharded))[1]["host_terms"]
