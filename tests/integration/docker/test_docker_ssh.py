"""An engine on another machine: a real sshd on the loopback address,
and paths that are the same on both sides."""

import json

import pytest
import ssh_server
from container_site import FLAGS, Containers
from docker_engine import IMAGE
from launch_site import ended
from support import run_script

from cosmos_reason.jobs import launch
from cosmos_reason.jobs.platforms import docker

pytestmark = pytest.mark.integration


@pytest.fixture
def remote(tmp_path, monkeypatch, dockerd, free_port):
    """The ssh:// address of a machine whose docker client talks to the tests' engine;
    DOCKER_HOST here says nothing."""
    if why := ssh_server.missing():
        pytest.skip(why)
    setting = f"SetEnv DOCKER_HOST={dockerd.host}"
    with ssh_server.running(tmp_path, free_port, monkeypatch, setting):
        monkeypatch.delenv("DOCKER_HOST")
        yield f"ssh://root@127.0.0.1:{free_port}"


def test_a_machine_is_described_over_ssh(remote, tmp_path):
    """By the python3 that is on its PATH, with nothing copied there."""
    target = remote.removeprefix("ssh://").partition(":")[0]
    done = run_script("launch_job.py", "describe", "--ssh", target, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)["result"]["site"]
    assert (facts["platform"], facts["gpus"]) == ("docker", {"count": 0})


@pytest.mark.promise
def test_a_job_over_ssh_ends_as_a_local_one_does(remote, tmp_path, monkeypatch, dockerd):
    (tmp_path / "site").mkdir()
    site = Containers(tmp_path / "site", monkeypatch, dockerd)
    site.does()
    record, _ = launch.submit(site.request(docker_host=remote))
    record = ended(site.jobs / record.job_id)
    assert (record.state, record.exit_code) == ("COMPLETE", 0)
    assert record.options["docker_host"] == remote
    assert record.command[:3] == ["docker", "--host", remote]
    assert dockerd.inspect(record.job_id)["State"]["ExitCode"] == 0


def test_a_path_that_the_other_machine_does_not_have_is_said(
    remote, tmp_path, monkeypatch, dockerd
):
    (tmp_path / "site").mkdir()
    site = Containers(tmp_path / "site", monkeypatch, dockerd)
    site.does()
    flags, more = (
        docker.mounts.flags,
        ["--mount", "type=bind,source=/not/shared,target=/not/shared,readonly"],
    )
    monkeypatch.setattr(docker.mounts, "flags", lambda *given: flags(*given) + more)
    with pytest.raises(docker.Failure, match="/not/shared") as caught:
        launch.submit(site.request(docker_host=remote))
    assert caught.value.exit_code == 3 and "same path" in caught.value.findings[0].message


def test_a_machine_that_does_not_answer_is_exit_3(remote, tmp_path, monkeypatch, dockerd):
    (tmp_path / "site").mkdir()
    site = Containers(tmp_path / "site", monkeypatch, dockerd)
    away = [*FLAGS, "--docker-host", "ssh://root@127.0.0.1:1"]
    done = run_script("launch_job.py submit train --spec train.toml", *away, cwd=site.root)
    assert done.returncode == 3 and "JOB-DOCKER-UNREACHABLE" in done.stderr
    assert IMAGE not in done.stderr
