"""What a spec names, as files and folders that the work can open: relative names, Hub models, S3
objects, archives."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tempfile
from pathlib import Path

from cosmos_reason.base import bundle, files, findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import run_outputs
from cosmos_reason.data import annotations
from cosmos_reason.evaluation import inference
from cosmos_reason.jobs import reward_files
from cosmos_reason.jobs.mounts import dataset_keys
from cosmos_reason.jobs.options import Launch
from cosmos_reason.media import archives
from cosmos_reason.media import files as media
from cosmos_reason.remote import hub, model_names, s3
from cosmos_reason.remote.machine import Host
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import placeholders
from cosmos_reason.spec import actions, document, own_paths


def resolve(launch: Launch) -> tuple[list[dict], dict[str, str]]:
    """Make the paths in the launch's spec absolute. Returns the inputs as they are recorded, and
    the outputs that have a place of their own, by name. What is not here yet has its name as its
    path."""
    inputs = []
    outputs = {}
    for key, schema in document.keys(launch.action).items():
        kind = schema.get("x-path")
        value = document.get(launch.spec, key, "")
        if not kind or _is_not_read(launch, key, kind):
            continue
        if not isinstance(value, str) or not value or placeholders.is_one(value, is_path=True):
            continue  # the rules refuse words that stand for a path
        value = _absolute(launch, kind, value)
        document.set_value(launch.spec, key, value)
        if kind == "output":
            outputs[key.rpartition(".")[2]] = value
        else:
            inputs.append({"role": key, "path": value, "fingerprint": None})
    reward_files.make_absolute(launch.spec, launch.working_dir)
    if not launch.own_script:
        return inputs, outputs
    # Somebody's own dataset script reads what it finds below `custom`.
    here, _ = own_paths.relative(launch.action, launch.spec, launch.working_dir)
    for key, path in here.items():
        document.set_value(launch.spec, key, path)
    for key, written in own_paths.absolute(launch.action, launch.spec).items():
        path = os.path.normpath(written)
        if not placeholders.is_one(path, is_path=True):
            inputs.append({"role": key, "path": path, "fingerprint": None})
    return inputs, outputs


def _is_not_read(launch: Launch, key: str, kind: str) -> bool:
    """Whether a key names a model that the work does not load: it is only a name for a server, or
    checkpoints take its place."""
    if kind != "model":
        return False
    own_model = actions.places(launch.action)["model"]
    return bool(launch.endpoint) or (bool(launch.checkpoints) and key == own_model)


def _absolute(launch: Launch, kind: str, written: str) -> str:
    """The absolute path of what a key names, or its address where it is not on this machine."""
    if "://" in written:
        return written
    expanded = Path(written).expanduser() if written.startswith("~/") else written
    path = Path(os.path.normpath(launch.working_dir / expanded))
    if kind == "model" and model_names.HUB_NAME.fullmatch(written) and not path.exists():
        return model_names.HUB + written
    return str(path)


# -- what can be said before anything is fetched -----------------------------------------------


def absences(launch: Launch, machine: Host | None, acting: bool) -> list[Finding]:
    """Return an error for each input that is not where the work runs. `machine` is that place, None
    where it cannot be asked; another one is asked only to act."""
    named = [(entry["role"], entry["path"]) for entry in launch.inputs]
    named = [(role, Path(path)) for role, path in named if "://" not in path]
    if launch.own_script:
        named.append(("--entry-script", launch.own_script))
    else:
        named += [(reward_files.KEY, path) for path in reward_files.files(launch.spec)]
    found = []
    for role, path in named:
        found += _absence(launch, role, path, machine, acting)
    return found


def contents(launch: Launch) -> list[Finding]:
    """Return what stands against the inputs as they are named, and against those that are here."""
    found = []
    for entry in launch.inputs:
        role = entry["role"]
        path = Path(entry["path"])
        if launch.carried and "://" in entry["path"]:
            message = f"got {role} on the network, expected a path of the machine that will run it"
            if entry["path"].startswith(model_names.HUB):
                repo = entry["path"].removeprefix(model_names.HUB)
                message += f"; there: hf download {repo} --local-dir PATH"
            fix = Fix(changes={role: "PATH"})
            found.append(findings.error("JOB-NOT-CARRIED", entry["path"], message, fix))
        elif entry["path"].startswith((s3.SCHEME, model_names.HUB)):
            message = f"submit fetches what {role} names, once"
            found.append(findings.info("JOB-FETCHED", entry["path"], message))
        elif "://" in entry["path"]:
            continue  # which the rules refuse
        else:
            found += _packed_otherwise(launch, role, path)
            if path.exists() and _is_model(launch, role):
                found += _model_findings(launch, role, path)
            elif path.exists():
                found += _asked_findings(launch, role, path)
    if not launch.own_script:
        return found + reward_files.check(launch.spec)
    # The script alone knows in which folder a relative path below `custom` lies.
    _, missing = own_paths.relative(launch.action, launch.spec, launch.working_dir)
    message = "got a relative path with nothing there; the job works in a folder of its own"
    return found + [findings.warning("JOB-INPUT-RELATIVE", key, message) for key in missing]


def _packed_otherwise(launch: Launch, role: str, path: Path) -> list[Finding]:
    """A zip archive, which submit unpacks and a plan to carry cannot: programs of the image read
    tar archives at most."""
    is_ours = launch.engine != "tao" or (launch.action == "train" and not launch.entry_script)
    if not launch.carried or is_ours or path.suffix != ".zip":
        return []
    unpacked = path.with_suffix("")
    message = (
        f"got a zip archive as {role}, which the image does not open, expected a folder; there: "
    )
    message += shlex.join(["unzip", str(path), "-d", str(unpacked)])
    return [findings.error("JOB-NOT-CARRIED", path, message, Fix(changes={role: str(unpacked)}))]


def _asked_findings(launch: Launch, role: str, path: Path) -> list[Finding]:
    """A folder without media, a file that is none, or a file without a question ends an inference
    as soon as it begins."""
    is_ours = (launch.action, launch.engine) == ("inference", "transformers")
    if not is_ours or archives.is_archive(path):
        return []
    try:
        if role == "questions_file":
            inference.lines_of(path)
            return []
        _, found = inference.media_at(str(path))
        return found
    except findings.Failure as failure:
        return failure.findings


def _is_model(launch: Launch, role: str) -> bool:
    return document.keys(launch.action).get(role, {}).get("x-path") == "model"


def _absence(
    launch: Launch, role: str, path: Path, machine: Host | None, acting: bool
) -> list[Finding]:
    """An error for a path that is not where the work runs; a warning while planning for another
    machine, which is asked before anything is started there."""
    is_elsewhere = launch.carried or (machine is not None and not machine.is_here)
    if not is_elsewhere:
        return [] if path.exists() else [_missing_input(launch, role, path)]
    if acting:
        return _absence_there(launch, role, path, machine)
    if path.exists():
        return []
    who = "run.sh looks for it" if launch.carried else f"submit asks {machine.name}"
    message = f"not here; {who} before it starts anything"
    return [findings.warning("JOB-INPUT-ELSEWHERE", path, message, role=role)]


def _absence_there(launch: Launch, role: str, path: Path, machine: Host) -> list[Finding]:
    """Raises Failure (exit 3) when the machine does not answer."""
    there = machine.has(str(path))
    if there is None:
        message = f"got no answer whether {path} is there, expected one"
        check = shlex.join([*machine.ssh, "true"])
        unreachable = "JOB-DOCKER-UNREACHABLE"
        if launch.platform == "slurm":
            unreachable = "JOB-SLURM-UNREACHABLE"
        raise findings.outside(unreachable, machine.name, message, check)
    if there:
        return []
    message = f"got no such file or folder, expected what {role} names, on {machine.name}"
    look = shlex.join([*machine.ssh, shlex.join(["ls", "-d", str(path)])])
    return [findings.error("JOB-INPUT-MISSING", path, message, look)]


def _missing_input(launch: Launch, role: str, path: Path) -> Finding:
    message = (
        f"got no such file or folder, expected what {role} names, on the machine that launches"
    )
    if launch.platform == "docker":
        message += " (launch_job.py plan --output DIR is for another one)"
    nearest = next(folder for folder in path.parents if folder.is_dir())
    is_root = nearest.parent == nearest
    fix = "" if is_root else f"ls {shlex.quote(str(nearest))}"
    return findings.error("JOB-INPUT-MISSING", path, message, fix)


def _model_findings(launch: Launch, role: str, path: Path) -> list[Finding]:
    """A folder that holds no usable model, or an adapter where a model is meant, ends hours later
    or not at all."""
    if not path.is_dir() or not any(path.iterdir()):
        message = f"got no folder with files in it, expected the model of {role}"
        return [findings.error("JOB-MODEL-EMPTY", path, message)]
    _, is_omni = model_names.family(str(path))
    if is_omni:
        return []  # of which the rules speak, as of an adapter without its flag
    params = actions.places(launch.action)
    is_own_model = role == params["model"]
    is_adapter = run_outputs.kind(path) == run_outputs.ADAPTER
    if is_adapter and not is_own_model:
        message = f"got a LoRA adapter, expected a full model as {role}"
        return [findings.error("JOB-MODEL-ADAPTER", path, message)]
    flag = params.get("adapter") if is_own_model else None
    if flag and not is_adapter and document.get(launch.spec, flag, False):
        message = f"got true for a full model ({path}), expected it for a LoRA adapter only"
        return [findings.error("JOB-ADAPTER-FLAG", flag, message, Fix(changes={flag: False}))]
    return [finding for finding in run_outputs.verify(path) if findings.has_errors([finding])]


def models_below(folders: list[str] | None) -> list[str] | None:
    """The model folders that `--checkpoint` names: each itself, or for a train output all its
    undamaged models, so that the evidence knows how many there are to be. Raises Failure (exit
    2)."""
    found = []
    for folder in map(Path, folders or ()):
        models, _ = run_outputs.models_meant(folder)
        if not models:
            message = "got no undamaged model, expected one or a train output"
            fix = f"scripts/select_checkpoint.py {shlex.quote(str(folder))}"
            raise findings.bad_input("JOB-CHECKPOINT", folder, message, fix)
        found += models
    return [str(path) for path in dict.fromkeys(found)] or None


def check_outputs(launch: Launch) -> list[Finding]:
    """Outputs that would make an input, or more than the job's own, writable to the work."""
    role_of = {entry["path"]: entry["role"] for entry in launch.inputs}
    shared = [launch.folder, Path.home(), Path(tempfile.gettempdir()), bundle.ROOT]
    found = []
    for key, schema in document.keys(launch.action).items():
        value = document.get(launch.spec, key)
        if schema.get("x-path") != "output" or not value:
            continue
        if launch.engine not in schema["x-engines"]:
            continue
        inside = [place for place in shared if Path(value) in (place, *place.parents)]
        if value in role_of:
            what = f"the folder that {role_of[value]} names"
        elif inside:
            what = f"a folder that holds {inside[0]}"
        else:
            continue
        message = f"got {what}, expected one for {key} alone (none: a folder of the job)"
        found.append(findings.error("JOB-OUTPUT-SHARED", value, message, Fix(changes={key: ""})))
    return found


