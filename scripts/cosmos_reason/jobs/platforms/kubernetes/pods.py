"""What a Job in Kubernetes and its pods say of how a job is. Enter at `read`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cosmos_reason.base import secrets
from cosmos_reason.base.findings import Finding, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs.platforms.kubernetes import manifests

INDEX = "batch.kubernetes.io/job-completion-index"
IMAGE_PROBLEMS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
# Of these the first may pass; with the others a pod waits for ever, and keeps its GPUs.
FOR_EVER = (*IMAGE_PROBLEMS[1:], "CreateContainerConfigError", "CreateContainerError")

UNPLACED = "Unschedulable"
OUT_OF_MEMORY = "JOB-K8S-OOM"
EVICTED = "JOB-K8S-EVICTED"
USING = re.compile(r"was using (\w+)")  # of a container, in the kubelet's words
OWN_DISK = ("ephemeral", "nodefs", "imagefs", "inodes")  # of a node, in the kubelet's words
NOT_FOUND = 127  # of a shell, and of what starts the program of a pod


@dataclass(frozen=True)
class Seen:
    """`exit_code` is that of the first pod that failed, None where nobody knows; `causes` are what
    the cluster says went wrong; `waits` why nothing runs yet; `stuck`: it never will; `unplaced`:
    no node takes a pod now. `count`: how many pods there are; `logs`: those whose program was
    started, by their number, the last of them at `started_at`; `unstarted`: the uid of the first
    of the others."""

    started_at: str | None = None
    ended_at: str | None = None
    ended: bool = False
    exit_code: int | None = None
    causes: list[Finding] = field(default_factory=list)
    waits: str = ""
    stuck: bool = False
    unplaced: bool = False
    suspended: bool = False
    count: int = 0
    unstarted: str = ""
    logs: dict[int, str] = field(default_factory=dict)


def read(job: dict, pods: list[dict]) -> Seen:
    """Return what a Job and its pods, as the API server has them, say of the work."""
    pods = sorted(pods, key=_index)
    states = [_state(pod, manifests.WORK) for pod in pods]
    starts = []  # None of a program that could not be started
    for state in states:
        ended = state.get("terminated", {})
        is_begun = ended.get("reason") not in ("StartError", "ContainerCannotRun")
        starts.append(state.get("running", ended).get("startedAt") if is_begun else None)
    conditions = _conditions(job)
    end = conditions.get("Complete") or conditions.get("Failed") or {}
    waiting = [] if end else [reason for pod in pods for reason in _waiting(pod)]
    codes = [state["terminated"].get("exitCode") for state in states if "terminated" in state]
    failure = next((code for code in codes if code), None)
    causes = [cause for pod in pods for cause in _causes(pod)]
    if end.get("type") == "Failed" and not causes and failure is None:
        # The pods do not say it.
        message = f"got {end.get('reason', 'Failed')}: {end.get('message', '')}, expected an end"
        causes = [error("JOB-K8S-FAILED", "Job", secrets.hidden(message))]
    # The pods of a complete Job may be removed before it is.
    began = job["status"].get("startTime") if "Complete" in conditions else None
    unstarted = [pod for pod, start in zip(pods, starts, strict=True) if not start]
    return Seen(
        started_at=max(filter(None, starts), default=began),
        ended_at=end.get("lastTransitionTime"),
        ended=bool(end),
        exit_code=0 if "Complete" in conditions else failure,
        causes=causes,
        waits="; ".join(dict.fromkeys(text for _, text in waiting)),
        stuck=any(reason in FOR_EVER for reason, _ in waiting),
        unplaced=any(reason == UNPLACED for reason, _ in waiting),
        suspended=bool(job.get("spec", {}).get("suspend")),
        count=len(pods),
        unstarted=unstarted[0]["metadata"].get("uid", "") if unstarted else "",
        logs={_index(pod): _name(pod) for pod in pods if pod not in unstarted},
    )


def _index(pod: dict) -> int:
    return int(pod["metadata"].get("annotations", {}).get(INDEX, 0))


def _name(pod: dict) -> str:
    return pod["metadata"]["name"]


def _conditions(thing: dict) -> dict[str, dict]:
    """Return the conditions that are true, by type."""
    found = thing.get("status", {}).get("conditions") or []
    return {one["type"]: one for one in found if one.get("status") == "True"}


def _state(pod: dict, container: str) -> dict:
    """Return the state of a container: one of waiting, running, terminated; {} before there is
    any."""
    status = pod.get("status", {})
    lists = (status.get("containerStatuses"), status.get("initContainerStatuses"))
    for entries in lists:
        for entry in entries or []:
            if entry["name"] == container:
                return entry.get("state") or {}
    return {}


# -- what went wrong ---------------------------------------------------------------------------


def _causes(pod: dict) -> list[Finding]:
    """Return what the cluster says of the end of a pod."""
    name, status = _name(pod), pod.get("status", {})
    removed = _conditions(pod).get("DisruptionTarget")
    if status.get("phase") == "Failed" and status.get("reason"):
        return [_evicted(name, status["reason"], status.get("message", ""))]
    if removed:
        return [_evicted(name, removed.get("reason", ""), removed.get("message", ""))]
    looked = _state(pod, manifests.CHECK).get("terminated", {})
    if looked.get("exitCode"):
        paths = " ".join(looked.get("message", "").split()) or f"exit code {looked['exitCode']}"
        message = f"the pod does not have {paths[:1500]}, expected what this machine has there: "
        message += "the claims of --volume hold something else, or are not to be read or written"
        fix = Fix(flags={"--volume": "CLAIM:PATH"})
        return [error("JOB-K8S-PATHS", name, message, fix)]
    ended = _state(pod, manifests.WORK).get("terminated", {})
    if ended.get("reason") == "OOMKilled":
        containers = pod.get("spec", {}).get("containers", [])
        work = next((one for one in containers if one["name"] == manifests.WORK), {})
        limit = work.get("resources", {}).get("limits", {}).get("memory", "")
        may = f"the {limit} that it may have" if limit else "there was"
        message = f"got OOMKilled: the container needed more memory than {may}"
        return [error(OUT_OF_MEMORY, name, message, limit=limit)]
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return [_not_run(name, ended.get("message", ended["reason"]))]
    if ended.get("exitCode") == NOT_FOUND:
        return [_not_run(name, "exit code 127, a command was not found: the log says which")]
    found = []
    for reason, text in _waiting(pod):
        if reason in FOR_EVER and reason in IMAGE_PROBLEMS:
            message = f"got {text}, expected an image that the cluster may pull"
            fix = Fix(flags={"--pull-secret": "NAME"})
            found.append(error("JOB-K8S-IMAGE", name, message, fix))
        elif reason in FOR_EVER:
            found.append(_not_run(name, text))
    return found


def _evicted(name: str, reason: str, text: str) -> Finding:
    message = f"got {reason}: {text}, expected the pod to stay to its end"
    if any(word in text for word in OWN_DISK):  # another try fills it again
        message += "; what it writes besides its volumes (/tmp, caches) filled the node's own disk"
        return error("JOB-K8S-DISK", name, secrets.hidden(message))
    if "low on resource: memory" in text:  # another try with the same request fares the same
        message += (
            "; of the pods on a node that runs out of memory, those that take more than they "
        )
        message += "asked for go first, and --memory asks for it"
        used = USING.search(text)
        return error(EVICTED, name, secrets.hidden(message), used=used[1] if used else "")
    return error(EVICTED, name, secrets.hidden(message))


def taken_away() -> Finding:
    """Return what went wrong where the cluster suspended a Job that ran."""
    return _evicted("Job", "Suspended", "the cluster suspended the Job, which ended its pods")


def _not_run(name: str, text: str) -> Finding:
    message = f"the program could not be started: {' '.join(text.split())[-400:]}"
    return error("JOB-K8S-CONTAINER", name, secrets.hidden(message))


def _waiting(pod: dict) -> list[tuple[str, str]]:
    """Return (reason, the same with its message) of what keeps a pod from running."""
    found = []
    for container in (manifests.CHECK, manifests.WORK):
        state = _state(pod, container).get("waiting", {})
        reason = state.get("reason", "")
        if reason not in ("", "PodInitializing", "ContainerCreating"):
            found.append((reason, _said(reason, state)))
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            reason = condition.get("reason", "")
            found.append((reason, _said(reason, condition)))
    return found


def _said(reason: str, condition: dict) -> str:
    text = f"{reason}: {condition['message']}" if condition.get("message") else reason
    return secrets.hidden(" ".join(text.split())[:600])
