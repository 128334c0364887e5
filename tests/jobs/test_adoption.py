"""Runs that were started by hand from a rendered folder, recorded when they have ended."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from launch_site import PROGRAM, Site, change, ended
from support import run_script

from cosmos_reason.jobs import record as jobs

# In a folder of any name the id of the job is what its environment says.
AS_RENDERED = PROGRAM
for _old, _new in (
    ('pathlib.Path(sys.argv[1]) / os.environ["COSMOS_REASON_JOB_ID"]', "pathlib.Path.cwd()"),
    ("job.name", 'os.environ["COSMOS_REASON_JOB_ID"]'),
    ("folder.mkdir()", "folder.mkdir(exist_ok=True)"),
):
    assert _old in AS_RENDERED
    AS_RENDERED = AS_RENDERED.replace(_old, _new)
THERE = "/lustre/me"


class Elsewhere(Site):
    """A machine whose folder THERE is `there` here: what runs from a rendered folder."""

    def __init__(self, root, monkeypatch):
        super().__init__(root, monkeypatch)
        self.out = root / "out"
        python = root / "venv" / "bin" / "python3"
        python.parent.mkdir(parents=True)
        (root / "program.py").write_text(AS_RENDERED)
        python.write_text(
            f'#!/bin/sh\nexec {sys.executable} {root}/program.py x "$(cat {root}/do)"\n'
        )
        python.chmod(0o755)
        facts = {
            "schema_version": 1,
            "name": "there",
            "platform": "local",
            "gpus": {"count": 0},
            "paths": {str(root): str(root)},
            "environment": str(root / "venv"),
        }
        (root / "site.yaml").write_text(yaml.safe_dump(facts))

    def command(self, script, *words):
        """(exit code, the document that --json prints)."""
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.root)}
        done = run_script(script, *words, "--json", cwd=self.root, env=env)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    def render(self, action="train"):
        words = [action, "--spec", f"{action}.toml", "--engine", "transformers"]
        words += ["--gpu-ids", "none", "--site", "site.yaml", "--output", self.out]
        code, printed = self.command("launch_job.py", "plan", *words)
        assert code == 0, printed["findings"]

    def ran(self, action="train", **do):
        """Render, start and wait for the end."""
        self.render(action)
        (self.root / "do").write_text(json.dumps(do))
        subprocess.run(["bash", str(self.out / "run.sh")], check=True, capture_output=True)
        deadline = time.monotonic() + 300
        while not (self.out / "run.exit").exists() or not (self.out / "run.exit").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def adopt(self, *words):
        code, printed = self.command("launch_job.py", "adopt", self.out, *words)
        ids = {one["id"] for one in printed["findings"]}
        return code, printed.get("result") or {}, ids


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Elsewhere(tmp_path, monkeypatch)


def test_a_whole_run_is_complete_and_goes_on_here(place):
    place.ran()
    code, record, ids = place.adopt()
    assert (code, record["state"], record["reason"], ids) == (0, "COMPLETE", "", set())
    assert record["job_id"] == (place.out / "run.id").read_text().strip()
    assert record["site"] == "there" and record["exit_code"] == 0
    assert record["evidence"]["checkpoint"].startswith(f"{place.out}/results/")
    assert record["started_at"] <= record["ended_at"]
    assert {one["fingerprint"] is None for one in record["inputs"]} == {False}
    job = jobs.Job.load(place.jobs / record["job_id"])
    assert not job.spec_changes() and (job.folder / "log.txt").read_text().endswith("step 3\n")
    code, chosen = place.command("select_checkpoint.py", job.folder)
    assert code == 0 and str(place.out) in json.dumps(chosen["result"])
    code, listed = place.command("launch_job.py", "list")
    assert listed["result"]["states"] == {"COMPLETE": 1}
    assert place.adopt()[1]["state"] == "COMPLETE", "a second time it is judged anew"
    assert len(jobs.folders(place.jobs)) == 1


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ({"steps": 2}, "stopped at step 2 of 3"),
        ({"signal": 9}, "SIGKILL"),
        ({"marked": "train-20260101-000000-abcdef"}, "none that this job wrote"),
    ],
)
def test_a_run_without_evidence_is_an_error(place, do, reason):
    """What else is none, test_launch_endings.py tells of jobs that were submitted."""
    place.ran(**do)
    code, record, _ = place.adopt()
    assert (code, record["state"]) == (0, "ERROR") and reason in record["reason"]


def test_rows_are_counted(place):
    place.ran("evaluate", rows=["a", "b"], questions=3, steps=0, model="")
    assert "2 rows for 3 questions" in place.adopt()[1]["reason"]
    shutil.rmtree(place.out)
    place.ran("evaluate", rows=["a", "b"], questions=2, steps=0, model="")
    assert place.adopt()[1]["reason"] == ""


def test_a_run_that_noted_no_end_is_not_judged_unless_it_was_stopped(place):
    place.ran(steps=2)
    (place.out / "run.exit").unlink()
    code, printed = place.command("launch_job.py", "adopt", place.out, "--site", "site.yaml")
    (found,) = printed["findings"]
    assert (code, found["id"]) == (1, "JOB-NOT-ENDED") and not jobs.folders(place.jobs)
    assert found["fix"] == "--stopped", "a command of its own would lack the site"
    code, record, _ = place.adopt("--stopped")
    assert (code, record["state"], record["exit_code"]) == (0, "ERROR", None)
    assert "stopped at step 2 of 3" in record["reason"]


def test_results_of_an_earlier_run_are_not_this_ones(place):
    """They came back into the same folder, with the times that they had there."""
    place.ran()
    for path in (place.out / "results").rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    _, record, _ = place.adopt()
    assert record["state"] == "ERROR" and "has no model of the last step" in record["reason"]


@pytest.mark.parametrize("lost", ["launch.json", "run.id", "run.started"])
def test_what_was_not_started_or_not_copied_whole_is_refused(place, lost):
    place.ran()
    (place.out / lost).unlink()
    code, _, ids = place.adopt()
    assert (code, ids) == (2, {"JOB-ADOPT"}) and not jobs.folders(place.jobs)


def test_results_of_a_folder_of_their_own_have_to_be_here(place):
    change(place, "train", train__output_dir=f"{place.root}/own")
    place.ran(output=f"{place.root}/own")
    assert place.adopt()[1]["state"] == "COMPLETE"
    moved = place.root / "moved"
    (place.root / "own").rename(moved)
    code, _, ids = place.adopt()
    assert (code, ids) == (2, {"JOB-ADOPT"})
    site = yaml.safe_load((place.root / "site.yaml").read_text())
    site["paths"] = {f"{place.root}/own": str(moved)}
    (place.root / "site.yaml").write_text(yaml.safe_dump(site))
    code, record, _ = place.adopt("--site", "site.yaml")
    assert record["state"] == "COMPLETE" and record["outputs"]["output_dir"] == str(moved)
    again = subprocess.run(["bash", str(place.out / "run.sh")], capture_output=True, text=True)
    assert again.returncode == 2


def test_a_run_does_not_start_into_results_that_are_there(place):
    change(place, "train", train__output_dir=f"{place.root}/own")
    (place.root / "own").mkdir()
    (place.root / "own" / "results.json").write_text("[]")
    place.render()
    done = subprocess.run(["bash", str(place.out / "run.sh")], capture_output=True, text=True)
    assert done.returncode == 2 and "own" in done.stderr and not (place.out / "run.id").exists()


def test_what_ran_is_recorded_where_the_spec_was_edited(place):
    place.render()
    spec = place.out / "spec.toml"
    spec.write_text(spec.read_text().replace("epoch = ", "epoch = 1", 1))
    (place.root / "do").write_text("{}")
    subprocess.run(["bash", str(place.out / "run.sh")], check=True, capture_output=True)
    deadline = time.monotonic() + 300
    while not (place.out / "run.exit").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    code, record, ids = place.adopt()
    assert code == 0 and ids == {"JOB-SPEC-EDITED"}
    edited = jobs.Job.load(place.jobs / record["job_id"])
    assert "epoch = 1" in edited.spec_path.read_text()


def test_a_failed_run_is_tried_again_here(place):
    place.ran(exit=3, model="")
    _, record, _ = place.adopt()
    code, printed = place.command("launch_job.py", "retry", record["job_id"])
    started = printed["result"]
    assert code == 0 and started["retry_of"] == record["job_id"], printed["findings"]
    place.command("launch_job.py", "cancel", started["job_id"])
    code, _, ids = place.adopt()
    assert (code, ids) == (2, {"JOB-ADOPT"}), "the retry has written into its results"


def test_a_job_that_was_submitted_here_keeps_its_record(place):
    place.ran()
    _, record, _ = place.adopt()
    path = place.jobs / record["job_id"] / "job.json"
    told = json.loads(path.read_text())
    del told["platform_ref"]["adopted_from"]
    path.write_text(json.dumps(told))
    assert place.adopt()[0] == 2


def awaited(path):
    deadline = time.monotonic() + 300
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failed_run_is_tried_again_there(place):
    """Rendered anew for the site, from what the first attempt left; adopted as its retry."""
    place.ran(exit=3, model="")
    _, first, _ = place.adopt()
    again = place.root / "again"
    words = ["retry", first["job_id"], "--site", "site.yaml", "--output", again]
    code, printed = place.command("launch_job.py", *words)
    assert code == 0, printed["findings"]
    assert printed["next"].startswith("copy and start"), "the untouched model was asked before"
    results = f"{place.out}/results"
    (place.root / "do").write_text(json.dumps({"output": results}))
    subprocess.run(["bash", str(again / "run.sh")], check=True, capture_output=True)
    awaited(again / "run.exit")
    place.out = again
    code, record, _ = place.adopt()
    assert (code, record["state"], record["retry_of"]) == (0, "COMPLETE", first["job_id"])
    assert record["outputs"]["output_dir"] == results
    code, chosen = place.command("select_checkpoint.py", place.jobs / record["job_id"])
    assert code == 0, chosen["findings"]


def test_results_outside_of_the_folder_are_brought_back_too(place):
    """Those of a retry go where the first attempt wrote: elsewhere there is that folder, too."""
    place.ran(exit=3, model="")
    _, first, _ = place.adopt()
    facts = yaml.safe_load((place.root / "site.yaml").read_text())
    facts |= {"name": "other", "paths": {THERE: "."}, "models": {}}
    facts["environment"] = f"{THERE}/venv"
    (place.root / "other.yaml").write_text(yaml.safe_dump(facts))
    words = ["retry", first["job_id"], "--site", "other.yaml", "--output", place.root / "again"]
    code, printed = place.command("launch_job.py", *words)
    assert code == 0, printed["findings"]
    page = (place.root / "again" / "README.md").read_text()
    assert f"rsync -a --mkpath HOST:{THERE}/out/results/ out/results/" in page
    assert f"cp -r --parents {THERE}/again {THERE}/out/results M" in page


def test_a_failed_run_is_tried_again_on_another_platform(place):
    """Nothing of the first place comes along: here its GPUs by number, there its partition."""
    place.ran(exit=3, model="")
    _, first, _ = place.adopt()
    facts = yaml.safe_load((place.root / "site.yaml").read_text())
    facts |= {"name": "cluster", "platform": "slurm", "slurm": {"partition": "h100"}}
    (place.root / "cluster.yaml").write_text(yaml.safe_dump(facts))
    words = ["retry", first["job_id"], "--site", "cluster.yaml", "--output", place.root / "batch"]
    code, printed = place.command("launch_job.py", *words)
    assert code == 0, printed["findings"]
    script = (place.root / "batch" / "job.sbatch").read_text()
    assert "#SBATCH --partition=h100" in script and "--gres" not in script
    rendered = json.loads((place.root / "batch" / "launch.json").read_text())
    assert rendered["retry_of"] == first["job_id"] and rendered["site"] == "cluster"


def test_a_submitted_job_runs_in_the_environment_of_its_site(place):
    place.jobs.mkdir()
    facts = yaml.safe_load((place.root / "site.yaml").read_text()) | {"network": {"hub": False}}
    (place.root / "site.yaml").write_text(yaml.safe_dump(facts))
    (place.root / "do").write_text(json.dumps({"model": "", "exit": 3}))
    words = ["train", "--spec", "train.toml", "--engine", "transformers", "--gpu-ids", "none"]
    code, printed = place.command("launch_job.py", "submit", *words, "--site", "site.yaml")
    record = printed["result"]
    assert code == 0 and record["command"][0] == f"{place.root}/venv/bin/python3"
    job = ended(place.jobs / record["job_id"])
    assert job.options["place"] == {"environment": f"{place.root}/venv", "offline": True}
    assert "HF_HUB_OFFLINE=1" in (job.folder / "launch.sh").read_text()
    assert job.exit_code == 3
    code, printed = place.command("launch_job.py", "retry", record["job_id"])
    assert printed["result"]["command"][0] == record["command"][0]
    place.command("launch_job.py", "cancel", printed["result"]["job_id"])


def test_a_noted_end_that_slurm_may_begin_anew_is_no_end(place):
    """SLURM requeues a job when its node fails: until it runs again its folder tells of an end."""
    facts = yaml.safe_load((place.root / "site.yaml").read_text()) | {"platform": "slurm"}
    (place.root / "site.yaml").write_text(yaml.safe_dump(facts))
    words = ["train", "--spec", "train.toml", "--engine", "transformers", "--gpu-ids", "none"]
    words += ["--site", "site.yaml", "--output", place.out, "--requeue"]
    code, printed = place.command("launch_job.py", "plan", *words)
    assert code == 0, printed["findings"]
    (place.out / "run.id").write_text("train-20260101-120000-0a1b2c\n")
    (place.out / "slurm.started").write_text(f"{time.time():.0f} 7\n")
    (place.out / "slurm.ended").write_text("143\n")
    code, _, ids = place.adopt()
    assert (code, ids) == (1, {"JOB-NOT-ENDED"}) and not jobs.folders(place.jobs)
    code, record, _ = place.adopt("--stopped")
    assert (code, record["state"], record["exit_code"]) == (0, "ERROR", 143)
