"""Exports of label tools become records. Those of Label Studio (1.x, with SQLite) it wrote itself,
those of CVAT for images and of COCO's boxes datumaro did; the others have the shape that their
tools document, and were not exported here."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from clip_files import write_clip
from PIL import Image
from support import run_script

from cosmos_reason.base.findings import Failure
from cosmos_reason.data import annotations, label_tools

FIXTURES = Path(__file__).parents[1] / "fixtures"


def write_picture(path, tint):
    Image.new("RGB", (64, 48), (40 * tint, 90, 90)).save(path)


def said(samples):
    """The last answer of each record, with the times of its part."""
    return [sample.turns[-1].text for sample in samples]


def cut(tmp_path):
    cuts = json.loads((tmp_path / "out" / "train" / "cuts.json").read_text())
    return sorted((one["start"], one["end"]) for one in cuts.values())


def build(tmp_path, export, *flags, expect=0):
    """(the findings by id, the records) of an export with its media as they lie elsewhere."""
    for name in ("0.mp4", "clips/1.mp4", "0123abcd-2.mp4", "0123abcd-3.mp4"):
        write_clip(tmp_path / "src" / name, frames=16, tint=ord(name[-5]))
    for number in range(3):
        write_picture(tmp_path / "src" / f"pic{number}.jpg", number)
    if isinstance(export, Path):
        source = shutil.copy(export, tmp_path / "src" / f"export{export.suffix}")
    elif isinstance(export, str):
        name = export if "." in export else f"label_studio_{export}.json"
        source = tmp_path / "src" / f"export{Path(name).suffix}"
        shutil.copy(FIXTURES / name, source)
    else:
        source = tmp_path / "src" / "export.json"
        source.write_text(json.dumps(export))
    words = (source, "-o", tmp_path / "out", *flags, "--json")
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
    flags = ("--question", "What happens?", "--column", "answer=events", "--label-fps", "8")
    _, samples = build(tmp_path, f"timeline_{form}", *flags)
    assert sorted(sample.turns[-1].text for sample in samples) == ["fall", "fall", "run"]
    cuts = json.loads((tmp_path / "out" / "train" / "cuts.json").read_text())
    spans = sorted((cut["start"], cut["end"]) for cut in cuts.values())
    # frames 1 to 8, 9 to 16 and 3 to 6 of 8 a second, counted from 1, the last one included
    assert spans == [(0.0, 1.0), (0.25, 0.75), (1.0, 2.0)]


def test_a_timeline_has_the_frames_of_the_interface(tmp_path):
    """Of whatever rate the clip is: the program shows what stands at (frame - 1) / frameRate s. The
    export does not hold that rate."""
    flags = ("--question", "What happens?", "--column", "answer=events")
    found, _ = build(tmp_path, "timeline_json", *flags, expect=2)
    assert found["BUILD-SPAN"]["severity"] == "error"
    assert "--label-fps" in found["BUILD-SPAN"]["message"]
    build(tmp_path, "timeline_json", *flags, "--label-fps", "16")
    cuts = json.loads((tmp_path / "out" / "train" / "cuts.json").read_text())
    spans = sorted((cut["start"], cut["end"]) for cut in cuts.values())
    assert spans == [(0.0, 0.5), (0.125, 0.375), (0.5, 1.0)]
    found, _ = build(tmp_path, "choices_json", "--question", "Is it?", "--label-fps", "8", expect=2)
    assert found["USAGE"]["where"] == "--label-fps"


def test_results_that_no_row_holds_are_refused(tmp_path):
    tasks = json.loads((FIXTURES / "label_studio_choices_json.json").read_text())
    tasks[0]["annotations"][0]["result"][0]["type"] = "videorectangle"
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    words = (tmp_path / "export.json", "-o", tmp_path / "out", "--json")
    done = run_script("build_dataset.py", *words)
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
    assert done.returncode == 2 and "--convert" in found["message"]


def test_tracks_of_cvat_are_parts_in_which_nothing_changes(tmp_path):
    """Frames are those of the clip, of which the task took every other one."""
    flags = ("--question", "In which state is the {label}?", "--column", "answer=state")
    _, samples = build(tmp_path, "cvat_video.xml", *flags)
    assert sorted(said(samples)) == ["open", "open", "shut"] and cut(tmp_path) == [
        (0.0, 0.5),
        (0.5, 1.0),
        (1.5, 2.0),
    ]
    assert all("state is the door?" in sample.turns[0].text for sample in samples)


def test_tags_and_boxes_of_pictures(tmp_path):
    flags = ("--question", "What is it?")
    _, samples = build(tmp_path / "tags", "cvat_images.xml", *flags)
    assert said(samples) == ["person", "car", "person"]
    for name in ("cvat_images.xml", "coco_boxes.json"):
        flags = ("--question", "Find all.", "--column", "answer=boxes")
        _, samples = build(tmp_path / name, name, *flags)
        # 4, 6 to 24, 18 of 64 x 48
        assert json.loads(said(samples)[1]) == [{"bbox_2d": [62, 125, 375, 375], "label": "person"}]


def test_subsets_of_a_project_of_cvat_are_its_splits(tmp_path):
    """Pictures of one name lie in a folder of each subset; a shape without a label says nothing."""
    pictures = []
    for number, subset in enumerate(("Train", "Test", "Validation")):
        for name in ("a", "b"):
            path = tmp_path / "project" / "images" / subset / f"{name}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_picture(path, 2 * number + (name == "b"))
            shapes = f"""<polygon label="{subset} {name}" points="1,2;3,4;6,5"/>
              <polyline label="" points="1,2;3,4"/>"""
            attributes = f'name="{name}.jpg" subset="{subset}" width="64" height="48"'
            pictures.append(f"<image {attributes}>{shapes}</image>")
    xml = f"<annotations><version>1.1</version>{''.join(pictures)}</annotations>"
    (tmp_path / "project" / "annotations.xml").write_text(xml)
    flags = ("--question", "What is it?", "--column", "answer=objects", "--json")
    done = run_script("build_dataset.py", tmp_path / "project", "-o", tmp_path / "out", *flags)
    assert done.returncode == 0, done.stdout
    for subset, folder in (("Train", "train"), ("Test", "test"), ("Validation", "eval")):
        samples = annotations.read(tmp_path / "out" / folder / "annotations.json")[0]
        assert said(samples) == [f"{subset} a", f"{subset} b"]


def test_captions_of_coco(tmp_path):
    pictures = [{"id": 7, "file_name": "pic0.jpg", "width": 64, "height": 48}]
    captions = [{"id": n, "image_id": 7, "caption": text} for n, text in enumerate("ab")]
    document = {"info": {}, "images": pictures, "annotations": captions}
    assert said(build(tmp_path, document)[1]) == ["a", "b"]
    captions[1]["image_id"] = 8
    assert "BUILD-TABLE" in build(tmp_path / "unknown", document, expect=2)[0]


VIA = {
    "project": {"pid": "__VIA_PROJECT_ID__", "data_format_version": "3.1.2", "vid_list": ["1"]},
    "config": {},
    "attribute": {
        "1": {"aname": "happens", "type": 4, "options": {"0": "falls", "1": "runs"}},
        "2": {"aname": "seen", "type": 2, "options": {"0": "a car", "1": "rain"}},
    },
    "file": {"1": {"fid": 1, "fname": "0.mp4", "type": 4, "loc": 1, "src": ""}},
    "metadata": {
        "1_nPnQ": {"vid": "1", "flg": 0, "z": [0.5, 1.25], "xy": [], "av": {"1": "1"}},
        "1_uJCl": {"vid": "1", "flg": 0, "z": [1.5, 2.0], "xy": [], "av": {"1": "0", "2": "0,1"}},
    },
    "view": {"1": {"fid_list": [1]}},
}  # fmt: skip


def test_segments_of_via(tmp_path):
    flags = ("--question", "What happens?", "--column", "answer=happens")
    found, samples = build(tmp_path, VIA, *flags)
    assert said(samples) == ["runs", "falls"] and cut(tmp_path) == [(0.5, 1.25), (1.5, 2.0)]
    assert found["BUILD-COLUMN-UNUSED"]["data"]["columns"] == ["seen"]
    region = {"vid": "1", "flg": 0, "z": [0.9], "xy": [2, 3, 4, 5, 6], "av": {"2": "0"}}
    moments = VIA | {"metadata": VIA["metadata"] | {"1_xMom": region}}
    found, samples = build(tmp_path / "moments", moments, *flags)
    assert said(samples) == ["runs", "falls"] and found["BUILD-ROWS-BLANK"]["data"]["rows"] == [2]
    together = VIA | {"view": {"1": {"fid_list": [1, 2]}}}
    assert "BUILD-TABLE" in build(tmp_path / "two", together, *flags, expect=2)[0]


def test_attributes_of_pictures_of_via_2(tmp_path):
    file = {"filename": "pic1.jpg", "size": 12, "regions": [], "file_attributes": {"door": "open"}}
    other = file | {"filename": "pic2.jpg", "file_attributes": {"door": {"shut": True}}}
    flags = ("--question", "How is it?", "--column", "answer=door")
    _, samples = build(tmp_path, {"_via_img_metadata": {"a": file, "b": other}}, *flags)
    assert said(samples) == ["open", "shut"]


def sample_of_fiftyone(clip, **labels):
    return {"_id": {"$oid": clip[0] * 24}, "_media_type": "video", "filepath": clip, **labels}


def test_labels_and_temporal_detections_of_fiftyone(tmp_path):
    label = {"_cls": "Classification", "label": "open"}
    _, samples = build(
        tmp_path / "whole", {"samples": [sample_of_fiftyone("0.mp4", door=label)]},
        "--column", "answer=door", "--question", "How is it?",
    )  # fmt: skip
    assert said(samples) == ["open"] and samples[0].id == "0" * 24
    detections = [
        {"_cls": "TemporalDetection", "label": text, "support": support}
        for text, support in (("falls", [1, 8]), ("runs", [9, 16]))
    ]
    events = {"_cls": "TemporalDetections", "detections": detections}
    flags = ("--column", "answer=events", "--question", "What happens?")
    _, samples = build(tmp_path, {"samples": [sample_of_fiftyone("0.mp4", events=events)]}, *flags)
    assert said(samples) == ["falls", "runs"] and cut(tmp_path) == [(0.0, 1.0), (1.0, 2.0)]
    both = {"samples": [sample_of_fiftyone("0.mp4", events=events, door=label)]}
    found, _ = build(tmp_path / "both", both, *flags, expect=2)
    assert "--convert" in found["BUILD-TABLE"]["message"]


@pytest.mark.parametrize("text", ["<annotations>", "<annotation><object/></annotation>"])
def test_other_xml_is_refused(tmp_path, text):
    (tmp_path / "export.xml").write_text(text)
    words = (tmp_path / "export.xml", "-o", tmp_path / "out", "--json")
    done = run_script("build_dataset.py", *words)
    assert done.returncode == 2 and "BUILD-TABLE" in done.stdout


def test_gaps_come_back_labelled(tmp_path):
    """What is written for Label Studio is read back as its export is, without a flag."""
    clips = [str(write_clip(tmp_path / "clips" / f"{n} a.mp4")) for n in range(2)]
    gaps = [
        {
            "path": path,
            "kind": "video",
            "question": f"{n}?",
            "answer": text,
            "gt": "no",
            "id": str(n),
        }
        for n, (path, text) in enumerate(zip(clips, ("yes", None), strict=True))
    ]
    made, interface, root = label_tools.tasks(gaps, "run-1")
    assert root == str(tmp_path / "clips") and made[1]["predictions"] == []
    assert '<Choice value="no" />' in interface and 'toName="video"' in interface
    (result,) = made[0]["predictions"][0]["result"]
    assert result["value"] == {"choices": ["yes"]}
    for task in made:  # a person accepts the prediction
        task["annotations"] = [{"id": 1, "completed_by": 1, "result": [result]}]
    (tmp_path / "clips" / "export.json").write_text(json.dumps(made))
    words = (tmp_path / "clips" / "export.json", "-o", tmp_path / "out", "--json")
    assert run_script("build_dataset.py", *words).returncode == 0
    samples, _ = annotations.read(tmp_path / "out" / "train" / "annotations.json")
    assert [(s.turns[0].text, s.turns[1].text) for s in samples] == [("0?", "yes"), ("1?", "yes")]
    gaps[0]["kind"] = "image"
    with pytest.raises(Failure):
        label_tools.tasks(gaps, "run-1")


def of_every_kind(**results):
    """What Label Studio's JSON-MIN has for one annotation, beside the results by their controls."""
    dates = dict.fromkeys(("created_at", "updated_at"), "2026-11-26T22:17:06.692094Z")
    video = {"video": "/data/upload/1/0a1b2c3d-0.mp4", "id": 1, "annotator": 2, "annotation_id": 2}
    return video | dates | {"lead_time": None} | results


