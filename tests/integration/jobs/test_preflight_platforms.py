"""The preflight against the real things:
a Docker engine, a SLURM cluster, kubectl without a cluster, an S3 server."""

import json
import shutil

import pytest
from docker_engine import IMAGE
from support import run_script

from cosmos_reason.remote import s3

pytestmark = pytest.mark.integration


def preflight(*args, env=None, cwd=None):
    done = run_script("check_tao_launch_preflight.py", *args, "--json", env=env, cwd=cwd)
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ok"] else 1), done.stderr
    return document["result"], {finding["id"]: finding for finding in document["findings"]}


def test_a_real_engine_without_gpus(dockerd):
    result, found = preflight("--platform", "docker", "--container-image", IMAGE)
    assert result["docker"]["version"] and result["image"]["present"]
    assert (
        found["PRE-DOCKER-RUNTIME"]["severity"] == "error"
        and found["PRE-GPU-NONE"]["severity"] == "error"
    )
    _, found = preflight(
        "--platform", "docker", "--container-image", IMAGE, "--engine", "transformers"
    )
    assert found["PRE-DOCKER-RUNTIME"]["severity"] == "warning"  # this engine also runs on the CPU
    assert not [x for x in found.values() if x["severity"] == "error"]


def test_an_image_that_is_nowhere(dockerd):
    _, found = preflight(
        "--platform", "docker", "--container-image", "127.0.0.1:9/nobody/nothing:1"
    )
    assert found.keys() & {"PRE-IMAGE-UNREACHABLE", "PRE-IMAGE-MISSING"}


def test_no_engine_behind_the_socket(tmp_path):
    if not shutil.which("docker"):
        pytest.skip("no docker command")
    _, found = preflight("--platform", "docker", "--docker-host", f"unix://{tmp_path}/none.sock")
    assert found["PRE-DOCKER-UNREACHABLE"]["severity"] == "error"


def test_a_real_cluster(slurm, tmp_path):
    there, gone = tmp_path / "data", tmp_path / "gone"
    there.mkdir()
    args = [
        "--platform",
        "slurm",
        "--engine",
        "transformers",
        "--path",
        f"train={there}",
        "--time-limit",
        "59",
    ]
    result, found = preflight(*args)
    assert result["slurm"] == {"partition": "gpu", "partitions": ["closed", "gpu", "second"]}
    assert not found
    _, found = preflight(
        *args[:-1], "2:00:00", "--path", f"eval={gone}", "--nodes", "3", "--partition", "gpu"
    )
    assert (
        found["PRE-SLURM-TIME"]["fix"].endswith("check_tao_launch_preflight.py --time-limit 60")
        and found["PRE-SLURM-NODES"]
    )
    assert (
        found["PRE-PATH-MISSING"]["where"] == f"eval={gone}"
        and "compute node" in found["PRE-PATH-MISSING"]["message"]
    )
    _, found = preflight(*args, "--partition", "gpus")
    told = found["JOB-SLURM-REFUSED"]
    assert told["where"] == "--partition gpus" and "Invalid partition name" in told["message"]
    _, found = preflight(*args[:-1], "5", "--partition", "closed")
    assert "PRE-SLURM-DOWN" in found and "PRE-SLURM-TIME" not in found


def test_a_spec_for_more_gpus_than_a_node_has(slurm, tmp_path):
    model = ["--engine", "cosmos-rl", "--model", "nvidia/Cosmos-Reason2-2B", "--gpus-per-node", "4"]
    data = ["--train-root", str(tmp_path)]
    done = run_script("build_spec.py", "train", *model, *data, "-o", "spec.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    env = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    _, found = preflight(
        "--platform", "slurm", "--engine", "cosmos-rl", "--spec", "spec.toml", cwd=tmp_path, env=env
    )
    assert found["PRE-SLURM-GRES"]["fix"].endswith("check_tao_launch_preflight.py --nodes 2")
    _, found = preflight("--platform", "slurm", cwd=tmp_path)  # the container's engine
    assert "PRE-SLURM-PYXIS" in found


