"""What a spec names, as inputs and outputs of a job, and what is wrong with them as far as nothing
has to be fetched; `fetching` does that."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import bundle, files, findings, job_folder
from cosmos_reason.base.findings import Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.site import WAYS_OUT
from cosmos_reason.jobs import reward_files
from cosmos_reason.jobs.options import Launch
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import model_names
from cosmos_reason.remote.machine import Host
from cosmos_reason.rules import placeholders
from cosmos_reason.spec import actions, document, own_paths

S3 = "s3://"  # whose client only `fetching` needs


def resolved(launch: Launch) -> Launch:
    """Return the launch with absolute paths in its spec, its inputs as they are recorded, the
    outputs that have a place of their own, by name, and of each train output that `--checkpoint`
    names all undamaged models. What is not here yet has its name as its path. Raises Failure (exit
    2) for a checkpoint without a model."""
    if launch.checkpoints:
        from cosmos_reason.checkpoints import run_outputs

        # The evidence has to know how many results to expect.
        models = []
        for folder in map(Path, launch.checkpoints):
            below, _ = run_outputs.models_meant(folder)
            if not below:
                message = "no undamaged model is there: name a model's folder or a train output"
                fix = f"scripts/select_checkpoint.py {shlex.quote(str(folder))}"
                raise findings.bad_input("JOB-CHECKPOINT", folder, message, fix)
            models += map(str, below)
        launch = replace(launch, checkpoints=list(dict.fromkeys(models)))
    spec = copy.deepcopy(launch.spec)
    inputs = []
    outputs = {}
    own_model = actions.places(launch.action)["model"]
    for key, schema in document.keys(launch.action).items():
        kind = schema.get("x-path")
        written = document.get(spec, key, "")
        if not kind or not isinstance(written, str) or not written:
            continue
        # A server knows its model by name, and checkpoints take the place of the spec's own.
        if kind == "model" and (launch.endpoint or (launch.checkpoints and key == own_model)):
            continue
        if placeholders.is_placeholder(written, is_path=True):
            continue  # the rules refuse words that stand for a path
        path = written
        if "://" not in written:
            expanded = Path(written).expanduser() if written.startswith("~/") else written
            path = os.path.normpath(launch.working_dir / expanded)
            is_name = kind == "model" and model_names.HUB_NAME.fullmatch(written)
            if is_name and not os.path.exists(path):  # a folder of that name wins over the Hub
                path = model_names.HUB + written
        if launch.site:  # a path of the site where it lies here, a model of the Hub where it has it
            path = launch.site.here(path)
            path = launch.site.folder_of(path.removeprefix(model_names.HUB)) or path
        document.set_value(spec, key, path)
        if kind == "output":
            outputs[key.rpartition(".")[2]] = path
        else:
            inputs.append({"role": key, "path": path, "fingerprint": None})
    reward_files.make_absolute(spec, launch.working_dir)
    if not launch.own_script:
        return replace(launch, spec=spec, inputs=inputs, outputs=outputs)
    # Somebody's own dataset script reads what it finds below `custom`: no schema names its paths.
    here, _ = own_paths.relative(launch.action, spec, launch.working_dir)
    for key, path in here.items():
        document.set_value(spec, key, path)
    for key, written in own_paths.absolute(launch.action, spec).items():
        path = os.path.normpath(written)
        if not placeholders.is_placeholder(path, is_path=True):
            inputs.append({"role": key, "path": path, "fingerprint": None})
    return replace(launch, spec=spec, inputs=inputs, outputs=outputs)


# -- what can be said before anything is fetched -----------------------------------------------


def absences(launch: Launch, machine: Host | None, acting: bool) -> list[Finding]:
    """Return an error for each input that is not where the work runs, a warning while planning for
    another machine than this one: that is asked only to act. `machine` is where the work runs, None
    where it cannot be asked. Raises Failure (exit 3) when it does not answer."""
    named = [(entry["role"], entry["path"]) for entry in launch.inputs]
    named = [(role, Path(path)) for role, path in named if "://" not in path]
    if launch.own_script:
        named.append(("--entry-script", launch.own_script))
    else:
        named += [(reward_files.KEY, path) for path in reward_files.files(launch.spec)]
    if launch.site and launch.carried:
        return []  # what the site does not place is told with what else it leaves out
    is_elsewhere = launch.carried or (machine is not None and not machine.is_here)
    found = []
    missing = []
    for role, path in named:
        if is_elsewhere and acting:
            there = machine.has(str(path))
            if there is None:
                message = f"it does not answer whether {path} is there"
                unreachable = "JOB-DOCKER-UNREACHABLE"
                if launch.platform == "slurm":
                    unreachable = "JOB-SLURM-UNREACHABLE"
                check = shlex.join([*machine.ssh, "true"])
                raise findings.outside(unreachable, machine.name, message, check)
            if not there:
                message = f"no such file or folder on {machine.name}: {role} names it"
                look = shlex.join([*machine.ssh, shlex.join(["ls", "-d", str(path)])])
                found.append(findings.error("JOB-INPUT-MISSING", path, message, look))
        elif path.exists():
            continue
        elif is_elsewhere:
            who = "the plan looks for it" if launch.carried else f"submit asks {machine.name}"
            message = f"not here; {who} before it starts anything"
            found.append(findings.warning("JOB-INPUT-ELSEWHERE", path, message, role=role))
        else:
            message = f"no such file or folder on the machine that launches: {role} names it"
            message += f"; {WAYS_OUT}"
            nearest = next(folder for folder in path.parents if folder.is_dir())
            is_root = nearest.parent == nearest
            fix = "" if is_root else f"ls {shlex.quote(str(nearest))}"
            found.append(findings.error("JOB-INPUT-MISSING", path, message, fix))
            missing.append(path)
    return _moved(launch, missing) or found


def _moved(launch: Launch, missing: list[Path]) -> list[Finding]:
    """Return one error in place of those of the `missing` inputs of a retry, with the link that
    mends them, where all of them lie in the folder that the job was moved with."""
    if not launch.retry_of or not missing:
        return []
    place = job_folder.place_of(launch.spec_path.parent)
    then, now = place.then, place.now
    while then.name and then.name == now.name:
        then, now = then.parent, now.parent
    came_along = all(
        path.is_relative_to(then) and (now / path.relative_to(then)).exists() for path in missing
    )
    if not came_along or os.path.lexists(then) or not then.parent.is_dir():
        return []
    message = f"{then} was moved to {now}; the job names {len(missing)} inputs by their old paths"
    link = shlex.join(["ln", "-s", str(now), str(then)])
    return [findings.error("JOB-INPUT-MISSING", then, message, link)]


def contents(launch: Launch) -> list[Finding]:
    """Return what stands against the inputs as they are named, and against those that are here."""
    found = []
    # Programs of the image read tar archives at most; ours, and submit, open zip archives too.
    opens_zip = launch.engine != "tao" or (launch.action == "train" and not launch.entry_script)
    for entry in launch.inputs:
        role, named, path = entry["role"], entry["path"], Path(entry["path"])
        if launch.carried and "://" in named:
            message = f"{role} is on the network: name a path of the machine that will run it"
            if named.startswith(model_names.HUB):
                repo = named.removeprefix(model_names.HUB)
                message += f"; there: hf download {repo} --local-dir PATH"
            fix = Fix(changes={role: "PATH"})
            found.append(findings.error("JOB-NOT-CARRIED", named, message, fix))
            continue
        if named.startswith((S3, model_names.HUB)):
            message = f"submit fetches what {role} names, once"
            found.append(findings.info("JOB-FETCHED", named, message))
        if "://" in named:
            continue  # the rules refuse other schemes
        if launch.carried and not opens_zip and path.suffix == ".zip":
            unpacked = str(path.with_suffix(""))
            message = f"the image does not open a zip archive as {role}, only a folder; there: "
            message += shlex.join(["unzip", named, "-d", unpacked])
            fix = Fix(changes={role: unpacked})
            found.append(findings.error("JOB-NOT-CARRIED", path, message, fix))
        if path.exists():
            look = of_model if is_model(launch, role) else _asked
            found += look(launch, role, path)
    if not launch.own_script:
        return found + reward_files.check(launch.spec)
    # The script alone knows in which folder a relative path below `custom` lies.
    _, missing = own_paths.relative(launch.action, launch.spec, launch.working_dir)
    message = "nothing is at this relative path; the job works in a folder of its own"
    return found + [findings.warning("JOB-INPUT-RELATIVE", key, message) for key in missing]


def is_model(launch: Launch, role: str) -> bool:
    return document.keys(launch.action).get(role, {}).get("x-path") == "model"


def of_model(launch: Launch, role: str, path: Path) -> list[Finding]:
    """Return what is wrong with a model's folder. One without a usable model, or an adapter where a
    model is meant, ends hours later or not at all."""
    if not path.is_dir() or not any(path.iterdir()):
        message = f"it is no folder with files in it, and {role} names a model there"
        return [findings.error("JOB-MODEL-EMPTY", path, message)]
    _, is_omni = model_names.family(str(path))
    if is_omni:
        return []  # the rules speak of it, as of an adapter without its flag
    from cosmos_reason.checkpoints import run_outputs

    params = actions.places(launch.action)
    is_own_model = role == params["model"]
    is_adapter = run_outputs.kind(path) == run_outputs.ADAPTER
    if is_adapter and not is_own_model:
        message = f"it is a LoRA adapter, and {role} names a full model"
        return [findings.error("JOB-MODEL-ADAPTER", path, message)]
    flag = params.get("adapter") if is_own_model else None
    if flag and not is_adapter and document.get(launch.spec, flag, False):
        message = f"got true for a full model ({path}), expected it for a LoRA adapter only"
        return [findings.error("JOB-ADAPTER-FLAG", flag, message, Fix(changes={flag: False}))]
    return [finding for finding in run_outputs.verify(path) if findings.has_errors([finding])]


def _asked(launch: Launch, role: str, path: Path) -> list[Finding]:
    """Return why an inference would end as soon as it begins: a folder without media, a file that
    is none, a file without a question."""
    is_ours = (launch.action, launch.engine) == ("inference", "transformers")
    if not is_ours:
        return []
    from cosmos_reason.evaluation import inference
    from cosmos_reason.media import archives

    if archives.is_archive(path):
        return []

    try:
        if role == "questions_file":
            inference.lines_of(path)
            return []
        _, found = inference.media_at(str(path))
        return found
    except findings.Failure as failure:
        return failure.findings


def check_outputs(launch: Launch) -> list[Finding]:
    """Refuse outputs that would make an input, or more than the job's own, writable to the work."""
    # A container may write everywhere below its outputs.
    role_of = {entry["path"]: entry["role"] for entry in launch.inputs}
    # A mistake in the spec, as output_dir = "~", would let the work write over any of these.
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
        found.append(findings.error("JOB-OUTPUT-SHARED", value, message, Fix(changes={key: "DIR"})))
    return found


