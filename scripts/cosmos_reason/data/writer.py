"""Items written as a dataset: split by source clip, stratified by answer, with media beside the
annotations."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cosmos_reason.base import findings as f
from cosmos_reason.base.files import only_run, read_json, whole_folder, write_json, write_text
from cosmos_reason.base.fix import Fix
from cosmos_reason.data import overlap, thoughts
from cosmos_reason.data.annotations import locate
from cosmos_reason.data.held_out import balance, shortage
from cosmos_reason.data.items import Item
from cosmos_reason.data.mapping import FILE
from cosmos_reason.data.source_files import MARKER, Frames, Held, Medium, files_of
from cosmos_reason.data.unopened import Unopened
from cosmos_reason.media.files import content, frame_rate
from cosmos_reason.spec.prompts import THOUGHT

DAFT, COSMOS_REASON = "tao-vl-reason-v1.0", "cosmos-reason-v1.0"
FORMATS = ("llava", DAFT, COSMOS_REASON)
MEDIA_MODES = ("link", "copy", "reference")
SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}
SUFFIX = {"video": ".mp4", "image": ".png"}
LONGEST_ID = 120
LARGER_SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
SPLITS_BY = ("clip", "group", "time", "column", "source")
MOST_HELD_OUT = 0.5  # of the records, unless the user asks for more
SHARES = (0.1, 0.2, 0.25, 0.34, 0.5)  # to propose, best first


@dataclass(frozen=True)
class Plan:
    """How to write: share of clips held out, records kept (0: all), seed, media mode, format,
    license of the data, whether records whose medium does not open are left out; what a split is
    made by, the seconds between two parts of a recording on either side of a split by time, and
    how many folds there are (0: one split)."""

    eval_fraction: float = 0.0
    subset: int = 0
    seed: int = 0
    media: str = "link"
    format: str = "llava"
    license: str = "unknown"
    skip_missing: bool = False
    split_by: str = "clip"
    margin: float = overlap.NEAR
    folds: int = 0


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


def planned(
    items: Sequence[Item], plan: Plan
) -> tuple[dict[str, dict[str, Item]], list[f.Finding]]:
    """The items of each split by the ids they will have, and what is said of those that are in
    none. Raises Failure for a share, or a number of folds, that splits nothing."""
    kept = _subset(dict(zip(_ids(items), items, strict=True)), plan)
    splits = of_source(kept) or (folds(kept, plan) if plan.folds else split(kept, plan))
    told = []
    in_one = {name for ids in splits.values() for name in ids}
    between = [name for name in kept if name not in in_one]
    if between:
        message = (
            f"left out {len(between)} of {len(kept)} records, whose times lie less than "
            f"{plan.margin:g} s before those that are held out (--margin)"
        )
        data = {"record_ids": between[: f.MAX_RECORD_IDS], "count": len(between)}
        told.append(f.info("BUILD-SPLIT-MARGIN", "--split-by", message, **data))
    return {name: {item: kept[item] for item in ids} for name, ids in splits.items()}, told


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


def of_source(items: dict[str, Item]) -> dict[str, list[str]]:
    """Ids per split that the source names; {} where it names none."""
    splits = {name: [] for name in ("train", "eval", "test")}
    for name, item in items.items():
        if item.split:
            splits[item.split].append(name)
    return {name: ids for name, ids in splits.items() if ids}


def _refuse_shared(root: Path, counts: dict[str, int]) -> None:
    """Raise Failure where held-out records show what training shows. A share of the clips is held
    out with all their parts and copies; the splits of a source may not be."""
    if "train" not in counts:  # folds are made of whole clips and groups
        return
    train, *others = (str(locate(root / name)) for name in counts)
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


def split(items: dict[str, Item], plan: Plan) -> dict[str, list[str]]:
    """Ids per split in their order. By clip, records of one clip or group stay together and the
    held-out clips have every answer's share; by time, the last of each recording are held out.
    Raises Failure where that leaves nothing on one side."""
    if not plan.eval_fraction:
        return {"train": list(items)}
    train, held_out = _sides(items, plan)
    share = len(held_out) / max(len(items), 1)
    wrong = ""
    if not train or not held_out:
        wrong = "expected one or more on either side"
    elif share > MOST_HELD_OUT >= plan.eval_fraction:
        wrong = (
            f"which would hold out {share:.0%} of the records, as those of one clip or recording "
            "stay together: more than half is held out only by a share above 0.5"
        )
    if wrong:
        clips = len(set(_sources(items).values()))
        message = f"got {clips} different clips and the share {plan.eval_fraction:g}, {wrong}"
        fits = next((one for one in SHARES if _fits(items, plan, one)), None)
        fix = Fix(flags={"--eval-fraction": fits}) if fits else ""
        raise f.bad_input("BUILD-SPLIT", "--eval-fraction", message, fix)
    return {"train": train, "eval": held_out}


def _sides(items: dict[str, Item], plan: Plan) -> tuple[list[str], list[str]]:
    """The ids to train on and those that are held out."""
    if plan.split_by == "time":
        return _by_time(items, plan)
    source = _sources(items)
    held_out = _held_out(_strata(items, source), plan.eval_fraction, plan.seed)
    train = [name for name in items if source[name] not in held_out]
    return train, [name for name in items if source[name] in held_out]


def _by_time(items: dict[str, Item], plan: Plan) -> tuple[list[str], list[str]]:
    """The ids of parts of recordings: the last of each recording are held out, and those that end
    less than the margin before them are on neither side. Raises Failure for a record that is no
    part of one recording."""
    recordings: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    whole = []
    source = _sources(items)
    for name, item in items.items():
        spans = [getattr(medium, "span", None) for _, medium in item.media]
        if len(spans) == 1 and spans[0]:
            recordings[source[name]].append((*spans[0], name))
        else:
            whole.append(name)
    if whole:
        message = (
            f"got {len(whole)} records that are no part of one recording, expected times of each "
            "(--column start=NAME --column end=NAME)"
        )
        data = {"record_ids": whole[: f.MAX_RECORD_IDS], "count": len(whole)}
        raise f.Failure([f.error("BUILD-SPLIT", "--split-by", message, **data)], f.EXIT_BAD_INPUT)
    train, held_out = set(), set()
    for parts in recordings.values():
        parts.sort()
        first = len(parts) - round(len(parts) * plan.eval_fraction)
        if first == len(parts):
            train |= {name for *_, name in parts}
            continue
        begin = parts[first][0]
        # Parts that begin together with the first held-out one are held out with it.
        held_out |= {name for start, _, name in parts if start >= begin}
        train |= {
            name for start, end, name in parts if start < begin and end <= begin - plan.margin
        }
    return [name for name in items if name in train], [name for name in items if name in held_out]


def folds(items: dict[str, Item], plan: Plan) -> dict[str, list[str]]:
    """Ids of fold-1/train, fold-1/eval, ...: each record is held out once, with its clip and group,
    and every fold has every answer's share. Raises Failure for more folds than clips."""
    source = _sources(items)
    fold_of: dict[str, int] = {}
    for answer, sources in sorted(_strata(items, source).items()):
        for one in random.Random(f"{plan.seed} {answer}").sample(sorted(sources), len(sources)):
            fold_of[one] = len(fold_of) % plan.folds  # one stratum goes on where another ends
    if len(fold_of) < plan.folds:
        message = f"got {len(fold_of)} different clips or groups for {plan.folds} folds"
        fix = Fix(command=f"replace --folds {plan.folds} with --folds {len(fold_of)}")
        raise f.bad_input("BUILD-SPLIT", "--folds", message, fix if len(fold_of) > 1 else "")
    splits = {}
    for number in range(plan.folds):
        held_out = [name for name in items if fold_of[source[name]] == number]
        train = [name for name in items if fold_of[source[name]] != number]
        splits |= {f"fold-{number + 1}/train": train, f"fold-{number + 1}/eval": held_out}
    return splits


