"""The numbers in stored tensors: read, rounded, and looked at for what no sound training leaves. No
torch; numpy only where numbers are computed, for some commands have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Failure, Finding, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints.safetensors_files import BITS, Tensor, read_chunks

FLOATS = {"BF16", "F16", "F32"}
_SAMPLE_BYTES = 1 << 12  # of a tensor, at a place where it is looked at
_NOT_FINITE, _ZERO, _SOUND = "not finite", "zero", "sound"


def check_numbers(tensors: Mapping[str, Tensor], whole: bool = False) -> list[Finding]:
    """Findings for numbers that are not finite, and for weights (two dimensions or more) that are
    zero. Of each stored tensor in BF16, F16 or F32 a sample from its middle is read, and from four
    other places while all is zero; `whole` reads everything."""
    by_file: dict[Path, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.dtype in FLOATS and tensor.nbytes and not tensor.made:
            by_file.setdefault(tensor.file, {})[name] = tensor
    findings = []
    for file, named in by_file.items():
        diverged, zero = [], []
        with open(file, "rb", buffering=0) as handle:
            for name, tensor in named.items():
                kind = _kind_of_numbers(tensor, handle, whole)
                if kind == _NOT_FINITE:
                    diverged.append(name)
                elif kind == _ZERO and len(tensor.shape) > 1:
                    zero.append(name)
        if diverged:
            problem = "hold numbers that are not finite: the training diverged"
            findings.append(_odd_numbers("CKPT-NOT-FINITE", file, diverged, named, problem))
        if zero:
            problem = "are zero wherever they were read: never trained, or never written"
            findings.append(_odd_numbers("CKPT-ZERO-WEIGHTS", file, zero, named, problem))
    return findings


def _odd_numbers(
    id: str, file: Path, names: list[str], tensors: Mapping[str, Tensor], problem: str
) -> Finding:
    some = ", ".join(names[:3])
    message = f"got {len(names)} of {len(tensors)} tensors that {problem} ({some})"
    return error(id, file, message, names=names[:1000])


def _kind_of_numbers(tensor: Tensor, handle, whole: bool) -> str:
    kind = _ZERO
    chunks = _samples(tensor, handle)
    is_finite = _sample_is_finite
    if whole:
        chunks = read_chunks(tensor)
        is_finite = _all_finite
    for chunk in chunks:
        if not is_finite(chunk, tensor.dtype):
            return _NOT_FINITE
        if chunk.count(0) < len(chunk):
            kind = _SOUND
        if kind == _SOUND and not whole:
            break
    return kind


def _samples(tensor: Tensor, handle) -> Iterator[bytes]:
    """Some bytes from the middle of a stored tensor, then from its beginning, quarters and end."""
    size = min(_SAMPLE_BYTES, tensor.nbytes)
    width = BITS[tensor.dtype] // 8
    for part in (0.5, 0.0, 0.25, 0.75, 1.0):
        handle.seek(tensor.begin + int((tensor.nbytes - size) * part) // width * width)
        yield handle.read(size)


def _sample_is_finite(chunk: bytes, dtype: str) -> bool:
    """By the exponents alone, which are all ones in NaN and infinite numbers: some commands have no
    numpy."""
    width = BITS[dtype] // 8
    high, below = chunk[width - 1 :: width], chunk[width - 2 :: width]
    if dtype == "F16":
        return not any(byte & 0x7C == 0x7C for byte in set(high))
    pairs = set(zip(high, below, strict=False))
    return not any(byte & 0x7F == 0x7F and lower & 0x80 for byte, lower in pairs)


def _all_finite(chunk: bytes, dtype: str) -> bool:
    import numpy as np

    return bool(np.isfinite(to_float32(chunk, dtype)).all())


def refuse_not_finite(values, file: Path) -> None:
    """Raise Failure (CKPT-NOT-FINITE) for an array with numbers that are not finite."""
    import numpy as np

    if not np.isfinite(values).all():
        message = "got numbers that are not finite: the training diverged"
        raise Failure(
            error("CKPT-NOT-FINITE", file, message, Fix(flags={"--by": "NAME"})), EXIT_CHECKS_FAILED
        )


def read_float32(tensor: Tensor):
    """A stored float tensor as a float32 array of its shape. Raises Failure (CKPT-NOT-FINITE)."""
    return to_float32(b"".join(finite_chunks(tensor, "F32")), "F32").reshape(tensor.shape)


def finite_chunks(tensor: Tensor, dtype: str) -> Iterator[bytes]:
    """The bytes of a stored BF16, F16 or F32 tensor, rounded to another `dtype` of these. Raises
    Failure (CKPT-NOT-FINITE)."""
    for chunk in read_chunks(tensor):
        values = to_float32(chunk, tensor.dtype)
        refuse_not_finite(values, tensor.file)
        yield from_float32(values, dtype)


def to_float32(stored: bytes, dtype: str):
    """Bytes of BF16, F16 or F32 numbers as a new float32 array [n]. A bfloat16 is the upper half of
    a float32."""
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(stored, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(stored, {"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def from_float32(values, dtype: str) -> bytes:
    """Bytes of a float32 array in BF16, F16 or F32, rounded to the nearest, ties to even. Finite
    values only."""
    import numpy as np

    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F16": np.float16, "F32": np.float32}[dtype]).tobytes()
