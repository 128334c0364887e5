"""The report of an evaluation: one HTML file that opens offline, with everything it shows inside
it."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from cosmos_reason import answers
from cosmos_reason.evaluation import guard, likelihood, metrics
from cosmos_reason.evaluation.evaluation_record import cut_answers
from cosmos_reason.evaluation.gaps import Gap
from cosmos_reason.evaluation.guard import Guard
from cosmos_reason.evaluation.rows import Row
from cosmos_reason.pages.filmstrip import filmstrip
from cosmos_reason.pages.loss_chart import ACCURACIES, Curve, chart
from cosmos_reason.pages.render import TEMPLATES, render, shortened

CARDS = 48
IMAGE_BUDGET = 3_500_000  # characters of base64; the page as a whole stays below 5 MB
MATRIX_LABELS = 20
QUESTIONS_MIXED = 6
PARTS_LISTED = 20
LISTED = 500
# What evaluation.json says about what was asked, in the order a reader wants it.
FACTS = {
    "model": "Model",
    "checkpoint": "Checkpoint",
    "base_model": "Base model",
    "annotations": "Annotations",
    "vision": "Frames and pixels",
    "prompt": "Prompt",
    "sampling": "Sampling",
    "hardware": "Answered by",
}


def page(
    rows: Sequence[Row],
    wrong: Sequence[Gap],
    summary: dict,
    record: dict,
    before: Sequence[Row] | None = None,
    pair: dict | None = None,
    curves: Sequence[Curve] = (),
    general: Guard | None = None,
    remarks: Sequence[str] = (),
) -> tuple[str, int]:
    """Return the page for graded `rows`, and how many gaps it shows as clips: `summary` is
    gaps.summary, `record` evaluation.json, `before` the rows of an earlier run that these pair
    with, `pair` comparison.compare, `curves` what loss_chart.read_curve read, `general` the
    questions that were asked besides, `remarks` what training_remarks.beside found."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    shown = cards(wrong, before or ())
    weighed = likelihood.measure(rows)
    whole, types = metrics.summaries(rows)
    tables = metrics.confusions(rows)
    text = render(
        "report.html.j2",
        with_option=with_option,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        name=model_name(record),
        asked_on=shortened(record.get("annotations"), 200),
        facts=facts(record),
        all=whole,
        cut=cut_answers(rows, record),
        pair=pair,
        types=type_table(types, tables, pair),
        parts=parts_table(rows, before or (), pair),
        forms=metrics.per_form(rows),
        guard=general
        and {
            "told": guard.figures(general.to_json()),
            "types": type_table(
                metrics.summaries(general.rows)[1], metrics.confusions(general.rows), general.pair
            ),
            "pair": general.pair,
            "is_forgotten": bool(general.pair) and guard.is_forgotten(general.pair),
        },
        matrices=matrices(tables),
        chart=chart(curves),
        answers_chart=chart(curves, ACCURACIES),
        weighed=weighed,
        reliability=reliability(weighed),
        same_thought=metrics.template_reasoning(rows),
        remarks=[shortened(remark, 500) for remark in remarks],
        summary=summary,
        cards=shown,
        listed=[gap.row for gap in wrong[:LISTED]],
    )
    return text, len(shown)


def reliability(weighed: dict | None) -> dict | None:
    """Return the lines and ticks of the reliability plot (pages/loss_chart.py): how often the
    likeliest answer is right over how likely it is, and the diagonal of one that is calibrated."""
    if weighed is None:
        return None
    points = [
        (100 * line["confidence"], 100 - 100 * line["accuracy"]) for line in weighed["reliability"]
    ]
    ends = [(0, "0%"), (50, "50%"), (100, "100%")]
    return {
        "lines": [
            {"key": "train/loss", "points": [(0, 100), (100, 0)]},
            {"key": "reliability", "points": points},
        ],
        "x": ends,
        "y": [(100 - place, label) for place, label in ends],
    }


def model_name(record: dict) -> str:
    """Return the last parts of the model's path or name: what tells one checkpoint of a run from
    another."""
    name = record.get("checkpoint") or record.get("model") or "an unnamed model"
    return "/".join(part for part in name.split("/")[-3:] if part != "safetensors")


def facts(record: dict) -> list[tuple[str, str]]:
    """Return (title, text) of what was evaluated, as far as the record tells."""
    lines = []
    for key, title in FACTS.items():
        value = record.get(key)
        if not value:
            continue
        if isinstance(value, dict):
            stated = [item for item in value.items() if item[1] not in (None, "", [], {})]
            value = ", ".join(f"{name} {part}" for name, part in stated)
        lines.append((title, shortened(str(value), 500)))
    return lines


def type_table(types: dict[str, dict], tables: dict[str, dict], pair: dict | None) -> list[dict]:
    """Return one line per question type, the commonest first: the summary now (`types`, with the
    `tables` of metrics.confusions), before for the same questions, and the verdict on what
    changed."""
    lines = []
    for kind, now in sorted(types.items(), key=lambda one: -one[1]["rows"]):
        lines.append(
            {
                "type": kind,
                "now": now | metrics.macro(tables[kind].values()),
                "before": pair["earlier_per_type"].get(kind) if pair else None,
                "change": pair.get("per_type", {}).get(kind) if pair else None,
            }
        )
    return lines


