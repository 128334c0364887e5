"""What people have, as items of one shape: tables of labels, label files, tables from the Hub, annotation files."""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import posixpath
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import findings as f
from cosmos_reason import label_questions, models, source_files
from cosmos_reason.annotations import CHECKS, Tally, Turn, locate, stream
from cosmos_reason.json_stream import JsonRecords, check_regular
from cosmos_reason.media import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from cosmos_reason.record_formats import form, with_options
from cosmos_reason.source_files import MARKER, Folder, Held, Repository
from cosmos_reason.storage import read_json

COLUMNAR = (".parquet", ".arrow")
KINDS = ("csv", "labels", "hf", "qa", "daft", "llava")
# role -> column names it is known by, best first
COLUMNS = {
    "video": ("video", "video_path", "clip", "file_name", "filename", "file", "path", "media"),
    "image": ("image", "image_path"),
    "question": ("question", "prompt", "query"),
    "answer": ("answer", "label", "class", "target", "category", "response", "caption", "text"),
    "reasoning": ("reasoning", "explanation", "rationale", "thinking"),
    "options": ("options", "choices", "index2ans"),
    "id": ("id", "uid", "video_id", "image_id"),
}
MEDIA_SUFFIXES = VIDEO_SUFFIXES + IMAGE_SUFFIXES
ROWS_AT_ONCE = 64  # of a table whose cells may hold whole clips


class Item(NamedTuple):
    """One future record. Media are files, or files to be had when the record is kept."""

    name: str
    media: tuple[tuple[str, Path | Held], ...]
    turns: tuple[Turn, ...]
    reasoning: str = ""
    video_fps: float | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """How to read a source: columns by role, the question when there is none, label fields, a system prompt where the
    source has none, subset and split of a dataset of the Hub."""

    columns: dict[str, str]
    question: str = ""
    fields: tuple[str, ...] = ()
    subset: str = ""
    split: str = ""
    system: str = ""


FLAGS = {"columns": "--column", "subset": "--hf-subset", "split": "--hf-split"}


class Source(NamedTuple):
    """Where to read and what: `tables` are names of files, each with rows or records."""

    kind: str
    files: Folder
    tables: list[str]


def open_source(written: str, kind: str, reading: Reading) -> Source:
    """What `written` names: a folder, a file, or a dataset repository ORG/NAME[@COMMIT] on the Hub; `kind` as KINDS or
    "auto". Raises Failure when it is none of them."""
    path = Path(written)
    if not path.exists() and kind in ("auto", "hf") and models.HUB_NAME.fullmatch(written.partition("@")[0]):
        files = Repository(written)
        return Source("hf", files, source_files.tables(files, reading.subset, reading.split))
    if not path.exists():
        message = "got no such file or folder, expected one, or ORG/NAME of a dataset on the Hugging Face Hub"
        raise f.bad_input("BUILD-SOURCE", written, message)
    if (path / MARKER).is_file():
        fix = f"scripts/build_dataset.py {shlex.quote(str(path / 'train'))} -o data-new"
        raise f.bad_input("BUILD-SOURCE", path, "got a dataset that is built, expected its train/ or eval/", fix)
    if not path.is_dir():
        check_regular(path)
    kind = _kind_of(path) if kind == "auto" else kind
    if kind in ("qa", "daft", "llava"):
        path = locate(path)
    files = Folder(path if path.is_dir() else path.parent)
    if path.is_dir() and kind == "hf":
        return Source(kind, files, source_files.tables(files, reading.subset, reading.split))
    _refuse_unused(reading, ("subset", "split"), f"{kind} sources")
    tables = [] if kind == "labels" else source_files.plain_tables(files) if path.is_dir() else [path.name]
    return Source(kind, files, tables)


