"""The memory model against measured peaks, the exact parameter counts, and what must always
hold."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.base import bundle
from cosmos_reason.base.families import qwen3_vl
from cosmos_reason.estimate import gpu_memory, host_memory
from cosmos_reason.estimate.gpu_memory import Plan
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document, validation
from cosmos_reason.spec.keys import BASE_PRECISION

QWEN3_2B = gpu_memory.geometry("nvidia/Cosmos-Reason2-2B")
QWEN3_8B = gpu_memory.geometry("nvidia/Cosmos-Reason2-8B")
GEOMETRIES = [gpu_memory.geometry(model) for model in bundle.skill_info()["models"]]

QV = ("q_proj", "v_proj")
# (plan, measured peak of allocated memory in GiB) on one H200; the answers there are a few tokens
# long.
FULL_LOGITS = [
    (
        Plan(QWEN3_8B, tokens, tokens, tokens, lora_rank=8, lora_targets=QV, sharded_engine=False),
        peak,
    )
    for tokens, peak in ((1049, 18.8), (3801, 25.2), (7345, 33.3))
]
H200 = [  # bench_gpu_memory.py, torch 2.11
    *(
        (Plan(QWEN3_8B, tokens, vision, 1, train=False, sharded_engine=False), peak)
        for tokens, vision, peak in ((392, 256, 16.61), (3680, 3528, 17.54), (7240, 7056, 18.55))
    ),
    *(
        (
            Plan(
                QWEN3_8B, tokens, vision, tokens, sharded_engine=False, lora_rank=8, lora_targets=QV
            ),
            peak,
        )
        for tokens, vision, peak in ((392, 256, 17.39), (3680, 3528, 23.92), (7240, 7056, 31.03))
    ),
]
ENGINE = [
    (Plan(QWEN3_2B, 1493, 1440, 40, sharded_engine=False), 36.6),
    (Plan(QWEN3_2B, 1493, 1440, 40, sharded_engine=False, master=2), 17.7),
    (Plan(QWEN3_2B, 1493, 1440, 40, sharded_engine=False, lora_rank=8, lora_targets=QV), 4.4),
    (Plan(QWEN3_8B, 525, 480, 40, sharded_engine=False, lora_rank=8, lora_targets=QV), 16.7),
    (Plan(QWEN3_8B, 1885, 1840, 40, sharded_engine=False, lora_rank=8, lora_targets=QV), 17.4),
    (Plan(QWEN3_8B, 3737, 3690, 40, sharded_engine=False, lora_rank=8, lora_targets=QV), 18.4),
    (Plan(QWEN3_8B, 1885, 1840, 40, sharded_engine=False, master=2), 67.9),
]
H100 = [  # bench_engine_gpu.py rows: 8B LoRA, records packed, so many decoder layers kept
    (
        Plan(
            QWEN3_8B, tokens, 7056, loss, sharded_engine=False, lora_rank=8, lora_targets=QV,
            kept_layers=kept,
        ),
        peak,
    )
    for tokens, loss, kept, peak in (
        (7875, 72, 36, 61.10),
        (7358, 16, 36, 58.15),
        (7327, 8, 36, 58.00),
        (7327, 8, 18, 38.76),
        (7327, 8, 0, 20.22),
    )
]  # fmt: skip

ALL, LINEAR = ("all-linear",), tuple(QWEN3_8B.linears)
PASSES = [  # bench_gpu_memory.py passes: master, rank, targets, layers kept; first and later passes
    (QWEN3_2B, 4, 0, (), 0, 34.31, 40.07),
    (QWEN3_2B, 4, 0, (), 28, 56.75, 64.66),
    (QWEN3_2B, 4, 0, (), 14, 44.16, 52.07),
    (QWEN3_2B, 2, 0, (), 0, 18.9, 20.77),
    (QWEN3_2B, 2, 0, (), 28, 37.07, 41.04),
    (QWEN3_2B, 2, 0, (), 14, 26.61, 30.57),
    (QWEN3_8B, 2, 8, QV, 0, 20.31, 20.32),
    (QWEN3_8B, 2, 8, QV, 36, 58.02, 58.04),
    (QWEN3_8B, 2, 8, QV, 18, 38.65, 38.67),
    (QWEN3_8B, 2, 16, ALL, 0, 24.34, 24.54),
    (QWEN3_8B, 2, 16, ALL, 36, 76.17, 76.33),
    (QWEN3_8B, 2, 16, ALL, 18, 49.7, 49.88),
    (QWEN3_8B, 2, 64, ALL, 0, 26.17, 26.99),
    (QWEN3_8B, 2, 64, ALL, 36, 78.44, 79.21),
    (QWEN3_8B, 2, 64, ALL, 18, 51.91, 52.69),
    (QWEN3_8B, 2, 16, LINEAR, 0, 21.38, 21.54),
    (QWEN3_8B, 2, 16, LINEAR, 36, 73.19, 73.35),
    (QWEN3_8B, 2, 16, LINEAR, 18, 46.72, 46.88),
    (QWEN3_8B, 2, 0, (), 0, 67.96, 72.28),
    (QWEN3_8B, 2, 0, (), 36, 107.25, 123.01),
    (QWEN3_8B, 2, 0, (), 18, 81.57, 97.36),
]
PASSES = [
    (
        Plan(
            geometry, 7360, 7056, 32, sharded_engine=False, master=master, lora_rank=rank,
            lora_targets=targets, kept_layers=kept, accumulates=accumulates,
        ),
        peak,
    )
    for geometry, master, rank, targets, kept, *peaks in PASSES
    for accumulates, peak in zip((False, True), peaks, strict=True)
]  # fmt: skip
QWEN3_4B = dataclasses.replace(
    QWEN3_8B, hidden=2560, inner=9728, tied=True, vision_depth=24, vision_hidden=1024,
    vision_inner=4096,
)  # fmt: skip
SHARDED = [  # bench_ranks_gpu.py: two processes, one pass a step
    (
        Plan(
            geometry, tokens, round(0.96 * tokens), loss, sharded_engine=False, master=master,
            shards=2, kept_layers=kept, accumulates=False,
        ),
        peak,
    )
    for geometry, tokens, loss, master, kept, peak in (
        (QWEN3_2B, 3500, 64, 4, 28, 27.6),
        (QWEN3_4B, 7358, 32, 2, 0, 22.7),
    )
]  # fmt: skip

DROPOUT = [  # trainings of the embedded engine on one H100, LoRA as build_spec.py writes it
    (
        Plan(
            geometry, tokens, vision, 20, batch=batch, sharded_engine=False, lora_rank=16,
            lora_targets=LINEAR, kept_layers=kept, dropout=True,
        ),
        peak,
    )
    for geometry, tokens, vision, batch, kept, peak in (
        (QWEN3_2B, 879, 784, 9, 28, 32.69),
        (QWEN3_8B, 879, 784, 6, 36, 64.02),
        (QWEN3_8B, 3679, 3528, 1, 36, 49.77),
        (QWEN3_8B, 3679, 3528, 2, 0, 21.98),
    )
]  # fmt: skip
COSMOS_RL = [  # 0.4.7 on one H100, its largest while it loads weights
    (Plan(QWEN3_8B, 3679, 3528, 3679, lora_rank=16, lora_targets=LINEAR, dropout=True), 50.31),
]
MEASURED = [*FULL_LOGITS, *H200, *ENGINE, *H100, *PASSES, *SHARDED, *DROPOUT, *COSMOS_RL]


@pytest.mark.parametrize(("plan", "peak"), MEASURED)
def test_prediction_is_at_most_ten_percent_above_what_was_measured_and_not_below(plan, peak):
    predicted = (
        gpu_memory.total(plan) - gpu_memory.CONTEXT_GIB
    )  # the allocator does not see the context
    assert peak - 0.05 <= predicted <= 1.1 * peak


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Cosmos-Reason2-2B", 2.127), ("Cosmos-Reason2-8B", 8.767), ("Cosmos-Reason1-7B", 8.292)],
)
def test_parameters_are_those_published(name, billions):
    assert gpu_memory.geometry(f"hf_model://nvidia/{name}").parameters / 1e9 == pytest.approx(
        billions, rel=0.003
    )


def test_parameters_are_those_of_the_tensors(tmp_path):
    """All but norms, biases and positions, which are a thousandth."""
    text = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151936}  # fmt: skip
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "depth": 27,
              "deepstack_visual_indexes": [8, 16, 24], "patch_size": 16, "spatial_merge_size": 2,
              "temporal_patch_size": 2, "in_channels": 3, "out_hidden_size": 4096,
              "num_position_embeddings": 2304}  # fmt: skip
    config = {"text_config": text, "vision_config": vision, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    exact = sum(math.prod(shape) for shape in qwen3_vl.expected_tensors(config).values())
    assert gpu_memory.geometry(str(tmp_path)) == QWEN3_8B
    assert QWEN3_8B.parameters == pytest.approx(exact, rel=0.001)
    assert gpu_memory.geometry(str(tmp_path / "no")) is None
    assert gpu_memory.geometry("org/unknown") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"vision_config": 3, "num_attention_heads": 0, "hidden_size": 1}']
)
def test_a_strange_config_is_an_unknown_model(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert gpu_memory.geometry(str(tmp_path)) is None


plans = st.builds(
    Plan,
    geometry=st.sampled_from(GEOMETRIES),
    tokens=st.integers(2000, 40000),
    vision_tokens=st.integers(0, 2000),
    loss_tokens=st.integers(1, 2000),
    train=st.booleans(),
    batch=st.integers(1, 8),
    shards=st.sampled_from([1, 2, 4, 8]),
    master=st.sampled_from([2, 4]),
    lora_rank=st.sampled_from([0, 8, 64]),
    lora_targets=st.just(QV),
    sharded_engine=st.booleans(),
    checkpointing=st.booleans(),
    states_on_host=st.booleans(),
    activations_on_host=st.booleans(),
    fused_loss=st.booleans(),
)


@given(plans, st.integers(1, 5000))
def test_more_to_hold_is_never_less_memory(plan, more):
    base = gpu_memory.total(plan)
    assert base > 0 and all(size > 0 for size in gpu_memory.terms(plan).values())
    for change in (
        {"tokens": plan.tokens + more},
        {"vision_tokens": plan.vision_tokens + more},
        {"batch": plan.batch + 1},
        {"loss_tokens": plan.loss_tokens + more},
    ):
        assert gpu_memory.total(dataclasses.replace(plan, **change)) >= base - 1e-6
    for change in ({"checkpointing": True}, {"fused_loss": True}, {"activations_on_host": True}):
        assert gpu_memory.total(dataclasses.replace(plan, **change)) <= base + 1e-6


@given(plans, st.sampled_from([24, 80, 141]), st.sampled_from([1, 8]))
def test_a_fix_fits(plan, gpu, most):
    fix = gpu_memory.cheapest_fix(plan, gpu, most, 1024)
    if fix:
        assert gpu_memory.verdict(fix[1], gpu) == "fits" and (fix[0].changes or fix[0].flags)


def case(engine="cosmos-rl", action="train", **settings):
    table = document.template(action)
    for key, value in settings.items():
        document.set_value(table, key.replace("__", "."), value)
    return Case(action, engine, table)


def test_known_stories():
    """The 8B model in full needs several 80 GB GPUs; LoRA of it runs on one; the 2B model in full
    on one."""

    def needed(case):
        return gpu_memory.total(gpu_memory.of_spec(case, 4096, 3900, 196))

    grid = "policy__parallelism__dp_shard_size"
    assert gpu_memory.verdict(needed(case()), 80) == "does not fit"
    assert gpu_memory.verdict(needed(case(**{grid: 8})), 80) == "fits"
    lora = case("transformers", policy__lora={"r": 8, "target_modules": ["q_proj"]})
    assert gpu_memory.verdict(needed(lora), 32) == "fits"
    small = case(policy__model_name_or_path="hf_model://nvidia/Cosmos-Reason2-2B")
    assert gpu_memory.verdict(needed(small), 80) == "fits"


def embedded(**changes):
    spec = document.template("train")
    for key, value in changes.items():
        document.set_value(spec, key.replace("__", "."), value)
    return gpu_memory.of_spec(Case("train", "transformers", spec), 3801, 3690, 40)


def test_the_embedded_engine_shards_all_weights_or_nothing():
    sizes = {"train__master_dtype": "bfloat16", "policy__parallelism__dp_shard_size": 4}
    alone, spread = embedded(train__master_dtype="bfloat16"), embedded(**sizes)
    # 8.8 billion weights, gradients and two moments of 2 bytes each, of which a quarter is left.
    # Gathered layers, their gradients and a copy of those take some of it.
    assert 35 < gpu_memory.total(alone) - gpu_memory.total(spread) < 45
    adapter = {"policy__lora": {"r": 8, "lora_alpha": 16, "target_modules": list(QV)}}
    assert embedded(**adapter) == embedded(**adapter, **{"policy__parallelism__dp_shard_size": 4})
    replicas = {"train__master_dtype": "bfloat16", "policy__parallelism__dp_replicate_size": 4}
    assert embedded(**replicas) == alone
    fix, gib = gpu_memory.cheapest_fix(alone, 60, 4, 1024)
    assert fix.flags == {"--gpus-per-node": 2} and gib < 54
    assert fix.changes == {}
    assert gpu_memory.cheapest_fix(alone, 60, 1, 1024)[0].flags == {"--tuning": "lora"}


def test_a_base_in_fp8_takes_half_of_its_layers():
    """6.47 GiB for the 6.95 billion weights of 8B's decoder layers, less what a pass needs more."""
    adapter = {"policy__lora": {"r": 8, "lora_alpha": 16, "target_modules": list(QV)}}
    precision = {BASE_PRECISION.replace(".", "__"): "fp8"}
    saved = gpu_memory.total(embedded(**adapter))
    saved -= gpu_memory.total(embedded(**adapter, **precision))
    assert 5.5 < saved < 6.47
    assert gpu_memory.total(embedded(**precision)) == gpu_memory.total(embedded())


