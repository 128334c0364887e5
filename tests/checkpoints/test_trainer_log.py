"""Metrics from the lines that cosmos-rl prints."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_site import LOG_PREFIX

from cosmos_reason.checkpoints import trainer_log
from cosmos_reason.jobs import progress
from cosmos_reason.jobs import record as jobs

SFT = (
    "Step: 3/60, Loss: 0.51234, Grad norm: 1.25000, Iteration time: 2.31s, "
    "optimizer/lr_model: 1.00000e-06"
)
REPLICAS = "Step: 4/9, Loss: 0.50000, Max Loss 0.70000, Grad norm: 1.00000, Iteration time: 2.00s."
GRPO = (
    "Step: 4/9, Reward Mean: 0.5123, Reward Std: 0.1000, Reward Max: 1.0000, Reward Min: 0.0000, "
    "Completion Length Mean: 20.00, Completion Length Max: 30.00, Average loss: -0.01234, "
    "Max loss: 0.10000, Learning rate: 1.00000e-06, Entropy: 0.10000, Effective Entropy: 0.20000, "
    "Grad Norm: 0.50000, KL Loss Avg: 0.00100, KL Loss Max: 0.00200, Iteration time: 9.10s."
)
REWARD = (
    "[Controller] Validation finished, average reward: 0.61, total rollouts: 20, max reward: 1.0, "
    "min reward: 0.0, std reward: 0.1 at step 20."
)
VALIDATION = "[SFT] Validation loss: 0.4321 for train step 20/60, epoch 1"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            SFT,
            {
                "step": 3,
                "total_steps": 60,
                "train/loss": 0.51234,
                "train/grad_norm": 1.25,
                "train/step_seconds": 2.31,
                "train/learning_rate": 1e-6,
            },
        ),
        (
            REPLICAS,
            {
                "step": 4,
                "total_steps": 9,
                "train/loss": 0.5,
                "train/grad_norm": 1.0,
                "train/step_seconds": 2.0,
            },
        ),
        (
            GRPO,
            {
                "step": 4,
                "total_steps": 9,
                "train/loss": -0.01234,
                "train/reward_mean": 0.5123,
                "train/entropy": 0.2,
                "train/kl": 0.001,
                "train/reward_std": 0.1,
                "train/completion_length": 20.0,
                "train/grad_norm": 0.5,
                "train/update_seconds": 9.1,
                "train/learning_rate": 1e-6,
            },
        ),
        (VALIDATION, {"step": 20, "total_steps": 60, "val/avg_loss": 0.4321}),
        (REWARD, {"step": 20, "val/reward_avg": 0.61}),
    ],
)
def test_lines_of_every_trainer(line, expected):
    assert trainer_log.metrics(line) == expected
    found = trainer_log.metrics(LOG_PREFIX + line)
    assert found.pop("time") % 60 == pytest.approx(0.123) and found == expected


def test_a_diverged_run_is_seen():
    found = trainer_log.metrics("Step: 1/9, Loss: nan, Grad norm: inf, Iteration time: 2.31s.")
    assert math.isnan(found["train/loss"]) and math.isinf(found["train/grad_norm"])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Training epoch 1/3",
        "Step: one/two, Loss: 1",
        "Saving checkpoint at step 3...",
        "2026-13-45 12:00:00,000 Step: 1/2, Loss: 1",
        f"Step: {'9' * 5000}/2, Loss: 1",
    ],
)
def test_other_lines_are_none(line):
    assert trainer_log.metrics(line) is None


@given(st.text())
def test_any_text_is_read(text):
    trainer_log.metrics(text)
    trainer_log.metrics(f"Step: 1/2, {text}")


def test_progress_comes_from_the_log_where_there_are_no_metrics(tmp_path):
    (tmp_path / jobs.LOG).write_text(
        f"{LOG_PREFIX}{SFT}\nother\n[SFT] Validation loss: 0.5 for train step 3/60, epoch 1\n"
    )
    found = progress.newest(tmp_path)
    assert (found["step"], found["total_steps"], found["val/avg_loss"], found["train/loss"]) == (
        3,
        60,
        0.5,
        0.51234,
    )
    lines, offset = progress.read_metrics(tmp_path)
    assert len(lines) == 2 and progress.read_metrics(tmp_path, offset) == ([], offset)
    (tmp_path / jobs.METRICS).write_text('{"step": 1, "total_steps": 2}\n')
    assert progress.newest(tmp_path) == {"step": 1, "total_steps": 2}


def test_metrics_that_come_after_other_log_lines_are_all_seen(tmp_path):
    (tmp_path / jobs.LOG).write_text("loading the model, which takes a while\n")
    lines, offset = progress.read_metrics(tmp_path)
    (tmp_path / jobs.METRICS).write_text(
        '{"step": 1, "total_steps": 2}\n{"step": 2, "total_steps": 2}\n'
    )
    assert not lines and [line["step"] for line in progress.read_metrics(tmp_path, offset)[0]] == [
        1,
        2,
    ]
