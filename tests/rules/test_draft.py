"""What moves along when a spec is made from an earlier one, a job, a tuning, a model: values,
paths, origins."""

import math
import re
import shutil

import pytest
import support
import support_specs
from run_folders import write_halves
from support_specs import run_by_id as run
from support_specs import write_facts

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import fitting
from cosmos_reason.rules.case import COUNTED_BYTES, Case
from cosmos_reason.spec import document
from cosmos_reason.spec.origins import nodes_of as noted_nodes

SAMPLES = "quantize.num_calibration_samples"
TURNS = [{"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "This."}]
JOB = "jobs/train-20260101-000000-abcdef"


def printed(here, line):
    """What a command line that writes a spec prints."""
    return support.run_script("build_spec.py", *line.split(), "-o", "told.toml", cwd=here).stdout


def origins(file="spec.origins.json"):
    return files.read_json(file)["origins"]


@pytest.fixture
def job(here):
    """A finished LoRA train job whose checkpoint is on disk."""
    line = "train --engine transformers --tuning lora --train-root data --model reason2-2b"
    run(line, f"{JOB}/spec.toml")
    checkpoint = here / "out" / "20260101000000" / "safetensors" / "step_20"
    base = {"base_model_name_or_path": "nvidia/Cosmos-Reason2-2B"}
    files.write_json(checkpoint / "adapter_config.json", base)
    record = {"action": "train", "state": "COMPLETE", "evidence": {"checkpoint": str(checkpoint)}}
    files.write_json(here / JOB / "job.json", record)
    return checkpoint


@pytest.fixture
def quantized(here, job):
    """The folder of a finished job that quantized that model."""
    spec = here / JOB / "spec.toml"
    table = document.load(spec)
    document.set_value(table, "custom.vision", {"nframes": 12})
    document.set_value(table, "train.train_policy.system_prompt", "Look.")
    document.dump(table, spec)
    folder = here / "jobs" / "quantize-1"
    record = {"action": "quantize", "state": "COMPLETE", "parent_job": (here / JOB).name}
    record["evidence"] = {"checkpoint": str(folder / "results")}
    files.write_json(folder / "job.json", record)
    files.write_json(folder / "results" / "config.json", {"model_type": "qwen3_vl"})
    return folder


@pytest.mark.parametrize("action", ["evaluate", "inference"])
@pytest.mark.parametrize("given", ["--parent-job {}", "--model {}/results"])
def test_a_quantized_model_is_asked_as_it_was_trained(quantized, here, action, given):
    line = f"{action} --engine transformers {given.format(quantized)}"
    keys = {"evaluate": ("model.model_name", "dataset.system_prompt")}
    model, prompt = keys.get(action, ("model_path", "system_prompt"))
    code, found, made = run(line)
    assert code == 0 and "SPEC-TRAINING-UNKNOWN" not in found
    assert document.get(made, model) == str(quantized / "results")
    assert made["vision"] == {"nframes": 12} and document.get(made, prompt) == "Look."
    (here / JOB / "spec.toml").unlink()
    _, found, made = run(line)
    assert document.get(made, model) == str(quantized / "results")
    assert "SPEC-TRAINING-UNKNOWN" in found


def test_a_job_that_quantizes_begins_with_no_quantized_model(quantized):
    code, found, _ = run(f"quantize --engine transformers --parent-job {quantized}")
    assert code == 2 and "a COMPLETE train job" in found["SPEC-PARENT"].message


# ---- tuning and its learning rate ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "rate"),
    [
        ("--tuning lora", "--tuning full", 1e-6),
        ("--tuning lora", "--unset policy.lora", 1e-4),  # moves with --tuning alone; it is warned
        ("--tuning lora --set lr=5e-5", "--tuning full", 5e-5),  # the user's own, by the origins
        ("--tuning lora", "--tuning full --set lr=2e-6", 2e-6),
        ("", "--tuning lora", 1e-4),
        ("", "--set lora_rank=8 --set lora_alpha=16 --set policy.lora.target_modules=q_proj", 1e-6),
        ("--set lr=3e-5", "--tuning lora", 3e-5),
        ("--profile tao-default", "--tuning lora", 1e-6),  # a recipe for LoRA
        ("--profile reason2-traffic", "--tuning lora", 1e-4),  # a recipe for all weights
        ("--tuning lora", "--tuning lora", 1e-4),
    ],
)
def test_the_learning_rate_moves_with_the_tuning_unless_the_user_set_it(here, first, then, rate):
    run(f"train {first}", "first.toml")
    code, found, made = run(f"train --spec first.toml {then}")
    assert (code, made["train"]["optm_lr"]) == (0, rate)
    has_moved = rate != document.load("first.toml")["train"]["optm_lr"] and "lr=" not in then
    assert ("SPEC-TUNING-RATE" in found) == has_moved


@pytest.mark.parametrize(("written", "rate"), [(1e-4, 1e-6), (7e-5, 7e-5)])
def test_without_origins_only_the_rate_of_the_old_tuning_moves(here, written, rate):
    run(f"train --tuning lora --set lr={written}", "first.toml")
    (here / "first.origins.json").unlink()
    assert run("train --spec first.toml --tuning full")[2]["train"]["optm_lr"] == rate


# ---- earlier specs -------------------------------------------------------------------------------


def test_origins_survive_a_second_build_and_an_edit_makes_them_forgotten(here):
    run("train --set lr=2e-6 --train-root data", "j.toml")
    run("train --spec j.toml --set epochs=3", "j.toml")
    assert origins("j.origins.json")["train.optm_lr"] == "--set lr"
    assert origins("j.origins.json")["train.ckpt.max_keep"] == "template"
    edited = (here / "j.toml").read_text().replace("max_keep = 5", "max_keep = 6")
    (here / "j.toml").write_text(edited)
    run("train --spec j.toml", "k.toml")
    assert set(origins("k.origins.json").values()) == {"j.toml"}


def test_an_earlier_spec_is_read_as_the_command_line_is(here):
    table = document.template("train")
    document.set_value(table, "policy.model_name_or_path", "Cosmos Reason 2 2B")
    document.set_value(table, "custom.train_dataset.annotation_path", "data/annotations.json")
    document.set_value(table, "custom.train_dataset.media_path", "nowhere")
    document.dump(table, here / "mine.toml")
    code, found, made = run("train --spec mine.toml")
    assert code == 0
    assert made["policy"]["model_name_or_path"] == "hf_model://nvidia/Cosmos-Reason2-2B"
    annotations = made["custom"]["train_dataset"]["annotation_path"]
    assert annotations == str(here / "data" / "annotations.json")
    assert found["SPEC-PATH-NOT-HERE"].where == str(here / "nowhere")
    document.set_value(table, "policy.model_name_or_path", "reasn2")
    document.dump(table, here / "mine.toml")
    code, found, _ = run("train --spec mine.toml")
    assert (code, found["SPEC-MODEL-NAME"].where) == (2, "policy.model_name_or_path")


def test_what_cannot_be_read_does_not_hide_what_else_is_wrong(here):
    line = "train --spec no.toml --profile no --model no --dataset-facts no.json --set epochs=0"
    code, found, _ = run(f"{line} --gpus-per-node 3")
    wrong = "FILE-MISSING SPEC-PROFILE SPEC-MODEL-NAME SPEC-VALUE SPEC-GPUS-PER-NODE"
    assert code == 2 and found.keys() >= set(wrong.split())


# ---- models and adapters -------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["--model ./merged", "--set model=./merged"])
def test_a_merged_model_is_no_adapter_of_the_job(here, job, words):
    files.write_text(here / "merged" / "config.json", '{"model_type": "qwen3_vl"}')
    code, found, made = run(f"evaluate --engine transformers --parent-job {JOB} {words}")
    assert (code, made["model"]["enable_lora"], made["model"]["base_model_path"]) == (0, False, "")
    assert not {"SPEC-PARENT-LAST", "SPEC-PARENT-ADAPTER"} & found.keys()
    code, found, made = run(f"grpo --engine cosmos-rl --parent-job {JOB} {words}")
    assert (code, made["policy"]["model_name_or_path"]) == (0, str(here / "merged"))


def test_a_folder_with_an_adapter_is_noticed(here, job):
    code, found, _ = run(f"evaluate --model {job}")
    assert (code, "CKPT-SHARD-DAMAGED" in found) == (1, True), "it has no weights"
    write_halves(job)
    code, _, made = run(f"evaluate --model {job}")
    assert (code, made["model"]["enable_lora"]) == (0, True)
    assert made["model"]["base_model_path"] == "hf_model://nvidia/Cosmos-Reason2-2B"
    code, found, _ = run(f"evaluate --model {job} --set enable_lora=false")
    fix = str(found["SPEC-ADAPTER-FOLDER"].fix)
    assert (code, "enable_lora=true" in fix) == (1, True)
    code, found, _ = run(f"train --model {job}")
    advice = f"select_checkpoint.py {job} --merge DIR"
    assert (code, advice in found["SPEC-MODEL-ADAPTER"].message) == (1, True)


def test_a_training_that_goes_on_takes_the_engine_of_its_parent_job(here, job):
    """And of a finished one the adapter is merged: there is nothing else to go on from."""
    record = files.read_json(here / JOB / "job.json") | {"engine": "transformers"}
    files.write_json(here / JOB / "job.json", record)
    code, found, _ = run(f"train --parent-job {JOB}")
    assert (code, "SPEC-RESUME-OTHER" in found) == (1, False)
    merge = f"select_checkpoint.py {job} --merge DIR"
    assert merge in found["SPEC-RESUME-DONE"].message
    _, found, _ = support_specs.run(f"train --engine tao --parent-job {JOB}")
    fixes = {str(one.fix) for one in found if one.id == "SPEC-RESUME-OTHER"}
    assert fixes == {"replace --engine tao with --engine transformers"}


@pytest.mark.parametrize("engine", ["tao", "cosmos-rl"])
@pytest.mark.parametrize("written", ["nvidia/Cosmos-Reason2-32B", "nvidia/Cosmos3-Super"])
def test_a_32b_model_is_sharded_over_all_nodes_where_all_its_weights_are_trained(
    here, written, engine
):
    grid = "policy.parallelism."
    for tuning, shards, replicas in (("full", 16, 1), ("lora", 8, 2)):
        words = f"train --engine {engine} --model {written} --tuning {tuning} --train-root data"
        code, found, made = run(f"{words} --gpus-per-node 8 --nodes 2")
        assert code == 0 and "SPEC-GPUS" not in found
        assert not [one for one in found.values() if one.severity == f.ERROR]
        sizes = [document.get(made, grid + key) for key in ("dp_shard_size", "dp_replicate_size")]
        assert sizes == [shards, replicas]
    _, found, _ = run(f"train --engine {engine} --model {written} --tuning full --gpus-per-node 1")
    assert "SPEC-GPUS-FEW" in found  # though "2B" is part of its name


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_edge_has_the_frames_pixels_and_length_that_tao_gives_it_where_nobody_chose(here, tuning):
    words = f"train --engine transformers --model nvidia/Cosmos3-Edge --tuning {tuning}"
    _, found, made = run(words)
    assert made["custom"]["vision"] == {"nframes": 6, "total_pixels": 5_529_600}
    assert made["policy"]["model_max_length"] == 16_000 and "SPEC-LENGTH-LOW" not in found
    if tuning == "lora":
        targets = made["policy"]["lora"]["target_modules"]
        assert targets == ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"]
    _, _, made = run(f"{words} --set fps=2 --set total_pixels=90000 --set max_length=9000")
    assert made["custom"]["vision"] == {"fps": 2, "total_pixels": 90000}
    assert made["policy"]["model_max_length"] == 9000
    made = run("train --engine transformers --model nvidia/Cosmos3-Nano")[2]
    assert made["custom"]["vision"] == {"nframes": 8}


# ---- warm-up, frames, loaders with dataset facts -------------------------------------------------


@pytest.mark.parametrize(
    ("words", "warmup"),
    [("", 0.5), ("--set max_steps=30", 20), ("--set max_steps=30 --set batch_size=8", 10)],
)
def test_warmup_epochs_are_steps_where_those_are_known(here, words, warmup):
    line = "train --engine cosmos-rl --set train.optm_warmup_epochs=1"
    code, found, made = run(f"{line} --dataset-facts {write_facts(here, 80)} {words}")
    steps = made["train"]["optm_warmup_steps"]
    assert (code, steps, type(steps)) == (0, warmup, type(warmup)), found


@pytest.mark.parametrize(
    ("words", "each", "in_one_pass"),
    [
        ("--engine tao --gpus-per-node 8", 2, 1),
        ("--engine transformers", 16, 1),
        ("--engine tao --gpus-per-node 4 --nodes 2", 2, 1),
        # A forward pass that does not divide the rank's records gives way, unless it was asked for.
        ("--engine tao --gpus-per-node 8 --profile reason2-physics", 2, 2),
        ("--engine tao --gpus-per-node 2 --set mini_batch=4", 8, 4),
    ],
)
def test_a_global_batch_is_dealt_to_the_data_parallel_ranks(here, words, each, in_one_pass):
    line = f"train --train-root data --model reason2-2b {words} --global-batch 16"
    code, found, made = run(line)
    assert code == 0, found
    assert made["train"]["train_batch_per_replica"] == each
    assert made["train"]["train_policy"]["mini_batch"] == in_one_pass
    assert "--global-batch 16" in origins()["train.train_batch_per_replica"]


def test_a_train_spec_tells_its_global_batch_and_steps(here):
    facts = write_facts(here, 160)
    line = f"train --train-root data --gpus-per-node 8 --global-batch 16 --dataset-facts {facts}"
    size = "global batch 16 (2 x 8 data-parallel ranks), 20 steps (10 an epoch)"
    size += "; saves at the last step only"
    assert printed(here, line).splitlines() == [
        f"wrote told.toml: {size}",
        "  model    hf_model://nvidia/Cosmos3-Nano for tao",
        "  data     data (160 records)",
        "  tuning   all weights",
        "  length   2 epochs; learning rate 1e-06, cosine decay, warm-up 0 steps (3%)",
        "  saves    every 20 steps and at the last step, keeps 5",
        "  clips    8 frames a clip, up to 40960 tokens a record; the longest has 3012 "
        "(text estimated)",
        "  GPUs     8",
    ]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("optm_warmup_steps=0.3", "warm-up 6 steps (30%)"),
        ("optm_warmup_steps=4", "warm-up 4 steps"),
        ("optm_warmup_epochs=1 --unset optm_warmup_steps", "warm-up 1 epochs"),
    ],
)
def test_the_warm_up_is_told_as_it_counts(here, setting, told):
    """Its steps, where the steps of the run are known; epochs where the trainer counts those."""
    line = "train --engine tao --train-root data --gpus-per-node 8 --global-batch 16"
    line += f" --dataset-facts {write_facts(here, 160)} --set {setting}"
    assert f"cosine decay, {told}\n" in printed(here, line)


