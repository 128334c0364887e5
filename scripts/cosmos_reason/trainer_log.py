"""Metrics out of what cosmos-rl prints: the engines that write no metrics.jsonl are followed by their log."""

from __future__ import annotations

import re
from datetime import datetime

# `[cosmos] 2026-01-01 12:00:00,000 - cosmos - INFO - Step: 3/60, Loss: 0.51234, ...`; reinforcement learning says
# `Average loss` and `Reward Mean`. Names as they are printed -> names of metrics.jsonl.
STEP = re.compile(r"\bStep: (\d+)/(\d+), (.*)")
VALIDATION = re.compile(r"\[SFT\] Validation loss: (\S+) for train step (\d+)/(\d+)")
REWARD = re.compile(r"Validation finished, average reward: ([^,\s]+),.* at step (\d+)")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3}")
NAMES = {
    "loss": "train/loss",
    "average loss": "train/loss",
    "grad norm": "train/grad_norm",
    "iteration time": "train/step_seconds",
    "learning rate": "train/learning_rate",
    "reward mean": "train/reward_mean",
    "kl loss avg": "train/kl",
}


def metrics(line: str) -> dict | None:
    """One line of metrics.jsonl (without `time` where the log has none), or None for any other line."""
    if found := STEP.search(line):
        values = {"step": int(found[1]), "total_steps": int(found[2])} | _fields(found[3])
    elif found := VALIDATION.search(line):
        values = {"step": int(found[2]), "total_steps": int(found[3]), "val/avg_loss": _number(found[1])}
    elif found := REWARD.search(line):
        values = {"step": int(found[2]), "val/reward_avg": _number(found[1])}
    else:
        return None
    if stamp := TIME.search(line):
        values["time"] = datetime.fromisoformat(stamp[0].replace(",", ".")).timestamp()
    return {name: value for name, value in values.items() if value is not None}


def _fields(text: str) -> dict[str, float]:
    """`Loss: 0.5, Max Loss 0.7, Iteration time: 2.00s.` as metrics; nan and inf are numbers too."""
    found = {}
    for part in text.split(", "):
        printed, _, value = part.rpartition(" ")
        name = "learning rate" if printed.startswith("optimizer/lr") else printed.strip(": ").lower()
        if name in NAMES and (number := _number(value.removesuffix(".").removesuffix("s"))) is not None:
            found.setdefault(NAMES[name], number)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
