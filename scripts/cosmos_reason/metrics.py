"""Metrics of judged rows (results.judge). Denominators are all rows asked: unparseable and failed ones are wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from cosmos_reason.answers import CLOSED_TYPES, final_answer, fold
from cosmos_reason.findings import ERROR, Finding, bad_input, outside, warning
from cosmos_reason.results import Row, about

UNPARSEABLE, FAILED = "(unparseable)", "(failed)"
Z = 1.959963984540054  # two-sided 95 %
SOFT_F1 = 0.8
EXACT_MCNEMAR_LIMIT = 1000
BERTSCORE_MODEL = "roberta-large"  # bert-score's own for English; the tokenizer of cosmos-rl-evaluate's breaks it


def score(rows: Sequence[Row]) -> dict:
    """The metrics.json of these rows (schemas/metrics.schema.json), without `model`, `checkpoint` and `results`."""
    by_type, by_tag = defaultdict(list), defaultdict(list)
    for row in rows:
        by_type[row.type].append(row)
        for tag in row.tags:
            by_tag[tag].append(row)
    counts = confusion(rows)
    classes = per_class(counts)
    return {
        "schema_version": 1,
        **summary(rows),
        **macro(classes),
        "soft_accuracy": _ratio(sum(row.correct or is_soft_match(row) for row in rows), len(rows)),
        "per_type": {kind: summary(of) | macro(per_class(confusion(of))) for kind, of in sorted(by_type.items())},
        "per_class": classes,
        "per_tag": {tag: summary(by_tag[tag]) for tag in sorted(by_tag)},
        "confusion_matrix": matrix(counts),
        "text": text_metrics(by_type["text"]) if "text" in by_type else None,
    }


def summary(rows: Sequence[Row]) -> dict:
    """Counts, accuracy with its 95 % Wilson interval, and that of always giving each type's commonest answer."""
    outcomes = Counter(row.outcome for row in rows)
    known = Counter((row.type, row.expected) for row in rows if row.expected is not None)
    commonest: dict[str, int] = {}
    for (kind, _), count in known.items():
        commonest[kind] = max(count, commonest.get(kind, 0))
    return {
        "rows": len(rows),
        "correct": outcomes["right"],
        "unparseable": outcomes["unparseable"],
        "unparseable_rate": _ratio(outcomes["unparseable"], len(rows)),
        "failed": outcomes["failed"],
        "cut_short": sum(row.is_cut for row in rows),
        "unparseable_cut": sum(row.is_cut and row.outcome == "unparseable" for row in rows),
        "accuracy": _ratio(outcomes["right"], len(rows)),
        "accuracy_interval": wilson(outcomes["right"], len(rows)),
        "majority_accuracy": _ratio(sum(commonest.values()), len(rows)),
    }


def wilson(correct: int, rows: int) -> list[float]:
    """95 % score interval of a proportion (Wilson 1927)."""
    share, spread = correct / rows, Z * Z / rows
    centre = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / rows + spread / (4 * rows)) / (1 + spread)
    return [round(max(0.0, centre - half), 6), round(min(1.0, centre + half), 6)]


def confusion(rows: Iterable[Row]) -> Counter[tuple[str, str]]:
    """How often (expected class, given class) occurred among rows of closed types."""
    given = {"failed": FAILED, "unparseable": UNPARSEABLE}
    closed = (row for row in rows if row.type in CLOSED_TYPES and row.expected is not None)
    return Counter((row.expected, given.get(row.outcome, row.answer)) for row in closed)


def per_class(counts: Counter[tuple[str, str]]) -> dict[str, dict]:
    """Precision, recall, F1 and support of every class that is expected somewhere."""
    support, predicted = Counter(), Counter()
    for (expected, given), count in counts.items():
        support[expected] += count
        predicted[given] += count
    table = {}
    for label in sorted(support):
        hits = counts[label, label]
        precision, recall = _ratio(hits, predicted[label]), _ratio(hits, support[label])
        f1 = _ratio(2 * hits, support[label] + predicted[label])
        table[label] = {"precision": precision, "recall": recall, "f1": f1, "support": support[label]}
    return table


def macro(classes: dict[str, dict]) -> dict:
    """Unweighted means over the expected classes; None without one. Balanced accuracy is the mean recall."""
    mean = dict.fromkeys(("precision", "recall", "f1"))
    if classes:
        mean = {key: round(sum(row[key] for row in classes.values()) / len(classes), 6) for key in mean}
    return {"balanced_accuracy": mean["recall"], **mean}


def matrix(counts: Counter[tuple[str, str]]) -> dict:
    """{labels, counts}: `counts[i][j]` rows expected labels[i] and got labels[j]; the last labels are no answers."""
    seen = {label for pair in counts for label in pair}
    none = [label for label in (UNPARSEABLE, FAILED) if label in seen]
    labels = sorted(seen.difference(none)) + none
    return {"labels": labels, "counts": [[counts[row, column] for column in labels] for row in labels]}


def is_soft_match(row: Row) -> bool:
    """Free text whose words overlap with the ground truth's at an F1 of SOFT_F1 or more (cosmos-rl-evaluate)."""
    if row.type != "text" or row.outcome != "wrong" or not row.expected:
        return False
    said, expected = Counter(fold(row.answer).split()), Counter(row.expected.split())
    return 2 * (said & expected).total() >= SOFT_F1 * (said.total() + expected.total())


