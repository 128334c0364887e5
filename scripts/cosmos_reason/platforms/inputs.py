"""What a spec names, as files and folders that the work can open: relative names, Hub models, S3 objects, archives."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import shlex
import tarfile
import tempfile
import zlib
from pathlib import Path

from cosmos_reason import annotations, bundle, checkpoints, hub, media, models, rules, s3, storage
from cosmos_reason import findings as f
from cosmos_reason import spec as specs
from cosmos_reason.platforms.mounts import MEDIA_KEYS
from cosmos_reason.spec_values import set_flag

ARCHIVES = (".tar", ".tar.gz", ".tgz")


def resolve(request, folder: Path, spec: dict) -> tuple[list[dict], dict[str, str]]:
    """Make the paths in `spec` absolute; an empty output goes into the job's `folder`. Returns the inputs as they are
    recorded, and the outputs by name. What is not here yet has its name as its path."""
    inputs, outputs = [], {}
    own = bundle.skill_info()["spec_params"][request.action]["model"]
    for key, schema in specs.keys(request.action).items():
        kind, value = schema.get("x-path"), specs.get(spec, key, "")
        if kind == "model" and (request.endpoint or (request.checkpoints and key == own)):
            continue  # only a name, for a server; or not read, since checkpoints take its place
        if kind == "output" and request.engine in schema["x-engines"] and value == "":
            value = str(folder / "results")
        if not kind or not isinstance(value, str) or not value:
            continue
        if "://" not in value:
            written = Path(value).expanduser() if value.startswith("~/") else value
            path = Path(os.path.normpath(request.working_dir / written))
            on_hub = kind == "model" and models.HUB_NAME.fullmatch(value) and not path.exists()
            value = models.HUB + value if on_hub else str(path)
        specs.set_value(spec, key, value)
        if kind == "output":
            outputs[key.rpartition(".")[2]] = value
        else:
            inputs.append({"role": key, "path": value, "fingerprint": None})
    return inputs, outputs


# -- what can be said before anything is fetched -----------------------------------------------------------------------


def check(request, spec: dict, inputs: list[dict]) -> list[f.Finding]:
    found = []
    for entry in inputs:
        path = Path(entry["path"])
        if entry["path"].startswith((s3.SCHEME, models.HUB)):
            found.append(f.info("JOB-FETCHED", entry["path"], f"submit fetches what {entry['role']} names, once"))
        elif "://" in entry["path"]:
            continue  # which the rules refuse
        elif not path.exists():
            message = f"got no such file or folder, expected what {entry['role']} names, on the machine that launches"
            there = next(folder for folder in path.parents if folder.is_dir())
            fix = f"ls {shlex.quote(str(there))}" if there.parent != there else ""
            found.append(f.error("JOB-INPUT-MISSING", path, message, fix))
        elif specs.keys(request.action)[entry["role"]].get("x-path") == "model":
            found += _model_findings(request, spec, entry["role"], path)
    return found


def _model_findings(request, spec: dict, role: str, path: Path) -> list[f.Finding]:
    """A folder that holds no usable model, or an adapter where a model is meant, ends hours later or not at all."""
    if not path.is_dir() or not any(path.iterdir()):
        return [f.error("JOB-MODEL-EMPTY", path, f"got no folder with files in it, expected the model of {role}")]
    if models.family(str(path))[1]:
        return []  # an Omni checkpoint, of which the rules speak, as of an adapter without its flag
    params = bundle.skill_info()["spec_params"][request.action]
    is_adapter = checkpoints.kind(path) == checkpoints.ADAPTER
    flag = params.get("adapter") if role == params["model"] else None
    if flag and specs.get(spec, flag, False) and not is_adapter:
        message = f"got true for a full model ({path}), expected it for a LoRA adapter only"
        return [f.error("JOB-ADAPTER-FLAG", flag, message, set_flag(flag, False))]
    if is_adapter and role != params["model"]:
        return [f.error("JOB-MODEL-ADAPTER", path, f"got a LoRA adapter, expected a full model as {role}")]
    return [finding for finding in checkpoints.verify(path) if f.has_errors([finding])]


def models_below(folders: list[str] | None) -> list[str] | None:
    """The model folders that `--checkpoint` names: each itself, or for a train output all its undamaged models. So that
    the evidence knows how many there are to be. Raises Failure (exit 2)."""
    found = []
    for folder in map(Path, folders or ()):
        if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            found.append(folder)
            continue
        below = [c.path for c in checkpoints.find(folder) if c.kind != checkpoints.RESUME and c.complete]
        if not below:
            fix = f"scripts/select_checkpoint.py {shlex.quote(str(folder))}"
            raise f.bad_input("JOB-CHECKPOINT", folder, "got no undamaged model, expected one or a train output", fix)
        found += below
    return [str(path) for path in dict.fromkeys(found)] or None


def check_outputs(request, folder: Path, spec: dict, inputs: list[dict]) -> list[f.Finding]:
    """Outputs that would make an input, or more than the job's own, writable to the work."""
    found, taken = [], {entry["path"]: entry["role"] for entry in inputs}
    wide = [folder, Path.home(), Path(tempfile.gettempdir()), bundle.ROOT]
    for key, schema in specs.keys(request.action).items():
        value = specs.get(spec, key)
        if schema.get("x-path") != "output" or request.engine not in schema["x-engines"] or not value:
            continue
        held = [place for place in wide if Path(value) in (place, *place.parents)]
        if held or value in taken:
            what = f"the folder that {taken[value]} names" if value in taken else f"a folder that holds {held[0]}"
            message = f"got {what}, expected one for {key} alone (none: a folder of the job)"
            found.append(f.error("JOB-OUTPUT-SHARED", value, message, set_flag(key, "")))
    return found


