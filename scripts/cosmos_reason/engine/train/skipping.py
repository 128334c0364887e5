"""Records whose media cannot be read while a training runs (a disk that fails, a file that somebody
takes away): each is left out and counted, its file is named once, and too many of them end the
training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cosmos_reason.base import findings
from cosmos_reason.base.findings import EXIT_BAD_INPUT, Failure, Finding, error, warning
from cosmos_reason.base.fix import Fix
from cosmos_reason.checkpoints import left_out
from cosmos_reason.engine.samples import Inputs, Samples
from cosmos_reason.engine.train.ranks import Ranks

ID = "ENGINE-RECORDS-LEFT-OUT"
MEDIA = "DATA-MEDIA-"  # what begins so is about one file
# One of so many records may be left out; of one file more of them, which small data need.
MOST, MOST_OF_ONE_FILE = 100, 4
CONSEQUENCES = {
    left_out.TRAINING: "records with it are not trained on",
    left_out.VALIDATION: (
        "records with it are left out of this validation and of those to come: losses and "
        "accuracies before it are over more records, do not compare them with those from here on, "
        "as `best` does"
    ),
}


class TooMany(Failure):
    """More records are lost than may be."""


class Skipped:
    """The records of one set of data that are left out (`name` is one of left_out.py). `lost` holds
    what was found of their media, by the number of the record, on all ranks alike. `known` is what
    an earlier run left out, as `told` gave it."""

    def __init__(self, name: str, samples: Samples, ranks: Ranks, known: Iterable[dict] = ()):
        self.name, self.samples, self.ranks = name, samples, ranks
        self.most = max(1, len(samples) // MOST)
        self.most_of_one_file = max(1, len(samples) // MOST_OF_ONE_FILE)
        self.lost: dict[int, Finding] = {}
        for entry in known:
            # A run may be resumed with other data to validate on.
            record = entry["record"]
            if record < len(self.samples) and self.samples.samples[record].id == entry["id"]:
                finding = error(entry["check"], entry["where"], entry["message"])
                self.lost[entry["record"]] = finding
        self.fresh: dict[int, Finding] = {}  # of this rank, not yet settled

    def __len__(self) -> int:
        return len(self.lost)

    def keeps(self, record: int, item: Inputs | Failure) -> bool:
        """Return whether a record that was read, or could not be, takes part. Raises a Failure that
        is not about its media."""
        if not isinstance(item, Failure):
            return record not in self.lost
        if not all(finding.id.startswith(MEDIA) for finding in item.findings):
            raise item
        self.fresh[record] = item.findings[0]
        return False

    def readable(self, items: Iterable[tuple[int, Inputs | Failure]]) -> Iterator[Inputs]:
        """Yield the inputs of this rank's records that take part."""
        for record, item in items:
            if self.keeps(record, item):
                yield item

    def read_alike(
        self, items: Iterable[tuple[int, Inputs | Failure]]
    ) -> Iterator[tuple[int, Inputs | Failure]]:
        """Yield the items, where all ranks read the same: what one cannot read none has read."""
        items = iter(items)
        while found := self.ranks.agreed(next, items, None):
            number, item = found
            failed = self.ranks.merged({number: item} if isinstance(item, Failure) else {})
            yield number, failed.get(number, item)

    def settle(self, step: int) -> bool:
        """Let all ranks know what each could not read in a step or a validation, and say so; all
        have to call it. Whether there was any. Raises TooMany, and then counts none of them."""
        if not self.ranks.sum(len(self.fresh)):
            return False
        fresh = self.ranks.merged(self.fresh)
        self.fresh = {}
        lost = fresh | self.lost
        files = _by_file(lost)
        are_too_many = len(lost) == len(self.samples)
        if len(lost) > self.most:  # of one file more may be left out, which small data need
            are_too_many = len(files) > 1 or len(lost) > self.most_of_one_file
        if are_too_many:
            message = (
                f"got {len(lost):,} of {len(self.samples):,} records whose media cannot be read, "
                f"expected at most {self.most:,}, or {self.most_of_one_file:,} of one file; "
                "bring the files back before it goes on"
            )
            fix = Fix(changes={"train.resume": True})
            breaking = error("DATA-MEDIA-BREAKING", f"{self.name} data", message, fix)
            raise TooMany([breaking, *files.values()], EXIT_BAD_INPUT)
        named = _by_file(self.lost)
        for record in sorted(fresh):
            finding = fresh[record]
            if finding.where not in named:
                named[finding.where] = finding
                message = (
                    f"{finding.message} ({finding.id}, step {step}): {CONSEQUENCES[self.name]}"
                )
                findings.say(findings.as_text([warning(ID, finding.where, message)]))
        self.lost = lost
        return True

    def sum_up(self, run_dir: Path) -> None:
        """Say at the end what is left out."""
        if self.lost:
            findings.say(
                f"warning: {len(self.lost):,} of {len(self.samples):,} {self.name} records were "
                f"left out: their media could not be read ({run_dir / left_out.FILE} names them)"
            )

    def entries(self) -> list[dict]:
        """Return the records that are left out, as left_out.json lists them."""
        entries = []
        for record, finding in sorted(self.lost.items()):
            entry = {"record": record, "id": self.samples.samples[record].id}
            entry |= {"check": finding.id, "where": finding.where, "message": finding.message}
            entries.append(entry)
        return entries


def _by_file(lost: dict[int, Finding]) -> dict[str, Finding]:
    return {finding.where: finding for finding in lost.values()}
