"""The command line of a study: bad input ends as findings, and what it prints can be pasted."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys

import pytest
import study_world
import tune_hyperparameters
from support import ROOT, run_script
from support_specs import write_facts

from cosmos_reason.base import files
from cosmos_reason.spec import document, origins
from cosmos_reason.tuning import commands, prepare, study

SCRIPT = "tune_hyperparameters.py"
FIXTURES = ROOT / "tests/fixtures"


@pytest.fixture
def folder(tmp_path):
    """A train spec with data and validation data of four records, and no model to load."""
    turns = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "a"}]
    records = [{"id": str(n), "video": "a.mp4", "conversations": turns} for n in range(4)]
    files.write_json(tmp_path / "a.json", records)
    held_out = [record | {"video": "b.mp4"} for record in records]
    files.write_json(tmp_path / "b.json", held_out)
    table = document.template("train")
    for key, value in {
        "policy.model_name_or_path": "nvidia/Cosmos-Reason2-2B",
        "custom.train_dataset": {"annotation_path": "a.json", "media_path": "."},
        "custom.val_dataset": {"annotation_path": "b.json", "media_path": "."},
        "validation.enable": True,
        "validation.freq": 1,
    }.items():
        document.set_value(table, key, value)
    document.dump(table, tmp_path / "spec.toml")
    return tmp_path


def tune(folder, *words):
    verb, *words = words
    done = run_script(SCRIPT, verb, "--study", "s", "--json", *words, cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_plan_writes_nothing_and_ends_with_the_command_that_starts(folder):
    before = sorted(folder.rglob("*"))
    code, found = tune(
        folder, "plan", "--spec", "spec.toml", "--words", "learning rate, batch size", "--trials", 5
    )
    assert code == 0 and sorted(folder.rglob("*")) == before
    result = found["result"]
    assert result["trials"] == 5 and result["space"][0]["key"] == "train.optm_lr"
    assert "TUNE-BATCH-CAP" in [finding["id"] for finding in found["findings"]]
    assert all(row["next"] is not None for row in result["space"])
    words = shlex.split(found["next"])
    assert words[0].endswith(SCRIPT) and words[1] == "run" and "--json" not in words
    done = run_script(SCRIPT, "plan", *words[2:], cwd=folder)
    assert done.returncode == 0, done.stderr


WRONG = [
    ("--spec spec.toml --range lr=2..1", 2, "TUNE-RANGE"),
    ("--spec spec.toml --objective acuracy", 2, "TUNE-OBJECTIVE"),
    ("--spec spec.toml --target accuracy=nan", 2, "TUNE-TARGET"),
    ("--spec spec.toml --gpu-ids any --gpu-ids any", 2, "TUNE-GPUS"),
    ("--spec spec.toml --gpu-ids 0,1 --gpu-ids 1,2", 2, "TUNE-GPUS"),
    ("--spec spec.toml --target accuracy=5", 2, "TUNE-TARGET"),
    ("--spec spec.toml --objective text.", 2, "TUNE-OBJECTIVE"),
    ("--spec spec.toml --objective custom.mine", 2, "TUNE-OBJECTIVE"),
    ("--spec spec.toml --metric-file nosuch.py", 2, "FILE-MISSING"),
    ("--spec spec.toml --gpu-ids x", 2, "JOB-GPU-IDS"),
    ("--spec spec.toml --gpu-ids ''", 2, "USAGE"),
    ("--spec spec.toml -- --imge foo", 2, "USAGE"),
    ("--spec spec.toml -- --image foo", 1, "JOB-FLAG"),
    ("--spec spec.toml junk", 2, "USAGE"),
    ("--spec spec.toml --trials 0", 2, "USAGE"),
    ("--spec spec.toml --every nan", 2, "USAGE"),
    ("--spec spec.toml --hours -3", 2, "USAGE"),
    ("--spec nowhere.toml", 2, "FILE-MISSING"),
    ("--range lr=1e-5..1e-4", 2, "USAGE"),
    ("", 2, "FILE-MISSING"),
]


@pytest.mark.parametrize("words, code, id", WRONG, ids=lambda value: str(value)[:40])
def test_bad_input_is_a_finding(folder, words, code, id):
    got, found = tune(folder, "plan", *shlex.split(words))
    assert got == code
    assert id in [row["id"] for row in found["findings"] if row["severity"] == "error"]
    assert not (folder / "s").exists()


def test_only_trainings_get_several_nodes(folder):
    """A study begins with a rehearsal of its evaluations too, which have one node."""
    table = document.load(folder / "spec.toml")
    document.set_value(table, "policy.parallelism.dp_shard_size", 2)
    document.dump(table, folder / "spec.toml")
    search = shlex.split("--spec spec.toml --engine transformers --platform slurm")
    for nodes in (["--nodes", "2"], ["--nodes=2"]):
        code, found = tune(folder, "plan", *search, "--", *nodes, "--account", "team")
        assert code == 0, found["findings"]
    refused = [*search, "--", "--nodes", "3"]
    code, found = tune(folder, "plan", *refused)
    assert code == 1 and "JOB-NODES" in [row["id"] for row in found["findings"]]


def test_a_study_for_a_site_is_judged_by_its_file_alone(folder):
    """Its paths are relative to where the study was named, not to the folders of its trials."""
    (folder / "lab.yaml").write_text(
        "schema_version: 1\nname: lab\nplatform: slurm\nnodes: 1\n"
        "gpus: {type: H100 80GB, count: 8}\npaths: {/lustre/me: .}\n"
        "models: {/lustre/c3: nvidia/Cosmos-Reason2-2B}\nenvironment: /lustre/me/venv\n"
    )
    search = shlex.split("--spec spec.toml --engine transformers --site lab.yaml")
    code, found = tune(folder, "plan", *search)
    assert code == 0, found["findings"]
    assert (found["result"]["platform"], found["result"]["site"]) == ("slurm", "lab")
    code, found = tune(folder, "plan", *search, "--platform", "local")
    assert code == 2 and "USAGE" in [row["id"] for row in found["findings"]]
    few = (folder / "lab.yaml").read_text().replace("count: 8", "count: 0")
    (folder / "lab.yaml").write_text(few)
    code, found = tune(folder, "plan", *search)
    assert code == 1 and "JOB-GPU-COUNT" in [row["id"] for row in found["findings"]]
    plan = {"platform": "slurm", "site": {"name": "lab"}, "engine": "e", "launch": [], "nodes": 1}
    words = commands.launch_words(plan, "train", folder / "spec.toml", None)
    assert words[3:5] == ["--site", str(folder / "site.yaml")]


def test_a_study_is_not_run_where_its_site_calls_the_paths_otherwise(folder):
    """The plan says so and proposes no run; run refuses before its first trial."""
    text = "schema_version: 1\nname: lab\nplatform: slurm\ngpus: {type: H100 80GB, count: 8}\n"
    text += "environment: /lustre/me/venv\nmodels: {/lustre/c3: nvidia/Cosmos-Reason2-2B}\n"
    search = shlex.split("--spec spec.toml --engine transformers --site lab.yaml")
    (folder / "lab.yaml").write_text(text + "paths: {/lustre/me: .}\n")
    code, found = tune(folder, "plan", *search)
    (told,) = [row for row in found["findings"] if row["id"] == "JOB-SITE-PATHS"]
    assert code == 0 and told["severity"] == "warning" and "next" not in found
    code, found = tune(folder, "run", *search)
    (told,) = [row for row in found["findings"] if row["id"] == "JOB-SITE-PATHS"]
    assert code == 1 and told["severity"] == "error" and not (folder / "s").exists()
    (folder / "lab.yaml").write_text(text + f"paths: {{{folder}: .}}\n")
    code, found = tune(folder, "plan", *search)
    assert code == 0 and " run " in found["next"], found["findings"]
    assert "JOB-SITE-PATHS" not in [row["id"] for row in found["findings"]]


def test_what_follows_the_dashes_goes_to_every_job_but_for_the_nodes():
    more = shlex.split("--account a --nodes 2 --nodes=2 --qos q")
    plan = {"platform": "slurm", "engine": "transformers", "launch": more, "nodes": 4}
    words = {}
    for action in ("train", "evaluate"):
        words[action] = commands.launch_words(plan, action, "spec.toml", None)
    assert words["train"][-len(more) :] == more
    assert words["evaluate"][-5:] == shlex.split("transformers --account a --qos q")


def test_trainings_have_the_nodes_that_the_spec_was_laid_out_for(folder):
    table = document.load(folder / "spec.toml")
    document.set_value(table, "policy.parallelism.dp_replicate_size", 2)
    document.dump(table, folder / "spec.toml")
    layout = origins.of_nodes(2, 2)
    origins.write(folder / "spec.toml", "train", "transformers", {}, nodes=layout)
    plan, _ = prepare.prepare(prepare.Request(folder / "spec.toml", "transformers", "accuracy"))
    plan |= {"launch": ["--qos", "q"], "platform": "slurm"}
    train = commands.launch_words(plan, "train", "spec.toml", None)
    assert train[-4:] == ["--nodes", "2", "--qos", "q"]
    assert "--nodes" not in commands.launch_words(plan, "evaluate", "spec.toml", None)


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_space_without_a_legal_point_is_refused_before_anything_starts(folder, verb):
    code, found = tune(
        folder, verb, "--spec", "spec.toml", "--range", "policy.parallelism.tp_size=[3,5]"
    )
    assert code == 1
    assert "TUNE-SPACE-USED" in [
        row["id"] for row in found["findings"] if row["severity"] == "error"
    ]
    assert not (folder / "s").exists()


@pytest.mark.parametrize(
    "objective, target, goal",
    [
        (None, "0.9", 0.9),
        (None, "accuracy=0.9", 0.9),
        ("f1", "0.8", 0.8),
        ("val_loss", "1.5", 1.5),
        (None, "90%", None),
        (None, "f1=0.9", None),
        (None, "acuracy=0.9", None),
        (None, "accuracy", None),
    ],
)
def test_a_target_is_a_value_of_the_objective(folder, objective, target, goal):
    words = [
        "--spec",
        "spec.toml",
        "--range",
        "batch_size=[2,4]",
        *(["--objective", objective] if objective else []),
    ]
    code, found = tune(folder, "plan", *words, "--target", target)
    if goal is None:
        (told,) = [row for row in found["findings"] if row["severity"] == "error"]
        old, new = told["fix"].removeprefix("replace ").split(" with ")
        assert code == 2 and told["id"] == "TUNE-TARGET"
        assert shlex.split(old) == ["--target", target]
        code, found = tune(folder, "plan", *words, *shlex.split(new))
    assert code == 0 and found["result"]["target"] == (goal or 0.9)


def test_what_build_spec_was_told_to_set_is_not_searched(folder):
    words = shlex.split("--spec spec.toml --engine transformers --set batch_size=2 -o mine.toml")
    assert run_script("build_spec.py", "train", *words, cwd=folder).returncode == 0
    code, found = tune(folder, "plan", "--spec", "mine.toml")
    varied = [row["key"] for row in found["result"]["space"]]
    assert code == 0 and varied == ["train.optm_lr", "train.optm_weight_decay"]
    (told,) = [row for row in found["findings"] if row["id"] == "TUNE-GIVEN"]
    code, found = tune(folder, "plan", "--spec", "mine.toml", *shlex.split(told["fix"]))
    assert code == 0 and len(found["result"]["space"]) == 3


def test_the_engine_is_the_one_that_the_spec_was_built_for(folder):
    words = shlex.split("--spec spec.toml --engine tao -o mine.toml")
    assert run_script("build_spec.py", "train", *words, cwd=folder).returncode == 0
    code, found = tune(
        folder, "plan", "--spec", "mine.toml"
    )  # on this machine, where tao does not run
    assert code != 0 and "tao" in str(found["findings"])
    assert tune(folder, "plan", "--spec", "spec.toml")[0] == 0


def test_a_plan_counts_what_there_is_to_try(folder):
    code, found = tune(
        folder, "plan", "--spec", "spec.toml", "--range", "batch_size=[2,4]", "--gpu-ids", "none"
    )
    result = found["result"]
    assert code == 0 and result["left"] == 2, "of the twelve that --trials allows"
    assert result["estimate"]["seconds"] is None
    assert "--seconds-per-step" in result["estimate"]["source"]


def test_a_plan_tells_time_budget_target_and_device(folder):
    facts = write_facts(folder, 4)
    files.write_json(facts, files.read_json(facts) | {"annotations": str(folder / "a.json")})
    words = shlex.split("plan --spec spec.toml --dataset-facts dataset_facts.json")
    words += shlex.split("--trials 4 --hours 8 --target 0.9 --gpu-ids none")
    words += ["--seconds-per-step", "9"]
    _, found = tune(folder, *words)
    told = found["result"]
    assert (told["trials"], told["hours"], told["target"]) == (4, 8, 0.9)
    assert (told["platform"], told["gpu_ids"]) == ("local", [[]])
    assert told["estimate"]["speed"] == "given" and told["estimate"]["tokens"] > 0
    assert told["estimate"]["evaluations"] == "not known"
    assert told["evaluations"] == told["left"] + 1, "the untouched model is evaluated too"
    assert told["estimate"]["seconds"] > 0 and told["estimate"]["gpu_hours"] is None
    assert "--seconds-per-step" not in found["next"]
    assert told["questions"] == 4
    text = run_script(SCRIPT, *words, "--range", "lr=3e-6..4e-6", "--study", "c", cwd=folder).stdout
    # What is suggested next is Optuna's.
    assert re.sub(r", next [\d.e-]+", "", text) == (FIXTURES / "said_of_a_plan.txt").read_text()


@pytest.mark.parametrize(
    ("given", "searched", "told"),
    [
        ("", "lora_rank=[8,16]", "follows the rank, 2 times it"),
        ("--set lora_alpha=32", "lora_rank=[8,16]", "stays 32 as it was given: the scale of the"),
        ("", "lr=1e-5..1e-4", ""),
    ],
)
def test_a_plan_tells_what_becomes_of_alpha(folder, given, searched, told):
    words = f"train --spec spec.toml --engine transformers --tuning lora -o lora.toml {given}"
    made = run_script("build_spec.py", *words.split(), cwd=folder)
    assert made.returncode == 0, made.stderr
    _, found = tune(folder, "plan", "--spec", "lora.toml", "--range", searched)
    assert found["result"]["alpha"].startswith(told) and bool(found["result"]["alpha"]) == bool(
        told
    )


def begun(folder, *words):
    """A study with one trial, made from the words of a command line without running anything."""
    args = tune_hyperparameters.parser().parse_args(["run", "--study", str(folder / "s"), *words])
    made = study.open_or_begin(folder / "s", tune_hyperparameters.described(args)[0])
    made.save()
    for _ in range(2):
        study_world.add(made, 0.5)
    return made


def test_a_study_goes_on_as_it_began_or_says_why_not(folder, monkeypatch):
    monkeypatch.chdir(folder)
    begun(folder, "--spec", "spec.toml", "--range", "batch_size=[2,4]")
    assert tune(folder, "plan", "--trials", "1")[1]["result"]["left"] == 0
    code, found = tune(folder, "plan", "--engine", "tao")
    told = found["findings"][0]
    assert code == 2 and told["where"] == "--spec" and "--engine" in told["message"]
    code, found = tune(folder, "plan", "--", "--image", "foo")
    assert code == 1 and found["findings"][0]["id"] == "JOB-FLAG"
    assert (
        tune(folder, "plan", "--spec", "spec.toml", "--range", "batch_size=[2,4]", "--seed", "5")[0]
        == 2
    )
    assert tune(folder, "plan", "--spec", "spec.toml", "--range", "batch_size=[2,4]")[0] == 0
    records = files.read_json(folder / "a.json")
    files.write_json(folder / "a.json", [records[0] | {"id": "other"}, *records[1:]])
    code, found = tune(folder, "plan")
    assert code == 2 and found["findings"][0]["id"] == "TUNE-DATA-CHANGED"


def test_what_comes_next_waits_until_the_study_has_ended(folder, monkeypatch):
    monkeypatch.chdir(folder)
    made = begun(folder, "--spec", "spec.toml", "--range", "batch_size=[2,4]")
    for trial, low in ((made.trial(0), 0.1), (made.trial(1) | {"objective": 0.6}, 0.3)):
        made.write(trial | {"metrics": {"interval": [low, 0.9]}})
    running = study_world.add(made)
    with study.owned(folder / "s"):
        for verb in ("status", "report", "best"):
            found = tune(folder, verb)[1]
            assert shlex.split(found["next"])[1:] == ["status", "--study", "s"]
            assert not found["findings"]
        code, found = tune(folder, "run")
        assert code == 3 and [row["id"] for row in found["findings"]] == ["TUNE-STUDY-LOCKED"]
        assert f"process {os.getpid()} on {socket.gethostname()}" in found["findings"][0]["message"]
    for verb in ("status", "report", "best"):
        assert shlex.split(tune(folder, verb)[1]["next"])[1:] == ["run", "--study", "s"]
    made.write(running | {"state": study.FAILED, "ended_at": running["started_at"]})
    found = tune(folder, "run", "--trials", "2", "--target", "0.9", "--gpu-ids", "none")[1]
    assert found["result"]["ended"] == "2 of 2 trainings; target 0.9 not reached (best 0.6)"
    for told in (found, tune(folder, "status")[1], tune(folder, "best")[1]):
        assert [row["id"] for row in told["findings"]] == ["TUNE-NOISE"]
        assert shlex.split(told["next"])[1] in ("report", "plan")


def test_the_budget_is_the_studys_and_a_later_run_changes_what_it_names(folder, monkeypatch):
    monkeypatch.chdir(folder)
    begun(folder, "--spec", "spec.toml", "--range", "lr=1e-6..1e-4")
    budget = shlex.split("--trials 1 --hours 8 --target 0.9 --gpu-ids none --gpu-ids none")
    code, found = tune(folder, "run", *budget)
    assert code == 0 and found["result"]["ended"].startswith("1 of 1 trainings")
    kept = {"trials": 1, "hours": 8, "target": 0.9, "groups": [[], []]}
    written = files.read_json(folder / "s/study.json")
    assert {name: written[name] for name in kept} == kept and written["worked_seconds"] < 60
    planned = tune(folder, "plan")[1]["result"]
    assert (planned["trials"], planned["left"], planned["target"]) == (1, 0, 0.9)
    assert planned["parallel"] == 2
    assert tune(folder, "run", "--hours", "9")[0] == 0
    written = files.read_json(folder / "s/study.json")
    assert {name: written[name] for name in kept} == kept | {"hours": 9}
    del written["trials"], written["groups"]
    files.write_json(folder / "s/study.json", written)
    assert tune(folder, "plan", "--gpu-ids", "none")[1]["result"]["trials"] == 12, (
        "of before it was kept"
    )


def test_one_broken_record_does_not_hide_the_sound_ones(folder, monkeypatch):
    monkeypatch.chdir(folder)
    made = begun(folder, "--spec", "spec.toml", "--range", "lr=1e-6..1e-4")
    study_world.add(made, 0.7)
    (folder / "s/trials/0001/trial.json").write_text('{"number": 1, "sta')
    for verb, words in (
        ("status", []),
        ("report", []),
        ("best", []),
        ("run", ["--trials", "2", "--gpu-ids", "none"]),
    ):
        code, found = tune(folder, verb, *words)
        (told,) = [row for row in found["findings"] if row["id"] == "TUNE-TRIAL-BROKEN"]
        assert code == 0 and told["severity"] == "warning"
        assert told["where"].endswith("0001/trial.json")
    assert tune(folder, "best")[1]["result"]["objective"] == 0.7


def test_a_file_is_no_study_and_an_evaluate_spec_that_asks_otherwise_is_said(folder):
    table = document.template("evaluate")
    document.set_value(table, "dataset.annotation_path", "b.json")
    document.set_value(table, "vision", {"nframes": 64})
    document.dump(table, folder / "eval.toml")
    code, found = tune(folder, "plan", "--spec", "spec.toml", "--eval-spec", "eval.toml")
    assert code == 0 and [row for row in found["findings"] if row["id"] == "TUNE-EVAL-VIEW"]
    document.set_value(table, "generation.max_tokens", "64")
    document.dump(table, folder / "eval.toml")
    code, found = tune(folder, "plan", "--spec", "spec.toml", "--eval-spec", "eval.toml")
    assert code == 2 and found["findings"][-1]["id"] == "SPEC-VALUE"
    assert "scripts/build_spec.py evaluate --spec eval.toml" in found["findings"][-1]["fix"]
    (folder / "s").write_text("")
    code, found = tune(folder, "plan", "--spec", "spec.toml")
    assert code == 2 and found["findings"][0]["id"] == "TUNE-STUDY"


def test_an_illegal_spec_is_refused_with_the_command_that_mends_all_of_it(folder):
    table = document.load(folder / "spec.toml")
    document.set_value(table, "train.train_policy.mini_batch", 3)
    document.set_value(table, "custom.vision.fps", 2)
    document.dump(table, folder / "spec.toml")
    code, found = tune(folder, "plan", "--spec", "spec.toml")
    fixes = {row["id"]: row["fix"] for row in found["findings"] if row["severity"] == "error"}
    assert code == 1 and fixes.keys() == {"SPEC-BATCH-MULTIPLE", "SPEC-FRAMES-ONE"}
    assert len(set(fixes.values())) == 1
    script, *words = shlex.split(fixes["SPEC-FRAMES-ONE"])
    done = run_script(script.removeprefix("scripts/"), *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert document.load(folder / "spec.toml") == table, "a file of the user's stays as it is"
    assert tune(folder, "plan", "--spec", "spec-mended.toml")[0] == 0


def test_without_questions_to_compare_trials_with_it_says_so(folder):
    table = document.load(folder / "spec.toml")
    document.delete(table, "custom.val_dataset")
    document.set_value(table, "validation.enable", False)
    document.dump(table, folder / "spec.toml")
    code, found = tune(folder, "plan", "--spec", "spec.toml")
    told = found["findings"][-1]
    assert code == 2 and told["id"] == "TUNE-EVAL-DATA"
    words = shlex.split(told["fix"].replace("--eval-root DIR", "--eval-root held_out"))
    (folder / "held_out").mkdir()
    shutil.copy(folder / "a.json", folder / "held_out/annotations.json")
    assert run_script(words[0].removeprefix("scripts/"), *words[1:], cwd=folder).returncode == 0
    code, found = tune(folder, "plan", "--spec", "spec-mended.toml")
    assert code == 0
    assert ("TUNE-EVAL-DATA", "") in [(row["id"], row["fix"]) for row in found["findings"]]


def test_general_questions_belong_to_the_study(folder, monkeypatch):
    (folder / "general").mkdir()
    shutil.copy(folder / "a.json", folder / "general/annotations.json")
    general = ["--guard-root", "general"]
    code, found = tune(folder, "plan", "--spec", "spec.toml", "--engine", "tao", *general)
    assert code == 2, found  # it asks one set only
    assert "SPEC-ENGINE-KEY" in [row["id"] for row in found["findings"]]
    words = ["--spec", "spec.toml", "--engine", "transformers", *general]
    code, found = tune(folder, "plan", *words)
    assert code == 0, found
    code, found = tune(folder, "plan", *words, "--objective", "val_loss")
    assert code == 2 and "TUNE-GUARD" in [row["id"] for row in found["findings"]]
    code, found = tune(folder, "plan", *general)
    assert code == 2 and found["findings"][0]["where"] == "--spec"
    monkeypatch.chdir(folder)
    request = prepare.Request(
        folder / "spec.toml", "transformers", "accuracy", guard_root=str(folder / "general")
    )
    plan, _ = prepare.prepare(request)
    general_file = str(folder / "general/annotations.json")
    assert plan["evaluate"]["guard"]["annotation_path"] == general_file
    assert general_file in plan["fingerprints"]


@pytest.mark.parametrize(
    "lacking", ["schemas/train.schema.json", "references/spec_template_train.yaml"]
)
def test_a_bundle_that_lacks_a_file_is_enabled_but_not_runnable_and_the_fix_is_none_that_fails(
    folder, lacking
):
    bundle = folder / "bundle"
    for name in ("scripts", "schemas", "references"):
        shutil.copytree(ROOT / name, bundle / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "skill_info.yaml", bundle)
    (bundle / lacking).unlink()

    def run(script, *words):
        command = [sys.executable, bundle / "scripts" / script, *words, "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)["findings"]

    code, (finding,) = run(SCRIPT, "plan", "--study", "s", "--spec", "spec.toml")
    assert code == 2 and finding["id"] == "TUNE-NOT-RUNNABLE" and "enabled" in finding["message"]
    plan = shlex.split("plan train --spec spec.toml --engine transformers --platform local")
    code, found = run("launch_job.py", *plan)
    if lacking.startswith("schemas"):  # nothing trains
        assert finding["fix"] == "install the skill again"
        assert code == 3 and found[0]["id"] == "BUNDLE-INCOMPLETE"
        assert found[0]["fix"] == finding["fix"]
        (bundle / ".git").touch()
        _, (finding,) = run(SCRIPT, "plan", "--study", "s", "--spec", "spec.toml")
        assert finding["fix"] == f"git -C {bundle} checkout -- {lacking}"
    else:
        assert code == 0, found
        assert shlex.split(finding["fix"])[1:] == ["submit", *plan[1:]]


@pytest.mark.parametrize("verb", ["status", "report", "best", "run"])
def test_a_folder_that_is_no_study_is_refused(folder, verb):
    (folder / "s").mkdir()
    (folder / "s" / "study.json").write_text('{"schema_version": 7}')
    code, found = tune(folder, verb)
    assert code == 2 and found["findings"][0]["id"] == "TUNE-STUDY-VERSION"


def test_after_the_best_its_answers_are_compared_or_asked_for(folder, monkeypatch):
    """A new training was the next step, beside the checkpoint that the study kept."""
    monkeypatch.chdir(folder)
    made = begun(folder, "--spec", "spec.toml", "--range", "batch_size=[2,4]")
    made.plan["ended"] = "1 of 1 trainings"
    made.save()
    assert shlex.split(tune(folder, "best")[1]["next"])[1:3] == ["plan", "train"], "none was kept"
    (made.trial_folder(1) / "jobs" / "x").mkdir(parents=True)
    made.write(made.trial(1) | {"objective": 0.9, "checkpoint": "trials/0001/jobs/x"})
    script, *words = shlex.split(tune(folder, "best")[1]["next"])
    assert script.endswith("build_spec.py") and words[0] == "evaluate"
    assert words[words.index("--parent-job") + 1].endswith("trials/0001/jobs/x")
    results = [
        study_world.ended_job(made, made.trial(number), "evaluate", "COMPLETE") for number in (1, 0)
    ]
    script, *words = shlex.split(tune(folder, "best")[1]["next"])
    assert script.endswith("score_predictions.py") and words[1] == "--compare"
    assert [os.path.abspath(words[place]) for place in (0, 2)] == [*map(str, results)]
