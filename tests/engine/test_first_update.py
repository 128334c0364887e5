"""What is looked at before weights change, and the loss of a run as a whole."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import one_thread, together
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import LORA, course, metrics, run

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine import model as models
from cosmos_reason.engine.first_update import FirstUpdate
from cosmos_reason.engine.samples import loss_tokens
from cosmos_reason.engine.train import setup
from cosmos_reason.engine.train.schedule import Schedule
from cosmos_reason.spec import document


@pytest.fixture
def spec(train_spec):
    train_spec["validation"]["enable"] = False
    return train_spec


def outputs(spec):
    return Path(spec["train"]["output_dir"])


def parts(said):
    (line,) = [line for line in said.splitlines() if line.startswith("gradients of step ")]
    step, _, rest = line.removeprefix("gradients of step ").partition(": ")
    found = {}
    for words in rest.split("; "):
        numbers, _, norm = words.partition(", gradient ")
        name, trained, _, frozen, _ = numbers.rsplit(" ", 4)
        counts = int(trained.replace(",", "")), int(frozen.replace(",", ""))
        found[name] = (*counts, float(norm or 0))
    return int(step), found


def damaged(monkeypatch, damage):
    """Let each network that is built be damaged."""
    build = setup.build_network

    def built(*args):
        network = build(*args)
        damage(network)
        return network

    monkeypatch.setattr(setup, "build_network", built)


@pytest.mark.parametrize("tuning", ["full", "lora", "text", "merger"])
def test_each_part_is_said_with_its_gradient(spec, capsys, tuning):
    how = {
        "full": {},
        "lora": {"policy__lora": LORA},
        "text": {"policy__freeze_pattern": ["visual"]},
        "merger": {"policy__trainable_pattern": ["merger"]},
    }[tuning]
    run(spec, **how, train__max_num_steps=1, train__ckpt__enable_checkpoint=False)
    step, found = parts(capsys.readouterr().err)
    expected = {"text", "tower", "merger"} | ({"adapters"} if tuning == "lora" else set())
    assert step == 1 and found.keys() == expected
    trained = {
        "full": expected,
        "lora": {"adapters"},
        "text": {"text"},
        "merger": {"merger"},
    }[tuning]
    for name, (train, frozen, norm) in found.items():
        assert bool(train) == (name in trained) == bool(norm), name
        assert bool(frozen) == (name not in trained), name
    norms = [norm**2 for _, _, norm in found.values()]
    (told,) = course(outputs(spec) / "run", "train/grad_norm")
    assert sum(norms) ** 0.5 == pytest.approx(told, rel=0.01)


def test_a_part_that_gets_no_gradient_ends_the_run_before_its_weights_change(spec, monkeypatch):
    def detach(network):
        network.model.visual.merger.register_forward_hook(lambda _m, _i, out: out.detach())
        for merger in network.model.visual.deepstack_merger_list:
            merger.register_forward_hook(lambda _m, _i, out: out.detach())

    damaged(monkeypatch, detach)
    with pytest.raises(Failure) as caught:
        run(spec)
    found = {(one.id, one.where, one.message.split()[-1]) for one in caught.value.findings}
    where = ("ENGINE-NO-GRADIENT", "step 1")
    assert found == {(*where, "tower"), (*where, "merger")} and caught.value.exit_code == 1
    assert not list(outputs(spec).rglob("*.safetensors"))


def test_text_alone_judges_no_tower(spec, dataset, tmp_path, capsys):
    """Nor is one that no record reaches an error."""
    path = dataset / "train" / "annotations.json"
    records = json.loads(path.read_text())
    for record in records:
        del record["video"]
        record["conversations"][0]["value"] = "How are you?"
    (tmp_path / "text.json").write_text(json.dumps(records))
    changes = {"custom__train_dataset__annotation_path": str(tmp_path / "text.json")}
    run(spec, **changes, train__max_num_steps=2, train__ckpt__enable_checkpoint=False)
    assert parts(capsys.readouterr().err)[1].keys() == {"text"}


def test_the_loss_of_a_run_weighs_tokens_alike_also_after_a_stop(spec, dataset, tiny_model):
    with one_thread():
        run(spec, train__max_num_steps=4)
        whole = metrics(outputs(spec) / "run", "train/loss")
        full = document.with_defaults("train", spec)
        samples, _ = setup.datasets(full, tiny_model, models.load_tokenizer(tiny_model))
        per_epoch, total = setup.plan_steps(len(samples), full["train"])
        loss = tokens = 0
        batches = Schedule(full, per_epoch, total).batches(len(samples), 1, 0)
        for line, batch in zip(whole, batches, strict=True):
            count = loss_tokens([samples[number] for number in batch])
            loss, tokens = loss + line["train/loss"] * count, tokens + count
            assert line["train/mean_loss"] == pytest.approx(loss / tokens, rel=1e-9)
        for part in ("checkpoints", "safetensors"):
            shutil.rmtree(outputs(spec) / "run" / part / "step_4")
        run(spec, train__timestamp="again", train__resume=True)
    again = course(outputs(spec) / "again", "train/mean_loss")
    assert again == [line["train/mean_loss"] for line in whole[2:]]


def judge_shards(stray, rank):
    """The norms of a layer that both ranks hold and of a sharded one, and what is judged, where
    the rank `stray` alone has a gradient of a frozen one."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.ModuleDict({"text": nn.Linear(3, 5), "merger": nn.Linear(5, 3)})
    network.other = nn.Linear(1, 1).requires_grad_(False)

    def backward():
        network["merger"](network["text"](torch.ones(1, 3))).sum().backward()

    backward()
    layers = network["text"], network["merger"]
    whole = [one.weight.grad.norm().hypot(one.bias.grad.norm()).item() for one in layers]
    network.zero_grad()
    fully_shard(layers[1], mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("shard",)))
    backward()
    if rank == stray:
        network.other.weight.grad = torch.ones(1, 1)
    first = FirstUpdate(network)
    norms, media = first._measured(rank == 1)
    problems = first.judge(rank == 1, 1)
    here = [norms["text"][0], norms["merger"][0]]
    return here, whole, media, [one.id for one in problems], first.is_done


@pytest.mark.parametrize("stray", [-1, 1])
def test_sharded_gradients_are_measured_whole_and_all_ranks_judge_alike(tmp_path, stray):
    """A gradient that one rank alone has ends all of them, and none waits for another."""
    (first, said), (second, other) = together(partial(judge_shards, stray), tmp_path)
    assert first == second
    norms, whole, media, ids, is_done = first
    assert media and is_done
    assert norms == pytest.approx(whole, rel=1e-5)
    assert ids == ([] if stray < 0 else ["ENGINE-FROZEN-GRADIENT"])
    assert [text.count("gradients of step 1") for text in (said, other)] == [1, 0]
