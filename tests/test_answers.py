"""Answers: a table of realistic responses with the reading a person would give, and what holds for any text."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason import answers

TABLE = Path(__file__).parent / "data" / "answers.tsv"
QUESTIONS = {
    "turn": "What does the vehicle do?\n(A) turn left\n(B) turn right\n(C) go straight\n(D) stop\n"
    "Answer with the option's letter from the given choices directly.",
    "bool": "Does the car stop? A. Yes B. No Please answer with the letter.",
    "none": "Which of the regions marked A to H holds the defect?",
    "ask": "Is there a collision? Answer yes or no.",
    "way": "Which way does the vehicle go?",
    "many": "How many cars are there?",
    "weather": "What is the weather?",
    "inspect": "Is the part good?",
    "tell": "Describe the video.",
}
LABELS = {"weather": ("Sunny", "rainy", "heavy rain", "snow", "not visible"), "inspect": ("OK", "NG")}


def table() -> list[tuple[str, str, str, str | None]]:
    rows = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            kind, question, response, expected = line.replace("\\n", "\n").split("\t")
            rows.append((kind, question, response, None if expected == "-" else expected))
    return rows


def test_the_table_is_long_enough_to_mean_something():
    assert len(table()) >= 200


@pytest.mark.parametrize(("kind", "question", "response", "expected"), table())
def test_a_response_is_read_as_a_person_would(kind, question, response, expected):
    read = answers.parse_answer(response, kind, QUESTIONS[question], LABELS.get(question, ()))
    assert read == expected


@pytest.mark.parametrize(
    ("question", "gt", "expected"),
    [
        ("turn", "B", "mcq"),
        ("turn", "(C)", "mcq"),
        ("turn", "D. stop", "mcq"),
        ("turn", "turn left", "mcq"),
        ("bool", "Yes", "mcq"),
        ("none", "F", "mcq"),
        ("none", "B. the left lane", "mcq"),
        ("ask", "Yes", "yes_no"),
        ("ask", "No.", "yes_no"),
        ("ask", "true", "yes_no"),
        ("ask", "T", "yes_no"),
        ("ask", "F", "yes_no"),
        ("ask", "Yes, the car hits the van.", "yes_no"),
        ("ask", "<think>x</think><answer>Yes</answer>", "yes_no"),
        ("ask", "No car is visible in the scene.", "text"),
        ("way", "left", "direction"),
        ("way", "Straight", "direction"),
        ("way", "turning right", "direction"),
        ("way", "going straight", "direction"),
        ("way", "The left lane is closed.", "text"),
        ("many", "3", "number"),
        ("many", "-2.5", "number"),
        ("many", "12 m", "number"),
        ("many", "four", "number"),
        ("many", "3 cars and 2 vans", "text"),
        ("many", "2:30", "text"),
        ("tell", "A car turns left.", "text"),
        ("inspect", "NG", "text"),
        ("tell", "", "text"),
    ],
)
def test_the_ground_truth_shows_the_type(question, gt, expected):
    assert answers.question_type(QUESTIONS[question], gt) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Pick.\nA. one\nB. two", {"A": "one", "B": "two"}),
        ("Pick. (A) one (B) two (C) three", {"A": "one", "B": "two", "C": "three"}),
        ("Pick. A) one\nB) two\nAnswer with a letter.", {"A": "one", "B": "two"}),
        ("Pick. A: one B: two Please answer with the letter.", {"A": "one", "B": "two"}),
        ("(a) one\n(b) two", {"A": "one", "B": "two"}),
        ("What do the U.S. roads show?", {}),
        ("A. only one", {}),
        ("Plan B. Then C. what?", {}),
        ("Pick.\n[A] one\n[B] two", {"A": "one", "B": "two"}),
        ("Pick.\nA - one\nB - two", {"A": "one", "B": "two"}),
        ("Pick. A、one B、two", {"A": "one", "B": "two"}),
        ("Pick. A．one B．two", {"A": "one", "B": "two"}),
        ("Pick. **A.** one **B.** two", {"A": "one", "B": "two"}),
        ("", {}),
    ],
)
def test_options_in_a_question(question, expected):
    assert answers.options(question) == expected


@pytest.mark.parametrize(
    ("kind", "question", "response", "expected"),
    [row for row in table() if row[2].strip() and "think>" not in row[2].lower()],
)
def test_thinking_before_a_response_changes_nothing(kind, question, response, expected):
    thought = "<think>It might be B, or no, or right, or 7, or snow.</think>\n\n" + response
    assert answers.parse_answer(thought, kind, QUESTIONS[question], LABELS.get(question, ())) == expected


@given(st.text(max_size=60), st.text(max_size=200), st.sampled_from(answers.TYPES))
def test_any_text_has_an_answer_of_its_type_or_none(question, response, kind):
    read = answers.parse_answer(response, kind, question, ("ok", "ng"))
    valid = {
        "mcq": lambda: len(read) == 1 and "A" <= read <= "Z",
        "yes_no": lambda: read in ("yes", "no"),
        "direction": lambda: read in ("left", "right", "straight", "up", "down"),
        "number": lambda: Decimal(read.split()[0]).is_finite(),
        "label": lambda: read in ("ok", "ng"),
        "text": lambda: read and read in response,
    }
    assert read is None or valid[kind]()
    assert answers.question_type(question, response) in answers.TYPES


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_a_number_is_read_back_whatever_way_it_is_written(value):
    for written in (f"{value}", f"{value:,}", f"The answer is {value}."):
        assert Decimal(answers.parse_answer(written, "number")) == value


@given(st.sampled_from(answers.TYPES), st.text(max_size=80))
def test_an_answer_normalises_to_itself(kind, text):
    expected = answers.normalise(text, kind)
    if expected is not None and kind != "label":
        assert answers.equal(answers.parse_answer(text, kind), expected, kind)


def test_numbers_match_within_a_relative_tolerance():
    assert not answers.equal("101", "100", "number")
    assert answers.equal("101", "100", "number", 0.01)
    assert not answers.equal("101.1", "100", "number", 0.01)
    assert answers.equal("-99", "-100", "number", 0.01)
    assert not answers.equal("1", "0", "number", 0.5)


def test_numbers_match_in_any_unit_of_a_kind_and_without_one():
    assert answers.equal("3", "3 m", "number") and answers.equal("3 km", "3", "number")
    assert answers.equal("300 cm", "3 m", "number") and answers.equal("120 s", "2 min", "number")
    assert not answers.equal("3 km", "3 m", "number")
    assert not answers.equal("3 s", "3 m", "number", 0.5)


def test_a_ground_truth_may_be_the_text_of_an_option():
    assert answers.normalise("turn right", "mcq", QUESTIONS["turn"]) == "B"
    assert answers.equal("A red CAR.", answers.normalise("a red car", "text"), "text")
    assert not answers.equal(None, "yes", "yes_no")


@pytest.mark.parametrize("kind", answers.TYPES)
@pytest.mark.parametrize(
    "piece",
    [".", "A ", "1,111,", "1 111 ", "no ", "not ", "n't ", "turn ", "left and ", "answer is ", "option ", "so ", "A, ",
     "(", " ", "\n", "</think>", "one ", "-"],
)  # fmt: skip
@pytest.mark.parametrize("start", ["", "The answer is"])
def test_long_responses_are_read(kind, piece, start):
    """Milliseconds each; a pattern that backtracks quadratically would hold the suite for minutes."""
    response = start + piece * (60_000 // len(piece)) + "hmm"
    answers.parse_answer(response, kind, response, ("ok", "ng"))
    assert answers.question_type(response, response) in answers.TYPES
