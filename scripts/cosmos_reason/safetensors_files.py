"""Safetensors files read and written as bytes: headers, indexes and the byte ranges of tensors. No torch, no numpy.

Format: 8 bytes little-endian header length, a JSON header of {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from cosmos_reason.findings import EXIT_CHECKS_FAILED, Failure, Finding, bad_input, error
from cosmos_reason.storage import read_json, write_json

INDEX_NAME, SINGLE = "model.safetensors.index.json", "model.safetensors"
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
FLOATS = {"BF16", "F16", "F32"}
Copied = Callable[[int], None]  # hears of bytes as they are written
MAX_HEADER_BYTES = 100_000_000  # the limit of the reference reader
_COPY_BYTES = 1 << 26  # one kernel copy: large enough to be cheap, small enough for a live progress bar
_PLAIN_BYTES = 1 << 22


@dataclass(frozen=True)
class Tensor:
    """A tensor whose bytes are `file[begin:end]`, or what `made()` yields while it is written in the place of those."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    made: Callable[[], Iterator[bytes]] | None = None

    @property
    def nbytes(self) -> int:
        return BITS[self.dtype] * math.prod(self.shape) // 8


def _damaged(path: Path, problem: str) -> Failure:
    return Failure(error("CKPT-SHARD-DAMAGED", path, problem, "download or export this file again"), EXIT_CHECKS_FAILED)


def _without_twins(pairs: list[tuple[str, object]]) -> dict:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return table


def _read_json_header(path: Path) -> tuple[dict, int, int]:
    """Header table, offset of the first data byte, size of the file."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise _damaged(path, "got no regular file, expected a safetensors file")
        with open(path, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise _damaged(path, f"got a header of {length:,} bytes in a file of {size:,}, expected it inside")
            table = json.loads(handle.read(length).decode(), object_pairs_hook=_without_twins)
        json.dumps(table, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except OSError as problem:
        raise _damaged(path, f"got {problem.strerror}, expected a readable safetensors file") from None
    except (ValueError, RecursionError) as problem:
        raise _damaged(path, f"got a header with {problem}, expected a JSON object") from None
    if not isinstance(table, dict):
        raise _damaged(path, "got a header that is no object, expected {name: {dtype, shape, data_offsets}}")
    return table, 8 + length, size


def _entry(path: Path, name: str, entry, start: int) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError
        if (bits := BITS[dtype] * math.prod(shape)) >= 1 << 80:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        text = json.dumps(entry)[:200]
        raise _damaged(path, f"got {name} = {text}, expected a known dtype and whole numbers from 0") from None
    if (end - begin) * 8 != bits:
        raise _damaged(path, f"got {end - begin} bytes for {name} ({dtype} {shape}), expected {bits // 8}")
    return Tensor(path, dtype, tuple(shape), start + begin, start + end)


def read_header(path: Path) -> dict[str, Tensor]:
    """All tensors of one file, by name. Raises Failure (CKPT-SHARD-DAMAGED) where they leave a gap or overlap."""
    table, start, size = _read_json_header(path)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "got __metadata__ that is no table of texts, expected {name: text}")
    tensors = {name: _entry(path, name, entry, start) for name, entry in table.items()}
    position = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            raise _damaged(path, f"got {name} at byte {tensor.begin:,}, expected {position:,}: a gap or an overlap")
        position = tensor.end
    if position != size:
        raise _damaged(path, f"got {size:,} bytes, expected {position:,} from the header")
    return tensors


def read_object(path: Path) -> dict:
    """A JSON object from a model folder. Raises Failure (exit 2) when the file holds anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise bad_input("CKPT-FILE-BAD", path, f"got a {type(value).__name__}, expected a JSON object")
    return value


def read_index(path: Path) -> dict[str, str]:
    """Tensor name -> shard file, relative to the folder of the index. Raises Failure (CKPT-INDEX-BAD)."""
    try:
        shards = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_twins)["weight_map"]
        if not shards or not all(isinstance(file, str) for file in shards.values()):
            raise ValueError("an empty weight_map or one that does not name files")
        if outside := sorted({file for file in shards.values() if _leaves_folder(file)}):
            raise ValueError(f"shards {outside[:3]} outside its folder")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        message = f"got {problem!r}, expected {{'weight_map': {{tensor: file}}}}"
        finding = error("CKPT-INDEX-BAD", path, message, "export the checkpoint again")
        raise Failure(finding, EXIT_CHECKS_FAILED) from None
    return shards


def _leaves_folder(file: str) -> bool:
    path = PurePosixPath(file)
    return path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file or not path.parts