@pytest.mark.parametrize("form", ["min", "csv"])
def test_every_kind_of_result_is_one_text(tmp_path, form):
    """JSON-MIN and CSV as Label Studio 1.23 writes them: ratings and numbers in lists of objects,
    several choices or texts in an object, which were trained as JSON."""
    rows = [
        of_every_kind(
            stars=[{"rating": 2}], count=[{"number": 0}], note={"text": ["a", 'b"c']}, door="open",
            seen={"choices": ["car", "big dog"]},
        )
    ]  # fmt: skip
    asked = ("stars", "count", "note", "seen", "door")
    flags = [word for name in asked for word in ("--ask", f"{name}: {name}?")]
    export = rows
    if form == "csv":
        cells = {
            name: json.dumps(value) if isinstance(value, list | dict) else value or ""
            for name, value in rows[0].items()
        }
        export = tmp_path / "labels.csv"
        with export.open("w", newline="") as file:
            writer = csv.DictWriter(file, cells, quoting=csv.QUOTE_NONNUMERIC)
            writer.writeheader()
            writer.writerow(cells)
    _, samples = build(tmp_path, export, *flags)
    assert said(samples) == ["2", "0", 'a, b"c', "car, big dog", "open"]


@pytest.mark.parametrize("form", ["json", "min"])
def test_a_list_of_the_task_stays_a_list(tmp_path, form):
    """Options that a task brings are no choices that an annotator made."""
    data = {"question": "Which way?", "options": ["left", "right, slowly"]}
    tasks = [of_every_kind(side="right, slowly", **data)]
    if form == "json":
        result = {"from_name": "side", "type": "choices", "value": {"choices": ["right, slowly"]}}
        given = {"id": 2, "completed_by": 1, "result": [result]}
        task = {"video": "/data/upload/1/0a1b2c3d-0.mp4", **data}
        tasks = [{"id": 1, "data": task, "annotations": [given]}]
    _, samples = build(tmp_path, tasks, "--column", "answer=side")
    assert said(samples) == ["B"] and "(B) right, slowly" in samples[0].turns[0].text


