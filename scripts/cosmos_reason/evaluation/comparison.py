"""Two runs over the same questions: what the second fixed and broke, and how likely that is
chance."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.evaluation import metrics
from cosmos_reason.evaluation.rows import Row, about

EXACT_MCNEMAR_LIMIT = 1000


def compare(
    before: Sequence[Row], after: Sequence[Row], flag: str = "--compare"
) -> tuple[dict, list[Finding]]:
    """Questions that both runs answered, paired by id: what the second run fixed and broke,
    McNemar's two-sided p-value; the earlier run's summaries over the questions of both (types as
    the second run has them); and findings about what could not be paired. A row that failed is no
    answer, neither right nor wrong. Raises Failure when nothing can be paired."""
    shared = _pairs(before, after)
    if not shared:
        message = (
            f"got no question that both runs asked, such as {after[0].id} and {before[0].id}, "
            "expected two runs over the same annotations"
        )
        raise findings.bad_input("EVAL-COMPARE-NOTHING", flag, message)
    common = [(old, new) for old, new in shared if _asked(old) == _asked(new)]
    answered = [(old, new) for old, new in common if _are_answered(old, new)]
    if common and not answered:
        message = (
            f"got {len(common)} question(s) of both runs, none of which both answered, "
            "expected two runs with answers"
        )
        raise findings.bad_input("EVAL-COMPARE-NOTHING", flag, message)
    changes = Counter((old.correct, new.correct) for old, new in answered)
    fixed, broken = changes[False, True], changes[True, False]
    pair = {
        "paired": len(answered),
        "failed": len(common) - len(answered),
        "fixed": fixed,
        "broken": broken,
        "unchanged_right": changes[True, True],
        "unchanged_wrong": changes[False, False],
        "only_before": len(before) - len(shared),
        "only_after": len(after) - len(shared),
        "p_value": mcnemar(fixed, broken),
        "earlier": metrics.summary([old for old, _ in common]) if common else None,
        "earlier_per_type": _earlier_per_type(common),
    }
    found = _left_out(pair, shared, common, flag)
    floor = no_better_than_commonest(pair)
    if floor:
        found.insert(0, findings.warning("EVAL-COMPARE-COMMONEST", flag, floor))
    return pair, found


def no_better_than_commonest(pair: dict) -> str:
    """What to say first of a comparison whose earlier run is no better than always the commonest
    answer; else empty, as for a guard, whose table holds no metrics of the earlier run."""
    earlier = pair.get("earlier")
    if not earlier or earlier["accuracy"] > earlier["majority_accuracy"]:
        return ""
    return (
        f"the earlier run is right in {earlier['accuracy']:.1%}, always the commonest answer in "
        f"{earlier['majority_accuracy']:.1%}: the comparison says nothing about what the model "
        "can do; look at the frames, pixels and system prompt first"
    )


def in_words(pair: dict) -> str:
    """What `compare` found, in a line: 97.0 % -> 96.3 %, 2 broken, 0 fixed, p = 0.5."""
    before = pair["unchanged_right"] + pair["broken"]
    after = pair["unchanged_right"] + pair["fixed"]
    shares = [f"{100 * right / pair['paired']:.1f} %" for right in (before, after)]
    chance = "p < 0.001" if pair["p_value"] < 0.001 else f"p = {pair['p_value']:.2g}"
    floor = no_better_than_commonest(pair)
    return (f"{floor}. " if floor else "") + (
        f"{shares[0]} -> {shares[1]} of {pair['paired']} questions, {pair['broken']} broken, "
        f"{pair['fixed']} fixed, {chance}"
    )


def _pairs(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(earlier row, later row) of every id that both runs have."""
    earlier = {row.id: row for row in before}
    return [(earlier[row.id], row) for row in after if row.id in earlier]


def _asked(row: Row) -> tuple[str, str]:
    return row.question, row.gt


def _are_answered(old: Row, new: Row) -> bool:
    return old.error is None and new.error is None


def _earlier_per_type(common: list[tuple[Row, Row]]) -> dict[str, dict]:
    by_type = defaultdict(list)
    for old, new in common:
        by_type[new.type].append(old)
    return {kind: metrics.summary(by_type[kind]) for kind in sorted(by_type)}


def _left_out(
    pair: dict, shared: list[tuple[Row, Row]], common: list[tuple[Row, Row]], flag: str
) -> list[Finding]:
    """What is said about the questions that are not among the pairs."""
    found = []
    same_annotations = "compare runs over the same annotations"
    if pair["only_before"] or pair["only_after"]:
        message = (
            f"got {pair['only_before']} question(s) only in the earlier run and "
            f"{pair['only_after']} only in this one; they are left out"
        )
        found.append(findings.warning("EVAL-COMPARE-PARTIAL", flag, message, same_annotations))
    failed_before = sum(old.error is not None for old, _ in common)
    failed_after = sum(new.error is not None for _, new in common)
    if failed_before or failed_after:
        message = (
            f"got {failed_before} question(s) that failed in the earlier run and "
            f"{failed_after} in this one; they are left out"
        )
        fix = "evaluate again: only what failed is asked"
        found.append(findings.warning("EVAL-COMPARE-FAILED", flag, message, fix))
    other = [new.id for old, new in shared if _asked(old) != _asked(new)]
    found += about(
        other,
        "EVAL-COMPARE-OTHER",
        findings.ERROR,
        flag,
        "id(s) that stand for another question or ground truth in the earlier run; "
        "they are left out",
        same_annotations,
    )
    return found


def mcnemar(fixed: int, broken: int) -> float:
    """Two-sided p-value that fixing and breaking are equally likely: exact binomial up to
    EXACT_MCNEMAR_LIMIT changes, beyond it chi-squared with continuity correction (McNemar 1947,
    Edwards 1948)."""
    changes = fixed + broken
    if changes <= EXACT_MCNEMAR_LIMIT:
        tail = sum(math.comb(changes, count) for count in range(min(fixed, broken) + 1))
        return min(1.0, 2 * tail / 2**changes)
    distance = max(0, abs(fixed - broken) - 1)
    return math.erfc(math.sqrt(distance**2 / changes / 2))
