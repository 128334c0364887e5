"""Several training sets as one: the records of each root, or a share of them, in LLaVA form, with
media named below the folder that all roots lie in."""

from __future__ import annotations

import os
import posixpath
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Failure
from cosmos_reason.data import annotations
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_checks import CHECKS, Tally
from cosmos_reason.data.records import MEDIA_KEYS, id_and_media, parse
from cosmos_reason.media import archives
from cosmos_reason.media.files import resolve
from cosmos_reason.remote import s3
from cosmos_reason.rules.draft import TRAIN_ROOT, Part

SEED = 0  # of the records that a share keeps


class Mixture(NamedTuple):
    """LLaVA records, the folder that their media are named below, and what came from where."""

    records: list[dict]
    media_path: str
    in_words: str


def mix(parts: list[Part], tags: Sequence[str] = ()) -> Mixture:
    """Return the mixture of the parts. `tags`, where there are any, name the group that the records
    of each part are scored in. Raises Failure for roots that cannot be one dataset, and for records
    that are wrong."""
    roots = []
    for written, _ in parts:
        root = os.path.abspath(os.path.expanduser(written))
        wanted = ""
        if s3.is_uri(written):
            wanted = "folders here: only a single root may be in S3"
        elif not annotations.locate(root).is_file():
            wanted = "a folder with annotations.json: they are put together"
        if wanted:
            message = f"got {written}, expected {wanted}"
            raise findings.bad_input("SPEC-ROOT", TRAIN_ROOT, message)
        roots.append(root)
    twice = [root for root, count in Counter(roots).items() if count > 1]
    if twice:
        message = f"got {twice[0]} more than once, expected each root once"
        raise findings.bad_input("SPEC-ROOT", TRAIN_ROOT, message)
    # One folder holds the media of all, since a spec names one.
    common = os.path.commonpath(roots)
    if common == os.sep:
        message = f"got {', '.join(roots)}, expected roots below one folder, which the job reads"
        raise findings.bad_input("SPEC-ROOT", TRAIN_ROOT, message)
    kept: list[list[dict]] = []
    in_words = []
    problems: list[findings.Finding] = []
    records_of = [
        findings.attempt(problems, _records, root, os.path.relpath(root, common)) for root in roots
    ]
    if problems:
        raise Failure(problems, findings.EXIT_BAD_INPUT)
    tags = tags or [""] * len(parts)
    for root, one, tag, found in zip(roots, parts, tags, records_of, strict=True):
        if found and not round(one.share * len(found)):
            message = (
                f"got the share {one.share:g} of {root}, which is none of its {len(found)} "
                "records, expected a larger one"
            )
            raise findings.bad_input("SPEC-ROOT", TRAIN_ROOT, message)
        chosen = found
        if one.share != 1 and found:
            count = round(one.share * len(found))
            places = random.Random(SEED).sample(range(len(found)), count)
            chosen = [found[place] for place in sorted(places)]
        if tag:
            chosen = [{**record, "tags": [tag]} for record in chosen]
        kept.append(chosen)
        # In the origins of the spec: which version of each root was taken.
        digest = files.sha256(annotations.locate(root))[:12]
        share = "" if one.share == 1 else f":{one.share:g}"
        in_words.append(f"{root}{share} ({len(chosen)} of {len(found)} records, sha256 {digest})")
    # Ids that several roots have get the names of the roots in front, or their numbers.
    own = [{str(record["id"]) for record in part if "id" in record} for part in kept]
    if sum(map(len, own)) != len(set().union(*own)):
        labels = [os.path.basename(root) for root in roots]
        if len(set(labels)) != len(labels):
            labels = list(map(str, range(1, len(labels) + 1)))
        for part, label in zip(kept, labels, strict=True):
            for record in part:
                if "id" in record:
                    record["id"] = f"{label}-{record['id']}"
    records = [record for chosen in kept for record in chosen]
    return Mixture(records, common, ", ".join(in_words))


def _records(root: str, prefix: str) -> list[dict]:
    """Return the records of a root with their media below `prefix`. Raises Failure with all that is
    wrong with them."""
    source = JsonRecords(annotations.locate(root))
    tally = Tally()
    found = []

    def take(index: int, record: dict, tally: Tally) -> dict | None:
        is_usable = parse(index, record, tally) is not None
        return record if is_usable else None

    for record in annotations.stream(source, tally, make=take):
        found.append(record)
    wrong = tally.findings(CHECKS, source.path)
    errors = [finding for finding in wrong if finding.severity == findings.ERROR]
    if errors:
        raise Failure(errors, findings.EXIT_BAD_INPUT)
    stated = source.header.get("media_root")
    folder = stated if isinstance(stated, str) else ""
    sample = next((media for record in found if (media := id_and_media(0, record, Tally())[1])), ())
    for first in sample[:1]:
        archive = archives.in_root(root, first.kind, posixpath.join(folder, first.path))
        if archive:
            message = "got media in an archive, expected files: roots are put together"
            raise findings.bad_input("SPEC-ROOT", archive, message, archives.unpacking(archive))
    return [_moved(record, root, prefix, folder) for record in found]


def _moved(record: dict, root: str, prefix: str, folder: str) -> dict:
    """Return the record with its media named below the folder of all roots."""

    def name(written: str) -> str:
        if "://" in written or posixpath.isabs(written):
            return written
        inside = posixpath.join(folder, written)
        resolve(root, inside)  # raises Failure for one that leads out
        return posixpath.normpath(posixpath.join(prefix, inside))

    def named(value: object) -> object:
        """Return a name, a list, or the part of a message that shows a video, with names moved."""
        if isinstance(value, list):
            return [named(one) for one in value]
        if isinstance(value, dict):
            return value | {"video": named(value.get("video"))}
        return name(value) if value else value

    moved = {key: named(record[key]) for key, _ in MEDIA_KEYS if key in record}
    return record | moved
