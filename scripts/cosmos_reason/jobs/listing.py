"""All jobs of a folder as they are now. A Docker engine or a cluster that does not answer for one
of its jobs is not asked about the others."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from cosmos_reason.base.findings import WARNING, Failure, Finding
from cosmos_reason.jobs import platforms, record
from cosmos_reason.jobs.record import Job

# Causes for which a controller (a Docker engine, a cluster) answers for none of its jobs.
AWAY = {"JOB-DOCKER-UNREACHABLE", "JOB-SLURM-UNREACHABLE", "JOB-SLURM-CLUSTER",
        "JOB-K8S-UNREACHABLE", "JOB-K8S-UNCONFIGURED"}  # fmt: skip


def current(jobs_dir: Path) -> tuple[list[Job], list[Finding]]:
    """Return all jobs, the newest first, UNKNOWN where nobody can say how one is; and findings:
    records that cannot be read, and a warning for each controller that does not answer."""
    listed = []
    found = []
    # One limit for all of them: a list is to be quick however many jobs are ending.
    deadline = time.monotonic() + platforms.BRIEFLY
    unreachable: dict[tuple, Finding] = {}
    for folder in record.folders(jobs_dir):
        try:
            job = Job.load(folder)
        except Failure as failure:
            found += failure.findings
            continue
        # Who is asked: a Docker engine, a SLURM cluster by its login node, a namespace of a
        # Kubernetes cluster. One that did not answer is not asked about the next job.
        options, cluster = job.options, job.options.get("kubernetes", {})
        controller = (
            job.platform,
            options.get("docker_host"),
            options.get("slurm_host"),
            job.platform_ref.get("cluster"),
            cluster.get("context"),
            cluster.get("namespace"),
        )
        if controller in unreachable and not job.has_ended:
            reason = unreachable[controller].message
            listed.append(dataclasses.replace(job, state=record.UNKNOWN, reason=reason))
            continue
        try:
            listed.append(platforms.settled(folder, deadline))
        except Failure as failure:
            finding = failure.findings[0]
            if "job" not in finding.data:
                found += failure.findings
                continue
            is_away = finding.data["cause"] in AWAY
            unreachable[controller if is_away else (folder.name,)] = finding
            listed.append(Job.from_json(folder, finding.data["job"]))
    for finding in unreachable.values():
        found.append(dataclasses.replace(finding, severity=WARNING))
    return listed, found
