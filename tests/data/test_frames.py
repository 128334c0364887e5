"""A video given as pictures is a video everywhere, and the same one as the clip they were taken
from."""

import json
import tarfile
import zipfile

import numpy as np
import pytest
from clip_files import check, write_clip
from PIL import Image
from support import run_script

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.data import annotations, whole_survey
from cosmos_reason.data.frames import Sampler
from cosmos_reason.data.samples import Media
from cosmos_reason.engine import conversations
from cosmos_reason.estimate import record_tokens
from cosmos_reason.evaluation.endpoint import Endpoint
from cosmos_reason.media import files as media
from cosmos_reason.media.sampling import VisionOptions, frame_indices
from cosmos_reason.preflight.data import look_at_first_clips, supposed_clips
from cosmos_reason.rules import draft, mixture
from cosmos_reason.spec import document

OPTIONS = VisionOptions(nframes=8)
PICTURES = [f"eight/{number:03}.png" for number in range(8)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A clip of 16 frames at 8 a second, all of them in a folder whose names have no zeros before
    their numbers, and the 8 that are sampled of it in another."""
    folder = tmp_path_factory.mktemp("root")
    write_clip(folder / "clip.mp4")
    frames = media.decode_frames(folder / "clip.mp4", range(16))
    for name, indices in {"all": range(16), "eight": frame_indices(16, 8.0, OPTIONS)}.items():
        (folder / name).mkdir()
        for number, index in enumerate(indices):
            last = f"{number}.png" if name == "all" else f"{number:03}.png"
            Image.fromarray(frames[index]).save(folder / name / last)
    return folder


def talk(name, **fields):
    turns = [{"from": "human", "value": "<video>\nBright?"}, {"from": "gpt", "value": "Yes"}]
    return {"id": name, "conversations": turns, **fields}


def message(name, **part):
    content = [{"type": "video", **part}, {"type": "text", "text": "Bright?"}]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "Yes"}]
    return {"id": name, "messages": turns}


def write(folder, *records):
    path = folder / "annotations.json"
    path.write_text(json.dumps(records))
    return path


def read_one(folder, record):
    ((sample,), found) = annotations.read(write(folder, record))
    return sample, {finding.id for finding in found}


LISTS = [
    talk("a", video=PICTURES, sample_fps=4),
    talk("a", videos=[PICTURES], fps=4),
    talk("a", videos=PICTURES, raw_fps=4),
    talk("a", video=PICTURES, metadata={"fps": 4}),
    talk("a", video=PICTURES, sample_fps=4, raw_fps=30, video_fps=30),
    talk("a", videos=[{"video": PICTURES, "sample_fps": 4}]),
    talk("a", video=[f"file://{name}" for name in PICTURES], sample_fps=4),
    message("a", video=[f"file://{name}" for name in PICTURES], sample_fps=4),
    {"id": "a", "video": PICTURES, "fps": 4, "question": "Bright?", "answer": "Yes"},
    {"id": "a", "video": PICTURES, "fps": 4, "qa_pairs": {"question": "Bright?", "answer": "Yes"}},
]
FOLDERS = [
    talk("a", video="all", fps=8),
    talk("a", videos=["all"], extracted_fps=8),
    message("a", video="all", sample_fps=8),
    message("a", frame_dir="all", metadata={"extracted_fps": 8}),
    {"video_id": "all", "id": "a", "fps": 8, "question": "Bright?", "answer": "Yes"},
]


@pytest.mark.parametrize("record", LISTS)
def test_a_list_of_pictures_is_one_video(tmp_path, record):
    sample, found = read_one(tmp_path, record)
    assert sample.media == (Media("video", PICTURES[0], tuple(PICTURES), 4.0),)
    assert sample.turns[0].text == "Bright?" and not found


@pytest.mark.parametrize("record", FOLDERS)
def test_a_folder_has_the_rate_beside_it(tmp_path, record):
    sample, found = read_one(tmp_path, record)
    assert sample.media == (Media("video", "all", (), 8.0),) and not found


def test_several_clips_stay_several_and_mixed_lists_are_told(tmp_path):
    sample, _ = read_one(tmp_path, talk("a", videos=["1.mp4", "2.mp4"]))
    assert [medium.names for medium in sample.media] == [("1.mp4",), ("2.mp4",)]
    sample, _ = read_one(tmp_path, talk("a", videos=[["1.png", "2.png"], ["3.png"], "4.mp4"]))
    assert [medium.names for medium in sample.media] == [
        ("1.png", "2.png"),
        ("3.png",),
        ("4.mp4",),
    ]
    _, found = read_one(tmp_path, talk("a", videos=[["1.png", "2.mp4"]]))
    assert "DATA-MEDIA-TYPE" in found
    _, found = read_one(tmp_path, talk("a", video=PICTURES, sample_fps=0))
    assert found == {"DATA-VIDEO-FPS"}


def test_a_model_is_shown_the_frames_of_the_clip(root):
    sampler = Sampler(str(root), OPTIONS, 16)
    clip = sampler.load(Media("video", "clip.mp4"))
    folder = sampler.load(Media("video", "all", (), 8.0))
    listed = sampler.load(Media("video", PICTURES[0], tuple(PICTURES), 4.0))
    assert (clip.frames == folder.frames).all() and clip.seconds == folder.seconds
    assert (clip.frames == listed.frames).all()
    assert listed.seconds == tuple(number / 4 for number in range(8)) and listed.rate == 4


def test_all_pictures_of_a_list_are_shown_and_the_last_one_twice_to_be_even(root):
    sampler = Sampler(str(root), VisionOptions(nframes=2), 16)
    listed = sampler.load(Media("video", PICTURES[0], tuple(PICTURES[:3]), 2.0))
    assert len(listed.frames) == 4 and listed.seconds == (0, 0.5, 1.0, 1.5) and listed.rate == 2
    assert (listed.frames[2] == listed.frames[3]).all()


def test_tokens_are_predicted_as_for_the_clip(root, tmp_path):
    records = [
        talk("clip", video="clip.mp4", video_fps=8),
        talk("folder", video="all", fps=8),
        talk("list", video=PICTURES, sample_fps=4),
    ]
    facts = tmp_path / "facts" / "dataset_facts.json"
    path = write(tmp_path, *records)
    flags = (
        "--media-path",
        root,
        "--nframes",
        "8",
        "--facts",
        facts,
        "--html",
        tmp_path / "a.html",
    )
    result, found = check(path, *flags)
    assert not found and result["train"]["clips"] == 3
    spec = document.with_defaults("train", {"custom": {"vision": {"nframes": 8}}})
    clip, folder, listed = record_tokens.tokens_for_spec(facts, spec)
    assert clip[1:] == folder[1:] == listed[1:] and clip.frames == 8
    by_rate = document.with_defaults("train", {"custom": {"vision": {"fps": 2}}})
    assert [cost.frames for cost in record_tokens.tokens_for_spec(facts, by_rate)] == [4, 4, 8]
    assert not record_tokens.records_without_rate(facts)


def test_what_is_wrong_with_pictures_is_told(root, tmp_path):
    (tmp_path / "gap").mkdir()
    for number in (1, 2, 3, 7, 8):
        Image.new("RGB", (64, 48)).save(tmp_path / "gap" / f"{number}.png")
    Image.new("RGB", (48, 64)).save(tmp_path / "high.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.png").write_bytes((tmp_path / "high.png").read_bytes()[:60])
    records = [
        talk("missing", video=["gap/1.png", "gap/4.png", "gap/5.png"], sample_fps=2),
        talk("sizes", video=["gap/1.png", "high.png"], sample_fps=2),
        talk("rate", video=["gap/1.png", "gap/2.png"]),
        talk("gap", video="gap"),
        talk("empty", video="empty", fps=2),
        talk("torn", video=["high.png", "torn.png"], sample_fps=2),
    ]
    _, found = check(write(tmp_path, *records), "--nframes", "2", expect=1)
    ids = {name: finding["data"]["record_ids"] for name, finding in found.items()}
    assert ids["DATA-MEDIA-MISSING"] == ["missing", "empty"]
    assert "2 of 3 pictures" in found["DATA-MEDIA-MISSING"]["message"]
    assert ids["DATA-FRAMES-SIZE"] == ["sizes"] and ids["DATA-FRAMES-RATE"] == ["rate", "gap"]
    assert ids["DATA-MEDIA-FRAMES"] == ["gap"] and "8 frames" in str(found["DATA-MEDIA-FRAMES"])
    assert ids["DATA-MEDIA-UNDECODABLE"] == ["torn"]
    with pytest.raises(Failure, match="64x48"):
        sizes = Media("video", "gap/1.png", ("gap/1.png", "high.png"), 2.0)
        Sampler(str(tmp_path), OPTIONS, 16).load(sizes)


def test_a_list_that_is_longer_than_what_is_sampled_is_told(root, tmp_path):
    path = write(tmp_path, talk("long", video=PICTURES, sample_fps=4), talk("all", video="all"))
    _, found = check(path, "--media-path", root, "--nframes", "4")
    assert found["DATA-FRAMES-ALL"]["data"]["record_ids"] == ["long"]


@pytest.fixture(params=["videos.tar.gz", "videos.zip", "frames.tar"])
def packed(request, root, tmp_path):
    """A dataset root of a list and a folder of pictures that are in an archive."""
    write(tmp_path, talk("list", video=PICTURES, sample_fps=4), talk("all", video="all", fps=8))
    archive = tmp_path / request.param
    pictures = [path for name in ("all", "eight") for path in (root / name).iterdir()]
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as made:
            for path in pictures:
                made.write(path, path.relative_to(root))
    else:
        with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as made:
            for path in pictures:
                made.add(path, f"./{path.relative_to(root)}")
    return archive


def test_pictures_in_an_archive_are_looked_at(packed, tmp_path):
    result, found = check(tmp_path, "--nframes", "8", "--html", tmp_path / "a.html")
    assert result["train"]["media_path"] == str(packed)
    assert not found and result["train"]["media"]["frames"]["max"] == 16
    seen = whole_survey.take(tmp_path / "annotations.json", str(packed), "", look_at_first_clips)
    assert not supposed_clips(seen)
    assert sorted(report.facts.frames for report in seen.reports.values()) == [8, 16]


def test_pictures_in_an_archive_are_shown_as_those_in_a_folder(root, packed):
    in_folder, in_archive = (Sampler(str(place), OPTIONS, 16) for place in (root, packed))
    for medium in (
        Media("video", PICTURES[0], tuple(PICTURES), 4.0),
        Media("video", "all", (), 8.0),
    ):
        expected = in_folder.load(medium)
        shown = in_archive.load(medium)
        assert (shown.frames == expected.frames).all() and shown.seconds == expected.seconds


@pytest.mark.parametrize("mode", ["link", "reference"])
def test_a_dataset_is_built_of_pictures_in_an_archive(root, packed, tmp_path, mode):
    output = tmp_path / "built"
    done = run_script("build_dataset.py", tmp_path, "-o", output, "--media", mode)
    assert done.returncode == 0, done.stderr
    listed, folder = files.read_json(output / "train" / "annotations.json")
    assert len(listed["video"]) == 8 and folder["sample_fps"] == 8
    names = sorted(path.name for path in (output / "train" / folder["video"]).iterdir())
    assert names == sorted(path.name for path in (root / "all").iterdir())
    result, found = check(output / "train", "--nframes", "8")
    assert not found and result["train"]["media"]["frames"]["max"] == 16


def test_a_folder_that_two_archives_have_is_no_guess(root, packed, tmp_path):
    with tarfile.open(tmp_path / "other.tar", "w") as made:
        made.add(root / "all", "all")
    done = run_script("build_dataset.py", tmp_path, "-o", tmp_path / "built")
    assert done.returncode == 2 and "BUILD-MEDIA-AMBIGUOUS" in done.stderr


def test_an_item_of_cosmos_rl_has_them(root, tmp_path):
    path = write(
        tmp_path, talk("list", video=PICTURES, sample_fps=4), talk("all", video="all", fps=8)
    )
    spec = {
        "policy": {"model_name_or_path": "nvidia/Cosmos-Reason2-8B"},
        "train": {"train_policy": {}},
        "custom": {
            "vision": {"nframes": 8},
            "train_dataset": {"annotation_path": str(path), "media_path": str(root)},
        },
    }
    made = conversations.of_spec(spec, "train_dataset")
    assert not conversations.missing_media(made)
    listed, folder = (made[number][0]["content"][0] for number in range(2))
    assert [len(listed["video"]), len(folder["video"])] == [8, 8] and listed["sample_fps"] == 4
    pairs = zip(listed["video"], folder["video"], strict=True)
    assert all((np.asarray(one) == np.asarray(other)).all() for one, other in pairs)
    spec["custom"]["train_dataset"]["media_path"] = str(tmp_path)
    (missing,) = conversations.missing_media(conversations.of_spec(spec, "train_dataset"))
    assert "9 of 9" in missing.message


def test_an_endpoint_gets_one_video_with_their_times(evaluate_spec, server, root, tmp_path):
    path = write(tmp_path, talk("list", video=PICTURES, sample_fps=4))
    evaluate_spec["dataset"] |= {"annotation_path": str(path), "media_dir": str(root)}
    evaluate_spec["custom"]["endpoint"]["frames"] = "video"
    who = Endpoint(evaluate_spec, server.url)
    ((sample,), _) = annotations.read(path)
    (question,) = sample.questions()
    body = who.body(question, [who.sampler.load(item) for item in sample.media])
    times = body["media_io_kwargs"]["video"]["frames_indices"]
    assert times == [250 * number for number in range(8)]


@pytest.mark.parametrize("mode", ["link", "reference"])
def test_a_dataset_is_built_of_them(root, tmp_path, mode):
    table = [
        {"video": "all", "fps": 8, "label": "Yes"},
        {"video": PICTURES, "sample_fps": 4, "label": "No"},
    ]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, table)))
    output = tmp_path / "out"
    flags = ("--question", "Bright?", "--media", mode)
    done = run_script("build_dataset.py", root / "rows.jsonl", "-o", output, *flags)
    assert done.returncode == 0, done.stderr
    folder, listed = files.read_json(output / "train" / "annotations.json")
    assert (folder["sample_fps"], listed["sample_fps"]) == (8, 4) and len(listed["video"]) == 8
    result, found = check(output / "train", "--nframes", "8")
    assert result["train"]["media"]["frames"]["max"] == 16
    assert not found.keys() - {"DATA-MEDIA-OUTSIDE"}
    again = run_script("build_dataset.py", output / "train", "-o", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    built = files.read_json(tmp_path / "again" / "train" / "annotations.json")
    assert [record["sample_fps"] for record in built] == [8, 4]
    daft = ("--format", "tao-vl-reason-v1.0")
    refused = run_script("build_dataset.py", output / "train", "-o", tmp_path / "daft", *daft)
    assert refused.returncode == 2 and "--format llava" in refused.stderr


def test_they_survive_several_training_roots(root, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, talk("a", video=PICTURES[:1]), talk("b", videos=[{"video": "all"}]))
    mixed = mixture.mix([draft.part(str(tmp_path / name)) for name in ("one", "two")])
    assert [record.get("video") for record in mixed.records[::2]] == [
        ["one/eight/000.png"],
        ["two/eight/000.png"],
    ]
    assert mixed.records[3]["videos"] == [{"video": "two/all"}]


def test_times_are_drawn_alike_for_training_evaluation_and_cosmos_rl(root):
    item = Media("video", "clip.mp4")
    size = {"nframes": 8, "resized_height": 64, "resized_width": 96}
    plain = Sampler(str(root), VisionOptions(**size), 16).load(item)
    trained = VisionOptions.from_spec({"custom": {"vision": size | {"burn_timestamps": True}}})
    asked = VisionOptions.from_spec({"vision": size | {"burn_timestamps": True}})
    assert trained == asked != VisionOptions(**size)
    shown = [Sampler(str(root), options, 16).load(item) for options in (trained, asked)]
    assert np.array_equal(shown[0].frames, shown[1].frames)
    frames = shown[0].frames
    assert frames.shape == plain.frames.shape and shown[0].seconds == plain.seconds
    assert np.array_equal(frames[:, :48], plain.frames[:, :48]), "only the lower edge"
    marks = {frame[48:].tobytes() for frame in frames}
    assert len(marks) == 8, "each frame has a time of its own"
    assert (frames[:, 52:] > 200).any((1, 2, 3)).all() and (frames[:, 52:, :10] < 8).all()
    pictures = conversations.medium(shown[0])["video"]
    assert all(
        np.array_equal(np.asarray(one), two) for one, two in zip(pictures, frames, strict=True)
    )
    no = VisionOptions.from_spec({"vision": size | {"burn_timestamps": False}})
    assert no == VisionOptions(**size)


def test_times_that_nobody_could_read_are_refused(root):
    options = VisionOptions(8, min_pixels=1024, max_pixels=2048, burn_timestamps=True)
    with pytest.raises(Failure) as failure:
        Sampler(str(root), options, 16).load(Media("video", "clip.mp4"))
    (finding,) = failure.value.findings
    assert finding.id == "DATA-STAMP-SMALL"
    assert finding.fix.changes == {"custom.vision.burn_timestamps": False}
    with pytest.raises(Failure, match="SPEC-VISION-VALUE"):
        VisionOptions.from_spec({"vision": {"nframes": 8, "burn_timestamps": "yes"}})


@pytest.mark.parametrize("frames, fix", [(1, "remove its records"), (4, "nframes=4")])
def test_a_clip_that_is_too_short_is_named(tmp_path, frames, fix):
    write_clip(tmp_path / "clips" / "short.mp4", frames=frames)
    sampler = Sampler(str(tmp_path), OPTIONS, 16)
    with pytest.raises(Failure) as refused:
        sampler.load(Media("video", "clips/short.mp4"))
    (finding,) = refused.value.findings
    assert (finding.id, finding.where) == ("DATA-CLIP-TOO-SHORT", "clips/short.mp4")
    assert finding.message.startswith(f"got {frames} frames, expected 8 or more to sample")
    assert str(finding.fix).endswith(fix) or finding.message.endswith(fix)


def test_a_picture_that_is_too_wide_is_named(tmp_path):
    Image.new("RGB", (2010, 10)).save(tmp_path / "wide.png")
    with pytest.raises(Failure) as refused:
        Sampler(str(tmp_path), OPTIONS, 16).load(Media("image", "wide.png"))
    (finding,) = refused.value.findings
    assert (finding.id, finding.where) == ("DATA-MEDIA-RATIO", "wide.png")
