"""Clips of Cosmos-Reason1's published sets that are not published with them, cut from the raw data
of AgiBot World (agibot) and HoloAssist (holoassist), as Reason1's guide cuts them.

A clip's name says what to cut. agibot: TASK-EPISODE-VIDEO-FIRST-LAST.mp4, frames of
observations/TASK/EPISODE/videos/VIDEO.mp4. holoassist: VIDEO_coarse_N_fine_M....mp4, the event M of
data-annotation-trainval-v1_1.json, in seconds of videos/VIDEO/Export_py/*.mp4.
"""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
from fractions import Fraction
from pathlib import Path

from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.data.source_files import Held
from cosmos_reason.media import cut
from cosmos_reason.media import files as media

AGIBOT = re.compile(r"(\w+)-(\w+)-(\w+)-(\d+)-(\d+)\.mp4", re.ASCII)
HOLOASSIST = re.compile(r"([\w-][\w.-]*?)_coarse_(\d+)_fine_(\d+).*\.mp4", re.ASCII)
EVENTS = "data-annotation-trainval-v1_1.json"
FINE = "Fine grained action"


def is_cut(name: str) -> bool:
    """Whether a row of a published set names a clip that is cut from raw data."""
    last = posixpath.basename(name)
    return bool(AGIBOT.fullmatch(last) or HOLOASSIST.fullmatch(last))


class RawClips:
    """The raw data below a folder, either of the two sets or a folder with both under their
    names. Nothing is written there: what is cut goes to the cache."""

    def __init__(self, root: Path):
        if not root.is_dir():
            raise f.bad_input("BUILD-RAW", root, "got no such folder, expected one with raw clips")
        self.root = root

    def clip(self, name: str) -> Path | Held | None:
        """What a row of a published set calls `name`: a clip to be cut, the raw file that lacks, or
        None for a name of neither set. Raises Failure for a clip that the annotations lack."""
        last = posixpath.basename(name)
        if match := AGIBOT.fullmatch(last):
            task, episode, video, first, end = match.groups()
            raw = self._below("agibot") / "observations" / task / episode / "videos"
            return self._held(last, raw / f"{video}.mp4", (int(first), int(end)), counts="frames")
        if match := HOLOASSIST.fullmatch(last):
            video, _, event = match.groups()
            times = self._events.get((video, int(event)))
            if times is None:
                message = f"got no {FINE} {event} of {video}, expected it"
                raise f.bad_input("BUILD-RAW-EVENT", self._below("holoassist") / EVENTS, message)
            folder = self._below("holoassist") / "videos" / video / "Export_py"
            raw = next(iter(sorted(folder.glob("*.mp4"))), folder / "*.mp4")
            return self._held(last, raw, times, counts="seconds")
        return None

    def _below(self, dataset: str) -> Path:
        own = self.root / dataset
        return own if own.is_dir() else self.root

    def _held(self, name: str, raw: Path, times: tuple, counts: str) -> Path | Held:
        if not raw.is_file():
            return raw
        return Held(f"{raw}/{name}", ".mp4", functools.partial(_cut, raw, name, times, counts))

    @functools.cached_property
    def _events(self) -> dict[tuple[str, int], tuple]:
        """(video, event) -> its first and last second."""
        path = self._below("holoassist") / EVENTS
        found = {}
        try:
            for entry in storage.read_json(path):
                for event in entry.get("events", []):
                    if event.get("label") == FINE:
                        key = entry["video_name"], int(event["id"])
                        found[key] = float(event["start"]), float(event["end"])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            message = f"got {problem!r}, expected HoloAssist's list of videos and their events"
            raise f.bad_input("BUILD-RAW-EVENT", path, message) from None
        return found


def _cut(raw: Path, name: str, times: tuple, counts: str) -> Path:
    """The clip in the cache, cut unless it was before."""
    facts = raw.stat()
    made_of = f"{raw.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}\0{times}\0{counts}"
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    target = storage.cache_folder() / "raw-clips" / key / name
    if not target.is_file():
        seconds = [Fraction(time).limit_denominator(cut.MOST) for time in times]
        if counts == "frames":
            rate = Fraction(media.frame_rate(raw) or 30).limit_denominator(cut.MOST)
            seconds = [second / rate for second in seconds]
        target.parent.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(target, "wb") as file:
            cut.cut(raw, *seconds, file)
    return target
