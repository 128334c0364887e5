"""Pictures and clips that readers show in different ways, made into files that all of them show
alike.

    PYTHONPATH=scripts python3 -m cosmos_reason.media.convert FILE...

More than 8 bits per value: scaled to 8, the file's darkest value to 0 and its brightest to 255. An
Exif orientation or the rotation of a clip: applied to the pixels. A clip that is damaged, or holds
fewer frames than it declares: written again with the frames that decode. The file as it was is kept
as FILE.original. An animation becomes a clip beside it, FILE.mp4, which the annotations are to name
by "video". Every other file is left as it is. Clips are written as H.264 without their sound, in
the container that their suffix says where it has a place for that, else as mp4.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import IO

from cosmos_reason.base import progress
from cosmos_reason.base.files import whole_file
from cosmos_reason.base.findings import Failure, bad_input, printable, say
from cosmos_reason.media import files as media

KEPT = ".original"
# Besides mp4, which stands for those that have no place for H.264 or for the times of frames.
CONTAINERS = {".mov": "mov", ".mkv": "matroska", ".ts": "mpegts", ".flv": "flv"}
# suffix -> FFmpeg's name of a container that is opened to be transcoded only
OTHER_CONTAINERS = {".wmv": "asf", ".asf": "asf", ".ogv": "ogg", ".gif": "gif"}
OTHER_CONTAINERS |= dict.fromkeys((".mpg", ".mpeg", ".vob"), "mpeg")
PLAIN_PIXELS = ("yuv420p", "yuvj420p")
FULL_RANGE = 2  # FFmpeg's number of it: values from 0 to 255, which not all readers heed
TICKS = 90000  # a second, in the clips written
SHOWN_FOR = 100  # ms, of an animation's picture that says nothing


def convert(path: Path) -> str:
    """Return what was done with the file, in words. Raises Failure for what is no medium."""
    if media.is_image(path):
        return _convert_image(path)
    done = "written again with the frames that decode"
    with contextlib.suppress(Failure):
        (_, first), *_ = media.decoded(path, [0])
        if media.rotation(first):
            done = "turned upright"
        else:
            facts, _ = media.probe_video(path)
            [*_] = media.decoded(path, [facts.frames - 1])  # and all before it
            if facts.declared_frames in (0, facts.frames):
                return "is shown alike by all readers, nothing done"
    with _replaced(path) as target:
        write_clip(target, CONTAINERS.get(path.suffix.lower(), "mp4"), _as_shown(path))
    return f"{done}, the file before is {path.name}{KEPT}"


def _convert_image(path: Path) -> str:
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        if image.mode.startswith(media.DEEP_MODES):
            made = _scaled(image)
            done = "scaled to 8 bits"
        elif image.format in media.ANIMATIONS and getattr(image, "is_animated", False):
            clip = path.with_name(f"{path.name}.mp4")
            with whole_file(clip, "wb") as target:
                write_clip(target, "mp4", _pictures(image))
            return f'written as {clip.name}: name that by "video" in the annotations'
        elif image.getexif().get(media.ORIENTATION, 1) in range(2, 9):
            made = ImageOps.exif_transpose(image)
            done = "turned upright"
        else:
            return "is shown alike by all readers, nothing done"
        form = image.format
    with _replaced(path) as target:
        made.save(target, format=form, quality=95)
    return f"{done}, the file before is {path.name}{KEPT}"


@contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write that takes the place of `path`, which is kept under another name."""
    kept = path.with_name(path.name + KEPT)
    if kept.exists() and not filecmp.cmp(path, kept, shallow=False):
        message = "got a file of this name with other content, expected none"
        raise bad_input("FILE-TARGET", kept, message, f"mv {shlex.quote(str(kept))} ELSEWHERE")
    with whole_file(path, "wb") as target:
        yield target
        if not kept.exists():  # only now: what cannot be written again leaves no copy
            with path.open("rb") as source, whole_file(kept, "wb") as copy:
                shutil.copyfileobj(source, copy)


def _scaled(image):
    """Return 8 bits of grey from the darkest to the brightest value; what is no number becomes
    dark."""
    import numpy as np
    from PIL import Image

    values = np.nan_to_num(np.asarray(image, np.float64), nan=np.nan, posinf=np.nan, neginf=np.nan)
    low = np.nanmin(values)
    high = np.nanmax(values)
    return Image.fromarray(
        np.nan_to_num(255 * (values - low) / ((high - low) or 1)).astype(np.uint8)
    )


