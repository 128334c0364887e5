"""That what the demo shows is learning: with true labels a short run answers held-out clips, with shuffled ones not."""

import random

import pytest

from cosmos_reason import spec, storage
from cosmos_reason.demo import clips
from cosmos_reason.transformers_engine import evaluate, train

TOPIC, STEPS = "colour", 240


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """One multiple-choice question per clip: 160 to train on, 60 held out; and the same with the answers dealt anew."""
    root = tmp_path_factory.mktemp("colours")
    for split, count in (("train", 160), ("eval", 60)):
        clips.write_split(root, split, count, seed=1)
        path = root / split / "annotations.json"
        records = [record for record in storage.read_json(path) if record["id"].endswith(TOPIC)]
        storage.write_json(path, records)
        if split == "train":
            answers = [record["conversations"][1] for record in records]
            random.Random(1).shuffle(answers)
            for record, answer in zip(records, answers, strict=True):
                record["conversations"][1] = answer
            storage.write_json(root / split / "shuffled.json", records)
    return root


def held_out_accuracy(colours, tiny_model, annotations, output):
    table = spec.with_defaults("train", spec.template("train"))
    vision = {"nframes": 4, "resized_height": 64, "resized_width": 64}
    for key, value in {
        "custom.train_dataset": {"annotation_path": str(colours / "train" / annotations)},
        "custom.train_dataset.media_path": str(colours / "train"),
        "policy.model_name_or_path": str(tiny_model),
        "policy.model_gradient_checkpointing": False,
        "train.output_dir": str(output),
        "train.timestamp": "run",
        "train.optm_lr": 1e-3,
        "train.optm_warmup_steps": 20,
        "train.epoch": 100,
        "train.max_num_steps": STEPS,
        "train.train_batch_per_replica": 24,
        "train.train_policy.mini_batch": 24,
        "train.train_policy.dataloader_num_workers": 0,
        "train.ckpt.save_freq": STEPS,
    }.items():
        spec.set_value(table, key, value)
    table["custom"]["vision"] |= vision
    train.run(table, None)
    asked = spec.with_defaults("evaluate", spec.template("evaluate"))
    asked["dataset"] |= {"annotation_path": str(colours / "eval" / "annotations.json")}
    asked["dataset"] |= {"media_dir": str(colours / "eval")}
    asked["model"]["model_name"] = str(output / "run" / "safetensors" / f"step_{STEPS}")
    asked["vision"] |= vision
    asked["generation"]["max_tokens"] = 4
    asked["results_dir"] = str(output / "results")
    evaluate.run(asked, None)
    rows = storage.read_json(output / "results" / "results.json")
    return sum(row["correct"] is True for row in rows) / len(rows)


def test_true_labels_are_learned(colours, tiny_model, tmp_path):
    assert held_out_accuracy(colours, tiny_model, "annotations.json", tmp_path) >= 0.9


def test_shuffled_labels_are_not(colours, tiny_model, tmp_path):
    assert held_out_accuracy(colours, tiny_model, "shuffled.json", tmp_path) <= 0.5
