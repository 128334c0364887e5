"""The parts of a response: its thinking, its enclosures, its text without markup, its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from cosmos_reason.answers.words import composed

ANSWER_FIELD = "answer field"
LONGEST = 16_000  # characters; of what is longer the beginning and the end are read

# Begins and ends of thoughts, as the families of models write them.
_THOUGHT = re.compile(
    r"</?(?:think(?:ing)?|thoughts?|reasoning|scratchpad|analysis)>|◁/?think▷|\[/?THINK\]", re.I
)
_ANSWER_TAG = re.compile(r"[<\[]answer[>\]]|<\|begin_of_box\|>", re.I)
_ANSWER_END = re.compile(r"[<\[]/?answer[>\]]|<\|end_of_box\|>", re.I)
# An answer tag; \boxed{} with braces in it, or cut off; a JSON field, complete or cut off.
_ENCLOSED = re.compile(
    r"(?P<tag>[<\[]answer[>\]]|<\|begin_of_box\|>)"
    r"|\\boxed ?\{(?P<boxed>(?:[^{}]|\{[^{}]{0,200}\}){0,400})(?P<end>\}?)"
    r"|[\"'](?P<key>final_?answer|correct_?answer|answer|choice|option|label|class|category"
    r"|prediction|verdict|result|count|score|direction)"
    r"[\"'] ?: ?(?:(?P<field>\"[^\"\n]{0,400}\"(?!\s*(?:or\b|[/|]))|'[^'\n]{0,400}'"
    r"|\[[^\]\n]{0,200}\]"
    r"|-?[\w.%]{1,40}(?=\s*[,}\n]))|(?P<cut>))",
    re.I,
)
_MAY_ENCLOSE = re.compile("[<\"'[]|\\\\boxed")
# Most responses are made of these characters and need not be searched for markup.
_UNMARKED = re.compile(r"[A-Za-z0-9,.:;!?()/%+-]*(?: [A-Za-z0-9,.:;!?()/%+-]+)*")
_MARKUP = re.compile(
    r"</?(?:b|i|s|em|strong|p|br) ?/?>|<\|[\w-]{1,30}\|>|\\(?:text|mathrm|textbf)\b|\\[()\[\] ,;]"
    r"|\$(?=[^$\n]{1,80}\$)|(?<=[^$\n])\$(?! ?\d)|[*`#\u200b\ufeff\"“”‘«»「」『』]|(?m:^ *>+)"
    r"|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])"
    r"|```(?:json)?|(?<![\w)])['’]|['’](?!\w)"
)
_BLANKS, _LINES = re.compile(r"[^\S\n]+"), re.compile(r" ?\n[\n ]*")
# A blank is what the search jumps to; only texts of other languages end without one.
_BLANK_OR_LINE = r" (?<=[.!?;] )(?<!\b[ie]\.[eg]\. ) *(?![✗✘❌×✖✓✔✅])|\n"
_SENTENCE_END = re.compile(_BLANK_OR_LINE)
_ANY_SENTENCE_END = re.compile(rf"(?<=[。！？；])|{_BLANK_OR_LINE}")
# "A.", "1)", "No.", "Option B." end no sentence.
_INITIAL = re.compile(r"\W*(?:[A-Za-z]|\d{1,2}|No|Option [A-Z])[.)]")


class Enclosed(NamedTuple):
    """What a mark encloses; None for a mark that is cut off. `start` and `end` are places in the
    response."""

    mark: str
    content: str | None
    start: int
    end: int


def final_answer(response: str) -> str | None:
    """Return the part of a response that answers: what is not thinking, and of that the last
    `<answer>` element. None when nothing is left, as when the tokens ran out while thinking."""
    said = outside_thinking(response)
    elements = list(_ANSWER_TAG.finditer(said))
    if elements:
        said = _ANSWER_END.split(said[elements[-1].end() :], maxsplit=1)[0]
    return said.strip() or None


def outside_thinking(response: str) -> str:
    """Return what is said after the last thought, or else before it. A thought that nothing closes
    lasts to the end, unless the answer element that ends it shows that it was over."""
    if "<" not in response and "[" not in response and "◁" not in response:
        return response
    closed_at = 0
    said_before = ""
    is_open = False
    for tag in _THOUGHT.finditer(response):
        if "/" in tag[0]:
            closed_at = tag.end()
            is_open = False
        elif not is_open:
            said_before = response[closed_at : tag.start()]
            is_open = True
    after = response[closed_at:]
    if not is_open and after.strip():
        return after
    return _element_at_end(response) or ("" if is_open else said_before)


@lru_cache(maxsize=1 << 12)  # the answers of an evaluation repeat
def reasoning(response: str) -> str | None:
    """Return what a response thinks before it answers, without the tags; None when it does not."""
    said = outside_thinking(response)
    if said is response:
        return None
    if response.endswith(said):
        thought = response[: len(response) - len(said)]
    else:  # it was said before the thought
        thought = response.replace(said, "", 1)
    return _THOUGHT.sub("", thought).strip() or None


def _element_at_end(response: str) -> str:
    """Return the last answer element, when nothing but the end of a thought follows it."""
    elements = list(_ANSWER_TAG.finditer(response))
    if not elements:
        return ""
    after = _ANSWER_END.split(response[elements[-1].end() :], maxsplit=1)[1:]
    is_last = not any(_THOUGHT.sub("", part).strip() for part in after)
    return response[elements[-1].start() :] if is_last else ""


def shortened(said: str) -> str:
    """Return the beginning and the end of what is longer than a person reads."""
    return said if len(said) <= LONGEST else f"{said[: LONGEST // 4]}\n{said[-LONGEST:]}"


def enclosures(said: str) -> list[Enclosed]:
    """Return what answer tags, \\boxed and JSON fields enclose, from left to right; those within an
    answer tag are left to the reading of its content."""
    if not _MAY_ENCLOSE.search(said):
        return []
    found: list[Enclosed] = []
    at = 0
    while match := _ENCLOSED.search(said, at):
        at = match.end()
        if match["tag"]:
            end = _ANSWER_END.search(said, at)
            content = said[at : end.start()] if end else said[at:]
            at = end.end() if end else len(said)
            found.append(Enclosed("<answer>", content, match.start(), at))
        elif match["boxed"] is not None:
            content = match["boxed"] if match["end"] else None
            found.append(Enclosed("\\boxed", content, match.start(), at))
        else:
            field = match["field"]
            content = None if field in (None, "null") else field.strip("\"'")
            mark = ANSWER_FIELD if "answer" in match["key"].lower() else "field"
            found.append(Enclosed(mark, content, match.start(), at))
    if any(one.mark == ANSWER_FIELD for one in found):
        found = [one for one in found if one.mark != "field"]  # a label beside the answer
    return found


def plain(text: str) -> str:
    """Return the text without markup, with single spaces and without empty lines."""
    if _UNMARKED.fullmatch(text):
        return text.strip()
    return _LINES.sub("\n", _BLANKS.sub(" ", _MARKUP.sub("", composed(text)))).strip()


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each sentence. An initial like "A." or "1." belongs to what follows
    it."""
    start = 0
    ends = _SENTENCE_END if text.isascii() else _ANY_SENTENCE_END
    for stop in ends.finditer(text):
        piece = text[start : stop.start()]
        if stop[0] != "\n" and _INITIAL.fullmatch(piece):
            continue
        if piece.strip():
            yield start, stop.start()
        start = stop.end()
    if text[start:].strip():
        yield start, len(text)
