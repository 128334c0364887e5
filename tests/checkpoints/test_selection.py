"""Choosing a checkpoint: by metric, validation loss, best link or name; and the command for it."""

import json
import os
import shlex
import shutil
import struct
from pathlib import Path

import pytest
from run_folders import RUN, add_adapter, add_step, halves_of, said, write_halves
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import (
    best_link,
    checkpoint_metrics,
    run_outputs,
    safetensors_files,
    selection,
)
from cosmos_reason.spec import document as spec

LOG = (
    "[cosmos] 2026-01-01 12:00:00,000 - cosmos - INFO - "
    "[SFT] Validation loss: {} for train step {}/20, epoch 1\n"
)


def select(output, by, log=None):
    return selection.Training(output, log=log).select(by)


@pytest.fixture
def job(output, tmp_path):
    """The folder of the train job whose output lies elsewhere."""
    folder = tmp_path / "jobs" / "train-20260101-120000-0a1b2c"
    folder.mkdir(parents=True)
    record(folder, output)
    return folder


def record(job, output, **facts):
    (job / "job.json").write_text(json.dumps({"outputs": {"output_dir": str(output)}} | facts))


def write_scores(output, **scores):
    """checkpoint_metrics.json: the row of each step."""
    rows = {f"{RUN}/safetensors/{step}": row for step, row in scores.items()}
    (output / checkpoint_metrics.FILE).write_text(json.dumps(rows))


def write_losses(folder, *rows):
    """metrics.jsonl of (step, validation loss) or of whole lines."""
    lines = []
    for row in rows:
        lines.append(row if isinstance(row, dict) else {"step": row[0], "val/avg_loss": row[1]})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize(
    ("halves", "finding"),
    [
        ({"parts": "A"}, "CKPT-ADAPTER-PAIR"),
        ({"dtype": "F64"}, "CKPT-ADAPTER-UNSUPPORTED"),
        ({"number": b"\xff" * 4}, "CKPT-NOT-FINITE"),
    ],
)
def test_adapters_that_would_not_merge_are_not_chosen(tmp_path, model, halves, finding):
    write_halves(add_adapter(tmp_path / RUN, "step_1", model), **halves)
    for flags in ([], ["--by", "step_1"]):
        code, document = said(tmp_path, *flags)
        assert code == 1 and finding in [f["id"] for f in document["findings"]]


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda folder: (folder / "config.json").unlink(), "FILE-MISSING"),
        (lambda folder: (folder / "config.json").write_text("[]"), "CKPT-FILE-BAD"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "CKPT-FILE-MISSING"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "CKPT-FILE-MISSING"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "CKPT-SHARD-DAMAGED"),
        (lambda folder: os.truncate(next(folder.glob("*.safetensors")), 9), "CKPT-SHARD-DAMAGED"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "CKPT-WEIGHTS-TWICE"),
        (
            lambda folder: [
                os.rename(next(folder.glob("*.safetensors")), folder / "consolidated.safetensors"),
                (folder / safetensors_files.INDEX_NAME).unlink(),
            ],
            "CKPT-INDEX-MISSING",
        ),
        (
            lambda folder: os.rename(folder, folder.with_name("step_10.incomplete-ab12")),
            "CKPT-INCOMPLETE",
        ),
    ],
)
def test_damaged_models_are_listed_and_never_chosen(output, damage, finding):
    damage(output / RUN / "safetensors" / "step_10")
    damaged = next(c for c in run_outputs.find(output) if not c.complete)
    assert damaged.step.startswith("step_10") and {f.id for f in damaged.findings} == {finding}
    with pytest.raises(Failure):
        select(output, damaged.step)


def test_choosing_by_metric(output):
    numbers = {"step_9": (0.5, 2.0), "step_10": (0.9, 1.0), "step_20": (0.9, 0.5)}
    rows = {}
    for step, (accuracy, loss) in numbers.items():
        rows[step] = {"accuracy": accuracy, "val/loss": loss, "rows": 9, "x": [1]}
    write_scores(output, **rows)
    assert select(output, "accuracy")[0].step == "step_10"
    assert select(output, "val/loss")[0].step == "step_20"
    with pytest.raises(Failure, match="got 'rows', expected a metric"):
        select(output, "rows")
    assert select(output / RUN, "accuracy")[0].step == "step_10", (
        "one run, scored in the folder above"
    )
    listed = run_script("select_checkpoint.py", output).stderr.splitlines()[-1]
    assert listed.endswith(f"select_checkpoint.py {output} --by accuracy")
    (output / RUN / "safetensors" / "step_10" / "config.json").unlink()
    chosen, (scores, missing) = select(output, "accuracy")
    assert chosen.step == "step_20" and scores.message.endswith(": step_20 0.9, step_9 0.5")
    assert missing.id == "CKPT-NOT-SCORED"
    with pytest.raises(Failure, match="Did you mean accuracy"):
        select(output, "acuracy")


