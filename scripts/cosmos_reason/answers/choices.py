"""Labels, and options, which are labels with letters."""

from __future__ import annotations

import re
from functools import lru_cache
from string import ascii_uppercase

from cosmos_reason.answers.claims import Mention
from cosmos_reason.answers.commitment import Vocabulary
from cosmos_reason.answers.response import first_sentence
from cosmos_reason.answers.words import EDGES, PASSED_OVER, Word, composed, fold, stem, stems, words

# Options in a question
_AFTER_MARK = r"[.):\]、]"
_MARKER = re.compile(
    rf"(?<![A-Za-z0-9])[(\[]?([A-Za-z])(?:{_AFTER_MARK}\s*|(?<=\n[A-Z])\s[-–]\s)(?=\S)"
)
_FIRST_MARKER = re.compile(rf"[Aa](?:{_AFTER_MARK}|\s[-–]\s)")
_AFTER_OPTIONS = re.compile(
    r"\s+(?:Please (?:answer|choose|select|respond)|(?:Answer|Respond|Reply) (?:with|by|in))\b"
)

# Letters. "A" and "I" are words too: they count only where the sentence does not go on as one.
_EDGE = rf"[{re.escape(EDGES)}]*"
_LONE = re.compile(
    rf"{_EDGE}(?:(?:the )?(?:correct )?(?:option|choice|answer|letter|选项){_EDGE})?([A-Z]){_EDGE}",
    re.I,
)
_LETTER_FIRST = re.compile(
    r"\W*(?:(?:option|choice|answer)\W+)?(?:[(\[]([A-Z])[)\]]"
    r"|([A-Z])(?=[.):,\]，。、：]|\n| [-–—] |$| ?[(（])|([A-Z])(?= because\b))(?!['’])",
    re.I,
)
_LETTER = re.compile(
    r"[(\[]([A-Za-z])[)\]]|(?i:option|choice|answer)s? ?([A-Za-z])(?![\w'’-])"
    r"|(?<!N/)(?<![A-Za-zÀ-ÿ0-9.'’-])([A-Z])(?![A-Za-zÀ-ÿ0-9'’-])(?!\.[A-Za-z])"
)
_GOES_ON = re.compile(
    r" (?!(?:is|was|and|or|as|because|since|for|seems|looks|fits|matches|can|cannot|could|would"
    r"|does|but|over|which|that|best|nor|shows|says|has)\b)[a-zà-ÿ]"
)
_NAMED = stems(
    """vitamin plan camera lane point vehicle car person team type class grade room frame region
    object box gate zone section player area model robot part building figure rack image aisle
    shelf row column track terminal platform exit door station line road street"""
)  # "Plan B" is no option
_DELIMITED = re.compile(r"(?<![A-Za-z])([A-Z]) ?[:)=]")
_CHOSEN_TWO = re.compile(
    r"\W*(?:[,/&和或]|or\b|and\b) ?(?:maybe )?(?:option )?[(\[]?[A-Z](?!['’\w])"
)


@lru_cache(maxsize=1 << 12)
def options(question: str) -> dict[str, str]:
    """Letter -> text of the options in a question; {} when fewer than two. Written `A. x`, `A) x`,
    `(A) x`, `[A] x`, `A: x`, `A、x`, or on a line each `A - x`."""
    question = composed(question).replace("**", "")
    first = _FIRST_MARKER.search(question)
    return _listed(question[max(0, first.start() - 2) :]) if first else {}


@lru_cache(maxsize=1 << 12)  # many questions have the same options
def _listed(text: str) -> dict[str, str]:
    """The options in a text that begins with them."""
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


DIRECTIONS = ("left", "right", "straight", "up", "down")
_WAY = re.compile(
    r"(?<![\w-])(?<!all )((?:turn|go|mov|head|driv|veer|steer|proceed|continu|keep|merg|bear|curv)"
    r"(?:e?s|ed?|ing)? (?:to (?:the|its) )?|then )?"
    r"((?:left|right|up|down|for)(?:wards?)?|straight|ahead)(?!\w|-(?!hand turn))"
    r"(?! (?:away|now|after|before|behind|in front|lane|side|blinker|signal|indicator)\b)",
    re.I,
)
_MOVERS = PASSED_OVER | stems("turn go move head continue drive ego car vehicle truck")
_VERDICT_FIRST = re.compile("^(?:yes|no), ", re.I)


class Labels(Vocabulary):
    """Texts, of which a clause means one when all words are there that tell it from the others."""

    def __init__(self, texts: tuple[str, ...], names: tuple[str, ...] = ()):
        self.names = names or texts
        named = list(zip((_VERDICT_FIRST.sub("", text) for text in texts), self.names, strict=True))
        self.folded = {fold(text): name for text, name in named if fold(text)}
        self.sets = {name: stems(text) - PASSED_OVER or stems(text) for text, name in named}
        self.exact = {said: name for name, said in self.sets.items()}
        common = frozenset.intersection(*self.sets.values()) if len(texts) > 1 else frozenset()
        self.needed = {name: said - common or said for name, said in self.sets.items()}
        self.words = frozenset().union(*self.sets.values())
        self.known = frozenset().union(*self.needed.values())
        self.passed_over = (PASSED_OVER | common) - self.known
        self.longest = 20 + 2 * max(map(len, texts), default=0)  # inflected, with articles
        self.are_ordered = len(self.exact) < len(self.sets)

    def whole(self, text: str) -> str | None:
        if len(text) > self.longest:
            return None
        said = stems(text) - PASSED_OVER
        return self.folded.get(fold(text)) or (self.exact.get(said) if said else None)

    def mentions(self, clause: str) -> list[Mention]:
        """Those whose words stand together, and of which no other has all words and more."""
        if self.are_ordered:
            return self._literal(clause.casefold())
        said = [word for word in words(clause) if word.stem not in self.passed_over]
        places = _places(said)
        named = self._named(places)
        runs = {name: _closest(self.needed[name], places) for name in named}
        together = [n for n in named if runs[n][1] - runs[n][0] < len(self.needed[n])]
        spans = [
            Mention(name, said[runs[name][0]].start, said[runs[name][1]].end)
            for name in together or named
            if not self._is_part(name, named)
        ]
        return sorted(spans, key=lambda mention: mention.start)

    def _named(self, places: dict[str, list[int]]) -> list[str]:
        """Those with all needed words among the places; none without a word."""
        named = [name for name, needed in self.needed.items() if needed <= places.keys()]
        return [name for name in named if self.needed[name]]

    def _is_part(self, name: str, named: list[str]) -> bool:
        """Whether another of those named has all words of this one and more."""
        return any(self.sets[name] < self.sets[other] for other in named)

    def _literal(self, clause: str) -> list[Mention]:
        """For texts of the same words, like "red, then blue" and "blue, then red"."""
        found = {name: clause.find(text) for text, name in self.folded.items()}
        return [Mention(name, at, at + 1) for name, at in found.items() if at >= 0]


