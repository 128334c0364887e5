#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3"]
# ///
"""Say why a run failed: match its log against the known errors, each with its cause and its fix.

examples:
  scripts/diagnose_log.py train-20260101-120000-0a1b2c
  scripts/diagnose_log.py outputs/logs_latest/policy_0.log outputs/logs_latest/controller.log --json
  kubectl logs job/train | scripts/diagnose_log.py -
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from cosmos_reason import command, diagnosis, jobs
from cosmos_reason import findings as f


def parser() -> command.Parser:
    parser = command.Parser(__doc__)
    parser.add_argument("logs", nargs="*", metavar="LOG", help="a log file, - for standard input, or the id of a job")
    parser.add_argument("--jobs-dir", help=f"folder of all jobs (default: ${jobs.JOBS_DIR_VARIABLE} or ./jobs)")
    parser.add_argument("--list-checks", action="store_true", help="print id and cause of every known error, and stop")
    parser.add_argument("--explain", metavar="ID", help="print cause, fix and an example of one known error, and stop")
    command.add_json_flag(parser)
    return parser


def main(args) -> command.Outcome:
    if args.list_checks:
        known = {entry.id: {"severity": entry.severity, "checks": entry.cause} for entry in diagnosis.catalog()}
        return command.Outcome(
            {"checks": known}, text="\n".join(f"{id:30} {row['checks']}" for id, row in known.items())
        )
    if args.explain:
        if args.logs:
            fix = f"drop {shlex.join(args.logs)}"
            raise f.bad_input("USAGE", "--explain", "got logs as well, expected the id of an error alone", fix)
        return explained(args.explain)
    found, refused = [], []
    for log in dict.fromkeys(args.logs or [""]):
        try:
            found += of_log(log, args.jobs_dir)
        except f.Failure as failure:
            refused.append(failure)
    if refused:
        found += [one for each in refused for one in each.findings]
        raise f.Failure(found, max(each.exit_code for each in refused))
    first = next((finding for finding in found if finding.severity == f.ERROR), None)
    block = first.data.get("lines", ()) if first else ()  # of an unknown error
    return command.Outcome({"cause": first and first.id}, found, "\n".join(block))


def explained(id: str) -> command.Outcome:
    """Raises Failure (exit 2) for an unknown id."""
    known = {entry.id: entry for entry in diagnosis.catalog()}
    if id not in known:
        message = f"got {id}, expected the id of a known error.{f.did_you_mean(id, known)}"
        raise f.bad_input("USAGE", "--explain", message, "scripts/diagnose_log.py --list-checks")
    row = {name: getattr(known[id], name) for name in ("id", "severity", "action", "cause", "fix")}
    row["example"] = list(known[id].example)
    return command.Outcome(row, text="\n".join(f"{name}: {value}" for name, value in row.items()))


def of_log(log: str, jobs_dir: str | None) -> list[f.Finding]:
    if log == "-":
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        return diagnosis.diagnose(diagnosis.read_lines(sys.stdin), "stdin")
    if jobs.ID.fullmatch(log):
        return of_job(jobs.folder(jobs.root(jobs_dir), log))
    return of_file(Path(log))


def of_file(path: Path, action: str = "") -> list[f.Finding]:
    """Raises Failure (exit 2) for what is no file."""
    if not path.is_file():
        inside = sorted(str(log) for log in path.glob("*.log"))[:1] if path.is_dir() else []
        message = f"got {'a folder' if path.is_dir() else 'no such file'}, expected a log file, - or the id of a job"
        fix = shlex.join(["scripts/diagnose_log.py", *inside]) if inside else "scripts/launch_job.py list"
        raise f.bad_input("LOG-SOURCE", path, message, fix)
    with open(path, encoding="utf-8", errors="replace") as stream:
        return diagnosis.diagnose(diagnosis.read_lines(stream), str(path), action)


def of_job(folder: Path) -> list[f.Finding]:
    """With what its record knows: what failed for a passing reason is tried again, outputs go by their names."""
    record = jobs.read(folder)
    failed, found = record["state"] in (jobs.ERROR, jobs.CANCELED), []
    told = f"the job's record says: {record.get('reason') or 'nothing'}"
    for one in of_file(folder / jobs.LOG, record["action"]):
        if one.id == "EVAL-ALL-FAILED":
            one = replace(one, message=f"{one.message}; {told}")
        again = failed and one.data.get("transient")
        found.append(replace(one, fix=jobs.command("retry", folder)) if again else diagnosis.for_job(one, record))
    if record["state"] == jobs.ERROR and not f.has_errors(found):
        message = f"got no known error in the log; {told}"
        found.append(f.error("LOG-UNKNOWN", folder.name, message, jobs.command("logs", folder)))
    return found


if __name__ == "__main__":
    sys.exit(command.run(parser(), main))
