"""Result folders of Reason1: read anew, or counted as it counted them."""

import copy
import json
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from scoring import QUESTION, ids, row, score, write
from support import run_script

from cosmos_reason.base import files
from cosmos_reason.engine.answer.responder import Responder
from cosmos_reason.evaluation import grading, run
from cosmos_reason.evaluation.rows import read
from cosmos_reason.spec import document

REASON1 = [
    {"is_correct": True, "correct_answer": "A", "full_response": "<answer>A</answer>"},
    {"is_correct": False, "correct_answer": "A", "full_response": "<answer>B</answer>"},
    {"correct_answer": "A", "full_response": "<answer>A</answer>"},
    "str",
    {"is_correct": "false", "correct_answer": "B", "full_response": "<answer>It is B</answer>"},
    {"is_correct": None, "correct_answer": "B", "full_response": ""},
    {"is_correct": 1, "correct_answer": "B", "full_response": "<answer>B</answer>"},
]


# As it is shipped.
CONFIG = yaml.safe_load("""
datasets: [robovqa, av]
model: {model_name: nvidia/Cosmos-Reason1-7B, tokenizer_model_name: qwen2.5-vl-7b, dtype: bfloat16,
        tp_size: 4, max_length: 128000}
evaluation: {answer_type: reasoning, num_processes: 80, skip_saved: false, fps: 4, seed: 1}
generation: {max_retries: 10, max_tokens: 1024, temperature: 0.6, repetition_penalty: 1.0,
             presence_penalty: 0.0, frequency_penalty: 0.0}
""")


@pytest.fixture
def benchmark(tmp_path, dataset):
    """The guide's data folder with two datasets of one clip, and a config beside it."""
    pair = {"question": "Which way?", "index2ans": {"A": "left", "B": "right"}, "answer": "A"}
    for name, pairs in (("robovqa", [pair, pair | {"question": "Where?"}]), ("av", pair)):
        folder = tmp_path / "data" / "benchmark" / name
        (folder / "clips").mkdir(parents=True)
        shutil.copy(dataset / "eval/videos/eval-0000.mp4", folder / "clips/a.mp4")
        record = {"video": "clips/a.mp4", "qa_pairs": pairs}
        files.write_json(folder / f"{name}_benchmark_qa_pairs.json", [record])

    def build(*flags, **changes):
        config = copy.deepcopy(CONFIG)
        for key, value in changes.items():
            document.set_value(config, key.replace("__", "."), value)
        (tmp_path / "robovqa.yaml").write_text(yaml.safe_dump(config))
        words = "evaluate", "--spec", "robovqa.yaml", "-o", "e.toml", *flags
        done = run_script("build_spec.py", *words, "--json", cwd=tmp_path)
        return done.returncode, json.loads(done.stdout)

    return build


@pytest.mark.parametrize(
    ("engine", "answer_type", "expected"),
    [
        ("tao", "reasoning", {"model.tp_size": 4, "evaluation.num_processes": 80}),
        ("transformers", "reasoning", {"generation.temperature": 0.6, "generation.top_p": 0.95}),
        ("transformers", "letter", {"generation.max_tokens": 10, "generation.temperature": 0.0}),
    ],
)
def test_its_config_becomes_an_evaluate_spec(benchmark, tmp_path, engine, answer_type, expected):
    changes = {"evaluation__answer_type": answer_type, "datasets": ["robovqa"]}
    code, said = benchmark("--engine", engine, "--eval-root", "data", **changes)
    assert code == 0 and not ids(said) & {"SPEC-ENGINE-KEY", "SPEC-KEY-UNKNOWN"}, said
    spec = document.load(tmp_path / "e.toml")
    folder = tmp_path / "data" / "benchmark" / "robovqa"
    for key, value in {
        "vision": {"fps": 4},
        "num_gpus": 4,
        "dataset.annotation_path": str(folder / "robovqa_benchmark_qa_pairs.json"),
        "dataset.media_dir": str(folder),
        "dataset.system_prompt": "Answer the questions.",
        "evaluation.answer_type": answer_type,
        **expected,
    }.items():
        assert document.get(spec, key) == value, key


