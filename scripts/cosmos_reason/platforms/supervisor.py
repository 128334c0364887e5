"""Sees one job to its end: `python -m cosmos_reason.platforms.supervisor JOB_FOLDER LOCK`.

It lives in a session of its own, so that a closed terminal does not reach it. LOCK is the descriptor of the job's lock,
inherited from the launcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cosmos_reason import bundle, jobs, platforms


def spawn(folder: Path, lock: int, **environment: str) -> None:
    """Start the supervisor of a recorded job; it inherits the job's `lock`."""
    with open(folder / jobs.LOG, "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "cosmos_reason.platforms.supervisor", str(folder), str(lock)],
            cwd=bundle.ROOT / "scripts",
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock],
        )


if __name__ == "__main__":
    job = Path(sys.argv[1])
    platforms.module(jobs.read(job)["platform"]).supervise(job, int(sys.argv[2]))