# -- fetching ----------------------------------------------------------------------------------------------------------


def stage(request, spec: dict, inputs: list[dict]) -> list[dict]:
    """Fetch and unpack what is not a file or folder here, write its place into `spec`, and return the inputs with their
    places, sources and fingerprints. Each content is fetched once. Raises Failure."""
    staged = []
    for entry in sorted(inputs, key=lambda entry: "annotation" not in entry["role"]):
        role, source = entry["role"], entry["path"]
        is_model = specs.keys(request.action)[role].get("x-path") == "model"
        path = _fetched(request, spec, role, source, is_model) if "://" in source else Path(source)
        if str(path).endswith(ARCHIVES) and path.is_file():
            path = unpacked(path)
        specs.set_value(spec, role, str(path))
        if is_model and str(path) != source:
            _refuse(request, spec, _model_findings(request, spec, role, path))
        made = {"role": role, "path": str(path), "fingerprint": fingerprint(path)}
        if str(path) != source:
            made["source"] = f"{source}@{path.name}" if source.startswith(models.HUB) else source
        staged.append(made)
    return staged


def _fetched(request, spec: dict, role: str, source: str, is_model: bool) -> Path:
    if is_model:  # its config first, which may be enough to refuse it
        specs.set_value(spec, role, str(hub.fetch_model(source, ["config.json"], role)))
        _refuse(request, spec)
        return hub.fetch_model(source, ["*"], role)
    table, _, last = role.rpartition(".")
    if last == "annotation_path":
        return annotations.fetch(source)[1]
    if MEDIA_KEYS.get(table) == last and not source.endswith(ARCHIVES):
        samples, _ = annotations.read(specs.get(spec, f"{table}.annotation_path"))
        names = {os.path.normpath(media.resolve("", medium.path)) for sample in samples for medium in sample.media}
        return s3.snapshot(source, ["*"], names)
    found = s3.head(source)
    return s3.fetch(found) if found else s3.snapshot(source, ["*"])


def _refuse(request, spec: dict, found: list[f.Finding] | None = None) -> None:
    """Raises Failure for what there is to say of a model now that it is here: of an Omni checkpoint, above all."""
    found = (found or []) + rules.check(request.action, request.engine, spec, launch=True)
    if f.has_errors(found):
        raise f.Failure(found, f.EXIT_CHECKS_FAILED)


def unpacked(archive: Path) -> Path:
    """The folder of a tar archive's files, unpacked once per content. Raises Failure (exit 2) for an archive that is
    broken or whose members would land elsewhere."""
    facts = archive.stat()
    digest = hashlib.sha256(f"{archive.resolve()}\n{facts.st_size}\n{facts.st_mtime_ns}".encode()).hexdigest()[:24]
    folder = s3.cache().parent / "archives" / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        try:
            with storage.whole_folder(folder) as partial, tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
                tar.fileobj.seek(tar.offset)
                if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes it for the end
                    raise tarfile.ReadError("an archive that is cut off or damaged")
                while tar.fileobj.read(1 << 20):  # to the end, where the checksum is
                    pass
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as problem:
            raise f.bad_input("JOB-ARCHIVE", archive, f"got {problem}, expected an archive of ordinary files") from None
    return folder


def fingerprint(path: Path) -> str:
    """Changes when a file changes; of a folder, when the names or sizes directly in it change."""
    if path.is_file():
        return f"sha256:{storage.sha256(path)}"
    listing = sorted((entry.name, entry.stat().st_size if entry.is_file() else None) for entry in os.scandir(path))
    return f"listing:{hashlib.sha256(json.dumps(listing).encode()).hexdigest()}"
