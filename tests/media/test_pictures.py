"""Pictures that readers show in different ways, or not at all: refused or told, and the command
that mends them."""

import json
import os
import subprocess

import numpy as np
import pytest
from clip_files import check, half_white, write_clip, write_turned_clip
from PIL import Image

from cosmos_reason.base.findings import Failure
from cosmos_reason.data.frames import Sampler
from cosmos_reason.data.samples import Media
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media import files as media
from cosmos_reason.media.sampling import VisionOptions

DEEP = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 21


def write_deep_png(path):
    Image.fromarray(DEEP).save(path)


def write_float_tiff(path):
    Image.fromarray((DEEP / 65535).astype(np.float32)).save(path)


def write_animation(path):
    frames = [Image.new("RGB", (64, 48), (level, 0, 0)) for level in (0, 100, 200)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, lossless=True)


def write_oriented(path):
    orientation = Image.Exif()
    orientation[media.ORIENTATION] = 6
    Image.fromarray(half_white()).save(path, exif=orientation, quality=95)


FILES = {
    "depth.png": (write_deep_png, "DATA-MEDIA-DEPTH"),
    "thermal.tiff": (write_float_tiff, "DATA-MEDIA-DEPTH"),
    "moving.gif": (write_animation, "DATA-MEDIA-ANIMATED"),
    "moving.webp": (write_animation, "DATA-MEDIA-ANIMATED"),
    "phone.jpg": (write_oriented, "DATA-MEDIA-TURNED"),
    "phone.mp4": (write_turned_clip, "DATA-MEDIA-TURNED"),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A dataset whose record number n has the n-th of FILES as its medium."""
    root = tmp_path_factory.mktemp("pictures")
    records = []
    for name, (write, _) in FILES.items():
        write(root / name)
        turns = [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "A thing."}]
        kind = "video" if name.endswith("mp4") else "image"
        records.append({"id": name, kind: name, "conversations": turns})
    (root / "annotations.json").write_text(json.dumps(records))
    return root


def write_mended_annotations(pictures):
    """The annotations with the clips that the fixes made of animations."""
    records = json.loads((pictures / "annotations.json").read_text())
    for record in records:
        if record.get("image", "").startswith("moving"):
            record["video"] = record.pop("image") + ".mp4"
    (pictures / "mended.json").write_text(json.dumps(records))


def assert_depth_spans_the_whole_range(pictures):
    depth = media.read_image(pictures / "depth.png")
    assert depth.min() == 0 and depth.max() == 255
    assert len(np.unique(depth)) > 200
    assert (pictures / "depth.png.original").exists()


def assert_animation_is_a_clip_of_its_frames(pictures):
    assert media.probe(pictures / "moving.gif.mp4").frames == 3
    red = media.decode_frames(pictures / "moving.gif.mp4", [0, 1, 2])[..., 0].mean(axis=(1, 2))
    assert np.abs(red - [0, 100, 200]).max() < 8


def assert_phone_pictures_are_upright(pictures):
    photo = media.read_image(pictures / "phone.jpg")
    (frame,) = media.decode_frames(pictures / "phone.mp4", [0])
    for upright in (photo, frame):
        assert upright.shape == (64, 32, 3)
        assert upright[:24].mean() > 230 and upright[40:].mean() < 25
    clip = media.probe(pictures / "phone.mp4")
    assert (clip.frames, clip.fps) == (16, pytest.approx(8, rel=0.01))


def test_every_such_picture_is_a_finding_and_its_fix_mends_it(pictures):
    _, found = check(pictures, expect=1)
    for check_id in ("DATA-MEDIA-DEPTH", "DATA-MEDIA-ANIMATED", "DATA-MEDIA-TURNED"):
        named = {name for name, (_, id) in FILES.items() if id == check_id}
        assert set(found[check_id]["data"]["record_ids"]) == named
        subprocess.run(["sh", "-c", found[check_id]["fix"]], check=True, capture_output=True)
    write_mended_annotations(pictures)
    _, found = check(pictures / "mended.json")
    assert not {check_id for check_id in found if check_id.startswith("DATA-MEDIA")}
    assert_depth_spans_the_whole_range(pictures)
    assert_animation_is_a_clip_of_its_frames(pictures)
    assert_phone_pictures_are_upright(pictures)


def test_a_model_is_shown_no_destroyed_picture(tmp_path):
    sampler = Sampler(str(tmp_path), VisionOptions(nframes=4), 16)
    for name in ("depth.png", "thermal.tiff", "moving.gif", "moving.webp"):
        write, check_id = FILES[name]
        write(tmp_path / name)
        with pytest.raises(Failure, match=check_id) as failure:
            sampler.load(Media("image", name))
        assert str(tmp_path / name) in str(failure.value.findings[0].fix)


def test_a_turned_clip_is_shown_upright_and_an_oriented_image_as_stored(tmp_path):
    sampler = Sampler(
        str(tmp_path), VisionOptions(nframes=4, min_pixels=1024, max_pixels=65536), 16
    )
    write_turned_clip(tmp_path / "phone.mp4")
    frame = sampler.load(Media("video", "phone.mp4")).frames[0]
    assert frame.shape == (64, 32, 3)
    assert frame[:24].mean() > 230 and frame[40:].mean() < 25
    write_oriented(tmp_path / "phone.jpg")
    assert sampler.load(Media("image", "phone.jpg")).frames[0].shape == (32, 64, 3)


def test_pages_and_second_views_are_no_animation(tmp_path):
    views = [Image.new("RGB", (64, 48), (level, 0, 0)) for level in (0, 100)]
    views[0].save(tmp_path / "pages.tiff", save_all=True, append_images=views[1:])
    views[0].save(tmp_path / "phone.mpo", save_all=True, append_images=views[1:])
    views[0].save(tmp_path / "still.gif")
    for name in ("pages.tiff", "phone.mpo", "still.gif"):
        assert media.read_image(tmp_path / name).shape == (48, 64, 3)


def test_other_content_of_equal_size_and_time_is_looked_at_again(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    clip = write_clip(tmp_path / "a.mp4")
    written = clip.stat()
    how = ("sampled", VisionOptions(nframes=4), 30.0)
    (_, before), *_ = clip_checks.examine_all({0: clip}, *how, clip_checks.Cache())
    clip.write_bytes(b"\0" * written.st_size)
    os.utime(clip, ns=(written.st_atime_ns, written.st_mtime_ns))
    (_, after), *_ = clip_checks.examine_all({0: clip}, *how, clip_checks.Cache())
    assert before.facts and after.check == "DATA-MEDIA-UNDECODABLE"
