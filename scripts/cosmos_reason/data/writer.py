"""Items written as a dataset: split by source clip, stratified by answer, with media beside the
annotations."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base.files import only_run, read_json, whole_folder, write_json, write_text
from cosmos_reason.base.fix import Fix
from cosmos_reason.data.annotations import locate
from cosmos_reason.data.items import Item
from cosmos_reason.data.mapping import FILE
from cosmos_reason.data.samples import thought_apart
from cosmos_reason.data.source_files import MARKER, Frames, Held, Medium
from cosmos_reason.data.splits import CUTS, Plan
from cosmos_reason.media.files import content, conversion, frame_rate
from cosmos_reason.spec.prompts import THOUGHT

DAFT, COSMOS_REASON = "tao-vl-reason-v1.0", "cosmos-reason-v1.0"
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
        """How it is written beside others, each with its own rate."""
        if not self.are_pictures:
            return self.name
        rate = {"sample_fps": self.fps} if self.fps else {}
        return {"video": self.name, **rate}


SHOWN = 5  # names that a message holds
MENDED = 20  # files that one command names
BY_CONVERSION = ("DATA-MEDIA-DEPTH", "DATA-MEDIA-ANIMATED")
UNOPENED = (
    *("DATA-MEDIA-EMPTY", "DATA-MEDIA-MISSING", "DATA-MEDIA-UNDECODABLE", "BUILD-CUT"),
    "BUILD-SPAN-OUTSIDE",
    *BY_CONVERSION,
)


class Unopened:
    """What does not open, among `total` records. `is_skipping`: the records that name it are left
    out, unless a conversion makes it readable."""

    def __init__(self, total: int, is_skipping: bool):
        self.total = total
        self.is_skipping = is_skipping
        # (record, finding) by the finding's id
        self.refused: dict[str, list[tuple[str, f.Finding]]] = defaultdict(list)
        self.records: dict[str, None] = {}  # those that are left out

    def attempt(self, name: str, call, *args):
        """What `call` returns for the record `name`; None for a medium that does not open."""
        problems: list[f.Finding] = []
        made = f.attempt(problems, call, name, *args)
        for problem in problems:
            if problem.id not in UNOPENED:
                raise f.Failure(problems, f.EXIT_BAD_INPUT)
            if (name, problem) not in self.refused[problem.id]:  # an earlier fold had it
                self.refused[problem.id].append((name, problem))
        return made

    def findings(self) -> list[f.Finding]:
        """What is said of them, one finding per problem. Raises Failure unless all are left out."""
        found = [self._told(id, refused) for id, refused in self.refused.items()]
        if f.has_errors(found):
            raise f.Failure(found, f.EXIT_BAD_INPUT)
        if not found:
            return []
        names = [problem.where for told in self.refused.values() for _, problem in told]
        message = (
            f"left out {len(self.records)} of {self.total} records, because their media do not "
            f"open: {_some(names)}"
        )
        data = {"record_ids": list(self.records)[: f.MAX_RECORD_IDS], "count": len(self.records)}
        data["files"] = names[: f.MAX_RECORD_IDS]
        return [f.warning("BUILD-MEDIA-SKIPPED", names[0], message, **data)]

    def _told(self, id: str, refused: list[tuple[str, f.Finding]]) -> f.Finding:
        """One finding about all media with a problem: a warning where they are left out."""
        _, first = refused[0]
        names = [problem.where for _, problem in refused]
        message = first.message
        if names[1:]:
            message += f" ({len(names)} files: {_some(names)})"
        records = [name for name, _ in refused]
        data = {"record_ids": records[: f.MAX_RECORD_IDS], "files": names[: f.MAX_RECORD_IDS]}
        if id not in BY_CONVERSION:
            if self.is_skipping:
                return f.warning(id, first.where, message, **data)
            return f.error(id, first.where, message, Fix(flags={"--skip-missing": True}), **data)
        local = [name for name in names if os.path.isfile(name)]
        fix = conversion(local[:MENDED]) if local else ""
        return f.error(id, first.where, message, fix, **data)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown}, ..." if names[SHOWN:] else shown


def write(
    splits: dict[str, dict[str, Item]], folder: Path, plan: Plan, mapping: str = ""
) -> tuple[dict[str, int], list[f.Finding]]:
    """Write `folder` (mapping.yaml, train/ and, when something is held out, eval/) whole or not at
    all; records per split, and what is said of those left out. `splits`: what `planned` gives.

    Raises Failure when a medium cannot be linked, and with all that do not open.
    """
    folder = folder.resolve()  # a link to it stays
    names = {name for of_split in splits.values() for name in of_split}
    unopened = Unopened(len(names), plan.skip_missing)
    counts = {}
    here: dict[Medium, Path] = {}  # media that an earlier fold has: linked, not brought again
    with only_run(folder), whole_folder(folder) as root:
        for name, items_here in splits.items():
            counts[name] = _write_split(items_here, root / name, plan, unopened, here)
        left_out = unopened.findings()
        empty = [name for name, count in counts.items() if not count]
        if empty:
            message = f"got no clip that opens for {' and '.join(empty)}, expected one or more"
            raise f.Failure([*left_out, f.error("BUILD-EMPTY", folder, message)], f.EXIT_BAD_INPUT)
        _refuse_shared(root, counts)
        write_text(root / FILE, mapping)
        write_json(root / MARKER, {"schema_version": 1, "names": _names(root)} | asdict(plan))
    return counts, left_out


def _refuse_shared(root: Path, counts: dict[str, int]) -> None:
    """Raise Failure where held-out records show what training shows. A share of the clips is held
    out with all their parts and copies; the splits of a source may not be."""
    if "train" not in counts:  # folds are made of whole clips and groups
        return
    from cosmos_reason.data import overlap

    train, *others = (str(locate(root / name)) for name in counts)
    if not others:
        return
    for name, held_out in zip(list(counts)[1:], others, strict=True):
        found = overlap.of_files((train, ""), (held_out, ""), {})
        ids = [*found.ids[overlap.QUESTION], *found.ids[overlap.CLIP]] if found else []
        if ids:
            message = (
                f"got {len(ids)} of {counts[name]} records of {name} that show clips of the "
                "training data: build of the training split alone (--hf-split, or its folder), "
                "and hold out a share of it"
            )
            data = {"record_ids": ids[: f.MAX_RECORD_IDS], "count": len(ids)}
            shared = f.error("BUILD-SPLIT-SHARED", name, message, **data)
            raise f.Failure([shared], f.EXIT_CHECKS_FAILED)


def is_as_written(folder: Path) -> bool:
    """Whether `write` made it, and no file has been put there or taken away since."""
    marker = read_json(folder / MARKER) if (folder / MARKER).is_file() else None
    return isinstance(marker, dict) and marker.get("names") == _names(folder)


def _names(folder: Path) -> str:
    """A digest of the names of all files and folders."""
    names = sorted(os.fsencode(path.relative_to(folder)) for path in folder.rglob("*"))
    return hashlib.sha256(b"\0".join(name for name in names if name != MARKER.encode())).hexdigest()


def _write_split(
    items: dict[str, Item],
    folder: Path,
    plan: Plan,
    unopened: Unopened,
    here: dict[Medium, Path],
) -> int:
    """How many records are written: those whose media open. `here`: the files of media that the
    dataset has already, to which those of this split are added."""
    folder.mkdir(parents=True)
    placed: dict[Medium, Placed | None] = {}
    records = []
    for name, item in items.items():
        for kind, medium in item.media:
            if medium not in placed:
                way = (
                    (here[medium], folder, "link")
                    if medium in here
                    else (medium, folder, plan.media)
                )
                placed[medium] = place = unopened.attempt(name, _place, kind, *way)
                if place and str(place.name).startswith("media/"):
                    here[medium] = folder / place.name
        media = [(kind, placed[medium]) for kind, medium in item.media]
        if not all(place for _, place in media):
            unopened.records[name] = None
            continue
        rates = {placed[medium].fps for kind, medium in item.media if kind == "video"}
        records.append((name, _with_rate(item, rates), media))
    _write_records(records, folder, plan)
    _write_cuts(placed, folder)
    return len(records)


def _write_cuts(placed: dict[Medium, Placed | None], folder: Path) -> None:
    """Write which times of which recording a clip shows, as `overlap` reads it."""
    cuts = {}
    for medium, here in placed.items():
        if here and isinstance(medium, Held) and medium.span:
            start, end = medium.span
            recording, size = getattr(medium.whole, "key", ""), 0
            if isinstance(medium.whole, Path):
                recording, size = content(medium.whole), medium.whole.stat().st_size
            cuts[here.name] = {"recording": recording, "bytes": size, "start": start, "end": end}
    if cuts:
        write_json(folder / CUTS, cuts)


def _write_records(records: list, folder: Path, plan: Plan) -> None:
    if plan.format == "llava":
        write_json(folder / "annotations.json", [_llava(*record) for record in records])
    elif plan.format == DAFT:
        metadata = {"type": "annotation", "license": plan.license}
        document = {
            "format": plan.format,
            "metadata": metadata,
            "items": [_daft(*record) for record in records],
        }
        write_json(folder / "annotations.json", document)
    else:
        _write_conversations(records, folder)


def _with_rate(item: Item, rates: set[float | None]) -> Item:
    """The rate of its own, else the measured one, when that is known and its clips have the
    same."""
    if item.video_fps or len(rates) != 1:
        return item
    return item._replace(video_fps=rates.pop())


def _place(name: str, kind: str, source: Medium, folder: Path, mode: str) -> Placed:
    """Bring one medium into the split."""
    if isinstance(source, Frames):
        return _place_pictures(name, source, folder, mode)
    medium = source.load() if isinstance(source, Held) else source
    if isinstance(medium, Path):
        fps = frame_rate(medium)
        if mode == "reference":
            return Placed(_reference(name, medium), fps)
    target = _free(folder / "media", name, source.suffix or SUFFIX[kind])
    target.parent.mkdir(exist_ok=True)
    _bring(medium, target, mode)
    if isinstance(medium, bytes):
        fps = _written_rate(target, source.key if "/" in source.key else name)
    return Placed(f"media/{target.name}", fps)


def _written_rate(file: Path, name: str) -> float | None:
    """The `frame_rate` of a file that is written here and that its source calls `name`. A file that
    does not open is removed."""
    try:
        return frame_rate(file)
    except f.Failure as failure:
        file.unlink()
        named = [replace(found, where=name, fix=Fix()) for found in failure.findings]
        raise f.Failure(named, failure.exit_code) from None


def _place_pictures(name: str, frames: Frames, folder: Path, mode: str) -> Placed:
    """Bring the pictures of a video into a folder of their own; those of a folder keep their names,
    by whose numbers a missing one is seen."""
    target = _free(folder / "media", name, "")
    names = []
    for number, source in enumerate(frames.files):
        medium = source.load() if isinstance(source, Held) else source
        if mode == "reference" and isinstance(medium, Path):
            names.append(_reference(name, medium))
            continue
        target.mkdir(parents=True, exist_ok=True)
        stem = f"{number:05}" if frames.is_list else source.stem
        last = f"{stem}{source.suffix}"
        _bring(medium, target / last, mode)
        names.append(f"media/{target.name}/{last}")
    named = names if frames.is_list else os.path.dirname(names[0])
    return Placed(named, frames.fps, are_pictures=True)


def _free(folder: Path, name: str, suffix: str) -> Path:
    """A path that is not there yet."""
    target = folder / f"{name}{suffix}"
    number = 1
    while target.exists():
        number += 1
        target = target.with_name(f"{name}.{number}{suffix}")
    return target


def _reference(name: str, medium: Path) -> str:
    path = os.path.abspath(medium)
    if path != path.encode(errors="replace").decode():
        message = f"got a name that is no UTF-8: {path!a}"
        raise f.bad_input("BUILD-MEDIA-NAME", name, message, "--media link")
    return path


def _bring(medium: Path | bytes, target: Path, mode: str) -> None:
    if isinstance(medium, bytes):
        target.write_bytes(medium)
    elif mode == "copy":
        shutil.copyfile(medium, target)
    else:
        _link(medium, target)


def _link(medium: Path, target: Path) -> None:
    """A hard link: unlike a symbolic one it stays valid where only the dataset folder is
    mounted."""
    try:
        os.link(medium.resolve(), target)
    except OSError as problem:
        message = (
            f"got {problem.strerror} linking {medium}, "
            "expected one file system for source and output"
        )
        raise f.bad_input("BUILD-LINK", target.name, message, "--media copy") from None


def _llava(name: str, item: Item, media: list[tuple[str, Placed]]) -> dict:
    record: dict = {"id": name}
    for kind in SUFFIX:
        of_kind = [placed for medium, placed in media if medium == kind]
        if len(of_kind) == 1:
            record[kind] = of_kind[0].name
        elif of_kind:
            record[f"{kind}s"] = [placed.whole for placed in of_kind]
    if item.video_fps:
        record[_rate_key(media)] = item.video_fps
    if item.tags:
        record["tags"] = list(item.tags)
    record["conversations"] = _llava_turns(item, [kind for kind, _ in media])
    return record


def _rate_key(media: list[tuple[str, Placed]]) -> str:
    """What qwen-vl-utils calls the rate of pictures, and NVIDIA's loaders that of a clip."""
    return "sample_fps" if any(placed.are_pictures for _, placed in media) else "video_fps"


