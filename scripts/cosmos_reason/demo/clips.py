"""The demo's data: short MP4 clips of one moving shape, with three kinds of questions about each,
in LLaVA format."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from cosmos_reason.base.files import write_json

SIZE, FRAMES, FPS = 64, 16, 8
COLOURS = {
    "red": (220, 50, 47),
    "green": (60, 190, 70),
    "blue": (50, 90, 230),
    "yellow": (240, 210, 40),
}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
SHAPES = ("circle", "square")
LETTERS = "ABCD"


@dataclass(frozen=True)
class Scene:
    """What one clip shows: a shape on its way, and perhaps a light that comes on. `radius`,
    `travel` and `cross` (the place on the axis it does not move along) are in pixels, `light_at` is
    0..1 of the clip's time. `brightness` dims the shape: a few clips are nearly dark, so that a
    trained model still has something to fail at."""

    colour: str
    shape: str
    direction: str
    radius: int
    travel: int
    cross: int
    background: int
    light_at: float | None
    brightness: float

    @classmethod
    def draw(cls, rng: random.Random) -> Scene:
        """Return a scene by chance. The order of the draws is part of what a seed means."""
        radius = rng.randint(6, 9)
        colour = rng.choice(list(COLOURS))
        shape = rng.choice(SHAPES)
        direction = rng.choice(list(DIRECTIONS))
        cross = rng.randint(radius, SIZE - radius)
        background = rng.randint(10, 60)
        light_at = rng.uniform(0.1, 0.6) if rng.random() < 0.5 else None
        brightness = rng.uniform(0.08, 0.22) if rng.random() < 0.05 else 1.0
        travel = SIZE - 2 * radius
        return cls(
            colour, shape, direction, radius, travel, cross, background, light_at, brightness
        )

    def frame(self, time: float):
        """Return the picture at `time` in 0..1 as uint8 [SIZE, SIZE, 3]."""
        import numpy as np

        dx, dy = DIRECTIONS[self.direction]
        along = SIZE / 2 + (time - 0.5) * self.travel * (dx + dy)
        x, y = (along, self.cross) if dx else (self.cross, along)
        rows, columns = np.mgrid[0:SIZE, 0:SIZE]
        off_x, off_y = abs(columns - x), abs(rows - y)
        if self.shape == "circle":
            inside = off_x**2 + off_y**2 <= self.radius**2
        else:
            inside = off_x + off_y <= self.radius * 1.3
        picture = np.full((SIZE, SIZE, 3), self.background, np.uint8)
        picture[inside] = np.multiply(COLOURS[self.colour], self.brightness)
        if self.light_at is not None and time >= self.light_at:
            picture[:10, :10] = 255
        return picture


def questions(scene: Scene) -> dict[str, tuple[str, str]]:
    """Return topic -> (question, answer)."""
    letters = dict(zip(COLOURS, LETTERS, strict=True))
    options = "\n".join(f"({letter}) {colour}" for colour, letter in letters.items())
    return {
        "colour": (
            f"What colour is the shape?\n{options}\nAnswer with the option's letter.",
            letters[scene.colour],
        ),
        "light": (
            "Does a white light come on? Answer yes or no.",
            "no" if scene.light_at is None else "yes",
        ),
        "direction": (
            "Which way does the shape move? Answer left, right, up or down.",
            scene.direction,
        ),
    }


def write_clip(path: Path, scene: Scene) -> None:
    """Write the scene as an MP4 file."""
    import av

    with av.open(str(path), "w") as container:
        # With x264's macroblock tree the same pictures give other bytes from time to time.
        options = {"crf": "18", "preset": "veryfast", "x264-params": "mbtree=0"}
        stream = container.add_stream("libx264", rate=FPS, options=options)
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(FRAMES):
            picture = scene.frame(number / (FRAMES - 1))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_split(root: Path, name: str, clips: int, seed: int) -> None:
    """Write `root/<name>/annotations.json` and its `videos/`, with every question of `clips` clips
    of their own."""
    rng = random.Random(f"{seed}-{name}")
    records = []
    (root / name / "videos").mkdir(parents=True)
    for number in range(clips):
        clip = f"{name}-{number:04d}"
        video = f"videos/{clip}.mp4"
        scene = Scene.draw(rng)
        write_clip(root / name / video, scene)
        for topic, (question, answer) in questions(scene).items():
            turns = [
                {"from": "human", "value": f"<video>\n{question}"},
                {"from": "gpt", "value": answer},
            ]
            records.append({"id": f"{clip}-{topic}", "video": video, "conversations": turns})
    write_json(root / name / "annotations.json", records)
