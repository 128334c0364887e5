"""A published Cosmos3-Edge checkpoint, and what is made of it, against transformers' own class."""

import json
import shutil

import pytest
import torch
from omni_layouts import convert, finding_ids
from safetensors.torch import load_file, save_file
from transformers import Cosmos3EdgeForConditionalGeneration

from cosmos_reason.base.families import cosmos3_edge
from cosmos_reason.checkpoints import conversion, omni, run_outputs, safetensors_files
from cosmos_reason.engine import loadable
from cosmos_reason.remote import model_names

Official = Cosmos3EdgeForConditionalGeneration


def loaded(folder):
    network, info = Official.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    return network.state_dict()


def test_transformers_reads_the_same_tensors_of_the_published_and_the_plain_folder(
    published_edge, tiny_edge_model
):
    """The class reads both by itself, so it is the oracle of the conversion."""
    published, plain = loaded(published_edge), loaded(tiny_edge_model)
    assert published.keys() == plain.keys() and len(plain) == 70
    for name, tensor in published.items():
        assert torch.equal(tensor, plain[name]), name
    assert run_outputs.verify(tiny_edge_model) == []
    assert conversion.check_output(tiny_edge_model) == []
    assert model_names.family(str(published_edge)) == ("cosmos3_edge", True)
    assert model_names.family(str(tiny_edge_model)) == ("cosmos3_edge", False)


def test_the_script_converts_it_and_transformers_reads_the_result(published_edge, tmp_path, capsys):
    """By what `--validate` runs in a process of its own."""
    done = convert(published_edge, tmp_path / "out", flags=["--json"])
    assert done.returncode == 0 and finding_ids(done) == [], done.stdout
    loadable.main(tmp_path / "out", "cosmos3_edge", "of-layout")
    assert "70 tensors" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="names or shapes differ"):
        loadable.main(tmp_path / "out", "cosmos3_edge", "of-class")


def test_the_generator_stays_behind(published_edge, tiny_edge_model):
    stored = load_file(
        published_edge / "transformer" / "diffusion_pytorch_model-00001-of-00002.safetensors"
    )
    assert any("moe_gen" in name for name in stored)
    tensors, _ = safetensors_files.read_folder(tiny_edge_model)
    assert not [name for name in tensors if "moe_gen" in name or "add_q" in name]


def test_a_leaked_name_of_the_generator_is_left_out_and_a_foreign_one_is_an_error(
    published_edge, tmp_path
):
    folder = shutil.copytree(published_edge, tmp_path / "published")
    shard = folder / "transformer" / "diffusion_pytorch_model-00001-of-00002.safetensors"
    save_file(load_file(shard) | {"stranger.weight": torch.zeros(2)}, shard, {"format": "pt"})
    done = convert(folder, tmp_path / "out", flags=["--json"])
    assert finding_ids(done) == ["CKPT-INDEX-MISMATCH"] and "stranger" in done.stdout
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    shutil.copy(published_edge / "transformer" / shard.name, shard)
    leaked = "layers.0.self_attn.k_norm_und_for_gen.weight"
    file = next(
        f"transformer/{path.name}"
        for path in (folder / "transformer").glob("*.safetensors")
        if leaked in load_file(path)
    )
    table["weight_map"][leaked] = file
    index.write_text(json.dumps(table))
    source = omni.open_source(folder)
    assert (len(source.tensors), source.dropped) == (70, 1)


def test_a_model_that_transformers_saved_has_its_tower_under_other_names(tiny_edge_model, tmp_path):
    """transformers 5.17 to 5.23 rename the tower with the language model when they save."""
    network = Official.from_pretrained(tiny_edge_model, dtype=torch.bfloat16)
    network.save_pretrained(tmp_path)
    for path in tiny_edge_model.iterdir():
        if path.suffix in (".json", ".jinja") and not (tmp_path / path.name).exists():
            shutil.copy(path, tmp_path / path.name)
    (tmp_path / "model.safetensors.index.json").unlink()
    tensors, _ = safetensors_files.read_folder(tmp_path)
    renamed = [name for name in tensors if "visual" in name and (".to_q." in name or "up_" in name)]
    assert renamed
    assert run_outputs.verify_model(tmp_path) == []
    stored = {cosmos3_edge.stored_name(name) for name in tensors}
    assert stored == safetensors_files.read_folder(tiny_edge_model)[0].keys()


def test_early_exports_count_attention_and_mlp_apart(published_edge):
    """NVIDIA's converter wrote 56 blocks by turns, and the projector in a table of its own."""
    config = json.loads((published_edge / "config.json").read_text())
    plain = cosmos3_edge.plain_config(config, "bfloat16")
    early = json.loads(json.dumps(config))
    early["text_config"]["layers_block_type"] = ["full_attention", "mlp"] * 3
    early["text_config"]["num_hidden_layers"] = 6
    early["projector_config"] = {"merger_intermediate_size": early.pop("projector_hidden_size")}
    assert cosmos3_edge.plain_config(early, "bfloat16") == plain
    del early["text_config"]["rope_parameters"]
    with pytest.raises(KeyError):
        cosmos3_edge.plain_config(early, "bfloat16")
