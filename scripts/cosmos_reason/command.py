"""What every script in scripts/ shares: its argument parser, its output, its exit code, the command it suggests next.

A script defines `parser()` and `main(args) -> Outcome` and ends with `sys.exit(command.run(parser(), main))`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosmos_reason import bundle
from cosmos_reason import findings as f

EXIT_CODES = """exit codes:
  0  done, or all checks passed
  1  checks found errors (each is listed with a fix)
  2  wrong usage, or input that cannot be read
  3  the outside world failed (engine, network, disk, missing tool)
"""


@dataclass
class Outcome:
    """What a command found and made: `result` becomes JSON, `text` is what a person reads on stdout.

    `next` is what to run after a success: the name of a script in scripts/ and its arguments.
    """

    result: dict = field(default_factory=dict)
    findings: list[f.Finding] = field(default_factory=list)
    text: str = ""
    next: tuple[str, ...] = ()
    exit_code: int | None = None  # when the findings do not tell it: something failed after `result` was made


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
        if "required" in message:  # perhaps it is there, misspelt
            message += "." + self._hints(word for word in sys.argv[1:] if word.startswith("--"))
        if "--json" not in sys.argv:
            super().error(message)
        raise f.bad_input("USAGE", self.prog, message, f"{self.prog} --help")

    def parse_args(self, args=None, namespace=None):
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hints = self._hints(word for word in unknown if word.startswith("-"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{hints}")
        return parsed

    def _hints(self, words) -> str:
        """What the words that are no flags of this parser or of the verb in use were meant to be."""
        choices = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        verbs = [verb for named in choices for name, verb in named.items() if name in sys.argv]
        flags = {flag for one in (self, *verbs) for action in one._actions for flag in action.option_strings}
        names = (word.partition("=")[0] for word in words)
        return "".join(f.did_you_mean(name, flags) for name in names if name not in flags)


def wrong(written: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"got {written!r}, expected {expected}")


def positive(text: str, most: int = 10**9) -> int:
    """An argparse type, as those below."""
    if not text.isdecimal() or len(text) > 12 or not 1 <= int(text) <= most:
        raise wrong(text, f"a whole number from 1 to {most}")
    return int(text)


def above_0(text: str, most: float = 1e9) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= most:
        raise wrong(text, f"a number above 0, at most {most:.0f}")
    return value


def local(text: str) -> Path:
    if not text or "://" in text:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a local path")
    return Path(text).expanduser()


def size(text: str) -> int:
    """Bytes from 5GB, 500 MB, 1.5GiB."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([KMG]?)(i?)B?", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a size such as 5GB or 500MB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMG".index(match[2].upper() or " "))


def add_json_flag(parser: argparse.ArgumentParser, lines: bool = False) -> None:
    """`lines`: the command prints JSON lines as it goes on, and the document is the last of them."""
    one = "JSON lines on stdout, an event each; the last line is the usual document"
    parser.add_argument(
        "--json", action="store_true", help=one if lines else "one JSON document on stdout, nothing else there"
    )
    parser.set_defaults(json_indent=None if lines else 1)


def run(parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], Outcome], argv=None) -> int:
    """Parse, call `main`, print, and return the exit code. Bad input ends as findings, never as a traceback."""
    as_json, indent = "--json" in (sys.argv if argv is None else argv), 1
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        args = parser.parse_args(argv)
        indent = getattr(args, "json_indent", 1)
        outcome = main(args)
        exit_code = outcome.exit_code or (f.EXIT_CHECKS_FAILED if f.has_errors(outcome.findings) else f.EXIT_DONE)
    except f.Failure as failure:
        outcome, exit_code = Outcome(findings=failure.findings), failure.exit_code
    except ModuleNotFoundError as missing:
        outcome, exit_code = Outcome(findings=[_not_installed(missing)]), f.EXIT_OUTSIDE
    except OSError as problem:
        finding = f.error("OS-ERROR", str(problem.filename or "-"), f"{problem.strerror or problem}")
        outcome, exit_code = Outcome(findings=[finding]), f.EXIT_OUTSIDE
    except KeyboardInterrupt as stop:
        print(": ".join(["interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130
    try:
        if exit_code:
            outcome.next = ()
        outcome.findings = [replace(finding, fix=_pasteable(finding.fix)) for finding in outcome.findings]
        _print(parser.prog, outcome, as_json, indent)
    except BrokenPipeError:  # the reader went away (`| head`); what was done is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as problem:  # stdout is a file on a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f.as_text([f.error("OS-ERROR", "stdout", problem.strerror or str(problem))]), file=sys.stderr)
        return f.EXIT_OUTSIDE
    return exit_code


def _print(program: str, outcome: Outcome, as_json: bool, indent: int | None) -> None:
    if as_json:
        document = {
            "ok": not f.has_errors(outcome.findings),
            "command": program.removesuffix(".py"),
            "findings": [finding.to_json() for finding in outcome.findings],
            "result": outcome.result,
        }
        if outcome.next:
            document["next"] = suggested(outcome.next)
        print(json.dumps(document, indent=indent, ensure_ascii=False), flush=True)
        return
    if outcome.findings:
        print(f.as_text(outcome.findings), file=sys.stderr)
    if outcome.text:
        print(outcome.text, flush=True)
    if outcome.next:
        print(f"next: {suggested(outcome.next)}", file=sys.stderr)


def suggested(words: tuple[str, ...]) -> str:
    """The command line, with the script called the way this one was."""
    return shlex.join([_beside(words[0]), *map(str, words[1:])])


def _beside(name: str) -> str:
    return os.path.join(os.path.dirname(sys.argv[0]) or ".", name)


def _pasteable(fix: str) -> str:
    """The fix, with the scripts in it called the way this one was, whatever folder it is pasted in."""

    def called(name: re.Match) -> str:
        path = _beside(name[1])
        return shlex.quote(path) if os.path.isfile(path) else name[0]

    return re.sub(r"(?<!\S)(?:scripts/)?(\w+\.py)(?!\S)", called, fix)


def _not_installed(missing: ModuleNotFoundError) -> f.Finding:
    if not missing.name or missing.name.startswith("cosmos_reason"):
        raise missing  # a defect of ours
    message = f"got no package {missing.name!r} in {sys.executable}"
    return f.error("PACKAGE-MISSING", missing.name, message, shlex.join(["make", "-C", str(bundle.ROOT), "setup"]))
