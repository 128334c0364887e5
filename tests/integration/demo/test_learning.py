"""That what the demo shows is learning: with true labels a short run answers held-out clips, with
shuffled ones not."""

import random

import pytest

from cosmos_reason.base import files
from cosmos_reason.checkpoints import conversion, omni
from cosmos_reason.demo import clips, tiny_omni
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.engine.train import run as train
from cosmos_reason.evaluation import run as evaluation
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

TOPIC, STEPS = "colour", 200
# What the records repeat: a tokenizer that has its words makes 25 tokens of a record, not 61.
QUESTION = "<video>\nColour?"
CHAT = ["user\n", "assistant\n", "<0.5 seconds>", "<1.0 seconds>", "<0.9 seconds>"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of random weights."""
    root = tmp_path_factory.mktemp("model")
    words = [QUESTION, *clips.LETTERS] * 50 + CHAT * 400
    tiny_omni.build(root / "omni", 7, words)
    conversion.convert(omni.open_source(root / "omni"), root / "model", 10**9, force=False, jobs=1)
    return root / "model"


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """The same question about each clip: 320 to train on, 60 held out; and the same with the
    answers dealt anew."""
    root = tmp_path_factory.mktemp("colours")
    for split, count in (("train", 320), ("eval", 60)):
        clips.write_split(root, split, count, seed=1)
        path = root / split / "annotations.json"
        records = [record for record in files.read_json(path) if record["id"].endswith(TOPIC)]
        for record in records:
            record["conversations"][0]["value"] = QUESTION
        files.write_json(path, records)
        if split == "train":
            answers = [record["conversations"][1] for record in records]
            random.Random(1).shuffle(answers)
            for record, answer in zip(records, answers, strict=True):
                record["conversations"][1] = answer
            files.write_json(root / split / "shuffled.json", records)
    return root


def held_out_accuracy(colours, model, annotations, output):
    table = document.with_defaults("train", document.template("train"))
    vision = {"nframes": 2, "resized_height": 32, "resized_width": 32}
    for key, value in {
        "custom.train_dataset.annotation_path": str(colours / "train" / annotations),
        "custom.train_dataset.media_path": str(colours / "train"),
        "policy.model_name_or_path": str(model),
        "policy.model_gradient_checkpointing": False,
        "train.output_dir": str(output),
        "train.timestamp": "run",
        "train.optm_lr": 1e-3,
        "train.optm_betas": [0.9, 0.95],
        "train.optm_warmup_steps": 20,
        "train.epoch": 100,
        "train.max_num_steps": STEPS,
        "train.train_batch_per_replica": 24,
        "train.train_policy.dataloader_num_workers": 0,
        "train.ckpt.save_freq": STEPS,
    }.items():
        document.set_value(table, key, value)
    table["custom"]["vision"] |= vision
    train.run(table, None)
    asked = document.with_defaults("evaluate", document.template("evaluate"))
    asked["dataset"] |= {"annotation_path": str(colours / "eval" / "annotations.json")}
    asked["dataset"] |= {"media_dir": str(colours / "eval")}
    asked["model"]["model_name"] = str(output / "run" / "safetensors" / f"step_{STEPS}")
    asked["vision"] |= vision
    asked["generation"]["max_tokens"] = 4
    asked["results_dir"] = str(output / "results")
    evaluation.run(asked, None, Responder(asked))
    rows = files.read_json(output / "results" / "results.json")
    return sum(row["correct"] is True for row in rows) / len(rows)


def test_true_labels_are_learned(colours, model, tmp_path):
    assert held_out_accuracy(colours, model, "annotations.json", tmp_path) >= 0.9


def test_shuffled_labels_are_not(colours, model, tmp_path):
    assert held_out_accuracy(colours, model, "shuffled.json", tmp_path) <= 0.5
