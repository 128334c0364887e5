"""Where the files of a medium are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cosmos_reason.data.samples import Media
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.remote import s3


def place(root: Path | str, name: str) -> Path | str:
    """Return the file, or the object in S3, that `name` stands for below a folder or prefix.

    Raises Failure when it leaves that folder or prefix."""
    if s3.is_uri(name):
        s3.split(name)
        return name
    if not s3.is_uri(root):
        return media.resolve(root, name)
    path = media.resolve("", name)
    if path.is_absolute():
        return path
    return s3.join(root, os.path.normpath(path))


def source(medium: Media, place_of: Callable[[str], Path | str]) -> media.Source:
    """Return where a medium is, when `place_of` says it of a name: a file, or pictures, which are
    DEFAULT_FPS a second where nobody says their rate. Raises Failure as `place_of`, and for a
    folder without pictures."""
    fps = medium.fps or sampling.DEFAULT_FPS
    if medium.pictures:
        return media.Pictures(tuple(map(place_of, medium.pictures)), fps, media.LIST)
    found = place_of(medium.path)
    if not medium.may_be_folder:
        return found
    if not s3.is_uri(found):
        return media.pictures_in(Path(found), fps) if os.path.isdir(found) else found
    pictures = media.pictures_of([below.uri for below in s3.objects(found)], fps)
    return pictures if pictures.files else found


def local(found: media.Source, connection=None) -> Path | media.Pictures:
    """Return the same with copies of what is in S3. Raises Failure."""
    if isinstance(found, media.Pictures):
        return replace(found, files=tuple(local(file, connection) for file in found.files))
    return s3.local(found, connection) if s3.is_uri(found) else Path(found)
