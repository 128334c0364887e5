import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import jsonschema
import pyarrow.parquet as parquet
import pytest
from clip_files import check, record, write_clip, write_dataset, write_spec
from preflight_command import preflight_json
from support import called, run_script

from cosmos_reason.base import bundle, files
from cosmos_reason.data import checks as dataset_checks
from cosmos_reason.estimate import record_tokens
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media import files as media
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.spec import document as spec

EIGHT = VisionOptions(nframes=8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """train: 6 records, Yes 4 times; eval: 3 records on other clips."""
    root = tmp_path_factory.mktemp("data")
    write_dataset(root / "train", [record(n, "No" if n > 3 else "Yes") for n in range(6)])
    write_dataset(root / "eval", [record(n, id=f"e{n}") for n in range(3)], tint=100)
    return root


def test_facts_of_a_sound_dataset(data, tmp_path):
    asked = (data / "train", "--eval", data / "eval", "--facts", tmp_path / "f" / "facts.json")
    result, findings = check(*asked)
    assert set(findings) == {"DATA-EVAL-SMALL"}, "three questions say little"
    for name, folder in (("train", "f"), ("eval", "f/eval")):
        facts = json.loads((tmp_path / folder / "facts.json").read_text())
        jsonschema.validate(facts, bundle.schema("dataset_facts"))
        assert facts == result[name]
    train = result["train"]
    assert (train["records"], train["clips"], train["questions"]) == (6, 6, 6)
    assert train["question_types"] == {"yes_no": 6}
    assert train["answers"] == {"yes_no": {"yes": 4, "no": 2}}
    assert train["majority_accuracy"] == pytest.approx(4 / 6, abs=1e-4)
    assert train["media"]["frames"] == {"min": 16, "p50": 16, "max": 16}
    clips = parquet.read_table(tmp_path / "f" / "facts.clips.parquet").to_pylist()
    assert [clip["clip"] for clip in clips] == [f"clips/{number}.mp4" for number in range(6)]
    sizes = [[clip[key] for key in ("width", "height", "seconds", "records")] for clip in clips]
    assert sizes == [[64, 48, 2.0, 1]] * 6
    records = parquet.read_table(tmp_path / "f" / "facts.records.parquet").to_pylist()
    assert [row["id"] for row in records] == [f"r{number}" for number in range(6)]
    assert [row["clips"] for row in records] == [[number] for number in range(6)]


def test_prediction_of_a_training_run(data, tmp_path):
    path = write_spec(tmp_path / "spec.toml", train__train_batch_per_replica=2)
    result, findings = check(data / "train", "--spec", path, "--facts", tmp_path / "facts.json")
    assert not findings
    prediction = result["train"]["prediction"]
    # 48 x 64 grows to the floor of 128 tokens per frame: 320 x 448 px = 140 tokens, 4 pairs of
    # frames, 8 per marker
    assert sampling.frame_size(48, 64, 8, EIGHT, 16) == (320, 448)
    assert prediction["vision_tokens"]["max"] == 4 * (140 + 8)
    assert prediction["frames"] == {"min": 8, "p50": 8, "max": 8}
    # the template keeps the last batch
    assert prediction["steps_per_epoch"] == {"1": 3, "2": 2, "4": 1, "8": 1}
    drops = {"train__train_batch_per_replica": 2, "train__train_policy__dataloader_drop_last": True}
    dropping, _ = check(data / "train", "--spec", write_spec(tmp_path / "drop.toml", **drops))
    assert dropping["train"]["prediction"]["steps_per_epoch"] == {"1": 3, "2": 1, "4": 1, "8": 0}
    costs = record_tokens.tokens_for_spec(tmp_path / "facts.json", spec.load(path))
    totals = [cost.total for cost in costs]
    assert len(totals) == 6 and max(totals) == prediction["tokens"]["max"]


def test_samples_that_do_not_fit_are_named(data, tmp_path):
    drops = {"train__train_policy__dataloader_drop_last": True, "train__train_batch_per_replica": 7}
    path = write_spec(tmp_path / "spec.toml", policy__model_max_length=500, **drops)
    _, findings = check(data / "train", "--spec", path, expect=1)
    assert findings["DATA-TOKENS"]["data"]["record_ids"] == [f"r{number}" for number in range(6)]
    assert "DATA-STEPS-NONE" in findings
    path = write_spec(tmp_path / "spec.toml", custom__vision={"fps": 2.0})
    result, findings = check(data / "train", "--spec", path, expect=1)
    assert result["train"]["prediction"]["frames"]["max"] == 4
    assert findings["DATA-FPS-MISSING"]["data"]["count"] == 6
    path = write_spec(tmp_path / "spec.toml", custom__vision__nframes=32)
    _, findings = check(data / "train", "--spec", path, expect=1)
    assert findings["DATA-CLIP-TOO-SHORT"]["data"]["count"] == 6


def test_records_without_a_rate_stop_engine_tao_and_the_fix_measures_them(tmp_path):
    root = write_dataset(tmp_path / "my data", [record(number) for number in range(2)])
    path = write_spec(tmp_path / "spec.toml", custom__vision={"fps": 2.0})
    _, findings = check(root, "--spec", path, expect=1)
    assert findings["DATA-FPS-MISSING"]["severity"] == "error"
    script, *words = shlex.split(findings["DATA-FPS-MISSING"]["fix"])
    assert run_script(Path(script).name, *words).returncode == 0
    built = tmp_path / "my data-with-rates" / "train"
    rows = json.loads((built / "annotations.json").read_text())
    assert [row["video_fps"] for row in rows] == [8.0, 8.0]
    assert not check(built, "--spec", path)[1]
    noted = {"action": "train", "engine": "transformers"}
    files.write_json(path.with_suffix(".origins.json"), noted)
    _, findings = check(root, "--spec", path)
    assert findings["DATA-FPS-MISSING"]["severity"] == "warning"


def test_preflight_stops_engine_tao_too_at_training_and_at_validation_data(tmp_path):
    root = write_dataset(tmp_path / "data", [record(number) for number in range(2)])
    places = {"annotation_path": str(root / "annotations.json"), "media_path": str(root)}
    custom = {"train_dataset": places, "val_dataset": places, "vision": {"fps": 2.0}}
    path = write_spec(tmp_path / "spec.toml", custom=custom, validation__enable=True)
    asked = "--platform docker --skip-platform-access --target-gpu-count 1 --spec".split()
    found = preflight_json(*asked, path, env={"HF_ENDPOINT": "http://127.0.0.1:9"})[1]
    assert found["SPEC-FPS-RATES"]["severity"] == found["DATA-FPS-MISSING"]["severity"] == "error"
    assert found["SPEC-FPS-RATES"]["data"]["record_ids"] == ["r0", "r1"]


def test_a_sampling_that_there_is_not_is_an_error_found_in_the_spec(data, tmp_path):
    path = write_spec(tmp_path / "spec.toml", custom__vision={"nframes": 8, "fps": 2.0})
    assert set(check(data / "train", "--spec", path, expect=1)[1]) == {"SPEC-VISION-FPS-NFRAMES"}
    vision = {"nframes": 8, "min_pixels": 100000, "max_pixels": 1000}
    path = write_spec(tmp_path / "spec.toml", custom__vision=vision)
    page = tmp_path / "page.html"
    where = (data / "train", "--eval", data / "eval", "--spec", path, "--html", page)
    result, findings = check(*where, expect=1)
    assert result["train"]["records"] == 6 and "SPEC-VISION-PIXELS" in page.read_text()
    pasted(path, findings["SPEC-VISION-PIXELS"]["fix"])
    assert "SPEC-VISION-PIXELS" not in check(*where)[1]


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


def test_the_fix_of_a_damaged_video_is_run_and_images_get_none(tmp_path):
    """What of a clip decodes is written again (tests/integration/media); what does not stays."""
    root = write_dataset(tmp_path / "my data", [record(number) for number in range(2)])
    (root / "clips" / "0.mp4").write_bytes(b"broken")
    fix = check(root, expect=1)[1]["DATA-MEDIA-UNDECODABLE"]["fix"]
    assert "media.convert" in fix and "remove its records" in fix
    done = called(["sh", "-c", fix])
    assert done.returncode == 2 and "0.mp4: got Invalid data" in done.stderr
    assert (root / "clips" / "0.mp4").read_bytes() == b"broken"
    (root / "clips" / "1.png").write_bytes(b"broken")
    records = [record(1, image="clips/1.png")]
    del records[0]["video"]
    records[0]["conversations"][0]["value"] = "Is it bright?"
    (root / "annotations.json").write_text(json.dumps(records))
    _, findings = check(root, expect=1)
    assert not findings["DATA-MEDIA-UNDECODABLE"]["fix"]


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
    asked, shown = (findings[f"DATA-LEAK-{what}"]["message"] for what in ("QUESTION", "CLIP"))
    assert "'e0' (clips/0.mp4)" in asked and "'r2' (clips/2.mp4)" in asked
    assert "'e1' (clips/1.mp4)" in shown and "'r3' (clips/3.mp4)" in shown
    assert "byte-identical" in asked and "byte-identical" in shown
    itself = check(data / "train", "--eval", data / "train", expect=1)[1]["DATA-LEAK-QUESTION"]
    assert "both are one file" in itself["message"]


def test_what_only_evaluation_needs_is_an_error_only_there(data, tmp_path):
    records = [record(0, id="same"), record(1, id="same"), record(2) | {"id": None}]
    write_dataset(tmp_path / "d", records, tint=50)
    _, findings = check(tmp_path / "d")
    assert {finding["severity"] for finding in findings.values()} <= {"warning", "info"}
    _, findings = check(data / "train", "--eval", tmp_path / "d", expect=1)
    both = ("DATA-ID-DUPLICATE", "DATA-ID-MISSING")
    assert {findings[name]["severity"] for name in both} == {"error"}


def pack(folder, archive):
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, f"./{path.relative_to(folder)}", recursive=False)


