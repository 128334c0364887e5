"""SLURM without a cluster: what is rendered, what is refused, and how its answers are read."""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants
from launch_site import Site, change
from slurm_answers import ROW, Cluster
from support import ROOT, run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import in_words, launch, mounts
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import slurm
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.jobs.platforms.slurm import script as slurm_script
from cosmos_reason.remote.machine import Answer, Host
from cosmos_reason.spec import document


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_PARTITION", raising=False)
    return Site(tmp_path, monkeypatch)


def planned(site, **fields):
    job, found = launch.plan(site.request(platform="slurm", **fields))
    assert job, found
    return job, [one.id for one in found]


def test_sbatch_gets_what_was_asked_for(site, monkeypatch):
    Cluster(monkeypatch)
    job, _ = planned(
        site, account="team", qos="high", time_limit="1:00:00", gres="gpu:h100", memory="0", cpus=16
    )
    script = job.command.index(str(job.folder / "launch.sbatch"))
    flags = set(job.command[1:script])
    given = "--account=team --qos=high --time=1:00:00 --gres=gpu:h100:1 --mem=0 --cpus-per-task=16"
    assert flags > {*given.split(), "--no-requeue", "--export=NONE", "--nodes=1"}
    assert "python" in job.command[script + 1]
    job, found = planned(site, gres="gpus-per-node", exclusive=True)
    assert {"--gpus-per-node=1", "--exclusive"} < set(job.command)
    assert "JOB-SLURM-CPUS" not in found and "JOB-SLURM-CPUS" in planned(site)[1]
    job, found = planned(site, gpu_ids=[])
    assert "gres" not in " ".join(job.command) and job.resources["gpus_per_node"] == 0


@pytest.mark.parametrize(
    ("name", "pattern"), [("a%j", "a%%j"), ("a\\b%j", "a\\\\b%j"), ("plain", "plain")]
)
def test_the_log_is_where_the_folder_is(site, monkeypatch, name, pattern):
    Cluster(monkeypatch)
    job, _ = planned(site, jobs_dir=site.root / name)
    logs = [word for word in job.command if word.startswith(("--output=", "--error="))]
    assert len(logs) == 2 and all(f"/{pattern}/" in word for word in logs)


def test_the_whole_command_is_in_the_container(site, monkeypatch):
    Cluster(monkeypatch)
    monkeypatch.setenv("HF_TOKEN", "canary")
    asked = {"engine": "tao", "image": "nvcr.io/nvidia/tao/tao-toolkit:7.2.0-cosmos-rl"}
    job, _ = planned(site, **asked)
    spec = {"custom": {}}
    text = slurm_script.text(job, spec, [])
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0
    assert "--container-image=nvcr.io#nvidia/tao/tao-toolkit:7.2.0-cosmos-rl" in text
    assert f"{job.folder}:{job.folder}:rw" in text and f"{site.root / 'model'}" in text
    assert ":ro" in text and "/workspace" not in text and "canary" not in text
    assert "tao_train.py" in " ".join(job.command)
    values = slurm_script.environment(job, spec, {"A": "it's\n$(x)"}).decode()
    told = subprocess.run(
        ["sh", "-c", '. /dev/stdin; printf "%s" "$A"'],
        input=values.encode(),
        capture_output=True,
        check=True,
    )
    assert told.stdout.decode() == "it's\n$(x)" and "HF_TOKEN=canary" in values
    (passed,) = [line for line in values.splitlines() if line.startswith("container_env=")]
    assert {"A", "HF_TOKEN"} <= set(passed.partition("=")[2].split(","))
    assert "PATH=" not in values  # the image has its own


def test_the_file_of_the_environment_is_nobody_elses(site, monkeypatch):
    Cluster(monkeypatch)
    job, _ = planned(site)
    folder = site.root / "partial"
    folder.mkdir()
    slurm.write(folder, job, {})
    assert stat.S_IMODE((folder / slurm_script.ENVIRONMENT).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["with space", "a:b", "a,b", "é"])
def test_paths_that_pyxis_cannot_mount_are_refused(tmp_path, monkeypatch, name):
    """What a spec names is refused beside all else that is wrong, before the cluster is asked."""
    cluster = Cluster(monkeypatch)
    (tmp_path / name).mkdir()
    site = Site(tmp_path / name, monkeypatch)
    _, found = launch.plan(site.request(platform="slurm", engine="tao", gpu_ids=["0"]))
    refused = {one.id: one.where for one in found if one.severity == "error"}
    assert refused.keys() == {"JOB-SLURM-MOUNT", "JOB-GPU-IDS"} and name in str(refused)
    assert not cluster.asked


