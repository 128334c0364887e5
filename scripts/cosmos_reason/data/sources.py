"""What people have, as items of one shape, in four steps: the rows of a source, the same rows with
plain values, the roles of their columns, and items. Enter at `open_source`, then `read`.

Annotation files are read here, a folder of label files by `label_files`, tables by `table_files`
(their rows) and `table_items` (what a row says).
"""

from __future__ import annotations

import functools
import os
import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import (
    label_files,
    label_tools,
    nested_rows,
    source_files,
    split_names,
    splits,
    table_files,
    table_items,
)
from cosmos_reason.data.annotations import locate, stream
from cosmos_reason.data.formats import DAFT, answers_by_number, form, second_name
from cosmos_reason.data.items import (
    UNNAMED,
    Item,
    Reading,
    Records,
    Row,
    name_of,
    one_per_id,
    refuse_unused,
)
from cosmos_reason.data.json_stream import JsonRecords, check_regular
from cosmos_reason.data.options import unoffered
from cosmos_reason.data.record_checks import ANSWER_CHECKS, CHECKS, Tally
from cosmos_reason.data.records import parse
from cosmos_reason.data.roles import Column, meaning
from cosmos_reason.data.samples import Sample, Turn, names_medium
from cosmos_reason.data.source_files import MARKER, Folder, Repository, wanted_part
from cosmos_reason.data.table_files import COLUMNAR, FLAT, OTHER_SPREADSHEETS

KINDS = ("csv", "labels", "hf", "qa", "daft", "llava")
SCENE = ("raw", "task")  # folders of DAFT's metropolis format, which its own tool converts
ANNOTATIONS = "annotations"
USED_BY_ROWS = ("columns", "question", "asks", "absent", "adjudicate", "values", "fields")
RUNNABLE = ("scripts/", "pip ")  # how a fix begins that is a command, and no words
SHOWN_MISSING = 5  # names of missing files that a message holds
ASKED_OF_ITS_AUTHOR = ("BUILD-COLUMN", "BUILD-QUESTION")
PROPOSED = {"--column", "--question"}  # flags that a first look at a source knows


class Source(NamedTuple):
    """Where to read and what: `splits` are names of files, each with rows or records, and what
    their split is called; `left_out` are splits or tables that a flag would read."""

    kind: str
    files: Folder
    splits: dict[str, str]
    left_out: list[str]


