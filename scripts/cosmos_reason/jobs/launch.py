"""From flags and a spec to a recorded, running job: what a launch is (`read`), what would run
(`plan`), the start (`submit`) and the next attempt of a job (`next_attempt`). All go through
`_prepare`, which, acting, also asks the machine that will run the job, and fetches inputs.

A Launch never changes. Each step that writes into its spec (absolute paths, a folder for results,
what was fetched) returns a new Launch with a copy of it.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from cosmos_reason.base import bundle, files, job_folder
from cosmos_reason.base.findings import (
    EXIT_CHECKS_FAILED,
    EXIT_OUTSIDE,
    Failure,
    Finding,
    bad_input,
    error,
    has_errors,
    outside,
    say,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.site import UNKNOWN, Site
from cosmos_reason.jobs import inputs, nodes, platforms, record
from cosmos_reason.jobs.options import (
    FLAGGED,
    OF_ONE_PLACE,
    Launch,
    flag_of,
    is_taken,
    of_record,
    taken,
    unflagged,
)
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote import model_names
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import completion, launchable, models
from cosmos_reason.rules.case import Case
from cosmos_reason.spec import actions, document, flat_configs, images, origins, validation

PLANNED = "JOB_ID"  # stands for the id in a plan; submit makes the real one


# -- the launch, read once ---------------------------------------------------------------------


def read(
    spec_path: Path,
    platform: str,
    jobs_dir: Path,
    working_dir: Path,
    action: str | None = None,
    engine: str | None = None,
    retry_of: str | None = None,
    resume: str | None = None,
    facts: Path | None = None,
    site: Site | None = None,
    **options: Any,
) -> Launch:
    """Read what a launch is: the one place where its spec is loaded, completed and checked.

    Without `action` and `engine` they are those of the spec; `options` are fields of `Options`,
    `facts` the dataset_facts.json that the rules look at. With a `site` what the flags leave
    out is the site's, and paths of the site are looked at where they lie here. Asks no platform and
    fetches nothing.
    Raises Failure: exit 2 for what is no spec and for checkpoints that are none, exit 1 for the
    spec of another trainer or action.
    """
    written = document.load(spec_path)
    action = action or actions.of_table(written, spec_path)
    engine = engine or origins.engine_of(spec_path, platform, action, written)
    if retry_of:  # of a job that was moved or copied: into the folder that was named
        written = job_folder.here(spec_path.parent, written)
    # Refused before it is completed: what another trainer leaves out means other values.
    if flat_configs.is_flat_config(written):
        where = files.from_here(spec_path)
        raise Failure(flat_configs.refusal(where, written, engine), EXIT_CHECKS_FAILED)
    if actions.other_than(action, written):
        raise Failure(validation.validate(action, written), EXIT_CHECKS_FAILED)
    # What the trainer would not know by itself is written into the spec, and told in `completed`.
    spec, found = completion.completed(action, written)
    if resume:
        document.set_value(spec, "train.resume", resume)
    for name, value in unflagged(platform, site, options.get("carried", False)).items():
        if options.get(name) is None:
            options[name] = value
    if site and not options.get("carried"):
        place = {"environment": site.get("environment"), "skill": site.get("skill_dir")}
        place["offline"] = site.is_offline
        options["place"] = {name: value for name, value in place.items() if value}
    if options.get("image") is None and is_taken("image", platform):
        options["image"] = images.default(engine)
    launch = Launch(
        action=action,
        engine=engine,
        platform=platform,
        spec_path=spec_path,
        jobs_dir=jobs_dir,
        working_dir=working_dir,
        folder=jobs_dir / PLANNED,
        retry_of=retry_of,
        site=site,
        written=written,
        spec=spec,
        **options,
    )
    # The rules look at paths as the job will have them, so these are made absolute first.
    launch = inputs.resolved(launch)
    case, broken = examined(launch, facts)
    if not facts and origins.facts_of(spec_path) and origins.of_values(spec_path):
        # build_spec knew how long the records are, and the spec is as it left it.
        broken = [finding for finding in broken if finding.id != "SPEC-LENGTH-LOW"]
    # NVIDIA's image is asked about the spec as it was written: completed, it has keys of ours.
    if launch.image and (refused := images.of_framework(launch.image)):
        found += refused
    elif _takes_images_of_nvidia(launch):
        found += images.check(action, written, launch.image, launch.image_version)
        found += images.refused_variables(launch.env or [], launch.image, launch.image_version)
    launch = replace(launch, case=case, completed=found, broken=broken)
    if launch.nodes or action not in actions.TRAINING:
        return launch
    return replace(launch, nodes=origins.nodes_of(spec_path, launch.needed_gpus))


def examined(
    launch: Launch,
    facts: Path | None = None,
    gpus_per_node: int | None = None,
    nodes: int = 1,
) -> tuple[Case, list[Finding]]:
    """Return the case of a launch and what the rules have against its spec, but for what does not
    matter where it is launched. With `facts` of its data they look at lengths and steps too, with
    GPUs and nodes at its layout on them."""
    case, found = rules.examined(
        launch.action,
        launch.engine,
        launch.spec,
        facts,
        gpus_per_node,
        nodes,
        launch=True,
        has_own_data=launch.own_script is not None,
    )
    ignored = {"SPEC-ENGINE-ACTION"}  # launchable.check says more about it
    if launch.endpoint or launch.checkpoints:
        ignored |= models.OF_LOADED_MODEL
    return case, [finding for finding in found if finding.id not in ignored]


def _in_folder(launch: Launch, folder: Path) -> Launch:
    """Return the launch as the job of a folder: results without a place of their own go there."""
    spec = copy.deepcopy(launch.spec)
    outputs = dict(launch.outputs)
    for key, schema in document.keys(launch.action).items():
        # What the engine does not read would make a folder that nobody writes to.
        is_read = launch.engine in schema["x-engines"]
        if schema.get("x-path") == "output" and is_read and document.get(spec, key, "") == "":
            outputs[key.rpartition(".")[2]] = str(folder / "results")
            document.set_value(spec, key, str(folder / "results"))
    return replace(launch, folder=folder, spec=spec, outputs=outputs)


# -- the verbs ---------------------------------------------------------------------------------


def plan(launch: Launch) -> tuple[Job | None, list[Finding]]:
    """Return the record that submit would write, and what stands against it; no record with an
    error. Touches and fetches nothing."""
    job, _, found = _prepare(_in_folder(launch, launch.folder), acting=False)
    return job, found


def carry(
    launch: Launch, output: Path, host_user: str | None = None, name: str | None = None
) -> tuple[Job | None, list[Finding]]:
    """Write the plan as a folder to carry to the machine that runs it; `name` is that of the file
    which starts it."""
    from cosmos_reason.jobs import carried  # no other verb writes one

    misnamed = carried.check_name(name, launch.platform) if name else []
    if misnamed:
        return None, misnamed
    folder = carried.JOB
    if launch.platform != "docker":  # the folder that is written, by its path there
        folder = Path(os.path.abspath(output))
        folder = Path(launch.site.there(str(folder))) if launch.site else folder
    if launch.platform == "kubernetes" and not carried.KUBERNETES_NAME.fullmatch(folder.name):
        message = (
            f"got {folder.name!r}, which names the Job: expected small letters, digits and -, "
        )
        message += "52 at most"
        better = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:52].strip("-") or "job"
        fix = Fix(flags={"--output": str(output.with_name(better))})
        return None, [error("JOB-K8S-NAME", output, message, fix)]
    job, spec, found = _prepare(_in_folder(launch, folder), acting=False)
    if job:
        lines = carried.unknown_commits(job, launch.site) if launch.site else []
        if lines:  # in one warning with what else the site does not say
            told = [one for one in found if one.id == UNKNOWN]
            lines = [line for one in told for line in one.data["lines"]] + lines
            found = [one for one in found if one not in told] + launch.site.unknown(lines)
        carried.write(job, spec, launch, output, host_user, name, found)
    return job, found


def submit(launch: Launch) -> tuple[Job | None, list[Finding]]:
    """Record a job, then start it. When an error is among the findings, nothing was recorded or
    started."""
    from cosmos_reason.jobs import claims  # a plan writes nowhere

    # Only now is there an id, and with it a folder for results that have no place of their own.
    folder = launch.jobs_dir / record.new_id(launch.action)
    launch = _in_folder(launch, folder)
    job, spec, found = _prepare(launch, acting=True)
    if job is None:
        return None, found
    try:
        # Two jobs that write into one folder would each take the other's files for its evidence.
        with claims.held(folder, job.outputs.values()) as busy:
            if busy:
                return None, found + busy
            job, lock = _recorded(job, launch, spec)
    except OSError as problem:
        message = f"got {problem.strerror or problem}, expected room for a job and the right to "
        message += "write"
        elsewhere = "--jobs-dir DIR"
        if launch.retry_of:  # --jobs-dir is where it is looked for, unless its path is given
            again = ["scripts/launch_job.py", "retry", str(launch.spec_path.parent)]
            elsewhere = f"{shlex.join(again)} --jobs-dir DIR"
        problem.filename = problem.filename or str(launch.jobs_dir)
        way = files.way_out(problem)
        message += f"; {way}, or a folder elsewhere" if way else ""
        raise outside("JOB-FOLDER", files.place(problem), message, elsewhere) from None
    # The record is there before anything starts: were this process killed at any moment from here
    # on, whoever asks for the job's state finds it, and its platform tells what became of it.
    try:
        job = platforms.module(job.platform).start(job, lock)
        platforms.spawn(job, lock)
    except Failure as failure:
        failure.findings.append(_not_started(folder, failure.findings[0].message))
        raise
    except OSError as problem:  # the disk is full, or its record may not be written
        told = _not_started(folder, f"got {problem.strerror or problem} of {problem.filename}")
        raise Failure([told], EXIT_OUTSIDE) from None
    except KeyboardInterrupt:
        look = record.command("status", folder)  # the key may have come when it ran already
        say(f"{folder.name} was recorded: {look} tells whether it runs")
        raise
    finally:
        os.close(lock)  # a supervisor, where there is one, has inherited it and keeps it
    return job, found


def _not_started(folder: Path, reason: str) -> Finding:
    """Return what is said of a job that is recorded and was not started, or of which nobody knows
    whether it was: what refused it has ended it in its record."""
    is_refused = Job.load_unchecked(folder).state == record.ERROR
    told = "could not be started" if is_refused else "whether it was started is not known"
    message = f"The job was recorded, and {told}: {reason}"
    return error("JOB-NOT-STARTED", folder.name, message, record.command("status", folder))


def next_attempt(
    folder: Path,
    jobs_dir: Path,
    memory: str | None = None,
    site: Site | None = None,
    carried: bool = False,
) -> Launch:
    """Return the launch that runs an ended job again as a new one, from the newest complete
    checkpoint it left. Outputs go where they went. `memory` takes the place of what it asked for;
    with a `site` it runs there, and nothing of the place of the first attempt comes along.

    Raises Failure (exit 2) for a job that has not failed or whose spec was edited."""
    job = platforms.settled(folder)  # it may have ended since somebody last looked
    # Of a complete evaluation the questions that failed are asked again, as of a server that erred.
    if job.state not in {record.ERROR, record.CANCELED} and not job.evidence.get("failed"):
        message = f"got {job.state}, expected ERROR or CANCELED"
        if job.state == record.RUNNING:  # what is pasted must not end work that goes on
            message += "; launch_job.py cancel ends it"
        raise bad_input("JOB-NOT-FAILED", folder.name, message)
    if job.spec_edited():
        # A run that goes on with other values would be neither the one nor the other.
        message = "got a spec that was edited after submit, expected the one that ran; "
        message += "submit it as a new job, with train.resume if it is to go on from a checkpoint"
        words = ["plan", job.action, "--spec", str(job.spec_path), "--engine", job.engine]
        fix = shlex.join(["scripts/launch_job.py", *words, "--platform", job.platform])
        raise bad_input("JOB-SPEC-EDITED", job.spec_path, message, fix)
    said = of_record(job.options) | {"gpu_ids": job.resources["gpu_ids"], "image": job.image}
    if site:  # what was said of the first place is not true of another one
        left = set(site.options()) | (OF_ONE_PLACE if job.site != site.name else set())
        left |= {"image"} if site.get("environment") else set()
        taken_there = taken({name: said[name] for name in said.keys() & FLAGGED}, site.platform)
        said = {name: value for name, value in taken_there.items() if name not in left}
        if said.get("gpu_ids") and platforms.module(site.platform).CHOOSES_GPUS:
            del said["gpu_ids"]
    if memory:
        said["memory"] = memory
    said["nodes"] = job.resources["nodes"]
    return read(
        job.spec_path,
        site.platform if site else job.platform,
        jobs_dir,
        Path(job.working_dir),
        action=job.action,
        engine=job.engine,
        retry_of=job.job_id,
        resume=job.newest_resume(),
        site=site,
        carried=carried,
        **said,
    )


# -- what stands against a launch --------------------------------------------------------------


def objections(launch: Launch, acting: bool = False) -> list[Finding]:
    """Return all that can be said of a launch without asking its platform. Where the inputs lie on
    another machine, that one is asked only to act."""
    machine = platforms.module(launch.platform).machine(launch)
    found = launch.completed + launch.broken + in_itself(launch)
    found += inputs.absences(launch, machine, acting)
    if launch.retry_of is None:
        found += nodes.remarks(launch)
    return found


def in_itself(launch: Launch) -> list[Finding]:
    """Return what stands against the flags, the image, the outputs, the number of GPUs and nodes,
    and against the inputs that are here: what no machine has to be asked for."""
    found = _flag_findings(launch) + platforms.module(launch.platform).check_words(launch)
    is_site = launch.site is not None
    found += launchable.check(launch.platform, launch.engine, launch.action, is_site)
    found += inputs.contents(launch) + inputs.check_outputs(launch)
    if has_errors(found + launch.completed + launch.broken):
        return found  # of such a spec nobody knows how many GPUs it needs
    refused = nodes.check(launch)
    if refused:
        return found + refused
    return found + _gpu_findings(launch) + (_of_site(launch) if launch.site else [])


def named_otherwise(launch: Launch) -> list[tuple[str, str]]:
    """Return (path here, the same there) of what the launch's site calls otherwise than this
    machine, which hands its own paths to a job that it submits."""
    named = [entry["path"] for entry in launch.inputs] + [*launch.outputs.values()]
    named += [*(launch.checkpoints or []), launch.entry_script or "", str(launch.jobs_dir)]
    pairs = [(path, launch.site.there(path)) for path in dict.fromkeys(named)]
    return [(here, there) for here, there in pairs if here != there]


def folder_there(launch: Launch) -> str:
    """Return a folder to write the launch out into, which lies at its site, too."""
    holder = Path(next(iter(launch.site.paths.values())))
    return files.from_here(holder / f"{launch.action}-there")


def _of_site(launch: Launch) -> list[Finding]:
    """Return what the site's own words say against the launch, and what they leave out."""
    site, found, lines = launch.site, [], []
    others = [] if launch.carried else named_otherwise(launch)
    if others:
        here, there = others[0]
        message = f"{files.from_here(here)} is {there} there, and a job that is submitted from "
        message += "here gets the paths of this machine: write it out for there, or submit it there"
        words = ["scripts/launch_job.py", "plan", launch.action]
        words += ["--spec", files.from_here(launch.spec_path), "--site", str(site.path)]
        fix = Fix(command=shlex.join(words), flags={"--output": folder_there(launch)})
        found.append(error("JOB-SITE-PATHS", site.path, message, fix))
    node_count, needed = nodes.layout(launch)
    there = site.get("gpus.count")
    if there is None and needed:
        lines.append("gpus: {type: TYPE, count: N}")
    if there is not None and there < needed:
        message = f"{site.path} says {there} GPUs of a node, the spec needs {needed}"
        fix = nodes.rebuilt(launch, there) if there in (1, 2, 4, 8) else ""
        found.append(error("JOB-GPU-COUNT", "gpus.count", message, fix))
    for one in launch.gpu_ids or []:
        if there is not None and one.isdigit() and int(one) >= there:
            message = f"got GPU {one}; {site.path} says {there} GPUs, numbered from 0"
            found.append(error("JOB-GPU-IDS", "--gpu-ids", message))
    if site.get("nodes") and node_count > site.get("nodes"):
        message = f"got {node_count} nodes, {site.path} says {site.get('nodes')}"
        found.append(error("JOB-NODES-THERE", "nodes", message))
    # What the site does not say is told once, as the lines that would say it.
    for entry in launch.inputs:
        path = entry["path"]
        if "://" in path or site.is_placed(path):
            continue
        if os.path.exists(path):
            lines.append(f"paths: {{THERE: {path}}}")
        elif document.keys(launch.action).get(entry["role"], {}).get("x-path") == "model":
            lines.append(f"models: {{{path}: ORG/NAME}}")
        else:
            lines.append(f"paths: {{{path}: HERE}}")
    return found + site.unknown(lines)


