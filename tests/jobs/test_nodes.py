"""How many nodes a launch takes, and what is refused."""

import json

import jsonschema
import pytest
from launch_site import Site, change, ended
from support import run_script

from cosmos_reason.base import bundle, files
from cosmos_reason.jobs import launch, nodes
from cosmos_reason.jobs.platforms import preflight
from cosmos_reason.spec import origins


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("asked", "needed", "count"),
    [(None, 0, 1), (None, 8, 1), (None, 9, 2), (None, 16, 2), (4, 16, 4), (1, 16, 1)],
)
def test_nodes_that_hold_the_gpus(asked, needed, count):
    assert nodes.count(asked, needed) == count


def spread(site, shards, replicas):
    change(
        site,
        "train",
        policy__parallelism__dp_shard_size=shards,
        policy__parallelism__dp_replicate_size=replicas,
    )


def laid_out(site, count, gpus):
    """Note beside the site's spec that it was built for so many nodes."""
    size = origins.of_nodes(count, gpus)
    origins.write(site.root / "train.toml", "train", "transformers", {}, nodes=size)


def refusal(site, **fields):
    """The finding about nodes, None without one."""
    found = launch.objections(site.request(**fields))
    return next((finding for finding in found if finding.id == "JOB-NODES"), None)


ELSEWHERE = {"platform": "docker", "engine": "cosmos-rl", "image": "x"}


@pytest.mark.parametrize("asked", [None, 1, 2])
def test_two_nodes_of_eight_are_refused_where_a_job_has_one(site, asked):
    spread(site, 8, 2)
    finding = refusal(site, **ELSEWHERE, nodes=asked)
    assert finding.message.endswith("several nodes: slurm, kubernetes")
    assert "the 16 GPUs of the spec" in finding.message and "on docker takes one" in finding.message
    assert "--gpu-ids" not in str(finding.fix)


def test_the_platforms_that_can_are_named(site, monkeypatch):
    spread(site, 8, 2)
    able = {("train", "cosmos-rl"): ["elsewhere"]}
    monkeypatch.setattr(nodes, "platforms", lambda *way: able.get(way, []))
    finding = refusal(site, **ELSEWHERE)
    assert finding.message.endswith("several nodes: elsewhere")
    assert finding.fix.flags == {"--platform": "elsewhere"}


def test_a_training_of_one_rank_has_one_node(site):
    finding = refusal(site, nodes=2)
    assert "train with transformers on local takes one" in finding.message
    assert finding.fix.flags == {"--nodes": 1}
    assert refusal(site, nodes=1) is None and refusal(site) is None


@pytest.mark.parametrize(("platform", "image"), [("local", None), ("docker", "x")])
def test_ranks_of_several_nodes_go_where_there_are_some(site, platform, image):
    spread(site, 1, 2)
    finding = refusal(site, platform=platform, image=image, nodes=2)
    assert f"train with transformers on {platform} takes one" in finding.message
    assert finding.fix.flags == {"--platform": "slurm"}
    assert refusal(site, platform="slurm", nodes=2) is None


@pytest.mark.parametrize(
    ("shards", "replicas", "asked", "fix"),
    [(8, 2, None, None), (4, 3, None, 3), (8, 2, 3, 2), (8, 2, 16, None), (8, 2, 1, 2)],
)
def test_nodes_are_alike_and_full(site, monkeypatch, shards, replicas, asked, fix):
    monkeypatch.setattr(nodes, "platforms", lambda *_: ["docker"])
    spread(site, shards, replicas)
    finding = refusal(site, **ELSEWHERE, nodes=asked)
    assert (finding and finding.fix.flags) == (fix and {"--nodes": fix})


def test_the_record_has_the_nodes_and_a_retry_keeps_them(site, monkeypatch):
    monkeypatch.setattr(nodes, "platforms", lambda *_: ["docker"])
    spread(site, 4, 2)
    asked = site.request(**ELSEWHERE, docker_host="unix:///none")
    assert launch.plan(asked)[0].resources["nodes"] == 1
    job, _ = launch.plan(site.request(**ELSEWHERE, docker_host="unix:///none", nodes=2))
    assert job.resources == {"nodes": 2, "gpus_per_node": 4, "gpu_ids": None}
    assert "COSMOS_REASON_ONE_NODE=1" not in job.command