def test_a_pass_holds_the_tokens_that_it_was_told_to():
    """3,801 of the longest record, of which a step has 4."""
    per_pass = "custom__transformers_engine__tokens_per_pass"
    for asked, records in ((None, 1), (2000, 1), (8000, 2), (10**6, 4)):
        assert embedded(**{per_pass: asked}).batch == records
    full = embedded(**{per_pass: 10**6})
    fix, change = next(gpu_memory._changes(full, 1, 1024))
    assert fix.changes == {per_pass.replace("__", "."): None} and change == {"batch": 1}


def test_a_pixel_budget_is_no_fix_where_frames_have_their_size():
    for pixels in (1024, 0):
        fixes = [fix for fix, _ in gpu_memory._changes(embedded(), 1, pixels)]
        has_budget = any("custom.vision.total_pixels" in fix.changes for fix in fixes)
        assert has_budget == bool(pixels)


def test_fixes_are_accepted_by_build_spec():
    """Every key a fix sets is one the engine honours, with a legal value."""
    for engine in ("cosmos-rl", "transformers"):
        spec = case(
            engine,
            policy__model_gradient_checkpointing=False,
            train__train_policy__mini_batch=2,
        )
        plan = gpu_memory.of_spec(spec, 8000, 7000, 1000)
        for fix, _ in gpu_memory._changes(plan, 8, 1024):
            for key, value in fix.changes.items():
                table = document.template("train")
                document.set_value(table, key, value)
                assert not validation.validate("train", table), fix
                assert engine in document.keys("train")[key]["x-engines"], fix


