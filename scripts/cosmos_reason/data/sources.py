"""What people have, as items of one shape: tables of labels, label files, tables from the Hub,
annotation files."""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import json
import os
import posixpath
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base.files import read_json
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import caption_sets, label_questions, source_files
from cosmos_reason.data import columns as column_roles
from cosmos_reason.data.annotations import (
    ANSWER_CHECKS,
    CHECKS,
    Media,
    Sample,
    Tally,
    Turn,
    locate,
    stream,
    unoffered,
)
from cosmos_reason.data.formats import are_pairs, are_pictures, form, rates, with_options
from cosmos_reason.data.formats import options as options_in
from cosmos_reason.data.json_stream import JsonRecords, check_regular
from cosmos_reason.data.source_files import MARKER, Folder, Held, Medium, Repository
from cosmos_reason.media.files import IMAGE_SUFFIXES
from cosmos_reason.remote import model_names

COLUMNAR = (".parquet", ".arrow")
KINDS = ("csv", "labels", "hf", "qa", "daft", "llava")
ROWS_AT_ONCE = 64  # of a table whose cells may hold whole clips
UNNAMED = Path()  # the medium of a row that names none
TEXT_COLUMNS = ("id", "question", "answer", "reasoning", "options")
SCENE = ("raw", "task")
SHOWN_MISSING = 5  # names of missing files that a message holds


class Item(NamedTuple):
    """One future record. Media are files, or files to be had when the record is kept."""

    name: str
    media: tuple[tuple[str, Medium], ...]
    turns: tuple[Turn, ...]
    reasoning: str = ""
    video_fps: float | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """How to read a source: columns by role, the question when there is none, label fields, a
    system prompt where the source has none, subset and split of a dataset of the Hub, whether
    records whose medium is missing are left out."""

    columns: dict[str, str]
    question: str = ""
    fields: tuple[str, ...] = ()
    subset: str = ""
    split: str = ""
    system: str = ""
    skip_missing: bool = False


PROPOSED = {"--column", "--question"}
FLAGS = {"columns": "--column", "subset": "--hf-subset", "split": "--hf-split"}


class Source(NamedTuple):
    """Where to read and what: `tables` are names of files, each with rows or records."""

    kind: str
    files: Folder
    tables: list[str]


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
    if path.is_dir() and kind == "hf":
        return Source(kind, files, source_files.tables(files, reading.subset, reading.split))
    _refuse_unused(reading, ("subset", "split"), f"{kind} sources")
    if kind == "labels":
        return Source(kind, files, [])
    if path.is_dir():
        _refuse_scenes(path)
        return Source(kind, files, source_files.plain_tables(files))
    return Source(kind, files, [path.name])


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
    name, _, _ = written.partition("@")
    if kind not in ("auto", "hf") or not model_names.HUB_NAME.fullmatch(name):
        message = (
            "got no such file or folder, expected one, "
            "or ORG/NAME of a dataset on the Hugging Face Hub"
        )
        raise f.bad_input("BUILD-SOURCE", written, message)
    files = Repository(written)
    return Source("hf", files, source_files.tables(files, reading.subset, reading.split))


def _kind_of(path: Path) -> str:
    """From the name of a source and what is in it."""
    if any(path.glob("metas/*.label.json")):
        return "labels"
    if path.suffix in COLUMNAR or any(found.suffix in COLUMNAR for found in path.rglob("*")):
        return "hf"
    if path.is_dir():
        return "llava" if locate(path).is_file() else "csv"
    if path.suffix == ".csv":
        return "csv"
    first = next(iter(JsonRecords(path)), None)
    return "llava" if _is_annotation(first) else "csv"


def command(written: str) -> tuple[Fix, str]:
    """The command that builds a dataset of a source, with the columns and the question that a first
    look at it proposes; and what is to be said of a question, which only its author knows."""
    words = ["scripts/build_dataset.py", written, "-o", "data"]
    reading = Reading({})
    proposed: list[Fix] = []
    try:
        read(open_source(written, "auto", reading), reading)
    except f.Failure as failure:
        proposed = [finding.fix for finding in failure.findings if isinstance(finding.fix, Fix)]
    for fix in proposed:
        if fix.command:
            return fix, ""
        for flag in PROPOSED & fix.flags.keys():
            words += [flag, str(fix.flags[flag])]
    remark = ""
    if "--question" in words:
        remark = "; the question is a proposal: say what you mean"
    return Fix(command=shlex.join(words)), remark


