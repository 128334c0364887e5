"""Shards of TensorFlow Datasets: TFRecord files, each record a tf.train.Example.

A record is its length (8 bytes, little-endian), a checksum of the length (4), the data and a
checksum of the data (4): CRC-32C, masked as tensorflow's record_writer.h does. An Example maps
names to lists of bytes, floats or integers, in the wire format of protocol buffers.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base.findings import Failure, bad_input

HEAD = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
MASK = 0xA282EAD8
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields
WIDTHS = {FIXED64: 8, FIXED32: 4}
BYTES_LIST, INT64_LIST = 1, 3  # the fields of tf.train.Feature that are read

Buffer = mmap.mmap | bytes
Span = tuple[int, int]  # begin and end in a buffer


class Record(NamedTuple):
    """Where the data of a record lie."""

    shard: Path
    begin: int
    end: int


@contextmanager
def opened(shard: Path) -> Iterator[Buffer]:
    """Yield the bytes of a shard, of which the disk reads only what is looked at."""
    with shard.open("rb") as file:
        if not shard.stat().st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def records(shard: Path, data: Buffer) -> Iterator[Record]:
    """Yield the records of an opened shard. Raises Failure where it is cut short, or is none."""
    at = 0
    while at < len(data):
        head = data[at : at + HEAD.size]
        if len(head) < HEAD.size or _checksum(head[:8]) != HEAD.unpack(head)[1]:
            raise _damaged(shard, at, "no length of a record, or another checksum than it tells")
        begin = at + HEAD.size
        end = begin + HEAD.unpack(head)[0]
        at = end + CHECKSUM.size
        if at > len(data):
            raise _damaged(shard, begin, f"an end after {len(data)} bytes")
        yield Record(shard, begin, end)


def features(
    record: Record, data: Buffer, wanted: Collection[str]
) -> dict[str, list[bytes] | list[int]]:
    """Return the wanted lists of bytes and of integers that a record has, by their names. Its
    checksum is not looked at: see `check`. Raises Failure for what is no Example."""
    found = {}
    try:
        for everything in _messages(data, (record.begin, record.end), 1):
            for entry in _messages(data, everything, 1):
                name = b"".join(data[slice(*key)] for key in _messages(data, entry, 1)).decode()
                if name in wanted:
                    (feature,) = _messages(data, entry, 2)
                    found[name] = _values(data, feature)
    except (ValueError, IndexError) as problem:
        raise _damaged(record.shard, record.begin, f"no tf.train.Example ({problem})") from None
    return found


def check(record: Record, data: Buffer) -> None:
    """Raise Failure unless the data of a record have the checksum that stands behind them."""
    (checksum,) = CHECKSUM.unpack_from(data, record.end)
    if _checksum(data[record.begin : record.end]) != checksum:
        raise _damaged(record.shard, record.begin, "other data than their checksum tells")


def framed(data: bytes) -> bytes:
    """Return a record as it stands in a file, with its length and checksums."""
    length = struct.pack("<Q", len(data))
    checksums = [CHECKSUM.pack(_checksum(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]


def _checksum(data: bytes) -> int:
    import google_crc32c

    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def _damaged(shard: Path, at: int, got: str) -> Failure:
    message = f"got {got}, at byte {at}; expected whole TFRecords; download the file again"
    return bad_input("DATA-TFRECORD", shard, message)


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return a number of 7 bits per byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(data: Buffer, span: Span) -> Iterator[tuple[int, int | Span]]:
    """Yield (number, value) of each field of a message: an integer, or where its bytes lie."""
    at, end = span
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind == BYTES:
            size, at = _varint(data, at)
            value = (at, at + size)
            at = at + size
        elif kind in WIDTHS:
            value = (at, at + WIDTHS[kind])
            at = at + WIDTHS[kind]
        else:
            raise ValueError(f"a field of kind {kind}")
        if at > end:
            raise ValueError("a field that is longer than its message")
        yield number, value


def _messages(data: Buffer, span: Span, number: int) -> Iterator[Span]:
    """Yield where the bytes of each field of this number lie."""
    for found, value in _fields(data, span):
        if found == number and isinstance(value, tuple):
            yield value


def _values(data: Buffer, feature: Span) -> list[bytes] | list[int]:
    for kind, listed in _fields(data, feature):
        if kind == BYTES_LIST:
            return [data[slice(*span)] for span in _messages(data, listed, 1)]
        if kind == INT64_LIST:
            return list(_integers(data, listed))
    return []


def _integers(data: Buffer, listed: Span) -> Iterator[int]:
    """Yield the integers of an Int64List, whose writers pack all values into one field."""
    for _, value in _fields(data, listed):
        if isinstance(value, int):
            yield _signed(value)
            continue
        at, end = value
        while at < end:
            number, at = _varint(data, at)
            yield _signed(number)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
