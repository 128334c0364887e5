"""A part of a clip as a clip of its own: its frame rate and size stay, sound is left out."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import IO

from cosmos_reason.base import files as storage
from cosmos_reason.base.findings import bad_input
from cosmos_reason.media import convert
from cosmos_reason.media import files as media

MOST = 90000  # of the denominators that frame rates and times have
# Half the processor time of the preset "fast", in files of the same size. Parts are cut at once,
# one on each core: more threads of one would wait for those of the others.
FORM, QUALITY = "mp4", {"preset": "veryfast", "threads": "1"}


class StepsBack(Exception):
    """A frame's stamp is not behind that of the frame before, so stamps tell no time."""


def cut(path: Path, start: Fraction, end: Fraction, target: IO[bytes], name: str) -> None:
    """Write the frames shown from `start` until before `end` (seconds) as H.264 in MP4, the clip
    `name`. Raises Failure when there are none, or the file is no clip."""
    import av

    try:
        try:
            convert.write_clip(target, FORM, _some(path, start, end, name), QUALITY)
        except StepsBack:  # count the frames from the beginning instead
            target.seek(0)
            target.truncate()
            counted = _some(path, start, end, name, is_counted=True)
            convert.write_clip(target, FORM, counted, QUALITY)
    except av.FFmpegError as problem:
        message = f"{problem.strerror} writing {name}"
        raise bad_input("BUILD-CUT", path, message) from None


def _some(
    path: Path, start: Fraction, end: Fraction, name: str, is_counted: bool = False
) -> Iterator[tuple[Fraction, object]]:
    """Yield what `_shown` yields. Raises Failure when that is nothing."""
    pictures = _shown(path, start, end, is_counted)
    first = next(pictures, None)
    if first is None:
        times = f"from {float(start):g} s to {float(end):g} s"
        raise bad_input("BUILD-CUT", path, f"got no frame {times} for {name}, expected some")
    yield from chain([first], pictures)


def _shown(
    path: Path, start: Fraction, end: Fraction, is_counted: bool
) -> Iterator[tuple[Fraction, object]]:
    """Yield (seconds it is shown, its picture) of each frame of an interval: those that appear in
    it, and the one on display at its start where that stays for a whole frame's time, as in clips
    of varying rate, or is the only one."""
    usual = 1 / Fraction(media.frame_rate(path) or 30).limit_denominator(MOST)
    shown = convert.Shown()
    on_display = None  # at the start, for less than a frame's time
    for appears, until, frame in _displayed(path, start, end, usual, is_counted):
        if appears >= start:
            on_display = None
            yield until - appears, shown.picture(frame)
        elif until - start >= usual:
            yield until - start, shown.picture(frame)
        elif until > start:
            on_display = until - start, frame
    if on_display is not None:
        yield on_display[0], shown.picture(on_display[1])


def _displayed(
    path: Path, start: Fraction, end: Fraction, usual: Fraction, is_counted: bool
) -> Iterator[tuple[Fraction, Fraction, object]]:
    """Yield (second it appears, second it is shown until, frame) of each frame that appears before
    `end`: until the next, the last of an interval as long as `usual` or until its end."""
    before = None
    for seconds, frame in _stamped(path, start, is_counted):
        if before is not None and seconds > before[0]:
            yield before[0], min(seconds, max(end, before[0] + usual)), before[1]
        before = seconds, frame
        if seconds >= end:
            return
    if before is not None:
        yield before[0], before[0] + usual, before[1]


def _stamped(path: Path, start: Fraction, is_counted: bool) -> Iterator[tuple[Fraction, object]]:
    """Yield (seconds since the first frame, frame) from the last key frame before `start` by the
    frames' stamps, or from the beginning by their order. Raises StepsBack where stamps are no
    order."""
    times = media.probe_video(path)[1] if is_counted else None
    is_sought = times is None and start > 0
    with media.opened_video(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        begins = None
        if is_sought:
            # In AVI the first frame is shown later than the stream says that it starts.
            begins = next((frame.pts for frame in container.decode(stream)), None)
            if begins is None:
                raise StepsBack
            container.seek(begins + int(start / stream.time_base), stream=stream)
        before = None
        for index, frame in enumerate(container.decode(stream)):
            if times is not None:
                yield times.at(index), frame
                continue
            if frame.pts is None or (before is not None and frame.pts <= before):
                raise StepsBack
            before = frame.pts
            begins = frame.pts if begins is None else begins
            seconds = (frame.pts - begins) * stream.time_base
            if is_sought and index == 0 and seconds > start:
                break  # a container without an index, as MPEG-TS, seeks between key frames
            yield seconds, frame
        else:
            if before is not None or not is_sought:
                return  # behind its last key frame such a container finds none
    yield from _stamped(path, Fraction(0), is_counted)


# -- the cache of clips that are made of others ----------------------------------------------------


_probed = functools.lru_cache(maxsize=4096)(media.probe)


def length_of(raw: Path, counts: str) -> float:
    """Return the length of a raw video in frames or seconds. Raises Failure for a file that is no
    video."""
    facts = _probed(raw)
    return facts.frames if counts == "frames" else facts.seconds


def cut_out(raw: Path, name: str, times: tuple, counts: str) -> Path:
    """Return the clip in the cache, cut unless it was before."""
    target = place(f"{media.version(raw)}\0{times}\0{counts}", name)
    if not target.is_file():
        if counts == "frames":
            seconds = list(map(media.probe_video(raw)[1].at, times))
        else:
            seconds = [Fraction(time).limit_denominator(MOST) for time in times]
        with storage.whole_file(target, "wb") as file:
            cut(raw, *seconds, file, name)
    return target


def place(made_of: str, name: str) -> Path:
    """Return where in the cache a file lies that is made of this."""
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    place = storage.cache_folder() / "raw-clips" / key / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
