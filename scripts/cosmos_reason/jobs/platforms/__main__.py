"""A job's supervisor: `python -m cosmos_reason.jobs.platforms JOB_FOLDER LOCK`.

LOCK is the descriptor of the lock it inherited.
"""

import sys
from pathlib import Path

from cosmos_reason.jobs import platforms
from cosmos_reason.jobs.record import Job

job = Job.load(Path(sys.argv[1]))
platforms.module(job.platform).supervise(job, int(sys.argv[2]))
