"""Applies to a draft the fixes that leave nothing to choose: `build_spec --fix`."""

from __future__ import annotations

from collections.abc import Callable

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix, value_text
from cosmos_reason.rules.draft import Draft, contradicted, located
from cosmos_reason.spec import document
from cosmos_reason.spec.values import shown

NAMES = ("SPEC-KEY-UNKNOWN", "SPEC-KEY-FORMER")
# Of these findings the fix is the only one; a value that may mean several is not replaced.
MENDED = (
    *NAMES,
    "SPEC-VALUE",
    "SPEC-QWEN3-COMPILE",
    "SPEC-LORA-GRPO-COMPILE",
    "SPEC-ASYNC-TP",
    "SPEC-VISION-PIXELS",
    "SPEC-DATA-TRAIN",
)
WANTED = "train.train_policy.type"  # the one missing key that is not completed
ROUNDS = 5  # a fix may bring another finding to light


def mend(draft: Draft, check: Callable[[], list[f.Finding]]) -> None:
    """Change the draft by the fixes of what `check` finds, until none is left, and tell each."""
    for _ in range(ROUNDS):
        # Two fixes of one key would undo each other: the second waits for the next round.
        touched = set()
        for finding in check():
            changes = _changes(draft, finding)
            if changes and not touched & changes.keys():
                draft.findings.append(_mended(draft, finding, changes))
                touched |= changes.keys()
        if not touched:
            return


def _changes(draft: Draft, finding: f.Finding) -> dict[str, object]:
    """Return what the fix of a finding changes; nothing where something is left to choose, or where
    the command line has chosen."""
    fix = finding.fix
    is_wanted = finding.id in MENDED or (finding.id, finding.where) == ("SPEC-KEY-MISSING", WANTED)
    # Flags and commands have effects beyond the spec, which --fix does not promise.
    if not is_wanted or finding.severity == f.INFO or fix.flags or fix.command:
        return {}
    # A fix that is not sure holds a value to be chosen.
    changes = dict(fix.changes) if fix.sure else {}
    if finding.id in NAMES:  # a renaming does not write over what the spec says under the new name
        for key, value in fix.changes.items():
            is_there = document.get(draft.spec, key, document.MISSING) is not document.MISSING
            if value is not None and is_there:
                changes.pop(key, None)
    is_named = any(document.overlap(key, named) for key in changes for named in draft.named)
    return {} if is_named or contradicted(draft, changes) else changes


def _mended(draft: Draft, finding: f.Finding, changes: dict[str, object]) -> f.Finding:
    """Apply the changes; the finding that tells them, a warning when a value was only taken
    away."""
    before = document.get(draft.spec, finding.where, document.MISSING)
    was = "no value" if before is document.MISSING else shown(before)
    gone = [key for key, value in changes.items() if value is None]
    if len(gone) > 1:  # each is told by its name
        was = ", ".join(f"{key} = {shown(document.get(draft.spec, key))}" for key in gone)
    for key, value in changes.items():
        if value is None:
            document.delete(draft.spec, key)
        else:
            draft.put(key, located(draft, key, value), "--fix")
    written = [
        f"{key} = {value_text(value)}" for key, value in changes.items() if value is not None
    ]
    if written:
        return f.info("SPEC-FIXED", finding.where, f"got {was}, wrote {', '.join(written)}")
    message = f"got {was}, took it away: no trainer reads it"
    return f.warning("SPEC-FIXED", finding.where, message, Fix())
