"""Tables as people keep them: what no column says is not guessed, and what is wrong is told by the
rows as a spreadsheet shows them."""

import json
import os
import tarfile
import unicodedata

import pytest
import yaml
from clip_files import write_clip
from PIL import Image
from support import run_script

from cosmos_reason.data import annotations
from cosmos_reason.data.record_checks import damaged
from cosmos_reason.data.turns import in_one_form, is_void
from cosmos_reason.media.files import probe

ASKED = ("--question", "Is it open?")


@pytest.fixture
def long_clip(source):
    """A clip of three seconds."""
    return write_clip(source / "long.mp4", frames=30, rate=10)


def build(source, lines, *flags, name="labels.csv"):
    """(findings by id, texts of the answers, lengths of the clips in frames); [] when refused."""
    text = lines if isinstance(lines, str) else "\n".join(lines) + "\n"
    (source / name).write_text(text)
    out = source.parent / "out"
    done = run_script("build_dataset.py", source / name, "-o", out, "--force", *flags, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    findings = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    if done.returncode:
        assert any(one["severity"] == "error" for one in findings.values())
        return findings, [], []
    samples, _ = annotations.read(out / "train" / "annotations.json")
    media = [out / "train" / sample.media[0].path for sample in samples]
    texts = [sample.turns[-1].text for sample in samples]
    return findings, texts, [probe(clip).frames for clip in media]


# -- columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        ("From,To", "--column start=From --column end=To"),
        ("begin,stop", "--column start=begin --column end=stop"),
        ("start_ms,end_ms", "--column start_ms=start_ms --column end_ms=end_ms"),
        ("start_frame,endFrame", "--column start_frame=start_frame --column end_frame=endFrame"),
    ],
)
def test_columns_that_look_like_times_are_told_with_their_roles(source, names, roles):
    lines = [f"video,{names},answer", "0.mp4,0,1,yes", "1.mp4,0,1,no"]
    findings, answers, _ = build(source, lines, *ASKED)
    told = findings["BUILD-COLUMN-UNUSED"]
    assert told["severity"] == "warning" and roles in told["message"] and answers == ["yes", "no"]
    assert told["data"]["columns"] == names.split(",")


def test_every_unused_column_is_named_and_what_it_may_mean(source):
    lines = [
        "video,answer,camera,time,fold,note,weight",
        "0.mp4,yes,a,00:10,train,n1,1",
        "1.mp4,no,b,00:20,test,n2,2",
    ]
    told = build(source, lines, *ASKED)[0]["BUILD-COLUMN-UNUSED"]
    assert told["data"]["columns"] == ["camera", "time", "note", "weight"], "the fold is an error"
    assert told["data"]["meanings"] == {
        "camera": "a group",
        "time": "a time",
        "weight": "a weight",
    }
    assert "--column group=camera" in told["message"]
    lines = ["video,answer,note", "0.mp4,yes,n1"]
    told = build(source, lines, *ASKED)[0]["BUILD-COLUMN-UNUSED"]
    assert told["severity"] == "info" and told["data"]["columns"] == ["note"]


@pytest.mark.parametrize(
    ("names", "last"),
    [("t0,t1", "yes"), ("t0,t1", "no"), ("debut,fin", "no")],  # equal answers take a known name
)
def test_what_tells_rows_of_one_clip_apart_as_times_do_is_told_whatever_its_name(
    source, names, last
):
    lines = [f"video,{names},answer", "0.mp4,0,3,yes", f"0.mp4,0:03,0:06,{last}"]
    told = build(source, lines, *ASKED)[0]["BUILD-SPAN"]
    assert told["severity"] == "error"
    assert names.replace(",", " and ") in told["message"]
    ignored = [word for name in names.split(",") for word in ("--column", f"ignore={name}")]
    assert build(source, lines, *ignored, *ASKED)[1] == ["yes", last]


@pytest.mark.parametrize(
    ("names", "cells"),
    [
        ("score,votes", [("0.3", "5"), ("0.4", "6")]),
        ("annotation time", [("12",), ("14",)]),
        ("timestamp", [("2024-01-01",), ("2024-01-02",)]),
        ("frame,response_time", [("1", "3.2"), ("2", "4.1")]),
    ],
)
def test_equal_answers_that_no_begin_and_end_tell_apart_are_no_contradiction(source, names, cells):
    lines = [f"video,{names},answer", *(f"0.mp4,{','.join(one)},yes" for one in cells)]
    found, answers, _ = build(source, lines, *ASKED)
    assert answers == ["yes", "yes"] and "BUILD-SPAN" not in found


