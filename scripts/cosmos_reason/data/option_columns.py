"""Options of a question in columns of their own: a0 to a4 (NExT-QA), "option 1" and on, A to D."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import ascii_uppercase

NUMBERED = re.compile(r"(?:a|opt|option|choice|candidate)[ _]?(\d)", re.I)

ANSWERS = re.compile(r"answer[ _]?(\d)", re.I)  # HourVideo
LETTER = re.compile(r"[A-H]")


def with_letter(record: Mapping, answer: object) -> tuple[dict[str, str], object]:
    """({"A": text} of the options in the columns of a record, its answer, for a number or a column
    the letter that is meant); no options and the same answer where there are no such columns.

    Raises ValueError for a number that is the text of another option."""
    columns = _numbered(record, NUMBERED)
    if not columns and LETTER.fullmatch(str(answer).strip()):
        columns = _numbered(record, ANSWERS)  # else they may be answers of several people
    if not columns:
        return _lettered(record), answer
    letters = dict(zip(columns, ascii_uppercase, strict=False))
    options = {letters[number]: str(record[name]) for number, name in columns.items()}
    said = str(answer).strip()
    named = {str(number): letter for number, letter in letters.items()}
    named |= {columns[number].casefold(): letter for number, letter in letters.items()}
    meant = named.get(said.casefold())
    if meant is None:
        return options, answer
    if said in options.values() and options[meant] != said:
        message = f"got the answer {answer!r}, the number of one option and the text of another"
        raise ValueError(f"{message}, expected its letter")
    return options, meant


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
