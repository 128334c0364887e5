"""Every form results come in, and what is wrong with rows."""

import json

import jsonschema
import pytest
from scoring import QUESTION, ids, metrics_of, row, run_of, score, write

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Failure
from cosmos_reason.evaluation import grading
from cosmos_reason.evaluation.rows import read


def test_our_results_are_scored_and_written_beside(tmp_path):
    rows = [
        row("a"),
        row("b", gt="B"),
        row("c", gt="B", response="**B**"),
        row("d", response=None, error="no frames"),
    ]
    jsonschema.validate(rows, bundle.schema("results"))
    path = write(tmp_path / "results.json", rows)
    code, document = score(tmp_path, "--write")
    assert code == 0
    (told,) = document["findings"]
    assert (told["id"], told["fix"]) == ("EVAL-ROW-FAILED", "")
    assert told["message"].endswith("`error` in each row says why. The commonest: no frames")
    scored = metrics_of(tmp_path)
    assert (scored["rows"], scored["correct"], scored["failed"]) == (4, 2, 1)
    assert scored["results"] == str(path)
    assert document["result"]["runs"][0]["accuracy"] == 0.5


def test_the_commonest_error_is_told_in_one_line(tmp_path):
    error = "Traceback (most recent call last):\n  File x\nValueError: z"
    rows = [row("a"), row("b", response=None, error=error)]
    (found,) = read(write(tmp_path / "results.json", rows))[1]
    assert found.message.endswith("recent call last): File x ValueError: z")


@pytest.mark.parametrize(
    ("problem", "is_asked_again"),
    [
        ("got HTTP 503: busy, after 6 attempt(s)", True),
        ("got HTTP 429: slower, after 6 attempt(s)", True),
        ("got no text (finish_reason 'stop'), expected an answer", True),
        ("got HTTP 400: the prompt is too long, after 1 attempt(s)", False),
        ("got only thoughts (finish_reason 'length'), expected an answer: its tokens ended", False),
    ],
)
def test_what_would_fail_again_is_not_asked_again(tmp_path, problem, is_asked_again):
    error = f"EVAL-ENDPOINT-ANSWER http://127.0.0.1:1/v1: {problem}"
    rows = [row("a"), row("b", response=None, error=error)]
    path = write(tmp_path / "jobs/one/results/results.json", rows)
    (tmp_path / "jobs/one/job.json").write_text("{}")
    (found,) = grading.read(path, grading.Options())[1]
    assert ("launch_job.py retry one" in str(found.fix)) is is_asked_again


def test_annotations_are_read_where_they_may_add_to_the_rows(tmp_path):
    path = write(tmp_path / "results.json", [row("a"), row("b")])
    turns = [{"from": "human", "value": f"<video>\n{QUESTION}"}, {"from": "gpt", "value": "A"}]
    records = [{"id": one, "video": "v.mp4", "conversations": turns} for one in "ab"]
    asked = tmp_path / "annotations.json"
    asked.write_text(json.dumps(records)[:-1])  # it breaks off
    assert len(read(path, str(asked))[0]) == 2, "the rows have all that it could tell"
    write(path, [row("a") | {"media": None}, row("b")])
    with pytest.raises(Failure):
        read(path, str(asked))
    write(path, [row("a"), row("b")])
    asked.write_text(json.dumps([one | {"tags": ["night"]} for one in records]))
    assert [one.tags for one in read(path, str(asked))[0]] == [("night",), ("night",)]


def test_tao_rows_have_only_four_fields_and_several_per_clip(tmp_path):
    rows = [
        {"video_id": "clip", "response": said, "question": f"Is it {colour}?", "gt": "yes"}
        for said, colour in (("Yes.", "red"), ("no", "blue"), ("", "green"))
    ]
    write(tmp_path / "results.json", rows)
    graded, found = read(tmp_path / "results.json")
    assert [row.id for row in graded] == ["clip", "clip#2", "clip#3"]
    assert not found
    assert run_of(tmp_path)["accuracy"] == pytest.approx(1 / 3, abs=1e-6)


def test_json_lines(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row(f"r{n}")) + "\n" for n in range(5)), encoding="utf-8")
    assert run_of(path)["rows"] == 5


