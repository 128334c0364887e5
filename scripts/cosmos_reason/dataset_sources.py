"""What people have, as items of one shape: tables of labels, label files, tables from the Hub, annotation files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cosmos_reason import findings as f
from cosmos_reason.annotations import CHECKS, Media, Tally, Turn, locate, parse, stream
from cosmos_reason.json_stream import JsonRecords
from cosmos_reason.media import resolve
from cosmos_reason.record_formats import CHOOSE, as_llava
from cosmos_reason.storage import read_json

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
MEDIA_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi", ".jpg", ".jpeg", ".png", ".webp", ".bmp")
IMAGE_SUFFIXES = MEDIA_SUFFIXES[5:]
DEFAULT_QUESTION = "What happens here?"
FEW_CLASSES, SHORT_CLASS = 12, 40  # so many answers, each of so few characters, are classes and named in the question
YES_NO = {"yes", "no"}


class Item(NamedTuple):
    """One future record. Media are files, or the bytes of a file that stood in a table."""

    name: str
    media: tuple[tuple[str, Path | bytes], ...]
    turns: tuple[Turn, ...]
    reasoning: str = ""
    video_fps: float | None = None


@dataclass(frozen=True)
class Reading:
    """How to read a source: columns by role, the question when there is none, a system prompt, label fields."""

    columns: dict[str, str]
    question: str = ""
    system: str = ""
    fields: tuple[str, ...] = ()


def kind_of(source: Path) -> str:
    """The kind of a source, from its name and what is in it. Raises Failure when it is none of KINDS."""
    if source.is_dir():
        if any(source.glob("metas/*.label.json")):
            return "labels"
        if any(source.rglob("*.parquet")) or any(source.rglob("*.arrow")):
            return "hf"
        return "llava" if locate(source).is_file() else "csv"
    if source.suffix in (".parquet", ".arrow"):
        return "hf"
    if source.suffix == ".csv":
        return "csv"
    if source.is_file():
        first = next(iter(JsonRecords(source)), None)
        return "llava" if isinstance(first, dict) and _is_annotation(first, source.parent) else "csv"
    message = "got no such file or folder, expected a folder, a table or an annotation file"
    fix = f"hf download {source} --repo-type dataset --local-dir DIR   (then give DIR)"
    raise f.bad_input("BUILD-SOURCE", source, message, fix)


def read(source: Path, kind: str, reading: Reading) -> tuple[list[Item], list[f.Finding]]:
    """All items of a source in its order, and what is wrong with its records."""
    if kind in ("qa", "daft", "llava"):
        return _read_annotations(source)
    if kind == "labels":
        return list(_read_labels(source, reading)), []
    rows = list(_hub_rows(source) if kind == "hf" else _table_rows(source))
    return list(_row_items(rows, source if source.is_dir() else source.parent, reading)), []


def _is_annotation(record: dict, folder: Path) -> bool:
    try:
        name, _ = as_llava(record, folder)
    except ValueError:
        return True
    return name != "llava" or "conversations" in record or "messages" in record


def _read_annotations(source: Path) -> tuple[list[Item], list[f.Finding]]:
    path = locate(source)
    tally, records = Tally(), JsonRecords(path)
    samples = list(stream(records, tally))
    root = path.parent / (records.header.get("media_root") or "")
    items = [
        Item(sample.id, tuple(_found(root, medium) for medium in sample.media), sample.turns, "", sample.video_fps)
        for sample in samples
    ]
    return items, tally.findings(CHECKS, path)


def _found(root: Path, medium: Media) -> tuple[str, Path]:
    return medium.kind, resolve(root, medium.path)


def _read_labels(source: Path, reading: Reading) -> Iterator[Item]:
    """`videos/<id>.<suffix>.mp4` beside `metas/<id>.label.json`: the answer is the label as JSON, or its one field."""
    videos = {path.name.split(".")[0]: path for path in sorted((source / "videos").iterdir()) if path.is_file()}
    for path in sorted((source / "metas").glob("*.label.json")):
        name = path.name.removesuffix(".label.json")
        label = read_json(path)
        if name not in videos or not isinstance(label, dict):
            raise f.bad_input("BUILD-LABEL", path, "got no video of that name, or no object, expected both")
        if missing := [field for field in reading.fields if field not in label]:
            raise f.bad_input("BUILD-FIELD", path, f"got no field {missing[0]}.{f.did_you_mean(missing[0], label)}")
        chosen = {field: label[field] for field in reading.fields or label}
        answer = _text(chosen[reading.fields[0]]) if len(reading.fields) == 1 else json.dumps(chosen, indent=2)
        turns = _turns(reading, reading.question or DEFAULT_QUESTION, answer)
        yield Item(name, (("video", videos[name]),), turns)


def _table_rows(source: Path) -> Iterator[dict]:
    """Rows of a CSV, JSON or JSON-lines table, of every table in a folder, or one per medium labelled by its folder."""
    tables = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.suffix in (".csv", ".jsonl"))
    for table in tables:
        folder = table.parent.relative_to(source) if source.is_dir() else Path()
        for row in _csv_rows(table) if table.suffix == ".csv" else JsonRecords(table):
            yield {**row, "folder": str(folder)}
    if not tables:
        for path in sorted(source.rglob("*")):
            if path.suffix.lower() in MEDIA_SUFFIXES:
                yield {"video": str(path.relative_to(source)), "answer": path.parent.name, "folder": "."}


def _csv_rows(path: Path) -> Iterator[dict]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            yield from csv.DictReader(handle)
    except (csv.Error, UnicodeDecodeError) as problem:
        raise f.bad_input("BUILD-TABLE", path, f"got {problem}, expected a UTF-8 CSV table with a header") from None


def _hub_rows(source: Path) -> Iterator[dict]:
    """Rows of the parquet or saved-to-disk arrow files of a Hugging Face dataset, class numbers as their names."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    files = [source] if source.is_file() else sorted({*source.rglob("*.parquet"), *source.rglob("*.arrow")})
    for path in files:
        try:
            table = parquet.read_table(path) if path.suffix == ".parquet" else arrow.ipc.open_stream(path).read_all()
        except (OSError, arrow.ArrowException) as problem:
            raise f.bad_input("BUILD-TABLE", path, f"got {problem}, expected a parquet or arrow table") from None
        features = (
            json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        )
        names = {name: feature["names"] for name, feature in features.items() if "names" in feature}
        for row in table.to_pylist():
            yield row | {name: classes[row[name]] for name, classes in names.items() if isinstance(row.get(name), int)}


