"""`build_spec.py --explain`, `--list-rules` and `--help`: enough to do without reading."""

import json
import re

import build_spec
import pytest
import yaml
from support import ROOT, run_script

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.rules import explain, spec_rules
from cosmos_reason.spec import document


@pytest.mark.parametrize("word", ["train.optm_lr", "learning rate", "lr", "optm_lr"])
def test_explain_finds_a_key_by_any_of_its_names(word):
    text = explain.explain(word)
    assert text.startswith("train.optm_lr (train, grpo)\n")
    for part in (
        "above 0 to 1",
        "1e-06",
        "tao, cosmos-rl, transformers",
        "log scale",
        "SPEC-RATE-HIGH",
    ):
        assert part in text


def test_explain_says_what_moves_with_a_key():
    assert "SPEC-BATCH-MULTIPLE" in explain.explain("train.train_policy.mini_batch")
    assert "SPEC-FRAMES-ONE" in explain.explain("custom.vision.fps")
    assert "SPEC-BEST" in explain.explain("train.ckpt.save_freq")
    assert "--tuning lora: 0.0001" in explain.explain("lr")
    assert "moves with: policy.lora.lora_alpha" in explain.explain("policy.lora.r")
    assert "SPEC-GPUS: " in explain.explain("policy.parallelism.tp_size")
    assert "tp_size x cp_size" in explain.explain("SPEC-GPUS")
    rollout = explain.explain("rollout.parallelism.tp_size")
    assert "SPEC-GPUS-GRPO" in rollout and "SPEC-REPLICATE-1D" not in rollout


@pytest.mark.parametrize(
    "word",
    ["policy.lora", "checkpoint", "profiles", "reason2-traffic", "validation.", "pixels", "lora"],
)
def test_explain_stays_short(word):
    text = explain.explain(word)
    assert len(text.splitlines()) <= 30
    assert len(text) < 3000


def test_explain_names_the_successor_of_a_merged_id():
    for former, id in spec_rules.other_checks()["merged"].items():
        assert explain.explain(former).startswith(f"{former} is {id} now\n{id}")


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_explain_knows_every_key(action):
    for key in document.keys(action):
        assert explain.explain(key, action).startswith(f"{key} (")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("resolution", "resized_height"),
        ("num_samples_per_prompt", "rollout.n_generation"),
        ("frame size", "resized_width"),
        ("records per step", "train.train_batch_per_replica"),
        ("the records of a step", "train.train_batch_per_replica"),
        ("global batch", "train.train_batch_per_replica"),
        ("global batch", "--global-batch N"),
        ("FP8", "quantize.quantization_scheme"),
        ("FP8", "FP8_DYNAMIC needs no data, the others calibrate"),
        ("nframes", "in evaluate, inference, quantize: vision.nframes"),
        ("num epochs training", "train.epoch"),  # in a short name and in the description
    ],
)
def test_explain_finds_words_anywhere(words, key):
    assert key in explain.explain(words)


def test_explain_says_which_action_a_rule_is_of():
    rows = {
        row.strip().partition(":")[0]: row for row in explain.explain("batch_size").splitlines()
    }
    assert rows["SPEC-BATCH-MESH"].endswith("(grpo only)")
    assert not rows["SPEC-PIPELINE-MICRO"].endswith("only)")


def test_explain_of_nothing_known_suggests():
    with pytest.raises(f.Failure) as failure:
        explain.explain("learnig_rate")
    assert "learning_rate" in failure.value.findings[0].message


@pytest.mark.parametrize("word", ["", "  ", "a", "of the", "qwertz", "SPEC-BATCH-MULTIPEL"])
def test_explain_of_nothing_is_bad_input(word):
    with pytest.raises(f.Failure) as failure:
        explain.explain(word)
    assert failure.value.exit_code == f.EXIT_BAD_INPUT
    assert ("SPEC-BATCH-MULTIPLE" in failure.value.findings[0].message) == word.startswith("SPEC-")


def test_explain_looks_beyond_the_action_when_it_has_no_such_key():
    assert explain.explain("lr", "evaluate").startswith("train.optm_lr (train, grpo)")
    assert explain.explain("nframes", "evaluate").startswith("vision.nframes (")


def test_every_id_of_the_code_is_listed_and_explained():
    sources = [
        *(ROOT / "scripts/cosmos_reason/spec").glob("*.py"),
        *(ROOT / "scripts/cosmos_reason/rules").glob("*.py"),
        ROOT / "scripts/cosmos_reason/remote/model_names.py",
        ROOT / "scripts" / "build_spec.py",
    ]
    used = {
        id
        for path in sources
        for id in re.findall(r'"(SPEC-[A-Z0-9-]+[A-Z0-9])"', path.read_text())
    }
    listed = set(re.findall(r"^SPEC-[A-Z0-9-]+", build_spec.listing().text, re.M))
    assert used == listed
    for id in listed:
        assert explain.explain(id).startswith(id)


