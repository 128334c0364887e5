"""Names, sizes and specs that the check must neither pass over nor refuse."""

import json
import os
import shlex
import shutil
import tarfile

import pytest
from clip_files import check, record, write_clip, write_dataset
from support import run_here, run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.estimate import text_tokens
from cosmos_reason.media import checks as clip_checks
from cosmos_reason.media import sampling
from cosmos_reason.media.sampling import VisionOptions
from cosmos_reason.spec import document
from cosmos_reason.spec.prompts import ADDED


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))


def test_names_inside_and_outside_the_media_path(tmp_path):
    names = ["..dots.mp4", f"{tmp_path}/d/1.mp4", f"{tmp_path}/d/../out.mp4"]
    names.append("2024-01-01T10:00:00.mp4")
    records = [record(number, video=name) for number, name in enumerate(names)]
    for name in names:
        write_clip(tmp_path / "d" / name)
    (tmp_path / "d" / "annotations.json").write_text(json.dumps(records))
    done = run_script("check_dataset.py d/annotations.json --media-path d --json", cwd=tmp_path)
    found = {one["id"]: one["data"] for one in json.loads(done.stdout)["findings"]}
    assert set(found) == {"DATA-MEDIA-OUTSIDE", "DATA-SIZE"}
    assert found["DATA-MEDIA-OUTSIDE"]["record_ids"] == ["r2"]


