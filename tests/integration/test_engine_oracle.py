"""What the embedded engine feeds the model, against the official Qwen3-VL processor of transformers 4.57."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from test_omni_oracle import oracle as transformers_oracle
from test_vision_token_oracles import packages as torchvision

from cosmos_reason import media, vision_tokens
from cosmos_reason.annotations import read
from cosmos_reason.transformers_engine import model as models
from cosmos_reason.transformers_engine.inputs import Encoder
from cosmos_reason.vision_tokens import VisionOptions

pytestmark = pytest.mark.integration

# torchvision has no build for a torch without CUDA: it imports once the two operators it misses are declared.
PROCESS = """
import json, sys
import numpy as np, torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from transformers import AutoProcessor
from transformers.video_utils import VideoMetadata

model, frames, indices, fps, question, output = sys.argv[1:]
processor = AutoProcessor.from_pretrained(model)
frames = torch.from_numpy(np.load(frames)).permute(0, 3, 1, 2)
messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}]
text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
metadata = VideoMetadata(total_num_frames=16, fps=float(fps), frames_indices=json.loads(indices))
inputs = processor(text=[text], videos=[frames], video_metadata=[metadata], do_resize=False, do_sample_frames=False,
                   return_tensors="pt")
np.savez(output, **{name: inputs[name].numpy() for name in ("input_ids", "pixel_values_videos", "video_grid_thw")})
"""


@pytest.mark.parametrize("nframes", [8, 6, 2])
def test_tokens_and_pixels_equal_those_of_the_official_processor(tiny_model, dataset, tmp_path, nframes):
    options = VisionOptions(nframes=nframes, resized_height=64, resized_width=64)
    sample = read(dataset / "train" / "annotations.json")[0][0]
    clip = media.resolve(dataset / "train", sample.media[0].path)
    facts = media.probe(clip)
    indices = vision_tokens.frame_indices(facts.frames, facts.fps, options)
    np.save(tmp_path / "frames.npy", media.decode_frames(clip, indices))
    question, output = sample.turns[0].text, tmp_path / "out.npz"
    environment = {"PYTHONPATH": f"{transformers_oracle('4.57')}{os.pathsep}{torchvision()}", "HF_HUB_OFFLINE": "1"}
    arguments = [tiny_model, tmp_path / "frames.npy", json.dumps(indices), facts.fps, question, output]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    official = np.load(output)
    encoder = Encoder(models.load_tokenizer(tiny_model), tiny_model, str(dataset / "train"), options, 1000)
    ours = encoder.encode_prompt(sample.turns[:1], sample.media)
    assert ours["input_ids"].tolist() == official["input_ids"][0].tolist()
    assert ours["video_grid_thw"].tolist() == official["video_grid_thw"].tolist()
    assert np.abs(ours["pixel_values_videos"].numpy() - official["pixel_values_videos"]).max() < 1e-6
