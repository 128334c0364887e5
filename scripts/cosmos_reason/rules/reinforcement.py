"""Rules about reinforcement learning (GRPO)."""

from __future__ import annotations

from cosmos_reason.base.findings import ERROR, INFO, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.rule import rule

KL = "train.train_policy.kl_beta"


@rule(
    "SPEC-ROLLOUT-ROOM", ERROR, "grpo", "rollout.max_response_length",
    "leaves no room for the prompt",
    reads=("policy.model_max_length",), fix=lambda case: case("policy.model_max_length") // 2,
)  # fmt: skip
def response_without_prompt(case):
    return case("rollout.max_response_length") >= case("policy.model_max_length")


@rule(
    "SPEC-ON-POLICY", ERROR, "grpo", "train.sync_weight_interval", "on_policy needs 1",
    reads=("train.train_policy.on_policy",), fix=1,
)  # fmt: skip
def stale_weights_on_policy(case):
    return case("train.train_policy.on_policy") and case("train.sync_weight_interval") != 1


@rule(
    "SPEC-GRPO-START", WARNING, "grpo", "policy.model_name_or_path",
    "expected a fine-tuned model, not a base model",
    fix=Fix(flags={"--parent-job": "DIR"}),
)  # fmt: skip
def start_from_base_model(case):
    return case.model.removeprefix(model_names.HUB) in model_names.published()


@rule(
    "SPEC-KL-ZERO", INFO, "grpo", KL, "nothing holds the policy near its start; watch the lengths"
)
def no_kl(case):
    return case(KL) == 0


@rule("SPEC-KL-HIGH", WARNING, "grpo", KL, "published runs use up to 0.05", fix=0.05)
def high_kl(case):
    return case(KL) > 0.2
