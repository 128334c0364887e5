"""What the words of a column's name may mean. They give no role: it is said of columns without one,
and of those whose declared role they contradict."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

OF_ROWS = re.compile(r"(?:^|[_ ])(?:id|ids|uid|uuid|qid|idx|index|url|token)$|^q_?uid$", re.I)
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
SECONDS_AND_MS = re.compile(r"\bs+\.m+s(?:ec)?\b", re.I)  # ss.msec of ELAN: the ms are a fraction
BEGINS = {"start", "starts", "begin", "begins", "from", "onset"}
ENDS = {"end", "ends", "stop", "stops", "to", "until", "till", "offset"}
# Names that are all of a column's name: as words of others they mean many things.
BEGIN_NAMES, END_NAMES = {"t0", "in", "tstart", "tbegin"}, {"t1", "out", "tend", "tstop"}
TIMES = {"time", "times", "timestamp", "timestamps", "timecode", "sec", "secs", "second", "seconds"}
TIMES |= {"ms", "msec", "millisecond", "milliseconds", "frame", "segment", "span", "interval"}
UNIT_WORDS = {  # unit of times -> the words of names that say it
    "ms": {"ms", "msec", "millisecond", "milliseconds"},
    "frame": {"frame", "frames"},
    "": {"s", "sec", "secs", "second", "seconds"},
}
MINUTES = {"min", "mins", "minute", "minutes", "hour", "hours"}  # which are declared as H:M:S
LENGTHS = {"duration", "durations", "dur", "length", "len"}
# What an unused column may mean by the words of its name: said of it, and nothing else.
TIME = "a time"
MEANINGS = {
    TIME: BEGINS | ENDS | TIMES,
    "a split": {"split", "splits", "subset", "fold", "folds", "partition", "train", "test", "val"}
    | {"validation", "holdout", "heldout"},
    "a group": {"group", "camera", "cam", "site", "session", "recording", "scene", "subject"}
    | {"participant", "patient", "location", "shift", "person", "driver", "vehicle"},
    "a weight": {"weight", "weights"},
    "an annotator": {"annotator", "annotators", "labeler", "labeller", "rater", "coder"},
}
COUNT, COUNTS = "a count", {"count", "counts", "total"}
DECLARED_BY = {"a split": "split", "a group": "group", "an annotator": "annotator"}


def words_of(name: str) -> set[str]:
    return {word.lower() for word in WORDS.findall(SECONDS_AND_MS.sub("seconds", name))}


@functools.cache
def meaning(name: str) -> str:
    """Return what a column may mean by the words of its name, COUNT of what MEANINGS has (which is
    said of none); "" for nothing of it."""
    words = words_of(name)
    if name.lower() in BEGIN_NAMES | END_NAMES:
        return TIME
    meaning = next((meant for meant, known in MEANINGS.items() if words & known), "")
    return COUNT if meaning and words & COUNTS else meaning  # of frames, of vehicles


def time_roles(cells: dict[str, list], names: Sequence[str]) -> list[str]:
    """Return ROLE=COLUMN for the one column of begins and the one of ends among `names`, with the
    unit that these say, or for the one column of both; [] where they are not one of each."""
    if len(names) == 1 and all(isinstance(value, list) for value in cells[names[0]]):
        return [f"start={names[0]}", f"end={names[0]}"]
    words = {name: words_of(name) for name in names}
    edges = []  # of begins, and of ends
    for known, whole in ((BEGINS, BEGIN_NAMES), (ENDS, END_NAMES)):
        edges.append([name for name in names if words[name] & known or name.lower() in whole])
    if any(len(named) != 1 for named in edges):
        return []
    roles = []
    for edge, (name,) in zip(("start", "end"), edges, strict=True):
        unit = next((one for one in UNIT_WORDS if words[name] & UNIT_WORDS[one]), "")
        roles.append(f"{edge}{'_' if unit else ''}{unit}={name}")
    return roles
