"""Caption files as published sets have them: one finding with a command that builds them."""

import json
import shlex
from pathlib import Path

import pytest
from clip_files import write_clip
from support import run_script

from cosmos_reason.data import nested_rows

MSR_VTT = {
    "info": {"year": "2016"},
    "videos": [{"video_id": "video0", "split": "train", "start time": 1.0, "id": 0}],
    "sentences": [
        {"caption": "a man runs", "video_id": "video0", "sen_id": 1},
        {"caption": "somebody jogs", "video_id": "video0", "sen_id": 2},
    ],
}
ACTIVITYNET = {
    "video0": {
        "duration": 8.0,
        "timestamps": [[0.5, 3], [3, 7.5]],
        "sentences": ["A woman speaks.", " She leaves."],
    }
}
SHAREGPT4VIDEO = [
    {
        "video_id": "v",
        "video_path": "video0.mp4",
        "timestamp": ["00:00:00.000"],
        "captions": [{"idx": "1", "content": "A cat."}, {"idx": "-1", "content": "A cat walks."}],
        "zip_folder": "z.zip",
    }
]
ANSWERS = {
    "msr-vtt": (MSR_VTT, ["a man runs", "somebody jogs"]),
    "activitynet": (ACTIVITYNET, ["0.5s - 3s: A woman speaks.\n3s - 7.5s: She leaves."]),
    "sharegpt4video": (SHAREGPT4VIDEO, ["A cat walks."]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_command_that_is_named_builds_them_as_it_is(tmp_path, name):
    document, answers = ANSWERS[name]
    (tmp_path / "captions.json").write_text(json.dumps(document))
    write_clip(tmp_path / "video0.mp4", frames=8)
    done = run_script("check_dataset.py", "captions.json", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)["findings"]
    (error,) = [one for one in found if one["severity"] == "error"]
    assert done.returncode == 1 and error["id"] == "DATA-NOT-BUILT"
    script, *words = shlex.split(error["fix"])
    built = run_script(Path(script).name, *words, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    records = json.loads((tmp_path / "data/train/annotations.json").read_text())
    assert [record["conversations"][1]["value"] for record in records] == answers
    assert {record["video"] for record in records} == {"media/video0.mp4"}


def test_captions_without_one_of_the_whole_are_joined():
    parts = SHAREGPT4VIDEO[0] | {"captions": [{"idx": n, "content": f"{n}."} for n in (1, 2)]}
    assert nested_rows.rows([parts], []) == [{"video": "video0.mp4", "caption": "1. 2."}]


@pytest.mark.parametrize(
    "record",
    [
        {"videos": [], "sentences": []},
        {"videos": ["a.mp4"], "messages": []},
        {"a": {"timestamps": [[0, 1]], "sentences": []}},
        {},
        [],
        None,
    ],
)
def test_other_records_stay_as_they_are(record):
    assert nested_rows.rows([record], []) == [record]
