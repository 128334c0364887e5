"""Writing a conversion: shards and small files into a folder that appears whole, verified, and is found again later."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cosmos_reason import bundle, checkpoints, models, omni, safetensors_files, storage
from cosmos_reason.findings import EXIT_CHECKS_FAILED, Failure, Finding, bad_input, error, info, outside
from cosmos_reason.omni import Source
from cosmos_reason.safetensors_files import Copied, Tensor

PROVENANCE = "provenance.json"
TOLD = ("source", "donor", "tensors", "dropped", "total_size")
_LOADED = (".json", ".jinja", ".safetensors")
CONVERTED, SKIPPED = "converted", "skipped_existing"


def convert(
    source: Source,
    output: Path,
    max_shard_bytes: int,
    force: bool,
    jobs: int,
    copied: Copied = lambda count: None,
    hashed: bool = False,
) -> str:
    """Write the Qwen3-VL folder, or find that it is there already; returns CONVERTED or SKIPPED.

    `output` appears when it is whole and verified. A run that was killed left its finished shards in a hidden sibling,
    and the next run goes on from them. `jobs` shards are copied at a time; `copied` hears of the bytes from any thread.
    `hashed` notes the SHA-256 of whole shards, and before a reuse compares every byte with the source.
    Raises Failure: the output is something else, is being written, does not fit.
    """
    output = Path(os.path.realpath(output))  # a link to a larger disk stays one
    _refuse_output(source, output)
    if not force and _is_reusable(output, source, hashed):
        return SKIPPED
    keep = output.with_name(f".{output.name}{storage.INCOMPLETE}{source.fingerprint[:12]}")
    with storage.only_run(output, keep):
        if not force and _is_reusable(output, source, hashed):
            return SKIPPED
        with storage.whole_folder(output, keep) as work:
            _fill(work, source, _shards(source.tensors, max_shard_bytes), jobs, copied)
            storage.write_json(work / PROVENANCE, _provenance(work, source, hashed))
            if findings := check_output(work, source.fingerprint):
                shutil.rmtree(work)
                raise Failure(findings, EXIT_CHECKS_FAILED)
    return CONVERTED


def _refuse_output(source: Source, output: Path) -> None:
    for folder in (source.folder, *([source.donor] if source.supplied else [])):
        read = Path(os.path.realpath(folder))
        if read == output or read in output.parents or output in read.parents:
            raise bad_input("CKPT-OUTPUT-OVERLAPS", output, f"got an output that overlaps {read}, which is read")
    if not _is_free(output) and not _is_model(output):
        message = "got something that is no plain model folder, expected nothing there: not even --force replaces it"
        raise bad_input("CKPT-OUTPUT-FOREIGN", output, message, f"--output-path {output}-qwen3-vl")


def _is_free(output: Path) -> bool:
    return not os.path.lexists(output) or (output.is_dir() and not any(output.iterdir()))


def _is_model(output: Path) -> bool:
    """Whether nothing but a model would be lost."""
    if not output.is_dir() or any(path.is_dir() for path in output.iterdir()):
        return False
    told, config = (models.read_table(output / name) for name in (PROVENANCE, "config.json"))
    return "mapping_version" in told or {"model_type", "architectures"} <= config.keys()


def _is_reusable(output: Path, source: Source, hashed: bool) -> bool:
    """True for a whole conversion of this very source, False where nothing stands. Raises Failure for anything else."""
    if _is_free(output):
        return False
    findings = check_output(output, source.fingerprint)
    if hashed and not findings:
        for name, tensor in safetensors_files.read_folder(output)[0].items():
            if _sha256(tensor) != _sha256(source.tensors[name]):
                findings.append(error("CKPT-FILE-CHANGED", tensor.file, f"got other bytes of {name} than the source"))
    if findings:
        message = "got a model folder that is not this conversion, expected none (--force replaces it)"
        raise Failure([error("CKPT-OUTPUT-EXISTS", output, message, "--force"), *findings], EXIT_CHECKS_FAILED)
    return True


def _sha256(tensor: Tensor) -> str:
    digest = hashlib.sha256()
    for chunk in safetensors_files.read_chunks(tensor):
        digest.update(chunk)
    return digest.hexdigest()


def check_output(folder: Path, fingerprint: str | None = None) -> list[Finding]:
    """Whether a converted folder is whole: provenance, every file it lists and no other that a loader reads, headers,
    names and shapes."""
    try:
        provenance = safetensors_files.read_object(folder / PROVENANCE)
        _, listed = [provenance[key] for key in TOLD], provenance["files"]
        made_from, _, _ = (provenance["source"][key] for key in ("fingerprint", "path", "commit"))
        wrong = {path.name for path in folder.iterdir() if path.suffix in _LOADED} - {PROVENANCE} - listed.keys()
        for name, stated in listed.items():
            if not _facts(folder / name, hashed=False).items() <= stated.items():
                wrong.add(name)
    except Failure as failure:
        return failure.findings
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as problem:
        return [error("CKPT-PROVENANCE-BAD", folder / PROVENANCE, f"got {problem!r}, expected a provenance file")]
    changed = "got other content than provenance lists"
    findings = [error("CKPT-FILE-CHANGED", folder / name, changed) for name in sorted(wrong)]
    if fingerprint not in (None, made_from):
        message = "got the conversion of another source, of one that was changed since, or of an older mapping"
        findings.append(error("CKPT-OUTPUT-OTHER", folder, message))
    return findings + checkpoints.verify_model(folder)


def _facts(path: Path, hashed: bool) -> dict:
    """Size and SHA-256; of a shard that of its header, and only with `hashed` that of its 5 GB too."""
    facts: dict = {"bytes": path.stat().st_size}
    if path.suffix == ".safetensors":
        with open(path, "rb") as handle:
            length = handle.read(8)
            header = handle.read(min(facts["bytes"], int.from_bytes(length, "little")))
        facts["header_sha256"] = hashlib.sha256(length + header).hexdigest()
    return facts | ({"sha256": storage.sha256(path)} if hashed or path.suffix != ".safetensors" else {})


def _shards(tensors: Mapping[str, Tensor], max_bytes: int) -> dict[str, dict[str, Tensor]]:
    """File name -> its tensors: in the order they lie on the disk, each file filled up to `max_bytes`."""
    groups: list[dict[str, Tensor]] = []
    room = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (str(item[1].file), item[1].begin)):
        if not groups or tensor.nbytes > room:
            groups.append({})
            room = max_bytes
        groups[-1][name] = tensor
        room -= tensor.nbytes
    return {f"model-{n:05}-of-{len(groups):05}.safetensors": group for n, group in enumerate(groups, 1)}


def _fill(work: Path, source: Source, shards: Mapping[str, Mapping], jobs: int, copied: Copied) -> None:
    missing = {file: tensors for file, tensors in shards.items() if not _is_finished(work / file, tensors)}
    for path in work.iterdir():
        if path.name in missing or path.name not in shards:
            path.unlink()
    needed = sum(tensor.nbytes for tensors in missing.values() for tensor in tensors.values())
    copied(source.total_size - needed)
    if needed + sum(map(len, source.texts.values())) > (free := shutil.disk_usage(work).free):
        fix = "free space there, or choose another --output-path"
        raise outside("CKPT-DISK-FULL", work.parent, f"got {free:,} bytes free, expected {needed:,}", fix)
    safetensors_files.copy_shards(work, missing, jobs, copied)
    for name, text in source.texts.items():
        (work / name).write_bytes(text)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    safetensors_files.write_index(work, weight_map, source.total_size)


def _is_finished(path: Path, tensors: Mapping[str, Tensor]) -> bool:
    """A shard gets its name only when it is on the disk, so its header tells whether it is the one wanted."""
    try:
        found = safetensors_files.read_header(path)
    except Failure:
        return False
    return [(n, t.dtype, t.shape) for n, t in found.items()] == [(n, t.dtype, t.shape) for n, t in tensors.items()]


def _provenance(work: Path, source: Source, hashed: bool) -> dict:
    return {
        "schema_version": 1,
        "mapping_version": omni.MAPPING_VERSION,
        "source": {**_origin(source.folder), "fingerprint": source.fingerprint},
        "donor": {**_origin(source.donor), "supplied": list(source.supplied)} if source.supplied else None,
        "tensors": len(source.tensors),
        "dropped": source.dropped,
        "total_size": source.total_size,
        "files": {path.name: _facts(path, hashed) for path in sorted(work.iterdir())},
    }


def _origin(folder: Path) -> dict:
    """Where a folder is and, in a Hub cache, its commit: the snapshot's folder name."""
    return {"path": str(folder), "commit": folder.name if folder.parent.name == "snapshots" else None}