def _unserved(launch: Launch) -> list[Finding]:
    """Return an error where the server does not serve the model that a job of this machine would
    ask for. All other trouble with a server is the job's, which tries again."""
    if not launch.endpoint or launch.platform != "local":
        return []
    from cosmos_reason.remote.chat import ChatServer

    options = document.with_defaults(launch.action, launch.spec)["custom"]["endpoint"]
    name = document.get(launch.spec, actions.places(launch.action)["model"])
    try:
        server = ChatServer(
            launch.endpoint,
            flag="--endpoint",
            naming="--served-model",
            key_variable=options["api_key_variable"],
            timeout=options["timeout"],
            concurrency=1,
            attempts=1,
        )
        with server.connected():
            server.check_model(launch.served_model or name.removeprefix(model_names.HUB))
    except Failure as failure:
        return [found for found in failure.findings if found.id == "EVAL-ENDPOINT-MODEL"]
    return []


def _flag_findings(launch: Launch) -> list[Finding]:
    """Refuse flags that this action, engine or platform has no use for, and words that need
    others."""
    useless = set(launch.useless(launch.platform))
    given = {flag_of(name): value for name, value in launch.given().items()}
    asks = launch.action in bundle.skill_info()["endpoint_actions"]
    if not asks or launch.engine != "transformers":
        useless |= {"--endpoint", "--checkpoint"} & given.keys()
    if not _takes_images_of_nvidia(launch):
        useless |= {"--image-version"} & given.keys()
    takes_script = launch.action == "train" and _takes_images_of_nvidia(launch)
    if launch.own_script:  # which any cosmos-rl runs
        takes_script = launch.action in actions.TRAINING and bundle.is_cosmos_rl(launch.engine)
    if not takes_script:
        useless |= {"--entry-script"} & given.keys()
    message = f"it has no effect on {launch.action} with {launch.engine} on {launch.platform}"
    found = []
    for flag in sorted(useless):
        drop = Fix(command="drop", flags={flag: given.get(flag, True)})
        if flag == "--checkpoint":  # what it named was looked up: those are not the user's words
            drop = Fix(command="drop --checkpoint")
        found.append(error("JOB-FLAG", flag, message, drop))
    if launch.served_model and not launch.endpoint:
        message = "--served-model needs --endpoint, the server that serves the model"
        fix = Fix(flags={"--endpoint": "http://HOST:8000/v1"})
        found.append(error("JOB-FLAG", "--served-model", message, fix))
    for name in () if launch.carried else launch.env or ():
        if not os.environ.get(name):
            message = "got a variable without a value here, expected it set"
            found.append(error("JOB-ENV", f"--env {name}", message, f"export {name}=VALUE"))
    return found


