"""A part of a clip as a clip of its own: its frame rate and size stay, sound is left out."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import IO

from cosmos_reason.base.findings import bad_input
from cosmos_reason.media import convert
from cosmos_reason.media import files as media

MOST = 90000  # of the denominators that frame rates and times have


def cut(path: Path, start: Fraction, end: Fraction, target: IO[bytes], name: str) -> None:
    """Write the frames shown from `start` until before `end` (seconds) as H.264 in MP4, the clip
    `name`. Raises Failure when there are none, or the file is no clip."""
    pictures = _shown(path, start, end)
    first = next(pictures, None)
    if first is None:
        times = f"from {float(start):g} s to {float(end):g} s"
        message = f"got no frame {times} for {name}, expected some"
        raise bad_input("BUILD-CUT", path, message)
    convert.write_clip(target, "mp4", _all(first, pictures), {"preset": "fast"})


def _all(first: tuple, others: Iterator[tuple]) -> Iterator[tuple]:
    yield first
    yield from others


def _shown(path: Path, start: Fraction, end: Fraction) -> Iterator[tuple[Fraction, object]]:
    """(seconds it is shown, RGB pixels) of each frame of an interval."""
    rate = Fraction(media.frame_rate(path) or 30).limit_denominator(MOST)
    before = None
    for seconds, pixels in _frames(path, start, end):
        if before is not None:
            yield seconds - before[0], before[1]
        before = seconds, pixels
    if before is not None:
        yield 1 / rate, before[1]


def _frames(path: Path, start: Fraction, end: Fraction) -> Iterator[tuple[Fraction, object]]:
    """(seconds since the clip's begin, RGB pixels turned as its container says)."""
    import numpy as np

    with media.opened_video(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        begins = stream.start_time or 0
        container.seek(begins + int(start / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            seconds = (frame.pts - begins) * stream.time_base
            if seconds >= end:
                return
            if seconds >= start:
                turned = -media.rotation(frame) // media.QUARTER
                yield seconds, np.rot90(frame.to_ndarray(format="rgb24"), turned)
