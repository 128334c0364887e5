"""Host memory of a node, as a sum of terms."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.estimate import gpu_memory, host_memory
from cosmos_reason.estimate.gpu_memory import GIB, Plan
from cosmos_reason.estimate.host_memory import Node

LARGE = gpu_memory.geometry("nvidia/Cosmos-Reason2-8B")
FULL = Plan(LARGE, 1, 1, 1, sharded_engine=False)
LORA = replace(FULL, lora_rank=16, lora_targets=("q_proj", "v_proj"))
WEIGHTS = LARGE.parameters * 2 / GIB  # in bfloat16


def total(plan, node):
    return sum(host_memory.terms(plan, node).values())


def test_weights_are_mapped_and_only_shards_wait_on_the_host():
    """As measured on CPUs: a whole copy of a model with 0.54e9 parameters took 2.03 GiB where
    bfloat16 was read as float32; mapped, nothing; two processes that shard it, half each."""
    unsaved = Node(8, saves=False)
    assert "weights while they are loaded" not in host_memory.terms(FULL, unsaved)
    sharded = host_memory.terms(replace(FULL, shards=8), unsaved)
    assert sharded["weights while they are loaded"] == pytest.approx(WEIGHTS, abs=0.1)
    two_groups = host_memory.terms(replace(FULL, shards=4), unsaved)
    assert two_groups["weights while they are loaded"] == pytest.approx(2 * WEIGHTS, abs=0.1)


def test_a_copy_is_made_by_every_process():
    copied = Node(8, saves=False, is_copied=True)
    full, lora = host_memory.terms(FULL, copied), host_memory.terms(LORA, copied)
    assert full["weights while they are loaded"] == pytest.approx(8 * 2 * WEIGHTS, abs=0.1)
    assert lora["weights while they are loaded"] == pytest.approx(8 * WEIGHTS, abs=0.1)


def test_an_exported_model_is_gathered_by_one_process():
    for plan in (FULL, replace(FULL, master=2)):
        for processes in (1, 8):
            found = host_memory.terms(plan, Node(processes))
            assert found["the model while it is exported"] == pytest.approx(WEIGHTS, abs=0.1)
    assert host_memory.terms(LORA, Node(1)).get("the model while it is exported", 0) < 1


def test_what_comes_at_another_time_is_not_added():
    node = Node(8, is_copied=True)
    alone = host_memory.terms(FULL, node)
    assert "the model while it is exported" not in alone, "8 copies are more"
    assert total(FULL, node) == pytest.approx(total(FULL, replace(node, saves=False)))


def test_offloaded_states_are_those_of_all_gpus_of_the_node():
    plan = replace(FULL, sharded_engine=True, states_on_host=True, shards=8)
    one = gpu_memory.host_states(plan)
    assert host_memory.terms(plan, Node(8))["offloaded states"] == pytest.approx(8 * one, abs=0.1)


SIZES = st.floats(0, 500)
NODES = st.builds(
    Node, st.integers(1, 8), st.integers(0, 16), SIZES, SIZES, SIZES, st.booleans(), st.booleans()
)
PLANS = st.sampled_from([FULL, LORA, replace(FULL, shards=4), replace(FULL, sharded_engine=True)])


@given(PLANS, NODES, st.integers(0, 8), SIZES)
def test_more_of_anything_takes_no_less(plan, node, readers, gib):
    needed = total(plan, node)
    assert needed >= node.processes * host_memory.PROCESS_GIB - 0.1
    rounding = 0.5
    for more in (
        {"readers": node.readers + readers},
        {"ready": node.ready + gib},
        {"frames": node.frames + gib},
        {"features": node.features + gib},
        {"processes": node.processes + 1},
        {"saves": True},
        {"is_copied": True},
    ):
        assert total(plan, replace(node, **more)) >= needed - rounding, more


@given(PLANS, NODES)
def test_all_that_is_kept_is_in_the_sum(plan, node):
    kept = node.ready + node.frames + node.features
    assert total(plan, node) >= kept + node.processes * host_memory.PROCESS_GIB - 0.5
