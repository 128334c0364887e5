"""How much memory one GPU needs, as a sum of named terms, and the cheapest change of a spec that
makes it fit.

The longest sample decides, and the largest of the moments of a step: where its backward pass begins
(all activations) and where it ends (all gradients). Bytes per parameter: what mixed-precision AdamW
keeps (weight, gradient, two moments in the master precision). The constants of activations and
logits were fitted to measured peaks of 2B and 8B models, so that the prediction is a few per cent
high (benchmarks/RESULTS.md); all of them stand here, at the top.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos_reason.base import bundle, site
from cosmos_reason.base.families import FAMILIES, Geometry
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.spec import actions
from cosmos_reason.spec.keys import BASE_PRECISION, BATCH, TOKENS_PER_PASS

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ACTIVATION = 2  # bytes of an activation: bfloat16
# Bytes per activation of the layer at work, recomputed or not, with its gradient: where weights are
# frozen, and where they are trained, which wants the inputs of all linear layers.
FROZEN_WORK, TRAINED_WORK = 4, 5
# The same of every layer that is not recomputed. With float32 weights norms and what layers pass on
# are float32.
FROZEN_KEPT, TRAINED_KEPT, FLOAT32_KEPT = 2.62, 3.92, 4.7
# Of a base in fp8, per token and number of the widest layer: what is quantized is float32 twice.
FP8_WORK = 8
ADAPTER_WORK, ADAPTER_KEPT = 2, 2  # per input (and, at work, output) of a layer with an adapter
DROPOUT = 1  # per input of a layer whose adapter drops some: which ones
MERGER_KEPT = 8  # bytes per input of a vision merger that is trained
ENOUGH_TOKENS = 8192  # beyond which an H100 gets no faster: records share a pass up to it
LOGIT = 13  # bytes per logit: bfloat16, its float32 copy, the softmax and the gradient
ADAPTER = 16  # bytes per adapter parameter: float32 weight, gradient, two moments
PATCHES = 4  # vision patches per token
CONTEXT_GIB, WORKSPACE_GIB = 1.0, 0.4  # CUDA context with its kernels; cuBLAS and the like
TIGHT_ABOVE = 0.9  # part of a GPU beyond which fragmentation may end the run
# A policy and vllm on the same GPU (benchmarks/RESULTS.md, GRPO on one GPU). Whatever the master
# precision, the policy holds a bfloat16 copy of all weights, and so much more, while they go to
# vllm.
TRANSFER_GIB = 1.5
# vllm keeps so much of its share besides weights and cache, and takes so much beyond its share.
ENGINE_KEEPS_GIB, BESIDE_SHARE_GIB = 3.1, 2.5
SHARE = "rollout.gpu_memory_utilization"
COMPLETED = ("tokens", "loss_tokens", "new_tokens")  # that a completion is part of
FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


def geometry(model: str) -> Geometry | None:
    """Return the widths of a known model or of a local folder's config.json; None when they cannot
    be known."""
    named = site.MODELS.get(model, model.removeprefix(model_names.HUB))
    known = bundle.skill_info()["models"].get(named)
    if known:
        return Geometry(FAMILIES[known["family"]], **known["geometry"])
    config = model_names.read_table(Path(model) / "config.json")
    try:
        return model_names.known_family(model).geometry(config)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


@dataclass(frozen=True)
class Plan:
    """What one GPU has to hold. `tokens` and `vision_tokens` are those of the longest sample;
    `loss_tokens` how many of a sample's positions get logits; `shards` over how many GPUs the
    states are spread; `kept_layers`: those that do not recompute where the others do;
    `accumulates`: a step takes several passes, whose gradients are added up; `fp8_base`: decoder
    layers under adapters are in 8 bits; `dropout`: adapters drop some of their inputs.

    `is_rl`: it is the policy of GRPO; `reference`: the host keeps the weights before training (as
    cosmos-rl 0.4.7 does); `rollout_share`: part of the same GPU that vllm is given, 0 where it has
    GPUs of its own, and `longest` the sequence in tokens that its cache must hold."""

    geometry: Geometry
    tokens: int
    vision_tokens: int
    loss_tokens: int
    train: bool = True
    batch: int = 1
    shards: int = 1
    master: int = 4
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    sharded_engine: bool = True
    checkpointing: bool = True
    states_on_host: bool = False
    activations_on_host: bool = False
    fused_loss: bool = False
    new_tokens: int = 0
    is_rl: bool = False
    reference: bool = False
    rollout_share: float = 0.0
    longest: int = 0
    kept_layers: int = 0
    accumulates: bool = True
    fp8_base: bool = False
    dropout: bool = False

    def _hits(self, path: str) -> bool:
        """Return whether a linear layer of that name gets an adapter."""
        targets = self.lora_targets
        return "all-linear" in targets or any(
            self.geometry.family.has_target(target, path) for target in targets
        )

    @property
    def adapted(self) -> list[tuple[int, int]]:
        """Return (in, out) of the linear layers of a language layer that get an adapter."""
        if not self.lora_rank:
            return []
        sizes = self.geometry
        names = sizes.family.decoder_layers
        return [sizes.linears[name.rpartition(".")[2]] for name in names if self._hits(name)]

    @property
    def adapts_vision(self) -> bool:
        return bool(self.lora_rank) and any(map(self._hits, self.geometry.family.block_layers))

    @property
    def trains_vision(self) -> bool:
        return self.train and (not self.lora_rank or self.adapts_vision)

    @property
    def adapter_parameters(self) -> int:
        sizes = self.geometry
        widths = sizes.layers * sum(wide + high for wide, high in self.adapted)
        return self.lora_rank * (widths + (sizes.vision_adapted if self.adapts_vision else 0))

    @property
    def trained(self) -> int:
        return self.adapter_parameters if self.lora_rank else self.geometry.parameters


def saved_state(plan: Plan) -> int:
    """Return bytes of what a training saves to be resumed from, of all shards together: weights and
    two moments. cosmos-rl saves the base of an adapter with it (0.4.7: the model's whole
    state_dict)."""
    weights = plan.geometry.parameters if plan.sharded_engine else plan.trained
    return plan.master * (weights + 2 * plan.trained)


def terms(plan: Plan, gpu: float = 0.0) -> dict[str, float]:
    """Return GiB of one GPU by name, those that show; the prediction is their sum. vllm takes its
    share of a GPU of `gpu` GiB; where that is not known it counts at the least that it starts
    with."""
    sizes = _bytes(plan, gpu).items()
    return {name: gib for name, size in sizes if (gib := round(size / GIB, 2))}


def total(plan: Plan, gpu: float = 0.0) -> float:
    """Return GiB of one GPU: the sum of `terms`."""
    return sum(_bytes(plan, gpu).values()) / GIB


def _bytes(plan: Plan, gpu: float) -> dict[str, float]:
    fixed = {"workspace": WORKSPACE_GIB * GIB, "CUDA context": CONTEXT_GIB * GIB}
    if not plan.train:
        sizes = plan.geometry
        positions = (plan.tokens + plan.new_tokens) * plan.batch
        text = plan.tokens * sizes.layer_activations
        vision = PATCHES * plan.vision_tokens * sizes.vision_activations
        return {
            **_states(plan),
            **_gathered(plan),
            "key-value cache": positions * sizes.layers * 2 * sizes.keys * ACTIVATION,
            "activations": max(text, vision) * plan.batch * ACTIVATION,
            "logits": plan.batch * sizes.vocabulary * LOGIT,
            "vision tower": _features(plan),
            **fixed,
        }
    if plan.sharded_engine:
        work = _kept(plan) | {"layer at work": _decoder_work(plan) + _vision_work(plan)}
        step = {**_states(plan), **_gathered(plan), **work, **_rollout(plan, gpu)}
        return {**max(step, _loading(plan), key=_sum), **fixed}
    moments = (_backward_begins(plan), _backward_ends(plan))
    return {**max(moments, key=_sum), **fixed}


def host_states(plan: Plan) -> float:
    """Return GiB of host memory that one GPU's offloaded weights, gradients and moments take."""
    return (
        sum(_states(dataclasses.replace(plan, states_on_host=False)).values()) / GIB
        if plan.states_on_host
        else 0.0
    )


