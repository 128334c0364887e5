"""The preflight command: arguments, platforms, time limits, a spec, secrets."""

import json
import os
import re
import runpy
import shlex
import shutil
from pathlib import Path
from secrets import token_hex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_command import CANARY, EIGHT, SCRIPT, preflight_json
from support import ROOT, run_script

from cosmos_reason import preflight
from cosmos_reason.base import bundle
from cosmos_reason.jobs import run_size
from cosmos_reason.jobs.platforms import gpus
from cosmos_reason.jobs.platforms import preflight as preflight_options
from cosmos_reason.jobs.platforms.local import preflight as local
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.preflight import PreflightOptions, access, memory
from cosmos_reason.remote.machine import Answer, Place
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import document as spec

pytest_plugins = ("preflight_site",)


# ---- the command -------------------------------------------------------------------------------


LOCAL = ("--platform", "local", "--path", "train=/x")
INDEX = ("--target-gpu-index",)


@pytest.mark.parametrize(
    ("args", "id", "hint"),
    [
        (("--platform", "kuberntes"), "PRE-PLATFORM", "Did you mean kubernetes?"),
        ((), "PRE-PLATFORM", "slurm"),
        ((*LOCAL, "--path", "eval"), "USAGE", "LABEL=PATH"),
        ((*LOCAL, "--json-required-field", "trian=id"), "PRE-LABEL", "Did you mean train?"),
        ((*LOCAL, "--effective-batch-limit", "train=4"), "USAGE", "whole number"),
        ((*LOCAL, "--effective-batch-limit", "train=4,0"), "USAGE", "whole number"),
        ((*LOCAL, "--min-free-disk-gb", "train=lots"), "USAGE", "above 0"),
        ((*LOCAL, "--gpu-arch", "hopper"), "USAGE", "sm_90"),
        ((*LOCAL, "--target-gpu-index", "0,x"), "USAGE", "0,1"),
        ((*LOCAL, *INDEX, "0", *INDEX, "none"), "USAGE", "none and other"),
        ((*LOCAL, *INDEX, "0,1", *INDEX, "1"), "USAGE", "each GPU once"),
        ((*LOCAL, "--gpu-min-count", "0"), "USAGE", "whole number"),
        ((*LOCAL, "--timeout", "nan"), "USAGE", "number above 0"),
        ((*LOCAL, "--timeout", "1e300"), "USAGE", "at most 86400"),
        ((*LOCAL, "--target-gpu-count", "2000000000"), "USAGE", "from 1 to 1024"),
        ((*LOCAL, "--json-required-field", "train="), "USAGE", "names"),
        ((*LOCAL, "--path", "train=/y"), "PRE-LABEL", "twice"),
        ((*LOCAL, "--dataset-facts", "nope.json"), "PRE-FACTS", "needs the --spec"),
    ],
)
def test_wrong_arguments_fail_closed_with_a_hint(args, id, hint, tmp_path):
    done = run_script(SCRIPT, *args, "--json", cwd=tmp_path)
    (found,) = json.loads(done.stdout)["findings"]
    assert done.returncode == 2 and found["id"] == id and hint in found["message"]


def test_platform_and_labels_are_named_together():
    line = "--platform cloud --min-free-disk-gb a=1 --json-required-field b=x --json"
    done = run_script(f"{SCRIPT} {line}")
    ids = [one["id"] for one in json.loads(done.stdout)["findings"]]
    assert ids == ["PRE-PLATFORM", "PRE-LABEL", "PRE-LABEL"]


def test_paths_fail_closed(tmp_path):
    (tmp_path / "train.json").write_text('[{"id": "a", "video": "a.mp4"}, {"id": "b"}]')
    _, found = preflight_json(
        f"--platform local --path empty= --path odd=S3://b/k --path gone={tmp_path}/trian.json "
        f"--path train={tmp_path}/train.json --json-required-field train=id,video "
        "--effective-batch-limit train=2,2 --min-free-disk-gb train=100000000",
        env={"PATH": os.environ["PATH"]},
    )
    assert "Did you mean s3?" in found["PRE-PATH-SCHEME"]["message"]
    assert found.keys() >= {"PRE-PATH-EMPTY", "PRE-DISK"}
    assert "Did you mean train.json?" in found["PRE-PATH-MISSING"]["message"]
    assert found["PRE-FIELD-MISSING"]["data"]["record_ids"] == ["1"]
    assert found["PRE-BATCH-LIMIT"]["fix"] == "--set train.train_batch_per_replica=1"