def test_an_absolute_clip_beside_an_archive_and_a_damaged_one(tmp_path):
    data = write_dataset(tmp_path / "data", [record(0), record(1)])
    write_clip(tmp_path / "far.mp4")
    records = [record(0), record(1), record(2, video=str(tmp_path / "far.mp4"))]
    (data / "annotations.json").write_text(json.dumps(records))
    with tarfile.open(data / "videos.tar.gz", "w:gz") as tar:
        tar.add(data / "clips", "clips")
    shutil.rmtree(data / "clips")
    result, findings = check(data, "--html", tmp_path / "page.html")
    assert set(findings) == {"DATA-MEDIA-OUTSIDE"}
    assert result["train"]["media"]["frames"]["max"] == 16
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") == 3
    content = (data / "videos.tar.gz").read_bytes()
    (data / "videos.tar.gz").write_bytes(content[: len(content) // 2])
    assert "damaged archive" in check(data, expect=1)[1]["DATA-MEDIA-MISSING"]["message"]


def test_a_suffix_of_another_kind(tmp_path):
    data = write_dataset(tmp_path / "data", [record(0, video="clips/0.png")])
    (data / "clips" / "0.mp4").rename(data / "clips" / "0.png")
    assert set(check(data, expect=1)[1]) == {"DATA-MEDIA-KIND"}


def test_a_media_root_above_the_annotations_is_said_in_so_many_words(tmp_path):
    write_clip(tmp_path / "a.mp4")
    (tmp_path / "in").mkdir()
    item = {"id": "a", "video_id": "a.mp4", "question": "Bright?", "answer": "Yes"}
    (tmp_path / "in" / "daft.json").write_text(json.dumps({"media_root": "../", "items": [item]}))
    _, findings = check(tmp_path / "in" / "daft.json", expect=2)
    check(tmp_path / "in" / "daft.json", *shlex.split(findings["DATA-MEDIA-ESCAPE"]["fix"]))


def test_the_fix_of_a_time_out_is_more_time(tmp_path):
    data = write_dataset(tmp_path / "data", [record(0)])
    write_clip(data / "clips" / "0.mp4", frames=300, width=640, height=480)
    _, findings = check(data, "--timeout", 0.001, "--decode", "all", expect=1)
    assert findings["DATA-MEDIA-TIMEOUT"]["fix"] == "--timeout 0.004"


def test_lines_in_a_folder_and_names_that_are_no_text(tmp_path):
    data = write_dataset(tmp_path / os.fsdecode(b"n\xff"), [record(0)])
    (data / "annotations.json").unlink()
    (data / "annotations.jsonl").write_text(json.dumps(record(0, "Größe")))
    check(data, "--facts", tmp_path / "facts.json", "--html", tmp_path / "page.html")
    assert json.loads((tmp_path / "facts.json").read_text())["answers"]["text"] == {"Größe": 1}


def test_texts_alone_leak_too(tmp_path):
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]
    other = [{"from": "human", "value": "How?"}, {"from": "gpt", "value": "So."}]
    (tmp_path / "a.json").write_text(json.dumps([{"id": "a", "conversations": turns}]))
    eval_records = [{"id": "b", "conversations": turns}, {"id": "c", "conversations": other}]
    (tmp_path / "b.json").write_text(json.dumps(eval_records))
    _, findings = check(tmp_path / "a.json", "--eval", tmp_path / "b.json", expect=1)
    assert findings["DATA-LEAK-QUESTION"]["data"]["record_ids"] == ["b"]
    assert "DATA-LEAK-CLIP" not in findings
    assert "neither shows a clip" in findings["DATA-LEAK-QUESTION"]["message"]


def write_evaluation(path, **changes):
    table = document.template("evaluate")
    for key, value in changes.items():
        document.set_value(table, key.replace("__", "."), value)
    document.dump(table, path)
    return path


def total(data, path):
    return check(data, "--spec", path)[0]["train"]["prediction"]["tokens"]["max"]


def test_an_evaluation_generates_its_answers_and_has_a_system_prompt(tmp_path):
    long, short = record(0, "It is. " * 300), record(0, "It.")
    data = write_dataset(tmp_path / "data", [long])
    path = write_evaluation(tmp_path / "spec.toml", generation__max_tokens=100)
    tokens = total(data, path)
    (data / "annotations.json").write_text(json.dumps([short]))
    assert total(data, path) == tokens < 1000
    prompt = "You watch traffic. " * 30
    changes = {"generation__max_tokens": 100, "dataset__system_prompt": prompt}
    path = write_evaluation(tmp_path / "spec.toml", **changes)
    assert total(data, path) == tokens + text_tokens.Estimate().system(prompt)
    own = {"from": "system", "value": prompt}
    with_own = short | {"conversations": [own, *short["conversations"]]}
    (data / "annotations.json").write_text(json.dumps([with_own]))
    assert total(data, path) == tokens + text_tokens.Estimate().system(prompt)


@pytest.mark.parametrize("answer_type", ["reasoning", "letter"])
def test_the_words_that_ask_for_a_form_of_answer_are_counted(tmp_path, answer_type):
    data = write_dataset(tmp_path / "data", [record(0)])
    plain = total(data, write_evaluation(tmp_path / "spec.toml"))
    path = write_evaluation(tmp_path / "spec.toml", evaluation__answer_type=answer_type)
    assert total(data, path) == plain + text_tokens.estimate(ADDED[answer_type])


SPECS = ["policy = 3", "train = 'x'", "[policy]\nmodel_max_length = 'x'"]


@pytest.mark.parametrize("written", [*SPECS, "[train]\ntrain_batch_per_replica = 0"])
def test_a_spec_that_is_no_spec_ends_as_findings(tmp_path, written):
    data = write_dataset(tmp_path / "data", [record(0)])
    (tmp_path / "spec.toml").write_text(written)
    assert set(check(data, "--spec", tmp_path / "spec.toml", expect=1)[1]) == {"SPEC-VALUE"}
    document.dump(document.template("quantize"), tmp_path / "spec.toml")
    assert set(check(data, "--spec", tmp_path / "spec.toml", expect=2)[1]) == {"SPEC-ACTION"}


@pytest.mark.parametrize("name", ["annotations.json", "other.json"])
def test_the_next_command_makes_a_spec_of_these_data(tmp_path, name):
    data, held_out = write_dataset(tmp_path / "my data", [record(0)]), tmp_path / "eval"
    (data / "annotations.json").unlink()
    records = [record(0, "No" if n % 2 else "Yes", id=str(n)) for n in range(100)]
    for n, one in enumerate(records):
        one["conversations"][0]["value"] += f" In part {n}?"
    (data / name).write_text(json.dumps(records))
    write_dataset(held_out, [record(0)], tint=9)
    flags = ["--eval", held_out, "--facts", tmp_path / "facts.json", "--json"]
    done = run_script("check_dataset.py", data / name, *flags)
    script, *args = shlex.split(json.loads(done.stdout)["next"])
    made = run_script(os.path.basename(script), *args, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    written = document.load(tmp_path / "spec.toml")
    assert document.get(written, "custom.train_dataset.annotation_path") == str(data / name)
    assert document.get(written, "custom.train_dataset.media_path") == str(data)
    evaluated = document.get(written, "custom.val_dataset.annotation_path")
    assert evaluated == str(held_out / "annotations.json")


@pytest.mark.parametrize("flag", ["--facts", "--html"])
def test_a_pipe_is_not_replaced(tmp_path, flag):
    data = write_dataset(tmp_path / "data", [record(0)])
    os.mkfifo(tmp_path / "pipe")
    assert "FILE-TARGET" in check(data, flag, tmp_path / "pipe", expect=2)[1]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("table", ["vision", "custom.vision"])
@pytest.mark.parametrize(
    "options",
    [{"max_pixels": 100}, {"max_pixels": 50_000}, {"max_pixels": 500_000, "min_pixels": 900_000}],
)
def test_fixes_of_sampling_name_the_table_of_the_spec(table, options):
    written = {}
    document.set_value(written, table, {"nframes": 8} | options)
    with pytest.raises(Failure) as caught:
        sampling.frame_size(480, 640, 8, VisionOptions.from_spec(written), 16)
    key, value = str(caught.value.findings[0].fix).removeprefix("--set ").split("=")
    assert key.startswith(f"{table}.")
    document.set_value(written, key, json.loads(value))
    assert sampling.frame_size(480, 640, 8, VisionOptions.from_spec(written), 16)
    with pytest.raises(Failure) as caught:
        sampling.frame_count(4, 8.0, VisionOptions.from_spec(written))
    assert str(caught.value.findings[0].fix) == f"--set {table}.nframes=4"


def test_looking_at_many_frames_needs_the_memory_of_one(tmp_path, monkeypatch):
    path = write_clip(tmp_path / "a.mp4", frames=40)
    monkeypatch.delattr(clip_checks.media, "decode_frames")  # which would keep them
    assert clip_checks.examine(path, "sampled", VisionOptions(nframes=40)).facts.frames == 40


def test_a_stated_rate_that_the_clip_does_not_have(tmp_path):
    rates = {"r0": 240, "r1": 8, "r2": 8.5}
    records = [record(n, video_fps=rate) for n, rate in enumerate(rates.values())]
    data = write_dataset(tmp_path / "data", records)
    _, findings = check(data, expect=1)
    assert set(findings) == {"DATA-VIDEO-FPS-OTHER"}
    assert findings["DATA-VIDEO-FPS-OTHER"]["data"]["record_ids"] == ["r0"]


def test_a_letter_that_no_option_has_is_found_when_built_and_when_checked(tmp_path):
    question = "What colour? A. red B. blue C. green D. black"
    write_clip(tmp_path / "source" / "0.mp4")
    rows = f'video,question,label\n0.mp4,"{question}",E\n0.mp4,"Again: {question}",B\n'
    (tmp_path / "source" / "labels.csv").write_text(rows)
    done = run_script("build_dataset.py", tmp_path / "source", "-o", tmp_path / "out", "--json")
    (found,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, found["id"]) == (1, "DATA-ANSWER-OPTION")
    assert found["data"]["count"] == 1
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": "E"}]
    data = write_dataset(tmp_path / "data", [record(0, conversations=turns)])
    assert set(check(data, expect=1)[1]) == {"DATA-ANSWER-OPTION"}


def test_clips_that_are_not_there_cost_no_worker(tmp_path, monkeypatch):
    records = [record(number, "No" if number % 3 else "Yes") for number in range(30)]
    root = write_dataset(tmp_path / "d", records)
    for number in range(30):
        (root / "clips" / f"{number}.mp4").rename(root / "clips" / f"of_{number}.mp4")
    handed, start = [], clip_checks._Worker
    monkeypatch.setattr(
        clip_checks, "_Worker", lambda *words: handed.append(words) or start(*words)
    )
    done = run_here("check_dataset.py", root, "--json", cwd=tmp_path)
    (told,) = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
    assert (told["id"], told["data"]["count"]) == ("DATA-MEDIA-MISSING", 30)
    assert handed == []
