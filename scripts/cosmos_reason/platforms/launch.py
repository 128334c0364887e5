"""From a spec to a recorded, running job: what would run (plan), the job folder, the start, and the retry."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason import checkpoints, jobs, platforms, rules, storage
from cosmos_reason import spec as specs
from cosmos_reason.findings import Failure, Finding, bad_input, error, has_errors
from cosmos_reason.platforms import engines, inputs

OPTIONS = ("docker_host", "network", "endpoint", "checkpoints")  # fields of a request that its record keeps
PLANNED = "JOB_ID"  # stands for the id in a plan; submit makes the real one


@dataclass(frozen=True)
class Request:
    """What a person asks for. `gpu_ids`: None for those the environment shows, [] for the CPU. `checkpoints`: absolute
    folders that an evaluation is repeated for."""

    action: str
    spec_path: Path
    platform: str
    engine: str
    jobs_dir: Path
    working_dir: Path
    gpu_ids: list[str] | None = None
    image: str | None = None
    docker_host: str | None = None
    network: str | None = None
    endpoint: str | None = None
    checkpoints: list[str] | None = None
    retry_of: str | None = None
    resume: str | None = None


def plan(request: Request) -> tuple[dict, list[Finding]]:
    """The record that submit would write, and what stands against it. Touches and fetches nothing."""
    record, _, found = _prepare(request, request.jobs_dir / PLANNED, acting=False)
    return record, found


def submit(request: Request) -> tuple[dict, list[Finding]]:
    """Record a job, then start it. When an error is among the findings, nothing was recorded or started."""
    folder = request.jobs_dir / jobs.new_id(request.action)
    record, spec, found = _prepare(request, folder, acting=True)
    if has_errors(found):
        return record, found
    request.jobs_dir.mkdir(parents=True, exist_ok=True)
    locks = [jobs.take_lock(request.jobs_dir, wait=True)]
    try:
        if busy := _busy(folder, record["outputs"]):
            return record, found + busy
        with storage.whole_folder(folder) as partial:
            locks.insert(0, jobs.take_lock(partial))
            _write(partial, request, record, spec)
        os.close(locks.pop())
        platforms.module(request.platform).start(folder, locks[0])
        platforms.spawn(folder, locks[0])
    except Failure as failure:
        if folder.exists():
            message = "got it recorded but not started, for the reason above"
            failure.findings.append(error("JOB-NOT-STARTED", folder.name, message, jobs.command("status", folder)))
        raise
    finally:
        for lock in locks:
            os.close(lock)
    return record, found


def _write(partial: Path, request: Request, record: dict, spec: dict) -> None:
    """Fill the folder of a job that is to be started."""
    specs.dump(spec, partial / "spec.toml")
    record["spec"]["sha256"] = storage.sha256(partial / "spec.toml")
    if (origins := request.spec_path.with_suffix(".origins.json")).is_file():
        shutil.copyfile(origins, partial / "spec.origins.json")
    if stood := jobs.stamps(record["outputs"].values()):
        storage.write_json(partial / jobs.BEFORE, stood)
    platforms.module(request.platform).write(partial, record, spec)
    jobs.write(partial, record)


def _busy(folder: Path, outputs: dict[str, str]) -> list[Finding]:
    """Errors for outputs in which another job is still at work: what each wrote could not be told apart."""
    found, mine = [], [Path(path) for path in outputs.values() if not path.startswith(f"{folder}/")]
    for made in jobs.folders(folder.parent) if mine else ():
        try:
            theirs = [Path(path) for path in (jobs.read(made).get("outputs") or {}).values()]
            shared = [a for a in mine for b in theirs if a == b or a in b.parents or b in a.parents]
            record = platforms.refresh(made) if shared else {"state": jobs.COMPLETE}
        except Failure as failure:
            record = failure.findings[0].data.get("job", {"state": jobs.ERROR})
        if record["state"] not in jobs.ENDED:
            message = f"got a folder that {made.name} is writing, expected one of its own"
            found.append(error("JOB-OUTPUT-BUSY", shared[0], message, jobs.command("watch", made)))
    return found


def retry(folder: Path, jobs_dir: Path) -> tuple[dict, list[Finding]]:
    """Run an ended job again as a new one, from the newest complete checkpoint it left. Outputs go where they went."""
    record = platforms.refresh(folder)
    if record["state"] not in {jobs.ERROR, jobs.CANCELED}:
        fix = jobs.command("cancel", folder) if record["state"] == jobs.RUNNING else ""
        raise bad_input("JOB-NOT-FAILED", folder.name, f"got {record['state']}, expected ERROR or CANCELED", fix)
    if jobs.spec_edited(record):
        message = "got a spec that was edited after submit, expected the one that ran"
        fix = "submit it as a new job, with train.resume if it is to go on from a checkpoint"
        raise bad_input("JOB-SPEC-EDITED", record["spec"]["path"], message, fix)
    request = Request(
        spec_path=Path(record["spec"]["path"]),
        jobs_dir=jobs_dir,
        working_dir=Path(record["working_dir"]),
        gpu_ids=record["resources"]["gpu_ids"],
        retry_of=record["job_id"],
        resume=_newest_resume(folder, record),
        **{name: record[name] for name in ("action", "platform", "engine", "image")},
        **record.get("options", {}),
    )
    return submit(request)


def _newest_resume(folder: Path, record: dict) -> str | None:
    """The newest complete resume folder that this train job wrote."""
    if record["action"] != "train" or not record["started_at"]:
        return None
    folders = Path(record["outputs"]["output_dir"]).glob("*/checkpoints/*/policy")
    made = [path for path in jobs.made_by(folder, folders) if checkpoints.is_complete_resume(path)]
    newest = max(made, key=lambda path: path.stat().st_mtime, default=None)
    return str(newest) if newest else None


# -- the parts of a launch ---------------------------------------------------------------------------------------------


def _prepare(request: Request, folder: Path, acting: bool) -> tuple[dict, dict, list[Finding]]:
    """(record, spec with absolute paths, findings) of a job in `folder`; makes nothing there."""
    spec = specs.load(request.spec_path)
    if request.resume:
        specs.set_value(spec, "train.resume", request.resume)
    request = dataclasses.replace(request, checkpoints=inputs.models_below(request.checkpoints))
    named, outputs = inputs.resolve(request, folder, spec)
    platform = platforms.module(request.platform)
    found = _flag_findings(request) + engines.check(request.platform, request.engine, request.action)
    about = rules.check(request.action, request.engine, spec, launch=True)
    found += [one for one in about if one.id != "SPEC-ENGINE-ACTION"]  # of which engines.check has said more
    found += inputs.check(request, spec, named) + inputs.check_outputs(request, folder, spec, named)
    if not has_errors(found):
        needed = rules.Case(request.action, request.engine, spec).needed_gpus
        found += _gpu_findings(request, needed) or platform.check(request, needed, acting)
    if has_errors(found):
        return {}, spec, found
    if acting:
        named = inputs.stage(request, spec, named)
    record = _record(request, folder, named, outputs)
    platform.prepare(record, spec)
    return record, spec, found


def _flag_findings(request: Request) -> list[Finding]:
    container = {"--image": request.image, "--docker-host": request.docker_host, "--network": request.network}
    embedded = {"--endpoint": request.endpoint, "--checkpoint": request.checkpoints}
    useless = container if request.platform != "docker" else {}
    useless |= embedded if (request.action, request.engine) != ("evaluate", "transformers") else {}
    message = f"got it for {request.action} with {request.engine} on {request.platform}, which has no use for it"
    return [error("JOB-FLAG", flag, message) for flag, value in useless.items() if value]


def _gpu_findings(request: Request, needed: int) -> list[Finding]:
    """An error for GPUs that are not as many as the spec needs. Only training on cosmos-rl minds further ones; the
    embedded engine runs one process without any."""
    chosen, cosmos = request.gpu_ids, request.engine in rules.COSMOS
    if chosen is None or request.endpoint:
        return []
    few = len(chosen) < needed and (cosmos or needed > 1)
    if not few and not (len(chosen) > needed and cosmos and request.action in rules.TRAINING.split()):
        return []
    ids = chosen if len(chosen) > needed else dict.fromkeys([*filter(str.isdigit, chosen), *map(str, range(needed))])
    message = f"got {len(chosen)} GPUs, the spec needs {needed}"
    return [error("JOB-GPU-COUNT", "--gpu-ids", message, f"--gpu-ids {','.join(list(ids)[:needed])}")]


def _record(request: Request, folder: Path, named: list[dict], outputs: dict[str, str]) -> dict:
    """The record of a job before it starts; the hash of its spec is known once that is written."""
    gpu_ids, path = request.gpu_ids, request.spec_path
    asked = {name: getattr(request, name) for name in ("action", "engine", "platform", "image", "retry_of")}
    to_come = {"reason": "", "started_at": None, "ended_at": None, "exit_code": None, "evidence": {}, "diagnosis": []}
    copied = {"path": str(folder / "spec.toml"), "sha256": None}
    sources = [entry["path"] for entry in named] + (request.checkpoints or [])
    return {"schema_version": 1, "job_id": folder.name, **asked, "state": jobs.PENDING, "created_at": jobs.now()} | {
        **to_come,
        "spec": copied | {"source": str(path), "source_sha256": storage.sha256(path)},
        "command": [],  # the platform fills it in, and what it chooses of the options
        "options": {name: value for name in OPTIONS if (value := getattr(request, name))},
        "working_dir": str(request.working_dir),
        "resources": {"nodes": 1, "gpus_per_node": None if gpu_ids is None else len(gpu_ids), "gpu_ids": gpu_ids},
        "inputs": named,
        "outputs": outputs,
        "platform_ref": {"host": socket.gethostname()},
        "parent_job": jobs.owner(sources),
    }