def test_choosing_by_validation_loss(output, model):
    write_losses(output / RUN, (9, 0.7), (10, 0.3), (20, 0.0), (11, 0.1))
    with open(output / RUN / "metrics.jsonl", "a") as lines:
        lines.write('\n{"step": 2')  # being written
    chosen, findings = select(output, "val_loss")
    assert chosen.step == "step_10" and str(output / RUN / "metrics.jsonl") in findings[0].message
    expected = ["CKPT-VAL-LOSS-PROXY", "CKPT-NOT-SCORED", "CKPT-LOWEST-NOT-SAVED"]
    assert [f.id for f in findings] == expected
    assert (
        "1 of 3 have no validation loss" in findings[1].message and "step 11" in findings[2].message
    )
    shutil.copytree(output / RUN / "safetensors" / "step_10", output / RUN / "merged" / "step_10")
    add_step(output / RUN, "final", model)
    with open(output / RUN / "metrics.jsonl", "a") as lines:
        lines.write('\n{"val/avg_loss": 0.01}\n{"step": [1], "val/avg_loss": 0.01}')
        lines.write('\n{"step": 9, "val/avg_loss": ' + "9" * 400 + "}")
    chosen, findings = select(output, "val_loss")
    assert chosen.name == f"{RUN}/safetensors/step_10"
    assert f"{RUN}/merged/step_10" in next(f.message for f in findings if f.id == "CKPT-SAME-STEP")
    add_step(output / RUN, "epoch_2", model)  # its trainer state says step 20
    write_losses(output / RUN, (20, 0.1))
    shutil.rmtree(output / RUN / "safetensors" / "step_20")
    assert select(output, "val_loss")[0].step == "epoch_2"


def tell_losses(run, how, losses):
    """Say the validation losses of steps in metrics.jsonl, or in the log of cosmos-rl."""
    if how == "metrics":
        write_losses(run, *losses.items())
        return
    lines = []
    for step, loss in losses.items():
        saved = f"checkpoint saved successfully at /o/{RUN}/checkpoints/step_{step}/policy"
        lines.append(LOG.format(loss, step) + f"Step: {step}, {saved}\n")
    (run / "policy_0.log").write_text("".join(lines))


def damage(run, *steps):
    for step in steps:
        os.truncate(next((run / "safetensors" / step).glob("*.safetensors")), 9)


@pytest.mark.parametrize("how", ["metrics", "log"])
@pytest.mark.parametrize(
    ("by", "expected"), [("val_loss", "CKPT-LOWEST-DAMAGED"), ("best", "CKPT-BEST-DAMAGED")]
)
def test_the_next_by_loss_that_is_whole_is_proposed(output, model, how, by, expected):
    """Never one whose loss nobody knows, and never the damaged one itself."""
    add_step(output / RUN, "step_5", model)
    add_step(output / RUN, "step_30", model)
    tell_losses(output / RUN, how, {9: 0.7, 10: 0.3, 20: 0.4, 5: 0.35})
    best_link.write(output / RUN, "step_10", 0.3)
    damage(output / RUN, "step_10", "step_5")
    code, document = said(output, "--by", by)
    first, *wrong = document["findings"]
    assert (code, first["id"]) == (1, expected)
    assert first["fix"] == f"--by {RUN}/safetensors/step_20"
    assert {finding["id"] for finding in wrong} == {"CKPT-SHARD-DAMAGED"}
    code, document = said(output, *shlex.split(first["fix"]))
    assert code == 0 and document["result"]["selected"]["name"].endswith("step_20")
    fixes = {finding["id"]: finding["fix"] for finding in said(output)[1]["findings"]}
    assert fixes["CKPT-BEST-DAMAGED"] == first["fix"]


def test_no_other_is_proposed_where_no_whole_one_has_a_loss(output):
    tell_losses(output / RUN, "metrics", {9: 0.7, 10: 0.3})
    damage(output / RUN, "step_9", "step_10")
    first = said(output, "--by", "val_loss")[1]["findings"][0]
    assert (first["id"], first["fix"]) == ("CKPT-LOWEST-DAMAGED", "")


def test_a_lowest_loss_that_was_saved_is_no_warning(output):
    tell_losses(output / RUN, "metrics", {9: 0.3, 10: 0.7, 20: 0.8})
    chosen, found = select(output, "val_loss")
    assert chosen.step == "step_9" and [one.id for one in found] == ["CKPT-VAL-LOSS-PROXY"]


def test_best_moves_only_to_a_better_score():
    """An equal one stays where it is: the earlier checkpoint trained less."""
    for metric, better, worse in (("val_loss", 0.3, 0.4), ("val_accuracy", 0.4, 0.3)):
        assert best_link.is_better(metric, better, worse)
        assert not best_link.is_better(metric, worse, better)
        assert not best_link.is_better(metric, better, better)
        assert best_link.is_better(metric, worse, best_link.worst(metric))