SKIP = "--skip-platform-access"


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (f"--platform kubernetes {SKIP} --gpu-arch sm_121", "PRE-GPU-ARCH-BLOCKED"),
        (f"--platform slurm {SKIP} --gpu-arch sm_75 --gpu-arch-allowlist image=sm_90 "
         "--container-image x", "PRE-GPU-ARCH"),
        (f"--platform docker {SKIP} --gpu-min-count 4", "PRE-GPU-UNKNOWN"),
        ("--platform local --path v=hf://a/b --min-free-disk-gb v=1e9", "PRE-DISK-UNKNOWN"),
        (f"--platform kubernetes --path v=/v {SKIP} --min-free-disk-gb v=1", "PRE-DISK-UNKNOWN"),
        ("--platform local --path t=empty.json --json-required-field t=id", "PRE-RECORDS-EMPTY"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_does_not_pass(line, id, tmp_path):
    (tmp_path / "empty.json").write_text("[]")
    _, found = preflight_json(line, cwd=tmp_path, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert found[id]["severity"] == "error"


def test_space_is_added_up_per_file_system(tmp_path):
    part = 0.6 * shutil.disk_usage(tmp_path).free / 2**30
    one = ["--platform", "local", "--path", f"a={tmp_path}", "--min-free-disk-gb", f"a={part}"]
    two = ["--path", f"b={tmp_path.parent}", "--min-free-disk-gb", f"b={part}"]
    assert "PRE-DISK" not in preflight_json(*one)[1] and "PRE-DISK" in preflight_json(*one, *two)[1]


def test_fixes_of_paths_and_fields(tmp_path):
    (tmp_path / "t.json").write_text('[{"a": 1}, {"b": 1}]')
    line = f"--platform local --path p=file:///etc/passwd --path t={tmp_path}/t.json"
    _, found = preflight_json(f"{line} --json-required-field t=a")
    assert found["PRE-PATH-SCHEME"]["fix"].endswith("with --path p=/etc/passwd")
    assert "mean a?" not in found["PRE-FIELD-MISSING"]["message"]


CUDA_13 = '[ $# = 0 ] && echo "| CUDA Version: 13.0 |" && exit 0'


def docker_script(cases, **info):
    """A docker that answers `info`, with the GPUs' runtime unless told otherwise, and the cases."""
    told = json.dumps({"ServerVersion": "28.0.1", "Runtimes": {"runc": {}, "nvidia": {}}} | info)
    return f"case \"$*\" in *info*) echo '{told}'; exit;; {cases} esac"


def test_a_docker_context_may_be_another_machine(tools):
    """Its GPUs and paths are asked there; an address with a password is in no argument."""
    folder = tools("ssh", EIGHT)
    info = '{"ServerVersion": "28.0", "Runtimes": {"nvidia": {}}}'
    cases = f"*context*) echo ssh://gpu-box; exit;; *info*) echo '{info}';;"
    tools("docker", script=f'case "$*" in {cases} esac')
    document, _ = preflight_json("--platform docker --path d=/data", env={"DOCKER_HOST": ""})
    assert len(document["result"]["gpus"]) == 8
    assert "gpu-box test -e /data" in (folder / "calls").read_text().replace("'", "")
    env = {"DOCKER_HOST": f"tcp://u:{CANARY}@box:2375"}
    done = run_script(f"{SCRIPT} --platform docker", env=env)
    assert CANARY not in (folder / "calls").read_text() + done.stdout + done.stderr


def test_torch_is_compared_with_the_chosen_gpus(monkeypatch):
    mixed = gpus.parse_gpus("0, H100, 81559, 580.1, 9.0\n1, T4, 15360, 580.1, 7.5\n")
    monkeypatch.setattr(local, "call", lambda *_: Answer(0, '[true, ["sm_90"]]'))
    for indices, ids in (([0], []), (None, ["PRE-TORCH-ARCH"])):
        options = preflight.PreflightOptions(target_gpu_index=indices)
        launch = preflight.Preflight("local", options, 0, "transformers", driver=mixed)
        assert [x.id for x in local.check_torch(launch)] == ids


@pytest.mark.parametrize(
    ("engine", "logger", "is_said"),
    [
        ("transformers", "console,wandb", True),
        ("transformers", "console", False),
        ("cosmos-rl", "console,wandb", False),
    ],
)
def test_the_package_of_a_logger_is_looked_for(tmp_path, engine, logger, is_said):
    table = spec.template("train")
    table["logging"]["logger"] = logger.split(",")
    spec.dump(table, tmp_path / "spec.toml")
    words = ["--platform", "local", "--engine", engine, "--spec", tmp_path / "spec.toml"]
    _, found = preflight_json(*words)
    assert ("PRE-WANDB-PACKAGE" in found) == is_said
    assert not is_said or found["PRE-WANDB-PACKAGE"]["fix"].endswith(f"pip install {bundle.WANDB}")


def test_every_check_is_described():
    listed = json.loads(run_script(f"{SCRIPT} --list-checks --json").stdout)["result"]["checks"]
    there = (preflight.BEFORE, preflight.CHECKS, preflight.PLATFORMS, preflight.AFTER)
    assert set(listed) == {name for checks in there for name in checks}
    assert set(preflight.NEED_A_SPEC) < set(preflight.CHECKS)


def test_docker_with_eight_gpus(tools):
    folder = tools("nvidia-smi", EIGHT, script=CUDA_13)
    tools("nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.19.1\n")
    seen = "".join(f"GPU {n}: H100\\n" for n in range(8))
    cases = f"*find_spec*) echo ;; *image*) echo amd64;; *run*) printf '{seen}';;"
    script = docker_script(cases, SecurityOptions=["name=rootless"])
    tools("docker", script=script)
    document, found = preflight_json(
        "--platform local-docker --gpu-min-count 8 --target-gpu-index 2,3,4,5 "
        "--target-gpu-index 6 --target-gpu-index 7 --gpu-ids 0,1"
    )
    assert document["ok"] and not [x for x in found.values() if x["severity"] != "info"]
    assert document["result"]["docker"]["rootless"] and document["result"]["smoke"]["gpus"] == 8
    calls = (folder / "calls").read_text()
    assert '--gpus "device=2,3,4,5,6,7,0,1"' in calls and "pull" not in calls
    tools("docker", script=script.replace(seen, "GPU 0: H100"))
    _, found = preflight_json("--platform docker --gpu-min-count 8")
    assert "got 1 in a container, expected 8" in found["PRE-SMOKE"]["message"]
    tools("docker", script=script.replace("echo ;;", "echo av, PIL;;"))
    lacking = preflight_json("--platform docker")[1]["PRE-ENTRY-SCRIPT"]
    assert lacking["severity"] == "warning" and "got no av, PIL in the image" in lacking["message"]
    assert "--entry-script image" in lacking["message"]


IN_IMAGE = {
    "redis-server": "/usr/bin/redis-server",
    "cosmos-rl": "0.4.7",
    "torch": "2.11.0",
    "transformers": "5.17.0",
    "qwen-vl-utils": "0.0.14",
    "av": "18.1.0",
    "boto3": "1.44.5",
    "vllm": None,
    "flash-attn": "2.8.3",
}


@pytest.mark.parametrize(
    "other, id, said",
    [
        ({}, None, ""),
        ({"cosmos-rl": "0.3.9"}, "PRE-COSMOS-VERSION", "got 0.3.9, expected 0.4.7"),
        ({"redis-server": None}, "PRE-TOOL-MISSING", "got no redis-server"),
        ({"av": None}, "PRE-COSMOS-MISSING", "got no av"),
        (None, "PRE-COSMOS-MISSING", "got no answer of its python"),
    ],
)
def test_an_image_of_ones_own_is_asked_for_what_cosmos_rl_needs(tools, other, id, said):
    tools("nvidia-smi", EIGHT, script=CUDA_13)
    answer = "no python" if other is None else json.dumps(IN_IMAGE | other)
    cases = f"*metadata*) echo '{answer}';; *image*) echo amd64;; *run*) echo 'GPU 0: H100';;"
    tools("docker", script=docker_script(cases))
    _, found = preflight_json(
        "--platform docker --engine cosmos-rl --container-image mine:1 --gpu-min-count 1"
    )
    told = {"PRE-COSMOS-VERSION", "PRE-COSMOS-MISSING", "PRE-COSMOS-TORCH", "PRE-TOOL-MISSING"}
    assert found.keys() & told == ({id} if id else set())
    if id:
        assert found[id]["severity"] == "error"
        assert "mine:1" in found[id]["where"] + found[id]["message"]
        assert said in found[id]["message"] and "requirements-cosmos-rl.txt" in found[id]["fix"]


def test_docker_finds_what_is_missing(tools):
    old = '[ $# = 0 ] && echo "CUDA Version: 12.2" && exit 0'
    tools("nvidia-smi", EIGHT.replace("580.65.06", "535.1"), script=old)
    tools("nvidia-ctk", code=127)
    denied = "echo 'unauthorized: authentication required' >&2; exit 1"
    script = docker_script(f"*'image inspect'*) exit 1;; *manifest*) {denied};;")
    tools("docker", script=script)
    _, found = preflight_json("--platform docker --gpu-smoke-image cuda:13")
    assert re.search(r"535\.1|12\.2", str(found["PRE-HOST-VERSION"]))
    assert found["PRE-IMAGE-DENIED"]["fix"].startswith("docker login")
    assert found["PRE-SMOKE"]["severity"] == "warning"
    tools("docker", script=script.replace(denied, "exit 0"))  # to be pulled: nothing was tried
    own = "--platform docker --engine cosmos-rl --container-image"
    _, found = preflight_json(f"{own} nvcr.io/nvidia/tao/tao-toolkit:7.1.0-cosmos-rl")
    assert found.keys() >= {"PRE-HOST-VERSION", "PRE-IMAGE-PULL", "PRE-SMOKE"}
    assert "PRE-HOST-VERSION" not in preflight_json(f"{own} busybox")[1]
    tcp = "--docker-host tcp://gpu-box:2376 --target-gpu-count 8"
    assert "PRE-HOST-VERSION-UNKNOWN" in preflight_json(f"--platform docker {tcp}")[1]
    tools("docker", script=docker_script("", Runtimes={"runc": {}}))
    assert preflight_json("--platform docker")[1]["PRE-DOCKER-RUNTIME"]["severity"] == "error"


def test_docker_hosts_fail_closed():
    for address in ("ssh:/host", "http://host", "-oProxyCommand=x"):
        assert "JOB-DOCKER-HOST" in preflight_json(f"--platform docker --docker-host={address}")[1]
    _, found = preflight_json("--platform docker --docker-host 'ssh://-oProxyCommand=touch pwned'")
    assert found.keys() & {"PRE-HOST-NAME", "PRE-DOCKER-UNREACHABLE"}
    assert not (ROOT / "pwned").exists()


def kubectl_script(cases):
    """A kubectl that answers the cases."""
    return f'case "$*" in *config*) echo dev;; {cases} esac'


def not_found(what):
    return f"echo 'Error from server (NotFound): {what} not found' >&2; exit 1"


def test_claims_of_kubernetes_are_looked_at(tools):
    claim = {"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound"}}
    missing = not_found('claims "none"')
    cases = f"*claims/none*) {missing};; "
    cases += f"*claims/some*) echo '{json.dumps(claim)}';; *) echo '{{}}';;"
    tools("kubectl", script=kubectl_script(cases))
    line = "--platform kubernetes --volume none:/a --volume some:/b"
    _, found = preflight_json(f"{line} --nodes 2")
    assert '"none" not found' in found["JOB-K8S-MISSING"]["message"]
    assert "some with ReadWriteOnce" in found["JOB-K8S-CLAIM"]["message"]
    _, found = preflight_json(line)
    assert "JOB-K8S-MISSING" in found and "JOB-K8S-CLAIM" not in found


def test_kubernetes_with_captured_answers(tools):
    def node(gpus, ready="True", **spec):
        conditions = [{"type": "Ready", "status": ready}]
        allocatable = {"nvidia.com/gpu": gpus}
        return {"status": {"allocatable": allocatable, "conditions": conditions}, "spec": spec}

    unready = [node("8", "False"), node("8", unschedulable=True), {"status": {}, "spec": {}}]
    nodes = json.dumps({"items": [node("8"), *unready]})
    version = json.dumps({"major": "1", "minor": "23+"})
    noise = "echo 'E1123 00:00:00.0 7 memcache.go:265] no discovery' >&2"
    cases = f"*/nodes*) echo '{nodes}';; */version*) echo '{version}';; "
    for part, name in (("secrets/ngc", 'secrets "ngc"'), ("storageclasses/fast", 'classes "fast"')):
        cases += f"*/{part}*) {noise}; {not_found(name)};; "
    cases += "*) echo '{}';;"
    tools("kubectl", script=kubectl_script(cases))
    line = "--platform kubernetes --nodes 2 --path train=/data"
    document, found = preflight_json(f"{line} --pull-secret ngc")
    assert document["result"]["kubernetes"] == {"nodes": 1, "gpus": [8]}
    assert "expected 2" in found["PRE-K8S-GPUS"]["message"]
    assert found["PRE-PATH-UNSEEN"]["severity"] == "warning"
    missing = found["PRE-K8S-MISSING"]
    assert missing["message"] == 'got secrets "ngc" not found, expected it in the cluster'
    _, lacks_class = preflight_json(f"{line} --storage-class fast")
    assert lacks_class["PRE-K8S-MISSING"]["where"] == "--storage-class"
    assert "got a server of version 1.23, expected 1.24" in found["JOB-K8S-VERSION"]["message"]
    tools("kubectl", script=kubectl_script("*/nodes*) exit 1;; *) echo '{}';;"))
    for more, severity in ((" --gpu-min-count 8", "error"), ("", "warning")):
        _, found = preflight_json(f"--platform kubernetes{more}")
        assert found["PRE-K8S-NODES-UNKNOWN"]["severity"] == severity


def test_missing_tools_are_findings(tmp_path):
    (tmp_path / "sh").symlink_to("/bin/sh")
    env = {"PATH": str(tmp_path), "DOCKER_HOST": ""}
    for platform in ("docker", "slurm", "kubernetes"):
        _, found = preflight_json(f"--platform {platform}", env=env)
        assert found.keys() & {"PRE-TOOL-MISSING", "JOB-DOCKER-UNREACHABLE"}, platform


def test_without_docker_one_run_says_all_that_is_wrong_on_this_machine(tmp_path):
    """Where neither a docker command nor an address is there; a context may be another machine."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    line = f"--platform docker --path train={tmp_path}/gone"
    env = {"PATH": str(tmp_path), "DOCKER_HOST": "", "DOCKER_CONTEXT": ""}
    _, found = preflight_json(line, env=env)
    assert found.keys() >= {"JOB-DOCKER-UNREACHABLE", "PRE-PATH-MISSING", "PRE-GPU-NONE"}
    assert found["PRE-PATH-MISSING"]["severity"] == "error"
    _, found = preflight_json(line, env=env | {"DOCKER_CONTEXT": "gpu-box"})
    assert "PRE-PATH-UNSEEN" in found and not found.keys() & {"PRE-PATH-MISSING", "PRE-GPU-NONE"}


def test_gpus_that_nobody_can_name_never_pass_a_limit(tools):
    tools("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with it.", code=9)
    none = preflight_json("--platform local --gpu-min-memory-gb 40")[1]["PRE-GPU-NONE"]
    assert none["severity"] == "error" and "communicate" in none["message"]
    unseen = f"--platform docker {SKIP} --gpu-min-total-memory-gb 256"
    assert preflight_json(unseen)[1]["PRE-GPU-UNKNOWN"]["severity"] == "error"
    described = "--target-gpu-count 4 --target-gpu-memory-gb 80 --gpu-arch 9.0"
    document, found = preflight_json(f"{unseen} --gpu-min-count 4 {described}")
    assert document["ok"] and set(found) == {"PRE-PLATFORM-SKIPPED"}


def build(folder, line):
    """Build a spec, which must succeed."""
    done = run_script(f"build_spec.py {line}", cwd=folder)
    assert done.returncode == 0, done.stderr


# ---- a spec ------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path, dataset, tiny_model):
    """A folder with a spec of the tiny model that the embedded engine could run here."""
    roots = f"--train-root {dataset}/train --eval-root {dataset}/eval"
    line = f"train {roots} --engine transformers --model {tiny_model} --set validation.freq=2"
    build(tmp_path, f"{line} -o spec.toml")
    return tmp_path


def test_a_good_spec_passes_with_a_prediction(site, tools):
    script = '[ "$1" = -L ] && echo "GPU 0: NVIDIA L4 (UUID: GPU-1)" && exit 0\n'
    tools("nvidia-smi", "0, NVIDIA L4, 23034, 580.1, 8.9\n", script=script + CUDA_13)
    document, found = preflight_json(
        "--platform local --spec spec.toml --seconds-per-step 36", cwd=site
    )
    wrong = {id for id, one in found.items() if one["severity"] == "error"}
    assert wrong <= {"PRE-TORCH-CUDA"}, "torch here is built for the CPU"
    prediction = document["result"]["prediction"]
    assert prediction["measured"] and prediction["verdict"] == "fits"
    assert prediction["terms"]["CUDA context"] == 1.0
    assert prediction["hours"] == pytest.approx(prediction["steps"] / 100, abs=0.006)
    assert set(prediction["gpu_types"].values()) == {"fits"}


def test_a_success_names_the_launch_that_was_checked(site, tools):
    tools("nvidia-smi", code=9)
    document, _ = preflight_json("--platform local --spec spec.toml", cwd=site)
    script, verb, *words = shlex.split(document["next"])
    launched = "train --spec spec.toml --platform local --gpu-ids none"
    assert verb == "submit" and words == launched.split()
    done = run_script(Path(script).name, "plan", *words, cwd=site)  # all but the start
    assert done.returncode == 0, done.stderr
    build(site, "train --spec spec.toml --engine tao -o two.toml")
    document, found = preflight_json(
        f"--platform docker {SKIP} --target-gpu-index 2,3 --target-gpu-memory-gb 80 --engine tao "
        "--container-image i --gpu-arch 9.0 --docker-host ssh://box --spec two.toml",
        cwd=site,
    )
    assert document["ok"], found
    launched = "--gpu-ids 2 --image i --docker-host ssh://box"
    assert document["next"].endswith(f"submit train --spec two.toml --platform docker {launched}")


def test_what_launch_job_refuses_does_not_pass_and_the_fix_leads_out(site):
    build(site, "train --spec spec.toml --engine tao -o two.toml")
    document, found = preflight_json(f"--platform local {SKIP} --spec two.toml", cwd=site)
    refused = found["JOB-ENGINE"]
    assert refused["severity"] == "error" and "local" in refused["message"]
    assert "next" not in document
    done = run_script("launch_job.py plan train --spec two.toml --platform local", cwd=site)
    assert done.returncode == 1 and "JOB-ENGINE" in done.stderr
    assert refused["fix"].endswith(".py --platform docker")
    _, found = preflight_json(f"--platform docker {SKIP} --spec two.toml", cwd=site)
    assert "JOB-ENGINE" not in found


def test_an_engine_that_nothing_launches_there_is_said_without_a_spec():
    _, found = preflight_json(f"--platform local --engine tao {SKIP}")
    assert found["PRE-NOT-LAUNCHED"]["severity"] == "warning"
    for platform in ("docker", "slurm", "kubernetes"):
        _, found = preflight_json(f"--platform {platform} --engine tao {SKIP}")
        assert "PRE-NOT-LAUNCHED" not in found


def test_a_flag_without_effect_is_said():
    _, found = preflight_json(f"--platform docker {SKIP} --skill-bank 'a bank'")
    assert found["PRE-SKILL-BANK"]["fix"] == "drop --skill-bank 'a bank'"


def test_a_launch_is_named_when_only_this_machine_is_in_its_way(site, tools):
    """With the image that avoids the known fault and the GPUs that the spec needs; not when the
    spec is at fault."""
    tools("nvidia-smi", code=9)
    tools("docker", script=docker_script("", Runtimes={"runc": {}}))
    line = "train --spec spec.toml --engine tao --gpus-per-node 2 -o two.toml --json"
    done = run_script(f"build_spec.py {line}", cwd=site)
    _, *checks = shlex.split(json.loads(done.stdout)["next"])
    assert "--target-gpu-index" not in checks, "which GPUs are meant nobody has said"
    checks += ["--image", "nvcr.io/nvidia/tao/tao-toolkit:7.1.0-cosmos-rl"]
    document, found = preflight_json(*checks, cwd=site)
    errors = {x["id"] for x in found.values() if x["severity"] == "error"}
    assert errors == {"PRE-GPU-NONE", "PRE-DOCKER-RUNTIME"} and "next" not in document
    launch = "submit train --spec two.toml --platform docker --gpu-ids 0,1 "
    assert document["result"]["launch"].endswith(launch + found["PRE-IMAGE-ISSUE"]["fix"])
    last = run_script(SCRIPT, *checks, cwd=site).stdout.splitlines()[-1]
    said, _, proposed = last.partition(": ")
    assert said == "the launch, where these are mended" and launch in proposed
    script, _, *words = shlex.split(proposed)
    assert "JOB-IMAGE-ISSUE" not in run_script(Path(script).name, "plan", *words, cwd=site).stderr
    text = (site / "two.toml").read_text()
    (site / "two.toml").write_text(text.replace("mini_batch = 1", "mini_batch = 3"))
    assert "launch" not in preflight_json(*checks, cwd=site)[0]["result"]


def test_what_is_not_known_of_gpus_is_asked_for_once(site, tools):
    tools("nvidia-smi", code=9)
    tools("docker", code=1)
    line = "--platform docker --engine tao --spec spec.toml"
    _, found = preflight_json(line, cwd=site)
    assert found["PRE-GPU-NONE"]["severity"] == "error"
    follow = {"PRE-MEMORY-UNSEEN", "PRE-GPU-ARCH-UNKNOWN"}
    assert not found.keys() & follow
    flags = "--target-gpu-count N --target-gpu-memory-gb GIB --gpu-arch SM"
    assert found["PRE-GPU-NONE"]["fix"].endswith(f".py {flags}")
    described = flags.replace("N", "2").replace("GIB", "80").replace("SM", "sm_90")
    _, found = preflight_json(f"{line} {described}", cwd=site)
    assert not found.keys() & follow and not found["PRE-GPU-NONE"]["fix"]
    assert found["PRE-GPU-NONE"]["severity"] == "warning"


def test_the_engine_is_the_one_the_spec_was_built_for(site):
    model = "--engine cosmos-rl --model nvidia/Cosmos-Reason2-2B"
    build(site, f"train --spec spec.toml {model} -o rl.toml")
    line = f"--platform docker {SKIP} --spec rl.toml"
    _, found = preflight_json(line, cwd=site, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert "PRE-MEMORY-UNSEEN" in found
    assert "PRE-GPU-ARCH-UNKNOWN" not in found, "not the container's engine"


def test_a_docker_context_that_is_none(tmp_path):
    if not shutil.which("docker"):
        pytest.skip("no docker command")
    env = {"DOCKER_CONTEXT": "nope", "DOCKER_HOST": ""}
    _, found = preflight_json("--platform docker", env=env)
    assert found["JOB-DOCKER-FAILED"]["severity"] == "error" and "PRE-GPU-NONE" not in found


def test_data_and_spec_are_checked(site):
    text = (site / "spec.toml").read_text().replace("mini_batch = 1", "mini_batch = 3")
    (site / "spec.toml").write_text(text.replace("[custom.vision]", "[custom.vison]"))
    _, found = preflight_json("--platform local --spec spec.toml", cwd=site)
    assert {"SPEC-BATCH-MULTIPLE", "SPEC-KEY-UNKNOWN"} <= found.keys()


def test_a_clip_that_was_replaced_since_the_check_is_told(tmp_path, dataset, tiny_model):
    """By another of the same name; one that was only copied anew is what it was."""
    shutil.copytree(dataset, tmp_path / "data")
    clips = sorted((tmp_path / "data" / "train").rglob("*.mp4"))
    facts = tmp_path / "facts" / "dataset_facts.json"
    done = run_script("check_dataset.py", "data/train", "--facts", facts, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    roots = "--train-root data/train --eval-root data/eval"
    line = f"train {roots} --engine transformers --model {tiny_model} --set validation.freq=2"
    build(tmp_path, f"{line} --dataset-facts {facts} -o spec.toml")
    line = "--platform local --spec spec.toml --target-gpu-index none"
    shutil.copy(clips[0], tmp_path / "copy.mp4")
    (tmp_path / "copy.mp4").replace(clips[0])
    assert "PRE-MEDIA-REPLACED" not in preflight_json(line, cwd=tmp_path)[1]
    shutil.copy(clips[2], clips[1])
    for known in ("", f" --dataset-facts {facts}"):
        _, found = preflight_json(line + known, cwd=tmp_path)
        told = found["PRE-MEDIA-REPLACED"]
        assert told["severity"] == "warning" and clips[1].name in told["message"]
        assert clips[0].name not in told["message"]
    done = run_script(*shlex.split(told["fix"].removeprefix("scripts/")), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "PRE-MEDIA-REPLACED" not in preflight_json(line, cwd=tmp_path)[1]


def test_an_8b_model_that_does_not_fit_comes_with_the_cheapest_change(site, hub):
    model = "--engine tao --model nvidia/Cosmos-Reason2-8B --gpus-per-node 2"
    build(site, f"train --spec spec.toml {model} -o big.toml")
    line = f"--platform docker {SKIP} --target-gpu-count 2 --target-gpu-memory-gb 44 --spec"
    _, found = preflight_json(f"{line} big.toml", cwd=site, env={"HF_ENDPOINT": hub})
    about_memory = ("PRE-MEMORY", "PRE-GPU-TOTAL")
    assert {found[id]["severity"] for id in about_memory} == {"error"}
    assert found["PRE-PLATFORM-SKIPPED"]["severity"] == "warning" and found["HUB-NOT-FOUND"]
    build(site, f"train --spec big.toml {found['PRE-MEMORY']['fix']} -o fits.toml")
    _, found = preflight_json(f"{line} fits.toml", cwd=site, env={"HF_ENDPOINT": hub})
    assert {found[id]["severity"] for id in about_memory} == {"info"}


def test_a_gpu_that_policy_and_rollouts_share_is_compared_with_both(site, hub):
    model = "--engine cosmos-rl --model nvidia/Cosmos-Reason2-8B --gpus-per-node 1 --tuning lora"
    share = "--set train.master_dtype=bfloat16 --set rollout.gpu_memory_utilization=0.7"
    share += f" --set rollout.max_response_length=256 --train-root {site}/data/train"
    build(site, f"grpo {model} {share} -o one.toml")
    target = f"{SKIP} --target-gpu-count 1 --target-gpu-memory-gb 79.6"
    line = f"--platform docker --image mine:1 {target} --spec"
    document, found = preflight_json(f"{line} one.toml", cwd=site, env={"HF_ENDPOINT": hub})
    told = found["PRE-MEMORY"]
    assert told["severity"] == "error" and "vllm's share 55.72" in told["message"]
    assert "weights on their way to vllm" in document["result"]["prediction"]["terms"]
    assert "rollout.gpu_memory_utilization=" in told["fix"]
    build(site, f"grpo --spec one.toml {told['fix']} -o fits.toml")
    told = preflight_json(f"{line} fits.toml", cwd=site, env={"HF_ENDPOINT": hub})[1]["PRE-MEMORY"]
    assert told["severity"] == "info"
    assert "gpu_memory_utilization fits from 0.32 to 0.35" in told["message"]


def test_what_the_job_would_not_find(site, hub):
    """A model folder that is not there, a file where results go, a Hub that is away when it is to
    be written to."""
    (site / "taken").write_text("")
    table = spec.load(site / "spec.toml")
    spec.set_value(table, "policy.model_name_or_path", "/nowhere/model")
    spec.set_value(table, "train.ckpt.upload_hf", True)
    spec.set_value(table, "train.output_dir", f"{site}/taken")
    spec.dump(table, site / "odd.toml")
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_something"}
    env |= {"DOCKER_HOST": "unix:///var/run/docker.sock"}
    for platform in ("docker", "local"):
        _, found = preflight_json(f"--platform {platform} --spec odd.toml", cwd=site, env=env)
        assert "/nowhere/model" in found["PRE-PATH-MISSING"]["where"]
        assert found["PRE-OUTPUT"]["severity"] == "error"
        assert "HUB-UNREACHABLE" in found and "PRE-CHECK-BROKEN" not in found
    assert found["PRE-OUTPUT"]["message"].startswith("got a file")


def test_memory_that_was_not_measured(site):
    """Weights alone that exceed the card are an error; GPUs that are not known are said not to be
    compared."""
    build(site, "evaluate --model nvidia/Cosmos-Reason2-8B -o eval.toml")
    line = f"--platform kubernetes {SKIP} --spec"
    env = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    small = "--target-gpu-count 1 --target-gpu-memory-gb 12"
    _, found = preflight_json(f"{line} eval.toml {small}", cwd=site, env=env)
    assert found["PRE-MEMORY"]["severity"] == "error"
    _, found = preflight_json(f"{line} eval.toml", cwd=site, env=env)
    assert found["PRE-MEMORY-UNSEEN"]["severity"] == "warning"
    build(site, "train --model nvidia/Cosmos-Reason2-8B -o full.toml")
    _, found = preflight_json(f"{line} full.toml", cwd=site, env=env)
    assert "PRE-MEMORY-UNSEEN" in found and "PRE-GPU-TOTAL" not in found


def test_an_image_with_a_known_fault_comes_with_one_that_both_commands_take(site):
    line = f"--platform docker {SKIP} --engine tao --spec spec.toml"
    assert "PRE-IMAGE-ISSUE" not in preflight_json(line, cwd=site)[1]
    older = "--image nvcr.io/nvidia/tao/tao-toolkit:7.1.0-cosmos-rl"
    told = preflight_json(f"{line} {older}", cwd=site)[1]["PRE-IMAGE-ISSUE"]
    assert "launch_job" in told["message"]
    assert "PRE-IMAGE-ISSUE" not in preflight_json(f"{line} {told['fix']}", cwd=site)[1]
    planned = f"plan train --spec spec.toml --platform docker --engine tao {told['fix']}"
    assert "JOB-IMAGE-ISSUE" not in run_script(f"launch_job.py {planned}", cwd=site).stderr


def test_a_spec_is_checked_for_the_image_that_is_to_run_it(site):
    table = spec.load(site / "spec.toml")
    spec.set_value(table, "policy.qwen3_vl_patch_embed", "linear")
    spec.dump(table, site / "theirs.toml")
    line = f"--platform docker {SKIP} --engine tao --spec"
    _, found = preflight_json(f"{line} theirs.toml", cwd=site)
    assert found["SPEC-TRANSLATED"]["severity"] == "info"
    assert not {"JOB-IMAGE-KEY", "SPEC-KEY-UNKNOWN"} & found.keys()
    older = "--image mine:1 --image-version 7.1.0"
    document, found = preflight_json(f"{line} theirs.toml {older}", cwd=site)
    refused = found["JOB-IMAGE-KEY"]
    assert refused["severity"] == "error" and "7.1.0" in refused["message"]
    assert refused["fix"].startswith("--image nvcr.io/") and "7.2.0" in refused["fix"]
    assert "next" not in document
    _, found = preflight_json(f"{line} spec.toml {older}", cwd=site)
    assert not {"JOB-IMAGE-KEY", "JOB-IMAGE-VERSION"} & found.keys()
    told = preflight_json(f"{line} theirs.toml --image mine:1", cwd=site)[1]["JOB-IMAGE-VERSION"]
    assert (told["severity"], told["fix"]) == ("warning", "--image-version 7.2.0")


@pytest.mark.parametrize("action", ["train", "inference"])
def test_impossible_vision_settings_are_errors_and_nothing_is_assumed(action, site):
    """With the data at hand, and without."""
    table = spec.load(site / "spec.toml") if action == "train" else spec.template(action)
    key = "custom.vision.max_pixels" if action == "train" else "vision.max_pixels"
    spec.set_value(table, key, 4096)
    spec.dump(table, site / "small.toml")
    line = f"--platform local {SKIP} --spec small.toml"
    document, found = preflight_json(line, cwd=site, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert found["SPEC-VISION-PIXELS"]["severity"] == "error"
    assert "prediction" not in document["result"]
    assert [x["id"] for x in document["findings"]].count("SPEC-VISION-PIXELS") == 1


def test_what_fits_is_one_line(site):
    done = run_script(f"{SCRIPT} --platform local --spec spec.toml", cwd=site)
    (line,) = [line for line in done.stdout.splitlines() if "RTX 4090" in line]
    assert line.strip() == "fits every listed GPU from RTX 4090 (23.5 GiB) up"
    # A job of the embedded engine then shows more: it keeps what fits.
    assert "that is the least: to go faster the training takes up to 90% of a GPU" in done.stdout
    known = (
        f"--platform docker {SKIP} --target-gpu-count 1 --target-gpu-memory-gb 80 --gpu-arch 9.0"
    )
    seen = run_script(f"{SCRIPT} {known} --spec spec.toml --engine transformers", cwd=site)
    (line,) = [line for line in seen.stdout.splitlines() if "one GPU needs" in line]
    assert re.fullmatch(
        r"one GPU needs [\d.]+ of its 80 GiB at \d+ tokens \(.*\); to go .*90%", line
    )
    assert "RTX 4090" not in seen.stdout, "which GPUs they are is known"
    on_types = runpy.run_path(str(ROOT / "scripts" / SCRIPT))["on_types"]
    told = on_types({"H200": "fits", "L40S": "does not fit", "H100 80GB": "tight", "B200": "fits"})
    rest = "tight on H100 80GB (79.6 GiB); does not fit L40S (44.5 GiB)"
    assert told == f"fits every listed GPU from H200 (139.8 GiB) up; {rest}"
    assert on_types({"L40S": "does not fit"}) == "fits no listed GPU; does not fit L40S (44.5 GiB)"


def test_a_spec_that_is_not_there_comes_with_how_to_build_one(tmp_path):
    told = preflight_json("--platform local --spec spec.toml", cwd=tmp_path)[1]["FILE-MISSING"]
    assert "scripts/build_spec.py" in told["message"] and not told["fix"]


def test_checkpoints_that_are_made_at_most():
    table = spec.template("train")
    spec.set_value(table, "train.ckpt", {"enable_checkpoint": True, "save_freq": 20, "max_keep": 5})
    for steps, most, expected in (
        (4, 5, 1), (60, 5, 3), (4000, 5, 6), (4000, 1, 2), (4000, -1, 200), (None, -1, 2),
    ):  # fmt: skip
        spec.set_value(table, "train.max_num_steps", steps)
        spec.set_value(table, "train.ckpt.max_keep", most)
        kept, each = run_size.kept_checkpoints(Case("train", "cosmos-rl", table))
        assert kept == expected and each > 100
    spec.set_value(table, "train.ckpt.max_keep", 1)
    spec.set_value(table, "validation.enable", True)
    assert run_size.kept_checkpoints(Case("train", "cosmos-rl", table))[0] == 3, "old, best and new"


def test_a_pixel_budget_is_offered_where_it_counts():
    table = spec.template("train")
    for name, pixels in (("resized_height", 1024), ("resized_width", 0)):  # one alone is an error
        spec.set_value(table, f"custom.vision.{name}", 448)
        assert memory._token_pixels(Case("train", "cosmos-rl", table)) == pixels


def test_a_checkpoint_of_adapters_holds_their_base_on_cosmos_rl():
    """Of 8.8e9 parameters in float32."""
    lora = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}
    table = spec.template("train")
    spec.set_value(table, "policy.lora", lora)
    spec.set_value(table, "policy.model_name_or_path", "nvidia/Cosmos-Reason2-8B")
    sizes = {}
    for engine in ("cosmos-rl", "transformers"):
        _, sizes[engine] = run_size.kept_checkpoints(Case("train", engine, table))
    assert 35 < sizes["cosmos-rl"] < 45 and sizes["transformers"] < 1


def test_space_is_looked_for_where_the_jobs_are(tmp_path, monkeypatch):
    spec.dump(spec.template("train"), tmp_path / "spec.toml")
    options = PreflightOptions(spec=str(tmp_path / "spec.toml"), jobs_dir="/scratch/jobs")
    assert preflight_options.of_options(options, "local").outputs == ["/scratch/jobs"]
    monkeypatch.setenv("COSMOS_REASON_JOBS", "/other/jobs")
    options = PreflightOptions(spec=str(tmp_path / "spec.toml"))
    assert preflight_options.of_options(options, "local").outputs == ["/other/jobs"]


class FullDisk:
    """A machine with so much free space."""

    def __init__(self, gib, is_here=True):
        self.gib, self.is_here = gib, is_here

    def place(self, path):
        return Place("/dev/sda1", self.gib, True, False)


@pytest.mark.parametrize(
    ("platform", "is_here", "names"),
    [("local", True, True), ("docker", True, True), ("docker", False, False)],
)
def test_a_model_is_fetched_to_the_disk_of_who_submits(platform, is_here, names, tmp_path):
    """Containers share that copy: it is counted once, wherever the job runs."""
    table = spec.template("evaluate")
    spec.set_value(table, "model.model_name", "hf_model://nvidia/Cosmos-Reason2-8B")
    case = Case("evaluate", "transformers", table)
    launch = Preflight(platform, PreflightOptions(), 0, "transformers", "", case, gpus_per_node=1)
    launch.machine = FullDisk(1, is_here)
    found = [finding for finding in access.disks(launch) if "model download" in finding.message]
    assert [finding.id for finding in found] == (["PRE-DISK"] if names else [])


@pytest.mark.parametrize(
    ("engine", "model", "gib", "warns"),
    [
        ("tao", "nvidia/Cosmos3-Nano", 383, True),
        ("tao", "nvidia/Cosmos3-Nano", 384, False),
        ("cosmos-rl", "nvidia/Cosmos3-Nano", 383, False),
        ("tao", "nvidia/Cosmos-Reason2-2B", 383, False),
    ],
)
def test_the_disk_that_nvidia_wants_for_nano(engine, model, gib, warns):
    table = spec.template("train")
    spec.set_value(table, "policy.model_name_or_path", model)
    spec.set_value(table, "train.ckpt.max_keep", 1)
    case = Case("train", engine, table)
    launch = Preflight("docker", PreflightOptions(), 0, engine, "", case, gpus_per_node=1)
    launch.machine, launch.outputs = FullDisk(gib), ["/out"]
    assert [finding.id for finding in access.disks(launch)] == ["PRE-DISK-NVIDIA"] * warns


@pytest.mark.parametrize("is_lora", [False, True])
@pytest.mark.parametrize("room", [0.5, 1, 2, 3, 4])
def test_a_small_disk_gets_no_more_checkpoints_than_fit(room, is_lora):
    table = spec.template("train")
    spec.set_value(table, "train.max_num_steps", 100)
    spec.set_value(table, "train.ckpt.save_freq_in_epoch", 0)
    spec.set_value(table, "policy.model_name_or_path", "nvidia/Cosmos-Reason2-8B")
    if is_lora:
        lora = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}
        spec.set_value(table, "policy.lora", lora)
    case = Case("train", "cosmos-rl", table)
    kept, each = run_size.kept_checkpoints(case)
    launch = Preflight("local", PreflightOptions(), 0, "cosmos-rl", "", case, gpus_per_node=1)
    launch.machine, launch.outputs = FullDisk((room + 0.1) * each), ["/out"]
    (found,) = access.disks(launch)
    assert (found.id, kept) == ("PRE-DISK", 5)
    if not found.fix.changes:
        assert room < 1 and ("--tuning lora" in found.message) != is_lora
        return
    for key, value in found.fix.changes.items():
        spec.set_value(table, key, value)
    mended = run_size.kept_checkpoints(Case("train", "cosmos-rl", table))
    assert mended[0] == room and mended[1] == each


@settings(max_examples=8)
@given(text=st.text(max_size=60))
def test_no_spec_makes_a_traceback(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("spec") / "spec.toml"
    path.write_text(text, errors="replace")
    env = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    preflight_json(f"--platform local --spec {path} {SKIP}", env=env)


def test_secrets_stay_where_they_are(site, tools, hub):
    """Values of credentials are in no output and in no argument of a process, whatever a tool
    prints."""
    names = "HF_TOKEN WANDB_API_KEY NGC_CLI_API_KEY HUGGINGFACE_HUB_TOKEN OPENAI_API_KEY"
    names += " NGC_API_KEY ACCESS_KEY SECRET_KEY AWS_SESSION_TOKEN"
    for tool in ("docker", "nvidia-smi", "nvidia-ctk", "ssh", "kubectl"):
        folder = tools(tool, script="env >&2; exit 1")
    env = {name: f"{CANARY}-{name}" for name in names.split()}
    env |= {"HF_ENDPOINT": hub, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "SLURM_HOSTNAME": "login"}
    key = f"AKIA{token_hex(8).upper()}:{CANARY}"
    paths = f"--path d=s3://bucket/x --path m=hf://nvidia/gated --path p=s4://{key}@h/x"
    for platform in ("docker", "slurm", "kubernetes", "local"):
        line = f"--platform {platform} --spec spec.toml {paths} --timeout 20 --save told.json"
        done = run_script(f"{SCRIPT} {line}", cwd=site, env=env)
        told = (site / "told.json").read_text()
        assert CANARY not in done.stdout + done.stderr + told, platform
    assert CANARY not in (folder / "calls").read_text()


@pytest.mark.parametrize("name", ["", "datasets/", "no name/x y"])
def test_an_address_without_a_repository_is_a_finding(name):
    _, found = preflight_json(f"--platform local {SKIP} --path 'a=hf://{name}'")
    assert found["HUB-NAME"]["fix"].endswith("--path a=hf://ORG/NAME")
    assert "PRE-CHECK-BROKEN" not in found
