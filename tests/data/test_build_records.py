"""Datasets that are built wrongly in silence, and folders of users that must survive."""

import json
import os
import shlex

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from clip_files import record, write_clip
from PIL import Image
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import annotations, hub_files, source_files
from cosmos_reason.data import sources as dataset_sources
from cosmos_reason.data import splits as dataset_splits
from cosmos_reason.data import writer as dataset_writer
from cosmos_reason.data.items import Item, Reading
from cosmos_reason.data.samples import Turn
from cosmos_reason.remote import hub


def build(*args, expect=0):
    done = run_script("build_dataset.py", *args, "--json")
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    errors = [one for one in document["findings"] if one["severity"] == "error"]
    return errors[0] if expect else document["result"]


def paste(fix, folder):
    script, *args = shlex.split(fix)
    assert run_script(script.removeprefix("scripts/"), *args, cwd=folder).returncode == 0


def records(folder):
    return json.loads((folder / "train" / "annotations.json").read_text())


@pytest.fixture
def source(tmp_path):
    """Four clips and a table of labels."""
    for number in range(4):
        write_clip(tmp_path / "source" / "clips" / f"{number}.mp4", frames=8, tint=number)
    lines = [
        "clip,label,question",
        *(f"clips/{n}.mp4,{'rain' if n % 2 else 'sun'},Sky?" for n in range(4)),
    ]
    (tmp_path / "source" / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "source"


@pytest.mark.parametrize(
    "name", ["train/thesis.txt", "notes.txt", "eval/media.txt", "train/annotations.json"]
)
def test_force_leaves_what_others_wrote(source, tmp_path, name):
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text("years")
    found = build(source, "-o", tmp_path / "mine", "--force", expect=2)
    assert found["id"] == "BUILD-OUTPUT-FOREIGN" and path.read_text() == "years"
    flag, folder = shlex.split(found["fix"])
    build(source, flag, folder)
    build(source, "-o", folder, "--force")
    for part in ("train", "train/media"):
        thesis = tmp_path / "mine-new" / part / "thesis.txt"
        thesis.write_text("years")
        assert build(source, "-o", folder, "--force", expect=2)["id"] == "BUILD-OUTPUT-FOREIGN"
        thesis.unlink()


def test_an_output_by_a_link_and_what_a_killed_run_left(source, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/data")
    build(source, "-o", tmp_path / "link")
    (tmp_path / "real" / ".data.incomplete-0123").mkdir()
    build(source, "-o", tmp_path / "link", "--force")
    assert (tmp_path / "link").is_symlink() and len(records(tmp_path / "real" / "data")) == 4
    assert os.listdir(tmp_path / "real") == ["data"]


def test_earlier_outputs_are_no_source(source, tmp_path):
    (source / "labels.csv").unlink()
    for number in range(4):
        path = source / ("wet" if number % 2 else "dry") / f"{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        (source / "clips" / f"{number}.mp4").rename(path)
    (source / "clips").rmdir()
    build(source, "-o", source / "data", "--question", "Wet?")
    assert build(source, "-o", source / "data2", "--question", "Wet?")["read"] == 4
    found = build(source / "data", "-o", tmp_path / "out", expect=2)
    paste(found["fix"], tmp_path)


def test_tables_of_two_kinds_are_asked_about(source, tmp_path):
    (source / "rows.jsonl").write_text(json.dumps({"clip": "clips/0.mp4", "label": "sun"}))
    found = build(source, "-o", tmp_path / "out", expect=2)
    assert found["id"] == "BUILD-TABLES-MIXED"
    old, new = found["fix"].removeprefix("replace ").split(" with ")
    assert old == str(source) and os.path.isfile(new)


ROWS = [{"video": f"clips/{number}.mp4", "label": "ab"[number % 2]} for number in range(4)]


def test_a_clip_labelled_twice_in_one_object_is_refused(source, tmp_path):
    (source / "labels.json").write_text(
        '{"clips/0.mp4": "a", "clips/1.mp4": "b", "clips/0.mp4": "b"}'
    )
    words = (source / "labels.json", "-o", tmp_path / "out", "--question", "?")
    assert build(*words, expect=1)["id"] == "DATA-JSON-KEY-TWICE"


def test_a_column_that_the_first_row_does_not_have(source, tmp_path):
    rows = [ROWS[0], ROWS[1] | {"reasoning": "It rains."}]
    (source / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build(source / "rows.jsonl", "-o", tmp_path / "out", "--question", "Which?")
    assert "It rains." in records(tmp_path / "out")[1]["conversations"][1]["value"]


def test_the_next_command_and_a_finding_about_the_folder_around_it(source, tmp_path):
    for flags, count in (((), 1), (("--eval-fraction", 0.5, "--force"), 2)):
        done = run_script("build_dataset.py", source, "-o", tmp_path / "my data", *flags, "--json")
        script, *args = shlex.split(json.loads(done.stdout)["next"])
        checked = run_script(os.path.basename(script), *args, "--json")
        assert checked.returncode == 0 and len(json.loads(checked.stdout)["result"]) == count
        found = json.loads(run_script("check_dataset.py", tmp_path / "my data", "--json").stdout)[
            "findings"
        ][0]
        paste(found["fix"], tmp_path)


def test_labels_of_clips_with_several_views(tmp_path):
    for name in ("a.front.mp4", "b.1.front.mp4", "b.front.mp4"):
        write_clip(tmp_path / "source" / "videos" / name, frames=8)
    (tmp_path / "source" / "videos" / "a.timestamps.csv").write_text("0,1\n")
    (tmp_path / "source" / "metas").mkdir()
    for name in ("a", "b", "b.1"):
        (tmp_path / "source" / "metas" / f"{name}.label.json").write_text('{"weather": "sun"}')
    flags = ("--media", "reference", "--question", "Describe the sky.")
    build(tmp_path / "source", "-o", tmp_path / "out", *flags)
    media = [os.path.basename(one["video"]) for one in records(tmp_path / "out")]
    assert media == ["a.front.mp4", "b.1.front.mp4", "b.front.mp4"]
    write_clip(tmp_path / "source" / "videos" / "a.rear.mp4", frames=8)
    found = build(tmp_path / "source", "-o", tmp_path / "no", expect=2)
    assert found["id"] == "BUILD-LABEL" and "a.front.mp4, a.rear.mp4" in found["message"]


def test_a_missing_number_is_no_label(source, tmp_path):
    rows = {"video": ["clips/0.mp4", "clips/1.mp4"], "label": [1.0, float("nan")]}
    parquet.write_table(arrow.table(rows), source / "a.parquet")
    refused = build(source / "a.parquet", "-o", tmp_path / "out", expect=2)
    assert refused["id"] == "BUILD-ANSWER-EMPTY"


def test_tags_survive_and_reasoning_stands_once(source, tmp_path):
    turns = [
        {"from": "human", "value": "Bright?"},
        {"from": "gpt", "value": "<think>\nIt glows.\n</think>\n\nYes"},
    ]
    written = record(0, conversations=turns, tags=["night"], reasoning="It glows.")
    (source / "annotations.json").write_text(json.dumps([written]))
    build(source, "-o", tmp_path / "out")
    (made,) = records(tmp_path / "out")
    assert made["tags"] == ["night"] and made["conversations"][1]["value"] == turns[1]["value"]


@pytest.mark.parametrize("root", ["../", "/etc"])
def test_a_media_root_leads_nowhere_else(source, tmp_path, root):
    write_clip(tmp_path / "0.mp4", frames=8)
    item = {"video_id": "0.mp4" if root == "../" else "hostname", "question": "?", "answer": "Yes"}
    (source / "daft.json").write_text(json.dumps({"media_root": root, "items": [item]}))
    found = build(source / "daft.json", "-o", tmp_path / "out", expect=2)
    assert found["id"] in ("DATA-MEDIA-ESCAPE", "DATA-MEDIA-UNDECODABLE")


def test_a_repository_names_no_files_of_this_machine(monkeypatch):
    monkeypatch.setattr(hub, "dataset", lambda *_: ("0" * 40, ["data/a.parquet"]))
    files = hub_files.Repository("org/name")
    for name, folder in (("/etc/passwd", ""), ("passwd", "/etc"), ("../../etc/passwd", "data")):
        with pytest.raises(Failure, match="DATA-MEDIA-ESCAPE"):
            source_files.find(files, name, folder)


@pytest.mark.parametrize("mode", dataset_writer.MEDIA_MODES)
@pytest.mark.parametrize("layout", ["llava", "tao-vl-reason-v1.0"])
def test_the_measured_rate_is_written_unless_the_record_has_its_own(source, tmp_path, mode, layout):
    write_clip(source / "clips" / "0.mp4", frames=8, rate=25)
    Image.new("RGB", (64, 48)).save(source / "clips" / "4.png")
    own = record(2, video_fps=4.0)
    image = {key: value for key, value in record(4, image="clips/4.png").items() if key != "video"}
    image["conversations"][0]["value"] = "<image>\nIs it bright?"
    (source / "annotations.json").write_text(json.dumps([record(0), record(1), own, image]))
    build(source / "annotations.json", "-o", tmp_path / "out", "--media", mode, "--format", layout)
    samples, _ = annotations.read(tmp_path / "out" / "train" / "annotations.json")
    assert [sample.video_fps for sample in samples] == [25.0, 8.0, 4.0, None]


def test_clips_of_different_rates_in_one_record_get_none(source, tmp_path):
    write_clip(source / "clips" / "0.mp4", frames=8, rate=25)
    two = record(0, videos=["clips/0.mp4", "clips/1.mp4"], video=None)
    two["conversations"][0]["value"] = "<video>\n<video>\nWhich?"
    (source / "annotations.json").write_text(json.dumps([two]))
    build(source / "annotations.json", "-o", tmp_path / "out")
    assert "video_fps" not in records(tmp_path / "out")[0]


@pytest.mark.parametrize("mode", ["link", "copy"])
def test_a_clip_of_the_hub_with_several_questions_is_written_once(
    source, tmp_path, monkeypatch, mode
):
    rows = [f"clips/{number % 2}.mp4,{number},What is the number {number}?" for number in range(6)]
    (source / "labels.csv").write_text("\n".join(["video,answer,question", *rows]) + "\n")
    names = ["labels.csv", *(f"clips/{number}.mp4" for number in range(4))]
    monkeypatch.setattr(hub, "dataset", lambda *_: ("0" * 40, names))
    monkeypatch.setattr(hub, "dataset_file", lambda _repo, _commit, name, _secret: source / name)
    reading = Reading()
    items, *_ = dataset_sources.read(
        dataset_sources.open_source("org/name", "auto", reading), reading
    )
    plan = dataset_splits.Plan(media=mode)
    dataset_writer.write(dataset_splits.planned(items, plan)[0], tmp_path / "out", plan)
    assert len(list((tmp_path / "out" / "train" / "media").iterdir())) == 2
    named = [sample["video"] for sample in records(tmp_path / "out")]
    assert len(named) == 6 and named[0::2] == [named[0]] * 3 and named[1::2] == [named[1]] * 3


def test_records_that_share_a_clip_stay_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.mp4").symlink_to("0.mp4")

    def item(*names):
        media = tuple(("video", dataset_writer.Path(name)) for name in names)
        return Item("", media, (Turn("user", "?"), Turn("", "a")))

    same = [item("0.mp4", "1.mp4"), item("1.mp4", "2.mp4"), item(f"{tmp_path}/2.mp4")]
    same += [item("link.mp4"), item("x/../0.mp4")]
    for seed in range(20):
        others = [item(f"other{number}.mp4") for number in range(15)]
        items = {f"r{number}": one for number, one in enumerate(same + others)}
        source = dataset_splits.filmed_from(items)
        splits = dataset_splits.split(items, dataset_splits.Plan(0.2, seed=seed), source)
        assert sum(bool(set(names) & {f"r{n}" for n in range(5)}) for names in splits.values()) == 1


def test_one_name_for_many_costs_no_time():
    ids = list(dataset_splits.named([Item("same", (), ())] * 50_000, dataset_splits.Plan()))
    assert len(set(ids)) == 50_000 and ids[-1] == "same-50000"


def test_pipes_are_refused_and_names_that_are_no_text(source, tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    assert build(tmp_path / "x.csv", "-o", tmp_path / "out", expect=2)["id"] == "FILE-MISSING"
    (source / "metas").mkdir()
    os.mkfifo(source / "metas" / "a.label.json")
    assert build(source, "-o", tmp_path / "out", expect=2)["id"] == "FILE-MISSING"
    folder = tmp_path / os.fsdecode(b"n\xff")
    os.mkdir(folder)
    for label in ("wet", "dry"):
        write_clip(tmp_path / "a.mp4", frames=8)
        (folder / label).mkdir()
        (tmp_path / "a.mp4").rename(folder / label / "a.mp4")
    asked = ("--question", "Wet?")
    found = build(folder, "-o", tmp_path / "out", "--media", "reference", *asked, expect=2)
    assert found["id"] == "BUILD-MEDIA-NAME"
    build(folder, "-o", tmp_path / "out", *asked, *found["fix"].split())
    assert len(annotations.read(tmp_path / "out" / "train" / "annotations.json")[0]) == 2
