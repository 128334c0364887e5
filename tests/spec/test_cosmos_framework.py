"""Configs of NVIDIA's cosmos-framework: read as train specs, and written for its trainer."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from clip_files import write_clip
from support import ROOT, run_script

from cosmos_reason.spec import document

CONFIG = """
[job]
task = "vlm"
experiment = "videophy2_sft_nano"
name = "mine"
[model]
precision = "bfloat16"
[model.backbone]
model_name = "Qwen/Qwen3-VL-8B-Instruct"
[model.parallelism]
data_parallel_shard_degree = 4
data_parallel_replicate_degree = -1
[optimizer]
lr = 3e-6
betas = [0.9, 0.95]
weight_decay = 0.1
[scheduler]
warm_up_steps = [5]
cycle_lengths = [60]
f_start = [0.05]
f_max = [1.0]
f_min = [0.1]
[trainer]
max_iter = 60
grad_accum_iter = 8
[trainer.callbacks.grad_clip]
clip_norm = 0.5
[checkpoint]
load_path = "???"
save_iter = 20
[dataloader_train]
max_samples_per_batch = 2
max_sequence_length = 16000
"""
MEANT = {
    "policy.model_name_or_path": "hf_model://Qwen/Qwen3-VL-8B-Instruct",
    "policy.model_max_length": 16000,
    "policy.parallelism.dp_shard_size": 4,
    "policy.parallelism.dp_replicate_size": 1,
    "policy.freeze_pattern": [r"visual\.(patch_embed|blocks|pos_embed)"],
    "train.optm_lr": 3e-6,
    "train.optm_betas": [0.9, 0.95],
    "train.optm_weight_decay": 0.1,
    "train.optm_warmup_steps": 5,
    "train.optm_warmup_start_factor": 0.05,
    "train.optm_min_lr_factor": 0.1,
    "train.optm_decay_type": "cosine",
    "train.optm_grad_norm_clip": 0.5,
    "train.max_num_steps": 60,
    "train.train_batch_per_replica": 16,
    "train.train_policy.mini_batch": 2,
    "train.ckpt.save_freq": 20,
    "train.ckpt.save_freq_in_epoch": 0,
    "custom.vision": {"fps": 2, "max_frames": 32},
}


@pytest.fixture
def here(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    write_clip(root / "clip.mp4")
    talk = [{"from": "human", "value": "<video>\nWhich?"}, {"from": "gpt", "value": "left"}]
    records = [{"id": str(number), "video": "clip.mp4", "conversations": talk} for number in (1, 2)]
    (root / "annotations.json").write_text(json.dumps(records))
    return tmp_path


def build(here: Path, config: str, *flags: str):
    (here / "theirs.toml").write_text(config)
    words = ("--spec", "theirs.toml", "--train-root", "data", "-o", "ours.toml")
    return run_script("build_spec.py", *words, *flags, cwd=here)


def value(table: dict, key: str):
    for part in key.split("."):
        table = table[part]
    return table


def test_a_config_is_read_with_the_values_that_it_trains_by(here):
    done = build(here, CONFIG)
    assert done.returncode == 0, done.stderr
    ours = tomllib.loads((here / "ours.toml").read_text())
    assert {key: value(ours, key) for key in MEANT} == MEANT
    assert "lora" not in ours["policy"] and ours["train"]["epoch"] >= 60
    assert ours["custom"]["train_dataset"]["annotation_path"] == str(here / "data/annotations.json")


def test_data_are_asked_for(here):
    (here / "theirs.toml").write_text(CONFIG)
    done = run_script("build_spec.py", "--spec", "theirs.toml", "-o", "ours.toml", cwd=here)
    assert "SPEC-DATA-TRAIN" in done.stderr and "--train-root DIR" in done.stderr


def test_adapters_that_the_framework_drops_are_refused_until_somebody_decides(here):
    config = CONFIG.replace(
        "[model.backbone]", "lora_enabled = true\nlora_rank = 4\n[model.backbone]"
    )
    done = build(here, config)
    assert done.returncode == 1 and not (here / "ours.toml").exists()
    assert "lora_enabled" in done.stderr and "trains all weights" in done.stderr
    assert done.stderr.count("error:") == 1 and "fix: --tuning lora" in done.stderr
    done = build(here, config, "--tuning", "lora")
    assert done.returncode == 0, done.stderr
    ours = tomllib.loads((here / "ours.toml").read_text())["policy"]
    assert ours["lora"]["r"] == 4 and "freeze_pattern" not in ours
    done = build(here, config, "--tuning", "full")
    assert done.returncode == 0, done.stderr
    assert "lora" not in tomllib.loads((here / "ours.toml").read_text())["policy"]


@pytest.mark.parametrize(
    ("old", "new", "told", "flags"),
    [
        ("videophy2_sft_nano", "own", ("--tuning full", "custom.vision"),
         ("--tuning", "full", "--set", "custom.vision.nframes=4")),
        ("max_iter = 60\n", "", ("train.max_num_steps",), ("--set", "train.max_num_steps=60")),
        ("lr = 3e-6\n", "", ("train.optm_lr",), ("--set", "train.optm_lr=3e-6")),
        ("f_max = [1.0]", "f_max = [2.0]", ("f_max",), ("--set", "train.optm_lr=6e-6")),
        ("shard_degree = 4", "shard_degree = -1", ("--gpus-per-node",), ("--gpus-per-node", "4")),
        ("grad_accum_iter = 8\n", "", ("--global-batch",), ("--global-batch", "64")),
        ('load_path = "???"', 'load_path = "/run/iter_9"', ("--model DIR",),
         ("--model", "nvidia/Cosmos-Reason2-8B")),
    ],
)  # fmt: skip
def test_what_the_experiment_says_is_asked_for_and_taken_from_the_command_line(
    here, old, new, told, flags
):
    config = CONFIG.replace(old, new)
    assert config != CONFIG
    done = build(here, config)
    assert done.returncode == 1 and done.stderr.count("error:") == 1
    assert all(word in done.stderr for word in told), done.stderr
    done = build(here, config, *flags)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (CONFIG.replace('"vlm"', '"vfm"'), "generator"),
        (CONFIG.replace("save_iter", "save_itre"), "refuses checkpoint.save_itre"),
        (CONFIG.replace("[5]", "[5, 5]"), "2 cycles"),
    ],
)
def test_what_cannot_be_taken_over_is_one_error(here, config, told):
    done = build(here, config)
    assert done.returncode == 1 and done.stderr.count("error:") == 1
    assert told in done.stderr and "Traceback" not in done.stderr


def test_what_has_no_word_here_is_listed(here):
    done = build(
        here, CONFIG.replace("[60]", "[90]") + "[optimizer.lr_multipliers]\nvisual = 0.1\n"
    )
    assert done.returncode == 0
    assert "warning: SPEC-FRAMEWORK" in done.stderr
    assert "lr_multipliers.visual" in done.stderr and "cycle_lengths = 90" in done.stderr


@pytest.fixture
def exported(here):
    assert build(here, CONFIG).returncode == 0
    words = ("train", "--export", "cosmos-framework", "--spec", "ours.toml", "-o", "out")
    done = run_script("build_spec.py", *words, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "rendered, never run" in done.stdout + done.stderr
    return here / "out"


def test_what_is_exported_says_the_same_as_what_was_read(exported):
    theirs = tomllib.loads((exported / "train.toml").read_text())
    read = tomllib.loads(CONFIG)
    read["job"]["experiment"] = "cosmos_reason"
    read["model"]["parallelism"]["data_parallel_replicate_degree"] = 1
    del read["checkpoint"]["load_path"]
    said = {key: one for key, one in document.by_key(read).items() if not isinstance(one, dict)}
    assert {key: value(theirs, key) for key in said} == said
    assert (exported / "framework_experiment.py").is_file()
    assert "never run" in (exported / "README.md").read_text()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--tuning", "lora"), "drops LoRA in silence"),
        (("--set", "train.optm_decay_type=linear"), "expected cosine or none"),
        (("--model", "nvidia/Cosmos-Reason2-2B"), "finds the processor"),
        (("--set", "policy.parallelism.tp_size=2"), "expected 1"),
    ],
)
def test_what_the_framework_does_not_have_is_refused(here, flags, told):
    assert build(here, CONFIG).returncode == 0
    words = ("train", "--export", "cosmos-framework", "--spec", "ours.toml", "-o", "out", *flags)
    done = run_script("build_spec.py", *words, cwd=here)
    assert done.returncode == 1 and told in done.stderr, done.stderr
    assert not (here / "out").exists()


def test_a_folder_with_things_of_others_is_never_replaced(here, exported):
    words = ("train", "--export", "cosmos-framework", "--spec", "ours.toml", "-o", "out")
    assert run_script("build_spec.py", *words, cwd=here).returncode == 0, "its own files alone"
    (here / "out" / "notes.txt").write_text("mine")
    for more in ((), ("--force",)):
        done = run_script("build_spec.py", *words, *more, cwd=here)
        assert done.returncode == 1 and "SPEC-OUTPUT" in done.stderr and "fix:" not in done.stderr
    assert (here / "out" / "notes.txt").read_text() == "mine"


def test_other_actions_are_not_exported(here):
    words = ("evaluate", "--export", "cosmos-framework", "-o", "out")
    done = run_script("build_spec.py", *words, cwd=here)
    assert done.returncode == 2 and "--export" in done.stderr


def test_its_images_get_one_sentence(here):
    assert build(here, CONFIG).returncode == 0
    words = ("plan", "--spec", "ours.toml", "--platform", "docker", "--engine", "tao")
    done = run_script("launch_job.py", *words, "--image", "x/cosmos_framework:1", cwd=here)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "JOB-IMAGE" in line]
    assert len(lines) == 1 and "--export cosmos-framework" in lines[0], done.stderr


@pytest.mark.release
@pytest.mark.skipif(
    "COSMOS_FRAMEWORK" not in os.environ, reason="COSMOS_FRAMEWORK names no checkout"
)
def test_the_framework_resolves_what_was_exported(exported, tmp_path):
    """COSMOS_FRAMEWORK is a checkout, COSMOS_FRAMEWORK_PYTHON the interpreter of its environment
    (its .venv, where nothing is said)."""
    checkout = Path(os.environ["COSMOS_FRAMEWORK"])
    python = os.environ.get("COSMOS_FRAMEWORK_PYTHON", checkout / ".venv" / "bin" / "python")
    path = os.pathsep.join([str(exported), str(ROOT / "scripts"), str(checkout)])
    done = subprocess.run(
        [python, exported / "framework_experiment.py", "--sft-toml", exported / "train.toml",
         "--dryrun"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": path, "IMAGINAIRE_OUTPUT_ROOT": str(tmp_path / "runs")},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (written,) = (tmp_path / "runs").rglob("config.yaml")

    class Plain(yaml.SafeLoader):
        """Reads a tag of Python as nothing."""

    Plain.add_multi_constructor("", lambda *_: None)
    resolved = yaml.load(written.read_text(), Plain)
    assert value(resolved, "model.config.policy.lora") is None
    expected = {
        "optimizer.lr": 3e-6,
        "optimizer.betas": [0.9, 0.95],
        "optimizer.weight_decay": 0.1,
        "optimizer.lr_multipliers": {"model.visual": 1.0},
        "scheduler.warm_up_steps": [5],
        "scheduler.cycle_lengths": [60],
        "scheduler.f_min": [0.1],
        "trainer.max_iter": 60,
        "trainer.grad_accum_iter": 8,
        "trainer.run_validation": False,
        "checkpoint.save_iter": 20,
        "dataloader_train.batcher.max_batch_size": 2,
        "dataloader_train.batcher.max_tokens": 16000,
        "dataloader_train.distributor.dataset._target_": "framework_experiment.records",
        "model.config.freeze.frozen_params": MEANT["policy.freeze_pattern"],
        "model.config.parallelism.data_parallel_shard_degree": 4,
    }
    assert {key: value(resolved, key) for key in expected} == expected
