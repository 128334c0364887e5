"""What a rule is: a condition on a `Case`, beside the text of its finding.

Each subject has a module with a tuple of them, RULES; `spec_rules` puts the tuples together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cosmos_reason.rules.case import Case

LATER = "later"  # a warning while a spec is built, an error when it is launched
ASKED = "asked"  # a warning where answers are judged, an info elsewhere
TRAINING = "train grpo"
JUDGED = ("evaluate", "inference")
MODELS = "evaluate inference quantize"
ANY = f"{TRAINING} {MODELS}"


@dataclass(frozen=True)
class Rule:
    """`broken(case)` is falsy when all is well, else true, or a few words with the numbers, or
    those and record ids.

    `key` is where the finding points ("{vision}", "{model}", "{base}" and "{adapter}" are the
    action's own), `reads` are the other keys that the condition and the fix look at: while one of
    them is invalid, the rule is skipped. `fix` is a `Fix`, or a value for `key`, or a function of
    the case for one of these; None when nothing is known to help.
    """

    id: str
    severity: str
    actions: str
    key: str
    reason: str
    broken: Callable[[Case], object]
    reads: tuple[str, ...] = ()
    fix: object = None

    def keys(self, params: dict) -> set[str]:
        """Return all keys that the rule looks at, for the action with these `spec_params`."""
        names = named(params)
        keys = {key.format_map(names) for key in (self.key, *self.reads)}
        return {key for key in keys if not key.startswith(("--", "{"))}  # no adapter, no {base}


def named(params: dict) -> dict[str, str]:
    """Return what stands for "{model}" and the like in the keys of rules; what an action has none
    of stays as it is written."""
    return {name: f"{{{name}}}" for name in ("model", "adapter", "base")} | params
