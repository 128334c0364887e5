"""The records of annotation files as items: conversations, questions with their answers."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from cosmos_reason.base import findings as f
from cosmos_reason.data import source_files, split_names, splits
from cosmos_reason.data.annotations import stream
from cosmos_reason.data.column_words import meaning
from cosmos_reason.data.formats import DAFT, answers_by_number, form, second_name
from cosmos_reason.data.items import Item, name_of, one_per_id
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.records import parse
from cosmos_reason.data.samples import Sample
from cosmos_reason.data.source_files import Folder
from cosmos_reason.media.files import names_medium


def is_record(record: object) -> bool:
    """Return whether it holds its questions; a row of a table may have a question and an answer as
    well."""
    if not isinstance(record, dict):
        return False
    name = form(record)
    if name != DAFT:
        return bool(name)
    # A row of STAR has times of its clip: DAFT's items with times name files.
    is_part = {"start", "end"} <= record.keys() and not names_medium(str(record.get("video_id")))
    if answers_by_number(record) or second_name(record) or is_part:
        return False
    keys = record.keys()
    named = {"video_id", "image_id", "videos", "images"}
    return bool(named & keys) and not {"video", "image"} & keys


def items(
    records, tally: Tally, files: Folder, folder: str, split: str, problems: list[f.Finding]
) -> Iterator[Item]:
    """Yield an item of each record of an annotation file in `folder`; `split`: what that of records
    is called that name none."""

    def with_split(index: int, record: dict, tally: Tally) -> tuple[Sample, str] | None:
        sample = parse(index, record, tally)
        named = [value for key, value in record.items() if meaning(key) == "a split"]
        called = next(filter(None, map(split_names.exact, map(str, named))), "")
        return (sample, called) if sample else None

    samples = list(stream(records, tally, make=with_split))
    if not any(called for _, called in samples):
        known = (
            {one.id.removeprefix("record-"), *(medium.path for medium in one.media)}
            for one, _ in samples
        )
        split = splits.of_document(records.header, split, records.path, known)
    root = records.header.get("media_root")
    folder = posixpath.join(folder, root) if isinstance(root, str) else folder
    refused: list[f.Finding] = []
    whole: list[tuple[Sample, str, list]] = []
    for sample, called in samples:
        found = []
        for medium in sample.media:
            kind, path, pictures, fps = medium
            there = f.attempt(
                refused, source_files.find_medium, files, kind, path, folder, pictures, fps
            )
            if there is None:
                found = []
                break
            found.append((kind, there))
        whole.append((sample, called or split, found))
    # All media together, so that all cores write them anew.
    media = [medium for _, _, found in whole for _, medium in found]
    made = source_files.transcoded(files, media, problems) if files.transcode else {}
    for sample, called, found in whole:
        found = [(kind, made.get(medium, medium)) for kind, medium in found]
        unnamed = found and sample.id == f"record-{sample.index}"
        name = name_of(found[0][1], files, sample.id) if unnamed else sample.id
        yield Item(
            name,
            tuple(found),
            sample.turns,
            sample.reasoning,
            sample.video_fps,
            sample.tags,
            split=called,
            groups=sample.groups,
        )
    problems += one_per_id(refused)
