"""An engine on another machine: a real sshd on the loopback address,
and paths that are the same on both sides."""

import os
import shutil
import subprocess
import time

import pytest
from container_site import FLAGS, Containers
from docker_engine import IMAGE
from launch_site import ended
from support import run_script

from cosmos_reason.jobs import launch
from cosmos_reason.jobs.platforms import docker

pytestmark = pytest.mark.integration
SSHD = "/usr/sbin/sshd"


@pytest.fixture
def remote(tmp_path, monkeypatch, dockerd, free_port):
    """The ssh:// address of a machine whose docker client talks to the tests' engine;
    DOCKER_HOST here says nothing."""
    if not shutil.which("ssh") or not os.path.exists(SSHD):
        pytest.skip("no ssh or no sshd")
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True
        )
    settings = [
        f"Port {free_port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {keys}/host",
        f"AuthorizedKeysFile {keys}/user.pub",
        "StrictModes no",
        "UsePAM no",
        "PidFile none",
        f"SetEnv DOCKER_HOST={dockerd.host}",
    ]
    (keys / "sshd_config").write_text("\n".join(settings) + "\n")
    os.makedirs("/run/sshd", exist_ok=True)
    server = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(keys / "sshd_config")], stderr=subprocess.DEVNULL
    )
    options = (
        f"-i {keys}/user -o UserKnownHostsFile={keys}/known -o StrictHostKeyChecking=no "
        "-o LogLevel=ERROR"
    )
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
    (bin_folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    monkeypatch.delenv("DOCKER_HOST")
    wait_for_port(free_port)
    yield f"ssh://root@127.0.0.1:{free_port}"
    server.terminate()
    server.wait(10)


def wait_for_port(port):
    import socket

    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("sshd does not listen")


def test_a_job_over_ssh_ends_as_a_local_one_does(remote, tmp_path, monkeypatch, dockerd):
    (tmp_path / "site").mkdir()
    site = Containers(tmp_path / "site", monkeypatch, dockerd)
    site.does()
    record, _ = launch.submit(site.request(docker_host=remote))
    record = ended(site.jobs / record.job_id)
    assert (record.state, record.exit_code) == ("COMPLETE", 0)
    assert record.options["docker_host"] == remote and record.command[:3] == [
        "docker",
        "--host",
        remote,
    ]
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
    done = run_script(
        "launch_job.py", "submit", "train", "--spec", "train.toml", *away, cwd=site.root
    )
    assert (
        done.returncode == 3
        and "JOB-DOCKER-UNREACHABLE" in done.stderr
        and IMAGE not in done.stderr
    )
