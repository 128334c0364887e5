"""Label files as tools, scientists and companies write them: built right, or refused with a way
out. Each is a short file of the real shape."""

import json

import pytest
from clip_files import write_clip
from support import run_script

from cosmos_reason.data import annotations
from cosmos_reason.media.files import probe

ASKED = ("--question", "What happens?")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two different clips of three seconds."""
    monkeypatch.setenv("COSMOS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "source"
    folder.mkdir()
    for name, size in (("a", 64), ("b", 96)):
        write_clip(folder / f"{name}.mp4", frames=30, rate=10, width=size)
    return folder


def build(place, name, content, *flags):
    """(the first finding of each id; (answer, frames) of each record)."""
    if not isinstance(content, str):
        is_lines = name.endswith(".jsonl")
        content = "\n".join(map(json.dumps, content)) if is_lines else json.dumps(content)
    (place / name).write_text(content)
    out = place.parent / "out"
    done = run_script("build_dataset.py", place / name, "-o", out, "--force", *flags, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    findings = {one["id"]: one for one in reversed(json.loads(done.stdout)["findings"])}
    if done.returncode:
        return findings, []
    samples, _ = annotations.read(out / "train" / "annotations.json")
    return findings, [
        (one.turns[-1].text, probe(out / "train" / one.media[0].path).frames) for one in samples
    ]


def columns(*pairs):
    return [word for pair in pairs for word in ("--column", pair)]


BORIS = "Media file,FPS,Start time,Stop time,Behavior,Behavior type,Start (s),Stop (s),Duration (s)"
OF_BORIS = "2000-01-01T00:00:00,2000-01-01T00:00:00"


def test_an_aggregated_export_of_boris_is_cut_by_the_columns_that_it_proposes(place):
    """Its `Start time` is the day of the observation; times stand in `Start (s)`."""
    rows = [f"T:/Video Coding/a.mp4,10,{OF_BORIS},look,STATE,0.500,1.500,1.000"]
    rows += [f"T:/Video Coding/a.mp4,10,{OF_BORIS},smile,STATE,1.000,3.000,2.000"]
    table = "\n".join([BORIS, *rows])
    roles = columns("video=Media file", "answer=Behavior")
    found, made = build(place, "agg.csv", table, *roles, *ASKED)
    assert not made and found["BUILD-SPAN"]["severity"] == "error"
    proposed = columns("start=Start (s)", "end=Stop (s)")
    assert "'start=Start (s)' --column 'end=Stop (s)'" in found["BUILD-SPAN"]["fix"]
    found, made = build(place, "agg.csv", table, *roles, *proposed, *ASKED)
    assert made == [("look", 10), ("smile", 20)]
    assert "a time" not in found["BUILD-COLUMN-UNUSED"]["message"], "times are declared"


def test_starts_and_stops_in_rows_of_their_own_are_not_trained_as_whole_clips(place):
    table = "Media file name,Behavior,Behavior type,Time\na.mp4,look,START,1.0\na.mp4,look,STOP,2.0"
    roles = columns("video=Media file name", "answer=Behavior")
    found, made = build(place, "events.csv", table, *roles, *ASKED)
    assert not made and "several rows of one question, and Time" in found["BUILD-SPAN"]["message"]


def test_rows_above_the_names_of_the_columns_are_told(place):
    table = "Observation id\tx\n\nTime\tMedia file path\tBehavior\n1.0\ta.mp4\tlook\n"
    found, _ = build(place, "tabular.tsv", table)
    assert "remove what stands above" in found["BUILD-TABLE"]["message"]


def test_a_comma_that_nobody_quoted_is_told(place):
    """It was said to be a row above the names, which stand where they belong."""
    found, _ = build(place, "a.csv", "video,question,answer\na.mp4,What is it?,A car, red\n")
    assert "a text with ',' needs quotation marks" in found["BUILD-TABLE"]["message"]


def test_remarks_above_the_names_of_the_columns_are_told(place):
    """VIA writes the names behind `# CSV_HEADER =`; the JSON above them is no CSV."""
    table = '# Exported using VGG\n# SHAPE_ID = {"POINT":1}\n# CSV_HEADER = metadata_id,file_list\n'
    found, _ = build(place, "via.csv", table + '"1_j5","[""a.mp4""]"\n')
    assert "lines that begin with #" in found["BUILD-TABLE"]["message"]


ELAN = "file,Tier,Begin Time - ss.msec,End Time - ss.msec,Annotation\n"
ELAN += "a.mp4,walk,0.500,1.500,left\na.mp4,walk,1.500,3.000,right\n"


def test_ss_msec_of_elan_is_seconds(place):
    found, _ = build(place, "elan.csv", ELAN, *columns("answer=Annotation"), *ASKED)
    proposed = "start=Begin Time - ss.msec", "end=End Time - ss.msec"
    assert all(f"'{word}'" in found["BUILD-SPAN"]["fix"] for word in proposed)
    roles = columns("answer=Annotation", *proposed)
    assert build(place, "elan.csv", ELAN, *roles, *ASKED)[1] == [("left", 10), ("right", 15)]


@pytest.mark.parametrize(
    "row",
    [
        "walk\t\t00:00:01.000\t1.0\t00:00:02.000\tleft",  # ELAN without names
        "-5KQ66BBWC4,0902,0.077,0.151,0.283,0.811,80,1",  # AVA
        "TRAIN,gs://bucket/a.mp4,walk,0.0,5.0",  # AutoML
    ],
)
def test_a_table_without_names_of_columns_loses_no_row(place, row):
    found, _ = build(place, "labels.csv", f"{row}\n{row}\n")
    assert "the first row is a record" in found["BUILD-TABLE"]["message"]


def test_thresholds_are_names_of_columns(place):
    table = "clip,label,0.5,1.0\na.mp4,left,1,1\nb.mp4,right,1,2\n"
    assert build(place, "a.csv", table, *ASKED)[1] == [("left", 30), ("right", 30)]


LABELBOX = {
    "data_row": {"id": "c1", "external_id": "a.mp4"},
    "media_attributes": {"frame_rate": 10, "frame_count": 30},
    "projects": {"p": {"labels": [{"annotations": {"frames": {"1": {"classifications": []}}}}]}},
}
ENCORD = {
    "data_title": "a.mp4",
    "data_units": {"d": {"data_fps": 10, "labels": {"0": {"classifications": []}}}},
    "classification_answers": {"c": {"classifications": [{"answers": [{"value": "rain"}]}]}},
}
ARGILLA = {
    "id": "1",
    "fields": {"video": "a.mp4"},
    "responses": {"label": [{"value": "yes", "user_id": "u"}]},
}
SUPERVISELY = {
    "tags": [{"name": "walk", "frameRange": [0, 9]}],
    "framesCount": 30,
    "videoName": "a.mp4",
}
WLASL = {"gloss": "book", "instances": [{"video_id": "a", "frame_start": 1, "frame_end": -1}]}


@pytest.mark.parametrize("record", [LABELBOX, ENCORD, ARGILLA, SUPERVISELY, WLASL])
def test_what_lies_in_objects_is_for_convert_to_make(place, record):
    found, _ = build(place, "export.json", [record, record])
    assert (
        "holds objects, of which --convert FILE.py makes rows" in found["BUILD-COLUMN"]["message"]
    )


DARWIN = {
    "version": "2.0",
    "item": {"name": "a.mp4", "slots": [{"type": "video", "fps": 10}]},
    "annotations": [
        {"id": "x", "name": "walk", "ranges": [[0, 10]]},
        {"id": "y", "name": "run", "ranges": [[10, 30]]},
    ],
}


def test_a_clip_that_stands_beside_its_records_reaches_convert(place):
    """An export of V7: nothing that convert(row) saw named the clip."""
    found, _ = build(place, "darwin.json", DARWIN)
    told = found["BUILD-COLUMN"]["message"]
    assert "convert(row, around)" in told and "around['item']['name']" in told
    (place / "made.py").write_text(
        "def convert(row, around):\n"
        "    ((begin, end),) = row['ranges']\n"
        "    row = {'video': around['item']['name'], 'answer': row['name']}\n"
        "    return {**row, 'start_frame': begin, 'end_frame': end}\n"
    )
    flags = ("--convert", place / "made.py", *ASKED)
    assert build(place, "darwin.json", DARWIN, *flags)[1] == [("walk", 10), ("run", 20)]


def test_a_clip_that_stands_beside_its_records_as_in_a_row_is_theirs(place):
    events = [{"label": "walk", "start": 0, "end": 1}, {"label": "run", "start": 1, "end": 3}]
    document = {"video": "a.mp4", "fps": 10, "annotations": events}
    roles = columns("start=start", "end=end")
    made = build(place, "one.json", document, *roles, *ASKED)[1]
    assert made == [("walk", 10), ("run", 20)]


@pytest.mark.parametrize("beside", [{"image": "logo.png"}, {"info": {"preview": "preview.png"}}])
@pytest.mark.parametrize("named", ["a", {"path": "a.mp4"}, ["a.mp4"]])
def test_a_picture_beside_records_that_name_their_clips_is_not_theirs(place, beside, named):
    """A clip without its suffix, or in an object, was none: the picture became the record's, or
    records were refused as naming no clip."""
    rows = [{"video": named, "question": "Which?", "answer": "a"}]
    found, made = build(place, "labels.json", {**beside, "data": rows})
    if isinstance(named, dict):
        assert "looked for" in found["BUILD-MEDIA-MISSING"]["message"] and not made
    else:
        assert made == [("a", 30)]


def test_what_was_rejected_in_prodigy_is_not_trained(place):
    said = [("a", "accept"), ("b", "reject")]
    rows = [
        {"video": f"{name}.mp4", "label": "RAIN", "_input_hash": n, "answer": word}
        for n, (name, word) in enumerate(said)
    ]
    found, made = build(place, "rows.jsonl", rows, *columns("answer=label"), *ASKED)
    assert not made and 'row["answer"] == "accept"' in found["BUILD-TABLE"]["message"]
    (place / "made.py").write_text(
        "def convert(row):\n"
        '    made = {"video": row["video"], "answer": row["label"]}\n'
        '    return made if row["answer"] == "accept" else None\n'
    )
    flags = ("--convert", place / "made.py", *ASKED)
    assert build(place, "rows.jsonl", rows, *flags)[1] == [("RAIN", 30)]


def test_prodigy_where_all_was_accepted_is_built_with_the_declared_answer(place):
    """Without one, "accept" would be the answer to every question."""
    rows = [
        {"video": f"{name}.mp4", "label": said, "_input_hash": 1, "answer": "accept"}
        for name, said in (("a", "left"), ("b", "right"))
    ]
    made = build(place, "rows.jsonl", rows, *columns("answer=label"), *ASKED)[1]
    assert made == [("left", 30), ("right", 30)]
    made = build(place, "rows.jsonl", rows, "--ask", "label: Which way?")[1]
    assert made == [("left", 30), ("right", 30)]
    assert "BUILD-TABLE" in build(place, "rows.jsonl", rows, *ASKED)[0]


def test_responses_of_several_in_argilla_are_not_trained_as_a_list(place):
    said = {"label.responses": ["yes", "no"], "label.responses.users": ["u", "v"]}
    rows = [{"video": "a.mp4", **said}, {"video": "b.mp4", **said}]
    found, _ = build(place, "rows.json", rows, *columns("answer=label.responses"), *ASKED)
    assert "Argilla" in found["BUILD-TABLE"]["message"]


def test_the_index_that_pandas_writes_is_no_answer(place):
    table = ",snout_x,snout_y,Attack\n0,1,2,0\n1,1,2,1\n"
    found, _ = build(place, "features.csv", table)
    assert "options" not in found["BUILD-COLUMN-UNUSED"]["message"]
