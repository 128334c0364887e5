"""Exports that the authors of label tools publish themselves: the project of VIA's own demo of a
video, and the exports of CVAT among the test data of datumaro.

The repositories are cloned, or read where `VIA_REPOSITORY` and `DATUMARO_REPOSITORY` say that they
are (a clone, or its git directory).
"""

import ast
import json
import os
import re
import subprocess
from collections import Counter

import pytest
from clip_files import write_clip
from support import run_script

pytestmark = pytest.mark.integration
REPOSITORIES = {
    "VIA_REPOSITORY": "https://gitlab.com/vgg/via",
    "DATUMARO_REPOSITORY": "https://github.com/openvinotoolkit/datumaro",
}
DEMO = "via-3.x.y/src/js/_via_demo_video_annotator.js"
FACES = "via-2.x.y/data/face_track_annotation/sherlock_ep01_tracks_FRCNN.json"
CVAT = "tests/assets/cvat_dataset"


def file_of(variable, path, folder):
    """The content of a file of a repository; the test is skipped where nothing can be cloned."""
    repository = os.environ.get(variable)
    if not repository:
        repository = folder / variable
        words = ["git", "clone", "-q", "--depth", "1", "--bare", REPOSITORIES[variable], repository]
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        if not repository.exists() and subprocess.run(words, env=environment).returncode:
            pytest.skip(f"{REPOSITORIES[variable]} cannot be cloned here")
    words = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    return subprocess.run(words, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    return tmp_path_factory.mktemp("clones")


def build(*words, expect=0):
    done = run_script("build_dataset.py", *words, "--json", timeout=600)
    assert done.returncode == expect, done.stdout + done.stderr
    return {one["id"]: one for one in json.loads(done.stdout)["findings"]}


def test_the_project_of_vias_own_demo(clones, tmp_path):
    """Segments become parts of the clip, here one of the length of VIA's; regions at one moment are
    told. The demo makes its project in JavaScript, of literals that Python reads too."""
    program = file_of("VIA_REPOSITORY", DEMO, clones).decode()
    for written, meant in (("filename", "'demo.mp4'"), ("src", "''")):
        program = program.replace(f"_via_demo_data['video'][0]['{written}']", meant)
    program = re.sub(r"\s//[^\n]*", "", program.replace("Date.now()", "0"))
    parts = re.findall(r"\['store'\]\['(\w+)'\] = (\{.*?\n  \});", program, re.DOTALL)
    project = {name: ast.literal_eval(literal) for name, literal in parts}
    (tmp_path / "project.json").write_text(json.dumps(project))
    write_clip(tmp_path / "demo.mp4", frames=80, rate=2)
    out = tmp_path / "out"
    asked = ("--question", "What is done?", "--column", "answer=Activity", "--skip-missing")
    found = build(tmp_path / "project.json", "-o", out, *asked)
    segments, moments = {}, 0
    for name, entry in project["metadata"].items():
        moments += len(entry["z"]) == 1
        if entry["vid"] == "1" and len(entry["z"]) == 2 and entry["z"][1] <= 40:  # the clip's end
            segments[name.strip("._-")] = (entry["av"]["1"], *map(float, entry["z"]))
    assert moments and found["BUILD-ROWS-BLANK"]["data"]["count"] == moments
    records = json.loads((out / "train/annotations.json").read_text())
    cuts = json.loads((out / "train/cuts.json").read_text())
    read = {}
    for one in records:
        cut = cuts[one["video"]]
        read[one["id"]] = one["conversations"][1]["value"], cut["start"], cut["end"]
    assert len(read) >= 3 and read == segments


def test_the_faces_of_vias_own_demo(clones, tmp_path):
    """A project of VIA 2, whose pictures it does not hold."""
    content = file_of("VIA_REPOSITORY", FACES, clones)
    (tmp_path / "faces.json").write_bytes(content)
    files = [*json.loads(content).values()]
    flags = ("--question", "Which shot?", "--column", "answer=shot", "--column", "image=image")
    found = build(tmp_path / "faces.json", "-o", tmp_path / "out", *flags, expect=2)
    assert found["BUILD-MEDIA-MISSING"]["data"]["count"] == len(files)
    write_pictures(tmp_path, [one["filename"] for one in files])
    build(tmp_path / "faces.json", "-o", tmp_path / "out", *flags)
    records = json.loads((tmp_path / "out/train/annotations.json").read_text())
    answers = Counter(one["conversations"][1]["value"] for one in records)
    assert answers == Counter(str(one["file_attributes"]["shot"]) for one in files)


def write_pictures(folder, names):
    from PIL import Image

    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        colour = tuple(40 * (number // 6**place % 6) for place in range(3))
        Image.new("RGB", (64, 48), colour).save(folder / name)


def test_exports_of_cvat(clones, tmp_path):
    """A project's subsets are its splits, and lie in folders of their names; a clip's tracks are
    parts of it, the frames being those of the clip."""
    project = file_of(
        "DATUMARO_REPOSITORY", f"{CVAT}/for_images/export_project/annotations.xml", clones
    )
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "annotations.xml").write_bytes(project)
    sides = ("Train", "Test", "Validation")
    names = [f"images/{side}/img{number}.jpg" for side in sides for number in (0, 1)]
    write_pictures(tmp_path / "project", names)
    asked = ("--question", "What is there?")
    build(tmp_path / "project", "-o", tmp_path / "out", *asked, "--column", "answer=objects")
    for side in ("train", "test", "eval"):
        records = json.loads((tmp_path / "out" / side / "annotations.json").read_text())
        assert [one["conversations"][1]["value"] for one in records] == ["label1, label2"] * 2
    task = file_of("DATUMARO_REPOSITORY", f"{CVAT}/for_images/export_task/train.xml", clones)
    (tmp_path / "task.xml").write_bytes(task)
    write_pictures(tmp_path, ["img0.jpg", "img1.jpg"])  # one shape in each has no label
    build(tmp_path / "task.xml", "-o", tmp_path / "out2", *asked, "--column", "answer=objects")
    records = json.loads((tmp_path / "out2/train/annotations.json").read_text())
    assert [one["conversations"][1]["value"] for one in records] == ["label1", "label2"]
    video = file_of("DATUMARO_REPOSITORY", f"{CVAT}/for_video/annotations.xml", clones)
    (tmp_path / "clip.xml").write_bytes(video)
    write_clip(tmp_path / "t.mp4", frames=40, rate=10)
    build(tmp_path / "clip.xml", "-o", tmp_path / "out3", *asked, "--column", "answer=label")
    cuts = json.loads((tmp_path / "out3/train/cuts.json").read_text())
    read = [
        (one["conversations"][1]["value"], cuts[one["video"]]["start"], cuts[one["video"]]["end"])
        for one in json.loads((tmp_path / "out3/train/annotations.json").read_text())
    ]
    # Every third frame was labelled: II at 10 and at 13, klhg at 10; later files have a skeleton.
    read = sorted(one for one in read if one[0] != "skeleton")
    assert read == [("II", 1.0, 1.3), ("II", 1.3, 1.6), ("klhg", 1.0, 1.3)]
