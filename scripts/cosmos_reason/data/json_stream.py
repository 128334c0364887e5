"""The records of a large JSON file one at a time: an array, an object around an array, or one
object per line.

Text is read in blocks and every record decoded by the standard library's scanner, so a file costs
the memory of one record. Whatever the standard decoder would pass over in silence is remembered in
`oddities`. Who can take many records at once says how whole lines are read (`many`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure, bad_input
from cosmos_reason.data import nested_rows, split_names

BLOCK = 1 << 22  # characters: of many records what is the same is looked at once
LONGEST_LITERAL = 16  # of true, -Infinity, \\u escapes: how far before a cut the decoder may stop
ENVELOPE_KEYS = ("annotations", "items", "samples", "data", "records")
# In a record these may hold something else than records, which are objects.
ENVELOPES_OF_OBJECTS = ("clips", "rows", "results", "examples", "predictions")
OBJECTS = re.compile(r"\[\s*\{")
WHITE = " \t\r\n"
SPACE = re.compile(f"[{WHITE}]*")


class JsonRecords:
    """Iterate over it for the records. `header` fills with what stands around them in an object.

    `many` gets (whole lines, the comma that ends each, or "", the number of the first record) and
    returns as many records as there are lines, in one object that stands among the records for all
    of them; or None, for these lines to be read one record at a time."""

    def __init__(
        self, path: str | Path, many: Callable[[str, str, int], Sized | None] | None = None
    ):
        self.path = Path(path)
        self._many = many
        self.header: dict = {}
        self.oddities: list[tuple[str, str]] = []  # (check, message) since they were last taken
        self.index = 0
        self.read = 0  # records so far
        self._text = ""
        self._before = 0  # characters of the file before the text
        self._single_until = 0  # the character up to which records are read one at a time
        self._position = 0
        self._line = 1
        self._ended = False
        self._decode = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=self._constant
        ).raw_decode

    def __iter__(self) -> Iterator[object]:
        """Raises Failure, naming record and line, where the text stops being JSON."""
        with _opened(self.path) as self._handle:
            if self._peek() == "[":
                yield from self._elements()
            elif self._peek() == "{":
                yield from self._lines() if self._has_lines() else self._members()
            else:
                raise self._failure("got no JSON array or object")
            if self._peek():
                raise self._failure(f"got {self._peek()!r} after the last record")

    def _has_lines(self) -> bool:
        """Return whether the first line is an object of its own, with another below it."""
        first, _, rest = self._text[self._position :].partition("\n")
        try:
            return rest.lstrip()[:1] == "{" and isinstance(json.loads(first), dict)
        except (ValueError, RecursionError):
            return False

    def _lines(self) -> Iterator[object]:
        while self._peek() == "{":
            yield from self._tables("")
            if self._peek() == "{":
                yield self._record()
                self.index += 1

    def _members(self) -> Iterator[object]:
        """Yield an object: the records are in one of its arrays, or it is itself the first record
        of several."""
        found = ""
        for key in self._keys():
            if not found and self._is_envelope(key):
                found = key
                yield from self._elements()
                continue
            if key in self.header:
                self._twice(key)
            value = self.header[key] = self._value()
            if found and key in ENVELOPE_KEYS and isinstance(value, list) and value:
                raise self._failure(f'got records in "{found}" and in "{key}"')
        for key in self.header if found else ():
            if split_names.exact(key) and nested_rows.holds_records(self.header[key]):
                several = f'got records in "{found}" and in "{key}"'
                raise self._failure(f'{several} (call "{found}" after its split, too)')
        if not found:
            record = self.header
            self.header = {}
            self.read += 1
            yield record
            self.index += 1
            yield from self._lines()

    def _is_envelope(self, key: str) -> bool:
        """Return whether the value to be read next holds the records."""
        if key in ENVELOPE_KEYS:
            return self._peek() == "["
        if key not in ENVELOPES_OF_OBJECTS or self._peek() != "[":
            return False
        while self._text[self._position + 1 :].isspace() or len(self._text) == self._position + 1:
            if not self._read_on():
                break
        return OBJECTS.match(self._text, self._position) is not None

    def _elements(self) -> Iterator[object]:
        self._take("[")
        if self._peek() == "]":
            return self._take("]")
        while True:
            self._peek()
            yield from self._tables(",")
            yield self._record()
            if self._peek() != ",":
                return self._take("]")
            self._position += 1
            self.index += 1

    def _tables(self, comma: str) -> Iterator[Sized]:
        """Yield what `many` makes of the whole lines of the block, where it can."""
        if not self._many or self._before + self._position < self._single_until:
            return
        end = f"}}{comma}\n"
        last = self._text.rfind(end, self._position)
        if last < 0:  # all of it is one line, which need not be searched for each of its records
            self._single_until = self._before + len(self._text)
            return
        stop = last + len(end)
        several = self._many(self._text[self._position : stop], comma, self.index)
        if several is None:
            self._single_until = self._before + max(stop, self._position + 1)
            return
        yield several
        self.index += len(several)
        self.read += len(several)
        self._position = stop

    def _record(self) -> object:
        self.read += 1
        return self._value()

    def _keys(self) -> Iterator[str]:
        self._take("{")
        while self._peek() == '"':
            key = self._value()
            self._take(":")
            yield key
            if self._peek() != ",":
                break
            self._take(",")
        self._take("}")

    def _peek(self) -> str:
        """Return the next character that is not space; '' at the end."""
        character = self._text[self._position : self._position + 1]
        if character and character not in WHITE:
            return character
        self._position = SPACE.match(self._text, self._position).end()
        while self._position == len(self._text) and self._read_on():
            self._position = SPACE.match(self._text, self._position).end()
        return self._text[self._position : self._position + 1]

    def _take(self, character: str) -> None:
        if self._peek() != character:
            raise self._failure(f"got {self._peek() or 'the end'!r}, expected {character!r}")
        self._position += 1

    def _value(self) -> object:
        if self._text[self._position : self._position + 1] != "{":
            self._peek()
        known = len(self.oddities)
        while True:
            del self.oddities[known:]
            try:
                value, end = self._decode(self._text, self._position)
            except json.JSONDecodeError as problem:
                # A record may be cut by the end of the block: read on, twice as far each time.
                cut = (
                    problem.msg.startswith("Unterminated")
                    or problem.pos > len(self._text) - LONGEST_LITERAL
                )
                if not (cut and self._read_on(len(self._text) - self._position)):
                    raise self._failure(
                        f"got {problem.msg} at column {problem.colno}", problem.pos
                    ) from None
            except (ValueError, RecursionError) as problem:
                raise self._failure(f"got {problem}") from None
            else:
                if (
                    end + 2 < len(self._text) or not self._read_on()
                ):  # "1." and "1e-" may go on in the next block
                    self._position = end
                    return value

    def _read_on(self, size: int = 0) -> bool:
        if self._ended:
            return False
        try:
            more = self._handle.read(max(size, BLOCK))
        except UnicodeDecodeError as problem:
            # The decoder counts from the block's begin, and the record may stand far above.
            self._line, self._text = _undecodable_line(self.path), ""
            raise self._failure(f"got {problem}, expected UTF-8") from None
        if more:
            self._line += self._text.count("\n", 0, self._position)
            self._before += self._position
            self._text = self._text[self._position :] + more
            self._position = 0
        self._ended = not more
        return bool(more)

    def _object(self, pairs: list[tuple[str, object]]) -> dict:
        value = dict(pairs)
        if len(value) != len(pairs):
            self._twice(Counter(key for key, _ in pairs).most_common(1)[0][0])
        return value

    def _twice(self, key: str) -> None:
        self.oddities.append(
            ("DATA-JSON-KEY-TWICE", f"got the key {key[:60]!r} twice in one object")
        )

    def _constant(self, name: str) -> float:
        self.oddities.append(("DATA-JSON-CONSTANT", f"got {name}, which is not JSON"))
        return float(name)

    def _failure(self, problem: str, position: int | None = None) -> Failure:
        line = self._line + self._text.count(
            "\n", 0, self._position if position is None else position
        )
        message = (
            f"{problem} (line {line}), expected a JSON array of records, or one object per line"
        )
        return bad_input(
            "DATA-JSON", f"{self.path}#{self.index}", message, record_ids=[f"record-{self.index}"]
        )


def _undecodable_line(path: Path) -> int:
    """Return the number of the first line that is no UTF-8."""
    with path.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1  # the file has changed since


def _opened(path: Path):
    """Return the file as text; a byte-order mark of UTF-8 is passed over."""
    try:
        files.check_regular(path)
        with path.open("rb") as handle:
            encoding = json.detect_encoding(handle.read(4)).upper()
        if encoding in ("UTF-16", "UTF-32"):  # with a mark; without one it is no JSON
            copy = path.with_name(f"{path.stem}-utf8{path.suffix}")
            fix = (
                f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > {shlex.quote(str(copy))}"
            )
            raise bad_input("DATA-ENCODING", path, f"got {encoding} text, expected UTF-8", fix)
        return path.open(encoding="utf-8-sig")
    except OSError as problem:
        raise bad_input(
            "FILE-UNREADABLE", path, f"got {problem.strerror}, expected a readable file"
        ) from None
