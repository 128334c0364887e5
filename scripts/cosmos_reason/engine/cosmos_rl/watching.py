"""How a reinforcement learning is watched: the numbers of each step in metrics.jsonl and the log,
the groups of completions that earned most and least, and bounds beyond which it ends.

A rollout adds what it knows of a completion to what cosmos-rl reports of it, so that W&B has it
too; the controller, which hears of every step, writes. Both files lie in the run's folder.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from cosmos_reason.base.findings import EXIT_CHECKS_FAILED, Finding, as_text, error, say
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import document
from cosmos_reason.spec.keys import RATE

if TYPE_CHECKING:
    from cosmos_reason.engine.conversations import Prompts

METRICS, GROUPS = "metrics.jsonl", "groups"
SHOWN, LONGEST = 5, 2000  # completions of a group that are kept, and characters of each
RUN_OF_WORDS = 4
# Names of metrics.jsonl, and cosmos-rl's, whose iteration time is that of the update alone. The
# seconds of generation, rewards and transfer are sums over the completions of a step.
NAMES = {
    "train/loss": "train/loss_avg",
    "train/grad_norm": "train/grad_norm",
    "train/learning_rate": "train/learning_rate",
    "train/update_seconds": "train/iteration_time",
    "train/reward_mean": "train/reward_mean",
    "train/reward_std": "train/reward_std",
    "train/kl": "train/kl_loss_avg",
    "train/entropy": "train/effective_entropy",
    "train/completion_length": "rollout/completion_length_mean",
    "train/groups_teaching": "train/groups_teaching",
    "train/repetition": "train/repetition",
    "train/generation_seconds": "train/generation_seconds_sum",
    "train/reward_seconds": "train/reward_seconds_sum",
    "train/transfer_seconds": "train/transfer_seconds_sum",
}
# What is bounded, and how a run is kept below.
BOUNDED = {
    "train/kl": ("custom.stop.kl", "the policy went too far from its start"),
    "train/repetition": ("custom.stop.repetition", "completions repeat themselves"),
}
STEPS = "custom.stop.steps"


def repetition(text: str) -> float:
    """Return the share of runs of RUN_OF_WORDS words that stood in the text before."""
    words = text.split()
    runs = [tuple(words[at : at + RUN_OF_WORDS]) for at in range(len(words) - RUN_OF_WORDS + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


class Rollouts:
    """What one rollout process notes. `prompts` is its dataset, `folder` that of the run."""

    def __init__(self):
        self.prompts: Prompts | None = None
        self.folder: Path | None = None
        self.seconds: dict[int, float] = {}  # of a completion, by prompt
        self.transfer = 0.0  # seconds that weights took which no completion was told yet
        self.extremes: dict[int, tuple[float, float]] = {}  # mean reward, by version of the weights

    def begin(self, prompts: Prompts, run: str) -> None:
        self.prompts = prompts
        self.folder = Path(run) / GROUPS

    def generated(self, prompts: Sequence[int], completions: int, seconds: float) -> None:
        """Note that `completions` of each prompt took so long, all together."""
        each = seconds / max(1, len(prompts) * completions)
        self.seconds |= dict.fromkeys(prompts, each)

    def transferred(self, seconds: float) -> None:
        """Note that new weights came and took so long."""
        self.transfer += seconds

    def scored(self, payload) -> None:
        """Add to the report of each completion of a prompt (RLPayload) whether its group teaches:
        whether the group's rewards differ."""
        if not payload.rewards:
            return
        seconds = self.seconds.pop(payload.prompt_idx, 0.0)
        for report, text in zip(payload.report_metrics, payload.completions, strict=True):
            report["groups_teaching"] = float(payload.valid)
            report["repetition"] = repetition(str(text))
            report["generation_seconds_sum"] = seconds
            # The first completion after them carries the seconds of the weights.
            report["transfer_seconds_sum"], self.transfer = self.transfer, 0.0
        self._keep(payload)

    def _keep(self, payload) -> None:
        """Write a group down that earned more or less than all of this version of the weights."""
        version, mean = payload.weight_version, fmean(payload.rewards)
        most, least = self.extremes.get(version, (float("-inf"), float("inf")))
        kinds = [name for name, is_it in (("best", mean > most), ("worst", mean < least)) if is_it]
        self.extremes[version] = (max(most, mean), min(least, mean))
        if not kinds:
            return
        question = self.prompts.asked(payload.prompt_idx)
        shown = zip(payload.completions[:SHOWN], payload.rewards, strict=False)
        line = {
            "version": version,
            "kinds": kinds,
            "record": question.sample.id,
            "question": question.text,
            "gt": question.gt,
            "reward_mean": mean,
            "completions": [{"text": str(text)[:LONGEST], "reward": paid} for text, paid in shown],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{socket.gethostname()}-{os.getpid()}.jsonl"
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


class Steps:
    """What the controller notes of each step. `begin` gives it the spec."""

    def __init__(self):
        self.beyond: dict[str, int] = defaultdict(int)  # steps on end
        self.ended: float | None = None  # when the step before was over
        self.rewards: dict[int, float] = {}

    def begin(self, spec: dict) -> None:
        keys = document.keys("grpo")

        def value(key: str) -> float:
            return document.get(spec, key, keys[key]["default"])

        self.run = Path(spec["train"]["output_dir"])
        self.rate = spec["train"]["optm_lr"]
        self.has_kl = bool(spec["train"]["train_policy"]["kl_beta"])
        self.bounds = {name: value(key) for name, (key, _) in BOUNDED.items()}
        self.patience = value(STEPS)

    def note(self, report: dict, step: int) -> None:
        """Take what cosmos-rl reports of a step, or of a validation, which is none of ours. Ends
        this process, and the job with it, beyond a bound."""
        if "train/loss_avg" not in report or "train/reward_mean" not in report:
            return
        total = int(report["train/total_steps"])
        found = {name: float(report[key]) for name, key in NAMES.items() if key in report}
        if not self.has_kl:
            found.pop("train/kl", None)
        now = time.time()
        if self.ended is not None:
            found["train/step_seconds"] = round(now - self.ended, 3)
        self.ended = now
        line = {"time": round(now, 3), "step": step, "total_steps": total, **found}
        self.run.mkdir(parents=True, exist_ok=True)
        with open(self.run / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        say(
            f"Step: {step}/{total}, Groups teaching: {found.get('train/groups_teaching', 0):.4f}, "
            f"Repetition: {found.get('train/repetition', 0):.4f}, "
            f"Generation time: {found.get('train/generation_seconds', 0):.2f}s, "
            f"Update time: {found.get('train/update_seconds', 0):.2f}s"
        )
        self.rewards[step] = found["train/reward_mean"]
        crossed = self.crossed(found, step)
        if crossed:
            say(as_text([crossed]))
            os._exit(EXIT_CHECKS_FAILED)  # a handler of the web server would go on

    def crossed(self, found: dict[str, float], step: int) -> Finding | None:
        """Return the error of a step that was beyond a bound for as many steps on end as the spec
        bears."""
        for name, bound in self.bounds.items():
            self.beyond[name] = self.beyond[name] + 1 if found.get(name, 0) > bound else 0
            if self.beyond[name] < self.patience:
                continue
            key, what = BOUNDED[name]
            message = (
                f"got {found[name]:.3f}, for {self.patience} steps above {bound:g} ({key}): {what}"
            )
            best = self.best_checkpoint(step - self.patience)
            if best:
                message += f"; {best} earned most of the checkpoints before"
            fix = Fix(changes={RATE: self.rate / 2})
            return error("ENGINE-DRIFT", name, message, fix)
        return None

    def best_checkpoint(self, last: int) -> str:
        """Return the exported model, up to step `last`, with the highest mean reward in the steps
        since the export before it; '' where there is none."""
        steps = sorted(int(path.name[5:]) for path in self.run.glob("safetensors/step_*[0-9]"))
        steps = [step for step in steps if step <= last]
        earned = {}
        for before, step in zip([0, *steps], steps, strict=False):
            paid = [value for at, value in self.rewards.items() if before < at <= step]
            if paid:
                earned[step] = fmean(paid)
        if not earned:
            return ""
        return str(self.run / "safetensors" / f"step_{max(earned, key=earned.__getitem__)}")
