"""A spec whose data only a dataset script of somebody's own knows: launched with that script."""

import pytest
from foreign_specs import CLEAN, POLICY
from launch_site import Site, write_annotations

from cosmos_reason.base.findings import Failure
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


def plan(site, text, engine="cosmos-rl", **fields):
    text = text.replace("nvidia/Cosmos-Reason2-2B", str(site.root / "model"))
    (site.root / "train.toml").write_text(text.replace("enable_validation = true\n", ""))
    usual = {"platform": "docker", "image": "x", "docker_host": "unix:///x", "engine": engine}
    job, found = launch.plan(site.request(**usual | fields))
    return job, {one.id: one for one in found if one.severity == "error"}


@pytest.mark.parametrize("text", [CLEAN["guide"], CLEAN["own dataset script"], HUB_DATA])
@pytest.mark.parametrize("engine", ["cosmos-rl", "tao"])
def test_data_that_ours_does_not_read_need_the_script(site, text, engine):
    job, errors = plan(site, text, engine)
    assert job is None and errors.keys() == {"SPEC-DATA-TRAIN"}
    assert "--entry-script FILE" in errors["SPEC-DATA-TRAIN"].message
    assert ("--entry-script" in str(errors["SPEC-DATA-TRAIN"].fix)) == (text != CLEAN["guide"])
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
    (site.root / "clips").mkdir()
    script = str(site.root / "mine" / "custom_sft.py")
    with pytest.raises(Failure, match="JOB-MEDIA-HIDDEN") as caught:
        plan(site, CLEAN["own dataset script"], entry_script=script)
    (hidden,) = caught.value.findings
    assert hidden.fix.changes == {"custom.dataset.path": f"{site.root}/clips"}
    whole = CLEAN["own dataset script"].replace('"clips"', f'"{site.root}/clips"')
    job, _ = plan(site, whole, entry_script=script)
    assert f"type=bind,source={site.root}/clips,target={site.root}/clips,readonly" in job.command


def test_validation_data_that_ours_does_not_read_are_none(site):
    write_annotations(site.root / "a.json", 10_000)
    text = HUB_DATA + '[validation]\nenable = true\ndataset = {name = "a/b"}\n'
    _, errors = plan(site, text)
    assert errors.keys() == {"SPEC-DATA-TRAIN"}
    _, errors = plan(site, text + '[custom.train_dataset]\nannotation_path = "a.json"\n')
    assert errors.keys() == {"SPEC-VALIDATION-DATA"}
    script = str(site.root / "mine" / "custom_sft.py")
    assert not plan(site, text, entry_script=script)[1]