@pytest.mark.parametrize(
    ("records", "ranks", "drop_last", "told"),
    [
        (24, 2, "true", "1 an epoch; dataloader_drop_last leaves out 4 records of each rank, a st"),
        (24, 2, "false", "2 an epoch; the last of each with 4 records of each rank, which datalo"),
        (24, 16, "true", "2 an epoch; 8 records are dealt twice in each, so that all ranks have"),
        (40, 16, "true", "3 an epoch; 8 records are dealt twice"),
        (1599, 16, "true", "100 an epoch)"),  # one of so many
    ],
)
def test_records_that_fill_no_batch_are_told(here, records, ranks, drop_last, told):
    """cosmos-rl's sampler deals to all ranks as many."""
    gpus = f"--gpus-per-node {min(ranks, 8)} --nodes {math.ceil(ranks / 8)}"
    line = f"train --train-root data {gpus} --global-batch 16 --dataset-facts "
    line += f"{write_facts(here, records)} --set dataloader_drop_last={drop_last}"
    assert told in printed(here, line)


def test_the_embedded_engine_deals_no_record_twice(here):
    line = "train --engine transformers --train-root data --gpus-per-node 8 --nodes 2 "
    line += f"--global-batch 16 --dataset-facts {write_facts(here, 24)}"
    assert "2 an epoch; the last of each lacks 8 records)" in printed(here, line)


