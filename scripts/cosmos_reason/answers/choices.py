"""Answers out of a closed set: options with letters, labels, directions, yes and no.

Each vocabulary knows one thing: the answer that a text begins with, and where it ends. What comes
after must be the end of the sentence or a mark; "Turn left is not possible" is not "Turn left".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from string import ascii_uppercase

from cosmos_reason.answers.words import composed, fold, stem, without_article

# Options in a question
_AFTER_MARK = r"[.):\]、]"
_MARKER = re.compile(
    rf"(?<![A-Za-z0-9])[(\[]?([A-Za-z])(?:{_AFTER_MARK}\s*|(?<=\n[A-Z])\s[-–]\s)(?=\S)"
)
_FIRST_MARKER = re.compile(rf"[Aa](?:{_AFTER_MARK}|\s[-–]\s)")
_AFTER_OPTIONS = re.compile(
    r"\s+(?:Please (?:answer|choose|select|respond)|(?:Answer|Respond|Reply) (?:with|by|in))\b"
)

# What may stand behind an answer.
_WORD_START = re.compile(r"(?<![\w'’.])[-+−]?\w+")
BOUNDARY = re.compile(
    r"[)\]]*\s*(?:\Z|[\n,;:、。，；：！!(（)✓✔✅]|\.(?!\d)|[-–—](?=\s)|—)|\s+(?:because|since|as)\b",
    re.I,
)
LETTER = re.compile(
    r"(?P<named>(?:the )?(?:correct )?(?:option|choice|answer|letter|statement|选项) ?)?"
    r"(?P<mark>[(\[]?)"
    r"(?P<letter>[A-Z])(?![\w'’])(?!\.[A-Za-z](?![A-Za-z]))(?P<end>[)\].:。]?)",
    re.I,
)
_NOUN_BEHIND = re.compile(r" [(\[][^)\]\n]*[)\]] \w")
_LETTER_BEHIND = re.compile(r" ?[(\[](?:option )?([A-Z])[)\]]", re.I)
# "(B) seems right" is a claim about B
_CLAIMS = re.compile(r" (?:is|are|was|has|does|can|could|may|might|would|seems?|appears?|looks)\b")
_WORD = re.compile(r"[a-z]+(?![\w'’-])")
_DESCRIBES = re.compile(r"(?:\A| )[a-z]+(?:ing|y)\Z", re.I)
_IS_BEFORE = re.compile(r"(?<!there )\b(?:is|are|was|were) \Z", re.I)
# Not "feed", which may be "feeding".
_PARTICIPLE = re.compile(r"(?:ing|(?<!e)ed)\Z")
_JOINT = re.compile(r"(?<=[a-z])[-_](?=[a-z])")
_BESIDE = re.compile(r"[\s.:,)\]、(–—-]*")


@lru_cache(maxsize=1 << 16)  # grading, counting and listing gaps ask each for the same questions
def options(question: str) -> dict[str, str]:
    """Return letter -> text of the options in a question, {} when fewer than two. They are written
    `A. x`, `A) x`, `(A) x`, `[A] x`, `A: x`, `A、x`, or on a line each `A - x`."""
    question = composed(question).replace("**", "")
    first = _FIRST_MARKER.search(question)
    return _listed(question[max(0, first.start() - 2) :]) if first else {}


@lru_cache(maxsize=1 << 12)  # many questions have the same options
def _listed(text: str) -> dict[str, str]:
    """Return the options in a text that begins with them."""
    found = []
    for match in _MARKER.finditer(text):
        if match[1].upper() == ascii_uppercase[len(found) % 26]:
            found.append(match)
    if len(found) < 2:
        return {}
    ends = [match.start() for match in found[1:]] + [len(text)]
    texts = [text[match.end() : end].split("\n")[0] for match, end in zip(found, ends, strict=True)]
    texts[-1] = _AFTER_OPTIONS.split(texts[-1])[0]
    return {match[1].upper(): text.strip() for match, text in zip(found, texts, strict=True)}


class Vocabulary:
    """How the answers to a question are recognised."""

    def begin(self, text: str) -> tuple[str, int] | None:
        """Return the answer that a text begins with and where it ends, when a boundary follows."""
        found = self.inside(text, 0)
        return found if found and BOUNDARY.match(text, found[1]) else None

    def one_of(self, answers: list[str]) -> str | None:
        """Return the answer that several readings of a response are, None when they differ."""
        return answers[0] if len(set(answers)) == 1 else None

    def whole(self, text: str) -> str | None:
        """Return the answer that a text is, and nothing else."""
        text = text.strip()
        if text[:1] + text[-1:] in ("[]", "()", "{}"):
            text = text[1:-1].strip()
        found = self.begin(text)
        return found[0] if found and not text[found[1] :].strip(" .!。！)]*") else None

    def alone(self, text: str) -> str | None:
        """Return the answer that a whole response is, beside those of whole()."""
        return None

    def inside(self, text: str, at: int) -> tuple[str, int] | None:
        """Return the answer that stands at a place within a sentence, and where it ends."""
        return None

    def spoken_of(self, text: str, at: int) -> tuple[str, int] | None:
        """Return the answer that is spoken of at a place, and where its name ends."""
        return self.inside(text, at)

    def within(self, text: str) -> tuple[str, str, str] | None:
        """Return the only answer that a sentence names, and what stands before and behind it."""
        found = list(self._named(text))
        if not found or self.one_of([one[0] for one in found]) is None or len(found) > 1:
            return None
        answer, start, end = found[0]
        return answer, text[:start], text[end:]

    def names_another(self, text: str, answer: str) -> bool:
        """Return whether a sentence names an answer that differs from one."""
        return any(self.one_of([one[0], answer]) is None for one in self._named(text))

    def _named(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield (answer, start, end) of all answers named in a text, of overlapping ones the
        first."""
        at = 0
        while word := _WORD_START.search(text, at):
            found = self.inside(text, word.start())
            if found:
                yield found[0], word.start(), found[1]
            at = found[1] if found else word.end()