def _llava_turns(item: Item, kinds: list[str]) -> list[dict]:
    """The turns, with one tag per medium before the first question and the reasoning before the
    last answer."""
    turns = [{"from": SPEAKERS[turn.role], "value": turn.text} for turn in item.turns]
    tags = [f"<{kind}>\n" for kind in kinds]
    first = next(turn for turn in turns if turn["from"] == "human")
    first["value"] = "".join(tags) + first["value"]
    if item.reasoning:
        turns[-1]["value"] = THOUGHT.format(*_apart(item))
    return turns


def _apart(item: Item) -> tuple[str, str]:
    """(reasoning, answer) of an item whose answer may begin with its reasoning, even when it stands
    beside it, too."""
    thought, answer = thought_apart(item.turns[-1].text)
    return item.reasoning or thought, answer


def _daft(name: str, item: Item, media: list[tuple[str, Placed]]) -> dict:
    if len(item.turns) != 2:
        message = "got a system prompt or several turns, expected a question and an answer"
        raise f.bad_input("BUILD-FORMAT", name, message, "--format llava")
    kind, path = _only_medium(name, media)
    reasoning, answer = _apart(item)
    record = {
        "id": name,
        f"{kind}_id": path,
        "question": item.turns[0].text,
        "answer": answer,
    }
    if reasoning:
        record["reasoning"] = reasoning
    if item.video_fps:
        record[_rate_key(media)] = item.video_fps
    return record


