"""What train jobs leave: listed, verified and pruned."""

import json
import os
import shutil

import pytest
from run_folders import RUN, add_adapter, add_step, halves_of, said, write_halves

from cosmos_reason.checkpoints import run_outputs, safetensors_files


def ids(found):
    return {
        checkpoint.name: [finding.id for finding in checkpoint.findings] for checkpoint in found
    }


def test_lists_all_runs_in_order_and_verifies_each(output, model):
    add_step(output / "20260102000000", "epoch_2", model)
    add_adapter(output / "20260102000000", "final", model)
    found = run_outputs.find(output)
    assert [(c.kind, c.name) for c in found if c.kind != "resume"] == [
        ("model", f"{RUN}/safetensors/step_9"),
        ("model", f"{RUN}/safetensors/step_10"),
        ("model", f"{RUN}/safetensors/step_20"),
        ("model", "20260102000000/safetensors/epoch_2"),
        ("adapter", "20260102000000/safetensors/final"),
    ]
    assert sum(c.kind == "resume" for c in found) == 4
    assert all(c.complete for c in found)


def test_a_model_without_one_tensor_is_damaged(output):
    """Loaders fill it with random numbers and say nothing."""
    folder = output / RUN / "safetensors" / "step_10"
    index = json.loads((folder / safetensors_files.INDEX_NAME).read_text())
    shard = folder / next(iter(index["weight_map"].values()))
    found = safetensors_files.read_header(shard)
    found.pop("model.visual.pos_embed.weight")
    safetensors_files.copy_tensors(folder / "new", found, lambda count: None)
    os.replace(folder / "new", shard)
    index["weight_map"].pop("model.visual.pos_embed.weight")
    (folder / safetensors_files.INDEX_NAME).write_text(json.dumps(index))
    assert ids(run_outputs.find(output))[f"{RUN}/safetensors/step_10"] == ["CKPT-TENSOR-MISSING"]


