"""A process that is gone ends the others of its training on this machine."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from support import ROOT

from cosmos_reason.engine import neighbours

# Blocked where no signal handler of Python runs, as in a kernel that waits for the other. It says
# that it goes on while the other is there.
WAITING = """
import signal, sys, threading
sys.path.insert(0, sys.argv[1])
from cosmos_reason.engine import neighbours

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
neighbours.PAUSE = 0.01
looks = 0
look = neighbours.is_alive
def counted(process):
    global looks
    looks += 1
    if looks == 20:
        print("still here", flush=True)
    return look(process)
neighbours.is_alive = counted
with neighbours.Watch([int(sys.argv[2])], patience=0.1):
    threading.Event().wait()
"""


@pytest.fixture
def other():
    """A process that is killed at the end, if not before; nobody asks how it ended."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_a_process_ends_with_another_one_and_not_before(other):
    words = [sys.executable, "-c", WAITING, str(ROOT / "scripts"), str(other.pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stdout.readline() == b"still here\n"
        other.kill()  # it stays a zombie
        _, said = waiting.communicate(timeout=250)
    assert waiting.returncode == 3 and b"ENGINE-RANK-LOST" in said


def test_who_is_alive(other):
    assert neighbours.is_alive(other.pid)
    other.kill()
    other.wait()
    assert not neighbours.is_alive(other.pid)


def test_nobody_is_ended_after_the_training(monkeypatch):
    gone, ended = [], []

    def leave(code):
        ended.append(code)
        raise SystemExit

    monkeypatch.setattr(neighbours, "PAUSE", 0.01)
    monkeypatch.setattr(neighbours, "is_alive", lambda _: not gone)
    monkeypatch.setattr(neighbours, "os", SimpleNamespace(_exit=leave))
    before = set(threading.enumerate())
    with neighbours.Watch([1], patience=0.0):
        (looking,) = set(threading.enumerate()) - before
    gone.append(True)
    looking.join(250)
    assert not looking.is_alive() and not ended