def test_a_best_by_reward_is_not_the_best_by_loss(output):
    (output / RUN / "metrics.jsonl").write_bytes(b'\xff\n{"step": 9, "val/avg_loss": "low"}\n[1]\n')
    best_link.write(output / RUN, "step_9", 0.4, metric="val/reward_avg")
    assert select(output, "best")[0].step == "step_9"
    with pytest.raises(Failure, match="val/reward_avg"):
        select(output, "val_loss")


def test_an_adopted_trainings_losses_are_those_of_its_jobs_log(output, job):
    """The folder that came back and the job that adopted it have the same log. A run that the
    embedded engine marks as its own is not told about cosmos-rl's validation."""
    for folder in (output.parent, job):
        tell_losses(folder, "log", {9: 0.25, 10: 0.3, 20: 0.4})
        (folder / "policy_0.log").rename(folder / "log.txt")
    chosen, (note,) = selection.Training(output, job=job).select("val_loss")
    assert chosen.step == "step_9" and f"(from {job / 'log.txt'}" in note.message
    assert "not in a folder of this training" not in note.message
    assert "cosmos-rl leaves the last partial batch out" in note.message
    (output / RUN / run_outputs.RUN_MARK).write_text(job.name)
    _, (note,) = selection.Training(output, job=job).select("val_loss")
    assert "cosmos-rl" not in note.message and "proxy" in note.message


def test_best_written_by_us_survives_moving(output, tmp_path):
    best_link.write(output / RUN, "step_9", 0.4)
    best_link.write(output / RUN, "step_10", 0.3)
    assert "best_score.json" in select(output, "val_loss")[1][0].message
    shutil.move(output, tmp_path / "moved")
    moved = tmp_path / "moved"
    for part in ("safetensors", "checkpoints"):
        assert (moved / "best" / part).resolve() == (moved / RUN / part / "step_10").resolve()
    for folder in (moved, moved / RUN):
        assert select(folder, "best")[0].path == moved / RUN / "safetensors" / "step_10"
    assert select(moved, "val_loss")[0].step == "step_10"
    record = json.loads((moved / "best" / "best_score.json").read_text())
    assert record["best_score"] == 0.3 and record["metric"] == "val_loss"
    _, (reason,) = select(moved, "best")
    assert reason.message == f"it means {RUN}/safetensors/step_10, by val_loss 0.3"


def test_best_links_of_a_container(output):
    """cosmos-rl writes absolute paths of the container; the same run and step is that checkpoint,
    another is not."""
    best = output / "best"
    best.mkdir()
    (best / "safetensors").symlink_to(f"/results/train/{RUN}/safetensors/step_20")
    (best / "best_score.json").write_text(
        json.dumps({"best_ckpt_abs_dir": f"/results/train/{RUN}/checkpoints/step_20"})
    )
    assert select(output, "best")[0].step == "step_20"
    assert best_link.step_of(output / RUN) == "step_20"
    (best / "best_score.json").write_text(
        json.dumps({"best_ckpt_abs_dir": f"/results/{RUN}/checkpoints/step_9"})
    )
    with pytest.raises(Failure, match="step_20 and /results"):
        select(output, "best")
    for gone in (
        f"/results/train/{RUN}/safetensors/step_8",
        "/results/train/20200101000000/safetensors/step_20",
    ):
        (best / "safetensors").unlink()
        (best / "safetensors").symlink_to(gone)
        (best / "best_score.json").unlink(missing_ok=True)
        for by in ("best", "val_loss"):
            with pytest.raises(Failure, match=r"step_8|20200101000000") as caught:
                select(output, by)
            assert caught.value.findings[0].data["checkpoints"][0] == f"{RUN}/safetensors/step_9"
        assert best_link.step_of(output / RUN) == ""


@pytest.mark.parametrize("place", ["run", "job above", "job elsewhere"])
def test_a_broken_best_link_leaves_the_choice_to_who_reads_the_losses(output, job, place):
    """The log is listed, not followed: what it says of a step may be of another run."""
    if place == "job above":
        output = Path(shutil.move(output, job / "results"))
        record(job, output)
    log = output / RUN / "log.txt" if place == "run" else job / "log.txt"
    log.write_text(
        "loading\n"
        + "".join(LOG.format(*row) for row in ((0.42, 9), (0.31, 10), (0.37, 20), (0.2, 15)))
    )
    (output / "best").mkdir()
    (output / "best" / "safetensors").symlink_to(f"/results/{RUN}/safetensors/step_24")
    code, document = said(job, "--by", "val_loss")
    (finding,) = document["findings"]
    assert (code, finding["id"], finding["fix"]) == (1, "CKPT-NOT-FOUND", "")
    losses = {
        f"{RUN}/safetensors/step_{step}": loss for step, loss in ((9, 0.42), (10, 0.31), (20, 0.37))
    }
    assert (
        finding["data"]["losses"] == losses
        and "step_10 (validation loss 0.31)" in finding["message"]
    )
    code, document = said(job)
    (broken,) = document["findings"]
    assert (code, broken["id"], broken["fix"]) == (0, "CKPT-BEST-BROKEN", "")
    assert "next" not in document
    assert "step_10 (validation loss 0.31)" in broken["message"]