class Labels(Vocabulary):
    """Whole texts, of which the longest that matches counts."""

    def __init__(self, texts: tuple[str, ...], names: tuple[str, ...] = ()):
        named: dict[str, set[str]] = {}
        for text, name in zip(texts, names or texts, strict=True):
            written = _spaced(without_article(fold(text)))
            if written:
                named.setdefault(written, set()).add(name)
        # A text that two options share tells neither.
        self.named = {text: names.pop() for text, names in named.items() if len(names) == 1}
        self.longest_first = sorted(self.named, key=len, reverse=True)
        self.initials = {text[0] for text in self.named}
        # The first word may end in another way, where that tells no other text.
        ends = defaultdict(list)
        for text in self.longest_first:
            first, space, others = text.partition(" ")
            ends[stem(first), space + others].append((first, self.named[text]))
        self.by_stem: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        for (stemmed, others), texts in ends.items():
            if len(texts) == 1:
                self.by_stem[stemmed].append((*texts[0], others))
        # As much of a text as one of them, an article before it and what may go on behind it take.
        self.reach = len(self.longest_first[0]) + 8 if self.named else 0

    def inside(self, text: str, at: int) -> tuple[str, int] | None:
        text = text[at : at + self.reach]
        lowered = text.lower()
        start = len(lowered) - len(without_article(lowered))
        # The second: a letter such as the dotted I of Turkish.
        if lowered[start : start + 1] not in self.initials or len(lowered) != len(text):
            return None
        lowered = _spaced(lowered)
        for written in self.longest_first:
            if lowered.startswith(written, start):
                end = start + len(written)
                if not _goes_on(lowered, end):
                    return self.named[written], at + end
        word = _WORD.match(lowered, start)  # "raining" for "rain", "turns left" for "turn left"
        for first, name, others in self.by_stem.get(stem(word[0]), ()) if word else ():
            end = word.end() + len(others)
            is_whole = lowered.startswith(others, word.end()) and not _goes_on(lowered, end)
            if is_whole and _is_inflected(first, word[0]):
                return name, at + end
        return None

    def names_another(self, text: str, answer: str) -> bool:
        """A word in -ing or -y that is no answer's own describes something else, but behind "is":
        "Clear: snowy hills are visible", "turn left (after stopping)"."""
        for name, start, end in self._named(text):
            said = text[start:end]
            describes = not self._is_exact(said) and _DESCRIBES.search(said)
            if name != answer and not (describes and not _IS_BEFORE.search(text[:start])):
                return True
        return False

    def _is_exact(self, said: str) -> bool:
        return without_article(_spaced(said.lower())) in self.named


