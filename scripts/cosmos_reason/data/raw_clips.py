"""Clips of Cosmos-Reason1's published sets that are not published with them, made of the raw data
of AgiBot World (agibot), BridgeData V2 (bridgev2) and HoloAssist (holoassist), as Reason1's guide
makes them.

A clip's name says what it is made of. agibot: TASK-EPISODE-VIDEO-FIRST-LAST.mp4, frames of
observations/TASK/EPISODE/videos/VIDEO.mp4, or of a tar there that holds it. bridgev2:
FOLDER.EPISODE.ANY.ANYNNN.mp4, all frames of the main camera of an episode, 30 a second: the one
whose file_path is .../bridge_data_all/FOLDER/out.npy, with / for the - of FOLDER, in a shard of
bridge_dataset/1.0.0 (TensorFlow Datasets). holoassist: VIDEO_coarse_N_fine_M....mp4, the event M of
data-annotation-trainval-v1_1.json, in seconds of videos/VIDEO/Export_py/*.mp4, or of a
tar that holds it.
"""

from __future__ import annotations

import functools
import io
import posixpath
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import files as storage
from cosmos_reason.base import findings as f
from cosmos_reason.base import progress
from cosmos_reason.data.source_files import Held
from cosmos_reason.media import archives, convert, cut, files, tfrecords

AGIBOT = re.compile(r"(\w+)-(\w+)-(\w+)-(\d+)-(\d+)\.mp4", re.ASCII)
BRIDGE = re.compile(r"([^./]+)\.(\d+)\.[^./]*\.[^./]*\d{3}\.mp4", re.ASCII)
HOLOASSIST = re.compile(r"([\w-][\w.-]*?)_coarse_(\d+)_fine_(\d+).*\.mp4", re.ASCII)
EVENTS = "data-annotation-trainval-v1_1.json"
EXPORTED = "Export_py"  # HoloAssist's folder of a video's streams
FINE = "Fine grained action"
SHARDS = "bridge_dataset-*.tfrecord-*"
BRIDGE_ROOT = "bridge_data_all/"  # what stands before it in a file_path tells where it once lay
FILE_PATH, EPISODE = "episode_metadata/file_path", "episode_metadata/episode_id"
CAMERA = "steps/observation/image_0"
BRIDGE_FPS = 30  # as the guide writes them, whatever the robot's own rate


def is_cut(name: str) -> bool:
    """Return whether a row of a published set names a clip that is cut from raw data."""
    last = posixpath.basename(name)
    return any(pattern.fullmatch(last) for pattern in (AGIBOT, BRIDGE, HOLOASSIST))


class Packed(NamedTuple):
    """A raw video in a tar: its path there, and what reads it."""

    archive: Path
    name: str
    read: Callable[[], bytes]


