"""What a rule is: a short function that looks at a `Case`, beside the text of its finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cosmos_reason.spec import document

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
    broken: Callable
    reads: tuple[str, ...] = ()
    fix: object = None

    def about(self, params: dict) -> str:
        """The key that the finding points to, for the action with these `spec_params`."""
        return _named(self.key, params)

    def keys(self, params: dict) -> set[str]:
        """All keys that the rule looks at."""
        keys = {_named(key, params) for key in (self.key, *self.reads)}
        return {key for key in keys if not key.startswith(("--", "{"))}  # no adapter, no {base}

    def skipped(self, params: dict, invalid: list[str]) -> bool:
        keys = self.keys(params)
        return any(document.overlap(key, wrong) for key in keys for wrong in invalid)


def _named(key: str, params: dict) -> str:
    return key.format(**{name: f"{{{name}}}" for name in ("model", "adapter", "base")} | params)


def rule(
    id: str,
    severity: str,
    actions: str,
    key: str,
    reason: str,
    reads: tuple[str, ...] = (),
    fix: object = None,
) -> Callable[[Callable], Rule]:
    """Make a rule of the function below: it says when the rule is broken."""

    def of(broken: Callable) -> Rule:
        return Rule(id, severity, actions, key, reason, broken, reads, fix)

    return of