def test_media_in_an_archive_are_examined_without_unpacking(data, tmp_path):
    source = shutil.copytree(data / "train", tmp_path / "source")
    (source / "clips" / "1.mp4").unlink()
    (source / "clips" / "1.mp4").symlink_to("/etc/passwd")
    (source / "clips" / "2.mp4").write_bytes(b"broken")
    (tmp_path / "root").mkdir()
    pack(source, tmp_path / "root" / "videos.tar.gz")
    shutil.copy(source / "annotations.json", tmp_path / "root")
    for _ in range(2):  # the second time from the cache
        result, findings = check(tmp_path / "root", expect=1)
        assert result["train"]["media_path"].endswith("videos.tar.gz")
        assert findings["DATA-MEDIA-MISSING"]["data"]["record_ids"] == ["r1"]
        assert findings["DATA-MEDIA-UNDECODABLE"]["data"]["record_ids"] == ["r2"]
        assert result["train"]["clips_with_problems"] == 2
    left = sorted(path.name for path in (tmp_path / "root").iterdir())
    assert left == ["annotations.json", "videos.tar.gz"]


def test_of_two_members_of_a_name_each_stays_itself(data, tmp_path):
    """The second file of a name must not be taken for the next member."""
    clips = data / "train" / "clips"
    with tarfile.open(tmp_path / "videos.tar.gz", "w:gz") as tar:
        for name, file in (("0", "0"), ("0", "1"), ("1", "1"), ("2", "2")):
            tar.add(clips / f"{file}.mp4", f"clips/{name}.mp4")
    names = {number: f"clips/{number}.mp4" for number in range(3)}
    how = "sampled", EIGHT, 30.0, clip_checks.Cache()
    found = dict(clip_checks.examine_archive(tmp_path / "videos.tar.gz", names, *how))
    alone = examine([clips / f"{n}.mp4" for n in range(3)])
    assert [found[number].content for number in range(3)] == [one.content for one in alone]


