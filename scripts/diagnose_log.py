#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["PyYAML==6.0.3"]
# ///
"""Say why a run failed: match its log against the known errors, each with its cause and its fix.

examples:
  scripts/diagnose_log.py train-20260101-120000-0a1b2c
  scripts/diagnose_log.py outputs/logs_latest/policy_0.log --spec spec.toml
  kubectl logs job/train | scripts/diagnose_log.py -
"""

import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

from cosmos_reason import cli
from cosmos_reason.base import findings
from cosmos_reason.base.findings import Failure, Finding
from cosmos_reason.jobs import diagnosis, record
from cosmos_reason.jobs.record import Job
from cosmos_reason.spec import actions, document

# What ends a run from outside: the same may well pass when it is tried again.
KILLED = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument(
        "logs",
        nargs="*",
        metavar="LOG",
        help="a log file, - for standard input, or the id of a job",
    )
    parser.add_argument(
        "--spec",
        type=cli.local,
        metavar="FILE",
        help="the spec that the run was started with, for fixes that fit it (default: that of the "
        "job, the one that the log names, or one of the log's own name beside it)",
    )
    parser.add_argument(
        "--jobs-dir", help=f"folder of all jobs (default: ${record.JOBS_DIR_VARIABLE} or ./jobs)"
    )
    parser.add_argument(
        "--list-checks",
        action="store_true",
        help="print id and cause of every known error, and stop",
    )
    parser.add_argument(
        "--explain",
        metavar="ID",
        help="print cause, fix and an example of one known error, and stop",
    )
    cli.add_output_flags(parser)
    return parser


def main(args) -> cli.Outcome:
    if args.list_checks:
        return listed()
    if args.explain:
        if args.logs:
            message = "got logs as well, expected the id of an error alone"
            fix = f"drop {shlex.join(args.logs)}"
            raise findings.bad_input("USAGE", "--explain", message, fix)
        return explained(args.explain)
    found = of_logs(args.logs or [""], args.jobs_dir, args.spec)
    errors = [finding for finding in found if finding.severity == findings.ERROR]
    if not errors:
        return cli.Outcome({"cause": None}, found)
    block = errors[0].data.get("lines", ())  # of an unknown error
    return cli.Outcome({"cause": errors[0].id}, found, "\n".join(block))


def listed() -> cli.Outcome:
    """Return every known error."""
    checks = {}
    lines = []
    for entry in diagnosis.catalog():
        checks[entry.id] = {"severity": entry.severity, "checks": entry.cause}
        lines.append(f"{entry.id:30} {entry.cause}")
    return cli.Outcome({"checks": checks}, text="\n".join(lines))


def explained(id: str) -> cli.Outcome:
    """Return one known error. Raises Failure (exit 2) for an unknown id."""
    known = {entry.id: entry for entry in diagnosis.catalog()}
    if id not in known:
        hint = findings.did_you_mean(id, known)
        message = f"got {id}, expected the id of a known error.{hint}"
        fix = "scripts/diagnose_log.py --list-checks"
        raise findings.bad_input("USAGE", "--explain", message, fix)
    entry = known[id]
    row = {
        "id": entry.id,
        "severity": entry.severity,
        "action": entry.action,
        "cause": entry.cause,
        "fix": str(entry.fix),
        "example": list(entry.example),
    }
    return cli.Outcome(row, text="\n".join(f"{name}: {value}" for name, value in row.items()))


def of_logs(logs: list[str], jobs_dir: str | None, spec: Path | None) -> list[Finding]:
    """Return what all the logs say. Raises Failure when one cannot be read, after all were looked
    at."""
    found, refused = [], []
    for log in dict.fromkeys(logs):
        try:
            found += of_log(log, jobs_dir, spec)
        except Failure as failure:
            refused.append(failure)
    if not refused:
        return found
    for failure in refused:
        found += failure.findings
    raise Failure(found, max(failure.exit_code for failure in refused))


def of_log(log: str, jobs_dir: str | None, spec: Path | None) -> list[Finding]:
    folder = job_of(log, jobs_dir)
    if folder and spec is None:
        return of_job(folder)
    about_spec = []
    path = folder / record.LOG if folder else Path(log)
    if spec is None:
        spec, about_spec = (None, [no_spec("stdin", "-", [])]) if log == "-" else spec_of(path)
    action = actions.of_file(spec) if spec else ""
    found = of_stdin(action) if log == "-" else of_file(path, action)
    if not any(diagnosis.is_about_spec(finding) for finding in found):
        about_spec = []
    if spec:
        found = [diagnosis.for_spec(finding, spec) for finding in found]
    return found + about_spec


