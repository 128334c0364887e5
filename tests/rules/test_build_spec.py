"""build_spec.py as a person meets it: one command, all findings at once, whole files or none."""

import json
import shlex
import subprocess
import sys
import tomllib

import jsonschema
import pytest
import support_specs
from launch_site import write_state
from support import ROOT, run_script
from support_specs import run_by_id as run
from support_specs import write_facts

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.estimate import record_tokens
from cosmos_reason.rules import in_words
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document as spec

# ---- what it makes -------------------------------------------------------------------------------


def test_a_lora_spec_for_eight_gpus_is_one_command(here):
    line = "train --tuning lora --train-root data/train --gpus-per-node 8 -o s.toml"
    done = run_script(f"build_spec.py {line}", cwd=here)
    assert done.returncode == 0, done.stderr
    text = (here / "s.toml").read_text()
    made = tomllib.loads(text)
    assert text.startswith(f"#:schema {(ROOT / 'schemas/train.schema.json').as_uri()}\n")
    assert made["policy"]["parallelism"]["dp_shard_size"] == 8
    assert made["policy"]["lora"]["target_modules"]
    assert made["custom"]["train_dataset"]["media_path"] == str(here / "data" / "train")
    assert done.stdout.startswith("wrote s.toml: global batch 32 (4 x 8 data-parallel ranks)")
    assert "next:" not in done.stderr, "the model must be converted first"
    origins = json.loads((here / "s.origins.json").read_text())
    jsonschema.validate(origins, bundle.schema("origins"))
    assert origins["origins"]["policy.parallelism.dp_shard_size"] == "--gpus-per-node 8"
    assert origins["origins"]["train.epoch"] == "template"
    assert origins["origins"].keys() == dict(spec.items("train", made)).keys()


def test_json_is_one_document(here):
    done = run_script("build_spec.py train --train-root data/train -o s.toml --json", cwd=here)
    document = json.loads(done.stdout)
    assert (document["ok"], document["command"]) == (True, "build_spec")
    assert document["result"]["spec"] == "s.toml"
    told = {"SPEC-MODEL-OMNI", "SPEC-STEPS", "SPEC-USUAL"}
    assert {finding["id"] for finding in document["findings"]} == told


@pytest.mark.parametrize(
    ("line", "platform"),
    [
        ("train --engine transformers --train-root data/train", "local"),
        ("train --train-root data/train --gpus-per-node 8", "docker"),
        ("evaluate --eval-root data/train", "docker"),
        ("train --train-root data/train --gpus-per-node 8 --nodes 2", ""),  # the image has one node
        ("train --engine cosmos-rl --train-root data/train --gpus-per-node 8 --nodes 2", "slurm"),
        ("train --train-root data/elsewhere", ""),
        ("train", ""),  # without data
        ("grpo --engine cosmos-rl --train-root data/train", "local"),
        ("quantize --engine transformers --train-root data/train", "local"),
    ],
)
def test_the_preflight_on_its_platform_comes_next(here, line, platform):
    done = run_script(f"build_spec.py {line} --model reason2-2b -o 'my spec.toml'", cwd=here)
    assert done.returncode == 0, done.stderr
    following = done.stderr.partition("next: ")[2]
    words = f"check_tao_launch_preflight.py --platform {platform} --spec 'my spec.toml'\n"
    # No GPU was chosen.
    assert following.endswith(words) if platform else not following


def test_the_command_that_comes_next_passes(here, dataset, tiny_model):
    root, facts = f"{dataset}/train", "facts/dataset_facts.json"
    checked = run_script(f"check_dataset.py {root} --facts {facts}", cwd=here)
    assert checked.returncode == 0, checked.stderr
    line = f"train --engine transformers --model {tiny_model} --train-root {root}"
    line += f" --dataset-facts {facts} -o s.toml --json"
    done = run_script(f"build_spec.py {line}", cwd=here)
    following = shlex.split(json.loads(done.stdout)["next"])
    assert following[-2:] == ["--dataset-facts", facts]
    done = run_script("check_tao_launch_preflight.py", *following[1:], cwd=here)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_every_action_builds_on_every_engine_that_has_it(here, action):
    for engine, facts in bundle.skill_info()["engines"].items():
        code, found, _ = run(f"{action} --engine {engine}", f"{action}-{engine}.toml")
        assert code == (0 if action in facts["actions"] else 1)
        assert ("SPEC-ENGINE-ACTION" in found) == (action not in facts["actions"])