@pytest.mark.parametrize("answer_type", ["letter", "reasoning"])
def test_an_answer_type_set_on_the_command_line_samples_as_one_in_the_config(
    benchmark, tmp_path, answer_type
):
    other = {"letter": "reasoning", "reasoning": "letter"}[answer_type]
    flags = ["--engine", "transformers", "--eval-root", "data"]
    made = []
    for written, words in ((answer_type, []), (other, ["--set", f"answer_type={answer_type}"])):
        code, said = benchmark(*flags, *words, "--force", evaluation__answer_type=written)
        assert code == 0, said
        spec = document.load(tmp_path / "e.toml")
        made.append((spec["evaluation"]["answer_type"], spec["generation"]))
    assert made[0] == made[1] and made[0][0] == answer_type
    assert made[0][1]["max_tokens"] == {"letter": 10, "reasoning": 1024}[answer_type]
    words = ["--set", "answer_type=letter", "--set", "generation.max_tokens=20", "--force"]
    assert benchmark(*flags, *words)[0] == 0
    generation = document.load(tmp_path / "e.toml")["generation"]
    assert (generation["max_tokens"], generation["temperature"]) == (20, 0)


def test_clips_in_archives_are_told_of_each_dataset_with_the_command_that_unpacks_them(
    benchmark, tmp_path
):
    for name in ("robovqa", "av"):
        folder = tmp_path / "data" / "benchmark" / name
        with tarfile.open(folder / "clips.tar.gz", "w:gz") as tar:
            tar.add(folder / "clips", "clips")
        shutil.rmtree(folder / "clips")
    flags = ["--engine", "transformers", "--eval-root", "data"]
    code, said = benchmark(*flags)
    errors = [one for one in said["findings"] if one["severity"] == "error"]
    assert code == 2 and [one["id"] for one in errors] == ["SPEC-ROOT"] * 2
    for one in errors:
        subprocess.run(shlex.split(one["fix"]), check=True, cwd=tmp_path)
    assert benchmark(*flags)[0] == 0


def test_datasets_without_questions_are_named_at_once(benchmark):
    names = ["robovqa", "agibot", "bridgev2"]
    _, said = benchmark("--engine", "transformers", "--eval-root", "data", datasets=names)
    (found,) = [one for one in said["findings"] if one["severity"] == "error"]
    assert found["where"] == "datasets.agibot" and "nor of bridgev2" in found["message"]


def told(said, *keys):
    return [tuple(one[key] for key in keys) for one in said["findings"]]


@pytest.mark.parametrize(
    ("engine", "where", "spec_says"),
    [("tao", "model.tp_size", {"tp_size": 2}), ("transformers", "num_gpus", {})],
)
@pytest.mark.parametrize("key", ["TP_SIZE", "model__TP_SIZE", "evaluation__tp_size"])
def test_how_many_gpus_share_the_model_by_its_other_names(
    benchmark, tmp_path, monkeypatch, engine, where, spec_says, key
):
    monkeypatch.delitem(CONFIG["model"], "tp_size")
    code, said = benchmark("--engine", engine, "--eval-root", "data", **{key: 2})
    assert code == 0 and not ids(said) & {"SPEC-KEY-UNKNOWN"}
    assert ("SPEC-TRANSLATED", "info", where) in told(said, "id", "severity", "where")
    spec = document.load(tmp_path / "e.toml")
    assert spec["num_gpus"] == 2
    model = {name: value for name, value in spec["model"].items() if name == "tp_size"}
    assert model == spec_says