def test_every_command_proposes_the_same(output, model):
    add_step(output / RUN, "final", model)
    (output / "best").mkdir()
    for scored in (False, True):
        if scored:
            write_scores(output, step_10={"accuracy": 0.5})
        fixes = {
            said(output, *flags)[1]["findings"][0]["fix"]
            for flags in ([], ["--by", "best"], ["--by", "setp_1"])
        }
        assert fixes == {"--by accuracy" if scored else ""}
    shutil.rmtree(output / "best")
    best_link.write(output / RUN, "step_9", 0.4)
    (output / checkpoint_metrics.FILE).unlink()
    assert said(output)[1]["next"].endswith("--by best")
    assert said(output, "--by", "setp_1")[1]["findings"][0]["fix"] == "--by best"


def test_metrics_in_the_folder_of_a_job_choose_in_its_output_elsewhere(job):
    write_losses(job, (9, 0.7), (10, 0.3))
    code, document = said(job, *shlex.split(said(job)[1]["next"])[2:])
    assert code == 0 and document["result"]["selected"]["path"].endswith("step_10")


def test_a_name_in_two_runs_must_be_spelled_out(output, model):
    add_step(output / "20260102000000", "step_9", model)
    with pytest.raises(Failure, match="got 2 checkpoints named 'step_9'"):
        select(output, "step_9")
    name = "20260102000000/safetensors/step_9"
    assert select(output, name)[0].name == name


def test_scores_of_other_questions_are_not_compared_in_silence(output):
    few, many = {"accuracy": 0.9, "rows": 10}, {"accuracy": 0.5, "rows": 100}
    write_scores(output, step_9=many, step_10=few)
    chosen, found = select(output, "accuracy")
    expected = ["CKPT-SCORES", "CKPT-NOT-SCORED", "CKPT-UNEQUAL-SCORES"]
    assert chosen.step == "step_10" and [f.id for f in found] == expected


def test_the_lowest_loss_is_not_told_of_checkpoints_without_one_in_silence(output):
    """Where steps are saved more often than they are validated, few of them are compared."""
    write_losses(output / RUN, (10, 0.5))
    chosen, found = select(output, "val_loss")
    (told,) = [one for one in found if one.id == "CKPT-NOT-SCORED"]
    assert chosen.step == "step_10" and told.severity == "warning"
    assert "2 of 3 have no validation loss that is a number" in told.message
    assert [name.rpartition("/")[2] for name in told.data["checkpoints"]] == ["step_9", "step_20"]
    write_losses(output / RUN, (9, 0.7), (10, 0.5), (20, 0.6))
    assert "CKPT-NOT-SCORED" not in {one.id for one in select(output, "val_loss")[1]}


@pytest.mark.parametrize(
    ("metric", "step", "best"),
    [
        ("f1", "step_9", "highest"),
        ("mean_iou", "step_9", "highest"),
        ("macro_f1", "step_9", "highest"),
        ("accuracy/yes_no", "step_9", "highest"),
        ("eval_loss", "step_10", "lowest"),
        ("mae:min", "step_10", "lowest"),
        ("mae:max", "step_9", "highest"),
    ],
)
def test_the_end_of_a_metric_that_counts_as_the_best_is_said(output, metric, step, best):
    name = metric.partition(":")[0]
    write_scores(output, step_9={name: 3.0}, step_10={name: 1.0})
    chosen, found = select(output, metric)
    assert chosen.step == step and found[0].message.startswith(f"{name}, the {best} is best: ")


@pytest.mark.parametrize("by", ["mae", "mae:least"])
def test_which_end_of_a_metric_of_somebodys_own_is_better_is_not_guessed(output, by):
    """The highest mean error is that of the worst checkpoint."""
    write_scores(output, step_9={"mae": 3.0}, step_10={"mae": 1.0})
    code, document = said(output, "--by", by)
    (found,) = document["findings"]
    assert (code, found["id"]) == (2, "CKPT-METRIC-END") and "mae:min" in found["message"]


def test_an_end_that_is_none_is_not_said_of_the_metric(output):
    write_scores(output, step_9={"accuracy": 0.5})
    (found,) = said(output, "--by", "accuracy:best")[1]["findings"]
    assert found["message"] == "expected accuracy:min or accuracy:max"


def test_an_adapter_that_never_merges_is_not_said_to(tmp_path, model):
    """PEFT takes its part out of the base again; added to the whole base it would count twice."""
    for step, config in {"step_1": {}, "step_2": {"init_lora_weights": "pissa"}}.items():
        folder = add_adapter(tmp_path / RUN, step, model, **config)
        write_halves(folder, number=b"\x00\x00\x80\x3f", **halves_of(model))
    rows = {row["name"][-6:]: row for row in said(tmp_path)[1]["result"]["checkpoints"]}
    assert rows["step_1"]["can"] == ["evaluate", "merge"]
    assert rows["step_2"]["complete"] and rows["step_2"]["can"] == ["evaluate"]


