"""Pictures of a medium for a page: a few frames side by side, inside the page as a data URI."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import located
from cosmos_reason.data.samples import Media
from cosmos_reason.media import files as media

if TYPE_CHECKING:
    import numpy as np

FRAMES = 4
HEIGHT = 132  # pixels
WIDEST_FRAME = 4 * HEIGHT
GREY = 160  # between the frames
JPEG_QUALITY = 76
# Decoded per clip at most, about 290 frames of 1920x1080; of a longer clip the beginning is shown.
CLIP_PIXELS = 600_000_000


def filmstrip(path: media.Source) -> tuple[str, str]:
    """Return (data URI of FRAMES frames side by side, when they are); ("", why not) for what cannot
    be decoded."""
    import numpy as np
    from PIL import Image

    try:
        if isinstance(path, str):
            path = located.source(Media("video", path), str)
        frames, caption = _decoded(located.local(path))
    except Failure as failure:
        return "", failure.findings[0].message
    height = min(HEIGHT, frames.shape[1])
    width = max(1, round(frames.shape[2] * height / frames.shape[1]))
    frames = media.resize(frames, height, min(width, WIDEST_FRAME))
    gap = math.ceil(frames.shape[1] / 66)
    framed = np.pad(frames, ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=GREY)
    picture = Image.fromarray(np.concatenate(list(framed), axis=1)[:, :-gap])
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}", caption


def _decoded(path: Path | media.Pictures) -> tuple[np.ndarray, str]:
    """Return uint8[n, h, w, 3] and a caption."""
    if not isinstance(path, media.Pictures) and media.is_image(path):
        return media.read_image(path)[None], "still image"
    facts, shown = media.probe_video(path)
    reach = max(1, min(facts.frames, CLIP_PIXELS // (facts.width * facts.height)))
    indices = sorted({int(reach * (number + 0.5) / FRAMES) for number in range(FRAMES)})
    seconds = ", ".join(f"{float(shown.at(index)):.1f}" for index in indices)
    return media.decode_frames(path, indices), f"frames at {seconds} s"
