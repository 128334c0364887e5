"""Answers as people and programs write them: what stands for no value, and one form for those that
differ in case and blanks only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

# What programs write for no value, and a spreadsheet for a formula that failed. "none" is a word.
VOID = {"NaN", "nan", "NAN", "None", "null", "NULL", "N/A", "n/a", "#N/A", "<NA>", "NaT"}
FAILED_FORMULA = re.compile(r"#[¡¿]?(?:[^\W\d_]+(?:/0)?[!?]|N/A|NV)")


def is_void(text: str) -> bool:
    return text in VOID or FAILED_FORMULA.fullmatch(text) is not None


def alike(text: str) -> str:
    """The same for answers that differ in case and blanks only."""
    return " ".join(text.casefold().split())


def in_one_form(answers: Sequence[str]) -> list[str]:
    """The answers, each in the form that most of those alike have, else the first of them."""
    forms: dict[str, Counter] = defaultdict(Counter)
    for answer in answers:
        forms[alike(answer)][answer] += 1
    return [forms[alike(answer)].most_common(1)[0][0] for answer in answers]
