"""Jobs on a SLURM cluster, in an environment of the nodes or in a container of Pyxis and Enroot.

The scheduler looks after a job: nothing of ours waits for its end. Whoever asks reads what the
batch script noted in the job's folder, which all nodes see, and asks the cluster for the rest. A
job has its id as its name there, by which it is found when the answer of sbatch was lost.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base.findings import (
    EXIT_BAD_INPUT,
    Failure,
    Finding,
    bad_input,
    error,
    has_errors,
    warning,
)
from cosmos_reason.base.job_folder import MARK
from cosmos_reason.jobs import (
    containers,
    cosmos_environment,
    engines,
    more_memory,
    mounts,
    nodes,
    record,
)
from cosmos_reason.jobs.options import FLAGGED, Launch
from cosmos_reason.jobs.platforms.slurm import cluster, modules, partitions, paths, script
from cosmos_reason.jobs.record import Job
from cosmos_reason.remote.machine import Host
from cosmos_reason.spec import actions

FOLLOWED = False
CHOOSES_GPUS = True
ENROOT_FILE = re.compile(r"/[\w./@+-]+\.sqsh", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9][\w.,+@-]{0,127}", re.ASCII)
MEMORY = re.compile(r"\d{1,9}[KMGT]?", re.ASCII)
GRES = re.compile(r"none|(gpu|gpus-per-node)(:[A-Za-z0-9][\w.-]{0,63})?", re.ASCII)
# Options of a launch that are given to sbatch as they are, with their forms.
FORMS = {
    "partition": (NAME, "a partition of sinfo"),
    "account": (NAME, "an account of sacctmgr"),
    "qos": (NAME, "a quality of service of sacctmgr"),
    "gres": (GRES, "gpu, gpu:TYPE, gpus-per-node, gpus-per-node:TYPE or none"),
    "memory": (MEMORY, "0 for all of a node, or a size such as 200G"),
}
# How slurmstepd says so, by the kernel's groups or by its own count.
MEMORY_SPENT = re.compile(r"oom.kill event|Exceeded job memory limit", re.I)
UNREACHED = "export SLURM_HOSTNAME=LOGIN_NODE"
WARNING_SECONDS = 300  # before its time limit a training is told
PATIENCE = 20  # seconds until the cluster knows of an end that the job's folder tells
NOTE_SECONDS = 60  # until what a node wrote is seen here: caches of NFS are as old
# What srun answers where it ended the other nodes for the first that failed, and where it had to
# kill them.
KILLED_BY_SRUN = (128 + signal.SIGTERM, 128 + signal.SIGKILL)


# -- before the start --------------------------------------------------------------------------


def machine(launch: Launch) -> Host | None:
    return None if launch.carried else cluster.host(launch.slurm_host)


def check_words(launch: Launch) -> list[Finding]:
    """Return the forms of what goes to sbatch, and the image."""
    found = []
    for name, (form, expected) in FORMS.items():
        value = getattr(launch, name)
        if value is not None and not form.fullmatch(value):
            flag = f"--{name}"
            found.append(error("JOB-SLURM-WORD", flag, f"got {value!r}, expected {expected}"))
    written = launch.time_limit
    if written is not None and partitions.minutes(written) is None:
        message = f"got {written!r}, expected MINUTES, H:M:S or D-H:M:S"
        found.append(error("JOB-SLURM-WORD", "--time-limit", message))
    if launch.gpu_ids:
        ids = ",".join(launch.gpu_ids)
        message = f"got {ids}; SLURM chooses the GPUs, as many as needed"
        found.append(error("JOB-GPU-IDS", "--gpu-ids", message, f"drop --gpu-ids {ids}"))
    if launch.image is not None:
        found += containers.check_image(launch, ENROOT_FILE, "/PATH/FILE.sqsh")
        # What links and records lead to, and where inputs are fetched to, `prepare` adds.
        there = launch.site.there if launch.site and launch.carried else str
        named = [entry["path"] for entry in launch.inputs if "://" not in entry["path"]]
        named += launch.checkpoints or []
        written = [str(launch.folder), *launch.outputs.values()]
        # As `mounts.places` has them: a path inside another one is not mounted itself.
        read, written = ({Path(there(path)) for path in paths} for paths in (named, written))
        found += _unmountable(mounts.outermost(read) | mounts.outermost(written))
    return found + modules.check_words(launch.modules or [], in_container=launch.image is not None)


def _unmountable(paths: Iterable[Path]) -> list[Finding]:
    message = "got a space, a colon, a comma or an unusual character in a path, which Pyxis "
    message += "cannot mount; rename it, or link to it"
    refused = sorted(filter(script.NOT_IN_MOUNTS.search, map(str, paths)))
    return [error("JOB-SLURM-MOUNT", path, message) for path in refused]


def check(launch: Launch, acting: bool) -> tuple[list[partitions.Nodes], list[Finding]]:
    """Return the cluster's partitions, [] where it does not answer, and whether it answers and has
    what is asked for (a plan may do without)."""
    if launch.carried:
        return [], []
    where = machine(launch)
    found = []
    # Unset on the login node, where they would change the job behind the record's back.
    left_out = {name for name in os.environ if name.startswith("SBATCH_")}
    for known in FLAGGED.values():
        left_out.difference_update(known["variables"])
    if left_out:
        message = "got variables of sbatch that a job does not get, expected flags"
        found.append(warning("JOB-SLURM-VARIABLE", ", ".join(sorted(left_out)), message))
    # What a site names lies on the nodes: this machine's own environment says nothing of it.
    names_environment = "environment" in (launch.place or {})
    if launch.image is None and not names_environment:
        found += cosmos_environment.findings(launch.engine, launch.action)
    rows, fix = "got no sbatch on this machine", UNREACHED
    if cluster.has_commands(where):
        rows, fix = partitions.ask(where), cluster.look(where, "scontrol ping")
    if isinstance(rows, str):
        message = f"{rows}; expected a login node of a SLURM cluster"
        if acting:
            raise cluster.outside("JOB-SLURM-UNREACHABLE", where.name, message, fix)
        return [], [*found, warning("JOB-SLURM-UNREACHABLE", where.name, message, fix)]

    # The partition: sbatch takes a job that no node of it will ever run, and lets it wait.
    name = partitions.wanted(rows, launch.partition)
    count, gpus = nodes.layout(launch)
    wish = partitions.wish(launch, count, gpus)
    way = (launch.action, launch.engine, launch.platform)
    there = partitions.gpus_of_nodes(rows, name, wish.kind)
    found += partitions.check(rows, name, wish, nodes.others(way, launch.needed_gpus, there))
    found += partitions.check_cpus(rows, name, wish)
    if launch.image is not None:
        found += cluster.check_pyxis(where)

    # The record is written here and read there: both have to see the folder of jobs.
    if not where.is_here and acting and not has_errors(found):
        parents = (launch.jobs_dir, *launch.jobs_dir.parents)
        nearest = next(folder for folder in parents if folder.is_dir())
        if not where.has(str(nearest)):
            message = f"got no such folder on {where.name}, expected one that the cluster shares"
            found.append(error("JOB-SLURM-FOLDER", nearest, message, "--jobs-dir DIR"))
    return rows, found


def prepare(job: Job, spec: dict, told: list[partitions.Nodes]) -> Job:
    """Return the sbatch command, the program at its end."""
    where = None if job.is_carried else cluster.host(job.options.get("slurm_host"))
    if where and not where.is_here:
        job = replace(job, options=job.options | {"slurm_host": where.name})
    if job.image is None:
        words = engines.words_on_host(job, spec)
        if modules.load(job.options) and not engines.own_program(job.engine):
            words[0] = modules.PYTHON
    else:
        refused = _unmountable(path for path, _ in mounts.places(job, spec))
        if refused:
            raise Failure(refused, EXIT_BAD_INPUT)
        words = containers.command(job, spec)
    batch = str(job.folder / script.BATCH)
    return replace(job, command=["sbatch", *_flags(job, told), batch, *words])


def _flags(job: Job, rows: list[partitions.Nodes]) -> list[str]:
    """Return the flags of sbatch. Those on the command line win over its variables."""
    options = job.options
    # For --output %j is the job's number and %% a %, unless the path has a backslash: then a % is
    # only a %, and SLURM removes one backslash of two.
    log = str(job.folder / record.LOG)
    log = log.replace("\\", "\\\\") if "\\" in log else log.replace("%", "%%")
    flags = ["--parsable", f"--job-name={job.job_id}", f"--nodes={job.resources['nodes']}"]
    # Nothing of this shell goes along: what the job gets stands in a file that it reads. Its log is
    # appended to, for a job that SLURM begins anew.
    flags += ["--ntasks-per-node=1", "--export=NONE", "--open-mode=append"]
    flags.append("--requeue" if "requeue" in options else "--no-requeue")
    flags += [f"--output={log}", f"--error={log}", f"--chdir={job.folder}"]
    for name, flag in (
        ("partition", "partition"),
        ("account", "account"),
        ("qos", "qos"),
        ("time_limit", "time"),
        ("cpus", "cpus-per-task"),
        ("memory", "mem"),
    ):
        if name in options:
            flags.append(f"--{flag}={options[name]}")
    if options.get("exclusive"):
        flags.append("--exclusive")
    if job.action in actions.TRAINING:
        # A training is told to save what it has before its limit ends it: its own limit, else the
        # partition's, of which a plan to carry knows nothing. SLURM may tell it up to a minute
        # earlier. What is sharded over several GPUs is large, and takes longer.
        minutes = partitions.UNLIMITED
        if options.get("time_limit"):
            minutes = partitions.minutes(options["time_limit"])
        else:
            name = partitions.wanted(rows, options.get("partition"))
            minutes = partitions.default_minutes(rows, name)
        is_sharded = job.resources["nodes"] * job.resources["gpus_per_node"] > 1
        longest = 2 * WARNING_SECONDS if is_sharded else WARNING_SECONDS
        flags.append(f"--signal=USR1@{max(1, min(longest, minutes * 60 // 4))}")
    gpus = job.resources["gpus_per_node"]
    gres = options.get("gres", "gpu")
    if gpus and gres.startswith("gpus-per-node"):
        kind = gres.partition(":")[2]
        flags.append(f"--gpus-per-node={f'{kind}:' if kind else ''}{gpus}")
    elif gpus and gres != "none":
        flags.append(f"--gres={gres}:{gpus}")
    return flags


def unseen(job: Job, spec: dict) -> list[Finding]:
    where = cluster.host(job.options.get("slurm_host"))
    return paths.check(where, job)


def write(folder: Path, job: Job, spec: dict, directives: list[str] | None = None) -> Job:
    """Write the batch script and the environment; with `directives` (flags of sbatch) those of a
    folder that is carried elsewhere, whose spec is there already."""
    if job.image is None:
        values = engines.environment_on_host(job, script.program(job))
        if modules.load(job.options):
            values = {"PATH": modules.path()} | values
    else:
        job = job if directives else containers.write(folder, job, spec)
        values = containers.values(job)
    # By its id the processes of a run are found, and results tell whose they are.
    if not job.is_carried:  # else the run gets its id when it starts
        values |= {MARK: job.job_id}
    script.write(folder, job, spec, values, paths.needed(job), directives)
    return job


# -- the job -----------------------------------------------------------------------------------


def start(job: Job, lock: int) -> Job:
    """Hand the job to the cluster, and return it with the number that it got. Raises Failure
    (exit 3) when the cluster refuses, the record then says why, and when nobody knows whether it
    took the job: whoever asks next finds out."""
    from cosmos_reason.jobs import evidence

    # Made here, where the user's rights are; a node may mount it before the job begins.
    for path in job.outputs.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    where = cluster.host(job.options.get("slurm_host"))
    reference = job.platform_ref | {"cluster": cluster.cluster_name(where)}
    job = replace(job, platform_ref=reference)
    job.write()  # before anything is asked for: a lost answer leaves the name to look for
    try:
        slurm_id = cluster.submit(where, job.command)
    except Failure as failure:
        refusal = f"SLURM refused the job: {failure.findings[0].message}"
        _without_environment(evidence.ended(job, None, refusal)).write()
        raise
    if slurm_id is None:
        # The answer was lost, and the job may have been taken all the same: it has its id as its
        # name, by which the queue tells.
        seen = cluster.find(where, job.job_id, job.created_at, fresh=True)
        if seen is None:
            message = "got no answer of sbatch, and no job of that name yet"
            fix = record.command("status", job.folder)
            raise cluster.outside("JOB-SLURM-UNREACHABLE", where.name, message, fix)
        slurm_id = seen.slurm_id
    job = replace(job, platform_ref=reference | {"slurm_job_id": slurm_id})
    job.write()
    return job


def judged(job: Job) -> Job:
    """Return the job as its folder and the cluster tell together. Raises Failure (exit 3) when the
    cluster does not answer and is needed.

    What is told later than the other is awaited, by whoever asks again: nobody is kept here.

    | its script noted      | the cluster says            | the job                            |
    | --------------------- | --------------------------- | ---------------------------------- |
    | 0, and 0 on each node | (is not asked)              | ended with 0                       |
    | an exit code          | nothing: it does not answer | ended as noted                     |
    | an exit code          | waits or runs               | awaited, PATIENCE; ended as noted  |
    | an exit code          | ended, or forgotten         | ended as noted, with SLURM's note  |
    | a code, of --requeue  | waits or runs               | as the cluster says: begun anew    |
    | nothing               | waits or runs               | as the cluster says                |
    | nothing               | COMPLETED or FAILED         | awaited, NOTE_SECONDS; then so     |
    | nothing               | ended by something else     | as the cluster says                |
    | nothing               | forgotten                   | awaited, NOTE_SECONDS; then lost   |
    """
    if record.END_SEEN in job.platform_ref:
        os.listdir(job.folder)  # NFS then looks whether the folder has changed
    started_before = job.started_at
    job = as_started(job)
    noted = noted_exit(job)
    if noted == 0 and list(node_exit_codes(job).values()) == [0] * job.resources["nodes"]:
        return _ended(job, 0)
    if noted is None and _is_awaited(job, NOTE_SECONDS):
        return job  # the cluster was asked when it told of the end
    # One that may be begun anew ends when the cluster says so, whatever its script noted.
    is_final = noted is not None and "requeue" not in job.options
    is_news = noted is not None or job.started_at != started_before
    where = cluster.host(job.options.get("slurm_host"))
    try:
        seen = cluster.find(where, job.job_id, job.created_at, fresh=is_news)
    except Failure:
        if is_final:
            return _ended(job, noted)
        raise
    if seen and seen.state not in cluster.ENDED:
        if not is_final:
            return _as_seen(job, seen)
        # For a moment more SLURM calls it running, and only then says why it ended it.
        awaiting = _awaiting(job, f"its script ended; SLURM: {seen.state}")
        if _is_awaited(awaiting, PATIENCE):
            return awaiting
    if not is_final:
        if seen is None:
            # Another cluster than the one that got the job knows nothing of it.
            told, recorded = cluster.cluster_name(where), job.platform_ref.get("cluster")
            if recorded and told != recorded:
                message = f"got cluster {told or 'none'}, expected {recorded}, which runs "
                raise bad_input(
                    "JOB-SLURM-CLUSTER", job.job_id, f"{message}{job.job_id}", UNREACHED
                )
        os.listdir(job.folder)
        job = as_started(job)
        noted = noted_exit(job)  # since the first look it may have ended as it should
    if noted is not None:
        return ended_as_noted(job, noted, seen.note if seen else "")
    is_expected = "slurm_job_id" in job.platform_ref and not record.cancel_requested(job.folder)
    told = "SLURM knows it no more"
    if seen:
        is_expected = seen.state in cluster.BY_ITSELF
        told = f"SLURM: {seen.state}"
    awaiting = _awaiting(job, f"{told}; what its nodes noted is awaited for a minute")
    if is_expected and _is_awaited(awaiting, NOTE_SECONDS):
        return awaiting
    if seen:
        return _as_seen(job, seen)
    if job.started_at:
        return _ended(job, None, "the cluster knows it no more")
    number = job.platform_ref.get("slurm_job_id")
    forgotten = f"the cluster knows job {number} no more, which did not begin"
    why = forgotten if number else "the cluster has no such job: it was not taken"
    never = _ended(job, None, problem=why)
    # Should it be taken late all the same, its script sees that it is no longer wanted. Asked for
    # after it was judged: it was not canceled.
    record.request_cancel(job.folder)
    return never


def _awaiting(job: Job, why: str) -> Job:
    """Mark the job as ending: SLURM and its exit file disagree."""
    since = job.platform_ref.get(record.END_SEEN) or record.now()
    state = record.RUNNING if job.started_at else job.state
    reference = job.platform_ref | {record.END_SEEN: since}
    return replace(job, state=state, reason=why, platform_ref=reference)


def _is_awaited(job: Job, patience: float) -> bool:
    since = job.platform_ref.get(record.END_SEEN)
    return since is not None and time.time() < record.seconds(since) + patience


def _without_end_seen(job: Job) -> Job:
    reference = {name: told for name, told in job.platform_ref.items() if name != record.END_SEEN}
    return replace(job, platform_ref=reference)


def ended_as_noted(job: Job, exit_code: int, note: str) -> Job:
    """Return the job as its script noted its end. Of work that was lost with its node srun says 0:
    then the cluster's word counts."""
    return _ended(job, None if exit_code == 0 and note else exit_code, note)


