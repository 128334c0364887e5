"""Spreadsheets as they are saved: what a build makes of them is what it makes of their CSV."""

import datetime
import json

import pytest
from clip_files import write_clip
from support import run_script

openpyxl = pytest.importorskip("openpyxl")
SPANS = ("--column", "start=from", "--column", "end=to", "--column", "answer=what")
ASKED = ("--question", "What is done?")


def saved(path, rows, formats=(), **others):
    """A workbook with one sheet, and others by their names; `formats` of cells by coordinates."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for coordinate, written in dict(formats).items():
        book.active[coordinate].number_format = written
    for title, row in others.items():
        book.create_sheet(title).append(row)
    book.save(path)
    return path


def build(table, *flags):
    """(exit code, findings by id, answers and ids of the records)."""
    out = table.parent.parent / "out"
    done = run_script("build_dataset.py", table, "-o", out, "--force", *flags, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    findings = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    records = []
    if done.returncode == 0:
        records = json.loads((out / "train" / "annotations.json").read_text())
    return done.returncode, findings, [one["conversations"][1]["value"] for one in records]


def test_a_sheet_is_read_as_its_csv_is(source):
    """Times that were typed as 0:01 are minutes and seconds, as in the CSV of the sheet."""
    write_clip(source / "long.mp4", frames=30, rate=10)
    time = datetime.time
    rows = [
        ["video", "from", "to", "what"],
        ["long.mp4", time(0, 0), time(0, 1), "walks"],
        [],
        ["long.mp4", time(0, 0, 1), time(0, 0, 2, 500000), 3],
        ["long.mp4", 2, 2.5, True],
        ["", None, "  "],
    ]
    formats = {"B2": "h:mm", "C2": "h:mm", "B4": "hh:mm:ss", "C4": "mm:ss.0", "A9": "0.00"}
    code, findings, answers = build(saved(source / "labels.xlsx", rows, formats), *SPANS, *ASKED)
    assert code == 0 and answers == ["walks", "3", "TRUE"], findings
    assert findings["BUILD-ROWS-BLANK"]["data"]["rows"][0] == 3
    (source / "labels.xlsx").unlink()
    (source / "labels.csv").write_text(
        "video,from,to,what\nlong.mp4,0:00,0:01,walks\n,,,\nlong.mp4,0:00:01,0:00:02.5,3\n"
        "long.mp4,2,2.5,TRUE\n"
    )
    assert build(source / "labels.csv", *SPANS, *ASKED)[2] == answers


def test_rows_are_named_as_the_spreadsheet_shows_them(source):
    rows = [[], ["video", "answer"], ["0.mp4", "yes"], [], ["1.mp4", ""]]
    code, findings, _ = build(saved(source / "labels.xlsx", rows), *ASKED)
    told = findings["BUILD-ANSWER-EMPTY"]
    assert code == 2 and told["data"]["rows"] == [5] and "labels.xlsx row 5" in told["where"]


def test_a_formula_that_failed_is_no_answer(source):
    code, findings, _ = build(
        saved(source / "labels.xlsx", [["video", "answer"], ["0.mp4", "yes"], ["1.mp4", "#N/A"]]),
        *ASKED,
    )
    assert code == 2 and findings["BUILD-TEXT-VOID"]["data"]["rows"] == [3]


def test_rows_in_several_sheets_are_refused_and_empty_ones_are_not(source):
    rows = [["video", "answer"], ["0.mp4", "yes"], ["1.mp4", "no"]]
    several = saved(source / "labels.xlsx", rows, old=["video", "answer"])
    code, findings, _ = build(several, *ASKED)
    assert code == 2 and "old" in findings["BUILD-TABLE"]["message"]
    assert build(saved(source / "labels.xlsx", rows, old=[]), *ASKED)[2] == ["yes", "no"]


def test_cells_read_as_the_sheet_shows_them(source):
    """A merged cell stands for each of its rows, a share with its percent sign, a number with the
    zeros before it, and the list that a hidden sheet has for a menu is no table."""
    rows = [["video", "answer", "shift", "nr"], ["0.mp4", 0.5, "night", 7], ["1.mp4", 0.126, "", 8]]
    book = openpyxl.load_workbook(saved(source / "labels.xlsx", rows, menu=["yes"]))
    sheet = book["Sheet"]
    sheet.merge_cells("C2:C3")
    sheet["B2"].number_format, sheet["B3"].number_format = "0%", "0.0%"
    sheet["D2"].number_format = sheet["D3"].number_format = "0000"
    book["menu"].sheet_state = "hidden"
    book.save(source / "labels.xlsx")
    flags = ("--column", "tag=shift", "--column", "id=nr")
    code, findings, answers = build(source / "labels.xlsx", *flags, *ASKED)
    assert code == 0 and answers == ["50%", "12.6%"], findings
    assert findings["BUILD-SHEET-HIDDEN"]["data"]["sheets"] == ["menu"]
    records = json.loads((source.parent / "out" / "train" / "annotations.json").read_text())
    said = [(one["id"], one["tags"]) for one in records]
    assert said == [("0007", ["night"]), ("0008", ["night"])]


def test_rows_that_a_filter_hides_are_told(source):
    """Excel writes them into a CSV, too: whether they are meant nobody knows."""
    rows = [["video", "answer"], ["0.mp4", "yes"], ["1.mp4", "no"], ["2.mp4", "unsure"], [None]]
    book = openpyxl.load_workbook(saved(source / "labels.xlsx", rows))
    for number in (4, 5):
        book.active.row_dimensions[number].hidden = True
    book.save(source / "labels.xlsx")
    code, findings, answers = build(source / "labels.xlsx", *ASKED)
    assert code == 0 and answers == ["yes", "no", "unsure"], findings
    told = findings["BUILD-SHEET-HIDDEN"]
    assert told["severity"] == "warning" and told["data"] == {"rows": [4], "count": 1}


@pytest.mark.parametrize("cell, merged", [("=1+1", ""), ("night", "C2:D3")])
def test_cells_that_no_csv_has_are_refused(source, cell, merged):
    """A formula without its value would read as nothing; openpyxl computes none."""
    rows = [["video", "answer", "shift", "nr"], ["0.mp4", "yes", cell, None], ["1.mp4", "no"]]
    book = openpyxl.load_workbook(saved(source / "labels.xlsx", rows))
    if merged:
        book.active.merge_cells(merged)
    book.save(source / "labels.xlsx")
    code, findings, _ = build(source / "labels.xlsx", *ASKED)
    assert code == 2 and ("C2" if not merged else "row 2") in findings["BUILD-TABLE"]["message"]


def test_a_folder_with_a_workbook_is_a_source(source):
    saved(source / "labels.xlsx", [["video", "answer"], ["0.mp4", "yes"], ["1.mp4", "no"]])
    out = source.parent / "out"
    done = run_script("build_dataset.py", source, "-o", out, *ASKED, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["result"]["read"] == 2


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0 with a password", b""])
def test_what_is_no_workbook_is_refused(source, content):
    (source / "labels.xlsx").write_bytes(content)
    code, findings, _ = build(source / "labels.xlsx", *ASKED)
    assert code == 2 and findings.keys() == {"BUILD-TABLE"}


def test_dates_are_no_answers_until_it_is_said_what_they_mean(source):
    """Excel makes the second of January of a typed 1-2; a text that looks like a date is a text."""
    day = datetime.datetime(2025, 1, 2)
    rows = [["video", "answer"], ["0.mp4", "10-20"], ["1.mp4", day], ["2.mp4", day], ["3.mp4", "2"]]
    path = saved(source / "labels.xlsx", rows)
    code, findings, _ = build(path, *ASKED)
    told = findings["BUILD-ANSWER-DATE"]
    assert code == 2 and told["severity"] == "error" and told["data"]["rows"] == [3, 4]
    assert "2025-01-02" in told["message"] and "--values" in told["message"]
    means = "answer: 2025-01-02=1-2, 10-20=10-20, 2=2"
    code, findings, answers = build(path, *ASKED, "--values", means)
    assert code == 0 and answers == ["10-20", "1-2", "1-2", "2"], findings
    rows = [["video", "answer", "day"], ["0.mp4", "no", day], ["1.mp4", "yes", day]]
    code, findings, answers = build(saved(path, rows), *ASKED)
    assert code == 0 and "BUILD-ANSWER-DATE" not in findings