@pytest.mark.parametrize("name", bundle.skill_info()["profiles"])
def test_every_profile_is_free_of_errors_and_names_its_source(here, name):
    profile = bundle.skill_info()["profiles"][name]
    action, values = profile["action"], profile["set"]
    draws_times = "custom.vision.burn_timestamps" in values  # which tao does not
    engine = "cosmos-rl" if action == "grpo" or draws_times else "tao"
    gpus = values.get("policy.parallelism.dp_shard_size", 8)
    code, found, made = run(f"{action} --engine {engine} --profile {name} --gpus-per-node {gpus}")
    assert code == 0, found
    for key, value in values.items():
        is_model = key.startswith(("policy.model_name", "model.model_name"))
        assert is_model or spec.get(made, key) == value
    origins = files.read_json(here / "spec.origins.json")["origins"]
    assert profile["source"] in origins[next(iter(values))]
    facts = write_facts(here, 4)
    costs = record_tokens.tokens_for_spec(facts, spec.with_defaults(action, made))
    assert all(cost.vision and not cost.problem for cost in costs)


def test_layers_come_in_order_and_later_ones_win(here):
    line = "train --profile reason2-traffic --tuning lora --set train.optm_lr=3e-5"
    _, _, made = run(f"{line} --model cosmos-reason2-8b")
    assert made["train"]["optm_lr"] == 3e-5
    assert made["policy"]["model_name_or_path"] == "hf_model://nvidia/Cosmos-Reason2-8B"
    assert made["train"]["train_batch_per_replica"] == 32


def test_a_spec_is_taken_as_it_is_and_changed_where_asked(here):
    run("train --train-root data/train", "first.toml")
    _, _, made = run("train --spec first.toml --set nframes=16 --unset train.optm_decay_type")
    first = spec.load(here / "first.toml")
    assert made["custom"]["vision"] == {"nframes": 16}
    assert "optm_decay_type" not in made["train"]
    spec.set_value(first, "custom.vision.nframes", 16)
    spec.delete(first, "train.optm_decay_type")
    assert made == first


def test_the_yaml_template_is_a_spec_too(here):
    _, _, made = run(f"train --spec {bundle.template_path('train')}")
    assert made == spec.template("train")


@pytest.mark.parametrize("more", ["", "--set batch_size=8 --set epochs=3", "--gpus-per-node 4"])
def test_the_template_with_overrides_is_what_build_spec_makes_of_them(here, more):
    """Load, override, launch, as upstream's templates are used; but for what build_spec says."""
    _, _, loaded = run(f"train --spec {bundle.template_path('train')} {more}")
    _, found, made = run(f"train {more}", "made.toml")
    assert found["SPEC-CADENCE"].severity == f.INFO
    assert loaded["train"]["ckpt"]["save_freq_in_epoch"] == 1
    assert loaded["validation"]["freq_in_epoch"] == 1
    assert made["train"]["ckpt"]["save_freq_in_epoch"] == 0
    _, _, by_steps = run(f"train --spec {bundle.template_path('train')} --set save_freq=50")
    assert by_steps["train"]["ckpt"].get("save_freq_in_epoch", 0) == 0  # which would win
    for one in (loaded, made):
        spec.delete(one, "train.ckpt.save_freq_in_epoch")
        spec.delete(one, "validation.freq_in_epoch")
    assert loaded == made


def test_frames_by_rate_take_the_number_of_frames_away(here):
    _, _, made = run("train --set fps=2")
    assert made["custom"]["vision"] == {"fps": 2}
    code, found, _ = run("train --set fps=2 --set nframes=8", "both.toml")
    assert (code, "SPEC-FRAMES-ONE" in found) == (1, True)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_layouts_use_all_gpus(here, gpus, nodes):
    _, _, made = run(f"train --gpus-per-node {gpus} --nodes {nodes}")
    sizes = made["policy"]["parallelism"]
    assert sizes["dp_shard_size"] * sizes["dp_replicate_size"] * sizes["tp_size"] == gpus * nodes
    assert sizes["dp_replicate_size"] == nodes
    _, _, made = run(f"evaluate --gpus-per-node {gpus}", "eval.toml")
    assert made["num_gpus"] == gpus


