"""What people have, as items of one shape, in four steps: the rows of a source (`table_files`), the
same rows with plain values (`_rows`), the roles of their columns, and items (both: `table_items`).
Enter at `open_source`, then `read`.

The records of annotation files become items without roles (`annotation_items`), and so do label
files (`label_files`).
"""

from __future__ import annotations

import functools
import os
import posixpath
import shlex
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import some
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
from cosmos_reason.data.formats import DAFT
from cosmos_reason.data.items import (
    UNNAMED,
    Item,
    Reading,
    Records,
    Row,
    refuse_unused,
)
from cosmos_reason.data.options import unoffered
from cosmos_reason.data.record_checks import ANSWER_CHECKS, CHECKS, Tally
from cosmos_reason.data.source_files import MARKER, Folder
from cosmos_reason.data.table_files import COLUMNAR, FLAT, OTHER_SPREADSHEETS
from cosmos_reason.data.turns import Turn
from cosmos_reason.media.files import names_medium

KINDS = ("csv", "labels", "hf", "qa", "daft", "llava")
SCENE = ("raw", "task")  # folders of DAFT's metropolis format, which its own tool converts
ANNOTATIONS = "annotations"
JSON = (".json", ".jsonl")
USED_BY_ROWS = ("column", "question", "ask", "also_ask_absent", "window", "label_fps", "adjudicate")
USED_BY_ROWS += ("values", "fields")
RUNNABLE = ("scripts/", "pip ")  # how a fix begins that is a command, and no words
SHOWN_MISSING = 5  # names of missing files that a message holds
ASKED_OF_ITS_AUTHOR = ("BUILD-COLUMN", "BUILD-QUESTION")
PROPOSED = {"--column", "--question"}  # flags that a first look at a source knows


class Source(NamedTuple):
    """Where to read and what: `split_of_table` are names of files, each with rows or records, and
    what their split is called; `left_out` are splits or tables that a flag would read."""

    kind: str
    files: Folder
    split_of_table: dict[str, str]
    left_out: list[str]


def open_source(written: str, kind: str, reading: Reading) -> Source:
    """Return what `written` names: a folder, a file, or a dataset repository ORG/NAME[@COMMIT] on
    the Hub; `kind` as KINDS or "auto". Raises Failure when it is none of them."""
    path = Path(written)
    of_hub = reading.hf_subset, reading.hf_split
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
        from cosmos_reason.data import hub_files

        folder = hub_files.Repository(written)
        folder.raw = raw
        refuse_unused(reading, ["transcode"], "clips of the Hub")
        return Source("hf", folder, *hub_files.wanted_tables(folder, *of_hub))
    if (path / MARKER).is_file():
        fix = f"scripts/build_dataset.py {shlex.quote(str(path / 'train'))} -o data-new"
        message = "got a dataset that is built, expected its train/ or eval/"
        raise f.bad_input("BUILD-SOURCE", path, message, fix)
    if not path.is_dir():
        files.check_regular(path)
    if kind == "auto":  # the name of the source, and what is in it, tell
        is_columnar = path.suffix in COLUMNAR
        if path.is_dir() and label_files.folders(path):
            kind = "labels"
        elif is_columnar or any(found.suffix in COLUMNAR for found in path.rglob("*")):
            kind = "hf"
        elif path.is_dir():
            from cosmos_reason.data.annotations import locate

            kind = "llava" if locate(path).is_file() else "csv"
        elif path.suffix.lower() in (*FLAT, *OTHER_SPREADSHEETS, ".xml"):
            kind = "csv"
        else:
            from cosmos_reason.data.annotation_items import is_record
            from cosmos_reason.data.json_stream import JsonRecords

            try:
                first = next(iter(JsonRecords(path)), None)
            except f.Failure:
                if path.suffix.lower() in JSON:
                    raise
                called = path.suffix or "without a suffix"
                message = (
                    f"got a file {called} that is no JSON, expected a table: .csv or .tsv "
                    "with a row of names above the others, .xlsx, JSON, parquet"
                )
                raise f.bad_input("BUILD-TABLE", path, message) from None
            kind = "llava" if is_record(first) else "csv"
    if kind in ("qa", "daft", "llava"):
        from cosmos_reason.data.annotations import locate

        path = locate(path)
    root = path if path.is_dir() else path.parent
    if not path.is_dir() and root.name == ANNOTATIONS:  # COCO has its pictures beside that folder
        root = root.parent
    folder = Folder(root, reading.transcode, raw)
    if path.is_dir() and kind == "hf":
        from cosmos_reason.data import hub_files

        return Source(kind, folder, *hub_files.wanted_tables(folder, *of_hub))
    refuse_unused(reading, ("hf_subset", "hf_split"), f"{kind} sources")
    if kind == "labels":
        return Source(kind, folder, {}, [])
    if not path.is_dir():  # the split of a dataset that we built is called by its folder
        whole = path.resolve()
        is_ours = (whole.parents[1] / MARKER).is_file()
        called = split_names.word(whole.parent.name if is_ours else whole.stem)
        return Source(kind, folder, {path.relative_to(root).as_posix(): called}, [])
    if all((path / name).is_dir() for name in SCENE):
        words = ["tao-daft", "convert", "metropolis-v3.0", DAFT]
        words += ["--path", str(path), "--output", f"{path}-converted"]
        message = f"got the folders {', '.join(SCENE)} of metropolis-v3.0, expected annotations"
        fix = Fix(command=f"pip install nvidia-tao-daft && {shlex.join(words)}")
        raise f.bad_input("BUILD-SOURCE", path, message, fix)
    tables = {name: split_names.of_table(name) for name in source_files.plain_tables(folder)}
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
    return Source(kind, folder, tables, [])


