"""score_predictions: every form results come in, what is wrong with them, and the files it leaves."""

import importlib.util
import json
from pathlib import Path

import jsonschema
import pytest
from support import run_script

from cosmos_reason import answers, bundle, results

QUESTION = "Pick one.\n(A) red\n(B) green"


def row(id: str, gt="A", response="A", **more) -> dict:
    return {"id": id, "video_id": id, "media": "v.mp4", "question": QUESTION, "gt": gt, "response": response,
            "answer": None, "type": "mcq", "correct": None, "error": None, "vision_tokens": 64, **more}  # fmt: skip


def write(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def score(*args) -> tuple[int, dict]:
    done = run_script("score_predictions.py", *args, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def ids(document: dict) -> set[str]:
    return {finding["id"] for finding in document["findings"]}


# -- forms ---------------------------------------------------------------------------------------------------------


def test_our_results_are_scored_and_written_beside(tmp_path):
    rows = [row("a"), row("b", gt="B"), row("c", gt="B", response="**B**"), row("d", response=None, error="no frames")]
    jsonschema.validate(rows, bundle.schema("results"))
    path = write(tmp_path / "results.json", rows)
    code, document = score(tmp_path)
    assert code == 0
    assert ids(document) == {"EVAL-ROW-FAILED"}
    scored = json.loads((tmp_path / "metrics.json").read_text())
    jsonschema.validate(scored, bundle.schema("metrics"))
    assert (scored["rows"], scored["correct"], scored["failed"]) == (4, 2, 1)
    assert scored["results"] == str(path)
    assert document["result"]["runs"][0]["accuracy"] == 0.5


def test_tao_rows_have_only_four_fields_and_several_per_clip(tmp_path):
    rows = [
        {"video_id": "clip", "response": said, "question": "Is it red?", "gt": "yes"} for said in ("Yes.", "no", "")
    ]
    write(tmp_path / "results.json", rows)
    read, found = results.read(tmp_path / "results.json")
    assert [r.id for r in read] == ["clip", "clip#2", "clip#3"]
    assert not found
    assert score(tmp_path)[1]["result"]["runs"][0]["accuracy"] == pytest.approx(1 / 3, abs=1e-6)


def test_json_lines(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row(f"r{n}")) + "\n" for n in range(5)), encoding="utf-8")
    assert score(path)[1]["result"]["runs"][0]["rows"] == 5


REASON1 = [
    {"is_correct": True, "correct_answer": "A", "full_response": "<answer>A</answer>"},
    {"is_correct": False, "correct_answer": "A", "full_response": "<answer>B</answer>"},
    {"correct_answer": "A", "full_response": "<answer>A</answer>"},
    "str",
    {"is_correct": "false", "correct_answer": "B", "full_response": "<answer>The answer is B</answer>"},
    {"is_correct": None, "correct_answer": "B", "full_response": ""},
    {"is_correct": 1, "correct_answer": "B", "full_response": "<answer>B</answer>"},
]


def reason1_folder(folder: Path) -> Path:
    """A tree on which calculate_accuracy.py printed 6 samples, 4 correct, 0.6667 (66.67%)."""
    write(folder / "one/reasoning/robovqa/v1.json", REASON1)
    write(folder / "one/reasoning/robovqa/dict.json", {"is_correct": True})
    (folder / "one/reasoning/robovqa/bad.json").write_text("[{", encoding="utf-8")
    write(folder / "one/reasoning/robovqa/empty.json", [])
    write(folder / "two/reasoning/robovqa/v1.json", [{"is_correct": True}])
    return folder


def test_compat_reason1_prints_what_calculate_accuracy_prints(tmp_path):
    done = run_script("score_predictions.py", reason1_folder(tmp_path), "--compat", "reason1")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Total samples processed across all files: 6",
        "Total samples counted as correct: 4",
        "Mean accuracy: 0.6667 (66.67%)",
    ]
    assert not list(tmp_path.rglob("metrics.json"))


def test_compat_reason1_of_nothing_countable_is_zero_and_an_error_as_is_a_folder_without_json(tmp_path):
    write(tmp_path / "a" / "v.json", [{"answer": "A"}])
    (tmp_path / "b").mkdir()
    code, document = score(tmp_path / "a", "--compat", "reason1")
    assert document["result"] == {"samples": 0, "correct": 0, "accuracy": 0.0}
    assert (code, ids(document)) == (1, {"EVAL-COMPAT-NOTHING"})
    assert score(tmp_path / "b", "--compat", "reason1")[0] == 2