H100_GIB, H200_GIB = 79.65, 140.4
# launch_job.py submit grpo with colocated_separated (RESULTS.md, GRPO on one GPU), GiB of each
# process as nvidia-smi told: the 8B with q and v on an H100 before any update, of vllm as the first
# weights were about to come; the 2B after updates, with 2,100 tokens in passes of two; the 8B with
# all layers on an H200, after updates with 950 tokens in passes of two.
LORA_8B = {
    "geometry": QWEN3_8B, "tokens": 0, "vision_tokens": 0, "loss_tokens": 0, "lora_rank": 16,
    "lora_targets": QV, "is_rl": True, "rollout_share": 0.3,
}  # fmt: skip
TRAINED_8B = LORA_8B | {
    "tokens": 950, "vision_tokens": 784, "loss_tokens": 950, "batch": 2, "lora_targets": LINEAR
}  # fmt: skip
SHARED = [
    (Plan(**LORA_8B), H100_GIB, 53044 / 1024, None),
    (Plan(**LORA_8B, master=2), H100_GIB, 36364 / 1024, 25582 / 1024),
    (
        Plan(QWEN3_2B, 2100, 1568, 2100, batch=2, is_rl=True, rollout_share=0.15), H100_GIB,
        53156 / 1024, 17300 / 1024,
    ),
    (Plan(**TRAINED_8B), H200_GIB, 57440 / 1024, 50238 / 1024),
    (
        Plan(**TRAINED_8B | {"rollout_share": 0.2}, master=2), H200_GIB,
        40406 / 1024, 29906 / 1024,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "gpu", "policy", "vllm"), SHARED)