@pytest.mark.parametrize(
    ("records", "words", "intervals"),
    [
        (12, "", (3, 3)),  # 6 steps, which the template's 20 never reach
        (1, "", (1, 1)),
        (12, "--set save_freq=2", (2, 2)),
        (12, "--set validation_freq=2", (2, 2)),
        (12, "--profile reason1-sft --set batch_size=4 --set warmup=0.03", (1, 1)),  # 3 steps
        (60, "--profile production --set batch_size=4 --set epochs=2", (15, 15)),  # both 100
        (60, "--set save_freq=20", (20, 20)),
        (400, "", (20, 20)),
        (400, "--set max_steps=10", (5, 5)),
    ],
)
def test_a_short_run_saves_and_validates(here, records, words, intervals):
    line = "train --tuning lora --train-root data --eval-root held_out --dataset-facts"
    code, found, made = run(f"{line} {write_facts(here, records)} {words}")
    assert code == 0, found
    assert (made["train"]["ckpt"]["save_freq"], made["validation"]["freq"]) == intervals
    assert not found.keys() & {"SPEC-SAVE-NEVER", "SPEC-VALIDATION-NEVER", "SPEC-BEST"}
    assert ("SPEC-INTERVAL" in found) == (intervals != (20, 20))
    if "--set" not in words and "SPEC-INTERVAL" in found:
        steps = f"steps of the run: {6 if records == 12 else 2}"
        assert found["SPEC-INTERVAL"].severity == f.INFO and origins()["validation.freq"] == steps


