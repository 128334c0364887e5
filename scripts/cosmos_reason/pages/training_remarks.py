"""What there is to say of trainings besides their curves: how their jobs ended, and the records
that they left out."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import left_out
from cosmos_reason.remote import model_names

JOB = "job.json"


def beside(metrics: Path) -> list[str]:
    """The remarks of a training, from the job or the run in whose folder its metrics.jsonl lies."""
    job = metrics.parent / JOB
    if not job.is_file():
        return _of_run(metrics.parent)
    record = model_names.read_table(job)
    remarks = []
    if record.get("reason"):
        remarks.append(f"{record.get('job_id')} {record.get('state')}: {record['reason']}")
    findings = record.get("diagnosis")
    for finding in findings if isinstance(findings, list) else ():
        if isinstance(finding, dict):
            remarks.append(f"{finding.get('id')}: {finding.get('message')}")
    return remarks


def _of_run(run: Path) -> list[str]:
    try:
        counts = left_out.counts(run)
    except Failure:
        return []
    remarks = []
    for name, (lost, records) in counts.items():
        if lost:
            remarks.append(
                f"{lost:,} of {records:,} {name} records were left out: their media could not be "
                f"read ({left_out.FILE} names them)"
            )
    return remarks
