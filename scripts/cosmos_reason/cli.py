"""What every script in scripts/ shares:
its argument parser, its output, its exit code, the command it suggests next.

A script defines `parser()` and `main(args) -> Outcome` and ends with
`sys.exit(cli.run(parser(), main))`.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cosmos_reason.base import bundle, files
from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix

EXIT_CODES = (
    "exit codes: 0 done, 1 checks found errors, 2 wrong usage or unreadable input, "
    "3 the outside world failed\n"
)
WIDTH = 100  # of help texts
program = ""  # of which this script is a subcommand
MOST_NAMED = 15  # flags that a short help names without a word about them


@dataclass
class Outcome:
    """What a command found and made: `result` becomes JSON,
    `text` is what a person reads on stdout.

    `next` is what to run after a success: the name of a script in scripts/ and its arguments;
    `serve` is the command line that serves the model it is about.
    """

    result: dict = field(default_factory=dict)
    findings: list[f.Finding] = field(default_factory=list)
    text: str = ""
    next: tuple[str, ...] | str = ()
    serve: str = ""
    # The spec that was read: what build_spec said of it is counted, not said again.
    spec: Path | None = None
    # Ids of infos that `text` makes plain, or that matter little: --json alone has them.
    plain: tuple[str, ...] = ()
    # A plan is kept and shown to others: what speaks against it stands in the text, on stdout.
    is_document: bool = False
    # When the findings do not tell it: something failed after `result` was made.
    exit_code: int | None = None


class Once(argparse.Action):
    """Store a value; a flag that takes one is given at most once."""

    def __call__(self, parser, namespace, values, option_string=None):
        given = vars(namespace).setdefault("given", set())
        if option_string and self.dest in given:
            raise argparse.ArgumentError(self, "given twice, expected it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class WholeHelp(argparse.Action):
    """Print the help with every flag, and stop."""

    def __call__(self, parser, namespace, values, option_string=None):
        print(parser.whole_help(), end="")
        parser.exit()


HELPS = (argparse._HelpAction, WholeHelp)


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with 'did you mean' for flags, and with the exit codes.

    Flags may stand between positional arguments where it `is_intermixed`.

    Where `common` names flags, --help explains the positional arguments and these, in this order.
    The others it names where they are few, else it counts them; --help-all explains all, and has
    what follows the examples.
    """

    def __init__(
        self, description: str | None, common: str = "", is_intermixed: bool = False, **options
    ):
        purpose, _, examples = (description or "").partition("\n\n")
        options.setdefault("epilog", f"{examples.strip()}\n\n{EXIT_CODES}" if examples else None)
        super().__init__(
            description=purpose,
            allow_abbrev=False,
            formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, width=WIDTH, max_help_position=22
            ),
            **options,
        )
        self.register("action", None, Once)
        self.is_intermixed = is_intermixed
        self.common = common.split()
        if self.common:
            self.add_argument("--help-all", action=WholeHelp, nargs=0, help="explain every flag")

    def whole_help(self) -> str:
        return super().format_help()

    def format_help(self) -> str:
        if not self.common:
            return self.whole_help()
        by_name = {name: action for action in self._actions for name in action.option_strings}
        positional = [action for action in self._actions if not action.option_strings]
        shown = [*positional, *(by_name[name] for name in self.common)]
        others = [action for action in self._actions if action not in shown]
        formatter = self._get_formatter()
        formatter.add_text(self.format_usage().strip())
        formatter.add_text(self.description)
        formatter.start_section("the common case")
        formatter.add_arguments(shown)
        formatter.end_section()
        formatter.add_text(_named(others))
        examples, _, notes = (self.epilog or "").partition("\n\n")
        formatter.add_text(examples)
        if notes:
            formatter.add_text(EXIT_CODES)
        return formatter.format_help()

    def format_usage(self) -> str:
        """Return one line: what must be given. argparse itself repeats every flag there."""
        if self.usage or not self.common:
            return super().format_usage()
        return f"usage: {' '.join([self.prog, *self._required_words(), '[flags]'])}\n"

    def _required_words(self) -> list[str]:
        words = []
        for action in self._actions:
            metavar = action.metavar or action.dest.upper()
            if not action.option_strings:
                words.append(metavar)
            elif action.required:
                words.append(f"{action.option_strings[0]} {metavar}")
        return words

    def error(self, message):
        """End with wrong usage. With --json it is a finding on stdout, as everything else is."""
        if "required" in message:  # perhaps it is there, misspelt
            message += "." + self._hints(word for word in sys.argv[1:] if word.startswith("--"))
        if "--json" not in sys.argv:
            super().error(f.printable(message))
        raise f.bad_input("USAGE", self.prog, message, f"scripts/{self.prog} --help")

    def parse_args(self, args=None, namespace=None):
        parse = self.parse_known_intermixed_args if self.is_intermixed else self.parse_known_args
        parsed, unknown = parse(args, namespace)
        if unknown:
            hints = self._hints(word for word in unknown if word.startswith("-"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{hints}")
        return parsed

    def _hints(self, words) -> str:
        """Return what the words that are no flags of this parser or of the verb in use were meant
        to be."""
        actions = list(self._actions)
        for choice in self._actions:
            if isinstance(choice.choices, dict):
                for verb in choice.choices.keys() & set(sys.argv):
                    actions += choice.choices[verb]._actions
        flags = {flag for action in actions for flag in action.option_strings}
        given = (word.partition("=")[0] for word in words)
        return "".join(_hint(name, flags) for name in given if name not in flags)


def _hint(given: str, flags: set[str]) -> str:
    """Return what a flag that no parser has was meant to be: the flag of ours that means what it
    means to other trainers, one that is spelt much like it, or a key where there is --set."""
    from cosmos_reason.spec import document, names

    action = next((word for word in sys.argv[1:] if word in bundle.ACTIONS), "train")
    name = given.lstrip("-").replace("-", "_")
    told = names.word(action, name)
    if told and told.flag in flags:
        return f" Did you mean {told.flag}?"
    hint = f.did_you_mean(given, flags)
    if hint or "--set" not in flags:
        return hint
    key = told.key if told else names.full_name(action, name)
    if key in document.keys(action):
        return f" Did you mean --set {key}=VALUE?"
    return f" Here {told.note}." if told else ""


def _named(actions: list[argparse.Action]) -> str:
    """Return the flags that a short help does not explain: by name, or how many where they are
    many."""
    names = []
    for action in actions:
        if action.help != argparse.SUPPRESS and not isinstance(action, HELPS):
            names.append(max(action.option_strings, key=len))
    if len(names) > MOST_NAMED:
        return f"{len(names)} more flags, which --help-all explains"
    return textwrap.fill(
        f"more flags (--help-all explains them): {' '.join(names)}", WIDTH, break_on_hyphens=False
    )


def wrong(written: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"got {written!r}, expected {expected}")


def positive(text: str, most: int = 10**9) -> int:
    """Return an argparse type, as those below."""
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


def some_text(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise wrong(text, "a text")
    return text


def local(text: str) -> Path:
    if not text or "://" in text:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a local path")
    return Path(text).expanduser()


def size(text: str) -> int:
    """Return the bytes of 5GB, 500 MB, 1.5GiB."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([KMG]?)(i?)B?", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a size such as 5GB or 500MB")
    return int(
        float(match[1]) * (1024 if match[3] else 1000) ** " KMG".index(match[2].upper() or " ")
    )


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise wrong(text, "a number from 0 to 1")
    return value


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how answers are read: the fields of evaluation.grading.Options."""
    from cosmos_reason.evaluation import grading

    parser.add_argument(
        "--type",
        choices=grading.TYPES,
        default="auto",
        help="how ground truths and answers are read (default: auto, per question from the data)",
    )
    parser.add_argument(
        "--tolerance",
        type=share,
        default=0.0,
        help="relative error a number may have (default: 0); "
        "units of length, time, mass and speed are converted",
    )
    parser.add_argument(
        "--boxes",
        choices=tuple(grading.BOX_MEASURES),
        help="how responses write places in the picture where ground truths write them otherwise: "
        "pixels, 1000ths or shares (1) of a side, `:` before that of the ground truths "
        "(default: compared as written)",
    )


def add_output_flags(parser: argparse.ArgumentParser, lines: bool = False) -> None:
    """Add --json and --quiet. `lines`: the command prints JSON lines as it goes on, and the
    document is the last of them."""
    one = "JSON lines on stdout, an event each; the last line is the usual document"
    parser.add_argument(
        "--json",
        action="store_true",
        help=one if lines else "one JSON document on stdout, nothing else there",
    )
    parser.set_defaults(json_indent=None if lines else 1)
    if not lines:
        parser.add_argument(
            "--save", type=local, metavar="FILE", help="what --json prints goes into FILE, too"
        )
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="the result, errors and warnings alone: no infos, no next command",
    )


def _tell_uncaught(kind: type[BaseException], problem: BaseException, trace) -> None:
    """Report what nothing caught; Ctrl-C while a script is still being imported is no traceback
    either."""
    if issubclass(kind, KeyboardInterrupt):
        f.say("interrupted")
    else:
        sys.__excepthook__(kind, problem, trace)


sys.excepthook = _tell_uncaught


def run(
    parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], Outcome], argv=None
) -> int:
    """Parse, call `main`, print, and return the exit code.
    Bad input ends as findings, never as a traceback."""
    words = sys.argv if argv is None else argv
    as_json, is_quiet = "--json" in words, "--quiet" in words
    indent = 1
    # Of a caller that closed one (`>&-`): the next file that is opened would take its number, and
    # what a child prints would be written into that file.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show is no reason to fail.
        stream.reconfigure(errors="backslashreplace")
    try:
        args = parser.parse_args(argv)
        indent = getattr(args, "json_indent", 1)
        outcome = main(args)
        if outcome.exit_code is None:
            failed = f.has_errors(outcome.findings)
            outcome.exit_code = f.EXIT_CHECKS_FAILED if failed else f.EXIT_DONE
        kept_in = getattr(args, "save", None)
    except (f.Failure, ModuleNotFoundError, OSError, UnicodeEncodeError) as problem:
        outcome, kept_in = _outcome_of(problem), None
    except RuntimeError as problem:  # of Path.resolve; from Python 3.13 on opening it is an OSError
        if "Symlink loop" not in str(problem):
            raise
        outcome, kept_in = _outcome_of(OSError(errno.ELOOP, str(problem))), None
    except KeyboardInterrupt as stop:
        f.say(": ".join(["interrupted", *map(str, stop.args)]))
        return 130
    if outcome.exit_code:  # nothing is suggested after a failure
        outcome.next = ()
    outcome.findings = [replace(one, fix=one.fix.called(_call_in_fix)) for one in outcome.findings]
    if kept_in:
        _keep(parser.prog, kept_in, outcome)
    try:
        if as_json:
            print(f.as_json(document_of(parser.prog, outcome), indent), flush=True)
        else:
            _print(outcome, is_quiet)
    except BrokenPipeError:  # the reader went away (`| head`); what was done is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as problem:  # stdout is a file on a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(
            f.as_text([f.error("OS-ERROR", "stdout", problem.strerror or str(problem))]),
            file=sys.stderr,
        )
        return f.EXIT_OUTSIDE
    return outcome.exit_code


