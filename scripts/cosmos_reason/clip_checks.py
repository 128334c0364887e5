"""Media files, members of an archive and objects in S3, examined in worker processes that may hang or crash."""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from cosmos_reason import media, s3
from cosmos_reason.findings import Failure, bad_input
from cosmos_reason.media import ClipReport
from cosmos_reason.vision_tokens import VisionOptions, frame_indices

DECODE_MODES = ("sampled", "all", "none")
ARCHIVES = (".tar.gz", ".tgz", ".tar")
BATCH = 64  # members unpacked, or objects fetched, at a time
CONTENT_BLOCK = 64 * 1024
FACTS_VERSION = 4  # raise it when the same file would be reported differently
TRANSIENT = ("DATA-MEDIA-MISSING", "DATA-MEDIA-TIMEOUT", "DATA-MEDIA-CRASH")  # worth another look next time

Reports = Iterator[tuple[int, ClipReport]]


def examine(path: Path, decode: str, options: VisionOptions) -> ClipReport:
    """Probe one file and decode the frames `decode` asks for: those `options` sample, all, or none."""
    try:
        facts = media.probe(path)
        if facts.kind == "image":
            if decode != "none":
                media.read_image(path)
        elif decode != "none":
            wanted = [facts.frames - 1] if decode == "all" else _sampled(facts, options)
            deque(media.decoded(path, wanted), maxlen=0)
        return ClipReport(path.stat().st_size, _content(path), facts)
    except Failure as failure:
        return ClipReport(check=failure.findings[0].id, message=failure.findings[0].message)
    except OSError as problem:
        return ClipReport(check="DATA-MEDIA-MISSING", message=f"got {problem.strerror}, expected a readable file")


def examine_all(
    files: dict[int, Path | str], decode: str, options: VisionOptions, timeout: float, cache: Cache
) -> Reports:
    """(number, report) of every file as they become known, those in `cache` first; s3:// names are fetched, unless
    `decode` is "none": then only size and content tag are known. Raises Failure (exit 3) when S3 does not answer."""
    remote = {number: file for number, file in files.items() if s3.is_uri(file)}
    keys = {number: _key(file, _how(decode, options)) for number, file in files.items() if number not in remote}
    fresh = yield from cache.known(keys)
    for number, report in _in_workers({number: files[number] for number in fresh}, decode, options, timeout):
        cache.put(keys[number], report)
        yield number, report
    if remote:
        yield from _examine_objects(remote, decode, options, timeout, cache)


def _examine_objects(
    uris: dict[int, str], decode: str, options: VisionOptions, timeout: float, cache: Cache
) -> Reports:
    connection = s3.client()
    listed = {found.uri: found for folder in _folders(uris.values()) for found in s3.objects(folder, connection)}
    waiting = []
    for number, uri in uris.items():
        if (found := listed.get(uri)) is None:
            message = "got no such object, expected a media file"
            yield number, ClipReport(check="DATA-MEDIA-MISSING", message=message)
        elif not found.size:
            message = "got an object of zero bytes, expected a medium"
            yield number, ClipReport(check="DATA-MEDIA-EMPTY", message=message)
        elif decode == "none":
            yield number, ClipReport(found.size, found.etag)
        else:
            waiting.append((number, found))
    for start in range(0, len(waiting), BATCH):
        numbers, objects = zip(*waiting[start : start + BATCH], strict=True)
        with ThreadPoolExecutor(8) as pool:  # its threads end before processes are forked
            paths = list(pool.map(lambda found: s3.fetch(found, connection), objects))
        yield from examine_all(dict(zip(numbers, paths, strict=True)), decode, options, timeout, cache)


def _folders(uris: Collection[str]) -> list[str]:
    """The deepest prefix that holds all the objects, per bucket."""
    keys: dict[str, set[str]] = defaultdict(set)
    for uri in uris:
        bucket, key = s3.split(uri)
        keys[bucket].add(f"/{os.path.dirname(key)}")
    return [f"{s3.SCHEME}{bucket}{os.path.commonpath(sorted(folders)).rstrip('/')}" for bucket, folders in keys.items()]


def examine_archive(
    archive: Path, names: dict[int, str], decode: str, options: VisionOptions, timeout: float, cache: Cache
) -> Reports:
    """(number, report) of the files called `names` in a tar archive, which is read once and not unpacked."""
    keys = {number: _key(archive, f"{_how(decode, options)} {name}") for number, name in names.items()}
    wanted: dict[str, list[int]] = defaultdict(list)
    for number in (yield from cache.known(keys)):
        wanted[os.path.normpath(names[number])].append(number)
    message = f"got no such file in {archive.name} (links are not followed), expected a file"
    with tempfile.TemporaryDirectory() as folder:
        try:
            for batch in unpacked(archive, wanted, Path(folder)):
                files = {wanted[name][0]: file for name, file in batch.items()}
                for first, report in _in_workers(files, decode, options, timeout):
                    for number in wanted.pop(os.path.normpath(names[first])):
                        cache.put(keys[number], report)
                        yield number, report
        except Failure as failure:
            message = failure.findings[0].message
    missing = ClipReport(check="DATA-MEDIA-MISSING", message=message)
    yield from ((number, missing) for numbers in wanted.values() for number in numbers)


