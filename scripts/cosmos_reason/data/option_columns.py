"""Options of a question in columns of their own: a0 to a4 (NExT-QA), "option 1" and on, A to D."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from string import ascii_uppercase

NUMBERED = re.compile(r"(?:a|opt|option|choice|candidate)[ _]?(\d)", re.I)

ANSWERS = re.compile(r"answer[ _]?(\d)", re.I)  # HourVideo
LETTER = re.compile(r"[A-H]")


def of_row(record: Mapping, answer: str) -> tuple[dict[str, str], str]:
    """({"A": text} of the options in the columns of a record, its answer, for the name of a column
    the letter that is meant); no options and the same answer where there are no such columns.

    Raises ValueError for a name that is the text of another option."""
    columns = _numbered(record, NUMBERED)
    if not columns and LETTER.fullmatch(answer):
        columns = _numbered(record, ANSWERS)  # else they may be answers of several people
    if not columns:
        return _lettered(record), answer
    options = {
        letter: str(record[name])
        for letter, name in zip(ascii_uppercase, columns.values(), strict=False)
    }
    named = dict(zip(map(str.casefold, columns.values()), options, strict=True))
    meant = named.get(answer.casefold())
    if meant is None:
        return options, answer
    if answer in options.values() and options[meant] != answer:
        message = f"got the answer {answer!r}, the column of one option and the text of another"
        raise ValueError(f"{message}, expected its letter")
    return options, meant


def names(columns: Iterable[str]) -> list[str]:
    """Those of the names that columns of options have."""
    found = [name for name in columns if NUMBERED.fullmatch(name) or ANSWERS.fullmatch(name)]
    return [*found, *(name for name in columns if LETTER.fullmatch(name))]


def _numbered(record: Mapping, pattern: re.Pattern) -> dict[int, str]:
    """{number: column} of columns numbered from 0 or 1, without those that are empty."""
    found = {}
    for name, value in record.items():
        match = pattern.fullmatch(name) if isinstance(name, str) else None
        if match and value not in (None, ""):
            found[int(match[1])] = name
    numbers = sorted(found)
    is_counted = len(numbers) > 1 and numbers in (
        list(range(len(numbers))),
        list(range(1, len(numbers) + 1)),
    )
    return {number: found[number] for number in numbers} if is_counted else {}


def _lettered(record: Mapping) -> dict[str, str]:
    """Those of the columns A, B and on."""
    options = {}
    for letter in ascii_uppercase:
        if not isinstance(record.get(letter), str) or not record[letter]:
            break
        options[letter] = record[letter]
    return options if len(options) > 1 else {}
