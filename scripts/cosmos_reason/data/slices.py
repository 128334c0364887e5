"""A split and the part of it that is wanted, as the datasets library writes them: train[:100],
train[10%:20%], test[-50:]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from cosmos_reason.base import findings as f

WRITTEN = re.compile(r"(?P<split>[^\[\]]*)\[(?P<first>(-?\d+%?)?):(?P<last>(-?\d+%?)?)\]")


@dataclass(frozen=True)
class Slice:
    """Rows `first` to before `last`: numbers or percents, negative ones from the end, "" an end."""

    first: str = ""
    last: str = ""

    def bounds(self, rows: int) -> range:
        first = _place(self.first, rows, 0)
        return range(first, max(first, _place(self.last, rows, rows)))


class Part(NamedTuple):
    """A split's name and which of its rows; None: all."""

    split: str
    rows: Slice | None


def parsed(written: str) -> Part:
    """Raises Failure for brackets that are no slice."""
    if "[" not in written and "]" not in written:
        return Part(written, None)
    match = WRITTEN.fullmatch(written)
    if match is None:
        message = f"got {written!r}, expected a split such as train, train[:100] or train[10%:20%]"
        raise f.bad_input("USAGE", "--hf-split", message)
    return Part(match["split"], Slice(match["first"], match["last"]))


def _place(written: str, rows: int, otherwise: int) -> int:
    if not written:
        return otherwise
    place = int(written.rstrip("%"))
    if written.endswith("%"):
        place = round(place * rows / 100)
    if place < 0:
        place += rows
    return min(max(place, 0), rows)
