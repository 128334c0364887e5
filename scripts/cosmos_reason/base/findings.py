"""Findings: all that a command has to say about what it was given, in one shape
(schemas/finding.schema.json)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cosmos_reason.base import secrets
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import shortened

ERROR, WARNING, INFO = "error", "warning", "info"
MAX_RECORD_IDS = 1000
LONG_WORD = re.compile(r"\S{300,}")
SHOWN_OF_LONG_WORD = 80
SHORTEST_MISSPELT = 4  # letters
MOST_PLACES = 10  # named of findings that are told together
SHORT_FIX = 60  # characters, for which there is room on the line of a finding
# What a file or a server says may hold codes that a terminal obeys, or marks that turn the order of
# its letters.
CONTROL_CODES = (*range(9), *range(11, 32), *range(127, 160))
DIRECTION_MARKS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
LEFT_BY_JSON = (*range(127, 160), *DIRECTION_MARKS)  # what json.dumps does not spell out
IN_TEXT = {code: f"\\x{code:02x}" for code in CONTROL_CODES}
IN_TEXT |= {code: f"\\u{code:04x}" for code in DIRECTION_MARKS}
IN_JSON = {code: f"\\u{code:04x}" for code in LEFT_BY_JSON}

_silent = False

EXIT_DONE = 0
EXIT_CHECKS_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_OUTSIDE = 3


@dataclass(frozen=True)
class Finding:
    """One observation. `id` is stable; `where` is a spec key, `file#record` or a host.

    A `fix` that is given as plain text is a command: `Fix(command=text)`.
    """

    id: str
    severity: str
    where: str
    message: str
    fix: Fix = field(default_factory=Fix)
    data: dict = field(default_factory=dict)

    def __post_init__(self):
        if isinstance(self.fix, str):
            object.__setattr__(self, "fix", Fix(command=self.fix))

    def to_json(self) -> dict:
        return {
            "id": self.id,
            "severity": self.severity,
            "where": cut(self.where),
            "message": cut(self.message),
            "fix": str(self.fix),
            "data": self.data,
        }


def error(id: str, where: str, message: str, fix: Fix | str = "", **data) -> Finding:
    return Finding(id, ERROR, str(where), message, fix, data)


def warning(id: str, where: str, message: str, fix: Fix | str = "", **data) -> Finding:
    return Finding(id, WARNING, str(where), message, fix, data)


def info(id: str, where: str, message: str, fix: Fix | str = "", **data) -> Finding:
    return Finding(id, INFO, str(where), message, fix, data)


class Failure(Exception):
    """Ends a command with findings and an exit code; `bad_input` and `outside` make the two usual
    ones."""

    def __init__(self, findings: Finding | list[Finding], exit_code: int):
        self.findings = [findings] if isinstance(findings, Finding) else list(findings)
        self.exit_code = exit_code
        texts = [f"{found.id} {found.where}: {found.message}" for found in self.findings]
        super().__init__("; ".join(texts))

    def __reduce__(self):  # a loader worker sends it to the main process
        return type(self), (self.findings, self.exit_code)


def bad_input(id: str, where: str, message: str, fix: Fix | str = "", **data) -> Failure:
    """Return the failure for wrong usage or input that cannot be read: exit code 2."""
    return Failure(error(id, where, message, fix, **data), EXIT_BAD_INPUT)


def outside(id: str, where: str, message: str, fix: Fix | str = "", **data) -> Failure:
    """Return the failure of the outside world (engine, network, disk, a tool): exit code 3."""
    return Failure(error(id, where, message, fix, **data), EXIT_OUTSIDE)


def counted(names: Sequence, kind: str = "record_ids") -> dict:
    """Return the data of a finding about many: the first of the names, and how many there are."""
    return {kind: names[:MAX_RECORD_IDS], "count": len(names)}


def attempt(problems: list[Finding], call, *args):
    """Return what `call` returns; None where the input is bad: its findings are then among the
    `problems`, and more can be looked for."""
    try:
        return call(*args)
    except Failure as failure:
        if failure.exit_code != EXIT_BAD_INPUT:
            raise
        problems += failure.findings
        return None


def cut(text: str) -> str:
    """Return `text` with only the beginning of each word of hundreds of characters."""
    return LONG_WORD.sub(lambda word: shortened(word[0], SHOWN_OF_LONG_WORD), text)


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == ERROR for finding in findings)


def misspelt(name: str, candidates: Iterable[str]) -> list[str]:
    """Return the candidates that differ from `name` by one letter: more, less, other, or two
    swapped. Digits tell things apart (8b, 2b), and short names are all alike: neither counts as a
    misspelling."""
    if len(name) < SHORTEST_MISSPELT:
        return []
    return [other for other in candidates if name != other and _is_one_letter_off(name, other)]


def _is_one_letter_off(name: str, other: str) -> bool:
    if [sign for sign in name if sign.isdigit()] != [sign for sign in other if sign.isdigit()]:
        return False
    pairs = enumerate(zip(name, other, strict=False))
    at = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(name), len(other)))
    swapped = name[:at] + name[at : at + 2][::-1] + name[at + 2 :] == other
    added, lacks = name[at + 1 :] == other[at:], name[at:] == other[at + 1 :]
    return swapped or added or lacks or name[at + 1 :] == other[at + 1 :]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return ' Did you mean a, b?' for the candidates that begin so or are one letter off, else
    ''."""
    candidates = list(candidates)
    longer = [candidate for candidate in candidates if candidate.startswith(name)]
    near = sorted(longer, key=len)[:3] if len(name) >= SHORTEST_MISSPELT else []
    near = near or misspelt(name, candidates)[:3]
    return f" Did you mean {', '.join(near)}?" if near else ""


