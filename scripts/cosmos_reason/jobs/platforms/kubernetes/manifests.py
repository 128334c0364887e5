"""The objects of a job in Kubernetes, as data: a Job, or an Indexed Job with a headless Service for
several nodes, and a Secret with what must not stand in either. Enter at `Work`."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

LABEL = "tao-job"
GPUS = "nvidia.com/gpu"  # the resource, if no other is asked for, and the taint of its nodes
QUEUE = "kueue.x-k8s.io/queue-name"  # the label of a Job that waits for admission by Kueue
WORK, CHECK = "work", "paths"  # containers: the job's program, and what looks for its paths first
KEPT_SECONDS = 7 * 24 * 3600  # after its end, until the cluster removes the job
GRACE_SECONDS = 30
# Of a pod that only looks for paths: what it gets, and after how long it ends and goes should
# nobody remove it.
A_MOMENT = {"cpu": "100m", "memory": "128Mi"}
MOMENT_SECONDS = 300
ONE_LINE = 100  # characters of an object that a manifest shows on one line
# Looks for each path as `test` does, by the letter before it, and names all that fail.
LOOK = 'bad=0; while [ "$2" ]; do [ "$1" "$2" ] || { echo "$2"; bad=1; }; shift 2; done; exit $bad'


@dataclass(frozen=True)
class Work:
    """What a job runs in each of its pods.

    `volumes`: (claim, path) pairs; `looked_for`: paths in the pod, each with -e or -w;
    `secret_variables`: names whose values the Secret has; `cpus` and `memory` (such as 200G,
    in binary units): what a pod gets, None where that is left to the cluster; `user`: uid, gid and
    further groups; `gpu_resource`: what the cluster calls its GPUs, or parts of them; `labels`:
    those of a person, for the Job and its pods.
    """

    name: str
    image: str
    words: list[str]
    volumes: list[tuple[str, str]]
    user: tuple[int, int, list[int]] | None
    working_dir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    secret_variables: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    looked_for: list[tuple[str, str]] = field(default_factory=list)
    nodes: int = 1
    gpus: int = 0
    gpu_resource: str = GPUS
    cpus: int | None = None
    memory: str | None = None
    pull_secret: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    secret_may_lack: bool = False  # whoever applies the manifest makes it, with what they have

    @property
    def metadata(self) -> dict:
        return {"name": self.name, "labels": self.labels | {LABEL: self.name}}


def job(work: Work) -> dict:
    """Return the Job's manifest, which tries nothing twice: a run goes on from a checkpoint by
    launch_job.py retry. Fields that are None are left to the cluster."""
    names = {claim: f"volume-{n}" for n, claim in enumerate(dict(work.volumes))}
    mounts = []
    for claim, path in work.volumes:
        is_read = None if path in work.writable else True
        mounts.append({"name": names[claim], "mountPath": path, "readOnly": is_read})
    size = {"cpu": str(work.cpus) if work.cpus else None}
    size["memory"] = f"{work.memory}i" if work.memory else None
    uid, gid, groups = work.user or (None, None, [])  # None: the image's own
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    literal = [(name, _literal(value)) for name, value in work.environment.items()]
    variables = [{"name": name, "value": value} for name, value in literal]
    if not work.secret_may_lack:
        for name in work.secret_variables:
            key = {"name": work.name, "key": name}
            variables.append({"name": name, "valueFrom": {"secretKeyRef": key}})
    all_of_it = [{"secretRef": {"name": work.name, "optional": True}}]
    # Fails, naming the paths, where the volumes do not hold what this machine has there.
    check = {
        "name": CHECK,
        "image": work.image,
        "command": ["sh", "-c", _literal(LOOK), "sh", *_literals(sum(work.looked_for, ()))],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": size, "limits": size} if any(size.values()) else None,
        "securityContext": confined,
        "volumeMounts": mounts,
    }
    with_gpus = size | {work.gpu_resource: work.gpus or None}
    container = {
        "name": WORK,
        "image": work.image,
        "command": _literals(work.words),
        "workingDir": work.working_dir,
        "env": variables or None,
        "envFrom": all_of_it if work.secret_may_lack else None,
        "resources": {"requests": with_gpus, "limits": with_gpus},
        "securityContext": confined,
        "volumeMounts": [*mounts, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = []
    for claim, name in names.items():
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
    several = work.nodes if work.nodes > 1 else None
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        # The files are written by who launches. No fsGroup: it would change the owner of what lies
        # in the volumes.
        "securityContext": {
            "runAsUser": uid,
            "runAsGroup": gid,
            "seccompProfile": {"type": "RuntimeDefault"},
            "runAsNonRoot": True if uid else None,
            "supplementalGroups": groups or None,
        },
        "initContainers": [check],
        "containers": [container],
        # NCCL and the loaders of PyTorch need more shared memory than the 64 MiB of a container.
        "volumes": [*volumes, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "subdomain": work.name if several else None,
        "imagePullSecrets": [{"name": work.pull_secret}] if work.pull_secret else None,
        "nodeSelector": work.node_selector or None,
        "tolerations": work.tolerations or None,
    }
    spec = {
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "completionMode": "Indexed" if several else None,
        "completions": several,
        "parallelism": several,
        "template": {"metadata": {"labels": work.metadata["labels"]}, "spec": pod},
    }
    return _said({"apiVersion": "batch/v1", "kind": "Job", "metadata": work.metadata, "spec": spec})


def _literal(text: str) -> str:
    """Return text that Kubernetes takes as it is: $(NAME) would be a variable's value, and of $$
    one of the two would go."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _literals(words: Iterable[str]) -> list[str]:
    return [_literal(word) for word in words]


