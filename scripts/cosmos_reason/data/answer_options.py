"""Whether an answer is one of the options that its question offers."""

from __future__ import annotations

import re

from cosmos_reason import answers

LETTER_ANSWER = re.compile(r"\W*([A-Za-z])(?:\W*|[).:]\s.*)", re.S)
SEVERAL_LETTERS = re.compile(r"(?:[A-Z]\b|[A-Z]{2,}|\W|and\b)+")
SHORT_ANSWER = 60  # characters


def unoffered(question: str, answer: str) -> tuple[str, str] | None:
    """(id, message) of the finding about an answer that is none of the options its question
    offers."""
    if len(answer) > SHORT_ANSWER and "<think>" not in answer:
        return None
    if len(answer) == 1 and any(answer + mark in question for mark in ".):"):
        return None
    options = answers.options(question)
    if not options:
        return None
    final = answers.final_answer(answer)
    if not final or len(final) > SHORT_ANSWER or answers.normalise(answer, "mcq", question):
        return None
    message = f"got the answer {final!r}, which is none of the options {', '.join(options)}"
    if LETTER_ANSWER.fullmatch(final):
        return "DATA-ANSWER-OPTION", message
    if _is_open_answer(question, answer, final):
        return None
    return "DATA-ANSWER-UNLISTED", message


def _is_open_answer(question: str, answer: str, final: str) -> bool:
    """Whether an answer need not be one of the options: several letters, a number, yes or no."""
    if SEVERAL_LETTERS.fullmatch(final):
        return True
    return answers.question_type(question, answer) != "text"
