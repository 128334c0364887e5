"""The evaluate action: every question exactly one row, whatever breaks, stops, or shares the work."""

import json
import shutil

import jsonschema
import pytest
import tomli_w
import torch
from support import run_script

from cosmos_reason import bundle, checkpoints, spec, storage
from cosmos_reason.findings import Failure
from cosmos_reason.transformers_engine import evaluate
from cosmos_reason.transformers_engine.evaluate import Shard
from cosmos_reason.transformers_engine.model import Responder


def rows_of(folder):
    rows = storage.read_json(folder / "results.json")
    jsonschema.validate(rows, bundle.schema("results"))
    jsonschema.validate(storage.read_json(folder / "evaluation.json"), bundle.schema("evaluation"))
    return rows


@pytest.fixture
def asked(monkeypatch):
    """Sizes of the batches that reached the model."""
    sizes, generate = [], Responder.generate

    def counted(self, encoded):
        sizes.append(len(encoded))
        return generate(self, encoded)

    monkeypatch.setattr(Responder, "generate", counted)
    return sizes


def test_a_row_names_the_key_of_the_spec(evaluate_spec, tmp_path):
    evaluate_spec["vision"] = {"nframes": 4, "max_pixels": 4096}
    evaluate.run(evaluate_spec, None)
    errors = {row["error"] for row in rows_of(tmp_path / "results")}
    assert all(" vision.max_pixels:" in error for error in errors), errors


def test_every_question_has_one_row_in_order_and_a_broken_clip_shifts_nothing(evaluate_spec, tmp_path):
    evaluate.run(evaluate_spec, None)
    whole = rows_of(tmp_path / "results")
    clip = tmp_path / "eval" / whole[4]["media"]
    good = clip.read_bytes()
    clip.write_bytes(good[:300])
    evaluate_spec["results_dir"] = str(tmp_path / "again")
    result = evaluate.run(evaluate_spec, None)
    rows = rows_of(tmp_path / "again")
    assert [row["id"] for row in rows] == [row["id"] for row in whole]
    for row, before in zip(rows, whole, strict=True):
        if row["media"] == whole[4]["media"]:
            assert row["response"] is None and row["correct"] is None and clip.name in row["error"]
        else:
            assert row["response"] == before["response"] and row["error"] is None
    assert storage.read_json(tmp_path / "again" / "evaluation.json")["questions"] == len(rows) == 12
    assert result["failed"] == 3


@pytest.mark.parametrize("ends", [False, True])
def test_an_answer_is_cut_when_the_tokens_run_out_before_it_ends(evaluate_spec, tmp_path, ends):
    """Counted over batches, and also when finished answers are taken over."""

    class Ending(Responder):
        def load(self):
            super().load()
            old, end = self.network.lm_head, self.tokenizer.eos_token_id
            head = torch.nn.Linear(old.in_features, old.out_features)
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)
            head.bias.data[end if ends else end - 1] = 1.0  # the likeliest token is always, or never, the end
            self.network.lm_head = head

    evaluate_spec["evaluation"]["skip_saved"] = True
    cut = 0 if ends else 12
    for _ in range(2):
        assert evaluate.run(evaluate_spec, None, Ending(evaluate_spec))["cut_short"] == cut
        assert storage.read_json(tmp_path / "results" / "evaluation.json")["cut_short"] == cut
        assert sum(row["is_cut"] for row in rows_of(tmp_path / "results")) == cut


def test_questions_that_failed_are_asked_again_and_no_others(evaluate_spec, tmp_path, asked):
    clip = next((tmp_path / "eval" / "videos").iterdir())
    good = clip.read_bytes()
    clip.write_bytes(b"no video")
    assert evaluate.run(evaluate_spec, None)["failed"] == 3
    before = sum(asked)
    clip.write_bytes(good)
    assert evaluate.run(evaluate_spec, None)["failed"] == 0
    assert (before, sum(asked)) == (9, 12)
    assert not list((tmp_path / "results").glob(".rows*"))