def test_a_damaged_archive_gives_what_can_be_read(data, tmp_path):
    (tmp_path / "root").mkdir()
    archive = tmp_path / "root" / "videos.tar.gz"
    source = shutil.copytree(data / "train", tmp_path / "source")
    for clip in (source / "clips").iterdir():
        clip.write_bytes(clip.read_bytes() + os.urandom(200_000))
    pack(source, archive)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size * 2 // 3])
    shutil.copy(data / "train" / "annotations.json", tmp_path / "root")
    _, findings = check(tmp_path / "root", expect=1)
    assert 0 < findings["DATA-MEDIA-MISSING"]["data"]["count"] < 6
    archive.write_bytes(b"no archive")
    _, findings = check(tmp_path / "root", expect=1)
    assert findings["DATA-MEDIA-MISSING"]["data"]["count"] == 6


def test_more_ids_than_a_finding_carries_go_to_a_file(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([record(number, "") for number in range(1200)]))
    _, findings = check(tmp_path / "a.json", "--facts", tmp_path / "facts" / "facts.json", expect=1)
    data = findings["DATA-ANSWER-EMPTY"]["data"]
    assert data["count"] == 1200 and len(data["record_ids"]) == 1000
    with open(data["file"]) as lines:
        assert lines.read().split() == [f"r{number}" for number in range(1200)]


