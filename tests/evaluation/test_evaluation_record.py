"""evaluation.json beside the results, and what follows from it."""

import jsonschema
import pytest
from scoring import ids, metrics_of, row, run_of, score, write
from support import run_script

from cosmos_reason.base import bundle


@pytest.mark.parametrize("record", [[], 3, {"model": 3}, {"checkpoint": ["a"]}, {"task": {}}])
def test_an_evaluation_record_of_another_shape_is_a_finding(tmp_path, record):
    write(tmp_path / "results.json", [row("a")])
    write(tmp_path / "evaluation.json", record)
    assert ids(score(tmp_path)[1]) == {"EVAL-RECORD"}


def test_an_unknown_task_and_what_is_no_result_are_explained(tmp_path):
    path = write(tmp_path / "results.json", [row("a")])
    write(tmp_path / "evaluation.json", {"task": "banana"})
    assert ids(score(path)[1]) == {"EVAL-TASK-UNKNOWN"}
    refused = {"wrapped.json": {"outcome": [row("a")]}, "bools.json": [row("a", gt=True)]}
    messages = [
        score(write(tmp_path / name, rows))[1]["findings"][0]["message"]
        for name, rows in refused.items()
    ]
    assert "a record of outcome" in messages[0] and "got bool as gt" in messages[1]
    assert ids(score(tmp_path / "nope")[1]) == {"EVAL-NO-RESULTS"}


@pytest.mark.parametrize("below", ["results", "results/guard", "results/run-step_4/guard"])
def test_who_makes_the_spec_with_more_tokens_is_told_by_the_job(tmp_path, below):
    write(tmp_path / "job" / "job.json", {"action": "evaluate", "spec": {"source": "/w/e.toml"}})
    folder = tmp_path / "job" / below
    folder.mkdir(parents=True)
    write(folder / "evaluation.json", {"sampling": {"max_tokens": 8}})
    write(folder / "results.json", [row("a"), row("b", response="Let me", is_cut=True)])
    (told,) = [one for one in score(folder)[1]["findings"] if one["id"] == "EVAL-CUT-SHORT"]
    assert "evaluate --spec /w/e.toml -o /w/e-longer.toml --set generation" in told["fix"]


@pytest.mark.parametrize("answers", [0, 1])
def test_thoughts_that_the_tokens_cut_are_no_cause_to_ask_again(tmp_path, answers):
    """The same tokens end the same thoughts; a server that was gone may answer the next time."""
    write(tmp_path / "job" / "job.json", {"action": "evaluate", "spec": {"source": "/w/e.toml"}})
    folder = tmp_path / "job" / "results"
    folder.mkdir()
    write(folder / "evaluation.json", {"sampling": {"max_tokens": 8}})
    cut = "EVAL-ENDPOINT-ANSWER x: got only thoughts (finish_reason 'length'), expected an answer"
    rows = [row(f"cut{n}", response=None, error=cut) for n in range(2)]
    rows += [row(f"whole{n}") for n in range(answers)]
    told = "EVAL-ROW-FAILED" if answers else "EVAL-ALL-FAILED"
    write(folder / "results.json", rows)
    (found,) = [one for one in score(folder)[1]["findings"] if one["id"] == told]
    assert "-o /w/e-longer.toml --set generation.max_tokens=" in found["fix"]
    gone = "EVAL-ENDPOINT-ANSWER x: got no text"
    write(folder / "results.json", [*rows, row("gone", response=None, error=gone)])
    (found,) = [one for one in score(folder)[1]["findings"] if one["id"] == told]
    assert " retry job " in found["fix"]


@pytest.mark.parametrize(
    "record", [[], None, {"spec": "x"}, {"spec": [1]}, {"spec": {"source": 3}}]
)
def test_a_damaged_record_of_the_job_costs_only_the_command(tmp_path, record):
    write(tmp_path / "job" / "job.json", record)
    folder = tmp_path / "job" / "results"
    folder.mkdir(parents=True)
    write(folder / "evaluation.json", {"sampling": {"max_tokens": 8}})
    write(folder / "results.json", [row("a"), row("b", response="Let me", is_cut=True)])
    (told,) = [one for one in score(folder)[1]["findings"] if one["id"] == "EVAL-CUT-SHORT"]
    assert told["fix"] == ""


def test_answers_that_max_tokens_cut_are_told(tmp_path):
    write(tmp_path / "evaluation.json", {"sampling": {"max_tokens": 8}})
    rows = [
        row("a"),
        row("b", response="Let me think", is_cut=True),
        row("c", response="I wonder", is_cut=True),
    ]
    jsonschema.validate(rows, bundle.schema("results"))
    write(tmp_path / "results.json", [*rows, row("d", response="Hm")])
    code, document = score(tmp_path)
    (told,) = document["findings"]
    assert (code, told["id"], told["severity"]) == (0, "EVAL-CUT-SHORT", "warning")
    assert (
        "3 of 4 answers are unparseable, of which 2 were cut at max_tokens=8: raise it"
        in told["message"]
    )
    assert "b ends with 'Let me think'" in told["message"]
    assert told["fix"] == "", "of no job, and its record does not tell what was asked"
    scored = metrics_of(tmp_path)
    assert (scored["unparseable"], scored["cut_short"], scored["unparseable_cut"]) == (3, 2, 2)
    clips = [
        "--kpi-ann-path",
        write(tmp_path / "annotations.json", []),
        "--gaps-parquet",
        tmp_path / "gaps.parquet",
    ]
    page = tmp_path / "page.html"
    done = run_script("analyze_gaps.py", "--results-dir", tmp_path, *clips, "--html", page)
    assert "of which 2 were cut at max_tokens=8: raise it" in page.read_text(encoding="utf-8"), (
        done.stderr
    )
    write(tmp_path / "results.json", [row("a", is_cut=True), row("b")])
    assert "1 of 2 answers were cut at max_tokens=8" in score(tmp_path)[1]["findings"][0]["message"]


def test_results_as_other_tools_write_them(tmp_path):
    asked = [
        {"question_id": f"1-{letter}", "question": "How many?", "answer": letter,
         "options": ["A. 1.", "B. 2."], "response": response}
        for letter, response in [("A", "A"), ("B", "The answer is A."), ("B", "B. 2.")]
    ]  # fmt: skip
    of_videos = [{"video_id": "001", "duration": "short", "questions": asked}]
    labels = [
        {"clip": "0.mp4", "true_label": "fall", "predicted_label": "fall", "confidence": 0.9},
        {"clip": "1.mp4", "true_label": "fall", "predicted_label": "none", "confidence": 0.8},
    ]
    answered = [
        {"id": "a", "video": "a.mp4", "gt": "left", "pred": "left"},
        {"id": "b", "video": "b.mp4", "gt": "left", "pred": "<think>x</think>right"},
    ]
    wrapped = {"model": "cosmos2", "accuracy": 0.5, "rows": answered}
    files = {"videos.json": of_videos, "labels.json": labels, "wrapped.json": wrapped}
    counted = {}
    for name, content in files.items():
        run = run_of(write(tmp_path / name, content))
        counted[name] = run["correct"], run["rows"]
    assert counted == {"videos.json": (2, 3), "labels.json": (1, 2), "wrapped.json": (1, 2)}
