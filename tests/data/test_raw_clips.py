"""Clips of Cosmos-Reason1's published sets, made of raw data as its guide makes them.

fixtures/bridge_dataset.tar.gz was written by tensorflow-datasets 4.9.10 with the features of
bridge_dataset 1.0.0: three episodes of 6, 5 and 4 steps in two shards of `val`; the main camera
shows one grey per step, 40, 120 or 180 at first and 8 brighter each, the others 241 to 243.
"""

import json
import shutil
import tarfile
from pathlib import Path

import av
import numpy as np
import pytest
from support import run_script

from cosmos_reason.base import findings as f
from cosmos_reason.data import annotations, raw_clips
from cosmos_reason.media import files as media

RATE = 10
VIDEO = "327/648642/videos/head_color.mp4"
AGIBOT = "clips/327-648642-head_color-12-20.mp4"
KITCHEN = "numpy_256-bridge_data_v2-datacol1_toykitchen1-many_skills-00-val"
SWEEP = "scripted_numpy_256-scripted_raw-sweep-00-val"
HOLO = "clips/R007-7July-DSLR_coarse_3_fine_5_clip.mp4"


def grey_levels(path) -> list[int]:
    frames = [frame for _, frame in media.decoded(path, range(media.probe(path).frames))]
    return [round(float(frame.to_ndarray(format="gray").mean()) / 4) for frame in frames]


def write_numbered(path, frames=50):
    """Frame n is as bright as 4 n tells; 10 a second, 64 x 48, a key frame every 8, with sound."""
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"crf": "1", "g": "8"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            grey = np.full((48, 64), 4 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="gray8")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """Raw data of both sets, as their publishers lay them out."""
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "raw"
    write_numbered(root / "agibot" / "observations" / VIDEO)
    write_numbered(root / "holoassist" / "videos" / "R007-7July-DSLR" / "Export_py" / "pitch.mp4")
    events = [
        {"id": 3, "label": "Coarse grained action", "start": 0.0, "end": 5.0},
        {"id": 5, "label": "Fine grained action", "start": 1.25, "end": 2.0},
    ]
    listed = [{"video_name": "R007-7July-DSLR", "events": events}, {"video_name": "none"}]
    path = root / "holoassist" / raw_clips.EVENTS
    path.write_text(json.dumps(listed))
    return root


def snapshot(root):
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def test_the_frames_that_a_clips_name_tells(raw):
    before = snapshot(raw)
    clips = raw_clips.RawClips(raw)
    cut = clips.clip(AGIBOT).load()
    assert grey_levels(cut) == list(range(12, 20)), "to before the last, as the guide cuts"
    facts = media.probe(cut)
    assert (facts.width, facts.height, facts.fps) == (64, 48, RATE)
    assert cut.name == "327-648642-head_color-12-20.mp4"
    assert snapshot(raw) == before, "nothing is written beside the raw data"


@pytest.mark.parametrize("place", ["327/648642-648649.tar", "327.tar"])
def test_a_raw_video_in_a_tar_as_it_is_published(raw, place):
    observations = raw / "agibot" / "observations"
    with tarfile.open(raw / "packed.tar", "w") as tar:
        tar.add(observations / VIDEO, VIDEO if place == "327.tar" else VIDEO.removeprefix("327/"))
    shutil.rmtree(observations / "327")
    assert isinstance(raw_clips.RawClips(raw).clip(AGIBOT), Path), "what lacks"
    (observations / place).parent.mkdir(exist_ok=True)
    (raw / "packed.tar").rename(observations / place)
    before = snapshot(raw)
    clips = raw_clips.RawClips(raw)
    cut = clips.clip(AGIBOT).load()
    assert grey_levels(cut) == list(range(12, 20))
    assert raw_clips.RawClips(raw).clip(AGIBOT).load() == cut, "unpacked and cut once"
    assert isinstance(clips.clip(AGIBOT.replace("648642", "48642")), Path), "of another episode"
    assert snapshot(raw) == before


def test_the_seconds_that_the_annotations_tell(raw):
    cut = raw_clips.RawClips(raw).clip(HOLO).load()
    assert grey_levels(cut) == list(range(13, 20)) and media.probe(cut).fps == RATE


def test_seconds_of_a_video_in_the_tar_that_is_published(raw):
    videos = raw / "holoassist" / "videos"
    with tarfile.open(raw / "holoassist" / "video_pitch_shifted.tar", "w") as tar:
        tar.add(videos / "R007-7July-DSLR", "./R007-7July-DSLR")
    shutil.rmtree(videos)
    before = snapshot(raw)
    assert grey_levels(raw_clips.RawClips(raw).clip(HOLO).load()) == list(range(13, 20))
    assert snapshot(raw) == before


