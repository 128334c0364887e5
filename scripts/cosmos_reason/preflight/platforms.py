"""Checks of the platform, by what its own tools print: this machine, Docker with its image, SLURM, Kubernetes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator

from cosmos_reason import bundle, docker_client
from cosmos_reason import findings as f
from cosmos_reason.preflight.gates import check_driver, chosen, describe, described, fewer_gpus
from cosmos_reason.preflight.host import LIMIT, NO_COMMAND, Answer, Driver, Host, architecture, call, driver, over_ssh

DENIED = ("denied", "unauthorized", "authentication required", "403 Forbidden", "401 Unauthorized")
ABSENT = ("manifest unknown", "no such manifest", "not found", "name unknown")
SMOKE_SECONDS = 60
RUNTIME = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
UNLIMITED = 10**9  # minutes
# A node that runs jobs or will: what %t prints, and after it that it powers up or is planned for another job.
USABLE = re.compile(r"(?:idle|mix|alloc|comp|plnd|resv)[~#-]?")


def locate(launch) -> Iterator[f.Finding]:
    """where the job's paths lie: this machine, the Docker engine's or the cluster's"""
    name, user = os.environ.get("SLURM_HOSTNAME", ""), os.environ.get("SLURM_USER", "")
    if launch.platform == "local":
        launch.machine = Host()
    elif launch.platform == "docker":
        launch.machine = _engine(launch)
    elif launch.platform == "slurm":
        target = f"{user}@{name}" if user else name
        launch.machine = over_ssh(target, "", os.environ.get("SSH_KEY_PATH", "")) if name else Host()
    yield from ()


def gpus(launch, host: Host | None) -> Iterator[f.Finding]:
    """Ask the host for its GPUs; they are checked when everything else is known."""
    launch.driver = driver(host) if host else Driver(problem="an engine over tcp cannot be asked")
    if not launch.driver.gpus:
        message = f"got no GPU of {host.name if host else 'docker'} ({launch.driver.problem or 'it has none'})"
        kind = (f.warning if described(launch.args) else f.error) if launch.wants_gpus else f.info
        yield kind("PRE-GPU-NONE", "nvidia-smi", message, describe(launch.args) if launch.wants_gpus else "")


def local(launch) -> Iterator[f.Finding]:
    """torch or cosmos-rl, CUDA, GPUs"""
    yield from gpus(launch, Host())
    if launch.engine == "transformers":
        yield from _torch(launch)
    elif launch.engine == "cosmos-rl":
        fixes = {"redis-server": "apt-get install --yes redis-server", "cosmos-rl": "pip install cosmos-rl==0.4.7"}
        for name in filter(lambda name: not shutil.which(name), fixes):
            message = f"got no {name} here, which engine cosmos-rl needs"
            yield f.error("PRE-TOOL-MISSING", name, message, fixes[name])
    else:
        message = "engine tao lives in a container, expected platform docker, slurm or kubernetes"
        yield f.error("PRE-ENGINE-PLATFORM", "--platform", message, "--engine transformers")


def _torch(launch) -> Iterator[f.Finding]:
    pip = f"{sys.executable} -m pip install"
    if lost := [name for name in ("torch", "transformers", "peft") if not importlib.util.find_spec(name)]:
        fix = f"{pip} -r {bundle.ROOT / 'requirements-engine.txt'}"
        yield f.error("PRE-TORCH", sys.executable, f"got no {', '.join(lost)}, expected the embedded engine's", fix)
        return
    version = launch.result["torch"] = importlib.metadata.version("torch")
    if not launch.driver.gpus:
        return
    code = "import json,torch;c=torch.cuda;print(json.dumps([c.is_available(),c.get_arch_list()]))"
    answer = call([sys.executable, "-c", code], 60)
    if answer.code or not answer.out.startswith("["):
        yield f.error("PRE-TORCH", sys.executable, f"got {answer.said}, expected a torch that can be imported")
        return
    usable, built = json.loads(answer.out)
    if not usable:
        message = f"got torch {version} that sees no GPU, though nvidia-smi does"
        # the package index has the CUDA build for Linux, and pip takes a CPU build for the same version
        fix = f"{pip} --force-reinstall torch=={version.partition('+')[0]}"
        yield f.error("PRE-TORCH-CUDA", sys.executable, message, fix)
    mine = {gpu.arch for gpu in chosen(launch.driver, launch.args)[0] if gpu.arch}
    if usable and (lost := sorted(mine - {architecture(name) for name in built})):
        message = f"got GPUs of {', '.join(lost)}, torch was built for {', '.join(built)}"
        yield f.warning("PRE-TORCH-ARCH", sys.executable, message)


