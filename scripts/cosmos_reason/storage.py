"""Local files and folders that appear whole or not at all, and readers that fail with a finding."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason.findings import bad_input

INCOMPLETE = ".incomplete-"


def temporary_name(path: Path) -> Path:
    """A sibling of `path` for work in progress; whatever carries INCOMPLETE in its name is never a result."""
    return path.with_name(f".{path.name}{INCOMPLETE}{secrets.token_hex(4)}")


@contextmanager
def whole_file(path: Path, mode: str = "w") -> Iterator:
    """Open a file for writing that replaces `path` only when the block ends well."""
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
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the name `path` only when the block ends well, replacing what stood there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            old = temporary_name(path)
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


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