LOW = "--set custom.vision.resized_height=64 --set custom.vision.resized_width=64"


@pytest.mark.parametrize(
    ("records", "words", "batch", "in_one_pass"),
    [
        (1600, f"--engine tao {LOW}", 32, 4),  # 50 steps an epoch, two epochs
        (1568, f"--engine tao {LOW}", 4, 1),  # 98 steps
        (1568, f"--engine tao {LOW} --set epochs=3", 32, 4),
        (1600, f"--engine tao {LOW} --gpus-per-node 8", 4, 4),
        (1600, f"--engine transformers {LOW}", 32, 1),  # which counts tokens
        (9999, f"--engine tao {LOW} --gpus-per-node 8 --nodes 8", 4, 1),  # 64 ranks
        (1600, "--engine tao", 32, 4),  # some 3,000 tokens a record
        (1600, "--engine tao --set nframes=16", 32, 1),  # twice as many
        (1600, f"--engine tao {LOW} --set batch_size=4", 4, 1),
        (1600, f"--engine tao {LOW} --set mini_batch=2", 4, 2),
        (1600, f"--engine tao {LOW} --global-batch 16", 16, 1),
        (1600, f"--engine tao {LOW} --set max_steps=200", 4, 1),
        (1600, f"--engine tao {LOW} --profile reason2-physics --set epochs=2", 32, 4),
    ],
)
def test_a_batch_that_nobody_chose_is_that_of_recipes_where_it_can_be_formed(
    here, records, words, batch, in_one_pass
):
    line = f"train --train-root data --model reason2-2b {words}"
    code, found, made = run(f"{line} --dataset-facts {write_facts(here, records)}")
    assert code == 0, found
    policy = made["train"]["train_policy"]
    assert (made["train"]["train_batch_per_replica"], policy["mini_batch"]) == (batch, in_one_pass)


def test_a_pass_of_several_takes_records_up_to_the_length_of_recipes(here, monkeypatch):
    words = f"--engine tao --model reason2-2b --dataset-facts {write_facts(here, 1600)}"
    _, found, _ = run(f"train --train-root data {words} --set policy.model_max_length=512")
    most = int(re.search(r"up to (\d+) tokens", found["SPEC-LENGTH-SAMPLE"].message)[1])
    for longest, in_one_pass in ((most, 4), (most - 1, 1)):
        monkeypatch.setattr(fitting, "LONGEST", longest)
        _, _, made = run(f"train --train-root data {words}", f"{longest}.toml")
        assert made["train"]["train_policy"]["mini_batch"] == in_one_pass


def test_data_enough_change_of_the_template_what_is_said(here):
    """The batch and the forward pass, besides the data, which also turn the validation on."""
    template = document.load(bundle.template_path("train"))
    line = "train --engine tao --train-root data --eval-root held_out"
    code, found, made = run(f"{line} --dataset-facts {write_facts(here, 1600)}")
    assert code == 0, found
    del made["custom"]["train_dataset"], made["custom"]["val_dataset"]
    made["validation"]["enable"] = False
    assert "32 records a step, 4 in a forward pass" in found["SPEC-USUAL"].message
    made["train"]["train_batch_per_replica"] = 4
    made["train"]["train_policy"]["mini_batch"] = 1
    empty = {"annotation_path": "", "media_path": ""}
    assert template["custom"].pop("train_dataset") == empty
    assert template["custom"].pop("val_dataset") == empty
    assert template == made


def test_without_lengths_a_forward_pass_has_one_record(here):
    write_records(here, 1600)
    _, found, made = run("train --train-root data")
    assert "32 records a step, saves each epoch" in found["SPEC-USUAL"].message
    assert made["train"]["train_policy"]["mini_batch"] == 1
    assert origins()["train.train_batch_per_replica"].startswith("as published recipes")


def write_records(here, count, name="data"):
    records = [{"id": f"r{n}", "video": "a.mp4", "conversations": TURNS} for n in range(count)]
    files.write_json(here / name / "annotations.json", records)


def test_a_batch_that_nobody_chose_follows_other_gpus_and_data(here):
    facts = write_facts(here, 1600)

    def batch(line):
        train = run(f"train {line}")[2]["train"]
        return train["train_batch_per_replica"], train["train_policy"]["mini_batch"]

    line = f"train --train-root data --eval-root held_out {LOW} --dataset-facts {facts}"
    run(line, "one.toml")
    run(f"{line} --set batch_size=8", "mine.toml")
    assert batch(f"--spec one.toml --gpus-per-node 2 --dataset-facts {facts}")[0] == 16
    assert batch(f"--spec mine.toml --gpus-per-node 2 --dataset-facts {facts}")[0] == 8
    assert batch(f"--spec one.toml --dataset-facts {write_facts(here, 160)}") == (4, 1)


