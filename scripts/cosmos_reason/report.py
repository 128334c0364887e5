"""The report of an evaluation: one HTML file that opens offline, with everything it shows inside it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path

from cosmos_reason import answers, media, s3, storage
from cosmos_reason import metrics as m
from cosmos_reason.findings import Failure, bad_input
from cosmos_reason.gaps import Gap
from cosmos_reason.results import Row, cut_answers

HERE = Path(__file__).parent
CARDS, STRIP_FRAMES, STRIP_HEIGHT = 48, 4, 132
IMAGE_BUDGET = 3_500_000  # characters of base64; the page as a whole stays below 5 MB
CLIP_PIXELS = 600_000_000  # decoded per clip at most, about 290 frames of 1920x1080; longer ones show their beginning
CURVE_POINTS, MATRIX_LABELS, SHOWN = 240, 20, 1200
TYPE_NAMES = {"mcq": "Multiple choice", "yes_no": "Yes or no", "direction": "Direction", "label": "Label"}
TYPE_NAMES |= {"number": "Number", "text": "Free text"}
# what evaluation.json says about what was asked, in the order a reader wants it
FACTS = {"model": "Model", "checkpoint": "Checkpoint", "base_model": "Base model", "annotations": "Annotations"}
FACTS |= {"vision": "Frames and pixels", "prompt": "Prompt", "sampling": "Sampling", "hardware": "Answered by"}


def page(
    rows: Sequence[Row],
    gaps: Sequence[Gap],
    summary: dict,
    record: dict,
    before: Sequence[Row] | None = None,
    pair: dict | None = None,
    curves: Sequence[dict] = (),
) -> tuple[str, int]:
    """The page for judged `rows`, and how many gaps it shows as clips: `summary` is gaps.summary, `record`
    evaluation.json, `before` an earlier run's judged rows, `pair` metrics.compare, `curves` what read_curve read."""
    import jinja2

    loader = jinja2.FileSystemLoader(HERE)
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    pages.filters |= {"pct": "{:.1%}".format, "count": "{:,}".format, "clip": shortened, "option": with_option}
    script = (HERE / "report.js").read_text(encoding="utf-8")
    shown = cards(gaps, {(row.id, row.question, row.gt): row for row in before or ()})
    text = pages.get_template("report.html.j2").render(
        style=(HERE / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        name=model_name(record),
        asked_on=shortened(record.get("annotations"), 200),
        facts=[(title, shortened(_as_words(record[key]), 500)) for key, title in FACTS.items() if record.get(key)],
        all=m.summary(rows),
        cut=cut_answers(rows, record),
        pair=pair,
        types=type_table(rows, pair),
        matrices=matrices(rows),
        chart=chart(curves),
        summary=summary,
        cards=shown,
        type_names=TYPE_NAMES,
    )
    return text, len(shown)


def shortened(text: str | None, limit: int = SHOWN) -> str:
    return text if text is None or len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def model_name(record: dict) -> str:
    """The last two parts of the model's path or name: what tells one checkpoint of a run from another."""
    name = record.get("checkpoint") or record.get("model") or "an unnamed model"
    return "/".join(part for part in name.split("/")[-3:] if part != "safetensors")


def _as_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if part not in (None, "", [], {}))
    return str(value)


def type_table(rows: Sequence[Row], pair: dict | None) -> list[dict]:
    """One line per question type: the summary now, and before for the same questions."""
    now, then = defaultdict(list), pair["earlier_per_type"] if pair else {}
    for row in rows:
        now[row.type].append(row)
    return [
        {"type": kind, "now": m.summary(group), "before": then.get(kind)}
        for kind, group in sorted(now.items(), key=lambda item: -len(item[1]))
    ]


def matrices(rows: Sequence[Row]) -> list[dict]:
    """A confusion matrix per closed type, of the MATRIX_LABELS commonest expected classes when there are more."""
    tables = []
    for kind in answers.CLOSED_TYPES:
        counts = m.confusion(row for row in rows if row.type == kind)
        support = m.per_class(counts)
        kept = sorted(sorted(support, key=lambda label: -support[label]["support"])[:MATRIX_LABELS])
        if not kept:
            continue
        columns = [label for label in m.matrix(counts)["labels"] if label in kept or label in (m.UNPARSEABLE, m.FAILED)]
        lines = []
        for label in kept:
            cells = [{"given": c, "n": counts[label, c], "share": counts[label, c] / support[label]["support"]}
                     for c in columns]  # fmt: skip
            lines.append({"label": label, "cells": cells, **support[label]})
        tables.append({"type": kind, "columns": columns, "lines": lines, "classes": len(support)})
    return tables


