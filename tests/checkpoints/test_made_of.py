"""Whose the weights are is proved by themselves, and not by where they lie."""

import json
import shutil

import numpy as np
import pytest
from omni_layouts import write_tensors

from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import (
    adapters,
    conversion,
    made_of,
    omni,
    publishing,
    safetensors_files,
)
from cosmos_reason.demo import tiny_omni

MODULE = "model.language_model.layers.0.self_attn.q_proj"


def write_adapter(folder, base, value=0.1):
    """Write a LoRA adapter of one layer of the tiny model."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    config |= {"base_model_name_or_path": str(base)}
    (folder / adapters.CONFIG).write_text(json.dumps(config))
    rows, columns = safetensors_files.read_folder(base)[0][f"{MODULE}.weight"].shape
    tensors = {}
    for half, shape in {"A": (2, columns), "B": (rows, 2)}.items():
        numbers = np.full(shape, value, np.float32).tobytes()
        tensors[f"base_model.model.{MODULE}.lora_{half}.weight"] = ("F32", shape, numbers)
    write_tensors(folder / adapters.WEIGHTS, tensors)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model of the same shapes and other weights."""
    home = tmp_path_factory.mktemp("other")
    tiny_omni.build(home / "omni", seed=2, text="Which way does the red circle move? yes no")
    conversion.convert(omni.open_source(home / "omni"), home / "model", 10**9, False, jobs=1)
    return home / "model"


def test_a_digest_is_of_the_weights_and_not_of_their_files(published, model, other, tmp_path):
    conversion.convert(omni.open_source(published), tmp_path / "cut", 300_000, False, jobs=1)
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    assert made_of.digest(tmp_path / "cut") == made_of.digest(model) != made_of.digest(other)
    assert made_of.digest(tmp_path) is None


def test_an_adapter_is_not_added_to_another_base_of_the_same_shapes(model, other, tmp_path):
    folder = write_adapter(tmp_path / "adapter", model)
    adapters.merge(adapters.read(folder), other, tmp_path / "unknown", jobs=1)  # nothing tells
    made_of.note_base(folder, model)
    moved = shutil.copytree(model, tmp_path / "moved")
    adapters.merge(adapters.read(folder), moved, tmp_path / "merged", jobs=1)
    with pytest.raises(Failure) as refused:
        adapters.merge(adapters.read(folder), other, tmp_path / "wrong", jobs=1)
    (found,) = refused.value.findings
    assert found.id == "CKPT-ADAPTER-OTHER-BASE" and not (tmp_path / "wrong").exists()
    assert found.fix.flags == {"--base-model": "DIR"} and made_of.FILE in found.message
    for damaged in ({"trained_on": 5}, [made_of.digest(model)]):  # which tells nothing
        (folder / made_of.FILE).write_text(json.dumps(damaged))
        adapters.merge(adapters.read(folder), model, tmp_path / type(damaged).__name__, jobs=1)


def metrics_of(tmp_path, **told):
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"accuracy": 0.75} | told))
    return {"metrics.json": path}


def test_a_merged_model_has_the_metrics_of_its_adapter_on_its_base_alone(model, other, tmp_path):
    folder = write_adapter(tmp_path / "adapter", model)
    second = write_adapter(tmp_path / "second", model, value=0.2)
    merged = tmp_path / "merged"
    adapters.merge(adapters.read(folder), model, merged, jobs=1)

    def kept(measured, base, place=None):
        told = {"model": made_of.digest(measured), "base": base and made_of.digest(base)}
        beside = metrics_of(tmp_path, checkpoint=place or str(measured), weights=told)
        notes = [note.id for note in publishing.leave_other_metrics(merged, beside)]
        return bool(beside), notes

    assert kept(folder, model) == kept(folder, None) == (True, [])
    assert kept(folder, model, place="/elsewhere/step_1") == (True, [])
    assert kept(merged, None) == (True, [])
    left_out = (False, ["PUBLISH-OTHER-METRICS"])
    assert kept(second, model) == kept(folder, other) == kept(model, None) == left_out
    assert kept(model, None, place="/elsewhere/model") == left_out
    # Where no merge was noted, an adapter that is gone may be what this model was made of.
    note = (merged / made_of.FILE).rename(tmp_path / "note")
    said = (True, ["PUBLISH-OTHER-METRICS"])
    assert kept(folder, model, place="/elsewhere/step_1") == kept(folder, None) == said
    assert kept(model, None) == left_out
    note.rename(merged / made_of.FILE)
    # Beside other weights the record of the merge proves nothing.
    for path in other.glob("*.safetensors*"):
        shutil.copyfile(path, merged / path.name)
    assert kept(folder, model) == (True, ["PUBLISH-OTHER-METRICS"])


