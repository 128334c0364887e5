"""Annotation files, found and read: every record becomes a Sample, whatever is wrong with it a
finding."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.formats import as_llava, row_of_table
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_checks import ANSWER_CHECKS, CHECKS, Tally
from cosmos_reason.data.record_tables import RecordTable
from cosmos_reason.data.records import id_and_media, parse
from cosmos_reason.data.samples import Sample
from cosmos_reason.spec.values import shown

ROOT_FILES = ("annotations.json", "annotations.jsonl", "meta.json")


def locate(path: str | Path) -> Path:
    """Return the annotation file of a dataset folder; any other path as it is."""
    folder = Path(path)
    if not folder.is_dir():
        return folder
    names = [folder / name for name in ROOT_FILES]
    names += sorted(folder.glob("*_qa_pairs.json"))
    return next((name for name in names if name.is_file()), names[0])


def fetch(uri: str) -> tuple[str, Path]:
    """Return (s3:// name, local copy) of an annotation file, or of the one in a dataset root;
    Failure when there is none."""
    from cosmos_reason.remote import s3

    if not uri.endswith((".json", ".jsonl")):
        connection = s3.client()
        names = [name for name in ROOT_FILES if s3.head(s3.join(uri, name), connection)]
        if not names:
            message = (
                f"got no {', '.join(ROOT_FILES)} below it, "
                "expected a dataset root or an annotation file"
            )
            raise f.bad_input("FILE-MISSING", uri, message)
        uri = s3.join(uri, names[0])
    folder, _, name = uri.rpartition("/")
    if name == "meta.json":  # its conversations are files of their own
        return uri, s3.snapshot(folder, [name, "text/*.json"]) / name
    return uri, s3.local(uri)


def read(path: str | Path) -> tuple[list[Sample], list[f.Finding]]:
    """Return all samples of an annotation file and what is wrong with its records. Raises Failure
    when it cannot be read."""
    tally = Tally()
    return list(stream(JsonRecords(path), tally)), tally.findings(CHECKS, path)


def stream(
    records: JsonRecords, tally: Tally, formats: Counter | None = None, make: Callable = parse
) -> Iterator[Sample]:
    """Yield the samples of an annotation file one at a time, or what `make` makes of its records in
    the place of `parse`. Problems go to `tally`, and the formats that were met to `formats`."""
    if formats is None:
        formats = Counter()
    folder = records.path.parent
    for record in _unpacked(_unbroken(records, tally)):
        index = records.index
        number = f"record-{index}"
        if records.oddities:
            tally.take(records)
        if isinstance(record, RecordTable):
            formats["llava"] += len(record)
            yield record
            continue
        if not isinstance(record, dict):
            message = f"got {shown(record, 60)}, expected an object"
            tally.add("DATA-RECORD-TYPE", index, number, message)
            continue
        # Most records hold their turns: they are spared the question whether they are rows.
        is_talk = isinstance(record.get("conversations"), list)
        row = "" if is_talk or make is id_and_media else row_of_table(record)
        if row:
            message = f"got {row}, expected a conversation: questions and answers are built of it"
            tally.add("DATA-NOT-BUILT", index, number, message)
            command = shlex.join(["scripts/build_dataset.py", str(records.path), "-o", "data"])
            tally.fixes["DATA-NOT-BUILT"] = Fix(command=command)
            continue
        try:
            name, plain = as_llava(record, folder)
        except f.Failure as failure:
            (problem,) = failure.findings
            tally.add(problem.id, index, number, problem.message)
            continue
        except (ValueError, RecursionError) as problem:
            tally.add("DATA-RECORD-FORMAT", index, number, str(problem))
            continue
        formats[name] += 1
        for llava_record in plain:
            sample = make(index, llava_record, tally)
            if sample:
                yield sample
    tally.take(records)


def _unpacked(records: Iterator[object]) -> Iterator[object]:
    """Yield the records, also those of lists, into which Qwen's tools pack several."""
    for record in records:
        is_list = isinstance(record, list) and len(record) > 0
        is_pack = is_list and all(isinstance(one, dict) for one in record)
        yield from record if is_pack else [record]


def _unbroken(records: JsonRecords, tally: Tally) -> Iterator[object]:
    """Yield the records; when the file breaks off, the Failure tells what was found before, too."""
    try:
        yield from records
    except f.Failure as failure:
        before = tally.findings(CHECKS | ANSWER_CHECKS, records.path)
        failure.findings = [*failure.findings, *before]
        raise
