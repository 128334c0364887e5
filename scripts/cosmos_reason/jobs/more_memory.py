"""What helps a job that took more memory of its host than it had."""

from __future__ import annotations

import math
import re

from cosmos_reason.base.findings import ERROR
from cosmos_reason.jobs import record
from cosmos_reason.jobs.record import Job

OF_HOST = "OOMKilled"  # a sign of LOG-HOST-MEMORY
QUANTITY = re.compile(r"(\d{1,15})([kKMGT]i?)?")  # of Kubernetes, as people write them
BYTES = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def mebibytes(quantity: str) -> int:
    """Return the mebibytes of a quantity of Kubernetes; 0 for another text."""
    size = QUANTITY.fullmatch(quantity)
    return math.ceil(int(size[1]) * BYTES.get(size[2] or "", 0) / 2**20) if size else 0


def retry(job: Job, had: int | None) -> str:
    """Return the command that runs the job again with twice the mebibytes that it had, or with all
    memory of its nodes for None, which SLURM alone gives; empty where 0 says that nobody knows."""
    if had == 0:
        return ""
    size = "0" if had is None else f"{had // 512}G" if had % 512 == 0 else f"{2 * had}M"
    return f"{record.command('retry', job.folder)} --memory {size}"


def causes(job: Job) -> list[dict]:
    """Return what makes the spec of a failed job take less, unless its log told that already."""
    from cosmos_reason.jobs import diagnosis

    said = {finding["id"] for finding in job.diagnosis}
    if job.state != record.ERROR or "LOG-HOST-MEMORY" in said:
        return []
    found = diagnosis.diagnose([OF_HOST], job.platform, job.action)
    return [
        diagnosis.for_job(finding, job).to_json() for finding in found if finding.severity == ERROR
    ]
