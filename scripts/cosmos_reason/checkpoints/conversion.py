"""Writing a conversion: shards and small files into a folder that appears whole, verified, and is
found again later. Enter at `convert`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base.findings import (
    EXIT_CHECKS_FAILED,
    Failure,
    Finding,
    bad_input,
    error,
    info,
    outside,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import run_outputs, safetensors_files, tensor_numbers
from cosmos_reason.checkpoints.omni import Source
from cosmos_reason.checkpoints.safetensors_files import Copied, Tensor
from cosmos_reason.remote import model_names

PROVENANCE = "provenance.json"
REPORTED = ("source", "donor", "tensors", "dropped", "total_size")
CONVERTED, SKIPPED = "converted", "skipped_existing"
_LOADED = (".json", ".jinja", ".safetensors")
# Exit codes of docker itself: no daemon, no image, or no python3 in it.
_DOCKER_FAILED = (125, 127)


def convert(
    source: Source,
    output: Path,
    max_shard_bytes: int,
    force: bool,
    jobs: int,
    copied: Copied = lambda count: None,
    hashed: bool = False,
) -> str:
    """Write the converted folder, or find that it is there already; returns CONVERTED or SKIPPED.

    `output` appears when it is whole and verified. A run that was killed left its finished shards
    in a hidden sibling, and the next run goes on from them. `jobs` shards are copied at a time;
    `copied` hears of the bytes from any thread. `hashed` notes the SHA-256 of whole shards, and
    before a reuse compares every byte with the source. Raises Failure: a number of the source is
    not finite, the output is something else, is being written, does not fit.
    """
    output = Path(os.path.realpath(output))  # a link to a larger disk stays one
    folders = [source.folder]
    if source.supplied:
        folders.append(source.donor)
    for folder in folders:
        read = Path(os.path.realpath(folder))
        if read == output or read in output.parents or output in read.parents:
            raise bad_input("CKPT-OUTPUT-OVERLAPS", output, f"it overlaps {read}, which is read")
    if not _is_free(output) and not _is_model(output):
        message = "something stands there that is no plain model folder; not even --force "
        message += "replaces it"
        fix = Fix(flags={"--output-path": f"{output}-{source.layout.suffix}"})
        raise bad_input("CKPT-OUTPUT-FOREIGN", output, message, fix)
    if not force and _is_reusable(output, source, hashed):
        return SKIPPED
    keep = output.with_name(f".{output.name}{files.INCOMPLETE}{source.fingerprint[:12]}")
    with files.only_run(output, keep):
        if not force and _is_reusable(output, source, hashed):
            return SKIPPED
        # A sample lets single bad numbers through, which every answer of the model would carry.
        broken = tensor_numbers.check_numbers(source.tensors, whole=True)
        if broken:
            raise Failure(broken, EXIT_CHECKS_FAILED)
        with files.whole_folder(output, keep) as work:
            _fill(work, source, _shards(source.tensors, max_shard_bytes), jobs, copied)
            donor = None
            if source.supplied:
                donor = {**_origin(source.donor), "supplied": list(source.supplied)}
            provenance = {
                "schema_version": 1,
                "mapping_version": source.layout.version,
                "source": {**_origin(source.folder), "fingerprint": source.fingerprint},
                "donor": donor,
                "tensors": len(source.tensors),
                "dropped": source.dropped,
                "total_size": source.total_size,
                "files": {path.name: _facts(path, hashed) for path in sorted(work.iterdir())},
            }
            files.write_json(work / PROVENANCE, provenance)
            findings = check_output(work, source.fingerprint)
            if findings:
                shutil.rmtree(work)
                raise Failure(findings, EXIT_CHECKS_FAILED)
    return CONVERTED


# -- what may stand where the output goes ------------------------------------------------------


def _is_free(output: Path) -> bool:
    return not os.path.lexists(output) or (output.is_dir() and not any(output.iterdir()))


def _is_model(output: Path) -> bool:
    """Return whether nothing but a model would be lost."""
    if not output.is_dir() or any(path.is_dir() for path in output.iterdir()):
        return False
    if "mapping_version" in model_names.read_table(output / PROVENANCE):
        return True
    return {"model_type", "architectures"} <= model_names.read_table(output / "config.json").keys()


def _is_reusable(output: Path, source: Source, hashed: bool) -> bool:
    """Return True for a whole conversion of this source, False where nothing stands. Raises
    Failure for anything else."""
    if _is_free(output):
        return False
    findings = check_output(output, source.fingerprint)
    if hashed and not findings:
        tensors, _ = safetensors_files.read_folder(output)
        for name, tensor in tensors.items():
            if _sha256(tensor) != _sha256(source.tensors[name]):
                message = f"{name} has other bytes than the source"
                findings.append(error("CKPT-FILE-CHANGED", tensor.file, message))
    if findings:
        message = "a model folder stands there that is not this conversion (--force replaces it)"
        occupied = error("CKPT-OUTPUT-EXISTS", output, message)
        raise Failure([occupied, *findings], EXIT_CHECKS_FAILED)
    return True


def _sha256(tensor: Tensor) -> str:
    digest = hashlib.sha256()
    for chunk in safetensors_files.read_chunks(tensor):
        digest.update(chunk)
    return digest.hexdigest()


# -- provenance --------------------------------------------------------------------------------


def check_output(folder: Path, fingerprint: str | None = None) -> list[Finding]:
    """Return whether a converted folder is whole: provenance, every file it lists and no other that
    a loader reads, headers, names and shapes."""
    try:
        provenance = safetensors_files.read_object(folder / PROVENANCE)
        for key in REPORTED:
            provenance[key]
        made_of = provenance["source"]
        for key in ("path", "commit"):
            made_of[key]
        source_fingerprint = made_of["fingerprint"]
        # Files that differ from what is listed, and files a loader reads that are not listed.
        listed = provenance["files"]
        found = {path.name for path in folder.iterdir() if path.suffix in _LOADED}
        changed = found - listed.keys() - {PROVENANCE}
        for name, facts in listed.items():
            if not _facts(folder / name, hashed=False).items() <= facts.items():
                changed.add(name)
    except Failure as failure:
        return failure.findings
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as problem:
        message = f"it is no provenance file: {problem!r}"
        return [error("CKPT-PROVENANCE-BAD", folder / PROVENANCE, message)]
    message = "its content is not what provenance.json lists"
    findings = [error("CKPT-FILE-CHANGED", folder / name, message) for name in sorted(changed)]
    if fingerprint not in (None, source_fingerprint):
        message = (
            "it is the conversion of another source, of one that was changed since, "
            "or of an older mapping"
        )
        findings.append(error("CKPT-OUTPUT-OTHER", folder, message))
    return findings + run_outputs.verify_model(folder)


def _origin(folder: Path) -> dict:
    """Return where a folder is and, in a Hub cache, its commit: the snapshot's folder name."""
    commit = folder.name if folder.parent.name == "snapshots" else None
    return {"path": str(folder), "commit": commit}


