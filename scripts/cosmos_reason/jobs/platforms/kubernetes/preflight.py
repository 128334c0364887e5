"""Whether a Kubernetes cluster can run the job: what the job names, allocatable GPUs, and what the
cluster itself has against a Job like it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.jobs.platforms import kubernetes as platform
from cosmos_reason.jobs.platforms.gates import other_nodes
from cosmos_reason.jobs.platforms.kubernetes import kubectl, needs, options
from cosmos_reason.jobs.platforms.kubernetes.kubectl import Cluster
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.jobs.platforms.slurm.preflight import unseen_nodes

STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
# What a launch says, and what this preflight says of the same.
OWN_IDS = {
    kubectl.UNCONFIGURED: "PRE-K8S-UNCONFIGURED",
    kubectl.UNREACHABLE: "PRE-K8S-UNREACHABLE",
    kubectl.FORBIDDEN: "PRE-K8S-RIGHTS",
}


def check(preflight: Preflight) -> Iterator[Finding]:
    """version, namespace, pull secret, storage class, claims, allocatable GPUs, a dry run"""
    if not shutil.which("kubectl"):
        message = f"got no kubectl here; how to install it: {kubectl.INSTALL}"
        yield findings.error("PRE-TOOL-MISSING", "kubectl", message)
        return
    asked = preflight.options
    wrong = options.findings(asked.kubernetes | {"memory": asked.memory})
    if wrong:
        if preflight.launch is None:
            yield from wrong  # otherwise the plan refuses them
        return
    try:
        target = kubectl.cluster(asked.kubernetes.get("namespace"))
        found = needs.version_findings(target.get("/version"), preflight.nodes)
        place = f"/api/v1/namespaces/{target.namespace}"
        found += _named_object(target, place, "--namespace")
        if asked.pull_secret:
            place = target.inside("secrets", asked.pull_secret)
            found += _named_object(target, place, "--pull-secret")
        if asked.storage_class:
            place = f"{STORAGE_CLASSES}/{asked.storage_class}"
            found += _named_object(target, place, "--storage-class")
        # What lies in the claims a pod looks at when the job is submitted: here nothing is made.
        claims = options.claims(asked.kubernetes, [])
        found += needs.claim_findings(target, claims, preflight.nodes)
        found += unseen_nodes(preflight)
        found += _nodes(target, preflight)
        if preflight.launch and not findings.has_errors(found):
            # What the cluster itself has against a Job like the one that is to be submitted.
            asked = replace(preflight.launch, nodes=preflight.nodes)
            _, tried = platform.check(asked, acting=False)
            found += [one for one in tried if one.severity == findings.ERROR]
    except Failure as failure:
        found = failure.findings
    for finding in found:
        yield replace(finding, id=OWN_IDS.get(finding.id, finding.id))


def _named_object(target: Cluster, path: str, flag: str) -> Iterator[Finding]:
    """Yield a finding when the cluster does not have the object; only a warning when this account
    may not look at it."""
    try:
        target.get(path)
    except Failure as failure:
        refused = failure.findings[0]
        kind = path.split("/")[-2]
        fix = f"kubectl --namespace {target.namespace} get {kind}"
        if refused.id == kubectl.MISSING:
            yield findings.error("PRE-K8S-MISSING", flag, refused.message, fix)
        elif refused.id == kubectl.FORBIDDEN:
            yield findings.warning("PRE-K8S-UNKNOWN", flag, refused.message, fix)
        else:
            raise


def _nodes(target: Cluster, preflight: Preflight) -> Iterator[Finding]:
    """Compare the allocatable GPUs of the nodes that pods may run on with what the launch asks of
    each."""
    gpus = 0 if preflight.on_cpu else preflight.gpus_per_node
    wanted = needs.wish(preflight.options.kubernetes, preflight.nodes, gpus)
    try:
        listed = needs.listed_nodes(target)
    except Failure as failure:
        refused = failure.findings[0]
        message = f"{refused.message}: the nodes' GPUs are not known"
        report = findings.error if preflight.options.gpu_min_count else findings.warning
        fix = "kubectl auth can-i list nodes"
        yield report("PRE-K8S-NODES-UNKNOWN", "nodes", message, fix)
        return
    counts = [wanted.gpus_of(node) for node in listed if wanted.admits(node)]
    preflight.result["kubernetes"] = {"nodes": len(counts), "gpus": counts}
    shortage = needs.shortage(wanted, listed)
    if shortage:
        fix = other_nodes(preflight, counts) or needs.list_gpus(wanted)
        yield findings.error("PRE-K8S-GPUS", "nodes", shortage, fix)