def test_a_killed_evaluation_continues_and_other_settings_start_anew(evaluate_spec, tmp_path, asked):
    class Killed(Responder):
        def answer(self, questions):
            if len(asked) == 1:
                raise KeyboardInterrupt
            return super().answer(questions)

    with pytest.raises(KeyboardInterrupt):
        evaluate.run(evaluate_spec, None, Killed(evaluate_spec))
    assert not (tmp_path / "results" / "results.json").exists()
    partial = next((tmp_path / "results").glob(".rows*"))
    partial.write_bytes(partial.read_bytes()[:-9] + bytes(13))  # the kill came in the middle of a line
    evaluate_spec["evaluation"]["batch_size"] = 4  # what a lack of memory asks for is no other evaluation
    evaluate.run(evaluate_spec, None)
    assert asked == [5, 4, 4]
    assert len(rows_of(tmp_path / "results")) == 12
    evaluate_spec["generation"]["max_tokens"] = 3
    evaluate.run(evaluate_spec, None)
    assert sum(asked[3:]) == 12


def test_skip_saved_keeps_a_finished_run_and_only_of_the_same_spec(evaluate_spec, asked):
    for expected in (12, 12, 24):
        evaluate.run(evaluate_spec, None)
        assert sum(asked) == expected
        evaluate_spec["evaluation"]["skip_saved"] = sum(asked) == 12 and not evaluate_spec["evaluation"]["skip_saved"]


def test_shards_answer_their_part_and_the_last_one_merges_in_input_order(evaluate_spec, tmp_path):
    evaluate.run(evaluate_spec, None)
    whole = rows_of(tmp_path / "results")
    shutil.rmtree(tmp_path / "results")
    ends = [evaluate.run(evaluate_spec, None, shard=Shard(number, 5)) for number in (3, 0, 4, 1)]
    assert {end["results"] for end in ends} == {None}
    assert not (tmp_path / "results" / "results.json").exists()
    evaluate.run(evaluate_spec, None, shard=Shard(2, 5))
    assert rows_of(tmp_path / "results") == whole
    names = {path.name for path in (tmp_path / "results").glob("*.jsonl")}
    assert names == {"metrics.jsonl", *(f"metrics-{number}-5.jsonl" for number in range(2, 6))}  # never two writers


def test_a_shard_whose_rows_were_merged_meanwhile_ends_well(evaluate_spec, tmp_path):
    """The other shard finishes between this one's last answer and its look at what there is."""

    class Slow(Responder):
        def answers(self, questions):
            yield from super().answers(questions)
            evaluate.run(evaluate_spec, None, shard=Shard(1, 2))

    end = evaluate.run(evaluate_spec, None, Slow(evaluate_spec), Shard(0, 2))
    assert (end["rows"], end["failed"]) == (6, 0)
    assert end["results"] and len(rows_of(tmp_path / "results")) == 12


def test_another_number_of_shards_continues_a_stopped_evaluation(evaluate_spec, tmp_path, asked):
    evaluate.run(evaluate_spec, None, shard=Shard(0, 3))
    evaluate.run(evaluate_spec, None)
    assert sum(asked) == 12
    assert len({row["id"] for row in rows_of(tmp_path / "results")}) == 12


def test_two_questions_with_one_id_are_refused(evaluate_spec, tmp_path):
    path = tmp_path / "eval" / "annotations.json"
    records = storage.read_json(path)
    records[3]["id"] = records[0]["id"]
    storage.write_json(path, records)
    with pytest.raises(Failure, match="EVAL-ID-DUPLICATE"):
        evaluate.run(evaluate_spec, None)


def test_limit_takes_the_first_questions_and_tags_come_along(evaluate_spec, tmp_path):
    path = tmp_path / "eval" / "annotations.json"
    records = storage.read_json(path)
    storage.write_json(path, [record | {"tags": ["night", 3]} for record in records])
    evaluate_spec["evaluation"]["limit"] = 2
    evaluate.run(evaluate_spec, None)
    rows = rows_of(tmp_path / "results")
    assert [row["id"] for row in rows] == [record["id"] for record in records[:2]]
    assert [row["tags"] for row in rows] == [["night"], ["night"]]


