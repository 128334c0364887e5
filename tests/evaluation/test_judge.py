"""The judge: which rows it is asked about, what it is sent, what its verdicts change, and what is
kept of them."""

import json
from pathlib import Path

import jsonschema
import pytest
from chat_server import said
from scoring import ids, metrics_of, paste, recorded, row, run_of, score, warned_of, write
from support import run_script

from cosmos_reason.base import bundle
from cosmos_reason.evaluation import judge
from cosmos_reason.evaluation.judge import OTHER, SAME, UNDECIDED
from cosmos_reason.evaluation.rows import Row, find

CHOICE = "Pick one.\n(A) red\n(B) green"
VAGUE = "It is the colour of fresh grass."
ROWS = [
    row("right"),
    row("wrong", response="B"),
    row("vague", gt="B", response=f"<think>A or B?</think>{VAGUE}"),
    row("none", response="I cannot tell at all."),
    row("failed", response=None, error="the server was gone"),
    row("thought", response="<think>perhaps A"),
    *(
        row(id, question="What happens?", gt="A red car turns left.", response=said, type="text")
        for id, said in (("told", "To the left a red car goes."), ("untold", "A dog barks."))
    ),
]
PUT = {"vague", "none", "told", "untold"}


def reply(body, number):
    """As a careful person would reply to the four open rows."""
    prompt = body["messages"][0]["content"]
    verdicts = {"fresh grass": "B", "cannot tell": UNDECIDED, "To the left": SAME, "dog": OTHER}
    (verdict,) = [verdict for words, verdict in verdicts.items() if words in prompt]
    return 200, said(f"<think>VERDICT: A?</think>\nVERDICT: {verdict}"), 0


@pytest.fixture
def asked(server):
    server.plan = reply
    return ("--judge", server.url, "--judge-model", "a-judge")


def stored(path: Path) -> dict:
    rows = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(rows, bundle.schema("results"))
    return {row["id"]: row["judge"]["verdict"] for row in rows if row.get("judge")}


def test_rows_that_the_rules_cannot_read_are_judged_and_no_others(tmp_path, server, asked):
    path = write(tmp_path / "results.json", ROWS)
    by_rules = run_of(path)
    code, document = score(path, "--write", *asked)
    run = document["result"]["runs"][0]
    assert (code, by_rules["correct"], run["correct"], len(server.requests)) == (0, 1, 3, len(PUT))
    told = {
        name: run["judge"][name]
        for name in ("asked", "right", "wrong", "undecided", "failed", "model")
    }
    expected = {"asked": 4, "right": 2, "wrong": 1, "undecided": 1, "failed": 0, "model": "a-judge"}
    assert told == expected and run["judge"]["accuracy_by_rules"] == by_rules["accuracy"]
    assert (run["judged"], run["judged_right"], run["unparseable"]) == (3, 2, 2)
    metrics_of(tmp_path)
    assert stored(path) == {"vague": "B", "none": UNDECIDED, "told": SAME, "untold": OTHER}
    (info,) = [finding for finding in document["findings"] if finding["id"] == "EVAL-JUDGED"]
    assert "4 row(s)" in info["message"] and "a-judge at" in info["message"]
    done = run_script("score_predictions.py", path, *asked)
    assert (
        "accuracy 37.5%, of which 2 rows by judge (a-judge read 3 of 4); by the rules alone 12.5%"
        in done.stdout
    )
    assert len(server.requests) == len(PUT), "a second run asks nothing"


def test_without_the_flag_nobody_is_asked_and_stored_verdicts_do_not_count(tmp_path, server, asked):
    path = write(tmp_path / "results.json", ROWS)
    score(path, *asked)
    server.requests.clear()
    run = run_of(path)
    assert (run["correct"], run["judged"], "judge" in run, server.requests) == (1, 0, False, [])
    assert stored(path).keys() == PUT


