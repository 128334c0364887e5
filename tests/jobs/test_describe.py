"""A site.yaml from the place itself, by one file that runs on a bare login node."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support import ROOT, run_script

from cosmos_reason.base import site
from cosmos_reason.base.findings import Failure

DESCRIBE = ROOT / "scripts" / "in_container" / "describe.py"
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *memory.total*) for n in 1 2 3 4; do echo "NVIDIA H100 80GB HBM3, 81559, 580.82.07, 9.0"; done ;;
  *) echo "GPU 0: NVIDIA H100" ;;
esac
"""
SINFO = """#!/bin/sh
[ "$1" = --version ] && echo "slurm 23.11" && exit
echo "cpu*|up|infinite|10|(null)|idle|64|256000"
echo "h100|up|1-00:00:00|3|gpu:h100:8(S:0-1)|mix|128|2048000"
echo "h100|up|1-00:00:00|2|gpu:h100:8(S:0-1)|alloc|128|2048000"
echo "old|down|1-00:00:00|2|gpu:v100:8|idle|128|2048000"
echo "h100|up|1-00:00:00|1|gpu:h100:8|drain|128|2048000"
"""
KUBECTL = """#!/bin/sh
PRODUCT=NVIDIA-H100-80GB-HBM3-SHARED
case "$*" in
  *current-context*) echo lab ;;
  *view*) printf vision ;;
  *nodes*) echo '{"items": [{"status": {"allocatable": {"nvidia.com/gpu": "8"}}, "metadata":
    {"labels": {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "'"$PRODUCT"'"}}},
    {"status": {"allocatable": {"nvidia.com/gpu": "4"}}, "metadata": {"labels":
    {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}},
    {"status": {"allocatable": {}}}]}' ;;
  *pvc*) printf 'data scratch' ;;
esac
"""


def python38():
    """A real Python 3.8, '' where this machine has none."""
    found = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python"))
    return str(found[-1]) if found else shutil.which("python3.8") or ""