def _as_seen(job: Job, seen: cluster.Seen) -> Job:
    """Return the job as the cluster tells, where the job's folder says nothing of an end."""
    reference = job.platform_ref | {"slurm_job_id": seen.slurm_id}
    job = _without_end_seen(replace(job, platform_ref=reference))
    is_older = job.started_at and "requeue" not in job.options  # than what its script noted
    if seen.state in cluster.WAITING and not is_older:
        why = seen.reason if seen.reason not in ("", "None") else ""
        told = filter(None, ["begins it anew" if job.started_at else "", why])
        reason = "; ".join(told)
        reason = f"SLURM: {reason}" if reason else ""
        if seen.state in cluster.HELD or "held" in seen.reason.lower():  # until somebody acts
            where = cluster.host(job.options.get("slurm_host"))
            release = cluster.look(where, f"scontrol release {seen.slurm_id}")
            held = seen.reason or seen.state
            reason = f"SLURM holds it ({held}) until it is released: {release}"
        return replace(job, state=record.PENDING, reason=reason)
    if seen.state in cluster.RUNNING | cluster.WAITING:
        began = job.started_at or record.now()
        return replace(job, state=record.RUNNING, started_at=began, reason="")
    if seen.state not in cluster.ENDED:
        raise job.unknown(f"SLURM calls its state {seen.state}, which is not known here")
    if seen.state == "COMPLETED":  # its script ended with 0, and its notes are not here
        job = replace(job, started_at=job.started_at or job.created_at)
        return _ended(job, 0, "its notes are not here")
    # A job may be called running, and its script not be begun.
    is_unnoted = seen.state == "FAILED" and not _words_of(job.folder / script.STARTED)
    if not job.started_at or is_unnoted:
        problem = f"it ended before it began ({seen.note or f'SLURM: {seen.state}'})"
        if seen.state == "FAILED":
            nodes_named = seen.nodes or "its node"
            problem += f": most likely {nodes_named} does not see {job.folder}"
        return _ended(job, seen.exit_code, problem=problem)
    return _ended(job, seen.exit_code, seen.note)


