"""Predicted tokens are those that the encoder makes; without a tokenizer they are at least those of
Qwen's."""

import functools
import json

import pytest
from clip_files import check
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from support import ROOT

from cosmos_reason.base import families
from cosmos_reason.data import clip_files, survey
from cosmos_reason.data import facts as dataset_facts
from cosmos_reason.data.annotations import read
from cosmos_reason.data.prediction import predict
from cosmos_reason.data.samples import Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import Encoder
from cosmos_reason.estimate import record_tokens, text_tokens
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.rules import lengths
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document

DATA = ROOT / "tests/fixtures"
VISION = {"nframes": 6, "resized_height": 64, "resized_width": 96}


@pytest.fixture(scope="module")
def root(dataset, tmp_path_factory):
    """Records as the demo's, and some that it has not: several turns, media and kinds, odd white
    space, no media."""
    folder = tmp_path_factory.mktemp("records")
    records = json.loads((dataset / "train" / "annotations.json").read_text())[:12]
    Image.new("RGB", (64, 48), (9, 9, 9)).save(folder / "still.png")
    clip = str(dataset / "train" / records[0]["video"])
    for record in records:
        record["video"] = str(dataset / "train" / record["video"])

    def add(name, *texts, **media):
        speakers = ("human", "gpt") * len(texts)
        turns = [
            {"from": speaker, "value": text} for speaker, text in zip(speakers, texts, strict=False)
        ]
        records.append({"id": name, "conversations": turns} | media)
        return records[-1]

    add(
        "turns",
        "What is it?",
        "A car.",
        "\n Sure?",
        "  yes\n\n",
        "And then, 12.5 s later?",
        "No",
        video=clip,
    )
    add(
        "several",
        "Compare them.",
        "[[1, 2.5], [300, 44]]",
        videos=[clip, clip],
        images=[str(folder / "still.png")] * 2,
    )
    add("image", "  What is shown?", "视频 ünïcödé", image=str(folder / "still.png"))
    add("words", "\nAn empty line comes first.", "\nAnd here.")
    own = add("system", "Which?", "B", video=clip)
    own["conversations"].insert(0, {"from": "system", "value": "\nAnswer with a letter."})
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


def encoded_lengths(samples, model, system):
    options = VisionOptions.from_table(VISION)
    encoder = Encoder(models.load_tokenizer(model), model, "", options, max_length=100000)
    return [len(encoder.encode_training(sample, system)["input_ids"]) for sample in samples]


def surveyed(root, model):
    found = survey.of_records(root / "annotations.json", str(model))
    how = ("none", VisionOptions(nframes=6), 30.0, clip_checks.Cache())
    found.reports |= dict(clip_checks.examine_all(clip_files.files(found), *how))
    return found


@pytest.mark.parametrize("system", ["", "You watch 12 clips."])
def test_with_the_tokenizer_the_prediction_is_what_is_encoded(root, tiny_model, system):
    table = document.template("train")
    for key, value in {
        "custom.vision": VISION,
        "policy.model_name_or_path": str(tiny_model),
    }.items():
        document.set_value(table, key, value)
    document.set_value(table, "train.train_policy.system_prompt", system)
    spec = document.with_defaults("train", table)
    predicted = record_tokens.tokens_for_spec(
        dataset_facts.tables(surveyed(root, tiny_model)), spec
    )
    samples = read(root / "annotations.json")[0]
    assert [record.total for record in predicted] == encoded_lengths(samples, tiny_model, system)


def test_an_evaluation_prompt_is_predicted_too(root, tiny_model):
    table = document.template("evaluate")
    for key, value in {"vision": VISION, "model.model_name": str(tiny_model)}.items():
        document.set_value(table, key, value)
    spec = document.with_defaults("evaluate", table)
    predicted = record_tokens.tokens_for_spec(
        dataset_facts.tables(surveyed(root, tiny_model)), spec
    )
    options = VisionOptions.from_table(VISION)
    encoder = Encoder(models.load_tokenizer(tiny_model), tiny_model, "", options, max_length=100000)
    prompts = [(sample.turns[:-1], sample.media) for sample in read(root / "annotations.json")[0]]
    assert [record.total for record in predicted] == [
        len(encoder.encode_prompt(turns, media)["input_ids"]) for turns, media in prompts
    ]


# Texts and their numbers of tokens with the vocabulary that the Qwen2 and Qwen3 tokenizers have in
# common.
COUNTED = json.loads((DATA / "qwen_tokens.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text, tokens", COUNTED.items(), ids=[text[:20] for text in COUNTED])
def test_without_a_tokenizer_the_estimate_is_not_below_qwens(text, tokens):
    estimated = text_tokens.estimate(text)
    assert tokens <= estimated <= 2.5 * tokens + 4


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return text_tokens.Tokenizer(tiny_model)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Co"]), min_size=1, max_size=40),
        min_size=2,
        max_size=5,
    )
)
def test_a_conversation_costs_what_its_chat_text_costs(tiny, tiny_model, texts):
    """Any text, and what the template writes around it, in the pieces that the encoder makes."""
    tokenizer = loaded(tiny_model)
    texts = texts[: len(texts) // 2 * 2]
    turns = [Turn(("user", "assistant")[number % 2], text) for number, text in enumerate(texts)]
    assume(not any(mark in text for text in texts for mark in ("<|",)))
    encoder = Encoder.__new__(Encoder)
    encoder.tokenizer, encoder.family = tokenizer, families.DEFAULT
    pieces = [text for text, _ in encoder.segments(turns, (), ())]
    encoded = sum(len(tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces)
    assert tiny.conversation(turns, False) == encoded


@functools.cache
def loaded(folder):
    return models.load_tokenizer(folder)


def test_the_loaders_memory_is_one_number(root, tmp_path):
    """Two batches ahead of each worker when the spec does not say, as torch does."""
    table = document.template("train")
    for key, value in {"dataloader_num_workers": 3, "dataloader_prefetch_factor": None}.items():
        document.set_value(table, f"train.train_policy.{key}", value)
    document.set_value(table, "train.train_batch_per_replica", 5)
    document.set_value(table, "custom.vision", VISION)
    spec = document.with_defaults("train", table)
    found = surveyed(root, "")
    facts = tmp_path / "facts.json"
    dataset_facts.write_facts(found, facts)
    told = predict(found, "train", spec, "tao")["prefetch_bytes_per_rank"]
    case = Case("train", "transformers", table, facts)
    assert told == lengths.loader_gib(case) * 2**30 > 0
    most = max(record.vision for record in record_tokens.tokens_for_spec(facts, spec))
    assert told == 3 * 2 * 5 * most * (2 * 32 * 32 * 3 * 4)


def test_grpo_has_one_count_of_records_that_are_too_long(root, tmp_path):
    path = tmp_path / "spec.toml"
    table = document.template("grpo")
    changes = {
        "custom.vision": VISION,
        "policy.model_max_length": 2120,
        "rollout.max_response_length": 2048,
    }
    for key, value in changes.items():
        document.set_value(table, key, value)
    document.dump(table, path)
    result, found = check(root, "--spec", path, "--facts", tmp_path / "facts.json", expect=1)
    case = Case("grpo", "cosmos-rl", table, tmp_path / "facts.json")
    too_long = lengths.too_long(case)[1]
    assert 0 < len(too_long) < result["train"]["records"]
    assert found["DATA-TOKENS"]["data"]["record_ids"] == too_long
    assert result["train"]["prediction"]["too_long"] == len(too_long)