@pytest.mark.parametrize(
    ("records", "words", "epochs", "validation"),
    [
        (400, "--engine tao", 1, {"freq": 20, "freq_in_epoch": 1}),
        (400, "--engine transformers", 1, {"freq": 20, "freq_in_epoch": 1}),
        (400, "--engine cosmos-rl", 1, {"freq": 100}),
        (76, "--engine tao", 0, {"freq": 20}),  # 19 steps an epoch
        (64032, "--engine tao --set batch_size=32", 0, {"freq": 20}),  # 2,001 steps an epoch
        (400, "--engine tao --set save_freq=20", 0, {"freq": 20}),
        (400, "--engine tao --set validation_freq=10", 0, {"freq": 10}),
        (400, "--engine tao --set epochs=1", 0, {"freq": 20}),
        (400, "--engine tao --set max_steps=150", 0, {"freq": 20}),
    ],
)
def test_a_run_saves_and_validates_by_epoch_where_that_is_neither_rare_nor_often(
    here, records, words, epochs, validation
):
    line = "train --train-root data --eval-root held_out --model reason2-2b"
    code, found, made = run(f"{line} {words} --dataset-facts {write_facts(here, records)}")
    assert code == 0, found
    assert made["train"]["ckpt"]["save_freq_in_epoch"] == epochs
    assert {key: made["validation"][key] for key in validation} == validation
    assert ("freq_in_epoch" in made["validation"]) == ("freq_in_epoch" in validation)
    assert "SPEC-BEST" not in found


def test_intervals_that_were_asked_for_stay(here):
    facts = write_facts(here, 12)
    line = f"train --eval-root data --dataset-facts {facts} --set validation_freq=9"
    code, found, _ = run(line)
    assert (code, found["SPEC-VALIDATION-NEVER"].severity) == (0, f.WARNING)
    run("train --eval-root data --set validation_freq=9 --set batch_size=4", "mine.toml")
    assert "SPEC-VALIDATION-NEVER" in run(f"train --spec mine.toml --dataset-facts {facts}")[1]


@pytest.mark.parametrize(
    ("frames", "asked", "fits"), [([64, 17], 32, 16), ([64, 6], 8, 6), ([64, 1], 8, None)]
)
def test_the_most_frames_that_fit_every_clip_are_proposed(here, frames, asked, fits):
    facts = write_facts(here, len(frames), frames)
    fix = f"replace --set nframes={asked} with --set nframes={fits}" if fits else ""
    for action in ("train", "evaluate"):
        line = f"{action} --engine transformers --dataset-facts {facts} --set nframes={asked}"
        assert str(run(line)[1]["SPEC-FRAMES-CLIP"].fix) == fix


def test_a_rate_of_frames_is_not_blamed_for_clips_of_one_frame(here):
    facts = write_facts(here, 2, [64, 1])
    finding = run(f"train --dataset-facts {facts} --set fps=2")[1]["SPEC-FRAMES-CLIP"]
    assert not finding.fix


@pytest.mark.parametrize("batch", [32, 512, 4096])
def test_loaders_are_cut_down_to_what_memory_holds(here, batch):
    asked = "--set train.train_policy.dataloader_prefetch_factor=16"
    line = f"train --dataset-facts {write_facts(here, 8)} --set batch_size={batch} --set nframes=64"
    fix = str(run(f"{line} {asked}")[1]["SPEC-LOADER-MEMORY"].fix)
    new = fix.removeprefix(f"replace {asked} with ")
    assert new != fix and "SPEC-LOADER-MEMORY" not in run(f"{line} {new}")[1]


# ---- resuming ------------------------------------------------------------------------------------


@pytest.fixture
def saved(here):
    """The resume folder of a cosmos-rl run on 2 shards."""
    folder = here / "out" / "20260101000000" / "checkpoints" / "step_20" / "policy"
    ones = ("tp_size", "cp_size", "pp_size", "dp_replicate_size", "n_init_replicas")
    sizes = dict.fromkeys(ones, 1) | {"dp_shard_size": 2}
    files.write_json(folder / "cosmos_config", {"policy": {"parallelism": sizes, "lora": None}})
    for rank in (0, 1):
        for name in ("model", "optimizer", "scheduler", "extra_info"):
            files.write_text(folder / f"{name}_rank_{rank}.pth", "")
        files.write_text(folder / f".rank_{rank}_complete", "")
    return folder


@pytest.mark.parametrize("words", ["--set resume={0}", "--set output_dir=out --set resume=true"])
def test_a_run_is_resumed_in_its_own_layout(saved, words):
    line = f"train --engine cosmos-rl {words.format(saved)}"
    code, found, _ = run(line)
    one = found["SPEC-RESUME-OTHER"]
    assert (code, one.where) == (1, "policy.parallelism.dp_shard_size")
    code, found, _ = run(f"{line} {one.fix!s}")
    assert (code, "SPEC-RESUME-OTHER" in found, "SPEC-RESUME-NOTHING" in found) == (0, False, False)
    found = support_specs.run(f"{line} {one.fix!s} --tuning lora")[1]
    told = [(one.where, str(one.fix)) for one in found if one.id == "SPEC-RESUME-OTHER"]
    assert told == [("policy.lora", "replace --tuning lora with --tuning full")]
    other = run(line.replace("cosmos-rl", "transformers"))[1]["SPEC-RESUME-OTHER"]
    assert "saved by cosmos-rl" in other.message