def _pictures(image) -> Iterator[tuple[Fraction, object]]:
    """Yield (seconds it is shown, RGB pixels) of each picture of an animation."""
    import numpy as np
    from PIL import ImageSequence

    for picture in ImageSequence.Iterator(image):
        pixels = np.asarray(picture.convert("RGB"))
        yield Fraction(int(picture.info.get("duration") or SHOWN_FOR), 1000), pixels


def transcode_all(paths: Iterable[Path], folder: Path) -> dict[Path, tuple[Path, str]]:
    """Return {file: (the H.264 clip that stands for it below `folder`, why)} of the files that not
    all trainers read alike; others, and those that do not open, are left out. What an earlier run
    wrote is not written again. All cores work, with a bar."""
    todo = list(dict.fromkeys(paths))
    made = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool, progress.bar(len(todo), "transcode") as bar:
        jobs = {pool.submit(_transcode, path, folder): path for path in todo}
        try:
            for job in as_completed(jobs):
                bar.update()
                found = job.result()
                if found:
                    made[jobs[job]] = found
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return made


def _transcode(path: Path, folder: Path) -> tuple[Path, str] | None:
    import av

    try:
        why = _unlike(path)
        if not why:
            return None
        key = hashlib.sha256(media.version(path).encode()).hexdigest()[:12]
        target = folder / key / f"{path.stem}.mp4"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target, "wb") as file:
                write_clip(file, "mp4", _as_shown(path))
        return target, why
    except (Failure, av.FFmpegError, OSError):  # told where the file is brought into the dataset
        return None


def _unlike(path: Path) -> str:
    """Return why some reader shows a clip otherwise, or not at all; "" for 8-bit 4:2:0 H.264 as it
    stands in the file, of which the container says the truth."""
    if media.is_image(path):
        from PIL import Image

        with Image.open(path) as image:
            is_animation = image.format in media.ANIMATIONS
            return "an animation" if is_animation and getattr(image, "is_animated", False) else ""
    if path.suffix.lower() in OTHER_CONTAINERS:
        return f"a container of {path.suffix[1:]}"
    with _opened(path) as container:
        stream = container.streams.video[0]
        codec, pixels, declared = stream.codec.name, stream.codec_context.pix_fmt, stream.frames
        first = next(container.decode(stream), None)
        if codec != "h264" or pixels not in PLAIN_PIXELS:
            return f"{codec} of {pixels}"
        if first is None or media.rotation(first):
            return "a note that turns it"
    try:
        facts, _ = media.probe_video(path)
    except Failure:
        return "a damaged end"
    return "" if declared in (0, facts.frames) else "frames that its container hides"


@contextmanager
def _opened(path: Path):
    """Open a clip, also in a container that nothing else here opens, chosen by its suffix: others
    of FFmpeg's demuxers draw texts, or open what a playlist names."""
    import av

    form = OTHER_CONTAINERS.get(path.suffix.lower())
    if form is None:
        with media.opened_video(path) as container:
            yield container
        return
    with av.open(str(path), format=form) as container:
        if not container.streams.video:
            raise bad_input("DATA-MEDIA-UNDECODABLE", path, "got no video stream, expected one")
        yield container


def _as_shown(path: Path) -> Iterator[tuple[Fraction, object]]:
    """Yield (seconds it is shown, upright picture) of each frame that decodes, by its stamp, or by
    the usual rate where stamps are no order."""
    if media.is_image(path):
        from PIL import Image

        with Image.open(path) as image:
            yield from _pictures(image)
        return
    with _opened(path) as container:
        stream = container.streams.video[0]
        usual = 1 / Fraction(stream.average_rate or stream.guessed_rate or 30)
        before = None
        shown = Shown()
        for frame in _decodable(container, stream):
            at = None if frame.pts is None else frame.pts * stream.time_base
            picture = shown.picture(frame)
            if before is not None:
                is_later = at is not None and before[0] is not None and at > before[0]
                yield at - before[0] if is_later else usual, before[1]
            before = at, picture
        if before is None:
            message = "got no frame that decodes, expected one"
            raise bad_input("DATA-MEDIA-UNDECODABLE", path, message)
        yield usual, before[1]


