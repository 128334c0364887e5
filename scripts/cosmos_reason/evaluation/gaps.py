"""Gaps: the questions a model gets wrong, why, how they cluster, and which data to collect next."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cosmos_reason.answers import CLOSED_TYPES
from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.data import annotations, record_tables
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.records import id_and_media
from cosmos_reason.evaluation.metrics import NO_ANSWERS, cluster, confusions, named
from cosmos_reason.evaluation.rows import Row, about
from cosmos_reason.media import archives
from cosmos_reason.media import files as media
from cosmos_reason.remote import s3

ERROR_TYPES = (
    "false_positive", "false_negative", "wrong_class", "wrong_answer", "unparseable", "failed",
)  # fmt: skip
POSITIVE = {frozenset(("yes", "no")): "yes", frozenset(("ok", "ng")): "ng"}
EXAMPLES_PER_GAP = 10
LISTED = 20
# column of the table -> field of a row, or of a gap
ROW_COLUMNS = {
    "question": "question",
    "ground_truth": "gt",
    "id": "id",
    "annotation_id": "video_id",
    "type": "type",
    "response": "response",
    "answer": "answer",
    "rule": "rule",
    "error": "error",
}
GAP_COLUMNS = ("error_type", "confusion", "cluster", "before")
COUNT_COLUMNS = ("clip_gaps", "clip_rows")
LIST_COLUMNS = ("tags", "groups")


@dataclass(slots=True)
class Gap:
    """One wrong row. `path` is the full media path, `cluster` the question without options and
    numbers, `before` what became of the same question in the earlier run (Row.outcome): "right"
    is one that the second run broke."""

    row: Row
    path: str
    error_type: str
    confusion: str
    cluster: str
    clip_gaps: int
    clip_rows: int
    before: str | None = None


def find(
    rows: Sequence[Row], paths: dict[str, str], before: Sequence[Row] | None = None
) -> list[Gap]:
    """Return the wrong rows in order; `paths` maps a row's video_id to the file, `before` are the
    rows of an earlier run that these pair with. Clips are counted
    by file: a record of an annotation file is often one question of several about its clip."""
    # Rows of a record without a path share the medium that the last of them names.
    given = {row.video_id: row.media for row in rows if row.video_id not in paths}
    path_of = [paths.get(row.video_id) or given.get(row.video_id) or row.video_id for row in rows]
    clip_rows = Counter(path_of)
    wrong = [(row, path) for row, path in zip(rows, path_of, strict=True) if not row.correct]
    clip_gaps = Counter(path for _, path in wrong)
    earlier = {row.id: row.outcome for row in before or ()}
    gaps = []
    for row, path in wrong:
        gap = Gap(
            row,
            path,
            error_type(row),
            confusion(row),
            cluster(row.question),
            clip_gaps[path],
            clip_rows[path],
            earlier.get(row.id),
        )
        gaps.append(gap)
    return gaps


def error_type(row: Row) -> str:
    """Return one of ERROR_TYPES. Yes and NG are the positive classes."""
    if row.outcome != "wrong":
        return row.outcome
    if row.type not in CLOSED_TYPES:
        return "wrong_answer"
    positive = POSITIVE.get(frozenset((row.expected, row.answer)))
    if positive is None:
        return "wrong_class"
    return "false_positive" if row.answer == positive else "false_negative"


def confusion(row: Row) -> str:
    """Return `expected -> given` for closed types, else empty."""
    if row.type not in CLOSED_TYPES or row.expected is None:
        return ""
    if row.outcome != "wrong":
        return f"{named(row, row.expected)} -> ({row.outcome})"
    return f"{named(row, row.expected)} -> {named(row, row.answer)}"


def media_paths(
    annotation_path: Path, media_path: str, wanted: Iterable[str]
) -> tuple[dict[str, str], list[Finding]]:
    """Return video_id -> full media path for the ids `wanted`, from an annotation file; findings
    for those not in it, and for media that are not there. An archive is unpacked. Raises Failure
    when `media_path` is no archive or folder, or a prefix without an object."""
    media_path = archives.media_folder(media_path)
    # Without a media path the annotations hold whole paths.
    if s3.is_uri(media_path):
        if next(s3.objects(media_path), None) is None:
            message = "the prefix holds no object; name that of the clips"
            raise findings.bad_input("EVAL-MEDIA-PATH", media_path, message)
    elif media_path and not Path(media_path).is_dir():
        message = "there is no such folder; name that of the clips"
        raise findings.bad_input("EVAL-MEDIA-PATH", media_path, message)
    located = functools.cache(functools.partial(_located, media_path))  # a clip has many questions
    # The file's own texts of a million ids would be kept beside those of the rows.
    wanted_ids = {video_id: video_id for video_id in wanted}
    paths = {}
    missing = []
    outside = []
    several = []
    many = functools.partial(record_tables.read, reads_talks=False)
    records = JsonRecords(annotations.locate(annotation_path), many)
    for one in annotations.stream(records, Tally(), make=id_and_media):
        named = [one]
        if isinstance(one, record_tables.RecordTable):
            shown_by = [(medium,) for medium in one.media]
            media_of = map(shown_by.__getitem__, one.medium_numbers.tolist())
            named = zip(one.ids, media_of, strict=True)
        for video_id, shown in named:
            video_id = wanted_ids.get(video_id)
            if video_id is None or not shown:
                continue
            if len(shown) > 1:
                several.append(video_id)
            try:
                paths[video_id], is_there = located(shown[0].path)
            except Failure:
                outside.append(video_id)
                continue
            if not is_there:
                missing.append(video_id)
    unknown = sorted(wanted_ids.keys() - paths.keys())

    found = about(
        outside,
        "DATA-MEDIA-ESCAPE",
        findings.ERROR,
        annotation_path,
        "record(s) whose medium is named outside of the media path; write names below it",
    )
    found += about(
        unknown,
        "EVAL-VIDEO-UNKNOWN",
        findings.ERROR,
        annotation_path,
        "video_id(s) that the annotations do not map to a medium; give --kpi-ann-path the "
        "annotations that were evaluated",
    )
    if missing:
        example = paths[missing[0]]
        found += about(
            missing,
            "EVAL-MEDIA-MISSING",
            findings.WARNING,
            annotation_path,
            f"record(s) whose medium is not there, such as {example}; they stay in the table. "
            "--kpi-media-path is the folder that the annotations' names are relative to",
        )
    found += about(
        several,
        "EVAL-CLIPS-SEVERAL",
        findings.WARNING,
        annotation_path,
        "record(s) with several clips, of which table, page and tasks show the first: who labels "
        "them again sees no other",
    )
    return paths, found


def _located(media_path: str, name: str) -> tuple[str, bool]:
    """Return the full path of a medium, and whether it is there; an s3:// object is taken to be."""
    if s3.is_uri(name):
        return name, True
    if s3.is_uri(media_path):
        return s3.join(media_path, str(media.resolve("", name))), True
    path = media.resolve(media_path, name)
    return str(path), path.exists()


