"""`build_spec.py --explain`, `--list-rules` and `--help`: enough to do without reading."""

import re

import build_spec
import pytest
from support import ROOT

from cosmos_reason.base import bundle
from cosmos_reason.base import findings as f
from cosmos_reason.rules import explain
from cosmos_reason.spec import document


@pytest.mark.parametrize("word", ["train.optm_lr", "learning rate", "lr", "optm_lr"])
def test_explain_finds_a_key_by_any_of_its_names(word):
    text = explain.explain(word)
    assert text.startswith("train.optm_lr (train, grpo)\n")
    for part in (
        "above 0 to 1",
        "1e-06",
        "tao, cosmos-rl, transformers",
        "log scale",
        "SPEC-RATE-HIGH",
    ):
        assert part in text


def test_explain_says_what_moves_with_a_key():
    assert "SPEC-BATCH-MULTIPLE" in explain.explain("train.train_policy.mini_batch")
    assert "SPEC-FRAMES-ONE" in explain.explain("custom.vision.fps")
    assert "SPEC-BEST" in explain.explain("train.ckpt.save_freq")
    assert "--tuning lora: 0.0001" in explain.explain("lr")
    assert "moves with: policy.lora.lora_alpha" in explain.explain("policy.lora.r")
    assert "SPEC-GPUS: " in explain.explain("policy.parallelism.tp_size")
    assert "tp_size x cp_size" in explain.explain("SPEC-GPUS")
    rollout = explain.explain("rollout.parallelism.tp_size")
    assert "SPEC-GPUS-GRPO" in rollout and "SPEC-REPLICATE-1D" not in rollout


@pytest.mark.parametrize(
    "word",
    ["policy.lora", "checkpoint", "profiles", "reason2-traffic", "validation.", "pixels", "a"],
)
def test_explain_stays_short(word):
    text = explain.explain(word)
    assert len(text.splitlines()) <= 25
    assert len(text) < 3000


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_explain_knows_every_key(action):
    for key in document.keys(action):
        assert explain.explain(key, action).startswith(f"{key} (")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("resolution", "resized_height"),
        ("num_samples_per_prompt", "rollout.n_generation"),
        ("frame size", "resized_width"),
        ("records per step", "train.train_batch_per_replica"),
        ("the records of a step", "train.train_batch_per_replica"),
        ("global batch", "train.train_batch_per_replica"),
        ("global batch", "--global-batch N"),
        ("FP8", "quantize.quantization_scheme"),
        ("FP8", "FP8_DYNAMIC needs no data, the others calibrate"),
        ("nframes", "in evaluate, inference, quantize: vision.nframes"),
        ("num epochs training", "train.epoch"),  # in a short name and in the description
    ],
)
def test_explain_finds_words_anywhere(words, key):
    assert key in explain.explain(words)


def test_explain_says_which_action_a_rule_is_of():
    rows = {
        row.strip().partition(":")[0]: row for row in explain.explain("batch_size").splitlines()
    }
    assert rows["SPEC-BATCH-MESH"].endswith("(grpo only)") and not rows[
        "SPEC-PIPELINE-MICRO"
    ].endswith("only)")


def test_explain_of_nothing_known_suggests():
    with pytest.raises(f.Failure) as failure:
        explain.explain("learnig_rate")
    assert "learning_rate" in failure.value.findings[0].message


@pytest.mark.parametrize("word", ["", "  ", "of the", "qwertz", "SPEC-BATCH-MULTIPEL"])
def test_explain_of_nothing_is_bad_input(word):
    with pytest.raises(f.Failure) as failure:
        explain.explain(word)
    assert failure.value.exit_code == f.EXIT_BAD_INPUT
    assert ("SPEC-BATCH-MULTIPLE" in failure.value.findings[0].message) == word.startswith("SPEC-")


def test_explain_looks_beyond_the_action_when_it_has_no_such_key():
    assert explain.explain("lr", "evaluate").startswith("train.optm_lr (train, grpo)")
    assert explain.explain("nframes", "evaluate").startswith("vision.nframes (")


def test_every_id_of_the_code_is_listed_and_explained():
    sources = [
        *(ROOT / "scripts/cosmos_reason/spec").glob("*.py"),
        *(ROOT / "scripts/cosmos_reason/rules").glob("*.py"),
        ROOT / "scripts/cosmos_reason/remote/model_names.py",
        ROOT / "scripts" / "build_spec.py",
    ]
    sources += []
    used = {
        id
        for path in sources
        for id in re.findall(r'"(SPEC-[A-Z0-9-]+[A-Z0-9])"', path.read_text())
    }
    listed = set(re.findall(r"^SPEC-[A-Z0-9-]+", build_spec.listing().text, re.M))
    assert used - {"SPEC-VISION"} == listed
    for id in listed:
        assert explain.explain(id).startswith(id)


def test_rules_are_listed_with_those_that_cannot_be():
    text = build_spec.listing().text
    assert "SPEC-BATCH-MULTIPLE" in text
    assert "not decidable from a spec" in text
