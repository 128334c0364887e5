"""Whether a Kubernetes cluster can run the job: rights, what the job names, allocatable GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import kubectl
from cosmos_reason.jobs import kubernetes_needs as needs
from cosmos_reason.jobs.kubernetes_options import volumes
from cosmos_reason.preflight.gates import other_nodes
from cosmos_reason.preflight.options import Launch
from cosmos_reason.preflight.slurm import unseen_nodes
from cosmos_reason.remote.machine import NO_COMMAND, Answer, Host

CONTEXTS_NAMESPACE = ("kubectl", "config", "view", "--minify", "--output=jsonpath={..namespace}")
KUBECTL = ("kubectl", "--request-timeout=10s")


def check(launch: Launch) -> Iterator[Finding]:
    """rights, version, namespace, pull secret, storage class, claims, allocatable GPUs"""
    host = Host()
    options = launch.options
    answer = host.call("kubectl", "config", "current-context")
    if answer.code == NO_COMMAND:
        yield findings.error("PRE-TOOL-MISSING", "kubectl", "got no kubectl here", kubectl.INSTALL)
        return
    if answer.code:
        message = f"got {answer.last_words}, expected a kubectl that knows a cluster"
        fix = "export KUBECONFIG=FILE"
        yield findings.error("PRE-K8S-UNCONFIGURED", "kubectl", message, fix)
        return
    namespace = options.namespace or os.environ.get(kubectl.NAMESPACE_VARIABLE)
    if not namespace:  # as launch_job takes it
        namespace = host.call(*CONTEXTS_NAMESPACE).out.strip() or "default"
    inside = [*KUBECTL, "--namespace", namespace]
    answer = host.call(*inside, "auth", "can-i", "create", "jobs.batch")
    may_create = answer.out.partition(" ")[0].strip()  # "no - no RBAC policy matched"
    if may_create not in ("yes", "no"):
        message = f"got {answer.last_words}, expected an answer of the cluster"
        yield findings.error("PRE-K8S-UNREACHABLE", "kubectl", message, "kubectl cluster-info")
        return
    if may_create == "no":
        message = "got no right to create jobs, expected it"
        fix = f"kubectl --namespace {namespace} auth can-i --list"
        yield findings.error("PRE-K8S-RIGHTS", namespace, message, fix)
    yield from _version(host.call(*KUBECTL, "get", "--raw", "/version"), launch)
    yield from _named_object(host, inside, "namespace", namespace, "--namespace")
    if options.pull_secret:
        yield from _named_object(host, inside, "secret", options.pull_secret, "--pull-secret")
    if options.storage_class:
        name = options.storage_class
        yield from _named_object(host, inside, "storageclass", name, "--storage-class")
    yield from _claims(host, inside, launch)
    yield from unseen_nodes(launch)
    yield from check_nodes(host.call(*KUBECTL, "get", "nodes", "--output=json"), launch)


def _version(answer: Answer, launch: Launch) -> Iterator[Finding]:
    try:
        yield from needs.version_findings(dict(json.loads(answer.out)), launch.nodes)
    except (ValueError, TypeError):
        message = f"got {answer.last_words[:200]}, so the server's version is not known"
        yield findings.warning("PRE-K8S-UNKNOWN", "/version", message, "kubectl version")


def _named_object(
    host: Host, inside: list[str], kind: str, name: str, flag: str
) -> Iterator[Finding]:
    """A finding when the cluster does not show the object; only a warning when this account may not
    look at it."""
    answer = host.call(*inside, "get", kind, name, "--output=name")
    if not answer.code:
        return
    message = f"got {answer.last_words}, expected {kind} {name}"
    namespace = inside[-1]
    fix = f"kubectl --namespace {namespace} get {kind}"
    if "Forbidden" in answer.err:
        yield findings.warning("PRE-K8S-UNKNOWN", flag, message, fix)
    else:
        yield findings.error("PRE-K8S-MISSING", flag, message, fix)


def _claims(host: Host, inside: list[str], launch: Launch) -> Iterator[Finding]:
    """Whether the claims are there, and as many nodes can mount them. What lies in them a pod looks
    at when the job is submitted: here nothing is made."""
    kind = "persistentvolumeclaim"
    for claim, _ in volumes({"volume": launch.options.volume or []}):
        missing = list(_named_object(host, inside, kind, claim, "--volume"))
        yield from missing
        if not missing:
            answer = host.call(*inside, "get", kind, claim, "--output=json")
            yield from needs.unfit(claim, json.loads(answer.out), False, launch.nodes)


def check_nodes(answer: Answer, launch: Launch) -> Iterator[Finding]:
    """The allocatable GPUs of ready nodes against what the launch asks of each."""
    try:
        nodes = json.loads(answer.out)["items"]
        counts = [needs.gpus_of(node) for node in nodes if needs.is_ready(node)]
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"got {answer.last_words[:200]}, so the nodes' GPUs are not known"
        report = findings.error if launch.options.gpu_min_count else findings.warning
        fix = "kubectl auth can-i list nodes"
        yield report("PRE-K8S-NODES-UNKNOWN", "nodes", message, fix)
        return
    launch.result["kubernetes"] = {"nodes": len(counts), "gpus": counts}
    needed = launch.gpus_per_node
    fitting = sum(count >= needed for count in counts)
    if fitting < launch.nodes:
        message = (
            f"got {fitting} ready nodes with {needed} allocatable GPUs, expected {launch.nodes}"
        )
        fix = other_nodes(launch, counts) or needs.LIST_GPUS
        yield findings.error("PRE-K8S-GPUS", "nodes", message, fix)
