"""What train jobs leave, whole and broken, as cosmos-rl and the embedded engine write it."""

import json
import math
import os
import shlex
import shutil
from pathlib import Path

import pytest
from omni_layouts import write_tensors
from support import run_script

from cosmos_reason import checkpoints, conversion, omni, safetensors_files, spec
from cosmos_reason.demo import tiny_omni
from cosmos_reason.findings import Failure

RUN = "20260101120000"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    base = tmp_path_factory.mktemp("model")
    tiny_omni.build(base / "omni", seed=1, text="left right yes no")
    conversion.convert(omni.open_source(base / "omni"), base / "model", 10**9, force=False, jobs=1)
    return base / "model"


@pytest.fixture
def output(model, tmp_path):
    """Steps 9, 10 and 20 of one run, each a model and a resume folder."""
    for step in ("step_9", "step_10", "step_20"):
        add_step(tmp_path / "out" / RUN, step, model)
    return tmp_path / "out"


def add_step(run, step, model):
    shutil.copytree(model, run / "safetensors" / step)
    policy = run / "checkpoints" / step / "policy"
    policy.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.safetensors"):
        write_tensors(policy / name, {})
    (policy / ".rank_0_complete").touch()
    (policy / "trainer_state.json").write_text(json.dumps({"step": 10 * int(step.partition("_")[2] or 9)}))
    (policy / "cosmos_config").write_text("{}")


def add_adapter(run, step, base, **config):
    folder = run / "safetensors" / step
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base), "r": 8, **config}))
    write_halves(folder)
    return folder


def write_halves(folder, dtype="F32", ranks=(4, 4), parts="AB", number=b"\0" * 4):
    shapes = {"A": (ranks[0], 2), "B": (2, ranks[1])}
    name = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_{}.weight"
    count = {"F32": 1, "F64": 2}[dtype]
    tensors = {name.format(p): (dtype, shapes[p], number * (count * math.prod(shapes[p]))) for p in parts}
    write_tensors(folder / "adapter_model.safetensors", tensors)


@pytest.mark.parametrize(
    ("halves", "finding"),
    [
        ({"parts": "A"}, "CKPT-ADAPTER-PAIR"),
        ({"ranks": (4, 2)}, "CKPT-ADAPTER-PAIR"),
        ({"dtype": "F64"}, "CKPT-ADAPTER-UNSUPPORTED"),
        ({"number": b"\xff" * 4}, "CKPT-NOT-FINITE"),
    ],
)
def test_adapters_that_would_not_merge_are_not_chosen(tmp_path, model, halves, finding):
    write_halves(add_adapter(tmp_path / RUN, "step_1", model), **halves)
    for flags in ([], ["--by", "step_1"]):
        code, document = said(tmp_path, *flags)
        assert code == 1 and finding in [f["id"] for f in document["findings"]]


def ids(found):
    return {checkpoint.name: [finding.id for finding in checkpoint.findings] for checkpoint in found}


def test_lists_all_runs_in_order_and_verifies_each(output, model):
    add_step(output / "20260102000000", "epoch_2", model)
    add_adapter(output / "20260102000000", "final", model)
    found = checkpoints.find(output)
    assert [(c.kind, c.name) for c in found if c.kind != "resume"] == [
        ("model", f"{RUN}/safetensors/step_9"),
        ("model", f"{RUN}/safetensors/step_10"),
        ("model", f"{RUN}/safetensors/step_20"),
        ("model", "20260102000000/safetensors/epoch_2"),
        ("adapter", "20260102000000/safetensors/final"),
    ]
    assert sum(c.kind == "resume" for c in found) == 4
    assert all(c.complete for c in found)


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
        (lambda folder: os.rename(folder, folder.with_name("step_10.incomplete-ab12")), "CKPT-INCOMPLETE"),
    ],
)
def test_damaged_models_are_listed_and_never_chosen(output, damage, finding):
    damage(output / RUN / "safetensors" / "step_10")
    damaged = next(c for c in checkpoints.find(output) if not c.complete)
    assert damaged.step.startswith("step_10") and {f.id for f in damaged.findings} == {finding}
    with pytest.raises(Failure):
        checkpoints.select(output, damaged.step)