def command(written: str) -> tuple[Fix, str]:
    """Return the command that builds a dataset of a source, with the columns and the question that
    a first look at it proposes; and what is to be said of a question, which only its author
    knows."""
    output, number = "data", 1
    while os.path.exists(output):
        number += 1
        output = f"data-{number}"
    words = ["scripts/build_dataset.py", written, "-o", output]
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
    columns, unused = [], []
    if source.kind == "labels":
        useless = [one for one in USED_BY_ROWS if one not in ("question", "fields")]
        useless += ["raw", "convert"]
        f.attempt(problems, refuse_unused, reading, useless, "label files")
        items = list(label_files.items(source.files.root, reading, problems))
    else:
        items, rows, reading = _rows(source, reading, tally, problems)
        if rows:
            made, columns, unused, _ = table_items.items(rows, source.files, reading, problems)
            items += made
    where = ", ".join([*source.split_of_table][:3])
    renamed = source.files.renamed
    if renamed:  # names of other files, or of other folders, are taken as long as one file fits
        pairs = [f"{name!r} is {path!r}" for name, path in renamed.items()]
        message = f"took the one file that fits for names of no file ({len(renamed)}): "
        message += some(pairs, SHOWN_MISSING)
        data = {"files": dict(islice(renamed.items(), f.MAX_RECORD_IDS)), "count": len(renamed)}
        told = f.info("BUILD-MEDIA-RENAMED", where or source.files.root, message, **data)
        problems.append(told)
    items, of_splits = splits.settle(items, source.files, problems)
    if source.left_out:
        message = f"left out {', '.join(source.left_out[:20])}: --hf-split NAME reads one of them"
        of_splits.append(f.info("BUILD-SPLIT-LEFT", source.files.root, message))
    is_here = functools.cache(os.path.isfile)
    absent: dict[int, list[Path]] = {}  # of each item that lacks some, the files
    for number, item in enumerate(items):
        lacking = [path for path in item.files if isinstance(path, Path) and not is_here(path)]
        if lacking:
            absent[number] = lacking
    missing = [_missing(items, absent, source, reading.skip_missing)] if absent else []
    if reading.skip_missing:
        items = [item for number, item in enumerate(items) if number not in absent]
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
    return Records(items, columns, unused, [*problems, *of_splits, *missing, *found])