@pytest.mark.parametrize("flags", [[], ["--by", "val_loss"], ["--by", "best"]])
def test_validations_over_fewer_records_are_not_compared_in_silence(output, flags):
    """A clip that is lost between two validations is without the second."""
    best_link.write(output / RUN, "step_10", 0.3)
    for lost, expected in ((0, 0), (3, 1)):
        later = {"step": 10, "val/avg_loss": 0.3, "val/skipped_records": lost}
        write_losses(output / RUN, (9, 0.7), later)
        code, document = said(output, *flags)
        found = [one for one in document["findings"] if one["id"] == "CKPT-UNEQUAL-SCORES"]
        assert (code, len(found)) == (0, expected)
    assert "step_10, which is without 3 records" in found[0]["message"]
    assert "step_9 without 0" in found[0]["message"]


def test_what_to_do_next_where_nothing_can_be_chosen(output, tmp_path):
    """The folder next to the right one is named (test_fixes.py pastes what is said)."""
    shutil.copytree(output, tmp_path / "jobs" / "train-20260101-120000-0a1b2c" / "results")
    for wrong in (output / RUN / "safetensors" / "step_9", tmp_path / "jobs", tmp_path):
        code, document = said(wrong)
        assert (code, document["findings"][0]["id"]) == (1, "CKPT-NONE")
        assert document["findings"][0]["fix"]
    (tmp_path / "empty").mkdir()
    for flags in ([], ["--by", "accuracy"], ["--by", "val_loss"], ["--by", "best"]):
        code, document = said(tmp_path / "empty", *flags)
        assert (code, [f["id"] for f in document["findings"]]) == (1, ["CKPT-NONE"])
    code, document = said(output, "--by", "accuracy")
    assert (code, document["findings"][0]["id"]) == (1, "CKPT-NOT-SCORED")
    assert "score_predictions" in document["findings"][0]["message"]


def test_the_folder_of_a_train_job_stands_for_its_output(output, job):
    code, document = said(job, "--by", "step_9")
    chosen = str(output / RUN / "safetensors" / "step_9")
    assert code == 0 and document["result"]["selected"]["path"] == chosen
    shutil.rmtree(output / RUN)
    (job / "results").mkdir()
    record(job, job / "results")
    code, document = said(job)
    fix = document["findings"][0]["fix"]
    assert code == 1 and fix.endswith(f"scripts/launch_job.py status {job}")
    (job / "job.json").write_text(json.dumps({"outputs": {"results_dir": "x"}}))
    assert said(job)[0] == 2


@pytest.mark.parametrize("state", ["COMPLETE", "ERROR"])
def test_a_chosen_checkpoint_is_evaluated_as_its_job_knows(output, job, dataset, tmp_path, state):
    facts = {"engine": "transformers", "state": state, "action": "train", "job_id": job.name}
    last = str(output / RUN / "safetensors" / "step_20")
    record(job, output, **facts, evidence={"checkpoint": last})
    trained, eval_root = spec.template("train"), dataset / "eval"
    data = {"annotation_path": str(eval_root / "annotations.json"), "media_path": str(eval_root)}
    trained["custom"] |= {"val_dataset": data, "vision": {"nframes": 6}}
    spec.dump(trained, job / "spec.toml")
    code, document = said(job, "--by", "step_9")
    script, *args = shlex.split(document["next"])
    done = run_script(Path(script).name, *args, cwd=tmp_path)
    assert (code, done.returncode) == (0, 0), done.stderr
    made = spec.load(tmp_path / "evaluate.toml")
    assert made["model"]["model_name"] == str(output / RUN / "safetensors" / "step_9")
    assert made["dataset"]["annotation_path"] == data["annotation_path"]
    assert "--engine transformers" in document["next"]
    assert (made["vision"]["nframes"] == 6) == (state == "COMPLETE")
    trained["custom"].pop("val_dataset")
    spec.dump(trained, job / "spec.toml")
    assert "next" not in said(job, "--by", "step_9")[1]


def test_a_damaged_best_is_told_and_another_is_chosen_by_accuracy(output):
    best_link.write(output / RUN, "step_9", 0.4)
    assert [f["id"] for f in said(output)[1]["findings"]] == ["CKPT-BEST"]
    (output / RUN / "safetensors" / "step_9" / "tokenizer.json").unlink()
    nothing_tells_the_others_apart = ({}, "")
    scored = ({"step_10": {"accuracy": 0.5}}, "--by accuracy")
    for scores, fix in (nothing_tells_the_others_apart, scored):
        write_scores(output, **scores)
        best = next(f for f in said(output)[1]["findings"] if f["where"] == str(output / "best"))
        assert (best["id"], best["severity"]) == ("CKPT-BEST-DAMAGED", "warning")
        assert "step_9" in best["message"]
        assert best["fix"] == fix
    code, document = said(output, *best["fix"].split())
    assert code == 0 and document["result"]["selected"]["path"].endswith("step_10")


