"""Records whose media cannot be read while a training runs (a disk that fails, a file that somebody
takes away): each is left out, named once and counted, and too many of them end the training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cosmos_reason.base.findings import EXIT_BAD_INPUT, Failure, Finding, say
from cosmos_reason.engine.ranks import Ranks
from cosmos_reason.engine.samples import Inputs, raise_failures

MEDIA = "DATA-MEDIA-"  # what begins so is about one file
MOST = 100  # one of so many records may be left out


class Skipped:
    """`lost`: what was said of each file that could not be read on any rank, by its path."""

    def __init__(self, records: int, ranks: Ranks):
        self.ranks = ranks
        self.most = max(1, records // MOST)
        self.lost: dict[str, Finding] = {}

    def readable(self, samples: Sequence[Inputs | Failure], step: int) -> list[Inputs]:
        """The samples of this rank's share of a step without those that failed; all ranks call it.
        Raises Failure for failures of another kind, for a step of which nothing is left, and when
        more files are lost than may be."""
        kept, failed = [], []
        for sample in samples:
            if isinstance(sample, Failure):
                failed.append(sample)
            else:
                kept.append(sample)
        others = [failure for failure in failed if not _is_of_media(failure)]
        self.ranks.agreed(partial(raise_failures, others))
        if not self.ranks.sum(len(failed)):
            return kept
        told = {finding.where: finding for failure in failed for finding in failure.findings}
        for where, finding in self.ranks.merged(told).items():
            if where not in self.lost:
                say(f"warning: left out of step {step}: {where}: {finding.id}, {finding.message}")
            self.lost[where] = finding
        if len(self.lost) > self.most or not self.ranks.sum(len(kept)):
            raise self.ranks.told_once(Failure(list(self.lost.values()), EXIT_BAD_INPUT))
        return kept

    def tell(self) -> None:
        """What there is to say at the end."""
        if self.lost:
            say(f"warning: {len(self.lost)} files could not be read; their records were left out")


def _is_of_media(failure: Failure) -> bool:
    return all(finding.id.startswith(MEDIA) for finding in failure.findings)
