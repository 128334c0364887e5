"""What is left of a rank of cosmos-rl that something kills: real processes, none of the package."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from cosmos_reason.base import bundle
from cosmos_reason.engine.cosmos_rl import killed

WATCHED = """
import os, signal, sys
from cosmos_reason.engine.cosmos_rl import killed
killed.watch()
"""
WAITS = "print(os.getpid(), flush=True)\nwhile True: signal.pause()"


def rank(code):
    """Start a rank that does this once it is watched."""
    env = os.environ | {
        "COSMOS_ROLE": "Rollout",
        "RANK": "1",
        "PYTHONPATH": str(bundle.ROOT / "scripts"),
    }
    words = [sys.executable, "-c", WATCHED + code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, env=env, text=True, **pipes)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_rank_ends_the_job_and_says_what_killed_it(number):
    process = rank(WAITS)
    os.kill(int(process.stdout.readline()), number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == killed.ENDS_ALL
    assert told.startswith(f"Rollout, rank 1: failed (exitcode: -{int(number)}) ")


@pytest.mark.parametrize("code", [0, 1, killed.ENDS_ALL])
def test_a_rank_that_ends_by_itself_ends_with_its_own_code(code):
    process = rank(f"sys.exit({code})")
    assert process.communicate(timeout=60) == ("", "") and process.returncode == code


def test_a_rank_that_is_asked_to_end_ends_as_one_alone_would():
    process = rank(WAITS)
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_signals_reach_the_rank():
    own = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\n"
    process = rank(own + WAITS)
    process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 7


def test_no_rank_outlives_what_watches_it():
    process = rank(WAITS)
    child = psutil.Process(int(process.stdout.readline()))
    process.kill()
    child.wait(timeout=60)
