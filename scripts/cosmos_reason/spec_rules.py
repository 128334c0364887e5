"""The table of rules that cross keys, dataset and hardware: what no schema can say and trainers find out hours later.

A condition reads the spec through the `Case` of rules.py: `c(key)` is a value with defaults, `c.has(key)` whether it is
written. What is checked elsewhere, and what cannot be decided from a spec, is in spec_checks.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason import bundle, models
from cosmos_reason import findings as f
from cosmos_reason import spec_conditions as on
from cosmos_reason.spec_conditions import BATCH, CKPT, DROP, GRID, LORA, MINI, POLICY, RATE, SHARD, WARMUP
from cosmos_reason.spec_values import shown

ANSWER = "rollout.max_response_length"  # room that only grpo has to leave
LATER = "later"  # a warning while a spec is built, an error when it is launched


@dataclass(frozen=True)
class Rule:
    """`when(c)` is falsy when all is well, else true, or a few words with the numbers, or those and record ids.

    `key` is where the finding points ("{vision}", "{model}", "{base}" and "{adapter}" are the action's own). `fix` is a
    value for that key, or a table of changes (None takes a key away), or an argument ("--..."), or a command
    ("scripts/..."), or a function of the case for one of these.
    """

    id: str
    severity: str
    actions: str
    key: str
    reason: str
    when: Callable
    fix: object = None


# ---- the table -----------------------------------------------------------------------------------------------------

E, W, INFO = f.ERROR, f.WARNING, f.INFO
TRAINING = "train grpo"
ANY = "train grpo evaluate inference quantize"
MODELS = "evaluate inference quantize"

RULES = (
    Rule("SPEC-MODEL-OMNI", LATER, ANY, "{model}", "an Omni checkpoint; launch with its converted folder as --model",
         lambda c: c.omni and not c.model.startswith("/"), on.convert),
    Rule("SPEC-MODEL-OMNI-LOCAL", E, ANY, "{model}", "an Omni checkpoint, which no engine here loads; convert it first",
         lambda c: c.omni and c.model.startswith("/"), on.convert),
    Rule("SPEC-MODEL-UNKNOWN", W, ANY, "{model}", "NVIDIA is not known to publish this model",
         lambda c: bool(models.meant_of_nvidia(c.model)), lambda c: f"--model {models.meant_of_nvidia(c.model)[0]}"),
    Rule("SPEC-MODEL-ADAPTER", E, TRAINING, "{model}", "a LoRA adapter; training starts from a whole model",
         lambda c: bool(c.adapter_base), "scripts/select_checkpoint.py OUTPUT_DIR --merge DIR, then --model DIR"),
    # -- layout
    Rule("SPEC-GPUS", E, "train", SHARD, f"{' x '.join(on.POLICY_SIZES)} must be the number of GPUs",
         lambda c: c.gpus and c.policy_gpus != c.gpus and f"layout of {c.policy_gpus}, {c.gpus} GPUs", on.use_all),
    Rule("SPEC-GPUS-GRPO", E, "grpo", SHARD, f"{' x '.join(on.POLICY_SIZES)}, and those of rollout.parallelism unless "
         "colocated, must not exceed the number of GPUs",
         lambda c: c.gpus and c.needed_gpus > c.gpus and f"{c.needed_gpus} needed, {c.gpus} GPUs", on.usual),
    Rule("SPEC-GPUS-IDLE", W, "grpo", SHARD, "some GPUs stay idle",
         lambda c: c.gpus and c.needed_gpus < c.gpus and f"{c.needed_gpus} of {c.gpus} GPUs in use"),
    Rule("SPEC-COLOCATED", E, "grpo", "mode", "colocated needs as many replicas, of as many GPUs, on both sides",
         on.uneven, on.even),
    Rule("SPEC-GPUS-FEW", W, "train", GRID + "dp_shard_size",
         "full fine-tuning of the 7B and 8B models needs at least 2 GPUs, better 4 of 80 GB",
         lambda c: c.gpus == 1 and not c("policy.lora") and "2B" not in c.model, "--tuning lora"),
    Rule("SPEC-GPUS-FEW-GRPO", W, "grpo", SHARD, "at least 4 GPUs are needed: 2 for the policy, 2 for rollout",
         lambda c: c.gpus and c.gpus < 4, "--gpus-per-node 4"),
    Rule("SPEC-QWEN3-COMPILE", E, TRAINING, "train.compile", "cosmos-rl runs Qwen3-VL as a plain Hugging Face model",
         lambda c: c("train.compile") and c.qwen3, False),
    Rule("SPEC-QWEN3-CONTEXT", E, TRAINING, GRID + "cp_size", "context parallelism does not exist for Qwen3-VL models",
         lambda c: c(GRID + "cp_size") > 1 and c.qwen3, on.as_shards("cp_size")),
    Rule("SPEC-QWEN3-PIPELINE", E, TRAINING, GRID + "pp_size", "pipeline stages do not exist for Qwen3-VL models",
         lambda c: c(GRID + "pp_size") > 1 and c.qwen3, on.as_shards("pp_size")),
    Rule("SPEC-REPLICATE-1D", E, TRAINING, SHARD, "replicas with tp_size above 1 need sharding too",
         lambda c: c(SHARD) == 1 < c(GRID + "dp_replicate_size") and c(GRID + "tp_size") > 1 and c.qwen3,
         on.as_shards("tp_size")),
    Rule("SPEC-PIPELINE-REPLICATE", E, TRAINING, GRID + "dp_replicate_size", "excludes pp_size above 1",
         lambda c: c(GRID + "pp_size") > 1 and c(GRID + "dp_replicate_size") > 1, on.as_shards("dp_replicate_size")),
    Rule("SPEC-PIPELINE-MICRO", E, TRAINING, GRID + "pp_micro_batch_size", "must divide train_batch_per_replica",
         lambda c: c(GRID + "pp_size") > 1 and c(BATCH) % c(GRID + "pp_micro_batch_size"), 1),
    Rule("SPEC-PIPELINE-OFFLOAD", E, TRAINING, "train.fsdp_offload", "offload and pp_size above 1 exclude each other",
         lambda c: c(GRID + "pp_size") > 1 and c("train.fsdp_offload"), False),
    Rule("SPEC-PIPELINE-LORA", E, TRAINING, GRID + "pp_size", "LoRA models with pipeline stages cannot be exported",
         lambda c: c(GRID + "pp_size") > 1 and c("policy.lora"), on.as_shards("pp_size")),
    Rule("SPEC-EXPERT-TENSOR", E, TRAINING, GRID + "ep_size", "ep_size and tp_size exclude each other",
         lambda c: c(GRID + "ep_size") > 1 and c(GRID + "tp_size") > 1, 1),
    Rule("SPEC-ASYNC-TP", E, TRAINING, "train.async_tp_enabled", "needs train.compile",
         lambda c: c("train.async_tp_enabled") and not c("train.compile"), False),
    # -- batches and steps
    Rule("SPEC-BATCH-MULTIPLE", E, "train", BATCH, "must be a multiple of mini_batch",
         lambda c: c(BATCH) % c(MINI) and f"mini_batch is {c(MINI)}", lambda c: max(1, c(BATCH) // c(MINI)) * c(MINI)),
    Rule("SPEC-BATCH-MESH", E, "grpo", BATCH, "must be a multiple of dp_shard_size x dp_replicate_size x mini_batch",
         lambda c: c(BATCH) % on.mesh(c) and f"that is {on.mesh(c)}",
         lambda c: max(1, c(BATCH) // on.mesh(c)) * on.mesh(c)),
    Rule("SPEC-STEPS-ZERO", E, "train", BATCH, "no step would run",
         on.zero_steps, lambda c: {DROP: False} if c.facts["records"] else None),
    Rule("SPEC-STEPS-FEW", W, "train", "train.epoch",
         f"below {on.FEW_STEPS} a run hardly trains; take more epochs or data",
         on.few_steps, lambda c: math.ceil(on.FEW_STEPS / c.steps_per_epoch)),
    Rule("SPEC-STEPS", INFO, "train", WARMUP, "how long the learning rate rises",
         lambda c: c.steps and not on.by_epochs(c) and on.warmup_words(c)),
    Rule("SPEC-SAVE-NEVER", W, "train", CKPT + "save_freq", "the run ends before the first save",
         lambda c: c(CKPT + "enable_checkpoint") and on.never(c, CKPT + "save_freq_in_epoch", c.save_interval or 0),
         lambda c: {CKPT + "save_freq_in_epoch": 0, CKPT + "save_freq": max(1, int(c.steps) // 2)} if c.steps else
         {CKPT + "save_freq_in_epoch": 1}),
    Rule("SPEC-VALIDATION-NEVER", E, "train", "validation.freq", "the run ends before the first validation",
         lambda c: c("validation.enable") and on.never(c, "validation.freq_in_epoch", c("validation.freq")),
         lambda c: {"validation.freq_in_epoch": 1} if c("validation.freq_in_epoch") else max(1, int(c.steps) // 2)),
    Rule("SPEC-WARMUP-TWICE", E, "train", "train.optm_warmup_epochs", "optm_warmup_steps is written too; keep one",
         lambda c: c.has("train.optm_warmup_epochs") and c.has(WARMUP),
         lambda c: {WARMUP if c.engine == "tao" else on.WARMUP_EPOCHS: None}),
    Rule("SPEC-WARMUP-FLOAT", E, TRAINING, WARMUP, "a float counts as a fraction up to 1.0; steps are whole numbers",
         lambda c: isinstance(c(WARMUP), float) and c(WARMUP) > 1,
         lambda c: 0.03 if c.steps and c(WARMUP) >= c.steps else math.ceil(c(WARMUP))),
    Rule("SPEC-WARMUP-ALL", E, TRAINING, WARMUP, "warm-up fills the run: the learning rate never peaks",
         lambda c: on.warmup_share(c) >= 1, on.short_warmup),
    Rule("SPEC-WARMUP-LONG", W, TRAINING, WARMUP, "warm-up takes more than a fifth of the run",
         lambda c: 0.2 < (share := on.warmup_share(c)) < 1 and f"{share:.0%}", on.short_warmup),
    Rule("SPEC-DECAY", E, TRAINING, "train.optm_decay_ratio", "needs an optm_decay_type",
         lambda c: c("train.optm_decay_ratio") is not None and c("train.optm_decay_type") in (None, "none"),
         {"train.optm_decay_type": "cosine"}),
    Rule("SPEC-RATE-HIGH", W, TRAINING, RATE, "published recipes stay under 1e-4 (1e-3 with LoRA); expect instability",
         lambda c: c(RATE) >= (1e-3 if c("policy.lora") else 1e-4), lambda c: 1e-4 if c("policy.lora") else 1e-5),
    Rule("SPEC-SEED", W, TRAINING, "train.seed", "cosmos-rl takes 42 when train.deterministic is true",
         lambda c: c.cosmos and c("train.deterministic") and c("train.seed") not in (None, 42), 42),
    # -- checkpoints, validation, data, logging
    Rule("SPEC-SAVE-OFF", W, TRAINING, CKPT + "enable_checkpoint", "the run would leave no model",
         lambda c: not c(CKPT + "enable_checkpoint"), True),
    Rule("SPEC-S3-BUCKET", E, TRAINING, CKPT + "s3_bucket", "upload_s3 needs a bucket",
         lambda c: c(CKPT + "upload_s3") and not c(CKPT + "s3_bucket"), "NAME"),
    Rule("SPEC-HUB-NAME", E, TRAINING, CKPT + "hf_repo_name", "upload_hf needs a name of your own",
         lambda c: c(CKPT + "upload_hf") and not c.has(CKPT + "hf_repo_name"), "NAME"),
    Rule("SPEC-RESUME-FOLDER", E, TRAINING, "train.resume", "expected a folder .../checkpoints/step_N/policy",
         on.resume_folder, lambda c: c("train.resume").rstrip("/") + "/policy"),
    Rule("SPEC-RESUME-NOTHING", W, TRAINING, "train.resume", "no complete checkpoint in output_dir: a fresh start",
         lambda c: c("train.resume") is True and c.resumed is None, False),
    Rule("SPEC-RESUME-INCOMPLETE", E, TRAINING, "train.resume", "this folder is no complete checkpoint",
         on.resume_broken, True),
    Rule("SPEC-RESUME-STEPS", INFO, TRAINING, "train.resume", "total steps come from the checkpoint, not from epoch",
         lambda c: c.cosmos and bool(c("train.resume"))),
    Rule("SPEC-RUN-FOLDER", W, TRAINING, "train.timestamp", "every start writes into the same folder",
         lambda c: c("train.timestamp") and not c("train.resume"), {"train.timestamp": None}),
    Rule("SPEC-VALIDATION-DATA", E, TRAINING, "custom.val_dataset.annotation_path",
         "validation is on without data; a trainer would split off a tenth of the training data by itself",
         lambda c: c("validation.enable") and not on.validation_data(c), "--eval-root DIR"),
    Rule("SPEC-VALIDATION-OFF", W, TRAINING, "validation.enable", "validation data is given but not used",
         lambda c: on.validation_data(c) and not c("validation.enable"), True),
    Rule("SPEC-VALIDATION-LOSS", W, "train", DROP, "the validation loss leaves out the last batch and is too low",
         lambda c: c.cosmos and c("validation.enable") and c(DROP) and c("validation.batch_size") != 1, False),
    Rule("SPEC-BEST", W, TRAINING, "validation.freq", "best is found only when every save (save_freq, "
         "save_freq_in_epoch) falls on a validation", on.misaligned_best, on.aligned_best),
    Rule("SPEC-CACHE", W, TRAINING, POLICY + "enable_dataset_cache",
         "the cache does not notice changed annotations, frames, pixels or model",
         lambda c: c(POLICY + "enable_dataset_cache"), False),
    Rule("SPEC-PREFETCH", W, TRAINING, on.AHEAD, "needs dataloader_num_workers above 0",
         lambda c: c(on.AHEAD) and not c(on.LOADERS), {on.AHEAD: None}),
    Rule("SPEC-LOGGER", W, TRAINING, "logging.logger", "console reports the steps; tao means nothing to cosmos-rl",
         lambda c: c.cosmos and set(on.loggers(c)) != set(c("logging.logger")), on.loggers),
    Rule("SPEC-DATA-TRAIN", LATER, TRAINING, "custom.train_dataset.annotation_path", "must be known before a launch",
         lambda c: not c("custom.train_dataset.annotation_path") and not c(POLICY + "dataset.name"),
         "--train-root DIR"),
    # -- what is trained
    Rule("SPEC-FREEZE", E, TRAINING, "policy.trainable_pattern", "freeze_pattern is written too; keep one",
         lambda c: c("policy.freeze_pattern") and c("policy.trainable_pattern"), {"policy.trainable_pattern": None}),
    *(Rule(id, E, TRAINING, key, "no regular expression",
           lambda c, key=key: ", ".join(map(shown, on.bad_patterns(c, key))), {key: None})
      for id, key in (("SPEC-PATTERN-FREEZE", "policy.freeze_pattern"), ("SPEC-PATTERN", "policy.trainable_pattern"))),
    Rule("SPEC-LORA-LAYERS", E, TRAINING, LORA + "target_modules", "part of no layer's name",
         lambda c: ", ".join(map(shown, on.unmatched(c))),
         lambda c: [one for one in c(LORA + "target_modules") if one not in on.unmatched(c)] or "all-linear"),
    Rule("SPEC-LORA-MERGE", INFO, TRAINING, LORA + "target_modules",
         "vLLM loads no adapter on these layers; serve the merged model", on.merge_needed,
         "scripts/select_checkpoint.py OUTPUT_DIR --merge DIR"),
    Rule("SPEC-LORA-GRPO-TP", E, "grpo", GRID + "tp_size", "LoRA needs tp_size 1",
         lambda c: c("policy.lora") and c(GRID + "tp_size") > 1, on.as_shards("tp_size")),
    Rule("SPEC-LORA-GRPO-COMPILE", E, "grpo", "train.compile", "LoRA needs compile false",
         lambda c: c("policy.lora") and c("train.compile"), False),
    # -- frames and lengths
    Rule("SPEC-FRAMES-ONE", E, ANY, "{vision}.fps", "nframes is written too; exactly one of them",
         lambda c: c.has(c.vision + "fps") and c.has(c.vision + "nframes"), lambda c: {c.vision + "nframes": None}),
    Rule("SPEC-FRAMES-NONE", E, ANY, "{vision}.nframes", "expected nframes or fps",
         lambda c: not c.has(c.vision + "fps") and not c.has(c.vision + "nframes"), 8),
    Rule("SPEC-FRAMES-BOUNDS", W, ANY, "{vision}.max_frames", "min_frames and max_frames belong to fps, not to nframes",
         lambda c: c.has(c.vision + "nframes") and (c.has(c.vision + "min_frames") or c.has(c.vision + "max_frames")),
         lambda c: {c.vision + "min_frames": None, c.vision + "max_frames": None}),
    Rule("SPEC-FRAMES-ORDER", E, ANY, "{vision}.min_frames", "must not exceed max_frames",
         on.few_frames, lambda c: c(c.vision + "max_frames")),
    Rule("SPEC-VISION-PIXELS", E, ANY, "{vision}.max_pixels", "below min_pixels, which when absent is 128 tokens for a "
         "frame of a clip and 4 for an image; every record would fail",
         lambda c: (found := on.pixel_conflict(c)) and f"min_pixels is {found[0]}", lambda c: on.pixel_conflict(c)[1]),
    Rule("SPEC-PIXELS-BUDGET", W, ANY, "{vision}.total_pixels", "the floor per frame wins: more tokens than budgeted",
         on.pixel_floor, lambda c: {c.vision + "total_pixels": None}),
    Rule("SPEC-RESIZE-PAIR", E, ANY, "{vision}.resized_height", "resized_height and resized_width go together",
         lambda c: c.has(c.vision + "resized_height") != c.has(c.vision + "resized_width"),
         lambda c: 448 if c.has(c.vision + "resized_width") else {c.vision + "resized_width": 448}),
    Rule("SPEC-FRAMES-CLIP", E, ANY, "{vision}.nframes", "these clips cannot be sampled so",
         on.unsampled, on.fewer_frames),
    Rule("SPEC-LENGTH-SAMPLE", E, TRAINING, "policy.model_max_length",
         "a record that does not fit, in grpo with rollout.max_response_length, ends the run",
         lambda c: on.too_long(c, "policy.model_max_length", ANSWER),
         lambda c: on.longer(c, "policy.model_max_length", ANSWER)),
    Rule("SPEC-LENGTH-ANSWER", E, "evaluate", "model.max_length", "prompt and answer must fit",
         lambda c: c.engine == "tao" and on.too_long(c, "model.max_length", "generation.max_tokens"),
         lambda c: on.longer(c, "model.max_length", "generation.max_tokens")),
    Rule("SPEC-LENGTH-CALIBRATION", E, "quantize", "quantize.max_sequence_length", "a record that is cut fails",
         lambda c: on.too_long(c, "quantize.max_sequence_length"),
         lambda c: on.longer(c, "quantize.max_sequence_length")),
    Rule("SPEC-LOADER-MEMORY", W, "train", on.AHEAD, "host memory may not suffice", on.loader_memory, on.fewer_batches),
    Rule("SPEC-FACTS-OTHER", W, "train evaluate quantize", "--dataset-facts", "they describe other annotations",
         on.other_data),
    Rule("SPEC-LENGTH-LOW", W, TRAINING, "policy.model_max_length",
         "below 40960; one longer record, vision tokens included, ends the run",
         lambda c: c("policy.model_max_length") < on.DEFAULT_LENGTH, on.DEFAULT_LENGTH),
    # -- reinforcement learning
    Rule("SPEC-ROLLOUT-ROOM", E, "grpo", "rollout.max_response_length", "leaves no room for the prompt",
         lambda c: c("rollout.max_response_length") >= c("policy.model_max_length"),
         lambda c: c("policy.model_max_length") // 2),
    Rule("SPEC-ON-POLICY", E, "grpo", "train.sync_weight_interval", "on_policy needs 1",
         lambda c: c(POLICY + "on_policy") and c("train.sync_weight_interval") != 1, 1),
    Rule("SPEC-GRPO-START", W, "grpo", "policy.model_name_or_path", "expected a fine-tuned model, not a base model",
         lambda c: c.model.removeprefix(models.HUB) in bundle.skill_info()["models"], "--parent-job DIR"),
    Rule("SPEC-KL-ZERO", INFO, "grpo", POLICY + "kl_beta", "nothing holds the policy near its start; watch the lengths",
         lambda c: c(POLICY + "kl_beta") == 0),
    Rule("SPEC-KL-HIGH", W, "grpo", POLICY + "kl_beta", "published runs use up to 0.05",
         lambda c: c(POLICY + "kl_beta") > 0.2, 0.05),
    # -- evaluate, inference, quantize
    Rule("SPEC-ADAPTER-FOLDER", E, MODELS, "{adapter}", "the model folder is a LoRA adapter",
         lambda c: bool(c.adapter_base) and not c(c.params["adapter"]),
         lambda c: {c.params["adapter"]: True, c.params["base"]: c(c.params["base"]) or c.adapter_base}),
    Rule("SPEC-ADAPTER-BASE", E, MODELS, "{base}", "enable_lora needs the base model",
         lambda c: c(c.params["adapter"]) and not c(c.params["base"]), "MODEL"),
    Rule("SPEC-ADAPTER-OFF", E, MODELS, "{adapter}", "base_model_path is given, so this must be true",
         lambda c: c(c.params["base"]) and not c(c.params["adapter"]), True),
    Rule("SPEC-ANSWER-ROOM", W, "evaluate", "generation.max_tokens", "reasoning answers come last and would be cut",
         lambda c: c("evaluation.answer_type") == "reasoning" and c("generation.max_tokens") < 512, 1024),
    Rule("SPEC-ANSWER-LENGTH", E, "evaluate", "generation.max_tokens", "must be below model.max_length",
         lambda c: c.engine == "tao" and c("generation.max_tokens") >= c("model.max_length"),
         lambda c: c("model.max_length") // 2),
    Rule("SPEC-EVAL-GPUS", E, "evaluate", "num_gpus", "model.tp_size asks for more",
         lambda c: c("model.tp_size") > c("num_gpus") and f"tp_size is {c('model.tp_size')}",
         lambda c: c("model.tp_size")),
    Rule("SPEC-EVAL-FRAMES", W, "evaluate", "vision.nframes", "the container's evaluator documents at most 8",
         lambda c: c.engine == "tao" and (c("vision.nframes") or 0) > 8, 8),
    Rule("SPEC-DATA-EVAL", LATER, "evaluate", "dataset.annotation_path", "must be known before a launch",
         lambda c: not c("dataset.annotation_path"), "--eval-root DIR"),
    Rule("SPEC-MEDIA", LATER, "inference", "media", "must be known before a launch",
         lambda c: not c("media"), "PATH"),
    Rule("SPEC-PROMPT", LATER, "inference", "prompt", "must be known before a launch",
         lambda c: not c("prompt"), "TEXT"),
    Rule("SPEC-CALIBRATION", E, "quantize", "dataset.annotation_path", "only FP8_DYNAMIC needs no calibration data",
         lambda c: c("quantize.quantization_scheme") != "FP8_DYNAMIC" and not c("dataset.annotation_path")
         and not c("dataset.dataset_id"), "--train-root DIR"),
    Rule("SPEC-CALIBRATION-FEW", W, "quantize", "quantize.num_calibration_samples", "enough to try it out only",
         lambda c: c("quantize.num_calibration_samples") < 64, 512),
    Rule("SPEC-CALIBRATION-LENGTH", E, "quantize", "quantize.max_sequence_length", "a video record that is cut fails",
         lambda c: c("quantize.max_sequence_length") < 4096, 4096),
)  # fmt: skip


def other_checks() -> dict[str, dict[str, str]]:
    """`checks`: id -> reason of what is checked besides the rules; `elsewhere`: what no spec tells -> who looks."""
    import yaml

    return yaml.safe_load(Path(__file__).with_name("spec_checks.yaml").read_text(encoding="utf-8"))
