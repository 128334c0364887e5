"""Metrics against scikit-learn, scipy, sacrebleu and rouge-score on random data, and what no
denominator may hide."""

import json
import string
from collections import Counter

import jsonschema
import pytest
import sacrebleu
from graded import letters, replies, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats
from sklearn import metrics as sk

from cosmos_reason.base import bundle
from cosmos_reason.evaluation import metrics


@given(st.lists(st.tuples(letters, replies), min_size=1, max_size=60))
def test_class_metrics_equal_scikit_learn(pairs):
    scored = metrics.score(rows_of(pairs))
    expected = [gt for gt, _ in pairs]
    given_ = [{None: "(failed)", "no idea": "(unparseable)"}.get(said, said) for _, said in pairs]
    classes = sorted(set(expected))
    precision, recall, f1, support = sk.precision_recall_fscore_support(
        expected, given_, labels=classes, average=None, zero_division=0
    )
    assert scored["accuracy"] == pytest.approx(sk.accuracy_score(expected, given_), abs=1e-6)
    assert scored["balanced_accuracy"] == pytest.approx(recall.mean(), abs=2e-6)
    assert scored["precision"] == pytest.approx(precision.mean(), abs=2e-6)
    assert scored["f1"] == pytest.approx(f1.mean(), abs=2e-6)
    for n, label in enumerate(classes):
        line = scored["per_class"][label]
        assert (line["precision"], line["recall"]) == pytest.approx(
            (precision[n], recall[n]), abs=1e-6
        )
        assert (line["f1"], line["support"]) == pytest.approx((f1[n], support[n]), abs=1e-6)
    table = scored["confusion_matrix"]
    assert table["counts"] == sk.confusion_matrix(expected, given_, labels=table["labels"]).tolist()


@given(st.lists(st.tuples(letters, replies), min_size=1, max_size=60))
def test_every_row_is_in_exactly_one_place_and_in_every_denominator(pairs):
    scored = metrics.score(rows_of(pairs))
    wrong = sum(said not in (None, "no idea", gt) for gt, said in pairs)
    assert scored["rows"] == len(pairs)
    assert scored["correct"] + scored["unparseable"] + scored["failed"] + wrong == len(pairs)
    assert scored["accuracy"] == pytest.approx(scored["correct"] / len(pairs), abs=1e-6)
    assert sum(map(sum, scored["confusion_matrix"]["counts"])) == len(pairs)
    assert sum(table["rows"] for table in scored["per_type"].values()) == len(pairs)
    commonest = Counter(gt for gt, _ in pairs).most_common(1)[0][1]
    assert scored["majority_accuracy"] == pytest.approx(commonest / len(pairs), abs=1e-6)


@given(st.integers(1, 5000), st.data())
def test_the_interval_is_wilsons(rows, data):
    correct = data.draw(st.integers(0, rows))
    exact = stats.binomtest(correct, rows).proportion_ci(0.95, "wilson")
    assert metrics.wilson(correct, rows) == pytest.approx([exact.low, exact.high], abs=2e-6)


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


def test_types_are_scored_apart_and_together():
    rows = rows_of([("yes", "yes"), ("no", "yes")], "Is it red?") + rows_of(
        [("A", "A"), ("B", "B"), ("B", "?")]
    )
    scored = metrics.score(rows)
    assert {
        kind: (table["rows"], table["correct"]) for kind, table in scored["per_type"].items()
    } == {
        "yes_no": (2, 1),
        "mcq": (3, 2),
    }
    assert scored["accuracy"] == 0.6
    assert scored["majority_accuracy"] == pytest.approx((1 + 2) / 5)


def test_tags_get_a_table_of_their_own():
    rows = rows_of([("A", "A"), ("A", "B"), ("B", "B")])
    rows[0].tags, rows[1].tags = ("night", "rain"), ("night",)
    tables = metrics.score(rows)["per_tag"]
    assert {tag: table["accuracy"] for tag, table in tables.items()} == {"night": 0.5, "rain": 1.0}


@given(st.lists(st.tuples(letters, replies), min_size=1, max_size=20))
def test_metrics_keep_to_their_schema(pairs):
    scored = metrics.score(rows_of(pairs)) | {
        "model": None,
        "checkpoint": None,
        "results": "results.json",
    }
    jsonschema.validate(json.loads(json.dumps(scored, allow_nan=False)), bundle.schema("metrics"))
