"""What to say of a training whose GPU is full: how much memory was foreseen and how much was taken,
and the change of its spec that would have fitted."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import torch

from cosmos_reason.base.findings import Failure, outside
from cosmos_reason.base.fix import Fix
from cosmos_reason.engine.train import passes as engine_passes
from cosmos_reason.estimate import gpu_memory
from cosmos_reason.estimate.gpu_memory import CONTEXT_GIB, GIB, TIGHT_ABOVE, Plan
from cosmos_reason.spec.keys import TOKENS_PER_PASS

ID = "ENGINE-GPU-MEMORY"
LAYERS = "custom.transformers_engine.recompute_layers"
CHECKPOINTING = "policy.model_gradient_checkpointing"
PIXELS = "custom.vision.total_pixels"
ASKED = re.compile(r"Tried to allocate ([\d.]+) ([KMG])iB")
UNITS = {"K": 2**-20, "M": 2**-10, "G": 1.0}  # in GiB
FEWEST = 256  # tokens of a pass worth proposing
STEP = 256


@dataclasses.dataclass(frozen=True)
class Memory:
    """GiB on the GPU when it was full: those of this process with what it asked for last, and those
    that it could have."""

    taken: float
    whole: float

    @classmethod
    def now(cls, problem: Exception) -> Memory:
        free, _ = torch.cuda.mem_get_info()
        taken = torch.cuda.memory_allocated() / GIB
        whole = (free + torch.cuda.memory_reserved()) / GIB + CONTEXT_GIB
        peak = torch.cuda.max_memory_allocated() / GIB
        return cls(max(taken + asked(problem), peak) + CONTEXT_GIB, whole)


def asked(problem: Exception) -> float:
    """Return the GiB of the allocation that failed, 0 when the message does not say."""
    found = ASKED.search(str(problem))
    if not found:
        return 0.0
    return float(found[1]) * UNITS[found[2]]


def failure(passes, problem: Exception, where: str) -> Failure:
    """Return what to say of a training that found the GPU full."""
    return explained(passes.plan_at_work(), passes.longest_at_work, Memory.now(problem), where)


def while_loading(spec: dict, folder: Path, problem: Exception, rank: int) -> Failure:
    """Return what to say where the GPU is full before the first step: with the weights alone."""
    memory = Memory.now(problem)
    message = (
        f"got {memory.taken:.1f} GiB or more for the weights, the GPU has {memory.whole:.1f} GiB"
    )
    plan = engine_passes.plan_of(spec, folder)
    if plan:
        message += f"; {gpu_memory.total(plan):.1f} GiB were foreseen before the first pass"
    fix = Fix() if spec["policy"]["lora"] else Fix(flags={"--tuning": "lora"})
    return outside(ID, f"loading, rank {rank}", message, fix)


def explained(plan: Plan | None, longest: int, memory: Memory, where: str) -> Failure:
    """Return the error for a full GPU: `plan` is that of the pass at work, of which the longest
    record has so many tokens; None when the size of the model is unknown."""
    message = f"got {memory.taken:.1f} GiB or more, the GPU has {memory.whole:.1f} GiB for it"
    if plan is None:
        return outside(ID, where, message, Fix(changes={TOKENS_PER_PASS: FEWEST}))
    foreseen = gpu_memory.total(plan)
    message += f"; foreseen were {foreseen:.1f} GiB for a pass of {plan.tokens:,} tokens"
    # What the sums leave out, they leave out of smaller passes too.
    beyond = max(1.0, memory.taken / foreseen)
    fix, gib = fitting(plan, longest, TIGHT_ABOVE * memory.whole / beyond)
    if gib:
        message += f"; with the fix about {beyond * gib:.1f} GiB"
    return outside(ID, where, message, fix)


def fitting(plan: Plan, longest: int, limit: float) -> tuple[Fix, float]:
    """Return the change that costs the least with which a pass has `limit` GiB at most, and GiB
    then; nothing and 0 when none is enough. Fewer records in a pass change no result, nor does
    recomputing layers; fewer pixels do."""
    changes: dict[str, object] = {}
    if not plan.checkpointing:
        changes[CHECKPOINTING] = True
        plan = dataclasses.replace(plan, checkpointing=True)
    if plan.kept_layers:
        changes[LAYERS] = plan.geometry.layers
        plan = dataclasses.replace(plan, kept_layers=0)
    for tokens in range(plan.tokens // STEP * STEP, max(longest, FEWEST) - 1, -STEP):
        gib = gpu_memory.total(_shorter(plan, tokens))
        if gib <= limit:
            return Fix(changes=changes | {TOKENS_PER_PASS: tokens}), gib
    alone = _shorter(plan, longest)
    changes[TOKENS_PER_PASS] = FEWEST
    gib = gpu_memory.total(alone)
    if gib <= limit:
        return Fix(changes=changes), gib
    vision = alone.vision_tokens
    while vision > FEWEST:
        vision //= 2
        tokens = alone.tokens - alone.vision_tokens + vision
        smaller = dataclasses.replace(alone, vision_tokens=vision, tokens=tokens)
        gib = gpu_memory.total(smaller)
        if gib <= limit:
            pixels = vision * plan.geometry.family.token_pixels
            return Fix(changes=changes | {PIXELS: pixels}), gib
    return Fix(flags={"--tuning": "lora"}) if not plan.lora_rank else Fix(), 0.0


def _shorter(plan: Plan, tokens: int) -> Plan:
    """Return the plan of a pass of fewer tokens, of the same kinds."""
    share = min(1.0, tokens / plan.tokens)
    return dataclasses.replace(
        plan,
        tokens=min(tokens, plan.tokens),
        vision_tokens=round(plan.vision_tokens * share),
        loss_tokens=round(plan.loss_tokens * share),
    )
