"""What the embedded engine feeds the model, and what the model makes of it,
against the official processors and models of transformers 4.57."""

import json
import os
import sys

import numpy as np
import oracles
import pytest
import torch
from PIL import Image
from support import called

from cosmos_reason.data.annotations import read
from cosmos_reason.data.samples import Media, Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import GRID_KEY, PIXELS_KEY, Encoder, collate
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions

pytestmark = pytest.mark.integration

# torchvision has no build for a torch without CUDA:
# it imports once the two operators it misses are declared.
START = """
import json, sys
import numpy as np, torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from transformers import AutoProcessor
"""
PROCESS = """
from transformers.video_utils import VideoMetadata

model, frames, indices, fps, question, output = sys.argv[1:]
processor = AutoProcessor.from_pretrained(model)
frames = torch.from_numpy(np.load(frames)).permute(0, 3, 1, 2)
messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}]
text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
metadata = VideoMetadata(total_num_frames=16, fps=float(fps), frames_indices=json.loads(indices))
inputs = processor(
    text=[text], videos=[frames], video_metadata=[metadata], do_resize=False,
    do_sample_frames=False, return_tensors="pt"
)
names = ("input_ids", "pixel_values_videos", "video_grid_thw")
np.savez(output, **{name: inputs[name].numpy() for name in names})
"""
# A prompt of a clip and a picture, and the model's logits. transformers 4.52 to 5.17 cut the
# seconds of a step to whole ones: positions are asked for one second, at as many positions per
# second as the clip has per step. A torchvision without a reader of clips gets their frames.
ANSWER = """
from qwen_vl_utils import process_vision_info, vision_process
from transformers import Qwen2_5_VLForConditionalGeneration

folder, frames, fps, picture, options, question, output = sys.argv[1:]
frames = torch.from_numpy(np.load(frames)).permute(0, 3, 1, 2)
vision_process.io.read_video = lambda *_, **__: (frames, None, {"video_fps": float(fps)})
sizes = json.loads(options)
media = [{"type": "video", "video": "clip.mp4", **sizes}]
media.append({"type": "image", "image": picture, **sizes})
messages = [{"role": "user", "content": [*media, {"type": "text", "text": question}]}]
processor = AutoProcessor.from_pretrained(folder)
text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
images, videos, kwargs = process_vision_info(messages, return_video_kwargs=True)
inputs = processor(
    text=[text], images=images, videos=videos, do_resize=False, return_tensors="pt", **kwargs
)
model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
seconds = inputs.pop("second_per_grid_ts")[0]
model.config.vision_config.tokens_per_second *= float(seconds)
grids = inputs["image_grid_thw"], inputs["video_grid_thw"]
positions, _ = model.model.get_rope_index(
    inputs["input_ids"], *grids, [1], inputs["attention_mask"]
)
with torch.no_grad():
    logits = model(**inputs, position_ids=positions).logits
found = {name: value.numpy() for name, value in inputs.items()}
np.savez(output, **found, positions=positions.numpy(), logits=logits.numpy(), seconds=seconds)
"""


def official(program, output, *arguments):
    """What a program prints into `output`, of transformers 4.57 and qwen-vl-utils."""
    environment = {
        "PYTHONPATH": f"{oracles.transformers('4.57')}{os.pathsep}{oracles.qwen_vl_utils()}",
        "HF_HUB_OFFLINE": "1",
    }
    done = called(
        [sys.executable, "-c", START + program, *map(str, arguments), str(output)],
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(output)


@pytest.mark.parametrize("nframes", [pytest.param(8, marks=pytest.mark.promise), 6, 2])
def test_tokens_and_pixels_equal_those_of_the_official_processor(
    tiny_model, dataset, tmp_path, nframes
):
    options = VisionOptions(nframes=nframes, resized_height=64, resized_width=64)
    sample = read(dataset / "train" / "annotations.json")[0][0]
    clip = media.resolve(dataset / "train", sample.media[0].path)
    facts = media.probe(clip)
    indices = sampling.frame_indices(facts.frames, facts.fps, options)
    np.save(tmp_path / "frames.npy", media.decode_frames(clip, indices))
    shown = tmp_path / "frames.npy", json.dumps(indices), facts.fps, sample.turns[0].text
    expected = official(PROCESS, tmp_path / "out.npz", tiny_model, *shown)
    encoder = Encoder(
        models.load_tokenizer(tiny_model), tiny_model, str(dataset / "train"), options, 1000
    )
    ours = encoder.encode_prompt(sample.turns[:1], sample.media)
    assert ours["input_ids"].tolist() == expected["input_ids"][0].tolist()
    assert ours["video_grid_thw"].tolist() == expected["video_grid_thw"].tolist()
    assert (
        np.abs(ours["pixel_values_videos"].numpy() - expected["pixel_values_videos"]).max() < 1e-6
    )


@pytest.mark.parametrize("options", [{"nframes": 8}, {"fps": 3}, {"fps": 1, "min_frames": 2}])
def test_qwen2_5_vl_is_given_the_official_tokens_pixels_and_positions_and_answers_alike(
    tiny_reason1, dataset, tmp_path, options
):
    """A clip of 2 seconds: 0.5, 0.67 and 2 seconds a step, in windows of two tokens a side. The
    frames are resized beforehand, since the two filters differ."""
    clip = dataset / "train" / "videos" / "train-0000.mp4"
    facts = media.probe(clip)
    frames = media.resize(media.decode_frames(clip, range(facts.frames)), 56, 196)
    np.save(tmp_path / "frames.npy", frames)
    Image.fromarray(frames[3]).save(tmp_path / "still.png")
    options |= {"resized_height": 56, "resized_width": 196}
    shown = tmp_path / "frames.npy", facts.fps, tmp_path / "still.png", json.dumps(options)
    expected = official(ANSWER, tmp_path / "out.npz", tiny_reason1, *shown, "What is it?")
    tokenizer = models.load_tokenizer(tiny_reason1)
    encoder = Encoder(tokenizer, tiny_reason1, "", VisionOptions.from_table(options), 1000)
    items = Media("video", str(clip)), Media("image", str(tmp_path / "still.png"))
    ours = encoder.encode_prompt([Turn("user", "What is it?")], items)
    assert ours["input_ids"].tolist() == expected["input_ids"][0].tolist()
    assert ours["position_ids"].T.tolist() == expected["positions"][:, 0].tolist()
    for kind in ("image", "video"):
        assert ours[GRID_KEY[kind]].tolist() == expected[GRID_KEY[kind]].tolist()
        pixels = ours[PIXELS_KEY[kind]].numpy()
        assert np.abs(pixels - expected[PIXELS_KEY[kind]]).max() < 1e-5
    model = models.load_model(tiny_reason1, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        logits = model(**collate([ours], 0, "left")).logits
    assert np.abs(logits.numpy() - expected["logits"]).max() < 1e-4
