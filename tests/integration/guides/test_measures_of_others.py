"""Our measures equal those of the packages that define them, on random cases: scikit-learn for
probabilities, scipy for assignments and correlations, pycocotools for overlaps and matches, and
scipy with the definition of the cookbook for AP3D. The packages lie beside the main environment."""

import json
import random
import sys

import oracles
import pytest
from support import called

from cosmos_reason.answers import matching, places, structures
from cosmos_reason.answers.structures import Item
from cosmos_reason.evaluation import likelihood, metrics
from cosmos_reason.evaluation.rows import Row

PACKAGES = [
    *("scikit-learn==1.9.1", "scipy==1.17.1", "joblib==1.6.0", "threadpoolctl==3.8.0"),
    *("cloudpickle==3.1.3", "narwhals==2.29.0", "pycocotools==2.0.11"),
]


@pytest.fixture(scope="module")
def ask():
    """Runs Python code where those packages are: `cases` comes in, what it prints as JSON out."""
    folder = oracles.installed("measures", ["--no-deps", *PACKAGES])

    def run(code: str, cases: object):
        head = f"import sys, json\nsys.path.insert(0, {str(folder)!r})\n"
        head += "cases = json.load(sys.stdin)\n"
        done = called([sys.executable, "-c", head + code], input=json.dumps(cases), timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


SEPARATION = """
from sklearn.metrics import precision_score, recall_score, roc_auc_score, balanced_accuracy_score
from sklearn.metrics import roc_curve
told = []
for shares, truths in cases:
    at = {}
    for threshold in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        said = [share >= threshold for share in shares]
        precision = precision_score(truths, said) if any(said) else None
        at[threshold] = [precision, recall_score(truths, said)]
    false, true, _ = roc_curve(truths, shares, drop_intermediate=False)
    told.append({"auc": roc_auc_score(truths, shares), "at": list(at.values()),
                 "balanced": max((1 + true - false) / 2)})
print(json.dumps(told))
"""


def test_probabilities_of_yes_separate_as_scikit_learn_says(ask):
    draw = random.Random(7)
    cases = []
    for _ in range(100):
        size = draw.randrange(4, 300)
        truths = [True, False] + [draw.random() < draw.random() for _ in range(size)]
        digits = draw.choice([1, 2, 6])  # ties
        shares = [
            round(min(1, max(0, draw.gauss(0.6 if one else 0.4, 0.3))), digits) for one in truths
        ]
        cases.append((shares, truths))
    for (shares, truths), told in zip(cases, ask(SEPARATION, cases), strict=True):
        rows = []
        for number, (share, truth) in enumerate(zip(shares, truths, strict=True)):
            gt = "yes" if truth else "no"
            row = Row(
                f"{number}", "", None, "", gt, gt, None, type="yes_no", expected=gt, answer=gt
            )
            row.choice = {"yes": share, "no": 1 - share}
            rows.append(row)
        found = likelihood.measure(rows)["yes_no"]
        assert found["roc_auc"] == pytest.approx(told["auc"], abs=1e-6)
        for line, (precision, recall) in zip(found["thresholds"], told["at"], strict=True):
            assert line["precision"] == pytest.approx(precision, abs=1e-6)
            assert line["recall"] == pytest.approx(recall, abs=1e-6)
        threshold = likelihood.chosen_threshold(rows, "rows")
        likelihood.answer_from(rows, threshold)
        right = {True: [], False: []}
        for row, truth in zip(rows, truths, strict=True):
            right[truth].append(row.correct)
        balanced = sum(sum(part) / len(part) for part in right.values()) / 2
        assert balanced == pytest.approx(told["balanced"], abs=1e-6)


ASSIGNMENTS = """
import numpy
from scipy.optimize import linear_sum_assignment
told = []
for weights in cases:
    weights = numpy.array(weights)
    told.append(float(weights[linear_sum_assignment(weights, maximize=True)].sum()))
print(json.dumps(told))
"""


def test_assignments_are_as_good_as_scipys(ask):
    draw = random.Random(1)
    cases = []
    for _ in range(200):
        rows, columns = draw.randint(1, 30), draw.randint(1, 30)
        values = [0.0, 0.5, 1.0] if draw.random() < 0.3 else None
        cases.append(
            [
                [draw.choice(values) if values else draw.random() for _ in range(columns)]
                for _ in range(rows)
            ]
        )
    for weights, expected in zip(cases, ask(ASSIGNMENTS, cases), strict=True):
        total = sum(weights[row][column] for row, column in matching.assigned(weights))
        assert total == pytest.approx(expected)


OVERLAPS = """
import numpy
from pycocotools import mask
told = []
for one, other in cases:
    def corners(box):
        x1, y1, x2, y2 = box
        return [x1, y1, x2 - x1, y2 - y1]
    a = numpy.array([corners(box) for box in one])
    b = numpy.array([corners(box) for box in other])
    told.append(numpy.array(mask.iou(a, b, [0] * len(b))).tolist())
print(json.dumps(told))
"""


def box(draw: random.Random) -> list[float]:
    x, y = draw.uniform(0, 900), draw.uniform(0, 900)
    return [x, y, x + draw.uniform(1, 300), y + draw.uniform(1, 300)]


def test_overlaps_of_boxes_are_those_of_pycocotools(ask):
    draw = random.Random(2)
    cases = [
        ([box(draw) for _ in range(8)], [box(draw) for _ in range(draw.randint(1, 8))])
        for _ in range(50)
    ]
    for (one, other), table in zip(cases, ask(OVERLAPS, cases), strict=True):
        for first, line in zip(one, table, strict=True):
            for second, expected in zip(other, line, strict=True):
                found = places.intersection_over_union(tuple(first), tuple(second))
                assert found == pytest.approx(expected, abs=1e-9)


# Each label's boxes that match at an overlap, best assignment, over the boxes said; mean over the
# labels expected, then over the overlaps 0.5, 0.55, ... 0.95.
AP3D = """
import numpy
from scipy.optimize import linear_sum_assignment

def overlap(one, other):
    one, other = numpy.array(one), numpy.array(other)
    low = numpy.maximum(one[:3] - one[3:] / 2, other[:3] - other[3:] / 2)
    high = numpy.minimum(one[:3] + one[3:] / 2, other[:3] + other[3:] / 2)
    shared = numpy.prod(numpy.clip(high - low, 0, None))
    return shared / (numpy.prod(one[3:]) + numpy.prod(other[3:]) - shared)

told = []
for said, meant in cases:
    means = []
    for limit in numpy.arange(50, 100, 5) / 100:
        precisions = []
        for label in {label for _, label in meant}:
            ours = [at for at, name in said if name == label]
            theirs = [at for at, name in meant if name == label]
            table = numpy.zeros((len(ours), len(theirs)))
            for row, one in enumerate(ours):
                for column, other in enumerate(theirs):
                    table[row, column] = overlap(one, other) >= limit
            hits = table[linear_sum_assignment(table, maximize=True)].sum()
            precisions.append(hits / len(ours) if ours else 0)
        means.append(numpy.mean(precisions))
    told.append(float(numpy.mean(means)))
print(json.dumps(told))
"""


def test_ap3d_is_the_cookbooks(ask):
    draw = random.Random(4)
    cases = []
    for _ in range(60):
        meant, said = [], []
        for _ in range(draw.randint(1, 6)):
            at = [draw.uniform(-9, 9) for _ in range(3)] + [draw.uniform(1, 5) for _ in range(3)]
            label = draw.choice(["car", "van"])
            meant.append((at, label))
            if draw.random() < 0.8:
                moved = [value + draw.uniform(-0.3, 0.3) for value in at]
                said.append((moved, draw.choice([label, label, "car"])))
        cases.append((said, meant))
    for (said, meant), expected in zip(cases, ask(AP3D, cases), strict=True):
        one, other = (
            structures.as_json([Item(tuple(at), label) for at, label in boxes])
            for boxes in (said, meant)
        )
        _, parts = matching.compare(one, other, "box3d")
        assert parts["ap3d"] == pytest.approx(expected, abs=1e-6)


CORRELATIONS = """
from scipy.stats import pearsonr, spearmanr
print(json.dumps([[pearsonr(*case).statistic, spearmanr(*case).statistic] for case in cases]))
"""


def test_correlations_of_grades_are_scipys(ask):
    draw = random.Random(6)
    cases = []
    while len(cases) < 60:
        meant = [draw.randint(1, 5) for _ in range(draw.randint(3, 60))]
        said = [min(5, max(1, one + draw.randint(-2, 2))) for one in meant]
        if len(set(meant)) > 1 and len(set(said)) > 1:
            cases.append((said, meant))
    for (said, meant), (pearson, spearman) in zip(cases, ask(CORRELATIONS, cases), strict=True):
        rows = []
        for one, other in zip(said, meant, strict=True):
            row = Row("", "", None, "", "", "", None, type="ordinal")
            row.answer, row.expected = str(one), str(other)
            row.parts = {"off": float(abs(one - other))}
            rows.append(row)
        found = metrics.parts(rows)
        assert found["pearson"] == pytest.approx(pearson, abs=1e-6)
        assert found["spearman"] == pytest.approx(spearman, abs=1e-6)
        off = [abs(one - other) for one, other in zip(said, meant, strict=True)]
        assert found["mae"] == pytest.approx(sum(off) / len(off), abs=1e-6)
        assert found["within_one"] == pytest.approx(
            sum(one <= 1 for one in off) / len(off), abs=1e-6
        )
