"""Where a response commits itself, in this order: it is an answer and nothing else, a marker is
followed by one, it begins with one, it affirms only one, it mentions only one. Else it has none.

What an answer looks like (a letter, a label, yes) is the business of a `Vocabulary`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from cosmos_reason.answers.claims import LEVELS, Claim, Mention, claims, of_the_last
from cosmos_reason.answers.response import (
    first_sentence,
    marked,
    outside_thinking,
    plain,
    sentences,
    shortened,
)
from cosmos_reason.answers.words import PASSED_OVER, stems


class Reading(NamedTuple):
    """What a response commits to (None: to nothing), which rule says so, and the words it was read
    from."""

    answer: str | None
    rule: str
    words: str


class Vocabulary:
    """How the answers to a question are recognised; `words` are the stems of all answers."""

    words: frozenset[str] = frozenset()

    def whole(self, text: str) -> str | None:
        """The answer that a text is, and nothing else."""
        raise NotImplementedError

    def leading(self, text: str) -> str | None:
        """The answer that a text begins with."""
        return self.whole(first_sentence(text))

    def mentions(self, clause: str) -> list[Mention]:
        """The answers that a clause names, from left to right."""
        raise NotImplementedError


REFUSAL = re.compile(
    r"\bN/A\b|\b(?:can(?:not|['’]?t)|could(?: not|n['’]t)|unable to|impossible to)(?: \w+ly)?"
    r" (?:see|view|watch|access|tell|determine|answer|say|know|decide|identify|read|make out"
    r"|be (?:said|seen|read|determined))\b|\bno (?:idea|clue|comment|answer|video|information)\b"
    r"|\b(?:not |un)(?:sure|clear|readable)\b|\bI (?:do not|don['’]t) (?:have|know)\b"
    r"|\b(?:uncertain|unknown|sorry|je ne sais)\b|\bnone of the (?:above|options)\b"
    r"|\bn[ãa]o (?:consigo|sei)\b|\bno (?:puedo|sé)\b|\bich (?:kann|weiß)(?: \w+){0,4} nicht\b"
    r"|无法|不能确定|不知道|不确定|看不",
    re.I,
)
CUT_OFF = re.compile(r"\s*(?:```\w*\s*)?\{[^}]*\Z")
_ANSWERED = re.compile(r"\? (?=(?:yes|no)\b)", re.I)
_ORDERS = {"first", "last", "befor", "after"}
_PART_END = re.compile(r"(?=[;:,，；]|\b(?:but|while|and the|then)\b)", re.I)


def read(response: str, vocabulary: Vocabulary, question: str = "") -> Reading:
    """The answer that a response commits to. Of several that are named it may be the one of which
    is said what the question asks."""
    reading = _commitment(response, vocabulary)
    if reading.rule == "several answers" and question:
        return _says_what_is_asked(reading.words, vocabulary, question) or reading
    return reading


@lru_cache(maxsize=1 << 14)  # the answers of an evaluation repeat
def _commitment(response: str, vocabulary: Vocabulary) -> Reading:
    """What the first of the rules reads that applies."""
    said = shortened(outside_thinking(response))
    text = plain(said)
    answer = vocabulary.whole(text)
    if answer:
        return Reading(answer, "whole response", text)
    reading = _marked(said, vocabulary)
    if reading:
        return reading
    if CUT_OFF.match(said):
        return Reading(None, "cut off", said)
    if not text:
        return Reading(None, "no response", "")
    return _leading(text.split("\n"), vocabulary) or _affirmed(text, vocabulary)


def _marked(said: str, vocabulary: Vocabulary) -> Reading | None:
    """What follows the last marker that an answer follows, or what an enclosing marker holds."""
    for marker, content, is_enclosing in marked(said):
        text = plain(content)
        answer = vocabulary.leading(text) or _only_affirmed(first_sentence(text), vocabulary)
        if answer:
            return Reading(answer, f"marker {marker}", content)
        if is_enclosing:
            return Reading(None, "marker without an answer", content)
    return None


def _only_affirmed(sentence: str, vocabulary: Vocabulary) -> str | None:
    heard = claims(sentence, vocabulary.mentions)
    affirmed = {claim.value for claim in heard if claim.verdict in LEVELS[:2]}
    return affirmed.pop() if len(affirmed) == 1 else None


def _leading(lines: list[str], vocabulary: Vocabulary) -> Reading | None:
    """The answer that a response begins with, when no other line begins with another."""
    answer = vocabulary.leading(lines[0])
    if answer and not {vocabulary.leading(line) for line in lines} - {answer, None}:
        return Reading(answer, "leading verdict", lines[0])
    return None


def _affirmed(text: str, vocabulary: Vocabulary) -> Reading:
    """The one answer that is confirmed, else affirmed, else mentioned at all without being
    denied."""
    refusal = REFUSAL.search(text)
    if refusal:
        return _weighed(text[refusal.end() :], vocabulary) or Reading(None, "refusal", text)
    return _weighed(text, vocabulary) or Reading(None, "no answer", text)


def _weighed(text: str, vocabulary: Vocabulary) -> Reading | None:
    """The one answer of which most is said."""
    heard = _heard(text, vocabulary)
    for verdict in LEVELS:
        found = {claim.value: claim.sentence for claim in heard if claim.verdict == verdict}
        if len(found) == 1:
            ((answer, sentence),) = found.items()
            return Reading(answer, f"only answer {verdict}", sentence)
        if found:
            return _last_affirmed(heard, verdict) or Reading(None, "several answers", text)
    return Reading(None, "denials only", text) if heard else None


def _heard(text: str, vocabulary: Vocabulary) -> list[Claim]:
    """What is said of each answer; answers named in passing count where no others are."""
    heard: list[Claim] = []
    for sentence in sentences(_ANSWERED.sub(": ", text)):
        named = claims(sentence, vocabulary.mentions)
        if heard and not named:
            named = of_the_last(sentence, heard[-1])
        heard += named
    return [claim for claim in heard if claim.is_sure] or heard


def _last_affirmed(heard: list[Claim], verdict: str) -> Reading | None:
    """The answer of the last sentence that names one, where it affirms that one and denies none;
    an item of a review, which begins with its letter, concludes nothing."""
    last = heard[-1]
    named = {(claim.value, claim.verdict) for claim in heard if claim.sentence == last.sentence}
    if named != {(last.value, verdict)} or verdict == LEVELS[-1] or not last.is_sure:
        return None
    letter = re.escape(last.value)
    if re.match(rf"\W*(?:\d+\W+)?(?:option |choice )?\W*{letter}\b", last.sentence, re.I):
        return None
    return Reading(last.value, "last sentence", last.sentence)


def _says_what_is_asked(text: str, vocabulary: Vocabulary, question: str) -> Reading | None:
    """The answer of which a part of a sentence says what the question asks, and of no other's so
    much."""
    asked = stems(question) - PASSED_OVER - vocabulary.words
    shared: dict[str, int] = {}
    parts: dict[str, str] = {}
    for part in _parts(text, vocabulary):
        mentions = vocabulary.mentions(part)
        answer = mentions[0].value
        beside = stems(part[: mentions[0].start] + part[mentions[-1].end :])
        if not beside - PASSED_OVER or ("then" in beside and not asked & _ORDERS):
            return None  # an item of a list
        if len(beside & asked) >= shared.get(answer, 0):
            shared[answer] = len(beside & asked)
            parts[answer] = part
    first, second, *_ = [*sorted(shared, key=shared.get, reverse=True), None, None]
    if second is None or shared[first] == shared[second]:
        return None
    return Reading(first, "says what is asked", parts[first])


def _parts(text: str, vocabulary: Vocabulary) -> list[str]:
    """What a sentence says of each answer, with what comes before that names none."""
    parts = []
    for sentence in sentences(text):
        part = ""
        for piece in _PART_END.split(sentence):
            part += piece
            if vocabulary.mentions(piece):
                parts.append(part)
                part = ""
    return parts
