"""The time that is predicted for an evaluation by the embedded engine."""

import pytest
from launch_site import Site, change
from support_specs import changed, write_facts

from cosmos_reason.base import files
from cosmos_reason.jobs import launch, run_time
from cosmos_reason.jobs.platforms import local
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document, origins

MODEL = "nvidia/Cosmos-Reason2-8B"
H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"


@pytest.fixture
def facts(tmp_path):
    path = write_facts(tmp_path, 200)
    files.write_json(path, files.read_json(path) | {"questions": 600})
    return path


def case_of(facts, engine="transformers", **changes):
    written = {"model__model_name": MODEL, "generation__max_tokens": 64} | changes
    table = changed("evaluate", {key.replace("__", "."): to for key, to in written.items()})
    return Case("evaluate", engine, table, facts)


def test_it_is_a_range_of_the_answers_that_nobody_knows(facts):
    found = run_time.predict_evaluation(case_of(facts), 1, [H100])
    assert found.least_seconds < found.seconds and found.speed == "measured"
    assert found.gpu_hours == pytest.approx(found.seconds / 3600)
    assert "600 questions" in found.source and "answers of 8 to 64" in found.source
    assert "H100" in found.source and "here it is" not in found.source
    assert "here it is NVIDIA L40S" in run_time.predict_evaluation(case_of(facts), 1, [L40S]).source
    wordy = run_time.predict_evaluation(case_of(facts, generation__max_tokens=1024), 1)
    assert wordy.seconds > 3 * found.seconds and wordy.least_seconds == found.least_seconds
    short = run_time.predict_evaluation(case_of(facts, generation__max_tokens=4), 1)
    assert short.least_seconds < found.least_seconds and "answers of 4 to 4;" in short.source


def test_fewer_questions_and_more_gpus_take_less(facts):
    whole = run_time.predict_evaluation(case_of(facts), 1)
    two = run_time.predict_evaluation(case_of(facts), 2)
    assert two.seconds < whole.seconds and "several GPUs were not" in two.source
    some = run_time.predict_evaluation(case_of(facts, evaluation__limit=100), 1)
    assert some.seconds < whole.seconds / 3 and "100 questions" in some.source
    alone = run_time.predict_evaluation(case_of(facts, evaluation__batch_size=1), 1)
    assert alone.seconds > 5 * whole.seconds


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({}, 0),
        ({"model__model_name": "nvidia/Cosmos-Reason2-2B"}, 1),
        ({"model__dtype": "float32"}, 1),
        ({"engine": "tao"}, 1),
        ({"facts": None}, 1),
    ],
)
def test_what_was_not_measured_is_not_foretold(facts, changes, gpus):
    assert run_time.predict_evaluation(case_of(**{"facts": facts} | changes), gpus) is None


@pytest.fixture
def planned(tmp_path, monkeypatch, facts):
    """The time of an evaluation that is planned with such GPUs and words."""
    site = Site(tmp_path, monkeypatch)
    spec = tmp_path / "evaluate.toml"
    change(site, "evaluate", generation__max_tokens=64, model__model_name=f"hf_model://{MODEL}")
    annotations = document.get(document.load(spec), "dataset.annotation_path")
    described = files.read_json(facts) | {"annotations": str(tmp_path / annotations)}
    files.write_json(facts, described)
    origins.write(spec, "evaluate", "transformers", {}, facts)
    monkeypatch.chdir(tmp_path)

    def planned(names, **fields):
        listed = "".join(f"GPU {n}: {name} (UUID: GPU-{n})\n" for n, name in enumerate(names))
        monkeypatch.setattr(local, "_listed_gpus", lambda: listed)
        asked = site.request("evaluate", **fields)
        job, found = launch.plan(asked)
        assert job, found
        return run_time.of_launch(run_time.with_facts(asked), None)

    return planned


def test_a_plan_on_this_machine_asks_what_its_gpus_are(planned):
    assert "here it is" not in planned([H100], gpu_ids=["0"]).source
    assert "here it is NVIDIA L40S" in planned([L40S, H100], gpu_ids=["0"]).source
    assert planned([H100], gpu_ids=[]) is None, "the CPU"
    assert planned([]) is None, "no GPU there"


def test_a_plan_elsewhere_cannot_ask(planned):
    container = {"platform": "docker", "docker_host": "unix:///none", "image": "x"}
    found = planned([], gpu_ids=["0"], **container)
    assert found.seconds and "here it is" not in found.source