def read_folder(folder: Path) -> tuple[dict[str, Tensor], list[Finding]]:
    """The tensors of a sharded or single-file model folder, and what is wrong with it (all of it)."""
    single, index, tensors, findings = folder / SINGLE, None, {}, []
    if (folder / INDEX_NAME).exists():
        try:
            index = read_index(folder / INDEX_NAME)
        except Failure as failure:
            return {}, failure.findings
        if single.exists() and SINGLE not in index.values():
            message = f"got it beside {INDEX_NAME}, expected one of them: loaders take it instead of the listed files"
            fix = shlex.join(["mv", str(single), f"{single}.unused"])
            findings.append(error("CKPT-WEIGHTS-TWICE", single, message, fix))
    elif not single.exists():
        got = f"{len(list(folder.glob('*.safetensors')))} other safetensors files and no {INDEX_NAME}"
        message = f"got {got}, expected that or {SINGLE}: no loader knows other names"
        return {}, [error("CKPT-INDEX-MISSING", folder, message, "export the checkpoint again")]
    for file in sorted(set(index.values())) if index else [SINGLE]:
        try:
            found = read_header(folder / file)
        except Failure as failure:
            findings += failure.findings
            continue
        expected = {name for name, shard in index.items() if shard == file} if index else found.keys()
        for problem, names in (("lacks", expected - found.keys()), ("has beside the index", found.keys() - expected)):
            if names:
                some = ", ".join(sorted(names)[:3])
                message = f"got a shard that {problem} {len(names)} tensors ({some}), expected what {INDEX_NAME} lists"
                findings.append(error("CKPT-INDEX-MISMATCH", folder / file, message))
        tensors |= {name: found[name] for name in expected & found.keys()}
    return tensors, findings


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """Length and header for (name, dtype, shape, nbytes) in the order of their data, padded to 8 bytes."""
    table: dict = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    position = 0
    for name, dtype, shape, nbytes in tensors:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def copy_tensors(path: Path, tensors: Mapping[str, Tensor], copied: Copied) -> None:
    """Write {name: tensor}, on disk when it returns. Raises OSError also when one has not the bytes its header says."""
    with open(path, "wb") as handle:
        handle.write(header_bytes((name, t.dtype, t.shape, t.nbytes) for name, t in tensors.items()))
        handle.flush()
        position, target = handle.tell(), handle.fileno()
        for tensor in tensors.values():
            end = position + tensor.nbytes
            if not tensor.made:
                position = _copy_in_kernel(tensor, target, position, copied)
                tensor = replace(tensor, begin=tensor.end - (end - position))  # what the kernel refused is read
            for chunk in read_chunks(tensor):
                _write(target, chunk, position)
                position += len(chunk)
                copied(len(chunk))
            if position != end:
                raise OSError(errno.EIO, f"got {position - end:+,} bytes, expected {tensor.nbytes:,}", str(path))
        os.fsync(target)


def _copy_in_kernel(tensor: Tensor, target: int, position: int, copied: Copied) -> int:
    """The position behind what it copied: not all of it where the file systems do not let the kernel do it."""
    begin = tensor.begin
    with open(tensor.file, "rb") as source:
        while begin < tensor.end:
            try:
                wanted = min(tensor.end - begin, _COPY_BYTES)
                count = os.copy_file_range(source.fileno(), target, wanted, begin, position)
            except OSError as problem:
                if problem.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
                    raise
                count = 0
            if not count:
                break
            begin, position = begin + count, position + count
            copied(count)
    return position


def _write(target: int, data: bytes, position: int) -> None:
    """All of `data`: one call of the kernel writes at most 2 GiB, and less on a disk that gets full."""
    left = memoryview(data)
    while left:
        count = os.pwrite(target, left, position)
        left, position = left[count:], position + count


def read_chunks(tensor: Tensor, size: int = 0) -> Iterator[bytes]:
    """Its bytes in order, of a stored tensor `size` (0: 4 MB) at a time. Raises OSError where the file ends early."""
    if tensor.made:
        yield from tensor.made()
        return
    with open(tensor.file, "rb") as handle:
        handle.seek(tensor.begin)
        for begin in range(tensor.begin, tensor.end, size := size or _PLAIN_BYTES):
            wanted = min(size, tensor.end - begin)
            chunk = handle.read(wanted)  # goes on reading until it has them
            if len(chunk) < wanted:
                raise OSError(errno.EIO, "it became shorter while it was read", str(tensor.file))
            yield chunk


def copy_shards(folder: Path, shards: Mapping[str, Mapping[str, Tensor]], jobs: int, copied: Copied) -> None:
    """Write {file: {name: tensor}}, `jobs` files at a time: while one waits for the disk to sync, another reads.

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


def read_float32(tensor: Tensor):
    """A stored float tensor as a float32 array of its shape. Raises Failure (CKPT-NOT-FINITE)."""
    return to_float32(b"".join(finite_chunks(tensor, "F32")), "F32").reshape(tensor.shape)


def finite_chunks(tensor: Tensor, dtype: str) -> Iterator[bytes]:
    """The bytes of a stored BF16, F16 or F32 tensor, rounded to another `dtype` of these. Raises Failure
    (CKPT-NOT-FINITE)."""
    for chunk in read_chunks(tensor):
        yield from_float32(finite(to_float32(chunk, tensor.dtype), tensor.file), dtype)


def finite(values, file: Path):
    """The array itself. Raises Failure (CKPT-NOT-FINITE)."""
    import numpy as np

    if not np.isfinite(values).all():
        message = "got numbers that are not finite: the training diverged"
        raise Failure(error("CKPT-NOT-FINITE", file, message, "--by NAME"), EXIT_CHECKS_FAILED)
    return values


def to_float32(stored: bytes, dtype: str):
    """Bytes of BF16, F16 or F32 numbers as a new float32 array [n]. A bfloat16 is the upper half of a float32."""
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(stored, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(stored, {"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def from_float32(values, dtype: str) -> bytes:
    """Bytes of a float32 array in BF16, F16 or F32, rounded to the nearest, ties to even. Finite values only."""
    import numpy as np

    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F16": np.float16, "F32": np.float32}[dtype]).tobytes()
