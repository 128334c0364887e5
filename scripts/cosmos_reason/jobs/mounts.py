"""What a container sees of this machine: which folders, at which paths, and which of them it may
write."""

from __future__ import annotations

import csv
import io
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from cosmos_reason.base.findings import bad_input
from cosmos_reason.jobs import engines, reward_files
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import hub
from cosmos_reason.spec import actions, document

# Folders of the image: what is mounted over them hides its programs. /workspace holds TAO's
# packages.
IMAGE_OWN = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc", "run", "sbin",
             "sys", "usr", "var", "workspace")  # fmt: skip
HOST = "/host"
MANY = 16  # more folders than this get one mount of what they have in common


def inside(path: Path | str) -> str:
    """Return the container's path of a path here: the same, so that what the work writes down is
    true outside as well, and below /host where the image has a folder of its own."""
    root_and_first = Path(path).parts[:2]
    if len(root_and_first) == 2 and root_and_first[1] in IMAGE_OWN:
        return f"{HOST}{path}"
    return str(path)


def places(job: Job, spec: dict) -> list[tuple[Path, bool]]:
    """Return the folders and files that the container has, each with whether it may write there:
    the inputs are read, the job's folder and its outputs written. Raises Failure (exit 2) for media
    it could not show."""
    named = [entry["path"] for entry in job.inputs] + job.options.get("checkpoints", [])
    programs = {engines.programs(job)}
    if job.platform == "docker" and job.is_carried:
        programs = set()  # run.sh mounts its own copy
    own = visible(set(reward_files.files(spec)))
    script = Path(job.options.get("entry_script", ""))
    if script.is_absolute():  # it may import what lies beside it
        own.add(script.parent)
    inputs = {Path(path) for path in named if "://" not in path} | own
    # A link is followed in the container too: what it leads to has to be seen there.
    linked = set()
    for path in inputs:
        linked |= link_targets(path)
    readable = outermost({*inputs, *linked, *named_folders(job, spec), *programs})
    cache = hub_cache(job)
    shared = {cache} if cache else set()
    writable = outermost({job.folder, *map(Path, job.outputs.values()), *shared})
    return [(path, path in writable) for path in sorted(readable | writable)]


def hub_cache(job: Job) -> Path | None:
    """Return the user's cache of the Hub where the work sees it, so that no job downloads a model
    again; None where nobody said that it is there. The rest of HF_HOME holds tokens and stays
    here."""
    options = job.options
    cache = Path(os.path.abspath(hub.cache()))
    if job.is_carried:
        return None
    if job.platform == "docker":
        is_seen = options["docker_host"].startswith("unix:")
    elif job.platform == "slurm":  # inputs are fetched into it, or it was named: on shared storage
        named = any(os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE"))
        is_seen = named or any(entry["path"].startswith(f"{cache}/") for entry in job.inputs)
    else:
        volumes = options.get("kubernetes", {}).get("volume", [])
        is_seen = any(cache.is_relative_to(one.partition(":")[2]) for one in volumes)
    nearest = next(folder for folder in (cache, *cache.parents) if folder.exists())
    return cache if is_seen and os.access(nearest, os.W_OK) else None


def flags(job: Job, spec: dict) -> list[str]:
    """Return `--mount` flags of docker, whose values are lines of CSV."""
    words = []
    for path, is_writable in places(job, spec):
        fields = ["type=bind", f"source={path}", f"target={inside(path)}"]
        if not is_writable:
            fields.append("readonly")
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(fields)
        words += ["--mount", line.getvalue()]
    return words


def dataset_keys(action: str) -> list[actions.DataKeys]:
    """Return where the datasets are that an action reads."""
    found = [
        actions.data_keys(action),
        actions.validation_keys(action),
        actions.guard_keys(action),
    ]
    return [keys for keys in found if keys]


def named_folders(job: Job, spec: dict) -> set[Path]:
    """Return the folders of the media that annotations name by absolute paths, as they do where
    there is no media path."""
    found = set()
    path_of = {entry["role"]: entry["path"] for entry in job.inputs}
    for keys in dataset_keys(job.action):
        path = path_of.get(keys.annotations, "")
        is_read = path and "://" not in path and not document.get(spec, keys.media)
        if not is_read or not Path(path).exists():  # of a plan to carry it may be elsewhere
            continue
        from cosmos_reason.data import annotations

        samples, _ = annotations.read(path)
        for sample in samples:
            for medium in sample.media:
                found |= {Path(os.path.normpath(name)).parent for name in medium.names}
    return visible({path for path in found if path.is_absolute()})


def outermost(paths: Iterable[Path]) -> set[Path]:
    """Return the paths that lie in no other one of them."""
    kept: set[Path] = set()
    for path in sorted(set(paths)):
        if not kept.intersection(path.parents):
            kept.add(path)
    return kept


def visible(folders: set[Path]) -> set[Path]:
    """Return the folders without those inside others; where they are many, what they have in
    common. Raises Failure (exit 2) for one that an image has itself, where a container would look
    for it in vain."""
    found = outermost(folders)
    if len(found) > MANY:
        found = {Path(os.path.commonpath(found))}
    for path in sorted(found):
        is_root = path == path.parent
        if is_root or inside(path) != str(path):
            message = (
                "got media or a link's target in a folder that containers have themselves, "
                "expected them elsewhere; copy them to a data folder, and name them relative to it"
            )
            raise bad_input("JOB-MEDIA-HIDDEN", path, message)
    return found


def link_targets(path: Path) -> set[Path]:
    """Return the folders that symbolic links below `path` lead to, hop by hop, where they lead out
    of it. Raises Failure (exit 2) for links that a container could not follow; those that lead
    nowhere here either are left alone."""
    found: set[Path] = set()
    seen: set[Path] = set()
    waiting = list(_links(path)) if path.is_dir() else []
    while waiting:
        link = waiting.pop()
        if link in seen or not link.exists():
            continue
        seen.add(link)
        target = Path(os.path.normpath(link.parent / os.readlink(link)))
        if not os.path.lexists(target):  # a folder on the way to the link is a link itself
            where = link.parent.resolve()
            message = f"got a link that only works below {where}, expected that name in the spec"
            fix = f"readlink -f {shlex.quote(str(path))}"
            raise bad_input("JOB-MEDIA-HIDDEN", link, message, fix)
        if target.is_symlink():
            folder = target.parent
            waiting.append(target)
        elif target.is_dir():
            folder = target
            waiting += _links(target)
        else:
            folder = target.parent
        if path not in (folder, *folder.parents):
            found.add(folder)
    return visible(found)


def _links(folder: Path) -> Iterator[Path]:
    """Yield all symbolic links below a folder."""
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(place, name)
            if path.is_symlink():
                yield path