def _states(plan: Plan) -> dict[str, float]:
    if plan.states_on_host:
        return {}
    frozen = plan.lora_rank or not plan.train
    share = plan.geometry.parameters / plan.shards
    # The embedded engine keeps a frozen base in bfloat16; the distributed one shards it in the
    # master precision.
    base = share * (
        ACTIVATION if frozen and not (plan.sharded_engine and plan.train) else plan.master
    )
    if plan.fp8_base:
        base -= plan.geometry.layers * plan.geometry.layer_parameters
    if not plan.train:
        return {"weights": base}
    if plan.lora_rank:
        return {"weights": base, "LoRA": plan.adapter_parameters * ADAPTER / plan.shards}
    states = {"weights": base, "gradients": base, "optimizer": 2 * base}
    if plan.sharded_engine and plan.master == 4 and plan.shards == 1:
        states["bfloat16 copy of the weights"] = share * ACTIVATION
    return states


def _loading(plan: Plan) -> dict[str, float]:
    """Return what cosmos-rl 0.4.7 holds when it has read its weights: beside them all tensors of
    the files that fell to this GPU, and one more copy of the embedding, tied or not."""
    sizes = plan.geometry
    stored = sizes.parameters + (sizes.table if sizes.tied else 0)
    held = {"weights": plan.master * stored, "LoRA": 4 * plan.adapter_parameters}
    loading = {
        name: 0 if plan.states_on_host else size / plan.shards for name, size in held.items()
    }
    read = sizes.parameters / plan.shards + sizes.table
    return {**loading, "weights as they are read": ACTIVATION * read}


