"""What an ended job leaves, sent to S3: its own files and its outputs, below the job's id."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cosmos_reason.base import secrets
from cosmos_reason.checkpoints import publishing
from cosmos_reason.jobs import claims
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import s3

OWN_FILES = (jobs.RECORD, jobs.SPEC, "spec.origins.json", jobs.LOG, jobs.METRICS)


def upload(job: Job, uri: str) -> tuple[str, int]:
    """Send the files of a job. Returns the address below which they lie, and how many they are.
    Raises Failure (exit 3) when S3 does not take them."""
    target = publishing.look(s3.join(uri, job.job_id), None)
    with tempfile.TemporaryDirectory() as scratch:
        sent = _own_files(job, Path(scratch)) | _outputs(job)
        publishing.send(target, sent, False, None)
    return target.uri, len(sent)


def _own_files(job: Job, scratch: Path) -> dict[str, Path]:
    """The files of the job folder that are of use elsewhere, by name. Of the log a copy without
    secrets, made in `scratch`: what the work printed was its own choice."""
    found = {}
    for name in OWN_FILES:
        path = job.folder / name
        if path.is_file():
            found[name] = path
    if jobs.LOG in found:
        cleaned = scratch / jobs.LOG
        with open(found[jobs.LOG], errors="replace") as log, open(cleaned, "w") as copy:
            copy.writelines(secrets.hidden(line) for line in log)
        found[jobs.LOG] = cleaned
    return found


def _outputs(job: Job) -> dict[str, Path]:
    """The files of a job's output folders, by the name of the output and the path below it."""
    found = {}
    for name, output in job.outputs.items():
        for path in Path(output).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.name != claims.CLAIM:
                found[f"{name}/{path.relative_to(output)}"] = path
    return found