def of_stdin(action: str) -> list[Finding]:
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    return diagnosis.diagnose(diagnosis.read_lines(sys.stdin), "stdin", action)


def job_of(log: str, jobs_dir: str | None) -> Path | None:
    """Return the folder of the job that is meant, by its id, its folder or the log in that."""
    if record.ID.fullmatch(log) or record.is_path(log):
        return record.folder(record.root(jobs_dir), log)
    folder = os.path.dirname(os.path.abspath(log))
    is_log = os.path.basename(log) == record.LOG and record.is_path(folder)
    return Path(folder) if is_log else None


def spec_of(log: Path) -> tuple[Path | None, list[Finding]]:
    """Return the spec that a log's run was started with, and the finding that says why it is taken,
    or that none is known: it is never one of several, and never just the one that lies there."""
    for why, paths in ways_to_spec(log).items():
        candidates = list(
            {os.path.realpath(path): path for path in paths if is_spec(path)}.values()
        )
        if len(candidates) == 1:
            message = f"fixes fit {candidates[0]}: {why}; --spec names another"
            about = findings.info("LOG-SPEC", log, message, spec=str(candidates[0]))
            return candidates[0], [about]
        if candidates:
            break
    seen = candidates or sorted(log.parent.glob("*.toml"))
    return None, [no_spec(log, str(log), seen)]


def no_spec(where: Path | str, log: str, seen: list[Path]) -> Finding:
    known = f" ({', '.join(map(str, seen[:5]))} may be it)" if seen else ""
    message = f"the spec of this run is not known, so the fixes fit any; --spec names it{known}"
    fix = shlex.join(["scripts/diagnose_log.py", log, "--spec", "SPEC.toml"])
    return findings.info("LOG-SPEC-UNKNOWN", where, message, fix)


def ways_to_spec(log: Path) -> dict[str, list[Path]]:
    """Return why a spec is that of a log -> where it would lie, the surest reason first."""
    if not log.is_file():
        raise no_log(log)
    with open(log, encoding="utf-8", errors="replace") as stream:
        named = diagnosis.specs_named(diagnosis.read_lines(stream))
    above = Path(os.path.abspath(log)).parents
    job = next((folder for folder in above if record.is_path(str(folder))), None)
    return {
        "the log names it": [
            place for name in named for place in (Path(name), log.parent / Path(name).name)
        ],
        "it is that of the job in whose folder the log lies": [job / record.SPEC] if job else [],
        "it has the log's name": [log.with_suffix(suffix) for suffix in document.SUFFIXES],
    }


def is_spec(path: Path) -> bool:
    try:
        return path.is_file() and bool(actions.of_file(path))
    except Failure:
        return False


def of_file(path: Path, action: str = "") -> list[Finding]:
    """Raise Failure (exit 2) unless it is a file."""
    if not path.is_file():
        raise no_log(path)
    with open(path, encoding="utf-8", errors="replace") as stream:
        return diagnosis.diagnose(diagnosis.read_lines(stream), str(path), action)


def no_log(path: Path) -> Failure:
    actual, fix = "no such file", "scripts/launch_job.py list"
    if path.is_dir():
        actual = "a folder"
        logs = sorted(str(log) for log in path.glob("*.log"))
        if logs:
            fix = shlex.join(["scripts/diagnose_log.py", *logs])
    message = f"got {actual}, expected a log file, - or the id of a job"
    return findings.bad_input("LOG-SOURCE", path, message, fix)


def of_job(folder: Path) -> list[Finding]:
    """Return the findings with what the job's record knows: what failed for a passing reason is
    tried again, and fixes name the job's own folders."""
    job = Job.load_unchecked(folder)
    has_failed = job.state in (record.ERROR, record.CANCELED)
    reason = f"the job's record says: {job.reason or 'nothing'}"
    action = folder.name.partition("-")[0]
    found = []
    for finding in of_file(folder / record.LOG, action):
        if finding.id == "EVAL-ALL-FAILED":
            finding = replace(finding, message=f"{finding.message}; {reason}")
        if has_failed and finding.data.get("transient"):
            found.append(replace(finding, fix=record.command("retry", folder)))
        else:
            found.append(diagnosis.for_job(finding, job))
    if job.state == record.ERROR and not findings.has_errors(found):
        message = f"got no known error in the log; {reason}"
        was_killed = job.exit_code is None or job.exit_code - 128 in KILLED
        fix = record.command("retry" if was_killed else "logs", folder)
        found.append(findings.error("LOG-UNKNOWN", folder.name, message, fix))
    return found


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))
