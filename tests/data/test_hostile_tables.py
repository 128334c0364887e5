"""Tables that look right and are read wrong: each is refused with what is wrong in it, or read as
its author means it."""

import datetime
import decimal
import json

import pyarrow as arrow
import pytest
from clip_files import write_clip
from pyarrow import parquet
from support import run_script
from table_build import build, ids

ASKED = ("--question", "Is it open?")
PARTS = ("--column", "start=from", "--column", "end=to")
ROW = "video,from,to,answer"


@pytest.fixture
def source(tmp_path):
    for number in range(4):
        write_clip(tmp_path / "src" / f"{number}.mp4", frames=80, rate=8, tint=number)
    return tmp_path / "src"


def flags(*roles):
    return [*(word for role in roles for word in ("--column", role)), *ASKED]


CHOICE = "video,question,options,answer"
TIMED = [*PARTS, *ASKED]


@pytest.mark.parametrize(
    "lines, flags, check, told",
    [
        ([ROW, "0.mp4,00:00:00:02,00:00:00:06,yes", "1.mp4,0,1,no"],
         TIMED, "BUILD-SPAN", "'00:00:00:02'"),
        ([ROW, "0.mp4,0:01:200,0:02:300,yes"], TIMED, "BUILD-SPAN", "'0:01:200'"),
        ([ROW, "0.mp4,0.0000115,0.0000579,yes", "1.mp4,0.0000231,0.0000694,no"],
         TIMED, "BUILD-SPAN", "less than half a frame"),
        (["video,from,duration,answer", "0.mp4,1,4,yes", "1.mp4,2,3,no"],
         flags("start=from", "end=duration"), "BUILD-SPAN", "duration as the times"),
        (["video,start_min,end_min,answer", "0.mp4,0,1,yes", "1.mp4,1,2,no"],
         flags("start=start_min", "end=end_min"), "BUILD-SPAN", "no minutes"),
        (["video,a,b,answer", "0.mp4,10.5,20.7,yes", "1.mp4,2,30,no"],
         flags("start_frame=a", "end_frame=b"), "BUILD-SPAN", "numbers of frames"),
        ([CHOICE, "0.mp4,Which?,red; green,A", "1.mp4,What?,a; b,A"],
         [], "BUILD-OPTIONS", "options_semicolon"),
        ([CHOICE, "0.mp4,Which?,red||green,B", "1.mp4,What?,a|b|c,C"],
         [], "BUILD-OPTIONS", "empty option"),
        ([CHOICE, '0.mp4,Which?,"[""red"", null, ""blue""]",B'],
         [], "BUILD-OPTIONS", "empty option"),
        ([CHOICE, "0.mp4,Which?,red|red|blue,A"], [], "BUILD-OPTIONS", "'red' as A and B"),
        (["video,reasoning,answer", "0.mp4,<think>It is lit.</think> yes,no", "1.mp4,Dark.,no"],
         ASKED, "BUILD-REASONING", "behind the reasoning"),
        (["video,what", "0.mp4,yes", "1.mp4,y", "2.mp4,n", "3.mp4,no"],
         flags("answer=what"), "BUILD-VALUE", "yes, y, n, no"),
        (["video,what", "0.mp4,Open", "1.mp4,open", "2.mp4,shut"],
         [*flags("answer=what"), "--values", "what: Open=yes, open=no, shut=no"],
         "BUILD-VALUE", "'open'"),
        (["video,phase,answer", "0.mp4,train,yes", "1.mp4,test,no", "2.mp4,,no"],
         ASKED, "BUILD-SPLIT-NAME", "train (1), test (1)"),
    ],
)  # fmt: skip
def test_a_table_that_would_be_read_wrong_is_refused(source, lines, flags, check, told):
    document, _ = build(source, lines, *flags, expect=2)
    (finding,) = [one for one in document["findings"] if one["id"] == check]
    assert finding["severity"] == "error" and told in finding["message"]


def test_a_unit_that_the_name_contradicts_is_replaced_by_its_fix(source):
    lines = ["video,start_frame,end_frame,answer", "0.mp4,0,4,yes", "1.mp4,3,8,no"]
    document, _ = build(source, lines, *flags("start=start_frame", "end=end_frame"), expect=2)
    (told,) = [one for one in document["findings"] if one["id"] == "BUILD-SPAN"]
    assert "start_frame and end_frame as seconds" in told["message"]
    assert told["fix"].endswith("--column start_frame=start_frame --column end_frame=end_frame")
    build(source, lines, *flags("start_frame=start_frame", "end_frame=end_frame"))


def test_a_name_says_nothing_against_what_the_lengths_prove(source):
    """As frames these would lie behind the ends of their clips."""
    lines = ["video,start_ms,end_ms,answer", "0.mp4,0,9000.5,yes", "1.mp4,100,9900,no"]
    build(source, lines, *flags("start_ms=start_ms", "end_ms=end_ms"))
    lines = ["video,frame_in,frame_out,answer", "0.mp4,0,9.5,yes", "1.mp4,0.5,9.9,no"]
    build(source, lines, *flags("start=frame_in", "end=frame_out"), out="proved")


