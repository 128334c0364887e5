"""A train spec of ours as cosmos-framework reads it: a TOML for `--sft-toml`, and beside it the
experiment that the TOML names (in_container/framework_experiment.py), which reads our data.

Written out only: nothing here launches it, and no GPU has run it.
"""

from __future__ import annotations

import shlex

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.spec import document
from cosmos_reason.spec.cosmos_framework import (
    ASKED,
    FREEZE,
    ID,
    LENGTH,
    MINI_BATCH,
    MODEL,
    NAME,
    REPLICAS,
    SHARDS,
    STEPS,
    TAKEN,
    TRAINABLE,
    VLM,
)
from cosmos_reason.spec.keys import BATCH, DROP_LAST, TRAIN_ANNOTATIONS

EXPERIMENT = "cosmos_reason"  # as in_container/framework_experiment.py registers it
SPEC, TOML, MODULE = "spec.toml", "train.toml", "framework_experiment.py"
QWEN, EDGE = "cosmos", "flash_attention_2"  # attention that takes the masks of the family
DECAY = "train.optm_decay_type"
LISTS = ("scheduler.warm_up_steps", "scheduler.f_start", "scheduler.f_min")
# What the experiment reads of the spec beside it, and what has the same effect there.
READ_BESIDE = (
    "custom.train_dataset", "custom.vision", "custom.extra_keys", FREEZE, TRAINABLE,
    "train.train_policy.system_prompt", "train.train_policy.dataloader_seed",
    "train.train_policy.dataloader_shuffle", "train.train_policy.dataloader_num_workers",
    "train.train_policy.dataloader_prefetch_factor",
)  # fmt: skip
WRITTEN = {
    BATCH, MINI_BATCH, MODEL, SHARDS, REPLICAS, STEPS, DECAY, "train.epoch", "train.compile",
    "policy.model_gradient_checkpointing", "train.train_policy.type", "logging.logger",
    DROP_LAST, "train.ckpt.enable_checkpoint",
    "train.ckpt.save_freq_in_epoch", "train.ckpt.export_safetensors", "train.output_dir",
}  # fmt: skip
# Key -> the only value that the framework trains with, or as (None: absent).
ONLY = {
    "policy.lora": None,
    "policy.parallelism.tp_size": 1,
    "policy.parallelism.pp_size": 1,
    "policy.parallelism.ep_size": 1,
    "policy.parallelism.n_init_replicas": 1,
    "train.optm_name": "AdamW",
    "train.master_dtype": "float32",
    "train.optm_decay_ratio": None,
    "train.resume": False,
    "train.fp8.enable_fp8": False,
    "train.ema_enable": False,
    "train.sequence_packing": False,
    "validation.enable": False,
}


def check(
    spec: dict, steps: int | None, save_every: int | None, has_own_names: bool
) -> list[Finding]:
    """Return an error about each value that cannot be exported, and a warning that lists the others
    that are not.

    `steps` of the run and `save_every` steps: None where they are not known. `has_own_names`: the
    framework's processor knows the model by its name on the Hub.
    """
    found = []
    for key, only in ONLY.items():
        value = document.get(spec, key)
        if value not in (None, only):
            what = "a table" if isinstance(value, dict) else repr(value)
            message = f"got {what}, which {NAME} does not have for the reasoner"
            if key == "policy.lora":
                message += ": it drops LoRA in silence and trains all weights"
            expected = "absent" if only is None else repr(only)
            found.append(findings.error(ID, key, f"{message}; expected {expected}"))
    if document.get(spec, DECAY) not in (None, "cosine", "none"):
        message = f"got {document.get(spec, DECAY)!r}, expected cosine or none for {NAME}"
        found.append(findings.error(ID, DECAY, message))
    if document.get(spec, BATCH) % document.get(spec, MINI_BATCH, 1):
        message = f"got {document.get(spec, BATCH)}, expected a multiple of mini_batch"
        found.append(findings.error(ID, BATCH, message))
    if not steps or not save_every:
        message = f"got no number of steps, which {NAME} counts by: --train-root or --set tells"
        found.append(findings.error(ID, STEPS, message))
    model = document.get(spec, MODEL)
    if not model.startswith("/") and not has_own_names:
        message = (
            f"got {model!r}, expected a folder: {NAME} finds the processor of a reasoner by its "
            "folder, and by few names of the Hub"
        )
        found.append(findings.error(ID, MODEL, message))
    if not document.get(spec, TRAIN_ANNOTATIONS):
        message = "got no training data, which the exported experiment reads: --train-root DIR"
        found.append(findings.error(ID, TRAIN_ANNOTATIONS, message))
    left = _left_out(spec)
    if left:
        message = f"got values that {NAME} has no word for and trains without: {', '.join(left)}"
        found.append(findings.warning(ID, "--export", message))
    return found


