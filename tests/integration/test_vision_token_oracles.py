"""Our arithmetic against the installed qwen-vl-utils 0.0.14 and transformers' Qwen3-VL video processor."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import oracle_packages

from cosmos_reason import media, vision_tokens
from cosmos_reason.findings import Failure
from cosmos_reason.vision_tokens import VisionOptions

pytestmark = pytest.mark.integration

PACKAGES = ["qwen-vl-utils==0.0.14", "torchvision==0.28.0"]


def packages():
    """The folder that holds qwen-vl-utils, and torchvision beside it."""
    return oracle_packages("qwen-vl-utils-0.0.14", ["--no-deps", *PACKAGES])


@pytest.fixture(scope="module")
def oracle():
    """A function from questions to the answers of the official code, which runs in a process of its own."""
    folder = packages()

    def ask(questions):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "qwen_vl_oracle.py")],
            input=json.dumps(questions),
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
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
        options["resized_height"], options["resized_width"] = dice.randint(50, 900), dice.randint(50, 900)
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


def test_frames_and_sizes_of_videos(oracle):
    questions = list(some_videos(1500))
    failed = 0
    for question, answer in zip(questions, oracle(questions), strict=True):
        options = VisionOptions.from_table(question["options"])
        try:
            indices = vision_tokens.frame_indices(question["total_frames"], question["fps"], options)
            shape = question["height"], question["width"], len(indices)
            ours = {"indices": indices, "size": list(vision_tokens.frame_size(*shape, options, question["patch"]))}
        except Failure:
            failed += 1
            assert "error" in answer or 0 in answer["size"], question
            continue
        assert ours == answer, question
        tokens = len(indices) // 2 * answer["size"][0] * answer["size"][1] // (2 * question["patch"]) ** 2
        assert vision_tokens.video_tokens(*shape, options, question["patch"]) == tokens
    assert 10 < failed < len(questions) / 2


def test_sizes_of_images(oracle):
    dice = random.Random(15)
    questions = []
    for _ in range(300):
        patch = dice.choice([14, 16])
        options = {key: value for key, value in some_options(dice, 2 * patch).items() if "pixels" in key}
        size = {"height": dice.randint(1, 1500), "width": dice.randint(1, 1500)}
        questions.append({"ask": "image", **size, "patch": patch, "options": options})
    for question, answer in zip(questions, oracle(questions), strict=True):
        options = VisionOptions.from_table(question["options"])
        try:
            ours = vision_tokens.image_size(question["height"], question["width"], options, question["patch"])
        except Failure:
            assert "error" in answer or 0 in answer["size"], question
            continue
        assert list(ours) == answer["size"], question


def test_tokens_of_the_transformers_processor(oracle):
    """Equal budgets give equal tokens; below the per-frame floor the two differ by design, so the floor is kept low."""
    dice = random.Random(16)
    questions = []
    for _ in range(60):
        questions.append(
            {
                "ask": "processor",
                "frames": dice.randint(2, 8) * 2,
                "height": dice.randint(200, 800),
                "width": dice.randint(200, 800),
                "patch": 16,
                "min_pixels": 4 * 1024,
                "total_pixels": dice.randint(200, 3000) * 1024,
            }
        )
    for question, answer in zip(questions, oracle(questions), strict=True):
        options = VisionOptions(min_pixels=question["min_pixels"], total_pixels=question["total_pixels"])
        shape = question["height"], question["width"], question["frames"]
        assert vision_tokens.video_tokens(*shape, options, 16) == answer["tokens"], question


def test_pixels_are_those_of_torchvision(oracle, tmp_path):
    """Bound on a picture with edges and gradients: one grey level nearly everywhere."""
    dice = np.random.default_rng(17)
    gradient = np.linspace(0, 255, 120 * 160).reshape(120, 160, 1) * np.array([1.0, 0.5, 0.2])
    frames = np.stack([gradient, np.roll(gradient, 30, axis=1)]).astype(np.uint8)
    frames[:, 40:80, 50:90] = dice.integers(0, 256, 3, dtype=np.uint8)
    np.save(tmp_path / "frames.npy", frames)
    for height, width in [(64, 64), (256, 320), (96, 224)]:
        oracle([{"ask": "pixels", "file": str(tmp_path / "frames.npy"), "height": height, "width": width}])
        official = np.load(tmp_path / "frames.npy.out.npy").astype(int)
        difference = abs(media.resize(frames, height, width).astype(int) - official)
        assert difference.max() <= 3
        assert (difference > 1).mean() < 0.01
