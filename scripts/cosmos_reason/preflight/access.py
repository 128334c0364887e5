"""Whether the launch may reach what it needs: labelled paths, disks, the model on the Hub, buckets. Nothing is written
(an upload to S3 is begun and given up, which leaves no object)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from cosmos_reason import bundle, checkpoints, conversion, hub, json_stream, models, s3, secret
from cosmos_reason import findings as f
from cosmos_reason.annotations import locate
from cosmos_reason.preflight.prediction import checkpoint_gib

SCHEMES = ("s3", "hf", "hf_model")
OFFLINE = ("1", "ON", "YES", "TRUE")


def paths(launch) -> Iterator[f.Finding]:
    """labelled paths and the spec's: scheme, existence where the job will run, S3 and Hub"""
    for label, path in launch.paths.items():
        try:
            yield from _path(launch, label, path)
        except f.Failure as failure:
            yield from failure.findings


def _path(launch, label: str, path: str) -> Iterator[f.Finding]:
    where, (kind, _, rest) = f"{label}={path}", path.rpartition("://")
    flag = "--path" if label in dict(launch.args.path) else "--set"  # the spec names it
    if not path:
        yield f.error("PRE-PATH-EMPTY", where, "got no path, expected one", f"{flag} {label}=PATH")
    elif not kind:
        yield from _on_machine(launch, where, path)
    elif kind not in SCHEMES:
        near = f.nearest(kind.lower(), SCHEMES)
        message = f"got {kind}://, expected a path, s3:// or hf://.{f.did_you_mean(kind.lower(), SCHEMES)}"
        meant = rest if kind.lower() == "file" else f"{near[0]}://{rest}" if near else "PATH"
        yield f.error("PRE-PATH-SCHEME", where, message, f"{flag} {label}={meant}")
    elif kind == "s3":
        yield from _in_bucket(path)
    else:
        dataset = rest.startswith("datasets/")
        yield from hub_access(rest.removeprefix("datasets/"), "dataset" if dataset else "model")


def _on_machine(launch, where: str, path: str) -> Iterator[f.Finding]:
    if launch.machine is None:
        message = f"not looked at: nothing here sees the paths of platform {launch.platform}"
        yield f.warning("PRE-PATH-UNSEEN", where, message, f"ls -d {path}")
    elif launch.platform == "slurm":
        return  # a compute node is asked (platforms.slurm)
    elif not (there := launch.machine.has(os.path.expanduser(path))):
        parent = os.path.dirname(path) or "."
        near = f.did_you_mean(os.path.basename(path), os.listdir(parent) if os.path.isdir(parent) else [])
        message = "got no such path" if there is False else "got no answer whether it is there"
        id = "PRE-PATH-MISSING" if there is False else "PRE-PATH-UNSEEN"
        yield f.error(id, where, f"{message} on {launch.machine.name}, expected it.{near}", f"ls -d {path}")


def _in_bucket(uri: str) -> Iterator[f.Finding]:
    connection = s3.client()
    _, key = s3.split(uri)
    if not (key and s3.head(uri, connection)) and next(s3.objects(uri, connection), None) is None:
        message = "got no object of this name or below it, expected one"
        yield f.error("PRE-PATH-MISSING", uri, message, f"aws s3 ls {uri}")