class RawClips:
    """The raw data below a folder, that of one set or of several under their names. Nothing is
    written there: what is cut goes to the cache."""

    def __init__(self, root: Path):
        if not root.is_dir():
            raise f.bad_input("BUILD-RAW", root, "got no such folder, expected one with raw clips")
        self.root = root
        self._videos: dict[Path, dict[str, Packed]] = {}  # of each tar that was looked into

    def clip(self, name: str) -> Path | Held | None:
        """Return what a row of a published set calls `name`: a clip to be cut, the raw file that
        lacks, or None for a name of no such set. Raises Failure for raw data that cannot be
        read."""
        last = posixpath.basename(name)
        match = AGIBOT.fullmatch(last)
        if match:
            task, episode, video, first, end = match.groups()
            observations = self._below("agibot") / "observations"
            times = int(first), int(end)
            wanted = f"{episode}/videos/{video}.mp4"
            raw = observations / task / wanted
            tars = [*(observations / task).glob("*.tar"), *observations.glob("*.tar")]
            packed = None if raw.is_file() else self._packed(tars, wanted)
            return self._held(last, packed or raw, times, counts="frames")
        match = BRIDGE.fullmatch(last)
        if match:
            record = self._episodes.get((match[1], int(match[2])))
            if record is None:
                return self._shards / f"{SHARDS} (episode {int(match[2])} of {match[1]})"
            return Held(f"{record.shard}/{last}", ".mp4", functools.partial(_filmed, record, last))
        match = HOLOASSIST.fullmatch(last)
        if match:
            video, _, event = match.groups()
            times = self._events.get((video, int(event)))
            if times is None or times[0] >= times[1]:
                return (
                    self._below("holoassist") / f"{EVENTS} ({FINE} {event} of {video}, of a length)"
                )
            below = self._below("holoassist")
            folder = below / "videos" / video / EXPORTED
            raw = next(iter(sorted(folder.glob("*.mp4"))), folder / "*.mp4")
            tars = [*below.glob("*.tar"), *(below / "videos").glob("*.tar")]
            packed = None if raw.is_file() else self._packed(tars, f"{video}/{EXPORTED}/")
            return self._held(last, packed or raw, times, counts="seconds")
        return None

    def _packed(self, tars: list[Path], begin: str) -> Packed | None:
        """Return the first raw video in the tars that AgiBot World and HoloAssist are published as
        whose path begins so. Raises Failure for a damaged tar."""
        for archive in sorted(tars):
            if archive not in self._videos:
                self._videos[archive] = _videos_in(archive)
            named = [name for name in self._videos[archive] if name.startswith(begin)]
            if named:
                return self._videos[archive][min(named)]
        return None

    @property
    def _shards(self) -> Path:
        """Return the folder of BridgeData V2's shards."""
        below = self._below("bridgev2")
        places = [below / "bridge_dataset" / "1.0.0", below / "1.0.0", below]
        return next((place for place in places if any(place.glob(SHARDS))), places[0])

    @functools.cached_property
    def _episodes(self) -> dict[tuple[str, int], tfrecords.Record]:
        """Return (folder, episode) -> its record. Raises Failure for a damaged shard."""
        shards = sorted(self._shards.glob(SHARDS))
        sizes = [shard.stat().st_size for shard in shards]
        looked_through = progress.of_bytes(sum(sizes), "episodes")
        found = {}
        for shard, size in zip(shards, sizes, strict=True):
            found |= _episodes_of(shard)
            looked_through(size)
        return found

    def _below(self, dataset: str) -> Path:
        own = self.root / dataset
        return own if own.is_dir() else self.root

    def _held(self, name: str, video: Path | Packed, times: tuple, counts: str) -> Path | Held:
        """Return what cuts the clip, or what lacks: the raw video, or its part."""
        raw = video
        stands = video
        if isinstance(video, Packed):
            raw = _unpacked(video)
            stands = video.archive / video.name
        if not raw.is_file():
            return raw
        length = cut.length_of(raw, counts)
        if times[0] >= length:
            return stands.with_name(f"{stands.name} ({length:g} {counts} long) for {name}")
        load = functools.partial(cut.cut_out, raw, name, times, counts)
        a_second = length / cut.length_of(raw, "seconds")
        span = (float(times[0] / a_second), float(times[1] / a_second))
        return Held(f"{raw}/{name}", ".mp4", load, raw, span)

    @functools.cached_property
    def _events(self) -> dict[tuple[str, int], tuple]:
        """Return (video, event) -> its first and last second."""
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
    """Return the videos of a tar by EPISODE/videos/VIDEO.mp4 or VIDEO/Export_py/NAME.mp4, wherever
    in it they lie. Raises Failure."""
    found = {}
    for name, readers in archives.contents(archive).items():
        parts = name.split("/")[-3:]
        is_video = len(parts) == 3 and parts[1] in ("videos", EXPORTED)
        if is_video and parts[2].endswith(".mp4"):
            found["/".join(parts)] = Packed(archive, name, readers[0])
    return found


def _episodes_of(shard: Path) -> dict[tuple[str, int], tfrecords.Record]:
    """Return (folder, episode) -> its record, of a shard of BridgeData V2."""
    found = {}
    with tfrecords.opened(shard) as data:
        for record in tfrecords.records(shard, data):
            values = tfrecords.features(record, data, (FILE_PATH, EPISODE))
            if len(values) != 2:
                message = f"got no {FILE_PATH} and {EPISODE}, expected BridgeData V2's episodes"
                raise f.bad_input("BUILD-RAW-EVENT", shard, message)
            path = values[FILE_PATH][0].decode()
            folder = posixpath.dirname(path.partition(BRIDGE_ROOT)[2] or path)
            found[folder.replace("/", "-"), values[EPISODE][0]] = record
    return found


def _filmed(record: tfrecords.Record, name: str) -> Path:
    """Return the clip in the cache, of all pictures of an episode."""
    # By the version of its shard: a set that is downloaded anew gives new clips.
    target = cut.place(f"{files.version(record.shard)}\0{record.begin}", name)
    if not target.is_file():
        with tfrecords.opened(record.shard) as data:
            tfrecords.check(record, data)
            pictures = tfrecords.features(record, data, (CAMERA,)).get(CAMERA)
        if not pictures:
            message = f"got no {CAMERA} of {name}, expected BridgeData V2's episodes"
            raise f.bad_input("BUILD-RAW-EVENT", record.shard, message)
        with storage.whole_file(target, "wb") as file:
            convert.write_clip(file, "mp4", _shown(pictures), {"preset": "fast"})
    return target


def _shown(pictures: list[bytes]) -> Iterator[tuple[Fraction, object]]:
    """Yield (seconds it is shown, RGB pixels) of each picture."""
    import numpy as np
    from PIL import Image

    for picture in pictures:
        with Image.open(io.BytesIO(picture)) as image:
            yield Fraction(1, BRIDGE_FPS), np.asarray(image.convert("RGB"))


def _unpacked(packed: Packed) -> Path:
    """Return the raw video in the cache, read from its archive once."""
    made_of = f"{files.version(packed.archive)}\0{packed.name}"
    raw = cut.place(made_of, posixpath.basename(packed.name))
    if not raw.is_file():
        with storage.whole_file(raw, "wb") as file:
            file.write(packed.read())
    return raw