def fingerprint(path: Path) -> str:
    """Return a text that changes when a file changes; of a folder, when the names or sizes directly
    in it change."""
    if path.is_file():
        return f"sha256:{files.sha256(path)}"
    listing = []
    for entry in os.scandir(path):
        size = entry.stat().st_size if entry.is_file() else None
        listing.append((entry.name, size))
    listing.sort()
    return f"listing:{hashlib.sha256(json.dumps(listing).encode()).hexdigest()}"


def changed(launch: Launch) -> list[Finding]:
    """Return a warning for each input that a training which goes on reads as another than the job
    that it goes on from: its annotations, whose contents are compared, and its model."""
    if not launch.retry_of or not document.get(launch.spec, "train.resume"):
        return []
    earlier = Job.load_unchecked(launch.spec_path.parent)
    known = {entry["role"]: entry["fingerprint"] for entry in earlier.inputs}
    found = []
    for entry in launch.inputs:
        role, now = entry["role"], entry["fingerprint"]
        before = known.get(role)
        is_content = is_model(launch, role) or str(now).startswith("sha256:")
        if before and now and before != now and is_content:
            # A folder's files are not read: a README.md that came is told as weights are.
            what = "it" if str(now).startswith("sha256:") else "names or sizes of files in it"
            message = f"{what} changed since {earlier.job_id} read it; this goes on from there: "
            message += "what was trained until then was trained on what was there before"
            found.append(findings.warning("JOB-INPUT-CHANGED", entry["path"], message))
    return found


def going_on(launch: Launch) -> tuple[Launch, list[Finding]]:
    """Return the launch of a training that, begun anew, goes on from its newest checkpoint; an
    error where that may be another job's: only the job's own folder is sure to hold its own."""
    if launch.action not in actions.TRAINING or document.get(launch.spec, "train.resume"):
        return launch, []
    if Path(launch.outputs["output_dir"]).is_relative_to(launch.folder):
        spec = copy.deepcopy(launch.spec)
        document.set_value(spec, "train.resume", True)
        return replace(launch, spec=spec), []
    message = "got train.resume=false and an output folder of your own: begun anew, the training "
    message += "would start over"
    fix = Fix(changes={"train.resume": True})
    return launch, [findings.error("JOB-REQUEUE", "--requeue", message, fix)]