def test_the_page_shows_findings_and_clips_and_asks_for_nothing(data, tmp_path):
    root = shutil.copytree(data / "train", tmp_path / "root")
    records = json.loads((root / "annotations.json").read_text())
    records[1]["conversations"][0]["value"] = "<video>\n<script>alert(1)</script> & more?"
    records[2]["conversations"][1]["value"] = ""
    (root / "annotations.json").write_text(json.dumps(records))
    check(root, "--eval", data / "eval", "--html", tmp_path / "page.html", expect=1)
    page = (tmp_path / "page.html").read_text()
    assert "DATA-ANSWER-EMPTY" in page and page.count("data:image/jpeg") == 9
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    pack(root, tmp_path / "videos.tar.gz")
    flags = ("--media-path", tmp_path / "videos.tar.gz", "--html", tmp_path / "page.html")
    check(root, *flags, expect=1)
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") == 6


def test_repeated_and_contradicting_questions(tmp_path):
    others = [record(1, id="again"), record(2, "No", id="not")]
    write_dataset(tmp_path / "d", [record(0), *(one | {"video": "clips/0.mp4"} for one in others)])
    _, findings = check(tmp_path / "d", expect=1)
    assert findings["DATA-QUESTION-DUPLICATE"]["data"]["record_ids"] == ["again"]
    assert findings["DATA-ANSWER-CONFLICT"]["data"]["record_ids"] == ["not"]
    assert findings["DATA-ANSWER-CONFLICT"]["severity"] == "error"


@pytest.mark.parametrize(
    ("question", "answers", "told"),
    [
        ("Is it open?", ["Yes", "yes.", "<think>It is.</think> Yes"], ""),
        ("Is it open?", ["Yes", "<think>It is not.</think> No"], "DATA-ANSWER-CONFLICT"),
        ("Which?\n(A) one\n(B) two", ["A", "(A) one"], ""),
        ("Which?\n(A) one\n(B) two", ["A", "(B) two"], "DATA-ANSWER-CONFLICT"),
        ("How many?", ["3", "3.0"], ""),
        ("How many?", ["3", "4"], "DATA-ANSWER-CONFLICT"),
        ("Where does it go?", ["left", "right"], "DATA-ANSWER-CONFLICT"),
        ("What happens?", ["A man sings.", "Somebody is singing."], "DATA-ANSWER-SEVERAL"),
    ],
)
def test_answers_that_exclude_each_other_are_an_error_and_captions_a_warning(
    tmp_path, question, answers, told
):
    records = []
    for number, answer in enumerate(answers):
        asked = {"from": "human", "value": f"<video>\n{question}"}
        turns = [asked, {"from": "gpt", "value": answer}]
        records.append(record(0) | {"id": f"{number}", "conversations": turns})
    write_dataset(tmp_path / "d", records)
    _, findings = check(tmp_path / "d", expect=int(told == "DATA-ANSWER-CONFLICT"))
    found = [id for id in ("DATA-ANSWER-CONFLICT", "DATA-ANSWER-SEVERAL") if id in findings]
    assert found == [told] * bool(told), findings
    if told:
        severity = "error" if told == "DATA-ANSWER-CONFLICT" else "warning"
        assert findings[told]["severity"] == severity


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["yes", "no", "Yes", "no"], ["2"]),
        (["Yes", "no", "Yes", "no"], ["1"]),
        (["A dog", "no dog", "a dog", "A dog"], ["2"]),
        (["Yes", "No", "Perhaps", "perhaps not"], []),
    ],
)
def test_answers_in_several_forms_are_told(tmp_path, answers, told):
    records = [record(number, answer) for number, answer in enumerate(answers)]
    write_dataset(tmp_path / "d", records)
    _, findings = check(tmp_path / "d")
    if told:
        names = [records[int(number)]["id"] for number in told]
        assert findings["DATA-ANSWER-FORM"]["data"]["record_ids"] == names
        assert findings["DATA-ANSWER-FORM"]["severity"] == "warning"
    else:
        assert "DATA-ANSWER-FORM" not in findings