def test_a_path_inside_a_mounted_folder_may_have_any_name(site, monkeypatch):
    Cluster(monkeypatch)
    data = shutil.copytree(site.root / "media", site.root / "train")
    shutil.copy(site.root / "a.json", data / "my annotations.json")
    keys = {"annotation_path": "train/my annotations.json", "media_path": "train"}
    change(site, "train", custom__train_dataset=keys)
    job, _ = planned(site, engine="tao")
    mounted = {path for path, _ in mounts.places(job, document.load(site.root / "train.toml"))}
    assert data in mounted and data / "my annotations.json" not in mounted
    keys["media_path"] = "media"
    change(site, "train", custom__train_dataset=keys)
    with pytest.raises(AssertionError, match="Pyxis cannot mount"):
        planned(site, engine="tao")


def test_what_links_lead_to_is_refused_where_pyxis_cannot_mount_it(site, tmp_path, monkeypatch):
    Cluster(monkeypatch)
    (tmp_path / "a,b").mkdir()
    (site.root / "media" / "linked").symlink_to(tmp_path / "a,b")
    with pytest.raises(Failure) as raised:
        planned(site, engine="tao")
    (refused,) = raised.value.findings
    assert (refused.id, refused.where) == ("JOB-SLURM-MOUNT", str(tmp_path / "a,b"))


@pytest.mark.parametrize(
    ("image", "enroot"),
    [
        ("nvcr.io/nvidia/x:1", "nvcr.io#nvidia/x:1"),
        ("localhost:5000/x", "localhost:5000#x"),
        ("team/x:1", "team/x:1"),
        ("/images/x.sqsh", "/images/x.sqsh"),
    ],
)
def test_images_as_enroot_names_them(image, enroot):
    assert slurm_script.enroot_name(image) == enroot


def test_gpus_are_slurms_choice(site, monkeypatch):
    Cluster(monkeypatch)
    _, found = launch.plan(site.request(platform="slurm", gpu_ids=["0"]))
    assert "JOB-GPU-IDS" in [one.id for one in found if one.severity == "error"]


def test_without_a_cluster_a_plan_warns_and_a_submit_ends(site, monkeypatch):
    monkeypatch.setattr(slurm_cluster, "has_commands", lambda _: False)
    monkeypatch.delenv("SLURM_HOSTNAME", raising=False)
    assert "JOB-SLURM-UNREACHABLE" in planned(site)[1]
    with pytest.raises(Failure) as raised:
        launch.submit(site.request(platform="slurm"))
    assert raised.value.exit_code == 3 and not site.jobs.exists()


@pytest.mark.parametrize("act", [launch.plan, launch.submit])
@pytest.mark.parametrize("asked", [{"engine": "tao"}, {"image": "/images/x.sqsh"}])
def test_containers_need_pyxis(site, monkeypatch, act, asked):
    Cluster(monkeypatch, has_pyxis=False)
    job, found = act(site.request(platform="slurm", **asked))
    assert job is None and not site.jobs.exists()
    assert [one.id for one in found if one.severity == "error"] == ["PRE-SLURM-PYXIS"]
    Cluster(monkeypatch)
    planned(site, **asked)


def test_a_type_of_gpus_does_not_matter_to_a_job_without_any(site, monkeypatch):
    Cluster(monkeypatch)
    planned(site, gres="gpu:a100", gpu_ids=[])


def looked(site, monkeypatch, answer):
    site.does()
    Cluster(monkeypatch, sbatch=Answer(0, "3\n"), srun=answer)
    job, found = launch.submit(site.request(platform="slurm"))
    return job, [one for one in found if one.id in ("JOB-SLURM-PATHS", "JOB-SLURM-UNTRIED")]


def test_a_node_looks_for_the_paths_before_anything_is_recorded(site, monkeypatch):
    job, found = looked(site, monkeypatch, Answer(0, "1\nnode n7\n"))
    assert job is None and not site.jobs.exists()
    assert [(one.id, one.severity) for one in found] == [("JOB-SLURM-PATHS", "error")]
    assert found[0].where.startswith(str(site.root)) and "node n7" in found[0].message
    job, found = looked(site, monkeypatch, Answer(0, "node n7\n"))
    assert job and not found
    assert job.platform_ref["slurm_job_id"] == "3", "submit --json tells it"


