"""What is noted of a reinforcement learning, and the bounds that end it."""

import json
from functools import partial

import grpo_run
import jsonschema
import pytest
from forked import Forked
from support import ROOT

from cosmos_reason.checkpoints import trainer_log
from cosmos_reason.engine.cosmos_rl import watching


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0),
        ("A", 0),
        ("the red circle moves to the left side", 0),
        ("left left left left left left", 2 / 3),
        ("one two three four five " * 40, 1 - 5 / 197),
    ],
)
def test_repetition_is_the_share_of_runs_that_stood_there_before(text, share):
    assert watching.repetition(text) == pytest.approx(share)


def test_a_completion_is_reported_with_its_group_and_its_part_of_the_time(tmp_path):
    rollouts = watching.Rollouts()
    rollouts.begin(grpo_run.prompts(), str(tmp_path))
    rollouts.generated([3, 4], 4, 16.0)
    rollouts.transferred(1.5)
    teaches = grpo_run.payload(3, 0, ["B", "A", "B", "A or B"], [1.0, 0.0, 1.0, 0.0])
    flat = grpo_run.payload(4, 0, ["A"] * 4, [0.0] * 4)
    for one in (teaches, flat):
        rollouts.scored(one)
    expected = {"groups_teaching": 1.0, "repetition": 0.0, "generation_seconds_sum": 2.0}
    expected["transfer_seconds_sum"] = 0.0
    first = expected | {"transfer_seconds_sum": 1.5}  # counted once in the sum of a step
    assert teaches.report_metrics == [first, expected, expected, expected]
    assert flat.report_metrics == [expected | {"groups_teaching": 0.0}] * 4
    (path,) = (tmp_path / "groups").iterdir()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kinds"] for line in kept] == [["best", "worst"], ["worst"]]
    assert kept[0]["completions"][3] == {"text": "A or B", "reward": 0.0}
    assert (kept[1]["record"], kept[1]["gt"], kept[1]["reward_mean"]) == ("clip-7", "B", 0.0)


def test_a_step_is_a_line_of_metrics_and_of_the_log(tmp_path, capsys):
    notes = watching.Steps()
    notes.begin(grpo_run.spec(tmp_path, kl=0.0))
    notes.note(grpo_run.report(3, 60), 3)
    notes.note({"val/reward_avg": 0.4}, 3)  # a validation, which is not ours
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    written = json.loads(line)
    assert "train/step_seconds" not in written  # nobody saw the step before
    schema = json.loads((ROOT / "schemas/metrics_line.schema.json").read_text())
    jsonschema.validate(written, schema)
    assert (written["step"], written["total_steps"]) == (3, 60)
    assert written["train/entropy"] == pytest.approx(0.88)  # of completions, not of prompts
    assert "train/kl" not in written  # which nobody measured
    told = trainer_log.metrics(capsys.readouterr().err)
    assert told["step"] == 3 and told["train/groups_teaching"] == pytest.approx(0.78)
    assert told["train/generation_seconds"] == 2.4
    assert told["train/update_seconds"] == pytest.approx(written["train/update_seconds"], abs=0.005)


def test_a_step_lasts_from_the_step_before_not_as_long_as_its_update(tmp_path):
    notes = watching.Steps()
    notes.begin(grpo_run.spec(tmp_path))
    for step in (1, 2, 3):
        notes.note(grpo_run.report(step, 60, **{"train/iteration_time": 1e6}), step)
    lines = [json.loads(one) for one in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["train/update_seconds"] for line in lines] == [1e6] * 3
    times = [line["time"] for line in lines]
    assert [line["train/step_seconds"] for line in lines[1:]] == pytest.approx(
        [times[1] - times[0], times[2] - times[1]], abs=0.002
    )


def drift(run, name, values, stop):
    """Note 40 steps, of which each ten have one of the values."""
    notes = watching.Steps()
    notes.begin(grpo_run.spec(run, **stop))
    for step in range(1, 41):
        if step in (10, 20, 30):
            (run / "safetensors" / f"step_{step}").mkdir(parents=True)
        notes.note(grpo_run.report(step, 40, **{name: values[(step - 1) // 10]}), step)
    return 0


def drifting(run, name, values, **stop):
    """The exit code of a process that drifts, and what it says."""
    run.mkdir(exist_ok=True)
    code = Forked(partial(drift, run, name, values, stop), run / "said").wait()
    return code, (run / "said").read_text()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("train/kl_loss_avg", "custom.stop.kl", 0.6),
        ("train/repetition", "custom.stop.repetition", 0.7),
    ],
)
def test_a_run_ends_that_stays_beyond_a_bound_and_names_its_best_checkpoint(
    tmp_path, name, key, value
):
    code, said = drifting(tmp_path, name, [0.0, value, value, 0.0])
    assert code == 1
    assert "error: ENGINE-DRIFT" in said and f"above 0.5 ({key})" in said
    assert "step_10 earned most of the checkpoints before" in said
    assert "--set train.optm_lr=5e-06" in said
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 30


def test_bounds_are_those_of_the_spec_and_a_step_below_begins_anew(tmp_path):
    values = [0.6, 0.0, 0.6, 0.0]
    name = "train/repetition"
    ends = [
        drifting(tmp_path / "a", name, values),
        drifting(tmp_path / "b", name, values, steps=10),
        drifting(tmp_path / "c", name, values, steps=10, repetition=0.9),
    ]
    assert [code for code, _ in ends] == [0, 1, 0]
