"""What a process of cosmos-rl does when it fails, in place of whose package stands nothing."""

import contextlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

from cosmos_reason.base.findings import Failure, bad_input, outside
from cosmos_reason.engine.cosmos_rl import entry as cosmos_rl_entry
from cosmos_reason.engine.cosmos_rl import patches as cosmos_rl_patches


@pytest.mark.parametrize("role", ["Policy", "Rollout"])
@pytest.mark.parametrize(
    "problem, told",
    [
        (bad_input("REWARD-FILE-RAISES", "own.py", "got 1"), "error: REWARD-FILE-RAISES own.py"),
        (RuntimeError("no GPUs found"), "RuntimeError: no GPUs found"),
    ],
)
def test_a_replica_that_fails_ends_the_job(role, problem, told, monkeypatch, capsys):
    monkeypatch.setenv("COSMOS_ROLE", role)
    with pytest.raises(SystemExit) as ended, cosmos_rl_entry.ending_all():
        raise problem
    assert ended.value.code == cosmos_rl_entry.ENDS_ALL
    seen = capsys.readouterr().err
    assert told in seen and ("Traceback" in seen) == isinstance(problem, RuntimeError)


def test_a_controller_that_fails_ends_with_its_own_code(monkeypatch):
    monkeypatch.setenv("COSMOS_ROLE", "Controller")
    with pytest.raises(SystemExit) as ended, cosmos_rl_entry.ending_all():
        raise outside("DATA-MEDIA-BREAKING", "a.mp4", "got 2")
    assert ended.value.code == 3
    with pytest.raises(RuntimeError), cosmos_rl_entry.ending_all():
        raise RuntimeError


def test_a_process_that_does_not_fail_ends_as_it_likes(monkeypatch):
    monkeypatch.setenv("COSMOS_ROLE", "Policy")
    with cosmos_rl_entry.ending_all():
        pass
    with pytest.raises(SystemExit) as ended, cosmos_rl_entry.ending_all():
        raise SystemExit(0)
    assert ended.value.code == 0


@pytest.mark.parametrize(
    "world, group, rank, ranks, told_group, told_ranks",
    # pp, dp_shard, cp, tp; two replicas of one shard, of two, and one replica of two.
    [
        (2, [1, 1, 1, 1], 1, [0, 0, 0, 0], [1, 2, 1, 1], [0, 1, 0, 0]),
        (4, [1, 2, 1, 1], 3, [0, 1, 0, 0], [1, 4, 1, 1], [0, 3, 0, 0]),
        (2, [1, 2, 1, 1], 1, [0, 1, 0, 0], [1, 2, 1, 1], [0, 1, 0, 0]),
    ],
)
def test_ranks_of_replicas_are_told_apart(
    monkeypatch, world, group, rank, ranks, told_group, told_ranks
):
    class APIClient:
        def register(self, **named):
            self.told = named

    client = ModuleType("cosmos_rl.dispatcher.api.client")
    client.APIClient = APIClient
    for name in ("cosmos_rl", "cosmos_rl.dispatcher", "cosmos_rl.dispatcher.api"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, client.__name__, client)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("WORLD_SIZE", str(world))
    assert "dp_replicate_size" in cosmos_rl_patches.count_replicas()
    one, names = APIClient(), ["pp", "dp_shard", "cp", "tp"]
    one.register(mesh_names=names, ranks=ranks, group_size=group, global_rank=rank, role="POLICY")
    assert (one.told["group_size"], one.told["ranks"]) == (told_group, told_ranks)
    assert one.told["role"] == "POLICY" and one.told["global_rank"] == rank


@pytest.mark.parametrize(
    "grown, freed, counted, free",
    # GiB that the GPU took beside torch in the meantime, of which 7.8 were the policy's (measured).
    [(8.4, 0.0, 1.0, 80.0), (0.4, 0.0, 0.4, 80.0), (0.4, 9.0, 0.4, 100.0)],
)
def test_vllm_beside_a_policy_counts_its_own_memory(monkeypatch, grown, freed, counted, free):
    @contextlib.contextmanager
    def memory_profiling(baseline, weights_memory=0):
        found = SimpleNamespace(non_torch_increase=None, after_profile=SimpleNamespace())
        yield found
        found.non_torch_increase = grown * 2**30
        found.after_profile.free_memory = (100 + freed if freed else 80) * 2**30
        found.weights = weights_memory

    worker = ModuleType("vllm.v1.worker.gpu_worker")
    worker.memory_profiling = memory_profiling
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.worker"].gpu_worker = worker
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_worker", worker)
    assert "not the policy's" in cosmos_rl_patches.share_gpu()
    before = SimpleNamespace(free_memory=100 * 2**30)
    with worker.memory_profiling(before, weights_memory=7) as found:
        assert found.non_torch_increase is None
    assert found.non_torch_increase == counted * 2**30 and found.weights == 7
    assert found.after_profile.free_memory == free * 2**30


def test_a_reward_that_knows_right_answers_only_is_found_before_a_model_is_loaded(
    monkeypatch, tmp_path
):
    own = tmp_path / "own.py"
    own.write_text(
        "def reward(question, gt, response):\n    return 1.0 if gt == response else None\n"
    )
    policy = {"type": "grpo", "reward_function": [str(own)]}
    spec = {
        "train": {"train_policy": policy, "local_dataset": True},
        "rollout": {"max_response_length": 8},
    }
    asked = SimpleNamespace(questions=[SimpleNamespace(text="Open?", gt="yes")])
    monkeypatch.setattr(cosmos_rl_entry.conversations, "of_spec", lambda *_: asked)
    monkeypatch.setattr(cosmos_rl_entry.conversations, "missing_media", lambda _: [])
    monkeypatch.setattr(cosmos_rl_entry, "_is_controller", lambda: True)
    with pytest.raises(Failure, match="returned None for the response ''"):
        cosmos_rl_entry._opened(spec, "train_dataset")
