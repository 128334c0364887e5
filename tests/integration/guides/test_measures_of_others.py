"""Our measures equal those of the packages that define them, on random cases: scikit-learn for
probabilities. The packages lie beside the main environment."""

import json
import random
import subprocess
import sys

import oracles
import pytest

from cosmos_reason.evaluation import likelihood
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
        done = subprocess.run(
            [sys.executable, "-c", head + code],
            input=json.dumps(cases),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
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
