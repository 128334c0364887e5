"""Following a job: a bar on a terminal, plain lines elsewhere, JSON lines for an agent."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import listing, platforms, progress, record
from cosmos_reason.jobs.record import Job

PAUSE_SECONDS = 0.5
AWAY_SECONDS = 600  # for which a controller that has answered before is asked again
AWAY_PAUSE = 5
FACTS = {
    "train/loss": "loss {:.4f}",
    "val/avg_loss": "validation loss {:.4f}",
    "val/accuracy": "validation accuracy {:.1%}",
    "val/reward_avg": "validation reward {:.3f}",
    "train/reward_mean": "reward {:.3f}",
    "train/reward_std": "its spread {:.3f}",
    "train/groups_teaching": "{:.0%} of groups teach",
    "train/kl": "KL {:.4f}",
    "train/entropy": "entropy {:.3f}",
    "train/repetition": "{:.0%} repeated",
    "train/completion_length": "{:.0f} tokens a completion",
    "train/tokens_per_second": "{:,.0f} tokens/s",
    "train/generation_seconds": "{:.2f} s generating",
    "train/step_seconds": "{:.2f} s/step",
    "train/waiting_seconds": "{:.2f} s of it waiting for records",
    "gpu/memory_gib": "{:.1f} GiB on the GPU",
}
LOSSES = {  # told where there are some
    "train/skipped_records": "{:,} records left out",
    "val/skipped_records": "{:,} validation records left out",
}


def follow(folder: Path) -> Iterator[tuple[Job, list[dict]]]:
    """Yield (job, new metrics lines) again and again until the job has ended; UNKNOWN while its
    controller does not answer. Raises Failure when nobody can say, or not for long."""
    position = ("", 0)
    answered_at = None
    while True:
        try:
            job = platforms.refresh(folder)
            answered_at = time.monotonic()
        except Failure as failure:
            # A controller is away for minutes when it is restarted: go on watching.
            finding = failure.findings[0]
            is_away = finding.data.get("cause") in listing.AWAY
            is_long = answered_at is None or time.monotonic() - answered_at > AWAY_SECONDS
            if not is_away or is_long:
                raise
            job = Job.from_json(folder, finding.data["job"])
        lines, position = progress.read_metrics(folder, position)
        yield job, lines
        if job.has_ended:
            return
        time.sleep(AWAY_PAUSE if job.state == record.UNKNOWN else PAUSE_SECONDS)


Moments = Iterator[tuple[Job, list[dict]]]


def show(moments: Moments, folder: Path, as_json: bool, every: float) -> Job:
    """Show the job until its end, as `follow` tells it, and return its last record; at most one
    progress line per `every` seconds."""
    if sys.stderr.isatty() and not as_json:
        from tqdm import tqdm

        with tqdm(desc=folder.name, unit=progress.unit(folder), dynamic_ncols=True) as bar:
            for job, lines in moments:
                for line in lines:
                    step = line.get("step", bar.n)
                    if bar.total is None and "total_steps" in line:
                        bar.total = line["total_steps"]
                        # Steps before the watch began do not count for the speed.
                        bar.initial = bar.n = step
                    bar.update(step - bar.n)
                told = facts(progress.newest(folder)) or [progress.stage(folder)]
                bar.set_postfix_str(", ".join([job.state, *filter(None, told)]))
        return job
    last_shown = ("", "")
    first: dict = {}  # the first metrics line that was seen
    latest: dict = {}  # the newest value of every metric
    shown_at = 0.0
    last_stage = ""
    for job, lines in moments:
        if not job.has_ended and (job.state, job.reason) != last_shown:
            last_shown = (job.state, job.reason)
            _say(*_state(job), as_json)
        for line in lines:
            first = first or line
            latest |= line
        is_due = job.has_ended or time.monotonic() - shown_at >= every
        if is_due and not latest and not job.has_ended:
            shown_at = time.monotonic()
            stage = progress.stage(folder)
            if stage != last_stage:
                _say(stage, {"event": "stage", "stage": stage}, as_json)
            last_stage = stage
        if lines and is_due:
            shown_at = time.monotonic()
            left = eta(first, latest)
            told = [progress.position(folder, latest), *facts(latest)]
            told += [f"ETA {left // 60}m{left % 60:02d}s"] if left else []
            event = {"event": "progress", **progress.plain(latest), "eta_seconds": left}
            _say(", ".join(told), event, as_json)
    if as_json:  # to people, the caller tells how it ended
        _say(*_state(job), as_json)
    return job


def _state(job: Job) -> tuple[str, dict]:
    """Return a job's state in words and as an event."""
    event = {"event": "state", "job_id": job.job_id, "state": job.state, "reason": job.reason}
    return f"{job.job_id} {job.state} {job.reason}".rstrip(), event


def _say(text: str, event: dict, as_json: bool) -> None:
    if as_json:
        print(findings.as_json(event), flush=True)
    else:
        findings.say(text)


def eta(first: dict, latest: dict) -> int | None:
    """Return seconds left at the mean speed between two metrics lines, None when they do not
    tell."""
    steps = latest.get("step", 0) - first.get("step", 0)
    has_times = "time" in first and "time" in latest
    if not steps or not has_times or "total_steps" not in latest:
        return None
    seconds_per_step = (latest["time"] - first["time"]) / steps
    return round(seconds_per_step * (latest["total_steps"] - latest["step"]))


def facts(metrics: dict) -> list[str]:
    """Return what is worth a look in the newest metrics."""
    told = [text.format(metrics[name]) for name, text in FACTS.items() if name in metrics]
    return told + [text.format(metrics[name]) for name, text in LOSSES.items() if metrics.get(name)]
