"""The spec of a run that failed, and the sums that its fixes need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import completion
from cosmos_reason.rules.case import Case, sound
from cosmos_reason.rules.keys import MINI_BATCH
from cosmos_reason.rules.spec_rules import RULES
from cosmos_reason.spec import actions, document, origins, validation
from cosmos_reason.spec.keys import BATCH

FEWEST_FRAMES = {"nframes": 2, "max_frames": 4}  # the sampler's own floors

# What a run of few steps never reaches.
OUT_OF_REACH = ("SPEC-SAVE-NEVER", "SPEC-VALIDATION-NEVER", "SPEC-WARMUP-ALL")


@dataclass(frozen=True)
class FailedRun:
    """What ran: `written` is its spec, `source` the file that a new spec starts from."""

    action: str
    engine: str
    written: Path
    source: Path

    @classmethod
    def of_spec(cls, spec: Path, action: str) -> FailedRun:
        return cls(action, origins.engine_of(spec), spec, spec)

    @cached_property
    def spec(self) -> dict:
        """The spec of the run, with the trainer's values for keys that are absent."""
        return document.with_defaults(self.action, document.load(self.written))

    def missing_keys(self) -> dict[str, object]:
        """Keys that build_spec wants written and this spec leaves out, with the template's
        values."""
        changes = {}
        for finding in validation.validate(self.action, document.load(self.source)):
            if finding.id == "SPEC-KEY-MISSING":
                changes |= finding.fix.changes
        return changes

    def too_large_batch(self) -> tuple[str, dict[str, object]]:
        """Why a training without steps had none, in numbers, and the changes that give it some and
        let it save; empty when its records cannot be counted here."""
        case = self._case({})
        if not case.records or case.steps_per_epoch != 0:
            return "", {}
        each = math.ceil(case.records / case.ranks)
        mini_batch = case(MINI_BATCH)
        numbers = (
            f"{case.records} records / {case.ranks} ranks = {each} < {case(BATCH)} "
            "(train_batch_per_replica), and dataloader_drop_last = true leaves out a batch that is "
            "not full."
        )
        changes = {BATCH: each}
        if each % mini_batch:
            changes[MINI_BATCH] = math.gcd(each, mini_batch)
        mended = self._case(changes)
        for rule in RULES:
            broken = rule.id in OUT_OF_REACH and rules.find(rule, mended)
            if broken:
                changes |= broken.fix.changes
        return numbers, changes

    def _case(self, changes: dict[str, object]) -> Case:
        """The spec for the rules, with some keys changed, as build_spec would write it."""
        written, _ = completion.completed(self.action, document.load(self.written))
        for key, value in changes.items():
            document.set_value(written, key, value)
        wrong = [finding.where for finding in validation.validate(self.action, written)]
        return Case(self.action, self.engine, sound(self.action, written, wrong))

    def fewer_frames(self, most: int, length_is_spent: bool) -> dict[str, int]:
        """At most so many frames, by the key that samples them; half of them when there are no more
        already, and when the length cannot grow."""
        table = actions.places(self.action)["vision"]
        samples_by_rate = document.get(self.spec, f"{table}.nframes") is None
        key = "max_frames" if samples_by_rate else "nframes"
        now = document.get(self.spec, f"{table}.{key}")
        if now is None or now > most:
            return {f"{table}.{key}": most}
        half = max(FEWEST_FRAMES[key], now // 4 * 2)
        if length_is_spent and half < now:
            return {f"{table}.{key}": half}
        return {}
