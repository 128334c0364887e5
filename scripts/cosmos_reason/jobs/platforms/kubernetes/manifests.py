"""The objects of a job in Kubernetes, as data: a Job, or an Indexed Job with a headless Service for
several nodes, and a Secret with what must not stand in either. Enter at `Work`."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

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
# Looks for each path as `test` does, by the letter before it, and names all that fail.
LOOK = """bad=0
while [ $# -gt 0 ]; do
  [ "$1" "$2" ] || { echo "$2"; bad=1; }
  shift 2
done
exit $bad"""


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
    environment: dict[str, str]
    secret_variables: list[str]
    working_dir: str
    volumes: list[tuple[str, str]]
    writable: list[str]
    looked_for: list[tuple[str, str]]
    user: tuple[int, int, list[int]] | None
    nodes: int = 1
    gpus: int = 0
    gpu_resource: str = GPUS
    cpus: int | None = None
    memory: str | None = None
    pull_secret: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    secret_may_lack: bool = False  # values that whoever applies the manifest does not have

    @property
    def own_label(self) -> dict[str, str]:
        return {LABEL: self.name}

    @property
    def all_labels(self) -> dict[str, str]:
        return self.labels | self.own_label


def literal(text: str) -> str:
    """Return text that Kubernetes takes as it is: $(NAME) would be a variable's value."""
    return text.replace("$", "$$")


def job(work: Work) -> dict:
    """Return the Job's manifest, which tries nothing twice: a run goes on from a checkpoint by
    launch_job.py retry."""
    spec: dict = {"backoffLimit": 0, "ttlSecondsAfterFinished": KEPT_SECONDS}
    if work.nodes > 1:
        spec |= {
            "completionMode": "Indexed",
            "completions": work.nodes,
            "parallelism": work.nodes,
        }
    spec["template"] = {"metadata": {"labels": work.all_labels}, "spec": _pod_spec(work)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(work), "spec": spec}


def look(work: Work, among: list[str]) -> dict:
    """Return a Job of a moment that looks for the paths as the job's pods will, without its GPUs:
    on one of the nodes named, where there are some."""
    template = _pod_spec(work) | {"containers": [_look(work, A_MOMENT)]}
    template.pop("initContainers")
    template.pop("subdomain", None)
    template["volumes"] = template["volumes"][:-1]  # without shared memory
    if work.gpus:
        template["tolerations"] = [
            *work.tolerations,
            {"key": work.gpu_resource, "operator": "Exists"},
        ]
    if among:
        fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in among]
        terms = {"nodeSelectorTerms": [{"matchFields": [field]} for field in fields]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        template["affinity"] = {"nodeAffinity": required}
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": MOMENT_SECONDS,
        "ttlSecondsAfterFinished": MOMENT_SECONDS,
        "template": {"metadata": {"labels": work.all_labels}, "spec": template},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(work), "spec": spec}


def pod(work: Work) -> dict:
    """Return a pod like those of the job, to be tried without making it: quotas count pods."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(work),
        "spec": _pod_spec(work),
    }


def service(work: Work) -> dict:
    """Gives the pods of several nodes names, which they need before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(work),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": work.own_label},
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
    text = yaml.safe_dump_all(documents, sort_keys=False, width=100, allow_unicode=True)
    if work.secret_variables:
        names = ", ".join(work.secret_variables)
        told = f"Needs the Secret {work.name} with {names}; submit makes it."
        if work.secret_may_lack:
            told = f"Reads the Secret {work.name}, where there is one, for\n# {names}."
        text = f"# {told}\n{text}"
    return text


def _metadata(work: Work) -> dict:
    return {"name": work.name, "labels": work.all_labels}


def _pod_spec(work: Work) -> dict:
    spec: dict = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": _user(work),
        "initContainers": [_look(work, _limits(work))],
        "containers": [_container(work)],
        "volumes": _volumes(work),
    }
    if work.nodes > 1:
        spec["subdomain"] = work.name
    if work.pull_secret:
        spec["imagePullSecrets"] = [{"name": work.pull_secret}]
    if work.node_selector:
        spec["nodeSelector"] = work.node_selector
    if work.tolerations:
        spec["tolerations"] = work.tolerations
    return spec


def _user(work: Work) -> dict:
    """Return who runs the containers: the files are written by who launches. No fsGroup: it would
    change the owner of what lies in the volumes."""
    if work.user is None:  # the image's own
        return {"seccompProfile": {"type": "RuntimeDefault"}}
    uid, gid, groups = work.user
    context = {"runAsUser": uid, "runAsGroup": gid, "seccompProfile": {"type": "RuntimeDefault"}}
    if uid:
        context["runAsNonRoot"] = True
    if groups:
        context["supplementalGroups"] = groups
    return context


def _container(work: Work) -> dict:
    limits = _limits(work)
    if work.gpus:
        limits[work.gpu_resource] = work.gpus
    variables = [
        {"name": name, "value": literal(value)} for name, value in work.environment.items()
    ]
    for name in work.secret_variables:
        source: dict = {"secretKeyRef": {"name": work.name, "key": name}}
        if work.secret_may_lack:
            source["secretKeyRef"]["optional"] = True
        variables.append({"name": name, "valueFrom": source})
    return {
        "name": WORK,
        "image": work.image,
        "command": [literal(word) for word in work.words],
        "workingDir": work.working_dir,
        "env": variables,
        "resources": {"requests": limits, "limits": limits.copy()},
        "securityContext": _confined(),
        "volumeMounts": [*_mounts(work), {"name": "shm", "mountPath": "/dev/shm"}],
    }


def _look(work: Work, limits: dict) -> dict:
    """Fails, naming the paths, where the volumes do not hold what this machine has there."""
    words = ["sh", "-c", LOOK, "sh"]
    for letter, path in work.looked_for:
        words += [letter, path]
    return {
        "name": CHECK,
        "image": work.image,
        "command": [literal(word) for word in words],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": limits, "limits": limits.copy()},
        "securityContext": _confined(),
        "volumeMounts": _mounts(work),
    }


def _confined() -> dict:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _limits(work: Work) -> dict:
    limits: dict = {}
    if work.cpus:
        limits["cpu"] = str(work.cpus)
    if work.memory:
        limits["memory"] = f"{work.memory}i"
    return limits


def _mounts(work: Work) -> list[dict]:
    names = _volume_names(work)
    mounts = []
    for claim, path in work.volumes:
        mount: dict = {"name": names[claim], "mountPath": path}
        if path not in work.writable:
            mount["readOnly"] = True
        mounts.append(mount)
    return mounts


def _volume_names(work: Work) -> dict[str, str]:
    claims = dict.fromkeys(claim for claim, _ in work.volumes)
    return {claim: f"volume-{number}" for number, claim in enumerate(claims)}


def _volumes(work: Work) -> list[dict]:
    """NCCL and the loaders of PyTorch need more shared memory than the 64 MiB of a container."""
    found: list[dict] = []
    for claim, name in _volume_names(work).items():
        found.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
    return [*found, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
