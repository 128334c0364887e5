"""The table of rules that cross keys, dataset and hardware: what no schema can say and trainers find out hours later.

A condition reads the spec through the `Case` of rules.py: `c(key)` is a value with defaults, `c.has(key)` whether it is
written. What cannot be decided from a spec is in `ELSEWHERE`, with the command that decides it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from cosmos_reason import findings as f

DEFAULT_LENGTH = 40960
FRAME_MIN_TOKENS = 128  # qwen-vl-utils: the floor per frame
LOADER_GIB = 32  # host memory of decoded frames on one rank that is still ordinary
PIXEL_BYTES = 24576  # of one vision token in the loader: 2 frames x 32 x 32 pixels x 3 colours, as float32
LATER = "later"  # a warning while a spec is built, an error when it is launched

BATCH, RATE, WARMUP = "train.train_batch_per_replica", "train.optm_lr", "train.optm_warmup_steps"
CKPT, GRID, LORA, POLICY = "train.ckpt.", "policy.parallelism.", "policy.lora.", "train.train_policy."
MINI, DROP, SHARD = POLICY + "mini_batch", POLICY + "dataloader_drop_last", GRID + "dp_shard_size"


@dataclass(frozen=True)
class Rule:
    """`when(c)` is falsy when all is well, else true, or a few words with the numbers, or those and record ids.

    `key` is where the finding points ("{vision}", "{model}", "{base}" and "{adapter}" are the action's own). `fix` is a
    value for that key, or a whole argument when it starts with "-" or "scripts/", or a function of the case for either.
    """

    id: str
    severity: str
    actions: str
    key: str
    reason: str
    when: Callable
    fix: object = None


# ---- conditions that do not fit on a line ------------------------------------------------------------------------


def _omni(local: bool) -> Callable:
    return lambda c: c.omni and c.model.startswith("/") == local


def _convert(c) -> str:
    return f"scripts/prepare_cosmos3_vlm_checkpoint.py --checkpoint-path {shlex.quote(c.model)} --output-path DIR"


def _zero_steps(c):
    records = c.steps_per_epoch == 0 and c.facts["records"]
    return records and f"{records} records over {c.ranks} ranks are {math.ceil(records / c.ranks)} each"


def _warmup_share(c) -> float:
    """Part of the run; 0 when it is not known."""
    if isinstance(c(WARMUP), float):
        return min(c(WARMUP), 1.0)
    return c(WARMUP) / c.steps if c.steps else 0.0


def _mesh(c) -> int:
    return c(MINI) * c(SHARD) * c(GRID + "dp_replicate_size")


def _pixel_floor(c):
    total, frames = c(c.vision + "total_pixels"), c(c.vision + "nframes") or c(c.vision + "max_frames")
    least = c(c.vision + "min_pixels") or FRAME_MIN_TOKENS * c.token_side**2
    return total and frames and frames > 2 * total / (1.05 * least) and f"{frames} frames of at least {least} pixels"


def _order(low: str, high: str) -> Callable:
    def wrong(c):
        least, most = c(c.vision + low), c(c.vision + high)
        return least and most and least > most and f"{high} is {most}"

    return wrong


def _merge_needed(c):
    targets = c("policy.lora") and c(LORA + "target_modules")
    parts = [targets] if isinstance(targets, str) else targets or []
    wide = ("visual", "lm_head", "embed", "all-linear", "qkv")
    return "proj" in parts or any(word in part for part in parts for word in wide)


def _too_long(limit: str, room: str = "") -> Callable:
    """Records whose tokens, with `room` for the answer, exceed the key `limit`."""

    def wrong(c):
        c.read.add(c.vision)
        most = c(limit) - (c(room) if room else 0)
        long = [record for record in c.tokens if record.total > most]
        worst = max((record.total for record in long), default=0)
        return long and (f"{len(long)} of {len(c.tokens)} records have up to {worst} tokens", [r.id for r in long])

    return wrong


def _longer(limit: str, room: str = "") -> Callable:
    """A length in which every record fits, or, when that is beyond the default, a pixel budget that makes them fit."""

    def fix(c):
        extra = c(room) if room else 0
        needed = math.ceil((max(record.total for record in c.tokens) + extra) / 1024) * 1024
        if needed <= max(c(limit), DEFAULT_LENGTH):
            return needed
        left = c(limit) - extra - max(record.total - record.vision for record in c.tokens)
        return f"--set {c.vision}total_pixels={max(1, int(0.9 * left)) * c.token_side**2}"

    return fix


def _unsampled(c):
    c.read.add(c.vision)
    bad = [record for record in c.tokens if record.problem]
    return bad and (f"{len(bad)} of {len(c.tokens)} records: {bad[0].problem.message}", [record.id for record in bad])


def _loader_memory(c):
    """Formula: loader processes x batches ahead x records x vision tokens of the largest record x bytes."""
    ahead = c(POLICY + "dataloader_num_workers") * (c(POLICY + "dataloader_prefetch_factor") or 2) * c(BATCH)
    gib = ahead * max((record.vision for record in c.tokens), default=0) * PIXEL_BYTES / 2**30
    return gib > LOADER_GIB and f"up to {gib:.0f} GiB of decoded frames on each rank"


def _other_data(c):
    key = "dataset.annotation_path" if c.action in ("evaluate", "quantize") else "custom.train_dataset.annotation_path"
    return c.facts and c(key) and c.facts.get("annotations") != c(key) and f"facts are of {c.facts.get('annotations')}"


def _misaligned_best(c):
    if not (c("validation.enable") and c(CKPT + "enable_checkpoint") and c.cosmos) or c.has("validation.freq_in_epoch"):
        return False
    every = c("validation.freq")
    return not c.save_interval or (c.save_interval % every and f"saves every {c.save_interval} steps")


def _resume_text(c):
    return isinstance(c("train.resume"), str) and c("train.resume").lower() in ("true", "false")


def _resume_folder(c):
    value = c("train.resume")
    return c.cosmos and isinstance(value, str) and not _resume_text(c) and not value.rstrip("/").endswith("/policy")


# ---- the table -----------------------------------------------------------------------------------------------------

E, W, INFO = f.ERROR, f.WARNING, f.INFO
TRAINING = "train grpo"
ANY = "train grpo evaluate inference quantize"
MODELS = "evaluate inference quantize"

RULES = (
    Rule("SPEC-MODEL-OMNI", LATER, ANY, "{model}", "an Omni checkpoint; launch with its converted folder as --model",
         _omni(local=False), _convert),
    Rule("SPEC-MODEL-OMNI-LOCAL", E, ANY, "{model}", "an Omni checkpoint, which no engine here loads; convert it first",
         _omni(local=True), _convert),
    # -- layout
    Rule("SPEC-GPUS", E, "train", SHARD, "the layout must use all GPUs that are asked for",
         lambda c: c.gpus and c.policy_gpus != c.gpus and f"layout of {c.policy_gpus}, {c.gpus} GPUs",
         lambda c: max(1, c.gpus * c(SHARD) // c.policy_gpus)),
    Rule("SPEC-GPUS-GRPO", E, "grpo", SHARD, "policy and rollout together need more GPUs than are asked for",
         lambda c: c.gpus and c.needed_gpus > c.gpus and f"{c.policy_gpus} + {c.rollout_gpus} on {c.gpus} GPUs",
         "--gpus-per-node 4"),
    Rule("SPEC-GPUS-IDLE", W, "grpo", SHARD, "some GPUs stay idle",
         lambda c: c.gpus and c.needed_gpus < c.gpus and f"{c.needed_gpus} of {c.gpus} GPUs in use"),
    Rule("SPEC-COLOCATED", E, "grpo", "mode", "colocated policy and rollout need equal GPU numbers",
         lambda c: c("mode") != "disaggregated" and c.policy_gpus != c.rollout_gpus, "disaggregated"),
    Rule("SPEC-GPUS-FEW", W, "train", GRID + "dp_shard_size",
         "full fine-tuning of the 7B and 8B models needs at least 2 GPUs, better 4 of 80 GB",
         lambda c: c.gpus == 1 and not c("policy.lora") and "2B" not in c.model, "--tuning lora"),
    Rule("SPEC-GPUS-FEW-GRPO", W, "grpo", SHARD, "at least 4 GPUs are needed: 2 for the policy, 2 for rollout",
         lambda c: c.gpus and c.gpus < 4, "--gpus-per-node 4"),
    Rule("SPEC-QWEN3-COMPILE", E, TRAINING, "train.compile", "cosmos-rl runs Qwen3-VL as a plain Hugging Face model",
         lambda c: c.qwen3 and c("train.compile"), False),
    Rule("SPEC-QWEN3-CONTEXT", E, TRAINING, GRID + "cp_size", "context parallelism does not exist for Qwen3-VL models",
         lambda c: c.qwen3 and c(GRID + "cp_size") > 1, 1),
    Rule("SPEC-QWEN3-PIPELINE", E, TRAINING, GRID + "pp_size", "pipeline stages do not exist for Qwen3-VL models",
         lambda c: c.qwen3 and c(GRID + "pp_size") > 1, 1),
    Rule("SPEC-REPLICATE-1D", E, TRAINING, SHARD, "replicas with tp_size above 1 need sharding too",
         lambda c: c.qwen3 and c(SHARD) == 1 < c(GRID + "dp_replicate_size") and c(GRID + "tp_size") > 1, 2),
    Rule("SPEC-PIPELINE-REPLICATE", E, TRAINING, GRID + "dp_replicate_size", "excludes pp_size above 1",
         lambda c: c(GRID + "pp_size") > 1 and c(GRID + "dp_replicate_size") > 1, 1),
    Rule("SPEC-PIPELINE-MICRO", E, TRAINING, GRID + "pp_micro_batch_size", "must divide train_batch_per_replica",
         lambda c: c(GRID + "pp_size") > 1 and c(BATCH) % c(GRID + "pp_micro_batch_size"), 1),
    Rule("SPEC-PIPELINE-OFFLOAD", E, TRAINING, "train.fsdp_offload", "offload and pp_size above 1 exclude each other",
         lambda c: c(GRID + "pp_size") > 1 and c("train.fsdp_offload"), False),
    Rule("SPEC-PIPELINE-LORA", E, TRAINING, GRID + "pp_size", "LoRA models with pipeline stages cannot be exported",
         lambda c: c(GRID + "pp_size") > 1 and c("policy.lora"), 1),
    Rule("SPEC-EXPERT-TENSOR", E, TRAINING, GRID + "ep_size", "ep_size and tp_size exclude each other",
         lambda c: c(GRID + "ep_size") > 1 and c(GRID + "tp_size") > 1, 1),
    Rule("SPEC-ASYNC-TP", E, TRAINING, "train.async_tp_enabled", "needs train.compile",
         lambda c: c("train.async_tp_enabled") and not c("train.compile"), False),
    # -- batches and steps
    Rule("SPEC-BATCH-MULTIPLE", E, "train", BATCH, "must be a multiple of mini_batch",
         lambda c: c(BATCH) % c(MINI) and f"mini_batch is {c(MINI)}", lambda c: max(1, c(BATCH) // c(MINI)) * c(MINI)),
    Rule("SPEC-BATCH-MESH", E, "grpo", BATCH, "must be a multiple of dp_shard_size x dp_replicate_size x mini_batch",
         lambda c: c(BATCH) % _mesh(c) and f"that is {_mesh(c)}",
         lambda c: max(1, c(BATCH) // _mesh(c)) * _mesh(c)),
    Rule("SPEC-STEPS-ZERO", E, "train", BATCH, "dataloader_drop_last leaves out incomplete batches: no step would run",
         _zero_steps, f"--set {DROP}=false"),
    Rule("SPEC-SAVE-NEVER", W, "train", CKPT + "save_freq", "the run ends before the first save",
         lambda c: c(CKPT + "enable_checkpoint") and c.steps and (c.save_interval or 0) > c.steps
         and f"{c.steps} steps",
         f"--set {CKPT}save_freq_in_epoch=1"),
    Rule("SPEC-VALIDATION-NEVER", E, "train", "validation.freq", "the run ends before the first validation",
         lambda c: c("validation.enable") and not c("validation.freq_in_epoch") and c.steps
         and c("validation.freq") > c.steps and f"{c.steps} steps", lambda c: max(1, int(c.steps) // 2)),
    Rule("SPEC-WARMUP-TWICE", E, "train", "train.optm_warmup_epochs", "optm_warmup_steps is written too; keep one",
         lambda c: c.has("train.optm_warmup_epochs") and c.has(WARMUP), f"--unset {WARMUP}"),
    Rule("SPEC-WARMUP-FLOAT", E, TRAINING, WARMUP, "a float counts as a fraction up to 1.0; steps are whole numbers",
         lambda c: isinstance(c(WARMUP), float) and c(WARMUP) > 1, lambda c: math.ceil(c(WARMUP))),
    Rule("SPEC-WARMUP-ALL", E, TRAINING, WARMUP, "warm-up fills the run: the learning rate never peaks",
         lambda c: _warmup_share(c) >= 1, 0.03),
    Rule("SPEC-WARMUP-LONG", W, TRAINING, WARMUP, "warm-up takes more than a fifth of the run",
         lambda c: 0.2 < (share := _warmup_share(c)) < 1 and f"{share:.0%}", 0.03),
    Rule("SPEC-DECAY", E, TRAINING, "train.optm_decay_ratio", "needs an optm_decay_type",
         lambda c: c("train.optm_decay_ratio") is not None and c("train.optm_decay_type") in (None, "none"),
         "--set train.optm_decay_type=cosine"),
    Rule("SPEC-RATE-HIGH", W, TRAINING, RATE, "published recipes stay under 1e-4 (1e-3 with LoRA); expect instability",
         lambda c: c(RATE) >= (1e-3 if c("policy.lora") else 1e-4), lambda c: 1e-4 if c("policy.lora") else 1e-5),
    Rule("SPEC-SEED", W, TRAINING, "train.seed", "cosmos-rl takes 42 when train.deterministic is true",
         lambda c: c.cosmos and c("train.deterministic") and c("train.seed") not in (None, 42), 42),
    # -- checkpoints, validation, data, logging
    Rule("SPEC-SAVE-OFF", W, TRAINING, CKPT + "enable_checkpoint", "the run would leave no model",
         lambda c: not c(CKPT + "enable_checkpoint"), True),
    Rule("SPEC-S3-BUCKET", E, TRAINING, CKPT + "s3_bucket", "upload_s3 needs a bucket",
         lambda c: c(CKPT + "upload_s3") and not c(CKPT + "s3_bucket"), "NAME"),
    Rule("SPEC-HUB-NAME", E, TRAINING, CKPT + "hf_repo_name", "upload_hf without a name takes the trainer's own one",
         lambda c: c(CKPT + "upload_hf") and not c.has(CKPT + "hf_repo_name"), "NAME"),
    Rule("SPEC-RESUME-TEXT", E, TRAINING, "train.resume", "the trainer takes this text for a path", _resume_text,
         lambda c: c("train.resume").lower() == "true"),
    Rule("SPEC-RESUME-FOLDER", E, TRAINING, "train.resume", "expected a folder .../checkpoints/step_N/policy",
         _resume_folder, lambda c: c("train.resume").rstrip("/") + "/policy"),
    Rule("SPEC-RESUME-STEPS", INFO, TRAINING, "train.resume", "total steps come from the checkpoint, not from epoch",
         lambda c: c.cosmos and bool(c("train.resume"))),
    Rule("SPEC-RUN-FOLDER", W, TRAINING, "train.timestamp", "every start writes into the same folder",
         lambda c: c("train.timestamp") and not c("train.resume"), "--unset train.timestamp"),
    Rule("SPEC-VALIDATION-DATA", E, TRAINING, "custom.val_dataset.annotation_path",
         "validation is on without data; a trainer would split off a tenth of the training data by itself",
         lambda c: c("validation.enable") and not c.validation_data, "--eval-root DIR"),
    Rule("SPEC-VALIDATION-OFF", W, TRAINING, "validation.enable", "validation data is given but not used",
         lambda c: c.validation_data and not c("validation.enable"), True),
    Rule("SPEC-VALIDATION-LOSS", W, "train", DROP, "the validation loss leaves out the last batch and is too low",
         lambda c: c.cosmos and c("validation.enable") and c(DROP) and c("validation.batch_size") != 1, False),
    Rule("SPEC-BEST", W, TRAINING, "validation.freq", "best is found only when every save falls on a validation",
         _misaligned_best, lambda c: c.save_interval or f"--set {CKPT}save_freq_in_epoch=0"),
    Rule("SPEC-CACHE", W, TRAINING, POLICY + "enable_dataset_cache",
         "the cache does not notice changed annotations, frames, pixels or model",
         lambda c: c(POLICY + "enable_dataset_cache"), False),
    Rule("SPEC-PREFETCH", W, TRAINING, POLICY + "dataloader_prefetch_factor", "needs dataloader_num_workers above 0",
         lambda c: c(POLICY + "dataloader_prefetch_factor") and not c(POLICY + "dataloader_num_workers"),
         f"--set {POLICY}dataloader_num_workers=4"),
    Rule("SPEC-LOGGER", W, TRAINING, "logging.logger", "without console no step is reported",
         lambda c: c.cosmos and "console" not in c("logging.logger"), lambda c: ["console", *c("logging.logger")]),
    Rule("SPEC-LOGGER-TAO", W, TRAINING, "logging.logger", "tao has no effect on the open-source trainer",
         lambda c: c.engine == "cosmos-rl" and "tao" in c("logging.logger"), ["console"]),
    Rule("SPEC-DATA-TRAIN", LATER, TRAINING, "custom.train_dataset.annotation_path", "must be known before a launch",
         lambda c: not c("custom.train_dataset.annotation_path") and not c(POLICY + "dataset.name"),
         "--train-root DIR"),
    # -- what is trained
    Rule("SPEC-FREEZE", E, TRAINING, "policy.trainable_pattern", "freeze_pattern is written too; keep one",
         lambda c: c("policy.freeze_pattern") and c("policy.trainable_pattern"), "--unset policy.trainable_pattern"),
    Rule("SPEC-LORA-MERGE", INFO, TRAINING, LORA + "target_modules",
         "vLLM loads no adapter on these layers; serve the merged model", _merge_needed,
         "scripts/select_checkpoint.py OUTPUT_DIR --merge DIR"),
    Rule("SPEC-LORA-GRPO-TP", E, "grpo", GRID + "tp_size", "LoRA needs tp_size 1",
         lambda c: c("policy.lora") and c(GRID + "tp_size") > 1, 1),
    Rule("SPEC-LORA-GRPO-COMPILE", E, "grpo", "train.compile", "LoRA needs compile false",
         lambda c: c("policy.lora") and c("train.compile"), False),
    # -- frames and lengths
    Rule("SPEC-FRAMES-ONE", E, ANY, "{vision}.fps", "nframes is written too; exactly one of them",
         lambda c: c.has(c.vision + "fps") and c.has(c.vision + "nframes"), lambda c: f"--unset {c.vision}nframes"),
    Rule("SPEC-FRAMES-NONE", E, ANY, "{vision}.nframes", "expected nframes or fps",
         lambda c: not c.has(c.vision + "fps") and not c.has(c.vision + "nframes"), 8),
    Rule("SPEC-FRAMES-BOUNDS", W, ANY, "{vision}.max_frames", "min_frames and max_frames belong to fps, not to nframes",
         lambda c: c.has(c.vision + "nframes") and (c.has(c.vision + "min_frames") or c.has(c.vision + "max_frames")),
         lambda c: f"--unset {c.vision}{'max' if c.has(c.vision + 'max_frames') else 'min'}_frames"),
    Rule("SPEC-FRAMES-ORDER", E, ANY, "{vision}.min_frames", "must not exceed max_frames",
         _order("min_frames", "max_frames"), lambda c: c(c.vision + "max_frames")),
    Rule("SPEC-PIXELS-ORDER", E, ANY, "{vision}.min_pixels", "must not exceed max_pixels",
         _order("min_pixels", "max_pixels"), lambda c: c(c.vision + "max_pixels")),
    Rule("SPEC-PIXELS-BUDGET", W, ANY, "{vision}.total_pixels", "the floor per frame wins: more tokens than budgeted",
         _pixel_floor, lambda c: f"--unset {c.vision}total_pixels"),
    Rule("SPEC-RESIZE-PAIR", E, ANY, "{vision}.resized_height", "resized_height and resized_width go together",
         lambda c: c.has(c.vision + "resized_height") != c.has(c.vision + "resized_width"),
         lambda c: 448 if c.has(c.vision + "resized_width") else f"--set {c.vision}resized_width=448"),
    Rule("SPEC-FRAMES-CLIP", E, ANY, "{vision}.nframes", "these clips cannot be sampled so",
         _unsampled, lambda c: f"--unset {c.vision}fps --set {c.vision}nframes=2"),
    Rule("SPEC-LENGTH-SAMPLE", E, TRAINING, "policy.model_max_length", "a record that does not fit ends the run",
         _too_long("policy.model_max_length"), _longer("policy.model_max_length")),
    Rule("SPEC-LENGTH-ANSWER", E, "evaluate", "model.max_length", "prompt and answer must fit",
         lambda c: c.engine == "tao" and _too_long("model.max_length", "generation.max_tokens")(c),
         _longer("model.max_length", "generation.max_tokens")),
    Rule("SPEC-LENGTH-CALIBRATION", E, "quantize", "quantize.max_sequence_length", "a record that is cut fails",
         _too_long("quantize.max_sequence_length"), _longer("quantize.max_sequence_length")),
    Rule("SPEC-LOADER-MEMORY", W, "train", POLICY + "dataloader_prefetch_factor", "host memory may not suffice",
         _loader_memory, 1),
    Rule("SPEC-FACTS-OTHER", W, "train evaluate quantize", "--dataset-facts", "they describe other annotations",
         _other_data),
    Rule("SPEC-LENGTH-LOW", W, TRAINING, "policy.model_max_length",
         "below 40960; one longer record, vision tokens included, ends the run",
         lambda c: c("policy.model_max_length") < DEFAULT_LENGTH, DEFAULT_LENGTH),
    # -- reinforcement learning
    Rule("SPEC-ROLLOUT-ROOM", E, "grpo", "rollout.max_response_length", "leaves no room for the prompt",
         lambda c: c("rollout.max_response_length") >= c("policy.model_max_length"),
         lambda c: c("policy.model_max_length") // 2),
    Rule("SPEC-ON-POLICY", E, "grpo", "train.sync_weight_interval", "on_policy needs 1",
         lambda c: c(POLICY + "on_policy") and c("train.sync_weight_interval") != 1, 1),
    Rule("SPEC-GRPO-START", W, "grpo", "policy.model_name_or_path", "expected a fine-tuned model, not a base model",
         lambda c: c.is_base_model, "--parent-job DIR"),
    Rule("SPEC-KL-ZERO", INFO, "grpo", POLICY + "kl_beta", "nothing holds the policy near its start; watch the lengths",
         lambda c: c(POLICY + "kl_beta") == 0),
    Rule("SPEC-KL-HIGH", W, "grpo", POLICY + "kl_beta", "published runs use up to 0.05",
         lambda c: c(POLICY + "kl_beta") > 0.2, 0.05),
    # -- evaluate, inference, quantize
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

# What breaks runs and cannot be read off a spec: (trap, where it is looked at).
ELSEWHERE = (
    ("GPU memory of weights, optimizer and the longest sample", "check_tao_launch_preflight.py"),
    ("free disk for checkpoints, host memory, file permissions", "check_tao_launch_preflight.py"),
    ("gated repositories, tokens, write access for uploads", "check_tao_launch_preflight.py"),
    (
        "GPU architecture, driver, flash-attn, redis-server and video decoder of the image",
        "check_tao_launch_preflight.py",
    ),
    ("multi-node ports, shared folders, launcher versions", "check_tao_launch_preflight.py"),
    (
        "clips that do not decode, missing media, tags that do not match media, empty validation data",
        "check_dataset.py",
    ),
    ("an index that misses shards, processor files, tensors of another architecture", "select_checkpoint.py"),
    ("a resume folder that is incomplete or of another world size", "select_checkpoint.py"),
    ("layers whose width is not a multiple of 16 when quantized", "the quantize action, which reads the weights"),
    ("loss spikes, NaN, a worker that died while the launcher returned 0", "launch_job.py watch, diagnose_log.py"),
    ("a mount over /workspace that hides the image's packages", "launch_job.py"),
    ("LoRA target names that match no layer", "the trainer, which knows the layer names, at its first second"),
    (
        "settings behind --allow-extra-key, of several optimizers or of distillation",
        "the trainer's own configuration class",
    ),
)
