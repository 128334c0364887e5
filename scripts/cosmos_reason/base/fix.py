"""What mends a finding: other values in the spec, other flags, or a command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

SCRIPT = re.compile(r"(?<!\S)scripts/(\w+\.py)(?!\S)")


@dataclass(frozen=True)
class Fix:
    """`changes` are keys of the spec and the values they should have; None removes the key. `flags`
    are to be added to the command that was run, or to `command`: each with its value, True where it
    takes none, a list where it is given several times. `command` is a command line that can be
    pasted; `scripts/NAME.py` in it is a script of this bundle. What has to be said in words is part
    of the message. `sure` is
    false when the changes are one of several that may have been meant.

    `str(fix)` is what people and agents paste: nothing reads that text again, but `changes`,
    `flags` and `command`. A fix without any of the three is false.
    """

    changes: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    command: str = ""
    sure: bool = field(default=True, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.changes or self.flags or self.command)

    def __str__(self) -> str:
        words = []
        for key, value in self.changes.items():
            if value is None:
                words += ["--unset", key]
            else:
                words += ["--set", f"{key}={value_text(value)}"]
        for flag, value in self.flags.items():
            if value is True:
                words.append(flag)
                continue
            for single in value if isinstance(value, list | tuple) else [value]:
                words += [flag, str(single)]
        return " ".join(part for part in (self.command, shlex.join(words)) if part)

    def __or__(self, other: Fix) -> Fix:
        """Return the changes and flags of both; where they differ, the other's."""
        return replace(
            self, changes={**self.changes, **other.changes}, flags={**self.flags, **other.flags}
        )

    def called(self, how: Callable[[str], list[str]]) -> Fix:
        """Return the fix with each script of its command called by the words that `how` has for
        it."""
        command = SCRIPT.sub(lambda script: shlex.join(how(script[1])), self.command)
        return replace(self, command=command)


def value_text(value: object) -> str:
    """Return a value as it is written after `--set key=`: text as it is, all else as TOML."""
    if isinstance(value, str):
        return value
    return _toml(value)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        pairs = [f"{_toml(name)} = {_toml(inner)}" for name, inner in value.items()]
        return "{" + ", ".join(pairs) + "}"
    # JSON is TOML, but for the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