OF_OTHERS = {
    "LLaMA-Factory": {"prompt": QUESTION, "predict": "A", "label": "A"},
    "ms-swift": {"response": "A", "labels": "A", "messages": [], "videos": ["a.mp4"]},
    "lmms-eval": {"doc_id": 4, "input": QUESTION, "target": "A", "filtered_resps": ["A"]},
    "lm-eval": {
        "doc_id": 4,
        "doc": {"question": QUESTION},
        "target": "A",
        "filtered_resps": [["A"]],
    },
}


ASKED = {"question": "Is it red?"}


@pytest.mark.parametrize(
    ("record", "read_as"),
    [
        *(
            (ASKED | {truth: "Yes", said: "no"}, ("Yes", "no", None))
            for said in ("prediction", "pred", "output", "generated_text", "hypothesis")
            for truth in ("answer", "reference", "ground_truth", "correct_answer", "expected")
        ),
        ({"prompt": "?", "label": "A", "predict": "B"}, ("A", "B", None)),
        ({"prompt": "?", "correct_answer": "A", "full_response": "B"}, ("A", "B", None)),
        # `answer` may be what was read in the response.
        ({"gt": "B", "response": "B", "answer": "A"}, ("B", "B", None)),
        ({"gt": "Yes", "answer": "no"}, ("Yes", "no", None)),
        ({"gt": "Yes", "answer": "no", "response": None, "error": "?"}, ("Yes", None, "?")),
        ({"references": ["A car."], "prediction": "A car."}, ("A car.", "A car.", None)),
    ],
)
def test_names_that_people_give_to_ground_truths_and_predictions(tmp_path, record, read_as):
    rows = [{"index": number, **record} for number in range(2)]
    (graded, other), found = read(write(tmp_path / "mine.json", rows))
    assert (graded.gt, graded.response, graded.error) == read_as
    assert (graded.id, other.id) == ("0", "1")
    assert {one.id for one in found} <= {"EVAL-ROW-FAILED"}


def test_several_references_are_no_ground_truth(tmp_path):
    rows = [{"references": said, "prediction": "A car."} for said in (["A."], ["A.", "B."])]
    graded, found = read(write(tmp_path / "mine.json", rows))
    assert [row.gt for row in graded] == ["A.", ""]
    assert {"EVAL-ROW-TYPE", "EVAL-GT-MISSING"} <= {finding.id for finding in found}


def test_rows_that_a_resumed_evaluation_wrote_twice_are_said(tmp_path):
    """TAO's rows have no ids: the second answer to a question looks like one to another."""
    rows = []
    for number in range(4):
        for asked in ("Is it on?", "Is it red?"):
            rows.append({"video_id": f"v{number}", "question": asked, "gt": "yes"})
            rows[-1]["response"] = "yes"
    code, document = score(write(tmp_path / "results.json", rows))
    assert (code, document["findings"]) == (0, [])
    code, document = score(write(tmp_path / "results.json", [*rows, *rows[:3]]))
    (found,) = document["findings"]
    assert (code, found["id"], found["severity"]) == (0, "EVAL-ROW-TWICE", "warning")
    assert found["data"]["record_ids"] == ["v0#3", "v0#4", "v1#3"]


@pytest.mark.parametrize(
    "told",
    [
        {"video_id": "v0"},  # several questions about one clip, which the rows do not tell
        {"media": "v0.mp4"},
        {"question": "Is it on?"},  # of clips that the rows do not name
    ],
)
def test_rows_that_may_ask_other_things_are_not_called_twice(tmp_path, told):
    rows = [{"gt": "yes", "response": "yes"} | told for _ in range(3)]
    said = score(write(tmp_path / "results.json", rows))[1]
    assert "EVAL-ROW-TWICE" not in {one["id"] for one in said["findings"]}
    asked = {"video_id": "v0", "question": "Is it on?", "gt": "yes", "response": "yes"}
    rows = [asked | {"media": f"v0/part-{part}.mp4"} for part in range(3)]
    code, said = score(write(tmp_path / "results.json", rows))
    assert (code, said["findings"]) == (0, [])


def test_a_response_beside_an_answer_has_no_ground_truth(tmp_path):
    """The answer may be what was read in the response: the score would be that of nothing."""
    rows = [{"id": "a", "question": "Is it red?", "answer": "Yes", "response": "Yes."}]
    with pytest.raises(Failure) as refused:
        read(write(tmp_path / "mine.json", rows))
    (finding,) = refused.value.findings
    assert finding.id == "EVAL-NOT-RESULTS" and '"gt"' in finding.message


