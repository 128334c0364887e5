"""Archives of media, tar and zip: one reader for all who open them.

A member is called by its whole path in the archive. Only ordinary files are read; links, devices
and names that lead out of the archive never become files on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import gzip
import posixpath
import shlex
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cosmos_reason.base import files, progress
from cosmos_reason.base.findings import Failure, bad_input, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import s3

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
# the names in a dataset root without their suffixes, by what they hold
NAMES = {"video": "videos", "image": "images"}
BATCH = 64  # files unpacked at a time when the archive is only looked through
GZIP = b"\x1f\x8b"
ENCRYPTED = 1  # a bit of the flags of a member of a zip archive
PACK_AGAIN = "tar --dereference --hard-dereference -czf {} -C FOLDER ."
ZIP_AGAIN = "(cd FOLDER && zip -r - .) > {}"
NOT_ENDED = "no end where one is due: it is cut off or damaged"
# what tarfile, zipfile and their decompressors raise
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    ValueError,
    NotImplementedError,  # a compression that zipfile does not know
)


class Member(NamedTuple):
    """A file in an archive: its whole path without ./, what it is where it is no ordinary file, and
    what opens it."""

    name: str
    oddity: str
    open: Callable[[], BinaryIO]


def is_archive(name: str | Path) -> bool:
    return str(name).endswith(SUFFIXES)


# ---- where it is ----


def in_root(root: str | Path, kind: str, name: str) -> str | None:
    """Return the archive in a dataset root (a folder or an s3:// prefix) that holds the media, when
    the first medium, a video or an image called `name`, is not in the root itself: a usual one, or
    the only one of a folder. None otherwise. May ask S3."""
    if _exists(root, name):
        return None
    likely_first = sorted(NAMES, key=lambda medium: medium != kind)
    named = [NAMES[medium] + suffix for medium in likely_first for suffix in SUFFIXES]
    for file in named:
        if _exists(root, file):
            return _below(root, file)
    if s3.is_uri(root):
        return None
    found = [path for path in Path(root).glob("*") if is_archive(path)]
    return str(found[0]) if len(found) == 1 else None


def _below(root: str | Path, name: str) -> str:
    return s3.join(str(root), name) if s3.is_uri(root) else str(Path(root) / name)


def _exists(root: str | Path, name: str) -> bool:
    whole = s3.is_uri(name) or posixpath.isabs(name)
    place = name if whole else _below(root, posixpath.normpath(name))
    return s3.head(place) is not None if s3.is_uri(place) else Path(place).exists()


def unpacking(archive: str) -> Fix:
    """Return the command that unpacks an archive into the folder that it lies in."""
    folder = posixpath.dirname(archive)
    words = ["tar", "-xf", archive, "-C", folder]
    if _is_zip(Path(archive)):
        words = ["unzip", archive, "-d", folder]
    return Fix(command=shlex.join(words))


def media_folder(media_path: str | Path) -> str:
    """Return the folder or prefix that names of media are relative to: an archive's own folder in
    the cache, into which it is unpacked when it is not there yet, else `media_path` itself. Raises
    Failure."""
    if not is_archive(media_path):
        return str(media_path)
    if s3.is_uri(media_path):
        return str(unpacked(s3.local(str(media_path))))
    return str(unpacked(Path(media_path))) if Path(media_path).is_file() else str(media_path)


# ---- reading ----


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Turn what reading damage raises into a Failure: exit 2, for a full disk 3."""
    try:
        yield
    except DAMAGE as problem:
        message = (
            f"got a damaged archive {archive.name} ({problem}), "
            "expected one that can be read to its end"
        )
        name = shlex.quote(str(archive))
        fix = f"unzip -t {name}" if _is_zip(archive) else f"tar -tf {name} > /dev/null"
        raise bad_input("DATA-ARCHIVE", archive, message, fix) from None
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        message = "got a full disk, expected room to unpack it: DIR on a larger one"
        fix = "export COSMOS_CACHE=DIR TMPDIR=DIR"
        raise outside("DATA-ARCHIVE-DISK", archive, message, fix) from None


def _is_zip(archive: Path) -> bool:
    return archive.suffix == ".zip"


def _members(archive: Path, packed: BinaryIO) -> Iterator[Member]:
    """Yield all members but folders, in the order of the archive, which is open as `packed`."""
    if _is_zip(archive):
        yield from _members_of_zip(zipfile.ZipFile(packed))
    else:
        yield from _members_of_tar(tarfile.open(fileobj=packed))  # noqa: SIM115 - its file is closed


def _members_of_tar(tar: tarfile.TarFile) -> Iterator[Member]:
    """Raises ReadError at the end of an archive that does not end as it should, where tarfile
    itself would take damage for the end."""
    for member in tar:
        if not member.isdir():
            oddity = "" if member.isfile() else "a link or a device"
            opened = functools.partial(tar.extractfile, member)
            yield Member(posixpath.normpath(member.name), oddity, opened)
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(NOT_ENDED)
    while tar.fileobj.read(1 << 20):  # the checksum of what is compressed stands behind the rest
        pass


def _members_of_zip(archive: zipfile.ZipFile) -> Iterator[Member]:
    for member in sorted(archive.infolist(), key=lambda info: info.header_offset):
        kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where it was made without Unix modes
        oddity = "" if kind in (0, stat.S_IFREG) else "a link or a device"
        if member.flag_bits & ENCRYPTED:
            oddity = "an encrypted file"
        if not member.is_dir():
            opened = functools.partial(archive.open, member)
            yield Member(posixpath.normpath(member.filename), oddity, opened)


def batches(archive: Path, wanted: Collection[str], folder: Path) -> Iterator[dict[str, Path]]:
    """Yield batches of the wanted files in `folder`, where the next batch replaces them: {whole
    path: file}. The archive is read once, until all are found; of two files of a name the first one
    counts. Raises Failure where it is damaged, after the files before that."""
    batch: dict[str, Path] = {}
    left = set(wanted)
    damage = None
    try:
        with _damage(archive), archive.open("rb") as packed:
            for member in _members(archive, packed) if left else ():
                if member.name not in left or member.oddity:
                    continue
                file = folder / f"{len(batch)}{Path(member.name).suffix}"
                _write(member, file, "wb")
                batch[member.name] = file
                left.remove(member.name)
                if not left:
                    break
                if len(batch) == BATCH:
                    yield batch
                    batch = {}
    except Failure as failure:
        damage = failure
    yield batch
    if damage:
        raise damage


def contents(archive: Path) -> dict[str, list[Callable[[], bytes]]]:
    """Return what reads each file of an archive, by its whole path; more than one where the archive
    has several of a path. What is compressed as a whole is decompressed into a temporary file,
    where it can be read in any order. Raises Failure."""
    found = defaultdict(list)
    with _damage(archive):
        for member in _members(archive, _decompressed(archive)):
            if not member.oddity:
                found[member.name].append(functools.partial(_content, archive, member))
    return dict(found)


def _decompressed(archive: Path):
    packed = archive.open("rb")
    is_compressed = packed.read(len(GZIP)) == GZIP
    packed.seek(0)
    if not is_compressed:
        return packed
    plain = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as it is read
    with packed, gzip.open(packed) as unzipped:
        shutil.copyfileobj(unzipped, plain, 1 << 20)
    plain.seek(0)
    return plain


def _content(archive: Path, member: Member) -> bytes:
    with _damage(archive), member.open() as source:
        return source.read()


def _write(member: Member, file: Path, mode: str) -> None:
    with member.open() as source, file.open(mode) as target:
        shutil.copyfileobj(source, target, 1 << 20)


# ---- unpacking ----


def unpacked(archive: Path) -> Path:
    """Return the folder in the cache that holds the files of an archive, unpacked once per content,
    whole or not at all.

    Raises Failure: exit 2 for an archive that is damaged, or has anything but ordinary files of
    different names below it; exit 3 when the disk is too small.
    """
    facts = archive.stat()
    folder = (
        files.cache_folder()
        / "archives"
        / _digest(archive.resolve(), facts.st_size, facts.st_ctime_ns)
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be unpacking it
        if not folder.is_dir():
            files.clear_incomplete(folder)
            with _damage(archive), files.whole_folder(folder) as partial:
                _unpack(archive, partial)
    return folder


@functools.lru_cache(maxsize=16)
def _digest(archive: Path, size: int, changed: int) -> str:
    """Return the name of a content. Size and time of the last change only say when a long archive
    has to be read again; that time, of its entry in the file system, cannot be set."""
    return files.sha256(archive)[:32]


def _unpack(archive: Path, folder: Path) -> None:
    with open(archive, "rb") as packed:
        unpacked = progress.of_bytes(archive.stat().st_size, "unpack")
        position = 0
        for member in _members(archive, packed):
            name = member.name
            if member.oddity:
                raise _refused(archive, name, member.oddity)
            if posixpath.isabs(name) or name.split("/")[0] == "..":
                raise _refused(archive, name, "a name that leads out of the archive")
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                _write(member, folder / name, "xb")
            except (FileExistsError, NotADirectoryError):
                raise _refused(archive, name, "a second file of this name") from None
            unpacked(packed.tell() - position)
            position = packed.tell()


def _refused(archive: Path, name: str, what: str) -> Failure:
    message = f"got {what} ({name[:100]}), expected ordinary files of different names"
    again = ZIP_AGAIN if _is_zip(archive) else PACK_AGAIN
    return bad_input("DATA-ARCHIVE", archive, message, again.format(shlex.quote(archive.name)))