def parts_table(
    rows: Sequence[Row], before: Sequence[Row], pair: dict | None
) -> dict[str, list[dict]]:
    """Return {tag, group -> lines of the PARTS_LISTED largest ones}, as `type_table` has them;
    without those that no row has."""
    earlier = {row.id: row for row in before}
    tables = {}
    for kind in ("tag", "group"):
        by_name = defaultdict(list)
        for row in rows:
            for name in getattr(row, f"{kind}s"):
                by_name[name].append(row)
        lines = []
        largest = sorted(by_name, key=lambda name: (-len(by_name[name]), name))
        for name in largest[:PARTS_LISTED]:
            asked = by_name[name]
            by_type = metrics.confusions(asked).values()
            now = metrics.summary(asked)
            now |= metrics.macro(counts for table in by_type for counts in table.values())
            found = [earlier.get(row.id) for row in asked]
            old = [row for row in found if row]
            change = pair[f"per_{kind}"].get(name) if pair else None
            line = {"type": name, "now": now, "change": change}
            lines.append(line | {"before": metrics.summary(old) if old else None})
        if lines:
            tables[kind] = lines
    return tables


def matrices(tables: dict[str, dict]) -> list[dict]:
    """Return a confusion matrix per closed type that was asked; of choices one for each of the
    QUESTIONS_MIXED questions asked most often, by the texts of its options: a letter means another
    thing in another question."""
    shown = []
    for kind in answers.CLOSED_TYPES:
        by_question = tables[kind]
        often = sorted(by_question, key=lambda one: by_question[one].total(), reverse=True)
        for question in often[:QUESTIONS_MIXED]:
            more = {"question": question, "questions": len(by_question)}
            shown.append({"type": kind, **more, **_matrix(by_question[question])})
    return shown


def _matrix(counts: dict[tuple[str, str], int]) -> dict:
    """Return columns and lines of the MATRIX_LABELS commonest expected classes, and how many there
    are; where there is room, columns of what was only given, too."""
    classes = metrics.per_class(counts)
    commonest = sorted(classes, key=lambda label: classes[label]["support"], reverse=True)
    labels = sorted(commonest[:MATRIX_LABELS])
    given = metrics.matrix(counts)["labels"]
    no_answers = (metrics.UNPARSEABLE, metrics.FAILED)
    never_right = [label for label in given if label not in (*classes, *no_answers)]
    shown = {*labels, *never_right[: MATRIX_LABELS - len(labels)], *no_answers}
    columns = [label for label in given if label in shown]
    lines = []
    for label in labels:
        support = classes[label]["support"]
        cells = []
        for given in columns:
            count = counts[label, given]
            cells.append({"given": given, "n": count, "share": count / support})
        lines.append({"label": label, "cells": cells, **classes[label]})
    return {"columns": columns, "lines": lines, "classes": len(classes)}


def sample(wrong: Sequence[Gap]) -> list[Gap]:
    """Return at most CARDS gaps, taken in turn from every error type and confusion, the most
    frequent ones first."""
    groups = defaultdict(list)
    for gap in wrong:
        groups[gap.row.type, gap.error_type, gap.confusion].append(gap)
    largest_first = sorted(groups.values(), key=len, reverse=True)
    drawn = []
    for turn in zip_longest(*[group[:CARDS] for group in largest_first]):
        drawn += [gap for gap in turn if gap is not None]
    return drawn[:CARDS]


def cards(wrong: Sequence[Gap], before: Sequence[Row]) -> list[dict]:
    """Return what the page shows of the sampled gaps: the row, a filmstrip while IMAGE_BUDGET
    lasts, the earlier answer."""
    earlier_rows = {row.id: row for row in before}
    strips: dict[str, tuple[str, str]] = {}
    budget = IMAGE_BUDGET
    shown = []
    for gap in sample(wrong):
        row = gap.row
        if gap.path not in strips:
            strips[gap.path] = filmstrip(gap.path)
        image, caption = strips[gap.path]
        if len(image) > budget:
            image, caption = "", "left out to keep this page small"
        budget -= len(image)
        earlier = earlier_rows.get(row.id)
        status = ""
        if earlier and earlier.error is None and row.error is None:  # else it is no answer
            status = "broken" if earlier.correct else "still"
        card = {
            "gap": gap,
            "row": row,
            "image": image,
            "caption": caption,
            "earlier": earlier,
            "status": status,
        }
        shown.append(card)
    return shown


def with_option(text: str | None, row: Row) -> str | None:
    """Return a bare letter with the option it stands for: `B · turn right`."""
    if not text or row.type != "mcq":
        return text
    option = answers.options(row.question).get(text.strip("() ."))
    return f"{text} · {option}" if option else text
