"""Items written as a dataset: split by source clip, stratified by answer, with media beside the annotations."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmos_reason import findings as f
from cosmos_reason.dataset_sources import Item
from cosmos_reason.media import check_kind
from cosmos_reason.source_files import MARKER, Held
from cosmos_reason.storage import only_run, read_json, whole_folder, write_json

DAFT, COSMOS_REASON = "tao-vl-reason-v1.0", "cosmos-reason-v1.0"
FORMATS = ("llava", DAFT, COSMOS_REASON)
MEDIA_MODES = ("link", "copy", "reference")
SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}
SUFFIX = {"video": ".mp4", "image": ".png"}
LONGEST_ID = 120
SHARES = (0.1, 0.2, 0.25, 0.34, 0.5)  # to propose, best first
THOUGHT = re.compile(r"\s*<think>\s*(.*?)\s*</think>\s*(\S.*)", re.S)


@dataclass(frozen=True)
class Plan:
    """How to write: share of clips held out, records kept (0: all), seed, media mode, format, license of the data."""

    eval_fraction: float = 0.0
    subset: int = 0
    seed: int = 0
    media: str = "link"
    format: str = "llava"
    license: str = "unknown"


def write(items: Sequence[Item], folder: Path, plan: Plan) -> dict[str, int]:
    """Write `folder` (train/ and, when something is held out, eval/) whole or not at all; records per split.

    Raises Failure when a medium cannot be linked or is missing.
    """
    named = dict(zip(_ids(items), items, strict=True))
    kept = _subset(named, plan)
    splits = split(kept, plan.eval_fraction, plan.seed)
    folder = folder.resolve()  # a link to it stays
    with only_run(folder), whole_folder(folder) as root:
        for name, ids in splits.items():
            _write_split({item: kept[item] for item in ids}, root / name, plan)
        write_json(root / MARKER, {"schema_version": 1, "names": _names(root)} | asdict(plan))
    return {name: len(ids) for name, ids in splits.items()}


def is_as_written(folder: Path) -> bool:
    """Whether `write` made it, and no file has been put there or taken away since."""
    marker = read_json(folder / MARKER) if (folder / MARKER).is_file() else None
    return isinstance(marker, dict) and marker.get("names") == _names(folder)


def _names(folder: Path) -> str:
    """A digest of the names of all files and folders."""
    names = sorted(os.fsencode(path.relative_to(folder)) for path in folder.rglob("*"))
    return hashlib.sha256(b"\0".join(name for name in names if name != MARKER.encode())).hexdigest()


def split(items: dict[str, Item], eval_fraction: float, seed: int) -> dict[str, list[str]]:
    """Ids per split in their order. Records of one clip stay together; the held-out clips have every answer's share."""
    source = _sources(items)
    strata = _strata(items, source)
    held_out = _held_out(strata, eval_fraction, seed)
    splits = {"train": [name for name in items if source[name] not in held_out]}
    if eval_fraction:
        splits["eval"] = [name for name in items if source[name] in held_out]
    if not all(splits.values()):
        clips = len(set(source.values()))
        message = f"got {clips} clips and the share {eval_fraction:g}, expected one or more on either side"
        fix = f"--eval-fraction {_fraction(strata, seed):g}"
        raise f.bad_input("BUILD-SPLIT", "--eval-fraction", message, fix)
    return splits


def fraction(items: Sequence[Item], plan: Plan) -> float:
    """A share of the clips that can be held out, near a tenth; 0 when there is one clip."""
    kept = _subset(dict(zip(_ids(items), items, strict=True)), plan)
    return _fraction(_strata(kept, _sources(kept)), plan.seed)


def _fraction(strata: dict[str, list[str]], seed: int) -> float:
    clips = sum(map(len, strata.values()))
    shares = (share for share in SHARES if 0 < len(_held_out(strata, share, seed)) < clips)
    return next(shares, 0)


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
    """What each item was filmed from: the same text for items that share a medium, be it through others. Items without
    media belong together when they ask the same."""
    above: dict[str, str] = {}

    def top(key: str) -> str:
        while (higher := above.setdefault(key, key)) != key:
            above[key] = key = above[higher]
        return key

    first = {}
    for name, item in items.items():
        keys = [medium.key if isinstance(medium, Held) else os.path.realpath(medium) for _, medium in item.media]
        first[name], *others = keys or [" ".join(turn.text for turn in item.turns[:-1])]
        for other in others:
            above[top(other)] = top(first[name])
    return {name: top(key) for name, key in first.items()}


def _subset(items: dict[str, Item], plan: Plan) -> dict[str, Item]:
    if not plan.subset or plan.subset >= len(items):
        return items
    chosen = set(random.Random(f"{plan.seed} subset").sample(sorted(items), plan.subset))
    return {name: item for name, item in items.items() if name in chosen}


def _ids(items: Sequence[Item]) -> list[str]:
    """Unique names fit for files, from the items' own names; the second of a name is `<name>-2`."""
    taken: dict[str, int] = {}
    for item in items:
        name = plain = re.sub(r"[^\w.+=-]+", "_", item.name, flags=re.ASCII).strip("._")[:LONGEST_ID] or "record"
        while name in taken:
            taken[plain] += 1
            name = f"{plain}-{taken[plain]}"
        taken[name] = 1
    return list(taken)


