"""What an ended job leaves, sent to S3: its own files and its outputs, below the job's id; or what
its training was to send and could not."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import secrets
from cosmos_reason.base.findings import bad_input, outside
from cosmos_reason.checkpoints import publishing, uploads
from cosmos_reason.jobs import claims, evidence, record
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import s3

OWN_FILES = (record.RECORD, record.SPEC, "spec.origins.json", record.LOG, record.METRICS)


def upload(job: Job, uri: str) -> tuple[str, int]:
    """Send the files of a job. Returns the address below which they lie, and how many they are.
    Raises Failure (exit 3) when S3 does not take them."""
    target = publishing.look(s3.join(uri, job.job_id), None)
    with tempfile.TemporaryDirectory() as scratch:
        own = [(name, job.folder / name) for name in OWN_FILES]
        sent = {name: path for name, path in own if path.is_file()}
        if record.LOG in sent:  # a copy without secrets: what the work printed was its own choice
            cleaned = Path(scratch) / record.LOG
            with open(sent[record.LOG], errors="replace") as log, open(cleaned, "w") as copy:
                copy.writelines(secrets.hidden(line) for line in log)
            sent[record.LOG] = cleaned
        for name, output in job.outputs.items():  # by the output's name and the path below it
            for path in Path(output).rglob("*"):
                if path.is_file() and not path.is_symlink() and path.name != claims.CLAIM:
                    sent[f"{name}/{path.relative_to(output)}"] = path
        publishing.send(target, sent, False, None)
    return target.uri, len(sent)


def send_missing(job: Job) -> Job:
    """Send what the training could not send where its spec says so, and judge the job again: it is
    COMPLETE when nothing else was missing. Raises Failure: exit 2 where nothing is missing, exit 3
    where something still is."""
    missing = job.evidence.get("not_uploaded")
    if not missing:
        message = "got no S3_URI, and no upload of its training failed"
        fix = f"{record.command('upload', job.folder)} s3://BUCKET/PREFIX"
        raise bad_input("JOB-UPLOADED", job.job_id, message, fix)
    left = [uri for run in evidence.runs_of(job) for uri in uploads.send_again(run)]
    # Whoever asks for the state meanwhile must not judge it beside this.
    lock = record.take_lock(job.folder)
    try:
        known = {name: value for name, value in job.evidence.items() if name != "not_uploaded"}
        judged = evidence.ended(replace(job, evidence=known), job.exit_code)
        judged = replace(judged, ended_at=job.ended_at)
        judged.write()
    finally:
        os.close(lock)
    if left:
        message = f"got {len(left)} of {len(missing)} not sent, expected all: {', '.join(left[:3])}"
        raise outside("JOB-NOT-UPLOADED", job.job_id, message)
    return judged