def _keep(program: str, path: Path, outcome: Outcome) -> None:
    """Write the document to a file that --save names. What was found stays said where that fails,
    which is then said too."""
    try:
        files.write_text(path, f.as_json(document_of(program, outcome), indent=1) + "\n")
        outcome.text += f"\nsaved as {path}: the same, for programs"
    except (f.Failure, OSError) as problem:
        outcome.findings += _outcome_of(problem).findings
        outcome.exit_code, outcome.next = f.EXIT_OUTSIDE, ()


def _outcome_of(problem: Exception) -> Outcome:
    """Return what a command that ended with this exception prints and returns."""
    if isinstance(problem, f.Failure):
        return Outcome(findings=problem.findings, exit_code=problem.exit_code)
    if isinstance(problem, UnicodeEncodeError):  # a name of a file may be any bytes
        message = f"got bytes that are no UTF-8 in {problem.object[-80:]!r}, expected another name"
        return Outcome(findings=[f.error("FILE-NAME", "-", message)], exit_code=f.EXIT_BAD_INPUT)
    if isinstance(problem, ModuleNotFoundError):
        finding = _not_installed(problem)
    else:
        message, fix = problem.strerror or str(problem), files.way_out(problem)
        finding = f.error("OS-ERROR", files.place(problem), message, fix)
        if problem.errno in files.NO_NAME_OF_A_FILE:  # it was given wrongly
            return Outcome(findings=[finding], exit_code=f.EXIT_BAD_INPUT)
    return Outcome(findings=[finding], exit_code=f.EXIT_OUTSIDE)