def _write_split(items: dict[str, Item], folder: Path, plan: Plan) -> None:
    folder.mkdir(parents=True)
    placed: dict[Path | Held, str] = {}
    records = []
    for name, item in items.items():
        media = [(kind, _place(name, kind, medium, folder, plan.media, placed)) for kind, medium in item.media]
        records.append((name, item, media))
    if plan.format == "llava":
        write_json(folder / "annotations.json", [_llava(*record) for record in records])
    elif plan.format == DAFT:
        metadata = {"type": "annotation", "license": plan.license}
        document = {"format": plan.format, "metadata": metadata, "items": [_daft(*record) for record in records]}
        write_json(folder / "annotations.json", document)
    else:
        _write_conversations(records, folder)


def _place(name: str, kind: str, source: Path | Held, folder: Path, mode: str, placed: dict) -> str:
    """Bring one medium into the split; the name the annotations use for it."""
    if source in placed:
        return placed[source]
    medium = source.load() if isinstance(source, Held) else source
    if isinstance(medium, Path):
        if not os.path.isfile(medium):
            message = f"got no file {medium}, expected the medium of this record"
            fix = "add the clips to a local copy of the source, build that"
            raise f.bad_input("BUILD-MEDIA-MISSING", name, message, fix)
        check_kind(medium)
        if mode == "reference":
            path = os.path.abspath(medium)
            if path != path.encode(errors="replace").decode():
                raise f.bad_input("BUILD-MEDIA-NAME", name, f"got a name that is no UTF-8: {path!a}", "--media link")
            return path
    suffix = source.suffix or SUFFIX[kind]
    target, number = folder / "media" / f"{name}{suffix}", 1
    target.parent.mkdir(exist_ok=True)
    while target.exists():
        number += 1
        target = target.with_name(f"{name}.{number}{suffix}")
    if isinstance(medium, bytes):
        target.write_bytes(medium)
        check_kind(target)
    elif mode == "copy":
        shutil.copyfile(medium, target)
    else:
        _link(medium, target)
    placed[source] = f"media/{target.name}"
    return placed[source]


def _link(medium: Path, target: Path) -> None:
    """A hard link: unlike a symbolic one it stays valid where only the dataset folder is mounted."""
    try:
        os.link(medium.resolve(), target)
    except OSError as problem:
        message = f"got {problem.strerror} linking {medium}, expected one file system for source and output"
        raise f.bad_input("BUILD-LINK", target.name, message, "--media copy") from None


def _llava(name: str, item: Item, media: list[tuple[str, str]]) -> dict:
    record: dict = {"id": name}
    for kind in SUFFIX:
        paths = [path for medium, path in media if medium == kind]
        record |= {kind: paths[0]} if len(paths) == 1 else {f"{kind}s": paths} if paths else {}
    if item.video_fps:
        record["video_fps"] = item.video_fps
    if item.tags:
        record["tags"] = list(item.tags)
    turns = [{"from": SPEAKERS[turn.role], "value": turn.text} for turn in item.turns]
    first = next(turn for turn in turns if turn["from"] == "human")
    first["value"] = "".join(f"<{kind}>\n" for kind, _ in media) + first["value"]
    if item.reasoning:
        turns[-1]["value"] = "<think>\n{}\n</think>\n\n{}".format(*_apart(item))
    return {**record, "conversations": turns}


def _apart(item: Item) -> tuple[str, str]:
    """(reasoning, answer) of an item whose answer may begin with its reasoning, even when it stands beside it, too."""
    answer = item.turns[-1].text
    thought = THOUGHT.fullmatch(answer)
    return (item.reasoning or thought[1], thought[2]) if thought else (item.reasoning, answer)


def _daft(name: str, item: Item, media: list[tuple[str, str]]) -> dict:
    if len(item.turns) != 2 or len(media) != 1:
        message = "got a system prompt, several turns or several media, expected a question, an answer and a medium"
        raise f.bad_input("BUILD-FORMAT", name, message, "--format llava")
    reasoning, answer = _apart(item)
    record = {"id": name, f"{media[0][0]}_id": media[0][1], "question": item.turns[0].text, "answer": answer}
    return record | ({"reasoning": reasoning} if reasoning else {})


def _write_conversations(records: list, folder: Path) -> None:
    """cosmos-reason-v1.0: meta.json, and one conversation file per record under text/."""
    samples = []
    for name, item, media in records:
        if len(media) != 1:
            raise f.bad_input("BUILD-FORMAT", name, "got several media, expected one", "--format llava")
        turns, waiting = [], [{"type": media[0][0], media[0][0]: f"{media[0][0]}_0"}]
        reasoning, answer = _apart(item)
        for turn in (*item.turns[:-1], item.turns[-1]._replace(text=answer)):
            part = [{"type": "text", "text": turn.text}]
            turns.append({"role": turn.role, "content": waiting + part if turn.role == "user" else part})
            waiting = [] if turn.role == "user" else waiting
        if reasoning:
            turns[-1]["reasoning_content"] = [{"type": "text", "text": reasoning}]
        document = {"version": COSMOS_REASON, "metadata": {"type": "conversation"}, "conversations": turns}
        write_json(folder / "text" / f"{name}.json", document)
        samples.append({"id": name, "conversation": f"text/{name}.json", "media": media[0][1]})
    write_json(folder / "meta.json", {"version": COSMOS_REASON, "metadata": {"type": "meta"}, "samples": samples})
