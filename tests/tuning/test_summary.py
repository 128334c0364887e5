"""What is told of a study, as text and as a page."""

import shutil

import pytest
import scoring
from study_world import add, ended_job, new_study, page_of, ran, seen

from cosmos_reason.evaluation import comparison
from cosmos_reason.tuning import study, summary


def test_a_study_that_was_moved_finds_its_checkpoint(tmp_path):
    made = new_study(tmp_path / "old", "lr=1e-6..1e-4")
    add(made, 0.1), add(made, 0.2, checkpoint="trials/0001/jobs/x")
    (made.trial_folder(1) / "jobs/x").mkdir(parents=True)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    moved = study.open_or_begin(tmp_path / "new")
    checkpoint = tmp_path / "new/trials/0001/jobs/x"
    assert seen(moved)["best"]["checkpoint"] == str(checkpoint)
    checkpoint.rmdir()
    assert seen(moved)["best"]["checkpoint"] is None


def test_a_base_model_that_wins_is_said(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    for objective in (0.9, 0.5, 0.6):
        add(made, objective)
    ran(made, trials=2)
    (told,) = summary.verdict(made := study.open_or_begin(tmp_path), seen(made))
    assert (told.id, told.severity) == ("TUNE-BASE-WINS", "warning")
    told = summary.text(made, seen(made))
    assert "the untouched model reaches 0.9: no training is better" in told, "beside the best"
    text = page_of(made)
    assert "no training is better</h1>" in text and "best of 2 trainings that ended well" in text


def test_there_is_no_verdict_while_a_trial_runs(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", ended="3 of 3 trainings")
    add(made, 0.9), add(made, 0.5), add(made)
    found = seen(made)
    assert summary.verdict(made, found) == [] and found["ended"] == ""
    with study.owned(tmp_path):
        assert "so far none is better; 1 running" in summary.text(made, seen(made))
    assert "no training is better so far</h1>" in page_of(made)
    made.write(made.trial(2) | {"state": study.COMPLETE, "objective": 0.95})
    assert "ended: 3 of 3 trainings" in summary.text(made, found := seen(made))
    assert summary.verdict(made, found) == []
    made.plan["ended"] = ""
    assert "so far trial 2 is the best; none running" in summary.text(made, seen(made))
    del made.plan["ended"]
    assert "ended: 2 trainings" in summary.text(made, seen(made)), (
        "begun before the reason was noted"
    )


def test_trials_that_a_killed_run_left_are_told_from_those_that_somebody_drives(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", ended="")
    add(made), add(made)
    assert seen(made)["left_behind"] == 2
    assert "2 left by a run that ended: `run` continues it" in summary.text(made, seen(made))
    with study.owned(tmp_path):
        assert seen(made)["left_behind"] == 0
        assert "; 2 running" in summary.text(made, seen(made))


@pytest.mark.parametrize("budget, why", [
    ({"trials": 2}, "2 of 2 trainings"),
    ({"trials": 2, "target": 0.9}, "2 of 2 trainings; target 0.9 not reached (best 0.1667)"),
    ({"trials": 9, "target": 0.1}, "2 of 9 trainings; target 0.1 reached (best 0.1667)"),
    ({"trials": 9, "hours": 1, "worked_seconds": 3600}, "2 of 9 trainings; 1 hours used"),
    ({"trials": 9}, "2 of 9 trainings; nothing is left to try"),
])  # fmt: skip
def test_why_a_study_ended_is_written_and_said(tmp_path, budget, why):
    made = new_study(tmp_path, "batch_size=[2,4]")
    for objective in (0, 0.125, 1 / 6):
        add(made, objective)
    made = ran(made, **budget)
    assert made.plan["ended"] == why and f"ended: {why}\n" in summary.text(made, seen(made)) + "\n"
    assert f"Ended: {why}." in page_of(made)


def test_questions_that_failed_in_a_trial_are_said(tmp_path):
    """A server that was away for half of the untouched model's questions makes any training win."""
    made = new_study(tmp_path, "lr=1e-6..1e-4", ended="1 of 1 trainings")
    add(made, 0.4, metrics={"rows": 40, "failed": 20}), add(made, 0.6, metrics={"failed": 0})
    (told,) = summary.verdict(made, seen(made))
    assert (told.id, told.severity) == ("EVAL-ROW-FAILED", "warning")
    assert "20 of 40 of trial 0;" in told.message and "20 of 40 of trial 0;" in page_of(made)


def test_a_best_that_sees_other_frames_than_the_untouched_model_is_said(tmp_path):
    """More frames may be all of the gain: the untouched model was never asked with them."""
    made = new_study(tmp_path, "nframes=[4,8,16]", ended="2 of 2 trainings")
    given = made.plan["spec"]["custom"]["vision"]["nframes"]
    add(made, 0.2), add(made, 0.6)
    assert summary.verdict(made, seen(made)) == [], "the best is the spec as it was given"
    other = add(made, 0.9)["values"]["custom.vision.nframes"]
    (told,) = summary.verdict(made, seen(made))
    assert (told.id, told.severity) == ("TUNE-EVAL-VIEW", "warning")
    assert f"with nframes {other}, " in told.message and f"with nframes {given}: " in told.message
    assert "is not the training alone" in page_of(made)


@pytest.mark.parametrize("objective, after, noise", [
    ("accuracy", [0.3, 0.8], True), ("accuracy", [0.6, 0.9], False),
    ("accuracy", None, False), ("f1", [0.3, 0.8], False),
])  # fmt: skip
def test_a_gain_within_noise_is_said(tmp_path, objective, after, noise):
    made = new_study(tmp_path, "lr=1e-6..1e-4", objective=objective, ended="1 of 1 trainings")
    add(made, 0.2, metrics={"interval": [0.1, 0.5]}), add(made, 0.6, metrics={"interval": after})
    told = summary.verdict(made, seen(made))
    assert [finding.id for finding in told] == ["TUNE-NOISE"] * noise
    assert ("may be noise: the 95 % intervals overlap" in page_of(made)) == noise


def test_the_page_shows_every_trial_and_needs_no_network(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", "lr_schedule=[none,cosine]", "batch_size=[4,8,16]")
    assert "No trial has ended well" in page_of(made)
    for number in range(8):
        add(made, 0.1 * number)
    add(made, state=study.FAILED, reason="<script>alert(1)</script>")
    text = page_of(made)
    assert "by trial 7" in text and "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert all(f'<th scope="row">{number}' in text for number in range(9))
    found = seen(made)
    assert found["baseline"] == 0 and found["best"]["number"] == 7
    assert "trial 8 failed" in summary.text(made, found)


def test_a_winner_that_forgot_is_told_wherever_it_is_named(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    made.plan["ended"] = "1 trainings"
    made.save()
    for objective, answer in ((0.2, "A"), (0.9, "B")):
        trial = add(made, objective, metrics={"guard_accuracy": float(answer == "A")})
        results = ended_job(made, trial, "evaluate", "COMPLETE")
        rows = [scoring.row(f"g{n}", response=answer) for n in range(12)]
        scoring.write(results / "guard" / "results.json", rows)
        scoring.write(results / "results.json", rows)
    found = seen(made)
    told = "guard: 100.0 % -> 0.0 % of 12 questions, 12 broken, 0 fixed, p < 0.001"
    assert f"  {told} (trial 1)" in summary.text(made, found)
    (doubt,) = [one for one in summary.verdict(made, found) if one.id == "EVAL-FORGOT"]
    assert doubt.severity == "warning" and doubt.where == "trial 1"
    text = page_of(made)
    assert told.replace(">", "&gt;").replace("guard", "Guard").replace("<", "&lt;") in text
    assert '<th scope="col" class="n">guard</th>' in text
    assert made.plan["keep"] == 1 and found["best"]["number"] == 1  # it still chooses


def test_without_general_questions_there_is_no_column_for_them(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made, 0.2), add(made, 0.9)
    assert seen(made)["guard"] is None
    assert ">guard</th>" not in page_of(made)


@pytest.mark.parametrize(
    ("objective", "questions", "told"),
    [
        ("accuracy", 200, "accuracy on 200 questions: each is 0.005, and a lead of fewer than 6 of "
         "them (0.03) is never more than chance"),
        ("f1", 200, "f1 on 200 questions"),
        ("val_loss", None, "val_loss"),
        ("custom.mae", 200, "custom.mae (the highest is best) on 200 questions"),
    ],
)  # fmt: skip
def test_how_small_a_lead_can_be_seen(objective, questions, told):
    assert summary.judged_by(objective, questions) == told
    assert comparison.mcnemar(6, 0) < comparison.CHANCE <= comparison.mcnemar(5, 0)
