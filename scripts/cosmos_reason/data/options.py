"""Options of a question: read from a list, a table, a text or columns of their own; written into
the question; and which of them an answer means. Everywhere they are {"A": text}."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase

from cosmos_reason.base import findings as f
from cosmos_reason.data.turns import thought_apart, untagged, visible
from cosmos_reason.spec.prompts import CHOOSE
from cosmos_reason.spec.values import shown

OPTIONS = ("index2ans", "options", "choices", "candidates", "option")  # keys of records
NUMBERED = re.compile(r"(?:a|opt|option|choice|candidate)[ _]?(\d)", re.I)  # columns: NExT-QA's a0
# An option as some benchmarks write it: "B. left".
LETTERED = re.compile(r"\(?([A-Z])[.):]\s*(.*)", re.S)
NUMBER = re.compile(r"\d+")
LETTER_ANSWER = re.compile(r"\W*([A-Za-z])(?:\W*|[).:]\s.*)", re.S)
SEVERAL_LETTERS = re.compile(r"(?:[A-Z]\b|[A-Z]{2,}|\W|and\b)+")
SECOND = re.compile(r"[Bb]\W")  # stands in every question that lists options
SHORT_ANSWER = 60  # characters


# -- reading them --------------------------------------------------------------------------------


def of_record(record: Mapping) -> dict[str, object]:
    """Return the options of a question. Raises ValueError for an `index2ans` that is no table."""
    if not isinstance(record.get("index2ans") or {}, dict):
        raise ValueError('got no table in "index2ans", expected {"A": "..."}')
    return next((of_value(record[key]) for key in OPTIONS if record.get(key)), {})


def of_value(value: object) -> dict[str, object]:
    """Return the options of a table or a list; {} for anything else. A table with one column per
    letter has None where a question has fewer options, a list only behind its last one. Raises
    ValueError for a gap, for a list of one option, and for an object in a list (STAR has the number
    of an option beside it) that has several texts."""
    if isinstance(value, dict):
        return {letter: text for letter, text in value.items() if text is not None}
    if not isinstance(value, list):
        return {}
    texts = []
    for option in value:
        if isinstance(option, dict):
            found = [text for text in option.values() if isinstance(text, str)]
            if len(found) != 1:
                raise ValueError(f"got the option {shown(option, 60)}, expected its text")
            option = found[0]
        texts.append(option)
    texts = _without_gap(texts, value)
    if len(texts) == 1:
        raise ValueError(
            f"got {texts[0]!r} as the one option, expected several (options_semicolon and "
            "options_lines declare what stands between them)"
        )
    listed = {chr(ord("A") + place): text for place, text in enumerate(texts)}
    marked = {letter: LETTERED.fullmatch(text) for letter, text in listed.items()}
    if all(match and match[1] == letter for letter, match in marked.items()):
        return {letter: match[2] for letter, match in marked.items()}
    return listed


def _without_gap(values: list, where: Iterable) -> list[str]:
    """Return the texts of options without the empty ones at the end (NaN is how tables of numbers
    say that there is none). Raises ValueError for an empty one before others: a number behind it
    would count another option."""
    texts = ["" if value is None or value != value else str(value) for value in values]
    while texts and not texts[-1]:
        texts.pop()
    if not all(texts):
        raise ValueError(f"got an empty option before others in {', '.join(map(str, where))}")
    return texts


def of_text(text: str, separator: str = "") -> object:
    """Return a list or table as JSON or Python writes it, else the parts between the declared
    separator, or |. Raises ValueError for what begins as a list and is none."""
    if separator or not text.startswith(("[", "{")):
        return [part.strip() for part in text.split(separator or "|")]
    for read in (json.loads, ast.literal_eval):  # as pandas writes lists into a table
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text)
    expected = "expected a list as JSON or Python writes it, or a | b | c"
    raise ValueError(f"got {shown(text, 60)}, {expected}")


def columns(names: Iterable[str]) -> list[str]:
    """Return the columns that are numbered from 0 or from 1 without a gap, or else called A, B and
    on, in the order of their options."""
    names = [name for name in names if isinstance(name, str)]
    lettered = []
    for letter in ascii_uppercase:
        if letter not in names:
            break
        lettered.append(letter)
    by_number = {int(match[1]): name for name in names if (match := NUMBERED.fullmatch(name))}
    numbers = sorted(by_number)
    is_counted = numbers[:1] in ([0], [1]) and numbers[-1] - numbers[0] == len(numbers) - 1
    if is_counted and len(numbers) > 1:
        return [by_number[number] for number in numbers]
    return lettered if len(lettered) > 1 else []


def in_columns(record: Mapping, answer: str) -> tuple[dict[str, str], str]:
    """Return what `of_columns` returns, of columns that are known by their names."""
    filled = [name for name, value in record.items() if value not in (None, "")]
    names = columns(filled)
    if names and names[0] == "A" and not all(isinstance(record[one], str) for one in names):
        return {}, answer
    return of_columns(record, names, answer)


def of_columns(record: Mapping, names: Sequence[str], answer: str) -> tuple[dict[str, str], str]:
    """Return the options in these columns of a record, and its answer: for the name of a column the
    letter that is meant. A question may have fewer options than there are columns: its last ones
    are empty then.

    Raises ValueError for a gap, and for a name that is the text of another option."""
    texts = _without_gap([record.get(name) for name in names], names)
    options = dict(zip(ascii_uppercase, texts, strict=False))
    meant = dict(zip(map(str.casefold, names), options, strict=False)).get(answer.casefold())
    if meant is None or names[0] == "A":
        return options, answer
    if answer in options.values() and options[meant] != answer:
        message = f"got the answer {answer!r}, the column of one option and the text of another"
        raise ValueError(f"{message}, expected its letter")
    return options, meant


# -- answers that choose one ---------------------------------------------------------------------


def letters(
    options: list[Mapping], answers: list[str], column: str, given: int | None, where: list[str]
) -> list[str]:
    """Return the answers of rows with their options, with the letter in the place of each number.

    `given` is what the numbers of the `column` count from, where that is declared. Else the whole
    file tells: only counted from 0 has it a 0, only counted from 1 the number of options. `where`
    names the rows. Answers that are no numbers stay, those that options are called by, and all
    where the numbers are texts of options. Raises Failure where a number may mean two options, or
    none."""
    numbers = {
        place: int(answers[place])
        for place, of_row in enumerate(options)
        if NUMBER.fullmatch(answers[place]) and of_row and answers[place] not in of_row
    }
    if not numbers:
        return answers
    begin = given
    if begin is None:
        texts = [place for place in numbers if answers[place] in map(str, options[place].values())]
        from_0 = [place for place, number in numbers.items() if number == 0]
        from_1 = [place for place, number in numbers.items() if number == len(options[place])]
        if len(texts) == len(numbers):
            return answers
        place, number = next(iter(numbers.items()))
        wrong = f"got {number}, which counts options from 0 or from 1: no row has a 0 or the last"
        if texts:
            place = texts[0]
            wrong = (
                f"got {answers[place]}, which is the text of an option and may be the number of "
                "another, as those of other rows are"
            )
        elif from_0 and from_1:
            place = from_1[0]
            wrong = (
                f"got {len(options[place])} beside as many options, "
                "in a column that counts from 0 elsewhere"
            )
        elif from_0 or from_1:
            wrong = ""
            begin = 0 if from_0 else 1
        if wrong:
            wrong += (
                f": --column answer_from_0={column} where 0 is the first option, "
                f"--column answer_from_1={column} where 1 is"
            )
            raise f.bad_input("BUILD-OPTIONS", where[place], wrong)
    lettered = list(answers)
    for place, number in numbers.items():
        of_row = list(options[place])
        if not 0 <= number - begin < len(of_row):
            last = len(of_row) + begin - 1
            message = f"got {number} beside {len(of_row)} options, expected {begin} to {last}"
            raise f.bad_input("BUILD-OPTIONS", where[place], message)
        lettered[place] = of_row[number - begin]
    return lettered


def written_into(question: str, options: dict, answer: object) -> tuple[str, object]:
    """Return (the question with its options, which it may list itself, the letter of the answer,
    which may be given as the text of an option, or as letter and text). Reasoning in <think> stays
    before it.

    Raises ValueError for an answer that is neither, or could mean two options; a number may count
    from 0 or from 1, and is no letter."""
    before, said = "", answer
    if isinstance(answer, str):
        _, said = thought_apart(answer)
        before = answer[: len(answer) - len(said)]
    letters_meant = meant(options, said)
    # A question lists an option itself as "A. text" or "(A) text".
    marks = [
        rf"(?<!\w){re.escape(letter)}\s*[.):]\s*{re.escape(str(text))}"
        for letter, text in options.items()
    ]
    if all(re.search(mark, question) for mark in marks):
        is_letter = (
            len(letters_meant) == 1 and _bare(said).casefold() == letters_meant[0].casefold()
        )
        chosen = letters_meant[0] if is_letter else said
    else:
        lines = [f"({letter}) {text}" for letter, text in options.items()]
        question = "\n".join([question, *lines, CHOOSE])
        if len(letters_meant) != 1:
            expected = f"expected one of {', '.join(options)} or the text of one option"
            raise ValueError(f"got the answer {said!r}, {expected}")
        chosen = letters_meant[0]
    return question, f"{before}{chosen}" if isinstance(answer, str) else chosen


def meant(options: dict, answer: object) -> list[str]:
    """Return the letters of the options that an answer can mean. A letter or text as the options
    have it means that one, whatever else differs from it in case alone; so does a letter with its
    text: "B. left", "(b) left"."""
    bare = _bare(answer)
    if bare in options:
        return [bare]
    folded = bare.casefold()
    texts = {letter: _bare(text) for letter, text in options.items()}
    named = [letter for letter in options if folded == letter.casefold()]
    exact = [letter for letter, text in texts.items() if bare == text]
    named += exact or [letter for letter, text in texts.items() if folded == text.casefold()]
    if named:
        return list(dict.fromkeys(named))
    marked = r"{}\s*[.):]\s*{}"
    return [
        letter
        for letter, text in texts.items()
        if re.fullmatch(marked.format(re.escape(letter), re.escape(text)), bare, re.I)
    ]


def _bare(text: object) -> str:
    return untagged(visible(str(text))).strip("(). \n")


def unoffered(question: str, answer: str) -> tuple[str, str] | None:
    """Return (id, message) of the finding about an answer that is none of the options its question
    offers."""
    if len(answer) > SHORT_ANSWER and "<think>" not in answer:
        return None
    if len(answer) == 1 and any(answer + mark in question for mark in ".):"):
        return None
    if question.isascii() and "*" not in question and not SECOND.search(question):
        return None
    from cosmos_reason import answers

    options = answers.options(question)
    if not options:
        return None
    final = answers.final_answer(answer)
    if not final or len(final) > SHORT_ANSWER or answers.normalise(answer, "mcq", question):
        return None
    message = f"got the answer {final!r}, which is none of the options {', '.join(options)}"
    if LETTER_ANSWER.fullmatch(final):
        return "DATA-ANSWER-OPTION", message
    # Several letters, a number, yes or no need not be one of the options.
    is_open = SEVERAL_LETTERS.fullmatch(final) or answers.question_type(question, answer) != "text"
    return None if is_open else ("DATA-ANSWER-UNLISTED", message)
