"""Runs one local job and sees how it ends: `python -m cosmos_reason.platforms.supervisor JOB_FOLDER LOCK`.

It lives in a session of its own, so that a closed terminal does not reach it. LOCK is the descriptor of the job's lock,
inherited from the launcher; the work inherits it as well. The work writes log.txt itself: were the supervisor killed,
the work would go on unharmed and only its exit code would be lost.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from cosmos_reason import jobs
from cosmos_reason.platforms import evidence, local


def main(folder: Path, lock: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: local.send(signal.SIGTERM, folder.name, but=os.getpid()))
    record = jobs.read(folder)
    exit_code, problem = None, ""
    if jobs.spec_edited(record):
        problem = "the spec was edited between submit and start"
    elif not jobs.cancel_requested(folder):
        record |= {"state": jobs.RUNNING, "started_at": jobs.now()}
        record["platform_ref"] = {"pid": os.getpid(), "host": socket.gethostname()}
        jobs.write(folder, record)
        try:
            exit_code = run(folder, record, lock)
        except OSError as failure:
            problem = f"the command could not be started: {failure.filename}: {failure.strerror}"
    jobs.write(folder, evidence.ended(folder, record, exit_code, problem))


def run(folder: Path, record: dict, lock: int) -> int:
    """Run the command to its end, and end what it leaves behind. Returns its exit code, 128 + N for signal N."""
    with open(folder / jobs.LOG, "ab") as log:
        work = subprocess.Popen(
            record["command"],
            env=os.environ | local.environment(record),
            cwd=record["working_dir"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock],
        )
    if jobs.cancel_requested(folder):  # it came while the work was being started, and may have missed it
        work.terminate()
    exit_code = work.wait()
    local.send(signal.SIGKILL, folder.name, but=os.getpid())
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
