"""Following a job: what a person sees on a terminal, plain lines elsewhere, JSON lines for an agent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason import jobs, platforms

PAUSE_SECONDS = 0.5
FACTS = {
    "train/loss": "loss {:.4f}",
    "val/avg_loss": "validation loss {:.4f}",
    "val/reward_avg": "validation reward {:.3f}",
    "train/reward_mean": "reward {:.3f}",
    "train/tokens_per_second": "{:,.0f} tokens/s",
    "train/step_seconds": "{:.2f} s/step",
    "gpu/memory_gib": "{:.1f} GiB on the GPU",
}


def follow(folder: Path) -> Iterator[tuple[dict, list[dict]]]:
    """(record, new metrics lines) again and again until the job has ended. Raises Failure when nobody can say."""
    position = ("", 0)
    while True:
        record = platforms.refresh(folder)
        lines, position = jobs.read_metrics(folder, position)
        yield record, lines
        if record["state"] in jobs.ENDED:
            return
        time.sleep(PAUSE_SECONDS)


def show(folder: Path, as_json: bool, every: float) -> dict:
    """Show the job until its end and return its last record; at most one progress line per `every` seconds."""
    if sys.stderr.isatty() and not as_json:
        return _as_bar(folder)
    state, first, latest, shown = "", None, {}, 0.0
    for record, lines in follow(folder):
        if record["state"] != state:
            state = record["state"]
            event = {"event": "state", "job_id": folder.name, "state": state, "reason": record["reason"]}
            if as_json or state not in jobs.ENDED:  # who watches says how it ended
                _say(f"{folder.name} {state}", event, as_json)
        for line in lines:
            first = first or line
            latest |= line
        if lines and (state in jobs.ENDED or time.monotonic() - shown >= every):
            shown, left = time.monotonic(), eta(first, latest)
            text = ", ".join([f"step {latest.get('step')}/{latest.get('total_steps')}", *facts(latest)])
            text += f", ETA {left // 60}m{left % 60:02d}s" if left else ""
            _say(text, {"event": "progress", **jobs.plain(latest), "eta_seconds": left}, as_json)
    return record


def _as_bar(folder: Path) -> dict:
    from tqdm import tqdm

    with tqdm(desc=folder.name, unit="step", dynamic_ncols=True) as bar:
        for record, lines in follow(folder):
            for line in lines:
                step = line.get("step", bar.n)
                if bar.total is None and "total_steps" in line:
                    bar.total, bar.initial, bar.n = line["total_steps"], step, step
                bar.update(step - bar.n)
            bar.set_postfix_str(", ".join([record["state"], *facts(jobs.progress(folder))]))
    return record


def _say(text: str, event: dict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(event, ensure_ascii=False), flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def eta(first: dict, latest: dict) -> int | None:
    """Seconds left at the mean speed between two metrics lines."""
    steps = latest.get("step", 0) - first.get("step", 0)
    if not steps or not {"total_steps", "time"} <= latest.keys() or "time" not in first:
        return None
    return round((latest["time"] - first["time"]) / steps * (latest["total_steps"] - latest["step"]))


def facts(metrics: dict) -> list[str]:
    """What is worth a look in the newest metrics."""
    return [text.format(metrics[name]) for name, text in FACTS.items() if name in metrics]
