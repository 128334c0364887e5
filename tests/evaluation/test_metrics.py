"""Metrics against scikit-learn and scipy (what they said of random data is in metrics.json),
sacrebleu and rouge-score, and what no denominator may hide."""

import json
import string
import sys
from collections import Counter
from statistics import mean
from types import SimpleNamespace

import jsonschema
import pytest
import sacrebleu
from graded import ORACLE, letters, replies, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from cosmos_reason.base import bundle
from cosmos_reason.evaluation import metrics
from cosmos_reason.evaluation.rows import Row

TEXTS = {"A": "red", "B": "green", "C": "blue", "D": "gold"}  # the options of graded.QUESTION


def scored_case(case):
    replies_of = {"?": "no idea", "-": None}
    said = [replies_of.get(one, one) for one in case["said"]]
    return metrics.score(rows_of(zip(case["expected"], said, strict=True)))


def test_class_metrics_equal_scikit_learn():
    for case in ORACLE["classes"]:
        scored = scored_case(case)
        assert scored["accuracy"] == pytest.approx(case["accuracy"], abs=1e-6)
        assert scored["balanced_accuracy"] == pytest.approx(mean(case["recall"]), abs=2e-6)
        for name in ("precision", "f1"):
            assert scored[name] == pytest.approx(mean(case[name]), abs=2e-6)
        (asked,) = scored["per_question"]
        assert set(asked["per_class"]) == {TEXTS[one] for one in case["expected"]}
        for name in ("precision", "recall", "f1", "support"):
            classes = sorted(set(case["expected"]))
            column = [asked["per_class"][TEXTS[one]][name] for one in classes]
            assert column == pytest.approx(case[name], abs=1e-6)


def test_the_confusion_matrix_equals_scikit_learn():
    for case in ORACLE["classes"]:
        (asked,) = scored_case(case)["per_question"]
        table = asked["confusion_matrix"]
        labels = [TEXTS.get(label, label) for label in case["labels"]]
        places = [labels.index(label) for label in table["labels"]]
        assert sorted(places) == list(range(len(case["labels"])))
        expected = [[case["counts"][row][column] for column in places] for row in places]
        assert table["counts"] == expected


def test_letters_of_different_questions_are_never_one_class():
    first = "Which colour?\n(A) red\n(B) green"
    again = "Which colour?\n(A) green\n(B) red"
    other = "Where?\n(A) here\n(B) there"
    rows = [
        *rows_of([("A", "A"), ("A", "B")], first),
        *rows_of([("B", "B"), ("A", "B")], again),
        *rows_of([("A", "A"), ("B", None)], other),
        *rows_of([("yes", "no")], "Does it stop?"),
    ]
    scored = metrics.score(rows)
    assert scored["confusion_matrix"] == {"labels": ["no", "yes"], "counts": [[0, 0], [1, 0]]}
    assert list(scored["per_class"]) == ["yes"]
    colour, place = scored["per_question"]
    assert (colour["question"], colour["rows"]) == ("which colour?", 4)
    assert colour["confusion_matrix"] == {"labels": ["green", "red"], "counts": [[0, 1], [1, 2]]}
    assert place["per_class"]["there"] == {"precision": 0, "recall": 0, "f1": 0, "support": 1}
    assert place["confusion_matrix"]["labels"] == ["here", "there", "(failed)"]
    assert scored["per_type"]["mcq"]["balanced_accuracy"] == pytest.approx(
        (2 / 3 + 0 + 1 + 0) / 4, abs=1e-6
    )
    assert scored["balanced_accuracy"] == pytest.approx((2 / 3 + 0 + 1 + 0 + 0) / 5, abs=1e-6)


@given(st.lists(st.tuples(letters, replies), min_size=1, max_size=60))
def test_every_row_is_in_exactly_one_place_and_in_every_denominator(pairs):
    scored = metrics.score(rows_of(pairs))
    wrong = sum(said not in (None, "no idea", gt) for gt, said in pairs)
    assert scored["rows"] == len(pairs)
    assert scored["correct"] + scored["unparseable"] + scored["failed"] + wrong == len(pairs)
    assert scored["accuracy"] == pytest.approx(scored["correct"] / len(pairs), abs=1e-6)
    (asked,) = scored["per_question"]
    assert sum(map(sum, asked["confusion_matrix"]["counts"])) == asked["rows"] == len(pairs)
    assert sum(table["rows"] for table in scored["per_type"].values()) == len(pairs)
    commonest = Counter(gt for gt, _ in pairs).most_common(1)[0][1]
    assert scored["majority_accuracy"] == pytest.approx(commonest / len(pairs), abs=1e-6)


def test_the_interval_is_wilsons():
    for correct, rows, low, high in ORACLE["wilson"]:
        assert metrics.wilson(correct, rows) == pytest.approx([low, high], abs=2e-6)


words = st.text(string.ascii_lowercase, min_size=1, max_size=5)