def _fits(items: dict[str, Item], plan: Plan, share: float) -> bool:
    """Whether a share leaves records on either side, at most half of them held out."""
    train, held_out = _sides(items, replace(plan, eval_fraction=share))
    return bool(train) and 0 < len(held_out) <= MOST_HELD_OUT * len(items)


def eval_shortage(items: Sequence[Item], plan: Plan) -> tuple[str, float]:
    """(what the held-out data of a plan have too little of, a share of the clips that has enough);
    "" when they have enough, 0 when no share has."""
    kept = _subset(dict(zip(_ids(items), items, strict=True)), plan)
    short = _shortage(kept, plan)
    enough = 0.0
    if short:
        larger = [share for share in LARGER_SHARES if share > plan.eval_fraction]
        fitting = (
            share
            for share in larger
            if _fits(kept, plan, share) and not _shortage(kept, replace(plan, eval_fraction=share))
        )
        enough = next(fitting, 0.0)
    return short, enough


def _shortage(items: dict[str, Item], plan: Plan) -> str:
    """What the items that a share holds out have too little of."""
    held_out = balance(items[name].turns for name in split(items, plan)["eval"])
    everything = balance(item.turns for item in items.values())
    return shortage(held_out, everything, sum(map(Counter.total, held_out.values())))


