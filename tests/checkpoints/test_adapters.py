"""Adapters judged by PEFT: what it merges we merge, and what we fix it loads."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from support import ROOT, run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import (
    adapters,
    conversion,
    made_of,
    omni,
    run_outputs,
    safetensors_files,
    tensor_numbers,
)
from cosmos_reason.evaluation import as_trained
from cosmos_reason.spec import actions


@pytest.fixture(scope="module")
def base(published, tmp_path_factory):
    """A model of several shards."""
    folder = tmp_path_factory.mktemp("base") / "model"
    conversion.convert(omni.open_source(published), folder, 500_000, force=False, jobs=1)
    return folder


def load(base, dtype):
    from transformers import Qwen3VLForConditionalGeneration

    return Qwen3VLForConditionalGeneration.from_pretrained(base, dtype=dtype)


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """A PEFT adapter on language and vision layers, with two ranks, an alpha of its own, and a
    module saved whole."""
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
    """The same adapter as cosmos-rl writes it: parts of names as targets, fields of its own,
    nulls."""
    shutil.copytree(folder, target)
    path = target / "adapter_config.json"
    config = json.loads(path.read_text())
    kept = "r lora_alpha use_rslora alpha_pattern base_model_name_or_path".split()
    own = {"lora_names": ["default"], "lora_path": None, "primary_adapter": None}
    own |= {"r_pattern": config["rank_pattern"], "modules_to_save": ["lm_head"]}
    own |= {"target_modules": ["self_attn.q", "mlp.down", "qkv"], "peft_type": "LORA"}
    own["init_lora_weights"] = "pissa"
    path.write_text(json.dumps({key: config[key] for key in kept} | own))
    return target


def merged_by_peft(base, adapter):
    """The weights that PEFT makes of a base and its adapter."""
    import torch
    from peft import PeftModel

    network = PeftModel.from_pretrained(load(base, torch.float32), adapter)
    return network.merge_and_unload().state_dict()


def weights(folder):
    import torch

    tensors, findings = safetensors_files.read_folder(folder)
    assert not findings
    return {
        name: torch.from_numpy(tensor_numbers.read_float32(tensor))
        for name, tensor in tensors.items()
    }


def test_merges_as_peft_does(base, trained, tmp_path):
    import torch

    adapters.merge(adapters.read(trained), base, tmp_path / "merged", jobs=2)
    merged, before = weights(tmp_path / "merged"), weights(base)
    expected = merged_by_peft(base, trained)
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
    adapters.merge(adapters.read(trained), base, tmp_path / "merged", jobs=1)
    assert run_outputs.verify(tmp_path / "merged") == []
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    beside = {path.name for path in base.iterdir()} - {conversion.PROVENANCE}
    assert names == beside | {made_of.FILE}


def test_a_cosmos_rl_adapter_merges_the_same_and_loads_when_fixed(base, trained, tmp_path):
    import torch

    foreign = as_cosmos_rl(trained, tmp_path / "foreign")
    adapter = adapters.read(foreign)
    adapters.merge(adapter, base, tmp_path / "a", jobs=1)
    adapters.merge(adapters.read(trained), base, tmp_path / "b", jobs=1)
    for name, values in weights(tmp_path / "a").items():
        assert torch.equal(values, weights(tmp_path / "b")[name])
    adapters.fix(adapter, tmp_path / "fixed")
    ours, theirs = (merged_by_peft(base, one) for one in (tmp_path / "fixed", trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_short_writes_and_reads_change_nothing(base, trained, tmp_path, monkeypatch):
    """The kernel writes at most 2 GiB in one call, and less on a disk that gets full."""
    adapters.merge(adapters.read(trained), base, tmp_path / "a", jobs=1)
    write = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda target, data, position: write(target, data[:20_001], position)
    )
    monkeypatch.setattr(safetensors_files, "_READ_BYTES", 64)
    adapters.merge(adapters.read(trained), base, tmp_path / "b", jobs=2)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_whole_module_of_another_dtype_is_rounded_a_part_at_a_time(
    base, trained, tmp_path, monkeypatch
):
    import torch
    from safetensors.torch import load_file, save_file

    wide = shutil.copytree(base, tmp_path / "wide")
    for path in wide.glob("*.safetensors"):
        tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    monkeypatch.setattr(safetensors_files, "_READ_BYTES", 64)
    adapters.merge(adapters.read(trained), wide, tmp_path / "merged", jobs=1)
    saved = load_file(trained / adapters.WEIGHTS)["base_model.model.lm_head.weight"]
    assert torch.equal(weights(tmp_path / "merged")["lm_head.weight"], saved.float())


def rewrite(folder, change):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / adapters.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / adapters.WEIGHTS)


def first(tensors, part):
    return next(name for name in tensors if part in name)


def cut_column(tensors, name):
    tensors[name] = tensors[name][:, :1].copy()


def copy_as(tensors, name):
    tensors[f"base_model.model.{name}"] = tensors[first(tensors, "lora_A")]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda t: t.pop(first(t, "lora_B")), "CKPT-ADAPTER-PAIR"),
        (lambda t: cut_column(t, first(t, "lora_B")), "CKPT-ADAPTER-PAIR"),
        (lambda t: copy_as(t, "x.lora_magnitude_vector"), "CKPT-ADAPTER-UNSUPPORTED"),
        (lambda t: [t.pop(name) for name in list(t) if "lora" in name], "CKPT-ADAPTER-EMPTY"),
        (lambda t: copy_as(t, "nowhere.weight"), "CKPT-ADAPTER-OTHER-BASE"),
        (lambda t: t[first(t, "lora_B")].fill(float("nan")), "CKPT-NOT-FINITE"),
    ],
)
def test_adapters_that_cannot_be_merged(base, trained, tmp_path, change, finding):
    folder = shutil.copytree(trained, tmp_path / "adapter")
    rewrite(folder, change)
    with pytest.raises(Failure) as caught:
        adapters.merge(adapters.read(folder), base, tmp_path / "merged", jobs=2)
    assert finding in {found.id for found in caught.value.findings}
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize(
    "change",
    [
        {"lora_alpha": None},
        {"lora_alpha": float("nan")},
        {"lora_alpha": "8"},
        {"alpha_pattern": ["x"]},
        {"alpha_pattern": {"(": 1}},
    ],
)
def test_alphas_that_make_no_sense(base, trained, tmp_path, change):
    folder = shutil.copytree(trained, tmp_path / "adapter")
    path = folder / adapters.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(Failure, match="CKPT-ADAPTER-UNSUPPORTED"):
        adapters.merge(adapters.read(folder), base, tmp_path / "merged", jobs=1)
    assert not (tmp_path / "merged").exists()


@pytest.fixture(scope="module")
def tied(base, tmp_path_factory):
    """The base with one weight for the embedding and the output head."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tied") / "model"
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    stored = weights(base)
    del stored["lm_head.weight"]
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "made",
    [
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "olora"},
        {"init_lora_weights": "pissa_niter_4"},
        {"alora_invocation_tokens": [3, 4]},
        {"modules_to_save": ["embed_tokens"]},
    ],
)
def test_no_merge_of_what_is_not_base_and_adapter(base, tied, tmp_path, made):
    """PEFT takes pissa and olora out of the base, aLoRA acts behind its tokens alone, and an
    embedding that was saved is no longer the output head: no sum of base and adapter is the model
    that was trained."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    used = tied if "modules_to_save" in made else base
    network = get_peft_model(
        load(used, torch.float32), LoraConfig(r=4, target_modules=["q_proj"], **made)
    )
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    network.save_pretrained(tmp_path / "adapter")
    begun = made.get("init_lora_weights")
    if begun:
        from cosmos_reason.engine import model as models

        asked = torch.arange(1, 20)[None]
        place = (tmp_path / "adapter", used, torch.float32, torch.device("cpu"))
        if begun == "pissa_niter_4":
            with pytest.raises(Failure, match="CKPT-ADAPTER-UNSUPPORTED"):
                models.load_for_evaluation(*place)
        else:
            expected = network.train(False)(input_ids=asked).logits
            logits = models.load_for_evaluation(*place)(input_ids=asked).logits
            assert torch.allclose(logits, expected, atol=1e-4)
    assert run_outputs.verify(used) == []
    if begun:
        whole = begun != "pissa_niter_4"
        found = run_outputs.verify(tmp_path / "adapter")
        assert whole != ("CKPT-ADAPTER-UNSUPPORTED" in {one.id for one in found})
    with pytest.raises(Failure, match="CKPT-ADAPTER-UNSUPPORTED"):
        adapters.merge(adapters.read(tmp_path / "adapter"), used, tmp_path / "merged", jobs=1)
    assert not (tmp_path / "merged").exists()


def test_a_base_with_one_weight_for_both_ends_takes_an_adapter_of_its_layers(
    tied, trained, tmp_path
):
    folder = shutil.copytree(trained, tmp_path / "adapter")
    rewrite(folder, lambda tensors: tensors.pop(first(tensors, "lm_head")))
    adapters.merge(adapters.read(folder), tied, tmp_path / "merged", jobs=1)
    assert run_outputs.verify(tmp_path / "merged") == []


def test_an_adapter_of_cosmos_rl_is_evaluated_as_it_merges(base, trained, tmp_path):
    """PEFT takes parts of names for no target, and `pissa`, which cosmos-rl only notes, out of the
    base."""
    import torch

    from cosmos_reason.engine import model as models

    folder = as_cosmos_rl(trained, tmp_path / "adapter")
    adapters.merge(adapters.read(folder), base, tmp_path / "merged", jobs=1)
    network = models.load_for_evaluation(folder, base, torch.float32, torch.device("cpu"))
    for name, values in weights(tmp_path / "merged").items():
        assert torch.allclose(values, network.state_dict()[name], rtol=2**-7, atol=1e-6), name


def test_an_adapter_with_biases_is_evaluated_as_peft_does(base, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    from cosmos_reason.engine import model as models

    torch.manual_seed(0)
    wrapped = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], bias="all")
    network = get_peft_model(load(base, torch.float32), wrapped)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    network.save_pretrained(tmp_path / "adapter")
    asked = torch.arange(1, 20)[None]
    expected = network.train(False)(input_ids=asked).logits
    expected_weights = network.merge_and_unload().state_dict()
    network = models.load_for_evaluation(
        tmp_path / "adapter", base, torch.float32, torch.device("cpu")
    )
    assert torch.allclose(network(input_ids=asked).logits, expected, atol=1e-4)
    bias = next(name for name in expected_weights if name.endswith("qkv.bias"))
    assert torch.equal(network.state_dict()[bias], expected_weights[bias])


def test_a_base_that_shrinks_or_is_not_finite_gives_no_model(base, trained, tmp_path):
    shrinking = shutil.copytree(base, tmp_path / "base")
    adapter, out = adapters.read(trained), tmp_path / "merged"

    def cut(count):
        for path in shrinking.glob("*.safetensors"):
            os.truncate(path, 1000)

    with pytest.raises(OSError, match="shorter"):
        adapters.merge(adapter, shrinking, out, jobs=1, copied=cut)
    broken = shutil.copytree(base, tmp_path / "broken")
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    tensor = safetensors_files.read_folder(broken)[0][name]
    with open(tensor.file, "r+b") as handle:
        handle.seek(tensor.begin + 64)
        handle.write(b"\xff\xff")
    with pytest.raises(Failure, match="CKPT-NOT-FINITE"):
        adapters.merge(adapter, broken, out, jobs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "broken"]


def test_merges_that_are_killed_full_or_two_at_once(base, trained, tmp_path, monkeypatch):
    adapter, out = adapters.read(trained), tmp_path / "merged"
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from pathlib import Path
from cosmos_reason.checkpoints import adapters
def wait(count):
    print("writing", flush=True)
    sys.stdin.read()
adapter = adapters.read(Path({str(trained)!r}))
adapters.merge(adapter, Path({str(base)!r}), Path({str(out)!r}), 1, wait)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"writing\n"
    with pytest.raises(Failure, match="CKPT-OUTPUT-BUSY"):
        adapters.merge(adapter, base, out, jobs=1)
    process.kill()
    process.communicate()
    assert not out.exists() and len(list(tmp_path.iterdir())) == 2, (
        "its lock and its unfinished folder"
    )
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Failure, match="CKPT-DISK-FULL"):
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        adapters.merge(adapter, base, out, jobs=1)
    assert list(tmp_path.iterdir()) == []
    adapters.merge(adapter, base, out, jobs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


@pytest.fixture
def command(trained, tmp_path):
    """The words that choose the adapter of a run in tmp_path/out."""
    run = tmp_path / "out" / "20260101000000" / "safetensors"
    shutil.copytree(trained, run / "step_1")
    return ("select_checkpoint.py", tmp_path / "out", "--by", "step_1")


@pytest.fixture
def moved(command, tmp_path):
    """The same words, where the adapter names a base that is not here."""
    path = tmp_path / "out/20260101000000/safetensors/step_1/adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = "/workspace/models/base"
    path.write_text(json.dumps(config))
    return command


def test_the_command_says_where_the_adapter_is_and_where_it_was_merged(command, tmp_path):
    step = tmp_path / "out" / "20260101000000" / "safetensors" / "step_1"
    merged = tmp_path / "merged"
    for flags, path in (([], step), (["--merge", merged], merged)):
        done = run_script(*command, *flags)
        assert done.returncode == 0
        assert done.stdout.strip() == str(path)
        assert "next:" not in done.stderr  # no job tells which engine and which questions
    again = run_script(*command, "--merge", merged, "--json")
    assert again.returncode == 2
    assert json.loads(again.stdout)["findings"][0]["id"] == "CKPT-OUTPUT-EXISTS"


def test_without_a_name_the_fix_says_how_one_is_chosen(command, tmp_path):
    merge = (*command[:2], "--merge", tmp_path / "x")
    unnamed = run_script(*merge, "--json")
    assert unnamed.returncode == 2
    fix = json.loads(unnamed.stdout)["findings"][0]["fix"].split()
    assert run_script(*merge, *fix).returncode == 0


def test_an_adapter_is_merged_by_its_folder_wherever_that_lies(trained, base, tmp_path):
    for folder in (tmp_path / "out" / "run" / "safetensors" / "step_1", tmp_path / "downloaded"):
        shutil.copytree(trained, folder)
        merged = tmp_path / f"{folder.name}-merged"
        done = run_script("select_checkpoint.py", folder, "--merge", merged)
        assert (done.returncode, done.stdout.strip()) == (0, str(merged)), done.stderr
        assert run_outputs.verify(merged) == []
    (folder / "adapter_model.safetensors").write_bytes(b"half")
    for given, code in ((folder, 1), (base, 2)):  # damaged; a whole model
        done = run_script("select_checkpoint.py", given, "--merge", tmp_path / "none")
        assert done.returncode == code and not (tmp_path / "none").exists()


def test_an_adapter_whose_base_moved_needs_to_be_told_where(base, moved, tmp_path):
    assert run_script(*moved, "--merge", tmp_path / "y").returncode != 0
    assert not (tmp_path / "y").exists()
    done = run_script(*moved, "--merge", tmp_path / "y", "--base-model", base)
    assert done.returncode == 0
    assert "CKPT-ADAPTER-BASE" not in done.stderr
    # Any model of this size would have been taken.
    assert "CKPT-BASE-UNPROVEN" in done.stderr and "CKPT-TEMPLATE-OTHER" not in done.stderr


def test_a_base_that_the_adapter_names_is_not_doubted_where_it_is_given_again(trained, tmp_path):
    config = json.loads((trained / adapters.CONFIG).read_text())
    given = ["--base-model", config["base_model_name_or_path"]]
    done = run_script("select_checkpoint.py", trained, "--merge", tmp_path / "y", *given)
    assert done.returncode == 0 and "CKPT-BASE-UNPROVEN" not in done.stderr


def test_a_template_that_is_not_that_of_the_base_is_told(base, trained, tmp_path):
    """Trainers that write a template of their own save it beside the adapter."""
    folder = shutil.copytree(trained, tmp_path / "step_1")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    done = run_script("select_checkpoint.py", folder, "--merge", tmp_path / "y", "--json")
    told = [found["id"] for found in json.loads(done.stdout)["findings"]]
    assert done.returncode == 0 and told == ["CKPT-TEMPLATE-OTHER"]


def without_vision(base, folder):
    """A copy of the base whose shards and index lack the vision tower."""
    blind = shutil.copytree(base, folder)
    index = json.loads((blind / safetensors_files.INDEX_NAME).read_text())
    kept = {name: file for name, file in index["weight_map"].items() if "visual" not in name}
    for file in set(index["weight_map"].values()):
        stored = safetensors_files.read_header(blind / file)
        safetensors_files.copy_tensors(
            blind / "new", {n: t for n, t in stored.items() if n in kept}, lambda count: None
        )
        os.replace(blind / "new", blind / file)
    safetensors_files.write_index(blind, kept, 0)
    return blind


def test_a_base_without_the_layers_or_cut_off_is_not_merged_with(base, moved, tmp_path):
    blind = without_vision(base, tmp_path / "blind")
    done = run_script(*moved, "--merge", tmp_path / "z", "--base-model", blind)
    assert done.returncode == 1
    assert "CKPT-TENSOR-MISSING" in done.stderr
    assert not (tmp_path / "z").exists()
    damaged = shutil.copytree(base, tmp_path / "damaged")
    os.truncate(next(damaged.glob("*.safetensors")), 1000)
    assert run_script(*moved, "--merge", tmp_path / "z", "--base-model", damaged).returncode == 1


def test_the_settings_of_the_training_travel_with_what_is_made_of_it(command, trained, tmp_path):
    """Through a second merge too, whose base has settings of its own."""
    run = tmp_path / "out" / "20260101000000"
    policy = run / "checkpoints" / "step_1" / "policy"
    policy.mkdir(parents=True)
    vision = {"nframes": 6, "max_pixels": 65536}
    spec = {
        "custom": {"vision": vision},
        "train": {"train_policy": {"system_prompt": "Look."}},
    }
    (policy / "cosmos_config").write_text(json.dumps(spec))
    for flag in ("--merge", "--fix-adapter"):
        made = tmp_path / flag.strip("-")
        assert run_script(*command, flag, made).returncode == 0
        assert json.loads((made / "cosmos_training.json").read_text()) == spec
    told = as_trained.training_spec(tmp_path / "merge")
    assert actions.trained_view(told, "evaluate") == {
        "vision.nframes": 6,
        "vision.max_pixels": 65536,
        "dataset.system_prompt": "Look.",
    }
    step = run / "safetensors" / "step_1" / "adapter_config.json"
    config = json.loads(step.read_text())
    step.write_text(json.dumps(config | {"base_model_name_or_path": str(tmp_path / "merge")}))
    (policy / "cosmos_config").unlink()
    assert run_script(*command, "--merge", tmp_path / "again").returncode == 0
    assert not (tmp_path / "again" / "cosmos_training.json").exists()
