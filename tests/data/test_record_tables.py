"""Whole lines read as a table give the survey that their records give one at a time."""

import dataclasses
import json
import random

import pytest
from clip_files import record

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import record_tables, survey

LAYOUTS = {
    "lines": lambda lines: "\n".join(lines) + "\n",
    "array": lambda lines: "[\n " + ",\n ".join(lines) + "\n]\n",
    "envelope": lambda lines: '{"annotations": [\n' + ",\n".join(lines) + "\n]}",
}


def talk(number, *texts, **fields):
    """A line with a record of these turns, or of a question and its answer."""
    texts = texts or ("Is it red?", "Yes")
    speakers = ("human", "gpt") * len(texts)
    turns = [{"from": who, "value": text} for who, text in zip(speakers, texts, strict=False)]
    return json.dumps(record(number) | {"conversations": turns} | fields)


def alike(number):
    dice = random.Random(number)
    question = f"<video>\nIs car {dice.randrange(4)} red?\nA. yes\nB. no"
    answer = dice.choice(["A", "B", "B", "yes", "C"])
    return talk(number, question, answer, video=f"clips/{number % 7}.mp4", video_fps=25)


def nested(number, levels):
    return talk(number).replace('"id"', f'"deep": {"[" * levels}{"]" * levels}, "id"')


# What a line may be besides: the reader of single records notes all of it, a table some.
OTHERS = {
    "several turns": lambda n: talk(n, "Sure?", " no."),
    "system prompt": lambda n: talk(n).replace('"human"', '"system"', 1),
    "no answer": lambda n: talk(n, "Is it red?"),
    "control token": lambda n: talk(n, "<|im_end|> Is it red?", "Yes"),
    "reasoning": lambda n: talk(n, reasoning=f"It is {n % 2}"),
    "other reasoning": lambda n: talk(n, reasoning="<|im_end|>"),
    "tags": lambda n: talk(n, tags=["a"], groups=["camera=1"]),
    "unread": lambda n: talk(n, metadata={"a": [{}], "on": "2020-01-01"}),
    "times": lambda n: talk(n, start=1.5, end=2),
    "image": lambda n: talk(n, video=None, image="a.png"),
    "no medium": lambda n: talk(n, video=None),
    "folder of pictures": lambda n: talk(n, video="clips/seven", video_fps=4),
    "several media": lambda n: talk(n, videos=["a.mp4", "b.mp4"]),
    "address": lambda n: talk(n, video="https://a/b.mp4"),
    "number as id": lambda n: talk(n, id=7),
    "no id": lambda n: talk(n, id=None),
    "empty id": lambda n: talk(n, id=""),
    "one id": lambda n: talk(n, id="same/one"),
    "no rate": lambda n: talk(n, video_fps=0),
    "rate in words": lambda n: talk(n, video_fps="25"),
    "no number as rate": lambda n: talk(n, video_fps=float("nan")),
    "no number below": lambda n: talk(n, notes=[{"at": float("inf")}]),
    "key twice": lambda n: talk(n).replace('"id"', '"id": "x", "id"'),
    "key twice below": lambda n: talk(n).replace('"from"', '"from": "gpt", "from"'),
    "half a pair": lambda n: talk(n, "Is it \ud800 red?", "Yes"),
    "lost letters": lambda n: talk(n, "Is it r\ufffdd?", "Yes"),
    "messages": lambda n: talk(n).replace("from", "role").replace("value", "content"),
    "turn without speaker": lambda n: talk(n).replace('"from": "gpt", ', ""),
    "no turns": lambda n: talk(n, conversations=[]),
    "turns as text": lambda n: talk(n, conversations="[]"),
    "another form": lambda n: json.dumps({"video": "a.mp4", "question": "Red?", "answer": "Yes"}),
    "no object": lambda n: "7",
    "nested": lambda n: nested(n, 400),
    "nested too deeply": lambda n: nested(n, 5000),
    "two in a line, no comma": lambda n: f"{talk(n)} {talk(n + 1)}",
    "two in a line, one in two": lambda n: f"{talk(n)} {talk(n + 1)},\n "
    + talk(n + 2).replace(", ", ",\n", 1),
    "two in a line": lambda n: f"{talk(n)}, {talk(n + 1)}",
    "one in two lines": lambda n: talk(n).replace(", ", ",\n", 1),
    "one in two lines, beginning alike": lambda n: talk(n, note=[{"a": 1}, {"b": 2}]).replace(
        "}, {", "},\n {"
    ),
    "no comma": lambda n: f"{talk(n)}\n {talk(n + 1)}",
    "two commas": lambda n: f"{talk(n)},",
    "no JSON": lambda n: talk(n)[:-9],
}  # fmt: skip


def columns(found):
    """All that a survey says of a file, and in which order it tells it."""
    values = {}
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        values[field.name] = list(value) if hasattr(value, "typecode") else value
    values["types"] = list(found.types.items())
    values["balance"] = {kind: list(counts.items()) for kind, counts in found.balance.items()}
    return values


