"""Gaps: the questions a model gets wrong, why, how they cluster, and which data to collect next."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cosmos_reason import annotations, media, s3
from cosmos_reason import findings as f
from cosmos_reason.answers import CLOSED_TYPES
from cosmos_reason.json_stream import JsonRecords
from cosmos_reason.results import Row, about

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
    gaps = []
    for row in wrong:
        path = files[row.video_id]
        facts = error_type(row), confusion(row), cluster(row.question), missed[path], asked[path]
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


@functools.lru_cache(maxsize=1 << 18)
def cluster(question: str) -> str:
    """What questions that differ only in options, numbers and case have in common."""
    stem = _OPTIONS_START.split(question.strip(), maxsplit=1)[0]
    return " ".join(_DIGITS.sub("#", stem.casefold()).split())[:120]


def media_paths(ann_path: Path, media_path: str, wanted: set[str]) -> tuple[dict[str, str], list[f.Finding]]:
    """video_id -> full media path for the ids `wanted`, from an annotation file; findings for those not in it, and for
    media that are not there. Raises Failure when `media_path` is no folder, or a prefix without an object."""
    remote = s3.is_uri(media_path)
    there = next(s3.objects(media_path), None) if remote else not media_path or Path(media_path).is_dir()
    if not there:
        message = f"got {'a prefix without an object' if remote else 'no such folder'}, expected that of the clips"
        raise f.bad_input("EVAL-MEDIA-PATH", media_path, message)
    paths, missing, outside = {}, [], []

    @functools.cache  # a clip has many questions
    def resolve(name: str) -> tuple[str, bool]:
        if remote or s3.is_uri(name):
            return name if s3.is_uri(name) else s3.join(media_path, str(media.resolve("", name))), True
        path = media.resolve(media_path, name)
        return str(path), path.is_file()

    records = JsonRecords(annotations.locate(ann_path))
    for name, shown in annotations.stream(records, annotations.Tally(), make=annotations.id_and_media):
        if name in wanted and shown:
            try:
                paths[name], is_there = resolve(shown[0].path)
                missing += [] if is_there else [name]
            except f.Failure:
                outside.append(name)
    message = "record(s) whose medium is named outside of the media path"
    found = about(outside, "DATA-MEDIA-ESCAPE", f.ERROR, ann_path, message, "write names below the media path")
    unknown, message = sorted(wanted - paths.keys()), "video_id(s) that the annotations do not map to a medium"
    fix = "--kpi-ann-path with the annotations that were evaluated"
    found += about(unknown, "EVAL-VIDEO-UNKNOWN", f.ERROR, ann_path, message, fix)
    example = paths.get(next(iter(missing), ""))
    message = f"record(s) whose medium is not there, such as {example}; they stay in the table"
    fix = "--kpi-media-path with the folder that the annotations' names are relative to"
    return paths, found + about(missing, "EVAL-MEDIA-MISSING", f.WARNING, ann_path, message, fix)


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
    worst = ((*pair, asked[pair], n) for pair, n in wrong.most_common(LISTED) if n)
    return [{"type": kind, "class": label, "rows": rows, "gaps": n, "collect": n * EXAMPLES_PER_GAP}
            for kind, label, rows, n in worst]  # fmt: skip


def write_parquet(handle: BinaryIO, gaps: Sequence[Gap]) -> None:
    """One line per gap; the first three columns are the ones a data-collection round reads."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"question": "question", "ground_truth": "gt", "id": "id", "annotation_id": "video_id"}
    columns |= {name: name for name in ("type", "response", "answer", "error")}
    texts = {"video_id": [gap.path for gap in gaps]}
    texts |= {name: [getattr(gap.row, field) for gap in gaps] for name, field in columns.items()}
    texts |= {name: [getattr(gap, name) for gap in gaps] for name in ("error_type", "confusion", "cluster")}
    counts = {name: [getattr(gap, name) for gap in gaps] for name in ("clip_gaps", "clip_rows")}
    columns = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    columns |= {name: pa.array(values, pa.int64()) for name, values in counts.items()}
    parquet.write_table(pa.table(columns), handle)