def records(launch) -> Iterator[f.Finding]:
    """required fields and effective batch limits of annotation files"""
    args = launch.args
    for label in sorted({label for label, _ in (*args.json_required_field, *args.effective_batch_limit)}):
        path = launch.paths.get(label, "")
        file = s3.local(path) if path.startswith(s3.SCHEME) else locate(Path(path).expanduser())
        if not file.exists():
            continue  # the paths' own check says so
        records = iter(json_stream.JsonRecords(file))
        sample = list(islice(records, args.json_sample_limit))
        if not sample:
            yield f.error("PRE-RECORDS-EMPTY", file, "got no records, expected some")
        for field in (field for name, fields in args.json_required_field if name == label for field in fields):
            yield from _lacking(file, sample, field)
        for batch, shards in (pair for name, pair in args.effective_batch_limit if name == label):
            count = len(sample) + sum(1 for _ in records)
            if batch > (most := count // shards):
                message = f"got a batch of {batch}, expected at most {most}: {count} records over {shards} shards"
                fix = f"--set train.train_batch_per_replica={max(1, most)}"
                yield f.error("PRE-BATCH-LIMIT", f"--effective-batch-limit {label}", message, fix)


def _lacking(file: Path, rows: list, field: str) -> Iterator[f.Finding]:
    lost = [number for number, row in enumerate(rows) if not isinstance(row, dict) or field not in row]
    if lost:
        others = {name for row in rows if isinstance(row, dict) for name in row} - {field}
        message = f"got no {field!r} in {len(lost)} of {len(rows)} sampled records, expected it in all."
        message += f.did_you_mean(field, others)
        yield f.error("PRE-FIELD-MISSING", f"{file}#{lost[0]}", message, record_ids=[str(number) for number in lost])


def disks(launch) -> Iterator[f.Finding]:
    """free space for checkpoints, downloads and --min-free-disk-gb, added up per file system; outputs can be written"""
    case, needed = launch.case, {}
    kept, each = checkpoint_gib(case) if case else (0, 0.0)
    wanted = [(f"--min-free-disk-gb {label}", launch.paths[label], gib) for label, gib in launch.args.min_free_disk_gb]
    wanted += [("checkpoints" if each else "output", path, kept * each) for path in launch.outputs]
    if case and launch.platform == "local" and case.model.startswith(models.HUB):
        repo = case.model.removeprefix(models.HUB)
        billions = bundle.skill_info()["models"].get(repo, {}).get("parameters_billion", 0)
        from huggingface_hub.constants import HF_HUB_CACHE

        wanted.append(("model download", HF_HUB_CACHE, 0 if _cached(repo) else 2 * billions * 1e9 / 2**30))
    for where, path, gib in wanted:
        asked = where.startswith("--")
        if "://" in path and not asked:
            continue
        place = launch.machine.place(os.path.expanduser(path)) if launch.machine and "://" not in path else None
        if place:
            mount, free, writable = place
            needed.setdefault(mount, (free, []))[1].append((where, path, gib))
            if not asked and writable != "yes":
                message = "got a file" if writable == "file" else "got a place that may not be written"
                yield f.error("PRE-OUTPUT", path, f"{message}, expected a folder for results", f"ls -ld {path}")
        elif gib:
            message = f"free space of {path} is not known, expected {gib:.0f} GiB"
            yield (f.error if asked else f.warning)("PRE-DISK-UNKNOWN", where, message, f"df -h {path}")
    for free, entries in needed.values():
        total = sum(gib for _, _, gib in entries)
        if free < total:
            names, path = ", ".join(f"{where} {gib:.1f}" for where, _, gib in entries if gib), entries[0][1]
            message = f"got {free:.1f} GiB free at {path}, expected {total:.1f} ({names})"
            fits = int((free - total + kept * each) / each) if each else 0
            smaller = f"--set train.ckpt.max_keep={fits}" if fits > 0 else "--tuning lora"
            yield f.error("PRE-DISK", entries[-1][0], message, smaller if each else f"du -sh {path}")


# ---- S3 and Hub ------------------------------------------------------------------------------------------------------


def uploads(launch) -> Iterator[f.Finding]:
    """the right to write where checkpoints are uploaded"""
    case = launch.case
    if case.action not in ("train", "grpo"):
        return
    if "wandb" in case("logging.logger") and not secret.is_set("WANDB_API_KEY"):
        message = "got wandb among the loggers and no WANDB_API_KEY, expected one"
        yield f.warning("PRE-WANDB-KEY", "logging.logger", message, "export WANDB_API_KEY=KEY")
    if case("train.ckpt.upload_hf"):
        try:
            hub.writable(case("train.ckpt.hf_repo_name"), hub.token())
        except f.Failure as failure:
            for one in failure.findings:
                yield replace(one, fix=one.fix.replace("--hub ", "--set train.ckpt.hf_repo_name="))
    if case("train.ckpt.upload_s3") and (bucket := case("train.ckpt.s3_bucket")):
        key = "/".join(filter(None, [(case("train.ckpt.s3_prefix") or "").strip("/"), "preflight"]))
        connection = s3.client()
        with s3.failures(f"{s3.SCHEME}{bucket}/{key}"):
            begun = connection.create_multipart_upload(Bucket=bucket, Key=key)
            connection.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun["UploadId"])


def model(launch) -> Iterator[f.Finding]:
    """the model folder is complete, or the Hub lets this token have it; what is known against the image"""
    if issue := bundle.image_issue(launch.image):
        message = f"{issue[0]} launch_job.py takes the same flag."
        yield f.warning("PRE-IMAGE-ISSUE", launch.image, message, f"--image {issue[1]}")
    for name in launch.models:
        if name.startswith(s3.SCHEME):
            yield from _in_bucket(name)
        elif name.startswith(models.HUB):
            yield from hub_access(name.removeprefix(models.HUB))
        elif Path(name).is_dir() and not models.family(name)[1]:  # rules of the spec tell how to convert an Omni one
            converted = (Path(name) / conversion.PROVENANCE).is_file()
            yield from (conversion.check_output if converted else checkpoints.verify)(Path(name))


def _cached(repo: str) -> bool:
    """Whether a complete snapshot of a model is on this machine."""
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(repo, "config.json")
    return isinstance(config, str) and not f.has_errors(checkpoints.verify_model(Path(config).parent))


def hub_access(repo: str, kind: str = "model") -> Iterator[f.Finding]:
    """What stands between this token and a repository; without an answer of the Hub a complete snapshot will do."""
    repo = "/".join(repo.split("/")[:2])
    try:
        hub.readable(repo, kind, hub.token())
    except f.Failure as failure:
        lost = failure.findings[0]
        if lost.id != "HUB-UNREACHABLE" or not (kind == "model" and _cached(repo)):
            raise
        report = f.info if os.environ.get("HF_HUB_OFFLINE", "").upper() in OFFLINE else f.warning  # asked for
        yield report(lost.id, lost.where, f"{lost.message}; a complete snapshot is on this machine", lost.fix)
