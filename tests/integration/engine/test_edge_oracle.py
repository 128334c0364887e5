"""Cosmos3-Edge in the embedded engine against the processor of transformers that it was published
for: tokens, pixels, and the sizes of frames and images."""

import json
import os
import subprocess
import sys

import numpy as np
import oracles
import pytest
import torch

from cosmos_reason.base.families import cosmos3_edge
from cosmos_reason.data.annotations import read
from cosmos_reason.data.samples import Turn
from cosmos_reason.engine import model as models
from cosmos_reason.engine.encode import Encoder
from cosmos_reason.estimate import record_tokens
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions

pytestmark = pytest.mark.integration

# torchvision has no build for a torch without CUDA: it imports once the two operators it misses are
# declared. 5.17's processor takes num_frames only beside an fps of None, and asks for the metadata
# that it needs only where it is called by apply_chat_template.
PROCESS = """
import json, sys
import numpy as np, torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from transformers import AutoProcessor
from transformers.models.cosmos3_edge.image_processing_pil_cosmos3_edge import smart_resize as image
from transformers.models.cosmos3_edge.video_processing_cosmos3_edge import smart_resize as video
from transformers.video_utils import VideoMetadata

model, frames, fps, asked, question, sizes, output = sys.argv[1:]
processor = AutoProcessor.from_pretrained(model)
frames = torch.from_numpy(np.load(frames)).permute(0, 3, 1, 2)
messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}]
metadata = VideoMetadata(
    total_num_frames=len(frames), fps=float(fps), frames_indices=list(range(len(frames)))
)
found = {}
for number, options in enumerate(json.loads(asked)):
    text = processor.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=options["thinks"]
    )
    processor.video_processor.fps = options.get("fps")
    processor.video_processor.num_frames = options.get("nframes")
    inputs = processor(
        text=[text], videos=[frames], video_metadata=[metadata], do_sample_frames=True,
        return_metadata=True, return_tensors="pt",
    )
    for name in ("input_ids", "pixel_values_videos", "video_grid_thw"):
        found[f"{number}.{name}"] = inputs[name].numpy()
rows = []
for frames, height, width, total in json.loads(sizes):
    most = {"min_pixels": 4096, "max_pixels": total}
    clip = video(frames, height, width, temporal_factor=1, factor=32, **most)
    picture = image(
        1, height, width, temporal_factor=1, factor=32, min_pixels=65536, max_pixels=4096 * 4096
    )
    rows.append((*clip, *picture))
np.savez(output, sizes=np.array(rows), **found)
"""


def test_tokens_pixels_and_sizes_equal_those_of_its_processor(tiny_edge_model, dataset, tmp_path):
    folder = dataset / "train"
    sample = read(str(folder / "annotations.json"))[0][0]
    source = folder / sample.media[0].path
    facts = media.probe(source)
    np.save(tmp_path / "frames.npy", media.decode_frames(source, list(range(facts.frames))))
    asked = [
        {"nframes": 6, "thinks": False},
        {"nframes": 5, "thinks": True},  # an odd number: a token covers one frame
        {"fps": 2, "thinks": False},
        {"fps": 3.3, "thinks": False},
    ]
    rng = np.random.default_rng(0)
    sizes = []
    while len(sizes) < 2000:
        height, width = int(rng.integers(17, 2200)), int(rng.integers(17, 4000))
        if max(height, width) < 190 * min(height, width):
            sizes.append([int(rng.integers(1, 64)), height, width, int(10 ** rng.uniform(4, 7.6))])
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tiny_edge_model), str(tmp_path / "frames.npy"),
         str(facts.fps), json.dumps(asked), "Which way?", json.dumps(sizes),
         str(tmp_path / "out.npz")],
        env=os.environ | {"PYTHONPATH": str(oracles.qwen_vl_utils()), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.load(tmp_path / "out.npz")
    tokenizer = models.load_tokenizer(tiny_edge_model)
    for number, options in enumerate(asked):
        thinks = options.pop("thinks")
        shown = VisionOptions(**options)
        encoder = Encoder(tokenizer, tiny_edge_model, str(folder), shown, 4096)
        turns = [Turn("user", "Which way?")]
        text = encoder.render(
            turns, sample.media, [encoder.sampler.load(sample.media[0])], True, thinks
        )
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == (
            theirs[f"{number}.input_ids"][0].tolist()
        )
        ours = encoder.encode_prompt(turns, sample.media)
        assert ours["video_grid_thw"].tolist() == theirs[f"{number}.video_grid_thw"].tolist()
        pixels = torch.from_numpy(theirs[f"{number}.pixel_values_videos"])
        assert torch.allclose(ours["pixel_values_videos"], pixels, atol=1e-6)
        grid = theirs[f"{number}.video_grid_thw"][0]
        options = VisionOptions(**options, family=cosmos3_edge.FAMILY)
        indices = sampling.frame_indices(facts.frames, facts.fps, options)
        assert len(indices) == grid[0]
        tokens = sampling.video_tokens(facts.height, facts.width, len(indices), options, 16)
        assert tokens == grid.prod() // 4
    for (frames, height, width, total), sized in zip(sizes, theirs["sizes"].tolist(), strict=True):
        options = VisionOptions(total_pixels=total, family=cosmos3_edge.FAMILY)
        clip = sampling.frame_size(height, width, frames, options, 16)
        picture = sampling.image_size(height, width, VisionOptions(family=cosmos3_edge.FAMILY), 16)
        assert [*clip, *picture] == sized, (frames, height, width, total)


def test_predicted_tokens_are_those_that_are_encoded(tiny_edge_model, dataset, tmp_path):
    """From the facts of check_dataset to the engine's own samples, record by record."""
    facts = tmp_path / "dataset_facts.json"
    done = subprocess.run(
        [sys.executable, "scripts/check_dataset.py", str(dataset / "train"), "--facts", str(facts),
         "--model", str(tiny_edge_model)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert facts.is_file(), done.stderr
    spec = {
        "policy": {"model_name_or_path": str(tiny_edge_model)},
        "custom": {"vision": {"nframes": 6, "total_pixels": 200_000}},
        "train": {"train_policy": {"type": "sft", "system_prompt": "Be brief."}},
    }
    told = [record.total for record in record_tokens.tokens_for_spec(facts, spec)]
    tokenizer = models.load_tokenizer(tiny_edge_model)
    shown = VisionOptions(nframes=6, total_pixels=200_000)
    encoder = Encoder(tokenizer, tiny_edge_model, str(dataset / "train"), shown, 4096)
    samples = read(str(dataset / "train" / "annotations.json"))[0]
    encoded = [encoder.encode_training(sample, "Be brief.") for sample in samples]
    assert told == [len(one["input_ids"]) for one in encoded]
