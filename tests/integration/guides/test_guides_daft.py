"""NVIDIA's bank from a DAFT dataset to a quantized model, as its readers walk it. Its image cannot
run here: the plans that would start it are looked at, and the embedded engine on the CPU does what
the same specs say, with llmcompressor itself. NVIDIA's validator of DAFT is in test_daft_oracle.py.
"""

import json
from pathlib import Path

import oracles
import pytest
from walks import SMALL_CLIPS, SMALL_RUN, ran, sets, succeed

from cosmos_reason.base import bundle, files
from cosmos_reason.spec import document

pytestmark = pytest.mark.integration

DAFT = "tao-vl-reason-v1.0"
EACH_SAVE = ["train.ckpt.save_freq_in_epoch=0", "validation.freq=2"]


def write_questions(source, split):
    """Clips, and a table of questions with the answer and what leads to it."""
    rows = []
    for record in files.read_json(split / "annotations.json"):
        question, answer = (turn["value"] for turn in record["conversations"])
        row = {"video": Path(record["video"]).name, "label": answer, "reasoning": "It is seen."}
        rows.append(row | {"question": question.removeprefix("<video>\n")})
    source.mkdir()
    (source / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for clip in (split / "videos").iterdir():
        (source / clip.name).symlink_to(clip)


def carried(folder, action, spec):
    """The script that starts NVIDIA's image."""
    words = ["--spec", spec, "--platform", "docker", "--gpu-ids", 0, "--output", f"{action}-plan"]
    succeed(folder, "launch_job.py", "plan", action, *words)
    return (folder / f"{action}-plan" / "run.sh").read_text()


def answer(folder, record):
    (row,) = files.read_json(Path(record.outputs["results_dir"]) / "predictions.json")
    assert row["error"] is None and row["question"] == "What happens?"
    return row


def test_from_a_daft_dataset_to_a_quantized_model(tmp_path, dataset, tiny_model):
    # tao-daft convert, tao-daft validate
    write_questions(tmp_path / "source", dataset / "train")
    words = ["source", "-o", "data", "--format", DAFT, "--license", "CC-BY-4.0"]
    succeed(tmp_path, "build_dataset.py", *words, "--eval-fraction", 0.25)
    succeed(tmp_path, "check_dataset.py", "data/train", "--eval", "data/eval")
    assert files.read_json(tmp_path / "data" / "train" / "annotations.json")["format"] == DAFT
    # the bank's template, its planner
    words = ["--spec", bundle.template_path("train"), "--engine", "tao", "--model", tiny_model]
    words += ["--train-root", "data/train", "--eval-root", "data/eval", "--gpus-per-node", 1]
    words += ["--set", "custom.train_dataset.response_mode=think", "-o", "tao.toml"]
    succeed(tmp_path, "build_spec.py", "train", *words)
    assert "cosmos-rl" in carried(tmp_path, "train", "tao.toml")
    words = "--spec tao.toml --engine transformers --unset validation.freq_in_epoch".split()
    words += [*sets(SMALL_RUN + EACH_SAVE), *sets(SMALL_CLIPS, "custom.vision.")]
    succeed(tmp_path, "build_spec.py", "train", *words, "-o", "spec.toml")
    trained = ran(tmp_path, "train", "spec.toml")
    made = document.load(trained.folder / "spec.toml")
    assert made["custom"]["train_dataset"]["response_mode"] == "think"
    # cosmos-rl-inference
    clip = next(iter((dataset / "eval" / "videos").iterdir()))
    words = ["--engine", "tao", "--parent-job", trained.folder, "--set", f"media={clip}"]
    words += ["--set", "prompt=What happens?", "-o", "tao-inference.toml"]
    succeed(tmp_path, "build_spec.py", "inference", *words)
    command = carried(tmp_path, "inference", "tao-inference.toml")
    assert f"--media={clip}" in command and "--num_frames=4" in command
    words = ["--spec", "tao-inference.toml", "--engine", "transformers", "-o", "inference.toml"]
    words += ["--set", "max_new_tokens=4", *sets(SMALL_CLIPS, "vision.")]
    succeed(tmp_path, "build_spec.py", "inference", *words)
    before = answer(tmp_path, ran(tmp_path, "inference", "inference.toml"))
    # cosmos-rl-quantize
    words = ["--engine", "tao", "--parent-job", trained.folder, "--train-root", "data/train"]
    words += ["--set", "precision=FP8", "-o", "tao-quantize.toml"]
    succeed(tmp_path, "build_spec.py", "quantize", *words)
    command = carried(tmp_path, "quantize", "tao-quantize.toml")
    assert "--quantization_scheme=FP8" in command and "data/train" in command
    words = ["--spec", "tao-quantize.toml", "--engine", "transformers", "-o", "quantize.toml"]
    words += ["--set", "quantize.num_calibration_samples=6", *sets(SMALL_CLIPS, "vision.")]
    succeed(tmp_path, "build_spec.py", "quantize", *words)
    env = {"PYTHONPATH": str(oracles.llmcompressor())}
    quantized = ran(tmp_path, "quantize", "quantize.toml", env=env)
    # and asked again
    words = ["--spec", "inference.toml", "--parent-job", quantized.folder, "-o", "again.toml"]
    succeed(tmp_path, "build_spec.py", "inference", *words)
    after = answer(tmp_path, ran(tmp_path, "inference", "again.toml", env=env))
    assert after["media"] == before["media"]
