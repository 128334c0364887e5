"""What the processes of cosmos-rl are given:
our datasets and rewards, and word of what was changed in the package."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.utils.data import Dataset

from cosmos_reason.base.findings import EXIT_BAD_INPUT, Failure, as_text, bad_input, say
from cosmos_reason.engine import conversations
from cosmos_reason.engine.cosmos_rl import patches as cosmos_rl_patches
from cosmos_reason.engine.cosmos_rl import watching
from cosmos_reason.engine.cosmos_rl.killed import ENDS_ALL
from cosmos_reason.evaluation import rewards
from cosmos_reason.spec.keys import SHARED

CONTROLLER, POLICY, ROLLOUT = "Controller", "Policy", "Rollout"


class Records(conversations.Conversations, Dataset):
    """The package wants torch's type; what it is asked is answered in plain Python."""


class Prompts(conversations.Prompts, Dataset):
    """Records for reinforcement learning: the prompts, and the answers that rewards compare
    with."""

    def get_reference_answer(self, index: int) -> str:
        question = self.asked(index)
        return rewards.reference(question.text, question.gt)


def run() -> None:
    """Run the controller, a policy or a rollout, as COSMOS_ROLE says."""
    with ending_all():
        cosmos_rl_patches.apply(say)
        from cosmos_rl.launcher.worker_entry import main

        paid, rollouts, steps = Paid(), watching.Rollouts(), watching.Steps()

        is_rollout = os.environ.get("COSMOS_ROLE") == ROLLOUT

        def watched(config) -> Records | Prompts:
            found = training(config)
            if isinstance(found, Prompts):
                rollouts.begin(found, config.train.output_dir)
                steps.begin(config.model_dump())
            if is_rollout and config.mode == SHARED:
                say(f"patch: {cosmos_rl_patches.share_gpu()}")
            return found

        if os.environ.get("COSMOS_ROLE") == POLICY:
            for patch in (
                cosmos_rl_patches.judge_first_update,
                cosmos_rl_patches.weigh_tokens,
                cosmos_rl_patches.carry_settings,
                cosmos_rl_patches.count_replicas,
            ):
                if done := patch():
                    say(f"patch: {done}")
        if is_rollout:
            say(f"patch: {cosmos_rl_patches.tell_groups(rollouts)}")
        pays = {"reward_fns": [paid.reward], "filter_reward_fns": [paid.spread]}
        main(dataset=watched, val_dataset=validation, custom_logger_fns=[steps.note], **pays)


@contextmanager
def ending_all() -> Iterator[None]:
    """End the job when a replica fails. cosmos-rl goes on without it for three minutes, and for
    ever when it failed before it reported to the controller."""
    try:
        yield
    except Failure as failure:
        say(as_text(failure.findings))
        sys.exit(failure.exit_code if _is_controller() else ENDS_ALL)
    except Exception:
        if _is_controller():
            raise  # which ends the job as it is
        traceback.print_exc()
        sys.exit(ENDS_ALL)


def _is_controller() -> bool:
    return os.environ.get("COSMOS_ROLE") == CONTROLLER


def training(config) -> Records | Prompts:
    return opened(config.model_dump(), "train_dataset")


def validation(config) -> Records | Prompts | None:
    return opened(config.model_dump(), "val_dataset") if config.validation.enable else None


def opened(spec: dict, name: str) -> Records | Prompts:
    """Return the dataset of a table of the spec. The controller is asked first: it looks for every
    file and tries the rewards, and what is wrong ends the job before a model is loaded."""
    try:
        found = _opened(spec, name)
    except Failure as failure:
        say(as_text(failure.findings))
        sys.exit(failure.exit_code)  # an exception would end in a traceback of the package
    say(f"{name}: {len(found)} items, {found.sampler.options}")
    return found


def _opened(spec: dict, name: str) -> Records | Prompts:
    is_rl = spec["train"]["train_policy"]["type"] == "grpo"
    found = conversations.of_spec(spec, name, Prompts if is_rl else Records)
    if not _is_controller():
        return found
    missing = conversations.missing_media(found)
    if missing:
        raise Failure(missing, EXIT_BAD_INPUT)
    if is_rl:
        if not spec["train"]["local_dataset"]:
            message = "got false: frames cannot be sent from process to process"
            raise bad_input("COSMOS-DATASET-REMOTE", "train.local_dataset", message)
        first = found.questions[0]
        for response in (first.gt, ""):  # right and wrong: a function may forget one of the two
            payer(spec, len).parts(first.text, first.gt, response)
    return found


def payer(spec: dict, count: Callable[[str], int]) -> rewards.Payer:
    most = spec["rollout"]["max_response_length"] or 0
    return rewards.Payer(spec["train"]["train_policy"], most, count)


class Paid:
    """The two functions that a rollout calls for each completion;
    both know the spec only when they are called."""

    def __init__(self):
        self.payer = None

    def reward(
        self, response: str, reference: str, config, tokenizer, **_
    ) -> tuple[float, dict[str, float]]:
        """Return the weighted sum, and for the log its parts and the seconds it took."""
        began = time.monotonic()
        parts = self._parts(response, reference, config, tokenizer)
        told = {f"reward/{name}": value for name, value in parts.items()}
        told["reward_seconds_sum"] = time.monotonic() - began
        return self.payer.total(parts), told

    def spread(self, response: str, reference: str, config, tokenizer, **_) -> float:
        """Return what the completions of a prompt must differ in to be learned from:
        filter_reward_metric, else the reward."""
        parts = self._parts(response, reference, config, tokenizer)
        named = config.train.train_policy.filter_reward_metric
        names = [named] if isinstance(named, str) else named
        return sum(parts[name] for name in names) if names else self.payer.total(parts)

    def _parts(self, response: str, reference: str, config, tokenizer) -> dict[str, float]:
        if self.payer is None:

            def count(text: str) -> int:
                return len(tokenizer.encode(text, add_special_tokens=False))

            self.payer = payer(config.model_dump(), count)
        question, gt = rewards.question_and_truth(reference)
        return self.payer.parts(question, gt, response)