def test_the_caches_of_what_is_fetched_are_looked_for_and_nothing_is_fetched_before(
    site, monkeypatch, tmp_path
):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (site.root / "media").rmdir()
    (site.root / "media.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    places = {
        f"custom__{name}__media_path": "media.zip" for name in ("train_dataset", "val_dataset")
    }
    change(site, "train", policy__model_name_or_path="nvidia/Cosmos-Reason2-2B", **places)
    site.does()
    cluster = Cluster(monkeypatch, srun=Answer(0, "0\nnode n7\n"))
    job, found = launch.submit(site.request(platform="slurm"))
    assert job is None and "JOB-SLURM-PATHS" in [one.id for one in found]
    looked_for = {str(tmp_path / "cache"), str(tmp_path / "hub"), str(site.root / "a.json")}
    assert looked_for < set(cluster.asked[-1])
    assert str(site.root / "media.zip") not in cluster.asked[-1]
    assert not list((tmp_path / "hub").iterdir()) and not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    "answer",
    [Answer(1, err="srun: error: Unable to allocate resources"), Answer(0, ""), Answer(0, "x\n")],
)
def test_where_no_node_looks_that_is_said(site, monkeypatch, answer):
    job, found = looked(site, monkeypatch, answer)
    assert job and [(one.id, one.severity) for one in found] == [("JOB-SLURM-UNTRIED", "warning")]


def test_what_the_accounts_refuse_is_one_finding_before_anything_is_recorded(site, monkeypatch):
    said = "srun: error: Unable to allocate resources: Invalid qos specification\n"
    Cluster(monkeypatch, srun=Answer(1, err=said))
    job, found = launch.submit(site.request(platform="slurm", account="team", qos="high"))
    (told,) = [one for one in found if one.severity == "error"]
    assert job is None and not site.jobs.exists()
    assert (told.id, told.where) == ("JOB-SLURM-REFUSED", "--account team --qos high")
    assert "Invalid qos specification" in told.message and "sacctmgr" in str(told.fix)


# -- environment modules -------------------------------------------------------------------------


def test_modules_are_loaded_before_their_python_runs_the_job(site, monkeypatch):
    Cluster(monkeypatch, sbatch=Answer(0, "3\n"), srun=Answer(0, "node n7\n"))
    noted, shell = site.root / "noted", f"{site.root}/bin:/usr/bin:/bin"
    script(site.root / "bin" / "srun", f'#!/bin/sh\necho srun "$@" >>{noted}\n')
    monkeypatch.setenv("PATH", shell)
    job, found = launch.submit(site.request(platform="slurm", modules=["cuda/12.8", "python/3.11"]))
    assert job, found
    program = job.command.index(str(job.folder / "launch.sbatch")) + 1
    assert job.command[program] == "python3"
    text = (job.folder / "launch.sbatch").read_text()
    values = (job.folder / slurm_script.ENVIRONMENT).read_text().splitlines()
    own = str(Path(sys.executable).parent)
    assert f"PATH={own}:{shell}" in values
    # With a profile that brings `module`, as of a cluster, and a PATH, which is not the job's.
    profile = site.root / "profile"
    profile.write_text(f'module() {{ echo "$PATH" module "$@" >>{noted}; }}\nPATH=/bin\n')
    shared = ROOT / "scripts" / "in_container"
    copied = shutil.copytree(shared, site.root / "programs") / "slurm_job.sh"
    copied.write_text(copied.read_text().replace(" /etc/profile", f" {profile}"))
    text = text.replace(str(shared), str(copied.parent))
    own_variables = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "3"}
    subprocess.run(["bash", "-c", text, "x", "program"], env=own_variables, check=True)
    loaded, started, *_, last = noted.read_text().splitlines()
    assert loaded == f"{own}:{shell} module load cuda/12.8 python/3.11"
    assert started.startswith("srun ") and last.endswith(" program")
    assert jobs.Job.load(job.folder).options["modules"] == ["cuda/12.8", "python/3.11"]
    assert "loads modules cuda/12.8, python/3.11" in in_words.of_plan(job, site.request())
    done = run_script("launch_job.py", "logs", job.job_id, "--jobs-dir", site.jobs)
    assert "JOB-LOG-EMPTY" in done.stderr and "PENDING" in done.stderr and not done.returncode


