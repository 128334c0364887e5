"""Labels without a question, and datasets of which nothing is held out."""

import json
import shlex
from pathlib import Path

import pytest
from clip_files import record, write_clip
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import items
from cosmos_reason.data import splits as dataset_splits
from cosmos_reason.data.items import Item
from cosmos_reason.data.samples import Turn


def build(*args, cwd=None, expect=0):
    done = run_script("build_dataset.py", *args, "--json", cwd=cwd)
    assert done.returncode == expect, done.stdout + done.stderr
    return json.loads(done.stdout)


def questions(folder):
    records = json.loads((folder / "train" / "annotations.json").read_text())
    return {one["conversations"][0]["value"].removeprefix("<video>\n") for one in records}


@pytest.fixture
def source(tmp_path):
    for number in range(4):
        write_clip(tmp_path / "source" / f"{number}.mp4", frames=4, tint=number)
    return tmp_path / "source"


def write_table(source, header, cells):
    lines = [header, *(f"{number}.mp4,{cell}" for number, cell in enumerate(cells))]
    (source / "labels.csv").write_text("\n".join(lines) + "\n")


LIT = "Is it true of this video: light on?"
TABLES = {
    "truth": ("light_on", "yes no yes no", f"{LIT}\nAnswer yes or no."),
    "numbers": ("light_on", "1 0 1 0", f"{LIT}\nAnswer with one of: 0, 1."),
    "classes": (
        *("sky", "sun rain sun rain"),
        "What is the sky in this video?\nAnswer with one of: rain, sun.",
    ),
    "each its own": ("cars", "1 2 3 4", "What is the cars in this video?"),
    "no name": ("label", "yes no yes no", "What is the label of this video?\nAnswer yes or no."),
    "no caption": ("caption", "yes no yes no", "Describe this video.\nAnswer yes or no."),
    "a choice": (
        "sky,options",
        "sun,sun|rain rain,sun|rain B,sun|rain A,sun|rain",
        "Which option is right for this video?\n(A) sun\n(B) rain\n"
        "Answer with the option's letter from the given choices directly.",
    ),
    "questions of some": ("light_on,question", "yes,Lit? no,Lit? yes, no,Lit?", LIT),
}


@pytest.mark.parametrize("name", TABLES)
def test_labels_without_a_question_are_asked_about(source, tmp_path, name):
    header, cells, asked = TABLES[name]
    write_table(source, f"video,{header}", cells.split(" "))
    declared = ("--column", f"answer={header.split(',')[0]}")
    words = (source / "labels.csv", "-o", tmp_path / "out", *declared)
    (found,) = build(*words, expect=2)["findings"]
    assert found["id"] == "BUILD-QUESTION" and "proposal" in found["message"]
    assert not (tmp_path / "out").exists()
    made = build(*words, *shlex.split(found["fix"]))
    told = [one["message"] for one in made["findings"] if one["id"] == "BUILD-FORM-ADDED"]
    assert len(told) == (name not in ("each its own", "a choice")), "what was added is said"
    assert all(asked.rpartition("\n")[2] in one for one in told) or name == "questions of some"
    assert asked in {
        text if "Lit?" not in cells else text.partition("\n")[0]
        for text in questions(tmp_path / "out")
    }


@pytest.mark.parametrize(
    "cells",
    [
        ["A red car.", "It rains hard", "Nobody is there.", "A dog runs."],
        ["a red car drives", "a red car drives", "a man walks", "a man walks"],
        ["fog", "snow", "ice", "ice"],
        ["こんにちは世界、犬が走っています", "猫が座っています", "雨", "雨"],
    ],
)
def test_captions_have_a_question_of_ours_that_the_help_tells(source, tmp_path, cells):
    write_table(source, "video,caption", cells)
    build(source, "-o", tmp_path / "out")
    assert questions(tmp_path / "out") == {"Describe this video."}
    build(source, "-o", tmp_path / "own", "--question", "What happens?")
    assert questions(tmp_path / "own") == {"What happens?"}
    told = " ".join(run_script("build_dataset.py --help").stdout.split())
    assert "'Describe this video.'" in told


def test_a_question_that_no_row_would_use_is_refused(source, tmp_path):
    write_table(source, "video,label,question", ["yes,Lit?"] * 4)
    (found,) = build(source, "-o", tmp_path / "out", "--question", "Bright?", expect=2)["findings"]
    assert (found["id"], found["fix"]) == ("USAGE", "drop --question")
    assert not (tmp_path / "out").exists()


