"""Gaps: the questions a model gets wrong, why, how they cluster, and which data to collect next."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason import annotations, media, storage
from cosmos_reason import findings as f
from cosmos_reason.answers import CLOSED_TYPES
from cosmos_reason.json_stream import JsonRecords
from cosmos_reason.results import Row

ERROR_TYPES = ("false_positive", "false_negative", "wrong_class", "wrong_answer", "unparseable", "failed")
POSITIVE = {frozenset(("yes", "no")): "yes", frozenset(("ok", "ng")): "ng"}
EXAMPLES_PER_GAP = 10
LISTED = 20
_OPTIONS_START = re.compile(r"\n|(?<![A-Za-z0-9])\(?[Aa][.):]\s")
_DIGITS = re.compile(r"\d+")


@dataclass(slots=True)
class Gap:
    """One wrong row. `path` is the full media path, `cluster` the question without options and numbers."""

    row: Row
    path: str
    error_type: str
    confusion: str
    cluster: str
    clip_gaps: int
    clip_rows: int


def find(rows: Sequence[Row], paths: dict[str, str]) -> list[Gap]:
    """The wrong rows in order; `paths` maps a row's video_id to the file. Clips are counted by file: a record of an
    annotation file is often one question of several about its clip."""
    files = {row.video_id: paths.get(row.video_id) or row.media or row.video_id for row in rows}
    asked = Counter(files[row.video_id] for row in rows)
    wrong = [row for row in rows if not row.correct]
    missed = Counter(files[row.video_id] for row in wrong)
    clusters = {question: cluster(question) for question in {row.question for row in wrong}}
    gaps = []
    for row in wrong:
        path = files[row.video_id]
        facts = error_type(row), confusion(row), clusters[row.question], missed[path], asked[path]
        gaps.append(Gap(row, path, *facts))
    return gaps


def error_type(row: Row) -> str:
    """One of ERROR_TYPES. Yes and NG are the positive classes."""
    if row.outcome != "wrong":
        return row.outcome
    if row.type not in CLOSED_TYPES:
        return "wrong_answer"
    positive = POSITIVE.get(frozenset((row.expected, row.answer)))
    if positive is None:
        return "wrong_class"
    return "false_positive" if row.answer == positive else "false_negative"


def confusion(row: Row) -> str:
    """`expected -> given` for closed types, else empty."""
    if row.type not in CLOSED_TYPES or row.expected is None:
        return ""
    given = row.answer if row.outcome == "wrong" else f"({row.outcome})"
    return f"{row.expected} -> {given}"


def cluster(question: str) -> str:
    """What questions that differ only in options, numbers and case have in common."""
    stem = _OPTIONS_START.split(question.strip(), maxsplit=1)[0]
    return " ".join(_DIGITS.sub("#", stem.casefold()).split())[:120]


def media_paths(ann_path: Path, media_path: str, wanted: set[str]) -> tuple[dict[str, str], list[f.Finding]]:
    """video_id -> full media path for the ids `wanted`, from an annotation file; findings for those not in it."""
    paths, found = {}, []

    @functools.cache  # a clip has many questions
    def resolve(name: str) -> str:
        path = str(media.resolve("" if "://" in media_path else media_path, name))
        return f"{media_path.rstrip('/')}/{path}" if "://" in media_path and not path.startswith("/") else path

    for sample in annotations.stream(JsonRecords(ann_path), annotations.Tally()):
        if sample.id in wanted and sample.media:
            try:
                paths[sample.id] = resolve(sample.media[0].path)
            except f.Failure as failure:
                found += failure.findings
    if unknown := sorted(wanted - paths.keys()):
        message = f"got {len(unknown)} video_id(s) that the annotations do not map to a medium, expected all of them"
        data = {"record_ids": unknown[: f.MAX_RECORD_IDS], "count": len(unknown)}
        fix = "--kpi-ann-path with the annotations that were evaluated"
        found.append(f.Finding("EVAL-VIDEO-UNKNOWN", f.ERROR, f"{ann_path}#{unknown[0]}", message, fix, data))
    return paths, found


def summary(rows: Sequence[Row], gaps: Sequence[Gap]) -> dict:
    """What a person decides on: how many gaps of which kind and where, and the data to collect next."""
    asked = Counter()
    for question, count in Counter(row.question for row in rows).items():
        asked[cluster(question)] += count
    clusters = Counter(gap.cluster for gap in gaps)
    kinds = Counter(gap.error_type for gap in gaps)
    clips = Counter({gap.path: gap.clip_gaps for gap in gaps})
    clip_rows = {gap.path: gap.clip_rows for gap in gaps}
    pairs = Counter((gap.row.type, gap.confusion) for gap in gaps if gap.confusion)
    return {
        "rows": len(rows),
        "gaps": len(gaps),
        "error_types": {kind: kinds[kind] for kind in ERROR_TYPES if kinds[kind]},
        "confusions": [{"type": kind, "pair": pair, "gaps": n} for (kind, pair), n in pairs.most_common(LISTED)],
        "clusters": [{"question": name, "gaps": n, "rows": asked[name]} for name, n in clusters.most_common(LISTED)],
        "clips": [{"video_id": path, "gaps": n, "rows": clip_rows[path]} for path, n in clips.most_common(LISTED)],
        "next_data": next_data(rows),
    }


def next_data(rows: Iterable[Row]) -> list[dict]:
    """Classes of closed questions worth more examples, worst first: EXAMPLES_PER_GAP new ones per wrong answer.

    Unparseable and failed rows ask for a better prompt or readable media, not for more clips of a class."""
    asked, wrong = Counter(), Counter()
    for row in rows:
        if row.type in CLOSED_TYPES and row.expected is not None:
            asked[row.type, row.expected] += 1
            wrong[row.type, row.expected] += row.outcome == "wrong"
    return [
        {"type": kind, "class": label, "rows": asked[kind, label], "gaps": n, "collect": n * EXAMPLES_PER_GAP}
        for (kind, label), n in wrong.most_common(LISTED)
        if n
    ]


def write_parquet(path: Path, gaps: Sequence[Gap]) -> None:
    """One line per gap; the first three columns are the ones a data-collection round reads."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {
        "video_id": [gap.path for gap in gaps],
        "question": [gap.row.question for gap in gaps],
        "ground_truth": [gap.row.gt for gap in gaps],
        "id": [gap.row.id for gap in gaps],
        "annotation_id": [gap.row.video_id for gap in gaps],
        "type": [gap.row.type for gap in gaps],
        "error_type": [gap.error_type for gap in gaps],
        "response": [gap.row.response for gap in gaps],
        "answer": [gap.row.answer for gap in gaps],
        "error": [gap.row.error for gap in gaps],
        "confusion": [gap.confusion for gap in gaps],
        "cluster": [gap.cluster for gap in gaps],
    }
    counts = {"clip_gaps": [gap.clip_gaps for gap in gaps], "clip_rows": [gap.clip_rows for gap in gaps]}
    table = pa.table(
        {name: pa.array(values, pa.string()) for name, values in columns.items()}
        | {name: pa.array(values, pa.int64()) for name, values in counts.items()}
    )
    with storage.whole_file(path, "wb") as handle:
        parquet.write_table(table, handle)