def _gathered(plan: Plan) -> dict[str, float]:
    """Return the whole layers of the engines that shard every model, or of weights on the host."""
    sizes = plan.geometry
    tables = sizes.table * ACTIVATION * (1 if sizes.tied else 2)
    if plan.shards > 1 or plan.states_on_host:
        reduced = (
            0 if plan.lora_rank or not plan.train else 4 * sizes.layer_parameters + 2 * sizes.table
        )
        return {"gathered layers": 2 * ACTIVATION * sizes.layer_parameters + tables + reduced}
    if plan.lora_rank or not plan.train:
        return {}
    return {"gradients of the embedding": sizes.table * ACTIVATION * (2 if sizes.tied else 1)}


def _backward_begins(plan: Plan) -> dict[str, float]:
    """Return the memory when the backward pass begins: every activation is there, and of gradients
    those of earlier passes."""
    sizes = plan.geometry
    states = _states(plan)
    if not plan.lora_rank and not plan.accumulates:
        states["gradients"] = 0
    extra = {"layer at work": _decoder_work(plan)}
    if plan.shards > 1:
        # Two layers, the gradient of one and its float32 copy; all that belongs to no layer.
        layers = 10 * sizes.layer_parameters
        extra["gathered layers"] = layers + ACTIVATION * (sizes.other_parameters + sizes.table)
    elif not plan.lora_rank:
        extra["gradients of the embedding"] = ACTIVATION * sizes.table
        if plan.master == 4:
            # Activations hold what autocast made of the weights.
            extra["bfloat16 copy of the weights"] = ACTIVATION * sizes.parameters
    return {**states, **_kept(plan), **extra}


def _backward_ends(plan: Plan) -> dict[str, float]:
    """Return the memory when the backward pass ends: every gradient is there but the last ones, and
    the activations of the vision tower."""
    sizes = plan.geometry
    states = _states(plan)
    others = sizes.other_parameters
    extra = {"vision tower": _vision_kept(plan) + _vision_work(plan)}
    if plan.lora_rank:
        return {**states, **extra}
    if not plan.lora_rank and not plan.accumulates:
        # Of a tied embedding the output head has a gradient from the beginning.
        late = sizes.vision_parameters if sizes.tied else sizes.vision_parameters + sizes.table
        states["gradients"] -= plan.master * late / plan.shards
    if plan.shards > 1:
        extra["gathered layers"] = 2 * ACTIVATION * others
        added_up = {"gathered layers": (2 * ACTIVATION + plan.master) * others}
        return max({**states, **extra}, {**_states(plan), **added_up}, key=_sum)
    if plan.master == 4:
        extra["bfloat16 copy of the weights"] = ACTIVATION * sizes.vision_parameters
    return {**states, **extra}


def _sum(terms_of_a_moment: dict[str, float]) -> float:
    return sum(terms_of_a_moment.values())