def _kind_of(path: Path) -> str:
    """From the name of a source and what is in it."""
    if any(path.glob("metas/*.label.json")):
        return "labels"
    if path.suffix in COLUMNAR or any(found.suffix in COLUMNAR for found in path.rglob("*")):
        return "hf"
    file = locate(path)
    if path.is_dir():
        return "llava" if file.is_file() else "csv"
    return "llava" if path.suffix != ".csv" and _is_annotation(next(iter(JsonRecords(path)), None)) else "csv"


def read(source: Source, reading: Reading) -> tuple[list[Item], list[f.Finding]]:
    """All items of a source in its order, and what is wrong with its records."""
    if source.kind == "labels":
        _refuse_unused(reading, ("columns",), "label files")
        return [_with_system(item, reading.system) for item in _read_labels(source.files.root, reading)], []
    _refuse_unused(reading, ("fields",), f"{source.kind} sources")
    tally, items, rows = Tally(), [], []
    for table in source.tables:
        folder, opened = posixpath.dirname(table), _opened(source.files, table)
        if _is_annotation(next(iter(_opened(source.files, table)), None)):
            _refuse_unused(reading, ("columns", "question"), "records that hold their questions")
            items += _record_items(opened, tally, source.files, folder)
            continue
        rows += [(row, folder) for row in _by_clip(list(opened))]
        tally.take(opened)
    if not source.tables:
        rows = _labelled_by_folder(source.files, reading.split)
    if not all(isinstance(row, dict) for row, _ in rows):
        raise f.bad_input("BUILD-TABLE", source.files.root, "got a row that is no object, expected objects")
    items += _row_items(rows, source.files, reading) if rows else ()
    return [_with_system(item, reading.system) for item in items], tally.findings(CHECKS, ", ".join(source.tables[:3]))


def _by_clip(rows: list) -> list:
    """{"a.mp4": "rain", ...} as rows; other rows as they are."""
    if len(rows) != 1 or not isinstance(rows[0], dict) or not all(map(_names_medium, rows[0])):
        return rows
    return [{"video": name, "answer": answer} for name, answer in rows[0].items()]


def _names_medium(name: str) -> bool:
    return name.lower().endswith(MEDIA_SUFFIXES)


def _refuse_unused(reading: Reading, names: Iterable[str], what: str) -> None:
    """What would be ignored in silence is refused instead."""
    for name in names:
        if getattr(reading, name):
            flag = FLAGS.get(name, f"--{name}")
            raise f.bad_input("USAGE", flag, f"got it for {what}, which have no use for it", f"drop {flag}")


def _is_annotation(record: object) -> bool:
    """Whether it holds its questions; a row of a table may have a question and an answer as well."""
    if not isinstance(record, dict):
        return False
    named = {"video_id", "image_id"} & record.keys() and not {"video", "image"} & record.keys()
    return bool(form(record)) and (form(record) != "tao-vl-reason-v1.0" or bool(named))


def _with_system(item: Item, system: str) -> Item:
    own = not system or item.turns[0].role == "system"
    return item if own else item._replace(turns=(Turn("system", system), *item.turns))


def _record_items(records, tally: Tally, files: Folder, folder: str) -> Iterator[Item]:
    samples = list(stream(records, tally))
    root = records.header.get("media_root")
    folder = posixpath.join(folder, root) if isinstance(root, str) else folder
    for sample in samples:
        media = tuple((medium.kind, source_files.find(files, medium.path, folder)) for medium in sample.media)
        unnamed = media and sample.id == f"record-{sample.index}"
        name = _stem(media[0][1], files, sample.id) if unnamed else sample.id
        yield Item(name, media, sample.turns, sample.reasoning, sample.video_fps, sample.tags)


