"""Yes and no, in the languages that the models' cards name."""

from __future__ import annotations

import re
from functools import lru_cache

from cosmos_reason.answers.claims import CERTAINTIES, Mention
from cosmos_reason.answers.commitment import Reading, Vocabulary, read
from cosmos_reason.answers.response import sentences
from cosmos_reason.answers.words import PASSED_OVER, either, fold, stem, stems, words

_YES = """yes true yeah yep affirmative correct indeed certainly definitely absolutely of_course ja
oui sí si sì sim да tak はい 네 예 是 是的 对 对的 有 会 正确"""
_NO = """no none false nope nah negative incorrect wrong not_yet not_true not_correct not_really
not_at_all nein non não нет nie nee nej いいえ 아니요 아니오 否 不 不是 不会 没有 没 错
错误 不正确"""
_TRUTH_OF = {word.replace("_", " "): "yes" for word in _YES.split()}
_TRUTH_OF |= {word.replace("_", " "): "no" for word in _NO.split()}
_SAID = either(" ".join(sorted(f"{_YES} {_NO}".split(), key=len, reverse=True)))
# alone these are answers, in a sentence they are not
_TRUTH_OF |= dict.fromkeys(("y", "t", "sure", "positive"), "yes")
_TRUTH_OF |= dict.fromkeys(("n", "f", "not"), "no")

_LEADING = re.compile(
    r"\W*(?:(?:(?:most )?(?:definitely|absolutely|certainly|probably|likely|clearly|unfortunately"
    r"|of course|well|okay)|I think|I believe|I['’]d say|it is|it['’]s|that is|that['’]s),? )?"
    rf"(?:({_SAID})|(?<= )(not)(?! true that)|(not)(?= that I))(?![\w-](?<![\u2e80-\uffff]))"
    r"(?!\.? ?\d)(?! that (?!I\b))(?!\W*(?:or|and|/|et|ou|und|oder|y|o|e)\W*(?:yes|no|non|nein)\b)"
    r"(?!\W+(?:yes|no)\W*$)(?! ?(?:\.\.\.|…) ?(?:yes|no|wait|actually)\b)"
    r"(?! (?:sure|clear|certain|possible|idea|doubt|question|answer|information)\b)",
    re.I,
)
# "No car" says no, but "True colours" and "si" before another word say nothing
_BEFORE_NOUNS = re.compile(
    either("true correct false negative wrong si ja non tak nie no não none")
)
_ELLIPSIS = re.compile(
    r"(?:I (?:think|believe) so|it (?:seems|appears) so|that['’]s right"
    r"|(I (?:do not|don['’]t|wouldn['’]t) (?:think|believe|say) so|I['’]m afraid not"
    r"|it (?:does not|doesn['’]t) (?:seem|appear) so)"
    r"|(?:^|(?<=[.!?] ))(?:(?:yes|no),? )?(?:there|it|they|he|she|that|this|the [\w-]+)"
    r" (?:is|are|was|were|does|do|did|has|have|can|will)( not|n['’]t)?(?: the case| any| one)?)"
    r"(?: ?[.:;!]|$)",
    re.I,
)
_ANYWHERE = re.compile(
    rf"(?:^|(?<=[^\w\s]) ?|\b(?:is|be|so|say|answer|a|probably|likely|but|['’]s) )({_SAID})"
    r"(?=\W*$| ?[.,;:!—–]| - )(?!\.? ?\d)",
    re.I,
)
_DENIES = re.compile(
    r"\b(?:no|not|never|none|without|nobody|nothing|neither|nor|cannot|fail(?:s|ed)?|misses|unable"
    r"|lacks?|false|untrue|nicht|kein\w*|pas|aucune?|não|не|нет)\b|n['’]t\b|没有?|不",
    re.I,
)
_UNCERTAIN = re.compile(
    r"\b(?:might|may|could|possibly|perhaps|if|whether|unclear|doubt|unable|cannot confirm)\b", re.I
)
_GENERIC = PASSED_OVER | stems(
    """video clip image picture frame scene show see visible answer yes no please can you observe
    footage one whether who what which or true false statement correct happen occur could should
    them they their his her any some based question following letter respond reply only not never
    between into onto each other from near during within over under through while very clearly
    actually really also just then anyone someone anybody anything something nothing yet fail miss
    es ist sind kein keine keinen dem auf im zu sehen wird y a du dans est sont pas ne aucun hay en
    está están son do da na o há é c'è lo ci nel 视 频 中 有 没 吗 是 不 否 画 面 了 在 的 ？"""
)
_YES_OR_NO = re.compile(
    r"\(?\b(?:please )?(?:(?:answer|respond|reply) )?(?:with |only )*(?:yes|true|no|false)"
    r" ?(?:or|/) ?(?:no|false|yes|true)\b",
    re.I,
)
_PRONOUN = re.compile(r"\W*(?:it|they|he|she|this|that)\b", re.I)
_OPPOSITES = {
    stem(word): stem(other)
    for pair in ("open closed", "full empty", "moving stopped", "wet dry", "standing sitting")
    for word, other in (pair.split(), pair.split()[::-1])
}
_CLAUSE_END = re.compile(r"[:;,—–。，]| - |\b(?:because|since|and|but|as)\b")


