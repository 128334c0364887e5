"""What a dataset is: the content of dataset_facts.json and its two tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

from cosmos_reason import answers
from cosmos_reason.base.files import sha256, whole_file
from cosmos_reason.data.clip_files import whole_name
from cosmos_reason.data.survey import Survey

SCHEMA_VERSION = 1
CLIP_FACTS = {"kind": "string", "pictures": "string"} | dict.fromkeys(
    ("width", "height", "frames", "declared_frames"), "int32"
)
CLIP_FACTS |= dict.fromkeys(("fps", "seconds"), "float64")


def facts(dataset: Survey) -> dict:
    """Return the content of dataset_facts.json (schemas/dataset_facts.schema.json)."""
    data_format = "llava"
    if dataset.formats:
        data_format = dataset.formats.most_common(1)[0][0]
    opened = [report.facts for report in dataset.reports.values() if report.facts]
    clips = [one for one in opened if one.kind == "video"]
    closed = [dataset.balance[kind] for kind in answers.CLOSED_TYPES if kind in dataset.balance]
    asked = sum(sum(counts.values()) for counts in closed)
    right = sum(max(counts.values(), default=0) for counts in closed)
    return {
        "schema_version": SCHEMA_VERSION,
        "annotations": whole_name(dataset.source),
        "media_path": str(dataset.media_path),
        "format": data_format,
        "fingerprint": sha256(dataset.annotations),
        "records": len(dataset.ids),
        "questions": sum(dataset.asked),
        "clips": len(dataset.clips),
        "clips_with_problems": sum(bool(report.check) for report in dataset.reports.values()),
        "records_per_clip": spread(Counter(dataset.clip_numbers).values()),
        "question_types": dict(dataset.types.most_common()),
        "answers": {
            kind: dict(balance.most_common(20)) for kind, balance in dataset.balance.items()
        },
        # of always giving the commonest answer of a question's type
        "majority_accuracy": round(right / asked, 4) if asked else None,
        "reasoning_beside": sum(count > 0 for count in dataset.reasoning_tokens),
        "reasoning_share": round(dataset.reasoned / max(sum(dataset.asked), 1), 4),
        "text_tokens": {
            **spread(dataset.text_tokens, ("p50", "p95", "max")),
            "method": dataset.text_method,
        },
        "media": {
            "width": spread([one.width for one in opened]),
            "height": spread([one.height for one in opened]),
            "frames": spread([one.frames for one in clips]),
            "fps": spread([one.fps for one in clips]),
            "seconds": spread([one.seconds for one in clips]),
        },
        "clips_table": "clips.parquet",
        "records_table": "records.parquet",
    }


def spread(values: Iterable[float], names=("min", "p50", "max")) -> dict[str, float | None]:
    """Return places of the ranked values by name, None where there are none."""
    ranked = sorted(values)
    if not ranked:
        return dict.fromkeys(names)
    places = {
        "min": 0,
        "p50": len(ranked) // 2,
        "p95": len(ranked) * 95 // 100,
        "max": len(ranked) - 1,
    }
    return {name: round(ranked[places[name]], 3) for name in names}


def tables(dataset: Survey):
    """Return (clips, records) as pyarrow tables: one row per medium in order of appearance, one per
    record."""
    import numpy as np
    import pyarrow as arrow

    reports = [dataset.reports[number] for number in range(len(dataset.clips))]
    columns = {"clip": arrow.array([medium.path for medium in dataset.clips], arrow.string())}
    for name, kind in CLIP_FACTS.items():
        column = [report.facts and getattr(report.facts, name) for report in reports]
        columns[name] = arrow.array(column, getattr(arrow, kind)())
    reuse = Counter(dataset.clip_numbers)
    columns["records"] = arrow.array(
        [reuse[number] for number in range(len(reports))], arrow.int32()
    )
    for name in ("bytes", "content", "check", "message"):
        columns[name] = arrow.array([getattr(report, name) for report in reports])
    records = {
        "index": arrow.array(dataset.indices, arrow.int32()),
        "id": arrow.array(dataset.ids, arrow.string()),
        "clips": arrow.ListArray.from_arrays(
            [0, *accumulate(dataset.clip_counts)], arrow.array(dataset.clip_numbers, arrow.int32())
        ),
        "questions": arrow.array(dataset.asked, arrow.int32()),
        "question_type": arrow.array(dataset.kinds, arrow.string()),
        "answer": arrow.array(dataset.answers, arrow.string()),
        "text_tokens": arrow.array(dataset.text_tokens, arrow.int32()),
        "answer_tokens": arrow.array(dataset.answer_tokens, arrow.int32()),
        "reasoning_tokens": arrow.array(dataset.reasoning_tokens, arrow.int32()),
        "has_system": arrow.array(map(bool, dataset.has_system), arrow.bool_()),
        "video_fps": arrow.array(
            dataset.video_fps, arrow.float64(), mask=np.array(dataset.video_fps) == 0
        ),
    }
    return arrow.table(columns), arrow.table(records)


def write_facts(dataset: Survey, path: Path) -> dict:
    """Write dataset_facts.json at `path` and its two tables beside it, all of them or none; return
    the facts."""
    import pyarrow.parquet as parquet

    written = facts(dataset)
    tables_of = ("clips_table", "records_table")
    if path.name != "dataset_facts.json":  # several facts in a folder have tables of their own
        written |= {name: f"{path.stem}.{written[name]}" for name in tables_of}
    targets = [path, *(path.parent / written[name] for name in tables_of)]
    with ExitStack() as files:  # renamed from the last to the first
        json.dump(
            written, files.enter_context(whole_file(targets[0])), indent=1
        )  # escapes: a path may be no UTF-8
        for target, table in zip(targets[1:], tables(dataset), strict=True):
            parquet.write_table(table, files.enter_context(whole_file(target, "wb")))
    return written
