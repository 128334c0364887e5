"""Clips that not all trainers read alike are written anew, with the times of their frames."""

import json

import av
import pytest
from clip_files import write_clip, write_turned_clip
from PIL import Image
from support import run_script

from cosmos_reason.media import convert
from cosmos_reason.media.files import probe, probe_video


def stamps(path):
    with av.open(str(path)) as container:
        times = [float(frame.time) for frame in container.decode(video=0)]
    return [time - times[0] for time in times]


@pytest.fixture
def clips(tmp_path):
    source = tmp_path / "src"
    write_clip(source / "plain.mp4")
    write_clip(source / "old.avi", codec="mpeg4", tint=10)
    write_clip(source / "windows.wmv", codec="wmv2", tint=20)
    write_clip(source / "disc.mpg", codec="mpeg2video", rate=25, tint=30)
    write_turned_clip(source / "turned.mp4")
    whole = write_clip(source / "cut.mkv", frames=60, tint=40).read_bytes()
    (source / "cut.mkv").write_bytes(whole[: len(whole) * 3 // 4])
    pictures = [Image.new("RGB", (64, 48), (60 * n, 0, 0)) for n in range(4)]
    shown = {"save_all": True, "append_images": pictures[1:], "duration": [100, 300, 100, 100]}
    pictures[0].save(source / "moves.gif", **shown)
    return source


def test_every_clip_becomes_one_that_all_read(clips, tmp_path):
    names = sorted(path.name for path in clips.iterdir())
    rows = [{"video": name, "question": "?", "answer": name} for name in names]
    (clips / "rows.json").write_text(json.dumps(rows))
    words = (
        clips / "rows.json",
        "-o",
        tmp_path / "out",
        "--transcode",
        tmp_path / "h264",
        "--json",
    )
    done = run_script("build_dataset.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["BUILD-TRANSCODED"]["data"]["count"] == len(names) - 1
    made = {path.stem: path for path in (tmp_path / "h264").rglob("*.mp4")}
    assert made.keys() == {name.rpartition(".")[0] for name in names} - {"plain"}
    for name in ("old.avi", "windows.wmv", "disc.mpg", "moves.gif"):
        before, after = stamps(clips / name), stamps(made[name.rpartition(".")[0]])
        step = before[1] - before[0]
        assert len(before) == len(after) and all(
            abs(one - other) <= step / 2 for one, other in zip(before, after, strict=True)
        )
    assert (probe(made["turned"]).width, probe_video(made["turned"])[0].turned) == (32, 0)
    assert 10 < probe(made["cut"]).frames < 60
    records = json.loads((tmp_path / "out" / "train" / "annotations.json").read_text())
    assert [record["id"] for record in records] == [name.rpartition(".")[0] for name in names]
    for record in records:
        with av.open(str(tmp_path / "out" / "train" / record["video"])) as container:
            assert container.streams.video[0].codec.name == "h264"


def test_a_run_goes_on_where_it_was_cut_off(clips, tmp_path):
    paths = [clips / "old.avi", clips / "plain.mp4", clips / "missing.mp4"]
    first = convert.transcode_all(paths, tmp_path / "h264")
    assert first.keys() == {clips / "old.avi"}
    (target, _) = first[clips / "old.avi"]
    before = target.stat().st_mtime_ns
    assert convert.transcode_all(paths, tmp_path / "h264") == first
    assert target.stat().st_mtime_ns == before
    write_clip(clips / "old.avi", codec="mpeg4", frames=30)
    assert convert.transcode_all(paths, tmp_path / "h264")[clips / "old.avi"][0] != target
