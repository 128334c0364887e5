"""What every script in scripts/ shares: its argument parser, its output, its exit code.

A script defines `parser()` and `main(args) -> Outcome` and ends with `sys.exit(command.run(parser(), main))`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from cosmos_reason import findings as f

EXIT_CODES = """exit codes:
  0  done, or all checks passed
  1  checks found errors (each is listed with a fix)
  2  wrong usage, or input that cannot be read
  3  the outside world failed (engine, network, disk, missing tool)
"""


@dataclass
class Outcome:
    """What a command found and made: `result` becomes JSON, `text` is what a person reads on stdout."""

    result: dict = field(default_factory=dict)
    findings: list[f.Finding] = field(default_factory=list)
    text: str = ""


class Once(argparse.Action):
    """Store a value; a flag that takes one is given at most once."""

    def __call__(self, parser, namespace, values, option_string=None):
        given = vars(namespace).setdefault("given", set())
        if option_string and self.dest in given:
            raise argparse.ArgumentError(self, "given twice, expected it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with 'did you mean' for flags, and with the exit codes in --help."""

    def __init__(self, description: str | None, **options):
        purpose, _, examples = (description or "").partition("\n\n")
        options.setdefault("epilog", f"{examples.strip()}\n\n{EXIT_CODES}" if examples else None)
        super().__init__(
            description=purpose, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options
        )
        self.register("action", None, Once)

    def error(self, message):
        """Wrong usage. With --json it is a finding on stdout, as everything else is."""
        if "--json" not in sys.argv:
            super().error(message)
        raise f.bad_input("USAGE", self.prog, message, f"{self.prog} --help")

    def parse_args(self, args=None, namespace=None):
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            hints = "".join(f.did_you_mean(word.partition("=")[0], flags) for word in unknown if word.startswith("-"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{hints}")
        return parsed


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, nothing else there")


def run(parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], Outcome], argv=None) -> int:
    """Parse, call `main`, print, and return the exit code. Bad input ends as findings, never as a traceback."""
    as_json = "--json" in (sys.argv if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        args = parser.parse_args(argv)
        outcome = main(args)
        exit_code = f.EXIT_CHECKS_FAILED if f.has_errors(outcome.findings) else f.EXIT_DONE
    except f.Failure as failure:
        outcome, exit_code = Outcome(findings=failure.findings), failure.exit_code
    except OSError as problem:
        finding = f.error("OS-ERROR", str(problem.filename or "-"), f"{problem.strerror or problem}")
        outcome, exit_code = Outcome(findings=[finding]), f.EXIT_OUTSIDE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    try:
        _print(parser.prog, outcome, as_json)
    except BrokenPipeError:  # the reader went away (`| head`); what was done is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as problem:  # stdout is a file on a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f.as_text([f.error("OS-ERROR", "stdout", problem.strerror or str(problem))]), file=sys.stderr)
        return f.EXIT_OUTSIDE
    return exit_code


def _print(program: str, outcome: Outcome, as_json: bool) -> None:
    if as_json:
        document = {
            "ok": not f.has_errors(outcome.findings),
            "command": program.removesuffix(".py"),
            "findings": [finding.to_json() for finding in outcome.findings],
            "result": outcome.result,
        }
        print(json.dumps(document, indent=1, ensure_ascii=False), flush=True)
        return
    if outcome.findings:
        print(f.as_text(outcome.findings), file=sys.stderr)
    if outcome.text:
        print(outcome.text, flush=True)
