"""Whether the job may reach what it needs: labelled paths, disks, the model on the Hub, buckets.

Nothing is written: an upload to S3 is begun and given up, which leaves no object.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from cosmos_reason.base import bundle, findings, secrets
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.site import WAYS_OUT
from cosmos_reason.checkpoints import conversion, run_outputs
from cosmos_reason.data import json_stream
from cosmos_reason.data.annotations import locate
from cosmos_reason.estimate.gpu_memory import geometry
from cosmos_reason.jobs import run_size
from cosmos_reason.jobs.platforms.machines import unseen_paths
from cosmos_reason.jobs.platforms.preflight import Preflight
from cosmos_reason.remote import hub, model_names, s3
from cosmos_reason.remote.machine import Place
from cosmos_reason.rules import models
from cosmos_reason.spec import actions, images
from cosmos_reason.spec.keys import BATCH

SCHEMES = ("s3", "hf", "hf_model")
SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "file": ""}  # of Hadoop; a path
OFFLINE = ("1", "ON", "YES", "TRUE")  # values of $HF_HUB_OFFLINE that ask for it


# ---- paths -------------------------------------------------------------------------------------


def paths(preflight: Preflight) -> Iterator[Finding]:
    """labelled paths and the spec's: scheme, existence where the job will run, S3 and Hub"""
    plain = preflight.plain_paths()
    for label, path in preflight.paths.items():
        if label in plain:
            continue
        try:
            where = f"{label}={path}"
            scheme, _, rest = path.rpartition("://")
            if not path:
                fix = _other_path(preflight, label, "PATH")
                yield findings.error("PRE-PATH-EMPTY", where, "got no path, expected one", fix)
            elif scheme == "s3":
                yield from _in_bucket(path)
            elif scheme in SCHEMES:
                is_dataset = rest.startswith("datasets/")
                repo = rest.removeprefix("datasets/")
                if actions.HUB_NAME.match(repo):
                    yield from hub_access(repo, "dataset" if is_dataset else "model")
                else:
                    message = f"got {repo!r}, expected ORG/NAME of a repository"
                    fix = _other_path(preflight, label, f"{scheme}://ORG/NAME")
                    yield findings.error("HUB-NAME", where, message, fix)
            else:
                message, fix = f"got {scheme}://, expected a path, s3:// or hf://.", Fix()
                scheme = scheme.lower()
                same = scheme if scheme in SCHEMES else SAME_SCHEMES.get(scheme)
                if same is not None:
                    message += f" Did you mean {same or 'a path'}?"
                    fix = _other_path(preflight, label, f"{same}://{rest}" if same else rest)
                yield findings.error("PRE-PATH-SCHEME", where, message, fix)
        except Failure as failure:
            yield from failure.findings
    unseen = {}
    for label, path in plain.items():
        if preflight.platform == "slurm" and preflight.machine:
            continue  # a compute node is asked, in slurm/preflight.py
        if preflight.machine:
            is_there = preflight.machine.has(os.path.expanduser(path))
        elif preflight.docker is None:
            is_there = None
        else:
            # An engine over tcp has no machine to ask: its paths are expected here too, on a file
            # system that both share.
            is_there = os.path.exists(os.path.expanduser(path))
        if is_there is None:
            unseen[label] = path
        elif not is_there:
            yield _missing(preflight, f"{label}={path}", path)
    if unseen:
        place = preflight.machine.name if preflight.machine else preflight.platform
        yield unseen_paths(unseen, place)


def _other_path(preflight: Preflight, label: str, path: str) -> Fix:
    """Return another path for a label of the command line, or else for a key of the spec."""
    if label in dict(preflight.options.path):
        given = f"{label}={preflight.paths[label] or ''}"
        return Fix(command=f"replace --path {shlex.quote(given)} with --path {label}={path}")
    return Fix(changes={label: path})


def _missing(preflight: Preflight, where: str, path: str) -> Finding:
    parent, machine = os.path.dirname(path) or ".", preflight.machine
    beside = os.listdir(parent) if os.path.isdir(parent) else []
    hint = findings.did_you_mean(os.path.basename(path), beside)
    message = f"got no such path on {machine.name if machine else 'this machine'}, expected it."
    message += hint
    fix = f"ls -d {path}"
    if machine and machine.is_here:
        message += f" {WAYS_OUT[0].upper()}{WAYS_OUT[1:]}."
        fix = "" if preflight.platform == "docker" else fix
    return findings.error("PRE-PATH-MISSING", where, message, fix)


