"""The turns of a conversation, and how people and programs write answers and the reasoning before
them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

TAG = re.compile(r"\n?</?(image|video)>\n?")  # stands in a text for a medium
# What a model thought before its answer, and the answer: "<think>...</think> B".
THOUGHTFUL = re.compile(r"\s*<think>\s*(.*?)\s*</think>\s*(\S.*)", re.S)
THOUGHT_ALONE = re.compile(r"\s*<think>\s*(.*?)\s*(?:</think>\s*)?", re.S)
ANSWER_TAGS = re.compile(r"\s*<answer>(.*?)</answer>\s*", re.S)
# What programs write for no value, and a spreadsheet for a formula that failed. "none" is a word.
VOID = {"NaN", "nan", "NAN", "None", "null", "NULL", "N/A", "n/a", "#N/A", "<NA>", "NaT", "NA"}
# Excel's and LibreOffice's errors, a cell too narrow to show its value, a formula that was never
# computed, and marks alone.
FAILED_FORMULA = re.compile(
    r"#[¡¿]?(?:[^\W\d_]+(?:/0)?[!?]|N/A|NV)|Err:\d{3}|#{2,}|=[A-Z$]+[\d$(].*|[-–—.\s]+"
)
PAIRS = (("yes", "no"), ("true", "false"))  # words that are written alike
CASES = ("lower", "capitalize", "upper")
WHOLE = re.compile(r"([-+]?\d+)\.0+")  # how a spreadsheet of numbers writes 1
# What has no width and no meaning: spaces, marks of a file's beginning, places for a hyphen.
INVISIBLE = dict.fromkeys(map(ord, "\u200b\u2060\ufeff\u00ad"))
TYPESET = str.maketrans("‘’“”–—−‐‑", "''\"\"-----")  # as word processors write what is typed


class Turn(NamedTuple):
    role: str  # system | user | assistant
    text: str  # without <video> / <image> tags


class DateCell(str):
    """The text of a workbook's cell that holds a date, whatever was typed into it."""


def thought_apart(answer: str) -> tuple[str, str]:
    """Return (reasoning, answer) of an answer that may begin with its reasoning; "" without one."""
    thought = THOUGHTFUL.fullmatch(answer)
    return (thought[1], thought[2]) if thought else ("", answer)


def bare_thought(text: str) -> str:
    """Return reasoning without its tags."""
    tagged = THOUGHT_ALONE.fullmatch(text)
    return tagged[1] if tagged else text


def untagged(answer: str) -> str:
    """Return what stands in <answer>; any other answer as it is."""
    tagged = ANSWER_TAGS.fullmatch(answer)
    return tagged[1].strip() if tagged else answer


def is_void(text: str) -> bool:
    return text in VOID or FAILED_FORMULA.fullmatch(text) is not None


def visible(text: str) -> str:
    """Return a text as people see it, the same however Unicode writes it: a letter and its accent
    are one character, as models know them (macOS has them apart in names of files)."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(INVISIBLE))


def alike(text: str) -> str:
    """Return the same for answers that differ in case, blanks, the form of quotation marks and
    dashes, a full stop or the zeros of 1.0 only."""
    if not text.isascii():
        text = visible(text).translate(TYPESET)
    folded = " ".join(text.casefold().split()).removesuffix(".")
    return WHOLE.sub(r"\1", folded) if ".0" in folded else folded


def in_one_form(answers: Sequence[str]) -> list[str]:
    """Return the answers, each in the visible form that most of those alike have, else the first of
    them; yes and no, and true and false, as most of both are written."""
    answers = [*map(visible, answers)]
    forms: dict[str, Counter] = defaultdict(Counter)
    alike_to = {}
    for answer, count in Counter(answers).items():
        alike_to[answer] = alike(answer)
        forms[alike_to[answer]][answer] += count
    chosen = {key: counted.most_common(1)[0][0] for key, counted in forms.items()}
    for pair in PAIRS:
        if all(word in forms for word in pair):
            spellings: Counter = Counter()
            for word in pair:
                for form, count in forms[word].items():
                    spellings[spelling(form)] += count
            case, has_stop = spellings.most_common(1)[0][0]
            for word in pair:
                chosen[word] = getattr(word, case)() + "." * has_stop
    return [chosen[alike_to[answer]] for answer in answers]


def spelling(word: str) -> tuple[str, bool]:
    """Return (its case: lower, capitalize or upper, whether it ends with a full stop)."""
    bare = word.strip().removesuffix(".")
    case = next((one for one in CASES if getattr(bare, one)() == bare), CASES[0])
    return case, word.strip().endswith(".")