def _takes_images_of_nvidia(launch: Launch) -> bool:
    return launch.engine == images.ENGINE and is_taken("image", launch.platform)


def _gpu_findings(launch: Launch) -> list[Finding]:
    """Return an error for GPUs that are not as many as the spec needs. Only training minds further
    ones; the embedded engine does without any where one is enough, and trains without any on as
    many processes."""
    chosen = launch.gpu_ids
    needed = launch.needed_gpus
    if chosen is None or launch.endpoint:
        return []
    trains = launch.action in actions.TRAINING
    does_without = not bundle.is_cosmos_rl(launch.engine) and (trains or needed <= 1)
    if does_without and not chosen:
        return []
    message = f"got {len(chosen)} GPUs, the spec needs {needed}"
    if len(chosen) < needed:
        # Those that were named by number stay, and the first others join them.
        numbered = [gpu_id for gpu_id in chosen if gpu_id.isdigit()]
        offered = list(dict.fromkeys([*numbered, *map(str, range(needed))]))
        fix = Fix(flags={"--gpu-ids": ",".join(offered[:needed])})
        if platforms.module(launch.platform).CHOOSES_GPUS:
            fix = f"drop --gpu-ids {','.join(chosen) or 'none'}"
        return [error("JOB-GPU-COUNT", "--gpu-ids", message, fix)]
    if not trains or len(chosen) == needed:
        return []
    fix = fewer = Fix(flags={"--gpu-ids": ",".join(chosen[:needed])})
    if len(chosen) in bundle.skill_info()["gpu_counts_per_node"]:
        fix = nodes.rebuilt(launch, len(chosen))
        message += f": the fix lets it use all of them, {fewer} so many"
        message += "; a step of more GPUs has more records, unless --global-batch says otherwise"
    return [error("JOB-GPU-COUNT", "--gpu-ids", message, fix)]


