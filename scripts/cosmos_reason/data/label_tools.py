"""Exports of label tools as rows, whose columns have their roles in `published_sets`.

Parts of clips are frames counted from 0, `end_frame` being the first that no longer belongs to
them; in seconds where the tool counts others than the clip has. Boxes are written as Qwen3-VL
answers: [x1, y1, x2, y2] in thousandths of the picture.

Label Studio  JSON (tasks with annotations), JSON-MIN, CSV    https://labelstud.io/guide/export
CVAT          XML 1.1 of videos (tracks) and of images    https://docs.cvat.ai/docs/manual/advanced/xml_format
VIA           projects of version 3 and 2                 https://www.robots.ox.ac.uk/~vgg/software/via
COCO          captions, or boxes by picture               https://cocodataset.org/#format-data
FiftyOne      samples.json                                https://docs.voxel51.com/user_guide/export_datasets.html
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

from cosmos_reason.base import findings as f

OF_MIN = {"annotator", "annotation_id", "lead_time"}  # columns of every row of JSON-MIN
PRODIGY, ARGILLA = {"_input_hash", "answer"}, ".responses.users"  # keys of every record
TEXTS = {"choices", "text", "taxonomy", "rating", "number", "datetime"}  # about the whole
# Labels of ranges of frames, counted from 1, the last one included. They are frames of the
# interface: of the n-th it shows what the clip has at (n - 1) / frameRate seconds.
TIMELINE = "timelinelabels"
UPLOADS, LOCAL_FILES = "/data/upload/", "/data/local-files/"
VIA_PICTURE, VIA_CHECKBOX = 2, 2  # the type of a file, the type of an attribute
BOX = ("xtl", "ytl", "xbr", "ybr")  # the sides of a box of CVAT
FEW_ANSWERS = 12  # so many are offered as choices when gaps are labelled again


def rows(
    records: list,
    header: dict,
    label_fps: float,
    where: Path,
    problems: list[f.Finding],
    answers: Collection[str] = (),
) -> list | None:
    """Return the rows of an export, `header` being what stands around its records, `label_fps` the
    frames that a second of its timelines has (0: not declared), `answers` the columns declared as
    such; None for records of anything else. Tasks that nobody annotated join the `problems`. Raises
    Failure for results that say nothing that a row can hold."""
    objects = [one for one in records if isinstance(one, dict)]
    if not objects or len(objects) < len(records):
        return None
    first = objects[0]
    tool, kept = "", ""
    is_accepted = all(one.get("answer") == "accept" for one in objects)
    if first.keys() >= PRODIGY and not (is_accepted and {*answers} - {"answer"}):
        tool, kept = "Prodigy, whose answer says what was accepted", 'row["answer"] == "accept"'
    elif any(key.endswith(ARGILLA) for key in first):
        tool, kept = "Argilla, with a list of responses in a row", "..."
    if tool:
        message = (
            f"got an export of {tool}: --convert FILE.py makes a row of what counts ('return "
            f'{{"video": ..., "answer": ...}} if {kept} else None\')'
        )
        raise f.bad_input("BUILD-TABLE", where, message)
    if all(map(_is_task, objects)) or all(one.keys() >= OF_MIN for one in objects):
        return _label_studio_rows(objects, label_fps, where, problems)
    if len(objects) == 1 and {"file", "view", "metadata", "attribute"} <= first.keys():
        return _via3_rows(first, where, problems)
    files = first.get("_via_img_metadata", first)
    files = list(files.values()) if len(objects) == 1 and isinstance(files, dict) else []
    needed = {"filename", "regions", "file_attributes"}
    if files and all(isinstance(file, dict) and needed <= file.keys() for file in files):
        return [_via2_row(file) for file in files]
    if isinstance(header.get("images"), list) and all("image_id" in one for one in objects):
        return _coco_rows(objects, header, where, problems)
    if "filepath" in first and any(_class_of(value) for value in first.values()):
        return [
            row for number, one in enumerate(objects) for row in _fiftyone_rows(one, where, number)
        ]
    return None


def of_table(rows: list[dict]) -> list[dict]:
    """Return rows of Label Studio's CSV as its JSON-MIN has them."""
    made = []
    for row in rows:
        values: dict[str, object] = {
            name: text for name, text in row.items() if text or name in OF_MIN
        }
        for name, text in row.items():
            if isinstance(text, str) and text.startswith(('{"', '[{"')):
                with contextlib.suppress(ValueError):  # a text that only looks so
                    values[name] = json.loads(text)
        made.append(values)
    return made


