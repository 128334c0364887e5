import json
import multiprocessing
import os
import shutil
import signal
import time

import jsonschema
import pyarrow.parquet as parquet
import pytest
from clip_files import record, write_clip, write_dataset
from support import run_script

from cosmos_reason import bundle, clip_checks, dataset_checks, media, spec, vision_tokens
from cosmos_reason.vision_tokens import VisionOptions

EIGHT = VisionOptions(nframes=8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """train: 6 records, Yes 4 times; eval: 3 records on other clips."""
    root = tmp_path_factory.mktemp("data")
    write_dataset(root / "train", [record(number, "No" if number > 3 else "Yes") for number in range(6)])
    write_dataset(root / "eval", [record(number, id=f"e{number}") for number in range(3)], tint=100)
    return root


def check(*args, expect=0):
    done = run_script("check_dataset.py", *args, "--json")
    assert done.returncode == expect, done.stdout + done.stderr
    document = json.loads(done.stdout)
    for finding in document["findings"]:
        jsonschema.validate(finding, bundle.schema("finding"))
    return document["result"], {finding["id"]: finding for finding in document["findings"]}


def write_spec(path, **changes):
    table = spec.template("train")
    for key, value in changes.items():
        spec.set_value(table, key.replace("__", "."), value)
    spec.dump(table, path)
    return path


def test_facts_of_a_sound_dataset(data, tmp_path):
    result, findings = check(data / "train", "--eval", data / "eval", "--facts", tmp_path / "f" / "facts.json")
    assert not findings
    for name, folder in (("train", "f"), ("eval", "f/eval")):
        facts = json.loads((tmp_path / folder / "facts.json").read_text())
        jsonschema.validate(facts, bundle.schema("dataset_facts"))
        assert facts == result[name]
    train = result["train"]
    assert (train["records"], train["clips"], train["questions"]) == (6, 6, 6)
    assert train["question_types"] == {"yes_no": 6} and train["answers"] == {"yes_no": {"yes": 4, "no": 2}}
    assert train["majority_accuracy"] == pytest.approx(4 / 6, abs=1e-4)
    assert train["media"]["frames"] == {"min": 16, "p50": 16, "max": 16}
    clips = parquet.read_table(tmp_path / "f" / "clips.parquet").to_pylist()
    assert [clip["clip"] for clip in clips] == [f"clips/{number}.mp4" for number in range(6)]
    assert {(clip["width"], clip["height"], clip["seconds"], clip["records"]) for clip in clips} == {(64, 48, 2.0, 1)}
    records = parquet.read_table(tmp_path / "f" / "records.parquet").to_pylist()
    assert [row["id"] for row in records] == [f"r{number}" for number in range(6)]
    assert [row["clips"] for row in records] == [[number] for number in range(6)]


def test_prediction_of_a_training_run(data, tmp_path):
    path = write_spec(tmp_path / "spec.toml", train__train_batch_per_replica=2)
    result, findings = check(data / "train", "--spec", path, "--facts", tmp_path / "facts.json")
    assert not findings
    prediction = result["train"]["prediction"]
    # 48 x 64 grows to the floor of 128 tokens per frame: 320 x 448 px = 140 tokens, 4 pairs of frames, 8 per marker
    assert vision_tokens.frame_size(48, 64, 8, EIGHT, 16) == (320, 448)
    assert prediction["vision_tokens"]["max"] == 4 * (140 + 8)
    assert prediction["frames"] == {"min": 8, "p50": 8, "max": 8}
    assert prediction["steps_per_epoch"] == {"1": 3, "2": 1, "4": 1, "8": 0}
    costs = vision_tokens.tokens_for_spec(tmp_path / "facts.json", spec.load(path))
    assert [cost.total for cost in costs] == [prediction["tokens"]["max"]] * 6


def test_samples_that_do_not_fit_are_named(data, tmp_path):
    path = write_spec(tmp_path / "spec.toml", policy__model_max_length=500, train__train_batch_per_replica=7)
    _, findings = check(data / "train", "--spec", path, expect=1)
    assert findings["DATA-TOKENS"]["data"]["record_ids"] == [f"r{number}" for number in range(6)]
    assert "DATA-STEPS-NONE" in findings
    path = write_spec(tmp_path / "spec.toml", custom__vision__nframes=32)
    _, findings = check(data / "train", "--spec", path, expect=1)
    assert findings["DATA-CLIP-TOO-SHORT"]["data"]["count"] == 6


def test_media_that_cannot_be_used_are_named(tmp_path):
    root = write_dataset(tmp_path / "data", [record(number) for number in range(9)])
    clips = root / "clips"
    (clips / "0.mp4").write_bytes(b"")
    (clips / "1.mp4").write_bytes((clips / "1.mp4").read_bytes()[:600])
    (clips / "2.mp4").unlink()
    os.mkfifo(clips / "2.mp4")
    write_clip(clips / "3.mp4", frames=40, skipped=20)
    records = [record(number) for number in range(9)]
    records[4]["video"] = "../secret.mp4"
    records[5]["image"] = records[5].pop("video")
    records[5]["conversations"][0]["value"] = "Is it bright?"
    shutil.copy(clips / "6.mp4", tmp_path / "elsewhere.mp4")
    records[6]["video"] = str(tmp_path / "elsewhere.mp4")
    records[8] |= {"id": "a/b"}
    records[7] |= {"id": "r6"}
    (root / "annotations.json").write_text(json.dumps(records))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    _, findings = check(root, expect=1)
    named = {name: finding["data"]["record_ids"] for name, finding in findings.items()}
    assert named == {
        "DATA-MEDIA-EMPTY": ["r0"],
        "DATA-MEDIA-UNDECODABLE": ["r1"],
        "DATA-MEDIA-MISSING": ["r2"],
        "DATA-MEDIA-FRAMES": ["r3"],
        "DATA-MEDIA-ESCAPE": ["r4"],
        "DATA-MEDIA-KIND": ["r5"],
        "DATA-MEDIA-OUTSIDE": ["r6"],
        "DATA-ID-DUPLICATE": ["r6"],
        "DATA-ID-UNSAFE": ["a/b"],
    }
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_leakage_is_found_by_content(data, tmp_path):
    held_out = tmp_path / "eval"
    shutil.copytree(data / "eval", held_out)
    shutil.copy(data / "train" / "clips" / "2.mp4", held_out / "clips" / "0.mp4")
    shutil.copy(data / "train" / "clips" / "3.mp4", held_out / "clips" / "1.mp4")
    records = json.loads((held_out / "annotations.json").read_text())
    records[1]["conversations"][0]["value"] = "<video>\nSomething else?"
    (held_out / "annotations.json").write_text(json.dumps(records))
    _, findings = check(data / "train", "--eval", held_out, expect=1)
    assert findings["DATA-LEAK-QUESTION"]["data"]["record_ids"] == ["e0"]
    assert findings["DATA-LEAK-CLIP"]["data"]["record_ids"] == ["e1"]


def test_what_only_evaluation_needs_is_an_error_only_there(data, tmp_path):
    records = [record(0, id="same"), record(1, id="same"), record(2) | {"id": None}]
    write_dataset(tmp_path / "d", records, tint=50)
    _, findings = check(tmp_path / "d")
    assert {finding["severity"] for finding in findings.values()} <= {"warning", "info"}
    _, findings = check(data / "train", "--eval", tmp_path / "d", expect=1)
    assert {findings[name]["severity"] for name in ("DATA-ID-DUPLICATE", "DATA-ID-MISSING")} == {"error"}


def test_repeated_and_contradicting_questions(tmp_path):
    records = [record(0), record(1, id="again", video="clips/0.mp4"), record(2, "No", id="not", video="clips/0.mp4")]
    write_dataset(tmp_path / "d", records)
    _, findings = check(tmp_path / "d")
    assert findings["DATA-QUESTION-DUPLICATE"]["data"]["record_ids"] == ["again"]
    assert findings["DATA-ANSWER-CONFLICT"]["data"]["record_ids"] == ["not"]


@pytest.mark.parametrize("args", [[], ["nowhere"], ["{data}/train", "--eval", "nowhere"], ["{data}/train/clips"]])
def test_what_cannot_be_read_is_exit_2(data, args):
    done = run_script("check_dataset.py", *[word.format(data=data) for word in args], "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["findings"] and "Traceback" not in done.stderr


def test_the_screen_stays_small(tmp_path):
    write_dataset(tmp_path / "d", [record(0)])
    (tmp_path / "d" / "annotations.json").write_text(json.dumps([record(number, "") for number in range(3000)]))
    done = run_script("check_dataset.py", tmp_path / "d", "--decode", "none")
    assert done.returncode == 1
    assert len(done.stdout) + len(done.stderr) < 4000


def examine(paths, timeout=30.0, decode="sampled", cache=None):
    reports = clip_checks.examine_all(paths, decode, EIGHT, timeout, cache or clip_checks.Cache())
    return [report for _, report in sorted(reports, key=lambda pair: pair[0])]


def test_a_hang_and_a_crash_are_reports_and_the_rest_is_examined(tmp_path, monkeypatch):
    """The decoder is replaced by one that hangs or dies on a name; workers inherit it."""
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("workers do not inherit the replaced decoder")
    paths = [write_clip(tmp_path / f"{name}.mp4") for name in ("a", "hang", "b", "crash", "hang2", "c")]
    probe = media.probe

    def treacherous(path):
        if "hang" in path.name:
            time.sleep(60)
        if "crash" in path.name:
            os.kill(os.getpid(), signal.SIGKILL)
        return probe(path)

    monkeypatch.setattr(media, "probe", treacherous)
    started = time.monotonic()
    reports = examine(paths, timeout=1.0)
    assert time.monotonic() - started < 20
    problems = [report.check for report in reports]
    assert problems == ["", "DATA-MEDIA-TIMEOUT", "", "DATA-MEDIA-CRASH", "DATA-MEDIA-TIMEOUT", ""]
    assert not multiprocessing.active_children()


def test_unchanged_files_are_remembered_and_changed_ones_are_not(tmp_path, monkeypatch):
    paths = [write_clip(tmp_path / f"{number}.mp4") for number in range(3)]
    first = examine(paths)
    with monkeypatch.context() as patch:
        patch.setattr(media, "probe", lambda path: pytest.fail(f"examined {path} again"))
        assert examine(paths) == first
    write_clip(paths[1], frames=30)
    assert [report.facts.frames for report in examine(paths)] == [16, 30, 16]


def test_a_broken_cache_costs_only_time(tmp_path):
    path = write_clip(tmp_path / "a.mp4")
    (tmp_path / "cache" / "cosmos_reason").mkdir(parents=True)
    (tmp_path / "cache" / "cosmos_reason" / "clips.sqlite").write_bytes(b"not a database" * 100)
    cache = clip_checks.Cache()
    assert "not a database" in cache.problem
    assert examine([path], cache=cache)[0].facts.frames == 16


def test_decoding_everything_finds_what_headers_hide(tmp_path):
    path = write_clip(tmp_path / "a.mp4", frames=60, width=320, height=240)
    content = bytearray(path.read_bytes())
    start = content.index(b"mdat") + 4
    content[start + 2000 : start + 2400] = b"\xff" * 400
    path.write_bytes(content)
    headers, everything = examine([path], decode="none")[0], examine([path], decode="all")[0]
    assert headers.facts.frames == 60
    assert everything.facts is None or everything.facts.frames == 60  # a decoder may conceal the damage, never crash


def test_every_check_is_listed():
    done = run_script("check_dataset.py", "--list-checks", "--json")
    assert set(json.loads(done.stdout)["result"]["checks"]) == set(dataset_checks.CHECKS)