def _said(value: Any) -> Any:
    """Return a copy without the fields that are None."""
    if isinstance(value, dict):
        return {name: _said(one) for name, one in value.items() if one is not None}
    return [_said(one) for one in value] if isinstance(value, list) else value


def look(work: Work, among: list[str]) -> dict:
    """Return a Job of a moment that looks for the paths as the job's pods will, without its GPUs:
    on one of the nodes named, where there are some."""
    made = job(work)
    pod = made["spec"]["template"]["spec"]
    (check,) = pod.pop("initContainers")
    pod["containers"] = [check | {"resources": {"requests": A_MOMENT, "limits": dict(A_MOMENT)}}]
    pod.pop("subdomain", None)
    pod["volumes"] = pod["volumes"][:-1]  # without shared memory
    if work.gpus:
        pod["tolerations"] = [*work.tolerations, {"key": work.gpu_resource, "operator": "Exists"}]
    if among:
        fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in among]
        terms = {"nodeSelectorTerms": [{"matchFields": [field]} for field in fields]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        pod["affinity"] = {"nodeAffinity": required}
    made["spec"] = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": MOMENT_SECONDS,
        "ttlSecondsAfterFinished": MOMENT_SECONDS,
        "template": made["spec"]["template"],
    }
    return made


def pod(work: Work) -> dict:
    """Return a pod like those of the job, to be tried without making it: quotas count pods."""
    spec = job(work)["spec"]["template"]["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": work.metadata, "spec": spec}


def service(work: Work) -> dict:
    """Return what gives the pods of several nodes names, which they need before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": work.metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: work.name},
        },
    }


def secret(name: str, values: dict[str, str]) -> dict:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {LABEL: name}},
        "type": "Opaque",
        "data": encoded,
    }


def belongs_to(manifest: dict, job: dict) -> dict:
    """Return the object, to be removed when the Job (as its server has it) is."""
    owner = {"apiVersion": "batch/v1", "kind": "Job"}
    owner |= {name: job["metadata"][name] for name in ("name", "uid")}
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner]}}


def shown(work: Work) -> str:
    """Return the objects without the Secret's values, as YAML for people."""
    import yaml

    documents = [job(work)]
    if work.nodes > 1:
        documents.append(service(work))

    class Short(yaml.SafeDumper):
        """Writes what fits on a line on one, and words one after the other: whoever reviews it has
        less to read."""

        def represent_data(self, value):
            node = super().represent_data(value)
            if isinstance(value, list | dict):
                are_words = isinstance(value, list) and all(isinstance(one, str) for one in value)
                node.flow_style = are_words or len(str(value)) < ONE_LINE
            return node

    text = yaml.dump_all(documents, Dumper=Short, sort_keys=False, width=100, allow_unicode=True)
    if work.secret_variables:
        names = ", ".join(work.secret_variables)
        told = f"Needs the Secret {work.name} with {names}; submit makes it."
        if work.secret_may_lack:
            told = "" if work.environment else "those of skill/environment, and "
            told = f"Variables: {told}those of the Secret {work.name}, where there is one."
        text = f"# {told}\n{text}"
    return text
