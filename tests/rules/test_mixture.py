"""Several training sets as one: whose records, under which names, and what is refused."""

import json
import shutil

import pytest
from clip_files import check, record, write_clip, write_dataset
from support import run_script

from cosmos_reason.base import files
from cosmos_reason.base.findings import Failure
from cosmos_reason.rules import draft, mixture
from cosmos_reason.spec import document


@pytest.fixture
def roots(tmp_path):
    """Two datasets below one folder, the second DAFT records with ids of the first."""
    write_dataset(tmp_path / "sets" / "day", [record(0), record(1, "No")])
    night = tmp_path / "sets" / "at night"
    items = []
    for number in range(4):
        write_clip(night / "v" / f"{number}.mp4", tint=90 + number)
        item = {"item_index": f"r{number}", "video_id": f"{number}.mp4", "question": "Dark?"}
        items.append(item | {"answer": "Yes", "reasoning": "No sun."})
    whole = {"format": "tao-vl-reason-v1.0", "media_root": "v", "items": items}
    (night / "annotations.json").write_text(json.dumps(whole))
    return tmp_path / "sets"


def build(roots, output, *written):
    flags = [word for name in written for word in ("--train-root", roots / name)]
    words = ["train", "--engine", "transformers", *flags, "-o", output, "--json"]
    done = run_script("build_spec.py", *words)
    return done.returncode, json.loads(done.stdout)


def test_several_roots_are_one_dataset_whose_parts_the_origins_tell(roots, tmp_path):
    code, said = build(roots, tmp_path / "s.toml", "day", "at night:0.5")
    assert code == 0, said
    table = document.load(tmp_path / "s.toml")["custom"]["train_dataset"]
    assert table == {
        "annotation_path": str(tmp_path / "s.train_annotations.json"),
        "media_path": str(roots),
    }
    records = files.read_json(tmp_path / "s.train_annotations.json")
    assert [one["video"] for one in records[:2]] == ["day/clips/0.mp4", "day/clips/1.mp4"]
    assert len(records) == 4 and len({one["id"] for one in records}) == 4
    assert {one["reasoning"] for one in records[2:]} == {"No sun."}
    result, found = check(table["annotation_path"], "--media-path", roots)
    assert result["train"]["records"] == 4 and not found
    told = files.read_json(tmp_path / "s.origins.json")["origins"]
    origin = told["custom.train_dataset.annotation_path"]
    assert f"{roots / 'day'} (2 of 2 records, sha256 " in origin
    assert f"{roots / 'at night'}:0.5 (2 of 4 records, sha256 " in origin
    assert "SPEC-PATH-NOT-HERE" not in {one["id"] for one in said["findings"]}
    before = (tmp_path / "s.train_annotations.json").read_bytes()
    assert build(roots, tmp_path / "s.toml", "day", "at night:0.5")[0] == 0
    assert (tmp_path / "s.train_annotations.json").read_bytes() == before


def test_a_share_of_one_root_keeps_its_names(roots, tmp_path):
    code, _ = build(roots, tmp_path / "s.toml", "at night:.25")
    (one,) = files.read_json(tmp_path / "s.train_annotations.json")
    table = document.load(tmp_path / "s.toml")["custom"]["train_dataset"]
    assert (code, table["media_path"]) == (0, str(roots / "at night"))
    assert one["video"].startswith("v/") and one["id"].startswith("r")


def test_one_whole_root_is_taken_as_it_is(roots, tmp_path):
    code, _ = build(roots, tmp_path / "s.toml", "day")
    table = document.load(tmp_path / "s.toml")["custom"]["train_dataset"]
    assert (code, table["annotation_path"]) == (0, str(roots / "day" / "annotations.json"))
    assert not list(tmp_path.glob("*.train_annotations.json"))


def test_a_file_of_somebody_else_is_not_replaced(roots, tmp_path):
    taken = tmp_path / "s.train_annotations.json"
    taken.write_text("mine")
    code, said = build(roots, tmp_path / "s.toml", "day", "at night")
    wrong = [one for one in said["findings"] if one["severity"] == "error"]
    assert code == 1
    assert [(one["id"], one["where"]) for one in wrong] == [("SPEC-OUTPUT", str(taken))]
    assert taken.read_text() == "mine" and not (tmp_path / "s.toml").exists()


def refused(*written):
    with pytest.raises(Failure) as failure:
        mixture.mix([draft.part(str(one)) for one in written])
    return failure.value.findings


def test_what_cannot_be_put_together_is_refused(roots, tmp_path):
    day = roots / "day"
    for wrong in (
        f"{day}:0",
        f"{day}:1.5",
        f"{day}:1e-9",
        f"{day}:-1",
        f"{day}:nan",
        roots / "nowhere",
        "s3://bucket/day",
        day,
    ):
        (finding,) = refused(day, wrong)
        assert finding.id == "SPEC-ROOT", wrong
    bad = shutil.copytree(day, roots / "bad")
    (bad / "annotations.json").write_text(json.dumps([record(0) | {"conversations": []}]))
    assert [one.id for one in refused(day, bad)] == ["DATA-TURNS-MISSING"]
    (bad / "annotations.json").write_text(json.dumps([record(0) | {"video": "../day/x.mp4"}]))
    assert [one.id for one in refused(day, bad)] == ["DATA-MEDIA-ESCAPE"]
    (bad / "annotations.json").write_text(json.dumps([{"video": "a.mp4", "label": "x"}]))
    assert [one.id for one in refused(day, bad)] == ["DATA-NOT-BUILT"]


def test_a_folder_with_a_colon_in_its_name_is_no_share(tmp_path):
    (tmp_path / "run:0.5").mkdir()
    assert draft.part(str(tmp_path / "run:0.5")) == (str(tmp_path / "run:0.5"), 1.0)
    assert draft.part("run:0.5") == ("run", 0.5)


def test_a_root_may_hold_a_daft_manifest(roots, tmp_path):
    night = roots / "at night"
    (night / "annotations.json").rename(night / "meta.json")
    code, said = build(roots, tmp_path / "s.toml", "at night")
    table = document.load(tmp_path / "s.toml")["custom"]["train_dataset"]
    assert (code, table["annotation_path"]) == (0, str(night / "meta.json")), said
    assert build(roots, tmp_path / "m.toml", "day", "at night")[0] == 0
    assert len(files.read_json(tmp_path / "m.train_annotations.json")) == 6
