"""Whether pods see what a job reads and may write where it writes: a pod of a moment looks, on a
node that could run the job, in the job's image, before the job is recorded.

The job's own pods look again before their program starts. This one finds a wrong claim, path or
image before anybody waits for GPUs.
"""

from __future__ import annotations

import contextlib
import time

from cosmos_reason.base.findings import Failure, Finding, error, warning
from cosmos_reason.jobs.platforms.kubernetes import manifests, needs, pods
from cosmos_reason.jobs.platforms.kubernetes.kubectl import CANNOT_SAY, Cluster
from cosmos_reason.jobs.platforms.kubernetes.manifests import Work

PATIENCE = 60  # seconds until nobody looks: the image may have to be pulled
PLACE_SECONDS = 10  # until a pod that no node takes is told of
POLL = 1
# What the scheduler says of nodes that are full, which passes.
FULL = ("Insufficient", "Too many pods")


def check(target: Cluster, work: Work, among: list[str]) -> list[Finding]:
    """Return an error for paths that a pod does not have, an image that cannot be had, and pods
    that no node takes; a warning where no pod could look in time. `work` has a name of its own."""
    try:
        target.create(target.inside("jobs"), manifests.look(work, among))
    except Failure as failure:
        refused = failure.findings[0]
        if refused.id in CANNOT_SAY:
            raise
        return [_untried(refused.message)]
    try:
        return _seen(target, work.name)
    finally:
        # Whatever remains ends by itself.
        with contextlib.suppress(Failure):
            target.delete(target.inside("jobs", work.name), propagationPolicy="Background")


def _seen(target: Cluster, name: str) -> list[Finding]:
    started = placed = time.monotonic()
    while True:
        job = target.get(target.inside("jobs", name))
        selector = f"{manifests.LABEL}={name}"
        listed = target.get(target.inside("pods"), labelSelector=selector).get("items", [])
        seen = pods.read(job, listed)
        if seen.ended or seen.stuck:
            return seen.causes
        now = time.monotonic()
        if not seen.unplaced:
            placed = now
        elif now - placed >= PLACE_SECONDS:
            if any(words in seen.waits for words in FULL):
                return [_untried(seen.waits)]
            message = f"no node takes a pod of the job, even without GPUs: {seen.waits}"
            fix = "kubectl get nodes --show-labels"
            return [error("JOB-K8S-UNPLACED", "pods", message, fix)]
        if now - started >= PATIENCE:
            if seen.suspended:
                return [_untried("a queue of the cluster did not admit it in time")]
            uid = seen.unstarted or job["metadata"]["uid"]
            told = seen.waits or needs.warning_about(target, uid)
            return [_untried(told or "its image may still be pulled")]
        time.sleep(POLL)


def _untried(why: str) -> Finding:
    message = f"no pod looked for the paths of the job ({why}): its own pods look before they start"
    return warning(needs.UNTRIED, "pods", message)