def read(source: Source, reading: Reading) -> tuple[list[Item], list[f.Finding]]:
    """All items of a source in its order, and what is wrong with its records.

    Raises Failure with everything that keeps the source from being built.
    """
    problems: list[f.Finding] = []
    tally = Tally()
    if source.kind == "labels":
        f.attempt(problems, _refuse_unused, reading, ("columns",), "label files")
        items = list(_read_labels(source.files.root, reading, problems))
    else:
        f.attempt(problems, _refuse_unused, reading, ("fields",), f"{source.kind} sources")
        items = _read_tables(source, reading, tally, problems)
    items, missing = _without_missing(items, source, reading.skip_missing)
    if not problems:
        _check_options(items, tally)
    where = ", ".join(source.tables[:3])
    found = tally.findings(CHECKS | ANSWER_CHECKS, where)
    if problems or f.has_errors(missing):
        raise f.Failure([*problems, *missing, *found], f.EXIT_BAD_INPUT)
    return [_with_system(item, reading.system) for item in items], [*missing, *found]


def _read_tables(
    source: Source, reading: Reading, tally: Tally, problems: list[f.Finding]
) -> list[Item]:
    """The items of tables and annotation files."""
    items = []
    rows = []
    for table in source.tables:
        folder = posixpath.dirname(table)
        opened = _opened(source.files, table)
        first = next(iter(_opened(source.files, table)), None)
        if _is_annotation(first):
            what = "records that hold their questions"
            f.attempt(problems, _refuse_unused, reading, ("columns", "question"), what)
            items += _record_items(opened, tally, source.files, folder, problems)
        else:
            here = _by_clip(caption_sets.rows(list(opened)))
            tally.take(opened)
            if here and _is_annotation(here[0]):  # questions by clip
                listed = Rows(opened.path, iter(here))
                items += _record_items(listed, tally, source.files, folder, problems)
            else:
                rows += [(row, folder) for row in _each_caption(here)]
    if not source.tables:
        rows = _labelled_by_folder(source.files, reading.split)
    if not all(isinstance(row, dict) for row, _ in rows):
        message = "got a row that is no object, expected objects"
        raise f.bad_input("BUILD-TABLE", source.files.root, message)
    if rows:
        items += _row_items(rows, source.files, reading, problems)
    return items


def _without_missing(
    items: list[Item], source: Source, skip: bool
) -> tuple[list[Item], list[f.Finding]]:
    """The items whose media are all there, and one finding about the others: they are left out
    when `skip` says so, an error else."""
    present = []
    names = []
    looked_for = []
    is_remote = isinstance(source.files, Repository)
    for number, item in enumerate(items):
        absent = _absent(item)
        if not absent:
            present.append(item)
            continue
        names.append(item.name)
        looked_for += [_looked_for(path, number, is_remote) for path in absent]
    if not names:
        return items, []
    shown = ", ".join(looked_for[:SHOWN_MISSING])
    if looked_for[SHOWN_MISSING:]:
        shown += ", ..."
    counted = f"{len(names)} of {len(items)} records"
    data = {"record_ids": names[: f.MAX_RECORD_IDS], "count": len(names)}
    if skip:
        prefix = f"{os.path.abspath(source.files.root)}/"
        written = shown.replace(prefix, "")  # as the source itself has them
        message = f"left out {counted}, because there is no file {written}"
        where = ", ".join(source.tables[:3]) or source.files.root
        return present, [f.warning("BUILD-MEDIA-SKIPPED", where, message, **data)]
    message = f"got no file for {counted}: looked for {shown}"
    return items, [_media_missing(message, source, data)]


def _absent(item: Item) -> list[Path]:
    """The files of an item that are not there."""
    files = [file for _, medium in item.media for file in source_files.files_of(medium)]
    return [file for file in files if isinstance(file, Path) and not file.is_file()]


def _media_missing(message: str, source: Source, data: dict) -> f.Finding:
    fix = Fix(flags={"--skip-missing": True})
    if isinstance(source.files, Repository):
        fix = Fix(command="add the clips to a local copy of the source and build that")
    elif source.tables:
        message += f", and for the last part of the name anywhere in {source.files.root}"
    where = ", ".join(source.tables[:3]) or source.files.root
    return f.error("BUILD-MEDIA-MISSING", where, message, fix, **data)


def _check_options(items: list[Item], tally: Tally) -> None:
    """Answers that are none of the options their question offers."""
    for number, item in enumerate(items):
        for asked, answer in pairwise(item.turns):
            problem = unoffered(asked.text, answer.text) if answer.role == "assistant" else None
            if problem:
                check, message = problem
                tally.add(check, number, item.name, message)