def _read_labels(source: Path, reading: Reading) -> Iterator[Item]:
    """`videos/<id>.<suffix>.mp4` beside `metas/<id>.label.json`: the answer is the label as JSON, or its one field."""
    paths = {path.name.removesuffix(".label.json"): path for path in sorted(source.glob("metas/*.label.json"))}
    videos = _videos(source, set(paths))
    answers, fields = {}, dict.fromkeys(reading.fields)
    for name, path in paths.items():
        check_regular(path)
        label = read_json(path)
        if len(videos[name]) != 1 or not isinstance(label, dict):
            called = ", ".join(clip.name for clip in videos[name]) or "none"
            message = f"got the clips {called} and a label {type(label).__name__}, expected one clip and an object"
            raise f.bad_input("BUILD-LABEL", path, message, "keep one clip of each id in videos/")
        if missing := [field for field in reading.fields if field not in label]:
            raise f.bad_input("BUILD-FIELD", path, f"got no field {missing[0]}.{f.did_you_mean(missing[0], label)}")
        chosen = {field: label[field] for field in reading.fields or label}
        fields |= dict.fromkeys(chosen)
        answers[name] = _text(chosen[reading.fields[0]]) if len(reading.fields) == 1 else json.dumps(chosen, indent=2)
    texts = list(answers.values())
    asked = label_questions.ask(reading.question, list(fields), texts, "video") if texts else ""
    asked = label_questions.worded(asked, list(fields), texts) if len(reading.fields) == 1 else asked
    for name, answer in answers.items():
        yield Item(name, (("video", videos[name][0]),), _turns(asked, answer))


def _videos(source: Path, names: set[str]) -> dict[str, list[Path]]:
    """The clips of every name: `<name>.mp4` or `<name>.<suffix>.mp4`, where a name may have dots itself."""
    found = defaultdict(list)
    for path in sorted(source.glob("videos/*")):
        parts = path.name.split(".")
        prefixes = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
        if _names_medium(path.name) and (name := next(filter(names.__contains__, prefixes), None)):
            found[name].append(path)
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


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
        raise f.bad_input("BUILD-TABLE", path, f"got {problem}, expected a UTF-8 CSV table with a header") from None


