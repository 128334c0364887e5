"""The time that a plan predicts: from the tokens of the data and a speed whose origin is said."""

import json
import os

import pytest
from support_specs import changed, write_facts

from cosmos_reason.base import files
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs import run_time
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


def cost(spec, gpus=("0", "1"), jobs_dir=None, seconds_per_step=None):
    case = run_time.case_of("tao", document.load(spec), spec)
    return run_time.predict(case, list(gpus), jobs_dir or spec.parent / "jobs", seconds_per_step)


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


def earlier_job(jobs_dir, facts, took, gpus, **more):
    spec_of(jobs_dir / JOB, facts, **more)
    record = {
        "schema_version": 1, "job_id": JOB, "action": "train", "engine": "tao",
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


def test_where_nothing_was_measured_here_an_h100_tells_of_lora_on_an_8b_model(tmp_path, facts):
    model = {"policy__model_name_or_path": "nvidia/Cosmos-Reason2-8B"}
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