ALL_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("", set()),
        ("--set epochs=9 --set output_dir=elsewhere", set()),
        ("--tuning full", {"policy.lora"}),
        ("--set lora_rank=4", {"policy.lora.r"}),
        ("--set policy.lora.target_modules=q_proj", {"policy.lora.target_modules"}),
        (f"--set policy.lora.target_modules={','.join(reversed(ALL_LAYERS))}", set()),
        ("--gpus-per-node 4 --nodes 2", {"policy.parallelism.dp_shard_size"}),
        ("--model reason2-8b", {"policy.model_name_or_path"}),
        ("--engine transformers", {"--engine"}),
        ("--set lora_alpha=64", {"policy.lora.lora_alpha"}),
        ("--set use_rslora=true", {"policy.lora.use_rslora"}),
        ("--tuning full --set resume=false", set()),
    ],
)
def test_a_parent_job_is_resumed_as_it_was_even_where_its_folder_is_not_seen(here, words, where):
    line = "train --engine cosmos-rl --model reason2-2b --tuning lora --gpus-per-node 8 --nodes 2"
    run(line, f"{JOB}/spec.toml")
    record = {"action": "train", "engine": "cosmos-rl", "state": "COMPLETE"}
    checkpoint = "/cluster/out/20260101000000/safetensors/step_20"
    files.write_json(here / JOB / "job.json", record | {"evidence": {"checkpoint": checkpoint}})
    engine = "" if "--engine" in words else "--engine cosmos-rl"
    _, found, _ = support_specs.run(f"train {engine} --parent-job {JOB} {words}")
    told = [one for one in found if one.id == "SPEC-RESUME-OTHER"]
    assert {one.where for one in told} == where
    assert {one.severity for one in told} <= {"error"}


@pytest.mark.parametrize(
    ("words", "where", "told"),
    [
        ("", None, ""),
        ("--set epochs=9 --set learning_rate=1e-5 --set mini_batch=1", None, ""),
        ("--set batch_size=8", "train.train_batch_per_replica", "128 records a step, but"),
        ("--set dataloader_seed=5", "train.train_policy.dataloader_seed", "dataloader_seed 0:"),
        ("--set dataloader_shuffle=false", "train.train_policy.dataloader_shuffle", "shuffle True"),
        ("--set dataloader_drop_last=true", "train.train_policy.dataloader_drop_last", "False"),
    ],
)
def test_a_resumed_run_that_would_deal_other_records_is_told(here, words, where, told):
    line = "train --engine cosmos-rl --model reason2-2b --tuning lora --gpus-per-node 8 --nodes 2"
    run(line, f"{JOB}/spec.toml")
    record = {"action": "train", "engine": "cosmos-rl", "state": "COMPLETE"}
    checkpoint = "/cluster/out/20260101000000/safetensors/step_20"
    files.write_json(here / JOB / "job.json", record | {"evidence": {"checkpoint": checkpoint}})
    found = run(f"train --engine cosmos-rl --parent-job {JOB} {words}")[1]
    if where is None:
        assert "SPEC-RESUME-DEALT" not in found
    else:
        one = found["SPEC-RESUME-DEALT"]
        assert (one.where, one.severity) == (where, "warning") and told in one.message
        assert ("--global-batch 64" in str(one.fix)) == (where == "train.train_batch_per_replica")


def test_another_order_is_told_where_the_ranks_are_left_open(saved):
    config = files.read_json(saved / "cosmos_config")
    config["train"] = {"train_batch_per_replica": 8}
    config["train"]["train_policy"] = {"dataloader_drop_last": False}
    config["policy"]["parallelism"]["dp_shard_size"] = -1
    files.write_json(saved / "cosmos_config", config)
    line = f"train --engine cosmos-rl --gpus-per-node 2 --set resume={saved}"
    one = run(f"{line} --set dataloader_seed=5")[1]["SPEC-RESUME-DEALT"]
    assert "got dataloader_seed 5, but the run to resume has dataloader_seed 0" in one.message
    assert "SPEC-RESUME-DEALT" not in run(f"{line} --set batch_size=2")[1]


@pytest.mark.parametrize(("model", "is_told"), [("reason2-8b", True), ("reason2-2b", False)])
def test_adapters_resumed_on_another_base_are_told(saved, model, is_told):
    config = files.read_json(saved / "cosmos_config")
    config["policy"] |= {"lora": {"r": 16}, "model_name_or_path": "/models/Cosmos-Reason2-2B"}
    files.write_json(saved / "cosmos_config", config)
    line = f"train --engine cosmos-rl --tuning lora --gpus-per-node 2 --set resume={saved}"
    _, found, _ = support_specs.run(f"{line} --model {model}")
    told = [one for one in found if one.where == "policy.model_name_or_path"]
    told = [one for one in told if one.id == "SPEC-RESUME-OTHER"]
    assert [one.severity for one in told] == ["warning"] * is_told


@pytest.mark.parametrize("checkpoint", ["/model", "/out/20260101000000/safetensors/final"])
def test_a_model_without_a_step_tells_no_folder_to_resume_from(job, here, checkpoint):
    record = files.read_json(here / JOB / "job.json") | {"evidence": {"checkpoint": checkpoint}}
    files.write_json(here / JOB / "job.json", record)
    line = f"train --engine transformers --parent-job {JOB}"
    code, found, _ = run(line)
    assert (code, checkpoint in found["SPEC-PARENT"].message) == (2, True)
    old, new = str(found["SPEC-PARENT"].fix).removeprefix("replace ").split(" with ")
    code, _, made = run(line.replace(old, new))
    assert (code, made["train"]["resume"]) == (0, True)


# ---- layouts, saves ------------------------------------------------------------------------------


