"""Writing a conversion: shards and small files into a folder that appears whole, verified, and is found again later."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cosmos_reason import bundle, omni, qwen3_vl, safetensors_files, storage
from cosmos_reason.findings import EXIT_CHECKS_FAILED, Failure, Finding, bad_input, error, info, outside
from cosmos_reason.omni import Source
from cosmos_reason.safetensors_files import Copied, Tensor

PROVENANCE = "provenance.json"
CONVERTED, SKIPPED = "converted", "skipped_existing"


class Progress:
    """Bytes written so far, on stderr: a line that moves on a terminal, a line every few seconds elsewhere."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.started = self.shown = time.monotonic()

    def __call__(self, count: int) -> None:
        self.done += count
        now, on_terminal = time.monotonic(), sys.stderr.isatty()
        ends = on_terminal and self.done >= self.total
        if now - self.shown < (0.2 if on_terminal else 5) and not ends:
            return
        self.shown = now
        speed = self.done / max(now - self.started, 1e-6)
        left = (self.total - self.done) / speed
        line = f"{self.done / self.total:4.0%} of {self.total / 1e9:.1f} GB, {speed / 1e6:,.0f} MB/s, {left:.0f} s left"
        print(
            f"\r{line:60}" if on_terminal else line,
            end="" if on_terminal and not ends else "\n",
            file=sys.stderr,
            flush=True,
        )


def convert(
    source: Source, output: Path, max_shard_bytes: int, force: bool, jobs: int, copied: Copied = lambda count: None
) -> str:
    """Write the Qwen3-VL folder, or find that it is there already; returns CONVERTED or SKIPPED.

    `output` appears when it is whole and verified. A run that was killed left its finished shards in a hidden sibling,
    and the next run goes on from them. `jobs` shards are copied at a time; `copied` hears of the bytes from any thread.
    Raises Failure: the output is something else, is being written, does not fit.
    """
    _refuse_output(source.folder, output, force)
    if not force and _is_reusable(output, source.fingerprint):
        return SKIPPED
    with _only_run(output):
        if not force and _is_reusable(output, source.fingerprint):
            return SKIPPED
        work = output.with_name(f".{output.name}{storage.INCOMPLETE}{source.fingerprint[:12]}")
        for stale in output.parent.glob(f".{output.name}{storage.INCOMPLETE}*"):
            if stale.is_dir() and stale != work:
                shutil.rmtree(stale)
        work.mkdir(exist_ok=True)
        try:
            _fill(work, source, _shards(source.tensors, max_shard_bytes), jobs, copied)
            findings = check_output(work, source.fingerprint)
            if findings:
                raise Failure(findings, EXIT_CHECKS_FAILED)
            _publish(work, output)
        except Exception:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return CONVERTED


def _refuse_output(source: Path, output: Path, force: bool) -> None:
    source, target = source.resolve(), output.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise bad_input("CKPT-OUTPUT-OVERLAPS", output, f"got an output that overlaps the source {source}")
    is_model = (output / "config.json").is_file() or (output / PROVENANCE).is_file()
    if force and not is_model and not _is_free(output):
        message = "got something that is no model folder, expected one: --force deletes nothing else"
        raise bad_input("CKPT-OUTPUT-FOREIGN", output, message, "choose another --output-path")


def _is_free(output: Path) -> bool:
    return not output.exists() or (output.is_dir() and not any(output.iterdir()))


def _is_reusable(output: Path, fingerprint: str) -> bool:
    """True for a whole conversion of this very source, False where nothing stands. Raises Failure for anything else."""
    if _is_free(output):
        return False
    findings = check_output(output, fingerprint)
    if findings:
        message = "got a folder that is not this conversion, expected none"
        fix = "add --force to replace it, or choose another --output-path"
        raise Failure([error("CKPT-OUTPUT-EXISTS", output, message, fix), *findings], EXIT_CHECKS_FAILED)
    return True


def check_output(folder: Path, fingerprint: str | None = None) -> list[Finding]:
    """Whether a converted folder is whole: provenance, every file it lists, headers, names and shapes."""
    try:
        provenance = storage.read_json(folder / PROVENANCE)
        made_from, listed = provenance["source"]["fingerprint"], provenance["files"]
        config = storage.read_json(folder / "config.json")
        wrong = [name for name, facts in listed.items() if _facts(folder / name) != facts]
    except Failure as failure:
        return failure.findings
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as problem:
        return [error("CKPT-PROVENANCE-BAD", folder / PROVENANCE, f"got {problem!r}, expected a provenance file")]
    findings = [error("CKPT-FILE-CHANGED", folder / name, "got other content than provenance lists") for name in wrong]
    if fingerprint not in (None, made_from):
        findings.append(error("CKPT-OUTPUT-OTHER", folder, "got the conversion of another source or an older mapping"))
    tensors, tensor_findings = safetensors_files.read_folder(folder)
    findings += tensor_findings
    return findings or qwen3_vl.compare(str(folder), config, {name: tensor.shape for name, tensor in tensors.items()})