def _kept(plan: Plan) -> dict[str, float]:
    """Return what the forward pass of a training leaves."""
    sizes = plan.geometry
    tokens = plan.tokens * plan.batch
    is_float32 = plan.master == 4 and not plan.sharded_engine and not plan.lora_rank
    passed_on = sizes.hidden * (4 if is_float32 else ACTIVATION)
    per_activation = FLOAT32_KEPT if is_float32 else TRAINED_KEPT
    if plan.lora_rank:
        per_activation = FROZEN_KEPT
    layer = sizes.layer_activations * per_activation
    layer += (ADAPTER_KEPT + DROPOUT * plan.dropout) * sum(wide for wide, _ in plan.adapted)
    whole = plan.kept_layers if plan.checkpointing else sizes.layers
    kept = whole * layer + (sizes.layers - whole) * passed_on
    logits = plan.loss_tokens * plan.batch * sizes.vocabulary * LOGIT
    return {
        "activations": 0 if plan.activations_on_host else tokens * kept,
        "logits": 0 if plan.fused_loss else logits,
        "vision tower": _vision_kept(plan),
    }


def _decoder_work(plan: Plan) -> float:
    sizes = plan.geometry
    work = sizes.layer_activations * (FROZEN_WORK if plan.lora_rank else TRAINED_WORK)
    work += ADAPTER_WORK * sum(wide + high for wide, high in plan.adapted)
    work += DROPOUT * plan.dropout * sum(wide for wide, _ in plan.adapted)
    if plan.fp8_base:
        work += FP8_WORK * max(sizes.inner, sizes.queries)
    return plan.tokens * plan.batch * work


def _features(plan: Plan) -> float:
    """Return what the tower gives, deepstack with it."""
    sizes = plan.geometry
    return plan.vision_tokens * plan.batch * sizes.mergers * sizes.hidden * ACTIVATION


def _vision_kept(plan: Plan) -> float:
    if not plan.trains_vision:
        return _features(plan)
    sizes = plan.geometry
    inside = sizes.vision_hidden * ACTIVATION
    if not plan.checkpointing:
        inside = sizes.vision_activations * TRAINED_KEPT
    patch = sizes.vision_depth * inside + sizes.mergers * sizes.vision_hidden * MERGER_KEPT
    return _features(plan) + PATCHES * plan.vision_tokens * plan.batch * patch


def _vision_work(plan: Plan) -> float:
    if not plan.trains_vision:
        return 0
    work = plan.geometry.vision_activations * TRAINED_WORK
    return PATCHES * plan.vision_tokens * plan.batch * work


def _rollout(plan: Plan, gpu: float) -> dict[str, float]:
    """Return what a policy holds for a vllm on its own GPU, and what that takes."""
    if not plan.rollout_share:
        return {}
    weights = plan.geometry.parameters * ACTIVATION / plan.shards
    held = plan.rollout_share * gpu if gpu else least_of_engine(plan)
    # Weights come in the master precision, and vllm turns what is not bfloat16 into it: it was seen
    # to hold the largest weight twice.
    largest = plan.geometry.vocabulary * plan.geometry.hidden * plan.master
    arriving = 2 * largest if plan.master > ACTIVATION else 0
    return {
        "weights on their way to vllm": weights + TRANSFER_GIB * GIB,
        "vllm's share": held * GIB,
        "vllm beside it": BESIDE_SHARE_GIB * GIB + arriving,
    }


def least_of_engine(plan: Plan) -> float:
    """Return GiB without which vllm does not start: weights, what it keeps for itself, and the
    cache of one sequence of `longest` tokens."""
    sizes = plan.geometry
    cache = plan.longest * sizes.layers * 2 * sizes.keys * ACTIVATION
    return (sizes.parameters * ACTIVATION + cache) / plan.shards / GIB + ENGINE_KEEPS_GIB


def shares(plan: Plan, gpu: float) -> tuple[float, float]:
    """Return (least, largest) part of a GPU of `gpu` GiB that vllm can have beside the policy, in
    hundredths; none when the least is the larger."""
    beside = total(dataclasses.replace(plan, rollout_share=1.0), gpu) - gpu
    least = math.ceil(100 * least_of_engine(plan) / gpu) / 100
    return least, math.floor(100 * (TIGHT_ABOVE - beside / gpu)) / 100


