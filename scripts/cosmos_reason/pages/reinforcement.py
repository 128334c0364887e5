"""A reinforcement learning as a page that opens offline: its curves, and what the policy wrote in
the groups that earned most and least on the way to each checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path

from cosmos_reason.base import findings, metrics_log
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.engine.cosmos_rl.watching import GROUPS, METRICS
from cosmos_reason.pages.loss_chart import chart, not_finite
from cosmos_reason.pages.render import render

# (title, what a person makes of it, the keys of metrics.jsonl and how they are called)
CHARTS = (
    (
        "Reward",
        "It should rise, and its spread should not vanish.",
        {"train/reward_mean": "mean", "train/reward_std": "spread"},
    ),
    (
        "Groups that teach",
        "Where all completions of a prompt earn alike, nothing is learned from them.",
        {"train/groups_teaching": "share of the step's completions"},
    ),
    (
        "Divergence from the start",
        "In nats a token. A jump asks for a higher kl or a lower learning rate.",
        {"train/kl": "KL"},
    ),
    ("Entropy", "In nats a token. Near 0 the policy tries nothing new.", {"train/entropy": "mean"}),
    (
        "Length",
        "Growth into rollout.max_response_length means cut answers.",
        {"train/completion_length": "tokens of a completion, mean"},
    ),
    (
        "Repetition",
        "Runs of four words that stood in the completion before.",
        {"train/repetition": "share, mean"},
    ),
    (
        "Time of a step",
        "Seconds; rollouts may run beside the update.",
        {"train/step_seconds": "from step to step", "train/update_seconds": "update"},
    ),
    (
        "Time of its rollouts",
        "Seconds, all rollouts together.",
        {
            "train/generation_seconds": "generation",
            "train/reward_seconds": "rewards",
            "train/transfer_seconds": "new weights",
        },
    ),
)


def page(run: Path) -> str:
    """Return the page of a run's folder. Raises Failure where it holds no numbers of steps."""
    rows = [row for _, row in metrics_log.course([run / METRICS])]
    rows = [row for row in rows if "train/reward_mean" in row]
    if not rows:
        message = f"it has no {METRICS} with rewards, which a run of grpo leaves"
        raise findings.bad_input("CKPT-NO-REWARDS", run, message)
    return render(
        "reinforcement.html.j2",
        name="/".join(run.parts[-2:]),
        first=rows[0],
        last=rows[-1],
        steps=len(rows),
        flat=sum(row.get("train/reward_std") == 0 for row in rows),
        not_finite=not_finite(rows, [key for _, _, names in CHARTS for key in names]),
        charts=charts(rows),
        checkpoints=checkpoints(run, rows),
    )


def charts(rows: list[dict]) -> list[dict]:
    """Return what is drawn: those of CHARTS that have points."""
    found = []
    for title, told, names in CHARTS:
        curve = {
            key: [(row["step"], row[key]) for row in rows if math.isfinite(row.get(key, math.nan))]
            for key in names
        }
        drawn = chart([curve], tuple(names))
        if drawn:
            found.append({"title": title, "told": told, "names": names, **drawn})
    return found


def checkpoints(run: Path, rows: list[dict]) -> list[dict]:
    """Return each exported step with the mean reward since the one before, and of the groups that
    were kept since then the one that earned most and the one that earned least; of a run without
    exports all as one."""
    steps = sorted(
        run_outputs.step_number(path) for path in run.glob("safetensors/step_*[0-9]")
    ) or [rows[-1]["step"]]
    groups = [line for path in sorted((run / GROUPS).glob("*.jsonl")) for line in _lines(path)]
    found = []
    for before, step in zip([0, *steps], steps, strict=False):
        paid = [row["train/reward_mean"] for row in rows if before < row["step"] <= step]
        # The weights of step 20 are version 20; what is trained on in step 20 came from earlier.
        since = [line for line in groups if before <= line["version"] < step]
        shown = {}
        if since:
            shown["best"] = max(since, key=lambda line: line["reward_mean"])
            shown["worst"] = min(since, key=lambda line: line["reward_mean"])
        reward = sum(paid) / len(paid) if paid else None
        found.append({"step": step, "reward": reward, "groups": shown})
    return found


def _lines(path: Path) -> list[dict]:
    """Return the whole lines of a file that may still be being written."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
