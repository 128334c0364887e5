"""Several checkpoints are evaluated one after the other, each with results of its own."""

import json
import shutil

import pytest
from evaluating import write_spec
from run_folders import write_halves
from support import run_here, run_script

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.evaluation import per_checkpoint


def test_adapters_and_models_of_an_output_are_evaluated_each_in_its_way(
    evaluate_spec, checkpoint, tmp_path
):
    evaluate_spec["model"]["base_model_path"] = "the-base"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8}', encoding="utf-8")
    write_halves(adapter)
    specs, found = per_checkpoint.specs(evaluate_spec, [adapter, checkpoint.parents[2]])
    keys = ("enable_lora", "base_model_path")
    assert [tuple(one["model"][key] for key in keys) for one in specs] == [
        (True, "the-base"),
        (False, ""),
    ]
    assert found == [] and len({one["results_dir"] for one in specs}) == 2
    with pytest.raises(Failure, match="EVAL-NO-CHECKPOINT"):
        per_checkpoint.specs(evaluate_spec, [tmp_path / "eval"])
    with pytest.raises(Failure, match="EVAL-CHECKPOINT-TWICE"):
        per_checkpoint.specs(evaluate_spec, [adapter, adapter])
    (adapter / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(Failure, match="CKPT-SHARD-DAMAGED"):
        per_checkpoint.specs(evaluate_spec, [adapter])


def evaluate_all(config, output):
    """The ids of what is found while every checkpoint of an output is evaluated."""
    words = ["evaluate", "--config", config, "--checkpoint", output, "--json"]
    done = run_here("run_with_transformers.py", *words, cwd=config.parent)
    assert done.returncode == 0, done.stderr
    return {finding["id"] for finding in json.loads(done.stdout)["findings"]}


def scored_table(results):
    """The first column of the table that scoring prints, one line per checkpoint."""
    done = run_script("score_predictions.py", results)
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("best: ")[0]
    return [line.split()[0] for line in table.splitlines() if "step_" in line]


def test_several_checkpoints_give_a_table_by_step_and_checkpoint_metrics(
    evaluate_spec, checkpoint, tmp_path
):
    output = checkpoint.parents[2]
    shutil.copytree(checkpoint, checkpoint.with_name("step_9"))
    shutil.copytree(checkpoint, checkpoint.with_name("step_20"))
    (checkpoint.with_name("step_20") / "tokenizer.json").unlink()
    config = write_spec(evaluate_spec, tmp_path / "e.toml")
    assert {"EVAL-CHECKPOINT-SKIPPED", "EVAL-TRAINING-UNKNOWN"} <= evaluate_all(config, output)
    names = ["20260101120000-step_9", "20260101120000-step_10"]
    for name in names:
        record = files.read_json(tmp_path / "results" / name / "evaluation.json")
        assert record["spec_sha256"] == files.sha256(config)
        assert record["checkpoint"].endswith(name.rpartition("-")[2])
    assert scored_table(tmp_path / "results") == names
    models = [found for found in run_outputs.find(output) if found.kind == "model"]
    scored = {model.step: "accuracy" in model.metrics for model in models}
    assert scored == {"step_9": True, "step_10": True, "step_20": False}
