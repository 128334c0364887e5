"""Several processes of one training: what each takes, and what they agree on."""

import pytest
import torch
from forked import together
from hypothesis import given
from hypothesis import strategies as st
from training import run, short_training

from cosmos_reason.base.findings import Failure, bad_input
from cosmos_reason.engine.train import ranks as module
from cosmos_reason.engine.train import setup
from cosmos_reason.engine.train.ranks import Ranks

SIZE = "policy.parallelism.dp_shard_size"


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # as some schedulers set it, without a rank
    monkeypatch.delenv("RANK", raising=False)
    assert Ranks.from_environment() == module.ALONE
    told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert Ranks.from_environment() == Ranks(rank=3, world=4, local=1, on_node=2)


def test_a_spec_for_several_processes_is_refused_by_one(tiny_model, dataset, tmp_path):
    table = short_training(tiny_model, dataset, tmp_path / "out")
    with pytest.raises(Failure, match=r"ENGINE-WORLD-SIZE.*got 1 processes, .* = 6") as caught:
        run(table, policy__parallelism__dp_shard_size=3, policy__parallelism__dp_replicate_size=2)
    assert caught.value.exit_code == 2
    assert caught.value.findings[0].fix.changes[SIZE] == 1
    assert not (tmp_path / "out").exists()


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_the_ranks_take_each_record_of_a_batch_once(records, batch, world, drop_last):
    train = {
        "train_batch_per_replica": batch,
        "train_policy": {"dataloader_drop_last": drop_last},
        "epoch": 1,
        "max_num_steps": None,
    }
    size = batch * world
    try:
        per_epoch, total = setup.plan_steps(records, train, world)
    except Failure as failure:
        assert drop_last and failure.findings[0].fix.changes  # a batch that some step would have
        return
    assert per_epoch == total
    taken = []
    for first in range(0, per_epoch * size, size):
        shares = [
            Ranks(rank, world).share(range(records)[first : first + size]) for rank in range(world)
        ]
        assert max(map(len, shares)) <= batch
        taken += sorted(number for share in shares for number in share)
    assert taken == list(range(len(taken)))
    assert len(taken) == records if not drop_last else records - len(taken) < size


def test_gradients_of_one_type_share_buckets(monkeypatch):
    monkeypatch.setattr(module, "BUCKET", 10)
    sizes = [(6, torch.float32), (4, torch.float32), (1, torch.float32), (3, torch.bfloat16)]
    tensors = [torch.zeros(size, dtype=dtype) for size, dtype in [*sizes, (50, torch.bfloat16)]]
    told = [[len(part) for part in bucket] for bucket in module._buckets(tensors)]
    assert told == [[6, 4], [1], [3], [50]]
    assert list(module._buckets([])) == []


class Kind(Failure):
    """A failure of a kind of its own."""


def failing():
    raise bad_input("TEST-BAD", "here", "got nothing")


def caught(call, *given):
    with pytest.raises(Failure) as failure:
        call(*given)
    return [[found.id for found in failure.value.findings], failure.value.exit_code]


def agree(_rank):
    """What each of two ranks gets of all that they do together."""
    ranks = Ranks.from_environment().joined(torch.device("cpu"))
    parts = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    parts[0].grad = torch.full((2,), 1.0 + ranks.rank)
    if ranks.is_first:
        parts[1].grad = torch.ones(2)
    ranks.sum_gradients(parts)

    def only_on_second():
        return failing() if ranks.rank == 1 else "fine"

    def kind_on_second():
        if ranks.rank == 1:
            raise Kind([], 3)

    told = {
        "gradients": [part.grad is not None and part.grad.tolist() for part in parts],
        "sum": ranks.sum(ranks.rank + 1),
        "sum of numbers": ranks.sum(0.5),
        "rounds": list(ranks.rounds(iter("abc"[: 1 + 2 * ranks.rank]))),
        "merged": sorted(ranks.merged({ranks.rank: "x"})),
        "by_first": ranks.by_first(lambda: ranks.rank),
        "by_first fails": caught(ranks.by_first, failing),
        "agreed": ranks.agreed(lambda: ranks.rank),
        "agreed fails": caught(ranks.agreed, only_on_second),
        "all fail": caught(ranks.agreed, failing),
        "first of node": ranks.first_of_node_first(lambda: ranks.rank),
    }
    with pytest.raises(Kind):
        ranks.agreed(kind_on_second)
    ranks.leave()
    return told


def test_two_processes_agree(tmp_path):
    first, second = (told for told, _ in together(agree, tmp_path))
    alike = {
        "gradients": [[3.0, 3.0], [1.0, 1.0], False],
        "sum": 3,
        "sum of numbers": 1.0,
        "merged": [0, 1],
        "by_first": 0,
    }
    for told in (first, second):
        assert {key: told[key] for key in alike} == alike
    assert (first["rounds"], second["rounds"]) == (["a", None, None], ["a", "b", "c"])
    for key in ("by_first fails", "agreed fails", "all fail"):
        assert first[key] == [["TEST-BAD"], 2], key
        assert second[key] == [[], 2], "rank 0 tells it"
    for key in ("agreed", "first of node"):
        assert (first[key], second[key]) == (0, 1)
