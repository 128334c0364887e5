"""The embedded engine in two processes that torchrun starts (gloo, on this machine's CPU)."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT
from training import LORA, short_training

from cosmos_reason.base import files
from cosmos_reason.checkpoints import left_out, run_outputs
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

# Float32 sums in another order: 1e-5 of a loss after 4 steps. Adam divides by the root of a
# gradient's square, so that a gradient near nothing may turn its step of `optm_lr` about: weights
# are compared with a part of the way that 4 steps can take them.
NUMBERS = 1e-4
WEIGHTS = 0.05 * 4 * 1e-3
ENGINE = ROOT / "scripts" / "run_with_transformers.py"
BATCH = 8  # of all ranks
# dp_shard_size, dp_replicate_size
ALONE, REPLICATED, SHARDED, BOTH = (1, 1), (1, 2), (2, 1), (2, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module")
def spec(tiny_model, dataset, folder):
    """Answers of unlike lengths in passes of few tokens: the ranks have other numbers of passes."""
    table = short_training(tiny_model, dataset, folder / "out")
    changes = {
        "custom.train_dataset.annotation_path": uneven(dataset, folder),
        "custom.transformers_engine.device": "cpu",
        "custom.transformers_engine.tokens_per_pass": 250,
    }
    document.set_values(table, changes)
    return table


def uneven(dataset, folder):
    records = files.read_json(dataset / "train" / "annotations.json")
    for number, record in enumerate(records):
        record["conversations"][1]["value"] = "left right " * (1 + 7 * (number % 3))
    files.write_json(folder / "uneven.json", records)
    return str(folder / "uneven.json")


ANSWERS = {"custom__transformers_engine__validate_answers": 7}


@pytest.fixture(scope="module")
def alone(spec, folder):
    """The run folder of one process."""
    return train(spec, folder, ALONE, "alone", **ANSWERS)


def command(spec, folder, sizes, name, program=ENGINE, **changes):
    """Write the spec for so many ranks, with the batch dealt to them; who starts it."""
    shards, replicas = sizes
    world = shards * replicas
    asked = {
        "train__timestamp": name,
        "policy__parallelism__dp_shard_size": shards,
        "policy__parallelism__dp_replicate_size": replicas,
        "train__train_batch_per_replica": BATCH // world,
    }
    table = json.loads(json.dumps(spec))
    for key, value in (asked | changes).items():
        document.set_value(table, key.replace("__", "."), value)
    document.dump(table, folder / f"{name}.toml")
    script = [program, "train", "--config", folder / f"{name}.toml"]
    if world == 1:
        return [sys.executable, *script]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--local-addr=127.0.0.1", f"--nproc-per-node={world}", *script]


def start(words):
    return subprocess.Popen(
        list(map(str, words)),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end_of(process, seconds=300):
    """Its exit code and output. One that does not end is ended, and what it started with it."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun, which kills its ranks 30 seconds later
        output, _ = process.communicate()
        raise AssertionError(f"it did not end by itself:\n{output}") from None
    return process.returncode, output


def train(spec, folder, sizes, name, says="", **changes):
    """The run folder of a training that succeeds, and says so much."""
    code, output = end_of(start(command(spec, folder, sizes, name, **changes)))
    assert code == 0, output
    assert output.count(says) == 1 or not says, output
    return Path(spec["train"]["output_dir"]) / name


def metrics(run, key):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[key] for line in lines if key in line}


def weights(run, name="model.safetensors"):
    return load_file(run / "safetensors" / "step_4" / name)


def assert_same_training(first, second, name="model.safetensors"):
    for key in ("train/loss", "train/grad_norm", "train/learning_rate", "val/avg_loss"):
        one, other = metrics(first, key), metrics(second, key)
        assert one and one == pytest.approx(other, rel=NUMBERS), key
    for key in ("val/tokens", "val/accuracy", "val/answers"):
        assert metrics(first, key) == metrics(second, key)
    assert_same_weights(first, second, name)