def test_a_model_without_one_tensor_is_damaged(output):
    """Loaders fill it with random numbers and say nothing."""
    folder = output / RUN / "safetensors" / "step_10"
    index = json.loads((folder / safetensors_files.INDEX_NAME).read_text())
    shard = folder / next(iter(index["weight_map"].values()))
    found = safetensors_files.read_header(shard)
    found.pop("model.visual.pos_embed.weight")
    safetensors_files.copy_tensors(folder / "new", found, lambda count: None)
    os.replace(folder / "new", shard)
    index["weight_map"].pop("model.visual.pos_embed.weight")
    (folder / safetensors_files.INDEX_NAME).write_text(json.dumps(index))
    assert ids(checkpoints.find(output))[f"{RUN}/safetensors/step_10"] == ["CKPT-TENSOR-MISSING"]


def test_adapters(tmp_path, model):
    run = tmp_path / RUN
    good = add_adapter(run, "step_1", model)
    hub = add_adapter(run, "step_2", "nvidia/Cosmos-Reason2-2B", lora_path=None, r_pattern=None)
    gone = add_adapter(run, "step_3", tmp_path / "gone")
    none = add_adapter(run, "step_4", "")
    cut = add_adapter(run, "step_5", model)
    os.truncate(cut / "adapter_model.safetensors", 20)
    seen = {
        folder.name: [finding.id for finding in checkpoints.verify(folder)] for folder in (good, hub, gone, none, cut)
    }
    assert seen == {
        "step_1": [],
        "step_2": ["CKPT-ADAPTER-FIELDS"],
        "step_3": ["CKPT-ADAPTER-BASE"],
        "step_4": ["CKPT-ADAPTER-BASE"],
        "step_5": ["CKPT-SHARD-DAMAGED"],
    }


def test_resume_folders_need_every_rank(tmp_path):
    policy = tmp_path / "policy"
    policy.mkdir()
    sizes = {"policy": {"parallelism": {"tp_size": 1, "dp_shard_size": 2, "dp_replicate_size": 4}}}
    (policy / "cosmos_config").write_text(json.dumps(sizes))
    for rank in (0, 1):
        assert not checkpoints.is_complete_resume(policy)
        for part in ("model", "optimizer", "scheduler", "extra_info"):
            (policy / f"{part}_rank_{rank}.pth").touch()
        assert not checkpoints.is_complete_resume(policy)
        (policy / f".rank_{rank}_complete").touch()
    assert checkpoints.is_complete_resume(policy)
    (policy / "model_rank_2.pth").touch()
    assert not checkpoints.is_complete_resume(policy)


@pytest.mark.parametrize("content", [b"", b"abc"])
def test_resume_folders_of_the_embedded_engine_hold_whole_files(output, content):
    policy = output / RUN / "checkpoints" / "step_9" / "policy"
    assert checkpoints.is_complete_resume(policy)
    (policy / "optimizer.safetensors").write_bytes(content)
    assert not checkpoints.is_complete_resume(policy)


def test_weights_of_a_model_beside_an_adapter(tmp_path, model):
    folder = add_adapter(tmp_path / RUN, "step_1", model)
    shutil.copytree(model, folder, dirs_exist_ok=True)
    assert [finding.id for finding in checkpoints.verify(folder)] == ["CKPT-WEIGHTS-TWICE"]


def test_choosing_by_metric(output):
    table = {f"{RUN}/safetensors/{step}": {"accuracy": a, "val/loss": v, "rows": 9, "x": [1]} for step, a, v in
             (("step_9", 0.5, 2.0), ("step_10", 0.9, 1.0), ("step_20", 0.9, 0.5))}  # fmt: skip
    (output / checkpoints.METRICS_FILE).write_text(json.dumps(table))
    assert checkpoints.select(output, "accuracy")[0].step == "step_10"
    assert checkpoints.select(output, "val/loss")[0].step == "step_20"
    with pytest.raises(Failure, match="got 'rows', expected a metric"):
        checkpoints.select(output, "rows")
    assert checkpoints.select(output / RUN, "accuracy")[0].step == "step_10", "one run, scored in the folder above"
    listed = run_script("select_checkpoint.py", output).stderr.splitlines()[-1]
    assert listed.endswith(f"select_checkpoint.py {output} --by accuracy")
    (output / RUN / "safetensors" / "step_10" / "config.json").unlink()
    chosen, findings = checkpoints.select(output, "accuracy")
    assert chosen.step == "step_20" and [finding.id for finding in findings] == ["CKPT-NOT-SCORED"]
    with pytest.raises(Failure, match="Did you mean accuracy"):
        checkpoints.select(output, "acuracy")


