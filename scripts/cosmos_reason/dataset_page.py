"""A dataset on one page: one HTML file that opens offline, with findings, balance, histograms and sample clips."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from cosmos_reason import storage
from cosmos_reason.annotations import Sample, Tally, questions, stream
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
    storage.write_text(path, page)


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
    """Some samples with their pictures, evenly spread over the beginning of the file."""
    samples = list(islice(stream(JsonRecords(found.annotations), Tally()), LOOKED_AT))
    return [card(found, sample) for sample in samples[:: max(1, -(-len(samples) // SHOWN_SAMPLES))]]


def card(found: Survey, sample: Sample) -> dict:
    medium = next(iter(sample.media), None)
    report = medium and found.reports[found.clips[medium]]
    picture, caption = "", report.message if report else "no medium"
    if report and report.facts:
        picture, caption = filmstrip(str(found.media_path / medium.path))
    asked = [(question.text, question.gt) for question in questions(sample)]
    return {"id": sample.id, "picture": picture, "caption": caption, "asked": asked[:3]}
