"""The numbers of a job as an event file that TensorBoard reads, without its package: a TFRecord of
messages `tensorflow.Event` (event.proto and summary.proto of tensorflow)."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from cosmos_reason.media import tfrecords

VERSION = b"brain.Event:2"
# Fields of Event: wall_time (1), step (2), file_version (3), summary (5); of Summary: value (1); of
# its Value: tag (1), simple_value (2).


class Events:
    """An event file that grows line by line. `path` is begun anew."""

    def __init__(self, path: Path, began: float):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "wb")  # noqa: SIM115 - lives as long as the watch
        self._write(_fixed64(1, began) + _bytes(3, VERSION))

    def add(self, line: dict) -> None:
        """Write the numbers of a line of metrics.jsonl, but for those that are not finite."""
        values = b""
        for tag, number in line.items():
            if tag not in ("time", "step", "total_steps") and math.isfinite(number):
                value = _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", number)
                values += _bytes(1, value)
        if values and "time" in line and "step" in line:
            head = _fixed64(1, line["time"]) + b"\x10" + _varint(line["step"])
            self._write(head + _bytes(5, values))

    def _write(self, event: bytes) -> None:
        self.file.write(tfrecords.framed(event))
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _fixed64(field: int, number: float) -> bytes:
    return _varint(field << 3 | tfrecords.FIXED64) + struct.pack("<d", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | tfrecords.BYTES) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
