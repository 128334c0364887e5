"""Adapters judged by PEFT: what it merges we merge, and what we fix it loads."""

import json
import os
import shutil

import pytest
from support import run_script

from cosmos_reason import adapters, conversion, omni, safetensors_files
from cosmos_reason.demo import tiny_omni
from cosmos_reason.findings import Failure

LANGUAGE = "model.language_model.layers."


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny_omni.build(folder / "omni", seed=1, text="left right yes no")
    conversion.convert(omni.open_source(folder / "omni"), folder / "model", 500_000, force=False, jobs=1)
    return folder / "model"


def load(base, dtype):
    from transformers import Qwen3VLForConditionalGeneration

    return Qwen3VLForConditionalGeneration.from_pretrained(base, dtype=dtype)


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """A PEFT adapter on language and vision layers, with two ranks, an alpha of its own, and a module saved whole."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(
        r=4,
        lora_alpha=6,
        use_rslora=True,
        target_modules=["q_proj", "down_proj", "attn.qkv"],
        rank_pattern={"down_proj": 2},
        alpha_pattern={r"layers\.1\.self_attn\.q_proj": 11},
        modules_to_save=["lm_head"],
    )
    network = get_peft_model(load(base, torch.float32), config)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    network.peft_config["default"].base_model_name_or_path = str(base)
    folder = tmp_path_factory.mktemp("adapter") / "step_1"
    network.save_pretrained(folder)
    return folder


def as_cosmos_rl(folder, target):
    """The same adapter as cosmos-rl writes it: parts of names as targets, fields of its own, nulls."""
    shutil.copytree(folder, target)
    path = target / "adapter_config.json"
    config = json.loads(path.read_text())
    kept = {key: config[key] for key in ("r", "lora_alpha", "use_rslora", "alpha_pattern", "base_model_name_or_path")}
    own = {"lora_names": ["default"], "lora_path": None, "primary_adapter": None, "r_pattern": config["rank_pattern"]}
    kept |= {"target_modules": ["self_attn.q", "mlp.down", "qkv"], "modules_to_save": ["lm_head"], "peft_type": "LORA"}
    path.write_text(json.dumps(kept | own))
    return target


def weights(folder):
    import torch

    tensors, findings = safetensors_files.read_folder(folder)
    assert not findings
    return {name: torch.from_numpy(safetensors_files.read_float32(tensor)) for name, tensor in tensors.items()}


def test_merges_as_peft_does(base, trained, tmp_path):
    import torch
    from peft import PeftModel

    adapters.merge(adapters.read(trained), base, tmp_path / "merged", jobs=2)
    merged, before = weights(tmp_path / "merged"), weights(base)
    expected = PeftModel.from_pretrained(load(base, torch.float32), trained).merge_and_unload().state_dict()
    assert set(merged) == set(expected)
    changed = {name for name in merged if not torch.equal(merged[name], before[name])}
    # 3 layers with q_proj and down_proj, 2 vision blocks, the head
    assert len(changed) == 9 and "lm_head.weight" in changed
    for name, values in merged.items():
        rounded = expected[name].to(torch.bfloat16).float()
        # The order of a sum may round another way: then it is the neighbouring bfloat16.
        assert torch.allclose(values, rounded, rtol=2**-7, atol=0)
        assert (values == rounded).float().mean() > 0.999


def test_the_merged_folder_is_a_whole_model(base, trained, tmp_path):
    from cosmos_reason import checkpoints

    adapters.merge(adapters.read(trained), base, tmp_path / "merged", jobs=1)
    assert checkpoints.verify(tmp_path / "merged") == []
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert names == {path.name for path in base.iterdir()} - {conversion.PROVENANCE}


def test_a_cosmos_rl_adapter_merges_the_same_and_loads_when_fixed(base, trained, tmp_path):
    import torch
    from peft import PeftModel

    foreign = as_cosmos_rl(trained, tmp_path / "foreign")
    adapter = adapters.read(foreign)
    adapters.merge(adapter, base, tmp_path / "a", jobs=1)
    adapters.merge(adapters.read(trained), base, tmp_path / "b", jobs=1)
    for name, values in weights(tmp_path / "a").items():
        assert torch.equal(values, weights(tmp_path / "b")[name])
    adapters.fix(adapter, tmp_path / "fixed")
    ours = PeftModel.from_pretrained(load(base, torch.float32), tmp_path / "fixed").merge_and_unload().state_dict()
    theirs = PeftModel.from_pretrained(load(base, torch.float32), trained).merge_and_unload().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def rewrite(folder, change):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / adapters.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / adapters.WEIGHTS)


def first(tensors, part):
    return next(name for name in tensors if part in name)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda t: t.pop(first(t, "lora_B")), "CKPT-ADAPTER-PAIR"),
        (lambda t: t.update({first(t, "lora_B"): t[first(t, "lora_B")][:, :1].copy()}), "CKPT-ADAPTER-PAIR"),
        (
            lambda t: t.update({"base_model.model.x.lora_magnitude_vector": t[first(t, "lora_A")]}),
            "CKPT-ADAPTER-UNSUPPORTED",
        ),
        (lambda t: [t.pop(name) for name in list(t) if "lora" in name], "CKPT-ADAPTER-EMPTY"),
        (lambda t: t.update({"base_model.model.nowhere.weight": t[first(t, "lora_A")]}), "CKPT-ADAPTER-OTHER-BASE"),
    ],
)
def test_adapters_that_cannot_be_merged(base, trained, tmp_path, change, finding):
    folder = shutil.copytree(trained, tmp_path / "adapter")
    rewrite(folder, change)
    with pytest.raises(Failure) as caught:
        adapters.merge(adapters.read(folder), base, tmp_path / "merged", jobs=1)
    assert finding in {found.id for found in caught.value.findings}
    assert not (tmp_path / "merged").exists()


def test_the_command_merges_and_fixes(base, trained, tmp_path):
    run = tmp_path / "out" / "20260101000000" / "safetensors"
    shutil.copytree(trained, run / "step_1")
    command = ("select_checkpoint.py", tmp_path / "out", "--by", "step_1")
    done = run_script(*command, "--merge", tmp_path / "merged")
    assert done.returncode == 0 and done.stdout.strip() == str(tmp_path / "merged")
    again = run_script(*command, "--merge", tmp_path / "merged", "--json")
    assert again.returncode == 2 and json.loads(again.stdout)["findings"][0]["id"] == "CKPT-OUTPUT-EXISTS"
    assert run_script(*command, "--fix-adapter", tmp_path / "fixed").returncode == 0
    assert run_script("select_checkpoint.py", tmp_path / "out", "--merge", tmp_path / "x").returncode == 2
    config = json.loads((run / "step_1" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/workspace/models/base"
    (run / "step_1" / "adapter_config.json").write_text(json.dumps(config))
    assert run_script(*command, "--merge", tmp_path / "y").returncode != 0 and not (tmp_path / "y").exists()
    done = run_script(*command, "--merge", tmp_path / "y", "--base-model", base)
    assert done.returncode == 0 and "CKPT-ADAPTER-BASE" not in done.stderr
    damaged = shutil.copytree(base, tmp_path / "damaged")
    os.truncate(next(damaged.glob("*.safetensors")), 1000)
    assert run_script(*command, "--merge", tmp_path / "z", "--base-model", damaged).returncode == 1
