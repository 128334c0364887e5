"""How weights come into memory."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosmos_reason.base.findings import Failure
from cosmos_reason.engine import model as models

CPU = torch.device("cpu")


def everything(network):
    """Weights and buffers, those that no file has included."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def stored_in(folder, dtype):
    for path in folder.glob("*.safetensors"):
        tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})


@pytest.fixture(params=["tiny_model", "tiny_reason1"])
def folder(request, tmp_path):
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "model"))


def test_weights_that_are_read_as_they_are_stored_are_the_same(folder, monkeypatch):
    stored_in(folder, torch.bfloat16)
    assert models.precision_to_read(folder, torch.float32) == torch.bfloat16
    mapped = everything(models.load_model(folder, torch.float32, CPU))
    monkeypatch.setattr(models, "precision_to_read", lambda _, dtype: dtype)
    copied = everything(models.load_model(folder, torch.float32, CPU))
    assert mapped.keys() == copied.keys()
    for name, tensor in mapped.items():
        assert tensor.dtype == copied[name].dtype and torch.equal(tensor, copied[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_would_lose_by_bfloat16_is_not_read_in_it(folder, dtype):
    stored_in(folder, dtype)
    assert models.precision_to_read(folder, torch.float32) == torch.float32
    loaded = models.load_model(folder, torch.float32, CPU).state_dict()
    seen = 0
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            seen += name in loaded and torch.equal(loaded[name], tensor.float())
    assert seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, "auto"])
def test_other_precisions_are_read_as_they_are_asked_for(folder, dtype):
    assert models.precision_to_read(folder, dtype) == dtype


def test_what_stands_for_the_words_counts_among_what_answers(folder):
    """Answers are saved under it: those of another template are none of this one's."""
    before = models.stamps(folder)
    assert models.stamps(folder) == before
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text() + " ")
    assert models.stamps(folder) != before


def test_the_base_of_an_adapter_is_taken_at_the_commit_that_it_was_trained_on(
    tiny_model, tmp_path, monkeypatch
):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    told = {"base_model_name_or_path": "nvidia/Cosmos-Reason2-2B", "revision": "c0ffee"}
    (adapter / "adapter_config.json").write_text(json.dumps(told))
    asked = []

    def snapshot(repo, revision, *_):
        asked.append((repo, revision))
        return tiny_model

    monkeypatch.setattr(models.hub, "snapshot", snapshot)
    monkeypatch.setattr(models.hub, "commit", lambda repo, secret: "main")
    own, other = told["base_model_name_or_path"], "nvidia/Cosmos-Reason2-8B"
    for written in ("", own, f"hf_model://{own}", other):
        models.folders(str(adapter), {"enable_lora": True, "base_model_path": written})
    # Each asks for the config first.
    assert asked[::2] == [(own, "c0ffee")] * 3 + [(other, "main")]


def test_gpus_that_were_given_are_not_replaced_by_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for none in (None, "", "-1", "none", "void", "NoDevFiles"):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if none is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert models.choose_hardware("auto", "bfloat16").device == CPU
    for given in ("2", "0,1", "GPU-8932f937", "MIG-GPU-8932f937/1/2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        said = f"got CUDA_VISIBLE_DEVICES={given}, but torch .* no GPU.*, or this machine has none"
        with pytest.raises(Failure, match=said):
            models.choose_hardware("auto", "bfloat16")
    assert models.choose_hardware("cpu", "bfloat16").device == CPU
