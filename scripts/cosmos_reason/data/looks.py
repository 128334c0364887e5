"""Clips that look and move alike: one encoded, scaled or named anew. Enter at `alike`."""

from __future__ import annotations

from cosmos_reason.media import checks
from cosmos_reason.media.checks import ClipReport

Reports = dict[int, ClipReport]  # of clips that were decoded, by any number

LENGTHS = 0.05  # by which the lengths of two copies may differ, as a share
# Grey levels of 255. Two encodings of one clip differ by less than SAME on average, a plain picture
# has less than DETAIL in it, and where less than MOTION moves, all clips of a fixed camera are
# alike: they are not told.
SAME, DETAIL, MOTION = 6.0, 4.0, 1.0
CORRELATED = 0.95  # how what moves in two copies goes together, at least
FRAMES = 8  # that are decoded where nothing else says how many
AT_ONCE = 1024  # held-out clips that are compared at a time


def alike(train: Reports, held_out: Reports) -> dict[int, int]:
    """Return {number of a held-out clip: number of the first training clip that it looks like}."""
    import numpy as np

    found: dict[int, int] = {}
    if not all(any(one.look for one in part.values()) for part in (train, held_out)):
        return found
    trained, train_looks, train_motion, train_seconds = _looks(train)
    asked, looks, motion, seconds = _looks(held_out)
    for start in range(0, len(asked), AT_ONCE):
        here = slice(start, start + AT_ONCE)
        together = motion[here] @ train_motion.T
        for row, column in np.argwhere(together >= CORRELATED):
            ratio = seconds[here][row] / train_seconds[column]
            difference = np.abs(looks[here][row] - train_looks[column]).mean()
            if difference <= SAME and 1 - LENGTHS <= ratio <= 1 + LENGTHS:
                found.setdefault(int(asked[start + row]), int(trained[column]))
    return found


def _looks(examined: Reports):
    """Return (numbers of the clips, their pictures, what moves in them as a vector of length 1,
    their seconds) of those that show something that moves; pictures as if all were equally
    bright."""
    import numpy as np

    reports = {number: one for number, one in examined.items() if one.look and one.facts}
    numbers = np.array(list(reports), int)
    pictures = np.array(
        [np.frombuffer(bytes.fromhex(one.look), np.uint8) for one in reports.values()], np.float32
    )
    seconds = np.array([one.facts.seconds or 0 for one in reports.values()], float)
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
