"""A spec that is being put together: its values, the origin of each, and what was found wrong on
the way.

`inherited` fills it from an earlier spec or job, `command_line` from the words of build_spec;
`fitting` gives it what its data, its engine and the length of the run ask for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules import placeholders
from cosmos_reason.rules.keys import exclusive
from cosmos_reason.spec import actions, document, names
from cosmos_reason.spec.keys import BATCH

LORA = "policy.lora"
# Where values come from that nobody chose; the words of an origin begin so.
TEMPLATE, PROFILE, TUNING = "template", "profile", "--tuning"
LONG_FLAG = 200  # characters
KEPT_OF_LONG_FLAG = 50  # say which one is meant
TRAIN_ROOT = "--train-root"
# What follows the last colon of a root that is no folder here; an address has only a number there.
SHARE = re.compile(r"(.+):([^:/\\]*)")
SHARE_OF_ADDRESS = re.compile(r"(.+://.+):([\d.]+)")


@dataclass
class Draft:
    """A spec being put together.

    `origins`: key -> source of its value. `named`: key -> the flag that said it. `base`: the spec
    before --unset and --set. `trained`: key -> value in training. `resumed`: the spec of the run to
    resume. `finished`: the model of that run when no step of it is left. `follows`: the model
    folder whose training tells how to ask, when it is not the spec's own model. `benchmarks`:
    names of datasets that an earlier config asks about. `flags`: flag -> how it was given, for
    flags given once. `files`: path -> records to write with the spec.
    `exit_code`: 2 once something could not be read.
    """

    action: str
    engine: str
    spec: dict = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    base: dict = field(default_factory=dict)
    findings: list[f.Finding] = field(default_factory=list)
    trained: dict[str, object] = field(default_factory=dict)
    resumed: dict = field(default_factory=dict)
    finished: str = ""
    follows: Path | None = None
    benchmarks: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[dict]] = field(default_factory=dict)
    exit_code: int = f.EXIT_CHECKS_FAILED

    @property
    def params(self) -> dict:
        return actions.places(self.action)

    @property
    def spec_given(self) -> str:
        """Return how --spec was given; --fix goes with it, since it has nothing to mend without."""
        given = self.flags["--spec"]
        return f"{given} --fix" if "--fix" in self.flags else given

    def attempt(self, act, *words, **options):
        """Return what `act(*words, **options)` returns; None, and a finding among the others, when
        it cannot read its input."""
        try:
            return act(*words, **options)
        except f.Failure as failure:
            self.findings += failure.findings
            self.exit_code = max(self.exit_code, failure.exit_code)
            return None

    def refuse(self, id: str, where: str, message: str, fix: Fix | str = "") -> None:
        self.findings.append(f.error(id, where, message, fix))

    def not_for(self, flag: str, instead: str) -> None:
        message = f"{flag} has no effect on {actions.a_spec(self.action)}; {instead}"
        self.refuse("SPEC-FLAG", flag, message, f"drop {self.flags[flag]}")

    def put(self, key: str, value, origin: str) -> None:
        document.set_value(self.spec, key, value)
        self.origins[key] = origin

    def is_from(self, key: str, *sources: str) -> bool:
        """Return whether the value of a key came from one of these."""
        return self.origins.get(key, "").startswith(sources)

    def overlay(self, table: dict, origin: str, origins: dict[str, str] | None = None) -> None:
        """Take over a spec that was written earlier, its paths and model names as they are written
        today."""
        values = {
            key: located(self, key, value) for key, value in document.items(self.action, table)
        }
        document.set_values(self.spec, values)
        for key in values:
            self.origins[key] = (origins or {}).get(key, origin)

    def name(self, key: str, flag: str) -> bool:
        """Note that the command line sets `key`; a second flag for it, or for its table, is a
        contradiction."""
        # Neither wins by its place: which of two was meant nobody can tell from a command line.
        for other, before in self.named.items():
            if not document.overlap(key, other):
                continue
            superfluous = before
            if flag.startswith(("--set", "--unset")) and "--unset" not in before:
                superfluous = flag
            message = f"{brief(before)} and {brief(flag)} both set it; keep one"
            self.refuse("SPEC-KEY-TWICE", key, message, f"drop {brief(superfluous)}")
            return False
        self.named[key] = flag
        return True


def contradicted(draft: Draft, changes: Mapping[str, object]) -> str:
    """Return the key, given by the user, that excludes one which the changes of a fix would set; ""
    where there is none. What a file says gives way to the command line, not to itself."""
    is_of_line = any(key in draft.named for key, value in changes.items() if value is None)
    for key, value in changes.items():
        other = exclusive(draft.action).get(key, "")
        if value is None or not other or other in changes:
            continue
        is_there = document.get(draft.spec, other, document.MISSING) is not document.MISSING
        # The template's value gives way without a word: nobody chose it.
        is_chosen = not draft.origins.get(other, TEMPLATE).startswith(TEMPLATE)
        if other in draft.named or (is_there and is_chosen and not is_of_line):
            return other
    return ""


def for_this_line(draft: Draft, finding: f.Finding) -> f.Finding:
    """Return a finding with its fix as a change to the command line that was given. Where the user
    gave a key that excludes what the fix would set, only they can choose: there is none."""
    other = contradicted(draft, finding.fix.changes)
    if not other:
        return replace(finding, fix=pasteable(draft, finding.fix))
    message = f"{finding.message}; {other} is given too, and only one of them can count"
    return replace(finding, message=message, fix=Fix())


def brief(flag: str) -> str:
    """Return a flag, of which only the beginning is told when it is long; a quotation mark there
    would have no end."""
    if len(flag) <= LONG_FLAG:
        return flag
    return flag[:KEPT_OF_LONG_FLAG].replace("'", "") + "..."


def pasteable(draft: Draft, fix: Fix) -> Fix:
    """Return a fix as a change to the command line that was given: flags about the same keys make
    way for it."""
    if fix.command:
        return fix
    given = []  # flags of the command line that say something about the same keys
    for key in fix.changes:
        given += _flags_about(draft, [key])
    model = [draft.params["model"]]
    keys_of = {"--tuning": [LORA], "--global-batch": [BATCH]}
    keys_of |= {"--model": model, "--parent-job": model}
    for flag, value in fix.flags.items():  # a root has several keys
        root = flag.removeprefix("--").replace("-", "_")
        keys = keys_of.get(flag) or draft.params.get(root, [])
        about_same_keys = _flags_about(draft, keys)
        if value == "lora":  # what sets a part of the adapter stays
            about_same_keys = [said for key, said in draft.named.items() if key in keys]
        given += about_same_keys
        if not about_same_keys and flag in draft.flags:
            given.append(draft.flags[flag])
    given = list(dict.fromkeys(given))
    if not given:
        return fix
    old = " ".join(brief(flag) for flag in given)
    for key, value in fix.changes.items():
        inside = [named for named in draft.named if named.startswith(f"{key}.")]
        if value is None and inside and _was_in_base(draft, key):
            return Fix()  # what the flags say below a table of the spec would be lost with it
    # A fix that only writes again what --unset took away.
    was_there = all(document.get(draft.base, key) == value for key, value in fix.changes.items())
    if not fix.flags and was_there and all(flag.startswith("--unset") for flag in given):
        return Fix(command=f"drop {old}")
    # Dropping the flag that set a key takes the key away; --unset would then find nothing.
    changes = {}
    for key, value in fix.changes.items():
        is_undone = value is None and _flags_about(draft, [key]) and not _was_in_base(draft, key)
        if not is_undone:
            changes[key] = value
    if not changes and not fix.flags:
        return Fix(command=f"drop {old}")
    as_written = {}  # each key by the name that the user's --set has for it
    for key, value in changes.items():
        written = draft.named.get(key, "").removeprefix("--set ").lstrip("'").partition("=")[0]
        is_same = names.full_name(draft.action, written) == key
        as_written[written if is_same else key] = value
    return Fix(command=f"replace {old} with", changes=as_written, flags=fix.flags)


def _flags_about(draft: Draft, keys: list[str]) -> list[str]:
    """Return the flags of the command line that set one of the keys, or a table around it or in
    it."""
    about = []
    for named, given in draft.named.items():
        if any(document.overlap(key, named) for key in keys):
            about.append(given)
    return about


def _was_in_base(draft: Draft, key: str) -> bool:
    """Return whether the spec had the key before --unset and --set; an unknown key that a flag
    named was refused."""
    refused = key in draft.named and key not in document.keys(draft.action)
    return not refused and document.get(draft.base, key, document.MISSING) is not document.MISSING


# ---- paths ---------------------------------------------------------------------------------------


def absolute(written: str) -> str:
    """Return a local path as an absolute one; empty text, URIs, and what the rules refuse (paths of
    Windows, words that stand for a path) stay."""
    if not written or "://" in written or placeholders.WINDOWS_PATH.match(written):
        return written
    if placeholders.is_placeholder(written, is_path=True):
        return written
    return os.path.abspath(os.path.expanduser(written))


def located(draft: Draft, key: str, value):
    """Return the value of a key that names a path or a model, as every platform reads it; other
    values stay."""
    kind = document.keys(draft.action).get(key, {}).get("x-path")
    if not kind or not isinstance(value, str) or not value or value.lower() in ("true", "false"):
        return value
    if kind == "model" and not placeholders.is_placeholder(value, is_path=True):
        return draft.attempt(model_names.canonical, value, key) or value
    return absolute(value)


class Part(NamedTuple):
    """A dataset root as it was written, and the share of its records to take."""

    root: str
    share: float


def part(written: str) -> Part:
    """Read `ROOT` or `ROOT:SHARE`. Raises Failure for a share that is none."""
    match = (SHARE_OF_ADDRESS if "://" in written else SHARE).fullmatch(written)
    if not match or os.path.isdir(written):
        return Part(written, 1.0)
    try:
        share = float(match[2])
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:  # of nan too
        message = f"got the share {match[2]!r} of {match[1]}, expected one above 0 and at most 1"
        raise f.bad_input("SPEC-ROOT", TRAIN_ROOT, message)
    return Part(match[1], share)