def _rows(
    source: Source, reading: Reading, tally: Tally, problems: list[f.Finding]
) -> tuple[list[Item], list[Row], Reading]:
    """Return the items of annotation files, the rows of tables with plain values, each with what
    its split is called, and how to read these, times that --convert made included. Rows wait for
    those of all tables: only together do they say what a column is, what a number counts from, and
    which words mean one answer."""
    items: list[Item] = []
    rows: list[Row] = []
    declared = {one.role: one.name for one in (*(reading.saved or ()), *reading.column)}
    convert = None
    if reading.convert:
        from cosmos_reason.data import converted

        convert = converted.function(reading.convert)
        if not source.split_of_table:
            refuse_unused(reading, ["convert"], "folders of clips")
    part = counts = None  # of a slice: its rows are counted over all tables together
    if reading.hf_split:
        from cosmos_reason.data import hub_files

        part = hub_files.wanted_part(reading.hf_split)
    if part and part.is_slice:
        counts = [
            sum(1 for _ in table_files.opened(source.files, one)) for one in source.split_of_table
        ]
        left = part.bounds(sum(counts))
    for tally.file, (table, split) in enumerate(source.split_of_table.items()):
        opened = table_files.opened(source.files, table)
        if counts:
            count, whole = counts[tally.file], opened
            here = islice(iter(whole), min(left.start, count), min(left.stop, count))
            opened = table_files.Rows(whole.path, ((whole.index, row) for row in here))
            left = range(*(max(edge - count, 0) for edge in (left.start, left.stop)))
        folder = posixpath.dirname(table)
        is_flat = table.lower().endswith(FLAT)
        is_nested = not is_flat and convert is None
        if is_nested:
            from cosmos_reason.data import annotation_items

            first = next(iter(table_files.opened(source.files, table)), None)
            if annotation_items.is_record(first):
                what = "records that hold their questions"
                f.attempt(problems, refuse_unused, reading, USED_BY_ROWS, what)
                items += annotation_items.items(
                    opened, tally, source.files, folder, split, problems
                )
                continue
        here = list(opened)
        if opened.oddities:  # of JSON
            tally.take(opened)
        if opened.header and convert is None:
            objects = [row for row in here if isinstance(row, dict)]
            if not any("split" in row for row in objects):
                named = (
                    {str(row.get("id", place)), *nested_rows.media_of(row)}
                    for place, row in enumerate(objects)
                )
                split = splits.of_document(opened.header, split, opened.path, named)
        if is_flat and convert is None and here and here[0].keys() >= label_tools.OF_MIN:
            of_min = label_tools.of_table(here)
            here = label_tools.rows(of_min, {}, reading.label_fps, opened.path, problems) or here
        if is_nested:
            answers = {declared.get("answer", "answer"), *(name for name, _ in reading.ask)}
            exported = label_tools.rows(
                here, opened.header, reading.label_fps, opened.path, problems, answers
            )
            if exported is None:
                here = nested_rows.with_clip(here, opened.header, opened.path)
                exported = nested_rows.rows(here, problems)
            here = exported
            if here and annotation_items.is_record(here[0]):  # questions by clip
                listed = table_files.Rows(opened.path, enumerate(here))
                items += annotation_items.items(
                    listed, tally, source.files, folder, split, problems
                )
                continue
        # Rows that are made of records of another shape are counted.
        read_numbers = getattr(opened, "numbers", [])
        numbers = read_numbers if len(read_numbers) == len(here) else range(len(here))
        mark = " row " if is_flat else "#"
        found = [
            Row(values, folder, f"{table}{mark}{number}", number, split)
            for values, number in zip(here, numbers, strict=True)
        ]
        if convert:
            made = converted.rows(convert, reading.convert, found, opened.header)
            if reading.saved is None:
                stated = converted.stated(made, found, reading.column)
                reading = replace(reading, column=(*reading.column, *stated))
            found = made
        rows += found
        blank = getattr(opened, "blank", [])
        if blank and convert is None:
            message = f"passed over rows without anything in them: {len(blank)}"
            where = f"{table} row {blank[0]}"
            told = f.info("BUILD-ROWS-BLANK", where, message, **f.counted(blank, "rows"))
            problems.append(told)
        hidden = getattr(opened, "hidden", [])
        if hidden:
            message = f"passed over sheets that are hidden: {', '.join(hidden)}"
            problems.append(f.info("BUILD-SHEET-HIDDEN", table, message, sheets=hidden))
        filtered = sorted(getattr(opened, "filtered", set()).intersection(read_numbers))
        if filtered:
            listed = some([*map(str, filtered)], SHOWN_MISSING)
            message = f"read {len(filtered)} rows that the sheet does not show ({listed}): "
            message += "remove them, or give a copy of the others, where a filter left them out"
            data = f.counted(filtered, "rows")
            problems.append(f.warning("BUILD-SHEET-HIDDEN", table, message, **data))
    if not source.split_of_table:  # names of folders are the labels
        rows = label_files.by_folder(source.files, part.split if part else "")
        if part and part.is_slice:
            wanted = part.bounds(len(rows))
            rows = rows[wanted.start : wanted.stop]
    if not all(isinstance(row.values, dict) for row in rows):
        message = "got a row that is no object, expected objects"
        raise f.bad_input("BUILD-TABLE", source.files.root, message)
    needed = label_tools.OF_MIN | {"start"}
    if reading.label_fps and not any(row.values.keys() >= needed for row in rows):
        message = "got it for rows without a timeline of Label Studio"
        problems.append(f.error("USAGE", "--label-fps", message, "drop --label-fps"))
    rows = splits.of_column(rows, declared.get("split", ""), reading.values, problems)
    return items, rows, reading