# -- the job -----------------------------------------------------------------------------------


def _prepare(launch: Launch, acting: bool) -> tuple[Job | None, dict, list[Finding]]:
    """Return (record, spec as the engine reads it, findings) of the job in the launch's folder,
    where nothing is made yet. There is no record when an error is among the findings.

    The cheap questions come first: what the words say, then what the platform says of them, and
    only then, acting, what a node sees and what has to be fetched.
    """
    platform = platforms.module(launch.platform)
    found = objections(launch, acting)
    if has_errors(found):
        return None, launch.spec, found
    if launch.requeue:  # its own words decide it, so that no cluster has to be asked
        launch, refused = inputs.going_on(launch)
        found += refused
        if refused:
            return None, launch.spec, found
    told, more = platform.check(launch, acting)
    found += more
    if has_errors(found):
        return None, launch.spec, found
    if launch.carried and launch.site:  # every path as the site calls it
        names = ("spec", "inputs", "outputs", "entry_script", "checkpoints")
        there = launch.site.there
        moved = {name: job_folder.walked(getattr(launch, name), there) for name in names}
        launch = replace(launch, **moved)
    described, spec = _job(launch), _spec_of_engine(launch)
    job = platform.prepare(described, spec, told)
    if not acting:
        return job, spec, found
    found += platform.unseen(job, spec) + _unserved(launch)
    if has_errors(found):
        return None, spec, found
    from cosmos_reason.jobs import fetching  # a plan needs no client of the Hub or of S3

    # What is fetched or unpacked lies elsewhere from now on, and the command has to name it there.
    launch = fetching.staged(launch)
    found += inputs.changed(launch)
    spec = _spec_of_engine(launch)
    return platform.prepare(replace(described, inputs=launch.inputs), spec, told), spec, found