def _row_items(rows: list[dict], root: Path, reading: Reading) -> Iterator[Item]:
    if not rows:
        raise f.bad_input("BUILD-EMPTY", root, "got no rows and no media files, expected some")
    columns = _columns(rows[0], reading.columns)
    if "conversations" in rows[0]:
        yield from _conversation_items(rows, columns, root)
        return
    if "answer" not in columns:
        raise _no_column("answer", rows[0])
    wording = _wording([_text(row.get(columns["answer"])) for row in rows])
    for number, row in enumerate(rows):
        asked = _text(row.get(columns.get("question", ""))) or reading.question or DEFAULT_QUESTION
        options = _options(row.get(columns.get("options", "")))
        lines = [asked, *(f"({letter}) {text}" for letter, text in options.items())]
        lines.append(CHOOSE if options else "" if "question" in columns else wording)
        medium = _medium(row, columns, root)
        name = _text(row.get(columns.get("id", ""))) or _stem(medium, number)
        turns = _turns(reading, "\n".join(filter(None, lines)), _text(row.get(columns["answer"])))
        yield Item(name, (medium,), turns, _text(row.get(columns.get("reasoning", ""))))


def _conversation_items(rows: list[dict], columns: dict[str, str], root: Path) -> Iterator[Item]:
    """Rows that hold whole conversations, as lists or as JSON text, with the medium in a column of its own."""
    for number, row in enumerate(rows):
        tally = Tally()
        try:
            (record,) = as_llava({"conversations": row["conversations"], "id": row.get("id")}, root)[1]
        except ValueError as problem:
            raise f.bad_input("BUILD-ROW", f"row {number}", str(problem)) from None
        sample = parse(number, record, tally)
        if sample is None:
            raise f.bad_input("BUILD-ROW", f"row {number}", next(iter(tally.first.values()))[1])
        medium = _medium(row, columns, root)
        yield Item(sample.id if row.get("id") else _stem(medium, number), (medium,), sample.turns)


def _columns(row: dict, given: dict[str, str]) -> dict[str, str]:
    for role, name in given.items():
        if role not in COLUMNS or name not in row:
            known = row if role in COLUMNS else COLUMNS
            wrong = name if role in COLUMNS else role
            raise f.bad_input("BUILD-COLUMN", wrong, f"got an unknown column or role.{f.did_you_mean(wrong, known)}")
    lowered = {name.lower(): name for name in row}
    guessed = {
        role: next((lowered[name] for name in names if name in lowered), None) for role, names in COLUMNS.items()
    }
    return {role: name for role, name in guessed.items() if name} | given


def _no_column(role: str, row: dict) -> f.Failure:
    message = f"got columns {', '.join(row)}, expected one for the {role}"
    return f.bad_input("BUILD-COLUMN", role, message, f"--column {role}=NAME")


def _medium(row: dict, columns: dict[str, str], root: Path) -> tuple[str, Path | bytes]:
    for kind in ("video", "image"):
        value = row.get(columns.get(kind, ""))
        if isinstance(value, dict):  # as the datasets library stores media: {"bytes", "path"}
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes):
            return kind, value
        if isinstance(value, str) and value:
            return _kind(kind, value), resolve(root / row.get("folder", ""), value)
    raise _no_column("video", row)


def _kind(kind: str, name: str) -> str:
    return "image" if Path(name).suffix.lower() in IMAGE_SUFFIXES else kind


def _stem(medium: tuple[str, Path | bytes], number: int) -> str:
    return medium[1].stem if isinstance(medium[1], Path) else f"row-{number}"


def _options(value: object) -> dict[str, str]:
    """{"A": text}: from a table, a list, or text with the options separated by |."""
    if isinstance(value, str):
        value = json.loads(value) if value.startswith(("[", "{")) else [part.strip() for part in value.split("|")]
    if isinstance(value, dict):
        return {letter: text for letter, text in value.items() if text is not None}
    return {chr(ord("A") + number): str(text) for number, text in enumerate(value or []) if text != ""}


def _wording(answers: list[str]) -> str:
    """What to add to a question of our own, so that answers come in the words of the labels."""
    classes = sorted(set(answers))
    if {answer.lower() for answer in classes} <= YES_NO:
        return "Answer yes or no."
    if (
        len(classes) <= FEW_CLASSES
        and len(answers) > len(classes)
        and all(len(name) <= SHORT_CLASS for name in classes)
    ):
        return f"Answer with one of: {', '.join(classes)}."
    return ""


def _turns(reading: Reading, question: str, answer: str) -> tuple[Turn, ...]:
    start = (Turn("system", reading.system),) if reading.system else ()
    return (*start, Turn("user", question), Turn("assistant", answer))


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return (value or "").strip()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else re.sub(r"\.0$", "", str(value))
