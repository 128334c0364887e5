"""Which trials run, on which GPUs, for how long, and which are repeated."""

import shutil

import pytest
from study_world import add, ended_job, new_study, ran, seen, with_budget

from cosmos_reason.base import files
from cosmos_reason.base import findings as f
from cosmos_reason.jobs import record as jobs
from cosmos_reason.tuning import prepare, runner, study, suggest, summary


def test_only_losers_lose_their_checkpoints_once_judged_and_as_many_stay_as_the_study_keeps(
    tmp_path,
):
    made = new_study(tmp_path, "lr=1e-6..1e-4", keep=2)
    for objective in (0.0, 0.5, 0.7, 0.6, None):
        trial = add(made, objective)
        (made.trial_folder(trial["number"]) / "jobs/train-20260101-000000-00000a/results/x").mkdir(
            parents=True
        )
    made.write(made.trials()[4] | {"state": study.FAILED})
    ran(made, trials=3)
    kept = [path.parts[-4] for path in sorted(tmp_path.glob("trials/*/jobs/*/results"))]
    assert kept == ["0002", "0003", "0004"]


def test_what_was_trained_outlives_a_scoring_that_fails_and_is_scored_again(tmp_path, capsys):
    metric = tmp_path / "metric.py"
    metric.write_text("def metric(rows): return {'mine': 1 / 0}")
    made = new_study(tmp_path, "lr=1e-6..1e-4", objective="custom.mine", metric_file=str(metric))
    (tmp_path / "a.json").write_text("[]")
    made.plan["fingerprints"] = prepare.fingerprints(made.plan)
    made.save()
    add(made, 0.5, ended_at="2026-01-01T00:00:00Z")
    trial = add(made, started_at="2026-01-01T00:00:00Z")
    weights = ended_job(made, trial, "train", jobs.COMPLETE, checkpoint=str(tmp_path / "elsewhere"))
    answers = ended_job(made, trial, "evaluate", jobs.COMPLETE)
    files.write_json(
        answers / "results.json", [{"id": "a", "question": "?", "gt": "yes", "response": "yes"}]
    )
    ended_job(made, made.trial(0), "evaluate", jobs.COMPLETE)
    shutil.copy(
        answers / "results.json",
        made.trial_folder(0) / "jobs/evaluate-20260101-000000-000000/results",
    )
    with pytest.raises(f.Failure, match="TUNE-OUTSIDE"):
        ran(made, trials=1, groups=[[]])
    failed = made.trial(1)
    assert failed["state"] == study.FAILED and "ZeroDivisionError" in failed["reason"]
    assert weights.is_dir()
    metric.write_text("def metric(rows): return {'mine': 0.75}")
    ran(made, trials=1, groups=[[]])
    assert [(trial["state"], trial["objective"]) for trial in made.trials()] == [
        (study.COMPLETE, 0.75)
    ] * 2
    assert weights.is_dir() and made.trial(0)["set_aside"] == []
    assert "custom.mine 0.75" in capsys.readouterr().err