def assert_same_weights(first, second, name="model.safetensors", apart=WEIGHTS):
    one, other = weights(first, name=name), weights(second, name=name)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.allclose(value, other[key], rtol=0, atol=apart), key


# -- the same training ---------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [REPLICATED, SHARDED, BOTH])
def test_several_processes_train_as_one_and_one_resumes_what_they_saved(alone, spec, folder, sizes):
    several = "x".join(map(str, sizes))
    how = "replicated" if sizes == REPLICATED else "sharded over 2"
    run = train(spec, folder, sizes, several, f"processes, weights {how}", **ANSWERS)
    assert_same_training(alone, run)
    assert list(metrics(run, "train/loss")) == [1, 2, 3, 4], "one process writes the log"
    found = run_outputs.find(run)
    assert len(found) == 4 and all(checkpoint.complete for checkpoint in found)
    if sizes == BOTH:
        return
    state = str(run / "checkpoints" / "step_2" / "policy")
    again = train(spec, folder, ALONE, f"{several}-1", train__resume=state)
    assert list(metrics(again, "train/loss")) == [3, 4]
    assert_same_weights(alone, again)
    again = train(spec, folder, sizes, f"{several}-again", train__resume=state)
    assert_same_weights(run, again, apart=0)


def test_lora_is_replicated_whatever_the_sizes(spec, folder):
    ways = {"policy__lora": LORA}
    one = train(spec, folder, ALONE, "lora", **ways)
    says = "weights replicated (adapters are, whatever dp_shard_size says)"
    several = train(spec, folder, SHARDED, "lora-2", says, **ways)
    assert_same_training(one, several, "adapter_model.safetensors")


@pytest.mark.parametrize("frozen", [None, ["embed_tokens"]])
def test_ranks_whose_records_are_text_alone_or_that_have_none(spec, folder, frozen):
    """Nine records in batches of 8: of the last batch of an epoch one rank has nothing."""
    records = files.read_json(spec["custom"]["train_dataset"]["annotation_path"])[:9]
    for record in records[:6]:
        del record["video"]
        record["conversations"][0]["value"] = "Which?"
    files.write_json(folder / "mixed.json", records)
    ways = {
        "custom__train_dataset__annotation_path": str(folder / "mixed.json"),
        "train__train_policy__dataloader_drop_last": False,
        "train__epoch": 3,
    }
    if frozen:
        ways["policy__freeze_pattern"] = frozen
    name = f"mixed-{bool(frozen)}"
    one = train(spec, folder, ALONE, name, **ways)
    assert_same_training(one, train(spec, folder, SHARDED, f"{name}-sharded", **ways))
    if not frozen:
        assert_same_training(one, train(spec, folder, REPLICATED, f"{name}-replicated", **ways))


HALF = f"""
import runpy, sys
sys.path.insert(0, {str(ENGINE.parent)!r})
import torch
from cosmos_reason.engine import model

model.choose_hardware = lambda *_: model.Hardware(torch.device("cpu"), torch.bfloat16, "as a GPU")
runpy.run_path({str(ENGINE)!r}, run_name="__main__")
"""


def test_float32_weights_are_sharded_where_the_arithmetic_is_bfloat16(spec, folder):
    """As on GPUs. One process casts weights where they are used, shards are gathered cast: sums of
    bfloat16, whose rounding is 2**-8, in another order."""
    program = folder / "half.py"
    program.write_text(HALF)
    ways = {"program": program, "train__optm_lr": 1e-5}
    one = train(spec, folder, ALONE, "half", **ways)
    several = train(spec, folder, SHARDED, "half-2", **ways)
    for key, apart in (("train/loss", 2**-7), ("train/grad_norm", 2**-4), ("val/avg_loss", 2**-7)):
        assert metrics(one, key) == pytest.approx(metrics(several, key), rel=apart), key
    # Steps that bfloat16 weights would have lost.
    kept = {"train__master_dtype": "bfloat16"}
    rounded = train(spec, folder, SHARDED, "half-rounded", **ways, **kept)
    assert min(moved(spec, one), moved(spec, several)) > 0.9 > 0.5 > moved(spec, rounded)


