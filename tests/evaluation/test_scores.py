"""checkpoint_metrics.json: which score of a checkpoint is kept, what is said of it, and what
compares."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from scoring import NAME, ids, paste, recorded, row, score, warned_of, write
from support import ROOT, run_script

from cosmos_reason.base import bundle
from cosmos_reason.checkpoints import run_outputs, selection


def checkpoint(output_dir: Path, name: str, evaluated: Path) -> Path:
    folder = output_dir / "20260101120000" / "safetensors" / name
    folder.mkdir(parents=True)
    record = {
        "schema_version": 1,
        "model": str(folder),
        "checkpoint": str(folder),
        "base_model": None,
        "questions": 1,
        "prompt": {"system": ""},
        "sampling": {},
        "vision": {},
    }
    jsonschema.validate(record, bundle.schema("evaluation"))
    write(evaluated / "evaluation.json", record)
    write(evaluated / "results.json", [row("a"), row("b", gt="B")])
    return folder


def test_evaluated_checkpoints_are_noted_in_their_training_output(tmp_path):
    output_dir = tmp_path / "out"
    for name in ("step_10", "step_20"):
        checkpoint(output_dir, name, tmp_path / name)
    code, document = score(tmp_path / "step_20", tmp_path / "step_10")
    assert code == 0
    table = run_script(
        "score_predictions.py", tmp_path / "step_20", tmp_path / "step_10"
    ).stdout.splitlines()
    assert [line.split()[0] for line in table[:3]] == ["rows", "step_10", "step_20"]
    assert len(document["result"]["runs"]) == 2
    noted = json.loads((output_dir / "checkpoint_metrics.json").read_text())
    jsonschema.validate(noted, bundle.schema("checkpoint_metrics"))
    assert set(noted) == {f"20260101120000/safetensors/step_{n}" for n in (10, 20)}
    assert noted["20260101120000/safetensors/step_10"]["accuracy"] == 0.5


def test_evaluations_that_end_together_do_not_lose_each_others_metrics(tmp_path):
    names = [f"step_{n}" for n in range(4)]
    for name in names:
        checkpoint(tmp_path / "out", name, tmp_path / name)
    script = str(ROOT / "scripts" / "score_predictions.py")
    running = [
        subprocess.Popen([sys.executable, script, str(tmp_path / name)], stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [process.wait(60) for process in running] == [0] * len(names)
    assert len(json.loads((tmp_path / "out/checkpoint_metrics.json").read_text())) == len(names)


def test_a_model_that_is_no_checkpoint_leaves_nothing_elsewhere(tmp_path):
    (tmp_path / "model").mkdir()
    write(tmp_path / "r/evaluation.json", {"model": "x", "checkpoint": str(tmp_path / "model")})
    write(tmp_path / "r/results.json", [row("a")])
    assert score(tmp_path / "r")[0] == 0
    assert {path.name for path in tmp_path.rglob("*.json")} == {
        "evaluation.json",
        "results.json",
        "metrics.json",
    }


def evaluated(folder: Path, right: int, rows: int, model: Path, **settings) -> Path:
    """Results of `rows` questions, the first `right` of them answered right, by a checkpoint."""
    record = {
        "schema_version": 1,
        "model": str(model),
        "checkpoint": str(model),
        "base_model": None,
        "questions": rows,
        "prompt": {"system": ""},
        "sampling": {"max_tokens": 64},
        "vision": {"nframes": 4},
    }
    write(folder / "evaluation.json", record | settings)
    write(
        folder / "results.json",
        [row(f"q{n}", response="A" if n < right else "B") for n in range(rows)],
    )
    return folder


@pytest.fixture
def step_10(tmp_path) -> Path:
    folder = tmp_path / "out" / NAME
    folder.mkdir(parents=True)
    return folder


def test_a_score_of_fewer_rows_takes_no_place_unless_asked_to(step_10, tmp_path):
    score(evaluated(tmp_path / "whole", 3, 4, step_10))
    code, document = score(evaluated(tmp_path / "try", 2, 2, step_10))
    (kept,) = [finding for finding in document["findings"] if finding["severity"] == "warning"]
    assert (code, kept["id"], recorded(step_10)) == (0, "EVAL-SCORE-KEPT", (0.75, 4))
    assert "1.0 of 2 rows" in kept["message"] and "0.75 of 4 rows" in kept["message"]
    told = document["result"]["runs"][0]["recorded"]
    assert told["recorded"] is False and told["earlier"]["accuracy"] == 0.75
    script, *args = shlex.split(kept["fix"])
    assert run_script(Path(script).name, *args, cwd=tmp_path).returncode == 0
    assert recorded(step_10) == (1.0, 2)
    code, document = score(tmp_path / "whole")  # from the try to the whole
    assert (ids(document), recorded(step_10)) == ({"EVAL-SCORE-RECORDED"}, (0.75, 4))


def test_a_score_of_other_settings_is_replaced_with_a_warning_that_leads_back(step_10, tmp_path):
    assert ids(score(evaluated(tmp_path / "first", 3, 4, step_10))[1]) == {"EVAL-SCORE-RECORDED"}
    settings = {"sampling": {"max_tokens": 8}, "vision": {"nframes": 4, "fps": 2}}
    other = evaluated(tmp_path / "other", 1, 4, step_10, **settings)
    _, document = score(other)
    (warned,) = [finding for finding in document["findings"] if finding["severity"] == "warning"]
    assert (warned["id"], recorded(step_10)) == ("EVAL-SCORE-REPLACED", (0.25, 4))
    assert (
        "sampling.max_tokens 64 (not 8)" in warned["message"]
        and "vision.fps unset (not 2)" in warned["message"]
    )
    script, *args = shlex.split(warned["fix"])
    back = run_script(Path(script).name, *args, cwd=tmp_path)
    assert "warning: EVAL-SCORE-REPLACED" in back.stderr and recorded(step_10) == (0.75, 4)
    tolerant = score(tmp_path / "first", "--tolerance", "0.1")[1]  # the same numbers
    assert ids(tolerant) == {"EVAL-SCORE-RECORDED"}
    evaluated(tmp_path / "first", 2, 4, step_10)  # answered anew, the same settings
    assert ids(score(tmp_path / "first", "--tolerance", "0.1")[1]) == {"EVAL-SCORE-RECORDED"}


def test_a_pasted_fix_reads_the_answers_as_the_score_it_names_did(step_10, tmp_path):
    reading = ("--type", "number", "--tolerance", "0.1")
    for name, rows in (("whole", 4), ("try", 2)):
        folder = evaluated(tmp_path / name, rows, rows, step_10)
        answers = [
            row(f"q{n}", question="How many metres?", gt="10", response="10.4") for n in range(rows)
        ]
        write(folder / "results.json", answers)
    score(tmp_path / "whole", *reading)
    back = warned_of(score(tmp_path / "whole")[1], "EVAL-SCORE-REPLACED")
    assert "accuracy 1.0 of 4 rows" in back["message"] and recorded(step_10) == (0.0, 4)
    paste(back["fix"], tmp_path)
    assert recorded(step_10) == (1.0, 4)
    kept = warned_of(score(tmp_path / "try", *reading)[1], "EVAL-SCORE-KEPT")
    assert "did not record accuracy 1.0 of 2 rows" in kept["message"]
    paste(kept["fix"], tmp_path)
    assert recorded(step_10) == (1.0, 2)
    score(tmp_path / "whole")
    assert "--type" not in warned_of(score(tmp_path / "try")[1], "EVAL-SCORE-KEPT")["fix"]


def test_a_larger_set_of_other_annotations_is_no_whole_of_a_try(step_10, tmp_path):
    folder = "/data/of/a/project/with/a/rather/long/name"
    score(evaluated(tmp_path / "try", 2, 2, step_10, annotations=f"{folder}/eval.json"))
    whole = evaluated(tmp_path / "whole", 3, 4, step_10, annotations=f"{folder}/eval.json")
    assert ids(score(whole)[1]) == {"EVAL-SCORE-RECORDED"}
    other = evaluated(tmp_path / "other", 2, 8, step_10, annotations=f"{folder}/train.json")
    replaced = warned_of(score(other)[1], "EVAL-SCORE-REPLACED")
    message = replaced["message"]
    assert "name/eval.json' (not " in message and "name/train.json')" in message
    paste(replaced["fix"], tmp_path)
    assert recorded(step_10) == (0.75, 4)


def test_rows_that_failed_do_not_outweigh_answers(step_10, tmp_path):
    results = evaluated(tmp_path / "a", 3, 4, step_10) / "results.json"
    score(results)
    failed = [row(f"q{n}", response=None, error="server gone") for n in range(4)]
    write(results, failed)
    # Without an answer there is no score, also when it is asked for.
    code, document = score(results, "--record")
    assert (code, recorded(step_10)) == (1, (0.75, 4)) and "EVAL-ALL-FAILED" in ids(document)
    write(results, [*failed[:3], row("q3", response="B")])
    kept = warned_of(score(results)[1], "EVAL-SCORE-KEPT")
    assert "accuracy 0.0 of 4 rows, of which 3 failed" in kept["message"]
    assert recorded(step_10) == (0.75, 4)
    paste(kept["fix"], tmp_path)
    assert recorded(step_10) == (0.0, 4)
    score(evaluated(tmp_path / "try", 1, 2, step_10))  # fewer rows, but answered
    assert recorded(step_10) == (0.5, 2)


def test_other_questions_and_scores_of_earlier_versions_are_other_evaluations(step_10, tmp_path):
    table = step_10.parents[2] / "checkpoint_metrics.json"
    write(table, {NAME: {"accuracy": 0.75, "rows": 4}})
    results = evaluated(tmp_path / "first", 2, 4, step_10)
    assert ids(score(results)[1]) == {"EVAL-SCORE-REPLACED"}
    write(results / "results.json", [row(f"q{n}", question=f"Is it {n}?") for n in range(4)])
    _, document = score(results)
    assert "other questions" in document["findings"][0]["message"]
    write(table, {NAME: [1]})
    assert (score(results)[0], ids(score(results)[1])) == (2, {"CKPT-METRICS-BAD"})


def test_checkpoints_measured_otherwise_are_not_compared_in_silence(step_10, tmp_path):
    step_20 = step_10.with_name("step_20")
    step_20.mkdir()
    score(evaluated(tmp_path / "a", 3, 4, step_10))
    score(evaluated(tmp_path / "b", 1, 4, step_20))
    table = run_outputs.find(tmp_path / "out")
    assert selection.unequal_scores(tmp_path, table[0], table) == []
    score(evaluated(tmp_path / "b", 1, 4, step_20, sampling={"max_tokens": 8}))
    table = run_outputs.find(tmp_path / "out")
    (warned,) = selection.unequal_scores(tmp_path, table[0], table)
    assert warned.id == "CKPT-UNEQUAL-SCORES" and warned.severity == "warning"
    assert f"{table[1].name} had sampling.max_tokens 8 (not 64)" in warned.message