def test_compat_on_ordinary_results_says_so_and_its_fix_works(tmp_path):
    path = write(tmp_path / "results.json", [row("a")])
    assert score(path, "--compat", "reason1")[0] == 2
    code, document = score(tmp_path, "--compat", "reason1")
    assert (code, ids(document)) == (1, {"EVAL-COMPAT-NOTHING"})
    script, *words = document["findings"][0]["fix"].split()
    assert run_script(script.removeprefix("scripts/"), *words).returncode == 0
    assert ids(score(tmp_path, "--compat", "reason1", "--compare", path)[1]) == {"USAGE"}


def test_a_reason1_folder_is_judged_anew_from_the_responses(tmp_path):
    items = [item for item in REASON1 if isinstance(item, dict)]
    prompt = [{"role": "user", "content": [{"type": "video", "video": "x"}, {"type": "text", "text": QUESTION}]}]
    write(tmp_path / "model/letter/robovqa/v1.json", [item | {"video_id": "v1", "prompt": prompt} for item in items])
    rows, _ = results.read(tmp_path)
    results.judge(rows)
    assert [r.outcome for r in rows] == ["right", "wrong", "right", "right", "unparseable", "right"]
    assert {r.question for r in rows} == {QUESTION}
    assert len({r.id for r in rows}) == 6


# -- what is wrong with rows -----------------------------------------------------------------------------------------


def test_bad_rows_stay_in_every_denominator(tmp_path):
    rows = [row("good"), row("good"), row("no-gt", gt=None), row("list", response=["A"]), "text", None,
            {"question": QUESTION, "gt": "A", "response": "A"}, row("tags", tags=7),
            row("mute", response=None)]  # fmt: skip
    code, document = score(write(tmp_path / "results.json", rows))
    assert code == 1
    assert ids(document) == {
        "EVAL-ID-DUPLICATE",
        "EVAL-GT-MISSING",
        "EVAL-ROW-TYPE",
        "EVAL-ID-MISSING",
        "EVAL-ROW-TAGS",
        "EVAL-RESPONSE-MISSING",
    }
    assert document["result"]["runs"][0]["rows"] == len(rows)
    assert document["result"]["runs"][0]["correct"] == 4
    duplicate = next(f for f in document["findings"] if f["id"] == "EVAL-ID-DUPLICATE")
    assert duplicate["data"]["record_ids"] == ["good"]


def test_repaired_ids_stay_unique_and_tags_count_once(tmp_path):
    rows = [row("a"), row("a", tags=["night", "night"]), row("a#2", tags="night"), row("b", tags=["night", 5])]
    read, found = results.read(write(tmp_path / "results.json", rows))
    assert len({r.id for r in read}) == 4
    assert [r.tags for r in read] == [(), ("night",), ("night",), ("night",)]
    assert next(f for f in found if f.id == "EVAL-ROW-TAGS").data["record_ids"] == [read[2].id, "b"]


def test_an_unknown_task_and_what_is_no_result_are_explained(tmp_path):
    path = write(tmp_path / "results.json", [row("a")])
    write(tmp_path / "evaluation.json", {"task": "banana"})
    assert ids(score(path)[1]) == {"EVAL-TASK-UNKNOWN"}
    refused = {"wrapped.json": {"results": [row("a")]}, "bools.json": [row("a", gt=True)]}
    messages = [score(write(tmp_path / name, rows))[1]["findings"][0]["message"] for name, rows in refused.items()]
    assert "a record of results" in messages[0] and "got bool as gt" in messages[1]
    assert ids(score(tmp_path / "nope")[1]) == {"EVAL-NO-RESULTS"}


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        ("[]", "EVAL-NO-ROWS"),
        ("", "DATA-JSON"),
        ("[{", "DATA-JSON"),
        (json.dumps([row("a"), row("b")])[:-40], "DATA-JSON"),
        ('{"id": "a"}\n{"id": "b", "resp', "DATA-JSON"),
        (json.dumps([row("a")]) + json.dumps([row("b")]), "DATA-JSON"),
        ("not json", "DATA-JSON"),
        ("[" * 100_000, "DATA-JSON"),
    ],
)
def test_a_file_that_is_cut_off_or_no_rows_is_one_finding(tmp_path, content, finding):
    path = tmp_path / "results.json"
    path.write_text(content, encoding="utf-8")
    code, document = score(path)
    assert (code, ids(document)) == (2, {finding})
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        [{"id": "a", "video": "a.mp4", "conversations": [{"from": "human", "value": "?"}]}],
        {"schema_version": 1, "rows": 3},
        [1, 2],
        [{"id": "a", "gt": "A"}],
        [{"id": "a", "response": "A"}],
    ],
)
def test_files_that_are_no_results_are_refused_and_nothing_is_written(tmp_path, content):
    path = write(tmp_path / "other.json", content)
    code, document = score(path)
    assert code == 2
    assert ids(document) <= {"EVAL-NOT-RESULTS", "EVAL-NO-ROWS"}
    assert [file.name for file in tmp_path.iterdir()] == ["other.json"]