def validate(folder: Path, image: str | None) -> Finding:
    """Let transformers itself read the folder: config, tokenizer, processor, and the names and shapes of its own model.

    It runs in a container of `image` without network, or with this Python when `image` is None.
    """
    code = (bundle.ROOT / "scripts/cosmos_reason/transformers_engine/loadable.py").read_text(encoding="utf-8")
    where, command = sys.executable, [sys.executable, "-c", code, str(folder)]
    if image:
        mount = ["-v", f"{folder.resolve()}:/converted:ro", "--entrypoint", "python3"]
        where, command = image, ["docker", "run", "--rm", "--network", "none", *mount, image, "-c", code, "/converted"]
    try:
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=offline)
    except FileNotFoundError:
        raise outside("CKPT-NO-DOCKER", where, "got no docker command, expected one to run the image") from None
    lines = done.stderr.strip().splitlines() or ["no message"]
    if image and done.returncode in (125, 127):  # docker's own failures: no daemon, no image, no python3 in it
        raise outside("CKPT-DOCKER-FAILED", where, f"got {lines[0][:300]}, expected the image to run")
    if done.returncode:
        return error("CKPT-NOT-LOADABLE", where, f"got {lines[-1][:300]}, expected transformers to read {folder}")
    return info("CKPT-LOADABLE", where, done.stdout.strip().splitlines()[-1])