def document_of(program: str, outcome: Outcome) -> dict:
    """Return what --json prints."""
    document = {
        "ok": not f.has_errors(outcome.findings),
        "command": program.removesuffix(".py"),
        "findings": [finding.to_json() for finding in outcome.findings],
        "result": outcome.result,
    }
    if outcome.next:
        document["next"] = suggested(outcome.next)
    return document


def _print(outcome: Outcome, is_quiet: bool) -> None:
    shown, said = outcome.findings, []
    is_document = outcome.is_document and not outcome.exit_code
    if is_quiet:
        shown = [finding for finding in shown if finding.severity != f.INFO]
    plain = [one for one in shown if one.id in outcome.plain and one.severity == f.INFO]
    # What the text tells word for word is not told twice, but for errors and what has a fix.
    told = [one for one in shown if one.message in outcome.text and not one.fix]
    told = [one for one in told if one.severity != f.ERROR]
    shown = [one for one in shown if one not in plain and one not in told]
    if outcome.spec:
        from cosmos_reason.spec import origins

        shown, said = without_said(shown, origins.said_of(outcome.spec))
    if shown and not is_document:
        print(f.as_text(shown), file=sys.stderr)
    if outcome.text:
        print(f.printable(outcome.text), flush=True)
    if shown and is_document:
        print(f.as_text(shown), flush=True)
    if is_quiet:
        return
    if said:
        names = ", ".join(dict.fromkeys(said))
        f.say(f"as build_spec said of {outcome.spec.name}: {names} (--json)")
    if outcome.serve:
        f.say(f"serve: {outcome.serve}")
    if outcome.next:
        f.say(f"next: {suggested(outcome.next)}")


