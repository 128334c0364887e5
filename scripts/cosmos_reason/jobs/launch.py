"""From a spec to a recorded, running job: what would run (plan), the job folder, the start, and the
retry."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from cosmos_reason.base import bundle, files, job_folder
from cosmos_reason.base.findings import (
    EXIT_CHECKS_FAILED,
    Failure,
    Finding,
    bad_input,
    error,
    has_errors,
    outside,
    say,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import carried, claims, containers, engines, inputs, nodes, platforms
from cosmos_reason.jobs import record as jobs
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import model_names
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import completion, launchable, models
from cosmos_reason.rules.case import COSMOS, Case
from cosmos_reason.spec import actions, document, flat_configs, images, origins, validation

# Fields of a request that its record keeps.
OPTIONS = (
    "docker_host",
    "network",
    "env",
    "endpoint",
    "served_model",
    "checkpoints",
    "entry_script",
    "image_version",
    "carried",
    "slurm_host",
    "partition",
    "account",
    "qos",
    "time_limit",
    "gres",
    "exclusive",
    "requeue",
    "cpus",
    "memory",
    "modules",
    "kubernetes",
)
# Flags that only some platforms take (their TAKES), with the field of a request that holds them.
PLATFORM_FLAGS = {
    "--image": "image",
    "--docker-host": "docker_host",
    "--network": "network",
    "--env": "env",
    "--output": "carried",
    "--partition": "partition",
    "--account": "account",
    "--qos": "qos",
    "--time-limit": "time_limit",
    "--gres": "gres",
    "--exclusive": "exclusive",
    "--requeue": "requeue",
    "--module": "modules",
    "--cpus": "cpus",
    "--memory": "memory",
}
PLANNED = "JOB_ID"  # stands for the id in a plan; submit makes the real one


@dataclass(frozen=True)
class Request:
    """What a person asks for.

    `gpu_ids`: None for those the environment shows, [] for the CPU. `env`: names of variables that
    a container gets besides the usual ones. `checkpoints`: absolute folders that an evaluation is
    repeated for. `entry_script`: in place of our dataset script the absolute path of another one,
    or "image" for that of NVIDIA's image.
    `image_version`: the version of NVIDIA's that `image` is, where its name does not tell.
    `carried`: the plan is for a machine that is not asked, whose paths are not here.
    `nodes`: None for those that the spec was laid out for, else as few as hold its GPUs.
    `slurm_host`: the login node, where it is not this machine; from `partition` to `requeue` what
    sbatch is asked for. `cpus` and `memory` are of each node or pod; `modules` are loaded by the
    nodes. `kubernetes`: what is said of a cluster and of the pods there, by the names of the flags.
    """

    action: str
    spec_path: Path
    platform: str
    engine: str
    jobs_dir: Path
    working_dir: Path
    nodes: int | None = None
    gpu_ids: list[str] | None = None
    image: str | None = None
    image_version: str | None = None
    docker_host: str | None = None
    network: str | None = None
    env: list[str] | None = None
    endpoint: str | None = None
    served_model: str | None = None
    checkpoints: list[str] | None = None
    entry_script: str | None = None
    carried: bool = False
    slurm_host: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_limit: str | None = None
    gres: str | None = None
    exclusive: bool = False
    requeue: bool = False
    cpus: int | None = None
    memory: str | None = None
    modules: list[str] | None = None
    kubernetes: dict | None = None
    retry_of: str | None = None
    resume: str | None = None

    @property
    def own_script(self) -> Path | None:
        """Somebody's own dataset script, which knows where its data are."""
        is_own = self.entry_script and self.entry_script != engines.IMAGES_SCRIPT
        return Path(self.entry_script) if is_own else None


def plan(request: Request) -> tuple[Job | None, list[Finding]]:
    """The record that submit would write, and what stands against it; None with an error. Touches
    and fetches nothing."""
    job, _, found = _prepare(request, request.jobs_dir / PLANNED, acting=False)
    return job, found