@pytest.mark.parametrize("name", ["clips/robot.mp4", "../../etc-1-2-3-4.mov", "a-b-c-1-2.webm"])
def test_other_names_are_left_to_the_source(raw, name):
    assert raw_clips.RawClips(raw).clip(name) is None


def test_what_is_wrong_with_the_raw_data(raw):
    clips = raw_clips.RawClips(raw)
    lacks = clips.clip("R007-7July-DSLR_coarse_3_fine_9.mp4")
    assert "Fine grained action 9 of R007-7July-DSLR" in lacks.name and not lacks.exists()
    behind = clips.clip("327-648642-head_color-900-910.mp4")
    assert behind.name == "head_color.mp4 (50 frames long) for 327-648642-head_color-900-910.mp4"
    assert not list(raw.parent.glob("cache/**/*.mp4")), "nothing half made is kept"
    with pytest.raises(f.Failure, match="expected one with raw clips"):
        raw_clips.RawClips(raw / "nowhere")
    (raw / "holoassist" / raw_clips.EVENTS).write_text('[{"events": [{"label": 1}, 2]}]')
    with pytest.raises(f.Failure, match="HoloAssist's list"):
        raw_clips.RawClips(raw).clip(HOLO)


@pytest.fixture
def bridge(raw):
    """BridgeData V2 as `wget` of the guide leaves it."""
    (raw / "bridgev2").mkdir()
    with tarfile.open(Path(__file__).parents[1] / "fixtures" / "bridge_dataset.tar.gz") as tar:
        tar.extractall(raw / "bridgev2", filter="data")
    return raw / "bridgev2" / "bridge_dataset" / "1.0.0"


def bridge_clip(folder, episode, last=47):
    return f"clips/{folder}.{episode}.clip0.frame{last:03d}.mp4"


@pytest.mark.parametrize(
    ("folder", "episode", "greys"),
    [
        (KITCHEN, 0, range(40, 81, 8)),
        (KITCHEN, 12, range(120, 153, 8)),
        (SWEEP, 0, range(180, 205, 8)),
    ],
)
def test_an_episode_of_a_shard_as_a_clip(raw, bridge, folder, episode, greys):
    before = snapshot(raw)
    clip = raw_clips.RawClips(raw).clip(bridge_clip(folder, episode)).load()
    assert [4 * grey for grey in grey_levels(clip)] == list(greys), "of the main camera, all steps"
    facts = media.probe(clip)
    assert (facts.width, facts.height, facts.fps) == (64, 48, 30)
    assert clip.name == bridge_clip(folder, episode).removeprefix("clips/")
    assert snapshot(raw) == before, "nothing is written beside the raw data"


@pytest.mark.parametrize("place", ["bridgev2", "bridgev2/bridge_dataset/1.0.0"])
def test_the_folder_of_the_shards_will_do(raw, bridge, place):
    clips = raw_clips.RawClips(raw / place)
    assert clips.clip(bridge_clip(KITCHEN, 12)).load().is_file()


def test_an_episode_that_no_shard_has(raw, bridge):
    for name in (bridge_clip(KITCHEN, 1), bridge_clip(KITCHEN.replace("val", "train"), 0)):
        lacks = raw_clips.RawClips(raw).clip(name)
        assert isinstance(lacks, Path) and lacks.parent == bridge and not lacks.exists()
        assert name.split("/")[1].split(".")[0] in lacks.name
    shutil.rmtree(bridge)
    lacks = raw_clips.RawClips(raw).clip(bridge_clip(KITCHEN, 0))
    assert lacks.parent == bridge, "where the guide downloads it"


def test_a_benchmark_of_episodes_is_built(raw, bridge, tmp_path):
    names = [bridge_clip(KITCHEN, 0), bridge_clip(SWEEP, 0)]
    table = benchmark(tmp_path / "set", names)
    line = [table, "-o", tmp_path / "out", "--json"]
    (lost,) = json.loads(run_script("build_dataset.py", *line).stdout)["findings"]
    assert (lost["id"], lost["fix"]) == ("BUILD-MEDIA-MISSING", "--raw DIR")
    done = run_script("build_dataset.py", *line, "--raw", raw)
    assert done.returncode == 0, done.stdout + done.stderr
    built, _ = annotations.read(tmp_path / "out" / "train" / "annotations.json")
    paths = [tmp_path / "out" / "train" / item.path for sample in built for item in sample.media]
    assert [media.probe(path).frames for path in paths] == [6, 4]


