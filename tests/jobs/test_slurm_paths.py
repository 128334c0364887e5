"""Paths of a job that the nodes of a SLURM cluster look for, before the job and at its begin."""

import shutil
import subprocess
from pathlib import Path

import pytest
from launch_site import Site, change
from slurm_answers import Cluster
from support import ROOT

from cosmos_reason.jobs import diagnosis, launch
from cosmos_reason.jobs.platforms.slurm import paths as slurm_paths
from cosmos_reason.jobs.platforms.slurm import script as slurm_script
from cosmos_reason.remote.machine import Answer

PROGRAMS = ROOT / "scripts" / "in_container"


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_PARTITION", raising=False)
    monkeypatch.setattr(slurm_script, "LOOK_SECONDS", 0)
    return Site(tmp_path, monkeypatch)


def submitted(site, monkeypatch, **answers):
    Cluster(monkeypatch, sbatch=Answer(0, "3\n"), **answers)
    job, found = launch.submit(site.request(platform="slurm"))
    assert job, found
    return job


def on_a_node(job, *words, first=""):
    """What its launcher does here with the words as the program, `first` before PATH."""
    variables = {"SLURM_NODEID": "0", "SLURMD_NODENAME": "n7", "PATH": f"{first}:/usr/bin:/bin"}
    needed = [word for flag, path in slurm_paths.needed(job) for word in (flag, str(path))]
    command = ["sh", str(PROGRAMS / "slurm_node.sh"), str(job.folder), unseen(), ""]
    command += [str(slurm_script.LOOK_SECONDS), str(len(needed)), *needed, *words]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def unseen():
    """What a job says of a path that is not there."""
    lines = [line for line in slurm_script.TEXT.splitlines() if line.startswith("unseen=")]
    read = "\n".join([*lines, 'printf %s "$unseen"'])
    return subprocess.run(["bash", "-c", read], capture_output=True, text=True, check=True).stdout


def test_a_node_that_has_all_runs_the_program(site, monkeypatch):
    job = submitted(site, monkeypatch)
    done = on_a_node(job, "sh", "-c", "echo $1; exit 5", "x", "a 'b")
    assert (done.returncode, done.stdout, done.stderr) == (5, "a 'b\n", "")
    assert (job.folder / "node.0.exit").read_text() == "n7 5\n"


def test_the_trainer_alone_takes_the_signal_before_the_time_limit(site, monkeypatch):
    job = submitted(site, monkeypatch)
    done = on_a_node(job, "sh", "-c", 'kill -USR1 "$PPID"; echo ran')
    assert (done.returncode, done.stdout) == (0, "ran\n"), "SLURM sends it to every process"


