"""Items written as a dataset, in the splits that `splits.planned` gave them, with media beside the
annotations."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base import progress
from cosmos_reason.base.files import (
    only_run,
    read_json,
    whole_file,
    whole_folder,
    write_json,
    write_text,
)
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import some
from cosmos_reason.data.formats import COSMOS_REASON, DAFT
from cosmos_reason.data.items import Item
from cosmos_reason.data.roles import FILE
from cosmos_reason.data.source_files import MARKER, Frames, Held, Medium
from cosmos_reason.data.split_names import CUTS
from cosmos_reason.data.splits import Plan
from cosmos_reason.data.turns import thought_apart
from cosmos_reason.media.files import content, conversion, frame_rate
from cosmos_reason.spec.prompts import THOUGHT

FORMATS = ("llava", DAFT, COSMOS_REASON)
MEDIA_MODES = ("link", "copy", "reference")
SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}
SUFFIX = {"video": ".mp4", "image": ".png"}


class Placed(NamedTuple):
    """A medium of the dataset: the name that annotations use for it, or the names of a list of
    pictures, and the frames per second of a clip."""

    name: str | list[str]
    fps: float | None
    are_pictures: bool = False

    @property
    def whole(self) -> str | dict:
        """Return how it is written beside others, each with its own rate."""
        if not self.are_pictures:
            return self.name
        rate = {"sample_fps": self.fps} if self.fps else {}
        return {"video": self.name, **rate}


class Record(NamedTuple):
    """What is written of an item: its media where they are, and its rate by the key of its kind."""

    name: str
    item: Item
    media: list[tuple[str, Placed]]
    rate: dict[str, float]


@dataclass
class Media:
    """What became of the media of all splits. `here` are files of media that an earlier fold has:
    linked, not brought again; `refused` what does not open, (record, finding) by the finding's id;
    the records that name it are `left_out`."""

    bar: Any
    here: dict[Medium, Path] = field(default_factory=dict)
    refused: dict[str, list[tuple[str, f.Finding]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    left_out: dict[str, None] = field(default_factory=dict)


SHOWN = 5  # names that a message holds
MENDED = 20  # files that one command names
BY_CONVERSION = ("DATA-MEDIA-DEPTH", "DATA-MEDIA-ANIMATED")
UNOPENED = (
    *("DATA-MEDIA-EMPTY", "DATA-MEDIA-MISSING", "DATA-MEDIA-UNDECODABLE", "BUILD-CUT"),
    "BUILD-SPAN-OUTSIDE",
    *BY_CONVERSION,
)


def write(
    splits: dict[str, dict[str, Item]],
    folder: Path,
    plan: Plan,
    mapping: str = "",
    agreement: Sequence[dict] = (),
) -> tuple[dict[str, int], list[f.Finding]]:
    """Write `folder` (mapping.yaml, train/ and, when something is held out, eval/) whole or not at
    all; records per split, and what is said of those left out. `splits`: what `planned` gives;
    `agreement`: what annotators.settle says of each question.

    Raises Failure when a medium cannot be linked, and with all that do not open.
    """
    folder = folder.resolve()  # a link to it stays
    counts = {}
    each = ({one for item in items.values() for one in item.media} for items in splits.values())
    bar = progress.bar(sum(map(len, each)), "bring clips", unit="clip", is_quick=True)
    media = Media(bar)
    with only_run(folder), whole_folder(folder) as root, bar:
        for name, items in splits.items():
            counts[name] = _write_split(items, root / name, plan, media)
        total = len({name for of_split in splits.values() for name in of_split})
        told = _unopened(media, total, plan.skip_missing) if media.refused else []
        empty = [name for name, count in counts.items() if not count]
        if empty:
            message = f"got no clip that opens for {' and '.join(empty)}, expected one or more"
            raise f.Failure([*told, f.error("BUILD-EMPTY", folder, message)], f.EXIT_BAD_INPUT)
        first, *others = counts
        # A share of the clips is held out with all their parts and copies, and folds are made of
        # whole clips and groups; the splits of a source may show the same.
        is_named = any(item.split for items in splits.values() for item in items.values())
        for name in others if first == "train" and is_named else ():
            from cosmos_reason.data import annotations, overlap

            pair = [(str(annotations.locate(root / one)), "") for one in (first, name)]
            found = overlap.of_files(*pair, {})
            ids = [*found.ids[overlap.QUESTION], *found.ids[overlap.CLIP]] if found else []
            if ids:
                first_told = found.first.get(overlap.QUESTION) or found.first[overlap.CLIP]
                message = (
                    f"got {len(ids)} of {counts[name]} records of {name} that show clips of the "
                    f"training data ({first_told}): build of the training split alone "
                    "(--hf-split, or its folder), and hold out a share of it"
                )
                shared = f.error("BUILD-SPLIT-SHARED", name, message, **f.counted(ids))
                raise f.Failure([shared], f.EXIT_CHECKS_FAILED)
        write_text(root / FILE, mapping)
        groups = {
            name: dict(Counter(group for item in items.values() for group in item.groups))
            for name, items in splits.items()
        }
        said = {"agreement": list(agreement), "groups": groups}
        made = {"schema_version": 1, "names": _names(root)} | asdict(plan)
        write_json(root / MARKER, made | {key: value for key, value in said.items() if value})
    return counts, told


def is_as_written(folder: Path) -> bool:
    """Return whether `write` made it, and no file has been put there or taken away since."""
    marker = read_json(folder / MARKER) if (folder / MARKER).is_file() else None
    return isinstance(marker, dict) and marker.get("names") == _names(folder)


def _names(folder: Path) -> str:
    """Return a digest of the names of all files and folders."""
    names = sorted(os.fsencode(path.relative_to(folder)) for path in folder.rglob("*"))
    return hashlib.sha256(b"\0".join(name for name in names if name != MARKER.encode())).hexdigest()


def _unopened(media: Media, total: int, is_skipping: bool) -> list[f.Finding]:
    """Return what is said of media that do not open, of `total` records: these are left out where
    the plan says so, unless a conversion makes them readable. Raises Failure for all others."""
    found = []
    everything = []
    for id, problems in media.refused.items():
        names = [problem.where for _, problem in problems]
        everything += names
        _, first = problems[0]
        message = first.message
        if names[1:]:
            message += f" ({len(names)} files: {some(names, SHOWN)})"
        records = [name for name, _ in problems]
        data = {"record_ids": records[: f.MAX_RECORD_IDS], "files": names[: f.MAX_RECORD_IDS]}
        severity = f.ERROR
        fix = Fix(flags={"--skip-missing": True})
        if id in BY_CONVERSION:
            local = [name for name in names if os.path.isfile(name)]
            fix = conversion(local[:MENDED]) if local else Fix()
        elif is_skipping:
            severity, fix = f.WARNING, Fix()
        found.append(f.Finding(id, severity, first.where, message, fix, data))
    if f.has_errors(found):
        raise f.Failure(found, f.EXIT_BAD_INPUT)
    names = list(media.left_out)
    message = f"left out {len(names)} of {total} records, because their media do not open: "
    data = f.counted(names) | {"files": everything[: f.MAX_RECORD_IDS]}
    message += some(everything, SHOWN)
    return [f.warning("BUILD-MEDIA-SKIPPED", everything[0], message, **data)]


# -- media ---------------------------------------------------------------------------------------


def _write_split(items: dict[str, Item], folder: Path, plan: Plan, media: Media) -> int:
    """Write the records whose media open, and which times of which recording a clip shows, as
    `overlap` reads it; how many they are."""
    (folder / "media").mkdir(parents=True)
    wanted: dict[Medium, tuple[str, str]] = {}  # what is first to name it, and as what
    for name, item in items.items():
        for kind, medium in item.media:
            wanted.setdefault(medium, (name, kind))
    placed: dict[Medium, Placed] = {}
    cuts = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # All cores cut the parts of local recordings meanwhile; what goes wrong is raised where
        # one is placed.
        parts = {
            medium: pool.submit(medium.load)
            for medium in wanted
            if isinstance(medium, Held) and isinstance(medium.whole, Path)
            if medium not in media.here
        }
        try:
            for medium, (name, kind) in wanted.items():
                source, mode = medium, plan.media
                if medium in media.here:
                    source, mode = media.here[medium], "link"
                elif medium in parts:
                    source = replace(medium, load=parts[medium].result)
                try:
                    placed[medium] = found = _place(name, kind, source, folder, mode)
                except f.Failure as failure:
                    for problem in failure.findings:
                        if problem.id not in UNOPENED:
                            raise
                        told = media.refused[problem.id]
                        if (name, problem) not in told:  # an earlier fold had it
                            told.append((name, problem))
                    continue
                finally:
                    media.bar.update()
                # A list of pictures is linked anew in each fold: it is no one file.
                if str(found.name).startswith("media/"):
                    media.here[medium] = folder / found.name
                if isinstance(medium, Held) and medium.span:
                    recording, size = getattr(medium.whole, "key", ""), 0
                    if isinstance(medium.whole, Path):
                        recording, size = content(medium.whole), medium.whole.stat().st_size
                    start, end = medium.span
                    times = {"start": start, "end": end}
                    cuts[found.name] = {"recording": recording, "bytes": size} | times
        finally:
            pool.shutdown(cancel_futures=True)
    records = []
    for name, item in items.items():
        if not all(medium in placed for _, medium in item.media):
            media.left_out[name] = None
            continue
        shown = [(kind, placed[medium]) for kind, medium in item.media]
        rates = {found.fps for kind, found in shown if kind == "video"}
        fps = item.video_fps
        if not fps and len(rates) == 1:  # the measured one, where its clips have one
            fps = rates.pop()
        # qwen-vl-utils calls the rate of pictures so, NVIDIA's loaders that of a clip.
        key = "sample_fps" if any(found.are_pictures for _, found in shown) else "video_fps"
        records.append(Record(name, item, shown, {key: fps} if fps else {}))
    # What only records show that were left out is no part of the dataset.
    shown_media = {medium for record in records for _, medium in record.item.media}
    for medium in placed.keys() - shown_media:
        name = placed[medium].name
        media.here.pop(medium, None)
        cuts.pop(str(name), None)
        first = name if isinstance(name, str) else name[0]
        if first.startswith("media/"):  # else it was only named
            own = folder / "media" / first.split("/")[1]
            if own.is_dir():
                shutil.rmtree(own)
            else:
                own.unlink()
    if not any((folder / "media").iterdir()):
        (folder / "media").rmdir()
    if plan.format == COSMOS_REASON:
        _write_conversations(records, folder)
    elif plan.format == DAFT:
        document = {"format": DAFT, "metadata": {"type": "annotation", "license": plan.license}}
        document["items"] = [_daft(record) for record in records]
        write_json(folder / "annotations.json", document)
    else:
        # A record on each line takes a fifth of the time that indenting takes.
        encode = json.JSONEncoder(ensure_ascii=False).encode
        with whole_file(folder / "annotations.json") as handle:
            handle.write("[")
            for number, record in enumerate(records):
                handle.write(f"{',' if number else ''}\n{encode(_llava(record))}")
            handle.write("\n]\n")
    if cuts:
        write_json(folder / CUTS, cuts)
    return len(records)


def _place(name: str, kind: str, source: Medium, folder: Path, mode: str) -> Placed:
    """Bring one medium into the split. Pictures of a video get a folder of their own; those of a
    folder keep their names, by whose numbers a missing one is seen. Raises Failure."""
    # a.png and a.PNG are one file on disks without case.
    suffix = "" if isinstance(source, Frames) else source.suffix.lower() or SUFFIX[kind]
    target = folder / "media" / f"{name}{suffix}"
    number = 1
    while target.exists():
        number += 1
        target = target.with_name(f"{name}.{number}{suffix}")
    if isinstance(source, Frames):
        names = []
        for number, picture in enumerate(source.files):
            medium = picture.load() if isinstance(picture, Held) else picture
            if mode == "reference" and isinstance(medium, Path):
                names.append(_reference(name, medium))
                continue
            target.mkdir(parents=True, exist_ok=True)
            stem = f"{number:05}" if source.is_list else picture.stem
            last = f"{stem}{picture.suffix}"
            _bring(medium, target / last, mode)
            names.append(f"media/{target.name}/{last}")
        shown = names if source.is_list else os.path.dirname(names[0])
        return Placed(shown, source.fps, are_pictures=True)
    medium = source.load() if isinstance(source, Held) else source
    if isinstance(medium, Path):
        fps = frame_rate(medium)
        if mode == "reference":
            return Placed(_reference(name, medium), fps)
        _bring(medium, target, mode)
        return Placed(f"media/{target.name}", fps)
    _bring(medium, target, mode)
    try:
        return Placed(f"media/{target.name}", frame_rate(target))
    except f.Failure as failure:  # it is called as its source calls it
        target.unlink()
        where = source.key if "/" in source.key else name
        named = [replace(found, where=where, fix=Fix()) for found in failure.findings]
        raise f.Failure(named, failure.exit_code) from None


def _reference(name: str, medium: Path) -> str:
    path = os.path.abspath(medium)
    if path != path.encode(errors="replace").decode():
        message = f"got a name that is no UTF-8: {path!a}"
        raise f.bad_input("BUILD-MEDIA-NAME", name, message, "--media link")
    return path


def _bring(medium: Path | bytes, target: Path, mode: str) -> None:
    """Write, copy or link a file. A hard link, unlike a symbolic one, stays valid where only the
    dataset folder is mounted."""
    if isinstance(medium, bytes):
        target.write_bytes(medium)
    elif mode == "copy":
        shutil.copyfile(medium, target)
    else:
        try:
            os.link(medium.resolve(), target)
        except OSError as problem:
            message = (
                f"got {problem.strerror} linking {medium}, "
                "expected one file system for source and output"
            )
            raise f.bad_input("BUILD-LINK", target.name, message, "--media copy") from None


# -- records -------------------------------------------------------------------------------------


def _llava(made: Record) -> dict:
    """Return a record with one tag per medium before the first question and the reasoning before
    the last answer."""
    _, item, media, _ = made
    record: dict = {"id": made.name}
    for kind in SUFFIX:
        of_kind = [placed for medium, placed in media if medium == kind]
        if len(of_kind) == 1:
            record[kind] = of_kind[0].name
        elif of_kind:
            record[f"{kind}s"] = [placed.whole for placed in of_kind]
    record |= made.rate
    if item.tags:
        record["tags"] = list(item.tags)
    if item.groups:
        record["groups"] = list(item.groups)
    turns = [{"from": SPEAKERS[turn.role], "value": turn.text} for turn in item.turns]
    first = next(turn for turn in turns if turn["from"] == "human")
    first["value"] = "".join(f"<{kind}>\n" for kind, _ in media) + first["value"]
    if item.reasoning:
        turns[-1]["value"] = THOUGHT.format(*_apart(item))
    record["conversations"] = turns
    return record


def _apart(item: Item) -> tuple[str, str]:
    """Return (reasoning, answer) of an item whose answer may begin with its reasoning, even when it
    stands beside it, too."""
    thought, answer = thought_apart(item.turns[-1].text)
    return item.reasoning or thought, answer


def _only_medium(made: Record) -> tuple[str, str]:
    """Return (kind, name of its file or folder). Raises Failure for anything but one of these."""
    if len(made.media) != 1 or isinstance(made.media[0][1].name, list):
        message = "got several media or a list of pictures, expected one file or folder"
        raise f.bad_input("BUILD-FORMAT", made.name, message, "--format llava")
    ((kind, placed),) = made.media
    return kind, placed.name


def _daft(made: Record) -> dict:
    turns = made.item.turns
    if len(turns) != 2:
        message = "got a system prompt or several turns, expected a question and an answer"
        raise f.bad_input("BUILD-FORMAT", made.name, message, "--format llava")
    kind, path = _only_medium(made)
    reasoning, answer = _apart(made.item)
    record = {"id": made.name, f"{kind}_id": path, "question": turns[0].text, "answer": answer}
    if reasoning:
        record["reasoning"] = reasoning
    return record | made.rate


def _write_conversations(records: list[Record], folder: Path) -> None:
    """Write cosmos-reason-v1.0: meta.json, and one conversation file per record under text/, in
    content parts; the medium stands before the first user turn's text."""
    samples = []
    for made in records:
        name, item = made.name, made.item
        kind, path = _only_medium(made)
        reasoning, answer = _apart(item)
        waiting = [{"type": kind, kind: f"{kind}_0"}]
        turns = []
        for turn in (*item.turns[:-1], item.turns[-1]._replace(text=answer)):
            parts = [{"type": "text", "text": turn.text}]
            if turn.role == "user":
                parts, waiting = waiting + parts, []
            turns.append({"role": turn.role, "content": parts})
        if reasoning:
            turns[-1]["reasoning_content"] = [{"type": "text", "text": reasoning}]
        document = {"version": COSMOS_REASON, "metadata": {"type": "conversation"}}
        write_json(folder / "text" / f"{name}.json", document | {"conversations": turns})
        sample = {"id": name, "conversation": f"text/{name}.json", "media": path}
        if "sample_fps" in made.rate:
            sample |= made.rate
        samples.append(sample)
    meta = {"version": COSMOS_REASON, "metadata": {"type": "meta"}, "samples": samples}
    write_json(folder / "meta.json", meta)
