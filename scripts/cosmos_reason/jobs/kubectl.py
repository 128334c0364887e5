"""kubectl's command line: which cluster is meant, and what its API server answers.

Objects are addressed by their paths (`--raw`), which needs nothing of kubectl but the connection
and the account: how it looks for resources, checks them and prints them differs between versions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from cosmos_reason.base import secrets
from cosmos_reason.base.findings import EXIT_OUTSIDE, Failure, Finding, error, outside, warning
from cosmos_reason.base.fix import Fix

PATIENCE = 60  # seconds for an answer of the API server
INSTALL = "https://kubernetes.io/docs/tasks/tools/"
NAMESPACE_VARIABLE = "K8S_NAMESPACE"
# How kubectl tells of an answer that is a refusal.
REFUSED = re.compile(r"Error from server(?: \((\w+)\))?: ?(.*)", re.DOTALL)
MISSING, FORBIDDEN, QUOTA = "JOB-K8S-MISSING", "JOB-K8S-FORBIDDEN", "JOB-K8S-QUOTA"
UNREACHABLE, UNCONFIGURED = "JOB-K8S-UNREACHABLE", "JOB-K8S-UNCONFIGURED"
LIST_GPUS = (
    "kubectl get nodes -o custom-columns="
    "NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu"
)
INDEXED = (1, 24)  # the first server with Indexed Jobs


@dataclass(frozen=True)
class Cluster:
    """A context of the kubectl configuration, and a namespace there."""

    context: str
    namespace: str

    def get(self, path: str, **query: str) -> dict:
        """The object or list at a path of the API. Raises Failure (exit 3), as all that ask do."""
        return self._answer("get", "--raw", _address(path, query))

    def find(self, path: str) -> dict | None:
        """The same, None when there is no such object."""
        try:
            return self.get(path)
        except Failure as failure:
            if failure.findings[0].id == MISSING:
                return None
            raise

    def create(self, path: str, manifest: dict, dry_run: bool = False) -> dict:
        """Make an object; its manifest reaches kubectl on standard input only."""
        address = _address(path, {"dryRun": "All"} if dry_run else {})
        return self._answer("create", "--raw", address, "--filename", "-", manifest=manifest)

    def replace(self, path: str, manifest: dict) -> dict:
        words = ("replace", "--validate=false", "--raw", path, "--filename", "-")
        return self._answer(*words, manifest=manifest)

    def delete(self, path: str, **query: str) -> None:
        """Ask for an object's end; one that is gone already is as good."""
        try:
            self._answer("delete", "--raw", _address(path, query))
        except Failure as failure:
            if failure.findings[0].id != MISSING:
                raise

    def inside(self, kind: str, name: str = "") -> str:
        """The path of the namespace's objects of a kind, or of one of them."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        path = f"{group}/namespaces/{quote(self.namespace)}/{kind}"
        return f"{path}/{quote(name)}" if name else path

    def words(self, *words: str) -> list[str]:
        return ["kubectl", f"--context={self.context}", *words]

    def _answer(self, *words: str, manifest: dict | None = None) -> dict:
        given = None if manifest is None else json.dumps(manifest)
        printed = _printed(self.words(*words), given)
        try:
            answer = json.loads(printed)
        except ValueError:
            raise _unreachable(self.context, f"got {printed[:200]!r}") from None
        return answer if isinstance(answer, dict) else {}


def cluster(namespace: str | None = None, context: str | None = None) -> Cluster:
    """The cluster that is meant: the context given or the current one, and the namespace given,
    that of $K8S_NAMESPACE or that of the context. Raises Failure (exit 3) without one."""
    if not context:
        context = _printed(["kubectl", "config", "current-context"]).strip()
    namespace = namespace or os.environ.get(NAMESPACE_VARIABLE)
    if not namespace:
        words = ["config", "view", "--minify", "--output=jsonpath={..namespace}"]
        namespace = _printed(["kubectl", f"--context={context}", *words]).strip()
    return Cluster(context, namespace or "default")


def _printed(words: list[str], given: str | None = None) -> str:
    """What kubectl prints. Raises Failure (exit 3)."""
    try:
        done = subprocess.run(
            words, input=given or "", capture_output=True, text=True, errors="replace",
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        message = "got no kubectl command, expected one that knows a cluster"
        raise outside(UNCONFIGURED, "kubectl", message, INSTALL) from None
    except subprocess.TimeoutExpired:
        raise _unreachable("kubectl", f"got no answer within {PATIENCE} s") from None
    if done.returncode == 0:
        return done.stdout
    raise _failure(_last_words(done.stderr))


def _last_words(printed: str) -> str:
    """The end of what kubectl printed on one line, without its own log and without secrets."""
    lines = [line for line in printed.splitlines() if not re.match(r"[IWE]\d{4} ", line)]
    return secrets.hidden(" ".join(" ".join(lines).split())[-600:])


def _failure(printed: str) -> Failure:
    refused = REFUSED.search(printed)
    if refused:
        return Failure(refusal(refused[1] or "", refused[2]), EXIT_OUTSIDE)
    if "Unauthorized" in printed:
        return Failure(refusal("Unauthorized", printed), EXIT_OUTSIDE)
    if "context" in printed and "error:" in printed:
        message = f"got {printed}, expected a kubectl that knows a cluster"
        return outside(UNCONFIGURED, "kubectl", message, "kubectl config get-contexts")
    return _unreachable("kubectl", f"got {printed}")


def refusal(reason: str, message: str) -> Finding:
    """What the API server says against a request. Quotas and rights share its reason Forbidden."""
    if reason == "NotFound":
        return error(MISSING, "kubectl", f"got {message}, expected it in the cluster")
    if "exceeded quota" in message or "must specify" in message:
        what = f"got {message}, expected a quota with room for the job"
        return error(QUOTA, "kubectl", what, "kubectl describe resourcequota")
    if reason in ("Forbidden", "Unauthorized"):
        what = f"got {message}, expected an account that may do so"
        return error(FORBIDDEN, "kubectl", what, "kubectl auth can-i --list")
    if reason in ("InternalError", "ServiceUnavailable", "Timeout", "ServerTimeout", ""):
        what = f"got {message}, expected an API server that answers"
        return error(UNREACHABLE, "kubectl", what, "kubectl cluster-info")
    return error("JOB-K8S-REFUSED", "kubectl", f"got {reason}: {message}")


def _unreachable(where: str, message: str) -> Failure:
    message += ", expected an API server that answers"
    return outside(UNREACHABLE, where, message, "kubectl cluster-info")


def _address(path: str, query: dict[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


# -- what is asked of a cluster before a job ---------------------------------------------------


def version_findings(server: dict, nodes: int) -> list[Finding]:
    """An error for several nodes on a server (what it says at /version) without Indexed Jobs."""
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
    """Of "27" or "27+", as some servers say it; 0 for none."""
    digits = re.match(r"\d+", str(written))
    return int(digits[0]) if digits else 0


def rights_findings(asked: Cluster, wanted: list[tuple[str, str, str]]) -> list[Finding]:
    """An error that names what the account may not do of what is wanted: (verb, group of
    the API, resource)."""
    denied = []
    for verb, group, resource in wanted:
        kind, _, part = resource.partition("/")
        attributes = {"namespace": asked.namespace, "verb": verb, "group": group, "resource": kind}
        if part:
            attributes["subresource"] = part
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        if not asked.create(path, review).get("status", {}).get("allowed"):
            denied.append(f"{verb} {resource}")
    if not denied:
        return []
    message = f"got no right to {', '.join(denied)}, expected it in namespace {asked.namespace}"
    fix = f"kubectl --namespace {asked.namespace} auth can-i --list"
    return [error(FORBIDDEN, asked.namespace, message, fix)]


def capacity_findings(
    asked: Cluster, nodes: int, gpus: int, others: Callable[[list[int]], Fix]
) -> list[Finding]:
    """An error when too few nodes have the GPUs of a pod, which `others` mends by those that all
    have; a warning where they cannot be listed."""
    if not gpus:
        return []
    try:
        listed = asked.get("/api/v1/nodes").get("items", [])
    except Failure as failure:
        finding = failure.findings[0]
        if finding.id != FORBIDDEN:
            raise
        message = f"GPUs of the nodes were not counted: {finding.message}"
        return [warning("JOB-K8S-GPUS", "nodes", message, finding.fix)]
    counts = [gpus_of(node) for node in listed if is_ready(node)]
    fitting = sum(count >= gpus for count in counts)
    if fitting >= nodes:
        return []
    message = f"got {fitting} ready nodes with {gpus} allocatable GPUs, expected {nodes}"
    return [error("JOB-K8S-GPUS", "nodes", message, others(counts) or LIST_GPUS)]


def gpus_of(node: dict) -> int:
    return int(node["status"].get("allocatable", {}).get("nvidia.com/gpu", 0))


def is_ready(node: dict) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node.get("spec", {}).get("unschedulable")
