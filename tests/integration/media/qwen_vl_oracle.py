"""Run by test_vision_token_oracles.py in an environment that holds the official pre-processors:
answers questions about frames, sizes and pixels. Reads a JSON list of questions from stdin, writes
a JSON list of answers to stdout."""

import json
import sys
import types

import torch

# The wheel on the index may be built for another CUDA:
# its compiled operators do not load, and are not needed.
_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
sys.modules["requests"] = types.ModuleType("requests")  # only for URLs

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402
from qwen_vl_utils import vision_process  # noqa: E402
from torchvision.transforms import functional  # noqa: E402


class Frames:
    """Stands for a decoded video: it has a shape and can be indexed,
    which is all the arithmetic asks for."""

    def __init__(self, count, height, width):
        self.shape = (count, 3, height, width)

    def size(self, axis):
        return self.shape[axis]

    def __getitem__(self, indices):
        return Frames(len(indices), *self.shape[2:])

    def float(self):
        return self


def video(question):
    """{total_frames, fps, height, width, patch, options} -> indices and size,
    or the name of the error."""
    total, height, width = question["total_frames"], question["height"], question["width"]
    vision_process.io.read_video = lambda *_, **__: (
        Frames(total, height, width),
        None,
        {"video_fps": question["fps"]},
    )
    vision_process.transforms.functional.resize = lambda frames, size, **_: Frames(
        frames.shape[0], *size
    )
    try:
        frames, metadata = vision_process.fetch_video(
            {"video": "clip.mp4", **question["options"]},
            question["patch"],
            return_video_metadata=True,
        )
    except (AssertionError, ValueError, ZeroDivisionError) as problem:
        return {"error": type(problem).__name__}
    return {"indices": metadata["frames_indices"].tolist(), "size": list(frames.shape[2:])}


def image(question):
    """{height, width, patch, options} -> size."""
    picture = Image.new("RGB", (question["width"], question["height"]))
    try:
        resized = vision_process.fetch_image(
            {"image": picture, **question["options"]}, question["patch"]
        )
    except (AssertionError, ValueError, ZeroDivisionError) as problem:
        return {"error": type(problem).__name__}
    return {"size": [resized.height, resized.width]}


def processor(question):
    """{frames, height, width, patch, total_pixels, min_pixels} -> tokens by
    transformers' own video processor."""
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    count, height, width = question["frames"], question["height"], question["width"]
    size = {"shortest_edge": question["min_pixels"], "longest_edge": question["total_pixels"] * 2}
    made = Qwen3VLVideoProcessor(size=size, cap_pixels_per_frame=True, do_sample_frames=False)
    tensor = torch.zeros((count, 3, height, width), dtype=torch.uint8)
    grid = made(videos=[tensor], return_tensors="pt")["video_grid_thw"][0]
    return {"tokens": int(grid.prod()) // 4}


def pixels(question):
    """{file, height, width} -> writes <file>.out.npy:
    the frames as torchvision resizes them (uint8, bicubic)."""
    frames = torch.from_numpy(np.load(question["file"])).permute(0, 3, 1, 2)
    size = [question["height"], question["width"]]
    resized = RESIZE(
        frames, size, interpolation=functional.InterpolationMode.BICUBIC, antialias=True
    )
    np.save(question["file"] + ".out.npy", resized.permute(0, 2, 3, 1).numpy())
    return {}


def picture(question):
    """{file, options, out} -> writes `out`:
    the resized pixels that Qwen's loader makes of an image file."""
    resized = vision_process.fetch_image({"image": question["file"], **question["options"]}, 16)
    np.save(question["out"], np.asarray(resized))
    return {}


def frames(question):
    """{files, options, out} -> what becomes of a list of pictures: their times, and in `out` their
    pixels."""
    vision_process.transforms.functional.resize = RESIZE
    video, metadata = vision_process.fetch_video(
        {"video": question["files"], **question["options"]}, 16, return_video_metadata=True
    )
    np.save(question["out"], video.permute(0, 2, 3, 1).numpy().astype(np.uint8))
    return {"times": [index / metadata["fps"] for index in metadata["frames_indices"]]}


RESIZE = functional.resize
ASK = {
    "video": video,
    "image": image,
    "processor": processor,
    "pixels": pixels,
    "picture": picture,
    "frames": frames,
}

json.dump([ASK[question["ask"]](question) for question in json.load(sys.stdin)], sys.stdout)
