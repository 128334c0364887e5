"""Reading and writing safetensors by hand, judged by the reference library."""

import json
import os
from dataclasses import replace

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omni_layouts import write_tensors

from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import safetensors_files, tensor_numbers

SIZES = {"U8": 1, "BF16": 2, "F32": 4, "I64": 8}
names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
tensors = st.dictionaries(
    names,
    st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 4), max_size=3)),
    max_size=5,
)
in_shared_folder = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def with_bytes(specs):
    stored = {}
    for number, (name, (dtype, shape)) in enumerate(specs.items()):
        count = SIZES[dtype]
        for size in shape:
            count *= size
        stored[name] = (dtype, tuple(shape), bytes([number + 1]) * count)
    return stored


def ids(call, *args):
    with pytest.raises(Failure) as caught:
        call(*args)
    return {finding.id for finding in caught.value.findings}


@in_shared_folder
@given(tensors)
def test_what_is_written_the_reference_reads(tmp_path, specs):
    stored = with_bytes(specs)
    path = tmp_path / "a.safetensors"
    write_tensors(path, stored)
    for name, entry in safetensors.deserialize(path.read_bytes()):
        assert (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) == stored.pop(name)
    assert not stored


@in_shared_folder
@given(tensors.filter(bool), st.data())
def test_a_damaged_file_is_refused_whenever_the_reference_refuses_it(tmp_path, specs, data):
    path = tmp_path / "b.safetensors"
    write_tensors(path, with_bytes(specs))
    content = bytearray(path.read_bytes())
    damage = data.draw(st.sampled_from(["flip", "truncate", "append"]))
    position = data.draw(st.integers(0, len(content) - 1))
    if damage == "flip":
        content[position] = data.draw(st.integers(0, 255))
    elif damage == "truncate":
        content = content[:position]
    else:
        content += b"\0" * (1 + position)
    path.write_bytes(content)
    try:
        reference = {
            name: (e["dtype"], tuple(e["shape"]))
            for name, e in safetensors.deserialize(bytes(content))
        }
    except safetensors.SafetensorError:
        reference = None
    try:
        ours = {name: (t.dtype, t.shape) for name, t in safetensors_files.read_header(path).items()}
    except Failure as failure:
        assert {finding.id for finding in failure.findings} == {"CKPT-SHARD-DAMAGED"}
        return
    assert ours == reference


def header_file(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


ONE = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": {**ONE, "data_offsets": [0, 9]}}, b"1234"),
        ({"a": {**ONE, "data_offsets": [-4, 0]}}, b"1234"),
        ({"a": {**ONE, "data_offsets": [4, 0]}}, b"1234"),
        ({"a": {**ONE, "shape": [-4]}}, b"1234"),
        ({"a": {**ONE, "shape": [2.0, 2]}}, b"1234"),
        ({"a": {**ONE, "shape": [True, 4]}}, b"1234"),
        ({"a": {**ONE, "shape": [10**30, 0]}, "b": ONE}, b"123"),
        ({"a": {**ONE, "shape": [10**9] * 20_000}}, b"1234"),
        ({"a": {**ONE, "dtype": "PICKLE"}}, b"1234"),
        ({"a": ONE, "b": ONE}, b"1234"),
        ({"a": ONE, "b": {**ONE, "data_offsets": [8, 12]}}, b"1" * 12),
        ({"a": ONE}, b"12345"),
        ({"a": None}, b"1234"),
        ({"__metadata__": [], "a": ONE}, b"1234"),
        ([ONE], b"1234"),
        (
            b'{"a": ' + json.dumps(ONE).encode() + b', "a": ' + json.dumps(ONE).encode() + b"}",
            b"1234",
        ),
        (b"[" * 100_000, b""),
        (b"\xff\xfe{}", b""),
    ],
)
def test_bad_headers(tmp_path, header, data):
    path = header_file(tmp_path / "bad.safetensors", header, data)
    assert ids(safetensors_files.read_header, path) == {"CKPT-SHARD-DAMAGED"}


@pytest.mark.parametrize(
    "content", [b"", b"123", (2**63).to_bytes(8, "little"), (99).to_bytes(8, "little") + b"{}"]
)
def test_lengths_beyond_the_file(tmp_path, content):
    path = tmp_path / "short.safetensors"
    path.write_bytes(content)
    assert ids(safetensors_files.read_header, path) == {"CKPT-SHARD-DAMAGED"}