def test_the_directionality_task_reads_every_answer_as_a_direction(evaluate_spec, tmp_path):
    evaluate_spec["task"]["type"] = "its_directionality"
    evaluate.run(evaluate_spec, None)
    assert {row["type"] for row in rows_of(tmp_path / "results")} == {"direction"}


# -- against the training spec -----------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(evaluate_spec, tiny_model, tmp_path):
    """A checkpoint in the layout of a train job, with the training spec as the engine saves it."""
    run = tmp_path / "out" / "20260101120000"
    folder = shutil.copytree(tiny_model, run / "safetensors" / "step_10")
    trained = spec.template("train")
    trained["custom"]["vision"] = dict(evaluate_spec["vision"])
    policy = run / "checkpoints" / "step_10" / "policy"
    policy.mkdir(parents=True)
    storage.write_json(policy / "cosmos_config", trained)
    evaluate_spec["model"]["model_name"] = str(folder)
    return folder


def trained_with(checkpoint, key, value):
    path = checkpoint.parents[1] / "checkpoints" / checkpoint.name / "policy" / "cosmos_config"
    table = storage.read_json(path)
    spec.set_value(table, key, value)
    storage.write_json(path, table)


def test_an_evaluation_like_the_training_has_no_warning(evaluate_spec, checkpoint):
    assert evaluate.mismatches(evaluate_spec) == []


def test_other_frames_are_a_warning_with_the_tokens_of_both_and_a_fix_that_works(evaluate_spec, checkpoint, tmp_path):
    evaluate_spec["vision"] = {"fps": 4.0}
    (warning,) = evaluate.mismatches(evaluate_spec)
    assert warning.id == "EVAL-MISMATCH-VISION"
    assert warning.data["tokens"]["training"] == 2 * 2 * 2
    assert warning.data["tokens"]["evaluation"] > 8
    assert "8 vision tokens" in warning.message and "nframes=4" in warning.message
    folder = tmp_path / "eval"
    flags = ["--eval-root", folder, "--model", checkpoint, "-o", tmp_path / "e.toml", "--set", "vision.fps=4"]
    made = run_script("build_spec.py", "evaluate", *flags, "--unset", "vision.nframes")
    assert made.returncode == 0, made.stderr
    mended = run_script("build_spec.py", "evaluate", "--spec", tmp_path / "e.toml", *warning.fix.split(), "-o",
                        tmp_path / "mended.toml", "--eval-root", folder, "--model", checkpoint)  # fmt: skip
    assert mended.returncode == 0, mended.stderr
    assert evaluate.mismatches(spec.with_defaults("evaluate", spec.load(tmp_path / "mended.toml"))) == []


def test_the_best_link_is_compared_as_the_checkpoint_it_means(evaluate_spec, checkpoint):
    evaluate_spec["vision"] = {"nframes": 2}
    link = checkpoint.parents[2] / "best"
    link.mkdir()
    (link / "safetensors").symlink_to(checkpoint)
    evaluate_spec["model"]["model_name"] = str(link / "safetensors")
    assert [finding.id for finding in evaluate.mismatches(evaluate_spec)] == ["EVAL-MISMATCH-VISION"]
    assert evaluate.run_name(link / "safetensors") == "20260101120000-step_10"


def test_another_system_prompt_is_a_warning(evaluate_spec, checkpoint):
    trained_with(checkpoint, "train.train_policy.system_prompt", "Look closely.")
    (warning,) = evaluate.mismatches(evaluate_spec)
    assert (warning.id, warning.data) == ("EVAL-MISMATCH-PROMPT", {"training": "Look closely.", "evaluation": ""})


def test_without_a_training_spec_it_says_that_nothing_was_compared(evaluate_spec, checkpoint):
    shutil.rmtree(checkpoint.parents[1] / "checkpoints")
    assert [finding.id for finding in evaluate.mismatches(evaluate_spec)] == ["EVAL-TRAINING-UNKNOWN"]
    path = checkpoint.parents[2] / "config.toml"
    path.write_text("[custom.vision]\nnframes = 8\nresized_height = 64\nresized_width = 64\n", encoding="utf-8")
    assert [finding.id for finding in evaluate.mismatches(evaluate_spec)] == ["EVAL-MISMATCH-VISION"]
    path.write_text("[custom.vision]\nnframe = 8\n", encoding="utf-8")
    assert [finding.id for finding in evaluate.mismatches(evaluate_spec)] == ["EVAL-TRAINING-UNKNOWN"]


