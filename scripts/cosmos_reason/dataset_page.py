"""A dataset on one page: one HTML file that opens offline, with findings, balance, histograms and sample clips."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from cosmos_reason import s3, storage
from cosmos_reason.annotations import Media, Sample, Tally, questions, stream
from cosmos_reason.clip_checks import ARCHIVES, unpacked
from cosmos_reason.dataset_checks import place
from cosmos_reason.findings import Finding
from cosmos_reason.json_stream import JsonRecords
from cosmos_reason.report import HERE, TYPE_NAMES, filmstrip, shortened
from cosmos_reason.survey import Survey

SHOWN_SAMPLES, LOOKED_AT = 12, 2000  # samples shown, of so many at the beginning of the file
BINS = 24


def write(path: Path, parts: dict[str, Survey], facts: dict[str, dict], findings: Sequence[Finding]) -> None:
    """Write the page for `parts` (train, eval), whose facts are dataset_checks.facts, perhaps with a prediction."""
    import jinja2

    loader = jinja2.FileSystemLoader(HERE)
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    pages.filters |= {"pct": "{:.1%}".format, "count": "{:,}".format, "clip": shortened}
    order = ("error", "warning", "info")
    page = pages.get_template("dataset.html.j2").render(
        style=(HERE / "report.css").read_text(encoding="utf-8"),
        findings=sorted(findings, key=lambda finding: order.index(finding.severity)),
        errors=sum(finding.severity == "error" for finding in findings),
        parts=[
            {"name": name, "facts": facts[name], "histograms": histograms(part), "cards": cards(part)}
            for name, part in parts.items()
        ],
        type_names=TYPE_NAMES,
    )
    storage.write_text(path, page.encode(errors="backslashreplace").decode())  # a path may be no UTF-8


def histograms(found: Survey) -> list[dict]:
    clips = [report.facts for report in found.reports.values() if report.facts and report.facts.kind == "video"]
    columns = {
        "Length of clips, s": [clip.seconds for clip in clips],
        "Frames per second": [clip.fps for clip in clips],
        "Height of clips, px": [clip.height for clip in clips],
        "Text tokens per record": found.text_tokens,
    }
    return [histogram(title, values) for title, values in columns.items() if len(values) and min(values) < max(values)]


def histogram(title: str, values: Sequence[float]) -> dict:
    """Bars as shares of the highest, over equal bins from the smallest value to the largest."""
    low, high = min(values), max(values)
    counts = [0] * BINS
    for value in values:
        counts[min(int((value - low) / (high - low) * BINS), BINS - 1)] += 1
    return {"title": title, "low": f"{low:g}", "high": f"{high:g}", "bars": [count / max(counts) for count in counts]}


def cards(found: Survey) -> list[dict]:
    """Some samples with their pictures, drawn from the beginning of the file, always the same ones."""
    samples = list(islice(stream(JsonRecords(found.annotations), Tally()), LOOKED_AT))
    drawn = sorted(random.Random(0).sample(range(len(samples)), min(SHOWN_SAMPLES, len(samples))))
    media = [next(iter(samples[place].media), None) for place in drawn]
    with TemporaryDirectory() as folder:
        files = pictured(found, [medium for medium in media if medium], Path(folder))
        return [card(found, samples[place], medium, files) for place, medium in zip(drawn, media, strict=True)]


def pictured(found: Survey, media: list[Media], folder: Path) -> dict[Media, Path]:
    """Local files of the media that were examined without a problem; those of an archive are unpacked into `folder`."""
    sound = [medium for medium in media if found.reports[found.clips[medium]].facts]
    names = {}
    if str(found.media_path).endswith(ARCHIVES):
        names = {medium: os.path.normpath(medium.path) for medium in sound if not os.path.isabs(medium.path)}
    members = next(unpacked(Path(found.media_path), set(names.values()), folder)) if names else {}
    files = {medium: place(found.media_path, medium.path) for medium in sound if medium not in names}
    files = {medium: s3.local(file) if s3.is_uri(file) else file for medium, file in files.items()}
    return files | {medium: members[name] for medium, name in names.items()}


def card(found: Survey, sample: Sample, medium: Media | None, files: dict[Media, Path]) -> dict:
    picture, caption = "", found.reports[found.clips[medium]].message if medium else "no medium"
    if medium in files:
        picture, caption = filmstrip(str(files[medium]))
    asked = [(question.text, question.gt) for question in questions(sample)]
    return {"id": sample.id, "picture": picture, "caption": caption, "asked": asked[:3]}