def test_files_that_cannot_be_opened(tmp_path):
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    (tmp_path / "folder.safetensors").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name in ("loop", "folder", "pipe", "absent"):
        assert ids(safetensors_files.read_header, tmp_path / f"{name}.safetensors") == {
            "CKPT-SHARD-DAMAGED"
        }


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        '{"weight_map": {}}',
        '{"weight_map": {"a": "one.safetensors"}}',  # transformers ends in a traceback
        '{"weight_map": {"a": 1}}',
        '{"weight_map": ["a"]}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": "x/../../b.safetensors"}}',
        '{"weight_map": {"a": "..\\\\b.safetensors"}}',
        '{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}',
    ],
)
def test_bad_indexes(tmp_path, index):
    path = tmp_path / safetensors_files.INDEX_NAME
    path.write_text(index)
    assert ids(safetensors_files.read_index, path) == {"CKPT-INDEX-BAD"}


def test_a_folder_reports_all_that_is_wrong(tmp_path):
    data = ("U8", (4,), b"1234")
    write_tensors(tmp_path / "one.safetensors", {"a": data, "stray": data})
    write_tensors(tmp_path / "two.safetensors", {"b": data})
    weight_map = {
        "a": "one.safetensors",
        "b": "two.safetensors",
        "c": "two.safetensors",
        "d": "gone.safetensors",
    }
    safetensors_files.write_index(tmp_path, weight_map, 12)
    found, findings = safetensors_files.read_folder(tmp_path)
    assert set(found) == {"a", "b"}
    seen = sorted((finding.id, finding.where.rsplit("/")[-1]) for finding in findings)
    assert seen == [
        ("CKPT-INDEX-MISMATCH", "one.safetensors"),
        ("CKPT-INDEX-MISMATCH", "two.safetensors"),
        ("CKPT-SHARD-DAMAGED", "gone.safetensors"),
    ]


@pytest.mark.parametrize("in_kernel", [True, False])
def test_copies_are_exact_and_counted(tmp_path, monkeypatch, in_kernel):
    if not in_kernel:

        def refuse(*args):
            raise OSError(18, "cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refuse)
    content = {f"t{n}": ("U8", (n * 70_001,), os.urandom(n * 70_001)) for n in range(6)}
    write_tensors(tmp_path / "source.safetensors", content)
    stored = safetensors_files.read_header(tmp_path / "source.safetensors")
    picked = {f"new.{name}": stored[name] for name in ("t4", "t5", "t0", "t2")}
    counts = []
    safetensors_files.copy_tensors(tmp_path / "target.safetensors", picked, counts.append)
    copied = dict(safetensors.deserialize((tmp_path / "target.safetensors").read_bytes()))
    assert {name: bytes(entry["data"]) for name, entry in copied.items()} == {
        f"new.{name}": content[name][2] for name in ("t4", "t5", "t0", "t2")
    }
    assert sum(counts) == sum(tensor.nbytes for tensor in picked.values())


def test_a_source_that_shrinks_while_it_is_copied(tmp_path):
    write_tensors(tmp_path / "source.safetensors", {"a": ("U8", (9000,), b"x" * 9000)})
    stored = safetensors_files.read_header(tmp_path / "source.safetensors")
    os.truncate(tmp_path / "source.safetensors", 5000)
    with pytest.raises(OSError, match="shorter"):
        safetensors_files.copy_tensors(tmp_path / "target.safetensors", stored, lambda count: None)


def test_a_made_tensor_has_as_many_bytes_as_its_header_says(tmp_path):
    write_tensors(tmp_path / "source.safetensors", {"a": ("U8", (9000,), b"x" * 9000)})
    stored = safetensors_files.read_header(tmp_path / "source.safetensors")["a"]
    made = replace(stored, made=lambda: iter([b"y" * 8000]))
    with pytest.raises(OSError, match="-1,000 bytes"):
        safetensors_files.copy_tensors(
            tmp_path / "target.safetensors", {"a": made}, lambda count: None
        )


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_rounds_as_torch_does(tmp_path, dtype):
    import numpy as np
    import torch

    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    values[0, :4] = [1.00390625, 1.01171875, -1.00390625, 1e-7]
    kind = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[dtype]
    expected = torch.from_numpy(values.copy()).to(kind)
    stored = tensor_numbers.from_float32(values, dtype)
    assert stored == expected.view(torch.uint8).numpy().tobytes()
    write_tensors(tmp_path / "a.safetensors", {"a": (dtype, values.shape, stored)})
    tensor = safetensors_files.read_header(tmp_path / "a.safetensors")["a"]
    assert (tensor_numbers.read_float32(tensor) == expected.float().numpy()).all()
