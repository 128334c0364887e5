"""A launch on an engine of another machine: what is not here is looked for there."""

import json

import pytest
from jsonschema import Draft202012Validator
from launch_site import Site, change, write_model

from cosmos_reason.base import bundle
from cosmos_reason.base.findings import Failure
from cosmos_reason.jobs import launch
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.platforms import docker
from cosmos_reason.jobs.platforms.docker import client as docker_client

AFAR = "/models/of/the/box"
# The shell of the other machine, which has nothing but what $THERE names.
SSH = """#!/bin/sh
for word in "$@"; do command=$word; done
echo "$command" >> "$CALLS"
case "$command" in *"$THERE"*) exit 0;; esac
exit ${ELSE:-1}
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = Site(tmp_path, monkeypatch)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("THERE", str(tmp_path))
    monkeypatch.setattr(docker, "engine_facts", lambda _: {"Runtimes": {"nvidia": {}}})
    change(made, "train", policy__model_name_or_path=AFAR)
    return made


def asked(site, host="ssh://me@box:22", **fields):
    usual = {"platform": "docker", "image": "x", "gpu_ids": ["0"], "docker_host": host}
    return site.request(**usual | fields)


def absent(found):
    return [(one.id, one.severity, str(one.where)) for one in found if "INPUT" in one.id]


def test_a_plan_for_another_machine_warns_of_what_is_not_here(site):
    job, found = launch.plan(asked(site))
    assert job and absent(found) == [("JOB-INPUT-ELSEWHERE", "warning", AFAR)]
    assert not (site.root / "calls").exists()


def test_submit_asks_that_machine_for_every_input(site, monkeypatch):
    job, found = launch.submit(asked(site))
    assert job is None and absent(found) == [("JOB-INPUT-MISSING", "error", AFAR)]
    (missing,) = [one for one in found if one.id == "JOB-INPUT-MISSING"]
    assert "on me@box" in missing.message and "-p 22 me@box 'ls -d" in str(missing.fix)
    assert not site.jobs.exists()
    asked_for = (site.root / "calls").read_text()
    assert asked_for.count("test -e") == 5 and f"test -e {site.root}/media" in asked_for
    monkeypatch.setenv("ELSE", "255")
    monkeypatch.setenv("THERE", "nothing")
    with pytest.raises(Failure, match="JOB-DOCKER-UNREACHABLE") as caught:
        launch.submit(asked(site))
    assert caught.value.exit_code == 3 and len(caught.value.findings) == 1


def test_what_is_only_here_is_not_launched_there(site, monkeypatch):
    monkeypatch.setenv("THERE", "nothing")
    change(site, "train", policy__model_name_or_path="model")
    job, found = launch.submit(asked(site))
    assert job is None and {one[0] for one in absent(found)} == {"JOB-INPUT-MISSING"}


def test_what_lies_there_is_launched_and_recorded_without_a_fingerprint(site, monkeypatch):
    monkeypatch.setenv("THERE", "/")
    monkeypatch.setattr(docker, "start", lambda job, lock: job)
    monkeypatch.setattr(launch.platforms, "spawn", lambda folder, lock: None)
    job, found = launch.submit(asked(site))
    assert not absent(found)
    record = json.loads((job.folder / "job.json").read_text())
    Draft202012Validator(bundle.schema("job")).validate(record)
    known = {entry["role"]: entry["fingerprint"] for entry in record["inputs"]}
    assert known["policy.model_name_or_path"] is None
    assert known["custom.train_dataset.annotation_path"].startswith("sha256:")


@pytest.mark.parametrize("host", ["unix:///x", "tcp://box:2376"])
def test_on_this_machine_and_behind_tcp_it_is_an_error_at_once(site, host):
    job, found = launch.plan(asked(site, host))
    assert job is None and absent(found) == [("JOB-INPUT-MISSING", "error", AFAR)]
    (missing,) = [one for one in found if one.id == "JOB-INPUT-MISSING"]
    assert "plan --output DIR" in missing.message
    job, found = launch.plan(site.request())
    assert job is None and absent(found) == [("JOB-INPUT-MISSING", "error", AFAR)]


def test_the_machine_of_an_engine():
    assert docker_client.machine("unix:///x").is_here
    assert docker_client.machine("ssh://me@box:22/run").ssh[-3:] == ("-p", "22", "me@box")
    assert docker_client.machine("tcp://box:2376") is None


# A docker client whose connection is lost while the engine starts the container.
LOST = """#!/bin/sh
case "$*" in
  *"image inspect"*) echo sha256:1;;
  *" run "*|"run "*) echo "docker: unexpected EOF." >&2; exit 125;;
  "container inspect"*) [ -n "$STATUS" ] || { echo "Error: No such container: x" >&2; exit 1; }
    printf '[{"Id": "c1", "Image": "i1", "State": {"Status": "%s", "Error": "", ' "$STATUS"
    printf '"OOMKilled": false, "ExitCode": 0, "StartedAt": "2026-01-01T00:00:00.5Z", '
    printf '"FinishedAt": "0001-01-01T00:00:00Z"}}]';;
  *) exit 0;;
esac
"""


@pytest.mark.parametrize(
    ("status", "state"), [("running", "RUNNING"), ("", "ERROR"), ("created", "ERROR")]
)
def test_a_container_that_runs_though_its_start_was_not_answered_is_not_lost(
    site, monkeypatch, status, state
):
    """Its GPUs would be paid for, and nobody would be told."""
    program = site.root / "bin" / "docker"
    program.write_text(LOST)
    program.chmod(0o755)
    monkeypatch.setenv("STATUS", status)
    monkeypatch.setenv("THERE", AFAR)
    model = site.root / "of_this_machine"
    write_model(model)
    change(site, "train", policy__model_name_or_path=str(model))
    host = "unix:///nowhere/docker.sock"
    with pytest.raises(Failure) as failed:
        launch.submit(asked(site, host))
    assert "unexpected EOF" in failed.value.findings[0].message
    (folder,) = jobs.folders(site.jobs)
    if state == "ERROR":
        assert jobs.Job.load(folder).state == state
        return
    assert jobs.Job.load(folder).state == "PENDING"
    assert docker.judged(jobs.Job.load(folder)).state == state
