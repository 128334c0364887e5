"""A replica of cosmos-rl that something kills ends its job, as one that fails does.

Without torch: what waits here holds an interpreter and nothing else."""

from __future__ import annotations

import ctypes
import os
import signal

from cosmos_reason.base.findings import say

# Of a replica: its launcher then ends the other processes too (0.4.7 means broken transport by it).
ENDS_ALL = 86
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (*ASKED_TO_END, signal.SIGUSR1, signal.SIGUSR2)


def watch() -> None:
    """Go on in a child, and end with ENDS_ALL when something kills it. torchrun makes exit code 1
    of a killed rank, after which cosmos-rl goes on: for three minutes without its policy, for ever
    without its rollout."""
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(ENDS_ALL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number in ASKED_TO_END:
        signal.signal(number, signal.SIG_DFL)
        os.kill(parent, number)
    role, rank = os.environ["COSMOS_ROLE"], os.environ.get("RANK", "0")
    # In torchrun's words, which tell the cause.
    say(f"{role}, rank {rank}: failed (exitcode: -{number}) pid: {child}; the job ends with it")
    os._exit(ENDS_ALL)
