"""Shared by the tests of specs: what breaks each rule, build_spec.py in this process, strategies for legal values."""

import shlex
from pathlib import Path

import build_spec
from hypothesis import strategies as st

from cosmos_reason import findings as f
from cosmos_reason import spec

REASON1 = "hf_model://nvidia/Cosmos-Reason1-7B"  # a model cosmos-rl has a class of its own for
LORA = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
GRID, POLICY, CKPT = "policy__parallelism__", "train__train_policy__", "train__ckpt__"
# (rule, action, engine, what breaks it)
BREAKS = [
    ("SPEC-MODEL-OMNI", "train", "tao", {}),
    ("SPEC-GPUS", "train", "tao", {"gpus": 8}),
    ("SPEC-GPUS", "train", "tao", {"gpus": 8, GRID + "dp_shard_size": 8, GRID + "tp_size": 2}),
    ("SPEC-GPUS-GRPO", "grpo", "cosmos-rl", {"gpus": 2}),
    ("SPEC-GPUS-IDLE", "grpo", "cosmos-rl", {"gpus": 8}),
    ("SPEC-COLOCATED", "grpo", "cosmos-rl", {"mode": "colocated", GRID + "dp_shard_size": 1}),
    ("SPEC-GPUS-FEW", "train", "tao", {"gpus": 1}),
    ("SPEC-GPUS-FEW-GRPO", "grpo", "cosmos-rl", {"gpus": 2}),
    ("SPEC-QWEN3-COMPILE", "train", "tao", {"train__compile": True}),
    ("SPEC-QWEN3-CONTEXT", "train", "tao", {GRID + "cp_size": 2}),
    ("SPEC-QWEN3-PIPELINE", "train", "tao", {GRID + "pp_size": 2}),
    ("SPEC-REPLICATE-1D", "train", "tao", {GRID + "dp_replicate_size": 2, GRID + "tp_size": 2}),
    ("SPEC-PIPELINE-REPLICATE", "train", "tao", {GRID + "pp_size": 2, GRID + "dp_replicate_size": 2}),
    ("SPEC-PIPELINE-MICRO", "train", "tao", {GRID + "pp_size": 2, GRID + "pp_micro_batch_size": 3}),
    ("SPEC-PIPELINE-OFFLOAD", "train", "tao", {GRID + "pp_size": 2, "train__fsdp_offload": True}),
    ("SPEC-PIPELINE-LORA", "train", "tao", {GRID + "pp_size": 2, "policy__lora": LORA}),
    ("SPEC-EXPERT-TENSOR", "train", "tao", {GRID + "ep_size": 2, GRID + "tp_size": 2}),
    ("SPEC-ASYNC-TP", "train", "tao", {"train__async_tp_enabled": True}),
    ("SPEC-BATCH-MULTIPLE", "train", "tao", {"train__train_batch_per_replica": 10, POLICY + "mini_batch": 4}),
    ("SPEC-BATCH-MESH", "grpo", "cosmos-rl", {"train__train_batch_per_replica": 126}),
    ("SPEC-SAVE-NEVER", "train", "tao", {"train__max_num_steps": 10}),
    ("SPEC-VALIDATION-NEVER", "train", "tao", {"train__max_num_steps": 10, "validation__enable": True}),
    ("SPEC-WARMUP-TWICE", "train", "tao", {"train__optm_warmup_epochs": 1}),
    ("SPEC-WARMUP-FLOAT", "train", "tao", {"train__optm_warmup_steps": 20.0}),
    ("SPEC-WARMUP-ALL", "train", "tao", {"train__optm_warmup_steps": 1.0}),
    ("SPEC-WARMUP-ALL", "train", "tao", {"train__optm_warmup_steps": 50, "train__max_num_steps": 50}),
    ("SPEC-WARMUP-LONG", "train", "tao", {"train__optm_warmup_steps": 20, "train__max_num_steps": 50}),
    ("SPEC-DECAY", "train", "tao", {"train__optm_decay_ratio": 0.5, "train__optm_decay_type": "none"}),
    ("SPEC-RATE-HIGH", "train", "tao", {"train__optm_lr": 1e-3}),
    ("SPEC-SEED", "train", "tao", {"train__deterministic": True, "train__seed": 7}),
    ("SPEC-SAVE-OFF", "train", "tao", {CKPT + "enable_checkpoint": False}),
    ("SPEC-S3-BUCKET", "train", "tao", {CKPT + "upload_s3": "final"}),
    ("SPEC-HUB-NAME", "train", "tao", {CKPT + "upload_hf": True}),
    ("SPEC-RESUME-FOLDER", "train", "tao", {"train__resume": "/out/checkpoints/step_20"}),
    ("SPEC-RESUME-STEPS", "train", "tao", {"train__resume": True}),
    ("SPEC-RESUME-NOTHING", "train", "tao", {"train__resume": True}),
    ("SPEC-STEPS", "train", "tao", {"train__max_num_steps": 100}),
    ("SPEC-MODEL-UNKNOWN", "train", "tao", {"policy__model_name_or_path": "hf_model://nvidia/Cosmos-Reason2-7B"}),
    ("SPEC-SAVE-NEVER", "train", "tao", {CKPT + "save_freq_in_epoch": 5}),
    (
        "SPEC-VALIDATION-OFF",
        "train",
        "tao",
        {"train__max_num_steps": 10, "custom__val_dataset__annotation_path": "/data/a.json"},
    ),
    ("SPEC-RUN-FOLDER", "train", "tao", {"train__timestamp": "mine"}),
    ("SPEC-VALIDATION-DATA", "train", "tao", {"validation__enable": True}),
    ("SPEC-VALIDATION-OFF", "train", "tao", {"custom__val_dataset__annotation_path": "/data/a.json"}),
    ("SPEC-VALIDATION-LOSS", "train", "tao", {"validation__enable": True, POLICY + "dataloader_drop_last": True}),
    ("SPEC-BEST", "train", "tao", {"validation__enable": True, "validation__freq": 15}),
    ("SPEC-BEST", "train", "tao", {"validation__enable": True, CKPT + "save_freq_in_epoch": 1}),
    ("SPEC-CACHE", "train", "tao", {POLICY + "enable_dataset_cache": True}),
    ("SPEC-PREFETCH", "train", "tao", {POLICY + "dataloader_num_workers": 0}),
    ("SPEC-LOGGER", "train", "tao", {"logging__logger": ["wandb"]}),
    ("SPEC-LOGGER", "train", "cosmos-rl", {"logging__logger": ["console", "tao"]}),
    ("SPEC-DATA-TRAIN", "train", "tao", {}),
    ("SPEC-FREEZE", "train", "tao", {"policy__freeze_pattern": ["a"], "policy__trainable_pattern": ["b"]}),
    ("SPEC-PATTERN-FREEZE", "train", "tao", {"policy__freeze_pattern": ["[unclosed"]}),
    ("SPEC-PATTERN", "grpo", "cosmos-rl", {"policy__trainable_pattern": ["good", "(bad"]}),
    ("SPEC-LORA-LAYERS", "train", "tao", {"policy__lora": {**LORA, "target_modules": ["q_proj", "all_linear"]}}),
    ("SPEC-LORA-MERGE", "train", "tao", {"policy__lora": {**LORA, "target_modules": "all-linear"}}),
    ("SPEC-LORA-GRPO-TP", "grpo", "cosmos-rl", {"policy__lora": LORA, GRID + "tp_size": 2}),
    ("SPEC-LORA-GRPO-COMPILE", "grpo", "cosmos-rl", {"policy__lora": LORA, "train__compile": True}),
    ("SPEC-FRAMES-ONE", "train", "tao", {"custom__vision__fps": 2}),
    ("SPEC-FRAMES-ONE", "evaluate", "tao", {"vision__fps": 2}),
    ("SPEC-FRAMES-NONE", "quantize", "tao", {"vision__nframes": None}),
    ("SPEC-FRAMES-BOUNDS", "train", "tao", {"custom__vision__min_frames": 4}),
    ("SPEC-FRAMES-ORDER", "train", "tao", {"custom__vision__min_frames": 9, "custom__vision__max_frames": 8}),
    ("SPEC-VISION-PIXELS", "train", "tao", {"custom__vision__min_pixels": 9000, "custom__vision__max_pixels": 8000}),
    ("SPEC-VISION-PIXELS", "grpo", "cosmos-rl", {"custom__vision__max_pixels": 131071}),
    ("SPEC-VISION-PIXELS", "evaluate", "transformers", {"vision__max_pixels": 4096}),
    ("SPEC-VISION-PIXELS", "inference", "transformers", {"type": "image", "vision__max_pixels": 4095}),
    ("SPEC-VISION-PIXELS", "quantize", "transformers", {"vision__max_pixels": 100}),
    ("SPEC-PIXELS-BUDGET", "train", "tao", {"custom__vision__nframes": 56, "custom__vision__total_pixels": 3774873}),
    ("SPEC-RESIZE-PAIR", "train", "tao", {"custom__vision__resized_height": 320}),
    ("SPEC-LENGTH-LOW", "train", "tao", {"policy__model_max_length": 4096}),
    ("SPEC-ROLLOUT-ROOM", "grpo", "cosmos-rl", {"policy__model_max_length": 4096}),
    ("SPEC-ON-POLICY", "grpo", "cosmos-rl", {POLICY + "on_policy": True, "train__sync_weight_interval": 2}),
    ("SPEC-GRPO-START", "grpo", "cosmos-rl", {}),
    ("SPEC-KL-ZERO", "grpo", "cosmos-rl", {POLICY + "kl_beta": 0.0}),
    ("SPEC-KL-HIGH", "grpo", "cosmos-rl", {POLICY + "kl_beta": 0.5}),
    ("SPEC-ADAPTER-BASE", "evaluate", "tao", {"model__enable_lora": True}),
    ("SPEC-ADAPTER-OFF", "quantize", "tao", {"model__base_model_path": REASON1}),
    ("SPEC-ADAPTER-BASE", "inference", "tao", {"enable_lora": True}),
    ("SPEC-ADAPTER-OFF", "inference", "tao", {"base_model_path": REASON1}),
    ("SPEC-ANSWER-ROOM", "evaluate", "tao", {"evaluation__answer_type": "reasoning", "generation__max_tokens": 64}),
    ("SPEC-ANSWER-LENGTH", "evaluate", "tao", {"model__max_length": 1024}),
    ("SPEC-EVAL-GPUS", "evaluate", "tao", {"model__tp_size": 2}),
    ("SPEC-EVAL-FRAMES", "evaluate", "tao", {"vision__nframes": 16}),
    ("SPEC-DATA-EVAL", "evaluate", "tao", {}),
    ("SPEC-MEDIA", "inference", "tao", {}),
    ("SPEC-PROMPT", "inference", "tao", {}),
    ("SPEC-CALIBRATION", "quantize", "tao", {"quantize__quantization_scheme": "NVFP4"}),
    ("SPEC-CALIBRATION-FEW", "quantize", "tao", {"quantize__num_calibration_samples": 1}),
    ("SPEC-CALIBRATION-LENGTH", "quantize", "tao", {"quantize__max_sequence_length": 2048}),
    ("SPEC-ENGINE-ACTION", "grpo", "tao", {}),
    ("SPEC-ENGINE-KEY", "train", "transformers", {GRID + "tp_size": 2}),
    ("SPEC-CUSTOM-TABLE", "train", "tao", {"custom__mine__a": 1}),
    ("SPEC-KEY-UNKNOWN", "train", "tao", {"custom__visoin__a": 1}),
]


