"""Words as answers are compared by them: folded, stemmed, numbers as numbers."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

EDGES = " \t\r\n.,;:!?()[]{}'\"“”‘’«»*_`~。，；：！？（）「」、-–—"
_WORD = re.compile(
    r"\d+(?:[.,]\d+)*|[^\W\d_\u2e80-\uffff]+(?:['’](?!t\b)[^\W\d_]+)?|[\u2e80-\uffff]"
)
# what it stands for, and the forms that no ending shows
_FORMS = """
go: goes going went gone / drive: drove driven driving / fall: fell fallen / run: ran running
not: n't cannot / straight: forward forwards ahead / left: leftward leftwards
right: rightward rightwards / up: upward upwards / down: downward downwards / mov: motion
stop: stopped stopping stationary / rain: rainy raining rainfall / sun: sunny sunshine
snow: snowy snowing snowfall / cloud: cloudy clouds / fog: foggy / wind: windy / man: men
woman: women / child: children / person: people persons / put: puts putting / grey: gray
centre: center / hold: held holding / take: took taken taking / throw: threw thrown
break: broke broken / collide: collision collisions crash crashes crashed crashing / hit: hitting
"""
_COUNTED = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty
"""
NUMBER_WORDS = {word: number for number, word in enumerate(_COUNTED.split())} | {"hundred": 100}
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
for _number, _word in enumerate(re.split(" ", _TENS), 2):
    NUMBER_WORDS[_word] = 10 * _number
    for _one in _COUNTED.split()[1:10]:
        NUMBER_WORDS[f"{_word}-{_one}"] = 10 * _number + NUMBER_WORDS[_one]
        NUMBER_WORDS[f"{_word} {_one}"] = 10 * _number + NUMBER_WORDS[_one]


class Word(NamedTuple):
    stem: str
    start: int
    end: int


def either(listed: str) -> str:
    """A pattern of any of the phrases listed; an underscore stands for a space."""
    return "(?:" + "|".join(listed.split()).replace("_", " ") + ")"


def composed(text: str) -> str:
    """Full-width forms as ordinary ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


@lru_cache(maxsize=8192)
def fold(text: str) -> str:
    """Case, width, runs of white space and punctuation at the ends removed; other languages keep
    every letter."""
    return " ".join(composed(text).casefold().split()).strip(EDGES)


_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.S)
_WITHOUT_WORDS = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*[,;:/ -][^A-Za-z]*\d[^A-Za-z]*", re.S)


def exact(text: str) -> str | None:
    """The one form of a JSON list or object, and of several numbers without words: signs, brackets,
    order and each value are the answer there. None for a text of words."""
    text = composed(text).strip()
    fenced = _FENCED.fullmatch(text)
    text = fenced[1] if fenced else text
    if text[:1] in ("[", "{"):
        try:
            return json.dumps(json.loads(text, parse_int=float), sort_keys=True)
        except (ValueError, RecursionError):
            return "".join(text.split())
    if _WITHOUT_WORDS.fullmatch(text) and text.isascii():
        return re.sub(r"\s*([,;:/])\s*", r"\1", " ".join(text.rstrip(" .").split()))
    return None


_FORM_OF = {
    form: entry.partition(":")[0].strip()
    for entry in re.split("[/\n]", _FORMS.strip())
    for form in entry.partition(":")[2].split()
}


@lru_cache(maxsize=1 << 15)
def stem(word: str) -> str:
    """One form for all forms of a word (turn, turns, turning, turned) and of a number (three,
    3.0)."""
    word = word.casefold()
    word = _FORM_OF.get(word, word)
    if word in NUMBER_WORDS:
        return str(NUMBER_WORDS[word])
    if word[0].isdigit():
        number = word.replace(",", "")
        return number.rstrip("0").rstrip(".") if "." in number else number
    for ending in ("'s", "’s", "ing", "ed", "es", "s", "ly"):
        if len(word) > len(ending) + 2 and word.endswith(ending) and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    if len(word) <= 3:
        return word
    if word[-1] == word[-2] and word[-1] not in "lse":
        word = word[:-1]  # stopped, running
    return word[:-1] + "i" if word.endswith("y") else word.removesuffix("e")


def words(text: str) -> list[Word]:
    text = text.replace("n't", " not").replace("n’t", " not")
    return [Word(stem(found[0]), *found.span()) for found in _WORD.finditer(text)]


def stems(text: str) -> frozenset[str]:
    return frozenset(word.stem for word in words(text))


# These tell no option from another.
PASSED_OVER = stems(
    """a an the to of is are was were be been being it its this that there in on at by for with and
    or as has have had will would do does did must should un una el los las le les der das den ein
    eine einen il gli uno um uma os as"""
)