def as_text(findings: Iterable[Finding], limit: int = 20) -> str:
    """Return findings for people: errors first, alike ones on a line, at most `limit` lines, the
    rest counted. A short fix stands on the line of its finding."""
    order = {ERROR: 0, WARNING: 1, INFO: 2}
    ranked = sorted(findings, key=lambda finding: order[finding.severity])
    # Alike are findings that differ only in where they are; their fixes are pasted together.
    alike: dict[tuple, list[Finding]] = {}
    for finding in ranked:
        said = (finding.severity, finding.id, finding.message, finding.fix.command)
        alike.setdefault(said, []).append(finding)
    groups = list(alike.values())
    lines = []
    for group in groups[:limit]:
        first = group[0]
        name = f"{first.id} {cut(first.where)}"
        fix = first.fix
        if len(group) > 1:
            places = list(dict.fromkeys(cut(finding.where) for finding in group))
            if len(places) > MOST_PLACES:
                places[MOST_PLACES:] = [f"... and {len(places) - MOST_PLACES} more"]
            name = f"{first.id} x {len(group)}: {', '.join(places)}"
            for finding in group[1:]:
                fix |= finding.fix
        line = f"{first.severity}: {name}: {cut(first.message)}"
        if pasted := str(fix):
            line += ("  " if len(pasted) <= SHORT_FIX else "\n  ") + f"fix: {pasted}"
        lines.append(line)
    left = sum(len(group) for group in groups[limit:])
    if left:
        lines.append(f"... and {left} more (--json lists all of them)")
    return printable("\n".join(lines))


def printable(text: str) -> str:
    """Return `text` as it may reach a terminal: credentials are hidden, and codes that a terminal
    obeys are spelled out.

    Everything that a command prints goes through here or through `as_json`.
    """
    return secrets.hidden(text).translate(IN_TEXT)


def say(text: str) -> None:
    """Print a line for people, now: on stderr, where it is in the way of no document."""
    if not _silent:
        print(printable(text), file=sys.stderr, flush=True)


def be_silent() -> None:
    """Make `say` say nothing from now on: of processes that do the same, one speaks."""
    global _silent
    _silent = True


def as_json(document, indent: int | None = None) -> str:
    """Return the JSON text of a document as it may reach a terminal."""
    return json.dumps(_hidden(document), indent=indent, ensure_ascii=False).translate(IN_JSON)


def _hidden(value):
    if isinstance(value, str):
        return secrets.hidden(value)
    if isinstance(value, dict):
        return {_hidden(key): _hidden(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(part) for part in value]
    return value
