"""A dataset on one page: one HTML file that opens offline, with findings, balance, histograms and
sample clips."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from cosmos_reason.base import files, findings, progress
from cosmos_reason.base.findings import Finding
from cosmos_reason.data import clip_files, located
from cosmos_reason.data.annotations import stream
from cosmos_reason.data.json_stream import JsonRecords
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.samples import Media, Sample
from cosmos_reason.data.source_files import MARKER
from cosmos_reason.data.survey import Survey
from cosmos_reason.data.turns import alike
from cosmos_reason.media import archives
from cosmos_reason.pages.filmstrip import filmstrip
from cosmos_reason.pages.render import render

MOST_PAIRS = 50  # of records in conflict
DRAWN_FROM = 2000  # samples at the beginning of the file
QUESTIONS_PER_CARD = 3
BINS = 24
WORST_FIRST = (findings.ERROR, findings.WARNING, findings.INFO)


def write(
    path: Path,
    parts: dict[str, Survey],
    facts: dict[str, dict],
    found: Sequence[Finding],
    shown: int,
) -> None:
    """Write the page for `parts` (train, eval), whose facts are data.facts.facts, perhaps with a
    prediction; with pictures of so many records as are `shown`, of all for 0."""
    described = []
    for name, part in parts.items():
        described.append(
            {
                "name": name,
                "facts": facts[name],
                "histograms": histograms(part),
                "cards": cards(part, shown),
                "conflicts": conflicts(part),
                "shortcuts": part.shortcuts,
            }
        )
    marker = parts["train"].annotations.parent.parent / MARKER
    built = files.read_json(marker) if marker.is_file() else {}
    splits = built.get("groups", {})
    groups = sorted({group for counts in splits.values() for group in counts})
    page = render(
        "dataset.html.j2",
        findings=sorted(found, key=lambda finding: WORST_FIRST.index(finding.severity)),
        errors=sum(finding.severity == findings.ERROR for finding in found),
        parts=described,
        agreement=built.get("agreement", []),
        splits=list(splits),
        groups=[(one, [counts.get(one, 0) for counts in splits.values()]) for one in groups],
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


def conflicts(survey: Survey) -> list[dict]:
    """Return the records that answer one question about one clip otherwise, with both answers."""
    pairs = survey.conflicts[:MOST_PAIRS]
    wanted = {survey.indices[row] for pair in pairs for row in pair}
    samples = {}
    for sample in stream(JsonRecords(survey.annotations), Tally()) if wanted else ():
        if sample.index in wanted:
            samples[sample.index] = sample
    found = []
    for pair in pairs:
        later, earlier = (samples[survey.indices[row]] for row in pair)
        said = {question.text: question.gt for question in earlier.questions()}
        for question in later.questions():
            other = said.get(question.text, question.gt)
            if alike(other) != alike(question.gt):
                ids, answers = (earlier.id, later.id), (other, question.gt)
                found.append({"ids": ids, "question": question.text, "answers": answers})
    return found


def cards(survey: Survey, shown: int) -> list[dict]:
    """Return all samples with their pictures, or as many as are `shown`, drawn from the beginning
    of the file, always the same ones."""
    most = max(DRAWN_FROM, shown) if shown else None
    samples = list(islice(stream(JsonRecords(survey.annotations), Tally()), most))
    count = min(shown or len(samples), len(samples))
    indices = sorted(random.Random(0).sample(range(len(samples)), count))
    drawn = [samples[index] for index in indices]
    media = [sample.media[0] for sample in drawn if sample.media]
    with TemporaryDirectory() as folder:
        local_files = pictured(survey, media, Path(folder))
        bar = progress.bar(count, "draw records", unit="record", is_quick=True)
        with bar:
            made = []
            for sample in drawn:
                made.append(card(survey, sample, local_files))
                bar.update()
        return made


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