def test_results_in_which_everything_failed_are_results(tmp_path):
    write(tmp_path / "results.json", [row("a", response=None, error="no frames")])
    assert score(tmp_path)[1]["result"]["runs"][0]["failed"] == 1


def test_a_missing_file_and_an_empty_folder(tmp_path):
    assert score(tmp_path / "nothing.json")[0] == 2
    (tmp_path / "empty").mkdir()
    assert ids(score(tmp_path / "empty")[1]) == {"EVAL-NO-RESULTS"}


def test_a_type_the_ground_truths_do_not_have_is_an_error(tmp_path):
    path = write(tmp_path / "results.json", [row("a"), row("b", gt="the red one, clearly")])
    code, document = score(path, "--type", "yes_no")
    assert code == 1
    assert ids(document) == {"EVAL-GT-TYPE"}
    assert document["result"]["runs"][0]["rows"] == 2


def test_text_that_is_no_utf8_and_markup_pass_through(tmp_path):
    rows = [row("a\ud800", response="\ud800 A"), row("<script>alert(1)</script>", response="<b>A</b>\0")]
    (tmp_path / "results.json").write_text(json.dumps(rows), encoding="utf-8")
    assert score(tmp_path)[0] == 0


# -- types of a whole set ----------------------------------------------------------------------------------------------


def judged(pairs, question="What is the weather?"):
    rows = [results.Row(f"r{n}", "v", None, question, gt, said, None) for n, (gt, said) in enumerate(pairs)]
    results.judge(rows)
    return rows


def test_few_short_ground_truths_are_a_closed_set():
    rows = judged([("Rain", "It is rain."), ("Snow", "rain or snow"), ("Clear sky", "Clear sky!")] * 4)
    assert {r.type for r in rows} == {"label"}
    assert [r.outcome for r in rows[:3]] == ["right", "unparseable", "right"]


def test_captions_are_no_closed_set():
    rows = judged([(f"A red car number {n} turns left at the crossing.", "A red car turns left.") for n in range(12)])
    assert {r.type for r in rows} == {"text"}


def test_each_often_asked_question_has_its_own_labels():
    weather = judged([("rain", "rain"), ("sun", "rain")] * 8)
    road = judged([("wet", "The road is wet."), ("dry", "rain")] * 8, "What is the road like?")
    rows = weather + road
    results.judge(rows)
    assert {r.type for r in rows} == {"label"}
    assert rows[-1].outcome == "unparseable"  # "rain" is no label of that question
    assert rows[1].outcome == "wrong"


def test_ok_and_ng_are_two_labels():
    rows = judged([("OK", "ok"), ("NG", "The part is NG."), ("NG", "OK"), ("OK", "?")], "Is the part good?")
    assert [r.outcome for r in rows] == ["right", "right", "wrong", "unparseable"]


def test_every_type_can_be_asked_for(tmp_path):
    path = write(tmp_path / "results.json", [row("a", gt="5", response="5")])
    for kind in answers.TYPES:
        assert score(path, "--type", kind)[0] in (0, 1)


def test_the_directionality_task_is_read_from_the_evaluation_or_asked_for(tmp_path):
    rows = [row("a", gt="left", question="Where?", response="It goes straight."), row("b", gt="B", question="?")]
    write(tmp_path / "results.json", rows)
    code, document = score(tmp_path, "--type", "its_directionality")
    assert (code, set(document["result"]["runs"][0]["per_type"])) == (1, {"direction"})
    write(tmp_path / "evaluation.json", {"task": "its_directionality"})
    assert set(score(tmp_path)[1]["result"]["runs"][0]["per_type"]) == {"direction"}


