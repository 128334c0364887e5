"""Bad command lines: what people read of each, word for word; nothing is written, and what a fix
says repairs the very line it is about.

After a deliberate change of words, or a new line in the file:
`PYTHONPATH=scripts:tests/fixtures python tests/rules/test_spec_fixes.py`
"""

import contextlib
import copy
import os
import re
import shlex
import tempfile
from pathlib import Path

import applied_fixes
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ROOT, run_script
from support_specs import RECORDS, run, write_facts

from cosmos_reason.base import bundle, files
from cosmos_reason.rules import explain, spec_rules
from cosmos_reason.spec import document, names

JOB = "jobs/train-20260101-000000-abcdef"
NEEDS_FILES = {
    "SPEC-MODEL-OMNI-LOCAL", "SPEC-MODEL-ADAPTER", "SPEC-ADAPTER-FOLDER", "SPEC-RESUME-INCOMPLETE",
    "SPEC-RESUME-DONE", "SPEC-MODEL-MINIATURE", "SPEC-SHARED-VOCABULARY", "SPEC-FP8-BASE",
    "SPEC-STEPS-ZERO", "SPEC-FRAMES-CLIP", "SPEC-LENGTH-SAMPLE", "SPEC-LENGTH-ANSWER",
    "SPEC-LOADER-MEMORY", "SPEC-REASONING", "SPEC-REASONING-NONE", "SPEC-FACTS-OTHER",
    "SPEC-PATTERN-NOTHING",
    "SPEC-STEPS-FEW", "SPEC-FPS-RATES", "SPEC-CALIBRATION-MANY", "SPEC-PICTURES",
}  # fmt: skip
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


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make(tmp_path)


def make(tmp_path):
    """A working folder with train/ and held_out/ dataset roots, a finished train job, and facts of
    data that lie elsewhere: of 20 records, one with a clip of 6 frames, and of 400."""
    for name, frames in (("few", [64] * 19 + [6]), ("many", [64] * 400)):
        (tmp_path / name).mkdir()
        write_facts(tmp_path / name, len(frames), frames)
    for name in ("train", "held_out"):
        files.write_text(tmp_path / "data" / name / "annotations.json", RECORDS)
    run("train --train-root data/train --model reason2-2b", f"{JOB}/spec.toml")
    record = {"action": "train", "engine": "tao", "state": "COMPLETE"}
    record["evidence"] = {"checkpoint": "/cluster/out/20260101000000/safetensors/step_20"}
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


SAID = ROOT / "tests/fixtures/said_of_specs.txt"
LINES = [line[2:] for line in SAID.read_text().splitlines() if line.startswith("$ ")]
# What is said of every template, until somebody gives a model, data or a question.
USUAL = {"SPEC-MODEL-OMNI", "SPEC-DATA-TRAIN", "SPEC-DATA-EVAL", "SPEC-CADENCE", "SPEC-GRPO-START"}


def told(line):
    """What is said of a command line, as it stands in the file."""
    code, found, _ = run(line)
    blocks = [f"$ {line}", *([f"exit {code}"] if code != 1 else [])]
    usual = [one for one in found if one.id in USUAL and one.severity != "error"]
    for one in found:
        if one not in usual:
            blocks.append(f"{one.severity} {one.id} {one.where}: {one.message}")
            blocks += [f"  fix: {one.fix}"] if one.fix else []
    return "\n".join(blocks).replace(os.getcwd(), "HERE")


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:60])
def test_what_is_said_of_a_line_stands_in_the_file_and_its_fixes_hold(world, line):
    world.restored()
    with contextlib.chdir(world.folder):
        expected = f"\n{SAID.read_text()}\n".partition(f"\n$ {line}\n")[2].partition("\n\n")[0]
        assert told(line).partition("\n")[2] == expected
    line = f"build_spec.py {line} -o made.toml"
    problems = applied_fixes.failures(applied_fixes.Broken(line, line, filled=FILLED), world)
    assert not problems, "\n".join(problems)


def test_each_rule_of_a_spec_alone_stands_in_the_file():
    """Others need files or facts, and have tests of their own in test_case.py."""
    said = set(re.findall(r"^\w+ (SPEC-[A-Z0-9-]+) ", SAID.read_text(), re.M))
    assert {rule.id for rule in spec_rules.RULES} - said <= USUAL | NEEDS_FILES


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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        make(Path(folder))
        SAID.write_text("\n\n".join(told(line) for line in LINES) + "\n")