def test_a_best_that_leads_nowhere_is_told_and_cannot_be_chosen(output):
    best_link.write(output / RUN, "step_9", 0.4)
    shutil.rmtree(output / RUN / "safetensors" / "step_9")
    code, document = said(output)
    assert (code, [f["id"] for f in document["findings"]]) == (0, ["CKPT-BEST-BROKEN"])
    assert said(output, "--by", "best")[0] == 1
    (output / "best" / "best_score.json").write_text('{"best_ckpt_abs_dir": 5}')
    assert said(output, "--by", "best")[1]["findings"][0]["id"] == "CKPT-NOT-FOUND"


def test_the_command(output):
    code, document = said(output)
    assert (code, document["findings"], document["result"]["selected"]) == (0, [], None)
    uses = [(row["kind"], row["can"]) for row in document["result"]["checkpoints"]]
    assert sorted(uses) == 3 * [("model", ["evaluate"])] + 3 * [("resume", ["resume"])]
    chosen = run_script("select_checkpoint.py", output, "--by", "step_9")
    assert chosen.stdout.strip() == str(output / RUN / "safetensors" / "step_9")
    assert "next:" not in chosen.stderr  # nobody knows what to evaluate on
    listed = run_script("select_checkpoint.py", output)
    assert "next:" not in listed.stderr  # nothing tells which is better
    write_losses(output / RUN, (10, 0.4))
    listed = run_script("select_checkpoint.py", output)
    _, script, *args = shlex.split(listed.stderr.splitlines()[-1])
    assert run_script(Path(script).name, *args, cwd=output.parent).returncode == 0
    (output / RUN / "safetensors" / "step_9" / "tokenizer.json").unlink()
    assert run_script("select_checkpoint.py", output, "--by", "step_9").returncode == 1
    for wrong in ("", output / "nowhere"):
        assert run_script("select_checkpoint.py", wrong).returncode == 2
    (output / checkpoint_metrics.FILE).write_text("[]")
    assert run_script("select_checkpoint.py", output).returncode == 2


# ---- a training that learned nothing ----


def unchanged(output, *flags):
    """The warnings about unchanged weights."""
    code, document = said(output, *flags)
    assert code == 0, document
    return [one for one in document["findings"] if one["id"] == "CKPT-UNCHANGED"]


@pytest.mark.parametrize("flags", [[], ["--by", "step_10"]])
def test_checkpoints_with_the_same_weights_are_told(output, flags):
    assert unchanged(output, *flags) == []
    steps = output / RUN / "safetensors"
    (first,) = (steps / "step_9").glob("*.safetensors")
    for step in ("step_10", "step_20"):
        shutil.copy(first, steps / step / first.name)
    (warned,) = unchanged(output, *flags)
    assert warned["severity"] == "warning" and "equal, byte for byte" in warned["message"]
    size = struct.unpack("<Q", first.read_bytes()[:8])[0]
    header, data = first.read_bytes()[8 : 8 + size], first.read_bytes()[8 + size :]
    padded = struct.pack("<Q", size + 8) + header + b" " * 8 + data
    (steps / "step_10" / first.name).write_bytes(padded)
    assert "81 tensors" in unchanged(output, *flags)[0]["message"], "equal weights, other bytes"
    assert warned["data"]["checkpoints"] == [f"{RUN}/safetensors/step_{n}" for n in (9, 10, 20)]
    write_losses(output / RUN, (9, 0.7), (10, 0.7))
    assert "losses that differ" not in unchanged(output, *flags)[0]["message"]
    write_losses(output / RUN, (9, 0.7), (10, 0.7), (20, 0.3))
    message = unchanged(output, *flags)[0]["message"]
    assert "a copy or an export went wrong" in message and "a learning rate of 0" in message
    write_losses(output / RUN, (9, 0.5), (10, 0.5000001), (20, 0.4999999))
    assert "losses that differ" not in unchanged(output, *flags)[0]["message"]
    shutil.rmtree(steps / "step_9")
    shutil.rmtree(steps / "step_20")
    assert unchanged(output, *flags) == [], "one alone, whose base nobody knows"


@pytest.mark.parametrize("told_by", ["state", "job"])
def test_a_checkpoint_with_the_weights_of_its_base_is_told(output, model, told_by):
    run = output / RUN
    shutil.rmtree(run / "safetensors" / "step_20")
    shutil.copytree(model, run / "safetensors" / "step_20")
    trained = {"policy": {"model_name_or_path": str(model)}}
    if told_by == "state":
        state = run / "checkpoints" / "step_20" / "policy" / "cosmos_config"
        state.write_text(json.dumps(trained))
    else:
        record(output, output)
        spec.dump(trained, output / "spec.toml")
    (warned,) = unchanged(output, "--by", "step_20")
    assert f"step_20: the weights are those of its base {model}" in warned["message"]
    assert unchanged(output, "--by", "step_9") == []


