"""From a spec to a recorded, running job: what would run (plan), the job folder, the start, and the retry."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason import checkpoints, jobs, models, platforms, rules, storage
from cosmos_reason import spec as specs
from cosmos_reason.findings import Finding, bad_input, error, has_errors

RESUME = "train.resume"
PLANNED = "JOB_ID"  # stands for the id in a plan; submit makes the real one


@dataclass(frozen=True)
class Request:
    """What a person asks for. `gpu_ids`: None for those the environment shows, [] for the CPU."""

    action: str
    spec_path: Path
    platform: str
    engine: str
    jobs_dir: Path
    working_dir: Path
    gpu_ids: list[str] | None = None
    retry_of: str | None = None
    resume: str | None = None


def plan(request: Request) -> tuple[dict, list[Finding]]:
    """The record that submit would write, and what stands against it. Touches nothing."""
    record, _, found = _prepare(request, request.jobs_dir / PLANNED)
    return record, found


def submit(request: Request) -> tuple[dict, list[Finding]]:
    """Record a job, then start it. When an error is among the findings, nothing was recorded or started."""
    folder = request.jobs_dir / jobs.new_id(request.action)
    record, spec, found = _prepare(request, folder)
    if has_errors(found):
        return record, found
    record["inputs"] = [entry | {"fingerprint": _fingerprint(Path(entry["path"]))} for entry in record["inputs"]]
    platform = platforms.module(request.platform)
    lock = None
    try:
        with storage.whole_folder(folder) as partial:
            lock = jobs.take_lock(partial)
            specs.dump(spec, partial / "spec.toml")
            record["spec"]["sha256"] = storage.sha256(partial / "spec.toml")
            if (origins := request.spec_path.with_suffix(".origins.json")).is_file():
                shutil.copyfile(origins, partial / "spec.origins.json")
            storage.write_text(partial / platform.LAUNCH_FILE, platform.launch_text(record))
            jobs.write(partial, record)
        platform.start(folder, lock)
    finally:
        if lock is not None:
            os.close(lock)
    return record, found


def retry(folder: Path, jobs_dir: Path) -> tuple[dict, list[Finding]]:
    """Run an ended job again as a new one, from the newest complete checkpoint it left. Outputs go where they went."""
    record, found = platforms.refresh(folder)
    if record["state"] not in {jobs.ERROR, jobs.CANCELED}:
        fix = f"scripts/launch_job.py cancel {folder.name}" if record["state"] == jobs.RUNNING else ""
        raise bad_input("JOB-NOT-FAILED", folder.name, f"got {record['state']}, expected ERROR or CANCELED", fix)
    if jobs.spec_edited(record):
        message = "got a spec that was edited after submit, expected the one that ran"
        fix = "submit it as a new job, with train.resume if it is to go on from a checkpoint"
        raise bad_input("JOB-SPEC-EDITED", record["spec"]["path"], message, fix)
    request = Request(
        action=record["action"],
        spec_path=Path(record["spec"]["path"]),
        platform=record["platform"],
        engine=record["engine"],
        jobs_dir=jobs_dir,
        working_dir=Path(record["working_dir"]),
        gpu_ids=record["resources"]["gpu_ids"],
        retry_of=record["job_id"],
        resume=_newest_resume(record),
    )
    again, more = submit(request)
    return again, found + more


def _newest_resume(record: dict) -> str | None:
    """The newest complete resume folder that this train job wrote."""
    if record["action"] != "train" or not record["started_at"]:
        return None
    folders = Path(record["outputs"]["output_dir"]).glob("*/checkpoints/*/policy")
    made = [f for f in folders if jobs.made_since_start(record, f) and checkpoints.is_complete_resume(f)]
    newest = max(made, key=lambda folder: folder.stat().st_mtime, default=None)
    return str(newest) if newest else None


# -- the parts of a launch ---------------------------------------------------------------------------------------------


def _prepare(request: Request, folder: Path) -> tuple[dict, dict, list[Finding]]:
    """(record, spec with absolute paths, findings) of a job in `folder`; writes nothing."""
    spec = specs.load(request.spec_path)
    if request.resume:
        specs.set_value(spec, RESUME, request.resume)
    inputs, outputs = _resolve_paths(request, folder, spec)
    found = rules.check(request.action, request.engine, spec, launch=True)
    found += [_missing(entry) for entry in inputs if not Path(entry["path"]).exists()]
    if has_errors(found):
        return {}, spec, found
    return _record(request, folder, inputs, outputs), spec, found


def _record(request: Request, folder: Path, inputs: list[dict], outputs: dict[str, str]) -> dict:
    """The record of a job before it starts; the hash of its spec is known once that is written."""
    gpu_ids = request.gpu_ids
    return {
        "schema_version": 1,
        "job_id": folder.name,
        "action": request.action,
        "engine": request.engine,
        "platform": request.platform,
        "state": jobs.PENDING,
        "reason": "",
        "created_at": jobs.now(),
        "started_at": None,
        "ended_at": None,
        "spec": {
            "path": str(folder / "spec.toml"),
            "sha256": None,
            "source": str(request.spec_path),
            "source_sha256": storage.sha256(request.spec_path),
        },
        "command": platforms.module(request.platform).command(request.engine, request.action, folder),
        "working_dir": str(request.working_dir),
        "image": None,
        "resources": {"nodes": 1, "gpus_per_node": None if gpu_ids is None else len(gpu_ids), "gpu_ids": gpu_ids},
        "inputs": inputs,
        "outputs": outputs,
        "platform_ref": {"host": socket.gethostname()},
        "parent_job": jobs.owner(entry["path"] for entry in inputs),
        "retry_of": request.retry_of,
        "exit_code": None,
        "evidence": {},
        "diagnosis": [],
    }


def _resolve_paths(request: Request, folder: Path, spec: dict) -> tuple[list[dict], dict[str, str]]:
    """Make the paths in `spec` absolute; an empty output goes into the job folder. Returns the inputs that are files
    or folders here, and the outputs by name."""
    inputs, outputs = [], {}
    for key, schema in specs.keys(request.action).items():
        kind, value = schema.get("x-path"), specs.get(spec, key, "")
        if kind == "output" and request.engine in schema["x-engines"] and value == "":
            value = str(folder / "results")
        if not kind or not isinstance(value, str) or not value or "://" in value:
            continue
        path = request.working_dir / (Path(value).expanduser() if value.startswith("~/") else value)
        if kind == "model" and models.HUB_NAME.fullmatch(value) and not path.exists():
            continue
        specs.set_value(spec, key, str(path))
        if kind == "output":
            outputs[key.rpartition(".")[2]] = str(path)
        else:
            inputs.append({"role": key, "path": str(path), "fingerprint": None})
    return inputs, outputs


def _missing(entry: dict) -> Finding:
    message = f"got no such file or folder, expected what {entry['role']} names"
    return error("JOB-INPUT-MISSING", entry["path"], message)


def _fingerprint(path: Path) -> str:
    """Changes when a file changes; of a folder, when the names or sizes directly in it change."""
    if path.is_file():
        return f"sha256:{storage.sha256(path)}"
    listing = sorted((entry.name, entry.stat().st_size if entry.is_file() else None) for entry in os.scandir(path))
    return f"listing:{hashlib.sha256(json.dumps(listing).encode()).hexdigest()}"