def with_modules(site, monkeypatch, *told):
    Cluster(monkeypatch, srun=Answer(0, "\n".join([*told, "node n7"])))
    job, found = launch.submit(site.request(platform="slurm", modules=["python/3.11"]))
    assert job is None and not site.jobs.exists()
    return [one for one in found if one.severity == "error"]


def test_modules_that_a_node_cannot_load_are_refused(site, monkeypatch):
    (told,) = with_modules(site, monkeypatch, "module Unable to locate a modulefile")
    assert told.id == "JOB-SLURM-MODULE" and "Unable to locate" in told.message
    (told,) = with_modules(site, monkeypatch, "python /apps/bin/python3 3.9 without torch")
    assert told.id == "JOB-SLURM-MODULE" and "3.9 without torch on node n7" in told.message
    both = with_modules(site, monkeypatch, "python none", "0")
    assert [one.id for one in both] == ["JOB-SLURM-MODULE", "JOB-SLURM-PATHS"]


@pytest.mark.parametrize(
    ("fields", "id"),
    [
        ({"modules": ["-x"]}, "JOB-SLURM-WORD"),
        ({"modules": ["a;b"]}, "JOB-SLURM-WORD"),
        ({"modules": ["a"], "image": "/images/x.sqsh"}, "JOB-FLAG"),
        ({"modules": ["a"], "platform": "local"}, "JOB-FLAG"),
    ],
)
def test_modules_are_names_for_jobs_without_a_container(site, monkeypatch, fields, id):
    Cluster(monkeypatch)
    job, found = launch.plan(site.request(**{"platform": "slurm"} | fields))
    assert job is None and [one.id for one in found if one.severity == "error"] == [id]


# -- in a container ------------------------------------------------------------------------------

# Stands in for srun with Pyxis: notes what it was given, and runs the command as each node would,
# with the variables that a container gets and no others.
SRUN = """#!{python}
import itertools, json, os, subprocess, sys
flags = list(itertools.takewhile(lambda word: word.startswith("--"), sys.argv[1:]))
command = sys.argv[1 + len(flags):]
said = dict(flag.partition("=")[::2] for flag in flags)
kept = said["--container-env"].split(",")
inside = {{name: os.environ[name] for name in kept}} | {{"PATH": os.environ["PATH"]}}
for name, value in os.environ.items():
    if name.startswith(("SLURM", "COSMOS_REASON")):
        inside[name] = value
with open({seen!r}, "a") as seen:
    seen.write(json.dumps([flags, command, inside]) + "\\n")
codes = []
for node in range(int(said["--nodes"])):
    own = {{"SLURM_NODEID": str(node), "SLURMD_NODENAME": f"n{{node}}"}}
    codes.append(subprocess.run(command, env=inside | own, check=False).returncode)
sys.exit(max(codes))
"""
SCONTROL = """#!/bin/sh
case $2 in hostnames) echo n0; echo n1;; node) echo "NodeName=$3 NodeAddr=10.0.0.$3 Port=1";; esac
"""
PROGRAM = """#!/bin/sh
printf '%s\\n' "$@" > "{folder}/$COSMOS_REASON_JOB_ID.words.$SLURM_NODEID"
printf '%s' "$HF_TOKEN|$ODD|$MASTER_ADDR" > "{folder}/$COSMOS_REASON_JOB_ID.values.$SLURM_NODEID"
[ "$SLURM_NODEID" = 0 ] || exit {code}
"""


