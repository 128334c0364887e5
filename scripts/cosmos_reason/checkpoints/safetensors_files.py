"""Safetensors files read and written as bytes: headers, indexes and the byte ranges of tensors. No
torch, no numpy: what the bytes mean is in tensor_numbers.py.

Format: 8 bytes little-endian header length, a JSON header of {name: {dtype, shape, data_offsets}},
then the data.
"""

from __future__ import annotations

import errno
import filecmp
import json
import math
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from cosmos_reason.base.files import read_json, write_json
from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, Finding, bad_input, error

INDEX_NAME, SINGLE = "model.safetensors.index.json", "model.safetensors"
BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
Copied = Callable[[int], None]  # hears of bytes as they are written
MAX_HEADER_BYTES = 100_000_000  # the limit of the reference reader
# One copy by the kernel: large enough to be cheap, small enough for a live progress bar.
_COPY_BYTES = 1 << 26
_READ_BYTES = 1 << 22
_MOST_BITS = 1 << 80  # of a tensor that a header may claim


@dataclass(frozen=True)
class Tensor:
    """A tensor whose bytes are `file[begin:end]`, or what `made()` yields while it is written in
    the place of those."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    made: Callable[[], Iterator[bytes]] | None = None

    @property
    def nbytes(self) -> int:
        return BITS[self.dtype] * math.prod(self.shape) // 8


# -- reading headers and indexes ---------------------------------------------------------------


def read_header(path: Path) -> dict[str, Tensor]:
    """Return all tensors of one file, by name. Raises Failure (CKPT-SHARD-DAMAGED) where they leave
    a gap or overlap."""
    table, start, size = _read_json_header(path)
    metadata = table.pop("__metadata__", {})
    is_table = isinstance(metadata, dict)
    if not is_table or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "__metadata__ is no table of strings")
    tensors = {name: _entry(path, name, entry, start) for name, entry in table.items()}
    position = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            message = (
                f"got {name} at byte {tensor.begin:,}, expected {position:,}: a gap or an overlap"
            )
            raise _damaged(path, message)
        position = tensor.end
    if position != size:
        raise _damaged(path, f"got {size:,} bytes, expected {position:,} from the header")
    return tensors


def _read_json_header(path: Path) -> tuple[dict, int, int]:
    """Return header table, offset of the first data byte, size of the file."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise _damaged(path, "it is no regular file")
        with open(path, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                message = (
                    f"got a header of {length:,} bytes in a file of {size:,}, expected it inside"
                )
                raise _damaged(path, message)
            table = json.loads(handle.read(length).decode(), object_pairs_hook=_without_twins)
        json.dumps(table, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except OSError as problem:
        message = f"it cannot be read: {problem.strerror}"
        raise _damaged(path, message) from None
    except (ValueError, RecursionError) as problem:
        raise _damaged(path, f"its header is no JSON object: {problem}") from None
    if not isinstance(table, dict):
        message = "its header is not of the form {name: {dtype, shape, data_offsets}}"
        raise _damaged(path, message)
    return table, 8 + length, size


def _without_twins(pairs: list[tuple[str, object]]) -> dict:
    table = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"the key {name!r} twice")
        table[name] = value
    return table


def _entry(path: Path, name: str, entry, start: int) -> Tensor:
    try:
        dtype, shape = entry["dtype"], entry["shape"]
        begin, end = entry["data_offsets"]
        for number in (*shape, begin, end):
            if type(number) is not int or number < 0:
                raise ValueError
        bits = BITS[dtype] * math.prod(shape)
        if bits >= _MOST_BITS:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        written = json.dumps(entry)[:200]
        message = f"got {name} = {written}, expected a known dtype and whole numbers from 0"
        raise _damaged(path, message) from None
    if (end - begin) * 8 != bits:
        message = f"got {end - begin} bytes for {name} ({dtype} {shape}), expected {bits // 8}"
        raise _damaged(path, message)
    return Tensor(path, dtype, tuple(shape), start + begin, start + end)


def _damaged(path: Path, problem: str) -> Failure:
    message = f"{problem}; download or export this file again"
    return Failure(error("CKPT-SHARD-DAMAGED", path, message), EXIT_CHECKS_FAILED)


def read_object(path: Path) -> dict:
    """Return a JSON object from a model folder. Raises Failure (exit 2) when the file holds
    anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        message = f"got a {type(value).__name__}, expected a JSON object"
        raise bad_input("CKPT-FILE-BAD", path, message)
    return value


def read_index(path: Path) -> dict[str, str]:
    """Return tensor name -> shard file, relative to the folder of the index. Raises Failure
    (CKPT-INDEX-BAD)."""
    try:
        text = path.read_text(encoding="utf-8")
        index = json.loads(text, object_pairs_hook=_without_twins)
        shards = index["weight_map"]
        index["metadata"]  # which transformers reads
        if not shards or not all(isinstance(file, str) for file in shards.values()):
            raise ValueError("an empty weight_map or one that does not name files")
        outside = []
        for file in sorted(set(shards.values())):
            parts = PurePosixPath(file).parts
            leads_out = not parts or parts[0].startswith("/") or ".." in parts
            if leads_out or "\\" in file or "\0" in file:
                outside.append(file)
        if outside:
            raise ValueError(f"shards {outside[:3]} outside its folder")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        message = "it is not of the form {'metadata': {}, 'weight_map': {tensor: file}}: "
        message += f"{problem!r}; export it again"
        finding = error("CKPT-INDEX-BAD", path, message)
        raise Failure(finding, EXIT_CHECKS_FAILED) from None
    return shards


def have_equal_files(one: Path, other: Path) -> bool:
    """Return whether two folders hold files of weights of the same names and bytes."""
    names = sorted(file.name for file in one.glob("*.safetensors"))
    if not names or names != sorted(file.name for file in other.glob("*.safetensors")):
        return False
    return all(filecmp.cmp(one / name, other / name, shallow=False) for name in names)


def read_folder(
    folder: Path, may_be_unlisted: Callable[[str], bool] = lambda name: False
) -> tuple[dict[str, Tensor], list[Finding]]:
    """Return the tensors of a sharded or single-file model folder, and what is wrong with it (all
    of it). What an index need not list is passed over where it does not."""
    single = folder / SINGLE
    if not (folder / INDEX_NAME).exists():
        if not single.exists():
            count = len(list(folder.glob("*.safetensors")))
            message = (
                f"it holds neither {INDEX_NAME} nor {SINGLE}, and no loader knows other names "
                f"({count} safetensors files); export it again"
            )
            return {}, [error("CKPT-INDEX-MISSING", folder, message)]
        try:
            return read_header(single), []
        except Failure as failure:
            return {}, failure.findings
    try:
        index = read_index(folder / INDEX_NAME)
    except Failure as failure:
        return {}, failure.findings
    findings = []
    if single.exists() and SINGLE not in index.values():
        message = f"it lies beside {INDEX_NAME}, and loaders take it instead of the listed files"
        fix = shlex.join(["mv", str(single), f"{single}.unused"])
        findings.append(error("CKPT-WEIGHTS-TWICE", single, message, fix))
    listed: dict[str, set[str]] = {}
    for name, file in index.items():
        listed.setdefault(file, set()).add(name)
    tensors: dict[str, Tensor] = {}
    for file in sorted(listed):
        try:
            stored = read_header(folder / file)
        except Failure as failure:
            findings += failure.findings
            continue
        unlisted = {name for name in stored.keys() - listed[file] if not may_be_unlisted(name)}
        for problem, names in (
            ("lacks tensors that the index lists", listed[file] - stored.keys()),
            ("has tensors that the index does not list", unlisted),
        ):
            if names:
                message = f"the shard {problem}: {len(names)} ({', '.join(sorted(names)[:3])})"
                findings.append(error("CKPT-INDEX-MISMATCH", folder / file, message))
        for name, tensor in stored.items():
            if name in listed[file]:
                tensors[name] = tensor
    return tensors, findings


# -- copying and writing -----------------------------------------------------------------------


def read_chunks(tensor: Tensor, size: int | None = None) -> Iterator[bytes]:
    """Yield its bytes in order, of a stored tensor `size` (else 4 MB) at a time. Raises OSError
    where the file ends early."""
    if tensor.made:
        yield from tensor.made()
        return
    size = size or _READ_BYTES
    with open(tensor.file, "rb") as handle:
        handle.seek(tensor.begin)
        for begin in range(tensor.begin, tensor.end, size):
            wanted = min(size, tensor.end - begin)
            chunk = handle.read(wanted)  # goes on reading until it has them
            if len(chunk) < wanted:
                raise OSError(errno.EIO, "it became shorter while it was read", str(tensor.file))
            yield chunk


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """Return length and header for (name, dtype, shape, nbytes) in the order of their data, padded
    to 8 bytes."""
    # transformers refuses a file that does not say so.
    table: dict = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape, nbytes in tensors:
        offsets = [position, position + nbytes]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        position += nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def copy_tensors(path: Path, tensors: Mapping[str, Tensor], copied: Copied) -> None:
    """Write {name: tensor}, on disk when it returns. Raises OSError also when one has not the bytes
    its header says."""
    entries = [
        (name, tensor.dtype, tensor.shape, tensor.nbytes) for name, tensor in tensors.items()
    ]
    with open(path, "wb") as handle:
        handle.write(header_bytes(entries))
        handle.flush()
        position = handle.tell()
        target = handle.fileno()
        for tensor in tensors.values():
            end = position + tensor.nbytes
            if not tensor.made:
                position = _copy_in_kernel(tensor, target, position, copied)
                # What the kernel refused is read.
                tensor = replace(tensor, begin=tensor.end - (end - position))
            for chunk in read_chunks(tensor):
                _write(target, chunk, position)
                position += len(chunk)
                copied(len(chunk))
            if position != end:
                message = f"got {position - end:+,} bytes, expected {tensor.nbytes:,}"
                raise OSError(errno.EIO, message, str(path))
        os.fsync(target)


def _copy_in_kernel(tensor: Tensor, target: int, position: int, copied: Copied) -> int:
    """Return the position behind what it copied: not all of it where the file systems do not let
    the kernel do it."""
    begin = tensor.begin
    with open(tensor.file, "rb") as source:
        while begin < tensor.end:
            wanted = min(tensor.end - begin, _COPY_BYTES)
            try:
                count = os.copy_file_range(source.fileno(), target, wanted, begin, position)
            except OSError as problem:
                if problem.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
                    raise
                count = 0
            if not count:
                break
            begin += count
            position += count
            copied(count)
    return position


def _write(target: int, data: bytes, position: int) -> None:
    """Write all of `data`: one call of the kernel writes at most 2 GiB, and less on a disk that
    gets full."""
    left = memoryview(data)
    while left:
        count = os.pwrite(target, left, position)
        left = left[count:]
        position += count


def copy_shards(
    folder: Path, shards: Mapping[str, Mapping[str, Tensor]], jobs: int, copied: Copied
) -> None:
    """Write {file: {name: tensor}}, `jobs` files at a time: while one waits for the disk to sync,
    another reads.

    A file has its name only when it is whole. `copied` is called from any of the threads.
    """
    stop = threading.Event()

    def hear(count: int) -> None:
        if stop.is_set():
            raise InterruptedError
        copied(count)

    def copy(file: str) -> None:
        part = folder / f"{file}.part"
        try:
            copy_tensors(part, shards[file], hear)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        os.replace(part, folder / file)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done in as_completed([pool.submit(copy, file) for file in shards]):
                done.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def write_index(folder: Path, shards: Mapping[str, str], total_size: int) -> None:
    """Write the index of {tensor: file}; `total_size` is the bytes of tensor data."""
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(shards.items()))}
    write_json(folder / INDEX_NAME, index)
