"""The loss chart: what is read from metrics.jsonl, its ticks and its thinned curves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.base.findings import Failure
from cosmos_reason.pages import loss_chart


@given(st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(highest):
    marks = loss_chart.ticks(highest)
    assert marks[0] == 0
    assert 3 <= len(marks) <= 6
    assert marks[-1] <= highest * (1 + 1e-6)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 100)), min_size=1, max_size=2000))
def test_thinned_curves_keep_the_mean(points):
    thin = loss_chart.thinned(points)
    assert len(thin) <= loss_chart.CURVE_POINTS
    assert min(loss for _, loss in points) - 1e-6 <= min(loss for _, loss in thin)
    assert max(loss for _, loss in thin) <= max(loss for _, loss in points) + 1e-6


def test_a_curve_with_a_broken_line_inside_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "train/loss": 2}\nnonsense\n{"step": 2, "train/loss": 1}\n', encoding="utf-8"
    )
    with pytest.raises(Failure, match="EVAL-CURVE-LINE"):
        loss_chart.read_curve(path)
    path.write_text(
        '{"step": 1, "train/loss": NaN}\n{"step": 2, "train/loss": 1}\n[1]\n', encoding="utf-8"
    )
    assert loss_chart.read_curve(path)["train/loss"] == [(2.0, 1.0)]


def test_values_that_no_chart_can_show_are_counted():
    rows = [{"step": n, "train/loss": 1.0} for n in range(1, 5)] + [
        {"step": 4, "val/avg_loss": 2.0}
    ]
    assert loss_chart.not_finite(rows, loss_chart.LOSSES) == []
    rows[1]["train/loss"], rows[3]["train/loss"] = float("nan"), float("inf")
    (told,) = loss_chart.not_finite(rows, loss_chart.LOSSES)
    assert told.startswith("train/loss is NaN or infinite in 2 of 4 values, the first at step 2;")