def moved(spec, run):
    """The share of the weights of queries that the state of a run has changed."""
    before = load_file(
        Path(spec["policy"]["model_name_or_path"]) / "model-00001-of-00001.safetensors"
    )
    after = load_file(run / "checkpoints" / "step_4" / "policy" / "model.safetensors")
    queries = [name for name in before if name.endswith("q_proj.weight")]
    changed = torch.cat([(after[name] != before[name]).flatten() for name in queries])
    return changed.float().mean().item()


# -- ends ----------------------------------------------------------------------------------------


def wait_for_step(process, run, step):
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if (run / "metrics.jsonl").is_file() and step in metrics(run, "train/loss"):
            return
        time.sleep(0.05)
    raise AssertionError(end_of(process)[1])


def processes_of(launcher):
    """The processes of the ranks, by rank."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    found = {}
    for child in map(int, children):
        told = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {int(name[5:]): child for name in told if name.startswith(b"RANK=")}
    return found


LONG = {"train__max_num_steps": 400, "train__epoch": 400, "validation__enable": False}


@pytest.mark.parametrize("sizes", [REPLICATED, SHARDED])
def test_a_signal_to_one_rank_lets_all_save_and_a_resume_goes_on(spec, folder, sizes):
    name = f"asked-{sizes[0]}"
    ways = LONG | {"train__ckpt__save_freq": 400, "train__output_dir": str(folder / name)}
    run = folder / name / name
    process = start(command(spec, folder, sizes, name, **ways))
    wait_for_step(process, run, 2)
    os.kill(processes_of(process)[1], signal.SIGTERM)
    code, output = end_of(process)
    assert code != 0 and output.count("ENGINE-STOPPED") == 1, output
    last = int(re.search(r"got SIGTERM and ended after step (\d+) of 400", output)[1])
    (saved,) = run_outputs.find(run)
    assert (saved.kind, saved.step, saved.complete) == ("resume", f"step_{last}", True)
    process = start(command(spec, folder, sizes, name, **ways, train__resume=True))
    wait_for_step(process, run, last + 1)
    process.terminate()  # torchrun, which tells its ranks
    code, output = end_of(process)
    assert code != 0 and output.count("ENGINE-STOPPED") == 1, output
    assert list(metrics(run, "train/loss"))[:last] == list(range(1, last + 1))


def test_a_rank_that_is_killed_ends_all_with_the_cause(spec, folder):
    ways = LONG | {"train__output_dir": str(folder / "killed")}
    process = start(command(spec, folder, REPLICATED, "killed", **ways))
    wait_for_step(process, folder / "killed" / "killed", 2)
    killed = processes_of(process)
    os.kill(killed[1], signal.SIGKILL)
    code, output = end_of(process)
    assert code != 0
    assert re.search(r"rank\s+: 1 .local_rank: 1", output) and "SIGKILL" in output, output
    assert not any(Path(f"/proc/{child}").exists() for child in killed.values())


@pytest.mark.parametrize("sizes", [REPLICATED, SHARDED])
def test_records_that_one_rank_cannot_read_are_left_out_as_in_one_process(
    spec, dataset, folder, sizes
):
    """One of training, and one of validation with its question."""
    name = f"one-absent-{sizes[0]}"
    ways = ANSWERS | {"train__train_policy__dataloader_num_workers": 1}
    for key, number in (("train_dataset", 5), ("val_dataset", 2)):
        records = files.read_json(spec["custom"][key]["annotation_path"])
        records[number]["video"] = f"absent-{key}.mp4"
        files.write_json(folder / f"{name}-{key}.json", records)
        ways[f"custom__{key}__annotation_path"] = str(folder / f"{name}-{key}.json")
    one = train(spec, folder, ALONE, name, "absent-val_dataset.mp4", **ways)
    several = train(spec, folder, sizes, f"{name}-2", "absent-val_dataset.mp4", **ways)
    assert_same_training(one, several)
    for key in ("train/skipped_records", "val/skipped_records"):
        counts = metrics(several, key)
        assert counts == metrics(one, key) and counts[4] == 1
    told = [files.read_json(run / left_out.FILE) for run in (one, several)]
    assert told[0] == told[1]
    state = str(several / "checkpoints" / "step_2" / "policy")
    again = train(spec, folder, sizes, f"{name}-again", train__resume=state, **ways)
    assert files.read_json(again / left_out.FILE) == told[0]
    assert metrics(again, "val/avg_loss")[4] == metrics(several, "val/avg_loss")[4]


def test_more_records_than_may_be_lost_end_all_with_one_finding(spec, folder):
    records = files.read_json(spec["custom"]["train_dataset"]["annotation_path"])
    for number in (4, 5, 6):
        records[number]["video"] = f"absent{number}.mp4"
    files.write_json(folder / "broken.json", records)
    broken = {"custom__train_dataset__annotation_path": str(folder / "broken.json")}
    code, output = end_of(start(command(spec, folder, REPLICATED, "broken", **broken)))
    assert code != 0 and output.count("error: DATA-MEDIA-MISSING") == 1, output
    assert 'run_with_transformers.py", line' not in output, "no traceback of ours"
    assert "ENGINE-RANK-LOST" not in output


READER = f"""
import os, runpy, signal, sys
sys.path.insert(0, {str(ENGINE.parent)!r})
from cosmos_reason.engine.encode import Encoder

