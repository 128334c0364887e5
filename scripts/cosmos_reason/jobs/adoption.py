"""A record of a run that was started by hand from a rendered folder (`carried`), so that scoring,
selecting, reports and retries go on here. Enter at `adopt`.

The results stay where they are, as those of any job whose spec names an output folder; the job's
folder gets the record, the spec with the paths of this machine, log and metrics. A run counts as
ended only where it noted its end, and as complete by the evidence that any job needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

from cosmos_reason.base import files, job_folder
from cosmos_reason.base.findings import (
    EXIT_CHECKS_FAILED,
    Failure,
    Finding,
    bad_input,
    error,
    warning,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.site import Site
from cosmos_reason.jobs import carried, claims, evidence, inputs, record
from cosmos_reason.jobs.platforms import slurm
from cosmos_reason.jobs.platforms.docker import DEFAULT_HOST, client
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import document

# Of what a run leaves beside its results, what the record needs.
KEPT = (record.LOG, record.METRICS, "node-*.log", "run.*", "node*.exit", "slurm.*")
# Added to the command as it was given: without its --site the record would have paths of the place.
STOPPED = Fix(flags={"--stopped": True})
CLOCKS = 300  # seconds by which the clock of a storage may be behind that of a node


def adopt(
    folder: Path, jobs_dir: Path, site: Site | None, stopped: bool
) -> tuple[Job, list[Finding]]:
    """Record the run in `folder`, or judge it anew where that is recorded. With a `site` its paths
    are those that lie here. `stopped`: it has ended without noting so.

    Raises Failure: exit 2 for a folder that nothing was started from or whose results are not
    here, exit 1 for a run that may still be going on.
    """
    folder = folder.resolve()
    path = folder / carried.LAUNCH
    if not path.is_file():
        message = f"got no {carried.LAUNCH}, expected a folder that plan --output wrote and that "
        message += "was started (of docker: its jobs/ID)"
        raise bad_input("JOB-ADOPT", folder, message)
    rendered = files.read_json(path)
    names = {*record.FIELDS} - {"site"}
    if not isinstance(rendered, dict) or not names <= rendered.keys():
        message = "got something else than the launch that plan --output writes"
        raise bad_input("JOB-ADOPT", path, message)
    if site and rendered.get("site", site.name) != site.name:
        message = f"got {site.name}, and the launch was rendered for {rendered['site']}"
        raise bad_input("JOB-ADOPT", site.path, message)
    job_id = _words(folder / "run.id")
    if len(job_id) != 1 or not job_folder.ID.fullmatch(job_id[0]):
        message = "got no run.id: nothing was started in this folder, or not all of it was copied"
        message += "; README.md has the line that starts it"
        raise bad_input("JOB-ADOPT", folder, message)
    home = jobs_dir / job_id[0]
    if (home / record.RECORD).is_file() and "adopted_from" not in Job.load(home).platform_ref:
        message = "that job was submitted here, and its record stays"
        raise bad_input("JOB-ADOPT", home, message, record.command("status", home))
    job, table, found = _job(folder, home, rendered, site)
    started = _words(folder / (slurm.script.STARTED if job.platform == "slurm" else "run.started"))
    if not started or not started[0].isdecimal():
        message = "got no time of its start: the work itself was not begun; log.txt may say why"
        raise bad_input("JOB-ADOPT", folder, message)
    began = record.time_text(int(started[0]))
    job = replace(job, created_at=began, started_at=began)
    end = _end(replace(job, folder=folder))
    if end and any(end) and "requeue" in job.options and not stopped:
        message = "it noted an end that is none where SLURM begins it anew (--requeue): bring its "
        message += "results here again when squeue no longer lists it; it does not now: --stopped"
        raise Failure([error("JOB-NOT-ENDED", folder, message, STOPPED)], EXIT_CHECKS_FAILED)
    if end is None and not stopped:
        message = "got no note of its end: it is still going on, or was killed; bring its results "
        message += "here again when it has ended; killed: --stopped"
        raise Failure([error("JOB-NOT-ENDED", folder, message, STOPPED)], EXIT_CHECKS_FAILED)
    for name, path in job.outputs.items():
        # Results that are elsewhere, or that a later job wrote to, prove nothing.
        output = Path(path)
        owner = claims.owner(output)
        if owner not in (None, job.job_id, job.retry_of):
            message = f"{owner} has written there since: what it left cannot be told apart"
            raise bad_input("JOB-ADOPT", path, message, f"scripts/launch_job.py status {owner}")
        if not output.is_dir() and not output.is_relative_to(folder):
            message = f"got no such folder here, and {name} of the run is there: copy it here, and "
            message += "say by --site which folder it is (paths: {THERE: HERE})"
            fix = Fix(flags={"--site": "site.yaml"})
            raise bad_input("JOB-ADOPT", path, message, fix)
    with claims.held(home, job.outputs.values()) as busy:
        if busy:
            raise Failure(busy, EXIT_CHECKS_FAILED)
        home.mkdir(parents=True, exist_ok=True)
        os.close(record.take_lock(home))
        if home != folder:
            for kept in (path for form in KEPT for path in folder.glob(form)):
                with files.whole_file(home / kept.name, "wb") as copy, open(kept, "rb") as source:
                    shutil.copyfileobj(source, copy)
                shutil.copystat(kept, home / kept.name)  # SLURM's end is the time of its note
        document.dump(table, home / record.SPEC, job.action, engine=job.engine)
        digest = files.sha256(home / record.SPEC)
        job = replace(job, spec=job.spec | {"sha256": digest})
        earliest = (int(started[0]) - CLOCKS) * 10**9
        stamps = record.stamps(job.outputs.values())
        earlier = {path: at for path, at in stamps.items() if at < earliest}
        files.write_json(home / record.BEFORE, earlier)
        if end is None:
            job = evidence.ended(job, None, note="it noted no end")
        elif job.platform == "slurm":
            job = slurm.as_started(replace(job, started_at=None))
            job = slurm.ended_as_noted(job, *end)
        else:
            job = evidence.ended(job, end[0], note=end[1])
            noted = _words(job.folder / "run.exit")
            job = replace(job, ended_at=record.time_text(int(noted[1])))
        job.write()
    return job, found


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _job(
    folder: Path, home: Path, rendered: dict, site: Site | None
) -> tuple[Job, dict, list[Finding]]:
    """Return the record before its end is known, the spec with the paths of this machine, and what
    is to be said of them."""
    there = Path(rendered["spec"]["path"]).parent

    def here(path: str) -> str:
        if Path(path).is_relative_to(there):
            return str(folder / Path(path).relative_to(there))
        return site.here(path) if site else path

    found = []
    read = carried.read_spec(folder)
    table = rendered.get("table") or document.load(read)
    if carried.read_sha256(folder) != rendered["spec"]["read_sha256"]:
        message = "it was edited after it was rendered: "
        is_of_image = "table" in rendered  # of which the record has the form before
        told = "the spec that was rendered, not what ran" if is_of_image else "what ran"
        message += f"the record has {told}"
        found.append(warning("JOB-SPEC-EDITED", read, message))
    moved = {name: job_folder.walked(rendered[name], here) for name in ("inputs", "outputs")}
    for entry in moved["inputs"]:
        if entry["fingerprint"] is None and os.path.exists(entry["path"]):
            entry["fingerprint"] = inputs.fingerprint(Path(entry["path"]))
    options = job_folder.walked(rendered["options"], here)
    options = {name: value for name, value in options.items() if name != "carried"}
    if rendered["platform"] == "docker":  # a retry asks the engine of this machine
        options["docker_host"] = DEFAULT_HOST
        with contextlib.suppress(Failure):
            options["docker_host"] = client.engine_host(None)
    fields = {name: rendered.get(name) for name in record.FIELDS} | moved
    spec = {"path": str(home / record.SPEC), "sha256": "", "source": str(read)}
    fields |= {
        "job_id": home.name,
        "spec": spec | {"source_sha256": files.sha256(read)},
        "working_dir": str(Path.cwd()),
        "options": options,
        "platform_ref": {"host": socket.gethostname(), "adopted_from": str(folder)},
        "parent_job": record.owner([entry["path"] for entry in moved["inputs"]]),
    }
    return Job(folder=home, **fields), job_folder.walked(table, here), found


def _end(job: Job) -> tuple[int | None, str] | None:
    """Return (exit code, what else its nodes noted) of a run by the notes in its folder; None where
    it noted no end."""
    if job.platform == "slurm":
        code = slurm.noted_exit(job)
        is_sure = list(slurm.node_exit_codes(job).values()) == [0] * job.resources["nodes"]
        note = "" if code or is_sure else "not every node noted a good end"
        return None if code is None else (code, note)
    noted = _words(job.folder / "run.exit")
    if len(noted) != 2 or not noted[0].isdecimal():
        return None
    codes = [int(noted[0])]
    for number in range(1, job.resources["nodes"] if job.platform == "kubernetes" else 1):
        other = _words(job.folder / f"node-{number}.exit")
        codes += [int(word) for word in other[:1] if word.isdecimal()]
    failed = [code for code in codes if code]
    if failed:
        return failed[0], ""
    absent = job.resources["nodes"] - len(codes)
    if job.platform == "kubernetes" and absent:
        return None, f"nodes that noted no end: {absent}"
    return 0, ""
