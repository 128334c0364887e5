"""A job as one page that opens offline and, while the job runs, renews itself: numbers, curves,
findings, the end of the log."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

from cosmos_reason.base import files, findings, job_folder, secrets
from cosmos_reason.jobs import in_words, progress, watch
from cosmos_reason.jobs.record import LOG, METRICS, Job
from cosmos_reason.pages import loss_chart
from cosmos_reason.pages.render import render
from cosmos_reason.spec import origins

LOG_LINES = 40
# Charts: title, and the numbers of metrics.jsonl that are its lines.
CHARTS = (
    ("Loss", loss_chart.LOSSES),
    ("Mean reward", ("train/reward_mean",)),
    ("Divergence from the start (KL), in nats a token", ("train/kl",)),
    ("Share of groups that teach", ("train/groups_teaching",)),
    ("Tokens of a completion", ("train/completion_length",)),
    ("Held-out questions answered right", loss_chart.ACCURACIES),
    ("Tokens a second", ("train/tokens_per_second",)),
    ("GPU memory in GiB", ("gpu/memory_gib",)),
)
# Numbers in the head of the page, as they are read from the newest metrics.
FIGURES = {
    "train/loss": ("loss", "{:.4f}"),
    "val/avg_loss": ("validation loss", "{:.4f}"),
    "val/accuracy": ("validation accuracy", "{:.1%}"),
    "train/reward_mean": ("mean reward", "{:.3f}"),
    "train/kl": ("KL", "{:.3f}"),
    "train/tokens_per_second": ("tokens/s", "{:,.0f}"),
    "gpu/memory_gib": ("GiB on the GPU", "{:.1f}"),
}


def write(job: Job, path: Path, every: float | None = None) -> None:
    """Write the page of a job as it is now; with `every`, while it runs, one that the browser reads
    again after so many seconds."""
    rows = []
    for log in job_folder.files_of_attempts(job.folder / METRICS):
        rows += progress.read_metrics(log.parent)[0]
    latest: dict = {}
    for row in rows:
        latest |= row
    curves: dict[str, list] = {key: [] for _, keys in CHARTS for key in keys}
    for row in rows:
        for key, points in curves.items():
            if key in progress.plain(row) and progress.plain(row)[key] is not None:
                points.append((row.get("step", 0), row[key]))
    drawn = [(title, loss_chart.chart([curves], keys)) for title, keys in CHARTS]
    figures = [(name, form.format(latest[key])) for key, (name, form) in FIGURES.items()
               if key in latest]  # fmt: skip
    seconds = watch.eta(rows[0], latest) if rows and not job.has_ended else None
    if seconds is not None:
        figures.append(("left", str(timedelta(seconds=seconds))))
    where = "" if job.has_ended else progress.stage(job.folder)
    if "total_steps" in latest:
        where = progress.position(job.folder, latest)
    share = latest.get("step", 0) / latest["total_steps"] if latest.get("total_steps") else None
    said = origins.said_of(job.spec["source"]) if job.spec["source"] else ()
    known = [f"{id}: {message}" for id, _, message in sorted(said)]
    log = "\n".join(secrets.hidden(line) for line in progress.log_tail(job.folder, LOG_LINES))
    page = render(
        "job.html.j2",
        job=job,
        every=None if every is None or job.has_ended else max(1, round(every)),
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        where=where,
        share=share,
        figures=figures,
        charts=[(title, chart) for title, chart in drawn if chart],
        found=job.diagnosis,
        known=known,
        history=in_words.history(job),
        log=findings.printable(log),
        log_path=job.folder / LOG,
        left=sorted((job.outputs | job.evidence).items()),
        as_text=lambda value: value if isinstance(value, str) else json.dumps(value),
    )
    files.write_text(path, page)
