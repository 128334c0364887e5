"""The embedded engine on a real tiny checkpoint and real clips."""

import fcntl
import os
import re
import shutil
import signal
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import servers
import torch
from forked import Forked, one_thread
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from support import files_up_to, run_script
from training import LORA, VISION, course, metrics, run, same, short_training, weights

from cosmos_reason.base import files, progress
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import (
    adapters,
    best_link,
    made_of,
    run_outputs,
    safetensors_files,
    uploads,
)
from cosmos_reason.engine import model as models
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.engine.encode import Encoder, collate
from cosmos_reason.engine.train import run as train
from cosmos_reason.engine.train import setup, trainer, wandb_run
from cosmos_reason.evaluation import questions
from cosmos_reason.spec import document


@pytest.fixture(scope="module")
def whole(tiny_model, dataset, tmp_path_factory):
    """The output of that training from the first step to the last."""
    output = tmp_path_factory.mktemp("whole")
    run(short_training(tiny_model, dataset, output))
    return output


def forget(output, *steps):
    """Take steps of the run `run` away, as if it had ended before them."""
    for part in ("checkpoints", "safetensors"):
        for step in steps:
            shutil.rmtree(output / "run" / part / step)


@pytest.fixture
def out(whole, train_spec):
    """The output folder of `train_spec`, with that training in it."""
    return shutil.copytree(whole, Path(train_spec["train"]["output_dir"]), symlinks=True)


def test_a_run_leaves_checkpoints_metrics_and_a_best_link_that_resolves(out):
    found = run_outputs.find(out)
    assert {c.name: c.complete for c in found} == {
        "run/safetensors/step_2": True,
        "run/safetensors/step_4": True,
        "run/checkpoints/step_2/policy": True,
        "run/checkpoints/step_4/policy": True,
    }
    steps = metrics(out / "run", "train/loss")
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert steps[-1]["train/loss"] < steps[0]["train/loss"]
    losses = {line["step"]: line["val/avg_loss"] for line in metrics(out / "run", "val/avg_loss")}
    best = min(losses, key=losses.get)
    assert (out / "best" / "safetensors").resolve().name == f"step_{best}"
    assert files.read_json(out / "best" / "best_score.json")["best_score"] == losses[best]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(train_spec, out):
    run(train_spec, train__timestamp="again")
    run(train_spec, train__timestamp="other", train__train_policy__dataloader_seed=4)
    first, again, other = (weights(out / name) for name in ("run", "again", "other"))
    assert same(first, again)
    assert not same(first, other)


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(train_spec, out):
    expected = weights(out / "run")
    forget(out, "step_4")
    run(train_spec, train__timestamp="again", train__resume=True)
    assert same(weights(out / "again"), expected)
    assert [line["step"] for line in metrics(out / "again", "train/loss")] == [3, 4]


def test_resuming_a_finished_run_trains_nothing(train_spec, out):
    run(train_spec, train__timestamp="again", train__resume=True)
    assert (out / "again" / "metrics.jsonl").read_text() == ""


def test_a_checkpoint_of_another_run_is_refused(train_spec, out):
    with pytest.raises(Failure, match="ENGINE-RESUME-OTHER-RUN"):
        run(train_spec, train__resume=True, train__max_num_steps=5)


def test_a_checkpoint_of_other_records_is_refused(train_spec, out, tmp_path):
    annotations = train_spec["custom"]["train_dataset"]["annotation_path"]
    records = files.read_json(Path(annotations))
    files.write_json(tmp_path / "copy.json", records)
    key = "custom__train_dataset__annotation_path"
    run(train_spec, train__resume=True, **{key: str(tmp_path / "copy.json")})
    files.write_json(tmp_path / "other.json", records[::-1])
    with pytest.raises(Failure, match=r"ENGINE-RESUME-OTHER-RUN.*other records"):
        run(train_spec, train__resume=True, **{key: str(tmp_path / "other.json")})


@pytest.mark.parametrize("rank", [1, 8])
def test_adapters_of_another_rank_are_refused(train_spec, tmp_path, rank):
    run(train_spec, policy__lora=LORA | {"r": rank})
    with pytest.raises(Failure, match="ENGINE-RESUME-OTHER-MODEL"):
        run(train_spec, policy__lora=dict(LORA), train__resume=True, train__timestamp="again")