def test_the_judge_is_sent_question_choices_ground_truth_and_what_answers(tmp_path, server, asked):
    score(write(tmp_path / "results.json", ROWS), *asked)
    bodies = {body["messages"][0]["content"]: body for body in server.requests}
    (prompt,) = [prompt for prompt in bodies if VAGUE in prompt]
    assert {"Pick one.", "A: red", "B: green", "Correct answer: B", json.dumps(VAGUE)} <= set(
        [*prompt.splitlines(), prompt.partition("Answer to read: ")[2].splitlines()[0]]
    )
    assert "A or B?" not in prompt, "thinking is no answer"
    assert (bodies[prompt]["model"], bodies[prompt]["temperature"]) == ("a-judge", 0)
    (free,) = [prompt for prompt in bodies if "A dog barks." in prompt]
    assert free.rstrip().endswith(f"exactly one of {SAME}, {OTHER}, {UNDECIDED}")


def case(type: str, labels=(), question="What?", gt="x", response="Hm, well") -> dict[str, str]:
    one = Row("r", "v", None, question, gt, response, None, type=type, expected="x", labels=labels)
    return judge.choices_of(one)


def test_choices_are_those_of_the_question():
    assert case("mcq", question=CHOICE) == {"A": "red", "B": "green"}
    assert case("mcq", labels=("red", "green")) == {"A": "red", "B": "green"}
    assert list(case("yes_no")) == ["yes", "no"]
    assert "straight" in case("direction")
    assert list(case("label", labels=("rain", "snow"))) == ["rain", "snow"]
    assert list(case("number")) == list(case("text")) == [SAME, OTHER]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("VERDICT: B", "B"),
        ("verdict: b.", "B"),
        ("**VERDICT:** `B`", "B"),
        ("<think>VERDICT: A</think>VERDICT: B (green)", "B"),
        ("First VERDICT: A, no.\nVERDICT: B\n", "B"),
        ("B", "B"),
        ("VERDICT: UNDECIDED", UNDECIDED),
        ("VERDICT: A or B", None),
        ("VERDICT: A/B", None),
        ("VERDICT: not A", None),
        ("VERDICT: C", None),
        ("The answer says B, I think", None),
        ("<think>VERDICT: A", None),
        ("", None),
    ],
)
def test_a_verdict_is_one_of_the_choices_or_none(text, verdict):
    assert judge.verdict_of(text, {"A": "red", "B": "green"}) == verdict


def test_both_sides_of_a_comparison_are_judged(tmp_path, server, asked):
    before = write(
        tmp_path / "before/results.json", [row("vague", gt="B", response=VAGUE), row("b")]
    )
    after = write(tmp_path / "after/results.json", [row("vague", gt="B", response="B"), row("b")])
    pair = run_of(after, "--compare", before, *asked)["comparison"]
    assert (pair["fixed"], pair["unchanged_right"], stored(before)) == (0, 2, {"vague": "B"})


def test_a_row_without_a_reply_stays_as_it_was_and_only_it_is_asked_again(tmp_path, server, asked):
    path = write(tmp_path / "results.json", ROWS)

    def troubled(body, number):
        return (400, b"odd", 0) if "dog" in body["messages"][0]["content"] else reply(body, number)

    server.plan = troubled
    for _ in range(2):  # also when nothing but this row is left to ask
        code, document = score(path, *asked)
        warned = warned_of(document, "EVAL-JUDGE-FAILED")
    assert (code, warned["data"]["record_ids"]) == (0, ["untold"])
    assert stored(path).keys() == PUT - {"untold"}
    assert document["result"]["runs"][0]["judge"]["failed"] == 1
    server.plan, before = reply, len(server.requests)
    assert "EVAL-JUDGE-FAILED" not in ids(score(path, *asked)[1])
    assert len(server.requests) == before + 1


def test_a_run_that_was_stopped_goes_on_from_what_was_replied(tmp_path, server, asked):
    path = write(tmp_path / "results.json", ROWS)
    score(path, *asked)
    replies = tmp_path / judge.FILE
    lines = replies.read_bytes().splitlines(keepends=True)
    replies.write_bytes(b"".join(lines[:2]) + lines[2][:40])  # killed in the middle of a line
    write(path, ROWS)
    server.requests.clear()
    assert run_of(path, *asked)["judge"]["right"] == 2
    assert (len(server.requests), stored(path).keys()) == (2, PUT)