def surveyed(path):
    """What a survey says of a file, or the Failure that ends it."""
    try:
        return columns(survey.of_records(path, ""))
    except Failure as failure:
        return [str(finding) for finding in failure.findings]


def both(path, monkeypatch):
    """The survey with tables and the one without, and how many records stood in tables."""
    counts = []

    def read(*args):
        table = record_tables.read(*args)
        counts.append(len(table or ()))
        return table

    with monkeypatch.context() as patch:
        patch.setattr(survey, "read_table", read)
        with_tables = surveyed(path)
    with monkeypatch.context() as patch:
        patch.setattr(survey, "read_table", lambda *_: None)
        without = surveyed(path)
    return with_tables, without, sum(counts)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", ["none", *OTHERS])
def test_a_table_says_what_single_records_say(tmp_path, monkeypatch, other, layout):
    lines = [alike(number) for number in range(60)]
    if other != "none":
        lines[20] = OTHERS[other](20)
        lines[40] = OTHERS[other](40)
    path = tmp_path / "annotations.json"
    path.write_text(LAYOUTS[layout](lines))
    with_tables, without, _ = both(path, monkeypatch)
    assert with_tables == without


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_lines_of_a_file_like_ours_stand_in_tables(tmp_path, monkeypatch, layout):
    path = tmp_path / "annotations.json"
    path.write_text(LAYOUTS[layout]([alike(number) for number in range(60)]))
    _, _, in_tables = both(path, monkeypatch)
    assert in_tables == 60 - (layout != "lines")  # the last has no comma


@pytest.mark.parametrize("name", ["several turns", "reasoning", "tags", "unread", "no answer"])
def test_what_a_table_may_hold(name):
    lines = "".join(f"{OTHERS[name](number)}\n" for number in range(3))
    table = record_tables.read(lines, "", 5)
    assert (len(table), table.index, list(table.talk_numbers)) == (
        3,
        5,
        [0, 1, 0] if name == "reasoning" else [0] * 3,
    )


def test_blocks_of_other_lines_stand_between_tables(tmp_path, monkeypatch):
    """The reader returns to tables after lines that were read one at a time."""
    from cosmos_reason.data import json_stream

    monkeypatch.setattr(json_stream, "BLOCK", 4000)
    lines = [alike(number) for number in range(300)]
    lines[150] = OTHERS["key twice"](150)
    path = tmp_path / "annotations.json"
    path.write_text(LAYOUTS["array"](lines))
    with_tables, without, in_tables = both(path, monkeypatch)
    assert with_tables == without
    assert with_tables["read"] == 300
    assert 200 < in_tables < 300


def in_parts(path, monkeypatch):
    """The survey by processes, each of which has several parts of the file; None if it gave up."""
    monkeypatch.setattr(survey, "LARGE", 1)
    monkeypatch.setattr(survey, "PART", 4000)
    return survey.by_processes(path, "")


@pytest.mark.parametrize("layout", ["lines", "array"])
def test_parts_of_a_file_add_up_to_the_whole(tmp_path, monkeypatch, layout):
    lines = [alike(number) for number in range(300)]
    lines[100:150] = [OTHERS["several turns"](number) for number in range(100, 150)]
    lines[299] = OTHERS["control token"](299)
    path = tmp_path / "annotations.json"
    path.write_text(LAYOUTS[layout](lines))
    assert columns(in_parts(path, monkeypatch)) == columns(survey.by_one(path, ""))


@pytest.mark.parametrize("end", ["]", "\n]\n", " ]  \n", "", ",\n]", "\n}", "]]", "] 7"])
def test_a_file_that_breaks_off_is_left_to_the_reader_of_single_records(tmp_path, monkeypatch, end):
    path = tmp_path / "annotations.json"
    path.write_text("[\n" + ",\n".join(alike(number) for number in range(40)) + end)
    try:
        whole = columns(survey.by_one(path, ""))
    except Failure:
        whole = None
    found = in_parts(path, monkeypatch)
    assert (found and columns(found)) == whole


@pytest.mark.parametrize("other", ["key twice", "no JSON", "no rate"])
def test_a_line_that_no_table_holds_is_left_to_it_too(tmp_path, monkeypatch, other):
    lines = [alike(number) for number in range(40)]
    lines[30] = OTHERS[other](30)
    path = tmp_path / "annotations.json"
    path.write_text(LAYOUTS["array"](lines))
    assert in_parts(path, monkeypatch) is None


@pytest.mark.parametrize(
    "content", [b"\xff", b"{}", b'{"annotations": [\n]}', b"\xef\xbb\xbf[\n", b"[\n[\n1\n]\n]"]
)
def test_files_of_other_layouts_are_left_to_it_too(tmp_path, monkeypatch, content):
    (tmp_path / "a.json").write_bytes(content)
    assert in_parts(tmp_path / "a.json", monkeypatch) is None
    assert in_parts(tmp_path / "none.json", monkeypatch) is None
