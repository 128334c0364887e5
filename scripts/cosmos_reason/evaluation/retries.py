"""Asking again what got an empty answer, as Cosmos-Reason1's evaluator does: each time with more
tokens and a higher temperature."""

from __future__ import annotations

from collections.abc import Iterator

from cosmos_reason.answers import final_answer
from cosmos_reason.data.samples import Question
from cosmos_reason.evaluation.questions import Answer, Responder

MORE_TOKENS = 256  # for each attempt, and so much warmer
WARMER = 0.05
WARMEST = 0.9


def answers(
    who: Responder, questions: list[Question], retries: int | None
) -> Iterator[list[Answer]]:
    """The answers of `who`, each with the number of its attempts. An empty answer is given only
    where `retries` new attempts (None: 0) brought no other. Raises Failure as `who.answers`
    does."""
    retries = retries or 0
    first = who.generation
    left = questions
    for attempt in range(retries + 1):
        if attempt and not left:
            break
        who.generation = generation_of(first, attempt)
        empty = []
        for batch in who.answers(left):
            kept = []
            for answer in batch:
                if attempt < retries and is_empty(answer):
                    empty.append(answer.question)
                else:
                    kept.append(answer._replace(attempts=attempt + 1))
            yield kept
        left = empty
    who.generation = first


def generation_of(first: dict, attempt: int) -> dict:
    """How attempt number `attempt`, from 0, is generated."""
    if not attempt:
        return first
    warmer = min(first["temperature"] + WARMER * attempt, WARMEST)
    return first | {
        "max_tokens": first["max_tokens"] + MORE_TOKENS * attempt,
        "temperature": max(first["temperature"], warmer),
    }


def is_empty(answer: Answer) -> bool:
    """Whether there is a response in which nothing but thinking stands."""
    return answer.response is not None and final_answer(answer.response) is None
