"""Speeds that were measured, and what they say of other trainings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.base import bundle
from cosmos_reason.estimate import speed

WAYS = [speed.COSMOS_RL, speed.EMBEDDED, speed.COMPILED]
MEASURED = bundle.skill_info()["measured_speed"]["training"]
MANY = 1e6  # tokens of a pass


@pytest.mark.parametrize("way", WAYS)
def test_what_was_measured_is_what_is_predicted(way):
    for tokens, (least, most) in MEASURED[way]["tokens_per_second"].items():
        assert speed.of_training(way, tokens, MANY) == pytest.approx((least, most))


@pytest.mark.parametrize(
    ("way", "tokens", "seen"),
    [(speed.COSMOS_RL, 850, 1640), (speed.EMBEDDED, 850, 3844), (speed.COMPILED, 850, 6804)],
)
def test_a_short_record_alone_in_its_pass_is_slow(way, tokens, seen):
    """benchmarks/RESULTS.md and the measurements before records were packed."""
    assert speed.of_training(way, tokens, tokens) == pytest.approx((seen, seen), rel=0.05)


@given(st.sampled_from(WAYS), st.floats(1, 50_000), st.floats(1, 50_000), st.floats(1, 10))
def test_no_speed_is_beyond_what_was_seen(way, record, in_pass, more):
    table = MEASURED[way]
    least, most = speed.of_training(way, record, in_pass)
    assert 0 < least <= most <= max(fast for _, fast in table["tokens_per_second"].values())
    assert in_pass / most >= table["pass_seconds"] * (1 - 1e-9)
    fuller = speed.of_training(way, record, in_pass * more)
    assert least <= fuller[0] and most <= fuller[1], "a fuller pass is no slower"


@given(st.floats(1, 100_000))
def test_compiling_and_packing_are_never_foretold_as_slower(record):
    slow, eager, compiled = (speed.of_training(way, record, max(record, 8192)) for way in WAYS)
    assert slow[1] < eager[0] <= eager[1] < compiled[0]


@given(st.integers(1, 64))
def test_several_gpus_keep_a_part_of_their_speed(gpus):
    together = gpus * speed.of_each(gpus)
    assert together <= gpus and together > 0.8 * gpus
    assert speed.of_each(1) == 1 and 2 * speed.of_each(2) == pytest.approx(1.7)


def test_another_size_or_gpu_is_told_apart():
    assert speed.is_of_measured_size(8.0) and speed.is_of_measured_size(8.8)
    assert not speed.is_of_measured_size(2.1) and not speed.is_of_measured_size(32.0)
    assert speed.is_measured_gpu("NVIDIA H100 80GB HBM3")
    assert not speed.is_measured_gpu("NVIDIA H100 NVL")
    assert not speed.is_beyond_measured(speed.COMPILED, 7330)
    assert speed.is_beyond_measured(speed.COMPILED, 20_000)


@pytest.mark.parametrize(
    ("together", "seen"), [(1, 0.338), (16, 0.650), (32, 1.286), (64, 2.27), (64, 2.31)]
)
def test_a_batch_of_questions_takes_what_it_took(together, seen):
    """benchmarks/RESULTS.md: clips of 869 tokens, eight tokens answered; the model alone."""
    assert speed.of_answers(together, 869, 8) == pytest.approx(seen, rel=0.2)


@given(st.integers(1, 256), st.floats(1, 20_000), st.floats(1, 4096), st.integers(0, 64))
def test_more_questions_or_longer_ones_take_no_less(together, tokens, answer, more):
    seconds = speed.of_answers(together, tokens, answer)
    assert seconds <= speed.of_answers(together + more, tokens, answer)
    assert seconds <= speed.of_answers(together, tokens + more, answer)
    assert seconds <= speed.of_answers(together, tokens, answer + more)
    assert seconds / together >= speed.of_answers(together + 256, tokens, answer) / (
        together + 256
    ) * (1 - 1e-9), "together is no slower"
