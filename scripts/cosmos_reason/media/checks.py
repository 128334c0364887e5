"""Media files, members of an archive and objects in S3, examined in worker processes that may hang
or crash."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import sqlite3
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from cosmos_reason.base import files as storage
from cosmos_reason.base.findings import Failure
from cosmos_reason.media import archives
from cosmos_reason.media import files as media
from cosmos_reason.media.files import ClipReport, Pictures
from cosmos_reason.media.sampling import VisionOptions, frame_indices
from cosmos_reason.remote import s3

DECODE_MODES = ("sampled", "all", "none")
BATCH = 64  # objects fetched at a time
FACTS_VERSION = 9  # raise it when the same file would be reported differently
# A clip in small, to know a copy that was encoded again: LOOKS pictures at equal distances, each of
# SIDE x SIDE grey values.
LOOKS, SIDE = 6, 8
STILL = 16  # side of a still image in small, of which nothing that moves can be compared
# worth another look next time
TRANSIENT = ("DATA-MEDIA-MISSING", "DATA-MEDIA-TIMEOUT", "DATA-MEDIA-CRASH")

Reports = Iterator[tuple[int, ClipReport]]


def examine(path: Path | Pictures, decode: str, options: VisionOptions) -> ClipReport:
    """Probe one file, or the pictures of a video, and decode the frames `decode` asks for: those
    `options` sample, all, or none."""
    try:
        if isinstance(path, Pictures):
            return _examine_pictures(path, decode, options)
        facts = media.probe(path)
        look = ""
        if facts.kind == "image":
            if decode != "none":
                media.read_image(path)
                look = media.grey(path, STILL).hex()
        elif decode != "none":
            wanted = [facts.frames - 1] if decode == "all" else _sampled(facts, options)
            looked_at = [min(index, max(wanted)) for index in look_indices(facts.frames)]
            small = {}
            for index, last in media.decoded(path, [*wanted, *looked_at]):
                if index in looked_at:
                    small[index] = in_small(last)
            look = b"".join(small[index] for index in looked_at).hex()
            facts = replace(facts, turned=media.rotation(last))
        return ClipReport(path.stat().st_size, media.content(path), facts, look=look)
    except Failure as failure:
        return ClipReport(check=failure.findings[0].id, message=failure.findings[0].message)
    except OSError as problem:
        return ClipReport(
            check="DATA-MEDIA-MISSING", message=f"got {problem.strerror}, expected a readable file"
        )


def look_indices(frames: int) -> list[int]:
    """Return which frames of a clip are looked at in small."""
    return [(2 * part + 1) * frames // (2 * LOOKS) for part in range(LOOKS)]


def in_small(frame) -> bytes:
    return frame.reformat(SIDE, SIDE, "gray", interpolation="AREA").to_ndarray().tobytes()


def _examine_pictures(pictures: Pictures, decode: str, options: VisionOptions) -> ClipReport:
    """Return what `examine` gives, from the headers of all pictures. Raises Failure."""
    missing = [file for file in pictures.files if not os.path.isfile(file)]
    if missing:
        count = f"{len(missing)} of {len(pictures.files)} pictures"
        message = f"got no {missing[0]} ({count} are missing), expected all of them"
        return ClipReport(check="DATA-MEDIA-MISSING", message=message)
    headers = [media.probe_image(file) for file in pictures.files]
    media.refuse_sizes(pictures, {(header.width, header.height) for header in headers})
    facts = replace(
        media.probe(pictures),
        declared_frames=media.numbered(pictures),
        turned=next((header.turned for header in headers if header.turned), 0),
    )
    wanted = _sampled(facts, options) if decode == "sampled" else range(facts.frames)
    for index in wanted if decode != "none" else ():
        media.decode_frames(pictures, [index])
    digest = content_of(tuple(map(Path, pictures.files)))
    return ClipReport(sum(map(os.path.getsize, pictures.files)), digest, facts)


def content_of(files: tuple[Path, ...]) -> str:
    """Return the fingerprint of a clip's file, or of pictures in order."""
    if len(files) == 1:
        return media.content(files[0])
    contents = " ".join(map(media.content, files))
    return hashlib.blake2b(contents.encode(), digest_size=16).hexdigest()


def examine_all(
    files: dict[int, media.Source],
    decode: str,
    options: VisionOptions,
    timeout: float,
    cache: Cache,
) -> Reports:
    """Yield (number, report) of every file as they become known, those in `cache` first; s3://
    names are fetched, unless `decode` is "none": then only size and content tag are known. Raises
    Failure (exit 3) when S3 does not answer."""
    remote = {}
    keys = {}
    for number, file in files.items():
        if s3.is_uri(parts(file)[0]):
            remote[number] = file
        elif _is_gone(file):  # no worker is needed to say so
            yield number, ClipReport(check="DATA-MEDIA-MISSING", message=media.NO_SUCH_FILE)
        else:
            keys[number] = _key(file, _how(decode, options))
    fresh = yield from cache.known(keys)
    local = {number: files[number] for number in fresh}
    for number, report in _in_workers(local, decode, options, timeout):
        cache.put(keys[number], report)
        yield number, report
    if remote:
        yield from _examine_objects(remote, decode, options, timeout, cache)


