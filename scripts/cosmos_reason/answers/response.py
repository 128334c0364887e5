"""The parts of a response: its thinking, its markup, its sentences, its markers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cosmos_reason.answers.words import composed

LONGEST = 16_000  # of what is longer the beginning and the end are read
MARKERS = 50  # and the last markers

_THOUGHT = re.compile(
    r"</?(?:think(?:ing)?|thoughts?|reasoning|scratchpad|analysis)>|◁/?think▷|\[/?THINK\]", re.I
)
_ANSWER_TAG = re.compile(r"<answer>|<\|begin_of_box\|>", re.I)
_ANSWER_END = re.compile(r"</?answer>|<\|end_of_box\|>", re.I)
_UNMARKED = re.compile(r"[A-Za-z0-9,.:;!?()/%+-]*(?: [A-Za-z0-9,.:;!?()/%+-]+)*")
_MARKUP = re.compile(
    r"</?(?:b|i|em|strong|p|br) ?/?>|<\|[\w-]{1,30}\|>|\\(?:text|mathrm|textbf)\b|\\[()\[\] ,;]"
    r"|\$(?=[^$\n]{1,80}\$)|(?<=[^$\n])\$(?! ?\d)|[*_`#\u200b\ufeff\"“”‘«»「」『』]|(?m:^ *>+)"
    r"|(?<![\w)])['’]|['’](?!\w)"
)
_BLANKS, _LINES = re.compile(r"[^\S\n]+"), re.compile(r" ?\n[\n ]*")
_SENTENCE_END = re.compile(r"(?<=[.!?;]) +(?![✗✘❌×✖✓✔✅])|(?<=[。！？；])|\n")
_INITIAL = re.compile(r"\W*(?:[A-Za-z]|\d{1,2}|No|Option [A-Z])[.)]")
# What an enclosing marker holds is the answer; what follows a spoken one may be. Markers begin with
# a word or with one of the characters looked for first, which spares trying all at every character.
_MARKER = re.compile(
    r"(?:\b(?=\w)|(?=[<\\\"'∴→⇒=答选所因-]))(?:(?P<tag><answer>|<\|begin_of_box\|>)"
    r"|\\boxed ?\{(?P<boxed>(?:[^{}]|\{[^{}]{0,200}\}){0,400})\}?"
    r"|[\"']?\b(?:final_?answer|answer|choice|option|prediction|verdict)[\"'] ?: ?"
    r"(?P<field>\"[^\"\n]{0,400}|'[^'\n]{0,400}|\[[^\]\n]{0,200}|[^\s,}\]]{1,40})"
    r"|(?P<spoken>\b(?:(?:(?:correct|best|right) (?:option|letter|one)|answers?|choice|verdict"
    r"|result|conclusion|pick|prediction|antwort|réponse|respuesta|risposta|resposta)\b"
    r"(?: (?:to|for) (?:the|this) question)? ?(?:(?:is|are|must be|should be|ist|est|es|è|é)\b ?:?"
    r"|[:=]|[-–—](?= ))"
    r"|I(?:['’]d| would| will|['’]ll)? (?:choose|pick|select|say|take|go with|conclude|answer"
    r"|lean towards?)\b|(?<=[.!?…] )no,(?! (?:the|there|it)\b)"
    r"|actually\b(?=,| [(\[]?(?-i:[A-Z])\b| (?:it['’ ]|yes\b|no\b|\d))"
    r"|(?:wait|correction|rather|in conclusion|overall|finally)\b ?[,:—–-]"
    r"|(?:so|therefore|thus|hence)\b,?|that (?:makes|leaves)\b|leav(?:es|ing)\b"
    r"|total(?: of| is|:)(?= ?\w))|[∴→⇒]|[-=]>|=(?= ?-?\d)"
    r"|答案应?该?(?:是|为|:)|选(?:择|(?!项))|所以|因此))",
    re.I,
)


class Marked(NamedTuple):
    """What a marker marks, and whether it encloses it."""

    marker: str
    content: str
    is_enclosing: bool


def final_answer(response: str) -> str | None:
    """The part of a response that answers: what is not thinking, and of that the last `<answer>`
    element.

    None when nothing is left, as when the tokens ran out while thinking."""
    said = outside_thinking(response)
    if "<" in said or "[" in said:
        elements = list(_ANSWER_TAG.finditer(said))
        if elements:
            said = _ANSWER_END.split(said[elements[-1].end() :], 1)[0]
    return said.strip() or None


def outside_thinking(response: str) -> str:
    """What is said after the last thought, or else before it. A thought that nothing closes lasts
    to the end, unless the answer element that ends it shows that it was over."""
    if "<" not in response and "[" not in response and "◁" not in response:
        return response
    closed_at = 0
    said_before = ""
    is_open = False
    for tag in _THOUGHT.finditer(response):
        if "/" in tag[0] or "end_of" in tag[0]:
            closed_at = tag.end()
            is_open = False
        elif not is_open:
            said_before = response[closed_at : tag.start()]
            is_open = True
    after = response[closed_at:]
    if not is_open and after.strip():
        return after
    return _element_at_end(response) or ("" if is_open else said_before)


def reasoning(response: str) -> str | None:
    """What a response thinks before it answers, without the tags; None when it does not."""
    said = outside_thinking(response)
    if response.endswith(said):
        thought = response[: len(response) - len(said)]
    else:  # it was said before the thought
        thought = response.replace(said, "", 1)
    return _THOUGHT.sub("", thought).strip() or None


def _element_at_end(response: str) -> str:
    """The last answer element, when nothing but the end of a thought follows it."""
    elements = list(_ANSWER_TAG.finditer(response))
    if not elements:
        return ""
    after = _ANSWER_END.split(response[elements[-1].end() :], 1)[1:]
    is_last = not any(_THOUGHT.sub("", part).strip() for part in after)
    return response[elements[-1].start() :] if is_last else ""


def shortened(said: str) -> str:
    """The beginning and the end of what is longer than a person reads."""
    return said if len(said) <= LONGEST else f"{said[: LONGEST // 4]}\n{said[-LONGEST:]}"


def plain(text: str) -> str:
    """The text without markup, with single spaces."""
    if _UNMARKED.fullmatch(text):
        return text
    return _LINES.sub("\n", _BLANKS.sub(" ", _MARKUP.sub("", composed(text)))).strip()


def marked(said: str) -> Iterator[Marked]:
    """What the markers of a text mark, the last one first."""
    text = said
    if not _UNMARKED.fullmatch(said):
        text = _LINES.sub("\n", _BLANKS.sub(" ", composed(said)))
        text = text.replace("**", "").replace("__", "")
    end = len(text)
    for found in list(_MARKER.finditer(text))[: -MARKERS - 1 : -1]:
        if found["tag"]:
            yield Marked("<answer>", _ANSWER_END.split(text[found.end() : end], 1)[0], True)
        elif found["boxed"] is not None:
            yield Marked("\\boxed", found["boxed"], True)
        elif found["field"] is not None:
            field = "" if found["field"] == "null" else found["field"].strip("\"'")
            yield Marked("field", field, True)
        else:
            content = text[found.end() : end].lstrip(" :\n").partition("\n")[0]
            yield Marked(found["spoken"].strip(), content, False)
        end = found.start()


def sentences(text: str) -> Iterator[str]:
    """An initial like "A." or "1." belongs to what follows it."""
    initial = ""
    for piece in _SENTENCE_END.split(text):
        if not initial and _INITIAL.fullmatch(piece):
            initial = piece + " "
        elif piece.strip() or initial:
            yield initial + piece
            initial = ""
    if initial:
        yield initial.strip()


def first_sentence(text: str) -> str:
    return next(sentences(text), "")
