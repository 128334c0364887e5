"""What a container sees of this machine: which folders, at which paths, and which of them it may write."""

from __future__ import annotations

import csv
import io
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from cosmos_reason import annotations, bundle
from cosmos_reason import spec as specs
from cosmos_reason.findings import bad_input

# Folders of the image: what is mounted over them hides its programs. /workspace holds TAO's packages.
IMAGE_OWN = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc", "run", "sbin", "sys", "usr", "var",
             "workspace")  # fmt: skip
HOST = "/host"
MANY = 16  # more folders than this get one mount of what they have in common
MEDIA_KEYS = {"custom.train_dataset": "media_path", "custom.val_dataset": "media_path", "dataset": "media_dir"}


def inside(path: Path | str) -> str:
    """The container's path of a path here: the same, so that what the work writes down is true outside as well, and
    below /host where the image has a folder of its own."""
    return f"{HOST}{path}" if Path(path).parts[1:2] and Path(path).parts[1] in IMAGE_OWN else str(path)


def flags(record: dict, spec: dict, folder: Path) -> list[str]:
    """`--mount` flags of docker, whose values are lines of CSV: the inputs are read, the job's folder and its outputs
    written. Raises Failure (exit 2) for media it could not show."""
    named = [entry["path"] for entry in record["inputs"]] + record["options"].get("checkpoints", [])
    inputs = [Path(path) for path in named if "://" not in path]
    linked = {target for path in inputs for target in link_targets(path)}
    media = named_folders(spec, record["inputs"])
    readable = outermost({*inputs, *linked, *media, bundle.ROOT})
    writable = outermost({folder, *map(Path, record["outputs"].values())})
    words = []
    for path in sorted(readable | writable):
        fields = ["type=bind", f"source={path}", f"target={inside(path)}"]
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(fields if path in writable else [*fields, "readonly"])
        words += ["--mount", line.getvalue()]
    return words


def named_folders(spec: dict, inputs: list[dict]) -> set[Path]:
    """The folders of the media that annotations name by absolute paths, as they do where there is no media path."""
    found = set()
    for entry in inputs:
        table, _, last = entry["role"].rpartition(".")
        if last != "annotation_path" or specs.get(spec, f"{table}.{MEDIA_KEYS[table]}") or "://" in entry["path"]:
            continue
        samples, _ = annotations.read(entry["path"])
        found |= {Path(os.path.normpath(medium.path)).parent for sample in samples for medium in sample.media}
    return visible({path for path in found if path.is_absolute()})


def outermost(paths: Iterable[Path]) -> set[Path]:
    """The paths that lie in no other one of them."""
    kept: set[Path] = set()
    for path in sorted(set(paths)):
        if not kept.intersection(path.parents):
            kept.add(path)
    return kept


def visible(folders: set[Path]) -> set[Path]:
    """The folders without those inside others; where they are many, what they have in common. Raises Failure (exit 2)
    for one that an image has itself, where a container would look for it in vain."""
    found = outermost(folders)
    found = {Path(os.path.commonpath(found))} if len(found) > MANY else found
    if hidden := sorted(path for path in found if path == path.parent or inside(path) != str(path)):
        message = "got media or a link's target in a folder that containers have themselves, expected them elsewhere"
        fix = "copy them to a data folder, and name them relative to it"
        raise bad_input("JOB-MEDIA-HIDDEN", hidden[0], message, fix)
    return found


def link_targets(path: Path) -> set[Path]:
    """The folders that symbolic links below `path` lead to, hop by hop, where they lead out of it. Raises Failure (exit
    2) for links that a container could not follow; those that lead nowhere here either are left alone."""
    found, seen, waiting = set(), set(), list(_links(path)) if path.is_dir() else []
    while waiting:
        link = waiting.pop()
        if link in seen or not link.exists():
            continue
        seen.add(link)
        target = Path(os.path.normpath(link.parent / os.readlink(link)))
        if not os.path.lexists(target):  # a folder on the way to the link is a link itself
            message = f"got a link that only works below {link.parent.resolve()}, expected that name in the spec"
            raise bad_input("JOB-MEDIA-HIDDEN", link, message, f"readlink -f {shlex.quote(str(path))}")
        folder = target if target.is_dir() and not target.is_symlink() else target.parent
        if path not in (folder, *folder.parents):
            found.add(folder)
        waiting += [target] if target.is_symlink() else _links(target) if target.is_dir() else []
    return visible(found)


def _links(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (path for name in folders + files if (path := Path(place, name)).is_symlink())