def _is_gone(file: Path | Pictures) -> bool:
    """Return whether there is no such file; of pictures the examination tells how many are
    missing."""
    if isinstance(file, Pictures):
        return False
    try:
        os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False  # whatever it is, the examination says it
    return False


def parts(file: media.Source) -> tuple[Path | str, ...]:
    """Return the file itself, or those of the pictures."""
    return file.files if isinstance(file, Pictures) else (file,)


def _examine_objects(
    wanted: dict[int, str | Pictures],
    decode: str,
    options: VisionOptions,
    timeout: float,
    cache: Cache,
) -> Reports:
    connection = s3.client()
    uris = [uri for file in wanted.values() for uri in parts(file)]
    listed = {
        found.uri: found for folder in _folders(uris) for found in s3.objects(folder, connection)
    }
    waiting = []
    for number, file in wanted.items():
        objects = [listed.get(uri) for uri in parts(file)]
        report = _listing(objects)
        if decode == "none" or report.check:
            yield number, report
        else:
            waiting.append((number, file, objects))
    for start in range(0, len(waiting), BATCH):
        here = _fetched(waiting[start : start + BATCH], connection)
        yield from examine_all(here, decode, options, timeout, cache)


def _fetched(batch: list[tuple], connection) -> dict[int, Path | Pictures]:
    """Return local copies of a batch of (number, what to examine, its objects)."""
    objects = [found for _, _, of_file in batch for found in of_file]
    with ThreadPoolExecutor(8) as pool:  # its threads end before processes are forked
        paths = iter(list(pool.map(lambda found: s3.fetch(found, connection), objects)))
    copies: dict[int, Path | Pictures] = {}
    for number, file, _ in batch:
        if isinstance(file, Pictures):
            copies[number] = replace(file, files=tuple(islice(paths, len(file.files))))
        else:
            copies[number] = next(paths)
    return copies


def _listing(objects: list[s3.Object | None]) -> ClipReport:
    """Return what a listing tells of a medium: only size and content tag."""
    if None in objects:
        message = "got no such object, expected a media file"
        return ClipReport(check="DATA-MEDIA-MISSING", message=message)
    if not all(found.size for found in objects):
        message = "got an object of zero bytes, expected a medium"
        return ClipReport(check="DATA-MEDIA-EMPTY", message=message)
    tags = " ".join(found.etag for found in objects)
    return ClipReport(sum(found.size for found in objects), tags)


def _folders(uris: Collection[str]) -> list[str]:
    """Return the deepest prefix that holds all the objects, per bucket."""
    keys: dict[str, set[str]] = defaultdict(set)
    for uri in uris:
        bucket, key = s3.split(uri)
        keys[bucket].add(f"/{os.path.dirname(key)}")
    return [
        f"{s3.SCHEME}{bucket}{os.path.commonpath(sorted(folders)).rstrip('/')}"
        for bucket, folders in keys.items()
    ]


def examine_archive(
    archive: Path,
    names: dict[int, str],
    decode: str,
    options: VisionOptions,
    timeout: float,
    cache: Cache,
    first_only: bool = False,
) -> Reports:
    """Yield (number, report) of the files called `names` in a tar archive, which is read once and
    not unpacked. With `first_only` only of those that come first in it, and of all when none is
    there."""
    keys = {
        number: _key(archive, f"{_how(decode, options)} {name}") for number, name in names.items()
    }
    wanted: dict[str, list[int]] = defaultdict(list)
    for number in (yield from cache.known(keys)):
        wanted[os.path.normpath(names[number])].append(number)
    message = f"got no such file in {archive.name} (links are not followed), expected a file"
    with tempfile.TemporaryDirectory() as folder:
        try:
            for batch in archives.batches(archive, wanted, Path(folder)):
                files = {wanted[name][0]: file for name, file in batch.items()}
                for first, report in _in_workers(files, decode, options, timeout):
                    for number in wanted.pop(os.path.normpath(names[first])):
                        cache.put(keys[number], report)
                        yield number, report
                if batch and first_only:
                    return
        except Failure as failure:
            message = failure.findings[0].message
    missing = ClipReport(check="DATA-MEDIA-MISSING", message=message)
    yield from ((number, missing) for numbers in wanted.values() for number in numbers)


