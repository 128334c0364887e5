"""Every action of the embedded engine, a retry and a study as jobs on a real SLURM cluster, with a
tiny model. All are begun at once, so that their starts overlap."""

import json
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import oracles
import pytest
import study_world
from study_world import succeed
from support import ROOT, run_script

from cosmos_reason.base import files
from cosmos_reason.jobs import platforms, progress
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms.slurm import cluster as slurm_cluster
from cosmos_reason.spec import document
from cosmos_reason.tuning import study

pytestmark = pytest.mark.integration
HANG = 300  # seconds after which a test gives up


@pytest.fixture(scope="module")
def patches(slurm_cluster_of_the_session):
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("SLURM_CONF", str(slurm_cluster_of_the_session.conf))
        patches.setenv("OMP_NUM_THREADS", "1")
        patches.setattr(slurm_cluster, "FRESH", 0.5)
        yield patches


@pytest.fixture(scope="module")
def world(tmp_path_factory, patches):
    """Data, a tiny model and a spec for each action."""
    root = study_world.make(tmp_path_factory.mktemp("world"))
    train = document.load(root / "train.toml")
    train["train"] |= {"epoch": 100, "max_num_steps": 300}
    train["train"]["ckpt"] |= {"save_freq": 4, "max_keep": 100}
    train["validation"] |= {"freq": 150}
    document.dump(train, root / "long.toml")
    train["train"] |= {"epoch": 10_000, "max_num_steps": 20_000}
    train["train"]["ckpt"] |= {"save_freq": 20_000}
    train["validation"] |= {"freq": 20_000}
    document.dump(train, root / "endless.toml")
    study_world.write_other_specs(root)
    return root


def asked(root, action, name, env=None, more=()):
    words = ["submit", action, "--spec", f"{name}.toml", "--engine", "transformers"]
    words += ["--platform", "slurm", "--cpus", "1", *more]
    return run_script("launch_job.py", *words, "--gpu-ids", "none", cwd=root, env=env)


def submit(root, action, name, env=None, more=()):
    done = asked(root, action, name, env, more)
    assert done.returncode == 0, done.stderr + done.stdout
    return root / "jobs" / done.stdout.strip()


@pytest.fixture(scope="module")
def modulefiles(world):
    """The environment that finds `mine`, a module whose Python has this one's packages and notes
    the jobs that it runs."""
    if not shutil.which("modulecmd"):
        pytest.skip("no modulecmd")
    environment = world / "environment"
    venv.create(environment)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (packages / "this.pth").write_text(sysconfig.get_path("purelib"))
    (packages / "sitecustomize.py").write_text(NOTES.format(folder=str(world)))
    (world / "modulefiles").mkdir()
    text = f"#%Module1.0\nprepend-path PATH {environment}/bin\nsetenv OF_THE_MODULE yes\n"
    (world / "modulefiles" / "mine").write_text(text)
    return {"MODULEPATH": str(world / "modulefiles")}


NOTES = """import os, pathlib, sys
job = os.environ.get("COSMOS_REASON_JOB_ID")
if job:
    note = sys.prefix + " " + os.environ.get("OF_THE_MODULE", "")
    pathlib.Path({folder!r}, job + ".python").write_text(note)
"""
WITH_MODULE = ("--env", "MODULEPATH", "--module", "mine")


