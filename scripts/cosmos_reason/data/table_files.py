"""Tables row by row: CSV, XLSX, JSON, parquet, arrow, XML of CVAT."""

from __future__ import annotations

import codecs
import csv
import datetime
import functools
import hashlib
import json
import re
import shlex
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cosmos_reason.base import findings as f
from cosmos_reason.data import label_tools
from cosmos_reason.data.roles import NAMES
from cosmos_reason.data.source_files import Folder, Held
from cosmos_reason.data.turns import DateCell
from cosmos_reason.media.files import names_medium

if TYPE_CHECKING:
    from cosmos_reason.data.json_stream import JsonRecords

DELIMITED = (".csv", ".tsv")
SEPARATORS = ",;\t|"
WORKBOOK = ".xlsx"
FLAT = (*DELIMITED, WORKBOOK)  # a line is a row, and no cell holds others
OTHER_SPREADSHEETS = (".xls", ".ods")
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
COLUMNAR = (".parquet", ".arrow")
PERCENT = re.compile(r"0+(\.0+)? ?%")  # formats of numbers: 0%, 0.0%
ZEROS = re.compile("00+")  # 0007
SCANNED, LONGEST_FORMULA = 1 << 20, 1 << 14  # bytes
# What the reader of rows passes over in the XML of a sheet: merged cells, rows that are not shown,
# formulas without a value.
NOT_IN_ROWS = re.compile(
    rb'<(?:\w+:)?mergeCell [^>]*?ref="(?P<merged>[A-Z]+\d+:[A-Z]+\d+)"'
    rb'|<(?:\w+:)?row (?=[^>]*\bhidden="(?:1|true)")[^>]*?\br="(?P<row>\d+)"'
    rb"|<(?:\w+:)?c (?P<cell>[^>]*)>\s*<(?:\w+:)?f(?:\s[^>]*)?(?:/>|>[^<]*</(?:\w+:)?f>)\s*"
    rb"(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v></(?:\w+:)?v>|</(?:\w+:)?c>)"
)
CELL_NAME = re.compile(rb'\br="([A-Z]+\d+)"')
MEASURED = re.compile(r"\s*-?(?:\d+\.\d+|\d+:\d\d(?::\d\d)?(?:[.,]\d+)?)\s*")
NAMES_OF_MEDIA = {*NAMES["video"], *NAMES["image"]}
ROWS_AT_ONCE = 64  # of a table whose cells may hold whole clips


@dataclass
class Rows:
    """The rows of a table as annotations.stream reads the records of a file. `numbers` are those of
    the rows read so far, `blank` those of rows without anything, which are passed over, `hidden`
    the sheets with rows that are not shown, `filtered` the rows that the sheet itself hides."""

    path: Path
    rows: Iterable[tuple[int, dict]]
    index: int = 0
    numbers: list[int] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    filtered: set[int] = field(default_factory=set)
    oddities: list = field(default_factory=list)
    header: dict = field(default_factory=dict)

    def __iter__(self) -> Iterator[dict]:
        for self.index, row in self.rows:  # noqa: B020
            if not row:
                self.blank.append(self.index)
                continue
            self.numbers.append(self.index)
            yield row


def opened(files: Folder, table: str) -> Rows | JsonRecords:
    """Return the rows of a table, or the records of a JSON file."""
    path = files.path(table)
    if table.endswith(COLUMNAR):
        return Rows(path, enumerate(_columnar_rows(files, path)))
    if table.lower().endswith(DELIMITED):
        return Rows(path, _numbered_rows(path))
    if table.lower().endswith(WORKBOOK):
        rows = Rows(path, ())
        rows.rows = _sheet_rows(path, rows.hidden, rows.filtered)
        return rows
    if table.lower().endswith(".xml"):
        return Rows(path, enumerate(label_tools.cvat_rows(path)))
    if table.lower().endswith(OTHER_SPREADSHEETS):
        message = f"got a spreadsheet of another program, expected {WORKBOOK}, or CSV in UTF-8"
        raise f.bad_input("BUILD-TABLE", path, message)
    if table.lower().endswith(".jsonl"):
        rows = _array_rows(path)
        if rows:
            return Rows(path, enumerate(rows))
    from cosmos_reason.data.json_stream import JsonRecords

    return JsonRecords(path)


