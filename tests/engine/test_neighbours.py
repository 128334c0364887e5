"""A process that is gone ends the others of its training on this machine."""

import subprocess
import sys
import time

from support import ROOT

from cosmos_reason.engine import neighbours

# Blocked where no signal handler of Python runs, as in a kernel that waits for the other.
WAITING = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
from cosmos_reason.engine import neighbours

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with neighbours.Watch([int(sys.argv[2])], patience=0.1):
    print("watching", flush=True)
    time.sleep(300)
"""


def sleeper():
    return subprocess.Popen(["sleep", "300"])


def test_a_process_ends_with_another_one_and_not_before():
    other = sleeper()
    words = [sys.executable, "-c", WAITING, str(ROOT / "scripts"), str(other.pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stdout.readline() == b"watching\n"
        time.sleep(1.5)
        assert waiting.poll() is None
        other.kill()  # and nobody asks how it ended: it stays a zombie
        _, said = waiting.communicate(timeout=250)
    other.wait()
    assert waiting.returncode == 3 and b"ENGINE-RANK-LOST" in said


def test_who_is_alive():
    other = sleeper()
    assert neighbours.is_alive(other.pid)
    other.kill()
    while neighbours.is_alive(other.pid):
        time.sleep(0.01)
    other.wait()
    assert not neighbours.is_alive(other.pid)


def test_nobody_is_ended_after_the_training():
    other = sleeper()
    with neighbours.Watch([other.pid], patience=0.0):
        pass
    other.kill()
    other.wait()
    time.sleep(2 * neighbours.PAUSE)  # this process would have ended