def test_validation_data_turns_validation_on(here):
    _, _, made = run("train --train-root data/train --eval-root data/held_out")
    assert made["validation"]["enable"] is True
    annotations = here / "data" / "held_out" / "annotations.json"
    assert made["custom"]["val_dataset"]["annotation_path"] == str(annotations)


def test_paths_become_absolute_and_uris_stay(here):
    line = "train --train-root s3://bucket/set/ --set output_dir=../runs"
    _, _, made = run(f"{line} --set train.resume=runs/x/policy")
    assert made["custom"]["train_dataset"]["annotation_path"] == "s3://bucket/set/annotations.json"
    assert made["train"]["output_dir"] == str(here.parent / "runs")
    assert made["train"]["resume"] == str(here / "runs" / "x" / "policy")


def test_open_source_engine_gets_plain_hub_names_and_translated_keys(here):
    line = "train --engine cosmos-rl --set train.optm_warmup_epochs=0.5 --set results_dir=/out"
    _, found, made = run(line)
    assert made["policy"]["model_name_or_path"] == "nvidia/Cosmos3-Nano"
    assert (made["train"]["optm_warmup_steps"], made["train"]["output_dir"]) == (0.25, "/out")
    assert "SPEC-TRANSLATED" in found
    origins = files.read_json(here / "spec.origins.json")["origins"]
    assert "translated" in origins["train.optm_warmup_steps"]


def test_validation_by_epoch_is_computed_from_the_facts(here):
    write_facts(here, 80)
    line = "train --engine cosmos-rl --eval-root data/held_out --dataset-facts dataset_facts.json"
    code, found, made = run(f"{line} --set validation.freq_in_epoch=1")
    assert code == 0, found
    assert made["validation"]["freq"] == 20  # 80 records, 4 a step
    assert "freq_in_epoch" not in made["validation"]


def test_an_extra_key_passes_and_is_named(here):
    code, found, made = run(
        "train --allow-extra-key profiler.of_tomorrow --set profiler.of_tomorrow=true"
    )
    assert (code, made["profiler"]) == (0, {"of_tomorrow": True})
    assert found["SPEC-KEY-EXTRA"].where == "profiler.of_tomorrow"
    code, found, _ = run("train --spec spec.toml", "again.toml")
    assert (code, found["SPEC-KEY-EXTRA"].severity) == (0, f.WARNING)


# ---- parent jobs ---------------------------------------------------------------------------------


@pytest.fixture
def parent(here):
    """The folder of a finished LoRA train job that sampled by fps and had a system message."""
    folder = here / "jobs" / "train-20260101-000000-abcdef"
    line = "train --engine transformers --tuning lora --train-root data/train --model reason2-2b"
    line += " --set fps=2 --set max_pixels=262144 --set system_prompt='Answer briefly.'"
    run(line, f"jobs/{folder.name}/spec.toml")
    checkpoint = here / "out" / "20260101000000" / "safetensors" / "step_20"
    record = {"job_id": folder.name, "action": "train", "state": "COMPLETE"}
    files.write_json(folder / "job.json", record | {"evidence": {"checkpoint": str(checkpoint)}})
    return folder


def change_record(job, **fields):
    files.write_json(job / "job.json", files.read_json(job / "job.json") | fields)


def test_evaluation_asks_the_model_as_it_was_trained(parent):
    line = f"evaluate --engine transformers --parent-job {parent} --eval-root data/held_out"
    code, found, made = run(line)
    assert code == 0, found
    model = made["model"]
    assert model["model_name"].endswith("/safetensors/step_20") and model["enable_lora"] is True
    assert model["base_model_path"] == "nvidia/Cosmos-Reason2-2B"
    assert made["vision"] == {"fps": 2, "max_pixels": 262144}
    assert made["dataset"]["system_prompt"] == "Answer briefly."
    assert "SPEC-PARENT-LAST" in found
    code, found, _ = run(f"{line} --set nframes=8")
    assert (code, found["SPEC-TRAINED-OTHERWISE"].severity) == (0, f.WARNING)


