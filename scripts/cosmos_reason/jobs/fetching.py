"""What a job's spec names on the Hub, on S3 or in an archive, as files and folders that the work
can open. Enter at `staged`."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import files, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.jobs import inputs
from cosmos_reason.jobs.mounts import dataset_keys
from cosmos_reason.jobs.options import Launch
from cosmos_reason.media import archives
from cosmos_reason.media import files as media
from cosmos_reason.remote import hub, model_names, s3
from cosmos_reason.rules import checking as rules
from cosmos_reason.spec import document


def staged(launch: Launch) -> Launch:
    """Fetch and unpack what is not a file or folder here. Return the launch with the places in its
    spec, and its inputs with place, source and fingerprint. Each content is fetched once. Raises
    Failure."""
    found = []
    # Which media are to be fetched the annotations say.
    annotations_first = sorted(launch.inputs, key=lambda entry: "annotation" not in entry["role"])
    for entry in annotations_first:
        role, source = entry["role"], entry["path"]
        path = _fetched(launch, role, source) if "://" in source else Path(source)
        if role in document.keys(launch.action):  # a script of somebody's own reads its own
            path = Path(archives.media_folder(path))
        launch = _at(launch, role, path)
        moved = str(path) != source
        if moved and inputs.is_model(launch, role):
            _refuse_model(launch, inputs.of_model(launch, role, path))
        known = None  # where the path is only on the machine that runs the work
        if path.exists():
            known = inputs.fingerprint(path)
        kept = {"role": role, "path": str(path), "fingerprint": known}
        if moved:
            from_hub = source.startswith(model_names.HUB)
            kept["source"] = f"{source}@{path.name}" if from_hub else source
        found.append(kept)
    return replace(launch, inputs=found)


def cache_of(source: str) -> Path | None:
    """Return the folder of this machine that an input is fetched or unpacked into, None for one
    that is read where it lies."""
    if source.startswith(model_names.HUB):
        return hub.cache()
    is_kept = source.startswith(s3.SCHEME) or archives.is_archive(source)
    return files.cache_folder() if is_kept else None


def _fetched(launch: Launch, role: str, source: str) -> Path:
    """Return the local copy of a Hub model or of something on S3."""
    if inputs.is_model(launch, role):  # its config first, which may be enough to refuse it
        _refuse_model(_at(launch, role, hub.fetch_model(source, ["config.json"], role)), [])
        return hub.fetch_model(source, ["*"], role)
    from cosmos_reason.data import annotations

    for keys in dataset_keys(launch.action):
        if role == keys.annotations:
            _, path = annotations.fetch(source)
            return path
        if role == keys.media and not archives.is_archive(source):
            # What the annotations name, or the archive in a root that holds it.
            samples, _ = annotations.read(document.get(launch.spec, keys.annotations))
            named = [medium for sample in samples for medium in sample.media]
            archive = archives.in_root(source, named[0].kind, named[0].path) if named else None
            if archive:
                return s3.local(archive)
            written = {name for medium in named for name in medium.names}
            names = {os.path.normpath(media.resolve("", name)) for name in written}
            return s3.snapshot(source, ["*"], names)
    found = s3.head(source)
    return s3.fetch(found) if found else s3.snapshot(source, ["*"])


def _at(launch: Launch, role: str, path: Path) -> Launch:
    """Return the launch with one of its inputs at another path."""
    spec = copy.deepcopy(launch.spec)
    document.set_value(spec, role, str(path))
    return replace(launch, spec=spec)


def _refuse_model(launch: Launch, found: list[Finding]) -> None:
    """Raise Failure for what was found of a model, and for what the rules say of the spec now that
    it is here: of an Omni checkpoint, above all."""
    has_own_data = launch.own_script is not None
    found += rules.check(
        launch.action, launch.engine, launch.spec, launch=True, has_own_data=has_own_data
    )
    if findings.has_errors(found):
        raise findings.Failure(found, findings.EXIT_CHECKS_FAILED)