def verdict(needed: float, gpu: float) -> str:
    """Return whether `needed` GiB fit on a GPU of `gpu` GiB."""
    if needed > gpu:
        return DOES_NOT_FIT
    if needed > TIGHT_ABOVE * gpu:
        return TIGHT
    return FITS


def of_gpu(plan: Plan, gpu: float) -> str:
    """Return whether a plan fits on a GPU of `gpu` GiB: vllm beside a policy has to start, too."""
    if plan.rollout_share and plan.rollout_share * gpu < least_of_engine(plan):
        return DOES_NOT_FIT
    return verdict(total(plan, gpu), gpu)


def of_spec(case, tokens: int, vision_tokens: int, text_tokens: int) -> Plan | None:
    """Return the plan of a spec (a `Case`) whose longest sample has so many tokens; None for a
    model of unknown size."""
    if case.action in actions.TRAINING:
        return of_training(case, case.model, case.cosmos, tokens, vision_tokens, text_tokens)
    sizes = geometry(case(case.params.get("base", "")) or case.model)
    if sizes is None:
        return None
    batch = 1
    shards = 1
    new_tokens = 0
    if case.action == "evaluate":
        batch = case("evaluation.batch_size")
        shards = case("model.tp_size")
    if case.action != "quantize":
        new_tokens = case("generation.max_tokens")
    return Plan(
        sizes,
        tokens,
        vision_tokens,
        loss_tokens=1,
        train=False,
        batch=batch,
        shards=shards,
        master=ACTIVATION,
        new_tokens=new_tokens,
    )


