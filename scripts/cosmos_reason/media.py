"""Video clips and still images: where they are, what they are, their pixels. Decoded with PyAV and Pillow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.findings import Failure, bad_input

IMAGE_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class MediaFacts:
    """Sizes in pixels. An image has one frame and neither fps nor seconds. `frames` were counted in the stream;
    `declared_frames` is what the container claims (0: nothing), which other readers believe."""

    kind: str
    width: int
    height: int
    frames: int
    fps: float | None
    seconds: float | None
    declared_frames: int = 0


@dataclass(frozen=True)
class ClipReport:
    """What was learnt about one file. `facts` is None exactly when `check` (a finding id) says why."""

    bytes: int = 0
    content: str = ""  # equal for files of equal size, beginning, middle and end
    facts: MediaFacts | None = None
    check: str = ""
    message: str = ""


def resolve(media_path: str | Path, name: str) -> Path:
    """The file `name` stands for: an absolute name as it is, any other below `media_path`.

    Raises Failure when a relative name climbs out of `media_path`.
    """
    if "\0" in name or os.path.normpath(name).startswith(".."):
        raise bad_input("DATA-MEDIA-ESCAPE", name, "got a name that leaves the media path, expected one below it")
    return Path(media_path) / name


def probe(path: str | Path) -> MediaFacts:
    """What the file is, from its headers and packet list, without decoding. Raises Failure when it is no medium."""
    if is_image(path):
        with _opened_image(path) as image:
            return MediaFacts("image", image.width, image.height, 1, None, None)
    with _opened_video(path) as container:
        stream = container.streams.video[0]
        frames = sum(1 for packet in container.demux(stream) if packet.size and not packet.is_discard)
        rate = stream.average_rate or stream.guessed_rate
        size = stream.codec_context.width, stream.codec_context.height
        if not (frames and rate and all(size)):
            raise _undecodable(path, f"{frames} frames, frame rate {rate}, size {size[0]}x{size[1]}")
        return MediaFacts("video", *size, frames, float(rate), frames / float(rate), stream.frames)


def decode_frames(path: str | Path, indices: Sequence[int]):
    """The frames at `indices` (from 0) as uint8[n, height, width, 3] RGB. Raises Failure when one is missing."""
    import numpy as np

    wanted, found = set(indices), {}
    with _opened_video(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                found[number] = frame.to_ndarray(format="rgb24")
            if len(found) == len(wanted):
                break
    missing = sorted(wanted - found.keys())
    if missing:
        raise _undecodable(path, f"no frame {missing[0]} (the stream ended before it)")
    return np.stack([found[index] for index in indices])


def read_image(path: str | Path):
    """A still image as uint8[height, width, 3] RGB; transparency is laid over white. Raises Failure."""
    import numpy as np
    from PIL import Image

    with _opened_image(path) as image:
        if image.mode == "RGBA":
            white = Image.new("RGB", image.size, (255, 255, 255))
            white.paste(image, mask=image.getchannel("A"))
            return np.asarray(white)
        return np.asarray(image.convert("RGB"))


def resize(frames, height: int, width: int):
    """uint8[n, h, w, 3] -> uint8[n, height, width, 3], bicubic with antialiasing; equal sizes return the input itself.

    Pillow's filter: the one of the official image path. Torchvision's, of the video path, computes in float and differs
    by at most one grey level on 99 % of the values of a picture.
    """
    import numpy as np
    from PIL import Image

    if frames.shape[1:3] == (height, width):
        return frames
    return np.stack([np.asarray(Image.fromarray(frame).resize((width, height), Image.BICUBIC)) for frame in frames])


def is_image(path: str | Path) -> bool:
    """By content, not by name. Raises Failure when the file cannot be opened."""
    head = _head(path)
    return head.startswith(IMAGE_SIGNATURES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def _head(path: str | Path) -> bytes:
    try:
        if not Path(path).is_file():  # opening a FIFO would wait for a writer
            missing = "a directory or special file" if Path(path).exists() else "no such file"
            raise bad_input("DATA-MEDIA-MISSING", path, f"got {missing}, expected a media file")
        with Path(path).open("rb") as handle:
            head = handle.read(16)
    except (OSError, ValueError) as problem:
        raise bad_input("DATA-MEDIA-MISSING", path, f"got {problem}, expected a readable media file") from None
    if not head:
        raise bad_input("DATA-MEDIA-EMPTY", path, "got a file of zero bytes, expected a medium")
    return head


@contextmanager
def _opened_video(path: str | Path):
    import av

    _head(path)
    try:
        with av.open(str(path), metadata_errors="replace") as container:
            if not container.streams.video:
                raise _undecodable(path, "no video stream")
            yield container
    except (av.FFmpegError, ValueError, MemoryError) as problem:
        raise _undecodable(path, getattr(problem, "strerror", None) or str(problem)) from None


@contextmanager
def _opened_image(path: str | Path):
    from PIL import Image

    _head(path)
    try:
        with Image.open(path) as image:
            yield image
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as problem:
        raise _undecodable(path, str(problem)) from None


def _undecodable(path: str | Path, why: str) -> Failure:
    return bad_input("DATA-MEDIA-UNDECODABLE", path, f"got {why}, expected a clip or image that decodes")