def summary(rows: Sequence[Row], gaps: Sequence[Gap]) -> dict:
    """Return what a person decides on: how many gaps of which kind and where, and the data to
    collect next."""
    kinds = Counter(gap.error_type for gap in gaps)
    pairs = Counter((gap.row.type, gap.confusion) for gap in gaps if gap.confusion)
    confusions = []
    for (kind, pair), count in pairs.most_common(LISTED):
        confusions.append({"type": kind, "pair": pair, "gaps": count})
    asked = Counter()
    for question, count in Counter(row.question for row in rows).items():
        asked[cluster(question)] += count
    clusters = []
    for question, count in Counter(gap.cluster for gap in gaps).most_common(LISTED):
        clusters.append({"question": question, "gaps": count, "rows": asked[question]})
    clip_rows = {gap.path: gap.clip_rows for gap in gaps}
    clips = []
    for path, count in Counter(gap.path for gap in gaps).most_common(LISTED):
        clips.append({"video_id": path, "gaps": count, "rows": clip_rows[path]})
    return {
        "rows": len(rows),
        "gaps": len(gaps),
        "error_types": {kind: kinds[kind] for kind in ERROR_TYPES if kinds[kind]},
        "confusions": confusions,
        "clusters": clusters,
        "clips": clips,
        "next_data": next_data(rows),
    }


def next_data(rows: Sequence[Row]) -> list[dict]:
    """Return the answers to closed questions worth more examples, those with the highest expected
    gain first: the share of all rows that would be right besides, were this answer as often right
    as the other answers to its question are now. To collect are EXAMPLES_PER_GAP new ones per wrong
    answer, which is a rule of thumb and no forecast.

    Unparseable and failed rows ask for a better prompt or readable media, not for more clips of a
    class."""
    lines = []
    for kind, tables in confusions(rows, apart=CLOSED_TYPES).items():
        for question, counts in tables.items():
            asked, right, wrong = Counter(), Counter(), Counter()
            for (expected, given), count in counts.items():
                asked[expected] += count
                if given == expected:
                    right[expected] += count
                elif given not in NO_ANSWERS.values():
                    wrong[expected] += count
            for label, gaps in wrong.items():
                others = asked.total() - asked[label]
                share = (right.total() - right[label]) / others if others else 1.0
                gain = min(gaps, max(0.0, share * asked[label] - right[label])) / len(rows)
                line = {
                    "type": kind,
                    "question": question,
                    "class": label,
                    "rows": asked[label],
                    "gaps": gaps,
                    "expected_gain": round(gain, 6),
                    "collect": gaps * EXAMPLES_PER_GAP,
                }
                lines.append(line)
    lines.sort(key=lambda line: (-line["expected_gain"], -line["gaps"]))
    return lines[:LISTED]


def write_parquet(handle: BinaryIO, gaps: Sequence[Gap]) -> None:
    """Write one line per gap; the first three columns are the ones a data-collection round
    reads."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"video_id": pa.array([gap.path for gap in gaps], pa.string())}
    for column, field in ROW_COLUMNS.items():
        columns[column] = pa.array([getattr(gap.row, field) for gap in gaps], pa.string())
    for column in GAP_COLUMNS:
        columns[column] = pa.array([getattr(gap, column) for gap in gaps], pa.string())
    for column in COUNT_COLUMNS:
        columns[column] = pa.array([getattr(gap, column) for gap in gaps], pa.int64())
    for column in LIST_COLUMNS:
        lists = [getattr(gap.row, column) for gap in gaps]
        columns[column] = pa.array(lists, pa.list_(pa.string()))
    parquet.write_table(pa.table(columns), handle)