def test_a_shard_that_is_not_whole(raw, bridge):
    shard = bridge / "bridge_dataset-val.tfrecord-00000-of-00002"
    whole = shard.read_bytes()
    picture = whole.index(b"\xff\xd8\xff")
    for damaged, said in (
        (whole[:-100], f"an end after {len(whole) - 100} bytes"),
        (whole[:5], "no length of a record"),
        (b"\x1f\x8b" + whole, "no length of a record"),
    ):
        shard.write_bytes(damaged)
        with pytest.raises(f.Failure, match=said) as failed:
            raw_clips.RawClips(raw).clip(bridge_clip(KITCHEN, 0))
        (finding,) = failed.value.findings
        assert (finding.id, finding.where) == ("DATA-TFRECORD", str(shard))
    shard.write_bytes(whole[: picture + 20] + b"\0\0" + whole[picture + 22 :])
    with pytest.raises(f.Failure, match="other data than their checksum tells"):
        raw_clips.RawClips(raw).clip(bridge_clip(KITCHEN, 0)).load()
    assert not list(raw.parent.glob("cache/**/*.mp4")), "nothing half made is kept"
    assert raw_clips.RawClips(raw).clip(bridge_clip(KITCHEN, 12)).load().is_file()


def test_shards_of_something_else(raw, bridge):
    shard = bridge / "bridge_dataset-val.tfrecord-00001-of-00002"
    shard.write_bytes(shard.read_bytes().replace(b"data/episode_id", b"data/episode_xy"))
    with pytest.raises(f.Failure, match="expected BridgeData V2's episodes"):
        raw_clips.RawClips(raw).clip(bridge_clip(SWEEP, 0))


def benchmark(folder, names):
    pair = {"question": "Which?", "index2ans": {"A": "left", "B": "right"}, "answer": "B"}
    folder.mkdir()
    rows = [{"video": name, "qa_pairs": pair} for name in names]
    path = folder / "agibot_benchmark_qa_pairs.json"
    path.write_text(json.dumps(rows))
    return path


def test_a_benchmark_is_built_with_its_clips_cut(raw, tmp_path):
    table = benchmark(tmp_path / "set", [AGIBOT, HOLO])
    done = run_script("build_dataset.py", table, "--raw", raw, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    built, _ = annotations.read(tmp_path / "out" / "train" / "annotations.json")
    frames = [
        media.probe(tmp_path / "out" / "train" / item.path).frames
        for sample in built
        for item in sample.media
    ]
    assert frames == [8, 7]


def test_a_clip_past_the_end_of_a_video_in_a_tar_is_named_and_left_out_when_asked(raw, tmp_path):
    observations = raw / "agibot" / "observations"
    with tarfile.open(observations / "327.tar", "w") as tar:
        tar.add(observations / VIDEO, VIDEO)
    shutil.rmtree(observations / "327")
    late = AGIBOT.replace("12-20", "90-95")
    assert late != AGIBOT
    line = [benchmark(tmp_path / "set", [AGIBOT, late]), "-o", tmp_path / "out", "--json"]
    line += ["--raw", raw]
    (lost,) = json.loads(run_script("build_dataset.py", *line).stdout)["findings"]
    assert lost["id"] == "BUILD-MEDIA-MISSING" and lost["fix"] == "--skip-missing"
    (file,) = lost["data"]["files"]
    assert Path(late).name in file and file.startswith(str(observations / "327.tar"))
    assert lost["data"]["record_ids"] == [Path(late).stem]
    skipped = json.loads(run_script("build_dataset.py", *line, "--skip-missing").stdout)
    assert skipped["result"]["written"] == {"train": 1} and skipped["result"]["skipped"] == 1


def test_clips_without_raw_data_are_named_all_at_once(raw, tmp_path):
    absent = [f"clips/327-{number}-head_color-1-5.mp4" for number in range(7)]
    table = benchmark(tmp_path / "set", [AGIBOT, *absent])
    line = [table, "-o", tmp_path / "out", "--json"]
    found = json.loads(run_script("build_dataset.py", *line).stdout)["findings"]
    assert [finding["id"] for finding in found] == ["BUILD-MEDIA-MISSING"]
    assert found[0]["fix"] == "--raw DIR" and found[0]["data"]["count"] == 8
    found = json.loads(run_script("build_dataset.py", *line, "--raw", raw).stdout)["findings"]
    assert [finding["id"] for finding in found] == ["BUILD-MEDIA-MISSING"]
    wanted = [
        str(raw / "agibot/observations/327" / str(number) / "videos/head_color.mp4")
        for number in range(7)
    ]
    assert found[0]["data"]["files"] == wanted
    skipped = run_script("build_dataset.py", *line, "--raw", raw, "--skip-missing")
    assert skipped.returncode == 0 and json.loads(skipped.stdout)["result"]["skipped"] == 7