def hub_commit(output: Path, repo: str) -> str | None:
    """The commit of Hub model `repo` that a whole conversion at `output` was made from, None for anything else.

    It lets a conversion be reused when the 30 GB it was made from have left the Hub cache.
    """
    if not (output / PROVENANCE).is_file() or check_output(output):
        return None
    source = storage.read_json(output / PROVENANCE)["source"]
    cached_as = (f"models--{repo.replace('/', '--')}", "snapshots", source["commit"])
    return source["commit"] if Path(source["path"]).parts[-3:] == cached_as else None


def _facts(path: Path) -> dict:
    """Size and SHA-256; of a shard only its header is hashed (reading 17 GB to reuse them would defeat the reuse)."""
    size = path.stat().st_size
    with open(path, "rb") as handle:
        if path.suffix == ".safetensors":
            length = handle.read(8)
            header = handle.read(min(size, int.from_bytes(length, "little")))
            return {"bytes": size, "header_sha256": hashlib.sha256(length + header).hexdigest()}
        return {"bytes": size, "sha256": hashlib.file_digest(handle, "sha256").hexdigest()}


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


def _fill(work: Path, source: Source, shards: Mapping[str, Mapping[str, Tensor]], jobs: int, copied: Copied) -> None:
    done = {file for file, tensors in shards.items() if _is_finished(work / file, tensors)}
    for path in work.iterdir():
        if path.name not in done:
            path.unlink()
    for file in done:
        copied(sum(tensor.nbytes for tensor in shards[file].values()))
    missing = {file: tensors for file, tensors in shards.items() if file not in done}
    needed = sum(tensor.nbytes for tensors in missing.values() for tensor in tensors.values())
    free = shutil.disk_usage(work).free
    if needed + sum(map(len, source.texts.values())) > free:
        fix = "free space there, or choose another --output-path"
        raise outside("CKPT-DISK-FULL", work.parent, f"got {free:,} bytes free, expected {needed:,}", fix)
    safetensors_files.copy_shards(work, missing, jobs, copied)
    for name, text in source.texts.items():
        (work / name).write_bytes(text)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    safetensors_files.write_index(work, weight_map, source.total_size)
    storage.write_json(work / PROVENANCE, _provenance(work, source))


def _is_finished(path: Path, tensors: Mapping[str, Tensor]) -> bool:
    """A shard gets its name only when it is on the disk, so its header tells whether it is the one wanted."""
    try:
        found = safetensors_files.read_header(path)
    except Failure:
        return False
    return [(n, t.dtype, t.shape) for n, t in found.items()] == [(n, t.dtype, t.shape) for n, t in tensors.items()]


def _provenance(work: Path, source: Source) -> dict:
    return {
        "schema_version": 1,
        "mapping_version": omni.MAPPING_VERSION,
        "source": {**_origin(source.folder), "layout": source.layout, "fingerprint": source.fingerprint},
        "donor": {**_origin(source.donor), "supplied": list(source.supplied)} if source.supplied else None,
        "tensors": len(source.tensors),
        "dropped": source.dropped,
        "total_size": source.total_size,
        "files": {path.name: _facts(path) for path in sorted(work.iterdir())},
    }


def _origin(folder: Path) -> dict:
    """Where a folder is and, in a Hub cache, its commit: the snapshot's folder name."""
    return {"path": str(folder), "commit": folder.name if folder.parent.name == "snapshots" else None}


def _publish(work: Path, output: Path) -> None:
    """Give the finished folder its name. What stood there is moved away first, and deleted last."""
    old = storage.temporary_name(output)
    if output.exists():
        os.replace(output, old)
    os.replace(work, output)
    if old.exists():
        shutil.rmtree(old)


@contextmanager
def _only_run(output: Path) -> Iterator[None]:
    """Hold the lock of `output`, a hidden sibling that goes away with the run. Raises Failure when another holds it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    path = output.with_name(f".{output.name}{storage.INCOMPLETE}lock")
    while True:
        handle = open(path, "w")  # noqa: SIM115
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                break
        except BlockingIOError:
            handle.close()
            raise outside("CKPT-OUTPUT-BUSY", output, "got another run that is writing it", "wait for it") from None
        except FileNotFoundError:
            pass
        handle.close()  # the run that held this lock has just removed it: take the next one
    try:
        yield
    finally:
        path.unlink()
        handle.close()


def validate(folder: Path, image: str | None) -> Finding:
    """Let transformers itself read the folder: config, tokenizer, processor, and the names and shapes of its own model.

    It runs in a container of `image` without network, or with this Python when `image` is None.
    """
    code = (bundle.ROOT / "scripts/cosmos_reason/transformers_engine/loadable.py").read_text(encoding="utf-8")
    command = [sys.executable, "-c", code, str(folder)]
    if image:
        mount = ["-v", f"{folder.resolve()}:/converted:ro"]
        command = ["docker", "run", "--rm", "--network", "none", *mount, "--entrypoint", "python3", image]
        command += ["-c", code, "/converted"]
    where = image or sys.executable
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
