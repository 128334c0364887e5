"""The time that a plan predicts: from the tokens of the data and a speed whose origin is said."""

import json
import os

import pytest
from support_specs import changed, write_facts

from cosmos_reason.base import files
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs import run_time
from cosmos_reason.jobs.platforms import local
from cosmos_reason.spec import document, origins

MODEL = "policy.model_name_or_path"
LORA = {"policy.lora.r": 8, "policy.lora.target_modules": ["q_proj"]}
DATA = {
    "custom.train_dataset.annotation_path": "/data/annotations.json",
    "train.train_batch_per_replica": 4,
    "train.train_policy.dataloader_drop_last": False,
    "train.epoch": 2,
}
JOB = "train-20260101-000000-0a1b2c"


def spec_of(folder, facts, name="spec.toml", **more):
    """A training spec beside which its facts are noted; `more`: keys with __ for dots."""
    changes = DATA | LORA | {key.replace("__", "."): value for key, value in more.items()}
    table, path = changed("train", changes), folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    document.dump(table, path)
    origins.write(path, "train", "tao", {}, facts)
    return path


def cost(spec, gpus=("0", "1"), jobs_dir=None, seconds_per_step=None, engine="tao", names=()):
    case = run_time.case_of(engine, document.load(spec), spec)
    jobs_dir = jobs_dir or spec.parent / "jobs"
    return run_time.predict(case, list(gpus), jobs_dir, seconds_per_step, names)


@pytest.fixture
def facts(tmp_path):
    return write_facts(tmp_path, 40)  # 20 steps on one rank


def test_a_given_speed_makes_time_and_gpu_hours(tmp_path, facts):
    found = cost(spec_of(tmp_path, facts), seconds_per_step=90)
    assert (found.seconds, found.gpu_hours) == pytest.approx((1800, 1.0))
    assert found.speed == "given" and "given by --seconds-per-step 90" in found.text()
    assert "about 30 minutes, 1 GPU-hours" in found.text()
    assert found.text().startswith("20 steps, time") and found.to_json()["steps"] == 20
    both = found.times(rounds=3, runs=6)  # two trainings at a time
    assert (both.seconds, both.gpu_hours) == pytest.approx((5400, 6.0))
    assert cost(spec_of(tmp_path, facts), (), seconds_per_step=90).gpu_hours is None, "a CPU"


@pytest.mark.parametrize(
    ("changes", "records"),
    [
        ({}, 84),  # two epochs of 42, the last step of each with 2
        ({"train__train_policy__dataloader_drop_last": True}, 80),
        ({"train__max_num_steps": 13}, 50),  # an epoch, and two steps of the next
    ],
)
def test_the_tokens_are_those_of_the_records_that_are_trained(tmp_path, changes, records):
    facts = write_facts(tmp_path, 42)
    found = cost(spec_of(tmp_path, facts, **changes), seconds_per_step=90)
    alone = cost(spec_of(tmp_path, facts, "one.toml", train__max_num_steps=1))
    assert found.tokens == pytest.approx(records * alone.tokens / 4, rel=1e-4)
    assert found.seconds == pytest.approx(90 * found.steps)