def refill(folder, wanted, number):
    """Fill the tensors whose names are wanted with one BF16 number."""
    for tensor in (
        t for name, t in safetensors_files.read_folder(folder)[0].items() if wanted(name)
    ):
        with open(tensor.file, "r+b") as handle:
            handle.seek(tensor.begin)
            handle.write(number * (tensor.nbytes // 2))


@pytest.mark.parametrize(
    ("wanted", "number", "finding"),
    [
        ("", b"\0\0", "CKPT-ZERO-WEIGHTS"),
        ("", b"\xc0\x7f", "CKPT-NOT-FINITE"),
        ("mlp.up_proj.weight", b"\0\0", "CKPT-ZERO-WEIGHTS"),
        ("visual.pos_embed.weight", b"\x80\xff", "CKPT-NOT-FINITE"),  # minus infinite
        (".bias", b"\0\0", None),
        ("", b"\x7f\x7f", None),  # the largest number there is
    ],
)
def test_models_of_zeros_or_nan_are_damaged(output, wanted, number, finding):
    folder = output / RUN / "safetensors" / "step_10"
    refill(folder, lambda name: wanted in name, number)
    assert [one.id for one in run_outputs.verify(folder)] == ([finding] if finding else [])
    if finding:
        code, document = said(output, "--by", "step_10")
        assert (code, [one["id"] for one in document["findings"]]) == (1, [finding])
    for one in run_outputs.verify(folder):
        assert all(wanted in name for name in one.data["names"])


def test_adapters(tmp_path, model):
    run = tmp_path / RUN
    good = add_adapter(run, "step_1", model)
    hub = add_adapter(run, "step_2", "nvidia/Cosmos-Reason2-2B", lora_path=None, r_pattern=None)
    gone = add_adapter(run, "step_3", tmp_path / "gone")
    none = add_adapter(run, "step_4", "")
    cut = add_adapter(run, "step_5", model)
    os.truncate(cut / "adapter_model.safetensors", 20)
    seen = {
        folder.name: [finding.id for finding in run_outputs.verify(folder)]
        for folder in (good, hub, gone, none, cut)
    }
    assert seen == {
        "step_1": [],
        "step_2": ["CKPT-ADAPTER-FIELDS"],
        "step_3": ["CKPT-ADAPTER-BASE"],
        "step_4": ["CKPT-ADAPTER-BASE"],
        "step_5": ["CKPT-SHARD-DAMAGED"],
    }
    (foreign,) = run_outputs.verify(hub)  # said by the preflight too: the script stands in the fix
    assert str(foreign.fix) == f"scripts/select_checkpoint.py {hub} --fix-adapter DIR"


def test_weights_of_a_model_beside_an_adapter(tmp_path, model):
    folder = add_adapter(tmp_path / RUN, "step_1", model)
    write_halves(folder, **halves_of(model))
    shutil.copytree(model, folder, dirs_exist_ok=True)
    assert [finding.id for finding in run_outputs.verify(folder)] == ["CKPT-WEIGHTS-TWICE"]


def test_what_cosmos_rl_copies_beside_an_adapter_is_no_second_model(tmp_path, model):
    """It copies the JSON files of the base, the index of its shards among them."""
    folder = add_adapter(tmp_path / RUN, "step_1", model)
    write_halves(folder, **halves_of(model))
    for path in model.glob("*.json"):
        shutil.copyfile(path, folder / path.name)
    assert (folder / safetensors_files.INDEX_NAME).is_file()
    assert run_outputs.verify(folder) == []


def test_resume_folders_need_every_rank(tmp_path):
    policy = tmp_path / "policy"
    policy.mkdir()
    sizes = {"policy": {"parallelism": {"tp_size": 1, "dp_shard_size": 2, "dp_replicate_size": 4}}}
    (policy / "cosmos_config").write_text(json.dumps(sizes))
    for rank in (0, 1):
        assert not run_outputs.is_complete_resume(policy)
        for part in ("model", "optimizer", "scheduler", "extra_info"):
            (policy / f"{part}_rank_{rank}.pth").touch()
        assert not run_outputs.is_complete_resume(policy)
        (policy / f".rank_{rank}_complete").touch()
    assert run_outputs.is_complete_resume(policy)
    (policy / "model_rank_2.pth").touch()
    assert not run_outputs.is_complete_resume(policy)


@pytest.mark.parametrize("content", [b"", b"abc"])
def test_resume_folders_of_the_embedded_engine_hold_whole_files(output, content):
    policy = output / RUN / "checkpoints" / "step_9" / "policy"
    assert run_outputs.is_complete_resume(policy)
    (policy / "optimizer.safetensors").write_bytes(content)
    assert not run_outputs.is_complete_resume(policy)


def test_prune_keeps_the_newest_and_the_protected(output):
    assert run_outputs.prune(output / RUN, 0) == []
    assert run_outputs.prune(output / RUN, 2, keep=["step_9"]) == ["step_10"]
    for part in ("safetensors", "checkpoints"):
        assert sorted(path.name for path in (output / RUN / part).iterdir()) == [
            "step_20",
            "step_9",
        ]
    assert run_outputs.prune(output / RUN, 1, keep=["step_9"]) == []


def test_the_newest_resume_folder_is_the_complete_one_of_the_highest_step(output, model, tmp_path):
    def steps():
        return [policy.parent.name for policy in run_outputs.resume_folders(output)]

    assert steps() == ["step_9", "step_10", "step_20"]
    (output / RUN / "checkpoints" / "step_20" / "policy" / ".rank_0_complete").unlink()
    assert steps() == ["step_9", "step_10"]
    add_step(output / "20260102000000", "step_12", model)
    add_step(output / "20260101000000", "epoch_2", model)  # its trainer state says step 20
    assert steps() == ["step_9", "step_10", "step_12", "epoch_2"]
    newest = output / "20260101000000" / "checkpoints" / "epoch_2" / "policy"
    assert run_outputs.newest_resume(output) == newest
    assert run_outputs.newest_resume(tmp_path / "elsewhere") is None


def test_a_folder_stands_for_itself_or_for_all_its_models(output):
    folders = [output / RUN / "safetensors" / step for step in ("step_9", "step_10", "step_20")]
    assert run_outputs.models_meant(folders[0]) == ([folders[0]], [])
    assert run_outputs.models_meant(output) == (folders, [])
    (folders[1] / "tokenizer.json").unlink()
    assert run_outputs.models_meant(output) == ([folders[0], folders[2]], [folders[1]])