def _in_bucket(uri: str) -> Iterator[Finding]:
    connection = s3.client()
    _, key = s3.split(uri)
    if key and s3.head(uri, connection):
        return
    if next(s3.objects(uri, connection), None) is None:
        message = "got no object of this name or below it, expected one"
        yield findings.error("PRE-PATH-MISSING", uri, message, f"aws s3 ls {uri}")


# ---- records -----------------------------------------------------------------------------------


def records(preflight: Preflight) -> Iterator[Finding]:
    """required fields and effective batch limits of annotation files"""
    options = preflight.options
    labels = {label for label, _ in options.json_required_field}
    labels |= {label for label, _ in options.effective_batch_limit}
    for label in sorted(labels):
        path = preflight.paths.get(label, "")
        in_bucket = path.startswith(s3.SCHEME)
        file = s3.local(path) if in_bucket else locate(Path(path).expanduser())
        if not file.exists():
            continue  # the paths' own check says so
        remaining = iter(json_stream.JsonRecords(file))
        sample = list(islice(remaining, options.json_sample_limit))
        if not sample:
            yield findings.error("PRE-RECORDS-EMPTY", file, "got no records, expected some")
        fields = [names for name, names in options.json_required_field if name == label]
        for required in (name for names in fields for name in names):
            keys = [row.keys() if isinstance(row, dict) else set() for row in sample]
            lacking = [str(number) for number, names in enumerate(keys) if required not in names]
            if lacking:
                message = f"got no {required!r} in {len(lacking)} of {len(sample)} sampled "
                message += "records, expected it in all."
                message += findings.did_you_mean(required, set().union(*keys) - {required})
                where = f"{file}#{lacking[0]}"
                yield findings.error("PRE-FIELD-MISSING", where, message, record_ids=lacking)
        limits = [limit for name, limit in options.effective_batch_limit if name == label]
        count = len(sample) + sum(1 for _ in remaining) if limits else 0
        for batch, shards in limits:
            most = count // shards
            if batch > most:
                message = f"got a batch of {batch}, expected at most {most}: {count} records over "
                message += f"{shards} shards"
                fix = Fix(changes={BATCH: max(1, most)})
                where = f"--effective-batch-limit {label}"
                yield findings.error("PRE-BATCH-LIMIT", where, message, fix)


# ---- disks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """GiB that something will take at a path. `is_limit`: asked with --min-free-disk-gb."""

    what: str
    path: str
    gib: float
    is_limit: bool = False


@dataclass
class FileSystem:
    free_gib: float
    needs: list[Need] = field(default_factory=list)


