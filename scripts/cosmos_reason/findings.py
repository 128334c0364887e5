"""Findings: everything a command has to say about what it was given, in one shape (schemas/finding.schema.json)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

ERROR, WARNING, INFO = "error", "warning", "info"
MAX_RECORD_IDS = 1000
_LONG = re.compile(r"\S{300,}")
# A name out of a file may hold codes that a terminal obeys.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}

EXIT_DONE, EXIT_CHECKS_FAILED, EXIT_BAD_INPUT, EXIT_OUTSIDE = 0, 1, 2, 3


@dataclass(frozen=True)
class Finding:
    """One observation. `id` is stable; `where` is a spec key, `file#record` or a host; `fix` can be pasted."""

    id: str
    severity: str
    where: str
    message: str
    fix: str = ""
    data: dict = field(default_factory=dict)

    def to_json(self) -> dict:
        return asdict(self) | {"where": cut(self.where), "message": cut(self.message)}


def error(id: str, where: str, message: str, fix: str = "", **data) -> Finding:
    return Finding(id, ERROR, str(where), message, fix, data)


def warning(id: str, where: str, message: str, fix: str = "", **data) -> Finding:
    return Finding(id, WARNING, str(where), message, fix, data)


def info(id: str, where: str, message: str, fix: str = "", **data) -> Finding:
    return Finding(id, INFO, str(where), message, fix, data)


class Failure(Exception):
    """Ends a command with findings and an exit code; `bad_input` and `outside` make the two usual ones."""

    def __init__(self, findings: Finding | list[Finding], exit_code: int):
        self.findings = [findings] if isinstance(findings, Finding) else list(findings)
        self.exit_code = exit_code
        super().__init__("; ".join(f"{f.id} {f.where}: {f.message}" for f in self.findings))

    def __reduce__(self):  # a loader worker sends it to the main process
        return type(self), (self.findings, self.exit_code)


def bad_input(id: str, where: str, message: str, fix: str = "", **data) -> Failure:
    """Wrong usage or input that cannot be read: exit code 2."""
    return Failure(error(id, where, message, fix, **data), EXIT_BAD_INPUT)


def outside(id: str, where: str, message: str, fix: str = "", **data) -> Failure:
    """The outside world failed (engine, network, disk, a missing tool): exit code 3."""
    return Failure(error(id, where, message, fix, **data), EXIT_OUTSIDE)


def cut(text: str) -> str:
    """Text in which only the beginning of a word of hundreds of characters is told."""
    return _LONG.sub(lambda word: f"{word[0][:80]}... ({len(word[0])} characters)", text)


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == ERROR for finding in findings)


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The candidates a misspelt `name` most likely meant, best first."""
    import difflib

    return difflib.get_close_matches(name, list(candidates), n=limit, cutoff=0.6)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """' Did you mean a, b?' or '' when nothing is near."""
    candidates = list(candidates)
    begun = sorted((one for one in candidates if len(name) > 3 and one.startswith(name)), key=len)
    close = begun[:3] or nearest(name, candidates)
    return f" Did you mean {', '.join(close)}?" if close else ""


def as_text(findings: Iterable[Finding], limit: int = 20) -> str:
    """Findings for people: errors first, at most `limit` written out, the rest counted."""
    order = {ERROR: 0, WARNING: 1, INFO: 2}
    ranked = sorted(findings, key=lambda finding: order[finding.severity])
    lines = []
    for finding in ranked[:limit]:
        lines.append(f"{finding.severity}: {finding.id} {cut(finding.where)}: {cut(finding.message)}")
        if finding.fix:
            lines.append(f"  fix: {finding.fix}")
    if len(ranked) > limit:
        lines.append(f"... and {len(ranked) - limit} more (--json lists all of them)")
    return "\n".join(lines).translate(_CONTROLS)
