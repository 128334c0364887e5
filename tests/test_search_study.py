"""What a study's folder survives, who runs what, and what is told. Real jobs run in tests/integration/test_tune.py."""

import json
import os
import shutil
import socket
import threading

import pytest
from study_world import add, new_study

from cosmos_reason import findings as f
from cosmos_reason import jobs, spec, storage
from cosmos_reason.search import prepare, runner, study, summary


def test_a_study_of_another_model_or_version_is_refused(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    other = json.loads(json.dumps(made.plan))
    other["spec"]["policy"]["model_name_or_path"] = "nvidia/Cosmos-Reason2-8B"
    with pytest.raises(f.Failure, match="study of model") as caught:
        study.open_or_begin(tmp_path, other)
    assert caught.value.exit_code == 2
    with pytest.raises(f.Failure, match="another seed"):
        study.open_or_begin(tmp_path, made.plan | {"seed": 5})
    for broken in ('{"schema_version": 1}', "[]", json.dumps(made.plan | {"schema_version": 2})):
        (tmp_path / "study.json").write_text(broken)
        with pytest.raises(f.Failure, match="TUNE-STUDY-VERSION"):
            study.open_or_begin(tmp_path)


def test_a_study_that_stays_locked_is_a_finding(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    with study.locked(tmp_path), pytest.raises(f.Failure, match="TUNE-STUDY-LOCKED") as caught:
        study.locked(made.folder, patience=0.1).__enter__()
    assert caught.value.exit_code == 3


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made, objective=0.1)
    whole, real = made.trials(), study.storage.os.fsync
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for failing in (lambda: add(made), lambda: made.write(whole[0] | {"objective": 0.9})):
        with pytest.raises(OSError, match="No space"):
            failing()
    monkeypatch.setattr("os.fsync", real)
    assert made.trials() == whole and add(made)["number"] == 1


def test_only_losers_lose_their_checkpoints_once_judged_and_as_many_stay_as_the_study_keeps(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", keep=2)
    for objective in (0.0, 0.5, 0.7, 0.6, None):
        trial = add(made, objective)
        (made.trial_folder(trial["number"]) / "jobs/train-20260101-000000-00000a/results/x").mkdir(parents=True)
    made.write(made.trials()[4] | {"state": study.FAILED})
    runner.Runner(study.open_or_begin(tmp_path), [None], 3).run()
    kept = [path.parts[-4] for path in sorted(tmp_path.glob("trials/*/jobs/*/results"))]
    assert kept == ["0002", "0003", "0004"]


def ended_job(made, trial, action, state, **evidence):
    """A job of a trial that has ended, as the launcher leaves it."""
    name = f"{action}-20260101-000000-00000{trial['number']}"
    folder = made.trial_folder(trial["number"]) / "jobs" / name
    spec.dump({}, folder / "spec.toml")
    times = dict.fromkeys(("created_at", "started_at", "ended_at"), "2026-01-01T00:00:00Z")
    source = {"path": str(folder / "spec.toml"), "sha256": "", "source": "", "source_sha256": ""}
    more = {"spec": source, "outputs": {}, "evidence": evidence, "reason": "why", "diagnosis": [], "action": action}
    more |= {"platform": "local", "engine": "transformers", "command": ["x"], "working_dir": "/", "inputs": []}
    more |= {"schema_version": 1, "resources": {"nodes": 1, "gpus_per_node": 0, "gpu_ids": []}, "platform_ref": {}}
    more |= dict.fromkeys(("image", "parent_job", "retry_of", "exit_code"))
    jobs.write(folder, {"job_id": name, "state": state} | times | more)
    (folder / "results").mkdir()
    return folder / "results"


def test_what_was_trained_outlives_a_scoring_that_fails_and_is_scored_again(tmp_path, capsys):
    metric = tmp_path / "metric.py"
    metric.write_text("def metric(rows): return {'mine': 1 / 0}")
    made = new_study(tmp_path, "lr=1e-6..1e-4", objective="custom.mine", metric_file=str(metric))
    (tmp_path / "a.json").write_text("[]")
    made.plan["fingerprints"] = prepare.fingerprints(made.plan)
    add(made, 0.5, ended_at="2026-01-01T00:00:00Z")
    trial = add(made, host="here", started_at="2026-01-01T00:00:00Z")
    weights = ended_job(made, trial, "train", jobs.COMPLETE, checkpoint=str(tmp_path / "elsewhere"))
    answers = ended_job(made, trial, "evaluate", jobs.COMPLETE)
    storage.write_json(answers / "results.json", [{"id": "a", "question": "?", "gt": "yes", "response": "yes"}])
    ended_job(made, made.trial(0), "evaluate", jobs.COMPLETE)
    shutil.copy(answers / "results.json", made.trial_folder(0) / "jobs/evaluate-20260101-000000-000000/results")
    runner.Runner(made, [[]], trials=1, every=0.1).run()
    failed = made.trial(1)
    assert failed["state"] == study.FAILED and "ZeroDivisionError" in failed["reason"] and weights.is_dir()
    metric.write_text("def metric(rows): return {'mine': 0.75}")
    runner.Runner(made, [[]], trials=1, every=0.1, since="3000-01-01T00:00:00Z").run()
    assert [(trial["state"], trial["objective"]) for trial in made.trials()] == [(study.COMPLETE, 0.75)] * 2
    assert weights.is_dir() and made.trial(0)["set_aside"] == [] and "custom.mine 0.75" in capsys.readouterr().err


def test_what_another_run_drives_is_waited_for_and_taken_over_when_that_run_dies(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", objective="val_loss", evaluate=None)
    trial = add(made, host="here", started_at="2026-01-01T00:00:00Z")
    ended_job(made, trial, "train", jobs.COMPLETE, checkpoint=str(tmp_path / "elsewhere"))
    metrics = made.trial_folder(1) / "jobs/train-20260101-000000-000001" / jobs.METRICS
    metrics.write_text('{"step": 4, "total_steps": 4, "val/avg_loss": 0.5}\n')
    other = study.drive(made.trial_folder(1))
    waiting = threading.Thread(target=runner.Runner(made, [[]], trials=1, every=0.1).run)
    waiting.start()
    waiting.join(1)
    assert waiting.is_alive() and made.trial(1)["state"] == study.RUNNING
    os.close(other)
    waiting.join(20)
    assert not waiting.is_alive() and made.trial(1)["objective"] == 0.5


def test_a_base_model_that_could_not_be_judged_gets_another_chance_on_other_gpus(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    trial = add(made, state=study.FAILED, reason="no such GPU", ended_at="2026-01-01T00:00:00Z", gpu_ids=["99"])
    ended_job(made, trial, "evaluate", jobs.ERROR)
    one = runner.Runner(made, [["0"]], 9)
    assert one.hopeless(made.trials()) == "", "that was an earlier run"
    one.reopen()
    (again,) = made.trials()
    assert again["state"] == study.RUNNING and again["set_aside"] and one.jobs_of(again, "evaluate") == []
    assert one.settle(0) and made.trial(0)["gpu_ids"] == ["0"]
    made.write(made.trial(0) | {"state": study.FAILED, "ended_at": "2999-01-01T00:00:00Z"})
    assert one.place(made.trials()) is None and "no such GPU" not in one.hopeless(made.trials())


@pytest.mark.parametrize("broken", ["{}", "[]", None])
def test_a_broken_record_is_said_and_never_overwritten(tmp_path, broken):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    path = made.trial_folder(add(made, 0.1)["number"]) / "trial.json"
    path.unlink() if broken is None else path.write_text(broken)
    with pytest.raises(f.Failure, match=r"TUNE-TRIAL-BROKEN|FILE-MISSING") as caught:
        add(made)
    assert caught.value.exit_code == 2 and path.parent.is_dir()


def test_the_winner_is_what_ran_also_when_rules_and_facts_have_gone(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", facts=None)
    spec.set_value(made.plan["spec"], "train.output_dir", "/mine")
    for objective in (0.1, 0.2, 0.9):
        trial = add(made, objective)
    made.plan["facts"] = str(tmp_path / "gone.json")
    winner = study.winning_spec(made, made.trials()[2])
    assert winner["train"]["optm_lr"] == trial["values"]["train.optm_lr"] and winner["train"]["output_dir"] == "/mine"
    assert summary.write_page(made)


def test_a_study_that_was_moved_finds_its_checkpoint(tmp_path):
    made = new_study(tmp_path / "old", "lr=1e-6..1e-4")
    add(made, 0.1), add(made, 0.2, checkpoint="trials/0001/jobs/x")
    (made.trial_folder(1) / "jobs/x").mkdir(parents=True)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    found = summary.summary(study.open_or_begin(tmp_path / "new"))
    assert found["best"]["checkpoint"] == str(tmp_path / "new/trials/0001/jobs/x")
    shutil.rmtree(tmp_path / "new/trials/0001/jobs/x")
    assert summary.summary(study.open_or_begin(tmp_path / "new"))["best"]["checkpoint"] is None


def test_a_base_model_that_wins_is_said(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    for objective in (0.9, 0.5, 0.6):
        add(made, objective)
    add(made, state=study.FAILED)
    runner.Runner(made, [None], 3).run()
    (told,) = summary.verdict(made := study.open_or_begin(tmp_path), summary.summary(made))
    assert (told.id, told.severity) == ("TUNE-BASE-WINS", "warning")
    text = summary.write_page(made).read_text()
    assert "no training is better</h1>" in text and "best of 2 trainings that ended well" in text


def test_there_is_no_verdict_while_a_trial_runs(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", ended="3 of 3 trainings")
    add(made, 0.9), add(made, 0.5), add(made)
    found = summary.summary(made)
    assert summary.verdict(made, found) == [] and found["ended"] == ""
    assert "so far none is better; 1 running" in summary.text(made, found)
    assert "no training is better so far</h1>" in summary.write_page(made).read_text()
    made.write(made.trial(2) | {"state": study.COMPLETE, "objective": 0.95})
    assert "ended: 3 of 3 trainings" in summary.text(made, found := summary.summary(made))
    assert summary.verdict(made, found) == []
    made.plan["ended"] = ""
    assert "so far trial 2 is the best; none running" in summary.text(made, summary.summary(made))
    del made.plan["ended"]
    assert "ended: 2 trainings" in summary.text(made, summary.summary(made)), "begun before the reason was noted"


def test_trials_that_a_killed_run_left_are_told_from_those_that_somebody_drives(tmp_path):
    def told():
        return summary.text(made, summary.summary(made)).rpartition("; ")[2]

    made, here = new_study(tmp_path, "lr=1e-6..1e-4", ended=""), socket.gethostname()
    add(made, host=here), add(made, host=here), add(made, host=None)
    assert told() == "3 left by a run that ended: `run` continues it"
    lock = study.drive(made.trial_folder(0))
    assert told() == "2 running, 1 left by a run that ended: `run` continues it", "one waits for the run's GPUs"
    os.close(lock)
    made.write(made.trial(1) | {"host": "elsewhere"})
    assert told() == "2 running, 1 left by a run that ended: `run` continues it"
    made.write(made.trial(0) | {"host": "elsewhere"})
    assert told() == "3 running"


@pytest.mark.parametrize("budget, why", [
    ({"trials": 2}, "2 of 2 trainings"),
    ({"trials": 2, "target": 0.9}, "2 of 2 trainings; target 0.9 not reached (best 0.1667)"),
    ({"trials": 9, "target": 0.1}, "2 of 9 trainings; target 0.1 reached (best 0.1667)"),
    ({"trials": 9, "hours": 0}, "2 of 9 trainings; 0 hours used"),
    ({"trials": 9}, "2 of 9 trainings; nothing is left to try"),
])  # fmt: skip
def test_why_a_study_ended_is_written_and_said(tmp_path, budget, why):
    made = new_study(tmp_path, "batch_size=[2,4]")
    for objective in (0, 0.125, 1 / 6):
        add(made, objective)
    runner.Runner(made, [None], **budget).run()
    made = study.open_or_begin(tmp_path)
    assert made.plan["ended"] == why and f"ended: {why}\n" in summary.text(made, summary.summary(made)) + "\n"
    assert f"Ended: {why}." in summary.write_page(made).read_text()


@pytest.mark.parametrize("objective, after, noise", [
    ("accuracy", [0.3, 0.8], True), ("accuracy", [0.6, 0.9], False),
    ("accuracy", None, False), ("f1", [0.3, 0.8], False),
])  # fmt: skip
def test_a_gain_within_noise_is_said(tmp_path, objective, after, noise):
    made = new_study(tmp_path, "lr=1e-6..1e-4", objective=objective, ended="1 of 1 trainings")
    add(made, 0.2, metrics={"interval": [0.1, 0.5]}), add(made, 0.6, metrics={"interval": after})
    told = summary.verdict(made, summary.summary(made))
    assert [finding.id for finding in told] == ["TUNE-NOISE"] * noise
    assert ("may be noise: the 95 % intervals overlap" in summary.write_page(made).read_text()) == noise


def test_trials_get_gpus_of_their_own(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    one = runner.Runner(made, [["0", "1"], ["2", "3"]], 9)
    for expected in (["0", "1"], ["2", "3"]):
        where = one.place(made.trials())
        assert where["gpu_ids"] == expected
        add(made, **where)
    assert one.place(made.trials()) is None


def test_the_budget_ends_a_study(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    for objective in (0.1, 0.5, 0.8):
        add(made, objective)
    trials = made.trials()
    assert runner.Runner(made, [None], trials=2).place(trials) is None
    assert runner.Runner(made, [None], trials=3).place(trials)
    assert runner.Runner(made, [None], trials=3, target=0.8).place(trials) is None
    assert runner.Runner(made, [None], trials=3, hours=0).place(trials) is None


def test_failure_after_failure_ends_a_run_but_not_the_study(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made, 0.1)
    one = runner.Runner(made, [None], 9)
    for _ in range(3):
        assert one.place(made.trials())
        trial = add(made, state=study.FAILED, reason="out of memory")
        made.write(trial | {"ended_at": "2999-01-01T00:00:00Z"})
    assert one.place(made.trials()) is None and "out of memory" in one.hopeless(made.trials())
    later = runner.Runner(made, [None], 9, since="3000-01-01T00:00:00Z")
    assert later.place(made.trials())


def test_the_page_shows_every_trial_and_needs_no_network(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", "lr_schedule=[none,cosine]", "batch_size=[4,8,16]")
    assert "No trial has ended well" in summary.write_page(made).read_text()
    for number in range(8):
        add(made, 0.1 * number)
    add(made, state=study.FAILED, reason="<script>alert(1)</script>")
    text = summary.write_page(made).read_text()
    assert "by trial 7" in text and "<script" not in text and "http" not in text.replace("http-equiv", "")
    assert all(f'<th scope="row">{number}' in text for number in range(9))
    found = summary.summary(made)
    assert found["baseline"] == 0 and found["best"]["number"] == 7 and "trial 8 failed" in summary.text(made, found)
