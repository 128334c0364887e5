"""The media of a dataset being written that do not open."""

from __future__ import annotations

import os
from collections import defaultdict

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.media.files import conversion

SHOWN = 5  # names that a message holds
MENDED = 20  # files that one command names
BY_CONVERSION = ("DATA-MEDIA-DEPTH", "DATA-MEDIA-ANIMATED")
UNOPENED = (
    *("DATA-MEDIA-EMPTY", "DATA-MEDIA-MISSING", "DATA-MEDIA-UNDECODABLE", "BUILD-CUT"),
    "BUILD-SPAN-OUTSIDE",
    *BY_CONVERSION,
)


class Unopened:
    """What does not open, among `total` records. `is_skipping`: the records that name it are left
    out, unless a conversion makes it readable."""

    def __init__(self, total: int, is_skipping: bool):
        self.total = total
        self.is_skipping = is_skipping
        # (record, finding) by the finding's id
        self.refused: dict[str, list[tuple[str, f.Finding]]] = defaultdict(list)
        self.records: dict[str, None] = {}  # those that are left out

    def attempt(self, name: str, call, *args):
        """What `call` returns for the record `name`; None for a medium that does not open."""
        problems: list[f.Finding] = []
        made = f.attempt(problems, call, name, *args)
        for problem in problems:
            if problem.id not in UNOPENED:
                raise f.Failure(problems, f.EXIT_BAD_INPUT)
            if (name, problem) not in self.refused[problem.id]:  # an earlier fold had it
                self.refused[problem.id].append((name, problem))
        return made

    def findings(self) -> list[f.Finding]:
        """What is said of them, one finding per problem. Raises Failure unless all are left out."""
        found = [self._told(id, refused) for id, refused in self.refused.items()]
        if f.has_errors(found):
            raise f.Failure(found, f.EXIT_BAD_INPUT)
        if not found:
            return []
        names = [problem.where for told in self.refused.values() for _, problem in told]
        message = (
            f"left out {len(self.records)} of {self.total} records, because their media do not "
            f"open: {_some(names)}"
        )
        data = {"record_ids": list(self.records)[: f.MAX_RECORD_IDS], "count": len(self.records)}
        data["files"] = names[: f.MAX_RECORD_IDS]
        return [f.warning("BUILD-MEDIA-SKIPPED", names[0], message, **data)]

    def _told(self, id: str, refused: list[tuple[str, f.Finding]]) -> f.Finding:
        """One finding about all media with a problem: a warning where they are left out."""
        _, first = refused[0]
        names = [problem.where for _, problem in refused]
        message = first.message
        if names[1:]:
            message += f" ({len(names)} files: {_some(names)})"
        records = [name for name, _ in refused]
        data = {"record_ids": records[: f.MAX_RECORD_IDS], "files": names[: f.MAX_RECORD_IDS]}
        if id not in BY_CONVERSION:
            if self.is_skipping:
                return f.warning(id, first.where, message, **data)
            return f.error(id, first.where, message, Fix(flags={"--skip-missing": True}), **data)
        local = [name for name in names if os.path.isfile(name)]
        fix = conversion(local[:MENDED]) if local else ""
        return f.error(id, first.where, message, fix, **data)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown}, ..." if names[SHOWN:] else shown