class Cache:
    """Reports by file, size, times of change and way of decoding (the time of the last change to
    its entry in the file system cannot be set, so that no other content passes for the file), kept
    in the cache folder.

    Where that place cannot be used the cache forgets everything at the end, and `problem` says why.
    """

    def __init__(self):
        path = storage.cache_folder() / "clips.sqlite"
        self.problem = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.database = self._open(str(path))
        except (OSError, sqlite3.Error) as problem:
            self.problem = f"got {problem} for {path}, expected a place to remember examined files"
            self.database = self._open(":memory:")

    def _open(self, path: str) -> sqlite3.Connection:
        database = sqlite3.connect(
            path, timeout=10, isolation_level=None
        )  # every report is kept at once
        database.execute("PRAGMA synchronous=OFF")
        database.execute(
            "CREATE TABLE IF NOT EXISTS clips (key TEXT PRIMARY KEY, report TEXT) WITHOUT ROWID"
        )
        return database

    def known(self, keys: dict[int, str]) -> Iterator[tuple[int, ClipReport]]:
        """Yields the reports there are; returns the numbers without one."""
        fresh = []
        for number, key in keys.items():
            row = self.database.execute("SELECT report FROM clips WHERE key = ?", [key]).fetchone()
            if row is None:
                fresh.append(number)
                continue
            report = json.loads(row[0])
            facts = report.pop("facts")
            yield number, ClipReport(**report, facts=facts and media.MediaFacts(**facts))
        return fresh

    def put(self, key: str, report: ClipReport) -> None:
        if report.check not in TRANSIENT:
            self.database.execute(
                "INSERT OR REPLACE INTO clips VALUES (?, ?)", [key, json.dumps(asdict(report))]
            )


def _how(decode: str, options: VisionOptions) -> str:
    return f"{decode} {options}" if decode == "sampled" else decode


def _key(path: Path | Pictures, how: str) -> str:
    if isinstance(path, Pictures):
        keys = " ".join(_key(Path(file), how) for file in path.files)
        return f"{path.fps} {path.given_as} {hashlib.sha256(keys.encode()).hexdigest()}"
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return f"{path!a} is not there"
    changed = f"{stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"
    return f"{str(path.absolute())!a} {stat.st_size} {changed} {FACTS_VERSION} {how}"


def _in_workers(
    files: dict[int, Path | Pictures], decode: str, options: VisionOptions, timeout: float
) -> Reports:
    """Yield (number, report) of every file as they become known. A file that takes longer than
    `timeout` seconds, or ends its worker, is reported and the worker replaced."""
    waiting = deque(files.items())
    pool = [_Worker(decode, options) for _ in range(min(os.cpu_count() or 1, len(files)))]
    try:
        while waiting or _busy(pool):
            for place, worker in enumerate(pool):
                if worker.lost(timeout):
                    yield worker.number, worker.loss(timeout)
                    pool[place] = _Worker(decode, options)
            _hand_out(waiting, pool)
            pipes = [worker.pipe for worker in _busy(pool)]
            ready = multiprocessing.connection.wait(pipes, timeout=min(timeout, 0.5))
            for worker in pool:
                answer = worker.answer() if worker.pipe in ready else None
                if answer:
                    yield answer
    finally:
        for worker in pool:
            worker.stop()


def _busy(pool: list[_Worker]) -> list[_Worker]:
    """Return the workers that have a file."""
    return [worker for worker in pool if worker.number is not None]


def _hand_out(waiting: deque[tuple[int, Path | Pictures]], pool: list[_Worker]) -> None:
    """Give every idle worker the next file."""
    for worker in pool:
        if worker.number is None and waiting:
            worker.take(*waiting.popleft())


class _Worker:
    """One process that examines the files sent down its pipe, one at a time."""

    def __init__(self, decode: str, options: VisionOptions):
        self.pipe, far_end = multiprocessing.Pipe()
        self.process = multiprocessing.Process(
            target=_serve, args=(far_end, decode, options), daemon=True
        )
        self.process.start()
        far_end.close()
        self.number: int | None = None
        self.dead = False
        self.since = 0.0

    def take(self, number: int, path: Path | Pictures) -> None:
        self.number = number
        self.since = time.monotonic()
        try:
            self.pipe.send(path)
        except ConnectionError:
            self.dead = True

    def answer(self) -> tuple[int, ClipReport] | None:
        try:
            report = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.dead = True
            return None
        number = self.number
        self.number = None
        return number, report

    def lost(self, timeout: float) -> bool:
        return self.number is not None and (self.dead or time.monotonic() - self.since > timeout)

    def loss(self, timeout: float) -> ClipReport:
        self.stop()
        if self.dead:
            exit_code = self.process.exitcode
            message = f"got a crash of the decoder (exit code {exit_code}), expected it to decode"
            return ClipReport(check="DATA-MEDIA-CRASH", message=message)
        message = f"got no result in {timeout:g} s, expected the file to decode"
        return ClipReport(check="DATA-MEDIA-TIMEOUT", message=message)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe, decode: str, options: VisionOptions) -> None:
    try:
        for path in iter(pipe.recv, None):
            pipe.send(examine(path, decode, options))
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return


def _sampled(facts: media.MediaFacts, options: VisionOptions) -> list[int]:
    try:
        return frame_indices(facts.frames, facts.fps, options, facts.shows_all)
    except Failure:
        # Whether the options suit the clip is a question of the spec; here only whether it decodes.
        return [0, facts.frames - 1]
