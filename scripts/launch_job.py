#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli_w==1.2.0", "tqdm==4.70.1", "psutil==7.2.2",
#   "boto3==1.44.5", "huggingface_hub==1.33.0",
# ]
# ///
"""Start an action's spec on a platform, watch it, and know how it ended.

examples:
  scripts/launch_job.py plan train --spec spec.toml --platform local
  scripts/launch_job.py submit train --spec spec.toml --platform local --gpu-ids 0
  scripts/launch_job.py submit evaluate --spec spec.toml --platform docker --engine tao --gpu-ids 0
  scripts/launch_job.py submit evaluate --spec spec.toml --platform local --checkpoint outputs
  scripts/launch_job.py watch train-20260101-120000-0a1b2c
  scripts/launch_job.py list
"""

import argparse
import collections
import dataclasses
import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmos_reason import cli
from cosmos_reason.base import bundle, files, secrets
from cosmos_reason.base.findings import (
    EXIT_OUTSIDE,
    Failure,
    Finding,
    bad_input,
    error,
    has_errors,
    info,
    outside,
    say,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.jobs import options, record
from cosmos_reason.jobs.record import Job

# Each verb imports what it needs: --help, and a look at a job, need none of what a launch reads.

# Of a record, what is known before there is a job.
PLANNED = ("action", "engine", "platform", "image", "spec", "command", "options", "working_dir",
           "resources", "inputs", "outputs")  # fmt: skip
LISTED = 20  # jobs
DESCRIBE_SECONDS = 120
COMMON = "--spec --platform --site --gpu-ids --engine --image --checkpoint"


# -- the command line --------------------------------------------------------------------------


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(function, purpose: str, common: str = "") -> argparse.ArgumentParser:
        name = function.__name__.rstrip("_")
        added = verbs.add_parser(name, common=common, help=purpose, description=purpose)
        added.set_defaults(main=function)
        added.add_argument(
            "--jobs-dir",
            help=f"folder of all jobs (default: ${record.JOBS_DIR_VARIABLE} or ./jobs)",
        )
        cli.add_output_flags(added, lines=function is watch_)
        return added

    def verb_of_a_job(function, purpose: str, nargs: str | None = None) -> argparse.ArgumentParser:
        added = verb(function, purpose)
        added.add_argument("job_id", metavar="JOB_ID", nargs=nargs)
        return added

    planned = verb(plan, "show what submit would run; starts nothing", COMMON + " --output --save")
    add_request(planned)
    planned.add_argument(
        "--output",
        type=cli.local,
        metavar="DIR",
        help="write what starts it elsewhere, a folder to copy (run.sh, job.sbatch, manifests)",
    )
    planned.add_argument(
        "--host-user",
        type=user_and_group,
        metavar="UID:GID",
        help="with --output: who the work runs as there (default: whoever runs run.sh)",
    )
    planned.add_argument(
        "--name",
        type=cli.some_text,
        metavar="FILE",
        help="with --output: what starts it (default: run.sh, job.sbatch or job.yaml)",
    )
    planned.add_argument(
        options.SPEED,
        type=cli.above_0,
        metavar="S",
        help="train: a speed to predict the time with (default: that of an earlier job)",
    )
    add_request(verb(submit, "record and start a job", COMMON))
    verb_of_a_job(status, "show a job's current state; without JOB_ID the newest jobs", "?")
    verb_of_a_job(logs, "the end of what a job printed").add_argument(
        "--lines", type=count, default=50, help="how many lines (default: 50; 0: all at hand)"
    )
    watched = verb_of_a_job(
        watch_, "follow a job to its end; ctrl-C leaves the job alone; exit code 3 when it failed"
    )
    watched.add_argument(
        "--every", type=seconds, default=5, help="seconds between lines (default: 5; 0: all)"
    )
    watched.add_argument(
        "--html", type=cli.local, metavar="FILE", help="a page that renews itself: curves, ETA, log"
    )
    watched.add_argument(
        "--tensorboard", type=cli.local, metavar="DIR", help="its numbers, for TensorBoard"
    )
    verb_of_a_job(report, "write a page about a job as it is now").add_argument(
        "-o", "--output", type=cli.local, metavar="FILE", help="default: JOB/report.html"
    )
    verb_of_a_job(cancel, "end a running job").add_argument(
        "--grace", type=seconds, default=30, help="seconds from SIGTERM to SIGKILL (default: 30)"
    )
    retried = verb_of_a_job(
        retry, "run a failed or canceled job again, from its newest complete checkpoint"
    )
    retried.add_argument(
        "--memory", metavar="SIZE", help="slurm, kubernetes: instead of what the job had"
    )
    retried.add_argument(
        "--site", type=cli.local, metavar="FILE", help="run it there (default: where it ran)"
    )
    retried.add_argument(
        "--output", type=cli.local, metavar="DIR", help="write what starts it there, as plan does"
    )
    verb_of_a_job(upload, "send an ended job's results, log and record to S3").add_argument(
        "uri",
        nargs="?",
        metavar="S3_URI",
        help="s3://BUCKET/PREFIX; the job's id is added to it (default: what its training could "
        "not send, to where its spec says)",
    )
    adopted = verb(adopt, "record a run that was started elsewhere from a folder of plan --output")
    adopted.add_argument(
        "folder", type=cli.local, metavar="FOLDER", help="with its results (docker: jobs/ID)"
    )
    adopted.add_argument(
        "--site", type=cli.local, metavar="FILE", help="whose paths are those of its inputs here"
    )
    adopted.add_argument(
        "--stopped",
        action="store_true",
        help="it has ended without noting so, as when it is killed",
    )
    described_there = verb(describe, "print a site.yaml of this machine, or of one over ssh")
    described_there.add_argument("--ssh", type=cli.some_text, metavar="HOST", help="or USER@HOST")
    described_there.add_argument(
        "--platform", choices=options.ANYWHERE, help="of jobs there (default: what it finds)"
    )
    verb(list_, "the newest jobs").add_argument(
        "--last", type=count, default=LISTED, help=f"how many (default: {LISTED}; 0: all)"
    )
    return parser


def add_request(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "action", nargs="?", choices=bundle.ACTIONS, help="what to run (default: the spec's)"
    )
    verb.add_argument(
        "--spec", required=True, type=cli.local, help="the action's spec (build_spec.py makes one)"
    )
    verb.add_argument("--platform", choices=options.ANYWHERE, help="where to run (or --site)")
    verb.add_argument(
        "--site",
        type=cli.local,
        metavar="FILE",
        help="the place that runs it (references/site_template.yaml)",
    )
    verb.add_argument(
        "--engine",
        choices=bundle.ENGINES,
        help="default: what the spec was built for, else docker: tao",
    )
    for name in options.FLAGGED:
        if name not in ("endpoint", "checkpoints"):
            options.add_flag(verb.add_argument, name)
    answerer = verb.add_mutually_exclusive_group()
    for name in ("endpoint", "checkpoints"):
        options.add_flag(answerer.add_argument, name)


def count(written: str) -> int:
    return 0 if written == "0" else cli.positive(written)


def seconds(written: str) -> float:
    return 0.0 if written == "0" else cli.above_0(written, most=86400)


def user_and_group(written: str) -> str:
    if not re.fullmatch(r"\d+:\d+", written, re.ASCII):
        raise argparse.ArgumentTypeError(f"got {written!r}, expected UID:GID such as 1000:1000")
    return written


def launch_of(args: argparse.Namespace, **more: Any) -> options.Launch:
    from cosmos_reason.base import site
    from cosmos_reason.jobs import launch

    place = site.read(args.site) if args.site else None
    platform = args.platform or (place.platform if place else None)
    if platform is None:
        message = "--platform is required, or --site with a file that names one"
        raise bad_input("USAGE", "launch_job.py", message, Fix(flags={"--platform": "local"}))
    if place and platform != place.platform:
        message = f"got --platform {platform}, and {args.site} says {place.platform}"
        raise bad_input("USAGE", "--platform", message, f"drop --platform {platform}")
    return launch.read(
        args.spec.absolute(),
        platform,
        record.root(args.jobs_dir),
        Path.cwd(),
        action=args.action,
        engine=args.engine,
        site=place,
        **{name: getattr(args, name) for name in options.FLAGGED},
        **more,
    )


def folder(args: argparse.Namespace) -> Path:
    return record.folder(record.root(args.jobs_dir), args.job_id)


# -- what begins a job -------------------------------------------------------------------------


def plan(args: argparse.Namespace) -> cli.Outcome:
    """Show what submit would do, or write it as a folder for another machine (--output)."""
    from cosmos_reason.jobs import launch

    if args.host_user and not args.output:
        message = "it has no effect without --output, which alone writes a run.sh"
        fix = Fix(flags={"--output": "DIR"})
        if args.platform not in ("docker", None):
            fix = f"drop --host-user {args.host_user}"
        raise bad_input("USAGE", "--host-user", message, fix)
    if args.name and not args.output:
        message = "it has no effect without --output, which alone writes that file"
        raise bad_input("USAGE", "--name", message, Fix(flags={"--output": "DIR"}))
    refuse_full(args.output)
    asked = launch_of(args, carried=bool(args.output or args.site))
    if args.host_user and asked.platform != "docker":
        message = f"it has no effect on {asked.platform}"
        raise bad_input("USAGE", "--host-user", message, f"drop --host-user {args.host_user}")
    if args.output:
        job, found = launch.carry(asked, args.output, args.host_user, args.name)
    else:
        job, found = launch.plan(asked)
    known = {"spec": args.spec, "is_document": True}
    if job is None:
        text = "nothing written" if args.output else ""
        return cli.Outcome({} if args.output else {"inputs": []}, found, text, **known)
    from cosmos_reason.jobs import in_words, run_time

    asked = run_time.with_facts(asked)
    cost = run_time.of_launch(asked, args.seconds_per_step)
    told = {"time": cost.to_json()} if cost else {}
    if args.output:
        return written(asked, args.output, job, found, cost, args.name)
    result = {key: getattr(job, key) for key in PLANNED} | told
    result |= {"site": job.site} if job.site else {}
    result["inputs"] = [{"role": entry["role"], "path": entry["path"]} for entry in job.inputs]
    lines = [cost.text()] if cost else []
    lines.append(in_words.of_plan(job, asked))
    following = ()
    # A plan does without an engine that does not answer; to submit it would fail.
    unreachable = {"JOB-DOCKER-UNREACHABLE", "JOB-DOCKER-FAILED"}
    if not unreachable & {finding.id for finding in found}:
        words = sys.argv[sys.argv.index("plan") + 1 :]
        words = cli.without(cli.without(words, "--json", options.SPEED), "--json", "--save")
        following = ("launch_job.py", "submit", *words)
        if asked.site and launch.named_otherwise(asked):  # which submit refuses
            output = ("--output", launch.folder_there(asked))
            following = ("launch_job.py", "plan", *words, *output)
    return cli.Outcome(result, found, "\n".join(lines), following, **known)


def refuse_full(output: Path | None) -> None:
    """Raise Failure (exit 2) for a folder to write that something is in which an earlier plan did
    not write."""
    if not output or not output.exists():
        return
    from cosmos_reason.jobs import carried  # with it come all platforms

    is_empty = output.is_dir() and not any(output.iterdir())
    if not is_empty and not carried.is_untouched(output):
        message = "something is there already: name an empty folder, or one that is yet to be made"
        raise bad_input("JOB-OUTPUT-EXISTS", output, message)


def written(
    asked: options.Launch,
    output: Path,
    job: Job,
    found: list[Finding],
    cost: Any = None,
    name: str | None = None,
) -> cli.Outcome:
    """Return what is said of a launch that was written out."""
    from cosmos_reason.jobs import carried, in_words

    start = name or carried.START[job.platform]
    lines = [f"wrote {output}: {carried.content(output, start)}. They say:"]
    lines.append(in_words.of_rendered(job, asked))
    lines += [f"  time     {cost.text().replace(', time:', ':')}"] if cost else []
    steps = carried.said_of(output, asked.inputs, asked.site)
    lines.append(steps.replace("scripts/launch_job.py", cli.suggested(("launch_job.py",))))
    result = {"output": str(output), "image": job.image}
    result |= {"time": cost.to_json()} if cost else {}
    known = {"spec": asked.spec_path, "is_document": True}
    following = carried.NEXT
    is_first = asked.action == "train" and not asked.retry_of
    if is_first and not carried.holds_evaluation(output.parent):
        following = of_untouched(asked)
    return cli.Outcome(result, found, "\n".join(lines), following, **known)


def of_untouched(asked: options.Launch) -> str:
    """Return how an evaluation of the model that a training begins with is rendered, too: the
    command that writes its spec, where a site says how it is launched."""
    from cosmos_reason.jobs import carried

    words = carried.words_of_untouched(asked)
    planned = "`plan evaluate` of the untouched model, too"
    if not words:
        return planned
    spec = files.from_here(asked.spec_path.with_stem(f"{asked.spec_path.stem}-base"))
    build = cli.suggested(("build_spec.py", "evaluate", *words, "-o", spec))
    return f"`{build}`, then {planned}"


def submit(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import launch

    outcome = started(*launch.submit(launch_of(args)))
    outcome.spec = args.spec
    return outcome


def retry(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.base import site
    from cosmos_reason.jobs import launch

    refuse_full(args.output)
    place = site.read(args.site) if args.site else None
    home, is_carried = record.root(args.jobs_dir), args.output is not None
    asked = launch.next_attempt(folder(args), home, args.memory, place, is_carried)
    if not args.output:
        return started(*launch.submit(asked))
    job, found = launch.carry(asked, args.output)
    if job is None:
        return cli.Outcome({}, found, "nothing written")
    return written(asked, args.output, job, found)


def started(job: Job | None, found: list[Finding]) -> cli.Outcome:
    if has_errors(found):
        return cli.Outcome(job.to_json() if job else {}, found)
    return cli.Outcome(job.to_json(), found, job.job_id, record.words("watch", job.folder))


def describe(args: argparse.Namespace) -> cli.Outcome:
    """Run in_container/describe.py, one file that needs nothing, on the machine."""
    from cosmos_reason.base import site
    from cosmos_reason.remote import machine

    host = machine.over_ssh(args.ssh) if args.ssh else machine.Host()
    words = ["python3" if args.ssh else sys.executable, "-"]
    words += ["--platform", args.platform] if args.platform else []
    words += ["--login", args.ssh] if args.ssh else []
    command = [*host.ssh, shlex.join(words)] if args.ssh else words
    program = bundle.ROOT / "scripts" / "in_container" / "describe.py"
    try:
        with open(program, "rb") as text:
            done = subprocess.run(
                command, stdin=text, capture_output=True, timeout=DESCRIBE_SECONDS, check=False
            )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise outside("JOB-DESCRIBE", host.name, f"got no description: {problem}") from None
    if done.returncode:
        said = secrets.hidden(done.stderr.decode(errors="replace").strip()[-300:])
        message = f"got {said or f'exit code {done.returncode}'}, expected python3 there"
        raise outside("JOB-DESCRIBE", host.name, message, shlex.join([*host.ssh, "python3 -V"]))
    printed = done.stdout.decode(errors="replace")
    facts = site.parsed(printed, Path("site.yaml")).facts
    return cli.Outcome({"site": facts}, text=printed.rstrip())


def adopt(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.base import site
    from cosmos_reason.jobs import adoption

    place = site.read(args.site) if args.site else None
    job, found = adoption.adopt(args.folder, record.root(args.jobs_dir), place, args.stopped)
    return described(job, job.to_json(), found)


# -- one job -----------------------------------------------------------------------------------


def status(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import evidence, in_words, platforms, progress

    if args.job_id is None:
        return list_(args)
    job = platforms.settled(folder(args), time.monotonic() + platforms.BRIEFLY)
    damaged = evidence.damaged_since(job)
    if damaged and has_errors([damaged]):
        job = dataclasses.replace(job, state=record.ERROR, reason=damaged.message)
    result = job.to_json() | {"progress": progress.plain(progress.newest(job.folder))}
    if job.retry_of:
        result["attempts"] = in_words.attempts(job)
    return described(job, result, [*job.spec_changes(), *filter(None, [damaged])])


def described(job: Job, result: dict, found: list[Finding] | None = None) -> cli.Outcome:
    """Return what a person is told of a job, and what follows from its state."""
    from cosmos_reason.jobs import in_words

    text = cli.pasteable(in_words.of_job(job))
    return cli.Outcome(result, found or [], text, next_command(job))


def next_command(job: Job) -> tuple:
    if not job.has_ended:
        return record.words("watch", job.folder)
    if job.state == record.COMPLETE and job.action == "train":
        return ("select_checkpoint.py", str(job.folder))
    if job.state == record.COMPLETE and job.action == "evaluate":
        return ("score_predictions.py", job.outputs.get("results_dir"))
    return ()


def logs(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import progress

    job = Job.load(folder(args))
    lines = [secrets.hidden(line) for line in progress.log_tail(job.folder, args.lines)]
    found = []
    if not lines:
        message = f"nothing is printed yet; the job was {job.state} when it was last asked about"
        found = [info("JOB-LOG-EMPTY", job.job_id, message, record.command("status", job.folder))]
    result = {"log": str(job.folder / record.LOG), "lines": lines}
    return cli.Outcome(result, found, "\n".join(lines))


def watch_(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import watch

    place = folder(args)
    try:
        job = watch.show(recorded(args, watch.follow(place)), place, args.json, args.every)
    except KeyboardInterrupt:
        say(f"{args.job_id} goes on without being watched")
        raise
    if job.state == record.COMPLETE:
        return described(job, job.to_json())
    message = f"{job.state}: {job.reason}"
    fix = record.command("retry" if job.state == record.CANCELED else "logs", job.folder)
    if "not_uploaded" in job.evidence:
        fix = record.command("upload", job.folder)
    ending = error("JOB-NOT-COMPLETE", args.job_id, message, fix, job=job.to_json())
    causes = [Finding(**finding) for finding in job.diagnosis]
    raise Failure([ending, *causes], EXIT_OUTSIDE)


def recorded(args: argparse.Namespace, moments: Iterator) -> Iterator:
    """Yield what a watch sees, and keep it as --html and --tensorboard ask."""
    from cosmos_reason.jobs import page, tensorboard

    events = None
    written_at = -math.inf
    for job, lines in moments:
        if args.tensorboard and events is None:
            began = record.seconds(job.created_at)
            name = f"events.out.tfevents.{began:.0f}.{job.job_id}"
            events = tensorboard.Events(args.tensorboard / name, began)
        for line in lines if events else ():
            events.add(line)
        if args.html and (job.has_ended or time.monotonic() - written_at >= args.every):
            page.write(job, args.html, args.every or 1)
            written_at = time.monotonic()
        yield job, lines
    if events:
        events.close()


def report(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import page, platforms

    job = platforms.settled(folder(args), time.monotonic() + platforms.BRIEFLY)
    path = args.output or job.folder / "report.html"
    page.write(job, path)
    return cli.Outcome({"report": str(path), "state": job.state}, [], str(path), next_command(job))


def cancel(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import platforms

    job = platforms.settled(folder(args))
    if job.has_ended:
        message = f"got {job.state}, expected a job that has not ended"
        raise bad_input("JOB-ENDED", args.job_id, message)
    job = platforms.stop(job.folder, args.grace)
    return described(job, job.to_json())


def upload(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import platforms, uploading
    from cosmos_reason.remote import s3

    if args.uri is not None:
        s3.split(args.uri)  # refuses what is no S3 address
    job = platforms.settled(folder(args))
    if not job.has_ended:
        message = f"got {job.state}, expected a job that has ended"
        raise bad_input("JOB-NOT-ENDED", args.job_id, message)
    if args.uri is None:
        job = uploading.send_missing(job)
        return described(job, job.to_json())
    where, count = uploading.upload(job, args.uri)
    return cli.Outcome({"uri": where, "files": count}, text=f"{count} files in {where}")


# -- all jobs ----------------------------------------------------------------------------------


def list_(args: argparse.Namespace) -> cli.Outcome:
    from cosmos_reason.jobs import listing

    folder = record.root(args.jobs_dir)
    listed, found = listing.current(folder)
    if not (listed or found):
        say(f"no jobs in {folder}")
    last = getattr(args, "last", LISTED)
    newest = [as_it_is(job) for job in (listed[:last] if last else listed)]
    keys = ("job_id", "state", "created_at", "reason")
    rows = [{key: getattr(job, key) for key in keys} for job in newest]
    lines = [f"{job.job_id}  {job.state:8}  {job.reason[:80]}".rstrip() for job in newest]
    if len(newest) < len(listed):
        lines.append(f"... and {len(listed) - len(newest)} older")
    states = dict(collections.Counter(job.state for job in [*newest, *listed[len(newest) :]]))
    result = {"jobs": rows, "total": len(listed), "states": states}
    return cli.Outcome(result, found, "\n".join(lines))


def as_it_is(job: Job) -> Job:
    """Return the job, as an ERROR where its model was damaged after it was complete."""
    from cosmos_reason.jobs import evidence

    damaged = evidence.damage_in_list(job)
    if damaged and has_errors([damaged]):
        return dataclasses.replace(job, state=record.ERROR, reason=damaged.message)
    return job


def main(args: argparse.Namespace) -> cli.Outcome:
    return args.main(args)


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