def test_choosing_by_validation_loss(output, model):
    rows = [{"step": 9, "val/avg_loss": 0.7}, {"step": 10, "val/avg_loss": 0.3}, {"step": 20, "val/avg_loss": 0.0}]
    text = "\n".join(map(json.dumps, [*rows, {"step": 11, "val/avg_loss": 0.1}])) + '\n{"step": 2'
    (output / RUN / "metrics.jsonl").write_text(text)
    chosen, findings = checkpoints.select(output, "val_loss")
    assert chosen.step == "step_10" and str(output / RUN / "metrics.jsonl") in findings[0].message
    assert [f.id for f in findings] == ["CKPT-VAL-LOSS-PROXY", "CKPT-LOWEST-NOT-SAVED"]
    assert "step 11" in findings[1].message
    shutil.copytree(output / RUN / "safetensors" / "step_10", output / RUN / "merged" / "step_10")
    add_step(output / RUN, "final", model)
    with open(output / RUN / "metrics.jsonl", "a") as lines:
        lines.write('\n{"val/avg_loss": 0.01}\n{"step": [1], "val/avg_loss": 0.01}')
        lines.write('\n{"step": 9, "val/avg_loss": ' + "9" * 400 + "}")
    chosen, findings = checkpoints.select(output, "val_loss")
    assert chosen.name == f"{RUN}/safetensors/step_10"
    assert f"{RUN}/merged/step_10" in next(f.message for f in findings if f.id == "CKPT-SAME-STEP")
    add_step(output / RUN, "epoch_2", model)  # its trainer state says step 20
    (output / RUN / "metrics.jsonl").write_text(json.dumps({"step": 20, "val/avg_loss": 0.1}))
    shutil.rmtree(output / RUN / "safetensors" / "step_20")
    assert checkpoints.select(output, "val_loss")[0].step == "epoch_2"


def test_a_best_by_reward_is_not_the_best_by_loss(output):
    (output / RUN / "metrics.jsonl").write_bytes(b'\xff\n{"step": 9, "val/avg_loss": "low"}\n[1]\n')
    checkpoints.write_best(output / RUN, "step_9", 0.4, metric="val/reward_avg")
    assert checkpoints.select(output, "best")[0].step == "step_9"
    with pytest.raises(Failure, match="val/reward_avg"):
        checkpoints.select(output, "val_loss")


def test_best_written_by_us_survives_moving(output, tmp_path):
    checkpoints.write_best(output / RUN, "step_9", 0.4)
    checkpoints.write_best(output / RUN, "step_10", 0.3)
    assert "best_score.json" in checkpoints.select(output, "val_loss")[1][0].message
    shutil.move(output, tmp_path / "moved")
    moved = tmp_path / "moved"
    for part in ("safetensors", "checkpoints"):
        assert (moved / "best" / part).resolve() == (moved / RUN / part / "step_10").resolve()
    for folder in (moved, moved / RUN):
        assert checkpoints.select(folder, "best")[0].path == moved / RUN / "safetensors" / "step_10"
    assert checkpoints.select(moved, "val_loss")[0].step == "step_10"
    record = json.loads((moved / "best" / "best_score.json").read_text())
    assert record["best_score"] == 0.3 and record["metric"] == "val_loss"


