"""One run says all that keeps a source from being built; records without a clip can be left out."""

import json
import shlex
import shutil
import zipfile

import pytest
from clip_files import write_clip
from PIL import Image
from support import run_script


def build(source, out, *flags):
    """(exit code, document) of build_dataset.py --json."""
    done = run_script("build_dataset.py", source, "-o", out, *flags, "--json")
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def ids(document):
    return [finding["id"] for finding in document["findings"]]


@pytest.fixture
def source(tmp_path):
    """Four clips, and a table that names six: no column is called answer, none asks a question."""
    for number in range(4):
        write_clip(tmp_path / "src" / "clips" / f"{number}.mp4", frames=8, tint=number)
    rows = [f"clips/{n}.mp4,cam0,{'yes' if n % 2 else 'no'},t{n}" for n in range(6)]
    (tmp_path / "src" / "labels.csv").write_text(
        "\n".join(["clip_name,camera,light_on,recorded", *rows]) + "\n"
    )
    return tmp_path / "src"


def test_all_problems_come_in_one_run_and_their_fixes_build_it(source, tmp_path):
    code, document = build(source / "labels.csv", tmp_path / "out", "--eval-fraction", 2)
    assert code == 2 and not (tmp_path / "out").exists()
    assert ids(document) == [
        *("USAGE", "BUILD-COLUMN", "BUILD-QUESTION", "BUILD-COLUMN-UNUSED"),
        "BUILD-MEDIA-MISSING",
    ]
    _, column, question, _, missing = document["findings"]
    assert column["fix"] == "--column answer=light_on"
    absent = [f"{source}/clips/{number}.mp4" for number in (4, 5)]
    assert missing["data"] == {"record_ids": ["4", "5"], "count": 2, "files": absent}
    assert all(path in missing["message"] for path in absent)
    fixes = [word for found in (column, question, missing) for word in shlex.split(found["fix"])]
    code, document = build(source / "labels.csv", tmp_path / "out", *fixes)
    assert code == 0 and document["result"]["written"] == {"train": 4}


def test_records_left_out_are_counted_and_named(source, tmp_path):
    flags = ("--column", "answer=light_on", "--question", "Is it lit?", "--skip-missing")
    code, document = build(source / "labels.csv", tmp_path / "out", *flags, "--subset", 3)
    assert code == 0 and document["result"]["skipped"] == 2
    assert (document["result"]["read"], document["result"]["written"]) == (4, {"train": 3})
    (skipped,) = [one for one in document["findings"] if one["id"] == "BUILD-MEDIA-SKIPPED"]
    assert (skipped["id"], skipped["severity"]) == ("BUILD-MEDIA-SKIPPED", "warning")
    assert skipped["message"].endswith("no file clips/4.mp4, clips/5.mp4")
    assert "2 of 6" in skipped["message"] and skipped["data"]["record_ids"] == ["4", "5"]
    for clip in (source / "clips").iterdir():
        clip.unlink()
    code, document = build(source / "labels.csv", tmp_path / "none", *flags)
    infos = ["BUILD-FORM-ADDED", "BUILD-COLUMN-UNUSED"]
    assert code == 1 and ids(document) == [*infos, "BUILD-MEDIA-SKIPPED", "BUILD-EMPTY"]


@pytest.mark.parametrize("skip", [True, False])
def test_a_row_without_a_name_is_a_missing_clip(source, tmp_path, skip):
    (source / "rows.csv").write_text("clip,label,question\nclips/0.mp4,a,Which?\n,b,Which?\n")
    flags = ("--skip-missing",) if skip else ()
    code, document = build(source / "rows.csv", tmp_path / "out", *flags)
    assert code == (0 if skip else 2)
    finding = document["findings"][0]
    assert finding["data"]["record_ids"] == ["row-3"] and "row-3" in finding["message"]


