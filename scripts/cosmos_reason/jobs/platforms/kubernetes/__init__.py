"""Jobs in the pods of a Kubernetes cluster: a Job on one node, an Indexed Job on several.

Claims of the cluster hold what the job reads and writes, at the paths that this machine has them
at too; its pods keep their logs there. The launcher makes the Job, named after the job; a
supervisor waits for its end. Whatever dies here, the Job goes on, and whoever asks next finds it by
its name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from cosmos_reason.base import files
from cosmos_reason.base.findings import (
    ERROR,
    EXIT_CHECKS_FAILED,
    Failure,
    Finding,
    error,
    say,
    warning,
)
from cosmos_reason.jobs import (
    containers,
    engines,
    evidence,
    more_memory,
    mounts,
    nodes,
    progress,
    record,
)
from cosmos_reason.jobs.options import Launch
from cosmos_reason.jobs.platforms.kubernetes import kubectl, manifests, needs, options, pods
from cosmos_reason.jobs.platforms.kubernetes.kubectl import CANNOT_SAY, Cluster
from cosmos_reason.jobs.platforms.kubernetes.manifests import Work
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote.machine import Host

FOLLOWED = True
CHOOSES_GPUS = True
MANIFEST = "launch.yaml"
SKILL = "skill"  # in the job's folder: the programs that its pods run of this bundle
STARTER = "in_container/start_node.py"
KEEPER = "in_container/keep_log.py"
POLL = 2  # seconds between two looks at a job
GONE_SECONDS = 60  # until a Job that was deleted is gone, besides the grace


# -- before the start --------------------------------------------------------------------------


def machine(launch: Launch) -> Host:
    """Return this machine, which has the volumes at the same paths; a pod looks again before it
    starts."""
    return None if launch.carried else Host()


def check_words(launch: Launch) -> list[Finding]:
    asked = launch.kubernetes
    found = containers.check_image(launch)
    found += options.findings(asked | {"memory": launch.memory})
    if launch.gpu_ids:
        message = "got ids, and the cluster chooses the GPUs: their number is the spec's"
        found.append(error("JOB-FLAG", "--gpu-ids", message))
    if launch.carried:
        return found
    # What a spec names; what links and records lead to, `prepare` adds.
    read = [entry["path"] for entry in launch.inputs] + (launch.checkpoints or [])
    written = [path for path in launch.outputs.values() if not path.startswith(f"{launch.folder}/")]
    named = [(launch.jobs_dir, True), *((Path(path), True) for path in written)]
    named += [(Path(path), False) for path in read if "://" not in path]
    return found + options.outside(named, asked)


def check(launch: Launch, acting: bool) -> tuple[Cluster | None, list[Finding]]:
    """Return the cluster, None where no kubectl names it, and whether it answers, has what it would
    let a job wait for without end, and takes one like it from this account; nothing is made
    there."""
    if launch.carried:
        return None, []
    target = None
    needed = launch.needed_gpus
    try:
        asked = launch.kubernetes
        target = kubectl.cluster(asked.get("namespace"), asked.get("context"))
        count, gpus = nodes.layout(launch)
        found = needs.version_findings(target.get("/version"), count)
        others = partial(nodes.others, (launch.action, launch.engine, launch.platform), needed)
        wanted = needs.wish(asked, count, gpus)
        found += needs.capacity_findings(target, wanted, others)
        found += needs.quota_findings(target, wanted)
        claims = options.claims(asked, [launch.jobs_dir])
        found += needs.claim_findings(target, claims, count)
        # The cluster's own checks of a pod and a Job like ours (server-side dry run): rights,
        # quotas, limits, policies.
        probe = Work(
            name="tao-probe",
            image=launch.image,
            words=["true"],
            volumes=options.mounted([], asked)[0],
            user=_user(),
            nodes=count,
            gpus=gpus,
        )
        probe = _with_options(probe, asked, launch.cpus, launch.memory)
        for kind, manifest in (("pods", manifests.pod(probe)), ("jobs", manifests.job(probe))):
            try:
                target.create(target.inside(kind), manifest, dry_run=True)
            except Failure as failure:
                refused = failure.findings[0]
                if refused.id in CANNOT_SAY:
                    raise
                # Who may not make pods, but Jobs, hears of quotas when the job waits.
                if kind == "pods" and "cannot create resource" in refused.message:
                    message = f"quotas were not looked at: {refused.message}"
                    refused = warning("JOB-K8S-UNTRIED", "pods", message)
                found.append(refused)
        return target, found
    except Failure as failure:
        if acting:
            raise
        finding = failure.findings[0]
        message = f"{finding.message}; the plan is made without asking the cluster"
        return target, [warning(finding.id, finding.where, message, finding.fix)]


def prepare(job: Job, spec: dict, told: Cluster | None) -> Job:
    """Return the job with its command. Raises Failure (exit 1) for paths that no volume holds."""
    asked = dict(job.options.get("kubernetes", {}))
    if told:
        asked |= {"context": told.context, "namespace": told.namespace}
    count = job.resources["nodes"]
    job = replace(job, options=job.options | {"kubernetes": asked})
    missing = options.outside(_places(job, spec), asked)
    if missing:
        raise Failure(missing, EXIT_CHECKS_FAILED)
    # Programs of this bundle are those of the job's copy.
    ours = mounts.inside(engines.programs(job) / "scripts")
    copy = mounts.inside(_skill(job) / "scripts")
    words = []
    for word in containers.command(job, spec):
        is_ours = word.startswith(f"{ours}/")
        words.append(f"{copy}{word.removeprefix(ours)}" if is_ours else word)
    if count > 1:
        words = ["python3", _own_program(job, STARTER), job.job_id, str(count), *words]
    begins = ["--begins", job.action] if job.is_carried else []
    words = ["python3", _own_program(job, KEEPER), mounts.inside(job.folder), *begins, *words]
    return replace(job, command=words)


def _skill(job: Job) -> Path:
    """Return the folder of this bundle that the pods see: the job's copy, or the one of a site."""
    return engines.programs(job) if "skill" in engines.place(job) else job.folder / SKILL