def test_metrics_that_do_not_tell_of_which_weights_are_told(model, tmp_path):
    beside = metrics_of(tmp_path, checkpoint="/results/20260101000000/safetensors/step_1")
    (note,) = publishing.leave_other_metrics(model, beside)
    assert beside and "nothing proves" in note.message
    beside = metrics_of(tmp_path, checkpoint=None, model="nvidia/Cosmos-Reason2-8B")
    (note,) = publishing.leave_other_metrics(model, beside)
    assert not beside and "leaves it out" in note.message
    for named in ("org/my-model", "results/step_9", "hf_model://runs/exp1"):
        beside = metrics_of(tmp_path, checkpoint=None, model=named)
        (note,) = publishing.leave_other_metrics(model, beside)
        assert beside and "nothing proves" in note.message, "a server calls a model anything"
    beside = metrics_of(tmp_path)  # whoever gave it says whose it is
    assert publishing.leave_other_metrics(model, beside) == [] and beside


def test_files_of_another_model_do_not_stay_among_those_that_are_sent(model):
    sent = {path.name: path for path in model.iterdir()}
    target = publishing.Target("s3://bucket/one", True, files=frozenset(sent) | {"README.md"})
    assert publishing.objections(target, sent, public=False) == []
    del sent["chat_template.jinja"]  # which loaders would take before ours
    (found,) = publishing.objections(target, sent, public=False)
    assert found.id == "PUBLISH-OTHER-WEIGHTS" and found.data["names"] == ["chat_template.jinja"]


def test_what_no_loader_takes_before_the_sent_files_may_stay(model):
    """A newer checkpoint of the same model goes where the last one is, whichever version of
    transformers wrote the two."""

    def stale(stays, without=()):
        sent = {path.name: path for path in model.iterdir() if path.name not in without}
        target = publishing.Target("s3://bucket/one", True, files=frozenset(sent) | {*stays})
        found = publishing.objections(target, sent, public=False)
        return [name for one in found for name in one.data["names"]]

    harmless = {made_of.FILE, "cosmos_training.json", "special_tokens_map.json", "vocab.json"}
    harmless |= {"added_tokens.json", "chat_template.json"}
    written_by_4 = {"preprocessor_config.json", "video_preprocessor_config.json"}
    assert stale(harmless) == stale(written_by_4, written_by_4) == []
    templates = {"chat_template.jinja", "chat_template.json"}
    assert stale({"chat_template.json"}, templates) == ["chat_template.json"]
    for name in ("processor_config.json", adapters.CONFIG):  # read before, or beside, the sent ones
        assert stale({name}, {name}) == [name]


def test_a_published_adapter_names_the_commit_of_its_base(model, tmp_path):
    """Whoever loads it next year would get what main is at then."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--nvidia--Cosmos-Reason2-2B" / "snapshots" / commit
    shutil.copytree(model, cached)
    folder = write_adapter(tmp_path / "adapter", cached)
    (tmp_path / "scratch").mkdir()
    written = publishing.write(tmp_path / "scratch", "one", folder, {})
    config = json.loads(written[adapters.CONFIG].read_text())
    told = (config["base_model_name_or_path"], config["revision"])
    assert told == ("nvidia/Cosmos-Reason2-2B", commit)
    assert "licence" in written[publishing.CARD].read_text()


def test_a_card_names_no_base_that_is_a_path_and_says_what_is_quantized(model, tmp_path):
    quantized = shutil.copytree(model, tmp_path / "quantized")
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
    }
    (quantized / "config.json").write_text(json.dumps(config))
    spec = tmp_path / "spec.toml"
    cards = {}
    for base in ("models/nano", "nvidia/Cosmos-Reason2-2B"):
        spec.write_text(f'[policy]\nmodel_name_or_path = "{base}"\n')
        written = publishing.write(tmp_path, "one", quantized, {"spec.toml": spec})
        cards[base] = written[publishing.CARD].read_text()
        assert "quantized (compressed-tensors, float-quantized)" in cards[base]
    assert "models/nano" not in cards["models/nano"]
    assert "base_model: nvidia/Cosmos-Reason2-2B" in cards["nvidia/Cosmos-Reason2-2B"]