def test_a_label_without_its_clip_can_be_left_out(source, tmp_path):
    for number in range(3):
        write_clip(tmp_path / "set" / "videos" / f"{number}.mp4", frames=8)
    (tmp_path / "set" / "metas").mkdir()
    for number in range(4):
        path = tmp_path / "set" / "metas" / f"{number}.label.json"
        path.write_text('{"light": "on"}' if number else '{"lihgt": "on"}')
    flags = ("--fields", "light", "--question", "Is it lit?")
    code, document = build(tmp_path / "set", tmp_path / "out", *flags)
    assert code == 2
    assert ids(document) == ["BUILD-FIELD", "BUILD-FORM-ADDED", "BUILD-MEDIA-MISSING"]
    (tmp_path / "set" / "metas" / "0.label.json").unlink()
    code, document = build(tmp_path / "set", tmp_path / "out", *flags, "--skip-missing")
    assert code == 0 and document["result"]["written"] == {"train": 2}


def test_records_of_annotations_without_their_clip_can_be_left_out(source, tmp_path):
    turns = [{"from": "human", "value": "<video>\nLit?"}, {"from": "gpt", "value": "yes"}]
    names = ("clips/0.mp4", "clips/9.mp4", "../x.mp4", "../y.mp4")
    rows = [{"id": f"r{n}", "video": name, "conversations": turns} for n, name in enumerate(names)]
    (source / "annotations.json").write_text(json.dumps(rows))
    code, document = build(source, tmp_path / "out", "--column", "answer=x")
    assert code == 2 and ids(document) == ["USAGE", "DATA-MEDIA-ESCAPE", "BUILD-MEDIA-MISSING"]
    assert "and 1 more" in document["findings"][1]["message"]
    (source / "annotations.json").write_text(json.dumps(rows[:2]))
    code, document = build(source, tmp_path / "out", "--skip-missing")
    assert code == 0 and document["findings"][0]["data"]["record_ids"] == ["r1"]


@pytest.mark.parametrize("name", ["clip_name", "Video_File", "recording"])
def test_the_column_of_clips_is_known_by_name_or_asked_for(source, tmp_path, name):
    (source / "t.csv").write_text(f"note,{name},label,question\nx,clips/1.mp4,a,Which?\n")
    code, document = build(source / "t.csv", tmp_path / "out")
    if name == "recording":
        (found,) = [one for one in document["findings"] if one["id"] == "BUILD-COLUMN"]
        assert code == 2 and found["fix"] == "--column video=recording"
        _, document = build(source / "t.csv", tmp_path / "out", *found["fix"].split())
    assert document["result"]["written"] == {"train": 1}


