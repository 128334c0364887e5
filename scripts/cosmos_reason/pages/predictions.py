"""What a model answered about clips and images: one HTML file that opens offline, frames beside the
answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from cosmos_reason.pages.filmstrip import filmstrip
from cosmos_reason.pages.render import render
from cosmos_reason.pages.report import IMAGE_BUDGET, facts, model_name

SHOWN_MEDIA = 200


def page(rows: Sequence[dict], record: dict) -> str:
    """Return the page for the rows of predictions.json, of which those about one medium stand
    together; `record` is inference.json."""
    about = [(path, list(group)) for path, group in groupby(rows, itemgetter("media"))]
    failed = [row for row in rows if row["error"] is not None]
    cards = []  # a filmstrip of each medium while the budget lasts, with the rows about it
    budget = IMAGE_BUDGET
    for path, of_medium in about[:SHOWN_MEDIA]:
        image, caption = filmstrip(path) if budget > 0 else ("", "left out to keep this page small")
        budget -= len(image)
        cards.append({"path": path, "image": image, "caption": caption, "rows": of_medium})
    return render(
        "predictions.html.j2",
        name=model_name(record),
        facts=facts(record),
        answered=len(rows) - len(failed),
        failed=len(failed),
        cut=sum(row["is_cut"] for row in rows),
        media=len(about),
        cards=cards,
    )
