"""Video clips and still images: where they are, what they are, their pixels. Decoded with PyAV and
Pillow."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from cosmos_reason.base.findings import Failure, bad_input
from cosmos_reason.base.texts import NUMBER, by_number

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".flv")
MEDIA_SUFFIXES = VIDEO_SUFFIXES + IMAGE_SUFFIXES
# Containers whose end can be told from a cut. Other demuxers of FFmpeg draw texts, or open what
# playlists name.
CONTAINERS = "mov,matroska,avi,mpegts,flv"
IMAGE_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")
HEIF_BRANDS = (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"avis")
DEEP_MODES = ("I", "F")  # of Pillow, with I;16 and its like: more than 8 bits per value
# formats that play; the other pages of a TIFF or an MPO are not a motion
ANIMATIONS = ("GIF", "WEBP", "PNG")
ORIENTATION = 0x0112  # the Exif tag; 1 is upright
QUARTER = 90  # degrees
STEADY = Fraction(1, 100)  # of a rate: a clip whose mean is so near keeps to it
LIST, FOLDER = "list", "folder"  # how pictures are given
CONVERTER = "cosmos_reason.media.convert"
NO_SUCH_FILE = "got no such file, expected a media file"
NO_FILE = "got a directory or special file, expected a media file"
CONTENT_BLOCK = 64 * 1024
SCRIPTS = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Pictures:
    """A video given as pictures, in order, `fps` of them a second. Those of a LIST were chosen by
    whoever wrote it and are all shown, as by qwen-vl-utils; those of a FOLDER are sampled like the
    frames of a clip, as by cosmos-rl."""

    files: tuple[Path | str, ...]
    fps: float
    given_as: str  # LIST | FOLDER


Source = Path | str | Pictures  # where a medium is: a file, an object in S3, pictures


@dataclass(frozen=True)
class MediaFacts:
    """Sizes in pixels. An image has one frame and neither fps nor seconds. `frames` were counted in
    the stream and `seconds` are those from its first to its last; `fps` is the container's average,
    or `frames` over `seconds` where the frames do not keep to it; `declared_frames` is the
    container's claim (0: nothing), which other readers believe. `turned` is the note
    in the file that says how to turn it for display: degrees clockwise of a clip (its sizes are
    those before), the Exif orientation of an image; 0 when it is upright. `pictures` is LIST or
    FOLDER for a video that is given as pictures."""

    kind: str
    width: int
    height: int
    frames: int
    fps: float | None
    seconds: float | None
    declared_frames: int = 0
    turned: int = 0
    pictures: str = ""

    @property
    def shows_all(self) -> bool:
        """Return whether all its frames are shown."""
        return self.pictures == LIST


@dataclass(frozen=True)
class Timeline:
    """When each frame of a clip is shown, in seconds since its first: frame i at i / `rate`, unless
    one is more than half a frame away from that; then as `stamps`, in order, of `tick` seconds."""

    rate: Fraction
    stamps: Sequence[int] = ()
    tick: Fraction = Fraction(1)

    def at(self, index: int) -> Fraction:
        known = len(self.stamps)
        if not known:
            return index / self.rate
        last = min(index, known - 1)
        return (self.stamps[last] - self.stamps[0]) * self.tick + (index - last) / self.rate


@dataclass(frozen=True)
class ClipReport:
    """What was learnt about one file. Without `facts`, `check` (a finding id) says why; it was only
    listed without."""

    bytes: int = 0
    content: str = ""  # equal for files of equal size, beginning, middle and end
    facts: MediaFacts | None = None
    check: str = ""
    message: str = ""
    look: str = ""  # of what was decoded: its pictures in small, in hex (checks.LOOKS, STILL)


def resolve(media_path: str | Path, name: str) -> Path:
    """Return the file `name` stands for: an absolute name as it is, or where it lies here of the
    command's site; any other below `media_path`.

    Raises Failure when a relative name climbs out of `media_path`.
    """
    if "\0" in name or os.path.normpath(name).split(os.sep)[0] == "..":
        raise bad_input(
            "DATA-MEDIA-ESCAPE",
            name,
            "got a name that leaves the media path, expected one below it",
        )
    if os.path.isabs(name):
        from cosmos_reason.base import site  # most names are relative, and ask no site

        name = site.here(name)
    return Path(media_path) / name


def pictures_in(folder: Path, fps: float) -> Pictures:
    """Return the pictures of a folder. Raises Failure without one."""
    found = pictures_of([str(file) for file in folder.iterdir()], fps)
    if not found.files:
        message = "got a folder without pictures, expected a clip or a folder of its frames"
        raise bad_input("DATA-MEDIA-MISSING", folder, message)
    return found


def pictures_of(names: Iterable[str], fps: float) -> Pictures:
    """Return the pictures among the files of a folder, in the order of the numbers in their
    names."""
    pictures = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    return Pictures(tuple(sorted(pictures, key=by_number)), fps, FOLDER)


def numbered(pictures: Pictures) -> int:
    """Return how many pictures of a folder there are by the numbers in their names, which leave a
    gap where one is missing; 0 where the names do not tell."""
    numbers = [NUMBER.findall(Path(file).stem)[-1:] for file in pictures.files]
    if pictures.given_as == LIST or not all(numbers):
        return 0
    ordered = [int(number) for (number,) in numbers]
    steps = sorted(after - before for before, after in pairwise(ordered))
    if not steps or steps[0] < 1:
        return 0
    return round((ordered[-1] - ordered[0]) / steps[len(steps) // 2]) + 1


def probe(path: str | Path | Pictures) -> MediaFacts:
    """Return what the file is, from its headers and packet list, without decoding; what pictures
    are, from the first of them. Raises Failure when it is no medium."""
    if not isinstance(path, Pictures) and is_image(path):
        return probe_image(path)
    return probe_video(path)[0]


def probe_video(path: str | Path | Pictures) -> tuple[MediaFacts, Timeline]:
    """Return what a clip is, as `probe` says it, and when its frames are shown. Raises Failure."""
    if isinstance(path, Pictures):
        frames = len(path.files)
        first = probe_image(path.files[0])
        video = replace(first, kind="video", frames=frames, fps=path.fps, seconds=frames / path.fps)
        return replace(video, pictures=path.given_as), Timeline(Fraction(path.fps))
    with opened_video(path) as container:
        if _cut_short(Path(path), container.format.name):
            raise _undecodable(path, "a file that ends before its container does")
        return _probe_packets(path, container)


def probe_image(path: str | Path) -> MediaFacts:
    """Return what an image is, from its header. Raises Failure."""
    with _opened_image(path) as image:
        orientation = image.getexif().get(ORIENTATION, 1)
        turned = orientation if orientation in range(2, 9) else 0
        return MediaFacts("image", image.width, image.height, 1, None, None, turned=turned)


def _probe_packets(path: str | Path, container) -> tuple[MediaFacts, Timeline]:
    stream = container.streams.video[0]
    times = []
    for packet in container.demux(stream):
        if packet.size and not packet.is_discard:
            times.append(packet.pts)
    frames = len(times)
    rate = stream.average_rate or stream.guessed_rate
    width = stream.codec_context.width
    height = stream.codec_context.height
    if not (frames and rate and width and height):
        raise _undecodable(path, f"{frames} frames, frame rate {rate}, size {width}x{height}")
    facts = MediaFacts("video", width, height, frames, float(rate), None, stream.frames)
    if None in times:
        return replace(facts, seconds=float(frames / rate)), Timeline(rate)
    times.sort()  # frames are shown in this order, whichever packet a container gives its stamp
    first_to_last = (times[-1] - times[0]) * stream.time_base
    if _is_steady(times, stream.time_base, rate):
        return replace(facts, seconds=float(first_to_last + 1 / rate)), Timeline(rate)
    steps = sorted(after - before for before, after in pairwise(times))
    seconds = first_to_last + steps[len(steps) // 2] * stream.time_base  # the last as long as most
    varying = replace(facts, fps=float(frames / seconds), seconds=float(seconds))
    return varying, Timeline(frames / seconds, times, stream.time_base)


def _is_steady(times: list[int], tick: Fraction, rate: Fraction) -> bool:
    """Return whether no frame is shown more than half a frame before or after its turn."""
    frame = tick.denominator * rate.denominator
    of_tick = tick.numerator * rate.numerator
    begin = times[0]
    return all(
        2 * abs((time - begin) * of_tick - index * frame) <= frame
        for index, time in enumerate(times)
    )


def decode_frames(path: str | Path | Pictures, indices: Sequence[int]):
    """Return the frames at `indices` (from 0) as uint8[n, height, width, 3] RGB, turned as the
    container says, as torchcodec (since 0.11) and decord do. Raises Failure when one is missing.

    Behind the last picture of a list, which has an odd number of them, it stands once more."""
    import numpy as np

    if isinstance(path, Pictures):
        last = len(path.files) - 1
        shown = [read_image(path.files[min(index, last)]) for index in indices]
        refuse_sizes(path, {picture.shape[1::-1] for picture in shown})
        return np.stack(shown)
    places = np.array(indices)
    pictures = None
    turned = 0
    for number, frame in decoded(path, indices):
        if pictures is None:
            pictures = np.empty((len(places), frame.height, frame.width, 3), np.uint8)
            turned = rotation(frame)
        size = {"width": pictures.shape[2], "height": pictures.shape[1]}
        pictures[places == number] = frame.to_ndarray(format="rgb24", **size)
    if not turned:
        return pictures
    return np.ascontiguousarray(np.rot90(pictures, -turned // QUARTER, axes=(1, 2)))


def refuse_sizes(pictures: Pictures, sizes: set[tuple[int, int]]) -> None:
    """Raise Failure for pictures of one video that have more than one (width, height)."""
    if len(sizes) > 1:
        some = " and ".join(f"{width}x{height}" for width, height in sorted(sizes)[:2])
        message = f"got pictures of {some} in one video, expected one size"
        raise bad_input("DATA-FRAMES-SIZE", pictures.files[0], message)


def rotation(frame) -> int:
    """Return the degrees clockwise, in quarter turns, by which an av.VideoFrame is to be turned for
    display."""
    return round(-frame.rotation / QUARTER) % 4 * QUARTER


def decoded(path: str | Path, indices: Sequence[int]) -> Iterator[tuple[int, object]]:
    """Yield (index, av.VideoFrame) of each of `indices` once, in order, none of them kept. Raises
    Failure when one is missing."""
    wanted = set(indices)
    count = 0
    with opened_video(path) as container:
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
    """Return a still image as uint8[height, width, 3] RGB, as Qwen's fetch_image makes it:
    transparency is laid over white, an Exif orientation is not applied. Raises Failure, also where
    that would destroy the picture."""
    import numpy as np
    from PIL import Image

    with _opened_image(path) as image:
        if image.mode == "RGBA":
            white = Image.new("RGB", image.size, (255, 255, 255))
            white.paste(image, mask=image.getchannel("A"))
            return np.asarray(white)
        return np.asarray(image.convert("RGB"))


def grey(path: str | Path, side: int) -> bytes:
    """Return a still image in small: side x side grey values, row by row. Raises Failure."""
    from PIL import Image

    with _opened_image(path) as image:
        image.draft("L", (8 * side, 8 * side))  # a JPEG is decoded no larger than that
        return image.convert("L").resize((side, side), Image.BOX).tobytes()


def resize(frames, height: int, width: int):
    """Resize uint8[n, h, w, 3] -> uint8[n, height, width, 3], bicubic with antialiasing; equal
    sizes return the input itself. Pillow's filter: the one of the official image path.
    Torchvision's, of the video path, computes in float and differs by at most one grey level on 99
    % of the values of a picture."""
    import numpy as np
    from PIL import Image

    if frames.shape[1:3] == (height, width):
        return frames
    return np.stack(
        [
            np.asarray(Image.fromarray(frame).resize((width, height), Image.BICUBIC))
            for frame in frames
        ]
    )


def names_medium(name: str) -> bool:
    """Return whether a name has the suffix of a clip or a picture."""
    return name.lower().endswith(MEDIA_SUFFIXES)


def is_image(path: str | Path) -> bool:
    """Return whether a file is a picture, by content, not by name. Raises Failure when the file
    cannot be opened, and for a picture in a container of clips, as telephones write them: few
    readers know it."""
    head = _head(path)
    if head[4:8] == b"ftyp" and head[8:12] in HEIF_BRANDS:
        raise _undecodable(path, "a HEIC or AVIF picture: save it as JPEG or PNG")
    return head.startswith(IMAGE_SIGNATURES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def content(path: Path) -> str:
    """Return a fingerprint that reads at most three blocks of the file, however large it is."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as handle:
        for offset in (0, (size - CONTENT_BLOCK) // 2, size - CONTENT_BLOCK):
            handle.seek(max(offset, 0))
            digest.update(handle.read(CONTENT_BLOCK))
    return digest.hexdigest()


def version(file: Path) -> str:
    """Return what differs when a file changes, of which nothing is read."""
    facts = file.stat()
    return f"{file.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}"


def frame_rate(path: str | Path) -> float | None:
    """Return the frames per second of a clip as `probe` tells them, None for an image; reads
    headers only where the container counts its frames in them and all last equally long: what it
    has of others depends on how long its last frame is said to be. Raises Failure when the file is
    neither a clip nor an image."""
    if is_image(path):
        with _opened_image(path):
            return None
    with opened_video(path) as container:
        stream = container.streams.video[0]
        rate, usual = stream.average_rate, stream.base_rate
        is_counted = container.format.name.startswith("mov") and rate and usual
        if is_counted and abs(rate - usual) <= STEADY * usual:
            return float(rate)
        return _probe_packets(path, container)[0].fps


def _cut_short(path: Path, container: str) -> bool:
    """Return whether the container states more bytes than the file has; decoders take such an end
    for that of the clip."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        if container == "mpegts":
            return all(size % packet for packet in (188, 192, 204))
        if container == "flv":
            return _flv_is_cut(handle, size)
        if container == "avi":  # RIFF and its length
            return 8 + int.from_bytes(handle.read(8)[4:], "little") > size
        if container.startswith("matroska"):
            return _matroska_is_cut(handle, size)
        if container.startswith("mov"):
            return _mov_is_cut(handle, size)
    return False


def _flv_is_cut(handle, size: int) -> bool:
    """Return whether no tag has the length that stands at the end, as one stands behind each."""
    handle.seek(max(size - 4, 0))
    length = int.from_bytes(handle.read(4), "big")
    handle.seek(max(size - 4 - length, 0))
    return int.from_bytes(handle.read(4)[1:], "big") + 11 != length


def _matroska_is_cut(handle, size: int) -> bool:
    """Return whether the file ends before its Segment, which states its length after the byte 1, in
    7 bytes, all ones when it is not known."""
    head = handle.read(4096)
    found = head.find(b"\x18\x53\x80\x67\x01")
    if found < 0:
        return False
    start = found + 5
    length = head[start : start + 7]
    if length == b"\xff" * 7:
        return False
    return start + 7 + int.from_bytes(length, "big") > size


def _mov_is_cut(handle, size: int) -> bool:
    """Return whether the frames (mdat) end beyond the file, going from box to box."""
    start = 0
    while start + 16 <= size:
        handle.seek(start)
        box = handle.read(16)
        length = int.from_bytes(box[:4], "big")
        if length == 1:  # the length stands behind the name
            length = int.from_bytes(box[8:], "big")
        if box[4:8] == b"mdat" and start + length > size:
            return True
        if length < 8:
            return False
        start += length
    return False


def _head(path: str | Path) -> bytes:
    try:
        if not Path(path).is_file():  # opening a FIFO would wait for a writer
            message = NO_FILE if Path(path).exists() else NO_SUCH_FILE
            raise bad_input("DATA-MEDIA-MISSING", path, message)
        with Path(path).open("rb") as handle:
            head = handle.read(132)
    except (OSError, ValueError) as problem:
        raise bad_input(
            "DATA-MEDIA-MISSING", path, f"got {problem}, expected a readable media file"
        ) from None
    if not head:
        raise bad_input("DATA-MEDIA-EMPTY", path, "got a file of zero bytes, expected a medium")
    if head[128:] == b"DICM":
        why = "a DICOM file, which no trainer reads: write it as an 8-bit PNG, in the window in "
        raise _undecodable(path, f"{why}which what is asked about can be seen")
    return head


@contextmanager
def opened_video(path: str | Path):
    import av

    _head(path)
    try:
        # "file:" since a name may have a colon
        with av.open(
            f"file:{path}", metadata_errors="replace", options={"format_whitelist": CONTAINERS}
        ) as container:
            if not container.streams.video:
                raise _undecodable(path, "no video stream")
            yield container
    except av.ArgumentError:
        raise _undecodable(
            path,
            "no container of clips (mp4, mov, mkv, webm, avi, ts, flv: "
            "encode others as .mp4, and name that)",
        ) from None
    except (av.FFmpegError, ValueError, MemoryError) as problem:
        raise _undecodable(path, getattr(problem, "strerror", None) or str(problem)) from None


@contextmanager
def _opened_image(path: str | Path):
    from PIL import Image

    _head(path)
    try:
        with Image.open(path) as image:
            _refuse_losses(path, image)
            yield image
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as problem:
        raise _undecodable(path, str(problem)) from None


def _refuse_losses(path: str | Path, image) -> None:
    """Raise Failure for a picture of which the models' pre-processors show little: they cut deep
    values off at 255 and take the first picture of an animation."""
    if image.mode.startswith(DEEP_MODES):
        message = (
            f"got pixels of more than 8 bits (mode {image.mode}), "
            "which readers cut off at 255, expected 8 bits"
        )
        raise bad_input("DATA-MEDIA-DEPTH", path, message, conversion([path]))
    if image.format in ANIMATIONS and getattr(image, "is_animated", False):
        message = (
            "got an animation, of which readers show the first picture only, "
            "expected a still image or a clip"
        )
        raise bad_input("DATA-MEDIA-ANIMATED", path, message, conversion([path]))


def conversion(files: Sequence[str | Path]) -> str:
    """Return the command that makes of `files` what every reader shows alike."""
    names = [os.path.abspath(file) for file in files]
    return (
        f"PYTHONPATH={shlex.quote(SCRIPTS)} {shlex.join([sys.executable, '-m', CONVERTER, *names])}"
    )


def _undecodable(path: str | Path, why: str) -> Failure:
    return bad_input(
        "DATA-MEDIA-UNDECODABLE", path, f"got {why}, expected a clip or image that decodes"
    )