def text_metrics(rows: Sequence[Row]) -> dict:
    """Corpus BLEU (0 to 100, sacrebleu) and the mean ROUGE-L F1 (0 to 1, rouge-score); no answer is an empty text."""
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer

    said, expected = [row.answer or "" for row in rows], [final_answer(row.gt) or "" for row in rows]
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    rouge = sum(scorer.score(gt, text)["rougeL"].fmeasure for gt, text in zip(expected, said, strict=True))
    bleu = sacrebleu.corpus_bleu(said, [expected]).score
    return {"rows": len(rows), "bleu": round(bleu, 6), "rouge_l": round(rouge / len(rows), 6)}


def bertscore(rows: Sequence[Row], model: str) -> float:
    """Mean BERTScore F1 (Zhang et al. 2020) of the free text rows under an encoder that bert-score knows; no answer
    scores 0. Raises Failure: exit 2 when bert-score is not installed, exit 3 when it fails."""
    try:
        import bert_score
    except ImportError as problem:
        message = f"got {problem}, expected the optional package bert-score"
        raise bad_input("EVAL-BERTSCORE-MISSING", "--bertscore", message, "pip install bert-score==0.3.13") from None
    pairs = [(row.answer, final_answer(row.gt) or "") for row in rows if row.answer]
    if not pairs:
        return 0.0
    try:
        _, _, f1 = bert_score.score(*map(list, zip(*pairs, strict=True)), model_type=model)
    except Exception as problem:  # of the package, of what it is built on, or of the network
        message = f"got {type(problem).__name__}: {str(problem)[:300]}, expected scores"
        raise outside("EVAL-BERTSCORE-FAILED", model, message, f"--bertscore {BERTSCORE_MODEL}") from None
    return round(float(f1.sum()) / len(rows), 6)


def compare(before: Sequence[Row], after: Sequence[Row], flag: str = "--compare") -> tuple[dict, list[Finding]]:
    """Questions of both runs, paired by id: what the second run fixed and broke, McNemar's two-sided p-value, and the
    earlier run's summaries over these questions (types as the second run has them); with findings about
    what could not be paired. Raises Failure when nothing can."""
    first, second = ({row.id: row for row in rows} for rows in (before, after))
    shared = [id for id in second if id in first]
    other = [id for id in shared if (first[id].gt, first[id].question) != (second[id].gt, second[id].question)]
    odd, by_type = set(other), defaultdict(list)
    common = [id for id in shared if id not in odd]
    for id in common:
        by_type[second[id].type].append(first[id])
    if not shared:
        message = f"got no question that both runs asked, such as {next(iter(second))} and {next(iter(first))}"
        raise bad_input("EVAL-COMPARE-NOTHING", flag, f"{message}, expected two runs over the same annotations")
    pairs = Counter((first[id].correct, second[id].correct) for id in common)
    fixed, broken = pairs[False, True], pairs[True, False]
    alone = len(first) - len(shared), len(second) - len(shared)
    fix, found = "compare runs over the same annotations", []
    if any(alone):
        message = "got {} question(s) only in the earlier run and {} only in this one; they are left out".format(*alone)
        found.append(warning("EVAL-COMPARE-PARTIAL", flag, message, fix))
    message = "id(s) that stand for another question or ground truth in the earlier run; they are left out"
    found += about(other, "EVAL-COMPARE-OTHER", ERROR, flag, message, fix)
    return {
        "paired": len(common),
        "fixed": fixed,
        "broken": broken,
        "unchanged_right": pairs[True, True],
        "unchanged_wrong": pairs[False, False],
        "only_before": alone[0],
        "only_after": alone[1],
        "p_value": mcnemar(fixed, broken),
        "earlier": summary([first[id] for id in common]) if common else None,
        "earlier_per_type": {kind: summary(by_type[kind]) for kind in sorted(by_type)},
    }, found


def mcnemar(fixed: int, broken: int) -> float:
    """Two-sided p-value that fixing and breaking are equally likely: exact binomial up to EXACT_MCNEMAR_LIMIT changes,
    beyond it chi-squared with continuity correction (McNemar 1947, Edwards 1948)."""
    changes, rarer = fixed + broken, min(fixed, broken)
    if changes <= EXACT_MCNEMAR_LIMIT:
        return min(1.0, 2 * sum(math.comb(changes, k) for k in range(rarer + 1)) / 2**changes)
    return math.erfc(math.sqrt((max(0, abs(fixed - broken) - 1)) ** 2 / changes / 2))


def from_file(path: Path, rows: Sequence[Row]) -> dict[str, float]:
    """What the user's own `metric(rows) -> {name: number}` in a Python file makes of the rows, given as dictionaries of
    Row's fields. What it prints goes to stderr. Raises Failure for anything else, also when it exits."""
    import runpy

    expected = "expected a Python file with `def metric(rows)` that returns {name: number}"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            made = runpy.run_path(str(path))["metric"]([dataclasses.asdict(row) for row in rows])
            return {str(name): _finite(value) for name, value in made.items()}
    except (Exception, SystemExit) as problem:
        raise bad_input("EVAL-METRIC-FILE", path, f"got {type(problem).__name__}: {problem}, {expected}") from None


def _finite(value: object) -> float:
    if isinstance(value, str | bytes | bool) or not math.isfinite(number := float(value)):
        raise ValueError(f"{value!r} as a value")
    return number


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
