#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3"]
# ///
"""Say why a run failed: match its log against the known errors, each with its cause and its fix.

examples:
  scripts/diagnose_log.py train-20260101-120000-0a1b2c
  scripts/diagnose_log.py outputs/logs_latest/policy_0.log --json
  kubectl logs job/train | scripts/diagnose_log.py -
"""

import sys
from pathlib import Path

from cosmos_reason import command, diagnosis, jobs
from cosmos_reason.findings import bad_input


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("log", nargs="?", metavar="LOG", help="a log file, - for standard input, or the id of a job")
    parser.add_argument("--jobs-dir", help=f"folder of all jobs (default: ${jobs.JOBS_DIR_VARIABLE} or ./jobs)")
    parser.add_argument("--list-checks", action="store_true", help="print id and cause of every known error, and stop")
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    if args.list_checks:
        return listing()
    if not args.log:
        raise bad_input("USAGE", "LOG", "got nothing, expected a log file, - or a job id", "scripts/launch_job.py list")
    if args.log == "-":
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        return outcome(diagnosis.diagnose(diagnosis.read_lines(sys.stdin), "stdin"))
    path = source(args)
    with open(path, encoding="utf-8", errors="replace") as stream:
        action = jobs.read(path.parent)["action"] if jobs.ID.fullmatch(args.log) else ""
        return outcome(diagnosis.diagnose(diagnosis.read_lines(stream), str(path), action))


def source(args) -> Path:
    """The log file that the argument names. Raises Failure (exit 2)."""
    path = Path(args.log)
    if jobs.ID.fullmatch(args.log):
        path = jobs.folder(jobs.root(args.jobs_dir), args.log) / jobs.LOG
    if path.is_file():
        return path
    inside = sorted(str(log) for log in path.glob("*.log"))[:3] if path.is_dir() else []
    got = "a folder" if path.is_dir() else "no such file or job"
    message = f"got {got}, expected a log file, - for standard input, or a job id"
    raise bad_input(
        "LOG-SOURCE", path, message, f"scripts/diagnose_log.py {inside[0]}" if inside else "scripts/launch_job.py list"
    )


def outcome(found: list) -> command.Outcome:
    first = next((finding for finding in found if finding.severity == "error"), None)
    block = first.data.get("lines", ()) if first else ()  # of an unknown error
    return command.Outcome({"cause": first and first.id}, found, "\n".join(block))


def listing() -> command.Outcome:
    known = {entry.id: {"severity": entry.severity, "checks": entry.cause} for entry in diagnosis.catalog()}
    lines = (f"{name:30} {row['checks']}" for name, row in known.items())
    return command.Outcome({"checks": known}, text="\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
