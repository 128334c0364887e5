"""Options that stand beside the questions of other evaluators' rows: they belong into the question,
and a ground truth that is the number or the text of one is its letter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from cosmos_reason import answers
from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.data import options as choices
from cosmos_reason.data.published_sets import COUNTED_FROM_0

KEYS = frozenset(choices.OPTIONS)


class Offered:
    """The options of rows, by the number of the row."""

    def __init__(self):
        self.by_row: dict[int, dict[str, object]] = {}
        self.column = "gt"  # what the ground truths are called
        self._in_columns: bool | None = None  # whether a first record has options in its columns

    def take(self, number: int, record: Mapping, listed_in: str = "") -> None:
        """Note the options of a record, or of the document in it, or those that the question
        `listed_in` lists."""
        document = record.get("doc")
        if self._in_columns is False and not (document or listed_in) and KEYS.isdisjoint(record):
            return  # as of a million rows
        found = _options(record)
        if not found and isinstance(document, dict):
            found = _options(document)
        if not found and self._in_columns is not False:
            found, _ = choices.in_columns(record, "")
            self._in_columns = bool(found)
        if not found and listed_in:
            found = answers.options(listed_in)
        if not found:
            return
        self.by_row[number] = found
        for keys in (record, document if isinstance(document, dict) else {}):
            for name in COUNTED_FROM_0:
                if name in keys:
                    self.column = name

    def put_into(self, rows: list) -> list[Finding]:
        """Write the options into the questions of the rows, and letters as their ground truths;
        what there is to say of numbers that may mean two options."""
        numbers = [number for number in self.by_row if rows[number].gt]
        options = [self.by_row[number] for number in numbers]
        truths = [rows[number].gt for number in numbers]
        responses = [(rows[number].response or "").strip() for number in numbers]
        if any(map(choices.NUMBER.fullmatch, responses)):  # a number was asked for
            return []
        found = []
        try:
            begin = 0 if self.column in COUNTED_FROM_0 else None
            truths = choices.letters(
                options, truths, self.column, begin, [rows[number].id for number in numbers]
            )
        except Failure as failure:
            message = (
                failure.findings[0].message + "; they are read as they are. Write the letters "
            )
            message += "of the options as ground truths"
            found.append(findings.error("EVAL-GT-NUMBER", self.column, message))
        for number, truth in zip(numbers, truths, strict=True):
            row = rows[number]
            with contextlib.suppress(ValueError):  # an answer that is none of them
                row.question, row.gt = choices.written_into(
                    row.question, self.by_row[number], truth
                )
        return found


def _options(record: Mapping) -> dict[str, object]:
    """Return {"A": text} of a record; {} without options, or with some that cannot be read."""
    if not KEYS & record.keys():
        return {}
    for name in choices.OPTIONS:
        value = record.get(name)
        with contextlib.suppress(ValueError):
            if isinstance(value, str) and value.startswith(("[", "{")):
                value = choices.of_text(value)
            found = choices.of_value(value)
            if found:
                return found
    return {}
