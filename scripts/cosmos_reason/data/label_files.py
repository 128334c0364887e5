"""A folder with `videos/<id>.<suffix>.mp4` beside `metas/<id>.label.json`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.files import read_json
from cosmos_reason.data import split_names
from cosmos_reason.data.items import Item, Reading, ask, one_per_id, worded
from cosmos_reason.data.json_stream import check_regular
from cosmos_reason.data.roles import cell_text
from cosmos_reason.data.samples import Turn, in_one_form, is_void, names_medium


def folders(source: Path) -> list[Path]:
    """Return the folders with label files: a source, or those in it that are called like splits."""
    if any(source.glob("metas/*.label.json")):
        return [source]
    found = {path.parent.parent for path in source.glob("*/metas/*.label.json")}
    return sorted(folder for folder in found if split_names.exact(folder.name))


def items(source: Path, reading: Reading, problems: list[f.Finding]) -> Iterator[Item]:
    """Yield an item per label file: the answer is the label as JSON, or its one field."""
    paths, videos = _labelled(source)
    answers = {}
    fields = list(dict.fromkeys(reading.fields))
    refused: list[f.Finding] = []
    for name, path in paths.items():
        clips = videos[name]
        label = f.attempt(refused, _label, path, clips, reading.fields)
        if label is None:
            continue
        fields += [field for field in label if field not in fields]
        answers[name] = json.dumps(label, indent=2)
        if len(reading.fields) == 1:
            answers[name] = cell_text(label[reading.fields[0]])
    problems += [*one_per_id(refused), *_without_values(answers, paths)]
    answers = dict(zip(answers, in_one_form([*answers.values()]), strict=True))
    question = f.attempt(problems, _question, list(answers.values()), fields, reading)
    for (folder, name), answer in answers.items():
        media = (("video", videos[folder, name][0]),)
        split = "" if folder == source else split_names.exact(folder.name)
        yield Item(
            name, media, (Turn("user", question or ""), Turn("assistant", answer)), split=split
        )


def _labelled(source: Path) -> tuple[dict, dict]:
    """Return the label file, and the clips, of each (folder, name)."""
    paths = {}
    videos = {}
    for folder in folders(source):
        here = {}
        for path in sorted(folder.glob("metas/*.label.json")):
            here[path.name.removesuffix(".label.json")] = path
        clips_here = _videos(folder, set(here))
        for name, path in here.items():
            paths[folder, name] = path
            videos[folder, name] = clips_here[name] or [folder / "videos" / f"{name}.mp4"]
    return paths, videos


def _without_values(answers: dict[tuple, str], paths: dict[tuple, Path]) -> list[f.Finding]:
    void = [name for name, answer in answers.items() if not answer or is_void(answer)]
    if not void:
        return []
    message = f"got {answers[void[0]] or 'nothing'} for {len(void)} labels, expected a value"
    names = [name for _, name in void]
    ids = {"record_ids": names[: f.MAX_RECORD_IDS], "count": len(void)}
    return [f.error("BUILD-TEXT-VOID", paths[void[0]], message, **ids)]


def _question(answers: list[str], fields: list[str], reading: Reading) -> str:
    """Return what label files are asked. Raises Failure when nobody said it."""
    if not answers:
        return ""
    question = ask(reading.question, fields, answers, "video")
    if len(reading.fields) == 1:
        return worded(question, fields, answers)
    return question


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
