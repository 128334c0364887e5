"""The page of a dataset: every record in pictures, what is in conflict, what annotators say."""

import json
import re

from clip_files import check, write_clip
from support import run_script

MIXED = [("yes", "no")[int(bit)] for bit in "0110100110010110" * 3]  # of no period


def built(tmp_path):
    """A set of two annotators and of groups of clips, whose length gives the answer away, with one
    record that contradicts another."""
    rows = ["video,answer,who,camera"]
    for number, answer in enumerate(MIXED):
        frames = 4 if answer == "yes" else 9
        write_clip(tmp_path / "src" / f"{number}.mp4", frames=frames, tint=number)
        rows += [f"{number}.mp4,{answer},{who},c{number % 4}" for who in ("ann", "bob")]
    rows[-1] = rows[-1].replace(MIXED[-1], "yes" if MIXED[-1] == "no" else "no")
    (tmp_path / "src" / "labels.csv").write_text("\n".join(rows))
    words = (tmp_path / "src" / "labels.csv", "-o", tmp_path / "out", "--question", "Is it <b>?")
    roles = ("--column", "annotator=who", "--column", "group=camera", "--adjudicate", "drop")
    done = run_script("build_dataset.py", *words, *roles, "--eval-fraction", "0.25", "--json")
    assert done.returncode == 0, done.stdout
    annotations = tmp_path / "out" / "train" / "annotations.json"
    records = json.loads(annotations.read_text())
    other = json.loads(json.dumps(records[0])) | {"id": "again"}
    said = other["conversations"][1]
    said["value"] = "no" if said["value"] == "yes" else "yes"
    annotations.write_text(json.dumps([*records, other]))
    return tmp_path / "out", len(records) + 1


def text_of(page):
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", page.read_text()))


def test_it_shows_every_record_conflicts_shortcuts_agreement_and_groups(tmp_path):
    data, count = built(tmp_path)
    page = tmp_path / "page.html"
    flags = ("--eval", data / "eval", "--html", page, "--html-records", 0)
    result, _ = check(data / "train", *flags, expect=1)
    records = result["train"]["records"] + result["eval"]["records"]
    assert page.read_text().count("data:image/jpeg") == records and count < records
    text = text_of(page)
    first = json.loads((data / "train" / "annotations.json").read_text())[0]
    answer = first["conversations"][1]["value"]
    other = "no" if answer == "yes" else "yes"
    assert f"Is it &lt;b&gt;? Answer yes or no. {answer} {first['id']} {other} again" in text
    assert re.search(r"the length of the clip 9\d% 5\d% \((yes|no)\)", text)
    assert re.search(r"Answer yes or no. 48 48 47 0\.9\d", text)
    groups = {
        name: (int(a), int(b)) for name, a, b in re.findall(r"camera=(c\d) (\d+) (\d+)", text)
    }
    assert sorted(groups) == ["c0", "c1", "c2", "c3"] and all(0 in one for one in groups.values())


def test_of_many_records_some_are_drawn(tmp_path):
    data, _ = built(tmp_path)
    page = tmp_path / "page.html"
    check(data / "train", "--html", page, "--html-records", 3, expect=1)
    assert page.read_text().count("data:image/jpeg") == 3
    done = run_script("check_dataset.py", data / "train", "--html", page, "--html-records", "-1")
    assert done.returncode == 2