def test_adapters_and_models_of_an_output_are_evaluated_each_in_its_way(evaluate_spec, checkpoint, tmp_path):
    evaluate_spec["model"]["base_model_path"] = "the-base"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    specs, found = evaluate.of_checkpoints(evaluate_spec, [adapter, checkpoint.parents[2]])
    keys = ("enable_lora", "base_model_path")
    assert [tuple(one["model"][key] for key in keys) for one in specs] == [(True, "the-base"), (False, "")]
    assert found == [] and len({one["results_dir"] for one in specs}) == 2
    with pytest.raises(Failure, match="EVAL-NO-CHECKPOINT"):
        evaluate.of_checkpoints(evaluate_spec, [tmp_path / "eval"])
    with pytest.raises(Failure, match="EVAL-CHECKPOINT-TWICE"):
        evaluate.of_checkpoints(evaluate_spec, [adapter, adapter])


# -- the command -------------------------------------------------------------------------------------------------------


def write_spec(evaluate_spec, path, **changes):
    table = {key: evaluate_spec[key] for key in ("dataset", "generation", "results_dir")}
    table["vision"] = {key: value for key, value in evaluate_spec["vision"].items() if value is not None}
    table["model"] = {"model_name": evaluate_spec["model"]["model_name"]}
    table["custom"] = {"transformers_engine": {"device": "cpu"}}
    path.write_text(tomli_w.dumps(table | changes), encoding="utf-8")
    return path


def test_several_checkpoints_give_a_table_by_step_and_checkpoint_metrics(evaluate_spec, checkpoint, tmp_path):
    output = checkpoint.parents[2]
    shutil.copytree(checkpoint, checkpoint.with_name("step_9"))
    shutil.copytree(checkpoint, checkpoint.with_name("step_20"))
    (checkpoint.with_name("step_20") / "tokenizer.json").unlink()
    config = write_spec(evaluate_spec, tmp_path / "e.toml")
    done = run_script("run_with_transformers.py", "evaluate", "--config", config, "--checkpoint", output, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {"EVAL-CHECKPOINT-SKIPPED", "EVAL-TRAINING-UNKNOWN"} <= {each["id"] for each in document["findings"]}
    for name in ("20260101120000-step_9", "20260101120000-step_10"):
        record = storage.read_json(tmp_path / "results" / name / "evaluation.json")
        assert record["spec_sha256"] == storage.sha256(config)
        assert record["checkpoint"].endswith(name.rpartition("-")[2])
    scored = run_script("score_predictions.py", tmp_path / "results")
    assert scored.returncode == 0, scored.stderr
    table = [line.split()[0] for line in scored.stdout.splitlines() if "step_" in line]
    assert table == ["20260101120000-step_9", "20260101120000-step_10"]
    assert {c.step: "accuracy" in c.metrics for c in checkpoints.find(output) if c.kind == "model"} == {
        "step_9": True, "step_10": True, "step_20": False,
    }  # fmt: skip


def test_num_gpus_starts_a_process_each_and_refuses_gpus_that_are_not_there(evaluate_spec, tmp_path):
    config = write_spec(evaluate_spec, tmp_path / "e.toml", num_gpus=2)
    flags = ["evaluate", "--config", config, "--json"]
    done = run_script("run_with_transformers.py", *flags, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["rows"] == len(rows_of(tmp_path / "results")) == 12
    few = run_script("run_with_transformers.py", *flags, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert (few.returncode, json.loads(few.stdout)["findings"][0]["id"]) == (2, "EVAL-GPUS")


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/2/3"])
def test_a_shard_is_a_part_of_a_whole(tmp_path, part):
    done = run_script("run_with_transformers.py", "evaluate", "--config", "none.toml", "--shard", part, "--json")
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["id"]) == (2, "USAGE")
