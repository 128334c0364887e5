"""What people have, as items of one shape: `open_source`, then `read`.

Annotation files are read here, a folder of label files by `label_files`, tables by `table_files`
(their rows) and `table_items` (what a row says).
"""

from __future__ import annotations

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
    converted,
    label_files,
    label_tools,
    nested_rows,
    raw_clips,
    source_files,
    split_names,
    splits,
    table_files,
    table_items,
)
from cosmos_reason.data.annotations import locate, stream
from cosmos_reason.data.formats import DAFT, answers_by_number, form, second_name
from cosmos_reason.data.items import UNNAMED, Item, Reading, Row, name_of, one_per_id, refuse_unused
from cosmos_reason.data.json_stream import JsonRecords, check_regular
from cosmos_reason.data.options import unoffered
from cosmos_reason.data.record_checks import ANSWER_CHECKS, CHECKS, Tally
from cosmos_reason.data.records import parse
from cosmos_reason.data.roles import Column
from cosmos_reason.data.samples import Sample, Turn, names_medium
from cosmos_reason.data.source_files import MARKER, Folder, Medium, Repository
from cosmos_reason.data.table_files import COLUMNAR, FLAT, OTHER_SPREADSHEETS
from cosmos_reason.remote import model_names

KINDS = ("csv", "labels", "hf", "qa", "daft", "llava")
SCENE = ("raw", "task")
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

    @property
    def tables(self) -> list[str]:
        return list(self.splits)


def open_source(written: str, kind: str, reading: Reading) -> Source:
    """What `written` names: a folder, a file, or a dataset repository ORG/NAME[@COMMIT] on the Hub;
    `kind` as KINDS or "auto". Raises Failure when it is none of them."""
    path = Path(written)
    if not path.exists():
        return _open_repository(written, kind, reading)
    if (path / MARKER).is_file():
        fix = f"scripts/build_dataset.py {shlex.quote(str(path / 'train'))} -o data-new"
        message = "got a dataset that is built, expected its train/ or eval/"
        raise f.bad_input("BUILD-SOURCE", path, message, fix)
    if not path.is_dir():
        check_regular(path)
    if kind == "auto":
        kind = _kind_of(path)
    if kind in ("qa", "daft", "llava"):
        path = locate(path)
    files = Folder(path if path.is_dir() else path.parent)
    files.raw = raw_clips.RawClips(Path(reading.raw)) if reading.raw else None
    if path.is_dir() and kind == "hf":
        return Source(kind, files, *_hub_tables(files, reading))
    refuse_unused(reading, ("subset", "split"), f"{kind} sources")
    if kind == "labels":
        return Source(kind, files, {}, [])
    return Source(kind, files, _plain_tables(files, path), [])


def _plain_tables(files: Folder, path: Path) -> dict[str, str]:
    """{table: what its split is called} of a folder or a file that is no dataset of the Hub."""
    if not path.is_dir():
        return {path.name: _split_of_file(path)}
    _refuse_scenes(path)
    return {name: split_names.of_table(name) for name in source_files.plain_tables(files)}


def _split_of_file(path: Path) -> str:
    """What the split of a table is called; one of ours stays what it is."""
    whole = path.resolve()
    is_ours = (whole.parents[1] / MARKER).is_file()
    return split_names.word(whole.parent.name if is_ours else whole.stem)


def _hub_tables(files: Folder, reading: Reading) -> tuple[dict[str, str], list[str]]:
    """`source_files.tables`; a slice without a name is one of the training data."""
    part = reading.part
    splits, left_out = source_files.tables(files, reading.subset, part.split)
    if part.rows and not part.split:
        left_out += [name for name, split in splits.items() if split in split_names.HELD_OUT]
    return {name: split for name, split in splits.items() if name not in left_out}, left_out


def _refuse_scenes(path: Path) -> None:
    """Raise Failure for scenes of DAFT's metropolis format, which its own tool converts."""
    if all((path / name).is_dir() for name in SCENE):
        words = ["tao-daft", "convert", "metropolis-v3.0", "tao-vl-reason-v1.0"]
        words += ["--path", str(path), "--output", f"{path}-converted"]
        message = f"got the folders {', '.join(SCENE)} of metropolis-v3.0, expected annotations"
        fix = Fix(command=f"pip install nvidia-tao-daft && {shlex.join(words)}")
        raise f.bad_input("BUILD-SOURCE", path, message, fix)