def test_numbers_of_gpus_that_contradict_each_other(benchmark):
    code, said = benchmark("--engine", "tao", "--eval-root", "data", TP_SIZE=2)
    (found,) = [one for one in said["findings"] if one["severity"] == "error"]
    assert (code, found["id"]) == (1, "SPEC-KEY-TWICE")
    assert "TP_SIZE 2, model.tp_size 4" in found["message"]


@pytest.mark.parametrize("engine", ["tao", "transformers"])
def test_tp_size_of_the_environment(benchmark, tmp_path, monkeypatch, engine):
    flags = ["--engine", engine, "--eval-root", "data", "--force"]
    monkeypatch.setenv("TP_SIZE", "2")
    code, said = benchmark(*flags)
    (found,) = [one for one in said["findings"] if one["where"] == "$TP_SIZE"]
    assert (code, found["severity"]) == (0, "warning") and "the config has 4" in found["message"]
    assert document.load(tmp_path / "e.toml")["num_gpus"] == 4
    assert benchmark(*flags, *found["fix"].split())[0] == 0
    spec = document.load(tmp_path / "e.toml")
    assert (spec["num_gpus"], spec["model"].get("tp_size", 2)) == (2, 2)
    monkeypatch.delitem(CONFIG["model"], "tp_size")
    code, said = benchmark(*flags)
    assert code == 0 and "$TP_SIZE" not in {one["where"] for one in said["findings"]}
    spec = document.load(tmp_path / "e.toml")
    assert (spec["num_gpus"], spec["model"].get("tp_size", 2)) == (2, 2)
    monkeypatch.setenv("TP_SIZE", "all")
    code, said = benchmark(*flags)
    assert ("$TP_SIZE", "warning") in told(said, "where", "severity")
    assert document.load(tmp_path / "e.toml").get("num_gpus", 1) == 1


def test_loader_processes_that_the_embedded_engine_chooses_by_itself(benchmark):
    key = ("SPEC-KEY-LEFT-OUT", "info", "evaluation.num_processes")
    for engine, is_told in (("transformers", True), ("tao", False)):
        _, said = benchmark("--engine", engine, "--eval-root", "data", "--force")
        assert (key in told(said, "id", "severity", "where")) == is_told


@pytest.mark.parametrize("names, expected", [("robovqa", 0), ([], 2), ("", 2)])
def test_one_dataset_may_stand_alone_and_none_is_named(benchmark, names, expected):
    flags = ["--engine", "transformers", "--eval-root", "data"]
    code, said = benchmark(*flags, datasets=names)
    assert code == expected
    if expected:
        (found,) = [one for one in said["findings"] if one["severity"] == "error"]
        assert found["where"] == "datasets" and "names such as robovqa" in found["message"]


def test_saved_answers_are_kept_only_where_results_have_a_folder(benchmark):
    flags = ["--engine", "transformers", "--eval-root", "data", "--force"]
    for words, is_told in (([], True), (["--set", "results_dir=answers"], False)):
        _, said = benchmark(*flags, *words, evaluation__skip_saved=True)
        assert ("SPEC-SKIP-SAVED" in ids(said)) == is_told


def test_what_gives_way_to_the_training_is_named(benchmark, tmp_path):
    job = tmp_path / "jobs" / "train-20260101-000000-abcdef"
    job.mkdir(parents=True)
    words = "train --engine transformers --tuning lora --train-root data --set nframes=4"
    trained = [*words.split(), "--model", "reason1", "-o", str(job / "spec.toml")]
    run_script("build_spec.py", *trained, "--force", cwd=tmp_path)
    evidence = {"checkpoint": str(tmp_path / "out" / "safetensors" / "step_20")}
    record = {"job_id": job.name, "action": "train", "state": "COMPLETE", "evidence": evidence}
    files.write_json(job / "job.json", record)
    flags = ["--engine", "transformers", "--eval-root", "data", "--parent-job", str(job)]
    _, said = benchmark(*flags, "--force")
    (found,) = [one for one in said["findings"] if one["id"] == "SPEC-PARENT-VIEW"]
    assert found["severity"] == "info"
    assert "vision.fps = 4" in found["message"] and "Answer the questions." in found["message"]
    assert document.load(tmp_path / "e.toml")["vision"] == {"nframes": 4}