def _by_clip(rows: list) -> list:
    """{"a.mp4": "rain", ...} as rows, or as records with their questions; other rows as they
    are."""
    if (
        len(rows) != 1
        or not isinstance(rows[0], dict)
        or not all(map(column_roles.names_medium, rows[0]))
    ):
        return rows
    return [
        {"video": name, "qa_pairs" if are_pairs(value) else "answer": value}
        for name, value in rows[0].items()
    ]


def _each_caption(rows: list) -> Iterator:
    """A row for each text of those that have several captions; other rows as they are."""
    for row in rows:
        captions = row.get("captions") if isinstance(row, dict) else None
        if isinstance(captions, list) and all(isinstance(text, str) for text in captions):
            others = {name: value for name, value in row.items() if name != "captions"}
            yield from ({**others, "caption": text} for text in captions)
        else:
            yield row


def _refuse_unused(reading: Reading, names: Iterable[str], what: str) -> None:
    """What would be ignored in silence is refused instead."""
    for name in names:
        if getattr(reading, name):
            flag = FLAGS.get(name, f"--{name}")
            raise f.bad_input(
                "USAGE", flag, f"got it for {what}, which have no use for it", f"drop {flag}"
            )


def _is_annotation(record: object) -> bool:
    """Whether it holds its questions; a row of a table may have a question and an answer as
    well."""
    if not isinstance(record, dict):
        return False
    name = form(record)
    if name != "tao-vl-reason-v1.0":
        return bool(name)
    keys = record.keys()
    return bool({"video_id", "image_id"} & keys) and not {"video", "image"} & keys


def _with_system(item: Item, system: str) -> Item:
    if not system or item.turns[0].role == "system":
        return item
    return item._replace(turns=(Turn("system", system), *item.turns))


def _looked_for(path: Path, number: int, is_remote: bool) -> str:
    """What was looked for on behalf of a record, as a message names it."""
    if path == UNNAMED:
        return f"(no name in row {number})"
    return str(path) if is_remote else os.path.abspath(path)


def _record_items(
    records, tally: Tally, files: Folder, folder: str, problems: list[f.Finding]
) -> Iterator[Item]:
    samples = list(stream(records, tally))
    root = records.header.get("media_root")
    folder = posixpath.join(folder, root) if isinstance(root, str) else folder
    refused: list[f.Finding] = []
    for sample in samples:
        found = f.attempt(refused, _media_of, sample, files, folder)
        media = found or ()
        unnamed = media and sample.id == f"record-{sample.index}"
        name = _stem(media[0][1], files, sample.id) if unnamed else sample.id
        yield Item(name, media, sample.turns, sample.reasoning, sample.video_fps, sample.tags)
    problems += _folded(refused)


def _media_of(sample: Sample, files: Folder, folder: str) -> tuple[tuple[str, Medium], ...]:
    return tuple(
        (medium.kind, source_files.find_video(files, medium, folder)) for medium in sample.media
    )


def _folded(refused: list[f.Finding]) -> list[f.Finding]:
    """One finding per id: the first, with the number of the others."""
    counts = Counter(finding.id for finding in refused)
    folded = {}
    for finding in refused:
        more = counts[finding.id] - 1
        message = finding.message + (f" (and {more} more rows)" if more else "")
        folded.setdefault(finding.id, replace(finding, message=message))
    return list(folded.values())


def _read_labels(source: Path, reading: Reading, problems: list[f.Finding]) -> Iterator[Item]:
    """`videos/<id>.<suffix>.mp4` beside `metas/<id>.label.json`: the answer is the label as JSON,
    or its one field."""
    paths = {}
    for path in sorted(source.glob("metas/*.label.json")):
        paths[path.name.removesuffix(".label.json")] = path
    videos = _videos(source, set(paths))
    answers = {}
    fields = list(dict.fromkeys(reading.fields))
    refused: list[f.Finding] = []
    for name, path in paths.items():
        clips = videos[name] = videos[name] or [source / "videos" / f"{name}.mp4"]
        label = f.attempt(refused, _label, path, clips, reading.fields)
        if label is None:
            continue
        fields += [field for field in label if field not in fields]
        answers[name] = json.dumps(label, indent=2)
        if len(reading.fields) == 1:
            answers[name] = _text(label[reading.fields[0]])
    problems += _folded(refused)
    question = f.attempt(problems, _label_question, list(answers.values()), fields, reading)
    for name, answer in answers.items():
        yield Item(name, (("video", videos[name][0]),), _turns(question or "", answer))