def test_a_shared_gpu_holds_what_was_measured_of_both_processes(plan, gpu, policy, vllm):
    found = gpu_memory.terms(plan, gpu)
    of_vllm = found.pop("vllm's share") + found.pop("vllm beside it")
    if vllm is not None:
        assert 0.99 * vllm <= of_vllm <= 1.1 * vllm
    assert 0.99 * policy <= sum(found.values()) <= 1.1 * policy


def shared(model="nvidia/Cosmos-Reason2-8B", **settings):
    settings = {"mode": "colocated_separated", "policy__model_name_or_path": model} | settings
    grid = {"policy__parallelism__dp_shard_size": 1, "rollout__parallelism__tp_size": 1}
    length = {"rollout__max_response_length": 176}
    made = case(action="grpo", **grid | length | settings)
    return gpu_memory.of_spec(made, 1200, 1024, 176)


ADAPTER = {"policy__lora": {"r": 16, "lora_alpha": 32, "target_modules": list(QV)}}
BFLOAT16 = {"train__master_dtype": "bfloat16"}
SHARE = "rollout__gpu_memory_utilization"


def test_a_shared_gpu_that_does_not_fit_gets_the_share_that_does():
    plan = shared(**ADAPTER, **BFLOAT16, **{SHARE: 0.7, "policy__model_max_length": 8192})
    assert gpu_memory.of_gpu(plan, H100_GIB) == "does not fit"
    least, most = gpu_memory.shares(plan, H100_GIB)
    assert 0.25 < least < most < 0.35
    fix, gib = gpu_memory.cheapest_fix(plan, H100_GIB, 1, 1024)
    assert fix.changes == {gpu_memory.SHARE: most} and gib <= 0.9 * H100_GIB
    for share, says in ((least - 0.01, "does not fit"), (least, "fits"), (most, "fits")):
        changed = dataclasses.replace(plan, rollout_share=share)
        assert gpu_memory.of_gpu(changed, H100_GIB) == says
    over = dataclasses.replace(plan, rollout_share=most + 0.01)
    assert gpu_memory.of_gpu(over, H100_GIB) == "tight"


