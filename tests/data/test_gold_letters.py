"""Gold answers of questions with options, as benchmarks write them."""

import json
import string

import pytest
from clip_files import check, write_clip
from hypothesis import given
from hypothesis import strategies as st
from support import run_script

from cosmos_reason import answers
from cosmos_reason.data.options import written_into as with_options

LEFT_RIGHT = {"A": "turn left", "B": "turn right", "C": "Stop"}


@pytest.mark.parametrize(
    "answer, letter",
    [
        *(("b", "B"), ("B", "B"), ("(b)", "B"), ("b.", "B"), ("c) ", "C")),
        *(("turn right", "B"), ("Turn Right", "B"), ("stop.", "C")),
        *(("B. turn right", "B"), ("(b) Turn right", "B"), ("c: stop", "C")),
    ],
)
def test_a_letter_in_any_case_or_the_text_of_an_option_is_that_letter(answer, letter):
    asked, gold = with_options("Which way?", LEFT_RIGHT, answer)
    assert gold == letter and answers.verdict(asked, gold, letter).correct
    told = "Which way?\n" + "\n".join(f"{name}. {text}" for name, text in LEFT_RIGHT.items())
    _, gold = with_options(told, LEFT_RIGHT, answer)
    assert answers.normalise(gold, "mcq", told) == letter


@pytest.mark.parametrize(
    "options, answer",
    [
        (LEFT_RIGHT, "d"),
        (LEFT_RIGHT, "B. turn left"),
        (LEFT_RIGHT, 1),
        ({"A": "b", "B": "a"}, "b"),  # the text of A, the letter B
        ({"A": "Red", "B": "RED"}, "red"),
        ({"A": "red", "B": "red"}, "red"),
    ],
)
def test_an_answer_that_is_no_option_or_may_be_two_is_refused(options, answer):
    with pytest.raises(ValueError, match="expected one of"):
        with_options("Which?", options, answer)


def test_letters_of_options_may_be_small_themselves():
    assert with_options("Which?", {"a": "left", "b": "right"}, "B")[1] == "b"
    assert with_options("Which?", {"A": "Yes", "B": "yes"}, "yes")[1] == "B"


words = st.text(string.ascii_letters + " .()", max_size=6)
tables = st.lists(words, min_size=1, max_size=5).map(
    lambda texts: dict(zip(string.ascii_uppercase, texts, strict=False))
)


@given(tables, st.data())
def test_no_gold_answer_is_read_as_another_option(options, data):
    """Whatever is accepted is the letter, the text, or both of that option, and of no other one
    that has it letter for letter."""
    from_options = st.sampled_from([*options, *options.values()])
    answer = data.draw(st.one_of(words, from_options, from_options.map(str.swapcase)))
    try:
        asked, gold = with_options("Which of these is it?", options, answer)
    except ValueError:
        return
    if asked == "Which of these is it?":  # it lists the options itself
        return
    bare = answer.strip("(). \n")
    text = str(options[gold]).strip("(). \n")
    folded = bare.casefold()
    is_both = folded.startswith(gold.casefold()) and folded.endswith(text.casefold())
    assert folded in (gold.casefold(), text.casefold()) or is_both
    if bare in options:
        assert gold == bare
        return
    others = [letter for letter in options if letter != gold]
    said = [str(options[letter]).strip("(). \n") for letter in others]
    assert bare not in said and folded not in map(str.casefold, others)
    assert bare == text or folded not in map(str.casefold, said)


def test_a_benchmark_with_small_letters_is_checked_and_scored(tmp_path):
    write_clip(tmp_path / "a.mp4", frames=8)
    pair = {"question": "Which way?", "index2ans": LEFT_RIGHT, "answer": "b"}
    records = [{"id": "1", "video": "a.mp4", "qa_pairs": pair}]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    _, found = check(tmp_path)
    assert "DATA-RECORD-FORMAT" not in found
    asked = {"video_id": "a.mp4", "question": "Which way?\n(A) turn left\n(B) turn right"}
    said = [("b", "B"), ("b", "A"), ("a", "(A) turn left")]
    rows = [asked | {"ground_truth": gold, "response": response} for gold, response in said]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    scored = run_script("score_predictions.py", tmp_path / "results.json", "--json")
    (run,) = json.loads(scored.stdout)["result"]["runs"]
    assert (run["correct"], run["rows"]) == (2, 3)