def test_its_datasets_are_looked_for_where_the_guide_puts_them(benchmark):
    for flags, where in (((), "datasets"), (("--eval-root", "data"), "datasets.agibot")):
        code, said = benchmark(*flags, datasets=["robovqa", "agibot"])
        (found,) = [one for one in said["findings"] if one["id"] == "SPEC-BENCHMARK-ROOT"]
        assert code == 2 and found["where"] == where
        assert sum(one["severity"] == "error" for one in said["findings"]) == 1
        assert "--eval-root DIR" in found["fix"] or "Cosmos-Reason1-Benchmark" in found["fix"]


def test_several_datasets_are_asked_at_once_and_scored_each_and_together(
    benchmark, tmp_path, tiny_reason1
):
    flags = "--engine", "transformers", "--model", tiny_reason1, "--eval-root", "data"
    assert benchmark(*flags, "--set", "generation.max_tokens=4", model__tp_size=1)[0] == 0
    spec = document.with_defaults("evaluate", document.load(tmp_path / "e.toml"))
    spec["results_dir"] = str(tmp_path / "results")
    run.run(spec, None, Responder(spec))
    assert score(tmp_path / "results")[0] == 0
    metrics = files.read_json(tmp_path / "results" / "metrics.json")
    groups = {name: group["rows"] for name, group in metrics["per_tag"].items()}
    assert groups == {"robovqa": 2, "av": 1} and metrics["rows"] == 3


def test_its_result_folders_are_written_and_counted_by_its_rule(benchmark, tmp_path, tiny_reason1):
    flags = "--engine", "transformers", "--model", tiny_reason1, "--eval-root", "data"
    sets = "--set", "generation.max_tokens=4", "--set", "results.layout=reason1"
    assert benchmark(*flags, *sets, model__tp_size=1)[0] == 0
    spec = document.with_defaults("evaluate", document.load(tmp_path / "e.toml"))
    spec["results_dir"] = str(tmp_path / "results")
    layout = tmp_path / "results" / "reason1_layout"
    write(layout / "other/letter/av/gone.json", [{"is_correct": True}])
    run.run(spec, None, Responder(spec))
    place = layout / Path(tiny_reason1).name / "reasoning"
    written = {path.relative_to(place).as_posix() for path in place.rglob("*.json")}
    assert written == {"robovqa/a.json", "av/a.json"}
    entries = files.read_json(place / "robovqa/a.json")
    rows = files.read_json(tmp_path / "results" / "results.json")
    assert [one["full_response"] for one in entries] == [row["response"] for row in rows[:2]]
    assert [one["is_correct"] for one in entries] == [row["correct"] for row in rows[:2]]
    assert entries[0]["datasource"] == "robovqa" and entries[0]["correct_answer"] == "A"
    system, user = entries[0]["prompt"]
    assert system == {"role": "system", "content": "Answer the questions."}
    assert [part["type"] for part in user["content"]] == ["video", "text"]
    assert "<answer> your single letter answer </answer>" in user["content"][1]["text"]

    right = sum(row["correct"] for row in rows)
    counted = score(layout, "--compat", "reason1")[1]
    assert (counted["result"]["samples"], counted["result"]["correct"]) == (3, right)
    code, scored = score(tmp_path / "results")  # from results.json alone
    assert code == 0 and [one["rows"] for one in scored["result"]["runs"]] == [3]


def test_result_folders_that_a_container_does_not_write_are_told_with_a_fix(benchmark):
    flags = "--engine", "tao", "--eval-root", "data", "--set", "results.layout=reason1"
    _, said = benchmark(*flags, datasets=["robovqa"])
    (found,) = [one for one in said["findings"] if one["where"] == "results.layout"]
    assert (found["id"], found["severity"]) == ("SPEC-ENGINE-KEY", "warning")
    assert found["fix"] == "drop --set results.layout=reason1"


