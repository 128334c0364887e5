"""Every action of the embedded engine, a training on two nodes and a study through the real
kubectl, with a tiny model. The server is the stand-in, whose pods are processes of this machine."""

import json
import os
import shutil
import sys
from pathlib import Path

import kubernetes_api
import launch_site
import oracles
import pytest
import study_world
from study_world import succeed
from support import ROOT, called

from cosmos_reason.base import files
from cosmos_reason.jobs import progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document
from cosmos_reason.tuning import study

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl"),
]
HANG = 300  # seconds after which a test gives up


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = study_world.make(tmp_path_factory.mktemp("world"))
    train = document.load(root / "train.toml")
    document.set_value(train, "policy.parallelism.dp_replicate_size", 2)
    document.set_value(train, "train.train_batch_per_replica", 2)
    document.dump(train, root / "two.toml")
    study_world.write_other_specs(root)
    return root


@pytest.fixture(scope="module")
def api(world):
    """The stand-in. Its pods have the programs of this environment, as an image would."""
    for name in ("api", "names"):
        (world / name).mkdir()
    (world / "names" / "sitecustomize.py").write_text(kubernetes_api.NAMES_OF_PODS)
    api = kubernetes_api.Api(world / "api")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    api.variables = {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(world / "names")}
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("KUBECONFIG", str(api.config()))
        patches.setenv("HOME", str(world / "home"))
        patches.delenv("K8S_NAMESPACE", raising=False)
        yield api
    api.stop()


def words(world):
    return ["--image", "image:1", "--volume", f"claim:{world}"]


def submitted(world, action, name, *more):
    asked = ["submit", action, "--spec", f"{name}.toml", "--engine", "transformers"]
    asked += ["--platform", "kubernetes", "--gpu-ids", "none", *words(world), *more]
    return world / "jobs" / succeed("launch_job.py", *asked, cwd=world)


def complete(folder):
    job = launch_site.ended(folder, HANG)
    assert job.state == "COMPLETE", (job.reason, progress.log_tail(folder, 40))
    return job


def test_an_evaluation(world, api):
    job = complete(submitted(world, "evaluate", "eval"))
    assert job.evidence == {"rows": 9, "questions": 9, "failed": 0}
    succeed("score_predictions.py", str(job.outputs["results_dir"]), "--json", cwd=world)


def test_an_inference(world, api):
    job = complete(submitted(world, "inference", "inference"))
    assert job.evidence == {"rows": 3, "questions": 3, "failed": 0}
    assert len(files.read_json(Path(job.outputs["results_dir"]) / "predictions.json")) == 3


def test_a_quantization(world, api, monkeypatch):
    own = {"PYTHONPATH": str(oracles.llmcompressor()), "HF_HUB_OFFLINE": "1"}
    monkeypatch.setattr(api, "variables", api.variables | own)
    job = complete(submitted(world, "quantize", "quantize"))
    record = files.read_json(Path(job.evidence["checkpoint"]) / "quantization.json")
    assert record["job_id"] == job.job_id


def test_two_nodes_train_as_one(world, api):
    losses = []
    for name, more in (("train", []), ("two", ["--nodes", "2"])):
        job = complete(submitted(world, "train", name, *more))
        lines, _ = progress.read_metrics(job.folder)
        losses.append([line["train/loss"] for line in lines if "train/loss" in line])
    assert len(losses[0]) == 2 and losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert job.resources == {"nodes": 2, "gpus_per_node": 0, "gpu_ids": []}
    assert api.objects["jobs", job.job_id]["spec"]["completionMode"] == "Indexed"
    assert "node 1 of 2" in (job.folder / "node-1.log").read_text()


def test_trials_are_jobs_there(world, api):
    asked = ["run", "--study", "study", "--spec", "train.toml", "--eval-spec", "eval.toml"]
    asked += ["--range", "lr=1e-5..1e-3", "--pruner", "none", "--trials", "1", "--gpu-ids", "none"]
    asked += ["--every", "0.5", "--platform", "kubernetes", "--json", "--", *words(world)]
    command = [sys.executable, str(ROOT / "scripts" / "tune_hyperparameters.py"), *asked]
    done = called(command, cwd=world, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)
    records = study.open_or_begin(world / "study").trials()
    assert [trial["state"] for trial in records] == [study.COMPLETE] * 2, records
    made = [jobs.Job.load(path.parent) for path in (world / "study").rglob("job.json")]
    assert {(job.action, job.platform) for job in made} == {
        ("train", "kubernetes"),
        ("evaluate", "kubernetes"),
    }
    assert all(job.platform_ref["k8s_job"] for job in made)
