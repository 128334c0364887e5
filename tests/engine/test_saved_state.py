"""The state that a training resumes from, as it is written."""

import weakref

import pytest
import torch
from safetensors.torch import load_file
from support import files_up_to

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine.train import checkpointing, shards


class Odd(torch.nn.Module):
    """Weights of odd numbers of elements, of two types."""

    def __init__(self):
        super().__init__()
        for number, size in enumerate([3, 5, 1, 7]):
            dtype = (torch.bfloat16, torch.float32)[number % 2]
            self.register_parameter(f"w{number}", torch.nn.Parameter(torch.randn(size).to(dtype)))


@pytest.fixture
def trained():
    network = Odd()
    optimizer = torch.optim.AdamW(network.parameters())
    sum(part.float().square().sum() for part in network.parameters()).backward()
    optimizer.step()
    return network, optimizer


def save(folder, trained):
    state = {"step": 1, "total_steps": 2, "records": 3}
    checkpointing.save_state(folder, *trained, {}, state)


def test_tensors_of_odd_sizes_are_read_by_the_library(tmp_path, trained):
    network, optimizer = trained
    save(tmp_path / "policy", trained)
    found = load_file(tmp_path / "policy" / checkpointing.MODEL_STATE)
    assert found.keys() == dict(network.named_parameters()).keys()
    assert all(torch.equal(found[name], part) for name, part in network.named_parameters())
    moments = load_file(tmp_path / "policy" / checkpointing.OPTIMIZER_STATE)
    for number, part in enumerate(network.parameters()):
        for name, value in optimizer.state[part].items():
            kept = moments[f"{number}.{name}"]
            assert torch.equal(kept, value) and kept.dtype == value.dtype, name
    assert checkpointing.load_state(tmp_path / "policy", *trained)["step"] == 1


class Gathered:
    """What puts shards together, and counts how many of its results are held at a time."""

    def __init__(self):
        self.held, self.most, self.times = 0, 0, 0

    def __call__(self, tensor):
        whole = tensor.clone()
        self.times += 1
        self.held += 1
        self.most = max(self.most, self.held)
        weakref.finalize(whole, self.let_go)
        return whole

    def let_go(self):
        self.held -= 1


def test_the_host_holds_few_tensors_at_a_time(tmp_path, trained, monkeypatch):
    gathered = Gathered()
    monkeypatch.setattr(shards, "whole", gathered)
    save(tmp_path / "policy", trained)
    assert gathered.times >= 4 + 4 * 3 and gathered.most <= 2


def test_all_is_gathered_also_when_the_disk_is_full(tmp_path, trained, monkeypatch):
    """The other ranks take part in each, and would wait."""
    gathered = Gathered()
    monkeypatch.setattr(shards, "whole", gathered)
    with files_up_to(100), pytest.raises(Failure, match="ENGINE-SAVE-FAILED") as full:
        save(tmp_path / "policy", trained)
    assert str(full.value.findings[0].fix) == "--set train.ckpt.max_keep=1"
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match="ENGINE-SAVE-FAILED") as other:
        save(tmp_path / "file" / "policy", trained)
    assert not other.value.findings[0].fix  # fewer checkpoints would not mend it
    (tmp_path / "file").unlink()
    assert gathered.times >= 4 + 4 * 3 and not list(tmp_path.iterdir())