# -- fetching ----------------------------------------------------------------------------------


def stage(launch: Launch) -> list[dict]:
    """Fetch and unpack what is not a file or folder here, write its place into the spec, and return
    the inputs with their places, sources and fingerprints. Each content is fetched once. Raises
    Failure."""
    staged = []
    annotations_first = sorted(launch.inputs, key=lambda entry: "annotation" not in entry["role"])
    for entry in annotations_first:
        role, source = entry["role"], entry["path"]
        path = _fetched(launch, role, source) if "://" in source else Path(source)
        if role in document.keys(launch.action):  # a script of somebody's own reads its own
            path = Path(archives.media_folder(path))
        document.set_value(launch.spec, role, str(path))
        moved = str(path) != source
        if moved and _is_model(launch, role):
            _refuse(_model_findings(launch, role, path) + _rule_findings(launch))
        known = fingerprint(path) if path.exists() else None  # else it lies where the work runs
        record = {"role": role, "path": str(path), "fingerprint": known}
        if moved:
            from_hub = source.startswith(model_names.HUB)
            record["source"] = f"{source}@{path.name}" if from_hub else source
        staged.append(record)
    return staged


def cache_of(source: str) -> Path | None:
    """The folder of this machine that an input is fetched or unpacked into, None for one that is
    read where it lies."""
    if source.startswith(model_names.HUB):
        return hub.cache()
    is_kept = source.startswith(s3.SCHEME) or archives.is_archive(source)
    return files.cache_folder() if is_kept else None