def test_a_run_goes_on_in_another_precision(train_spec, out):
    """The moments take the precision of the weights, as torch's own optimizers let them."""
    resumed = str(out / "run" / "checkpoints" / "step_2" / "policy")
    run(train_spec, train__timestamp="half", train__resume=resumed, train__master_dtype="bfloat16")
    assert len(course(out / "half", "train/loss")) == 2


# -- kills, full disks, and what a resume makes up for -----------------------------------------


def test_the_best_checkpoint_outlives_a_resume_into_the_same_folder(train_spec, tmp_path):
    often = {"train__ckpt__save_freq": 1, "validation__freq": 1, "train__ckpt__max_keep": 2}
    run(train_spec, **often | {"train__ckpt__max_keep": 4})
    out = tmp_path / "out"
    best_link.write(out / "run", "step_1", 0.0)
    forget(out, "step_3", "step_4")
    run(train_spec, **often, train__resume=True)
    kept = {path.name for path in (out / "run" / "safetensors").iterdir()}
    assert kept == {"step_1", "step_4"}
    assert (out / "best" / "safetensors").resolve() == out / "run" / "safetensors" / "step_1"
    assert (out / "best" / "checkpoints" / "policy" / "cosmos_config").is_file()


@pytest.mark.parametrize("metric", ["val_loss", "val/reward_avg"])
def test_a_best_score_that_is_no_validation_loss_of_a_model_that_is_there_does_not_count(
    train_spec, out, metric
):
    best_link.write(out / "run", "step_2", 0.0, metric)
    forget(out, "step_4")
    if metric == "val_loss":
        (out / "best" / "safetensors").unlink()
        (out / "best" / "checkpoints").unlink()
    run(train_spec, train__timestamp="again", train__resume=True)
    assert (out / "best" / "safetensors").resolve().name == "step_4"


SMALL_STATE = {"policy__trainable_pattern": ["lm_head"]}  # so that it fits where the model does not


@pytest.mark.parametrize("timestamp", ["run", "again"])
def test_the_last_model_that_found_the_disk_full_is_written_by_the_resume(
    train_spec, tmp_path, timestamp
):
    once = SMALL_STATE | {"train__ckpt__save_freq": 4, "validation__freq": 4}
    run(train_spec, **once, train__output_dir=str(tmp_path / "whole"))
    with files_up_to(1 << 20), pytest.raises(Failure, match="ENGINE-SAVE-FAILED"):
        run(train_spec, **once, train__output_dir=str(tmp_path / "out"))
    assert [(c.kind, c.complete) for c in run_outputs.find(tmp_path / "out")] == [("resume", True)]
    run(train_spec, train__timestamp=timestamp, train__resume=True)
    model = tmp_path / "out" / "run" / "safetensors" / "step_4"
    assert run_outputs.verify(model) == []
    assert same(weights(tmp_path / "whole" / "run"), weights(model.parents[1]))
    assert (tmp_path / "out" / "best" / "safetensors").resolve() == model
    last = metrics(tmp_path / "out" / timestamp)[-1]
    assert (last["step"], last["total_steps"]) == (4, 4), "what a job is judged by"


@pytest.mark.parametrize("moved", ["", "policy"])
def test_a_run_of_another_folder_is_finished_in_ones_own(train_spec, tmp_path, monkeypatch, moved):
    epoch = {"train__ckpt__save_freq_in_epoch": 1, "train__max_num_steps": 6, "train__epoch": 1}
    with files_up_to(1 << 20), pytest.raises(Failure, match="ENGINE-SAVE-FAILED"):
        run(train_spec, **SMALL_STATE, **epoch)
    (state,) = (tmp_path / "out" / "run" / "checkpoints").glob("*/policy")
    if moved:
        shutil.copytree(state, tmp_path / moved)
        monkeypatch.chdir(tmp_path)
    run(train_spec, train__output_dir=str(tmp_path / "other"), train__resume=moved or str(state))
    names = {one.name: one.complete for one in run_outputs.find(tmp_path / "other")}
    assert names == {"run/safetensors/epoch_1": True, "run/checkpoints/epoch_1/policy": True}
    assert not (tmp_path / "out" / "run" / "safetensors" / "epoch_1").exists()