def run(line: str, output: str = "spec.toml") -> tuple[int, list[f.Finding], dict | None]:
    """(exit code, findings, spec or None) of a build_spec.py command line."""
    if f"--spec {output}" not in line:
        Path(output).unlink(missing_ok=True)
    args = build_spec.parser().parse_args([*shlex.split(line), "-o", output])
    try:
        found = build_spec.main(args).findings
        code = 1 if f.has_errors(found) else 0
    except f.Failure as failure:
        found, code = failure.findings, failure.exit_code
    written = spec.load(Path(output)) if Path(output).exists() else None
    assert written is None or code == 0 or f"--spec {output}" in line
    assert written is not None or code
    return code, found, written


def legal(schema: dict):
    """A strategy for the values one key takes."""
    if "anyOf" in schema:
        return st.one_of(*map(legal, schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return st.sampled_from([schema["const"]] if "const" in schema else schema["enum"])
    return {"integer": _integer, "number": _number, "boolean": _boolean, "string": _string}.get(
        schema["type"], _array if schema["type"] == "array" else _object
    )(schema)


def legal_values(known: dict):
    """keys -> a strategy for a table of key -> legal value."""
    return lambda keys: st.fixed_dictionaries({key: legal(known[key]) for key in keys})


def _integer(schema):
    step = schema.get("multipleOf", 1)
    low, high = schema.get("minimum", -(2**31)), min(schema.get("maximum", 2**31), 2**53)
    near = st.integers(-(-low // step), min(high, low + 64) // step)
    return st.one_of(near, st.integers(-(-low // step), high // step)).map(lambda n: n * step)


def _number(schema):
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", 1e6)
    return st.floats(
        low,
        high,
        allow_nan=False,
        allow_infinity=False,
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
    )


def _boolean(_):
    return st.booleans()


def _string(schema):
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True).map(lambda text: text.strip("\n"))
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=schema.get("minLength", 0), max_size=30)


def _array(schema):
    most = schema.get("maxItems", 4)
    items = legal(schema["items"])
    return st.lists(items, min_size=schema.get("minItems", 0), max_size=most, unique=schema.get("uniqueItems", False))


def _object(schema):
    names = st.text("abcdef._", min_size=1, max_size=8)
    return st.dictionaries(
        names, legal(schema["additionalProperties"]), min_size=schema.get("minProperties", 0), max_size=3
    )