def in_parts(
    row: dict,
    parts: dict[str, list[tuple]],
    said: list[str],
    where: str,
    edges: Sequence[str] = ("start_frame", "end_frame"),
) -> list[dict]:
    """Return the row, or one of each (label, start, end) of its one control of `parts`, the times
    in the columns `edges`. Raises Failure where other controls `said` something: to which part it
    belongs, nobody knows."""
    if not parts:
        return [row]
    if len(parts) > 1 or said:
        message = (
            f"got parts of a clip in {', '.join([*parts, *said])} together, expected one control "
            "of them and no other: which answers belong to which, --convert says"
        )
        raise f.bad_input("BUILD-TABLE", where, message)
    ((name, spans),) = parts.items()
    begin, stop = edges
    return [{**row, name: label, begin: start, stop: end} for label, start, end in spans]


def _boxes(boxes: list[tuple[str, list[float]]], width: float, height: float) -> dict[str, str]:
    """Return the columns of (label, [left, top, right, bottom]) in a picture of that size."""
    sides = (width, height, width, height)
    listed = [
        {
            "bbox_2d": [round(1000 * at / side) for at, side in zip(box, sides, strict=True)],
            "label": label,
        }
        for label, box in boxes
    ]
    objects = ", ".join(sorted({label for label, _ in boxes}))
    return {"objects": objects or "none", "boxes": json.dumps(listed, ensure_ascii=False)}


# -- CVAT ----------------------------------------------------------------------------------------


def cvat_rows(path: Path) -> Iterator[dict]:
    """Yield a row of each picture, or of each stretch of frames in which a track is seen and its
    attributes stay the same. Raises Failure for any other XML."""
    expected = "expected XML of CVAT, of one task (CVAT for video 1.1, CVAT for images 1.1)"
    try:
        root = ElementTree.parse(path).getroot()
        if root.tag != "annotations" or root.find("version") is None:
            raise ValueError("other elements")
        pictures = root.findall("image")
        for picture in pictures:
            yield _cvat_picture(picture)
        sources = {one.text for one in root.iterfind("meta//source") if one.text}
        tracks = root.findall("track")
        if tracks and len(sources) != 1:
            raise ValueError(f"{len(sources)} names of clips")
        step = (root.findtext("meta//frame_filter") or "").rpartition("step=")[2]
        for track in tracks:
            for row in _cvat_stretches(track, int(step or 1)):
                yield {"video": next(iter(sources)), **row}
    except (ElementTree.ParseError, ValueError, TypeError, KeyError) as problem:
        raise f.bad_input("BUILD-TABLE", path, f"got {problem}, {expected}") from None


def _cvat_picture(picture: ElementTree.Element) -> dict:
    """Return the row of a picture. `boxes` stand in it where all its shapes are upright boxes."""
    row = {"image": picture.attrib["name"]}
    if subset := picture.get("subset"):  # of a project, whose pictures lie in a folder of each
        row = {"image": f"{subset}/{row['image']}", "split": subset}
    tags = picture.findall("tag")
    if tags:
        row["label"] = ", ".join(tag.attrib["label"] for tag in tags)
    said: dict[str, list[str]] = defaultdict(list)
    for tag in tags:
        for one in tag.iterfind("attribute"):
            said[one.attrib["name"]].append(one.text or "")
    row |= {name: ", ".join(values) for name, values in said.items()}
    shapes = [shape for shape in picture if shape.tag != "tag" and "label" in shape.attrib]
    if all(shape.tag == "box" and not float(shape.get("rotation", 0)) for shape in shapes):
        boxes = [(box.attrib["label"], [float(box.attrib[side]) for side in BOX]) for box in shapes]
        if boxes or not tags:
            row |= _boxes(boxes, float(picture.attrib["width"]), float(picture.attrib["height"]))
    else:
        named = {shape.attrib["label"] for shape in shapes} - {""}
        row["objects"] = ", ".join(sorted(named))
    return row


def _cvat_stretches(track: ElementTree.Element, step: int) -> Iterator[dict]:
    shapes = [shape for shape in track if "frame" in shape.attrib]
    seen = []  # (frame, attributes; None where the object is outside of the picture)
    for shape in sorted(shapes, key=lambda one: int(one.attrib["frame"])):
        said = {one.attrib["name"]: one.text for one in shape.iterfind("attribute")}
        is_outside = shape.attrib.get("outside") == "1"
        seen.append((int(shape.attrib["frame"]), None if is_outside else said))
    if seen:
        seen.append((seen[-1][0] + step, None))
    start = None
    for (frame, said), (following, then) in pairwise(seen):
        start = frame if start is None else start
        if said is not None and then != said:
            place = {"start_frame": start, "end_frame": following}
            yield {"track": track.attrib["id"], "label": track.attrib["label"], **said, **place}
        if then != said:
            start = None