def test_a_disk_too_full_for_the_state_may_still_take_the_model(train_spec, tmp_path):
    with files_up_to(5 << 20), pytest.raises(Failure, match=r"ENGINE-SAVE-FAILED.*checkpoints"):
        run(train_spec, train__ckpt__save_freq=4)
    assert [(c.kind, c.step, c.complete) for c in run_outputs.find(tmp_path / "out")] == [
        ("model", "step_4", True)
    ]


def train_until_small_files(spec):
    """Train in a process of its own, which is killed in its first export, before the small files:
    they are copied last."""
    shutil.copyfile = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    train.run(spec, None)
    return 0


def test_a_training_killed_in_an_export_leaves_nothing_unfinished_once_it_was_resumed(
    train_spec, whole, tmp_path
):
    spec = document.with_defaults("train", train_spec)
    with one_thread():
        killed = Forked(partial(train_until_small_files, spec), tmp_path / "said").wait()
    assert killed == -signal.SIGKILL, (tmp_path / "said").read_text()
    exports = tmp_path / "out" / "run" / "safetensors"
    (torn,) = exports.iterdir()
    assert torn.name.startswith(".step_2.incomplete-")
    states = tmp_path / "out" / "run" / "checkpoints"
    (states / "step_4" / ".policy.incomplete-abcd").mkdir(parents=True)
    live = exports / ".step_9.incomplete-abcd"
    live.mkdir()
    handle = os.open(live, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as who still fills it holds it
    run(train_spec, train__timestamp="again", train__resume=True)
    os.close(handle)
    # The model that was lost is made.
    assert {path.name for path in exports.iterdir()} == {"step_2", live.name}
    assert [path.name for path in states.iterdir()] == ["step_2"]
    assert same(weights(whole / "run"), weights(tmp_path / "out" / "again"))
    assert same(weights(whole / "run", "step_2"), weights(tmp_path / "out" / "run", "step_2"))
    best = (whole / "best" / "safetensors").resolve().name
    assert (tmp_path / "out" / "best" / "safetensors").resolve().name == best


# -- the arithmetic ----------------------------------------------------------------------------


def test_the_loss_does_not_depend_on_the_passes(train_spec, tmp_path):
    """Answers differ in length, so a mean of per-pass means would differ."""
    annotations = files.read_json(train_spec["custom"]["train_dataset"]["annotation_path"])
    for number, record in enumerate(annotations):
        record["conversations"][1]["value"] = "left right " * (1 + number % 5)
    files.write_json(tmp_path / "long.json", annotations)
    passes = [{"tokens_per_pass": 1}, {"tokens_per_pass": 250, "recompute_layers": 1}, {}]
    told = []
    for number, options in enumerate(passes):
        ways = {"custom__transformers_engine": options, "train__timestamp": str(number)}
        run(train_spec, custom__train_dataset__annotation_path=str(tmp_path / "long.json"), **ways)
        told.append(tmp_path / "out" / str(number))
    for key in ("train/loss", "train/grad_norm", "val/avg_loss"):
        alone, some, all_together = (course(one, key) for one in told)
        assert alone == pytest.approx(all_together, rel=1e-4)
        assert some == pytest.approx(all_together, rel=1e-4)


def test_lora_trains_only_adapters_and_its_export_is_evaluated_on_its_base(
    train_spec, tiny_model, dataset, tmp_path
):
    run(train_spec, policy__lora=dict(LORA), train__optm_lr=1e-2)
    folder = tmp_path / "out" / "run" / "safetensors" / "step_4"
    assert run_outputs.kind(folder) == run_outputs.ADAPTER and run_outputs.verify(folder) == []
    adapter = load_file(folder / "adapter_model.safetensors")
    assert adapter and all(".q_proj.lora_" in name or ".v_proj.lora_" in name for name in adapter)
    table = {"model_name": str(folder), "enable_lora": True, "base_model_path": ""}
    found, base = models.folders(table["model_name"], table)
    merged = models.load_for_evaluation(found, base, torch.float32, torch.device("cpu"))
    plain = models.load_model(tiny_model, torch.float32, torch.device("cpu"))
    changed = set()
    for name, part in merged.named_parameters():
        if not torch.equal(part, plain.get_parameter(name)):
            changed.add(name)
    assert base == tiny_model
    assert changed and all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)
    # The config that cosmos-rl 0.4.7 writes: its own fields, parts of names, and nulls.
    config = files.read_json(folder / "adapter_config.json")
    own = {key: config[key] for key in ("r", "lora_alpha", "base_model_name_or_path", "peft_type")}
    own |= {"alpha_pattern": None, "r_pattern": None, "lora_names": ["default"], "lora_path": None}
    own |= {"primary_adapter": None, "target_modules": list(LORA["target_modules"])}
    files.write_json(folder / "adapter_config.json", own)
    again = models.load_for_evaluation(found, base, torch.float32, torch.device("cpu"))
    assert all(
        torch.equal(part, merged.get_parameter(name)) for name, part in again.named_parameters()
    )
    with pytest.raises(Failure, match="EVAL-LORA-FLAG"):
        models.folders(table["model_name"], table | {"enable_lora": False})
    # Another model of these shapes at the place of the base.
    other = shutil.copytree(tiny_model, tmp_path / "other")
    shard = next(other.glob("*.safetensors"))
    tensors = load_file(shard)
    tensors["lm_head.weight"] += 1
    save_file(tensors, shard, metadata={"format": "pt"})
    asked = document.with_defaults("evaluate", document.template("evaluate"))
    identities = []
    for place in (tiny_model, other):
        asked["model"] |= table | {"base_model_path": str(place)}
        asked["custom"]["transformers_engine"]["device"] = "cpu"
        identities.append(Responder(asked).identity())
    assert identities[0] != identities[1], "answers of one would be taken for those of the other"
    with pytest.raises(Failure, match="CKPT-ADAPTER-OTHER-BASE") as refused:
        models.load_for_evaluation(found, other, torch.float32, torch.device("cpu"))
    (finding,) = refused.value.findings
    assert finding.fix.changes == {"model.base_model_path": "DIR"} and not finding.fix.flags
    assert made_of.FILE in finding.message


