#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "PyYAML==6.0.3", "jsonschema==4.26.0", "tomli_w==1.2.0", "tqdm==4.70.1", "psutil==7.2.2", "boto3==1.44.5",
#   "huggingface_hub==1.33.0",
# ]
# ///
"""Start an action's spec on a platform, watch it, and know how it ended.

examples:
  scripts/launch_job.py plan train --spec spec.toml --platform local
  scripts/launch_job.py submit train --spec spec.toml --platform local --gpu-ids 0
  scripts/launch_job.py submit evaluate --spec spec.toml --platform docker --engine tao --gpu-ids 0,1
  scripts/launch_job.py submit evaluate --spec spec.toml --platform local --checkpoint jobs/ID/results
  scripts/launch_job.py watch train-20260101-120000-0a1b2c
  scripts/launch_job.py list
"""

import argparse
import collections
import dataclasses
import os
import re
import sys
import tempfile
from pathlib import Path

from cosmos_reason import bundle, command, jobs, platforms, publishing, s3, secret, spec
from cosmos_reason.findings import EXIT_OUTSIDE, WARNING, Failure, Finding, bad_input, error, has_errors
from cosmos_reason.platforms import engines, launch, watch

OWN_FILES = ("job.json", "spec.toml", "spec.origins.json", jobs.LOG, jobs.METRICS)
PASSED_ON = ("action", "platform", "image", "docker_host", "network", "endpoint")
# Of a record, what is known before there is a job.
PLANNED = ("action", "engine", "platform", "image", "spec", "command", "options", "working_dir", "resources", "inputs",
           "outputs")  # fmt: skip
