"""Training configs of NVIDIA's cosmos-framework (`--sft-toml`), which no engine here runs, read
here; cosmos_framework_export.py writes one.

Its TOML is laid over an experiment, registered Python that holds the data, the frames and what is
frozen; what the TOML does not say and NVIDIA's own experiments do not tell is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.spec import document
from cosmos_reason.spec.keys import BATCH, RATE

ID = "SPEC-FRAMEWORK"
NAME = "cosmos-framework"
VLM = "vlm"  # [job].task of what trains the reasoner
UNSET = "???"  # filled in on its command line
MODEL, LENGTH = "policy.model_name_or_path", "policy.model_max_length"
SHARDS, REPLICAS = "policy.parallelism.dp_shard_size", "policy.parallelism.dp_replicate_size"
MINI_BATCH, STEPS = "train.train_policy.mini_batch", "train.max_num_steps"
MOST_EPOCHS = 10_000  # of the schema; max_iter ends the run before
FREEZE, TRAINABLE = "policy.freeze_pattern", "policy.trainable_pattern"
# Their key -> ours of one meaning. Without one of these the experiment decides.
ASKED = {
    "optimizer.lr": RATE,
    "optimizer.betas": "train.optm_betas",
    "optimizer.weight_decay": "train.optm_weight_decay",
    "scheduler.warm_up_steps": "train.optm_warmup_steps",
    "scheduler.f_start": "train.optm_warmup_start_factor",
    "scheduler.f_min": "train.optm_min_lr_factor",
    "trainer.max_iter": STEPS,
    "trainer.callbacks.grad_clip.clip_norm": "train.optm_grad_norm_clip",
    "checkpoint.save_iter": "train.ckpt.save_freq",
    "dataloader_train.max_sequence_length": LENGTH,
}
# The same, where ours has a default that trains alike.
TAKEN = {
    "model.precision": "train.param_dtype",
    "model.compile.enabled": "train.compile",
    "model.parallelism.context_parallel_shard_degree": "policy.parallelism.cp_size",
    "job.project": "logging.project_name",
    "job.group": "logging.group_name",
    "job.name": "logging.experiment_name",
}
# Read below, each in its own way.
READ = {
    "job.task", "job.experiment", "job.wandb_mode", "model.lora_enabled", "model.lora_rank",
    "model.lora_alpha", "model.lora_target_modules", "model.backbone.model_name",
    "model.backbone.safetensors_path", "model.parallelism.data_parallel_shard_degree",
    "model.parallelism.data_parallel_replicate_degree", "model.activation_checkpointing.mode",
    "model.ema.enabled", "optimizer.keys_to_select", "scheduler.cycle_lengths", "scheduler.f_max",
    "trainer.grad_accum_iter", "checkpoint.load_path", "dataloader_train.max_samples_per_batch",
}  # fmt: skip
# Without effect on what task "vlm" computes: tables, or keys, which it drops or which tell how.
SILENT = (
    "job.upload_reproducible_setup", "model.max_num_tokens_after_packing", "model.tokenizer",
    "model.joint_attn_implementation", "model.attn_implementation", "model.ema.rate",
    "model.ema.iteration_shift", "model.parallelism.cfg_parallel_shard_degree",
    "model.compile.compile_dynamic", "model.activation_checkpointing.save_ops_regex",
    "model.activation_checkpointing.preserve_rng_state",
    "model.activation_checkpointing.determinism_check", "optimizer.eps", "optimizer.fused",
    "scheduler.verbosity_interval", "trainer.distributed_parallelism", "trainer.logging_iter",
    "trainer.callbacks.compile_tokenizer", "trainer.callbacks.grad_clip.force_finite",
    "dataloader_train.seed", "dataloader_train.max_caption_tokens",
)  # fmt: skip
# What changes a training and has no word here.
LEFT = ("optimizer.lr_multipliers", "checkpoint.keys_to_skip_loading", "custom")
# NVIDIA's own experiments for the reasoner, which train all but the vision tower.
FRAMES = {"custom.vision.fps": 2, "custom.vision.max_frames": 32}
QWEN_TOWER, EDGE_TOWER = r"visual\.(patch_embed|blocks|pos_embed)", r"visual\."
EXPERIMENTS = {
    "videophy2_sft_nano": FRAMES | {FREEZE: [QWEN_TOWER]},
    "videophy2_sft_super": FRAMES | {FREEZE: [QWEN_TOWER]},
    "videophy2_sft_edge": FRAMES | {FREEZE: [EDGE_TOWER]},
}


def converted(
    table: Mapping, where: str, said: Collection[str], tuning: str = ""
) -> tuple[dict[str, object], list[Finding]]:
    """Return our keys with what a config says, and the findings about it: errors where it cannot
    be taken over.

    `said`: keys and flags of the command line, which win. `tuning`: what --tuning says; "" for
    nothing.
    """
    theirs = {
        key: value
        for key, value in document.by_key(dict(table)).items()
        if not isinstance(value, dict) and value not in (UNSET, "")
    }
    task = theirs.get("job.task", "vfm")
    if task != VLM:
        message = (
            f"got a config of {NAME} of [job].task = {str(task)[:50]!r}, expected {VLM!r}: others "
            "train the generator of videos, and what is trained here is the reasoner"
        )
        return {}, [findings.error(ID, where, message)]
    if theirs.get("model.lora_enabled") and not tuning:
        message = (
            f"got lora_enabled = true under [job].task = {VLM!r} in a config of {NAME}, which "
            "drops it there: that run trains all weights. --tuning lora trains the adapters that "
            "the config says, --tuning full what it does"
        )
        return {}, [findings.error(ID, where, message, Fix(flags={"--tuning": "lora"}))]
    values, problems = _values(theirs, said, tuning)
    known = {*ASKED, *TAKEN, *READ}
    tables = (*SILENT, *LEFT)
    unknown = [
        key
        for key in theirs
        if key not in known and not any(key == one or key.startswith(f"{one}.") for one in tables)
    ]
    problems += [f"it refuses {', '.join(unknown)} itself"] if unknown else []
    if problems:
        message = f"got a config of {NAME}: {'; '.join(problems)}"
        return {}, [findings.error(ID, where, message)]
    return values, _told(theirs, where, values)


def _values(
    theirs: Mapping, said: Collection[str], tuning: str
) -> tuple[dict[str, object], list[str]]:
    """Return our keys with their values, and what stands against taking them over."""
    experiment = theirs.get("job.experiment")
    values = dict(EXPERIMENTS.get(experiment, {})) if isinstance(experiment, str) else {}
    absent = []
    for key, ours in (ASKED | TAKEN).items():
        if key in theirs:
            values[ours] = _only(theirs[key]) if key.startswith("scheduler.") else theirs[key]
        elif key in ASKED and ours not in said:
            absent.append(f"--set {ours}=VALUE")
    problems = [
        f"{key} names {len(value)} cycles, and a run here has one"
        for key, value in theirs.items()
        if key.startswith("scheduler.") and isinstance(value, list) and len(value) != 1
    ]
    if _only(theirs.get("scheduler.f_max", 1.0)) != 1.0 and RATE not in said:
        absent.append("--set train.optm_lr=VALUE (scheduler.f_max multiplies it)")
    # A step there is `grad_accum_iter` batches of at most `max_samples_per_batch` records.
    sizes = [
        theirs.get(key)
        for key in ("trainer.grad_accum_iter", "dataloader_train.max_samples_per_batch")
    ]
    if all(type(size) is int and size > 0 for size in sizes):
        values[BATCH], values[MINI_BATCH] = sizes[0] * sizes[1], sizes[1]
    elif not {"--global-batch", BATCH} & set(said):
        absent.append("--global-batch N")
    # -1 stands for as many as torchrun starts.
    shards = theirs.get("model.parallelism.data_parallel_shard_degree", -1)
    replicas = theirs.get("model.parallelism.data_parallel_replicate_degree", 1)
    if type(shards) is int and shards > 0:
        values[SHARDS] = shards
        values[REPLICAS] = max(replicas, 1) if type(replicas) is int else replicas
    elif not {"--gpus-per-node", SHARDS} & set(said):
        absent.append("--gpus-per-node N")
    # Weights of a folder (`safetensors_path`) count before those of the name. A DCP folder to go on
    # from is read by nobody else.
    weights = theirs.get("model.backbone.safetensors_path")
    model = weights or theirs.get("model.backbone.model_name")
    if not {"--model", MODEL} & set(said):
        if model and "checkpoint.load_path" not in theirs:
            values[MODEL] = model
        elif model:
            absent.append(
                "--model DIR, the export of the checkpoint that checkpoint.load_path names"
            )
        else:
            absent.append("--model NAME")
    # Which weights are trained.
    selected = theirs.get("optimizer.keys_to_select")
    if tuning == "lora":
        values.pop(FREEZE, None)  # which adapters do not go with
        if theirs.get("model.lora_enabled"):
            for key, name in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
                if f"model.{key}" in theirs:
                    values[f"policy.lora.{name}"] = theirs[f"model.{key}"]
            targets = theirs.get("model.lora_target_modules")
            if isinstance(targets, str):
                values["policy.lora.target_modules"] = targets.split(",")
    elif isinstance(selected, list) and selected:
        values.pop(FREEZE, None)
        values[TRAINABLE] = [re.escape(str(part)) for part in selected]
    elif not tuning and not {FREEZE, TRAINABLE} & {*values, *said}:
        absent.append("--tuning full, or --set policy.freeze_pattern=PATTERNS of what it freezes")
    if not any(key.startswith("custom.vision.") for key in {*values, *said}):
        absent.append("--set custom.vision.fps=VALUE or nframes")
    values |= {
        "train.epoch": MOST_EPOCHS,
        "train.optm_decay_type": "cosine",
        "train.ckpt.save_freq_in_epoch": 0,
        "policy.model_gradient_checkpointing": (
            theirs.get("model.activation_checkpointing.mode", "full") != "none"
        ),
    }
    if theirs.get("job.wandb_mode", "disabled") != "disabled":
        values["logging.logger"] = ["console", "wandb"]
    if absent:
        problems.append(
            f"its experiment ({experiment or 'none named'}), registered Python, says what its TOML "
            f"does not: say it here with {', '.join(absent)}"
        )
    return values, problems


def _only(value):
    """Return the value of a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _told(theirs: Mapping, where: str, values: Mapping) -> list[Finding]:
    """Return a warning about what is not taken over."""
    left = [key for key in theirs if key.startswith(LEFT) and theirs[key] not in ([], {})]
    if theirs.get("model.ema.enabled"):
        left.append("model.ema (train.ema_enable keeps another average)")
    cycle = _only(theirs.get("scheduler.cycle_lengths"))
    if cycle is not None and cycle != values.get(STEPS, cycle):
        left.append(f"scheduler.cycle_lengths = {cycle} (the cosine here ends with the run)")
    message = f"got a config of {NAME}, read as a train spec; its data are named with --train-root"
    if not left:
        return [findings.info(ID, where, message)]
    return [findings.warning(ID, where, f"{message}; not taken over: {', '.join(left)}")]