def _facts(path: Path, hashed: bool) -> dict:
    """Return size and SHA-256; of a shard that of its header, and only with `hashed` that of its 5
    GB too."""
    facts: dict = {"bytes": path.stat().st_size}
    is_shard = path.suffix == ".safetensors"
    if is_shard:
        with open(path, "rb") as handle:
            length = handle.read(8)
            header = handle.read(min(facts["bytes"], int.from_bytes(length, "little")))
        facts["header_sha256"] = hashlib.sha256(length + header).hexdigest()
    if hashed or not is_shard:
        facts["sha256"] = files.sha256(path)
    return facts


# -- writing -----------------------------------------------------------------------------------


def _shards(tensors: Mapping[str, Tensor], max_bytes: int) -> dict[str, dict[str, Tensor]]:
    """Return file name -> its tensors: in the order they lie on the disk, each file filled up to
    `max_bytes`."""
    groups: list[dict[str, Tensor]] = []
    room = 0
    for name in sorted(tensors, key=lambda name: (str(tensors[name].file), tensors[name].begin)):
        tensor = tensors[name]
        if not groups or tensor.nbytes > room:
            groups.append({})
            room = max_bytes
        groups[-1][name] = tensor
        room -= tensor.nbytes
    count = len(groups)
    return {
        f"model-{number:05}-of-{count:05}.safetensors": group
        for number, group in enumerate(groups, 1)
    }


def _fill(
    work: Path, source: Source, shards: Mapping[str, Mapping], jobs: int, copied: Copied
) -> None:
    """Write what is missing in `work`, where an earlier run may have left finished shards."""
    missing = dict(shards)
    done = 0
    for path in work.iterdir():
        # A shard gets its name only when it is on the disk, so its header tells whether it is the
        # one wanted.
        stored = None
        if path.name in shards:
            with contextlib.suppress(Failure):
                stored = safetensors_files.read_header(path)
        if stored is not None and _signature(stored) == _signature(shards[path.name]):
            done += sum(tensor.nbytes for tensor in missing.pop(path.name).values())
        else:
            path.unlink()
    copied(done)
    needed = source.total_size - done
    free = shutil.disk_usage(work).free
    if needed + sum(len(text) for text in source.texts.values()) > free:
        message = f"{free:,} bytes are free, {needed:,} are needed; free some, or choose another "
        message += "--output-path"
        raise outside("CKPT-DISK-FULL", work.parent, message)
    safetensors_files.copy_shards(work, missing, jobs, copied)
    for name, text in source.texts.items():
        (work / name).write_bytes(text)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    safetensors_files.write_index(work, weight_map, source.total_size)


def _signature(tensors: Mapping[str, Tensor]) -> list[tuple]:
    return [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]


# -- judged by transformers itself -------------------------------------------------------------


def validate(folder: Path, image: str | None) -> Finding:
    """Let transformers itself read the folder: config, tokenizer, processor, and the names and
    shapes of its own model.

    It runs in a container of `image` without network, or with this Python when `image` is None.
    """
    program = bundle.ROOT / "scripts/cosmos_reason/engine/loadable.py"
    code = program.read_text(encoding="utf-8")
    family = model_names.known_family(str(folder))
    expected = [family.model_type, "of-class" if family.saved_by_class else "of-layout"]
    if image:
        where = image
        command = ["docker", "run", "--rm", "--network", "none"]
        command += ["-v", f"{folder.resolve()}:/converted:ro", "--entrypoint", "python3"]
        command += [image, "-c", code, "/converted", *expected]
    else:
        where = sys.executable
        command = [sys.executable, "-c", code, str(folder), *expected]
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=offline)
    except FileNotFoundError:
        message = "there is no docker command to run the image"
        raise outside("CKPT-NO-DOCKER", where, message) from None
    lines = done.stderr.strip().splitlines() or ["no message"]
    if image and done.returncode in _DOCKER_FAILED:
        message = f"the image did not run: {lines[0][:300]}"
        raise outside("CKPT-DOCKER-FAILED", where, message)
    if done.returncode:
        message = f"transformers does not read {folder}: {lines[-1][:300]}"
        return error("CKPT-NOT-LOADABLE", where, message)
    return info("CKPT-LOADABLE", where, done.stdout.strip().splitlines()[-1])