# ---- Docker ----------------------------------------------------------------------------------------------------------


def _engine(launch) -> Host | None:
    """The machine of the Docker engine that launch_job would take; None for one over tcp. Raises Failure."""
    address = docker_client.engine_host(launch.args.docker_host)
    launch.docker = {"DOCKER_HOST": address, "DOCKER_CONTEXT": ""}
    scheme, _, rest = address.partition("://")
    if scheme == "ssh":
        target, _, port = rest.partition("/")[0].partition(":")
        return over_ssh(target, port)
    return Host() if scheme == "unix" else None


def docker(launch) -> Iterator[f.Finding]:
    """engine, NVIDIA runtime, driver, toolkit, image, GPUs, a container that sees them"""
    machine = launch.machine
    if launch.docker is None:
        return  # no such engine: said before
    yield from gpus(launch, machine)
    answer = _docker(launch, "info", "--format", "{{json .}}")
    if lost := unreachable(answer):
        yield lost
        return
    facts = _info(answer)
    launch.result["docker"] = {"version": facts["ServerVersion"], "rootless": docker_client.is_rootless(facts)}
    runtime = docker_client.has_nvidia(facts) or bool(facts.get("DiscoveredDevices"))  # the latter: CDI
    if not runtime:
        kind = f.error if launch.wants_gpus else f.warning
        yield kind("PRE-DOCKER-RUNTIME", "docker", "got an engine without the NVIDIA runtime, expected one", RUNTIME)
    if launch.engine == "tao" or "tao-toolkit" in launch.image:
        said = machine.call("nvidia-ctk", "--version").out if machine else ""
        toolkit = re.search(r"version ([\d.]+)", said)
        yield from check_driver(launch.driver, toolkit[1] if toolkit else "")
    yield from _image(launch)
    yield from _smoke(launch, runtime)


def _docker(launch, *words: str, limit: float = LIMIT) -> Answer:
    return call(["docker", *words], limit, launch.docker)


def _info(answer: Answer) -> dict:
    """What `docker info` says; {} when that is nothing."""
    try:
        facts = json.loads(answer.out)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def unreachable(answer: Answer) -> f.Finding | None:
    """Why the client got no answer from an engine, though it may exit with 0."""
    if answer.code == NO_COMMAND and "no command docker" in answer.err:
        fix = "apt-get install --yes docker.io"
        return f.error("PRE-TOOL-MISSING", "docker", "got no docker command here", fix)
    facts = _info(answer)
    if not answer.code and facts.get("ServerVersion") and not facts.get("ServerErrors"):
        return None
    errors = "; ".join(map(str, facts.get("ServerErrors") or [answer.said or "no answer"]))
    fix = (
        "sudo usermod -aG docker $USER && newgrp docker"
        if "permission denied" in errors
        else "sudo systemctl start docker"
    )
    return f.error("PRE-DOCKER-UNREACHABLE", "docker", f"got {errors}, expected a running engine", fix)