def script(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def run_batch(site, monkeypatch, code=0, **fields):
    """Submit a job whose batch script runs here with the stand-in; returns the record and what
    srun was given."""
    program = script(site.root / "program", PROGRAM.format(folder=site.root, code=code))
    site.runs([program, "--config", ODD])
    Cluster(monkeypatch, sbatch=Answer(0, "3\n"), srun=Answer(0, "node n0\n"))
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.setenv("ODD", ODD)
    job, found = launch.submit(site.request(platform="slurm", env=["ODD"], **fields))
    assert job, found
    noted = site.root / "srun.json"
    text = SRUN.format(python=sys.executable, seen=str(noted))
    script(site.root / "bin" / "srun", text)
    script(site.root / "bin" / "scontrol", SCONTROL)
    script_path = job.command.index(str(job.folder / "launch.sbatch"))
    own = {"PATH": f"{site.root}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "3"}
    own |= {"SLURM_JOB_NUM_NODES": str(job.resources["nodes"]), "SLURM_JOB_NODELIST": "n[0-1]"}
    done = subprocess.run(
        ["bash", *job.command[script_path:]], env=own, capture_output=True, text=True, check=False
    )
    (seen,) = [json.loads(line) for line in noted.read_text().splitlines()]
    return job, seen, done


ODD = "a b'\"$(touch x);`y`|&\n\tz"
IMAGE = {"engine": "transformers", "image": "nvcr.io/team/image:1"}


def check_mounts(mounted, job, site):
    assert f"{job.folder}:{job.folder}:rw" in mounted
    for name in ("a.json", "media", "model"):
        assert f"{site.root}/{name}:{site.root}/{name}:ro" in mounted
    assert sorted(mounted) == mounted and len(set(mounted)) == len(mounted)


def test_all_of_a_job_runs_in_the_container(site, monkeypatch):
    job, (flags, command, inside), done = run_batch(site, monkeypatch, **IMAGE)
    assert done.returncode == 0, done.stderr
    said = dict(flag.partition("=")[::2] for flag in flags)
    assert said["--container-image"] == "nvcr.io#team/image:1"
    assert said["--container-workdir"] == str(job.folder) and "--no-container-mount-home" in said
    check_mounts(said["--container-mounts"].split(","), job, site)
    assert (command[0], command[3]) == ("sh", "launcher")
    assert command[-3:] == [str(site.root / "program"), "--config", ODD]
    words = (site.root / f"{job.job_id}.words.0").read_text()
    assert words == f"--config\n{ODD}\n"
    assert (site.root / f"{job.job_id}.values.0").read_text() == f"canary|{ODD}|"
    assert inside["HOME"] == str(job.folder / "home") and "LD_LIBRARY_PATH" not in inside
    left = [(job.folder / name).exists() for name in (slurm_script.ENVIRONMENT, slurm_script.ENDED)]
    assert left == [False, True] and (job.folder / "node.0.exit").read_text() == "n0 0\n"


@pytest.mark.parametrize("is_named", [True, False])
def test_a_cache_of_the_hub_that_is_named_is_the_containers_too(site, monkeypatch, is_named):
    """What nobody said to be on shared storage is left alone."""
    cache = site.root / "shared" / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(cache.parent) if is_named else "")
    job, (flags, _, inside), _ = run_batch(site, monkeypatch, **IMAGE)
    (mounted,) = [flag for flag in flags if flag.startswith("--container-mounts=")]
    assert (f"{cache}:{cache}:rw" in mounted, cache.is_dir()) == (is_named, is_named)
    assert inside.get("HF_HUB_CACHE") == (str(cache) if is_named else None)
    assert inside["HF_HOME"] == str(job.folder / "home/.cache/hf_home")  # tokens stay out
    assert (str(cache) in (job.folder / "launch.sbatch").read_text()) == is_named


def test_several_nodes_run_in_containers(site, monkeypatch):
    change(
        site,
        "train",
        policy__parallelism__dp_shard_size=2,
        policy__parallelism__dp_replicate_size=2,
    )
    Cluster(monkeypatch)
    asked = {"engine": "cosmos-rl", "image": "/images/x.sqsh", "nodes": 2}
    job, (flags, _, inside), done = run_batch(site, monkeypatch, code=7, **asked)
    assert done.returncode == 7, done.stderr
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"} < set(flags)
    assert "--container-image=/images/x.sqsh" in flags
    port = inside["COSMOS_REASON_CONTROLLER_PORT"]
    for node, where in enumerate((["--port", port], ["--url", f"10.0.0.n0:{port}"])):
        words = (site.root / f"{job.job_id}.words.{node}").read_text().split("\n")
        assert words[:8] == [
            *("--num-workers", "2", "--worker-idx", str(node)),
            *("--node-ip-list", "10.0.0.n0;10.0.0.n1", *where),
        ]
    assert (job.folder / "node.1.exit").read_text() == "n1 7\n"


def test_a_job_that_may_be_begun_anew_keeps_its_environment(site, monkeypatch):
    """Till it ends well, or whoever asks learns that it ended."""
    job, _, done = run_batch(site, monkeypatch, requeue=True, **IMAGE)
    assert "--requeue" in job.command and "--no-requeue" not in job.command
    assert done.returncode == 0 and not (job.folder / slurm_script.ENVIRONMENT).exists()


def test_a_requeued_training_goes_on_or_is_refused(site, monkeypatch):
    cluster = Cluster(monkeypatch)
    change(site, "train", train__output_dir=str(site.root / "own"))
    _, found = launch.plan(site.request(platform="slurm", requeue=True))
    (told,) = [one for one in found if one.severity == "error"]
    assert not cluster.asked
    assert told.id == "JOB-REQUEUE" and told.fix.changes == {"train.resume": True}
    change(site, "train", train__resume=True)
    planned(site, requeue=True)


# -- answers of the cluster ----------------------------------------------------------------------


def seen(monkeypatch, name="train-1", **answers):
    cluster = Cluster(monkeypatch, **answers)
    return slurm_cluster.find(cluster, name, "2026-01-01T00:00:00Z"), cluster


def test_states_of_the_queue(monkeypatch):
    lines = "4|other|RUNNING|None|n1\n5|train-1|FAILED|NonZeroExitCode|n1\n"
    details = Answer(0, "JobId=5 JobName=x JobState=FAILED ExitCode=0:9 RunTime=1")
    found, _ = seen(monkeypatch, squeue=Answer(0, lines), scontrol=details)
    assert (found.slurm_id, found.state, found.exit_code, found.note) == ("5", "FAILED", 137, "")
    found, _ = seen(monkeypatch, squeue=Answer(0, "5|train-1|NODE_FAIL|NodeDown|n1\n"))
    assert found.note == "SLURM: NODE_FAIL (NodeDown)" and found.exit_code is None


def test_what_the_queue_forgot_the_accounts_know(monkeypatch):
    told = Answer(0, "7|train-1|CANCELLED by 1000|0:0|n1\n")
    found, cluster = seen(monkeypatch, sacct=told)
    assert (found.slurm_id, found.state) == ("7", "CANCELLED")
    assert "--starttime=2025-12-31" in cluster.asked[-1]
    found, _ = seen(monkeypatch, sacct=Answer(0, "7|train-1|FAILED|3:0|n1\n"))
    assert found.exit_code == 3
    off = Answer(1, err="Slurm accounting storage is disabled")
    assert seen(monkeypatch, sacct=off)[0] is None


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_a_cluster_that_does_not_answer_says_nothing_of_the_job(monkeypatch, command):
    with pytest.raises(Failure) as raised:
        seen(monkeypatch, **{command: Answer(1, err="Unable to contact slurm controller")})
    assert raised.value.findings[0].id == "JOB-SLURM-UNREACHABLE"


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        (Answer(0, "12;cluster\n"), "12"),
        (Answer(124, err="no answer within 90 s"), None),
        (Answer(255, err="ssh: connect to host"), None),
        (Answer(0, ""), None),
        (Answer(1, err="sbatch: error: Socket timed out on send/recv operation"), None),
    ],
)
def test_answers_of_sbatch(monkeypatch, answer, taken):
    assert slurm_cluster.submit(Cluster(monkeypatch, sbatch=answer), ["sbatch"]) == taken