def test_equal_answers_at_two_times_are_refused_unless_a_mapping_leaves_the_times_out(source):
    lines = ["video,from,to,answer", "0.mp4,0,0.5,yes", "0.mp4,0.5,1,yes"]
    assert build(source, lines, *ASKED)[0]["BUILD-SPAN"]["severity"] == "error"
    ignored = ("--column", "ignore=from", "--column", "ignore=to")
    assert build(source, lines, *ignored, *ASKED)[1] == ["yes", "yes"]
    saved = yaml.safe_load((source.parent / "out" / "mapping.yaml").read_text())
    saved["unused"] = [saved["columns"].pop(name) and name for name in ("from", "to")]
    mapping = source.parent / "mapping.yaml"
    mapping.write_text(yaml.safe_dump(saved))
    assert build(source, lines, "--mapping", mapping)[1] == ["yes", "yes"]


def test_times_of_the_whole_clip_are_not_proposed_as_those_of_its_parts(source):
    """Both answers were cut out at the one time of their clip."""
    lines = ["video,begin,stop,clip_start_ms,clip_end_ms,answer"]
    lines += ["0.mp4,0,0.5,0,1000,fall", "0.mp4,0.5,1,0,1000,slip"]
    found, _, _ = build(source, lines, *ASKED)
    assert found["BUILD-SPAN"]["severity"] == "error"
    fix = found["BUILD-SPAN"]["fix"]
    assert "--column start=begin --column end=stop" in fix and "start_ms=" not in fix


def test_an_answer_is_proposed_only_where_one_column_can_be_it(source):
    lines = ["video,weather,road", "0.mp4,sun,wet", "1.mp4,sun,dry", "2.mp4,fog,wet"]
    findings, _, _ = build(source, lines)
    assert not findings["BUILD-COLUMN"]["fix"]
    lines = ["video,split,weather", "0.mp4,train,sun", "1.mp4,train,sun", "2.mp4,test,fog"]
    assert build(source, lines)[0]["BUILD-COLUMN"]["fix"] == "--column answer=weather"


def test_columns_to_be_declared_are_shown_with_what_stands_in_them(source):
    lines = ["video,weather,road", "0.mp4,sun,wet", "1.mp4,sun,dry", "2.mp4,fog," + "wet" * 9]
    message = build(source, lines)[0]["BUILD-COLUMN"]["message"]
    assert "weather (sun, fog), road (wet, dry, wetwetwetwetwetwetwe...)" in message
    lines = ["video,weather,sha", f'0.mp4,"a\n  b",{"0af1" * 16}', f"1.mp4,fog,{'1af1' * 16}.mp4"]
    message = build(source, lines)[0]["BUILD-COLUMN"]["message"]
    assert "weather (a b, fog), sha," in message, "no line breaks, and no hashes of clips"


def test_clips_that_are_not_known_yet_have_no_contradicting_answers(source):
    lines = ["name,from,to,label", "0,1,2,walk", "1,3,4,run"]
    findings, _, _ = build(source, lines, *ASKED)
    assert "BUILD-COLUMN" in findings and "BUILD-SPAN" not in findings


def test_a_count_is_no_time_and_no_group(source):
    lines = ["video,frame_count,vehicle_count,answer", "0.mp4,8,1,yes", "0.mp4,8,1,no"]
    findings, answers, _ = build(source, lines, *ASKED)
    assert answers == ["yes", "no"] and not findings["BUILD-COLUMN-UNUSED"]["data"]["meanings"]


def test_a_count_is_no_answer_and_no_option(source):
    lines = ["video,what,frame_count", "0.mp4,rain,60", "1.mp4,sun,60", "2.mp4,rain,61"]
    assert build(source, lines, *ASKED)[0]["BUILD-COLUMN"]["fix"] == "--column answer=what"
    lines = ["video,answer,camera_count,patient_total", "0.mp4,a,1,2", "1.mp4,b,2,3"]
    assert "options" not in build(source, lines, *ASKED)[0]["BUILD-COLUMN-UNUSED"]["message"]
    lines = ["video,car_count", "0.mp4,1", "1.mp4,2", "2.mp4,1"]
    fix = build(source, lines, *ASKED)[0]["BUILD-COLUMN"]["fix"]
    assert fix == "--column answer=car_count", "what is counted has no other meaning"