def test_an_adapter_that_adds_nothing_is_told(tmp_path, model):
    sizes = halves_of(model)
    write_halves(add_adapter(tmp_path / RUN, "step_1", model), **sizes)
    write_halves(add_adapter(tmp_path / RUN, "step_2", model), **sizes)
    (warned,) = unchanged(tmp_path)
    assert "2 checkpoints up to" in warned["message"] and "lora_B is zero" in warned["message"]
    write_halves(tmp_path / RUN / "safetensors" / "step_2", number=b"\0\0\0<", **sizes)
    assert unchanged(tmp_path) == []


# ---- the trainer's log ---------------------------------------------------------------------------

STAMP = "[rank0]:[cosmos] 2026-01-01 12:00:00,000 - cosmos - INFO - "


def trainer_log_of(run, rows):
    """What cosmos-rl prints of a run: of each row its step, validation loss and checkpoint's name,
    "" for a step that was not saved."""
    lines = [f"{STAMP}[Policy] Loaded configuration: {{'custom': {{}}}}"]
    for step, loss, name in rows:
        lines.append(f"{STAMP}Step: {step}/24, Loss: 0.50000, Grad norm: 1.00000")
        lines.append(f"{STAMP}[SFT] Validation loss: {loss} for train step {step}/24, epoch 1")
        if name:
            saved = f"/results/{run}/checkpoints/{name}/policy."
            lines += [
                f"{STAMP}Saving huggingface checkpoint at step {step} to /results/{run}...",
                f"{STAMP}Saving cosmos checkpoint at step {step}...",
                "[rank0]:",
                f"[rank0]:Exported safetensors to /results/{run}/safetensors/{name}",
                f"{STAMP}[Policy] Step: {step}, checkpoint saved successfully at {saved}",
                f"{STAMP}Best checkpoint updated to step_{step} with score: {loss}",
            ]
    return "\n".join(lines) + "\n"


ROWS = [(9, 0.42, "step_9"), (10, 0.31, "step_10"), (20, 0.37, "step_20")]


@pytest.mark.parametrize(
    "place", ["policy_0.log", f"{RUN}/policy_0.log", "logs_20260101/policy_0.log", "../log.txt"]
)
def test_the_trainers_log_beside_an_output_tells_the_losses(output, place):
    (output / place).parent.mkdir(exist_ok=True)
    (output / place).write_text(trainer_log_of(RUN, ROWS))
    (output / "best").mkdir()
    (output / "best" / "safetensors").symlink_to(f"/results/{RUN}/safetensors/step_24")
    code, document = said(output)
    assert document["findings"][0]["fix"] == "--by val_loss"
    code, document = said(output, "--by", "val_loss")
    assert code == 0, document
    assert document["result"]["selected"]["name"] == f"{RUN}/safetensors/step_10"
    proxy, broken = document["findings"]
    assert (broken["id"], broken["severity"]) == ("CKPT-BEST-BROKEN", "warning")
    assert "step_24, not one model" in broken["message"]
    assert ("which is not in" in proxy["message"]) == place.startswith("..")
    listed = run_script("select_checkpoint.py", output).stdout.splitlines()
    assert f"model    {RUN}/safetensors/step_10  val_loss 0.31  can: evaluate" in listed


def test_the_log_ties_a_step_to_the_epoch_it_was_saved_as(output, model):
    """The best link names step_24, of which only epoch_2 exists."""
    run = output / RUN
    shutil.move(run / "safetensors" / "step_20", run / "safetensors" / "epoch_2")
    (run / "checkpoints" / "step_20" / "policy" / "trainer_state.json").unlink()
    log = [*ROWS[:2], (20, 0.2, ""), (24, 0.25, "epoch_2")]
    (output / "policy_0.log").write_text(trainer_log_of(RUN, log))
    (output / "best").mkdir()
    (output / "best" / "safetensors").symlink_to(f"/results/{RUN}/safetensors/step_24")
    chosen, _ = select(output, "val_loss")
    assert chosen.step == "epoch_2"


def test_a_log_of_another_run_is_not_followed(output):
    (output / "policy_0.log").write_text(trainer_log_of("20250101000000", ROWS))
    with pytest.raises(Failure):
        select(output, "val_loss")
    log = output.parent / "train.log"
    log.write_text(trainer_log_of("20250101000000", ROWS))
    chosen, (proxy,) = select(output, "val_loss", log=log)
    assert chosen.step == "step_10", "its user says so"
    assert f"whose run 20250101000000 (step 9, 10, 20) is taken for {RUN}" in proxy.message
    log.write_text(
        trainer_log_of("20250101000000", [(9, 0.1, "step_9")]) + trainer_log_of(RUN, ROWS)
    )
    assert select(output, "val_loss", log=log)[0].step == "step_10", "one of its two runs"