@pytest.fixture(scope="module")
def tuned(world):
    """A study that runs."""
    words = ["run", "--study", "study", "--spec", "train.toml", "--eval-spec", "eval.toml"]
    words += ["--range", "lr=1e-5..1e-3", "--pruner", "none", "--trials", "1", "--gpu-ids", "none"]
    words += ["--every", "0.5", "--platform", "slurm", "--json", "--", "--time-limit", "10"]
    command = [sys.executable, str(ROOT / "scripts" / "tune_hyperparameters.py"), *words]
    return subprocess.Popen(command, cwd=world, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def of_module(world, modulefiles, tuned):
    """The folder of a job that runs in the environment of a module."""
    return submit(world, "inference", "inference", modulefiles, WITH_MODULE)


@pytest.fixture(scope="module")
def begun(world, tuned):
    """The folders of the jobs, by what they are."""
    library = {"PYTHONPATH": str(oracles.llmcompressor()), "HF_HUB_OFFLINE": "1"}
    return {
        "endless": submit(world, "train", "endless", more=["--time-limit", "1"]),
        "evaluate": submit(world, "evaluate", "eval"),
        "inference": submit(world, "inference", "inference"),
        "quantize": submit(world, "quantize", "quantize", library),
        "long": submit(world, "train", "long"),  # the last, which must be met before its end
    }


def waited(folder, ready):
    deadline = time.monotonic() + HANG
    while not ready(job := platforms.refresh(folder)):
        assert time.monotonic() < deadline, (job, progress.log_tail(folder, 20))
        time.sleep(0.2)
    return job


def ended(folder):
    return waited(folder, lambda job: job.has_ended)


def test_a_killed_training_goes_on_from_its_checkpoint(world, begun, slurm):
    folder = begun["long"]
    job = waited(folder, lambda _: progress.newest(folder).get("step", 0) >= 4)
    slurm.call("scancel", "--signal=KILL", job.platform_ref["slurm_job_id"])
    job = ended(folder)
    # srun may have asked the trainer to end before it was killed: then no exit code is known.
    assert job.state == "ERROR" and job.exit_code != 0 and "stopped at step" in job.reason
    again = world / "jobs" / succeed("launch_job.py", "retry", folder.name, cwd=world)
    job = ended(again)
    assert (job.state, job.retry_of) == ("COMPLETE", folder.name), job.reason
    assert job.platform == "slurm" and job.options["cpus"] == 1 and job.evidence["last_step"] == 300
    assert progress.read_metrics(again)[0][0]["step"] > 1


def test_a_training_saves_before_its_time_limit_and_goes_on(world, begun):
    job = ended(begun["endless"])
    assert job.state == "ERROR" and "TIMEOUT" not in job.reason, job.reason
    assert [one["id"] for one in job.diagnosis] == ["ENGINE-STOPPED"], job.diagnosis
    assert "SIGUSR1" in job.diagnosis[0]["message"] and "retry" in job.reason
    last = progress.newest(job.folder)["step"]
    assert f"goes on from step {last}" in job.reason
    again = world / "jobs" / succeed("launch_job.py", "retry", job.job_id, cwd=world)
    waited(again, lambda _: progress.newest(again).get("step", 0) > last)
    assert progress.read_metrics(again)[0][0]["step"] == last + 1
    assert platforms.stop(again, grace=30).state == "CANCELED"


def test_an_evaluation(begun):
    job = ended(begun["evaluate"])
    assert job.evidence == {"rows": 9, "questions": 9, "failed": 0}, job.reason
    words = ["score_predictions.py", str(job.outputs["results_dir"]), "--json"]
    assert run_script(*words, cwd=job.folder).returncode == 0


@pytest.mark.parametrize("environment", ["this one", "of a module"])
def test_an_inference(world, begun, environment, request):
    in_module = environment == "of a module"
    job = ended(request.getfixturevalue("of_module") if in_module else begun["inference"])
    note = world / f"{job.job_id}.python"
    assert note.exists() == in_module
    if in_module:
        assert note.read_text() == f"{world / 'environment'} yes"
    assert job.evidence == {"rows": 3, "questions": 3, "failed": 0}, job.reason
    assert len(files.read_json(Path(job.outputs["results_dir"]) / "predictions.json")) == 3


def test_modules_that_no_node_can_use_are_told_before_a_job_is_recorded(world, modulefiles):
    folders = set((world / "jobs").glob("*"))
    (world / "modulefiles" / "bare").write_text(f"#%Module1.0\nprepend-path PATH {bare(world)}\n")
    told = []
    for name, why in (("none-such", "none-such"), ("bare", "without torch")):
        more = ("--env", "MODULEPATH", "--module", "mine", "--module", name)
        done = asked(world, "inference", "inference", modulefiles, [*more, "--json"])
        assert done.returncode == 1, done.stdout
        found = json.loads(done.stdout)["findings"]
        (wrong,) = [one for one in found if one["severity"] == "error"]
        assert wrong["id"] == "JOB-SLURM-MODULE" and why in wrong["message"]
        told.append(wrong["where"])
    assert told == ["--module mine none-such", "python3 of mine bare"]
    assert set((world / "jobs").glob("*")) == folders


def bare(world):
    """The folder of a Python without packages."""
    venv.create(world / "bare")
    return world / "bare" / "bin"


def test_a_quantization(begun):
    job = ended(begun["quantize"])
    assert job.state == "COMPLETE", (job.reason, progress.log_tail(job.folder, 20))
    record = files.read_json(Path(job.evidence["checkpoint"]) / "quantization.json")
    assert record["job_id"] == job.job_id


def test_trials_are_jobs_there(world, tuned):
    told = json.loads(tuned.communicate(timeout=HANG)[0])
    assert tuned.returncode == 0, told
    records = study.open_or_begin(world / "study").trials()
    assert [trial["state"] for trial in records] == [study.COMPLETE] * 2, records
    made = [jobs.Job.load(path.parent) for path in (world / "study").rglob("job.json")]
    assert {(job.action, job.platform) for job in made} == {
        ("train", "slurm"),
        ("evaluate", "slurm"),
    }
    assert all(job.platform_ref["slurm_job_id"].isdecimal() for job in made)
    assert "--time=10" in made[0].command