def of_training(
    value: Callable[[str], Any],
    model: str,
    is_cosmos: bool,
    tokens: int,
    vision_tokens: int,
    text_tokens: int,
) -> Plan | None:
    """Return the plan of a training: `value` of each key of its complete spec, by cosmos-rl or the
    embedded engine; None for a model of unknown size."""
    sizes = geometry(model)
    if sizes is None:
        return None
    lora_rank = 0
    lora_targets = ()
    dropout = False
    if value("policy.lora") is not None:
        lora_rank = value("policy.lora.r")
        targets = value("policy.lora.target_modules")
        lora_targets = (targets,) if isinstance(targets, str) else tuple(targets or ())
        dropout = value("policy.lora.lora_dropout") > 0
    shards = value("policy.parallelism.dp_shard_size")
    if is_cosmos:
        batch = value("train.train_policy.mini_batch")
        shards *= value("policy.parallelism.tp_size")
    else:
        # The embedded engine packs what fits the GPU, unless it is told how much, and has an
        # adapter and its base whole on every rank.
        asked = value(TOKENS_PER_PASS) or 0
        batch = max(1, min(value(BATCH), asked // max(1, tokens)))
        shards = 1 if lora_rank else shards
    loss_tokens = tokens if is_cosmos else min(tokens, text_tokens)
    is_rl = value("train.train_policy.type") == "grpo"
    rollout_share = 0.0
    if is_rl and value("mode") != "disaggregated":
        rollout_share = value(SHARE)
    return Plan(
        geometry=sizes,
        tokens=tokens,
        vision_tokens=vision_tokens,
        loss_tokens=loss_tokens,
        batch=batch,
        shards=shards,
        master=BYTES[value("train.master_dtype")],
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        sharded_engine=is_cosmos,
        checkpointing=value("policy.model_gradient_checkpointing"),
        states_on_host=is_cosmos and value("train.fsdp_offload"),
        activations_on_host=is_cosmos and value("train.activation_offload"),
        # The policy of GRPO needs its logits (cosmos-rl's util.py fuses them for sft alone).
        fused_loss=is_cosmos and not is_rl and value("policy.enable_liger_fused_cross_entropy"),
        is_rl=is_rl,
        new_tokens=value("rollout.max_response_length") if is_rl else 0,
        reference=is_rl and value("train.train_policy.kl_beta") > 0,
        rollout_share=rollout_share,
        longest=value("policy.model_max_length"),
        # Whether a step may take several passes.
        accumulates=is_cosmos
        or (value(BATCH) > 1 and value(BATCH) * tokens > (value(TOKENS_PER_PASS) or ENOUGH_TOKENS)),
        fp8_base=bool(lora_rank) and not is_cosmos and value(BASE_PRECISION) == "fp8",
        dropout=dropout,
    )


def cheapest_fix(
    plan: Plan, gpu: float, most_gpus: int, token_pixels: int
) -> tuple[Fix, float] | None:
    """Return the first change, in order of what it costs, with which the plan fits on GPUs of `gpu`
    GiB, and GiB then; several when no single one is enough; None when all of them are not.
    `token_pixels`: pixels that make one vision token, 0 where frames have a size that is given."""
    single = [(Fix(), plan)] if plan.rollout_share else []
    several = []
    together = Fix()
    changed = plan
    for fix, change in _changes(plan, most_gpus, token_pixels):
        single.append((fix, dataclasses.replace(plan, **change)))
        after = dataclasses.replace(changed, **change)
        if total(after) < total(changed):
            changed = after
            together |= fix
            several.append((together, after))
    for fix, after in (*single, *several):
        if plan.rollout_share:
            least, most = shares(after, gpu)
            if least > most:
                continue
            if not least <= after.rollout_share <= most:
                after = dataclasses.replace(after, rollout_share=most)
                fix |= Fix(changes={SHARE: most})
        if of_gpu(after, gpu) == FITS:
            return fix, total(after, gpu)
    return None


def _changes(plan: Plan, most_gpus: int, token_pixels: int) -> Iterator[tuple[Fix, dict]]:
    """Yield (change of the spec, of the plan): free ones first, then slower, then those that change
    the result."""
    if not plan.train:
        if plan.batch > 1:
            yield Fix(changes={"evaluation.batch_size": 1}), {"batch": 1}
        return
    if not plan.checkpointing:
        yield Fix(changes={"policy.model_gradient_checkpointing": True}), {"checkpointing": True}
    if plan.batch > 1:
        one_record = {TOKENS_PER_PASS: None}
        if plan.sharded_engine:
            one_record = {"train.train_policy.mini_batch": 1}
        yield Fix(changes=one_record), {"batch": 1}
    if plan.sharded_engine and not plan.fused_loss and not plan.is_rl:
        yield Fix(changes={"policy.enable_liger_fused_cross_entropy": True}), {"fused_loss": True}
    if plan.sharded_engine or not plan.lora_rank:
        for gpus in (2, 4, 8):
            if plan.shards < gpus <= most_gpus:
                yield Fix(flags={"--gpus-per-node": gpus}), {"shards": gpus}
    # Offloads were never tried where vllm has a part of the GPU.
    if plan.sharded_engine and not plan.activations_on_host and not plan.rollout_share:
        yield Fix(changes={"train.activation_offload": True}), {"activations_on_host": True}
    if not plan.lora_rank:
        adapter = {"lora_rank": 16, "lora_targets": tuple(plan.geometry.linears)}
        yield Fix(flags={"--tuning": "lora"}), adapter
    # cosmos-rl holds a base that is frozen in the master precision, too.
    if plan.master == 4 and (plan.sharded_engine or not plan.lora_rank):
        yield Fix(changes={"train.master_dtype": "bfloat16"}), {"master": 2}  # rounds small steps
    if token_pixels and plan.vision_tokens // 2 > 128:
        vision_tokens = plan.vision_tokens // 2  # half of the pixels
        tokens = plan.tokens - plan.vision_tokens + vision_tokens
        change = {"vision_tokens": vision_tokens, "tokens": tokens}
        if plan.loss_tokens == plan.tokens:
            change["loss_tokens"] = tokens
        pixels = int(vision_tokens / 1.05) * token_pixels
        yield Fix(changes={"custom.vision.total_pixels": pixels}), change
    for parts in (2, 4, 8, 16):  # the policy of GRPO makes logits of every position
        fewer = plan.new_tokens - plan.new_tokens // parts
        if plan.is_rl and plan.new_tokens // parts >= 128:
            change = {name: getattr(plan, name) - fewer for name in COMPLETED}
            yield Fix(changes={"rollout.max_response_length": change["new_tokens"]}), change
    length = max(4096, math.ceil(1.25 * plan.tokens / 1024) * 1024)
    if plan.rollout_share and length < plan.longest:  # of which vllm's cache holds one
        yield Fix(changes={"policy.model_max_length": length}), {"longest": length}
    if plan.sharded_engine and not plan.states_on_host and not plan.rollout_share:
        yield Fix(changes={"train.fsdp_offload": True}), {"states_on_host": True}