def test_a_base_model_that_could_not_be_judged_gets_another_chance_on_other_gpus(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    trial = add(
        made,
        state=study.FAILED,
        reason="no such GPU",
        ended_at="2026-01-01T00:00:00Z",
        gpu_ids=["99"],
    )
    ended_job(made, trial, "evaluate", jobs.ERROR)
    one = with_budget(made, groups=[["0"]])
    assert one.hopeless() == "", "that was an earlier run"
    one.begin_again()
    (again,) = made.trials()
    assert again["state"] == study.RUNNING and again["set_aside"]
    assert one.study.jobs_of(again, "evaluate") == []
    assert one.next_trial()["gpu_ids"] == made.trial(0)["gpu_ids"] == ["0"]
    made.write(made.trial(0) | {"state": study.FAILED, "ended_at": "2999-01-01T00:00:00Z"})
    later = with_budget(made, groups=[["0"]])
    assert later.next_trial() is None and "trial 0 failed" in later.hopeless()


def test_trials_get_gpus_of_their_own(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    one = with_budget(made, groups=[["0", "1"], ["2", "3"]])
    one.fill()
    assert [trial["gpu_ids"] for trial in made.trials()] == [["0", "1"], ["2", "3"]]


def test_a_trial_whose_job_runs_keeps_its_gpus_and_one_without_gets_free_ones(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made, gpu_ids=["7"]), add(made, gpu_ids=["0"]), add(made, gpu_ids=["1"])
    ended_job(made, made.trial(2), "train", jobs.RUNNING)
    one = with_budget(made, groups=[["0"], ["1"]])
    one.fill()
    assert [trial["number"] for trial in one.driven] == [2, 0]
    assert [trial["gpu_ids"] for trial in made.trials()] == [["0"], ["0"], ["1"]]


def test_the_budget_ends_a_study(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    for objective in (0.1, 0.5, 0.8):
        add(made, objective)
    for budget in ({"trials": 2}, {"target": 0.8}, {"hours": 2, "worked_seconds": 7200.0}):
        other = study.Study(made.folder, made.plan | {"trials": 3} | budget)
        assert runner.Runner(other).next_trial() is None
    made.plan |= {"trials": 3, "target": 0.9, "hours": 2, "worked_seconds": 7100.0}
    assert runner.Runner(made).next_trial()["number"] == 3


def test_the_time_that_runs_have_worked_is_kept(tmp_path):
    made = new_study(tmp_path, "batch_size=[2,4]")
    one = with_budget(made, hours=1)
    one.looked_at -= 1800
    one.note_time()
    later = runner.Runner(study.open_or_begin(tmp_path))
    assert later.study.plan["hours"] == 1 and not later.is_late()
    later.looked_at -= 1801
    later.note_time()
    assert later.is_late() and runner.Runner(study.open_or_begin(tmp_path)).is_late()


def test_failure_after_failure_ends_a_run_but_not_the_study(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made, 0.1)
    one = runner.Runner(made)
    for number in range(3):
        trial = one.next_trial()
        assert trial["number"] == number + 1
        trial |= {"state": study.FAILED, "reason": "no memory", "ended_at": "2999-01-01T00:00:00Z"}
        made.write(trial)
    assert one.next_trial() is None and "no memory" in one.hopeless()
    later = runner.Runner(made)
    later.since = "3000-01-01T00:00:00Z"
    assert later.next_trial()


@pytest.mark.parametrize(
    ("objective", "noted"), [("accuracy", [-0.5, 0.7]), ("val_loss", [0.5, 0.4])]
)
def test_validations_are_noted_so_that_the_best_is_highest_or_lowest(tmp_path, objective, noted):
    """By percent of the run; the share of right answers is told by some validations only."""
    made = new_study(tmp_path, "lr=1e-6..1e-4", objective=objective)
    add(made), add(made)
    one = with_budget(made)
    trial = one.trials[1]
    ended_job(made, trial, "train", jobs.RUNNING)
    lines = (
        '{"step": 2, "total_steps": 8, "val/avg_loss": 0.5}\n'
        '{"step": 4, "total_steps": 8, "val/avg_loss": 0.4, "val/accuracy": 0.7}\n'
    )
    (made.jobs_of(trial, "train")[0] / jobs.METRICS).write_text(lines)
    one.note_validations(trial)
    assert trial["intermediate"] == dict(zip(("25", "50"), noted, strict=True))


FULL = f.error("LOG-DISK-FULL", "log.txt:1", "No space left on device").to_json()


MEMORY = f.error("LOG-GPU-MEMORY", "log.txt:1", "CUDA out of memory").to_json()


def test_what_an_outage_ended_is_repeated_and_never_sampled(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", "batch_size=[4,8,16]", ended="")
    add(made, 0.1), add(made, 0.2)
    for diagnosis in ([FULL], [], [MEMORY]):
        trial = add(made)
        ended_job(made, trial, "train", jobs.ERROR, diagnosis=diagnosis)
    one = with_budget(made, trials=5, groups=[[]])
    for trial in list(one.trials[2:]):
        one.driven.append(trial)
        one.advance(trial)
    assert [trial["outside"] for trial in made.trials()[2:]] == [True, True, False]
    told = [row.params for row in suggest.as_optuna(made, made.trials()).trials]
    assert told == [made.params(made.trial(number)["values"]) for number in (1, 4)]
    not_judged = made.trials()
    not_judged[4]["checkpoint"] = "trials/0004/jobs/x"
    assert len(suggest.as_optuna(made, not_judged).trials) == 1, "it was trained"
    assert "2 failed by no fault of the values: mend" in summary.text(made, seen(made))
    runner.Runner(made).begin_again()
    states = [study.RUNNING, study.RUNNING, study.FAILED]
    assert [trial["state"] for trial in made.trials()[2:]] == states
    assert all(len(made.trial(number)["set_aside"]) == 1 for number in (2, 3))
    assert made.trained() == 4, "a repeated trial counts once"


def test_an_outage_that_has_passed_is_made_good_in_the_same_run(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", objective="val_loss", evaluate=None)
    made.write(
        add(made) | {"state": study.FAILED, "outside": True, "ended_at": "2026-01-01T00:00:00Z"}
    )
    made.write(add(made) | {"state": study.FAILED, "outside": True, "set_aside": ["a", "b"]})
    trial = add(made)
    ended_job(made, trial, "train", jobs.COMPLETE, checkpoint=str(tmp_path / "elsewhere"))
    metrics = made.trial_folder(3) / "jobs/train-20260101-000000-000003" / jobs.METRICS
    metrics.write_text('{"step": 4, "total_steps": 4, "val/avg_loss": 0.5}\n')
    one = with_budget(made)
    one.driven.append(one.trials[2])
    one.advance(one.trials[2])
    states = [trial["state"] for trial in made.trials()]
    assert states == [study.RUNNING, study.FAILED, study.COMPLETE], (
        "three attempts in a run are enough"
    )


def test_a_run_that_leaves_trials_to_repeat_says_so_and_is_what_comes_next(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made, 0.1), add(made, 0.2)
    lost = {
        "state": study.FAILED,
        "outside": True,
        "reason": "disk full",
        "ended_at": "2999-01-01T00:00:00Z",
    }
    add(made, **lost)
    one = with_budget(made, trials=2)
    one.begin_again = lambda: None  # as if it had failed just now
    with pytest.raises(f.Failure, match="trial 2 failed: disk full") as caught:
        one.run()
    assert caught.value.exit_code == 3 and study.open_or_begin(tmp_path).plan["ended"] == ""
    made.plan |= {"hours": 1, "worked_seconds": 3600.0}
    late = runner.Runner(made)
    late.run()
    assert made.trial(2)["state"] == study.FAILED, "no trial begins past the hours"