def open_source(written: str, kind: str, reading: Reading) -> Source:
    """Return what `written` names: a folder, a file, or a dataset repository ORG/NAME[@COMMIT] on
    the Hub; `kind` as KINDS or "auto". Raises Failure when it is none of them."""
    path = Path(written)
    raw = None
    if reading.raw:
        from cosmos_reason.data.raw_clips import RawClips

        raw = RawClips(Path(reading.raw))
    if not path.exists():
        from cosmos_reason.remote import model_names

        written = model_names.dataset(written)
        name, _, _ = written.partition("@")
        if kind not in ("auto", "hf") or not model_names.HUB_NAME.fullmatch(name):
            message = (
                "got no such file or folder, expected one, "
                "or ORG/NAME of a dataset on the Hugging Face Hub"
            )
            raise f.bad_input("BUILD-SOURCE", written, message)
        files = Repository(written)
        files.raw = raw
        refuse_unused(reading, ["transcode"], "clips of the Hub")
        return Source("hf", files, *_hub_tables(files, reading))
    if (path / MARKER).is_file():
        fix = f"scripts/build_dataset.py {shlex.quote(str(path / 'train'))} -o data-new"
        message = "got a dataset that is built, expected its train/ or eval/"
        raise f.bad_input("BUILD-SOURCE", path, message, fix)
    if not path.is_dir():
        check_regular(path)
    if kind == "auto":  # the name of the source, and what is in it, tell
        is_columnar = path.suffix in COLUMNAR
        if path.is_dir() and label_files.folders(path):
            kind = "labels"
        elif is_columnar or any(found.suffix in COLUMNAR for found in path.rglob("*")):
            kind = "hf"
        elif path.is_dir():
            kind = "llava" if locate(path).is_file() else "csv"
        elif path.suffix.lower() in (*FLAT, *OTHER_SPREADSHEETS, ".xml"):
            kind = "csv"
        else:
            kind = "llava" if _is_annotation(next(iter(JsonRecords(path)), None)) else "csv"
    if kind in ("qa", "daft", "llava"):
        path = locate(path)
    root = path if path.is_dir() else path.parent
    if not path.is_dir() and root.name == ANNOTATIONS:  # COCO has its pictures beside that folder
        root = root.parent
    files = Folder(root)
    files.raw = raw
    files.transcode = reading.transcode
    if path.is_dir() and kind == "hf":
        return Source(kind, files, *_hub_tables(files, reading))
    refuse_unused(reading, ("subset", "split"), f"{kind} sources")
    if kind == "labels":
        return Source(kind, files, {}, [])
    if not path.is_dir():  # the split of a dataset that we built is called by its folder
        whole = path.resolve()
        is_ours = (whole.parents[1] / MARKER).is_file()
        called = split_names.word(whole.parent.name if is_ours else whole.stem)
        return Source(kind, files, {path.relative_to(root).as_posix(): called}, [])
    if all((path / name).is_dir() for name in SCENE):
        words = ["tao-daft", "convert", "metropolis-v3.0", DAFT]
        words += ["--path", str(path), "--output", f"{path}-converted"]
        message = f"got the folders {', '.join(SCENE)} of metropolis-v3.0, expected annotations"
        fix = Fix(command=f"pip install nvidia-tao-daft && {shlex.join(words)}")
        raise f.bad_input("BUILD-SOURCE", path, message, fix)
    tables = {name: split_names.of_table(name) for name in source_files.plain_tables(files)}
    becomes = {split_names.NAMES.get(called, "") for called in tables.values()}
    if becomes == {split_names.TRAIN, ""}:  # the others may be what it holds out
        (one, *_), (other, *_) = (
            [name for name, called in tables.items() if bool(called) is is_named]
            for is_named in (True, False)
        )
        message = (
            f"got {one} and {other}, whose name says not whether it is trained on too: name one "
            "table as the source, or call it train or test"
        )
        raise f.bad_input("BUILD-SPLIT-NAME", path, message)
    return Source(kind, files, tables, [])


def _hub_tables(files: Folder, reading: Reading) -> tuple[dict[str, str], list[str]]:
    """Return `source_files.tables`; a slice without a name is one of the training data."""
    part = wanted_part(reading.split)
    of_tables, left_out = source_files.tables(files, reading.subset, part.split)
    if part.is_slice and not part.split:
        left_out += [name for name, split in of_tables.items() if split in split_names.HELD_OUT]
    return {name: split for name, split in of_tables.items() if name not in left_out}, left_out


def new_folder(name: str) -> str:
    """Return the name, or with a number behind it, that is not taken in the working folder."""
    free, number = name, 1
    while os.path.exists(free):
        number += 1
        free = f"{name}-{number}"
    return free


def command(written: str) -> tuple[Fix, str]:
    """Return the command that builds a dataset of a source, with the columns and the question that
    a first look at it proposes; and what is to be said of a question, which only its author
    knows."""
    words = ["scripts/build_dataset.py", written, "-o", new_folder("data")]
    reading = Reading()
    wrong: list[f.Finding] = []
    try:
        read(open_source(written, "auto", reading), reading)
    except f.Failure as failure:
        wrong = [finding for finding in failure.findings if finding.severity == f.ERROR]
    for finding in wrong:  # no command helps before its author says or adds something
        is_asked = finding.id in ASKED_OF_ITS_AUTHOR and not str(finding.fix)
        if is_asked or finding.id == "BUILD-NO-LABELS":
            return Fix(), f"; build_dataset.py builds it when told what it is: {finding.message}"
    for fix in (finding.fix for finding in wrong if isinstance(finding.fix, Fix)):
        if fix.command.startswith(RUNNABLE):
            return fix, ""
        kept = {flag: value for flag, value in fix.flags.items() if flag in PROPOSED}
        words += shlex.split(str(Fix(flags=kept)))
    remark = ""
    if "--question" in words:
        remark = "; the question is a proposal: say what you mean"
    return Fix(command=shlex.join(words)), remark


