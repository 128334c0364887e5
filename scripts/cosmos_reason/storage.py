"""Local files and folders that appear whole or not at all, and readers that fail with a finding."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason.findings import bad_input, outside

INCOMPLETE = ".incomplete-"


def temporary_name(path: Path) -> Path:
    """A sibling of `path` for work in progress; whatever carries INCOMPLETE in its name is never a result."""
    return path.with_name(f".{path.name}{INCOMPLETE}{secrets.token_hex(4)}")


@contextmanager
def whole_file(path: Path, mode: str = "w") -> Iterator:
    """Open a file for writing that replaces `path` only when the block ends well; Failure for a folder or /dev/null."""
    if path.exists() and not path.is_file():
        raise bad_input("FILE-TARGET", path, "got a folder or a special file, expected the name of a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """A folder to fill that takes the name `path` only when the block ends well, replacing what stood there.

    With `keep` it is that hidden sibling, which stays when the block fails, for the next run to go on from.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = keep or temporary_name(path), temporary_name(path)
    temporary.mkdir(exist_ok=bool(keep))
    try:
        yield temporary
        if path.exists():  # moved away first, and deleted last
            os.replace(path, old)
        os.replace(temporary, path)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as problem:
        if not keep:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):
            temporary.rmdir()  # when nothing was done
        if isinstance(problem, KeyboardInterrupt) and temporary.exists():
            raise KeyboardInterrupt(f"{temporary} keeps what is done, the same command goes on from there") from None
        raise


@contextmanager
def only_run(output: Path, keep: Path | None = None) -> Iterator[None]:
    """Hold the lock of a folder to write, and clear away what killed runs left beside it, except `keep`.

    The lock is a hidden sibling that goes away with the run. Raises Failure (exit 3) when another run holds it.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    path = output.with_name(f".{output.name}{INCOMPLETE}lock")
    while True:
        handle = open(path, "w")  # noqa: SIM115
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                break
        except BlockingIOError:
            handle.close()
            raise outside("CKPT-OUTPUT-BUSY", output, "got another run that is writing it", "wait for it") from None
        except FileNotFoundError:
            pass
        handle.close()  # the run that held this lock has just removed it: take the next one
    try:
        for stale in output.parent.glob(f".{glob.escape(output.name)}{INCOMPLETE}*"):
            if stale.is_dir() and stale != keep:
                shutil.rmtree(stale)
        yield
    finally:
        path.unlink()
        handle.close()


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as handle:
        handle.write(text)


def write_json(path: Path, value) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file (a BOM is skipped). Raises Failure (exit 2) when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise bad_input("FILE-MISSING", path, "got no such file, expected a readable file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise bad_input("FILE-UNREADABLE", path, f"got {problem}, expected readable UTF-8 text") from None


def read_json(path: Path):
    """Raises Failure (exit 2) with line and column when the file is not JSON."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise bad_input("FILE-NOT-JSON", path, f"got {problem}, expected valid JSON") from None


def read_toml(path: Path) -> dict:
    """Raises Failure (exit 2) with line and column when the file is not TOML."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: bad TOML, or a number of thousands of digits
        raise bad_input("FILE-NOT-TOML", path, f"got {problem}, expected valid TOML") from None


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class Progress:
    """Bytes copied or sent so far, on stderr: a bar that moves on a terminal, a line every few seconds elsewhere.
    May be called from several threads."""

    def __init__(self, total: int):
        self.total, self.done = max(total, 1), 0
        self.started = self.shown = time.monotonic()
        self.lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self.lock:
            self.done += count
            now, on_terminal = time.monotonic(), sys.stderr.isatty()
            ends = on_terminal and self.done >= self.total
            if now - self.shown < (0.2 if on_terminal else 5) and not ends:
                return
            self.shown = now
        speed = self.done / max(now - self.started, 1e-6)
        part, left = min(1, self.done / self.total), max(0, self.total - self.done) / speed
        line = f"{part:4.0%} of {self.total / 1e9:.1f} GB, {speed / 1e6:,.0f} MB/s, {left:.0f} s left"
        text, end = (f"\r[{'#' * int(30 * part):30}] {line:45}", "\n" * ends) if on_terminal else (line, "\n")
        print(text, end=end, file=sys.stderr, flush=True)
