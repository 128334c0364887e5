"""Local files and folders that appear whole or not at all, and readers that fail with a finding."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason.base.findings import bad_input, outside

INCOMPLETE = ".incomplete-"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_NAME_OF_A_FILE = {errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR}
NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}


def cache_folder() -> Path:
    """Return where everything is kept that can be fetched or worked out again: $COSMOS_CACHE, else
    cosmos-reason below $XDG_CACHE_HOME or ~/.cache. Always absolute; ~ is the home. Raises Failure
    (exit 2) for a ~ that leads nowhere."""
    own, of_all_programs = os.environ.get("COSMOS_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return _expanded("COSMOS_CACHE", own)
    return _expanded("XDG_CACHE_HOME", of_all_programs or "~/.cache") / "cosmos-reason"


def _expanded(variable: str, written: str) -> Path:
    expanded = os.path.expanduser(written)
    if expanded.startswith("~"):
        message = f"got {written}, which names no home folder, expected a folder"
        raise bad_input("CACHE-FOLDER", variable, message)
    return Path(os.path.abspath(expanded))


def from_here(path: str | Path) -> str:
    """Return a path as it is shown: from the working folder on where it lies below it."""
    whole = Path(path)
    here = Path.cwd()
    is_below = whole.is_relative_to(here) and whole != here
    return str(whole.relative_to(here)) if is_below else str(path)


def temporary_name(path: Path) -> Path:
    """Return a sibling of `path` for work in progress; whatever carries INCOMPLETE in its name is
    never a result."""
    return path.with_name(f".{path.name}{INCOMPLETE}{secrets.token_hex(4)}")


@contextmanager
def whole_file(path: Path, mode: str = "w") -> Iterator:
    """Open a file for writing that replaces `path` only when the block ends well; Failure for a
    folder or /dev/null."""
    if path.exists() and not path.is_file():
        message = "got a folder or a special file, expected the name of a file to write"
        raise bad_input("FILE-TARGET", path, message)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        name_path(problem, path, temporary)
        raise


def name_path(problem: BaseException, path: Path, temporary: Path | None = None) -> None:
    """Let an error name the path that was to be written: in place of the temporary name, and where
    the kernel names none, as for a file that finds no room."""
    if not isinstance(problem, OSError):
        return
    if problem.filename is None and problem.errno in NO_ROOM:
        problem.filename = str(path)
    elif temporary:
        for name in ("filename", "filename2"):  # of a copy: its source, and where it was to be
            named = getattr(problem, name)
            if isinstance(named, str):
                setattr(problem, name, named.replace(str(temporary), str(path)))


def place(problem: OSError) -> str:
    """Return the path that an error is about: of a copy that found no room, where it was to be; "-"
    where none is named."""
    found_no_room = problem.errno in NO_ROOM and problem.filename2
    named = problem.filename2 if found_no_room else problem.filename
    return os.fsdecode(named) if isinstance(named, str | bytes) else "-"


def copy_tree(source: Path, target: Path, left_out: Callable[[str, list[str]], list[str]]) -> None:
    """Copy a folder but for the names that `left_out` returns for a folder in it. The first file
    that fails ends it: shutil.copytree goes on, and what it raises then has no errno."""
    for folder, below, names in os.walk(source, followlinks=True):
        skipped = left_out(folder, below + names)
        below[:] = [name for name in below if name not in skipped]
        there = target / Path(folder).relative_to(source)
        there.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name not in skipped:
                shutil.copy2(Path(folder, name), there / name)


def way_out(problem: OSError) -> str:
    """Return what to do about a file that cannot be written or read; empty where nothing is
    known."""
    if problem.errno not in NO_ROOM | NO_RIGHT:
        return ""
    path = os.path.abspath(place(problem))
    folder = next(folder for folder in Path(path).parents if os.path.isdir(folder))
    if problem.errno in NO_ROOM:
        return (
            f"du -xhd 3 {shlex.quote(str(folder))} | sort -h | tail, which shows what is large "
            "there: delete what can go, then the same command again"
        )
    return f"{shlex.join(['ls', '-ld', path, str(folder)])}, which shows who may read and write"


@contextmanager
def whole_folder(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """Yield a folder to fill that takes the name `path` only when the block ends well, replacing
    what stood there. With `keep` it is that hidden sibling, which stays when the block fails, for
    the next run to go on from. While it is filled it is locked, which tells `clear_abandoned` that
    it is in use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = keep or temporary_name(path)
    old = temporary_name(path)
    temporary.mkdir(exist_ok=bool(keep))
    lock = os.open(temporary, os.O_RDONLY)
    try:
        # Not every file system locks folders; what cannot be locked is not cleared.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield temporary
        if path.exists():  # moved away first, and deleted last
            os.replace(path, old)
        os.replace(temporary, path)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as problem:
        name_path(problem, path, temporary)
        if not keep:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):
            temporary.rmdir()  # when nothing was done
        if isinstance(problem, KeyboardInterrupt) and temporary.exists():
            message = f"{temporary} keeps what is done, the same command goes on from there"
            raise KeyboardInterrupt(message) from None
        raise
    finally:
        os.close(lock)