# -- VIA, COCO, FiftyOne -------------------------------------------------------------------------


def _via3_rows(project: dict, where: Path, problems: list[f.Finding]) -> list[dict]:
    """Return a row of each segment of a clip, or of each whole file, that has attributes. Regions
    at one moment, which are no part of a clip, join the `problems`."""
    made = []
    moments = []
    try:
        for number, (name, entry) in enumerate(project["metadata"].items()):
            if len(entry["z"]) == 1:
                moments.append(number)
                continue
            ids = project["view"][str(entry["vid"])]["fid_list"]
            if len(ids) != 1:
                raise ValueError("a view of several files")
            file = project["file"][str(ids[0])]
            kind = "image" if file["type"] == VIA_PICTURE else "video"
            row = {kind: file["fname"], "via_id": name}
            if entry["z"]:
                row |= {"start": entry["z"][0], "end": entry["z"][-1]}
            if entry["xy"]:
                row["region"] = entry["xy"]
            for id, value in entry["av"].items():
                attribute = project["attribute"][id]
                options = attribute.get("options") or {}
                chosen = [value]
                if attribute["type"] == VIA_CHECKBOX:
                    chosen = [one for one in value.split(",") if one]
                row[attribute["aname"]] = ", ".join(options.get(one, one) for one in chosen)
            made.append(row)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        message = f"got {problem!r}, expected a project of VIA 3 with one file in each view"
        raise f.bad_input("BUILD-TABLE", where, message) from None
    if moments:
        _pass_over("regions at one moment of a clip", moments, where, problems)
    return made


def _via2_row(file: dict) -> dict:
    row = {"image": file["filename"]}
    for name, value in file["file_attributes"].items():
        if isinstance(value, dict):  # of a checkbox: {"rain": true}
            value = ", ".join(one for one, is_set in value.items() if is_set)
        row[name] = value
    if file["regions"]:
        row["regions"] = file["regions"]
    return row


def _coco_rows(
    annotations: list[dict], header: dict, where: Path, problems: list[f.Finding]
) -> list[dict]:
    """Return a row of each caption, else one of each picture with its boxes. Pictures without a
    caption join the `problems`."""
    try:
        pictures = {one["id"]: one for one in header["images"]}
        if all("caption" in one for one in annotations):
            bare = [*pictures.keys() - {one["image_id"] for one in annotations}]
            if bare:
                _pass_over("pictures without a caption", bare, where, problems)
            return [
                {
                    "image": pictures[one["image_id"]]["file_name"],
                    "id": one["id"],
                    "caption": one["caption"],
                }
                for one in annotations
            ]
        names = {one["id"]: one["name"] for one in header["categories"]}
        boxes: dict[object, list] = {id: [] for id in pictures}
        for one in annotations:
            left, top, width, height = one["bbox"]
            box = [left, top, left + width, top + height]
            boxes[one["image_id"]].append((names[one["category_id"]], box))
        return [
            {"image": one["file_name"], **_boxes(boxes[id], one["width"], one["height"])}
            for id, one in pictures.items()
        ]
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as problem:
        message = f"got {problem!r}, expected captions or boxes of COCO, whose pictures it lists"
        raise f.bad_input("BUILD-TABLE", where, message) from None


def _class_of(value: object) -> str:
    """Return what FiftyOne calls the class of a label; "" for what is none."""
    return value.get("_cls", "") if isinstance(value, dict) else ""


