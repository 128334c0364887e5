"""Metrics of graded rows. Denominators are all rows asked: unparseable and failed ones are
wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from cosmos_reason.answers import CLOSED_TYPES, PLACE_TYPES, SET_TYPES, final_answer, fold, options
from cosmos_reason.answers.matching import OVERLAPS
from cosmos_reason.answers.response import reasoning
from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure
from cosmos_reason.base.fix import Fix
from cosmos_reason.evaluation.rows import JUDGE, Row

UNPARSEABLE, FAILED = "(unparseable)", "(failed)"
NO_ANSWERS = {"unparseable": UNPARSEABLE, "failed": FAILED}  # outcome of a row -> its column
CHOICES = "mcq"
QUESTIONS_LISTED = 20
LONGEST_CLUSTER = 120  # characters
_OPTIONS_START = re.compile(r"\n|(?<![A-Za-z0-9])\(?[Aa][.):]\s")
_DIGITS = re.compile(r"\d+")
Z = 1.959963984540054  # two-sided 95 %
SOFT_F1 = 0.8
TEMPLATE_SHARE, TEMPLATE_ROWS, TEMPLATE_SHOWN = 0.5, 10, 120
MEASURED_TYPES = (*SET_TYPES, "ordinal")
SHARES = ("f1", "mean_iou", "ap3d", "hit_rate")  # what an answer that is none has 0 of
# bert-score's own model for English; the tokenizer of cosmos-rl-evaluate's breaks it
BERTSCORE_MODEL = "roberta-large"


def score(rows: Sequence[Row]) -> dict:
    """Return the metrics.json of these rows (schemas/metrics.schema.json), without `model`,
    `checkpoint` and `results`."""
    by_type, by_tag, by_group = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in rows:
        by_type[row.type].append(row)
        for tag in row.tags:
            by_tag[tag].append(row)
        for group in row.groups:
            by_group[group].append(row)
    whole, per_type = summaries(rows)
    tables = confusions(rows)
    for kind, line in per_type.items():
        line |= macro(tables[kind].values())
    choices = tables.pop(CHOICES, {})
    counts = Counter()
    for table in tables.values():
        counts.update(table.get("", {}))
    # Only free text matches softly.
    soft_matches = sum(row.correct for row in rows) + sum(map(is_soft_match, by_type["text"]))
    return {
        "schema_version": 1,
        **whole,
        **macro([counts, *choices.values()]),
        "soft_accuracy": _ratio(soft_matches, len(rows)),
        "per_type": per_type,
        "per_form": per_form(rows),
        "per_class": per_class(counts),
        "per_question": per_question(choices),
        "per_tag": {tag: summary(by_tag[tag]) for tag in sorted(by_tag)},
        "per_group": {group: summary(by_group[group]) for group in sorted(by_group)},
        "confusion_matrix": matrix(counts),
        "text": text_metrics(by_type["text"]) if by_type["text"] else None,
        "overlap": {kind: overlaps(by_type[kind]) for kind in PLACE_TYPES if kind in by_type},
        "parts": {kind: parts(by_type[kind]) for kind in MEASURED_TYPES if kind in by_type},
    }


def summary(rows: Iterable[Row]) -> dict:
    """Return counts, accuracy with its 95 % Wilson interval, and that of always giving each type's
    commonest answer."""
    return summaries(rows)[0]


def summaries(rows: Iterable[Row]) -> tuple[dict, dict[str, dict]]:
    """Return the summary of all rows and that of each type."""
    # Rows that differ in nothing that is counted are counted together: most of a million are.
    alike = Counter(
        (row.type, row.expected, row.outcome, row.rule == JUDGE, row.is_cut) for row in rows
    )
    by_type: dict[str, dict] = defaultdict(dict)
    for key, count in alike.items():
        by_type[key[0]][key] = count
    return _summed(alike), {kind: _summed(by_type[kind]) for kind in sorted(by_type)}


def _summed(alike: dict[tuple[str, str | None, str, bool, bool], int]) -> dict:
    """Return the summary of rows that were counted by type, ground truth, outcome, whether a judge
    read them and whether they were cut."""
    outcomes, expected = Counter(), Counter()
    judged, cut = Counter(), Counter()  # outcomes, too
    for (kind, truth, outcome, by_judge, is_cut), count in alike.items():
        outcomes[outcome] += count
        if truth is not None:
            expected[kind, truth] += count
        if by_judge:
            judged[outcome] += count
        if is_cut:
            cut[outcome] += count
    # The baseline guesses per type: "A" says nothing about a yes-or-no question.
    commonest: dict[str, int] = {}
    for (kind, _), count in expected.items():
        commonest[kind] = max(count, commonest.get(kind, 0))
    rows = outcomes.total()
    # As the rules read them: what a judge read was unread.
    unread = outcomes["unparseable"] + judged["right"] + judged["wrong"]
    return {
        "rows": rows,
        "correct": outcomes["right"],
        "unparseable": outcomes["unparseable"],
        "unparseable_rate": _ratio(outcomes["unparseable"], rows),
        "unread_rate": _ratio(unread, rows),
        "failed": outcomes["failed"],
        "cut_short": cut.total(),
        "judged": judged.total(),
        "judged_right": judged["right"],
        "unparseable_cut": cut["unparseable"],
        "accuracy": _ratio(outcomes["right"], rows),
        "accuracy_interval": wilson(outcomes["right"], rows),
        "majority_accuracy": _ratio(sum(commonest.values()), rows),
    }


def per_form(rows: Iterable[Row]) -> dict[str, dict]:
    """Return how many rows commit to no answer by the form that the prompt asks for, as the rules
    read them: a judge who read some changes nothing."""
    counts = Counter((row.form, row.read == "unread") for row in rows if row.form)
    forms = {}
    for form in sorted({form for form, _ in counts}):
        unread, count = counts[form, True], counts[form, True] + counts[form, False]
        forms[form] = {"rows": count, "unread": unread, "unread_rate": _ratio(unread, count)}
    return forms


def wilson(correct: int, rows: int) -> list[float]:
    """Return the 95 % score interval of a proportion (Wilson 1927)."""
    share = correct / rows
    spread = Z * Z / rows
    centre = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / rows + spread / (4 * rows)) / (1 + spread)
    return [round(max(0.0, centre - half), 6), round(min(1.0, centre + half), 6)]


@lru_cache(maxsize=1 << 18)
def cluster(question: str) -> str:
    """Return what questions that differ only in options, numbers and case have in common."""
    stem = _OPTIONS_START.split(question.strip(), maxsplit=1)[0]
    return " ".join(_DIGITS.sub("#", stem.casefold()).split())[:LONGEST_CLUSTER]


def named(row: Row, answer: str) -> str:
    """Return an answer by the text of its option: a letter means another thing in each question."""
    return options(row.question).get(answer) or answer if row.type == CHOICES else answer


def confusions(
    rows: Iterable[Row], apart: Sequence[str] = (CHOICES,)
) -> dict[str, dict[str, Counter[tuple[str, str]]]]:
    """Return {type: {question: how often (expected class, given class) occurred}} of the closed
    types. Types `apart` have a table for each question, and choices are called by their texts; of
    other types all rows are in one table, under an empty question."""
    tables = defaultdict(lambda: defaultdict(Counter))
    # A question is read once for all of its rows: a million rows have few questions.
    known: dict[tuple[str, str], tuple[Counter, dict[str, str]]] = {}
    for row in rows:
        kind, expected = row.type, row.expected
        if kind not in CLOSED_TYPES or expected is None:
            continue
        counted = known.get((kind, row.question))
        if counted is None:
            question = cluster(row.question) if kind in apart else ""
            texts = options(row.question) if kind == CHOICES else {}
            counted = known[kind, row.question] = tables[kind][question], texts
        counts, texts = counted
        # What is no answer gets a column of its own, so that recall counts it as a miss and no
        # class as a prediction.
        given = NO_ANSWERS.get(row.outcome) or row.answer
        counts[texts.get(expected) or expected, texts.get(given) or given] += 1
    return tables


def per_question(tables: dict[str, Counter[tuple[str, str]]]) -> list[dict]:
    """Return the classes and the confusion matrix of the QUESTIONS_LISTED choices that were asked
    most often."""
    often = sorted(tables, key=lambda question: (-tables[question].total(), question))
    lines = []
    for question in often[:QUESTIONS_LISTED]:
        counts = tables[question]
        line = {"question": question, "rows": counts.total(), "per_class": per_class(counts)}
        lines.append(line | {"confusion_matrix": matrix(counts)})
    return lines


def per_class(counts: Counter[tuple[str, str]]) -> dict[str, dict]:
    """Return precision, recall, F1 and support of every class that is expected somewhere."""
    support, predicted = Counter(), Counter()
    for (expected, given), count in counts.items():
        support[expected] += count
        predicted[given] += count
    table = {}
    for label in sorted(support):
        hits = counts[label, label]
        table[label] = {
            "precision": _ratio(hits, predicted[label]),
            "recall": _ratio(hits, support[label]),
            "f1": _ratio(2 * hits, support[label] + predicted[label]),
            "support": support[label],
        }
    return table


def macro(tables: Iterable[Counter[tuple[str, str]]]) -> dict:
    """Return unweighted means over the classes that are expected in any of the tables; None without
    one. Balanced accuracy is the mean recall."""
    classes = [line for counts in tables for line in per_class(counts).values()]
    means = {}
    for name in ("precision", "recall", "f1"):
        values = [line[name] for line in classes]
        means[name] = round(sum(values) / len(values), 6) if values else None
    return {"balanced_accuracy": means["recall"], **means}


def matrix(counts: Counter[tuple[str, str]]) -> dict:
    """Return {labels, counts}: `counts[i][j]` rows expected labels[i] and got labels[j]; the last
    labels are no answers."""
    seen = {label for pair in counts for label in pair}
    no_answers = [label for label in (UNPARSEABLE, FAILED) if label in seen]
    labels = sorted(seen.difference(no_answers)) + no_answers
    lines = [[counts[expected, given] for given in labels] for expected in labels]
    return {"labels": labels, "counts": lines}


def is_soft_match(row: Row) -> bool:
    """Return whether it is free text whose words overlap with the ground truth's at an F1 of
    SOFT_F1 or more (cosmos-rl-evaluate)."""
    if row.type != "text" or row.outcome != "wrong" or not row.expected:
        return False
    given = Counter(fold(row.answer).split())
    expected = Counter(row.expected.split())
    return 2 * (given & expected).total() >= SOFT_F1 * (given.total() + expected.total())


def overlaps(rows: Sequence[Row]) -> dict:
    """Return mean intersection over union of spans or boxes and the shares of rows above OVERLAPS;
    no answer overlaps by 0."""
    values = [(row.overlap or 0.0) if row.error is None else 0.0 for row in rows]
    shares = {}
    for limit in OVERLAPS:
        shares[f"{limit}"] = _ratio(sum(value >= limit for value in values), len(rows))
    mean = round(sum(values) / len(values), 6)
    return {"rows": len(rows), "mean_iou": mean, "share_above": shares}


def template_reasoning(rows: Sequence[Row]) -> dict | None:
    """Return the thought that at least TEMPLATE_SHARE of the right answers have word for word:
    {text, rows, of}. A model that thinks the same of every clip reasons about none. None for
    fewer than TEMPLATE_ROWS right answers to different questions or clips."""
    thoughts = Counter()
    asked = set()
    for row in rows:
        thought = reasoning(row.response or "") if row.correct else None
        if thought:
            thoughts[fold(thought)] += 1
            if len(asked) < TEMPLATE_ROWS:
                asked.add((row.media or row.video_id, row.question))
    if len(asked) < TEMPLATE_ROWS:
        return None
    text, count = thoughts.most_common(1)[0]
    if count < TEMPLATE_SHARE * thoughts.total():
        return None
    return {"text": text[:TEMPLATE_SHOWN], "rows": count, "of": thoughts.total()}


def parts(rows: Sequence[Row]) -> dict:
    """Return the mean of each measure of sets or grades. Shares (F1, IoU, AP, hits) count 0 for a
    row without an answer; distances are those of the rows that have them. Of grades also the share
    within one, and the correlations (Pearson, Spearman) with the ground truths."""
    measured = [row.parts for row in rows if row.parts and row.error is None]
    names = dict.fromkeys(name for one in measured for name in one)
    means: dict[str, float | None] = {}
    for name in names:
        values = [one[name] for one in measured if name in one]
        whole = len(rows) if name.startswith(SHARES) else len(values)
        means[name] = round(sum(values) / whole, 6)
    table = {"rows": len(rows), "measured": len(measured), **means}
    if rows[0].type != "ordinal":
        return table
    table["mae"] = table.pop("off", None)
    table["within_one"] = _ratio(sum(one["off"] <= 1 for one in measured), len(rows))
    graded = [row for row in rows if row.parts and row.error is None]
    pairs = [(float(row.answer), float(row.expected)) for row in graded]
    table["pearson"] = _correlation(pairs)
    ranked = zip(*(_ranks(side) for side in zip(*pairs, strict=True)), strict=True)
    table["spearman"] = _correlation([*ranked])
    return table


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, the mean one of equals."""
    places = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation; None where a side is always the same."""
    try:
        return round(statistics.correlation(*zip(*pairs, strict=True)), 6)
    except (statistics.StatisticsError, TypeError):  # of fewer than two pairs
        return None


def text_metrics(rows: Sequence[Row]) -> dict:
    """Return corpus BLEU (0 to 100, sacrebleu) and the mean ROUGE-L F1 (0 to 1, rouge-score); no
    answer is an empty text."""
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer

    given = [row.answer or "" for row in rows]
    expected = [final_answer(row.gt) or "" for row in rows]
    bleu = sacrebleu.corpus_bleu(given, [expected]).score
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    rouge = 0.0
    for gt, text in zip(expected, given, strict=True):
        rouge += scorer.score(gt, text)["rougeL"].fmeasure
    return {"rows": len(rows), "bleu": round(bleu, 6), "rouge_l": round(rouge / len(rows), 6)}


def bertscore(rows: Sequence[Row], model: str) -> float:
    """Return the mean BERTScore F1 (Zhang et al. 2020) of the free text rows under an encoder that
    bert-score knows; no answer scores 0. Raises Failure: exit 2 when bert-score is not installed,
    exit 3 when it fails."""
    try:
        import bert_score
    except ImportError as problem:
        message = f"the optional package bert-score is missing: {problem}"
        fix = "pip install bert-score==0.3.13"
        raise findings.bad_input("EVAL-BERTSCORE-MISSING", "--bertscore", message, fix) from None
    answered = [row for row in rows if row.answer]
    if not answered:
        return 0.0
    given = [row.answer for row in answered]
    expected = [final_answer(row.gt) or "" for row in answered]
    try:
        _, _, f1 = bert_score.score(given, expected, model_type=model)
    except Exception as problem:  # of the package, of what it is built on, or of the network
        message = f"bert-score failed: {type(problem).__name__}: {str(problem)[:300]}"
        fix = Fix(flags={"--bertscore": BERTSCORE_MODEL})
        raise findings.outside("EVAL-BERTSCORE-FAILED", model, message, fix) from None
    return round(float(f1.sum()) / len(rows), 6)


def from_file(path: Path, rows: Sequence[Row]) -> dict[str, float]:
    """Return what the user's own `metric(rows) -> {name: number}` in a Python file makes of the
    rows, given as dictionaries of Row's fields. What it prints goes to stderr. Raises Failure for
    anything else, also when it exits."""
    import runpy

    try:
        with contextlib.redirect_stdout(sys.stderr):
            metric = runpy.run_path(str(path)).get("metric")
            if metric is None:
                message = "it defines no function metric(rows)"
                raise findings.bad_input("EVAL-METRIC-FILE", path, message)
            result = metric([dataclasses.asdict(row) for row in rows])
            return {str(name): _finite(value) for name, value in result.items()}
    except Failure:
        raise
    except (Exception, SystemExit) as problem:
        message = "its `metric(rows)` must return {name: number}: "
        message += f"{type(problem).__name__}: {problem}"
        raise findings.bad_input("EVAL-METRIC-FILE", path, message) from None


def _finite(value: object) -> float:
    if isinstance(value, str | bytes | bool) or not math.isfinite(float(value)):
        raise ValueError(f"{value!r} as a value")
    return float(value)


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