def clear_abandoned(folder: Path) -> bool:
    """Delete the unfinished folders that killed processes left in `folder`, and tell whether there
    were any. What a living process fills is locked (the kernel drops the lock with the process) and
    stays."""
    found = False
    for stale in folder.iterdir() if folder.is_dir() else ():
        if INCOMPLETE not in stale.name or not stale.is_dir():
            continue
        lock = os.open(stale, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(stale, ignore_errors=True)
            found = True
        except OSError:
            pass  # it is in use, or this file system cannot tell
        finally:
            os.close(lock)
    return found


@contextmanager
def only_run(output: Path, keep: Path | None = None) -> Iterator[None]:
    """Hold the lock of a folder to write, and clear away what killed runs left beside it, except
    `keep`.

    The lock is a hidden sibling that goes away with the run. Raises Failure (exit 3) when another
    run holds it.
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
            message = "got another run that is writing it; wait for its end"
            raise outside("CKPT-OUTPUT-BUSY", output, message) from None
        except FileNotFoundError:
            pass
        handle.close()  # the run that held this lock has just removed it: take the next one
    try:
        clear_incomplete(output, keep)
        yield
    finally:
        path.unlink()
        handle.close()


def clear_incomplete(output: Path, keep: Path | None = None) -> None:
    """Clear away the folders that killed runs left beside `output`, except `keep`, for one who
    holds its lock."""
    for stale in output.parent.glob(f".{glob.escape(output.name)}{INCOMPLETE}*"):
        if stale.is_dir() and stale != keep:
            shutil.rmtree(stale)


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as handle:
        handle.write(text)


def write_json(path: Path, value) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def check_regular(path: Path) -> None:
    """Raise Failure (exit 2) when it is no regular file: opening a FIFO would wait for a writer."""
    if not path.is_file():
        kind = "a directory or special file" if path.exists() else "no such file"
        raise bad_input("FILE-MISSING", path, f"got {kind}, expected an annotation file")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file (a BOM is skipped). Raises Failure (exit 2) when it cannot be
    read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        message = "got no such file, expected a readable file"
        raise bad_input("FILE-MISSING", path, message) from None
    except (OSError, UnicodeDecodeError) as problem:
        message = f"got {problem}, expected readable UTF-8 text"
        raise bad_input("FILE-UNREADABLE", path, message) from None


def read_json(path: Path):
    """Read JSON. Raises Failure (exit 2) with line and column when the file is none."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise bad_input("FILE-NOT-JSON", path, f"got {problem}, expected valid JSON") from None


def read_toml(path: Path) -> dict:
    """Read TOML. Raises Failure (exit 2) with line and column when the file is none."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    # ValueError: bad TOML, or a number of thousands of digits
    except (ValueError, RecursionError) as problem:
        raise bad_input("FILE-NOT-TOML", path, f"got {problem}, expected valid TOML") from None


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
