"""Questions asked by likelihood (`evaluation.ask`): which answers are weighed, what their
probabilities are worth, and from which probability on yes is said.

Nothing has to be read then. What is weighed is what a response may begin with: the letters of a
question's options, yes and no, the labels of a closed set, directions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from cosmos_reason import answers
from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.evaluation import grading, questions
from cosmos_reason.evaluation.questions import GENERATE
from cosmos_reason.evaluation.rows import Row

KEY = "evaluation.ask"
BINS = 10  # of the calibration
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
AUTO = "auto"
NOTHING_TO_WEIGH = "it has no options, labels, yes or no, that can be told by how they begin"


def choices(spec: dict) -> dict[str, tuple[str, ...]]:
    """Return what is weighed for each question of the annotations, by its id; a question without
    such answers is left out. Labels are those of the whole file, whatever is asked of it."""
    asked = questions.read(spec["dataset"], -1)
    rows = [Row.of(one, None) for one in asked]
    grading.grade(rows, grading.TASK_TYPES[spec["task"]["type"]])
    # Only directions that are true of some clip: a way that nobody went is no answer to weigh.
    ways = {row.expected for row in rows if row.type == "direction" and row.expected}
    found = {}
    for row in rows:
        weighed: Iterable[str] = ()
        if row.type == "mcq":
            weighed = answers.options(row.question)
        elif row.type == "yes_no":
            weighed = ("yes", "no")
        elif row.type == "label":
            weighed = row.labels
        elif row.type == "direction" and len(ways) > 1:
            weighed = sorted(ways)
        if weighed:
            found[row.id] = tuple(weighed)
    return found


def without_choices(spec: dict) -> list[Finding]:
    """Return a warning about questions that cannot be asked by likelihood, though the spec asks
    so: they become errors, or are asked for text alone. Raises Failure when that is every one."""
    if spec["evaluation"]["ask"] == GENERATE:
        return []
    asked = questions.read(spec["dataset"], spec["evaluation"]["limit"])
    weighed = choices(spec)
    without = [question.id for question in asked if question.id not in weighed]
    if not without:
        return []
    message = (
        f"{len(without)} of {len(asked)} questions have no options, labels, yes or no as answers: "
        "no likelihood is asked of them"
    )
    if len(without) == len(asked):
        fix = Fix(changes={KEY: GENERATE})
        raise findings.bad_input("EVAL-LIKELIHOOD-OPTIONS", KEY, message, fix)
    record_ids = without[: findings.MAX_RECORD_IDS]
    return [findings.warning("EVAL-LIKELIHOOD-OPTIONS", KEY, message, record_ids=record_ids)]


def likeliest(choice: dict[str, float]) -> str:
    return max(choice, key=choice.__getitem__)


def of_tokens(likely: Mapping[str, float], weighed: Sequence[str]) -> dict[str, float] | None:
    """Return the probability of each answer from those of the likeliest first tokens, as a server
    tells them: an answer that none of them begins has 0. A token counts for the only answer that it
    is, or begins with two letters or more. None where one begins several answers, and where they
    begin none."""
    found = dict.fromkeys(weighed, 0.0)
    for token, probability in likely.items():
        word = token.strip()
        if len(word) > 1:  # a small letter would be an article: "a red car"
            word = word.casefold()
        begun = [one for one in weighed if one == word or (len(word) > 1 and one.startswith(word))]
        if len(begun) > 1:
            return None
        if begun:
            found[begun[0]] += probability
    return {name: round(value, 6) for name, value in found.items()} if any(found.values()) else None


# -- what the probabilities are worth ----------------------------------------------------------


def measure(rows: Sequence[Row]) -> dict | None:
    """Return how well the probabilities of weighed answers tell what is right: calibration over
    BINS of the likeliest answer's share, ECE (Guo et al. 2017), and for yes/no how they separate
    the two. `mass` is what the model gives to all answers that were weighed, the rest being other
    words; `agreement` the share whose text answers the likeliest too. None where nothing was
    weighed."""
    rows = [row for row in rows if row.choice and row.error is None and row.expected]
    if not rows:
        return None
    bins = [[0, 0.0, 0] for _ in range(BINS)]  # rows, sum of confidences, right ones
    right = agreed = 0
    mass = 0.0
    for row in rows:
        total = sum(row.choice.values())
        best = likeliest(row.choice)
        confidence = row.choice[best] / total
        one = bins[min(int(confidence * BINS), BINS - 1)]
        one[0] += 1
        one[1] += confidence
        one[2] += best == row.expected
        right += best == row.expected
        agreed += best == row.answer
        mass += total
    reliability = []
    error = 0.0
    for count, confidence, hits in bins:
        if not count:
            continue
        error += abs(confidence - hits)
        line = {"rows": count, "confidence": round(confidence / count, 6)}
        reliability.append(line | {"accuracy": round(hits / count, 6)})
    positive, negative = _shares_of_yes(rows)
    return {
        "rows": len(rows),
        "accuracy": round(right / len(rows), 6),
        "agreement": round(agreed / len(rows), 6),
        "mass": round(mass / len(rows), 6),
        "ece": round(error / len(rows), 6),
        "reliability": reliability,
        "yes_no": separation(positive, negative) if positive and negative else None,
    }


def _shares_of_yes(rows: Iterable[Row]) -> tuple[list[float], list[float]]:
    """Return the shares of yes of weighed questions whose ground truth is yes, and of the
    others."""
    positive, negative = [], []
    for row in rows:
        share = share_of_yes(row)
        if share is not None and row.expected:
            (positive if row.expected == "yes" else negative).append(share)
    return positive, negative


def share_of_yes(row: Row) -> float | None:
    """Return the probability of yes among yes and no; None for a question of another type."""
    if row.type != "yes_no" or row.error is not None or not row.choice or "yes" not in row.choice:
        return None
    return row.choice["yes"] / sum(row.choice.values())


def separation(positive: Sequence[float], negative: Sequence[float]) -> dict:
    """Return the area under the ROC curve (the share of pairs of which the positive one scores
    higher, ties half), and precision and recall of "yes" from each threshold on."""
    ranked = sorted(negative)
    higher = 0.0
    for score in positive:
        higher += (bisect_left(ranked, score) + bisect_right(ranked, score)) / 2
    lines = []
    for threshold in THRESHOLDS:
        hits = sum(score >= threshold for score in positive)
        said = hits + sum(score >= threshold for score in negative)
        precision = round(hits / said, 6) if said else None
        recall = round(hits / len(positive), 6)
        lines.append({"threshold": threshold, "precision": precision, "recall": recall})
    return {
        "rows": len(positive) + len(negative),
        "roc_auc": round(higher / (len(positive) * len(negative)), 6),
        "thresholds": lines,
    }


# -- the threshold -----------------------------------------------------------------------------


def chosen_threshold(rows: Sequence[Row], where: object) -> float:
    """Return the share of yes from which on saying yes has the highest balanced accuracy in these
    rows (Youden 1950), half-way to the next lower share; of several the one closest to 0.5. Raises
    Failure where yes or no is no ground truth of a weighed question."""
    positive, negative = map(sorted, _shares_of_yes(rows))
    if not positive or not negative:
        message = (
            "it holds no weighed yes-or-no questions of both answers to choose a threshold on; "
            "evaluate it with evaluation.ask = likelihood"
        )
        raise findings.bad_input("EVAL-THRESHOLD-ROWS", where, message)
    shares = sorted({*positive, *negative})
    between = [(low + high) / 2 for low, high in pairwise(shares)]
    ranked = []
    for threshold in (0.0, *between, 1.0):
        hits = len(positive) - bisect_left(positive, threshold)
        balanced = hits / len(positive) + bisect_left(negative, threshold) / len(negative)
        ranked.append((balanced, -abs(threshold - 0.5), threshold))
    return max(ranked)[-1]  # not rounded: a model that is sure has shares that differ by 1e-6


def refuse_same(rows: Sequence[Row], chosen_on: Sequence[Row], flag: str) -> None:
    """Raise Failure where a threshold would be reported on questions that chose it."""
    known = {(row.media or row.video_id, row.question) for row in chosen_on}
    both = [row.id for row in rows if (row.media or row.video_id, row.question) in known]
    if both:
        message = (
            f"{len(both)} of {len(rows)} questions are among those that choose the threshold; "
            "a threshold flatters itself there: choose it on results of other clips"
        )
        record_ids = both[: findings.MAX_RECORD_IDS]
        raise findings.bad_input("EVAL-THRESHOLD-SAME", flag, message, record_ids=record_ids)


def answer_from(rows: Iterable[Row], threshold: float) -> int:
    """Answer weighed yes-or-no questions with yes from this share of yes on, and return how many
    there are; no other row changes."""
    count = 0
    for row in rows:
        share = share_of_yes(row)
        if share is not None:
            row.answer = "yes" if share >= threshold else "no"
            row.correct = row.answer == row.expected
            row.rule = "threshold"
            count += 1
    return count