def _open_repository(written: str, kind: str, reading: Reading) -> Source:
    """A dataset repository of the Hub, for a name that is no file here."""
    written = model_names.dataset(written)
    name, _, _ = written.partition("@")
    if kind not in ("auto", "hf") or not model_names.HUB_NAME.fullmatch(name):
        message = (
            "got no such file or folder, expected one, "
            "or ORG/NAME of a dataset on the Hugging Face Hub"
        )
        raise f.bad_input("BUILD-SOURCE", written, message)
    raw = raw_clips.RawClips(Path(reading.raw)) if reading.raw else None
    files = Repository(written)
    files.raw = raw
    return Source("hf", files, *_hub_tables(files, reading))


def _kind_of(path: Path) -> str:
    """From the name of a source and what is in it."""
    if label_files.folders(path):
        return "labels"
    if path.suffix in COLUMNAR or any(found.suffix in COLUMNAR for found in path.rglob("*")):
        return "hf"
    if path.is_dir():
        return "llava" if locate(path).is_file() else "csv"
    if path.suffix.lower() in (*FLAT, *OTHER_SPREADSHEETS, ".xml"):
        return "csv"
    first = next(iter(JsonRecords(path)), None)
    return "llava" if _is_annotation(first) else "csv"


def new_folder(name: str) -> str:
    """The name, or with a number behind it, that is not taken in the working folder."""
    free, number = name, 1
    while os.path.exists(free):
        number += 1
        free = f"{name}-{number}"
    return free


def _is_for_its_author(finding: f.Finding) -> bool:
    """Whether no command helps before the author of a source says or adds something."""
    is_asked = finding.id in ASKED_OF_ITS_AUTHOR and not str(finding.fix)
    return is_asked or finding.id == "BUILD-NO-LABELS"


def command(written: str) -> tuple[Fix, str]:
    """The command that builds a dataset of a source, with the columns and the question that a first
    look at it proposes; and what is to be said of a question, which only its author knows."""
    words = ["scripts/build_dataset.py", written, "-o", new_folder("data")]
    wrong = _errors(written)
    unsaid = [one for one in wrong if _is_for_its_author(one)]
    if unsaid:
        return Fix(), f"; build_dataset.py builds it when told what it is: {unsaid[0].message}"
    proposed = [finding.fix for finding in wrong if isinstance(finding.fix, Fix)]
    for fix in proposed:
        if fix.command.startswith(RUNNABLE):
            return fix, ""
        kept = {flag: value for flag, value in fix.flags.items() if flag in PROPOSED}
        words += shlex.split(str(Fix(flags=kept)))
    remark = ""
    if "--question" in words:
        remark = "; the question is a proposal: say what you mean"
    return Fix(command=shlex.join(words)), remark


def _errors(written: str) -> list[f.Finding]:
    """What keeps a source from being built without any flag."""
    reading = Reading()
    try:
        read(open_source(written, "auto", reading), reading)
    except f.Failure as failure:
        return [finding for finding in failure.findings if finding.severity == f.ERROR]
    return []


def read(source: Source, reading: Reading) -> tuple[list[Item], list[f.Finding]]:
    """All items of a source in its order, and what is to be said of its records.

    Raises Failure with everything that keeps the source from being built.
    """
    problems: list[f.Finding] = []
    tally = Tally()
    if source.kind == "labels":
        f.attempt(
            problems,
            refuse_unused,
            reading,
            ("columns", "asks", "absent", "adjudicate", "values", "raw", "convert"),
            "label files",
        )
        items = list(label_files.items(source.files.root, reading, problems))
    else:
        items = _read_tables(source, reading, tally, problems)
    problems += _found_elsewhere(source)
    items, of_splits = splits.settle(items, source.files, problems)
    if source.left_out:
        message = f"left out {', '.join(source.left_out[:20])}: --hf-split NAME reads one of them"
        of_splits.append(f.info("BUILD-SPLIT-LEFT", source.files.root, message))
    items, missing = _without_missing(items, source, reading.skip_missing)
    if not f.has_errors(problems):
        _check_options(items, tally)
    where = ", ".join(source.tables[:3])
    found = tally.findings(CHECKS | ANSWER_CHECKS, where)
    if f.has_errors([*problems, *missing]):
        raise f.Failure([*problems, *missing, *found], f.EXIT_BAD_INPUT)
    told = [*problems, *of_splits, *missing, *found]
    return [_with_system(item, reading.system) for item in items], told