def read_curve(path: Path) -> dict[str, list[tuple[float, float]]]:
    """(step, loss) points of a metrics.jsonl; its last line may still be being written."""
    points = {"train/loss": [], "val/avg_loss": []}
    lines = storage.read_text(path).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            for key in points.keys() & entry.keys():
                points[key].append((float(entry["step"]), float(entry[key])))
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            if number < len(lines):
                message = f"got {type(problem).__name__} {problem}, expected an object with step and losses"
                raise bad_input("EVAL-CURVE-LINE", f"{path}#{number}", message) from None
    return {key: [p for p in values if math.isfinite(p[0]) and math.isfinite(p[1])] for key, values in points.items()}


def chart(curves: Sequence[dict]) -> dict | None:
    """Lines and ticks of the loss chart in a 100 x 100 box, y downwards from the highest loss; None without points."""
    drawn = [(key, thinned(points), points[-1][1]) for curve in curves for key, points in curve.items() if points]
    if not drawn:
        return None
    last = max(step for _, points, _ in drawn for step, _ in points) or 1.0
    top = max(loss for _, points, _ in drawn for _, loss in points) or 1.0

    def place(step: float, loss: float) -> tuple[float, float]:
        return round(100 * step / last, 2), round(100 - 100 * loss / top, 2)

    lines = [{"key": key, "points": [place(*point) for point in points], "end": end} for key, points, end in drawn]
    return {
        "lines": lines,
        "x": [(place(value, 0)[0], f"{value:g}") for value in ticks(last)],
        "y": [(place(0, value)[1], f"{value:g}") for value in ticks(top)],
        "steps": f"{last:g}",
    }


def ticks(highest: float) -> list[float]:
    """Round values from 0, about four steps of 1, 2 or 5 times a power of ten, the last one not above `highest`."""
    power = 10 ** math.floor(math.log10(highest / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= highest / 5)
    return [step * n for n in range(math.floor(highest / step * (1 + 1e-9)) + 1)]


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most CURVE_POINTS points: means of neighbours."""
    size = math.ceil(len(points) / CURVE_POINTS)
    groups = (points[first : first + size] for first in range(0, len(points), size))
    return [tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in groups]


def sample(gaps: Sequence[Gap]) -> list[Gap]:
    """At most CARDS gaps, taken in turn from every error type and confusion, the most frequent ones first."""
    groups = defaultdict(list)
    for gap in gaps:
        groups[gap.row.type, gap.error_type, gap.confusion].append(gap)
    largest_first = sorted(groups.values(), key=len, reverse=True)
    turns = chain.from_iterable(zip_longest(*(group[:CARDS] for group in largest_first)))
    return [gap for gap in turns if gap is not None][:CARDS]


def cards(gaps: Sequence[Gap], before: dict[tuple[str, str, str], Row]) -> list[dict]:
    """What the page shows of the sampled gaps: the row, a filmstrip while IMAGE_BUDGET lasts, the earlier answer."""
    budget, made = IMAGE_BUDGET, []
    strips: dict[str, tuple[str, str]] = {}
    for gap in sample(gaps):
        if gap.path not in strips:
            strips[gap.path] = filmstrip(gap.path)
        image, caption = strips[gap.path]
        if len(image) > budget:
            image, caption = "", "left out to keep this page small"
        budget -= len(image)
        earlier = before.get((gap.row.id, gap.row.question, gap.row.gt))
        status = "" if earlier is None else "broken" if earlier.correct else "still"
        shown = {"image": image, "caption": caption, "earlier": earlier, "status": status}
        made.append({"gap": gap, "row": gap.row, **shown})
    return made


def with_option(text: str | None, row: Row) -> str | None:
    """A bare letter with the option it stands for: `B · turn right`."""
    option = answers.options(row.question).get(text.strip("() .")) if text and row.type == "mcq" else None
    return f"{text} · {option}" if option else text


def filmstrip(path: str) -> tuple[str, str]:
    """(data URI of STRIP_FRAMES frames side by side, when they are); ("", why not) for what cannot be decoded."""
    import numpy as np
    from PIL import Image

    try:
        path = s3.local(path) if s3.is_uri(path) else path
        probed = media.probe(path)
        if probed.kind == "image":
            frames, caption = media.read_image(path)[None], "still image"
        else:
            reach = max(1, min(probed.frames, CLIP_PIXELS // (probed.width * probed.height)))
            indices = sorted({int(reach * (n + 0.5) / STRIP_FRAMES) for n in range(STRIP_FRAMES)})
            frames = media.decode_frames(path, indices)
            caption = "frames at " + ", ".join(f"{index / probed.fps:.1f}" for index in indices) + " s"
    except Failure as failure:
        return "", failure.findings[0].message
    height = min(STRIP_HEIGHT, frames.shape[1])
    width = max(1, round(frames.shape[2] * height / frames.shape[1]))
    frames = media.resize(frames, height, min(width, 4 * STRIP_HEIGHT))
    gap = math.ceil(height / 66)
    framed = np.pad(frames, ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=160)
    strip = Image.fromarray(np.concatenate(list(framed), axis=1)[:, :-gap])
    buffer = io.BytesIO()
    strip.save(buffer, "JPEG", quality=76)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode(), caption