def earlier_job(jobs_dir, facts, took, gpus, engine="tao", **more):
    spec_of(jobs_dir / JOB, facts, **more)
    record = {
        "schema_version": 1, "job_id": JOB, "action": "train", "engine": engine,
        "platform": "docker", "state": "COMPLETE", "reason": "",
        "created_at": "2026-01-01T00:00:00Z", "started_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T01:00:00Z", "command": ["x"], "working_dir": "/", "image": None,
        "spec": {"path": str(jobs_dir / JOB / "spec.toml"), "sha256": "0" * 64,
                 "source": "/s", "source_sha256": "0" * 64},
        "options": {"docker_host": "unix:///x"}, "inputs": [], "outputs": {"output_dir": "/out"},
        "resources": {"nodes": 1, "gpus_per_node": len(gpus), "gpu_ids": gpus},
        "platform_ref": {"host": "h"}, "parent_job": None, "retry_of": None, "exit_code": 0,
        "evidence": {}, "diagnosis": [],
    }  # fmt: skip
    files.write_json(jobs_dir / JOB / "job.json", record)
    jobs.Job.load(jobs_dir / JOB)
    lines = [{"time": n, "step": n, "train/step_seconds": each} for n, each in enumerate(took, 1)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (jobs_dir / JOB / "metrics.jsonl").write_text(text)


def test_an_earlier_job_is_a_measurement(tmp_path, facts):
    """Of the same model trained the same way, however many records a step had."""
    spec = spec_of(tmp_path, facts)
    jobs_dir = tmp_path / "jobs"
    earlier_job(jobs_dir, facts, [60, 30, 10, 10, 12], ["0"], train__train_batch_per_replica=2)
    found = cost(spec, ["0"], jobs_dir)
    assert found.speed == "measured" and f"measured by {JOB}" in found.source
    assert found.seconds == pytest.approx(20 * 2 * 10)  # steps of twice the records
    other = {MODEL.replace(".", "__"): "nvidia/Cosmos-Reason2-2B"}
    for name, more in {"model": other, "full": {"policy__lora": None}}.items():
        other_spec = spec_of(tmp_path, facts, f"{name}.toml", **more)
        assert JOB not in cost(other_spec, ["0"], jobs_dir).source
    assert JOB not in cost(spec, [], jobs_dir).source, "a CPU is not as fast"
    (jobs_dir / JOB / "job.json").write_text("{")
    assert JOB not in cost(spec, ["0"], jobs_dir).source


def test_a_job_on_one_gpu_says_less_of_two(tmp_path, facts):
    spec = spec_of(tmp_path, facts)
    jobs_dir = tmp_path / "jobs"
    earlier_job(jobs_dir, facts, [10, 10, 10], ["0"], engine="transformers")
    one, two = (cost(spec, gpus, jobs_dir, engine="transformers") for gpus in (["0"], ["0", "1"]))
    assert JOB in two.source and one.seconds == pytest.approx(200)
    assert one.seconds / two.seconds == pytest.approx(1.7)


LARGE = {"policy__model_name_or_path": "nvidia/Cosmos-Reason2-8B"}


def test_the_embedded_engine_has_a_speed_of_its_own(tmp_path, facts):
    spec = spec_of(tmp_path, facts, **LARGE, train__epoch=40)
    theirs, ours = cost(spec, ["0"]), cost(spec, ["0"], engine="transformers")
    assert "cosmos-rl, LoRA of an 8B model on one H100 80GB" in theirs.source
    assert "embedded engine, compiled, LoRA of an 8B model on one H100" in ours.source
    assert ours.tokens == theirs.tokens
    assert 1.8 < ours.tokens_per_second / theirs.tokens_per_second < 2.3
    compiling = ours.seconds - ours.tokens / ours.tokens_per_second
    assert 80 <= compiling <= 120 and ours.seconds < theirs.seconds
    as_is = spec_of(
        tmp_path, facts, "as_is.toml", **LARGE, train__epoch=40,
        custom__transformers_engine__compile=False,
    )  # fmt: skip
    eager = cost(as_is, ["0"], engine="transformers")
    assert "compiled" not in eager.source and ours.seconds < eager.seconds < theirs.seconds
    brief = cost(spec_of(tmp_path, facts, "brief.toml", **LARGE), ["0"], engine="transformers")
    assert brief.seconds < 300 and "compiled" not in brief.source, "compiling would not pay"


def test_two_gpus_are_not_twice_as_fast(tmp_path, facts):
    as_is = {"custom__transformers_engine__compile": False}
    spec = spec_of(tmp_path, facts, **LARGE, **as_is, train__epoch=40)
    one, two = (cost(spec, gpus, engine="transformers") for gpus in (["0"], ["0", "1"]))
    assert one.seconds / two.seconds == pytest.approx(1.7)
    assert two.gpu_hours > one.gpu_hours and "two were 1.7 times as fast" in two.source
    four = cost(spec, ["0", "1", "2", "3"], engine="transformers")
    assert "more were not measured" in four.source and "two were" not in one.source
    assert "several were not" in cost(spec).source, "cosmos-rl"


def test_several_measurements_are_a_range(tmp_path, facts):
    spec = spec_of(tmp_path, facts, **LARGE, train__epoch=40)
    found = cost(spec, ["0"], engine="transformers")
    assert found.least_seconds < found.seconds
    assert run_time.between(found.least_seconds, found.seconds) in found.text()
    assert found.to_json()["least_seconds"] == pytest.approx(found.least_seconds, abs=0.1)
    assert found.times(rounds=3, runs=6).least_seconds == pytest.approx(3 * found.least_seconds)
    assert cost(spec_of(tmp_path, facts), seconds_per_step=9).least_seconds is None


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (10, 90, "10 to 90 seconds"),
        (10, 300, "10 seconds to 5 minutes"),
        (541, 560, "9 minutes"),
        (9000, 18000, "2.5 to 5.0 hours"),
    ],
)
def test_a_range_of_time_in_words(least, most, said):
    assert run_time.between(least, most) == said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["NVIDIA H100 80GB HBM3"] * 2, ""),
        (["NVIDIA H100 80GB HBM3", "NVIDIA L40S"], "here it is NVIDIA L40S, which takes another"),
        (["NVIDIA H100 PCIe"], "here it is NVIDIA H100 PCIe"),
        ([], ""),
    ],
)
def test_another_gpu_than_the_measured_one_is_said(tmp_path, facts, names, said):
    source = cost(spec_of(tmp_path, facts, **LARGE), engine="transformers", names=names).source
    assert said in source and ("here it is" in source) == bool(said)


