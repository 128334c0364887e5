"""The output of a batch, scored with the annotations that were asked."""

import json

import pytest
from scoring import QUESTION, ids, score, write
from support import run_script

from cosmos_reason.evaluation.rows import read


@pytest.fixture
def asked(tmp_path):
    """Annotations of four questions about three clips."""
    talk = [{"from": "human", "value": f"<video>\n{QUESTION}"}, {"from": "gpt", "value": "A"}]
    again = [{"from": "human", "value": "And now?"}, {"from": "gpt", "value": "B"}]
    records = [
        {"id": "a", "video": "a.mp4", "conversations": [*talk, *again]},
        {"id": "b", "video": "b.mp4", "conversations": talk, "tags": ["night"]},
        {"id": "c", "video": "c.mp4", "conversations": talk},
    ]
    return write(tmp_path / "eval" / "annotations.json", records)


def line(id, said="A", status=200, **choice):
    """As `vllm run-batch` writes it."""
    message = {"role": "assistant", "content": said, "tool_calls": []}
    chosen = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "usage": {}}
    response = {"status_code": status, "request_id": "vllm-batch-1"}
    response["body"] = body | {"choices": [chosen | choice]}
    return {"id": "vllm-1", "custom_id": id, "response": response, "error": None}


def failed(id):
    response = {"status_code": 400, "request_id": "vllm-batch-1", "body": None}
    error = {"object": "error", "message": "the prompt is too long", "code": 400}
    return {"id": "vllm-1", "custom_id": id, "response": response, "error": error}


def output(tmp_path, *lines):
    path = tmp_path / "output.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_a_batch_is_scored_by_the_ids_of_its_requests(tmp_path, asked):
    """Its lines come in any order."""
    path = output(tmp_path, line("b", "B"), line("a#2", "B"), line("c"), line("a"))
    code, document = score(path, "--annotations", asked.parent)
    (run,) = document["result"]["runs"]
    assert (code, run["rows"], run["correct"], run["failed"]) == (0, 4, 3, 0)
    assert not document["findings"]
    graded, _ = read(path, str(asked))
    assert [(row.id, row.video_id, row.media, row.gt) for row in graded[:2]] == [
        ("b", "b", "b.mp4", "A"),
        ("a#2", "a", "a.mp4", "B"),
    ]
    assert graded[0].question == QUESTION and graded[0].tags == ("night",)


def test_questions_without_a_line_and_failed_requests_count_as_failed(tmp_path, asked):
    path = output(tmp_path, line("a"), line("a#2", "B"), failed("b"))
    code, document = score(path, "--annotations", asked)
    (run,) = document["result"]["runs"]
    assert (code, run["rows"], run["correct"], run["failed"]) == (0, 4, 2, 2)
    assert ids(document) == {"EVAL-ROW-FAILED", "EVAL-RESPONSE-MISSING"}
    graded, _ = read(path, str(asked))
    assert graded[2].error == "the prompt is too long"
    assert (graded[3].id, graded[3].error) == ("c", "no response")


@pytest.mark.parametrize(
    "one",
    [
        {"response": {"status_code": 500, "body": {"error": {"message": "out of memory"}}}},
        {"response": {"status_code": 500, "body": None}, "error": None},
        {"response": None, "error": {"code": "batch_expired", "message": "expired"}},
    ],
)
def test_every_way_to_fail_is_an_error(tmp_path, asked, one):
    path = output(tmp_path, line("a"), {"custom_id": "b"} | one)
    graded, _ = read(path, str(asked))
    assert (graded[1].id, graded[1].response) == ("b", None)
    assert graded[1].error in ("out of memory", "the server answered 500", "expired")


def test_texts_of_completions_in_parts_and_cut(tmp_path, asked):
    parts = [{"type": "text", "text": "The answer "}, {"type": "text", "text": "is A."}]
    completion = line("c")
    completion["response"]["body"]["choices"] = [{"text": "A", "finish_reason": "stop"}]
    path = output(tmp_path, line("a", parts), line("b", None, finish_reason="length"), completion)
    graded, _ = read(path, str(asked))
    assert [row.response for row in graded[:3]] == ["The answer is A.", "", "A"]
    assert [row.is_cut for row in graded[:3]] == [False, True, False]


def test_several_choices_are_no_answer(tmp_path, asked):
    twice = line("a")
    twice["response"]["body"]["choices"] *= 2
    code, document = score(output(tmp_path, twice, line("b")), "--annotations", asked)
    assert code == 1 and "EVAL-ROW-TYPE" in ids(document)


def test_a_batch_alone_says_what_it_lacks(tmp_path, asked):
    code, document = score(output(tmp_path, line("a"), failed("b")))
    (finding,) = document["findings"]
    assert (code, finding["id"]) == (2, "EVAL-NOT-RESULTS")
    assert finding["fix"] == "--annotations ANNOTATIONS"


def test_ids_that_are_none_of_the_annotations_are_refused(tmp_path, asked):
    code, document = score(output(tmp_path, line("request-1")), "--annotations", asked)
    (finding,) = document["findings"]
    assert (code, finding["id"]) == (2, "EVAL-NOT-RESULTS")
    assert "request-1" in finding["message"] and "such as a" in finding["message"]
    code, document = score(output(tmp_path, line("request-1"), line("a")), "--annotations", asked)
    assert code == 1 and "EVAL-GT-MISSING" in ids(document)


def test_broken_annotations_are_named(tmp_path):
    broken = write(tmp_path / "annotations.json", [{"id": "a", "video": "a.mp4"}])
    code, document = score(output(tmp_path, line("a")), "--annotations", broken)
    assert code == 2 and "DATA-TURNS-MISSING" in ids(document)


def test_results_with_ground_truths_keep_their_own(tmp_path, asked):
    rows = [{"id": "a", "gt": "B", "response": "B", "question": QUESTION}]
    _, document = score(write(tmp_path / "results.json", rows), "--annotations", asked)
    (run,) = document["result"]["runs"]
    assert (run["rows"], run["correct"]) == (1, 1)


def test_annotations_that_are_not_there_are_told_where_nothing_is_taken_from_them(tmp_path):
    rows = [{"id": "a", "gt": "B", "response": "B", "question": QUESTION}]
    results = write(tmp_path / "results.json", rows)
    code, document = score(results, "--annotations", tmp_path / "anotations.json")
    assert code == 2 and ids(document) == {"FILE-MISSING"}


def test_the_gaps_of_a_batch(tmp_path, asked):
    path = output(tmp_path, line("a", "B"), line("a#2", "B"), line("b"), line("c"))
    words = ("--results-dir", path, "--kpi-ann-path", asked, "--gaps-parquet", tmp_path / "g")
    done = run_script("analyze_gaps.py", *words, "--json")
    result = json.loads(done.stdout)["result"]
    assert (result["rows"], result["gaps"]) == (4, 1), done.stderr
