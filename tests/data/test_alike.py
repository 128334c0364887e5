"""Copies of training clips that were encoded again are told among held-out data."""

import json
import os

import av
import numpy as np
import pytest
from clip_files import check, record
from PIL import Image
from support import run_script


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


def write_scene(path, seed, scene=0, width=96, height=64, quality="18", frames=24):
    """A bright square that moves, by `seed`, before the background of a `scene`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    still = np.random.default_rng(scene).integers(40, 160, (8, 12))
    still = np.kron(still, np.ones((8, 8))).astype(np.uint8)
    steps = np.random.default_rng(1000 + seed).integers(-9, 10, (frames, 2))
    place = np.array([24, 40])
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8, options={"crf": quality})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for step in steps:
            place = np.clip(place + step, 0, [48, 80])
            picture = np.repeat(still[:, :, None], 3, axis=2)
            picture[place[0] : place[0] + 16, place[1] : place[1] + 16] = 250
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame.reformat(width, height, "yuv420p")))
        container.mux(stream.encode(None))


def write_annotations(folder, count):
    records = [record(n, "Yes" if n % 2 else "No", id=f"{folder.name}{n}") for n in range(count)]
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


def test_a_copy_that_was_encoded_again_is_told_and_another_event_of_one_camera_is_not(tmp_path):
    for number in range(4):
        write_scene(tmp_path / f"train/clips/{number}.mp4", seed=number)
    write_scene(tmp_path / "eval/clips/0.mp4", seed=10)  # the same camera, another event
    write_scene(tmp_path / "eval/clips/1.mp4", seed=2, width=144, height=96, quality="34")
    write_scene(tmp_path / "eval/clips/2.mp4", seed=2, scene=1)  # another camera
    train = write_annotations(tmp_path / "train", 4)
    held_out = write_annotations(tmp_path / "eval", 3)
    _, findings = check(train, "--eval", held_out)
    found = findings["DATA-LEAK-ALIKE"]
    assert found["severity"] == "warning" and found["data"]["record_ids"] == ["eval1"]
    assert "clips/2.mp4" in found["message"] and "DATA-LEAK-CLIP" not in findings
    _, again = check(train, "--eval", held_out)  # from the cache
    assert again["DATA-LEAK-ALIKE"] == found


def test_copies_that_were_encoded_again_stay_on_one_side_of_a_build(tmp_path):
    """Whatever the seed: 0, 10 and 11 show one scene, in other sizes and qualities."""
    rows = ["video,answer"]
    for number in range(12):
        is_copy = number > 9
        scale = number - 9 if is_copy else 1
        size = {"width": 96 * scale, "height": 64 * scale}
        name = f"{number}.mp4"
        quality = "34" if is_copy else "18"
        write_scene(tmp_path / "src" / name, 0 if is_copy else number, quality=quality, **size)
        rows.append(f"{name},{'yes' if number % 2 else 'no'}")
    (tmp_path / "src" / "labels.csv").write_text("\n".join(rows))
    words = (tmp_path / "src" / "labels.csv", "-o", tmp_path / "out", "--question", "Is it?")
    for seed, split in enumerate([("--eval-fraction", "0.25")] * 4 + [("--folds", "3")]):
        flags = (*split, "--seed", str(seed), "--force", "--json")
        done = run_script("build_dataset.py", *words, *flags)
        assert done.returncode == 0, done.stdout
        found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
        assert found["BUILD-ALIKE"]["severity"] == "info"
        told = found["BUILD-ALIKE"]["message"]
        assert ("are held out, " in told and "without this" in told) == ("--folds" not in split)
        for sides in (tmp_path / "out").rglob("eval"):
            held_out = {one["id"] for one in json.loads((sides / "annotations.json").read_text())}
            assert held_out & {"0", "10", "11"} in (set(), {"0", "10", "11"})


def test_clips_that_are_all_alike_may_stand_on_both_sides(tmp_path):
    rows = ["video,answer"]
    for number in range(4):
        write_scene(tmp_path / "src" / f"{number}.mp4", seed=0, quality=str(18 + 4 * number))
        rows.append(f"{number}.mp4,{'yes' if number % 2 else 'no'}")
    (tmp_path / "src" / "labels.csv").write_text("\n".join(rows))
    words = (tmp_path / "src" / "labels.csv", "-o", tmp_path / "out", "--question", "Is it?")
    done = run_script("build_dataset.py", *words, "--eval-fraction", "0.25", "--json")
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0 and found["BUILD-ALIKE"]["severity"] == "warning"


def photo(path, seed, size=(320, 240), quality=90, square=0):
    """A picture of blots of light, by `seed`; in it a bright square of so many pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blots = np.random.default_rng(seed).integers(40, 200, (15, 20), np.uint8)
    picture = np.asarray(Image.fromarray(blots).resize((320, 240), Image.BICUBIC)).copy()
    picture[100 : 100 + square, 150 : 150 + square] = 255
    Image.fromarray(picture).convert("RGB").resize(size).save(path, quality=quality)


def test_copies_of_pictures_are_told_and_stay_on_one_side_of_a_build(tmp_path):
    """Whatever the seed: 0, 10 and 11 are one picture, in other sizes and formats; 1 and 2 are of
    one camera, that sees another object in each."""
    rows = ["image,answer"]
    copies = {10: ("10.png", (160, 120), 90), 11: ("11.jpg", (320, 240), 35)}
    for number in range(12):
        name, size, quality = copies.get(number, (f"{number}.jpg", (320, 240), 90))
        seed = {10: 0, 11: 0, 2: 1}.get(number, number)
        photo(tmp_path / "src" / name, seed, size, quality, square=16 * (number == 2))
        rows.append(f"{name},{'yes' if number % 2 else 'no'}")
    (tmp_path / "src" / "labels.csv").write_text("\n".join(rows))
    words = (tmp_path / "src" / "labels.csv", "-o", tmp_path / "out", "--question", "Is it?")
    for seed, split in enumerate([("--eval-fraction", "0.25")] * 3 + [("--folds", "3")]):
        done = run_script(
            "build_dataset.py", *words, *split, "--seed", str(seed), "--force", "--json"
        )
        assert done.returncode == 0, done.stdout
        found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
        assert found["BUILD-ALIKE"]["severity"] == "info"
        for pair in ("10.png and 0.jpg", "11.jpg and 0.jpg"):
            assert pair in found["BUILD-ALIKE"]["message"]
        assert "2.jpg" not in found["BUILD-ALIKE"]["message"]
        for sides in (tmp_path / "out").rglob("eval"):
            held_out = {one["id"] for one in json.loads((sides / "annotations.json").read_text())}
            assert held_out & {"0", "10", "11"} in (set(), {"0", "10", "11"})
    for side, names in (("train", ["0.jpg", "1.jpg"]), ("eval", ["11.jpg", "2.jpg"])):
        records = []
        for name in names:
            (tmp_path / side).mkdir(exist_ok=True)
            os.link(tmp_path / "src" / name, tmp_path / side / name)
            turns = [{"from": "human", "value": "<image>\nIs it?"}, {"from": "gpt", "value": "no"}]
            records.append({"id": f"{side} {name}", "image": name, "conversations": turns})
        (tmp_path / side / "annotations.json").write_text(json.dumps(records))
    _, findings = check(tmp_path / "train", "--eval", tmp_path / "eval")
    assert findings["DATA-LEAK-ALIKE"]["data"]["record_ids"] == ["eval 11.jpg"]
