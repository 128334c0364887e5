"""What a model answered: the kind of question a ground truth implies, the answer a response
commits to, and whether that is right. `verdict` says all of it, `reward` the number alone.

A response commits in few forms only (references/cosmos-reason-answers.md); one that uses none of
them, or names two answers, has no answer and is unread, never right: a wrong answer counted as
right is the worst that can happen here, a right one misread the second worst. The package knows
texts only, no rows, files or models: the checks of a data set, the rewards of reinforcement
learning and the scores of an evaluation all read answers here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from cosmos_reason.answers.choices import (
    DIRECTION,
    TRUTHS,
    Vocabulary,
    labels_vocabulary,
    options,
    options_vocabulary,
)
from cosmos_reason.answers.commitment import REFUSAL, UNREAD, Reading, phrases, read
from cosmos_reason.answers.matching import RIGHT_OVERLAP, compare
from cosmos_reason.answers.places import BARE, BOXES, SPANS, as_text, form_of, overlap, read_place
from cosmos_reason.answers.quantities import Numbers, is_number, numbers_vocabulary, same_number
from cosmos_reason.answers.response import enclosures, final_answer, plain, shortened
from cosmos_reason.answers.structures import PLANE_TYPES, SET_TYPES, read_set, scaled
from cosmos_reason.answers.structures import form_of as form_of_set
from cosmos_reason.answers.words import exact, fold, without_article

SINGLE_TYPES = ("mcq", "yes_no", "direction", "label", "number", "ordinal", "temporal", "box")
TYPES = (*SINGLE_TYPES, *SET_TYPES, "text")
CLOSED_TYPES = ("mcq", "yes_no", "direction", "label")
PLACE_TYPES = ("temporal", "box")
PICTURE_TYPES = ("box", *PLANE_TYPES)  # measured in the picture

_ASKS_TRUTH = re.compile(
    r"\btrue\b|\bT ?(?:/|or) ?F\b|^\W*(?:is|are|was|were|do|does|did|can|could|has|have|will)\b",
    re.I,
)
_SECOND_OPTION = re.compile(r"[Bb][.):\]]|B -")
_LONE_LETTER = re.compile(r"\W*[A-Z]\W*|\(?[A-H][.)]\s+\S.*|\([A-H]\).*")
_ASKS_BOX = re.compile(r"bbox|box(?:es)?\b|\bx_?1\b|\bx_?min\b|框", re.I)
_ASKS_TIME = re.compile(
    r"\b(?:when|wann|quand|cu[áa]ndo|time|time ?stamps?|seconds?|interval|moment|segment)\b|时",
    re.I,
)
_ASKS_AMOUNT = re.compile(
    r"\bhow (?:many|much|long|far|old|often|fast|tall|wide|high|deep)\b", re.I
)
_CUT_OFF = re.compile(r"\s*(?:```\w*\s*)?\{[^}]*\Z")  # an object that never ends
# A question that names its scale asks for a grade.
_GRADED = re.compile(
    r"\b(?:scale|rat(?:e|ing)|scores?|grade)\b.{0,80}?"
    r"\b(?:\d\s*(?:to|-|–|through)|between \d and)\s*\d+\b",
    re.I | re.S,
)
RATED = "Score: "
VOCABULARIES = {"direction": DIRECTION, "yes_no": TRUTHS, "temporal": SPANS, "box": BOXES}
_NOTHING = ("", "null", "none", "n/a", "...")


class Verdict(NamedTuple):
    """What became of one response: `answer` is what it commits to (None when it commits to
    nothing), `rule` names what read it or why nothing did, `words` are those it was read from,
    `expected` is the ground truth, `overlap` is that of spans and boxes and the score of a set,
    `parts` the measures of a set or of an ordinal."""

    type: str
    expected: str | None
    answer: str | None
    rule: str
    words: str
    correct: bool
    overlap: float | None = None
    parts: dict[str, float] | None = None


def verdict(
    question: str,
    gt: str,
    response: str | None,
    type: str = "auto",
    labels: tuple[str, ...] = (),
    tolerance: float = 0.0,
) -> Verdict:
    """Read a response to a question and compare it with the ground truth. `labels` are what a
    question of type "label" may be answered with, or the options of one that does not list them."""
    kind = question_type(question, gt) if type == "auto" else type
    vocabulary = VOCABULARIES.get(kind) or vocabulary_of(kind, question, labels)
    found = _verdict(kind, gt, response or "", vocabulary, "", tolerance)
    # Equal answers to different questions are read once, but for those that say the question again.
    if vocabulary and question and (found.rule == UNREAD or found.expected is None):
        found = _verdict(kind, gt, response or "", vocabulary, question, tolerance)
    return found


@lru_cache(maxsize=1 << 14)
def _verdict(
    kind: str,
    gt: str,
    response: str,
    vocabulary: Vocabulary | None,
    question: str,
    tolerance: float,
) -> Verdict:
    expected = _expected(gt, kind, vocabulary, question)
    reading = _reading(response, kind, vocabulary, question)
    shared, parts = score(reading.answer, expected, kind)
    right = equal(reading.answer, expected, kind, tolerance)
    answer = reading.answer
    if kind in CLOSED_TYPES and answer and expected:
        answer, expected = (
            intern(answer),
            intern(expected),
        )  # a million rows share their few answers
    return Verdict(kind, expected, answer, reading.rule, reading.words, right, shared, parts)


def score(
    answer: str | None, expected: str | None, type: str
) -> tuple[float | None, dict[str, float] | None]:
    """Return the overlap or score of an answer, 0 for none, and its parts; None for a type that is
    right or wrong and nothing between."""
    is_measured = answer is not None and expected is not None
    if type == "ordinal" and is_measured:
        return None, {"off": abs(float(answer) - float(expected))}
    if expected is None or type not in (*PLACE_TYPES, *SET_TYPES):
        return None, None
    if not is_measured:
        return 0.0, None
    if type in PLACE_TYPES:
        return overlap(answer, expected), None
    return _compared(answer, expected, type)


@lru_cache(maxsize=1 << 10)
def _compared(answer: str, expected: str, type: str) -> tuple[float, dict[str, float]]:
    return compare(answer, expected, type)


def reading_of(
    response: str, type: str, question: str = "", labels: tuple[str, ...] = ()
) -> Reading:
    """Return the answer that a response commits to, in the form of its type:

    mcq: a capital letter · yes_no: "yes" or "no" · direction: left, right, straight, up, down ·
    label: one of `labels`, folded · number: a decimal with its unit or noun · temporal: [start,
    end] in seconds · box: [x1, y1, x2, y2] as written, then its label where it has one · ordinal: a
    whole number, the grade · the types of sets: JSON (structures.items_of) · text: the response
    without its thinking."""
    return _reading(response, type, vocabulary_of(type, question, labels), question)


@lru_cache(maxsize=1 << 12)
def vocabulary_of(type: str, question: str, labels: tuple[str, ...]) -> Vocabulary | None:
    """Return what recognises the answers to a question; None for sets and text, which are read
    whole."""
    if type == "mcq":
        return options_vocabulary(labels or tuple(options(question).values()))
    if type == "label":
        return labels_vocabulary(labels)
    if type in ("number", "ordinal"):
        return numbers_vocabulary(question if type == "number" else RATED + question)
    return VOCABULARIES.get(type)


def _reading(response: str, type: str, vocabulary: Vocabulary | None, question: str) -> Reading:
    if vocabulary is None:
        return read_set(response, type) if type in SET_TYPES else _read_text(response)
    if type in PLACE_TYPES:
        return read_place(response, vocabulary, question)
    found = read(response, vocabulary, question)
    if type == "ordinal" and found.answer:
        grade = found.answer.removesuffix(" score")
        is_grade = grade.isdigit()
        rule = found.rule if is_grade else "no grade"
        return found._replace(answer=grade if is_grade else None, rule=rule)
    return found


def _read_text(response: str) -> Reading:
    """Read free text: what is enclosed last, else what the only answer phrase names, else all of
    it."""
    said = final_answer(response)
    if not said:
        return Reading(None, "no response", "")
    # Of an object other fields are part of what is said: a label beside times, for one.
    enclosed = [one for one in enclosures(said) if one.mark != "field"]
    if enclosed:
        text = plain(enclosed[-1].content or "").strip(" {}")
        if text.lower() in _NOTHING or REFUSAL.fullmatch(text):
            return Reading(None, "empty enclosure", text)
        return Reading(text, enclosed[-1].mark, text)
    named = phrases(plain(shortened(said))) if exact(said) is None else []
    if len(named) == 1:
        return Reading(named[0], "phrase", named[0])
    if _CUT_OFF.match(said):
        return Reading(None, "cut off", said)
    if REFUSAL.search(said[:200]) and len(said) <= 400:
        return Reading(None, "refusal", said)
    return Reading(said, "whole response", said)


@lru_cache(maxsize=1 << 12)
def question_type(question: str, gt: str) -> str:
    """Return one of TYPES, from the ground truth and what the question asks for; never `label`,
    which only a whole set can show. A ground truth whose form nothing declares is text."""
    # A lone letter up to H answers a choice whatever its options are; F may be "false".
    if len(gt) == 1 and gt in "ABCDEGH":
        return "mcq"
    texts: tuple[str, ...] = ()
    if not question.isascii() or _SECOND_OPTION.search(question):
        texts = tuple(options(question).values())
    if texts and read(gt, options_vocabulary(texts)).answer:
        return "mcq"
    kind = _type(gt)
    if kind == "number" and _GRADED.search(question) and gt.strip(" .").isdigit():
        return "ordinal"
    if kind == "text":
        return form_of_set(gt, question) or kind
    if kind == "F":
        return "yes_no" if _ASKS_TRUTH.search(question) else "mcq"
    if kind == f"{BARE} box":
        return "box" if _ASKS_BOX.search(question) else "text"
    if kind.endswith("temporal"):
        is_said = kind == "temporal" or _ASKS_TIME.search(question)
        return "temporal" if is_said and not _ASKS_AMOUNT.search(question) else "text"
    return kind


@lru_cache(maxsize=8192)
def _type(gt: str) -> str:
    """Return the type that the ground truth alone tells: "F" may be an option or the opposite of
    "T", and bare numbers are a place only where the question asks for one."""
    final = final_answer(gt) or "" if len(gt) <= 100_000 else ""
    said = plain(final)
    if said in ("F", "F."):
        return "F"
    if _is_truth(said):
        return "yes_no"
    if _LONE_LETTER.fullmatch(said):
        return "mcq"
    is_short = len(said.split()) <= 3
    if is_short and DIRECTION.whole(said):
        return "direction"
    if is_short and is_number(said):
        return "number"
    return (form_of(final) if len(said) <= 200 else "") or "text"


def _is_truth(said: str) -> bool:
    """Return whether it is yes, no or a sentence that begins so; "right" and "positive" may be
    labels."""
    may_be_label = said.lower() in ("correct", "right", "positive", "negative")
    if said.isascii() and not may_be_label and TRUTHS.whole(said):
        return True
    begins_so = re.match(r"\W*\w+\s*[,.;:!]", said) and TRUTHS.leading(said)
    return bool(begins_so) and not _LONE_LETTER.fullmatch(said)


def normalise(gt: str, type: str, question: str = "", labels: tuple[str, ...] = ()) -> str | None:
    """Return the ground truth in the form of `reading_of`; None when it is no such answer."""
    return _expected(gt, type, vocabulary_of(type, question, labels), question)


def _expected(gt: str, type: str, vocabulary: Vocabulary | None, question: str) -> str | None:
    if type == "label":
        return fold(final_answer(gt) or "") or None
    expected = _reading(gt, type, vocabulary, question).answer
    if type == "text":
        return exact(expected or "") or fold(expected or "") or None
    if isinstance(vocabulary, Numbers) and type == "number" and expected and " " not in expected:
        return f"{expected} {vocabulary.asked}".rstrip()
    return expected


def rescaled(answer: str, type: str, across: float, down: float) -> str:
    """Return boxes, points or trajectories, as `reading_of` gives them, in another measure."""
    if type in SET_TYPES:
        return scaled(answer, type, across, down)
    place, _, label = answer.partition("]")
    x1, y1, x2, y2 = map(float, place.strip("[").split(","))
    return as_text((x1 * across, y1 * down, x2 * across, y2 * down)) + label


def reward(
    question: str, gt: str, response: str | None, type: str = "auto", labels: tuple[str, ...] = ()
) -> float:
    """Return what reinforcement learning pays for a response: 1 for a right answer, the overlap of
    a span or a box, the score of a set."""
    read_as = verdict(question, gt, response, type, labels)
    return float(read_as.correct) if read_as.overlap is None else read_as.overlap


def equal(answer: str | None, expected: str | None, type: str, tolerance: float = 0.0) -> bool:
    """Return whether what `reading_of` found is what `normalise` did. A number may differ by
    `tolerance`, relatively; a span or a box has to overlap by RIGHT_OVERLAP."""
    if answer is None or expected is None:
        return False
    if type == "number":
        return same_number(answer, expected, tolerance)
    if type in PLACE_TYPES:
        return overlap(answer, expected) >= RIGHT_OVERLAP
    if type in SET_TYPES:
        return _compared(answer, expected, type)[0] == 1
    if type == "text":
        said = exact(answer) or without_article(fold(answer))
        return said in (expected, without_article(expected))
    return answer == expected