def test_a_lora_target_that_matches_nothing_names_what_exists(train_spec):
    with pytest.raises(Failure, match=r"ENGINE-LORA-TARGET.*q_proj"):
        run(train_spec, policy__lora=LORA | {"target_modules": ["q_porj"]})


def test_frozen_parameters_stay_as_they_were(train_spec, tiny_model, tmp_path):
    run(train_spec, policy__freeze_pattern=["visual"])
    before = load_file(tiny_model / "model-00001-of-00001.safetensors")
    after = weights(tmp_path / "out" / "run")
    changed = {name for name in after if not torch.equal(after[name], before[name].float())}
    assert changed and not any("visual" in name for name in changed)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy__freeze_pattern": ["vision_tower"]},
        {"policy__trainable_pattern": ["vision_tower"]},
        {"policy__lora": LORA, "policy__freeze_pattern": ["vision_tower"]},
        {"policy__lora": LORA | {"modules_to_save": ["vision_tower"]}},
    ],
)
def test_a_pattern_that_means_no_parameter_trains_nothing(train_spec, changes):
    with pytest.raises(Failure, match=r"ENGINE-(PATTERN-NOTHING|LORA-TARGET).*vision_tower"):
        run(train_spec, **changes)


def test_a_pattern_without_effect_beside_others_is_told(train_spec, capsys):
    run(train_spec, policy__freeze_pattern=["visual", "vision_tower"], train__max_num_steps=1)
    told = capsys.readouterr().err
    assert "policy.freeze_pattern: no effect of ['vision_tower']" in told


def trained(folder, lora=None, **patterns):
    """The parameters that patterns leave to be trained."""
    network = models.load_model(folder, torch.float32, torch.device("cpu"))
    if lora:
        others = {"lora_dropout": 0.0, "modules_to_save": None, "use_rslora": False}
        network = models.add_lora(network, lora | others | {"init_lora_weights": True}, str(folder))
    everywhere = dict.fromkeys(("freeze_pattern", "trainable_pattern"))
    models.choose_trainable(network, everywhere | patterns)
    return {name for name, one in network.named_parameters() if one.requires_grad}


def test_a_pattern_means_names_as_they_are_stored_where_the_class_has_none(tiny_reason1):
    tower = trained(tiny_reason1, trainable_pattern=[r"^visual\."])
    assert tower and tower == trained(tiny_reason1, trainable_pattern=[r"^model\.visual\."])
    text = trained(tiny_reason1, freeze_pattern=[r"^visual\."])
    assert text and not text & tower
    # The class has a name for it, which counts alone: stored, the tower does not begin so either.
    assert trained(tiny_reason1, freeze_pattern=[r"^(?!model\.visual)"]) == tower
    everywhere = LORA | {"target_modules": "all-linear"}
    adapters = trained(tiny_reason1, everywhere, freeze_pattern=[r"^visual\."])
    assert adapters and not any("visual" in name for name in adapters)
    assert not trained(tiny_reason1, everywhere, freeze_pattern=[r"^model\.layers"]) & adapters