@pytest.mark.parametrize(
    ("action", "key"), [("inference", "model_path"), ("quantize", "model.model_path")]
)
def test_other_actions_take_the_model_too(parent, action, key):
    _, _, made = run(f"{action} --engine transformers --parent-job {parent}")
    assert spec.get(made, key).endswith("/safetensors/step_20")


@pytest.mark.parametrize("state", ["CANCELED", "ERROR"])
def test_training_goes_on_from_the_exact_checkpoint_that_a_job_left(parent, here, state):
    outputs = {"output_dir": str(here / "out")}
    at = "2026-01-01T00:00:00Z"
    change_record(parent, state=state, started_at=at, outputs=outputs, evidence={})
    code, found, _ = run(f"train --engine transformers --parent-job {parent}")
    assert (code, "left no complete checkpoint" in found["SPEC-PARENT"].message) == (2, True)
    for step in (10, 20):
        policy = here / "out" / "20260101000000" / "checkpoints" / f"step_{step}" / "policy"
        write_state(policy, step, 40)
        files.write_json(policy / "cosmos_config", {"policy": {"lora": {"r": 16}}})
    code, _, made = run(f"train --engine transformers --parent-job {parent}")
    assert (code, made["train"]["resume"]) == (0, str(policy))
    assert made["custom"]["vision"] == {"fps": 2, "max_pixels": 262144}


def test_a_finished_job_has_no_step_to_train(parent, here):
    code, found, _ = run(f"train --engine transformers --parent-job {parent} --set epochs=4")
    done = found["SPEC-RESUME-DONE"]
    assert (code, done.severity, "step_20" in done.message) == (1, f.ERROR, True)
    assert not done.fix
    code, found, made = run(f"train --engine transformers --parent-job {parent} --set resume=false")
    assert (code, made["train"]["resume"]) == (0, False)


def test_a_running_job_is_not_continued(parent):
    change_record(parent, state="RUNNING")
    code, found, _ = run(f"train --engine transformers --parent-job {parent}")
    assert (code, "has ended" in found["SPEC-PARENT"].message) == (2, True)


def test_reinforcement_learning_wants_the_adapter_merged(parent):
    code, found, _ = run(f"grpo --engine cosmos-rl --parent-job {parent}")
    assert (code, "--merge" in found["SPEC-PARENT-ADAPTER"].message) == (1, True)


@pytest.mark.parametrize(
    ("record", "finding"),
    [
        ({"state": "ERROR", "evidence": {"checkpoint": "/x/a/b/c"}}, "SPEC-PARENT"),
        ({"state": "COMPLETE"}, "SPEC-PARENT"),
        ([], "JOB-RECORD-BROKEN"),
    ],
)
def test_a_job_without_a_model_is_no_parent(parent, record, finding):
    files.write_json(parent / "job.json", record)
    code, found, _ = run(f"evaluate --parent-job {parent}")
    assert (code, finding in found) == (2, True)


# ---- bad input -----------------------------------------------------------------------------------


def test_all_findings_come_at_once(here):
    line = "train --set epochs=0 --set trian.epoch=3 --set fps=2 --set nframes=8 --gpus-per-node 5"
    _, found, _ = run(f"{line} --set max_keep=x")
    wrong = "SPEC-VALUE SPEC-KEY-UNKNOWN SPEC-FRAMES-ONE SPEC-GPUS-PER-NODE"
    assert found.keys() >= set(wrong.split())


def test_bytes_that_are_no_text_are_a_finding(here):
    words = ("--set", "system_prompt=\udcff\udcfe")
    done = run_script("build_spec.py train -o s.toml", *words, cwd=here)
    assert done.returncode == 1 and "UTF-8" in done.stderr
    assert not (here / "s.toml").exists()


def test_an_output_that_cannot_be_written_is_exit_3(here):
    (here / "file").write_text("")
    done = run_script("build_spec.py train -o file/spec.toml", cwd=here)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", ["", "train", "-o x.toml", "trian -o x.toml"])
