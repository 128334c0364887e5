"""Rules about reinforcement learning (GRPO)."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import ERROR, INFO, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import Case, Rule
from cosmos_reason.rules.layout import SHARED

KL = "train.train_policy.kl_beta"
MASTER = "train.master_dtype"
ROWS = 64


def shared_plan(case: Case) -> gpu_memory.Plan | None:
    """Return what a GPU that policy and rollouts share has to hold, with the longest record where
    records are counted and with none where not; None in the other modes and for an unknown
    model."""
    if case("mode") == "disaggregated":
        return None
    longest = max(case.tokens, key=lambda record: record.total, default=None)
    # The policy's pass holds prompt and completion together.
    completion = case("rollout.max_response_length")
    total = longest.total + completion if longest else 0
    vision = longest.vision if longest else 0
    return gpu_memory.of_spec(case, total, vision, total)


def no_gpu_holds(case: Case) -> str:
    plan = shared_plan(case)
    name, largest = max(bundle.skill_info()["gpu_types"].items(), key=lambda item: item[1])
    if plan is None or _fits(plan, largest):
        return ""
    least = gpu_memory.least_of_engine(plan)
    policy = gpu_memory.total(plan) - least
    return f"{policy:.0f} GiB besides the {least:.0f} of vllm, {largest:.0f} on a {name}"


def gpus_that_hold(case: Case) -> str:
    """Return the GPUs that are large enough, and which part of them vllm can have."""
    plan = shared_plan(case)
    if plan is None:
        return ""
    fitting = []
    for name, gib in bundle.skill_info()["gpu_types"].items():
        if _fits(plan, gib):
            least, most = gpu_memory.shares(plan, gib)
            fitting.append(f"{name} {least:g} to {most:g}")
    return ", ".join(fitting)


def _fits(plan: gpu_memory.Plan, gib: float) -> bool:
    least, most = gpu_memory.shares(plan, gib)
    return least <= most


def smaller_policy(case: Case) -> Fix:
    largest = max(bundle.skill_info()["gpu_types"].values())
    found = gpu_memory.cheapest_fix(shared_plan(case), largest, 1, 0)
    return found[0] if found else Fix()


def padded_vocabulary(case: Case) -> str:
    if case("mode") == "disaggregated" or not case.model.startswith("/"):
        return ""
    config = model_names.read_table(Path(case.model) / "config.json")
    text = config.get("text_config")
    rows = (text if isinstance(text, dict) else config).get("vocab_size")
    return f"{rows} rows of vocabulary" if type(rows) is int and rows % ROWS else ""


def offloads(case: Case) -> str:
    asked = [key for key in ("fsdp_offload", "activation_offload") if case(f"train.{key}")]
    return f"train.{asked[0]}" if asked and case("mode") == SHARED else ""


RULES = (
    Rule(
        "SPEC-SHARED-MEMORY", ERROR, "grpo", "mode",
        "policy and rollouts fit on no GPU that is known here",
        no_gpu_holds, fix=smaller_policy,
    ),
    Rule(
        "SPEC-SHARED-FITS", INFO, "grpo", gpu_memory.SHARE,
        "GPUs that hold policy and vllm, each with the values that leave room for both; records "
        "that nobody counted are not in it",
        gpus_that_hold,
    ),
    # Its transfers copy tensor by tensor, and vLLM fills the vocabulary up to a multiple.
    Rule(
        "SPEC-SHARED-VOCABULARY", ERROR, "grpo", "{model}",
        f"with {SHARED} the first transfer of weights fails, since vLLM fills the rows up to a "
        f"multiple of {ROWS}: make the model's embedding that long",
        padded_vocabulary,
    ),
    Rule(
        "SPEC-SHARED-OFFLOAD", WARNING, "grpo", "mode",
        "nobody has tried offloads where vllm has a part of the GPU",
        offloads,
        fix=Fix(changes={"train.fsdp_offload": False, "train.activation_offload": False}),
    ),
    # merge_lora_weights_ and its reverse, in place and in the masters' precision.
    Rule(
        "SPEC-LORA-GRPO-BFLOAT16", WARNING, "grpo", MASTER,
        "at each transfer of weights cosmos-rl adds the adapter to the base and takes it off "
        "again, which rounds a bfloat16 base each time; compare the exported model before you keep "
        "it",
        lambda case: case("policy.lora") and case(MASTER) != "float32",
    ),
    # vLLM counts prompt and completion against one length.
    Rule(
        "SPEC-ROLLOUT-ROOM", ERROR, "grpo", "rollout.max_response_length",
        "leaves no room for the prompt",
        lambda case: case("rollout.max_response_length") >= case("policy.model_max_length"),
        fix=lambda case: case("policy.model_max_length") // 2,
    ),
    Rule(
        "SPEC-ON-POLICY", ERROR, "grpo", "train.sync_weight_interval", "on_policy needs 1",
        lambda case: case("train.train_policy.on_policy")
        and case("train.sync_weight_interval") != 1,
        fix=1,
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
