"""Configs of other trainers: none is taken over in part, and the fix says it here."""

import json
import shlex
from pathlib import Path

import pytest
import support_specs
from support import run_script

LLAMA_FACTORY = """
model_name_or_path: nvidia/Cosmos-Reason2-2B
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: mllm_video_demo
template: qwen3_vl
cutoff_len: 40960
output_dir: saves/lora/sft
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 20.0
warmup_ratio: 0.1
"""
MS_SWIFT = """
model: nvidia/Cosmos-Reason2-2B
train_type: full
dataset: [train.jsonl]
freeze_vit: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1.0e-5
num_train_epochs: 20
max_length: 40960
"""
TRL = """
model_name_or_path: nvidia/Cosmos-Reason2-2B
dataset_name: mine
use_peft: true
lora_r: 8
lora_alpha: 16
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
gradient_checkpointing_kwargs: {use_reentrant: false}
learning_rate: 1.0e-4
num_train_epochs: 20
save_strategy: epoch
save_steps: 500
"""
HF = """
model_name_or_path: nvidia/Cosmos-Reason2-2B
per_device_train_batch_size: 8
learning_rate: 1.0e-5
num_train_epochs: 20
bf16: true
"""
AXOLOTL = """
base_model: nvidia/Cosmos-Reason2-2B
datasets: [{path: train.jsonl, type: chat_template}]
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
micro_batch_size: 4
gradient_accumulation_steps: 2
num_epochs: 20
learning_rate: 1.0e-4
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.json").write_text(support_specs.RECORDS)
    return tmp_path


KEEP_ALL = "--set train.train_policy.dataloader_drop_last=false"


DATA = f"--set train_annotations=data.json --set train_media=. {KEEP_ALL}"


def refused(line, text):
    """(the one error about somebody's config, the command line with its fix in its place)."""
    Path("theirs.yaml").write_text(text)
    code, found, made = support_specs.run(f"{line} --spec theirs.yaml")
    (error,) = [one for one in found if one.severity == "error"]
    assert (code, error.id, made) == (1, "SPEC-ACTION", None)
    return error, f"{line} {str(error.fix).partition(' with ')[2]}"


@pytest.mark.parametrize(
    ("text", "is_lora", "rate"),
    [
        (LLAMA_FACTORY, True, 1e-4),
        (MS_SWIFT, False, 1e-5),
        (TRL, True, 1e-4),
        (HF, False, 1e-5),
        (AXOLOTL, True, 1e-4),
    ],
)
def test_the_fix_says_in_our_words_what_the_config_says(here, text, is_lora, rate):
    line = f"train --engine transformers {DATA}"
    error, _ = refused(f"{line} --fix", text)
    instead = str(error.fix).removeprefix("replace --spec theirs.yaml --fix with ")
    code, found, spec = support_specs.run(f"{line} {instead}")
    assert code == 0, found
    assert ("lora" in spec["policy"]) == is_lora and spec["train"]["optm_lr"] == rate
    assert spec["train"]["train_batch_per_replica"] == 8 and spec["train"]["epoch"] == 20
    assert not is_lora or spec["policy"]["lora"]["r"] == 8


def test_what_the_command_line_says_wins_and_what_is_left_out_is_named(here):
    line = f"train --engine cosmos-rl {DATA} --model nvidia/Cosmos-Reason2-8B"
    line += " --global-batch 16 --gpus-per-node 4"
    error, mended = refused(line, LLAMA_FACTORY)
    instead = mended.removeprefix(line)
    given = ("--model", "--global-batch", "train_batch_per_replica")
    assert not any(words in instead for words in given)
    left = {"trust_remote_code", "lora_target", "dataset", "template", "cutoff_len"}
    assert set(error.data["left_out"]) == left
    assert all(name in error.message for name in left)
    spec = support_specs.run(mended)[2]
    assert spec["train"]["train_batch_per_replica"] == 4  # of a global batch of 16
    assert spec["policy"]["model_name_or_path"].endswith("nvidia/Cosmos-Reason2-8B")
    assert spec["train"]["epoch"] == 20 and spec["policy"]["lora"]["r"] == 8


def test_a_batch_of_each_gpu_stays_one_of_each_gpu(here):
    _, mended = refused(f"train --engine cosmos-rl {DATA} --gpus-per-node 4", MS_SWIFT)
    spec = support_specs.run(mended)[2]
    assert spec["train"]["train_batch_per_replica"] == 8  # 2 x 4, on each of the 4


@pytest.mark.parametrize(
    "more", ["stage: dpo", "rlhf_type: grpo", "stage: sft\nfinetuning_type: freeze", "rl: simpo"]
)
def test_a_config_of_another_kind_of_training_gets_no_fix(here, more):
    text = LLAMA_FACTORY.replace("finetuning_type: lora\n", "").replace("stage: sft", more)
    assert not refused("train", text)[0].fix


def test_a_spec_of_ours_that_is_nearly_flat_is_none_of_theirs(here):
    (here / "ours.yaml").write_text("train: {epoch: 3}\npolicy: {model_max_length: 40960}\n")
    _, found, _ = support_specs.run("train --spec ours.yaml")
    assert "SPEC-ACTION" not in {one.id for one in found}


@pytest.mark.parametrize(
    "line",
    [
        "check_tao_launch_preflight.py --platform local --skip-platform-access",
        "launch_job.py plan --platform local",
        "launch_job.py plan train --platform local",
        "tune_hyperparameters.py plan --study study --platform local",
        "check_dataset.py data.json --media-path .",
    ],
)
def test_every_script_that_reads_a_spec_says_it_in_our_words(here, line):
    (here / "theirs.yaml").write_text(LLAMA_FACTORY)
    done = run_script(f"{line} --spec theirs.yaml --json", cwd=here)
    found = json.loads(done.stdout)["findings"]
    (error,) = [one for one in found if one["severity"] == "error"]
    assert done.returncode == 1 and error["id"] == "SPEC-ACTION"
    program, *fix = shlex.split(error["fix"])
    assert program.endswith("scripts/build_spec.py")
    assert {"policy.lora.r=8", "nvidia/Cosmos-Reason2-2B"} <= set(fix)


def test_the_command_that_a_plan_gives_makes_a_spec_that_it_takes(here):
    (here / "theirs.yaml").write_text(LLAMA_FACTORY)
    (here / "annotations.json").write_text(support_specs.RECORDS)
    plan = "launch_job.py plan --platform local --json --spec"
    (error,) = json.loads(run_script(f"{plan} theirs.yaml", cwd=here).stdout)["findings"]
    _, *words = shlex.split(error["fix"])
    words[words.index("DIR")] = "."
    done = run_script("build_spec.py", *words, *KEEP_ALL.split(), cwd=here)
    assert done.returncode == 0, done.stderr
    found = json.loads(run_script(f"{plan} spec.toml", cwd=here).stdout)["findings"]
    assert not {one["id"] for one in found if one["id"].startswith(("SPEC-KEY", "SPEC-ACTION"))}


def test_two_names_for_one_key_are_left_out_and_named(here):
    error, _ = refused("train", HF + "warmup_ratio: 0.1\nwarmup_steps: 20\n")
    assert error.data["left_out"] == ["warmup_ratio", "warmup_steps"]
    assert "warmup" not in str(error.fix)