def test_a_role_is_given_once(source):
    roles = ("--column", "answer=a", "--column", "answer=b")
    findings, answers, _ = build(source, ["video,a,b", "0.mp4,yes,no"], *roles, *ASKED)
    assert "USAGE" in findings and not answers


# -- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "cells"),
    [
        *[("", "1,2.5"), ("", "0:01,0:02.5"), ("_ms", "1000,2500"), ("_frame", "10,25")],
        *[("", '"1,0","2,5"'), ("", '"00:00:01,000","0:02,5"')],  # decimal commas
    ],
)
def test_times_are_cut_in_the_unit_that_is_declared(source, long_clip, unit, cells):
    roles = ("--column", f"start{unit}=a", "--column", f"end{unit}=b")
    lines = ["video,a,b,answer", f"long.mp4,{cells},yes"]
    findings, _, frames = build(source, lines, *roles, *ASKED)
    assert frames == [15] and "BUILD-COLUMN-UNUSED" not in findings


@pytest.mark.parametrize(
    "begin", ["-0:01", "-1", "1_0", "0.01.000", "1,000", "1:02:03:04", "0:61", "2.5", "3"]
)
def test_what_may_be_another_time_is_refused(source, long_clip, begin):
    lines = ["video,a,b,answer", f'long.mp4,"{begin}",2.5,yes']
    roles = ("--column", "start=a", "--column", "end=b")
    finding = build(source, lines, *roles, *ASKED)[0]["BUILD-SPAN"]
    assert finding["severity"] == "error"
    assert ("thousands" in finding["message"]) is (begin == "1,000")


@pytest.mark.parametrize(("time", "is_moment"), [("2", True), ("-1", False)])
def test_a_window_is_offered_around_a_moment_of_the_clip(source, long_clip, time, is_moment):
    lines = ["video,a,answer", f"long.mp4,{time},yes"]
    roles = ("--column", "start=a", "--column", "end=a")
    finding = build(source, lines, *roles, *ASKED)[0]["BUILD-SPAN"]
    assert ("--window" in finding["message"]) is is_moment


def test_times_of_two_units_or_of_another_unit_are_refused(source, long_clip):
    lines = ["video,a,b,answer", "long.mp4,1000,2500,yes"]
    roles = ("--column", "start_ms=a", "--column", "end=b")
    assert "USAGE" in build(source, lines, *roles, *ASKED)[0]
    roles = ("--column", "start=a", "--column", "end=b")
    finding = build(source, lines, *roles, *ASKED)[0]["BUILD-SPAN-OUTSIDE"]
    assert finding["severity"] == "error" and finding["fix"] == (
        "replace --column start=a --column end=b with --column start_ms=a --column end_ms=b"
    )
    roles = ("--column", "start_ms=a", "--column", "end_ms=b")
    lines = ["video,a,b,answer", "long.mp4,0:01,0:02,yes"]
    assert "BUILD-SPAN" in build(source, lines, *roles, *ASKED)[0]


@pytest.mark.parametrize(
    ("cells", "roles"),
    [
        ("0:00,0:01", "start=From end=To"),
        ("0,2.5", "start=From end=To"),  # no number of frames, and 2.5 ms show no frame
        ("0,2500", "start_ms=From end_ms=To"),
        ("12,24", "start_frame=From end_frame=To"),
        ("0,1", ""),  # seconds or frames
    ],
)
def test_a_unit_is_proposed_where_the_lengths_of_the_clips_prove_it(
    source, long_clip, cells, roles
):
    lines = ["video,From,To,answer", f"long.mp4,{cells},yes", f"long.mp4,{cells},no"]
    findings, _, _ = build(source, lines, *ASKED)
    finding = findings["BUILD-SPAN"]
    assert finding["severity"] == "error"
    assert ("BUILD-COLUMN-UNUSED" in findings) == (not finding["fix"]), "the columns are told once"
    assert finding["fix"] == " ".join(f"--column {role}" for role in roles.split())


TIMES = ("--column", "start=start", "--column", "end=end")


