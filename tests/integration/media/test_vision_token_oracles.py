"""Our arithmetic against the installed qwen-vl-utils 0.0.14 and
transformers' Qwen3-VL video processor."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracles
import pytest
from clip_files import write_turned_clip
from PIL import Image
from support import called

from cosmos_reason.base.findings import Failure
from cosmos_reason.data.frames import Sampler
from cosmos_reason.data.record_checks import Tally
from cosmos_reason.data.records import id_and_media
from cosmos_reason.data.samples import Media
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def oracle():
    """A function from questions to the answers of the official code,
    which runs in a process of its own."""
    folder = oracles.qwen_vl_utils()

    def ask(questions):
        done = called(
            [sys.executable, str(Path(__file__).parent / "qwen_vl_oracle.py")],
            input=json.dumps(questions),
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def some_options(dice, factor):
    options = {}
    if dice.random() < 0.5:
        options["nframes"] = dice.randint(2, 40)
    elif dice.random() < 0.8:
        options["fps"] = dice.choice([0.5, 1, 2, 4, 3.7])
        if dice.random() < 0.4:
            options["min_frames"] = dice.randint(2, 20)
        if dice.random() < 0.4:
            options["max_frames"] = dice.randint(20, 100)
    token = factor * factor
    if dice.random() < 0.4:
        options["min_pixels"] = dice.randint(4, 200) * token
    if dice.random() < 0.4:
        options["max_pixels"] = dice.randint(100 * token, 900 * token)
    if dice.random() < 0.4:
        options["total_pixels"] = dice.randint(1000 * token, 20000 * token)
    if dice.random() < 0.1:
        options["resized_height"], options["resized_width"] = (
            dice.randint(50, 900),
            dice.randint(50, 900),
        )
    return options


def some_videos(count):
    dice = random.Random(14)
    for _ in range(count):
        patch = dice.choice([14, 16])
        yield {
            "ask": "video",
            "total_frames": dice.choice([dice.randint(1, 60), dice.randint(60, 3000)]),
            "fps": dice.choice([8.0, 10.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0]),
            "height": dice.randint(16, 2200),
            "width": dice.randint(16, 4000),
            "patch": patch,
            "options": some_options(dice, patch * 2),
        }


@pytest.mark.promise
def test_frames_and_sizes_of_videos(oracle):
    questions = list(some_videos(1500))
    failed = 0
    for question, answer in zip(questions, oracle(questions), strict=True):
        options = VisionOptions.from_table(question["options"])
        try:
            indices = sampling.frame_indices(question["total_frames"], question["fps"], options)
            shape = question["height"], question["width"], len(indices)
            ours = {
                "indices": indices,
                "size": list(sampling.frame_size(*shape, options, question["patch"])),
            }
        except Failure:
            failed += 1
            assert "error" in answer or 0 in answer["size"], question
            continue
        assert ours == answer, question
        height, width = answer["size"]
        tokens = len(indices) // 2 * height * width // (2 * question["patch"]) ** 2
        assert sampling.video_tokens(*shape, options, question["patch"]) == tokens
    assert 10 < failed < len(questions) / 2


def test_sizes_of_images(oracle):
    dice = random.Random(15)
    questions = []
    for _ in range(300):
        patch = dice.choice([14, 16])
        options = {
            key: value for key, value in some_options(dice, 2 * patch).items() if "pixels" in key
        }
        size = {"height": dice.randint(1, 1500), "width": dice.randint(1, 1500)}
        questions.append({"ask": "image", **size, "patch": patch, "options": options})
    for question, answer in zip(questions, oracle(questions), strict=True):
        options = VisionOptions.from_table(question["options"])
        try:
            ours = sampling.image_size(
                question["height"], question["width"], options, question["patch"]
            )
        except Failure:
            assert "error" in answer or 0 in answer["size"], question
            continue
        assert list(ours) == answer["size"], question


def test_tokens_of_the_transformers_processor(oracle):
    """Equal budgets give equal tokens;
    below the per-frame floor the two differ by design, so the floor is kept low."""
    dice = random.Random(16)
    questions = []
    for _ in range(60):
        size = {"height": dice.randint(200, 800), "width": dice.randint(200, 800)}
        pixels = {"min_pixels": 4 * 1024, "total_pixels": dice.randint(200, 3000) * 1024}
        asked = {"ask": "processor", "frames": dice.randint(2, 8) * 2, "patch": 16}
        questions.append(asked | size | pixels)
    for question, answer in zip(questions, oracle(questions), strict=True):
        options = VisionOptions(
            min_pixels=question["min_pixels"], total_pixels=question["total_pixels"]
        )
        shape = question["height"], question["width"], question["frames"]
        assert sampling.video_tokens(*shape, options, 16) == answer["tokens"], question


def test_pixels_are_those_of_torchvision(oracle, tmp_path):
    """Bound on a picture with edges and gradients: one grey level nearly everywhere."""
    dice = np.random.default_rng(17)
    gradient = np.linspace(0, 255, 120 * 160).reshape(120, 160, 1) * np.array([1.0, 0.5, 0.2])
    frames = np.stack([gradient, np.roll(gradient, 30, axis=1)]).astype(np.uint8)
    frames[:, 40:80, 50:90] = dice.integers(0, 256, 3, dtype=np.uint8)
    np.save(tmp_path / "frames.npy", frames)
    for height, width in [(64, 64), (256, 320), (96, 224)]:
        file = str(tmp_path / "frames.npy")
        oracle([{"ask": "pixels", "file": file, "height": height, "width": width}])
        official = np.load(tmp_path / "frames.npy.out.npy").astype(int)
        difference = abs(media.resize(frames, height, width).astype(int) - official)
        assert difference.max() <= 3
        assert (difference > 1).mean() < 0.01


def test_still_images_are_those_of_qwens_loader(oracle, tmp_path):
    """Transparency, palettes and grey as it reads them, and an Exif orientation not applied."""
    dice = np.random.default_rng(18)
    picture = Image.fromarray(dice.integers(0, 256, (96, 160, 4), dtype=np.uint8), "RGBA")
    orientation = Image.Exif()
    orientation[media.ORIENTATION] = 6
    for mode in ("RGBA", "RGB", "L", "LA", "P", "1"):
        picture.convert(mode).save(tmp_path / f"{mode}.png")
    picture.convert("RGB").save(tmp_path / "phone.jpg", exif=orientation)
    sampler = Sampler(str(tmp_path), VisionOptions(max_pixels=96 * 96), 16)
    for file in sorted(tmp_path.iterdir()):
        out = tmp_path / f"{file.name}.npy"
        asked = {"ask": "picture", "file": str(file), "options": {"max_pixels": 96 * 96}}
        oracle([asked | {"out": str(out)}])
        ours = sampler.load(Media("image", file.name)).frames[0]
        assert np.array_equal(ours, np.load(out)), file.name


@pytest.mark.parametrize(
    ("count", "rate"),
    [(4, {"sample_fps": 4}), (7, {"sample_fps": 0.5}), (1, {"raw_fps": 30}), (6, {})],
)
def test_a_list_of_pictures_is_shown_whole_as_qwens_loader_shows_it(oracle, tmp_path, count, rate):
    """Their number, times and pixels, where the loader's first resize, to multiples of 64, leaves
    the pictures as they are; `nframes` chooses no more from them than it does there."""
    dice = np.random.default_rng(18)
    names = [f"{number}.png" for number in range(count)]
    for name in names:
        smooth = Image.fromarray(dice.integers(0, 256, (6, 10, 3), dtype=np.uint8))
        smooth.resize((640, 384), Image.BICUBIC).save(tmp_path / name)
    question = {
        "ask": "frames",
        "files": [f"file://{tmp_path / name}" for name in names],
        "options": {"nframes": 2, "total_pixels": 640 * 384 * 2, **rate},
        "out": str(tmp_path / "out.npy"),
    }
    (official,) = oracle([question])
    record = {"id": "a", "video": question["files"], "conversations": [], **rate}
    _, (medium,) = id_and_media(0, record, Tally())
    options = VisionOptions(nframes=2, total_pixels=640 * 384 * 2)
    ours = Sampler("", options, 16).load(medium)
    pixels = np.load(tmp_path / "out.npy").astype(int)
    assert list(ours.seconds) == official["times"]
    assert ours.frames.shape == pixels.shape
    assert abs(ours.frames.astype(int) - pixels).mean() < 1


def test_a_turned_clip_is_shown_as_decord_shows_it(tmp_path):
    """decord, which qwen-vl-utils reads clips with where there is no torchcodec,
    applies the rotation."""
    write_turned_clip(tmp_path / "phone.mp4")
    code = (
        "import decord, numpy, sys; "
        "numpy.save(sys.argv[2], decord.VideoReader(sys.argv[1])[0].asnumpy())"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(oracles.installed("decord-0.6.0", ["--no-deps", "decord==0.6.0"])),
    }
    command = [sys.executable, "-c", code, str(tmp_path / "phone.mp4"), str(tmp_path / "frame.npy")]
    subprocess.run(command, env=environment, check=True)
    ours = media.decode_frames(tmp_path / "phone.mp4", [0])[0].astype(int)
    official = np.load(tmp_path / "frame.npy").astype(int)
    assert ours.shape == official.shape and abs(ours - official).mean() < 5
