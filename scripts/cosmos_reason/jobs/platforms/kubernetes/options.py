"""What a person says of a Kubernetes cluster: volumes, where pods may run, what they get. A request
and its record keep it as it was written."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cosmos_reason.base.findings import Finding, error
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import mounts
from cosmos_reason.jobs.platforms.kubernetes import manifests

NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
KEY = re.compile(
    r"([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII
)
VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
MEMORY = re.compile(r"[1-9][0-9]{0,8}[KMGT]")
RESOURCE = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
ONE_VOLUME = Fix(flags={"--volume": "CLAIM:PATH"})


def findings(asked: dict) -> list[Finding]:
    """Return what stands against the words themselves."""
    found = []
    for flag, expected, is_right in FORMS:
        given = asked.get(flag.removeprefix("--").replace("-", "_")) or []
        for text in [given] if isinstance(given, str) else given:
            if not is_right(text):
                found.append(_wrong(flag, text, expected))
    folders = [folder for _, folder in volumes(asked)]
    for folder in sorted({folder for folder in folders if folders.count(folder) > 1}):
        found.append(_wrong("--volume", folder, "one claim for a folder"))
    return found


def _wrong(flag: str, text: str, expected: str) -> Finding:
    return error("JOB-K8S-FLAG", flag, f"got {text!r}, expected {expected}")


def _is_volume(text: str) -> bool:
    claim, _, path = text.partition(":")
    is_folder = os.path.isabs(path) and os.path.normpath(path) == path and len(path) > 1
    return bool(NAME.fullmatch(claim)) and is_folder and ":" not in path


def _is_label(text: str) -> bool:
    key, equals, value = text.partition("=")
    return bool(equals and KEY.fullmatch(key) and VALUE.fullmatch(value))


def volumes(asked: dict) -> list[tuple[str, str]]:
    """Return (claim, folder here) of each volume that is well-formed, the inner folders last."""
    # Where one volume lies in another, a path is of the inner one: `holder` takes the last.
    found = [tuple(text.split(":", 1)) for text in asked.get("volume", ()) if _is_volume(text)]
    return sorted(found, key=lambda pair: pair[1])


def node_selector(asked: dict) -> dict[str, str]:
    return dict(text.split("=", 1) for text in asked.get("node_selector", ()))


def labels(asked: dict) -> dict[str, str]:
    return dict(text.split("=", 1) for text in asked.get("label", ()))


def gpu_resource(asked: dict) -> str:
    return asked.get("gpu_resource") or manifests.GPUS


def tolerations(asked: dict) -> list[dict]:
    return [_toleration(text) for text in asked.get("toleration", ())]


def _toleration(text: str) -> dict | None:
    """Return a toleration as Kubernetes has it; None for what is none."""
    rest, colon, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    if not (KEY.fullmatch(key) and VALUE.fullmatch(value)) or (colon and effect not in EFFECTS):
        return None
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    if equals:
        found["value"] = value
    if effect:
        found["effect"] = effect
    return found


FORMS = (
    ("--volume", "CLAIM:DIR, a claim and the folder of its files, here as in the pod", _is_volume),
    ("--node-selector", "KEY=VALUE of a label", _is_label),
    (
        "--label",
        f"NAME=VALUE, a label of Kubernetes other than {manifests.LABEL}",
        # by which the pods of a job are found
        lambda text: _is_label(text) and not text.startswith(f"{manifests.LABEL}="),
    ),
    ("--gpu-resource", "a resource of nodes such as nvidia.com/mig-1g.10gb", RESOURCE.fullmatch),
    ("--toleration", f"KEY[=VALUE][:EFFECT], EFFECT one of {', '.join(EFFECTS)}", _toleration),
    ("--namespace", "a name of small letters, digits, - and .", NAME.fullmatch),
    ("--pull-secret", "a name of small letters, digits, - and .", NAME.fullmatch),
    ("--memory", "a size such as 200G", MEMORY.fullmatch),
)


def holder(path: Path, asked: dict) -> str | None:
    """Return the folder of the volume that a path lies in, None for a path in none."""
    within = [folder for _, folder in volumes(asked) if Path(folder) in (path, *path.parents)]
    return within[-1] if within else None


def claims(asked: dict, written: list[Path]) -> dict[str, bool]:
    """Return for each claim whether one of the paths that are written lies in it."""
    folders = {holder(path, asked) for path in written}
    found: dict[str, bool] = {}
    for claim, folder in volumes(asked):
        found[claim] = found.get(claim, False) or folder in folders
    return found


def outside(places: list[tuple[Path, bool]], asked: dict) -> list[Finding]:
    """Return an error for each path that pods would not have."""
    found = []
    for path, is_written in places:
        if holder(path, asked) is None:
            what = "writes" if is_written else "reads"
            message = f"the job {what} it, and no --volume holds it: pods have nothing else of "
            message += "this machine"
            found.append(error("JOB-K8S-VOLUME", path, message, ONE_VOLUME))
    return found


def mounted(
    places: list[tuple[Path, bool]], asked: dict
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return ((claim, folder in the pod) of each volume, the folders among them that are written
    in)."""
    inside = [(claim, mounts.inside(folder)) for claim, folder in volumes(asked)]
    written = {holder(path, asked) for path, is_written in places if is_written}
    return inside, sorted(mounts.inside(folder) for folder in written if folder)