@pytest.mark.parametrize("suffix", ["ts", "flv", "mkv", "mov", "mp4"])
def test_a_part_of_a_clip_with_frames_out_of_order_has_its_own_frames(source, suffix):
    """B-frames; MPEG-TS begins at 1.4 s of its own clock, and has no index."""
    import av
    import numpy as np

    with av.open(str(source / f"b.{suffix}"), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "12", "crf": "1"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.max_b_frames = 3
        for number in range(40):
            level = np.full((48, 64, 3), number * 6, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(level, format="rgb24")))
        container.mux(stream.encode(None))
    lines = ["video,start,end,answer", f"b.{suffix},0,1,yes", f"b.{suffix},1.3,2.6,no"]
    assert build(source, lines, *TIMES, *ASKED)[2] == [10, 13]
    parts = sorted((source.parent / "out" / "train" / "media").iterdir())
    for part, first in zip(parts, (0, 13), strict=True):
        with av.open(str(part)) as container:
            shown = next(container.decode(video=0)).to_ndarray(format="rgb24").mean()
        assert abs(shown - 6 * first) < 4


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("span", "frames", "told"),
    [
        ("1,3", 20, ""),
        ("2,3.04", 10, ""),  # rounded
        ("1,4", 20, "BUILD-SPAN-PAST"),
        ("0,3.8", 30, "BUILD-SPAN-PAST"),  # not longer by a second: times in whole seconds are so
        ("0,4.5", 0, "BUILD-SPAN-OUTSIDE"),  # would be the whole clip
        ("0,25", 0, "BUILD-SPAN-OUTSIDE"),
        ("2.5,3.6", 0, "BUILD-SPAN-OUTSIDE"),  # less than half of it
        ("3,4", 0, "BUILD-SPAN-OUTSIDE"),
        ("60,61", 0, "BUILD-SPAN-OUTSIDE"),
    ],
)
def test_a_part_that_ends_behind_its_clip(source, long_clip, packed, span, frames, told):
    if packed:
        with tarfile.open(source / "clips.tar", "w") as archive:
            archive.add(long_clip, "long.mp4")
        long_clip.unlink()
    lines = ["video,start,end,answer", "0.mp4,0,1,no", "", f"long.mp4,{span},yes"]
    findings, _, lengths = build(source, lines, *TIMES, *ASKED)
    spans = {id: one for id, one in findings.items() if id.startswith("BUILD-SPAN")}
    assert set(spans) == ({told} if told else set()) and lengths == ([8, frames] if frames else [])
    if told == "BUILD-SPAN-PAST":
        assert spans[told]["severity"] == "warning" and spans[told]["data"]["rows"] == [4]
    if not frames:
        assert "row 4" in spans[told]["where"] and spans[told]["fix"] == "--skip-missing"
        findings, _, lengths = build(source, lines, *TIMES, *ASKED, "--skip-missing")
        assert lengths == [8]


def test_a_row_without_times_among_others_is_told_to_be_whole(source, long_clip):
    lines = ["video,start,end,answer", "long.mp4,1,2,yes", "long.mp4,,,no"]
    findings, _, frames = build(source, lines, *TIMES, *ASKED)
    assert frames == [10, 30] and findings["BUILD-SPAN"]["data"]["rows"] == [3]


# -- rows and answers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_none"),
    [
        *((void, True) for void in ("NaN", "nan", "None", "#REF!", "#DIV/0!", "#N/A", "<NA>")),
        *((void, True) for void in ("#NAME?", "#SPILL!", "Err:502", "#####", "=A1", "-", "--")),
        *(("NA", True), ("=VLOOKUP(A2;B:C;2)", True)),
        *((word, False) for word in ("none", "no", "#1", "a-b", "=", "0", "Nan", "N", "Err")),
    ],
)
def test_what_programs_write_for_no_value(text, is_none):
    assert is_void(text) == is_none


def test_no_value_is_no_answer_and_no_question_unless_it_is_an_option(source):
    lines = ["video,answer", "0.mp4,yes", ",", "1.mp4,NaN", "2.mp4,NaN", "3.mp4,none"]
    findings, answers, _ = build(source, lines, *ASKED)
    told = findings["BUILD-TEXT-VOID"]
    assert not answers and told["data"]["rows"] == [4, 5] and "row 4" in told["where"]
    assert "BUILD-TEXT-VOID" in build(source, ["video,question,answer", "0.mp4,NaN,yes"])[0]
    chosen = ["video,question,options,answer", "0.mp4,Which?,one|NaN,NaN"]
    assert build(source, chosen)[1] == ["B"]


