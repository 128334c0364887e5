"""What there is to say of trainings besides their curves: losses that no chart can show, how
their jobs ended, and the records that they left out."""

from __future__ import annotations

from pathlib import Path

from cosmos_reason.base import job_folder, metrics_log
from cosmos_reason.base.findings import Failure
from cosmos_reason.checkpoints import left_out
from cosmos_reason.pages import loss_chart
from cosmos_reason.remote import model_names


def beside(metrics: Path) -> list[str]:
    """Return the remarks of a training, from the job, with all its attempts, or the run in whose
    folder its metrics.jsonl lies."""
    rows = [row for _, row in metrics_log.course(job_folder.files_of_attempts(metrics))]
    remarks = loss_chart.not_finite(rows, loss_chart.LOSSES)
    if not (metrics.parent / job_folder.RECORD).is_file():
        return remarks + _of_run(metrics.parent)
    for path in job_folder.files_of_attempts(metrics):
        record = model_names.read_table(path.parent / job_folder.RECORD)
        if record.get("site"):
            remarks.append(f"{record.get('job_id')} ran at {record['site']}")
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
