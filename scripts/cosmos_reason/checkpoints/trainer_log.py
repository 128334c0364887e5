"""Metrics out of what cosmos-rl prints: the engines that write no metrics.jsonl are followed by
their log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import PurePosixPath
from typing import NamedTuple

from cosmos_reason.base import metrics_log

# `[cosmos] 2026-01-01 12:00:00,000 - cosmos - INFO - Step: 3/60, Loss: 0.51234, ...`; reinforcement
# learning says `Average loss` and `Reward Mean`.
STEP = re.compile(r"\bStep: (\d+)/(\d+), (.*)")
VALIDATION = re.compile(r"\[SFT\] Validation loss: (\S+) for train step (\d+)/(\d+)")
STARTED = "Loaded configuration:"
SAVING = re.compile(r"Saving (?:huggingface|cosmos) checkpoint at step (\d+)")
EXPORTED = re.compile(r"Exported safetensors to (\S.*?)\s*$")
SAVED = re.compile(r"\bStep: (\d+), checkpoint saved successfully at (\S.*)/policy\b")
REWARD = re.compile(r"Validation finished, average reward: ([^,\s]+),.* at step (\d+)")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3}")
# Names as they are printed -> names of metrics.jsonl.
NAMES = {
    "loss": "train/loss",
    "average loss": "train/loss",
    "mean loss": "train/mean_loss",
    "grad norm": "train/grad_norm",
    "iteration time": "train/step_seconds",
    "learning rate": "train/learning_rate",
    "reward mean": "train/reward_mean",
    "reward std": "train/reward_std",
    "completion length mean": "train/completion_length",
    "kl loss avg": "train/kl",
    "effective entropy": "train/entropy",
    "groups teaching": "train/groups_teaching",
    "repetition": "train/repetition",
    "generation time": "train/generation_seconds",
    "update time": "train/update_seconds",
}


class SavedLoss(NamedTuple):
    """The validation loss of a step, and the checkpoint it was saved as: the names of the run's
    folder and of the checkpoint's (step_24, epoch_2)."""

    loss: float
    step: int
    run: str
    checkpoint: str


def saved_losses(lines: Iterable[str]) -> list[SavedLoss]:
    """Return what a log tells of the checkpoints it says were saved. A step is validated before it
    is saved; a log may hold several runs, one after the other."""
    losses, found = {}, {}
    step = None
    for line in lines:
        if STARTED in line:
            losses = {}
        validation = VALIDATION.search(line)
        if validation:
            losses[int(validation[2])] = _number(validation[1])
        saving = SAVING.search(line)
        if saving:
            step = int(saving[1])
        saved = SAVED.search(line)
        exported = EXPORTED.search(line)
        if saved:
            step = int(saved[1])
        path = saved[2] if saved else exported and exported[1]
        if path and losses.get(step) is not None:
            folder = PurePosixPath(path)
            run = folder.parent.parent.name
            found[run, folder.name] = SavedLoss(losses[step], step, run, folder.name)
    return list(found.values())


def metrics(line: str) -> dict | None:
    """Return one line of metrics.jsonl (without `time` where the log has none), or None for any
    other line, such as one with a time that is none."""
    try:
        values = _values(line)
        if values is None:
            return None
        stamp = TIME.search(line)
        if stamp:
            values["time"] = datetime.fromisoformat(stamp[0].replace(",", ".")).timestamp()
    except ValueError:
        return None
    return {key: value for key, value in values.items() if metrics_log.is_number(key, value)}


def _values(line: str) -> dict | None:
    step = STEP.search(line)
    if step:
        return {"step": int(step[1]), "total_steps": int(step[2]), **_fields(step[3])}
    validation = VALIDATION.search(line)
    if validation:
        loss = _number(validation[1])
        return {"step": int(validation[2]), "total_steps": int(validation[3]), "val/avg_loss": loss}
    reward = REWARD.search(line)
    if reward:
        return {"step": int(reward[2]), "val/reward_avg": _number(reward[1])}
    return None


def _fields(text: str) -> dict[str, float]:
    """Read `Loss: 0.5, Max Loss 0.7, Iteration time: 2.00s.` as metrics; nan and inf are numbers
    too. Of a name that is printed twice the first counts."""
    found = {}
    for part in text.split(", "):
        printed, _, value = part.rpartition(" ")
        name = printed.strip(": ").lower()
        if printed.startswith("optimizer/lr"):
            name = "learning rate"
        number = _number(value.removesuffix(".").removesuffix("s"))
        if name in NAMES and number is not None:
            found.setdefault(NAMES[name], number)
    if "train/reward_mean" in found and "train/step_seconds" in found:
        # In reinforcement learning it times the update, not the rollouts that it waited for.
        found["train/update_seconds"] = found.pop("train/step_seconds")
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