def _own_program(job: Job, name: str) -> str:
    return mounts.inside(_skill(job) / "scripts" / name)


def _places(job: Job, spec: dict) -> list[tuple[Path, bool]]:
    """Return what the pods have to see of this machine, without the bundle where the job has a copy
    of it; in a plan some of it is still elsewhere."""
    is_copied = _skill(job).is_relative_to(job.folder)
    found = []
    for path, is_written in mounts.places(job, spec):
        if path != engines.programs(job) or not is_copied:
            found.append((path, is_written))
    return found


def unseen(job: Job, spec: dict) -> list[Finding]:
    """Return what a pod does not have. A file that is made here for a moment tells it whether the
    jobs folder is the same storage there."""
    target, asked = _cluster(job), job.options["kubernetes"]
    work = replace(_work(job, spec), name=f"tao-look-{secrets.token_hex(4)}")
    looked_for = []
    for path, is_written in _places(job, spec):
        there = _nearest(path, asked) if is_written else path
        looked_for.append(("-w" if is_written else "-e", mounts.inside(there)))
    place = _nearest(job.folder, asked)
    if not place.is_dir():
        message = "got no such folder here, expected the files of its claim: mount that storage"
        return [error("JOB-K8S-VOLUME", place, message, options.ONE_VOLUME)]
    wanted = needs.wish(asked, work.nodes, work.gpus)
    with tempfile.NamedTemporaryFile(prefix=".tao-look-", dir=place) as token:
        looked_for.append(("-e", mounts.inside(token.name)))
        work = replace(work, looked_for=list(dict.fromkeys(looked_for)))
        return needs.look(target, work, needs.fitting_nodes(target, wanted))


def _nearest(path: Path, asked: dict) -> Path:
    """Return the folder of a path to be made, within its volume."""
    volume = Path(options.holder(path, asked))
    return next(folder for folder in (path, *path.parents) if folder.is_dir() or folder == volume)


def manifest(job: Job, spec: dict) -> str:
    """Return the objects of the job, as submit makes them and as a person applies them."""
    return manifests.shown(_work(job, spec))


def write(folder: Path, job: Job, spec: dict) -> Job:
    files.write_text(folder / MANIFEST, manifest(job, spec))
    if _skill(job) == job.folder / SKILL:
        containers.copy_programs(folder / SKILL, containers.needs_library(job))
    return containers.write(folder, job, spec)


def _work(job: Job, spec: dict) -> Work:
    asked, places = job.options["kubernetes"], _places(job, spec)
    looked_for = [("-e", mounts.inside(job.folder / containers.spec_name(job)))]
    for path, is_written in places:
        looked_for.append(("-w" if is_written else "-e", mounts.inside(path)))
    volumes, writable = options.mounted(places, asked)
    brings_programs = job.is_carried and _skill(job).is_relative_to(job.folder)
    work = Work(
        name=job.job_id,
        image=job.image,
        words=job.command,
        # What is carried has them in its folder, from which keep_log.py reads them: that of the
        # folder, no installed copy, which may be older.
        environment={} if brings_programs else containers.written_down(job, spec),
        secret_variables=containers.passed(job, spec),
        working_dir=mounts.inside(job.folder),
        volumes=volumes,
        writable=writable,
        looked_for=looked_for,
        user=None if job.is_carried else _user(),
        nodes=job.resources["nodes"],
        gpus=job.resources["gpus_per_node"],
        secret_may_lack=job.is_carried,
    )
    return _with_options(work, asked, job.options.get("cpus"), job.options.get("memory"))