def test_a_node_names_what_it_does_not_have_before_the_program(site, monkeypatch):
    odd = site.root / "it's $(odd) %s"
    odd.mkdir()
    inner = Site(odd, monkeypatch)
    job = submitted(inner, monkeypatch)
    for name in ("a.json", "media"):
        (odd / name).rename(odd / f"other {name}")
    done = on_a_node(job, "echo", "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert (job.folder / "node.0.exit").read_text() == "n7 1\n"
    told = {str(odd / name) for name in ("a.json", "media")}
    lines = done.stderr.splitlines()
    assert {
        line.split(": not there ")[0].removeprefix("error: JOB-SLURM-PATHS ") for line in lines
    } == told
    assert len(lines) == 2 and all("on node n7" in line for line in lines)
    (found,) = diagnosis.diagnose(lines, "log.txt", "train")
    assert found.id == "JOB-SLURM-PATHS" and "node n7" in found.message


def test_a_node_without_the_folder_of_the_job_says_only_that(site, monkeypatch):
    job = submitted(site, monkeypatch)
    job.folder.rename(site.root / "elsewhere")
    done = on_a_node(job, "echo", "ran")
    assert done.returncode == 1 and not done.stdout
    outputs = {Path(path) for path in job.outputs.values()}
    assert len(done.stderr.splitlines()) == len({job.folder} | outputs)
    assert f"JOB-SLURM-PATHS {job.folder}: not there" in done.stderr


def test_what_a_node_sees_late_is_waited_for(site, monkeypatch):
    monkeypatch.setattr(slurm_script, "LOOK_SECONDS", 60)
    job = submitted(site, monkeypatch)
    (site.root / "media").rmdir()
    sleep = site.root / "bin" / "sleep"
    sleep.parent.mkdir()
    sleep.write_text(f"#!/bin/sh\nmkdir '{site.root}/media'\n")
    sleep.chmod(0o755)
    done = on_a_node(job, "echo", "ran", first=str(sleep.parent))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_an_error_of_the_first_node_is_in_the_log(site, monkeypatch):
    job = submitted(site, monkeypatch)
    script = (
        (job.folder / slurm_script.BATCH)
        .read_text()
        .replace(f" folder={site.root} ", " folder=/none-such ")
    )
    variables = {"SLURMD_NODENAME": "n7", "PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "3"}
    done = subprocess.run(
        ["bash", "-c", script], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and (job.folder / slurm_script.ENDED).read_text() == "1\n"
    assert "error: JOB-SLURM-PATHS /none-such: not there" in done.stderr


def test_a_first_node_that_cannot_see_the_skill_says_so(site, monkeypatch):
    job = submitted(site, monkeypatch)
    script = (job.folder / slurm_script.BATCH).read_text().replace(str(PROGRAMS), "/none-such")
    variables = {"SLURMD_NODENAME": "n7", "PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "3"}
    done = subprocess.run(
        ["bash", "-c", script], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and not (job.folder / slurm_script.STARTED).exists()
    (found,) = diagnosis.diagnose(done.stderr.splitlines(), "log.txt", "train")
    assert found.id == "JOB-SLURM-PATHS" and "node n7" in found.message


@pytest.mark.parametrize("content", [None, ""])
def test_a_job_without_the_part_of_its_nodes_has_not_ended_well(site, monkeypatch, content):
    """Of a file that cannot be read, or is not there yet, srun would be given nothing to do."""
    job = submitted(site, monkeypatch)
    copied = shutil.copytree(PROGRAMS, site.root / "programs")
    (copied / "slurm_node.sh").unlink()
    if content is not None:
        (copied / "slurm_node.sh").write_text(content)
    script = (job.folder / slurm_script.BATCH).read_text().replace(str(PROGRAMS), str(copied))
    variables = {"SLURMD_NODENAME": "n7", "PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "3"}
    done = subprocess.run(
        ["bash", "-c", script, "x", "true"], env=variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1 and (job.folder / slurm_script.ENDED).read_text() == "1\n"
    assert f"error: JOB-SLURM-PATHS {copied}/slurm_node.sh: not there" in done.stderr


# -- before a job of several nodes ---------------------------------------------------------------


class Nodes(Cluster):
    """As many are free as there are answers."""

    def __init__(self, monkeypatch, *told):
        super().__init__(monkeypatch, sbatch=Answer(0, "3\n"))
        self.told = told

    def call(self, *words, limit=0):
        answer = super().call(*words, limit=limit)
        if words[0] != "srun" or "--quiet" not in words:
            return answer
        (count,) = (int(word.partition("=")[2]) for word in words if word.startswith("--nodes="))
        if count > len(self.told):
            return Answer(1, err="srun: error: Unable to allocate resources")
        assert ("--label" in words) == (count > 1)
        lines = []
        for task, told in enumerate(self.told[:count]):
            lines += [f"{task}: {line}" if count > 1 else line for line in told]
        return Answer(0, "\n".join(sorted(lines, key=lambda line: line.partition(": ")[2])))


def found_by(site, monkeypatch, *told):
    change(site, "train", policy__parallelism__dp_replicate_size=2)
    Nodes(monkeypatch, *told)
    job, found = launch.submit(site.request(platform="slurm", nodes=2))
    ids = ("JOB-SLURM-PATHS", "JOB-SLURM-UNTRIED")
    return job, [one for one in found if one.id in ids]


def test_each_node_of_a_job_looks_for_its_paths(site, monkeypatch):
    job, found = found_by(site, monkeypatch, ["node n1"], ["1", "node n2"])
    assert job is None and [one.id for one in found] == ["JOB-SLURM-PATHS"]
    assert "on node n2" in found[0].message
    _, found = found_by(site, monkeypatch, ["1", "node n1"], ["1", "node n2"])
    assert len(found) == 1 and "on node n1, n2" in found[0].message
    job, found = found_by(site, monkeypatch, ["node n1"], ["node n2"])
    assert job and not found


def test_where_fewer_nodes_are_free_one_looks(site, monkeypatch):
    job, found = found_by(site, monkeypatch, ["node n1"])
    assert job and [one.id for one in found] == ["JOB-SLURM-UNTRIED"]
    assert "only one of 2 nodes" in found[0].message
    job, found = found_by(site, monkeypatch, ["1", "node n1"])
    assert job is None and "JOB-SLURM-PATHS" in [one.id for one in found]
    job, found = found_by(site, monkeypatch)
    assert job and ["no node" in one.message for one in found] == [True]
