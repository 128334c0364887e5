"""Many jobs of controllers that do not answer: each controller is asked once."""

import json

import pytest
from launch_site import Site
from support import run_script

from cosmos_reason.base import files
from cosmos_reason.jobs import launch
from cosmos_reason.jobs import record as jobs

AWAY = """#!/bin/sh
echo "$0" >> "{calls}"
echo "{said}" >&2
exit 1
"""
SAID = "Unable to connect to the server: no route to host"


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = Site(tmp_path, monkeypatch)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "sbatch", "kubectl"):
        program = folder / name
        program.write_text(AWAY.format(calls=tmp_path / "calls", said=SAID))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_HOSTNAME", raising=False)
    return made


def recorded(site, count, first=0, platform="slurm", cluster="", options=None):
    """Jobs that ran when they were last looked at."""
    job, found = launch.plan(site.request(gpu_ids=[]))
    assert job, found
    for number in range(first, first + count):
        name = f"train-20260101-{number:06d}-abcdef"
        folder = site.jobs / name
        folder.mkdir(parents=True)
        (folder / jobs.LOCK).touch()
        record = job.to_json() | {"job_id": name, "state": "RUNNING"}
        record["started_at"] = "2026-01-01T00:00:00Z"
        record["spec"]["sha256"] = "0" * 64
        record |= {"platform": platform, "options": options or {}}
        record["platform_ref"] |= {"host": "here", "cluster": cluster}
        files.write_json(folder / jobs.RECORD, record)


def listed(site):
    done = run_script("launch_job.py", "list", "--json", "--jobs-dir", site.jobs)
    assert done.returncode == 0, done.stdout[:2000]
    answer = json.loads(done.stdout)
    calls = [call.rpartition("/")[2] for call in (site.root / "calls").read_text().split()]
    return answer["result"]["states"], answer["findings"], calls


def kubernetes(namespace):
    return {"kubernetes": {"context": "there", "namespace": namespace}}


def test_a_cluster_that_is_away_is_asked_once(site):
    recorded(site, 200, cluster="a")
    states, found, calls = listed(site)
    assert states == {"UNKNOWN": 200} and calls == ["squeue"]
    (told,) = found
    assert (told["id"], told["severity"]) == ("JOB-OUT-OF-REACH", "warning")
    assert SAID in told["message"]


def test_every_cluster_and_namespace_is_one_of_its_own(site):
    recorded(site, 100, cluster="a")
    recorded(site, 100, 100, cluster="b")
    recorded(site, 100, 200, platform="kubernetes", options=kubernetes("x"))
    recorded(site, 100, 300, platform="kubernetes", options=kubernetes("y"))
    states, found, calls = listed(site)
    assert states == {"UNKNOWN": 400} and len(found) == 4
    assert sorted(calls) == ["kubectl", "kubectl", "squeue", "squeue"]


def test_what_one_record_lacks_says_nothing_of_the_others(site):
    recorded(site, 3, platform="kubernetes", options=kubernetes("x"))
    recorded(site, 2, 3, platform="kubernetes", options={"kubernetes": {}})
    states, found, calls = listed(site)
    assert states == {"UNKNOWN": 5} and calls == ["kubectl"]
    assert len([one for one in found if "names no cluster" in one["message"]]) == 2


def test_a_folder_without_jobs_is_named(tmp_path):
    done = run_script("launch_job.py", "list", "--jobs-dir", tmp_path / "jbos")
    assert done.returncode == 0 and not done.stdout.strip()
    assert done.stderr == f"no jobs in {tmp_path}/jbos\n"