def _is_inflected(word: str, other: str) -> bool:
    """Return whether words of one stem can mean the same: closing is not closed, a site no sit."""
    endings = {found[0] for one in (word, other) if (found := _PARTICIPLE.search(one))}
    return len(endings) < 2 and f"{word}e" != other and word != f"{other}e"


def _spaced(text: str) -> str:
    """Write "lane-change" and "lane_change" as "lane change"."""
    return _JOINT.sub(" ", text) if "-" in text or "_" in text else text


def _goes_on(text: str, at: int) -> bool:
    """Return whether a word goes on at a place; Chinese writes no spaces."""
    inside = text[at - 1 : at + 1]
    return len(inside) == 2 and inside.isascii() and inside.isalnum()


class Options(Labels):
    """Letters, of which only those of the options are offered (all, where there are no options),
    alone or with their text, and the texts of the options."""

    def __init__(self, texts: tuple[str, ...]):
        super().__init__(texts, tuple(ascii_uppercase[: len(texts)]))
        self.letters = ascii_uppercase[: len(texts)] or ascii_uppercase

    def begin(self, text: str) -> tuple[str, int] | None:
        found = LETTER.match(text)
        if found is None or found["letter"].upper() not in self.letters:
            return self._text_first(text)
        is_marked = found["named"] or found["mark"] or found["end"]
        end = found.end()
        letter = found["letter"].upper()
        if found["letter"] == "a" and not is_marked and _NOUN_BEHIND.match(text, end):
            return self._text_first(text)  # "a (red) cup"
        if letter == "A" and not is_marked:  # "A red cup" is the text of an option
            as_text = self._text_first(text)
            if as_text:
                return as_text
        beside = _BESIDE.match(text, end).end()
        own = self._own_text(text, beside) if "\n" not in text[end:beside] else None
        if own:
            is_more = self.is_continued(letter, text[beside:])
            return None if is_more else (letter, own[1])
        if (found["end"] and not _CLAIMS.match(text, end)) or BOUNDARY.match(text, end):
            return letter, end
        return self._text_first(text)

    def spoken_of(self, text: str, at: int) -> tuple[str, int] | None:
        letter = LETTER.match(text, at)
        return (letter["letter"].upper(), letter.end()) if letter else self.inside(text, at)

    def is_continued(self, letter: str, behind: str) -> bool:
        """Return whether behind a letter an option's text stands that is another's or goes on:
        beside the letter it has to be its option's and nothing more."""
        own = self._own_text(behind, 0)
        return own is not None and not (own[0] == letter and BOUNDARY.match(behind, own[1]))

    def _own_text(self, text: str, at: int) -> tuple[str, int] | None:
        """Return the option's text beside a letter, in another ending only as all that stands
        there: "B. Pedestrians cross the road" explains B, "Pedestrian"."""
        found = self.inside(text, at)
        is_text = found and (self._is_exact(text[at : found[1]]) or BOUNDARY.match(text, found[1]))
        return found if is_text else None

    def _text_first(self, text: str) -> tuple[str, int] | None:
        """Return an option's text, with its letter behind it or without: "Screwdriver (B)"."""
        found = super().begin(text)
        letter = _LETTER_BEHIND.match(text, found[1]) if found else None
        if letter is None:
            return found
        is_its_own = letter[1].upper() == found[0] and BOUNDARY.match(text, letter.end())
        return (found[0], letter.end()) if is_its_own else None


DIRECTIONS = ("left", "right", "straight", "up", "down")
# "turning left", "to the left", "a left turn", "straight ahead"
_WAY = re.compile(
    r"(?:an? |the )?(?P<turn>left|right)(?:[- ]hand)?[- ]turn(?!\w)"
    r"|(?:(?:turn|go|mov|head|driv|veer|steer|proceed|continu|keep|merg)(?:e?s|ed?|ing|es)?[ -])?"
    r"(?:to the |towards the )?(?:straight )?"
    r"(?P<way>left|right|straight|forward|ahead|up|down)(?:wards?)?(?: ahead)?(?![\w-])",
    re.I,
)


