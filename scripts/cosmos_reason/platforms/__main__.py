"""A job's supervisor: `python -m cosmos_reason.platforms JOB_FOLDER LOCK`, the descriptor of the lock it inherited."""

import sys
from pathlib import Path

from cosmos_reason import jobs, platforms

folder = Path(sys.argv[1])
platforms.module(jobs.read(folder)["platform"]).supervise(folder, int(sys.argv[2]))
