#!/usr/bin/env python3
"""Describes the machine that it runs on, as a site.yaml: describe.py [--platform P] [--login HOST].

Works alone on a bare login node (`ssh HOST python3 - < describe.py`): the standard library of
Python 3.8, nothing installed, nothing written. It prints what it can read and leaves out what it
cannot; no values of variables but the folders of HOME, SCRATCH and WORK.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlparse

GIB = 2**30
SECONDS = 20  # for each answer
FOLDERS = ("$SCRATCH", "$WORK", "$HOME", "/lustre", "/scratch", "/data", "/mnt/data")
USABLE = re.compile(r"(idle|mix|alloc|comp|plnd|resv)[~#-]?$")
NOT_TEXT = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")  # of YAML
HUB = "https://huggingface.co"


def said(*words):
    """Return what a command prints; '' where it is missing, fails or does not answer."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def gpus_of_this_machine():
    """(GPUs as the file has them, version of the driver) by nvidia-smi."""
    query = "--query-gpu=name,memory.total,driver_version,compute_cap"
    names, sizes, archs, driver = [], [], [], ""
    for line in said("nvidia-smi", query, "--format=csv,noheader,nounits").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4:
            continue
        name, mib, version, capability = cells
        names.append(re.sub(r"^NVIDIA ", "", name))
        if mib.isdigit():
            sizes.append(int(mib) / 1024)
        if re.match(r"\d+\.\d$", capability):
            archs.append("sm_" + capability.replace(".", ""))
        if re.match(r"[\d.]+$", version):
            driver = version
    if not names:
        return {}, ""
    found = {"count": len(names)}
    if len(set(names)) == 1:
        found["type"] = names[0]
    if len(sizes) == len(names):
        found["memory_gib"] = round(min(sizes), 1)
    if len(archs) == len(names) and len(set(archs)) == 1:
        found["arch"] = archs[0]
    return found, driver


def memory_gib():
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB, 1)
    except (OSError, ValueError):
        return None


def disks():
    """Free GiB of the folders that jobs may write to, one for each file system."""
    found, seen = {}, set()
    for folder in FOLDERS:
        path = os.path.expandvars(folder)
        if not path.startswith("/") or not os.access(path, os.W_OK) or not os.path.isdir(path):
            continue
        device = os.stat(path).st_dev
        if device not in seen:
            seen.add(device)
            room = os.statvfs(path)
            found[path.rstrip("/") or "/"] = int(room.f_bavail * room.f_frsize / GIB)
    return found


def network():
    """Return whether a connection to the Hub can be made; behind a proxy nobody knows."""
    if os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY"):
        return {}
    address = urlparse(os.environ.get("HF_ENDPOINT") or HUB)
    try:
        kind = HTTPConnection if address.scheme == "http" else HTTPSConnection
        hub = kind(address.hostname or "", address.port, timeout=5)
        hub.connect()
        hub.close()
    except (OSError, ValueError, HTTPException):
        return {"hub": False}
    return {"hub": True}


def of_this_machine():
    gpus, driver = gpus_of_this_machine()
    found = {"gpus": gpus or {"count": 0}, "cpus": os.cpu_count(), "memory_gib": memory_gib()}
    found["driver"] = driver
    found["disk"] = disks()
    found["network"] = network()
    return found


def of_slurm(login):
    """Return what sinfo says of the partition that is meant without --partition, else the first
    with GPUs. Its nodes are not asked: their driver and network are not known here."""
    rows = []
    words = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%D|%G|%t|%c|%m")
    for line in said(*words).splitlines():
        cells = line.strip().split("|")
        is_row = len(cells) == 8 and cells[3].isdigit() and cells[6].isdigit()
        if is_row and cells[1] == "up" and USABLE.match(cells[5]):
            gpus = re.findall(r"(?:^|,)gpu(?::([^:,(]+))?:(\d+)", re.sub(r"\(.*?\)", "", cells[4]))
            rows.append((cells[0], int(cells[3]), gpus, int(cells[6]), int(cells[7])))
    if not rows:
        return {}, ["sinfo names no partition that is up"]
    with_gpus = [row for row in rows if row[2]]
    chosen = [row for row in rows if row[0].endswith("*") and row[2]] or with_gpus or rows
    name = chosen[0][0].rstrip("*")
    alike = [row for row in rows if row[0].rstrip("*") == name and row[2:] == chosen[0][2:]]
    gpus = {"count": sum(int(count) for _, count in chosen[0][2])}
    kinds = {kind for kind, _ in chosen[0][2] if kind}
    if len(kinds) == 1:
        gpus["type"] = kinds.pop()
    found = {"nodes": sum(row[1] for row in alike), "gpus": gpus, "cpus": chosen[0][3]}
    found["memory_gib"] = round(chosen[0][4] / 1024, 1)
    found["disk"] = disks()
    found["slurm"] = {"partition": name}
    if login:
        found["slurm"]["login"] = login
    others = sorted({row[0].rstrip("*") for row in rows} - {name})
    remarks = ["disk is that of this login node; driver and network of its nodes are not known"]
    if others:
        remarks.append("further partitions: " + ", ".join(others))
    return found, remarks


