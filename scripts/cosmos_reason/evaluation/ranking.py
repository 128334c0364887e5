"""Which of several models answered the same questions best, and which others chance may put
there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cosmos_reason.evaluation.comparison import mcnemar
from cosmos_reason.evaluation.rows import Row

CHANCE = 0.05


@dataclass(frozen=True)
class Answers:
    """What a run got right: of each question whether it did, None where the row failed. `asked`
    is equal for runs of the same questions."""

    name: str
    asked: str
    right: dict[str, bool | None]

    @classmethod
    def of(cls, name: str, graded: Sequence[Row]) -> Answers:
        questions = hashlib.sha256()
        for text in sorted(repr((row.id, row.question, row.gt)) for row in graded):
            questions.update(text.encode(errors="surrogatepass"))
        right = {row.id: None if row.error is not None else row.correct for row in graded}
        return cls(name, questions.hexdigest(), right)

    @property
    def accuracy(self) -> float:
        return sum(map(bool, self.right.values())) / len(self.right)


def best(runs: Sequence[Answers]) -> dict | None:
    """The run of the highest accuracy (failed rows are wrong), the next one, and the runs that it
    cannot be told apart from: McNemar's p-value of what both answered is `CHANCE` or more. None
    for fewer than two runs, and where they were asked different questions."""
    if len(runs) < 2 or len({run.asked for run in runs}) > 1:
        return None
    first, *others = sorted(runs, key=lambda run: -run.accuracy)
    pairs = {run.name: _pair(run, first) for run in others}
    return {
        "name": first.name,
        "accuracy": first.accuracy,
        "next": others[0].name,
        "next_accuracy": others[0].accuracy,
        **pairs[others[0].name],
        "alike": [name for name, pair in pairs.items() if pair["p_value"] >= CHANCE],
    }


def in_words(found: dict) -> list[str]:
    alike = ", ".join(found["alike"]) or "no other"
    return [
        f"best: {found['name']} {found['accuracy']:.1%}; the next, {found['next']} "
        f"{found['next_accuracy']:.1%}: {found['fixed']} fixed, {found['broken']} broken by the "
        f"best, McNemar p = {found['p_value']:.3g}",
        f"not told apart from the best (p of {CHANCE:g} or more): {alike}",
        "the best of several flatters itself: score it on questions that chose none of them",
    ]


def _pair(before: Answers, after: Answers) -> dict:
    both = [(old, after.right[id]) for id, old in before.right.items()]
    fixed = sum(1 for old, new in both if old is False and new is True)
    broken = sum(1 for old, new in both if old is True and new is False)
    return {"fixed": fixed, "broken": broken, "p_value": mcnemar(fixed, broken)}