def test_best_links_of_a_container(output):
    """cosmos-rl writes absolute paths of the container; the same run and step is that checkpoint, another is not."""
    best = output / "best"
    best.mkdir()
    (best / "safetensors").symlink_to(f"/results/train/{RUN}/safetensors/step_20")
    (best / "best_score.json").write_text(
        json.dumps({"best_ckpt_abs_dir": f"/results/train/{RUN}/checkpoints/step_20"})
    )
    assert checkpoints.select(output, "best")[0].step == "step_20"
    (best / "best_score.json").write_text(json.dumps({"best_ckpt_abs_dir": f"/results/{RUN}/checkpoints/step_9"}))
    with pytest.raises(Failure, match="step_20 and /results"):
        checkpoints.select(output, "best")
    for gone in (f"/results/train/{RUN}/safetensors/step_8", "/results/train/20200101000000/safetensors/step_20"):
        (best / "safetensors").unlink()
        (best / "safetensors").symlink_to(gone)
        (best / "best_score.json").unlink(missing_ok=True)
        for by in ("best", "val_loss"):
            with pytest.raises(Failure, match=r"step_8|20200101000000") as caught:
                checkpoints.select(output, by)
            assert caught.value.findings[0].data["checkpoints"][0] == f"{RUN}/safetensors/step_9"


def test_a_name_in_two_runs_must_be_spelled_out(output, model):
    add_step(output / "20260102000000", "step_9", model)
    with pytest.raises(Failure, match="got 2 checkpoints named 'step_9'"):
        checkpoints.select(output, "step_9")
    name = "20260102000000/safetensors/step_9"
    assert checkpoints.select(output, name)[0].name == name


def test_prune_keeps_the_newest_and_the_protected(output):
    assert checkpoints.prune(output / RUN, 0) == []
    assert checkpoints.prune(output / RUN, 2, keep=["step_9"]) == ["step_10"]
    for part in ("safetensors", "checkpoints"):
        assert sorted(path.name for path in (output / RUN / part).iterdir()) == ["step_20", "step_9"]
    assert checkpoints.prune(output / RUN, 1, keep=["step_9"]) == []


def test_scores_of_other_questions_are_not_compared_in_silence(output):
    table = {f"{RUN}/safetensors/step_9": {"accuracy": 0.5, "rows": 100},
             f"{RUN}/safetensors/step_10": {"accuracy": 0.9, "rows": 10}}  # fmt: skip
    (output / checkpoints.METRICS_FILE).write_text(json.dumps(table))
    chosen, found = checkpoints.select(output, "accuracy")
    assert chosen.step == "step_10" and [f.id for f in found] == ["CKPT-NOT-SCORED", "CKPT-UNEQUAL-SCORES"]


def said(*args):
    done = run_script("select_checkpoint.py", *args, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_what_to_do_next_where_nothing_can_be_chosen(output, tmp_path):
    """The folder next to the right one is named, and the fix works as printed."""
    step = output / RUN / "safetensors" / "step_9"
    jobs = tmp_path / "jobs"
    shutil.copytree(output, jobs / "train-20260101-120000-0a1b2c" / "results")
    for wrong in (step, output / RUN / "safetensors", tmp_path / "jobs", tmp_path):
        code, document = said(wrong)
        assert (code, document["findings"][0]["id"]) == (1, "CKPT-NONE")
        script, *args = document["findings"][0]["fix"].split()
        assert run_script(script.removeprefix("scripts/"), *args).returncode == 0, document
    (tmp_path / "empty").mkdir()
    for flags in ([], ["--by", "accuracy"], ["--by", "val_loss"], ["--by", "best"]):
        code, document = said(tmp_path / "empty", *flags)
        assert (code, [f["id"] for f in document["findings"]]) == (1, ["CKPT-NONE"])
    code, document = said(output, "--by", "accuracy")
    assert (code, document["findings"][0]["id"]) == (1, "CKPT-NOT-SCORED")
    assert "score_predictions" in document["findings"][0]["fix"]


def test_the_folder_of_a_train_job_stands_for_its_output(output, tmp_path):
    job = tmp_path / "jobs" / "train-20260101-120000-0a1b2c"
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({"outputs": {"output_dir": str(output)}}))
    code, document = said(job, "--by", "step_9")
    assert code == 0 and document["result"]["selected"]["path"] == str(output / RUN / "safetensors" / "step_9")
    shutil.rmtree(output / RUN)
    (job / "results").mkdir()
    (job / "job.json").write_text(json.dumps({"outputs": {"output_dir": str(job / "results")}}))
    code, document = said(job)
    fix = document["findings"][0]["fix"]
    assert code == 1 and fix.endswith(f"scripts/launch_job.py status {job.name}")
    (job / "job.json").write_text(json.dumps({"outputs": {"results_dir": "x"}}))
    assert said(job)[0] == 2