def described(tmp_path, *words, python=sys.executable, **programs):
    """What the file prints where PATH has these programs alone, fed as ssh feeds it."""
    for name, text in programs.items():
        program = tmp_path / "bin" / name.replace("_", "-")
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin", "HOME": str(tmp_path), "HF_TOKEN": "hf_canary"}
    environment["HF_ENDPOINT"] = "http://127.0.0.1:9"  # where nobody listens
    done = subprocess.run(
        [python, "-", *words],
        stdin=open(DESCRIBE, "rb"),  # noqa: SIM115
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "hf_canary" not in done.stdout + done.stderr
    return done.stdout, site.parsed(done.stdout, Path("site.yaml"))


def test_it_is_written_for_python_3_8():
    ast.parse(DESCRIBE.read_text(), feature_version=(3, 8))
    modules = {
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(DESCRIBE.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names


@pytest.mark.skipif(not python38(), reason="no Python 3.8 on this machine")
def test_python_3_8_prints_the_same(tmp_path):
    programs = {"nvidia_smi": NVIDIA_SMI, "sinfo": SINFO}
    for words in (["--platform", "local"], ["--platform", "slurm"]):
        old, _ = described(tmp_path, *words, python=python38(), **programs)
        new, _ = described(tmp_path, *words, **programs)
        assert _lines(old) == _lines(new)


def _lines(text):
    return [line for line in text.splitlines() if not line.startswith(("described_at", "disk"))]


def test_a_machine_with_gpus(tmp_path):
    text, found = described(tmp_path, nvidia_smi=NVIDIA_SMI)
    assert found.platform == "local"
    assert found.facts["gpus"] == {
        "count": 4, "type": "H100 80GB HBM3", "memory_gib": 79.6, "arch": "sm_90"
    }  # fmt: skip
    assert found.gpu_gib() == 79.6 and found.facts["driver"] == "580.82.07"
    assert found.facts["network"] == {"hub": False} and found.facts["disk"][str(tmp_path)] >= 0
    assert found.facts["described_by"] == "command" and "# add: paths:" in text


def test_a_machine_without_gpus_says_so(tmp_path):
    _, found = described(tmp_path)
    assert (found.platform, found.facts["gpus"]) == ("local", {"count": 0})
    assert "driver" not in found.facts


def test_a_machine_with_docker(tmp_path):
    _, found = described(tmp_path, nvidia_smi=NVIDIA_SMI, docker="#!/bin/sh\necho 27.0\n")
    assert (found.platform, found.facts["gpus"]["count"]) == ("docker", 4)


def test_a_login_node_tells_the_nodes_of_its_partition(tmp_path):
    """The default partition has no GPUs; nodes that are drained or down are not counted."""
    text, found = described(tmp_path, "--login", "me@login", sinfo=SINFO)
    facts = found.facts
    assert (found.platform, facts["nodes"], facts["cpus"]) == ("slurm", 5, 128)
    assert facts["gpus"] == {"count": 8, "type": "h100"} and facts["memory_gib"] == 2000
    assert facts["slurm"] == {"partition": "h100", "login": "me@login"}
    assert found.gpu_gib() == 79.6 and found.gpu_architecture() == "sm_90"
    assert "network" not in facts and "driver" not in facts, "of the login node, not of the nodes"
    assert "# further partitions: cpu, old" in text or "# further partitions: cpu" in text


def test_a_cluster_of_kubernetes(tmp_path):
    text, found = described(tmp_path, kubectl=KUBECTL)
    assert found.platform == "kubernetes" and found.facts["nodes"] == 1
    assert found.facts["kubernetes"] == {"context": "lab", "namespace": "vision"}
    gpus = {"count": 8, "memory_gib": 79.6, "type": "H100 80GB HBM3"}
    assert found.facts["gpus"] == gpus and found.gpu_architecture() == "sm_90"
    assert "# claims: data, scratch" in text


def test_a_cluster_with_two_types_of_gpus_names_both(tmp_path):
    mixed = KUBECTL.replace("NVIDIA-H100-80GB-HBM3-SHARED", "NVIDIA-L40S")
    text, found = described(tmp_path, kubectl=mixed)
    assert "type" not in found.facts["gpus"]
    assert "# GPU types of its nodes: H100 80GB HBM3, L40S" in text


def test_the_verb_prints_the_file_alone(tmp_path):
    done = run_script("launch_job.py", "describe", "--platform", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["platform"] == "local"
    told = run_script("launch_job.py", "describe", "--platform", "local", "--json", cwd=tmp_path)
    facts = json.loads(told.stdout)["result"]["site"]
    assert facts["cpus"] == os.cpu_count()


def test_a_host_that_cannot_be_reached_is_told(tmp_path):
    done = run_script("launch_job.py", "describe", "--ssh", "nowhere.invalid", cwd=tmp_path)
    assert done.returncode == 3 and "JOB-DESCRIBE" in done.stderr and not done.stdout
    done = run_script("launch_job.py", "describe", "--ssh", "-oProxyCommand=x", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout


def test_texts_of_a_site_are_what_stands_in_the_file():
    text = (
        "schema_version: 1\nname: 0123\nplatform: slurm\ndescribed_at: 2026-11-28\n"
        "slurm: {partition: on, account: 0123, time: 4:00:00}\ngpus: {count: 4}\n"
    )
    read = site.parsed(text, Path("site.yaml")).facts
    assert read["slurm"] == {"partition": "on", "account": "0123", "time": "4:00:00"}
    assert (read["name"], read["described_at"], read["gpus"]) == (
        "0123",
        "2026-11-28",
        {"count": 4},
    )
    with pytest.raises(Failure, match=r"gpus\.count"):
        site.parsed(text.replace("count: 4", "count: four"), Path("site.yaml"))