def _user() -> tuple[int, int, list[int]]:
    return os.getuid(), os.getgid(), sorted(set(os.getgroups()) - {os.getgid()})


def _with_options(work: Work, asked: dict, cpus: int | None, memory: str | None) -> Work:
    return replace(
        work,
        cpus=cpus,
        memory=memory,
        pull_secret=asked.get("pull_secret"),
        node_selector=options.node_selector(asked),
        tolerations=options.tolerations(asked),
        labels=options.labels(asked),
        gpu_resource=options.gpu_resource(asked),
    )


# -- the start ---------------------------------------------------------------------------------


def start(job: Job, lock: int) -> Job:
    """Make the Job of launch.yaml, and what belongs to it; return the job with its uid. Raises
    Failure (exit 3) when the cluster refuses; the record then says why."""
    for path in job.outputs.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    target = _cluster(job)
    try:
        uid = _make(job, target)
    except Failure as failure:
        refusal = failure.findings[0]
        if refusal.id in CANNOT_SAY:
            raise  # it may run all the same, which the next to ask will see
        with contextlib.suppress(Failure):
            _delete(job, target)
        reason = f"the Job could not be made: {refusal.message}"
        _with_causes(evidence.ended(job, None, reason), [refusal]).write()
        raise
    job = replace(job, platform_ref=job.platform_ref | {"k8s_job": uid})
    job.write()
    return job


def _cluster(job: Job) -> Cluster:
    asked = job.options["kubernetes"]
    if not asked.get("context"):
        raise job.unknown("its record names no cluster")
    return Cluster(asked["context"], asked["namespace"])


def _make(job: Job, target: Cluster) -> str:
    """Return the uid of the Job, which is suspended until all that it needs is there. That belongs
    to it, and is removed with it."""
    documents = _documents(job)
    manifest = documents[0]
    needs_more = _needs_more(documents)
    # Its pods would fail without the Secret that they read, or the Service that names them.
    if needs_more:
        manifest["spec"]["suspend"] = True
    made = target.create(target.inside("jobs"), manifest)
    uid = made["metadata"]["uid"]
    if not needs_more:
        return uid
    names = list(_secret_names(manifest))
    for document in documents[1:]:
        target.create(target.inside("services"), manifests.belongs_to(document, made))
    if names:
        secret = manifests.secret(job.job_id, {name: os.environ[name] for name in names})
        target.create(target.inside("secrets"), manifests.belongs_to(secret, made))
    if manifests.QUEUE in manifest["metadata"]["labels"]:
        return uid  # which begins it when there is room
    made["spec"]["suspend"] = False
    made["metadata"].pop("resourceVersion", None)  # its controller writes to it meanwhile
    target.replace(target.inside("jobs", job.job_id), made)
    return uid


def _needs_more(documents: list[dict]) -> bool:
    """Return whether the Job has to wait for a Service or a Secret."""
    return len(documents) > 1 or any(_secret_names(documents[0]))


def _documents(job: Job) -> list[dict]:
    import yaml

    return list(yaml.safe_load_all((job.folder / MANIFEST).read_text(encoding="utf-8")))


def _secret_names(manifest: dict) -> Iterator[str]:
    for container in manifest["spec"]["template"]["spec"]["containers"]:
        for variable in container["env"]:
            if "valueFrom" in variable:
                yield variable["name"]


# -- the pods ----------------------------------------------------------------------------------


def supervise(job: Job, lock: int) -> None:
    """Wait for the end of the Job, then record how it ended. Gives up when the cluster cannot be
    asked; whoever asks for the job's state next goes on from there."""
    try:
        while not job.has_ended:
            if record.cancel_requested(job.folder) and not job.started_at:
                _delete(job, _cluster(job))
            now = judged(job)
            if now != job:
                now.write()
            job = now
            if not job.has_ended:
                time.sleep(POLL)
    except Failure as failure:
        say(str(failure))


