"""What is planned for NVIDIA's images: the spec as each of them reads it, and what they are
given."""

import json
import tomllib

import pytest
from launch_site import Site, change
from run_folders import add_adapter
from support import run_script

from cosmos_reason.base import findings as f
from cosmos_reason.jobs import launch
from cosmos_reason.spec import document

NAME = "nvcr.io/nvidia/tao/tao-toolkit:{}-cosmos-rl"
VERSIONS = ("7.2.0", "7.1.0", "7.0.1")


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def planned(site, action, version=None, **fields):
    """(job, the spec as the container reads it, findings by id) of a plan for another machine."""
    image = NAME.format(version) if version else None
    usual = {"platform": "docker", "engine": "tao", "gpu_ids": ["0"], "carried": True}
    asked = site.request(action, **usual | {"image": image} | fields)
    output = site.root / f"plan-{version}"
    job, found = launch.carry(asked, output, None)
    read = tomllib.loads((output / "spec.toml").read_text()) if job else {}
    return job, read, {one.id: one for one in found}


def environment(job):
    words = job.command
    pairs = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    return dict(pair.partition("=")[::2] for pair in pairs)


@pytest.mark.parametrize("version", VERSIONS)
def test_one_evaluation_is_written_for_each_image(site, version):
    adapter = add_adapter(site.root / "run", "step_3", site.root / "model")
    change(site, "evaluate", model__model_name=str(adapter), model__enable_lora=True,
           model__base_model_path="model")  # fmt: skip
    spec = (site.root / "evaluate.toml").read_text()
    job, read, found = planned(site, "evaluate", version)
    assert job and not f.has_errors(found.values()), found
    assert (site.root / "evaluate.toml").read_text() == spec
    is_newest = version == "7.2.0"
    assert read["vision"] == ({"num_frames": 8} if is_newest else {"nframes": 8})
    given = {"qwen3_vl_patch_embed": "linear", "export_dir": f"{job.folder}/merged"}
    assert read["model"].items() & given.items() == (given.items() if is_newest else set())
    assert read["task"] == {"type": ""} and "names" in read["metrics"]
    assert ("TAO_API_JOB_ID" in environment(job)) == is_newest
    assert ("JOB-IMAGE-ISSUE" in found) == (version == "7.1.0")


def test_the_default_is_the_newest_image_and_no_word_is_said_against_it(site):
    job, read, found = planned(site, "train")
    assert job.image == NAME.format("7.2.0")
    assert read["policy"]["qwen3_vl_patch_embed"] == "linear"
    assert read["custom"]["vision"] == {"nframes": 8}
    assert not [one for one in found if one.startswith("JOB-IMAGE")]
    assert environment(job)["TAO_API_JOB_ID"] == job.job_id
    assert environment(job)["TAO_API_RESULTS_DIR"] == str(job.folder)


def test_a_spec_for_the_newest_image_runs_there_and_is_refused_elsewhere(site):
    written = document.load(site.root / "evaluate.toml")
    document.delete(written, "vision.nframes")
    for key, value in {"vision.num_frames": 12, "evaluation.shard_strategy": "stride"}.items():
        document.set_value(written, key, value)
    document.dump(written, site.root / "evaluate.toml")
    job, read, found = planned(site, "evaluate", "7.2.0")
    assert job and read["vision"] == {"num_frames": 12}
    assert read["evaluation"]["shard_strategy"] == "stride"
    assert found["SPEC-TRANSLATED"].severity == f.INFO
    job, _, found = planned(site, "evaluate", "7.1.0")
    assert job is None
    message = found["JOB-IMAGE-KEY"].message
    assert "vision.num_frames" in message and "7.1.0" in message and "shard_strategy" in message


@pytest.mark.parametrize("version", VERSIONS)
def test_a_variable_that_an_image_is_not_given_is_refused(site, version):
    job, _, found = planned(site, "train", version, env=["TAO_API_JOB_ID"])
    assert (job is None) == ("JOB-IMAGE-KEY" in found) == (version != "7.2.0")


def test_an_image_of_ones_own_is_planned_by_the_version_that_is_said(site):
    job, read, found = planned(site, "train", image="mine:1")
    assert found["JOB-IMAGE-VERSION"].severity == f.WARNING
    assert "qwen3_vl_patch_embed" in read["policy"]
    asked = {"image": "mine:1", "image_version": "7.1.0"}
    request = site.request("train", platform="docker", engine="tao", carried=True, **asked)
    job, found = launch.carry(request, site.root / "again", None)
    assert "JOB-IMAGE-VERSION" not in {one.id for one in found}
    assert job.options["image_version"] == "7.1.0"  # so that a retry is written alike
    read = tomllib.loads((site.root / "again" / "spec.toml").read_text())
    assert "qwen3_vl_patch_embed" not in read["policy"]


@pytest.mark.parametrize("layout", ["plain", "reason1"])
def test_a_key_of_ours_does_not_reach_a_container(site, layout):
    change(site, "evaluate", results__layout=layout, results__save_metrics_summary=True)
    job, read, found = planned(site, "evaluate")
    assert job and read["results"] == {"save_metrics_summary": True}
    assert ("SPEC-ENGINE-KEY" in found) == (layout == "reason1")


def test_launch_job_takes_the_version_of_an_image(site):
    words = ["plan", "train", "--spec", "train.toml", "--gpu-ids", "0", "--json"]
    tao = ["--platform", "docker", "--engine", "tao", "--image", "mine:1", "--output", "there"]
    done = run_script("launch_job.py", *words, *tao, "--image-version", "7.1.0", cwd=site.root)
    assert done.returncode == 0, done.stderr
    read = tomllib.loads((site.root / "there" / "spec.toml").read_text())
    assert "qwen3_vl_patch_embed" not in read["policy"]
    done = run_script("launch_job.py", *words, *tao, "--image-version", "7.9.9", cwd=site.root)
    assert done.returncode == 2 and "7.2.0, 7.1.0, 7.0.1" in done.stdout + done.stderr
    local = ["--platform", "local", "--image-version", "7.1.0"]
    done = run_script("launch_job.py", *words, *local, cwd=site.root)
    found = json.loads(done.stdout)["findings"]
    assert "--image-version" in [one["where"] for one in found if one["id"] == "JOB-FLAG"]