def as_started(job: Job) -> Job:
    """Return the job with what the batch script noted when it began."""
    noted = _words_of(job.folder / script.STARTED)
    if job.started_at or len(noted) != 2 or not noted[0].isdecimal():
        return job
    began = record.time_text(min(int(noted[0]), time.time()))  # a node has its own clock
    reference = job.platform_ref | {"slurm_job_id": noted[1]}
    return replace(job, state=record.RUNNING, started_at=began, platform_ref=reference)


def noted_exit(job: Job) -> int | None:
    noted = _words_of(job.folder / script.ENDED)
    return int(noted[0]) if len(noted) == 1 and noted[0].isdecimal() else None


def _words_of(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _ended(job: Job, exit_code: int | None, note: str = "", problem: str = "") -> Job:
    """Return the record of an end, with the exit code of each node."""
    from cosmos_reason.jobs import evidence

    job = _without_end_seen(job)
    codes = node_exit_codes(job)
    if codes:
        job = replace(job, platform_ref=job.platform_ref | {"node_exit_codes": codes})
    count = job.resources["nodes"]
    failed = {name: code for name, code in codes.items() if code}
    if failed:
        # The node that failed first tells why: srun ends the others for it, kills those that do not
        # end, and answers with the highest code, or with 1 where memory did not suffice.
        others_killed = len(codes) < count and exit_code in KILLED_BY_SRUN
        all_told = len(codes) == count and exit_code
        if all_told or others_killed or exit_code == max(failed.values()):
            exit_code = next(iter(failed.values()))
        if count > 1:
            named = ", ".join(f"{name} {code}" for name, code in failed.items())
            note = "; ".join(filter(None, [note, f"exit codes of nodes: {named}"]))
            if len(codes) < count:
                note += f"; ended before they noted one: {count - len(codes)}"
    job = evidence.ended(job, exit_code, problem, note)
    said = " ".join(finding["data"].get("evidence", "") for finding in job.diagnosis)
    if MEMORY_SPENT.search(said):
        given = job.options.get("memory")
        had = partitions.megabytes(given or "")
        got, more = "what the partition gives without it", more_memory.retry(job, None)
        if had:
            got, more = f"{given} for each node", more_memory.retry(job, had)
        elif given:
            got, more = "all of a node", ""
        message = f"got {got}, and the job took more: expected what it needs, or a spec that needs "
        cause = error("JOB-SLURM-MEMORY", "--memory", f"{message}less", more)
        job = replace(job, diagnosis=[cause.to_json(), *job.diagnosis])
    noted = job.folder / script.ENDED
    if noted.exists():  # which may be long before somebody asks; the storage has its own clock
        ended_at = min(noted.stat().st_mtime_ns / 1e9, time.time())
        job = replace(job, ended_at=record.time_text(ended_at))
    return _without_environment(job)


def node_exit_codes(job: Job) -> dict[str, int]:
    """Return the exit code of each node, in the order of their ends."""
    codes = {}
    by_time = sorted(job.folder.glob(script.NODE_EXIT), key=lambda path: path.stat().st_mtime_ns)
    for path in by_time:
        noted = _words_of(path)
        if len(noted) == 2 and noted[1].isdecimal():
            codes[noted[0]] = int(noted[1])
    return codes


def _without_environment(job: Job) -> Job:
    """Delete the environment file (secrets), even if the job never started."""
    (job.folder / script.ENVIRONMENT).unlink(missing_ok=True)
    return job


def end(job: Job, grace: float) -> None:
    """Send SIGTERM to the work, and cancel what is left of it after `grace` seconds, or still
    waits."""
    where = cluster.host(job.options.get("slurm_host"))
    seen = cluster.find(where, job.job_id, job.created_at, fresh=True)
    if seen is None or seen.state in cluster.ENDED:
        return
    if seen.state in cluster.RUNNING:
        cluster.signal(where, seen.slurm_id, "--signal=TERM")
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:  # a training saves what it has
            if (job.folder / script.ENDED).exists():
                return
            time.sleep(0.5)
    cluster.signal(where, seen.slurm_id)