def read(source: Source, reading: Reading) -> Records:
    """Return all items of a source in its order, and what its columns are.

    Raises Failure with everything that keeps the source from being built.
    """
    problems: list[f.Finding] = []
    tally = Tally()
    columns, unread = [], []
    if source.kind == "labels":
        unused = ("columns", "asks", "absent", "adjudicate", "values", "raw", "convert")
        f.attempt(problems, refuse_unused, reading, unused, "label files")
        items = list(label_files.items(source.files.root, reading, problems))
    else:
        items, columns, unread, _ = _read_tables(source, reading, tally, problems)
    where = ", ".join([*source.splits][:3])
    renamed = source.files.renamed
    if renamed:  # names of other files, or of other folders, are taken as long as one file fits
        pairs = [f"{name!r} is {path!r}" for name, path in islice(renamed.items(), SHOWN_MISSING)]
        more = ", ..." if len(renamed) > SHOWN_MISSING else ""
        message = f"took the one file that fits for names of no file ({len(renamed)}): "
        message += ", ".join(pairs) + more
        data = {"files": dict(islice(renamed.items(), f.MAX_RECORD_IDS)), "count": len(renamed)}
        told = f.info("BUILD-MEDIA-RENAMED", where or source.files.root, message, **data)
        problems.append(told)
    items, of_splits = splits.settle(items, source.files, problems)
    if source.left_out:
        message = f"left out {', '.join(source.left_out[:20])}: --hf-split NAME reads one of them"
        of_splits.append(f.info("BUILD-SPLIT-LEFT", source.files.root, message))
    items, missing = _without_missing(items, source, reading.skip_missing)
    if not f.has_errors(problems):
        for number, item in enumerate(items):
            for asked, answer in pairwise(item.turns):
                wrong = unoffered(asked.text, answer.text) if answer.role == "assistant" else None
                if wrong:
                    tally.add(wrong[0], number, item.name, wrong[1])
    found = tally.findings(CHECKS | ANSWER_CHECKS, where)
    if f.has_errors([*problems, *missing]):
        raise f.Failure([*problems, *missing, *found], f.EXIT_BAD_INPUT)
    if reading.system:
        system = Turn("system", reading.system)
        for number, item in enumerate(items):
            if item.turns[0].role != "system":
                items[number] = item._replace(turns=(system, *item.turns))
    return Records(items, columns, unread, [*problems, *of_splits, *missing, *found])