class Directions(Vocabulary):
    """Left, right, straight, up and down, with a word of motion."""

    def inside(self, text: str, at: int) -> tuple[str, int] | None:
        found = _WAY.match(text, at)
        if found is None:
            return None
        way = (found["turn"] or found["way"]).lower()
        return "straight" if way in ("forward", "ahead") else way, found.end()


_YES = (
    "yes yeah yep true correct affirmative ja oui sí sì sim да 是的 是 对的 对 有 会 正确 はい 네"
)
_NO = """
    no nope false incorrect negative nein non não нет 不是 不会 不正确 没有 不 否 いいえ 아니요"""
TRUTH_OF = dict.fromkeys(_YES.split(), "yes") | dict.fromkeys(_NO.split(), "no")
_TRUTH = re.compile("|".join(sorted(TRUTH_OF, key=len, reverse=True)) + r"|[YyNnTF](?=\W*\Z)", re.I)
TRUTH_OF |= {"y": "yes", "t": "yes", "n": "no", "f": "no"}
# What is said of a question that asks whether something is so.
_ELLIPSES = {
    "yes": r"absolutely|definitely|certainly|of course|indeed|exactly",
    "no": r"absolutely not|definitely not|certainly not|of course not|not at all|not really"
    r"|I['’]m afraid not|never",
}
_VERBS = "(?:is|are|was|were|do|does|did|has|have|had|can|will)"
_THAT = r"(?:(?:yes|no),? |indeed,? )?(?:it|he|she|they|there|this|that|I)"
_ALONE = re.compile(
    rf"(?:(?P<no>{_ELLIPSES['no']}|{_THAT} (?:{_VERBS}(?: not|n['’]t)|can(?:no|['’])t|won['’]t)"
    rf"(?: indeed)?)|(?P<yes>{_ELLIPSES['yes']}"
    rf"|{_THAT} (?:indeed |certainly |definitely )?{_VERBS}(?: indeed)?))[.!]?",
    re.I,
)
LONGEST_ELLIPSIS = 60  # characters
_SUBJECT = re.compile(r" (?:it|he|she|they|there|this|that|the|I)\b")
_OF_A_NUMBER = re.compile(r"\.? ?\d")  # "No. 5"
# Behind a yes or no: "yes or no", "yes and no".
_BOTH = re.compile(r"\W*(?:or|and|/|et|und|oder|ou|o|y)\W*(?:yes|no|non|nein)\b", re.I)


class Truths(Vocabulary):
    """Yes and no, in the languages that the models' cards name."""

    def begin(self, text: str) -> tuple[str, int] | None:
        found = self.leading(text)
        return found if found and BOUNDARY.match(text, found[1]) else None

    def leading(self, text: str) -> tuple[str, int] | None:
        """Return the verdict that a text leads with: a mark or a subject follows."""
        found = _TRUTH.match(text)
        if found is None:
            return None
        end = found.end()
        if _goes_on(text, end) or _BOTH.match(text, end) or _OF_A_NUMBER.match(text, end):
            return None
        word = found[0].lower()
        has_subject = word in ("yes", "no") and _SUBJECT.match(text, end)
        return (TRUTH_OF[word], end) if has_subject or BOUNDARY.match(text, end) else None

    def spoken_of(self, text: str, at: int) -> tuple[str, int] | None:
        word = _TRUTH.match(text, at)
        is_whole = word and not _goes_on(text, word.end())
        return (TRUTH_OF[word[0].lower()], word.end()) if is_whole else None

    def alone(self, text: str) -> str | None:
        """Return what "It is.", "They don't", "Absolutely" and "Not at all" say."""
        if len(text) > LONGEST_ELLIPSIS:
            return None
        found = _ALONE.fullmatch(text)
        return found.lastgroup if found else None


DIRECTION = Directions()
TRUTHS = Truths()
options_vocabulary = lru_cache(maxsize=4096)(Options)


@lru_cache(maxsize=4096)
def labels_vocabulary(labels: tuple[str, ...]) -> Vocabulary:
    names = tuple(dict.fromkeys(fold(label) for label in labels if fold(label)))
    if names and set(names) <= set(DIRECTIONS):
        return DIRECTION
    return Labels(names)
