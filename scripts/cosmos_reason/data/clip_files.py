"""Where the media of a dataset are: beside the annotations, below a root, in an archive, in S3."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.located import local, place, source
from cosmos_reason.data.samples import Media
from cosmos_reason.data.survey import Survey
from cosmos_reason.media import archives
from cosmos_reason.media import files as media
from cosmos_reason.remote import s3


def media_path(dataset: Survey, given: str | None) -> Path | str:
    """Return the folder, prefix or archive that media names are relative to.

    That is `given` (an archive in S3 is fetched), else the media root named in the file, else its
    folder, else one of the usual archives there when the first medium is not there itself. Raises
    Failure when the named one leaves that folder."""
    if given is not None:
        if s3.is_uri(given) and not archives.is_archive(given):
            return given.rstrip("/")
        return local(given)
    root = dataset.annotations.parent
    if s3.is_uri(dataset.source):
        root = dataset.source.rpartition("/")[0]
    stated = dataset.header.get("media_root")
    if isinstance(stated, str):
        try:
            return place(root, stated)
        except f.Failure:
            outside = os.path.normpath(os.path.join(root, stated))
            message = f"got the media root {stated}, which leaves the folder of the annotations"
            fix = Fix(flags={"--media-path": outside})
            raise f.bad_input("DATA-MEDIA-ESCAPE", dataset.source, message, fix) from None
    # The first medium stands for all: each of them in S3 would be a question to the server.
    for medium in dataset.clips:
        if not s3.is_uri(medium.path):
            archive = archives.in_root(root, medium.kind, medium.path)
            return local(archive) if archive else root
    return root


def whole_name(file: Path | str) -> str:
    """Return the name by which a file is found from everywhere."""
    return str(file) if s3.is_uri(file) else os.path.abspath(file)


def files(dataset: Survey) -> dict[int, media.Source]:
    """Return what to examine, by clip number; names that leave the media path get their report
    here."""
    paths = {}
    for medium, number in dataset.clips.items():
        try:
            paths[number] = source_of(dataset, medium)
        except f.Failure as failure:
            problem = failure.findings[0]
            dataset.reports[number] = media.ClipReport(check=problem.id, message=problem.message)
    return paths


def source_of(dataset: Survey, medium: Media) -> media.Source:
    """Return where a medium is. Pictures in an archive are unpacked to be looked at; clips are not.
    Raises Failure."""
    root = dataset.media_path
    if medium.pictures or medium.may_be_folder:
        root = archives.media_folder(root)
    return source(medium, partial(place, root))


def members(dataset: Survey) -> dict[int, str]:
    """Return the media that are read from an archive, by clip number; none when the media path is a
    folder or prefix."""
    if s3.is_uri(dataset.media_path) or not Path(dataset.media_path).is_file():
        return {}
    in_archive = {}
    for medium, number in dataset.clips.items():
        stands_alone = s3.is_uri(medium.path) or os.path.isabs(medium.path)
        is_unpacked = medium.pictures or medium.may_be_folder
        if number not in dataset.reports and not (stands_alone or is_unpacked):
            in_archive[number] = medium.path
    return in_archive
