"""The preflight against the real things:
a Docker engine, a SLURM cluster, kubectl without a cluster, an S3 server."""

import json
import os
import shutil

import pytest
from docker_engine import IMAGE
from support import run_script

from cosmos_reason.remote import s3

pytestmark = pytest.mark.integration


def preflight(line, env=None, cwd=None):
    done = run_script(f"check_tao_launch_preflight.py {line} --json", env=env, cwd=cwd)
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ok"] else 1), done.stderr
    return document["result"], {finding["id"]: finding for finding in document["findings"]}


def errors(found):
    return {id for id, one in found.items() if one["severity"] == "error"}


def test_a_real_engine_without_gpus(dockerd):
    result, found = preflight(f"--platform docker --container-image {IMAGE}")
    assert result["docker"]["version"] and result["image"]["present"]
    assert errors(found) >= {"PRE-DOCKER-RUNTIME", "PRE-GPU-NONE"}
    line = f"--platform docker --container-image {IMAGE} --engine transformers"
    _, found = preflight(line)  # which also runs on the CPU
    assert found["PRE-DOCKER-RUNTIME"]["severity"] == "warning" and not errors(found)


def test_an_image_that_is_nowhere(dockerd):
    _, found = preflight("--platform docker --container-image 127.0.0.1:9/nobody/nothing:1")
    assert found.keys() & {"PRE-IMAGE-UNREACHABLE", "PRE-IMAGE-MISSING"}


def test_no_engine_behind_the_socket(tmp_path):
    if not shutil.which("docker"):
        pytest.skip("no docker command")
    _, found = preflight(f"--platform docker --docker-host unix://{tmp_path}/none.sock")
    assert found["PRE-DOCKER-UNREACHABLE"]["severity"] == "error"


def test_a_real_cluster(slurm, tmp_path):
    there, gone = tmp_path / "data", tmp_path / "gone"
    there.mkdir()
    line = f"--platform slurm --engine transformers --path train={there} --time-limit"
    result, found = preflight(f"{line} 59")
    assert result["slurm"] == {"partition": "gpu", "partitions": ["closed", "gpu", "second"]}
    assert not found
    _, found = preflight(f"{line} 2:00:00 --path eval={gone} --nodes 3 --partition gpu")
    fix = found["PRE-SLURM-TIME"]["fix"]
    assert fix.endswith("check_tao_launch_preflight.py --time-limit 60")
    assert found["PRE-SLURM-NODES"]
    missing = found["PRE-PATH-MISSING"]
    assert missing["where"] == f"eval={gone}" and "compute node" in missing["message"]
    _, found = preflight(f"{line} 59 --partition gpus")
    told = found["JOB-SLURM-REFUSED"]
    assert told["where"] == "--partition gpus" and "Invalid partition name" in told["message"]
    _, found = preflight(f"{line} 5 --partition closed")
    assert "PRE-SLURM-DOWN" in found and "PRE-SLURM-TIME" not in found
    assert "PRE-SLURM-PYXIS" in preflight("--platform slurm")[1], "the container's engine"


def build(folder, words):
    """A spec of cosmos-rl, in spec.toml."""
    line = f"train --engine cosmos-rl --model nvidia/Cosmos-Reason2-2B --train-root {folder}"
    done = run_script(f"build_spec.py {line} {words} -o spec.toml", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_no_scheduler_behind_the_commands(slurm, tmp_path, monkeypatch, free_port):
    """The commands are there, the controller is not: they would wait for minutes."""
    text = slurm.conf.read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    (tmp_path / "slurm.conf").write_text(text.replace(port, f"SlurmctldPort={free_port}"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    _, found = preflight("--platform slurm --timeout 5")
    assert found.keys() & {"PRE-TIMEOUT", "PRE-SLURM-UNREACHABLE"}


def test_kubectl_without_a_cluster(tmp_path, free_port):
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl")
    _, found = preflight("--platform kubernetes", env={"KUBECONFIG": str(tmp_path / "none")})
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
    _, found = preflight("--platform kubernetes", env={"KUBECONFIG": str(tmp_path / "config")})
    assert found["PRE-K8S-UNREACHABLE"]["severity"] == "error"


def test_buckets(bucket):
    name, body = s3.split(bucket)[0], b'[{"id": "a"}, {"id": "b"}]'
    s3.client().put_object(Bucket=name, Key="train/annotations.json", Body=body)
    there = f"--path train={bucket}/train --path file={bucket}/train/annotations.json"
    checks = "--json-required-field file=id,video --effective-batch-limit file=4,1"
    _, found = preflight(f"--platform local {there} {checks}")
    assert found.keys() - {"PRE-GPU-NONE"} == {"PRE-FIELD-MISSING", "PRE-BATCH-LIMIT"}
    gone = f"--path train={bucket}/trian --path other=s3://no-such-bucket-here/x"
    _, found = preflight(f"--platform local {gone}")
    assert found["PRE-PATH-MISSING"]["where"] == f"{bucket}/trian" and "S3-NOT-FOUND" in found


def test_old_names_of_s3_credentials(bucket, monkeypatch):
    s3.client().put_object(Bucket=s3.split(bucket)[0], Key="a", Body=b"1")
    for new, old in (
        ("AWS_ACCESS_KEY_ID", "ACCESS_KEY"),
        ("AWS_SECRET_ACCESS_KEY", "SECRET_KEY"),
        ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"),
        ("AWS_REGION", "CLOUD_REGION"),
    ):
        monkeypatch.setenv(old, os.environ[new])
        monkeypatch.delenv(new)
    _, found = preflight(f"--platform local --path a={bucket}/a")
    assert found["PRE-S3-NAMES"]["severity"] == "info" and not errors(found)


def test_the_right_to_upload(bucket, tmp_path):
    """Nothing is left in the bucket by asking."""
    name = s3.split(bucket)[0]
    build(tmp_path, f"--set train.ckpt.upload_s3=final --set train.ckpt.s3_bucket={name}")
    line = "--platform docker --skip-platform-access --engine cosmos-rl --spec spec.toml"
    env = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    _, found = preflight(line, cwd=tmp_path, env=env)
    assert not [x for x in found if x.startswith("S3-")]
    assert not list(s3.objects(bucket))
    assert not s3.client().list_multipart_uploads(Bucket=name).get("Uploads")
    text = (tmp_path / "spec.toml").read_text().replace(name, "no-such-bucket-here")
    (tmp_path / "spec.toml").write_text(text)
    assert "S3-NOT-FOUND" in preflight(line, cwd=tmp_path, env=env)[1]
