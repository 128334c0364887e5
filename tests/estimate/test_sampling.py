import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosmos_reason.base.families import FAMILIES
from cosmos_reason.base.findings import Failure
from cosmos_reason.estimate import record_tokens
from cosmos_reason.estimate.text_tokens import Estimate
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions


def test_numbers_published_with_the_recipes():
    eight = VisionOptions(nframes=8)
    assert sampling.frame_size(1080, 1920, 8, eight, 16) == (640, 1152)
    assert sampling.video_tokens(1080, 1920, 8, eight, 16) == 2880
    by_rate = VisionOptions(fps=1, total_pixels=8388608)
    frames = sampling.frame_count(75 * 30, 30, by_rate)
    assert frames == 74
    assert sampling.frame_size(1080, 1920, frames, by_rate, 16) == (352, 608)
    assert sampling.video_tokens(1080, 1920, frames, by_rate, 16) == 7733


def test_the_floor_of_a_frame_beats_the_budget_of_a_clip():
    """60 s of 1080p at 2 fps with the budget that fits 4,096 tokens costs 7,200."""
    options = VisionOptions(fps=2, total_pixels=int(4096 * 1024 * 0.9))
    frames = sampling.frame_count(1800, 30, options)
    assert sampling.video_tokens(1080, 1920, frames, options, 16) == 7200


@given(st.integers(2, 5000), st.integers(1, 200))
def test_indices_are_those_of_torch_linspace(total, half):
    count = min(2 * half, total // 2 * 2)
    indices = sampling.frame_indices(total, 30.0, VisionOptions(nframes=count))
    assert indices == torch.linspace(0, total - 1, count).round().long().tolist()


@given(st.integers(1, 4000), st.floats(0.5, 120), st.floats(0.1, 60))
def test_sampling_by_rate_gives_an_even_number_within_the_clip(total, video_fps, fps):
    try:
        indices = sampling.frame_indices(total, video_fps, VisionOptions(fps=fps))
    except Failure:
        assert total < 2
        return
    assert len(indices) % 2 == 0 and 2 <= len(indices) <= min(total, 768)
    assert indices == sorted(set(indices)) and indices[0] == 0 and indices[-1] == total - 1


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([28, 32]))
def test_resized_sides_are_whole_patches_within_the_budget(height, width, factor):
    low, high = 4 * factor**2, 600 * factor**2
    try:
        resized = sampling.smart_resize(height, width, factor, low, high)
    except Failure as failure:
        assert max(height, width) > 50 * min(height, width), failure
        return
    assert all(side % factor == 0 and side > 0 for side in resized)
    assert math.prod(resized) <= max(high, factor * max(resized))


@pytest.mark.parametrize("nframes, frames", [(8, 7), (2, 1), (5, 3), (16, 15)])
def test_a_clip_shorter_than_the_sample_is_refused(nframes, frames):
    with pytest.raises(Failure, match="DATA-CLIP-TOO-SHORT"):
        sampling.frame_indices(frames, 10, VisionOptions(nframes=nframes))


def test_no_more_frames_are_sampled_than_a_clip_has():
    indices = sampling.frame_indices(11, 1, VisionOptions(fps=60, max_frames=64))
    assert indices == sampling.frame_indices(11, 1, VisionOptions(nframes=10))


@pytest.mark.parametrize(
    ("size", "frames", "options", "fits"),
    [
        # a frame may exceed its floor by a twentieth, however small the budget
        ((448, 480), 8, {"min_pixels": 204800, "total_pixels": 1024}, True),
        ((480, 480), 8, {"min_pixels": 204800, "total_pixels": 1024}, False),
        # nine tenths of 128,000 tokens for a clip, of which a token has two frames
        ((640, 768), 480, {}, True),
        ((672, 768), 480, {}, False),
        # Edge bounds all frames together: 64 tokens of each
        ((256, 256), 4, {"family": FAMILIES["cosmos3_edge"], "max_pixels": 65536}, True),
        ((288, 256), 4, {"family": FAMILIES["cosmos3_edge"], "max_pixels": 65536}, False),
    ],
)
def test_a_frame_of_the_largest_size_stays_as_it_is(size, frames, options, fits):
    options = VisionOptions(nframes=frames, **options)
    assert (sampling.frame_size(*size, frames, options, 16) == size) == fits


def test_sides_of_two_hundred_to_one_are_the_longest():
    assert sampling.smart_resize(8, 1600, 32, 4096, 2**20)
    with pytest.raises(Failure, match="DATA-MEDIA-RATIO"):
        sampling.smart_resize(8, 1601, 32, 4096, 2**20)


def test_half_way_numbers_round_to_even():
    assert sampling.frame_count(100, 10, VisionOptions(nframes=5)) == 4
    assert sampling.frame_count(100, 10, VisionOptions(nframes=7)) == 8


@pytest.mark.parametrize(
    "table, check",
    [
        ({"nframe": 8}, "SPEC-VISION-KEY"),
        ({"nframes": 0}, "SPEC-VISION-VALUE"),
        ({"nframes": True}, "SPEC-VISION-VALUE"),
        ({"fps": "2"}, "SPEC-VISION-VALUE"),
        ({"fps": float("nan")}, "SPEC-VISION-VALUE"),
        ({"fps": 2, "nframes": 8}, "SPEC-VISION-FPS-NFRAMES"),
    ],
)
def test_options_that_cannot_be(table, check):
    with pytest.raises(Failure, match=check):
        VisionOptions.from_table(table)


def test_a_cap_below_the_floor_is_refused():
    with pytest.raises(Failure, match="SPEC-VISION-PIXELS"):
        sampling.frame_size(480, 640, 8, VisionOptions(max_pixels=50000), 16)


def test_frame_markers_cost_one_token_per_character_of_the_time():
    # <0.1 seconds> and <12.4 seconds>: < digits . digit " seconds" >, between two marks of the
    # vision block
    assert record_tokens.timestamp_tokens([0, 1], 8.0, Estimate()) == 3 + 3 + 2
    assert record_tokens.timestamp_tokens([0, 1, 98, 99], 8.0, Estimate()) == (3 + 5) + (4 + 5)


def test_patch_size_comes_from_the_model(tmp_path):
    assert sampling.patch_size("nvidia/Cosmos-Reason1-7B") == 14
    assert sampling.patch_size("hf_model://nvidia/Cosmos3-Nano") == 16
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"patch_size": 14}}))
    assert sampling.patch_size(str(tmp_path)) == 14