def _spec_of_engine(launch: Launch) -> dict:
    """Return the launch's spec without keys of ours that the other engines would refuse."""
    spec = copy.deepcopy(launch.spec)
    for key, schema in document.keys(launch.action).items():
        if schema.get("x-own") and launch.engine not in schema["x-engines"]:
            document.delete(spec, key)
    return spec


def _job(launch: Launch) -> Job:
    """Return the record of a job before it starts. The hash of its spec is known once that is
    written; the platform fills in the command and what it chooses of the options."""
    node_count, gpus = nodes.layout(launch)
    if launch.gpu_ids is not None:
        gpus = len(launch.gpu_ids)
    elif node_count == 1 and not platforms.module(launch.platform).CHOOSES_GPUS:
        gpus = None  # all that the environment shows
    sources = [entry["path"] for entry in launch.inputs] + (launch.checkpoints or [])
    job = Job(
        folder=launch.folder,
        job_id=launch.folder.name,
        action=launch.action,
        engine=launch.engine,
        platform=launch.platform,
        created_at=record.now(),
        spec={
            "path": str(launch.folder / record.SPEC),
            "sha256": None,
            "source": str(launch.spec_path),
            "source_sha256": files.sha256(launch.spec_path),
        },
        working_dir=str(launch.working_dir),
        image=launch.image,
        options=launch.record(),
        resources={"nodes": node_count, "gpus_per_node": gpus, "gpu_ids": launch.gpu_ids},
        inputs=launch.inputs,
        outputs=launch.outputs,
        site=launch.site.name if launch.site else None,
        platform_ref={"host": socket.gethostname()},
        parent_job=record.owner(sources),
        retry_of=launch.retry_of,
    )
    if not launch.carried:
        return job
    place = {"skill": f"{launch.folder}/skill"}
    if launch.platform == "docker":
        place["skill"] = "/skill"  # run.sh mounts it there
    if launch.site:
        place["skill"] = launch.site.get("skill_dir") or place["skill"]
        place["environment"] = launch.site.get("environment")
        place["offline"] = launch.site.is_offline
    # Without a time, an id, or anything of this machine: the same request gives the same bytes.
    return replace(
        job,
        created_at="",
        spec=job.spec | {"source": None},
        working_dir=str(launch.folder),
        options=job.options | {"carried": place},
        platform_ref={},
        parent_job=None,
    )


def _recorded(job: Job, launch: Launch, spec: dict) -> tuple[Job, int]:
    """Make the folder of a job that is to be started. Returns the record as it was written, and the
    lock, which is held from the first moment on."""
    # A whole folder or none: nobody who lists jobs is to meet a half-written one.
    with files.whole_folder(job.folder) as partial:
        lock = record.take_lock(partial)
        try:
            document.dump(spec, partial / record.SPEC, job.action, engine=job.engine)
            digest = files.sha256(partial / record.SPEC)
            job = replace(job, spec=job.spec | {"sha256": digest})
            beside = origins.path_beside(launch.spec_path)
            if beside.is_file():
                shutil.copyfile(beside, origins.path_beside(partial / record.SPEC))
                if job.action in actions.TRAINING:
                    count = job.resources["nodes"]
                    origins.note_nodes(partial / record.SPEC, count, launch.needed_gpus)
            # What lies in its outputs already is no evidence of this job.
            stamps = record.stamps(job.outputs.values())
            if stamps:
                files.write_json(partial / record.BEFORE, stamps)
            job = platforms.module(job.platform).write(partial, job, spec)
            replace(job, folder=partial).write()
        except BaseException:
            os.close(lock)
            raise
    return job, lock
