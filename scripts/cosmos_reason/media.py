"""Video clips and still images: where they are, what they are, their pixels. Decoded with PyAV and Pillow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.findings import Failure, bad_input

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".flv")
# Containers whose end can be told from a cut. Other demuxers of FFmpeg draw texts, or open what playlists name.
CONTAINERS = "mov,matroska,avi,mpegts,flv"
IMAGE_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class MediaFacts:
    """Sizes in pixels. An image has one frame and neither fps nor seconds. `frames` were counted in the stream and
    `seconds` are those from its first to its last; `fps` is the container's average and `declared_frames` its claim (0:
    nothing), which other readers believe."""

    kind: str
    width: int
    height: int
    frames: int
    fps: float | None
    seconds: float | None
    declared_frames: int = 0


@dataclass(frozen=True)
class ClipReport:
    """What was learnt about one file. Without `facts`, `check` (a finding id) says why; it was only listed without."""

    bytes: int = 0
    content: str = ""  # equal for files of equal size, beginning, middle and end
    facts: MediaFacts | None = None
    check: str = ""
    message: str = ""


def resolve(media_path: str | Path, name: str) -> Path:
    """The file `name` stands for: an absolute name as it is, any other below `media_path`.

    Raises Failure when a relative name climbs out of `media_path`.
    """
    if "\0" in name or os.path.normpath(name).split(os.sep)[0] == "..":
        raise bad_input("DATA-MEDIA-ESCAPE", name, "got a name that leaves the media path, expected one below it")
    return Path(media_path) / name


def probe(path: str | Path) -> MediaFacts:
    """What the file is, from its headers and packet list, without decoding. Raises Failure when it is no medium."""
    if is_image(path):
        with _opened_image(path) as image:
            return MediaFacts("image", image.width, image.height, 1, None, None)
    with _opened_video(path) as container:
        if _cut_short(Path(path), container.format.name):
            raise _undecodable(path, "a file that ends before its container does")
        stream = container.streams.video[0]
        shown = [packet.pts for packet in container.demux(stream) if packet.size and not packet.is_discard]
        frames, times = len(shown), [time for time in shown if time is not None]
        rate = stream.average_rate or stream.guessed_rate
        size = stream.codec_context.width, stream.codec_context.height
        if not (frames and rate and all(size)):
            raise _undecodable(path, f"{frames} frames, frame rate {rate}, size {size[0]}x{size[1]}")
        last = (max(times) - min(times)) * stream.time_base if len(times) == frames else (frames - 1) / rate
        return MediaFacts("video", *size, frames, float(rate), float(last + 1 / rate), stream.frames)


def decode_frames(path: str | Path, indices: Sequence[int]):
    """The frames at `indices` (from 0) as uint8[n, height, width, 3] RGB. Raises Failure when one is missing."""
    import numpy as np

    places, pictures = np.array(indices), None
    for number, frame in decoded(path, indices):
        if pictures is None:
            pictures = np.empty((len(places), frame.height, frame.width, 3), np.uint8)
        size = {"width": pictures.shape[2], "height": pictures.shape[1]}
        pictures[places == number] = frame.to_ndarray(format="rgb24", **size)
    return pictures


def decoded(path: str | Path, indices: Sequence[int]) -> Iterator[tuple[int, object]]:
    """(index, av.VideoFrame) of each of `indices` once, in order, none of them kept. Raises Failure when one is
    missing."""
    wanted, count = set(indices), 0
    with _opened_video(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            if count in wanted:
                yield count, frame
            count += 1
            if count > max(wanted):
                return
    missing = min(index for index in wanted if index >= count)
    raise _undecodable(path, f"no frame {missing} (the stream ended before it)")


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


def check_kind(path: str | Path) -> None:
    """Raises Failure when the file is neither a clip nor an image; reads its headers only."""
    with _opened_image(path) if is_image(path) else _opened_video(path):
        pass


def _cut_short(path: Path, container: str) -> bool:
    """Whether the container states more bytes than the file has; decoders take such an end for that of the clip."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        head = handle.read(4096)
        if container == "mpegts":
            return all(size % packet for packet in (188, 192, 204))
        if container == "flv":  # behind every tag is its length
            handle.seek(max(size - 4, 0))
            length = int.from_bytes(handle.read(4), "big")
            handle.seek(max(size - 4 - length, 0))
            return int.from_bytes(handle.read(4)[1:], "big") + 11 != length
        if container == "avi":  # RIFF and its length
            return 8 + int.from_bytes(head[4:8], "little") > size
        if container.startswith("matroska"):  # the Segment and its length: 1, and 7 bytes, all ones when not known
            start = head.find(b"\x18\x53\x80\x67\x01") + 5
            length = head[start : start + 7]
            return start > 4 and length != b"\xff" * 7 and start + 7 + int.from_bytes(length, "big") > size
        start = length = 0
        while container.startswith("mov") and (start := start + length) + 16 <= size:  # from box to box
            handle.seek(start)
            box = handle.read(16)
            length = int.from_bytes(box[8:] if box[:4] == b"\0\0\0\1" else box[:4], "big")
            if box[4:8] == b"mdat" and start + length > size:
                return True
            if length < 8:
                break
    return False


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
        # "file:" since a name may have a colon
        with av.open(f"file:{path}", metadata_errors="replace", options={"format_whitelist": CONTAINERS}) as container:
            if not container.streams.video:
                raise _undecodable(path, "no video stream")
            yield container
    except av.ArgumentError:
        raise _undecodable(path, "no container of clips (mp4, mov, mkv, webm, avi, ts, flv)") from None
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
