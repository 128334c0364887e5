"""Annotations and media in S3: existence and size from one listing, contents fetched only where they are opened."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cosmos_reason import clip_checks, s3
from cosmos_reason.findings import bad_input
from cosmos_reason.media import ClipReport
from cosmos_reason.vision_tokens import VisionOptions

ROOT_FILES = ("annotations.json", "annotations.jsonl", "meta.json")
FETCHED_AHEAD = 64  # objects at a time


def fetch_annotations(uri: str) -> tuple[str, Path]:
    """(s3:// name, local copy) of an annotation file, or of the one in a dataset root.

    Raises Failure: exit 2 when there is none, exit 3 when S3 does not answer."""
    if not uri.endswith((".json", ".jsonl")):
        connection = s3.client()
        names = [name for name in ROOT_FILES if s3.head(s3.join(uri, name), connection)]
        if not names:
            message = f"got no {', '.join(ROOT_FILES)} below it, expected a dataset root or an annotation file"
            raise bad_input("FILE-MISSING", uri, message)
        uri = s3.join(uri, names[0])
    folder, _, name = uri.rpartition("/")
    if name == "meta.json":  # its conversations are files of their own
        return uri, s3.snapshot(folder, [name, "text/*.json"]) / name
    return uri, s3.local(uri)


def examine(
    uris: Sequence[str], decode: str, options: VisionOptions, timeout: float, cache: clip_checks.Cache
) -> Iterator[tuple[int, ClipReport]]:
    """(position, report) of every object, as clip_checks.examine_all; with `decode` "none" nothing is fetched, so that
    only size and content tag are known. Raises Failure (exit 3) when S3 does not answer."""
    connection = s3.client()
    listed = {found.uri: found for folder in _folders(uris) for found in s3.objects(folder, connection)}
    waiting = []
    for position, uri in enumerate(uris):
        found = listed.get(uri)
        if found is None:
            yield position, ClipReport(check="DATA-MEDIA-MISSING", message="got no such object, expected a media file")
        elif not found.size:
            message = "got an object of zero bytes, expected a medium"
            yield position, ClipReport(check="DATA-MEDIA-EMPTY", message=message)
        elif decode == "none":
            yield position, ClipReport(found.size, found.etag)
        else:
            waiting.append((position, found))
    for start in range(0, len(waiting), FETCHED_AHEAD):
        batch = waiting[start : start + FETCHED_AHEAD]
        with ThreadPoolExecutor(8) as pool:  # its threads end before processes are forked
            paths = list(pool.map(lambda entry: s3.fetch(entry[1], connection), batch))
        for place, report in clip_checks.examine_all(paths, decode, options, timeout, cache):
            yield batch[place][0], report


def _folders(uris: Sequence[str]) -> list[str]:
    """The deepest prefix that holds all the objects, per bucket."""
    keys: dict[str, set[str]] = defaultdict(set)
    for uri in uris:
        bucket, key = s3.split(uri)
        keys[bucket].add(f"/{os.path.dirname(key)}")
    return [f"{s3.SCHEME}{bucket}{os.path.commonpath(sorted(folders)).rstrip('/')}" for bucket, folders in keys.items()]