def _image(launch) -> Iterator[f.Finding]:
    image = launch.image
    if not image:
        message = f"got none, and engine {launch.engine} has no image of its own"
        yield f.error("PRE-IMAGE", "--image", message, "--image NAME")
        return
    present = _docker(launch, "image", "inspect", "--format", "{{.Architecture}}", image)
    launch.result["image"] = {"name": image, "present": not present.code, "architecture": present.out.strip()}
    if not present.code:
        return
    answer = _docker(launch, "manifest", "inspect", image, limit=30)
    if answer.code == 0:
        yield f.info("PRE-IMAGE-PULL", image, "not here yet; it can be pulled", f"docker pull {image}")
        return
    id, fix, hint = "PRE-IMAGE-UNREACHABLE", f"docker pull {image}", ""
    known = bundle.skill_info()["images"]
    if any(word in answer.said for word in DENIED):
        id, fix = "PRE-IMAGE-DENIED", "docker login nvcr.io --username '$oauthtoken'"
    elif any(word in answer.said for word in ABSENT):
        id, fix, hint = "PRE-IMAGE-MISSING", f"--image {next(iter(known))}", f.did_you_mean(image, known)
    yield f.error(
        id, image, f"got {answer.said}; expected it here, or in a registry that lets it be pulled.{hint}", fix
    )


def _smoke(launch, runtime: bool) -> Iterator[f.Finding]:
    """A container that lists its GPUs. Pulling comes before and has the rest of the run's time, not the container's."""
    image = launch.args.gpu_smoke_image or launch.image
    if not runtime or not image:
        return  # said before
    if _docker(launch, "image", "inspect", "--format", "{{.Id}}", image).code:
        if not (launch.args.pull_smoke_image and launch.args.gpu_smoke_image):
            message = "not here, so no container was tried with the GPUs"
            yield f.warning("PRE-SMOKE", image, message, f"--gpu-smoke-image {image} --pull-smoke-image")
            return
        answer = _docker(launch, "pull", "--quiet", image, limit=launch.left())
        if answer.code:
            yield f.error("PRE-SMOKE", image, f"got {answer.said}; expected to pull it", f"docker pull {image}")
            return
    chosen = launch.args.target_gpu_index
    which = "all" if chosen is None else f'"device={",".join(map(str, chosen))}"'
    words = ["run", "--rm", "--network", "none", "--gpus", which, "--entrypoint", "nvidia-smi", image, "-L"]
    answer = _docker(launch, *words, limit=SMOKE_SECONDS)
    seen = len(re.findall(r"^GPU \d+", answer.out, re.M))
    launch.result["smoke"] = {"image": image, "gpus": seen}
    needed = max(launch.gpus_per_node, len(chosen or ()))
    if answer.code or seen < needed:
        message = f"got {answer.said if answer.code else seen} in a container, expected {needed} GPUs"
        yield f.error("PRE-SMOKE", image, message, RUNTIME if answer.code or not seen else "nvidia-smi -L")


# ---- SLURM -----------------------------------------------------------------------------------------------------------


def slurm(launch) -> Iterator[f.Finding]:
    """commands, partition, time limit, GRES, nodes, Pyxis, shared paths"""
    if (host := launch.machine) is None:
        return  # its name is none: said before
    script = "for t in sbatch srun sinfo squeue scontrol; do command -v $t >/dev/null || echo $t; done"
    answer = host.call("sh", "-c", script)
    if answer.out.strip():
        message = f"got no {', '.join(answer.out.split())} on {host.name}, expected SLURM's commands"
        yield f.error("PRE-TOOL-MISSING", host.name, message, "export SLURM_HOSTNAME=LOGIN_NODE")
        return
    asked = answer.code or (answer := host.call("sinfo", "--noheader", "--format=%P|%a|%l|%D|%G|%t")).code
    if asked:
        message = f"got {answer.said}, expected a login node and a running scheduler"
        fix = f"ssh {host.name} scontrol ping" if host.ssh else "scontrol ping"
        yield f.error("PRE-SLURM-UNREACHABLE", host.name, message, fix)
        return
    yield from partition(parse_partitions(answer.out), launch)
    if (launch.engine == "tao" or launch.args.image) and not _has_pyxis(host):
        message = "got an srun without --container-image, expected Pyxis and Enroot for containers"
        yield f.error("PRE-SLURM-PYXIS", host.name, message, "--engine cosmos-rl")
    yield from unseen(launch)
    yield from _shared_paths(launch, host)


def _has_pyxis(host: Host) -> bool:
    return "--container-image" in host.call("srun", "--help").out