def test_predictions_in_a_table(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('id;question;prediction;answer\na;"Red; or not?";yes;Yes\nb;Red?;no;Yes\n')
    graded, _ = read(path)
    assert [(row.id, row.question, row.gt, row.response) for row in graded] == [
        ("a", "Red; or not?", "Yes", "yes"),
        ("b", "Red?", "Yes", "no"),
    ]


@pytest.mark.parametrize("harness", OF_OTHERS)
def test_lines_of_other_harnesses_are_scored_without_flags(tmp_path, harness):
    """Their rows may have no ids: the numbers of the rows tell them apart."""
    record = OF_OTHERS[harness]
    other = {"doc_id": 5} if "doc_id" in record else {}
    lines = [record, record | other]
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    code, document = score(path)
    assert (code, document["result"]["runs"][0]["accuracy"]) == (0, 1.0)
    assert {finding["severity"] for finding in document["findings"]} <= {"info"}
    assert not (tmp_path / "metrics.json").exists()


def test_several_responses_to_one_question_are_no_text(tmp_path):
    record = OF_OTHERS["lmms-eval"]
    lines = [record, record | {"doc_id": 5, "filtered_resps": ["A", "B"]}]
    (tmp_path / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, document = score(tmp_path / "samples.jsonl")
    assert code == 1 and ids(document) == {"EVAL-ROW-TYPE"}


def test_bad_rows_stay_in_every_denominator(tmp_path):
    rows = [
        row("good"),
        row("good"),
        row("no-gt", gt=None),
        row("list", response=["A"]),
        "text",
        None,
        {"question": QUESTION, "gt": "A", "response": "A"},
        row("tags", tags=7),
        row("mute", response=None),
    ]
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
    rows = [
        row("a"),
        row("a", tags=["night", "night"]),
        row("a#2", tags="night"),
        row("b", tags=["night", 5]),
    ]
    graded, found = read(write(tmp_path / "results.json", rows))
    assert len({row.id for row in graded}) == 4
    assert [row.tags for row in graded] == [(), ("night",), ("night",), ("night",)]
    assert next(f for f in found if f.id == "EVAL-ROW-TAGS").data["record_ids"] == [
        graded[2].id,
        "b",
    ]


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


PLAIN = [row("a"), row("b", video_id="a", response=""), row("c", question="<video>\nWhich?")]


@pytest.mark.parametrize(
    "odd",
    [
        row("d"),
        row("a"),
        row("d", gt=""),
        row("d", response=None, error="no frames"),
        row("d", tags=["night"]),
        row("d", choice={"A": 0.9}),
        row("d", is_cut=True),
        row("d", gt=4),
        {"id": "d", "prompt": "Which?", "label": "A", "predict": "B"},
    ],
)
def test_rows_of_a_line_each_are_read_as_any_others(tmp_path, odd, monkeypatch):
    """Lines of rows as an evaluation of ours writes them are read many at once in large files."""
    monkeypatch.setattr("cosmos_reason.evaluation.rows.MANY_FROM", 0)
    rows = [*PLAIN, odd, row("e", media=None), row("f")]
    path = tmp_path / "results.json"
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    many, found = read(path)
    single, told = read(write(path, rows))
    assert many == single and found == told
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    assert read(lines)[0] == many


def test_equal_texts_of_rows_are_one_object(tmp_path):
    rows = [row(f"r{number}", video_id="clip") for number in range(2)]
    first, second = read(write(tmp_path / "results.json", rows))[0]
    for name in ("video_id", "question", "gt", "response"):
        assert getattr(first, name) is getattr(second, name), name
    alone = read(write(tmp_path / "alone.json", [row("r0", video_id="r0")]))[0][0]
    assert alone.video_id is alone.id


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


def test_a_missing_file_and_an_empty_folder(tmp_path):
    assert score(tmp_path / "nothing.json")[0] == 2
    (tmp_path / "empty").mkdir()
    assert ids(score(tmp_path / "empty")[1]) == {"EVAL-NO-RESULTS"}


def test_text_that_is_no_utf8_and_markup_pass_through(tmp_path):
    rows = [
        row("a\ud800", response="\ud800 A"),
        row("<script>alert(1)</script>", response="<b>A</b>\0"),
    ]
    (tmp_path / "results.json").write_text(json.dumps(rows), encoding="utf-8")
    assert score(tmp_path)[0] == 0
