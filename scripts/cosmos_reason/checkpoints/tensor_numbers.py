"""The numbers in stored tensors: read, rounded, and looked at for what no sound training leaves. No
torch; numpy only where numbers are computed, for some commands have none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, Finding, error
from cosmos_reason.checkpoints.safetensors_files import BITS, Tensor, read_chunks

FLOATS = {"BF16", "F16", "F32"}
# The bits that are all ones in NaN and infinite numbers alone (F8_E4M3 and F8_E8M0 have NaN only).
_EXPONENTS = {
    "BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F80_0000, "F64": 0x7FF0_0000_0000_0000,
    "F8_E4M3": 0x7F, "F8_E5M2": 0x7C, "F8_E8M0": 0xFF,
}  # fmt: skip
_SAMPLE_BYTES = 1 << 12  # of a tensor, at a place where it is looked at
_CHUNK_BYTES = 1 << 20  # stays in the cache of a core: measured, twice as fast as 4 MB
_READERS = 8
_NOT_FINITE, _ZERO, _SOUND = "not finite", "zero", "sound"


def check_numbers(tensors: Mapping[str, Tensor], whole: bool = False) -> list[Finding]:
    """Return findings for numbers that are not finite, and for weights (two dimensions or more)
    that are zero. Of each stored tensor in BF16, F16 or F32 a sample from its middle is read, and
    from four other places while all is zero; `whole` reads every number (measured: 3 GB/s and
    core)."""
    dtypes = _EXPONENTS.keys() if whole else FLOATS
    by_file: dict[Path, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.dtype in dtypes and tensor.nbytes and not tensor.made:
            by_file.setdefault(tensor.file, {})[name] = tensor
    findings = []
    for file, named in by_file.items():
        if whole:
            with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as pool:
                kinds = dict(zip(named, pool.map(_kind_of_all, named.values()), strict=True))
        else:
            with open(file, "rb", buffering=0) as handle:
                kinds = {name: _kind_of_samples(tensor, handle) for name, tensor in named.items()}
        diverged = [name for name, kind in kinds.items() if kind == _NOT_FINITE]
        zero = [n for n, kind in kinds.items() if kind == _ZERO and len(named[n].shape) > 1]
        if diverged:
            problem = "hold numbers that are not finite: the training diverged, or it is damaged"
            findings.append(_odd_numbers("CKPT-NOT-FINITE", file, diverged, named, problem))
        if zero:
            problem = "are zero wherever they were read: never trained, or never written"
            findings.append(_odd_numbers("CKPT-ZERO-WEIGHTS", file, zero, named, problem))
    return findings


def _odd_numbers(
    id: str, file: Path, names: list[str], tensors: Mapping[str, Tensor], problem: str
) -> Finding:
    some = ", ".join(names[:3])
    message = f"{len(names)} of {len(tensors)} tensors {problem} ({some})"
    return error(id, file, message, names=names[:1000])


def _kind_of_all(tensor: Tensor) -> str:
    import numpy as np

    kind = _ZERO
    bits = f"u{BITS[tensor.dtype] // 8}"
    ones = np.array(_EXPONENTS[tensor.dtype], bits)
    for chunk in read_chunks(tensor, _CHUNK_BYTES):
        if (np.frombuffer(chunk, bits) & ones).max() == ones:
            return _NOT_FINITE
        if kind == _ZERO and chunk.count(0) < len(chunk):
            kind = _SOUND
    return kind


def _kind_of_samples(tensor: Tensor, handle) -> str:
    """Look at one sample, and at the others while all is zero."""
    for chunk in _samples(tensor, handle):
        if not _sample_is_finite(chunk, tensor.dtype):
            return _NOT_FINITE
        if chunk.count(0) < len(chunk):
            return _SOUND
    return _ZERO


def _samples(tensor: Tensor, handle) -> Iterator[bytes]:
    """Yield some bytes from the middle, the beginning, the quarters and the end of a tensor."""
    size = min(_SAMPLE_BYTES, tensor.nbytes)
    width = max(1, BITS[tensor.dtype] // 8)
    for part in (0.5, 0.0, 0.25, 0.75, 1.0):
        handle.seek(tensor.begin + int((tensor.nbytes - size) * part) // width * width)
        yield handle.read(size)


def samples(tensor: Tensor) -> list[bytes]:
    """Return some bytes from five places of a stored tensor, from the middle first."""
    with open(tensor.file, "rb", buffering=0) as handle:
        return list(_samples(tensor, handle))


def same_samples(one: Tensor, other: Tensor) -> bool:
    """Return whether two stored tensors of one dtype and shape have the same bytes at five
    places."""
    with open(one.file, "rb", buffering=0) as first, open(other.file, "rb", buffering=0) as second:
        pairs = zip(_samples(one, first), _samples(other, second), strict=True)
        return all(ours == theirs for ours, theirs in pairs)


def is_zero(tensor: Tensor) -> bool:
    """Return whether every byte of a stored tensor is zero; ends at the first that is not."""
    return all(chunk.count(0) == len(chunk) for chunk in read_chunks(tensor))


def _sample_is_finite(chunk: bytes, dtype: str) -> bool:
    """Return whether a sample is finite, told by the exponents alone, which are all ones in NaN and
    infinite numbers: some commands have no numpy."""
    width = BITS[dtype] // 8
    high, below = chunk[width - 1 :: width], chunk[width - 2 :: width]
    if dtype == "F16":
        return not any(byte & 0x7C == 0x7C for byte in set(high))
    pairs = set(zip(high, below, strict=False))
    return not any(byte & 0x7F == 0x7F and lower & 0x80 for byte, lower in pairs)


def refuse_not_finite(values, file: Path) -> None:
    """Raise Failure (CKPT-NOT-FINITE) for an array with numbers that are not finite."""
    import numpy as np

    if not np.isfinite(values).all():
        message = "numbers are not finite: the training diverged"
        raise Failure(error("CKPT-NOT-FINITE", file, message), EXIT_CHECKS_FAILED)


def read_float32(tensor: Tensor):
    """Return a stored float tensor as a float32 array of its shape. Raises Failure
    (CKPT-NOT-FINITE)."""
    return to_float32(b"".join(finite_chunks(tensor, "F32")), "F32").reshape(tensor.shape)


def finite_chunks(tensor: Tensor, dtype: str) -> Iterator[bytes]:
    """Yield the bytes of a stored BF16, F16 or F32 tensor, rounded to another `dtype` of these.
    Raises Failure (CKPT-NOT-FINITE)."""
    for chunk in read_chunks(tensor):
        values = to_float32(chunk, tensor.dtype)
        refuse_not_finite(values, tensor.file)
        yield from_float32(values, dtype)


def to_float32(stored: bytes, dtype: str):
    """Return bytes of BF16, F16 or F32 numbers as a new float32 array [n]. A bfloat16 is the upper
    half of a float32."""
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(stored, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(stored, {"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def from_float32(values, dtype: str) -> bytes:
    """Return bytes of a float32 array in BF16, F16 or F32, rounded to the nearest, ties to even.
    Finite values only."""
    import numpy as np

    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F16": np.float16, "F32": np.float32}[dtype]).tobytes()