def _decodable(container, stream) -> Iterator:
    """Yield the frames of a stream that decode: what is damaged among them, or at its end, is
    passed over, and the times of the others stay. Behind damage decoders give some frames out of
    order, which are passed over, too; where the beginning is damaged, the first frame stands for
    it."""
    import av

    is_damaged, is_first, last = False, True, None
    with contextlib.suppress(av.FFmpegError):
        for packet in container.demux(stream):
            is_damaged |= packet.is_corrupt  # of MPEG-TS, which knows that something is lost
            try:
                frames = packet.decode()
            except av.FFmpegError:
                is_damaged = True
                continue
            for frame in frames:
                if is_damaged and is_first and None not in (frame.pts, stream.start_time):
                    frame.pts = min(frame.pts, stream.start_time)
                is_first = False
                if is_damaged and None not in (frame.pts, last) and frame.pts <= last:
                    continue
                last = frame.pts
                yield frame


class Shown:
    """What `write_clip` takes of the frames of one clip, of the size of the first: the frames
    themselves where they can be encoded as they are, else RGB pixels turned as the container says.
    Colors lose on the way through RGB and back: of a test pattern 6 dB."""

    def __init__(self):
        self.first = None

    def picture(self, frame):
        if self.first is None:
            self.first = (frame.width, frame.height)
            has_even_sides = not (frame.width % 2 or frame.height % 2)
            is_plain = frame.format.name == "yuv420p" and frame.color_range != FULL_RANGE
            self.are_as_is = is_plain and has_even_sides and not media.rotation(frame)
        width, height = self.first
        if self.are_as_is:
            return frame.reformat(width, height, "yuv420p")
        import numpy as np

        turned = -media.rotation(frame) // media.QUARTER
        return np.rot90(frame.to_ndarray(format="rgb24", width=width, height=height), turned)


def write_clip(
    file: IO[bytes],
    form: str,
    pictures: Iterable[tuple[Fraction, object]],
    options: dict[str, str] | None = None,
) -> None:
    """Write H.264, of high quality without other `options`; an odd last row or column is left out.
    `pictures` are (seconds it is shown, RGB pixels or a frame of YUV 4:2:0)."""
    import av
    import numpy as np

    with av.open(file, "w", format=form) as container:
        stream = None
        elapsed = Fraction(0)
        durations = {}
        for shown, picture in pictures:
            frame = picture
            if not isinstance(picture, av.VideoFrame):
                height, width = (side // 2 * 2 for side in picture.shape[:2])
                if not height or not width:
                    raise bad_input(
                        "BUILD-CUT", "", "got pictures of one pixel, expected 2 x 2 or more"
                    )
                frame = av.VideoFrame.from_ndarray(
                    np.ascontiguousarray(picture[:height, :width]), format="rgb24"
                )
            if stream is None:
                quality = options or {"crf": "12"}
                stream = container.add_stream("libx264", rate=TICKS, options=quality)
                stream.height = frame.height
                stream.width = frame.width
                stream.pix_fmt = "yuv420p"
                if frame is picture:
                    for name in ("colorspace", "color_range", "color_primaries", "color_trc"):
                        setattr(stream.codec_context, name, getattr(frame, name))
            frame.pict_type = 0  # the encoder chooses its own key frames
            frame.time_base = Fraction(1, TICKS)
            frame.pts = round(elapsed * TICKS)
            durations[frame.pts] = round((elapsed + shown) * TICKS) - frame.pts
            elapsed += shown
            _mux(container, stream.encode(frame), durations)
        _mux(container, stream.encode(None), durations)


def _mux(container, packets: Iterable, durations: dict[int, int]) -> None:
    for packet in packets:
        packet.duration = durations[packet.pts]
        container.mux(packet)


def main(names: list[str]) -> int:
    """Convert files; return 2 when one was no medium, after the others are converted."""
    failed = 0
    for name in names:
        try:
            print(printable(f"{name}: {convert(Path(name))}"))
        except Failure as failure:
            failed = failure.exit_code
            say(f"{name}: {failure.findings[0].message}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