def _read_tables(
    source: Source, reading: Reading, tally: Tally, problems: list[f.Finding]
) -> list[Item]:
    """The items of tables and annotation files."""
    items = []
    rows = []
    names = []  # what the split of each row is called
    convert = converted.function(reading.convert) if reading.convert else None
    if convert and not source.tables:
        refuse_unused(reading, ["convert"], "folders of clips")
    for tally.file, (table, opened) in enumerate(_opened_tables(source, reading.part.rows)):
        folder = posixpath.dirname(table)
        split = source.splits[table]
        first = next(iter(table_files.opened(source.files, table)), None)
        is_flat = table.lower().endswith(FLAT)
        if convert:  # it is given the rows as they stand in the file
            here = _located(list(opened), opened, table)
            tally.take(opened)
            rows += converted.rows(convert, reading.convert, here)
            names += [split] * (len(rows) - len(names))
        elif not is_flat and _is_annotation(first):
            what = "records that hold their questions"
            f.attempt(problems, refuse_unused, reading, USED_BY_ROWS, what)
            records = _record_items(opened, tally, source.files, folder, problems)
            items += [item._replace(split=item.split or split) for item in records]
        else:
            here = list(opened)
            exported = None
            if not is_flat:
                exported = label_tools.rows(here, opened.header, opened.path, problems)
            if exported is not None:
                here = exported
            elif not is_flat:
                declared = {reading.declared("question"), reading.declared("answer")} - {""}
                here = nested_rows.rows(here, declared, opened.path)
            tally.take(opened)
            if not is_flat and here and _is_annotation(here[0]):  # questions by clip
                listed = table_files.Rows(opened.path, enumerate(here))
                records = _record_items(listed, tally, source.files, folder, problems)
                items += [item._replace(split=split) for item in records]
            else:
                rows += _located(here, opened, table)
                problems += _blank_rows(opened, table)
                names += [split] * (len(rows) - len(names))
    if not source.tables:
        rows = _labelled_rows(source.files, reading.part)
        names = [split_names.of_folders(posixpath.dirname(row.values["video"])) for row in rows]
    return items + _row_items(rows, names, source, reading, problems)


def _labelled_rows(files: Folder, part: source_files.Part) -> list[Row]:
    rows = table_items.labelled_by_folder(files, part.split)
    if part.rows:
        wanted = part.rows.bounds(len(rows))
        rows = rows[wanted.start : wanted.stop]
    return rows


def _row_items(
    rows: list[Row],
    names: list[str],
    source: Source,
    reading: Reading,
    problems: list[f.Finding],
) -> list[Item]:
    """The items of rows, with what a column or else their table calls their split."""
    if not rows:
        return []
    if not all(isinstance(row.values, dict) for row in rows):
        message = "got a row that is no object, expected objects"
        raise f.bad_input("BUILD-TABLE", source.files.root, message)
    column = reading.declared("split")
    by_column = splits.of_column([row.values for row in rows], column, problems)
    rows, reading = _with_fields(rows, reading)
    called = [one or other for one, other in zip(by_column, names, strict=True)]
    return list(table_items.items(rows, source.files, reading, problems, called))


def _located(rows: list, opened: table_files.Rows | JsonRecords, table: str) -> list[Row]:
    """The rows with where they stand; those made of records of another shape are counted."""
    folder = posixpath.dirname(table)
    read = getattr(opened, "numbers", [])
    numbers = read if len(read) == len(rows) else range(len(rows))
    mark = " row " if table.lower().endswith(FLAT) else "#"
    return [
        Row(values, folder, f"{table}{mark}{number}", number)
        for values, number in zip(rows, numbers, strict=True)
    ]


def _blank_rows(opened: table_files.Rows | JsonRecords, table: str) -> list[f.Finding]:
    blank = getattr(opened, "blank", [])
    if not blank:
        return []
    message = f"passed over rows without anything in them: {len(blank)}"
    data = {"rows": blank[: f.MAX_RECORD_IDS], "count": len(blank)}
    return [f.info("BUILD-ROWS-BLANK", f"{table} row {blank[0]}", message, **data)]


