"""Held-out data that show what training shows are refused wherever both are named."""

import json
import os
import shutil

import pytest
from clip_files import check, record, write_clip, write_dataset
from support import run_script


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "train", [record(n, id=f"t{n}") for n in range(4)])
    write_dataset(tmp_path / "eval", [record(n, id=f"e{n}") for n in range(3)], tint=50)
    return tmp_path


def built(*words, spec="spec.toml", action="train"):
    """(exit code, {id: finding}) of build_spec for these data."""
    words = [action, "--engine", "transformers", "--model", "reason2-2b", *words]
    done = run_script("build_spec.py", *words, "-o", spec, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {row["id"]: row for row in json.loads(done.stdout)["findings"]}


def same(data):
    return data / "train"


def relative(data):
    return "eval/../train"


def link_to_folder(data):
    (data / "link").symlink_to(data / "train")
    return data / "link"


def copy(data):
    shutil.copytree(data / "train", data / "copy")
    return data / "copy"


def copy_of_a_clip(data):
    shutil.copy(data / "train" / "clips" / "2.mp4", data / "eval" / "clips" / "1.mp4")
    return data / "eval"


def link_to_a_clip(data):
    clip = data / "eval" / "clips" / "1.mp4"
    clip.unlink()
    clip.symlink_to(data / "train" / "clips" / "2.mp4")
    return data / "eval"


def absolute_names(data):
    records = json.loads((data / "eval" / "annotations.json").read_text())
    records[1]["video"] = str(data / "train" / "clips" / "0.mp4")
    (data / "eval" / "annotations.json").write_text(json.dumps(records))
    return data / "eval"


WHOLE = (same, relative, link_to_folder, copy)
ONE = (copy_of_a_clip, link_to_a_clip, absolute_names)


@pytest.mark.parametrize("way", [*WHOLE, *ONE], ids=lambda way: way.__name__)
def test_no_spec_validates_on_what_it_trains_on(data, way):
    root = way(data)
    code, found = built("--train-root", "train", "--eval-root", root)
    shared = found["SPEC-DATA-SHARED"]
    assert code == 1 and shared["severity"] == "error" and not shared["fix"]
    wanted = [f"t{n}" for n in range(4)] if way in WHOLE else ["e1"]
    assert shared["data"]["record_ids"] == wanted
    assert not (data / "spec.toml").exists()
    leaks = check(data / "train", "--eval", root, expect=1)[1]
    ids = leaks.keys() & {"DATA-LEAK-QUESTION", "DATA-LEAK-CLIP"}
    assert ids and {leaks[id]["severity"] for id in ids} == {"error"}


def test_data_of_their_own_are_no_finding(data):
    code, found = built("--train-root", "train", "--eval-root", "eval")
    assert code == 0 and not {"SPEC-DATA-SHARED", "SPEC-DATA-NEAR"} & found.keys()


def test_the_accuracy_that_is_lost_is_not_measured_on_what_calibrates(data):
    words = ("--train-root", "train", "--set", "precision=FP8", "--eval-root")
    assert "SPEC-CALIBRATION-SHARED" not in built(*words, "eval", action="quantize")[1]
    code, found = built(*words, copy_of_a_clip(data), action="quantize")
    told = found["SPEC-CALIBRATION-SHARED"]
    assert (code, told["severity"], told["data"]["record_ids"]) == (0, "warning", ["e1"])
    no_data = [word.replace("FP8", "FP8_DYNAMIC") for word in words]
    assert "SPEC-CALIBRATION-SHARED" not in built(*no_data, "eval", action="quantize")[1]


def test_several_roots_and_keys_of_the_spec_are_compared_too(data):
    shutil.copytree(data / "train", data / "more" / "of it")
    roots = ("--train-root", "train", "--train-root", "more/of it:0.5")
    code, found = built(*roots, "--eval-root", copy_of_a_clip(data))
    assert code == 1 and found["SPEC-DATA-SHARED"]["data"]["record_ids"] == ["e1"]
    keys = ("--set", "custom.val_dataset.annotation_path=/cluster/a.json")
    keys += ("--set", "custom.val_dataset.media_path=/cluster", "--set", "validation.enable=true")
    same = [word.replace("val_dataset", "train_dataset") for word in keys[:4]]
    code, found = built(*keys, *same)  # neither is here
    assert code == 1 and "SPEC-DATA-SHARED" in found
    assert "SPEC-DATA-SHARED" not in built(*keys, "--train-root", "train")[1]


def test_clips_that_no_spec_opens_are_said_to_be_compared_by_name_alone(data):
    for split in ("train", "eval"):
        shutil.make_archive(split, "gztar", data / split, "clips")
        shutil.rmtree(data / split / "clips")
        os.replace(f"{split}.tar.gz", data / split / "videos.tar.gz")
    code, found = built("--train-root", "train", "--eval-root", "eval")
    assert code == 0 and "eval/videos.tar.gz" in found["SPEC-DATA-UNREAD"]["message"]
    shutil.copy(data / "train" / "videos.tar.gz", data / "eval" / "videos.tar.gz")
    code, found = built("--train-root", "train", "--eval-root", "eval")
    assert code == 1 and "SPEC-DATA-UNREAD" not in found


def test_a_spec_of_somebody_is_refused_by_preflight_and_launch(data, tmp_path):
    assert built("--train-root", "train", "--eval-root", "eval")[0] == 0
    copy_of_a_clip(data)
    words = ["--platform", "local", "--engine", "transformers", "--spec", "spec.toml", "--json"]
    for script, asked in (
        ("check_tao_launch_preflight.py", words),
        ("launch_job.py", ["plan", "train", *words]),
        ("tune_hyperparameters.py", ["plan", "--study", "s", "--spec", "spec.toml", "--json"]),
    ):
        done = run_script(script, *asked)
        found = {row["id"]: row for row in json.loads(done.stdout)["findings"]}
        assert done.returncode == 1, done.stdout
        assert found["SPEC-DATA-SHARED"]["data"]["record_ids"] == ["e1"], script


def test_a_study_asks_no_guard_or_evaluation_of_its_training_data(data):
    assert built("--train-root", "train", "--eval-root", "eval")[0] == 0
    done = run_script(
        *("build_spec.py", "evaluate", "--engine", "transformers", "--model", "reason2-2b"),
        *("--eval-root", "train", "-o", "ask.toml"),
    )
    assert done.returncode == 0, done.stderr
    for words, where in (
        (("--guard-root", copy(data)), "guard.annotation_path"),
        (("--eval-spec", "ask.toml"), "dataset.annotation_path"),
    ):
        words = ("plan", "--study", "s", "--spec", "spec.toml", *words, "--json")
        done = run_script("tune_hyperparameters.py", *words)
        found = [r for r in json.loads(done.stdout)["findings"] if r["id"] == "SPEC-DATA-SHARED"]
        assert done.returncode == 2 and [row["where"] for row in found] == [where]


def parts_of(folder, clip, times):
    """A dataset of parts of a clip, as build_dataset writes it of a table."""
    source = folder.with_name(f"{folder.name}-source")
    source.mkdir()
    shutil.copy(clip, source / "camera.mp4")
    rows = [f"camera.mp4,{start},{end},{'yes' if n % 2 else 'no'}" for n, (start, end) in times]
    (source / "labels.csv").write_text("\n".join(["clip,start,end,label", *rows]))
    words = ["--column", "start=start", "--column", "end=end", "--question", "On?"]
    done = run_script("build_dataset.py", source, "-o", folder, *words)
    assert done.returncode == 0, done.stderr
    return folder / "train"


def test_overlapping_times_of_a_recording_are_shared_and_near_ones_are_told(tmp_path, monkeypatch):
    """The recording is 40 s long; each dataset is built of a copy of it under another name."""
    monkeypatch.chdir(tmp_path)
    clip = write_clip(tmp_path / "long.mp4", frames=80, rate=2)
    train = parts_of(tmp_path / "a", clip, enumerate([(0, 5), (5, 10)]))
    held_out = [(9, 12), (10, 13), (19.5, 22), (30, 33)]
    evaluated = parts_of(tmp_path / "b", clip, enumerate(held_out))
    ids = [row["id"] for row in json.loads((evaluated / "annotations.json").read_text())]
    code, found = built("--train-root", train, "--eval-root", evaluated)
    assert code == 1 and found["SPEC-DATA-SHARED"]["data"]["record_ids"] == ids[:1]
    near = found["SPEC-DATA-NEAR"]
    assert near["severity"] == "warning" and near["data"]["record_ids"] == ids[1:3]
    leaks = check(train, "--eval", evaluated, expect=1)[1]
    assert leaks["DATA-LEAK-QUESTION"]["data"]["record_ids"] == ids[:1]
    assert "differ in their bytes" in leaks["DATA-LEAK-QUESTION"]["message"]
    assert leaks["DATA-LEAK-NEAR"]["data"]["record_ids"] == ids[1:3]
    os.replace(tmp_path / "a", tmp_path / "moved")  # what a clip was cut of goes with it
    whole = tmp_path / "whole"
    whole.mkdir()
    shutil.copy(clip, whole / "all.mp4")
    (whole / "annotations.json").write_text(json.dumps([record(0, id="w", video="all.mp4")]))
    code, found = built("--train-root", tmp_path / "moved" / "train", "--eval-root", whole)
    assert code == 1 and found["SPEC-DATA-SHARED"]["data"]["record_ids"] == ["w"]


def test_records_of_one_id_are_counted_each(tmp_path):
    """40 records lack an answer: two have one id, and others two problems each."""
    records = [record(n, id="same" if n < 2 else str(n)) for n in range(42)]
    for one in records[:40]:
        one["conversations"][1]["value"] = ""
    write_dataset(tmp_path / "d", records)
    found = check(tmp_path / "d", "--decode", "none", expect=1)[1]["DATA-ANSWER-EMPTY"]
    assert found["data"]["count"] == 40 and "(40 of 42 records)" in found["message"]
    assert len(found["data"]["record_ids"]) == 39