def parse_partitions(text: str) -> list[dict]:
    """Rows of `sinfo %P|%a|%l|%D|%G|%t`: name, default, up, minutes, nodes, gpus (of one node), state."""
    rows = []
    for line in text.splitlines():
        cells = line.strip().split("|")
        if len(cells) != 6 or not cells[3].isdigit():
            continue
        counts = re.findall(r"(?:^|,)gpu(?::[^:,]+)*:(\d+)(?=,|$)", re.sub(r"\(.*?\)", "", cells[4]))
        rows.append({"name": cells[0].rstrip("*"), "default": cells[0].endswith("*"), "up": cells[1] == "up",
                     "minutes": minutes(cells[2]), "nodes": int(cells[3]), "gpus": sum(map(int, counts)),
                     "state": cells[5]})  # fmt: skip
    return rows


def minutes(written: str) -> int | None:
    """Minutes of a SLURM time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, infinite; None for anything else."""
    if written.lower() in ("infinite", "unlimited", "n/a"):
        return UNLIMITED
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", written):
        return None
    days, _, rest = written.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, mins, seconds = (*parts, 0, 0)[:3]
    else:
        hours, mins, seconds = {1: (0, *parts, 0), 2: (0, *parts), 3: parts}[len(parts)]
    return int(days or 0) * 1440 + hours * 60 + mins + (seconds > 0)


def partition(rows: list[dict], launch) -> Iterator[f.Finding]:
    """Whether the partition asked for (or the default one) is there, up, long enough, and has the nodes and GPUs."""
    args, names = launch.args, sorted({row["name"] for row in rows})
    wanted = args.partition or os.environ.get("SLURM_PARTITION") or next((r["name"] for r in rows if r["default"]), "")
    mine = [row for row in rows if row["name"] == wanted]
    launch.result["slurm"] = {"partition": wanted, "partitions": names}
    if not mine:
        near = f.nearest(wanted, names) or names
        message = f"got {wanted!r}, expected one of {', '.join(names) or 'none there'}"
        yield f.error("PRE-SLURM-PARTITION", "--partition", message, f"--partition {near[0]}" if near else "")
        return
    if not mine[0]["up"]:
        yield f.error("PRE-SLURM-DOWN", wanted, "got a partition that is down, expected it up", "sinfo --summarize")
    asked, most = minutes(args.time_limit or "0"), mine[0]["minutes"] or UNLIMITED
    if asked is None or asked > most:
        message = f"got {args.time_limit}, expected a time of at most {most} minutes (the partition's own limit)"
        yield f.error("PRE-SLURM-TIME", "--time-limit", message, f"--time-limit {most}")
    fit = [row for row in mine if row["gpus"] >= launch.gpus_per_node]
    if not fit:
        most = max(row["gpus"] for row in mine)
        message = f"got nodes with up to {most} GPUs (GRES) in {wanted}, expected {launch.gpus_per_node}"
        yield f.error("PRE-SLURM-GRES", wanted, message, fewer_gpus(launch, most))
    usable = sum(row["nodes"] for row in fit or mine if USABLE.fullmatch(row["state"]))
    if usable < args.nodes:
        states = ", ".join(f"{row['nodes']} {row['state']}" for row in mine)
        message = f"got {usable} usable nodes in {wanted} ({states}), expected {args.nodes}"
        yield f.error("PRE-SLURM-NODES", wanted, message, f"sinfo --partition={wanted} --list-reasons")


def unseen(launch) -> Iterator[f.Finding]:
    """What only the nodes could tell."""
    if launch.image:
        message = "driver, CUDA and container toolkit of the nodes, and the image, were not looked at"
        yield f.warning("PRE-HOST-UNSEEN", launch.platform, message, f"docker manifest inspect {launch.image}")


