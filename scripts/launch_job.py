#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3", "jsonschema==4.26.0", "tomli_w==1.2.0", "tqdm==4.70.1", "psutil==7.2.2"]
# ///
"""Start an action's spec on a platform, watch it, and know how it ended.

examples:
  scripts/launch_job.py plan train --spec spec.toml --platform local
  scripts/launch_job.py submit train --spec spec.toml --platform local --gpu-ids 0
  scripts/launch_job.py watch train-20260101-120000-0a1b2c
  scripts/launch_job.py list
"""

import argparse
import collections
import re
import sys
from pathlib import Path

from cosmos_reason import bundle, command, jobs, platforms
from cosmos_reason.findings import Failure, bad_input, has_errors, outside
from cosmos_reason.platforms import launch, watch

GPU_ID = re.compile(r"\d+|(GPU|MIG)-[0-9a-fA-F-]+")


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(function, purpose: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(function.__name__.rstrip("_"), help=purpose, description=purpose)
        added.set_defaults(main=function)
        added.add_argument("--jobs-dir", help=f"folder of all jobs (default: ${jobs.JOBS_DIR_VARIABLE} or ./jobs)")
        command.add_json_flag(added)
        return added

    for function, purpose in (
        (plan, "show what submit would run; touches nothing"),
        (submit, "record and start a job"),
    ):
        added = verb(function, purpose)
        added.add_argument("action", choices=bundle.ACTIONS, help="what to run")
        added.add_argument("--spec", required=True, type=Path, help="the action's spec (build_spec.py makes one)")
        added.add_argument("--platform", required=True, choices=platforms.PLATFORMS, help="where to run")
        added.add_argument("--engine", default="transformers", choices=bundle.ENGINES, help="default: transformers")
        added.add_argument("--gpu-ids", help="as nvidia-smi counts: 0,1; none: the CPU (default: all that are visible)")
    for function, purpose in (
        (status, "the state of a job as it is true now"),
        (logs, "the end of what a job printed"),
        (watch_, "follow a job to its end; ctrl-C leaves the job alone; exit code 3 when it failed"),
        (cancel, "end a running job"),
        (retry, "run a failed or canceled job again, from its newest complete checkpoint"),
    ):
        verb(function, purpose).add_argument("job_id", metavar="JOB_ID")
    verb(list_, "the newest jobs").add_argument("--last", type=count, default=20, help="how many (default: 20; 0: all)")
    named = verbs.choices
    named["logs"].add_argument("--lines", type=count, default=50, help="how many lines (default: 50; 0: all at hand)")
    named["watch"].add_argument("--every", type=float, default=5, help="seconds between lines (default: 5; 0: all)")
    named["cancel"].add_argument(
        "--grace", type=float, default=30, help="seconds from SIGTERM to SIGKILL (default: 30)"
    )
    return parser


def count(written: str) -> int:
    if not written.isdecimal():
        raise argparse.ArgumentTypeError(f"got {written!r}, expected a number from 0 on")
    return int(written)


def plan(args) -> command.Outcome:
    record, found = launch.plan(request(args))
    return command.Outcome(record, found, platforms.module(args.platform).launch_text(record) if record else "")


def submit(args) -> command.Outcome:
    record, found = launch.submit(request(args))
    return command.Outcome(record, found, "" if has_errors(found) else record["job_id"])


def request(args) -> launch.Request:
    return launch.Request(
        action=args.action,
        spec_path=args.spec.absolute(),
        platform=args.platform,
        engine=args.engine,
        jobs_dir=jobs.root(args.jobs_dir),
        working_dir=Path.cwd(),
        gpu_ids=gpu_ids(args.gpu_ids),
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
    record, found = platforms.refresh(folder(args))
    result = record | {"progress": jobs.progress(folder(args))}
    return command.Outcome(result, found + jobs.spec_changes(record), text(folder(args), record))


def text(folder: Path, record: dict) -> str:
    metrics = jobs.progress(folder)
    steps = [f"step {metrics['step']}/{metrics['total_steps']}"] if "total_steps" in metrics else []
    lines = [
        " ".join([record["job_id"], record["state"], ", ".join(steps + watch.facts(metrics))]).strip(),
        f"  started {record['started_at']}, ended {record['ended_at']}, log {folder / jobs.LOG}",
    ]
    lines += [f"  {record['reason']}"] if record["reason"] else []
    return "\n".join(lines + [f"  {name}: {value}" for name, value in (record["outputs"] | record["evidence"]).items()])


def logs(args) -> command.Outcome:
    lines = jobs.log_tail(folder(args), args.lines)
    return command.Outcome({"log": str(folder(args) / jobs.LOG), "lines": lines}, text="\n".join(lines))


def watch_(args) -> command.Outcome:
    try:
        record = watch.show(folder(args), args.json, args.every)
    except KeyboardInterrupt:
        print(f"{args.job_id} goes on without being watched", file=sys.stderr)
        raise
    if record["state"] != jobs.COMPLETE:
        fix = f"scripts/launch_job.py logs {args.job_id}"
        raise outside("JOB-NOT-COMPLETE", args.job_id, f"{record['state']}: {record['reason']}", fix, job=record)
    return command.Outcome(record, text=text(folder(args), record))


def cancel(args) -> command.Outcome:
    record, _ = platforms.refresh(folder(args))
    if record["state"] in jobs.ENDED:
        raise bad_input("JOB-ENDED", args.job_id, f"got {record['state']}, expected a job that has not ended")
    if record["state"] == jobs.UNKNOWN:
        raise outside("JOB-OUT-OF-REACH", args.job_id, record["reason"])
    platforms.module(record["platform"]).stop(folder(args), args.grace)
    record, found = platforms.refresh(folder(args))
    return command.Outcome(record, found, text(folder(args), record))


def retry(args) -> command.Outcome:
    record, found = launch.retry(folder(args), jobs.root(args.jobs_dir))
    return command.Outcome(record, found, "" if has_errors(found) else record["job_id"])


def list_(args) -> command.Outcome:
    rows, found = [], []
    for made in jobs.folders(jobs.root(args.jobs_dir)):
        try:
            record, more = platforms.refresh(made)
        except Failure as failure:
            found += failure.findings
            continue
        rows.append({key: record[key] for key in ("job_id", "state", "created_at", "reason")})
        found += more
    shown = rows[: args.last] if args.last else rows
    lines = [f"{row['job_id']}  {row['state']:8}  {row['reason'][:80]}".rstrip() for row in shown]
    lines += [f"... and {len(rows) - len(shown)} older"] if len(shown) < len(rows) else []
    states = dict(collections.Counter(row["state"] for row in rows))
    return command.Outcome({"jobs": shown, "total": len(rows), "states": states}, found, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), lambda args: args.main(args)))