def test_a_label_file_without_a_value_is_refused(source):
    (source / "videos").mkdir()
    (source / "metas").mkdir()
    for number, value in enumerate(["yes", None, "NaN"]):
        os.link(source / f"{number}.mp4", source / "videos" / f"{number}.mp4")
        label = json.dumps({"open": value})
        (source / "metas" / f"{number}.label.json").write_text(label)
    words = (source, "-o", source.parent / "out", "--fields", "open", *ASKED, "--json")
    done = run_script("build_dataset.py", *words)
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 2 and found["BUILD-TEXT-VOID"]["data"]["record_ids"] == ["1", "2"]


def test_blank_rows_are_passed_over_and_counted(source):
    lines = ["video,answer", "0.mp4,yes", ",", "", "  , ", "1.mp4,no"]
    findings, answers, _ = build(source, lines, *ASKED)
    assert answers == ["yes", "no"] and findings["BUILD-ROWS-BLANK"]["data"]["rows"] == [3, 4, 5]
    (source / "labels.csv").unlink()
    lines[-1] = "1.mp4,"
    assert build(source, lines, *ASKED)[0]["BUILD-ANSWER-EMPTY"]["data"]["rows"] == [6]


def test_answers_are_trained_in_one_form(source):
    lines = ["video,answer", "0.mp4,No", "1.mp4, no", "2.mp4,no", "3.mp4,Yes"]
    findings, answers, _ = build(source, lines, *ASKED)
    assert answers == ["No", "No", "No", "Yes"]
    told = findings["BUILD-ANSWER-FORM"]
    assert told["data"]["rows"] == [3, 4] and "Unicode" not in told["message"]
    lines = ["video,answer", "0.mp4,cafe\u0301", "1.mp4,bar"]
    told = build(source, lines, *ASKED)[0]["BUILD-ANSWER-FORM"]["message"]
    assert "Unicode" in told, "both are shown alike"


@pytest.mark.parametrize(("name", "called"), [("labels", "without a suffix"), ("a.foo", ".foo")])
def test_a_file_that_is_no_table_is_called_by_its_suffix(source, name, called):
    message = build(source, "so it goes\n", *ASKED, name=name)[0]["BUILD-TABLE"]["message"]
    assert f"got a file {called} that is no JSON" in message


@pytest.mark.parametrize(
    ("written", "trained"),
    [
        ("1,1.0,1,2", "1,1,1,2"),
        ("yes.,yes,Yes,no", "yes,yes,yes,no"),
        ("Yes,no,no,unclear", "yes,no,no,unclear"),
        ("YES,no,NO.,NO", "YES,NO,NO,NO"),
        ("False.,true.,false.,true.", "false.,true.,false.,true."),
        ("Toyota,car,car,Audi", "Toyota,car,car,Audi"),
        ("caf\u00e9,cafe\u0301,bar", "caf\u00e9,caf\u00e9,bar"),
        ("yes\u200b,yes\u200b,\ufeffno,yes", "yes,yes,no,yes"),
        ("driver's,driver's,driver\u2019s", "driver's,driver's,driver's"),
        ("in\u2013out,in-out,in\u2013out", "in\u2013out,in\u2013out,in\u2013out"),
    ],
)
def test_the_form_that_most_have_and_one_spelling_of_yes_and_no(written, trained):
    assert in_one_form(written.split(",")) == trained.split(",")


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("caf\ufffd noir", "DATA-TEXT-LOST"),
        ("cafÃ© noir", "DATA-TEXT-MISREAD"),
        ("itâ€™s red", "DATA-TEXT-MISREAD"),
        ("Ð´Ð° Ð¸ Ð½ÐµÑ‚", "DATA-TEXT-MISREAD"),
        ("caf√© noir", "DATA-TEXT-MISREAD"),
        ("red &amp; blue", "DATA-TEXT-ENTITY"),
        ("it&#39;s red", "DATA-TEXT-ENTITY"),
        ("“CAFÉ” – «NÃO», l’été, CAFÉ’S; R&D AT&T; √2·π", None),
    ],
)
def test_texts_that_a_program_damaged(text, id):
    assert (damaged(text) or [None])[0] == id


@pytest.mark.parametrize(
    ("text", "severity"), [("caf\ufffd noir", "error"), ("red &amp; blue", "warning")]
)
@pytest.mark.parametrize("column", [0, 1])
def test_texts_that_a_program_damaged_are_told_by_their_rows(source, text, severity, column):
    cells = [["Which?", "no"], ["Which?", "yes"], ["Which?", "no"]]
    cells[1][column] = cells[2][column] = text
    lines = [f'{n}.mp4,"{question}","{answer}"' for n, (question, answer) in enumerate(cells)]
    found, answers, _ = build(source, ["video,question,answer", *lines])
    (told,) = [one for name, one in found.items() if name.startswith("DATA-TEXT")]
    assert (told["severity"], told["data"]["rows"]) == (severity, [3, 4])
    assert answers == ([] if severity == "error" else [answer for _, answer in cells])