def _read_tables(
    source: Source, reading: Reading, tally: Tally, problems: list[f.Finding]
) -> Records:
    """Return the items of tables and annotation files."""
    items: list[Item] = []
    rows: list[Row] = []
    names: list[str] = []  # what the split of each row is called
    declared = {one.role: one.name for one in (*(reading.saved or ()), *reading.columns)}
    convert = None
    if reading.convert:
        from cosmos_reason.data import converted

        convert = converted.function(reading.convert)
        if not source.splits:
            refuse_unused(reading, ["convert"], "folders of clips")
    part = wanted_part(reading.split) if reading.split else None
    counts: dict[str, int] = {}  # rows of each table, which a slice counts together
    left = range(0)
    if part and part.is_slice:
        for table in source.splits:
            counts[table] = sum(1 for _ in table_files.opened(source.files, table))
        left = part.bounds(sum(counts.values()))
    # Annotations become items at once. Rows wait for those of all tables: only together do they say
    # what a column is, what a number counts from, and which words mean one answer.
    for tally.file, (table, split) in enumerate(source.splits.items()):
        opened = whole = table_files.opened(source.files, table)
        if counts:
            here = islice(
                iter(whole), min(left.start, counts[table]), min(left.stop, counts[table])
            )
            opened = table_files.Rows(whole.path, ((whole.index, row) for row in here))
            left = range(*(max(edge - counts[table], 0) for edge in (left.start, left.stop)))
        folder = posixpath.dirname(table)
        is_flat = table.lower().endswith(FLAT)
        first = None if is_flat else next(iter(table_files.opened(source.files, table)), None)
        if first is not None and convert is None and _is_annotation(first):
            what = "records that hold their questions"
            f.attempt(problems, refuse_unused, reading, USED_BY_ROWS, what)
            records = _record_items(opened, tally, source.files, folder, problems)
            items += [item._replace(split=item.split or split) for item in records]
            continue
        here = list(opened)
        tally.take(opened)
        if convert is None and is_flat and here and here[0].keys() >= label_tools.OF_MIN:
            of_min = label_tools.of_table(here)
            here = label_tools.rows(of_min, {}, opened.path, problems) or here
        if convert is None and not is_flat:
            exported = label_tools.rows(here, opened.header, opened.path, problems)
            if exported is None:
                asked = {declared[role] for role in ("question", "answer") if role in declared}
                exported = nested_rows.rows(here, asked, opened.path)
            here = exported
            if here and _is_annotation(here[0]):  # questions by clip
                listed = table_files.Rows(opened.path, enumerate(here))
                records = _record_items(listed, tally, source.files, folder, problems)
                items += [item._replace(split=split) for item in records]
                continue
        # Rows that are made of records of another shape are counted.
        read_numbers = getattr(opened, "numbers", [])
        numbers = read_numbers if len(read_numbers) == len(here) else range(len(here))
        mark = " row " if is_flat else "#"
        found = [
            Row(values, folder, f"{table}{mark}{number}", number)
            for values, number in zip(here, numbers, strict=True)
        ]
        rows += converted.rows(convert, reading.convert, found) if convert else found
        names += [split] * (len(rows) - len(names))
        blank = getattr(opened, "blank", [])
        if blank and convert is None:
            message = f"passed over rows without anything in them: {len(blank)}"
            data = {"rows": blank[: f.MAX_RECORD_IDS], "count": len(blank)}
            told = f.info("BUILD-ROWS-BLANK", f"{table} row {blank[0]}", message, **data)
            problems.append(told)
        hidden = getattr(opened, "hidden", [])
        if hidden:
            message = f"passed over sheets that are hidden: {', '.join(hidden)}"
            problems.append(f.info("BUILD-SHEET-HIDDEN", table, message, sheets=hidden))
    if not source.splits:  # names of folders are the labels
        rows = table_items.labelled_by_folder(source.files, part.split if part else "")
        if part and part.is_slice:
            wanted = part.bounds(len(rows))
            rows = rows[wanted.start : wanted.stop]
        names = [split_names.of_folders(posixpath.dirname(row.values["video"])) for row in rows]
    if not rows:
        return Records(items, [], [], [])
    if not all(isinstance(row.values, dict) for row in rows):
        message = "got a row that is no object, expected objects"
        raise f.bad_input("BUILD-TABLE", source.files.root, message)
    by_column = splits.of_column(
        [row.values for row in rows], declared.get("split", ""), reading.values, problems
    )
    names = [one or other for one, other in zip(by_column, names, strict=True)]
    if reading.fields:  # of an object, which are the answers then
        plain, column = nested_rows.with_fields([row.values for row in rows], reading.fields)
        rows = [row._replace(values=values) for row, values in zip(rows, plain, strict=True)]
        others = tuple(one for one in reading.columns if one.role != "answer")
        reading = replace(reading, columns=(*others, Column(column, "answer", source="--fields")))
    made = table_items.items(rows, source.files, reading, problems, names)
    return made._replace(items=items + made.items)