@pytest.mark.parametrize(
    ("gpu_ids", "names"),
    [
        (None, ["NVIDIA L40S", "NVIDIA H100 80GB HBM3"]),
        (["1"], ["NVIDIA H100 80GB HBM3"]),
        (["GPU-a"], ["NVIDIA L40S"]),
        (["7"], []),
        ([], []),
    ],
)
def test_nvidia_smi_names_the_gpus_of_a_job(monkeypatch, gpu_ids, names):
    listed = "GPU 0: NVIDIA L40S (UUID: GPU-a)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)\n"
    monkeypatch.setattr(local, "_listed_gpus", lambda: listed)
    assert local.gpu_names(gpu_ids) == names


def test_where_nothing_was_measured_here_an_h100_tells_of_lora_on_an_8b_model(tmp_path, facts):
    model = LARGE
    found = cost(spec_of(tmp_path, facts, **model))
    assert found.speed == "measured" and "H100" in found.source
    assert 4000 < found.tokens_per_second < 6400
    assert found.seconds == pytest.approx(found.tokens / found.tokens_per_second / 2)
    short = cost(spec_of(tmp_path, facts, custom__vision__max_pixels=131072, **model))
    assert short.tokens_per_second < found.tokens_per_second, "kernels of short records wait"
    for changes in (
        {"policy__lora": None},
        {"policy__model_name_or_path": "nvidia/Cosmos-Reason2-2B"},
    ):
        unknown = cost(spec_of(tmp_path, facts, **(model | changes)))
        assert unknown.seconds is None and unknown.tokens
        assert "S of the first steps tells it" in unknown.text()
        assert "--seconds-per-step" in unknown.text()
    assert cost(spec_of(tmp_path, facts, **model), []).seconds is None, "a CPU"


def test_without_facts_of_the_data_nothing_is_predicted(tmp_path, facts):
    assert "--dataset-facts" in cost(spec_of(tmp_path, None), seconds_per_step=1).text()
    other = {"custom__train_dataset__annotation_path": "/other/annotations.json"}
    assert cost(spec_of(tmp_path, facts, **other), seconds_per_step=1).seconds is None
    spec = spec_of(tmp_path, facts)
    os.unlink(facts)
    assert cost(spec, seconds_per_step=1).seconds is None