def test_folders_named_by_their_label_are_asked_about(source, tmp_path):
    for number, path in enumerate(sorted(source.glob("*.mp4"))):
        folder = source / ("dry" if number % 2 else "wet")
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    (found,) = build(source, "-o", tmp_path / "out", expect=2)["findings"]
    build(source, "-o", tmp_path / "out", *shlex.split(found["fix"]))
    asked = "What is the label of this video?\nAnswer with one of: dry, wet."
    assert questions(tmp_path / "out") == {asked}


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ("", "Describe this video as JSON with the fields light_on, seen."),
        ("light_on", "Is it true of this video: light on?\nAnswer yes or no."),
    ],
)
def test_label_files_are_asked_about(source, tmp_path, fields, asked):
    (source / "metas").mkdir()
    (source / "videos").mkdir()
    for number in range(4):
        (source / f"{number}.mp4").rename(source / "videos" / f"{number}.mp4")
        label = {"light_on": "yes" if number % 2 else "no", "seen": f"A lamp, number {number}."}
        (source / "metas" / f"{number}.label.json").write_text(json.dumps(label))
    words = (source, "-o", tmp_path / "out", *(("--fields", fields) if fields else ()))
    (found,) = build(*words, expect=2)["findings"]
    assert found["id"] == "BUILD-QUESTION"
    build(*words, *shlex.split(found["fix"]))
    assert questions(tmp_path / "out") == {asked}
    said = build(source, "-o", tmp_path / "seen", "--fields", "seen", expect=2)["findings"]
    assert [one["id"] for one in said] == ["BUILD-QUESTION"], "no name says that these are captions"


@pytest.mark.parametrize("field", ["light_on", "caption"])
def test_labels_of_one_field_are_json_unless_it_is_named(source, tmp_path, field):
    (source / "metas").mkdir()
    source.joinpath("videos").mkdir()
    for number in range(4):
        (source / f"{number}.mp4").rename(source / "videos" / f"{number}.mp4")
        label = json.dumps({field: f"A long word {number % 2}"})
        (source / "metas" / f"{number}.label.json").write_text(label)
    (found,) = build(source, "-o", tmp_path / "out", expect=2)["findings"]
    assert found["fix"] == f"--question 'Describe this video as JSON with the field {field}.'"
    build(source, "-o", tmp_path / "out", *shlex.split(found["fix"]))


def test_pictures_are_no_videos():
    with pytest.raises(Failure, match="BUILD-QUESTION") as failure:
        items.ask("", ["wet"], ["yes", "no"], "image")
    assert str(failure.value.findings[0].fix) == "--question 'Is it true of this image: wet?'"


@pytest.mark.parametrize("clips", [2, 3, 4])
def test_that_nothing_is_held_out_is_told_with_a_way_to_do_it(source, tmp_path, clips):
    records = [record(n, video=f"{n}.mp4", answer="ab"[n % 2]) for n in range(clips)]
    (source / "annotations.json").write_text(json.dumps(records))
    words = (source, "-o", tmp_path / "out")
    (found,) = build(*words)["findings"]
    assert (found["id"], found["severity"]) == ("BUILD-NO-EVAL", "info")
    made = build(*words, *shlex.split(found["fix"]))
    assert [one["id"] for one in made["findings"]] == ["BUILD-EVAL-SMALL"]
    assert 1 <= made["result"]["written"]["eval"] < clips
    assert build(*words, "--eval-fraction", 0, "--force")["findings"] == [], "who says 0 knows"
    (found,) = build(*words, "--force")["findings"]
    assert "--force" not in found["fix"]
    (found,) = build(*words, "--force", "--eval-fraction", 0.01, expect=2)["findings"]
    assert found["id"] == "BUILD-SPLIT"
    assert build(*words, "--force", *found["fix"].split())["result"]["written"]["eval"]


def test_one_clip_is_not_shared(source, tmp_path):
    (source / "annotations.json").write_text(json.dumps([record(0, video="0.mp4")]))
    (found,) = build(source, "-o", tmp_path / "out")["findings"]
    assert (found["id"], found["fix"]) == ("BUILD-NO-EVAL", "")


def test_the_share_proposed_is_near_a_tenth_and_always_works():
    for clips in range(2, 40):
        for classes in (1, 2, clips):
            turns = [(Turn("user", "?"), Turn("assistant", str(n % classes))) for n in range(clips)]
            media = [(("video", Path(f"{n}.mp4")),) for n in range(clips)]
            kept = {f"r{n}": Item(f"r{n}", media[n], turns[n]) for n in range(clips)}
            plan, source = dataset_splits.Plan(), dataset_splits.filmed_from(kept)
            share = dataset_splits.fitting(kept, plan, source)
            assert dataset_splits.split(kept, dataset_splits.Plan(share), source)["eval"]
            assert clips < 11 or share == 0.1