def _without_missing(
    items: list[Item], source: Source, skip: bool
) -> tuple[list[Item], list[f.Finding]]:
    """Return the items whose media are all there, and one finding about the others: they are left
    out when `skip` says so, an error else."""
    present = []
    names = []
    looked_for: dict[str, None] = {}  # several records may lack one file
    files = source.files
    is_here = functools.lru_cache(None)(os.path.isfile)
    for item in items:
        absent = [path for path in item.files if isinstance(path, Path) and not is_here(path)]
        if not absent:
            present.append(item)
            continue
        names.append(item.name)
        for path in absent:
            written = str(path) if isinstance(files, Repository) else os.path.abspath(path)
            looked_for[f"(no name in {item.name})" if path == UNNAMED else written] = None
    if not names:
        return items, []
    paths = list(looked_for)
    shown = ", ".join(paths[:SHOWN_MISSING]) + (", ..." if paths[SHOWN_MISSING:] else "")
    counted = f"{len(names)} of {len(items)} records"
    data = {"record_ids": names[: f.MAX_RECORD_IDS], "count": len(names)}
    data["files"] = paths[: f.MAX_RECORD_IDS]
    where = ", ".join([*source.splits][:3]) or files.root
    here = f"{os.path.abspath(files.root)}/"
    if skip:
        written = shown.replace(here, "")  # as the source itself has them
        message = f"left out {counted}, because there is no file {written}"
        return present, [f.warning("BUILD-MEDIA-SKIPPED", where, message, **data)]
    from cosmos_reason.data import raw_clips

    message = f"got no file for {counted}: looked for {shown}"
    fix = Fix() if not present else Fix(flags={"--skip-missing": True})
    if files.raw is None and any(map(raw_clips.is_cut, data["files"])):
        message += f"; such clips are cut from the raw data of {source_files.RAW_SETS}"
        fix = Fix(flags={"--raw": "DIR"})
    elif files.raw:
        message += f", and for raw data of {source_files.RAW_SETS} in {files.raw.root}"
    elif isinstance(files, Repository):
        message += "; add the clips to a local copy of the source and build that"
        fix = Fix()
    elif source.splits:
        if any(path.startswith(here) for path in paths):
            message += f", and for the last part of the name anywhere in {files.root}"
        if not all(path.startswith((here, "(")) for path in paths):
            message += (
                "; a name that begins with / is looked for there only: "
                "write names below the folder of the table"
            )
        near: dict[str, None] = {}  # what lies there that a name may mean
        for path in paths[:SHOWN_MISSING]:
            near |= dict.fromkeys(source_files.near_names(files, path))
        if near:
            listed = ", ".join(islice(near, SHOWN_MISSING))
            message += f"; of names like these there are {listed}: write the names of the files"
        elif files.names and not any(map(names_medium, files.names)):
            message += f"; {files.root} holds no media: put the table beside them"
    return items, [f.error("BUILD-MEDIA-MISSING", where, message, fix, **data)]


def _is_annotation(record: object) -> bool:
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


def _record_items(
    records, tally: Tally, files: Folder, folder: str, problems: list[f.Finding]
) -> Iterator[Item]:
    """Yield an item of each record of an annotation file."""

    def with_split(index: int, record: dict, tally: Tally) -> tuple[Sample, str] | None:
        sample = parse(index, record, tally)
        named = [value for key, value in record.items() if meaning(key) == "a split"]
        called = next(filter(None, map(split_names.exact, map(str, named))), "")
        return (sample, called) if sample else None

    samples = list(stream(records, tally, make=with_split))
    root = records.header.get("media_root")
    folder = posixpath.join(folder, root) if isinstance(root, str) else folder
    refused: list[f.Finding] = []
    whole: list[tuple[Sample, str, list]] = []
    for sample, split in samples:
        found = []
        for medium in sample.media:
            there = f.attempt(refused, source_files.find_video, files, medium, folder)
            if there is None:
                found = []
                break
            found.append((medium.kind, there))
        whole.append((sample, split, found))
    media = [medium for _, _, found in whole for _, medium in found]
    made = source_files.transcoded(files, media, problems) if files.transcode else {}
    for sample, split, found in whole:
        found = [(kind, made.get(medium, medium)) for kind, medium in found]
        unnamed = found and sample.id == f"record-{sample.index}"
        name = name_of(found[0][1], files, sample.id) if unnamed else sample.id
        more = (sample.reasoning, sample.video_fps, sample.tags, split, sample.groups)
        yield Item(name, tuple(found), sample.turns, *more)
    problems += one_per_id(refused)