@pytest.mark.parametrize(
    ("answers", "rows", "severity"),
    [
        (["1-2", "2-Mar", "5-6", "3-4"], [3], "error"),
        (["1-2", "45689", "5-6", "01. Feb"], [3, 5], "error"),
        (["1/2", "2025-02-01", "2025-03-04 00:00:00", "none"], [3, 4], "error"),
        (["Feb-01", "Mär-03", "02-janv.", "no"], [2, 3, 4], "warning"),
        (["45689", "45690", "no", "two"], [], ""),
        (["45689", "1.5", "0.25", "3"], [], ""),
        (["1-2", "3-4", "10 marks", "2-May"], [5], "error"),
        (["Mary", "mark 10", "12 junk", "Dec"], [], ""),
    ],
)
def test_answers_that_a_spreadsheet_made_dates_of_are_told(source, answers, rows, severity):
    lines = ["video,answer", *(f"{number}.mp4,{text}" for number, text in enumerate(answers))]
    findings, trained, _ = build(source, lines, *ASKED)
    told = findings.get("BUILD-ANSWER-DATE")
    assert (told["severity"], told["data"]["rows"]) == (severity, rows) if rows else told is None
    assert trained == ([] if severity == "error" else answers)
    if severity == "error":  # what they mean is declared, and nothing is said
        (source / "labels.csv").unlink()
        means = ", ".join(
            f"{text}={'1-2' if n + 2 in rows else text}" for n, text in enumerate(answers)
        )
        findings, trained, _ = build(source, lines, *ASKED, "--values", f"answer: {means}")
        assert "BUILD-ANSWER-DATE" not in findings, findings
        assert trained == ["1-2" if n + 2 in rows else text for n, text in enumerate(answers)]


@pytest.mark.parametrize(
    ("name", "first", "answers", "letters"),
    [("option_{}", 1, "12", ""), ("option_{}", 1, "02", "AC"), ("a{}", 0, "13", "AC"),
     ("a{}", 0, "03", "")],
)  # fmt: skip
def test_numbers_of_option_columns_need_a_proof(source, name, first, answers, letters):
    names = [name.format(first + place) for place in range(3)]
    lines = [f"video,question,answer,{','.join(names)}"]
    lines += [f"{n}.mp4,Which?,{answer},red,blue,green" for n, answer in enumerate(answers)]
    findings, written, _ = build(source, lines)
    assert "".join(written) == letters
    if not letters:
        assert "row " in findings["BUILD-OPTIONS"]["where"]
        _, written, _ = build(source, lines, "--column", "answer_from_1=answer")
        assert "".join(written) == ("AB" if answers == "12" else "")


def test_numbers_among_letters_are_numbers_too(source):
    lines = ["video,question,answer,options", "0.mp4,Which?,B,red|blue", "1.mp4,Which?,1,red|blue"]
    assert "BUILD-OPTIONS" in build(source, lines)[0]


@pytest.mark.parametrize("mark, name", [("\t", "labels.tsv"), (",", "labels.csv")])
def test_a_row_behind_an_unclosed_quotation_mark_is_not_lost(source, mark, name):
    """Until the next one all was one cell, rows and all: the answer, and the end of other rows."""
    (source / "labels.csv").unlink(missing_ok=True)
    lines = ["video,answer", '0.mp4,"open', '1.mp4,shut"', "2.mp4,shut"]
    text = "\n".join(lines).replace(",", mark)
    findings, answers, _ = build(source, text, *ASKED, name=name)
    assert "'1.mp4' inside a cell of row 2" in findings["BUILD-TABLE"]["message"] and not answers
    text = text.replace("1.mp4", "as in 1.mp4\nor so")  # a text of several lines stays one
    assert build(source, text, *ASKED, name=name)[1][-1] == "shut"