def test_another_cluster_is_not_believed(site, monkeypatch):
    cluster = Cluster(monkeypatch, sbatch=Answer(0, "3\n"))
    cluster.answers["scontrol"] = Answer(0, "ClusterName             = first\n")
    job, _ = launch.submit(site.request(platform="slurm"))
    cluster.answers["scontrol"] = Answer(0, "ClusterName             = second\n")
    with pytest.raises(Failure) as raised:
        slurm.judged(jobs.Job.load(job.folder))
    assert raised.value.findings[0].id == "JOB-SLURM-CLUSTER"
    assert jobs.Job.load(job.folder).state == "PENDING"


def test_an_exit_code_of_work_that_was_lost_with_its_node_is_not_believed(site, monkeypatch):
    cluster = Cluster(monkeypatch, sbatch=Answer(0, "3\n"))
    job, _ = launch.submit(site.request(platform="slurm"))
    (job.folder / slurm_script.STARTED).write_text("1700000000 3\n")
    (job.folder / slurm_script.ENDED).write_text("0\n")
    cluster.answers["squeue"] = Answer(0, f"3|{job.job_id}|NODE_FAIL|NodeDown|\n")
    slurm_cluster._queues.clear()
    ended = slurm.judged(jobs.Job.load(job.folder))
    assert (ended.state, ended.exit_code) == ("ERROR", None) and "NODE_FAIL" in ended.reason
    (job.folder / "node.0.exit").write_text("n1 143\n")
    assert slurm.judged(jobs.Job.load(job.folder)).exit_code is None
    (job.folder / "node.0.exit").write_text("n1 0\n")
    assert slurm.judged(jobs.Job.load(job.folder)).exit_code == 0