def test_preflight_proposes_what_it_was_asked(site):
    spread(site, 8, 2)
    words = ["--platform", "docker", "--engine", "cosmos-rl", "--spec", "train.toml"]
    words += ["--image", "x", "--skip-platform-access", "--json"]
    done = run_script("check_tao_launch_preflight.py", *words, cwd=site.root)
    found = {finding["id"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1 and "JOB-GPU-COUNT" not in found
    assert found["JOB-NODES"]["fix"].endswith(" --platform slurm")
    assert found["JOB-NODES"]["message"].endswith("; several nodes: slurm, kubernetes")


def test_the_nodes_that_a_spec_was_built_for_are_those_of_its_launch(site):
    """No --nodes is said again: neither to the plan nor to the preflight."""
    spread(site, 2, 2)
    laid_out(site, 2, 4)
    job, _ = launch.plan(site.request(platform="slurm"))
    assert job.resources == {"nodes": 2, "gpus_per_node": 2, "gpu_ids": None}
    assert {"--nodes=2", "--gres=gpu:2"} < set(job.command)
    site.monkeypatch.chdir(site.root)
    checked = preflight.of_options(
        preflight.PreflightOptions(spec=str(site.root / "train.toml")), "slurm"
    )
    assert (checked.nodes, checked.gpus_per_node) == (2, 2)


def test_a_spec_that_needs_other_gpus_since_has_lost_its_nodes(site):
    laid_out(site, 2, 4)
    spread(site, 2, 1)
    assert launch.plan(site.request(platform="slurm"))[0].resources["nodes"] == 1


@pytest.mark.parametrize("platform", ["local", "docker"])
def test_a_spec_of_two_nodes_goes_where_there_are_some(site, platform):
    spread(site, 1, 2)
    laid_out(site, 2, 2)
    image = "x" if platform == "docker" else None
    finding = refusal(site, platform=platform, image=image)
    assert finding.message.endswith("several nodes: slurm, kubernetes; or --nodes 1")
    assert refusal(site, platform=platform, image=image, nodes=1) is None


def test_other_nodes_than_those_of_the_spec_are_warned_of(site):
    spread(site, 4, 1)
    laid_out(site, 1, 4)
    found = launch.objections(site.request(platform="slurm", nodes=2))
    (told,) = [one for one in found if one.id == "JOB-NODES-LAYOUT"]
    assert told.severity == "warning"
    assert str(told.fix).endswith("train.toml --gpus-per-node 2 --nodes 2 -o spec.toml")
    again = site.request(platform="slurm", nodes=2, retry_of="train-1")
    assert "JOB-NODES-LAYOUT" not in {one.id for one in launch.objections(again)}


@pytest.mark.parametrize(
    ("needed", "there", "fix"),
    [
        (4, [2, 2], {"--nodes": 2}),
        (4, [2, 2, 2], {"--nodes": 2}),
        (8, [8, 4, 4], {"--nodes": 1}),
        (16, [4] * 4, {"--nodes": 4}),
        (16, [6] * 4, {"--nodes": 4}),
        (16, [4, 4], {"--gpus-per-node": 4, "--nodes": 2}),
        (4, [2, 0], {"--gpus-per-node": 2, "--nodes": 1}),
        (4, [0, 0], {}),
        (4, [], {}),
    ],
)
def test_nodes_that_are_there(needed, there, fix):
    way = ("train", "transformers", "slurm")
    assert nodes.others(way, needed, there).flags == fix


@pytest.mark.parametrize("way", [("train", "tao", "slurm"), ("evaluate", "transformers", "slurm")])
def test_a_job_of_one_node_gets_fewer_gpus(way):
    assert nodes.others(way, 4, [2, 2]).flags == {"--gpus-per-node": 2}
    assert nodes.others(way, 4, [2, 4]).flags == {"--nodes": 1}


def test_an_engine_that_has_one_node_names_those_with_several(site):
    spread(site, 8, 2)
    finding = refusal(site, platform="docker", engine="tao", image="x")
    assert "cosmos-rl on slurm, kubernetes" in finding.message
    assert finding.fix.flags == {"--engine": "cosmos-rl", "--platform": "slurm"}


def test_a_training_that_goes_on_has_the_nodes_of_its_job(tmp_path):
    (tmp_path / "job.json").write_text('{"resources": {"nodes": 2}}')
    assert nodes.of_job(tmp_path, 4) == 2
    assert nodes.of_job(tmp_path, 3) is None and nodes.of_job(tmp_path / "none", 4) is None
    (tmp_path / "job.json").write_text('{"resources": {"nodes": 0}}')  # edited by somebody
    assert nodes.of_job(tmp_path, 4) is None


def test_the_spec_of_a_job_notes_the_nodes_it_was_launched_on(site):
    """A spec that is built from it, or launched again, has as many."""
    spread(site, 1, 1)
    laid_out(site, 2, 4)  # for a layout that it has no more
    folder = site.submit()
    assert ended(folder).state == "COMPLETE"
    assert origins.nodes_of(folder / "spec.toml", 1) == 1
    jsonschema.validate(files.read_json(folder / "spec.origins.json"), bundle.schema("origins"))