@pytest.mark.parametrize(
    "cell, name",
    [
        ("It brakes.\nIn c0.mp4, the light is red.", "labels.csv"),
        ("Which of these is it?\nframe1.jpg, frame2.jpg, frame3.jpg", "labels.csv"),
        ("Compare:\n0.mp4, 1.mp4", "labels.tsv"),
        ("Source:\ncam1/0.mp4; 2024", "labels.tsv"),
    ],
)
def test_a_text_of_several_lines_that_names_clips_is_no_row(source, cell, name):
    """Such tables were refused for an unclosed quotation mark."""
    (source / "labels.csv").unlink(missing_ok=True)
    mark = "\t" if name.endswith(".tsv") else ","
    lines = [("video", "note", "answer"), ("0.mp4", f'"{cell}"', "open"), ("1.mp4", "", "shut")]
    text = "\n".join(mark.join(line) for line in lines)
    findings, answers, _ = build(source, text, *ASKED, name=name)
    assert "BUILD-TABLE" not in findings and answers == ["open", "shut"]


def test_a_record_in_the_place_of_the_header_is_not_lost(source):
    findings, answers, _ = build(source, ["0.mp4,yes", "1.mp4,no"], *ASKED)
    assert "BUILD-TABLE" in findings and not answers and not findings["BUILD-TABLE"].get("fix")
    arrays = '["0.mp4", "yes"]\n["1.mp4", "no"]\n'
    assert "BUILD-TABLE" in build(source, arrays, *ASKED, name="labels.jsonl")[0]


def test_lists_of_answers_are_trained_as_they_are_written(source):
    """Were lists of one text taken apart where a file has no others, those that are trained on and
    those to evaluate on, built apart, would have two forms, which never are equal."""
    (source / "labels.csv").unlink(missing_ok=True)
    box = [{"bbox_2d": [0, 0, 9, 9], "label": "car"}]
    for labels, is_told in ((["sun"], True), (["rain", "sun"], False), (box, False)):
        rows = [{"video": f"{n}.mp4", "question": "Open?", "answer": labels} for n in range(2)]
        findings, answers, _ = build(source, json.dumps(rows), name="rows.json")
        assert answers == [json.dumps(labels)] * 2
        assert ("BUILD-ANSWER-FORM" in findings) == is_told


def test_questions_of_clips_by_name_are_asked(source):
    (source / "labels.csv").unlink(missing_ok=True)
    rows = {"0.mp4": {"question": "Open?", "answer": "yes"}, "1.mp4": {"q": "Shut?", "a": "no"}}
    for clip, row in rows.items():
        _, answers, _ = build(source, json.dumps({clip: row}), name="rows.json")
        assert answers == [row.get("answer", row.get("a"))]


# -- names of files ----------------------------------------------------------------------------

NFC = "caf\u00e9.mp4"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("v1.mp4", "V1.MP4"),
        ("v1.mp4", " v1.mp4 "),
        ("V1.mp4", "v1"),
        (NFC, unicodedata.normalize("NFD", NFC)),
        (unicodedata.normalize("NFD", NFC), NFC),
    ],
)
def test_names_in_other_letters_are_taken_and_told_where_one_file_fits(source, file, name):
    (source / "0.mp4").rename(source / file)
    findings, answers, _ = build(source, ["video,answer", f"{name},yes"], *ASKED)
    assert answers == ["yes"]
    assert findings["BUILD-MEDIA-RENAMED"]["data"]["files"] == {name: file}


def test_a_thumbnail_does_not_stand_for_its_clip(source):
    """Of clips that could not be had a picture of their name was trained, in silence."""
    for name in ("0", "late"):
        Image.new("RGB", (64, 48), "red").save(source / f"{name}.jpg")
    lines = ["video,answer", "0,yes", "1,no", "late,no"]
    findings, answers, _ = build(source, lines, *ASKED)
    found = findings["BUILD-MEDIA-AMBIGUOUS"]
    assert found["severity"] == "error" and "late.jpg" in found["message"] and not found["fix"]
    assert found["data"]["rows"] == [4] and not answers
    findings, answers, _ = build(source, [*lines[:3], "late.mp4,no"], *ASKED, "--skip-missing")
    assert answers == ["yes", "no"] and findings["BUILD-MEDIA-SKIPPED"]["data"]["count"] == 1
    lines = ["video,answer", "0.jpg,yes", "1,no", "late.jpg,no"]
    assert build(source, lines, *ASKED)[1] == ["yes", "no", "no"], "pictures that are named whole"
    lines = ["video,a,b", "0,yes,", "1,no,", "late,,no"]
    asks = ("--ask", "a: Is it open?", "--ask", "b: Is it shut?")
    found = build(source, lines, *asks)[0]["BUILD-MEDIA-AMBIGUOUS"]
    assert found["data"]["rows"] == [4], "whichever question is asked of it alone"
    lines = ["video,answer", "0,yes", "1,no", "late,no"]
    findings, answers, _ = build(source, lines, *ASKED, "--column", "media=video")
    assert answers == ["yes", "no", "no"] and "BUILD-MEDIA-AMBIGUOUS" not in findings
    for clip in source.glob("*.mp4"):
        clip.unlink()
    assert build(source, ["file,answer", "0,yes", "late,no"], *ASKED)[1] == ["yes", "no"]


