"""Cosmos3-Edge in the embedded engine: what it is shown, adapters that spare its tower, saving."""

import pytest
import torch
from transformers import Cosmos3EdgeForConditionalGeneration

from cosmos_reason.checkpoints import run_outputs, safetensors_files
from cosmos_reason.data import annotations
from cosmos_reason.data.samples import Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import Encoder, collate
from cosmos_reason.engine.train import checkpointing
from cosmos_reason.engine.train.features import Features
from cosmos_reason.estimate import text_tokens
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.spec import document

CPU = torch.device("cpu")
LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "modules_to_save": None,
        "use_rslora": False, "init_lora_weights": True}  # fmt: skip
SIX = VisionOptions(nframes=6)


@pytest.fixture
def samples(dataset):
    return annotations.read(str(dataset / "train" / "annotations.json"))[0]


@pytest.fixture
def encoder(tiny_edge_model, dataset):
    tokenizer = models.load_tokenizer(tiny_edge_model)
    return Encoder(tokenizer, tiny_edge_model, str(dataset / "train"), SIX, 4096)


@pytest.mark.parametrize("reasoning", ["", "<think>\nIt gets brighter.\n</think>\n\n"])
def test_text_is_counted_as_it_is_encoded(tiny_edge_model, encoder, samples, reasoning):
    counts = text_tokens.of_model(str(tiny_edge_model))
    for sample in samples[:4]:
        *before, last = sample.turns
        turns = (*before, Turn("assistant", reasoning + last.text))
        inputs = encoder.encode_training(sample._replace(turns=turns), "")
        visions = int((inputs["mm_token_type_ids"] > 0).sum())
        markers = len(inputs["input_ids"]) - visions
        for vision in [encoder.sampler.load(item) for item in sample.media]:
            markers -= sum(map(counts.marker, vision.seconds))
        told = counts.conversation(sample.turns, media=True)
        if reasoning:
            told += counts.reasoning("It gets brighter.", last.text)
        assert markers == told


def test_a_thought_begins_where_it_is_asked_for_and_carries_loss_but_for_its_tag(encoder, samples):
    sample = samples[0]
    *before, last = sample.turns
    for text, opening in (
        (last.text, "<think></think>"),
        ("<think>\nA.\n</think>\nB", "<think>\n"),
    ):
        turns = (*before, Turn("assistant", text))
        pieces = encoder.segments(turns, sample.media, [encoder.sampler.load(sample.media[0])])
        assert pieces[0][0].endswith(f"assistant\n{opening}") and not pieces[0][1]
        assert pieces[1] == (text.removeprefix("<think>\n") + "<|im_end|>", True)
    plain, asked = [Turn("user", "Why?")], [Turn("user", "Why? <think> first")]
    assert (encoder.opening(plain), encoder.opening(asked)) == ("", "<think>\n")


def test_the_engine_and_the_class_see_the_same(tiny_edge_model, encoder, samples):
    mine = encoder.encode_prompt([Turn("user", "Which way?")], samples[0].media)
    official = Cosmos3EdgeForConditionalGeneration.from_pretrained(
        tiny_edge_model, dtype=torch.float32
    ).train(False)
    batch = collate([mine], 0, "left")
    positions, _ = official.model.get_rope_index(
        batch["input_ids"], batch["mm_token_type_ids"], video_grid_thw=batch["video_grid_thw"]
    )
    assert torch.equal(positions, batch["position_ids"])
    network = models.load_model(tiny_edge_model, torch.float32, CPU).train(False)
    batch_of_theirs = {k: v for k, v in batch.items() if k != "position_ids"}
    with torch.no_grad():
        assert torch.equal(network(**batch).logits, official(**batch_of_theirs).logits)


def adapted(folder, targets):
    network = models.load_model(folder, torch.float32, CPU)
    wrapped = models.add_lora(network, LORA | {"target_modules": targets}, "base")
    return {name.split(".lora_")[0] for name, _ in wrapped.named_parameters() if ".lora_" in name}


def test_adapters_spare_the_tower_though_its_layers_have_the_same_names(tiny_edge_model):
    names = adapted(tiny_edge_model, ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"])
    assert len(names) == 3 * 6 and all("language_model" in name for name in names)
    in_tower = adapted(tiny_edge_model, ["visual.encoder.layers.0.self_attn.q_proj", "projector"])
    assert {name.removeprefix("base_model.model.model.") for name in in_tower} == {
        "visual.encoder.layers.0.self_attn.q_proj",
        "projector.linear_fc1",
        "projector.linear_fc2",
    }
    with pytest.raises(Exception, match="out_projj"):
        adapted(tiny_edge_model, ["out_projj"])


def test_a_whole_model_is_saved_under_the_published_names(tiny_edge_model, tmp_path):
    network = models.load_model(tiny_edge_model, torch.float32, CPU)
    spec = document.with_defaults("train", {})
    checkpointing.export(network, tiny_edge_model, tmp_path / "out", torch.bfloat16, spec)
    saved, _ = safetensors_files.read_folder(tmp_path / "out")
    assert saved.keys() == safetensors_files.read_folder(tiny_edge_model)[0].keys()
    assert run_outputs.verify(tmp_path / "out") == []
    again = models.load_model(tmp_path / "out", torch.float32, CPU).state_dict()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again[name]), name


def test_kept_features_are_those_of_the_tower(tiny_edge_model, dataset, samples):
    tokenizer = models.load_tokenizer(tiny_edge_model)
    where = str(dataset / "train")
    telling = Encoder(tokenizer, tiny_edge_model, where, SIX, 4096, tells_content=True)
    network = models.load_model(tiny_edge_model, torch.float32, CPU).train(False)
    network.requires_grad_(False)
    encoded = telling.encode_training(samples[0], "")
    plain = {name: encoded[name] for name in ("input_ids", "position_ids")}
    batch = {
        "input_ids": plain["input_ids"][None],
        "position_ids": plain["position_ids"].T[:, None],
        "pixel_values_videos": encoded["pixel_values_videos"],
        "video_grid_thw": encoded["video_grid_thw"],
    }
    with torch.no_grad():
        expected = network(**batch).logits
        features = Features(network, 1.0)
        for _ in range(2):
            features.expect({"video_content": encoded["video_content"]})
            assert torch.allclose(network(**batch).logits, expected, atol=1e-6)
    assert len(features.kept) == 1
