"""A launch that is rendered for Kubernetes, applied by the real kubectl to the stand-in, whose pods
are processes of this machine, and adopted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_api
import pytest
import yaml
from elsewhere_world import World, awaited

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl"),
]


@pytest.fixture
def world(tmp_path, monkeypatch):
    found = World(tmp_path)
    (tmp_path / "api").mkdir()
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "sitecustomize.py").write_text(kubernetes_api.NAMES_OF_PODS)
    found.api = kubernetes_api.Api(tmp_path / "api")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    names = str(tmp_path / "names")
    found.api.variables = {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": names}
    monkeypatch.setenv("KUBECONFIG", str(found.api.config()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield found
    found.api.stop()


def applied(world, *words, **more):
    cluster = {"namespace": "team", "volumes": [f"claim:{world.there}"]}
    world.render("kubernetes", *words, image="image:1", kubernetes=cluster, **more)
    # The README's line; the stand-in has no schemas to validate by.
    manifests = str(world.out / "manifests")
    return world.start("kubectl", "apply", "--validate=false", "-n", "team", "-f", manifests)


@pytest.mark.promise
def test_a_training_is_applied_by_kubectl_and_goes_on_here(world):
    assert applied(world) == "job.batch/out created\n"
    assert awaited(world.out / "run.exit")[0] == "0", (world.out / "log.txt").read_text()
    record = world.adopted()
    assert (record["state"], record["reason"]) == ("COMPLETE", ""), record
    assert record["site"] == "there" and record["job_id"].startswith("train-")
    world.goes_on(record)


def test_two_pods_train_as_one(world):
    text = (world.here / "train.toml").read_text()
    for name, count in (("dp_replicate_size", 2), ("train_batch_per_replica", 2)):
        (old,) = [line for line in text.splitlines() if line.startswith(f"{name} = ")]
        text = text.replace(old, f"{name} = {count}")
    (world.here / "train.toml").write_text(text)
    printed = applied(world, "--nodes", "2", nodes=2)
    assert printed.splitlines() == ["job.batch/out created", "service/out created"]
    for name in ("run.exit", "node-1.exit"):
        assert awaited(world.out / name)[0] == "0", (world.out / "log.txt").read_text()
    record = world.adopted()
    assert (record["state"], record["resources"]["nodes"]) == ("COMPLETE", 2), record


def test_a_pod_that_never_noted_its_end_is_told(world):
    """Only its own note says that it did what it should."""
    assert applied(world)
    assert awaited(world.out / "run.exit")[0] == "0"
    (world.out / "run.exit").unlink()
    shutil.copytree(world.out, world.here / "back", symlinks=True)
    refused = world.run("adopt", "back", code=1)
    assert [one["id"] for one in refused["findings"]] == ["JOB-NOT-ENDED"]


def test_the_client_takes_the_manifests(world):
    """kubectl's own parser and a dry run, without the server's part."""
    applied(world)
    manifests = world.out / "manifests" if world.out.exists() else world.here / "out" / "manifests"
    words = ["kubectl", "apply", "--dry-run=client", "--validate=false", "-f", str(manifests)]
    done = subprocess.run([*words, "-o", "yaml", "-n", "team"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["kind"] in ("Job", "List")
    awaited(world.out / "run.exit")