def test_a_named_log_decides_although_the_best_link_is_broken(output):
    """A folder that was copied under another name, of a training that was started twice."""
    (output / RUN).rename(output / "copied")
    (output / "best").mkdir(exist_ok=True)
    (output / "best" / "safetensors").unlink(missing_ok=True)
    (output / "best" / "safetensors").symlink_to("/elsewhere/step_20")
    log = output.parent / "train.log"
    first, second = "20250101000000", "20250102000000"
    parts = [trainer_log_of(first, ROWS[:1]), trainer_log_of(second, ROWS[1:])]
    log.write_text("".join(parts))
    chosen, (proxy, *_) = select(output, "val_loss", log=log)
    assert chosen.name == "copied/safetensors/step_10"
    assert f"whose runs {first} (step 9) and {second} (step 10, 20) are taken" in proxy.message
    log.write_text("".join([*parts, trainer_log_of(first, [(10, 0.1, "step_10")])]))
    with pytest.raises(Failure) as refused:
        select(output, "val_loss", log=log)
    (finding,) = refused.value.findings
    assert first in finding.message and second in finding.message and "best" not in finding.message


def test_a_named_log_is_followed_by_steps_and_must_have_losses(output, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(LOG.format(*row) for row in ((0.42, 9), (0.31, 10), (0.6, 20))))
    listed = said(output, "--log", log)[1]["next"]
    assert listed.endswith(f"--by val_loss --log {log}")
    code, document = said(output, "--by", "val_loss", "--log", log)
    assert (code, document["result"]["selected"]["name"]) == (0, f"{RUN}/safetensors/step_10")
    (proxy,) = document["findings"]
    listed = f"step_10 0.31, step_9 0.42, step_20 0.6 (from {log}, which is not in a folder"
    assert listed in proxy["message"]
    assert "matched by number" in proxy["message"]
    log.write_text("Step: 3/60, Loss: 0.5\n")
    assert said(output, "--log", log)[1]["findings"][0]["id"] == "CKPT-LOG"
    assert said(output, "--log", tmp_path / "nowhere")[0] == 2


@pytest.mark.parametrize(
    ("vision", "frames"),
    [
        ({"nframes": 6}, {"num_frames": 6, "min_frames": 6, "max_frames": 6}),
        ({"fps": 2.0, "max_frames": 32}, {"num_frames": -1, "fps": 2.0, "max_frames": 32}),
        ({}, None),
        ({"nframes": "many"}, None),
    ],
)
def test_a_chosen_model_is_served_with_the_frames_of_its_training(output, vision, frames):
    trained = spec.template("train")
    trained["custom"]["vision"] = vision
    saved = output / RUN / "checkpoints" / "step_9" / "policy" / "cosmos_config"
    saved.write_text(json.dumps(trained))
    chosen = run_script("select_checkpoint.py", output, "--by", "step_9")
    path = str(output / RUN / "safetensors" / "step_9")
    assert chosen.returncode == 0 and chosen.stdout.strip() == path
    (line,) = [line for line in chosen.stderr.splitlines() if line.startswith("serve: ")]
    flags = ["--media-io-kwargs", json.dumps({"video": frames})] if frames else []
    assert shlex.split(line)[1:] == [
        *("vllm", "serve", path, "--served-model-name", "step_9"),
        *flags,
        "--trust-request-mm-kwargs",
    ]
    assert said(output, "--by", "step_9")[1]["result"]["serve"] == line.removeprefix("serve: ")


def test_an_adapter_is_not_served_before_it_is_merged(tmp_path, model):
    add_adapter(tmp_path / RUN, "step_1", model)
    result = said(tmp_path, "--by", "step_1")[1]["result"]
    assert result["selected"]["kind"] == "adapter" and "serve" not in result


def publish(*args):
    done = run_script(
        "publish_checkpoint.py", *args, "--json", env={"HF_ENDPOINT": "http://127.0.0.1:9"}
    )
    told = json.loads(done.stdout)
    return done.returncode, told["result"], {one["id"]: one for one in told["findings"]}


@pytest.mark.parametrize("given", ["", "results", f"results/{RUN}"])
def test_what_is_published_of_a_training_is_chosen(tmp_path, model, given):
    job = tmp_path / "train-1"
    run = job / "results" / RUN
    for step in ("step_10", "step_20"):
        add_step(run, step, model)
    record(job, job / "results")
    best_link.write(run, "step_20", 0.5, best_link.VAL_LOSS)
    code, _, found = publish(job / given, "--hub", "lab/one")
    assert code == 2 and set(found) == {"CKPT-NOT-CHOSEN"}
    assert "/step_10" in found["CKPT-NOT-CHOSEN"]["message"]
    assert found["CKPT-NOT-CHOSEN"]["fix"] == "--by best"
    code, result, _ = publish(job / given, "--by", "best", "--hub", "lab/one")
    assert code == 0 and "config.json" in {row["name"] for row in result["files"]}
    step = run / "safetensors" / "step_20"
    assert publish(step, "--by", "step_20", "--hub", "lab/one")[2].keys() == {"CKPT-NO-EFFECT"}