def disks(preflight: Preflight) -> Iterator[Finding]:
    """free space for checkpoints, downloads and --min-free-disk-gb, added up per file system;
    outputs can be written"""
    kept, each = run_size.kept_checkpoints(preflight.case) if preflight.case else (0, 0.0)
    # Needs are added up per file system: two folders on one disk share its room.
    file_systems: dict[str, FileSystem] = {}
    needs = []
    for label, gib in preflight.options.min_free_disk_gb:
        flag = f"--min-free-disk-gb {label}"
        needs.append(Need(flag, preflight.paths[label], gib, is_limit=True))
    for path in preflight.outputs:
        needs.append(Need("checkpoints" if kept * each else "output", path, kept * each))
    case = preflight.case
    fetches_here = preflight.machine is not None and preflight.machine.is_here
    if case and fetches_here and case.model.startswith(model_names.HUB):
        from huggingface_hub.constants import HF_HUB_CACHE

        # A model in bfloat16, unless it is here already.
        repo = case.model.removeprefix(model_names.HUB)
        billions = bundle.skill_info()["models"].get(repo, {}).get("parameters_billion", 0)
        gib = 0.0 if _cached(repo) else 2 * billions * 1e9 / 2**30
        needs.append(Need("model download", HF_HUB_CACHE, gib))
    for need in needs:
        is_remote = "://" in need.path
        if is_remote and not need.is_limit:
            continue
        place = None
        if preflight.site and not is_remote:
            need = replace(need, path=preflight.site.there(os.path.abspath(need.path)))
            known = preflight.site.disk(need.path)
            place = known and Place(*known, takes_files=True, is_file=False)
            if need.gib and place is None:
                yield from preflight.site.unknown([f"disk: {{{need.path}: FREE_GIB}}"])
                continue
        elif preflight.machine and not is_remote:
            place = preflight.machine.place(os.path.expanduser(need.path))
        if place is None:
            report = findings.error if need.is_limit else findings.warning
            message = f"free space of {need.path} is not known, expected {need.gib:.0f} GiB"
            if need.gib:
                yield report("PRE-DISK-UNKNOWN", need.what, message, f"df -h {need.path}")
            continue
        file_system = file_systems.setdefault(place.file_system, FileSystem(place.free_gib))
        file_system.needs.append(need)
        if not need.is_limit and not place.takes_files:
            got = "a file" if place.is_file else "a place that may not be written"
            message = f"got {got}, expected a folder for results"
            yield findings.error("PRE-OUTPUT", need.path, message, f"ls -ld {need.path}")
    for file_system in file_systems.values():
        needs, free = file_system.needs, file_system.free_gib
        total = sum(need.gib for need in needs)
        if free >= total:
            continue
        parts = ", ".join(f"{need.what} {need.gib:.1f}" for need in needs if need.gib)
        path = needs[0].path
        message = f"got {free:.1f} GiB free at {path}, expected {total:.1f} ({parts})"
        fix = Fix()
        if each:
            # So that no more checkpoints than fit are there at a time: the next is whole before the
            # oldest goes.
            fitting = int((free - total + kept * each) / each)
            if fitting - 1 >= (2 if case("validation.enable") else 1):
                fix = Fix(changes={"train.ckpt.max_keep": fitting - 1})
            elif fitting > 0 and case.steps:
                end = {"train.ckpt.save_freq": case.steps, "train.ckpt.save_freq_in_epoch": 0}
                fix = Fix(changes=end)
            if not fix and not case("policy.lora"):
                message += "; checkpoints of adapters (--tuning lora) are a part of that"
        fix = fix or Fix(command=f"du -sh {path}")
        yield findings.error("PRE-DISK", needs[-1].what, message, fix)
    yield from _below_the_gate_of_nvidia(preflight, list(file_systems.values()))


def _below_the_gate_of_nvidia(
    preflight: Preflight, file_systems: list[FileSystem]
) -> Iterator[Finding]:
    """Warn of outputs on a disk with which NVIDIA's own launcher would not start this training.

    A converted folder no longer says what it is called: its widths do.
    """
    case = preflight.case
    if case is None or preflight.engine != "tao" or case.action != "train":
        return
    for name, facts in model_names.published().items():
        wanted = facts.get("tao_train_disk_gib")
        if wanted is None or geometry(name) != geometry(case.model):
            continue
        for file_system in file_systems:
            outputs = [need.path for need in file_system.needs if not need.is_limit]
            if outputs and file_system.free_gib < wanted:
                message = (
                    f"got {file_system.free_gib:.1f} GiB free at {outputs[0]}; NVIDIA's launcher "
                    f"trains {name} in its container only with {wanted} GiB free, and nobody here "
                    "has seen what that image writes besides checkpoints"
                )
                yield findings.warning("PRE-DISK-NVIDIA", outputs[0], message)


# ---- S3 and Hub --------------------------------------------------------------------------------


