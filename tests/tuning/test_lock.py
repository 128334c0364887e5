"""One process at a time owns a study."""

import os
import socket
import subprocess
import sys

import pytest
from study_world import add, new_study

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure
from cosmos_reason.tuning import lock, summary

WORKS = """
import sys, time
from pathlib import Path
print("started", flush=True)
time.sleep(0.5)
Path(sys.argv[1]).touch()
"""
OWNS_IT = """
import sys, time
from pathlib import Path
from cosmos_reason.tuning import lock
with lock.owned(Path(sys.argv[1])):
    print("started", flush=True)
    time.sleep(60)
"""


def started(code, *words, **options):
    """A process that has printed its first line."""
    command = [sys.executable, "-c", code, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "started\n"
    return process


def test_a_second_run_is_refused_and_told_who_owns_the_study(tmp_path):
    made = new_study(tmp_path, "lr=1e-6..1e-4")
    add(made)
    with lock.owned(tmp_path), pytest.raises(Failure, match="TUNE-STUDY-LOCKED") as caught:
        lock.owned(made.folder).__enter__()
    assert caught.value.exit_code == findings.EXIT_OUTSIDE
    assert f"process {os.getpid()} on {socket.gethostname()}" in str(caught.value)
    with lock.owned(tmp_path):
        assert summary.summary(made)["left_behind"] == 0
    assert summary.summary(made)["left_behind"] == 1


def test_the_study_of_a_killed_run_is_free_at_once(tmp_path):
    scripts = os.path.dirname(os.path.dirname(lock.__file__))
    environment = os.environ | {"PYTHONPATH": os.path.dirname(scripts)}
    owner = started(OWNS_IT, tmp_path, env=environment)
    with pytest.raises(Failure, match=f"process {owner.pid} on"):
        lock.owned(tmp_path).__enter__()
    owner.kill()
    owner.communicate()
    assert not lock.is_owned(tmp_path)
    with lock.owned(tmp_path):
        assert lock.is_owned(tmp_path)


def test_what_a_killed_run_has_started_is_waited_for(tmp_path, capsys):
    """A submit on its way is not repeated; meanwhile the study has its new owner."""
    with lock.owned(tmp_path) as inherited:
        command = started(WORKS, tmp_path / "done", pass_fds=[inherited])
    assert not lock.is_owned(tmp_path), "the command does not own the study"
    with lock.owned(tmp_path):
        assert (tmp_path / "done").exists()
    command.communicate()
    assert "waiting for what a killed run" in capsys.readouterr().err