GPU_ID = re.compile(r"\d+|(GPU|MIG)-[0-9a-fA-F-]+")


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(function, purpose: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(function.__name__.rstrip("_"), help=purpose, description=purpose)
        added.set_defaults(main=function)
        added.add_argument("--jobs-dir", help=f"folder of all jobs (default: ${jobs.JOBS_DIR_VARIABLE} or ./jobs)")
        command.add_json_flag(added, lines=function is watch_)
        return added

    add_request(verb(plan, "show what submit would run; touches nothing"))
    add_request(verb(submit, "record and start a job"))
    for function, purpose in (
        (status, "the state of a job as it is true now"),
        (logs, "the end of what a job printed"),
        (watch_, "follow a job to its end; ctrl-C leaves the job alone; exit code 3 when it failed"),
        (cancel, "end a running job"),
        (retry, "run a failed or canceled job again, from its newest complete checkpoint"),
        (upload, "send an ended job's results, log and record to S3"),
    ):
        verb(function, purpose).add_argument("job_id", metavar="JOB_ID")
    verb(list_, "the newest jobs").add_argument("--last", type=count, default=20, help="how many (default: 20; 0: all)")
    named = verbs.choices
    named["logs"].add_argument("--lines", type=count, default=50, help="how many lines (default: 50; 0: all at hand)")
    named["upload"].add_argument("uri", metavar="S3_URI", help="s3://BUCKET/PREFIX; the job's id is added to it")
    named["watch"].add_argument("--every", type=seconds, default=5, help="seconds between lines (default: 5; 0: all)")
    grace = "seconds from SIGTERM to SIGKILL (default: 30)"
    named["cancel"].add_argument("--grace", type=seconds, default=30, help=grace)
    return parser


def add_request(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("action", choices=bundle.ACTIONS, help="what to run")
    verb.add_argument("--spec", required=True, type=command.local, help="the action's spec (build_spec.py makes one)")
    verb.add_argument("--platform", required=True, choices=platforms.PLATFORMS, help="where to run")
    verb.add_argument("--engine", choices=bundle.ENGINES, help="default: what the spec was built for, else docker: tao")
    verb.add_argument("--gpu-ids", help="as nvidia-smi counts: 0,1; none: the CPU (default: all that are visible)")
    verb.add_argument("--image", help="docker: the image to run (default: the one of engine tao)")
    host = "docker: unix:// or ssh:// address (default: $DOCKER_HOST or the docker context)"
    verb.add_argument("--docker-host", help=host)
    verb.add_argument("--network", help="docker: host for servers on this machine (default: the engine's own)")
    who = verb.add_mutually_exclusive_group()
    who.add_argument("--endpoint", type=address, metavar="URL", help="evaluate: the server that answers, up to /v1")
    many = "evaluate: these models, or all of these train outputs, a results folder each"
    who.add_argument("--checkpoint", type=command.local, nargs="+", default=[], metavar="DIR", help=many)


def count(written: str) -> int:
    return 0 if written == "0" else command.positive(written)


def seconds(written: str) -> float:
    return 0.0 if written == "0" else command.above_0(written, most=86400)


def address(written: str) -> str:
    if not re.match(r"https?://[^@?#\s]+$", written):
        raise argparse.ArgumentTypeError("got another form, expected http://HOST:PORT/v1 without a password or key")
    return written


def plan(args) -> command.Outcome:
    record, found = launch.plan(request(args))
    text = engines.summary(record) if record else ""
    given = [word for word in sys.argv[sys.argv.index("plan") + 1 :] if word != "--json"]
    out_of_reach = {one.id for one in found} & {"JOB-DOCKER-UNREACHABLE", "JOB-DOCKER-FAILED"}
    result = {key: record[key] for key in PLANNED if key in record}
    result |= {"inputs": [{key: entry[key] for key in ("role", "path")} for entry in record.get("inputs", ())]}
    return command.Outcome(result, found, text, () if out_of_reach else ("launch_job.py", "submit", *given))


def submit(args) -> command.Outcome:
    return started(args, *launch.submit(request(args)))


def retry(args) -> command.Outcome:
    return started(args, *launch.retry(folder(args), jobs.root(args.jobs_dir)))


def started(args, record: dict, found: list[Finding]) -> command.Outcome:
    if has_errors(found):
        return command.Outcome(record, found)
    job_id = record["job_id"]
    return command.Outcome(record, found, job_id, jobs.words("watch", jobs.root(args.jobs_dir) / job_id))


def request(args) -> launch.Request:
    return launch.Request(
        spec_path=args.spec.absolute(),
        engine=args.engine or spec.engine_of(args.spec, args.platform, args.action),
        jobs_dir=jobs.root(args.jobs_dir),
        working_dir=Path.cwd(),
        gpu_ids=gpu_ids(args.gpu_ids),
        checkpoints=list(map(os.path.abspath, args.checkpoint)),
        **{name: getattr(args, name) for name in PASSED_ON},
    )


def gpu_ids(written: str | None) -> list[str] | None:
    if written is None or written == "none":
        return None if written is None else []
    ids = written.split(",")
    if len(set(ids)) < len(ids) or not all(GPU_ID.fullmatch(one) for one in ids):
        raise bad_input("JOB-GPU-IDS", "--gpu-ids", f"got {written!r}, expected different ids like 0,1, or none")
    return ids


def folder(args) -> Path:
    return jobs.folder(jobs.root(args.jobs_dir), args.job_id)


def status(args) -> command.Outcome:
    record = platforms.refresh(folder(args))
    result = record | {"progress": jobs.plain(jobs.progress(folder(args)))}
    return told(args, record, result, jobs.spec_changes(record))


def told(args, record: dict, result: dict, found=()) -> command.Outcome:
    """What a person is told of a job, and what follows from its state."""
    metrics, ends = jobs.progress(folder(args)), record["outputs"] | record["evidence"]
    steps = [f"step {metrics['step']}/{metrics['total_steps']}"] if "total_steps" in metrics else []
    lines = [
        " ".join([record["job_id"], record["state"], ", ".join(steps + watch.facts(metrics))]).strip(),
        f"  started {record['started_at']}, ended {record['ended_at']}, log {folder(args) / jobs.LOG}",
    ]
    lines += [f"  {record['reason']}"] if record["reason"] else []
    for finding in record["diagnosis"]:
        lines += [f"  cause: {finding['message']}", *([f"  fix: {finding['fix']}"] if finding["fix"] else [])]
    text = "\n".join(lines + [f"  {name}: {value}" for name, value in ends.items()])
    after = {
        ("train", jobs.COMPLETE): ("select_checkpoint.py", str(folder(args))),
        ("evaluate", jobs.COMPLETE): ("score_predictions.py", record["outputs"].get("results_dir")),
    }.get((record["action"], record["state"]), ())
    if record["state"] not in jobs.ENDED:
        after = jobs.words("watch", folder(args))
    return command.Outcome(result, list(found), text, after)


def logs(args) -> command.Outcome:
    lines = [secret.hidden(line) for line in jobs.log_tail(folder(args), args.lines)]
    return command.Outcome({"log": str(folder(args) / jobs.LOG), "lines": lines}, text="\n".join(lines))


def watch_(args) -> command.Outcome:
    try:
        record = watch.show(folder(args), args.json, args.every)
    except KeyboardInterrupt:
        print(f"{args.job_id} goes on without being watched", file=sys.stderr)
        raise
    if record["state"] != jobs.COMPLETE:
        fix = jobs.command("logs", folder(args))
        ending = error("JOB-NOT-COMPLETE", args.job_id, f"{record['state']}: {record['reason']}", fix, job=record)
        raise Failure([ending, *(Finding(**finding) for finding in record["diagnosis"])], EXIT_OUTSIDE)
    return told(args, record, record)


def cancel(args) -> command.Outcome:
    record = platforms.refresh(folder(args))
    if record["state"] in jobs.ENDED:
        raise bad_input("JOB-ENDED", args.job_id, f"got {record['state']}, expected a job that has not ended")
    record = platforms.stop(folder(args), args.grace)
    return told(args, record, record)


def upload(args) -> command.Outcome:
    s3.split(args.uri)
    record, home = platforms.refresh(folder(args)), folder(args)
    if record["state"] not in jobs.ENDED:
        raise bad_input("JOB-NOT-ENDED", args.job_id, f"got {record['state']}, expected a job that has ended")
    target = publishing.look(s3.join(args.uri, args.job_id), None)
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: home / name for name in OWN_FILES if (home / name).is_file()}
        if jobs.LOG in files:  # what the work printed was its own choice
            files[jobs.LOG] = Path(scratch, jobs.LOG)
            with open(home / jobs.LOG, errors="replace") as log, open(files[jobs.LOG], "w") as copy:
                copy.writelines(map(secret.hidden, log))
        for name, output in record["outputs"].items():
            made = (path for path in Path(output).rglob("*") if path.is_file() and not path.is_symlink())
            files |= {f"{name}/{path.relative_to(output)}": path for path in made}
        publishing.send(target, files, False, None)
    return command.Outcome({"uri": target.uri, "files": len(files)}, text=f"{len(files)} files in {target.uri}")


def list_(args) -> command.Outcome:
    rows, found, silent = [], [], {}
    for made in jobs.folders(jobs.root(args.jobs_dir)):
        try:
            record = asked(made, silent)
            rows.append({key: record[key] for key in ("job_id", "state", "created_at", "reason")})
        except Failure as failure:
            found += failure.findings
    found += [dataclasses.replace(lost, severity=WARNING) for lost in silent.values()]
    shown = rows[: args.last] if args.last else rows
    lines = [f"{row['job_id']}  {row['state']:8}  {row['reason'][:80]}".rstrip() for row in shown]
    lines += [f"... and {len(rows) - len(shown)} older"] if len(shown) < len(rows) else []
    states = dict(collections.Counter(row["state"] for row in rows))
    return command.Outcome({"jobs": shown, "total": len(rows), "states": states}, found, "\n".join(lines))


def asked(made: Path, silent: dict[str, Finding]) -> dict:
    """The record of a job as it is true now, or UNKNOWN. An engine that does not answer is `silent` for the next."""
    record = jobs.read(made)
    host = record.get("options", {}).get("docker_host", made.name)
    if host in silent and record["state"] not in jobs.ENDED:
        return record | {"state": jobs.UNKNOWN, "reason": silent[host].message}
    try:
        return platforms.refresh(made)
    except Failure as failure:
        if "job" not in failure.findings[0].data:
            raise
        silent[host] = failure.findings[0]
        return failure.findings[0].data["job"]


if __name__ == "__main__":
    sys.exit(command.run(parser(), lambda args: args.main(args)))
