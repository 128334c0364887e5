"""A copy of a dataset, compared with the facts that were written where it was checked."""

import json
import shutil

import pytest
from clip_files import write_clip
from support import run_script


@pytest.fixture
def data(tmp_path):
    """A dataset of three clips with its facts, and a copy of it elsewhere."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "videos").mkdir(parents=True)
    turns = [{"from": "human", "value": "<video>\nWhich?"}, {"from": "gpt", "value": "left"}]
    rows = []
    for number in range(3):
        name = f"videos/{number}.mp4"
        write_clip(here / name, frames=4 + number)
        rows.append({"id": f"r{number}", "video": name, "conversations": turns})
    (here / "annotations.json").write_text(json.dumps(rows))
    facts = tmp_path / "facts" / "dataset_facts.json"
    facts.parent.mkdir()
    check(here, "--facts", facts, "--decode", "none")
    shutil.copytree(here, there)
    return there, facts


def check(*words):
    done = run_script("check_dataset.py", *map(str, words), "--json")
    assert "Traceback" not in done.stderr, done.stderr
    printed = json.loads(done.stdout)
    return done.returncode, {one["id"]: one for one in printed["findings"]}


def test_a_whole_copy_is_whole(data):
    there, facts = data
    assert check(there, "--quick", facts) == (0, {})


def test_clips_that_did_not_arrive_whole_are_named(data):
    there, facts = data
    (there / "videos/0.mp4").unlink()
    whole = (there / "videos/2.mp4").read_bytes()
    (there / "videos/2.mp4").write_bytes(whole[:-10])
    code, found = check(there, "--quick", facts)
    assert (code, set(found)) == (1, {"DATA-ARRIVAL"})
    message = found["DATA-ARRIVAL"]["message"]
    assert "2 of 3 media" in message and "videos/0.mp4 (not here), videos/2.mp4" in message


def test_other_annotations_are_told(data):
    there, facts = data
    rows = json.loads((there / "annotations.json").read_text())
    (there / "annotations.json").write_text(json.dumps(rows[:2]))
    code, found = check(there, "--quick", facts)
    assert (code, set(found)) == (1, {"DATA-ARRIVAL"})


def test_what_is_no_facts_is_refused(data, tmp_path):
    there, _ = data
    (tmp_path / "x.json").write_text("[]")
    assert check(there, "--quick", tmp_path / "x.json")[0] == 2


def test_paths_of_a_site_are_looked_at_where_they_lie_here(data, tmp_path):
    there, facts = data
    site = tmp_path / "site.yaml"
    site.write_text(
        f"schema_version: 1\nname: lab\nplatform: slurm\npaths: {{/lustre/me/data: {there}}}\n"
    )
    assert check("/lustre/me/data", "--site", site, "--quick", facts) == (0, {})
    assert check("/lustre/me/data", "--site", site, "--decode", "none")[0] == 0
    done = run_script("check_dataset.py", "/lustre/me/data", "--site", site, "--json")
    assert f"--site {site}" in json.loads(done.stdout)["next"]
    code, found = check("/lustre/other", "--site", site)
    assert code == 2 and found["DATA-ELSEWHERE"]["data"]["lines"] == [
        "paths: {/lustre/other: HERE}"
    ]


def test_absolute_names_in_records_are_those_of_the_site(data, tmp_path):
    """They name files that lie here under another name; without the site they are missing."""
    there, _ = data
    rows = json.loads((there / "annotations.json").read_text())
    for row in rows:
        row["video"] = f"/lustre/me/data/{row['video']}"
    (there / "annotations.json").write_text(json.dumps(rows))
    site = tmp_path / "site.yaml"
    site.write_text(
        f"schema_version: 1\nname: lab\nplatform: slurm\npaths: {{/lustre/me/data: {there}}}\n"
    )
    code, found = check(there, "--decode", "none")
    assert code == 1 and "DATA-MEDIA-MISSING" in found
    code, found = check("/lustre/me/data", "--site", site)
    assert code == 0 and "DATA-MEDIA-MISSING" not in found
