"""Exports that Label Studio itself wrote (1.x, with SQLite) become records."""

import json
import shutil
from pathlib import Path

import pytest
from clip_files import write_clip
from support import run_script

from cosmos_reason.data import annotations

FIXTURES = Path(__file__).parents[1] / "fixtures"


def build(tmp_path, export, *flags, expect=0):
    """(the findings by id, the records) of an export with its media as they lie elsewhere."""
    for name in ("0.mp4", "clips/1.mp4", "0123abcd-2.mp4", "0123abcd-3.mp4"):
        write_clip(tmp_path / "src" / name, frames=16, tint=ord(name[-5]))
    shutil.copy(FIXTURES / f"label_studio_{export}.json", tmp_path / "src" / "export.json")
    words = (tmp_path / "src" / "export.json", "-o", tmp_path / "out", *flags, "--json")
    done = run_script("build_dataset.py", *words)
    assert done.returncode == expect, done.stdout + done.stderr
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    if expect:
        return found, []
    return found, annotations.read(tmp_path / "out" / "train" / "annotations.json")[0]


@pytest.mark.parametrize("form", ["json", "json_min"])
def test_choices_of_two_annotators(tmp_path, form):
    flags = ("--question", "Is it open?")
    found, _ = build(tmp_path, f"choices_{form}", *flags, expect=2)
    assert found["BUILD-DISAGREEMENT"]["data"]["count"] == 1
    assert found["BUILD-ROWS-BLANK"]["data"]["count"] == 1
    found, samples = build(tmp_path, f"choices_{form}", *flags, "--adjudicate", "drop")
    assert sorted(sample.turns[-1].text for sample in samples) == ["no", "yes"]
    (agreement,) = found["BUILD-AGREEMENT"]["data"]["agreement"]
    assert (agreement["by_several"], agreement["agreed"]) == (2, 1)


@pytest.mark.parametrize("form", ["json", "json_min"])
def test_ranges_of_a_timeline_are_parts_of_clips(tmp_path, form):
    flags = ("--question", "What happens?", "--column", "answer=events")
    _, samples = build(tmp_path, f"timeline_{form}", *flags)
    assert sorted(sample.turns[-1].text for sample in samples) == ["fall", "fall", "run"]
    cuts = json.loads((tmp_path / "out" / "train" / "cuts.json").read_text())
    spans = sorted((cut["start"], cut["end"]) for cut in cuts.values())
    # frames 1 to 8, 9 to 16 and 3 to 6 of 8 a second, counted from 1, the last one included
    assert spans == [(0.0, 1.0), (0.25, 0.75), (1.0, 2.0)]


def test_results_that_no_row_holds_are_refused(tmp_path):
    tasks = json.loads((FIXTURES / "label_studio_choices_json.json").read_text())
    tasks[0]["annotations"][0]["result"][0]["type"] = "videorectangle"
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    words = (tmp_path / "export.json", "-o", tmp_path / "out", "--json")
    done = run_script("build_dataset.py", *words)
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
    assert done.returncode == 2 and "--convert" in found["message"]