def _places(said: list[Word]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, word in enumerate(said):
        places.setdefault(word.stem, []).append(place)
    return places


def _closest(needed: frozenset[str], places: dict[str, list[int]]) -> tuple[int, int]:
    """First and last place of the shortest run that holds all of the words."""
    last_seen: dict[str, int] = {}
    best = (-1 << 30, 0)
    for place, said in sorted((place, word) for word in needed for place in places[word]):
        last_seen[said] = place
        first = min(last_seen.values())
        if len(last_seen) == len(needed) and place - first < best[1] - best[0]:
            best = (first, place)
    return best


class Directions(Labels):
    """Left, right, straight, up and down, of what moves; "the left lane" is no direction."""

    def whole(self, text: str) -> str | None:
        said = stems(text) - _MOVERS if len(text) <= 40 else frozenset()
        if len(said) == 1 and said <= set(DIRECTIONS):
            return next(iter(said))
        return None

    def mentions(self, clause: str) -> list[Mention]:
        found = []
        for match in _WAY.finditer(clause):
            way = stem(match[2])
            if match[1] or way not in ("up", "down"):
                found.append(Mention(way, *match.span(2), match[1] is not None))
        return found


class Options(Labels):
    """Letters, of which only those of the options are offered (all, where there are no options),
    and the texts of the options."""

    def __init__(self, texts: tuple[str, ...]):
        super().__init__(texts, tuple(ascii_uppercase[: len(texts)]))
        self.letters = self.names or ascii_uppercase

    def whole(self, text: str) -> str | None:
        lone = _LONE.fullmatch(text)
        if lone:
            return self._offered(lone[1])
        first = _LETTER_FIRST.match(text)
        beside = self._beside(text)
        if beside:
            return beside if beside == self._offered(first[first.lastindex]) else None
        return super().whole(text)

    def leading(self, text: str) -> str | None:
        line = text.partition("\n")[0]
        if len({*filter(self._offered, _DELIMITED.findall(line))}) > 1:
            return None
        first = _LETTER_FIRST.match(text)
        if first and not _CHOSEN_TWO.match(text, first.end()):
            letter = self._offered(first[first.lastindex])
            return letter if self._beside(line) in (None, letter) else None
        head = first_sentence(text)
        if head.rstrip().endswith("?"):
            return None
        return self.whole(head)

    def mentions(self, clause: str) -> list[Mention]:
        letters = []
        for match in _LETTER.finditer(clause):
            offered = self._offered(match[match.lastindex])
            if offered and _is_letter(clause, match):
                letters.append(Mention(offered, *match.span()))
        if len(letters) == 1:
            (only,) = letters
            return letters if self._beside(clause[only.start :]) in (None, only.value) else []
        return letters or [
            mention._replace(is_sure=False)
            for mention in super().mentions(clause)
            if not self._is_denied(mention, clause)
        ]

    def _offered(self, letter: str) -> str | None:
        return letter.upper() if letter.upper() in self.letters else None

    def _beside(self, text: str) -> str | None:
        """The option whose text stands beside the letter that a text begins with."""
        first = _LETTER_FIRST.match(text)
        return super().whole(text[first.end() :].strip(EDGES)) if first else None

    def _is_denied(self, mention: Mention, clause: str) -> bool:
        """Whether a "not" that is not the option's own stands within its words."""
        return "not" in stems(clause[mention.start : mention.end]) - self.sets[mention.value]


def _is_letter(clause: str, match: re.Match) -> bool:
    """Whether a capital is the letter of an option: "Plan B", "U.S.A" and "A car" hold none."""
    if match.lastindex < 3:
        return True
    before = re.search(r"([A-Za-zÀ-ÿ]+) *$", clause[max(0, match.start() - 20) : match.start()])
    word = before[1] if before else ""
    if word and stem(word) in _NAMED:
        return False
    if match[3] == "I":
        return not re.match(" (?!is|was)[a-zà-ÿ]", clause[match.end() :])
    return not (match[3] == "A" and _GOES_ON.match(clause, match.end()))


DIRECTION = Directions(DIRECTIONS)
options_vocabulary = lru_cache(maxsize=4096)(Options)


@lru_cache(maxsize=4096)
def labels_vocabulary(labels: tuple[str, ...]) -> Vocabulary:
    names = tuple(dict.fromkeys(fold(label) for label in labels if fold(label)))
    if names and set(names) <= set(DIRECTIONS):
        return DIRECTION
    return Labels(names)
