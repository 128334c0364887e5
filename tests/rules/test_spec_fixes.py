"""Bad command lines: each is a finding, nothing is written, and what a fix says repairs the very
line it is about."""

import contextlib
import copy
import shlex
from pathlib import Path

import applied_fixes
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import run_script
from support_specs import BREAKS, RECORDS, run

from cosmos_reason.base import bundle, files
from cosmos_reason.base.fix import Fix
from cosmos_reason.rules import explain
from cosmos_reason.spec import document, names

JOB = "jobs/train-20260101-000000-abcdef"
FILLED = {
    "--parent-job DIR": f"--parent-job {JOB}",
    "--eval-root DIR": "--eval-root data/held_out",
    "--train-root DIR": "--train-root data/train",
    "MODEL": "nvidia/Cosmos-Reason2-8B",
    "PATH": "/data/in",
    "NAME": "mine",
    "TEXT": "Bright?",
    "DIR": "/data/in",
}

# (command line, exit code, finding)
BAD = [
    ("train --set epochs=three", 1, "SPEC-VALUE"),
    ("train --set epochs=0", 1, "SPEC-VALUE"),
    ("train --set train.optm_lr=nan", 1, "SPEC-VALUE"),
    ("train --set train.optm_lr=2026-01-01", 1, "SPEC-VALUE"),
    ("train --set train.seed=99999999999999999999", 1, "SPEC-VALUE"),
    ("train --set train.epch=3", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set num_samples_per_prompt=3", 1, "SPEC-KEY-FORMER"),
    ("train --set train.optm_name=adamw", 1, "SPEC-VALUE"),
    ("train --set epochs=3 --set train.epoch=4", 1, "SPEC-KEY-TWICE"),
    ("train --set epochs=3 --unset train.epoch", 1, "SPEC-KEY-TWICE"),
    ("train --model reason2-2b --set model=reason2-8b", 1, "SPEC-KEY-TWICE"),
    ("train --train-root data/train --set train_annotations=x.json", 1, "SPEC-KEY-TWICE"),
    ("train --tuning full --set lora_rank=8", 1, "SPEC-KEY-TWICE"),
    ("train --unset train --set train.epoch=3", 1, "SPEC-KEY-TWICE"),
    ("train --set epochs", 1, "SPEC-SET"),
    ("train --set =3", 1, "SPEC-SET"),
    ("train --set train=3", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set custom.visoin.nframes=3", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set custom.visoin.nframes=4", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set custom..a=3", 1, "SPEC-SET"),
    ("train --unset train.epch", 1, "SPEC-UNSET"),
    ("train --unset policy.parallelism.tp_size", 1, "SPEC-KEY-MISSING"),
    ("train --unset train", 1, "SPEC-KEY-MISSING"),
    ("train --gpus-per-node 3", 1, "SPEC-GPUS-PER-NODE"),
    ("train --gpus-per-node 0", 1, "SPEC-GPUS-PER-NODE"),
    ("train --nodes -1", 1, "SPEC-GPUS-PER-NODE"),
    ("train --gpus-per-node 8 --set dp_shard_size=4", 1, "SPEC-GPUS"),
    ("train --engine transformers --gpus-per-node 8 --set dp_shard_size=4", 1, "SPEC-GPUS"),
    ("evaluate --tuning lora", 1, "SPEC-FLAG"),
    ("evaluate --train-root data/train", 1, "SPEC-FLAG"),
    ("quantize --gpus-per-node 8", 1, "SPEC-FLAG"),
    ("inference --eval-root data/held_out", 1, "SPEC-FLAG"),
    ("evaluate --gpus-per-node 8 --nodes 2", 1, "SPEC-FLAG"),
    ("train --set model=reasn2", 2, "SPEC-MODEL-NAME"),
    ("train --model reasn2", 2, "SPEC-MODEL-NAME"),
    ("train --profile reason2-trafic", 1, "SPEC-PROFILE"),
    ("grpo --profile reason2-traffic", 1, "SPEC-PROFILE"),
    ("evaluate --profile reason2-traffic", 1, "SPEC-PROFILE"),
    (
     "train --profile reason2-traffic --model x --set epochs=0 --parent-job nowhere "
     "--spec no.toml", 2, "SPEC-SOURCES"),
    ("train --spec nowhere.toml", 2, "FILE-MISSING"),
    ("train --spec data", 2, "SPEC-FILE"),
    ("train --parent-job nowhere", 2, "SPEC-PARENT"),
    ("train --dataset-facts nowhere.json", 2, "FILE-MISSING"),
    ("train --train-root ''", 1, "SPEC-ROOT"),
    ("train --train-root gs://bucket/set", 1, "SPEC-URI"),
    ("train --set output_dir=s3://bucket/out", 1, "SPEC-URI"),
    ("evaluate --set media=http://host/clips", 1, "SPEC-URI"),
    ("train --set resume=True", 1, "SPEC-VALUE"),
    ("train --model reason1-7b --set tarin.compile=True", 1, "SPEC-KEY-UNKNOWN"),
    ("train --model reason1-7b --set train.compile=True", 1, "SPEC-VALUE"),
    ("train --set output_dir='C:\\out'", 1, "SPEC-PATH-WINDOWS"),
    ("train --train-root d:/data/train", 1, "SPEC-PATH-WINDOWS"),
    ("train --model 'C:\\models\\x'", 2, "SPEC-MODEL-NAME"),
    ("train --set model=reasn2-2b", 2, "SPEC-MODEL-NAME"),
    ("evaluate --set base_model=reasn1", 2, "SPEC-MODEL-NAME"),
    ("train --parent-job {JOB} --spec {JOB}/spec.toml", 1, "SPEC-SOURCES"),
    ("train --gpus-per-node 8 --set tp_size=3", 1, "SPEC-GPUS"),
    ("train --gpus-per-node 8 --nodes 2 --set tp_size=2", 1, "SPEC-GPUS"),
    ("train --gpus-per-node 8 --set policy.parallelism.cp_size=2", 1, "SPEC-QWEN3-CONTEXT"),
    ("train --engine transformers --gpus-per-node 3", 1, "SPEC-GPUS-PER-NODE"),
    ("train --engine transformers --set tp_size=2", 1, "SPEC-ENGINE-KEY"),
    ("grpo --engine cosmos-rl --gpus-per-node 4 --set rollout_tp_size=4", 1, "SPEC-GPUS-GRPO"),
    ("grpo --gpus-per-node 1", 1, "SPEC-ENGINE-ACTION"),
    ("grpo --engine cosmos-rl --gpus-per-node 1 --set mode=disaggregated", 1, "SPEC-GPUS-GRPO"),
    ("grpo --engine cosmos-rl --set train.train_policy.dataloader_drop_last=true", 1,
     "SPEC-KEY-UNKNOWN"),
    ("train --set max_steps=50 --set warmup=60.0", 1, "SPEC-WARMUP-FLOAT"),
    ("train --engine cosmos-rl --set train.optm_warmup_epochs=1 --set warmup=5", 1,
     "SPEC-ENGINE-KEY"),
    ("train --engine cosmos-rl --set results_dir=/a --set output_dir=/b", 1, "SPEC-ENGINE-KEY"),
    ("train --set logging.logger=console,console", 1, "SPEC-VALUE"),
    ("train --set logging.logger=consol,wandb", 1, "SPEC-VALUE"),
    ("train --set train.ckpt=3", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set policy.lora.r=0", 1, "SPEC-VALUE"),
    ("train --set lora_rank=8", 1, "SPEC-KEY-MISSING"),
    ("train --set nframes=7", 1, "SPEC-VALUE"),
    ("train --set custom.vision.resized_width=900000 --set custom.vision.resized_height=320", 1,
     "SPEC-VALUE"),
    ("train --set xyz=1", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set vision.nframes=4", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set nframes=4 --set vision.nframes=6", 1, "SPEC-KEY-UNKNOWN"),
    ("train --engine cosmos-rl --set train.optm_warmup_epochs=2", 1, "SPEC-WARMUP-ALL"),
    ("train --engine tao --set train.optm_warmup_epochs=2 --set max_steps=10", 1,
     "SPEC-WARMUP-ALL"),
    ("train --spec typos.toml", 1, "SPEC-KEY-UNKNOWN"),
    ("train --spec typos.toml --set trian.seed=3", 1, "SPEC-KEY-FORMER"),
    ("evaluate --spec {JOB}/spec.toml", 1, "SPEC-ACTION"),
    ("grpo --engine cosmos-rl --spec {JOB}/spec.toml", 1, "SPEC-ACTION"),
    ("train --spec text.yaml", 1, "SPEC-VALUE"),
    ("train --spec part.yaml", 1, "SPEC-VALUE"),
    ("train --spec no_table.yaml", 1, "SPEC-VALUE"),
    ("train --spec {JOB}/spec.toml --nodes 2", 1, "SPEC-GPUS-PER-NODE"),
    ("train --nodes 2", 1, "SPEC-GPUS-PER-NODE"),
    ("train --spec wide.toml --gpus-per-node 4", 1, "SPEC-GPUS-PER-NODE"),
    ("evaluate --nodes 1", 1, "SPEC-GPUS-PER-NODE"),
    ("train --set gpus=8", 1, "SPEC-KEY-FORMER"),
    ("train --set gpus=8 --allow-extra-key gpus", 1, "SPEC-KEY-FORMER"),
    ("train --set reward=single_choice", 1, "SPEC-KEY-UNKNOWN"),
    ("evaluate --set lr=3", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set learing_rate=1e-4", 1, "SPEC-KEY-UNKNOWN"),
    ("train --set train.optm_lrr=2", 1, "SPEC-KEY-UNKNOWN"),
    ("train --engine transformers --set rollout.batch_size=2", 1, "SPEC-ENGINE-KEY"),
    ("train --allow-extra-key train.foo", 1, "SPEC-FLAG"),
    ("train --allow-extra-key profiler.enable_nsys", 1, "SPEC-FLAG"),
    ("train --engine transformers --spec profiler.toml", 1, "SPEC-ENGINE-KEY"),
    ("train --spec lorra.toml", 1, "SPEC-KEY-UNKNOWN"),
    ("train --spec paralelism.toml", 1, "SPEC-KEY-UNKNOWN"),
    ("train --spec empty.toml", 2, "SPEC-FILE"),
    ("train --unset fps", 1, "SPEC-UNSET"),
    ("train --unset policy.lora", 1, "SPEC-UNSET"),
    ("train --unset train.seed", 1, "SPEC-UNSET"),
    ("train --tuning lora --unset policy.lora", 1, "SPEC-KEY-TWICE"),
    ("grpo --engine cosmos-rl --set mode=colocated", 1, "SPEC-COLOCATED"),
    ("train --engine cosmos-rl --model /lustre/x --set train.compile=true", 1,
     "SPEC-QWEN3-COMPILE"),
    ("train --engine cosmos-rl --model myorg/x --set policy.parallelism.cp_size=2", 1,
     "SPEC-QWEN3-CONTEXT"),
    ("train --unset train.compile", 1, "SPEC-KEY-MISSING"),
    ("train --set policy.parallelism.cp_size=2 --set policy.parallelism.pp_size=2", 1,
     "SPEC-QWEN3-PIPELINE"),
    ("train --tuning lora --set policy.lora.target_modules=all_linear", 1, "SPEC-LORA-LAYERS"),
    ("train --set policy.freeze_pattern='[unclosed'", 1, "SPEC-PATTERN"),
    ("train --parent-job {JOB} --tuning lora", 1, "SPEC-RESUME-OTHER"),
    ("train --parent-job {JOB} --gpus-per-node 4", 1, "SPEC-RESUME-OTHER"),
    ("train --parent-job {JOB} --model reason2-8b", 1, "SPEC-RESUME-OTHER"),
    ("train --parent-job {JOB} --engine transformers", 1, "SPEC-RESUME-OTHER"),
    ("train --model " + "a" * 300, 2, "SPEC-MODEL-NAME"),
    ("evaluate --engine transformers --set max_pixels=4096", 1, "SPEC-VISION-PIXELS"),
    ("evaluate --engine transformers --set max_pixels=4096 --set min_pixels=9000", 1,
     "SPEC-VISION-PIXELS"),
    ("evaluate --spec four.toml", 1, "SPEC-ACTION"),
    ("inference --spec four.toml --set fps=1", 1, "SPEC-ACTION"),
    ("quantize --spec wide.toml", 1, "SPEC-ACTION"),
    ("grpo --engine cosmos-rl --spec four.toml", 1, "SPEC-ACTION"),
    ("train --spec " + "a" * 300 + ".toml", 2, "FILE-UNREADABLE"),
    ("train --parent-job " + "a" * 300, 2, "SPEC-PARENT"),
    ("train --dataset-facts " + "a" * 300, 2, "FILE-UNREADABLE"),
    ("train --set polcy.freeze_pattern='^x[0-9]{{1,2}}$'", 1, "SPEC-KEY-UNKNOWN"),
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make(tmp_path)


def make(tmp_path):
    """A working folder with train/ and held_out/ dataset roots and a finished train job."""
    for name in ("train", "held_out"):
        files.write_text(tmp_path / "data" / name / "annotations.json", RECORDS)
    run("train --train-root data/train --model reason2-2b", f"{JOB}/spec.toml")
    checkpoint = tmp_path / "out" / "20260101000000" / "safetensors" / "step_20"
    record = {"action": "train", "engine": "tao", "state": "COMPLETE"}
    record["evidence"] = {"checkpoint": str(checkpoint)}
    files.write_json(tmp_path / JOB / "job.json", record)
    grid = document.template("train")["policy"]["parallelism"] | {"dp_shard_size": 8}
    lora = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}
    profiler = {"enable_nsys": True, "sub_profiler_config": {"do_profile": True}}
    for name, key, value in (
        ("four", "custom.vision", {"fps": 4, "resized_height": 64, "resized_width": 96}),
        ("wide", "policy.parallelism.dp_replicate_size", 2),
        ("profiler", "profiler", profiler),
        ("lorra", "policy.lorra", lora),
        ("paralelism", "policy.paralelism", grid),
    ):
        made = document.template("train")
        if name == "paralelism":
            document.delete(made, "policy.parallelism")
        document.set_value(made, key, value)
        document.dump(made, tmp_path / f"{name}.toml")
    files.write_text(tmp_path / "empty.toml", "")
    typos = document.template("train") | {"trian": {"epoch": 3}, "xyz": 1}
    typos["train"] |= {"mini_batch": 2, "enable_validation": False, "train_batch_per_replcia": 8}
    typos["policy"] |= {"model_name_or_path": "Cosmos Reason 2"}
    document.dump(typos, tmp_path / "typos.toml")
    template = bundle.template_path("train").read_text()
    part = "train:\n  epoch: 3\n  optm_lr: 1e-5\n  compile: false\n"
    no_table = template.replace("vision:\n    nframes: 8", "vision: 3")
    text = template.replace("1.0e-06  # Peak", "1e-6  # Peak")
    files.write_text(tmp_path / "text.yaml", text.replace("compile: false", 'compile: "False"'))
    files.write_text(tmp_path / "part.yaml", part)
    files.write_text(tmp_path / "no_table.yaml", no_table)
    return tmp_path


def as_line(action, engine, changes):
    """The command line that makes `changes` to the action's template."""
    words = [action, "--engine", engine]
    for name, value in changes.items():
        key = name.replace("__", ".")
        if name == "gpus":
            words += ["--gpus-per-node", str(value)]
            continue
        parts = {f"{key}.{sub}": one for sub, one in value.items()} if type(value) is dict else {}
        words += shlex.split(str(Fix(changes=parts or {key: value})))
    return shlex.join(words)


def pasted(line, fix):
    """The line with a fix applied as a person would."""
    words, meant = shlex.split(line), shlex.split(fix)
    if meant[0].startswith("-"):
        return shlex.join([*words, *meant])
    made, _, missing = applied_fixes.replaced(words, *applied_fixes.split_at_with(meant))
    assert not missing, missing
    return shlex.join(made)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("specs") / "here"
    folder.mkdir()
    with contextlib.chdir(folder):
        make(folder)
    return applied_fixes.World(folder)


def check_fixes(world, line, finding="", code=None):
    line = f"build_spec.py {line.format(JOB=JOB)} -o made.toml"
    broken = applied_fixes.Broken(line, line, finding, FILLED, code)
    problems = applied_fixes.failures(broken, world)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("line", "code", "finding"), BAD, ids=lambda value: str(value)[:50])
def test_bad_input_is_a_finding_whose_fix_holds_and_nothing_is_written(world, line, code, finding):
    check_fixes(world, line, finding, code)


@pytest.mark.parametrize(
    ("rule", "action", "engine", "changes"), BREAKS, ids=lambda value: str(value)[:40]
)
def test_fixes_of_rules_hold_when_pasted(world, rule, action, engine, changes):
    check_fixes(world, as_line(action, engine, changes))


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("train --spec {JOB}/spec.toml --nodes 2",
         "replace --nodes 2 with --gpus-per-node 1 --nodes 2"),
        ("train --spec wide.toml --gpus-per-node 4",
         "replace --gpus-per-node 4 with --gpus-per-node 4 --nodes 2"),
        ("train --set gpus=8", "replace --set gpus=8 with --gpus-per-node 8"),
        ("train --set reward=single_choice", ""),
        ("train --set warmup_ratio=0.1",
         "replace --set warmup_ratio=0.1 with --set train.optm_warmup_steps=0.1"),
        ("train --set warmup_ratio=1", ""),  # the whole run there, one step here
        ("train --set gradient_accumulation_steps=4", ""),
        ("train --set nframes=4 --set video_fps=2", ""),  # which of them only the user knows
        ("train --spec wide.toml --set video_fps=2",  # whose nframes gives way to a flag
         "replace --set video_fps=2 with --set custom.vision.fps=2"),
        ("train --set video_fps=2",
         "replace --set video_fps=2 with --set custom.vision.fps=2"),
        ("inference --set 'media=[\"a.mp4\", \"b.mp4\"]'", ""),
        ("quantize --set policy.model_max_length=4096",
         "replace --set policy.model_max_length=4096 with --set quantize.max_sequence_length=4096"),
        ("train --set per_device_train_batch_size=2", ""),
        ("train --set train.ckpt.upload_s3=true", ""),
        ("train --set master_dtype=float64", ""),
        ("train --set policy.parallelism.dp_size=8", ""),
        ("quantize --set precision=INT4", ""),
        ("grpo --engine cosmos-rl --set group_size=4",
         "replace --set group_size=4 with --set rollout.n_generation=4"),
        ("grpo --engine cosmos-rl --set epsilon=0.2", ""),
        ("train --set learing_rate=1e-4",
         "replace --set learing_rate=1e-4 with --set train.optm_lr=0.0001"),
        ("train --set custom.vision.num_frames=8",  # was passed on, and 8 frames were not shown
         "replace --set custom.vision.num_frames=8 with --set custom.vision.nframes=8"),
        ("train --set train.learning_rate=1e-5",
         "replace --set train.learning_rate=1e-5 with --set train.optm_lr=1e-05"),
        ("train --set train.optm_lrr=2", ""),  # 2 is no learning rate, and no other value was typed
        ("train --unset policy.lora", "drop --unset policy.lora"),
        ("train --unset train.seed", "drop --unset train.seed"),
        ("train --set lr=1e5", ""),
        ("train --spec lorra.toml",
         "--unset policy.lorra --set policy.lora.r=16 --set policy.lora.lora_alpha=32 "
         "--set 'policy.lora.target_modules=[\"q_proj\"]'"),
        ("train --set logging.logger=tao",
         "replace --set logging.logger=tao with --set 'logging.logger=[\"console\", "
         "\"tao\"]'"),
        ("train --set system_prompt=" + "x" * 3000 + " --unset system_prompt",
         "drop --unset system_prompt"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_fixes_say_what_the_user_meant(here, line, fix):
    _, found, _ = run(line.format(JOB=JOB))
    ours = [one for one in found if not one.id.startswith(("SPEC-MODEL", "SPEC-DATA", "SPEC-RATE"))]
    assert fix in [str(one.fix) for one in ours] and all(len(one.message) < 500 for one in ours)


@pytest.mark.parametrize(
    ("line", "said", "never"),
    [
        ("quantize --set max_seq_length=4096", "quantize.max_sequence_length", "policy."),
        ("evaluate --set cutoff_len=4096", "model.max_length", "policy."),
        ("evaluate --set video_fps=2", "vision.fps", "custom."),
        ("quantize --set num_train_epochs=3", "in a train spec", "use train."),
        ("train --set num_generations=4", "in a grpo spec", "use rollout."),
        ("train --set nframes=4 --set video_fps=2", "custom.vision.nframes is given too", "\n"),
    ],
)
def test_a_word_of_others_is_told_by_the_keys_of_the_action(here, line, said, never):
    (told,) = [one for one in run(line)[1] if one.id == "SPEC-KEY-FORMER"]
    assert said in told.message and never not in told.message


def test_a_training_spec_hands_its_view_to_an_evaluation(here):
    table = document.load(here / "four.toml")
    document.set_value(table, "train.train_policy.system_prompt", "Be brief.")
    document.dump(table, here / "four.toml")
    plain = "evaluate --engine transformers --model reason2-2b --eval-root data/held_out"
    line = f"{plain} --spec four.toml"
    finding = next(one for one in run(line)[1] if one.id == "SPEC-ACTION")
    code, _, made = run(pasted(line, str(finding.fix)))
    expected = run(plain, "plain.toml")[2]
    expected["vision"] = table["custom"]["vision"]
    expected["dataset"]["system_prompt"] = "Be brief."
    assert code == 0 and made == expected
    finding = next(one for one in run(f"{line} --set nframes=6")[1] if one.id == "SPEC-ACTION")
    _, _, made = run(pasted(f"{line} --set nframes=6", str(finding.fix)))
    assert made["vision"] == {"nframes": 6, "resized_height": 64, "resized_width": 96}


@pytest.mark.parametrize(("engine", "code"), [("tao", 0), ("cosmos-rl", 1), ("transformers", 1)])
def test_a_key_of_frames_that_nothing_here_reads_is_passed_on_or_refused(here, engine, code):
    line = f"train --engine {engine} --set custom.vision.video_decoder=torchcodec"
    got, found, made = run(line)
    (told,) = [one for one in found if one.id == "SPEC-ENGINE-KEY"] or [None]
    assert (got, bool(told)) == (code, bool(code))
    if told:
        assert run(pasted(line, str(told.fix)))[0] == 0
    else:
        assert made["custom"]["vision"]["video_decoder"] == "torchcodec"


def test_a_fix_calls_a_key_as_the_user_did(here):
    for word in ("resume", "train.resume"):
        _, found, _ = run(f"train --set {word}=True")
        fix = next(str(one.fix) for one in found if one.id == "SPEC-VALUE")
        assert fix == f"replace --set {word}=True with --set {word}=true"


@pytest.mark.parametrize(
    ("platform", "engine", "left"),
    [("", "tao", "cosmos-rl"), ("docker", "tao", ""), ("slurm", "tao", "cosmos-rl")],
)
def test_nodes_that_no_launch_of_the_engine_takes_are_refused(here, platform, engine, left):
    line = f"train --tuning lora --train-root data/train --model reason2-2b --engine {engine} "
    line += "--gpus-per-node 2 --nodes 2"
    if platform:
        Path("site.yaml").write_text(f"schema_version: 1\nname: a\nplatform: {platform}\n")
        line += " --site site.yaml"
    code, found, made = run(line)
    (told,) = [one for one in found if one.id == "JOB-NODES"]
    assert (code, not made, told.severity) == (1, True, "error") if platform else code == 0
    fix = f"replace --engine tao with --engine {left}" if left else "drop --nodes 2"
    assert str(told.fix) == fix
    code, found, _ = run(pasted(line, fix))
    assert "JOB-NODES" not in {one.id for one in found}


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_vision_keys_have_short_names_in_every_action(here, action):
    table = bundle.skill_info()["spec_params"][action]["vision"]
    keys = [key for key in document.keys(action) if key.startswith(f"{table}.")]
    assert len(keys) == 10
    for key in keys:
        assert names.full_name(action, key.rpartition(".")[2]) == key


@pytest.mark.parametrize(
    ("action", "name", "key"),
    [
        ("train", "epoch", "train.epoch"),
        ("train", "max_keep", "train.ckpt.max_keep"),
        # a short name comes before a last part
        ("train", "batch_size", "train.train_batch_per_replica"),
        ("grpo", "dp_shard_size", "policy.parallelism.dp_shard_size"),
        ("grpo", "tp_size", "tp_size"),  # of the policy or of the rollout?
        ("train", "annotation_path", "annotation_path"),
        ("train", "optm.epoch", "optm.epoch"),
    ],
)
def test_the_last_part_of_one_key_only_is_that_key(action, name, key):
    assert names.full_name(action, name) == key


def test_every_last_part_can_be_set_and_no_short_name_repeats_one(here):
    assert run("train --set epoch=3 --unset optm_decay_type")[2]["train"]["epoch"] == 3
    assert "SPEC-KEY-TWICE" in {one.id for one in run("train --set epoch=2 --set train.epoch=3")[1]}
    for action in bundle.ACTIONS:
        ends = [key.rpartition(".")[2] for key in document.keys(action)]
        for short, key in bundle.skill_info()["shorthand"][action].items():
            assert not key.endswith(f".{short}") or ends.count(short) > 1, (action, short)


def test_explain_lists_the_actions_behind_each_of_several_keys():
    said = explain.explain("max_pixels").splitlines()
    assert "custom.vision.max_pixels (train, grpo)" in said
    assert "  in evaluate, inference, quantize: vision.max_pixels" in said
    rows = explain.explain("annotation_path").splitlines()
    (row,) = [row for row in rows if row.startswith("dataset.annotation_path")]
    assert row.startswith("dataset.annotation_path (evaluate, quantize): "), "train has two of it"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--gpus 2", "Did you mean --gpus-per-node?"),
        ("--num-nodes=2", "Did you mean --nodes?"),
        ("--nproc_per_node 2", "Did you mean --gpus-per-node?"),
        ("--learning-rate 1e-5", "Did you mean --set train.optm_lr=VALUE?"),
        ("--num-train-epochs 3", "Did you mean --set train.epoch=VALUE?"),
        ("--gradient-accumulation-steps 2", "Here train.train_batch_per_replica is"),
        ("--vague 2", "unrecognized arguments: --vague 2.\n"),
    ],
)
def test_a_flag_of_another_tool_is_named_by_ours(here, words, hint):
    done = run_script("build_spec.py", "train", *words.split(), "-o", "s.toml", cwd=here)
    assert done.returncode == 2 and hint in done.stderr


def test_a_misspelt_table_keeps_its_values(here):
    _, found, _ = run("train --spec paralelism.toml")
    (finding,) = [one for one in found if one.id.startswith("SPEC-KEY")]
    _, _, made = run(f"train --spec paralelism.toml {finding.fix!s}")
    assert made["policy"]["parallelism"]["dp_shard_size"] == 8


def test_a_file_of_somebody_else_is_replaced_only_by_force(here):
    line = "build_spec.py train -o hand.toml"
    files.write_text(here / "hand.toml", "mine = 1")
    done = run_script(line, cwd=here)
    assert done.returncode == 1 and "(--force replaces it)" in done.stderr
    assert "fix: --force" not in done.stderr
    assert (here / "hand.toml").read_text() == "mine = 1"
    for more in ("--force", "--set epochs=3"):  # the second replaces what the first wrote
        assert run_script(f"{line} {more}", cwd=here).returncode == 0
    files.write_text(here / "hand.toml", (here / "hand.toml").read_text() + "# mine")
    assert run_script(line, cwd=here).returncode == 1


SENSELESS = st.sampled_from([3, -1, 0.5, True, "x", "[x", "a" * 300, [1], {}, {"a": 1}])
TABLES = "train policy policy.parallelism policy.lora policy.lorra custom validation train.ckpt"


GIVEN = [
    *("", "--tuning lora", "--tuning full"),
    *("--gpus-per-node 8", "--nodes 2", "--gpus-per-node 4 --nodes 2"),
]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_senseless_base_is_findings_and_no_crash(here, data):
    action = data.draw(st.sampled_from(["train", "grpo", "evaluate", "quantize"]))
    table = document.template(action)
    keys = st.sampled_from([*TABLES.split(), "mode", *document.keys(action)])
    for key, value in data.draw(st.dictionaries(keys, SENSELESS, min_size=1, max_size=3)).items():
        document.set_value(table, key, copy.deepcopy(value))
    document.dump(table, here / "base.toml")
    document.dump(table, here / JOB / "spec.toml")
    source = data.draw(st.sampled_from(["--spec base.toml", f"--parent-job {JOB}"]))
    engine = data.draw(st.sampled_from(bundle.ENGINES))
    run(f"{action} {source} --engine {engine} {data.draw(st.sampled_from(GIVEN))}")