def test_no_scheduler_behind_the_commands(slurm, tmp_path, monkeypatch, free_port):
    """The commands are there, the controller is not: they would wait for minutes."""
    text = slurm.conf.read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    (tmp_path / "slurm.conf").write_text(text.replace(port, f"SlurmctldPort={free_port}"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    _, found = preflight("--platform", "slurm", "--timeout", "5")
    assert found.keys() & {
        "PRE-TIMEOUT",
        "PRE-SLURM-UNREACHABLE",
    }


def test_kubectl_without_a_cluster(tmp_path, free_port):
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl")
    _, found = preflight("--platform", "kubernetes", env={"KUBECONFIG": str(tmp_path / "none")})
    assert found["PRE-K8S-UNCONFIGURED"]["severity"] == "error"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port}"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    _, found = preflight("--platform", "kubernetes", env={"KUBECONFIG": str(tmp_path / "config")})
    assert found["PRE-K8S-UNREACHABLE"]["severity"] == "error"


def test_buckets(bucket, tmp_path):
    s3.client().put_object(
        Bucket=s3.split(bucket)[0], Key="train/annotations.json", Body=b'[{"id": "a"}, {"id": "b"}]'
    )
    there = ["--path", f"train={bucket}/train", "--path", f"file={bucket}/train/annotations.json"]
    checks = ["--json-required-field", "file=id,video", "--effective-batch-limit", "file=4,1"]
    _, found = preflight("--platform", "local", *there, *checks)
    assert {x for x in found if x != "PRE-GPU-NONE"} == {"PRE-FIELD-MISSING", "PRE-BATCH-LIMIT"}
    _, found = preflight(
        "--platform",
        "local",
        "--path",
        f"train={bucket}/trian",
        "--path",
        "other=s3://no-such-bucket-here/x",
    )
    assert found["PRE-PATH-MISSING"]["where"] == f"{bucket}/trian" and "S3-NOT-FOUND" in found


def test_old_names_of_s3_credentials(bucket, monkeypatch):
    s3.client().put_object(Bucket=s3.split(bucket)[0], Key="a", Body=b"1")
    for new, old in (
        ("AWS_ACCESS_KEY_ID", "ACCESS_KEY"),
        ("AWS_SECRET_ACCESS_KEY", "SECRET_KEY"),
        ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"),
        ("AWS_REGION", "CLOUD_REGION"),
    ):
        import os

        monkeypatch.setenv(old, os.environ[new])
        monkeypatch.delenv(new)
    _, found = preflight("--platform", "local", "--path", f"a={bucket}/a")
    assert found["PRE-S3-NAMES"]["severity"] == "info" and not [
        x for x in found.values() if x["severity"] == "error"
    ]


def test_the_right_to_upload(bucket, tmp_path):
    """Nothing is left in the bucket by asking."""
    model = [
        "--engine",
        "cosmos-rl",
        "--model",
        "nvidia/Cosmos-Reason2-2B",
        "--train-root",
        str(tmp_path),
    ]
    sets = [
        "--set",
        "train.ckpt.upload_s3=final",
        "--set",
        f"train.ckpt.s3_bucket={s3.split(bucket)[0]}",
    ]
    done = run_script("build_spec.py", "train", *model, *sets, "-o", "spec.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    args = [
        "--platform",
        "docker",
        "--skip-platform-access",
        "--engine",
        "cosmos-rl",
        "--spec",
        "spec.toml",
    ]
    env = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    _, found = preflight(*args, cwd=tmp_path, env=env)
    assert not [x for x in found if x.startswith("S3-")]
    assert not list(s3.objects(bucket)) and not s3.client().list_multipart_uploads(
        Bucket=s3.split(bucket)[0]
    ).get("Uploads")
    text = (tmp_path / "spec.toml").read_text().replace(s3.split(bucket)[0], "no-such-bucket-here")
    (tmp_path / "spec.toml").write_text(text)
    assert "S3-NOT-FOUND" in preflight(*args, cwd=tmp_path, env=env)[1]