def _with_fields(rows: list[Row], reading: Reading) -> tuple[list[Row], Reading]:
    """The rows whose labels are the wanted fields of an object, which are their answers then."""
    if not reading.fields:
        return rows, reading
    plain, column = nested_rows.with_fields([row.values for row in rows], reading.fields)
    chosen = [row._replace(values=values) for row, values in zip(rows, plain, strict=True)]
    declared = tuple(one for one in reading.columns if one.role != "answer")
    return chosen, replace(
        reading, columns=(*declared, Column(column, "answer", source="--fields"))
    )


def _opened_tables(
    source: Source, wanted: source_files.Slice | None
) -> Iterator[tuple[str, table_files.Rows | JsonRecords]]:
    """(name, its rows) of the tables; of a slice the rows of all together are counted."""
    if wanted is None:
        for table in source.tables:
            yield table, table_files.opened(source.files, table)
        return
    counts = {
        table: sum(1 for _ in table_files.opened(source.files, table)) for table in source.tables
    }
    left = wanted.bounds(sum(counts.values()))
    for table, count in counts.items():
        opened = table_files.opened(source.files, table)
        here = islice(iter(opened), min(left.start, count), min(left.stop, count))
        yield table, table_files.Rows(opened.path, ((opened.index, row) for row in here))
        left = range(max(left.start - count, 0), max(left.stop - count, 0))


def _without_missing(
    items: list[Item], source: Source, skip: bool
) -> tuple[list[Item], list[f.Finding]]:
    """The items whose media are all there, and one finding about the others: they are left out
    when `skip` says so, an error else."""
    present = []
    names = []
    looked_for: dict[str, None] = {}  # several records may lack one file
    is_remote = isinstance(source.files, Repository)
    for item in items:
        absent = _absent(item)
        if not absent:
            present.append(item)
            continue
        names.append(item.name)
        looked_for |= {_looked_for(path, item.name, is_remote): None for path in absent}
    if not names:
        return items, []
    paths = list(looked_for)
    shown = ", ".join(paths[:SHOWN_MISSING])
    if paths[SHOWN_MISSING:]:
        shown += ", ..."
    counted = f"{len(names)} of {len(items)} records"
    data = {"record_ids": names[: f.MAX_RECORD_IDS], "count": len(names)}
    data["files"] = paths[: f.MAX_RECORD_IDS]
    if skip:
        prefix = f"{os.path.abspath(source.files.root)}/"
        written = shown.replace(prefix, "")  # as the source itself has them
        message = f"left out {counted}, because there is no file {written}"
        where = ", ".join(source.tables[:3]) or source.files.root
        return present, [f.warning("BUILD-MEDIA-SKIPPED", where, message, **data)]
    message = f"got no file for {counted}: looked for {shown}"
    return items, [_media_missing(message, source, data, is_all=len(names) == len(items))]


def _absent(item: Item) -> list[Path]:
    """The files of an item that are not there."""
    files = [file for _, medium in item.media for file in source_files.files_of(medium)]
    paths = [file for file in files if isinstance(file, Path)]
    return [path for path in paths if not path.is_file()]


def _media_missing(message: str, source: Source, data: dict, is_all: bool) -> f.Finding:
    fix = Fix() if is_all else Fix(flags={"--skip-missing": True})
    if source.files.raw is None and any(map(raw_clips.is_cut, data["files"])):
        message += f"; such clips are cut from the raw data of {raw_clips.SETS}"
        fix = Fix(flags={"--raw": "DIR"})
    elif source.files.raw:
        message += f", and for raw data of {raw_clips.SETS} in {source.files.raw.root}"
    elif isinstance(source.files, Repository):
        message += "; add the clips to a local copy of the source and build that"
        fix = Fix()
    elif source.tables:
        message += _looked_further(source.files, data["files"])
    where = ", ".join(source.tables[:3]) or source.files.root
    return f.error("BUILD-MEDIA-MISSING", where, message, fix, **data)