def _left_out(spec: dict) -> list[str]:
    """Return the keys of other values than the template's that are not exported."""
    template = document.template("train")
    written = {*ASKED.values(), *TAKEN.values(), *WRITTEN, *ONLY}
    return [
        key
        for key, value in document.items("train", spec)
        if key not in written
        and not key.startswith(READ_BESIDE)
        and document.get(template, key) != value
        and not key.startswith("policy.lora.")
    ]


def toml(spec: dict, steps: int, save_every: int, own_engine: bool) -> dict:
    """Return the TOML's tables for a spec that `check` let pass. `own_engine`: the family is one
    that NVIDIA trains with the framework alone."""
    keys = document.keys("train")
    reports = "wandb" in document.get(spec, "logging.logger", ())
    flat = {
        "job.task": VLM,
        "job.experiment": EXPERIMENT,
        "job.wandb_mode": "online" if reports else "disabled",
        "model.attn_implementation": EDGE if own_engine else QWEN,
        "model.backbone.model_name": document.get(spec, MODEL).removeprefix("hf_model://"),
        "model.ema.enabled": False,
        "model.parallelism.data_parallel_shard_degree": document.get(spec, SHARDS, 1),
        "model.parallelism.data_parallel_replicate_degree": document.get(spec, REPLICAS, 1),
        "model.activation_checkpointing.mode": (
            "full" if document.get(spec, "policy.model_gradient_checkpointing", True) else "none"
        ),
    }  # fmt: skip
    for theirs, ours in (ASKED | TAKEN).items():
        value = document.get(spec, ours, keys[ours]["default"])
        if value is not None:
            flat[theirs] = [value] if theirs in LISTS else value
    # A fraction of the run, as cosmos-rl takes one.
    warm_up = flat["scheduler.warm_up_steps"][0]
    is_share = isinstance(warm_up, float) and warm_up <= 1.0
    flat["scheduler.warm_up_steps"] = [int(warm_up * steps) if is_share else int(warm_up)]
    if document.get(spec, DECAY) in (None, "none"):
        flat["scheduler.f_min"] = [1.0]
    flat |= {
        "scheduler.cycle_lengths": [steps],
        "scheduler.f_max": [1.0],
        "trainer.max_iter": steps,
        "trainer.logging_iter": 1,
        "trainer.grad_accum_iter": document.get(spec, BATCH) // document.get(spec, MINI_BATCH, 1),
        "trainer.callbacks.grad_clip.force_finite": False,
        "checkpoint.save_iter": save_every,
        "dataloader_train.max_samples_per_batch": document.get(spec, MINI_BATCH, 1),
        "dataloader_train.max_sequence_length": document.get(spec, LENGTH),
        "job.name": flat.get("job.name", EXPERIMENT),
    }
    tables: dict = {}
    document.set_values(tables, dict(sorted(flat.items())))
    return tables


def readme(folder: str, scripts: str, processes: int) -> str:
    """Return how the folder is used."""
    module = shlex.quote(f"{folder}/{MODULE}")
    ends = f"--sft-toml {shlex.quote(f'{folder}/{TOML}')}"
    path = shlex.quote(f"{folder}:{scripts}")
    return f"""# For cosmos-framework: rendered, never run

`{TOML}` names the experiment that `{MODULE}` registers; that reads `{SPEC}`: records, frames and
patterns of what is frozen. In a checkout of NVIDIA/cosmos-framework, with PyAV, jsonschema and
PyYAML in its environment:

    PYTHONPATH={path}:. python {module} {ends} --dryrun
    PYTHONPATH={path}:. torchrun --nproc_per_node {processes} {module} {ends}

A step there is grad_accum_iter batches of at most max_samples_per_batch records, whose losses count
alike however many tokens they have; it validates nothing here.
"""
