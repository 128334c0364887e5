import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.estimate import steps


def train(**changes):
    policy = {"dataloader_drop_last": changes.pop("drop_last", True)}
    return {
        "train_batch_per_replica": 4,
        "epoch": 1,
        "max_num_steps": None,
        "optm_warmup_steps": 0,
        "optm_warmup_start_factor": 0.0,
        "optm_decay_type": "none",
        "optm_decay_ratio": None,
        "optm_min_lr_factor": 0.0,
        "train_policy": policy,
    } | changes


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 16), st.booleans())
def test_steps_are_what_torch_deals(records, batch, ranks, drop_last):
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler = DistributedSampler(range(records), ranks, rank=0)
    expected = len(BatchSampler(sampler, batch, drop_last))
    assert steps.steps_per_epoch(records, batch, ranks, drop_last) == expected


def test_max_num_steps_cuts_the_run():
    assert steps.total_steps(100, train(epoch=3)) == 75
    assert steps.total_steps(100, train(epoch=3, max_num_steps=10)) == 10


def test_integer_warmup_is_steps_and_float_warmup_is_a_fraction():
    assert steps.warmup_steps(1, 540) == 1
    assert steps.warmup_steps(1.0, 540) == 540
    assert steps.warmup_steps(0.1, 540) == 54
    assert steps.warmup_steps(20.0, 540) == 20


@given(
    st.integers(2, 500), st.data(), st.sampled_from(["linear", "cosine", "sqrt"]), st.floats(0, 0.9)
)
def test_rate_rises_then_falls_and_stays_within_bounds(total, data, kind, floor):
    warmup = data.draw(st.integers(0, total))
    table = train(optm_warmup_steps=warmup, optm_decay_type=kind, optm_min_lr_factor=floor)
    factors = [steps.learning_rate_factor(step, total, table) for step in range(total)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert all(factor > 0 for factor in factors[1:])
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert all(factor >= floor for factor in factors[warmup:])


def test_decay_ratio_leaves_a_constant_stretch():
    table = train(optm_warmup_steps=10, optm_decay_type="linear", optm_decay_ratio=0.2)
    factors = [steps.learning_rate_factor(step, 100, table) for step in range(100)]
    assert factors[10:81] == [1.0] * 71
    assert factors[81] < 1.0


def test_warmup_starts_at_its_factor():
    table = train(optm_warmup_steps=4, optm_warmup_start_factor=0.5)
    factors = [steps.learning_rate_factor(step, 10, table) for step in range(5)]
    assert factors == pytest.approx([0.5, 2 / 3, 5 / 6, 1.0, 1.0])


@pytest.mark.parametrize(
    ("warmup", "printed"),
    [
        (2, "1 1 .992404 .969846 .933013 .883022 .821394 .75 .67101 .586824 .5 .413176"),
        (5, ".25 .5 .75 1 1 .989074 .956773 .904508 .834565 .75 .654508 .552264 .447736"),
    ],
)
def test_rates_of_a_real_run_of_cosmos_rl(warmup, printed):
    """What cosmos-rl 0.4.7 printed after each of its first steps of 20, each time the rate of the
    step to come."""
    table = train(optm_warmup_steps=warmup, optm_decay_type="cosine")
    seen = [float(text) for text in printed.split()]
    factors = [steps.learning_rate_factor(step, 20, table) for step in range(1, len(seen) + 1)]
    assert factors == pytest.approx(seen, abs=1e-6)
    assert steps.learning_rate_factor(0, 20, table) == 0.0
