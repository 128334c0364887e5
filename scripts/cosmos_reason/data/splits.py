"""Which records are trained and which are held out: splits that a source names itself stay; others
are made by clip, by group, by time or as folds."""

from __future__ import annotations

import functools
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cosmos_reason.base import findings as f
from cosmos_reason.base.fix import Fix
from cosmos_reason.base.texts import some
from cosmos_reason.data.column_words import meaning
from cosmos_reason.data.items import Item, Row
from cosmos_reason.data.roles import cell_text
from cosmos_reason.data.source_files import Folder, Frames, Held
from cosmos_reason.data.split_names import (
    BESIDE_TRAIN,
    EVAL,
    HELD_OUT,
    NAMES,
    NEAR,
    TEST,
    TRAIN,
    exact,
    of_folders,
)
from cosmos_reason.data.turns import alike
from cosmos_reason.media.files import content, names_medium

_content = functools.cache(content)  # a dataset is split several times to find a share that does
LONGEST_ID = 120
SPLITS_BY = ("clip", "group", "time", "column", "source")
MOST_HELD_OUT = 0.5  # of the records, unless the user asks for more
SHARES = (0.1, 0.2, 0.25, 0.34, 0.5)  # to propose, best first
TOGETHER = "they stay on one side"
LARGER_SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)


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
    margin: float = NEAR
    folds: int = 0


# -- named by the source -------------------------------------------------------------------------


def of_column(
    rows: list[Row],
    column: str,
    meanings: dict[str, dict[str, str]],
    problems: list[f.Finding],
) -> list[Row]:
    """Return the rows with what a column calls the split of each; `meanings`: what its values stand
    for, by column. A column that nobody named and that holds other words is left alone; one of some
    words of NAMES and others joins the `problems`."""
    names = (key for row in rows for key in row.values)
    name = column or next((key for key in names if key.lower() == "split"), "")
    if not name:
        return rows
    means = {alike(old): new for old, new in meanings.get(name, {}).items()}
    cells = [cell_text(row.values.get(name)) for row in rows]
    texts = [means.get(alike(text), text) for text in cells]
    values = [exact(text) or text.lower() for text in texts]
    others = sorted(set(values) - NAMES.keys())
    if not others:
        named = zip(rows, values, strict=True)
        return [row._replace(split=value) if value else row for row, value in named]
    if column or len(others) < len(set(values)):
        shown = ", ".join(map(repr, others[:5]))
        message = (
            f"got {shown} as split, expected one of {', '.join(NAMES)} in every row (--values "
            f"'{name}: OLD=NEW' says which one a word means)"
        )
        problems.append(f.error("BUILD-SPLIT-NAME", name, message, values=others[:20]))
    return rows