def test_a_pattern_of_the_base_leaves_its_adapters(tiny_model):
    assert trained(tiny_model, LORA, freeze_pattern=["q_proj.weight"]) == trained(tiny_model, LORA)
    with pytest.raises(Failure, match="ENGINE-NOTHING-TRAINABLE"):
        trained(tiny_model, LORA, freeze_pattern=["language_model"])


def test_a_run_whose_adapters_a_pattern_freezes_now_is_told_what_to_drop(train_spec):
    """As earlier versions, which passed over it, have left some."""
    everywhere = {"policy__lora": LORA | {"target_modules": ["q_proj", "qkv"]}}
    run(train_spec, **everywhere)
    again = {"train__resume": True, "train__timestamp": "again"}
    with pytest.raises(Failure, match=r"RESUME-OTHER-MODEL.*policy\.freeze_pattern") as caught:
        run(train_spec, **everywhere, **again, policy__freeze_pattern=["visual"])
    (found,) = caught.value.findings
    assert found.fix.changes == {"policy.freeze_pattern": None}
    run(train_spec, **everywhere, **again, policy__freeze_pattern=None)


def test_adapters_that_a_pattern_freezes_stay_as_they_began(train_spec, tmp_path):
    everywhere = LORA | {"target_modules": ["q_proj", "qkv"]}
    run(train_spec, policy__lora=everywhere, policy__freeze_pattern=["visual"])
    name = "safetensors/step_4/adapter_model.safetensors"
    adapter = load_file(tmp_path / "out" / "run" / name)
    trained = {key for key, value in adapter.items() if "lora_B" in key and value.any()}
    assert trained and all(".q_proj." in key for key in trained)
    assert any(".visual." in key for key in adapter)


def test_no_step_is_an_error_before_the_model_is_loaded(train_spec):
    few = {"train__train_batch_per_replica": 1000}
    with pytest.raises(Failure, match="ENGINE-NO-STEPS"):
        run(train_spec, **few, train__train_policy__dataloader_drop_last=True)


def test_an_omni_checkpoint_is_refused_with_the_conversion_command(train_spec, tiny_model):
    with pytest.raises(Failure) as failure:
        run(train_spec, policy__model_name_or_path=str(tiny_model.with_name("omni")))
    assert failure.value.findings[0].id == "ENGINE-MODEL-OMNI"
    assert "prepare_cosmos3_vlm_checkpoint.py" in str(failure.value.findings[0].fix)


def test_an_architecture_that_is_not_loaded_here_is_refused_before_its_weights_are_fetched(
    train_spec, tmp_path, monkeypatch
):
    files.write_json(tmp_path / "other" / "config.json", {"model_type": "llava"})
    files.write_text(tmp_path / "other" / "model.safetensors", "16 GB")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with servers.hub({"lab/other": tmp_path / "other"}) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(Failure, match=r"ENGINE-MODEL-TYPE.*'llava'"):
            run(train_spec, policy__model_name_or_path="hf_model://lab/other")
        assert server.sent == ["config.json"]


def test_a_missing_tensor_is_an_error_and_never_random(train_spec, tiny_model, tmp_path):
    from safetensors.torch import save_file

    broken = shutil.copytree(tiny_model, tmp_path / "broken")
    shard = broken / "model-00001-of-00001.safetensors"
    tensors = load_file(shard)
    del tensors["model.visual.pos_embed.weight"]
    save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(Failure, match=r"ENGINE-MODEL-INCOMPLETE.*pos_embed"):
        run(train_spec, policy__model_name_or_path=str(broken))


def answering(spec, folder, enable_lora):
    """The weights that answer every question of an evaluate spec, as they are loaded."""
    spec["model"] |= {"model_name": str(folder), "enable_lora": enable_lora}
    responder = Responder(spec)
    answers = chain.from_iterable(responder.answers(questions.read(spec["dataset"], -1)))
    assert {answer.error for answer in answers} == {None}
    return responder.network.state_dict()