def _fiftyone_rows(sample: dict, where: Path, number: int) -> list[dict]:
    written = sample.get("_id")
    identity = written.get("$oid", number) if isinstance(written, dict) else written or number
    row: dict = {"video": sample["filepath"], "fiftyone_id": str(identity)}
    parts: dict[str, list[tuple]] = {}
    said = []
    try:
        for name, value in sample.items():
            kind = _class_of(value)
            if kind == "Classification":
                row[name] = value["label"]
            elif kind == "Classifications":
                row[name] = ", ".join(one["label"] for one in value["classifications"])
            elif kind == "Regression":
                row[name] = value["value"]
            elif kind == "TemporalDetections":
                spans = [(one["label"], *one["support"]) for one in value["detections"]]
                parts[name] = [(label, start - 1, end) for label, start, end in spans]
            elif kind == "Detections":
                boxes = [(one["label"], one["bounding_box"]) for one in value["detections"]]
                corners = [(label, [x, y, x + w, y + h]) for label, (x, y, w, h) in boxes]
                row |= {f"{name}_{key}": text for key, text in _boxes(corners, 1, 1).items()}
            elif name not in ("filepath", "metadata") and not name.startswith("_"):
                row[name] = value
                continue
            else:
                continue
            if kind != "TemporalDetections":
                said.append(name)
    except (KeyError, TypeError, ValueError) as problem:
        message = f"got {problem!r} in {name}, expected a label as samples.json of FiftyOne has it"
        raise f.bad_input("BUILD-TABLE", f"{where}#{number}", message) from None
    return in_parts(row, parts, said, f"{where}#{number}")


# -- Label Studio --------------------------------------------------------------------------------


def _label_studio_rows(
    records: list[dict], label_fps: float, where: Path, problems: list[f.Finding]
) -> list[dict]:
    are_tasks = _is_task(records[0])
    made: list[dict] = []
    unanswered = []
    edges: list[str] = []  # the columns of parts, once there is one
    for number, record in enumerate(records):
        given = record["annotations"] if are_tasks else [record]
        given = [one for one in given if not one.get("was_cancelled")]  # the annotator skipped it
        if not given or (not are_tasks and record["annotation_id"] is None):
            unanswered.append(number)
            continue
        for annotation in given:  # of JSON-MIN a record is one annotation
            row, results, at = record, {}, f"{where}#{number}"
            if are_tasks:
                by = annotation.get("completed_by")
                row = {
                    **record["data"],
                    "id": record.get("id"),
                    "annotator": by.get("email", by.get("id")) if isinstance(by, dict) else by,
                    "annotation_id": annotation.get("id"),
                    "lead_time": annotation.get("lead_time"),
                }
                results = _results(annotation, at)
            others, parts, said = _timelines(row, results, label_fps)
            if parts:
                edges = ["start", "end"] if label_fps else ["start_frame", "end_frame"]
            made += in_parts(others, parts, said, at, edges)
    if edges and not label_fps:
        message = (
            "got a timeline, whose frames are those of the labelling interface, not of the clips; "
            "the export does not say how many a second has: declare --label-fps, the frameRate of "
            "the project's Video tag (24 where it has none)"
        )
        problems.append(f.error("BUILD-SPAN", where, message))
    # Where parts of clips are labelled, a clip without any has only what all rows have.
    named = set().union(*made)
    common = set.intersection(*map(set, made)) if made else named
    are_some = any(edge in named - common for edge in edges)
    bare = [row for row in made if row.keys() == common] if are_some else []
    if unanswered:
        _pass_over("tasks that nobody annotated", unanswered, f"{where}#{unanswered[0]}", problems)
    if bare:
        numbers = [row.get("annotation_id") for row in bare]
        _pass_over("annotations without a part of the clip", numbers, where, problems)
    return [row for row in made if row.keys() != common] if bare else made


def _pass_over(what: str, numbers: list, where: object, problems: list[f.Finding]) -> None:
    message = f"passed over {what}: {len(numbers)}"
    problems.append(f.info("BUILD-ROWS-BLANK", where, message, **f.counted(numbers, "rows")))


def _is_task(record: object) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict):
        return False
    given = record.get("annotations")
    return isinstance(given, list) and all(
        isinstance(one, dict) and isinstance(one.get("result"), list) for one in given
    )


def _results(annotation: dict, where: str) -> dict[str, object]:
    """Return what an annotation says, by the name of each control: as JSON-MIN writes it."""
    found: dict[str, list] = {}
    for result in annotation["result"]:
        kind, value = result.get("type"), result.get("value")
        if "from_name" not in result or not isinstance(value, dict):  # a relation between results
            continue
        if kind == TIMELINE:
            found.setdefault(result["from_name"], []).append(value)
            continue
        key = "text" if kind == "textarea" else kind
        if key not in TEXTS or key not in value:
            message = (
                f"got a result of type {kind}, expected choices, textarea, taxonomy, rating, "
                f"number, datetime or {TIMELINE}: others are made into rows by --convert"
            )
            raise f.bad_input("BUILD-TABLE", where, message)
        said = value[key] if isinstance(value[key], list) else [value[key]]
        found.setdefault(result["from_name"], []).extend(said)
    return {
        name: said if isinstance(said[0], dict) else _joined(said)
        for name, said in found.items()
        if said
    }