def carry(
    request: Request, output: Path, host_user: str | None
) -> tuple[Job | None, list[Finding]]:
    """Write the plan as a folder to carry to the machine that runs it."""
    job, spec, found = _prepare(request, carried.JOB, acting=False)
    if job:
        carried.write(job, containers.spec_inside(job, spec), output, host_user)
    return job, found


def submit(request: Request) -> tuple[Job | None, list[Finding]]:
    """Record a job, then start it. When an error is among the findings, nothing was recorded or
    started."""
    folder = request.jobs_dir / jobs.new_id(request.action)
    job, spec, found = _prepare(request, folder, acting=True)
    if job is None:
        return None, found
    try:
        with claims.held(folder, job.outputs.values()) as busy:
            if busy:
                return job, found + busy
            job, lock = _recorded(job, request, spec)
    except OSError as problem:
        raise _not_recorded(problem, request) from None
    try:
        platforms.module(job.platform).start(job, lock)
        platforms.spawn(job, lock)
    except Failure as failure:
        reason = failure.findings[0].message
        message = f"The job was recorded but could not be started: {reason}"
        fix = jobs.command("status", folder)
        failure.findings.append(error("JOB-NOT-STARTED", folder.name, message, fix))
        raise
    except KeyboardInterrupt:
        told = f"{folder.name} was recorded: {jobs.command('status', folder)} tells whether it runs"
        say(told)
        raise
    finally:
        os.close(lock)
    return job, found


def _not_recorded(problem: OSError, request: Request) -> Failure:
    message = f"got {problem.strerror or problem}, expected room for a job and the right to write"
    elsewhere = "--jobs-dir where there is room"
    if request.retry_of:  # --jobs-dir is where it is looked for, unless its path is given
        again = ["scripts/launch_job.py", "retry", str(request.spec_path.parent)]
        elsewhere = f"{shlex.join(again)} --jobs-dir DIR"
    problem.filename = problem.filename or str(request.jobs_dir)
    ways = [way for way in (files.way_out(problem), elsewhere) if way]
    return outside("JOB-FOLDER", problem.filename, message, "; or ".join(ways))


def _recorded(job: Job, request: Request, spec: dict) -> tuple[Job, int]:
    """Make the folder of a job that is to be started. Returns the record as it was written, and the
    lock, which is held from the first moment on."""
    with files.whole_folder(job.folder) as partial:
        lock = jobs.take_lock(partial)
        try:
            job = _write(partial, job, request, spec)
        except BaseException:
            os.close(lock)
            raise
    return job, lock


def _write(partial: Path, job: Job, request: Request, spec: dict) -> Job:
    """Fill the folder of a job that is to be started."""
    document.dump(spec, partial / jobs.SPEC, job.action, engine=job.engine)
    digest = files.sha256(partial / jobs.SPEC)
    job = replace(job, spec=job.spec | {"sha256": digest})
    beside = origins.path_beside(request.spec_path)
    if beside.is_file():
        shutil.copyfile(beside, origins.path_beside(partial / jobs.SPEC))
        if job.action in actions.TRAINING:
            gpus = _needed_gpus(request, spec)
            origins.note_nodes(partial / jobs.SPEC, job.resources["nodes"], gpus)
    stamps = jobs.stamps(job.outputs.values())
    if stamps:
        files.write_json(partial / jobs.BEFORE, stamps)
    job = platforms.module(job.platform).write(partial, job, spec)
    replace(job, folder=partial).write()
    return job


def retry(
    folder: Path, jobs_dir: Path, memory: str | None = None
) -> tuple[Job | None, list[Finding]]:
    """Run an ended job again as a new one, from the newest complete checkpoint it left. Outputs go
    where they went. `memory` takes the place of what it asked for."""
    job = platforms.settled(folder)
    if job.state not in {jobs.ERROR, jobs.CANCELED}:
        message = f"got {job.state}, expected ERROR or CANCELED"
        fix = jobs.command("cancel", folder) if job.state == jobs.RUNNING else ""
        raise bad_input("JOB-NOT-FAILED", folder.name, message, fix)
    if job.spec_edited():
        message = "got a spec that was edited after submit, expected the one that ran"
        fix = "submit it as a new job, with train.resume if it is to go on from a checkpoint"
        raise bad_input("JOB-SPEC-EDITED", job.spec_path, message, fix)
    options = job.options | {"memory": memory} if memory else job.options
    request = Request(
        action=job.action,
        spec_path=job.spec_path,
        platform=job.platform,
        engine=job.engine,
        jobs_dir=jobs_dir,
        working_dir=Path(job.working_dir),
        nodes=job.resources["nodes"],
        gpu_ids=job.resources["gpu_ids"],
        image=job.image,
        retry_of=job.job_id,
        resume=job.newest_resume(),
        **options,
    )
    return submit(request)