def test_qwen2_5_vl_is_trained_exported_and_asked_as_qwen3_vl_is(
    train_spec, evaluate_spec, tiny_reason1, tmp_path
):
    run(train_spec, policy__model_name_or_path=str(tiny_reason1))
    exported = tmp_path / "out" / "run" / "safetensors" / "step_4"
    assert run_outputs.verify(exported) == []
    stored, _ = safetensors_files.read_folder(tiny_reason1)
    assert safetensors_files.read_folder(exported)[0].keys() == stored.keys()
    losses = course(tmp_path / "out" / "run", "train/loss")
    assert losses[-1] < losses[0]
    assert answering(evaluate_spec, exported, False)


def test_an_adapter_of_qwen2_5_vl_is_merged_into_the_weights_that_it_answers_with(
    train_spec, evaluate_spec, tiny_reason1, tmp_path
):
    """Its sums are rounded to bfloat16 by half a step, 2**-8, at most. Of random weights that alone
    turns an answer where two tokens are nearly even: answers are not compared."""
    model = {"policy__model_name_or_path": str(tiny_reason1)}
    lora = {"policy__lora": LORA | {"target_modules": ["q_proj", "attn.qkv"]}}
    run(train_spec, **model, **lora, train__optm_lr=1e-2)
    adapter, merged = tmp_path / "out" / "run" / "safetensors" / "step_4", tmp_path / "merged"
    assert run_outputs.verify(adapter) == []
    adapters.merge(adapters.read(adapter), tiny_reason1, merged, jobs=1)
    assert run_outputs.verify(merged) == []
    expected = answering(evaluate_spec, adapter, True)
    got = answering(evaluate_spec, merged, False)
    torch.testing.assert_close(got, expected, rtol=2**-8, atol=1e-6)
    base = models.load_model(tiny_reason1, torch.float32, torch.device("cpu")).state_dict()
    changed = {name for name in base if not torch.equal(got[name], base[name])}
    assert changed == {f"{module}.weight" for module in adapters.read(adapter).pairs}