def unpacked(archive: Path, wanted: Collection[str], folder: Path) -> Iterator[dict[str, Path]]:
    """Batches of wanted members as files in `folder`, overwritten by the next batch: {normalised name: file}. Links and
    devices are passed over, of two members of a name the first one counts. Raises Failure where it is damaged, after
    the members before that."""
    batch: dict[str, Path] = {}
    left = set(wanted)
    damage = None
    try:
        with tarfile.open(archive) as tar:
            for member in tar if left else ():
                name = os.path.normpath(member.name)
                if name not in left or not member.isfile():
                    continue
                file = folder / f"{len(batch)}{Path(name).suffix}"
                with tar.extractfile(member) as source, file.open("wb") as target:
                    shutil.copyfileobj(source, target)
                batch[name] = file
                left.remove(name)
                if not left:
                    break
                if len(batch) == BATCH:
                    yield batch
                    batch = {}
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as problem:
        message = f"got a damaged archive {archive.name} ({problem}), expected one that can be read to its end"
        damage = bad_input("DATA-MEDIA-MISSING", archive, message)
    yield batch
    if damage:
        raise damage


class Cache:
    """Reports by file, size, time of change and way of decoding, kept under $COSMOS_CACHE or $XDG_CACHE_HOME.

    Where that place cannot be used the cache forgets everything at the end, and `problem` says why.
    """

    def __init__(self):
        home = os.environ.get("COSMOS_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(home) / "cosmos_reason" / "clips.sqlite"
        self.problem = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.database = self._open(str(path))
        except (OSError, sqlite3.Error) as problem:
            self.problem = f"got {problem} for {path}, expected a place to remember examined files"
            self.database = self._open(":memory:")

    def _open(self, path: str) -> sqlite3.Connection:
        database = sqlite3.connect(path, timeout=10, isolation_level=None)  # every report is kept at once
        database.execute("PRAGMA synchronous=OFF")
        database.execute("CREATE TABLE IF NOT EXISTS clips (key TEXT PRIMARY KEY, report TEXT) WITHOUT ROWID")
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
            self.database.execute("INSERT OR REPLACE INTO clips VALUES (?, ?)", [key, json.dumps(asdict(report))])


def _how(decode: str, options: VisionOptions) -> str:
    return f"{decode} {options}" if decode == "sampled" else decode


def _key(path: Path, how: str) -> str:
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return f"{path!a} is not there"
    return f"{str(path.absolute())!a} {stat.st_size} {stat.st_mtime_ns} {FACTS_VERSION} {how}"


def _in_workers(files: dict[int, Path], decode: str, options: VisionOptions, timeout: float) -> Reports:
    """(number, report) of every file as they become known. A file that takes longer than `timeout` seconds, or ends
    its worker, is reported and the worker replaced."""
    waiting = list(files.items())[::-1]
    pool = [_Worker(decode, options) for _ in range(min(os.cpu_count() or 1, len(files)))]
    try:
        while waiting or any(worker.number is not None for worker in pool):
            for place, worker in enumerate(pool):
                if worker.lost(timeout):
                    yield worker.number, worker.obituary(timeout)
                    pool[place] = worker = _Worker(decode, options)
                if worker.number is None and waiting:
                    worker.take(*waiting.pop())
            busy = [worker.pipe for worker in pool if worker.number is not None]
            ready = multiprocessing.connection.wait(busy, timeout=min(timeout, 0.5))
            for worker in pool:
                if worker.pipe in ready and (report := worker.answer()):
                    yield report
    finally:
        for worker in pool:
            worker.stop()


class _Worker:
    """One process that examines the files sent down its pipe, one at a time."""

    def __init__(self, decode: str, options: VisionOptions):
        self.pipe, far_end = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=_serve, args=(far_end, decode, options), daemon=True)
        self.process.start()
        far_end.close()
        self.number: int | None = None
        self.dead = False
        self.since = 0.0

    def take(self, number: int, path: Path) -> None:
        self.number, self.since = number, time.monotonic()
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
        number, self.number = self.number, None
        return number, report

    def lost(self, timeout: float) -> bool:
        return self.number is not None and (self.dead or time.monotonic() - self.since > timeout)

    def obituary(self, timeout: float) -> ClipReport:
        self.stop()
        if self.dead:
            message = f"got a crash of the decoder (exit code {self.process.exitcode}), expected it to decode"
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
        return frame_indices(facts.frames, facts.fps, options)
    except Failure:  # whether the options suit the clip is a question of the spec; here only whether it decodes
        return [0, facts.frames - 1]


def _content(path: Path) -> str:
    """A fingerprint that reads at most three blocks of the file, however large it is."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as handle:
        for offset in (0, (size - CONTENT_BLOCK) // 2, size - CONTENT_BLOCK):
            handle.seek(max(offset, 0))
            digest.update(handle.read(CONTENT_BLOCK))
    return digest.hexdigest()