# -- the parts of a launch ---------------------------------------------------------------------


def objections(request: Request) -> list[Finding]:
    """What plan has against a request without asking its platform."""
    spec, found = _read(request)
    named, _ = inputs.resolve(request, request.jobs_dir / PLANNED, spec)
    return found + _objections(request, request.jobs_dir / PLANNED, spec, named, acting=False)


def _read(request: Request) -> tuple[dict, list[Finding]]:
    """(the completed spec, what was written for that). Raises Failure: exit 2 for what is no spec,
    exit 1 for one of another action."""
    spec = document.load(request.spec_path)
    if request.retry_of:  # of a job that was moved or copied: into the folder that was named
        spec = job_folder.here(request.spec_path.parent, spec)
    if flat_configs.is_one(spec):
        where = files.from_here(request.spec_path)
        refused = flat_configs.refusal(where, spec, request.engine)
        raise Failure(refused, EXIT_CHECKS_FAILED)
    if actions.other_than(request.action, spec):
        raise Failure(validation.validate(request.action, spec), EXIT_CHECKS_FAILED)
    completed, found = completion.completed(request.action, spec)
    return completed, found + _image_findings(request, spec)


def _objections(
    request: Request, folder: Path, spec: dict, named: list[dict], acting: bool
) -> list[Finding]:
    """All that can be said of flags, image, spec, inputs, outputs and the number of GPUs."""
    platform = platforms.module(request.platform)
    found = _flag_findings(request) + platform.check_words(request)
    found += launchable.check(request.platform, request.engine, request.action)
    found += _spec_findings(request, spec)
    found += inputs.check(request, spec, named, platform.machine(request), acting)
    found += inputs.check_outputs(request, folder, spec, named)
    if has_errors(found):
        return found
    needed = _needed_gpus(request, spec)
    laid_out = _with_nodes(request, needed)
    found += nodes.check(laid_out, needed) or _gpu_findings(laid_out, needed)
    if request.retry_of is None:
        found += nodes.remarks(request.nodes, request.action, request.spec_path, needed)
    return found


def _unserved(request: Request, spec: dict) -> list[Finding]:
    """An error where the server does not serve the model that a job of this machine would ask for.
    All other trouble with a server is the job's, which tries again."""
    if not request.endpoint or request.platform != "local":
        return []
    from cosmos_reason.remote.chat import ChatServer

    options = document.with_defaults(request.action, spec)["custom"]["endpoint"]
    name = document.get(spec, actions.places(request.action)["model"])
    try:
        server = ChatServer(
            request.endpoint,
            flag="--endpoint",
            naming="--served-model",
            key_variable=options["api_key_variable"],
            timeout=options["timeout"],
            concurrency=1,
            attempts=1,
        )
        with server.connected():
            server.check_model(request.served_model or name.removeprefix(model_names.HUB))
    except Failure as failure:
        return [found for found in failure.findings if found.id == "EVAL-ENDPOINT-MODEL"]
    return []


def _with_nodes(request: Request, needed: int) -> Request:
    """On the nodes that the spec was laid out for, unless others were asked for."""
    count = nodes.asked(request.nodes, request.action, request.spec_path, needed)
    return replace(request, nodes=count)


def _needed_gpus(request: Request, spec: dict) -> int:
    return Case(request.action, request.engine, spec).needed_gpus


