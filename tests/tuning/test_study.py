"""What a study's folder survives, who runs what, and what is told. Real jobs run in
tests/integration/tuning."""

import json
import os
import shlex
import socket
import subprocess
import sys

import pytest
from study_world import add, new_study, page_of, ran, seen

from cosmos_reason.base import files
from cosmos_reason.base import findings as f
from cosmos_reason.spec import document
from cosmos_reason.tuning import runner, study, suggest, summary


def test_a_study_of_another_model_or_version_is_refused(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    other = json.loads(json.dumps(made.plan))
    other["spec"]["policy"]["model_name_or_path"] = "nvidia/Cosmos-Reason2-8B"
    with pytest.raises(f.Failure, match="TUNE-STUDY-OTHER") as caught:
        study.open_or_begin(tmp_path, other)
    assert caught.value.exit_code == 2 and "not of nvidia/Cosmos-Reason2-8B" in str(caught.value)
    with pytest.raises(f.Failure) as caught:
        study.open_or_begin(tmp_path, made.plan | {"seed": 5})
    assert caught.value.findings[0].data == {"changed": ["seed"]}
    for broken in ('{"schema_version": 1}', "[]", json.dumps(made.plan | {"schema_version": 2})):
        (tmp_path / "study.json").write_text(broken)
        with pytest.raises(f.Failure, match="TUNE-STUDY-VERSION"):
            study.open_or_begin(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made, objective=0.1)
    whole, real = made.trials(), study.files.os.fsync
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    for failing in (lambda: add(made), lambda: made.write(whole[0] | {"objective": 0.9})):
        with pytest.raises(OSError, match="No space"):
            failing()
    monkeypatch.setattr("os.fsync", real)
    assert made.trials() == whole and add(made)["number"] == 1


@pytest.mark.parametrize("broken", ["{}", "[]", '{"number": 1, "state": "COMP', None])
def test_a_broken_record_is_said_and_left_out_and_never_overwritten(tmp_path, broken):
    made = new_study(tmp_path, "lr=1e-6..1e-4", ended="3 of 3 trainings")
    add(made, 0.1), add(made, 0.2), add(made, 0.3)
    path = made.trial_folder(1) / "trial.json"
    path.unlink() if broken is None else path.write_text(broken)
    trials, (told,) = made.read()
    assert [trial["number"] for trial in trials] == [0, 2]
    assert (told.id, told.severity) == ("TUNE-TRIAL-BROKEN", f.WARNING)
    assert seen(made)["best"]["number"] == 2 and page_of(made)
    made = ran(made, trials=2)
    assert made.plan["ended"] == "2 of 2 trainings", "what it has cost counts"
    assert add(made)["number"] == 3
    assert (path.read_text() if broken else not path.exists()) in (
        broken,
        True,
    )
    subprocess.run(shlex.split(str(told.fix)), check=True)
    again = add(made)
    assert (again["number"], again["kind"]) == (1, study.DEFAULT) and not made.read()[1]


def nulls_and_nonsense():
    for name in document.bundle.schema("trial")["properties"]:
        for wrong in (None, float("nan"), "x", -1, [None], {"x": None}):
            yield name, wrong


def test_no_hand_edited_record_makes_a_traceback(tmp_path):
    """Whatever stands in a field: it is said, or harmless, for each verb and the sampler."""
    made = new_study(tmp_path, "lr=1e-6..1e-4", "batch_size=[4,8,16]", ended="4 of 4 trainings")
    for objective in (0.1, 0.2, 0.3, 0.4):
        add(made, objective, ended_at="2026-01-01T00:00:00Z", metrics={"interval": [0.1, 0.9]})
    whole = made.trial(2)
    for name, wrong in nulls_and_nonsense():
        files.write_json(made.trial_folder(2) / "trial.json", whole | {name: wrong})
        trials, found = made.read()
        assert [one.id for one in found] in ([], ["TUNE-TRIAL-BROKEN"]), (name, wrong)
        told = seen(made)
        summary.text(made, told), summary.verdict(made, told), summary.estimate(made, 3)
        suggest.as_optuna(made, trials)
        runner.Runner(made).begin_again()
    for name in ("state", "values", "number", "kind", "objective", "started_at", "metrics"):
        files.write_json(made.trial_folder(2) / "trial.json", whole | {name: None})
        assert made.read()[1] and page_of(made)


def test_the_winner_is_what_ran_also_when_rules_and_facts_have_gone(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4", facts=None)
    document.set_value(made.plan["spec"], "train.output_dir", "/mine")
    for objective in (0.1, 0.2, 0.9):
        trial = add(made, objective)
    made.plan["facts"] = str(tmp_path / "gone.json")
    winner = study.winning_spec(made, made.trials()[2])
    assert winner["train"]["optm_lr"] == trial["values"]["train.optm_lr"]
    assert winner["train"]["output_dir"] == "/mine"
    assert page_of(made)


# -- one process at a time owns it ------------------------------------------------------------

WORKS = """
import sys, time
from pathlib import Path
print("started", flush=True)
go, done = map(Path, sys.argv[1:])
while not go.exists():
    time.sleep(0.01)
done.touch()
"""
OWNS_IT = """
import sys, time
from pathlib import Path
from cosmos_reason.tuning import study
with study.owned(Path(sys.argv[1])):
    print("started", flush=True)
    time.sleep(60)
"""


def started(code, *words, **options):
    """A process that has printed its first line."""
    command = [sys.executable, "-c", code, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "started\n"
    return process


def test_a_second_run_is_refused_and_told_who_owns_the_study(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made)
    with study.owned(tmp_path), pytest.raises(f.Failure, match="TUNE-STUDY-LOCKED") as caught:
        study.owned(made.folder).__enter__()
    assert caught.value.exit_code == f.EXIT_OUTSIDE
    assert f"process {os.getpid()} on {socket.gethostname()}" in str(caught.value)


def test_the_study_of_a_killed_run_is_free_at_once(tmp_path):
    scripts = os.path.dirname(os.path.dirname(study.__file__))
    environment = os.environ | {"PYTHONPATH": os.path.dirname(scripts)}
    owner = started(OWNS_IT, tmp_path, env=environment)
    with pytest.raises(f.Failure, match=f"process {owner.pid} on"):
        study.owned(tmp_path).__enter__()
    owner.kill()
    owner.communicate()
    assert not study.is_owned(tmp_path)
    with study.owned(tmp_path):
        assert study.is_owned(tmp_path)


def test_what_a_killed_run_has_started_is_waited_for(tmp_path, monkeypatch):
    """A submit on its way is not repeated; meanwhile the study has its new owner."""
    told = []

    def say(text):
        told.append(text)
        (tmp_path / "go").touch()

    monkeypatch.setattr(f, "say", say)
    with study.owned(tmp_path) as inherited:
        command = started(WORKS, tmp_path / "go", tmp_path / "done", pass_fds=[inherited])
    assert not study.is_owned(tmp_path), "the command does not own the study"
    with study.owned(tmp_path):
        assert (tmp_path / "done").exists()
    command.communicate()
    assert len(told) == 1 and "waiting for what a killed run" in told[0]
