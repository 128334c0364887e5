"""The spec of a run that failed, and the sums that its fixes need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import Finding
from cosmos_reason.rules import checking as rules
from cosmos_reason.rules import completion
from cosmos_reason.rules.case import Case, of_sound_values
from cosmos_reason.rules.keys import MINI_BATCH
from cosmos_reason.spec import actions, document, origins
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
    def of_spec(cls, spec: Path) -> FailedRun:
        """Return the run of a spec that somebody named. Raises Failure for what is no spec."""
        return cls(actions.of_file(spec), origins.engine_of(spec), spec, spec)

    @cached_property
    def spec(self) -> dict:
        """Return the spec of the run, with the trainer's values for keys that are absent."""
        return document.with_defaults(self.action, document.load(self.written))

    def passing(self, changes: dict[str, object]) -> tuple[dict[str, object], list[Finding]]:
        """Return the changes, with values for keys that they need beside them and the spec leaves
        out; and the errors for which build_spec.py would write no spec all the same."""
        for _ in range(2):  # the second time with what the changes need beside them
            spec = document.load(self.source)
            for key, value in changes.items():
                if value is None:
                    document.delete(spec, key)
                else:
                    document.set_value(spec, key, value)
            whole, _ = completion.completed(self.action, spec, changes.keys())
            found = rules.check(self.action, self.engine, whole)
            errors = [one for one in found if one.severity == findings.ERROR]
            needed = {}
            for one in errors:
                if one.fix.sure and not (one.fix.flags or one.fix.command):
                    needed |= one.fix.changes
            written = document.load(self.source)
            left_out = {}
            for key, new in needed.items():
                is_absent = document.get(written, key, document.MISSING) is document.MISSING
                if is_absent and new not in (None, ""):
                    left_out[key] = new
            if not errors or not left_out:
                break
            changes = left_out | changes
        return changes, errors

    def too_large_batch(self) -> tuple[str, dict[str, object]]:
        """Return why a training without steps had none, in numbers, and the changes that give it
        some and let it save; empty when its records cannot be counted here."""
        case = self._case({})
        if not case.records or case.steps_per_epoch != 0:
            return "", {}
        each = math.ceil(case.records / case.ranks)  # the sampler pads the last ranks
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
        for one in rules.broken_rules(mended, invalid=[], unread=set()):
            if one.id in OUT_OF_REACH:
                changes |= one.fix.changes
        return numbers, changes

    def _case(self, changes: dict[str, object]) -> Case:
        """Return the spec for the rules, with some keys changed, as build_spec would write it."""
        written, _ = completion.completed(self.action, document.load(self.written))
        for key, value in changes.items():
            document.set_value(written, key, value)
        return of_sound_values(self.action, self.engine, written)

    def fewer_frames(self, most: int, length_is_spent: bool) -> dict[str, int]:
        """Return at most so many frames, by the key that samples them; half of them when there are
        no more already, and when the length cannot grow."""
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

    def without(self, key: str) -> dict[str, None]:
        """Return the key taken away, where the spec has it."""
        is_there = document.get(document.load(self.source), key, document.MISSING)
        return {} if is_there is document.MISSING else {key: None}

    def sharded(self) -> dict[str, int]:
        """Return the layout with its replicas as shards, over as many GPUs."""
        keys = ("policy.parallelism.dp_shard_size", "policy.parallelism.dp_replicate_size")
        shards, replicas = (document.get(self.spec, key) for key in keys)
        if type(shards) is not int or type(replicas) is not int or min(shards, replicas) < 1:
            return {}
        return {keys[0]: shards * replicas, keys[1]: 1}