encode = Encoder.encode_training

def encoded(self, sample, *more):
    if os.environ["RANK"] == "1" and sample.index == {2 * BATCH + 1}:  # of the third step
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(self, sample, *more)

Encoder.encode_training = encoded
runpy.run_path({str(ENGINE)!r}, run_name="__main__")
"""


@pytest.mark.parametrize("sizes", [REPLICATED, SHARDED])
def test_a_reader_of_one_rank_that_is_killed_lets_all_save(spec, folder, sizes):
    name = f"killed-{sizes[0]}"
    program = folder / "reader.py"
    program.write_text(READER)
    ways = {
        "program": program,
        "train__train_policy__dataloader_num_workers": 1,
        "train__train_policy__dataloader_prefetch_factor": 1,
        "train__train_policy__dataloader_shuffle": False,
        "train__output_dir": str(folder / name),
        "train__ckpt__save_freq": 4,
        "validation__enable": False,
    }
    code, output = end_of(start(command(spec, folder, sizes, name, **ways)))
    assert code != 0 and output.count("error: ENGINE-LOADER-DIED reading for rank 1") == 1, output
    last = int(re.search(r"ended after step (\d) of 4; its state is saved", output)[1])
    assert last in (1, 2), "rank 1 is told in the step before at the latest"
    (saved,) = run_outputs.find(folder / name)
    assert (saved.kind, saved.step, saved.complete) == ("resume", f"step_{last}", True)
    assert 'run_with_transformers.py", line' not in output, "no traceback of ours"


def test_a_spec_that_is_wrong_for_all_is_told_once(spec, folder):
    more = {"policy__parallelism__dp_shard_size": 2}
    code, output = end_of(start(command(spec, folder, REPLICATED, "wrong-world", **more)))
    assert code == 1 and output.count("ENGINE-WORLD-SIZE") == 1, output
    words = command(spec, folder, REPLICATED, "wrong-rate", train__optm_lr=-1.0)
    code, output = end_of(start(words))
    assert code == 1 and output.count("SPEC-VALUE") == 1, output
    code, output = end_of(start([*words[:-1], folder / "absent.toml"]))
    assert code == 1 and output.count("FILE-MISSING") == 1, output