def gpu_type(product):
    """Return the type in a label of NVIDIA's GPU feature discovery as nvidia-smi prints it:
    NVIDIA-H100-80GB-HBM3 (-SHARED where pods share a GPU) is H100 80GB HBM3."""
    return re.sub(r"^NVIDIA-|-SHARED$", "", product).replace("-", " ")


def of_kubernetes():
    """Return what the cluster says of its nodes; where claims lie in pods it does not know."""
    context = said("kubectl", "config", "current-context").strip()
    namespace = said("kubectl", "config", "view", "--minify", "--output=jsonpath={..namespace}")
    found = {"kubernetes": {"context": context, "namespace": namespace.strip() or "default"}}
    counts, sizes, kinds = [], [], set()
    try:
        listed = json.loads(said("kubectl", "get", "nodes", "--output=json") or "{}")
    except ValueError:
        listed = {}
    for node in listed.get("items", []):
        gpus = node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", "0")
        labels = node.get("metadata", {}).get("labels", {})
        memory = labels.get("nvidia.com/gpu.memory", "")
        if str(gpus).isdigit() and int(gpus):
            counts.append(int(gpus))
            sizes += [int(memory) / 1024] if memory.isdigit() else []
            kinds.add(gpu_type(labels.get("nvidia.com/gpu.product", "")))
    if counts:
        found["nodes"] = counts.count(max(counts))
        found["gpus"] = {"count": max(counts)}
        if len(sizes) == len(counts):
            found["gpus"]["memory_gib"] = round(min(sizes), 1)
        if len(kinds) == 1 and "" not in kinds:
            found["gpus"]["type"] = kinds.pop()
    names = said("kubectl", "get", "pvc", "--output=jsonpath={.items[*].metadata.name}").split()
    remarks = ["kubernetes.volumes are not known: [CLAIM:FOLDER IN PODS]"]
    if len(kinds) > 1:
        remarks.append("GPU types of its nodes: " + ", ".join(sorted(kinds - {""})))
    if names:
        remarks.append("claims: " + ", ".join(names))
    return found, remarks


def platform_here():
    if said("sinfo", "--version"):
        return "slurm"
    if said("docker", "info", "--format", "{{.ServerVersion}}").strip():
        return "docker"
    if not said("nvidia-smi", "-L") and said("kubectl", "config", "current-context").strip():
        return "kubernetes"
    return "local"


def as_yaml(value):
    """JSON is YAML; numbers and texts as they are."""
    if isinstance(value, dict):
        inner = ", ".join(f"{as_yaml(key)}: {as_yaml(one)}" for key, one in value.items())
        return f"{{{inner}}}"
    is_plain = isinstance(value, str) and re.match(r"[A-Za-z/][\w./-]*$", value)
    return value if is_plain and value.lower() not in NOT_TEXT else json.dumps(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=("local", "docker", "slurm", "kubernetes"))
    parser.add_argument("--login", default="", help="how this machine is reached")
    asked = parser.parse_args()
    platform = asked.platform or platform_here()
    name = re.sub(r"[^\w.-]", "", socket.gethostname().partition(".")[0]) or "site"
    found = {"schema_version": 1, "name": name, "platform": platform}
    remarks = []
    if platform == "slurm":
        more, remarks = of_slurm(asked.login)
    elif platform == "kubernetes":
        more, remarks = of_kubernetes()
    else:
        more = of_this_machine()
    found.update(more)
    found["described_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found["described_by"] = "command"
    for key, value in found.items():
        if value not in ("", None, {}):
            print(f"{key}: {as_yaml(value)}")
    for remark in remarks:
        print("# " + remark)
    print("# add: paths: {FOLDER THERE: FOLDER HERE}, models: {FOLDER THERE: ORG/NAME}")
    runs = "image: NAME" if platform == "docker" else "environment: FOLDER or image: NAME"
    print("# add: " + runs)


if __name__ == "__main__":
    main()
