"""Words as answers are compared by them: folded, in the singular, numbers as numbers."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache

EDGES = " \t\r\n.,;:!?()[]{}'\"“”‘’«»*_`~。，；：！？（）「」、-–—"
_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.S)
_WITHOUT_WORDS = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*[,;:/ -][^A-Za-z]*\d[^A-Za-z]*", re.S)
_ARTICLE = re.compile(r"(?:an?|the) (?=\S)")
_IRREGULAR = {"men": "man", "women": "woman", "children": "child", "people": "person"}


def composed(text: str) -> str:
    """Return `text` with full-width forms as ordinary ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


@lru_cache(maxsize=8192)
def fold(text: str) -> str:
    """Remove case, width, runs of white space and punctuation at the ends; other languages keep
    every letter."""
    return " ".join(composed(text).casefold().split()).strip(EDGES)


def without_article(folded: str) -> str:
    """Drop a leading a, an or the: "a red cup" and "red cup" are one answer."""
    article = _ARTICLE.match(folded)
    return folded[article.end() :] if article else folded


def exact(text: str) -> str | None:
    """Return the one form of a JSON list or object, and of several numbers without words: signs,
    brackets, order and each value are the answer there. None for a text of words."""
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


def singular(word: str) -> str:
    """Return one form for the singular and the plural of a noun: "boxes" and "box" are both
    "box"."""
    word = word.lower().removesuffix("'s").removesuffix("’s")
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return word[:-1]
    return word


def stem(word: str) -> str:
    """Return a word without its ending: "opens" and "opened" are "open", "foggy" is "fog"."""
    if word.endswith("oes"):  # "goes"
        return word[:-2]
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            word = word.removesuffix(ending)
            break
    if len(word) > 4:  # "busy" is no bus
        word = word.removesuffix("y")
    is_doubled = len(word) > 3 and word[-1] == word[-2]  # "stopped"
    return word[:-1] if is_doubled else word