def _fetched(launch: Launch, role: str, source: str) -> Path:
    """The local copy of a Hub model or of something on S3."""
    if _is_model(launch, role):  # its config first, which may be enough to refuse it
        document.set_value(launch.spec, role, str(hub.fetch_model(source, ["config.json"], role)))
        _refuse(_rule_findings(launch))
        return hub.fetch_model(source, ["*"], role)
    for keys in dataset_keys(launch.action):
        if role == keys.annotations:
            _, path = annotations.fetch(source)
            return path
        if role == keys.media and not archives.is_archive(source):
            return _fetched_media(source, document.get(launch.spec, keys.annotations))
    found = s3.head(source)
    return s3.fetch(found) if found else s3.snapshot(source, ["*"])


def _fetched_media(source: str, annotation_path: str) -> Path:
    """The media that the annotations name, or the archive in a root that holds them."""
    samples, _ = annotations.read(annotation_path)
    named = [medium for sample in samples for medium in sample.media]
    archive = archives.in_root(source, named[0].kind, named[0].path) if named else None
    if archive:
        return s3.local(archive)
    written = {name for medium in named for name in medium.names}
    names = {os.path.normpath(media.resolve("", name)) for name in written}
    return s3.snapshot(source, ["*"], names)


def _rule_findings(launch: Launch) -> list[Finding]:
    """What the rules say of a spec now that a model is here: of an Omni checkpoint, above all."""
    has_own_data = launch.own_script is not None
    return rules.check(
        launch.action, launch.engine, launch.spec, launch=True, has_own_data=has_own_data
    )