def _missing(
    items: list[Item], absent: dict[int, list[Path]], source: Source, skip: bool
) -> f.Finding:
    """Return what is said of items with `absent` files: they are left out when `skip` says so, an
    error else."""
    folder = source.files
    names = [items[number].name for number in absent]
    looked_for: dict[str, None] = {}  # several records may lack one file
    for name, lacking in zip(names, absent.values(), strict=True):
        for path in lacking:
            written = str(path) if folder.repo else os.path.abspath(path)
            looked_for[f"(no name in {name})" if path == UNNAMED else written] = None
    paths = list(looked_for)
    shown = some(paths, SHOWN_MISSING)
    counted = f"{len(names)} of {len(items)} records"
    data = f.counted(names) | {"files": paths[: f.MAX_RECORD_IDS]}
    where = ", ".join([*source.split_of_table][:3]) or folder.root
    here = f"{os.path.abspath(folder.root)}/"
    if skip:
        written = shown.replace(here, "")  # as the source itself has them
        message = f"left out {counted}, because there is no file {written}"
        return f.warning("BUILD-MEDIA-SKIPPED", where, message, **data)
    from cosmos_reason.data import raw_clips

    message = f"got no file for {counted}: looked for {shown}"
    fix = Fix(flags={"--skip-missing": True}) if len(names) < len(items) else Fix()
    if folder.raw is None and any(map(raw_clips.is_cut, data["files"])):
        message += f"; such clips are cut from the raw data of {source_files.RAW_SETS}"
        fix = Fix(flags={"--raw": "DIR"})
    elif folder.raw:
        message += f", and for raw data of {source_files.RAW_SETS} in {folder.raw.root}"
    elif folder.repo:
        message += "; add the clips to a local copy of the source and build that"
        fix = Fix()
    elif source.split_of_table:
        if any(path.startswith(here) for path in paths):
            message += f", and for the last part of the name anywhere in {folder.root}"
        if not all(path.startswith((here, "(")) for path in paths):
            message += (
                "; a name that begins with / is looked for there only: "
                "write names below the folder of the table"
            )
        if folder.names and not any(map(names_medium, folder.names)):
            message += f"; {folder.root} holds no media: put the table beside them"
    return f.error("BUILD-MEDIA-MISSING", where, message, fix, **data)
