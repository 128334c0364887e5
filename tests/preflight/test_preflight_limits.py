"""The preflight's time limits: no tool and no endpoint holds it."""

import socket
import subprocess
import threading
import time

import pytest
from preflight_command import CANARY, preflight_json

from cosmos_reason import preflight
from cosmos_reason.base import findings as f
from cosmos_reason.remote import machine

pytest_plugins = ("preflight_site",)


@pytest.mark.parametrize(
    "args", [["docker", "docker"], ["slurm", "sinfo"], ["kubernetes", "kubectl"], ["docker", "ssh"]]
)
def test_a_hanging_tool_never_holds_the_run(args, tools, tmp_path):
    platform, tool = args
    for name in ("sbatch", "srun", "squeue", "scontrol"):
        tools(name)
    folder = tools(tool, script=f"(trap '' TERM; sleep 3000; touch {tmp_path}/alive) & sleep 3000")
    more = ["--docker-host", "ssh://gpu-box" if tool == "ssh" else "unix:///x"]
    if tool == "ssh":
        tools("docker", script="sleep 3000")
    started = time.monotonic()
    document, found = preflight_json("--platform", platform, "--timeout", "1", *more)
    assert time.monotonic() - started < 300 and not document["ok"] and folder
    assert found["PRE-TIMEOUT"]["where"] == platform
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"{folder}/{tool}" not in left


def test_nothing_is_started_or_reported_after_the_end(monkeypatch):
    monkeypatch.setattr(machine, "OVER", threading.Event())
    seen, over = [], threading.Event()

    def late(launch):
        seen.append(machine.call(["sleep", "301"]).code)
        seen.append(machine.call(["sleep", "302"]).code)
        over.set()
        yield f.error("PRE-LATE", "x", "too late")

    options = preflight.PreflightOptions(timeout=0.5)
    launch = preflight.Preflight("local", options, time.monotonic() + 0.5, "tao")
    assert [x.id for x in preflight.gather({"late": late}, launch)] == ["PRE-TIMEOUT"]
    assert over.wait(300)
    assert seen[1:] == [machine.NO_ANSWER] and not machine.RUNNING


def test_a_silent_endpoint_never_holds_the_run(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = {"HF_ENDPOINT": address, "AWS_ENDPOINT_URL": address}
        env |= {"AWS_ACCESS_KEY_ID": CANARY, "AWS_SECRET_ACCESS_KEY": CANARY}
        started = time.monotonic()
        paths = "--path model=hf://nvidia/Cosmos-Reason2-8B --path data=s3://bucket/train".split()
        _, found = preflight_json("--platform", "local", "--timeout", "2", *paths, env=env)
        assert time.monotonic() - started < 300 and found["PRE-TIMEOUT"]["where"] == "paths"


def test_what_an_abandoned_check_still_notes_changes_no_result(monkeypatch):
    monkeypatch.setattr(machine, "OVER", threading.Event())
    goes_on, over = threading.Event(), threading.Event()

    def late(launch):
        yield f.info("PRE-EARLY", "x", "in time")
        assert goes_on.wait(300)
        over.set()

    options = preflight.PreflightOptions(timeout=0.5)
    launch = preflight.Preflight("local", options, time.monotonic() + 0.5, "tao")
    preflight.gather({"late": late}, launch)
    checks = launch.result["checks"]
    goes_on.set()
    assert over.wait(300)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(1)
    assert checks == {} and launch.result["checks"] is checks
