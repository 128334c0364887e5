"""The dataset check on data in S3:
one listing for what is there, fetching only for what is opened."""

import json
from pathlib import Path

import pytest
from clip_files import record, write_dataset
from PIL import Image
from support import run_script

from cosmos_reason.data.frames import Sampler
from cosmos_reason.data.samples import Media
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.remote import s3

pytestmark = pytest.mark.integration


def check(*args, expect=0, **env):
    done = run_script("check_dataset.py", *args, "--json", env=env)
    assert done.returncode == expect, done.stdout + done.stderr
    document = json.loads(done.stdout)
    found = {finding["id"]: finding["data"].get("record_ids") for finding in document["findings"]}
    found.pop("DATA-SIZE", None)  # every dataset of a test is small
    return document["result"], found


def send(root, uri):
    for path in root.rglob("*"):
        if path.is_file():
            s3.send(path, s3.join(uri, path.relative_to(root).as_posix()))


def fetched(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache" / "s3").rglob("*") if path.is_file())


@pytest.fixture
def root(bucket, tmp_path):
    """A prefix with five records: a sound clip, an empty one, one that does not decode, none,
    and one elsewhere."""
    records = [record(number) for number in range(5)]
    records[4]["video"] = f"{bucket}/other/far.mp4"
    data = write_dataset(tmp_path / "data", records)
    clips = data / "clips"
    (clips / "1.mp4").write_bytes(b"")
    (clips / "2.mp4").write_bytes(b"no clip")
    (clips / "3.mp4").unlink()
    s3.send(clips / "4.mp4", s3.join(bucket, "other/far.mp4"))
    (clips / "4.mp4").unlink()
    (clips / "unused.mp4").write_bytes(b"x" * 1000)
    send(data, s3.join(bucket, "train"))
    return s3.join(bucket, "train")


def test_a_root_in_s3(root, tmp_path):
    written = ("--facts", tmp_path / "facts.json", "--html", tmp_path / "page.html")
    result, found = check(root, *written, expect=1)
    assert found == {
        "DATA-MEDIA-EMPTY": ["r1"],
        "DATA-MEDIA-UNDECODABLE": ["r2"],
        "DATA-MEDIA-MISSING": ["r3"],
        "DATA-MEDIA-OUTSIDE": ["r4"],
    }
    train = result["train"]
    assert train["annotations"] == f"{root}/annotations.json" and train["media_path"] == root
    assert (train["clips_with_problems"], train["media"]["frames"]["max"]) == (3, 16)
    assert fetched(tmp_path) == ["0.mp4", "2.mp4", "annotations.json", "far.mp4"]
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") == 2


def test_listing_fetches_no_media(root, tmp_path):
    result, found = check(root, "--decode", "none", expect=1)
    assert found["DATA-MEDIA-UNOPENED"] == ["r0", "r2", "r4"]
    assert found["DATA-MEDIA-MISSING"] == ["r3"]
    assert result["train"]["clips_with_problems"] == 2 and fetched(tmp_path) == ["annotations.json"]


def test_local_annotations_of_media_in_s3_and_an_archive_there(root, tmp_path):
    import tarfile

    data = write_dataset(tmp_path / "more", [record(0), record(1)])
    _, found = check(data, "--media-path", f"{root}/", expect=1)
    assert found["DATA-MEDIA-EMPTY"] == ["r1"]
    with tarfile.open(tmp_path / "videos.tar.gz", "w:gz") as tar:
        tar.add(data / "clips", "clips")
    s3.send(data / "annotations.json", s3.join(root, "packed/annotations.json"))
    s3.send(tmp_path / "videos.tar.gz", s3.join(root, "packed/videos.tar.gz"))
    result, found = check(f"{root}/packed")
    assert not found and result["train"]["media_path"].endswith("videos.tar.gz")


def test_a_clip_is_kept_once_however_often_it_is_named(bucket, tmp_path):
    """By a check, by a launch that links to it, and below another prefix."""
    data = write_dataset(tmp_path / "data", [record(number) for number in range(3)])
    for prefix in ("first", "second"):
        send(data, s3.join(bucket, prefix))
        check(s3.join(bucket, prefix))
        linked = s3.snapshot(s3.join(bucket, prefix), ["*"])
        for clip in sorted((data / "clips").iterdir()):
            copy = linked / "clips" / clip.name
            assert copy.is_symlink() and copy.read_bytes() == clip.read_bytes()
    cache = tmp_path / "cache" / "s3"
    kept = [path.name for path in cache.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sorted(kept) == ["0.mp4", "1.mp4", "2.mp4", "annotations.json"]


def test_pictures_of_a_video_as_a_list_and_as_a_folder(bucket, tmp_path):
    for number in range(6):
        (tmp_path / "a" / "six").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48), (number, 0, 0)).save(tmp_path / "a" / "six" / f"{number}.png")
    names = [f"six/{number}.png" for number in range(4)]
    records = [record(0, video=names, sample_fps=2), record(1, video="six", fps=6)]
    records.append(record(2, video=[*names, "six/9.png"], sample_fps=2))
    (tmp_path / "a" / "annotations.json").write_text(json.dumps(records))
    send(tmp_path / "a", s3.join(bucket, "frames"))
    root = s3.join(bucket, "frames")
    result, found = check(root, "--nframes", "4", expect=1)
    assert found == {"DATA-MEDIA-MISSING": ["r2"]}
    assert result["train"]["media"]["frames"] == {"min": 4, "p50": 6, "max": 6}
    listed, folder = Media("video", names[0], tuple(names), 2.0), Media("video", "six", (), 6.0)
    sampler = Sampler(root, VisionOptions(nframes=4), 16)
    assert sampler.load(listed).seconds == (0, 0.5, 1.0, 1.5)
    assert sampler.load(folder).seconds == tuple(index / 6 for index in (0, 2, 3, 5))
    copied = s3.snapshot(root, ["*"], {"six", "annotations.json"})
    assert len(list((copied / "six").iterdir())) == 6


def test_a_conversation_folder(bucket, tmp_path):
    (write_dataset(tmp_path / "a", [record(0)]) / "x").mkdir()
    done = run_script(
        "build_dataset.py", tmp_path / "a", "-o", tmp_path / "out", "--format", "cosmos-reason-v1.0"
    )
    assert done.returncode == 0, done.stderr
    send(tmp_path / "out" / "train", s3.join(bucket, "talks"))
    result, found = check(s3.join(bucket, "talks"))
    assert not found and result["train"]["format"] == "cosmos-reason-v1.0"


def test_what_is_not_there_and_who_does_not_answer(root, bucket, tmp_path):
    assert set(check(f"{bucket}/nothing", expect=2)[1]) == {"FILE-MISSING"}
    assert set(check(f"{root}/none.json", expect=2)[1]) == {"FILE-MISSING"}
    assert set(check("s3:///x", expect=2)[1]) == {"S3-NAME"}
    (Path(tmp_path) / "a.json").write_text(json.dumps([record(0, video=f"{bucket}/clips/0.mp4")]))
    for named in (root, tmp_path / "a.json"):
        _, found = check(named, expect=3, AWS_ENDPOINT_URL="http://127.0.0.1:1")
        assert set(found) == {"S3-UNREACHABLE"}
