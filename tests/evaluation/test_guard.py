"""General questions beside an evaluation's own: asked of the same model, paired with those of the
untouched one, told wherever a checkpoint is chosen, and never taken for its score."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from evaluating import rows_of, write_spec
from gap_site import analyze, write_evaluation
from run_folders import said
from scoring import NAME, ids, metrics_of, recorded, row, score, warned_of, write
from support import run_here, run_script

from cosmos_reason.base import bundle, files, metrics_log
from cosmos_reason.checkpoints import checkpoint_metrics, run_outputs
from cosmos_reason.evaluation import guard, run
from cosmos_reason.spec import document

RIGHT, WRONG = "A", "B"  # responses to questions whose answer is A


@pytest.fixture
def guarded(evaluate_spec, dataset, tmp_path):
    """`evaluate_spec` with the questions of the training's clips as its guard."""
    evaluate_spec["guard"] = {
        "annotation_path": str(dataset / "train" / "annotations.json"),
        "media_dir": str(dataset / "train"),
    }
    return evaluate_spec


def answered(folder, right, wrong):
    return write(
        folder / "results.json",
        [row(f"r{n}", response=RIGHT) for n in range(right)]
        + [row(f"w{n}", response=WRONG) for n in range(wrong)],
    )


def general(folder, responses):
    """The answers to general questions beside the results of a folder."""
    rows = [row(f"g{n}", response=response) for n, response in enumerate(responses)]
    return write(folder / "guard" / "results.json", rows)


def evaluations(tmp_path, before, after):
    """A base model's results and those of a checkpoint, with these responses to the guard."""
    step = tmp_path / "out" / NAME
    step.mkdir(parents=True)
    answered(tmp_path / "base", 5, 5)
    answered(tmp_path / "tuned", 9, 1)
    write(tmp_path / "tuned/evaluation.json", {"model": str(step), "checkpoint": str(step)})
    general(tmp_path / "base", before)
    general(tmp_path / "tuned", after)
    write(tmp_path / "tuned/guard/evaluation.json", {"model": "x", "checkpoint": str(step)})
    return step


# -- asking --------------------------------------------------------------------------------------