def _prepare(
    request: Request, folder: Path, acting: bool
) -> tuple[Job | None, dict, list[Finding]]:
    """(record, spec with absolute paths, findings) of a job in `folder`; makes nothing there. There
    is no record when an error is among the findings."""
    spec, found = _read(request)
    if request.resume:
        document.set_value(spec, "train.resume", request.resume)
    request = dataclasses.replace(request, checkpoints=inputs.models_below(request.checkpoints))
    named, outputs = inputs.resolve(request, folder, spec)
    platform = platforms.module(request.platform)
    found += _objections(request, folder, spec, named, acting)
    if has_errors(found):
        return None, spec, found
    needed = _needed_gpus(request, spec)
    request = _with_nodes(request, needed)
    found += platform.check(request, needed, acting)
    if has_errors(found):
        return None, spec, found
    if request.requeue:
        found += inputs.go_on_anew(request, folder, spec, outputs)
        if has_errors(found):
            return None, spec, found
    job = _job(request, folder, needed, named, outputs)
    if acting:
        found += platform.unseen(job, spec) + _unserved(request, spec)
        if has_errors(found):
            return None, spec, found
        job = replace(job, inputs=inputs.stage(request, spec, named))
    _leave_out_own_keys(request, spec)
    return platform.prepare(job, spec), spec, found


def _leave_out_own_keys(request: Request, spec: dict) -> None:
    """Take keys of ours out of a spec that another engine reads, which would refuse them."""
    for key, schema in document.keys(request.action).items():
        if schema.get("x-own") and request.engine not in schema["x-engines"]:
            document.delete(spec, key)


def _spec_findings(request: Request, spec: dict) -> list[Finding]:
    """What the rules have against the spec, without what does not matter for this launch."""
    ignored = {"SPEC-ENGINE-ACTION"}  # launchable.check has said more about it
    if request.endpoint or request.checkpoints:
        ignored |= models.OF_LOADED_MODEL
    has_own_data = request.own_script is not None
    found = rules.check(
        request.action, request.engine, spec, launch=True, has_own_data=has_own_data
    )
    return [finding for finding in found if finding.id not in ignored]


def _useless_flags(request: Request) -> dict[str, object]:
    """The flags that this action, engine and platform have no use for, with their values."""
    takes = platforms.module(request.platform).TAKES
    useless = {}
    for flag, name in PLATFORM_FLAGS.items():
        if name not in takes:
            useless[flag] = getattr(request, name)
    if "kubernetes" not in takes:
        for name, value in (request.kubernetes or {}).items():
            useless[f"--{name.replace('_', '-')}"] = value
    asks = request.action in bundle.skill_info()["endpoint_actions"]
    if not asks or request.engine != "transformers":
        useless |= {"--endpoint": request.endpoint, "--checkpoint": request.checkpoints}
    if not _takes_images_of_nvidia(request):
        useless |= {"--image-version": request.image_version}
    if not _takes_entry_script(request):
        useless |= {"--entry-script": request.entry_script}
    return {flag: value for flag, value in useless.items() if value}


def _flag_findings(request: Request) -> list[Finding]:
    what = f"{request.action} with {request.engine} on {request.platform}"
    message = f"got it for {what}, which has no use for it"
    found = []
    for flag, value in _useless_flags(request).items():
        drop = Fix(command="drop", flags={flag: value})
        if flag == "--checkpoint":  # what it named was looked up: those are not the user's words
            drop = Fix(command="drop --checkpoint")
        found.append(error("JOB-FLAG", flag, message, drop))
    if request.served_model and not request.endpoint:
        message = "got it without --endpoint, expected the server that serves the model"
        fix = Fix(flags={"--endpoint": "http://HOST:8000/v1"})
        found.append(error("JOB-FLAG", "--served-model", message, fix))
    for name in () if request.carried else request.env or ():
        if not os.environ.get(name):
            message = "got a variable without a value here, expected it set"
            found.append(error("JOB-ENV", f"--env {name}", message, f"export {name}=VALUE"))
    return found