def of_document(header: dict, called: str, path: Path, records: Iterable[set[str]]) -> str:
    """Return what the split of the records of a JSON document is called: by a word in its `header`,
    which stands around them, else `called`. `records`: the clips of each, its id or, without one,
    its place. Raises Failure where a header lists some of them, or any below the name of a split,
    and where it says splits of parts: splits of single records are read in the records alone."""
    own = ""
    below = [((str(name),), value, False) for name, value in header.items()]
    known: dict[str, set[int]] = {}  # name -> places of the records that it may mean
    total = 0
    compared: set[frozenset[str]] = set()
    for way, value, is_of_part in below:  # which grows
        of_split = [key for key in way if exact(key) or meaning(key) == "a split"]
        is_unclear = False
        if isinstance(value, str):
            word = exact(value) if of_split and not any(map(exact, way)) else ""
            if word and of_split == [way[-1]] and not is_of_part:
                is_unclear = _is_trained(word) != _is_trained(own or word)
                own = own or word  # {"split": "test"}, {"info": {"split": "test"}}
            else:  # {"videos": [{"file": "a.mp4", "split": "test"}]}
                is_unclear = word in HELD_OUT
        elif isinstance(value, dict | list):
            are_clips = isinstance(value, dict) and any(map(names_medium, value))
            if isinstance(value, dict):
                is_of_part = is_of_part or are_clips
                below += [((*way, str(key)), said, is_of_part) for key, said in value.items()]
                if not of_split and not are_clips:
                    continue
            for one in value if isinstance(value, list) else ():
                if isinstance(one, dict):  # images of COCO
                    below += [((*way, str(key)), said, True) for key, said in one.items()]
                elif isinstance(one, list):
                    below.append((way, one, is_of_part))
            named = {os.path.basename(str(one)) for one in value if isinstance(one, str | int)}
            if not exact(way[-1]):  # else a number may be a size
                named = {one for one in named if not one.isdigit()}
            if all(map(exact, named)):  # {"splits": ["train", "test"]}
                continue
            if not total:
                for place, names in enumerate(records):
                    total += 1
                    for name in map(os.path.basename, names):
                        stem = os.path.splitext(name)[0] if names_medium(name) else name
                        known.setdefault(name, set()).add(place)
                        known.setdefault(stem, set()).add(place)
            listed = frozenset(named & known.keys())
            if listed and listed not in compared:
                compared.add(listed)
                of_all = len(set().union(*(known[name] for name in listed))) == total
                is_unclear = bool(of_split) or not of_all
        if is_unclear:
            message = (
                f"got {'.'.join(way)} beside the records, which may say the split of some, or "
                'which of them count: write "split": "train" or "test" into each record (or '
                "--convert FILE.py, which adds it to each row), and remove it"
            )
            raise f.bad_input("BUILD-SPLIT-NAME", path, message)
    if called and own and _is_trained(own) != _is_trained(called):
        message = f"got the split {own!r} in a file that is called {called!r}: mend one of them"
        raise f.bad_input("BUILD-SPLIT-NAME", path, message)
    return own or called


def _is_trained(word: str) -> bool:
    return NAMES[word] == TRAIN


def settle(
    items: Sequence[Item], files: Folder, problems: list[f.Finding]
) -> tuple[list[Item], list[f.Finding]]:
    """Return the items with the folder that each becomes part of ("" where the source holds out
    nothing), and what is said of it. Clips below train/ and test/ name the split of items without
    one; an item to train on whose clip lies in a held-out folder joins the `problems`."""
    root = files.repo or os.path.abspath(files.root)

    known: dict[str, str] = {}  # folder of clips -> what it, or one around it, calls their split
    by_media = []  # the same of each item
    for item in items:
        folders = [os.path.dirname(getattr(file, "key", str(file))) for file in item.files]
        for folder in folders:
            if folder not in known:
                path = folder if files.repo else os.path.abspath(folder)
                is_below = path.startswith(f"{root}/")
                known[folder] = of_folders(f"{path[len(root) + 1 :]}/") if is_below else ""
        called = [known[folder] for folder in folders if known[folder]]
        held_out = [name for name in called if name in HELD_OUT]
        by_media.append(next(iter(held_out or called), ""))
    if all(NAMES.get(name) != TRAIN for name in by_media):  # folders, but no splits
        by_media = [""] * len(items)
    names = [item.split or name for item, name in zip(items, by_media, strict=True)]
    if all(NAMES.get(name) != TRAIN for name in names):
        names = ["" if name == BESIDE_TRAIN else name for name in names]  # it may be a label
    wrong = []
    for item, name, beside in zip(items, names, by_media, strict=True):
        if beside in HELD_OUT and name not in HELD_OUT:
            wrong.append(item.name)
    if wrong:
        message = f"got {len(wrong)} records to train on whose clips lie in a held-out folder"
        problems.append(f.error("BUILD-SPLIT-NAME", files.root, message, **f.counted(wrong)))
    counts = Counter(names)
    if HELD_OUT.isdisjoint(counts):
        return [item._replace(split="") for item in items], []
    becomes = {name: NAMES.get(name, TRAIN) for name in counts}
    if EVAL not in becomes.values():  # test becomes eval/ where there is no validation
        becomes = {name: EVAL if to == TEST else to for name, to in becomes.items()}
    told = [
        f"{name or 'without one'} ({count}) -> {becomes[name]}/" for name, count in counts.items()
    ]
    message = f"got a source that names its splits, which stay as they are: {', '.join(told)}"
    if TRAIN not in becomes.values():
        message += "; nothing is left to train on"
    found = [f.info("BUILD-SPLIT-NAMED", files.root, message, splits=becomes)]
    return [
        one._replace(split=becomes[name]) for one, name in zip(items, names, strict=True)
    ], found