def judged(job: Job) -> Job:
    """Return the record of a job as its pods are now."""
    target = _cluster(job)
    found = target.find(target.inside("jobs", job.job_id))
    if found is None:
        # Somebody removed it, or the cluster a week after its end. Where nobody saw it start, what
        # it wrote tells that it did.
        gone = "its Job is gone from the cluster"
        note = gone if any(progress.log_tail(job.folder, 1)) else f"{gone}, and its log with it"
        if job.started_at:
            return evidence.ended(job, None, note=note)
        unseen = evidence.ended(replace(job, started_at=job.created_at), None, note=note)
        if unseen.state == record.COMPLETE or progress.newest(job.folder):
            return unseen
        was_made = "k8s_job" in job.platform_ref and not record.cancel_requested(job.folder)
        return evidence.ended(job, None, f"{gone}, and was not seen to start" if was_made else "")
    selector = f"{manifests.LABEL}={job.job_id}"
    listed = target.get(target.inside("pods"), labelSelector=selector).get("items", [])
    seen = pods.read(found, listed)
    count, begun = job.resources["nodes"], len(seen.logs)
    if (seen.ended or begun == count) and seen.started_at and not job.started_at:
        # The cluster has its own clock, which may be ahead of this one.
        began = min(record.seconds(seen.started_at), time.time())
        reference = job.platform_ref | {"k8s_job": found["metadata"]["uid"]}
        began = record.time_text(began)
        job = replace(job, state=record.RUNNING, started_at=began, platform_ref=reference)
    if seen.ended:
        return _ended(job, seen)
    if seen.suspended:
        return _suspended(job, target, seen)
    if seen.stuck:
        _delete(job, target)
        return _ended(job, seen)
    if job.state != record.PENDING:
        return replace(job, reason="")
    waits = seen.waits
    if not waits:  # a quota was used up meanwhile, or a volume cannot be mounted
        uid = found["metadata"]["uid"] if seen.count < count else seen.unstarted
        waits = needs.warning_about(target, uid)
    if begun:
        told = f"{begun} of {count} pods have begun, and hold their GPUs until all have"
        waits = f"{told}: {waits}" if waits else told
    return replace(job, reason=waits)


def _suspended(job: Job, target: Cluster, seen: pods.Seen) -> Job:
    """Return a job whose Job is suspended. Queues of clusters (Kueue) do that until there is room;
    a launch that was interrupted leaves one that nobody will ever start."""
    launched = "k8s_job" in job.platform_ref or not _needs_more(_documents(job))
    if launched and not job.started_at:
        queue = options.labels(job.options["kubernetes"]).get(manifests.QUEUE)
        which = f"its queue {queue}" if queue else "its queue"
        return replace(job, reason=f"suspended: waits for admission by {which}")
    if launched and seen.count:
        return job  # its pods are ending
    # One that ran would begin anew later, from its start: retry goes on from a checkpoint instead.
    _delete(job, target)
    if launched:
        seen = replace(seen, causes=[pods.taken_away()])
    return _ended(job, seen)


def _ended(job: Job, seen: pods.Seen) -> Job:
    told = "; ".join(dict.fromkeys(cause.message for cause in seen.causes))
    if len(seen.logs) < job.resources["nodes"]:
        told = told or job.reason  # what the others waited for
    if not job.started_at:
        told = told or seen.waits or "the launch was interrupted before the work was started"
        job = evidence.ended(job, seen.exit_code, told)
    else:
        job = evidence.ended(job, seen.exit_code, note=told)
    if seen.ended_at:
        job = replace(job, ended_at=seen.ended_at)
    return _with_causes(job, seen.causes)


def _with_causes(job: Job, causes: list[Finding]) -> Job:
    """Return what the cluster says comes before what the log says."""
    if job.state != record.ERROR:
        return job
    told = []
    for cause in causes:
        if cause.id == pods.OUT_OF_MEMORY:
            had = more_memory.mebibytes(cause.data["limit"])
            cause = replace(cause, fix=more_memory.retry(job, had))
        elif "used" in cause.data:
            had = more_memory.mebibytes(cause.data["used"])
            cause = replace(cause, fix=more_memory.retry(job, had))
        elif cause.id == pods.EVICTED:
            cause = replace(cause, fix=record.command("retry", job.folder))
        told += [cause] if cause.severity == ERROR else []
    diagnosis = [cause.to_json() for cause in told] + job.diagnosis
    of_memory = [cause for cause in told if cause.id == pods.OUT_OF_MEMORY or "used" in cause.data]
    if any(not cause.fix for cause in of_memory):
        diagnosis += more_memory.causes(job)
    return replace(job, diagnosis=diagnosis)


def end(job: Job, grace: float) -> None:
    """Ask the pods to end within `grace`, and remove the Job; returns when nothing of it is
    left."""
    target = _cluster(job)
    selector = f"{manifests.LABEL}={job.job_id}"
    listed = target.get(target.inside("pods"), labelSelector=selector).get("items", [])
    for pod in listed:
        # Who may only delete Jobs leaves the pods the grace that they were made with.
        with contextlib.suppress(Failure):
            name = pod["metadata"]["name"]
            target.delete(target.inside("pods", name), gracePeriodSeconds=str(max(1, int(grace))))
    _delete(job, target)
    deadline = time.monotonic() + grace + GONE_SECONDS
    while target.find(target.inside("jobs", job.job_id)) and time.monotonic() < deadline:
        time.sleep(0.5)


def _delete(job: Job, target: Cluster) -> None:
    """Delete the Job, which goes when its pods are gone."""
    target.delete(target.inside("jobs", job.job_id), propagationPolicy="Foreground")
