"""Makes tests/fixtures/metrics.json: what scikit-learn and scipy say of random answers and counts.

    python benchmarks/make_metric_table.py OUTPUT.json

Needs scikit-learn and scipy, which nothing else here does: where they are installed, every process
that imports transformers imports them too.
"""

import argparse
import json
import random
from pathlib import Path

import scipy
import sklearn
from scipy.stats import binomtest
from sklearn import metrics

CASES = 200
SAID = {"?": "(unparseable)", "-": "(failed)"}  # what else a row may say than a letter
DIGITS = 9


def class_metrics(chance: random.Random) -> dict:
    """Ground truths and answers of as many rows, a character each, and their metrics."""
    rows, letters = chance.randint(1, 60), "ABCD"[: chance.randint(1, 4)]
    expected = chance.choices(letters, k=rows)
    said = [chance.choice([truth, *"ABCD?-"]) for truth in expected]
    answers = [SAID.get(one, one) for one in said]
    classes = sorted(set(expected))
    labels = sorted({*expected, *answers})
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        expected, answers, labels=classes, average=None, zero_division=0
    )
    return {
        "expected": "".join(expected),
        "said": "".join(said),
        "accuracy": round(float(metrics.accuracy_score(expected, answers)), DIGITS),
        "precision": rounded(precision),
        "recall": rounded(recall),
        "f1": rounded(f1),
        "support": support.tolist(),
        "labels": labels,
        "counts": metrics.confusion_matrix(expected, answers, labels=labels).tolist(),
    }


def wilson_interval(chance: random.Random) -> list:
    """[successes, trials, low, high]."""
    trials = chance.choice([chance.randint(1, 20), chance.randint(1, 5000)])
    successes = chance.choice([0, trials, chance.randint(0, trials)])
    interval = binomtest(successes, trials).proportion_ci(0.95, "wilson")
    return [successes, trials, *rounded([interval.low, interval.high])]


def binomial_test(chance: random.Random, fewest: int, most: int) -> list:
    """[successes, trials, p of a share of one half]."""
    trials = chance.randint(fewest, most)
    if most > 1000:
        successes = round(trials * chance.uniform(0.4, 0.6))
    else:
        successes = chance.randint(0, trials)
    return [successes, trials, float(binomtest(successes, trials).pvalue)]


def rounded(values) -> list[float]:
    return [round(float(value), DIGITS) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    chance = random.Random(0)
    table = {
        "made_with": {"scikit-learn": sklearn.__version__, "scipy": scipy.__version__},
        "classes": [class_metrics(chance) for _ in range(CASES)],
        "wilson": [wilson_interval(chance) for _ in range(CASES)],
        "binomial": [binomial_test(chance, 1, 1000) for _ in range(CASES)],
        "binomial_of_many": [binomial_test(chance, 1001, 10**6) for _ in range(CASES)],
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(part)}" for name, part in table.items())
    output.write_text(f"{{{lines}}}\n")


if __name__ == "__main__":
    main()