def _refuse(found: list[Finding]) -> None:
    """Raises Failure when an error is among the findings."""
    if findings.has_errors(found):
        raise findings.Failure(found, findings.EXIT_CHECKS_FAILED)


def fingerprint(path: Path) -> str:
    """Changes when a file changes; of a folder, when the names or sizes directly in it change."""
    if path.is_file():
        return f"sha256:{files.sha256(path)}"
    listing = []
    for entry in os.scandir(path):
        size = entry.stat().st_size if entry.is_file() else None
        listing.append((entry.name, size))
    listing.sort()
    return f"listing:{hashlib.sha256(json.dumps(listing).encode()).hexdigest()}"


def go_on_anew(launch: Launch) -> list[Finding]:
    """Let a training that is begun anew go on from its newest checkpoint, which is sure to be its
    own in its own folder alone; an error elsewhere."""
    if launch.action not in actions.TRAINING or document.get(launch.spec, "train.resume"):
        return []
    if Path(launch.outputs["output_dir"]).is_relative_to(launch.folder):
        document.set_value(launch.spec, "train.resume", True)
        return []
    message = "got train.resume=false and an output folder of your own: begun anew, the training "
    message += "would start over"
    return [
        findings.error("JOB-REQUEUE", "--requeue", message, Fix(changes={"train.resume": True}))
    ]
