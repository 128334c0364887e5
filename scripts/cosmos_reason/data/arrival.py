"""Whether a dataset is what was checked elsewhere, or earlier: its annotations by their
fingerprint, its media by size, beginning, middle and end. Nothing is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import Finding, bad_input, error
from cosmos_reason.data import clip_files, survey
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media.files import Pictures
from cosmos_reason.remote import s3

SHOWN = 5


def check(
    source: str, annotations: Path, media_path: str | None, facts_path: str
) -> tuple[dict, list[Finding]]:
    """Return what was compared and what differs from the dataset_facts.json at `facts_path`.

    Raises Failure (exit 2) for facts that are none, and for media in S3 or in an archive, which
    are no files.
    """
    facts = files.read_json(Path(facts_path))
    if not isinstance(facts, dict) or not {"fingerprint", "clips_table"} <= facts.keys():
        message = "got no dataset facts, expected what check_dataset.py --facts writes"
        raise bad_input("DATA-FACTS", facts_path, message)
    result = {"clips": facts["clips"], "records": facts["records"]}
    # Of other annotations the media are other ones, too: nothing more can be compared.
    if files.sha256(annotations) != facts["fingerprint"]:
        message = "its content is not that of the annotations that the facts are of"
        return result, [error("DATA-ARRIVAL", annotations, message)]
    dataset = survey.of_records(annotations, "", source)
    dataset.media_path = clip_files.media_path(dataset, media_path)
    if s3.is_uri(dataset.media_path) or Path(dataset.media_path).is_file():
        message = "got an archive or s3://, expected a folder of media"
        raise bad_input("DATA-ARRIVAL", dataset.media_path, message)
    content_of = _contents(Path(facts_path), facts)
    differing = []
    for path, named in _media(dataset):
        told = _content(named)
        if told != content_of.get(path):
            differing.append(path + (" (not here)" if told is None else ""))
    if not differing:
        return result, []
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    message = f"{len(differing)} of {facts['clips']} media are not what was checked: "
    message += f"{', '.join(differing[:SHOWN])}{more}; copy them again"
    return result, [error("DATA-ARRIVAL", dataset.media_path, message)]


def changed(annotations: Path, media_path: str | None, facts_path: Path) -> list[str]:
    """Return the media that were written after the dataset_facts.json at `facts_path` and are not
    what it tells of; none where it is of other annotations, and of media in S3 or in an archive.

    Of all others only the times are looked at, so that it may be asked before each launch.
    """
    facts = files.read_json(facts_path)
    if files.sha256(annotations) != facts.get("fingerprint"):
        return []
    dataset = survey.of_records(annotations, "", str(annotations))
    dataset.media_path = clip_files.media_path(dataset, media_path)
    if s3.is_uri(dataset.media_path) or Path(dataset.media_path).is_file():
        return []
    content_of = _contents(facts_path, facts)
    checked_at = facts_path.stat().st_mtime_ns
    found = []
    for path, named in _media(dataset):
        try:
            stats = [file.stat() for file in named]
        except OSError:  # that one is missing others say
            continue
        # A file that was moved here keeps the time of its content, and gets another as an entry.
        is_later = any(max(one.st_mtime_ns, one.st_ctime_ns) >= checked_at for one in stats)
        known = content_of.get(path)
        if is_later and known and _content(named) not in (None, known):
            found.append(path)
    return found


def _contents(facts_path: Path, facts: dict) -> dict[str, str | None]:
    """Return what the facts tell of the content of each medium, by its path in the annotations."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(facts_path.parent / facts["clips_table"])
    return dict(zip(table["clip"].to_pylist(), table["content"].to_pylist(), strict=True))


def _media(dataset: survey.Survey) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield the path of each medium in the annotations, and its files; none where it has none."""
    sources = clip_files.files(dataset)
    for medium, number in dataset.clips.items():
        source = sources.get(number)  # none where its name leaves the media path
        named = source.files if isinstance(source, Pictures) else (source,) if source else ()
        yield medium.path, tuple(map(Path, named))


def _content(named: tuple[Path, ...]) -> str | None:
    try:
        return clip_checks.content_of(named) if named else None
    except OSError:
        return None