def test_wrong_usage_is_exit_2(here, line):
    done = run_script(f"build_spec.py {line}", cwd=here)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_path_that_is_not_here_is_no_hub_model_and_suggests_none(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("models/cosmos3-nan", "mine/model", "jobs/train-1/results", "a/b/c"):
        done = run_script(f"build_spec.py train --model {name} -o x.toml", cwd=tmp_path)
        assert done.returncode == 2 and "SPEC-MODEL-NAME" in done.stderr
        assert "Cosmos3-Nano" not in done.stderr
        meant = f"hf_model://{name}" if name == "mine/model" else tmp_path / name
        assert f"with --model {meant}" in done.stderr and not (tmp_path / "x.toml").exists()
    line = "build_spec.py train --model hf_model://models/other -o x.toml"
    assert run_script(line, cwd=tmp_path).returncode == 0


def test_a_spec_that_is_changed_stays_with_its_engine(here):
    run("train --engine transformers", "one.toml")
    assert run("train --spec one.toml", "two.toml")[0] == 0
    assert files.read_json("two.origins.json")["engine"] == "transformers"


HEAVY = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import build_spec
from cosmos_reason import cli
cli.run(build_spec.parser(), build_spec.main, ["train", "--tuning", "lora", "-o", "spec.toml"])
heavy = {{"torch", "transformers", "boto3", "numpy", "pyarrow", "av", "PIL"}}
print(sorted(heavy & sys.modules.keys()))
"""


def test_heavy_packages_are_not_imported(here):
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (here / "spec.toml").exists()


def test_a_flag_given_twice_is_refused(here):
    line = "build_spec.py train --model reason2-8b --model reason2-2b -o s.toml"
    done = run_script(line, cwd=here)
    assert done.returncode == 2 and "given twice" in done.stderr
    assert not (here / "s.toml").exists()


def test_nothing_is_left_when_the_spec_cannot_be_written(here):
    (here / "folder.toml").mkdir()
    line = "train --model reason2-8b --train-root data/train -o folder.toml"
    assert run_script(f"build_spec.py {line}", cwd=here).returncode == 2
    assert not (here / "folder.origins.json").exists()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"train.ckpt.save_freq": 20, "validation.freq": 20}, "saves and validates"),
        ({"train.ckpt.save_freq": 5, "validation.freq": 20}, "validates"),
        ({"train.ckpt.save_freq_in_epoch": 2, "validation.freq": 5}, "saves"),
        ({"train.ckpt.save_freq_in_epoch": 1, "validation.freq": 5}, ""),
        ({"train.ckpt.enable_checkpoint": False, "validation.freq": 5}, ""),
    ],
)
def test_what_is_done_at_the_last_step_only_is_said(here, keys, told):
    trained = support_specs.changed("train", {})
    usual = {"train.epoch": 2, "train.train_batch_per_replica": 8, "validation.enable": True}
    for key, value in (usual | keys).items():
        spec.set_value(trained, key, value)
    case = Case("train", "transformers", trained, write_facts(here, 80))
    text = in_words.size_of_training(case)
    assert "20 steps" in text
    assert text.endswith(f"; {told} at the last step only" if told else "(10 an epoch)"), text


@pytest.mark.parametrize("share", ["-1", "nan", "inf", "half", "50%", ""])
def test_a_share_that_is_none_is_refused(here, share):
    code, found, made = support_specs.run(f"train --train-root 'data/train:{share}'")
    assert (code, made) == (2, None)
    assert [one.id for one in found if one.severity == f.ERROR] == ["SPEC-ROOT"]


def test_a_limit_is_judged_by_the_lengths_that_are_predicted(here):
    """Unknown lengths: a warning without a fix; known ones: nothing, or an error."""
    facts = f" --dataset-facts {write_facts(here, 20)}"
    line = "train --engine transformers --model reason2-2b --set policy.model_max_length="
    for limit, more, ids in (
        (4096, "", {"SPEC-LENGTH-LOW"}),
        (4096, facts, set()),
        (1000, facts, {"SPEC-LENGTH-SAMPLE"}),
        (300000, "", {"SPEC-LENGTH-POSITIONS-TRAIN"}),
        (300000, facts, set()),
    ):
        _, found, _ = run(f"{line}{limit}{more}")
        told = {id: one for id, one in found.items() if id.startswith("SPEC-LENGTH")}
        assert told.keys() == ids, (limit, more)
        for low in [one for id, one in told.items() if id == "SPEC-LENGTH-LOW"]:
            assert low.severity == f.WARNING and not low.fix
