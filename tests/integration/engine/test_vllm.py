"""The endpoint evaluation and the judge against a real vLLM, which serves what the demo trained."""

import json

import oracles
import pytest
from support import run_script
from vllm_server import vllm

from cosmos_reason.base import files
from cosmos_reason.spec import document as spec

pytestmark = pytest.mark.release
FEW = 90  # questions where the number of equal answers is not measured
NAME = "tiny model"  # what the server calls it


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a whole demo: data, and the job that evaluated its trained model."""
    folder = tmp_path_factory.mktemp("vllm") / "demo"
    done = run_script("run_demo.py", "--seed", 0, "--output", folder, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    learned = files.read_json(folder / "summary.json")
    assert min(learned["by_type"].values()) >= 0.9, learned  # one that guesses agrees with nobody
    return folder


@pytest.fixture(scope="module")
def evaluation(demo):
    """The spec that evaluated the trained model, and its rows by id."""
    *_, job = sorted((demo / "jobs").glob("evaluate-*"))
    rows = {row["id"]: row for row in files.read_json(job / "results" / "results.json")}
    return files.read_toml(job / "spec.toml"), rows


def ask(table: dict, url: str, folder, *flags, limit: int = FEW):
    """(exit code, document) of the first questions put to the server, 0 for all."""
    table = json.loads(json.dumps(table))
    spec.set_value(table, "evaluation.limit", limit)
    spec.set_value(table, "results_dir", str(folder))
    folder.mkdir()
    spec.dump(table, folder / "spec.toml")
    words = ("evaluate", "--config", folder / "spec.toml", "--endpoint", url, "--json")
    done = run_script("run_with_transformers.py", *words, *flags, timeout=2400)
    return done.returncode, json.loads(done.stdout)


def errors(document: dict) -> list[dict]:
    return [finding for finding in document["findings"] if finding["severity"] == "error"]


def accuracy(folder, *flags) -> dict:
    done = run_script("score_predictions.py", folder, "--json", *flags, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads(done.stdout)["result"]["runs"]
    return run


def test_a_server_as_it_starts_by_default_takes_no_times_and_the_finding_says_the_flag(
    evaluation, free_port, tmp_path
):
    table, _ = evaluation
    with vllm(table["model"]["model_name"], NAME, free_port, tmp_path / "log") as url:
        code, document = ask(table, url, tmp_path / "video", "--served-model", NAME)
        (refused,) = errors(document)
        assert (code, refused["id"]) == (3, "EVAL-ENDPOINT-VIDEO")
        assert refused["fix"] == "vllm serve MODEL --trust-request-mm-kwargs"
        assert not (tmp_path / "video" / "results.json").exists()
        images = table | {"custom": {"endpoint": {"frames": "images"}}}
        code, document = ask(images, url, tmp_path / "images", "--served-model", NAME)
        assert code == 0
        assert "EVAL-ENDPOINT-IMAGES" in {finding["id"] for finding in document["findings"]}
        assert accuracy(tmp_path / "images")["accuracy"] < 0.9, (
            "as images it is far less often right"
        )


def test_a_server_that_may_take_no_videos_gets_images(evaluation, free_port, tmp_path):
    table, _ = evaluation
    none = '{"video": 0, "image": 16}'
    flags = ("--trust-request-mm-kwargs", "--limit-mm-per-prompt", none)
    with vllm(table["model"]["model_name"], NAME, free_port, tmp_path / "log", *flags) as url:
        code, document = ask(table, url, tmp_path / "auto", "--served-model", NAME, limit=6)
    (warned,) = [found for found in document["findings"] if found["id"] == "EVAL-ENDPOINT-IMAGES"]
    assert code == 0 and "video" in warned["message"]


def test_videos_are_answered_as_the_embedded_engine_does_and_the_judge_is_understood(
    evaluation, free_port, tmp_path
):
    table, rows = evaluation
    model = table["model"]["model_name"]
    with vllm(model, NAME, free_port, tmp_path / "log", "--trust-request-mm-kwargs") as url:
        code, document = ask(table, url, tmp_path / "nameless")
        (refused,) = errors(document)
        assert (code, refused["id"]) == (2, "EVAL-ENDPOINT-MODEL")
        assert refused["fix"] == f"--served-model '{NAME}'"
        code, document = ask(table, url, tmp_path / "video", "--served-model", NAME, limit=0)
        assert code == 0, document
        answered = files.read_json(tmp_path / "video" / "results.json")
        same = sum(row["answer"] == rows[row["id"]]["answer"] for row in answered)
        assert len(answered) == len(rows) == 300
        assert same >= 0.97 * len(rows), f"{same} answers are the embedded engine's"
        assert accuracy(tmp_path / "video")["accuracy"] >= 0.93
        judged_by_the_server(answered, url, NAME, tmp_path / "judged")


def test_likelihood_is_that_of_the_embedded_engine(evaluation, free_port, tmp_path):
    """Of 90 answers of a demo the likeliest was the same 90 times, its share within 0.011."""
    table, _ = evaluation
    spec.set_value(table, "evaluation.ask", "both")
    spec.set_value(table, "evaluation.limit", FEW)
    spec.set_value(table, "results_dir", str(tmp_path / "own"))
    spec.dump(table, tmp_path / "own.toml")
    words = ("evaluate", "--config", tmp_path / "own.toml")
    assert run_script("run_with_transformers.py", *words, timeout=2400).returncode == 0
    own = {row["id"]: row["choice"] for row in files.read_json(tmp_path / "own" / "results.json")}
    model = table["model"]["model_name"]
    with vllm(model, NAME, free_port, tmp_path / "log", "--trust-request-mm-kwargs") as url:
        code, document = ask(table, url, tmp_path / "server", "--served-model", NAME)
    assert code == 0, document
    for row in files.read_json(tmp_path / "server" / "results.json"):
        assert row["choice"] == pytest.approx(own[row["id"]], abs=0.05), row["id"]


# Schemes that vLLM computes on a CPU. FP8 with stored scales of activations, NVFP4 and W8A16 it has
# no kernel for there.
ON_A_CPU = ("FP8_DYNAMIC", "W8A8", "W4A16")


@pytest.mark.parametrize("scheme", ON_A_CPU)
def test_a_quantized_folder_is_served_and_answers_as_the_embedded_engine_says(
    demo, evaluation, free_port, tmp_path, scheme
):
    table, _ = evaluation
    library = {"PYTHONPATH": str(oracles.llmcompressor()), "HF_HUB_OFFLINE": "1"}
    settings = ("samples=64", f"scheme={scheme}", f"evaluation.limit={FEW}", "vision.nframes=8")
    settings += ("vision.resized_height=64", "vision.resized_width=64", "evaluation.max_tokens=8")
    words = ["quantize", "--engine", "transformers", "--model", table["model"]["model_name"]]
    words += ["--train-root", demo / "data" / "train", "--eval-root", demo / "data" / "eval"]
    words += [word for setting in settings for word in ("--set", setting)]
    model = tmp_path / "model"
    words += ["--set", f"results_dir={model}", "-o", tmp_path / "quantize.toml"]
    done = run_script("build_spec.py", *words, env=library)
    assert done.returncode == 0, done.stderr
    words = ("quantize", "--config", tmp_path / "quantize.toml")
    done = run_script("run_with_transformers.py", *words, env=library, cwd=tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = files.read_json(model / "accuracy" / "quantized" / "results.json")
    own = {row["id"]: row["answer"] for row in rows}
    with vllm(model, NAME, free_port, tmp_path / "log", "--trust-request-mm-kwargs") as url:
        code, document = ask(table, url, tmp_path / "video", "--served-model", NAME)
    assert code == 0, document
    answered = files.read_json(tmp_path / "video" / "results.json")
    same = sum(row["answer"] == own[row["id"]] for row in answered)
    assert len(answered) == len(own) == FEW
    assert same >= 0.95 * FEW, f"{same} answers are the embedded engine's"


def judged_by_the_server(rows, url, model, folder) -> None:
    """The tiny model is no judge, but it is asked and replies,
    and only about what no rule reads."""
    vague = [
        row | {"response": "Hard to say, perhaps.", "answer": None, "correct": False}
        for row in rows[:4]
    ]
    folder.mkdir()
    files.write_json(folder / "results.json", vague + rows[4:])
    told = accuracy(folder, "--judge", url, "--judge-model", model)["judge"]
    assert (told["asked"], told["failed"]) == (4, 0)
    assert told["right"] + told["wrong"] + told["undecided"] == 4
    stored = files.read_json(folder / "results.json")
    assert [row["id"] for row in stored if row.get("judge")] == [row["id"] for row in vague]
    assert len((folder / "judge.jsonl").read_text().splitlines()) == 4