def test_a_model_is_asked_both_sets_in_one_run(guarded, tmp_path):
    config = write_spec(guarded, tmp_path / "e.toml", guard=guarded["guard"])
    job = tmp_path / "job"
    words = ["evaluate", "--config", config, "--job-dir", job]
    done = run_here("run_with_transformers.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = metrics_log.read(job / "metrics.jsonl")
    assert told[-1]["step"] == 48 and {line["total_steps"] for line in told} == {48}
    assert told == sorted(told, key=lambda line: line["step"])
    (tmp_path / "results/guard/results.json").unlink()  # as where the job was ended
    assert run_here("run_with_transformers.py", *words, cwd=tmp_path).returncode == 0
    again = metrics_log.read(job / "metrics.jsonl")[len(told) :]
    # It begins with what is there.
    later = [line["step"] for line in told if line["step"] > 12]
    assert [line["step"] for line in again] == [12, *later]
    assert len(rows_of(tmp_path / "results")) == 12
    rows = rows_of(tmp_path / "results/guard")
    assert len(rows) == 36 and not any(row["error"] for row in rows)
    asked = files.read_json(tmp_path / "results/guard/evaluation.json")
    assert asked["annotations"] == guarded["guard"]["annotation_path"]
    metrics = score(tmp_path / "results")[1]["result"]["runs"]
    assert [(one["rows"], one["guard"]["rows"]) for one in metrics] == [(12, 36)]


def test_a_server_is_asked_both_sets_each_with_its_own_clips(guarded, server, tmp_path):
    custom = {"transformers_engine": {"device": "cpu"}, "endpoint": {"frames": "video"}}
    config = write_spec(guarded, tmp_path / "e.toml", guard=guarded["guard"], custom=custom)
    words = ["evaluate", "--config", config, "--endpoint", server.url, "--json"]
    done = run_script("run_with_transformers.py", *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["result"]["evaluations"]
    assert [(one["rows"], one["failed"]) for one in told] == [(12, 0), (36, 0)]
    assert [Path(one["results"]).parent.name for one in told] == ["results", "guard"]


def test_processes_share_both_sets(guarded, tmp_path):
    config = write_spec(guarded, tmp_path / "e.toml", guard=guarded["guard"])
    for part in ("1/2", "2/2"):
        words = ["evaluate", "--config", config, "--shard", part]
        done = run_here("run_with_transformers.py", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert len(rows_of(tmp_path / "results")) == 12
    assert len(rows_of(tmp_path / "results/guard")) == 36


def test_a_guard_is_asked_as_the_evaluation_is(guarded):
    guarded["task"]["type"] = "its_directionality"
    first, second = guard.with_guards([guarded])
    assert first is guarded and second["dataset"]["media_dir"] == guarded["guard"]["media_dir"]
    assert second["task"]["type"] == "" and second["results_dir"].endswith("results/guard")
    for table in ("model", "vision", "generation", "evaluation"):
        assert second[table] == guarded[table]
    assert guard.with_guards([second]) == [second]


def test_a_guard_added_later_asks_nothing_again(guarded, dataset):
    class Nobody:
        def identity(self):
            return []

    before = run.identity(guarded, Nobody())
    del guarded["guard"]
    assert run.identity(guarded, Nobody()) == before


@pytest.mark.parametrize(
    ("action", "engine", "id"),
    [
        ("evaluate", "transformers", None),
        ("evaluate", "tao", "SPEC-ENGINE-KEY"),
        ("train", "transformers", "SPEC-FLAG"),
    ],
)
def test_build_spec_takes_a_guard_where_it_is_asked(
    dataset, tiny_model, tmp_path, action, engine, id
):
    words = [action, "--engine", engine, "--model", tiny_model, "--eval-root", dataset / "eval"]
    words += ["--guard-root", dataset / "train", "-o", "spec.toml", "--json"]
    done = run_script("build_spec.py", *words, cwd=tmp_path)
    found = json.loads(done.stdout)
    errors = {finding["id"] for finding in found["findings"] if finding["severity"] == "error"}
    if id:
        assert id in errors and not (tmp_path / "spec.toml").exists()
        fixes = {finding["fix"] for finding in found["findings"] if finding["id"] == id}
        assert fixes == {f"drop --guard-root {dataset / 'train'}"}
        return
    assert not errors, found
    spec = document.load(tmp_path / "spec.toml")
    assert spec["guard"]["media_dir"] == str(dataset / "train")
    assert spec["dataset"]["media_dir"] == str(dataset / "eval")


# -- what it says --------------------------------------------------------------------------------


def test_what_was_forgotten_is_told_where_a_checkpoint_is_chosen(tmp_path):
    """9 of 20 broken and none fixed: 95 % -> 50 %, p = 0.0039."""
    step = evaluations(tmp_path, [RIGHT] * 19 + [WRONG], [RIGHT] * 10 + [WRONG] * 10)
    code, printed = score(tmp_path / "tuned", "--compare", tmp_path / "base")
    told = warned_of(printed, "EVAL-FORGOT")["message"]
    line = "guard: 95.0 % -> 50.0 % of 20 questions, 9 broken, 0 fixed, p = 0.0039"
    assert code == 0 and told.startswith(line)
    metrics_of(tmp_path / "tuned")
    assert recorded(step) == (0.9, 10)
    shutil.copytree(tmp_path / "out", tmp_path / "copy")  # choosing needs no results
    for folder in ("base", "tuned"):
        shutil.rmtree(tmp_path / folder)
    (listed,) = run_outputs.find(tmp_path / "out")
    assert guard.verdict(listed.guard, "x").message == told
    code, document = said(tmp_path / "out")
    assert document["result"]["checkpoints"][0]["guard"]["comparison"]["broken"] == 9


def test_a_chosen_checkpoint_that_forgot_is_a_warning(tmp_path, checkpoint):
    output = checkpoint.parents[2]
    comparison = {"paired": 40, "fixed": 3, "broken": 30, "unchanged_right": 7}
    comparison |= {"unchanged_wrong": 0, "p_value": 1e-6, "before": "base"}
    table = {"rows": 40, "correct": 10, "accuracy": 0.25, "accuracy_interval": [0.1, 0.4]}
    table |= {"results": "r", "comparison": comparison}
    scores = {NAME: {"accuracy": 0.9, "rows": 10, "guard": table}}
    jsonschema.validate(scores, bundle.schema("checkpoint_metrics"))
    files.write_json(output / checkpoint_metrics.FILE, scores)
    code, document = said(output, "--by", "accuracy")
    told = warned_of(document, "EVAL-FORGOT")["message"]
    assert code == 0 and "92.5 % -> 25.0 % of 40 questions, 30 broken, 3 fixed, p < 0.001" in told
    done = run_script("select_checkpoint.py", output)
    assert "guard: 92.5 % -> 25.0 %" in done.stdout
    table["comparison"] = {"paired": 40}
    files.write_json(output / checkpoint_metrics.FILE, scores)
    code, document = said(output, "--by", "accuracy")
    assert code == 0 and document["result"]["selected"]["guard"] is None


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([RIGHT] * 20, [RIGHT] * 19 + [WRONG], "100.0 % -> 95.0 % of 20"),
        ([WRONG] * 20, [RIGHT] * 20, "0.0 % -> 100.0 % of 20"),
    ],
)
def test_a_loss_within_chance_and_a_gain_are_no_warning(tmp_path, before, after, told):
    evaluations(tmp_path, before, after)
    _, document = score(tmp_path / "tuned", "--compare", tmp_path / "base")
    (found,) = [one for one in document["findings"] if one["id"].startswith("EVAL-GUARD")]
    assert found["severity"] == "info" and told in found["message"]
    assert "EVAL-FORGOT" not in ids(document)


def test_without_an_earlier_run_the_accuracy_alone_is_told(tmp_path):
    evaluations(tmp_path, [RIGHT], [RIGHT, WRONG])
    shutil.rmtree(tmp_path / "base/guard")
    for more in ([], ["--compare", tmp_path / "base"]):
        _, document = score(tmp_path / "tuned", *more)
        (found,) = [one for one in document["findings"] if one["id"] == "EVAL-GUARD"]
        assert "50.0% of 2 questions" in found["message"] and "--compare" in found["fix"]


def test_a_guard_is_no_score_of_a_checkpoint(tmp_path):
    """Not among the results below a folder, and not recorded when it is named itself."""
    step = evaluations(tmp_path, [RIGHT] * 30, [WRONG] * 30)
    assert len(score(tmp_path / "tuned")[1]["result"]["runs"]) == 1
    assert recorded(step) == (0.9, 10)
    code, document = score(tmp_path / "tuned/guard")
    assert code == 0 and document["result"]["runs"][0]["accuracy"] == 0
    assert recorded(step) == (0.9, 10)


def test_other_questions_are_not_paired(tmp_path):
    evaluations(tmp_path, [RIGHT] * 3, [RIGHT] * 3)
    write(tmp_path / "base/guard/results.json", [row("other")])
    code, document = score(tmp_path / "tuned", "--compare", tmp_path / "base")
    assert code == 2 and "EVAL-COMPARE-NOTHING" in ids(document)


def test_the_report_shows_it_before_and_after(tmp_path):
    site = write_evaluation(tmp_path)
    shutil.copytree(site / "results", site / "base")
    general(site / "base", [RIGHT] * 20)
    general(site / "results", [RIGHT] * 8 + [WRONG] * 12)
    words = ["--html", site / "report.html", "--baseline", site / "base"]
    code, document = analyze(site, *words)
    text = (site / "report.html").read_text(encoding="utf-8")
    assert code == 0 and "Got worse: 100.0 % -&gt; 40.0 % of 20 questions" in text
    assert document["result"]["guard"]["comparison"]["broken"] == 12
    assert "EVAL-FORGOT" in ids(document)
    shutil.rmtree(site / "results/guard")
    analyze(site, *words)
    assert "General questions" not in (site / "report.html").read_text(encoding="utf-8")
