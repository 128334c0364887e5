"""A dataset on one page: one HTML file that opens offline, with findings, balance, histograms and
sample clips."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.data import clip_files, located
from cosmos_reason.data.annotations import stream
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.samples import Media, Sample
from cosmos_reason.data.survey import Survey
from cosmos_reason.media import archives
from cosmos_reason.pages.filmstrip import filmstrip
from cosmos_reason.pages.render import render

SHOWN_SAMPLES = 12
DRAWN_FROM = 2000  # samples at the beginning of the file
QUESTIONS_PER_CARD = 3
BINS = 24
WORST_FIRST = (findings.ERROR, findings.WARNING, findings.INFO)


def write(
    path: Path, parts: dict[str, Survey], facts: dict[str, dict], found: Sequence[Finding]
) -> None:
    """Write the page for `parts` (train, eval), whose facts are data.facts.facts, perhaps with a
    prediction."""
    described = []
    for name, part in parts.items():
        described.append(
            {
                "name": name,
                "facts": facts[name],
                "histograms": histograms(part),
                "cards": cards(part),
            }
        )
    page = render(
        "dataset.html.j2",
        findings=sorted(found, key=lambda finding: WORST_FIRST.index(finding.severity)),
        errors=sum(finding.severity == findings.ERROR for finding in found),
        parts=described,
    )
    # A path may be no UTF-8.
    files.write_text(path, page.encode(errors="backslashreplace").decode())


def histograms(survey: Survey) -> list[dict]:
    """Return a histogram of each column whose values are not all the same."""
    clips = []
    for report in survey.reports.values():
        if report.facts and report.facts.kind == "video":
            clips.append(report.facts)
    columns = {
        "Length of clips, s": [clip.seconds for clip in clips],
        "Frames per second": [clip.fps for clip in clips],
        "Height of clips, px": [clip.height for clip in clips],
        "Text tokens per record": survey.text_tokens,
    }
    charts = []
    for title, values in columns.items():
        if len(values) and min(values) < max(values):
            charts.append(histogram(title, values))
    return charts


def histogram(title: str, values: Sequence[float]) -> dict:
    """Return bars as shares of the highest, over equal bins from the smallest value to the
    largest."""
    low = min(values)
    high = max(values)
    counts = [0] * BINS
    for value in values:
        index = int((value - low) / (high - low) * BINS)
        counts[min(index, BINS - 1)] += 1
    return {
        "title": title,
        "low": f"{low:g}",
        "high": f"{high:g}",
        "bars": [count / max(counts) for count in counts],
    }


def cards(survey: Survey) -> list[dict]:
    """Return some samples with their pictures, drawn from the beginning of the file, always the
    same ones."""
    samples = list(islice(stream(JsonRecords(survey.annotations), Tally()), DRAWN_FROM))
    count = min(SHOWN_SAMPLES, len(samples))
    indices = sorted(random.Random(0).sample(range(len(samples)), count))
    drawn = [samples[index] for index in indices]
    media = [sample.media[0] for sample in drawn if sample.media]
    with TemporaryDirectory() as folder:
        local_files = pictured(survey, media, Path(folder))
        return [card(survey, sample, local_files) for sample in drawn]


def pictured(survey: Survey, media: list[Media], folder: Path) -> dict:
    """Return {medium: local file or pictures} of the media that were examined without a problem;
    those of an archive are unpacked into `folder`."""
    is_archive = archives.is_archive(survey.media_path)
    members, local_files = {}, {}
    for medium in media:
        facts = survey.reports[survey.clips[medium]].facts
        if not facts:
            continue
        if is_archive and not (facts.pictures or os.path.isabs(medium.path)):
            members[medium] = os.path.normpath(medium.path)
        else:
            local_files[medium] = located.local(clip_files.source_of(survey, medium))
    if members:
        names = set(members.values())
        unpacked = next(archives.batches(Path(survey.media_path), names, folder))
        for medium, name in members.items():
            local_files[medium] = unpacked[name]
    return local_files


def card(survey: Survey, sample: Sample, local_files: dict[Media, Path]) -> dict:
    medium = sample.media[0] if sample.media else None
    if medium is None:
        picture, caption = "", "no medium"
    elif medium in local_files:
        picture, caption = filmstrip(local_files[medium])
    else:
        picture = ""
        caption = survey.reports[survey.clips[medium]].message
    asked = [(question.text, question.gt) for question in sample.questions()]
    return {
        "id": sample.id,
        "picture": picture,
        "caption": caption,
        "asked": asked[:QUESTIONS_PER_CARD],
    }