def test_annotations_without_a_part_are_told(tmp_path):
    """A clip in which nothing happens is no event; in a table of events it stands without one."""
    task = json.loads((FIXTURES / "label_studio_timeline_json.json").read_text())[0]
    bare = task | {"id": 99, "annotations": [task["annotations"][0] | {"id": 99, "result": []}]}
    flags = ("--question", "What happens?", "--column", "answer=events", "--label-fps", "8")
    found, samples = build(tmp_path, [task, bare], *flags)
    assert found["BUILD-ROWS-BLANK"]["data"]["rows"] == [99] and len(samples) == 2


def test_pictures_with_other_shapes_than_boxes_have_no_boxes(tmp_path):
    """A picture whose polygons were passed over was trained as one with nothing in it."""
    shapes = '<polygon label="car" occluded="0" points="1,1;9,1;9,9" z_order="0"></polygon>'
    text = (FIXTURES / "cvat_images.xml").read_text()
    (tmp_path / "shapes.xml").write_text(text.replace("</image>", f"{shapes}</image>", 1))
    flags = ("--question", "Which?", "--column", "answer=objects")
    _, samples = build(tmp_path / "named", tmp_path / "shapes.xml", *flags)
    assert "car" in said(samples)[0]
    flags = ("--question", "Which?", "--column", "answer=boxes")
    found, _ = build(tmp_path / "boxed", tmp_path / "shapes.xml", *flags, expect=2)
    assert found["BUILD-ANSWER-EMPTY"]["data"]["count"] == 1


def test_pictures_of_coco_lie_beside_the_folder_of_its_annotations(tmp_path):
    pictures = [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in (7, 8)]
    document = {"images": pictures, "annotations": [{"id": 1, "image_id": 7, "caption": "rain"}]}
    for folder in ("annotations", "images/default"):
        (tmp_path / folder).mkdir(parents=True)
    write_picture(tmp_path / "images" / "default" / "7.jpg", 1)
    export = tmp_path / "annotations" / "captions_default.json"
    export.write_text(json.dumps(document))
    done = run_script("build_dataset.py", export, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stdout
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["BUILD-ROWS-BLANK"]["data"]["rows"] == [8]  # a picture without a caption
