"""What stands beside the weights is of the same model, or is told: no loader compares it."""

import json
import shutil

import launch_site
import pytest
from omni_layouts import edit_json
from safetensors.torch import load_file, save_file

from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import beside_weights, omni, run_outputs

TEXT_ONLY = "{% for one in messages %}<|im_start|>{{ one.role }}\n{{ one.content }}{% endfor %}"


def rename_tokens(folder, names):
    """Give the special tokens of a tokenizer other words, or none."""

    def change(tokenizer):
        kept = [one for one in tokenizer["added_tokens"] if names.get(one["content"], "x")]
        for one in kept:
            one["content"] = names.get(one["content"], one["content"])
        tokenizer["added_tokens"] = kept

    edit_json(folder / "tokenizer.json", change)


def swap_media(folder):
    rename_tokens(folder, {"<|image_pad|>": "<|video_pad|>", "<|video_pad|>": "<|image_pad|>"})


def larger_vocabulary(folder):
    edit_json(
        folder / "tokenizer.json",
        lambda value: value["added_tokens"].append({"id": 10**6, "content": "<|more|>"}),
    )


def template_of_a_text_model(folder):
    (folder / "chat_template.json").unlink()
    (folder / "chat_template.jinja").write_text(TEXT_ONLY)


def processor_of_another(folder):
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        edit_json(folder / name, lambda value: value.update(patch_size=14))


def nested_processor_of_another(folder):
    nested = {"image_processor": {"merge_size": 4}}
    (folder / "processor_config.json").write_text(json.dumps(nested))


def ends_in_the_middle(folder):
    edit_json(folder / "generation_config.json", lambda value: value.update(eos_token_id=[5]))


DAMAGES = {
    "swapped": (swap_media, "CKPT-TOKENIZER-OTHER"),
    "without": (
        lambda folder: rename_tokens(folder, {"<|video_pad|>": ""}),
        "CKPT-TOKENIZER-OTHER",
    ),
    "larger": (larger_vocabulary, "CKPT-TOKENIZER-OTHER"),
    "ends": (ends_in_the_middle, "CKPT-TOKENIZER-OTHER"),
    "blind": (template_of_a_text_model, "CKPT-TEMPLATE-BLIND"),
    "patches": (processor_of_another, "CKPT-PROCESSOR-OTHER"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_of_another_model_is_told_before_it_is_used_or_converted(
    published, model, tmp_path, name
):
    damage, expected = DAMAGES[name]
    broken = shutil.copytree(model, tmp_path / "model")
    assert run_outputs.verify(broken, whole=True) == []
    damage(broken)
    assert {found.id for found in run_outputs.verify(broken, whole=True)} == {expected}

    source = shutil.copytree(published, tmp_path / "omni")
    damage(source)
    with pytest.raises(Failure) as refused:
        omni.open_source(source)
    assert {found.id for found in refused.value.findings} == {expected}


IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"


@pytest.mark.parametrize(
    ("change", "unwritten"),
    [
        (lambda text: text.replace(IMAGE, ""), {IMAGE}),
        (lambda text: text.replace(VIDEO, "{{ '<|' ~ 'video_pad' ~ '|>' }}"), {VIDEO}),
        (
            lambda text: text.replace(IMAGE, "<|{{ part.type }}_pad|>").replace(VIDEO, ""),
            {IMAGE, VIDEO},
        ),
    ],
)
def test_a_template_that_may_show_what_its_text_does_not_have_is_warned_of(
    published, model, tmp_path, change, unwritten
):
    template = change(beside_weights.chat_template([model]))
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    source = shutil.copytree(published, tmp_path / "omni")
    (source / "chat_template.json").unlink()
    (source / "chat_template.jinja").write_text(template)
    for found in (run_outputs.verify(folder, whole=True), omni.open_source(source).warnings):
        told = {(one.severity, one.id, one.message.split()[0]) for one in found}
        assert told == {("warning", "CKPT-TEMPLATE-BLIND", word) for word in unwritten}


BROKEN = [
    ("added_tokens", [{"id": None, "content": "<|x|>"}], "CKPT-FILE-BAD"),
    ("added_tokens", [{"id": 5, "content": 5}], "CKPT-FILE-BAD"),
    ("eos_token_id", [[7]], "CKPT-TOKENIZER-OTHER"),
]


@pytest.mark.parametrize(("key", "value", "expected"), BROKEN)
def test_files_of_another_form_are_told_and_raise_nothing(model, tmp_path, key, value, expected):
    broken = shutil.copytree(model, tmp_path / "model")
    name = "generation_config.json" if key == "eos_token_id" else "tokenizer.json"
    edit_json(broken / name, lambda table: table.update({key: value}))
    assert {one.id for one in run_outputs.verify(broken, whole=True)} == {expected}


@pytest.mark.parametrize(
    "change", [{"text_config": None}, {"image_token_id": [5]}, {"vision_config": None}]
)
def test_a_config_of_another_form_raises_nothing(model, change):
    config = json.loads((model / "config.json").read_text()) | change
    wrong = {"CKPT-TOKENIZER-OTHER"} if "image_token_id" in change else set()
    assert {one.id for one in beside_weights.check_folder(model, config)} == wrong


def test_a_number_that_a_processor_says_twice_is_told_once(model, tmp_path):
    broken = shutil.copytree(model, tmp_path / "model")
    nested = {"merge_size": 4, "image_processor": {"merge_size": 4}}
    (broken / "processor_config.json").write_text(json.dumps(nested))
    (found,) = run_outputs.verify(broken, whole=True)
    assert found.id == "CKPT-PROCESSOR-OTHER"


def test_the_processor_that_newer_transformers_write_is_read(model, tmp_path):
    broken = shutil.copytree(model, tmp_path / "model")
    nested_processor_of_another(broken)
    (found,) = run_outputs.verify(broken, whole=True)
    assert found.id == "CKPT-PROCESSOR-OTHER"


def test_words_of_an_architecture_that_is_not_known_are_not_judged(tmp_path):
    folder = tmp_path / "model"
    launch_site.write_model(folder)
    config = {"model_type": "internvl", "text_config": {"vocab_size": 1}}
    assert beside_weights.check_folder(folder, config) == []


def test_a_tied_head_that_is_another_than_the_embedding_is_told(model, tmp_path):
    """transformers 5 answers with the stored head, 4.57 and vLLM with the embedding."""
    tied = shutil.copytree(model, tmp_path / "model")
    edit_json(tied / "config.json", lambda value: value.update(tie_word_embeddings=True))
    (found,) = run_outputs.verify(tied)
    assert found.id == "CKPT-CONFIG-BAD" and "lm_head" in found.message


def test_a_tied_head_that_is_the_embedding_in_another_dtype_is_not_refused(model, tmp_path):
    tied = shutil.copytree(model, tmp_path / "model")
    edit_json(tied / "config.json", lambda value: value.update(tie_word_embeddings=True))
    (shard,) = tied.glob("*.safetensors")
    tensors = load_file(shard)
    (name,) = [one for one in tensors if one.endswith("embed_tokens.weight")]
    tensors["lm_head.weight"] = tensors[name].float()
    save_file(tensors, shard, {"format": "pt"})
    assert run_outputs.verify(tied, whole=True) == []