def _label_question(answers: list[str], fields: list[str], reading: Reading) -> str:
    """What label files are asked. Raises Failure when nobody said it."""
    if not answers:
        return ""
    question = label_questions.ask(reading.question, fields, answers, "video")
    if len(reading.fields) == 1:
        return label_questions.worded(question, fields, answers)
    return question


def _label(path: Path, clips: list[Path], fields: tuple[str, ...]) -> dict:
    """The `fields` of one label file, or all of them. Raises Failure where the label does not have
    them, and where it does not belong to one clip."""
    check_regular(path)
    label = read_json(path)
    if len(clips) != 1 or not isinstance(label, dict):
        names = ", ".join(clip.name for clip in clips) or "none"
        message = (
            f"got the clips {names} and a label {type(label).__name__}, "
            "expected one clip and an object"
        )
        raise f.bad_input("BUILD-LABEL", path, message, "keep one clip of each id in videos/")
    for field in fields:
        if field not in label:
            message = f"got no field {field}.{f.did_you_mean(field, label)}"
            raise f.bad_input("BUILD-FIELD", path, message)
    return {field: label[field] for field in fields or label}


def _videos(source: Path, names: set[str]) -> dict[str, list[Path]]:
    """The clips of every name: `<name>.mp4` or `<name>.<suffix>.mp4`, where a name may have dots
    itself: the longest name that fits counts."""
    found = defaultdict(list)
    for path in sorted(source.glob("videos/*")):
        if not column_roles.names_medium(path.name):
            continue
        name = path.name.rpartition(".")[0]
        while name and name not in names:
            name = name.rpartition(".")[0]
        if name:
            found[name].append(path)
    return found


# -- tables --


class Rows:
    """The rows of a table as annotations.stream reads the records of a file."""

    def __init__(self, path: Path, rows: Iterator[dict]):
        self.path, self.rows, self.index, self.oddities, self.header = path, rows, 0, [], {}

    def __iter__(self) -> Iterator[dict]:
        for self.index, row in enumerate(self.rows):  # noqa: B020
            yield row


def _opened(files: Folder, table: str) -> Rows | JsonRecords:
    path = files.path(table)
    if table.endswith(COLUMNAR):
        return Rows(path, _columnar_rows(files, path))
    return Rows(path, _csv_rows(path)) if table.endswith(".csv") else JsonRecords(path)


def _csv_rows(path: Path) -> Iterator[dict]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            header = handle.readline()
            handle.seek(0)
            rows = csv.DictReader(handle, strict=True, delimiter=max(",;\t", key=header.count))
            named = Counter(rows.fieldnames or ()).most_common(1)
            if named and named[0][1] > 1:
                raise ValueError(f"the column {named[0][0]!r} twice")
            for row in rows:
                if None in row:
                    raise ValueError(f"more cells than the header has in line {rows.line_num}")
                yield row
    except (csv.Error, ValueError) as problem:  # ValueError: also text that is not UTF-8
        raise f.bad_input(
            "BUILD-TABLE", path, f"got {problem}, expected a UTF-8 CSV table with a header"
        ) from None


