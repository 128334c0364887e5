"""Jobs of open-source cosmos-rl on this machine, with small programs in place of the package's."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from launch_site import LOG_PREFIX, MODEL_CONFIG, Site, ended, is_running
from support import run_script

from cosmos_reason.base import bundle, findings
from cosmos_reason.data import annotations
from cosmos_reason.engine import conversations
from cosmos_reason.jobs import (
    cosmos_environment,
    diagnosis,
    evidence,
    launch,
    platforms,
    progress,
)
from cosmos_reason.jobs import record as jobs
from cosmos_reason.spec import document

# As the real one: processes of its own, a redis that detaches itself, exit code 0 whatever became
# of a replica.
LAUNCHER = f"""#!{sys.executable}
import json, os, pathlib, struct, subprocess, sys, time, tomllib
with open(sys.argv[sys.argv.index("--config") + 1], "rb") as file:
    spec = tomllib.load(file)
do = json.loads(os.environ.get("LAUNCHER", "{{}}"))
names = ("PATH", "COSMOS_REASON_ONE_NODE", "CUDA_VISIBLE_DEVICES")
seen = {{name: os.environ.get(name) for name in names}}
print("seen", json.dumps(seen), flush=True)
print("script", sys.argv[-1], flush=True)
sleeper = [sys.executable, "-c", "import time; time.sleep(3000)"]
redis = subprocess.Popen(sleeper, start_new_session=True)
print("redis", redis.pid, flush=True)
time.sleep(do.get("pause", 0))
for step in range(1, do.get("steps", 3) + 1):
    line = "{LOG_PREFIX}Step: %d/3, Loss: %.5f, Grad norm: 1.0, Iteration time: 0.1s"
    print(line % (step, 1 / step), flush=True)
if do.get("steps", 3) < 3:
    print("Process 7 failed with return code 1", flush=True)
    sys.exit(0)