sentences = st.lists(words, min_size=5, max_size=12).map(" ".join)


@settings(max_examples=30)
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=8))
def test_text_metrics_are_those_of_sacrebleu_and_rouge_score(pairs):
    scored = metrics.score(rows_of(pairs, "Describe the video."))["text"]
    expected, said = zip(*pairs, strict=True)
    bleu = sacrebleu.corpus_bleu(list(said), [list(expected)]).score
    rouge = RougeScorer(["rougeL"], use_stemmer=True)
    mean = sum(rouge.score(gt, text)["rougeL"].fmeasure for gt, text in pairs) / len(pairs)
    assert (scored["bleu"], scored["rouge_l"]) == pytest.approx((bleu, mean), abs=1e-5)


@pytest.mark.parametrize(
    ("said", "soft"),
    [
        ("a red car turns left now", True),  # 2 * 5 / 11
        ("A RED CAR TURNS LEFT NOW", True),
        ("a red car stops right here now", False),
        ("a red car turns left", True),
        ("a red car turns right", True),  # 2 * 4 / 10: the bound itself counts
        ("a red car stops left", True),
        ("a red car stops there", False),  # 2 * 3 / 10
        ("“A red car turns left now.”", True),
        ("", False),
        (None, False),
    ],
)
def test_soft_accuracy_is_word_overlap(said, soft):
    scored = metrics.score(rows_of([("a red car turns left", said)], "Describe the video."))
    assert scored["soft_accuracy"] == float(soft)


def test_thinking_in_a_ground_truth_is_no_part_of_the_text():
    gt = "<think>left or right?</think>a red car turns left now"
    text = metrics.score(rows_of([(gt, "a red car turns left now")], "Describe the video."))["text"]
    assert (text["bleu"], text["rouge_l"]) == (pytest.approx(100), 1.0)


def test_overlaps_count_from_their_bounds_and_failed_rows_as_none():
    rows = [Row(str(n), "v", None, "?", "gt", "said", None) for n in range(4)]
    rows[0].overlap, rows[1].overlap, rows[3].overlap = 0.5, 0.7, 0.9
    rows[3].error = "the server is gone"
    table = metrics.overlaps(rows)
    assert table == {
        "rows": 4,
        "mean_iou": 0.3,
        "share_above": {"0.3": 0.5, "0.5": 0.5, "0.7": 0.25},
    }


def test_bertscore_is_over_all_rows_asked(monkeypatch):
    """With a stand-in for the optional package: two answers of 0.9 and a row without any."""

    def scored(given, expected, model_type):
        f1 = SimpleNamespace(sum=lambda: 0.9 * len(given))
        return None, None, f1

    monkeypatch.setitem(sys.modules, "bert_score", SimpleNamespace(score=scored))
    rows = rows_of([("a", "a b"), ("a", "c d"), ("a", None)], "Describe the video.")
    assert metrics.bertscore(rows, "m") == pytest.approx(0.6)
    assert metrics.bertscore(rows[2:], "m") == 0.0


def test_cut_answers_are_counted_and_only_the_unparseable_ones_as_such():
    rows = rows_of([("A", "A"), ("A", "B"), ("A", "no idea"), ("A", "no idea"), ("A", None)])
    for row in rows[:3]:
        row.is_cut = True
    summary = metrics.summary(rows)
    counted = (summary["cut_short"], summary["unparseable_cut"], summary["unparseable"])
    assert counted == (3, 1, 2)


def test_types_are_scored_apart_and_together():
    rows = rows_of([("yes", "yes"), ("no", "yes")], "Is it red?") + rows_of(
        [("A", "A"), ("B", "B"), ("B", "?")]
    )
    scored = metrics.score(rows)
    assert {
        kind: (table["rows"], table["correct"]) for kind, table in scored["per_type"].items()
    } == {"yes_no": (2, 1), "mcq": (3, 2)}
    assert scored["accuracy"] == 0.6
    assert scored["majority_accuracy"] == pytest.approx((1 + 2) / 5)


def test_tags_get_a_table_of_their_own():
    rows = rows_of([("A", "A"), ("A", "B"), ("B", "B")])
    rows[0].tags, rows[1].tags = ("night", "rain"), ("night",)
    tables = metrics.score(rows)["per_tag"]
    assert {tag: table["accuracy"] for tag, table in tables.items()} == {"night": 0.5, "rain": 1.0}


SCHEMA = jsonschema.Draft202012Validator(bundle.schema("metrics"))


@settings(max_examples=20)
@given(st.lists(st.tuples(letters, replies), min_size=1, max_size=20))
def test_metrics_keep_to_their_schema(pairs):
    scored = metrics.score(rows_of(pairs)) | {
        "model": None,
        "checkpoint": None,
        "results": "results.json",
    }
    SCHEMA.validate(json.loads(json.dumps(scored, allow_nan=False)))
