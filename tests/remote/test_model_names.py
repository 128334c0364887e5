"""What people call a model, and what that is."""

import json

import pytest

from cosmos_reason.base import findings
from cosmos_reason.remote import model_names


def test_spoken_model_names_mean_what_people_mean():
    for written in (
        "Cosmos Reason 3",
        "Cosmos3 Nano Reasoner",
        "Cosmos3-Nano",
        "cosmos3_nano",
        "nvidia/Cosmos3-Nano",
    ):
        assert model_names.canonical(written) == "hf_model://nvidia/Cosmos3-Nano"
    assert model_names.canonical("reason2-8b") == "hf_model://nvidia/Cosmos-Reason2-8B"
    assert (
        model_names.canonical("hf_model://Qwen/Qwen3-VL-2B-Instruct")
        == "hf_model://Qwen/Qwen3-VL-2B-Instruct"
    )


@pytest.mark.parametrize(
    "written", ["cosmos-reasn2", "s3://bucket/model", "http://host/m", "a/b/c", "hf_model://x", ""]
)
def test_model_names_that_cannot_be_resolved_are_refused(written):
    with pytest.raises(findings.Failure) as failure:
        model_names.canonical(written)
    assert failure.value.exit_code == findings.EXIT_BAD_INPUT


def test_a_folder_is_a_model_and_tells_its_architecture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert model_names.canonical("mine") == str(tmp_path / "mine")
    assert model_names.family(str(tmp_path / "mine")) == (None, False)
    for model_type, expected in (
        ("cosmos3_omni", ("qwen3_vl", True)),
        ("qwen2_5_vl", ("qwen2_5_vl", False)),
    ):
        (tmp_path / "mine" / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert model_names.family(str(tmp_path / "mine")) == expected
    (tmp_path / "mine" / "config.json").write_text("[broken")
    assert model_names.family(str(tmp_path / "mine")) == (None, False)


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("https://huggingface.co/nvidia/Cosmos3-Nano", "nvidia/Cosmos3-Nano"),
        ("https://huggingface.co/Qwen/Qwen3-VL-2B-Instruct/tree/main", "Qwen/Qwen3-VL-2B-Instruct"),
        ("reason2", "nvidia/Cosmos-Reason2-8B"),
    ],
)
def test_pages_and_short_names_are_models(written, model):
    assert model_names.canonical(written) == f"hf_model://{model}"


def test_a_misspelt_model_is_answered_with_the_nearest_one():
    with pytest.raises(findings.Failure) as failure:
        model_names.canonical("reasn2-2b")
    assert str(failure.value.findings[0].fix) == "--model nvidia/Cosmos-Reason2-2B"