# -- made here -----------------------------------------------------------------------------------


def planned(
    items: Sequence[Item], plan: Plan
) -> tuple[dict[str, dict[str, Item]], list[f.Finding]]:
    """Return the items of each split by the ids they will have, and what is said of those that are
    in none. Raises Failure for a share, or a number of folds, that splits nothing."""
    kept = named(items, plan)
    splits: dict[str, list[str]] = {name: [] for name in ("train", "eval", "test")}
    for name, item in kept.items():
        if item.split:
            splits[item.split].append(name)
    splits = {name: ids for name, ids in splits.items() if ids}
    told = []
    if not splits and not (plan.folds or plan.eval_fraction):
        splits = {"train": list(kept)}
    elif not splits:
        source, apart = _with_near_copies(kept, plan, told)
        splits = folds(kept, plan, source) if plan.folds else split(kept, plan, source)
        side = {source[name]: split for split, ids in splits.items() for name in ids}
        both = [pair for pair, (one, other) in apart.items() if side[one] != side[other]]
        if both or (plan.folds and apart):
            message = f"{_look_alike(both or [*apart])}; they stand on both sides, since together "
            message += "they are too many for one"
            told.append(f.warning("BUILD-ALIKE", "--split-by", message))
        elif apart:
            told.append(f.info("BUILD-ALIKE", "--split-by", f"{_look_alike([*apart])}; {TOGETHER}"))
    large = [
        f"{name} ({len(ids)} of {len(kept)} records)"
        for name, ids in splits.items()
        if plan.folds and name.endswith("/eval") and len(ids) > MOST_HELD_OUT * len(kept)
    ]
    if large:
        message = (
            f"got {', '.join(large)}: more than half is held out there, as the records of one clip "
            "or group stay together; its score says little of a training on all"
        )
        told.append(f.warning("BUILD-SPLIT", "--folds", message))
    in_one = {name for ids in splits.values() for name in ids}
    between = [name for name in kept if name not in in_one]
    if between:
        message = (
            f"left out {len(between)} of {len(kept)} records, whose times lie less than "
            f"{plan.margin:g} s before those that are held out (--margin)"
        )
        told.append(f.info("BUILD-SPLIT-MARGIN", "--split-by", message, **f.counted(between)))
    return {name: {item: kept[item] for item in ids} for name, ids in splits.items()}, told


def named(items: Sequence[Item], plan: Plan) -> dict[str, Item]:
    """Return the items that are kept by unique names fit for files, made of their own; the second
    of a name is `<name>-2`."""
    taken: dict[str, int] = {}
    for item in items:
        plain = re.sub(r"[^\w.+=-]+", "_", item.name, flags=re.ASCII).strip("._-")
        plain = plain[:LONGEST_ID] or "record"
        name = plain
        while name in taken:
            taken[plain] += 1
            name = f"{plain}-{taken[plain]}"
        taken[name] = 1
    whole = dict(zip(taken, items, strict=True))
    if not plan.subset or plan.subset >= len(whole):
        return whole
    chosen = set(random.Random(f"{plan.seed} subset").sample(sorted(whole), plan.subset))
    return {name: item for name, item in whole.items() if name in chosen}