def test_qwen2_5_vl_generates_at_the_positions_that_it_is_trained_at(evaluate_spec, tiny_reason1):
    """Prompts of two lengths in one batch; each token must be the one that the whole text so far
    predicts, at the encoder's own positions."""
    evaluate_spec["model"]["model_name"] = str(tiny_reason1)
    responder = Responder(evaluate_spec)
    responder.load()
    asked = questions.read(evaluate_spec["dataset"], 3)
    encoded = [responder.encode(question) for question in asked]
    assert len({len(inputs["input_ids"]) for inputs in encoded}) > 1
    generated = [text for text, _, _ in responder.generate(encoded)]
    for question, inputs, text in zip(asked, encoded, generated, strict=True):
        visions = [responder.encoder.sampler.load(item) for item in question.sample.media]
        prompt = len(inputs["input_ids"])
        for _ in range(evaluate_spec["generation"]["max_tokens"]):
            kinds = inputs["mm_token_type_ids"]
            inputs["position_ids"] = responder.encoder.positions(kinds, visions)
            with torch.no_grad():
                logits = responder.network(**collate([inputs], 0, "left")).logits
            inputs["input_ids"] = torch.cat([inputs["input_ids"], logits[0, -1:].argmax(-1)])
            inputs["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1)])
        tokens = inputs["input_ids"][prompt:]
        assert responder.tokenizer.decode(tokens, skip_special_tokens=True).startswith(text)


def test_a_batch_tells_how_many_tokens_its_answers_have(evaluate_spec, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    responder = Responder(evaluate_spec)
    responder.load()
    asked = questions.read(evaluate_spec["dataset"], 2)
    capsys.readouterr()
    answers = responder.generate([responder.encode(question) for question in asked])
    told = re.findall(r"2 answers: .* (\d+)/(\d+)", capsys.readouterr().err)
    most = evaluate_spec["generation"]["max_tokens"]
    made = max(tokens for _, _, tokens in answers)
    assert [(int(done), int(total)) for done, total in told] == [(n, most) for n in range(made + 1)]


def test_a_copied_checkpoint_is_asked_as_it_was_trained(out, dataset, tmp_path):
    copy = shutil.copytree(out / "run" / "safetensors" / "step_4", tmp_path / "copied")
    words = ["evaluate", "--engine", "transformers", "--model", copy]
    words += ["--eval-root", dataset / "eval", "-o", tmp_path / "copied.toml"]
    done = run_script("build_spec.py", *words)
    assert done.returncode == 0, done.stderr
    vision = document.load(tmp_path / "copied.toml")["vision"]
    assert {key: vision.get(key) for key in VISION} == VISION


def test_a_question_has_the_tokens_it_was_trained_with(
    train_spec, evaluate_spec, tiny_model, tmp_path
):
    """Training and evaluation read the same clip and conversation; a difference would cost accuracy
    in silence."""
    folder = tmp_path / "eval"
    records = files.read_json(folder / "annotations.json")
    more = [{"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "no"}]
    records[0]["conversations"] += more
    files.write_json(folder / "annotations.json", records)
    data = evaluate_spec["dataset"] | {"media_path": str(folder)}
    changes = {"custom.train_dataset": data, "validation.enable": False}
    document.set_values(train_spec, changes)
    spec = document.with_defaults("train", train_spec)
    trained, _ = setup.datasets(spec, tiny_model, models.load_tokenizer(tiny_model))
    responder = Responder(evaluate_spec)
    responder.load()
    asked = questions.read(evaluate_spec["dataset"], -1)
    first = records[0]["id"]
    assert [question.id for question in asked[:2]] == [first, f"{first}#2"]
    for question in asked:
        prompt = responder.encode(question)["input_ids"].tolist()
        sample = trained[question.sample.index]
        learned = sample["input_ids"][: len(prompt)].tolist()
        assert prompt == learned
        assert sample["labels"][len(prompt)] != -100, "the answer follows"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_training_clip_is_a_finding_whoever_reads_it(train_spec, dataset, tmp_path, workers):
    folder = shutil.copytree(dataset / "train", tmp_path / "train")
    for clip in (folder / "videos").iterdir():
        clip.write_bytes(clip.read_bytes()[:200])
    data = {"annotation_path": str(folder / "annotations.json"), "media_path": str(folder)}
    readers = {"train__train_policy__dataloader_num_workers": workers}
    with pytest.raises(Failure, match="DATA-MEDIA-UNDECODABLE"):
        run(train_spec, custom__train_dataset=data, **readers)


def test_a_reader_that_is_killed_ends_the_run_with_its_state_saved(
    train_spec, tmp_path, monkeypatch
):
    encode = Encoder.encode_training

    def deadly(self, sample, *more):
        if sample.index == 17:  # of the last steps
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(self, sample, *more)

    monkeypatch.setattr(Encoder, "encode_training", deadly)
    policy = train_spec["train"]["train_policy"]
    policy |= {"dataloader_num_workers": 1, "dataloader_shuffle": False}
    document.set_value(train_spec, "train.train_batch_per_replica", 5)
    document.set_value(train_spec, "train.train_policy.dataloader_prefetch_factor", 1)
    with pytest.raises(Failure, match=r"ENGINE-LOADER-DIED.* its state is saved"):
        run(train_spec)
    saved = [found for found in run_outputs.find(tmp_path / "out") if found.kind == "resume"]
    assert saved and saved[-1].complete


def test_waiting_for_records_is_part_of_a_steps_time(train_spec, tmp_path, monkeypatch):
    """By a clock on which a record takes a second to read, and the pass of a step ten."""
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def taking(seconds, call):
        def taken(*given):
            clock.now += seconds
            return call(*given)

        return taken

    monkeypatch.setattr(Encoder, "encode_training", taking(1, Encoder.encode_training))
    monkeypatch.setattr(trainer.Trainer, "accumulate", taking(10, trainer.Trainer.accumulate))
    run(train_spec, validation__enable=False)
    batch = train_spec["train"]["train_batch_per_replica"]
    for line in metrics(tmp_path / "out" / "run", "train/loss"):
        assert line["train/waiting_seconds"] == batch
        assert line["train/step_seconds"] == batch + 10


def test_runs_of_one_second_get_folders_of_their_own_and_a_jobs_run_names_it(train_spec, tmp_path):
    first, second = setup.new_run_folder(tmp_path / "out"), setup.new_run_folder(tmp_path / "out")
    assert first != second and first.is_dir() and second.is_dir()
    job = tmp_path / "train-20260101-000000-abcdef"
    job.mkdir()
    short = {"train.timestamp": "", "train.max_num_steps": 1, "validation.enable": False}
    document.set_values(train_spec, short)
    made = train.run(document.with_defaults("train", train_spec), job)
    assert run_outputs.run_marked_by(Path(made["run_dir"])) == job.name
    assert run_outputs.run_marked_by(first) is None


class Runs:
    """Stands for the package wandb: what runs were begun with, and what they were told."""

    Error = RuntimeError
    Settings = dict
    id = "run-a"

    def __init__(self):
        self.begun, self.lines, self.ended = [], [], []

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, line, step):
        self.lines.append((step, line))

    def finish(self, exit_code):
        self.ended.append(exit_code)


def test_wandb_gets_the_numbers_of_metrics_jsonl(train_spec, tmp_path, monkeypatch):
    runs = Runs()
    monkeypatch.setitem(sys.modules, "wandb", runs)
    logging = {"logger": ["wandb"], "project_name": "p", "experiment_name": "first"}
    run(train_spec, logging=logging)
    told = metrics(tmp_path / "out" / "run")
    for line in told:
        del line["time"]
    assert [line for _, line in runs.lines] == told and len(told) > 4
    assert [step for step, _ in runs.lines] == [line["step"] for line in told]
    (begun,) = runs.begun
    assert (begun["project"], begun["name"], begun["resume"]) == ("p", "first", None)
    assert runs.ended == [0]
    run(train_spec, logging=logging, train__resume=True)
    again = runs.begun.pop()
    assert (again["id"], again["resume"]) == ("run-a", "allow"), "one run of W&B"


@pytest.mark.parametrize(
    ("asked", "state", "id"),
    [
        ({"wandb_run_id": "mine"}, {"wandb_run_id": "run-a"}, "mine"),
        ({"wandb_resume": "never"}, {"wandb_run_id": "run-a"}, None),
        ({}, {}, None),  # a training that begins anew has a run of its own
    ],
)
def test_a_run_of_wandb_is_the_one_asked_for(tmp_path, monkeypatch, asked, state, id):
    runs = Runs()
    monkeypatch.setitem(sys.modules, "wandb", runs)
    spec = document.with_defaults("train", {"logging": {"logger": ["wandb"], **asked}})
    with wandb_run.reported(None, spec, tmp_path, state):
        assert [begun["id"] for begun in runs.begun] == [id]


def test_a_run_that_fails_ends_so_in_wandb_and_one_without_the_package_never_begins(
    train_spec, tmp_path, monkeypatch
):
    wishes = {"logging__logger": ["wandb"], "train__optm_lr": 1e30}
    runs = Runs()
    monkeypatch.setitem(sys.modules, "wandb", runs)
    with pytest.raises(Failure):
        run(train_spec, **wishes)
    assert runs.ended == [1]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Failure) as failure:
        run(train_spec, **wishes, train__output_dir=str(tmp_path / "second"))
    (finding,) = failure.value.findings
    assert finding.id == "ENGINE-WANDB-MISSING" and not (tmp_path / "second").exists()


def test_a_failed_upload_is_said_and_costs_no_training(train_spec, tmp_path, monkeypatch, capfd):
    nobody = "http://127.0.0.1:9"  # where nothing listens
    monkeypatch.setenv("AWS_ENDPOINT_URL", nobody)
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret-key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "canary-key-id")
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    wishes = {"upload_s3": "all", "s3_bucket": "b", "upload_hf": True, "hf_repo_name": "o/m"}
    done = run(train_spec, **{f"train__ckpt__{key}": value for key, value in wishes.items()})
    assert done["steps"] == 4
    folder = tmp_path / "out" / "run"
    addresses = [
        "s3://b/outputs/run/safetensors/step_2",
        "s3://b/outputs/run/checkpoints/step_2/policy",
        "hf_model://o/m-run",
        "s3://b/outputs/run/safetensors/step_4",
        "s3://b/outputs/run/checkpoints/step_4/policy",
    ]
    assert list(files.read_json(folder / uploads.FILE)) == uploads.failed(folder) == addresses
    said = capfd.readouterr().err
    assert said.count("warning: ENGINE-UPLOAD") == 5 and "canary" not in said
    last = folder / "safetensors" / "step_4"
    assert f"scripts/publish_checkpoint.py {last} --hub o/m-run --yes" in said
    assert f"scripts/publish_checkpoint.py {last} --s3 {addresses[3]} --yes" in said
    assert all(found.complete for found in run_outputs.find(tmp_path / "out"))
