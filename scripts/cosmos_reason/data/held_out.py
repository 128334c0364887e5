"""Whether held-out data say something: enough questions, of every answer, asked as in training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosmos_reason.data.survey import Survey

FEWEST_QUESTIONS = 30
FEWEST_PER_ANSWER = 5
MOST_ANSWERS = 12  # more are no classes that each need a share
CLASSES = ("yes_no", "direction", "label")  # the letters of a choice are no classes
MOST_SHOWN = 3
ADD_CLIPS = "add clips: even half of them would be too few"
EXPECTED = (
    f"a score says little below {FEWEST_QUESTIONS} questions and {FEWEST_PER_ANSWER} of each answer"
)


Balance = Mapping[str, Counter]  # of each kind of question, how often it has which answer


def balance(conversations: Iterable[Sequence]) -> Balance:
    """Return the balance of turns (each a role and a text), in the form that a survey of a dataset
    has."""
    from cosmos_reason import answers
    from cosmos_reason.data.survey import short_answer

    counts: dict[str, Counter] = defaultdict(Counter)
    for turns in conversations:
        for (_, question), (role, answer) in pairwise(turns):
            if role == "assistant":
                kind = answers.question_type(question, answer)
                counts[kind][short_answer(kind, question, answer)] += 1
    return counts


def shortage(held_out: Balance, everything: Balance, questions: int) -> str:
    """Return what there is too little of in held-out data of so many questions; "" when there is
    enough."""
    of_answers = Counter()
    for kind in CLASSES:
        expected = [answer for answer in everything.get(kind, ()) if answer]
        if len(expected) <= MOST_ANSWERS:
            there = held_out.get(kind, Counter())
            of_answers.update({answer: there[answer] for answer in expected})
    short = []
    if questions < FEWEST_QUESTIONS:
        short.append(f"{questions} held-out questions")
    rare = [answer for answer, count in of_answers.items() if count < FEWEST_PER_ANSWER]
    shown = [f"{of_answers[answer]} of {answer!r}" for answer in sorted(rare)[:MOST_SHOWN]]
    return ", ".join(short + shown)


def check(train: Survey, evaluation: Survey) -> None:
    """Report what makes a score on the held-out data say little, as problems of theirs: too few
    questions, and questions that no training record asks, where training asks the same again and
    again."""
    everything = {}
    for kind in CLASSES:
        trained = train.balance.get(kind, Counter())
        everything[kind] = trained + evaluation.balance.get(kind, Counter())
    questions = sum(evaluation.asked)
    short = shortage(evaluation.balance, everything, questions)
    if short:
        half = {}
        for kind, counts in everything.items():
            half[kind] = Counter({answer: count // 2 for answer, count in counts.items()})
        way_out = "hold out more"
        if shortage(half, everything, (questions + sum(train.asked)) // 2):
            way_out = ADD_CLIPS
        evaluation.tally.add("DATA-EVAL-SMALL", 0, "-", f"got {short}, {EXPECTED}; {way_out}")
    asked = set(train.text_keys)
    start = 0
    for row, count in enumerate(evaluation.asked if 2 * len(asked) <= len(train.text_keys) else ()):
        texts = evaluation.text_keys[start : start + count]
        start += count
        if any(text not in asked for text in texts):
            message = "got a question in words that no training record has"
            index, name = evaluation.indices[row], evaluation.ids[row]
            evaluation.tally.add("DATA-EVAL-WORDING", index, name, message)