def test_a_word_beside_empty_cells_is_no_split(source):
    lines = ["video,remark,answer", "0.mp4,test,yes", "1.mp4,,no", "2.mp4,,no"]
    document, built = build(source, lines, *ASKED)
    assert len(built["train"]) == 3 and "BUILD-SPLIT-NAME" not in ids(document)


def test_groups_and_annotators_in_other_letters_are_the_same(source):
    lines = ["video,camera,answer", "0.mp4,Cam1,yes", "1.mp4,cam1 ,no", "2.mp4,,no", "3.mp4,b,yes"]
    document, built = build(source, lines, *flags("group=camera"), "--eval-fraction", "0.4")
    sides = [{group for one in built[side] for group in one.groups} for side in built]
    assert sides[0].isdisjoint(sides[1]) and set.union(*sides) == {"camera=Cam1", "camera=b"}
    (told,) = [one for one in document["findings"] if one["id"] == "BUILD-GROUP-EMPTY"]
    assert told["severity"] == "warning" and told["data"]["rows"] == [4]
    lines = ["video,who,answer", "0.mp4,Ann,yes", "0.mp4,ann ,yes", "0.mp4,Bob,no", "0.mp4,Cy,no"]
    declared = (*flags("annotator=who"), "--adjudicate", "majority")
    _, built = build(source, lines, *declared, out="voted")
    assert [one.turns[1].text for one in built["train"]] == ["no"]


def test_a_clip_beside_itself_is_shown_twice(source):
    lines = ["left,right,answer", "0.mp4,0.mp4,yes", "0.mp4,1.mp4,no", ",2.mp4,no"]
    _, built = build(source, lines, *flags("video=left", "video=right"))
    assert [len(one.media) for one in built["train"]] == [2, 2, 1]


def test_options_called_by_numbers_are_meant_by_these(source):
    options = '"{""1"": ""red"", ""2"": ""blue"", ""3"": ""grey""}"'
    lines = ["video,question,options,answer", f"0.mp4,Which?,{options},1", f"1.mp4,W?,{options},2"]
    _, built = build(source, lines)
    assert [one.turns[1].text for one in built["train"]] == ["1", "2"]


def test_annotators_who_write_the_letter_and_the_text_of_an_option_agree(source):
    lines = ["video,question,options,who,answer"]
    lines += [
        f"0.mp4,Which?,red|blue,{who},{said}" for who, said in ("aA", ("b", "red"), "cB", "dB")
    ]
    lines += ["0.mp4,Which?,red|blue,e,A", "1.mp4,Which?,red|blue,a,blue"]
    _, built = build(source, lines, "--column", "annotator=who", "--adjudicate", "majority")
    assert [one.turns[1].text for one in built["train"]] == ["A", "B"]


def test_times_that_a_table_types_are_known(source):
    typed = {
        "duration": [datetime.timedelta(milliseconds=1500), datetime.timedelta(seconds=2)],
        "decimal": [decimal.Decimal("1.5"), decimal.Decimal("2.0")],
        "time": [datetime.time(0, 0, 1, 500_000), datetime.time(0, 0, 2)],
    }
    for name, (begin, end) in typed.items():
        columns = {"video": ["0.mp4"], "from": [begin], "to": [end], "answer": ["yes"]}
        parquet.write_table(arrow.table(columns), source / f"{name}.parquet")
        out = source.parent / name
        done = run_script("build_dataset.py", source / f"{name}.parquet", "-o", out, *PARTS, *ASKED)
        assert done.returncode == 0, done.stderr
        (cut,) = json.loads((out / "train" / "cuts.json").read_text()).values()
        assert (cut["start"], cut["end"]) == (1.5, 2.0)
        if name != "decimal":  # the others say their unit themselves
            ms = ("--column", "start_ms=from", "--column", "end_ms=to", *ASKED, "--force")
            done = run_script("build_dataset.py", source / f"{name}.parquet", "-o", out, *ms)
            assert done.returncode == 2 and "expected milliseconds" in done.stderr


def test_a_number_that_is_none_is_no_option(source):
    columns = {"video": ["0.mp4", "1.mp4"], "question": ["How many?", "How many now?"]}
    columns |= {"a0": [1.0, 2.0], "a1": [3.5, 4.5], "a2": [5.0, float("nan")], "answer": ["C", "B"]}
    parquet.write_table(arrow.table(columns), source / "numbers.parquet")
    out = source.parent / "out"
    done = run_script("build_dataset.py", source / "numbers.parquet", "-o", out)
    assert done.returncode == 0, done.stderr
    _, asked = json.loads((out / "train" / "annotations.json").read_text())
    question = asked["conversations"][0]["value"]
    assert "(B) 4.5" in question and "nan" not in question