def uploads(preflight: Preflight) -> Iterator[Finding]:
    """the right to write where checkpoints are uploaded"""
    case = preflight.case
    if case.action not in actions.TRAINING:
        return
    mode = os.environ.get("WANDB_MODE")
    # cosmos-rl itself writes no offline run without a key; our script for it has it do so.
    needs_none = mode == "disabled" or (mode == "offline" and case.engine != "tao")
    if "wandb" in case("logging.logger") and not (needs_none or secrets.is_set("WANDB_API_KEY")):
        message = "got wandb among the loggers and no WANDB_API_KEY, expected one"
        if mode == "offline":
            message += ": without it cosmos-rl writes nothing, also offline"
        fix = "export WANDB_API_KEY=KEY"
        yield findings.warning("PRE-WANDB-KEY", "logging.logger", message, fix)
    if case("train.ckpt.upload_hf"):
        try:
            hub.writable(case("train.ckpt.hf_repo_name"), hub.token())
        except Failure as failure:
            for finding in failure.findings:
                other_repo = finding.fix.flags.get("--hub")
                if other_repo:  # the flag is of publishing; here the spec names the repository
                    fix = Fix(changes={"train.ckpt.hf_repo_name": other_repo})
                    finding = replace(finding, fix=fix)
                yield finding
    bucket = case("train.ckpt.s3_bucket")
    if case("train.ckpt.upload_s3") and bucket:
        # An upload is begun and given up, which leaves nothing; Failure where that is not allowed.
        prefix = (case("train.ckpt.s3_prefix") or "").strip("/")
        key = f"{prefix}/preflight" if prefix else "preflight"
        connection = s3.client()
        with s3.failures(f"{s3.SCHEME}{bucket}/{key}"):
            begun = connection.create_multipart_upload(Bucket=bucket, Key=key)
            upload_id = begun["UploadId"]
            connection.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)


def model(preflight: Preflight) -> Iterator[Finding]:
    """the model folder is complete, or the Hub lets this token have it and the engine loads its
    architecture; what is known against the image"""
    issue = images.issue(preflight.image, preflight.engine, preflight.options.image_version)
    if issue:
        reason, better_image = issue
        message = f"{reason} launch_job.py takes the same flag."
        fix = Fix(flags={"--image": better_image})
        yield findings.warning("PRE-IMAGE-ISSUE", preflight.image, message, fix)
    for name in preflight.models:
        if name.startswith(s3.SCHEME):
            yield from _in_bucket(name)
        elif name.startswith(model_names.HUB):
            yield from hub_access(name.removeprefix(model_names.HUB))
            # What the name alone tells of its architecture was looked at with the spec.
            if model_names.family(name)[0] or preflight.has_own_data:
                continue
            repo, action = name.removeprefix(model_names.HUB), preflight.case.action
            config = _cached_config(repo)
            told = model_names.family(str(config.parent))[0] if config else None
            told = told or hub.architecture(repo, hub.token())
            known = bundle.architectures(preflight.engine, action)
            if models.is_refused(told, action, known):
                message = f"{models.in_words(told)}, expected what {preflight.engine} "
                message += f"loads: {', '.join(known)}"
                fix = models.engine_for(action, told)
                yield findings.error("PRE-MODEL-FAMILY", name, message, fix)
        else:
            folder = Path(name)
            _, is_omni = model_names.family(name)
            if is_omni or not folder.is_dir() or not any(folder.iterdir()):
                continue  # which the rules, the paths or the plan tell
            if (folder / conversion.PROVENANCE).is_file():
                yield from conversion.check_output(folder)
            else:
                yield from run_outputs.verify(folder)


def _cached(repo: str) -> bool:
    """Return whether a complete snapshot of a model is on this machine."""
    config = _cached_config(repo)
    return bool(config) and not findings.has_errors(run_outputs.verify_model(config.parent))


def _cached_config(repo: str) -> Path | None:
    """Return the config.json of a model's snapshot on this machine."""
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(repo, "config.json")
    return Path(config) if isinstance(config, str) else None


def hub_access(repo: str, kind: str = "model") -> Iterator[Finding]:
    """Find what stands between this token and a repository; without an answer of the Hub a complete
    snapshot will do."""
    repo = "/".join(repo.split("/")[:2])
    try:
        hub.readable(repo, kind, hub.token())
    except Failure as failure:
        finding = failure.findings[0]
        unreachable = finding.id == "HUB-UNREACHABLE"
        if not unreachable or kind != "model" or not _cached(repo):
            raise
        asked_for = os.environ.get("HF_HUB_OFFLINE", "").upper() in OFFLINE
        report = findings.info if asked_for else findings.warning
        message = f"{finding.message}; a complete snapshot is on this machine"
        yield report(finding.id, finding.where, message, finding.fix)
