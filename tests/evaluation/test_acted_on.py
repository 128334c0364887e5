"""Scores that a person acts on: thoughts that are a template, and what to collect next."""

import pytest
from scoring import ids, row, score, warned_of, write

from cosmos_reason.evaluation import gaps, grading, metrics
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.pages import report


def thought(number: int, text: str, answer: str = "A") -> dict:
    one = row(f"q{number}", response=f"<think>{text}</think>\n{answer}")
    return one | {"media": f"{number}.mp4"}


def test_one_thought_for_all_right_answers_is_told(tmp_path):
    same = [thought(number, "I look  closely.") for number in range(10)]
    file = write(tmp_path / "a/results.json", [*same, thought(10, "It is red.", "B")])
    warned = warned_of(score(file)[1], "EVAL-TEMPLATE-REASONING")
    assert "10 of 10" in warned["message"] and "i look closely" in warned["message"]
    own = [thought(number, f"Clip {number} is red.") for number in range(10)]
    without = [row(f"{number}") for number in range(20)]
    for rows in (own, same[:9], without):
        _, document = score(write(tmp_path / "b/results.json", rows))
        assert "EVAL-TEMPLATE-REASONING" not in ids(document)


def graded(counts: dict) -> list[Row]:
    """Rows of a question about colours: of each ground truth the numbers of right and wrong."""
    question = "Which colour?\n(A) red\n(B) green\n(C) blue"
    rows = []
    for gt, (right, wrong) in counts.items():
        for place in range(right + wrong):
            other = "A" if gt != "A" else "B"
            said = gt if place < right else other
            name = f"{gt}{place}"
            rows.append(Row(name, name, f"{name}.mp4", question, gt, said, None))
    grading.grade(rows)
    return rows


def test_what_to_collect_is_ranked_by_what_it_would_gain():
    # Of red many are wrong, though it is as often right as the others; of blue all are wrong.
    rows = graded({"A": (60, 20), "B": (9, 3), "C": (0, 8)})
    lines = gaps.next_data(rows)
    assert [line["class"] for line in lines] == ["blue", "red", "green"]
    blue, red, green = lines
    assert blue["expected_gain"] == pytest.approx(8 * 69 / 92 / 100, abs=1e-6)
    assert red["expected_gain"] == 0 and red["gaps"] == 20
    assert green["expected_gain"] == 0 and green["collect"] == 30


def test_letters_are_not_pooled_over_questions():
    rows = graded({"A": (3, 1), "B": (2, 2)})
    other = "Which way?\n(A) left\n(B) right"
    for number, said in enumerate("AAB"):
        rows.append(Row(f"w{number}", f"w{number}", "w.mp4", other, "A", said, None))
    grading.grade(rows)
    colour, way = report.matrices(metrics.confusions(rows))
    assert (colour["question"], way["question"]) == ("which colour?", "which way?")
    assert colour["columns"] == ["green", "red"] and way["columns"] == ["left", "right"]
    (line,) = way["lines"]
    assert (line["label"], [cell["n"] for cell in line["cells"]]) == ("left", [2, 1])


def test_the_report_tells_balance_change_gain_and_template(tmp_path):
    rows = graded({"A": (60, 20), "C": (0, 8)})
    pair = {"per_type": {"mcq": {"verdict": "worse (p = 0.01)"}}, "earlier_per_type": {}}
    (line,) = report.type_table(metrics.summaries(rows)[1], metrics.confusions(rows), pair)
    assert line["change"]["verdict"] == "worse (p = 0.01)"
    assert line["now"]["balanced_accuracy"] == pytest.approx(60 / 80 / 2)
    wrong = gaps.find(rows, {})
    for one in rows:
        one.response = f"<think>I look.</think>{one.response}"
        one.choice = {"A": 0.6, "B": 0.3, "C": 0.05}
    text, _ = report.page(rows, wrong, gaps.summary(rows, wrong), {})
    assert "have the same thought" in text and "i look" in text
    assert "Balanced" in text and "37.5%" in text
    assert "How sure it is" in text and "(ECE)" in text
    assert text.count("<polyline") == 2