@pytest.mark.parametrize("state", ["COMPLETE", "ERROR"])
def test_a_chosen_checkpoint_is_evaluated_as_its_job_knows(output, model, dataset, tmp_path, state):
    job = tmp_path / "jobs" / "train-20260101-120000-0a1b2c"
    record = {"outputs": {"output_dir": str(output)}, "engine": "transformers", "state": state, "action": "train"}
    last = str(output / RUN / "safetensors" / "step_20")
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps(record | {"job_id": job.name, "evidence": {"checkpoint": last}}))
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
    assert made["dataset"]["annotation_path"] == data["annotation_path"] and "--engine transformers" in document["next"]
    assert (made["vision"]["nframes"] == 6) == (state == "COMPLETE")
    trained["custom"].pop("val_dataset")
    spec.dump(trained, job / "spec.toml")
    assert "next" not in said(job, "--by", "step_9")[1]


def test_the_listing_tells_uses_and_a_broken_best(output):
    code, document = said(output)
    uses = {row["kind"]: row["can"] for row in document["result"]["checkpoints"]}
    assert code == 0 and uses == {"model": ["evaluate"], "resume": ["resume"]} and document["findings"] == []
    checkpoints.write_best(output / RUN, "step_9", 0.4)
    assert [f["id"] for f in said(output)[1]["findings"]] == ["CKPT-BEST"]
    (output / RUN / "safetensors" / "step_9" / "tokenizer.json").unlink()
    for scores, name in (({}, "step_20"), ({f"{RUN}/safetensors/step_10": {"accuracy": 0.5}}, "step_10")):
        (output / checkpoints.METRICS_FILE).write_text(json.dumps(scores))
        best = next(f for f in said(output)[1]["findings"] if f["where"] == str(output / "best"))
        assert (best["id"], best["severity"]) == ("CKPT-BEST-DAMAGED", "warning") and "step_9" in best["message"]
        code, document = said(output, *best["fix"].split())
        assert code == 0 and document["result"]["selected"]["path"].endswith(name)
    shutil.rmtree(output / RUN / "safetensors" / "step_9")
    code, document = said(output)
    assert (code, [f["id"] for f in document["findings"]]) == (0, ["CKPT-BEST-BROKEN"])
    assert said(output, "--by", "best")[0] == 1
    (output / "best" / "best_score.json").write_text('{"best_ckpt_abs_dir": 5}')
    assert said(output, "--by", "best")[1]["findings"][0]["id"] == "CKPT-NOT-FOUND"
    assert run_script("select_checkpoint.py", "").returncode == 2


def test_the_command(output):
    listed = run_script("select_checkpoint.py", output, "--json")
    result = json.loads(listed.stdout)["result"]
    assert listed.returncode == 0 and result["selected"] is None and len(result["checkpoints"]) == 6
    chosen = run_script("select_checkpoint.py", output, "--by", "step_9")
    assert chosen.stdout.strip() == str(output / RUN / "safetensors" / "step_9")
    assert "next:" not in chosen.stderr  # nobody knows what to evaluate on
    _, script, *args = shlex.split(run_script("select_checkpoint.py", output).stderr.splitlines()[-1])
    assert run_script(Path(script).name, *args, cwd=output.parent).returncode == 0
    (output / RUN / "safetensors" / "step_9" / "tokenizer.json").unlink()
    assert run_script("select_checkpoint.py", output, "--by", "step_9").returncode == 1
    assert run_script("select_checkpoint.py", output / "nowhere").returncode == 2
    (output / checkpoints.METRICS_FILE).write_text("[]")
    assert run_script("select_checkpoint.py", output).returncode == 2