@pytest.mark.parametrize("tolerance", ["nan", "-1", "2", "x"])
def test_a_tolerance_is_a_share(tmp_path, tolerance):
    path = write(tmp_path / "results.json", [row("a", gt="5", response="5")])
    assert score(path, "--tolerance", tolerance)[0] == 2


@pytest.mark.parametrize("record", [[], 3, {"model": 3}, {"checkpoint": ["a"]}, {"task": {}}])
def test_an_evaluation_record_of_another_shape_is_a_finding(tmp_path, record):
    write(tmp_path / "results.json", [row("a")])
    write(tmp_path / "evaluation.json", record)
    assert ids(score(tmp_path)[1]) == {"EVAL-RECORD"}


# -- the user's own metric ---------------------------------------------------------------------------------------------


def test_a_metric_of_the_users_own(tmp_path):
    path = write(tmp_path / "results.json", [row("a"), row("b", gt="B"), row("c", response=None, error="no frames")])
    own = tmp_path / "own.py"
    own.write_text("def metric(rows):\n    return {'answered': sum(row['answer'] is not None for row in rows)}\n")
    assert score(path, "--metric-file", own)[1]["result"]["runs"][0]["custom"] == {"answered": 2.0}
    jsonschema.validate(json.loads((tmp_path / "metrics.json").read_text()), bundle.schema("metrics"))


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


def test_what_a_metric_file_prints_does_not_reach_stdout(tmp_path):
    path = write(tmp_path / "results.json", [row("a")])
    (tmp_path / "own.py").write_text("print('hello')\ndef metric(rows):\n    print('there')\n    return {'x': 1}\n")
    done = run_script("score_predictions.py", path, "--metric-file", tmp_path / "own.py", "--json")
    assert json.loads(done.stdout)["result"]["runs"][0]["custom"] == {"x": 1.0}
    assert "hello\nthere\n" in done.stderr


def test_bertscore_is_optional_and_says_how_to_get_it(tmp_path):
    if importlib.util.find_spec("bert_score"):
        pytest.skip("bert-score is installed here")
    path = write(tmp_path / "results.json", [row("a", gt="A red car turns left.", response="A car.")])
    code, document = score(path, "--type", "text", "--bertscore")
    assert (code, ids(document)) == (2, {"EVAL-BERTSCORE-MISSING"})
    assert document["findings"][0]["fix"].startswith("pip install bert-score==")
    assert not (tmp_path / "metrics.json").exists()


# -- comparing, and what is left for select_checkpoint -----------------------------------------------------------------


def test_two_runs_are_compared_by_question(tmp_path):
    before = [row("a", response="B"), row("b"), row("c"), row("d", response="B"), row("only-before")]
    after = [row("d", response="B"), row("c"), row("b", response="B"), row("a"), row("only-after")]
    write(tmp_path / "before/results.json", before)
    write(tmp_path / "after/results.json", after)
    pair = score(tmp_path / "after", "--compare", tmp_path / "before/results.json")[1]["result"]["runs"][0][
        "comparison"
    ]
    assert (pair["fixed"], pair["broken"], pair["unchanged_right"], pair["unchanged_wrong"]) == (1, 1, 1, 1)
    assert (pair["only_before"], pair["only_after"], pair["p_value"]) == (1, 1, 1.0)


def test_runs_without_a_common_question_are_not_compared(tmp_path):
    after, before = write(tmp_path / "a/results.json", [row("a")]), write(tmp_path / "b/results.json", [row("b")])
    code, document = score(after, "--compare", before)
    assert (code, ids(document)) == (2, {"EVAL-COMPARE-NOTHING"})
    assert not (tmp_path / "a/metrics.json").exists()


def test_questions_of_one_run_only_and_other_questions_of_the_same_id_are_named(tmp_path):
    after = write(tmp_path / "a/results.json", [row("a"), row("b"), row("c")])
    before = write(tmp_path / "b/results.json", [row("a", gt="B"), row("b", question="Another?")])
    code, document = score(after, "--compare", before)
    assert (code, ids(document)) == (1, {"EVAL-COMPARE-PARTIAL", "EVAL-COMPARE-OTHER"})
    other = next(f for f in document["findings"] if f["id"] == "EVAL-COMPARE-OTHER")
    assert other["data"]["record_ids"] == ["a", "b"]