def _shared_paths(launch, host: Host) -> Iterator[f.Finding]:
    """Paths as a compute node sees them; as the login node does when no node is free at once."""
    paths = {label: path for label, path in launch.paths.items() if "://" not in path}
    if not paths:
        return
    look = ["sh", "-c", 'for p; do test -e "$p" || echo "$p"; done; echo end', "sh", *map(str, paths.values())]
    part = launch.result["slurm"]["partition"]
    srun = ["srun", "--quiet", "--immediate=10", "--time=1", "--nodes=1", "--ntasks=1"]
    answer = host.call(*srun, *([f"--partition={part}"] if part else []), *look, limit=20)
    where = "a compute node"
    if "end" not in answer.out.splitlines():
        message = f"no compute node could be asked ({answer.said}); the login node was"
        yield f.warning("PRE-SLURM-NODE-BUSY", host.name, message, "squeue --start")
        answer, where = host.call(*look), host.name
    lost = answer.out.splitlines()
    if "end" not in lost:
        yield f.error("PRE-PATHS-UNSEEN", host.name, f"got {answer.said}, so no path could be looked at")
    for label, path in paths.items():
        if path in lost:
            message = f"got no such path on {where}, expected it in a folder that the cluster shares"
            yield f.error("PRE-PATH-MISSING", f"{label}={path}", message, f"ls -d {path}")


# ---- Kubernetes ------------------------------------------------------------------------------------------------------


def kubernetes(launch) -> Iterator[f.Finding]:
    """rights, namespace, pull secret, storage class, allocatable GPUs"""
    host, args = Host(), launch.args
    base = ["kubectl", "--request-timeout=10s"]
    answer = host.call("kubectl", "config", "current-context")
    if answer.code == NO_COMMAND:
        yield f.error("PRE-TOOL-MISSING", "kubectl", "got no kubectl here", "https://kubernetes.io/docs/tasks/tools/")
        return
    if answer.code:
        message = f"got {answer.said}, expected a kubectl that knows a cluster"
        yield f.error("PRE-K8S-UNCONFIGURED", "kubectl", message, "export KUBECONFIG=FILE")
        return
    namespace = args.namespace or os.environ.get("K8S_NAMESPACE") or "default"
    inside = [*base, "--namespace", namespace]
    answer = host.call(*inside, "auth", "can-i", "create", "jobs.batch")
    said = answer.out.partition(" ")[0].strip()  # 'no - no RBAC policy matched'
    if said not in ("yes", "no"):
        message = f"got {answer.said}, expected an answer of the cluster"
        yield f.error("PRE-K8S-UNREACHABLE", "kubectl", message, "kubectl cluster-info")
        return
    if said == "no":
        message = "got no right to create jobs, expected it"
        yield f.error("PRE-K8S-RIGHTS", namespace, message, f"kubectl --namespace {namespace} auth can-i --list")
    for kind, name, flag in (
        ("namespace", namespace, "--namespace"),
        ("secret", args.pull_secret, "--pull-secret"),
        ("storageclass", args.storage_class, "--storage-class"),
    ):
        if name and (answer := host.call(*inside, "get", kind, name, "--output=name")).code:
            id, report = ("PRE-K8S-UNKNOWN", f.warning) if "Forbidden" in answer.err else ("PRE-K8S-MISSING", f.error)
            message = f"got {answer.said}, expected {kind} {name}"
            yield report(id, flag, message, f"kubectl --namespace {namespace} get {kind}")
    yield from unseen(launch)
    yield from nodes(host.call(*base, "get", "nodes", "--output=json"), launch)


def nodes(answer, launch) -> Iterator[f.Finding]:
    """Allocatable GPUs of ready nodes against what the launch asks of each."""
    try:
        items = json.loads(answer.out)["items"]
        counts = [int(item["status"].get("allocatable", {}).get("nvidia.com/gpu", 0)) for item in items if _ready(item)]
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"got {answer.said[:200]}, so the nodes' GPUs are not known"
        kind = f.error if launch.args.gpu_min_count else f.warning
        yield kind("PRE-K8S-NODES-UNKNOWN", "nodes", message, "kubectl auth can-i list nodes")
        return
    launch.result["kubernetes"] = {"nodes": len(counts), "gpus": counts}
    fit = sum(count >= launch.gpus_per_node for count in counts)
    if fit < launch.args.nodes:
        message = f"got {fit} ready nodes with {launch.gpus_per_node} allocatable GPUs, expected {launch.args.nodes}"
        fix = "kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu"
        yield f.error("PRE-K8S-GPUS", "nodes", message, fix)


def _ready(node: dict) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node.get("spec", {}).get("unschedulable")