@pytest.mark.parametrize(
    ("plan", "finding"),
    [
        ((401, b"no", 0), "EVAL-ENDPOINT-REFUSED"),
        ((400, b"temperature must be 1", 0), "EVAL-JUDGE-FAILED"),
    ],
)
def test_a_judge_that_refuses_ends_the_run_and_nothing_is_written(
    tmp_path, server, asked, plan, finding
):
    path = write(tmp_path / "results.json", ROWS)
    server.plan = lambda body, number: plan
    code, document = score(path, *asked)
    assert (code, ids(document)) == (3, {finding})
    assert stored(path) == {} and not (tmp_path / "metrics.json").exists()


def test_the_key_comes_by_name_and_is_never_written(tmp_path, server, asked, monkeypatch):
    path = write(tmp_path / "results.json", ROWS)
    named = (*asked, "--judge-key-variable", "JUDGE_KEY")
    code, document = score(path, *named)
    assert (code, ids(document), server.requests) == (2, {"EVAL-ENDPOINT-KEY"}, [])
    monkeypatch.setenv("JUDGE_KEY", "canary-of-a-judge")
    server.plan = lambda body, number: (200, said("VERDICT: A, says canary-of-a-judge"), 0)
    done = run_script("score_predictions.py", path, *named)
    assert done.returncode == 0 and set(server.keys) == {"Bearer canary-of-a-judge"}
    texts = [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*") if file.is_file()]
    assert not any("canary-of-a-judge" in text for text in (*texts, done.stdout, done.stderr))


@pytest.mark.parametrize(
    "flags",
    [
        ("--judge", "http://localhost:1/v1"),
        ("--judge-model", "a-judge"),
        ("--judge-key-variable", "KEY"),
        ("--judge", "http://localhost:1/v1", "--judge-model", "a", "--compat", "reason1"),
        ("--judge", "http://user:pw@localhost/v1", "--judge-model", "a"),
    ],
)
def test_half_a_judge_is_wrong_usage(tmp_path, flags):
    code, document = score(write(tmp_path / "results.json", ROWS), *flags)
    assert code == 2 and ids(document) <= {"USAGE", "EVAL-ENDPOINT-URL"}


def test_a_judged_score_and_one_by_the_rules_do_not_compare_in_silence(tmp_path, server, asked):
    step = tmp_path / "out" / "20260101120000" / "safetensors" / "step_10"
    step.mkdir(parents=True)
    write(tmp_path / "run/evaluation.json", {"model": str(step), "checkpoint": str(step)})
    path = write(tmp_path / "run/results.json", ROWS)
    score(path, *asked)
    assert recorded(step)[0] == 0.375
    replaced = warned_of(score(path)[1], "EVAL-SCORE-REPLACED")
    assert "judge-model 'a-judge'" in replaced["message"] and recorded(step)[0] == 0.125
    paste(replaced["fix"], tmp_path)
    assert recorded(step)[0] == 0.375


def test_verdicts_are_noted_in_json_lines_and_a_reason1_folder_is_left_alone(
    tmp_path, server, asked
):
    lines = tmp_path / "answers.jsonl"
    lines.write_text(
        "".join(json.dumps(one) + "\n" for one in [*ROWS, row("a\ud800")]), encoding="utf-8"
    )
    assert score(lines, *asked)[0] == 0
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert {one["id"] for one in rows if one.get("judge")} == PUT and rows[-1]["id"] == "a\ud800"
    item = {"correct_answer": "B", "full_response": VAGUE, "video_id": "v1"}
    item["prompt"] = [{"role": "user", "content": CHOICE}]
    video = write(tmp_path / "model/letter/robovqa/v1.json", [item])
    before = video.read_bytes()
    document = score(tmp_path / "model", *asked)[1]
    assert document["result"]["runs"][0]["judge"]["right"] == 1 and video.read_bytes() == before
    assert find(tmp_path / "model") == [tmp_path / "model"]
