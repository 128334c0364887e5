"""Clips that look and move alike, and still images that look alike: one encoded, scaled or named
anew. Enter at `alike`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from cosmos_reason.base import progress
from cosmos_reason.base.findings import Finding, attempt
from cosmos_reason.media import checks
from cosmos_reason.media import files as media
from cosmos_reason.media.checks import ClipReport

Reports = dict[int, ClipReport]  # of clips that were decoded, by any number

LENGTHS = 0.05  # by which the lengths of two copies may differ, as a share
# Grey levels of 255. Two encodings of one clip differ by less than SAME on average, a plain picture
# has less than DETAIL in it, and where less than MOTION moves, all clips of a fixed camera are
# alike: they are not told.
SAME, DETAIL, MOTION = 6.0, 4.0, 1.0
# Of still images in small: how far copies differ on average, and in one place, where a small object
# of another picture of a fixed camera would stand.
SAME_STILL, SAME_PLACE = 1.5, 8.0
MOST_COMPARED = 32  # images like one, that are looked at place by place
CORRELATED = 0.95  # how what moves in two copies goes together, at least
LONG = 1500  # frames; to decode so many costs less than to seek and decode from a key frame
AT_ONCE = 1024  # held-out clips that are compared at a time


def examined(clips: Iterable[tuple[int, Path]]) -> Reports:
    """Return what each numbered clip looks like, of which a few frames are decoded; nothing of a
    clip that does not open. All cores work, with a bar."""
    todo = dict(clips)
    reports = {}
    bar = progress.bar(len(todo), "compare clips", unit="clip", is_quick=True)
    untold: list[Finding] = []  # they are told where the clip is brought into the dataset
    with ThreadPoolExecutor(os.cpu_count()) as pool, bar:
        # In the order of the numbers, whichever is first: which clip stands for those alike decides
        # what a seed holds out.
        looked_at = pool.map(partial(attempt, untold, _examined), todo.values())
        for number, report in zip(todo, looked_at, strict=True):
            bar.update()
            if report:
                reports[number] = report
    return reports


def _examined(path: Path) -> ClipReport:
    """Return the report of a still image, or of a clip with checks.LOOKS pictures at equal
    distances; those of a long one are decoded from the key frame before each. Raises Failure."""
    if media.is_image(path):
        look = media.grey(path, checks.STILL)
        return ClipReport(facts=media.probe_image(path), look=look.hex())
    facts, shown = media.probe_video(path)
    indices = checks.look_indices(facts.frames)
    small = {}
    if facts.frames <= LONG:
        for index, frame in media.decoded(path, indices):
            small[index] = checks.in_small(frame)
    else:
        with media.opened_video(path) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for index in indices:
                at = (stream.start_time or 0) + int(shown.at(index) / stream.time_base)
                container.seek(at, stream=stream)
                for frame in container.decode(stream):
                    if frame.pts is None or frame.pts >= at:
                        small[index] = checks.in_small(frame)
                        break
    look = b"".join(small[index] for index in indices) if len(small) == len(set(indices)) else b""
    return ClipReport(facts=facts, look=look.hex())


def alike(train: Reports, held_out: Reports) -> dict[int, int]:
    """Return {number of a held-out clip or image: number of the first of training that it looks
    like}."""
    sides = []
    for part in (train, held_out):
        known = {number: one for number, one in part.items() if one.look and one.facts}
        is_still = {number: one.facts.kind == "image" for number, one in known.items()}
        sides.append(
            [{n: known[n] for n in known if is_still[n] is still} for still in (False, True)]
        )
    (clips, stills), (held_out_clips, held_out_stills) = sides
    found = _clips_alike(clips, held_out_clips) if clips and held_out_clips else {}
    return found | (_stills_alike(stills, held_out_stills) if stills and held_out_stills else {})


def _stills_alike(train: Reports, held_out: Reports) -> dict[int, int]:
    """Return what `alike` returns, of still images that differ in no place when they are equally
    bright; plain ones are alike anyway and are not told."""
    import numpy as np

    found: dict[int, int] = {}

    def pictures(part: Reports) -> tuple[np.ndarray, np.ndarray]:
        looks = [np.frombuffer(bytes.fromhex(one.look), np.uint8) for one in part.values()]
        centred = np.array(looks, np.float32)
        centred -= centred.mean(axis=1, keepdims=True)
        kept = centred.std(axis=1) >= DETAIL
        return np.array(list(part), int)[kept], centred[kept]

    (trained, train_looks), (asked, looks) = pictures(train), pictures(held_out)
    power = (train_looks**2).sum(axis=1)
    most = SAME_STILL**2 * checks.STILL**2
    for start in range(0, len(asked), AT_ONCE):
        here = looks[start : start + AT_ONCE]
        apart = (here**2).sum(axis=1, keepdims=True) + power - 2 * here @ train_looks.T
        for row in np.flatnonzero((apart <= most).any(axis=1)):
            near = np.flatnonzero(apart[row] <= most)[:MOST_COMPARED]
            peaks = np.abs(train_looks[near] - here[row]).max(axis=1)
            if (peaks <= SAME_PLACE).any():
                found[int(asked[start + row])] = int(trained[near[(peaks <= SAME_PLACE).argmax()]])
    return found


def _clips_alike(train: Reports, held_out: Reports) -> dict[int, int]:
    """Return what `alike` returns, of clips."""
    import numpy as np

    found: dict[int, int] = {}
    trained, train_looks, train_motion, train_seconds = _looks(train)
    asked, looks, motion, seconds = _looks(held_out)
    for start in range(0, len(asked), AT_ONCE):
        here = slice(start, start + AT_ONCE)
        together = motion[here] @ train_motion.T >= CORRELATED
        for row in np.flatnonzero(together.any(axis=1)):
            for column in np.flatnonzero(together[row]):
                ratio = seconds[here][row] / train_seconds[column]
                difference = np.abs(looks[here][row] - train_looks[column]).mean()
                if difference <= SAME and 1 - LENGTHS <= ratio <= 1 + LENGTHS:
                    found[int(asked[start + row])] = int(trained[column])
                    break  # thousands of copies of one clip are not compared two by two
    return found


def _looks(examined: Reports):
    """Return (numbers of the clips, their pictures, what moves in them as a vector of length 1,
    their seconds) of those that show something that moves; pictures as if all were equally
    bright."""
    import numpy as np

    numbers = np.array(list(examined), int)
    pictures = np.array(
        [np.frombuffer(bytes.fromhex(one.look), np.uint8) for one in examined.values()], np.float32
    )
    seconds = np.array([one.facts.seconds or 0 for one in examined.values()], float)
    pictures = pictures.reshape(len(numbers), checks.LOOKS, checks.SIDE * checks.SIDE)
    pictures -= pictures.mean(axis=(1, 2), keepdims=True)
    motion = pictures - pictures.mean(axis=1, keepdims=True)
    # What changes all over the picture at once is light, not motion.
    motion -= motion.mean(axis=2, keepdims=True)
    is_detailed = pictures.mean(axis=1).std(axis=1) >= DETAIL
    is_moving = np.sqrt((motion**2).mean(axis=(1, 2))) >= MOTION
    kept = is_detailed & is_moving & (seconds > 0)
    pictures = pictures[kept].reshape(-1, checks.LOOKS * checks.SIDE * checks.SIDE)
    flat = motion[kept].reshape(pictures.shape)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    return numbers[kept], pictures, flat, seconds[kept]