def _found_elsewhere(source: Source) -> list[f.Finding]:
    """Names that stand for files of another name, or of another folder, which are taken as long as
    one file fits."""
    renamed = source.files.renamed
    if not renamed:
        return []
    shown = ", ".join(f"{name!r} is {path!r}" for name, path in [*renamed.items()][:SHOWN_MISSING])
    more = ", ..." if len(renamed) > SHOWN_MISSING else ""
    message = f"took the one file that fits for names of no file ({len(renamed)}): {shown}{more}"
    where = ", ".join(source.tables[:3]) or source.files.root
    files = dict([*renamed.items()][: f.MAX_RECORD_IDS])
    return [f.info("BUILD-MEDIA-RENAMED", where, message, files=files, count=len(renamed))]


def _looked_further(files: Folder, absent: list[str]) -> str:
    """What else was looked for, and what lies there that a name may mean."""
    message = ""
    here = f"{os.path.abspath(files.root)}/"
    if any(path.startswith(here) for path in absent):
        message += f", and for the last part of the name anywhere in {files.root}"
    if not all(path.startswith(here) or path.startswith("(") for path in absent):
        message += (
            "; a name that begins with / is looked for there only: "
            "write names below the folder of the table"
        )
    near = [source_files.near_names(files, path) for path in absent[:SHOWN_MISSING]]
    near = list(dict.fromkeys(name for names in near for name in names))
    if near:
        listed = ", ".join(near[:SHOWN_MISSING])
        message += f"; of names like these there are {listed}: write the names of the files"
    elif files.names and not any(map(names_medium, files.names)):
        message += f"; {files.root} holds no media: put the table beside them"
    return message


def _check_options(items: list[Item], tally: Tally) -> None:
    """Answers that are none of the options their question offers."""
    for number, item in enumerate(items):
        for asked, answer in pairwise(item.turns):
            problem = unoffered(asked.text, answer.text) if answer.role == "assistant" else None
            if problem:
                check, message = problem
                tally.add(check, number, item.name, message)


def _is_annotation(record: object) -> bool:
    """Whether it holds its questions; a row of a table may have a question and an answer as
    well."""
    if not isinstance(record, dict):
        return False
    name = form(record)
    if name != DAFT:
        return bool(name)
    if answers_by_number(record) or second_name(record) or _is_about_part(record):
        return False
    keys = record.keys()
    named = {"video_id", "image_id", "videos", "images"}
    return bool(named & keys) and not {"video", "image"} & keys


def _is_about_part(record: dict) -> bool:
    """Whether it is a row of STAR, with times of its clip: DAFT's items with times name files."""
    return {"start", "end"} <= record.keys() and not names_medium(str(record.get("video_id")))


def _with_system(item: Item, system: str) -> Item:
    if not system or item.turns[0].role == "system":
        return item
    return item._replace(turns=(Turn("system", system), *item.turns))


def _looked_for(path: Path, record: str, is_remote: bool) -> str:
    """What was looked for on behalf of a record, as a message names it."""
    if path == UNNAMED:
        return f"(no name in {record})"
    return str(path) if is_remote else os.path.abspath(path)


def _record_items(
    records, tally: Tally, files: Folder, folder: str, problems: list[f.Finding]
) -> Iterator[Item]:
    def with_split(index: int, record: dict, tally: Tally) -> tuple[Sample, str] | None:
        sample = parse(index, record, tally)
        called = str(record.get("split", "")).strip().lower()
        return (sample, called if called in split_names.NAMES else "") if sample else None

    samples = list(stream(records, tally, make=with_split))
    root = records.header.get("media_root")
    folder = posixpath.join(folder, root) if isinstance(root, str) else folder
    refused: list[f.Finding] = []
    for sample, split in samples:
        found = f.attempt(refused, _media_of, sample, files, folder)
        media = found or ()
        unnamed = media and sample.id == f"record-{sample.index}"
        name = name_of(media[0][1], files, sample.id) if unnamed else sample.id
        yield Item(
            name, media, sample.turns, sample.reasoning, sample.video_fps, sample.tags, split
        )
    problems += one_per_id(refused)


def _media_of(sample: Sample, files: Folder, folder: str) -> tuple[tuple[str, Medium], ...]:
    return tuple(
        (medium.kind, source_files.find_video(files, medium, folder)) for medium in sample.media
    )