def reason1_folder(folder: Path) -> Path:
    """A tree on which calculate_accuracy.py printed 6 samples, 4 correct, 0.6667 (66.67%)."""
    write(folder / "one/reasoning/robovqa/v1.json", REASON1)
    write(folder / "one/reasoning/robovqa/dict.json", {"is_correct": True})
    (folder / "one/reasoning/robovqa/bad.json").write_text("[{", encoding="utf-8")
    write(folder / "one/reasoning/robovqa/empty.json", [])
    write(folder / "two/reasoning/robovqa/v1.json", [{"is_correct": True}])
    return folder


def test_compat_reason1_prints_what_calculate_accuracy_prints(tmp_path):
    done = run_script("score_predictions.py", reason1_folder(tmp_path), "--compat", "reason1")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Total samples processed across all files: 6",
        "Total samples counted as correct: 4",
        "Mean accuracy: 0.6667 (66.67%)",
    ]
    assert not list(tmp_path.rglob("metrics.json"))


def test_compat_reason1_counts_one_dataset_of_several(tmp_path):
    reason1_folder(tmp_path)
    write(tmp_path / "one/reasoning/av/v1.json", [{"is_correct": False}] * 3)
    totals = {}
    for flags in ((), ("--dataset", "robovqa"), ("--dataset", "av")):
        code, document = score(tmp_path, "--compat", "reason1", *flags)
        assert code == 0
        totals[flags[1:]] = document["result"]["samples"], document["result"]["correct"]
    assert totals == {(): (9, 4), ("robovqa",): (6, 4), ("av",): (3, 0)}
    code, document = score(tmp_path, "--compat", "reason1", "--dataset", "robovqua")
    assert code == 2 and "Did you mean robovqa" in document["findings"][0]["message"]
    assert ids(score(tmp_path, "--dataset", "av")[1]) == {"USAGE"}


def test_compat_reason1_of_nothing_countable_is_zero_and_an_error_as_is_a_folder_without_json(
    tmp_path,
):
    write(tmp_path / "a" / "v.json", [{"answer": "A"}])
    (tmp_path / "b").mkdir()
    code, document = score(tmp_path / "a", "--compat", "reason1")
    assert document["result"] == {"samples": 0, "correct": 0, "accuracy": 0.0}
    assert (code, ids(document)) == (1, {"EVAL-COMPAT-NOTHING"})
    assert score(tmp_path / "b", "--compat", "reason1")[0] == 2


def test_compat_on_ordinary_results_says_so(tmp_path):
    path = write(tmp_path / "results.json", [row("a")])
    assert score(path, "--compat", "reason1")[0] == 2
    code, document = score(tmp_path, "--compat", "reason1")
    assert (code, ids(document)) == (1, {"EVAL-COMPAT-NOTHING"})
    assert score(tmp_path)[0] == 0
    assert ids(score(tmp_path, "--compat", "reason1", "--compare", path)[1]) == {"USAGE"}


def test_a_reason1_folder_is_judged_anew_from_the_responses(tmp_path):
    items = [item for item in REASON1 if isinstance(item, dict)]
    parts = [{"type": "video", "video": "x"}, {"type": "text", "text": QUESTION}]
    asked = {"video_id": "v1", "prompt": [{"role": "user", "content": parts}]}
    write(tmp_path / "model/letter/robovqa/v1.json", [item | asked for item in items])
    rows, _ = read(tmp_path)
    grading.grade(rows)
    assert [r.outcome for r in rows] == ["right", "wrong", "right", "right", "unparseable", "right"]
    assert {r.question for r in rows} == {QUESTION}
    assert len({r.id for r in rows}) == 6