def _array_rows(path: Path) -> list[dict]:
    """Return the rows of a file with an array on each line, whose first are the names of the
    columns (SUTD-TrafficQA); none of any other file."""
    with path.open(encoding="utf-8-sig", errors="replace") as handle:
        if handle.read(1) != "[":
            return []
        handle.seek(0)
        lines = [line for line in handle if line.strip()]
    try:
        names, *rows = map(json.loads, lines)
    except (ValueError, RecursionError):
        return []
    if not rows or not all(isinstance(name, str) for name in names):
        return []
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return []
    _refuse_data_as_names(path, names)
    return [dict(zip(names, row, strict=True)) for row in rows]


def flat_rows(path: Path) -> Iterator[dict]:
    """Return the rows of a workbook, or of a table with a header, separated by commas, semicolons,
    tabs or bars."""
    is_workbook = path.name.lower().endswith(WORKBOOK)
    numbered = _sheet_rows(path, [], set()) if is_workbook else _numbered_rows(path)
    return (row for _, row in numbered if row)


def _numbered_rows(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield (its number, row) as a spreadsheet shows them: the header is row 1; {} for a blank
    one."""
    try:
        with path.open("rb") as handle:  # Excel calls UTF-16 "Unicode text"
            encoding = "utf-16" if handle.read(2) in UTF_16 else "utf-8-sig"
        with path.open(encoding=encoding, newline="") as handle:
            header = handle.readline()
            if header.startswith("# ") and handle.readline().startswith("# "):  # VIA
                raise ValueError(
                    "lines that begin with # (remove those above the names of the columns, and "
                    "what stands before the names)"
                )
            handle.seek(0)
            separator = max(SEPARATORS, key=header.count)
            lines = csv.reader(handle, strict=True, delimiter=separator)
            yield from _below_header(path, lines, separator)
    except UnicodeDecodeError:
        message = "got text that is not UTF-8, expected a UTF-8 CSV table with a header; Windows "
        message += "writes WINDOWS-1252 in Western Europe, other names of codes elsewhere"
        name = shlex.quote(str(path))
        fix = f"iconv -f WINDOWS-1252 -t UTF-8 {name} -o {name}.utf8.csv"
        raise f.bad_input("BUILD-TABLE", path, message, fix) from None
    except (csv.Error, ValueError) as problem:
        raise f.bad_input(
            "BUILD-TABLE", path, f"got {problem}, expected a UTF-8 CSV table with a header"
        ) from None


def _below_header(
    path: Path, lines: Iterable[list[str]], separator: str = ""
) -> Iterator[tuple[int, dict]]:
    """Yield (its number, row) of the lines below the first that holds something; `separator` of a
    table with quotation marks. Raises ValueError."""
    numbered = enumerate(lines, 1)
    names = next((cells for _, cells in numbered if any(cells)), [])
    for column, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"the column {column!r} twice")
    _refuse_data_as_names(path, names)
    for number, cells in numbered:
        if any(cells[len(names) :]):
            quoted = f"a text with {separator!r} needs quotation marks, and " if separator else ""
            raise ValueError(
                f"more cells than the header has in row {number} ({quoted}the row of names comes "
                "first: remove what stands above it)"
            )
        swallowed = _swallowed(cells, len(names), separator) if separator else ""
        if swallowed:
            raise ValueError(
                f"{swallowed!r} inside a cell of row {number}, an unclosed quotation mark"
            )
        is_blank = not any(map(str.strip, cells))
        values = [*cells, *[None] * (len(names) - len(cells))][: len(names)]
        yield number, {} if is_blank else dict(zip(names, values, strict=True))


def _swallowed(cells: list[str], width: int, separator: str) -> str:
    """Return a clip whose row a cell took in behind a quotation mark that nobody closed; "" for
    none. Without that mark the first line of the cell ends its own row, and another one is a whole
    row, with clips in the same columns; a text of several lines is neither."""
    for column, cell in enumerate(cells):
        if "\n" not in cell:
            continue
        first, *others = (line.split(separator) for line in cell.splitlines())
        own = [*cells[:column], *first]
        shown = [place for place, text in enumerate(own) if names_medium(text.strip())]
        if len(own) != width or not shown:
            continue
        for line in others:
            found = [place for place, text in enumerate(line) if names_medium(text.strip())]
            if len(line) == width and found == shown:
                return line[shown[0]]
    return ""


def _refuse_data_as_names(path: Path, names: list[str]) -> None:
    """Raise Failure where the first row is a record: it names a clip or a picture, or holds a time
    or a number with a fraction and no name that a column of clips has (thresholds may be names)."""
    data = [name for name in names if names_medium(name.strip())]
    if not NAMES_OF_MEDIA & {name.strip().lower() for name in names}:
        data += filter(MEASURED.fullmatch, names)
    if data:
        message = (
            f"got {data[0]!r} among the names of the columns, so the first row is a record; "
            "write a row with a name for each column above it"
        )
        raise f.bad_input("BUILD-TABLE", path, message)


def _sheet_rows(path: Path, hidden: list[str], filtered: set[int]) -> Iterator[tuple[int, dict]]:
    """Yield what `_numbered_rows` yields of the same table saved as CSV: texts as the sheet shows
    them, in each of merged rows. A formula is what the program that saved it last computed. Sheets
    with rows that are not shown join `hidden`, and single such rows `filtered`. Raises Failure for
    a workbook whose rows lie in several sheets, and for cells that no CSV has."""
    from openpyxl.reader.excel import ExcelReader

    try:
        reader = ExcelReader(path, read_only=True, data_only=True)
        reader.read()
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, SyntaxError) as problem:
        message = f"got {problem}, expected an {WORKBOOK} workbook without a password"
        raise f.bad_input("BUILD-TABLE", path, message) from None
    book = reader.wb
    try:
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # some programs write a size that is too small
        filled = [
            one
            for one in book.worksheets
            if any(cell is not None for row in one.iter_rows(values_only=True) for cell in row)
        ]
        shown = [one for one in filled if one.sheet_state == "visible"] or filled
        if len(shown) > 1:
            titles = ", ".join(sheet.title for sheet in shown)
            message = f"got rows in several sheets: {titles}; save the one that is meant by itself"
            raise f.bad_input("BUILD-TABLE", path, message)
        hidden += [one.title for one in filled if one not in shown]
        places = {entry.name: part.target for entry, part in reader.parser.find_sheets()}
        for sheet in shown:
            with reader.archive.open(places[sheet.title]) as content:
                merged, unseen = _merged_and_unseen(content, sheet.title)
            filtered |= unseen
            yield from _below_header(path, _without_tail(_sheet_lines(sheet, merged)))
    except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError) as problem:
        raise f.bad_input(
            "BUILD-TABLE", path, f"got {problem}, expected one table with a header"
        ) from None
    finally:
        book.close()


def _merged_and_unseen(content: IO[bytes], title: str) -> tuple[set[str], set[int]]:
    """Return (the cells that a sheet merges, as A2:A4, the numbers of the rows that it does not
    show) from its XML: the reader of its rows passes over both. Raises ValueError for a formula
    that was never computed, over which it passes too."""
    merged, unseen = set(), set()
    before = b""
    while block := content.read(SCANNED):
        for match in NOT_IN_ROWS.finditer(before + block):
            if match["merged"]:
                merged.add(match["merged"].decode())
            elif match["row"]:
                unseen.add(int(match["row"]))
            elif b't="str"' not in match["cell"]:  # a text that is empty
                name = CELL_NAME.search(match["cell"])
                where = name[1].decode() if name else "a cell"
                raise ValueError(
                    f"a formula in {where} of {title} that no program has computed (open and save "
                    "the workbook in one)"
                )
        before = block[-LONGEST_FORMULA:]
    return merged, unseen


def _sheet_lines(sheet, merged: set[str]) -> Iterator[list[str]]:
    """Yield the texts of each row. Cells merged over several rows have their text in each. Raises
    ValueError for cells merged over several columns."""
    from openpyxl.utils.cell import range_boundaries

    starts = {}  # (row, column) of the first cell -> (last row, last column)
    for written in merged:
        left, top, right, bottom = range_boundaries(written)
        starts[top, left - 1] = bottom, right - 1
    below: dict[int, tuple[int, str]] = {}  # column -> (last row, text) of a merge that goes on
    for number, row in enumerate(sheet.iter_rows(), 1):
        texts = [_shown(cell) for cell in row]
        for column, (last, text) in list(below.items()):
            if number > last:
                del below[column]
                continue
            texts += [""] * (column + 1 - len(texts))
            texts[column] = text
        for column, text in enumerate(texts) if starts else ():
            last, right = starts.get((number, column), (0, 0))
            if text and right > column:
                raise ValueError(f"{text!r} in columns merged in row {number}")
            if text and last > number:
                below[column] = last, text
        yield texts


def _without_tail(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield rows without the empty cells and rows at the end, which a sheet keeps when they were
    once formatted."""
    blank: list[list[str]] = []
    for row in rows:
        while row and not row[-1]:
            row.pop()
        blank.append(row)
        if row:
            yield from blank
            blank = []


def _shown(cell) -> str:
    """Return the text of a cell. A time is shown as h:mm where its format has no seconds, which is
    what a program makes of a typed 1:23; `parts.seconds` reads it as it reads that of a CSV."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()  # as both programs and their CSV write it
    if isinstance(value, int | float):
        written = cell.number_format
        if percent := PERCENT.match(written):
            return f"{value:.{len(percent[1] or '.') - 1}%}"
        if ZEROS.fullmatch(written) and value == int(value):
            return f"{int(value):0{len(written)}}"
        # the digits that a sheet keeps
        return f"{value:.15g}" if isinstance(value, float) else str(value)
    if isinstance(value, datetime.datetime):
        is_day = not (value.hour or value.minute or value.second or value.microsecond)
        return DateCell(value.date().isoformat() if is_day else value.isoformat(sep=" "))
    if isinstance(value, datetime.time):
        since = datetime.datetime.combine(datetime.date.min, value)
        value = since - datetime.datetime.min
    if not isinstance(value, datetime.timedelta):
        return str(value)
    minutes, seconds = divmod(value.total_seconds(), 60)
    hours, minutes = divmod(int(minutes), 60)
    if seconds or "s" in cell.number_format.lower():
        return f"{hours}:{minutes:02}:{seconds:09.6f}".rstrip("0").rstrip(".")
    return f"{hours}:{minutes:02}"


def _columnar_rows(files: Folder, path: Path) -> Iterator[dict]:
    """Yield the rows of a parquet file, or of an arrow file as `save_to_disk` writes it; class
    numbers as their names. Clips in cells are not kept: a name stands for them, and `files.held`
    knows where to read them again."""
    number = 0
    piece = _piece(path, number)
    while piece is not None:
        # The datasets library writes the names of classes into a table so.
        described = json.loads((piece.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = described.get("info", {}).get("features", {})
        classes = {key: one["names"] for key, one in features.items() if "names" in one}
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
    """Return row group `number` of a parquet file as a table, or the whole of an arrow file
    (mapped, not read) as piece 0; None past the end."""
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
    """Return the value of a cell with a name in the place of each medium."""
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
    """Return (name, bytes) of a medium, which the datasets library stores as {"bytes", "path"}."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["path"], value["bytes"]
    return None, value if isinstance(value, bytes) else None


def _cell_bytes(path: Path, number: int, column: str, offset: int, place: int | None) -> bytes:
    """Return the bytes of a clip that stands in a cell, or at a place of the list in it."""
    value = _piece(path, number).column(column)[offset].as_py()
    if place is not None:
        value = value[place]
    _, content = _medium_of(value)
    return content
