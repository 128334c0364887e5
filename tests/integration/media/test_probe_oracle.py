"""Frames, rate, length and size of real clips as ffprobe sees them when it decodes every frame."""

import json
import shutil
import subprocess
from fractions import Fraction

import numpy as np
import pytest
from clip_files import write_clip

from cosmos_reason.media import files as media

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not (shutil.which("ffprobe") and shutil.which("ffmpeg")), reason="ffmpeg is not installed"
    ),
]

SOURCE = ["-f", "lavfi", "-i", "testsrc=size=178x100:rate=25:duration=3"]
X264 = ["-c:v", "libx264", "-pix_fmt", "yuv420p"]
DROP = "select='not(mod(n,3))+lt(n,20)'"  # 25 frames a second, then every third one
CLIPS = {
    "b_frames.mp4": [*X264, "-bf", "3"],
    "variable_rate.mp4": ["-vf", DROP, "-fps_mode", "vfr", *X264],
    "variable_rate.mkv": ["-vf", DROP, "-fps_mode", "vfr", *X264],
    "fragmented.mp4": [*X264, "-movflags", "frag_keyframe+empty_moov"],
    "ntsc.mov": ["-r", "30000/1001", *X264],
    "stream.ts": X264,
    "flash.flv": X264,
    "vp9.webm": ["-c:v", "libvpx-vp9", "-deadline", "realtime"],
    "mpeg4.avi": ["-c:v", "mpeg4", "-bf", "2"],
    "hevc.mp4": ["-c:v", "libx265", "-pix_fmt", "yuv420p", "-loglevel", "error"],
    "sound.mp4": ["-f", "lavfi", "-i", "sine=duration=4", *X264, "-c:a", "aac"],
    "one_frame.mp4": ["-frames:v", "1", *X264],
    "wrong_name.txt.mp4": ["-f", "matroska", *X264],
}


def ffprobe(path):
    show = "stream=width,height,avg_frame_rate,nb_read_frames,duration:format=duration"
    command = [
        "ffprobe",
        "-v",
        "error",
        "-select_streams",
        "v:0",
        "-count_frames",
        "-show_entries",
        show,
        "-of",
        "json",
    ]
    told = json.loads(
        subprocess.run([*command, path], capture_output=True, text=True, check=True).stdout
    )
    return told["streams"][0], told["format"]


def compare(path):
    facts, (stream, container) = media.probe(path), ffprobe(path)
    assert (facts.width, facts.height) == (stream["width"], stream["height"])
    assert facts.frames == int(stream["nb_read_frames"])
    assert facts.fps == pytest.approx(float(Fraction(stream["avg_frame_rate"])), rel=1e-6)
    last = media.decode_frames(path, [facts.frames - 1])
    assert last.shape == (1, facts.height, facts.width, 3)
    with pytest.raises(media.Failure):
        media.decode_frames(path, [facts.frames])
    return facts, float(stream.get("duration", container["duration"]))


@pytest.mark.parametrize("name", CLIPS)
def test_as_ffprobe_counts(tmp_path, name):
    path = tmp_path / name
    subprocess.run(["ffmpeg", "-v", "error", "-y", *SOURCE, *CLIPS[name], str(path)], check=True)
    facts, seconds = compare(path)
    if "sound" not in name and "wrong" not in name:
        assert facts.seconds == pytest.approx(seconds, abs=3 / facts.fps)


def test_frames_before_the_start_of_an_edit_list(tmp_path):
    facts, _ = compare(write_clip(tmp_path / "a.mp4", frames=40, skipped=15))
    assert facts.frames == 25


def test_the_decoded_pixels_are_those_of_ffmpeg(tmp_path):
    """The sampled frames of a clip of variable rate, by number and not by time."""
    path = tmp_path / "a.mp4"
    subprocess.run(
        ["ffmpeg", "-v", "error", *SOURCE, "-vf", DROP, "-fps_mode", "vfr", *X264, str(path)],
        check=True,
    )
    raw = ["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(
        ["ffmpeg", "-v", "error", "-i", str(path), *raw], capture_output=True, check=True
    )
    every = np.frombuffer(done.stdout, np.uint8).reshape(-1, 100, 178, 3)
    indices = [0, 5, 21, 22, len(every) - 1]
    difference = np.abs(media.decode_frames(path, indices).astype(int) - every[indices].astype(int))
    assert difference.mean() < 1
