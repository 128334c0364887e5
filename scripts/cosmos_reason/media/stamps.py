"""The time of each frame, drawn into it, for models that are to read when something happens
(`burn_timestamps`): "12.50s", white on a black strip over the lower edge. The size of the frames
and so the number of tokens stays. Enter at `burned`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cosmos_reason.base.findings import bad_input
from cosmos_reason.base.fix import Fix

if TYPE_CHECKING:
    import numpy as np

LARGEST, SMALLEST = 20, 12  # height of the letters in pixels; below it no patch shows a digit
MARGIN = 2


def burned(frames: np.ndarray, seconds: Sequence[float], table: str) -> np.ndarray:
    """Return a copy of the frames, uint8 [n, h, w, 3], with their times. Raises Failure (exit 2)
    for frames too small to read them; `table` is the one that the options stand in."""
    import numpy as np
    from PIL import Image, ImageDraw

    height, width = frames.shape[1:3]
    texts = [f"{second:.2f}s" for second in seconds]
    font = _font(texts, height, width, table)
    top = height - sum(font.getmetrics())
    marked = []
    for frame, text in zip(frames, texts, strict=True):
        picture = Image.fromarray(frame)
        draw = ImageDraw.Draw(picture)
        draw.rectangle((0, top, width, height), fill="black")
        draw.text((width - MARGIN, top), text, fill="white", font=font, anchor="ra")
        marked.append(np.asarray(picture))
    return np.stack(marked)


def _font(texts: list[str], height: int, width: int, table: str):
    """Return the largest that all texts fit the frame in, and that leaves three quarters of its
    height."""
    from PIL import ImageFont

    for size in range(LARGEST, SMALLEST - 1, -1):
        font = ImageFont.load_default(size)
        longest = max(font.getlength(text) for text in texts)
        if longest + 2 * MARGIN <= width and 4 * sum(font.getmetrics()) <= height:
            return font
    message = f"got frames of {height} x {width} pixels, expected room for {texts[-1]!r}"
    fix = Fix(changes={f"{table}.burn_timestamps": False})
    raise bad_input("DATA-STAMP-SMALL", f"{table}.burn_timestamps", message, fix)
