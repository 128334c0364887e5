"""A function of the user makes rows of a source's, and runs only where a flag names it."""

import json

import pytest
import yaml
from clip_files import write_clip
from support import run_script
from table_build import build, ids

PROGRAM = """
def convert(row):
    if not row["events"]:
        return None
    return [
        {"video": row["clip"] + ".mp4", "question": f"Is there a {one}?", "answer": "yes"}
        for one in row["events"].split("+")
    ]
"""


@pytest.fixture
def source(tmp_path):
    for number in range(3):
        write_clip(tmp_path / "src" / f"{number}.mp4", frames=8, tint=number)
    (tmp_path / "rows.py").write_text(PROGRAM)
    return tmp_path / "src"


LINES = ["clip,events", "0,cat+dog", "1,", "2,car"]


def test_rows_are_made_by_the_function(source, tmp_path):
    report, splits = build(source, LINES, "--convert", tmp_path / "rows.py")
    asked = [sample.turns[0].text.partition("\n")[0] for sample in splits["train"]]
    assert asked == ["Is there a cat?", "Is there a dog?", "Is there a car?"]
    assert report["result"]["columns"]["question"] == "question"
    saved = tmp_path / "out" / "mapping.yaml"
    assert yaml.safe_load(saved.read_text())["convert"]["file"] == str(tmp_path / "rows.py")
    flags = ("--mapping", saved)
    assert "BUILD-MAPPING" in ids(build(source, LINES, *flags, expect=2, out="no")[0])
    _, again = build(source, LINES, *flags, "--convert", tmp_path / "rows.py", out="again")
    assert again == splits
    (tmp_path / "rows.py").write_text(PROGRAM + "\n")
    changed = (*flags, "--convert", tmp_path / "rows.py")
    assert "BUILD-MAPPING" in ids(build(source, LINES, *changed, expect=2, out="other")[0])


OWN_PARAMETERS = [
    "def convert(row, question='Is it wet?'):\n    return {**row, 'question': question}\n",
    "class Own:\n"
    "    def convert(self, row):\n"
    "        return {**row, 'question': 'Is it wet?'}\n"
    "convert = Own().convert\n",
]
ABOVE = """
class Own:
    def __call__(self, row, around):
        return {**row, "question": around["asked"]}
convert = Own()
"""


@pytest.mark.parametrize("program", [*OWN_PARAMETERS, ABOVE])
def test_only_a_function_that_needs_two_gets_what_stands_around(source, tmp_path, program):
    """A parameter with a default got it as well, and was trained on as the question."""
    rows = [{"video": f"{number}.mp4", "answer": "no"} for number in range(3)]
    (source / "rows.json").write_text(json.dumps({"asked": "Is it wet?", "rows": rows}))
    (tmp_path / "rows.py").write_text(program)
    words = (source / "rows.json", "-o", tmp_path / "out", "--convert", tmp_path / "rows.py")
    assert run_script("build_dataset.py", *words).returncode == 0
    built = json.loads((tmp_path / "out" / "train" / "annotations.json").read_text())
    asked = {record["conversations"][0]["value"].splitlines()[1] for record in built}
    assert asked == {"Is it wet?"}


TIMED = """
def convert(row):
    return [
        {**row, "video": row["clip"] + ".mp4", "question": "Does it start?", "answer": said, **span}
        for said, span in (("yes", {"start_ms": 0, "end_ms": 500}),
                           ("no", {"start_ms": 500, "end_ms": 1000}))
    ]
"""


def test_times_that_the_function_makes_are_named_by_their_roles(source, tmp_path):
    """Times of the source that it passes on are declared as ever: their unit is not known."""
    (tmp_path / "rows.py").write_text(TIMED)
    flags = ("--convert", tmp_path / "rows.py")
    report, splits = build(source, ["clip,note", "0,x"], *flags)
    assert [one.id for one in splits["train"]] == ["0_0-0.5", "0_0.5-1"]
    assert report["result"]["columns"]["start"] == "start_ms"
    refused, _ = build(source, ["clip,start_ms,end_ms", "0,1,2"], *flags, out="own", expect=2)
    (span,) = [one for one in refused["findings"] if one["id"] == "BUILD-SPAN"]
    assert "--column start" in span["message"]


def test_records_of_any_shape_reach_the_function(source, tmp_path):
    trips = [{"trip": 1, "shots": [{"f": "0.mp4", "wet": True}, {"f": "1.mp4", "wet": False}]}]
    (source / "trips.json").write_text(json.dumps(trips))
    (tmp_path / "rows.py").write_text(
        "def convert(row):\n"
        "    return [{'video': s['f'], 'answer': 'yes' if s['wet'] else 'no'}\n"
        "            for s in row['shots']]\n"
    )
    words = (source / "trips.json", "-o", tmp_path / "out", "--question", "Is it wet?")
    done = run_script("build_dataset.py", *words, "--convert", tmp_path / "rows.py", "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["result"]["written"] == {"train": 2}


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("def convert(row):\n    return row['nothing']\n", "line 2"),
        ("def convert(row):\n    return 7\n", "got 7"),
        ("def other(row):\n    return row\n", "no function convert"),
        ("def convert(row)\n", "SyntaxError"),
        (None, "no such file"),
    ],
)
def test_a_function_that_fails_is_told_with_its_row(source, tmp_path, program, told):
    (tmp_path / "rows.py").unlink()
    if program:
        (tmp_path / "rows.py").write_text(program)
    report, _ = build(source, LINES, "--convert", tmp_path / "rows.py", expect=2)
    (found,) = [one for one in report["findings"] if one["id"] == "BUILD-CONVERT"]
    assert told in found["message"]
