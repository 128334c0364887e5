"""Splits that a source names itself stay splits: what it calls test or validation is held out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

from cosmos_reason.base import findings as f
from cosmos_reason.data.items import Item
from cosmos_reason.data.source_files import Folder, Repository, files_of
from cosmos_reason.data.split_names import (
    BESIDE_TRAIN,
    EVAL,
    NAMES,
    TEST,
    TRAIN,
    is_held_out,
    of_folders,
)


def of_column(rows: list[dict], column: str, problems: list[f.Finding]) -> list[str]:
    """What a column calls the split of each row. A column that nobody named and that holds other
    words is left alone; one of some words of NAMES and others joins the `problems`."""
    name = column or next((key for row in rows for key in row if key.lower() == "split"), "")
    values = [str(row.get(name) or "").strip().lower() for row in rows]
    others = sorted(set(values) - NAMES.keys())
    if not others:
        return values
    if column or len(others) < len(set(values)):
        shown = ", ".join(map(repr, others[:5]))
        message = f"got {shown} as split, expected one of {', '.join(NAMES)} in every row"
        problems.append(f.error("BUILD-SPLIT-NAME", name, message, values=others[:20]))
    return [""] * len(rows)


def settle(
    items: Sequence[Item], files: Folder, problems: list[f.Finding]
) -> tuple[list[Item], list[f.Finding]]:
    """The items with the folder that each becomes part of ("" where the source holds out nothing),
    and what is said of it. Clips below train/ and test/ name the split of items without one; an
    item to train on whose clip lies in a held-out folder joins the `problems`."""
    by_media = _named_beside_train([_of_media(item, files) for item in items])
    names = _known([item.split or name for item, name in zip(items, by_media, strict=True)])
    _refuse_mixed(items, names, by_media, files, problems)
    counts = Counter(names)
    if not any(map(is_held_out, counts)):
        return [item._replace(split="") for item in items], []
    becomes = _folders(counts)
    told = [
        f"{name or 'without one'} ({count}) -> {becomes[name]}/" for name, count in counts.items()
    ]
    message = f"got a source that names its splits, which stay as they are: {', '.join(told)}"
    if TRAIN not in becomes.values():
        message += "; nothing is left to train on"
    found = [f.info("BUILD-SPLIT-NAMED", files.root, message, splits=becomes)]
    settled = [item._replace(split=becomes[name]) for item, name in zip(items, names, strict=True)]
    return settled, found


def _folders(names: Iterable[str]) -> dict[str, str]:
    """{what a split is called: its folder}: test becomes eval/ where there is no validation."""
    becomes = {name: NAMES.get(name, TRAIN) for name in names}
    if EVAL in becomes.values():
        return becomes
    return {name: EVAL if to == TEST else to for name, to in becomes.items()}


def _named_beside_train(by_media: list[str]) -> list[str]:
    """The names of folders of clips, which are splits only where one of them is train."""
    return by_media if _has_train(by_media) else [""] * len(by_media)


def _known(names: list[str]) -> list[str]:
    """The names without those that may be labels where nothing is called train."""
    if _has_train(names):
        return names
    return ["" if name == BESIDE_TRAIN else name for name in names]


def _has_train(names: Iterable[str]) -> bool:
    return any(NAMES.get(name) == TRAIN for name in names)


def _refuse_mixed(
    items: Sequence[Item],
    names: list[str],
    by_media: list[str],
    files: Folder,
    problems: list[f.Finding],
) -> None:
    wrong = [
        item.name
        for item, name, beside in zip(items, names, by_media, strict=True)
        if is_held_out(beside) and not is_held_out(name)
    ]
    if wrong:
        message = f"got {len(wrong)} records to train on whose clips lie in a held-out folder"
        data = {"record_ids": wrong[: f.MAX_RECORD_IDS], "count": len(wrong)}
        problems.append(f.error("BUILD-SPLIT-NAME", files.root, message, **data))


def _of_media(item: Item, files: Folder) -> str:
    """What the folders of a source call the split of an item's clips."""
    root = files.repo if isinstance(files, Repository) else os.path.abspath(files.root)
    names = []
    for file in (file for _, medium in item.media for file in files_of(medium)):
        path = getattr(file, "key", None) or os.path.abspath(file)
        if path.startswith(f"{root}/"):
            names.append(of_folders(path[len(root) + 1 :]))
    held_out = list(filter(is_held_out, names))
    return next(iter(held_out or names), "")
