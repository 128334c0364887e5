"""Pictures and clips that readers show in different ways, made into files that all of them show
alike.

    PYTHONPATH=scripts python3 -m cosmos_reason.media.convert FILE...

More than 8 bits per value: scaled to 8, the file's darkest value to 0 and its brightest to 255. An
Exif orientation or the rotation of a clip: applied to the pixels. The file as it was is kept as
FILE.original. An animation becomes a clip beside it, FILE.mp4, which the annotations are to name by
"video". Every other file is left as it is.
"""

from __future__ import annotations

import filecmp
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import IO

from cosmos_reason.base.files import whole_file
from cosmos_reason.base.findings import Failure, bad_input, printable, say
from cosmos_reason.media import files as media

KEPT = ".original"
CONTAINERS = {
    ".mov": "mov",
    ".mkv": "matroska",
}  # besides mp4, those that can say how a clip is turned
TICKS = 90000  # a second, in the clips written
SHOWN_FOR = 100  # ms, of an animation's picture that says nothing


def convert(path: Path) -> str:
    """What was done with the file, in words. Raises Failure for what is no medium."""
    if media.is_image(path):
        return _convert_image(path)
    (_, first), *_ = media.decoded(path, [0])
    if not media.rotation(first):
        return "is shown alike by all readers, nothing done"
    with _replaced(path) as target:
        write_clip(target, CONTAINERS.get(path.suffix.lower(), "mp4"), _upright(path))
    return f"turned upright, the file before is {path.name}{KEPT}"


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
    """A file to write that takes the place of `path`, which is kept under another name."""
    kept = path.with_name(path.name + KEPT)
    if not kept.exists():
        with path.open("rb") as source, whole_file(kept, "wb") as copy:
            shutil.copyfileobj(source, copy)
    elif not filecmp.cmp(path, kept, shallow=False):
        message = "got a file of this name with other content, expected none"
        raise bad_input("FILE-TARGET", kept, message, f"mv {shlex.quote(str(kept))} ELSEWHERE")
    with whole_file(path, "wb") as target:
        yield target


def _scaled(image):
    """8 bits of grey from the darkest to the brightest value; what is no number becomes dark."""
    import numpy as np
    from PIL import Image

    values = np.nan_to_num(np.asarray(image, np.float64), nan=np.nan, posinf=np.nan, neginf=np.nan)
    low = np.nanmin(values)
    high = np.nanmax(values)
    return Image.fromarray(
        np.nan_to_num(255 * (values - low) / ((high - low) or 1)).astype(np.uint8)
    )


def _pictures(image) -> Iterator[tuple[Fraction, object]]:
    """(seconds it is shown, RGB pixels) of each picture of an animation."""
    import numpy as np
    from PIL import ImageSequence

    for picture in ImageSequence.Iterator(image):
        pixels = np.asarray(picture.convert("RGB"))
        yield Fraction(int(picture.info.get("duration") or SHOWN_FOR), 1000), pixels


def _upright(path: Path) -> Iterator[tuple[Fraction, object]]:
    """(seconds it is shown, RGB pixels) of each frame of a clip, turned as its container says."""
    import numpy as np

    facts, shown = media.probe_video(path)
    for index, frame in media.decoded(path, range(facts.frames)):
        pixels = frame.to_ndarray(format="rgb24")
        turned = np.rot90(pixels, -media.rotation(frame) // media.QUARTER)
        yield shown.at(index + 1) - shown.at(index), turned


def write_clip(
    file: IO[bytes],
    form: str,
    pictures: Iterable[tuple[Fraction, object]],
    options: dict[str, str] | None = None,
) -> None:
    """H.264, of high quality without other `options`; an odd last row or column is left out."""
    import av
    import numpy as np

    with av.open(file, "w", format=form) as container:
        stream = None
        elapsed = Fraction(0)
        durations = {}
        for shown, pixels in pictures:
            height, width = (side // 2 * 2 for side in pixels.shape[:2])
            if not height or not width:
                raise bad_input(
                    "BUILD-CUT", "", "got pictures of one pixel, expected 2 x 2 or more"
                )
            if stream is None:
                quality = options or {"crf": "12"}
                stream = container.add_stream("libx264", rate=TICKS, options=quality)
                stream.height = height
                stream.width = width
                stream.pix_fmt = "yuv420p"
            frame = av.VideoFrame.from_ndarray(
                np.ascontiguousarray(pixels[:height, :width]), format="rgb24"
            )
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
    """2 when a file was no medium; the others are converted."""
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
