"""All that is known of a dataset before it is held against a spec: its records, its clips, and what
is wrong with both. Enter at `take`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cosmos_reason.data import clip_files, clip_problems, survey
from cosmos_reason.data.survey import Survey
from cosmos_reason.media.checks import Reports


def take(
    annotations: Path,
    media_path: str | None,
    model: str,
    look: Callable[[Survey], Reports],
    source: str = "",
) -> Survey:
    """Return the survey of a dataset, with a report of every clip and the problems of the records
    that use it. `look` examines the clips of the records that were read; texts are counted with the
    tokenizer of `model`; `source` is the name of annotations that were fetched from S3.

    Raises Failure when the annotation file cannot be read, or media are in no place.
    """
    dataset = survey.of_records(annotations, model, source)
    dataset.media_path = clip_files.media_path(dataset, media_path)
    dataset.reports |= look(dataset)
    clip_problems.check_clips(dataset)
    return dataset
