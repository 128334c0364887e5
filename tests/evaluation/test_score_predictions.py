"""score_predictions as a command: what it leaves, the user's own metrics, one row explained."""

import importlib.util
import json

import pytest
from scoring import failed_row, ids, metrics_of, row, run_of, score, write
from support import run_script

from cosmos_reason.evaluation import rewards


def test_a_run_without_an_answer_has_no_score(tmp_path):
    write(tmp_path / "metrics.json", {"accuracy": 0.9})  # of what was answered here before
    write(tmp_path / "results.json", [failed_row(f"q{n}") for n in range(20)])
    code, document = score(tmp_path, "--write")
    assert (code, document["ok"], document["result"]["runs"]) == (1, False, [])
    (error,) = [each for each in document["findings"] if each["severity"] == "error"]
    assert error["id"] == "EVAL-ALL-FAILED"
    assert "20 rows" in error["message"] and "server is gone" in error["message"]
    assert not (tmp_path / "metrics.json").exists()
    done = run_script("score_predictions.py", tmp_path)
    assert "0.0%" not in done.stdout and "next:" not in done.stderr


def test_a_run_without_an_answer_takes_no_score_from_the_others(tmp_path):
    write(tmp_path / "step_1" / "results.json", [row("a")])
    write(tmp_path / "step_2" / "results.json", [failed_row("a")])
    code, document = score(tmp_path, "--write")
    assert (code, [run["accuracy"] for run in document["result"]["runs"]]) == (1, [1.0])
    written = [path.parent.name for path in tmp_path.rglob("metrics.json")]
    assert written == ["step_1"]


def test_somebody_elses_results_are_scored_and_their_folder_left_alone(tmp_path):
    theirs = write(tmp_path / "theirs" / "results.json", [row("a")])
    before = write(theirs.parent / "metrics.json", {"mine": 1}).read_text()
    code, document = score(theirs.parent)
    result = document["result"]
    assert (code, result["runs"][0]["accuracy"], result["written"]) == (0, 1, [])
    assert (theirs.parent / "metrics.json").read_text() == before
    assert "--write" in run_script("score_predictions.py", theirs).stdout
    write(theirs, [failed_row("a")])
    score(theirs)
    assert (theirs.parent / "metrics.json").read_text() == before
    job = tmp_path / "jobs" / "evaluate-20260101-000000-abcdef"
    ours = write(job / "results" / "results.json", [row("a")])
    write(job / "job.json", {})
    written = str(ours.parent / "metrics.json")
    assert score(ours)[1]["result"]["written"] == [written]


def test_a_metric_of_the_users_own(tmp_path):
    path = write(
        tmp_path / "results.json",
        [row("a"), row("b", gt="B"), row("c", response=None, error="no frames")],
    )
    own = tmp_path / "own.py"
    own.write_text(
        "def metric(rows):\n"
        "    return {'answered': sum(row['answer'] is not None for row in rows)}\n"
    )
    run = run_of(path, "--write", "--metric-file", own)
    assert run["custom"] == {"answered": 2.0}
    metrics_of(tmp_path)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "def metric(rows): return 1",
        "def metric(rows): 1 / 0",
        "def metric(",
        "metric = 3",
        "def metric(rows): return {'x': float('nan')}",
        "def metric(rows): return {'x': True}",
        "def metric(rows): return {'x': '3'}",
        "def metric(rows): raise SystemExit(0)",
        "import nowhere_to_be_found",
    ],
)
def test_a_metric_file_that_does_not_work_is_one_finding(tmp_path, code):
    path = write(tmp_path / "results.json", [row("a")])
    (tmp_path / "own.py").write_text(code)
    status, document = score(path, "--metric-file", tmp_path / "own.py")
    assert (status, ids(document)) == (2, {"EVAL-METRIC-FILE"})
    if not code:
        assert "it defines no function metric(rows)" in document["findings"][0]["message"]


def test_what_a_metric_file_prints_does_not_reach_stdout(tmp_path):
    path = write(tmp_path / "results.json", [row("a")])
    (tmp_path / "own.py").write_text(
        "print('hello')\ndef metric(rows):\n    print('there')\n    return {'x': 1}\n"
    )
    done = run_script("score_predictions.py", path, "--metric-file", tmp_path / "own.py", "--json")
    assert json.loads(done.stdout)["result"]["runs"][0]["custom"] == {"x": 1.0}
    assert "hello\nthere\n" in done.stderr


def test_bertscore_is_optional_and_says_how_to_get_it(tmp_path):
    if importlib.util.find_spec("bert_score"):
        pytest.skip("bert-score is installed here")
    path = write(
        tmp_path / "results.json", [row("a", gt="A red car turns left.", response="A car.")]
    )
    code, document = score(path, "--type", "text", "--bertscore")
    assert (code, ids(document)) == (2, {"EVAL-BERTSCORE-MISSING"})
    assert document["findings"][0]["fix"].startswith("pip install bert-score==")
    assert not (tmp_path / "metrics.json").exists()