def test_absolute_names_of_another_machine_say_where_they_are_looked_for(source):
    lines = ["video,answer", "/mnt/there/0.mp4,yes", "/mnt/there/9.mp4,no"]
    missing = build(source, lines, *ASKED)[0]["BUILD-MEDIA-MISSING"]
    assert "is looked for there only" in missing["message"]
    assert not missing["fix"]
    _, answers, _ = build(source, ["video,answer", "there/0.mp4,yes"], *ASKED)
    assert answers == ["yes"]


def test_a_name_of_another_folder_is_told(source):
    findings, _, _ = build(source, ["video,answer", "day1/0.mp4,yes"], *ASKED)
    assert findings["BUILD-MEDIA-RENAMED"]["data"]["files"] == {"day1/0.mp4": "0.mp4"}
    assert "BUILD-MEDIA-RENAMED" not in build(source, ["video,answer", "0,yes"], *ASKED)[0]


def test_two_spellings_of_one_file_are_that_file(source):
    lines = ["video,question,answer", "0.mp4,Open?,yes", "0.MP4,Lit?,no"]
    findings, answers, _ = build(source, lines)
    assert answers == ["yes", "no"] and "BUILD-MEDIA-RENAMED" in findings


def test_a_check_names_the_file_that_differs_in_case(source):
    turns = [{"from": "human", "value": "<video>\nOpen?"}, {"from": "gpt", "value": "yes"}]
    record = {"id": "a", "video": "3.MP4", "conversations": turns}
    (source / "annotations.json").write_text(json.dumps([record]))
    done = run_script("check_dataset.py", source, "--json")
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert "3.mp4 lies beside it" in found["DATA-MEDIA-MISSING"]["message"]


@pytest.mark.parametrize("answers", ["ba", "21", "10"])
@pytest.mark.parametrize(
    ("names", "is_told"),
    [("opt_a,opt_b", True), ("x,y", True), ("x", False), ("camera,qid", False)],
)
def test_answers_that_number_unused_texts_are_told(source, answers, names, is_told):
    texts = ",".join(["left", "right"][: names.count(",") + 1])
    lines = [f"video,{names},answer", f"0.mp4,{texts},{answers[0]}", f"1.mp4,{texts},{answers[1]}"]
    findings, trained, _ = build(source, lines, *ASKED)
    told = findings["BUILD-COLUMN-UNUSED"]
    assert trained == list(answers) and ("may be the options" in told["message"]) == is_told
    if is_told:
        assert told["severity"] == "warning"
        words = [word for name in names.split(",") for word in ("--column", f"options={name}")]
        assert " ".join(words) in told["message"]
        numbered = ["--column", f"answer_from_{min(answers)}=answer"] if answers.isdigit() else []
        (source / "labels.csv").unlink()
        first = {"ba": "B", "21": "B", "10": "B"}[answers]
        assert build(source, lines, *ASKED, *words, *numbered)[1][0] == first


@pytest.mark.parametrize(
    ("cells", "fix"),
    [
        (("12,24", "15,29"), "start_frame=a --column end_frame=b"),
        (("12,24", "15,29", "1,2"), "--skip-missing"),  # seconds, two of which are wrong
        (("12,24", "15,29") * 4 + ("1,2", "0,2"), "start_frame=a --column end_frame=b"),
    ],
)
def test_of_few_rows_all_have_to_prove_another_unit(source, long_clip, cells, fix):
    rows = [f"long.mp4,{edges},{'yes' if place % 2 else 'no'}" for place, edges in enumerate(cells)]
    roles = ("--column", "start=a", "--column", "end=b")
    findings, _, _ = build(source, ["video,a,b,answer", *rows], *roles, *ASKED)
    assert findings["BUILD-SPAN-OUTSIDE"]["fix"].endswith(fix)
