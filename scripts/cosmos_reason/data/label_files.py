"""Clips without a table: `videos/<id>.<suffix>.mp4` beside `metas/<id>.label.json`, or folders that
are called as the label of what lies in them."""

from __future__ import annotations

import json
import posixpath
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.files import check_regular, read_json
from cosmos_reason.data import split_names
from cosmos_reason.data.items import Item, Reading, Row, ask, form_added, one_per_id
from cosmos_reason.data.roles import cell_text
from cosmos_reason.data.source_files import Folder
from cosmos_reason.data.turns import Turn, in_one_form, is_void
from cosmos_reason.media.files import names_medium


def folders(source: Path) -> list[Path]:
    """Return the folders with label files: a source, or those in it that are called like splits."""
    if any(source.glob("metas/*.label.json")):
        return [source]
    found = {path.parent.parent for path in source.glob("*/metas/*.label.json")}
    return sorted(folder for folder in found if split_names.exact(folder.name))


def items(source: Path, reading: Reading, problems: list[f.Finding]) -> Iterator[Item]:
    """Yield an item per label file: the answer is the label as JSON, or its one field."""
    answers = {}  # (path of the label, its clips, name of its split) -> what it says
    fields = list(dict.fromkeys(reading.fields))
    refused: list[f.Finding] = []
    for folder in folders(source):
        split = "" if folder == source else split_names.exact(folder.name)
        paths = sorted(folder.glob("metas/*.label.json"))
        named = {path.name.removesuffix(".label.json"): path for path in paths}
        videos = _videos(folder, set(named))
        for name, path in named.items():
            clips = videos[name] or [folder / "videos" / f"{name}.mp4"]
            label = f.attempt(refused, _label, path, clips, reading.fields)
            if label is None:
                continue
            fields += [field for field in label if field not in fields]
            text = json.dumps(label, indent=2)
            if len(reading.fields) == 1:
                text = cell_text(label[reading.fields[0]])
            answers[name, path, clips[0], split] = text
    problems += one_per_id(refused)
    void = [made for made, text in answers.items() if not text or is_void(text)]
    if void:
        (_, path, _, _), said = void[0], answers[void[0]] or "nothing"
        message = f"got {said} for {len(void)} labels, expected a value"
        ids = f.counted([name for name, *_ in void])
        problems.append(f.error("BUILD-TEXT-VOID", path, message, **ids))
    # Only all labels together say in which form an answer is mostly written.
    texts = in_one_form([*answers.values()])
    asked = ("", "")
    if texts:
        asked = f.attempt(problems, ask, reading.question, fields, texts, "video") or asked
    question, form = asked
    if len(reading.fields) == 1:
        question += form
        problems += form_added(form)
    for (name, _, clip, split), answer in zip(answers, texts, strict=True):
        turns = (Turn("user", question), Turn("assistant", answer))
        yield Item(name, (("video", clip),), turns, split=split)


def _label(path: Path, clips: list[Path], fields: tuple[str, ...]) -> dict:
    """Return the `fields` of one label file, or all of them. Raises Failure where the label does
    not have them, and where it does not belong to one clip."""
    check_regular(path)
    label = read_json(path)
    if len(clips) != 1 or not isinstance(label, dict):
        names = ", ".join(clip.name for clip in clips) or "none"
        message = (
            f"got the clips {names} and a label {type(label).__name__}, "
            "expected one clip of its id in videos/, and an object"
        )
        raise f.bad_input("BUILD-LABEL", path, message)
    for field in fields:
        if field not in label:
            message = f"got no field {field}.{f.did_you_mean(field, label)}"
            raise f.bad_input("BUILD-FIELD", path, message)
    return {field: label[field] for field in fields or label}


def _videos(source: Path, names: set[str]) -> dict[str, list[Path]]:
    """Return the clips of every name: `<name>.mp4` or `<name>.<suffix>.mp4`, where a name may have
    dots itself: the longest name that fits counts."""
    found = defaultdict(list)
    for path in sorted(source.glob("videos/*")):
        if not names_medium(path.name):
            continue
        name = path.name.rpartition(".")[0]
        while name and name not in names:
            name = name.rpartition(".")[0]
        if name:
            found[name].append(path)
    return found


def by_folder(files: Folder, split: str) -> list[Row]:
    """Return one row per medium of a source without tables, whose folder names are the labels."""
    rows = []
    for name in files.names:
        if not names_medium(name):
            continue
        if split and split not in name.split("/"):
            continue
        label = posixpath.basename(posixpath.dirname(name))
        called = split_names.of_folders(posixpath.dirname(name))
        rows.append(Row({"video": name, "answer": label}, "", name, len(rows), called))
    labels = {row.values["answer"] for row in rows}
    are_splits = all(map(split_names.exact, labels))
    if len(labels) < 2 or "" in labels or are_splits:
        message = f"got {len(rows)} media files in {len(labels)} folders and no labels; "
        message += "write a table labels.csv beside them (video,label), or put them into one "
        message += "folder per label"
        raise f.bad_input("BUILD-NO-LABELS", files.root, message)
    return rows