def test_a_misspelt_column_and_an_existing_output_are_told_together(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    code, document = build(
        source / "labels.csv", tmp_path / "out", "--column", "answer=lihgt_on", "--skip-missing"
    )
    assert code == 2
    assert ids(document)[:2] == ["BUILD-OUTPUT-FOREIGN", "BUILD-COLUMN"]
    fix = document["findings"][1]["fix"]
    assert fix == "replace --column answer=lihgt_on with --column answer=light_on"
    for name, fixed in (("Light_On", True), ("light", False)):
        words = ("--column", f"answer={name}")
        code, document = build(source / "labels.csv", tmp_path / "new", *words)
        assert bool(document["findings"][0]["fix"]) == fixed, "another column is another label"


def write_questions(source, names):
    rows = [f"{name},Which?,{'ab'[number % 2]}" for number, name in enumerate(names)]
    (source / "labels.csv").write_text("\n".join(["video,question,answer", *rows]))


UNOPENED = ("empty.mp4", "page.mp4", "note.mp4")
PLAYS = ("plays.gif", "plays.png")
GOOD = [f"{number}.mp4" for number in range(4)]


@pytest.fixture
def damaged(source):
    """The clips with some that do not open and two animations among them."""
    clips = source / "clips"
    (clips / "empty.mp4").touch()
    (clips / "page.mp4").write_text("no clip")
    (clips / "note.mp4").write_text("no clip")
    frames = [Image.new("RGB", (32, 32), (value, 0, 0)) for value in (0, 99)]
    for name in PLAYS:
        frames[0].save(clips / name, save_all=True, append_images=frames[1:])
    return source


def test_all_media_that_do_not_open_are_told_at_once(damaged, tmp_path):
    write_questions(damaged, [f"clips/{name}" for name in (*UNOPENED, *PLAYS, *GOOD)])
    code, document = build(damaged / "labels.csv", tmp_path / "out")
    assert code == 2 and not (tmp_path / "out").exists()
    by_id = {finding["id"]: finding for finding in document["findings"]}
    assert list(by_id) == ["DATA-MEDIA-EMPTY", "DATA-MEDIA-UNDECODABLE", "DATA-MEDIA-ANIMATED"]
    assert by_id["DATA-MEDIA-UNDECODABLE"]["data"]["record_ids"] == ["page", "note"]
    assert "(2 files: " in by_id["DATA-MEDIA-UNDECODABLE"]["message"]
    assert by_id["DATA-MEDIA-EMPTY"]["fix"] == "--skip-missing"
    converted = " ".join(str(damaged / "clips" / name) for name in PLAYS)
    assert by_id["DATA-MEDIA-ANIMATED"]["fix"].endswith(converted)


def test_what_a_conversion_makes_readable_is_not_left_out(damaged, tmp_path):
    write_questions(damaged, [f"clips/{name}" for name in (*UNOPENED, *PLAYS, *GOOD)])
    code, document = build(damaged / "labels.csv", tmp_path / "out", "--skip-missing")
    assert code == 2 and not (tmp_path / "out").exists()
    severities = {finding["id"]: finding["severity"] for finding in document["findings"]}
    assert severities["DATA-MEDIA-ANIMATED"] == "error"
    assert severities["DATA-MEDIA-EMPTY"] == "warning"


def test_media_that_do_not_open_can_be_left_out(damaged, tmp_path):
    write_questions(damaged, [f"clips/{name}" for name in (*UNOPENED, *GOOD)])
    code, document = build(damaged / "labels.csv", tmp_path / "out", "--skip-missing")
    assert code == 0 and document["result"]["written"] == {"train": 4}
    (skipped,) = [one for one in document["findings"] if one["id"] == "BUILD-MEDIA-SKIPPED"]
    assert (skipped["id"], skipped["severity"]) == ("BUILD-MEDIA-SKIPPED", "warning")
    assert skipped["data"]["record_ids"] == ["empty", "page", "note"]
    assert document["result"]["skipped"] == 3


def test_a_member_that_does_not_open_is_named_as_the_archive_has_it(source, tmp_path):
    with zipfile.ZipFile(source / "more.zip", "w") as archive:
        archive.writestr("inside/empty.mp4", "")
    write_questions(source, ["clips/0.mp4", "inside/empty.mp4"])
    code, document = build(source / "labels.csv", tmp_path / "out")
    assert code == 2
    assert [found["where"] for found in document["findings"]] == [
        f"{source}/more.zip/inside/empty.mp4"
    ]
    code, _ = build(source / "labels.csv", tmp_path / "out", "--skip-missing")
    assert code == 0
    assert [path.name for path in (tmp_path / "out/train/media").iterdir()] == ["0.mp4"]


def test_a_split_of_which_nothing_opens_is_refused(source, tmp_path):
    for number in range(4):
        (source / "clips" / f"{number}.mp4").write_text("no clip")
    write_questions(source, [f"clips/{number}.mp4" for number in range(4)])
    code, document = build(source / "labels.csv", tmp_path / "out", "--skip-missing")
    assert code == 2 and ids(document) == ["BUILD-MEDIA-SKIPPED", "BUILD-EMPTY"]
    assert not (tmp_path / "out").exists()


def test_copies_of_a_clip_stay_on_one_side(source, tmp_path):
    for number in range(4):
        clip = source / "clips" / f"{number}.mp4"
        for copy in range(3):
            shutil.copyfile(clip, clip.with_stem(f"{number}-{copy}"))
    names = [f"clips/{number}-{copy}.mp4" for copy in range(3) for number in range(4)]
    write_questions(source, names)
    code, _ = build(source / "labels.csv", tmp_path / "out", "--eval-fraction", 0.5)
    assert code == 0
    sides = {}
    for split in ("train", "eval"):
        for record in json.loads((tmp_path / "out" / split / "annotations.json").read_text()):
            sides.setdefault(record["id"].partition("-")[0], set()).add(split)
    assert len(sides) == 4 and all(len(found) == 1 for found in sides.values())


def table_of(separator):
    header, row = "video question answer".split(), ["clips/0.mp4", "Is it lit, or not; say", "yes"]
    return f"{separator.join(header)}\n{separator.join(row)}"


@pytest.mark.parametrize(
    "name, content",
    [
        ("bars.csv", table_of("|").encode()),
        ("semicolons.csv", table_of(";").replace("not; say", "not").encode()),
        ("tabs.tsv", table_of("\t").encode()),
        ("LOUD.TSV", table_of("\t").encode()),
        ("excel.tsv", table_of("\t").encode("utf-16")),
    ],
)
def test_tables_that_spreadsheets_write(source, tmp_path, name, content):
    (source / name).write_bytes(content)
    code, document = build(source / name, tmp_path / "out")
    assert code == 0 and document["result"]["written"] == {"train": 1}


@pytest.mark.parametrize(
    "name, content, fix",
    [
        ("old.csv", "video,question,answer\nclips/0.mp4,Où?,là".encode("cp1252"), "iconv -f "),
        ("labels.xls", b"PK\x03\x04", ""),
    ],
)
def test_tables_of_another_code_or_kind_are_refused_with_a_way_out(
    source, tmp_path, name, content, fix
):
    (source / name).write_bytes(content)
    code, document = build(source / name, tmp_path / "out")
    assert code == 2 and ids(document) == ["BUILD-TABLE"]
    assert document["findings"][0]["fix"].startswith(fix)


def test_clips_of_records_that_are_left_out_are_not_brought(source, tmp_path):
    """Each beside a clip that does not open; what another record shows stays."""
    for name in ("4", "5"):
        write_clip(source / "clips" / f"{name}.mp4", frames=8, tint=int(name))
    (source / "clips" / "gone.mp4").write_text("no clip")
    pairs = ("0,gone,yes", "1,gone,no", "1,2,yes", "3,4,no", "5,5,yes")
    rows = ["clips/{}.mp4,clips/{}.mp4,{}".format(*pair.split(",")) for pair in pairs]
    lines = ["one,two,answer", *rows]
    (source / "two.csv").write_text("\n".join(lines))
    flags = ["--column", "media=one", "--column", "media=two", "--question", "Is it lit?"]
    code, document = build(source / "two.csv", tmp_path / "out", *flags, "--skip-missing")
    assert code == 0 and document["result"]["written"] == {"train": 3}
    media = tmp_path / "out" / "train" / "media"
    records = json.loads((media.parent / "annotations.json").read_text())
    shown = {name for record in records for name in record["videos"]}
    assert {f"media/{path.name}" for path in media.iterdir()} == shown
    folded = (*flags, "--skip-missing", "--folds", 2)
    code, document = build(source / "two.csv", tmp_path / "folds", *folded)
    assert code == 0, document
    for annotations in (tmp_path / "folds").rglob("annotations.json"):
        records = json.loads(annotations.read_text())
        shown = {name for record in records for name in record["videos"]}
        assert {f"media/{path.name}" for path in (annotations.parent / "media").iterdir()} == shown


def test_media_of_one_record_do_not_differ_by_case_alone(source, tmp_path):
    """On a disk without case one of the two would be lost."""
    for name, shade in (("a.png", 10), ("a.PNG", 200)):
        Image.new("RGB", (64, 64), (shade,) * 3).save(source / name, format="PNG")
    (source / "two.csv").write_text("one,two,answer\na.png,a.PNG,yes\na.PNG,a.png,no\n")
    flags = ["--column", "media=one", "--column", "media=two", "--question", "Is the first darker?"]
    code, _ = build(source / "two.csv", tmp_path / "out", *flags)
    names = [path.name for path in (tmp_path / "out" / "train" / "media").iterdir()]
    assert code == 0 and len({name.lower() for name in names}) == 2
