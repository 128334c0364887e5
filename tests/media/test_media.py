import os

import numpy as np
import pytest
from clip_files import write_clip
from PIL import Image

from cosmos_reason.base.findings import Failure
from cosmos_reason.media import files as media


def test_probe_of_a_clip(tmp_path):
    facts = media.probe(write_clip(tmp_path / "a.mp4", frames=24, width=96, height=64, rate=12))
    assert facts == media.MediaFacts("video", 96, 64, 24, 12.0, 2.0, 24)


@pytest.mark.parametrize(
    "suffix, codec", [("mp4", "libx264"), ("mkv", "libx264"), ("avi", "mpeg4"), ("webm", "vp9")]
)
def test_the_exact_frames_are_decoded(tmp_path, suffix, codec):
    path = write_clip(tmp_path / f"a.{suffix}", frames=40, codec=codec)
    wanted = [0, 1, 17, 17, 39, 5]
    levels = media.decode_frames(path, wanted).mean(axis=(1, 2, 3))
    assert np.abs(levels - np.array(wanted) * 6).max() < 3


def test_frames_hidden_by_an_edit_list_are_not_counted(tmp_path):
    path = write_clip(tmp_path / "a.mp4", frames=40, skipped=15)
    facts = media.probe(path)
    assert (facts.frames, facts.declared_frames) == (25, 40)
    assert abs(media.decode_frames(path, [0]).mean() - 15 * 6) < 3
    with pytest.raises(Failure, match="no frame 25"):
        media.decode_frames(path, [24, 25])


def broken_files(folder):
    clip = write_clip(folder / "whole.mp4").read_bytes()
    (folder / "truncated.mp4").write_bytes(clip[: len(clip) // 2])
    (folder / "empty.mp4").touch()
    (folder / "garbage.mp4").write_bytes(bytes(range(256)) * 64)
    (folder / "text.mp4").write_text("not a clip")
    (folder / "half.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    (folder / "folder.mp4").mkdir()
    os.mkfifo(folder / "fifo.mp4")
    names = "truncated.mp4 empty.mp4 garbage.mp4 text.mp4 half.png folder.mp4 fifo.mp4 none.mp4"
    return names.split()


def test_whatever_is_no_medium_is_a_finding(tmp_path):
    for name in broken_files(tmp_path):
        for read in (media.probe, lambda path: media.decode_frames(path, [0]), media.read_image):
            with pytest.raises(Failure) as caught:
                read(tmp_path / name)
            assert caught.value.findings[0].id.startswith("DATA-MEDIA-"), name
            assert caught.value.exit_code == 2


CODECS = {
    "mkv": "libx264",
    "webm": "vp9",
    "ts": "libx264",
    "avi": "mpeg4",
    "mp4": "libx264",
    "flv": "libx264",
}


@pytest.mark.parametrize("suffix", CODECS)
def test_a_file_cut_short_is_no_clip(tmp_path, suffix):
    options = {"movflags": "faststart"} if suffix == "mp4" else {}
    path = write_clip(tmp_path / f"a.{suffix}", frames=64, codec=CODECS[suffix], options=options)
    assert media.probe(path).frames == 64
    whole = path.read_bytes()
    for part in (0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * part) // 2 * 2 + 1])
        with pytest.raises(Failure, match="ends before its container"):
            media.probe(path)


@pytest.mark.parametrize(
    "name", ["2024-01-01T10:00:00.mp4", "a b.mp4", os.fsdecode(b"n\xff.mp4"), "file:x.mp4"]
)
def test_any_file_name_is_a_file_name(tmp_path, name, monkeypatch):
    write_clip(tmp_path / "a.mp4").rename(tmp_path / name)
    assert media.probe(tmp_path / name).frames == 16
    monkeypatch.chdir(tmp_path)
    assert media.probe(name).frames == 16


def test_texts_and_playlists_are_no_clips(tmp_path):
    write_clip(tmp_path / "secret.mp4")
    (tmp_path / "page.txt").write_text("hello\n" * 100)
    (tmp_path / "x.mp4").write_text("ffconcat version 1.0\nfile secret.mp4\n")
    (tmp_path / "y.mp4").write_text("#EXTM3U\n#EXTINF:1,\nsecret.mp4\n#EXT-X-ENDLIST\n")
    write_clip(
        tmp_path / "old.mpg", codec="mpeg1video", rate=25
    )  # its end cannot be told from a cut
    for name in ("page.txt", "x.mp4", "y.mp4", "old.mpg"):
        for look in (media.probe, media.frame_rate):
            with pytest.raises(Failure, match="DATA-MEDIA-UNDECODABLE"):
                look(tmp_path / name)


def test_looking_at_frames_keeps_none(tmp_path):
    path = write_clip(tmp_path / "a.mp4", frames=20)
    frames = media.decoded(path, [3, 19, 3])
    assert [number for number, _ in frames] == [3, 19]


def test_images_are_known_by_content_and_laid_over_white(tmp_path):
    Image.new("RGBA", (20, 10), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    os.rename(tmp_path / "clear.png", tmp_path / "clear.mp4")
    assert media.probe(tmp_path / "clear.mp4") == media.MediaFacts("image", 20, 10, 1, None, None)
    assert media.read_image(tmp_path / "clear.mp4").shape == (10, 20, 3)
    assert (media.read_image(tmp_path / "clear.mp4") == 255).all()
    Image.new("L", (6, 4), 7).save(tmp_path / "grey.jpg")
    assert media.read_image(tmp_path / "grey.jpg").shape == (4, 6, 3)


def test_resize_keeps_equal_sizes_and_plain_colours():
    frames = np.full((2, 48, 64, 3), 37, np.uint8)
    assert media.resize(frames, 48, 64) is frames
    resized = media.resize(frames, 96, 32)
    assert resized.shape == (2, 96, 32, 3) and resized.dtype == np.uint8
    assert (resized == 37).all()


def test_names_are_resolved_below_the_media_path(tmp_path):
    assert media.resolve(tmp_path, "clips/../a.mp4") == tmp_path / "clips/../a.mp4"
    assert str(media.resolve("", "/data/a.mp4")) == "/data/a.mp4"
    assert str(media.resolve(tmp_path, "/data/a.mp4")) == "/data/a.mp4"
    assert media.resolve(tmp_path, "..dots.mp4") == tmp_path / "..dots.mp4"
    for name in ("../a.mp4", "clips/../../a.mp4", "..", "nul\0.mp4"):
        with pytest.raises(Failure, match="DATA-MEDIA-ESCAPE"):
            media.resolve(tmp_path, name)


def test_a_dicom_file_is_called_one_whatever_it_is_named(tmp_path):
    for name in ("a.dcm", "a.png", "a.mp4"):
        path = tmp_path / name
        path.write_bytes(bytes(128) + b"DICM" + bytes(64))
        with pytest.raises(Failure, match=r"DATA-MEDIA-UNDECODABLE.*got a DICOM file"):
            media.probe_image(path) if name == "a.png" else media.probe_video(path)
