"""The functions of docs/converting-sets.md, run as the page says on rows in the shape that
the sets publish (retyped small)."""

import json
import re
import shlex
from pathlib import Path

import pytest
from clip_files import write_clip
from support import run_script

from cosmos_reason.data import annotations

PAGE = Path(__file__).parents[2] / "docs" / "converting-sets.md"
SECTION = re.compile(r"^(\S[^\n]*?) \((.*?)\):(.*?)\n\n```python\n(.*?)```", re.M | re.S)
SECTIONS = {match[1]: match for match in SECTION.finditer(PAGE.read_text())}
QUERY = {"query": "Where is it?", "clip_start_sec": 0.5, "clip_end_sec": 1.0}
ASKED = {"clips": [{"clip_uid": "0", "annotations": [{"language_queries": [QUERY]}]}]}
STEPS = {"recipe_type": 1, "annotation": [{"id": "1", "label": "cut it", "segment": [0.0, 1.0]}]}
TALK = [{"question": "One person?", "answer": "Yes"}, {"question": "Indoors?", "answer": "No"}]
WINDOWS = [
    {"qid": 1, "query": "A cat", "vid": "0", "relevant_windows": [[0, 2]]},
    {"qid": 2, "query": "A dog", "vid": "0", "relevant_windows": [[0, 2], [4, 6]]},
]
# name of the set -> (its rows, the file of their clip, the answers that are built)
ROWS = {
    "Kinetics": ("label,youtube_id,time_start,time_end,split\nrunning,0,0,2,train\n",
                 "0_000000_000002.mp4", ["running"]),
    "Something-Something v2": (
        [{"id": "0", "label": "x", "template": "Moving [something] up", "placeholders": ["x"]}],
        "0.webm", ["Moving something up"]),
    "Charades": ("id,script,actions\n0,x,c092 0.00 1.00;c147 1.00 2.00\n",
                 "0.mp4", ["opening a window", "closing a box"]),
    "DiDeMo": (
        [{"video": "0.mp4", "description": "a cat jumps", "times": [[0, 0], [1, 1], [1, 1]]}],
        "0.mp4", ["5s - 10s"]),
    "QVHighlights": (WINDOWS, "0.mp4", ["0s - 2s"]),
    "VATEX": ([{"videoID": "0", "enCap": ["One.", "Two."], "chCap": []}],
              "0.mp4", ["One.", "Two."]),
    "Ego4D NLQ": ({"videos": [ASKED]}, "0.mp4", ["0.5s - 1.0s"]),
    "COIN": ({"database": {"0": STEPS}}, "0.mp4", ["cut it"]),
    "AVSD": ({"dialogs": [{"image_id": "0", "dialog": TALK}]}, "0.mp4", ["No"]),
    "Social-IQ 2.0": (
        [{"q": "Why?", "a0": "w", "a1": "x", "a2": "y", "a3": "z", "answer_idx": 2, "vid_name": "0",
          "ts": "0.00-2.00"}],
        "0.mp4", ["C"]),
}  # fmt: skip


def test_the_page_has_ten_of_them():
    assert SECTIONS.keys() == ROWS.keys() and len(ROWS) == 10


@pytest.mark.parametrize("name", ROWS)
def test_a_published_set_is_built_with_its_function(tmp_path, name):
    rows, clip, answers = ROWS[name]
    match = SECTIONS[name]
    file = tmp_path / "src" / ("rows.csv" if isinstance(rows, str) else "rows.json")
    written = write_clip(tmp_path / "0.mp4")
    (tmp_path / "src").mkdir()
    written.rename(tmp_path / "src" / clip)
    file.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    (tmp_path / "convert.py").write_text(match[4])
    flags = shlex.split(match[3].replace("`", " "))
    words = (file, "-o", tmp_path / "out", "--convert", tmp_path / "convert.py", *flags, "--json")
    done = run_script("build_dataset.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    samples, _ = annotations.read(tmp_path / "out" / "train" / "annotations.json")
    assert [sample.turns[-1].text for sample in samples] == answers
