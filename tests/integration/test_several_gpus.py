"""The embedded engine in two processes that torchrun starts (gloo, on this machine's CPU)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT
from training import short_training

from cosmos_reason.base import files
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

# Float32 sums in another order: 1e-5 of a loss after 4 steps. Adam divides by the root of a
# gradient's square, so that a gradient near nothing may turn its step of `optm_lr` about: weights
# are compared with a part of the way that 4 steps can take them.
NUMBERS = 1e-4
WEIGHTS = 0.05 * 4 * 1e-3
LORA = {"r": 4, "lora_alpha": 8.0, "target_modules": ["q_proj", "v_proj"]}
BATCH = 8  # of all ranks
REPLICATED, SHARDED = (1, 2), (2, 1)  # dp_shard_size, dp_replicate_size


@pytest.fixture
def spec(tiny_model, dataset, tmp_path):
    return short_training(tiny_model, dataset, tmp_path / "out")


def command(spec, folder, sizes, ranks=None, **changes):
    """Write the spec for so many ranks, with the batch dealt to them; who starts it."""
    shards, replicas = sizes
    world = shards * replicas
    asked = {
        "policy__parallelism__dp_shard_size": shards,
        "policy__parallelism__dp_replicate_size": replicas,
        "train__train_batch_per_replica": BATCH // world,
        "custom__transformers_engine__device": "cpu",
    }
    table = json.loads(json.dumps(spec))
    for key, value in (asked | changes).items():
        document.set_value(table, key.replace("__", "."), value)
    path = folder / f"{table['train']['timestamp']}.toml"
    document.dump(table, path)
    script = [ROOT / "scripts" / "run_with_transformers.py", "train", "--config", path]
    if world == 1 and ranks is None:
        return [sys.executable, *script]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(ranks or world), *script]


def start(words):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        list(map(str, words)),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process):
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def train(spec, folder, sizes, name, **changes):
    """The run folder of a training that succeeds."""
    process = start(command(spec, folder, sizes, train__timestamp=name, **changes))
    code, output = finished(process)
    assert code == 0, output
    return Path(spec["train"]["output_dir"]) / name


def metrics(run, key):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[key] for line in lines if key in line}


def weights(run, step="step_4", name="model.safetensors"):
    return load_file(run / "safetensors" / step / name)


def assert_same_training(first, second, name="model.safetensors"):
    for key in ("train/loss", "train/grad_norm", "train/learning_rate", "val/avg_loss"):
        one, other = metrics(first, key), metrics(second, key)
        assert one and one == pytest.approx(other, rel=NUMBERS), key
    assert metrics(first, "val/tokens") == metrics(second, "val/tokens")
    assert metrics(first, "val/accuracy") == metrics(second, "val/accuracy")
    assert_same_weights(first, second, name)


def assert_same_weights(first, second, name="model.safetensors"):
    one, other = weights(first, name=name), weights(second, name=name)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.allclose(value, other[key], rtol=0, atol=WEIGHTS), key


def uneven(dataset, folder):
    """Records of which some have long answers: the shares of a batch differ in tokens."""
    records = files.read_json(dataset / "train" / "annotations.json")
    for number, record in enumerate(records):
        record["conversations"][1]["value"] = "left right " * (1 + 7 * (number % 3))
    files.write_json(folder / "uneven.json", records)
    return str(folder / "uneven.json")


# -- the same training ---------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [REPLICATED, SHARDED, (2, 2)])
def test_several_processes_train_as_one_whatever_the_lengths_and_passes(
    spec, dataset, tmp_path, sizes
):
    ways = {
        "custom__train_dataset__annotation_path": uneven(dataset, tmp_path),
        "custom__transformers_engine__tokens_per_pass": 250,
        "custom__transformers_engine__validate_answers": 7,
    }
    alone = train(spec, tmp_path, (1, 1), "alone", **ways)
    several = train(spec, tmp_path, sizes, "several", **ways)
    assert_same_training(alone, several)
    best = Path(spec["train"]["output_dir"]) / "best" / "safetensors"
    assert best.resolve().parents[1] == several
    found = run_outputs.find(several)
    assert len(found) == 4 and all(checkpoint.complete for checkpoint in found)
    assert list(metrics(several, "train/loss")) == [1, 2, 3, 4], "one process writes the log"


@pytest.mark.parametrize("sizes", [REPLICATED, SHARDED])
def test_lora_is_replicated_whatever_the_sizes(spec, tmp_path, sizes):
    ways = {"policy__lora": LORA, "train__optm_lr": 1e-3}
    alone = train(spec, tmp_path, (1, 1), "alone", **ways)
    several = train(spec, tmp_path, sizes, "several", **ways)
    assert_same_training(alone, several, "adapter_model.safetensors")