def truth(word: str) -> str | None:
    return _TRUTH_OF.get(fold(word))


def leading_truth(text: str) -> str | None:
    """The verdict that a text begins with."""
    first = _LEADING.match(text)
    if not first:
        return None
    said = (first[1] or "not").lower()
    if _BEFORE_NOUNS.fullmatch(said) and re.match(r"\s\w", text[first.end() :]):
        return None
    return truth(said)


class _Truths(Vocabulary):
    def whole(self, text: str) -> str | None:
        return truth(text) if len(text) < 40 else None

    def leading(self, text: str) -> str | None:
        return leading_truth(text)

    def mentions(self, clause: str) -> list[Mention]:
        return [Mention(truth(match[1]), *match.span(1)) for match in _ANYWHERE.finditer(clause)]


_TRUTHS = _Truths()


def read_yes_no(response: str, question: str) -> Reading:
    """A verdict in so many words, else a sentence that says or denies what was asked."""
    found = read(response, _TRUTHS)
    if found.answer or found.rule not in ("no answer", "denials only"):
        return found
    ellipsis = _ELLIPSIS.search(found.words)
    if ellipsis:
        is_denied = ellipsis[1] or ellipsis[2]
        return Reading("no" if is_denied else "yes", "statement", found.words)
    return _stated(found.words, _YES_OR_NO.sub(" ", question)) or found


@lru_cache(maxsize=1 << 12)
def _stated(text: str, question: str) -> Reading | None:
    """What the only sentences that speak of what was asked say of it."""
    asked = stems(question) - _GENERIC
    if not asked or _DENIES.search(question):
        return None
    subject = next(word.stem for word in words(question) if word.stem in asked)
    verdicts = {}
    for sentence in sentences(text):
        certain = CERTAINTIES.sub("", sentence)
        said = {_said_of(clause, asked, subject) for clause in _CLAUSE_END.split(certain)} - {None}
        if said and _UNCERTAIN.search(certain):
            return None
        verdicts |= dict.fromkeys(said, sentence)
    if len(verdicts) != 1:
        return None
    ((answer, sentence),) = verdicts.items()
    return Reading(answer, "statement", sentence)


def _said_of(clause: str, asked: frozenset[str], subject: str) -> str | None:
    """Whether a clause says what was asked, or denies it or a part of it."""
    said = stems(clause)
    if _PRONOUN.match(clause) and asked != {subject}:
        asked = asked - {subject}
    shared = said & asked
    if not shared or clause.endswith("?"):
        return None
    is_opposite = any(_OPPOSITES.get(word) in said for word in asked)
    if (_DENIES.search(clause) is not None) != is_opposite:
        is_about_it = said <= asked | _GENERIC or 2 * len(shared) >= len(asked)
        return "no" if is_about_it else None
    return "yes" if shared == asked else None