def _columnar_rows(files: Folder, path: Path) -> Iterator[dict]:
    """Rows of a parquet file, or of an arrow file as `save_to_disk` writes it; class numbers as their names. Clips in
    cells are not kept: a name stands for them, and `files.held` knows where to read them again."""
    piece, number = _piece(path, 0), 0
    while piece is not None:
        described = json.loads((piece.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = described.get("info", {}).get("features", {})
        classes = {name: feature["names"] for name, feature in features.items() if "names" in feature}
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
    """Row group `number` of a parquet file as a table, or the whole of an arrow file (mapped, not read) as piece 0.

    None past the end."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        if path.suffix == ".arrow":
            return None if number else arrow.ipc.open_stream(arrow.memory_map(str(path))).read_all()
        with parquet.ParquetFile(path) as file:
            return file.read_row_group(number) if number < file.num_row_groups else None
    except (OSError, arrow.ArrowException) as problem:
        raise f.bad_input("BUILD-TABLE", path, f"got {problem}, expected a parquet or arrow table") from None


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
    names = [name for name in files.names if _names_medium(name) and (not split or split in name.split("/"))]
    labels = {posixpath.basename(posixpath.dirname(name)) for name in names}
    if len(labels) < 2 or "" in labels:
        message = f"got {len(names)} media files in {len(labels)} folders and no labels"
        fix = "write a table labels.csv beside them (video,label), or put them into one folder per label"
        raise f.bad_input("BUILD-NO-LABELS", files.root, message, fix)
    return [({"video": name, "answer": posixpath.basename(posixpath.dirname(name))}, "") for name in names]


def _row_items(rows: list[tuple[dict, str]], files: Folder, reading: Reading) -> Iterator[Item]:
    names, folders = dict.fromkeys(name for row, _ in rows for name in row), {folder for _, folder in rows}
    columns = _columns(names, reading.columns)
    if "answer" not in columns and len(folders) > 1:  # tables in folders named by the label
        columns["answer"] = "folder"
        rows = [(row | {"folder": posixpath.basename(folder)}, folder) for row, folder in rows]
    if "answer" not in columns:
        raise _no_column("answer", names, columns)
    answers = [_text(row.get(columns["answer"])) for row, _ in rows]
    if empty := [number for number, answer in enumerate(answers) if not answer]:
        message = f"got no {columns['answer']} in {len(empty)} rows (the first is row {empty[0]}), expected an answer"
        raise f.bad_input("BUILD-ANSWER-EMPTY", files.root, message, "remove them, or name another column: --column")
    media = [_medium(row, columns, files, folder) for row, folder in rows]
    options = [_options(row.get(columns.get("options", ""))) for row, _ in rows]
    questions = [_text(row.get(columns.get("question", ""))) for row, _ in rows]
    if unasked := [number for number, question in enumerate(questions) if not question]:
        labels, choice = [answers[number] for number in unasked], any(options[number] for number in unasked)
        own = label_questions.ask(reading.question, [columns["answer"]], labels, media[unasked[0]][0], choice)
        worded = label_questions.worded(own, [columns["answer"]], labels)
    else:
        _refuse_unused(reading, ("question",), "rows that hold their questions")
    for number, (row, _) in enumerate(rows):
        medium, asked = media[number], questions[number] or (own if options[number] else worded)
        try:
            asked, answer = with_options(asked, options[number], answers[number])
        except ValueError as problem:
            raise f.bad_input("BUILD-OPTIONS", f"{files.root}#{number}", str(problem)) from None
        name = _text(row.get(columns.get("id", ""))) or _stem(medium[1], files, f"row-{number}")
        yield Item(name, (medium,), _turns(asked, answer), _text(row.get(columns.get("reasoning", ""))))


def _stem(medium: Path | Held, files: Folder, otherwise: str) -> str:
    """The name of a file without its suffix; what stands in a table has none."""
    return otherwise if isinstance(medium, Held) and medium.key in files.held else medium.stem


def _columns(names: dict[str, None], given: dict[str, str]) -> dict[str, str]:
    for name in given.values():
        if name not in names:
            raise f.bad_input("BUILD-COLUMN", name, f"got no such column.{f.did_you_mean(name, names)}")
    lowered = {name.lower(): name for name in names}
    guessed = {role: [lowered[name] for name in known if name in lowered] for role, known in COLUMNS.items()}
    return {role: found[0] for role, found in guessed.items() if found} | given


def _no_column(role: str, row: dict, columns: dict) -> f.Failure:
    message = f"got columns {', '.join(row)}, expected one for the {role}"
    free = [name for name in row if name not in columns.values()]
    fix = shlex.join(["--column", f"{role}={free[0]}"]) if free else ""
    return f.bad_input("BUILD-COLUMN", role, message, fix)


def _medium(row: dict, columns: dict[str, str], files: Folder, folder: str) -> tuple[str, Path | Held]:
    for kind in ("video", "image"):
        value = row.get(columns.get(kind, ""))
        if isinstance(value, str) and value:
            medium = source_files.find(files, value, folder)
            return "image" if medium.suffix.lower() in IMAGE_SUFFIXES else kind, medium
    raise _no_column("video", row, columns)


def _options(value: object) -> dict[str, str]:
    """{"A": text}: from a table, a list, or text with the options separated by |."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.startswith(("[", "{")) else [part.strip() for part in value.split("|")]
        except ValueError:
            raise f.bad_input("BUILD-OPTIONS", value[:60], "got no JSON list, expected one, or a | b | c") from None
    if isinstance(value, list):
        value = {chr(ord("A") + number): str(text) for number, text in enumerate(text for text in value if text != "")}
    return {letter: text for letter, text in value.items() if text is not None} if isinstance(value, dict) else {}


def _turns(question: str, answer: str) -> tuple[Turn, ...]:
    return Turn("user", question), Turn("assistant", answer)


def _text(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    missing = value is None or value != value  # NaN is how tables say that there is none
    return "" if missing else value.strip() if isinstance(value, str) else re.sub(r"\.0$", "", str(value))