def _takes_entry_script(request: Request) -> bool:
    if request.own_script:
        return request.action in actions.TRAINING and request.engine in COSMOS
    return request.action == "train" and _takes_images_of_nvidia(request)


def _takes_images_of_nvidia(request: Request) -> bool:
    takes = platforms.module(request.platform).TAKES
    return request.engine == images.ENGINE and "image" in takes


def _image_findings(request: Request, written: dict) -> list[Finding]:
    """What the spec, as it was written, and the environment ask of NVIDIA's image."""
    if not _takes_images_of_nvidia(request):
        return []
    image = request.image or images.default(request.engine)
    found = images.check(request.action, written, image, request.image_version)
    return found + images.refused_variables(request.env or [], image, request.image_version)


def _gpu_findings(request: Request, needed: int) -> list[Finding]:
    """An error for GPUs that are not as many as the spec needs. Only training minds further ones;
    the embedded engine does without any where one is enough, and trains without any on as many
    processes."""
    chosen = request.gpu_ids
    if chosen is None or request.endpoint:
        return []
    trains = request.action in actions.TRAINING
    does_without = request.engine not in COSMOS and (trains or needed <= 1)
    if does_without and not chosen:
        return []
    if len(chosen) < needed or (trains and len(chosen) > needed):
        return [_wrong_count(request, needed)]
    return []


def _wrong_count(request: Request, needed: int) -> Finding:
    chosen = request.gpu_ids
    message = f"got {len(chosen)} GPUs, the spec needs {needed}"
    if len(chosen) < needed:
        numbered = [gpu_id for gpu_id in chosen if gpu_id.isdigit()]
        offered = list(dict.fromkeys([*numbered, *map(str, range(needed))]))
        fix = Fix(flags={"--gpu-ids": ",".join(offered[:needed])})
        if platforms.module(request.platform).CHOOSES_GPUS:
            fix = f"drop --gpu-ids {','.join(chosen) or 'none'}"
        return error("JOB-GPU-COUNT", "--gpu-ids", message, fix)
    fewer = Fix(flags={"--gpu-ids": ",".join(chosen[:needed])})
    if len(chosen) not in bundle.skill_info()["gpu_counts_per_node"]:
        return error("JOB-GPU-COUNT", "--gpu-ids", message, fewer)
    fix = nodes.rebuilt(request, len(chosen))
    message += f": the fix lets it use all of them, {fewer} so many"
    message += "; a step of more GPUs has more records, unless --global-batch says otherwise"
    return error("JOB-GPU-COUNT", "--gpu-ids", message, fix)


def _job(
    request: Request, folder: Path, needed: int, named: list[dict], outputs: dict[str, str]
) -> Job:
    """The record of a job before it starts. The hash of its spec is known once that is written; the
    platform fills in the command and what it chooses of the options."""
    options = {name: getattr(request, name) for name in OPTIONS}
    sources = [entry["path"] for entry in named] + (request.checkpoints or [])
    return Job(
        folder=folder,
        job_id=folder.name,
        action=request.action,
        engine=request.engine,
        platform=request.platform,
        created_at=jobs.now(),
        spec={
            "path": str(folder / jobs.SPEC),
            "sha256": None,
            "source": str(request.spec_path),
            "source_sha256": files.sha256(request.spec_path),
        },
        working_dir=str(request.working_dir),
        image=request.image,
        options={name: value for name, value in options.items() if value},
        resources=_resources(request, needed),
        inputs=named,
        outputs=outputs,
        platform_ref={"host": socket.gethostname()},
        parent_job=jobs.owner(sources),
        retry_of=request.retry_of,
    )


def _resources(request: Request, needed: int) -> dict:
    """What the record says of nodes and GPUs."""
    node_count = 1 if request.endpoint else nodes.count(request.nodes, needed)
    gpus = None
    if node_count > 1 or platforms.module(request.platform).CHOOSES_GPUS:
        gpus = 0 if request.endpoint else max(1, needed // node_count)
    if request.gpu_ids is not None:
        gpus = len(request.gpu_ids)
    return {"nodes": node_count, "gpus_per_node": gpus, "gpu_ids": request.gpu_ids}