@pytest.mark.parametrize(
    "args", [[], ["nowhere"], ["{data}/train", "--eval", "nowhere"], ["{data}/train/clips"]]
)
def test_what_cannot_be_read_is_exit_2(data, args):
    done = run_script("check_dataset.py", *[word.format(data=data) for word in args], "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["findings"] and "Traceback" not in done.stderr


def test_facts_come_all_together_or_not_at_all(data, tmp_path):
    (tmp_path / "facts.json").mkdir()
    _, findings = check(data / "train", "--facts", tmp_path / "facts.json", expect=2)
    assert "FILE-TARGET" in findings
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in str(path)]
    (tmp_path / "two" / "facts.clips.parquet").mkdir(parents=True)
    _, findings = check(data / "train", "--facts", tmp_path / "two" / "facts.json", expect=2)
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["facts.clips.parquet"]
    assert "FILE-TARGET" in findings


def test_facts_in_one_folder_keep_their_own_tables(data, tmp_path):
    first, second = tmp_path / "train.json", tmp_path / "eval.json"
    check(data / "train", "--facts", first)
    check(data / "eval", "--facts", second)
    ids = [parquet.read_table(tmp_path / json.loads(facts.read_text())["records_table"])["id"]
           for facts in (first, second)]  # fmt: skip
    assert [len(one) for one in ids] == [6, 3] and ids[0][0] != ids[1][0]


def pasted(path, flags):
    """The spec with the flags of a fix applied, as build_spec would."""
    table = spec.load(path)
    for flag in flags.removeprefix("--set ").split(" --set "):
        key, _, value = flag.partition("=")
        spec.set_value(table, key, json.loads(value))
    spec.dump(table, path)


def test_fixes_of_predictions_mend_them(tmp_path):
    write_dataset(tmp_path / "d", [record(number) for number in range(5)])
    write_clip(tmp_path / "d" / "clips" / "4.mp4", frames=5)
    path = tmp_path / "spec.toml"
    long = {"policy__model_max_length": 500, "custom__vision__nframes": 4}
    write_spec(path, **long | {"policy__model_max_length": 310})
    _, findings = check(tmp_path / "d", "--spec", path, expect=1)
    pasted(path, findings["DATA-TOKENS"]["fix"])
    assert "DATA-TOKENS" not in check(tmp_path / "d", "--spec", path)[1]
    drops = {"train__train_policy__dataloader_drop_last": True, "train__train_batch_per_replica": 7}
    write_spec(path, custom__vision__nframes=16, **drops)
    _, findings = check(tmp_path / "d", "--spec", path, expect=1)
    assert findings["DATA-CLIP-TOO-SHORT"]["data"]["record_ids"] == ["r4"]
    for name in ("DATA-CLIP-TOO-SHORT", "DATA-STEPS-NONE"):
        pasted(path, findings[name]["fix"])
    assert not check(tmp_path / "d", "--spec", path)[1]


def test_reasoning_counts_when_it_is_trained_on(data, tmp_path):
    item = {"id": "a", "video_id": "clips/0.mp4", "question": "Bright?", "answer": "Yes"}
    item["reasoning"] = "It is. " * 60
    (tmp_path / "a.json").write_text(json.dumps({"items": [item]}))
    totals = []
    for mode in ("answer", "think"):
        path = write_spec(tmp_path / "spec.toml", custom__train_dataset__response_mode=mode)
        result, _ = check(tmp_path / "a.json", "--media-path", data / "train", "--spec", path)
        totals.append(result["train"]["prediction"]["tokens"]["max"])
    assert result["train"]["reasoning_share"] == 1.0 and totals[1] - totals[0] > 100


