"""Rules about reinforcement learning (GRPO)."""

from __future__ import annotations

from cosmos_reason.base.findings import ERROR, INFO, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.rule import Rule

KL = "train.train_policy.kl_beta"


RULES = (
    Rule(
        "SPEC-ROLLOUT-ROOM", ERROR, "grpo", "rollout.max_response_length",
        "leaves no room for the prompt",
        lambda case: case("rollout.max_response_length") >= case("policy.model_max_length"),
        reads=("policy.model_max_length",), fix=lambda case: case("policy.model_max_length") // 2,
    ),
    Rule(
        "SPEC-ON-POLICY", ERROR, "grpo", "train.sync_weight_interval", "on_policy needs 1",
        lambda case: case("train.train_policy.on_policy")
        and case("train.sync_weight_interval") != 1,
        reads=("train.train_policy.on_policy",), fix=1,
    ),
    Rule(
        "SPEC-GRPO-START", WARNING, "grpo", "policy.model_name_or_path",
        "expected a fine-tuned model, not a base model",
        lambda case: case.model.removeprefix(model_names.HUB) in model_names.published(),
        fix=Fix(flags={"--parent-job": "DIR"}),
    ),
    Rule(
        "SPEC-KL-ZERO", INFO, "grpo", KL,
        "nothing holds the policy near its start; watch the lengths",
        lambda case: case(KL) == 0,
    ),
    Rule(
        "SPEC-KL-HIGH", WARNING, "grpo", KL, "published runs use up to 0.05",
        lambda case: case(KL) > 0.2, fix=0.05,
    ),
)  # fmt: skip
