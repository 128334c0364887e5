"""Answers that are numbers of options. A number may count from 0 or from 1: the whole file tells
(only counted from 0 has it a 0, only counted from 1 the number of options), or it is declared
(`--column answer_from_0=NAME`, the table of published sets)."""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_reason.base import findings as f
from cosmos_reason.data.formats import NUMBER

# {"A": text} of a row
Options = Mapping[str, object]


def letters(
    options: list[Options], answers: list[str], column: str, given: int | None, where: list[str]
) -> list[str]:
    """The answers of rows with their options, with the letter in the place of each number.

    `given` is what the numbers of the `column` count from, where that is declared; `where` names
    the rows. Answers that are no numbers stay, and all where the numbers are texts of options.
    Raises Failure where a number may mean two options, or none."""
    offered = [place for place, of_row in enumerate(options) if of_row]
    numbers = {place: int(answers[place]) for place in offered if NUMBER.fullmatch(answers[place])}
    if not numbers:
        return answers
    begin = given
    if begin is None:
        if _are_texts(options, answers, numbers, column, where):
            return answers
        begin = _beginning(options, numbers, column, where)
    lettered = list(answers)
    for place, number in numbers.items():
        of_row = list(options[place])
        if not 0 <= number - begin < len(of_row):
            last = len(of_row) + begin - 1
            message = f"got {number} beside {len(of_row)} options, expected {begin} to {last}"
            raise f.bad_input("BUILD-OPTIONS", where[place], message)
        lettered[place] = of_row[number - begin]
    return lettered


def _are_texts(
    options: list[Options],
    answers: list[str],
    numbers: dict[int, int],
    column: str,
    where: list[str],
) -> bool:
    """Whether all numbers are texts of options. Raises Failure where only some of them are."""
    texts = [place for place in numbers if answers[place] in map(str, options[place].values())]
    if texts and len(texts) < len(numbers):
        message = (
            f"got {answers[texts[0]]}, which is the text of an option and may be the number of "
            "another, as those of other rows are"
        )
        raise _question(message, column, where[texts[0]])
    return bool(texts)


def _beginning(
    options: list[Options], numbers: dict[int, int], column: str, where: list[str]
) -> int:
    """What the numbers of a file count from. Raises Failure where nothing tells."""
    from_0 = [place for place, number in numbers.items() if number == 0]
    from_1 = [place for place, number in numbers.items() if number == len(options[place])]
    if from_1 and from_0:
        message = (
            f"got {len(options[from_1[0]])} beside as many options, "
            "in a column that counts from 0 elsewhere"
        )
        raise _question(message, column, where[from_1[0]])
    if from_0:
        return 0
    if from_1:
        return 1
    place, number = next(iter(numbers.items()))
    message = f"got {number}, which counts options from 0 or from 1: no row has a 0 or the last"
    raise _question(message, column, where[place])


def _question(message: str, column: str, where: str) -> f.Failure:
    fix = (
        f"--column answer_from_0={column} where 0 is the first option, "
        f"--column answer_from_1={column} where 1 is"
    )
    return f.bad_input("BUILD-OPTIONS", where, message, fix)