def test_only_what_was_given_is_the_origin_of_a_layout(here):
    key = "policy.parallelism.dp_replicate_size"
    for given in ("--gpus-per-node 8 --nodes 2", "--gpus-per-node 4"):
        run(f"train {given}")
        assert origins()[key] == given
    assert files.read_json("spec.origins.json")["engine"] == "tao"


def test_the_nodes_of_a_layout_are_noted_and_kept(here):
    run("train --gpus-per-node 2 --nodes 2", "wide.toml")
    assert noted_nodes("wide.toml", 4) == 2
    run("train --spec wide.toml --set epochs=3", "later.toml")
    assert noted_nodes("later.toml", 4) == 2 and noted_nodes("later.toml", 8) is None
    run("train --spec wide.toml --set dp_shard_size=4", "other.toml")
    assert noted_nodes("other.toml", 8) is None
    run("train --gpus-per-node 2")
    assert noted_nodes("spec.toml", 2) == 1
    run("train", "unsaid.toml")
    assert noted_nodes("unsaid.toml", 1) is None
    run("evaluate --gpus-per-node 2", "asking.toml")
    assert noted_nodes("asking.toml", 2) is None


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (2, 1), (4, 2), (8, 1), (8, 2)])
def test_colocated_layouts_use_every_gpu_for_both_sides(here, gpus, nodes):
    line = "grpo --engine cosmos-rl --model reason2-2b --set mode=colocated_separated"
    code, found, made = run(f"{line} --gpus-per-node {gpus} --nodes {nodes}")
    assert code == 0 and not {"SPEC-GPUS-IDLE", "SPEC-GPUS-GRPO"} & found.keys()
    assert Case("grpo", "cosmos-rl", made).needed_gpus == gpus * nodes


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(2, 1), (4, 1), (8, 1), (1, 4), (4, 2), (8, 2), (8, 4)]
)
def test_separated_layouts_have_whole_replicas_over_nodes(here, gpus, nodes):
    """cosmos-rl's GRPO trainer refuses dp_replicate_size above 1."""
    line = "grpo --engine cosmos-rl --set train_batch_per_replica=64"
    code, found, made = run(f"{line} --gpus-per-node {gpus} --nodes {nodes}")
    sizes = made["policy"]["parallelism"]
    assert (code, sizes["dp_replicate_size"]) == (0, 1) and "SPEC-GPUS-IDLE" not in found
    assert Case("grpo", "cosmos-rl", made).needed_gpus == gpus * nodes
    assert sizes["n_init_replicas"] == made["rollout"]["parallelism"]["n_init_replicas"]


def test_a_layout_of_several_nodes_is_not_taken_for_one_of_one(here):
    run("grpo --engine cosmos-rl --gpus-per-node 8 --nodes 2", "wide.toml")
    code, found, _ = run("grpo --engine cosmos-rl --spec wide.toml --gpus-per-node 4")
    fix = found["SPEC-GPUS-PER-NODE"].fix
    assert (code, fix.flags) == (1, {"--gpus-per-node": 4, "--nodes": 2})


def test_separated_sides_may_differ_and_need_the_gpus_of_the_policy(here):
    line = "grpo --engine cosmos-rl --set dp_shard_size=4 --set rollout_tp_size=2 --gpus-per-node 4"
    code, found, _ = run(f"{line} --set mode=colocated_separated")
    assert (code, "SPEC-GPUS-IDLE" in found) == (0, False)
    wrong = run(f"{line} --set mode=colocated")[1]["SPEC-COLOCATED"]
    assert wrong.fix.changes == {"mode": "colocated_separated"}


def test_one_gpu_is_shared_unless_the_mode_is_named(here):
    small = "grpo --engine cosmos-rl --gpus-per-node 1 --model reason2-2b"
    code, found, made = run(small)
    assert (code, made["mode"]) == (0, "colocated_separated") and "SPEC-GPU-SHARED" in found
    assert made["rollout"]["gpu_memory_utilization"] == 0.3
    assert Case("grpo", "cosmos-rl", made).needed_gpus == 1
    made = run(f"{small} --set rollout.gpu_memory_utilization=0.2")[2]
    assert made["rollout"]["gpu_memory_utilization"] == 0.2
    assert "SPEC-GPUS-GRPO" in run(f"{small} --set mode=disaggregated")[1]


@pytest.mark.parametrize("profile", ["small-dataset", "tao-default"])
def test_profiles_that_save_by_epoch_validate_by_epoch(here, profile):
    line = f"train --profile {profile} --eval-root data"
    _, found, made = run(line)
    assert "SPEC-BEST" not in found and made["validation"]["freq_in_epoch"] == 1
    _, found, made = run(f"{line} --engine cosmos-rl --dataset-facts {write_facts(here, 80)}")
    assert "SPEC-BEST" not in found and made["train"]["ckpt"]["save_freq_in_epoch"] == 1
    finding = run(f"{line} --engine cosmos-rl")[1]["SPEC-BEST"]
    assert not finding.fix and "--dataset-facts" in finding.message
    asked = run(f"{line} --set validation.freq=7")[2]["validation"]
    assert asked["enable"] and asked["freq"] == 7 and "freq_in_epoch" not in asked


def test_a_short_reinforcement_run_needs_no_other_warm_up(here):
    assert run("grpo --engine cosmos-rl --set max_steps=10")[0] == 0


def test_a_folder_that_is_no_complete_checkpoint_is_refused(saved):
    (saved / ".rank_1_complete").unlink()
    assert "SPEC-RESUME-INCOMPLETE" in run(f"train --set resume={saved}")[1]
    assert "SPEC-RESUME-NOTHING" in run("train --set output_dir=out --set resume=true")[1]
    assert "SPEC-PATH-NOT-HERE" in run("train --set resume=/other/checkpoints/step_1/policy")[1]