run = pathlib.Path(spec["train"]["output_dir"]) / "20260101000000"
print("{LOG_PREFIX}[SFT] Validation loss: 0.25 for train step 3/3, epoch 0", flush=True)
folder = run / "safetensors" / "step_3"
folder.mkdir(parents=True)
header = json.dumps({{"w": {{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}}}).encode()
(folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
for name in ("config", "tokenizer", "tokenizer_config", "preprocessor_config", "chat_template"):
    text = {MODEL_CONFIG!r}
    (folder / f"{{name}}.json").write_text(text)
(run.parent / "best").mkdir()
(run.parent / "best" / "safetensors").symlink_to(folder)
"""
VERSIONS = {
    "cosmos-rl": "0.4.7",
    "torch": "2.11.0+cu130",
    "transformers": "5.17.0",
    "qwen-vl-utils": "0.0.14",
    "av": "18.1.0",
    "boto3": "1.44.5",
}


class Environment:
    """A folder of programs as of make setup-cosmos-rl, on PATH."""

    def __init__(self, root, monkeypatch):
        self.bin, self.packages = root / "bin", root / "packages"
        self.bin.mkdir()
        self.monkeypatch = monkeypatch
        self.program("cosmos-rl", LAUNCHER)
        self.program("redis-server", "#!/bin/sh\n")
        self.gpus(1)
        python = f'#!/bin/sh\nPYTHONPATH={self.packages} exec {sys.executable} -S "$@"\n'
        self.program("python", python)
        self.has(**VERSIONS)
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def program(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def gpus(self, count):
        lines = "".join(f"echo 'GPU {n}: H100 (UUID: GPU-{n})'\n" for n in range(count))
        self.program("nvidia-smi", f"#!/bin/sh\n{lines}")

    def has(self, **versions):
        for name, version in versions.items():
            folder = self.packages / f"{name.replace('-', '_')}.dist-info"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
            if version is None:
                (folder / "METADATA").unlink()
                folder.rmdir()


@pytest.fixture
def environment(tmp_path, monkeypatch):
    return Environment(tmp_path, monkeypatch)


@pytest.fixture
def site(tmp_path, monkeypatch, environment):
    site = Site(tmp_path, monkeypatch)
    table = document.load(tmp_path / "train.toml")
    table["train"]["compile"] = False
    document.dump(table, tmp_path / "train.toml")
    return site


def submit(site, **fields):
    job, found = launch.submit(site.request(engine="cosmos-rl", **fields))
    assert job, found
    return site.jobs / job.job_id


def log_of(folder):
    return (folder / jobs.LOG).read_text()


def test_a_run_earns_its_end_by_steps_and_a_model(site, environment):
    folder = submit(site)
    job = ended(folder)
    assert (job.state, job.reason) == ("COMPLETE", "")
    assert job.evidence["last_step"] == job.evidence["total_steps"] == 3
    assert job.evidence["checkpoint"].endswith("safetensors/step_3")
    assert job.evidence["best"] == job.evidence["checkpoint"]
    assert progress.newest(folder, whole=True)["train/loss"] == pytest.approx(1 / 3, abs=1e-4)
    assert job.command[0] == str(environment.bin / "cosmos-rl")
    told = log_of(folder)
    assert str(bundle.ROOT / "scripts" / "train_with_cosmos_rl.py") in told
    seen = json.loads(told.partition("seen ")[2].splitlines()[0])
    assert seen["PATH"].startswith(f"{environment.bin}{os.pathsep}")
    assert seen["COSMOS_REASON_ONE_NODE"] == "1"


@pytest.mark.parametrize(
    "steps, said", [(0, "no step was recorded"), (2, "stopped at step 2 of 3")]
)
def test_exit_code_0_after_a_replica_died_is_an_error(site, monkeypatch, steps, said):
    monkeypatch.setenv("LAUNCHER", json.dumps({"steps": steps}))
    job = ended(submit(site))
    assert (job.state, job.exit_code) == ("ERROR", 0)
    assert said in job.reason and "Process 7 failed" in job.reason


def test_a_retry_goes_through_to_the_end(site, monkeypatch):
    monkeypatch.setenv("LAUNCHER", json.dumps({"steps": 2}))
    folder = submit(site)
    assert ended(folder).state == "ERROR"
    monkeypatch.delenv("LAUNCHER")
    again, _ = launch.submit(launch.next_attempt(folder, site.jobs))
    record = ended(site.jobs / again.job_id)
    assert (record.state, record.retry_of, record.engine) == (
        "COMPLETE",
        folder.name,
        "cosmos-rl",
    )


def test_a_search_is_judged_by_what_its_log_tells(site):
    table = document.load(site.root / "train.toml")
    table["validation"] |= {"enable": True, "freq": 3}
    del table["validation"]["freq_in_epoch"]
    table["train"]["max_num_steps"] = 3
    table["custom"]["val_dataset"]["annotation_path"] = "held_out.json"
    held_out = (site.root / "a.json").read_text().replace(".mp4", "-held-out.mp4")
    (site.root / "held_out.json").write_text(held_out)
    document.dump(table, site.root / "train.toml")
    words = ("--engine", "cosmos-rl", "--spec", "train.toml", "--range", "lr=1e-5..1e-3")
    words += ("--trials", "2", "--objective", "val_loss", "--every", "0.1", "--json")
    done = run_script("tune_hyperparameters.py", "run", "--study", "s", *words, cwd=site.root)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = [json.loads(path.read_text()) for path in site.root.glob("s/trials/*/trial.json")]
    assert [(one["state"], one["objective"]) for one in trials] == [("COMPLETE", 0.25)] * 2
    assert all("safetensors/step_3" in one["checkpoint"] for one in trials)


def rewarded(site, *spreads):
    """The job of a reinforcement learning whose steps had rewards of these spreads."""
    folder = ended(submit(site)).folder
    line = "Step: {}/3, Reward Mean: 1.0000, Reward Std: {:.4f}, Reward Max: 1.0000\n"
    steps = enumerate(spreads, 1)
    text = "".join(LOG_PREFIX + line.format(step, spread) for step, spread in steps)
    (folder / jobs.LOG).write_text(text)
    return evidence.ended(replace(jobs.Job.load(folder), action="grpo"), 0)


def test_watch_tells_reward_kl_and_length(site):
    folder = ended(submit(site)).folder
    line = "Step: 3/3, Reward Mean: 0.5000, Reward Std: 0.2500, Completion Length Mean: 41.00, "
    (folder / jobs.LOG).write_text(LOG_PREFIX + line + "KL Loss Avg: 0.00120\n")
    words = ("watch", folder.name, "--jobs-dir", site.jobs)
    told = run_script("launch_job.py", *words, cwd=site.root).stderr
    assert "step 3/3, reward 0.500, its spread 0.250, KL 0.0012, 41 tokens a completion" in told


def test_rewards_that_never_differ_are_no_training(site):
    job = rewarded(site, 0.0, 0.0, 0.0)
    assert (job.state, job.evidence["flat_steps"]) == ("ERROR", 3)
    assert "earned the same reward" in job.reason


def test_steps_without_a_spread_of_rewards_are_counted(site):
    job = rewarded(site, 0.5, 0.0, 0.25)
    assert (job.state, job.evidence["flat_steps"]) == ("COMPLETE", 1)
    assert job.reason == "1 of 3 steps taught nothing: all their rewards were equal"
    (seen,) = diagnosis.diagnose((job.folder / jobs.LOG).read_text().splitlines())[:1]
    assert (seen.id, seen.severity) == ("LOG-REWARD-FLAT", "info")
    assert rewarded(site, 0.5, 0.1, 0.25).reason == ""


@pytest.mark.parametrize("engine", ["cosmos-rl", "tao"])  # NVIDIA's container runs it, too
def test_records_that_the_dataset_script_left_out_stand_in_the_reason(site, capsys, engine):
    folder = ended(submit(site)).folder
    assert jobs.Job.load(folder).reason == ""
    samples, _ = annotations.read(site.root / "a.json")
    for name, places in (("train_dataset", (0, 5)), ("val_dataset", (5,))):
        data = conversations.Conversations(samples, sampler=None, name=name)
        data.most_skipped = 2
        for place in places:
            problem = findings.error("DATA-MEDIA-EMPTY", "a.mp4", "got a file of zero bytes")
            data.skip(place, problem)
    said = capsys.readouterr().err
    with open(folder / jobs.LOG, "a") as log:
        log.write(said + said)  # two ranks came upon them
    job = evidence.ended(replace(jobs.Job.load(folder), engine=engine), 0)
    assert (job.state, job.evidence["skipped_records"]) == ("COMPLETE", 2)
    told = f"were left out: their media could not be read ({folder / jobs.LOG} names them)"
    count = len(samples)
    assert count > 2
    assert job.reason == f"2 of {count} records {told}; 1 of {count} validation records {told}"
    Draft202012Validator(bundle.schema("job")).validate(job.to_json())


@pytest.mark.parametrize("cancel", [False, True])
def test_redis_ends_with_the_job(site, monkeypatch, cancel):
    monkeypatch.setenv("LAUNCHER", json.dumps({"pause": 3000 if cancel else 0}))
    folder = submit(site)
    deadline = time.monotonic() + 300
    while "redis " not in (log_of(folder) if (folder / jobs.LOG).exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    redis = int(log_of(folder).partition("redis ")[2].split()[0])
    if cancel:
        platforms.stop(folder, grace=5)
    ended(folder)
    patience = time.monotonic() + 300  # it may take a moment to die
    while is_running(redis) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not is_running(redis)


def test_chosen_gpus_are_what_it_sees(site, environment):
    environment.gpus(3)
    folder = submit(site, gpu_ids=["2"])
    ended(folder)
    assert (
        json.loads(log_of(folder).partition("seen ")[2].splitlines()[0])["CUDA_VISIBLE_DEVICES"]
        == "2"
    )


def refused(site, **fields):
    _, found = launch.submit(site.request(engine="cosmos-rl", **fields))
    errors = [finding for finding in found if finding.severity == "error"]
    assert errors and not site.jobs.exists()
    return errors


@pytest.mark.parametrize(
    "versions, check, said",
    [
        ({"cosmos-rl": "0.3.9"}, "PRE-COSMOS-VERSION", "got 0.3.9, expected 0.4.7"),
        ({"cosmos-rl": None}, "PRE-COSMOS-VERSION", "got none, expected 0.4.7"),
        ({"torch": "2.13.0"}, "PRE-COSMOS-TORCH", "got torch 2.13.0, expected 2.11 at most"),
        ({"av": None, "qwen-vl-utils": None}, "PRE-COSMOS-MISSING", "got no qwen-vl-utils, av"),
        ({"boto3": None}, "PRE-COSMOS-MISSING", "got no boto3"),
    ],
)
def test_a_wrong_environment_is_one_finding_before_anything_is_recorded(
    site, environment, versions, check, said
):
    environment.has(**versions)
    (finding,) = refused(site)
    assert finding.id == check and said in finding.message
    assert "setup-cosmos-rl" in str(finding.fix)


def test_make_sets_up_all_that_is_asked_for():
    """The file that it reads, and those that it names, the one after the other."""
    named = ["requirements-cosmos-rl.txt", "requirements-s3.txt", "requirements.txt"]
    texts = [(bundle.ROOT / name).read_text() for name in named]
    for text, following in zip(texts, named[1:], strict=False):
        assert text.endswith(f"\n-r {following}\n")
    text = "\n".join(texts)
    assert [name for name in cosmos_environment.NEEDED if f"\n{name}==" not in text] == []


def test_programs_that_are_missing_are_told(site, environment, monkeypatch):
    (environment.bin / "redis-server").unlink()
    assert [finding.id for finding in refused(site)] == ["PRE-TOOL-MISSING"]
    (environment.bin / "cosmos-rl").unlink()
    monkeypatch.setattr(cosmos_environment, "OWN", Path("/nowhere"))
    assert [finding.id for finding in refused(site)] == ["PRE-COSMOS-MISSING"]


def test_what_make_set_up_is_found_without_path(site, environment, monkeypatch, tmp_path):
    monkeypatch.setattr(cosmos_environment, "OWN", environment.bin)
    smi = tmp_path / "smi"
    smi.mkdir()
    (environment.bin / "nvidia-smi").rename(smi / "nvidia-smi")
    monkeypatch.setenv("PATH", f"{smi}{os.pathsep}/usr/bin{os.pathsep}/bin")
    folder = submit(site)
    assert ended(folder).state == "COMPLETE"


@pytest.mark.parametrize(
    "gpus, shown, said",
    [
        (0, None, "got 0 GPUs"),
        (3, None, "got 3 GPUs, expected 1, 2, 4, 8"),
        (8, "0,1,2", "got 3 GPUs"),
    ],
)
def test_it_wants_one_two_four_or_eight_gpus(site, environment, monkeypatch, gpus, shown, said):
    environment.gpus(gpus)
    if shown:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    (finding,) = refused(site)
    assert finding.id == "JOB-GPU-COUNT" and said in finding.message
    assert str(finding.fix) == ("--gpu-ids 0" if gpus else "")


def of_environment(action, severity="error"):
    found = cosmos_environment.findings("cosmos-rl", action)
    return [one for one in found if one.severity == severity]


def test_reinforcement_learning_needs_vllm(environment):
    (missing,) = of_environment("grpo")
    assert missing.id == "PRE-COSMOS-VLLM" and "pip install vllm==" in str(missing.fix)
    assert [one.id for one in of_environment("grpo", "info")] == ["PRE-COSMOS-ATTENTION"]
    environment.has(vllm="0.20.0")
    assert not of_environment("grpo")


@pytest.mark.parametrize(
    "version, torch, said",
    [
        ("0.7.3", "2.11.0", "got vllm 0.7.3, expected 0.8 or newer"),
        ("0.32.0", "2.13.0", "got vllm 0.32.0 for torch 2.13.0 beside torch 2.11.0"),
    ],
)
def test_a_vllm_of_another_kind_is_one_finding(environment, version, torch, said):
    environment.has(vllm=version)
    with open(environment.packages / "vllm.dist-info" / "METADATA", "a") as file:
        file.write(f"Requires-Dist: numpy\nRequires-Dist: torch=={torch}\n")
    (found,) = of_environment("grpo")
    assert found.id == "PRE-COSMOS-VLLM" and said in found.message
    assert not of_environment("train")


def test_preflight_says_the_same(site, environment):
    environment.has(torch="2.13.0")
    arguments = ("--platform", "local", "--engine", "cosmos-rl", "--spec", "train.toml", "--json")
    done = run_script("check_tao_launch_preflight.py", *arguments, cwd=site.root)
    found = {finding["id"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["PRE-COSMOS-TORCH"]["severity"] == "error" and "JOB-ENGINE" not in found
