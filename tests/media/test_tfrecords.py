"""TFRecords written here byte by byte, as the format is described; those that TensorFlow Datasets
wrote are read in tests/data/test_raw_clips.py."""

import struct

import google_crc32c
import pytest

from cosmos_reason.base import findings as f
from cosmos_reason.media import tfrecords


def masked(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data):
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def example(**lists):
    entries = [
        field(1, field(1, name.encode()) + field(2, feature)) for name, feature in lists.items()
    ]
    return field(1, b"".join(entries))


def read(tmp_path, data, wanted):
    shard = tmp_path / "data.tfrecord-00000-of-00001"
    shard.write_bytes(data)
    with tfrecords.opened(shard) as opened:
        return [tfrecords.features(one, opened, wanted) for one in tfrecords.records(shard, opened)]


def test_lists_of_bytes_and_of_integers(tmp_path):
    names = field(1, field(1, b"one") + field(1, b"") + field(1, b"three"))
    packed = field(3, field(1, b"\x00\xac\x02" + b"\xff" * 9 + b"\x01"))
    unpacked = field(3, b"\x08\x05\x08\x07")
    floats = field(2, field(1, struct.pack("<2f", 1, 2)))
    data = example(names=names, packed=packed, unpacked=unpacked, floats=floats, none=b"")
    found = read(tmp_path, record(data) + record(b""), {"names", "packed", "unpacked", "none"})
    lists = {"names": [b"one", b"", b"three"], "packed": [0, 300, -1], "unpacked": [5, 7]}
    assert found == [lists | {"none": []}, {}]
    assert read(tmp_path, b"", {"names"}) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (field(1, b"\x0a\x7f"), "longer than its message"),
        (field(1, b"\x0b"), "kind 3"),
        (b"\x0a" + b"\xff" * 11, "64 bits"),
        (field(1, field(1, field(1, b"\xff"))), "codec"),
        (field(1, field(1, field(1, b"names"))), "not enough values"),
    ],
)
def test_what_is_no_example(tmp_path, data, said):
    with pytest.raises(f.Failure, match=rf"no tf\.train\.Example \(.*{said}") as failed:
        read(tmp_path, record(data), {"names"})
    assert failed.value.findings[0].id == "DATA-TFRECORD"
