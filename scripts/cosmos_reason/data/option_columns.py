"""Options of a question in columns of their own: a0 to a4 (NExT-QA), "option 1" and on, A to D."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase

NUMBERED = re.compile(r"(?:a|opt|option|choice|candidate)[ _]?(\d)", re.I)
ANSWERS = re.compile(r"answer[ _]?(\d)", re.I)  # HourVideo
LETTER = re.compile(r"[A-H]")


def named(columns: Iterable[str]) -> list[str]:
    """Those columns that are numbered from 0 or from 1 without a gap, or else called A, B and on,
    in the order of their options."""
    names = [name for name in columns if isinstance(name, str)]
    found = _counted(names, NUMBERED)
    if found:
        return found
    lettered = []
    for letter in ascii_uppercase:
        if letter not in names:
            break
        lettered.append(letter)
    return lettered if len(lettered) > 1 else []


def _counted(names: list[str], pattern: re.Pattern) -> list[str]:
    by_number = {int(match[1]): name for name in names if (match := pattern.fullmatch(name))}
    numbers = sorted(by_number)
    is_counted = numbers and numbers[0] in (0, 1) and numbers[-1] - numbers[0] == len(numbers) - 1
    return [by_number[number] for number in numbers] if is_counted and numbers[1:] else []


def of_row(record: Mapping, answer: str) -> tuple[dict[str, str], str]:
    """The options of a record, as `of_columns`, in columns that are known by their names."""
    filled = [name for name, value in record.items() if value not in (None, "")]
    columns = named(filled)
    if not columns and LETTER.fullmatch(answer):  # else they may be answers of several people
        columns = _counted(filled, ANSWERS)
    if columns and columns[0] == "A" and not all(isinstance(record[one], str) for one in columns):
        return {}, answer
    return of_columns(record, columns, answer)


def of_columns(record: Mapping, columns: Sequence[str], answer: str) -> tuple[dict[str, str], str]:
    """({"A": text} of the options in these columns of a record, its answer, for the name of a
    column the letter that is meant). A question may have fewer options than there are columns: its
    last ones are empty then.

    Raises ValueError for a gap, and for a name that is the text of another option."""
    texts = [record.get(name) for name in columns]
    while texts and texts[-1] in (None, ""):
        texts.pop()
    if any(text in (None, "") for text in texts):
        raise ValueError(f"got an empty option before others in {', '.join(columns)}")
    options = dict(zip(ascii_uppercase, map(str, texts), strict=False))
    named_by = dict(zip(map(str.casefold, columns), options, strict=False))
    meant = named_by.get(answer.casefold())
    if meant is None or columns[0] == "A":
        return options, answer
    if answer in options.values() and options[meant] != answer:
        message = f"got the answer {answer!r}, the column of one option and the text of another"
        raise ValueError(f"{message}, expected its letter")
    return options, meant