def _columnar_rows(files: Folder, path: Path) -> Iterator[dict]:
    """Rows of a parquet file, or of an arrow file as `save_to_disk` writes it; class numbers as
    their names. Clips in cells are not kept: a name stands for them, and `files.held` knows where
    to read them again."""
    piece, number = _piece(path, 0), 0
    while piece is not None:
        described = json.loads((piece.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = described.get("info", {}).get("features", {})
        classes = {
            name: feature["names"] for name, feature in features.items() if "names" in feature
        }
        for start in range(0, piece.num_rows, ROWS_AT_ONCE):
            for offset, row in enumerate(piece.slice(start, ROWS_AT_ONCE).to_pylist(), start):
                for column, value in row.items():
                    if column in classes and isinstance(value, int):
                        row[column] = classes[column][value] if value >= 0 else None
                    elif isinstance(value, dict | bytes | list):
                        row[column] = _without_bytes(files, value, (path, number, column, offset))
                yield row
        number += 1
        piece = _piece(path, number)


@functools.lru_cache(maxsize=2)
def _piece(path: Path, number: int):
    """Row group `number` of a parquet file as a table, or the whole of an arrow file (mapped, not
    read) as piece 0.

    None past the end."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        if path.suffix == ".arrow":
            return None if number else arrow.ipc.open_stream(arrow.memory_map(str(path))).read_all()
        with parquet.ParquetFile(path) as file:
            return file.read_row_group(number) if number < file.num_row_groups else None
    except (OSError, arrow.ArrowException) as problem:
        raise f.bad_input(
            "BUILD-TABLE", path, f"got {problem}, expected a parquet or arrow table"
        ) from None


def _without_bytes(files: Folder, value, cell: tuple, place: int | None = None):
    """The value of a cell with a name in the place of each medium."""
    if isinstance(value, list) and place is None:
        return [_without_bytes(files, part, cell, number) for number, part in enumerate(value)]
    named, content = _medium_of(value)
    if content is None:
        return named or value
    suffix = Path(named or "").suffix
    key = hashlib.sha256(content).hexdigest() + suffix
    files.held[key] = Held(key, suffix, functools.partial(_cell_bytes, *cell, place))
    return key


def _medium_of(value) -> tuple[str | None, bytes | None]:
    """(name, bytes) of a medium, which the datasets library stores as {"bytes", "path"}."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["path"], value["bytes"]
    return None, value if isinstance(value, bytes) else None


def _cell_bytes(path: Path, number: int, column: str, offset: int, place: int | None) -> bytes:
    value = _piece(path, number).column(column)[offset].as_py()
    return _medium_of(value if place is None else value[place])[1]


def _labelled_by_folder(files: Folder, split: str) -> list[tuple[dict, str]]:
    """One row per medium of a source without tables, whose folder names are the labels."""
    rows = []
    for name in files.names:
        if not column_roles.names_medium(name):
            continue
        if split and split not in name.split("/"):
            continue
        label = posixpath.basename(posixpath.dirname(name))
        rows.append(({"video": name, "answer": label}, ""))
    labels = {row["answer"] for row, _ in rows}
    if len(labels) < 2 or "" in labels:
        message = f"got {len(rows)} media files in {len(labels)} folders and no labels"
        fix = (
            "write a table labels.csv beside them (video,label), "
            "or put them into one folder per label"
        )
        raise f.bad_input("BUILD-NO-LABELS", files.root, message, fix)
    return rows


def _row_items(
    rows: list[tuple[dict, str]], files: Folder, reading: Reading, problems: list[f.Finding]
) -> Iterator[Item]:
    """One item per row: its columns are guessed from their names, its question is made from the
    labels when the row has none.

    What is wrong joins the `problems`, and reading goes on with the likeliest column, so that one
    run says all.
    """
    cells, columns = _table(rows, reading.columns, problems)
    written = {role: cells.get(columns.get(role), [None] * len(rows)) for role in TEXT_COLUMNS}
    texts = {role: list(map(_text, written[role])) for role in TEXT_COLUMNS}
    answers = texts["answer"]
    f.attempt(problems, _refuse_empty, answers, columns["answer"], files)
    media = _media(rows, columns, files, problems)
    refused: list[f.Finding] = []
    options = [f.attempt(refused, _options, value) or {} for value in written["options"]]
    asking = (texts["question"], answers, options, media, columns["answer"], reading)
    questions = f.attempt(problems, _questions, *asking) or texts["question"]
    for number, (kind, medium) in enumerate(media):
        turns = f.attempt(
            refused, _asked, questions[number], options[number], answers[number], files, number
        )
        if turns and medium:
            unnamed = f"row-{number}"
            name = texts["id"][number] or _stem(medium, files, unnamed) or unnamed
            yield Item(name, ((kind, medium),), turns, texts["reasoning"][number])
    problems += _folded(refused)


def _table(
    rows: list[tuple[dict, str]], given: dict[str, str], problems: list[f.Finding]
) -> tuple[column_roles.Cells, dict[str, str]]:
    """What stands in the columns of all rows, and {role: column}."""
    names = dict.fromkeys(name for row, _ in rows for name in row)
    cells = {name: [row.get(name) for row, _ in rows] for name in names}
    columns = column_roles.of_roles(cells, given, problems)
    folders = {folder for _, folder in rows}
    if "answer" not in columns and len(folders) > 1:  # tables in folders named by the label
        columns["answer"] = "folder"
        cells["folder"] = [posixpath.basename(folder) for _, folder in rows]
    column_roles.add_likely(cells, columns, problems)
    return cells, columns


def _asked(
    question: str, options: dict[str, str], answer: str, files: Folder, number: int
) -> tuple[Turn, ...]:
    """The turns of a row, with its options in the question."""
    try:
        return _turns(*with_options(question, options, answer))
    except ValueError as problem:
        raise f.bad_input("BUILD-OPTIONS", f"{files.root}#{number}", str(problem)) from None


def _refuse_empty(answers: list[str], column: str, files: Folder) -> None:
    """Raises Failure when a row has nothing in the column of the answer."""
    if not column:
        return
    empty = [number for number, answer in enumerate(answers) if not answer]
    if empty:
        message = (
            f"got no {column} in {len(empty)} rows (the first is row {empty[0]}), "
            "expected an answer"
        )
        fix = "remove them, or name another column: --column"
        raise f.bad_input("BUILD-ANSWER-EMPTY", files.root, message, fix)


def _questions(
    stated: list[str],
    answers: list[str],
    options: list[dict],
    media: list[tuple[str, Medium | None]],
    label: str,
    reading: Reading,
) -> list[str]:
    """The question of every row: its own, or one for all labels without; rows that bring options
    are asked it without the labels in words."""
    unasked = [number for number, question in enumerate(stated) if not question]
    if not unasked:
        _refuse_unused(reading, ("question",), "rows that hold their questions")
        return stated
    labels = [answers[number] for number in unasked]
    kind, _ = media[unasked[0]]
    is_choice = any(options[number] for number in unasked)
    names = _label_fields(label, labels)
    plain = label_questions.ask(reading.question, names, labels, kind, is_choice)
    worded = plain if len(names) > 1 else label_questions.worded(plain, names, labels)
    questions = list(stated)
    for number in unasked:
        questions[number] = plain if options[number] else worded
    return questions


def _label_fields(label: str, labels: list[str]) -> list[str]:
    """The fields of labels that are objects, else the one column that they stand in."""
    fields: dict[str, None] = {}
    for text in labels:
        if not text.startswith("{"):
            return [label]
        with contextlib.suppress(ValueError):
            fields |= dict.fromkeys(json.loads(text))
    return list(fields) or [label]


def _stem(medium: Medium, files: Folder, otherwise: str) -> str:
    """The name of a file without its suffix; what stands in a table has none."""
    if isinstance(medium, Held) and medium.key in files.held:
        return otherwise
    return medium.stem


def _media(
    rows: list[tuple[dict, str]],
    columns: dict[str, str],
    files: Folder,
    problems: list[f.Finding],
) -> list[tuple[str, Medium | None]]:
    """(kind, medium) of every row: UNNAMED in an empty cell, none where what stands there is
    refused or no column is known."""
    refused: list[f.Finding] = []
    media = []
    is_known = bool({"video", "image"} & columns.keys())
    for row, folder in rows:
        named = _named_medium(row, columns)
        medium = UNNAMED if is_known else None
        if named:
            medium = f.attempt(refused, source_files.find_video, files, named, folder)
        is_image = isinstance(medium, Path | Held) and medium.suffix.lower() in IMAGE_SUFFIXES
        kind = named.kind if named else "video"
        media.append(("image" if is_image else kind, medium))
    problems += _folded(refused)
    return media


def _named_medium(row: dict, columns: dict[str, str]) -> Media | None:
    """What a row names: a file, a list of pictures, or a folder of them; None in an empty cell."""
    for kind in ("video", "image"):
        value = row.get(columns.get(kind, ""))
        if isinstance(value, str) and value:
            return Media(kind, value, fps=_rate(row))
        if kind == "video" and are_pictures(value):
            return Media(kind, value[0], tuple(value), _rate(row))
    return None


def _rate(row: dict) -> float | None:
    """Of pictures; a table has it as text."""
    for value in rates(row).values():
        with contextlib.suppress(TypeError, ValueError):
            return float(value) or None
    return None


def _options(value: object) -> dict[str, str]:
    """{"A": text}: from a table, a list, or text with the options separated by |."""
    if isinstance(value, str):
        value = _written_options(value)
    return options_in(value)


def _written_options(text: str) -> object:
    """A list or table written as JSON, else the parts between |."""
    if not text.startswith(("[", "{")):
        return [part.strip() for part in text.split("|")]
    try:
        return json.loads(text)
    except ValueError:
        message = "got no JSON list, expected one, or a | b | c"
        raise f.bad_input("BUILD-OPTIONS", text[:60], message) from None


def _turns(question: str, answer: str) -> tuple[Turn, ...]:
    return Turn("user", question), Turn("assistant", answer)


def _text(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return value.strip()
    if value is None or value != value:  # NaN is how tables say that there is none
        return ""
    return re.sub(r"\.0$", "", str(value))