def without_said(
    found: list[f.Finding], before: set[tuple[str, str, str]]
) -> tuple[list[f.Finding], list[str]]:
    """Return the findings that were not said before, and the ids of the warnings that were. Errors
    are always said."""
    new, said = [], []
    for finding in found:
        is_said = (finding.id, finding.where, finding.message) in before
        if not is_said or finding.severity == f.ERROR:
            new.append(finding)
        elif finding.severity == f.WARNING:
            said.append(finding.id)
    return new, said


def pasteable(text: str) -> str:
    """Return a text with the scripts in it called the way this one was."""
    return Fix(command=text).called(_call_in_fix).command


def suggested(words: tuple[str, ...] | str) -> str:
    """Return the command line, with the script called the way this one was; as it is what has to be
    said in words."""
    if isinstance(words, str):
        return words
    return shlex.join([*_call(words[0]), *map(str, words[1:])])


def without(words: list[str], switch: str, flag: str) -> list[str]:
    """Return words of a command line without a switch, and without a flag and its value."""
    kept = []
    is_value = False
    for word in words:
        if not is_value and word != flag and word != switch and not word.startswith(f"{flag}="):
            kept.append(word)
        is_value = word == flag
    return kept


def _call(script: str) -> list[str]:
    """Return the words that call a script the way this one was called: a subcommand, or its
    path."""
    if program:
        return [program, script.removesuffix(".py").replace("_", "-")]
    return [os.path.join(os.path.dirname(sys.argv[0]) or ".", script)]


def _call_in_fix(script: str) -> list[str]:
    """Return the same for a command of a fix, where this process may be none of the scripts."""
    folder = os.path.dirname(sys.argv[0]) or "."
    if program or os.path.isfile(os.path.join(folder, "build_spec.py")):
        return _call(script)
    return [os.path.join("scripts", script)]


def _not_installed(missing: ModuleNotFoundError) -> f.Finding:
    if not missing.name or missing.name.startswith("cosmos_reason"):
        raise missing  # a defect of ours
    message = f"got no package {missing.name!r} in {sys.executable}"
    if not (bundle.ROOT / "Makefile").is_file():  # the copy that a container has
        message += f"; expected an image that has what {bundle.ENGINE_PACKAGES} names"
        return f.error("PACKAGE-MISSING", missing.name, message)
    environment = bundle.ROOT / ".venv"
    has_it = next(environment.glob(f"lib/python3*/site-packages/{missing.name}"), None)
    if has_it and Path(sys.prefix).resolve() != environment.resolve():
        path = shlex.quote(f"{environment}/bin")
        message += f"; {environment} has it, and its bin is not first on PATH"
        return f.error("PACKAGE-MISSING", missing.name, message, f'export PATH={path}:"$PATH"')
    command = shlex.join(["make", "-C", str(bundle.ROOT), bundle.target_of(missing.name)])
    return f.error("PACKAGE-MISSING", missing.name, message, command)