def _only_medium(name: str, media: list[tuple[str, Placed]]) -> tuple[str, str]:
    """(kind, name of its file or folder). Raises Failure for anything but one of these."""
    if len(media) != 1 or isinstance(media[0][1].name, list):
        message = "got several media or a list of pictures, expected one file or folder"
        raise f.bad_input("BUILD-FORMAT", name, message, "--format llava")
    ((kind, placed),) = media
    return kind, placed.name


def _write_conversations(records: list, folder: Path) -> None:
    """cosmos-reason-v1.0: meta.json, and one conversation file per record under text/."""
    samples = []
    for name, item, media in records:
        kind, path = _only_medium(name, media)
        document = {
            "version": COSMOS_REASON,
            "metadata": {"type": "conversation"},
            "conversations": _conversation(item, kind),
        }
        write_json(folder / "text" / f"{name}.json", document)
        sample = {"id": name, "conversation": f"text/{name}.json", "media": path}
        if item.video_fps and media[0][1].are_pictures:
            sample["sample_fps"] = item.video_fps
        samples.append(sample)
    write_json(
        folder / "meta.json",
        {"version": COSMOS_REASON, "metadata": {"type": "meta"}, "samples": samples},
    )


def _conversation(item: Item, kind: str) -> list[dict]:
    """The turns in content parts; the medium stands before the first user turn's text."""
    reasoning, answer = _apart(item)
    last = item.turns[-1]._replace(text=answer)
    waiting = [{"type": kind, kind: f"{kind}_0"}]
    turns = []
    for turn in (*item.turns[:-1], last):
        content = [{"type": "text", "text": turn.text}]
        if turn.role == "user":
            content = waiting + content
            waiting = []
        turns.append({"role": turn.role, "content": content})
    if reasoning:
        turns[-1]["reasoning_content"] = [{"type": "text", "text": reasoning}]
    return turns
