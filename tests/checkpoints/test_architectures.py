"""The tensors that an architecture is said to have, against the classes that load them."""

import json
import shutil

import pytest
import torch
from run_folders import RUN, add_adapter, halves_of, write_halves
from support import run_script
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from cosmos_reason.base.families import qwen2_5_vl
from cosmos_reason.checkpoints import architectures, run_outputs

# Of nvidia/Cosmos-Reason1-7B: the text's keys stand at the top.
REASON1 = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "in_chans": 3,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}


@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 3, "vocab_size": 999}])
def test_qwen2_5_vl_has_the_tensors_of_its_class(changes):
    config = REASON1 | changes
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**config))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert architectures.compare("x", config, shapes) == []
    listed = qwen2_5_vl.expected_tensors(config)
    assert {qwen2_5_vl.stored_name(name): shape for name, shape in shapes.items()} == listed
    assert changes or len(listed) == 729
    shapes.pop("lm_head.weight")
    assert [one.id for one in architectures.compare("x", config, shapes)] == ["CKPT-TENSOR-MISSING"]


def test_an_architecture_that_is_not_known_is_not_compared():
    assert architectures.compare("x", {"model_type": "other"}, {"a": (1,)}) == []


@pytest.mark.parametrize("model_type", [None, 3, [1], {}, True])
def test_a_model_type_that_is_no_text_is_an_error(model_type):
    (told,) = architectures.compare("x", {"model_type": model_type}, {"a": (1,)})
    assert (told.id, told.severity) == ("CKPT-CONFIG-BAD", "error")


def change_config(folder, **values):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    "values",
    [
        {"architectures": ["Qwen2_5_VLForConditionalGeneration"]},
        {"model_type": "other"},  # its class is known under another type
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vision_config": None},
        {
            "model_type": "other",
            "architectures": ["Other"],
            "text_config": {"vocab_size": 7, "hidden_size": 64},
        },
    ],
)
def test_a_config_of_another_architecture_is_refused_wherever_the_model_is_used(
    values, model, tmp_path
):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    assert run_outputs.verify_model(folder) == []
    change_config(folder, **values)
    # What evaluation, quantization and the listing ask, and what publishing does.
    assert "CKPT-CONFIG-BAD" in {found.id for found in run_outputs.verify_model(folder)}
    done = run_script("publish_checkpoint.py", folder, "--hub", "me/mine", "--json")
    assert done.returncode != 0
    assert "CKPT-CONFIG-BAD" in {one["id"] for one in json.loads(done.stdout)["findings"]}


def adapter_of(folder, model, more=0):
    """An adapter of the first query projection, with the base's config beside it; its output is
    wider by `more`."""
    add_adapter(folder / RUN, "step_1", "nvidia/Cosmos-Reason2-2B")
    folder = folder / RUN / "safetensors" / "step_1"
    sizes = halves_of(model)
    write_halves(folder, outs=sizes["outs"] + more, ins=sizes["ins"])
    shutil.copyfile(model / "config.json", folder / "config.json")
    return folder


def test_a_config_beside_an_adapter_describes_what_it_adapts(model, tmp_path):
    sound = adapter_of(tmp_path / "sound", model)
    assert run_outputs.verify(sound) == []
    other = adapter_of(tmp_path / "other", model, more=8)
    (found,) = run_outputs.verify(other)
    assert found.id == "CKPT-ADAPTER-OTHER-BASE" and "q_proj" in found.message
    change_config(sound, architectures=["Qwen2_5_VLForConditionalGeneration"])
    assert [found.id for found in run_outputs.verify(sound)] == ["CKPT-CONFIG-BAD"]
    (sound / "config.json").write_text("[]")
    assert run_outputs.verify(sound)