def fraction(items: Sequence[Item], plan: Plan) -> float:
    """A share of the clips that can be held out, near a tenth; 0 when there is none."""
    kept = _subset(dict(zip(_ids(items), items, strict=True)), plan)
    return next((share for share in SHARES if _fits(kept, plan, share)), 0)


def _strata(items: dict[str, Item], source: dict[str, str]) -> dict[str, list[str]]:
    """The clips by the answer most of their records have."""
    answers: dict[str, Counter] = defaultdict(Counter)
    for name, item in items.items():
        answers[source[name]][item.turns[-1].text] += 1
    strata: dict[str, list[str]] = defaultdict(list)
    for group, counted in answers.items():
        strata[counted.most_common(1)[0][0]].append(group)
    return strata


def _held_out(strata: dict[str, list[str]], share: float, seed: int) -> set[str]:
    held_out: set[str] = set()
    due = 0.0
    for answer in sorted(strata):
        sources = sorted(strata[answer])
        random.Random(f"{seed} {answer}").shuffle(sources)
        due += len(sources) * share
        take = round(due)
        due -= take
        held_out |= set(sources[:take])
    return held_out


def _sources(items: dict[str, Item]) -> dict[str, str]:
    """What each item was filmed from: the same text for items that share a medium or a copy of
    it, be it through others. Items without media belong together when they ask the same."""
    above: dict[str, str] = {}

    def top(key: str) -> str:
        above.setdefault(key, key)
        while above[key] != key:
            above[key] = above[above[key]]
            key = above[key]
        return key

    first = {}
    copies = _copies(items)
    for name, item in items.items():
        files = [_whole(file) for _, medium in item.media for file in files_of(medium)]
        keys = [file.key if isinstance(file, Held) else os.path.realpath(file) for file in files]
        keys = [copies.get(key, key) for key in keys]
        keys = keys or [" ".join(turn.text for turn in item.turns[:-1])]
        first[name], *others = [*keys, *item.groups]
        for other in others:
            above[top(other)] = top(first[name])
    return {name: top(key) for name, key in first.items()}


def _whole(file: Path | Held) -> Path | Held:
    """What a part was cut from: its other parts show the same scene."""
    is_part = isinstance(file, Held) and file.whole is not None
    return file.whole if is_part else file


def _copies(items: dict[str, Item]) -> dict[str, str]:
    """{path: what is the same for every copy} of the clips and images whose size another has.
    Pictures of videos are none: one may be black in all of them."""
    by_size = defaultdict(set)
    for item in items.values():
        for _, medium in item.media:
            if isinstance(medium, Path) and medium.is_file():
                by_size[medium.stat().st_size].add(os.path.realpath(medium))
    alike = [path for paths in by_size.values() if len(paths) > 1 for path in paths]
    return {path: _content(path, os.stat(path).st_mtime_ns) for path in alike}


@functools.cache
def _content(path: str, _changed: int) -> str:
    """Kept, as a dataset is split several times to find a share that holds enough."""
    return content(Path(path))


def _subset(items: dict[str, Item], plan: Plan) -> dict[str, Item]:
    if not plan.subset or plan.subset >= len(items):
        return items
    chosen = set(random.Random(f"{plan.seed} subset").sample(sorted(items), plan.subset))
    return {name: item for name, item in items.items() if name in chosen}


def _ids(items: Sequence[Item]) -> list[str]:
    """Unique names fit for files, from the items' own names; the second of a name is `<name>-2`."""
    taken: dict[str, int] = {}
    for item in items:
        plain = re.sub(r"[^\w.+=-]+", "_", item.name, flags=re.ASCII).strip("._-")
        plain = plain[:LONGEST_ID] or "record"
        name = plain
        while name in taken:
            taken[plain] += 1
            name = f"{plain}-{taken[plain]}"
        taken[name] = 1
    return list(taken)


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
        write_json(folder / overlap.CUTS, cuts)


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
    thought, answer = thoughts.apart(item.turns[-1].text)
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