def split(items: dict[str, Item], plan: Plan, source: dict[str, str]) -> dict[str, list[str]]:
    """Return the ids of each split in their order. By clip, records of one `source` stay together
    and the held-out clips have every answer's share; by time, the last of each recording are held
    out. Raises Failure where that leaves nothing on one side."""
    train, held_out = _sides(items, plan, source)
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
        clips = len(set(source.values()))
        message = f"got {clips} different clips and the share {plan.eval_fraction:g}, {wrong}"
        fits = fitting(items, plan, source)
        fix = Fix(flags={"--eval-fraction": fits}) if fits else ""
        raise f.bad_input("BUILD-SPLIT", "--eval-fraction", message, fix)
    return {"train": train, "eval": held_out}


def _sides(
    items: dict[str, Item], plan: Plan, source: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Return the ids to train on and those that are held out. By time those that end less than the
    margin before them are on neither side. Raises Failure for a record that is then no part of one
    recording."""
    if plan.split_by != "time":
        # Each answer gives its share of clips; what rounding leaves is carried on to the next one,
        # or a tenth of many rare answers would hold out nothing.
        chosen: set[str] = set()
        due = 0.0
        for answer, sources in sorted(_strata(items, source).items()):
            shuffled = sorted(sources)
            random.Random(f"{plan.seed} {answer}").shuffle(shuffled)
            due += len(shuffled) * plan.eval_fraction
            take = round(due)
            due -= take
            chosen |= set(shuffled[:take])
        train = [name for name in items if source[name] not in chosen]
        return train, [name for name in items if source[name] in chosen]
    recordings: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    whole = []
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
        raise f.bad_input("BUILD-SPLIT", "--split-by", message, **f.counted(whole))
    trained, held_out = set(), set()
    for parts in recordings.values():
        parts.sort()
        first = len(parts) - round(len(parts) * plan.eval_fraction)
        # Parts that begin together with the first held-out one are held out with it.
        begin = parts[first][0] if first < len(parts) else float("inf")
        for start, end, name in parts:
            if start >= begin:
                held_out.add(name)
            elif end <= begin - plan.margin:
                trained.add(name)
    return [one for one in items if one in trained], [one for one in items if one in held_out]


def folds(items: dict[str, Item], plan: Plan, source: dict[str, str]) -> dict[str, list[str]]:
    """Return the ids of fold-1/train, fold-1/eval, ...: each record is held out once, with all of
    its `source`, and every fold has every answer's share. Raises Failure for more folds than
    clips."""
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


def _strata(items: dict[str, Item], source: dict[str, str]) -> dict[str, list[str]]:
    """Return the clips by the answer most of their records have."""
    answers: dict[str, Counter] = defaultdict(Counter)
    for name, item in items.items():
        answers[source[name]][item.turns[-1].text] += 1
    strata: dict[str, list[str]] = defaultdict(list)
    for group, counted in answers.items():
        strata[counted.most_common(1)[0][0]].append(group)
    return strata


def fitting(
    items: dict[str, Item], plan: Plan, source: dict[str, str], shares: Sequence[float] = SHARES
) -> float:
    """Return the first share that leaves records on either side, at most half of them held out; 0
    when there is none."""
    for share in shares:
        train, held_out = _sides(items, replace(plan, eval_fraction=share), source)
        if train and 0 < len(held_out) <= MOST_HELD_OUT * len(items):
            return share
    return 0


def eval_shortage(items: Sequence[Item], plan: Plan) -> tuple[str, float]:
    """Return (what the held-out data of a plan have too little of, a share of the clips that has
    enough); "" when they have enough, 0 when no share has."""
    from cosmos_reason.data.held_out import balance, shortage

    kept = named(items, plan)
    source = filmed_from(kept)
    everything = balance(item.turns for item in kept.values())
    first = ""
    for share in (plan.eval_fraction, *(one for one in LARGER_SHARES if one > plan.eval_fraction)):
        if first and not fitting(kept, plan, source, [share]):
            continue
        _, ids = _sides(kept, replace(plan, eval_fraction=share), source)
        held_out = balance(kept[name].turns for name in ids)
        short = shortage(held_out, everything, sum(map(Counter.total, held_out.values())))
        if not short:
            return first, share if first else 0.0
        first = first or short
    return first, 0.0


def filmed_from(items: dict[str, Item]) -> dict[str, str]:
    """Return what each item was filmed from: the same text for items that share a medium, a part of
    it or a copy of it, be it through others. Items without media belong together when they ask the
    same."""
    above: dict[str, str] = {}
    # Copies are clips and images of one content, which is read where two have one size. Pictures of
    # videos are none: one may be black in all of them.
    real = functools.cache(os.path.realpath)
    by_size = defaultdict(set)
    for medium in {medium for item in items.values() for _, medium in item.media}:
        if isinstance(medium, Path) and medium.is_file():
            by_size[medium.stat().st_size].add(real(medium))
    alike = [path for paths in by_size.values() if len(paths) > 1 for path in paths]
    copies = {path: _content(Path(path)) for path in alike}
    first = {}
    for name, item in items.items():
        keys = []
        for _, medium in item.media:
            for file in medium.files if isinstance(medium, Frames) else (medium,):
                whole = file.whole if isinstance(file, Held) and file.whole is not None else file
                key = whole.key if isinstance(whole, Held) else real(whole)
                keys.append(copies.get(key, key))
        keys = keys or [" ".join(turn.text for turn in item.turns[:-1])]
        first[name], *others = [*keys, *item.groups]
        for other in others:
            above[_top(above, other)] = _top(above, first[name])
    return {name: _top(above, key) for name, key in first.items()}


def _top(above: dict[str, str], key: str) -> str:
    """Return the one that stands for all that `key` was seen with, be it through others. `above`:
    what each was seen with."""
    while key in above and above[key] != key:
        above[key] = key = above.get(above[key], above[key])
    return key


def _with_near_copies(
    items: dict[str, Item], plan: Plan, told: list[f.Finding]
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return `filmed_from`, clips and still images that look alike being one where a share is held
    out, and {the names of those of a pair: what they were filmed from} of those that stay apart:
    where too little would be left on one side, as of one machine that does the same all day."""
    source = filmed_from(items)
    if plan.split_by == "time":
        return source, {}
    from cosmos_reason.data import looks

    recordings: dict[str, str] = {}  # file -> its source
    for name, item in items.items():
        for _, medium in item.media:
            whole = medium.whole if isinstance(medium, Held) and medium.whole else medium
            if isinstance(whole, Path) and names_medium(whole.name) and whole.is_file():
                recordings.setdefault(str(whole), source[name])
    if len(set(recordings.values())) < 2:
        return source, {}
    names = list(recordings)
    reports = looks.examined((number, Path(name)) for number, name in enumerate(names))
    above: dict[str, str] = {}
    pairs = {}
    for number, like in looks.alike(reports, reports).items():
        one, other = names[number], names[like]
        tops = _top(above, recordings[one]), _top(above, recordings[other])
        if tops[0] != tops[1]:
            above[tops[0]] = tops[1]
            both = f"{Path(one).name} and {Path(other).name}"
            pairs[both] = recordings[one], recordings[other]
    if not pairs:
        return source, {}
    together = {name: _top(above, one) for name, one in source.items()}
    if plan.folds:
        does_fit = len(set(together.values())) >= plan.folds
    else:
        does_fit = fitting(items, plan, together, [plan.eval_fraction]) > 0
    if not does_fit:
        return source, pairs
    message = f"{_look_alike([*pairs])}; {TOGETHER}"
    if not plan.folds:
        apart, kept = (len(_sides(items, plan, one)[1]) for one in (source, together))
        message += f": {kept} of {len(items)} records are held out, "
        message += "as without this" if kept == apart else f"{apart} without this"
    told.append(f.info("BUILD-ALIKE", "--split-by", message))
    return together, {}


def _look_alike(pairs: list[str]) -> str:
    return f"got clips or pictures that look alike: {some(pairs, 5)}"