def _timelines(row: dict, results: dict, label_fps: float) -> tuple[dict, dict, list[str]]:
    """Return a row with names of files as they are outside of the program, the parts that its
    timelines label (in seconds where it is known how many frames one has, else in frames), and the
    other controls."""
    whole = {name: _file(value) for name, value in {**row, **results}.items()}
    parts: dict[str, list[tuple]] = {}
    needed = {"ranges", TIMELINE}
    for name, value in whole.items():
        spans = value if isinstance(value, list) else []
        if spans and all(isinstance(one, dict) and needed <= one.keys() for one in spans):
            frames = [
                (label, span["start"] - 1, span["end"])
                for one in spans
                for span in one["ranges"]
                for label in one[TIMELINE]
            ]
            rate = label_fps or 1
            parts[name] = [(label, first / rate, end / rate) for label, first, end in frames]
    if not parts:
        return {name: _text(value) for name, value in whole.items()}, {}, []
    others = {name: value for name, value in whole.items() if name not in parts}
    return others, parts, sorted(results.keys() - parts.keys())


def _text(value: object) -> object:
    """Return what a control says as one text or number; a column of the task as it is. JSON-MIN and
    CSV write several choices or texts as {"choices": [...]}, ratings and numbers as
    [{"rating": 3}]."""
    parts = value if isinstance(value, list) and value else [value]
    if not all(isinstance(one, dict) and len(one) == 1 and one.keys() <= TEXTS for one in parts):
        return value
    return _joined([said for one in parts for said in one.values()])


def _joined(said: list) -> object:
    """Return the one thing that is said, or several texts as one."""
    while len(said) == 1 and isinstance(said[0], list):  # a taxonomy has lists of lists
        said = said[0]
    if len(said) > 1 and all(isinstance(one, str) for one in said):
        return ", ".join(said)
    return said[0] if len(said) == 1 else said


def _file(value: object) -> object:
    """Return the name of a file that Label Studio serves: one that was uploaded, by its last part;
    one of its local storage, below the root of that."""
    if not isinstance(value, str):
        return value
    if value.startswith(UPLOADS):
        return posixpath.basename(value)
    if value.startswith(LOCAL_FILES):
        return (parse_qs(urlsplit(value).query).get("d") or [value])[0]
    return value


def tasks(gaps: list[dict], version: str) -> tuple[list[dict], str, str]:
    """Return what Label Studio imports to label gaps again, with the model's answers as predictions
    (the tasks, the labelling interface that they need, and the folder that must be the root of its
    local files), in the form that `rows` reads back.

    `gaps`: path, kind, question, answer (None where the model gave none), gt and id of each. Raises
    Failure for pictures and clips together, which no interface shows."""
    kinds = sorted({gap["kind"] for gap in gaps}) or ["video"]
    if len(kinds) > 1:
        message = "got gaps of pictures and of clips, which are labelled in projects of their own"
        raise f.bad_input("USAGE", "--label-studio", message)
    here = [gap["path"] for gap in gaps if "://" not in gap["path"]]
    root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in here] or [os.sep])
    answers = sorted({text for gap in gaps for text in (gap["answer"], gap["gt"]) if text})
    are_choices = len(answers) <= FEW_ANSWERS and all("\n" not in text for text in answers)
    made = []
    for gap in gaps:
        address = gap["path"]
        if "://" not in address:
            below = os.path.relpath(os.path.abspath(address), root)
            address = f"{LOCAL_FILES}?d={quote(below)}"
        data = {gap["kind"]: address, "question": gap["question"], "labelled": gap["gt"]}
        task: dict = {"data": data | {"row": gap["id"]}, "predictions": []}
        if gap["answer"]:
            kind, key = ("choices", "choices") if are_choices else ("textarea", "text")
            result = {"from_name": "answer", "to_name": gap["kind"], "type": kind}
            result["value"] = {key: [gap["answer"]]}
            task["predictions"] = [{"model_version": version, "result": [result]}]
        made.append(task)
    view = ElementTree.Element("View")
    (shown,) = kinds
    ElementTree.SubElement(view, shown.capitalize(), name=shown, value=f"${shown}")
    ElementTree.SubElement(view, "Header", value="$question")
    tag = "Choices" if are_choices else "TextArea"
    control = ElementTree.SubElement(view, tag, name="answer", toName=shown)
    for text in answers if are_choices else ():
        ElementTree.SubElement(control, "Choice", value=text)
    return made, ElementTree.tostring(view, encoding="unicode"), root
