"""The embedded engine on a real tiny checkpoint and real clips."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from cosmos_reason import checkpoints, spec, storage
from cosmos_reason.findings import Failure
from cosmos_reason.transformers_engine import evaluate, train
from cosmos_reason.transformers_engine import model as models
from cosmos_reason.transformers_engine.model import Responder

VISION = {"nframes": 4, "resized_height": 64, "resized_width": 64}
LORA = {"r": 4, "lora_alpha": 8.0, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture
def train_spec(tiny_model, dataset, tmp_path):
    """A complete spec of 4 steps, 6 records each, saving and validating every second step."""
    table = spec.template("train")
    splits = {"train_dataset": "train", "val_dataset": "eval"}
    for name, split in splits.items():
        folder = dataset / split
        table["custom"][name] = {"annotation_path": str(folder / "annotations.json"), "media_path": str(folder)}
    changes = {
        "custom.vision": dict(VISION),
        "policy.model_name_or_path": str(tiny_model),
        "train.output_dir": str(tmp_path / "out"),
        "train.timestamp": "run",
        "train.optm_lr": 1e-3,
        "train.optm_warmup_steps": 1,
        "train.max_num_steps": 4,
        "train.train_batch_per_replica": 6,
        "train.train_policy.mini_batch": 6,
        "train.train_policy.dataloader_num_workers": 0,
        "train.param_dtype": "float32",
        "train.seed": 3,
        "train.ckpt.save_freq": 2,
        "validation.enable": True,
        "validation.freq": 2,
    }
    for key, value in changes.items():
        spec.set_value(table, key, value)
    return table


def run(table, **changes):
    for key, value in changes.items():
        spec.set_value(table, key.replace("__", "."), value)
    return train.run(spec.with_defaults("train", table), None)


def weights(folder, step="step_4"):
    return load_file(folder / "safetensors" / step / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_checkpoints_metrics_and_a_best_link_that_resolves(train_spec, tmp_path):
    run(train_spec)
    out = tmp_path / "out"
    found = checkpoints.find(out)
    assert {c.name: c.complete for c in found} == {
        "run/safetensors/step_2": True,
        "run/safetensors/step_4": True,
        "run/checkpoints/step_2/policy": True,
        "run/checkpoints/step_4/policy": True,
    }
    steps = [line for line in metrics(out / "run") if "train/loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert steps[-1]["train/loss"] < steps[0]["train/loss"]
    losses = {line["step"]: line["val/avg_loss"] for line in metrics(out / "run") if "val/avg_loss" in line}
    best = min(losses, key=losses.get)
    assert (out / "best" / "safetensors").resolve().name == f"step_{best}"
    assert storage.read_json(out / "best" / "best_score.json")["best_score"] == losses[best]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(train_spec, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(train_spec, train__timestamp=name, train__train_policy__dataloader_seed=seed)
    first, again, other = (weights(tmp_path / "out" / name) for name in "abc")
    assert same(first, again)
    assert not same(first, other)


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(train_spec, tmp_path):
    run(train_spec)
    out = tmp_path / "out"
    expected = weights(out / "run")
    for part in ("checkpoints", "safetensors"):
        shutil.rmtree(out / "run" / part / "step_4")
    run(train_spec, train__timestamp="again", train__resume=True)
    assert same(weights(out / "again"), expected)
    assert [line["step"] for line in metrics(out / "again") if "train/loss" in line] == [3, 4]


def test_resuming_a_finished_run_trains_nothing(train_spec, tmp_path):
    run(train_spec)
    run(train_spec, train__timestamp="again", train__resume=True)
    assert (tmp_path / "out" / "again" / "metrics.jsonl").read_text() == ""


def test_a_checkpoint_of_another_run_is_refused(train_spec):
    run(train_spec)
    with pytest.raises(Failure, match="ENGINE-RESUME-OTHER-RUN"):
        run(train_spec, train__resume=True, train__max_num_steps=5)


def test_the_loss_does_not_depend_on_the_mini_batch(train_spec, tmp_path):
    """Answers differ in length, so a mean of per-mini-batch means would differ."""
    annotations = storage.read_json(train_spec["custom"]["train_dataset"]["annotation_path"])
    for number, record in enumerate(annotations):
        record["conversations"][1]["value"] = "left right " * (1 + number % 5)
    storage.write_json(tmp_path / "long.json", annotations)
    for size in (1, 2, 6):
        run(
            train_spec,
            custom__train_dataset__annotation_path=str(tmp_path / "long.json"),
            train__timestamp=str(size),
            train__train_policy__mini_batch=size,
        )
    losses = [
        [line["train/loss"] for line in metrics(tmp_path / "out" / str(size)) if "train/loss" in line]
        for size in (1, 2, 6)
    ]
    assert losses[0] == pytest.approx(losses[2], rel=1e-4)
    assert losses[1] == pytest.approx(losses[2], rel=1e-4)


def test_max_keep_prunes_but_never_the_best(train_spec, tmp_path):
    run(train_spec, train__ckpt__max_keep=1, train__ckpt__save_freq=1, validation__freq=1, train__optm_lr=1e-3)
    kept = {path.name for path in (tmp_path / "out" / "run" / "safetensors").iterdir()}
    best = (tmp_path / "out" / "best" / "safetensors").resolve().name
    assert kept == {"step_4", best}


def test_epochs_name_the_checkpoints_when_the_spec_counts_in_epochs(train_spec, tmp_path):
    run(train_spec, train__max_num_steps=12, train__epoch=2, train__ckpt__save_freq_in_epoch=1)
    names = {path.name for path in (tmp_path / "out" / "run" / "safetensors").iterdir()}
    assert names == {"epoch_1", "epoch_2"}


def test_lora_trains_only_adapters_and_its_export_is_evaluated_on_its_base(train_spec, tiny_model, dataset, tmp_path):
    run(train_spec, policy__lora=dict(LORA), train__optm_lr=1e-2)
    folder = tmp_path / "out" / "run" / "safetensors" / "step_4"
    assert checkpoints.kind(folder) == checkpoints.ADAPTER and checkpoints.verify(folder) == []
    adapter = load_file(folder / "adapter_model.safetensors")
    assert adapter and all(".q_proj.lora_" in name or ".v_proj.lora_" in name for name in adapter)
    table = {"model_name": str(folder), "enable_lora": True, "base_model_path": ""}
    merged, base = models.load_for_evaluation(table, torch.float32, torch.device("cpu"))
    plain = models.load_model(tiny_model, torch.float32, torch.device("cpu"))
    changed = {n for n, p in merged.named_parameters() if not torch.equal(p, plain.get_parameter(n))}
    assert base == tiny_model
    assert changed and all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)
    with pytest.raises(Failure, match="EVAL-LORA-FLAG"):
        models.load_for_evaluation(table | {"enable_lora": False}, torch.float32, torch.device("cpu"))


def test_a_lora_target_that_matches_nothing_names_what_exists(train_spec):
    with pytest.raises(Failure, match=r"ENGINE-LORA-TARGET.*q_proj"):
        run(train_spec, policy__lora=LORA | {"target_modules": ["q_porj"]})


def test_frozen_parameters_stay_as_they_were(train_spec, tiny_model, tmp_path):
    run(train_spec, policy__freeze_pattern=["visual"])
    before, after = load_file(tiny_model / "model-00001-of-00001.safetensors"), weights(tmp_path / "out" / "run")
    changed = {name for name in after if not torch.equal(after[name], before[name].float())}
    assert changed and not any("visual" in name for name in changed)


def test_no_step_is_an_error_before_the_model_is_loaded(train_spec):
    with pytest.raises(Failure, match="ENGINE-NO-STEPS"):
        run(train_spec, train__train_batch_per_replica=1000, train__train_policy__dataloader_drop_last=True)


def test_an_omni_checkpoint_is_refused_with_the_conversion_command(train_spec, tiny_model):
    with pytest.raises(Failure) as failure:
        run(train_spec, policy__model_name_or_path=str(tiny_model.with_name("omni")))
    assert failure.value.findings[0].id == "ENGINE-MODEL-OMNI"
    assert "prepare_cosmos3_vlm_checkpoint.py" in failure.value.findings[0].fix


def test_a_missing_tensor_is_an_error_and_never_random(train_spec, tiny_model, tmp_path):
    from safetensors.torch import save_file

    broken = shutil.copytree(tiny_model, tmp_path / "broken")
    shard = broken / "model-00001-of-00001.safetensors"
    tensors = load_file(shard)
    del tensors["model.visual.pos_embed.weight"]
    save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(Failure, match=r"ENGINE-MODEL-INCOMPLETE.*pos_embed"):
        run(train_spec, policy__model_name_or_path=str(broken))


def test_a_question_has_the_tokens_it_was_trained_with(train_spec, evaluate_spec, tiny_model, tmp_path):
    """Training and evaluation read the same clip and conversation; a difference would cost accuracy in silence."""
    folder = tmp_path / "eval"
    records = storage.read_json(folder / "annotations.json")
    records[0]["conversations"] += [{"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "no"}]
    storage.write_json(folder / "annotations.json", records)
    spec.set_value(train_spec, "custom.train_dataset", evaluate_spec["dataset"] | {"media_path": str(folder)})
    trained, _ = train.datasets(
        spec.with_defaults("train", train_spec) | {"validation": {"enable": False}}, tiny_model,
        models.load_tokenizer(tiny_model),
    )  # fmt: skip
    responder = Responder(evaluate_spec)
    responder.load()
    questions = evaluate.read_questions(evaluate_spec["dataset"], -1)
    assert [question.id for question in questions[:2]] == [records[0]["id"], f"{records[0]['id']}#2"]
    for question in questions:
        asked = responder.encode(question)["input_ids"].tolist()
        sample = trained[question.sample.index]
        learned = sample["input_ids"][: len(asked)].tolist()
        assert asked == learned
        assert sample["labels"][len(asked)] != -100, "the answer follows"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_training_clip_is_a_finding_whoever_reads_it(train_spec, dataset, tmp_path, workers):
    folder = shutil.copytree(dataset / "train", tmp_path / "train")
    for clip in (folder / "videos").iterdir():
        clip.write_bytes(clip.read_bytes()[:200])
    data = {"annotation_path": str(folder / "annotations.json"), "media_path": str(folder)}
    with pytest.raises(Failure, match="DATA-MEDIA-UNDECODABLE"):
        run(train_spec, custom__train_dataset=data, train__train_policy__dataloader_num_workers=workers)


def test_a_bad_validation_clip_does_not_cost_the_checkpoint(train_spec, dataset, tmp_path):
    folder = shutil.copytree(dataset / "eval", tmp_path / "broken")
    for clip in (folder / "videos").iterdir():
        clip.write_bytes(b"")
    data = {"annotation_path": str(folder / "annotations.json"), "media_path": str(folder)}
    with pytest.raises(Failure, match="DATA-MEDIA"):
        run(train_spec, custom__val_dataset=data)
    assert {c.complete for c in checkpoints.find(tmp_path / "out")} == {True}
    assert (tmp_path / "out" / "run" / "safetensors" / "step_2").is_dir()
