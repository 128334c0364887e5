"""kubectl's command line: which cluster is meant, and what its API server answers.

Objects are addressed by their paths (`--raw`), which needs nothing of kubectl but the connection
and the account: how it looks for resources, checks them and prints them differs between versions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from cosmos_reason.base import secrets
from cosmos_reason.base.findings import EXIT_OUTSIDE, Failure, Finding, error, outside

PATIENCE = 60  # seconds for an answer of the API server
INSTALL = "https://kubernetes.io/docs/tasks/tools/"
NAMESPACE_VARIABLE = "K8S_NAMESPACE"
# How kubectl tells of an answer that is a refusal.
REFUSED = re.compile(r"Error from server(?: \((\w+)\))?: ?(.*)", re.DOTALL)
MISSING, FORBIDDEN, QUOTA = "JOB-K8S-MISSING", "JOB-K8S-FORBIDDEN", "JOB-K8S-QUOTA"
UNREACHABLE, UNCONFIGURED = "JOB-K8S-UNREACHABLE", "JOB-K8S-UNCONFIGURED"
# What says that nobody can say now.
CANNOT_SAY = (UNREACHABLE, UNCONFIGURED)


@dataclass(frozen=True)
class Cluster:
    """A context of the kubectl configuration, and a namespace there."""

    context: str
    namespace: str

    def get(self, path: str, **query: str) -> dict:
        """Return the object or list at a path of the API. Raises Failure (exit 3), as all that ask
        do."""
        return self._answer("get", "--raw", _address(path, query))

    def find(self, path: str) -> dict | None:
        """Return the same, None when there is no such object."""
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
        """Return the path of the namespace's objects of a kind, or of one of them."""
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
    """Return the cluster that is meant: the context given or the current one, and the namespace
    given, that of $K8S_NAMESPACE or that of the context. Raises Failure (exit 3) without one."""
    if not context:
        context = _printed(["kubectl", "config", "current-context"]).strip()
    namespace = namespace or os.environ.get(NAMESPACE_VARIABLE)
    if not namespace:
        words = ["config", "view", "--minify", "--output=jsonpath={..namespace}"]
        namespace = _printed(["kubectl", f"--context={context}", *words]).strip()
    return Cluster(context, namespace or "default")


def _printed(words: list[str], given: str | None = None) -> str:
    """Return what kubectl prints. Raises Failure (exit 3)."""
    try:
        done = subprocess.run(
            words, input=given or "", capture_output=True, text=True, errors="replace",
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        message = f"got no kubectl command, expected one that knows a cluster: {INSTALL}"
        raise outside(UNCONFIGURED, "kubectl", message) from None
    except subprocess.TimeoutExpired:
        raise _unreachable("kubectl", f"got no answer within {PATIENCE} s") from None
    if done.returncode == 0:
        return done.stdout
    # Lines such as "E1128 ..." are the client's own log, which repeats each failed try.
    lines = [line for line in done.stderr.splitlines() if not re.match(r"[IWE]\d{4} ", line)]
    printed = secrets.hidden(" ".join(" ".join(lines).split())[-600:])
    refused = REFUSED.search(printed)
    if refused:
        raise Failure(refusal(refused[1] or "", refused[2]), EXIT_OUTSIDE)
    if "Unauthorized" in printed:
        raise Failure(refusal("Unauthorized", printed), EXIT_OUTSIDE)
    if "context" in printed and "error:" in printed:
        message = f"got {printed}, expected a kubectl that knows a cluster"
        raise outside(UNCONFIGURED, "kubectl", message, "kubectl config get-contexts")
    raise _unreachable("kubectl", f"got {printed}")


def refusal(reason: str, message: str) -> Finding:
    """Return what the API server says against a request. Quotas and rights share its reason
    Forbidden."""
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