def test_nothing_of_the_training_engine_is_needed(data, tmp_path):
    program = "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    path = write_spec(tmp_path / "spec.toml")
    checked = f"check_dataset.py --spec {path} --html {tmp_path / 'p.html'}"
    for line in (checked, f"build_dataset.py -o {tmp_path / 'out'}"):
        done = run_script(line, data / "train", env={"PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr


def test_the_screen_stays_small(tmp_path):
    root = write_dataset(tmp_path / "d", [record(0)])
    records = [record(number, "") for number in range(3000)]
    (root / "annotations.json").write_text(json.dumps(records))
    done = run_script("check_dataset.py", tmp_path / "d", "--decode", "none")
    assert done.returncode == 1
    assert len(done.stdout) + len(done.stderr) < 4000


def examine(paths, timeout=30.0, decode="sampled", cache=None):
    reports = clip_checks.examine_all(
        dict(enumerate(paths)), decode, EIGHT, timeout, cache or clip_checks.Cache()
    )
    return [report for _, report in sorted(reports, key=lambda pair: pair[0])]


def test_a_hang_and_a_crash_are_reports_and_the_rest_is_examined(tmp_path, monkeypatch):
    """The decoder is replaced by one that hangs or dies on a name; workers inherit it."""
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("workers do not inherit the replaced decoder")
    names = ("a", "hang", "b", "crash", "hang2", "c")
    paths = [write_clip(tmp_path / f"{name}.mp4") for name in names]
    probe = media.probe

    def treacherous(path):
        if "hang" in path.name:
            time.sleep(3000)
        if "crash" in path.name:
            os.kill(os.getpid(), signal.SIGKILL)
        return probe(path)

    monkeypatch.setattr(media, "probe", treacherous)
    reports = examine(paths, timeout=10.0)
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
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "clips.sqlite").write_bytes(b"not a database" * 100)
    cache = clip_checks.Cache()
    assert "not a database" in cache.problem
    assert examine([path], cache=cache)[0].facts.frames == 16


def test_every_check_is_listed():
    done = run_script("check_dataset.py", "--list-checks", "--json")
    assert set(json.loads(done.stdout)["result"]["checks"]) == set(dataset_checks.CHECKS)


def test_names_of_another_machine_are_shortened_by_the_command_that_is_printed(tmp_path):
    records = [record(n, "No" if n > 3 else "Yes") for n in range(6)]
    write_dataset(tmp_path / "train", records)
    away = [one | {"video": f"/mnt/al[i]ce/a.b/{one['video']}"} for one in records]
    files.write_json(tmp_path / "train" / "annotations.json", away)
    told = check(tmp_path / "train", expect=1)[1]["DATA-MEDIA-MISSING"]
    assert "clips/0.mp4 is in" in told["message"]
    subprocess.run(["bash", "-c", told["fix"]], check=True)
    shorter = tmp_path / "train" / "annotations-here.json"
    assert [one["video"] for one in files.read_json(shorter)] == [one["video"] for one in records]
    _, found = check(shorter, "--media-path", tmp_path / "train")
    assert "DATA-MEDIA-MISSING" not in found
    (tmp_path / "train" / "clips" / "0.mp4").unlink()
    assert "sed" not in check(tmp_path / "train", expect=1)[1]["DATA-MEDIA-MISSING"]["fix"]


def test_names_that_json_wrote_escaped_get_no_command_that_does_not_find_them(tmp_path):
    records = [record(n, "No" if n > 3 else "Yes") for n in range(6)]
    write_dataset(tmp_path / "train", records)
    away = [one | {"video": f"/mnt/j\u00fcrgen/{one['video']}"} for one in records]
    (tmp_path / "train" / "annotations.json").write_text(json.dumps(away))
    told = check(tmp_path / "train", expect=1)[1]["DATA-MEDIA-MISSING"]
    assert "clips/0.mp4 is in" in told["message"] and "sed" not in told["fix"]
    outside = check(tmp_path / "train", expect=1)[1]["DATA-MEDIA-OUTSIDE"]
    assert "is looked for there only" not in outside["message"]