@pytest.mark.parametrize(
    "config", ["[broken", "[]", '{"policy": 3}', '{"policy": {"parallelism": [1], "lora": null}}']
)
def test_a_broken_record_of_the_layout_is_no_crash(saved, config):
    (saved / "cosmos_config").write_text(config)
    code, found, _ = run(f"train --engine cosmos-rl --set resume={saved}")
    assert (code, "SPEC-RESUME-OTHER" in found) == (0, False)


def test_facts_without_their_tables_are_one_finding_among_others(here):
    facts = write_facts(here, 8)
    (here / "clips.parquet").write_text("broken")
    code, found, _ = run(f"train --dataset-facts {facts} --set epochs=0")
    assert (code, found.keys() >= {"DATA-FACTS", "SPEC-VALUE"}) == (2, True)


@pytest.mark.parametrize("name", ["clips", "records"])
@pytest.mark.parametrize("kind", ["folder", "the other table"])
def test_facts_with_other_tables_are_named(here, name, kind):
    facts = write_facts(here, 8)
    place = here / f"{name}.parquet"
    place.unlink()
    if kind == "folder":
        place.mkdir()
    else:
        shutil.copy(here / ("records.parquet" if name == "clips" else "clips.parquet"), place)
    code, found, _ = run(f"train --dataset-facts {facts}")
    assert code == 2 and f"a {name}_table without" in found["DATA-FACTS"].message
    assert str(found["DATA-FACTS"].fix).endswith(f"--facts {facts}")


def test_a_spec_of_another_action_is_one_finding(here):
    for action in ("evaluate", "grpo", "quantize", "inference"):
        found = rules.check(action, "transformers", document.template("train"))
        assert [one.id for one in found] == ["SPEC-ACTION"]
    some = rules.check("train", "tao", {"train": {"epoch": 3}})
    assert "SPEC-ACTION" not in {one.id for one in some}


def test_steps_are_counted_where_the_annotations_are(here):
    """Without facts, and of a mixture before it is written."""
    write_records(here, 120)
    line = "train --tuning lora --train-root data --global-batch 16 --set epochs=1"
    line += " --set dataloader_drop_last=true --set save_freq=50"
    told = printed(here, line)
    assert "7 steps (7 an epoch; dataloader_drop_last leaves out 8 records" in told
    code, found, _ = run(line)
    assert code == 0 and "7 steps" in found["SPEC-SAVE-NEVER"].message
    write_records(here, 8, "more")
    code, found, _ = run(f"{line} --train-root more")
    assert "8 steps" in found["SPEC-SAVE-NEVER"].message
    code, found, _ = run(line.replace("batch 16", "batch 128"))
    assert code == 1 and "120 records over 1 ranks" in found["SPEC-STEPS-ZERO"].message


def test_of_large_annotations_and_thoughts_the_steps_are_unknown(here):
    line = "train --tuning lora --train-root data"
    thoughts = "--set custom.train_dataset.response_mode=hybrid"
    assert "steps unknown without --dataset-facts" in printed(here, f"{line} {thoughts}")
    (here / "data" / "annotations.json").write_text(" " * (COUNTED_BYTES + 1) + "[]")
    assert "steps unknown without --dataset-facts" in printed(here, line)


# ---- quantize ------------------------------------------------------------------------------------


def test_more_calibration_records_than_there_are_is_a_warning(here):
    write_records(here, 100)
    line = "quantize --engine tao --train-root data --set precision=FP8"
    _, found, made = run(line)
    finding = found["SPEC-CALIBRATION-MANY"]
    assert (finding.severity, str(finding.fix)) == (f.WARNING, f"--set {SAMPLES}=100")
    assert "the data has 100 records, so 100 are used" in finding.message
    assert made["quantize"]["num_calibration_samples"] == 512
    _, found, _ = run(f"{line} --set samples=100")
    assert not any(id.startswith("SPEC-CALIBRATION") for id in found)
    _, found, _ = run(f"{line} --set samples=10")
    fix = found["SPEC-CALIBRATION-FEW"].fix
    assert str(fix) == "replace --set samples=10 with --set samples=100"
    assert "SPEC-CALIBRATION-MANY" not in run(line.replace("=FP8", "=FP8_DYNAMIC"))[1]


@pytest.mark.parametrize(
    ("records", "told"), [(63, "SPEC-CALIBRATION-FEW"), (64, "SPEC-CALIBRATION-MANY")]
)
@pytest.mark.parametrize("asked", ["", " --set samples=200"])
def test_few_calibration_records_are_told_once(here, records, told, asked):
    write_records(here, records)
    line = "quantize --engine tao --train-root data --set precision=FP8"
    found = {id: one for id, one in run(line + asked)[1].items() if "CALIBRATION" in id}
    assert found.keys() == {told} and f"the data has {records} records" in found[told].message
    assert bool(found[told].fix) == (told == "SPEC-CALIBRATION-MANY"), "no more can be taken"


def test_what_the_quantizer_of_the_image_is_not_told_is_not_in_its_spec(here):
    made = run("quantize --engine tao --train-root data --set precision=FP8")[2]
    assert "vision" not in made and "seed" not in made
    code, found, made = run("quantize --engine tao --train-root data --set seed=7")
    assert code == 0 and made["seed"] == 7 and found["SPEC-ENGINE-KEY"].where == "seed"
    made = run("quantize --engine transformers --train-root data")[2]
    assert made["seed"] == 42 and made["vision"] == {"nframes": 8}
