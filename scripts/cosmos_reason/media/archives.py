"""Tar archives of media: one reader for all who open them.

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
import tarfile
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason.base import files, progress
from cosmos_reason.base.findings import Failure, bad_input, outside
from cosmos_reason.remote import s3

SUFFIXES = (".tar.gz", ".tgz", ".tar")
# the names in a dataset root, by what they hold
USUAL = {"video": "videos.tar.gz", "image": "images.tar.gz"}
BATCH = 64  # files unpacked at a time when the archive is only looked through
GZIP = b"\x1f\x8b"
PACK_AGAIN = "tar --dereference --hard-dereference -czf {} -C FOLDER ."
NOT_ENDED = "no end where one is due: it is cut off or damaged"


def is_archive(name: str | Path) -> bool:
    return str(name).endswith(SUFFIXES)


# ---- where it is ----


def in_root(root: str | Path, kind: str, name: str) -> str | None:
    """The usual archive in a dataset root (a folder or an s3:// prefix) when it holds the media:
    the first medium, a video or an image called `name`, is not in the root itself. None otherwise.
    May ask S3."""
    if _exists(root, name):
        return None
    likely_first = sorted(USUAL.items(), key=lambda usual: usual[0] != kind)
    return next((_below(root, file) for _, file in likely_first if _exists(root, file)), None)


def usual(root: str | Path) -> list[str]:
    """The names that an archive of media has in a dataset root, whether it is there or not."""
    return [_below(root, file) for file in USUAL.values()]


def _below(root: str | Path, name: str) -> str:
    return s3.join(str(root), name) if s3.is_uri(root) else str(Path(root) / name)


def _exists(root: str | Path, name: str) -> bool:
    whole = s3.is_uri(name) or posixpath.isabs(name)
    place = name if whole else _below(root, posixpath.normpath(name))
    return s3.head(place) is not None if s3.is_uri(place) else Path(place).exists()


def media_folder(media_path: str | Path) -> str:
    """The folder or prefix that names of media are relative to: an archive's own folder in the
    cache, into which it is unpacked when it is not there yet, else `media_path` itself. Raises
    Failure."""
    if not is_archive(media_path):
        return str(media_path)
    if s3.is_uri(media_path):
        return str(unpacked(s3.local(str(media_path))))
    return str(unpacked(Path(media_path))) if Path(media_path).is_file() else str(media_path)


# ---- reading ----


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Turns what tarfile and its decompressors raise into a Failure: exit 2, for a full disk 3."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as problem:
        message = (
            f"got a damaged archive {archive.name} ({problem}), "
            "expected one that can be read to its end"
        )
        fix = f"tar -tf {shlex.quote(str(archive))} > /dev/null"
        raise bad_input("DATA-ARCHIVE", archive, message, fix) from None
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        fix = "export COSMOS_CACHE=DIR TMPDIR=DIR, on a larger disk"
        raise outside(
            "DATA-ARCHIVE-DISK", archive, "got a full disk, expected room to unpack it", fix
        ) from None


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """(whole path without ./, header) of all but the folders, in the archive's order. Raises
    ReadError at the end of an archive that does not end as it should, where tarfile itself would
    take damage for the end."""
    for member in tar:
        if not member.isdir():
            yield posixpath.normpath(member.name), member
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(NOT_ENDED)
    while tar.fileobj.read(1 << 20):  # the checksum of what is compressed stands behind the rest
        pass


def batches(archive: Path, wanted: Collection[str], folder: Path) -> Iterator[dict[str, Path]]:
    """Batches of the wanted files in `folder`, where the next batch replaces them: {whole path:
    file}. The archive is read once, until all are found; of two files of a name the first one
    counts. Raises Failure where it is damaged, after the files before that."""
    batch: dict[str, Path] = {}
    left, damage = set(wanted), None
    try:
        with _damage(archive), tarfile.open(archive) as tar:
            for name, member in _members(tar) if left else ():
                if name not in left or not member.isfile():
                    continue
                file = folder / f"{len(batch)}{Path(name).suffix}"
                _write(tar, member, file, "wb")
                batch[name] = file
                left.remove(name)
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
    """What reads each file of an archive, by its whole path; more than one where the archive has
    several of a path. A compressed archive is decompressed into a temporary file, where it can be
    read in any order. Raises Failure."""
    found = defaultdict(list)
    with _damage(archive):
        tar = tarfile.open(fileobj=_decompressed(archive))  # noqa: SIM115 - the files are read later
        for name, member in _members(tar):
            if member.isfile():
                found[name].append(functools.partial(_content, tar, member))
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


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    with tar.extractfile(member) as source:
        return source.read()


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, file: Path, mode: str) -> None:
    with tar.extractfile(member) as source, file.open(mode) as target:
        shutil.copyfileobj(source, target, 1 << 20)


# ---- unpacking ----


def unpacked(archive: Path) -> Path:
    """The folder in the cache that holds the files of a tar archive, unpacked once per content,
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
    """The name of a content. Size and time of the last change only say when a long archive has to
    be read again; that time, of its entry in the file system, cannot be set."""
    return files.sha256(archive)[:32]


def _unpack(archive: Path, folder: Path) -> None:
    with open(archive, "rb") as packed, tarfile.open(fileobj=packed) as tar:
        unpacked = progress.of_bytes(archive.stat().st_size, "unpack")
        position = 0
        for name, member in _members(tar):
            if not member.isfile():
                raise _refused(archive, name, "a link or a device")
            if posixpath.isabs(name) or name.split("/")[0] == "..":
                raise _refused(archive, name, "a name that leads out of the archive")
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                _write(tar, member, folder / name, "xb")
            except (FileExistsError, NotADirectoryError):
                raise _refused(archive, name, "a second file of this name") from None
            unpacked(packed.tell() - position)
            position = packed.tell()


def _refused(archive: Path, name: str, what: str) -> Failure:
    message = f"got {what} ({name[:100]}), expected ordinary files of different names"
    return bad_input("DATA-ARCHIVE", archive, message, PACK_AGAIN.format(shlex.quote(archive.name)))
