"""Which layers of a model are compressed, what keeps it from being so, and what proves a result."""

import shutil
from collections import namedtuple

import pytest
from omni_layouts import write_tensors

from cosmos_reason.base import files
from cosmos_reason.base.families import cosmos3_edge
from cosmos_reason.checkpoints import quantized, safetensors_files
from cosmos_reason.checkpoints.safetensors_files import Tensor

GIB = 1 << 30


def with_widths(folder, **widths):
    """A folder whose weights layers.0.mlp.NAME have so many inputs, 2 outputs each."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3_vl"}')
    tensors = {}
    for name, width in widths.items():
        content = b"\x80\x3f" * 2 * width
        tensors[f"model.language_model.layers.0.mlp.{name}.weight"] = ("BF16", [2, width], content)
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def test_the_projections_of_the_language_model_are_compressed_and_nothing_else(model):
    tensors, _ = safetensors_files.read_folder(model)
    layers = quantized.linear_layers(tensors)
    assert len(layers) == 3 * 7
    assert {name.rpartition(".")[2] for name in layers} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }


@pytest.mark.parametrize(
    ("stored", "layer"),
    [
        ("model.language_model.layers.3.self_attn.q_proj.weight", "layers.3.self_attn.q_proj"),
        ("model.layers.3.mlp.up_proj.weight", "layers.3.mlp.up_proj"),  # an older Qwen2.5-VL
        ("layers.3.self_attn.to_q.weight", "layers.3.self_attn.to_q"),  # Cosmos3-Edge
        ("layers.3.mlp.down_proj.weight", "layers.3.mlp.down_proj"),
        ("model.visual.encoder.layers.3.self_attn.q_proj.weight", None),
        ("visual.blocks.0.mlp.up_proj.weight", None),
        ("model.visual.blocks.0.mlp.gate_proj.weight", None),
        ("model.visual.merger.linear_fc1.weight", None),
        ("model.language_model.layers.3.self_attn.q_proj.bias", None),
        ("lm_head.weight", None),
    ],
)
def test_layers_of_all_families_are_known_by_name(tmp_path, stored, layer):
    tensor = Tensor(tmp_path, "BF16", (4, 4), 0, 32)
    assert list(quantized.linear_layers({stored: tensor})) == ([layer] if layer else [])


@pytest.mark.parametrize("scheme", quantized.SCHEMES)
def test_cosmos3_edge_has_the_layers_that_each_scheme_wants(tiny_edge_model, scheme):
    assert quantized.check_source(tiny_edge_model, scheme) == []
    tensors, _ = safetensors_files.read_folder(tiny_edge_model)
    assert len(quantized.linear_layers(tensors)) == 3 * 6
    left = quantized.left_alone(cosmos3_edge.FAMILY)
    assert "re:.*projector.*" in left and "re:.*visual.*" in left
    module = "model.language_model.layers.2.mlp.fc1"
    assert quantized.short_name(module, cosmos3_edge.FAMILY) == "layers.2.mlp.up_proj"


@pytest.mark.parametrize("scheme", quantized.SCHEMES)
def test_a_model_whose_sizes_divide_can_be_quantized(model, scheme):
    assert quantized.check_source(model, scheme) == []


def test_widths_that_do_not_divide_are_told_per_layer_with_a_scheme_that_fits(tmp_path):
    folder = with_widths(tmp_path / "m", up_proj=144, gate_proj=128, down_proj=160)
    found = quantized.check_source(folder, "W4A16")
    assert [(finding.id, finding.where) for finding in found] == [
        ("QUANT-WIDTH", "layers.0.mlp.up_proj"),
        ("QUANT-WIDTH", "layers.0.mlp.down_proj"),
    ]
    assert "144 inputs" in found[0].message and "multiple of 128" in found[0].message
    assert not found[0].fix and "FP8_DYNAMIC" in found[0].message, "which one is a choice"
    assert quantized.check_source(folder, "NVFP4") == []


def test_widths_that_no_scheme_divides_have_no_fix(tmp_path):
    (finding,) = quantized.check_source(with_widths(tmp_path / "m", up_proj=12), "FP8")
    assert finding.id == "QUANT-WIDTH" and not finding.fix


def test_a_quantized_model_is_refused_by_its_config_and_by_its_weights(model, tmp_path):
    by_config = shutil.copytree(model, tmp_path / "config")
    config = files.read_json(by_config / "config.json") | {"quantization_config": {}}
    files.write_json(by_config / "config.json", config)
    by_weights = with_widths(tmp_path / "weights", up_proj=128)
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    write_tensors(by_weights / "model.safetensors", {name: ("F8_E4M3", [2, 128], b"\x38" * 256)})
    for folder in (by_config, by_weights):
        (finding,) = quantized.check_source(folder, "FP8")
        assert finding.id == "QUANT-ALREADY"


def test_a_folder_without_layers_is_refused(tmp_path):
    (finding,) = quantized.check_source(with_widths(tmp_path / "m"), "FP8")
    assert finding.id == "QUANT-NO-LAYERS"


def test_the_size_afterwards_is_the_layers_bits_the_scales_and_the_rest(model):
    tensors, _ = safetensors_files.read_folder(model)
    weights = quantized.stored_bytes(quantized.linear_layers(tensors)) // 2  # bfloat16
    rest = quantized.stored_bytes(tensors) - 2 * weights
    of_groups = quantized.bytes_after(tensors, quantized.SCHEMES["W4A16"])
    assert of_groups == rest + weights // 2 + 2 * weights // 128


def test_a_disk_that_is_too_small_is_told_in_numbers(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(0, 0, 3 * GIB)
    monkeypatch.setattr(quantized.shutil, "disk_usage", lambda _: usage)
    assert quantized.check_disk(tmp_path / "new" / "out", 3 * GIB) == []
    (finding,) = quantized.check_disk(tmp_path / "new" / "out", 3 * GIB + 1)
    assert finding.id == "QUANT-DISK" and "3.2 GB" in finding.message


def test_a_folder_with_files_is_never_replaced(tmp_path):
    assert quantized.check_output(tmp_path) == []
    assert quantized.check_output(tmp_path / "new") == []
    (tmp_path / "notes").touch()
    (finding,) = quantized.check_output(tmp_path)
    assert finding.id == "QUANT-OUTPUT" and "other files" in finding.message
    quantized.write_record(tmp_path, {})
    (finding,) = quantized.check_output(tmp_path)
    assert "other inputs" in finding.message


SCALE = "model.language_model.layers.0.mlp.up_proj.weight_scale"


def result(model, folder, dtype, content):
    """A quantized model folder with one scale."""
    shutil.copytree(model, folder)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    config = files.read_json(model / "config.json") | {"quantization_config": {"format": "x"}}
    files.write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", {SCALE: (dtype, [len(content) // 2], content)})
    return folder


def test_a_result_needs_a_config_scales_and_numbers_in_them(model, tmp_path):
    assert quantized.verify(result(model, tmp_path / "good", "BF16", b"\x80\x3f" * 9000)) == []
    # one NaN where no sample is taken
    content = b"\x80\x3f" * 5000 + b"\xc0\x7f" + b"\x80\x3f" * 12_000
    (finding,) = quantized.verify(result(model, tmp_path / "nan", "BF16", content))
    assert finding.id == "CKPT-NOT-FINITE"
    (finding,) = quantized.verify(model)
    assert finding.id == "QUANT-NOTHING-DONE"
    whole = result(model, tmp_path / "cut", "BF16", b"\x80\x3f" * 9)
    (whole / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:-3])
    (finding,) = quantized.verify(whole)
    assert finding.id == "CKPT-SHARD-DAMAGED"


def test_scales_in_fp8_are_numbers_too(model, tmp_path):
    folder = result(model, tmp_path / "good", "BF16", b"\x80\x3f" * 9)
    for content, ids in ((b"\x38" * 16, []), (b"\x38" * 15 + b"\xff", ["CKPT-NOT-FINITE"])):
        write_tensors(folder / "model.safetensors", {SCALE: ("F8_E4M3", [16], content)})
        assert [finding.id for finding in quantized.verify(folder)] == ids
