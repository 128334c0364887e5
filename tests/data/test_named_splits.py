"""Splits that a source names stay splits, and the share that is held out is what was asked."""

import json
import shutil
import sys

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from clip_files import write_clip
from support import run_script

from cosmos_reason.data import annotations, split_names, splits


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clip") / "0.mp4", frames=4).read_bytes()


def clips(folder, clip, names):
    """Clips of different content."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        padding = b"\0\0\0\x18free" + name.encode().ljust(16)[:16]
        (folder / f"{name}.mp4").write_bytes(clip + padding)
    return folder


def build(source, *words, out="out", expect=0):
    """The JSON that build_dataset prints."""
    done = run_script("build_dataset.py", source, "-o", out, *words, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == expect, done.stdout + done.stderr
    return json.loads(done.stdout)


def answers(folder):
    samples, found = annotations.read(annotations.locate(folder))
    assert not [one for one in found if one.severity == "error"]
    return sorted(sample.id for sample in samples)


def table(names):
    rows = [f"{name},{'yes' if n % 2 else 'no'},On?" for n, name in enumerate(names)]
    return "\n".join(["clip,label,question", *rows])


def csv_in_folders(root, clip, name, ids):
    folder = clips(root / name, clip, ids)
    (folder / "metadata.csv").write_text(table([f"{id}.mp4" for id in ids]))


def csv_by_name(root, clip, name, ids):
    clips(root / "clips", clip, ids)
    (root / f"{name}.csv").write_text(table([f"clips/{id}.mp4" for id in ids]))


def jsonl_by_name(root, clip, name, ids):
    clips(root / "clips", clip, ids)
    rows = [{"video": f"clips/{id}.mp4", "question": "On?", "answer": "yes"} for id in ids]
    (root / f"labels_{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def one_table(root, clip, name, ids):
    """A table beside folders of clips that are called like splits."""
    clips(root / name, clip, ids)
    path = root / "labels.csv"
    before = path.read_text() + "\n" if path.exists() else "clip,label,question\n"
    rows = table([f"{name}/{id}.mp4" for id in ids]).partition("\n")[2]
    path.write_text(before + rows)


def a_column(root, clip, name, ids):
    clips(root, clip, ids)
    path = root / "labels.csv"
    before = path.read_text() if path.exists() else "clip,label,question,split\n"
    path.write_text(before + "".join(f"{id}.mp4,yes,On?,{name.title()}\n" for id in ids))


def labels_by_folder(root, clip, name, ids):
    for number, id in enumerate(ids):
        clips(root / name / ("rain", "sun")[number % 2], clip, [id])


def label_files(root, clip, name, ids):
    clips(root / name / "videos", clip, ids)
    (root / name / "metas").mkdir()
    for id in ids:
        (root / name / "metas" / f"{id}.label.json").write_text('{"weather": "rain"}')


def conversations(root, clip, name, ids):
    folder = clips(root / name, clip, ids)
    turns = [{"from": "human", "value": "<video>\nOn?"}, {"from": "gpt", "value": "yes"}]
    records = [{"id": id, "video": f"{id}.mp4", "conversations": turns} for id in ids]
    (folder / "annotations.json").write_text(json.dumps(records))


def conversations_with_a_split(root, clip, name, ids):
    clips(root, clip, ids)
    turns = [{"from": "human", "value": "<video>\nOn?"}, {"from": "gpt", "value": "yes"}]
    path = root / "annotations.json"
    records = json.loads(path.read_text()) if path.exists() else []
    records += [
        {"id": id, "video": f"{id}.mp4", "split": name, "conversations": turns} for id in ids
    ]
    path.write_text(json.dumps(records))


def parquet_by_name(root, clip, name, ids):
    folder = clips(root / "videos", clip, ids)
    rows = {
        "video": [str(folder / f"{id}.mp4") for id in ids],
        "label": ["a", "b", "a"][: len(ids)],
    }
    (root / "data").mkdir(exist_ok=True)
    parquet.write_table(arrow.table(rows), root / "data" / f"{name}-00000-of-00001.parquet")


def parquet_of_a_card(root, clip, name, ids):
    """Files whose names say nothing: the dataset card declares the splits."""
    parquet_by_name(root, clip, name, ids)
    file = root / "data" / f"{name}-00000-of-00001.parquet"
    file.rename(root / "data" / f"part{len(ids)}.parquet")
    card = root / "README.md"
    before = (
        card.read_text().removesuffix("---\n")
        if card.exists()
        else ("---\nconfigs:\n- config_name: default\n  data_files:\n")
    )
    card.write_text(f"{before}  - split: {name}\n    path: data/part{len(ids)}.parquet\n---\n")


FORMS = [
    csv_in_folders,
    csv_by_name,
    jsonl_by_name,
    one_table,
    a_column,
    labels_by_folder,
    label_files,
    conversations,
    conversations_with_a_split,
    parquet_by_name,
    parquet_of_a_card,
]


@pytest.mark.parametrize("write", FORMS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("name", ["test", "val"])
def test_what_a_source_holds_out_is_not_trained_on(tmp_path, clip, write, name):
    root = tmp_path / "source"
    root.mkdir()
    write(root, clip, "train", ["a", "b", "c"])
    write(root, clip, name, ["x", "y"])
    words = ["--question", "Weather?"] if write in (labels_by_folder, label_files) else []
    words += ["--question", "Which?"] if write in (parquet_by_name, parquet_of_a_card) else []
    told = build(root, *words)
    assert answers(tmp_path / "out" / "train") == ["a", "b", "c"]
    assert answers(tmp_path / "out" / "eval") == ["x", "y"]
    assert told["result"]["held_out"] == 0.4
    ids = [row["id"] for row in told["findings"]]
    assert "BUILD-SPLIT-NAMED" in ids and "BUILD-NO-EVAL" not in ids
    refused = build(root, *words, "--eval-fraction", 0.2, out="other", expect=1)
    assert [row["id"] for row in refused["findings"] if row["severity"] == "error"] == [
        "BUILD-SPLIT"
    ]


@pytest.mark.parametrize(
    ("names", "called"),
    [
        ("train_clips,Train Set,trainset,train2017,TrainingData,split-train", "train"),
        ("test_clips,Test Set,TestData,test-public", "test"),
        ("held_out,hold-out,Holdout", "test"),
        ("valset,val2017,Validation,dev,validate", "eval"),
        ("train_station,test_track,bus,invalid,train_test", ""),
    ],
)
def test_splits_are_known_however_they_are_spelt(names, called):
    for name in names.split(","):
        word = split_names.of_folders(f"root/{name}/a.csv")
        known = "public" in name or split_names.NAMES.get(word, "") == called
        assert known, f"the folder {name} is {word!r}"
        word = split_names.of_table(f"{name}.csv")
        if called:
            assert split_names.NAMES[word] == called, f"the table {name}.csv is {word!r}"


@pytest.mark.parametrize("kind", ["questions", "conversations", "labels", "clips"])
def test_lists_called_like_splits_are_splits(tmp_path, clip, kind):
    """Questions below "train" and "test" were all trained on."""
    clips(tmp_path / "src", clip, ["a", "b", "x"])

    def made(name):
        if kind in ("labels", "clips"):
            return {"video": f"{name}.mp4", "label": name}
        if kind == "questions":
            return {"video": f"{name}.mp4", "question": "Which?", "answer": name}
        turns = [{"from": "human", "value": "Which?"}, {"from": "gpt", "value": name}]
        return {"id": name, "video": f"{name}.mp4", "conversations": turns}

    document = {"version": "1", "train": [made("a"), made("b")], "test": [made("x")]}
    if kind == "clips":
        document = {"train": {"a.mp4": made("a"), "b.mp4": made("b")}, "test": {"x.mp4": made("x")}}
    source = tmp_path / "src" / "all.json"
    source.write_text(json.dumps(document))
    asked = ("--question", "Which?") if kind in ("labels", "clips") else ()
    build(source, *asked)
    assert answers(tmp_path / "out" / "train") == ["a", "b"]
    assert answers(tmp_path / "out" / "eval") == ["x"]
    told = run_script("check_dataset.py", source, "--json")
    assert "DATA-NOT-BUILT" in told.stdout and "splits in lists" in told.stdout


def asked(name, **more):
    return {"video": f"{name}.mp4", "question": "Which?", "answer": name, **more}


def test_a_list_of_records_beside_splits_is_refused_and_another_list_is_passed_over(tmp_path, clip):
    """Categories became rows without a clip, and six errors."""
    clips(tmp_path / "src", clip, ["a", "b", "x"])
    source = tmp_path / "src" / "all.json"
    document = {"train": [asked("a")], "more": [asked("b")], "test": [asked("x")]}
    source.write_text(json.dumps(document))
    found = build(source, expect=2)["findings"]
    assert [one["id"] for one in found] == ["BUILD-SPLIT-NAME"]
    assert "'more'" in found[0]["message"] and "remove it" in found[0]["message"]
    document["more"] = [asked("b", split="train")]  # whose split each record names
    document["categories"] = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    source.write_text(json.dumps(document))
    told = build(source)["findings"]
    assert not [one for one in told if one["severity"] == "error"]
    assert any("categories" in one["message"] for one in told)
    assert answers(tmp_path / "out" / "train") == ["a", "b"]
    assert answers(tmp_path / "out" / "eval") == ["x"]


@pytest.mark.parametrize("value", [{"approved": True, "by": "ann"}, [{"by": "ann"}]])
@pytest.mark.parametrize("ids", [["a"], ["a", "b"]])
def test_a_record_with_an_object_called_validation_is_a_record(tmp_path, clip, value, ids):
    clips(tmp_path / "src", clip, ids)
    source = tmp_path / "src" / "all.json"
    source.write_text(json.dumps([asked(name, validation=value) for name in ids]))
    build(source)
    assert answers(tmp_path / "out" / "train") == ids
    told = json.loads(run_script("check_dataset.py", source, "--json").stdout)
    assert "DATA-NOT-BUILT" not in [one["id"] for one in told["findings"]]


def test_labels_with_an_object_called_validation_are_labels(tmp_path, clip):
    clips(tmp_path / "src", clip, ["a"])
    source = tmp_path / "src" / "all.json"
    source.write_text(json.dumps([{"video": "a.mp4", "label": "a", "validation": {"by": "ann"}}]))
    build(source, "--question", "Which?")
    assert answers(tmp_path / "out" / "train") == ["a"]


def test_each_of_several_documents_has_its_splits(tmp_path, clip):
    """All of them were trained on, also those of a clip that is named around its lists."""
    clips(tmp_path / "src", clip, ["a", "b", "x", "y"])
    pair = {"question": "Which?", "answer": "c"}
    documents = [
        {"train": [asked("a")], "test": [asked("x")]},
        {"train": [asked("b")], "test": [asked("y")]},
        {"video": "y.mp4", "test": [pair, pair]},
    ]
    source = tmp_path / "src" / "all.jsonl"
    source.write_text("".join(f"{json.dumps(one)}\n" for one in documents))
    build(source)
    assert answers(tmp_path / "out" / "train") == ["a", "b"]
    assert answers(tmp_path / "out" / "eval") == ["x", "y", "y-2", "y-3"]


@pytest.mark.parametrize("name", ["splits", "data"])
def test_splits_in_an_object_of_a_document_are_splits(tmp_path, clip, name):
    """All were trained on: they looked like questions by clip."""
    clips(tmp_path / "src", clip, ["a", "x"])
    source = tmp_path / "src" / "all.json"
    document = {"version": 1, name: {"train": [asked("a")], "val": [asked("x")]}}
    source.write_text(json.dumps(document))
    build(source)
    assert answers(tmp_path / "out" / "train") == ["a"]
    assert answers(tmp_path / "out" / "eval") == ["x"]


def test_the_name_of_a_list_is_the_split_of_its_records(tmp_path, clip):
    """Their own "split", a fold, let the held-out ones be trained on."""
    clips(tmp_path / "src", clip, ["a", "x"])
    source = tmp_path / "src" / "all.json"
    document = {"train": [asked("a", split="fold1")], "val": [asked("x", split="fold1")]}
    source.write_text(json.dumps(document))
    build(source)
    assert answers(tmp_path / "out" / "train") == ["a"]
    assert answers(tmp_path / "out" / "eval") == ["x"]
    document["train"][0]["split"] = "test"
    source.write_text(json.dumps(document))
    found = build(source, out="other", expect=2)["findings"]
    assert [one["id"] for one in found] == ["BUILD-SPLIT-NAME"]


@pytest.mark.parametrize("names", [("data", "test"), ("train", "data"), ("annotations", "val")])
def test_no_list_of_records_beside_another_is_lost(tmp_path, clip, names):
    """One list was read, and the other went without a word."""
    clips(tmp_path / "src", clip, ["a", "x"])
    source = tmp_path / "src" / "all.json"
    source.write_text(json.dumps({names[0]: [asked("a")], names[1]: [asked("x")]}))
    (found,) = build(source, expect=2)["findings"]
    assert found["id"] == "DATA-JSON" and all(f'"{name}"' in found["message"] for name in names)
    told = run_script("check_dataset.py", source, "--json")
    assert told.returncode and "DATA-JSON" in told.stdout
    about = {"data": [asked("a"), asked("x")], "validation": {"by": "ann"}}
    source.write_text(json.dumps(about))  # what is no record may stand beside them
    build(source)
    assert answers(tmp_path / "out" / "train") == ["a", "x"]


PAIR = [{"video": f"clips/{id}.mp4", "question": "On?", "answer": id} for id in "ab"]


def turns(id):
    said = [("human", "<video>\nOn?"), ("gpt", id)]
    said = [{"from": who, "value": text} for who, text in said]
    return {"id": id, "video": f"clips/{id}.mp4", "conversations": said}


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"test": ["a.mp4"]}, "test"),
        ({"test": ["a"]}, "test"),
        ({"splits": {"train": ["a.mp4"], "test": ["b.mp4"]}}, "splits.train"),
        ({"info": {"holdout": {"a.mp4": 1}}}, "info.holdout"),
        ({"split": {"a": "test", "b": "train"}}, "split"),
        ({"split": {"x": "test", "y": "train"}}, "split.x"),
        ({"folds": [["a"], ["b"]]}, "folds"),
        ({"videos": [{"file": f"{id}.mp4", "subset": "test"} for id in "ab"]}, "videos.subset"),
        ({"videos": [{"id": 0, "split": "train"}, {"id": 1, "split": "val"}]}, "videos.split"),
        ({"videos": [{"split": "test"}, {"split": "train"}]}, "videos.split"),
        ({"clips": {"a.mp4": {"split": "train"}, "b.mp4": {"split": "test"}}}, "clips.b.mp4.split"),
        ({"clips": {"A": {"split": "train"}, "B": {"split": "test"}}}, "clips.B.split"),
        ({"excluded": ["x.mp4", "b.mp4"]}, "excluded"),
        ({"groups": [{"bad": ["clips/b.mp4"]}]}, "groups.bad"),
    ],
)
@pytest.mark.parametrize("records", [PAIR, [turns("a"), turns("b")]])
def test_clips_that_stand_beside_the_records_are_not_passed_over(
    tmp_path, clip, records, beside, said
):
    clips(tmp_path / "clips", clip, "ab")
    (tmp_path / "labels.json").write_text(json.dumps({"data": records, **beside}))
    (found, *_) = build("labels.json", expect=2)["findings"]
    assert found["id"] == "BUILD-SPLIT-NAME" and f"got {said} beside" in found["message"]


@pytest.mark.parametrize("records", [PAIR, [turns("a"), turns("b")]])
def test_what_stands_beside_the_records_and_names_no_split_is_no_fault(tmp_path, clip, records):
    clips(tmp_path / "clips", clip, "ab")
    beside = {
        "videos": ["a.mp4", "b.mp4"],
        "classes": ["on"],
        "train": {"size": 2},
        "paths": {"val": "val"},
        "poor": ["x.mp4"],
        "resolution": [0, 1],  # as records are numbered
        "train_classes": ["on"],
        "taxonomy": {"train": ["wagon"]},
        "test_set_size": [1],
        "info": {"splits": ["train", "test"], "subset_of": {"train": {"name": "train"}}},
        "cameras": [{"name": "a", "split": "train"}],
    }
    (tmp_path / "labels.json").write_text(json.dumps({"data": records, **beside}))
    assert build("labels.json")["result"]["written"] == {"train": 2}


@pytest.mark.parametrize("records", [PAIR, [turns("a"), turns("b")]])
@pytest.mark.parametrize("beside", [{"split": "test"}, {"info": {"subset": "validation"}}])
def test_a_document_that_is_called_a_split_is_that_split(tmp_path, clip, records, beside):
    clips(tmp_path / "clips", clip, "ab")
    text = json.dumps({"data": records, **beside})
    (tmp_path / "labels.json").write_text(text)
    assert build("labels.json")["result"]["written"] == {"eval": 2}
    (tmp_path / "train.json").write_text(text)
    assert build("train.json", out="out2", expect=2)["findings"][0]["id"] == "BUILD-SPLIT-NAME"


@pytest.mark.parametrize("test", [["q1"], [1]])
def test_ids_of_records_beside_them_are_not_passed_over(tmp_path, clip, test):
    """Of records without ids their places are meant."""
    clips(tmp_path / "clips", clip, "ab")
    records = [row if test == [1] else {"id": f"q{n}", **row} for n, row in enumerate(PAIR)]
    (tmp_path / "labels.json").write_text(json.dumps({"data": records, "test": test}))
    (found, *_) = build("labels.json", expect=2)["findings"]
    assert found["id"] == "BUILD-SPLIT-NAME" and "got test beside" in found["message"]


def test_clips_named_without_their_suffix_are_known_beside_the_records(tmp_path, clip):
    clips(tmp_path, clip, "ab")
    records = [{"video": id, "question": "On?", "answer": id} for id in "ab"]
    (tmp_path / "labels.json").write_text(json.dumps({"data": records, "test": ["b"]}))
    (found, *_) = build("labels.json", expect=2)["findings"]
    assert found["id"] == "BUILD-SPLIT-NAME" and "got test beside" in found["message"]


def test_a_held_out_file_and_its_header_may_use_two_words(tmp_path, clip):
    """Both mean the same folder: only training and held out contradict each other."""
    clips(tmp_path / "clips", clip, "ab")
    (tmp_path / "val.json").write_text(json.dumps({"split": "test", "data": PAIR}))
    assert build("val.json")["result"]["written"] == {"eval": 2}


def test_twice_as_much_beside_twice_as_many_records_is_twice_the_work(tmp_path):
    """Each list was compared with each record."""

    def calls(number):
        header = {"images": [{"box": ["x", "y"], "clip": ["a.mp4"]} for _ in range(number)]}
        made = 0

        def count(*_):
            nonlocal made
            made += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            records = [{"a.mp4", f"q{n}"} for n in range(number)]
            splits.of_document(header, "train", tmp_path / "a.json", records)
        finally:
            sys.setprofile(before)
        return made

    assert calls(200) < 3 * calls(100)


def test_splits_inside_of_several_objects_are_splits(tmp_path, clip):
    clips(tmp_path / "clips", clip, "abcd")
    of = {
        name: [{"video": f"clips/{name}.mp4", "question": "On?", "answer": name}] for name in "abcd"
    }
    cameras = {"north": {"train": of["a"], "test": of["b"]}}
    cameras["south"] = {"train": of["c"], "test": of["d"]}
    (tmp_path / "labels.json").write_text(json.dumps(cameras))
    build("labels.json")
    assert (answers("out/train"), answers("out/eval")) == (["a", "c"], ["b", "d"])


def test_a_column_of_objects_is_not_offered_as_a_split(tmp_path, clip):
    clips(tmp_path / "clips", clip, "ab")
    named = [{"name": "test"}, {"name": "train"}]
    rows = [{**row, "split": split} for row, split in zip(PAIR, named, strict=True)]
    (tmp_path / "labels.json").write_text(json.dumps(rows))
    document = build("labels.json", expect=2)
    assert document["findings"][0]["id"] == "BUILD-SPLIT-NAME"
    assert "split=split" not in json.dumps(document)
    assert build("labels.json", "--column", "ignore=split")["result"]["written"] == {"train": 2}


@pytest.mark.parametrize("suffix", ["zip", "tar.gz"])
def test_archives_called_like_splits_are_splits(tmp_path, clip, suffix):
    for name, ids in (("train", ["a", "b"]), ("test", ["x"])):
        clips(tmp_path / name, clip, ids)
        kind = {"zip": "zip", "tar.gz": "gztar"}[suffix]
        shutil.make_archive(tmp_path / "source" / name, kind, tmp_path / name)
    (tmp_path / "source" / "labels.csv").write_text(table(["a.mp4", "b.mp4", "x.mp4"]))
    assert build(tmp_path / "source")["result"]["written"] == {"train": 2, "eval": 1}


@pytest.mark.parametrize("column", ["subset", "set", "usage"])
def test_a_column_of_splits_is_kept_to_or_left_out_by_the_users_word(tmp_path, clip, column):
    a_column(tmp_path / "s", clip, "train", ["a", "b"])
    a_column(tmp_path / "s", clip, "Hold-out", ["x"])
    labels = tmp_path / "s" / "labels.csv"
    labels.write_text(labels.read_text().replace("question,split", f"question,{column}"))
    refused = build(tmp_path / "s", expect=2)
    (found,) = (row for row in refused["findings"] if row["severity"] == "error")
    assert (found["id"], found["where"]) == ("BUILD-SPLIT-NAME", column)
    kept = build(tmp_path / "s", *found["fix"].split(), out="kept")
    assert kept["result"]["written"] == {"train": 2, "eval": 1}
    left = build(tmp_path / "s", "--column", f"ignore={column}", out="left")
    assert left["result"]["written"] == {"train": 3}


def test_flags_of_rows_are_splits_by_what_they_are_said_to_mean(tmp_path, clip):
    clips(tmp_path / "s", clip, ["a", "b", "x"])
    rows = "clip,label,question,is_test\na.mp4,yes,On?,0\nb.mp4,no,On?,0\nx.mp4,yes,On?,1\n"
    (tmp_path / "s" / "labels.csv").write_text(rows)
    wrong, told = build(tmp_path / "s", expect=2)["findings"]
    assert wrong["id"] == "BUILD-SPLIT-NAME" and "is_test: YES=test" in wrong["message"]
    assert (told["id"], told["data"]["meanings"]) == ("BUILD-COLUMN-UNUSED", {"is_test": "a split"})
    split = ["--column", "split=is_test"]
    refused = build(tmp_path / "s", *split, out="1", expect=2)
    assert refused["findings"][0]["id"] == "BUILD-SPLIT-NAME"
    kept = build(tmp_path / "s", *split, "--values", "is_test: 0=train, 1=test", out="2")
    assert kept["result"]["written"] == {"train": 2, "eval": 1}


def test_a_table_beside_the_training_table_is_trained_on_by_the_users_word(tmp_path, clip):
    csv_by_name(tmp_path / "s", clip, "train", ["a", "b"])
    csv_by_name(tmp_path / "s", clip, "benchmark", ["x"])
    refused = build(tmp_path / "s", expect=2)
    assert [row["id"] for row in refused["findings"]] == ["BUILD-SPLIT-NAME"]
    assert "benchmark.csv" in refused["findings"][0]["message"]
    assert build(tmp_path / "s" / "train.csv")["result"]["written"] == {"train": 2}


def test_folders_called_by_labels_stay_labels(tmp_path, clip):
    for name in ("train", "test_track", "bus"):
        clips(tmp_path / "s" / name, clip, [f"{name}-1", f"{name}-2"])
    assert build(tmp_path / "s", "--question", "?")["result"]["written"] == {"train": 6}


def test_validation_and_test_are_both_kept_and_a_test_alone_is_not_trained_on(tmp_path, clip):
    root = tmp_path / "source"
    for name, ids in (("train", ["a", "b"]), ("validation", ["v", "w"]), ("test", ["x"])):
        csv_in_folders(root, clip, name, ids)
    told = build(root)
    assert told["result"]["written"] == {"train": 2, "eval": 2, "test": 1}
    (named,) = (row for row in told["findings"] if row["id"] == "BUILD-SPLIT-NAMED")
    assert named["data"]["splits"] == {"train": "train", "validation": "eval", "test": "test"}
    csv_by_name(tmp_path / "alone", clip, "test", ["x", "y"])
    told = build(tmp_path / "alone", out="only")
    assert told["result"]["written"] == {"eval": 2} and "only/eval" in told["next"]
    again = build(tmp_path / "out" / "eval", out="again")  # ours is held out for good
    assert again["result"]["written"] == {"eval": 2}


def test_words_that_name_no_split_are_left_alone(tmp_path, clip):
    labels_by_folder(tmp_path / "a" / "x", clip, "valid", ["a", "b"])
    labels_by_folder(tmp_path / "a" / "x", clip, "invalid", ["c", "d"])
    assert build(tmp_path / "a", "--question", "?", out="1")["result"]["written"] == {"train": 4}
    for name in ("train", "test"):
        clips(tmp_path / "b" / name, clip, [name])
    refused = build(tmp_path / "b", "--question", "?", out="2", expect=2)
    assert refused["findings"][0]["id"] == "BUILD-NO-LABELS"
    a_column(tmp_path / "c", clip, "train", ["a", "b"])
    a_column(tmp_path / "c", clip, "spare", ["c"])
    refused = build(tmp_path / "c", out="3", expect=2)
    assert refused["findings"][0]["id"] == "BUILD-SPLIT-NAME"


def test_splits_of_a_source_that_share_a_clip_are_refused(tmp_path, clip):
    csv_in_folders(tmp_path / "s", clip, "train", ["a", "b", "c"])
    csv_in_folders(tmp_path / "s", clip, "test", ["x", "y"])
    shutil.copy(tmp_path / "s" / "train" / "b.mp4", tmp_path / "s" / "test" / "y.mp4")
    refused = build(tmp_path / "s", expect=1)
    (found,) = (row for row in refused["findings"] if row["severity"] == "error")
    assert found["id"] == "BUILD-SPLIT-SHARED" and found["data"]["record_ids"] == ["y"]
    assert not (tmp_path / "out").exists()


def grouped(root, clip, sizes):
    """A table with several questions about each of some clips."""
    clips(root, clip, [str(number) for number in range(len(sizes))])
    rows = [
        f"{number}.mp4,{'yes' if (number + one) % 2 else 'no'},On {one}?"
        for number, size in enumerate(sizes)
        for one in range(size)
    ]
    (root / "labels.csv").write_text("\n".join(["clip,label,question", *rows]))
    return root


@pytest.mark.parametrize("seed", range(3))
def test_no_share_up_to_half_holds_out_more_than_half_and_no_fix_does(tmp_path, clip, seed):
    """Most records are about one clip of five."""
    root = grouped(tmp_path / "s", clip, [60, 8, 5, 5, 5])
    for asked in (0.2, 0.35, 0.5):
        out = f"out-{asked}"
        done = run_script(
            *("build_dataset.py", root, "-o", out, "--eval-fraction", asked),
            *("--seed", seed, "--json"),
        )
        told = json.loads(done.stdout)
        if done.returncode:
            (refused,) = (row for row in told["findings"] if row["severity"] == "error")
            assert refused["id"] == "BUILD-SPLIT" and not (tmp_path / out).exists()
            fixes = [refused["fix"]]
        else:
            written = told["result"]["written"]
            assert written["eval"] <= written["train"]
            share = written["eval"] / sum(written.values())
            assert told["result"]["held_out"] == pytest.approx(share, abs=1e-4)
            fixes = [row["fix"] for row in told["findings"] if row["id"] == "BUILD-EVAL-SMALL"]
        for fix in filter(None, fixes):
            share = fix.split("--eval-fraction ")[-1].split()[0]
            mended = build(root, "--eval-fraction", share, "--seed", seed, out=f"fixed-{asked}")
            assert mended["result"]["held_out"] <= 0.5


def test_a_fold_that_holds_out_more_than_half_is_told(tmp_path, clip):
    told = build(grouped(tmp_path / "s", clip, [40, 3, 3, 3, 3]), "--folds", 3)
    (found,) = (row for row in told["findings"] if row["severity"] == "warning")
    assert found["id"] == "BUILD-SPLIT" and "of 52 records): more than half" in found["message"]
    told = build(grouped(tmp_path / "t", clip, [4] * 4), "--folds", 2, out="even")
    assert not [row for row in told["findings"] if row["id"] == "BUILD-SPLIT"]


def test_more_than_half_is_the_users_word(tmp_path, clip):
    root = grouped(tmp_path / "s", clip, [2, 2, 2, 2])
    assert build(root, "--eval-fraction", 0.75)["result"]["held_out"] == 0.75
