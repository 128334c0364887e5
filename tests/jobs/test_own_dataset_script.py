"""A spec whose data only a dataset script of somebody's own knows: launched with that script."""

import pytest
from foreign_specs import CLEAN, POLICY
from launch_site import Site, write_annotations

from cosmos_reason.jobs import launch
from cosmos_reason.jobs.platforms import docker

HUB_DATA = (
    POLICY
    + """
[train]
output_dir = "out"
enable_validation = true
train_policy = {type = "sft", dataset = {name = "nvidia/Cosmos-Reason1-SFT-Dataset"}}
"""
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(docker, "engine_facts", lambda host: {"Runtimes": {"nvidia": {}}})
    made = Site(tmp_path, monkeypatch)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "custom_sft.py").write_text("")
    return made


def asked(site, engine="cosmos-rl", **fields):
    usual = {"platform": "docker", "image": "x", "docker_host": "unix:///x", "engine": engine}
    return site.request(**usual | fields)


def plan(site, text, engine="cosmos-rl", **fields):
    text = text.replace("nvidia/Cosmos-Reason2-2B", str(site.root / "model"))
    (site.root / "train.toml").write_text(text.replace("enable_validation = true\n", ""))
    job, found = launch.plan(asked(site, engine, **fields))
    return job, {one.id: one for one in found if one.severity == "error"}


@pytest.mark.parametrize("text", [CLEAN["guide"], CLEAN["own dataset script"], HUB_DATA])
@pytest.mark.parametrize("engine", ["cosmos-rl", "tao"])
def test_data_that_ours_does_not_read_need_the_script(site, text, engine):
    job, errors = plan(site, text, engine)
    assert job is None and errors.keys() == {"SPEC-DATA-TRAIN"}
    assert "--entry-script FILE" in errors["SPEC-DATA-TRAIN"].message
    # Only annotations that are named can be pasted in; which script reads other data is unknown.
    assert bool(errors["SPEC-DATA-TRAIN"].fix) == (text == CLEAN["guide"])
    script = str(site.root / "mine" / "custom_sft.py")
    job, errors = plan(site, text, engine, entry_script=script)
    assert job and not errors
    assert job.command[-1] == script and job.options["entry_script"] == script
    assert f"type=bind,source={site.root}/mine,target={site.root}/mine,readonly" in job.command


def test_a_script_that_is_not_there_is_said(site):
    _, errors = plan(site, HUB_DATA, entry_script=str(site.root / "gone.py"))
    assert errors.keys() == {"JOB-INPUT-MISSING"}
    assert "--entry-script" in errors["JOB-INPUT-MISSING"].message


def test_only_a_training_on_cosmos_rl_has_a_dataset_script(site):
    script = str(site.root / "mine" / "custom_sft.py")
    _, found = launch.plan(site.request("evaluate", entry_script=script))
    assert "JOB-FLAG" in {one.id for one in found}
    _, found = launch.plan(site.request(entry_script=script))
    assert "JOB-FLAG" in {one.id for one in found}


def test_the_container_sees_the_data_of_the_script(site):
    clips = site.root / "clips"
    text = CLEAN["own dataset script"]
    script = str(site.root / "mine" / "custom_sft.py")
    job, _ = plan(site, text, entry_script=script)
    assert str(clips) not in str(job.command)
    _, found = launch.plan(asked(site, entry_script=script))
    (absent,) = [one for one in found if one.id == "JOB-INPUT-RELATIVE"]
    assert (absent.where, absent.severity) == ("custom.dataset.path", "warning")
    clips.mkdir()
    for written in (text, text.replace('"clips"', f'"{clips}"')):
        job, _ = plan(site, written, entry_script=script)
        assert f"type=bind,source={clips},target={clips},readonly" in job.command
        assert {"custom.dataset.path": str(clips)}.items() <= inputs_of(job).items()


def test_data_of_the_script_that_are_elsewhere_are_mounted_there(site):
    text = CLEAN["own dataset script"].replace('"clips"', '"/data/clips"')
    script = str(site.root / "mine" / "custom_sft.py")
    _, errors = plan(site, text, entry_script=script)
    assert errors.keys() == {"JOB-INPUT-MISSING"}
    job, errors = plan(site, text, entry_script=script, carried=True)
    assert not errors
    assert "type=bind,source=/data/clips,target=/data/clips,readonly" in job.command
    _, found = launch.plan(asked(site, entry_script=script, carried=True))
    assert "/data/clips" in {one.where for one in found if one.id == "JOB-INPUT-ELSEWHERE"}


@pytest.mark.parametrize("value", ["train", "a question", "nvidia/clips", "s3://bucket/clips"])
def test_what_no_key_calls_a_path_is_left_as_it_is(site, value):
    (site.root / "train").mkdir()
    text = CLEAN["own dataset script"].replace('path = "clips"', f'split = "{value}"')
    job, errors = plan(site, text, entry_script=str(site.root / "mine" / "custom_sft.py"))
    assert not errors and "custom.dataset.split" not in inputs_of(job)


def inputs_of(job):
    return {entry["role"]: entry["path"] for entry in job.inputs}


def test_validation_data_that_ours_does_not_read_are_none(site):
    write_annotations(site.root / "a.json", 10_000)
    text = HUB_DATA + '[validation]\nenable = true\ndataset = {name = "a/b"}\n'
    _, errors = plan(site, text)
    assert errors.keys() == {"SPEC-DATA-TRAIN"}
    _, errors = plan(site, text + '[custom.train_dataset]\nannotation_path = "a.json"\n')
    assert errors.keys() == {"SPEC-VALIDATION-DATA"}
    script = str(site.root / "mine" / "custom_sft.py")
    assert not plan(site, text, entry_script=script)[1]