def test_a_job_ended_when_its_script_noted_it_not_when_somebody_asks(site, monkeypatch):
    Cluster(monkeypatch, sbatch=Answer(0, "3\n"))
    job, _ = launch.submit(site.request(platform="slurm"))
    (job.folder / slurm_script.STARTED).write_text("1700000000 3\n")
    (job.folder / "node.0.exit").write_text("n1 0\n")
    (job.folder / slurm_script.ENDED).write_text("0\n")
    for noted, told in ((1_700_000_600, "2023-11-14T22:23:20Z"), (4_000_000_000, None)):
        os.utime(job.folder / slurm_script.ENDED, (noted, noted))
        ended = slurm.judged(jobs.Job.load(job.folder))
        assert ended.started_at == "2023-11-14T22:13:20Z"
        assert ended.ended_at == told or (told is None and ended.ended_at <= jobs.now())


def test_an_unknown_state_is_no_end(site, monkeypatch):
    cluster = Cluster(monkeypatch, sbatch=Answer(0, "3\n"))
    job, _ = launch.submit(site.request(platform="slurm"))
    cluster.answers["squeue"] = Answer(0, f"3|{job.job_id}|PONDERING|None|\n")
    slurm_cluster._queues.clear()
    with pytest.raises(Failure) as raised:
        slurm.judged(jobs.Job.load(job.folder))
    assert raised.value.findings[0].data["job"]["state"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("state", "reason", "is_held"),
    [
        ("PENDING", "launch failed requeued held", True),
        ("PENDING", "JobHeldUser", True),
        ("REQUEUE_HOLD", "None", True),
        ("PENDING", "Resources", False),
        ("PENDING", "BeginTime", False),
    ],
)
def test_a_held_job_is_told_as_held(site, monkeypatch, state, reason, is_held):
    cluster = Cluster(monkeypatch, sbatch=Answer(0, "3\n"))
    job, _ = launch.submit(site.request(platform="slurm"))
    cluster.answers["squeue"] = Answer(0, f"3|{job.job_id}|{state}|{reason}|\n")
    slurm_cluster._queues.clear()
    told = slurm.judged(jobs.Job.load(job.folder))
    assert told.state == "PENDING"
    assert ("SLURM holds it" in told.reason and reason in told.reason) == is_held
    assert told.reason.endswith("scontrol release 3") == is_held
    later = slurm.judged(replace(told, reason="SLURM holds it"))
    assert later.reason == f"SLURM: {reason}" or is_held


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [(None, 300), ("4:00:00", 300), ("20", 300), ("8", 120), ("1", 15), ("0", 300)],
)
def test_a_training_is_told_before_its_time_limit(site, monkeypatch, limit, seconds):
    Cluster(monkeypatch, sinfo=Answer(0, ROW.replace("4:00:00", "infinite")))
    job, _ = planned(site, time_limit=limit)
    assert f"--signal=USR1@{seconds}" in job.command
    job, _ = planned(site, time_limit=limit, engine="cosmos-rl", image="/images/x.sqsh")
    assert f"--signal=USR1@{seconds}" in job.command
    job, _ = planned(site, action="evaluate", time_limit=limit)
    assert not [word for word in job.command if word.startswith("--signal")]


def test_what_is_sharded_has_more_time_to_be_saved(site, monkeypatch):
    change(site, "train", policy__parallelism__dp_shard_size=8)
    Cluster(monkeypatch)
    assert "--signal=USR1@600" in planned(site)[0].command
    assert "--signal=USR1@300" in planned(site, time_limit="20")[0].command


def test_a_login_node_is_reached_over_ssh(monkeypatch):
    monkeypatch.setenv("SLURM_HOSTNAME", "login")
    monkeypatch.setenv("SLURM_USER", "me")
    assert slurm_cluster.host().name == "me@login"
    assert slurm_cluster.host("you@other").ssh[-1] == "you@other"
    monkeypatch.delenv("SLURM_HOSTNAME")
    assert slurm_cluster.host() == Host()