# Asked by those who fine-tune, and a part of the answer.
ASKED = {
    "DPO": "Not offered", "early stopping": "Not offered",
    "freeze vision": "policy.freeze_pattern", "freeze the vision tower": "policy.freeze_pattern",
    "multi gpu": "policy.parallelism.dp_shard_size", "multi-GPU training": "--gpus-per-node",
    "loss nan": "train.optm_lr", "tensorboard": "Not offered", "class weights": "Not offered",
    "mixed precision": "train.param_dtype",
    "gradient accumulation": "train.train_policy.mini_batch", "resume": "train.resume",
    "seed": "train.seed", "checkpointing": "train.ckpt.save_freq",
    "gradient checkpointing": "policy.model_gradient_checkpointing", "deepspeed": "Not offered",
    "flash attention": "train.fa_version", "warmup": "train.optm_warmup_steps",
    "scheduler": "train.optm_decay_type", "quantization": "quantize.quantization_scheme",
    "batch size": "train.train_batch_per_replica", "oom": "custom.vision.total_pixels",
    "out of memory": "custom.vision.total_pixels", "learning rate": "train.optm_lr",
    "weight decay": "train.optm_weight_decay", "lora rank": "policy.lora.r",
    "lora alpha": "policy.lora.lora_alpha", "LoRA": "policy.lora.target_modules",
    "dropout": "policy.lora.lora_dropout", "epochs": "train.epoch",
    "max steps": "train.max_num_steps", "wandb": "logging.logger",
    "eval steps": "validation.freq", "save steps": "train.ckpt.save_freq",
    "context length": "policy.model_max_length", "frames": "custom.vision.nframes",
    "fps": "custom.vision.fps", "resolution": "custom.vision.max_pixels",
    "image size": "custom.vision.max_pixels", "optimizer": "train.optm_name",
    "adam": "train.optm_name", "bf16": "train.param_dtype", "fp16": "train.param_dtype",
    "QLoRA": "not offered", "4bit": "not offered", "FSDP": "policy.parallelism.dp_shard_size",
    "ZeRO-3": "Not offered", "tensor parallelism": "policy.parallelism.tp_size",
    "multi node": "--nodes M", "num workers": "train.train_policy.dataloader_num_workers",
    "packing": "train.sequence_packing", "shuffle": "train.train_policy.dataloader_shuffle",
    "PPO": "not offered", "RLHF": "action grpo",
    "reward function": "train.train_policy.reward_function", "group size": "rollout.n_generation",
    "gradient clipping": "train.optm_grad_norm_clip", "label smoothing": "Not offered",
    "augmentation": "Not offered", "validation split": "--eval-fraction",
    "overfitting": "--eval-root", "best checkpoint": "--by val_loss", "merge lora": "--merge DIR",
    "onnx": "not offered", "push to hub": "--hub ORG/NAME", "cpu offload": "train.fsdp_offload",
    "loss function": "cross entropy", "chat template": "not offered", "thinking": "response_mode",
    "hyperparameter search": "tune_hyperparameters.py", "dataset format": "build_dataset.py",
    "csv": "build_dataset.py", "serving": "vllm serve", "slurm": "--platform",
    "docker": "--platform", "torch compile": "train.compile",
    "base model": "model.base_model_path", "spot": "retry JOB_ID",
    "metrics": "score_predictions.py", "temperature": "rollout.sampling_config.temperature",
    "k-fold": "--folds N writes N pairs", "audio": "Not offered", "rtsp": "Not offered",
    "bounding boxes": "cosmos-reason-answers.md", "preempt": "retry JOB_ID", "judge": "--judge URL",
    "learning rate finder": "train.optm_decay_type", "stuck": "watch JOB_ID", "push": "--hub",
    "underfitting": "train.epoch", "nim": "vLLM", "AdamW8bit": "train.optm_name",
}  # fmt: skip


@pytest.mark.parametrize("word", ASKED)
def test_ordinary_words_are_answered(word):
    assert ASKED[word] in explain.explain(word)
    assert len(explain.explain(word)) < 3000


def test_a_word_is_asked_of_the_command():
    told = json.loads(run_script("build_spec.py", "--explain", "DPO", "--json").stdout)["result"]
    assert told["text"].startswith("Not offered") and "endpoint" not in told["text"]
    done = run_script("build_spec.py", "--explain", "fooling")
    assert done.returncode == 2 and "Did you mean" not in done.stderr


@pytest.mark.parametrize("part", ["poi", "ndp", "poch", "fra", "hard", "ing", "ate"])
def test_letters_inside_a_word_are_no_word(part):
    with pytest.raises(f.Failure):
        explain.explain(part)


ROWS = yaml.safe_load(explain.WORDS.read_text())
KEYS = {key for action in bundle.ACTIONS for key in document.keys(action)}
FLAG = re.compile(r"--[a-z][a-z0-9-]+")


def test_each_way_to_say_something_is_there_once():
    ways = [tuple(explain._split(way)) for row in ROWS for way in row["words"]]
    assert len(set(ways)) == len(ways)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["words"][0])
def test_the_words_name_keys_scripts_pages_and_settings_that_are_there(row):
    said = row.get("say", "")
    assert set(row.get("keys", ())) <= KEYS and (said or row["keys"])
    for path in re.findall(r"(?:scripts|references)/[\w.-]+\.\w+", said):
        assert (ROOT / path).is_file(), path
    for script in re.findall(r"\b\w+\.py", said):
        assert (ROOT / "scripts" / script).is_file()
    for key in re.findall(r"--set '(\S+?)=", said):
        assert key in KEYS
    if said.startswith("Not offered"):
        assert "Nearest" in said or not row.get("keys")


def test_the_words_name_flags_that_are_there():
    public = json.loads((ROOT / "tests/fixtures/public_names.json").read_text())["flags"]
    known = {flag for verbs in public.values() for flags in verbs.values() for flag in flags}
    named = {flag for row in ROWS for flag in FLAG.findall(row.get("say", ""))}
    assert named - known == {"--trust-request-mm-kwargs"}  # vLLM's
