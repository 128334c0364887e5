"""Whether a copy of a dataset is what was checked elsewhere: its annotations by their fingerprint,
its media by size, beginning, middle and end. Nothing is decoded."""

from __future__ import annotations

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
    import pyarrow.parquet as parquet

    facts = files.read_json(Path(facts_path))
    if not isinstance(facts, dict) or not {"fingerprint", "clips_table"} <= facts.keys():
        message = "got no dataset facts, expected what check_dataset.py --facts writes"
        raise bad_input("DATA-FACTS", facts_path, message)
    table = parquet.read_table(Path(facts_path).parent / facts["clips_table"])
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
    content_of = dict(zip(table["clip"].to_pylist(), table["content"].to_pylist(), strict=True))
    sources = clip_files.files(dataset)
    differing = []
    for medium, number in dataset.clips.items():
        try:
            source = sources[number]
            named = source.files if isinstance(source, Pictures) else (source,)
            told = clip_checks.content_of(tuple(map(Path, named)))
        except (KeyError, OSError):
            told = None
        if told != content_of.get(medium.path):
            differing.append(medium.path + (" (not here)" if told is None else ""))
    if not differing:
        return result, []
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    message = f"{len(differing)} of {facts['clips']} media are not what was checked: "
    message += f"{', '.join(differing[:SHOWN])}{more}; copy them again"
    return result, [error("DATA-ARRIVAL", dataset.media_path, message)]
