"""Each rule on the smallest spec that breaks it: its finding, its fix, and silence when all is
well."""

import re
import tempfile
from pathlib import Path

import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_site import write_model, write_state
from support_specs import ON_ONE_GPU, QWEN2, REASON1, changed, legal_values, write_facts

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.base.families import qwen3_vl
from cosmos_reason.estimate import record_tokens
from cosmos_reason.estimate import steps as schedule
from cosmos_reason.media import sampling
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import lengths
from cosmos_reason.rules.case import Case, of_sound_values
from cosmos_reason.spec import document


def found(action, engine="tao", gpus=None, nodes=1, facts=None, launch=False, **changes):
    """Rule id -> finding."""
    table = changed(action, {name.replace("__", "."): value for name, value in changes.items()})
    return {one.id: one for one in rules.check(action, engine, table, facts, gpus, nodes, launch)}


MODEL_KEYS = dict.fromkeys(("train", "grpo"), "policy__model_name_or_path")
MODEL_KEYS["evaluate"] = "model__model_name"
LORA_TABLE = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
DATA = {"dataset__annotation_path": "/data/annotations.json"}
# rule: action, engine, key, the last value that is fine, the first that is not, what else is said
BOUNDARIES = {
    "SPEC-GPUS": ("train", "tao", "gpus", 1, 2, {"policy__parallelism__dp_shard_size": 1}),
    "SPEC-GPUS-FEW": ("train", "tao", "gpus", 2, 1, {}),
    "SPEC-GPUS-GRPO": ("grpo", "cosmos-rl", "gpus", 4, 3, {}),
    "SPEC-GPUS-IDLE": ("grpo", "cosmos-rl", "gpus", 4, 5, {}),
    "SPEC-GPUS-FEW-GRPO": ("grpo", "cosmos-rl", "gpus", 4, 3, {}),
    "SPEC-REPLICATE-1D": (
        "train", "tao", "policy__parallelism__dp_shard_size", 2, 1,
        {"policy__parallelism__dp_replicate_size": 2, "policy__parallelism__tp_size": 2},
    ),
    "SPEC-RATE-HIGH": ("train", "tao", "train__optm_lr", 9.9e-5, 1e-4, {}),
    "SPEC-RATE-BFLOAT16": (
        "train", "cosmos-rl", "train__optm_lr", 0.02 / 512, 0.0199 / 512,
        {"train__master_dtype": "bfloat16"},
    ),
    "SPEC-WARMUP-LONG": ("train", "tao", "train__optm_warmup_steps", 0.2, 0.21, {}),
    "SPEC-WARMUP-ALL": ("train", "tao", "train__optm_warmup_steps", 0.99, 1.0, {}),
    "SPEC-WARMUP-FLOAT": ("train", "tao", "train__optm_warmup_steps", 1.0, 1.5, {}),
    "SPEC-LENGTH-LOW": ("train", "tao", "policy__model_max_length", 40960, 40959, {}),
    "SPEC-LENGTH-POSITIONS": (
        "grpo", "cosmos-rl", "policy__model_max_length", 128000, 128001,
        {"policy__model_name_or_path": REASON1},
    ),
    "SPEC-LENGTH-POSITIONS-TRAIN": (
        "train", "tao", "policy__model_max_length", 262144, 262145, {},
    ),
    "SPEC-SAVE-NEVER": (
        "train", "tao", "train__ckpt__save_freq", 10, 11,
        {"train__max_num_steps": 10, "train__ckpt__save_freq_in_epoch": 0},
    ),
    "SPEC-VALIDATION-NEVER": (
        "train", "tao", "validation__freq_in_epoch", 3, 4,
        {"validation__enable": True, "train__epoch": 3},
    ),
    "SPEC-FRAMES-ORDER": (
        "train", "tao", "custom__vision__max_frames", 8, 6, {"custom__vision__min_frames": 8},
    ),
    "SPEC-KL-ZERO": ("grpo", "cosmos-rl", "train__train_policy__kl_beta", 1e-9, 0.0, {}),
    "SPEC-KL-HIGH": ("grpo", "cosmos-rl", "train__train_policy__kl_beta", 0.2, 0.21, {}),
    "SPEC-ROLLOUT-ROOM": (
        "grpo", "cosmos-rl", "rollout__max_response_length", 4095, 4096,
        {"policy__model_max_length": 4096},
    ),
    "SPEC-ANSWER-ROOM": (
        "evaluate", "tao", "generation__max_tokens", 512, 511,
        {"evaluation__answer_type": "reasoning"},
    ),
    "SPEC-ANSWER-LENGTH": (
        "evaluate", "tao", "generation__max_tokens", 1023, 1024, {"model__max_length": 1024},
    ),
    "SPEC-EVAL-GPUS": ("evaluate", "tao", "model__tp_size", 2, 3, {"num_gpus": 2}),
    "SPEC-EVAL-FRAMES": ("evaluate", "tao", "vision__nframes", 8, 10, {}),
    "SPEC-CALIBRATION-FEW": ("quantize", "tao", "quantize__num_calibration_samples", 64, 63, DATA),
    "SPEC-LENGTH-CALIBRATION": (
        "quantize", "tao", "quantize__max_sequence_length", 4096, 4095, DATA,
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", BOUNDARIES)
def test_a_rule_begins_where_its_text_says(rule):
    action, engine, key, fine, wrong, others = BOUNDARIES[rule]
    assert rule not in found(action, engine, **others | {key: fine})
    assert rule in found(action, engine, **others | {key: wrong})


def test_two_gpus_are_the_fewest_that_a_policy_and_its_rollouts_are_laid_out_for():
    assert found("grpo", "cosmos-rl", gpus=2)["SPEC-GPUS-GRPO"].fix
    assert not found("grpo", "cosmos-rl", gpus=1)["SPEC-GPUS-GRPO"].fix
    few = found("grpo", "cosmos-rl", gpus=2)["SPEC-GPUS-FEW-GRPO"]
    assert not few.fix, "each way out changes what was asked for"
    assert "SPEC-GPUS-FEW-GRPO" not in found("grpo", "cosmos-rl", gpus=1, **ON_ONE_GPU)


def test_adapters_bear_a_rate_of_ten_times_as_much():
    rates = {"train__optm_lr": 9.9e-4, "policy__lora": LORA_TABLE}
    assert "SPEC-RATE-HIGH" not in found("train", **rates)
    assert "SPEC-RATE-HIGH" in found("train", **rates | {"train__optm_lr": 1e-3})


def test_keys_of_other_engines_count_when_they_ask_for_something():
    asked = {"policy.parallelism.tp_size": 2, "train.fsdp_offload": False}
    asked["train.optm_warmup_epochs"] = 1
    table = changed("train", asked)  # 2 is the trainer's own tp_size, but not ours
    for engine, keys in {
        "transformers": ["train.optm_warmup_epochs", "policy.parallelism.tp_size"],
        "cosmos-rl": ["train.optm_warmup_epochs"],
        "tao": [],
    }.items():
        assert [one.where for one in rules.unapplied_findings(Case("train", engine, table))] == keys


def test_what_may_be_missing_in_a_draft_may_not_at_launch():
    for launch, severity in ((False, f.WARNING), (True, f.ERROR)):
        one = found("train", launch=launch)
        assert {one["SPEC-MODEL-OMNI"].severity, one["SPEC-DATA-TRAIN"].severity} == {severity}


def write_config(folder, model):
    """What a spec calls the model: its name, or a folder whose config is `model`."""
    if isinstance(model, str):
        return model
    is_adapter = "base_model_name_or_path" in model
    files.write_json(folder / ("adapter_config.json" if is_adapter else "config.json"), model)
    return str(folder)


ADAPTER = {"base_model_name_or_path": "/models/base"}


ON_REASON2 = {
    "model__enable_lora": True,
    "model__base_model_path": "hf_model://nvidia/Cosmos-Reason2-8B",
}


THEIR_DATA = {"custom__dataset": {"annotation_path": "/data/llava.json"}}


# The model, or the architecture in its config; action, engine, what else the spec has; what is said
# and the fix.
MODELS = [
    ("/lustre/converted", "train", "cosmos-rl", {}, "ASSUMED"),
    ("myorg/tuned", "train", "cosmos-rl", {}, "ASSUMED"),
    ("acme/traffic", "train", "tao", {}, "ASSUMED"),
    ("lab/of_unknown_family", "evaluate", "transformers", {}, "ASSUMED"),
    ("/models/Cosmos-Reason2-8B-converted", "train", "tao", {}, ""),
    ("/models/my-reason1", "train", "tao", {}, ""),
    ("Qwen/Qwen3-VL-8B-Instruct", "train", "tao", {}, ""),
    (REASON1, "train", "transformers", {}, ""),
    ("cosmos3_omni", "train", "tao", {}, "OMNI-LOCAL"),
    ("qwen3_vl", "train", "tao", {}, ""),
    ("qwen2_5_vl", "train", "tao", {}, ""),
    ("qwen3_vl_moe", "train", "tao", {}, "ASSUMED"),
    ("qwen3_vl_moe", "train", "transformers", {}, "FAMILY --engine tao"),
    ("llava", "train", "tao", {}, "FAMILY"),
    ("llava", "train", "transformers", {}, "FAMILY"),
    ("llava", "evaluate", "tao", {}, "FAMILY-ASKED"),
    ("llava", "evaluate", "transformers", {}, "FAMILY-ASKED"),
    (QWEN2, "evaluate", "transformers", {}, "FAMILY-ASKED --engine tao"),
    (QWEN2, "evaluate", "tao", {}, "ASSUMED"),
    (QWEN2, "train", "tao", {}, "FAMILY"),
    # Of other architectures cosmos-rl 0.4.7 trains on the text alone, unless a dataset script of
    # somebody's own hands the media on.
    ("qwen3_5", "train", "cosmos-rl", {}, "ASSUMED"),
    ("qwen3_vl_moe", "grpo", "cosmos-rl", {}, "ASSUMED"),
    ("llava", "train", "cosmos-rl", {}, "FAMILY"),
    ("llava", "grpo", "cosmos-rl", {}, "FAMILY"),
    ("llama", "train", "cosmos-rl", {}, "FAMILY"),
    ("qwen2_vl", "train", "cosmos-rl", {}, "FAMILY"),
    ("llava", "train", "cosmos-rl", THEIR_DATA, ""),
    ("llava", "grpo", "cosmos-rl", THEIR_DATA, ""),
    # An adapter is of the architecture of its base.
    (ADAPTER, "evaluate", "tao", {"model__enable_lora": True}, "ASSUMED"),
    (ADAPTER, "evaluate", "tao", ON_REASON2, ""),
    (ADAPTER, "evaluate", "transformers", ON_REASON2 | {"model__base_model_path": QWEN2},
     "FAMILY-ASKED --engine tao"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "action", "engine", "more", "said"), MODELS)
def test_what_is_said_of_a_models_architecture(tmp_path, model, action, engine, more, said):
    """Before a download; no other model is proposed, but for one the engine that loads it."""
    if isinstance(model, str) and not re.search("[/:]", model):
        model = {"model_type": model}
    changes = more | {MODEL_KEYS[action]: write_config(tmp_path, model)}
    told = found(action, engine, launch=True, **changes)
    told = [one for id, one in told.items() if id.startswith("SPEC-MODEL")]
    said, _, fix = said.partition(" ")
    assert [one.id for one in told] == [f"SPEC-MODEL-{said}"] * bool(said)
    for one in told:
        assert one.severity == (f.WARNING if said == "ASSUMED" else f.ERROR)
        if said.startswith("FAMILY"):
            assert str(one.fix) == fix
        if "model_type" in model and said != "OMNI-LOCAL":
            assert model["model_type"] in one.message


@pytest.mark.parametrize(
    ("model", "layers", "legal"),
    [
        ("Cosmos-Reason2-8B", "all-linear", True),
        ("Cosmos-Reason2-8B", ["q_proj"], True),
        ("Cosmos-Reason2-8B", ["layers.17.mlp.up"], True),
        ("Cosmos-Reason2-8B", ["visual.merger"], True),
        ("Cosmos-Reason2-8B", ["17.mlp.up_proj", ".5.attn.qkv", "layers.17", "blocks.3",
                               "merger_list.2"], True),
        ("Cosmos-Reason2-8B", ["merger.mlp.2"], False),  # of Qwen2.5-VL
        ("Cosmos-Reason2-8B", ["merger.mlp.1"], False),
        ("Cosmos-Reason2-8B", ["linear_fc3"], False),
        ("Cosmos-Reason2-8B", ["q_prj"], False),
        ("Cosmos-Reason1-7B", ["merger.mlp.2"], True),
        ("Cosmos-Reason1-7B", ["linear_fc1"], False),
        ("Cosmos3-Edge", ["q_proj", "fc1"], True),
        ("Cosmos3-Edge", ["visual.encoder.layers.3.self_attn", "projector"], True),
        ("Cosmos3-Edge", ["gate_proj"], False),
        ("Cosmos3-Edge", ["qkv"], False),
    ],
)  # fmt: skip
def test_adapters_must_match_a_layer(model, layers, legal):
    lora = {"r": 8, "lora_alpha": 16, "target_modules": layers}
    name = f"hf_model://nvidia/{model}"
    one = found("train", "transformers", policy__lora=lora, policy__model_name_or_path=name)
    assert ("SPEC-LORA-LAYERS" not in one) == legal


def test_every_linear_layer_can_have_an_adapter(tiny_model):
    shapes = qwen3_vl.expected_tensors(files.read_json(tiny_model / "config.json"))
    linear = (name for name, shape in shapes.items() if len(shape) == 2 and "embed" not in name)
    names = [name.removesuffix(".weight") for name in linear]
    parts = {name.split(".", cut)[-1] for name in names for cut in range(name.count(".") + 1)}
    assert parts >= {"linear_fc1", "blocks.0.mlp.linear_fc1", "1.mlp.gate_proj"}
    one = found("train", policy__lora={"r": 8, "lora_alpha": 16, "target_modules": sorted(parts)})
    assert "SPEC-LORA-LAYERS" not in one, one["SPEC-LORA-LAYERS"].message


@pytest.mark.parametrize(
    ("engine", "by"), [("transformers", True), ("transformers", "folder"), ("tao", True)]
)
def test_a_finished_run_is_not_resumed_and_one_whose_model_is_missing_is(tmp_path, engine, by):
    run = tmp_path / "20260101000000"
    policy = (write_state_of_cosmos_rl if engine == "tao" else write_own_state)(run, 4)
    changes = {"train__output_dir": str(tmp_path), "train__max_num_steps": 4}
    changes["train__resume"] = str(policy) if by == "folder" else by
    assert "SPEC-RESUME-DONE" not in found("train", engine, **changes)
    model = run / "safetensors" / "step_4"
    write_model(model)
    done = found("train", engine, **changes)["SPEC-RESUME-DONE"]
    assert str(model) in done.message
    assert str(done.fix) == f"scripts/select_checkpoint.py {tmp_path}"
    (model / "tokenizer.json").unlink()
    assert "SPEC-RESUME-DONE" not in found("train", engine, **changes)


def write_own_state(run, step):
    """The folder to resume from, which tells how many steps there are to be: `step`."""
    policy = run / "checkpoints" / f"step_{step}" / "policy"
    write_state(policy, step, step)
    return policy


def write_state_of_cosmos_rl(run, step):
    """The same of cosmos-rl, whose states do not tell that."""
    policy = write_own_state(run, step)
    (policy / "trainer_state.json").unlink()
    for part in ("model", "optimizer", "scheduler", "extra_info"):
        (policy / f"{part}_rank_0.pth").touch()
    return policy


def test_a_run_of_cosmos_rl_gets_no_further_steps_when_more_are_asked_for(tmp_path, facts):
    """20 records in batches of 4: 5 steps an epoch."""
    run = tmp_path / "20260101000000"
    policy = write_state_of_cosmos_rl(run, 5)
    write_model(run / "safetensors" / "step_5")
    changes = {"train__output_dir": str(tmp_path), "train__resume": True, "train__epoch": 3}
    for before, is_done in (
        ({"epoch": 1, "max_num_steps": None}, True),
        ({"epoch": 3, "max_num_steps": 5}, True),
        ({"epoch": 2, "max_num_steps": None}, False),
        ({}, False),
    ):
        files.write_json(policy / "cosmos_config", {"train": before})
        told = found("train", "cosmos-rl", facts=facts, **changes)
        assert ("SPEC-RESUME-DONE" in told) == is_done


def test_an_invalid_value_silences_the_rules_that_read_it_and_no_others(facts):
    changes = {"train__train_batch_per_replica": "many", "train__train_policy__mini_batch": 3}
    one = found("train", train__compile=True, **changes)
    assert "SPEC-QWEN3-COMPILE" in one
    assert "SPEC-BATCH-MULTIPLE" not in one
    assert one["SPEC-VALUE"].where == "train.train_batch_per_replica"
    # Steps are counted once, for another rule: who uses them has read the batch all the same.
    assert "SPEC-SAVE-NEVER" in found("train", facts=facts)
    assert "SPEC-SAVE-NEVER" not in found("train", facts=facts, **changes)


def test_every_engine_that_has_not_the_action_is_an_error_that_names_those_that_have():
    every = {"train", "evaluate", "inference", "quantize"}
    table = {"tao": every, "cosmos-rl": {"train", "grpo"}, "transformers": every}
    for engine, actions in table.items():
        for action in bundle.ACTIONS:
            wrong = found(action, engine).get("SPEC-ENGINE-ACTION")
            assert bool(wrong) == (action not in actions)
            have = [name for name in table if action in table[name]]
            assert not wrong or all(name in wrong.message for name in have)


# ---- with dataset facts --------------------------------------------------------------------------


@pytest.fixture
def facts(tmp_path):
    """20 records, one with a clip of 6 frames."""
    return write_facts(tmp_path, 20, [64] * 19 + [6])


def most_tokens(facts, action, **view):
    """Of the longest record, as the finding about it says."""
    told = found(action, "cosmos-rl", facts=facts, **view | {"policy__model_max_length": 512})
    return int(re.search(r"up to (\d+) tokens", told["SPEC-LENGTH-SAMPLE"].message)[1])


def test_a_record_may_be_as_long_as_the_limit(facts):
    view = {"custom__vision__nframes": 6}
    most = most_tokens(facts, "train", **view)
    for limit, is_told in ((most, False), (most - 1, True)):
        told = found("train", facts=facts, policy__model_max_length=limit, **view)
        assert ("SPEC-LENGTH-SAMPLE" in told) == is_told


def test_a_model_has_positions_for_the_longest_record_and_its_answer(facts):
    view = {"custom__vision__nframes": 6}
    room = 262144 - most_tokens(facts, "grpo", rollout__max_response_length=1, **view)
    for answer, fix in ((room, {"policy.model_max_length": 262144}), (room + 1, {})):
        told = found("grpo", "cosmos-rl", facts=facts, policy__model_max_length=300000,
                     rollout__max_response_length=answer, **view)  # fmt: skip
        assert told["SPEC-LENGTH-POSITIONS"].fix.changes == fix


def test_contradictory_sampling_beside_facts_is_one_finding_among_others(facts):
    one = found("train", facts=facts, custom__vision__fps=2, train__compile=True)
    assert one.keys() >= {"SPEC-FRAMES-ONE", "SPEC-QWEN3-COMPILE"}
    one = found("train", facts=facts, custom__vision__nframes="many")
    assert not {"SPEC-FRAMES-CLIP", "SPEC-LENGTH-SAMPLE"} & one.keys()


def test_sampling_by_fps_with_engine_tao_wants_the_rate_of_every_record(tmp_path):
    some = write_facts(tmp_path, 3, video_fps=[8.0, None, 0.0])
    by_fps = {"facts": some, "custom__vision": {"fps": 2.0}}
    finding = found("train", "tao", **by_fps)["SPEC-FPS-RATES"]
    assert finding.severity == f.ERROR and finding.data["record_ids"] == ["r1", "r2"]
    assert finding.fix.changes == {"custom.vision.nframes": 8, "custom.vision.fps": None}
    assert "SPEC-FPS-RATES" not in found("train", "transformers", **by_fps)
    by_count = by_fps | {"custom__vision": {"nframes": 8}}
    assert "SPEC-FPS-RATES" not in found("train", "tao", **by_count)
    rated = {"facts": write_facts(tmp_path, 3, video_fps=[8.0] * 3), "custom__vision": {"fps": 2.0}}
    assert "SPEC-FPS-RATES" not in found("train", "tao", **rated)


def test_engine_tao_evaluates_no_videos_of_pictures(tmp_path):
    facts = write_facts(tmp_path, 3, pictures=["", "list", "folder"])
    finding = found("evaluate", "tao", facts=facts)["SPEC-PICTURES"]
    assert finding.severity == f.ERROR and finding.data["record_ids"] == ["r1", "r2"]
    assert str(finding.fix) == "--engine transformers"
    for action, engine in (("evaluate", "transformers"), ("train", "tao")):
        assert "SPEC-PICTURES" not in found(action, engine, facts=facts)
    clips = write_facts(tmp_path, 3)
    assert "SPEC-PICTURES" not in found("evaluate", "tao", facts=clips)


@pytest.mark.parametrize(
    ("model", "vision", "refused"),
    [  # qwen-vl-utils 0.0.14: 128 tokens of 32 x 32 or 28 x 28 pixels for a frame
        ("Cosmos-Reason2-8B", {"max_pixels": 131071}, True),
        ("Cosmos-Reason2-8B", {"max_pixels": 131072}, False),
        ("Cosmos-Reason1-7B", {"max_pixels": 100351}, True),
        ("Cosmos-Reason1-7B", {"max_pixels": 100352}, False),
        ("Cosmos-Reason2-8B", {"max_pixels": 8192, "min_pixels": 8192}, False),
        ("Cosmos-Reason2-8B", {"max_pixels": 8192, "min_pixels": 8193}, True),
        ("Cosmos-Reason2-8B", {"max_pixels": 8192, "resized_height": 64, "resized_width": 64},
         False),
        ("Cosmos-Reason2-8B", {"max_pixels": 8192, "resized_height": 64}, True),
    ],
)  # fmt: skip
def test_the_floor_of_the_sampler_is_known_before_a_clip_is_read(facts, model, vision, refused):
    model = f"nvidia/{model}"
    for action, table in (("evaluate", "vision__"), ("train", "custom__vision__")):
        changes = {MODEL_KEYS[action]: model}
        changes |= {table + name: value for name, value in vision.items()}
        assert ("SPEC-VISION-PIXELS" in found(action, "transformers", **changes)) == refused
        if action == "evaluate":
            assert "SPEC-VISION-PIXELS" not in found(action, "tao", **changes)
    options = sampling.VisionOptions(**vision)
    try:
        sampling.frame_size(480, 640, 4, options, sampling.patch_size(model))
    except f.Failure as failure:
        assert refused and failure.findings[0].id == "SPEC-VISION-PIXELS"
    else:
        assert not refused


def test_images_have_a_lower_floor(tmp_path):
    small = {"vision__max_pixels": 4096, "model_path": "nvidia/Cosmos-Reason2-8B"}
    assert "SPEC-VISION-PIXELS" in found("inference", "transformers", **small)
    assert "SPEC-VISION-PIXELS" not in found("inference", "transformers", type="image", **small)
    facts = write_facts(tmp_path, 3)
    small = {"custom__vision__max_pixels": 4096}
    assert "SPEC-VISION-PIXELS" in found("train", facts=facts, **small)
    without_clips = files.read_json(facts) | {"media": {"frames": {"max": None}}}
    files.write_json(facts, without_clips)
    assert "SPEC-VISION-PIXELS" not in found("train", facts=facts, **small)


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_popular_pixels_suit_every_model(action):
    params = bundle.skill_info()["spec_params"][action]
    key = f"{params['vision']}.max_pixels"
    for pixels in document.keys(action)[key]["popular"]:
        for model in bundle.skill_info()["models"]:
            table = changed(action, {key: pixels, params["model"]: model})
            told = {one.id for one in rules.check(action, "transformers", table)}
            assert "SPEC-VISION-PIXELS" not in told


def test_reasoning_that_would_be_left_out_is_told_and_trained_when_asked_for(facts):
    files.write_json(facts, files.read_json(facts) | {"reasoning_beside": 5})
    mode = "custom__train_dataset__response_mode"
    advised = {"tao": "think", "transformers": "think", "cosmos-rl": "build_dataset.py"}
    for engine, fix in advised.items():
        assert fix in str(found("train", engine, facts=facts)["SPEC-REASONING"].fix)
    assert "SPEC-REASONING" not in found("train", facts=facts, **{mode: "think"})
    assert "SPEC-ENGINE-KEY" not in found("train", "transformers", facts=facts, **{mode: "think"})
    assert "SPEC-REASONING-NONE" not in found("train", facts=facts, **{mode: "think"})
    files.write_json(facts, files.read_json(facts) | {"reasoning_beside": 0})
    assert found("train", facts=facts, **{mode: "think"})["SPEC-REASONING-NONE"].fix
    assert "SPEC-REASONING-NONE" not in found("train", facts=facts)
    files.write_json(facts, files.read_json(facts) | {"reasoning_beside": 5})
    steps = []
    for one in ("answer", "think", "hybrid"):
        spec = changed("train", {mode.replace("__", "."): one})
        steps.append(of_sound_values("train", "tao", spec, facts).steps)
    assert steps == [10, 10, 20]


def test_a_smaller_batch_is_offered_before_more_epochs(facts):
    """20 records x 10 epochs: 10 steps of 20 records, 20 steps of 10."""
    batch = {"train__train_batch_per_replica": 20, "train__train_policy__mini_batch": 4}
    finding = found("train", facts=facts, train__epoch=10, **batch)["SPEC-STEPS-FEW"]
    assert finding.fix.changes == {
        "train.train_batch_per_replica": 10,
        "train.train_policy.mini_batch": 2,
    }
    assert "--global-batch 10, or train.epoch=20, is enough" in finding.message
    batch = {"train__train_batch_per_replica": 10, "train__train_policy__mini_batch": 2}
    assert "SPEC-STEPS-FEW" not in found("train", facts=facts, train__epoch=10, **batch)


def test_prompt_and_answers_of_reinforcement_must_fit_together(facts):
    short = {"custom__vision__nframes": 6, "policy__model_max_length": 10240}

    def told(answer, **more):
        asked = short | {"rollout__max_response_length": answer} | more
        return found("grpo", "cosmos-rl", facts=facts, **asked).get("SPEC-LENGTH-SAMPLE")

    assert not told(1024)
    (longer,) = told(10000).fix.changes.values()
    assert not told(10000, policy__model_max_length=longer)


def test_no_records_are_no_steps(tmp_path):
    finding = found("train", facts=write_facts(tmp_path, 0))["SPEC-STEPS-ZERO"]
    assert "no records" in finding.message and not str(finding.fix)


def test_the_patch_of_the_model_counts_for_every_action():
    clips = {"kind": ["video"], "height": [1080], "width": [1920], "frames": [64], "fps": [8.0]}
    tables = arrow.table(clips), arrow.table({"id": ["a"], "text_tokens": [9], "clips": [[0]]})
    for action in bundle.ACTIONS:
        key = bundle.skill_info()["spec_params"][action]["model"]
        costs = set()
        for model in ("nvidia/Cosmos-Reason1-7B", "nvidia/Cosmos-Reason2-8B"):
            spec = document.with_defaults(action, changed(action, {key: model}))
            costs.add(record_tokens.tokens_for_spec(tables, spec)[0].total)
        assert len(costs) == 2, action


def test_facts_of_other_data_are_noticed(facts):
    mine = {"custom__train_dataset__annotation_path": "/other/annotations.json"}
    assert "SPEC-FACTS-OTHER" in found("train", facts=facts, **mine)
    mine = {"custom__train_dataset__annotation_path": "/data/annotations.json"}
    assert "SPEC-FACTS-OTHER" not in found("train", facts=facts, **mine)


@pytest.mark.parametrize(
    "content", ['{"records": "many"}', "[]", '{"schema_version": 2, "records": 1}', "{broken"]
)
def test_other_files_are_no_facts(tmp_path, content):
    (tmp_path / "facts.json").write_text(content)
    with pytest.raises(f.Failure) as failure:
        found("train", facts=tmp_path / "facts.json")
    assert failure.value.exit_code == f.EXIT_BAD_INPUT


@given(st.integers(1, 500), st.integers(1, 16), st.integers(1, 8), st.booleans(), st.integers(1, 4))
def test_steps_are_those_of_a_sampler_that_deals_and_batches(
    records, batch, ranks, drop_last, epochs
):
    dealt = [list(range(records))[rank::ranks] for rank in range(ranks)]
    longest = max(len(share) for share in dealt)  # the others are padded to it
    starts = range(0, longest, batch)
    steps = epochs * sum(not drop_last or start + batch <= longest for start in starts)
    changes = {
        "train.train_batch_per_replica": batch,
        "train.epoch": epochs,
        "policy.parallelism.dp_shard_size": ranks,
        "train.train_policy.dataloader_drop_last": drop_last,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "facts.json")
        files.write_json(path, {"schema_version": 1, "records": records})
        assert Case("train", "tao", changed("train", changes), path).steps == steps
    assert schedule.steps_per_epoch(records, batch, ranks, drop_last) * epochs == steps


@given(st.data())
def test_no_legal_values_make_a_rule_raise(data):
    action = data.draw(st.sampled_from(bundle.ACTIONS))
    known = document.keys(action)
    chosen = data.draw(st.lists(st.sampled_from(sorted(known)), max_size=6, unique=True))
    table = changed(action, data.draw(legal_values(known)(chosen)))
    engine = data.draw(st.sampled_from(bundle.ENGINES))
    gpus = data.draw(st.sampled_from([None, 1, 8]))
    assert all(finding.message for finding in rules.check(action, engine, table, None, gpus, 2))


def test_epochs_that_a_limit_of_steps_cuts_are_beyond_the_run(facts):
    """20 records in batches of 4: 5 steps an epoch."""
    changes = {"train__max_num_steps": 3, "validation__enable": True}
    epochs = {"train__ckpt__save_freq_in_epoch": 1, "validation__freq_in_epoch": 1}
    one = found("train", facts=facts, **changes, **epochs)
    save, validation = one["SPEC-SAVE-NEVER"], one["SPEC-VALIDATION-NEVER"]
    assert "3 steps)" in save.message and "3 steps)" in validation.message
    assert validation.fix.changes == {"validation.freq_in_epoch": None, "validation.freq": 1}
    whole = found("train", facts=facts, **epochs, validation__enable=True)
    assert not whole.keys() & {"SPEC-SAVE-NEVER", "SPEC-VALIDATION-NEVER"}


def test_several_replicas_take_a_batch_each(facts):
    """cosmos-rl deals the batch of a replica to its ranks; with one replica each rank takes one."""
    spec = {"train.train_batch_per_replica": 4, "policy.parallelism.dp_shard_size": 2}
    assert Case("train", "cosmos-rl", changed("train", spec), facts).steps_per_epoch == 3
    spec["policy.parallelism.n_init_replicas"] = 5
    case = Case("train", "cosmos-rl", changed("train", spec), facts)
    assert (case.ranks, case.global_batch, case.steps_per_epoch) == (5, 20, 1)
    assert Case("train", "transformers", changed("train", spec), facts).ranks == 2


def test_a_zero_is_taken_away_where_it_means_off():
    for value, changes in ((0, {"validation.freq_in_epoch": None}), (-3, {})):
        one = found("train", validation__freq_in_epoch=value)["SPEC-VALUE"]
        assert (one.fix.changes, one.fix.sure) == (changes, False)


def test_a_quantization_without_data_has_no_length_to_keep(facts):
    id, changes = "SPEC-LENGTH-CALIBRATION", {"quantize__max_sequence_length": 1024}
    assert id in found("quantize", "tao", facts=facts, **changes)
    assert id not in found("quantize", "transformers", facts=facts, **changes)
    changes["quantize__quantization_scheme"] = "NVFP4"
    assert id in found("quantize", "transformers", facts=facts, **changes)


def test_fewer_batches_are_a_fix_where_the_spec_leaves_the_prefetch_to_torch():
    table = document.template("train")
    document.set_value(table, lengths.LOADERS, 4)
    document.delete(table, lengths.PREFETCH)
    fix = lengths.fewer_batches(Case("train", "tao", table))
    assert fix.changes == {lengths.LOADERS: 1, lengths.PREFETCH: 1}


@pytest.mark.parametrize("key", ["freeze_pattern", "trainable_pattern"])
def test_a_pattern_in_no_parameter_of_a_known_model_is_told(
    tiny_model, tiny_reason1, tiny_edge_model, key
):
    def said(model, patterns, engine="transformers", **changes):
        changes |= {"policy__model_name_or_path": str(model), f"policy__{key}": patterns}
        return found("train", engine, **changes).get("SPEC-PATTERN-NOTHING")

    sound = (
        "visual", "norm", r"^lm_head", "^model.visual", r"language_model\.layers\.[01]\.",
        r"language_model\.norm", "language_model.embed_tokens",
    )  # fmt: skip
    for model in (tiny_model, tiny_reason1, tiny_edge_model):
        one = said(model, ["visual", "vision_tower"])
        assert one.severity == f.WARNING and "'vision_tower'; names begin" in one.message
        assert "model.visual" in one.message and not one.fix
        for pattern in sound:
            assert said(model, [pattern]) is None, (model, pattern)
    assert said(tiny_reason1, ["^visual"]) is None  # as it is stored
    assert said(tiny_model, ["^visual"])
    assert said(tiny_model, ["^model.model.visual"], "cosmos-rl") is None
    assert said(tiny_model, ["^model.model.visual"])
    assert said(tiny_model, ["visual.*lora_"], policy__lora=LORA_TABLE) is None
    assert said("nvidia/Cosmos-Reason2-8B", ["vision_tower"]) is None  # its names are not known


@pytest.mark.parametrize(
    ("model", "targets", "patterns", "is_wrong"),
    [
        ("nvidia/Cosmos-Reason1-7B", ["q_proj"], ["language_model"], True),
        ("nvidia/Cosmos-Reason1-7B", ["q_proj"], [r"^model\.layers"], True),  # as it is stored
        ("nvidia/Cosmos-Reason2-8B", ["q_proj"], [r"^model\.layers"], False),
        ("nvidia/Cosmos-Reason2-8B", "all-linear", ["language_model"], False),
        ("nvidia/Cosmos-Reason2-8B", "all-linear", ["language_model", "visual"], True),
        ("nvidia/Cosmos-Reason2-8B", ["q_proj", "qkv"], [r"layers\.\d\.", "visual"], False),
        ("nvidia/Cosmos-Reason2-8B", ["q_proj"], [r"q_proj\.weight"], False),  # of the base
        ("/data/unseen", ["q_proj"], ["language_model"], False),
    ],
)
def test_a_pattern_that_freezes_every_adapter_is_an_error(model, targets, patterns, is_wrong):
    def said(**lora):
        changes = {
            "policy__model_name_or_path": model,
            "policy__lora": LORA_TABLE | {"target_modules": targets} | lora,
            "policy__freeze_pattern": patterns,
        }
        return found("train", "transformers", **changes).get("SPEC-NOTHING-TRAINABLE")

    one = said()
    assert bool(one) == is_wrong
    if one:
        assert one.fix.changes == {"policy.freeze_pattern": None}
    assert said(modules_to_save=["lm_head"]) is None