@pytest.mark.parametrize("settings", [{}, BFLOAT16, ADAPTER])
def test_an_8b_policy_fits_one_h100_at_no_share_but_with_an_adapter_on_bfloat16(settings):
    for share in (0.05, 0.3, 0.5):
        plan = shared(**settings, **{SHARE: share})
        least, most = gpu_memory.shares(plan, H100_GIB)
        assert most < least and gpu_memory.of_gpu(plan, H100_GIB) == "does not fit"
    fix, _ = gpu_memory.cheapest_fix(plan, H100_GIB, 1, 1024)
    needed = {"--tuning": "lora"} if not settings.get("policy__lora") else {}
    assert fix.flags == needed
    smaller = {"train.master_dtype", "train.train_policy.mini_batch", gpu_memory.SHARE}
    assert fix.changes.keys() <= smaller


@given(plans, st.sampled_from([24, 80, 141]), st.floats(0.05, 0.95), st.integers(128, 40960))
def test_nothing_untried_is_proposed_where_vllm_shares_the_gpu(plan, gpu, share, longest):
    of_rl = {"train": True, "sharded_engine": True, "is_rl": True}
    plan = dataclasses.replace(plan, rollout_share=share, longest=longest, **of_rl)
    fix = gpu_memory.cheapest_fix(plan, gpu, 8, 1024)
    if fix:
        untried = {"train.fsdp_offload", "train.activation_offload"}
        untried.add("policy.enable_liger_fused_cross_entropy")
        assert not untried & fix[0].changes.keys() and fix[1] <= 0.9 * gpu


def test_gpus_of_its_own_leave_the_policy_alone_and_the_reference_is_on_the_host():
    settings = {"mode": "disaggregated", "train__train_policy__kl_beta": 0.1}
    alone = gpu_memory.of_spec(case(action="grpo", **settings), 4096, 3900, 196)
    assert not {"vllm's share", "weights on their way to vllm"} & gpu_memory.terms(alone).keys()
    node = host_memory.Node(2)
    assert host_memory.terms(alone, node)["reference model"] == pytest.approx(32.6, abs=0.1)
    without = dataclasses.replace(alone, reference=False)
    assert "reference model" not in host_memory.terms(without, node)
    assert gpu_memory.total(without) == gpu_memory.total(alone)


def test_evaluation_is_forward_only():
    plan = gpu_memory.of_spec(case("transformers", "evaluate"), 4096, 3900, 196)
    assert set(gpu_memory.terms(plan)) <= {
        "weights",
        "key-value cache",
        "activations",
        "logits",
        "vision tower",
        "workspace",
        "CUDA context",
    }
    assert 16 < gpu_memory.terms(plan)["weights"] < 17
