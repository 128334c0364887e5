"""Clips of Cosmos-Reason1's published sets that are not published with them, cut from the raw data
of AgiBot World (agibot) and HoloAssist (holoassist), as Reason1's guide cuts them.

A clip's name says what to cut. agibot: TASK-EPISODE-VIDEO-FIRST-LAST.mp4, frames of
observations/TASK/EPISODE/videos/VIDEO.mp4, or of a tar there that holds it. holoassist:
VIDEO_coarse_N_fine_M....mp4, the event M of data-annotation-trainval-v1_1.json, in seconds of
videos/VIDEO/Export_py/*.mp4.
"""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.data.source_files import Held
from cosmos_reason.media import archives, cut
from cosmos_reason.media import files as media

AGIBOT = re.compile(r"(\w+)-(\w+)-(\w+)-(\d+)-(\d+)\.mp4", re.ASCII)
HOLOASSIST = re.compile(r"([\w-][\w.-]*?)_coarse_(\d+)_fine_(\d+).*\.mp4", re.ASCII)
EVENTS = "data-annotation-trainval-v1_1.json"
FINE = "Fine grained action"


def is_cut(name: str) -> bool:
    """Whether a row of a published set names a clip that is cut from raw data."""
    last = posixpath.basename(name)
    return bool(AGIBOT.fullmatch(last) or HOLOASSIST.fullmatch(last))


class Packed(NamedTuple):
    """A raw video in a tar: its path there, and what reads it."""

    archive: Path
    name: str
    read: Callable[[], bytes]


class RawClips:
    """The raw data below a folder, either of the two sets or a folder with both under their
    names. Nothing is written there: what is cut goes to the cache."""

    def __init__(self, root: Path):
        if not root.is_dir():
            raise f.bad_input("BUILD-RAW", root, "got no such folder, expected one with raw clips")
        self.root = root
        self._videos: dict[Path, dict[str, Packed]] = {}  # of each tar that was looked into

    def clip(self, name: str) -> Path | Held | None:
        """What a row of a published set calls `name`: a clip to be cut, the raw file that lacks, or
        None for a name of neither set. Raises Failure for a clip that the annotations lack."""
        last = posixpath.basename(name)
        if match := AGIBOT.fullmatch(last):
            task, episode, video, first, end = match.groups()
            observations = self._below("agibot") / "observations"
            times = int(first), int(end)
            wanted = f"{episode}/videos/{video}.mp4"
            raw = observations / task / wanted
            packed = None if raw.is_file() else self._packed(observations, task, wanted)
            if packed:
                name = f"{raw}/{last}"
                return Held(name, ".mp4", functools.partial(_cut_packed, packed, last, times))
            return self._held(last, raw, times, counts="frames")
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

    def _packed(self, observations: Path, task: str, wanted: str) -> Packed | None:
        """A raw video in one of the tars that AgiBot World is published as. Raises Failure for a
        damaged one."""
        found = sorted([*(observations / task).glob("*.tar"), *observations.glob("*.tar")])
        for archive in found:
            if archive not in self._videos:
                self._videos[archive] = _videos_in(archive)
            if wanted in self._videos[archive]:
                return self._videos[archive][wanted]
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


def _videos_in(archive: Path) -> dict[str, Packed]:
    """The videos of a tar by EPISODE/videos/VIDEO.mp4, wherever in it they lie. Raises Failure."""
    found = {}
    for name, readers in archives.contents(archive).items():
        parts = name.split("/")[-3:]
        if len(parts) == 3 and parts[1] == "videos":
            found["/".join(parts)] = Packed(archive, name, readers[0])
    return found


def _cut_packed(packed: Packed, name: str, times: tuple) -> Path:
    """The clip in the cache; the raw video is unpacked into it too, once."""
    facts = packed.archive.stat()
    made_of = f"{packed.archive.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}\0{packed.name}"
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    raw = storage.cache_folder() / "raw-clips" / key / posixpath.basename(packed.name)
    if not raw.is_file():
        raw.parent.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(raw, "wb") as file:
            file.write(packed.read())
    return _cut(raw, name, times, counts="frames")


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
