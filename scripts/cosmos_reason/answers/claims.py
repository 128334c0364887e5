"""What the sentences of a response say of each answer that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

CONFIRMED = "confirmed"
AFFIRMED = "affirmed"
CONSIDERED = "considered"
DENIED = "denied"
LEVELS = (CONFIRMED, AFFIRMED, CONSIDERED)  # what speaks for an answer, the strongest first


class Mention(NamedTuple):
    """An answer named in a clause. `is_sure` is false for words that name it only in passing."""

    value: str
    start: int
    end: int
    is_sure: bool = True


class Claim(NamedTuple):
    """What a sentence says of an answer: CONFIRMED, AFFIRMED, CONSIDERED or DENIED."""

    value: str
    is_sure: bool
    verdict: str
    sentence: str


CERTAINTIES = re.compile(r"\b(?:no|without (?:a|any)) doubt\b|\bnot only\b|\bno,? wait\b,?", re.I)
_REASON = re.compile(r"\W*(?:(?:because|since|as|given|although|though|while|if)\b|因为)", re.I)
_CONDITION = re.compile(r"\W*(?:if|whether|unless)\b", re.I)
_TURN = re.compile(
    r",? +\b(?:but|however|whereas|while|although|though|because|since|so|yet|even if|unless"
    r"|and (?:that|therefore|so|then|not|instead)|then)\b|[—–，]| - (?!\w+ *$)"
    r"|,(?= +(?:it|the|this|that|there|I|not|so|with|as|sondern|sino|mais|pero|aber|ma|mas)\b)"
    r"|但|而是?|因为|因此|所以",
    re.I,
)
_DENIED_BEFORE = re.compile(
    r"\b(?:not|never|none|nor|neither|cannot|without|unlike|except|hardly|no|keine?|nicht|pas|ne|ni"
    r"|weder|noch|rul(?:es?|ed|ing) out|eliminat\w+|exclud\w+|reject\w*|rather than|instead of|than"
    r"|wrong|incorrect|other than)\b|n['’]t\b|不|非|没|排除",
    re.I,
)
_LESS = re.compile(r"\b(?:less|worse)\b(?: \w+)? than\b", re.I)
_DENIED_AFTER = re.compile(
    r"\W*(?:[\w'’/-]+\W+){0,4}?(?:(?:not|never|wrong|incorrect|false|unlikely|impossible|excluded"
    r"|eliminated|out|rejected|cannot|less)\b(?! of\b)|no\b(?! \w)|\w+n['’]t\b|[✗✘❌×✖])"
    r"|\W*[是也都]?(?:[^，。]{0,8}不符|不|错)",
    re.I,
)
_CONSIDERED = re.compile(
    r"\b(?:could|might|may|would|possibly|perhaps|maybe|either|whether|tempting|partial(?:ly)?"
    r"|at first|I first|first (?:thought|glance)|initial\w*|thought|plausible|possible|considered"
    r"|if|between|looked|some)\b|可能|也许",
    re.I,
)
_CONFIRMED = re.compile(
    r"\b(?:correct|best|most|(?:is|are|be) right|match(?:es)?|fits?|true|yes|actually|accurate"
    r"|the one|in total)\b|^\W*it is\W*$|[✓✔✅]|正确|对",
    re.I,
)
_LIST = re.compile(r"[)\]]? ?(?:(?:[,/&、和]|或者?|\b(?:or|nor|and)\b) ?)+(?:option )?[(\[]?", re.I)
_LIST_OF_TEXTS = re.compile(
    r"(?: \w+(?= (?:or|nor)\b))? ?(?:,? ?\b(?:or|nor|and|ni|ou|o|oder)\b|[,/或、])"
    r" ?(?:(?:an?|the|to|in|on|at) )*",
    re.I,
)
_LAST_PART = re.compile(r",| and ")
_OF_THE_LAST = re.compile(
    r"\W*(?:so )?(?:this|that|it) (?:is|was)(?: (not)|n['’]t)? ?(?:the )?"
    r"(?:correct|right|true|answer|(wrong|incorrect|false))\b",
    re.I,
)


def claims(sentence: str, mentions: Callable[[str], list[Mention]]) -> list[Claim]:
    """What a sentence says of each answer it names; a question says nothing."""
    if sentence.rstrip().endswith(("?", "？")):
        return []
    heard: list[Claim] = []
    is_conditional = _CONDITION.match(sentence)
    for clause in _clauses(CERTAINTIES.sub("", sentence)):
        found = [
            Claim(mention.value, mention.is_sure, verdict, sentence)
            for mention, verdict in _verdicts(clause, mentions(clause))
        ]
        if is_conditional or _REASON.match(clause):
            found = _weakened(found)
        heard += found
    return heard


def of_the_last(sentence: str, last: Claim) -> list[Claim]:
    """What "this is not correct" says of the answer named last."""
    judged = _OF_THE_LAST.match(sentence)
    if not judged:
        return []
    is_denied = judged[1] or judged[2]
    verdict = DENIED if is_denied else CONFIRMED
    return [last._replace(verdict=verdict, sentence=sentence)]


def _weakened(heard: list[Claim]) -> list[Claim]:
    """What is granted, or given as a reason, is only considered."""
    return [
        claim if claim.verdict == DENIED else claim._replace(verdict=CONSIDERED) for claim in heard
    ]


def _clauses(sentence: str) -> Iterator[str]:
    """The parts between which the argument turns. A reason that comes first ends at its comma."""
    start = 0
    if _REASON.match(sentence) and "," in sentence:
        start = sentence.index(",") + 1
        yield sentence[: start - 1]
    for turn in _TURN.finditer(sentence, start):
        if sentence[start : turn.start()].strip():
            yield sentence[start : turn.start()]
            start = turn.start() if turn[0].strip(" ,，—–-") else turn.end()
    yield sentence[start:]


def _verdicts(clause: str, mentions: list[Mention]) -> Iterator[tuple[Mention, str]]:
    """What is said of a list of answers is said of all in it."""
    start = 0
    group = []
    ends = [*(mention.start for mention in mentions), len(clause)][1:]
    for mention, end in zip(mentions, ends, strict=True):
        group.append(mention)
        listed = _LIST if mention.is_sure else _LIST_OF_TEXTS
        if mention is not mentions[-1] and listed.fullmatch(clause, mention.end, end):
            continue
        before = clause[start : group[0].start]
        if start:
            before = _LAST_PART.split(before)[-1]
        verdict = _verdict(before, clause[mention.end : end])
        yield from ((named, verdict) for named in group)
        start = mention.end
        group = []


def _verdict(before: str, after: str) -> str:
    """What the words before and after the name of an answer say of it."""
    if _DENIED_BEFORE.search(_LESS.sub("", before[-60:])) or _DENIED_AFTER.match(after[:80]):
        return DENIED
    if _CONSIDERED.search(before) or _CONSIDERED.search(after[:40]):
        return CONSIDERED
    is_confirmed = _CONFIRMED.search(before) or _CONFIRMED.search(after[:60])
    return CONFIRMED if is_confirmed else AFFIRMED
