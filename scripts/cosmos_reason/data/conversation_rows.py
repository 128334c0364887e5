"""Rows that are turns of one conversation, as one record of several questions."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from cosmos_reason.base import findings as f
from cosmos_reason.data.items import Item, Row, by_row
from cosmos_reason.data.roles import cell_text


def joined(made: list[tuple[Item, Row]], column: str, problems: list[f.Finding]) -> list[Item]:
    """Return one item of each id (the role `id`), whose turns follow the numbers in `column`; what
    cannot be joined is an error among the `problems`. Media are shown once, in order."""
    of_id: dict[str, list[tuple[float, Item, Row]]] = defaultdict(list)
    wrong: list[tuple[Row, str]] = []
    for item, row in made:
        try:
            number = float(cell_text(row.values.get(column)))
        except ValueError:
            number = float("nan")
        if number != number:
            told = f"got {cell_text(row.values.get(column))!r} in {column}, expected a number"
            wrong.append((row, told))
            continue
        of_id[item.name].append((number, item, row))
    whole = []
    for rows in of_id.values():
        rows.sort(key=lambda one: one[0])
        _, first, _ = rows[0]
        _, last, _ = rows[-1]
        for (before, *_), (number, item, row) in pairwise(rows):
            if number == before:
                wrong.append((row, f"got turn {number:g} of {item.name} again, expected it once"))
            if item.split != first.split:
                told = f"got the split {item.split!r} for a turn of one in {first.split!r}"
                wrong.append((row, told))
        for _, item, row in rows[:-1]:
            if item.reasoning:
                told = "got reasoning of an earlier turn, expected it beside the last answer only"
                wrong.append((row, told))
        media = dict.fromkeys(medium for _, item, _ in rows for medium in item.media)
        groups = dict.fromkeys(group for _, item, _ in rows for group in item.groups)
        turns = [turn for _, item, _ in rows for turn in item.turns]
        joined_item = first._replace(media=tuple(media), turns=tuple(turns), groups=tuple(groups))
        whole.append(joined_item._replace(reasoning=last.reasoning))
    if wrong:
        problems.append(by_row("BUILD-TURN", f.ERROR, wrong))
    return whole