def test_one_row_is_explained(tmp_path):
    path = write(
        tmp_path / "results.json", [row("a", response="It is not red. I pick B."), row("b")]
    )
    code, document = score(path, "--explain", "a")
    told = document["result"]["row"]
    assert code == 0
    assert (told["answer"], told["rule"], told["outcome"]) == ("B", "phrase", "wrong")
    assert told["words"] == "I pick B."
    assert not (tmp_path / "metrics.json").exists()
    code, document = score(path, "--explain", "aa")
    assert (code, ids(document), document["findings"][0]["fix"]) == (2, {"EVAL-EXPLAIN-ID"}, "")


WALK_RUN = '[{"start": 0, "end": 5, "caption": "walk"}, {"start": 5, "end": 9, "caption": "run"}]'
RUN_WALK = '[{"start": 0, "end": 5, "caption": "run"}, {"start": 5, "end": 9, "caption": "walk"}]'
FORKLIFT = '[{"bbox_2d": [10, 20, 110, 220], "label": "fork lift"}]'
FORMS = [  # question, ground truth, its type, a right response, wrong ones
    ("List the events.", WALK_RUN, "events", WALK_RUN.replace("5", "5.0"), [RUN_WALK]),
    ("List the events.", "[{'start': 0, 'end': 5, 'caption': 'walk'}]", "text",
     "[{'start': 0, 'end': 5, 'caption': 'walk'}]", ["[{'start': 0, 'end': 5, 'caption': 'run'}]"]),
    ("What happens when?", "walk 0:05-0:10", "text", "Walk 0:05-0:10", ["run 0:05-0:10"]),
    ("What?", "A. walk\nB. run", "text", "A. walk\nB. run", ["A. jump"]),
    ("Find it.", FORKLIFT, "box", FORKLIFT.replace("220", "210"),
     [FORKLIFT.replace("fork lift", "car"), "[10, 20, 110, 220]"]),
    ("Find it.", '{"bbox_2d": [1, 2, 30, 40], "start": 3}', "text",
     '{"start": 3, "bbox_2d": [1, 2, 30, 40]}', ['{"bbox_2d": [1, 2, 30, 40], "start": 4}']),
    ("Give its box.", "[10, 20, 110, 220]", "box", "[10, 20, 110, 210]", ["[300, 20, 400, 220]"]),
    ("Set the joints.", "[0.1, 0.2, 0.5, 0.6]", "text", "[0.1,0.2,0.5,0.6]",
     ["[0.1, 0.2, 0.5, 0.59]"]),
    ("Point at it.", "[240, 320]", "text", "[240, 320]", ["[240, 310]", "[320, 240]"]),
    ("Point at it.", "[-5, 3]", "text", "[-5, 3]", ["[5, 3]"]),
    ("Point at it.", '{"point_2d": [5, 9], "label": "cup"}', "points",
     '{"label": "cup", "point_2d": [5, 9]}', ['{"point_2d": [5, 9], "label": "door"}']),
    ("How many?", "3-5", "text", "3-5", ["4-5"]),
    ("How long is it?", "3-5 s", "text", "3-5 s", ["3-6 s"]),
    ("When does it close?", "5 pm", "text", "5 pm", ["5 am"]),
    ("Which numbers?", "3, 5, 7", "text", "3,5,7", ["7, 5, 3"]),
    ("What is there?", "3 cars and 2 trucks", "text", "3 cars and 2 trucks.",
     ["2 cars and 3 trucks"]),
    ("When does it fall?", "10-20", "temporal", "10s to 20s", ["30-40"]),
    ("When does it fall?", '{"start": 5, "end": 9}', "temporal", "5s-8s", ["20s-28s"]),
]  # fmt: skip


@pytest.mark.parametrize(("question", "gt", "type", "right", "wrong"), FORMS)
def test_a_form_that_nothing_declares_is_text_and_never_right_by_accident(
    tmp_path, question, gt, type, right, wrong
):
    """The same holds for what GRPO pays."""
    said = [right, *wrong]
    rows = [row(f"q{n}", gt, text, question=question) for n, text in enumerate(said)]
    write(tmp_path / "results.json", rows)
    run = run_of(tmp_path)
    assert list(run["per_type"]) == [type]
    assert round(run["accuracy"] * len(said)) == 1
    paid = [rewards.correct(question, gt, text) > 0 for text in said]
    assert paid == [True] + [False] * len(wrong)


def test_several_numbers_and_json_are_no_closed_set_of_labels(tmp_path):
    gts = ["[1, 2]", "[2, 1]"] * 6
    rows = [row(f"q{n}", gt, "[2, 1]", question="Which?") for n, gt in enumerate(gts)]
    write(tmp_path / "results.json", rows)
    run = run_of(tmp_path)
    assert (list(run["per_type"]), run["accuracy"]) == (["text"], 0.5)
