"""What a job needs of a cluster, and the cluster would let it wait for without end: nodes, room in
quotas, claims; and whether pods see what it reads and may write where it writes. What the API
server refuses by itself it is left to say."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from cosmos_reason.base.findings import EXIT_OUTSIDE, Failure, Finding, error, warning
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs.platforms.kubernetes import manifests, options, pods
from cosmos_reason.jobs.platforms.kubernetes.kubectl import (
    CANNOT_SAY,
    FORBIDDEN,
    MISSING,
    QUOTA,
    Cluster,
)
from cosmos_reason.jobs.platforms.kubernetes.manifests import Work

INDEXED = (1, 24)  # the first server with Indexed Jobs
UNTRIED = "JOB-K8S-UNTRIED"
# Ways to mount a claim that more than one node may use, and those that may be written in.
OF_MANY_NODES = ("ReadWriteMany", "ReadOnlyMany")
WRITTEN = ("ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
UNPLACED_ONCE = "FailedScheduling"
KEEPS_PODS_OUT = ("NoSchedule", "NoExecute")
PATIENCE = 60  # seconds until nobody looks: the image may have to be pulled
PLACE_SECONDS = 10  # until a pod that no node takes is told of
POLL = 1
# What the scheduler says of nodes that are full, which passes.
FULL = ("Insufficient", "Too many pods")


def version_findings(server: dict, nodes: int) -> list[Finding]:
    """Return an error for several nodes on a server (what it says at /version) without Indexed
    Jobs."""
    if nodes < 2:
        return []
    version = tuple(_number(server.get(part)) for part in ("major", "minor"))
    if version >= INDEXED:
        return []
    got, expected = (".".join(map(str, numbers)) for numbers in (version, INDEXED))
    message = (
        f"got a server of version {got}, expected {expected} or newer for jobs of {nodes} nodes "
        "(Indexed Jobs)"
    )
    return [error("JOB-K8S-VERSION", "--nodes", message, "kubectl version")]


def _number(written: object) -> int:
    """Return the number in "27" or "27+", as some servers say it; 0 for none."""
    digits = re.match(r"\d+", str(written))
    return int(digits[0]) if digits else 0


# -- nodes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """Nodes that a job needs, the GPUs of each, and which nodes will do."""

    nodes: int
    gpus: int
    resource: str  # what the cluster calls them
    selector: dict[str, str]
    tolerations: list[dict]

    def admits(self, node: dict) -> bool:
        """Return whether the pods may run there at all."""
        labels = node.get("metadata", {}).get("labels", {})
        has_labels = self.selector.items() <= labels.items()
        conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", [])}
        is_open = not node.get("spec", {}).get("unschedulable")
        is_ready = conditions.get("Ready") == "True" and is_open
        return has_labels and is_ready and self.enters(node)

    def gpus_of(self, node: dict) -> int:
        return int(node["status"].get("allocatable", {}).get(self.resource, 0))

    def enters(self, node: dict) -> bool:
        """Return whether no taint keeps the pods out. That of GPUs is left to the cluster, which
        adds what tolerates it to pods that ask for GPUs."""
        for taint in node.get("spec", {}).get("taints", []):
            if taint.get("effect") not in KEEPS_PODS_OUT or taint["key"] == self.resource:
                continue
            for one in self.tolerations:
                is_meant = one["key"] == taint["key"]
                is_meant &= one.get("effect", taint["effect"]) == taint["effect"]
                is_any = one["operator"] == "Exists"
                if is_meant and (is_any or one["value"] == taint.get("value", "")):
                    break
            else:
                return False
        return True


def wish(asked: dict, nodes: int, gpus: int) -> Wish:
    resource = options.gpu_resource(asked)
    return Wish(nodes, gpus, resource, options.node_selector(asked), options.tolerations(asked))


def capacity_findings(
    target: Cluster, wanted: Wish, others: Callable[[list[int]], Fix]
) -> list[Finding]:
    """Return an error when too few nodes fit, which `others` mends by the GPUs that they have; a
    warning where they cannot be listed."""
    if not wanted.gpus:
        return []
    try:
        listed = listed_nodes(target)
    except Failure as failure:
        finding = failure.findings[0]
        if finding.id != FORBIDDEN:
            raise
        message = f"GPUs of the nodes were not counted: {finding.message}"
        return [warning("JOB-K8S-GPUS", "nodes", message, finding.fix)]
    found = shortage(wanted, listed)
    if not found:
        return []
    counts = [wanted.gpus_of(node) for node in listed if wanted.admits(node)]
    return [error("JOB-K8S-GPUS", "nodes", found, others(counts) or list_gpus(wanted))]


def shortage(wanted: Wish, listed: list[dict]) -> str:
    """Return why too few nodes fit, "" when enough do."""
    admitted = [node for node in listed if wanted.admits(node)]
    fitting = sum(wanted.gpus_of(node) >= wanted.gpus for node in admitted)
    if fitting >= wanted.nodes:
        return ""
    what = "GPUs" if wanted.resource == manifests.GPUS else wanted.resource
    labels = ", ".join(f"{name}={value}" for name, value in wanted.selector.items())
    limits = f" and --node-selector {labels}" if labels else ""
    message = f"got {fitting} ready nodes with {wanted.gpus} allocatable {what}{limits}, "
    message += f"expected {wanted.nodes}"
    # What the nodes have that do not fit: taints, and GPUs by other names.
    closed, others = set(), set()
    for node in listed:
        if not wanted.enters(node):
            closed |= {f"{one['key']}={one.get('value', '')}" for one in node["spec"]["taints"]}
        others |= {name for name in node["status"].get("allocatable", {}) if "/" in name}
    others.discard(wanted.resource)
    if closed:
        message += f"; taints without --toleration: {', '.join(sorted(closed)[:5])}"
    if others:
        message += f"; the nodes also offer {', '.join(sorted(others)[:5])}"
    return message


def fitting_nodes(target: Cluster, wanted: Wish) -> list[str]:
    """Return names of the nodes that may get the job; none where they cannot be listed."""
    try:
        listed = listed_nodes(target)
    except Failure as failure:
        if failure.findings[0].id != FORBIDDEN:
            raise
        return []
    admitted = [node for node in listed if wanted.admits(node)]
    return [node["metadata"]["name"] for node in admitted if wanted.gpus_of(node) >= wanted.gpus]


def listed_nodes(target: Cluster) -> list[dict]:
    return target.get("/api/v1/nodes").get("items", [])


def list_gpus(wanted: Wish) -> str:
    """Return the command that shows them."""
    column = wanted.resource.replace(".", "\\.")
    columns = f"NAME:.metadata.name,GPUS:.status.allocatable.{column}"
    return f"kubectl get nodes -o custom-columns={columns}"


def quota_findings(target: Cluster, wanted: Wish) -> list[Finding]:
    """Return an error for each quota with room for too few of several pods; one pod alone the
    cluster tries itself."""
    nodes = wanted.nodes
    if nodes < 2:
        return []
    try:
        quotas = target.get(target.inside("resourcequotas")).get("items", [])
    except Failure as failure:
        finding = failure.findings[0]
        if finding.id != FORBIDDEN:
            raise
        message = f"not looked at whether there is room for {nodes} pods: {finding.message}"
        return [warning(UNTRIED, "resourcequotas", message, finding.fix)]
    gpus = nodes * wanted.gpus
    needed = {f"requests.{wanted.resource}": gpus, "pods": nodes, "count/pods": nodes}
    found = []
    for quota in quotas:
        status, name = quota.get("status", {}), quota["metadata"]["name"]
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue  # it may not be about these pods
        for resource, count in needed.items():
            hard, used = (status.get(part, {}).get(resource) for part in ("hard", "used"))
            room = math.inf if hard is None else _number(hard) - _number(used)
            if room < count:
                message = f"got room for {room} of {resource} ({used or 0} of {hard} are used), "
                message += f"expected {count} for all pods"
                namespace = quota["metadata"]["namespace"]
                fix = f"kubectl --namespace {namespace} describe resourcequota {name}"
                found.append(error(QUOTA, name, message, fix))
    return found


# -- claims and secrets ------------------------------------------------------------------------


def claim_findings(target: Cluster, claims: dict[str, bool], nodes: int) -> list[Finding]:
    """Return what stands against claims by name, each with whether the job writes in it: one that
    is not there or has lost its volume, or that so many nodes cannot mount."""
    found = []
    for name, is_written in claims.items():
        claim, finding = _named(target, "persistentvolumeclaims", name, "--volume")
        if finding:
            found.append(finding)
            continue
        found += unfit(name, claim, is_written, nodes)
    return found


def unfit(name: str, claim: dict, is_written: bool, nodes: int) -> list[Finding]:
    """Return what stands against a claim that is there: pods that cannot mount it wait for ever."""
    modes = claim["spec"].get("accessModes", [])
    got = f"got claim {name} with {', '.join(modes)}"
    if claim.get("status", {}).get("phase") == "Lost":
        message = f"got claim {name}, which is Lost: its volume is gone, expected a Bound one"
    elif nodes > 1 and not set(modes).intersection(OF_MANY_NODES):
        message = f"{got}, expected ReadWriteMany for the pods of {nodes} nodes"
    elif is_written and not set(modes).intersection(WRITTEN):
        message = f"{got}, and the job writes there: expected a claim that may be written"
    else:
        return []
    return [error("JOB-K8S-CLAIM", "--volume", message, f"kubectl get pvc {name}")]


def _named(target: Cluster, kind: str, name: str, flag: str) -> tuple[dict, Finding | None]:
    """Return (the object, what stands against asking for it); a warning for who may not look."""
    try:
        return target.get(target.inside(kind, name)), None
    except Failure as failure:
        refused = failure.findings[0]
    if refused.id == MISSING:
        fix = f"kubectl --namespace {target.namespace} get {kind}"
        return {}, error(MISSING, flag, refused.message, fix)
    if refused.id == FORBIDDEN:
        return {}, warning(UNTRIED, flag, f"not looked at: {refused.message}", refused.fix)
    raise Failure([refused], EXIT_OUTSIDE)


def warning_about(target: Cluster, uid: str) -> str:
    """Return the last Warning about the object of a uid, without that no node took it, which the
    object says itself while it is so; "" where there is none, or none to be read."""
    selector = f"involvedObject.uid={uid},type=Warning"
    try:
        events = target.get(target.inside("events"), fieldSelector=selector).get("items", [])
    except Failure as failure:
        if failure.findings[0].id in CANNOT_SAY:
            raise
        return ""
    told = [event.get("message", "") for event in events if event.get("reason") != UNPLACED_ONCE]
    return told[-1] if told else ""


# -- what a pod sees ---------------------------------------------------------------------------
# Before the job is recorded a pod of a moment looks, on a node that could run the job, in the job's
# image: it finds a wrong claim, path or image before anybody waits for GPUs. The job's own pods
# look again before their program starts.


def look(target: Cluster, work: Work, among: list[str]) -> list[Finding]:
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
        started = placed = time.monotonic()
        while True:
            job = target.get(target.inside("jobs", work.name))
            selector = f"{manifests.LABEL}={work.name}"
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
                told = seen.waits or warning_about(target, uid)
                return [_untried(told or "its image may still be pulled")]
            time.sleep(POLL)
    finally:
        # Whatever remains ends by itself.
        with contextlib.suppress(Failure):
            target.delete(target.inside("jobs", work.name), propagationPolicy="Background")


def _untried(why: str) -> Finding:
    message = f"no pod looked for the paths of the job ({why}): its own pods look before they start"
    return warning(UNTRIED, "pods", message)
