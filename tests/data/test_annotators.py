"""Rows of several annotators and of several turns become one record each, as declared."""

import pytest
from clip_files import write_clip
from table_build import build, ids

from cosmos_reason.data.annotators import krippendorff_alpha

ASKED = ("--question", "Is it open?")


@pytest.fixture
def source(tmp_path):
    for number in range(4):
        write_clip(tmp_path / "src" / f"{number}.mp4", frames=8, tint=number)
    return tmp_path / "src"


def test_alpha_is_that_of_krippendorffs_example():
    rows = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    units = [[one for one in unit if one != "."] for unit in zip(*rows, strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=0.0005)
    assert krippendorff_alpha([["yes", "yes"], ["yes"]]) is None
    assert krippendorff_alpha([["yes", "yes"], ["no", "no"]]) == 1


TABLE = [
    *("video,who,answer", "0.mp4,ann,Yes", "0.mp4,bob, yes ", "1.mp4,ann,yes", "1.mp4,bob,no"),
    *("1.mp4,eve,no", "2.mp4,ann,yes", "2.mp4,bob,no", "3.mp4,ann,no"),
]
WHO = ("--column", "annotator=who", *ASKED)


def test_disagreements_are_listed_with_both_answers_and_rows(source):
    report, _ = build(source, TABLE, *WHO, expect=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert found["id"] == "BUILD-DISAGREEMENT" and found["data"]["rows"] == [4, 7]
    assert found["where"] == "labels.csv row 4" and "row 5, labels.csv row 6" in found["message"]
    assert "'yes' by ann, 'no' by bob" in found["message"] and found["fix"] == ""


def test_an_annotator_without_a_name_is_told(source):
    table = ["video,rater,answer", "0.mp4,ann,yes", "0.mp4,,no"]
    report, _ = build(source, table, *ASKED, expect=2)
    assert any("'no' by nobody named" in one["message"] for one in report["findings"])


def test_contradictions_beside_an_undeclared_annotator_are_refused(source):
    """They were trained on, all of them, with a warning about an unused column."""
    table = [TABLE[0].replace("who", "labeller"), *TABLE[1:]]
    report, _ = build(source, table, *ASKED, expect=2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert (found["id"], found["fix"]) == (
        "BUILD-ANNOTATOR",
        "--column annotator=labeller --adjudicate drop",
    )
    assert "BUILD-COLUMN-UNUSED" not in ids(report), "the column is told once"
    assert "--adjudicate majority" in found["message"]  # which the next run would ask for
    report, splits = build(source, table, *ASKED, "--column", "ignore=labeller")
    assert len(splits["train"]) == 8
    agreed = [table[0], *table[1:3], table[8 - 1]]
    report, splits = build(source, agreed, *ASKED, out="agreed")
    assert len(splits["train"]) == 3 and "BUILD-COLUMN-UNUSED" in ids(report)


@pytest.mark.parametrize(
    ("way", "answers"),
    [("majority", {"0": "yes", "1": "no", "3": "no"}), ("drop", {"0": "yes", "3": "no"})],
)
def test_disagreements_are_settled_as_declared(source, way, answers):
    report, splits = build(source, TABLE, *WHO, "--adjudicate", way)
    got = {sample.id: sample.turns[-1].text.lower() for sample in splits["train"]}
    assert got == answers
    found = {one["id"]: one for one in report["findings"]}
    assert found["BUILD-DISAGREEMENT"]["severity"] == "warning"
    (of_question,) = found["BUILD-AGREEMENT"]["data"]["agreement"]
    assert (of_question["units"], of_question["by_several"], of_question["agreed"]) == (4, 3, 1)
    saved = source.parent / "out" / "mapping.yaml"
    assert build(source, TABLE, "--mapping", saved, out="again")[1] == splits


@pytest.mark.parametrize(
    ("row", "flags", "id"),
    [
        ("3.mp4,ann,yes", WHO, "BUILD-ANNOTATOR"),
        ("3.mp4,,no", WHO, "BUILD-ANNOTATOR"),
        ("", (*ASKED, "--adjudicate", "drop", "--column", "ignore=who"), "USAGE"),
    ],
)
def test_annotators_that_say_two_things_or_have_no_name(source, row, flags, id):
    report, _ = build(source, [TABLE[0], TABLE[-1], row], *flags, expect=2)
    assert id in ids(report)


def test_annotators_who_answered_nothing_together_are_told(source):
    """As of parts that each of them marked at times of their own: nobody compares these."""
    report, _ = build(source, ["video,who,answer", "0.mp4,ann,yes", "1.mp4,bob,no"], *WHO)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-AGREEMENT"]
    assert "none are compared" in found["message"]
    report, _ = build(source, ["video,who,answer", "0.mp4,ann,yes", "1.mp4,Ann,no"], *WHO, out="x")
    assert "BUILD-AGREEMENT" not in ids(report)
    table = ["video,who,answer", "0.mp4,ann,yes", "1.mp4,,no"]
    report, _ = build(source, table, *WHO, out="nobody", expect=2)
    assert "BUILD-ANNOTATOR" in ids(report) and "BUILD-AGREEMENT" not in ids(report)


def test_a_column_that_may_be_of_annotators_is_named(source):
    table = ["video,annotator,answer", "0.mp4,ann,yes", "1.mp4,ann,no"]
    report, _ = build(source, table, *ASKED)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-COLUMN-UNUSED"]
    assert found["severity"] == "warning" and "--column annotator=annotator" in found["message"]


TALK = ["video,talk,n,question,answer", "0.mp4,a,2,Why?,It fell.", "0.mp4,a,1,What is it?,A cup."]
TURNS = ("--column", "turn=n", "--column", "id=talk")


def test_turns_become_one_conversation_in_their_order(source):
    table = [*TALK, "1.mp4,b,1,Open?,yes"]
    _, splits = build(source, table, *TURNS)
    first, second = splits["train"]
    assert [turn.text for turn in first.turns] == ["What is it?", "A cup.", "Why?", "It fell."]
    assert len(first.media) == 1 and second.turns[-1].text == "yes"


@pytest.mark.parametrize(
    ("row", "flags", "id"),
    [
        ("0.mp4,a,1,Open?,yes", TURNS, "BUILD-TURN"),
        ("0.mp4,a,last,Open?,yes", TURNS, "BUILD-TURN"),
        ("", TURNS[:2], "BUILD-COLUMN"),
    ],
)
def test_turns_that_have_no_order_are_refused(source, row, flags, id):
    report, _ = build(source, [*TALK, row], *flags, expect=2)
    assert id in ids(report)


@pytest.mark.parametrize(
    ("answers", "is_told"),
    [
        (("car", "person", "car", "person"), True),
        (("yes", "no", "yes", "no"), True),
        (("A car turns left into the yard.", "It turns.", "A man walks.", "Nobody."), False),
    ],
)
def test_several_answers_to_a_question_that_wants_one_are_told(source, answers, is_told):
    """Classes of a clip, a row of each, were built without a word; captions may all be right."""
    rows = [f"{clip}.mp4,{text}" for clip, text in zip((0, 0, 1, 2), answers, strict=True)]
    report, splits = build(source, ["video,class", *rows], "--column", "answer=class", *ASKED)
    assert len(splits["train"]) == 4
    told = [one for one in report["findings"] if one["id"] == "DATA-ANSWER-SEVERAL"]
    assert [one["severity"] for one in told] == ["warning"] * is_told
    if is_told:
        assert told[0]["where"] == "labels.csv row 2" and "in row 3" in told[0]["message"]
